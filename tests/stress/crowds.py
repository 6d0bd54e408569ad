"""What the stress tests share: threads that start at one moment, jobs that count their runs, and a GIL that changes hands often."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar

from jobwheel import IJob, JobContext, TimerManager
from jobwheel.clock import SystemClock

LIMIT = 60.0
"""Seconds after which something hangs."""
now = SystemClock().elapsed


def crowd(size: int, work: Callable[[int], Any]) -> list[Any]:
    """Calls `work(number)` on `size` threads that start at one moment; their answers by number. What one raises, this raises."""
    barrier = threading.Barrier(size)
    answers: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(number: int) -> None:
        barrier.wait(LIMIT)
        try:
            answers[number] = work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), name=f"test-crowd-{number}", daemon=True) for number in range(size)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + LIMIT
    while (alive := [thread for thread in threads if thread.is_alive()]) and not errors:
        alive[0].join(0.01)
        assert time.monotonic() < deadline, f"{', '.join(thread.name for thread in alive)} hang"
    if errors:
        raise errors[0]
    return answers


@contextmanager
def nervous(interval: float = 1e-5) -> Iterator[None]:
    """Threads change places up to 500 times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@dataclass
class Count(IJob, kind="stress.count"):
    """Writes down (number, when it started, how late) in one atomic step."""

    number: int
    runs: ClassVar[list[tuple[int, float, float]]] = []
    numbers: ClassVar[Iterator[int]] = count()

    def run(self, ctx: JobContext) -> None:
        self.runs.append((self.number, now(), ctx.lateness))

    @classmethod
    def fresh(cls) -> list[tuple[int, float, float]]:
        """A new, empty list of runs for the next test."""
        cls.runs = []
        return cls.runs


@dataclass
class CountAsync(IJob, kind="stress.count_async"):
    """The same as a coroutine."""

    number: int

    async def run(self, ctx: JobContext) -> None:
        Count.runs.append((self.number, now(), ctx.lateness))


def drained(timer: TimerManager) -> bool:
    """Nothing waits and nothing runs."""
    stats = timer.stats()
    return stats.pending == stats.running == 0


def check_empty(timer: TimerManager) -> None:
    """In memory mode nothing is left of ended jobs but history: no row, no key, no running one, nothing in the queues."""
    deadline = time.monotonic() + 5
    while any(left(timer).values()) and time.monotonic() < deadline:  # the thread that ended the last one may still be tidying up
        threading.Event().wait(0.005)
    assert not any(left(timer).values()), f"something is left: {left(timer)}"


def left(timer: TimerManager) -> dict[str, int]:
    """How much is left where."""
    store: Any = timer._life.store
    session = timer.session
    assert session is not None
    return {
        **{name: len(getattr(store, name)) for name in ("_rows", "_keys", "_running", "_paused")},
        "limited": sum(map(len, store._limited.values())),
        "backlog": len(session.dispatcher.backlog),
        "held": len(session.dispatcher._held),
        "queued": session.engine.health().queued,
        "busy": session.engine.health().busy,
    }
