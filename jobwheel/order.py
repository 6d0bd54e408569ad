"""From the arguments of `add_job` to a row: every check at the caller's line, before anything exists."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, NoReturn

from jobwheel.clock import Anchor, Clock
from jobwheel.codec import storable, storable_trigger
from jobwheel.delay import LONGEST, seconds
from jobwheel.errors import BadType, BadValue, UsageError
from jobwheel.isolation import check_isolated, isolated
from jobwheel.job import IJob
from jobwheel.kind import Kind, check_priority
from jobwheel.log import logger
from jobwheel.recurring import first, late
from jobwheel.row import Row, ScheduledJob, StoredRow, Terms
from jobwheel.services import Services
from jobwheel.settings import Settings
from jobwheel.state import State
from jobwheel.store import Query, Ref

log = logger("jobwheel")

IF_EXISTS = ("replace", "keep", "error")
Delay = float | timedelta


class Intake:
    """Makes rows for one timer. It remembers the job classes whose services it has found, so each is looked at once.

    `durable`: the rows are for a store on disk, so the data of each job must have a stored form. `isolating`: the settings, where the
    engine runs kinds in child processes, to which their data goes in that form too. `elsewhere`: other processes run the jobs, and have
    the services.
    """

    def __init__(
        self, clock: Clock, services: Services, durable: bool = False, isolating: Settings | None = None, elsewhere: bool = False
    ) -> None:
        self._elapsed = clock.elapsed
        self._wall = clock.wall
        self._services = services
        self._anchor = Anchor(clock)
        self._known: dict[type, Kind] = {}
        self._durable = durable
        self._isolating = isolating
        self._elsewhere = elsewhere
        self._warned: set[str] = set()

    def row(
        self,
        job: IJob,
        delay: Delay | None = None,
        at: datetime | None = None,
        trigger: Any = None,
        key: str | None = None,
        if_exists: str = "replace",
        priority: int | None = None,
        tags: Iterable[str] = (),
        max_wait: Delay | None = None,
    ) -> Row:
        """A row for these arguments of `TimerManager.add_job`; see there for what they mean and what is raised."""
        kind = self._known.get(job.__class__) or self._meet(job)
        if key is not None and (type(key) is not str or not key or "\0" in key):
            key = _checked_key(key)
        if if_exists not in IF_EXISTS:
            raise BadValue(f"if_exists={if_exists!r}: 'replace', 'keep' or 'error'")
        if priority is None:
            priority = kind.options.priority
        else:
            check_priority(priority)
        terms = None
        if tags != ():
            terms = Terms()
            terms.tags = _checked_tags(tags)
        now = self._elapsed()
        own: float | None
        if at is not None or trigger is not None:
            terms = terms or Terms()
            terms.created = now
            own, due = None, self._at(delay, at, trigger, terms, now)
        elif delay is None:
            own, due = 0.0, now
        # The two commonest forms skip the call; NaN and infinity fail the comparison and are refused by it.
        elif (type(delay) is float or type(delay) is int) and 0 <= delay <= LONGEST:
            own, due = delay, now + delay
        else:
            own = seconds(delay)
            due = now + own
        if max_wait is not None:
            terms = terms or Terms()
            terms.until = self._bound(now, due, max_wait, terms)
        if not self._durable:
            return Row(job, due, own, key, priority, terms, kind)
        return self._stored(StoredRow(job, due, own, key, priority, terms, kind), job)

    def _stored(self, row: StoredRow, job: IJob) -> Row:
        recurs = row.series is not None
        row.data = storable(job, recurs)
        if recurs and row.key is None and row.kind.name not in self._warned:
            self._warned.add(row.kind.name)
            log.warning(
                "a recurring job of kind %s was added without key=: each start, and each process, adds another one. With a key, adding it "
                "again changes nothing",
                row.kind.name,
            )  # fmt: skip
        return row

    def _at(self, delay: Delay | None, at: datetime | None, trigger: Any, terms: Terms, now: float) -> float:
        if sum(given is not None for given in (delay, at, trigger)) > 1:
            raise BadValue("give one of delay, at= and trigger=, not several: they are three ways to say when")
        if at is not None:
            terms.wall = wall_seconds(at, self._wall())
            return terms.wall - self._anchor.offset()
        if self._durable:
            storable_trigger(trigger)
        try:
            due, terms.wall, terms.series = first(trigger, now, now + self._anchor.offset())
        except ValueError as error:
            if isinstance(error, UsageError):
                raise
            raise BadValue(f"trigger={trigger!r:.80}: it has no moment after now, so the job would never run") from error
        wait = late(trigger) if terms.wall is None else 0.0
        if wait:
            terms.nominal = due
        return due + wait

    def _bound(self, now: float, due: float, max_wait: Delay, terms: Terms) -> float:
        longest = seconds(max_wait, "max_wait")
        if terms.wall is not None or terms.series is not None:
            raise BadValue("max_wait= bounds how far touch() may postpone a job with a delay; it has no meaning with at= or trigger=")
        if now + longest < due:
            raise BadValue(f"max_wait={max_wait!r} is shorter than the delay: raise one, or lower the other")
        return now + longest

    def _meet(self, job: Any) -> Kind:
        """The kind of a class seen for the first time, once its services are found; of one whose runs are in child processes each time."""
        kind = kind_of(job)
        self.check_services(kind)
        if self._isolating is None or not isolated(kind, self._isolating.workers.engine):
            self._known[job.__class__] = kind
        elif not self._durable:
            storable(job)
        return kind

    def check_services(self, kind: Kind) -> None:
        """Raises `UsageError` if the container lacks a service that `run` of this kind asks for, or if no child process could run it."""
        if self._elsewhere:
            return
        if self._isolating is not None and isolated(kind, self._isolating.workers.engine):
            check_isolated(kind, self._isolating)
            return
        missing = self._services.missing(kind.call.services)
        if missing:
            there = ", ".join(sorted(self._services.names())) or "nothing (no services= was given, and no setting names any)"
            raise UsageError(
                f"{kind.name}: {kind.job_class.__qualname__}.run needs {', '.join(map(repr, missing))}, and the services have: {there}; "
                f"add it there, or give the parameter a default if the job can do without"
            )


def kind_of(job: Any) -> Kind:
    """The kind of a job instance. Raises `BadType` for anything else: a class, a function, an object of no job class."""
    if isinstance(job, type) and issubclass(job, IJob):
        raise BadType(f"{job.__qualname__} is the class; add an instance of it: {job.__qualname__}(...)")
    if not isinstance(job, IJob):
        raise BadType(f"a job is an instance of a subclass of jobwheel.IJob, not {type(job).__name__} ({job!r:.80})")
    return job.jobwheel_kind


def wall_seconds(at: Any, now: float) -> float:
    """Epoch seconds of an aware datetime; `now` is the present moment in the same.

    Raises:
        BadType: not a datetime.
        BadValue: naive, or over 100 years away.
    """
    if not isinstance(at, datetime):
        raise BadType(f"at={at!r}: an aware datetime, not {type(at).__name__}; for a wait give delay")
    if at.utcoffset() is None:
        raise BadValue(
            f"at={at!r} has no time zone, so it names no moment; "
            "use datetime.now(UTC) + ..., or at.replace(tzinfo=ZoneInfo('Europe/Berlin'))"
        )
    wall = at.timestamp()
    if abs(wall - now) > LONGEST:
        raise BadValue(f"at={at!r} is over 100 years away, which is longer than any job is kept")
    return wall


def check_ref(ref: Any) -> Ref:
    """`ref` if it can name a job. Raises `BadType` otherwise."""
    if isinstance(ref, str):
        return str.__str__(ref)  # as for a key
    if isinstance(ref, ScheduledJob) or (isinstance(ref, int) and not isinstance(ref, bool)):
        return ref
    raise BadType(f"{ref!r:.80} names no job: give what add_job returned, its id (int) or its key (str)")


def query(
    state: State | str | Iterable[State | str] | None,
    kind: str | type[IJob] | None,
    tag: str | None,
    key: str | None = None,
    text: str | None = None,
    after: ScheduledJob | int | None = None,
    limit: int = 100,
) -> Query:
    """The arguments of `find`, checked."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise BadValue(f"limit={limit!r}: a whole number from 1 on")
    states = None
    if state is not None:
        try:
            states = frozenset(State(one) for one in ((state,) if isinstance(state, str) else state))
        except (ValueError, TypeError):
            raise BadValue(f"state={state!r}: of {', '.join(State)}") from None
    if isinstance(kind, type) and issubclass(kind, IJob):
        kind = kind.jobwheel_kind.name
    for name, value in (("kind", kind), ("tag", tag), ("key", key), ("text", text)):
        if value is not None and not isinstance(value, str):
            raise BadType(f"{name}={value!r:.80}: a text{', or a job class' if name == 'kind' else ''}; None means any")
    if isinstance(after, ScheduledJob):
        after = after.id
    if after is not None and (isinstance(after, bool) or not isinstance(after, int)):
        raise BadType(f"after={after!r:.80}: the last job of the page before, or its id")
    return Query(states, kind, tag, key, text, after or 0, limit)


def _checked_key(key: Any) -> str:
    if not isinstance(key, str):
        raise BadType(f"key={key!r}: a text, for example f'order:{{order.id}}', not {type(key).__name__}")
    if not key or "\0" in key:
        raise BadValue(f"key={key!r}: it must not be empty nor hold a NUL character")
    # A subclass may bring its own __hash__ and __eq__, which would make dictionary operations on it run Python code.
    return str.__str__(key)


def _checked_tags(tags: Any) -> tuple[str, ...]:
    if isinstance(tags, str):
        _refuse_tags(tags)
    try:
        checked = tuple(tags)
    except TypeError:
        _refuse_tags(tags)
    if not all(isinstance(tag, str) and tag and "\0" not in tag for tag in checked):
        _refuse_tags(tags)
    return checked


def _refuse_tags(tags: Any) -> NoReturn:
    raise BadType(f"tags={tags!r}: several texts, none of them empty: tags=['user:3']")
