"""The wheel as a waiting room: `Wheel` and its ticker. The default, exact to the millisecond."""

import threading
from collections.abc import Callable

from jobwheel.clock import Clock
from jobwheel.row import Entry
from jobwheel.settings import Settings
from jobwheel.ticker import Ticker, TickerThread
from jobwheel.waiting import OnDue, RoomHealth, WaitingRoom
from jobwheel.wheel import Wheel


class WheelRoom(WaitingRoom):
    """Adding is one append to a deque and one comparison; the ticker alone touches the wheel."""

    def __init__(self, clock: Clock, settings: Settings) -> None:
        self.ticker = Ticker(Wheel(settings.wheel.slots, settings.wheel.tick, clock.elapsed()), clock)
        self._inbox = self.ticker.inbox
        self._thread = TickerThread(self.ticker, clock)
        self._started = threading.Event()

    def start(self, on_due: OnDue, on_step: Callable[[], None]) -> None:
        self.ticker.on_due, self.ticker.on_step = on_due, on_step
        self._thread.on_fault = self.on_fault
        self._thread.start()
        self._started.set()

    def arm(self, entry: Entry) -> None:
        self._inbox.append(entry)
        if entry.due < self.ticker.next_look:
            self._thread.wake()

    def disarm(self, entry: Entry) -> None:
        self._inbox.append((entry,))

    def stop(self) -> None:
        if self._started.is_set():
            self._thread.stop()

    def health(self) -> RoomHealth:
        dead = self._started.is_set() and not self._thread.alive
        return self._thread.health("the ticker thread has ended" if dead else None)
