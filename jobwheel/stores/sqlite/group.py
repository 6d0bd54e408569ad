"""Group commit: callers that write at the same moment share one transaction, and one wait for the disk. Used by `file`.

Promises: a lone caller waits for nobody, not even for another thread to wake; a write that arrives while another one is being
committed goes into the next batch; first come, first served, so no thread starves; a failing write fails alone.
Relies on: `commit` filling in each write of its batch and raising nothing but what ends a thread (KeyboardInterrupt, SystemExit).
Not promised: an order between writes that arrive at the same moment.

Leader and followers: the first to come leads, which means that it commits the batch in its own thread. Who comes meanwhile queues and
sleeps at a gate of its own. The leader, done, opens the gates of its batch and gives the lead to the first in the queue. With a writer
thread instead, a lone caller pays for two changes of thread with each write.

A signal handler may write in the middle of its own thread's write. If that thread leads, it is refused, since it would wait for itself; if
it was asleep at its gate and is given the lead meanwhile, the handler's write takes the lead over (`_await`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from sqlite3 import Connection
from typing import Any

from jobwheel.errors import StoreError

MOST = 500
"""Writes in one batch at most."""
LOOK = 1.0
"""Seconds between two looks of a sleeping follower at who leads; needed for signal handlers only."""


class Write:
    """One caller's write. `run` does it inside a transaction, and raises only before it has changed anything, unless `alone`."""

    __slots__ = ("alone", "deadline", "done", "error", "full", "gate", "leads", "result", "single", "thread")

    def __init__(self, deadline: float, full: bool, alone: bool = False) -> None:
        self.deadline = deadline
        """Moment of `time.monotonic` until which it may wait for other processes."""
        self.full = full
        """It must be on disk, not only in the operating system's memory, before its caller goes on."""
        self.alone = alone
        """It has a transaction of its own, which is rolled back if it raises."""
        self.single = False
        """It is one statement, which needs no transaction around it."""
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.leads = False
        self.gate: threading.Lock | None = None
        self.thread = 0

    def afresh(self) -> Write:
        """Itself, as if it had not been submitted yet."""
        self.error, self.done, self.leads, self.gate = None, False, False, None
        return self

    def run(self, connection: Connection) -> None:
        """Writes, and leaves its answer in `result`."""
        raise NotImplementedError


class Group:
    """See the module."""

    def __init__(self, commit: Callable[[list[Write]], None]) -> None:
        self._commit = commit
        self._queue: deque[Write] = deque()
        self._mutex = threading.RLock()  # guards the queue and the lead, for a few instructions; reentrant for signal handlers
        self._leading = False
        self._leader = 0

    def submit(self, write: Write) -> Any:
        """Returns the write's result when it is committed. Raises what it failed with."""
        write.thread = threading.get_ident()
        with self._mutex:
            if self._leader == write.thread:
                raise StoreError("this call came from a signal handler in the middle of a write of the same thread; call it again later")
            self._queue.append(write)
            if self._leading:
                write.gate = threading.Lock()
                write.gate.acquire()
            else:
                self._leading, self._leader = True, write.thread
        if write.gate is not None:
            self._await(write, write.gate)
        if not write.done:
            self._lead()
        if write.error is not None:
            raise write.error
        return write.result

    def _await(self, write: Write, gate: threading.Lock) -> None:
        try:
            while not gate.acquire(timeout=LOOK):
                if self._leader == write.thread and not write.done:
                    return  # the write that this one's handler interrupted was given the lead; we are its thread
        except BaseException:
            self._leave(write)
            raise

    def _leave(self, write: Write) -> None:
        """The caller gives up (a Ctrl-C while it slept). What is being committed stays so."""
        with self._mutex:
            if write in self._queue:
                self._queue.remove(write)
            heir = self._pass_on() if write.leads and not write.done else None
        if heir is not None:
            heir.release()

    def _pass_on(self) -> threading.Lock | None:
        """Under the mutex: gives the lead to the first in the queue, whose gate the caller then opens."""
        if not self._queue:
            self._leading, self._leader = False, 0
            return None
        heir = self._queue[0]
        heir.leads = True
        self._leader = heir.thread
        return heir.gate

    def _lead(self) -> None:
        batch: list[Write] = []
        try:
            with self._mutex:
                batch = self._take()
            self._commit(batch)
        except BaseException as error:
            for write in batch:
                if not write.done and write.error is None:
                    write.error = StoreError(
                        f"the write was cut short by {type(error).__name__} in the thread that committed it for several; "
                        f"whether it was stored, get() tells"
                    )
            raise
        finally:
            with self._mutex:
                heir = self._pass_on()
            for write in batch:
                write.done = True
                if write.gate is not None:
                    write.gate.release()
            if heir is not None:
                heir.release()

    def _take(self) -> list[Write]:
        queue = self._queue
        batch = [queue.popleft()]
        while queue and len(batch) < MOST and not (batch[-1].alone or queue[0].alone):
            batch.append(queue.popleft())
        return batch
