"""What this process has promised by `touch`, to the microsecond, where the file says a later moment. For one file; knows nothing of it.

A touch is written ahead of time: the file has a due moment that is later than what was promised, so that the touches of the next second
need no write, and the number of the one process that may start the job at its exact moment, its *toucher*. That moment is kept here.

Promises: a job that a touch has put off is not claimed before that by this process: whoever moves the exact moment and whoever takes it to
a claim do so one after the other, and of the two ends of that race the touch sees the later one (it finds no promise, and asks the file).
Relies on: `put`, `take` and `give_back` being called by the one that writes (`StoreFile`), and a put promise being kept only once it is
written, by `keep`.
Not promised: that a promise stays. Without it the job is due when the file says so: later, and never earlier.
"""

import threading
from collections.abc import Iterable

MANY = 1000
"""Promises from which on those that are over are looked for, each time that they have doubled."""


class Promise:
    """One job's. Moments are microseconds on the clock of `basis`."""

    __slots__ = ("basis", "exact", "kept", "stored", "touched", "until")

    def __init__(self, basis: int, touched: int, exact: int, stored: int, until: int | None) -> None:
        self.basis = basis
        self.touched = touched
        """From which the latest touch counted."""
        self.exact = exact
        """When this process may start the job: never before any touch of it allows, and never later than `stored`."""
        self.stored = stored
        """When any process may, as the file says."""
        self.until = until
        """`max_wait`'s bound."""
        self.kept = False
        """It is in the file, and may be used."""

    def due(self, now: int, delay: int) -> tuple[int, int]:
        """From when a touch at `now` counts, and what it promises. Of two touches the one that read the clock first may come last."""
        now = max(now, self.touched)
        return now, now + delay if self.until is None else min(now + delay, self.until)


class Promises:
    """See the module."""

    def __init__(self) -> None:
        self._by_id: dict[int, Promise] = {}
        self._moving = threading.RLock()  # guards every promise's moments and `kept`, for a few instructions and never while writing
        self._tidy_at = MANY

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, id: int, basis: int, stored: int) -> Promise | None:
        """The promise of a job whose row says so, kept or still being written."""
        promise = self._by_id.get(id)
        return promise if promise is not None and promise.stored == stored and promise.basis == basis else None

    def exact(self, id: int, basis: int, stored: int) -> int:
        """When a job whose row says so is due for this process, if it is the toucher."""
        promise = self.get(id, basis, stored)
        return stored if promise is None or not promise.kept else promise.exact

    def put(self, id: int, promise: Promise) -> None:
        """A promise that is being written: the one before it counts no more, and nothing is claimed by this one until it is kept."""
        self._by_id[id] = promise
        if len(self._by_id) > self._tidy_at:
            for other, one in list(self._by_id.items()):
                if one.basis != promise.basis or one.stored < promise.touched:  # of these anybody may start the job
                    self.drop(other, one)
            self._tidy_at = max(MANY, 2 * len(self._by_id))

    def drop(self, id: int, promise: Promise | None = None) -> None:
        """Forgets the job's promise, if it is this one."""
        if promise is None or self._by_id.get(id) is promise:
            self._by_id.pop(id, None)

    def move(self, id: int, promise: Promise, now: int, delay: int) -> int | None:
        """The exact moment after a touch that needs no write. None: it needs one, since it promises too much, or less than before."""
        with self._moving:
            touched, due = promise.due(now, delay)
            if self._by_id.get(id) is not promise or not promise.kept or not promise.exact <= due <= promise.stored:
                return None
            promise.touched, promise.exact = touched, due
            return due

    def keep(self, id: int, promise: Promise, now: int, delay: int) -> int | None:
        """The exact moment of a promise that is written now, by a clock read after that. None: it is too late for that, so write again.

        What others promised of the job without writing, they did before they could see this one; so this must be later than all of it.
        """
        with self._moving:
            touched, due = promise.due(now, delay)
            if due > promise.stored:
                return None
            if self._by_id.get(id) is promise:
                promise.touched, promise.exact, promise.kept = touched, max(promise.exact, due), True
            return promise.exact

    def take(self, ids: Iterable[int], basis: int, now: int) -> dict[int, Promise]:
        """Out of here, those of these jobs that may be started now: a touch that comes from now on finds none."""
        taken: dict[int, Promise] = {}
        if self._by_id:
            with self._moving:
                for id in ids:
                    promise = self._by_id.pop(id, None)
                    if promise is None:
                        continue
                    if promise.kept and promise.basis == basis and promise.exact <= now:
                        taken[id] = promise
                    else:
                        self._by_id[id] = promise
        return taken

    def give_back(self, taken: dict[int, Promise]) -> None:
        """Those whose jobs were not claimed after all."""
        for id, promise in taken.items():
            self._by_id.setdefault(id, promise)
