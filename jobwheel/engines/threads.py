"""The thread engine: a fixed number of daemon threads that pop due rows from one queue; coroutine jobs run on one loop thread. A run of a
kind with `isolation="process"` is in a child process, for which its worker waits.

Promises: each submitted row is run once or withdrawn once; no row waits behind a slow one while a worker is idle; a run past its
time limit is noticed as soon as the watch thread gets the GIL, and its thread is then replaced, at most `threads` of them at a
time; nothing that a job raises ends a thread; `submit` starts no thread, so it cannot fail for want of one.
Relies on: `runner.run` raising nothing, `done` raising nothing.
Not promised: that a hung thread ends (Python cannot end it); it is a daemon and dies with the process.

One permit is put for each row, and a worker takes a permit before it pops: so an idle worker sleeps in the C code of
`SimpleQueue`, and no wake-up is lost. Somewhat long, since the care for hung and missing threads needs the whole crew in sight.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from math import inf
from queue import SimpleQueue
from typing import ClassVar

from jobwheel.clock import Clock
from jobwheel.engine import Desk, Engine, EngineHealth
from jobwheel.engines.children import Children
from jobwheel.engines.isolated import IsolatedRuns
from jobwheel.engines.loop import COROUTINES, GRACE, LoopThread
from jobwheel.engines.watch import Watch
from jobwheel.engines.worker import Current, Permit, Worker
from jobwheel.errors import UsageError
from jobwheel.isolation import isolated
from jobwheel.job import context_of
from jobwheel.kind import Kind
from jobwheel.lanes import Lanes
from jobwheel.log import logger
from jobwheel.row import Entry, Row
from jobwheel.runner import Runner
from jobwheel.settings import Settings
from jobwheel.state import State
from jobwheel.verdict import Failed

log = logger("jobwheel.engine")

BLOCKED = 3.0
"""Seconds without an answer of the event loop from which health says so."""
QUICK = 0.02
"""Seconds that a run may last to count as short: while runs are short a few are claimed ahead for each thread, else none."""
EACH = 1.0
"""Seconds until a thread that could not be started is tried again, and between two questions to the event loop."""


class ThreadEngine(Engine):
    """See the module."""

    word: ClassVar[str] = "threads"
    """What `workers.engine` says of it."""

    def __init__(self, clock: Clock, settings: Settings, runner: Runner, desk: Desk) -> None:
        workers = settings.workers
        self._elapsed = clock.elapsed
        self.runner = runner
        self.desk = desk
        self._size = workers.threads
        self._bound = workers.queue or 4 * self._size
        self.low = self._bound // 2
        self.learns = not workers.queue and settings.store.kind != "memory"
        """How many rows wait here depends on how long runs are, since other processes could run them."""
        self._quick = 0  # runs in a row that were short, as far as was looked at; written by workers, and a lost one does not matter
        self.lanes: Lanes[Row] = Lanes(clock.elapsed, workers.ageing)
        self.permits: SimpleQueue[Permit] = SimpleQueue()
        self._queued = self.permits.qsize  # as many as there are rows in the lanes, and cheaper to ask
        self._workers: list[Worker] = []  # written by start, then by the watch
        self._hung: set[Worker] = set()
        self._numbers = 0
        self._stopping = False
        self._crew = threading.RLock()  # guards starting a worker against the count of those to stop
        self._coroutines = workers.coroutines
        self._coroutine_runs: set[tuple[int, int]] = set()  # id and attempt, submitted and not ended; a set operation is atomic
        self._loop = LoopThread(clock, runner, desk, self._coroutine_ended)
        self._watch = Watch(clock, self._look, desk)
        self.threads_only = self.word == "threads"
        """Runs are in threads unless a kind says otherwise."""
        self._children = Children(settings)
        self._isolated_runs = IsolatedRuns(clock, runner, desk, self._children)

    def start(self) -> None:
        for _ in range(self._size):
            if not self._start_worker():
                break
        if self._size and not self._workers:
            raise UsageError("not one worker thread could be started: the process is at its limit (ulimit -u, or pids.max of its cgroup)")
        if len(self._workers) < self._size:
            log.warning("%d of %d worker threads could be started; the others are tried again", len(self._workers), self._size)
        self._watch.start()

    def _start_worker(self) -> bool:
        with self._crew:
            if self._stopping:
                return False
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
        if self.learns and self._quick < self._size:
            return self._size - self._queued() - sum(worker.current is not None for worker in tuple(self._workers))
        return self._bound - self._queued()

    def learn(self, row: Row) -> None:
        """A worker has run this one and asks for more."""
        started = row.started
        self._quick = self._quick + 1 if started is None or self._elapsed() - started < QUICK else 0

    def sift(self, entries: list[Entry], hold: Callable[[str, Entry], None]) -> list[Entry]:
        taken: list[Entry] = []
        free = self._coroutines - len(self._coroutine_runs)
        for entry in entries:
            if entry.kind is not None and not entry.kind.is_quick and self._is_coroutine(entry.kind):
                free -= 1
                if free < 0:
                    hold(COROUTINES, entry)
                    continue
            taken.append(entry)
        return taken

    def _is_coroutine(self, kind: Kind) -> bool:
        """Runs of it are on the event loop here."""
        return kind.call.is_async and not isolated(kind, self.word)

    def submit(self, rows: list[Row]) -> None:
        self._coroutine_runs.update((row.id, row.attempt) for row in rows if not row.kind.is_quick and self._is_coroutine(row.kind))
        self.lanes.push(rows)
        put = self.permits.put
        for _ in rows:
            put("row")

    def run_watched(self, worker: Worker, row: Row, attempt: int) -> None:
        """One row that is more than a plain call, on its worker's thread."""
        if isolated(row.kind, self.word):
            worker.current = (row, attempt, inf)  # the watch need not look: the worker itself minds the time
            self.desk.done(row, attempt, self._isolated_runs.run(row))
            worker.current = None
            return
        timeout = row.kind.options.timeout
        limit = inf if timeout is None else self._elapsed() + timeout
        if row.kind.call.is_async:
            self._run_coroutine(worker, row, attempt)
            self._watch.expect(min(limit + GRACE, self._elapsed() + EACH))
            return
        worker.current = (row, attempt, limit)
        self._watch.expect(limit)
        self.desk.done(row, attempt, self.runner.run(row))
        worker.current = None
        if worker.overran is not None:
            if row.run is not None:
                row.run.hung = False  # after `current`: see `_tell_late`
            self._watch.expect(limit)  # it was found hanging and has ended: the watch counts anew

    def _run_coroutine(self, worker: Worker, row: Row, attempt: int) -> None:
        try:
            self._loop.run(row, attempt)
        except RuntimeError:  # no thread to be had for the loop, or it is being stopped: this worker runs it
            worker.current = (row, attempt, inf)
            self.desk.done(row, attempt, asyncio.run(self._loop.attempt(row, attempt)))
            worker.current = None
            self._coroutine_ended(row, attempt)

    def _coroutine_ended(self, row: Row, attempt: int) -> None:
        self._coroutine_runs.discard((row.id, attempt))
        self.desk.release(COROUTINES)

    def _look(self) -> float:
        """On the watch's thread: sees to runs past their limit and to missing threads; gives the next moment to look at."""
        now = self._elapsed()
        next_look = inf
        for worker in (*self._workers, *tuple(self._hung)):
            current = worker.current
            if current is None or current is worker.overran:
                continue
            if current[2] <= now:
                worker.overran = current
                self._overrun(worker, current)
            else:
                next_look = min(next_look, current[2])
        for row, attempt, limit in tuple(self._loop.running.values()):
            if limit + GRACE > now:
                next_look = min(next_look, limit + GRACE)
            elif row.run is None or row.run.early is None:  # the loop itself should have seen it: it is blocked
                self._tell_late(row, attempt, lambda row=row: row.id in self._loop.running)  # type: ignore[misc]
        if self._loop.running:
            self._loop.lag()  # asks the loop for a sign of life, about once a second
            next_look = min(next_look, now + EACH)
        return next_look if self._fill_up() else min(next_look, now + EACH)

    def _overrun(self, worker: Worker, current: Current) -> None:
        row, attempt, _ = current
        # The run may end at this very moment. Then its worker settles first and `done` below is refused, or ours is the one that counts.
        if row.attempt == attempt and row.state is State.RUNNING:
            self._hung.add(worker)
            self._tell_late(row, attempt, lambda: worker.current is current)

    def _tell_late(self, row: Row, attempt: int, runs: Callable[[], bool]) -> None:
        self.desk.timed_out(row)
        verdict = self.runner.timed_out(row)
        if isinstance(verdict, Failed) and row.series is None:
            context = context_of(row)
            context.hung = True
            if not runs():  # it has ended meanwhile, and perhaps cleared the mark before it was set
                context.hung = False
            self.desk.done(row, attempt, verdict)
        # Else another attempt or run is due, which must not run beside this one: it is settled when this one ends.

    def _fill_up(self) -> bool:
        """Replaces hung workers and starts missing ones; False if a thread could not be started."""
        if self._stopping:
            return True
        self._workers = [worker for worker in self._workers if worker.is_alive()]
        for worker in tuple(self._hung):
            if worker.current is not worker.overran:
                self._hung.discard(worker)  # it ended after all
                if worker.replaced:
                    self._workers.append(worker)  # at the very moment of its replacement; it goes after one more row, watched till then
            elif worker.replaced:
                continue
            elif sum(hung.replaced for hung in self._hung) < self._size:
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
        with self._crew:
            self._stopping = True
            for _ in range(self._numbers):  # for those too that were replaced at the moment in which they ended, and wait for a permit
                self.permits.put("stop")
        self._watch.stop()
        self._loop.stop()
        deadline = time.monotonic() + min(timeout, threading.TIMEOUT_MAX / 2)
        everyone = {*self._workers, *self._hung}
        for worker in everyone:
            if worker is not threading.current_thread():
                worker.join(max(0.0, deadline - time.monotonic()))
        self._loop.join(max(0.0, deadline - time.monotonic()))
        self._children.close()
        rows = [current[0] for worker in everyone if (current := worker.current) is not None]
        return [*rows, *(row for row, _, _ in tuple(self._loop.running.values()))]

    def inside_run(self) -> bool:
        thread = threading.current_thread()
        return (isinstance(thread, Worker) and thread.engine is self and thread.current is not None) or self._loop.inside()

    def health(self) -> EngineHealth:
        workers = tuple(self._workers)
        late = self._late_coroutines()
        return EngineHealth(
            threads=len(workers),
            busy=sum(worker.current is not None for worker in workers) + len(self._loop.running),
            queued=len(self.lanes) + len(self._loop.waiting),
            hung=len(self._hung) + late,
            children=self._children.count,
            problem=self._problem(sum(worker.is_alive() for worker in workers)),
        )

    def _late_coroutines(self) -> int:
        now = self._elapsed()
        return sum(limit + GRACE <= now for _, _, limit in tuple(self._loop.running.values()))

    def _problem(self, alive: int) -> str | None:
        if self._stopping:
            return None
        if not self._size:
            return "workers.threads is 0: jobs are added and never run here"
        if alive < self._size:
            return f"{alive} of {self._size} worker threads are alive"
        if not self._watch.alive:
            return "the watch thread has ended: runs past their timeout are not noticed"
        if sum(worker.replaced for worker in tuple(self._hung)) >= self._size:
            return f"{len(self._hung)} runs hang past their timeout, and no more threads are put in their places"
        if self._children.problem is not None:
            return self._children.problem
        if late := self._late_coroutines():
            return f"{late} coroutine jobs are past their timeout and do not heed the cancel"
        if (lag := self._loop.lag()) > BLOCKED:
            return f"a coroutine job has blocked the loop for {lag:.1f} s; the others wait for it"
        return None
