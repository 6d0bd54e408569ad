"""The background queue: jobs without a delay, added one by one while eight threads run them, until the last has run.

In memory beside a bare `concurrent.futures.ThreadPoolExecutor`, which has no states, keys, priorities or time limits, and beside Huey's
MemoryHuey; on disk beside SqliteHuey, which as it comes also syncs each commit. Each has a single job class or function that notes its
number; for jobs of a millisecond that note sleeps first.
"""

import gc
import itertools
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from huey import MemoryHuey

from benchmarks import durable_peers, peers
from benchmarks.peers import WORKERS, Numbered, call, set_note
from benchmarks.report import reached, row

Rates = dict[str, float]
TURNS = 5
"""How many times the peers take turns in a round."""


class Queue(Protocol):
    """What runs jobs in the background."""

    def put(self, number: int) -> object: ...
    def stop(self) -> None: ...


class Jobwheel(peers.Jobwheel):
    """As an application uses it: every check, a picture back from each add."""

    def put(self, number: int) -> object:
        return self.timer.add_job(Numbered(number))

    def stop(self) -> None:
        self.timer.shutdown(5.0)


class JobwheelOnDisk(durable_peers.Jobwheel):
    """The same on a file, each add on disk when it returns."""

    def put(self, number: int) -> object:
        return self.timer.add_job(Numbered(number))


class Pool:
    """The pool of the standard library."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(WORKERS)

    def put(self, number: int) -> object:
        return self.pool.submit(call, number)

    def stop(self) -> None:
        self.pool.shutdown()


class HueyOnDisk(durable_peers.Huey):
    """SqliteHuey with its consumer at work."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.start()

    def put(self, number: int) -> object:
        return self.huey.enqueue(self.task.s(number))


class HueyInMemory(HueyOnDisk):
    """MemoryHuey with the same consumer."""

    def __init__(self) -> None:
        self.huey = MemoryHuey()
        self.task = self.huey.task()(call)
        self.start()


def work_off(queue: Queue, count: int, seconds: float, adders: int) -> float:
    """Seconds from the first of `count` adds by so many threads until all these jobs have run, each for so many seconds."""
    ran = itertools.count(1)
    done = threading.Event()

    def note(_number: int) -> None:
        if seconds:
            time.sleep(seconds)
        if next(ran) == count:
            done.set()

    def add(first: int) -> None:
        for number in range(first, count, adders):
            queue.put(number)

    set_note(note)
    others = [threading.Thread(target=add, args=(first,)) for first in range(1, adders)]
    gc.collect()
    begin = time.perf_counter()
    for other in others:
        other.start()
    add(0)
    if not done.wait(timeout=300):
        sys.exit(f"{type(queue).__name__}: not all of {count} jobs ran within 300 s")
    taken = time.perf_counter() - begin
    set_note(lambda number: None)
    return taken


def rates(queues: dict[str, Queue], count: int, seconds: float, adders: int = 1) -> Rates:
    """Jobs per second of each, which take turns."""
    taken = dict.fromkeys(queues, 0.0)
    for _ in range(TURNS):
        for name, queue in queues.items():
            taken[name] += work_off(queue, count // TURNS, seconds, adders)
    for queue in queues.values():
        queue.stop()
    return {name: count // TURNS * TURNS / spent for name, spent in taken.items()}


def compare(name: str, found: list[Rates], goals: Rates) -> None:
    """A row for each peer, with how many times its rate ours is, which is meant to be once at the least."""
    mine = statistics.median(one["jobwheel"] for one in found)
    for theirs, goal in goals.items():
        other = statistics.median(one[theirs] for one in found)
        times = statistics.median(one["jobwheel"] / one[theirs] for one in found)
        row(name, f"{mine:9,.0f}  {theirs} {other:8,.0f} ({times:.2f}x)", f"goal {goal:g}x: {reached(times >= goal)}")


def in_memory(count: int, rounds: int) -> None:
    # Eight threads that sleep are as fast as their sleep, whoever wakes them: there the pool can only be equalled.
    for seconds, text, jobs, goal in ((0.0, "no-op jobs", count, 1.0), (0.001, "jobs of 1 ms", count // 4, 0.9)):
        found = [rates({"jobwheel": Jobwheel(), "pool": Pool(), "huey": HueyInMemory()}, jobs, seconds) for _ in range(rounds)]
        compare(f"{text} in the background, done per second", found, {"pool": goal, "huey": 1.0})
