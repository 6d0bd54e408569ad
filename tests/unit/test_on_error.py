"""`timer.on_error`: each part's fault reaches the hook once, on the listeners' thread, and no hook can block or break anything."""

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from jobwheel import IJob, JobContext, State, StoreError, events
from jobwheel import keeper as keeper_room
from jobwheel.dispatcher import Dispatcher
from jobwheel.errors import BadType
from jobwheel.events import BACKLOG, Hub, JobAdded, JobSucceeded

LIMIT = 10.0
Told = list[tuple[BaseException, str]]
inner_errors = pytest.mark.inner_errors


@dataclass
class Do(IJob, kind="test_on_error.do"):
    def run(self) -> None: ...


@dataclass
class Limited(IJob, kind="test_on_error.limited", timeout=100):
    def run(self) -> None: ...


@dataclass
class StopsTheLoop(IJob, kind="test_on_error.stops_the_loop"):
    async def run(self) -> None:
        asyncio.get_running_loop().stop()


@dataclass
class Fails(IJob, kind="test_on_error.fails"):
    def run(self, ctx: JobContext) -> None:
        raise ValueError("of the job")


def nothing(*args: Any) -> None:
    """A listener, or a hook."""


class Raises:
    """Stands for a function: raises the given errors, one a call, and then does what that does."""

    def __init__(self, what: Callable[..., Any], *errors: BaseException) -> None:
        self.what = what
        self.errors = list(errors)
        self.raised = 0

    def __call__(self, *args: Any) -> Any:
        if self.errors:
            self.raised += 1
            raise self.errors.pop(0)
        return self.what(*args)


class Hook:
    """Remembers what it was told, and by which thread."""

    def __init__(self) -> None:
        self.told: Told = []
        self.threads: set[str] = set()
        self.heard = threading.Semaphore(0)

    def __call__(self, error: BaseException, where: str) -> None:
        self.told.append((error, where))
        self.threads.add(threading.current_thread().name)
        self.heard.release()

    def wait(self, count: int = 1) -> Told:
        for _ in range(count):
            assert self.heard.acquire(timeout=LIMIT), f"{len(self.told)} faults were told"
        return self.told


@pytest.fixture
def hook() -> Hook:
    return Hook()


# --- each part in turn ---


@inner_errors
@pytest.mark.parametrize("backend", ["wheel", "apscheduler"])
def test_an_error_in_a_pass_of_the_ticker_is_told_once(
    opened: Any, hook: Hook, backend: str, caplog: pytest.LogCaptureFixture, wait_until: Any
) -> None:
    timer = opened(backend=backend, workers={"threads": 1})
    timer.on_error(hook)
    ticker = timer.session.room.ticker
    errors = KeyError("same"), KeyError("same"), SystemExit("other")
    raises = ticker.on_due = Raises(ticker.on_due, *errors)
    for count in (1, 2, 3):
        timer.add_job(Do())
        wait_until(lambda count=count: raises.raised == count, what=f"{count} errors")
    assert hook.wait(2) == [(errors[0], "ticker"), (errors[2], "ticker")]
    assert timer.wait(timer.add_job(Do()), LIMIT).state is State.SUCCEEDED, "it goes on"
    assert hook.threads == {"jobwheel-events"}
    assert timer.health().errors == 3
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 2
    assert len(hook.told) == 2


@inner_errors
def test_what_ends_a_look_of_the_keeper_is_told(opened: Any, hook: Hook, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_room, "EACH", 0.001)
    timer = opened(store={"kind": "sqlite", "path": tmp_path / "jobs.db"}, workers={"threads": 1})
    timer.on_error(hook)
    keeper = timer.session.keeper
    error = SystemExit("in a look")
    keeper.look = Raises(keeper.look, error)
    assert hook.wait() == [(error, "keeper")]
    assert hook.threads == {"jobwheel-events"}
    assert timer.health().errors == 1


@inner_errors
@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
def test_an_error_of_the_watch_is_told(opened: Any, hook: Hook, kind: type[BaseException]) -> None:
    timer = opened(workers={"threads": 1})
    timer.on_error(hook)
    watch = timer.session.engine._watch
    error = kind("in a look")
    watch._look = Raises(watch._look, error)
    timer.wait(timer.add_job(Limited()), LIMIT)  # its time limit wakes the watch
    assert hook.wait() == [(error, "watch")]
    assert hook.threads == {"jobwheel-events"}
    assert timer.health().errors == 1


@inner_errors
def test_an_error_of_a_worker_outside_of_any_job_is_told(opened: Any, hook: Hook) -> None:
    timer = opened(workers={"threads": 1})
    timer.on_error(hook)
    engine = timer.session.engine
    error = SystemExit("between two jobs")
    engine.run_watched = Raises(engine.run_watched, error)
    timer.add_job(Limited())
    assert hook.wait() == [(error, "worker")]
    assert hook.threads == {"jobwheel-events"}
    assert timer.wait(timer.add_job(Do()), LIMIT).state is State.SUCCEEDED, "it goes on"
    assert timer.health().errors == 1


def test_a_job_that_stops_the_event_loop_of_all_is_told(opened: Any, hook: Hook) -> None:
    timer = opened(workers={"threads": 1})
    timer.on_error(hook)
    timer.wait(timer.add_job(StopsTheLoop()), LIMIT)
    ((error, where),) = hook.wait()
    assert (type(error), where) == (RuntimeError, "loop")
    assert hook.threads == {"jobwheel-events"}
    assert timer.health().errors == 1


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_store_that_fails_is_told_once_until_it_works_again(opened: Any, hook: Hook, tmp_path: Any, store: str, wait_until: Any) -> None:
    timer = opened(store={"kind": store} | ({"path": tmp_path / "jobs.db"} if store == "sqlite" else {}), workers={"threads": 1})
    timer.on_error(hook)
    held = timer._life.store
    works = held.claim
    for count in (1, 2):
        errors = StoreError(f"outage {count}"), StoreError(f"outage {count}")
        held.claim = Raises(works, *errors)
        id = timer.add_job(Do()).id
        assert hook.wait()[-1] == (errors[0], "store")
        timer.session.dispatcher.pump()  # fails once more, which is not told
        timer.session.dispatcher.pump()
        assert timer.wait(id, LIMIT).state is State.SUCCEEDED
        assert len(hook.told) == count
    assert hook.threads == {"jobwheel-events"}
    assert timer.health().errors == 0, "the store's errors are its own: health names them while it fails"


def test_a_look_of_the_keeper_that_the_store_refuses_is_the_stores(
    opened: Any, hook: Hook, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_room, "EACH", 0.001)
    timer = opened(store={"kind": "sqlite", "path": tmp_path / "jobs.db"}, workers={"threads": 1})
    timer.on_error(hook)
    error = StoreError("no sweep")
    timer._life.store.sweep = Raises(timer._life.store.sweep, error, StoreError("no sweep"))
    assert hook.wait() == [(error, "store")]


def test_a_verdict_that_the_store_refuses_is_told(manual: Any, hook: Hook, tmp_path: Any) -> None:
    timer, clock = manual(store={"kind": "sqlite", "path": tmp_path / "jobs.db"})
    timer.on_error(hook)
    error = StoreError("no settling")
    timer._life.store.settle_many = Raises(timer._life.store.settle_many, error)
    id = timer.add_job(Do()).id
    clock.advance(0)
    assert hook.told == [(error, "store")]
    clock.advance(5)
    assert timer.get(id).state is State.SUCCEEDED


def test_a_listener_that_raises_is_told_once_for_each_kind_of_error(opened: Any, hook: Hook) -> None:
    timer = opened(workers={"threads": 1})
    timer.on_error(hook)
    errors = [ValueError(1), ValueError(2), SystemExit(3)]
    listener = Raises(nothing, *errors)
    timer.on(JobAdded, listener)
    timer.on(JobSucceeded, Raises(nothing, ValueError("of another listener")))
    for _ in errors:
        timer.wait(timer.add_job(Do()), LIMIT)
    told = hook.wait(3)
    assert [(str(error), where) for error, where in told] == [
        ("1", "listener"),
        ("of another listener", "listener"),
        ("3", "listener"),
    ]
    assert hook.threads == {"jobwheel-events"}
    assert timer.health().errors == 0


def test_a_failed_job_is_no_fault(manual: Any, hook: Hook) -> None:
    timer, clock = manual()
    timer.on_error(hook)
    timer.add_job(Fails())
    clock.advance(0)
    assert timer.stats().failed == 1
    assert hook.told == []


# --- under a manual clock ---


@pytest.mark.parametrize(("store", "way"), [("memory", "claim"), ("memory", "settle"), ("sqlite", "claim"), ("sqlite", "settle_many")])
def test_with_a_manual_timer_the_hook_runs_in_the_calling_thread_under_no_lock(manual: Any, tmp_path: Any, store: str, way: str) -> None:
    timer, clock = manual(store={"kind": store} | ({"path": tmp_path / "jobs.db"} if store == "sqlite" else {}))
    seen: list[Any] = []

    def look(error: BaseException, where: str) -> None:
        dispatcher: Dispatcher = timer.session.dispatcher
        locks = dispatcher._pumping, dispatcher._settling
        seen.append((str(error), where, threading.current_thread().name, [lock.locked() for lock in locks]))

    timer.on_error(look)
    error = StoreError("once")
    setattr(timer._life.store, way, Raises(getattr(timer._life.store, way), error))
    id = timer.add_job(Do()).id
    clock.advance(0)
    assert seen == [("once", "store", threading.current_thread().name, [False, False])]
    clock.advance(5)
    assert timer.get(id).state is State.SUCCEEDED


def test_a_listener_that_raises_is_told_inline_too(manual: Any, hook: Hook) -> None:
    timer, _ = manual()
    error = ValueError("x")
    timer.on(JobAdded, Raises(nothing, error))
    timer.on_error(hook)
    timer.add_job(Do())
    assert hook.told == [(error, "listener")]


# --- hooks that misbehave ---


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_a_hook_that_raises_is_logged_once_and_told_to_no_hook(
    manual: Any, hook: Hook, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    timer, _ = manual()

    def broken(_: BaseException, where: str) -> None:
        raise error("of the hook")

    timer.on_error(broken)
    timer.on_error(hook)
    met = ValueError("a"), KeyError("b"), TypeError("c")
    timer.on(JobAdded, Raises(nothing, *met))
    for _ in met:
        timer.add_job(Do())
    assert hook.told == [(one, "listener") for one in met], "the hooks behind it are told, and not of it"
    texts = [record.getMessage() for record in caplog.records if record.name == "jobwheel.events"]
    assert sum(text.startswith("a hook of on_error raised") for text in texts) == 1
    assert timer._hub._told[error, id(broken)] == 3


@inner_errors
def test_a_hook_that_blocks_holds_up_no_job_and_no_shutdown(opened: Any, wait_until: Any) -> None:
    timer = opened(workers={"threads": 2})
    entered, go = threading.Event(), threading.Event()

    def block(error: BaseException, where: str) -> None:
        entered.set()
        go.wait(2 * LIMIT)

    timer.on_error(block)
    ticker = timer.session.room.ticker
    raises = ticker.on_due = Raises(ticker.on_due, KeyError(0), KeyError(1))
    try:
        for count in (1, 2):
            timer.add_job(Do())
            wait_until(lambda count=count: raises.raised == count, what=f"{count} errors")
        assert entered.wait(LIMIT)
        for _ in range(10):
            assert timer.wait(timer.add_job(Do()), LIMIT).state is State.SUCCEEDED
        assert timer.shutdown(LIMIT) == []
        assert not go.is_set()
    finally:
        go.set()


@inner_errors
@pytest.mark.parametrize("fault", ["ticker", "worker", "store", "listener"])
def test_a_hook_may_use_the_timer_whatever_the_fault(opened: Any, fault: str) -> None:
    """R37: no lock is held while it runs."""
    timer = opened(workers={"threads": 1})
    timer.add_job(Do(), 1000, key="far")
    found: list[Any] = []
    done = threading.Event()

    def use(error: BaseException, where: str) -> None:
        found.append((where, timer.touch("far"), timer.cancel("far"), timer.stats().running, timer.health().started, timer.find()))
        timer.on_error(nothing)
        timer.on(JobSucceeded, lambda event: event.job.key == "from the hook" and done.set())
        timer.add_job(Do(), key="from the hook")

    timer.on_error(use)
    error = RuntimeError("x")
    session = timer.session
    if fault == "ticker":
        session.room.ticker.on_due = Raises(session.room.ticker.on_due, error)
    elif fault == "worker":
        session.engine.run_watched = Raises(session.engine.run_watched, error)
    elif fault == "store":
        timer._life.store.claim = Raises(timer._life.store.claim, error)
    else:
        timer.on(JobAdded, Raises(lambda event: None, error))
    timer.add_job(Limited() if fault == "worker" else Do())
    assert done.wait(LIMIT)
    assert found[0][:3] == (fault, True, True)


@inner_errors
def test_a_hook_may_shut_the_timer_down(opened: Any, wait_until: Any) -> None:
    timer = opened(workers={"threads": 1})
    left: list[Any] = []
    timer.on_error(lambda error, where: left.append(timer.shutdown(LIMIT)))
    ticker = timer.session.room.ticker
    ticker.on_due = Raises(ticker.on_due, KeyError("x"))
    timer.add_job(Do())
    wait_until(lambda: left == [[]], what="a shutdown by the hook")
    assert not timer.started


@pytest.mark.parametrize("wrong", [None, "print", 7], ids=repr)
def test_a_hook_must_be_callable(manual: Any, wrong: Any) -> None:
    timer, _ = manual()
    with pytest.raises(BadType, match="must be callable"):
        timer.on_error(wrong)


# --- the hub ---


def event_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "jobwheel-events"}


def test_without_a_hook_nothing_is_kept_and_no_thread_is_started() -> None:
    before = event_threads()
    hub = Hub()
    hub.on(events.Event, nothing)
    hub.fault("ticker", ValueError("x"))
    assert not hub._waiting
    assert event_threads() <= before


def test_a_listener_of_every_event_hears_of_no_fault(hook: Hook) -> None:
    hub = Hub(inline=True)
    heard: list[Any] = []
    hub.on(events.Event, heard.append)
    hub.on_error(hook)
    hub.fault("ticker", ValueError("x"))
    hub.deliver()
    assert (len(hook.told), heard) == (1, [])


def test_a_hook_alone_makes_no_event(hook: Hook) -> None:
    """Whoever only wants to hear of faults pays nothing for each job."""
    hub = Hub()
    hub.on_error(hook)
    assert hub.listeners == ()
    assert not hub.wants(events.Event)


def test_faults_beyond_the_backlog_are_dropped_and_counted() -> None:
    hub = Hub()
    entered, go = threading.Event(), threading.Event()
    told: list[str] = []

    def block(error: BaseException, where: str) -> None:
        entered.set()
        go.wait(2 * LIMIT)
        told.append(where)

    hub.on_error(block)
    hub.fault("first", ValueError("x"))
    assert entered.wait(LIMIT)
    error = ValueError("y")
    for _ in range(BACKLOG + 50):
        hub.fault("more", error)
    assert (hub.dropped, len(hub._waiting)) == (50, BACKLOG)
    go.set()
    hub.stop()


def test_where_no_thread_is_to_be_had_nothing_is_raised_and_the_next_one_tells_all(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub()
    hub.on_error(hook)
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", Raises(start, RuntimeError("can't start new thread"), RuntimeError("again")))
    hub.fault("one", ValueError(1))
    hub.fault("two", ValueError(2))
    assert hook.told == []
    monkeypatch.setattr(threading.Thread, "start", start)
    hub.fault("three", ValueError(3))
    assert [where for _, where in hook.wait(3)] == ["one", "two", "three"]
    hub.stop()


def test_a_signal_handler_may_tell_a_fault_while_its_own_thread_adds_a_hook(hook: Hook) -> None:
    hub = Hub()
    hub.on_error(hook)
    done = threading.Event()

    def handled() -> None:
        with hub._lock:
            hub.fault("ticker", ValueError("x"))
        done.set()

    threading.Thread(target=handled, daemon=True).start()
    assert done.wait(LIMIT), "it waits for itself"
    hook.wait()
    hub.stop()


def test_hooks_stay_in_a_forked_child(hook: Hook) -> None:
    hub = Hub(inline=True)
    hub.on_error(hook)
    hub.fault("of the parent", ValueError("x"))
    hub.after_fork()
    hub.fault("of the child", ValueError("y"))
    hub.deliver()
    assert [where for _, where in hook.told] == ["of the child"]
