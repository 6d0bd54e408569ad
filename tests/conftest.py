"""What all tests share: timers that are always stopped and kept in memory unless told, waiting with a limit, and two rules: no thread may
fail in silence, and no test may leave a file where the tests are run.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobwheel import TimerManager, open_timer
from jobwheel import kind as kinds
from jobwheel.testing import ManualClock, manual_timer

if TYPE_CHECKING:
    from web_example.container import ShopContainer

WaitUntil = Callable[..., None]
ManualTimer = Callable[..., tuple[TimerManager, ManualClock]]
OpenedTimer = Callable[..., TimerManager]

PATIENCE = 10.0
"""Seconds after which a wait has failed: far above what a busy machine needs, far below the time limit of a test."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "inner_errors: the test makes a thread of jobwheel meet an error on purpose")
    config.addinivalue_line("filterwarnings", "error::pytest.PytestUnhandledThreadExceptionWarning")
    config.addinivalue_line("filterwarnings", "error::pytest.PytestUnraisableExceptionWarning")


def _wait_until(condition: Callable[[], Any], limit: float = PATIENCE, *, what: str = "") -> None:
    """Returns once `condition()` is true, or fails with what it waited for."""
    pause = threading.Event()
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {limit:g} s in vain for: {what or getattr(condition, '__doc__', None) or condition}")
        pause.wait(0.002)


@pytest.fixture(scope="session")
def wait_until() -> WaitUntil:
    """`wait_until(condition, limit, what="...")`."""
    return _wait_until


@pytest.fixture
def manual() -> Iterator[ManualTimer]:
    """`manual(services=..., **settings)` gives a manual timer and its clock; all are shut down at the end."""
    timers: list[TimerManager] = []

    def make(**settings: Any) -> tuple[TimerManager, ManualClock]:
        timer, clock = manual_timer(**settings)
        timers.append(timer)
        return timer, clock

    yield make
    for timer in timers:
        timer.shutdown(0)


@pytest.fixture
def opened() -> Iterator[OpenedTimer]:
    """`opened(services=..., start=True, **settings)` gives a timer with threads, in memory unless told; all are shut down at the end."""
    timers: list[TimerManager] = []

    def make(*, services: object = None, start: bool = True, **settings: Any) -> TimerManager:
        timer = open_timer(settings | {"store": {"kind": "memory"} | settings.get("store", {})}, services=services)
        timers.append(timer)
        if start:
            timer.start()
        return timer

    yield make
    for timer in timers:
        timer.shutdown(0)


class Scene:
    """The example shop without its pages: its services with the times of `config/default.yml`, on a clock that is moved by hand."""

    def __init__(self, container: "ShopContainer", timer: TimerManager, clock: ManualClock) -> None:
        self.shop = container
        self.timer = timer
        self.clock = clock

    def waiting(self) -> list[str | None]:
        """The keys of all jobs that wait, in the order in which they were added."""
        return [job.key for job in self.timer.find(state=("scheduled", "paused"))]

    def result(self, key: str) -> Any:
        """What the latest job of that key returned."""
        job = self.timer.get(key)
        assert job is not None
        return job.result


@pytest.fixture(params=["sqlite", "memory"])
def scene(tmp_path: Path, manual: ManualTimer, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A `Scene`, once on each store."""
    from web_example.container import fill  # here, since it registers the shop's jobs, of which other tests know nothing
    from web_example.settings import ShopSettings

    container = fill(ShopSettings(database=str(tmp_path / "shop.db")), "unused")
    kept = {"kind": request.param, "path": str(tmp_path / "jobs.db")}
    timer, clock = manual(services=container, jobs=["web_example.jobs", "web_example.scenarios"], store=kept)
    container.timer.override(timer)
    container.now.override(clock.wall)
    yield Scene(container, timer, clock)
    container.database().close()


@pytest.fixture
def own_kinds() -> Iterator[None]:
    """Kinds that the test registers are forgotten after it. Not for tests that import job modules, which register only once."""
    before = dict(kinds._registry)
    yield
    kinds._registry.clear()
    kinds._registry.update(before)


class _Errors(logging.Handler):
    """Keeps what jobwheel's own threads logged when they survived an exception."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.met: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "met an error and goes on" in record.getMessage():
            self.met.append(self.format(record))


@pytest.fixture(autouse=True)
def _no_inner_errors(request: pytest.FixtureRequest) -> Iterator[None]:
    """A thread that guards its loop hides its faults from pytest; here they are found."""
    errors = _Errors()
    log = logging.getLogger("jobwheel")
    log.addHandler(errors)
    yield
    log.removeHandler(errors)
    if errors.met and request.node.get_closest_marker("inner_errors") is None:
        pytest.fail("a thread of jobwheel met an error: " + "\n".join(errors.met))


@pytest.fixture(autouse=True)
def _no_files_left() -> Iterator[None]:
    """The default store makes its file in the working directory: a test that uses it must run in a folder of its own, or say memory."""
    before = set(Path.cwd().glob("*.db*"))
    yield
    left = sorted(path.name for path in set(Path.cwd().glob("*.db*")) - before)
    assert not left, f"a test left {', '.join(left)} in the working directory"
