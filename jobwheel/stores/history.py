"""The ended jobs of the memory store: the newest so many, none older than so long, and how many ended in which state.

Promises: `put` never waits and never blocks another thread; every ended row is counted once, also those no longer kept.
Relies on: `put` is called once per ended row, by the thread that ended it.
Not promised: order between rows that end at the same moment in different threads.
"""

import threading
from collections import Counter, deque
from typing import NamedTuple

from jobwheel.kind import Kind
from jobwheel.row import Row
from jobwheel.state import State

BATCH = 512
"""Ended rows that may wait in the inbox before a `put` files them; more where more are kept, since of a large batch few need filing."""


class Ended(NamedTuple):
    """An ended row with what is needed to show it: its kind (the row may have dropped its job) and when it ended."""

    row: Row
    kind: Kind
    state: State
    at: float


class History:
    """Keeps at most `keep` ended rows, none longer than `seconds`."""

    def __init__(self, keep: int, seconds: float) -> None:
        self._keep = keep
        self._seconds = seconds
        self._batch = max(BATCH, min(4 * keep, 8 * BATCH))
        self._inbox: deque[tuple[Row, Kind, State, float]] = deque()
        self._lock = threading.Lock()  # guards all below; never held while calling out
        self._by_id: dict[int, Ended] = {}  # in order of ending
        self._by_key: dict[str, Ended] = {}
        self._totals: Counter[State] = Counter()

    def put(self, row: Row, kind: Kind, state: State, now: float) -> None:
        """Takes a row that has just ended. The inbox is a deque, so many threads may do it at once; one of them files now and then."""
        inbox = self._inbox
        inbox.append((row, kind, state, now))
        if len(inbox) > self._batch and self._lock.acquire(blocking=False):
            try:
                self._file(now)
            finally:
                self._lock.release()

    def get(self, ref: int | str, now: float) -> Ended | None:
        """The ended row of that id, or the latest ended one of that key."""
        with self._lock:
            self._file(now)
            return self._by_key.get(ref) if isinstance(ref, str) else self._by_id.get(ref)

    def take_out(self, ended: Ended, into: dict[int, Row]) -> bool:
        """Lets the caller revive the row, which is in `into` before it is gone here. False: not kept any more, or another was first."""
        with self._lock:
            if self._by_id.get(ended.row.id) is not ended:
                return False
            into[ended.row.id] = ended.row
            del self._by_id[ended.row.id]
            self._forget_key(ended)
            self._totals[ended.state] -= 1
            return True

    def all(self, now: float) -> list[Ended]:
        """What is kept, in order of ending."""
        with self._lock:
            self._file(now)
            return list(self._by_id.values())

    def totals(self, now: float) -> dict[State, int]:
        """How many ended in each state, kept or not."""
        with self._lock:
            self._file(now)
            return {state: count for state, count in self._totals.items() if count}

    def _file(self, now: float) -> None:
        came = self._drain()
        self._totals.update(state for _, _, state, _ in came)
        # Of a burst only the newest are kept: the others are counted and never filed.
        for ended in map(Ended._make, came[-self._keep :] if self._keep else ()):
            self._by_id[ended.row.id] = ended
            if ended.row.key is not None:
                self._by_key[ended.row.key] = ended
        surplus, horizon = len(self._by_id) - self._keep, now - self._seconds
        for ended in list(self._by_id.values())[:surplus] if surplus > 0 else ():
            self._forget(ended)
        while self._by_id and (oldest := next(iter(self._by_id.values()))).at < horizon:
            self._forget(oldest)

    def _drain(self) -> list[tuple[Row, Kind, State, float]]:
        # Only as many as are there now: other threads go on appending, and the holder of the lock must not serve them for ever.
        return [self._inbox.popleft() for _ in range(len(self._inbox))]

    def _forget(self, ended: Ended) -> None:
        del self._by_id[ended.row.id]
        self._forget_key(ended)

    def _forget_key(self, ended: Ended) -> None:
        key = ended.row.key
        if key is not None and self._by_key.get(key) is ended:
            del self._by_key[key]
