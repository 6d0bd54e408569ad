"""Adds, cancels and changes as writes of a group: what each does in the file when its turn comes. Made by `store`.

Each runs inside a transaction on the writing connection, so what it reads cannot change before it is written. `Add` is in `adds`, since
many of them become one statement there; what is here is the way of those that meet another job with their key.
"""

import json
from collections.abc import Callable, Sequence
from sqlite3 import Connection
from typing import Any

from jobwheel.errors import JobExists, TooManyPending
from jobwheel.row import Row
from jobwheel.store import IfExists
from jobwheel.stores.sqlite import schema
from jobwheel.stores.sqlite.adds import Add, insert
from jobwheel.stores.sqlite.group import Record, Write
from jobwheel.stores.sqlite.kinds import Kinds
from jobwheel.stores.sqlite.records import BY_ID, BY_KEY, COLUMNS, DATA, FLAGS, ID, KIND, MORE, PRIORITY, STATE, TAGS, read_more

WAITING = f"({schema.SCHEDULED}, {schema.PAUSED}, {schema.PARKED})"
HOLDER = schema.HOLDER

BRIEF = "id, kind, key, priority, state, basis, due"
"""What is told of a row that was cancelled; who wants to know more reads it."""
PENDING = f"SELECT coalesce(sum(n), 0) FROM tally WHERE state IN {WAITING}"
_END = f"UPDATE job SET state = {schema.CANCELLED}, ended = ?, toucher = NULL WHERE id = ? RETURNING {BRIEF}"
_SUPERSEDE = f"UPDATE job SET flags = flags | {schema.SUPERSEDED} WHERE id = ?"

Refs = int | str


class AddOne(Add):
    """Adds a row; the result is (id of the row that now holds, `BRIEF` of the row that it replaced or None)."""

    __slots__ = ("_if_exists", "_key", "_kinds", "_limit", "_now")

    def __init__(
        self,
        deadline: float,
        full: bool,
        id: int,
        values: Record,
        key: str | None,
        if_exists: IfExists,
        limit: int,
        now: Callable[[], int],
        kinds: Kinds,
    ) -> None:
        super().__init__(deadline, full, id, values, plain=not limit)
        self.result = (id, None)
        self._key = key
        self._kinds = kinds
        self._if_exists = if_exists
        self._limit = limit
        self._now = now

    def run(self, connection: Connection) -> None:
        self.result = add_contended(connection, self.id, self.values, self._key, self._if_exists, self._now(), self._kinds, self._limit)


class AddMany(Write):
    """Adds rows in order, all or none; the result has, by position, what `AddOne` gives for those that met another job with their key."""

    __slots__ = ("_kinds", "_limit", "_now", "_rows", "_values")

    def __init__(
        self,
        deadline: float,
        full: bool,
        rows: Sequence[tuple[Row, IfExists]],
        values: Sequence[Record],
        limit: int,
        now: Callable[[], int],
        kinds: Kinds,
    ) -> None:
        super().__init__(deadline, full, alone=True)
        self._kinds = kinds
        self._rows = rows
        self._values = values
        self._limit = limit
        self._now = now

    def run(self, connection: Connection) -> None:
        if self._limit:
            check_room(connection, self._limit, len(self._rows), [row.key for row, _ in self._rows])
        left = insert(connection, self._values)
        self.result = {
            number: add_contended(connection, row.id, self._values[number], row.key, if_exists, self._now(), self._kinds)
            for number, (row, if_exists) in enumerate(self._rows if left else ())
            if row.id in left
        }


def add_contended(
    connection: Connection, id: int, values: Record, key: str | None, if_exists: IfExists, now: int, kinds: Kinds, limit: int = 0
) -> tuple[int, Record | None]:
    """Adds a row after a look at who has its key, and, with a `limit`, at how many wait."""
    replaced: Record | None = None
    holder = None if key is None else connection.execute(BY_KEY, (key,)).fetchone()
    if holder is not None:
        assert key is not None
        if if_exists == "error":
            raise JobExists(key, holder[ID])
        if if_exists == "keep":
            return holder[ID], None
        if _same(holder, values, kinds):
            _renew(connection, holder, values)
            return holder[ID], None
        if holder[STATE] == schema.RUNNING:
            _check_one(connection, limit)
            connection.execute(_SUPERSEDE, (holder[ID],))
        else:
            (replaced,) = connection.execute(_END, (now, holder[ID])).fetchall()
    else:
        _check_one(connection, limit)
    insert(connection, [values])
    return id, replaced


def _check_one(connection: Connection, limit: int) -> None:
    if limit:
        check_room(connection, limit, 1, [])


NEW_KIND, NEW_DATA, NEW_PRIORITY, NEW_TAGS, NEW_MORE = 1, 2, 4, 9, 10
"""Places in the values of a row that is to be added."""


def _same(holder: Record, values: Record, kinds: Kinds) -> bool:
    """Whether both are the same recurring job, by their stored forms; see `recurring.same`."""
    if values[NEW_MORE] is None or holder[MORE] is None or holder[DATA] != values[NEW_DATA] or holder[FLAGS] & schema.CANCEL_ASKED:
        return False
    new, old = read_more(values[NEW_MORE]).series, read_more(holder[MORE]).series
    if new is None or old is None or (new.trigger.kind, bytes(new.trigger.fields)) != (old.trigger.kind, bytes(old.trigger.fields)):
        return False
    return holder[KIND] in kinds.numbers_of(kinds.told(values[NEW_KIND]).name)


def _renew(connection: Connection, holder: Record, values: Record) -> None:
    """What may differ in an equal recurring job is the newer one's."""
    if (holder[PRIORITY], holder[TAGS]) != (values[NEW_PRIORITY], values[NEW_TAGS]):
        connection.execute("DELETE FROM tag WHERE job = ?", (holder[ID],))
        connection.execute("UPDATE job SET priority = ?, tags = ? WHERE id = ?", (values[NEW_PRIORITY], values[NEW_TAGS], holder[ID]))
        connection.execute("INSERT OR IGNORE INTO tag SELECT value, ? FROM json_each(coalesce(?, '[]'))", (holder[ID], values[NEW_TAGS]))


def check_room(connection: Connection, limit: int, wanted: int, keys: Sequence[str | None]) -> None:
    """Raises `TooManyPending` unless so many more may wait; one that replaces a waiting one, or yields to it, is none more."""
    named = [key for key in keys if key is not None]
    distinct = list(dict.fromkeys(named))
    held = f"SELECT count(*) FROM job WHERE key IN (SELECT value FROM json_each(?)) AND {HOLDER} AND state IN {WAITING}"
    wanted -= len(named) - len(distinct)
    if distinct:
        wanted -= connection.execute(held, (json.dumps(distinct),)).fetchone()[0]
    if wanted > 0 and connection.execute(PENDING).fetchone()[0] + wanted > limit:
        raise TooManyPending(limit)


class Single(Write):
    """One statement, which needs no transaction around it; the result is the one row that it returns, or None."""

    __slots__ = ("_statement", "_values")

    def __init__(self, deadline: float, full: bool, statement: str, values: Sequence[Any]) -> None:
        super().__init__(deadline, full)
        self.single = True
        self._statement = statement
        self._values = values

    def run(self, connection: Connection) -> None:
        records = connection.execute(self._statement, self._values).fetchall()
        self.result = records[0] if records else None


class CancelMany(Write):
    """Ends those that wait; the result is a list of `BRIEF` of each."""

    __slots__ = ("_values",)

    def __init__(self, deadline: float, full: bool, ids: Sequence[int], now: int) -> None:
        super().__init__(deadline, full)
        self.single = True
        self._values = (now, json.dumps(list(ids)))

    def run(self, connection: Connection) -> None:
        which = f"id IN (SELECT value FROM json_each(?)) AND +state IN {WAITING}"
        self.result = connection.execute(
            f"UPDATE job SET state = {schema.CANCELLED}, ended = ?, toucher = NULL WHERE {which} RETURNING {BRIEF}", self._values
        ).fetchall()


class Edit(Write):
    """Reads the live row that `ref` names and writes what `decide` makes of it; the result is (record before, record after), or None.

    `decide` gives new values by column, or None to leave all as it is; what it raises reaches the caller, and nothing is changed.
    """

    __slots__ = ("_decide", "_ref", "_where")

    def __init__(self, deadline: float, full: bool, ref: Refs, decide: Callable[[Connection, Record], dict[str, Any] | None]) -> None:
        super().__init__(deadline, full)
        self._ref = ref
        self._decide = decide

    def run(self, connection: Connection) -> None:
        self.result = None
        record = connection.execute(BY_KEY if isinstance(self._ref, str) else BY_ID, (self._ref,)).fetchone()
        if record is None:
            return
        values = self._decide(connection, record)
        if values is not None:
            names = ", ".join(f"{name} = ?" for name in values)
            (after,) = connection.execute(
                f"UPDATE job SET {names} WHERE id = ? RETURNING {COLUMNS}", (*values.values(), record[ID])
            ).fetchall()
            self.result = (record, after)


def cancel_statement(ref: Refs) -> str:
    """Ends a waiting row, or asks a running one to stop; returns the row as it is then."""
    return _CANCEL + (f"key = ? AND {HOLDER}" if isinstance(ref, str) else f"id = ? AND state < {schema.ENDED}") + f" RETURNING {BRIEF}"


_CANCEL = f"""
UPDATE job SET
    state = CASE state WHEN {schema.RUNNING} THEN {schema.RUNNING} ELSE {schema.CANCELLED} END,
    flags = CASE state WHEN {schema.RUNNING} THEN flags | {schema.CANCEL_ASKED} ELSE flags END,
    ended = CASE state WHEN {schema.RUNNING} THEN NULL ELSE ? END,
    toucher = NULL
WHERE """
