"""The keeper: what a shared store holds for this process comes into room and lanes, whatever fails. The store is the test's own."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from jobwheel import StoreError
from jobwheel import keeper as keeper_room
from jobwheel.keeper import HORIZON, OVERDUE, Keeper, KeeperThread
from jobwheel.row import Row
from jobwheel.store import Sweep
from jobwheel.testing import ManualClock

LIMIT = 10.0


class Entry:
    def __init__(self, due: float) -> None:
        self.due = due
        self.priority = 0
        self.place: object = None
        self.kind = None


class Book:
    """A store and a dispatcher in one: gives what the test wants, and keeps what was asked and done, in order."""

    def __init__(self) -> None:
        self.sweeps: list[Any] = []
        self.windows: list[Any] = []
        self.done: list[Any] = []
        self.overdue: list[Any] = []
        self.fails: set[str] = set()

    def sweep(self, want: int) -> Sweep:
        self.done.append(("sweep", want))
        found = self.sweeps.pop(0) if self.sweeps else Sweep()
        if isinstance(found, BaseException):
            raise found
        return found  # type: ignore[no-any-return]

    def window(self, until: float) -> list[Any]:
        self.done.append(("window", until))
        found = self.windows.pop(0) if self.windows else []
        if isinstance(found, BaseException):
            raise found
        return found  # type: ignore[no-any-return]

    def arm(self, entry: Any) -> None:
        self.done.append(("arm", entry))

    def add_overdue(self, entries: list[Any], more: bool) -> None:
        self.done.append(("overdue", entries, more))

    def release_up_to(self, room: dict[str, int]) -> None:
        self.done.append(("room", room))

    def ended(self, row: Any) -> None:
        self.done.append(("ended", row))

    def trouble(self, way: str, error: Exception) -> None:
        self.done.append(("trouble", way, error))

    def works(self, way: str) -> None:
        self.done.append(("works", way))

    def what(self, *names: str) -> list[Any]:
        return [deed for deed in self.done if deed[0] in names]


@pytest.fixture
def book() -> Book:
    return Book()


@pytest.fixture
def clock() -> ManualClock:
    clock = ManualClock()
    clock.advance(100)
    return clock


@pytest.fixture
def keeper(book: Book, clock: ManualClock) -> Keeper:
    return Keeper(book, clock, book, book.arm)  # type: ignore[arg-type]


def test_the_overdue_go_to_the_lanes_and_what_is_due_soon_to_the_room(keeper: Keeper, book: Book) -> None:
    late, now, soon, ahead = Entry(50), Entry(100), Entry(100.5), Entry(2000)
    book.sweeps, book.windows = [Sweep([now, soon], [late], more=True)], [[ahead]]
    keeper.look()
    assert book.what("overdue") == [("overdue", [late], True)]
    assert book.what("arm") == [("arm", now), ("arm", soon), ("arm", ahead)]
    assert book.what("works", "trouble") == [("works", "sweep")]


def test_the_room_that_limited_kinds_have_is_told(keeper: Keeper, book: Book) -> None:
    book.sweeps = [Sweep(room={"narrow": 2})]
    keeper.look()
    assert book.what("room") == [("room", {"narrow": 2})]


def test_the_window_is_asked_for_as_far_as_its_horizon(keeper: Keeper, book: Book) -> None:
    keeper.look()
    assert book.what("window") == [("window", 100 + HORIZON)]


def test_no_more_overdue_are_wanted_than_the_lanes_have_room_for(keeper: Keeper, book: Book) -> None:
    book.overdue = [Entry(1)] * (OVERDUE - 24)
    keeper.look()
    book.overdue = [Entry(1)] * OVERDUE
    keeper.look()
    assert [want for _, want in book.what("sweep")] == [24, 0]


def test_jobs_that_ended_with_their_process_are_told(keeper: Keeper, book: Book) -> None:
    rows: list[Row] = [object(), object()]  # type: ignore[list-item]
    book.sweeps = [Sweep(ended=rows)]
    keeper.look()
    assert book.what("ended") == [("ended", row) for row in rows]


def test_a_look_that_fails_is_told_and_raises_nothing(keeper: Keeper, book: Book) -> None:
    error = StoreError("disk full")
    book.sweeps = [error, Sweep(overdue=[Entry(50)])]
    keeper.look()
    assert book.what("trouble", "works") == [("trouble", "sweep", error)]
    keeper.look()
    assert book.what("trouble", "works")[1:] == [("works", "sweep")]


@pytest.mark.parametrize("error", [StoreError("locked"), ValueError("a fault of our own")])
def test_what_was_found_is_used_though_the_rest_fails(keeper: Keeper, book: Book, error: Exception) -> None:
    """A store does not give it a second time."""
    late, soon = Entry(50), Entry(101)
    book.sweeps, book.windows = [Sweep([soon], [late])], [error]
    keeper.look()
    assert book.what("overdue") == [("overdue", [late], False)]
    assert ("arm", soon) in book.done
    assert book.what("trouble") == [("trouble", "sweep", error)]


def test_what_was_found_is_used_though_telling_of_the_ended_fails(keeper: Keeper, book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    late, soon = Entry(50), Entry(101)
    book.sweeps = [Sweep([soon], [late], ended=[object()])]  # type: ignore[list-item]

    def fail(row: Any) -> None:
        raise ValueError("a listener")

    monkeypatch.setattr(book, "ended", fail)
    keeper.look()
    assert book.what("overdue") == [("overdue", [late], False)]
    assert ("arm", soon) in book.done


def test_trouble_inside_a_sweep_is_told_after_its_entries_are_used(keeper: Keeper, book: Book) -> None:
    late = Entry(50)
    error = StoreError("pruning failed")
    book.sweeps = [Sweep(overdue=[late], trouble=error)]
    keeper.look()
    assert book.what("overdue") == [("overdue", [late], False)]
    assert book.what("trouble", "works") == [("trouble", "sweep", error)]


# --- the thread ---


class Looks:
    """A keeper whose looks the test counts, and may hold up."""

    def __init__(self) -> None:
        self.made = threading.Semaphore(0)
        self.meanwhile: Callable[[], Any] = lambda: None

    def look(self) -> None:
        self.made.release()
        self.meanwhile()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks only when it is woken."""
    monkeypatch.setattr(keeper_room, "EACH", 1000.0)


@pytest.mark.usefixtures("patient")
def test_the_thread_looks_at_once_and_whenever_it_is_woken() -> None:
    looks = Looks()
    thread = KeeperThread(looks)  # type: ignore[arg-type]
    thread.start()
    assert looks.made.acquire(timeout=LIMIT)
    for _ in range(3):
        thread.wake()
        assert looks.made.acquire(timeout=LIMIT)
    assert thread.alive
    thread.stop()
    assert not thread.alive


def test_the_thread_looks_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_room, "EACH", 0.001)
    looks = Looks()
    thread = KeeperThread(looks)  # type: ignore[arg-type]
    thread.start()
    for _ in range(5):
        assert looks.made.acquire(timeout=LIMIT)
    thread.stop()


@pytest.mark.usefixtures("patient")
def test_a_stop_waits_for_the_present_look_and_none_follows() -> None:
    looks = Looks()
    go = threading.Event()
    looks.meanwhile = lambda: go.wait(LIMIT)
    thread = KeeperThread(looks)  # type: ignore[arg-type]
    thread.start()
    assert looks.made.acquire(timeout=LIMIT)
    stopped = threading.Event()
    stopper = threading.Thread(target=lambda: (thread.stop(LIMIT), stopped.set()), daemon=True)
    stopper.start()
    assert not stopped.is_set()
    go.set()
    stopper.join(LIMIT)
    assert stopped.is_set()
    assert not thread.alive
    assert not looks.made.acquire(blocking=False)


@pytest.mark.usefixtures("patient")
def test_a_stop_from_its_own_thread_does_not_wait_for_itself() -> None:
    looks = Looks()
    thread = KeeperThread(looks)  # type: ignore[arg-type]
    looks.meanwhile = thread.stop
    thread.start()
    thread._thread.join(LIMIT)
    assert not thread.alive


def test_a_stop_of_a_thread_that_was_never_started_returns() -> None:
    KeeperThread(Looks()).stop()  # type: ignore[arg-type]


@pytest.mark.usefixtures("patient")
@pytest.mark.inner_errors
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, MemoryError])
def test_no_exception_ends_the_thread(error: type[BaseException]) -> None:
    looks = Looks()

    def fail() -> None:
        raise error

    looks.meanwhile = fail
    thread = KeeperThread(looks)  # type: ignore[arg-type]
    thread.start()
    for _ in range(3):
        assert looks.made.acquire(timeout=LIMIT)
        thread.wake()
    assert thread.alive
    looks.meanwhile = lambda: None
    thread.stop()
