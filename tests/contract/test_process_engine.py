"""What is promised of runs in child processes: real children, started by whole timers. The jobs are in `isolated_jobs`."""

import importlib
import json
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from isolated_jobs import (
    Act,
    ActAsync,
    Brief,
    Here,
    Isolated,
    Limited,
    LimitedAsync,
    LimitedTwice,
    OnceOnly,
    Punctual,
    Rich,
    Scoped,
    Served,
    Sleeper,
    Twice,
    TwiceIfItDied,
    double,
    inside,
    scope,
)
from test_engines import Bench, Recorder

from jobwheel import BadType, IJob, ScheduledJob, State, TimerManager, UsageError, events, every, open_timer
from jobwheel.engines import children as nursery
from jobwheel.engines import isolated as talking
from jobwheel.engines.child import ChildRunner
from jobwheel.engines.wire import Begun, Channel, Line, Over, over_of, verdict_of
from jobwheel.isolation import check_isolated
from jobwheel.job import context_of
from jobwheel.row import Row
from jobwheel.runner import Runner
from jobwheel.services import as_services
from jobwheel.settings import Settings
from jobwheel.verdict import SUCCEEDED, Again, Cancelled, Failed, Interrupted, Missed, Succeeded

LIMIT = 30.0

pytestmark = pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs POSIX")


@pytest.fixture
def timer(opened: Any) -> TimerManager:
    """One whose engine runs every job in a child process."""
    made: TimerManager = opened(workers={"engine": "processes", "threads": 2})
    return made


@pytest.fixture(autouse=True)
def _no_child_is_left() -> Iterator[None]:
    yield
    alive = [child.pid for child in nursery._living if not child.has_ended()]
    assert not alive, f"children are left: {alive}"


@pytest.fixture
def run(timer: TimerManager) -> Callable[[IJob], ScheduledJob]:
    return lambda job: timer.wait(timer.add_job(job), LIMIT)


def alive(pid: int) -> bool:
    """As a process that runs: one that has ended and that nobody asked for is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# --- where a run is ---


def test_all_kinds_run_in_a_child_under_the_engine_processes(run: Any) -> None:
    pid = run(Act("pid")).result
    assert pid != os.getpid()
    assert run(Isolated("pid")).result == pid
    assert run(ActAsync("pid")).result == pid, "a coroutine job too"


def test_a_kind_may_stay_in_a_thread_under_the_engine_processes(run: Any) -> None:
    assert run(Here("pid")).result == os.getpid()


def test_one_kind_may_be_isolated_under_the_engine_threads(opened: Any) -> None:
    timer = opened(workers={"threads": 2})
    assert timer.wait(timer.add_job(Isolated("pid")), LIMIT).result != os.getpid()
    assert timer.wait(timer.add_job(Act("pid")), LIMIT).result == os.getpid()
    assert timer.wait(timer.add_job(ActAsync("pid")), LIMIT).result == os.getpid()


def test_a_function_that_is_a_job_runs_in_a_child_too(run: Any) -> None:
    result, pid = run(double(21)).result
    assert result == 42
    assert pid != os.getpid()


def test_a_child_is_used_again_and_replaced_after_so_many_runs(opened: Any) -> None:
    timer = opened(workers={"engine": "processes", "threads": 1, "recycle": 3})
    pids = [timer.wait(timer.add_job(Act("pid")), LIMIT).result for _ in range(7)]
    assert len(set(pids[:3])) == len(set(pids[3:6])) == 1
    assert len(set(pids)) == 3


def test_there_are_no_more_children_than_workers(opened: Any, wait_until: Any) -> None:
    timer = opened(workers={"engine": "processes", "threads": 4})
    jobs = [timer.add_job(Act("pid")) for _ in range(200)]
    pids = {timer.wait(job, LIMIT).result for job in jobs}
    assert 1 <= len(pids) <= 4
    assert timer.session.engine.health().children == len(pids)
    assert timer.stats().succeeded == 200


def test_a_child_has_no_file_of_its_parent_but_the_output(run: Any, tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as secret:
        os.set_inheritable(secret.fileno(), True)
        files = run(Act("files")).result
    assert not [name for name in files if "secret" in name]
    assert files.count("/dev/null") >= 1
    assert len([name for name in files if name.startswith("socket:")]) == 1 + sum(
        os.readlink(f"/proc/self/fd/{n}").startswith("socket:") for n in (1, 2)
    )
    assert run(Act("stdin")).result == ""


# --- what goes there and comes back ---


def test_the_result_is_what_json_makes_of_it(run: Any) -> None:
    assert run(Act("echo", {"a": [1, None, "ü", 2.5]})).result == {"a": [1, None, "ü", 2.5]}
    assert run(Act("tuple")).result == [1, "2026-01-02T00:00:00Z"]
    assert run(Act("object")).result.startswith("<object object at ")
    assert run(Act("echo")).result is None


def test_the_data_arrives_as_it_was(run: Any) -> None:
    job = Rich(datetime(2026, 3, 29, 2, 30, tzinfo=UTC), b"\0\xff", [(1, "one"), (2, "zwei ü")])
    assert run(job).result == repr(job)


def test_the_context_tells_the_same_as_in_a_thread(timer: TimerManager) -> None:
    at = datetime.now(UTC) - timedelta(seconds=100)
    job = timer.wait(timer.add_job(Act("told"), at=at, key="k"), LIMIT)
    told = job.result
    assert (told["job_id"], told["key"], told["attempt"], told["cancel"]) == (job.id, "k", 1, False)
    assert told["scheduled_for"] == pytest.approx(at.timestamp(), abs=0.001)
    assert 100 <= told["lateness"] < 100 + LIMIT
    assert told["lateness"] == pytest.approx(job.lateness, abs=0.05)
    assert job.started is not None
    assert told["started_at"] == pytest.approx(job.started.timestamp(), abs=0.05)
    assert told["started_at"] <= told["now"] + 0.01


def test_a_second_attempt_knows_what_it_was_scheduled_for(timer: TimerManager) -> None:
    at = datetime.now(UTC)
    job = timer.wait(timer.add_job(Act("again"), at=at), LIMIT)
    assert (job.result, job.attempt) == (2, 2)


def test_log_and_progress_are_seen_while_it_runs(timer: TimerManager, tmp_path: Path, wait_until: Any) -> None:
    go = tmp_path / "go"
    job = timer.add_job(Act("say", str(go)))
    wait_until(lambda: timer.get(job).log == ("first",), LIMIT, what="its first line")
    wait_until(lambda: timer.get(job).progress == (1, 3, "one"), what="its progress")
    assert timer.get(job).state is State.RUNNING
    assert timer.get(job).started is not None
    go.touch()
    ended = timer.wait(job, LIMIT)
    assert (ended.log, ended.progress) == (("first", "last"), (3, 3, "three"))


def test_much_chatter_is_kept_to_its_newest_lines(run: Any) -> None:
    job = run(Act("chatter", 3000))
    assert (len(job.log), job.log[-1], job.progress) == (200, "line 2999", (2999, 3000, ""))


def test_progress_that_comes_too_fast_is_told_a_moment_later(timer: TimerManager, tmp_path: Path, wait_until: Any) -> None:
    job = timer.add_job(Act("fast_then_waits", str(tmp_path / "go")))
    wait_until(lambda: timer.get(job).progress == (99, 100, ""), LIMIT, what="the last progress")
    (tmp_path / "go").touch()
    timer.wait(job, LIMIT)


def test_each_run_of_a_recurring_job_has_its_own_attempts_and_moment(timer: TimerManager, wait_until: Any) -> None:
    job = timer.add_job(Act("told"), trigger=every(0.2), key="k")
    moments = []
    for runs in (1, 2):
        wait_until(lambda runs=runs: timer.get(job).runs >= runs, LIMIT, what="its run")
        result = timer.get(job).result
        assert result["attempt"] == 1
        moments.append(result["scheduled_for"])
    assert moments[1] - moments[0] == pytest.approx(0.2 * round((moments[1] - moments[0]) / 0.2), abs=0.01)
    timer.cancel(job)


def test_a_job_too_late_is_not_begun(timer: TimerManager) -> None:
    job = timer.wait(timer.add_job(Punctual("pid"), at=datetime.now(UTC) - timedelta(seconds=10)), LIMIT)
    assert (job.state, job.started) == (State.MISSED, None)
    assert timer.session is not None
    assert timer.session.engine.health().children == 0


def test_data_without_a_stored_form_is_refused_at_the_add(timer: TimerManager) -> None:
    """In memory too: it has to go to the child."""
    with pytest.raises(BadType, match=r"isolated\.act\.arg cannot be stored"):
        timer.add_job(Act("echo", object()))
    assert timer.find() == []


def test_data_that_lost_its_stored_form_since_fails_the_run(timer: TimerManager) -> None:
    act = Act("echo", 1)
    job = timer.add_job(act, 0.05)
    act.arg = object()
    ended = timer.wait(job, LIMIT)
    assert ended.state is State.FAILED
    assert "isolated.act.arg cannot be stored" in (ended.error or "")


def test_by_hand_an_isolated_job_runs_in_the_calling_thread(manual: Any) -> None:
    """`jobwheel.testing` starts no process, and needs no setting for services."""
    timer, clock = manual(services={"shop": "by hand"})
    jobs = [timer.add_job(Isolated("pid")), timer.add_job(Served())]
    clock.advance(0)
    assert [timer.get(job).result for job in jobs] == [os.getpid(), ("by hand", "nothing")]


# --- what a run raises ---


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("ValueError", "ValueError: no such order"),
        ("SystemExit", "SystemExit: 1"),
        ("KeyboardInterrupt", "KeyboardInterrupt: "),
        ("GeneratorExit", "GeneratorExit: "),
        ("Hard", "Hard: own"),
        ("Unspeakable", "Unspeakable"),
        ("MemoryError", "MemoryError: "),
        ("CancelledError", "CancelledError: "),
        ("RecursionError", "RecursionError: "),
        ("surrogate", "ValueError: file \udc80"),
    ],
)
@pytest.mark.parametrize("kind", [Act, ActAsync])
def test_whatever_a_run_raises_is_a_failed_run_and_the_next_one_runs(run: Any, kind: Any, what: str, error: str) -> None:
    job = run(kind("raise", what))
    assert (job.state, job.error) == (State.FAILED, error)
    assert "isolated_jobs.py" in job.trace
    assert run(Act("echo", "next")).result == "next"


def test_cancel_job_ends_it_as_cancelled(run: Any) -> None:
    job = run(Act("raise", "CancelJob"))
    assert (job.state, job.error) == (State.CANCELLED, "enough")


def test_the_policy_judges_what_was_really_raised(run: Any) -> None:
    assert (run(Twice("first_fails")).result, run(Twice("raise", "ValueError")).attempt) == (2, 2)
    assert run(TwiceIfItDied("raise", "ValueError")).attempt == 1
    assert run(Twice("raise", "Hard")).attempt == 1


def test_a_failed_run_is_logged_here_once_with_its_traceback_and_not_in_the_child(
    timer: TimerManager, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    job = timer.wait(timer.add_job(Twice("raise", "ValueError")), LIMIT)
    records = [record for record in caplog.records if record.name == "jobwheel.run"]
    assert [record.levelno for record in records] == [logging.WARNING, logging.ERROR]
    text = records[1].getMessage()
    assert text.startswith(
        f"job {job.id} (isolated.twice) failed in attempt 2: ValueError: no such order\nTraceback (most recent call last):"
    )
    assert text.endswith("ValueError: no such order")
    assert "ValueError" not in capfd.readouterr().err


def test_what_a_job_prints_comes_out_where_the_parents_output_does(run: Any, capfd: pytest.CaptureFixture[str]) -> None:
    run(Act("print", "printed in the child"))
    assert capfd.readouterr().out == "printed in the child\n"


# --- a child that dies ---


@pytest.mark.parametrize(
    ("what", "arg", "how"),
    [
        ("exit", 3, "ended with exit code 3"),
        ("exit", 0, "ended with exit code 0"),
        ("crash", None, "was ended by signal 11 (SIGSEGV)"),
        ("die", int(signal.SIGABRT), "was ended by signal 6 (SIGABRT)"),
        ("die", int(signal.SIGKILL), "was ended by signal 9 (SIGKILL)"),
    ],
)
def test_a_crash_costs_one_run_and_no_more(run: Any, what: str, arg: Any, how: str) -> None:
    """R60, of one process: the web process never notices."""
    first = run(Act("pid")).result
    job = run(Act(what, arg))
    assert job.state is State.FAILED
    assert job.error.startswith(f"ChildDied: the child process {how} while it ran the job")
    assert ("memory" in job.error) == (arg == signal.SIGKILL)
    assert run(Act("pid")).result not in {first, os.getpid()}


def test_one_crash_leaves_the_runs_beside_it_alone(timer: TimerManager, tmp_path: Path, wait_until: Any) -> None:
    beside = timer.add_job(Act("say", str(tmp_path / "go")))
    wait_until(lambda: timer.get(beside).log, LIMIT, what="the run beside")
    assert timer.wait(timer.add_job(Act("exit", 1)), LIMIT).state is State.FAILED
    assert timer.get(beside).state is State.RUNNING
    (tmp_path / "go").touch()
    assert timer.wait(beside, LIMIT).state is State.SUCCEEDED


def test_a_crash_is_a_failed_attempt_under_the_kinds_policy(run: Any) -> None:
    for kind in (Twice, TwiceIfItDied):
        job = run(kind("first_dies"))
        assert (job.state, job.result) == (State.SUCCEEDED, 2)


def test_a_kind_that_may_run_only_once_is_interrupted_by_a_crash(timer: TimerManager, wait_until: Any) -> None:
    told: list[Any] = []
    timer.on(events.JobInterrupted, told.append)
    job = timer.wait(timer.add_job(OnceOnly("first_dies")), LIMIT)
    assert (job.state, job.attempt) == (State.INTERRUPTED, 1)
    assert "exit code 7" in (job.error or "")
    wait_until(lambda: told, what="the event")


@pytest.mark.parametrize("what", ["eat", "eat_crumbs"])
def test_a_job_that_eats_memory_fails_at_the_limit_and_the_next_one_gets_a_fresh_child(opened: Any, what: str) -> None:
    timer = opened(workers={"engine": "processes", "threads": 1, "memory": 200})
    first = timer.wait(timer.add_job(Act("pid")), LIMIT).result
    job = timer.wait(timer.add_job(Act(what)), LIMIT)
    assert job.state is State.FAILED
    assert job.error.startswith(("MemoryError", "ChildDied")), "not every interpreter survives that it has no room left at all"
    after = timer.wait(timer.add_job(Act("pid")), LIMIT)
    assert after.state is State.SUCCEEDED
    assert after.result != first


def test_an_idle_child_that_has_died_costs_no_run(timer: TimerManager, run: Any) -> None:
    pid = run(Act("pid")).result
    os.kill(pid, signal.SIGKILL)
    job = run(OnceOnly("pid"))
    assert (job.state, job.attempt) == (State.SUCCEEDED, 1)
    assert job.result != pid


def test_an_idle_child_that_dies_as_it_is_given_a_job_costs_no_run(timer: TimerManager, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its death is not seen before the job was sent."""
    pid = run(Act("pid")).result
    os.kill(pid, signal.SIGKILL)
    monkeypatch.setattr(nursery.Child, "has_ended", lambda child: False)
    job = run(OnceOnly("pid"))
    assert (job.state, job.attempt) == (State.SUCCEEDED, 1)
    assert job.result != pid
    monkeypatch.undo()


def test_a_child_that_an_earlier_run_has_left_hanging_costs_no_other_run(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talking, "AT_ONCE", 0.2)
    pid = run(Act("pid")).result
    os.kill(pid, signal.SIGSTOP)
    job = run(Act("pid"))
    assert (job.state, job.attempt) == (State.SUCCEEDED, 1)
    assert job.result != pid
    assert not alive(pid)


def test_a_death_is_seen_though_a_process_that_the_job_forked_holds_the_line(run: Any, wait_until: Any) -> None:
    job = run(Act("fork_and_exit"))
    assert job.state is State.FAILED
    assert "exit code 5" in job.error
    wait_until(lambda: not alive(int(job.log[0])), what="the end of what it had forked")


def test_a_fork_that_comes_to_the_end_of_the_job_ends_there(run: Any) -> None:
    """Or the job would wait for it for ever."""
    job = run(Act("fork_and_return"))
    assert (job.state, job.result) == (State.SUCCEEDED, 0)


def test_what_a_thread_of_an_ended_run_tells_is_not_the_next_runs(opened: Any) -> None:
    timer = opened(workers={"engine": "processes", "threads": 1})
    assert timer.wait(timer.add_job(Act("leave_a_thread")), LIMIT).state is State.SUCCEEDED
    job = timer.wait(timer.add_job(Act("call_the_thread")), LIMIT)
    assert (job.state, job.log, job.progress) == (State.SUCCEEDED, ("mine",), None)


def test_a_job_that_closes_the_line_is_told_so(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nursery, "SOON", 0.05)
    job = run(Act("close_all"))
    assert job.state is State.FAILED
    assert "closed its line to this process while it ran the job" in job.error


# --- time limits ---


@pytest.mark.parametrize("what", ["hang", "freeze", "never_silent"])
def test_a_run_past_its_limit_is_killed_and_the_next_job_runs(opened: Any, what: str, wait_until: Any) -> None:
    """R52: native code that holds the GIL for ever too; nothing hangs here afterwards."""
    timer = opened(workers={"engine": "processes", "threads": 1})
    pid = timer.wait(timer.add_job(Act("pid")), LIMIT).result
    late: list[Any] = []
    timer.on(events.JobTimedOut, late.append)
    began = time.monotonic()
    job = timer.wait(timer.add_job(Limited(what)), LIMIT)
    seconds = time.monotonic() - began
    assert (job.state, job.timed_out) == (State.FAILED, True)
    assert job.error == "TimedOut: still running after its timeout of 0.3 seconds"
    assert 0.3 <= seconds < 5
    assert not alive(pid)
    assert timer.wait(timer.add_job(Act("echo", "next")), LIMIT).result == "next"
    wait_until(lambda: len(late) == 1, what="the event")
    assert (timer.stats().hung, timer.health().ok) == (0, True)


def test_what_a_job_has_started_is_killed_with_it(run: Any, tmp_path: Path, wait_until: Any) -> None:
    file = tmp_path / "pid"
    assert run(Limited("program", str(file))).timed_out
    wait_until(lambda: not alive(int(file.read_text())), what="the program's end")


def test_a_run_past_its_limit_gets_its_next_attempt(run: Any) -> None:
    job = run(LimitedTwice("hang"))
    assert (job.state, job.attempt, job.timed_out) == (State.FAILED, 2, True)


def test_a_run_that_looks_at_cancel_requested_may_end_by_itself_at_its_limit(run: Any) -> None:
    pid = run(Act("pid")).result
    job = run(Limited("heed"))
    assert (job.state, job.timed_out, job.log) == (State.FAILED, True, ("waits", "heeded"))
    assert run(Act("pid")).result == pid, "there was nothing to kill"


def test_a_coroutine_past_its_limit_is_cancelled(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "ended"
    job = run(Sleeper(str(file)))
    assert (job.state, job.timed_out, file.read_text()) == (State.FAILED, True, "cancelled")


def test_a_coroutine_that_does_not_heed_is_killed(opened: Any) -> None:
    timer = opened(workers={"engine": "processes", "threads": 1})
    began = time.monotonic()
    job = timer.wait(timer.add_job(LimitedAsync("hang")), LIMIT)
    assert (job.state, job.timed_out) == (State.FAILED, True)
    assert time.monotonic() - began < 10


def test_a_limit_counts_from_the_beginning_of_the_run_and_not_of_its_process(opened: Any) -> None:
    """A fresh child is started for it, which takes longer than the limit."""
    timer = opened(workers={"engine": "processes", "threads": 1})
    assert timer.wait(timer.add_job(Brief("pid")), LIMIT).state is State.SUCCEEDED


# --- cancel ---


def test_cancel_reaches_a_running_job(timer: TimerManager, wait_until: Any) -> None:
    """R41."""
    job = timer.add_job(Act("heed"))
    wait_until(lambda: timer.get(job).log, LIMIT, what="its first line")
    assert not timer.cancel(job)
    ended = timer.wait(job, LIMIT)
    assert (ended.state, ended.log) == (State.CANCELLED, ("waits", "heeded"))


def test_cancel_of_one_run_is_not_seen_by_the_next(opened: Any, wait_until: Any) -> None:
    timer = opened(workers={"engine": "processes", "threads": 1})
    job = timer.add_job(Act("heed"))
    wait_until(lambda: timer.get(job).log, LIMIT, what="its first line")
    timer.cancel(job)
    timer.wait(job, LIMIT)
    assert timer.wait(timer.add_job(Act("told")), LIMIT).result["cancel"] is False


# --- services ---


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[Callable[[str | None], TimerManager]]:
    """`served(place)`: a started timer whose setting `services` is that."""
    timers: list[TimerManager] = []

    def make(place: str | None) -> TimerManager:
        timer = open_timer({"store": {"kind": "memory"}, "workers": {"threads": 1}, "services": place}, services={})
        timers.append(timer)
        timer.start()
        return timer

    yield make
    for timer in timers:
        timer.shutdown(0)


@pytest.mark.parametrize("place", ["services", "make_services", "Container"])
def test_services_are_found_by_the_setting(served: Any, place: str) -> None:
    timer = served(f"isolated_jobs:{place}")
    assert timer.wait(timer.add_job(Served()), LIMIT).result == ["the shop", "nothing"]


def test_a_service_that_is_not_there_fails_the_run_with_its_name(served: Any) -> None:
    timer = served("isolated_jobs:no_services")
    job = timer.wait(timer.add_job(Served()), LIMIT)
    assert job.state is State.FAILED
    assert "no service is called 'shop'" in job.error


@pytest.mark.parametrize(("place", "why"), [("isolated_jobs:fail", "the shop is closed"), ("isolated_jobs:nowhere", "nowhere")])
def test_services_that_cannot_be_made_fail_the_run_with_the_reason(served: Any, place: str, why: str) -> None:
    timer = served(place)
    job = timer.wait(timer.add_job(Served()), LIMIT)
    assert job.state is State.FAILED
    assert job.error.startswith("NotReady: the child process could not begin: ")
    assert why in job.error
    assert "Traceback" in job.trace


APP = """
from flask import Flask, current_app
from jobwheel import IJob
from jobwheel.flask import JobWheel

class WhichApp(IJob, kind="isolated_shop.which_app", isolation="process"):
    def run(self, *, till):
        return current_app.name, till

def create_app():
    app = Flask("the shop")
    app.config.update(JOBWHEEL={"store": {"kind": "memory"}}, JOBWHEEL_SERVICES={"till": "the till"})
    JobWheel(app)
    JobWheel.start(app)  # starts nothing in a child
    return app
"""


def test_the_services_may_be_those_of_a_flask_app_in_whose_context_the_run_is(
    served: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_kinds: None
) -> None:
    (tmp_path / "isolated_shop.py").write_text(APP)
    monkeypatch.syspath_prepend(tmp_path)
    shop = importlib.import_module("isolated_shop")
    timer = served("isolated_shop:create_app")
    assert timer.wait(timer.add_job(shop.WhichApp()), LIMIT).result == ["the shop", "the till"]


def test_a_run_is_within_the_scope_that_came_with_the_services(monkeypatch: pytest.MonkeyPatch) -> None:
    """White box: the child's own side, here."""
    told: list[Any] = []
    runner = ChildRunner({"shop": 1}, scope, told.append)
    row = Row(Scoped(), 0.0, None, None, 0, None, Scoped.jobwheel_kind)
    row.id, row.attempt = 7, 1
    assert runner.run(row) == Succeeded([7])
    assert not inside


# --- shutdown ---


def test_shutdown_ends_idle_children_at_once(timer: TimerManager, run: Any) -> None:
    pid = run(Act("pid")).result
    assert timer.shutdown(0) == []
    assert not alive(pid)


def test_shutdown_waits_for_a_run_in_a_child(timer: TimerManager, wait_until: Any) -> None:
    job = timer.add_job(Act("spend", 0.3))
    wait_until(lambda: timer.get(job).started, LIMIT, what="its start")
    assert timer.shutdown(LIMIT) == []
    assert timer.get(job).state is State.SUCCEEDED


def test_shutdown_names_what_still_runs_in_a_child_and_that_is_settled_when_it_ends(
    timer: TimerManager, tmp_path: Path, wait_until: Any
) -> None:
    job = timer.add_job(Act("say", str(tmp_path / "go")))
    wait_until(lambda: timer.get(job).log, LIMIT, what="its first line")
    assert timer.shutdown(0.05) == [job.id]
    assert timer.get(job).state is State.RUNNING
    (tmp_path / "go").touch()
    assert timer.wait(job, LIMIT).log == ("first", "last")
    wait_until(lambda: not nursery._living, what="the end of its child")


def test_a_timer_may_be_started_again(timer: TimerManager, run: Any) -> None:
    first = run(Act("pid")).result
    timer.shutdown()
    timer.start()
    assert run(Act("pid")).result != first


# --- no child to be had ---


def test_a_child_that_cannot_be_started_is_told_and_tried_again(
    timer: TimerManager, run: Any, monkeypatch: pytest.MonkeyPatch, wait_until: Any
) -> None:
    left = [2]
    start = subprocess.Popen

    def scarce(*args: Any, **kwargs: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return start(*args, **kwargs)

    monkeypatch.setattr(nursery, "PAUSES", (0.01, 0.01))
    monkeypatch.setattr(nursery.subprocess, "Popen", scarce)
    assert run(Act("echo", "x")).result == "x"
    left[0] = 1000
    timer.shutdown()
    timer.start()
    job = run(Act("echo", "x"))
    assert job.state is State.FAILED
    assert "NotReady: no child process could be started" in job.error
    assert "ulimit" in timer.health().problems[0]
    left[0] = 0
    assert run(Act("echo", "x")).result == "x"
    assert timer.health().ok
    assert timer.session.engine.health().children == 1


def test_a_child_that_does_not_get_ready_is_ended_and_told(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talking, "PREPARE", 0.001)
    job = run(Act("pid"))
    assert job.state is State.FAILED
    assert "NotReady: the child process was not ready within 0.001 s: importing isolated_jobs" in job.error


# --- classes that no child can import ---


def test_a_class_inside_a_function_is_told(run: Any, own_kinds: None) -> None:
    class Inner(IJob, isolation="process"):
        def run(self) -> None: ...

    with pytest.raises(UsageError, match="defined inside a function"):
        check_isolated(Inner.jobwheel_kind, Settings())


def test_a_class_that_needs_services_is_refused_without_the_setting() -> None:
    with pytest.raises(UsageError, match=r"run needs 'shop'.*set services:"):
        check_isolated(Served.jobwheel_kind, Settings())
    check_isolated(Served.jobwheel_kind, Settings(services="shop.wiring:services"))
    check_isolated(Act.jobwheel_kind, Settings())


# --- the engine's contract, as far as it is not whole timers that show it ---


def test_each_submitted_row_is_run_once_and_told_once(wait_until: Any) -> None:
    bench = Bench("processes")
    rows = [bench.row(Act("echo", number)) for number in range(50)]
    bench.submit(*rows)
    wait_until(lambda: len(bench.desk.settled) == 50, LIMIT, what="50 verdicts")
    assert sorted((id, attempt, verdict.result) for id, attempt, verdict in bench.desk.settled) == [
        (row.id, 1, number or 0) for number, row in enumerate(rows)
    ]
    assert bench.desk.pumps > 0
    assert bench.engine.stop(LIMIT) == []


def test_what_was_submitted_and_not_started_is_withdrawn_once(wait_until: Any, tmp_path: Path) -> None:
    bench = Bench("processes", threads=1)
    first = bench.row(Act("say", str(tmp_path / "go")))
    bench.submit(first)
    wait_until(lambda: first.run is not None and first.run.lines, LIMIT, what="the first to run")
    rows = [bench.row(Act("pid")) for _ in range(5)]
    bench.submit(*rows)
    health = bench.engine.health()
    assert (health.threads, health.busy, health.queued, health.children, health.problem) == (1, 1, 5, 1, None)
    assert [row.id for row in bench.engine.withdraw()] == [row.id for row in rows]
    assert bench.engine.stop(0) == [first]
    (tmp_path / "go").touch()
    assert bench.engine.stop(LIMIT) == []
    assert [id for id, _, _ in bench.desk.settled] == [first.id]


# --- the wire ---


def test_a_message_may_come_in_pieces_and_several_at_once() -> None:
    here, there = socket.socketpair()
    channel = Channel(here)
    with here, there:
        Channel(there).send(Line("ü" * 20_000))
        assert channel.receive(0) == Line("ü" * 20_000)
        there.sendall(b"\0\0")
        assert channel.receive(0) is None
        text = json.dumps({"type": "Line", "text": "x"}).encode()
        there.sendall(len(text).to_bytes(4, "big")[2:] + text + len(text).to_bytes(4, "big") + text)
        assert [channel.receive(0), channel.receive(0), channel.receive(0)] == [Line("x"), Line("x"), None]
        there.close()
        with pytest.raises(EOFError):
            channel.receive(None)


@pytest.mark.parametrize(
    "verdict",
    [
        SUCCEEDED,
        Succeeded(5),
        Failed("x", "trace"),
        Again(2.5, "x", "trace"),
        Again(0.0),
        Cancelled(),
        Cancelled("x"),
        Missed("x"),
        Interrupted("x"),
    ],
    ids=repr,
)
def test_a_verdict_arrives_as_it_was(verdict: Any) -> None:
    here, there = socket.socketpair()
    with here, there:
        Channel(there).send(over_of(verdict, 1.5, None, False))
        message = Channel(here).receive(0)
    assert isinstance(message, Over)
    assert verdict_of(message) == verdict
    assert message.started == 1.5


class Told:
    """Stands for a child that has said all this before anybody listened."""

    runs = 0

    def __init__(self, *messages: Any) -> None:
        self.messages = list(messages)
        self.kinds: set[str] = set()
        self.channel = self

    def send(self, message: Any) -> None:
        self.sent = message

    def receive(self, timeout: float) -> Any:
        return self.messages.pop(0) if self.messages else None

    def has_ended(self) -> bool:
        return False


def talk_at(moments: list[float], row: Row, *messages: Any) -> Any:
    """White box: a talk whose clock gives these moments, the last one for ever."""

    class Clock:
        wall = staticmethod(lambda: 0.0)

        def elapsed(self) -> float:
            return moments.pop(0) if len(moments) > 1 else moments[0]

    desk = Recorder()
    runner = Runner(Clock(), as_services(None))
    return talking._Talk(Clock(), runner, desk, row, context_of(row), Told(*messages))  # type: ignore[arg-type]


def limited_row() -> Row:
    row = Row(Limited("pid"), 0.0, None, None, 0, None, Limited.jobwheel_kind)
    row.id, row.attempt = 1, 1
    return row


def test_what_a_child_said_in_time_counts_though_its_parent_was_held_up() -> None:
    """The process stood still for an hour: the run had begun and ended long before its limit."""
    row = limited_row()
    talk = talk_at([0.0, 3600.0], row, Begun(0.1), Over("succeeded", 0.1, result=5))
    assert talk.verdict(talking._start_of(row)) == Succeeded(5)


def test_a_child_that_has_begun_in_time_is_not_unready_for_a_parent_that_was_held_up() -> None:
    """Its own limit counts from there."""
    row = limited_row()
    talk = talk_at([0.0, 3600.0], row, Begun(3599.9))
    talk._child.messages += [None, Over("succeeded", 3599.9, result=5)]
    assert talk.verdict(talking._start_of(row)) == Succeeded(5)
    assert not talk.late
