"""The waiting-room contract: holds the entries of the near future and says "these are due now". Members: `jobwheel/backends/`.

A room is a cache. It may be thrown away and filled again from the store; an entry in it that is out of date does no harm, since the
claim in the store decides. It runs no user code, and it knows neither stores nor engines.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from jobwheel.row import Entry

OnDue = Callable[[list[Entry]], None]
"""Called by the room's own thread, entries in order of due moment. Returns soon and never raises."""


def _tell_nobody(error: BaseException) -> None:
    """Where nobody cares."""


@dataclass(frozen=True, slots=True)
class RoomHealth:
    """How a room is."""

    waiting: int
    """Entries that it holds, dead ones not counted."""
    next_wake: datetime | None = None
    """When it will look again at the latest; None: when something is added."""
    lag: float = 0.0
    """Seconds by which its thread is behind: grows when the thread is dead or starved."""
    errors: int = 0
    """Exceptions that its thread survived."""
    problem: str | None = None
    """In words, when it cannot do its work."""


class WaitingRoom(ABC):
    """See the module. `Room(clock, settings)` makes it; nothing runs before `start`, and a stopped room is not started again."""

    on_fault: Callable[[BaseException], None] = staticmethod(_tell_nobody)
    """Set before `start`; called by the room's thread with an error that it survived, once for those that repeat. Never raises."""

    @abstractmethod
    def start(self, on_due: OnDue, on_step: Callable[[], None]) -> None:
        """Starts its thread. `on_step` is called by it when the wall clock was stepped: wall-clock entries must be armed anew."""

    @abstractmethod
    def arm(self, entry: Entry) -> None:
        """From now on `entry` comes out at its due moment or soon after it, never before. From any thread, never blocking.

        An entry that is armed already moves: needed only when its due moment became *earlier*; a later one the room sees by itself.
        """

    @abstractmethod
    def disarm(self, entry: Entry) -> None:
        """The room may forget `entry`; it can still come out once. From any thread, never blocking."""

    @abstractmethod
    def stop(self) -> None:
        """Nothing more comes out once it returns, called from another thread; from the room's own thread: after this call of `on_due`."""

    @abstractmethod
    def health(self) -> RoomHealth:
        """How it is now."""
