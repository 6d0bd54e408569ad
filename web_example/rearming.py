"""What the shop has promised to do later, and that it is kept: what every scenario shares about setting and taking away its jobs.

A promise is a row of the shop's database; its job in jobwheel's file only wakes the shop when the time has come. The two files are written
one after the other, the row first. A process that dies just between the two leaves a row without a job, and `Rearming` finds it at the next
start of any process. A job without a row finds nothing to do and ends.

Called by the scenarios, before requests, and at start.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

from jobwheel import TimerManager
from jobwheel.errors import JobwheelError

log = logging.getLogger(__name__)

Promises = Callable[[], Iterable[Mapping[str, Any]]]
"""Gives, for `TimerManager.add_jobs`, the job of every promise that a scenario's rows hold, each with a key."""


def release(timer: TimerManager, key: str) -> None:
    """Takes the job of a promise that is over away. A failure is only logged: the job would find the row changed and do nothing."""
    try:
        timer.cancel(key)
    except JobwheelError as error:
        log.warning("the job %s could not be cancelled; it will find nothing to do: %s", key, error)


class Rearming:
    """Gives every promise that has no job one: once in each process that serves the shop, before its first request is answered, and again
    when asked to.
    """

    def __init__(self, timer: TimerManager, *scenarios: Promises) -> None:
        self._timer = timer
        self._scenarios = scenarios
        self._lock = threading.Lock()
        """Held while rearming, so that no request gets past before it is done."""
        self._asked = 0
        """How often `again` was called, by any thread; that two at once may count as one does no harm."""
        self._done = (0, 0)
        """The process and the count that it was done for; written under the lock."""

    def once(self) -> None:
        """Returns when every promise has its job. Raises a JobwheelError if the timer's file fails, and then the next call tries again."""
        if self._done == self._wish():
            return
        with self._lock:
            wish = self._wish()
            if self._done != wish:
                found = self.rearm()
                self._done = wish
                log.info("promises found: %d; each has its job", found)

    def again(self) -> None:
        """Lets the next request do it once more."""
        self._asked += 1

    def rearm(self) -> int:
        """Gives every promise that has no job one; those that have one keep it. Returns how many promises there were.

        Harmless at any moment and in any number of processes. What fell due while nobody was there runs at once. Raises a JobwheelError
        if the timer's file fails; then nothing was changed.
        """
        kept: Mapping[str, Any] = {"if_exists": "keep"}
        return len(self._timer.add_jobs({**kept, **promise} for promise in chain.from_iterable(give() for give in self._scenarios)))

    def _wish(self) -> tuple[int, int]:
        # The process counts: with the memory store a forked child starts with an empty timer and must do it anew.
        return os.getpid(), self._asked
