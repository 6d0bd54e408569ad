"""The timing wheel: a structure that takes entries with a due moment and gives them back, in order, when time has come.

No thread, no clock, no lock, no callback: the caller says what time it is, and one thread at a time may call it (the
ticker does). Adding and cancelling cost O(1) whatever waits; advancing costs what is due.

**A worked example**: `Wheel(slots=4, tick_length=1.0, now=0.0)`. A moment's *tick* is `floor(due / tick_length)`, its *turn*
`tick // slots`, its slot `tick % slots`. Ticks are absolute, so nothing counts rounds. Insert a (due 1.7), b (1.2), c (3.0),
d (5.5), e (9.0):

    hand 0, turn 0    this turn:  0:-   1:a,b  2:-  3:c      next turn:  0:-  1:d  2:-  3:-      beyond:  turn 2: e
    advance(1.2)      slot 1 is opened and put in order: b (1.2), a (1.7);  gives [b]
    advance(1.7)      gives [a]; b and a never shared more than a slot, and each left at its own moment
    advance(4.0)      the hand enters turn 1; gives [c]
                      this turn:  0:-   1:d    2:-  3:-      next turn:  0:-  1:e  2:-  3:-      beyond:  nothing
    cancel(d)         True; a dead reference to it stays until its slot is opened or rebuilt
    e.due = 10.5      a lazy touch: nothing moves now
    advance(9.9)      slot 1 of turn 2 is opened, e is found to be due later and is put into slot 2;  gives []
    advance(12.0)     gives [e]: a pause over several slots is caught up in order

What is due beyond the next turn waits per turn in one list and moves into the ring once, during the turn before, a
piece with each advance. Dead references (of cancelled and moved entries) are bounded by
what waits: a slot that is more than half dead is rebuilt, and all are when there have been more cancels than there are entries.

Not promised: thread-safety, and order between entries that were touched to the same moment.

Longer than other rooms: one structure, whose three places (rings, beyond, opened) share their accounts.
"""

from bisect import bisect_right
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf, nextafter
from operator import attrgetter, itemgetter
from typing import Generic, TypeVar

from jobwheel.errors import BadValue
from jobwheel.row import Entry

E = TypeVar("E", bound=Entry)

PIECE = 256
"""Entries moved from beyond into the ring with one advance, at least; about 0.1 ms of work."""
FEW = 32
"""Dead references that a slot may hold whatever its size ..."""
SWEEP = 1000
"""... but all slots together no more than this and what waits."""

_due = attrgetter("due")


class Slot(list[E]):
    """The entries of one tick (or of one turn beyond the ring), in order of arrival. `dead` of them are not here any more."""

    __slots__ = ("dead", "wheel")

    def __init__(self, wheel: object) -> None:
        super().__init__()
        self.dead = 0
        self.wheel = wheel
        """An entry whose place belongs to another wheel, one that was given up with what it held, is in none of ours."""


class Wheel(Generic[E]):
    """A ring of `slots` slots, each `tick_length` seconds wide, standing at the moment `now`.

    Raises:
        BadValue: less than one slot, or a tick that is not a positive, finite number of seconds.
    """

    def __init__(self, slots: int = 3600, tick_length: float = 1.0, now: float = 0.0) -> None:
        if slots < 1:
            raise BadValue(f"a wheel of {slots} slots: it needs at least 1")
        if not 0 < tick_length < inf:
            raise BadValue(f"a tick of {tick_length} seconds: it must be more than 0 and finite")
        self.slots = slots
        self.tick_length = tick_length
        self.pending = 0
        """Entries inserted and neither given back nor cancelled; exact."""
        self._hand = int(now // tick_length)
        self._turn = self._hand // slots
        self._ring: list[Slot[E] | None] = [None] * slots
        self._next_ring: list[Slot[E] | None] = [None] * slots
        self._ticks: list[int] = []  # heap: every tick that has a slot in the two rings
        self._beyond: dict[int, Slot[E]] = {}  # by turn; while a turn is here, what is new for it comes here too (FIFO)
        self._turns: list[int] = []  # heap: the keys of _beyond
        self._moved = 0  # how much of the next turn's list has moved in
        self._open: Slot[E] = Slot(self)  # only a mark: the place of what is in _run or _late
        self._run: list[E] = []  # the opened slots' entries in order ...
        self._dues: list[float] = []  # ... their due moments when that order was made ...
        self._at = 0  # ... and how far both are done with
        self._late: list[tuple[float, int, E]] = []  # heap: what came for an opened slot
        self._order = count()
        self._since_sweep = 0  # cancels and moves since every slot was rebuilt

    def insert(self, entry: E) -> None:
        """Puts `entry` at its due moment; one that is here already moves there. Past moments come with the next advance."""
        place = self._place_of(entry)
        self._put(entry)
        if place is None:
            self.pending += 1
        else:
            place.dead += 1
            self._tidy(place)

    def cancel(self, entry: E) -> bool:
        """Takes `entry` out. False if it is not here: cancelled or given back already."""
        place = self._place_of(entry)
        if place is None:
            return False
        entry.place = None
        self.pending -= 1
        place.dead += 1
        self._tidy(place)
        return True

    def advance(self, now: float) -> list[E]:
        """Gives back what is due at or before `now`, in order of due moment, first in first out on equal ones.

        Every slot between the last advance and `now` is visited, however long that is; a `now` before the last one gives nothing new.
        """
        target = int(now // self.tick_length)
        if target > self._hand:
            self._roll(target)
        if self._moving() is not None:
            self._move_piece()
        return self._take(now)

    def next_due(self) -> float | None:
        """A moment at or before the next due one: exact within the opened slot, else where the next slot begins. None: nothing waits."""
        if not self.pending:
            return None
        moments = []
        if self._at < len(self._run):
            moments.append(self._dues[self._at])
        if self._late:
            moments.append(self._late[0][0])
        if moments:
            return min(moments)
        if self._ticks:
            return self._begin_of(self._ticks[0])
        return self._begin_of(self._turns[0] * self.slots) if self._turns else None

    def _begin_of(self, tick: int) -> float:
        """The first moment that belongs to `tick`: 10 * 0.1 is 1.0, but 1.0 // 0.1 is 9."""
        moment = tick * self.tick_length
        while moment // self.tick_length < tick:
            moment = nextafter(moment, inf)
        return moment

    @property
    def dead(self) -> int:
        """References that stay behind of cancelled and moved entries."""
        return self._references() - self.pending

    def loads(self) -> Iterator[tuple[int, int]]:
        """(tick, how many) for each tick of the two rings that something waits in, for pictures of the wheel."""
        for turn, ring in ((self._turn, self._ring), (self._turn + 1, self._next_ring)):
            for index, slot in enumerate(ring):
                if slot and len(slot) > slot.dead:
                    yield turn * self.slots + index, len(slot) - slot.dead

    def _place_of(self, entry: E) -> Slot[E] | None:
        place = entry.place
        return place if isinstance(place, Slot) and place.wheel is self else None

    def _put(self, entry: E) -> None:
        due = entry.due
        tick = int(due // self.tick_length)
        if tick <= self._hand:
            entry.place = self._open
            heappush(self._late, (due, next(self._order), entry))
            return
        turn = tick // self.slots
        slot = self._beyond.get(turn)
        if slot is None:
            if turn > self._turn + 1:
                slot = self._beyond[turn] = Slot(self)
                heappush(self._turns, turn)
            else:
                slot = self._slot(tick, turn)
        slot.append(entry)
        entry.place = slot

    def _slot(self, tick: int, turn: int) -> Slot[E]:
        ring = self._ring if turn == self._turn else self._next_ring
        index = tick - turn * self.slots
        slot = ring[index]
        if slot is None:
            slot = ring[index] = Slot(self)
            heappush(self._ticks, tick)
        return slot

    def _roll(self, target: int) -> None:
        """Moves the hand to `target`; all it passes is opened."""
        self._hand = target
        target_turn = target // self.slots
        while self._turn < target_turn:
            self._open_until(min(target, (self._turn + 1) * self.slots - 1))
            self._enter(self._turn + 1)
            if not self._ticks and self._moving() is None:
                # Nothing in either ring: an empty stretch costs nothing, whatever its length.
                stop = min(self._turns[0] - 1, target_turn) if self._turns else target_turn
                self._turn = max(self._turn, stop)
        self._open_until(target)

    def _enter(self, turn: int) -> None:
        while self._moving() is not None:
            self._move_piece()
        self._turn = turn
        self._ring, self._next_ring = self._next_ring, self._ring  # the passed ring is all None by now

    def _open_until(self, target: int) -> None:
        while self._ticks and self._ticks[0] <= target:
            tick = heappop(self._ticks)
            index = tick % self.slots
            slot = self._ring[index]
            assert slot is not None
            self._ring[index] = None
            self._open_slot(slot, tick)

    def _open_slot(self, slot: Slot[E], tick: int) -> None:
        """Brings the slot's live entries into exact order at the end of the run; one that was touched to a later tick moves there."""
        entries = [entry for entry in slot if entry.place is slot]
        if slot.dead:  # an entry that moved away and back is referred to twice
            entries = list({id(entry): entry for entry in entries}.values())
        # Each due moment is read once: another thread may touch it at any time.
        dues = [entry.due for entry in entries]
        ordered = sorted(dues)
        if ordered != dues:
            entries = [entries[index] for index in sorted(range(len(dues)), key=dues.__getitem__)]
            dues = ordered
        end = bisect_right(dues, tick, key=self._tick_of)
        for entry in entries[end:]:
            self._put(entry)
        del entries[end:], dues[end:]
        mark = self._open
        for entry in entries:
            entry.place = mark
        self._run += entries
        self._dues += dues

    def _tick_of(self, due: float) -> int:
        return int(due // self.tick_length)

    def _take(self, now: float) -> list[E]:
        cut = bisect_right(self._dues, now, self._at)
        taken, recorded = self._run[self._at : cut], self._dues[self._at : cut]
        self._at = cut
        if self._at * 2 >= len(self._run):
            del self._run[: self._at], self._dues[: self._at]
            self._at = 0
        if self._late and self._late[0][0] <= now:
            taken, recorded = self._merge_late(taken, recorded, now)
        due: list[E] = []
        mark = self._open
        touched = False
        for entry, moment in zip(taken, recorded, strict=True):
            if entry.place is not mark:
                mark.dead -= 1
            elif (present := entry.due) > now:
                self._put(entry)
            else:
                touched = touched or present != moment
                entry.place = None
                due.append(entry)
        self.pending -= len(due)
        if touched:
            due.sort(key=_due)
        return due

    def _merge_late(self, taken: list[E], recorded: list[float], now: float) -> tuple[list[E], list[float]]:
        """Both in one order; of equal moments those of the run came first."""
        while self._late and self._late[0][0] <= now:
            moment, _, entry = heappop(self._late)
            taken.append(entry)
            recorded.append(moment)
        order = sorted(range(len(recorded)), key=recorded.__getitem__)
        return [taken[index] for index in order], [recorded[index] for index in order]

    def _moving(self) -> Slot[E] | None:
        """The list of the next turn while it has not moved into the ring."""
        return self._beyond.get(self._turn + 1)

    def _move_piece(self) -> None:
        turn = self._turn + 1
        waiting = self._beyond[turn]
        # Done by the middle of this turn at the latest, if there is one advance a tick.
        ticks_left = max(1, (turn * self.slots - self._hand) // 2)
        end = self._moved + max(PIECE, (len(waiting) - self._moved) // ticks_left + 1)
        for entry in waiting[self._moved : end]:
            if entry.place is waiting:
                tick = int(entry.due // self.tick_length)
                if tick // self.slots == turn:
                    slot = self._slot(tick, turn)
                    slot.append(entry)
                    entry.place = slot
                else:
                    self._put(entry)
        self._moved = end
        if end >= len(waiting):
            del self._beyond[turn]
            self._turns.remove(turn)
            heapify(self._turns)
            self._moved = 0

    def _tidy(self, slot: Slot[E]) -> None:
        """Rebuilds a slot that is more than half dead: what stays behind is bounded by what waits."""
        self._since_sweep += 1
        if self._since_sweep > SWEEP + self.pending:
            self._sweep()
        if slot.dead <= FEW:
            return
        if slot is self._open:
            if slot.dead * 2 > len(self._run) - self._at + len(self._late):
                self._tidy_open()
        elif slot.dead * 2 > len(slot):
            self._rebuild(slot)

    def _sweep(self) -> None:
        """Rebuilds every slot that has a dead reference; so seldom that each cancel pays for a reference or two."""
        self._since_sweep = 0
        slots = [*self._ring, *self._next_ring, *self._beyond.values()]
        for slot in slots:
            if slot is not None and slot.dead:
                self._rebuild(slot)
        if self._open.dead:
            self._tidy_open()

    def _rebuild(self, slot: Slot[E]) -> None:
        slot[:] = {id(entry): entry for entry in slot if entry.place is slot}.values()
        slot.dead = 0
        if slot is self._moving():
            self._moved = 0  # what has moved in is not referred to here any more

    def _tidy_open(self) -> None:
        run = zip(self._dues[self._at :], self._run[self._at :], strict=True)
        late = ((due, entry) for due, _, entry in sorted(self._late))
        kept: dict[int, tuple[float, E]] = {}
        for due, entry in sorted((*run, *late), key=itemgetter(0)):
            if entry.place is self._open:
                kept.setdefault(id(entry), (due, entry))  # one that moved inside here is referred to twice: the earlier one counts
        self._dues, self._run, self._at = [due for due, _ in kept.values()], [entry for _, entry in kept.values()], 0
        self._late = []
        self._open.dead = 0

    def _references(self) -> int:
        rings = sum(len(slot) for ring in (self._ring, self._next_ring) for slot in ring if slot is not None)
        beyond = sum(len(slot) for slot in self._beyond.values())
        moved = self._moved if self._moving() is not None else 0
        return rings + beyond - moved + len(self._run) - self._at + len(self._late)
