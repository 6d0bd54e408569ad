"""The waiting room of `jobwheel.testing`: the wheel and the ticker of production, without the thread."""

from collections.abc import Callable

from jobwheel.clock import Clock
from jobwheel.row import Entry
from jobwheel.settings import Settings
from jobwheel.ticker import Ticker
from jobwheel.waiting import OnDue, RoomHealth, WaitingRoom
from jobwheel.wheel import Wheel


class ManualRoom(WaitingRoom):
    """`ticker.pass_()` is called by the manual clock."""

    def __init__(self, clock: Clock, settings: Settings) -> None:
        self.ticker = Ticker(Wheel(settings.wheel.slots, settings.wheel.tick, clock.elapsed()), clock)

    def start(self, on_due: OnDue, on_step: Callable[[], None]) -> None:
        self.ticker.on_due, self.ticker.on_step = on_due, on_step

    def arm(self, entry: Entry) -> None:
        self.ticker.inbox.append(entry)

    def disarm(self, entry: Entry) -> None:
        self.ticker.inbox.append((entry,))

    def stop(self) -> None:
        pass

    def health(self) -> RoomHealth:
        return RoomHealth(waiting=self.ticker.wheel.pending + len(self.ticker.inbox))
