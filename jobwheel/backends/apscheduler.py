"""APScheduler 3.11 as a waiting room: each entry waits as a date job in its memory store, and its BackgroundScheduler wakes.

Nothing but waiting is left to it: what exists, who may run it, where and how often is ours, so its late jobs that are dropped, its
pickles, its pool and its cron do not reach users. The one file that imports `apscheduler`.

Promises: what `jobwheel.waiting` says. `arm` and `disarm` append to the inbox of the same `Ticker` that drives the wheel; only
APScheduler's own thread, which makes the ticker's passes, ever calls APScheduler, so its locks are never waited for.
`on_due` is called after APScheduler has let go of them. What it fires is judged by *our* elapsed clock: what comes early (the wall
clock was stepped, a date was rounded) and what was touched to later waits on under a new date.
Relies on: `_process_jobs` being what a scheduler's loop calls when it wakes and its answer the seconds to sleep, as all subclasses
of APScheduler 3 do; `MemoryJobStore` giving out jobs in order of date, then id.
Not promised: the wheel's speed. To place an entry costs its thread about 30 us (the wheel: 1 us), so of a flood of adds the last one
is seen only after all before it; and while NTP slews the wall clock an entry may be late by up to `ticker.STEP`.

APScheduler reads the wall clock, and its sleep stands still in suspend. So the thread wakes at least every `ticker.LOOK` seconds while
anything waits; it looks at both clocks, and on a step gives every job its new date.
"""

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from math import inf
from typing import Any

from apscheduler.executors.base import BaseExecutor
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.date import DateTrigger

from jobwheel.clock import APART, Clock
from jobwheel.row import Entry
from jobwheel.settings import Settings
from jobwheel.ticker import Guard, Ticker
from jobwheel.waiting import OnDue, RoomHealth, WaitingRoom

PIECE = 100
"""Entries placed, and entries given out, in one go: a few milliseconds of work, so that neither keeps the other waiting."""
MICROSECOND = 1e-6
STOP_LIMIT = 5.0
"""Seconds that `stop` waits for the present pass."""

# It logs at INFO for each job, and while it holds its locks. Warnings and errors pass.
_log = logging.getLogger("jobwheel.apscheduler")
_log.setLevel(logging.WARNING)
_numbers = count()


class ApschedulerRoom(WaitingRoom):
    """See the module. `settings` has nothing for it."""

    def __init__(self, clock: Clock, settings: Settings) -> None:  # noqa: ARG002  every room is made with both
        self._scheduler = _Scheduler(self._pass)
        self._dates = _Dates(self._scheduler, clock)
        self.ticker = Ticker(self._dates, clock, PIECE)
        self._inbox = self.ticker.inbox
        self._guard = Guard(self.ticker, clock)
        self._thread: threading.Thread | None = None

    def start(self, on_due: OnDue, on_step: Callable[[], None]) -> None:
        def step() -> None:
            self._dates.renew()
            on_step()

        self.ticker.on_due, self.ticker.on_step = on_due, step
        self._guard.on_fault = self.on_fault
        self._scheduler.start()
        self._thread = self._scheduler.thread

    def arm(self, entry: Entry) -> None:
        self._inbox.append(entry)
        if entry.due < self.ticker.next_look:
            self._wake()

    def disarm(self, entry: Entry) -> None:
        self._inbox.append((entry,))

    def stop(self) -> None:
        self._guard.stopping = True
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        self._wake()
        thread.join(STOP_LIMIT)
        if not thread.is_alive():
            self._forget()

    def health(self) -> RoomHealth:
        dead = self._thread is not None and not self._thread.is_alive()
        return self._guard.health("APScheduler's thread has ended" if dead else None)

    def _wake(self) -> None:
        # As in the ticker: -inf spares further adders the wake-up.
        self.ticker.next_look = -inf
        self._scheduler.wakeup()

    def _pass(self) -> float | None:
        """What APScheduler's thread does each time it wakes; gives the seconds to sleep."""
        self.ticker.next_look = -inf
        seconds = self._guard.guarded_pass()
        if self._guard.stopping:
            self._forget()
        return seconds

    def _forget(self) -> None:
        """Lets go of every entry, and ends APScheduler's thread: here, since a shutdown by another one in mid-pass makes the pass fail."""
        self._inbox.clear()
        self._dates.close()


class _Dates:
    """Entries as jobs of APScheduler, with the wheel's face (`ticker.Ring`). An entry's place is the id of its job."""

    def __init__(self, scheduler: "_Scheduler", clock: Clock) -> None:
        self.pending = 0
        self._scheduler = scheduler
        self._clock = clock
        self._offset = self._read_offset()

    def insert(self, entry: Entry) -> None:
        """Lets `entry` wait for its due moment; one that is here already moves there."""
        self.cancel(entry)
        entry.place = f"{next(_numbers):020d}"  # as text in the order of the numbers: equal dates come out in the order of arrival
        self._add(entry)
        self.pending += 1

    def cancel(self, entry: Entry) -> bool:
        """Takes `entry` out; False if it is not here."""
        place, entry.place = entry.place, None
        # A place of another room, which was stopped with the entry in it, says nothing here.
        if type(place) is not str or self._scheduler.store.lookup_job(place) is None:
            return False
        self._scheduler.remove_job(place)
        self.pending -= 1
        return True

    def advance(self, now: float) -> list[Entry]:
        """What is due by our clock, in order, first in first out on equal moments; at most PIECE entries, the rest next time."""
        offset = self._read_offset()
        if abs(offset - self._offset) > APART:
            self._offset = offset
        fired = self._scheduler.fire()
        if not fired:
            return fired
        now = max(now, self._clock.elapsed())  # APScheduler read its clock later than the caller
        fired.sort(key=lambda entry: (entry.due, entry.place))
        due = []
        for entry in fired:
            if entry.due > now:
                self._offset = max(self._offset, offset)  # for what came early by it; mere noise of the reading is soon past
                self._add(entry)  # in its old place, so that it stays before others of the same moment
            else:
                entry.place = None
                due.append(entry)
        self.pending -= len(due)
        return due

    def next_due(self) -> float | None:
        """The moment of the earliest date; None: nothing waits."""
        date = self._scheduler.store.get_next_run_time()
        return None if date is None else date.timestamp() - self._offset

    def renew(self) -> None:
        """The wall clock was stepped: every job gets its date by the new one."""
        self._offset = self._read_offset()
        for job in self._scheduler.get_jobs():
            self._scheduler.reschedule_job(job.id, trigger=self._date(job.args[0].due))

    def close(self) -> None:
        """Ends the scheduler, its store and its thread."""
        self._scheduler.shutdown(wait=False)
        self.pending = 0

    def _read_offset(self) -> float:
        # The wall clock first: a thread that loses the GIL in between makes dates that are too early, which mends itself, not too late.
        wall = self._clock.wall()
        return wall - self._clock.elapsed()

    def _add(self, entry: Entry) -> None:
        self._scheduler.add_job(_never_called, self._date(entry.due), args=(entry,), id=entry.place)

    def _date(self, due: float) -> DateTrigger:
        # Rounded up, since a date in the same microsecond may be before `due`.
        return DateTrigger(datetime.fromtimestamp(due + self._offset + MICROSECOND, UTC), UTC)


class _Scheduler(BackgroundScheduler):  # type: ignore[misc]  # APScheduler has no types
    """A BackgroundScheduler whose thread calls `wake` each time it wakes, instead of firing what is due; `fire` does that."""

    def __init__(self, wake: Callable[[], float | None]) -> None:
        self._wake = wake
        self._inline = _Inline()
        self.store = _Store()
        super().__init__(
            logger=_log,
            timezone=UTC,
            executors={"default": self._inline},
            jobstores={"default": self.store},
            job_defaults={"misfire_grace_time": None, "coalesce": True},
        )

    @property
    def thread(self) -> threading.Thread | None:
        return self._thread  # type: ignore[no-any-return]

    def fire(self) -> list[Entry]:
        """The entries of the jobs that are due by APScheduler's clock, which it then forgets."""
        super()._process_jobs()
        fired, self._inline.fired = self._inline.fired, []
        return fired

    def _process_jobs(self) -> float | None:
        return self._wake()

    def shutdown(self, wait: bool = True) -> None:
        # Without BackgroundScheduler's own: that joins the thread without a limit, and fails in the thread itself.
        if self.running:
            super(BackgroundScheduler, self).shutdown(wait)


class _Inline(BaseExecutor):  # type: ignore[misc]
    """Collects what fires, in the scheduler's thread: APScheduler holds its locks while it submits, so nothing more is done here."""

    def __init__(self) -> None:
        super().__init__()
        self.fired: list[Entry] = []

    def submit_job(self, job: Any, run_times: list[datetime]) -> None:
        # Not BaseExecutor's own, which keeps a count of running instances for each id.
        self._do_submit_job(job, run_times)

    def _do_submit_job(self, job: Any, run_times: list[datetime]) -> None:  # noqa: ARG002
        self.fired.append(job.args[0])


class _Store(MemoryJobStore):  # type: ignore[misc]
    """Gives out a burst in pieces: the first jobs of it start while the last ones are still being taken out."""

    def get_due_jobs(self, now: datetime) -> list[Any]:
        return super().get_due_jobs(now)[:PIECE]  # type: ignore[no-any-return]


def _never_called(entry: Entry) -> None:
    """The function of each job, since APScheduler wants one."""
