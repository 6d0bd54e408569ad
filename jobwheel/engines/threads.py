"""The thread engine: a fixed number of daemon threads that pop due rows from one queue; coroutine jobs run on one loop thread.

Promises: each submitted row is run once or withdrawn once; no row waits behind a slow one while a worker is idle; a run past its
time limit is noticed as soon as the watch thread gets the GIL, and its thread is then replaced, at most `threads` of them at a
time; nothing that a job raises ends a thread; `submit` starts no thread, so it cannot fail for want of one.
Relies on: `runner.run` raising nothing, `done` raising nothing.
Not promised: that a hung thread ends (Python cannot end it); it is a daemon and dies with the process.

One permit is put for each row, and a worker takes a permit before it pops: so an idle worker sleeps in the C code of
`SimpleQueue`, and no wake-up is lost.
"""

import asyncio
import logging
import threading
import time
from math import inf
from queue import SimpleQueue
from typing import Literal

from jobwheel.clock import Clock
from jobwheel.engine import Desk, Engine, EngineHealth
from jobwheel.engines.loop import LoopThread
from jobwheel.engines.watch import Watch
from jobwheel.errors import UsageError
from jobwheel.lanes import Lanes
from jobwheel.row import Row
from jobwheel.runner import Runner
from jobwheel.settings import Settings
from jobwheel.state import State
from jobwheel.verdict import Failed

log = logging.getLogger("jobwheel.engine")

Permit = Literal["row", "stop"]
Current = tuple[Row, int, float]
"""What a worker runs: the row, the number of the attempt, and the elapsed moment when its time is over (inf: never)."""

AGAIN = 1.0
"""Seconds until a thread that could not be started is tried again."""


class Worker(threading.Thread):
    """One thread of the pool."""

    def __init__(self, engine: "ThreadEngine", number: int) -> None:
        super().__init__(name=f"jobwheel-worker-{number}", daemon=True)
        self.current: Current | None = None
        """Written by this thread alone, read by the watch: one tuple, so that what it reads belongs together."""
        self.overran: Current | None = None
        """The run that the watch has found past its limit. Written by the watch alone."""
        self.replaced = False
        """Another thread has taken this one's place: it ends after its present run. Written by the watch alone."""
        self._engine = engine

    def run(self) -> None:
        engine = self._engine
        lanes, permits, desk = engine.lanes, engine.permits, engine.desk
        take, pop, run, done = permits.get, lanes.pop, engine.runner.run, desk.done
        while take() == "row":
            row = pop()
            if row is not None:
                attempt = row.attempt
                if row.kind.is_quick:
                    self.current = (row, attempt, inf)
                    done(row, attempt, run(row))
                    self.current = None
                else:
                    engine.run_watched(self, row, attempt)
                # The next batch when the queue is half empty; at each chance, where something more urgent may wait behind it.
                if permits.qsize() <= engine.low or lanes.several:
                    desk.pump()
            if self.replaced:
                engine.gone(self)
                return


class ThreadEngine(Engine):
    """See the module."""

    def __init__(self, clock: Clock, settings: Settings, runner: Runner, desk: Desk) -> None:
        workers = settings.workers
        self._elapsed = clock.elapsed
        self.runner = runner
        self.desk = desk
        self._size = workers.threads
        self._bound = workers.queue or 4 * self._size
        self.low = self._bound // 2
        self.lanes: Lanes[Row] = Lanes(clock.elapsed, workers.ageing)
        self.permits: SimpleQueue[Permit] = SimpleQueue()
        self._queued = self.permits.qsize  # as many as there are rows in the lanes, and cheaper to ask
        self._workers: list[Worker] = []  # written by start, then by the watch
        self._hung: set[Worker] = set()
        self._numbers = 0
        self._stopping = False
        self._loop = LoopThread(runner, desk, workers.coroutines)
        self._watch = Watch(clock, self._look)

    def start(self) -> None:
        while len(self._workers) < self._size and self._start_worker():
            pass
        if self._size and not self._workers:
            raise UsageError("not one worker thread could be started: the process is at its limit (ulimit -u, or pids.max of its cgroup)")
        if len(self._workers) < self._size:
            log.warning("%d of %d worker threads could be started; the others are tried again", len(self._workers), self._size)
        self._watch.start()

    def _start_worker(self) -> bool:
        worker = Worker(self, self._numbers)
        try:
            worker.start()
        except RuntimeError:
            return False
        self._numbers += 1
        self._workers.append(worker)
        return True

    def room(self) -> int:
        if self._stopping or not self._size:
            return 0
        return self._bound - self._queued() - len(self._loop.waiting)

    def top(self) -> int | None:
        return self.lanes.top()

    def submit(self, rows: list[Row]) -> None:
        self.lanes.push(rows)
        put = self.permits.put
        for _ in rows:
            put("row")

    def run_watched(self, worker: Worker, row: Row, attempt: int) -> None:
        """One row that has a time limit or is a coroutine, on its worker's thread."""
        timeout = row.kind.options.timeout
        if row.kind.call.is_async:
            self._run_coroutine(worker, row, attempt)
        elif timeout is not None:
            limit = self._elapsed() + timeout
            worker.current = (row, attempt, limit)
            self._watch.expect(limit)
            self.desk.done(row, attempt, self.runner.run(row))
            worker.current = None
            if worker.overran is not None:
                self._watch.expect(limit)  # it was found hanging and has ended: the watch counts anew

    def _run_coroutine(self, worker: Worker, row: Row, attempt: int) -> None:
        try:
            self._loop.run(row, attempt)
        except RuntimeError:  # no thread to be had for the loop, or it is being stopped: this worker runs it
            worker.current = (row, attempt, inf)
            self.desk.done(row, attempt, asyncio.run(self._loop.attempt(row)))
            worker.current = None

    def _look(self) -> float:
        """On the watch's thread: sees to runs past their limit and to missing threads; gives the next moment to look at."""
        now = self._elapsed()
        next_look = inf
        for worker in tuple(self._workers):
            current = worker.current
            if current is None or current is worker.overran:
                continue
            if current[2] <= now:
                worker.overran = current
                self._overrun(worker, current)
            else:
                next_look = min(next_look, current[2])
        return next_look if self._fill_up() else min(next_look, now + AGAIN)

    def _overrun(self, worker: Worker, current: Current) -> None:
        row, attempt, _ = current
        # The run may end at this very moment. Then its worker settles first and `done` below is refused, or ours is the one that counts.
        if row.attempt != attempt or row.state is not State.RUNNING:
            return
        self._hung.add(worker)
        self.desk.timed_out(row)
        verdict = self.runner.timed_out(row)
        if isinstance(verdict, Failed):
            self.desk.done(row, attempt, verdict)
        # Else another attempt is due, which must not run beside this one: it is settled when the thread ends.

    def _fill_up(self) -> bool:
        """Replaces hung workers and starts missing ones; False if a thread could not be started."""
        if self._stopping:
            return True
        for worker in tuple(self._hung):
            if worker.current is not worker.overran:
                self._hung.discard(worker)  # it ended after all
            elif not worker.replaced and sum(hung.replaced for hung in self._hung) < self._size:
                if not self._start_worker():
                    return False
                worker.replaced = True
                self._workers.remove(worker)
                log.warning("%s hangs in job %d past its timeout; another thread has taken its place", worker.name, worker.overran[0].id)  # type: ignore[index]
        while len(self._workers) < self._size:
            if not self._start_worker():
                return False
        return True

    def gone(self, worker: Worker) -> None:
        """A replaced worker has ended its run after all."""
        self._hung.discard(worker)

    def withdraw(self) -> list[Row]:
        self._stopping = True
        rows = self.lanes.drain()
        while self._loop.waiting:
            try:
                rows.append(self._loop.waiting.popleft()[0])
            except IndexError:
                break
        return rows

    def stop(self, timeout: float) -> list[Row]:
        self._stopping = True
        self._watch.stop()
        for _ in range(self._numbers):  # for those too that were replaced at the moment in which they ended, and wait for a permit
            self.permits.put("stop")
        self._loop.stop()
        deadline = time.monotonic() + timeout
        everyone = {*self._workers, *self._hung}
        for worker in everyone:
            if worker is not threading.current_thread():
                worker.join(max(0.0, deadline - time.monotonic()))
        self._loop.join(max(0.0, deadline - time.monotonic()))
        rows = [current[0] for worker in everyone if (current := worker.current) is not None]
        return [*rows, *self._loop.running.copy().values()]

    def inside_run(self) -> bool:
        thread = threading.current_thread()
        return (isinstance(thread, Worker) and thread.current is not None) or self._loop.inside()

    def health(self) -> EngineHealth:
        workers = tuple(self._workers)
        dead = sum(not worker.is_alive() for worker in workers)
        problem = None
        if not self._stopping and len(workers) - dead < self._size:
            problem = f"{len(workers) - dead} of {self._size} worker threads are alive"
        elif len(self._hung) and sum(worker.replaced for worker in tuple(self._hung)) >= self._size:
            problem = f"{len(self._hung)} runs hang past their timeout, and no more threads are put in their places"
        return EngineHealth(
            threads=len(workers),
            busy=sum(worker.current is not None for worker in workers) + len(self._loop.running),
            queued=len(self.lanes) + len(self._loop.waiting),
            hung=len(self._hung),
            problem=problem,
        )
