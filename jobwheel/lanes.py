"""Lanes: first in, first out by priority, with a share for what has waited too long.

Promises: any number of threads may push and pop at once, each item comes out once, and nothing starves: an item that has waited
longer than `ageing` seconds past its due moment is served by every fourth pop, oldest first, whatever the priorities. So with
n such items before it and pops p seconds apart, it waits at most ageing + 4 * (n + 1) * p.
Relies on: deque operations being atomic; nobody else changing `due` of what is in here to an earlier moment.
Not promised: the exact order between items pushed at the same moment by different threads.
"""

import threading
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Generic, TypeVar

from jobwheel.row import Entry

E = TypeVar("E", bound=Entry)

SHARE = 4
"""Every so many pops one is for the aged, where there are any."""


class Lanes(Generic[E]):
    """One deque for each priority that was ever seen."""

    def __init__(self, elapsed: Callable[[], float], ageing: float) -> None:
        self._elapsed = elapsed
        self._ageing = ageing
        self._lanes: dict[int, deque[E]] = {}
        self._order: tuple[deque[E], ...] = ()  # highest priority first; replaced, never changed
        self.several = False
        """More than one priority has been met: an order among them matters."""
        self._growing = threading.Lock()  # guards _lanes and _order while a priority is met for the first time
        self._pops = count(1)

    def push(self, items: list[E]) -> None:
        """Adds them at the ends of their lanes."""
        lanes = self._lanes
        priorities = {item.priority for item in items}
        for priority in priorities:
            lane = lanes.get(priority)
            if lane is None:
                lane = self._new_lane(priority)
            lane.extend(items if len(priorities) == 1 else [item for item in items if item.priority == priority])

    def push_front(self, item: E) -> None:
        """Puts one back that was popped and could not be used."""
        lane = self._lanes.get(item.priority)
        (self._new_lane(item.priority) if lane is None else lane).appendleft(item)

    def _new_lane(self, priority: int) -> deque[E]:
        with self._growing:
            lane = self._lanes.setdefault(priority, deque())
            self._order = tuple(self._lanes[key] for key in sorted(self._lanes, reverse=True))
            self.several = len(self._order) > 1
            return lane

    def pop(self) -> E | None:
        """The next item; None if there is none."""
        order = self._order
        if len(order) > 1 and next(self._pops) % SHARE == 0:
            aged = self._pop_aged(order)
            if aged is not None:
                return aged
        while True:
            for lane in order:
                try:
                    return lane.popleft()
                except IndexError:
                    continue
            # Something may have come into a lane after it was looked at, while what was in another one was taken: look again, since
            # a worker that was told of an item must find one.
            order = self._order
            if not any(order):
                return None

    def pop_many(self, most: int) -> list[E]:
        """Up to `most` items, as that many pops would give them."""
        items: list[E] = []
        if len(self._order) == 1:
            popleft = self._order[0].popleft
            try:
                for _ in range(most):
                    items.append(popleft())  # noqa: PERF401 (a comprehension would lose them all when the lane runs empty)
            except IndexError:
                return items
            return items
        while len(items) < most and (item := self.pop()) is not None:
            items.append(item)
        return items

    def _pop_aged(self, order: tuple[deque[E], ...]) -> E | None:
        horizon = self._elapsed() - self._ageing
        oldest: deque[E] | None = None
        oldest_due = horizon
        for lane in order:
            try:
                due = lane[0].due
            except IndexError:
                continue
            if due < oldest_due:
                oldest, oldest_due = lane, due
        if oldest is None:
            return None
        try:
            return oldest.popleft()
        except IndexError:  # another thread was faster
            return None

    def __len__(self) -> int:
        return sum(map(len, self._order))

    def __bool__(self) -> bool:
        order = self._order
        return bool(order[0]) if len(order) == 1 else any(order)

    def oldest(self) -> float | None:
        """The earliest due moment among the heads of the lanes; None if empty."""
        dues = []
        for lane in self._order:
            try:
                dues.append(lane[0].due)
            except IndexError:
                continue
        return min(dues, default=None)

    def drain(self) -> list[E]:
        """Takes everything out."""
        items: list[E] = []
        while batch := self.pop_many(1000):
            items += batch
        return items
