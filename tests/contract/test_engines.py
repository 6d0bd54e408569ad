"""The engine contract, one suite for all members, and what whole timers promise of the thread engine: real threads, limits, and ends.

Jobs wait on events and not for a time; where a job must take time, `spend` does it.
"""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from jobwheel import IJob, JobContext, Retry, RetryJob, State, events
from jobwheel.clock import SystemClock
from jobwheel.engine import Engine
from jobwheel.engines.inline import InlineEngine
from jobwheel.engines.threads import ThreadEngine
from jobwheel.opening import find_member
from jobwheel.order import Intake
from jobwheel.row import Row
from jobwheel.runner import Runner
from jobwheel.services import as_services
from jobwheel.settings import from_mapping
from jobwheel.stores.memory import MemoryStore
from jobwheel.verdict import SUCCEEDED, Failed, Succeeded, Verdict

ENGINES = ["threads", "inline"]
LIMIT = 20.0


class Hard(BaseException):
    pass


@dataclass
class Do(IJob, kind="test_engines.do"):
    what: Any = None

    def run(self, ctx: JobContext) -> Any:
        return self.what(ctx) if callable(self.what) else self.what


@dataclass
class DoAsync(IJob, kind="test_engines.do_async"):
    what: Any = None

    async def run(self, ctx: JobContext) -> Any:
        return await self.what(ctx) if callable(self.what) else self.what


@dataclass
class Limited(Do, kind="test_engines.limited", timeout=0.1):
    pass


@dataclass
class LimitedTwice(Do, kind="test_engines.limited_twice", timeout=0.1, retry=Retry(attempts=2)):
    pass


@dataclass
class LimitedAsync(DoAsync, kind="test_engines.limited_async", timeout=0.1):
    pass


def raising(error: BaseException) -> Callable[[JobContext], None]:
    def what(_: JobContext) -> None:
        raise error

    return what


def spend(seconds: float) -> None:
    """A job's work."""
    threading.Event().wait(seconds)


async def until(go: threading.Event) -> None:
    """A coroutine's waiting for what a thread does."""
    while not go.is_set():  # noqa: ASYNC110 (an asyncio.Event cannot be set by the test's thread)
        await asyncio.sleep(0.003)


class Gate:
    """Jobs that say that they run, and run until they may end; `most` is how many ran at once."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.entered = threading.Semaphore(0)
        self.runs = 0
        self.inside = 0
        self.most = 0
        self._lock = threading.Lock()

    def __call__(self, _: JobContext) -> str:
        with self._lock:
            self.runs += 1
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.entered.release()
        self.go.wait(LIMIT)
        with self._lock:
            self.inside -= 1
        return "done"


@pytest.fixture
def gate() -> Iterator[Gate]:
    one = Gate()
    yield one
    one.go.set()


class Recorder:
    """A desk that writes down what it is told."""

    def __init__(self) -> None:
        self.settled: list[tuple[int, int, Verdict]] = []
        self.late: list[int] = []
        self.pumps = 0
        self.faults: list[tuple[str, BaseException]] = []

    blocking = False

    def done(self, row: Row, attempt: int, verdict: Verdict) -> None:
        self.settled.append((row.id, attempt, verdict))

    def timed_out(self, row: Row) -> None:
        self.late.append(row.id)

    def pump(self) -> None:
        self.pumps += 1

    def fault(self, where: str, error: BaseException) -> None:
        self.faults.append((where, error))

    def release(self, what: str) -> None:
        self.pumps += 1


class Bench:
    """An engine with a store to claim rows from and a desk that remembers."""

    def __init__(self, engine: str, **workers: Any) -> None:
        self.clock = SystemClock()
        self.settings = from_mapping({"workers": {"threads": 2, **workers}})
        self.desk = Recorder()
        self.store = MemoryStore(self.clock, self.settings)
        self.orders = Intake(self.clock, as_services(None))
        make = InlineEngine if engine == "inline" else find_member("workers.engine", engine)
        self.engine: Engine = make(self.clock, self.settings, Runner(self.clock, as_services(None)), self.desk)
        if isinstance(self.engine, InlineEngine):
            self.engine.open = True
        self.engine.start()

    def row(self, job: IJob | None = None, priority: int = 0) -> Row:
        row, _ = self.store.add(self.orders.row(job or Do(), priority=priority), "replace")
        assert self.store.claim([row]).rows == [row]
        return row

    def submit(self, *rows: Row) -> None:
        self.engine.submit(list(rows))

    def work(self) -> None:
        """Lets an engine without threads of its own do its work."""
        if isinstance(self.engine, InlineEngine):
            self.engine.run_all()


@pytest.fixture(params=ENGINES)
def benches(request: pytest.FixtureRequest) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**workers: Any) -> Bench:
        made.append(Bench(request.param, **workers))
        return made[-1]

    yield make
    for bench in made:
        bench.engine.withdraw()
        bench.engine.stop(0)


@pytest.fixture
def bench(benches: Callable[..., Bench]) -> Bench:
    return benches()


# --- the contract ---


def test_each_submitted_row_is_run_once_and_told_once(bench: Bench, wait_until: Any) -> None:
    runs: Counter[int] = Counter()
    rows = [bench.row(Do(lambda ctx: runs.update([ctx.job_id]))) for _ in range(500)]
    for start in range(0, 500, 7):
        bench.submit(*rows[start : start + 7])
    bench.work()
    wait_until(lambda: len(bench.desk.settled) == 500, what="500 verdicts")
    assert Counter(id for id, _, _ in bench.desk.settled) == runs == Counter(row.id for row in rows)
    assert {attempt for _, attempt, _ in bench.desk.settled} == {1}


def test_submitting_nothing_is_nothing(bench: Bench) -> None:
    bench.submit()
    bench.work()
    assert bench.desk.settled == []


def test_the_verdict_is_the_runners(bench: Bench, wait_until: Any) -> None:
    jobs = [Do(), Do(5), Do(raising(ValueError("x"))), DoAsync("coroutine")]
    for job in jobs:
        bench.submit(bench.row(job))
    bench.work()
    wait_until(lambda: len(bench.desk.settled) == 4, what="four verdicts")
    by_id = {id: verdict for id, _, verdict in bench.desk.settled}
    failed = by_id.pop(3)
    assert by_id == {1: SUCCEEDED, 2: Succeeded(5), 4: Succeeded("coroutine")}
    assert isinstance(failed, Failed)
    assert failed.error == "ValueError: x"


@pytest.mark.parametrize("kind", [Do, DoAsync])
@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), Hard(), asyncio.CancelledError()], ids=repr)
def test_nothing_that_a_job_raises_ends_the_engine(bench: Bench, wait_until: Any, kind: type[Any], error: BaseException) -> None:
    """R57."""

    async def raise_later(_: JobContext) -> None:
        raise error

    for _ in range(5):
        bench.submit(bench.row(kind(raise_later if kind is DoAsync else raising(error))))
    bench.submit(bench.row(Do("after")))
    bench.work()
    wait_until(lambda: len(bench.desk.settled) == 6, what="the job after five that raised")
    assert sum(isinstance(verdict, Failed) for _, _, verdict in bench.desk.settled) == 5
    assert bench.engine.health().problem is None


def test_after_each_batch_the_engine_asks_for_more(bench: Bench, wait_until: Any) -> None:
    bench.submit(*(bench.row() for _ in range(5)))
    bench.work()
    wait_until(lambda: len(bench.desk.settled) == 5, what="five verdicts")
    wait_until(lambda: bench.desk.pumps > 0, what="a pump")
    assert bench.engine.room() > 0


def test_inside_run_is_true_in_a_job_and_nowhere_else(bench: Bench, wait_until: Any) -> None:
    seen: list[bool] = []

    async def look(_: JobContext) -> None:
        seen.append(bench.engine.inside_run())

    bench.submit(bench.row(Do(lambda _: seen.append(bench.engine.inside_run()))))
    bench.work()
    bench.submit(bench.row(DoAsync(look)))
    bench.work()
    wait_until(lambda: len(bench.desk.settled) == 2, what="two verdicts")
    assert seen == [True, True]
    assert not bench.engine.inside_run()


def test_what_was_submitted_and_not_started_is_withdrawn_once(bench: Bench, gate: Gate, wait_until: Any) -> None:
    if not isinstance(bench.engine, InlineEngine):
        for _ in range(2):
            bench.submit(bench.row(Do(gate)))
            assert gate.entered.acquire(timeout=LIMIT)
    rows = [bench.row() for _ in range(5)]
    bench.submit(*rows)
    assert sorted(row.id for row in bench.engine.withdraw()) == [row.id for row in rows]
    assert bench.engine.withdraw() == []
    assert bench.engine.room() == 0
    gate.go.set()
    bench.work()
    assert bench.engine.stop(LIMIT) == []
    assert {id for id, _, _ in bench.desk.settled}.isdisjoint(row.id for row in rows)


def test_health_counts_what_runs_and_what_waits(benches: Callable[..., Bench], gate: Gate, wait_until: Any) -> None:
    bench = benches(threads=2, queue=10)
    if isinstance(bench.engine, InlineEngine):
        seen: list[Any] = []
        bench.submit(bench.row(Do(lambda _: seen.append(bench.engine.health()))), bench.row())
        bench.work()
        assert (seen[0].busy, seen[0].queued) == (1, 1)
    else:
        bench.submit(*(bench.row(Do(gate), priority=number) for number in range(5)))
        for _ in range(2):
            assert gate.entered.acquire(timeout=LIMIT)
        wait_until(lambda: bench.engine.health().queued == 3, what="three in the queue")
        health = bench.engine.health()
        assert (health.threads, health.busy, health.hung, health.problem) == (2, 2, 0, None)
        assert bench.engine.room() == 7
    gate.go.set()
    wait_until(lambda: bench.engine.health().busy == 0, what="idle")


def test_one_priority_starts_in_the_order_of_the_adds(opened: Any, gate: Gate) -> None:
    """R54: first in, first out inside a level."""
    timer = opened(workers={"threads": 1})
    order: list[int] = []
    timer.add_job(Do(gate))
    assert gate.entered.acquire(timeout=LIMIT)
    jobs = [timer.add_job(Do(lambda _, number=number: order.append(number))) for number in range(100)]
    gate.go.set()
    timer.wait(jobs[-1], LIMIT)
    assert order == list(range(100))


def test_a_larger_priority_goes_before_what_waits(opened: Any, gate: Gate) -> None:
    timer = opened(workers={"threads": 1, "queue": 2})
    order: list[int] = []
    timer.add_job(Do(gate))
    assert gate.entered.acquire(timeout=LIMIT)
    jobs = [timer.add_job(Do(lambda _, number=number: order.append(number)), priority=number % 3) for number in range(30)]
    gate.go.set()
    for job in jobs:
        timer.wait(job, LIMIT)
    # Those that were claimed before the more urgent ones came may go first: at most the queue's length of them.
    behind = [number for number in order if number % 3 == 0][:20]
    assert len([number for number in order[:12] if number % 3 == 0]) <= 2
    assert sorted(order) == list(range(30))
    assert behind == sorted(behind), "first in, first out inside a level"


def test_low_priority_is_served_under_a_load_of_high_ones_that_never_ends(opened: Any, wait_until: Any) -> None:
    """R54: ageing, with a bound of 0.3 s here and not 2."""
    timer = opened(workers={"threads": 1, "ageing": 0.3})
    low, stop = threading.Event(), threading.Event()

    def feed() -> None:
        while not stop.is_set():
            for _ in range(4):
                timer.add_job(Do(lambda _: spend(0.002)), priority=5)
            spend(0.002)

    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    try:
        wait_until(lambda: timer.stats().overdue > 50, what="a backlog")
        timer.add_job(Do(lambda _: low.set()))
        assert low.wait(LIMIT), "the low one starves"
        assert timer.stats().overdue > 0, "the load never ended"
    finally:
        stop.set()
        feeder.join(LIMIT)


# --- threads: slow and hung jobs ---


def test_a_slow_job_delays_no_other(opened: Any, gate: Gate) -> None:
    """R50: with a second worker free, and the ticker in no job's way."""
    timer = opened(workers={"threads": 2})
    slow = timer.add_job(Do(gate))
    assert gate.entered.acquire(timeout=LIMIT)
    jobs = [timer.add_job(Do(), number / 1000) for number in range(200)]
    for job in jobs:
        assert timer.wait(job, LIMIT).state is State.SUCCEEDED
    assert timer.get(slow).state is State.RUNNING
    assert timer.health().ok


def test_jobs_due_behind_slow_ones_start_as_soon_as_a_worker_is_free(opened: Any, gate: Gate) -> None:
    """No row hides behind a slow one while a worker is idle."""
    timer = opened(workers={"threads": 2, "queue": 50})
    timer.add_job(Do(gate))
    assert gate.entered.acquire(timeout=LIMIT)
    jobs = [timer.add_job(Do(number)) for number in range(50)]
    assert [timer.wait(job, LIMIT).result for job in jobs] == list(range(50))


def test_a_hung_job_is_told_and_its_thread_replaced(opened: Any, gate: Gate, wait_until: Any) -> None:
    """R52: the next job runs, the number of threads is bounded."""
    others = workers()
    timer = opened(workers={"threads": 1})
    late: list[Any] = []
    timer.on(events.JobTimedOut, late.append)
    hung = timer.add_job(Limited(gate), key="k")
    after = timer.add_job(Do("after"))
    assert timer.wait(hung, LIMIT).state is State.FAILED
    assert timer.wait(after, LIMIT).result == "after"
    wait_until(lambda: late, what="the event")
    job = timer.get(hung)
    assert (job.timed_out, job.cancel_requested) == (True, True)
    assert "timeout of 0.1 seconds" in job.error
    assert timer.stats().hung == 1
    timer.add_job(Do(), key="k", if_exists="error")
    gate.go.set()
    wait_until(lambda: timer.stats().hung == 0, what="the end of the hung thread")
    assert (timer.get(hung).state, timer.stats().failed) == (State.FAILED, 1), "its late end changes nothing"
    wait_until(lambda: timer.wait(timer.add_job(Do()), LIMIT) and len(workers() - others) == 1, what="one worker again")


def workers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("jobwheel-worker")}


def test_hung_threads_are_replaced_up_to_a_bound_and_health_says_when_no_more_are(opened: Any, gate: Gate, wait_until: Any) -> None:
    others = workers()
    timer = opened(workers={"threads": 2})
    jobs = [timer.add_job(Limited(gate)) for _ in range(10)]
    wait_until(lambda: timer.stats().hung == 4, what="two hung ones and two more in their places")
    assert len(workers() - others) == 4
    assert not timer.health().ok
    assert "runs hang past their timeout" in timer.health().problems[0]
    assert gate.most == 4
    assert timer.stats().running <= 6
    gate.go.set()
    for job in jobs:
        timer.wait(job, LIMIT)
    wait_until(lambda: timer.health().ok and timer.stats().hung == 0, what="health again")
    # One that ended at the moment of its replacement goes with the next job that it gets.
    wait_until(lambda: timer.wait(timer.add_job(Do()), LIMIT) and len(workers() - others) == 2, what="two workers again")


def test_shutdown_names_each_hung_job_once(opened: Any, gate: Gate, wait_until: Any) -> None:
    timer = opened(workers={"threads": 1})
    jobs = [timer.add_job(Limited(gate)) for _ in range(2)]
    wait_until(lambda: timer.stats().hung == 2, what="two hung jobs")
    assert timer.shutdown(0) == sorted(job.id for job in jobs)


def test_a_hung_run_gets_its_next_attempt_only_after_its_thread_has_ended(opened: Any, gate: Gate, wait_until: Any) -> None:
    timer = opened(workers={"threads": 2})
    job = timer.add_job(LimitedTwice(gate))
    wait_until(lambda: timer.get(job).timed_out, what="the time limit")
    timer.wait(timer.add_job(Do(), 0.05), LIMIT)
    timer.wait(timer.add_job(Do(), 0.05), LIMIT)
    assert (gate.runs, timer.get(job).state) == (1, State.RUNNING), "no second run beside the first"
    gate.go.set()
    ended = timer.wait(job, LIMIT)
    assert (ended.state, ended.attempt, gate.runs, gate.most) == (State.SUCCEEDED, 2, 2, 1)


def test_a_hung_run_that_was_failed_is_not_settled_again_by_its_late_end(opened: Any, gate: Gate, wait_until: Any) -> None:
    timer = opened(workers={"threads": 1})
    told: list[State] = []
    timer.on(events.Event, lambda event: told.append(event.job.state))
    job = timer.add_job(Limited(gate))
    timer.wait(job, LIMIT)
    gate.go.set()
    wait_until(lambda: timer.stats().hung == 0, what="the late end")
    timer.wait(timer.add_job(Do()), LIMIT)
    wait_until(lambda: State.SUCCEEDED in told, what="the events of the next job")
    assert told.count(State.FAILED) == 1
    assert (timer.stats().failed, timer.stats().succeeded, timer.stats().running) == (1, 1, 0)


def test_the_late_end_of_a_hung_run_does_not_touch_the_attempt_that_came_after(opened: Any, wait_until: Any) -> None:
    """It is failed, but retried only once its first run has ended: two runs of a job are never beside each other."""
    timer = opened(workers={"threads": 2})
    first, second = Gate(), Gate()
    job = timer.add_job(Limited(lambda ctx: (first if ctx.attempt == 1 else second)(ctx)))
    assert timer.wait(job, LIMIT).state is State.FAILED
    assert not timer.retry(job)
    first.go.set()
    wait_until(lambda: timer.retry(job), what="the end of the first run")
    assert second.entered.acquire(timeout=LIMIT)
    second.go.set()
    wait_until(lambda: timer.get(job).state.ended, what="the end of the second attempt")
    ended = timer.get(job)
    assert ended.attempt == 2
    assert ended.state is State.SUCCEEDED or ended.timed_out
    assert timer.stats().running == 0


def test_a_job_that_looks_at_cancel_requested_can_obey_its_time_limit(opened: Any, wait_until: Any) -> None:
    def what(ctx: JobContext) -> str:
        while not ctx.cancel_requested:
            spend(0.005)
        return "obeyed"

    timer = opened(workers={"threads": 1})
    ended = timer.wait(timer.add_job(Limited(what)), LIMIT)
    assert (ended.state, ended.timed_out) == (State.FAILED, True)
    wait_until(lambda: timer.stats().hung == 0, what="its thread to be free")


def test_cancel_reaches_a_running_job(opened: Any, wait_until: Any) -> None:
    """R41."""
    started = threading.Event()

    def what(ctx: JobContext) -> None:
        started.set()
        while not ctx.cancel_requested:
            spend(0.005)

    timer = opened(workers={"threads": 1})
    job = timer.add_job(Do(what))
    assert started.wait(LIMIT)
    assert not timer.cancel(job)
    assert timer.wait(job, LIMIT).state is State.CANCELLED


def test_a_job_within_its_time_limit_is_not_touched_by_it(opened: Any) -> None:
    timer = opened(workers={"threads": 2})
    jobs = [timer.add_job(Limited(number)) for number in range(200)]
    assert [timer.wait(job, LIMIT).result for job in jobs] == list(range(200))
    assert not any(timer.get(job).timed_out for job in jobs)


# --- threads: back-pressure ---


def test_a_flood_waits_unclaimed_runs_whole_and_warns_once(opened: Any, caplog: pytest.LogCaptureFixture, wait_until: Any) -> None:
    """R53: one worker, a queue of 10, 1000 jobs that take time."""
    timer = opened(workers={"threads": 1, "queue": 10})
    most = 0
    ran = []

    def what(_: JobContext) -> None:
        nonlocal most
        most = max(most, timer.session.engine.health().queued)
        ran.append(1)
        spend(0.002)

    for _ in range(1000):
        timer.add_job(Do(what))
    assert timer.stats().running <= 11
    wait_until(lambda: timer.stats().succeeded == 1000, 60, what="all 1000")
    assert len(ran) == 1000
    assert 5 <= most <= 10
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "due jobs wait for a free worker" in warnings[0].getMessage()


def test_what_waits_behind_a_full_queue_can_still_be_cancelled_and_touched(opened: Any, gate: Gate) -> None:
    timer = opened(workers={"threads": 1, "queue": 1})
    timer.add_job(Do(gate))
    assert gate.entered.acquire(timeout=LIMIT)
    timer.add_job(Do())
    jobs = [timer.add_job(Do(number)) for number in range(10)]
    assert all(timer.cancel(job) for job in jobs[:5])
    assert all(timer.touch(job, 0.05) for job in jobs[5:])
    gate.go.set()
    assert [timer.wait(job, LIMIT).result for job in jobs] == [None] * 5 + [5, 6, 7, 8, 9]
    assert timer.stats().cancelled == 5


def test_without_workers_nothing_is_claimed(opened: Any) -> None:
    timer = opened(workers={"threads": 0})
    job = timer.add_job(Do())
    assert timer.get(job).state is State.SCHEDULED
    assert timer.cancel(job)


# --- threads: no more threads to be had ---


def test_a_worker_that_cannot_be_started_is_tried_again_and_jobs_run_meanwhile(
    opened: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, wait_until: Any
) -> None:
    start, left = threading.Thread.start, [1]

    def scarce(thread: threading.Thread) -> None:
        if thread.name.startswith("jobwheel-worker"):
            if left[0] <= 0:
                raise RuntimeError("can't start new thread")
            left[0] -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    timer = opened(workers={"threads": 3})
    assert "1 of 3 worker threads could be started" in caplog.text
    assert not timer.health().ok
    assert timer.wait(timer.add_job(Do("x")), LIMIT).result == "x"
    left[0] = 10
    wait_until(lambda: timer.stats().threads == 3, what="the missing workers")
    assert timer.health().ok


def test_a_submitted_job_runs_though_no_thread_can_be_started_any_more(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`submit` starts none. A coroutine job too, whose loop has no thread yet."""
    timer = opened(workers={"threads": 2})

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert timer.wait(timer.add_job(Do("x")), LIMIT).result == "x"
    assert timer.wait(timer.add_job(Do("later"), 0.02), LIMIT).result == "later"
    assert timer.wait(timer.add_job(DoAsync("coroutine")), LIMIT).result == "coroutine"
    monkeypatch.undo()
    assert timer.wait(timer.add_job(DoAsync("coroutine")), LIMIT).result == "coroutine"


def test_a_hung_thread_whose_replacement_cannot_be_started_is_replaced_later(
    opened: Any, gate: Gate, monkeypatch: pytest.MonkeyPatch, wait_until: Any
) -> None:
    timer = opened(workers={"threads": 1})

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    hung = timer.add_job(Limited(gate))
    after = timer.add_job(Do("after"))
    assert timer.wait(hung, LIMIT).state is State.FAILED
    assert timer.get(after).state in (State.RUNNING, State.SCHEDULED)
    monkeypatch.undo()
    assert timer.wait(after, LIMIT).result == "after"


# --- coroutine jobs ---


def test_coroutines_run_beside_each_other_and_take_no_worker(opened: Any, wait_until: Any) -> None:
    timer = opened(workers={"threads": 1})
    inside, most = 0, 0
    go = threading.Event()

    async def what(_: JobContext) -> str:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await until(go)
        inside -= 1
        return "done"

    jobs = [timer.add_job(DoAsync(what)) for _ in range(50)]
    wait_until(lambda: inside == 50, what="50 coroutines at once, on one worker")
    assert timer.wait(timer.add_job(Do("a thread is free")), LIMIT).result == "a thread is free"
    go.set()
    assert {timer.wait(job, LIMIT).result for job in jobs} == {"done"}
    assert most == 50


def test_no_more_coroutines_run_at_once_than_stated_and_the_rest_runs_later(opened: Any, wait_until: Any) -> None:
    timer = opened(workers={"threads": 2, "coroutines": 3})
    inside, most = 0, 0

    async def what(_: JobContext) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.001)
        inside -= 1

    for _ in range(200):
        timer.add_job(DoAsync(what))
    wait_until(lambda: timer.stats().succeeded == 200, what="200 coroutines, three at a time")
    assert most == 3


def test_coroutines_that_wait_do_not_keep_plain_jobs_waiting_beyond_the_queue(opened: Any, wait_until: Any) -> None:
    """A full loop is no reason for idle workers, as long as the claimed rows that wait for it leave room."""
    timer = opened(workers={"threads": 2, "coroutines": 1, "queue": 8})
    go = threading.Event()

    async def what(_: JobContext) -> None:
        await until(go)

    for _ in range(4):
        timer.add_job(DoAsync(what))
    job = timer.add_job(Do("x"))
    try:
        assert timer.wait(job, LIMIT).result == "x"
    finally:
        go.set()


def test_a_coroutine_past_its_time_limit_is_cancelled_and_told(opened: Any, wait_until: Any) -> None:
    timer = opened(workers={"threads": 1})
    late: list[Any] = []
    timer.on(events.JobTimedOut, late.append)
    ended_by: list[str] = []

    async def what(_: JobContext) -> None:
        try:
            await asyncio.sleep(60)
        except BaseException as error:
            ended_by.append(type(error).__name__)
            raise

    job = timer.wait(timer.add_job(LimitedAsync(what)), LIMIT)
    assert (job.state, job.timed_out, ended_by) == (State.FAILED, True, ["CancelledError"])
    assert "timeout of 0.1 seconds" in (job.error or "")
    wait_until(lambda: len(late) == 1, what="the event")
    assert timer.wait(timer.add_job(DoAsync("next")), LIMIT).result == "next"


def test_shutdown_waits_for_coroutines_and_hands_back_those_that_wait(opened: Any, wait_until: Any) -> None:
    timer = opened(workers={"threads": 2, "coroutines": 1, "queue": 20})
    go = threading.Event()

    async def what(_: JobContext) -> str:
        await until(go)
        return "done"

    running, *waiting = [timer.add_job(DoAsync(what)) for _ in range(5)]
    wait_until(lambda: timer.session.engine.health().busy == 1, what="one that runs")
    assert timer.stats().running == 1  # the others are not even claimed, and can be cancelled
    assert timer.shutdown(0.05) == [running.id]
    assert [timer.get(job).state for job in waiting] == [State.SCHEDULED] * 4
    go.set()
    assert timer.wait(running, LIMIT).result == "done"
    timer.start()
    assert [timer.wait(job, LIMIT).result for job in waiting] == ["done"] * 4


@dataclass
class OneAsync(DoAsync, kind="test_engines.one_async", max_running=1):
    pass


def test_a_coroutine_that_max_running_holds_back_keeps_no_place_from_another_one(opened: Any, wait_until: Any) -> None:
    """All three come to the claim together: there are two places in the loop, and the second coroutine may not run yet."""
    timer = opened(workers={"threads": 2, "coroutines": 2})
    go = threading.Event()

    async def what(_: JobContext) -> str:
        await until(go)
        return "done"

    timer.pause_all()
    first, second, other = timer.add_job(OneAsync(what)), timer.add_job(OneAsync(what)), timer.add_job(DoAsync("other"))
    wait_until(lambda: timer.stats().overdue == 3, what="all three to be due")
    timer.resume_all()
    try:
        assert timer.wait(other, 5).result == "other"
    finally:
        go.set()
    assert [timer.wait(job, LIMIT).result for job in (first, second)] == ["done"] * 2


@dataclass
class OneA(Do, kind="test_engines.one_a", max_running=1):
    pass


@dataclass
class OneB(Do, kind="test_engines.one_b", max_running=1):
    pass


def test_two_full_kinds_do_not_wake_each_other(opened: Any, gate: Gate, wait_until: Any) -> None:
    """What is held because its kind is full waits in peace: no pump goes round and round, and other jobs start."""
    timer = opened(workers={"threads": 4, "coroutines": 1})
    for job in (OneA(gate), OneB(gate)):
        timer.add_job(job)
        assert gate.entered.acquire(timeout=LIMIT)
    go = threading.Event()

    async def what(_: JobContext) -> None:
        await until(go)

    timer.add_job(DoAsync(what))
    wait_until(lambda: timer.stats().busy == 3, what="one of each")
    held = []
    for job in (OneA("a"), OneB("b"), DoAsync("c"), OneA("d"), OneB("e"), DoAsync("f")):
        held.append(timer.add_job(job))
        assert timer.wait(timer.add_job(Do("beside")), LIMIT).result == "beside"
    assert [timer.get(job).state for job in held] == [State.SCHEDULED] * 6
    assert timer.cancel(held[0])
    gate.go.set()
    go.set()
    assert [timer.wait(job, LIMIT).result for job in held[1:]] == ["b", "c", "d", "e", "f"]


def test_coroutines_hold_their_bound_over_retries(opened: Any, wait_until: Any) -> None:
    timer = opened(workers={"threads": 3, "coroutines": 4})
    inside, most = 0, 0

    async def what(ctx: JobContext) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        try:
            await asyncio.sleep(0.001)
            if ctx.attempt < 3:
                raise RetryJob(0)
        finally:
            inside -= 1

    for _ in range(100):
        timer.add_job(DoAsync(what))
    wait_until(lambda: timer.stats().succeeded == 100, what="100 coroutines of three attempts each")
    assert most <= 4


def test_wait_inside_a_coroutine_raises_and_does_not_block_the_loop(opened: Any) -> None:
    timer = opened(workers={"threads": 1})

    async def what(_: JobContext) -> None:
        timer.wait(timer.add_job(Do()))

    job = timer.wait(timer.add_job(DoAsync(what)), LIMIT)
    assert "wait() inside a job" in (job.error or "")


def test_a_coroutine_may_use_the_timer(opened: Any) -> None:
    timer = opened(workers={"threads": 1})

    async def what(ctx: JobContext) -> list[int]:
        jobs = [timer.add_job(DoAsync(number)) for number in range(10)]
        assert not timer.cancel(ctx.job_id)
        return [job.id for job in jobs]

    ids = timer.wait(timer.add_job(DoAsync(what)), LIMIT).result
    assert [timer.wait(id, LIMIT).result for id in ids] == list(range(10))


# --- the end of the process ---


def run(code: str, limit: float = 30.0, interrupt_after: str = "") -> tuple[int, str, str, float]:
    """Exit code, stdout, stderr and seconds of a program; SIGINT once it has printed `interrupt_after`."""
    head = """
        import asyncio, sys, threading, time
        from dataclasses import dataclass
        from jobwheel import IJob, JobContext, events, open_timer

        class Nap(IJob):
            def run(self): time.sleep(0.005)

        ready = threading.Event()

        class Long(IJob):
            def run(self):
                ready.wait(20)
                print("running", flush=True)
                time.sleep(60)

        def sleep_long():
            # In small pieces: a signal that comes just before a sleep of the kernel does not end it.
            ready.set()
            for _ in range(600):
                time.sleep(0.1)

        class AsyncNap(IJob):
            async def run(self): await asyncio.sleep(0.005)
    """
    program = textwrap.dedent(head) + textwrap.dedent(code)
    child = subprocess.Popen([sys.executable, "-W", "default", "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out = ""
    try:
        if interrupt_after:
            assert child.stdout is not None
            while interrupt_after not in out:
                line = child.stdout.readline()
                assert line, "the program ended before"
                out += line
            child.send_signal(signal.SIGINT)
        began = time.monotonic()
        rest, err = child.communicate(timeout=limit)
    finally:
        child.kill()
    return child.returncode, out + rest, err, time.monotonic() - began


def test_a_process_with_jobs_that_wait_exits_at_once_and_in_silence() -> None:
    """R64."""
    code, out, err, seconds = run("""
        timer = open_timer({"store": {"kind": "memory"}})
        timer.start()
        timer.add_job(Nap(), 3600)
        timer.on(events.Event, print)
        print("end of main")
    """)
    assert (code, out, err) == (0, "end of main\n", "")
    assert seconds < 10


def test_a_process_waits_for_running_jobs_no_longer_than_its_exit_timeout() -> None:
    code, _, err, seconds = run("""
        timer = open_timer({"store": {"kind": "memory"}, "exit_timeout": 0.3})
        timer.start()
        timer.add_job(Long())
        while not timer.stats().busy: time.sleep(0.01)
    """)
    assert (code, err) == (0, "jobwheel: the process ends while jobs still run: 1\n")
    assert seconds < 10


def test_a_running_job_that_ends_within_the_exit_timeout_ends_in_peace() -> None:
    code, out, err, _ = run("""
        class Short(IJob):
            def run(self):
                started.set()
                time.sleep(0.3)
                print("finished")

        started = threading.Event()
        timer = open_timer({"store": {"kind": "memory"}, "exit_timeout": 20})
        timer.start()
        timer.add_job(Short())
        started.wait(10)
    """)
    assert (code, out, err) == (0, "finished\n", "")


def test_an_interrupt_ends_the_process_within_its_exit_timeout() -> None:
    code, _, err, seconds = run(
        """
        timer = open_timer({"store": {"kind": "memory"}, "exit_timeout": 0.3})
        timer.start()
        timer.add_job(Long())
        try:
            sleep_long()
        except KeyboardInterrupt:
            print("interrupted")
        """,
        interrupt_after="running",
    )
    assert (code, err) == (0, "jobwheel: the process ends while jobs still run: 1\n")
    assert seconds < 10


def test_a_second_interrupt_ends_the_patience_without_a_traceback() -> None:
    code, _, err, seconds = run(
        """
        import os, signal
        timer = open_timer({"store": {"kind": "memory"}, "exit_timeout": 50})
        timer.start()
        timer.add_job(Long())
        try:
            sleep_long()
        except KeyboardInterrupt:
            second = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
            second.daemon = True
            second.start()
        """,
        interrupt_after="running",
    )
    assert (code, err) == (0, "")
    assert seconds < 20


@pytest.mark.parametrize("job", ["Nap()", "AsyncNap()"])
def test_a_process_that_adds_jobs_until_its_very_end_ends_well(job: str) -> None:
    """R61: a few times, since it is a race."""
    for _ in range(3):
        code, _, err, seconds = run(f"""
            timer = open_timer({{"store": {{"kind": "memory"}}, "workers": {{"threads": 4}}}})
            timer.start()
            timer.on(events.JobSucceeded, lambda event: None)

            def feed():
                while True:
                    timer.add_job({job}, 0.01)
                    timer.add_job({job})
                    time.sleep(0.0005)

            threading.Thread(target=feed, daemon=True).start()
            time.sleep(0.15)
        """)
        assert (code, err) == (0, "")
        assert seconds < 15


def test_jobs_that_another_thread_adds_after_the_end_of_main_still_run() -> None:
    code, out, err, _ = run("""
        timer = open_timer({"store": {"kind": "memory"}})
        timer.start()

        def late():
            threading.main_thread().join()
            print([timer.wait(timer.add_job(job), 10).state.value for job in (Nap(), AsyncNap())])

        threading.Thread(target=late).start()
    """)
    assert (code, out, err) == (0, "['succeeded', 'succeeded']\n", "")


def test_a_timer_that_nobody_holds_any_more_ends_with_its_process() -> None:
    code, out, err, _ = run("""
        import gc
        def use():
            timer = open_timer({"store": {"kind": "memory"}})
            timer.start()
            timer.wait(timer.add_job(Nap()), 10)
        use()
        gc.collect()
        print("end")
    """)
    assert (code, out, err) == (0, "end\n", "")


def test_a_process_that_never_started_its_timer_ends_at_once() -> None:
    code, out, err, _ = run("""
        timer = open_timer({"store": {"kind": "memory"}})
        timer.add_job(Nap(), 5)
        print(threading.active_count())
    """)
    assert (code, out, err) == (0, "1\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_starts_anew_and_leaves_the_parents_jobs_alone() -> None:
    """R07: the child has no rows and threads of its own at its first use; the parent's job runs once, in the parent."""
    code, out, err, _ = run("""
        import os, warnings
        warnings.simplefilter("ignore", DeprecationWarning)

        class Where(IJob):
            def run(self): return os.getpid()

        timer = open_timer({"store": {"kind": "memory"}, "workers": {"threads": 2}})
        timer.start()
        job = timer.add_job(Where(), 0.3)
        child = os.fork()
        if child == 0:
            assert timer.get(job) is None, "inherited"
            assert timer.wait(timer.add_job(Where()), 10).result == os.getpid()
            assert timer.wait(timer.add_job(Where(), 0.05), 10).result == os.getpid()
            timer.shutdown()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, "the child failed"
        assert timer.wait(job, 10).result == os.getpid()
        print("well")
    """)
    assert (code, out, err) == (0, "well\n", "")


# --- how much is claimed ahead, by the thread engine ---


def learned(bench: Bench, lasted: float) -> int:
    """The engine's room after a run of so many seconds."""
    assert isinstance(bench.engine, ThreadEngine)
    row = bench.row()
    row.started = bench.clock.elapsed() - lasted
    bench.engine.learn(row)
    return bench.engine.room()


@pytest.mark.parametrize("lasted", [0.0, 1.0])
def test_ahead_of_time_rows_are_taken_only_while_runs_are_short(lasted: float) -> None:
    """What one process cannot begin, another one on the same file may."""
    bench = Bench("threads")
    assert bench.engine.room() == 2
    assert [learned(bench, 0.0), learned(bench, 0.0)] == [2, 8]
    assert learned(bench, lasted) == (8 if lasted == 0.0 else 2)
    bench.engine.stop(0)


def test_while_all_workers_are_busy_with_long_runs_nothing_more_is_taken(wait_until: Any) -> None:
    bench, end = Bench("threads"), threading.Event()
    bench.submit(bench.row(Do(lambda ctx: end.wait(30))), bench.row(Do(lambda ctx: end.wait(30))))
    wait_until(lambda: bench.engine.health().busy == 2)
    assert bench.engine.room() == 0
    end.set()
    wait_until(lambda: bench.engine.room() >= 2)
    bench.engine.stop(0)


def test_a_queue_that_was_asked_for_is_filled_whatever_runs_last() -> None:
    bench = Bench("threads", queue=5)
    assert [bench.engine.room(), learned(bench, 1.0)] == [5, 5]
    bench.engine.stop(0)
