"""`touch` in a file: written at most about once a second for each job, ahead of time. For one store; `promises` has what is not written.

A touch writes a due moment that lies AHEAD behind what it promises, and makes this process the job's toucher: the others leave the job
alone until that later moment, this one starts it at the exact one. While that holds, a touch is one look at the row and a number in memory.

Promises: of any two touches, in whatever threads and processes, the job starts before neither of them allows, but where the later one
asked for less; a touch that says True was made while the job waited. If the toucher dies, others run the job at the written moment.

Why the order of two processes does no harm: a touch without a write reads the clock, and then the row. If it still finds itself the
toucher there, another process's write comes later, and that one's exact moment counts from a clock that was read after its write (`keep`).
"""

import time
from collections.abc import Callable
from sqlite3 import Connection
from typing import Any

from jobwheel.errors import BadValue
from jobwheel.row import Row
from jobwheel.stores.sqlite import schema
from jobwheel.stores.sqlite.asking import WAITING
from jobwheel.stores.sqlite.file import PATIENCE, StoreFile
from jobwheel.stores.sqlite.group import Record
from jobwheel.stores.sqlite.kinds import Kinds
from jobwheel.stores.sqlite.moments import SECOND, WALL, Moments, micros
from jobwheel.stores.sqlite.moves import Edit
from jobwheel.stores.sqlite.promises import Promise
from jobwheel.stores.sqlite.records import BASIS, DELAY, DUE, ID, MORE, STATE, STATES, TOUCHER, read_more, without_nominal
from jobwheel.stores.sqlite.window import Window

AHEAD = 1_250_000
"""Microseconds by which the written moment lies behind the promised one: touches of that time need no write."""
_BRIEF = "SELECT id, kind, key, priority, state, basis, due, delay, toucher FROM job WHERE"
LOOK_BY_KEY = f"{_BRIEF} key = ? AND {schema.HOLDER}"
LOOK_BY_ID = f"{_BRIEF} id = ?"


class Touching:
    """`full`: a write is on disk before it is acknowledged. `row_of` makes a row of a record."""

    def __init__(self, moments: Moments, kinds: Kinds, window: Window, full: bool, row_of: Callable[[Record], Row]) -> None:
        self._moments = moments
        self._kinds = kinds
        self._window = window
        self._full = full
        self._row_of = row_of

    def touch(self, file: StoreFile, ref: int | str, delay: float | None) -> tuple[Row, bool] | None:
        """See `Store.touch`."""
        wanted = None if delay is None else micros(delay)
        now = self._moments.reached()
        found = file.read(LOOK_BY_KEY if isinstance(ref, str) else LOOK_BY_ID, (ref,))
        if file.in_place():  # else writing tells what is wrong
            if not found or found[0][4] not in WAITING:
                return None
            if (row := self._without_writing(file, found[0], wanted, now)) is not None:
                return row, not self._window.put_off(row.id, row.due)
        return self._by_writing(file, ref, wanted)

    def _without_writing(self, file: StoreFile, record: Record, wanted: int | None, now: int) -> Row | None:
        id, kind, key, priority, state, basis, stored, own, toucher = record
        delay = own if wanted is None else wanted
        if toucher != file.number or state != schema.SCHEDULED or basis != self._moments.basis or delay is None:
            return None
        promise = file.promises.get(id, basis, stored)
        if promise is None or (due := file.promises.move(id, promise, now, delay)) is None:
            return None
        row = Row(None, due / SECOND, None, key, priority, None, self._kinds.told(kind))
        row.id, row.state = id, STATES[state]
        return row

    def _by_writing(self, file: StoreFile, ref: int | str, wanted: int | None) -> tuple[Row, bool] | None:
        ahead = AHEAD
        while True:
            edit = _Touch(file, self._moments, ref, wanted, ahead, self._full)
            try:
                answer = file.group.submit(edit)
            except BaseException:
                edit.undo()
                raise
            record = edit.found if answer is None else answer[1]
            if record is None:
                return None
            row, promise = self._row_of(record), edit.promise
            if promise is not None:
                due = file.promises.keep(row.id, promise, self._moments.reached(), edit.delay)
                if due is None:  # it took longer than it was ahead
                    ahead *= 4
                    continue
                row.due = due / SECOND
                if file.promises.get(row.id, promise.basis, promise.stored) is not promise:
                    return row, False  # a later touch has seen to the rest, or the job runs
            return row, not self._window.put_off(row.id, row.due)


class _Touch(Edit):
    """One try to write it. `promise` is to be kept when it is done; without one the row has just the moment that was asked for."""

    __slots__ = ("_ahead", "_file", "_made", "_moments", "_name", "_wanted", "delay", "found", "promise")

    def __init__(self, file: StoreFile, moments: Moments, ref: int | str, wanted: int | None, ahead: int, full: bool) -> None:
        super().__init__(time.monotonic() + PATIENCE, full, ref, self._choose)
        self._file = file
        self._moments = moments
        self._name = ref
        self._wanted = wanted
        self._ahead = ahead
        self._made: int | None = None
        self.delay = 0
        self.found: Record | None = None
        """The row, where another touch has written meanwhile what this one needs."""
        self.promise: Promise | None = None

    def undo(self) -> None:
        """It failed: what it has promised does not count."""
        if self._made is not None:
            self._file.promises.drop(self._made, self.promise)

    def _choose(self, _: Connection, record: Record) -> dict[str, Any] | None:
        self.undo()  # of a try together with others
        self.found = self.promise = self._made = None
        id, state, basis, text = record[ID], record[STATE], self._moments.basis, record[MORE]
        if state not in WAITING:
            return None
        self.delay = self._delay_of(record)
        more = read_more(text)
        until = None if more.until is None else micros(self._moments.to_elapsed(*more.until))
        now = self._moments.reached()
        promises = self._file.promises
        if state != schema.SCHEDULED:
            promises.drop(id)
            return {
                "basis": basis,
                "due": Promise(basis, now, 0, 0, until).due(now, self.delay)[1],
                "toucher": None,
                "more": without_nominal(text),
            }
        if record[TOUCHER] == self._file.number and record[BASIS] == basis:
            other = promises.get(id, basis, record[DUE])
            if other is not None and other.exact <= other.due(now, self.delay)[1] <= other.stored:
                self.found, self.promise = record, other
                return None
        promise = self.promise = Promise(basis, now, 0, 0, until)
        promise.exact = promise.due(now, self.delay)[1]
        promise.stored = promise.due(now, self.delay + self._ahead)[1]
        self._made = id
        promises.put(id, promise)
        return {"basis": basis, "due": promise.stored, "toucher": self._file.number, "more": without_nominal(text)}

    def _delay_of(self, record: Record) -> int:
        if self._wanted is not None:
            return self._wanted
        own: int | None = record[DELAY]
        if own is None or record[STATE] == schema.PAUSED or record[BASIS] == WALL:
            told = "a job that is paused, or was added with at= or a trigger, has no delay of its own; give touch one"
            raise BadValue(f"touch({self._name!r:.80}): {told}")
        return own
