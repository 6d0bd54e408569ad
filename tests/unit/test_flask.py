"""The rules of `jobwheel.flask`: which timer an app has, what its config says of it, and how both end."""

import gc
import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from dependency_injector import containers, providers
from dependency_injector.wiring import Provide, inject
from flask import Flask, current_app

from jobwheel import BadType, IJob, JobContext, SettingsError, TimerManager, UsageError, open_timer
from jobwheel.container import JobwheelContainer
from jobwheel.flask import AppTimer, JobWheel, current_timer
from jobwheel.testing import manual_timer


@dataclass
class Note(IJob, kind="test_flask.note"):
    """Writes down where it ran."""

    text: str = "ran"

    def run(self, *, notes: list[str]) -> None:
        notes.append(self.text)


@dataclass
class Quiet(IJob, kind="test_flask.quiet"):
    def run(self) -> None:
        pass


@dataclass
class Attempt(IJob, kind="test_flask.attempt"):
    def run(self, ctx: JobContext) -> tuple[int, str | None, str]:
        return ctx.attempt, ctx.key, current_app.name


def make_app(timer: TimerManager | None = None, **config: Any) -> Flask:
    app = Flask(__name__)
    app.config.update(config)
    JobWheel().init_app(app, timer)
    app.add_url_rule("/", "page", lambda: "page")
    return app


def installed(app: Flask) -> AppTimer:
    state = app.extensions["jobwheel"]
    assert isinstance(state, AppTimer)
    return state


@pytest.fixture
def timer() -> Iterator[TimerManager]:
    """A real one, with threads once it is started."""
    timer = open_timer({"store": {"kind": "memory"}, "workers": {"threads": 2}})
    yield timer
    timer.shutdown()


# --- the timer of an app ---


def test_the_state_is_in_the_app_and_the_extension_keeps_no_app(timer: TimerManager) -> None:
    app = Flask(__name__)
    wheel = JobWheel(app, timer)
    assert installed(app).timer is timer
    assert not any(isinstance(value, Flask) for value in vars(wheel).values())


def test_one_extension_gives_each_app_its_own_timer() -> None:
    wheel = JobWheel()
    first, second = Flask("first"), Flask("second")
    wheel.init_app(first)
    wheel.init_app(second)
    with first.app_context():
        one = wheel.timer
    with second.app_context():
        assert wheel.timer is installed(second).timer is not one


def test_current_timer_stands_for_the_timer_of_the_current_app() -> None:
    notes: list[str] = []
    timer, clock = manual_timer(services={"notes": notes})
    app = make_app(timer)
    app.add_url_rule("/add", "add", lambda: str(current_timer.add_job(Note(), 5).id))
    answer = app.test_client().get("/add")
    clock.advance(5)
    assert (answer.status_code, notes) == (200, ["ran"])


def test_outside_of_an_app_context_there_is_no_current_timer() -> None:
    with pytest.raises(RuntimeError, match="application context"):
        current_timer.stats()
    with pytest.raises(RuntimeError, match="application context"):
        JobWheel.start()


def test_an_app_that_was_given_no_timer_is_told_how() -> None:
    app = Flask(__name__)
    with app.app_context(), pytest.raises(UsageError, match="init_app"):
        current_timer.stats()
    with pytest.raises(UsageError, match="the Flask app itself"):
        JobWheel.start(app.wsgi_app)  # type: ignore[arg-type]


def test_a_second_init_app_does_nothing_and_one_with_another_timer_is_refused(timer: TimerManager) -> None:
    app = make_app(timer)
    JobWheel().init_app(app)
    JobWheel().init_app(app, timer)
    assert installed(app).timer is timer
    with pytest.raises(UsageError, match="another timer already"):
        JobWheel(app, open_timer())


def test_what_is_no_timer_is_refused_with_what_to_give() -> None:
    with pytest.raises(BadType, match="call it"):
        JobWheel().init_app(Flask(__name__), JobwheelContainer().timer)  # type: ignore[arg-type]
    with pytest.raises(BadType, match=r"open_timer\(\)"):
        JobWheel(timer="wheel.yml")  # type: ignore[arg-type]


def test_no_route_is_added_and_no_secret_key_is_needed(timer: TimerManager) -> None:
    app = Flask(__name__)
    routes = list(app.url_map.iter_rules())
    JobWheel(app, timer)
    assert list(app.url_map.iter_rules()) == routes
    assert app.test_client().get("/nowhere").status_code == 404
    assert (app.secret_key, app.before_request_funcs, app.teardown_appcontext_funcs) == (None, {}, [])


# --- made to the app's config ---


def test_without_a_timer_one_is_made_to_the_apps_config(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("jobwheel: {max_pending: 5, workers: {threads: 3}}")
    (tmp_path / "b.yml").write_text("jobwheel: {max_pending: 6}")
    paths = [tmp_path / "a.yml", str(tmp_path / "b.yml")]
    assert installed(make_app()).timer.settings.max_pending == 0
    assert installed(make_app(JOBWHEEL={"max_pending": 4})).timer.settings.max_pending == 4
    assert installed(make_app(JOBWHEEL_CONFIG=paths[0])).timer.settings.max_pending == 5
    assert installed(make_app(JOBWHEEL_CONFIG=paths)).timer.settings.max_pending == 6
    assert installed(make_app(JOBWHEEL_CONFIG={"max_pending": 7}, JOBWHEEL="")).timer.settings.max_pending == 7


def test_flask_s_own_environment_reaches_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASK_JOBWHEEL__max_pending", "9")
    monkeypatch.setenv("FLASK_JOBWHEEL_AUTOSTART", "never")
    app = Flask(__name__)
    app.config.from_prefixed_env()
    JobWheel(app)
    assert (installed(app).timer.settings.max_pending, installed(app).options.autostart) == (9, "never")


def test_job_modules_are_imported_at_the_first_use_of_the_timer() -> None:
    app = make_app(JOBWHEEL={"jobs": ["no_such_module"]})
    with pytest.raises(SettingsError, match="no_such_module"):
        _ = installed(app).timer


def test_services_of_the_config_are_given_to_jobs() -> None:
    notes: list[str] = []
    app = make_app(JOBWHEEL={"store": {"kind": "memory"}, "workers": {"threads": 1}}, JOBWHEEL_SERVICES={"notes": notes})
    with installed(app).timer as timer:
        timer.wait(timer.add_job(Note()), 10)
    assert notes == ["ran"]


def test_every_problem_of_the_config_is_told_at_once_by_init_app() -> None:
    with pytest.raises(SettingsError) as caught:
        make_app(JOBWHEEL={"backend": "weel"}, JOBWHEEL_AUTOSTRT=False, JOBWHEEL_BACKEND="wheel", JOBWHEEL_AUTOSTART="maybe")
    told = str(caught.value)
    for words in ("mean 'JOBWHEEL_AUTOSTART'", "JOBWHEEL_BACKEND: that is a name for the environment", "'maybe' will", "mean wheel"):
        assert words in told
    with pytest.raises(SettingsError, match="both set"):
        make_app(JOBWHEEL={}, JOBWHEEL_CONFIG="wheel.yml")
    with pytest.raises(SettingsError, match="offers no services"):
        make_app(JOBWHEEL_SERVICES=7)
    with pytest.raises(SettingsError, match="will not do"):
        make_app(JOBWHEEL_AUTOSTART=[])


def test_the_settings_of_a_given_timer_are_its_own_affair(timer: TimerManager, monkeypatch: pytest.MonkeyPatch) -> None:
    make_app(timer, JOBWHEEL_CONFIG="a file that the application reads", JOBWHEEL={"backend": "weel"})
    monkeypatch.setenv("JOBWHEEL_SERVICE_HOST", "10.0.0.1")
    make_app(timer, **{key: value for key, value in os.environ.items() if key.isupper()})


# --- with a container ---


class Shop(containers.DeclarativeContainer):
    __self__ = providers.Self()
    notes: providers.Object[list[str]] = providers.Object([])
    jobwheel = providers.Container(JobwheelContainer, config=providers.Object({"workers": {"threads": 1}}), services=__self__)
    timer = jobwheel.timer


@inject
def order(text: str, timer: TimerManager = Provide[Shop.timer]) -> str:
    assert timer is installed(current_app).timer
    return str(timer.add_job(Note(text), 60, key=text).id)


def test_views_get_the_timer_injected_and_jobs_get_services_of_the_same_container() -> None:
    shop = Shop()
    timer, clock = manual_timer(services=shop)
    shop.timer.override(timer)
    shop.wire(modules=[__name__], warn_unresolved=True)
    try:
        app = make_app(shop.timer())
        app.add_url_rule("/orders/<text>", "order", order)
        assert app.test_client().get("/orders/first").status_code == 200
        with shop.notes.override(replaced := ["an override is seen"]):
            clock.advance(60)
        assert (replaced, shop.notes()) == (["an override is seen", "first"], [])
    finally:
        shop.unwire()


# --- the life of apps ---


def test_an_app_is_not_kept_alive_by_its_timer() -> None:
    timer, _ = manual_timer()
    kept = weakref.ref(make_app(timer))
    gc.collect()
    assert kept() is None


def test_a_timer_that_was_made_to_an_apps_config_ends_with_the_app(wait_until: Callable[..., None]) -> None:
    app = make_app(JOBWHEEL={"store": {"kind": "memory"}, "workers": {"threads": 1}})
    app.test_client().get("/")
    timer = installed(app).timer
    timer.wait(timer.add_job(Quiet()), 10)
    assert timer.started
    del app
    gc.collect()
    wait_until(lambda: not timer.started)


def test_a_job_context_is_given_to_jobs_of_an_app_too() -> None:
    timer, clock = manual_timer()
    app = make_app(timer)
    timer.add_job(Attempt(), key="attempt")
    clock.advance(0)
    job = timer.get("attempt")
    assert (job.result if job else None) == (1, "attempt", app.name)
