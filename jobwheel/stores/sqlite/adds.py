"""New rows on their way into the file: as one statement for all that come at the same moment. Committed by `file`."""

import sqlite3
from collections.abc import Sequence

import msgspec

from jobwheel.stores.sqlite import schema
from jobwheel.stores.sqlite.group import MOST, Record, Write


class Add(Write):
    """A row to be added: its values in the order of `INSERT`. `run` is for the one whose key somebody has."""

    __slots__ = ("id", "plain", "values")

    def __init__(self, deadline: float, full: bool, id: int, values: Record, plain: bool) -> None:
        super().__init__(deadline, full)
        self.plain = plain
        """It may be added together with others in one statement."""
        self.id = id
        self.values = values

    @staticmethod
    def run_plain(connection: sqlite3.Connection, batch: list[Write]) -> list[Write]:
        """Adds what can be added without a look at anything, by one statement; gives the rest.

        One statement, since each one gives up the GIL, and beside a thread that computes it takes 5 ms to get it back.
        """
        adds = [write for write in batch if isinstance(write, Add) and write.plain]
        if not adds:
            return batch
        left = insert(connection, [add.values for add in adds])
        for add in adds:
            add.done = add.id not in left
        return [write for write in batch if not write.done]


_INTO = "INSERT INTO job (id, kind, data, key, priority, basis, due, delay, created, tags, more, state, attempt, flags)"
_ROW = f"({'?, ' * 11}0, 0, 0)"
# Of its key alone: an id that is there already would be a fault, and must not look like an add that was done.
_OR_NOT = f"ON CONFLICT (key) WHERE {schema.HOLDER} DO NOTHING"
ONE = f"{_INTO} VALUES {_ROW} {_OR_NOT}"
SEVERAL = f"""
{_INTO} SELECT {", ".join(f"json_extract(value, '$[{number}]')" for number in range(11))}, 0, 0, 0
FROM json_each(?) WHERE true {_OR_NOT}
"""
PIECE = MOST
MANY = f"{_INTO} VALUES {', '.join([_ROW] * PIECE)} {_OR_NOT}"
"""Half as dear a row as `SEVERAL`, but a statement of its own for each number of rows. A whole group fits into one of either sort."""
PRESENT = "SELECT id FROM job WHERE id IN (SELECT value FROM json_each(?))"


def insert(connection: sqlite3.Connection, rows: Sequence[Record]) -> set[int]:
    """Adds SCHEDULED rows; gives the ids of those that are not added since somebody has their key."""
    added, number = 0, len(rows)
    for start in range(0, number - PIECE + 1, PIECE):
        added += connection.execute(MANY, [value for row in rows[start : start + PIECE] for value in row]).rowcount
    rest = rows[number - number % PIECE :]
    if len(rest) == 1:
        added += connection.execute(ONE, rest[0]).rowcount
    elif rest:
        added += connection.execute(SEVERAL, (msgspec.json.encode(rest).decode(),)).rowcount
    if added == number:
        return set()
    ids = [row[0] for row in rows]
    return set(ids).difference(*connection.execute(PRESENT, (msgspec.json.encode(ids).decode(),)))
