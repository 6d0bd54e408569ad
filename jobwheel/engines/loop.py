"""Coroutine jobs: one event loop on one daemon thread, started with the first of them. They take no worker while they run.

Promises: a coroutine past its time limit is cancelled, since asyncio can; if it was its last attempt it is settled at that moment, even
if it does not heed the cancel; what was taken over is run, or given back by `withdraw`.
Relies on: coroutine jobs not blocking the loop. One that does delays only other coroutine jobs; `lag` shows it.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING

from jobwheel.job import context_of
from jobwheel.log import logger
from jobwheel.row import Row
from jobwheel.verdict import Failed, Verdict

if TYPE_CHECKING:
    from jobwheel.clock import Clock
    from jobwheel.engine import Desk
    from jobwheel.runner import Runner


log = logger("jobwheel.engine")

COROUTINES = "\0coroutines"
"""Under this name the engine holds back more coroutine rows than may run; no kind has it."""
GRACE = 1.0
"""Seconds that a cancelled coroutine has to end."""


class LoopThread:
    """Runs coroutine rows for one engine."""

    def __init__(self, clock: "Clock", runner: "Runner", desk: "Desk", ended: Callable[[Row, int], None]) -> None:
        self._elapsed = clock.elapsed
        self._runner = runner
        self._desk = desk
        self._ended = ended
        """Told each row and attempt whose coroutine has ended, however early it was settled."""
        self._lock = threading.Lock()  # what is taken over is either seen by `stop`, or refused
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closing = False
        self._news = asyncio.Event()  # set and waited for on the loop thread
        self._tasks: set[asyncio.Task[None]] = set()
        self.waiting: deque[tuple[Row, int]] = deque()
        self.running: dict[int, tuple[Row, int, float]] = {}
        """Row, attempt, and the elapsed moment when its time is over, by id. Written by the loop thread alone."""
        self._asked: float | None = None  # since when the loop owes an answer to `lag`

    def run(self, row: Row, attempt: int) -> None:
        """Takes a coroutine row over, from any thread. Raises RuntimeError if it cannot: no thread to be had, or it is being stopped."""
        with self._lock:
            if self._closing:
                raise RuntimeError("the loop is being stopped")
            loop = self._loop or self._start()
            self.waiting.append((row, attempt))
            loop.call_soon_threadsafe(self._news.set)

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
        main: asyncio.Future[None] | None = None
        while not self._closing or self.waiting or self.running:
            if main is None or main.done():
                main = asyncio.ensure_future(self._main(), loop=loop)
            try:
                loop.run_until_complete(main)
            except BaseException as error:  # a job stopped the loop, or cancelled all that runs in it
                log.exception("a coroutine job stopped the event loop that it runs in with others; it goes on")
                self._desk.fault("loop", error)
        loop.close()

    async def _main(self) -> None:
        """Takes what came, until it is stopped and nothing runs. Once `_closing` is set nothing comes any more."""
        while not self._closing or self.waiting or self.running:
            await self._news.wait()
            self._news.clear()
            self._take()

    def _take(self) -> None:
        while self.waiting:
            try:
                row, attempt = self.waiting.popleft()
            except IndexError:  # withdrawn by another thread
                return
            timeout = row.kind.options.timeout
            self.running[row.id] = (row, attempt, inf if timeout is None else self._elapsed() + timeout)
            task = asyncio.ensure_future(self._one(row, attempt))
            self._tasks.add(task)  # the loop itself holds them weakly
            task.add_done_callback(self._tasks.discard)

    async def _one(self, row: Row, attempt: int) -> None:
        try:
            verdict = await self.attempt(row, attempt)
        except BaseException as error:  # cancelled from outside of the job
            verdict = self._runner.judge_raise(row, error)
        await self._done(row, attempt, verdict)
        del self.running[row.id]
        if row.run is not None:
            row.run.hung = False  # after `running`: see `ThreadEngine._tell_late`
        self._news.set()
        self._ended(row, attempt)

    async def _done(self, row: Row, attempt: int, verdict: Verdict) -> None:
        """Has the verdict written down, by a thread of the loop's own pool if that may take a while."""
        if self._desk.blocking:
            try:
                await asyncio.get_running_loop().run_in_executor(None, self._desk.done, row, attempt, verdict)
            except (RuntimeError, asyncio.CancelledError):  # no thread to be had, or a job cancels all that runs here
                pass  # perhaps it was written all the same: then the second time changes nothing
            else:
                return
        self._desk.done(row, attempt, verdict)

    async def attempt(self, row: Row, attempt: int) -> Verdict:
        """One attempt within its kind's time limit."""
        timeout = row.kind.options.timeout
        if timeout is None:
            return await self._runner.run_async(row)
        running = asyncio.ensure_future(self._runner.run_async(row))
        done, _ = await asyncio.wait({running}, timeout=timeout)
        if not done:
            self._desk.timed_out(row)
            running.cancel()
            await asyncio.wait({running}, timeout=GRACE)
            verdict = self._runner.timed_out(row)
            if not running.done() and isinstance(verdict, Failed) and row.series is None:
                context_of(row).hung = True
                await self._done(row, attempt, verdict)
                self._ended(row, attempt)  # it keeps no place from the others any more
        return await running

    def lag(self) -> float:
        """Seconds for which the loop has not answered: it is blocked by a coroutine that does not await. 0 when first asked."""
        loop = self._loop
        if loop is None or not self.running:
            return 0.0
        now = self._elapsed()
        if self._asked is None:
            self._asked = now
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._answer)
            return 0.0
        return now - self._asked

    def _answer(self) -> None:
        self._asked = None

    def stop(self) -> None:
        """Ends the thread once nothing runs there any more."""
        with self._lock:
            self._closing = True
            loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # a second stop, after which there is no loop any more
                loop.call_soon_threadsafe(self._news.set)

    def join(self, timeout: float) -> None:
        """Waits for the thread to end, unless it is the calling one."""
        if self._thread is not None and not self.inside():
            self._thread.join(timeout)

    def inside(self) -> bool:
        """True on the loop thread."""
        return threading.current_thread() is self._thread
