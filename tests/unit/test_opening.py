"""The rules of `jobwheel.opening`, one test each."""

import gc
import importlib
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from flask import current_app

from jobwheel import IJob
from jobwheel.clock import SystemClock
from jobwheel.errors import BadType, SettingsError
from jobwheel.opening import find_member, find_parts, find_services, open_timer, read_settings
from jobwheel.services import as_services
from jobwheel.settings import MEMBERS, Settings, WorkerSettings
from jobwheel.timer import TimerManager

Module = Callable[[str, str], None]


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("JOBWHEEL_BACKEND", "JOBWHEEL_JOBS", "JOBWHEEL_CONFIG"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Module:
    """Writes a module that can be imported in this test and is forgotten after it."""
    monkeypatch.syspath_prepend(tmp_path)

    def _write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        # Set and taken away, so that monkeypatch takes it away again at the end.
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        del sys.modules[name]

    return _write


@pytest.fixture
def no_apscheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if "apscheduler" in name.split(".")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "apscheduler", None)


def lines_of(call: Callable[[], object]) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        call()
    return str(caught.value).splitlines()


def test_without_a_config_it_is_the_default_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBWHEEL_MAX_PENDING", "12")
    assert read_settings() == Settings(max_pending=12)


def test_a_path_is_a_file_under_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "wheel.yml"
    path.write_text("jobwheel: {max_pending: 1, exit_timeout: 2.0}", encoding="utf-8")
    monkeypatch.setenv("JOBWHEEL_MAX_PENDING", "12")
    assert read_settings(path) == read_settings(str(path)) == Settings(max_pending=12, exit_timeout=2.0)


def test_a_list_of_paths_is_read_in_order(tmp_path: Path) -> None:
    for name, text in (("a.yml", "{max_pending: 1, exit_timeout: 2.0}"), ("b.yml", "{max_pending: 3}")):
        (tmp_path / name).write_text(f"jobwheel: {text}", encoding="utf-8")
    assert read_settings([tmp_path / "a.yml", str(tmp_path / "b.yml")]) == Settings(max_pending=3, exit_timeout=2.0)


def test_a_mapping_and_a_settings_are_taken_without_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBWHEEL_MAX_PENDING", "12")
    assert read_settings({"exit_timeout": 2}) == Settings(exit_timeout=2.0)
    assert read_settings(Settings(exit_timeout=2.0)) == Settings(exit_timeout=2.0)


def test_a_settings_made_by_hand_is_checked() -> None:
    (line,) = lines_of(lambda: open_timer(Settings(workers=WorkerSettings(threads=-1))))
    assert line == "settings: workers.threads: -1 (int) will not do; it must be a whole number from 0 on"


@pytest.mark.parametrize("config", [5, b"wheel.yml", [], [5], object(), {"a.yml"}])
def test_any_other_config_is_refused_with_what_is_accepted(config: object) -> None:
    with pytest.raises(BadType, match="give a path, a list of paths, a mapping of settings, a Settings, or None"):
        open_timer(config)  # type: ignore[arg-type]


def test_it_gives_a_timer_of_its_own_each_time() -> None:
    first, second = open_timer({}), open_timer({})
    assert isinstance(first, TimerManager)
    assert isinstance(second, TimerManager)
    assert first is not second


def test_services_of_a_wrong_type_are_refused() -> None:
    with pytest.raises(BadType, match="offers no services by name"):
        open_timer({}, services=5)


def test_opening_starts_no_thread() -> None:
    before = set(threading.enumerate())
    timer = open_timer({})
    assert set(threading.enumerate()) == before
    assert timer.shutdown() == []


@pytest.mark.parametrize(("setting", "word"), [(setting, word) for setting, words in MEMBERS.items() for word in words])
def test_each_member_of_the_table_that_is_not_for_later_is_there(setting: str, word: str) -> None:
    if MEMBERS[setting][word].place:
        assert isinstance(find_member(setting, word), type)


def test_the_parts_are_the_chosen_members_on_the_machines_clock() -> None:
    parts = find_parts(Settings(backend="apscheduler"))
    assert isinstance(parts.clock, SystemClock)
    assert parts.store is find_member("store.kind", "sqlite")
    assert parts.room is find_member("backend", "apscheduler")
    assert parts.engine is find_member("workers.engine", "threads")


@pytest.mark.usefixtures("no_apscheduler")
def test_a_missing_package_is_told_with_what_to_install() -> None:
    (line,) = lines_of(lambda: open_timer({"backend": "apscheduler"}))
    assert line == "backend: 'apscheduler' needs the package apscheduler, which is not installed: pip install 'jobwheel[apscheduler]'"


@pytest.mark.usefixtures("no_apscheduler")
def test_what_is_not_chosen_is_not_imported() -> None:
    find_parts(Settings())
    assert "jobwheel.backends.apscheduler" not in sys.modules


def test_the_modules_of_jobs_are_imported(module: Module) -> None:
    module("shop_jobs_of_this_test", "loaded = True")
    open_timer({"jobs": ["shop_jobs_of_this_test"]})
    assert sys.modules["shop_jobs_of_this_test"].loaded


def test_a_module_that_does_not_exist_is_told_by_name() -> None:
    (line,) = lines_of(lambda: open_timer({"jobs": ["no_such.module"]}))
    assert line.startswith("jobs: there is no module 'no_such.module' (No module named 'no_such')")


def test_a_submodule_that_does_not_exist_is_told_by_name() -> None:
    (line,) = lines_of(lambda: open_timer({"jobs": ["json.jobs"]}))
    assert line.startswith("jobs: there is no module 'json.jobs' (No module named 'json.jobs')")


def test_a_module_whose_own_import_fails_is_told_with_the_cause(module: Module) -> None:
    module("broken_of_this_test", "import no_such_thing")
    (line,) = lines_of(lambda: open_timer({"jobs": ["broken_of_this_test"]}))
    assert line.startswith("jobs: importing 'broken_of_this_test' failed with ModuleNotFoundError: No module named 'no_such_thing'")


def test_a_module_that_exits_at_import_is_a_problem_and_not_the_end(module: Module) -> None:
    module("exiting_of_this_test", "import sys; sys.exit(0)")
    (line,) = lines_of(lambda: open_timer({"jobs": ["exiting_of_this_test"]}))
    assert line.startswith("jobs: importing 'exiting_of_this_test' failed with SystemExit: 0;")


@pytest.mark.usefixtures("no_apscheduler")
def test_all_that_cannot_be_imported_is_told_at_once_one_a_line(module: Module) -> None:
    module("raising_of_this_test", "raise ValueError('two\\nlines')")
    lines = lines_of(lambda: open_timer({"backend": "apscheduler", "jobs": ["raising_of_this_test", "no_such_module"]}))
    assert [line.partition(":")[0] for line in lines] == ["jobs", "jobs", "backend"]
    assert lines[0].startswith("jobs: importing 'raising_of_this_test' failed with ValueError: two lines;")


# --- the setting `services` ---


class Wanting(IJob, kind="opening.wanting"):
    def run(self, *, orders: object) -> object:
        return orders


FORMS = {
    "a mapping": "orders = 'the orders'\nit = {'orders': orders}",
    "a function": "def it(): return {'orders': 'the orders'}",
    "a function that gives a container": "class Box:\n    providers = {'orders': lambda: 'the orders'}\nit = Box",
    "a container": "class Box:\n    providers = {'orders': lambda: 'the orders'}\nit = Box()",
    "something inside": "class it:\n    it = {'orders': 'the orders'}",
    "a callable that tells no signature": "class it(dict):\n    def __new__(cls): return {'orders': 'the orders'}",
}


@pytest.mark.parametrize("form", FORMS)
def test_the_setting_services_names_what_jobs_may_ask_for(module: Module, form: str) -> None:
    module("wiring_of_this_test", FORMS[form])
    place = "wiring_of_this_test:it.it" if form == "something inside" else "wiring_of_this_test:it"
    services, scope = find_services(place)
    assert as_services(services).get("orders") == "the orders"
    assert scope is None
    with open_timer({"store": {"kind": "memory"}, "services": place}) as timer:
        assert timer.wait(timer.add_job(Wanting()), 10).result == "the orders"


def test_services_that_are_given_go_over_the_setting(module: Module) -> None:
    module("wiring_of_this_test", "raise ValueError('never imported')")
    settings = {"store": {"kind": "memory"}, "services": "wiring_of_this_test:it"}
    with open_timer(settings, services={"orders": "others"}) as timer:
        assert timer.wait(timer.add_job(Wanting()), 10).result == "others"


FAULTS = {
    "no such module": ("", "no_such.module:it", "services: there is no module 'no_such.module' (No module named 'no_such'); check"),
    "no such name": ("its = {}", "wiring_of_this_test:it", "services: the module 'wiring_of_this_test' has no 'it' ("),
    "no such name inside": ("it = {}", "wiring_of_this_test:it.them", "services: the module 'wiring_of_this_test' has no 'it.them' ("),
    "an import that fails": (
        "1 / 0",
        "wiring_of_this_test:it",
        "services: importing 'wiring_of_this_test' failed with ZeroDivisionError: ",
    ),
    "it raises": ("def it(): 1 / 0", "wiring_of_this_test:it", "services: 'wiring_of_this_test:it' raised ZeroDivisionError: division by"),
    "it exits": ("def it(): raise SystemExit(3)", "wiring_of_this_test:it", "services: 'wiring_of_this_test:it' raised SystemExit: 3; "),
    "it wants arguments": (
        "def it(app): ...",
        "wiring_of_this_test:it",
        "services: 'wiring_of_this_test:it' cannot be called without argu",
    ),
    "it is asynchronous": ("async def it(): ...", "wiring_of_this_test:it", "services: 'wiring_of_this_test:it' is asynchronous, and is"),
    "it gives nothing": (
        "def it(): ...",
        "wiring_of_this_test:it",
        "services: 'wiring_of_this_test:it' gives None, which offers no service",
    ),
    "it is a number": ("it = 5", "wiring_of_this_test:it", "services: 'wiring_of_this_test:it' gives 5, which offers no services by name"),
    "it asks for itself": (
        "def it():\n    import jobwheel\n    jobwheel.open_timer({'services': 'wiring_of_this_test:it'})",
        "wiring_of_this_test:it",
        "services: 'wiring_of_this_test:it' raised SettingsError: services: 'wiring_of_this_test:it' opens a timer while it is called, and",
    ),
    "an app without a timer": (
        "import flask\nit = flask.Flask('shop')",
        "wiring_of_this_test:it",
        "services: 'wiring_of_this_test:it' is an app without jobwheel: call JobWheel().init_app(app)",
    ),
    "an app whose timer cannot be made": (
        "import flask, jobwheel.flask as f\nit = flask.Flask('shop')\nit.config['JOBWHEEL'] = {'jobs': ['no_such_jobs']}\nf.JobWheel(it)",
        "wiring_of_this_test:it",
        "services: the timer of the app 'wiring_of_this_test:it' cannot be made: SettingsError: jobs: there is no module 'no_such_jobs'",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_with_the_services_is_told(module: Module, fault: str) -> None:
    text, place, told = FAULTS[fault]
    module("wiring_of_this_test", text)
    (line,) = lines_of(lambda: open_timer({"services": place}))
    assert line.startswith(told)


APP = """
import flask, jobwheel.flask

def create_app():
    app = flask.Flask("shop")
    app.config["GREETING"] = "good day"
    app.config["JOBWHEEL"] = {"store": {"kind": "memory"}, "services": "wiring_of_this_test:create_app"}
    app.config["JOBWHEEL_SERVICES"] = {"orders": "the app's orders"}
    jobwheel.flask.JobWheel(app, **given)
    return app

given = {}
"""


class Greeting(IJob, kind="opening.greeting"):
    def run(self, *, orders: object) -> str:
        return f"{current_app.config['GREETING']}: {orders}"


def test_of_an_app_the_services_and_the_context_are_taken_and_the_app_lives_on(module: Module) -> None:
    module("wiring_of_this_test", APP)
    with open_timer({"store": {"kind": "memory"}, "services": "wiring_of_this_test:create_app"}) as timer:
        gc.collect()
        assert timer.wait(timer.add_job(Greeting()), 10).result == "good day: the app's orders"


def test_of_an_app_with_a_timer_of_its_own_making_they_are_those_of_that_timer(module: Module) -> None:
    module("wiring_of_this_test", APP)
    wiring = importlib.import_module("wiring_of_this_test")
    wiring.given["timer"] = open_timer({"store": {"kind": "memory"}}, services={"orders": "the timer's orders"})
    with open_timer({"store": {"kind": "memory"}, "services": "wiring_of_this_test:create_app"}) as timer:
        assert timer.wait(timer.add_job(Greeting()), 10).result == "good day: the timer's orders"
