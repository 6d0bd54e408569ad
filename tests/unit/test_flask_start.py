"""The rules of `jobwheel.flask`: when the timer of an app starts, and in which processes it never does."""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import click
import pytest
from flask import Flask
from flask.cli import AppGroup, run_command

from jobwheel import IJob, State, TimerManager, UsageError, open_timer
from jobwheel.flask import JobWheel, current_timer
from jobwheel.flask.process import is_flask_command
from jobwheel.testing import manual_timer


@dataclass
class Note(IJob, kind="test_flask_start.note"):
    """Writes down where it ran."""

    text: str = "ran"

    def run(self, *, notes: list[str]) -> None:
        notes.append(self.text)


@dataclass
class Quiet(IJob, kind="test_flask_start.quiet"):
    def run(self) -> None:
        pass


def make_app(timer: TimerManager | None = None, **config: Any) -> Flask:
    app = Flask(__name__)
    app.config.update(config)
    JobWheel().init_app(app, timer)
    app.add_url_rule("/", "page", lambda: "page")
    return app


def tickers() -> int:
    return sum(thread.name == "jobwheel-ticker" for thread in threading.enumerate())


def at_once(work: Callable[[], Any], threads: int = 16) -> list[Any]:
    """Results of `work` in that many threads, which all begin it together."""
    barrier = threading.Barrier(threads)

    def begin() -> Any:
        barrier.wait(10)
        return work()

    with ThreadPoolExecutor(threads) as pool:
        return [future.result() for future in [pool.submit(begin) for _ in range(threads)]]


@pytest.fixture
def timer() -> Iterator[TimerManager]:
    """A real one, with threads once it is started."""
    timer = open_timer({"store": {"kind": "memory"}, "workers": {"threads": 2}})
    yield timer
    timer.shutdown()


@pytest.fixture
def as_reloader_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "werkzeug._reloader", ModuleType("werkzeug._reloader"))
    monkeypatch.delenv("WERKZEUG_RUN_MAIN", raising=False)


# --- when it starts ---


def test_nothing_starts_at_import_or_in_init_app(timer: TimerManager) -> None:
    before = threading.active_count()
    app, own = make_app(timer), make_app(JOBWHEEL={"store": {"kind": "memory"}})
    with app.app_context(), own.test_request_context():
        current_timer.add_job(Quiet())
    assert not timer.started
    assert not own.extensions["jobwheel"].timer.started
    assert threading.active_count() == before
    code = "import threading, sys, jobwheel; assert 'flask' not in sys.modules; import jobwheel.flask; assert threading.active_count() == 1"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_threads_that_need_the_timer_at_once_are_given_one() -> None:
    app = make_app()
    assert len({id(timer) for timer in at_once(lambda: app.extensions["jobwheel"].timer)}) == 1


def test_16_first_requests_at_once_start_it_exactly_once(timer: TimerManager, caplog: pytest.LogCaptureFixture) -> None:
    app = make_app(timer)
    before = tickers()
    with caplog.at_level(logging.INFO, "jobwheel"):
        answers = at_once(lambda: (app.test_client().get("/").status_code, timer.started))
    assert answers == [(200, True)] * 16
    assert sum(message.startswith("jobwheel started") for message in caplog.messages) == 1
    assert tickers() == before + 1
    timer.wait(timer.add_job(Quiet()), 10)


def test_a_request_that_is_answered_before_any_view_starts_it_too(timer: TimerManager) -> None:
    app = Flask(__name__)
    app.before_request(lambda: ("who are you?", 401))
    JobWheel(app, timer)
    assert app.test_client().get("/").status_code == 401
    assert timer.started


@pytest.mark.parametrize("word", [False, "never"])
def test_autostart_never_leaves_it_to_start(timer: TimerManager, word: object) -> None:
    app = make_app(timer, JOBWHEEL_AUTOSTART=word)
    app.test_client().get("/")
    assert not timer.started
    assert JobWheel.start(app)
    assert timer.started


def test_start_works_through_the_app_the_extension_and_the_current_app(timer: TimerManager) -> None:
    app = make_app(timer)
    for start in (app.extensions["jobwheel"].start, lambda: JobWheel.start(app), lambda: JobWheel().start(app)):
        assert start()
        assert timer.started
        timer.shutdown()
    with app.app_context():
        assert JobWheel.start()


@pytest.mark.parametrize("start", [lambda app: app.test_client().get("/"), JobWheel.start])
def test_what_was_shut_down_is_not_started_again_by_the_next_request(timer: TimerManager, start: Callable[[Flask], object]) -> None:
    app = make_app(timer)
    start(app)
    assert timer.started
    timer.shutdown()
    app.test_client().get("/")
    assert not timer.started
    assert JobWheel.start(app)


def test_three_apps_made_with_one_timer_start_it_once_and_again_after_a_shutdown(timer: TimerManager) -> None:
    before = tickers()
    wheel = JobWheel(timer=timer)
    apps = [Flask(f"app{number}") for number in range(3)]
    for app in apps:
        wheel.init_app(app)
        wheel.start(app)
    assert tickers() == before + 1
    timer.shutdown()
    wheel.start(apps[0])
    assert timer.wait(timer.add_job(Quiet(), 0.01), 10).state is State.SUCCEEDED


def test_a_timer_that_cannot_start_is_an_error_of_each_request_and_not_a_silent_one() -> None:
    app = make_app(JOBWHEEL={"jobs": [__name__]}, TESTING=True)
    for _ in range(2):
        with pytest.raises(UsageError, match="notes"):
            app.test_client().get("/")


def test_requests_within_a_flask_command_start_nothing(timer: TimerManager) -> None:
    app = make_app(timer)
    app.cli.command("look")(lambda: click.echo(app.test_client().get("/").text))
    assert app.test_cli_runner().invoke(args=["look"]).output == "page\n"
    assert not timer.started
    app.test_client().get("/")
    assert timer.started


def test_flask_run_and_programs_of_the_users_own_are_no_flask_commands() -> None:
    assert not is_flask_command()
    flask = click.Context(AppGroup("flask"))
    with click.Context(run_command, parent=flask).scope():
        assert not is_flask_command()
    with click.Context(click.Command("look"), parent=flask).scope():
        assert is_flask_command()
    with click.Context(click.Command("serve"), parent=click.Context(click.Group("shop"))).scope():
        assert not is_flask_command()


# --- the reloader's parent ---


@pytest.mark.usefixtures("as_reloader_parent")
def test_in_the_reloaders_parent_it_stays_silent_and_says_why(timer: TimerManager, caplog: pytest.LogCaptureFixture) -> None:
    app = make_app(timer)
    with caplog.at_level(logging.INFO, "jobwheel"):
        assert not JobWheel.start(app)
    app.test_client().get("/")
    assert not timer.started
    assert ["parent of Werkzeug's reloader" in message for message in caplog.messages] == [True]


@pytest.mark.usefixtures("as_reloader_parent")
def test_in_the_reloaders_child_it_starts(timer: TimerManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WERKZEUG_RUN_MAIN", "true")
    make_app(timer).test_client().get("/")
    assert timer.started


@pytest.mark.usefixtures("as_reloader_parent")
def test_autostart_always_overrides_what_looks_like_the_reloaders_parent(timer: TimerManager) -> None:
    make_app(timer, JOBWHEEL_AUTOSTART="always").test_client().get("/")
    assert timer.wait(timer.add_job(Quiet()), 10).state is State.SUCCEEDED


def test_a_debugging_server_is_not_mistaken_for_the_reloaders_parent(timer: TimerManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASK_DEBUG", "1")
    app = make_app(timer)
    app.debug = True
    app.test_client().get("/")
    assert timer.started


def test_a_timer_that_was_started_before_its_process_became_the_reloaders_parent_runs_nothing(request: pytest.FixtureRequest) -> None:
    ran: list[str] = []
    timer, clock = manual_timer(services={"notes": ran})
    app = make_app(timer)
    job = timer.add_job(Note(), 1)
    request.getfixturevalue("as_reloader_parent")
    clock.advance(10)
    assert (ran, timer.started) == ([], False)
    waiting = timer.get(job)
    assert waiting is not None
    assert waiting.state is State.SCHEDULED
    assert app is not None


# --- several processes ---


def test_several_workers_with_jobs_in_memory_are_warned_of_once(timer: TimerManager, caplog: pytest.LogCaptureFixture) -> None:
    app = make_app(timer)
    for _ in range(2):
        app.test_client().get("/", multiprocess=True)
    assert [record.levelname for record in caplog.records if "several worker processes" in record.message] == ["WARNING"]


def test_one_worker_is_not_warned_of(timer: TimerManager, caplog: pytest.LogCaptureFixture) -> None:
    make_app(timer).test_client().get("/")
    assert "worker processes" not in caplog.text


def test_a_copy_of_a_started_timer_behind_pythons_back_is_told_by_an_error(
    timer: TimerManager, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(timer)
    JobWheel.start(app)
    own = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: own + 1)  # what a fork by uWSGI looks like from inside
    app.test_client().get("/")
    app.test_client().get("/")
    assert [record.levelname for record in caplog.records if "py-call-osafterfork" in record.message] == ["ERROR"]
