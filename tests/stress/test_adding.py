"""Adding while the wheel turns: nothing is lost, nothing comes twice, nothing is late by a turn."""

import threading
from collections import Counter
from random import Random
from typing import Any

import pytest
from crowds import Count, CountAsync, check_empty, crowd, drained, nervous, now

from jobwheel.backends.wheel import WheelRoom
from jobwheel.clock import SystemClock
from jobwheel.errors import TooManyPending
from jobwheel.settings import from_mapping

SECONDS = 2.0


class Entry:
    __slots__ = ("due", "number", "place", "priority")

    def __init__(self, due: float, number: int) -> None:
        self.due = due
        self.number = number
        self.place: object = None
        self.priority = 0


@pytest.mark.parametrize(("slots", "tick"), [(3600, 1.0), (60, 0.5), (8, 0.1), (8, 0.01), (1, 0.05)])
def test_entries_armed_into_the_slot_that_is_drained_come_out_once_and_never_a_turn_late(slots: int, tick: float, wait_until: Any) -> None:
    """R29: four threads arm as fast as they can, due within the present slot or the next."""
    room = WheelRoom(SystemClock(), from_mapping({"wheel": {"slots": slots, "tick": tick}}))
    out: list[tuple[int, float]] = []

    def on_due(entries: list[Any]) -> None:
        at = now()
        out.extend((entry.number, at - entry.due) for entry in entries)

    room.start(on_due, lambda: None)
    armed = [0, 0, 0, 0]

    def arm(number: int) -> None:
        random, end, pause = Random(number), now() + SECONDS, threading.Event()
        while now() < end:
            for _ in range(20):
                room.arm(Entry(now() + random.random() * 2 * tick, armed[number] * 4 + number))
                armed[number] += 1
            pause.wait(0.0005)

    crowd(4, arm)
    wait_until(lambda: room.health().waiting == 0, 10 + 2 * tick, what="an empty wheel")
    room.stop()
    assert sum(armed) > 5000
    assert len(out) == sum(armed), "lost or doubled"
    assert len({number for number, _ in out}) == sum(armed)
    lateness = [late for _, late in out]
    assert min(lateness) >= 0
    if slots * tick >= 30:  # a shorter turn cannot be told from a machine that is busy elsewhere
        assert max(lateness) < 0.8 * slots * tick


@pytest.mark.parametrize("wheel", [{"slots": 3600, "tick": 1.0}, {"slots": 8, "tick": 0.01}], ids=str)
def test_jobs_added_by_four_threads_all_run_once(opened: Any, wait_until: Any, wheel: dict[str, Any]) -> None:
    """added = run + pending, at every stage: due now, in this slot, in the next ones, beyond the turn; plain and coroutine jobs."""
    timer = opened(wheel=wheel, workers={"threads": 4})
    runs = Count.fresh()

    def add(number: int) -> int:
        random, end, added, pause = Random(number), now() + SECONDS, 0, threading.Event()
        while now() < end:
            for _ in range(10):
                kind = CountAsync if random.random() < 0.05 else Count
                timer.add_job(kind(added * 4 + number), random.choice([None, 0, 0.001, 0.01, random.random() * 0.2]))
                added += 1
            pause.wait(0.002)
        return added

    added = sum(crowd(4, add))
    wait_until(lambda: drained(timer), 60, what="all jobs to run")
    assert len(runs) == added == timer.stats().succeeded
    assert len({number for number, _, _ in runs}) == added
    check_empty(timer)
    assert timer.health().ok


def test_max_pending_is_never_passed_by_eight_threads(opened: Any) -> None:
    """R47: counting and adding are one step."""
    limit = 200
    timer = opened(max_pending=limit, start=False)
    seen: list[int] = []

    def work(number: int) -> Counter[str]:
        random, counted, mine = Random(number), Counter(), []
        for _ in range(4000):
            if random.random() < 0.6:
                try:
                    mine.append(timer.add_job(Count(number), 1000))
                    counted["added"] += 1
                except TooManyPending:
                    counted["refused"] += 1
            elif mine:
                counted["cancelled"] += timer.cancel(mine.pop(random.randrange(len(mine))))
            seen.append(timer.stats().pending)
        return counted

    with nervous():
        total = sum(crowd(8, work), Counter())
    assert max(seen) == limit
    assert total["refused"] > 0
    assert timer.stats().pending == total["added"] - total["cancelled"] <= limit
    for _ in range(limit - timer.stats().pending):
        timer.add_job(Count(0), 1000)
    with pytest.raises(TooManyPending):
        timer.add_job(Count(0), 1000)


def test_stopping_and_starting_under_load_loses_nothing_and_doubles_nothing(opened: Any, wait_until: Any) -> None:
    """R61, R62: what was claimed and not started is handed back; rows that come at the moment of a start or a stop are not forgotten."""
    timer = opened(workers={"threads": 3, "coroutines": 2}, wheel={"slots": 8, "tick": 0.01})
    runs = Count.fresh()
    stop = threading.Event()

    def add(number: int) -> int:
        random, added, pause = Random(number), 0, threading.Event()
        while not stop.is_set():
            for _ in range(5):
                kind = CountAsync if random.random() < 0.3 else Count
                timer.add_job(kind(added * 4 + number), random.choice([None, 0, 0.001, 0.02]))
                added += 1
            pause.wait(0.001)
        return added

    def flip(_: int) -> int:
        end = now() + SECONDS
        while now() < end:
            timer.shutdown(0)
            timer.start()
        stop.set()
        return 0

    with nervous(1e-4):
        added = sum(crowd(4, lambda number: flip(number) if number == 3 else add(number)))
    timer.start()
    wait_until(lambda: drained(timer), 60, what="all jobs to run")
    assert timer.stats().succeeded == added
    assert len(runs) == len({number for number, _, _ in runs}) == added
    check_empty(timer)
