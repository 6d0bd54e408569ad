"""The inline engine of `jobwheel.testing`: runs one row after the other in the thread that moves the manual clock, in due order."""

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

from jobwheel.clock import Clock
from jobwheel.engine import Desk, Engine, EngineHealth
from jobwheel.row import Row
from jobwheel.runner import Runner
from jobwheel.settings import Settings
from jobwheel.verdict import Verdict


class InlineEngine(Engine):
    """Takes one row at a time, so that claims happen in the order of the runs; `run_all` runs them."""

    by_itself: ClassVar[bool] = False

    def __init__(self, clock: Clock, settings: Settings, runner: Runner, desk: Desk) -> None:  # noqa: ARG002 (the contract's signature)
        self._clock = clock
        self._runner = runner
        self._desk = desk
        self._queue: deque[Row] = deque()
        self._current: Row | None = None
        self._stopped = False
        self.open = False
        """Set while the clock is being moved: between moves nothing is claimed, so a test can still cancel and touch."""

    def start(self) -> None:
        pass

    def room(self) -> int:
        return 0 if self._stopped or not self.open or self._queue else 1

    def submit(self, rows: list[Row]) -> None:
        self._queue.extend(rows)

    def run_all(self) -> None:
        """Runs what was submitted, and what is claimed when that has made room, until nothing is left."""
        while self._queue and self._current is None:
            row = self._current = self._queue.popleft()
            attempt = row.attempt
            try:
                verdict = self._run(row)
            finally:
                self._current = None
            self._desk.done(row, attempt, verdict)
            self._desk.pump()

    def _run(self, row: Row) -> Verdict:
        kind = row.kind
        began = self._clock.elapsed()
        verdict = _run_coroutine(self._runner, row) if kind.call.is_async else self._runner.run(row)
        timeout = kind.options.timeout
        if timeout is not None and self._clock.elapsed() - began > timeout:
            self._desk.timed_out(row)
            return self._runner.timed_out(row)
        return verdict

    def withdraw(self) -> list[Row]:
        self._stopped = True
        rows = list(self._queue)
        self._queue.clear()
        return rows

    def stop(self, timeout: float) -> list[Row]:  # noqa: ARG002 (nothing to wait for)
        self._stopped = True
        return [self._current] if self._current is not None else []

    def inside_run(self) -> bool:
        return self._current is not None

    def health(self) -> EngineHealth:
        return EngineHealth(threads=1, busy=int(self._current is not None), queued=len(self._queue))


def _run_coroutine(runner: Runner, row: Row) -> Verdict:
    """In an event loop of its own, and so on a thread of its own: the test's may have a loop that runs (pytest-asyncio)."""
    with ThreadPoolExecutor(1) as other:
        return other.submit(lambda: asyncio.run(runner.run_async(row))).result()
