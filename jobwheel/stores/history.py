"""The ended rows of the memory store: the newest so many, none older than so long, and how many ended in which state.

Promises: `put` never waits and never blocks another thread; every ended row is counted once, also those no longer kept.
Relies on: `put` is called once per end of a row, by the thread that ended it, with `row.state` and `row.ended` set.
Not promised: order between rows that end at the same moment in different threads.
"""

import threading
from collections import Counter, deque
from operator import attrgetter

from jobwheel.row import Row
from jobwheel.state import State

BATCH = 512
"""Ended rows that may wait in the inbox before a `put` files them; more where more are kept, since of a large batch few need filing."""

REVIVABLE = frozenset({State.FAILED, State.MISSED, State.INTERRUPTED})
"""Ended rows in these states keep their job and can be retried."""

_state = attrgetter("state")


class History:
    """Keeps at most `keep` ended rows, none longer than `seconds`."""

    def __init__(self, keep: int, seconds: float) -> None:
        self._keep = keep
        self._seconds = seconds
        self._batch = max(BATCH, min(4 * keep, 8 * BATCH))
        self._inbox: deque[Row] = deque()
        self._lock = threading.RLock()  # guards all below; never held while calling out; reentrant for the sake of signal handlers
        self._filing = False
        self._by_id: dict[int, Row] = {}  # in order of ending
        self._by_key: dict[str, Row] = {}
        self._totals: Counter[State] = Counter()

    def put(self, row: Row) -> None:
        """Takes a row that has just ended. The inbox is a deque, so many threads may do it at once; one of them files now and then."""
        inbox = self._inbox
        inbox.append(row)
        if len(inbox) > self._batch and self._lock.acquire(blocking=False):
            try:
                dropped = self._file(row.ended or 0.0)
            finally:
                self._lock.release()
            del dropped  # only now: what a job does in its __del__ is none of the lock's business

    def get(self, ref: int | str, now: float) -> Row | None:
        """The ended row of that id, or the latest ended one of that key."""
        with self._lock:
            dropped = self._file(now)
            found = self._by_key.get(ref) if isinstance(ref, str) else self._by_id.get(ref)
        del dropped
        return found

    def take_out(self, row: Row, into: dict[int, Row]) -> bool:
        """Lets the caller revive a row that can be retried; it is in `into` before it is gone here.

        False: it is not kept any more, or another caller was first, and by now it may even have run and ended otherwise.
        """
        with self._lock:
            if self._by_id.get(row.id) is not row or row.state not in REVIVABLE:
                return False
            into[row.id] = row
            self._forget(row)
            self._totals[row.state] -= 1
            return True

    def all(self, now: float) -> list[Row]:
        """What is kept, in order of ending."""
        with self._lock:
            dropped = self._file(now)
            rows = list(self._by_id.values())
        del dropped
        return rows

    def totals(self, now: float) -> dict[State, int]:
        """How many ended in each state, kept or not."""
        with self._lock:
            dropped = self._file(now)
            totals = {state: count for state, count in self._totals.items() if count}
        del dropped
        return totals

    def _file(self, now: float) -> list[Row]:
        """Files what came and drops what is too much or too old; gives the dropped ones, to be let go of after the lock."""
        if self._filing:  # a signal handler asks in the middle of it; what is filed already must do
            return []
        self._filing = True
        try:
            return self._file_all(now)
        finally:
            self._filing = False

    def _file_all(self, now: float) -> list[Row]:
        came = self._drain()
        self._totals.update(map(_state, came))
        # Of a burst only the newest are kept: the others are counted and never filed.
        kept = came[-self._keep :] if self._keep else []
        for row in kept:
            self._by_id[row.id] = row
            if row.key is not None:
                self._by_key[row.key] = row
        dropped = came[: len(came) - len(kept)]
        surplus, horizon = len(self._by_id) - self._keep, now - self._seconds
        for row in list(self._by_id.values())[:surplus] if surplus > 0 else ():
            dropped.append(self._forget(row))
        while self._by_id and (next(iter(self._by_id.values())).ended or 0.0) < horizon:
            dropped.append(self._forget(next(iter(self._by_id.values()))))
        return dropped

    def _drain(self) -> list[Row]:
        # Only as many as are there now: other threads go on appending, and the holder of the lock must not serve them for ever.
        popleft = self._inbox.popleft
        return [popleft() for _ in range(len(self._inbox))]

    def _forget(self, row: Row) -> Row:
        del self._by_id[row.id]
        if row.key is not None and self._by_key.get(row.key) is row:
            del self._by_key[row.key]
        return row
