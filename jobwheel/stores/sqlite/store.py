"""The SQLite store: durable, and shared by the processes of one machine. What it does is here; how, in the rooms beside it.

| room | what it does |
|---|---|
| `file` | two connections, the lock file, this process's number; who may write now; forks |
| `group` | writes of several threads in one transaction |
| `adds`, `moves` | new rows; cancels and changes; as writes |
| `asking` | pictures, pages, counts |
| `touching`, `promises` | touches: written at most once a second; what they promise, kept in memory |
| `claims`, `limits` | from waiting to running, to the end; which may not be claimed now |
| `rescue` | what dead processes ran |
| `window` | which jobs of the near future are in this process's waiting room |
| `moments`, `kinds`, `records` | between the file's values and jobwheel's |
| `schema`, `lockfile`, `trouble` | tables and versions; the kernel's locks; errors in words |

Promises: see `docs/guarantees.md`. In short: what an add, a cancel or a move acknowledged is on disk; a due job is claimed by one process;
a job whose process died runs again, or ends, as its kind says.
Relies on: a local disk; one lock file per store, which nobody deletes.
Not promised: a picture of several jobs at one instant.
"""

import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

import msgspec

from jobwheel import codec
from jobwheel.clock import Clock
from jobwheel.errors import BadValue, StoreError
from jobwheel.job import context_of
from jobwheel.kind import find_kind
from jobwheel.row import Entry, Row, ScheduledJob, StoredRow, Ticket
from jobwheel.settings import Settings
from jobwheel.state import ENDED, State
from jobwheel.store import Claim, Counts, IfExists, Query, Ref, Store, Sweep
from jobwheel.stores.sqlite import limits, moves, schema
from jobwheel.stores.sqlite.asking import WAITING, Asking, named
from jobwheel.stores.sqlite.claims import Claims
from jobwheel.stores.sqlite.file import PATIENCE, Closed, StoreFile, leave_file, open_file
from jobwheel.stores.sqlite.group import Record, Write
from jobwheel.stores.sqlite.kinds import Kinds
from jobwheel.stores.sqlite.limits import Limited
from jobwheel.stores.sqlite.moments import SECOND, Moments, micros
from jobwheel.stores.sqlite.records import (
    BASIS,
    BY_ID,
    BY_KEY,
    DATA,
    DELAY,
    DUE,
    FLAGS,
    ID,
    KEY,
    KIND,
    MORE,
    STATE,
    STATES,
    TOUCHER,
    as_promised,
    read_more,
    row_of,
    values_of,
    without_nominal,
    write_more,
)
from jobwheel.stores.sqlite.rescue import Rescue
from jobwheel.stores.sqlite.touching import Touching
from jobwheel.stores.sqlite.window import Window
from jobwheel.verdict import Onward, Verdict

T = TypeVar("T")

CHECKPOINT = {True: 1000, False: 4000}
"""Pages of WAL between two checkpoints, where adds wait for the disk (a longer WAL makes each wait longer) and where they do not (a
checkpoint is then a large part of what a write costs)."""
PRUNE = 500
"""Ended rows deleted in one transaction."""
PRUNING = 0.1
"""Seconds of a sweep in which rows are deleted; the rest is left for the next one."""
REVIVABLE = frozenset({schema.FAILED, schema.MISSED, schema.INTERRUPTED})
NOT_CLAIMED = "SELECT id, kind, state, basis, due, toucher FROM job WHERE id IN (SELECT value FROM json_each(?))"


class SqliteStore(Store):
    """See the module."""

    durable: ClassVar[bool] = True
    shared: ClassVar[bool] = True

    def __init__(self, clock: Clock, settings: Settings) -> None:
        self._path = os.path.abspath(settings.store.path)
        self._full = settings.store.durability == "power"
        self._limit = settings.max_pending
        self._keep = settings.store.keep
        self._keep_for = round(settings.store.keep_days * 86400 * SECOND)
        self._opening = threading.RLock()
        self._clock = clock
        self._open: StoreFile | None = None
        self._leave: Callable[[], object] = lambda: None
        self._begin()

    def _begin(self) -> None:
        """What is known of a file is forgotten: the next one that is opened may be another."""
        self._moments = Moments(self._clock)
        self._kinds = Kinds()
        self._claims = Claims(self._moments, self._kinds)
        self._rescue = Rescue(self._moments, self._kinds, self._claims)
        self._window = Window(self._moments, self._kinds)
        self._touching = Touching(self._moments, self._kinds, self._window, self._full, self._row)
        self._asking = Asking(self._moments, self._kinds, self._used, self._keep, self._keep_for)

    # --- opening and closing ---

    def open(self) -> None:
        self._file  # noqa: B018 (opens it)

    @property
    def _file(self) -> StoreFile:
        file = self._open
        return file if file is not None and file.pid == os.getpid() else self._attach()

    def _attach(self) -> StoreFile:
        if self._open is not None and self._open.pid != os.getpid():
            # A fork without Python's hooks, as uWSGI's is: what the parent has open is not ours, nor are locks that it may hold.
            self._opening = threading.RLock()
            self._open = None
        with self._opening:
            if self._open is None:
                self._begin()
                file = open_file(self._path, CHECKPOINT[self._full])
                try:
                    self._moments.join(file)
                    self._kinds.look(file)
                except BaseException:
                    leave_file(file)
                    raise
                leave = weakref.finalize(self, leave_file, file)
                leave.atexit = False  # the file closes itself then
                self._leave = leave
                self._open = file
            return self._open

    def close(self, patience: float = PATIENCE) -> None:
        with self._opening:
            file, self._open = self._open, None
            if file is not None:
                file.patience = min(PATIENCE, patience)
            self._leave()
            self._window.forget()

    @property
    def _asked(self) -> Asking:
        self.open()  # with it what is known of the file begins anew
        return self._asking

    # --- adding ---

    def add(self, row: Row, if_exists: IfExists) -> tuple[Row, Row | None]:
        return self._held(row, self._used(lambda file: self._add(file, row, if_exists)))

    def _add(self, file: StoreFile, row: Row, if_exists: IfExists) -> tuple[int, Record | None]:
        values = self._prepared(file, row)
        write = moves.AddOne(
            self._deadline(), self._full, row.id, values, row.key, if_exists, self._limit, self._moments.stamp, self._kinds
        )
        return file.group.submit(write)  # type: ignore[no-any-return]

    def add_many(self, rows: Sequence[tuple[Row, IfExists]]) -> list[tuple[Row, Row | None]]:
        if not rows:
            return []
        met = self._used(lambda file: self._add_many(file, rows))
        answers: list[tuple[Row, Row | None]] = [(row, None) for row, _ in rows]
        for number, answer in met.items():
            answers[number] = self._held(rows[number][0], answer)
        return answers

    def _add_many(self, file: StoreFile, rows: Sequence[tuple[Row, IfExists]]) -> dict[int, tuple[int, Record | None]]:
        values = [self._prepared(file, row) for row, _ in rows]
        write = moves.AddMany(self._deadline(), self._full, rows, values, self._limit, self._moments.stamp, self._kinds)
        return file.group.submit(write)  # type: ignore[no-any-return]

    def _prepared(self, file: StoreFile, row: Row) -> Record:
        """Gives the row its id; its values as the file takes them."""
        assert row.job is not None
        data = row.data if isinstance(row, StoredRow) else codec.storable(row.job)
        try:
            if row.key is not None:
                row.key.encode()
            if row.terms is not None:
                "".join(row.terms.tags).encode()
        except UnicodeEncodeError as error:
            raise BadValue(f"the key {row.key!r:.80} or a tag cannot be stored: {error}; use text that can be written as UTF-8") from error
        kind = self._kinds.number_of(row.kind.name, file)
        row.id = file.next_id()
        return values_of(row, kind, data, self._moments)

    def _submit(self, write: Write) -> Any:
        return self._used(lambda file: file.group.submit(write.afresh()))

    def _read(self, statement: str, values: Sequence[Any] = ()) -> list[Record]:
        return self._used(lambda file: file.read(statement, values))

    def _used(self, use: Callable[[StoreFile], T]) -> T:
        """What `use` gives; a file that a shutdown closes at this very moment is opened again for it."""
        while True:
            file = self._file
            try:
                return use(file)
            except Closed:
                with self._opening:
                    if self._open is file:
                        self._open = None

    def _held(self, row: Row, answer: tuple[int, Record | None]) -> tuple[Row, Row | None]:
        id, replaced = answer
        return row if id == row.id else self._other(id, row), None if replaced is None else self._brief(replaced)

    def _other(self, id: int, row: Row) -> Row:
        """The row that was kept instead of `row`; it may have ended since."""
        found = self._read(BY_ID, (id,))
        if found:
            return self._row(found[0])
        other = Row(row.job, row.due, row.delay, row.key, row.priority, row.terms, row.kind)
        other.id, other.state = id, State.SUCCEEDED
        return other

    def _row(self, record: Record) -> Row:
        kind = self._kinds.told(record[KIND])
        job = None
        if find_kind(kind.name) is not None:
            try:
                job = codec.decode(kind, record[DATA])
            except codec.UnreadableData:
                job = None
        file = self._open
        return row_of(record if file is None else as_promised(record, file), kind, job, self._moments)

    def _brief(self, record: Record) -> Row:
        """A cancelled row, for those who must know which one it was."""
        id, kind, key, priority, state, basis, due = record
        if self._open is not None:
            due = self._open.promises.exact(id, basis, due)
            self._open.promises.drop(id)
        row = Row(None, self._moments.to_elapsed(basis, due), None, key, priority, None, self._kinds.told(kind))
        row.id, row.state = id, STATES[state]
        return row

    def _deadline(self) -> float:
        return time.monotonic() + PATIENCE

    # --- running ---

    def claim(self, entries: Sequence[Entry]) -> Claim:
        file, tickets = self._file, self._window.tickets
        wanted: dict[int, Entry] = {}
        limited: dict[str, Limited] = {}
        fragile = False
        for entry in entries:
            kind, id = entry.kind, entry.id
            if kind is not None:
                fragile = fragile or kind.options.on_crash == "interrupt"
                if kind.options.max_running is not None and id not in wanted:
                    limited.setdefault(kind.name, (kind, []))[1].append(id)
            wanted[id] = entry
        if not wanted:
            return Claim([], [])
        rows, unreadable, without_place = self._claims.take(file, list(wanted), limited, fragile and self._full)
        self._window.unreadable.update(unreadable)
        held = [(name, wanted.pop(id)) for id, name in without_place.items()]
        for row in rows:
            del wanted[row.id]
            tickets.pop(row.id, None)
        return Claim(rows, self._later(file, wanted) if wanted else [], held)

    def _later(self, file: StoreFile, wanted: dict[int, Entry]) -> list[Entry]:
        """Of those that could not be claimed, the ones that fall due later than was believed; the others are let go of."""
        later: list[Entry] = []
        try:
            records = file.read(NOT_CLAIMED, (json.dumps(list(wanted)),))
        except StoreError:
            return list(wanted.values())  # rows are claimed already, so nothing may be raised; these are tried again
        for id, number, state, basis, stored, toucher in records:
            if state in (schema.SCHEDULED, schema.PARKED) and id not in self._window.unreadable and self._kinds.kind_of(number) is not None:
                entry = wanted.pop(id)
                due = file.promises.exact(id, basis, stored) if toucher == file.number else stored
                entry.due = self._moments.to_elapsed(basis, due)
                if isinstance(entry, Ticket):
                    entry.wall = None if basis == self._moments.basis else self._moments.to_wall(basis, due)
                    self._window.tickets.setdefault(id, entry)
                later.append(entry)
        for id, entry in wanted.items():
            if self._window.tickets.get(id) is entry:
                self._window.tickets.pop(id, None)
        return later

    def settle(self, row: Row, attempt: int, verdict: Verdict) -> State | None:
        return self.settle_many([(row, attempt, verdict)])[0]

    def settle_many(self, settlements: Sequence[tuple[Row, int, Verdict]], patience: float = PATIENCE) -> list[State | None]:
        return self._claims.settle(self._file, settlements, min(PATIENCE, patience))

    def part(self, row: Row, onward: Onward) -> Row | None:
        return self._claims.part(self._file, row, onward, self._full and row.kind.options.on_crash == "interrupt")

    def hand_back(self, rows: Iterable[Row], patience: float = PATIENCE) -> list[Row]:
        rows = list(rows)
        try:
            return self._claims.hand_back(self._file, rows, min(PATIENCE, patience))
        except StoreError:
            for row in rows:  # the next sweep of a process on this file hands them back, or a rescue does
                self._file.runs.pop(row.id, None)
            raise

    # --- changing ---

    def cancel(self, ref: Ref) -> Row | None:
        ref = named(ref)
        record = self._submit(moves.Single(self._deadline(), self._full, moves.cancel_statement(ref), (self._moments.stamp(), ref)))
        if record is None:
            return None
        id, _, _, _, state, _, _ = record
        if state == schema.RUNNING:
            run = self._file.runs.get(id)
            if run is not None:
                context_of(run).cancel_asked = True
            return None
        return self._brief(record)

    def cancel_many(self, ids: Sequence[int]) -> list[Row]:
        records = self._submit(moves.CancelMany(self._deadline(), self._full, ids, self._moments.stamp()))
        return [self._brief(record) for record in records]

    def touch(self, ref: Ref, delay: float | None) -> tuple[Row, bool] | None:
        name = named(ref)
        return self._used(lambda file: self._touching.touch(file, name, delay))

    def reschedule(self, ref: Ref, due: float, wall: float | None) -> Row | None:
        def decide(file: StoreFile, _: object, record: Record) -> dict[str, Any] | None:
            if record[STATE] not in WAITING:
                return None
            file.promises.drop(record[ID])
            values: dict[str, Any] = {"more": without_nominal(record[MORE]), "toucher": None}
            if wall is not None:
                return values | {"basis": 0, "due": round(wall * SECOND)}
            if record[DELAY] is None and read_more(record[MORE]).series is None:
                values["delay"] = max(0, micros(due) - self._moments.elapsed())  # from now on it has a delay, and may be touched
            return values | {"basis": self._moments.basis, "due": micros(due)}

        return self._edited(ref, decide)

    def retry(self, ref: Ref) -> Row | None:
        record = self._asked.record(named(ref))
        if record is None or self._asked.forgotten(record):
            return None

        def decide(file: StoreFile, connection: Any, record: Record) -> dict[str, Any] | None:
            if self._claims.runs_on(file, record[ID], record[FLAGS], connection):
                return None
            if record[STATE] not in REVIVABLE:
                return None
            if record[KEY] is not None and connection.execute(BY_KEY, (record[KEY],)).fetchone() is not None:
                return None
            if self._limit:
                moves.check_room(connection, self._limit, 1, [])
            return {
                "state": schema.SCHEDULED, "basis": self._moments.basis, "due": self._moments.elapsed(), "flags": 0, "ended": None,
                "more": _with_nominal(record[MORE], record[BASIS], record[DUE]),
            }  # fmt: skip

        return self._edited(record[ID], decide)

    def _edited(self, ref: Ref, decide: Callable[[StoreFile, Any, Record], dict[str, Any] | None]) -> Row | None:
        """`decide` is given the file, since it must not ask for it: a shutdown may be waiting for it to write, and hold what opens it."""
        name = named(ref)

        def edit(file: StoreFile) -> Any:
            return file.group.submit(moves.Edit(self._deadline(), self._full, name, partial(decide, file)))

        answer = self._used(edit)
        return None if answer is None else self._row(answer[KIND])

    def pause(self, ref: Ref) -> Row | None:
        def decide(file: StoreFile, _: object, record: Record) -> dict[str, Any] | None:
            if record[STATE] != schema.SCHEDULED:
                return None
            # Taken away before it is read, so that no touch moves it in between.
            promise = file.promises.take([record[ID]], record[BASIS], record[DUE]).get(record[ID])
            due = record[DUE]
            if promise is not None and promise.stored == due and record[TOUCHER] == file.number:
                due = promise.exact
            return {"state": schema.PAUSED, "due": due, "toucher": None}

        return self._edited(ref, decide)

    def resume(self, ref: Ref) -> Row | None:
        while True:
            found = self._read(BY_KEY if isinstance(named(ref), str) else BY_ID, (named(ref),))
            if not found:
                return None
            before, changed = found[0], False
            # Not in the turn to write, since it may call an application's trigger.
            moved = self._claims.after_pause(self._row(before), before) if before[MORE] is not None else {}

            def decide(_: StoreFile, __: object, record: Record) -> dict[str, Any] | None:
                nonlocal changed
                changed = record != before  # noqa: B023 (called before the next turn of the loop)
                return None if changed or record[STATE] != schema.PAUSED else {"state": schema.SCHEDULED, **moved}  # noqa: B023

            row = self._edited(before[ID], decide)
            if not changed:
                return row

    # --- waking ---

    def entry(self, row: Row) -> Entry | None:
        terms = row.terms
        if row.due >= self._window.horizon and (terms is None or terms.wall is None):
            return None  # if it has a ticket it comes out with that, and is found to be later
        basis, due = (self._moments.basis, micros(row.due)) if terms is None or terms.wall is None else (0, round(terms.wall * SECOND))
        return self._window.entry(row.id, basis, due, row.priority, self._kinds.number_of(row.kind.name, self._file))

    def disown(self, entry: Entry | Row) -> None:
        self._window.tickets.pop(entry.id, None)

    def dropped(self, row: Row) -> Entry | None:
        # A paused one keeps its ticket: another thread may be resuming it, and its arming must not be undone.
        return self._window.tickets.pop(row.id, None) if row.state in ENDED else None

    def waits(self, entry: Entry) -> bool:
        return not isinstance(entry, Ticket) or self._window.tickets.get(entry.id) is entry

    def reanchor(self) -> list[Entry]:
        self._moments.look(self._file)
        return list(self._window.reanchor())

    def offset(self) -> float:
        return self._moments.offset()

    def window(self, until: float) -> list[Entry]:
        return list(self._window.load(self._file, until))

    def new_room(self) -> None:
        self._window.forget()

    def sweep(self, want: int) -> Sweep:
        file = self._file
        file.check()
        self._moments.look(file)
        self._kinds.look(file)
        ended = self._rescue.look(file)
        entries: list[Ticket] = []
        overdue: list[Ticket] = []
        room: dict[str, int] = {}
        trouble: StoreError | None = None
        try:
            self._claims.look(file)
            room = limits.room(file)
            entries, overdue = self._window.sweep(file, want)
            self._prune(file)
        except StoreError as error:
            trouble = error  # what was found before is to be used and told of all the same, since it is not found again
        return Sweep(list(entries), list(overdue), ended, self._window.more, trouble, room)

    def _prune(self, file: StoreFile) -> None:
        """Deletes what history is to forget, in small pieces, so that nobody waits long for his turn to write, and only some at a time."""
        kept = f"(SELECT sum(CASE WHEN state = {schema.DELETED} THEN -n ELSE n END) FROM tally WHERE state >= {schema.ENDED})"
        surplus = f"max(0, min({PRUNE}, coalesce({kept}, 0) - ?))"
        aged = f"SELECT id FROM job WHERE state >= {schema.ENDED} AND ended < ? ORDER BY ended LIMIT {PRUNE}"
        oldest = f"SELECT id FROM job WHERE state >= {schema.ENDED} ORDER BY ended LIMIT {surplus}"
        old = self._moments.wall() - self._keep_for
        end = time.monotonic() + PRUNING
        while file.read(f"SELECT {surplus} > 0 OR EXISTS ({aged})", (self._keep, old))[0][0]:
            file.write_one(f"DELETE FROM job WHERE id IN ({oldest}) OR id IN ({aged})", (self._keep, old), False, len)
            if time.monotonic() > end:
                return

    # --- asking ---

    def get(self, ref: Ref) -> ScheduledJob | None:
        return self._asked.get(named(ref))

    def find(self, query: Query) -> list[ScheduledJob]:
        return self._asked.find(query)

    def ids(self, query: Query) -> list[int]:
        return self._asked.ids(query)

    def counts(self) -> Counts:
        return self._asked.counts()

    def overdue(self) -> float | None:
        return self._asked.overdue()


def _with_nominal(text: str | None, basis: int, due: int) -> str | None:
    """The column `more` of a row that is tried again: what it was scheduled for stays known."""
    more = read_more(text)
    if more.nominal is not None:
        return text
    return write_more(msgspec.structs.replace(more, nominal=(basis, due)))
