"""The dispatcher: from due to claimed to handed over, and from verdict to settled. Called by rooms, engines and the timer.

Promises: a due entry is claimed as soon as the engine has room, by priority; what finds no room waits here unclaimed, so it can
still be cancelled, touched, or run by another process; no thread waits for another one here.
Relies on: the store's claim deciding alone; `room.arm` and `engine.submit` never blocking.
Not promised: an order between entries of one priority that different threads bring at the same moment.

One thread pumps at a time. Another that comes meanwhile goes away at once: the pumping one looks again after it has let go of
the lock, and so sees what the other brought. The two ends of that race are: it looks and finds it; or the other got the lock.

Somewhat long: the way in (due, claim, submit) and the way out (settle, arm, tell) meet here, and what fails on one is mended on the other.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from jobwheel.clock import Clock
from jobwheel.engine import Engine
from jobwheel.errors import StoreError
from jobwheel.events import (
    Event,
    Hub,
    JobCancelled,
    JobFailed,
    JobInterrupted,
    JobMissed,
    JobRetrying,
    JobSkipped,
    JobStarted,
    JobSucceeded,
    JobTimedOut,
)
from jobwheel.held import ALONE, Held
from jobwheel.job import context_of
from jobwheel.lanes import Lanes
from jobwheel.log import logger
from jobwheel.recurring import begin, follow, part
from jobwheel.row import Entry, Row, snapshot
from jobwheel.runner import too_late
from jobwheel.state import State
from jobwheel.store import Claim, Store
from jobwheel.verdict import Onward, Verdict
from jobwheel.waits import Waits

log = logger("jobwheel.dispatcher")


class Alarm:
    """An entry of the dispatcher's own: by it the room wakes the dispatcher when a failing store is to be tried again."""

    __slots__ = ("due", "place", "priority", "ring")
    id = 0
    kind = None

    def __init__(self, due: float, ring: Callable[[], None]) -> None:
        self.due = due
        self.ring = ring
        self.place: object = None
        self.priority = 0


BATCH = 64
"""Rows claimed in one step at most."""
SOON = 0.005
"""Seconds until a due row that another call holds is claimed again."""
TIDY = 1000
"""Due entries from which on the backlog is looked through for dead ones, each time it has doubled."""
LATE = 1.0
"""Seconds of lateness from which a full engine is worth a warning ..."""
WARN_EVERY = 60.0
"""... at most this often."""
PATIENCE = 5.0
"""Seconds that a store may wait for other processes before a verdict is tried again later."""
TRY_EACH = 0.2
"""Seconds between two tries of a store that fails while a shutdown waits for it."""
LOW = 512
"""Overdue entries under which more are asked for, if the store has more."""
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0
"""Seconds between two tries of a store that fails: doubled from the first to the longest."""

EVENT_OF: dict[State, type[Event]] = {
    State.SUCCEEDED: JobSucceeded,
    State.FAILED: JobFailed,
    State.SCHEDULED: JobRetrying,
    State.CANCELLED: JobCancelled,
    State.MISSED: JobMissed,
    State.INTERRUPTED: JobInterrupted,
}


class Dispatcher:
    """One for each start of a timer.

    `waits` is told the id of each row that came to its end; `free` is called with the name of a limited kind of which a run is over:
    that may concern a later session's dispatcher, if this one is stopped and the run outlived it.
    """

    def __init__(self, clock: Clock, store: Store, hub: Hub, ageing: float, waits: Waits, free: Callable[[str], None]) -> None:
        self._clock = clock
        self._store = store
        self._hub = hub
        self._waits = waits
        self._free = free
        self._engine: Engine | None = None
        self._arm: Callable[[Entry], None] = lambda entry: None
        self.backlog: Lanes[Entry] = Lanes(clock.elapsed, ageing)
        self.overdue: Lanes[Entry] = Lanes(clock.elapsed, ageing)
        """What a sweep found. At least every other row that is claimed comes from the backlog, so that a million overdue ones do not
        delay what falls due now."""
        self._more_overdue = False
        self._turn = 0
        self.on_low: Callable[[], None] = lambda: None
        """Called when more overdue entries are wanted."""
        self._settling = threading.Lock()  # held while a batch of verdicts is written, by `acquire(blocking=False)` only
        self._verdicts: deque[tuple[Row, int, Verdict]] = (
            deque()
        )  # to be written down: those of a store on disk, by one thread for all, and what a store could not take
        self._failing: set[str] = set()  # which ways to the store fail; a set operation is atomic
        self._held = Held(store.waits)
        self._pumping = threading.Lock()  # held while claiming and handing over, by `acquire(blocking=False)` only, but for `stop`
        self._stopped = False
        self.paused = False
        """While true nothing is claimed."""
        self._tidy_at = TIDY
        self._ends = 0  # changes whenever a run of a kind with `max_running` ends
        self._warned = -WARN_EVERY
        self._alarms = 0  # on their way through the room
        self._alarm_lock = threading.RLock()  # guards the counts _alarms, _ends and faults, for a few instructions
        self._soon: deque[Entry] = deque()  # due, and to be claimed again when the next alarm comes
        self._wait = FIRST_WAIT
        self.faults = 0
        """Errors that the threads of engine and keeper survived."""
        self.store_error: str | None = None
        """Why the store does not take claims or verdicts now."""

    @property
    def blocking(self) -> bool:
        """See `Desk`."""
        return self._store.durable

    def connect(self, engine: Engine, arm: Callable[[Entry], None]) -> None:
        """Where claimed rows go, and where rows go that wait again. Called once, before the first entry comes."""
        self._engine = engine
        self._arm = arm

    def due(self, entries: list[Entry]) -> None:
        """Takes entries that are due, in order."""
        alarms = [entry for entry in entries if type(entry) is Alarm]
        if alarms:
            entries = [entry for entry in entries if type(entry) is not Alarm]
            for alarm in alarms:
                alarm.ring()  # perhaps of the session before, which a restart has overtaken
        self.backlog.push(entries)
        if len(self.backlog) > self._tidy_at:
            self._tidy()
        self.pump()

    def poke(self, seconds: float = 0.0) -> None:
        """Lets the room's thread pump after so many seconds: for those on whose own thread nothing may be claimed."""
        with self._alarm_lock:
            self._alarms += 1
        self._arm(Alarm(self._clock.elapsed() + seconds, self._alarm_came))

    def _alarm_came(self) -> None:
        with self._alarm_lock:
            self._alarms -= 1
        soon = [self._soon.popleft() for _ in range(len(self._soon))]
        if self._stopped:
            for entry in soon:
                self._arm(entry)
        else:
            self.backlog.push(soon)
        self.settle_left()

    def settle_all(self, timeout: float) -> list[Row]:
        """Writes down what is left, trying for so many seconds; the rows whose verdicts the store has not taken."""
        deadline = time.monotonic() + timeout
        self.settle_left(max(TRY_EACH, timeout))
        while (left := list(self._verdicts)) and time.monotonic() < deadline:
            time.sleep(min(TRY_EACH, max(0.0, deadline - time.monotonic())))
            self.settle_left(max(TRY_EACH, deadline - time.monotonic()))
        return [row for row, _, _ in left]

    def take_over(self, other: Dispatcher) -> None:
        """From now on the verdicts that another session could not write down are this one's to write."""
        with suppress(IndexError):
            while True:
                self._verdicts.append(other._verdicts.popleft())
        if self._verdicts:
            self.poke()

    def add_overdue(self, entries: list[Entry], more: bool) -> None:
        """Takes what a sweep found, oldest first; `more`: the store has more of it."""
        self.overdue.push(entries)
        self._more_overdue = more
        self.pump()

    def ended(self, row: Row) -> None:
        """Tells of a row that ended without a run here: its process died."""
        if self._waits.ids:
            self._waits.tell(row.id)
        if self._hub.listeners:
            self._emit(EVENT_OF[row.state], row)
            self._hub.deliver()

    def _tidy(self) -> None:
        """Lets go of what does not wait any more and of what is here twice: what stays behind is bounded by what waits."""
        alive = {id(entry): entry for entry in self.backlog.drain() if self._store.waits(entry)}
        self.backlog.push(list(alive.values()))
        self._tidy_at = max(TIDY, 2 * len(alive))

    def pump(self) -> None:
        """Claims and hands over as much as the engine takes."""
        engine, backlog, overdue = self._engine, self.backlog, self.overdue
        while (backlog or overdue) and engine is not None and not self.paused and not self._stopped:
            if engine.room() <= 0:
                self._warn_if_late()
                return
            if not self._pumping.acquire(blocking=False):
                return
            try:
                works = self._stopped or self._pump_once(engine, min(engine.room(), BATCH))
            finally:
                self._pumping.release()
            self._hub.deliver()
            if not works:
                return

    def _pump_once(self, engine: Engine, room: int) -> bool:
        """Claims up to `room` rows and hands them over. False: the store fails."""
        ends = self._ends
        entries = engine.sift(self._next(room), self._held.put)
        claim = self._claim(entries)
        if claim is None:
            return False
        rows, later, held = claim
        rows = [self._begun(row) if row.terms is not None and row.series is not None else row for row in rows]
        for entry in later:
            self._arm_later(entry)
        for kind, entry in held:
            self._held.put(kind, entry)
        if self._held:
            for _ in range(self._ends - ends):
                # A run ended between the claim and the lines above, and found nothing to release yet.
                self._release_each(self._held.names())
            if len(rows) < len(entries):
                self._release_unused(entries, {row.id for row in claim.rows}, {entry.id for _, entry in held})
        if self._hub.listeners:
            now = self._clock.elapsed()
            for row in rows:
                if too_late(row, now) is None:
                    self._emit(JobStarted, row)
        engine.submit(rows)
        return True

    def _begun(self, row: Row) -> Row:
        """What is to run for a recurring job that was claimed."""
        now, wall = self._clock.elapsed(), self._clock.wall()
        if skipped := begin(row, now, wall):
            self._tell_skipped(row, skipped)
        onward = None if too_late(row, now) is not None else part(row, now, wall)
        if onward is None:
            return row
        try:
            run = self._store.part(row, onward)
        except Exception as error:  # it runs as the row itself, and the next one after it
            self._store_failed(error)
            return row
        if run is None:
            return row
        if onward.skipped:
            self._tell_skipped(row, onward.skipped)
        if row.state is State.SCHEDULED:
            self._wait_again(row)
        else:  # it was cancelled or replaced since it was claimed; its run goes on all the same
            if self._waits.ids:
                self._waits.tell(row.id)
            if self._hub.listeners:
                self._emit(EVENT_OF[row.state], row)
        return run

    def _wait_again(self, row: Row) -> None:
        entry = self._store.entry(row)
        if entry is not None:
            self._arm(entry)

    def _tell_skipped(self, row: Row, count: int) -> None:
        if self._hub.listeners and self._hub.wants(JobSkipped):
            self._hub.emit(JobSkipped(snapshot(row, self._store.offset()), count))

    def _next(self, room: int) -> list[Entry]:
        overdue = self.overdue
        if not overdue:
            return self.backlog.pop_many(room)
        self._turn ^= 1  # with room for one they take turns
        entries = self.backlog.pop_many(room - (room + self._turn) // 2)
        entries += overdue.pop_many(room - len(entries))
        entries += self.backlog.pop_many(room - len(entries))
        if self._more_overdue and len(overdue) < LOW:
            self._more_overdue = False
            self.on_low()
        return entries

    def _arm_later(self, entry: Entry) -> None:
        if entry.due > self._clock.elapsed():
            self._arm(entry)
        else:  # held by another call at this moment; not at once again, lest a call that never ends keeps a core busy
            self._soon.append(entry)
            self.poke(SOON)

    def _release_unused(self, entries: list[Entry], claimed: set[int], held: set[int]) -> None:
        """Something does not run after all, so another one may in its place.

        It has left its place in the engine; and unless it was held because its kind is full, also its kind's. More must not be released:
        what is full holds it again, and two that are full would release each other for ever.
        """
        for entry in entries:
            if entry.id not in claimed:
                self._release_each(name for name in self._held.names() if name.startswith("\0"))
                if entry.id not in held and entry.kind is not None:
                    self._release_one(entry.kind.name)

    def _release_each(self, names: Iterable[str]) -> None:
        for name in names:
            self._release_one(name)

    def _claim(self, entries: list[Entry]) -> Claim | None:
        try:
            claim = self._store.claim(entries)
        except Exception as error:
            for entry in reversed(entries):
                self.backlog.push_front(entry)
            self._store_failed(error)
            return None
        if self.store_error is not None:
            self.works("run")
        return claim

    def trouble(self, way: str, error: Exception) -> None:
        """This way to the store fails. Told once until all ways work."""
        self._note_trouble(way, error)
        self._hub.deliver()

    def _note_trouble(self, way: str, error: Exception) -> None:
        if not self._failing:
            self._hub.fault("store", error)
            log.error(
                "the store fails, jobs wait until it works again: %s", error, exc_info=None if isinstance(error, StoreError) else error
            )
        self._failing.add(way)
        self.store_error = f"{type(error).__name__}: {error}"

    def works(self, way: str) -> None:
        """This way to the store works."""
        if way in self._failing:
            self._failing.discard(way)
            if way == "run":
                self._wait = FIRST_WAIT
            if not self._failing:
                self.store_error = None
                log.info("the store works again")
                self._warned = self._clock.elapsed()  # what is late now is so because of the store, which was told

    def _store_failed(self, error: Exception) -> None:
        """Remembers to try again, ever less often."""
        self._note_trouble("run", error)
        if not self._alarms:  # two threads may pass here at once: then it is tried twice
            wait, self._wait = self._wait, min(2 * self._wait, LONGEST_WAIT)
            self.poke(wait)

    def done(self, row: Row, attempt: int, verdict: Verdict) -> None:
        """Settles a run; see `Desk`."""
        if row.terms is not None and row.series is not None and row.attempt == attempt and row.state is State.RUNNING:
            verdict = follow(row, verdict, self._clock.elapsed(), self._clock.wall())
        if self._store.durable:
            self._verdicts.append((row, attempt, verdict))
            self.settle_left()
            return
        try:
            state = self._store.settle(row, attempt, verdict)
        except Exception as error:
            self._verdicts.append((row, attempt, verdict))
            self._store_failed(error)
            self._hub.deliver()
            return
        self._settled(row, verdict, state)

    def settle_left(self, patience: float = PATIENCE) -> None:
        """Writes verdicts down in batches: those that come while one is being written are the next, and their threads do not wait for it.

        As with the pump: whoever writes looks again after letting go of the lock, and so sees what another one brought and left to him.
        """
        verdicts = self._verdicts
        while verdicts and self._settling.acquire(blocking=False):
            batch: list[tuple[Row, int, Verdict]] = []
            states: list[State | None] | None = None
            try:
                batch += (verdicts.popleft() for _ in range(min(len(verdicts), BATCH)))
                states = self._store.settle_many(batch, patience)
            except Exception as error:
                verdicts.extendleft(reversed(batch))
                self._store_failed(error)
            finally:
                self._settling.release()
            if states is None:
                self._hub.deliver()
                return
            if self.store_error is not None:
                self.works("run")
            for (row, _, verdict), state in zip(batch, states, strict=True):
                self._settled(row, verdict, state)

    def _make_way(self, row: Row) -> None:
        if not row.kind.is_free:
            self._free(row.kind.name)
        if self._held:
            self._release_one(ALONE)

    def _settled(self, row: Row, verdict: Verdict, state: State | None) -> None:
        if state is None:
            self._make_way(row)
            return
        if self._hub.listeners:  # before it is armed, and so before the events of its next run
            if isinstance(verdict, Onward) and state is State.SCHEDULED:
                if verdict.outcome is not None:
                    self._emit(EVENT_OF[verdict.outcome.state], row)
                if verdict.skipped:
                    self._tell_skipped(row, verdict.skipped)
            else:
                self._emit(EVENT_OF[state], row)
        if state is State.SCHEDULED:
            self._wait_again(row)
        elif self._waits.ids:
            self._waits.tell(row.id)
        self._make_way(row)
        if self._hub.listeners:
            self._hub.deliver()

    def timed_out(self, row: Row) -> None:
        """See `Desk`."""
        context_of(row).timed_out = True
        if self._hub.listeners:
            self._emit(JobTimedOut, row)
            self._hub.deliver()

    def fault(self, where: str, error: BaseException) -> None:
        """See `Desk`."""
        with self._alarm_lock:
            self.faults += 1
        self._hub.fault(where, error)

    def release(self, kind: str) -> None:
        """A run of this kind, of which only so many may run, is over: the next one of it may be claimed. See `Desk`."""
        with self._alarm_lock:
            self._ends += 1
        self._release_one(kind)
        self.pump()

    def release_up_to(self, room: Mapping[str, int]) -> None:
        """So many more of these kinds may run now, runs of other processes being over: as many held ones may be claimed."""
        entries: list[Entry] = []
        for name in self._held.names():
            for _ in range(room.get(name, 0)):
                entry = self._held.take(name)
                if entry is None:
                    break
                entries.append(entry)
        for entry in reversed(entries):
            self.backlog.push_front(entry)
        if entries:
            self.pump()

    def _release_one(self, name: str) -> None:
        entry = self._held.take(name)
        if entry is not None:
            self.backlog.push_front(entry)

    def _emit(self, event_type: type[Event], row: Row) -> None:
        if self._hub.wants(event_type):
            self._hub.emit(event_type(snapshot(row, self._store.offset())))

    def _warn_if_late(self) -> None:
        now = self._clock.elapsed()
        if now - self._warned < WARN_EVERY:
            return
        oldest = self.oldest()
        if oldest is not None and now - oldest > LATE:
            self._warned = now
            log.warning(
                "%d due jobs wait for a free worker, the oldest for %.1f s; none is lost; set more workers.threads",
                len(self.backlog) + len(self.overdue), now - oldest,
            )  # fmt: skip

    def oldest(self) -> float | None:
        """Due moment of the oldest entry at the heads of the lanes; None: nothing waits for a worker."""
        return min((due for due in (self.backlog.oldest(), self.overdue.oldest()) if due is not None), default=None)

    def stop(self, timeout: float = 5.0) -> None:
        """Nothing is claimed any more once it returns."""
        self._stopped = True
        # With a limit, since a signal may have interrupted the pump in this very thread.
        if self._pumping.acquire(timeout=timeout):
            self._pumping.release()
