"""For the tests of applications: a timer whose clock is moved by hand, and which runs jobs in the calling thread.

    timer, clock = manual_timer(services={"orders": orders})
    timer.add_job(CancelUnpaidOrder(17), timedelta(minutes=15), key="order:17")
    clock.advance(899)      # nothing
    clock.advance(1)        # runs it, here and now

The code path is that of production (checks, store, wheel, claim, runner, settle), but for the threads, the time, and the store: it is the
memory store, which takes objects of any kind. `manual_timer(store={"kind": "sqlite", "path": tmp_path / "jobs.db"})` also tells what a
file cannot hold.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any
from uuid import uuid4

from jobwheel.backends.manual import ManualRoom
from jobwheel.clock import Clock
from jobwheel.delay import LONGEST, seconds
from jobwheel.engines.inline import InlineEngine
from jobwheel.errors import BadValue, UsageError
from jobwheel.opening import find_member
from jobwheel.settings import from_mapping
from jobwheel.timer import Parts, TimerManager

START = 1_767_225_600.0
"""Where the wall clock of a manual timer begins: 2026-01-01T00:00Z."""


class ManualClock:
    """Two clocks that stand still until they are moved. One thread moves them; jobs run in it."""

    def __init__(self, wall: float = START) -> None:
        self._elapsed = 0.0
        self._wall = wall
        self._moving = False
        self.boot = f"manual clock {uuid4()}"
        """What the elapsed seconds count from, for stores that survive their process: each manual clock is a boot of its own."""
        self.do_pass: Callable[[], float | None] = lambda: None
        """Set by `manual_timer`. One pass of the timer's ticker with everything that it makes due; gives the next due moment."""

    def elapsed(self) -> float:
        """Seconds that have gone by, suspend included."""
        return self._elapsed

    def wall(self) -> float:
        """Epoch seconds."""
        return self._wall

    def advance(self, secs: float | timedelta) -> None:
        """Moves both clocks on and runs what falls due, each job with the clock at its due moment, the end included.

        Jobs that are added by jobs run in the same advance if they fall due in it.
        """
        end = self._elapsed + seconds(secs, "advance")
        # 0.7 and then 0.1 is 0.8, for which floats have 0.7999999999999999: what is due at 0.8 falls due in it.
        self._move(lambda: self._walk(max(end, round(end, 9))))

    def set_wall(self, dt: float) -> None:
        """Steps the wall clock alone by `dt` seconds, forward or back, as an operator or NTP does; then one pass."""
        if isinstance(dt, bool) or not isinstance(dt, int | float) or not -LONGEST <= dt <= LONGEST:
            raise BadValue(f"set_wall({dt!r}): a number of seconds within 100 years, negative to step back")
        self._move(lambda: self._shift(0.0, dt))

    def suspend(self, secs: float | timedelta) -> None:
        """The machine sleeps: both clocks move on at once, and one pass catches up."""
        delta = seconds(secs, "suspend")
        self._move(lambda: self._shift(delta, delta))

    def freeze(self, secs: float | timedelta) -> None:
        """The process stalls: time goes by without a tick, and one pass catches up."""
        self.suspend(secs)

    def _move(self, how: Callable[[], None]) -> None:
        if self._moving:
            raise UsageError("the clock is being moved already: a job cannot move the clock that it runs by")
        self._moving = True
        try:
            how()
        finally:
            self._moving = False

    def _shift(self, elapsed: float, wall: float) -> None:
        self._elapsed += elapsed
        self._wall += wall
        self._walk(self._elapsed)

    def _walk(self, end: float) -> None:
        offset = self._wall - self._elapsed
        due = self.do_pass()
        while due is not None and due <= end:
            # A moment that has passed already stands for "now": what comes late must not turn the clock back.
            self._elapsed = max(self._elapsed, due)
            self._wall = self._elapsed + offset
            due = self.do_pass()
        self._elapsed = max(self._elapsed, end)
        self._wall = self._elapsed + offset
        self.do_pass()


def manual_timer(*, services: object = None, **settings: Any) -> tuple[TimerManager, ManualClock]:
    """A started timer without threads, and its clock. It runs nothing by itself, not even a job without a delay.

    Args:
        services: as for `open_timer`.
        settings: the sections of the configuration as dicts: `manual_timer(store={"keep": 10}, max_pending=3)`.
            The store is the memory store unless told (`store={"kind": "sqlite", "path": ...}`); `backend="apscheduler"` is refused.

    Listeners of `timer.on` run in the calling thread too.
    """
    store = settings.setdefault("store", {})
    if isinstance(store, Mapping):  # what it is else is refused with the other problems
        settings["store"] = {"kind": "memory"} | dict(store)
    checked = from_mapping(settings)
    if checked.backend != "wheel":
        raise UsageError(f"backend={checked.backend!r} has a clock of its own that nobody can move by hand; manual_timer has the wheel")
    clock = ManualClock()
    parts = Parts(clock, find_member("store.kind", checked.store.kind), ManualRoom, InlineEngine)
    timer = TimerManager(parts, checked, services=services, inline_events=True)
    timer.start()
    clock.do_pass = lambda: _pass(timer, clock)
    return timer, clock


def _pass(timer: TimerManager, clock: Clock) -> float | None:
    """Ticks and runs until nothing is due at this moment; gives the next due moment."""
    while (session := timer.session) is not None:
        room, engine = session.room, session.engine
        assert isinstance(room, ManualRoom)
        assert isinstance(engine, InlineEngine)
        engine.open = True
        try:
            if session.shared:
                session.keeper.look()
            room.ticker.pass_()
            session.dispatcher.pump()
            engine.run_all()
        finally:
            engine.open = False
        due = room.ticker.wheel.next_due()
        if not room.ticker.inbox and (due is None or due > clock.elapsed()):
            return due
    return None


__all__ = ["ManualClock", "manual_timer"]
