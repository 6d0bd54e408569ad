"""What is in the file, told to those who ask: pictures, pages, counts. For one store; changes nothing."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jobwheel.row import ScheduledJob
from jobwheel.state import ENDED, State
from jobwheel.store import Counts, Query, Ref
from jobwheel.stores.sqlite import schema
from jobwheel.stores.sqlite.file import StoreFile
from jobwheel.stores.sqlite.group import Record
from jobwheel.stores.sqlite.kinds import Kinds
from jobwheel.stores.sqlite.moments import Moments
from jobwheel.stores.sqlite.records import (
    BY_ID,
    BY_KEY,
    COLUMNS,
    DATA,
    ENDED_AT,
    ID,
    NUMBER_OF,
    STATES,
    as_promised,
    matches_text,
    picture_of,
)

PAGE = 500
"""Rows read at once by `find`."""
WAITING = frozenset({schema.SCHEDULED, schema.PAUSED, schema.PARKED})
LATEST = f"SELECT {COLUMNS} FROM job WHERE key = ? AND state >= {schema.ENDED} ORDER BY ended DESC, id DESC LIMIT 1"


class Asking:
    """`use` calls what it is given with the file, and opens it again if need be; `keep`, `keep_for` (microseconds): what history keeps."""

    def __init__(self, moments: Moments, kinds: Kinds, use: Callable[[Callable[[StoreFile], Any]], Any], keep: int, keep_for: int) -> None:
        self._moments = moments
        self._kinds = kinds
        self._use = use
        self._keep = keep
        self._keep_for = keep_for

    def _read(self, statement: str, values: Sequence[Any] = ()) -> list[Record]:
        found: list[Record] = self._use(lambda file: file.read(statement, values))
        return found

    def get(self, ref: int | str) -> ScheduledJob | None:
        """See `Store.get`."""
        found = self._read(BY_KEY, (ref,)) if isinstance(ref, str) else []
        record = found[0] if found else self.record(ref)
        return None if record is None or self.forgotten(record) else self._picture(record)

    def record(self, ref: int | str) -> Record | None:
        """The row of that id, or the latest ended one of that key."""
        found = self._read(LATEST if isinstance(ref, str) else BY_ID, (ref,))
        return found[0] if found else None

    def forgotten(self, record: Record) -> bool:
        """It is still there only since nobody has deleted it yet."""
        return record[ENDED_AT] is not None and (self._keep == 0 or record[ENDED_AT] < self._moments.wall() - self._keep_for)

    def _picture(self, record: Record) -> ScheduledJob:
        return self._use(  # type: ignore[no-any-return]
            lambda file: picture_of(as_promised(record, file), self._kinds, self._moments, file.runs.get(record[ID]))
        )

    def find(self, query: Query) -> list[ScheduledJob]:
        """See `Store.find`."""
        found: list[ScheduledJob] = []
        for job in self._matching(query):
            found.append(job)
            if len(found) == query.limit:
                break
        return found

    def ids(self, query: Query) -> list[int]:
        """See `Store.ids`."""
        if query.text is None and query.states is not None and not _needs_reading(query.states) and not query.states & ENDED:
            where, values = self._where(query)
            return [
                id
                for (id,) in self._read(f"SELECT id FROM job WHERE {where} AND id > ? ORDER BY id", (*values, min(query.after, 2**63 - 1)))
            ]
        return [job.id for job in self._matching(query)]

    def _matching(self, query: Query) -> Iterable[ScheduledJob]:
        where, values = self._where(query)
        after = min(query.after, 2**63 - 1)
        while True:
            statement = f"SELECT {COLUMNS} FROM job WHERE {where} AND id > ? ORDER BY id LIMIT {PAGE}"
            records = self._read(statement, (*values, after))
            for record in records:
                job = self._picture(record)
                if self.forgotten(record) or (query.states is not None and job.state not in query.states):
                    continue
                if query.text is None or matches_text(job, record[DATA], query.text):
                    yield job
            if len(records) < PAGE:
                return
            after = records[-1][0]

    def _where(self, query: Query) -> tuple[str, list[Any]]:
        """What the file can tell; what depends on the reader is left to him."""
        parts, values = ["true"], []
        if not all(possible(value) for value in (query.kind, query.key, query.tag) if value is not None):
            return "false", []
        if query.states is not None:
            codes = {NUMBER_OF[state] for state in query.states}
            if codes & WAITING:
                codes |= {schema.PARKED, *({schema.SCHEDULED, schema.PAUSED} if State.UNRESOLVABLE in query.states else ())}
            parts.append(f"state IN ({', '.join(map(str, sorted(codes)))})")
            # In words that lead to an index: those rows are few, whatever waits.
            if codes and min(codes) >= schema.ENDED:
                parts.append(f"id IN (SELECT id FROM job WHERE state >= {schema.ENDED})")
            elif codes == {schema.RUNNING}:
                parts.append(f"id IN (SELECT id FROM job WHERE state = {schema.RUNNING})")
        if query.kind is not None:
            self._use(self._kinds.look)
            parts.append("kind IN (SELECT value FROM json_each(?))")
            values.append(json.dumps(self._kinds.numbers_of(query.kind)))
        if query.key is not None:
            parts.append(
                f"id IN (SELECT id FROM job WHERE key = ? AND {schema.HOLDER} UNION ALL SELECT id FROM job WHERE key = ? AND "
                f"state >= {schema.ENDED} UNION ALL SELECT id FROM job WHERE key = ? AND state = {schema.RUNNING})"
            )
            values += [query.key] * 3
        if query.tag is not None:
            parts.append("id IN (SELECT job FROM tag WHERE tag = ?)")
            values.append(query.tag)
        return " AND ".join(parts), values

    def counts(self) -> Counts:
        """See `Store.counts`."""
        self._use(self._kinds.look)
        live = dict.fromkeys(range(schema.ENDED), 0)
        ended: dict[State, int] = {}
        for number, state, count in self._read("SELECT kind, state, n FROM tally WHERE n <> 0"):
            if state == schema.DELETED:
                continue
            if state >= schema.ENDED:
                ended[STATES[state]] = ended.get(STATES[state], 0) + count
            elif state == schema.RUNNING:
                live[state] += count
            else:
                live[state if self._kinds.kind_of(number) is not None else schema.PARKED] += count
        return Counts(live[schema.SCHEDULED], live[schema.PAUSED], live[schema.RUNNING], live[schema.PARKED], ended)

    def overdue(self) -> float | None:
        """See `Store.overdue`."""
        known = json.dumps(self._kinds.known())
        first = (
            f"SELECT min(due) FROM (SELECT due FROM job WHERE state = {schema.SCHEDULED} AND basis = ? AND due <= ? "
            f"AND kind IN (SELECT value FROM json_each(?)) ORDER BY due LIMIT 1)"
        )
        dues = [(basis, self._read(first, (basis, limit, known))[0][0]) for basis, limit in self._moments.limits()]
        return min((self._moments.to_elapsed(basis, due) for basis, due in dues if due is not None), default=None)


def named(ref: Ref) -> int | str:
    """The id or the key; 0, which no job has, for what no job can have."""
    if isinstance(ref, ScheduledJob):
        return ref.id
    return ref if possible(ref) else 0


def possible(value: int | str) -> bool:
    """Whether the file could hold it: a number of 64 bits, or text that can be written as UTF-8."""
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _needs_reading(states: frozenset[State]) -> bool:
    """Whether only a look at the data tells if a row is in one of these states."""
    waiting = {State.SCHEDULED, State.PAUSED, State.UNRESOLVABLE}
    return bool(states & waiting) and not states >= waiting
