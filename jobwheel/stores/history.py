"""The ended jobs of the memory store: the newest so many, none older than so long, and how many ended in which state.

Promises: `put` never waits and never blocks another thread; every ended row is counted once, also those no longer kept.
Relies on: `put` is called once per ended row, by the thread that ended it.
Not promised: order between rows that end at the same moment in different threads.
"""

import threading
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

from jobwheel.row import Row
from jobwheel.state import State

BATCH = 256
"""Ended rows that may wait in the inbox before a `put` files them."""


@dataclass(slots=True)
class Ended:
    """An ended row with what is needed to show it: its kind (the row may have dropped its job) and when it ended."""

    row: Row
    kind: str
    state: State
    at: float


class History:
    """Keeps at most `keep` ended rows, none longer than `seconds`."""

    def __init__(self, keep: int, seconds: float) -> None:
        self._keep = keep
        self._seconds = seconds
        self._inbox: deque[Ended] = deque()
        self._lock = threading.Lock()  # guards all below; never held while calling out
        self._by_id: dict[int, Ended] = {}  # in order of ending
        self._by_key: dict[str, Ended] = {}
        self._totals: Counter[State] = Counter()

    def put(self, row: Row, kind: str, now: float) -> None:
        """Files a row that has just ended. The inbox is a deque, so many threads may do it at once; one of them tidies now and then."""
        inbox = self._inbox
        inbox.append(Ended(row, kind, row.state, now))
        if len(inbox) > BATCH and self._lock.acquire(blocking=False):
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
        for ended in self._drain():
            self._totals[ended.state] += 1
            self._by_id[ended.row.id] = ended
            if ended.row.key is not None:
                self._by_key[ended.row.key] = ended
        surplus = len(self._by_id) - self._keep
        for ended in list(self._oldest(surplus, now - self._seconds)):
            del self._by_id[ended.row.id]
            self._forget_key(ended)

    def _drain(self) -> Iterator[Ended]:
        while self._inbox:
            yield self._inbox.popleft()

    def _oldest(self, surplus: int, horizon: float) -> Iterator[Ended]:
        for number, ended in enumerate(self._by_id.values()):
            if number >= surplus and ended.at >= horizon:
                return
            yield ended

    def _forget_key(self, ended: Ended) -> None:
        key = ended.row.key
        if key is not None and self._by_key.get(key) is ended:
            del self._by_key[key]
