"""A thread that sleeps to the next expected moment and then looks: how the thread engine sees that a time limit is over.

No wake-up is lost: whoever expects a moment first writes it where `look` finds it and then compares it with `next_look`; the watch
first publishes `next_look` and then looks once more before it sleeps.
"""

import threading
from collections.abc import Callable
from math import inf

from jobwheel.clock import Clock
from jobwheel.engine import Desk
from jobwheel.log import logger
from jobwheel.waker import Waker

log = logger("jobwheel.engine")


class Watch:
    """Calls `look`, which does what is over and gives the next moment (elapsed seconds; inf: none), and sleeps until then."""

    def __init__(self, clock: Clock, look: Callable[[], float], desk: Desk) -> None:
        self._clock = clock
        self._desk = desk
        self._look = look
        self._next_look = inf
        self._waker = Waker()
        self._stopping = False
        self._thread = threading.Thread(target=self._live, name="jobwheel-watch", daemon=True)

    def start(self) -> None:
        """Starts the thread; without one (the process is at its limit) time limits are not watched, which is told."""
        try:
            self._thread.start()
        except RuntimeError:
            log.warning("the watch thread could not be started: runs past their timeout will not be noticed")

    def expect(self, moment: float) -> None:
        """From any thread: look at `moment` at the latest."""
        if moment < self._next_look:
            self._waker.wake()

    def stop(self) -> None:
        """Ends the thread; it is not waited for."""
        self._stopping = True
        self._waker.wake()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _live(self) -> None:
        while not self._stopping:
            try:
                moment = self._next_look = self._look()
                if self._look() < moment:
                    continue
                wait = None if moment == inf else moment - self._clock.elapsed()
            except BaseException as error:
                log.exception("the watch met an error and goes on")
                self._desk.fault("watch", error)
                wait = 1.0
            self._waker.sleep(wait)
