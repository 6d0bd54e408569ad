"""Moments: whole microseconds of the file against the seconds of this process's clocks; steps of the wall clock, and other boots."""

from collections.abc import Callable, Iterator
from math import floor
from pathlib import Path
from random import Random

import pytest

from jobwheel.clock import SystemClock
from jobwheel.stores.sqlite.file import StoreFile, leave_file, open_file
from jobwheel.stores.sqlite.moments import SECOND, WALL, Moments, boot_name, micros
from jobwheel.testing import START, ManualClock


@pytest.fixture
def file(tmp_path: Path) -> Iterator[StoreFile]:
    file = open_file(str(tmp_path / "jobs.db"))
    yield file
    leave_file(file)


@pytest.fixture
def joined(file: StoreFile) -> Callable[..., tuple[Moments, ManualClock]]:
    """`joined(wall)`: a boot at which the wall clock shows so many seconds since START."""

    def make(wall: float = 0.0) -> tuple[Moments, ManualClock]:
        clock = ManualClock(START + wall)
        moments = Moments(clock)
        moments.join(file)
        return moments, clock

    return make


def boots(file: StoreFile) -> dict[str, float]:
    """What the file knows: seconds from each boot's elapsed clock to the wall clock."""
    return {name: offset / SECOND for name, offset in file.read("SELECT name, offset FROM boot WHERE n > 0")}


# --- rounding ---


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.0, 0),
        (1.0, 1_000_000),
        (0.1, 100_000),
        (0.1 + 0.2, 300_000),
        (1e-6, 1),
        (1.1e-6, 2),
        (1e-9, 0),
        (0.3, 300_000),
        (-1.5, -1_500_000),
    ],
)
def test_a_due_moment_is_the_next_whole_microsecond(seconds: float, expected: int) -> None:
    assert micros(seconds) == expected


def test_a_due_moment_is_never_before_what_was_asked_for_and_never_a_microsecond_after() -> None:
    random = Random(3)
    for _ in range(20_000):
        seconds = random.choice([random.random(), random.random() * 1e4, random.random() * 1e8])
        assert -0.06 <= micros(seconds) - seconds * SECOND < 1.0


def test_what_was_whole_stays_what_it_was() -> None:
    """However a float of seconds may miss it: writing and reading again and again does not move a moment."""
    random = Random(4)
    for _ in range(20_000):
        whole = random.choice([random.randrange(10**7), random.randrange(10**12), random.randrange(10**14)])
        assert micros(whole / SECOND) == whole


def test_at_the_moment_that_a_room_wakes_for_the_claim_agrees_that_it_is_here(joined: Callable[..., tuple[Moments, ManualClock]]) -> None:
    moments, clock = joined()
    random = Random(5)
    for _ in range(2000):
        clock._elapsed = start = random.choice([0.0, 1000.0, 3e6]) + random.random()
        due = micros(start + random.random() * 10)
        clock._elapsed = moments.to_elapsed(moments.basis, due)
        assert moments.elapsed() >= due
        clock._elapsed -= 1.1e-6
        assert moments.elapsed() < due


def test_a_date_is_here_when_the_wall_clock_says_so(joined: Callable[..., tuple[Moments, ManualClock]]) -> None:
    moments, clock = joined()
    random = Random(6)
    for _ in range(2000):
        date = START + random.random() * 1e6
        due = round(date * SECOND)
        clock._wall = date
        assert moments.wall() >= due
        clock._wall = date - 5e-6
        assert moments.wall() < due


def test_now_on_the_elapsed_clock_is_never_ahead_of_it() -> None:
    clock = ManualClock()
    moments = Moments(clock)
    random = Random(7)
    for _ in range(2000):
        clock._elapsed = random.random() * 1e6
        assert moments.elapsed() - clock._elapsed * SECOND <= 0.06


# --- this boot ---


def test_a_boot_is_written_down_once_whoever_joins(file: StoreFile) -> None:
    clock = ManualClock(START + 5)
    first, second = Moments(clock), Moments(clock)
    first.join(file)
    second.join(file)
    assert first.basis == second.basis > 0
    assert boots(file) == {clock.boot: START + 5}


def test_moments_of_this_boot_are_its_own_elapsed_seconds(joined: Callable[..., tuple[Moments, ManualClock]]) -> None:
    moments, clock = joined()
    assert moments.to_elapsed(moments.basis, 2_500_000) == 2.5
    assert moments.to_wall(moments.basis, 2_500_000) == START + 2.5
    clock.set_wall(100)
    assert moments.to_elapsed(moments.basis, 2_500_000) == 2.5, "no step moves a delay"
    assert moments.to_wall(moments.basis, 2_500_000) == START + 102.5


def test_moments_of_the_wall_clock_follow_it(joined: Callable[..., tuple[Moments, ManualClock]]) -> None:
    moments, clock = joined()
    due = round((START + 60) * SECOND)
    assert (moments.to_elapsed(WALL, due), moments.to_wall(WALL, due)) == (60.0, START + 60)
    clock.set_wall(20)
    assert (moments.to_elapsed(WALL, due), moments.to_wall(WALL, due)) == (40.0, START + 60)
    clock.set_wall(-50)
    assert moments.to_elapsed(WALL, due) == 90.0


def test_equal_moments_stay_equal_while_the_clocks_jitter(joined: Callable[..., tuple[Moments, ManualClock]]) -> None:
    """The two clocks are read one after the other: what lies between is no step."""
    moments, clock = joined()
    before = moments.to_elapsed(WALL, round((START + 60) * SECOND))
    clock._wall += 0.0004
    assert moments.to_elapsed(WALL, round((START + 60) * SECOND)) == before
    clock._wall += 0.0016
    assert moments.to_elapsed(WALL, round((START + 60) * SECOND)) == pytest.approx(before - 0.002, abs=1e-6)


def test_a_step_is_written_down_and_jitter_is_not(file: StoreFile, joined: Callable[..., tuple[Moments, ManualClock]]) -> None:
    moments, clock = joined()
    clock._wall += 0.04
    moments.look(file)
    assert boots(file) == {clock.boot: START}
    clock._wall += 0.02
    moments.look(file)
    assert boots(file) == {clock.boot: pytest.approx(START + 0.06, abs=1e-5)}


def test_what_is_asked_ahead_is_ahead_on_every_clock(joined: Callable[..., tuple[Moments, ManualClock]]) -> None:
    moments, clock = joined()
    clock.advance(10)
    limits = dict(moments.limits(2_000_000))
    assert limits[moments.basis] == 12_000_000
    assert limits[WALL] == pytest.approx(round((START + 12) * SECOND), abs=3)
    assert dict(moments.limits())[moments.basis] == 10_000_000


# --- other boots ---


def test_moments_of_another_boot_count_by_the_wall_clock(joined: Callable[..., tuple[Moments, ManualClock]]) -> None:
    before, _ = joined()
    moments, clock = joined(1000)
    clock.advance(7)
    due = 1_060_000_000
    assert moments.to_wall(before.basis, due) == START + 1060
    assert moments.to_elapsed(before.basis, due) == pytest.approx(60.0, abs=1e-6)
    assert dict(moments.limits())[before.basis] == pytest.approx(1_007_000_000, abs=3)


def test_a_boot_that_joins_later_is_known_when_it_is_met(joined: Callable[..., tuple[Moments, ManualClock]]) -> None:
    moments, _ = joined()
    later, _ = joined(500)
    assert moments.to_wall(later.basis, 10_000_000) == START + 510
    assert moments.to_elapsed(later.basis, 10_000_000) == pytest.approx(510.0, abs=1e-6)


def test_a_step_that_another_boot_has_written_down_is_seen_at_the_next_look(
    file: StoreFile, joined: Callable[..., tuple[Moments, ManualClock]]
) -> None:
    one, clock = joined()
    other, _ = joined()
    clock.set_wall(300)
    one.look(file)
    other.look(file)
    assert other.to_wall(one.basis, 10_000_000) == START + 310


def test_there_and_back_again(joined: Callable[..., tuple[Moments, ManualClock]]) -> None:
    first, _ = joined()
    second, clock = joined(123.456)
    clock.advance(9.875)
    random = Random(8)
    for _ in range(500):
        moment = random.randrange(10**10)
        for basis in (first.basis, second.basis):
            elapsed = second.to_elapsed(basis, moment)
            assert second.to_wall(basis, moment) == pytest.approx(elapsed + second.offset(), abs=1e-6)


# --- names ---


def test_a_boot_of_the_machine_has_one_name_and_each_manual_clock_its_own() -> None:
    assert boot_name(SystemClock()) == boot_name(SystemClock())
    assert boot_name(ManualClock()) != boot_name(ManualClock())


def test_a_clock_that_names_no_boot_is_one_by_itself() -> None:
    class Clock:
        def elapsed(self) -> float:
            return 0.0

        def wall(self) -> float:
            return START

    one, other = Clock(), Clock()
    assert boot_name(one) == boot_name(one) != boot_name(other)


def test_without_a_boot_id_each_process_is_a_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*given: object, **named: object) -> object:
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", nothing)
    name = boot_name(SystemClock())
    monkeypatch.undo()
    assert name.startswith("process ")
    assert name != boot_name(SystemClock())


def test_the_floor_of_now_is_what_claims_compare_with() -> None:
    clock = ManualClock()
    moments = Moments(clock)
    clock._elapsed = 1.9999994
    assert moments.elapsed() == floor(1.9999994 * SECOND) == 1_999_999
