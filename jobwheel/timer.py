"""TimerManager: the door. It checks what it is asked, passes it on to the store, and lets the waiting room know.

It knows the three contracts (store, waiting room, engine) and no member of them by name, and nothing of Flask or of containers.
Somewhat long, because it is the whole public face; each method is a few lines.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from jobwheel.after_commit import call_after_commit
from jobwheel.delay import seconds
from jobwheel.errors import BadType, BadValue, StoreError, UsageError, WaitTimeout
from jobwheel.events import ErrorHook, Event, Hub, JobAdded, JobCancelled, JobSkipped
from jobwheel.job import IJob
from jobwheel.kind import registered_kinds
from jobwheel.lifecycle import Lifecycle, Parts, Session
from jobwheel.log import logger
from jobwheel.order import Delay, Intake, check_ref, query, wall_seconds
from jobwheel.row import WAITS, Row, ScheduledJob, snapshot
from jobwheel.runner import Scope
from jobwheel.services import Services, as_services
from jobwheel.settings import Settings, fixed
from jobwheel.state import State
from jobwheel.stats import Health, Stats
from jobwheel.store import IfExists, Ref
from jobwheel.waits import Waits

if TYPE_CHECKING:
    from jobwheel.after_commit import AnySession

log = logger("jobwheel")

E = TypeVar("E", bound=Event)
MANY = 500
"""Jobs that `cancel_all` cancels in one step."""
POLL = 1.0
"""Seconds between two looks of `wait`, for the case that another process ends the job."""


class TimerManager:
    """Runs jobs later, or in the background. Safe from any number of threads; usually one for an application.

    Make it with `jobwheel.open_timer`. Adding, cancelling and asking work on a timer that was never started; jobs run only while
    it is started. A context manager: entering starts it, leaving shuts it down.

    Every call that needs the store, `start` too, may raise `StoreError` when the store fails; nothing was changed then (but where a disk
    fails in the middle of a sync: docs/guarantees.md). Only `cancel_all` and `run_now` are done in steps, and those before the failure
    stand. `health`, `on` and `shutdown` do not raise it.
    """

    def __init__(self, parts: Parts, settings: Settings, *, services: object = None, inline_events: bool = False) -> None:
        self.settings = settings = fixed(settings)
        self._clock = parts.clock
        self._elapsed = parts.clock.elapsed
        self._wall = parts.clock.wall
        self._services = found = as_services(services)
        self._hub = Hub(inline_events)
        self._waits = Waits()
        self._life = Lifecycle(parts, settings, found, self._hub, self._waits)
        isolating = settings if getattr(parts.engine, "by_itself", True) else None
        elsewhere = self._life.store.shared and settings.workers.threads == 0
        self._orders = Intake(parts.clock, found, self._life.store.durable, isolating, elsewhere)

    # --- adding ---

    def add_job(
        self,
        job: IJob,
        delay: Delay | None = None,
        *,
        at: datetime | None = None,
        trigger: Any = None,
        key: str | None = None,
        if_exists: IfExists = "replace",
        priority: int | None = None,
        tags: Iterable[str] = (),
        max_wait: Delay | None = None,
        after_commit: AnySession | None = None,
    ) -> ScheduledJob:
        """Schedules `job`; it starts at its due moment or after it, never before.

        Args:
            job: an instance of an `IJob` subclass.
            delay: seconds (int, float) or timedelta from now. Without `delay`, `at` and `trigger`, and with 0: as soon as a worker is free.
            at: an aware datetime; one in the past runs now, and its lateness counts from `at`. It follows steps of the wall clock.
            trigger: makes the job recurring: `every(...)`, `cron(...)`, or a `Trigger` of your own. Give it a key, and adding the same job
                again, at each start and in each process, changes nothing.
            key: at most one scheduled or paused job has it; by it `cancel`, `touch` and the rest find the job.
            if_exists: what to do when a job has the key. "replace": that one is cancelled; but if it is the same recurring job (equal kind,
                data and trigger) it stays, with its next due moment, its pause and its counters. "keep": that one stays and is returned.
                "error": `JobExists`. One that runs already is not stopped; "replace" only denies it further attempts.
            priority: larger first, where workers are scarce; default the kind's.
            tags: texts to find and cancel by.
            max_wait: seconds or timedelta; `touch` postpones the job no further than this long after now.
            after_commit: a SQLAlchemy session (`Session`, `scoped_session`; extra `sqlalchemy`): the job is added when the transaction
                that the session is in, or begins now, is committed, and never if that, or a savepoint around this call, is rolled back
                or closed. The delay counts from this call all the same.

        Returns:
            A picture of the job that now holds: the new one, or the old one with "keep". With `after_commit` a picture of what will be:
            its id is 0, since the store gives the id at the commit; by its key the job is found then, and not before (an ended one of
            that key may be).

        Raises:
            BadValue (a ValueError), BadType (a TypeError), UsageError: an argument is wrong; nothing was added.
            JobExists, TooManyPending, StoreError: nothing was added. With `after_commit` these come out of the commit, as one
                `StoreError` when all jobs of the transaction have been tried: the transaction is committed, the job is not stored.

        `after_commit` does not make one transaction of two files: a crash in the moment between the commit and the add loses the job.
        Where that matters, look through your own table at each start, and add what has no job with `if_exists="keep"`.
        """
        life = self._life
        if life.forked:
            self.start()
        row = self._orders.row(job, delay, at, trigger, key, if_exists, priority, tags, max_wait)
        if after_commit is not None:
            name = row.kind.name if key is None else f"{row.kind.name} with key {key!r}"
            call_after_commit(after_commit, partial(self._add_now, row, if_exists), name)
            return snapshot(row, self._life.store.offset())
        held, replaced = life.store.add(row, if_exists)
        return self._added(row, held, replaced)

    def _add_now(self, row: Row, if_exists: IfExists) -> None:
        """The add that waited for a commit."""
        held, replaced = self._use().store.add(row, if_exists)
        self._added(row, held, replaced)

    def add_jobs(self, jobs: Iterable[tuple[IJob, Delay | None] | Mapping[str, Any]]) -> list[ScheduledJob]:
        """Schedules many at once: all of them or, when it raises, none. Each is a pair (job, delay) or a dict with `add_job`'s names."""
        life = self._use()
        orders: list[tuple[Row, IfExists]] = []
        if not isinstance(jobs, Iterable):
            raise BadType(f"add_jobs({jobs!r:.80}): several orders, each a pair (job, delay) or a dict with the names of add_job")
        make = self._orders.row
        for number, order in enumerate(jobs):
            try:
                if type(order) is tuple and len(order) == 2:
                    orders.append((make(*order), "replace"))
                else:
                    names = _order(order)
                    orders.append((make(**names), names.get("if_exists", "replace")))
            except UsageError as error:
                raise type(error)(f"order number {number} of add_jobs: {error}; nothing was added") from error
        added = life.store.add_many(orders)
        return [self._added(row, held, replaced) for (row, _), (held, replaced) in zip(orders, added, strict=True)]

    def _added(self, row: Row, held: Row, replaced: Row | None) -> ScheduledJob:
        """The row exists: arm it, tell who wants to know, and picture it."""
        life = self._life
        if replaced is not None:
            life.disarm(replaced)
            self._tell_cancelled(replaced)
        if held is not row:
            return life.store.get(held.id) or snapshot(held, self._life.store.offset())
        picture = snapshot(row, self._life.store.offset())
        if self._hub.listeners and self._hub.wants(JobAdded):
            self._hub.emit(JobAdded(picture))  # before the arming, and so before the events of its run
            self._hub.deliver()
        life.arm(row)
        return picture

    # --- changing ---

    def cancel(self, ref: Ref) -> bool:
        """True: the job waited, and now it will never run. False: it is unknown or ended, or it runs, or is about to.

        A running one is asked to stop (`ctx.cancel_requested`) and gets no further attempt.
        """
        life = self._life
        if life.forked:
            self.start()
        row = life.store.cancel(ref if type(ref) is str else check_ref(ref))
        if row is None:
            return False
        life.disarm(row)
        self._tell_cancelled(row)
        return True

    def cancel_all(self, *, tag: str | None = None, kind: str | type[IJob] | None = None) -> int:
        """Cancels every waiting job with this tag and of this kind (None: any); how many it were. Running ones are left alone."""
        life = self._use()
        ids = life.store.ids(query(WAITS, kind, tag))
        count = 0
        for start in range(0, len(ids), MANY):
            for row in life.store.cancel_many(ids[start : start + MANY]):
                life.disarm(row)
                self._tell_cancelled(row)
                count += 1
        return count

    def touch(self, ref: Ref, delay: Delay | None = None) -> bool:
        """Puts a waiting job off to now + its own delay (or `delay`), at most to its `max_wait`. False: it does not wait any more.

        A started, ended or cancelled job is never brought back. A paused job stays paused, with the new due moment. In a file touches of
        one job are written at most about once a second; if this process dies, the job may be 1.25 seconds late, and is never early.

        Raises:
            BadValue: no `delay` for a job that has none of its own: added with `at`, recurring, or paused.
        """
        life = self._life
        if life.forked:
            self.start()
        if delay is not None:
            delay = seconds(delay)
        touched = life.store.touch(ref if type(ref) is str else check_ref(ref), delay)
        if touched is None:
            return False
        if touched[1]:
            life.arm(touched[0])
        return True

    def reschedule(self, ref: Ref, delay: Delay | None = None, *, at: datetime | None = None) -> bool:
        """Gives a waiting job another due moment, earlier or later. False: it does not wait any more.

        Of a recurring job the next run is moved, and those after it are not; moments that this passes over are not counted as skipped.
        """
        if (delay is None) == (at is None):
            raise BadValue("reschedule: give either delay or at=")
        now = self._elapsed()
        if at is None:
            assert delay is not None
            return self._move(ref, now + seconds(delay), None)
        wall = wall_seconds(at, self._wall())
        return self._move(ref, now + wall - self._wall(), wall)

    def run_now(self, ref: Ref) -> bool:
        """Lets a waiting job run as soon as a worker is free; a paused one is resumed for it. False: it does not wait.

        For a recurring job this is a run more: its next moment after that is the one that it had been, if that is still to come.
        """
        resumed = self.resume(ref)
        return self._move(ref, self._elapsed(), None) or resumed  # between the two it may have been found due and begun

    def _move(self, ref: Ref, due: float, wall: float | None) -> bool:
        row = self._use().store.reschedule(check_ref(ref), due, wall)
        if row is not None and row.state is State.SCHEDULED:
            self._life.arm(row)
        return row is not None

    def retry(self, ref: Ref) -> bool:
        """Lets a failed, missed or interrupted job run once more, now. False: it is none of these, or another job has its key."""
        row = self._use().store.retry(check_ref(ref))
        if row is None:
            return False
        self._life.arm(row)
        return True

    def pause(self, ref: Ref) -> bool:
        """Holds a scheduled job back until `resume`. False: it is not scheduled."""
        row = self._use().store.pause(check_ref(ref))
        if row is None:
            return False
        self._life.disarm(row)
        if row.state is State.SCHEDULED:
            self._life.arm(row)  # a resume came between the two lines above, and its arming before our disarming
        return True

    def resume(self, ref: Ref) -> bool:
        """Lets a paused job wait for its due moment again; one that has passed means now. False: it is not paused.

        A recurring job goes on with its next moment: those that passed in the pause are skipped.
        """
        store, wanted = self._use().store, self._hub.wants(JobSkipped)
        before = store.get(check_ref(ref)) if wanted else None
        row = store.resume(check_ref(ref))
        if row is None:
            return False
        if before is not None and row.series is not None and (skipped := row.series.skipped - before.skipped) > 0:
            self._hub.emit(JobSkipped(snapshot(row, store.offset()), skipped))
            self._hub.deliver()
        self._life.arm(row)
        return True

    def pause_all(self) -> None:
        """Nothing is started in this process until `resume_all`; what falls due waits here. Running jobs go on.

        Other processes on the same file go on, and run what is due.
        """
        self._use().set_paused(True)

    def resume_all(self) -> None:
        """Ends `pause_all`; what fell due meanwhile runs now."""
        self._use().set_paused(False)

    # --- asking ---

    def get(self, ref: Ref) -> ScheduledJob | None:
        """A picture of the job as it is now, ended ones too while history keeps them; None if it is unknown."""
        return self._use().store.get(check_ref(ref))

    def find(
        self,
        *,
        state: State | str | Iterable[State | str] | None = None,
        kind: str | type[IJob] | None = None,
        tag: str | None = None,
        key: str | None = None,
        text: str | None = None,
        after: ScheduledJob | int | None = None,
        limit: int = 100,
    ) -> list[ScheduledJob]:
        """Jobs that match all that is given, in order of id; the next page is `find(..., after=page[-1])`.

        `text` is looked for in the job's data, its key and its error, whatever the case of letters. `limit` has no upper bound.
        """
        return self._use().store.find(query(state, kind, tag, key, text, after, limit))

    def wait(self, ref: Ref, timeout: float | None = None) -> ScheduledJob:
        """Waits until the job has ended and gives its last picture; if another process ends it, within about a second of that.

        Raises:
            WaitTimeout (a TimeoutError): it has not ended within `timeout` seconds.
            UsageError: called inside a job, where it could wait for itself for ever; no such job; or nothing runs jobs here.
        """
        session = self._use().session
        if session is not None and session.engine.inside_run():
            raise UsageError("wait() inside a job would hold a worker that the other job may need; let that job add the next one instead")
        limit = None if timeout is None else time.monotonic() + seconds(timeout, "timeout")
        job = self.get(ref)
        if job is None:
            raise UsageError(f"wait({ref!r:.80}): there is no such job, or history has forgotten it (store.keep, store.keep_days)")
        with self._waits.waiting_for(job.id) as ended:
            return self._wait_for(job.id, ended, limit)

    def _wait_for(self, id: int, ended: threading.Event, limit: float | None) -> ScheduledJob:
        last: ScheduledJob | None = None
        while True:
            job = self._life.store.get(id)
            if job is None and last is not None:
                raise UsageError(f"wait: job {id} ended, and history has forgotten it already (store.keep is too small)")
            if job is not None and job.state.ended:
                return job
            last = job or last
            session = self._life.session
            if session is not None and not session.engine.by_itself:
                raise UsageError(f"wait: job {id} waits for the clock of manual_timer to be moved, and this thread would not move it")
            if limit is None and self._life.session is None and not self._life.store.shared:
                raise UsageError(f"wait: job {id} waits in a timer that is not started, so it would wait for ever; call start()")
            left = POLL if limit is None else min(POLL, limit - time.monotonic())
            if left <= 0:
                raise WaitTimeout(f"job {id} is still {job.state if job else 'unknown'} after the timeout; it goes on")
            ended.wait(left)

    def stats(self) -> Stats:
        """Counts, taken one after the other: those of the store, of all processes, and those of this process; see `Stats`."""
        life = self._use()
        counts = life.store.counts()
        ended = {state.value: count for state, count in counts.ended.items()}
        session = life.session
        if session is None:
            return Stats(counts.scheduled, counts.paused, counts.running, counts.unresolvable, **ended)
        engine = session.engine.health()
        return Stats(
            counts.scheduled, counts.paused, counts.running, counts.unresolvable, **ended,
            overdue=len(session.dispatcher.backlog) + len(session.dispatcher.overdue),
            threads=engine.threads, busy=engine.busy, queued=engine.queued, hung=engine.hung,
        )  # fmt: skip

    def health(self) -> Health:
        """Whether the timer does its work; `problems` says in words what is wrong."""
        try:
            return self._use().health(self._elapsed(), self._hub.dropped)
        except StoreError as error:  # in a forked child, which would start here
            return Health((f"the store fails: {error}",))

    def on(self, event_type: type[E], listener: Callable[[E], object]) -> None:
        """From now on `listener` is called with each event of this type and its subtypes, on a thread of the listeners' own.

        It hears of what this process adds, cancels and runs; what other processes on the same file do, it does not hear.
        """
        if not (isinstance(event_type, type) and issubclass(event_type, Event)):
            raise BadType(f"on({event_type!r}, ...): a class of jobwheel.events, for example events.JobFailed, or events.Event for all")
        if not callable(listener):
            raise BadType(f"on(..., {listener!r}): the listener is called with the event, so it must be callable")
        self._hub.on(event_type, listener)

    def on_error(self, hook: ErrorHook) -> None:
        """From now on `hook(error, where)` is called with each error that the timer's own threads and parts meet and survive.

            timer.on_error(lambda error, where: sentry_sdk.capture_exception(error))

        `where` is "ticker", "keeper", "watch", "worker" (outside of any job), "loop" (a job stopped the event loop of coroutine jobs),
        "store" (it fails: once until it works again) or "listener" (one of `on` raised). It is called as often as the error is logged:
        what repeats is told once. A failed job is not among them; `on(events.JobFailed, ...)` hears of that.

        The hook runs on the thread of the listeners, under no lock, and so it may be slow, call the timer, or raise, which is logged once
        for each kind of error and told to no hook. It waits for its turn behind at most 10 000 events; beyond these it is dropped, and
        counted in `health`. With `manual_timer` it runs in the calling thread.
        """
        if not callable(hook):
            raise BadType(f"on_error({hook!r:.80}): the hook is called with the error and where it was met, so it must be callable")
        self._hub.on_error(hook)

    # --- running ---

    def start(self) -> None:
        """Starts the threads; jobs run from here on. Does nothing if it is started.

        Raises:
            UsageError: a job kind of the modules in `jobs` asks for a service that is not there, or no thread could be started.
        """
        for kind in registered_kinds():
            module = kind.job_class.__module__
            if any(module == own or module.startswith(own + ".") for own in self.settings.jobs):
                self._orders.check_services(kind)
        if self._life.start():
            kept = "" if self._life.store.durable else "; jobs are kept in memory and end with this process"
            log.info("jobwheel started (%s, %s)%s", self.settings.backend, self.settings.store.kind, kept)

    def shutdown(self, timeout: Delay = 5.0) -> list[int]:
        """Stops: nothing new is started, what was claimed and not started waits again, running jobs get `timeout` seconds to end.

        Returns:
            The ids of jobs that still run, sorted. They go on and are settled when they end. From inside a job it returns at once.
        """
        left = self._life.shutdown(seconds(timeout, "timeout"))
        if left:
            log.warning("jobwheel stopped while %d jobs still run: %s", len(left), ", ".join(map(str, left)))
        return left

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shutdown()

    @property
    def started(self) -> bool:
        """True between `start` and `shutdown`."""
        return self._life.session is not None

    @property
    def session(self) -> Session | None:
        """The parts that live while it is started; for `jobwheel.testing` and for pictures of the inside."""
        return self._life.session

    @property
    def services(self) -> Services:
        """What its jobs may ask for, by name."""
        return self._services

    @property
    def scope(self) -> Scope | None:
        """A callable that is given each run's `JobContext` and gives a context manager, entered around the run; None for none.

        `jobwheel.flask` sets it to push the app context.
        """
        return self._life.scope

    @scope.setter
    def scope(self, scope: Scope | None) -> None:
        self._life.set_scope(scope)

    def _use(self) -> Lifecycle:
        """Every use passes here, so that a forked child of a started timer starts at its first one."""
        if self._life.forked:
            self.start()
        return self._life

    def _tell_cancelled(self, row: Row) -> None:
        if self._waits.ids:
            self._waits.tell(row.id)
        if self._hub.listeners and self._hub.wants(JobCancelled):
            store = self._life.store
            self._hub.emit(JobCancelled((store.get(row.id) if store.durable else None) or snapshot(row, store.offset())))
            self._hub.deliver()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # dependency-injector copies what it is given; there must be one timer all the same.
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a TimerManager is not picklable: it holds threads. Let each process make its own with open_timer()")


ORDER_NAMES = ("job", "delay", "at", "trigger", "key", "if_exists", "priority", "tags", "max_wait")


def _order(order: Any) -> dict[str, Any]:
    """One order of `add_jobs` by the names of `add_job`."""
    if isinstance(order, Mapping):
        if "after_commit" in order:
            raise BadType("after_commit= is for add_job alone: add_jobs is a transaction of its own")
        unknown = sorted(set(order) - set(ORDER_NAMES), key=str)
        if unknown or "job" not in order:
            raise BadType(f"{order!r:.120}: a dict with 'job' and any other of {', '.join(ORDER_NAMES[1:])}")
        return dict(order)
    if isinstance(order, tuple) and len(order) == 2:
        return {"job": order[0], "delay": order[1]}
    raise BadType(f"{order!r:.120}: a pair (job, delay), or a dict with the names of add_job")


__all__ = ["Parts", "TimerManager"]
