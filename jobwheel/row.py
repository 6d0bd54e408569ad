"""One job's record inside jobwheel (`Row`), and the immutable picture of it that users get (`ScheduledJob`).

A row is what stores keep, rooms arm, dispatchers claim and runners run. Which thread may write which field is said per field.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from jobwheel.errors import StoreError
from jobwheel.state import ENDED, State

if TYPE_CHECKING:
    from jobwheel.job import IJob, JobContext
    from jobwheel.kind import Kind

SCHEDULED = State.SCHEDULED
HELD = 5.0
WAITS = frozenset({State.SCHEDULED, State.PAUSED, State.UNRESOLVABLE})


class Entry(Protocol):
    """What a waiting room holds: anything with a due moment. In memory mode the row itself."""

    due: float
    """Elapsed seconds. May grow at any time (lazy touch): the room looks again when the entry's old place comes up."""
    place: object
    """Belongs to the room that the entry is armed in; None before and after."""
    priority: int

    @property
    def id(self) -> int:
        """The job's; 0 for what is no job."""
        ...

    @property
    def kind(self) -> Kind | None:
        """The job's kind; None for what is no job."""
        ...


class Series(msgspec.Struct, frozen=True):
    """What the row of a recurring job has beside the moment that it waits for; replaced as a whole at the end of each run."""

    trigger: Any
    anchor: int | None = None
    """Of `every`: an elapsed moment of its grid in whole microseconds; None: the first run's, which is for a date still to come."""
    runs: int = 0
    failures: int = 0
    skipped: int = 0
    last_success: float | None = None
    """Epoch seconds."""
    before: int = 0
    """Attempts of all runs before the present one."""


class Terms:
    """What only some rows have: the wall-clock due moment, tags, a touch delay and its bound, a trigger."""

    __slots__ = ("created", "date", "nominal", "series", "tags", "touched", "until", "wall")

    def __init__(self) -> None:
        self.created: float | None = None
        """Elapsed moment of the add, of a row whose `due` is not that moment plus its delay any more, or never was."""
        self.nominal: float | None = None
        """The first due moment (elapsed), when a retry or a touch has moved `due` away from it."""
        self.tags: tuple[str, ...] = ()
        self.touched = 0.0
        """Elapsed moment from which the latest `touch` counted."""
        self.series: Series | None = None
        """Of a recurring job."""
        self.until: float | None = None
        """`max_wait`'s bound: the latest due moment (elapsed) that `touch` may set."""
        self.wall: float | None = None
        """Epoch seconds of a due moment on the wall clock; `due` is then derived from it and follows clock steps."""
        self.date: float | None = None
        """The same of a job whose next attempt is due some elapsed seconds after its first one: what it was scheduled for."""


class Row:
    """One job's record.

    Two slots are locks. The token is the row's own lock: the thread whose `del row.token` succeeds is its holder, alone may write `state`,
    `due`, `attempt` and `terms`, and ends by setting `token` again (the job still waits) or by leaving it deleted
    (it never waits again in this state). A thread that finds it gone looks at `state`: still SCHEDULED or PAUSED means
    that another one holds it for a few instructions. `keyed` is there while the row is the one its key leads to: whoever
    deletes it (the row's end, or a newer job that takes the key over) is the one that changes where the key leads.

    Deleting a slot is one C call, so under the GIL it succeeds for exactly one thread; it costs eight bytes and, unlike a
    contended `threading.Lock`, no queue of waiting threads.
    """

    __slots__ = (
        "attempt", "delay", "due", "ended", "id", "job", "key", "keyed", "kind", "place", "priority", "run", "started", "state",
        "terms", "token",
    )  # fmt: skip
    token: bool
    keyed: bool

    def __init__(
        self, job: IJob | None, due: float, delay: float | None, key: str | None, priority: int, terms: Terms | None, kind: Kind
    ) -> None:
        self.id = 0
        """Given by the store in `add`; grows with each add."""
        self.kind = kind
        self.job = job
        """None once the row has ended and can not be retried, and where its data cannot be read."""
        self.due = due
        self.delay = delay
        """Its own delay, by which `touch` re-arms it; None: added with a date, and `terms.created` says when."""
        self.key = key
        self.priority = priority
        self.terms = terms
        self.attempt = 0
        """Runs so far, the present one included."""
        self.state: State = SCHEDULED
        self.started: float | None = None
        """Elapsed moment at which the present or last run started. Written by the runner."""
        self.ended: float | None = None
        """Elapsed moment at which the last run was settled."""
        self.run: JobContext | None = None
        """What there is to say of the present or last run; None for the many of which there is nothing. See `context_of`."""
        self.place: object = None
        # No token and no keyed yet: the store gives them when the row is there for good.

    @property
    def series(self) -> Series | None:
        """What a recurring job has; None for any other."""
        return None if self.terms is None else self.terms.series

    @property
    def nth(self) -> int:
        """Number of the present or last attempt, from 1: of this run, where the job is recurring."""
        series = self.series
        return self.attempt if series is None else self.attempt - series.before

    @property
    def created(self) -> float:
        """Elapsed moment of the add. Not kept for most rows: it follows from what is, and a float each is worth saving."""
        terms = self.terms
        if terms is not None and terms.created is not None:
            return terms.created
        return self.due - (self.delay or 0.0)

    def keep_created(self, terms: Terms) -> None:
        """To be called, by the row's holder, before `due` moves away from the add plus the delay."""
        if terms.created is None:
            terms.created = self.due - (self.delay or 0.0)

    def take(self) -> bool:
        """Makes the caller the row's holder. False: the row does not wait (running or ended), so there is nothing to hold.

        Raises:
            StoreError: another call has held it for `HELD` seconds, where a few instructions are the rule: the caller is a signal
                handler that changes the very job that the call it interrupted was changing.
        """
        patience: float | None = None
        while True:
            try:
                del self.token
            except AttributeError:
                if self.state not in WAITS:
                    return False
                patience = patience or time.monotonic() + HELD
                if time.monotonic() > patience:
                    raise StoreError(f"job {self.id} is being changed by the call that this one interrupted; try again later") from None
                time.sleep(0)  # another holder is a few instructions from its end; let it have the GIL
            else:
                return True

    def __repr__(self) -> str:
        return f"<Row {self.id} {self.state} due={self.due:.3f}>"


class StoredRow(Row):
    """A row for a store on disk, with the job's data as it will be stored."""

    __slots__ = ("data",)
    data: bytes


class Ticket:
    """The entry of a job that is kept on disk: what a room and a dispatcher need of it, and the id by which the file knows it."""

    __slots__ = ("due", "id", "kind", "place", "priority", "wall")

    def __init__(self, id: int, due: float, priority: int, kind: Kind) -> None:
        self.id = id
        self.due = due
        self.priority = priority
        self.kind = kind
        self.place: object = None
        self.wall: float | None = None
        """Epoch seconds, of one that follows the wall clock."""

    def __repr__(self) -> str:
        return f"<Ticket {self.id} due={self.due:.3f}>"


class ScheduledJob(msgspec.Struct, frozen=True):
    """A job as it stood at one moment. It never changes; ask `timer.get(job.id)` for a newer picture.

    Times are aware datetimes in UTC. `error` is the last failed attempt's error as text ("ValueError: no such order"),
    until one ends well, or the reason given to `CancelJob`; `trace` its traceback. `lateness` is in seconds, of the present or last run.

    A recurring job is one job all its life: `due` is its next moment, `error`, `result` and the like are of its last run, and `runs`,
    `failures`, `skipped` count those that are over, those of them that failed, and the moments of its trigger that had none. With
    `overlap="parallel"` each run is a job of its own, which the series counts when it starts and whose end it does not hear of.
    """

    id: int
    kind: str
    key: str | None
    job: IJob | None
    due: datetime
    state: State
    attempt: int
    priority: int
    tags: tuple[str, ...]
    created: datetime
    started: datetime | None = None
    ended: datetime | None = None
    lateness: float | None = None
    error: str | None = None
    trace: str | None = None
    result: Any = None
    progress: tuple[int, int, str] | None = None
    log: tuple[str, ...] = ()
    cancel_requested: bool = False
    timed_out: bool = False
    trigger: Any = None
    runs: int = 0
    failures: int = 0
    skipped: int = 0
    last_success: datetime | None = None

    def __hash__(self) -> int:
        return hash(self.id)


_from_epoch = datetime.fromtimestamp


def snapshot(row: Row, offset: float) -> ScheduledJob:
    """The picture of `row` for users. `offset` is wall minus elapsed clock, in seconds."""
    terms = row.terms
    due, attempt = row.due + offset, row.attempt
    tags: tuple[str, ...] = ()
    series = None
    if terms is not None:
        tags, series = terms.tags, terms.series
        if terms.wall is not None:
            due = terms.wall
        if series is not None:
            attempt -= series.before
    started, run = row.started, row.run
    ended = row.ended if row.state in ENDED else None
    picture = ScheduledJob(
        row.id, row.kind.name, row.key, row.job, _from_epoch(due, UTC), row.state, attempt, row.priority, tags,
        _from_epoch(row.created + offset, UTC),
    ) if started is None and ended is None else ScheduledJob(
        row.id, row.kind.name, row.key, row.job, _from_epoch(due, UTC), row.state, attempt, row.priority, tags,
        _from_epoch(row.created + offset, UTC),
        started=None if started is None else _from_epoch(started + offset, UTC),
        ended=None if ended is None else _from_epoch(ended + offset, UTC),
        lateness=None if started is None else max(0.0, started - (row.due if run is None else run.due)),
    )  # fmt: skip
    if series is not None:
        picture = msgspec.structs.replace(picture, **told_of(series))
    if run is None:
        return picture
    return msgspec.structs.replace(
        picture, error=run.error, trace=run.trace, result=run.result, progress=run.progress_now, log=tuple(run.lines),
        cancel_requested=run.cancel_asked or run.timed_out, timed_out=run.timed_out,
    )  # fmt: skip


def told_of(series: Series) -> dict[str, Any]:
    """What a picture says of a recurring job. Its trigger is None where no code here knows it."""
    trigger = series.trigger if hasattr(series.trigger, "next_due") else None
    return {
        "trigger": trigger, "runs": series.runs, "failures": series.failures, "skipped": series.skipped,
        "last_success": None if series.last_success is None else _from_epoch(series.last_success, UTC),
    }  # fmt: skip
