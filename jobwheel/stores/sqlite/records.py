"""Rows of the table `job` as jobwheel's values: `Row` for what runs, `ScheduledJob` for what users see; and the way back.

A row whose kind this process does not know, or whose data it cannot read, is `unresolvable` to it: a verdict of the reader, not of the
file, so that another process, which knows better, runs it all the same.
"""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec

from jobwheel import codec
from jobwheel.job import IJob, JobContext
from jobwheel.kind import Kind
from jobwheel.recurring import on_grid
from jobwheel.row import Row, ScheduledJob, Series, Terms, told_of
from jobwheel.state import State
from jobwheel.stores.sqlite import schema
from jobwheel.stores.sqlite.file import StoreFile
from jobwheel.stores.sqlite.group import Record
from jobwheel.stores.sqlite.kinds import Kinds
from jobwheel.stores.sqlite.moments import SECOND, WALL, Moments, micros
from jobwheel.trigger import Every

COLUMNS = "id, kind, data, key, priority, state, basis, due, delay, attempt, created, flags, tags, more, started, late, ended, toucher"
ID, KIND, DATA, KEY, PRIORITY, STATE, BASIS, DUE, DELAY, ATTEMPT, CREATED, FLAGS, TAGS, MORE, STARTED, LATE, ENDED_AT, TOUCHER = range(18)
"""Their places in a record."""

BY_ID = f"SELECT {COLUMNS} FROM job WHERE id = ?"
BY_KEY = f"SELECT {COLUMNS} FROM job WHERE key = ? AND {schema.HOLDER}"

STATES = (
    State.SCHEDULED, State.PAUSED, State.RUNNING, State.UNRESOLVABLE,
    State.SUCCEEDED, State.FAILED, State.CANCELLED, State.MISSED, State.INTERRUPTED,
)  # fmt: skip
"""By their numbers in the file."""
NUMBER_OF = {state: number for number, state in enumerate(STATES)}


class StoredSeries(msgspec.Struct, omit_defaults=True):
    """See `row.Series`."""

    trigger: codec.StoredTrigger
    anchor: tuple[int, int] | None = None
    runs: int = 0
    failures: int = 0
    skipped: int = 0
    last_success: int | None = None
    before: int = 0


class More(msgspec.Struct, omit_defaults=True):
    """What only some rows have, in the column `more`. A moment is a pair (basis, microseconds)."""

    until: tuple[int, int] | None = None
    """`max_wait`'s bound."""
    nominal: tuple[int, int] | None = None
    """The first due moment, where a retry has moved the row away from it."""
    error: str | None = None
    trace: str | None = None
    result: Any = None
    progress: tuple[Any, ...] | None = None
    log: tuple[str, ...] = ()
    timed_out: bool = False
    series: StoredSeries | None = None


RESULT_LENGTH = 10_000
"""Characters kept of a result that has no JSON form."""


def _shown(result: object) -> str:
    try:
        return repr(result)[:RESULT_LENGTH]
    except Exception:
        return f"a {type(result).__name__}, which could not be stored"


_encode = msgspec.json.Encoder(enc_hook=_shown).encode
_more = msgspec.json.Decoder(More)
_tags = msgspec.json.Decoder(tuple[str, ...])
NONE = More()


def read_more(text: str | None) -> More:
    """The column `more`; whatever stands there, a row can be told of."""
    try:
        return NONE if text is None else _more.decode(text)
    except (msgspec.MsgspecError, ValueError) as error:
        return More(error=f"what was kept with the job cannot be read: {error}")


def write_more(more: More) -> str | None:
    """For the column `more`. A result that has no JSON form becomes its repr; text that is no UTF-8 (of a file's name, say) is escaped."""
    try:
        if more == NONE:
            return None
        text = _encode(more).decode()
        _more.decode(text)
    except Exception:  # an application's own values can do anything when they are looked at
        return _encode(_plain(more)).decode()
    return text


def without_nominal(text: str | None) -> str | None:
    """The column `more` of a row that gets another due moment."""
    if text is None:
        return None
    more = read_more(text)
    more.nominal = None
    return write_more(more)


def _plain(more: More) -> More:
    return msgspec.structs.replace(
        more,
        error=None if more.error is None else clean(more.error),
        trace=None if more.trace is None else clean(more.trace),
        log=tuple(map(clean, more.log)),
        progress=None if more.progress is None else tuple(part if type(part) is int else clean(part) for part in more.progress),
        result=None if more.result is None else clean(_shown(more.result)),
    )


def shown_run(context: JobContext) -> tuple[str, str]:
    """How far a run is, and its log, as JSON."""
    progress = context.progress_now
    parts = None if progress is None else tuple(part if type(part) in (int, float) else clean(part) for part in progress)
    return _encode(parts).decode(), _encode(tuple(map(clean, tuple(context.lines)))).decode()


def clean(value: object) -> str:
    """As text that can be stored."""
    text = value if isinstance(value, str) else _shown(value)
    return text.encode("utf-8", "backslashreplace").decode()


def values_of(row: Row, kind: int, data: bytes, moments: Moments) -> Record:
    """The values of a new row, in the order of `file.insert`. Rounds `row.due` to what the file will say."""
    terms = row.terms
    created = round((row.created + moments.offset()) * SECOND)
    if terms is not None and terms.wall is not None:
        basis, due = WALL, round(terms.wall * SECOND)
    else:
        basis, due = moments.basis, micros(row.due)
        row.due = due / SECOND
    tags = more = None
    if terms is not None:
        tags = _encode(terms.tags).decode() if terms.tags else None
        if terms.until is not None or terms.series is not None:
            more = write_more(
                More(
                    until=None if terms.until is None else (moments.basis, micros(terms.until)),
                    nominal=None if terms.nominal is None else (moments.basis, micros(terms.nominal)),
                    series=None if terms.series is None else stored_series(terms.series, moments),
                )
            )
    delay = None if row.delay is None else micros(row.delay)
    return row.id, kind, data.decode(), row.key, row.priority, basis, due, delay, created, tags, more


def as_promised(record: Record, file: StoreFile) -> Record:
    """The row of a job that this process's touches have put off, with the moment that they promised."""
    if record[TOUCHER] != file.number:
        return record
    return (*record[:DUE], file.promises.exact(record[ID], record[BASIS], record[DUE]), *record[DUE + 1 :])


def row_of(record: Record, kind: Kind, job: IJob | None, moments: Moments) -> Row:
    """A row for a runner, or to tell of."""
    id, _, _, key, priority, state, basis, due, delay, attempt, created, _, tags, text, _, _, ended, _ = record
    terms = Terms()
    row = Row(job, moments.to_elapsed(basis, due), None if delay is None else delay / SECOND, key, priority, terms, kind)
    row.id, row.attempt, row.state = id, attempt, STATES[state]
    offset = moments.offset()
    terms.created = created / SECOND - offset
    if tags is not None:
        terms.tags = _tags.decode(tags)
    if basis == WALL:
        terms.wall = due / SECOND
    if ended is not None:
        row.ended = ended / SECOND - offset
    if text is not None:
        more = read_more(text)
        if more.until is not None:
            terms.until = moments.to_elapsed(*more.until)
        if more.nominal is not None:
            terms.nominal = moments.to_elapsed(*more.nominal)
            terms.date = more.nominal[1] / SECOND if more.nominal[0] == WALL else None
        if more.series is not None:
            series = terms.series = _series_of(more.series, row.due if terms.nominal is None else terms.nominal, moments)
            if terms.date is not None and series.anchor is not None and isinstance(series.trigger, Every):
                terms.nominal = series.anchor / SECOND  # the run is for that date; its moment is the first of the grid
    return row


def stored_series(series: Series, moments: Moments) -> StoredSeries:
    """As it is kept in `More`."""
    trigger = series.trigger
    return StoredSeries(
        trigger if isinstance(trigger, codec.StoredTrigger) else codec.encode_trigger(trigger),
        None if series.anchor is None else (moments.basis, series.anchor),
        series.runs, series.failures, series.skipped,
        None if series.last_success is None else round(series.last_success * SECOND),
        series.before,
    )  # fmt: skip


def _series_of(stored: StoredSeries, nominal: float, moments: Moments) -> Series:
    """`nominal`: the elapsed moment that the row stands at. A trigger that cannot be made here stays in its stored form."""
    trigger: Any = stored.trigger
    with suppress(codec.UnreadableData):
        trigger = codec.decode_trigger(stored.trigger)
    anchor = None
    if stored.anchor is not None:
        basis, anchor = stored.anchor
        if basis != moments.basis:
            anchor = round(moments.to_elapsed(basis, anchor) * SECOND)
            if isinstance(trigger, Every):
                anchor = on_grid(trigger, anchor, nominal)  # both were rounded
    last = None if stored.last_success is None else stored.last_success / SECOND
    return Series(trigger, anchor, stored.runs, stored.failures, stored.skipped, last, stored.before)


def picture_of(record: Record, kinds: Kinds, moments: Moments, run: Row | None) -> ScheduledJob:
    """What users see. `run`: the row itself where this process runs it, which knows more than the file."""
    id, number, data, key, priority, code, basis, due, _, attempt, created, flags, tags, text, started, late, ended, _ = record
    name, kind = kinds.name_of(number), kinds.kind_of(number)
    state = STATES[code]
    job = None
    if kind is not None:
        try:
            job = codec.decode(kind, data)
        except codec.UnreadableData:
            kind = None
    more = read_more(text)
    series = None if more.series is None else _series_of(more.series, moments.to_elapsed(basis, due), moments)
    readable = kind is not None and (series is None or not isinstance(series.trigger, codec.StoredTrigger))
    if code in (schema.SCHEDULED, schema.PAUSED, schema.PARKED):
        state = State.UNRESOLVABLE if not readable else State.SCHEDULED if code == schema.PARKED else state
    context: JobContext | None = None
    asked = bool(flags & schema.CANCEL_ASKED) or more.timed_out
    if run is not None and run.attempt == attempt and code == schema.RUNNING:
        context = run.run
        if run.started is not None:
            started = round((run.started + moments.offset()) * SECOND)
            late = max(0, round((run.started - run.due) * SECOND))
    if context is not None:
        asked = asked or context.cancel_asked or context.timed_out
    return ScheduledJob(
        id, name if kind is None else kind.name, key, job, _date(moments.to_wall(basis, due)), state,
        attempt if series is None else attempt - series.before, priority,
        () if tags is None else _tags.decode(tags), _date(created / SECOND),
        started=None if started is None else _date(started / SECOND),
        ended=None if ended is None else _date(ended / SECOND),
        lateness=None if late is None or started is None else late / SECOND,
        error=more.error, trace=more.trace, result=more.result,
        progress=more.progress if context is None else context.progress_now,
        log=more.log if context is None else tuple(context.lines),
        cancel_requested=asked,
        timed_out=more.timed_out if context is None else context.timed_out,
        **({} if series is None else told_of(series)),
    )  # fmt: skip


def matches_text(job: ScheduledJob, data: str, text: str) -> bool:
    """Whether `text`, whatever the case of letters, is in the job's data, key or error."""
    return text.lower() in f"{job.job or data} {job.key or ''} {job.error or ''}".lower()


def _date(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
