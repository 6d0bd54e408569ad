"""The contract of waiting rooms (`jobwheel.waiting`), one test for each of its rules, run on every member.

Real threads and a real clock, waited for by conditions with limits. What cannot be made for real, a step of the wall clock and a
suspend of the machine, is played by `Time`: the thread's waits in the kernel stay real and know nothing of either, as in reality.
One suite in one file, so that each member is held to all of it. A further one is one line in MEMBERS, and one in the fixture `time` if
it reads a wall clock by itself.
"""

import gc
import logging
import random
import threading
import time as real
import weakref
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, tzinfo
from typing import Any

import apscheduler.schedulers.base
import pytest

import jobwheel.ticker
from jobwheel.backends.apscheduler import PIECE, ApschedulerRoom
from jobwheel.backends.wheel import WheelRoom
from jobwheel.clock import SystemClock
from jobwheel.settings import Settings, WheelSettings
from jobwheel.ticker import Guard
from jobwheel.waiting import RoomHealth, WaitingRoom

MEMBERS = [
    pytest.param((WheelRoom, Settings()), id="wheel"),
    pytest.param((WheelRoom, Settings(wheel=WheelSettings(slots=4, tick=0.05))), id="small_wheel"),
    pytest.param((ApschedulerRoom, Settings()), id="apscheduler"),
]

LIMIT = 5.0
"""Seconds after which what should have happened has not."""
LATE = 0.5
"""Seconds that an entry may be late here, on a machine that does other things too; benchmarks/ measure what it is."""
HOUR = 3600.0
LOOK = 0.2
"""Instead of the ticker's second, so that the suite is quick."""


class Entry:
    __slots__ = ("__weakref__", "due", "number", "place", "priority")

    def __init__(self, due: float, number: int = 0) -> None:
        self.due = due
        self.number = number
        self.place: object = None
        self.priority = 0


class Time:
    """The machine's clocks, which tests can step and put to sleep."""

    def __init__(self) -> None:
        self.stepped = self.slept = 0.0
        self._machine = SystemClock()

    def elapsed(self) -> float:
        return self._machine.elapsed() + self.slept

    def wall(self) -> float:
        return self._machine.wall() + self.slept + self.stepped


class Out:
    """What came out of a room, by call and in order, and when by the elapsed clock."""

    def __init__(self, clock: Time) -> None:
        self.calls: list[list[Any]] = []
        self.moments: list[float] = []
        self.steps = 0
        self._clock = clock
        self._changed = threading.Condition()

    def due(self, entries: list[Any]) -> None:
        with self._changed:
            self.calls.append(list(entries))
            self.moments += [self._clock.elapsed()] * len(entries)
            self._changed.notify_all()

    def step(self) -> None:
        with self._changed:
            self.steps += 1
            self._changed.notify_all()

    @property
    def entries(self) -> list[Any]:
        return [entry for call in self.calls for entry in call]

    def wait(self, condition: Callable[[], bool], limit: float = LIMIT) -> bool:
        with self._changed:
            return self._changed.wait_for(condition, limit)

    def wait_for(self, count: int) -> list[Any]:
        """The entries, when there are `count` of them; none was early."""
        assert self.wait(lambda: len(self.moments) >= count), f"{len(self.moments)} of {count} came out in {LIMIT} s"
        assert all(moment >= entry.due for moment, entry in zip(self.moments, self.entries, strict=True))
        return self.entries


def eventually(condition: Callable[[], bool], limit: float = LIMIT) -> bool:
    """For what tells nobody when it changes: looks again and again."""
    end = real.monotonic() + limit
    while not condition():
        if real.monotonic() > end:
            return False
        real.sleep(0.002)
    return True


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()

    class Wall(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.fromtimestamp(clock.wall(), tz)

    monkeypatch.setattr(apscheduler.schedulers.base, "datetime", Wall)
    monkeypatch.setattr(jobwheel.ticker, "LOOK", LOOK)
    return clock


@pytest.fixture
def out(time: Time) -> Out:
    return Out(time)


@pytest.fixture(params=MEMBERS)
def make(request: pytest.FixtureRequest, time: Time) -> Iterator[Callable[[], WaitingRoom]]:
    member, settings = request.param
    rooms: weakref.WeakSet[WaitingRoom] = weakref.WeakSet()

    def _make() -> WaitingRoom:
        room: WaitingRoom = member(time, settings)
        rooms.add(room)
        return room

    yield _make
    for room in rooms:
        room.stop()


@pytest.fixture
def room(make: Callable[[], WaitingRoom], out: Out) -> WaitingRoom:
    """A started one."""
    room = make()
    room.start(out.due, out.step)
    return room


def settle(room: WaitingRoom, waiting: int) -> None:
    """Returns when `waiting` entries are placed and, if there are some, the thread sleeps until the first of them."""
    inbox = room.ticker.inbox if hasattr(room, "ticker") else ()

    def _settled() -> bool:
        health = room.health()
        return health.waiting == waiting and not inbox and (not waiting or health.next_wake is not None)

    assert eventually(_settled), room.health()


# Coming out


def test_an_entry_comes_out_at_its_due_moment_never_before(room: WaitingRoom, out: Out, time: Time) -> None:
    entries = [Entry(time.elapsed() + 0.02 * number, number) for number in range(1, 20)]
    for entry in entries:
        room.arm(entry)
    assert out.wait_for(19) == entries
    assert max(moment - entry.due for moment, entry in zip(out.moments, entries, strict=True)) < LATE


def test_an_overdue_entry_comes_out_at_once(room: WaitingRoom, out: Out, time: Time) -> None:
    settle(room, 0)
    began = time.elapsed()
    room.arm(Entry(began - 10 * HOUR))
    out.wait_for(1)
    assert out.moments[0] - began < LATE


def test_entries_come_out_in_the_order_of_their_due_moments_however_they_were_armed(room: WaitingRoom, out: Out, time: Time) -> None:
    start = time.elapsed() + 0.1
    entries = [Entry(start + 0.001 * number, number) for number in range(300)]
    for entry in random.Random(1).sample(entries, 300):
        room.arm(entry)
    assert [entry.number for entry in out.wait_for(300)] == list(range(300))


def test_entries_due_at_one_moment_come_out_first_in_first_out_and_together(room: WaitingRoom, out: Out, time: Time) -> None:
    due = time.elapsed() + 0.3
    for number in range(1000):
        room.arm(Entry(due, number))
    assert [entry.number for entry in out.wait_for(1000)] == list(range(1000))
    # Never one by one: in one call, or in pieces of a size.
    assert len(out.calls) <= 2 * 1000 // PIECE


def test_what_was_armed_before_the_start_comes_out_after_it(make: Callable[[], WaitingRoom], out: Out, time: Time) -> None:
    room = make()
    entry = Entry(time.elapsed() - 1)
    room.arm(entry)
    assert out.entries == []
    room.start(out.due, out.step)
    assert out.wait_for(1) == [entry]


def test_an_entry_that_is_due_after_more_than_a_turn_comes_out_once(room: WaitingRoom, out: Out, time: Time) -> None:
    turn = 4 * 0.05  # the small wheel's
    entries = [Entry(time.elapsed() + turns * turn + 0.01, turns) for turns in (5, 3, 2, 1)]
    for entry in entries:
        room.arm(entry)
    assert out.wait_for(4) == entries[::-1]
    settle(room, 0)


def test_8_threads_arm_while_it_drains_and_each_entry_comes_out_exactly_once(room: WaitingRoom, out: Out, time: Time) -> None:
    start = time.elapsed()
    groups = [[Entry(start + random.Random(number).random() * 0.5, number) for number in range(n, 4000, 8)] for n in range(8)]

    def _arm_all(entries: list[Entry]) -> None:
        for entry in entries:
            room.arm(entry)

    threads = [threading.Thread(target=_arm_all, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(entry.number for entry in out.wait_for(4000)) == list(range(4000))
    settle(room, 0)
    assert len(out.entries) == 4000


def test_on_due_may_arm(make: Callable[[], WaitingRoom], out: Out, time: Time) -> None:
    room = make()

    def _due(entries: list[Any]) -> None:
        out.due(entries)
        for entry in entries:
            if entry.number < 5:
                room.arm(Entry(time.elapsed() + 0.02, entry.number + 1))
            if entry.number == 3:
                room.arm(Entry(time.elapsed() - 1, 100))  # due already

    room.start(_due, out.step)
    room.arm(Entry(time.elapsed()))
    assert [entry.number for entry in out.wait_for(7)] == [0, 1, 2, 3, 100, 4, 5]


# Moving and going


def test_arming_an_entry_earlier_moves_it(room: WaitingRoom, out: Out, time: Time) -> None:
    entry = Entry(time.elapsed() + HOUR)
    room.arm(entry)
    settle(room, 1)
    entry.due = time.elapsed() + 0.05
    room.arm(entry)
    assert out.wait_for(1) == [entry]
    assert out.moments[0] - entry.due < LATE
    settle(room, 0)


def test_an_entry_that_is_armed_twice_comes_out_once(room: WaitingRoom, out: Out, time: Time) -> None:
    entry, last = Entry(time.elapsed() + 0.1), Entry(time.elapsed() + 0.2)
    for armed in (entry, last, entry):
        room.arm(armed)
    assert out.wait_for(2) == [entry, last]
    settle(room, 0)


def test_an_entry_whose_due_moment_grew_comes_out_once_at_the_new_one(room: WaitingRoom, out: Out, time: Time) -> None:
    touched, other = Entry(time.elapsed() + 0.1), Entry(time.elapsed() + 0.3)
    room.arm(touched)
    room.arm(other)
    settle(room, 2)
    touched.due += 0.4
    assert out.wait_for(2) == [other, touched]
    settle(room, 0)


def test_what_a_stall_made_overdue_comes_in_the_order_of_the_present_due_moments(
    make: Callable[[], WaitingRoom], out: Out, time: Time
) -> None:
    room = make()
    go_on = threading.Event()

    def _due(entries: list[Any]) -> None:
        out.due(entries)
        go_on.wait(LIMIT)

    start = time.elapsed()
    first, touched, other = Entry(start), Entry(start + 0.1), Entry(start + 0.11)
    for entry in (first, touched, other):
        room.arm(entry)
    room.start(_due, out.step)
    out.wait_for(1)
    touched.due = start + 0.2
    assert eventually(lambda: time.elapsed() > start + 0.3)
    go_on.set()
    assert out.wait_for(3) == [first, other, touched]


def test_an_entry_that_came_out_can_be_armed_again(room: WaitingRoom, out: Out, time: Time) -> None:
    entry = Entry(time.elapsed() + 0.05)
    room.arm(entry)
    out.wait_for(1)
    entry.due = time.elapsed() - 1
    room.arm(entry)
    assert out.wait(lambda: out.entries == [entry, entry])


def test_a_disarmed_entry_does_not_come_out(room: WaitingRoom, out: Out, time: Time) -> None:
    entry, last = Entry(time.elapsed() + 0.2), Entry(time.elapsed() + 0.4)
    room.arm(entry)
    room.arm(last)
    settle(room, 2)
    room.disarm(entry)
    assert out.wait_for(1) == [last]
    settle(room, 0)


def test_disarming_what_is_not_here_does_nothing(room: WaitingRoom, out: Out, time: Time) -> None:
    unknown, gone, last = Entry(0.0), Entry(0.0), Entry(time.elapsed() + 0.1)
    room.arm(gone)
    out.wait_for(1)
    for entry in (unknown, gone, unknown):
        room.disarm(entry)
    room.arm(last)
    assert out.wait_for(2)[1:] == [last]
    assert room.health().errors == 0
    settle(room, 0)


def test_nothing_holds_an_entry_that_came_out(make: Callable[[], WaitingRoom], out: Out, time: Time) -> None:
    room = make()
    room.start(lambda entries: out.due([None] * len(entries)), out.step)
    entry = Entry(time.elapsed())
    held = weakref.ref(entry)
    room.arm(entry)
    del entry
    assert eventually(lambda: gc.collect() >= 0 and held() is None)


def test_of_disarmed_entries_only_a_few_are_still_held(room: WaitingRoom, time: Time) -> None:
    due = time.elapsed() + HOUR
    entries = [Entry(due, number) for number in range(1000)]
    held = weakref.WeakSet(entries)
    for entry in entries:
        room.arm(entry)
    for entry in entries:
        room.disarm(entry)
    del entry, entries
    settle(room, 0)
    assert eventually(lambda: gc.collect() >= 0 and len(held) < 50)


# Stopping


def test_nothing_comes_out_once_stop_returned(room: WaitingRoom, out: Out, time: Time) -> None:
    room.arm(Entry(time.elapsed() + 0.1))
    room.stop()
    room.arm(Entry(time.elapsed() - 1))
    assert not out.wait(lambda: bool(out.entries), limit=0.3)
    assert room.health().problem is not None  # its thread has ended


def test_stop_waits_for_the_call_that_is_under_way(make: Callable[[], WaitingRoom], out: Out, time: Time) -> None:
    room = make()
    inside, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def _due(entries: list[Any]) -> None:
        inside.set()
        go_on.wait(LIMIT)
        out.due(entries)

    room.start(_due, out.step)
    room.arm(Entry(time.elapsed()))
    assert inside.wait(LIMIT)

    def _stop() -> None:
        room.stop()
        ended.set()

    stopper = threading.Thread(target=_stop)
    stopper.start()
    assert not ended.wait(0.05)
    go_on.set()
    assert ended.wait(LIMIT)
    assert len(out.entries) == 1
    stopper.join()


def test_stop_from_within_on_due_ends_it_after_that_call(make: Callable[[], WaitingRoom], out: Out, time: Time) -> None:
    room = make()

    def _due(entries: list[Any]) -> None:
        room.stop()
        out.due(entries)

    room.start(_due, out.step)
    room.arm(Entry(time.elapsed() + 0.1))
    room.arm(Entry(time.elapsed() + 0.2))
    out.wait_for(1)
    assert eventually(lambda: room.health().problem is not None)
    assert len(out.entries) == 1
    assert room.health().errors == 0


def test_stop_is_idempotent_and_legal_before_the_start(make: Callable[[], WaitingRoom], room: WaitingRoom) -> None:
    make().stop()
    room.stop()
    room.stop()


def test_stop_in_the_middle_of_a_burst_is_no_error(make: Callable[[], WaitingRoom], time: Time, caplog: pytest.LogCaptureFixture) -> None:
    for again in range(20):
        room, out = make(), Out(time)
        room.start(out.due, out.step)
        for number in range(400):
            room.arm(Entry(time.elapsed() + 0.0002 * number, number))
        assert out.wait(lambda out=out, again=again: len(out.moments) > 10 * again)  # type: ignore[misc]
        room.stop()
        count = len(out.moments)
        assert room.health().errors == 0
        assert not out.wait(lambda out=out, count=count: len(out.moments) > count, 0.01)  # type: ignore[misc]
    assert caplog.records == []


def test_nothing_holds_an_entry_of_a_room_that_was_stopped_and_let_go(make: Callable[[], WaitingRoom], out: Out, time: Time) -> None:
    room = make()
    room.start(out.due, out.step)
    entry = Entry(time.elapsed() + HOUR)
    held = weakref.ref(entry)
    room.arm(entry)
    settle(room, 1)
    room.stop()
    del entry, room
    gc.collect()
    assert held() is None


def test_an_entry_that_a_stopped_room_held_can_be_armed_in_the_next(make: Callable[[], WaitingRoom], out: Out, time: Time) -> None:
    old, new = make(), make()
    entries = [Entry(time.elapsed() + 0.3, number) for number in range(5)]
    for room in (old, new):
        room.start(out.due, out.step)
        for entry in entries:
            room.arm(entry)
        settle(room, 5)
        if room is old:
            room.stop()
    assert out.wait_for(5) == entries
    settle(new, 0)


# Errors and health


@pytest.mark.inner_errors
def test_an_error_of_on_due_is_survived_counted_and_told_once(
    make: Callable[[], WaitingRoom], out: Out, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    room = make()

    def _due(entries: list[Any]) -> None:
        if entries[0].number < 3:
            out.due(entries)
            raise KeyError("broken") if entries[0].number < 2 else SystemExit
        out.due(entries)

    room.start(_due, out.step)
    for number in range(4):
        room.arm(Entry(time.elapsed(), number))
        out.wait_for(number + 1)
    assert eventually(lambda: room.health().errors == 3)
    assert room.health().problem is None
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2  # KeyError once, SystemExit once


def test_a_good_run_logs_nothing_above_debug(room: WaitingRoom, out: Out, time: Time, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    entries = [Entry(time.elapsed() + 0.05 * number, number) for number in (-1, 1, 2, 3)]
    for entry in entries:
        room.arm(entry)
    room.disarm(entries[1])
    entries[2].due += 0.1
    out.wait_for(3)
    time.stepped += HOUR
    room.arm(Entry(time.elapsed()))
    out.wait_for(4)
    room.stop()
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []


def test_health_counts_what_waits_and_tells_the_next_look(room: WaitingRoom, time: Time) -> None:
    settle(room, 0)
    assert room.health() == RoomHealth(waiting=0)  # and no next_wake: an empty room does not wake
    entries = [Entry(time.elapsed() + HOUR + number) for number in range(3)]
    for entry in entries:
        room.arm(entry)
    settle(room, 3)
    ahead = (room.health().next_wake or datetime.max.replace(tzinfo=UTC)).timestamp() - time.wall()
    assert ahead <= LOOK + 0.1  # what waits is worth a look at the clocks each second


def test_a_room_from_which_the_last_entry_has_gone_does_not_wake(room: WaitingRoom, out: Out, time: Time) -> None:
    gone, disarmed = Entry(time.elapsed()), Entry(time.elapsed() + HOUR)
    room.arm(disarmed)
    room.arm(gone)
    out.wait_for(1)
    room.disarm(disarmed)
    assert eventually(lambda: room.health() == RoomHealth(waiting=0))


def test_health_shows_the_lag_of_a_thread_that_hangs(make: Callable[[], WaitingRoom], out: Out, time: Time) -> None:
    room = make()
    go_on = threading.Event()

    def _due(entries: list[Any]) -> None:
        go_on.wait(LIMIT)
        out.due(entries)

    room.start(_due, out.step)
    room.arm(Entry(time.elapsed()))
    assert eventually(lambda: room.health().lag > 0.1)
    go_on.set()
    out.wait_for(1)
    assert eventually(lambda: room.health().lag < 0.1)


def test_health_tells_a_dead_thread_and_its_lag_grows(room: WaitingRoom, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    room.arm(Entry(time.elapsed() + HOUR))
    settle(room, 1)

    def _die(self: Guard) -> float:
        raise SystemExit

    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    monkeypatch.setattr(Guard, "guarded_pass", _die)
    room.arm(Entry(time.elapsed()))
    assert eventually(lambda: "thread has ended" in (room.health().problem or ""))
    room.stop()


# Clocks


@pytest.mark.parametrize("step", [-HOUR, HOUR], ids=["back", "forward"])
def test_a_step_of_the_wall_clock_moves_no_delay(room: WaitingRoom, out: Out, time: Time, step: float) -> None:
    entries = [Entry(time.elapsed() + 0.3, number) for number in range(250)] + [Entry(time.elapsed() + 1.3, 250)]
    for entry in entries:
        room.arm(entry)
    settle(room, 251)
    time.stepped += step
    assert out.wait_for(251) == entries
    assert max(moment - entry.due for moment, entry in zip(out.moments, entries, strict=True)) < LATE
    settle(room, 0)


@pytest.mark.parametrize("step", [-HOUR, HOUR], ids=["back", "forward"])
def test_what_is_armed_between_a_step_and_the_next_look_is_neither_early_nor_late(
    room: WaitingRoom, out: Out, time: Time, step: float
) -> None:
    room.arm(Entry(time.elapsed() + HOUR))
    settle(room, 1)
    time.stepped += step
    entry = Entry(time.elapsed() + 0.2)
    room.arm(entry)
    assert out.wait_for(1) == [entry]
    assert out.moments[0] - entry.due < LATE


def test_on_step_is_called_once_for_each_step_while_anything_waits(room: WaitingRoom, out: Out, time: Time) -> None:
    room.arm(Entry(time.elapsed() + HOUR))
    settle(room, 1)
    for number, step in enumerate((-HOUR, 0.3, HOUR), start=1):
        time.stepped += step
        assert out.wait(lambda number=number: out.steps >= number, LOOK + LATE)  # type: ignore[misc]
    last = Entry(time.elapsed() + LOOK + 0.1)
    room.arm(last)
    assert out.wait_for(1) == [last]
    assert out.steps == 3
    assert room.health().waiting == 1


def test_an_entry_that_on_step_arms_anew_comes_out_at_its_new_moment(make: Callable[[], WaitingRoom], out: Out, time: Time) -> None:
    room = make()
    at = Entry(time.elapsed() + HOUR)

    def _step() -> None:
        at.due -= HOUR - 1
        room.arm(at)
        out.step()

    room.start(out.due, _step)
    room.arm(at)
    settle(room, 1)
    time.stepped += HOUR - 1
    assert out.wait_for(1) == [at]
    settle(room, 0)


def test_what_fell_due_while_the_machine_slept_comes_out_within_a_look_after_it(room: WaitingRoom, out: Out, time: Time) -> None:
    entries = [Entry(time.elapsed() + HOUR + number, number) for number in range(3)]
    for entry in entries:
        room.arm(entry)
    settle(room, 3)
    began = real.monotonic()
    time.slept += HOUR + 3  # both clocks go on; the thread's wait in the kernel does not
    assert out.wait_for(3) == entries
    assert real.monotonic() - began < LOOK + LATE
    assert out.steps == 0


def test_a_clock_that_is_slewed_makes_nothing_early(room: WaitingRoom, out: Out, time: Time) -> None:
    start = time.elapsed() + 0.1
    for number in range(200):
        room.arm(Entry(start + 0.005 * number, number))
    for count in range(200):
        assert out.wait(lambda count=count: len(out.moments) > count)  # type: ignore[misc]
        time.stepped += 0.0005  # below what counts as a step, but it adds up to some
    assert [entry.number for entry in out.wait_for(200)] == list(range(200))
