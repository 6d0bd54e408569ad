"""What happened to jobs, as typed values, and the hub that tells listeners.

`timer.on(JobFailed, listener)` gets each `JobFailed`; `timer.on(Event, listener)` gets every event. Listeners run on a thread
of their own, one event after the other, under no lock: a slow one delays only the other listeners, and one that raises is logged
once per kind of error and goes on. Up to `BACKLOG` events wait; more are dropped, counted and told.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

import msgspec

from jobwheel.log import logger
from jobwheel.row import ScheduledJob

log = logger("jobwheel.events")

BACKLOG = 10_000


class Event(msgspec.Struct, frozen=True):
    """Something happened to `job`, which is a picture taken right after it."""

    job: ScheduledJob


class JobAdded(Event, frozen=True):
    """A job was added."""


class JobStarted(Event, frozen=True):
    """A job was claimed and goes to a worker."""


class JobSucceeded(Event, frozen=True):
    """`run` returned."""


class JobFailed(Event, frozen=True):
    """The last attempt raised or ran out of time; `job.error` and `job.trace` say how."""


class JobRetrying(Event, frozen=True):
    """An attempt raised, or asked for another one, which is due at `job.due`."""


class JobCancelled(Event, frozen=True):
    """A job was cancelled while it waited, or ended itself as cancelled."""


class JobMissed(Event, frozen=True):
    """A job was dropped for being later than its kind's `misfire_grace_time`."""


class JobInterrupted(Event, frozen=True):
    """The process that ran it is gone, and its kind does not run again after that."""


class JobTimedOut(Event, frozen=True):
    """A run is past its kind's `timeout`; it may still go on."""


class JobSkipped(Event, frozen=True):
    """Moments of a recurring job had no run: one went on, or was late, or it was paused, or nobody was there. `job.skipped` counts all."""

    count: int = 0
    """How many this time."""


class Fault(msgspec.Struct, frozen=True):
    """A part of the timer met an error and goes on; no event of a job."""

    error: BaseException
    where: str


E = TypeVar("E", bound=Event)
Listener = Callable[[Any], object]
ErrorHook = Callable[[BaseException, str], object]


class Hub:
    """Takes events from any thread and tells the listeners, and faults, which it tells the hooks of `on_error`.

    With nobody to be told nothing is made and nothing is kept.
    """

    def __init__(self, inline: bool = False) -> None:
        self._inline = inline
        self.listeners: tuple[tuple[type[Event], Listener], ...] = ()
        """With the types they listen to. Replaced, never changed; empty: nobody listens, which the hot paths ask first."""
        self._hooks: tuple[ErrorHook, ...] = ()  # replaced, never changed
        self._waiting: deque[Event | Fault] = deque()
        self._news: SimpleQueue[bool] = SimpleQueue()
        # Guards adding listeners and hooks, and the start of the thread, which comes with the first event. Reentrant for the sake of
        # signal handlers that add jobs.
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._told: Counter[tuple[type[BaseException], int]] = Counter()
        self.dropped = 0

    def on(self, event_type: type[E], listener: Callable[[E], object]) -> None:
        """From now on `listener` is called with each event of that type, subtypes included."""
        with self._lock:
            self.listeners = (*self.listeners, (event_type, listener))

    def on_error(self, hook: ErrorHook) -> None:
        """From now on `hook` is called with each fault: the error, and where it was met."""
        with self._lock:
            self._hooks = (*self._hooks, hook)

    def start(self) -> None:
        """Starts the thread if there is somebody for it to tell."""
        with self._lock:
            if self._thread is None and (self.listeners or self._hooks) and not self._inline:
                self._thread = thread = threading.Thread(target=self._live, name="jobwheel-events", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the process is at its limit, or ends: what waits is told when the next event finds a thread
                    self._thread = None

    def wants(self, event_type: type[Event]) -> bool:
        """True if someone listens to it; asked before the event, with its picture of the job, is made."""
        return any(issubclass(event_type, wanted) for wanted, _ in self.listeners)

    def fault(self, where: str, error: BaseException) -> None:
        """A part met an error and goes on: kept for the hooks, if there are any. As `emit` it may come from anywhere."""
        if self._hooks:
            self.emit(Fault(error, where))

    def emit(self, event: Event | Fault) -> None:
        """Keeps it for the listeners. Never blocks, never raises, and calls nobody: it may come from under a lock."""
        if len(self._waiting) >= BACKLOG:
            self.dropped += 1
            if self.dropped == 1:
                log.warning("listeners are %d events behind; events are dropped until they catch up, health() counts them", BACKLOG)
            return
        self._waiting.append(event)
        if not self._inline:
            self._news.put(True)
            if self._thread is None:
                self.start()

    def deliver(self) -> None:
        """Inline hubs only: tells what waits, in the calling thread, which holds no lock."""
        while self._inline and self._waiting:
            self._tell(self._waiting.popleft())

    def stop(self) -> None:
        """Lets the thread end once it has told what waits; the next event starts another one."""
        if self._thread is not None:
            self._news.put(False)

    def after_fork(self) -> None:
        """In a forked child: the thread and what waits for it are the parent's; the listeners stay."""
        self._lock = threading.RLock()
        self._waiting = deque()
        self._news = SimpleQueue()
        self._thread = None

    def _live(self) -> None:
        while self._news.get():
            self._tell(self._waiting.popleft())
        with self._lock:
            self._thread = None
        if self._waiting:  # an emitter counted on this thread a moment ago
            self.start()

    def _tell(self, event: Event | Fault) -> None:
        if isinstance(event, Fault):
            self._tell_fault(event)
            return
        for wanted, listener in self.listeners:
            if not isinstance(event, wanted):
                continue
            try:
                listener(event)
            except BaseException as error:
                if self._is_new(error, listener):
                    log.exception("a listener raised; it stays, and its next errors of this kind are only counted")
                    self.fault("listener", error)

    def _tell_fault(self, fault: Fault) -> None:
        for hook in self._hooks:
            try:
                hook(fault.error, fault.where)
            except BaseException as error:  # of the hook itself: told to no hook, lest it comes back for ever
                if self._is_new(error, hook):
                    log.exception("a hook of on_error raised; it stays, and its next errors of this kind are only counted")

    def _is_new(self, error: BaseException, raiser: Callable[..., object]) -> bool:
        which = (type(error), id(raiser))
        self._told[which] += 1
        return self._told[which] == 1
