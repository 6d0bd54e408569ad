"""The whole timer on each waiting room: what users see does not depend on the word after `backend:`."""

import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from jobwheel import IJob, JobContext, RetryJob, TimerManager
from jobwheel.events import JobSucceeded

OpenedTimer = Callable[..., TimerManager]
WaitUntil = Callable[..., None]

BACKENDS = ["wheel", "apscheduler"]

came: list[tuple[int, float]] = []
"""The number and the lateness of each `Note` that ran."""


@dataclass
class Note(IJob, kind="tests.backends.note"):
    number: int

    def run(self, ctx: JobContext) -> None:
        came.append((self.number, ctx.lateness))


@dataclass
class Again(IJob, kind="tests.backends.again"):
    def run(self, ctx: JobContext) -> None:
        if ctx.attempt < 3:
            raise RetryJob(0.02)


@pytest.fixture(params=BACKENDS)
def timer(request: pytest.FixtureRequest, opened: OpenedTimer) -> TimerManager:
    came.clear()
    return opened(backend=request.param, store={"kind": "memory"}, start=False)


def test_some_hundred_jobs_run_once_but_for_the_cancelled_and_none_early(timer: TimerManager, wait_until: WaitUntil) -> None:
    with timer:
        for number in range(400):
            timer.add_job(Note(number), 0.5 + number / 800, key=f"note:{number}")
        assert all(timer.cancel(f"note:{number}") for number in range(100))
        assert all(timer.touch(f"note:{number}", 1.2) for number in range(100, 150))
        assert all(timer.reschedule(f"note:{number}", 0.1) for number in range(150, 200))
        again = timer.add_job(Again(), 0.1)
        wait_until(lambda: timer.stats().scheduled + timer.stats().running == 0)
        assert timer.wait(again).attempt == 3
        assert timer.health().ok
    assert sorted(number for number, _ in came) == list(range(100, 400))
    assert min(lateness for _, lateness in came) >= 0
    assert {number for number, _ in came[:50]} == set(range(150, 200))
    assert {number for number, _ in came[-50:]} == set(range(100, 150))


def test_what_waits_at_shutdown_runs_after_the_next_start(timer: TimerManager, wait_until: WaitUntil) -> None:
    for number in range(3):
        with timer:
            job = timer.add_job(Note(number), 0.05 if number == 2 else 0.3)
    with timer:
        wait_until(lambda: len(came) == 3)
        session = timer.session
        assert session is not None
        wait_until(lambda: session.room.health().waiting == 0)
    assert job.id == 3
    assert not [thread for thread in threading.enumerate() if thread.name == "APScheduler"]


def test_a_listener_may_shut_the_timer_down(timer: TimerManager, wait_until: WaitUntil) -> None:
    def _stop(event: JobSucceeded) -> None:
        timer.shutdown()

    timer.on(JobSucceeded, _stop)
    timer.start()
    timer.add_job(Note(1), 0.05)
    wait_until(lambda: not timer.started)
    assert len(came) == 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("end", ["", "raise SystemExit", "timer.shutdown()"])
def test_the_process_exits_in_silence_while_jobs_wait_and_run(backend: str, end: str) -> None:
    program = f"""
        import time
        from jobwheel import IJob, open_timer
        class Nap(IJob):
            def run(self):
                time.sleep(0.3)
        timer = open_timer({{"backend": {backend!r}, "store": {{"kind": "memory"}}}})
        timer.start()
        for number in range(300):
            timer.add_job(Nap(), 0.001 * number if number < 3 else 100)
        time.sleep(0.1)
        {end}
    """
    ended = subprocess.run([sys.executable, "-W", "error", "-c", textwrap.dedent(program)], capture_output=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
