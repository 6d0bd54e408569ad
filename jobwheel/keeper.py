"""The keeper: brings into room and lanes what a shared store holds for this process. `Keeper` is one look; its thread, one a second.

Does: load the window of what falls due next, ahead of time; sweep for what is overdue and nobody claimed; tell of jobs that ended because
their process died. Does not: claim or run anything. Made by `lifecycle` for stores that are shared.
Promises: no exception ends the thread; what fails is told to the dispatcher, which logs it once.
"""

import threading
from collections.abc import Callable

from jobwheel.clock import Clock
from jobwheel.dispatcher import Dispatcher
from jobwheel.log import logger
from jobwheel.row import Entry
from jobwheel.store import Store
from jobwheel.waker import Waker

log = logger("jobwheel.keeper")

HORIZON = 3600.0
"""Seconds ahead for which jobs are brought into the room; again when half of it has passed."""
EACH = 1.0
"""Seconds between two looks: what a process left behind, or added without a timer of its own, waits that long at most."""
OVERDUE = 1024
"""Overdue entries taken from the store at most, while more wait there: enough for the workers until the next look is done."""


class Keeper:
    """One look after the other, by one thread at a time."""

    def __init__(self, store: Store, clock: Clock, dispatcher: Dispatcher, arm: Callable[[Entry], None], horizon: float = HORIZON) -> None:
        self._store = store
        self._clock = clock
        self._dispatcher = dispatcher
        self._arm = arm
        self._horizon = horizon
        self.stopped = False
        """Set when its session ends: what a look that is under way then finds is left to the next session."""

    def look(self) -> None:
        """Sweeps and loads; whatever goes wrong is the dispatcher's to tell."""
        try:
            self._look()
        except Exception as error:
            self._dispatcher.trouble("sweep", error)
        else:
            self._dispatcher.works("sweep")

    def _look(self) -> None:
        store, dispatcher = self._store, self._dispatcher
        sweep = store.sweep(OVERDUE - len(dispatcher.overdue))
        for entry in sweep.entries:
            self._arm(entry)
        dispatcher.add_overdue(sweep.overdue, sweep.more)
        dispatcher.release_up_to(sweep.room)
        self._leave_if_stopped([*sweep.entries, *sweep.overdue])
        for row in sweep.ended:
            dispatcher.ended(row)
        if sweep.trouble is not None:
            raise sweep.trouble
        ahead = store.window(self._clock.elapsed() + self._horizon)
        for entry in ahead:
            self._arm(entry)
        self._leave_if_stopped(ahead)

    def _leave_if_stopped(self, entries: list[Entry]) -> None:
        if self.stopped:
            for entry in entries:
                self._store.disown(entry)


class KeeperThread:
    """One daemon thread around a keeper."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._waker = Waker()
        self.wake = self._waker.wake
        """Lets it look at once: the lanes run low."""
        self.on_fault: Callable[[BaseException], None] = lambda error: None
        """Told each error that `look` itself could not tell."""
        self._stopping = False
        self._thread = threading.Thread(target=self._live, name="jobwheel-keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Ends the thread, waiting for its present look unless it is the caller."""
        self._stopping = True
        self.wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _live(self) -> None:
        while not self._stopping:
            try:
                self._keeper.look()
            except BaseException as error:
                log.exception("the keeper met an error and goes on")
                self.on_fault(error)
            self._waker.sleep(EACH)
