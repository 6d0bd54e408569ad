"""`max_running` over processes that share a file: never more than so many at once, nothing stuck, and soon room for the others."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from eventlog import Line
from stage import Stage, staged

LIMIT = 2
"""`max_running` of `Narrow`."""
JOBS = 60

ADDS = """
timer = opened(durability="process")
timer.start()
timer.add_jobs([dict(job=Narrow(f"n{n}", seconds), delay=delay) for n in range(jobs)])
"""
WORKS = """
timer = opened(durability="process")
timer.start()
log("ready")
stays(timer)
"""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path) as stage:
        yield stage


def most_at_once(lines: list[Line]) -> int:
    """By the lines that each run writes as its first and its last step."""
    inside = most = 0
    for line in sorted(lines, key=lambda line: line.place):
        inside += 1 if line.what == "start" else -1
        most = max(most, inside)
    return most


def runs(stage: Stage, **of: int) -> list[Line]:
    return [*stage.lines("start", **of), *stage.lines("end", **of)]


def test_no_more_than_max_running_run_at_once_in_two_processes_and_all_run(stage: Stage) -> None:
    works = stage.program(WORKS)
    stage.wait_for("ready")
    adds = stage.program(f"jobs, seconds, delay = {JOBS}, 0.05, 0.1\n{ADDS}\nstays(timer)")
    stage.wait_for("settled", JOBS)
    assert len({line.rest[0] for line in stage.lines("start")}) == len(stage.lines("start")) == JOBS
    assert most_at_once(runs(stage)) == LIMIT
    for program in (works, adds):
        program.end()


def test_what_one_process_holds_back_runs_there_soon_after_the_end_of_the_others_runs(stage: Stage) -> None:
    """It looks once a second; here with more, since the machine may be busy. The other process claims nothing any more."""
    first = stage.program(
        f"jobs, seconds, delay = {2 * LIMIT}, 2.0, 0.0\n{ADDS}\ncomes('both')\ntimer.pause_all()\nlog('paused')\nstays(timer)"
    )
    stage.wait_for("start", LIMIT)
    stage.cue("both")
    stage.wait_for("paused")
    second = stage.program(WORKS)
    stage.wait_for("start", LIMIT, process=second.number)
    stage.wait_for("settled", 2 * LIMIT)
    ends = [line.at for line in stage.lines("end", process=first.number)]
    starts = [line.at for line in stage.lines("start", process=second.number)]
    assert len(ends) == len(starts) == LIMIT
    assert min(starts) >= min(ends)
    assert max(starts) < max(ends) + 5
    assert most_at_once(runs(stage)) == LIMIT
    for program in (first, second):
        program.end()


def test_the_places_of_a_killed_process_are_free_once_it_is_known_to_be_dead(stage: Stage) -> None:
    killed = stage.program(f"jobs, seconds, delay = 8, 0.5, 0.0\n{ADDS}\nstays(timer)")
    stage.wait_for("start", LIMIT)
    other = stage.program(WORKS)
    stage.wait_for("ready")
    killed.kill()
    stage.wait_until(lambda: len({line.rest[0] for line in stage.lines("settled")}) == 8, "the end of all jobs")
    assert most_at_once(runs(stage, process=other.number)) == LIMIT
    other.end()
