"""Start and stop of timers, waiting rooms and engines: the contract in `lifecycle.py`, and what only a whole timer can show."""

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
from lifecycle import LIMIT, LifecycleContract, Living, RestartableContract, new_threads, within_limit

from jobwheel import IJob, JobContext, Retry, State, StoreError, TimerManager, UsageError, events, open_timer
from jobwheel.clock import SystemClock
from jobwheel.errors import SettingsError
from jobwheel.keeper import KeeperThread
from jobwheel.opening import find_member
from jobwheel.row import Row
from jobwheel.runner import Runner
from jobwheel.services import as_services
from jobwheel.settings import from_mapping
from jobwheel.verdict import Verdict


def backend_or_skip(name: str) -> None:
    try:
        find_member("backend", name)
    except (SettingsError, ModuleNotFoundError) as error:
        pytest.skip(str(error))


calls: dict[str, Callable[[JobContext], Any]] = {}


@dataclass
class Do(IJob, kind="test_lifecycle.do"):
    """Calls `what`, which is named in it, so that it can be stored."""

    what: Any = None

    def __post_init__(self) -> None:
        if callable(self.what):
            name = f"call {id(self.what)}"
            calls[name], self.what = self.what, name

    def run(self, ctx: JobContext) -> Any:
        return calls[self.what](ctx) if self.what is not None else None


@dataclass
class DoAsync(Do, kind="test_lifecycle.do_async"):
    async def run(self, ctx: JobContext) -> Any:
        return calls[self.what](ctx)


@dataclass
class Gate:
    """A job's way to say that it runs, and to wait until it may end."""

    entered: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)

    def job(self) -> Do:
        def what(_: JobContext) -> str:
            self.entered.set()
            self.go.wait(30)
            return "done"

        return Do(what)


class LivingTimer:
    """A timer by the words of the contract."""

    def __init__(self, timer: TimerManager) -> None:
        self.timer = timer

    def start(self) -> None:
        self.timer.start()

    def stop(self) -> None:
        assert self.timer.shutdown(1.0) == []


class TimerContract(RestartableContract):
    backend: ClassVar[str]
    store: ClassVar[str] = "memory"

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.place = str(tmp_path / "jobs.db")

    def make(self) -> Living:
        backend_or_skip(self.backend)
        store = {"kind": self.store, "path": self.place, "durability": "process"}
        return LivingTimer(open_timer({"backend": self.backend, "store": store, "workers": {"threads": 3}}))

    def test_what_was_added_before_start_and_between_two_sessions_runs(self) -> None:
        one = self.make()
        assert isinstance(one, LivingTimer)
        timer = one.timer
        jobs = [timer.add_job(Do()), timer.add_job(Do(), 0.01)]
        for _ in range(3):
            one.start()
            assert [timer.wait(job, LIMIT).state for job in jobs] == [State.SUCCEEDED] * 2
            one.stop()
            jobs = [timer.add_job(Do()), timer.add_job(Do(), 0.01)]
        assert timer.stats().pending == 2


class TestTimerOnWheel(TimerContract):
    backend = "wheel"


class TestTimerOnApscheduler(TimerContract):
    backend = "apscheduler"


class TestTimerOnWheelAndDisk(TimerContract):
    backend = "wheel"
    store = "sqlite"


class TestTimerOnApschedulerAndDisk(TimerContract):
    backend = "apscheduler"
    store = "sqlite"


class RoomContract(LifecycleContract):
    backend: ClassVar[str]

    def make(self) -> Living:
        backend_or_skip(self.backend)
        room = find_member("backend", self.backend)(SystemClock(), from_mapping({}))

        class LivingRoom:
            def start(self) -> None:
                room.start(lambda entries: None, lambda: None)

            def stop(self) -> None:
                room.stop()

        return LivingRoom()


class TestWheelRoom(RoomContract):
    backend = "wheel"


class TestApschedulerRoom(RoomContract):
    backend = "apscheduler"


class SilentDesk:
    """Whom an engine reports to, when nobody cares."""

    blocking = False

    def done(self, row: Row, attempt: int, verdict: Verdict) -> None: ...

    def timed_out(self, row: Row) -> None: ...

    def pump(self) -> None: ...

    def fault(self, where: str, error: BaseException) -> None: ...

    def release(self, what: str) -> None: ...


class EngineContract(LifecycleContract):
    engine: ClassVar[str]

    def make(self) -> Living:
        clock, settings = SystemClock(), from_mapping({"workers": {"threads": 3}})
        engine = find_member("workers.engine", self.engine)(clock, settings, Runner(clock, as_services(None)), SilentDesk())

        class LivingEngine:
            def start(self) -> None:
                engine.start()

            def stop(self) -> None:
                assert engine.withdraw() == []
                assert engine.stop(1.0) == []

        return LivingEngine()


class TestThreadEngine(EngineContract):
    engine = "threads"


# --- limits, and what is left ---


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], dict[str, Any]]:
    """`store()`: the section of the settings, each time for another store."""
    made = itertools.count()
    return lambda: {"kind": request.param, "path": f"{tmp_path}/{next(made)}.db", "durability": "process"}


@pytest.fixture
def opened(opened: Any, store: Any) -> Any:
    """As ever, on each store."""
    return lambda **settings: opened(store=store(), **settings)


@pytest.fixture
def gate() -> Any:
    one = Gate()
    yield one
    one.go.set()


def test_shutdown_waits_for_running_jobs(opened: Any, gate: Gate) -> None:
    timer = opened(workers={"threads": 2})
    job = timer.add_job(gate.job())
    assert gate.entered.wait(LIMIT)
    threading.Timer(0.05, gate.go.set).start()
    assert within_limit(lambda: timer.shutdown(LIMIT)) == []
    assert timer.get(job).result == "done"


def test_shutdown_hands_back_what_waits_for_a_worker_and_names_what_still_runs(opened: Any, gate: Gate, wait_until: Any) -> None:
    """R62."""
    timer = opened(workers={"threads": 1, "queue": 10})
    running = timer.add_job(gate.job())
    assert gate.entered.wait(LIMIT)
    queued = [timer.add_job(Do()) for _ in range(5)]
    wait_until(lambda: timer.stats().queued == 5, what="five claimed jobs in the queue")
    began = time.monotonic()
    assert within_limit(lambda: timer.shutdown(0.2)) == [running.id]
    assert 0.2 <= time.monotonic() - began < 5
    assert [timer.get(job).state for job in queued] == [State.SCHEDULED] * 5
    assert [timer.get(job).attempt for job in queued] == [0] * 5
    assert timer.get(running).state is State.RUNNING
    timer.start()
    assert [timer.wait(job, LIMIT).attempt for job in queued] == [1] * 5
    assert timer.get(running).state is State.RUNNING
    gate.go.set()
    assert timer.wait(running, LIMIT).result == "done", "settled when it ends, though its session is long over"
    assert timer.get(running).attempt == 1


def test_a_shutdown_without_patience_returns_at_once(opened: Any, gate: Gate) -> None:
    timer = opened(workers={"threads": 1})
    job = timer.add_job(gate.job())
    assert gate.entered.wait(LIMIT)
    began = time.monotonic()
    assert timer.shutdown(0) == [job.id]
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("kind", [Do, DoAsync])
def test_shutdown_from_a_job_stops_and_lets_that_job_end(opened: Any, kind: type[Any]) -> None:
    """R63: legal, waits for nobody, and start() works afterwards."""
    before = set(threading.enumerate())
    timer = opened(workers={"threads": 2})
    answers: list[Any] = []

    def what(_: JobContext) -> str:
        answers.append(timer.shutdown())
        return "went on"

    job = timer.add_job(kind(what))
    deadline = time.monotonic() + LIMIT
    while (timer.started or new_threads(before)) and time.monotonic() < deadline:
        for thread in new_threads(before):
            thread.join(0.02)
    assert not timer.started
    assert new_threads(before) == set(), "the ticker and the workers end"
    assert answers == [[job.id]]
    assert (timer.get(job).state, timer.get(job).result) == (State.SUCCEEDED, "went on")
    timer.start()
    assert timer.wait(timer.add_job(Do()), LIMIT).state is State.SUCCEEDED


def test_a_job_may_restart_its_timer(opened: Any) -> None:
    timer = opened(workers={"threads": 2})

    def what(_: JobContext) -> str:
        timer.shutdown()
        timer.start()
        return "restarted"

    job = timer.add_job(Do(what))
    assert timer.wait(job, LIMIT).result == "restarted"
    assert timer.wait(timer.add_job(Do(), 0.01), LIMIT).state is State.SUCCEEDED


def test_shutdown_from_a_listener_stops(opened: Any, wait_until: Any) -> None:
    before = set(threading.enumerate())
    timer = opened(workers={"threads": 2})
    timer.on(events.JobSucceeded, lambda _: timer.shutdown())
    timer.add_job(Do())
    wait_until(lambda: not timer.started, what="the shutdown")
    wait_until(lambda: new_threads(before) == set(), what="the end of all threads, the listener's included")


def test_start_and_shutdown_in_a_job_beside_another_thread_that_does_the_same(opened: Any) -> None:
    timer = opened(workers={"threads": 2})
    done = threading.Event()

    def what(_: JobContext) -> None:
        for _ in range(20):
            timer.shutdown(0)
            timer.start()
        done.set()

    timer.add_job(Do(what))
    within_limit(lambda: [(timer.shutdown(0), timer.start()) for _ in range(20)])
    assert done.wait(LIMIT)
    timer.start()
    assert timer.wait(timer.add_job(Do()), LIMIT).state is State.SUCCEEDED


def test_ten_thousand_jobs_and_touches_add_no_thread(opened: Any) -> None:
    """R48: the number of threads is constant."""
    before = set(threading.enumerate())
    timer = opened(workers={"threads": 4})
    most = 4 + 3  # workers, ticker, watch, and the keeper of a shared store
    for number in range(10_000):
        timer.add_job(Do(), 1000, key=f"k{number % 1000}")
        timer.touch(f"k{number % 1000}")
    assert len(new_threads(before)) <= most


def test_a_start_that_fails_leaves_nothing_running_and_can_be_tried_again(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())
    timer = open_timer({"store": store(), "workers": {"threads": 2}})
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("jobwheel"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(UsageError, match="not one worker thread could be started"):
            timer.start()
    assert not timer.started
    assert new_threads(before) == set()
    timer.start()
    assert timer.wait(timer.add_job(Do()), LIMIT).state is State.SUCCEEDED
    assert timer.shutdown() == []


def test_a_start_whose_ticker_cannot_be_started_takes_its_workers_back(
    store: Any, monkeypatch: pytest.MonkeyPatch, wait_until: Any
) -> None:
    before = set(threading.enumerate())
    timer = open_timer({"store": store(), "workers": {"threads": 2}})
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "jobwheel-ticker":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            timer.start()
    assert not timer.started
    wait_until(lambda: new_threads(before) == set(), what="the end of the workers")
    timer.start()
    assert timer.wait(timer.add_job(Do(), 0.01), LIMIT).state is State.SUCCEEDED
    assert timer.shutdown() == []


def test_two_timers_share_nothing(opened: Any, gate: Gate) -> None:
    one, other = opened(workers={"threads": 1}), opened(workers={"threads": 1})
    one.add_job(gate.job(), key="k")
    assert gate.entered.wait(LIMIT)
    job = other.add_job(Do(), key="k", if_exists="error")
    assert other.wait(job, LIMIT).state is State.SUCCEEDED
    other.shutdown()
    assert one.started
    gate.go.set()


# --- starts beside ends ---


@dataclass
class Twice(Do, kind="test_lifecycle.twice", retry=Retry(attempts=2)):
    pass


def test_a_job_that_is_tried_again_while_its_timer_is_started_anew_is_tried_again(
    opened: Any, gate: Gate, wait_until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run outlived the session, and ends when the new one's room is empty and the session is not there yet."""
    timer = opened(workers={"threads": 1})

    def what(ctx: JobContext) -> str:
        if ctx.attempt == 1:
            gate.entered.set()
            gate.go.wait(30)
            raise ValueError("once more")
        return "done"

    job = timer.add_job(Twice(what))
    assert gate.entered.wait(LIMIT)
    assert timer.shutdown(0) == [job.id]
    store = timer._life.store
    new_room = store.new_room

    def meanwhile() -> None:
        new_room()
        gate.go.set()
        wait_until(lambda: timer._life.store.get(job.id).state is State.SCHEDULED, what="the end of the first attempt")

    monkeypatch.setattr(store, "new_room", meanwhile)
    timer.start()
    assert timer.wait(job, LIMIT).result == "done"


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_what_a_session_finds_while_it_is_replaced_runs_in_the_next_one(
    opened: Any, wait_until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first look comes to an end when the next one's room is empty."""
    timer = opened(workers={"threads": 1}, start=False)
    job = timer.add_job(Do())
    store = timer._life.store
    store.open()
    new_room, sweep = store.new_room, store.sweep
    rooms, looks, looked = iter([1, 2]), iter([1, 2, 3]), threading.Event()
    second_room = threading.Event()

    def second_waits() -> None:
        new_room()
        if next(rooms, 3) == 2:
            second_room.set()
            assert looked.wait(LIMIT)

    def first_waits(want: int) -> Any:
        if next(looks, 4) != 1:
            return sweep(want)
        assert second_room.wait(LIMIT)
        found = sweep(want)
        looked.set()
        return found

    monkeypatch.setattr(store, "new_room", second_waits)
    monkeypatch.setattr(store, "sweep", first_waits)
    first = threading.Thread(target=timer.start, daemon=True)
    first.start()
    wait_until(lambda: timer.started, what="the first start")
    timer.shutdown(0)
    timer.start()
    first.join(LIMIT)
    assert timer.wait(job, LIMIT).state is State.SUCCEEDED


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
@pytest.mark.parametrize("fails", [False, True], ids=["soon", "after a failure"])
def test_what_the_keeper_finds_before_the_start_is_over_is_not_lost(opened: Any, fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first look is done, and what it found is due or soon due, before any other thread sees that the timer is started."""
    timer = opened(workers={"threads": 1}, start=False)
    jobs = [timer.add_job(Do()), timer.add_job(Do(), 0.2)]
    store = timer._life.store
    store.open()
    claim, window = store.claim, store.window
    looked, claims = threading.Event(), iter([1])

    def fail_once(entries: Any) -> Any:
        if fails and next(claims, None):
            raise StoreError("locked")
        return claim(entries)

    def look(until: float) -> Any:
        found = window(until)
        looked.set()
        return found

    monkeypatch.setattr(store, "claim", fail_once)
    monkeypatch.setattr(store, "window", look)
    monkeypatch.setattr("jobwheel.dispatcher.FIRST_WAIT", 0.05)
    start = KeeperThread.start

    def start_and_wait(thread: KeeperThread) -> None:
        start(thread)
        assert looked.wait(LIMIT)

    monkeypatch.setattr(KeeperThread, "start", start_and_wait)
    timer.start()
    assert [timer.wait(job, LIMIT).state for job in jobs] == [State.SUCCEEDED] * 2


def test_a_start_whose_keeper_cannot_be_started_can_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())
    timer = open_timer({"store": {"kind": "sqlite", "path": f"{tmp_path}/jobs.db"}, "workers": {"threads": 2}})
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "jobwheel-keeper":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            timer.start()
    assert not timer.started
    timer.shutdown()
    deadline = time.monotonic() + LIMIT
    while new_threads(before) and time.monotonic() < deadline:
        for thread in new_threads(before):
            thread.join(0.02)
    assert new_threads(before) == set()
    timer.start()
    assert timer.session is not None
    assert timer.session.thread is not None
    assert timer.session.thread.alive
    assert timer.shutdown() == []
