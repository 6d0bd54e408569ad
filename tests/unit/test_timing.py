"""When jobs run: whole timers on a manual clock, so that years pass in milliseconds. No test here waits."""

import itertools
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from math import inf, nan
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest

from jobwheel import IJob, JobContext, Retry, RetryJob, State, TimerManager
from jobwheel.delay import LONGEST
from jobwheel.errors import BadType, BadValue, UsageError
from jobwheel.testing import START, ManualClock, manual_timer

HOUR, DAY, YEAR = 3600.0, 86400.0, 365.25 * 86400
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


class Entry(NamedTuple):
    """One run, as the diary has it."""

    name: Any
    at: float
    late: float
    scheduled_for: datetime


@dataclass
class Mark(IJob, kind="test_timing.mark"):
    """Writes into the diary when it ran."""

    name: Any = "a"

    def run(self, ctx: JobContext, *, diary: list[Entry], clock: ManualClock) -> None:
        diary.append(Entry(self.name, clock.elapsed(), ctx.lateness, ctx.scheduled_for))


@dataclass
class Grace(Mark, kind="test_timing.grace", misfire_grace_time=10):
    pass


@dataclass
class Fail(Mark, kind="test_timing.fail", retry=Retry(attempts=4, backoff=2)):
    def run(self, ctx: JobContext, *, diary: list[Entry], clock: ManualClock) -> None:
        super().run(ctx, diary=diary, clock=clock)
        raise ValueError(self.name)


class Scene:
    """A timer, its clock, and the diary that its jobs write."""

    def __init__(self, timer: TimerManager, clock: ManualClock, diary: list[Entry]) -> None:
        self.timer, self.clock, self.diary = timer, clock, diary

    @property
    def names(self) -> list[Any]:
        return [entry.name for entry in self.diary]

    @property
    def moments(self) -> list[tuple[Any, float]]:
        return [(entry.name, entry.at) for entry in self.diary]


def scene_of(manual: Any, **settings: Any) -> Scene:
    diary: list[Entry] = []
    services: dict[str, Any] = {"diary": diary}
    timer, clock = manual(services=services, **settings)
    services["clock"] = clock
    return Scene(timer, clock, diary)


@pytest.fixture(params=["memory", "sqlite"])
def manual(request: pytest.FixtureRequest, manual: Any, tmp_path: Path) -> Any:
    """As ever, on each store: when a job runs does not depend on where it is kept."""
    made = itertools.count()

    def make(**settings: Any) -> Any:
        section = {"kind": request.param, "path": f"{tmp_path}/{next(made)}.db", "durability": "process"}
        return manual(**settings | {"store": section | settings.get("store", {})})

    return make


@pytest.fixture
def scene(manual: Any) -> Scene:
    return scene_of(manual)


# --- delays ---


def test_a_gift_after_48_hours_comes_after_48_hours(scene: Scene) -> None:
    """R28, R88: 48 turns of the default wheel, to the second, in no time."""
    scene.timer.add_job(Mark(), timedelta(hours=48))
    scene.clock.advance(172_799)
    assert scene.diary == []
    scene.clock.advance(1)
    assert scene.moments == [("a", 172_800.0)]


@pytest.mark.parametrize("delay", [3599, 3600, 3601, 7200, 7200.5, 86_400, 30 * DAY, 40 * YEAR, LONGEST])
def test_any_delay_is_kept_exactly(scene: Scene, delay: float) -> None:
    """R30, R33."""
    scene.clock.advance(1234.5)
    scene.timer.add_job(Mark(), delay)
    scene.clock.advance(delay / 2)
    scene.clock.advance(delay / 2 - 0.25)
    assert scene.diary == []
    scene.clock.advance(0.25)
    assert scene.moments == [("a", pytest.approx(1234.5 + delay, abs=1e-6))]


def test_no_job_starts_early_and_none_late_whatever_the_delay(scene: Scene) -> None:
    """R32: a slot is one second wide, and a job is exact all the same."""
    random = Random(7)
    for number in range(500):
        scene.clock.advance(random.random())
        scene.timer.add_job(Mark(number), random.choice([random.random(), random.random() * 100, random.random() * 2 * HOUR]))
    scene.clock.advance(3 * HOUR)
    assert len(scene.diary) == 500
    assert {entry.late for entry in scene.diary} == {0.0}
    assert [entry.at for entry in scene.diary] == sorted(entry.at for entry in scene.diary)


@pytest.mark.parametrize(
    "wheel", [{"slots": 1, "tick": 0.1}, {"slots": 8, "tick": 0.01}, {"slots": 7, "tick": 3.7}, {"slots": 100, "tick": 1000.0}], ids=str
)
def test_the_shape_of_the_wheel_changes_nothing(manual: Any, wheel: dict[str, Any]) -> None:
    scene = scene_of(manual, wheel=wheel)
    delays = [0.05, 0.1, 0.25, 1.0, 1.05, 3.7, 7.4, 99.95, 1000.0, 12345.6]
    for delay in reversed(delays):
        scene.timer.add_job(Mark(delay), delay)
    scene.clock.advance(20_000)
    assert scene.moments == [(delay, delay) for delay in delays]


@pytest.mark.parametrize("delay", [None, 0, 0.0, timedelta(0)])
def test_no_delay_is_as_soon_as_a_worker_is_free(scene: Scene, delay: Any) -> None:
    """R34."""
    scene.timer.add_job(Mark(), delay)
    assert scene.diary == [], "a manual timer runs nothing by itself"
    scene.clock.advance(0)
    assert scene.moments == [("a", 0.0)]


@pytest.mark.parametrize("delay", [-1, -0.001, timedelta(seconds=-1), inf, -inf, nan, LONGEST * 1.01, 10**400, timedelta.max])
def test_a_delay_that_cannot_be_kept_is_a_value_error_and_nothing_is_half_registered(scene: Scene, delay: Any) -> None:
    """R33, R34."""
    old = scene.timer.add_job(Mark("old"), 5, key="k")
    with pytest.raises(ValueError, match="delay="):
        scene.timer.add_job(Mark("new"), delay, key="k")
    assert scene.timer.find() == [old]
    assert scene.timer.stats().pending == 1
    scene.clock.advance(10)
    assert scene.names == ["old"]


@pytest.mark.parametrize("delay", ["5", True, b"5", [5], 5j])
def test_a_delay_that_is_no_duration_is_a_type_error(scene: Scene, delay: Any) -> None:
    with pytest.raises(TypeError, match="seconds"):
        scene.timer.add_job(Mark(), delay)
    assert scene.timer.find() == []


def test_equal_moments_run_in_the_order_of_the_adds(scene: Scene) -> None:
    for number in range(100):
        scene.timer.add_job(Mark(number), 5)
    scene.clock.advance(5)
    assert scene.names == list(range(100))


def test_jobs_due_at_once_run_in_the_order_of_the_adds(scene: Scene) -> None:
    for number in range(100):
        scene.timer.add_job(Mark(number))
    scene.clock.advance(0)
    assert scene.names == list(range(100))


def test_what_is_due_together_runs_by_priority(scene: Scene) -> None:
    for name, priority in (("low", -1), ("normal", 0), ("high", 5), ("high too", 5)):
        scene.timer.add_job(Mark(name), 5, priority=priority)
    scene.clock.advance(5)
    assert scene.names == ["high", "high too", "normal", "low"]


# --- dates ---


def test_a_date_in_any_zone_is_its_instant(scene: Scene) -> None:
    """R19."""
    utc = scene.timer.add_job(Mark("utc"), at=datetime(2026, 1, 3, 18, tzinfo=UTC))
    plus_one = scene.timer.add_job(Mark("+1"), at=datetime(2026, 1, 3, 19, tzinfo=timezone(timedelta(hours=1))))
    berlin = scene.timer.add_job(Mark("berlin"), at=datetime(2026, 1, 3, 19, tzinfo=ZoneInfo("Europe/Berlin")))
    assert utc.due == plus_one.due == berlin.due
    assert utc.due.tzinfo is UTC
    scene.clock.advance(2 * DAY + 18 * HOUR - 1)
    assert scene.diary == []
    scene.clock.advance(1)
    assert scene.names == ["utc", "+1", "berlin"]
    assert {entry.scheduled_for for entry in scene.diary} == {utc.due}


def test_a_naive_date_is_refused_with_how_to_mend_it(scene: Scene) -> None:
    """R19."""
    with pytest.raises(BadValue, match=r"no time zone.*datetime.now\(UTC\)"):
        scene.timer.add_job(Mark(), at=datetime(2026, 1, 3, 18))  # noqa: DTZ001 (what is tested)
    assert scene.timer.find() == []


@pytest.mark.parametrize("at", ["2026-01-03", 1767225600, timedelta(5), (NEW_YEAR).date()])
def test_what_is_no_date_is_refused(scene: Scene, at: Any) -> None:
    with pytest.raises(BadType, match="an aware datetime"):
        scene.timer.add_job(Mark(), at=at)


@pytest.mark.parametrize(
    "at",
    [
        datetime(2226, 1, 1, tzinfo=UTC),
        datetime(1826, 1, 1, tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=UTC),
    ],
)
def test_a_date_over_a_hundred_years_away_is_refused(scene: Scene, at: datetime) -> None:
    with pytest.raises(BadValue, match="over 100 years away"):
        scene.timer.add_job(Mark(), at=at)
    assert scene.timer.find() == []


def test_a_date_in_the_past_runs_now_and_its_lateness_counts_from_it(scene: Scene) -> None:
    """R34."""
    scene.timer.add_job(Mark(), at=NEW_YEAR - timedelta(seconds=90))
    scene.clock.advance(0)
    ((name, at, late, scheduled_for),) = scene.diary
    assert (name, at, late) == ("a", 0.0, 90.0)
    assert scheduled_for == NEW_YEAR - timedelta(seconds=90)


@pytest.mark.parametrize(
    "given", [{"delay": 5, "at": NEW_YEAR}, {"delay": 5, "trigger": object()}, {"at": NEW_YEAR, "trigger": object()}], ids=list
)
def test_only_one_way_to_say_when_may_be_given(scene: Scene, given: dict[str, Any]) -> None:
    with pytest.raises(BadValue, match="give one of delay, at= and trigger="):
        scene.timer.add_job(Mark(), **given)


# --- clocks that jump ---


@pytest.mark.parametrize("step", [-10 * YEAR, -DAY, -1.0, 1.0, DAY, 10 * YEAR])
def test_a_step_of_the_wall_clock_neither_hastens_nor_delays_a_delay(scene: Scene, step: float) -> None:
    """R12, R13."""
    scene.timer.add_job(Mark(), 100)
    scene.clock.advance(50)
    scene.clock.set_wall(step)
    scene.clock.advance(49.9)
    assert scene.diary == []
    scene.clock.advance(0.1)
    assert [(entry.at, entry.late) for entry in scene.diary] == [(100.0, 0.0)]


def test_a_date_follows_the_wall_clock_back(scene: Scene) -> None:
    scene.timer.add_job(Mark(), at=NEW_YEAR + timedelta(seconds=100))
    scene.clock.advance(50)
    scene.clock.set_wall(-30)
    scene.clock.advance(79.9)
    assert scene.diary == []
    scene.clock.advance(0.1)
    assert scene.moments == [("a", 130.0)]
    assert scene.diary[0].scheduled_for == NEW_YEAR + timedelta(seconds=100)


def test_a_date_follows_the_wall_clock_forward(scene: Scene) -> None:
    scene.timer.add_job(Mark(), at=NEW_YEAR + timedelta(seconds=100))
    scene.clock.set_wall(60)
    scene.clock.advance(39.9)
    assert scene.diary == []
    scene.clock.advance(0.1)
    assert scene.moments == [("a", 40.0)]


def test_a_date_that_a_step_has_passed_runs_once_at_the_next_tick(scene: Scene) -> None:
    scene.timer.add_job(Mark(), at=NEW_YEAR + timedelta(hours=1))
    scene.clock.set_wall(2 * HOUR)
    assert scene.moments == [("a", 0.0)]
    assert scene.diary[0].late == HOUR
    scene.clock.set_wall(-2 * HOUR)
    scene.clock.advance(3 * HOUR)
    assert len(scene.diary) == 1, "a clock that goes back does not run it again"


def test_a_date_is_never_early_though_the_step_is_too_small_to_anchor_anew(scene: Scene) -> None:
    scene.timer.add_job(Mark(), at=NEW_YEAR + timedelta(seconds=10))
    scene.clock.set_wall(-0.04)
    scene.clock.advance(10.03)
    assert scene.diary == []
    scene.clock.advance(0.02)
    assert [round(entry.at, 6) for entry in scene.diary] == [10.04]


def test_a_paused_date_follows_the_wall_clock_too(scene: Scene) -> None:
    job = scene.timer.add_job(Mark(), at=NEW_YEAR + timedelta(seconds=100))
    scene.timer.pause(job)
    scene.clock.set_wall(-50)
    scene.timer.resume(job)
    scene.clock.advance(149)
    assert scene.diary == []
    scene.clock.advance(1)
    assert scene.moments == [("a", 150.0)]


def test_a_clock_stepped_to_and_fro_moves_no_date(scene: Scene) -> None:
    scene.timer.add_job(Mark(), at=NEW_YEAR + timedelta(seconds=100))
    for _ in range(20):
        scene.clock.set_wall(-30)
        scene.clock.advance(1)
        scene.clock.set_wall(30)
        scene.clock.advance(1)
    scene.clock.advance(59)
    assert scene.diary == []
    scene.clock.advance(1)
    assert scene.moments == [("a", 100.0)]


def test_the_due_moment_shown_is_that_of_the_present_wall_clock(scene: Scene) -> None:
    waits = scene.timer.add_job(Mark(), 100)
    dated = scene.timer.add_job(Mark(), at=NEW_YEAR + timedelta(seconds=100))
    scene.clock.set_wall(3600)
    assert scene.timer.get(waits).due == NEW_YEAR + timedelta(seconds=3700)  # type: ignore[union-attr]
    assert scene.timer.get(dated).due == dated.due  # type: ignore[union-attr]


def test_what_fell_due_in_a_suspend_runs_after_it_once_in_due_order_lateness_told(scene: Scene) -> None:
    """R11."""
    for delay in (300, 100, 200):
        scene.timer.add_job(Mark(delay), delay)
    scene.timer.add_job(Mark("date"), at=NEW_YEAR + timedelta(seconds=250))
    scene.clock.suspend(DAY)
    assert scene.names == [100, 200, "date", 300]
    assert [entry.late for entry in scene.diary] == [DAY - 100, DAY - 200, DAY - 250, DAY - 300]
    assert {entry.at for entry in scene.diary} == {DAY}


def test_after_a_stall_each_job_runs_once_in_due_order(scene: Scene) -> None:
    """R14."""
    for number in range(200):
        scene.timer.add_job(Mark(number), 200 - number)
    scene.clock.freeze(DAY)
    assert scene.names == list(reversed(range(200)))
    scene.clock.advance(DAY)
    assert len(scene.diary) == 200


def test_a_jump_of_ten_years_runs_everything_once(scene: Scene) -> None:
    """R13: no loop over what lies between."""
    for number in range(50):
        scene.timer.add_job(Mark(number), number * 70 * DAY)
    scene.clock.suspend(10 * YEAR)
    assert scene.names == list(range(50))


def test_late_is_not_lost(scene: Scene) -> None:
    """P4: without a grace time nothing is dropped, however late."""
    scene.timer.add_job(Mark(), 1)
    scene.clock.suspend(5 * YEAR)
    assert scene.diary[0].late == 5 * YEAR - 1


# --- misfire_grace_time ---


@pytest.mark.parametrize(
    ("late", "state"), [(0, State.SUCCEEDED), (9.9, State.SUCCEEDED), (10, State.SUCCEEDED), (10.1, State.MISSED), (DAY, State.MISSED)]
)
def test_a_grace_time_drops_what_is_later_and_says_so(scene: Scene, late: float, state: State) -> None:
    job = scene.timer.add_job(Grace(), 100, key="k")
    scene.clock.suspend(100 + late)
    ended = scene.timer.get(job)
    assert ended is not None
    assert ended.state is state
    assert len(scene.diary) == (state is State.SUCCEEDED)
    assert getattr(scene.timer.stats(), state.value) == 1
    if state is State.MISSED:
        assert "misfire_grace_time is 10 s" in (ended.error or "")
        assert scene.timer.stats().running == 0


def test_a_missed_job_frees_its_key_and_can_be_retried_by_hand(scene: Scene) -> None:
    job = scene.timer.add_job(Grace("first"), 1, key="k")
    scene.clock.suspend(100)
    assert scene.timer.retry(job)
    scene.clock.advance(0)
    assert scene.names == ["first"]
    scene.timer.add_job(Grace("second"), 1, key="k", if_exists="error")


def test_a_grace_time_counts_from_each_attempt(manual: Any) -> None:
    """A retry that is due at its own moment is not late, though the job's first moment is long past."""

    @dataclass
    class Patient(Fail, kind="test_timing.patient", misfire_grace_time=1, retry=Retry(attempts=3, backoff=60)):
        pass

    scene = scene_of(manual)
    scene.timer.add_job(Patient(), 5)
    scene.clock.advance(1000)
    assert [entry.at for entry in scene.diary] == [5.0, 65.0, 185.0]


# --- retries ---


def test_retries_wait_as_the_policy_says(scene: Scene) -> None:
    """R59: backoff 2, 4, 8: starts at +0, +2, +6, +14."""
    job = scene.timer.add_job(Fail(), 100)
    scene.clock.advance(1000)
    assert [entry.at for entry in scene.diary] == [100.0, 102.0, 106.0, 114.0]
    ended = scene.timer.get(job)
    assert ended is not None
    assert (ended.state, ended.attempt, ended.error) == (State.FAILED, 4, "ValueError: a")


def test_between_attempts_a_job_is_scheduled_with_its_last_error(scene: Scene) -> None:
    job = scene.timer.add_job(Fail())
    scene.clock.advance(1)
    waits = scene.timer.get(job)
    assert waits is not None
    assert (waits.state, waits.attempt, waits.error) == (State.SCHEDULED, 1, "ValueError: a")
    assert (waits.due - waits.created).total_seconds() == 2.0


def test_between_attempts_a_job_can_be_cancelled(scene: Scene) -> None:
    job = scene.timer.add_job(Fail())
    scene.clock.advance(1)
    assert scene.timer.cancel(job)
    scene.clock.advance(100)
    assert len(scene.diary) == 1
    assert scene.timer.stats().cancelled == 1


def test_retry_job_waits_as_it_asks_and_goes_on_beyond_the_policy(manual: Any) -> None:
    @dataclass
    class NotYet(Mark, kind="test_timing.not_yet"):
        def run(self, ctx: JobContext, *, diary: list[Entry], clock: ManualClock) -> None:
            super().run(ctx, diary=diary, clock=clock)
            if ctx.attempt < 6:
                raise RetryJob(timedelta(seconds=10), "not yet")

    scene = scene_of(manual)
    job = scene.timer.add_job(NotYet())
    scene.clock.advance(15)
    assert scene.timer.get(job).error == "not yet"  # type: ignore[union-attr]
    scene.clock.advance(100)
    assert [entry.at for entry in scene.diary] == [0, 10, 20, 30, 40, 50]
    assert scene.timer.get(job).state is State.SUCCEEDED  # type: ignore[union-attr]


# --- touch ---


def test_touch_puts_a_job_off_to_now_plus_its_own_delay(scene: Scene) -> None:
    """R42."""
    scene.timer.add_job(Mark(), 30, key="session")
    for _ in range(10):
        scene.clock.advance(20)
        assert scene.timer.touch("session")
    assert scene.diary == []
    scene.clock.advance(29.9)
    assert scene.diary == []
    scene.clock.advance(0.1)
    assert scene.moments == [("a", 230.0)]
    assert scene.diary[0].scheduled_for == NEW_YEAR + timedelta(seconds=230)


def test_touch_may_bring_a_job_nearer(scene: Scene) -> None:
    """R42: also to an earlier time."""
    scene.timer.add_job(Mark(), DAY, key="k")
    scene.clock.advance(10)
    assert scene.timer.touch("k", 5)
    scene.clock.advance(4.9)
    assert scene.diary == []
    scene.clock.advance(0.1)
    assert scene.moments == [("a", 15.0)]


def test_a_given_delay_does_not_become_the_jobs_own(scene: Scene) -> None:
    scene.timer.add_job(Mark(), 30, key="k")
    scene.clock.advance(10)
    scene.timer.touch("k", 5)
    scene.timer.touch("k")
    scene.clock.advance(29.9)
    assert scene.diary == []
    scene.clock.advance(0.1)
    assert scene.moments == [("a", 40.0)]


def test_a_job_that_waits_for_its_next_attempt_keeps_its_own_delay(scene: Scene) -> None:
    scene.timer.add_job(Fail(), 30, key="k")
    scene.clock.advance(31)
    assert scene.timer.touch("k")
    scene.clock.advance(29.9)
    assert len(scene.diary) == 1
    scene.clock.advance(0.1)
    assert [entry.at for entry in scene.diary] == [30.0, 61.0]


def test_a_rescheduled_job_keeps_its_own_delay(scene: Scene) -> None:
    scene.timer.add_job(Mark(), 30, key="k")
    scene.timer.reschedule("k", 500)
    scene.timer.touch("k")
    scene.clock.advance(30)
    assert scene.moments == [("a", 30.0)]


@pytest.mark.parametrize("how", ["ended", "cancelled", "unknown", "running"])
def test_touch_brings_nothing_back(scene: Scene, how: str) -> None:
    """R43: True only if the job still waited."""
    answers = []

    @dataclass
    class TouchItself(Mark, kind="test_timing.touch_itself"):
        def run(self, ctx: JobContext, *, diary: list[Entry], clock: ManualClock) -> None:
            super().run(ctx, diary=diary, clock=clock)
            answers.append(scene.timer.touch("k", 5))

    if how == "running":
        scene.timer.add_job(TouchItself(), 5, key="k")
        scene.clock.advance(5)
        assert answers == [False]
    elif how == "ended":
        scene.timer.add_job(Mark(), 5, key="k")
        scene.clock.advance(5)
    elif how == "cancelled":
        scene.timer.add_job(Mark(), 5, key="k")
        scene.timer.cancel("k")
    runs = len(scene.diary)
    assert scene.timer.touch("k") is False
    assert scene.timer.touch("k", 1) is False
    scene.clock.advance(100)
    assert len(scene.diary) == runs
    assert scene.timer.stats().pending == 0


def test_max_wait_bounds_how_far_touches_postpone(scene: Scene) -> None:
    """R44: delay 30, max_wait 120, touched at 10, 20 ... 110: one run, at 120."""
    scene.timer.add_job(Mark(), 30, key="k", max_wait=120)
    for _ in range(11):
        scene.clock.advance(10)
        assert scene.timer.touch("k")
    scene.clock.advance(100)
    assert scene.moments == [("a", 120.0)]


def test_without_max_wait_steady_touches_postpone_for_ever(scene: Scene) -> None:
    scene.timer.add_job(Mark(), 30, key="k")
    for _ in range(60):
        scene.clock.advance(10)
        assert scene.timer.touch("k")
    assert scene.diary == []


def test_max_wait_bounds_a_given_delay_too(scene: Scene) -> None:
    scene.timer.add_job(Mark(), 30, key="k", max_wait=timedelta(minutes=1))
    scene.timer.touch("k", DAY)
    scene.clock.advance(DAY)
    assert scene.moments == [("a", 60.0)]


@pytest.mark.parametrize(
    ("given", "match"),
    [({"delay": 10, "max_wait": 5}, "shorter than the delay"), ({"at": NEW_YEAR, "max_wait": 5}, "no meaning with at=")],
    ids=str,
)
def test_a_max_wait_that_cannot_hold_is_refused(scene: Scene, given: dict[str, Any], match: str) -> None:
    with pytest.raises(BadValue, match=match):
        scene.timer.add_job(Mark(), **given)
    assert scene.timer.find() == []


def test_touch_of_a_date_needs_a_delay_and_makes_it_a_delay(scene: Scene) -> None:
    scene.timer.add_job(Mark(), at=NEW_YEAR + timedelta(hours=1), key="k")
    with pytest.raises(BadValue, match="no delay of its own; give touch one"):
        scene.timer.touch("k")
    assert scene.timer.get("k").due == NEW_YEAR + timedelta(hours=1)  # type: ignore[union-attr]
    assert scene.timer.touch("k", 50)
    scene.clock.set_wall(DAY)
    scene.clock.advance(49.9)
    assert scene.diary == []
    scene.clock.advance(0.1)
    assert scene.moments == [("a", 50.0)]


def test_touch_of_a_paused_job_needs_a_delay_and_leaves_it_paused(scene: Scene) -> None:
    scene.timer.add_job(Mark(), 10, key="k")
    scene.timer.pause("k")
    with pytest.raises(BadValue, match="paused"):
        scene.timer.touch("k")
    assert scene.timer.touch("k", 50)
    scene.clock.advance(100)
    assert scene.diary == []
    assert scene.timer.get("k").state is State.PAUSED  # type: ignore[union-attr]
    scene.timer.resume("k")
    scene.clock.advance(0)
    assert scene.moments == [("a", 100.0)]
    assert scene.diary[0].scheduled_for == NEW_YEAR + timedelta(seconds=50)


@pytest.mark.parametrize("delay", [-1, nan, "5"])
def test_touch_with_a_delay_that_is_none_changes_nothing(scene: Scene, delay: Any) -> None:
    due = scene.timer.add_job(Mark(), 10, key="k").due
    with pytest.raises(UsageError):
        scene.timer.touch("k", delay)
    assert scene.timer.get("k").due == due  # type: ignore[union-attr]


def test_a_touch_within_the_slot_that_is_passing_counts(scene: Scene) -> None:
    scene.timer.add_job(Mark("a"), 10.5, key="a")
    scene.timer.add_job(Mark("b"), 10.6, key="b")
    scene.clock.advance(10.2)
    scene.timer.touch("a", 0.5)
    scene.clock.advance(1)
    assert [(name, round(at, 6)) for name, at in scene.moments] == [("b", 10.6), ("a", 10.7)]


# --- reschedule, run_now, pause ---


def test_reschedule_moves_earlier_and_later(scene: Scene) -> None:
    scene.timer.add_job(Mark("a"), 100, key="a")
    scene.timer.add_job(Mark("b"), 100, key="b")
    assert scene.timer.reschedule("a", 10)
    assert scene.timer.reschedule("b", timedelta(hours=2))
    scene.clock.advance(3 * HOUR)
    assert scene.moments == [("a", 10.0), ("b", 7200.0)]


def test_reschedule_to_a_date_and_back_to_a_delay_changes_the_clock_it_follows(scene: Scene) -> None:
    scene.timer.add_job(Mark("date"), 100, key="date")
    scene.timer.add_job(Mark("delay"), at=NEW_YEAR + timedelta(hours=5), key="delay")
    assert scene.timer.reschedule("date", at=NEW_YEAR + timedelta(hours=1))
    assert scene.timer.reschedule("delay", HOUR)
    scene.clock.set_wall(1800)
    scene.clock.advance(5 * HOUR)
    assert scene.moments == [("date", 1800.0), ("delay", 3600.0)]


def test_reschedule_of_a_paused_job_leaves_it_paused(scene: Scene) -> None:
    scene.timer.add_job(Mark(), 10, key="k")
    scene.timer.pause("k")
    assert scene.timer.reschedule("k", 20)
    scene.clock.advance(15)
    scene.timer.resume("k")
    scene.clock.advance(5)
    assert scene.moments == [("a", 20.0)]


@pytest.mark.parametrize("given", [{}, {"delay": 5, "at": NEW_YEAR}], ids=str)
def test_reschedule_needs_exactly_one_moment(scene: Scene, given: dict[str, Any]) -> None:
    scene.timer.add_job(Mark(), 10, key="k")
    with pytest.raises(BadValue, match="either delay or at="):
        scene.timer.reschedule("k", **given)


@pytest.mark.parametrize("given", [{"delay": -1}, {"delay": "5"}, {"at": 5}, {"at": datetime(2027, 1, 1)}], ids=str)  # noqa: DTZ001 (what is tested)
def test_reschedule_with_a_wrong_moment_changes_nothing(scene: Scene, given: dict[str, Any]) -> None:
    due = scene.timer.add_job(Mark(), 10, key="k").due
    with pytest.raises(UsageError):
        scene.timer.reschedule("k", **given)
    assert scene.timer.get("k").due == due  # type: ignore[union-attr]


def test_run_now_runs_now_once(scene: Scene) -> None:
    scene.timer.add_job(Mark("waits"), DAY, key="waits")
    scene.timer.add_job(Mark("date"), at=NEW_YEAR + timedelta(days=5), key="date")
    scene.timer.add_job(Mark("paused"), DAY, key="paused")
    scene.timer.pause("paused")
    assert [scene.timer.run_now(key) for key in ("waits", "date", "paused", "unknown")] == [True, True, True, False]
    scene.clock.advance(0)
    assert sorted(scene.moments) == [("date", 0.0), ("paused", 0.0), ("waits", 0.0)]
    assert [scene.timer.run_now(key) for key in ("waits", "date", "paused")] == [False, False, False]
    scene.clock.advance(10 * DAY)
    assert len(scene.diary) == 3


def test_a_paused_job_waits_for_its_resume(scene: Scene) -> None:
    scene.timer.add_job(Mark("passed"), 10, key="passed")
    scene.timer.add_job(Mark("ahead"), 1000, key="ahead")
    assert [scene.timer.pause("passed"), scene.timer.pause("ahead"), scene.timer.pause("ahead"), scene.timer.pause("x")] == [
        True,
        True,
        False,
        False,
    ]
    scene.clock.advance(100)
    assert scene.diary == []
    assert scene.timer.stats().paused == 2
    assert [scene.timer.resume("passed"), scene.timer.resume("ahead"), scene.timer.resume("ahead"), scene.timer.resume("x")] == [
        True,
        True,
        False,
        False,
    ]
    scene.clock.advance(2000)
    assert scene.moments == [("passed", 100.0), ("ahead", 1000.0)]
    assert scene.diary[0].late == 90.0


def test_a_paused_job_can_be_cancelled(scene: Scene) -> None:
    scene.timer.add_job(Mark(), 10, key="k")
    scene.timer.pause("k")
    assert scene.timer.cancel("k")
    assert not scene.timer.resume("k")
    assert (scene.timer.stats().paused, scene.timer.stats().pending) == (0, 0)
    scene.clock.advance(100)
    assert scene.diary == []


def test_while_all_is_paused_nothing_starts_and_nothing_is_lost(scene: Scene) -> None:
    scene.timer.add_job(Mark("waits"), 10)
    scene.timer.pause_all()
    scene.timer.add_job(Mark("now"))
    scene.clock.advance(100)
    assert scene.diary == []
    assert scene.timer.stats().scheduled == 2
    assert scene.timer.health().paused
    assert scene.timer.health().ok
    scene.timer.resume_all()
    scene.clock.advance(0)
    assert sorted(scene.names) == ["now", "waits"]
    assert not scene.timer.health().paused


def test_pause_all_holds_over_a_restart(scene: Scene) -> None:
    scene.timer.pause_all()
    scene.timer.shutdown()
    scene.timer.add_job(Mark(), 5)
    scene.timer.start()
    scene.clock.advance(10)
    assert scene.diary == []
    scene.timer.resume_all()
    scene.clock.advance(0)
    assert scene.names == ["a"]


def test_what_was_cancelled_during_pause_all_never_runs(scene: Scene) -> None:
    scene.timer.add_job(Mark(), 5, key="k")
    scene.timer.pause_all()
    scene.timer.add_job(Mark(), key="l")
    scene.clock.advance(10)
    assert scene.timer.cancel("k")
    assert scene.timer.cancel("l")
    scene.timer.resume_all()
    scene.clock.advance(10)
    assert scene.diary == []


# --- the manual clock itself ---


def test_the_clock_stands_at_each_jobs_moment_in_turn_the_end_included(scene: Scene) -> None:
    """R88."""
    for delay in (5, 7.5, 10):
        scene.timer.add_job(Mark(delay), delay)
    scene.clock.advance(10)
    assert scene.moments == [(5, 5.0), (7.5, 7.5), (10, 10.0)]
    assert (scene.clock.elapsed(), scene.clock.wall()) == (10.0, START + 10.0)


def test_jobs_that_jobs_add_run_in_the_same_advance(manual: Any) -> None:
    @dataclass
    class Chain(Mark, kind="test_timing.chain"):
        def run(self, ctx: JobContext, *, diary: list[Entry], clock: ManualClock) -> None:
            super().run(ctx, diary=diary, clock=clock)
            if self.name < 5:
                scene.timer.add_job(Chain(self.name + 1), 2)
            elif self.name == 5:
                scene.timer.add_job(Chain(6))

    scene = scene_of(manual)
    scene.timer.add_job(Chain(0), 1)
    scene.clock.advance(11)
    assert scene.moments == [(0, 1.0), (1, 3.0), (2, 5.0), (3, 7.0), (4, 9.0), (5, 11.0), (6, 11.0)]


def test_until_the_clock_moves_a_job_without_a_delay_only_waits(scene: Scene) -> None:
    """So that an application's test can look at it, cancel it or touch it."""
    job = scene.timer.add_job(Mark("cancelled"))
    assert scene.timer.get(job).state is State.SCHEDULED  # type: ignore[union-attr]
    assert scene.timer.cancel(job)
    scene.timer.add_job(Mark("touched"), key="k")
    assert scene.timer.touch("k", 5)
    scene.clock.advance(10)
    assert scene.moments == [("touched", 5.0)]


def test_a_freeze_is_one_pass_at_its_end(scene: Scene) -> None:
    for delay in (5, 7, 9):
        scene.timer.add_job(Mark(delay), delay)
    scene.clock.freeze(20)
    assert scene.moments == [(5, 20.0), (7, 20.0), (9, 20.0)]


def test_a_clock_moves_forward_only(scene: Scene) -> None:
    for move in (scene.clock.advance, scene.clock.suspend, scene.clock.freeze):
        with pytest.raises(BadValue, match="negative"):
            move(-1)
    assert scene.clock.elapsed() == 0.0


def test_a_job_cannot_move_the_clock_it_runs_by(manual: Any) -> None:
    @dataclass
    class Meddler(Mark, kind="test_timing.meddler"):
        def run(self, _: JobContext, *, diary: list[Entry], clock: ManualClock) -> None:
            clock.advance(5)

    scene = scene_of(manual)
    job = scene.timer.add_job(Meddler())
    scene.clock.advance(0)
    assert "cannot move the clock" in (scene.timer.get(job).error or "")  # type: ignore[union-attr]
    scene.timer.add_job(Mark())
    scene.clock.advance(1)
    assert scene.names == ["a"], "the clock can still be moved"


def test_a_manual_timer_refuses_a_waiting_room_with_a_clock_of_its_own() -> None:
    with pytest.raises(UsageError, match="a clock of its own"):
        manual_timer(backend="apscheduler")


def test_two_manual_timers_have_nothing_in_common(manual: Any) -> None:
    one, other = scene_of(manual), scene_of(manual)
    one.timer.add_job(Mark(), 5, key="k")
    other.clock.advance(100)
    assert other.timer.get("k") is None
    assert (one.diary, one.clock.elapsed()) == ([], 0.0)


def test_a_run_longer_than_its_timeout_by_the_manual_clock_has_timed_out(manual: Any) -> None:
    @dataclass
    class Long(IJob, kind="test_timing.long", timeout=5):
        def run(self, *, clock: ManualClock) -> None:
            clock._elapsed += 6

    scene = scene_of(manual)
    job = scene.timer.add_job(Long())
    scene.clock.advance(0)
    ended = scene.timer.get(job)
    assert ended is not None
    assert (ended.state, ended.timed_out) == (State.FAILED, True)
    assert "timeout of 5 seconds" in (ended.error or "")
