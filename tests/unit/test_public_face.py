"""The names that users may rely on, and what importing them costs."""

import inspect
import subprocess
import sys
from types import ModuleType

import pytest

import jobwheel
from jobwheel import errors, events, testing

FACE = {
    "BadType", "BadValue", "CancelJob", "CapabilityError", "ChildDied", "Health", "IJob", "JobContext", "JobExists", "JobwheelError",
    "Retry", "RetryJob", "ScheduledJob", "SettingsError", "State", "Stats", "StoreError", "TimerManager", "TooManyPending", "UsageError",
    "WaitTimeout", "events", "open_timer",
    "cron", "every", "job", "preview", "Trigger",
}  # fmt: skip
DOOR = {
    "add_job", "add_jobs", "cancel", "cancel_all", "touch", "reschedule", "run_now", "retry", "pause", "resume", "pause_all", "resume_all",
    "get", "find", "wait", "stats", "health", "on", "on_error", "start", "shutdown", "started", "scope", "services", "session", "settings",
}  # fmt: skip
EVENTS = {
    "Event", "JobAdded", "JobStarted", "JobSucceeded", "JobFailed", "JobRetrying", "JobCancelled", "JobMissed", "JobInterrupted",
    "JobTimedOut", "JobSkipped",
}  # fmt: skip


def run(code: str) -> str:
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert answer.stderr == ""
    assert answer.returncode == 0
    return answer.stdout.strip()


def test_the_face_is_exactly_this_list() -> None:
    assert set(jobwheel.__all__) == FACE
    assert sorted(jobwheel.__all__) == list(jobwheel.__all__)


@pytest.mark.parametrize("name", sorted(FACE))
def test_each_name_is_there_and_has_a_docstring_of_its_own(name: str) -> None:
    thing = getattr(jobwheel, name)
    doc = (
        thing.__doc__ if isinstance(thing, ModuleType) else vars(thing).get("__doc__") if isinstance(thing, type) else inspect.getdoc(thing)
    )
    assert doc
    assert doc.strip()


def test_the_door_has_exactly_the_stated_methods_each_with_a_docstring() -> None:
    public = {name for name in dir(jobwheel.TimerManager) if not name.startswith("_")}
    assert public == DOOR - {"settings"}
    for name in public:
        assert inspect.getdoc(inspect.getattr_static(jobwheel.TimerManager, name)), name


def test_every_public_method_names_its_parameters_as_stated() -> None:
    def names(method: str) -> list[str]:
        return list(inspect.signature(getattr(jobwheel.TimerManager, method)).parameters)[1:]

    assert names("add_job") == ["job", "delay", "at", "trigger", "key", "if_exists", "priority", "tags", "max_wait", "after_commit"]
    assert names("find") == ["state", "kind", "tag", "key", "text", "after", "limit"]
    assert names("cancel_all") == ["tag", "kind"]
    assert names("reschedule") == ["ref", "delay", "at"]
    assert names("wait") == ["ref", "timeout"]
    assert names("shutdown") == ["timeout"]
    for method in ("cancel", "run_now", "retry", "pause", "resume", "get"):
        assert names(method) == ["ref"]


def test_events_are_exactly_these_each_with_a_docstring() -> None:
    found = {name: thing for name, thing in vars(events).items() if isinstance(thing, type) and issubclass(thing, events.Event)}
    assert set(found) == EVENTS
    assert all(vars(thing).get("__doc__") for thing in found.values())


def test_every_error_derives_from_jobwheel_error() -> None:
    found = [thing for thing in vars(errors).values() if isinstance(thing, type) and issubclass(thing, BaseException)]
    assert len(found) == 10
    assert all(issubclass(thing, errors.JobwheelError) for thing in found)


@pytest.mark.parametrize(
    ("error", "also"),
    [
        (errors.BadValue, ValueError),
        (errors.BadValue, errors.UsageError),
        (errors.BadType, TypeError),
        (errors.BadType, errors.UsageError),
        (errors.WaitTimeout, TimeoutError),
    ],
)
def test_errors_are_also_what_python_users_catch(error: type[Exception], also: type[Exception]) -> None:
    assert issubclass(error, also)


def test_testing_offers_exactly_the_manual_clock_and_timer() -> None:
    assert set(testing.__all__) == {"ManualClock", "manual_timer"}
    assert testing.manual_timer.__doc__
    assert testing.ManualClock.__doc__


def test_importing_jobwheel_pulls_in_no_optional_member() -> None:
    heavy = ["flask", "werkzeug", "dependency_injector", "apscheduler", "sqlite3", "_sqlite3", "sqlalchemy", "psycopg", "celery", "pytest"]
    assert run(f"import sys, jobwheel, jobwheel.testing; print([name for name in {heavy} if name in sys.modules])") == "[]"


def test_importing_jobwheel_starts_no_thread_and_prints_nothing() -> None:
    assert run("import jobwheel, threading; print(threading.active_count(), bool(jobwheel.open_timer))") == "1 True"


def test_making_a_timer_starts_no_thread() -> None:
    assert run("import jobwheel, threading; t = jobwheel.open_timer({}); print(threading.active_count(), t.started)") == "1 False"


def test_a_failed_job_is_seen_where_nobody_has_configured_logging() -> None:
    """A NullHandler on the package's logger would switch Python's last resort off, and with it the one ERROR of a failed job."""
    program = """
import sys
from jobwheel import IJob, open_timer
class Failing(IJob):
    def run(self):
        raise ValueError("seen")
class Good(IJob):
    def run(self):
        pass
with open_timer({"store": {"kind": "memory"}}) as timer:
    timer.wait(timer.add_job(Good()), 10)
    timer.wait(timer.add_job(Failing()), 10)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == ""
    assert done.stderr.startswith("job 2 (Failing) failed in attempt 1: ValueError: seen\nTraceback")
    assert done.stderr.count("Traceback") == 1


def test_the_version_is_that_of_the_package() -> None:
    assert jobwheel.__version__ == run("import importlib.metadata as m; print(m.version('jobwheel'))")
