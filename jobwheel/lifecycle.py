"""Start, shutdown, fork and process exit of one timer: which parts live now, and in which order they come and go.

Promises: `start` and `shutdown` are idempotent, may come from any thread and from inside a job, and end within their limits; a
timer that was shut down can be started again; after a fork the child has a store, a waiting room and threads of its own or none.
Relies on: one `Session` of parts per start, so that a hung worker of an old session can end in peace beside a new one.

`_life` guards the exchange of sessions and is not held while anything is waited for. A start publishes its session and then reads the
store's window; an adder first adds to the store and then reads the session: one of the two arms the row, and twice does no harm.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf

from jobwheel.clock import Clock
from jobwheel.dispatcher import Dispatcher
from jobwheel.engine import Desk, Engine
from jobwheel.errors import StoreError
from jobwheel.events import Hub
from jobwheel.isolation import may_start
from jobwheel.keeper import HORIZON, Keeper, KeeperThread
from jobwheel.log import logger
from jobwheel.row import Entry, Row
from jobwheel.runner import Runner, Scope
from jobwheel.services import Services
from jobwheel.settings import Settings
from jobwheel.stats import Health
from jobwheel.store import Counts, Store
from jobwheel.waiting import WaitingRoom
from jobwheel.waits import Waits

log = logger("jobwheel")

LAG = 3.0
"""Seconds behind from which the waiting room's thread counts as ill."""
HOW_TO_START = "call start(), or give it to jobwheel.flask.JobWheel"
ONLY_ADDS = "and this timer only adds (workers.threads is 0)"
LATENESS = 10.0
"""Seconds a due job may wait for a worker before health says so."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The clock and the members of the three seams that a timer is made of; the last three are classes, or anything that makes them."""

    clock: Clock
    store: Callable[[Clock, Settings], Store]
    room: Callable[[Clock, Settings], WaitingRoom]
    engine: Callable[[Clock, Settings, Runner, Desk], Engine]


@dataclass(frozen=True, slots=True)
class Session:
    """The parts that live from one start to the next shutdown."""

    room: WaitingRoom
    dispatcher: Dispatcher
    engine: Engine
    runner: Runner
    keeper: Keeper
    thread: KeeperThread | None
    """Where the store is shared and the engine runs by itself; but not in a timer that only adds."""
    shared: bool
    only_adds: bool
    """Others on the store run what is due (`threads: 0`). Nothing comes into room and lanes: nobody looks ahead, so an add arms nothing."""

    def begin_looking(self) -> None:
        """Starts the keeper's thread. Not before the session is the timer's: what is found is armed in the session that there is."""
        if self.thread is not None:
            self.thread.start()

    def undo(self) -> None:
        """Ends what a start that fails has begun."""
        self.stop_waking(0.0)
        self.engine.stop(0.0)

    def stop_waking(self, timeout: float) -> None:
        """Nothing more comes out of the room or the store once it returns, unless a thread hangs for longer than `timeout` seconds."""
        self.keeper.stopped = True
        if self.thread is not None:
            self.thread.stop(timeout)
        self.room.stop()
        self.dispatcher.stop()

    def health(self, paused: bool, counts: Counts, now: float, dropped: int) -> Health:
        """How these parts are at the elapsed moment `now`, with so many jobs."""
        room, engine = self.room.health(), self.engine.health()
        oldest = self.dispatcher.oldest() if counts.scheduled else None  # else it is of a job that was cancelled meanwhile
        lateness = 0.0 if oldest is None else max(0.0, now - oldest)
        problems = [problem for problem in (room.problem, engine.problem) if problem is not None]
        if room.lag > LAG:
            problems.append(f"the waiting room's thread is {room.lag:.1f} s behind: it is starved or hangs")
        if lateness > LATENESS and not paused:
            problems.append(f"a due job has waited {lateness:.1f} s for a free worker: more workers.threads, or shorter jobs")
        if self.thread is not None and not self.thread.alive:
            problems.append("the keeper thread has ended: what other processes leave behind is not seen to")
        if self.dispatcher.store_error is not None:
            problems.append(f"the store fails: {self.dispatcher.store_error}")
        if counts.unresolvable:
            problems.append(unresolvable(counts))
        if dropped:
            problems.append(f"{dropped} events were dropped: a listener is too slow")
        return Health(tuple(problems), True, paused, room.lag, lateness, room.errors + self.dispatcher.faults, dropped, counts.unresolvable)


def unresolvable(counts: Counts) -> str:
    """The problem of jobs that no code here can run."""
    return (
        f"{counts.unresolvable} jobs cannot be run here: their kinds are unknown, or their data does not fit; they wait for a process "
        f"that can: find(state='unresolvable') shows them; deploy or import their classes, or give a renamed class its aliases=(...)"
    )


class Lifecycle:
    """Owns the store and, while started, the session."""

    def __init__(self, parts: Parts, settings: Settings, services: Services, hub: Hub, waits: Waits) -> None:
        self._parts = parts
        self._settings = settings
        self._services = services
        self._hub = hub
        self._waits = waits
        self._life = threading.RLock()  # a signal handler may call shutdown in the middle of a start
        self._exit_asked = False
        self._stops = 0  # shutdowns so far
        self._pid = os.getpid()
        self.store: Store = parts.store(parts.clock, settings)
        self.session: Session | None = None
        self._ending: tuple[Session, ...] = ()  # shut down, and something runs there
        self.paused = False
        self.scope: Scope | None = None
        self.forked = False
        """In the child of a fork that happened while the timer was started: it starts anew at its first use."""
        _alive.add(self)

    def start(self) -> bool:
        """Makes a session and lets it run; False if one runs already, or if this process is a child that runs single jobs."""
        if not may_start():
            return False
        if self._pid != os.getpid():
            self.after_fork()  # a server that forks without Python's hooks, as uWSGI does by default
        self.store.open()  # before the lock, since it may wait for other processes
        with self._life:
            self.forked = False
            if self.session is not None:
                return False
            stops = self._stops
            self.store.open()
            self.store.new_room()
            session = self._make_session()
            session.engine.start()
            try:
                session.room.start(session.dispatcher.due, self._on_step)
                # A signal handler may have started or stopped it in the middle of this start.
                if self.session is None and self._stops == stops:
                    self.session = session
                    session.begin_looking()
            except BaseException:
                if self.session is session:
                    self.session = None
                session.undo()
                raise
            if self.session is not session:
                session.undo()
                return False
            self._stop_at_exit()
            for old in self._ending:
                session.dispatcher.take_over(old.dispatcher)
        self._fill(session)
        return True

    def _fill(self, session: Session) -> None:
        """Arms what waits already, where no keeper's thread does it."""
        if session.only_adds:
            return
        if self.store.shared and session.thread is None:
            session.keeper.look()
        elif not self.store.shared:
            for entry in self.store.window(inf):
                session.room.arm(entry)

    def _make_session(self) -> Session:
        parts, settings = self._parts, self._settings
        runner = Runner(parts.clock, self._services)
        runner.scope = self.scope
        dispatcher = Dispatcher(parts.clock, self.store, self._hub, settings.workers.ageing, self._waits, self._free)
        dispatcher.paused = self.paused
        engine = parts.engine(parts.clock, settings, runner, dispatcher)
        dispatcher.connect(engine, self._arm_entry)
        by_itself = type(engine).by_itself
        room = parts.room(parts.clock, settings)
        room.on_fault = partial(self._hub.fault, "ticker")
        keeper = Keeper(self.store, parts.clock, dispatcher, room.arm, HORIZON if by_itself else inf)
        only_adds = self.store.shared and by_itself and not settings.workers.threads
        thread = KeeperThread(keeper) if self.store.shared and by_itself and not only_adds else None
        if thread is not None:
            dispatcher.on_low = thread.wake
            thread.on_fault = partial(dispatcher.fault, "keeper")
        return Session(room, dispatcher, engine, runner, keeper, thread, self.store.shared, only_adds)

    def arm(self, row: Row) -> None:
        """Into the room of the present session, if it is due soon; without one the next start finds the row in the store's window."""
        session = self.session
        while session is not None:
            entry = self.store.entry(row)
            if entry is None:
                return
            session.room.arm(entry)
            armed, session = session, self.session
            if armed is session:
                return
            if session is None:
                self.store.disown(row)  # lest a start that is under way takes it for armed

    def _arm_entry(self, entry: Entry) -> None:
        session = self.session
        if session is not None:
            session.room.arm(entry)

    def disarm(self, row: Row) -> None:
        """Lets the room of the present session forget the row."""
        session = self.session
        if session is not None:
            entry = self.store.dropped(row)
            if entry is not None:
                session.room.disarm(entry)

    def shutdown(self, timeout: float) -> list[int]:
        """Ends the session; the ids of the jobs that still run after `timeout` seconds, sorted. From inside a job nothing is waited for."""
        with self._life:
            session, self.session = self.session, None
            self._stops += 1
            self.forked = False
            if session is not None:
                self._ending = (*self._ending, session)
        return self._await_ending(timeout)

    def _await_ending(self, timeout: float) -> list[int]:
        """Ends the sessions that are to end; the ids of what still runs there. May be cut short and done again."""
        deadline = time.monotonic() + timeout
        running: dict[int, list[Row]] = {}
        for session in self._ending:
            left = max(0.0, deadline - time.monotonic())
            session.stop_waking(min(5.0, left + 1.0))
            self._hand_back(session.engine.withdraw(), left + 1.0)
            inside = session.engine.inside_run()
            running[id(session)] = session.engine.stop(0.0 if inside else max(0.0, deadline - time.monotonic()))
            # What could not be written down yet counts as running: the store stays open, with the proof that this process lives.
            running[id(session)] += session.dispatcher.settle_all(0.0 if inside else max(0.0, deadline - time.monotonic()))
        self._hub.stop()
        with self._life:
            self._ending = tuple(session for session in self._ending if running.get(id(session), True))
            over = not self._ending and self.session is None
        if over:
            self.store.close(max(0.0, deadline - time.monotonic()) + 1.0)
        return sorted({row.id for rows in running.values() for row in rows})

    def _hand_back(self, withdrawn: list[Row], patience: float) -> None:
        try:
            back = self.store.hand_back(withdrawn, patience)
        except StoreError as error:  # a shutdown must end all the same
            log.error(
                "jobwheel: %d claimed jobs could not be handed back: %s; they run again when this process has ended", len(withdrawn), error
            )
            back = []
        for row in back:
            self.arm(row)  # into the room of a session that another thread has started meanwhile
        for row in withdrawn:
            if not row.kind.is_free:
                self._free(row.kind.name)

    def health(self, now: float, dropped: int) -> Health:
        """How the timer is at the elapsed moment `now`, with so many events dropped."""
        try:
            counts = self.store.counts()
            session = self.session
            if session is None or session.only_adds:
                return self._health_waiting(counts, now, session, dropped)
            return session.health(self.paused, counts, now, dropped)
        except StoreError as error:
            return Health((f"the store fails: {error}",), self.session is not None, self.paused, events_dropped=dropped)

    def _health_waiting(self, counts: Counts, now: float, session: Session | None, dropped: int) -> Health:
        """Of a timer that runs nothing. Where others share the store, jobs may wait for them: they are missed only when they are late."""
        problems = []
        if not self.store.shared:
            if counts.scheduled:
                problems.append(f"{counts.scheduled} jobs wait in a timer that is not started: {HOW_TO_START}")
        elif (oldest := self.store.overdue()) is not None and now - oldest > LATENESS:
            here = f"nor is this timer started: {HOW_TO_START}" if session is None else f"{ONLY_ADDS}: does `jobwheel worker` run?"
            problems.append(f"a job has been due for {now - oldest:.1f} s and no process has taken it, {here}")
        if counts.unresolvable:
            problems.append(unresolvable(counts))
        if dropped and session is not None:
            problems.append(f"{dropped} events were dropped: a listener is too slow")
        return Health(tuple(problems), session is not None, self.paused, events_dropped=dropped, unresolvable=counts.unresolvable)

    def set_scope(self, scope: Scope | None) -> None:
        """What each run is entered into from now on."""
        self.scope = scope
        if self.session is not None:
            self.session.runner.scope = scope

    def set_paused(self, paused: bool) -> None:
        """While paused nothing is claimed."""
        self.paused = paused
        session = self.session
        if session is not None:
            session.dispatcher.paused = paused
            if not paused:
                session.dispatcher.poke()

    def _free(self, kind: str) -> None:
        session = self.session
        if session is not None:
            session.dispatcher.release(kind)

    def _on_step(self) -> None:
        for entry in self.store.reanchor():
            self._arm_entry(entry)
        session = self.session
        if session is not None and session.thread is not None:
            session.thread.wake()

    def _stop_at_exit(self) -> None:
        if not self._exit_asked:
            self._exit_asked = True
            atexit.register(_at_exit, weakref.ref(self), self._settings.exit_timeout)

    def after_fork(self) -> None:
        """In the child: locks of the parent's other threads would never be released, and its rows are the parent's to run."""
        started = self.session is not None or self.forked
        self._pid = os.getpid()
        self._life = threading.RLock()  # a signal handler may call shutdown in the middle of a start
        self._hub.after_fork()
        self._waits.after_fork()
        self.store = self._parts.store(self._parts.clock, self._settings)
        self.session = None
        self._ending = ()
        self.forked = started


_alive: weakref.WeakSet[Lifecycle] = weakref.WeakSet()


def _after_fork() -> None:
    for life in list(_alive):
        life.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _at_exit(life: weakref.ref[Lifecycle], timeout: float) -> None:
    """Lets running jobs end, for a while; whatever goes wrong, the exit of the process stays silent."""
    lifecycle = life()
    if lifecycle is None:
        return
    try:
        left = lifecycle.shutdown(timeout)
        if left:
            log.warning("jobwheel: the process ends while jobs still run: %s", ", ".join(map(str, left)))
    except (Exception, KeyboardInterrupt):
        return
