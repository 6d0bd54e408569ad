"""Touches by several threads of two processes, while the jobs fall due: none starts before what any of them was told."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from stage import Stage, staged

from jobwheel.stores.sqlite.moments import SECOND
from jobwheel.stores.sqlite.touching import AHEAD

JOBS, DELAY = 1000, 0.3

TOUCHES = f"""
timer = opened(durability="process")
timer.start()
if number == 1:
    timer.add_jobs([dict(job=Work(f"k{{n}}"), delay=1 + {DELAY}, key=f"k{{n}}") for n in range({JOBS})])
log("ready")
comes("go")

def touch(thread):
    chance = random.Random(10 * number + thread)
    end = now() + 4
    while now() < end:
        key = f"k{{chance.randrange({JOBS})}}"
        before = now()
        if timer.touch(key, {DELAY}):
            log("touched", key, before + {DELAY})
    log("done")

for thread in range(4):
    threading.Thread(target=touch, args=(thread,), daemon=True).start()
stays(timer)
"""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path) as stage:
        yield stage


def promised(stage: Stage) -> dict[str, float]:
    """By key: the latest moment before which its job must not start."""
    moments: dict[str, float] = {}
    for line in stage.lines("touched"):
        key, moment = line.rest
        moments[key] = max(moment, moments.get(key, 0.0))
    return moments


def test_no_job_starts_before_its_last_touch_allows_and_each_runs_once(stage: Stage) -> None:
    """For each: last touch that said True + delay <= start."""
    programs = [stage.program(TOUCHES) for _ in range(2)]
    stage.wait_for("ready", 2)
    stage.cue("go")
    stage.wait_for("done", 8)
    stage.wait_until(lambda: len(stage.lines("start")) >= JOBS, "all runs")
    for program in programs:
        program.end()
    starts = stage.lines("start")
    assert Counter(line.rest[2] for line in starts) == Counter(f"k{number}" for number in range(JOBS))
    moments = promised(stage)
    early = {line.rest[2]: moments[line.rest[2]] - line.at for line in starts if line.at < moments.get(line.rest[2], 0.0)}
    assert early == {}
    assert len(moments) > JOBS / 10, "no race"
    assert len({line.process for line in starts}) == 2


def test_what_a_killed_process_touched_runs_not_before_it_and_soon_after(stage: Stage) -> None:
    """A second later than promised at most, and the second of the sweep; here with more, since the machine may be busy."""
    _, killed = programs = [stage.program(TOUCHES) for _ in range(2)]
    stage.wait_for("ready", 2)
    stage.cue("go")
    stage.wait_for("touched", 100, process=2)
    killed.kill()
    stage.wait_for("done", 4)
    stage.wait_until(lambda: len({line.rest[2] for line in stage.lines("start")}) == JOBS, "all runs")
    programs[0].end()
    last = {line.rest[2]: line.at for line in stage.lines("start")}
    late = {key: last[key] - moment for key, moment in promised(stage).items()}
    assert min(late.values()) >= 0
    assert max(late.values()) < AHEAD / SECOND + 5
