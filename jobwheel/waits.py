"""Threads that wait for jobs to end: who waits for which id. `TimerManager.wait` enters; whoever ends a job tells."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Waits:
    """Waiting threads by the id of the job. The lock guards `ids`; reentrant for the sake of signal handlers."""

    def __init__(self) -> None:
        self.ids: dict[int, list[threading.Event]] = {}
        """Empty nearly always, and then there is nobody to tell."""
        self._lock = threading.RLock()

    @contextmanager
    def waiting_for(self, id: int) -> Iterator[threading.Event]:
        """An event that is set once the job has ended. Look at the job after entering: it may have ended before."""
        ended = threading.Event()
        with self._lock:
            self.ids.setdefault(id, []).append(ended)
        try:
            yield ended
        finally:
            with self._lock:
                waiting = self.ids[id]
                waiting.remove(ended)
                if not waiting:
                    del self.ids[id]

    def tell(self, id: int) -> None:
        """The job has ended."""
        with self._lock:
            for ended in self.ids.get(id, ()):
                ended.set()

    def after_fork(self) -> None:
        """In a forked child: the waiting threads are the parent's, and so may be the lock."""
        self.ids = {}
        self._lock = threading.RLock()
