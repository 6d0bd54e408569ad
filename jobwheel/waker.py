"""A sleep that any thread, and any signal handler, can end: how the ticker and the watch wait.

Promises: a `wake` that comes before or during a `sleep` ends it; none is lost.
Relies on: `SimpleQueue` being C code: unlike `threading.Event.set`, its `put` cannot be cut in two by a Ctrl-C in the main thread,
after which everybody would believe the sleeper to be awake.
"""

from queue import Empty, SimpleQueue

LONGEST = 3600.0
"""Seconds of one sleep at most; the sleeper looks again then. The kernel's own limit is some 292 years, beyond which it raises."""


class Waker:
    """For one sleeping thread and any number of waking ones."""

    def __init__(self) -> None:
        self._news: SimpleQueue[None] = SimpleQueue()

    def wake(self) -> None:
        """Ends the present or the next sleep."""
        # If there is news already, the sleeper has yet to take it, and will look at everything after that.
        if self._news.empty():
            self._news.put(None)

    def sleep(self, seconds: float | None) -> None:
        """Returns after so many seconds (None: without limit) or when woken; all wakes up to then are used up."""
        try:
            self._news.get(timeout=None if seconds is None else min(max(0.0, seconds), LONGEST))
            while True:
                self._news.get_nowait()
        except Empty:
            return
