"""What runs: from waiting to running by a claim, from running to its end by a verdict. For one store.

A running row has an owner, the process whose lock proves that it lives (`lockfile`). What is settled is fenced by owner and attempt, so a
process that was taken for dead, or a run that was settled already, changes nothing. A claim, and a verdict, is one statement for a batch.

These writes do not wait for the disk, but for the claim of a job that must run at most once: a power cut that undoes one makes a job run
again, which at-least-once allows; a death of the process undoes nothing, since the operating system has the data.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from sqlite3 import Connection

import msgspec

from jobwheel import codec
from jobwheel.errors import StoreError
from jobwheel.held import ALONE
from jobwheel.job import context_of
from jobwheel.kind import registered_kinds
from jobwheel.log import logger
from jobwheel.recurring import resumed
from jobwheel.row import Row, Terms
from jobwheel.state import State
from jobwheel.stores.sqlite import schema
from jobwheel.stores.sqlite.file import StoreFile
from jobwheel.stores.sqlite.group import Record
from jobwheel.stores.sqlite.kinds import Kinds
from jobwheel.stores.sqlite.limits import Limited, beside_others, without_place
from jobwheel.stores.sqlite.moments import SECOND, WALL, Moments, micros
from jobwheel.stores.sqlite.promises import Promise
from jobwheel.stores.sqlite.records import (
    COLUMNS,
    DATA,
    ID,
    KIND,
    MORE,
    NUMBER_OF,
    STATES,
    More,
    clean,
    read_more,
    row_of,
    shown_run,
    stored_series,
    write_more,
)
from jobwheel.verdict import SUCCEEDED, Again, Failed, Onward, Succeeded, Verdict, go_on

log = logger("jobwheel.store")

CLAIM_PATIENCE = 1.0
"""Seconds that a claim waits for other processes: the dispatcher tries again later, and its thread has other things to do."""

EXACT = "json_extract(:promised, '$.\"' || id || '\"[0]')"
PROMISED = "toucher = :owner AND basis = :basis AND due = json_extract(:promised, '$.\"' || id || '\"[1]')"
"""A touch of this process has promised an earlier moment than the file says, and that is here."""
CLAIM = f"""
UPDATE job SET state = {schema.RUNNING}, owner = :owner, attempt = attempt + 1, started = :wall, late = NULL, toucher = NULL,
    due = CASE WHEN {PROMISED} THEN {EXACT} ELSE due END,
    flags = CASE WHEN kind IN (SELECT value FROM json_each(:fragile))
                 THEN flags | {schema.AT_MOST_ONCE} ELSE flags & ~{schema.AT_MOST_ONCE} END
WHERE id IN (SELECT value FROM json_each(:ids)) AND +state IN ({schema.SCHEDULED}, {schema.PARKED})
    AND kind IN (SELECT value FROM json_each(:kinds))
    AND (CASE WHEN basis = :basis THEN due <= :elapsed ELSE due + (SELECT offset FROM boot WHERE n = basis) <= :wall END OR {PROMISED})
RETURNING {COLUMNS}
"""

SUCCEED = f"""
UPDATE job SET state = {schema.SUCCEEDED}, ended = ?, owner = NULL,
    started = json_extract(run.value, '$[2]'), late = json_extract(run.value, '$[3]'), more = NULL
FROM json_each(?) AS run
WHERE job.id = json_extract(run.value, '$[0]') AND +job.state = {schema.RUNNING} AND +job.owner = ?
    AND job.attempt = json_extract(run.value, '$[1]')
RETURNING job.id, job.attempt
"""

AGAIN = f"json_extract(run.value, '$[2]') = {schema.SCHEDULED} AND flags & {schema.CANCEL_ASKED | schema.SUPERSEDED} = 0"
SETTLE = f"""
UPDATE job SET
    state = CASE WHEN json_extract(run.value, '$[2]') <> {schema.SCHEDULED} THEN json_extract(run.value, '$[2]')
                 WHEN flags & {schema.CANCEL_ASKED} THEN {schema.CANCELLED}
                 WHEN flags & {schema.SUPERSEDED} THEN coalesce(json_extract(run.value, '$[9]'), {schema.FAILED})
                 ELSE {schema.SCHEDULED} END,
    ended = CASE WHEN {AGAIN} THEN NULL ELSE :now END,
    basis = CASE WHEN {AGAIN} AND json_extract(run.value, '$[3]') IS NOT NULL
                 THEN coalesce(json_extract(run.value, '$[8]'), :basis) ELSE basis END,
    due = CASE WHEN {AGAIN} THEN coalesce(json_extract(run.value, '$[3]'), due) ELSE due END,
    started = json_extract(run.value, '$[4]'), late = json_extract(run.value, '$[5]'), more = json_extract(run.value, '$[6]'),
    owner = CASE WHEN json_extract(run.value, '$[7]') THEN owner ELSE NULL END,
    flags = CASE WHEN json_extract(run.value, '$[7]') THEN flags | {schema.HUNG}
                 WHEN json_extract(run.value, '$[8]') IS NOT NULL THEN flags & {schema.CRASH - 1} ELSE flags END
FROM json_each(:runs) AS run
WHERE job.id = json_extract(run.value, '$[0]') AND +job.state = {schema.RUNNING} AND +job.owner = :owner
    AND job.attempt = json_extract(run.value, '$[1]')
RETURNING job.id, job.attempt, job.state
"""

PART = f"""
UPDATE job SET state = CASE WHEN flags & {schema.CANCEL_ASKED} THEN {schema.CANCELLED}
                            WHEN flags & {schema.SUPERSEDED} THEN {schema.SUCCEEDED} ELSE {schema.SCHEDULED} END,
    ended = CASE WHEN flags & {schema.CANCEL_ASKED | schema.SUPERSEDED} THEN ? ELSE NULL END,
    basis = ?, due = ?, more = ?, owner = NULL, flags = flags & {schema.CRASH - 1}
WHERE id = ? AND +state = {schema.RUNNING} AND +owner = ? AND attempt = ?
RETURNING state
"""
"""The row of a recurring job whose run goes on as a row of its own ..."""
RUN = f"""
INSERT INTO job (id, kind, data, priority, state, basis, due, attempt, created, owner, flags, tags, more, started)
SELECT ?, kind, data, priority, {schema.RUNNING}, ?, ?, 1, ?, ?, flags & {schema.AT_MOST_ONCE}, tags, ?, started FROM job WHERE id = ?
"""
"""... which is this one."""

SAID = f"""
UPDATE job SET more = json_set(CASE WHEN json_valid(more) THEN more ELSE '{{}}' END,
    '$.progress', json(json_extract(run.value, '$[2]')), '$.log', json(json_extract(run.value, '$[3]')))
FROM json_each(?) AS run
WHERE job.id = json_extract(run.value, '$[0]') AND +job.state = {schema.RUNNING} AND +job.owner = ?
    AND job.attempt = json_extract(run.value, '$[1]')
"""

HAND_BACK = f"""
UPDATE job SET state = CASE WHEN flags & {schema.CANCEL_ASKED | schema.SUPERSEDED} THEN {schema.CANCELLED} ELSE {schema.SCHEDULED} END,
    ended = CASE WHEN flags & {schema.CANCEL_ASKED | schema.SUPERSEDED} THEN ? ELSE NULL END,
    attempt = attempt - 1, owner = NULL, started = NULL
WHERE id IN (SELECT value FROM json_each(?)) AND +state = {schema.RUNNING} AND +owner = ?
RETURNING id, state
"""

PARK = f"""
UPDATE job SET state = {schema.PARKED}, attempt = attempt - 1, owner = NULL, started = NULL,
    more = json_set(CASE WHEN json_valid(more) THEN more ELSE '{{}}' END, '$.error', json_extract(row.value, '$[1]'))
FROM json_each(?) AS row WHERE job.id = json_extract(row.value, '$[0]') AND +job.state = {schema.RUNNING} AND +job.owner = ?
"""

Settlement = tuple[Row, int, Verdict]
Run = tuple[int, int]
"""Id and attempt."""


class Claims:
    """See the module."""

    def __init__(self, moments: Moments, kinds: Kinds) -> None:
        self._moments = moments
        self._kinds = kinds

    def take(
        self, file: StoreFile, ids: Sequence[int], limited: Mapping[str, Limited], full: bool
    ) -> tuple[list[Row], dict[int, str], dict[int, str]]:
        """Claims those that still wait and are due; gives the rows in the order of `ids`, why any could not be read (they are parked), and
        which have no place now, with the name under which they are to be held.

        `full`: the claims are on disk before any of them runs, which at-most-once needs. `limited`: see `Limited`, by the kind's name.
        """
        file.check()  # the lock file too: without it others cannot see that this process lives
        moments, kinds = self._moments, self._kinds
        fragile = [number for kind in registered_kinds() if kind.options.on_crash == "interrupt" for number in kinds.numbers_of(kind.name)]
        promised: dict[int, Promise] = {}
        held: dict[int, str] = {}

        def choose(connection: Connection) -> dict[str, object] | None:
            # Counted in this process's turn to write: nobody else claims until it is over.
            held.update(dict.fromkeys(beside_others(connection, file, ids), ALONE))
            if limited:
                held.update(without_place(connection, limited))
            wanted = [id for id in ids if id not in held] if held else ids
            if not wanted:
                return None
            now = moments.elapsed()
            promised.update(file.promises.take(wanted, moments.basis, now))
            return {
                "owner": file.number, "wall": moments.wall(), "elapsed": now, "basis": moments.basis,
                "ids": json.dumps(wanted), "kinds": json.dumps(kinds.known()), "fragile": json.dumps(fragile),
                "promised": json.dumps({id: (promise.exact, promise.stored) for id, promise in promised.items()}),
            }  # fmt: skip

        unreadable: dict[int, str] = {}
        data: dict[int, str] = {}

        def note(records: list[Record]) -> list[Row]:
            rows = []
            for record in records:
                promised.pop(record[ID], None)
                try:
                    row = row_of(record, kinds.told(record[KIND]), None, moments)
                    if row.series is not None and isinstance(row.series.trigger, codec.StoredTrigger):
                        codec.decode_trigger(row.series.trigger)  # which tells what is wrong with it
                except Exception as error:  # whatever stands in one row, the others are claimed and must run
                    unreadable[record[ID]] = str(error)
                    continue
                file.runs[row.id] = row
                data[row.id] = record[DATA]
                rows.append(row)
            return rows

        try:
            rows = file.write_one(CLAIM, choose, full, note, CLAIM_PATIENCE)
        finally:
            file.promises.give_back(promised)
        rows = self._readable(file, rows, data, unreadable)
        if len(rows) > 1:
            place = {id: number for number, id in enumerate(ids)}
            rows.sort(key=lambda row: place[row.id])
        return rows, unreadable, held

    def _readable(self, file: StoreFile, rows: list[Row], data: dict[int, str], unreadable: dict[int, str]) -> list[Row]:
        """Those of the claimed rows whose data can be read, with their jobs; the others join `unreadable` and are parked."""
        for row in rows:
            # Not before: it calls the class's own code, for which no other process may have to wait.
            try:
                row.job = codec.decode(row.kind, data[row.id])
            except codec.UnreadableData as error:
                unreadable[row.id] = str(error)
                file.runs.pop(row.id, None)
        if unreadable:
            # Nothing may be raised from here on, since the rows are claimed. One that cannot be parked now is handed back by `look`.
            with suppress(StoreError):
                self._park(file, unreadable)
            rows = [row for row in rows if row.id not in unreadable]
        return rows

    def _park(self, file: StoreFile, unreadable: dict[int, str]) -> None:
        for id, error in unreadable.items():
            log.error("job %d waits until some process can read it: %s", id, error)
        rows = json.dumps([(id, clean(error)) for id, error in unreadable.items()])
        file.write_one(PARK, (rows, file.number), False, len)

    def settle(self, file: StoreFile, settlements: Sequence[Settlement], patience: float) -> list[State | None]:
        """Writes the verdicts; the states they led to, None for what was settled before (of two on one run the first counts)."""
        moments, now = self._moments, self._moments.stamp()
        plain: list[tuple[int, int, int | None, int | None]] = []
        others: list[tuple[object, ...]] = []
        first: dict[Run, Settlement] = {}
        dues: dict[Run, int] = {}
        for settlement in settlements:
            row, attempt, verdict = settlement
            run = (row.id, attempt)
            if row.attempt != attempt or first.setdefault(run, settlement) is not settlement:
                continue
            times = self._times(row)
            if verdict is SUCCEEDED and row.run is None and row.terms is not None and row.terms.nominal is None:
                plain.append((*run, *times))
                continue
            due = None
            if isinstance(verdict, Again):
                due = dues[run] = micros(moments.elapsed() / SECOND + verdict.delay)
            hung = row.run is not None and row.run.hung
            onward: tuple[int, int] | None = None
            if isinstance(verdict, Onward):
                onward, due = self.place(verdict)
            others.append((*run, NUMBER_OF[verdict.state], due, *times, write_more(self.more_of(row, verdict)), hung, *(onward or ())))
        values = {"now": now, "basis": moments.basis, "runs": json.dumps(others), "owner": file.number}
        succeeded = (now, json.dumps(plain), file.number)

        def work(connection: Connection) -> list[Record]:
            records = connection.execute(SETTLE, values).fetchall()
            return records + [(*run, schema.SUCCEEDED) for run in connection.execute(SUCCEED, succeeded).fetchall()]

        if plain and others:
            records = file.write(work, False, patience)
        elif others:
            records = file.write_one(SETTLE, values, False, list, patience)
        else:
            records = [(*run, schema.SUCCEEDED) for run in file.write_one(SUCCEED, succeeded, False, list, patience)] if plain else []
        states = {(id, attempt): state for id, attempt, state in records}
        return [
            self._ended(file, row, verdict, states.get((row.id, attempt)), dues.get((row.id, attempt)))
            if first.get((row.id, attempt)) is settlement
            else None
            for settlement in settlements
            for row, attempt, verdict in (settlement,)
        ]

    def place(self, onward: Onward) -> tuple[tuple[int, int], int]:
        """The last two values of a run in `SETTLE`, (basis, state if it may not go on), and its next due moment."""
        ended = schema.SUCCEEDED if onward.outcome is None else NUMBER_OF[onward.outcome.state]
        if onward.wall is not None:
            return (WALL, ended), round(onward.wall * SECOND)
        return (self._moments.basis, ended), micros(onward.due)

    def _ended(self, file: StoreFile, row: Row, verdict: Verdict, state: int | None, due: int | None) -> State | None:
        """Lets the row itself tell what became of it."""
        if file.runs.get(row.id) is row:  # else it waits again already and was claimed anew
            file.runs.pop(row.id, None)
        if state is None:
            return None
        context = row.run
        outcome = verdict.outcome if isinstance(verdict, Onward) else verdict
        if verdict is not SUCCEEDED and outcome is not None:
            context = context_of(row)
            if isinstance(outcome, Succeeded):
                context.result = outcome.result
            else:
                context.error = outcome.error
            if isinstance(outcome, Failed | Again):
                context.trace = outcome.trace
        row.ended = self._moments.elapsed() / SECOND
        row.state = STATES[state]
        if isinstance(verdict, Onward):
            go_on(row, verdict)
        elif row.state is State.SCHEDULED and due is not None:
            terms = row.terms = row.terms or Terms()
            if terms.nominal is None:
                terms.nominal, terms.date = row.due, terms.wall
            terms.wall = None
            row.due = due / SECOND
        elif context is not None and context.hung:
            file.hung[row.id] = row
        return row.state

    def _times(self, row: Row) -> tuple[int | None, int | None]:
        if row.started is None:
            return None, None
        return round((row.started + self._moments.offset()) * SECOND), max(0, round((row.started - row.due) * SECOND))

    def more_of(self, row: Row, verdict: Verdict) -> More:
        """What is kept of a run in the column `more`."""
        more, terms, context = More(), row.terms, row.run
        if terms is not None and terms.until is not None:
            more.until = (self._moments.basis, micros(terms.until))
        series, outcome = row.series, verdict
        if isinstance(verdict, Onward):
            series, outcome = verdict.series, verdict.outcome  # type: ignore[assignment]
            more.nominal = None if verdict.nominal is None else (self._moments.basis, micros(verdict.nominal))
        else:
            more.nominal = self._nominal(row, isinstance(verdict, Again))
        if series is not None:
            more.series = stored_series(series, self._moments)
        if isinstance(outcome, Succeeded):
            more.result = outcome.result
        elif outcome is not None and not isinstance(outcome, Onward):
            more.error = outcome.error
        if isinstance(outcome, Failed | Again):
            more.trace = outcome.trace
        if context is not None:
            more.progress, more.log, more.timed_out = context.progress_now, tuple(context.lines), context.timed_out
        return more

    def _nominal(self, row: Row, again: bool) -> tuple[int, int] | None:
        terms = row.terms
        if terms is None or (terms.nominal is None and not again):
            return None
        date = terms.wall if terms.nominal is None else terms.date
        if date is not None:
            return WALL, round(date * SECOND)
        return self._moments.basis, micros(row.due if terms.nominal is None else terms.nominal)

    def part(self, file: StoreFile, row: Row, onward: Onward, full: bool) -> Row | None:
        """See `Store.part`. `full`: see `take`."""
        terms, of = Terms(), row.terms
        assert of is not None
        terms.tags, terms.created = of.tags, self._moments.elapsed() / SECOND
        terms.nominal, terms.date, terms.wall = of.nominal, of.date, of.wall
        run = Row(row.job, row.due, None, None, row.priority, terms, row.kind)
        run.id, run.attempt, run.state = file.next_id(), 1, State.RUNNING
        (basis, _), due = self.place(onward)
        more, now = write_more(self.more_of(row, onward)), self._moments.stamp()
        own = write_more(More(nominal=self._nominal(run, again=False)))
        since = (WALL, round(of.wall * SECOND)) if of.wall is not None else (self._moments.basis, micros(row.due))

        def work(connection: Connection) -> int | None:
            moved = connection.execute(PART, (now, basis, due, more, row.id, file.number, row.attempt)).fetchall()
            if not moved:
                return None
            connection.execute(RUN, (run.id, *since, now, file.number, own, row.id))
            file.runs[run.id] = run
            return int(moved[0][0])

        try:
            state = file.write(work, full)
        except BaseException:
            file.runs.pop(run.id, None)
            raise
        if state is None:
            return None
        if file.runs.get(row.id) is row:
            file.runs.pop(row.id, None)
        row.state = STATES[state]
        go_on(row, onward)
        return run

    def after_pause(self, row: Row, record: Record) -> dict[str, object]:
        """New values for the row of a recurring job that is paused no longer, whose moments in the pause are skipped."""
        if row.series is None or isinstance(row.series.trigger, codec.StoredTrigger):
            return {}
        onward = resumed(row, self._moments.elapsed() / SECOND, self._moments.wall() / SECOND)
        if onward is None:
            return {}
        (basis, _), due = self.place(onward)
        more = msgspec.structs.replace(
            read_more(record[MORE]),
            nominal=None if onward.nominal is None else (self._moments.basis, micros(onward.nominal)),
            series=stored_series(onward.series, self._moments),
        )
        return {"basis": basis, "due": due, "more": write_more(more)}

    def hand_back(self, file: StoreFile, rows: Sequence[Row], patience: float) -> list[Row]:
        """Claimed rows that were not started wait again, as if they had not been claimed; gives those that do."""
        if not rows:
            return []
        mine = {row.id: row for row in rows}
        states: dict[int, int] = dict(
            file.write_one(HAND_BACK, (self._moments.stamp(), json.dumps(list(mine)), file.number), False, list, patience)
        )
        for id, state in states.items():
            if file.runs.get(id) is mine[id]:
                file.runs.pop(id, None)
            mine[id].attempt -= 1
            mine[id].state = STATES[state]
        return [row for row in rows if states.get(row.id) == schema.SCHEDULED]

    def look(self, file: StoreFile) -> None:
        """What other processes ask of the runs here; and rows that are this process's by the file and run nowhere are handed back.

        The latter come from a claim whose answer was an error though it had been written.
        """
        self._look_at_hung(file)
        if not file.runs and not file.read(f"SELECT 1 FROM job WHERE state = {schema.RUNNING} AND owner = ? LIMIT 1", (file.number,)):
            return
        mine = file.read(f"SELECT id, flags FROM job WHERE state = {schema.RUNNING} AND owner = ?", (file.number,))
        for id, flags in mine:
            row = file.runs.get(id)
            if row is not None and flags & schema.CANCEL_ASKED:
                context_of(row).cancel_asked = True
        if any(id not in file.runs for id, _ in mine):
            file.write(lambda connection: self._hand_back_lost(file, connection), full=False)
        self._tell_how_far(file)

    def _tell_how_far(self, file: StoreFile) -> None:
        """Lets other processes see the progress and the log of what runs here."""
        news: list[tuple[object, ...]] = []
        for row in list(file.runs.values()):
            context = row.run
            if (
                context is not None
                and (said := (context.progress_now, len(context.lines), context.lines and context.lines[-1])) != context.said
            ):
                if said != (None, 0, ()):
                    news.append((row.id, row.attempt, *shown_run(context)))
                context.said = said
        if news:
            file.write_one(SAID, (json.dumps(news), file.number), False, len)

    def _look_at_hung(self, file: StoreFile) -> None:
        over = [id for id, row in list(file.hung.items()) if row.run is None or not row.run.hung]
        if over:
            ended = f"UPDATE job SET flags = flags & ~{schema.HUNG}, owner = NULL WHERE owner = ? AND flags & {schema.HUNG} AND id IN "
            file.write_one(f"{ended} (SELECT value FROM json_each(?))", (file.number, json.dumps(over)), False, len)
            for id in over:
                file.hung.pop(id, None)

    def runs_on(self, file: StoreFile, id: int, flags: int, connection: Connection) -> bool:
        """Whether the thread of a run that was settled as timed out has not ended yet. To be asked while writing."""
        if not flags & schema.HUNG:
            return False
        ((owner,),) = connection.execute("SELECT owner FROM job WHERE id = ?", (id,)).fetchall()
        if owner == file.number:
            row = file.hung.get(id)
            return row is not None and row.run is not None and row.run.hung
        return owner is not None and not file.is_dead(owner)

    def _hand_back_lost(self, file: StoreFile, connection: Connection) -> None:
        # Under the lock: a claim that is being made has either not been written yet, or is in `runs`.
        mine = connection.execute(f"SELECT id FROM job WHERE state = {schema.RUNNING} AND owner = ?", (file.number,)).fetchall()
        lost = [id for (id,) in mine if id not in file.runs]
        connection.execute(HAND_BACK, (self._moments.stamp(), json.dumps(lost), file.number)).fetchall()
