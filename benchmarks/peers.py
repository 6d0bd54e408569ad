"""The three that are measured, behind one face: jobwheel, APScheduler 3.11, and the forty-line heap that people write by hand.

All have eight workers. APScheduler gets MemoryJobStore and `misfire_grace_time=None`, without which it drops late jobs.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from apscheduler.executors.pool import ThreadPoolExecutor as ApsPool
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler

from jobwheel import IJob, open_timer

WORKERS = 8
Note = Callable[[int], None]
_note: Note = lambda number: None  # noqa: E731


def set_note(note: Note) -> None:
    """What every job of every peer calls with its number when it runs."""
    global _note  # noqa: PLW0603
    _note = note


@dataclass
class Numbered(IJob, kind="bench.numbered"):
    """The job of all measurements."""

    number: int

    def run(self) -> None:
        _note(self.number)


def call(number: int) -> None:
    """The same for the peers that take functions."""
    _note(number)


class Peer(Protocol):
    """What can be measured of each."""

    name: str

    def add(self, number: int, delay: float, key: str) -> object: ...
    def add_at(self, number: int, date: datetime, key: str) -> object: ...
    def cancel(self, key: str) -> object: ...
    def touch(self, key: str, delay: float) -> object: ...
    def stop(self) -> None: ...


class Jobwheel:
    """As an application uses it: every check, a snapshot back from each add, the ticker running."""

    name = "jobwheel"

    def __init__(self, **settings: Any) -> None:
        self.timer = open_timer({"store": {"kind": "memory"}, "workers": {"threads": WORKERS}, **settings})
        self.timer.start()
        add_job, self.cancel, touch = self.timer.add_job, self.timer.cancel, self.timer.touch
        self.add = lambda number, delay, key: add_job(Numbered(number), delay, key=key)
        self.add_at = lambda number, date, key: add_job(Numbered(number), at=date, key=key)
        self.touch = lambda key, delay: touch(key)

    def stop(self) -> None:
        self.timer.shutdown(0)


class Apscheduler:
    """BackgroundScheduler; the key is the job's id."""

    name = "apscheduler"

    def __init__(self) -> None:
        self.scheduler = BackgroundScheduler(
            executors={"default": ApsPool(WORKERS)}, job_defaults={"misfire_grace_time": None, "coalesce": True}, timezone=UTC
        )
        self.scheduler.start()

    def add(self, number: int, delay: float, key: str) -> object:
        return self.add_at(number, datetime.now(UTC) + timedelta(seconds=delay), key)

    def add_at(self, number: int, date: datetime, key: str) -> object:
        return self.scheduler.add_job(call, "date", run_date=date, args=(number,), id=key)

    def cancel(self, key: str) -> object:
        try:
            return self.scheduler.remove_job(key)
        except JobLookupError:
            return None

    def touch(self, key: str, delay: float) -> object:
        return self.scheduler.reschedule_job(key, trigger="date", run_date=datetime.now(UTC) + timedelta(seconds=delay))

    def stop(self) -> None:
        self.scheduler.shutdown(wait=False)


class Heap:
    """A heap, a condition, one thread, a ThreadPoolExecutor; cancel and touch leave dead entries behind."""

    name = "heap"

    def __init__(self) -> None:
        self.heap: list[list[Any]] = []
        self.by_key: dict[str, list[Any]] = {}
        self.count = itertools.count()
        self.news = threading.Condition()
        self.pool = ThreadPoolExecutor(WORKERS)
        self.stopping = False
        self.offset = time.time() - time.monotonic()
        threading.Thread(target=self._live, daemon=True).start()

    def add_at(self, number: int, date: datetime, key: str) -> object:
        return self._add(date.timestamp() - self.offset, number, key)

    def add(self, number: int, delay: float, key: str) -> object:
        return self._add(time.monotonic() + delay, number, key)

    def _add(self, due: float, number: int, key: str) -> object:
        entry = [due, next(self.count), number, key]
        with self.news:
            heapq.heappush(self.heap, entry)
            self.by_key[key] = entry
            if self.heap[0] is entry:
                self.news.notify()
        return entry

    def cancel(self, key: str) -> object:
        with self.news:
            entry = self.by_key.pop(key, None)
            if entry is not None:
                entry[2] = None
        return entry

    def touch(self, key: str, delay: float) -> object:
        with self.news:
            entry = self.by_key[key]
            number, entry[2] = entry[2], None
        return self.add(number, delay, key)

    def _live(self) -> None:
        while not self.stopping:
            due = []
            with self.news:
                now = time.monotonic()
                while self.heap and self.heap[0][0] <= now:
                    entry = heapq.heappop(self.heap)
                    if entry[2] is not None:
                        self.by_key.pop(entry[3], None)
                        due.append(entry[2])
                if not due:
                    self.news.wait(self.heap[0][0] - now if self.heap else None)
            for number in due:
                self.pool.submit(call, number)

    def stop(self) -> None:
        self.stopping = True
        with self.news:
            self.news.notify()
        self.pool.shutdown(wait=False, cancel_futures=True)


PEERS: tuple[Callable[[], Peer], ...] = (Jobwheel, Apscheduler, Heap)
