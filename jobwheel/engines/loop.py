"""Coroutine jobs: one event loop on one daemon thread, started with the first of them. They take no worker while they run.

Promises: at most `most` coroutines at once, the rest in order; a coroutine past its time limit is cancelled, since asyncio can.
Relies on: coroutine jobs not blocking the loop; one that does delays only other coroutine jobs.
"""

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING

from jobwheel.row import Row
from jobwheel.verdict import Verdict

if TYPE_CHECKING:
    from jobwheel.engine import Desk
    from jobwheel.runner import Runner


class LoopThread:
    """Runs coroutine rows for one engine."""

    def __init__(self, runner: "Runner", desk: "Desk", most: int) -> None:
        self._runner = runner
        self._desk = desk
        self._most = most
        self._lock = threading.Lock()  # what is taken over is either seen by `stop`, or refused
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.waiting: deque[tuple[Row, int]] = deque()
        self.running: dict[int, Row] = {}  # written by the loop thread alone

    def run(self, row: Row, attempt: int) -> None:
        """Takes a coroutine row over, from any thread. Raises RuntimeError if it cannot: no thread can be started, or it is being stopped."""
        with self._lock:
            if self._closing:
                raise RuntimeError("the loop is being stopped")
            loop = self._loop or self._start()
            self.waiting.append((row, attempt))
            # Under the lock, so that it is called before what `stop` calls.
            loop.call_soon_threadsafe(self._take)

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._live, args=(loop,), name="jobwheel-loop", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            loop.close()
            raise
        self._thread = thread
        self._loop = loop
        return loop

    def _live(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.close()

    def _take(self) -> None:
        self._next()
        self._desk.pump()  # what runs here now does not wait for the loop any more, and the worker that brought it found no room

    def _next(self) -> None:
        while self.waiting and len(self.running) < self._most:
            try:
                row, attempt = self.waiting.popleft()
            except IndexError:  # withdrawn by another thread
                return
            self.running[row.id] = row
            task = asyncio.ensure_future(self._one(row, attempt))
            self._tasks.add(task)  # the loop itself holds them weakly
            task.add_done_callback(self._tasks.discard)

    async def _one(self, row: Row, attempt: int) -> None:
        try:
            verdict = await self.attempt(row)
            self._desk.done(row, attempt, verdict)
        finally:
            del self.running[row.id]
            self._next()
            if self._closing and not self.running:
                asyncio.get_running_loop().stop()
        self._desk.pump()

    async def attempt(self, row: Row) -> Verdict:
        """One attempt within its kind's time limit."""
        timeout = row.kind.options.timeout
        if timeout is None:
            return await self._runner.run_async(row)
        running = asyncio.ensure_future(self._runner.run_async(row))
        done, _ = await asyncio.wait({running}, timeout=timeout)
        if not done:
            self._desk.timed_out(row)
            running.cancel()
        return await running

    def stop(self) -> None:
        """Ends the thread once nothing runs there any more."""
        with self._lock:
            self._closing = True
            loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(lambda: None if self.running else loop.stop())

    def join(self, timeout: float) -> None:
        """Waits for the thread to end, unless it is the calling one."""
        if self._thread is not None and not self.inside():
            self._thread.join(timeout)

    def inside(self) -> bool:
        """True on the loop thread."""
        return threading.current_thread() is self._thread
