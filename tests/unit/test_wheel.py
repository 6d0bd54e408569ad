"""The wheel against the example in its docstring, against rules one by one, and against a sorted list in random operations."""

import re
import sys
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from math import inf, nan
from random import Random
from types import FrameType
from typing import Any

import pytest

from jobwheel import wheel as wheel_module
from jobwheel.delay import LONGEST
from jobwheel.errors import BadValue
from jobwheel.wheel import FEW, PIECE, SWEEP, Wheel

TURN = 3600


@dataclass(eq=False)
class Note:
    """An entry: what a wheel needs of a row."""

    due: float
    name: str = ""
    place: object = None
    priority: int = 0
    born: int = field(default_factory=count().__next__)

    def __repr__(self) -> str:
        return self.name or f"{self.born}@{self.due}"


def names(notes: list[Note]) -> list[str]:
    return [note.name for note in notes]


def lines_run(work: Callable[[], Any]) -> int:
    """How many lines of the wheel's own file `work` executes: a cost that no busy machine falsifies."""
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != wheel_module.__file__:
            return None
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


def test_the_example_of_the_docstring_holds_word_by_word() -> None:
    text = wheel_module.__doc__ or ""
    assert "Wheel(slots=4, tick_length=1.0, now=0.0)" in text
    wheel: Wheel[Note] = Wheel(slots=4, tick_length=1.0, now=0.0)
    notes = {name: Note(float(due), name) for name, due in re.findall(r"([a-e]) \((?:due )?([\d.]+)\)", text.split("hand 0")[0])}
    assert {name: note.due for name, note in notes.items()} == {"a": 1.7, "b": 1.2, "c": 3.0, "d": 5.5, "e": 9.0}
    for note in notes.values():
        wheel.insert(note)
    told = [
        (float(now), [name for name in given.split(", ") if name])
        for now, given in re.findall(r"advance\(([\d.]+)\).*?gives \[([a-e, ]*)\]", text, re.DOTALL)
    ]
    assert told == [(1.2, ["b"]), (1.7, ["a"]), (4.0, ["c"]), (9.9, []), (12.0, ["e"])]

    assert dict(wheel.loads()) == {1: 2, 3: 1, 5: 1}
    assert names(wheel.advance(1.2)) == ["b"]
    assert names(wheel.advance(1.7)) == ["a"]
    assert names(wheel.advance(4.0)) == ["c"]
    assert dict(wheel.loads()) == {5: 1, 9: 1}
    assert wheel.cancel(notes["d"])
    assert notes["d"].place is None
    assert wheel.dead == 1
    notes["e"].due = 10.5
    assert wheel.advance(9.9) == []
    assert dict(wheel.loads()) == {10: 1}
    assert names(wheel.advance(12.0)) == ["e"]
    assert (wheel.pending, wheel.dead) == (0, 0)


@pytest.mark.parametrize("slots", [0, -1])
def test_a_wheel_without_slots_is_refused(slots: int) -> None:
    with pytest.raises(BadValue, match="at least 1"):
        Wheel(slots)


@pytest.mark.parametrize("tick", [0, -1.0, inf, nan])
def test_a_tick_that_is_no_length_is_refused(tick: float) -> None:
    with pytest.raises(BadValue, match="more than 0 and finite"):
        Wheel(60, tick)


def test_every_slot_is_caught_up_in_order_after_a_pause() -> None:
    """R27: nothing assumes one tick per period."""
    wheel: Wheel[Note] = Wheel(60)
    notes = [Note(due, str(due)) for due in (0.5, 3.25, 59.0, 60.0, 61.5, 119.9, 120.0, 500.0)]
    for note in reversed(notes):
        wheel.insert(note)
    assert wheel.advance(1000.0) == notes


def test_irregular_polling_gives_each_entry_exactly_once() -> None:
    wheel: Wheel[Note] = Wheel(7, 0.5)
    notes = [Note(0.3 * number) for number in range(100)]
    for note in notes:
        wheel.insert(note)
    random = Random(1)
    given: list[Note] = []
    now = 0.0
    while now < 40:
        now += random.choice([0, 0.01, 0.49, 0.5, 0.51, 3.4, 3.5, 9.0])
        given += wheel.advance(now)
    assert given == notes


@pytest.mark.parametrize("delay", [TURN, 2 * TURN, 24 * TURN, 48 * TURN, 48 * TURN - 1, 48 * TURN + 1])
@pytest.mark.parametrize("start", [0.0, 0.5, 1234.75, TURN - 0.25])
def test_a_multiple_of_the_turn_is_neither_early_nor_a_turn_late(delay: float, start: float) -> None:
    """R28, R30: 48 h is 48 turns of the default wheel."""
    wheel: Wheel[Note] = Wheel(now=start)
    wheel.insert(Note(start + delay))
    now = start
    while now + 97.3 < start + delay:
        now += 97.3
        assert wheel.advance(now) == []
    assert wheel.advance(start + delay - 0.001) == []
    assert len(wheel.advance(start + delay)) == 1


def test_a_long_delay_polled_tick_by_tick_comes_at_its_moment() -> None:
    wheel: Wheel[Note] = Wheel(slots=4)
    wheel.insert(Note(41.25))
    assert [now for now in range(60) if wheel.advance(float(now))] == [42]


def test_entries_of_a_later_turn_do_not_hide_earlier_ones_of_the_same_slot() -> None:
    """R31: arrival order in the slot is not due order."""
    wheel: Wheel[Note] = Wheel(slots=10)
    notes = [Note(float(due), str(due)) for due in (23, 13, 3, 33, 5003)]
    for note in notes:
        wheel.insert(note)
    assert [names(wheel.advance(now)) for now in (3.0, 13.0, 23.0, 33.0, 5003.0)] == [["3"], ["13"], ["23"], ["33"], ["5003"]]


def test_inside_a_slot_entries_leave_at_their_own_moments() -> None:
    wheel: Wheel[Note] = Wheel(tick_length=10.0)
    for due in (9.0, 1.0, 5.0):
        wheel.insert(Note(due, str(due)))
    assert [names(wheel.advance(now)) for now in (0.99, 1.0, 4.99, 8.0, 9.0)] == [[], ["1.0"], [], ["5.0"], ["9.0"]]


@pytest.mark.parametrize("due", [0.0, 0.5, 7.0, 9.0, 40.0])
def test_equal_moments_leave_first_in_first_out_wherever_they_waited(due: float) -> None:
    wheel: Wheel[Note] = Wheel(slots=4)
    notes = [Note(due) for _ in range(50)]
    given: list[Note] = []
    for note in notes:
        wheel.insert(note)
        given += wheel.advance(note.born % 3 * 0.1)
    given += wheel.advance(100.0)
    assert given == notes


def test_equal_moments_stay_in_order_when_some_come_while_their_turn_moves_in() -> None:
    wheel: Wheel[Note] = Wheel(slots=100)
    notes = [Note(250.5) for _ in range(4 * PIECE)]
    for note in notes[: 3 * PIECE]:
        wheel.insert(note)
    wheel.advance(101.0)
    assert 0 < sum(how_many for _, how_many in wheel.loads()) < 3 * PIECE, "half way"
    for note in notes[3 * PIECE :]:
        wheel.insert(note)
    assert wheel.advance(250.5) == notes


def test_cancelling_most_of_a_turn_while_it_moves_in_loses_none_of_the_others() -> None:
    wheel: Wheel[Note] = Wheel(slots=100)
    notes = [Note(200.0 + number / 100) for number in range(20 * PIECE)]
    for note in notes:
        wheel.insert(note)
    wheel.advance(101.0)
    stays = notes[::7]
    kept = set(stays)
    for note in notes:
        if note not in kept:
            wheel.cancel(note)
    assert wheel.pending == len(stays)
    assert wheel.advance(300.0) == stays


def test_a_past_moment_comes_with_the_next_advance() -> None:
    """R34: also in a slot that was passed long ago."""
    wheel: Wheel[Note] = Wheel(now=5000.0)
    late, later = Note(17.0, "late"), Note(4999.0, "later")
    wheel.insert(later)
    wheel.insert(late)
    assert wheel.next_due() == 17.0
    assert wheel.advance(5000.0) == [late, later]


def test_a_clock_that_goes_back_gives_nothing_new_and_loses_nothing() -> None:
    wheel: Wheel[Note] = Wheel(60)
    wheel.insert(Note(200.0, "a"))
    assert wheel.advance(150.0) == []
    assert wheel.advance(90.0) == []
    wheel.insert(Note(120.0, "b"))
    assert wheel.advance(100.0) == []
    assert names(wheel.advance(200.0)) == ["b", "a"]


@pytest.mark.parametrize("delay", [LONGEST, LONGEST - 0.5, 9_223_372_036.0 / 4])
def test_the_longest_delay_waits_and_costs_no_more_than_a_short_one(delay: float) -> None:
    """R33: a huge delay does not wrap round."""
    wheel: Wheel[Note] = Wheel(now=1e6)
    wheel.insert(Note(1e6 + delay))
    for now in (1e6, 1e6 + 1, 1e6 + TURN, 1e6 + delay / 2, 1e6 + delay - 1):
        assert wheel.advance(now) == []
    assert wheel.next_due() is not None
    assert len(wheel.advance(1e6 + delay)) == 1


def test_an_empty_stretch_of_ten_years_costs_what_an_empty_hour_costs() -> None:
    hour, years = 3600.0, 10 * 365.25 * 86400

    def cost(stretch: float) -> int:
        wheel: Wheel[Note] = Wheel()
        wheel.insert(Note(stretch + 10 * hour))
        return lines_run(lambda: wheel.advance(stretch))

    assert cost(years) <= 2 * cost(hour)
    assert cost(years) < 100


def test_a_jump_of_ten_years_gives_what_waits_in_it_at_a_cost_of_what_is_due() -> None:
    wheel: Wheel[Note] = Wheel()
    notes = [Note(number * 3e6) for number in range(100)]
    for note in notes:
        wheel.insert(note)
    given: list[Note] = []
    assert lines_run(lambda: given.extend(wheel.advance(3e8))) < 100 * 150
    assert given == notes


def test_passing_a_slot_costs_nothing_for_what_waits_in_it_for_a_later_turn() -> None:
    """R35: 48 h is the same slot as now, and no tick looks at those entries."""

    def cost(entries: int) -> int:
        wheel: Wheel[Note] = Wheel()
        for _ in range(entries):
            wheel.insert(Note(48 * TURN + 0.5))
        return lines_run(lambda: [wheel.advance(float(now)) for now in range(3)])

    assert cost(5000) == cost(5)


def test_an_inserted_entry_costs_the_same_whatever_waits() -> None:
    wheel: Wheel[Note] = Wheel()
    costs = []
    for waiting in range(3000):
        note = Note(float(waiting))
        costs.append(lines_run(lambda note=note: wheel.insert(note)))  # type: ignore[misc]
    assert max(costs[2000:]) <= max(costs[:100])


def test_a_turn_moves_in_in_pieces_and_is_complete_before_it_begins() -> None:
    """With 10 000 entries waiting for a turn, no advance of one tick looks at more than a small part of them."""
    wheel: Wheel[Note] = Wheel(slots=100)
    notes = [Note(200 + number / 100) for number in range(10_000)]
    for note in notes:
        wheel.insert(note)
    most = max(lines_run(lambda now=now: wheel.advance(float(now))) for now in range(100, 200))  # type: ignore[misc]
    assert most < 10_000
    assert sum(how_many for _, how_many in wheel.loads()) == 10_000
    assert wheel.advance(300.0) == notes


def test_next_due_is_never_after_the_next_moment_and_exact_within_the_opened_slot() -> None:
    wheel: Wheel[Note] = Wheel()
    assert wheel.next_due() is None
    wheel.insert(Note(7300.5))
    assert wheel.next_due() == 7200.0
    wheel.insert(Note(10.75))
    assert wheel.next_due() == 10.0
    assert wheel.advance(10.0) == []
    assert wheel.next_due() == 10.75


@pytest.mark.parametrize("tick", [0.01, 0.1, 0.3, 0.7, 1.0, 3.7])
def test_an_advance_to_next_due_always_leads_on(tick: float) -> None:
    """Whoever sleeps until `next_due` and advances then is never told the same moment again: else it would spin."""
    wheel: Wheel[Note] = Wheel(10, tick)
    for number in range(200):
        wheel.insert(Note((number + 0.5) * tick))
    given, looks = 0, 0
    while (due := wheel.next_due()) is not None:
        looks += 1
        given += len(wheel.advance(due))
        assert looks <= 1000, f"it stands still at {due!r}"
    assert given == 200


def test_cancel_is_true_once() -> None:
    wheel: Wheel[Note] = Wheel()
    note = Note(5.0)
    assert not wheel.cancel(note)
    wheel.insert(note)
    assert wheel.cancel(note)
    assert not wheel.cancel(note)
    assert wheel.pending == 0
    assert wheel.advance(10.0) == []


def test_cancel_of_what_was_given_back_is_false_and_leaves_the_count() -> None:
    wheel: Wheel[Note] = Wheel()
    gone, stays = Note(1.0), Note(20.0)
    wheel.insert(gone)
    wheel.insert(stays)
    assert wheel.advance(1.0) == [gone]
    assert not wheel.cancel(gone)
    assert wheel.pending == 1


def test_a_cancelled_entry_can_be_inserted_again() -> None:
    wheel: Wheel[Note] = Wheel()
    note = Note(5.0)
    wheel.insert(note)
    wheel.cancel(note)
    note.due = 7.0
    wheel.insert(note)
    assert wheel.pending == 1
    assert wheel.advance(6.0) == []
    assert wheel.advance(7.0) == [note]


@pytest.mark.parametrize("later", [1.75, 9.0, 70.0, 7205.0])
def test_a_lazy_touch_moves_the_entry_when_its_old_place_comes_up(later: float) -> None:
    wheel: Wheel[Note] = Wheel(60)
    note = Note(1.25)
    wheel.insert(note)
    note.due = later
    assert wheel.advance(1.5) == []
    assert wheel.pending == 1
    assert wheel.advance(later - 0.01) == []
    assert wheel.advance(later) == [note]


def test_a_touch_inside_the_opened_slot_is_seen() -> None:
    wheel: Wheel[Note] = Wheel(tick_length=10.0)
    first, second = Note(3.0, "first"), Note(4.0, "second")
    wheel.insert(first)
    wheel.insert(second)
    wheel.advance(1.0)
    first.due = 5.0
    assert names(wheel.advance(4.0)) == ["second"]
    assert names(wheel.advance(5.0)) == ["first"]


@pytest.mark.parametrize("earlier", [0.0, 0.75, 5.0, 100.0])
def test_an_entry_inserted_again_moves_to_its_earlier_moment(earlier: float) -> None:
    wheel: Wheel[Note] = Wheel(60)
    note = Note(7205.0)
    wheel.insert(note)
    note.due = earlier
    wheel.insert(note)
    assert wheel.pending == 1
    assert wheel.advance(earlier) == [note]
    assert wheel.advance(1e4) == []


def test_an_entry_moved_earlier_and_touched_back_comes_once_at_its_last_moment() -> None:
    wheel: Wheel[Note] = Wheel(60)
    note = Note(30.0)
    wheel.insert(note)
    for due in (20.0, 10.0):
        note.due = due
        wheel.insert(note)
    note.due = 30.0
    assert [wheel.advance(now) for now in (10.0, 20.0, 29.9, 30.0, 99.0)] == [[], [], [], [note], []]


def test_a_cancelled_entry_is_not_referred_to_by_the_wheel_for_long() -> None:
    """R46: a slot that is more than half dead is rebuilt."""
    wheel: Wheel[Note] = Wheel()
    notes = [Note(100.5) for _ in range(10_000)]
    for note in notes:
        wheel.insert(note)
    for note in notes:
        wheel.cancel(note)
        assert wheel.dead <= wheel.pending + FEW + 1
    assert wheel.dead <= FEW + 1


def test_a_few_cancelled_in_each_of_many_slots_are_swept_out_as_well() -> None:
    """Too few for any slot to be rebuilt, and together more than what waits: bounded all the same."""
    wheel: Wheel[Note] = Wheel()
    notes = [Note(number % TURN + 0.5) for number in range(30 * TURN)]
    for note in notes:
        wheel.insert(note)
    for number, note in enumerate(notes):
        wheel.cancel(note)
        if number % 5000 == 0:
            assert wheel.dead <= SWEEP + wheel.pending + 1
    assert wheel.pending == 0
    assert wheel.dead <= SWEEP + 1


def test_an_entry_that_moves_to_and_fro_leaves_few_references_behind() -> None:
    wheel: Wheel[Note] = Wheel()
    note = Note(100.0)
    for number in range(10_000):
        note.due = 100.0 + number % 2 * 50
        wheel.insert(note)
    assert wheel.pending == 1
    assert wheel.dead <= 4 * FEW


def test_an_entry_that_moves_inside_the_opened_slot_leaves_few_references_behind() -> None:
    wheel: Wheel[Note] = Wheel(tick_length=100.0)
    note = Note(50.0)
    for number in range(10_000):
        note.due = 50.0 - number / 1000
        wheel.insert(note)
    assert wheel.pending == 1
    assert wheel.dead <= 4 * FEW
    assert wheel.advance(99.0) == [note]
    assert wheel.advance(1e3) == []


def test_cancelling_while_a_turn_moves_in_leaves_few_references_behind() -> None:
    wheel: Wheel[Note] = Wheel()
    notes = [Note(2 * TURN + 0.001 * number) for number in range(10_000)]
    for note in notes:
        wheel.insert(note)
    wheel.advance(TURN + 1.0)
    for note in notes:
        wheel.cancel(note)
    assert wheel.pending == 0
    # At most a constant for each slot of the ring that is occupied (here 10), and one for the list beyond.
    assert wheel.dead <= 12 * (FEW + 1)


def test_loads_show_live_entries_only_by_absolute_tick() -> None:
    wheel: Wheel[Note] = Wheel(slots=4, now=8.0)
    notes = [Note(due) for due in (9.1, 9.9, 11.0, 13.0, 20.0)]
    for note in notes:
        wheel.insert(note)
    wheel.cancel(notes[0])
    wheel.cancel(notes[2])
    assert dict(wheel.loads()) == {9: 1, 13: 1}


class Oracle:
    """A sorted list of (due, order of arrival), and the entry for each."""

    def __init__(self) -> None:
        self.sorted: list[tuple[float, int]] = []
        self.by_order: dict[int, Note] = {}
        self.order: dict[Note, tuple[float, int]] = {}
        self.arrivals = count()
        self.moved: set[Note] = set()

    def __len__(self) -> int:
        return len(self.sorted)

    def add(self, note: Note) -> None:
        item = (note.due, next(self.arrivals))
        insort(self.sorted, item)
        self.by_order[item[1]] = note
        self.order[note] = item

    def remove(self, note: Note) -> None:
        item = self.order.pop(note)
        del self.sorted[bisect_left(self.sorted, item)]
        del self.by_order[item[1]]
        self.moved.discard(note)

    def move(self, note: Note) -> None:
        self.remove(note)
        self.add(note)
        self.moved.add(note)

    def pop_due(self, now: float) -> list[Note]:
        due = [self.by_order[order] for _, order in self.sorted[: bisect_right(self.sorted, (now, inf))]]
        for note in due:
            del self.order[note]
        self.by_order = {order: note for order, note in self.by_order.items() if note in self.order} if due else self.by_order
        del self.sorted[: len(due)]
        return due

    def any(self, random: Random) -> Note:
        return self.by_order[random.choice(self.sorted)[1]]


class Trial:
    """One wheel and one oracle, led through the same random life."""

    def __init__(self, slots: int, tick: float, seed: int, crowd: int = 0) -> None:
        self.random = random = Random(f"{slots} {tick} {seed} {crowd}")
        self.now = random.choice([0.0, random.random() * 1000, 1e6 + random.random()])
        self.tick = tick
        self.turn = slots * tick
        self.wheel: Wheel[Note] = Wheel(slots, tick, self.now)
        self.oracle = Oracle()
        for _ in range(crowd):
            self.insert(self.now + random.random() * 6 * self.turn)

    def insert(self, due: float) -> None:
        note = Note(due)
        self.wheel.insert(note)
        self.oracle.add(note)

    def moment(self) -> float:
        """Past, now, in this slot, on a slot's edge, in this turn, in the next ones, years away; often equal to another one."""
        random, now, tick, turn = self.random, self.now, self.tick, self.turn
        return random.choice(
            [
                lambda: now - random.random() * turn,
                lambda: now,
                lambda: now + random.random() * tick,
                lambda: now + random.randrange(20) * tick,
                lambda: (now // tick + random.randrange(20)) * tick,
                lambda: now + random.random() * turn,
                lambda: now + random.random() * turn * 4,
                lambda: now + random.randrange(6) * turn,
                lambda: now + random.random() * 1e5 * turn,
                lambda: self.oracle.any(random).due if self.oracle else now,
            ]
        )()

    def leap(self) -> float:
        """Mostly within a few ticks, now and then over turns, rarely over years."""
        random, tick, turn = self.random, self.tick, self.turn
        choice = random.random()
        if choice < 0.80:
            return random.choice([0.0, random.random() * tick, tick, random.random() * 3 * tick])
        if choice < 0.99:
            return random.choice([17 * tick, random.random() * turn / 4, random.random() * turn, turn])
        return random.choice([9 * turn, random.random() * 1e5 * turn])

    def step(self) -> None:
        random, wheel, oracle = self.random, self.wheel, self.oracle
        choice = random.random()
        if choice < 0.45:
            self.insert(self.moment())
        elif choice < 0.57 and oracle:
            note = oracle.any(random)
            assert wheel.cancel(note)
            assert not wheel.cancel(note)
            oracle.remove(note)
        elif choice < 0.72 and oracle:
            note = oracle.any(random)
            note.due = max(note.due, self.moment())
            oracle.move(note)
        elif choice < 0.86 and oracle:
            note = oracle.any(random)
            note.due = min(note.due, self.moment())
            wheel.insert(note)
            oracle.move(note)
        else:
            self.now += self.leap()
            self.compare(wheel.advance(self.now), oracle.pop_due(self.now))
        assert wheel.pending == len(oracle)
        due = wheel.next_due()
        assert not oracle or (due is not None and due <= oracle.sorted[0][0])

    def compare(self, given: list[Note], due: list[Note]) -> None:
        assert [note.due for note in given] == [note.due for note in due]
        moved = self.oracle.moved
        assert [note for note in given if note not in moved] == [note for note in due if note not in moved], "not first in, first out"
        assert set(given) == set(due)
        moved.difference_update(due)

    def finish(self) -> None:
        self.now += 2e5 * self.turn
        self.compare(self.wheel.advance(self.now), self.oracle.pop_due(self.now))
        assert (self.wheel.pending, self.wheel.dead, self.wheel.next_due()) == (0, 0, None)


@pytest.mark.parametrize("tick", [0.001, 0.1, 1.0, 3.7])
@pytest.mark.parametrize("slots", [1, 2, 3, 7, 60, 257, 3600])
def test_random_lives_agree_with_a_sorted_list(slots: int, tick: float) -> None:
    for seed in range(4):
        trial = Trial(slots, tick, seed)
        for _ in range(3000):
            trial.step()
        trial.finish()


@pytest.mark.parametrize("slots", [2, 50, 1000])
def test_random_lives_agree_with_a_sorted_list_where_thousands_wait(slots: int) -> None:
    """So many that a turn moves in in several pieces, and slots are rebuilt while they are in use."""
    for seed in range(2):
        trial = Trial(slots, 1.0, seed, crowd=3000)
        for _ in range(3000):
            trial.step()
        trial.finish()


def test_dead_references_stay_bounded_after_every_operation() -> None:
    """Over the live ones by at most a constant per slot, in a wheel small enough to count after each step."""
    slots = 5
    for seed in range(3):
        trial = Trial(slots, 1000.0, seed, crowd=3000)
        for number in range(3000):
            trial.step()
            if number % 3 and trial.oracle:
                note = trial.oracle.any(trial.random)
                trial.wheel.cancel(note)
                trial.oracle.remove(note)
            beyond = len({int(due // trial.turn) for due, _ in trial.oracle.sorted})
            assert trial.wheel.dead <= trial.wheel.pending + (2 * slots + beyond + 2) * (FEW + 1)
        trial.finish()
