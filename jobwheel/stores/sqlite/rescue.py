"""What processes ran that have died: it waits again, or ends, as its kind says. For one store; once a second, from a sweep.

That a process is dead is proven by its lock. Any process may rescue; the first whose turn to write it is does so, and what the others found
out changes nothing then, since it is fenced by owner and attempt.
"""

import json
from sqlite3 import Connection

import msgspec

from jobwheel import codec
from jobwheel.job import context_of
from jobwheel.log import logger
from jobwheel.recurring import follow
from jobwheel.row import Row
from jobwheel.state import State
from jobwheel.stores.sqlite import schema
from jobwheel.stores.sqlite.claims import SETTLE, Claims
from jobwheel.stores.sqlite.file import StoreFile
from jobwheel.stores.sqlite.group import Record
from jobwheel.stores.sqlite.kinds import Kinds
from jobwheel.stores.sqlite.moments import SECOND, Moments
from jobwheel.stores.sqlite.records import (
    ATTEMPT,
    COLUMNS,
    FLAGS,
    ID,
    KIND,
    LATE,
    MORE,
    NUMBER_OF,
    STARTED,
    STATES,
    read_more,
    row_of,
    write_more,
)
from jobwheel.verdict import Again, Failed, Interrupted, Onward, Verdict

log = logger("jobwheel.store")

CRASHES = 3
"""Crashes after which a job counts as failed, one that kills its process say; more where its kind's `Retry` has more attempts."""


class Rescue:
    """See the module."""

    def __init__(self, moments: Moments, kinds: Kinds, claims: Claims) -> None:
        self._moments = moments
        self._kinds = kinds
        self._claims = claims

    def look(self, file: StoreFile) -> list[Row]:
        """Lets wait again, or end, what processes ran that are dead; gives the rows that ended by it."""
        ended: list[Row] = []
        for number, pid in file.dead():
            ended += self._rescue(file, number, pid)
        return ended

    def _rescue(self, file: StoreFile, number: int, pid: int) -> list[Row]:
        found = {"died": False, "ran": 0}
        # Before the turn to write, since it may call an application's trigger; what it ran does not grow any more, and each is fenced.
        records = file.read(f"SELECT {COLUMNS} FROM job WHERE state = {schema.RUNNING} AND owner = ?", (number,))
        left = [(record, self._verdict_after_crash(record)) for record in records]
        runs = [self._settled_by_crash(record, verdict) for record, verdict in left]

        def work(connection: Connection) -> list[tuple[Record, Verdict, State]]:
            if not file.is_dead(number):
                return []
            values = {"now": self._moments.stamp(), "basis": self._moments.basis, "runs": json.dumps(runs), "owner": number}
            states = {id: state for id, _, state in connection.execute(SETTLE, values).fetchall()}
            connection.execute(
                f"UPDATE job SET flags = flags + {schema.CRASH} WHERE id IN (SELECT value FROM json_each(?))",
                (json.dumps([record[ID] for record, verdict in left if not isinstance(verdict, Onward) and record[ID] in states]),),
            )
            gone = connection.execute("DELETE FROM process WHERE n = ? RETURNING n", (number,)).fetchall()
            found.update(died=bool(gone), ran=len(states))
            ended = ((record, verdict, states.get(record[ID], schema.SCHEDULED)) for record, verdict in left)
            return [(record, verdict, STATES[state]) for record, verdict, state in ended if state != schema.SCHEDULED]

        ended = file.write(work, full=False)
        if found["died"]:
            ran = f"the {found['ran']} jobs that it ran wait again or ended, as their kinds say" if found["ran"] else "it ran nothing"
            log.info("process %d died with %s open; %s", pid, file.path, ran)
        return [self._row_after_crash(record, verdict, state) for record, verdict, state in ended]

    def _verdict_after_crash(self, record: Record) -> Verdict:
        kind, flags = self._kinds.kind_of(record[KIND]), record[FLAGS]
        crashes = 1 + flags // schema.CRASH
        if flags & schema.AT_MOST_ONCE:
            return self._onward(record, Interrupted("its process died while it ran, and its kind says on_crash='interrupt'"))
        most = CRASHES if kind is None else max(CRASHES, kind.options.retry.attempts)
        # Where the kind is not known here, another process, which claims it, will see to it.
        if crashes >= most and kind is not None:
            return self._onward(record, Failed(f"its process died while it had the job, {crashes} times of at most {most}"))
        return Again(0.0, "its process died while it ran")

    def _onward(self, record: Record, verdict: Verdict) -> Verdict:
        """Of a recurring job only this run is over, unless nobody here knows its trigger."""
        row = row_of(record, self._kinds.told(record[KIND]), None, self._moments)
        if row.series is None or isinstance(row.series.trigger, codec.StoredTrigger):
            return verdict
        if isinstance(verdict, Failed):
            log.error("job %d (%s) failed: %s", row.id, row.kind.name, verdict.error)
        return follow(row, verdict, self._moments.elapsed() / SECOND, self._moments.wall() / SECOND)

    def _settled_by_crash(self, record: Record, verdict: Verdict) -> tuple[object, ...]:
        """The values of a run in `SETTLE`."""
        run = (record[ID], record[ATTEMPT], NUMBER_OF[verdict.state])
        times = (record[STARTED], record[LATE])
        if not isinstance(verdict, Onward):
            return (*run, None, *times, self._more_after_crash(record, verdict), False)
        row = row_of(record, self._kinds.told(record[KIND]), None, self._moments)
        place, due = self._claims.place(verdict)
        return (*run, due, *times, write_more(self._claims.more_of(row, verdict)), False, *place)

    def _more_after_crash(self, record: Record, verdict: Verdict) -> str | None:
        more = msgspec.structs.replace(read_more(record[MORE]))
        more.error = getattr(verdict, "error", None)
        return write_more(more)

    def _row_after_crash(self, record: Record, verdict: Verdict, state: State) -> Row:
        kind = self._kinds.told(record[KIND])
        row = row_of(record, kind, None, self._moments)
        row.state = state
        context_of(row).error = getattr(verdict, "error", None)
        if verdict.state is State.FAILED:
            log.error("job %d (%s) failed: %s", row.id, kind.name, context_of(row).error)
        return row
