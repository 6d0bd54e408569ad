"""Recurring jobs: whole timers on a manual clock, on each store, so that years of runs pass in milliseconds. No test here waits.

The moments are told in seconds from the one at which the clock began, which is the new year of 2026 in UTC.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobwheel import (
    CancelJob,
    IJob,
    JobContext,
    JobExists,
    Retry,
    RetryJob,
    ScheduledJob,
    State,
    StoreError,
    TimerManager,
    TooManyPending,
    Trigger,
    UsageError,
    cron,
    every,
    job,
    recurring,
    testing,
)
from jobwheel import events as told
from jobwheel import kind as kinds
from jobwheel import trigger as triggers
from jobwheel.errors import BadType, BadValue
from jobwheel.testing import START, ManualClock

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE, HOUR, DAY, YEAR = 60.0, 3600.0, 86400.0, 365.25 * 86400
BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"


class Run(NamedTuple):
    """One run, as the diary has it."""

    at: float
    nominal: float
    attempt: int
    name: Any = "a"


class Scene:
    """A timer, its clock, the diary that its jobs write, and what they do next: `after_start` is taken from the left, one for each run."""

    def __init__(self, timer: TimerManager, clock: ManualClock, services: dict[str, Any]) -> None:
        self.timer, self.clock, self.services = timer, clock, services
        self.diary: list[Run] = services["diary"]

    def job(self, ref: Any = "k") -> ScheduledJob:
        job = self.timer.get(ref)
        assert job is not None
        return job

    def counts(self, ref: Any = "k") -> tuple[int, int, int]:
        job = self.job(ref)
        return job.runs, job.failures, job.skipped

    def due(self, ref: Any = "k") -> float:
        return (self.job(ref).due - NEW_YEAR).total_seconds()

    @property
    def nominals(self) -> list[float]:
        return [run.nominal for run in self.diary]

    @property
    def moments(self) -> list[float]:
        return [run.at for run in self.diary]

    def add(self, job: IJob | None = None, trigger: Any = None, key: str | None = "k", **given: Any) -> ScheduledJob:
        return self.timer.add_job(job or Mark(), trigger=trigger or every(60), key=key, **given)

    def listen(self, *kinds: type[told.Event]) -> list[Any]:
        """What is told from now on: the names of events, of skipped moments with their number."""
        heard: list[Any] = []

        def hear(event: told.Event) -> None:
            if not kinds or isinstance(event, kinds):
                name = type(event).__name__.removeprefix("Job").lower()
                heard.append((name, event.count) if isinstance(event, told.JobSkipped) else name)

        self.timer.on(told.Event, hear)
        return heard


def spend(clock: ManualClock, secs: float) -> None:
    """Time goes by inside a run."""
    clock._elapsed += secs
    clock._wall += secs


@dataclass
class Mark(IJob, kind="test_recurring.mark"):
    """Writes into the diary, and then does what is next in `acts`, if there is something."""

    name: Any = "a"

    def run(self, ctx: JobContext, *, diary: list[Run], clock: ManualClock, acts: list[Any]) -> Any:
        nominal = (ctx.scheduled_for - NEW_YEAR).total_seconds()
        diary.append(Run(clock.elapsed(), nominal, ctx.attempt, self.name))
        return acts.pop(0)(ctx) if acts else None


@dataclass
class Skip(Mark, kind="test_recurring.skip", catch_up="skip"):
    pass


@dataclass
class UpToThree(Mark, kind="test_recurring.up_to_three", catch_up=3):
    pass


@dataclass
class UpToTwenty(Mark, kind="test_recurring.up_to_twenty", catch_up=20):
    pass


@dataclass
class Grace(Mark, kind="test_recurring.grace", misfire_grace_time=10):
    pass


@dataclass
class GraceSkip(Mark, kind="test_recurring.grace_skip", misfire_grace_time=10, catch_up="skip"):
    pass


@dataclass
class Queue(Mark, kind="test_recurring.queue", overlap="queue"):
    pass


@dataclass
class Parallel(Mark, kind="test_recurring.parallel", overlap="parallel"):
    pass


@dataclass
class ParallelSkip(Mark, kind="test_recurring.parallel_skip", overlap="parallel", catch_up="skip"):
    pass


@dataclass
class ParallelThree(Mark, kind="test_recurring.parallel_three", overlap="parallel", catch_up=3):
    pass


@dataclass
class Again(Mark, kind="test_recurring.again", retry=Retry(attempts=3, backoff=10)):
    pass


@dataclass
class AgainUpToOne(Mark, kind="test_recurring.again_up_to_one", retry=Retry(attempts=3, backoff=30), catch_up=1):
    pass


@dataclass
class ParallelAgain(Mark, kind="test_recurring.parallel_again", retry=Retry(attempts=3, backoff=100), overlap="parallel"):
    pass


@dataclass
class Rich(Mark, kind="test_recurring.rich"):
    """With data whose text could differ from process to process."""

    name: str = "rich"
    words: set[str] = field(default_factory=set)
    places: dict[str, int] = field(default_factory=dict)
    rate: float = 1.0


class ThreeMoments:
    """A trigger that ends; it is good for the memory store alone."""

    def __init__(self, *moments: float) -> None:
        self.moments = moments or (10.0, 20.0, 30.0)

    def next_due(self, after: datetime) -> datetime | None:
        return next((due for moment in self.moments if (due := NEW_YEAR + timedelta(seconds=moment)) > after), None)


@dataclass(frozen=True)
class Moments(Trigger, kind="test_recurring.moments"):
    """The same for any store."""

    moments: tuple[float, ...] = (10.0, 20.0, 30.0)

    def next_due(self, after: datetime) -> datetime | None:
        return ThreeMoments(*self.moments).next_due(after)


@dataclass(frozen=True)
class Broken(Trigger, kind="test_recurring.broken"):
    """Good for the first moment, and then it gives or raises what `after` says."""

    after: str
    first: float = 10.0

    def next_due(self, after: datetime) -> datetime | None:
        first = NEW_YEAR + timedelta(seconds=self.first)
        if after < first:
            return first
        if self.after == "raises":
            raise ZeroDivisionError("the moon is gone")
        if self.after == "exits":
            raise SystemExit("the moon is gone")
        return {"naive": first.replace(tzinfo=None) + timedelta(days=1), "past": first, "none": None, "text": "soon"}[self.after]  # type: ignore[return-value]


@pytest.fixture(params=["memory", "sqlite"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


Make = Callable[..., Scene]


@pytest.fixture
def make(manual: Any, kind: str, tmp_path: Path) -> Make:
    """`make(...)`: a scene with a store of its own."""
    made = itertools.count()

    def scene(**given: Any) -> Scene:
        section = {"kind": kind, "path": f"{tmp_path}/{next(made)}.db", "durability": "process"} | given.pop("store", {})
        services: dict[str, Any] = {"diary": [], "acts": []}
        timer, clock = manual(services=services, store=section, **given)
        services["clock"] = clock
        return Scene(timer, clock, services)

    return scene


@pytest.fixture
def scene(make: Make) -> Scene:
    return make()


Restart = Callable[..., Scene]


@pytest.fixture
def restart(manual: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> Restart:
    """`restart(scene, down)`: the program ends, and is started again so many seconds later: the same timer in memory, else another one on
    the same file. `reboot`: so was the machine, which has been up for `uptime` then.
    """

    def again(scene: Scene, down: float = 0.0, reboot: bool = False, uptime: float = 0.0) -> Scene:
        scene.timer.shutdown(0)
        spend(scene.clock, down)
        if kind == "memory":
            scene.timer.start()
            return scene
        clock = ManualClock(scene.clock.wall())
        clock._elapsed = uptime
        if not reboot:
            clock.boot, clock._elapsed = scene.clock.boot, scene.clock.elapsed()
        store = scene.timer.settings.store
        with monkeypatch.context() as patch:
            patch.setattr(testing, "ManualClock", lambda: clock)
            timer, _ = manual(services=scene.services, store={"kind": store.kind, "path": str(store.path), "durability": "process"})
        scene.services["clock"] = clock
        return Scene(timer, clock, scene.services)

    return again


def acts(scene: Scene, *acts: Callable[[JobContext], Any]) -> None:
    scene.services["acts"] += acts


def slow(scene: Scene, secs: float) -> Callable[[JobContext], None]:
    return lambda ctx: spend(scene.clock, secs)


def raises(error: BaseException) -> Callable[[JobContext], None]:
    def act(ctx: JobContext) -> None:
        raise error

    return act


def grid(first: float, step: float, count: int) -> list[float]:
    return [first + number * step for number in range(count)]


# --- the grid ---


@pytest.mark.parametrize("interval", [60.0, 1 / 3, 0.001, 7.7])
def test_the_sixtieth_run_is_59_intervals_after_the_first_however_long_they_take(scene: Scene, interval: float) -> None:
    step = round(interval, 6)
    acts(scene, *(slow(scene, 0.7 * interval) for _ in range(60)))
    scene.add(trigger=every(interval))
    scene.clock.advance(60 * step + 0.9 * step)
    assert scene.nominals == pytest.approx(grid(step, step, 60), abs=2e-6)
    assert scene.nominals[59] - scene.nominals[0] == pytest.approx(59 * step, abs=1e-6)
    assert scene.counts() == (60, 0, 0)


def test_the_first_run_is_one_interval_after_the_add(scene: Scene) -> None:
    scene.clock.advance(7.25)
    assert scene.add(trigger=every(60)).due == NEW_YEAR + timedelta(seconds=67.25)
    scene.clock.advance(59.75)
    assert scene.diary == []
    scene.clock.advance(0.25)
    assert scene.diary == [Run(67.25, 67.25, 1)]


@pytest.mark.parametrize("steps", [(0.7, 0.1), (0.1, 0.2), (0.1, 0.7), (1.1, 2.2)])
def test_what_floats_make_of_a_moment_does_not_delay_a_run(scene: Scene, steps: tuple[float, float]) -> None:
    for step in steps:
        scene.clock.advance(step)
    scene.add(trigger=every(0.1))
    scene.timer.add_job(Mark("b"), 0.1)
    scene.clock.advance(0.1)
    assert [run.name for run in scene.diary] == ["a", "b"]


def test_a_million_runs_later_the_grid_is_the_same(make: Make) -> None:
    """A jump, not a walk: three years of seconds."""
    scene = make()
    scene.add(trigger=every(0.1))
    scene.clock.freeze(1e8)
    scene.clock.advance(0.35)
    assert scene.nominals[-3:] == pytest.approx([1e8 + 0.1, 1e8 + 0.2, 1e8 + 0.3], abs=1e-6)


@pytest.mark.parametrize("start", [-1000.0, 0.0, 17.0, 3600.0])
def test_a_start_places_the_grid(scene: Scene, start: float) -> None:
    """In the past it places it only; a moment of it that is now is due now."""
    scene.add(trigger=every(60, start=NEW_YEAR + timedelta(seconds=start)))
    scene.clock.advance(3600 + 300)
    first = start if start >= 0 else start % 60
    assert scene.nominals[:4] == scene.moments[:4] == grid(first, 60, 4)


def test_a_start_to_come_follows_the_wall_clock_and_what_follows_it_elapsed_time(scene: Scene) -> None:
    scene.add(trigger=every(60, start=NEW_YEAR + timedelta(hours=1)))
    scene.clock.set_wall(600)
    scene.clock.advance(2999)
    assert scene.diary == []
    scene.clock.advance(1)
    assert scene.moments == [3000.0]
    scene.clock.set_wall(-10_000)
    scene.clock.advance(180)
    assert scene.moments == [3000.0, 3060.0, 3120.0, 3180.0]


def test_a_run_now_before_the_start_leaves_the_start_and_the_grid(scene: Scene) -> None:
    scene.add(trigger=every(60, start=NEW_YEAR + timedelta(hours=1)))
    scene.clock.advance(10)
    assert scene.timer.run_now("k")
    scene.clock.advance(3800)
    assert scene.moments == [10.0, *grid(3600, 60, 4)]


def test_jitter_is_on_top_of_the_grid_and_does_not_add_up(scene: Scene) -> None:
    scene.add(trigger=every(60, jitter=20))
    scene.clock.advance(60 * 200 + 20)
    assert scene.nominals == grid(60, 60, 200)
    late = [run.at - run.nominal for run in scene.diary]
    assert all(0 <= secs < 20 for secs in late)
    assert max(late) > 15  # by chance it fails once in 10^24 tries
    assert min(late) < 5
    assert scene.counts() == (200, 0, 0)


def test_steps_of_the_wall_clock_do_nothing_to_every(scene: Scene) -> None:
    scene.add(trigger=every(60))
    for step in (3600.0, -86400.0, 10 * YEAR, -10 * YEAR):
        scene.clock.set_wall(step)
        scene.clock.advance(60)
    assert scene.moments == grid(60, 60, 4)
    assert scene.counts() == (4, 0, 0)


def test_cron_runs_on_the_minute_and_tells_it(scene: Scene) -> None:
    scene.clock.advance(7)
    scene.add(trigger=cron("*/15 * * * *"))
    acts(scene, *(slow(scene, 30) for _ in range(10)))
    scene.clock.advance(3600 + 900)
    assert scene.nominals == scene.moments == grid(900, 900, 5)


def test_an_hourly_job_that_starts_late_knows_which_hour_it_is_for(scene: Scene) -> None:
    seen = []
    acts(scene, lambda ctx: seen.append((ctx.scheduled_for, ctx.lateness, ctx.started_at)))
    scene.add(trigger=cron("0 * * * *"))
    scene.clock.freeze(3607)
    assert seen == [(NEW_YEAR + timedelta(hours=1), pytest.approx(7, abs=1e-3), NEW_YEAR + timedelta(seconds=3607))]


# --- wall time ---


@pytest.mark.parametrize(
    ("zone", "day", "expression", "expected"),
    [
        (BERLIN, "2026-03-28", "30 2 * * *", ["28 02:30", "29 03:00", "30 02:30"]),
        (BERLIN, "2026-10-24", "30 2 * * *", ["24 02:30", "25 02:30", "26 02:30"]),
        (NEW_YORK, "2026-03-07", "30 2 * * *", ["07 02:30", "08 03:00", "09 02:30"]),
        (NEW_YORK, "2026-10-31", "30 1 * * *", ["31 01:30", "01 01:30", "02 01:30"]),
        (LORD_HOWE, "2026-10-03", "15 2 * * *", ["03 02:15", "04 02:30", "05 02:15"]),
        (LORD_HOWE, "2026-04-04", "45 1 * * *", ["04 01:45", "05 01:45", "06 01:45"]),
        (BERLIN, "2026-03-28", "0 */12 * * *", ["28 00:00", "28 12:00", "29 00:00", "29 12:00", "30 00:00", "30 12:00", "31 00:00"]),
    ],
)
def test_on_the_days_when_the_clocks_change_and_after_each_date_has_its_run(
    scene: Scene, zone: str, day: str, expression: str, expected: list[str]
) -> None:
    """Through the whole timer; the rules one by one are in test_trigger."""
    start = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)).timestamp() - START
    scene.clock.suspend(start - 1)
    scene.add(trigger=cron(expression, tz=zone))
    scene.clock.advance(3 * DAY)
    shown = [(NEW_YEAR + timedelta(seconds=nominal)).astimezone(ZoneInfo(zone)).strftime("%d %H:%M") for nominal in scene.nominals]
    assert shown == expected
    assert scene.moments == pytest.approx(scene.nominals, abs=1e-3)


def test_a_step_forward_of_the_wall_clock_runs_cron_once_for_all_it_passed(scene: Scene) -> None:
    heard = scene.listen(told.JobSkipped)
    scene.add(trigger=cron("0 * * * *"))
    scene.clock.advance(1800)
    scene.clock.set_wall(5 * HOUR)
    assert scene.nominals == [3600.0]
    assert scene.counts() == (1, 0, 4)
    assert heard == [("skipped", 4)]
    scene.clock.advance(1800)
    assert scene.nominals == [3600.0, 6 * HOUR]


def test_a_step_back_of_the_wall_clock_lets_cron_wait_and_runs_nothing_twice(scene: Scene) -> None:
    scene.add(trigger=cron("0 * * * *"))
    scene.clock.advance(2 * HOUR + 60)
    scene.clock.set_wall(-HOUR)
    scene.clock.advance(HOUR)
    assert scene.nominals == [HOUR, 2 * HOUR]
    scene.clock.advance(HOUR)
    assert scene.nominals == [HOUR, 2 * HOUR, 3 * HOUR]
    assert scene.counts() == (3, 0, 0)


# --- gaps ---


GAPS = ["freeze", "suspend", "down"]


def gap(scene: Scene, how: str, secs: float, restart: Restart) -> Scene:
    if how == "down":
        scene = restart(scene, secs)
        scene.clock.advance(0)
    else:
        getattr(scene.clock, how)(secs)
    return scene


@pytest.mark.parametrize("how", GAPS)
@pytest.mark.parametrize("trigger", [every(60), cron("* * * * *")], ids=["every", "cron"])
def test_after_a_gap_there_is_one_run_for_all_and_then_the_grid(scene: Scene, restart: Restart, how: str, trigger: Any) -> None:
    """The one is for the first missed moment."""
    scene.add(trigger=trigger)
    scene.clock.advance(130)
    scene = gap(scene, how, 300, restart)  # 180, 240, 300, 360, 420 pass
    assert scene.nominals == [60, 120, 180]
    assert scene.moments == [60, 120, 430]
    assert scene.counts() == (3, 0, 4)
    assert scene.due() == 480
    scene.clock.advance(60)
    assert scene.nominals == [60, 120, 180, 480]
    assert scene.job().lateness == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("how", GAPS)
@pytest.mark.parametrize("trigger", [every(60), cron("* * * * *")], ids=["every", "cron"])
def test_with_skip_a_gap_has_no_run(scene: Scene, restart: Restart, how: str, trigger: Any) -> None:
    heard = scene.listen(told.JobSkipped, told.JobMissed, told.JobSucceeded) if how != "down" else []
    scene.add(Skip(), trigger)
    scene.clock.advance(130)
    scene = gap(scene, how, 300, restart)
    assert scene.nominals == [60, 120]
    assert scene.counts() == (2, 0, 5)
    assert scene.due() == 480
    scene.clock.advance(60)
    assert scene.nominals == [60, 120, 480]
    if how != "down":
        assert heard == ["succeeded", "succeeded", "missed", ("skipped", 5), "succeeded"]


@pytest.mark.parametrize("how", GAPS)
@pytest.mark.parametrize("trigger", [every(60), cron("* * * * *")], ids=["every", "cron"])
def test_with_a_number_the_latest_so_many_missed_moments_have_their_runs(scene: Scene, restart: Restart, how: str, trigger: Any) -> None:
    scene.add(UpToThree(), trigger)
    scene.clock.advance(130)
    scene = gap(scene, how, 300, restart)
    assert scene.nominals == [60, 120, 300, 360, 420]
    assert scene.moments == [60, 120, 430, 430, 430]
    assert scene.counts() == (5, 0, 2)
    scene.clock.advance(60)
    assert scene.nominals == [60, 120, 300, 360, 420, 480]


@pytest.mark.parametrize(("secs", "made_up"), [(45, []), (60, [180]), (110, [180]), (170, [180, 240]), (171, [180, 240, 300])])
@pytest.mark.parametrize("trigger", [every(60), cron("* * * * *")], ids=["every", "cron"])
def test_fewer_missed_moments_than_the_number_all_have_their_runs(scene: Scene, trigger: Any, secs: float, made_up: list[float]) -> None:
    scene.add(UpToThree(), trigger)
    scene.clock.advance(129)
    scene.clock.freeze(secs)
    assert scene.nominals == [60, 120, *made_up]
    assert scene.counts() == (2 + len(made_up), 0, 0)


def test_a_number_beyond_what_is_counted_is_kept_too(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurring, "COUNTED", 5)
    scene.add(UpToTwenty(), cron("* * * * *"))
    scene.clock.freeze(60 * 300 + 1)
    assert scene.nominals == grid(60 * 281, 60, 20)
    assert 0 < scene.job().skipped <= 280


def test_what_falls_due_while_a_gap_is_made_up_for_has_its_run_too(scene: Scene) -> None:
    scene.add(UpToThree(), every(50))
    acts(scene, *(slow(scene, 25) for _ in range(4)))
    scene.clock.freeze(475)  # 50 to 450 are missed; the runs of the last three take until 550
    scene.clock.advance(150)
    assert scene.nominals == grid(350, 50, 8)
    assert scene.counts() == (8, 0, 6)


def test_a_step_of_the_wall_clock_while_a_gap_is_made_up_for_loses_no_moment(scene: Scene) -> None:
    def step(ctx: JobContext) -> None:
        scene.clock._wall += 70

    acts(scene, step)
    scene.add(UpToThree(), cron("* * * * *"))
    scene.clock.freeze(310)
    assert scene.nominals[:4] == [180, 240, 300, 360]


@pytest.mark.parametrize("job", [Mark(), Skip(), UpToThree(), Grace()], ids=lambda job: type(job).__name__)
@pytest.mark.parametrize("trigger", [every(1), cron("* * * * *"), cron("30 2 * * *", tz=BERLIN)], ids=["every", "minutes", "days"])
def test_a_jump_of_ten_years_costs_nothing(scene: Scene, job: IJob, trigger: Any) -> None:
    """It is computed, not walked: 315 million seconds, 5 million minutes."""
    from time import perf_counter

    scene.add(job, trigger)
    before = perf_counter()
    scene.clock.suspend(10 * YEAR + 30.5)
    assert perf_counter() - before < 5  # it is a fraction of a second; a walk would take hours
    expected = {Mark: 1, Skip: 0, UpToThree: 3, Grace: 0}[type(job)]
    if isinstance(trigger, triggers.Every):
        expected = max(1, expected)  # the latest moment is half a second ago, and so in time
    assert len(scene.diary) == expected
    assert scene.due() > 10 * YEAR
    if isinstance(trigger, triggers.Every):
        assert sum(scene.counts()[::2]) == 10 * YEAR + 30


@pytest.mark.parametrize("start", [61.5, 74.0])
def test_every_15_seconds_skip_and_down_for_a_minute_there_is_no_run_at_the_start(scene: Scene, restart: Restart, start: float) -> None:
    """No hidden threshold."""
    scene.add(Skip(), cron("*/15 * * * * *"))
    scene.clock.advance(0.5)
    scene = restart(scene, start)
    scene.clock.advance(0)
    assert scene.diary == []
    scene.clock.advance(75 - 0.5 - start)
    assert scene.nominals == [75]


@pytest.mark.parametrize(("job", "runs"), [(Mark(), [(9 * HOUR, 3 * HOUR)]), (Skip(), [])], ids=["coalesce", "skip"])
def test_a_daily_job_whose_time_passed_while_the_program_was_down(
    scene: Scene, restart: Restart, job: IJob, runs: list[tuple[float, float]]
) -> None:
    """Daily at 03:00, down from 02:00 to 09:00."""
    scene.add(job, cron("0 3 * * *"))
    scene.clock.advance(2 * HOUR)
    scene = restart(scene, 7 * HOUR)
    scene.clock.advance(0)
    assert [(run.at, run.nominal) for run in scene.diary] == runs
    assert scene.due() == DAY + 3 * HOUR


def test_after_a_reboot_every_goes_on_by_the_wall_clock(scene: Scene, restart: Restart, kind: str) -> None:
    scene.add(trigger=every(60))
    scene.clock.advance(130)
    scene = restart(scene, 300, reboot=True)
    base = scene.clock.elapsed() - 430
    scene.clock.advance(0)
    assert scene.nominals == pytest.approx([60, 120, 180], abs=0.01)
    scene.clock.advance(55)
    assert len(scene.diary) == 4
    assert scene.nominals[3] == pytest.approx(480, abs=0.01)
    assert scene.diary[3].at - base == pytest.approx(480, abs=0.01)
    scene.clock.advance(600)
    assert scene.nominals[4:] == pytest.approx(grid(540, 60, 10), abs=0.01)
    assert scene.counts() == (14, 0, 4)


# --- too late ---


def test_of_missed_moments_the_one_that_is_in_time_has_its_run(scene: Scene) -> None:
    """The grace time drops what is later; the latest moment is 5 seconds late, of 10 that are allowed."""
    heard = scene.listen()
    scene.add(Grace(), every(60))
    scene.clock.freeze(305)
    assert [(run.at, run.nominal) for run in scene.diary] == [(305, 300)]
    assert scene.counts() == (1, 0, 4)
    assert heard == ["added", "missed", ("skipped", 4), "started", "succeeded"]


def test_missed_moments_that_are_all_too_late_have_none(scene: Scene) -> None:
    scene.add(Grace(), every(60))
    scene.clock.freeze(311)
    assert scene.diary == []
    assert scene.counts() == (0, 0, 5)
    assert scene.job().state is State.SCHEDULED
    assert "late, and misfire_grace_time is 10 s" in (scene.job().error or "")
    scene.clock.advance(49)
    assert scene.nominals == [360]
    assert scene.job().error is None


def test_with_a_grace_time_skip_goes_by_that(scene: Scene) -> None:
    scene.add(GraceSkip(), every(60))
    scene.clock.freeze(69)
    assert scene.nominals == [60]
    scene.clock.freeze(62)
    assert scene.nominals == [60]
    assert scene.counts() == (1, 0, 1)


@pytest.mark.parametrize(("late", "runs"), [(0.9, 1), (1.0, 1), (1.1, 0)])
def test_with_skip_a_second_late_is_in_time(scene: Scene, late: float, runs: int) -> None:
    scene.add(Skip(), every(60))
    scene.clock.freeze(60 + late)
    assert len(scene.diary) == runs


def test_what_a_kind_says_of_missed_runs_is_for_recurring_jobs_alone(scene: Scene) -> None:
    """A job that is added with a delay runs, however late."""
    scene.timer.add_job(Skip(), 60)
    scene.timer.add_job(UpToThree(), at=NEW_YEAR + timedelta(seconds=60))
    scene.clock.freeze(DAY)
    assert [(run.at, run.nominal) for run in scene.diary] == [(DAY, 60)] * 2


# --- overlap ---


def test_moments_that_pass_while_a_run_goes_on_are_skipped_and_told(scene: Scene) -> None:
    heard = scene.listen()
    scene.add(trigger=every(10))
    acts(scene, slow(scene, 35))
    scene.clock.advance(60)
    assert scene.moments == [10, 50, 60]
    assert scene.counts() == (3, 0, 3)
    assert heard == ["added", "started", "succeeded", ("skipped", 3), "started", "succeeded", "started", "succeeded"]


def test_a_run_of_exactly_one_interval_skips_the_moment_at_its_end(scene: Scene) -> None:
    """At that moment it still went on."""
    scene.add(trigger=every(10))
    acts(scene, slow(scene, 10))
    scene.clock.advance(35)
    assert scene.moments == [10, 30]
    assert scene.counts() == (2, 0, 1)


def test_with_queue_one_run_starts_when_the_one_before_has_ended(scene: Scene) -> None:
    scene.add(Queue(), every(10))
    acts(scene, slow(scene, 35))
    scene.clock.advance(60)
    assert [(run.at, run.nominal) for run in scene.diary] == [(10, 10), (45, 20), (50, 50), (60, 60)]
    assert scene.counts() == (4, 0, 2)


def test_with_queue_and_a_number_the_latest_so_many_wait(make: Make) -> None:
    @dataclass
    class QueueThree(Mark, kind="test_recurring.queue_three", overlap="queue", catch_up=3):
        pass

    scene = make()
    scene.add(QueueThree(), every(10))
    acts(scene, slow(scene, 55))  # 20 .. 60 pass
    scene.clock.advance(80)
    assert scene.nominals == [10, 40, 50, 60, 70, 80]
    assert scene.counts() == (6, 0, 2)


def test_in_parallel_each_moment_has_its_run_as_a_job_of_its_own(scene: Scene) -> None:
    seen: list[tuple[Any, ...]] = []

    def look(ctx: JobContext) -> None:
        series, run = scene.job(), scene.job(ctx.job_id)
        seen.append((series.state, scene.due(), run.state, run.key, run.tags, run.trigger, ctx.key))
        spend(scene.clock, 35)

    scene.add(Parallel(), every(10), tags=["t"], priority=3)
    acts(scene, look)
    scene.clock.advance(45)
    assert seen == [(State.SCHEDULED, 20, State.RUNNING, None, ("t",), None, None)]
    assert scene.nominals[:2] == [10, 20]
    series = scene.job()
    runs = scene.timer.find(state=State.SUCCEEDED)
    assert {run.priority for run in runs} == {3}
    assert series.id not in {run.id for run in runs}
    assert len(runs) == len(scene.diary) == series.runs


def test_in_parallel_a_gap_has_one_run(scene: Scene) -> None:
    scene.add(Parallel(), every(10))
    scene.clock.freeze(55)
    assert scene.nominals == [10]
    assert scene.counts() == (1, 0, 4)
    assert scene.due() == 60


def test_in_parallel_with_skip_a_gap_has_no_run(scene: Scene) -> None:
    scene.add(ParallelSkip(), every(10))
    scene.clock.freeze(55)
    assert scene.diary == []
    assert scene.counts() == (0, 0, 5)
    scene.clock.advance(5)
    assert scene.nominals == [60]


def test_in_parallel_with_a_number_the_latest_so_many_run(scene: Scene) -> None:
    scene.add(ParallelThree(), every(10))
    scene.clock.freeze(55)
    assert scene.nominals == [30, 40, 50]
    assert scene.counts() == (3, 0, 2)


def test_in_parallel_the_attempts_of_a_run_are_its_own(scene: Scene) -> None:
    """The next moments do not wait for them."""
    scene.add(ParallelAgain(), every(60))
    acts(scene, raises(ValueError()))
    scene.clock.advance(165)
    assert scene.diary == [Run(60, 60, 1), Run(120, 120, 1), Run(160, 60, 2)]


def test_in_parallel_a_cancel_of_the_series_leaves_the_run_alone(scene: Scene) -> None:
    seen = []

    def cancel(ctx: JobContext) -> None:
        seen.append((scene.timer.cancel("k"), ctx.cancel_requested))

    series = scene.add(Parallel(), every(10))
    acts(scene, cancel)
    scene.clock.advance(60)
    assert seen == [(True, False)]
    assert scene.nominals == [10]
    assert scene.job(series.id).state is State.CANCELLED
    assert [job.state for job in scene.timer.find(kind=Parallel)] == [State.CANCELLED, State.SUCCEEDED]


def test_in_parallel_only_so_many_run_at_once(scene: Scene) -> None:
    """Its kind's limit counts the runs, not the series."""

    @dataclass
    class Two(Parallel, kind="test_recurring.two", max_running=1):
        pass

    scene.add(Two(), every(10))
    scene.clock.advance(55)
    assert scene.nominals == grid(10, 10, 5)
    assert (scene.timer.stats().running, scene.timer.stats().scheduled) == (0, 1)


# --- attempts ---


def test_attempts_are_inside_a_run_and_then_it_is_back_on_the_grid(scene: Scene) -> None:
    heard = scene.listen()
    scene.add(Again(), every(60))
    acts(scene, raises(ValueError("one")), raises(ValueError("two")))
    scene.clock.advance(180)
    assert scene.diary == [Run(60, 60, 1), Run(70, 60, 2), Run(90, 60, 3), Run(120, 120, 1), Run(180, 180, 1)]
    assert scene.counts() == (3, 0, 0)
    assert heard[:8] == ["added", "started", "retrying", "started", "retrying", "started", "succeeded", "started"]


def test_a_run_whose_attempts_are_used_up_has_failed_and_the_next_moment_has_its_own(scene: Scene) -> None:
    heard = scene.listen(told.JobFailed, told.JobSucceeded)
    scene.add(Again(), every(60))
    acts(scene, *(raises(ValueError(str(number))) for number in range(3)))
    scene.clock.advance(90)
    job = scene.job()
    assert (job.state, job.error, scene.counts(), job.last_success) == (State.SCHEDULED, "ValueError: 2", (1, 1, 0), None)
    assert "ValueError" in (job.trace or "")
    scene.clock.advance(30)
    assert scene.diary[3:] == [Run(120, 120, 1)]
    job = scene.job()
    assert (job.error, job.trace, scene.counts(), job.last_success) == (None, None, (2, 1, 0), NEW_YEAR + timedelta(seconds=120))
    assert heard == ["failed", "succeeded"]


def test_attempts_that_outlast_moments_skip_them(scene: Scene) -> None:
    scene.add(Again(), every(5))
    acts(scene, raises(ValueError()), raises(ValueError()))
    scene.clock.advance(45)
    assert scene.diary == [Run(5, 5, 1), Run(15, 5, 2), Run(35, 5, 3), Run(40, 40, 1), Run(45, 45, 1)]
    assert scene.counts() == (3, 0, 6)


def test_an_attempt_is_not_moved_to_another_moment(scene: Scene) -> None:
    """Not even where missed moments are made up for."""
    scene.add(AgainUpToOne(), every(10))
    acts(scene, raises(ValueError()))
    scene.clock.advance(45)
    assert scene.diary[:2] == [Run(10, 10, 1), Run(40, 10, 2)]
    assert len({run.nominal for run in scene.diary}) + scene.job().skipped == 4


def test_attempts_of_cron_keep_the_moment_that_they_are_for(scene: Scene) -> None:
    scene.add(Again(), cron("* * * * *"))
    acts(scene, raises(ValueError()), raises(ValueError()))
    scene.clock.advance(60)
    scene.clock.set_wall(3)
    scene.clock.advance(60)
    assert [(run.nominal, run.attempt) for run in scene.diary] == [(60, 1), (60, 2), (60, 3), (120, 1)]


@pytest.mark.parametrize("step", [0, 5, -100])
def test_attempts_at_a_start_keep_that_date_and_the_next_run_has_its_own_moment(scene: Scene, step: int) -> None:
    """From the first attempt on it is elapsed time, whatever the wall clock does."""
    scene.add(Again(), every(60, start=NEW_YEAR + timedelta(hours=1)))
    acts(scene, raises(ValueError()))
    scene.clock.advance(3600)
    scene.clock.set_wall(step)
    scene.clock.advance(60)
    assert scene.diary == [Run(3600, 3600, 1), Run(3610, 3600, 2), Run(3660, 3660 + step, 1)]


def test_a_run_may_ask_for_another_attempt(scene: Scene) -> None:
    scene.add(trigger=every(60))
    acts(scene, raises(RetryJob(5)), raises(RetryJob(7)))
    scene.clock.advance(120)
    assert scene.diary == [Run(60, 60, 1), Run(65, 60, 2), Run(72, 60, 3), Run(120, 120, 1)]


def test_one_that_fails_each_time_runs_each_time(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.add(trigger=every(60))
    acts(scene, *(raises(ValueError("no")) for _ in range(10)))
    scene.clock.advance(660)
    assert scene.moments == grid(60, 60, 11)
    assert scene.counts() == (11, 10, 0)
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 10


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), BaseException("base"), asyncio.CancelledError()], ids=repr
)
def test_whatever_a_run_raises_the_series_goes_on(scene: Scene, error: BaseException) -> None:
    scene.add(trigger=every(60))
    acts(scene, raises(error))
    scene.clock.advance(60)
    assert scene.counts() == (1, 1, 0)
    assert type(error).__name__ in (scene.job().error or "")
    scene.clock.advance(60)
    assert scene.counts() == (2, 1, 0)


def test_a_coroutine_recurs_too(scene: Scene) -> None:
    @dataclass
    class Coroutine(IJob, kind="test_recurring.coroutine"):
        async def run(self, ctx: JobContext, *, diary: list[Run], clock: ManualClock) -> int:
            await asyncio.sleep(0)
            diary.append(Run(clock.elapsed(), (ctx.scheduled_for - NEW_YEAR).total_seconds(), ctx.attempt))
            if len(diary) == 2:
                raise ValueError("two")
            return len(diary)

    scene.add(Coroutine(), every(60))
    scene.clock.advance(180)
    assert scene.nominals == grid(60, 60, 3)
    assert scene.counts() == (3, 1, 0)
    assert scene.job().result == 3


def test_a_run_past_its_time_limit_has_failed_and_the_series_goes_on(scene: Scene) -> None:
    @dataclass
    class Limited(Mark, kind="test_recurring.limited", timeout=5):
        pass

    scene.add(Limited(), every(60))
    acts(scene, slow(scene, 6))
    scene.clock.advance(66)
    job = scene.job()
    assert (job.state, job.timed_out, scene.counts()) == (State.SCHEDULED, True, (1, 1, 0))
    scene.clock.advance(60)
    assert (scene.job().timed_out, scene.counts()) == (False, (2, 1, 0))


# --- the end of a series ---


def test_a_cancel_ends_the_series(scene: Scene) -> None:
    job = scene.add(trigger=every(60))
    scene.clock.advance(130)
    assert scene.timer.cancel("k")
    scene.clock.advance(600)
    assert scene.moments == [60, 120]
    assert scene.job(job.id).state is State.CANCELLED
    assert scene.counts(job.id) == (2, 0, 0)
    assert not scene.timer.cancel("k")


def test_a_run_may_end_the_series(scene: Scene) -> None:
    heard = scene.listen(told.JobCancelled, told.JobSucceeded)
    job = scene.add(trigger=every(60))
    acts(scene, lambda ctx: None, raises(CancelJob("enough")))
    scene.clock.advance(600)
    assert scene.moments == [60, 120]
    ended = scene.job(job.id)
    assert (ended.state, ended.error) == (State.CANCELLED, "enough")
    assert heard == ["succeeded", "cancelled"]
    assert scene.add(trigger=every(60)).id != job.id


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_a_cancel_during_a_run_ends_the_series_after_it(scene: Scene, seen: bool, fails: bool) -> None:
    heard = scene.listen(told.JobCancelled, told.JobSucceeded, told.JobFailed)

    def cancel(ctx: JobContext) -> None:
        assert not scene.timer.cancel("k")
        if seen:
            assert ctx.cancel_requested
        if fails:
            raise ValueError("stop")

    job = scene.add(Again(), trigger=every(60))
    acts(scene, cancel)
    scene.clock.advance(600)
    assert scene.moments == [60]
    assert scene.job(job.id).state is State.CANCELLED
    assert heard == ["cancelled"]


def test_an_equal_add_after_a_cancel_of_the_running_series_is_not_lost(scene: Scene) -> None:
    """What is acknowledged runs: the old one ends as cancelled, and a new one is there."""
    old = scene.add(trigger=every(60))

    def cancel_and_add(ctx: JobContext) -> None:
        assert not scene.timer.cancel("k")
        scene.add(trigger=every(60))

    acts(scene, cancel_and_add)
    scene.clock.advance(300)
    assert scene.job(old.id).state is State.CANCELLED
    assert scene.job("k").id != old.id
    assert scene.moments == [60, 120, 180, 240, 300]


def test_a_trigger_that_ends_ends_the_series_as_its_last_run_did(scene: Scene) -> None:
    heard = scene.listen(told.JobSucceeded, told.JobFailed)
    job = scene.add(trigger=Moments())
    acts(scene, raises(ValueError()), lambda ctx: None, lambda ctx: "last")
    scene.clock.advance(100)
    ended = scene.job(job.id)
    assert scene.moments == [10, 20, 30]
    assert (ended.state, ended.result) == (State.SUCCEEDED, "last")
    assert scene.counts(job.id) == (3, 1, 0)
    assert ended.last_success == NEW_YEAR + timedelta(seconds=30)
    assert heard == ["failed", "succeeded", "succeeded"]


def test_a_series_whose_last_run_failed_may_be_retried(scene: Scene) -> None:
    job = scene.add(trigger=Moments((10.0,)))
    acts(scene, raises(ValueError()))
    scene.clock.advance(20)
    assert scene.job(job.id).state is State.FAILED
    assert scene.timer.retry(job)
    scene.clock.advance(0)
    assert scene.job(job.id).state is State.SUCCEEDED
    assert [run.nominal for run in scene.diary] == [10, 10]


@pytest.mark.parametrize("after", ["raises", "exits", "naive", "past", "text"])
def test_a_trigger_that_fails_ends_the_series_as_failed_and_says_so(scene: Scene, caplog: pytest.LogCaptureFixture, after: str) -> None:
    job = scene.add(trigger=Broken(after))
    scene.clock.advance(100)
    ended = scene.job(job.id)
    assert scene.moments == [10]
    assert ended.state is State.FAILED
    assert "its trigger failed, so it has no next run" in (ended.error or "")
    assert [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_trigger_that_fails_harms_no_other_job(scene: Scene) -> None:
    scene.add(Mark("b"), Broken("exits"), key="b")
    scene.add(Mark("c"), Broken("raises", 15.0), key="c")
    scene.add(Mark("a"), every(10))
    scene.clock.advance(30)
    assert [run.name for run in scene.diary].count("a") == 3
    assert scene.timer.health().ok


# --- keys, and the same job again ---


def test_the_same_job_again_changes_nothing(scene: Scene) -> None:
    first = scene.add(trigger=every(60))
    scene.clock.advance(90)
    again = scene.add(trigger=every(60))
    assert again.id == first.id
    assert again.due == NEW_YEAR + timedelta(seconds=120)
    assert again.runs == 1
    assert len(scene.timer.find()) == 1
    scene.clock.advance(30)
    assert scene.moments == [60, 120]


def test_three_restarts_within_an_hour_leave_an_hourly_job_its_hour(scene: Scene, restart: Restart) -> None:
    """At 20, 40 and 55 minutes of 60, with a registration at each start."""
    ids = {scene.add(trigger=every(3600), tags=["t"]).id}
    for minutes in (20, 20, 15):
        scene.clock.advance(minutes * MINUTE - 1)
        scene = restart(scene, 1)
        ids.add(scene.add(trigger=every(3600), tags=["t"]).id)
    assert len(ids) == 1
    scene.clock.advance(5 * MINUTE - 0.5)
    assert scene.diary == []
    scene.clock.advance(0.5)
    assert scene.moments == [3600]
    assert len(scene.timer.find()) == 1


def test_over_a_restart_the_pause_and_the_counters_stay(scene: Scene, restart: Restart) -> None:
    scene.add(trigger=every(60))
    acts(scene, raises(ValueError()))
    scene.clock.advance(130)
    scene.timer.pause("k")
    scene = restart(scene, 60)
    again = scene.add(trigger=every(60))
    assert (again.state, again.runs, again.failures) == (State.PAUSED, 2, 1)
    assert again.last_success == NEW_YEAR + timedelta(seconds=120)
    scene.clock.advance(100)
    assert scene.moments == [60, 120]
    scene.timer.resume("k")
    scene.clock.advance(60)
    assert scene.moments == [60, 120, 300]
    assert scene.counts() == (3, 1, 2)


@pytest.mark.parametrize(
    ("job", "trigger"),
    [
        (Mark("a"), every(61)),
        (Mark("a"), cron("* * * * *")),
        (Mark("a"), every(60, jitter=1)),
        (Mark("b"), every(60)),
        (Skip("a"), every(60)),
    ],
    ids=["interval", "trigger", "jitter", "data", "kind"],
)
def test_a_changed_definition_is_a_new_job(scene: Scene, job: IJob, trigger: Any) -> None:
    old = scene.add(Mark("a"), every(60))
    scene.clock.advance(90)
    new = scene.add(job, trigger)
    assert new.id != old.id
    assert scene.job(old.id).state is State.CANCELLED
    assert (new.runs, scene.job().id) == (0, new.id)


def test_a_one_shot_and_a_recurring_job_replace_each_other(scene: Scene) -> None:
    recurring = scene.add(trigger=every(60))
    once = scene.timer.add_job(Mark(), 10, key="k")
    assert scene.job(recurring.id).state is State.CANCELLED
    again = scene.add(trigger=every(60))
    assert scene.job(once.id).state is State.CANCELLED
    assert scene.job("k").id == again.id


def test_priority_and_tags_are_those_of_the_latest_add(scene: Scene) -> None:
    first = scene.add(trigger=every(60), priority=1, tags=["old", "both"])
    again = scene.add(trigger=every(60), priority=5, tags=["both", "new"])
    assert (again.id, again.priority, again.tags) == (first.id, 5, ("both", "new"))
    assert [len(scene.timer.find(tag=tag)) for tag in ("old", "both", "new")] == [0, 1, 1]
    scene.clock.advance(60)
    assert (scene.job().priority, scene.job().tags) == (5, ("both", "new"))


@pytest.mark.parametrize("equal", [True, False])
def test_keep_keeps_and_error_refuses_whatever_the_definition(scene: Scene, equal: bool) -> None:
    first = scene.add(trigger=every(60), tags=["t"])
    other = every(60) if equal else every(30)
    assert scene.add(trigger=other, if_exists="keep", tags=["u"]).id == first.id
    with pytest.raises(JobExists):
        scene.add(trigger=other, if_exists="error")
    assert scene.job().tags == ("t",)
    scene.clock.advance(60)
    assert scene.moments == [60]


def test_the_same_job_again_during_its_run_changes_nothing(scene: Scene) -> None:
    def again(ctx: JobContext) -> None:
        assert scene.add(trigger=every(60)).id == ctx.job_id

    job = scene.add(trigger=every(60))
    acts(scene, again)
    scene.clock.advance(180)
    assert scene.moments == [60, 120, 180]
    assert scene.job().id == job.id
    assert len(scene.timer.find()) == 1


def test_another_definition_during_a_run_takes_over_when_it_is_added(scene: Scene) -> None:
    """The running one ends as its run does, and gets no further moment."""
    heard = scene.listen(told.JobSucceeded, told.JobCancelled)
    old = scene.add(trigger=every(60))

    def other(ctx: JobContext) -> None:
        assert scene.add(trigger=every(100)).id != ctx.job_id

    acts(scene, other)
    scene.clock.advance(260)
    assert scene.moments == [60, 160, 260]
    assert scene.job(old.id).state is State.SUCCEEDED
    assert scene.counts(old.id)[0] == 1
    assert heard == ["succeeded"] * 3


def test_during_a_run_keep_gives_it_and_error_refuses(scene: Scene) -> None:
    def add(ctx: JobContext) -> None:
        assert scene.add(trigger=every(5), if_exists="keep").id == ctx.job_id
        with pytest.raises(JobExists):
            scene.add(trigger=every(5), if_exists="error")

    scene.add(trigger=every(60))
    acts(scene, add)
    scene.clock.advance(120)
    assert scene.moments == [60, 120]


def test_between_attempts_the_same_job_again_changes_nothing(scene: Scene) -> None:
    job = scene.add(Again(), every(60))
    acts(scene, raises(ValueError()))
    scene.clock.advance(65)
    assert scene.add(Again(), every(60)).id == job.id
    scene.clock.advance(60)
    assert scene.diary == [Run(60, 60, 1), Run(70, 60, 2), Run(120, 120, 1)]


def test_equal_data_is_equal_whatever_its_order(scene: Scene) -> None:
    words = ["alpha", "beta", "gamma", "delta", "epsilon"]
    first = scene.add(Rich(words=set(words), places={"a": 1, "b": 2}))
    again = scene.add(Rich(words={*words[::-1]}, places={"b": 2, "a": 1}))
    assert again.id == first.id
    assert scene.add(Rich(words=set(words[1:]), places={"a": 1, "b": 2})).id != first.id


def test_a_function_with_equal_arguments_is_the_same_job(scene: Scene, own_kinds: None) -> None:
    @job(kind="test_recurring.function")
    def function(ctx: JobContext, words: set[str], *, diary: list[Run], clock: ManualClock) -> None:
        diary.append(Run(clock.elapsed(), 0, ctx.attempt))

    words = [f"word {number}" for number in range(20)]
    first = scene.add(function(set(words)))
    assert scene.add(function({*words[::-1]})).id == first.id
    scene.clock.advance(120)
    assert scene.moments == [60, 120]
    assert scene.add(function(set())).id != first.id


def test_equal_numbers_are_equal(scene: Scene) -> None:
    """An int in a float's field is fine, also here."""
    assert scene.add(Rich(rate=1.0)).id == scene.add(Rich(rate=1)).id


def test_equal_starts_in_other_zones_are_equal(scene: Scene) -> None:
    start = NEW_YEAR + timedelta(hours=1)
    first = scene.add(trigger=every(60, start=start))
    assert scene.add(trigger=every(60, start=start.astimezone(ZoneInfo(BERLIN)))).id == first.id


def test_a_start_in_the_hour_that_comes_twice_is_good_and_equals_itself(scene: Scene) -> None:
    start = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo(BERLIN))
    first = scene.add(trigger=every(60, start=start))
    assert scene.add(trigger=every(60, start=start)).id == first.id
    assert scene.add(trigger=every(60, start=start.replace(fold=1))).id != first.id


def test_several_added_at_once_follow_the_same_rules(scene: Scene) -> None:
    orders = [{"job": Mark(name), "trigger": every(60), "key": name} for name in "abc"]
    first = scene.timer.add_jobs(orders)
    scene.clock.advance(70)
    again = scene.timer.add_jobs([*orders, {"job": Mark("d"), "trigger": every(30), "key": "d"}])
    assert [job.id for job in again[:3]] == [job.id for job in first]
    assert {job.runs for job in again[:3]} == {1}
    assert len(scene.timer.find()) == 4


def test_twice_in_one_batch_is_one_job(scene: Scene) -> None:
    one, other = scene.timer.add_jobs([{"job": Mark(), "trigger": every(60), "key": "k"}] * 2)
    assert one.id == other.id
    assert len(scene.timer.find()) == 1
    scene.clock.advance(60)
    assert len(scene.diary) == 1


def test_without_a_key_each_add_is_another_job_and_a_durable_store_warns_once(
    scene: Scene, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    ids = {scene.add(key=None).id for _ in range(3)}
    scene.add(Skip(), key=None)
    assert len(ids) == 3
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    if kind == "memory":
        assert warned == []
    else:
        assert len(warned) == 2
        assert "test_recurring.mark was added without key=" in warned[0]
        assert "test_recurring.skip" in warned[1]


def test_a_trigger_that_cannot_be_stored_is_refused_by_a_store_on_disk_alone(scene: Scene, kind: str) -> None:
    if kind == "memory":
        scene.add(trigger=ThreeMoments())
        scene.clock.advance(15)
        assert scene.moments == [10]
    else:
        with pytest.raises(BadType, match=r"frozen dataclass and a subclass of jobwheel.Trigger"):
            scene.add(trigger=ThreeMoments())
        assert scene.timer.find() == []


@pytest.mark.parametrize("trigger", [60, "* * * * *", every, Moments, object(), True])
def test_what_is_no_trigger_is_refused_and_nothing_is_added(scene: Scene, trigger: Any) -> None:
    with pytest.raises(BadType, match="trigger="):
        scene.timer.add_job(Mark(), trigger=trigger, key="k")
    assert scene.timer.find() == []


@pytest.mark.parametrize("after", ["naive", "past", "text", "none", "raises"])
def test_a_trigger_without_a_first_moment_is_refused_and_nothing_is_added(scene: Scene, after: str) -> None:
    with pytest.raises(BadValue if after != "raises" else (ZeroDivisionError, BadValue)):
        scene.add(trigger=Broken(after, first=-10.0))
    assert scene.timer.find() == []


@pytest.mark.parametrize("given", [{"delay": 5}, {"at": NEW_YEAR}, {"max_wait": 100}])
def test_a_trigger_goes_with_no_other_when(scene: Scene, given: dict[str, Any]) -> None:
    with pytest.raises(BadValue):
        scene.timer.add_job(Mark(), trigger=every(60), **given)
    assert scene.timer.find() == []


# --- moved by hand ---


def test_a_run_now_is_an_extra_run_and_the_grid_stays(scene: Scene) -> None:
    for trigger, key in ((every(60), "every"), (cron("* * * * *"), "cron")):
        scene.add(Mark(key), trigger, key=key)
    scene.clock.advance(20)
    assert scene.timer.run_now("every")
    assert scene.timer.run_now("cron")
    scene.clock.advance(100)
    for key in ("every", "cron"):
        assert [run.at for run in scene.diary if run.name == key] == [20, 60, 120]
        assert scene.counts(key) == (3, 0, 0)


def test_a_run_now_of_a_paused_one_runs_and_it_is_resumed(scene: Scene) -> None:
    scene.add(trigger=every(60))
    scene.clock.advance(10)
    scene.timer.pause("k")
    scene.clock.advance(5)
    assert scene.timer.run_now("k")
    scene.clock.advance(0)
    assert scene.moments == [15]
    assert scene.job().state is State.SCHEDULED
    scene.clock.advance(45)
    assert scene.moments == [15, 60]
    assert scene.counts() == (2, 0, 0)


def test_a_reschedule_moves_the_next_run_alone(scene: Scene) -> None:
    scene.add(trigger=every(60))
    assert scene.timer.reschedule("k", 90)
    scene.clock.advance(180)
    assert scene.moments == [90, 120, 180]
    assert scene.timer.reschedule("k", at=NEW_YEAR + timedelta(seconds=200))
    scene.clock.advance(100)
    assert scene.moments == [90, 120, 180, 200, 240]


def test_moments_that_a_reschedule_passes_over_are_not_counted(scene: Scene) -> None:
    """170 stands for the run of 60; that 120 has none was somebody's wish."""
    scene.add(trigger=every(60))
    scene.timer.reschedule("k", 170)
    scene.clock.advance(240)
    assert scene.moments == [170, 180, 240]
    assert scene.counts() == (3, 0, 0)


def test_a_touch_needs_a_delay_and_moves_the_next_run_alone(scene: Scene) -> None:
    scene.add(trigger=every(60))
    with pytest.raises(BadValue, match="give touch one"):
        scene.timer.touch("k")
    assert scene.due() == 60
    scene.clock.advance(50)
    assert scene.timer.touch("k", 30)
    assert scene.due() == 80
    scene.clock.advance(70)
    assert scene.moments == [80, 120]
    with pytest.raises(BadValue, match="give touch one"):
        scene.timer.touch("k")


@pytest.mark.parametrize("trigger", [every(60), cron("* * * * *")], ids=["every", "cron"])
def test_a_pause_skips_what_passes_in_it(scene: Scene, trigger: Any) -> None:
    heard = scene.listen(told.JobSkipped)
    scene.add(trigger=trigger)
    scene.clock.advance(70)
    assert scene.timer.pause("k")
    scene.clock.advance(200)  # 120, 180, 240
    assert scene.moments == [60]
    assert scene.timer.resume("k")
    assert scene.due() == 300
    scene.clock.advance(30)
    assert scene.moments == [60, 300]
    assert scene.counts() == (2, 0, 3)
    assert heard == [("skipped", 3)]


def test_a_pause_in_which_nothing_passes_changes_nothing(scene: Scene) -> None:
    scene.add(trigger=every(60))
    scene.clock.advance(10)
    scene.timer.pause("k")
    scene.clock.advance(49)
    scene.timer.resume("k")
    scene.clock.advance(1)
    assert scene.moments == [60]
    assert scene.counts() == (1, 0, 0)


def test_after_a_pause_between_attempts_the_next_run_has_all_its_attempts(scene: Scene) -> None:
    scene.add(Again(), every(60))
    acts(scene, raises(ValueError()))
    scene.clock.advance(65)
    scene.timer.pause("k")
    scene.clock.advance(30)
    scene.timer.resume("k")
    acts(scene, *(raises(ValueError()) for _ in range(3)))
    scene.clock.advance(60)
    later = [run for run in scene.diary if run.at >= 120]
    assert later == [Run(120, 120, 1), Run(130, 120, 2), Run(150, 120, 3)]


def test_a_running_one_cannot_be_paused(scene: Scene) -> None:
    seen = []
    acts(scene, lambda ctx: seen.append((scene.timer.pause("k"), scene.timer.run_now("k"), scene.timer.reschedule("k", 5))))
    scene.add(trigger=every(60))
    scene.clock.advance(120)
    assert seen == [(False, False, False)]
    assert scene.moments == [60, 120]


def test_when_all_are_paused_a_series_makes_up_for_it_by_one_run(scene: Scene) -> None:
    scene.add(trigger=every(60))
    scene.timer.pause_all()
    scene.clock.advance(250)
    assert scene.diary == []
    scene.timer.resume_all()
    scene.clock.advance(0)
    assert [(run.at, run.nominal) for run in scene.diary] == [(250, 60)]
    assert scene.counts() == (1, 0, 3)


# --- what is told ---


def test_a_picture_tells_of_the_series(scene: Scene) -> None:
    trigger = every(60)
    job = scene.add(trigger=trigger, tags=["t"], priority=2)
    assert (job.trigger, job.runs, job.failures, job.skipped, job.last_success, job.attempt) == (trigger, 0, 0, 0, None, 0)
    acts(scene, lambda ctx: ctx.log("one"), lambda ctx: ctx.progress(1, 2), lambda ctx: {"n": 3})
    scene.clock.advance(70)
    job = scene.job()
    assert (job.state, job.runs, job.log, job.error) == (State.SCHEDULED, 1, ("one",), None)
    assert job.started == NEW_YEAR + timedelta(seconds=60)
    assert job.created == NEW_YEAR
    scene.clock.advance(60)
    assert (scene.job().log, scene.job().progress) == ((), (1, 2, ""))
    scene.clock.advance(60)
    assert (scene.job().result, scene.job().progress) == ({"n": 3}, None)
    assert scene.timer.find(key="k") == scene.timer.find(state=State.SCHEDULED) == scene.timer.find(tag="t") == [scene.job()]
    assert scene.timer.find(kind=Mark)[0].trigger == trigger
    assert scene.timer.stats().scheduled == 1


def test_inside_a_run_the_picture_says_running_and_which_moment(scene: Scene) -> None:
    seen = []

    def look(ctx: JobContext) -> None:
        job = scene.job()
        seen.append((job.state, job.attempt, job.runs, scene.due(), ctx.key, ctx.job_id == job.id))

    scene.add(trigger=every(60))
    acts(scene, look, look)
    scene.clock.advance(120)
    assert seen == [(State.RUNNING, 1, 0, 60, "k", True), (State.RUNNING, 1, 1, 120, "k", True)]


def test_events_come_in_order_and_before_those_of_the_next_run(scene: Scene) -> None:
    events: list[tuple[str, int, float]] = []
    scene.timer.on(
        told.Event, lambda event: events.append((type(event).__name__, event.job.runs, (event.job.due - NEW_YEAR).total_seconds()))
    )
    scene.add(UpToThree(), every(60))
    scene.clock.freeze(130)
    assert events == [
        ("JobAdded", 0, 60),
        ("JobStarted", 0, 60),
        ("JobSucceeded", 1, 120),
        ("JobStarted", 1, 120),
        ("JobSucceeded", 2, 180),
    ]


def test_a_listener_may_change_the_series(scene: Scene) -> None:
    scene.add(trigger=every(60))
    scene.timer.on(told.JobSucceeded, lambda event: scene.timer.cancel(event.job))
    scene.clock.advance(600)
    assert scene.moments == [60]


def test_a_thousand_jobs_of_one_second_miss_none_and_double_none(make: Make, kind: str) -> None:
    """In memory; on disk a hundred, since each run is written down."""
    many = 1000 if kind == "memory" else 100
    scene = make()
    scene.timer.add_jobs({"job": Mark(number), "trigger": every(1), "key": str(number)} for number in range(many))
    scene.clock.advance(15)
    assert len(scene.diary) == 15 * many
    assert {(run.name, run.nominal) for run in scene.diary} == {
        (number, float(second)) for number in range(many) for second in range(1, 16)
    }
    assert all(run.at == run.nominal for run in scene.diary)


def test_many_jobs_of_many_intervals_run_in_the_order_of_their_moments(scene: Scene) -> None:
    intervals = [1.0, 0.7, 2.5, 13.0, 61.0, 3599.0]
    for interval in intervals:
        scene.add(Mark(interval), every(interval), key=str(interval))
    scene.clock.advance(120)
    assert scene.moments == sorted(scene.moments)
    for interval in intervals:
        assert sum(run.name == interval for run in scene.diary) == int(120 / interval + 1e-9)


def test_where_only_so_many_may_wait_a_series_counts_as_one(make: Make) -> None:
    scene = make(max_pending=2)
    scene.add(trigger=every(10))
    scene.add(Mark("b"), every(10), key="b")
    scene.clock.advance(100)
    scene.add(trigger=every(10))
    assert len(scene.diary) == 20


def test_what_a_made_up_gap_leaves_out_is_told_before_its_runs(scene: Scene) -> None:
    heard = scene.listen()
    scene.add(UpToThree(), every(60))
    scene.clock.freeze(310)
    assert heard == ["added", ("skipped", 2), *["started", "succeeded"] * 3]


def test_the_same_job_again_is_no_event(scene: Scene) -> None:
    heard = scene.listen()
    for _ in range(3):
        scene.add(trigger=every(60))
    assert heard == ["added"]


def test_waiting_for_a_series_is_waiting_for_its_end(scene: Scene) -> None:
    job = scene.add(trigger=Moments())
    scene.clock.advance(29)
    with pytest.raises(UsageError, match="waits for the clock"):
        scene.timer.wait(job, 0)
    scene.clock.advance(1)
    assert scene.timer.wait(job, 0).state is State.SUCCEEDED


def test_a_series_leaves_nothing_behind_however_often_it_ran(scene: Scene) -> None:
    scene.add(trigger=every(1))
    scene.clock.advance(1000)
    assert len(scene.diary) == 1000
    assert len(scene.timer.find(limit=10**6)) == 1
    stats = scene.timer.stats()
    assert (stats.scheduled, stats.running, stats.succeeded, stats.failed) == (1, 0, 0, 0)
    assert scene.timer.health().ok


@pytest.mark.parametrize("wheel", [{"slots": 1, "tick": 0.1}, {"slots": 8, "tick": 0.01}, {"slots": 7, "tick": 3.7}], ids=str)
def test_the_shape_of_the_wheel_changes_nothing(make: Make, wheel: dict[str, Any]) -> None:
    scene = make(wheel=wheel)
    scene.add(trigger=every(2.5))
    scene.add(Mark("c"), cron("* * * * *"), key="c")
    scene.clock.advance(130)
    assert scene.moments == pytest.approx(sorted([*grid(2.5, 2.5, 52), 60, 120]))


@pytest.mark.parametrize("state", ["scheduled", "paused", "running"])
def test_where_it_is_full_the_same_job_again_is_no_more(make: Make, state: str) -> None:
    """A process that starts while the queue is full must be able to register what is there already."""
    scene = make(max_pending=2)
    scene.add(trigger=every(10))
    scene.timer.add_job(Mark(), 1000)
    if state == "paused":
        scene.timer.pause("k")

    def again(*_: Any) -> None:
        if state == "running":
            scene.timer.add_job(Mark(), 1000)
        with pytest.raises(TooManyPending):
            scene.timer.add_job(Mark(), 1000)
        for if_exists in ("replace", "keep"):
            assert scene.add(trigger=every(10), if_exists=if_exists).state == state

    if state == "running":
        acts(scene, again)
        scene.clock.advance(10)
        assert scene.job().error is None
    else:
        again()


# --- parallel, where something goes wrong ---


def test_in_parallel_a_trigger_that_ends_makes_the_last_run_the_series_own(scene: Scene) -> None:
    job = scene.add(Parallel(), Moments())
    scene.clock.advance(100)
    assert scene.nominals == [10, 20, 30]
    assert scene.job(job.id).state is State.SUCCEEDED
    assert scene.counts(job.id) == (3, 0, 0)


def test_in_parallel_a_trigger_that_fails_costs_no_run(scene: Scene) -> None:
    job = scene.add(Parallel(), Broken("raises"))
    scene.clock.advance(100)
    assert scene.nominals == [10]
    assert scene.job(job.id).state is State.FAILED


def test_in_parallel_a_store_that_fails_costs_no_run(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is then the series that runs, as with skip."""
    store = scene.timer._life.store

    def fails(*_: Any) -> None:
        raise StoreError("the disk is full")

    scene.add(Parallel(), every(10))
    with monkeypatch.context() as patch:
        patch.setattr(store, "part", fails)
        acts(scene, slow(scene, 15))
        scene.clock.advance(10)
        assert scene.nominals == [10]
        assert scene.counts() == (1, 0, 1)
    scene.clock.advance(60)
    assert scene.nominals[-2:] == [70, 80]
    assert scene.timer.health().ok
    assert scene.job().state is State.SCHEDULED


def test_in_parallel_a_cancel_between_the_claim_and_the_run_is_told(make: Make, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The series ends, all who want to know are told, and the run that was claimed goes on."""
    scene = make()
    store, heard = scene.timer._life.store, scene.listen(told.JobCancelled)
    real = store.part

    def cancel_first(*given: Any) -> Any:
        scene.timer.cancel("k")
        return real(*given)

    monkeypatch.setattr(store, "part", cancel_first)
    job = scene.add(Parallel(), every(10))
    scene.clock.advance(60)
    assert scene.nominals == [10]
    assert scene.job(job.id).state is State.CANCELLED
    assert heard == ["cancelled"]


def test_a_trigger_that_fails_when_a_gap_is_made_up_for_costs_no_run(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    job = scene.add(UpToThree(), Broken("raises"))
    scene.clock.freeze(100)
    assert scene.nominals == [10]
    assert scene.job(job.id).state is State.FAILED
    assert any("no missed runs are made up for" in record.getMessage() for record in caplog.records)


def test_a_trigger_that_fails_at_a_resume_leaves_the_series_paused(scene: Scene) -> None:
    scene.add(trigger=Broken("raises"))
    scene.timer.pause("k")
    scene.clock.advance(50)
    with pytest.raises(ZeroDivisionError):
        scene.timer.resume("k")
    assert scene.job().state is State.PAUSED
    assert scene.timer.cancel("k")


def test_a_start_to_come_is_kept_over_a_pause_of_an_earlier_run(scene: Scene) -> None:
    scene.add(trigger=every(60, start=NEW_YEAR + timedelta(hours=1)))
    scene.timer.reschedule("k", 10)
    scene.timer.pause("k")
    scene.clock.advance(50)
    scene.timer.resume("k")
    assert scene.due() == 3600
    scene.clock.advance(3600)
    assert scene.moments == [3600]


def test_data_that_cannot_be_compared_is_not_equal(make: Make, kind: str) -> None:
    class Strange:
        def __eq__(self, other: object) -> bool:
            raise ArithmeticError

        __hash__ = None  # type: ignore[assignment]

    if kind != "memory":
        pytest.skip("it could not be stored")
    scene = make()
    first = scene.add(Mark(Strange()))
    assert scene.add(Mark(Strange())).id != first.id


# --- classes that change from one start to the next ---


def test_a_renamed_class_with_an_alias_goes_on_with_its_series(scene: Scene, restart: Restart, kind: str, own_kinds: None) -> None:
    if kind == "memory":
        pytest.skip("what is in memory does not outlive its classes")

    def define(kind: str, *aliases: str) -> type[IJob]:
        @dataclass
        class Renamed(Mark, kind=kind, aliases=aliases):
            pass

        return Renamed

    first = scene.add(define("test_recurring.old")(), every(60))
    scene.clock.advance(30)
    kinds._registry.pop("test_recurring.old")
    new = define("test_recurring.new", "test_recurring.old")
    scene = restart(scene, 10)
    again = scene.add(new(), every(60))
    assert again.id == first.id
    scene.clock.advance(20)
    assert scene.nominals == [60]
    assert len(scene.timer.find()) == 1


def test_a_class_with_another_default_is_another_definition(scene: Scene, restart: Restart, own_kinds: None) -> None:
    """What is compared is the data, so new code that means something else gets its way."""

    def define(default: int) -> type[Any]:
        @dataclass
        class Changed(Mark, kind="test_recurring.changed"):
            size: int = default

        return Changed

    first = scene.add(define(1)(), every(60))
    scene = restart(scene, 10)
    again = scene.add(define(2)(), every(60))
    assert again.id != first.id
    assert scene.job(first.id).state is State.CANCELLED


# --- reboots ---


@pytest.mark.parametrize(("interval", "jitter"), [(60.0, 0.0), (7.7, 0.0), (1 / 3, 0.1), (3600.0, 1000.0)])
def test_over_many_reboots_the_grid_does_not_drift(scene: Scene, restart: Restart, kind: str, interval: float, jitter: float) -> None:
    """Each boot has an elapsed clock of its own, so the grid goes through the wall clock; what is rounded there must not add up."""
    if kind == "memory":
        pytest.skip("nothing in memory survives a reboot")
    step, ids = round(interval, 6), set()
    for number in range(25):
        ids.add(scene.add(trigger=every(interval, jitter=jitter)).id)
        scene.clock.advance((0.3, 2.2, 0.9, 5.01)[number % 4] * interval)
        scene = restart(scene, (0.001, 1.3, 0.4)[number % 3] * interval, reboot=True, uptime=1234.567891 * number / 7)
    scene.clock.advance(2 * interval)
    assert len(ids) == 1
    numbers = [nominal / step for nominal in scene.nominals]
    assert numbers == pytest.approx([round(number) for number in numbers], abs=1e-5 / step)
    assert [round(number) for number in numbers] == sorted({round(number) for number in numbers})
    runs, _, skipped = scene.counts()
    assert runs == len(numbers) > 15
    assert runs + skipped == round(scene.nominals[-1] / step)


def test_a_run_now_that_has_resumed_a_job_says_so_though_it_was_taken_at_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a one-shot: between the resume and the move a worker may claim it."""
    job = scene.timer.add_job(Mark(), 10, key="once")
    scene.timer.pause(job)
    scene.clock.advance(20)
    store = scene.timer._life.store
    real = store.reschedule

    def late(*given: Any) -> Any:
        scene.clock.advance(0)
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(store, "reschedule", late)
        assert scene.timer.run_now(job)
    assert scene.moments == [20]


# --- two timers on one file ---


@pytest.fixture
def two(make: Make, kind: str, manual: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Scene, Scene]:
    """Two timers of one program on one store, and one clock that moves both."""
    if kind == "memory":
        pytest.skip("a memory store is one timer's own")
    one = make()
    store = one.timer.settings.store
    pass_one = one.clock.do_pass
    with monkeypatch.context() as patch:
        patch.setattr(testing, "ManualClock", lambda: one.clock)
        timer, _ = manual(services=one.services, store={"kind": store.kind, "path": str(store.path), "durability": "process"})
    pass_other = one.clock.do_pass
    one.clock.do_pass = lambda: min((due for due in (pass_one(), pass_other(), pass_one()) if due is not None), default=None)
    return one, Scene(timer, one.clock, one.services)


def test_two_that_register_the_same_have_one_job_and_one_run_for_each_moment(two: tuple[Scene, Scene]) -> None:
    one, other = two
    assert one.add(trigger=every(60)).id == other.add(trigger=every(60)).id
    one.clock.advance(600)
    assert one.moments == one.nominals == grid(60, 60, 10)
    assert one.counts() == other.counts() == (10, 0, 0)
    assert len(one.timer.find()) == 1


def test_a_series_goes_on_in_one_when_the_other_has_ended(two: tuple[Scene, Scene]) -> None:
    one, other = two
    one.add(trigger=every(60))
    one.clock.advance(90)
    one.timer.shutdown(0)
    for _ in range(90):  # a keeper looks once a second; the manual clock stands still only where something is known to be due
        one.clock.advance(1)
    assert one.moments == [60, 120, 180]
    assert other.timer.cancel("k")
    one.clock.advance(90)
    assert one.moments == [60, 120, 180]


def test_what_one_pauses_cancels_or_moves_the_other_does_not_run(two: tuple[Scene, Scene]) -> None:
    one, other = two
    one.add(trigger=every(60))
    other.timer.pause("k")
    one.clock.advance(100)
    assert one.diary == []
    one.timer.resume("k")
    other.timer.reschedule("k", 50)
    one.clock.advance(60)
    assert one.moments == [150]
    one.clock.advance(25)
    assert one.moments == [150, 180]


# --- a naive model as the oracle ---


class Model:
    """What a series with runs that take no time does, written down as naively as possible. `step` is the grid's, in whole seconds."""

    def __init__(self, step: int, catch_up: Any) -> None:
        self.step, self.catch_up = step, catch_up
        self.now = 0
        self.next = step
        self.runs: list[tuple[int, int]] = []
        self.extra = 0
        self.skipped = 0
        self.paused = False

    def pass_time(self, secs: int, stalls: bool) -> None:
        end = self.now + secs
        if self.paused:
            self.now = end
            return
        if not stalls:
            while self.next <= end:
                self._run(self.next, self.next)
                self.next += self.step
            self.now = end
            return
        self.now = end
        missed = list(range(self.next, end + 1, self.step))
        self.next += self.step * len(missed)
        if self.catch_up == "coalesce":
            chosen = missed[:1]
        elif self.catch_up == "skip":
            chosen = [moment for moment in missed if end - moment <= 1]
        else:
            chosen = missed[-self.catch_up :]
        for moment in chosen:
            self._run(end, moment)
        self.skipped += len(missed) - len(chosen)

    def _run(self, at: int, nominal: int) -> None:
        self.runs.append((at, nominal))

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            self._skip_to_now()

    def _skip_to_now(self) -> None:
        while self.next <= self.now:
            self.next += self.step
            self.skipped += 1

    def run_now(self) -> None:
        if self.paused:
            self.resume()
        self._run(self.now, self.now)
        self.extra += 1


ways = st.lists(
    st.one_of(
        st.tuples(st.just("advance"), st.integers(0, 400)),
        st.tuples(st.just("freeze"), st.integers(0, 400)),
        st.tuples(st.just("suspend"), st.integers(0, 2000)),
        st.tuples(st.just("pause"), st.just(0)),
        st.tuples(st.just("resume"), st.just(0)),
        st.tuples(st.just("run_now"), st.just(0)),
    ),
    max_size=14,
)
OF_CATCH_UP = {"coalesce": Mark, "skip": Skip, 3: UpToThree}


@pytest.mark.parametrize("trigger", ["every", "cron"])
@given(ways=ways, catch_up=st.sampled_from(list(OF_CATCH_UP)))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_series_of_events_gives_the_runs_of_a_naive_model(make: Make, trigger: str, ways: Any, catch_up: Any) -> None:
    scene, model = make(), Model(60, catch_up)
    scene.add(OF_CATCH_UP[catch_up](), every(60) if trigger == "every" else cron("* * * * *"))
    for way, secs in ways:
        if way in ("freeze", "suspend", "advance"):
            getattr(scene.clock, way)(secs)
            model.pass_time(secs, stalls=way != "advance")
        else:
            getattr(scene.timer, way)("k")
            scene.clock.advance(0)
            getattr(model, way)()
        assert [(run.at, run.nominal) for run in scene.diary] == model.runs, (way, secs)
    assert all(run.at >= run.nominal for run in scene.diary)
    assert scene.job().state is (State.PAUSED if model.paused else State.SCHEDULED)
    scene.timer.resume("k")
    model.resume()
    assert scene.due() == model.next
    runs, _, skipped = scene.counts()
    assert (runs, skipped) == (len(model.runs), model.skipped)
    assert runs - model.extra + skipped == model.next // 60 - 1


@given(
    interval=st.integers(1, 50),
    lasts=st.lists(st.integers(0, 200), max_size=12),
    overlap=st.sampled_from([Mark, Queue]),
    fails=st.lists(st.booleans(), max_size=12),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_however_long_runs_take_each_moment_has_a_run_or_is_counted(
    make: Make, interval: int, lasts: list[int], overlap: Any, fails: list[bool]
) -> None:
    scene = make()
    scene.add(overlap(), every(interval))

    def act(secs: int, fail: bool) -> Callable[[JobContext], None]:
        def run(ctx: JobContext) -> None:
            spend(scene.clock, secs)
            if fail:
                raise ValueError

        return run

    acts(scene, *(act(secs, fail) for secs, fail in itertools.zip_longest(lasts, fails[: len(lasts)], fillvalue=False)))
    scene.clock.advance(500)
    now = scene.clock.elapsed()
    runs, _, skipped = scene.counts()
    assert runs == len(scene.diary)
    assert all(run.at >= run.nominal and run.nominal % interval == 0 for run in scene.diary)
    assert scene.nominals == sorted(set(scene.nominals))
    assert scene.due() == (int(now) // interval + 1) * interval
    assert runs + skipped == int(now) // interval
    started = 0.0
    for run, secs in itertools.zip_longest(scene.diary, lasts[: len(scene.diary)], fillvalue=0):
        assert run.at >= started  # never beside the one before
        started = run.at + secs
    assert inf > started


steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["advance", "advance", "freeze", "suspend", "step", "pause", "resume", "run_now", "reschedule", "down", "add", "fail", "slow"]
        ),
        st.sampled_from([0, 1, 3, 7, 10, 15, 33, 60, 61, 200, 601]),
    ),
    max_size=12,
)


def tell(scene: Scene, job: IJob, trigger: Any, steps: list[tuple[str, int]]) -> list[Any]:
    """Lets all that happen to a series, and gives what is to be seen of it after each step."""
    heard, seen = scene.listen(), []
    first = scene.add(job, trigger).id
    for step, secs in steps:
        if step in ("advance", "freeze", "suspend"):
            getattr(scene.clock, step)(secs)
        elif step in ("pause", "resume", "run_now"):
            getattr(scene.timer, step)("k")
        elif step == "reschedule":
            scene.timer.reschedule("k", secs)
        elif step == "step":
            scene.clock.set_wall(secs if len(seen) % 2 else -secs)
        elif step == "down":
            scene.timer.shutdown(0)
            spend(scene.clock, secs)
            scene.timer.start()
        elif step == "add":
            assert scene.add(job, trigger).id == first
        else:
            acts(scene, raises(ValueError(step)) if step == "fail" else slow(scene, secs))
        scene.clock.advance(0)
        one = scene.job()
        assert one.state in (State.SCHEDULED, State.PAUSED)
        assert len(scene.timer.find()) == 1
        last = None if one.last_success is None else round((one.last_success - NEW_YEAR).total_seconds(), 4)
        seen.append((step, round(scene.due(), 4), one.state, one.attempt, one.runs, one.failures, one.skipped, one.error, last))
    skipped = sum(each[1] for each in heard if isinstance(each, tuple))
    return [*seen, [tuple(round(each, 4) for each in run[:3]) for run in scene.diary], skipped, Counter(map(str, heard))]


@given(
    job=st.sampled_from([Mark(), Skip(), UpToThree(), Grace(), GraceSkip(), Queue(), Again(), AgainUpToOne()]),
    trigger=st.sampled_from([every(10), every(60), cron("* * * * *"), cron("*/10 * * * * *", tz=BERLIN), cron("* * * * *", tz=LORD_HOWE)]),
    steps=steps,
)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_store_tells_the_same_of_the_same_series(make: Make, kind: str, job: IJob, trigger: Any, steps: list[Any]) -> None:
    """Its runs, its counters and its events; and what was skipped was told."""
    if kind == "memory":
        pytest.skip("it is what the others are compared with")
    mine = tell(make(), job, trigger, steps)
    services: dict[str, Any] = {"diary": [], "acts": []}
    timer, clock = testing.manual_timer(services=services)
    services["clock"] = clock
    theirs = tell(Scene(timer, clock, services), job, trigger, steps)
    timer.shutdown(0)
    assert mine == theirs
    assert mine[-2] == (mine[-4][6] if steps else 0)
