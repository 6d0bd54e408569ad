"""The rules of `workers: {threads: 0}`, a timer that only adds, one test each."""

import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from jobwheel import IJob, State, TimerManager, open_timer


class Here(IJob, kind="only_adds.here"):
    def run(self) -> str:
        return threading.current_thread().name


def opened(path: Path, threads: int) -> TimerManager:
    return open_timer({"store": {"path": str(path / "jobs.db"), "durability": "process"}, "workers": {"threads": threads}})


@pytest.fixture
def adder(tmp_path: Path) -> Iterator[TimerManager]:
    """A started timer that only adds."""
    with opened(tmp_path, 0) as timer:
        yield timer


def inside(timer: TimerManager) -> tuple[Any, ...]:
    """What it holds of jobs in memory: tickets, lanes, and what its room has."""
    session = timer.session
    assert session is not None
    room: Any = session.room
    window: Any = timer._life.store._window  # type: ignore[attr-defined]
    waiting = len(room.ticker.inbox) or room.ticker.wheel.next_due()
    return len(window.tickets), len(session.dispatcher.backlog), len(session.dispatcher.overdue), waiting


def test_it_is_started_and_keeps_nothing_of_what_it_adds(adder: TimerManager, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    jobs = [adder.add_job(Here(), delay) for delay in (None, 0, 0.01, 60.0) for _ in range(50)]
    jobs += [adder.add_job(Here(), at=datetime.now(UTC) + timedelta(seconds=30)) for _ in range(50)]
    assert adder.started
    assert inside(adder) == (0, 0, 0, None)
    assert {job.state for job in adder.find(limit=1000)} == {State.SCHEDULED}
    assert len(adder.find(limit=1000)) == len(jobs)
    assert adder.health().ok, adder.health()
    assert adder.health().started
    assert not caplog.records


def test_it_has_no_worker_and_no_keeper(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with opened(tmp_path, 0):
        names = {thread.name for thread in set(threading.enumerate()) - before}
    assert not {name for name in names if "worker" in name or "keeper" in name}


def test_every_call_works_on_it(adder: TimerManager) -> None:
    job = adder.add_job(Here(), 60, key="one")
    assert adder.touch("one")
    assert adder.touch("one", 0.5)
    assert adder.reschedule("one", 90)
    assert adder.pause("one")
    assert adder.resume("one")
    assert adder.run_now("one")
    adder.pause_all()
    adder.resume_all()
    assert inside(adder)[:3] == (0, 0, 0)
    assert adder.cancel(job)
    assert adder.get(job) is not None
    assert adder.stats().cancelled == 1
    assert adder.add_jobs([(Here(), 60), (Here(), 70)])
    assert adder.cancel_all() == 2


def test_another_timer_on_the_file_runs_what_it_adds_and_it_can_wait_for_that(adder: TimerManager, tmp_path: Path) -> None:
    with opened(tmp_path, 2):
        jobs = [adder.add_job(Here()) for _ in range(20)]
        ends = [adder.wait(job, 10) for job in jobs]
    assert {end.state for end in ends} == {State.SUCCEEDED}
    assert all(str(end.result).startswith("jobwheel-worker") for end in ends)
    assert inside(adder) == (0, 0, 0, None)


def test_its_health_says_so_when_a_due_job_waits_and_nobody_takes_it(adder: TimerManager) -> None:
    now = datetime.now(UTC)
    adder.add_job(Here(), at=now - timedelta(seconds=5))
    assert adder.health().ok
    adder.add_job(Here(), at=now - timedelta(seconds=20))
    (problem,) = adder.health().problems
    assert problem.startswith("a job has been due for 2")
    assert problem.endswith("no process has taken it, and this timer only adds (workers.threads is 0): does `jobwheel worker` run?")


def test_it_can_be_shut_down_and_started_again(adder: TimerManager) -> None:
    assert adder.shutdown() == []
    assert not adder.started
    adder.start()
    job = adder.add_job(Here())
    assert inside(adder) == (0, 0, 0, None)
    assert adder.cancel(job)


def test_without_a_shared_store_it_is_a_problem() -> None:
    with open_timer({"store": {"kind": "memory"}, "workers": {"threads": 0}}) as timer:
        assert timer.health().problems == ("workers.threads is 0: jobs are added and never run here",)
