"""The door, call by call, on a manual clock: what it answers, what it refuses, and that a refusal leaves nothing behind."""

import copy
import gc
import itertools
import logging
import pickle
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from jobwheel import (
    BadType,
    BadValue,
    CancelJob,
    Health,
    IJob,
    JobContext,
    JobExists,
    Retry,
    ScheduledJob,
    State,
    Stats,
    TimerManager,
    TooManyPending,
    UsageError,
    WaitTimeout,
    events,
    open_timer,
)
from jobwheel.testing import ManualClock
from jobwheel.verdict import SUCCEEDED

ANY: Any = None


calls: dict[str, Callable[[JobContext], Any]] = {}


@dataclass
class Do(IJob, kind="test_timer.do"):
    """Calls `what`, or returns it. A function is named in it, so that it can be stored."""

    what: Any = None

    def __post_init__(self) -> None:
        if callable(self.what):
            name = f"call {id(self.what)}"
            calls[name], self.what = self.what, name

    def run(self, ctx: JobContext) -> Any:
        return calls[self.what](ctx) if isinstance(self.what, str) and self.what in calls else self.what


@dataclass
class Other(Do, kind="test_timer.other"):
    pass


@dataclass
class Stubborn(Do, kind="test_timer.stubborn", retry=Retry(attempts=4, backoff=10)):
    pass


@dataclass
class Urgent(Do, kind="test_timer.urgent", priority=7):
    pass


@dataclass
class Single(Do, kind="test_timer.single", max_running=1):
    pass


class Awaited(IJob, kind="test_timer.awaited"):
    async def run(self, ctx: JobContext) -> int:
        return ctx.attempt


def fail(_: JobContext) -> None:
    raise ValueError("no")


@pytest.fixture(params=["memory", "sqlite"])
def manual(request: pytest.FixtureRequest, manual: Any, tmp_path: Path) -> Any:
    """As ever, on each store: what the door says does not depend on where jobs are kept."""
    made = itertools.count()

    def make(**settings: Any) -> Any:
        section = {"kind": request.param, "path": f"{tmp_path}/{next(made)}.db", "durability": "process"}
        return manual(**settings | {"store": section | settings.get("store", {})})

    return make


in_memory = pytest.mark.parametrize("manual", ["memory"], indirect=True)


@pytest.fixture
def timer(manual: Any) -> TimerManager:
    made, _ = manual()
    return made  # type: ignore[no-any-return]


@pytest.fixture
def pair(manual: Any) -> tuple[TimerManager, ManualClock]:
    return manual()  # type: ignore[no-any-return]


def got(timer: TimerManager, ref: Any) -> ScheduledJob:
    job = timer.get(ref)
    assert job is not None
    return job


# --- add_job ---


def test_the_picture_of_a_new_job_tells_all_of_it(timer: TimerManager) -> None:
    job = timer.add_job(Do("x"), 60, key="k", tags=["user:3", "mail"], priority=4)
    assert (job.kind, job.key, job.job, job.state, job.attempt) == ("test_timer.do", "k", Do("x"), State.SCHEDULED, 0)
    assert (job.priority, job.tags) == (4, ("user:3", "mail"))
    assert job.created == datetime(2026, 1, 1, tzinfo=UTC)
    assert job.due == datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    assert (job.started, job.ended, job.lateness, job.error, job.result, job.progress, job.log) == (None, None, None, None, None, None, ())
    assert job == timer.get(job.id)


def test_a_picture_never_changes_and_can_be_a_key(pair: Any) -> None:
    timer, clock = pair
    job = timer.add_job(Do(), 5)
    with pytest.raises(AttributeError):
        job.state = State.RUNNING
    clock.advance(5)
    assert job.state is State.SCHEDULED
    assert got(timer, job).state is State.SUCCEEDED
    assert {job: 1}[job] == 1


def test_ids_grow_with_each_add(timer: TimerManager) -> None:
    ids = [timer.add_job(Do(), number % 3).id for number in range(20)]
    assert ids == sorted(set(ids))


def test_the_priority_is_the_kinds_unless_given(timer: TimerManager) -> None:
    assert timer.add_job(Urgent(), 5).priority == 7
    assert timer.add_job(Urgent(), 5, priority=-1).priority == -1
    assert timer.add_job(Do(), 5).priority == 0


def test_the_picture_of_an_ended_job_tells_how_it_went(pair: Any) -> None:
    timer, clock = pair
    job = timer.add_job(Do({"sent": 3}), 60)
    clock.suspend(63)
    ended = got(timer, job)
    assert (ended.state, ended.attempt, ended.result, ended.lateness) == (State.SUCCEEDED, 1, {"sent": 3}, 3.0)
    assert ended.started == ended.ended == datetime(2026, 1, 1, 0, 1, 3, tzinfo=UTC)
    assert ended.error is None


@in_memory
def test_in_memory_an_ended_job_has_dropped_its_data(pair: Any) -> None:
    timer, clock = pair
    ended, cancelled = timer.add_job(Do("x")), timer.add_job(Do("y"), 5)
    timer.cancel(cancelled)
    clock.advance(1)
    assert (got(timer, ended).job, got(timer, cancelled).job) == (None, None)


@pytest.mark.parametrize("job", [Do, Do.run, print, None, 5, "job", {"kind": "x"}, object()], ids=repr)
def test_what_is_no_job_is_refused(timer: TimerManager, job: Any) -> None:
    with pytest.raises(BadType, match="instance"):
        timer.add_job(job)
    assert timer.find() == []


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"key": 5}, BadType, "a text"),
        ({"key": b"k"}, BadType, "a text"),
        ({"key": ""}, BadValue, "must not be empty"),
        ({"key": "a\0b"}, BadValue, "NUL"),
        ({"if_exists": "overwrite"}, BadValue, "'replace', 'keep' or 'error'"),
        ({"if_exists": None}, BadValue, "'replace', 'keep' or 'error'"),
        ({"priority": 1.5}, BadType, "a whole number"),
        ({"priority": True}, BadType, "a whole number"),
        ({"priority": "high"}, BadType, "a whole number"),
        ({"tags": "user:3"}, BadType, "several texts"),
        ({"tags": [3]}, BadType, "several texts"),
        ({"tags": [""]}, BadType, "none of them empty"),
        ({"tags": 5}, BadType, "several texts"),
        ({"tags": None}, BadType, "several texts"),
        ({"max_wait": -1}, BadValue, "max_wait=-1"),
        ({"max_wait": "5"}, BadType, "max_wait='5'"),
        ({"trigger": "every day"}, UsageError, "trigger"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_refused_by_name_and_leaves_nothing(
    timer: TimerManager, given: dict[str, Any], error: type[Exception], match: str
) -> None:
    old = timer.add_job(Do("old"), 100, key="k")
    with pytest.raises(error, match=match):
        timer.add_job(Do(), **{"key": "k", **given})
    assert timer.find() == [old]
    assert timer.stats() == Stats(scheduled=1, threads=1)


def test_tags_may_come_from_any_iterable(timer: TimerManager) -> None:
    assert timer.add_job(Do(), 5, tags=(tag for tag in ("a", "b"))).tags == ("a", "b")
    assert set(timer.add_job(Do(), 5, tags={"a", "b"}).tags) == {"a", "b"}


def test_a_key_that_is_a_kind_of_text_is_taken_as_plain_text(timer: TimerManager) -> None:
    class Loud(str):
        __slots__ = ()

        def __hash__(self) -> int:
            raise RuntimeError("never asked")

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("never asked")

    timer.add_job(Do(), 5, key=Loud("k"))
    assert got(timer, "k").key == "k"


@in_memory
def test_memory_mode_takes_any_object_in_a_job(pair: Any) -> None:
    """R69: only what is stored must be storable."""
    timer, clock = pair
    lock = threading.Lock()
    job = timer.add_job(Do(lambda _: lock), 5)
    clock.advance(5)
    assert got(timer, job).result is lock


@pytest.mark.usefixtures("own_kinds")
def test_a_job_whose_service_is_missing_is_refused_with_both_names(manual: Any) -> None:
    class Needs(IJob, kind="test_timer.needs"):
        def run(self, *, orders: Any, mail: Any = None) -> None: ...

    timer, _ = manual(services={"order": 1})
    with pytest.raises(UsageError, match=r"test_timer.needs.*'orders'.*order"):
        timer.add_job(Needs(), 5)
    assert timer.find() == []


@pytest.mark.usefixtures("own_kinds")
def test_services_are_those_at_the_run(manual: Any) -> None:
    """R82."""

    class Uses(IJob, kind="test_timer.uses"):
        def run(self, *, orders: str) -> str:
            return orders

    services = {"orders": "real"}
    timer, clock = manual(services=services)
    job = timer.add_job(Uses(), 5)
    services["orders"] = "fake"
    clock.advance(5)
    assert got(timer, job).result == "fake"


# --- add_jobs ---


def test_many_are_added_in_one_call_as_pairs_or_dicts(pair: Any) -> None:
    timer, clock = pair
    jobs = timer.add_jobs([(Do(1), 5), (Do(2), None), {"job": Do(3), "delay": 7, "key": "k", "tags": ["t"], "priority": 2}])
    assert [job.job for job in jobs] == [Do(1), Do(2), Do(3)]
    assert (jobs[2].key, jobs[2].tags, jobs[2].priority) == ("k", ("t",), 2)
    clock.advance(10)
    assert [got(timer, job).result for job in jobs] == [1, 2, 3]


def test_any_iterable_of_orders_will_do_also_an_empty_one(timer: TimerManager) -> None:
    assert timer.add_jobs([]) == []
    assert len(timer.add_jobs((Do(number), number) for number in range(5))) == 5


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ((Do(), -1), BadValue),
        ((Do(), "5"), BadType),
        ((Do, 5), BadType),
        ((Do(),), BadType),
        ((Do(), 1, 2), BadType),
        (Do(), BadType),
        (None, BadType),
        ({"delay": 5}, BadType),
        ({"job": Do(), "dealy": 5}, BadType),
        ({"job": Do(), "if_exists": "x"}, BadValue),
        ({"job": Do(), "at": datetime(2026, 1, 1)}, BadValue),  # noqa: DTZ001 (what is tested)
    ],
    ids=str,
)
def test_one_wrong_order_is_told_by_number_and_none_is_added(timer: TimerManager, wrong: Any, error: type[Exception]) -> None:
    timer.add_job(Do("old"), 100, key="k")
    before = timer.find()
    with pytest.raises(error, match=r"order number 2 of add_jobs.*nothing was added") as raised:
        timer.add_jobs([{"job": Do(), "delay": 5, "key": "k"}, (Do(), 5), wrong, (Do(), 6)])
    assert not any(word in str(raised.value) for word in ("zip", "Intake", "_order"))
    assert timer.find() == before


def test_what_is_no_iterable_of_orders_is_refused(timer: TimerManager) -> None:
    with pytest.raises(TypeError):
        timer.add_jobs(5)  # type: ignore[arg-type]


def test_an_existing_key_with_error_adds_none_of_many(pair: Any) -> None:
    timer, clock = pair
    old = timer.add_job(Do("old"), 5, key="k")
    with pytest.raises(JobExists) as raised:
        timer.add_jobs([{"job": Do(1), "key": "new"}, {"job": Do(2), "key": "k", "if_exists": "error"}, (Do(3), 1)])
    assert (raised.value.key, raised.value.id) == ("k", old.id)
    assert timer.find() == [old]
    timer.add_job(Do("again"), 5, key="new", if_exists="error")
    clock.advance(10)
    assert timer.stats().succeeded == 2


def test_the_same_key_twice_in_one_call_leaves_the_last(pair: Any) -> None:
    timer, clock = pair
    jobs = timer.add_jobs([{"job": Do(number), "delay": 5, "key": "k"} for number in range(3)] + [{"job": Do("z"), "delay": 5}])
    assert len(jobs) == 4
    clock.advance(10)
    assert [got(timer, job).state for job in jobs] == [State.CANCELLED, State.CANCELLED, State.SUCCEEDED, State.SUCCEEDED]


def test_the_same_key_twice_with_error_adds_none(timer: TimerManager) -> None:
    with pytest.raises(JobExists):
        timer.add_jobs([{"job": Do(number), "delay": 5, "key": "k", "if_exists": "error"} for number in range(2)])
    assert timer.find() == []
    assert timer.get("k") is None


def test_keep_and_replace_work_inside_many(pair: Any) -> None:
    timer, clock = pair
    kept, replaced = timer.add_job(Do("kept"), 5, key="a"), timer.add_job(Do("old"), 5, key="b")
    one, two = timer.add_jobs([{"job": Do("x"), "key": "a", "if_exists": "keep"}, {"job": Do("new"), "delay": 5, "key": "b"}])
    assert one.id == kept.id
    assert two.id != replaced.id
    clock.advance(5)
    assert [got(timer, key).result for key in ("a", "b")] == ["kept", "new"]


# --- keys ---


@pytest.mark.parametrize("started", [True, False])
def test_the_rule_for_an_existing_key_is_the_same_before_and_after_start(pair: Any, started: bool) -> None:
    """R75."""
    timer, clock = pair
    if not started:
        timer.shutdown()
    first = timer.add_job(Do("first"), 50, key="k")
    with pytest.raises(JobExists) as raised:
        timer.add_job(Do("error"), 5, key="k", if_exists="error")
    assert raised.value.id == first.id
    assert timer.add_job(Do("kept"), 5, key="k", if_exists="keep") == first
    second = timer.add_job(Do("second"), 10, key="k")
    assert second.id != first.id
    assert got(timer, first).state is State.CANCELLED
    assert got(timer, "k").id == second.id
    timer.start()
    clock.advance(100)
    assert (got(timer, "k").result, timer.stats().succeeded, timer.stats().cancelled) == ("second", 1, 1)


def test_keep_gives_the_old_one_though_it_is_of_another_kind(timer: TimerManager) -> None:
    first = timer.add_job(Other(), 50, key="k")
    assert timer.add_job(Do(), key="k", if_exists="keep") == first


def test_a_paused_job_holds_its_key(timer: TimerManager) -> None:
    timer.add_job(Do(), 50, key="k")
    timer.pause("k")
    with pytest.raises(JobExists):
        timer.add_job(Do(), 5, key="k", if_exists="error")
    assert timer.add_job(Do(), 5, key="k", if_exists="keep").state is State.PAUSED
    timer.add_job(Do(), 5, key="k")
    assert (timer.stats().paused, timer.stats().scheduled, timer.stats().cancelled) == (0, 1, 1)


@pytest.mark.parametrize(
    "ending", [lambda _: None, fail, lambda _: (_ for _ in ()).throw(CancelJob())], ids=["succeeded", "failed", "cancelled"]
)
def test_a_key_is_free_once_its_job_has_ended_in_whatever_state(pair: Any, ending: Callable[..., Any]) -> None:
    """R76."""
    timer, clock = pair
    timer.add_job(Do(ending), key="k")
    clock.advance(0)
    timer.add_job(Do("new"), key="k", if_exists="error")
    clock.advance(0)
    assert got(timer, "k").result == "new"


def test_between_attempts_a_job_holds_its_key_and_its_retry_conflicts_with_nothing(pair: Any) -> None:
    """R77."""
    timer, clock = pair
    timer.add_job(Stubborn(lambda ctx: fail(ctx) if ctx.attempt == 1 else "second"), key="k")
    clock.advance(0)
    with pytest.raises(JobExists):
        timer.add_job(Do(), key="k", if_exists="error")
    clock.advance(10)
    assert got(timer, "k").result == "second"


def test_while_a_job_runs_its_key_is_replaced_kept_or_refused_as_asked(pair: Any) -> None:
    """R77: replace adds the new one, keep gives the running one, error raises."""
    timer, clock = pair
    seen: list[Any] = []

    def what(ctx: JobContext) -> None:
        seen.append(timer.add_job(Do("kept"), 5, key="k", if_exists="keep"))
        with pytest.raises(JobExists):
            timer.add_job(Do("error"), 5, key="k", if_exists="error")
        seen.append(timer.add_job(Do("new"), 5, key="k"))
        seen.append(timer.get("k"))
        seen.append(timer.get(ctx.job_id))

    first = timer.add_job(Do(what), key="k")
    clock.advance(0)
    kept, new, by_key, by_id = seen
    assert (kept.id, kept.state) == (first.id, State.RUNNING)
    assert new.id == by_key.id != first.id
    assert (by_id.id, by_id.state) == (first.id, State.RUNNING)
    assert got(timer, first).state is State.SUCCEEDED
    assert got(timer, "k").id == new.id
    clock.advance(5)
    assert got(timer, new).result == "new"


def test_a_job_may_add_its_own_key_again_from_run_for_ever(pair: Any) -> None:
    timer, clock = pair
    runs = []

    def what(_: JobContext) -> None:
        runs.append(clock.elapsed())
        timer.add_job(Do(what), 10, key="again")

    timer.add_job(Do(what), 10, key="again")
    clock.advance(100)
    assert runs == [10.0 * number for number in range(1, 11)]
    assert timer.stats().pending == 1


def test_a_running_job_whose_key_was_replaced_gets_no_further_attempt(pair: Any) -> None:
    timer, clock = pair

    def what(_: JobContext) -> None:
        timer.add_job(Do("new"), 100, key="k")
        raise ValueError("first")

    first = timer.add_job(Stubborn(what), key="k")
    clock.advance(50)
    ended = got(timer, first)
    assert (ended.state, ended.attempt, ended.error) == (State.FAILED, 1, "ValueError: first")
    clock.advance(50)
    assert got(timer, "k").result == "new"


def test_a_key_leads_to_the_live_job_and_else_to_the_latest_ended_one(pair: Any) -> None:
    timer, clock = pair
    first = timer.add_job(Do(1), key="k")
    clock.advance(1)
    assert got(timer, "k").id == first.id
    second = timer.add_job(Do(2), 5, key="k")
    assert got(timer, "k").id == second.id
    clock.advance(5)
    assert got(timer, "k").id == second.id
    assert got(timer, first).result == 1


# --- cancel ---


def test_cancel_is_true_exactly_when_the_job_will_never_run(pair: Any) -> None:
    timer, clock = pair
    job = timer.add_job(Do(), 5)
    assert timer.cancel(job)
    assert not timer.cancel(job)
    clock.advance(100)
    ended = got(timer, job)
    assert (ended.state, ended.attempt) == (State.CANCELLED, 0)
    ran = timer.add_job(Do())
    clock.advance(0)
    assert not timer.cancel(ran)
    assert got(timer, ran).state is State.SUCCEEDED


@pytest.mark.parametrize("name", ["job", "id", "key"])
def test_every_call_takes_the_picture_the_id_or_the_key(pair: Any, name: str) -> None:
    timer, clock = pair

    def ref(number: int) -> Any:
        job = timer.add_job(Do(number), 100, key=f"k{number}")
        return {"job": job, "id": job.id, "key": f"k{number}"}[name]

    refs = [ref(number) for number in range(7)]
    assert timer.cancel(refs[0])
    assert timer.touch(refs[1], 200)
    assert timer.reschedule(refs[2], 200)
    assert timer.run_now(refs[3])
    assert timer.pause(refs[4])
    assert timer.resume(refs[4])
    clock.advance(100)
    assert [got(timer, ref).state.value for ref in refs] == ["cancelled", "scheduled", "scheduled", *["succeeded"] * 4]
    assert timer.wait(refs[5]).result == 5


@pytest.mark.parametrize("ref", ["nope", 999_999, 0, -1])
def test_an_unknown_job_is_false_or_none_and_no_error(timer: TimerManager, ref: Any) -> None:
    """R40."""
    answers = [timer.cancel(ref), timer.touch(ref), timer.touch(ref, 5), timer.reschedule(ref, 5), timer.run_now(ref), timer.retry(ref)]
    answers += [timer.pause(ref), timer.resume(ref)]
    assert answers == [False] * 8
    assert timer.get(ref) is None


@pytest.mark.parametrize("ref", [None, 1.5, b"k", True, ["k"], Do()], ids=repr)
def test_what_can_name_no_job_is_refused(timer: TimerManager, ref: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: timer.cancel(ref), lambda: timer.touch(ref), lambda: timer.reschedule(ref, 5), lambda: timer.run_now(ref),
        lambda: timer.retry(ref), lambda: timer.pause(ref), lambda: timer.resume(ref), lambda: timer.get(ref), lambda: timer.wait(ref),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(BadType, match="names no job"):
            call()


def test_of_two_equal_jobs_the_named_one_is_cancelled(pair: Any) -> None:
    """R40: a job is its id, whatever it equals."""
    timer, clock = pair
    first, second = timer.add_job(Do("same"), 5), timer.add_job(Do("same"), 5)
    assert (timer.cancel(second), timer.cancel(second)) == (True, False)
    clock.advance(5)
    assert (got(timer, first).state, got(timer, second).state) == (State.SUCCEEDED, State.CANCELLED)


def test_cancel_of_a_running_job_is_false_and_asks_it_to_stop(pair: Any) -> None:
    """R41: it ends as cancelled, with no further attempt."""
    timer, clock = pair
    answers = []

    def what(ctx: JobContext) -> None:
        assert not ctx.cancel_requested
        answers.append(timer.cancel(ctx.job_id))
        answers.append(got(timer, ctx.job_id).cancel_requested)
        answers.append(ctx.cancel_requested)

    job = timer.add_job(Stubborn(what), key="k")
    clock.advance(1000)
    assert answers == [False, True, True]
    ended = got(timer, job)
    assert (ended.state, ended.attempt, ended.cancel_requested) == (State.CANCELLED, 1, True)


def test_a_cancelled_run_that_fails_is_cancelled_and_not_retried(pair: Any) -> None:
    timer, clock = pair

    def what(ctx: JobContext) -> None:
        timer.cancel(ctx.job_id)
        raise ValueError("stopped")

    job = timer.add_job(Stubborn(what))
    clock.advance(1000)
    ended = got(timer, job)
    assert (ended.state, ended.attempt, ended.error) == (State.CANCELLED, 1, "ValueError: stopped")


def test_jobs_are_cancelled_by_tag_and_kind(pair: Any) -> None:
    """R85: 1000 jobs of 10 users."""
    timer, clock = pair
    for number in range(1000):
        timer.add_job((Do if number % 2 else Other)(number), 100, tags=[f"user:{number % 10}"])
    assert timer.cancel_all(tag="user:3") == 100
    assert len(timer.find(tag="user:3", state="cancelled", limit=1000)) == 100
    assert timer.cancel_all(tag="user:3") == 0
    assert timer.cancel_all(tag="user:4", kind=Do) == 0
    assert timer.cancel_all(tag="user:4", kind="test_timer.other") == 100
    assert timer.cancel_all(kind=Other) == 400
    assert timer.stats().pending == 400
    clock.advance(100)
    assert (timer.stats().succeeded, timer.stats().cancelled) == (400, 600)


def test_cancel_all_takes_paused_jobs_and_leaves_running_ones(pair: Any) -> None:
    timer, clock = pair
    paused = timer.add_job(Do("paused"), 5)
    timer.pause(paused)
    counted = []
    running = timer.add_job(Do(lambda _: counted.append(timer.cancel_all())))
    clock.advance(0)
    assert counted == [1]
    assert got(timer, running).state is State.SUCCEEDED
    assert got(timer, paused).state is State.CANCELLED
    assert not got(timer, running).cancel_requested


# --- retry by hand ---


def test_a_failed_job_runs_once_more_when_asked(pair: Any) -> None:
    timer, clock = pair
    job = timer.add_job(Do(lambda ctx: fail(ctx) if ctx.attempt == 1 else "second time"), key="k", tags=["t"])
    clock.advance(5)
    failed = got(timer, job)
    assert (failed.state, failed.job is not None) == (State.FAILED, True)
    assert timer.retry("k")
    assert not timer.retry("k")
    clock.advance(0)
    ended = got(timer, job)
    assert (ended.state, ended.attempt, ended.result, ended.tags) == (State.SUCCEEDED, 2, "second time", ("t",))
    assert (timer.stats().failed, timer.stats().succeeded) == (0, 1)


def test_only_failed_missed_and_interrupted_jobs_can_be_retried(pair: Any) -> None:
    timer, clock = pair
    waits, ended, cancelled = timer.add_job(Do(), 100), timer.add_job(Do()), timer.add_job(Do(), 100)
    timer.cancel(cancelled)
    clock.advance(0)
    assert [timer.retry(job) for job in (waits, ended, cancelled)] == [False] * 3


def test_a_failed_job_whose_key_another_one_holds_is_not_retried(pair: Any) -> None:
    timer, clock = pair
    failed = timer.add_job(Do(fail), key="k")
    clock.advance(0)
    new = timer.add_job(Do("new"), 100, key="k")
    assert not timer.retry(failed)
    assert (got(timer, failed).state, timer.stats().failed, got(timer, "k").id) == (State.FAILED, 1, new.id)
    timer.cancel(new)
    assert timer.retry(failed)
    assert got(timer, "k").id == failed.id


def test_a_retried_job_that_fails_again_is_failed_again(pair: Any) -> None:
    timer, clock = pair
    job = timer.add_job(Do(fail))
    for attempt in (1, 2, 3):
        clock.advance(0)
        assert (got(timer, job).state, got(timer, job).attempt) == (State.FAILED, attempt)
        assert timer.retry(job)


def test_a_retried_job_is_as_new_after_an_earlier_cancel_request(pair: Any) -> None:
    timer, clock = pair

    def what(ctx: JobContext) -> str:
        if ctx.attempt == 1:
            timer.add_job(Do("newer"), 5, key="k")
            raise ValueError("superseded")
        assert not ctx.cancel_requested
        return "done"

    job = timer.add_job(Stubborn(what), key="k")
    clock.advance(10)
    assert timer.retry(job)
    clock.advance(0)
    assert got(timer, job).result == "done"


# --- find ---


def filled(pair: Any) -> tuple[TimerManager, dict[str, ScheduledJob]]:
    timer, clock = pair
    jobs = {
        "failed": timer.add_job(Do(fail), key="F", tags=["mail"]),
        "done": timer.add_job(Do("Result"), key="D"),
        "waits": timer.add_job(Do("Needle in it"), 100, key="W", tags=["mail", "user:1"]),
        "paused": timer.add_job(Other("x"), 100, key="P"),
        "cancelled": timer.add_job(Other("y"), 100, key="C", tags=["user:1"]),
    }
    clock.advance(1)
    timer.pause("P")
    timer.cancel("C")
    return timer, jobs


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ["failed", "done", "waits", "paused", "cancelled"]),
        ({"state": "failed"}, ["failed"]),
        ({"state": State.SCHEDULED}, ["waits"]),
        ({"state": ["scheduled", State.PAUSED]}, ["waits", "paused"]),
        ({"state": {"succeeded", "cancelled"}}, ["done", "cancelled"]),
        ({"state": []}, []),
        ({"state": "running"}, []),
        ({"kind": "test_timer.other"}, ["paused", "cancelled"]),
        ({"kind": Other}, ["paused", "cancelled"]),
        ({"kind": "unknown"}, []),
        ({"tag": "mail"}, ["failed", "waits"]),
        ({"tag": "user:1", "state": "cancelled"}, ["cancelled"]),
        ({"tag": "user"}, []),
        ({"key": "D"}, ["done"]),
        ({"key": "d"}, []),
        ({"text": "needle"}, ["waits"]),
        ({"text": "ValueError: NO"}, ["failed"]),
        ({"kind": Do, "tag": "mail", "state": "scheduled", "key": "W", "text": "in it"}, ["waits"]),
        ({"limit": 2}, ["failed", "done"]),
        ({"limit": 10**9}, ["failed", "done", "waits", "paused", "cancelled"]),
    ],
    ids=str,
)
def test_find_gives_what_matches_all_that_is_given_in_order_of_id(pair: Any, query: dict[str, Any], expected: list[str]) -> None:
    timer, jobs = filled(pair)
    ids = {job.id: name for name, job in jobs.items()}
    assert [ids[job.id] for job in timer.find(**query)] == expected


def test_pages_follow_each_other_without_gap_or_double_while_jobs_end(pair: Any) -> None:
    timer, clock = pair
    jobs = [timer.add_job(Do(number), number % 50 + 1) for number in range(250)]
    seen: list[int] = []
    page = timer.find(limit=40)
    while page:
        seen += [job.id for job in page]
        clock.advance(7)
        page = timer.find(after=page[-1], limit=40)
    assert seen == [job.id for job in jobs]
    assert timer.find(after=jobs[-1].id) == []
    assert [job.id for job in timer.find(after=jobs[247].id)] == [jobs[248].id, jobs[249].id]


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ({"state": "done"}, ValueError),
        ({"state": 5}, ValueError),
        ({"state": ["scheduled", 5]}, ValueError),
        ({"limit": 0}, ValueError),
        ({"limit": -1}, ValueError),
        ({"limit": "5"}, (ValueError, TypeError)),
        ({"limit": True}, (ValueError, TypeError)),
        ({"after": "x"}, TypeError),
        ({"after": 1.5}, TypeError),
        ({"kind": int}, TypeError),
        ({"kind": 5}, TypeError),
        ({"tag": 5}, TypeError),
        ({"key": 5}, TypeError),
        ({"text": 5}, TypeError),
    ],
    ids=str,
)
def test_a_wrong_question_is_refused_by_name(timer: TimerManager, query: dict[str, Any], error: Any) -> None:
    timer.add_job(Do(), 5)
    (name,) = query
    with pytest.raises(error, match=name) as raised:
        timer.find(**query)
    assert isinstance(raised.value, UsageError)


@pytest.mark.parametrize("query", [{"kind": int}, {"kind": 5}, {"tag": 5}], ids=str)
def test_cancel_all_refuses_what_find_refuses(timer: TimerManager, query: dict[str, Any]) -> None:
    timer.add_job(Do(), 5)
    with pytest.raises(UsageError):
        timer.cancel_all(**query)
    assert timer.stats().pending == 1


# --- history and limits ---


def test_history_keeps_the_newest(manual: Any) -> None:
    timer, clock = manual(store={"keep": 10})
    jobs = [timer.add_job(Do(number)) for number in range(25)]
    waits = timer.add_job(Do(), 100)
    clock.advance(0)
    assert [job.id for job in timer.find(state="succeeded")] == [job.id for job in jobs[15:]]
    assert timer.get(jobs[0]) is None
    assert timer.get(waits) is not None
    assert timer.stats().succeeded == 25, "counted, whether kept or not"


def test_history_keeps_for_so_many_days(manual: Any) -> None:
    timer, clock = manual(store={"keep_days": 2})
    old = timer.add_job(Do("old"), key="k")
    clock.advance(86_400)
    new = timer.add_job(Do("new"))
    clock.advance(86_400 - 1)
    assert [job.id for job in timer.find()] == [old.id, new.id]
    clock.advance(2)
    assert [job.id for job in timer.find()] == [new.id]
    assert timer.get("k") is None


def test_without_history_jobs_run_and_are_counted(manual: Any) -> None:
    timer, clock = manual(store={"keep": 0})
    job = timer.add_job(Do())
    clock.advance(0)
    assert (timer.get(job), timer.stats().succeeded) == (None, 1)


def test_max_pending_refuses_the_one_too_many_and_accepts_after_a_cancel(manual: Any) -> None:
    """R47."""
    timer, clock = manual(max_pending=100)
    jobs = [timer.add_job(Do(number), 50, key=f"k{number}") for number in range(100)]
    with pytest.raises(TooManyPending, match="max_pending is 100") as raised:
        timer.add_job(Do(), 50)
    assert raised.value.limit == 100
    assert timer.stats().pending == 100
    with pytest.raises(TooManyPending):
        timer.add_job(Do())
    replaced = timer.add_job(Do("replaces"), 50, key="k7")
    assert timer.stats().pending == 100
    timer.cancel(jobs[3])
    timer.add_job(Do(), 50)
    timer.pause(replaced)
    with pytest.raises(TooManyPending):
        timer.add_job(Do(), 50)
    clock.advance(50)
    assert timer.stats().pending == 1
    assert timer.stats().succeeded == 99


def test_max_pending_refuses_many_as_a_whole(manual: Any) -> None:
    timer, _ = manual(max_pending=10)
    timer.add_jobs([(Do(), 5)] * 6)
    with pytest.raises(TooManyPending):
        timer.add_jobs([(Do(), 5)] * 5)
    assert timer.stats().pending == 6
    timer.add_jobs([(Do(), 5)] * 4)


def test_keep_adds_nothing_and_so_passes_max_pending(manual: Any) -> None:
    timer, _ = manual(max_pending=1)
    job = timer.add_job(Do(), 5, key="k")
    assert timer.add_job(Do(), 5, key="k", if_exists="keep").id == job.id
    with pytest.raises(JobExists):
        timer.add_job(Do(), 5, key="k", if_exists="error")


def test_a_refused_add_leaves_its_key_free(manual: Any) -> None:
    timer, _ = manual(max_pending=1)
    job = timer.add_job(Do(), 5)
    with pytest.raises(TooManyPending):
        timer.add_job(Do(), 5, key="k")
    assert timer.get("k") is None
    timer.cancel(job)
    timer.add_job(Do(), 5, key="k", if_exists="error")


def test_retries_pass_max_pending_since_they_were_accepted_before(manual: Any) -> None:
    timer, clock = manual(max_pending=1)
    job = timer.add_job(Stubborn(fail))
    clock.advance(0)
    assert got(timer, job).state is State.SCHEDULED
    with pytest.raises(TooManyPending):
        timer.add_job(Do())
    clock.advance(100)
    assert got(timer, job).attempt == 4


# --- inside a job ---


def test_every_call_is_legal_inside_a_job_but_wait(pair: Any) -> None:
    """R36: A adds B now and C later; all run; waiting inside would hold the worker that the other needs."""
    timer, clock = pair
    seen: dict[str, Any] = {}

    def what(ctx: JobContext) -> None:
        seen["b"] = timer.add_job(Do("b"))
        seen["c"] = timer.add_job(Do("c"), 1, key="c")
        seen["many"] = timer.add_jobs([(Do("d"), 2), (Do("e"), None)])
        seen["touch"] = timer.touch("c")
        seen["find"] = len(timer.find())
        seen["stats"] = timer.stats().running >= 1
        seen["health"] = timer.health().ok
        with pytest.raises(UsageError, match=r"wait\(\) inside a job"):
            timer.wait(seen["b"])
        with pytest.raises(UsageError, match=r"wait\(\) inside a job"):
            timer.wait(ctx.job_id, timeout=1)
        timer.start()

    job = timer.add_job(Do(what))
    clock.advance(5)
    assert got(timer, job).state is State.SUCCEEDED
    assert (seen["touch"], seen["find"], seen["stats"], seen["health"]) == (True, 5, True, True)
    assert [got(timer, added).result for added in (seen["b"], seen["c"], *seen["many"])] == ["b", "c", "d", "e"]


def test_shutdown_inside_a_job_returns_and_the_job_ends_as_it_ends(pair: Any) -> None:
    """R63."""
    timer, clock = pair
    answers: list[Any] = []

    def what(_: JobContext) -> str:
        answers.append(timer.shutdown())
        return "went on"

    job, later = timer.add_job(Do(what)), timer.add_job(Do("later"), 5)
    clock.advance(10)
    assert answers == [[job.id]]
    assert got(timer, job).result == "went on"
    assert got(timer, later).state is State.SCHEDULED
    timer.start()
    clock.advance(0)
    assert got(timer, later).result == "later"


def test_at_most_max_running_of_a_kind_run_and_a_cancelled_one_frees_the_way(manual: Any, opened: Any, wait_until: Any) -> None:
    timer = opened(workers={"threads": 4})
    gates = {number: threading.Event() for number in range(4)}
    started: list[int] = []

    def job(number: int) -> Single:
        def what(_: JobContext) -> None:
            started.append(number)
            gates[number].wait(20)

        return Single(what)

    jobs = [timer.add_job(job(number)) for number in range(4)]
    wait_until(lambda: started, what="the first")
    timer.wait(timer.add_job(Do()), 10)
    assert timer.cancel(jobs[1])
    timer.pause(jobs[2])
    gates[0].set()
    wait_until(lambda: started == [0, 3], what="the fourth, past the cancelled and the paused one")
    timer.resume(jobs[2])
    assert timer.stats().running == 1
    gates[3].set()
    wait_until(lambda: started == [0, 3, 2], what="the resumed one")
    gates[2].set()
    assert timer.wait(jobs[2], 5).state is State.SUCCEEDED


def test_a_run_that_ends_between_the_claim_and_the_holding_back_frees_the_way(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end finds nothing that is held yet; the claim must look again."""
    timer, clock = pair
    store, dispatcher = timer._life.store, timer.session.dispatcher
    timer.pause_all()
    first = timer.add_job(Single("first"))
    clock.advance(0)
    (row,) = store.claim(dispatcher.backlog.drain()).rows
    second = timer.add_job(Single("second"))
    claim = store.claim

    def ends_meanwhile(entries: Any) -> Any:
        answer = claim(entries)
        if answer.held and got(timer, first).state is State.RUNNING:
            dispatcher.done(row, 1, SUCCEEDED)
        return answer

    monkeypatch.setattr(store, "claim", ends_meanwhile)
    timer.resume_all()
    clock.advance(0)
    assert got(timer, first).state is State.SUCCEEDED
    assert got(timer, second).result == "second"


def test_max_running_holds_over_a_restart(opened: Any, wait_until: Any) -> None:
    timer = opened(workers={"threads": 4})
    gate = threading.Event()
    started: list[int] = []

    def what(number: int) -> Callable[[JobContext], None]:
        def run(_: JobContext) -> None:
            started.append(number)
            gate.wait(20)

        return run

    first = timer.add_job(Single(what(1)))
    wait_until(lambda: started == [1], what="the first")
    assert timer.shutdown(0) == [first.id]
    timer.start()
    second = timer.add_job(Single(what(2)))
    timer.wait(timer.add_job(Do()), 5)
    assert started == [1]
    gate.set()
    assert timer.wait(second, 5).state is State.SUCCEEDED


def test_a_resume_in_the_middle_of_a_pause_loses_nothing(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is paused, resumed and armed by another thread, and only then disarmed by the first one."""
    timer, clock = pair
    job = timer.add_job(Do("x"), 5)
    disarm = timer._life.disarm

    def late(row: Any) -> None:
        assert timer.resume(job)
        disarm(row)

    monkeypatch.setattr(timer._life, "disarm", late)
    assert timer.pause(job)
    monkeypatch.undo()
    clock.advance(5)
    assert got(timer, job).result == "x"


def test_many_jobs_of_which_another_thread_cancels_one_in_between_are_all_armed(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    timer, clock = pair
    store = timer._life.store
    add_many = store.add_many

    def busy(orders: Any) -> Any:
        answers = add_many(orders)
        assert timer.cancel("k1")
        assert timer.add_job(Do("new"), 5, key="k2").key == "k2"
        return answers

    monkeypatch.setattr(store, "add_many", busy)
    jobs = timer.add_jobs([{"job": Do(number), "delay": 5, "key": f"k{number}"} for number in range(5)])
    clock.advance(5)
    assert [got(timer, job).state.value for job in jobs] == ["succeeded", "cancelled", "cancelled", "succeeded", "succeeded"]
    assert got(timer, "k2").result == "new"


# --- errors in jobs ---


def test_a_failed_run_is_one_error_record_a_state_and_a_text(pair: Any, caplog: pytest.LogCaptureFixture) -> None:
    """R56."""
    timer, clock = pair
    job = timer.add_job(Do(fail), key="k")
    clock.advance(0)
    ended = got(timer, job)
    assert (ended.state, ended.error) == (State.FAILED, "ValueError: no")
    assert "Traceback" in (ended.trace or "")
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.exc_info


def test_a_base_exception_in_a_job_is_a_failed_run_and_the_next_job_runs(pair: Any) -> None:
    """R57."""
    timer, clock = pair

    class Hard(BaseException):
        pass

    def throw(error: BaseException) -> Callable[[JobContext], None]:
        def what(_: JobContext) -> None:
            raise error

        return what

    for error in (SystemExit(), KeyboardInterrupt(), GeneratorExit(), Hard()):
        timer.add_job(Do(throw(error)))
    fifth = timer.add_job(Do("fifth"))
    clock.advance(0)
    assert timer.stats().failed == 4
    assert got(timer, fifth).result == "fifth"


def test_a_coroutine_job_is_run_to_its_end(pair: Any) -> None:
    """R83."""
    timer, clock = pair
    job = timer.add_job(Awaited(), 5)
    clock.advance(5)
    assert (got(timer, job).state, got(timer, job).result) == (State.SUCCEEDED, 1)


def test_good_runs_and_idle_ticks_log_nothing_after_the_start_line(manual: Any, caplog: pytest.LogCaptureFixture) -> None:
    """R84."""
    caplog.set_level(logging.INFO)
    timer, clock = manual()
    start = list(caplog.records)
    assert [record.name for record in start] == ["jobwheel"]
    assert ("jobs are kept in memory and end with this process" in start[0].getMessage()) is (timer.settings.store.kind == "memory")
    for _ in range(60):
        clock.advance(1)
    for number in range(10):
        timer.add_job(Do(number))
    clock.advance(1)
    assert caplog.records == start


# --- wait ---


def test_wait_gives_the_last_picture_of_an_ended_job(pair: Any) -> None:
    timer, clock = pair
    job = timer.add_job(Do("x"), key="k")
    clock.advance(0)
    assert timer.wait(job).result == timer.wait("k", timeout=0).result == "x"


def test_wait_for_an_unknown_job_is_refused(timer: TimerManager) -> None:
    with pytest.raises(UsageError, match="no such job, or history has forgotten it"):
        timer.wait("nope")


def test_wait_has_a_time_limit_and_the_job_goes_on(opened: Any) -> None:
    timer = opened(workers={"threads": 1})
    go = threading.Event()
    job = timer.add_job(Do(lambda _: go.wait(20)))
    with pytest.raises(WaitTimeout, match="it goes on"):
        timer.wait(job, timeout=0.02)
    with pytest.raises(TimeoutError):
        timer.wait(job, timeout=timedelta(milliseconds=1))
    go.set()
    assert timer.wait(job, timeout=10).result is True


@pytest.mark.parametrize(("timeout", "error"), [(-1, BadValue), ("5", BadType), (True, BadType)])
def test_a_wrong_time_limit_of_wait_is_refused(pair: Any, timeout: Any, error: type[Exception]) -> None:
    timer, _ = pair
    job = timer.add_job(Do(), 5)
    with pytest.raises(error, match="timeout="):
        timer.wait(job, timeout)


def test_wait_without_limit_in_a_timer_that_runs_nothing_is_refused() -> None:
    timer = open_timer({"store": {"kind": "memory"}})
    job = timer.add_job(Do(), 5)
    with pytest.raises(UsageError, match="not started, so it would wait for ever"):
        timer.wait(job)
    with pytest.raises(WaitTimeout):
        timer.wait(job, timeout=0.01)
    timer.cancel(job)
    assert timer.wait(job).state is State.CANCELLED


@pytest.mark.parametrize("how", ["cancel", "replace"])
def test_wait_ends_at_once_when_the_job_is_cancelled(opened: Any, how: str) -> None:
    """It is told, and does not find out by its look once a second."""
    timer = opened(workers={"threads": 1})
    started = time.monotonic()
    for _ in range(20):
        job = timer.add_job(Do(), 1000, key="k")
        about_to, ended = threading.Event(), threading.Event()

        def wait(job: ScheduledJob = job, about_to: threading.Event = about_to, ended: threading.Event = ended) -> None:
            about_to.set()
            assert timer.wait(job).state is State.CANCELLED
            ended.set()

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        assert about_to.wait(10)
        thread.join(0.002)
        if how == "cancel":
            timer.cancel(job)
        else:
            timer.add_job(Do(), 1000, key="k")
        assert ended.wait(10)
    assert time.monotonic() - started < 10


def test_many_threads_may_wait_for_one_job(opened: Any) -> None:
    timer = opened(workers={"threads": 1})
    go = threading.Event()
    job = timer.add_job(Do(lambda _: go.wait(20) and "done"))
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(timer.wait(job, 20).result), daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    go.set()
    for thread in threads:
        thread.join(20)
    assert results == ["done"] * 8
    assert timer._waits.ids == {}


# --- stats and health ---


def test_stats_count_every_state(pair: Any) -> None:
    timer, _ = filled(pair)
    stats = timer.stats()
    assert (stats.scheduled, stats.paused, stats.running, stats.succeeded, stats.failed, stats.cancelled) == (1, 1, 0, 1, 1, 1)
    assert stats.pending == 2
    with pytest.raises(AttributeError):
        stats.failed = 5  # type: ignore[misc]


def test_a_new_timer_is_healthy_and_says_that_it_is_not_started() -> None:
    timer = open_timer({"store": {"kind": "memory"}})
    assert timer.health() == Health(started=False)
    assert timer.health().ok
    assert timer.stats() == Stats()
    assert not timer.started


def test_jobs_that_wait_in_a_timer_that_never_started_are_a_problem() -> None:
    timer = open_timer({"store": {"kind": "memory"}})
    timer.add_job(Do(), 5)
    health = timer.health()
    assert not health.ok
    assert "1 jobs wait in a timer that is not started" in health.problems[0]


def test_a_started_timer_is_healthy(pair: Any) -> None:
    timer, _ = pair
    assert timer.started
    assert timer.health() == Health(started=True)


def test_a_job_that_has_waited_long_for_a_worker_is_a_problem(opened: Any, wait_until: Any) -> None:
    """R87: the lateness is told, and it goes away."""
    timer = opened(workers={"threads": 1, "queue": 1})
    entered, go = threading.Event(), threading.Event()
    timer.add_job(Do(lambda _: entered.set() or go.wait(20)))
    assert entered.wait(10)
    past = datetime.now(UTC) - timedelta(seconds=20)
    jobs = [timer.add_job(Do(), at=past) for _ in range(5)]
    wait_until(lambda: timer.stats().overdue, what="an overdue job")
    health = timer.health()
    assert not health.ok
    assert "more workers.threads, or shorter jobs" in health.problems[0]
    assert 19 < health.lateness < 60
    go.set()
    timer.wait(jobs[-1], 10)
    wait_until(lambda: timer.health().ok, what="health")


# --- a store that fails ---


def test_a_store_that_fails_for_a_while_loses_nothing(pair: Any, caplog: pytest.LogCaptureFixture) -> None:
    """R58, R72: told once, tried again ever less often, each job runs once."""
    timer, clock = pair
    store = timer._life.store
    claim, until = store.claim, 20.0

    def failing(entries: Any) -> Any:
        if clock.elapsed() < until:
            raise OSError("no database")
        return claim(entries)

    store.claim = failing
    runs: list[int] = []
    for number in range(20):
        timer.add_job(Do(lambda _, number=number: runs.append(number)), number + 1)
    clock.advance(19)
    assert "the store fails: OSError: no database" in timer.health().problems
    assert runs == []
    clock.advance(40)
    assert sorted(runs) == list(range(20))
    assert timer.health().ok
    assert [record.name for record in caplog.records if record.levelno == logging.ERROR] == ["jobwheel.dispatcher"]


def test_a_verdict_that_the_store_cannot_take_is_written_later(pair: Any) -> None:
    timer, clock = pair
    store = timer._life.store
    settle, settle_many, until = store.settle, store.settle_many, 5.0

    def failing(move: Any) -> Any:
        def fails(*given: Any) -> Any:
            if clock.elapsed() < until:
                raise OSError("no database")
            return move(*given)

        return fails

    store.settle, store.settle_many = failing(settle), failing(settle_many)
    runs: list[int] = []
    job = timer.add_job(Do(lambda _: runs.append(1)))
    clock.advance(1)
    assert got(timer, job).state is State.RUNNING
    clock.advance(60)
    assert got(timer, job).state is State.SUCCEEDED
    assert runs == [1]


# --- one timer ---


def test_start_and_shutdown_are_idempotent_and_a_stopped_timer_starts_again(pair: Any) -> None:
    """R10."""
    timer, clock = pair
    timer.start()
    timer.start()
    assert timer.shutdown() == timer.shutdown() == []
    assert not timer.started
    timer.add_job(Do("later"), 5, key="k")
    clock.advance(10)
    timer.start()
    clock.advance(0)
    assert got(timer, "k").result == "later"


def test_entering_starts_and_leaving_stops() -> None:
    timer = open_timer({"store": {"kind": "memory"}, "workers": {"threads": 1}})
    with timer as entered:
        assert entered is timer
        assert timer.started
        job = timer.add_job(Do("x"))
        timer.wait(job, 5)
    assert not timer.started
    assert timer.cancel(job) is False


def test_leaving_by_an_error_stops_too_and_hides_nothing() -> None:
    timer = open_timer({"store": {"kind": "memory"}, "workers": {"threads": 1}})
    with pytest.raises(ZeroDivisionError), timer:
        raise ZeroDivisionError
    assert not timer.started


@pytest.mark.parametrize(("timeout", "error"), [(-1, BadValue), ("5", BadType), (float("nan"), BadValue)])
def test_a_wrong_time_limit_of_shutdown_is_refused_and_it_goes_on(pair: Any, timeout: Any, error: type[Exception]) -> None:
    timer, _ = pair
    with pytest.raises(error, match="timeout="):
        timer.shutdown(timeout)
    assert timer.started


def test_everything_but_running_works_on_a_timer_that_was_never_started() -> None:
    timer = open_timer({"store": {"kind": "memory"}})
    job = timer.add_job(Do(), 60, key="k", tags=["t"])
    timer.add_jobs([(Do(), 5)])
    assert timer.touch("k", 90)
    assert timer.reschedule("k", 100)
    assert timer.pause("k")
    assert timer.resume("k")
    assert timer.run_now("k")
    assert len(timer.find(tag="t")) == 1
    assert timer.get(job) is not None
    timer.pause_all()
    timer.resume_all()
    assert timer.cancel("k")
    assert timer.cancel_all() == 1
    assert timer.shutdown() == []


def test_a_copy_of_a_timer_is_the_timer(timer: TimerManager) -> None:
    """R81: dependency-injector copies what it is given."""
    assert copy.copy(timer) is timer
    assert copy.deepcopy(timer) is timer
    assert copy.deepcopy({"timer": timer})["timer"] is timer


def test_a_timer_cannot_be_pickled_and_says_what_to_do(timer: TimerManager) -> None:
    """R81."""
    with pytest.raises(TypeError, match=r"not picklable.*open_timer\(\)"):
        pickle.dumps(timer)


@pytest.mark.usefixtures("own_kinds")
def test_a_service_missing_for_a_kind_of_the_named_modules_is_refused_at_start() -> None:
    class NeedsMore(IJob, kind="test_timer.needs_more"):
        def run(self, *, stock: Any) -> None: ...

    timer = open_timer({"jobs": [__name__], "store": {"kind": "memory"}, "workers": {"threads": 1}})
    with pytest.raises(UsageError, match=r"test_timer.needs_more.*'stock'"):
        timer.start()
    assert not timer.started
    timer.shutdown()


@pytest.mark.parametrize("how", ["cancelled", "replaced", "ended", "cancelled while paused", "cancelled when due"])
def test_a_job_that_will_not_run_again_is_freed_at_once(pair: Any, how: str) -> None:
    """R46: whatever the wheel and history still know of it; without the garbage collector's help."""
    timer, clock = pair
    job = Do(lambda _: None)
    gone = weakref.ref(job)
    id = timer.add_job(job, 5, key="k").id
    del job
    gc.disable()
    try:
        if how == "replaced":
            timer.add_job(Do(), 5, key="k")
        elif how == "ended":
            clock.advance(5)
        else:
            if how == "cancelled while paused":
                timer.pause(id)
            elif how == "cancelled when due":
                timer.pause_all()
                clock.advance(5)
            assert timer.cancel(id)
        assert gone() is None
    finally:
        gc.enable()


def test_changes_to_a_listed_order_after_the_add_do_not_matter(pair: Any) -> None:
    """Tags are taken when given."""
    timer, clock = pair
    tags = ["a"]
    job = timer.add_job(Do(), 5, tags=tags)
    tags.append("b")
    assert got(timer, job).tags == ("a",)
    clock.advance(5)
    assert timer.find(tag="b") == []


def test_events_and_waits_leave_nothing_behind_in_a_timer(pair: Any) -> None:
    """After all jobs have ended, only history knows of them."""
    timer, clock = pair
    timer.on(events.Event, lambda _: None)
    for number in range(100):
        timer.add_job(Do(number), number % 7, key=f"k{number % 10}", tags=["t"])
    clock.advance(100)
    assert timer.stats().pending == timer.stats().running == 0
    health = timer.session.room.health()
    assert health.waiting == 0


def test_an_alarm_of_the_session_before_does_no_harm_in_the_next(opened: Any) -> None:
    """A restart may overtake it; it is its own dispatcher's, and never claimed as a job."""
    timer = opened()
    before = timer.session.dispatcher
    timer.shutdown()
    timer.start()
    before.poke()
    assert [timer.wait(timer.add_job(Do()), 10).state for _ in range(3)] == [State.SUCCEEDED] * 3
    assert timer.session.dispatcher.store_error is None
    assert before._alarms == 0
