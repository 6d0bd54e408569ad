"""Lanes: priorities, order inside one, and the bound on waiting."""

import threading
from collections import Counter, deque
from dataclasses import dataclass

import pytest

from jobwheel.lanes import SHARE, Lanes


@dataclass(eq=False)
class Item:
    due: float
    priority: int = 0
    place: object = None


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def drained(lanes: Lanes[Item]) -> list[Item]:
    items = []
    while (item := lanes.pop()) is not None:
        items.append(item)
    return items


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def lanes(time: Time) -> Lanes[Item]:
    return Lanes(time, ageing=2.0)


def test_empty_lanes_give_nothing(lanes: Lanes[Item]) -> None:
    assert lanes.pop() is None
    assert not lanes


def test_larger_priority_first_and_first_in_first_out_inside_one(lanes: Lanes[Item]) -> None:
    items = [Item(0, priority) for priority in (0, 5, 0, -1, 5, 0)]
    lanes.push(items)
    assert drained(lanes) == [items[1], items[4], items[0], items[2], items[5], items[3]]


def test_pushes_in_several_calls_keep_their_order(lanes: Lanes[Item]) -> None:
    items = [Item(0, number % 2) for number in range(20)]
    for item in items:
        lanes.push([item])
    assert drained(lanes) == items[1::2] + items[::2]


def test_what_was_put_back_comes_first_in_its_lane(lanes: Lanes[Item]) -> None:
    low, back, high = Item(0), Item(0), Item(0, 9)
    lanes.push([low, high])
    lanes.push_front(back)
    assert drained(lanes) == [high, back, low]


def test_length_and_oldest_tell_what_waits(lanes: Lanes[Item]) -> None:
    lanes.push([Item(3.0), Item(1.0, 7), Item(0.5, 7)])
    assert lanes.oldest() == 1.0, "the heads are looked at, no more: each lane is in order of coming"
    lanes.drain()


def test_before_the_ageing_bound_priority_alone_counts(lanes: Lanes[Item], time: Time) -> None:
    time.now = 1.9
    low = Item(0.0)
    lanes.push([low, *(Item(1.9, 1) for _ in range(40))])
    assert drained(lanes)[-1] is low


def test_an_aged_item_is_served_within_the_stated_bound(time: Time) -> None:
    """Bound: ageing + SHARE * (n + 1) pops, under a load of high priority that never ends; n aged ones before it."""
    ageing, pops_apart = 2.0, 0.01
    lanes: Lanes[Item] = Lanes(time, ageing)
    before = [Item(0.0) for _ in range(10)]
    low = Item(0.0)
    lanes.push([*before, low])
    served_at = None
    while served_at is None and time.now < 10:
        lanes.push([Item(time.now, 5), Item(time.now, 5)])
        if lanes.pop() is low:
            served_at = time.now
        time.now += pops_apart
    assert served_at is not None
    assert ageing < served_at <= ageing + SHARE * (len(before) + 1) * pops_apart + pops_apart


def test_the_oldest_of_the_aged_goes_first_whatever_its_lane(lanes: Lanes[Item], time: Time) -> None:
    time.now = 10.0
    older, old = Item(1.0, -5), Item(2.0)
    lanes.push([old, older, *(Item(10.0, 9) for _ in range(10))])
    order = drained(lanes)
    assert order.index(older) == SHARE - 1
    assert order.index(old) == 2 * SHARE - 1


def test_ageing_takes_no_more_than_its_share(lanes: Lanes[Item], time: Time) -> None:
    time.now = 100.0
    lanes.push([Item(0.0) for _ in range(100)])
    high = [Item(100.0, 1) for _ in range(30)]
    lanes.push(high)
    first = [lanes.pop() for _ in range(40)]
    assert sum(item is not None and item.priority == 1 for item in first) == 30


def test_each_item_comes_out_once_whatever_threads_push_and_pop(time: Time) -> None:
    time.now = 5.0
    lanes: Lanes[Item] = Lanes(time, 2.0)
    items = [[Item(float(number % 7), number % 5) for number in range(3000)] for _ in range(3)]
    taken: list[list[Item]] = [[] for _ in range(3)]
    pushed = threading.Event()

    def push(mine: list[Item]) -> None:
        for start in range(0, len(mine), 7):
            lanes.push(mine[start : start + 7])

    def pop(mine: list[Item]) -> None:
        while True:
            ready = pushed.is_set()
            item = lanes.pop()
            if item is not None:
                mine.append(item)
            elif ready:
                return

    pushers = [threading.Thread(target=push, args=(mine,)) for mine in items]
    poppers = [threading.Thread(target=pop, args=(mine,)) for mine in taken]
    for thread in (*pushers, *poppers):
        thread.start()
    for thread in pushers:
        thread.join(20)
    pushed.set()
    for thread in poppers:
        thread.join(20)
    assert Counter(item for mine in taken for item in mine) == Counter(item for mine in items for item in mine)


def test_pop_never_says_empty_while_something_waits(lanes: Lanes[Item], time: Time) -> None:
    """A worker that was told of a row must find one, else that row waits for ever: also if another one took the row that it was
    told of, by way of the aged ones, while it looked from lane to lane.
    """
    time.now = 10.0
    old, new = Item(0.0, 0), Item(10.0, 9)
    lanes.push([Item(10.0, 9), old])
    lanes.pop()

    class Moving(deque[Item]):
        def popleft(self) -> Item:
            if not self and old in low:
                low.remove(old)
                self.append(new)
                raise IndexError
            return super().popleft()

    low = lanes._lanes[0]
    lanes._lanes[9] = Moving()
    lanes._order = (lanes._lanes[9], low)
    assert lanes.pop() is new
