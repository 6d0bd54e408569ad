"""Recurring jobs on real threads and real clocks: many at once, long ones, hanging ones, and threads that fight over the same series."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from random import Random
from typing import Any, ClassVar

import pytest
from crowds import LIMIT, crowd, nervous, now

from jobwheel import IJob, JobContext, State, StoreError, TimerManager, UsageError, WaitTimeout, cron, events, every


@dataclass
class Beat(IJob, kind="stress.recurring.beat"):
    """Writes down (name, moment it is for, how late) in one atomic step."""

    name: Any = 0
    runs: ClassVar[list[tuple[Any, datetime, float]]] = []

    def run(self, ctx: JobContext) -> None:
        self.runs.append((self.name, ctx.scheduled_for, ctx.lateness))


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Beat.runs = []
    Gate.reset()


def of_name(runs: list[tuple[Any, datetime, float]]) -> dict[Any, list[datetime]]:
    moments = defaultdict(list)
    for name, moment, _ in runs:
        moments[name].append(moment)
    return moments


def rest(secs: float) -> None:
    """Real time goes by; nothing can be waited for."""
    threading.Event().wait(secs)


@pytest.mark.parametrize(("store", "many", "secs"), [("memory", 1000, 15), ("sqlite", 100, 8)])
def test_many_jobs_of_one_second_miss_none_and_double_none(opened: Any, tmp_path: Any, store: str, many: int, secs: int) -> None:
    """On disk each run is a write, so there are fewer."""
    timer: TimerManager = opened(store={"kind": store, "path": str(tmp_path / "jobs.db"), "durability": "process"})
    timer.add_jobs({"job": Beat(number), "trigger": every(1), "key": str(number)} for number in range(many))
    rest(secs + 0.5)
    timer.shutdown(5)
    moments = of_name(Beat.runs)
    assert len(moments) == many
    for each in moments.values():
        steps = [(later - sooner).total_seconds() for sooner, later in pairwise(each)]
        assert steps == pytest.approx([1.0] * (len(each) - 1), abs=0.05), "a moment was missed, doubled, or off the grid"
        assert secs - 1 <= len(each) <= secs + 1
    assert {job.skipped for job in timer.find(limit=10**6)} == {0}
    late = sorted(lateness for _, _, lateness in Beat.runs)
    assert late[len(late) // 2] < 0.25


class Gate:
    """Lets runs begin, and go on when the test says so."""

    begun: threading.Semaphore
    go: threading.Event
    inside: Counter[Any]
    most: Counter[Any]
    lock = threading.Lock()

    @classmethod
    def reset(cls) -> None:
        cls.begun, cls.go = threading.Semaphore(0), threading.Event()
        cls.inside, cls.most = Counter(), Counter()

    @classmethod
    @contextmanager
    def counted(cls, name: Any) -> Iterator[None]:
        """Counts how many of that name are inside at once."""
        with cls.lock:
            cls.inside[name] += 1
            cls.most[name] = max(cls.most[name], cls.inside[name])
        try:
            yield
        finally:
            with cls.lock:
                cls.inside[name] -= 1


@dataclass
class Long(Beat, kind="stress.recurring.long"):
    """Its first run lasts until the gate is opened."""

    def run(self, ctx: JobContext) -> None:
        super().run(ctx)
        with Gate.counted(self.name):
            Gate.begun.release()
            if not Gate.go.is_set():
                assert Gate.go.wait(LIMIT)


@dataclass
class LongQueue(Long, kind="stress.recurring.long_queue", overlap="queue"):
    pass


@dataclass
class LongParallel(Long, kind="stress.recurring.long_parallel", overlap="parallel"):
    pass


@dataclass
class LongTwo(Long, kind="stress.recurring.long_two", overlap="parallel", max_running=2):
    pass


@dataclass
class Hangs(Long, kind="stress.recurring.hangs", timeout=0.1):
    pass


@dataclass
class HangsParallel(Long, kind="stress.recurring.hangs_parallel", timeout=0.1, overlap="parallel", max_running=1):
    pass


@pytest.mark.parametrize("job", [Long(), LongQueue()], ids=["skip", "queue"])
def test_a_run_is_never_beside_the_one_before(opened: Any, wait_until: Any, job: Long) -> None:
    timer: TimerManager = opened(workers={"threads": 4})
    skipped: list[int] = []
    timer.on(events.JobSkipped, lambda event: skipped.append(event.count))
    timer.add_job(job, trigger=every(0.05), key="k")
    assert Gate.begun.acquire(timeout=LIMIT)
    rest(0.5)
    assert len(Beat.runs) == 1
    picture = timer.get("k")
    assert picture is not None
    assert (picture.state, picture.runs) == (State.RUNNING, 0)
    Gate.go.set()
    wait_until(lambda: len(Beat.runs) >= 5)
    timer.cancel("k")
    wait_until(lambda: timer.find(key="k")[-1].state.ended)
    assert Gate.most[0] == 1
    moments = of_name(Beat.runs)[0]
    assert moments == sorted(set(moments))
    if type(job) is LongQueue:
        assert (moments[1] - moments[0]).total_seconds() == pytest.approx(0.05, abs=1e-4)
    else:
        assert (moments[1] - moments[0]).total_seconds() > 0.5
    ended = timer.find(key="k")[-1]
    wait_until(lambda: sum(skipped) == ended.skipped)
    assert ended.skipped >= 8


def test_in_parallel_runs_are_beside_each_other_and_the_series_waits_for_none(opened: Any, wait_until: Any) -> None:
    timer: TimerManager = opened(workers={"threads": 8})
    timer.add_job(LongParallel(), trigger=every(0.05), key="k")
    for _ in range(4):
        assert Gate.begun.acquire(timeout=LIMIT)
    assert Gate.inside[0] >= 4
    assert timer.cancel("k")
    runs = timer.find(state=State.RUNNING)
    assert len(runs) >= 4
    assert {run.key for run in runs} == {None}
    Gate.go.set()
    wait_until(lambda: timer.stats().running == 0)
    assert timer.stats().succeeded == len(Beat.runs)
    assert len(of_name(Beat.runs)[0]) == len(set(of_name(Beat.runs)[0]))


def test_in_parallel_no_more_run_at_once_than_the_kind_allows(opened: Any, wait_until: Any) -> None:
    timer: TimerManager = opened(workers={"threads": 8})
    timer.add_job(LongTwo(), trigger=every(0.02), key="k")
    for _ in range(2):
        assert Gate.begun.acquire(timeout=LIMIT)
    rest(0.3)
    assert (len(Beat.runs), timer.stats().running) == (2, 2)
    Gate.go.set()
    wait_until(lambda: len(Beat.runs) >= 20)
    assert timer.cancel("k")
    wait_until(lambda: timer.stats().running == 0)
    assert Gate.most[0] <= 2
    moments = of_name(Beat.runs)[0]
    assert len(moments) == len(set(moments))


def test_a_hanging_run_keeps_its_series_until_its_thread_ends_and_hurts_no_other(opened: Any, wait_until: Any) -> None:
    timer: TimerManager = opened(workers={"threads": 2})
    timed_out: list[int] = []
    timer.on(events.JobTimedOut, lambda event: timed_out.append(event.job.id))
    timer.add_job(Hangs("hangs"), trigger=every(0.05), key="h")
    timer.add_job(Beat("beats"), trigger=every(0.05), key="b")
    wait_until(lambda: timed_out)
    beats = len(Beat.runs)
    wait_until(lambda: len(Beat.runs) > beats + 5)
    picture = timer.get("h")
    assert picture is not None
    assert (picture.state, picture.timed_out) == (State.RUNNING, True)
    assert [name for name, _, _ in Beat.runs].count("hangs") == 1
    Gate.go.set()
    wait_until(lambda: [name for name, _, _ in Beat.runs].count("hangs") > 3)
    assert Gate.most["hangs"] == 1
    picture = timer.get("h")
    assert picture is not None
    assert picture.failures == 1
    assert picture.runs > 1
    assert len(timed_out) == 1


def test_a_hanging_parallel_run_does_not_hold_its_series(opened: Any, wait_until: Any) -> None:
    timer: TimerManager = opened(workers={"threads": 2})
    timer.add_job(HangsParallel("hangs"), trigger=every(0.05), key="h")
    assert Gate.begun.acquire(timeout=LIMIT)
    wait_until(lambda: timer.stats().failed == 1, what="the run is settled as timed out though its thread goes on")
    wait_until(lambda: len(Beat.runs) >= 2, what="the next run")
    Gate.go.set()
    wait_until(lambda: len(Beat.runs) >= 5)
    assert timer.cancel("h")


@dataclass
class HangsAsync(Beat, kind="stress.recurring.hangs_async", timeout=0.1):
    """It does not let itself be cancelled until the gate is opened."""

    async def run(self, ctx: JobContext) -> None:  # type: ignore[override]
        Beat.run(self, ctx)
        with Gate.counted(self.name):
            while not Gate.go.is_set():
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)


def test_a_hanging_coroutine_keeps_its_series_until_it_ends(opened: Any, wait_until: Any) -> None:
    timer: TimerManager = opened(workers={"threads": 2})
    timed_out: list[int] = []
    timer.on(events.JobTimedOut, lambda event: timed_out.append(event.job.id))
    timer.add_job(HangsAsync("hangs"), trigger=every(0.05), key="h")
    wait_until(lambda: timed_out)
    rest(0.3)
    picture = timer.get("h")
    assert picture is not None
    assert (picture.state, len(Beat.runs)) == (State.RUNNING, 1)
    Gate.go.set()
    wait_until(lambda: len(Beat.runs) > 3)
    assert Gate.most["hangs"] == 1
    picture = timer.get("h")
    assert picture is not None
    assert picture.failures == 1


@pytest.mark.parametrize("backend", ["wheel", "apscheduler"])
def test_every_waiting_room_keeps_the_grid(opened: Any, wait_until: Any, backend: str) -> None:
    timer: TimerManager = opened(backend=backend, workers={"threads": 2})
    timer.add_job(Beat("every"), trigger=every(0.1), key="e")
    timer.add_job(Beat("cron"), trigger=cron("* * * * * *"), key="c")
    wait_until(lambda: len(of_name(Beat.runs)["every"]) >= 25 and len(of_name(Beat.runs)["cron"]) >= 2)
    timer.shutdown(5)
    moments = of_name(Beat.runs)
    first = moments["every"][0]
    numbers = [(moment - first).total_seconds() / 0.1 for moment in moments["every"]]
    assert numbers == pytest.approx([round(number) for number in numbers], abs=0.3)
    assert len({round(number) for number in numbers}) == len(numbers)
    assert {moment.microsecond for moment in moments["cron"]} == {0}
    assert min(late for _, _, late in Beat.runs) >= 0


@dataclass
class InChild(IJob, kind="stress.recurring.in_child", isolation="process", timeout=0.5):
    """Writes a line; its second run hangs, and its fourth kills its process."""

    path: str

    def run(self, ctx: JobContext) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(f"{ctx.scheduled_for.timestamp():.3f} {ctx.attempt}\n")
        with open(self.path, encoding="utf-8") as file:
            lines = len(file.readlines())
        if lines == 2:
            rest(LIMIT)
        if lines == 4:
            os._exit(3)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_hang_or_a_crash_in_a_child_process_costs_a_series_one_run(opened: Any, tmp_path: Any, wait_until: Any, store: str) -> None:
    lines = tmp_path / "lines"
    timer: TimerManager = opened(store={"kind": store, "path": str(tmp_path / "jobs.db"), "durability": "process"}, workers={"threads": 2})
    timer.add_job(InChild(str(lines)), trigger=every(0.2), key="k")
    wait_until(lambda: lines.exists() and len(lines.read_text().splitlines()) >= 7, 30)
    timer.cancel("k")
    wait_until(lambda: timer.find(key="k")[-1].state.ended)
    ended = timer.find(key="k")[-1]
    ran = [line.split() for line in lines.read_text().splitlines()]
    assert (ended.runs, ended.failures) == (len(ran), 2)
    assert {attempt for _, attempt in ran} == {"1"}
    moments = [float(moment) for moment, _ in ran]
    assert moments == sorted(set(moments))
    assert round((moments[-1] - moments[0]) / 0.2) + 1 - len(ran) <= ended.skipped


def test_while_all_workers_are_busy_series_wait_and_then_each_catches_up_once(opened: Any, wait_until: Any) -> None:
    """The ticker goes on."""
    timer: TimerManager = opened(workers={"threads": 2})
    for number in range(2):
        timer.add_job(Long(f"busy {number}"))
        assert Gate.begun.acquire(timeout=LIMIT)
    timer.add_jobs({"job": Beat(number), "trigger": every(0.5 + number / 1000), "key": str(number)} for number in range(500))
    rest(2.2)
    assert len(Beat.runs) == 2
    assert timer.health().lag < 1
    Gate.go.set()
    wait_until(lambda: len({name for name, _, _ in Beat.runs}) == 502, 30)
    timer.shutdown(5)
    moments = of_name(Beat.runs)
    for job in timer.find(limit=10**6, kind=Beat):
        if job.key is None:
            continue
        each = moments[int(job.key)]
        assert each == sorted(set(each))
        number_of_last = round((each[-1] - job.created).total_seconds() / (0.5 + int(job.key) / 1000))
        assert job.runs == len(each)
        assert number_of_last <= job.runs + job.skipped
        assert job.skipped >= 1


def test_two_timers_on_one_file_run_each_moment_once(opened: Any, tmp_path: Any, wait_until: Any) -> None:
    section = {"kind": "sqlite", "path": str(tmp_path / "jobs.db"), "durability": "process"}
    timers: list[TimerManager] = [opened(store=section, workers={"threads": 2}) for _ in range(2)]
    ids = crowd(8, lambda number: [timers[number % 2].add_job(Beat(name), trigger=every(0.2), key=f"k{name}").id for name in range(10)])
    assert {tuple(each) for each in ids} == {tuple(ids[0])}
    wait_until(lambda: len(Beat.runs) >= 150, 30)
    for timer in timers:
        timer.shutdown(5)
    moments = of_name(Beat.runs)
    assert len(moments) == 10
    for name, each in moments.items():
        assert each == sorted(set(each)), name
        job = timers[0].get(f"k{name}")
        assert job is not None
        assert job.runs == len(each)


@dataclass
class Contested(Beat, kind="stress.recurring.contested"):
    def run(self, ctx: JobContext) -> None:
        with Gate.counted(self.name):
            super().run(ctx)
            if len(self.runs) % 7 == 0:
                raise ValueError
            if len(self.runs) % 5 == 0:
                threading.Event().wait(0.005)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_threads_that_fight_over_a_few_series_leave_each_whole(
    opened: Any, tmp_path: Any, wait_until: Any, caplog: Any, store: str
) -> None:
    """Registered, paused, resumed, moved, touched and run by hand from eight threads: one row each, one run at a time, and it goes on."""
    caplog.set_level("CRITICAL", "jobwheel.run")
    section = {"kind": store, "path": str(tmp_path / "jobs.db"), "durability": "process", "keep": 10**6}
    timer: TimerManager = opened(store=section, workers={"threads": 4}, wheel={"slots": 16, "tick": 0.01})
    keys = ["a", "b", "c", "d"]
    first = {key: timer.add_job(Contested(key), trigger=every(0.01), key=key).id for key in keys}

    def fight(number: int) -> Counter[str]:
        random, end, done = Random(number), now() + 3, Counter[str]()
        while now() < end:
            key = random.choice(keys)
            way = random.choice(["add", "add", "keep", "pause", "resume", "run_now", "touch", "reschedule", "get", "find"])
            done[way] += 1
            if way in ("add", "keep"):
                held = timer.add_job(Contested(key), trigger=every(0.01), key=key, if_exists="replace" if way == "add" else "keep")
                assert held.id == first[key]
            elif way in ("touch", "reschedule"):
                getattr(timer, way)(key, random.choice([0, 0.005, 0.02]))
            elif way == "find":
                assert first[key] in [job.id for job in timer.find(key=key)]
            else:
                with suppress(UsageError):
                    getattr(timer, way)(key)
            threading.Event().wait(0.0005)
        return done

    with nervous():
        done: Counter[str] = sum(crowd(8, fight), Counter())
    assert min(done.values()) > 20, done
    for key in keys:
        timer.resume(key)
    before = {key: len(of_name(Beat.runs)[key]) for key in keys}
    wait_until(lambda: all(len(of_name(Beat.runs)[key]) > before[key] + 3 for key in keys), what="each goes on")
    assert dict(Gate.most) == dict.fromkeys(keys, 1)
    for key in keys:
        timer.cancel(key)
    wait_until(lambda: timer.stats().pending == timer.stats().running == 0)
    counted = {job.key: job.runs for job in timer.find(limit=10**6)}
    assert counted == {key: len(moments) for key, moments in of_name(Beat.runs).items()}


def test_a_cancel_that_says_true_is_kept_by_a_series(opened: Any, wait_until: Any) -> None:
    """From the answer on there is no run; when it says False, the series ends after the run that goes on."""
    timer: TimerManager = opened(workers={"threads": 4}, wheel={"slots": 16, "tick": 0.01})
    answers: Counter[bool] = Counter()
    for turn in range(150):
        job = timer.add_job(Beat(turn), trigger=every(0.001), key="k")
        start = len(Beat.runs)
        wait_until(lambda start=start: len(Beat.runs) > start)
        answer = timer.cancel("k")
        answers[answer] += 1
        after = [name for name, _, _ in Beat.runs].count(turn)
        wait_until(lambda job=job: timer.get(job.id).state is State.CANCELLED)  # type: ignore[union-attr]
        ran = [name for name, _, _ in Beat.runs].count(turn)
        assert ran == after if answer else ran <= after + 1
    rest(0.05)
    assert timer.stats().pending == timer.stats().running == 0
    assert answers[True]


@dataclass
class Lasting(Beat, kind="stress.recurring.lasting"):
    """Its runs take most of the time, so that nearly each call meets one."""

    def run(self, ctx: JobContext) -> None:
        super().run(ctx)
        rest(0.002)


@pytest.mark.parametrize(("store", "turns"), [("memory", 150), ("sqlite", 40)])
def test_a_series_that_is_cancelled_and_added_again_at_once_goes_on(
    opened: Any, tmp_path: Any, wait_until: Any, store: str, turns: int
) -> None:
    """Whatever the run that goes on meanwhile comes to: an add that was acknowledged is not lost, and there is one series."""
    section = {"kind": store, "path": str(tmp_path / "jobs.db"), "durability": "process"}
    timer: TimerManager = opened(store=section, workers={"threads": 3}, wheel={"slots": 16, "tick": 0.01})
    timer.add_job(Lasting(), trigger=every(0.003), key="k")
    answers: Counter[bool] = Counter()
    for _ in range(turns):
        answers[timer.cancel("k")] += 1
        timer.add_job(Lasting(), trigger=every(0.003), key="k")
        runs = len(Beat.runs)
        wait_until(lambda runs=runs: len(Beat.runs) > runs + 1, what="it goes on")
        assert len(timer.find(key="k", state=["scheduled", "running"])) <= 2  # one may be the run that was cancelled
    assert min(answers[True], answers[False]) > 0, answers
    timer.cancel("k")
    wait_until(lambda: timer.stats().pending == timer.stats().running == 0)


def test_a_series_goes_on_after_a_shutdown_in_the_middle_of_a_run(opened: Any, wait_until: Any) -> None:
    timer: TimerManager = opened(workers={"threads": 2})
    timer.add_job(Long(), trigger=every(0.05), key="k")
    assert Gate.begun.acquire(timeout=LIMIT)
    assert len(timer.shutdown(0.05)) == 1
    Gate.go.set()
    wait_until(lambda: timer.stats().running == 0, what="the run is settled though the timer is stopped")
    runs = len(Beat.runs)
    timer.start()
    wait_until(lambda: len(Beat.runs) > runs + 3)
    moments = of_name(Beat.runs)[0]
    assert moments == sorted(set(moments))
    assert Gate.most[0] == 1


def test_runs_that_were_claimed_and_not_started_are_there_after_a_shutdown(opened: Any, tmp_path: Any, wait_until: Any) -> None:
    """Those in the queue before the workers are handed back, also the parallel ones, which are jobs of their own by then."""
    for store in ("memory", "sqlite"):
        Beat.runs = []
        Gate.reset()
        section = {"kind": store, "path": str(tmp_path / "jobs.db"), "durability": "process"}
        timer: TimerManager = opened(store=section, workers={"threads": 1})
        timer.add_job(Long("busy"))
        assert Gate.begun.acquire(timeout=LIMIT)
        series = timer.add_job(LongParallel("p"), trigger=every(0.05), key="p")
        single = timer.add_job(Long("s"), trigger=every(0.05), key="s")
        rest(0.3)  # a store of one process lets what is due be claimed ahead, the other one does not while runs are long
        assert timer.stats().queued >= (store == "memory")
        runs = timer.get("p").runs  # type: ignore[union-attr]
        assert len(timer.shutdown(0.05)) == 1
        Gate.go.set()
        wait_until(lambda timer=timer: timer.stats().running == 0)
        assert [name for name, _, _ in Beat.runs] == ["busy"]
        assert [timer.get(job).state for job in (series, single)] == [State.SCHEDULED] * 2  # type: ignore[union-attr]
        assert len(timer.find(kind=LongParallel)) == 1 + runs
        timer.start()
        wait_until(lambda runs=runs: [name for name, _, _ in Beat.runs].count("p") > runs + 2)
        assert timer.cancel("p") is not None
        timer.shutdown(5)
        for moments in of_name(Beat.runs).values():
            assert len(set(moments)) == len(moments), "a moment ran twice"


def test_waiting_for_a_series_is_waiting_for_its_end(opened: Any, wait_until: Any) -> None:
    timer: TimerManager = opened()
    timer.add_job(Beat(), trigger=every(0.02), key="k")
    with pytest.raises(WaitTimeout):
        timer.wait("k", 0.2)
    assert len(Beat.runs) > 3
    ended: list[State] = []
    waits = threading.Thread(target=lambda: ended.append(timer.wait("k", LIMIT).state), daemon=True)
    waits.start()
    rest(0.05)
    wait_until(lambda: timer.cancel("k") or timer.get("k").state is State.CANCELLED)  # type: ignore[union-attr]
    waits.join(LIMIT)
    assert ended == [State.CANCELLED]


def test_the_moments_of_a_store_that_fails_are_made_up_for_by_one_run(
    opened: Any, tmp_path: Any, wait_until: Any, monkeypatch: Any
) -> None:
    """The verdict waits for the store, and then the series goes on from there."""
    section = {"kind": "sqlite", "path": str(tmp_path / "jobs.db"), "durability": "process"}
    timer: TimerManager = opened(store=section, workers={"threads": 2})
    store = timer._life.store
    timer.add_job(Beat(), trigger=every(0.1), key="k")
    wait_until(lambda: len(Beat.runs) >= 3)

    def fails(*_: Any, **__: Any) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(store, "settle_many", fails)
        patch.setattr(store, "claim", fails)
        wait_until(lambda: timer.health().problems)
        runs = len(Beat.runs)
        rest(0.5)
        assert len(Beat.runs) <= runs + 1
    wait_until(lambda: len(Beat.runs) >= runs + 4, 30)
    timer.shutdown(5)
    moments = of_name(Beat.runs)[0]
    assert moments == sorted(set(moments))
    job = timer.get("k")
    assert job is not None
    assert job.runs == len(moments)
    assert job.skipped >= 3


PROGRAM = """
import sys
from dataclasses import dataclass
from jobwheel import IJob, JobContext, every, open_timer

out = open(sys.argv[2], "a", buffering=1)

@dataclass
class Line(IJob, kind="stress.recurring.line"):
    name: int
    def run(self, ctx: JobContext) -> None:
        out.write(f"{self.name} {ctx.scheduled_for.timestamp():.3f} {ctx.attempt}\\n")

with open_timer({"store": {"kind": "sqlite", "path": sys.argv[1], "durability": "process"}, "workers": {"threads": 2}}) as timer:
    for name in range(10):
        timer.add_job(Line(name), trigger=every(0.2), key=f"k{name}")
    out.write("ready\\n")
    sys.stdin.read()
"""


def test_processes_share_series_and_one_that_is_killed_costs_a_few_seconds_at_most(tmp_path: Any, wait_until: Any) -> None:
    """Each registers the same at its start; every moment has one run, but for those that the killed one ran."""
    logs = [tmp_path / f"{number}.log" for number in range(3)]
    for log in logs:
        log.touch()
    programs = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path / "jobs.db"), str(log)], stdin=subprocess.PIPE) for log in logs
    ]

    def lines(log: Any) -> list[tuple[str, ...]]:
        return [tuple(line.split()) for line in log.read_text().splitlines() if not line.startswith("ready") and line.count(" ") == 2]

    try:
        wait_until(lambda: all("ready" in log.read_text() for log in logs), 30)
        wait_until(lambda: sum(len(lines(log)) for log in logs) >= 150, 30)
        programs[0].kill()
        programs[0].wait(LIMIT)
        sum_then = sum(len(lines(log)) for log in logs)
        wait_until(lambda: sum(len(lines(log)) for log in logs) >= sum_then + 200, 30)
        for program in programs[1:]:
            program.communicate(timeout=LIMIT)
            assert program.returncode == 0
    finally:
        for program in programs:
            program.kill()
            program.communicate()
    ran = Counter((name, moment) for log in logs for name, moment, _ in lines(log))
    by_the_killed = {(name, moment) for name, moment, _ in lines(logs[0])}
    assert all(count == 1 or one in by_the_killed for one, count in ran.items())
    for name in map(str, range(10)):
        moments = sorted(float(moment) for each, moment in ran if each == name)
        steps = [(later - sooner) / 0.2 for sooner, later in pairwise(moments)]
        assert steps == pytest.approx([round(step) for step in steps], abs=0.1), "off the grid"
        assert max(steps) * 0.2 < 5
