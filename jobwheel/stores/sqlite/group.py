"""Group commit: callers that write at the same moment share one transaction, and one wait for the disk. Used by `file`.

Promises: a lone caller waits for nobody, not even for another thread to wake; a write that arrives while another one is being
committed goes into the next batch; first come, first served, so no thread starves; a failing write fails alone; a caller that is
interrupted at any moment (Ctrl-C) leaves nobody behind it waiting.
Relies on: `commit` filling in each write of its batch and raising nothing but what interrupts a thread.
Not promised: an order between writes that arrive at the same moment.

Leader and followers: who finds the lead free takes it, and commits all that is queued in its own thread. Who comes meanwhile queues and
sleeps at a gate of its own; the leader, done, opens the gates of its batch, and that of the first one left. With a writer thread
instead, a lone caller pays for two changes of thread with each write.

The lead is a slot of the group: `del self.lead` is one instruction that succeeds for one thread, and `self.lead = True` gives it back;
neither is a point where a signal's exception could come in between. No wake-up is lost: a follower first makes its gate and then tries for
the lead again, a leader first gives the lead back and then looks for gates; a leader that is cut off before it has opened them only
delays those behind it, who look again after LOOK seconds.

A signal handler may write in the middle of its own thread's write: if that thread leads, the handler's write is committed at once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from sqlite3 import Connection
from typing import Any

from jobwheel.errors import StoreError

Record = tuple[Any, ...]
"""A row of a table, or values of one."""

MOST = 500
"""Writes in one batch at most."""
LOOK = 0.2
"""Seconds after which a sleeping follower looks for itself, whatever became of its leader."""


class Write:
    """One caller's write. `run` does it inside a transaction, and raises only before it has changed anything, unless `alone`."""

    __slots__ = ("alone", "deadline", "done", "error", "full", "gate", "result", "single", "tried")

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
        self.tried = False
        """A leader has begun to commit it."""
        self.done = False
        self.gate: threading.Lock | None = None

    def afresh(self) -> Write:
        """Itself, as if it had not been submitted yet."""
        self.error, self.tried, self.done, self.gate = None, False, False, None
        return self

    def run(self, connection: Connection) -> None:
        """Writes, and leaves its answer in `result`."""
        raise NotImplementedError


class Group:
    """See the module."""

    __slots__ = ("_commit", "_leader", "_queue", "lead")
    lead: bool

    def __init__(self, commit: Callable[[list[Write]], None]) -> None:
        self._commit = commit
        self._queue: deque[Write] = deque()
        """Writes stay here until they are done, so none is lost whoever is cut off where."""
        self._leader = 0  # the thread that leads; written by it alone
        self.lead = True

    def submit(self, write: Write) -> Any:
        """Returns the write's result when it is committed. Raises what it failed with."""
        try:
            self._queue.append(write)
            self._see_done(write)
        except BaseException:
            if not write.tried:
                write.done = True  # whoever leads next passes it by: its caller has given up
            raise
        if write.error is not None:
            raise write.error
        return write.result

    def _see_done(self, write: Write) -> None:
        me = threading.get_ident()
        while not write.done:
            try:
                del self.lead
            except AttributeError:
                self._follow(write)
                continue
            try:
                self._leader = me
                self._go()
            finally:
                self._leader = 0
                self.lead = True
            self._wake()

    def _follow(self, write: Write) -> None:
        if self._leader == threading.get_ident():  # a signal handler, in the middle of what its own thread commits
            self._commit([write])
            write.done = True
        elif write.gate is None:
            gate = threading.Lock()
            gate.acquire()
            write.gate = gate
        else:
            write.gate.acquire(timeout=LOOK)

    def _go(self) -> None:
        """Commits what is queued, all or the first MOST of it."""
        queue = self._queue
        while queue and queue[0].done:
            queue.popleft()
        batch: list[Write] = []
        for write in list(queue)[:MOST]:
            if write.tried and not write.done:
                write.error = StoreError(
                    "the thread that wrote this for several was cut off in the middle; whether it was stored, get() tells"
                )
                write.done = True
            elif not write.done:
                if batch and (write.alone or batch[0].alone):
                    break
                write.tried = True
                batch.append(write)
        if batch:
            self._commit(batch)
        for write in batch:
            write.done = True

    def _wake(self) -> None:
        """Opens the gates of those that are done, and of the first that is not: it leads next."""
        queue = self._queue
        for write in list(queue):
            if write.gate is not None:
                with suppress(RuntimeError):  # open already
                    write.gate.release()
            if not write.done:
                return
