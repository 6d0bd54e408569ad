"""The rules of `jobwheel.ticker`: one pass with a clock moved by hand, the interleavings with adders, and the guarded thread."""

import threading
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any

import pytest

from jobwheel.ticker import LOOK, STEP, Guard, Ticker, TickerThread
from jobwheel.wheel import Wheel


class Entry:
    __slots__ = ("due", "place", "priority")

    def __init__(self, due: float) -> None:
        self.due = due
        self.place: object = None
        self.priority = 0

    def __repr__(self) -> str:
        return f"<{self.due}>"


class Clock:
    """Stands still until a test moves it. `stall` is added between two readings: the thread lost the GIL there."""

    def __init__(self) -> None:
        self.now = 0.0
        self.offset = 1_000_000.0
        self.stall = 0.0

    def elapsed(self) -> float:
        return self.now

    def wall(self) -> float:
        self.now += self.stall
        return self.now + self.offset


class Bench:
    """A ticker over a wheel of 8 slots of one second, and what came out of it."""

    def __init__(self, piece: int = 100) -> None:
        self.clock = Clock()
        self.ticker = Ticker(Wheel(8, 1.0), self.clock, piece)
        self.calls: list[list[Any]] = []
        self.steps = 0
        self.ticker.on_due = self.calls.append
        self.ticker.on_step = self._step

    def _step(self) -> None:
        self.steps += 1

    def arm(self, *dues: float) -> list[Entry]:
        entries = [Entry(due) for due in dues]
        self.ticker.inbox.extend(entries)
        return entries

    def pass_at(self, now: float) -> float | None:
        self.clock.now = now
        return self.ticker.pass_()


# How long it sleeps


def test_with_nothing_waiting_it_sleeps_until_it_is_woken() -> None:
    bench = Bench()
    assert bench.pass_at(0.0) is None
    assert bench.ticker.next_look == inf
    bench.arm(0.5)
    bench.pass_at(1.0)
    assert bench.pass_at(1.0) is None


def test_inside_the_slot_it_sleeps_to_the_exact_moment() -> None:
    bench = Bench()
    bench.arm(0.25, 0.75)
    assert bench.pass_at(0.0) == 0.25
    assert bench.ticker.next_look == 0.25
    assert bench.pass_at(0.25) == 0.5


def test_before_the_slot_it_sleeps_to_where_the_slot_begins() -> None:
    bench = Bench()
    bench.arm(1.75)
    assert bench.pass_at(0.5) == 0.5
    assert bench.pass_at(1.0) == 0.75


def test_while_anything_waits_it_looks_at_the_clocks_each_second() -> None:
    bench = Bench()
    bench.arm(5000.0)
    assert bench.pass_at(0.0) == LOOK == 1.0
    assert bench.ticker.next_look == LOOK
    assert bench.pass_at(0.5) == LOOK


def test_a_pass_that_took_its_time_sleeps_that_much_less_and_never_a_negative_time() -> None:
    bench = Bench()
    bench.arm(0.0, 0.75)

    def _slow(due: list[Any]) -> None:
        bench.clock.now += 0.5

    bench.ticker.on_due = _slow
    assert bench.pass_at(0.0) == 0.25
    bench.arm(0.5, 0.875)
    assert bench.pass_at(0.5) == 0.0


# What it gives out


def test_due_entries_come_in_one_call_in_order() -> None:
    bench = Bench()
    late, early, waiting = bench.arm(1.5, 1.25, 1.75)
    bench.pass_at(1.5)
    assert bench.calls == [[early, late]]
    bench.pass_at(1.6)
    assert bench.calls == [[early, late]]
    bench.pass_at(1.75)
    assert bench.calls == [[early, late], [waiting]]


def test_a_long_pause_is_caught_up_in_one_pass_in_order_over_many_turns() -> None:
    bench = Bench()
    entries = bench.arm(*(0.75 * number for number in range(200, 0, -1)))
    bench.pass_at(0.0)
    bench.pass_at(1000.0)
    assert bench.calls == [entries[::-1]]


def test_a_disarmed_entry_is_not_given_out() -> None:
    bench = Bench()
    gone, kept = bench.arm(1.0, 1.0)
    bench.ticker.inbox.append((gone,))
    bench.pass_at(1.0)
    assert bench.calls == [[kept]]


def test_what_came_in_is_placed_in_pieces_and_what_is_due_meanwhile_comes_out() -> None:
    bench = Bench(piece=3)
    entries = bench.arm(0.0, 100.0, 100.0, 0.0, 100.0, 0.0, 100.0)
    assert bench.pass_at(0.0) == 0.0
    assert bench.calls == [[entries[0]]]
    assert len(bench.ticker.inbox) == 4
    assert bench.pass_at(0.0) == 0.0
    assert bench.calls == [[entries[0]], [entries[3], entries[5]]]
    assert bench.pass_at(0.0) == LOOK
    assert bench.ticker.wheel.pending == 4


def test_what_on_due_arms_is_placed_at_once() -> None:
    bench = Bench()
    bench.arm(0.0)

    def _due(due: list[Any]) -> None:
        bench.arm(0.25)

    bench.ticker.on_due = _due
    assert bench.pass_at(0.0) == 0.0
    assert bench.pass_at(0.0) == 0.25


def test_an_error_of_on_due_goes_to_the_caller_and_the_next_pass_goes_on() -> None:
    bench = Bench()
    bench.arm(0.0, 1.0)

    def _broken(due: list[Any]) -> None:
        raise KeyError(due[0].due)

    bench.ticker.on_due = _broken
    with pytest.raises(KeyError):
        bench.pass_at(0.0)
    bench.ticker.on_due = bench.calls.append
    bench.pass_at(1.0)
    assert [entry.due for entry in bench.calls[0]] == [1.0]


# The wall clock


@pytest.mark.parametrize("step", [-3600.0, 3600.0, STEP * 1.1, -STEP * 1.1])
def test_a_step_of_the_wall_clock_calls_on_step_once(step: float) -> None:
    bench = Bench()
    bench.arm(5000.0)
    bench.pass_at(0.0)
    bench.clock.offset += step
    bench.pass_at(1.0)
    bench.pass_at(2.0)
    assert bench.steps == 1


def test_a_slew_counts_as_a_step_when_it_has_added_up() -> None:
    bench = Bench()
    for number in range(1, 11):
        bench.clock.offset += STEP / 4
        bench.pass_at(float(number))
    assert bench.steps == 2


def test_a_suspend_and_a_stall_between_two_passes_are_no_step() -> None:
    bench = Bench()
    bench.pass_at(0.0)
    bench.pass_at(100_000.0)
    assert bench.steps == 0


def test_a_thread_that_lost_the_gil_between_the_two_readings_sees_no_step_but_a_true_one_at_the_next_look() -> None:
    bench = Bench()
    bench.clock.stall = 2 * STEP
    bench.pass_at(0.0)
    bench.clock.offset += 3600.0
    bench.pass_at(1.0)
    assert bench.steps == 0
    bench.clock.stall = 0.0
    bench.pass_at(2.0)
    assert bench.steps == 1


def test_what_on_step_arms_is_placed_at_once() -> None:
    bench = Bench()

    def _step() -> None:
        bench.arm(1.25)

    bench.ticker.on_step = _step
    bench.clock.offset += 3600.0
    assert bench.pass_at(1.0) == 0.0
    assert bench.pass_at(1.0) == 0.25


def test_a_step_that_on_step_could_not_follow_is_tried_again() -> None:
    bench = Bench()

    def _broken() -> None:
        raise KeyError("the store fails")

    bench.ticker.on_step = _broken
    bench.clock.offset += 3600.0
    with pytest.raises(KeyError):
        bench.pass_at(1.0)
    bench.ticker.on_step = bench._step
    bench.pass_at(1.05)
    bench.pass_at(2.0)
    assert bench.steps == 1


# Interleavings with an adder: it appends, then looks at `next_look`; "wakes" is what it would do.


def adder(bench: Bench, due: float, woken: list[bool]) -> Callable[[], None]:
    def _arm() -> None:
        bench.arm(due)
        woken.append(due < bench.ticker.next_look)

    return _arm


class Watched(deque[Any]):
    """An inbox that calls `on_look(n)` when the ticker looks for the n-th time whether anything is in it."""

    on_look: Callable[[int], None] = staticmethod(lambda look: None)
    looks = 0

    def __bool__(self) -> bool:
        self.looks += 1
        self.on_look(self.looks)
        return len(self) > 0


def watch(bench: Bench, on_look: Callable[[int], None]) -> None:
    inbox = Watched()
    inbox.on_look = on_look
    bench.ticker.inbox = inbox


def test_next_look_is_published_before_the_last_look_at_the_inbox() -> None:
    bench = Bench()
    bench.arm(5.0)
    bench.pass_at(0.0)
    bench.ticker.next_look = -inf  # as the thread does when it wakes
    seen: list[float] = []
    watch(bench, lambda look: seen.append(bench.ticker.next_look))
    bench.pass_at(0.5)
    assert seen == [-inf, 0.5 + LOOK]


@pytest.mark.parametrize("look", [1, 2])
def test_an_adder_that_comes_at_a_look_at_the_inbox_is_seen_by_it(look: int) -> None:
    bench = Bench()
    woken: list[bool] = []
    arm = adder(bench, 0.25, woken)
    watch(bench, lambda number: arm() if number == look else None)
    assert bench.pass_at(0.0) == 0.0
    assert bench.pass_at(0.0) == 0.25


@pytest.mark.parametrize("method", ["advance", "next_due"])
def test_an_adder_that_comes_in_the_midst_of_a_pass_is_seen_before_it_sleeps(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    woken: list[bool] = []
    arm, inner = adder(bench, 0.25, woken), getattr(bench.ticker.wheel, method)

    def _interrupted(*args: float) -> Any:
        answer = inner(*args)
        if not woken:
            arm()
        return answer

    monkeypatch.setattr(bench.ticker.wheel, method, _interrupted)
    assert bench.pass_at(0.0) == 0.0
    assert bench.pass_at(0.0) == 0.25
    assert woken == [False]  # it need not wake a thread that is awake


@pytest.mark.parametrize("waits", [True, False])
def test_an_adder_that_comes_after_the_last_look_wakes_the_thread_if_it_would_oversleep(waits: bool) -> None:
    bench = Bench()
    if waits:
        bench.arm(0.5)
    bench.pass_at(0.0)
    woken: list[bool] = []
    adder(bench, 0.75, woken)()
    assert woken == [not waits]
    adder(bench, 0.25, woken)()
    assert woken == [not waits, True]


# The guarded passes and the thread


@pytest.fixture
def broken() -> Bench:
    """On_due raises what is in `broken.errors`, one after the other, and then works."""
    bench = Bench()
    bench.errors = [KeyError("a"), KeyError("a"), SystemExit(3), KeyError("a")]  # type: ignore[attr-defined]

    def _due(due: list[Any]) -> None:
        bench.calls.append(due)
        if bench.errors:  # type: ignore[attr-defined]
            raise bench.errors.pop(0)  # type: ignore[attr-defined]

    bench.ticker.on_due = _due
    return bench


@pytest.mark.inner_errors
def test_a_guarded_pass_counts_an_error_tells_it_once_and_asks_for_a_short_sleep(broken: Bench, caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard(broken.ticker, broken.clock)
    for count, told in ((1, 1), (2, 1), (3, 2), (4, 3)):
        broken.arm(0.0)
        assert guard.guarded_pass() == 0.05
        assert (guard.errors, len(caplog.records)) == (count, told)
        assert guard.busy_since is None
    broken.arm(0.0, 0.5)
    assert guard.guarded_pass() == 0.5
    assert all(record.exc_info and record.levelname == "ERROR" for record in caplog.records)
    assert guard.health(None).errors == 4


def test_a_guard_that_is_stopping_makes_no_pass() -> None:
    bench = Bench()
    guard = Guard(bench.ticker, bench.clock)
    bench.arm(0.0)
    guard.stopping = True
    assert guard.guarded_pass() == 0.0
    assert bench.calls == []


def test_health_is_read_off_the_last_look() -> None:
    bench = Bench()
    guard = Guard(bench.ticker, bench.clock)
    bench.arm(5.0, 6.0)
    guard.guarded_pass()
    bench.arm(7.0)
    bench.clock.now = LOOK + 0.25
    health = guard.health("it hangs")
    assert (health.waiting, health.lag, health.problem) == (3, 0.25, "it hangs")
    assert health.next_wake is not None
    assert health.next_wake.timestamp() == bench.clock.offset + LOOK


@pytest.mark.inner_errors
def test_the_thread_survives_whatever_on_due_raises(broken: Bench) -> None:
    thread = TickerThread(broken.ticker, broken.clock)
    came = threading.Semaphore(0)
    inner = broken.ticker.on_due

    def _due(due: list[Any]) -> None:
        came.release()
        inner(due)

    broken.ticker.on_due = _due
    thread.start()
    for _ in range(5):
        broken.arm(0.0)
        thread.wake()
        assert came.acquire(timeout=5)
    thread.stop()
    assert not thread.alive
    assert (len(broken.calls), thread.errors) == (5, 4)


def test_the_thread_is_woken_out_of_an_endless_sleep(wait_until: Callable[..., None]) -> None:
    bench = Bench()
    thread = TickerThread(bench.ticker, bench.clock)
    came = threading.Event()
    bench.ticker.on_due = lambda due: came.set()
    thread.start()
    wait_until(lambda: bench.ticker.next_look == inf)
    bench.arm(0.0)
    thread.wake()
    assert came.wait(5)
    thread.stop()
