"""The ticker: advances a wheel through time. `Ticker` is one pass without a thread; `TickerThread` is the thread around it.

Promises: an armed entry comes out at its due moment or after it, never before; a pause of any length is caught up in order in one
pass; an adder never waits for the ticker; no exception ends the thread.
Relies on: one thread at a time calling `pass_`; deque operations being atomic.
Not promised: that a due entry still waits; the claim in the store finds out.

No wake-up is lost: an adder first puts its entry into the inbox and then looks at `next_look`; the ticker first publishes
`next_look` and then looks at the inbox once more before it sleeps. One of the two sees the other.
"""

import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from math import inf
from typing import Protocol

from jobwheel.clock import Clock
from jobwheel.log import logger
from jobwheel.row import Entry
from jobwheel.waiting import OnDue, RoomHealth
from jobwheel.waker import Waker

log = logger("jobwheel.ticker")

LOOK = 1.0
"""Seconds between two looks at the clocks while anything waits: what shows a suspend or a step of the wall clock."""
STEP = 0.05
"""Seconds by which wall and elapsed clock may drift apart before wall-clock jobs are anchored anew."""
INBOX_PIECE = 5000
"""Entries taken from the inbox in one go: a few milliseconds of work, so that what is due meanwhile is not kept waiting."""


class Ring(Protocol):
    """What a ticker advances: `Wheel`, or anything that keeps its promises. One thread at a time calls it, all but `pending`."""

    pending: int

    def insert(self, entry: Entry) -> None: ...
    def cancel(self, entry: Entry) -> bool: ...
    def advance(self, now: float) -> list[Entry]: ...
    def next_due(self) -> float | None: ...


class Ticker:
    """What the ticker thread does once per wake-up; tests call `pass_` themselves. `piece`: see INBOX_PIECE."""

    def __init__(self, wheel: Ring, clock: Clock, piece: int = INBOX_PIECE) -> None:
        self.wheel = wheel
        self.next_look: float = -inf
        """Elapsed moment until which the thread sleeps; -inf while it is awake. Adders wake it if theirs is earlier."""
        self.inbox: deque[Entry | tuple[Entry]] = deque()
        """Entries to arm, and 1-tuples of entries to disarm, in the order of the calls."""
        self._clock = clock
        self._piece = piece
        self._offset = clock.wall() - clock.elapsed()
        self.on_due: OnDue = lambda due: None
        self.on_step: Callable[[], None] = lambda: None

    def pass_(self) -> float | None:
        """Places what came in, gives out what is due, and says how many seconds to sleep; None: until woken."""
        self._place(self._piece)
        now = self._clock.elapsed()
        due = self.wheel.advance(now)
        if due:
            self.on_due(due)
        self._look_at_wall()
        if self.inbox:
            return 0.0
        return self._sleep_from(self._clock.elapsed())

    def _place(self, most: int) -> None:
        inbox, wheel = self.inbox, self.wheel
        for _ in range(min(most, len(inbox))):
            item = inbox.popleft()
            if type(item) is tuple:
                wheel.cancel(item[0])
            else:
                wheel.insert(item)  # type: ignore[arg-type]

    def _look_at_wall(self) -> None:
        before = self._clock.elapsed()
        offset = self._clock.wall() - before
        if abs(offset - self._offset) > STEP and self._clock.elapsed() - before < STEP / 5:  # else the thread lost the GIL in between
            self.on_step()
            self._offset = offset  # not before: a step that could not be followed, since the store failed, is tried again

    def _sleep_from(self, now: float) -> float | None:
        due = self.wheel.next_due()
        look = inf if due is None else min(due, now + LOOK)
        self.next_look = look
        if self.inbox:
            return 0.0
        return None if look == inf else max(0.0, look - now)


class Guard:
    """Makes a ticker's passes, whatever they raise: counted, told once. For the room's thread, whoever made that."""

    def __init__(self, ticker: Ticker, clock: Clock) -> None:
        self.ticker = ticker
        self.errors = 0
        self.stopping = False
        """Set once, by `stop`: no further pass is made."""
        self.busy_since: float | None = None
        """Elapsed moment at which the present pass began; None while asleep."""
        self.on_fault: Callable[[BaseException], None] = lambda error: None
        """Told each error that is told at all."""
        self._clock = clock
        self._last_error = ""

    def guarded_pass(self) -> float | None:
        """`ticker.pass_()`; after an error a short sleep, so that one that stays costs no CPU."""
        if self.stopping:
            return 0.0
        try:
            self.busy_since = self._clock.elapsed()
            return self.ticker.pass_()
        except BaseException as error:  # whatever it is, the jobs behind it must not wait for ever
            self.errors += 1
            if repr(error) != self._last_error:
                self._last_error = repr(error)
                log.exception("the ticker met an error and goes on; it is told once, health() counts it")
                self.on_fault(error)
            return 0.05
        finally:
            self.busy_since = None

    def health(self, problem: str | None) -> RoomHealth:
        """How the room is, from any thread; `problem` is the caller's to know."""
        ticker, busy_since, look = self.ticker, self.busy_since, self.ticker.next_look
        now = self._clock.elapsed()
        asleep = look not in (inf, -inf)
        behind = busy_since if busy_since is not None else look if asleep else now
        return RoomHealth(
            waiting=ticker.wheel.pending + len(ticker.inbox),
            next_wake=datetime.fromtimestamp(self._clock.wall() + look - now, UTC) if asleep else None,
            lag=max(0.0, now - behind),
            errors=self.errors,
            problem=problem,
        )


class TickerThread(Guard):
    """One daemon thread that sleeps to the next due moment, not per tick: with nothing waiting it does not wake at all."""

    def __init__(self, ticker: Ticker, clock: Clock) -> None:
        super().__init__(ticker, clock)
        self._waker = Waker()
        self.wake = self._waker.wake
        """Ends the present or the next sleep at once; called by adders, from any thread."""
        self._thread = threading.Thread(target=self._live, name="jobwheel-ticker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Ends the thread, waiting for its present pass unless it is the caller."""
        self.stopping = True
        self.wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _live(self) -> None:
        while not self.stopping:
            self.ticker.next_look = -inf
            self._waker.sleep(self.guarded_pass())
