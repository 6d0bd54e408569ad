"""What a file keeps from one life of the program to the next: reboots, clock steps, renamed and unknown kinds.

The clocks are moved by hand. Each manual clock is a boot of its own, so a second timer on the same file is the program after a reboot.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from jobwheel import IJob, JobContext, Retry, State, TimerManager
from jobwheel import kind as kinds
from jobwheel.testing import START, ManualClock

Again = Callable[..., tuple[TimerManager, ManualClock]]
runs: list[Any] = []
pytestmark = pytest.mark.usefixtures("own_kinds")


@pytest.fixture
def boot(manual: Callable[..., tuple[TimerManager, ManualClock]], tmp_path: Path) -> Again:
    """`boot(wall=...)` gives a timer on the test's file, after a boot at which the wall clock showed so many seconds since START."""
    runs.clear()
    timers: list[TimerManager] = []

    def make(wall: float = 0.0, **settings: Any) -> tuple[TimerManager, ManualClock]:
        for timer in timers:
            timer.shutdown(0)
        timer, clock = manual(store={"kind": "sqlite", "path": str(tmp_path / "jobs.db")}, **settings)
        clock.set_wall(wall)
        timers.append(timer)
        return timer, clock

    return make


@dataclass
class Note(IJob, kind="durable.note"):
    number: int = 0

    def run(self, ctx: JobContext) -> None:
        runs.append((self.number, ctx.attempt))


def forget(*names: str) -> None:
    """This process does not know the kinds any more, as one with older or newer code."""
    for name in names:
        kinds._registry.pop(name)


def test_a_delay_goes_on_over_a_reboot_by_the_wall_clock(boot: Again) -> None:
    """The elapsed clock begins anew at a boot, so the time the machine was off is known by the wall clock alone."""
    timer, clock = boot()
    clock.advance(100)
    timer.add_job(Note(1), 600)
    clock.advance(200)
    timer, clock = boot(wall=500)  # off for 200 seconds, at 500 after START: due at 700
    clock.advance(199)
    assert runs == []
    clock.advance(1)
    assert runs == [(1, 1)]


def test_what_fell_due_while_the_machine_was_off_runs_at_the_start_lateness_told(boot: Again) -> None:
    timer, clock = boot()
    job = timer.add_job(Note(1), 60)
    timer, clock = boot(wall=3600)
    clock.advance(0)
    assert runs == [(1, 1)]
    ended = timer.get(job.id)
    assert ended is not None
    assert ended.lateness == pytest.approx(3540, abs=0.01)


def test_a_step_of_the_wall_clock_before_the_reboot_is_not_counted_as_time(boot: Again) -> None:
    """The file follows the step: what remains of the delay is what remained."""
    timer, clock = boot()
    timer.add_job(Note(1), 600)
    clock.advance(100)
    clock.set_wall(86400)
    clock.advance(1)
    timer, clock = boot(wall=86400 + 101)
    clock.advance(498)
    assert runs == []
    clock.advance(2)
    assert runs == [(1, 1)]


@pytest.mark.parametrize("step", [-7200, 7200])
def test_a_step_of_the_wall_clock_moves_dates_and_no_delays(boot: Again, step: int) -> None:
    timer, clock = boot()
    timer.add_job(Note(1), 10_000)
    timer.add_job(Note(2), at=datetime.fromtimestamp(START, UTC) + timedelta(seconds=10_000))
    clock.set_wall(step)
    clock.advance(10_000 - max(step, 0) - 1)
    assert runs == []
    clock.advance(1)
    assert runs == ([(2, 1)] if step > 0 else [(1, 1)])
    clock.advance(7200)
    assert sorted(runs) == [(1, 1), (2, 1)]


def test_a_job_of_an_unknown_kind_waits_is_told_and_runs_where_it_is_known(boot: Again) -> None:
    """A rolling deploy: an old process leaves it to a new one, though it is due; it holds its key and can be cancelled."""
    timer, clock = boot()
    first, second = timer.add_job(Note(1), 10, key="first"), timer.add_job(Note(2), 10, key="second")
    known = kinds._registry["durable.note"]
    forget("durable.note")
    timer, clock = boot()
    clock.advance(60)
    found = timer.get(first.id)
    assert found is not None
    assert (found.state, found.job, found.kind, found.attempt) == (State.UNRESOLVABLE, None, "durable.note", 0)
    assert timer.stats().unresolvable == 2
    assert timer.health().unresolvable == 2
    assert timer.cancel("second")
    kinds._registry["durable.note"] = known
    clock.advance(2)
    assert runs == [(1, 1)]
    assert [job.state for job in timer.find()] == [State.SUCCEEDED, State.CANCELLED]
    assert second.id == timer.find()[1].id


def test_data_that_the_class_does_not_fit_any_more_is_kept_and_runs_where_it_fits(boot: Again) -> None:
    """Never lost, never in a loop, its attempts uncounted."""

    @dataclass
    class Old(IJob, kind="durable.changing"):
        number: int

        def run(self) -> None:
            runs.append(self.number)

    timer, clock = boot()
    job = timer.add_job(Old(7), 10)
    old = kinds._registry["durable.changing"]
    forget("durable.changing")

    @dataclass
    class New(IJob, kind="durable.changing"):
        number: list[int] = field(default_factory=list)

        def run(self) -> None:
            runs.append(self.number)

    timer, clock = boot()
    for _ in range(5):
        clock.advance(30)
    found = timer.get(job.id)
    assert found is not None
    assert (found.state, found.attempt) == (State.UNRESOLVABLE, 0)
    kinds._registry["durable.changing"] = old
    timer, clock = boot()
    clock.advance(60)
    assert runs == [7]


def test_a_job_of_a_renamed_class_runs_by_the_alias(boot: Again) -> None:
    @dataclass
    class Before(IJob, kind="durable.before"):
        number: int

        def run(self) -> None:
            raise AssertionError("the new class is to run")

    timer, clock = boot()
    timer.add_job(Before(3), 10)
    forget("durable.before")

    @dataclass
    class After(IJob, kind="durable.after", aliases=("durable.before",)):
        number: int

        def run(self) -> None:
            runs.append(self.number)

    timer, clock = boot()
    clock.advance(10)
    assert runs == [3]
    assert timer.find()[0].kind == "durable.after"


def test_attempts_history_and_what_a_job_said_are_kept_over_a_restart(boot: Again) -> None:
    @dataclass
    class Fails(IJob, kind="durable.fails", retry=Retry(attempts=3, backoff=100)):
        def run(self, ctx: JobContext) -> None:
            runs.append(ctx.attempt)
            ctx.log(f"try {ctx.attempt}")
            raise OSError("no line")

    timer, clock = boot()
    job = timer.add_job(Fails(), tags=["mail"], priority=7)
    clock.advance(0)
    timer, clock = boot(wall=50)
    waiting = timer.get(job.id)
    assert waiting is not None
    assert (waiting.state, waiting.attempt, waiting.error) == (State.SCHEDULED, 1, "OSError: no line")
    clock.advance(1000)
    assert runs == [1, 2, 3]
    timer, clock = boot(wall=2000)
    ended = timer.get(job.id)
    assert ended is not None
    assert (ended.state, ended.attempt, ended.log, ended.tags, ended.priority) == (State.FAILED, 3, ("try 3",), ("mail",), 7)
    assert ended.trace is not None
    assert timer.stats().failed == 1


def test_the_order_of_ids_is_kept_over_restarts_and_no_id_is_given_twice(boot: Again) -> None:
    ids = []
    for _ in range(3):
        timer, _ = boot()
        ids += [timer.add_job(Note(number), 60).id for number in range(5)]
    assert ids == sorted(set(ids))


def test_what_is_in_the_file_is_read_by_any_sqlite(boot: Again, tmp_path: Path) -> None:
    """The data is JSON; nothing in the file names code to import."""
    timer, _ = boot()
    timer.add_job(Note(5), 60, key="five")
    timer.shutdown()
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        ((data, key, name),) = connection.execute("SELECT data, key, name FROM job JOIN kind ON kind = kind.n").fetchall()
    assert (data, key, name) == ('{"number":5}', "five", "durable.note")
