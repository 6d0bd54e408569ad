"""What happened to jobs, and who is told: by whole timers on a manual clock, and by the hub with its thread."""

import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jobwheel import CancelJob, IJob, JobContext, Retry, RetryJob, State, events, every
from jobwheel.errors import BadType
from jobwheel.events import BACKLOG, Event, Hub, JobAdded, JobFailed, JobSucceeded


@dataclass
class Do(IJob, kind="test_events.do"):
    what: Any = None

    def run(self, ctx: JobContext) -> Any:
        return self.what(ctx) if callable(self.what) else self.what


@dataclass
class Twice(Do, kind="test_events.twice", retry=Retry(attempts=2, backoff=5)):
    pass


@dataclass
class Grace(Do, kind="test_events.grace", misfire_grace_time=1):
    pass


@dataclass
class Limit(Do, kind="test_events.limit", timeout=5):
    pass


def fail(_: JobContext) -> None:
    raise ValueError("x")


def give_up(_: JobContext) -> None:
    raise CancelJob("enough")


@pytest.fixture
def told(manual: Any) -> Any:
    """A manual timer, its clock, and the names and states of all events so far."""
    timer, clock = manual()
    seen: list[tuple[str, State]] = []
    timer.on(events.Event, lambda event: seen.append((type(event).__name__, event.job.state)))
    return timer, clock, seen


def test_a_good_run_is_added_started_succeeded(told: Any) -> None:
    timer, clock, seen = told
    timer.add_job(Do(), 5)
    assert seen == [("JobAdded", State.SCHEDULED)]
    clock.advance(5)
    assert seen[1:] == [("JobStarted", State.RUNNING), ("JobSucceeded", State.SUCCEEDED)]


def test_a_failing_run_is_retrying_and_then_failed(told: Any) -> None:
    timer, clock, seen = told
    timer.add_job(Twice(fail))
    clock.advance(10)
    assert [name for name, _ in seen] == ["JobAdded", "JobStarted", "JobRetrying", "JobStarted", "JobFailed"]
    assert seen[2][1] is State.SCHEDULED
    assert seen[4][1] is State.FAILED


def test_the_event_holds_the_picture_of_that_moment(manual: Any) -> None:
    timer, clock = manual()
    seen: list[Any] = []
    timer.on(events.JobRetrying, seen.append)
    timer.on(events.JobFailed, seen.append)
    timer.add_job(Twice(fail), key="k", tags=["user:3"])
    clock.advance(10)
    retrying, failed = (event.job for event in seen)
    assert (retrying.attempt, retrying.error, retrying.key, retrying.tags) == (1, "ValueError: x", "k", ("user:3",))
    assert (retrying.due - retrying.created).total_seconds() == 5
    assert (failed.attempt, failed.error) == (2, "ValueError: x")
    assert "Traceback" in failed.trace


@pytest.mark.parametrize("how", ["cancel", "replace", "cancel_all"])
def test_each_way_to_cancel_a_waiting_job_is_told_once(told: Any, how: str) -> None:
    timer, _, seen = told
    timer.add_job(Do(), 5, key="k")
    if how == "cancel":
        timer.cancel("k")
    elif how == "cancel_all":
        timer.cancel_all()
    else:
        timer.add_job(Do(), 9, key="k")
    assert seen.count(("JobCancelled", State.CANCELLED)) == 1


def test_a_job_that_cancels_itself_is_told(told: Any) -> None:
    timer, clock, seen = told
    timer.add_job(Do(give_up))
    clock.advance(0)
    assert seen[-1] == ("JobCancelled", State.CANCELLED)


def test_a_missed_job_is_told_and_was_never_started(told: Any) -> None:
    timer, clock, seen = told
    timer.add_job(Grace(), 5)
    clock.suspend(60)
    assert [name for name, _ in seen] == ["JobAdded", "JobMissed"]


def test_a_run_past_its_timeout_is_told_before_its_end(told: Any) -> None:
    timer, clock, seen = told
    timer.add_job(Limit(lambda _: setattr(clock, "_elapsed", clock.elapsed() + 6)))
    clock.advance(0)
    assert [name for name, _ in seen] == ["JobAdded", "JobStarted", "JobTimedOut", "JobFailed"]


# --- each type in its case, whatever the store ---


@dataclass
class Say(IJob, kind="test_events.say"):
    """Can be stored."""

    what: str = "good"

    def run(self, ctx: JobContext) -> str:
        if self.what == "fail":
            raise ValueError("x")
        if self.what == "give up":
            raise CancelJob("enough")
        if self.what == "again" and ctx.attempt == 1:
            raise RetryJob(5)
        return self.what


@dataclass
class SayTwice(Say, kind="test_events.say_twice", retry=Retry(attempts=2, backoff=5)):
    pass


@dataclass
class SayInTime(Say, kind="test_events.say_in_time", misfire_grace_time=1):
    pass


@dataclass
class Slow(IJob, kind="test_events.slow", timeout=5):
    def run(self, *, clock: Any) -> None:
        clock[0]._elapsed += 6


@dataclass
class SlowTwice(Slow, kind="test_events.slow_twice", timeout=5, retry=Retry(attempts=2)):
    pass


Case = Callable[[Any, Any], Any]


def cancel_running(timer: Any, clock: Any) -> None:
    timer.on(events.JobStarted, lambda event: timer.cancel(event.job.id))
    timer.add_job(SayTwice("fail"))
    clock.advance(60)


def pause_and_resume(timer: Any, clock: Any) -> None:
    id = timer.add_job(Say(), 5).id
    timer.pause(id)
    clock.advance(60)
    timer.resume(id)
    clock.advance(0)


def retry_failed(timer: Any, clock: Any) -> None:
    id = timer.add_job(Say("fail")).id
    clock.advance(0)
    timer.retry(id)
    clock.advance(0)


def keep_the_old(timer: Any, clock: Any) -> None:
    for _ in range(2):
        timer.add_job(Say(), 5, key="k", if_exists="keep")


def touch_and_move(timer: Any, clock: Any) -> None:
    timer.add_job(Say(), 5, key="k")
    timer.touch("k")
    timer.reschedule("k", 60)
    timer.run_now("k")
    clock.advance(0)


def recurring(timer: Any, clock: Any) -> None:
    timer.add_job(Say(), trigger=every(10), key="k")
    clock.advance(20)
    timer.cancel("k")


def recurring_with_a_gap(timer: Any, clock: Any) -> None:
    timer.add_job(Say(), trigger=every(10), key="k")
    clock.suspend(45)
    clock.advance(5)


CASES: dict[str, tuple[Case, str]] = {
    "a good run": (lambda timer, clock: (timer.add_job(Say(), 5), clock.advance(5)), "added started:running succeeded"),
    "several at once": (lambda timer, clock: timer.add_jobs([(Say(), 5), (Say(), 6)]), "added added"),
    "a failed run": (lambda timer, clock: (timer.add_job(Say("fail")), clock.advance(0)), "added started:running failed"),
    "a second attempt": (
        lambda timer, clock: (timer.add_job(SayTwice("fail")), clock.advance(9)),
        "added started:running retrying:scheduled started:running failed",
    ),
    "another attempt by the job's own wish": (
        lambda timer, clock: (timer.add_job(Say("again")), clock.advance(9)),
        "added started:running retrying:scheduled started:running succeeded",
    ),
    "a job that ends itself": (lambda timer, clock: (timer.add_job(Say("give up")), clock.advance(0)), "added started:running cancelled"),
    "cancelled while it waits": (lambda timer, clock: timer.cancel(timer.add_job(Say(), 5)), "added cancelled"),
    "cancelled twice": (lambda timer, clock: [timer.cancel(timer.add_job(Say(), 5, key="k")), timer.cancel("k")], "added cancelled"),
    "cancelled while it runs": (cancel_running, "added started:running cancelled"),
    "all cancelled": (lambda timer, clock: (timer.add_job(Say(), 5, tags=["a"]), timer.cancel_all(tag="a")), "added cancelled"),
    "replaced": (lambda timer, clock: [timer.add_job(Say(), 5, key="k") for _ in range(2)], "added cancelled added"),
    "kept": (keep_the_old, "added"),
    "touched, moved and run now": (touch_and_move, "added started:running succeeded"),
    "paused and resumed": (pause_and_resume, "added started:running succeeded"),
    "too late": (lambda timer, clock: (timer.add_job(SayInTime(), 5), clock.suspend(60)), "added missed"),
    "past its timeout": (lambda timer, clock: (timer.add_job(Slow()), clock.advance(0)), "added started:running timedout:running failed"),
    "past its timeout, with an attempt left": (
        lambda timer, clock: (timer.add_job(SlowTwice()), clock.advance(60)),
        "added started:running timedout:running retrying:scheduled started:running timedout:running failed",
    ),
    "run again after it failed": (retry_failed, "added started:running failed started:running failed"),
    "recurring": (recurring, "added started:running succeeded:scheduled started:running succeeded:scheduled cancelled"),
    "recurring, with a gap of three moments": (
        recurring_with_a_gap,
        "added started:running succeeded:scheduled skipped:scheduled started:running succeeded:scheduled",
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_each_type_is_told_in_its_case_and_in_no_other(manual: Any, tmp_path: Path, store: str, case: str) -> None:
    clocks: list[Any] = []
    timer, clock = manual(store={"kind": store} | ({"path": tmp_path / "jobs.db"} if store == "sqlite" else {}), services={"clock": clocks})
    clocks.append(clock)
    seen: list[str] = []

    def note(event: Event) -> None:
        name, state = type(event).__name__.removeprefix("Job").lower(), event.job.state.value
        seen.append(name if state == name or (name, state) == ("added", "scheduled") else f"{name}:{state}")

    timer.on(events.Event, note)
    act, told = CASES[case]
    act(timer, clock)
    assert " ".join(seen) == told


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_skipped_moments_are_told_with_their_count(manual: Any, tmp_path: Path, store: str) -> None:
    timer, clock = manual(store={"kind": store} | ({"path": tmp_path / "jobs.db"} if store == "sqlite" else {}))
    told: list[events.JobSkipped] = []
    timer.on(events.JobSkipped, told.append)
    recurring_with_a_gap(timer, clock)
    assert [(event.count, event.job.skipped) for event in told] == [(3, 3)]


def test_a_job_whose_process_died_is_told_by_the_one_that_finds_it(opened: Any, tmp_path: Path, wait_until: Any) -> None:
    """With the store on disk alone: what is kept in memory ends with its process."""
    path = tmp_path / "jobs.db"
    program = f"""
import os
from jobwheel import IJob, open_timer

class Dies(IJob, kind="test_events.dies", on_crash="interrupt"):
    def run(self):
        os._exit(9)

with open_timer({{"store": {{"kind": "sqlite", "path": {str(path)!r}}}, "workers": {{"threads": 1}}}}) as timer:
    timer.wait(timer.add_job(Dies(), key="k"))
"""
    died = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (died.returncode, died.stderr) == (9, "")
    timer = opened(start=False, store={"kind": "sqlite", "path": path}, workers={"threads": 1})
    heard: list[Any] = []
    timer.on(events.Event, heard.append)
    timer.start()
    wait_until(lambda: heard, what="an event")
    assert [(type(event), event.job.state, event.job.key) for event in heard] == [(events.JobInterrupted, State.INTERRUPTED, "k")]


def test_every_type_of_event_has_a_case() -> None:
    told = {word.partition(":")[0] for _, words in CASES.values() for word in words.split()}
    types = {name.removeprefix("Job").lower() for name in vars(events) if name.startswith("Job")}
    assert told | {"interrupted"} == types


def test_events_do_not_depend_on_history(manual: Any) -> None:
    """A timer that keeps no ended jobs tells of their ends all the same."""
    timer, clock = manual(store={"keep": 0})
    seen: list[Any] = []
    timer.on(events.Event, seen.append)
    timer.add_job(Do("result"))
    timer.add_job(Do(fail))
    timer.add_job(Grace(), 1)
    timer.cancel(timer.add_job(Do(), 5))
    clock.suspend(60)
    names = [type(event).__name__ for event in seen]
    assert sorted(name for name in names if name not in ("JobAdded", "JobStarted")) == [
        "JobCancelled",
        "JobFailed",
        "JobMissed",
        "JobSucceeded",
    ]
    by_name = {type(event).__name__: event.job for event in seen}
    assert by_name["JobSucceeded"].result == "result"
    assert by_name["JobFailed"].error == "ValueError: x"


def test_a_listener_of_one_type_hears_no_other(manual: Any) -> None:
    timer, clock = manual()
    added: list[JobAdded] = []
    timer.on(events.JobAdded, added.append)
    timer.add_job(Do())
    clock.advance(0)
    assert [type(event) for event in added] == [JobAdded]


def test_listeners_are_told_in_the_order_they_came(manual: Any) -> None:
    timer, _ = manual()
    order: list[int] = []
    for number in range(5):
        timer.on(events.JobAdded, lambda _, number=number: order.append(number))
    timer.add_job(Do())
    assert order == [0, 1, 2, 3, 4]


def test_a_listener_that_raises_stays_and_harms_nobody(told: Any, caplog: pytest.LogCaptureFixture) -> None:
    """R58: told once per kind of error, whatever it raises."""
    timer, clock, seen = told

    def broken(_: Event) -> None:
        raise SystemExit("listener")

    timer.on(events.Event, broken)
    for _ in range(5):
        timer.add_job(Do())
    clock.advance(0)
    assert len(seen) == 15
    records = [record for record in caplog.records if record.name == "jobwheel.events"]
    assert [record.levelno for record in records] == [logging.ERROR]


@pytest.mark.parametrize("event_type", [events.JobAdded, events.JobStarted, events.JobSucceeded, events.JobFailed, events.JobMissed])
def test_a_listener_may_use_the_timer(manual: Any, event_type: type[Event]) -> None:
    """R37: no lock is held while it runs."""
    timer, clock = manual()
    timer.add_job(Do(), 1000, key="far")
    found: list[Any] = []

    def use(_: Event) -> None:
        if not found:
            found.append(timer.touch("far"))
            timer.add_job(Do("from the listener"), key="new")
            found.extend((timer.cancel("far"), timer.stats(), timer.find(), timer.health()))

    timer.on(event_type, use)
    timer.add_job(Do())
    timer.add_job(Do(fail))
    timer.add_job(Grace(), 1)
    clock.suspend(5)
    assert found[:2] == [True, True]
    assert timer.get("new").state is State.SUCCEEDED


@pytest.mark.parametrize("event_type", [events.JobAdded, events.JobStarted, events.JobSucceeded, events.JobMissed])
def test_a_listener_may_shut_the_timer_down(manual: Any, event_type: type[Event]) -> None:
    timer, clock = manual()
    timer.on(event_type, lambda _: timer.shutdown())
    timer.add_job(Do())
    timer.add_job(Grace(), 1)
    done = threading.Event()

    def move() -> None:
        clock.suspend(5)
        done.set()

    threading.Thread(target=move, daemon=True).start()
    assert done.wait(5), "shutdown() in a listener hangs"
    assert not timer.started


@pytest.mark.parametrize("wrong", [int, "JobFailed", None, JobAdded, Exception], ids=repr)
def test_only_event_classes_can_be_listened_to(manual: Any, wrong: Any) -> None:
    timer, _ = manual()
    if wrong is JobAdded:
        wrong = JobAdded(timer.add_job(Do()))
    with pytest.raises(BadType, match=r"a class of jobwheel.events"):
        timer.on(wrong, print)


def test_a_listener_must_be_callable(manual: Any) -> None:
    timer, _ = manual()
    with pytest.raises(BadType, match="must be callable"):
        timer.on(events.JobFailed, "print")


def test_an_event_cannot_be_changed(manual: Any) -> None:
    timer, _ = manual()
    event = JobAdded(timer.add_job(Do()))
    with pytest.raises(AttributeError):
        event.job = None  # type: ignore[misc, assignment]


# --- the hub's own thread ---


def test_listeners_run_one_after_the_other_on_a_thread_of_their_own(opened: Any, wait_until: Any) -> None:
    timer = opened(workers={"threads": 4})
    names: list[str] = []
    inside, overlaps = threading.Lock(), []

    def listener(_: Event) -> None:
        if not inside.acquire(blocking=False):
            overlaps.append(1)
            return
        names.append(threading.current_thread().name)
        inside.release()

    timer.on(events.JobSucceeded, listener)
    for number in range(200):
        timer.add_job(Do(number))
    wait_until(lambda: len(names) == 200, what="200 events")
    assert set(names) == {"jobwheel-events"}
    assert overlaps == []


def test_a_slow_listener_holds_up_no_job(opened: Any, wait_until: Any) -> None:
    timer = opened(workers={"threads": 2})
    go = threading.Event()
    timer.on(events.JobSucceeded, lambda _: go.wait(20))
    try:
        for number in range(50):
            timer.add_job(Do(number))
        wait_until(lambda: timer.stats().succeeded == 50, what="50 jobs beside a listener that waits")
    finally:
        go.set()


def event_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "jobwheel-events"}


def test_without_listeners_there_is_no_thread_for_them(opened: Any) -> None:
    before = event_threads()
    timer = opened(workers={"threads": 1})
    timer.wait(timer.add_job(Do()), 5)
    assert event_threads() <= before


def test_the_thread_of_the_listeners_ends_with_the_timer_once_they_were_told(opened: Any, wait_until: Any) -> None:
    before = event_threads()
    timer = opened(workers={"threads": 1})
    heard: list[Event] = []
    timer.on(events.Event, heard.append)
    timer.wait(timer.add_job(Do()), 5)
    timer.shutdown()
    wait_until(lambda: len(heard) == 3, what="all events of the job, those of its end as well")
    wait_until(lambda: event_threads() <= before, 3, what="the end of the listeners' thread")


def test_after_a_restart_listeners_are_told_again(opened: Any, wait_until: Any) -> None:
    timer = opened(workers={"threads": 1})
    heard: list[Event] = []
    timer.on(events.JobSucceeded, heard.append)
    for count in (1, 2):
        timer.start()
        timer.wait(timer.add_job(Do()), 5)
        timer.shutdown()
        wait_until(lambda count=count: len(heard) == count, what=f"{count} events")


def test_a_job_is_told_as_added_before_anything_else_of_it(opened: Any, wait_until: Any) -> None:
    timer = opened(workers={"threads": 4})
    heard: list[tuple[int, str]] = []
    timer.on(events.Event, lambda event: heard.append((event.job.id, type(event).__name__)))
    jobs = [timer.add_job(Do(number)).id for number in range(200)]
    wait_until(lambda: len(heard) == 600, what="600 events")
    for id in jobs:
        assert [name for other, name in heard if other == id] == ["JobAdded", "JobStarted", "JobSucceeded"]


def test_events_beyond_the_backlog_are_dropped_counted_and_told_once(
    manual: Any, caplog: pytest.LogCaptureFixture, wait_until: Any
) -> None:
    timer, _ = manual()
    event = JobAdded(timer.add_job(Do()))
    hub = Hub()
    heard: list[Event] = []
    entered, go = threading.Event(), threading.Event()

    def listener(event: Event) -> None:
        entered.set()
        go.wait(20)
        heard.append(event)

    hub.on(Event, listener)
    hub.emit(event)
    assert entered.wait(5)
    try:
        for _ in range(BACKLOG + 100):
            hub.emit(event)
    finally:
        go.set()
    assert hub.dropped == 100
    assert len([record for record in caplog.records if record.name == "jobwheel.events"]) == 1
    wait_until(lambda: len(heard) == BACKLOG + 1, what="everything that was kept")


def test_a_hub_knows_what_is_wanted(manual: Any) -> None:
    hub = Hub(inline=True)
    assert not hub.wants(JobFailed)
    hub.on(JobFailed, lambda _: None)
    assert hub.wants(JobFailed)
    assert not hub.wants(JobSucceeded)
    hub.on(Event, lambda _: None)
    assert hub.wants(JobSucceeded)
