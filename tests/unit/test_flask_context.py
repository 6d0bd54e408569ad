"""In which app, and within what, a job of a Flask application runs: one test for each rule."""

import asyncio
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, current_app, g, has_app_context, has_request_context
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import text
from sqlalchemy.pool import QueuePool

from jobwheel import CancelJob, IJob, JobContext, Retry, State, TimerManager
from jobwheel.flask import JobWheel, current_timer
from jobwheel.testing import ManualClock, manual_timer

LIMIT = 20.0


def make_app(tag: str, timer: TimerManager | None = None) -> Flask:
    app = Flask(tag)
    app.config["TAG"] = tag
    app.config["JOBWHEEL"] = {"store": {"kind": "memory"}}
    JobWheel(app, timer)
    return app


def result(timer: TimerManager, job: IJob, clock: ManualClock | None = None) -> Any:
    """What `job` returns when it is run now."""
    added = timer.add_job(job)
    if clock is None:
        ended = timer.wait(added, LIMIT)
    else:
        clock.advance(0)
        ended = timer.get(added) or added
    assert ended.state is State.SUCCEEDED, ended.trace
    return ended.result


@dataclass
class SeeTag(IJob, kind="test_flask_context.see_tag"):
    def run(self) -> object:
        return current_app.config["TAG"] if has_app_context() else None


@dataclass
class MarkG(IJob, kind="test_flask_context.mark_g"):
    """Sees whether `g` is fresh, and whether there is a request."""

    def run(self) -> tuple[bool, bool]:
        fresh = "mark" not in g
        g.mark = 1
        return fresh, has_request_context()


def test_each_run_is_in_an_app_context_of_its_own_without_a_request() -> None:
    timer, clock = manual_timer()
    app = make_app("a", timer)
    assert [result(timer, MarkG(), clock) for _ in range(2)] == [(True, False)] * 2
    with app.app_context():
        g.mark = 0
        assert result(timer, MarkG(), clock) == (True, False)
        assert g.mark == 0
    assert not has_app_context()


def test_jobs_on_worker_threads_see_the_current_app_and_its_timer() -> None:
    app = make_app("a")
    with app.extensions["jobwheel"].timer as timer:
        assert result(timer, SeeTag()) == "a"
        assert result(timer, AddAnother()) == "added"
        assert timer.wait("another", LIMIT).result == "a"


@dataclass
class AddAnother(IJob, kind="test_flask_context.add_another"):
    def run(self) -> str:
        current_timer.add_job(SeeTag(), key="another")
        return "added"


# --- teardown ---


class ClosedError(Exception):
    """What jobs of these tests raise."""


@dataclass
class End(IJob, kind="test_flask_context.end", retry=Retry(attempts=2, retry_on=(KeyError,))):
    how: str

    def run(self) -> None:
        if self.how != "well":
            raise {"raises": ClosedError, "again": KeyError, "cancels": CancelJob, "exits": SystemExit}[self.how]


@pytest.mark.parametrize(
    ("how", "given"),
    [("well", [None]), ("raises", [ClosedError]), ("again", [KeyError, KeyError]), ("cancels", [CancelJob]), ("exits", [SystemExit])],
)
def test_teardown_functions_are_called_once_a_run_with_what_the_job_raised(how: str, given: list[type[BaseException] | None]) -> None:
    timer, clock = manual_timer()
    app = make_app("a", timer)
    seen: list[BaseException | None] = []
    app.teardown_appcontext(seen.append)
    timer.add_job(End(how))
    clock.advance(1)
    assert [None if error is None else type(error) for error in seen] == given


def test_a_teardown_function_that_raises_fails_the_run() -> None:
    timer, clock = manual_timer()
    app = make_app("a", timer)

    @app.teardown_appcontext
    def commit(_: BaseException | None) -> None:
        raise ClosedError("the connection is gone")

    timer.add_job(End("well"), key="one")
    clock.advance(0)
    job = timer.get("one")
    assert job is not None
    assert (job.state, job.error) == (State.FAILED, "ClosedError: the connection is gone")
    assert not has_app_context()


@dataclass
class UseSession(IJob, kind="test_flask_context.use_session"):
    number: int

    def run(self, *, db: SQLAlchemy) -> int:
        used = id(db.session())
        assert db.session.execute(text("select 1")).scalar() == 1
        if self.number % 5 == 0:
            raise ClosedError
        return used


def test_50_jobs_of_which_10_raise_leave_no_session_of_flask_sqlalchemy_open(tmp_path: Path) -> None:
    app = Flask(__name__)
    app.config["SQLALCHEMY_DATABASE_URI"] = f"sqlite:///{tmp_path / 'shop.db'}"
    app.config["SQLALCHEMY_ENGINE_OPTIONS"] = {"poolclass": QueuePool, "pool_size": 2, "max_overflow": 0, "pool_timeout": 5}
    app.config["JOBWHEEL"] = {"store": {"kind": "memory"}}
    app.config["JOBWHEEL_SERVICES"] = {"db": (db := SQLAlchemy(app))}
    JobWheel(app)
    with app.extensions["jobwheel"].timer as timer:
        added = timer.add_jobs([(UseSession(number), None) for number in range(50)])
        ended = [timer.wait(job, LIMIT) for job in added]
    assert {job.error for job in ended} == {None, "ClosedError: "}
    assert sum(job.state is State.FAILED for job in ended) == 10
    with app.app_context():
        pool = db.engine.pool
        assert isinstance(pool, QueuePool)
        assert pool.checkedout() == 0
        db.engine.dispose()


# --- which app ---


def test_of_two_apps_with_a_timer_each_every_job_sees_its_own() -> None:
    apps = [make_app("a"), make_app("b")]
    timers = [app.extensions["jobwheel"].timer for app in apps]
    for timer in timers:
        timer.start()
    assert [result(timer, SeeTag()) for timer in timers] == ["a", "b"]
    for timer in timers:
        timer.shutdown()


def test_jobs_of_a_timer_that_several_apps_share_run_in_the_last_one_that_lives() -> None:
    timer, clock = manual_timer()
    apps = [make_app(tag, timer) for tag in "abc"]
    with apps[0].app_context():
        assert result(timer, SeeTag(), clock) == "c"
    for left in ("b", "a", None):
        apps.pop()
        gc.collect()
        assert result(timer, SeeTag(), clock) == left
    keep = make_app("d", timer)
    assert result(timer, SeeTag(), clock) == keep.name


def test_a_scope_that_the_timer_had_stays_within_the_app_context() -> None:
    timer, clock = manual_timer()
    seen: list[object] = []

    @contextmanager
    def scope(context: JobContext) -> Iterator[None]:
        seen.append((context.attempt, current_app.name))
        yield
        seen.append("left")

    timer.scope = scope
    apps = [make_app(tag, timer) for tag in "ab"]
    assert result(timer, SeeTag(), clock) == apps[-1].name
    assert seen == [(1, "b"), "left"]


# --- coroutine jobs ---


@dataclass
class Meet(IJob, kind="test_flask_context.meet"):
    """Runs beside another one on the same thread, and sees its own `g` before and after."""

    mark: int

    async def run(self) -> tuple[object, object, int]:
        g.mark = self.mark
        await current_app.config["BARRIER"].wait()
        return current_app.name, g.mark, threading.get_ident()


def test_coroutine_jobs_that_run_at_once_have_an_app_context_each() -> None:
    app = make_app("a")
    app.config["BARRIER"] = asyncio.Barrier(2)
    left: list[object] = []
    app.teardown_appcontext(lambda error: left.append((error, g.mark)))
    with app.extensions["jobwheel"].timer as timer:
        added = timer.add_jobs([(Meet(mark), None) for mark in (1, 2)])
        first, second = (timer.wait(job, LIMIT).result for job in added)
    assert (first[:2], second[:2]) == (("a", 1), ("a", 2))
    assert first[2] == second[2]
    assert sorted(map(str, left)) == ["(None, 1)", "(None, 2)"]


@dataclass
class Sleep(IJob, kind="test_flask_context.sleep", timeout=0.05):
    async def run(self) -> None:
        await asyncio.sleep(LIMIT)


def test_a_coroutine_job_that_runs_out_of_time_leaves_its_app_context_with_the_cancellation() -> None:
    app = make_app("a")
    left: list[BaseException | None] = []
    app.teardown_appcontext(left.append)
    with app.extensions["jobwheel"].timer as timer:
        ended = timer.wait(timer.add_job(Sleep()), LIMIT)
    assert ended.state is State.FAILED
    assert [type(error) for error in left] == [asyncio.CancelledError]
