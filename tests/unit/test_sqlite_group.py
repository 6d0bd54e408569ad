"""Group commit: who leads, who follows, what becomes of a failing one, of Ctrl-C and of signal handlers. The commit is the test's own."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from sqlite3 import Connection
from typing import Any

import pytest
from interrupts import Cut, Points, at_each_point, cut

from jobwheel import StoreError
from jobwheel.stores.sqlite import group as group_room
from jobwheel.stores.sqlite.group import MOST, Group, Write

LIMIT = 10.0


class Note(Write):
    """A write that is known by its name; its result is what the commit made of it."""

    __slots__ = ("name",)

    def __init__(self, name: Any, alone: bool = False) -> None:
        super().__init__(time.monotonic() + LIMIT, True, alone)
        self.name = name

    def run(self, connection: Connection) -> None:
        raise AssertionError("the commit of these tests runs nothing")


class Desk:
    """A commit that keeps its batches, and that can be stood still and made to fail."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.threads: list[int] = []
        self.entered = threading.Semaphore(0)
        self.go = threading.Event()
        self.go.set()
        self.meanwhile: Callable[[list[Any]], Any] = lambda names: None
        self.group = Group(self.commit)

    def commit(self, batch: list[Write]) -> None:
        names = [write.name for write in batch]  # type: ignore[attr-defined]
        self.batches.append(names)
        self.threads.append(threading.get_ident())
        self.entered.release()
        assert self.go.wait(LIMIT)
        self.meanwhile(names)
        for write in batch:
            write.result = f"{write.name} done"  # type: ignore[attr-defined]

    def submit(self, name: Any, alone: bool = False) -> Any:
        return self.group.submit(Note(name, alone))

    def queued(self, count: int, or_else: threading.Event | None = None) -> None:
        """Returns once so many wait behind the one that is being committed, or when the event is set."""
        limit = time.monotonic() + LIMIT
        pause = threading.Event() if or_else is None else or_else
        while sum(write.gate is not None and not write.done for write in list(self.group._queue)) < count:
            assert time.monotonic() < limit
            if pause.wait(0.001):
                return


class Caller:
    """A thread that submits one write."""

    def __init__(self, desk: Desk, name: Any, alone: bool = False) -> None:
        self.answer: Any = None
        self.thread = threading.Thread(target=self._run, args=(desk, name, alone), daemon=True)
        self.thread.start()

    def _run(self, desk: Desk, name: Any, alone: bool) -> None:
        try:
            self.answer = desk.submit(name, alone)
        except BaseException as error:
            self.answer = error

    def end(self) -> Any:
        self.thread.join(LIMIT)
        assert not self.thread.is_alive(), "it waits for ever"
        return self.answer


@pytest.fixture
def desk() -> Desk:
    return Desk()


def stand(desk: Desk, *names: Any, alone: Any = ()) -> tuple[Caller, list[Caller]]:
    """One that is being committed, and behind it as many as there are names, in order."""
    desk.go.clear()
    first = Caller(desk, "first")
    assert desk.entered.acquire(timeout=LIMIT)
    callers = []
    for number, name in enumerate(names, 1):
        callers.append(Caller(desk, name, name in alone))
        desk.queued(number)
    return first, callers


def test_a_lone_caller_commits_in_its_own_thread(desk: Desk) -> None:
    assert [desk.submit(number) for number in range(3)] == ["0 done", "1 done", "2 done"]
    assert desk.batches == [[0], [1], [2]]
    assert desk.threads == [threading.get_ident()] * 3
    assert not desk.group._queue or desk.group._queue[0].done


def test_what_comes_while_one_is_being_committed_is_the_next_batch_in_order(desk: Desk) -> None:
    first, others = stand(desk, "a", "b", "c")
    desk.go.set()
    assert [caller.end() for caller in (first, *others)] == ["first done", "a done", "b done", "c done"]
    assert desk.batches == [["first"], ["a", "b", "c"]]
    assert desk.threads[1] in [caller.thread.ident for caller in others], "one of them leads"


def test_a_write_with_a_transaction_of_its_own_is_committed_alone(desk: Desk) -> None:
    first, others = stand(desk, "a", "many", "b", "c", alone=("many",))
    desk.go.set()
    assert [caller.end() for caller in (first, *others)] == ["first done", "a done", "many done", "b done", "c done"]
    assert desk.batches == [["first"], ["a"], ["many"], ["b", "c"]]


def test_a_batch_has_its_limit(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_room, "MOST", 2)
    first, others = stand(desk, *"abcde")
    desk.go.set()
    assert [caller.end() for caller in (first, *others)] == [f"{name} done" for name in ("first", *"abcde")]
    assert [len(batch) for batch in desk.batches] == [1, 2, 2, 1]
    assert MOST > 32


def test_what_fails_is_raised_in_its_own_caller_alone(desk: Desk) -> None:
    def fail(names: list[Any]) -> None:
        for write in desk.group._queue:
            if write.name == "b":  # type: ignore[attr-defined]
                write.error = StoreError("b fails")

    desk.meanwhile = fail
    first, others = stand(desk, "a", "b", "c")
    desk.go.set()
    first.end()
    a, b, c = (caller.end() for caller in others)
    assert (a, c) == ("a done", "c done")
    assert isinstance(b, StoreError)
    assert str(b) == "b fails"
    assert desk.submit("d") == "d done"


def test_after_many_at_once_nothing_is_left_in_the_queue(desk: Desk) -> None:
    callers = [Caller(desk, number) for number in range(50)]
    assert [caller.end() for caller in callers] == [f"{number} done" for number in range(50)]
    assert sorted(name for batch in desk.batches for name in batch) == list(range(50))
    desk.submit("last")
    assert len(desk.group._queue) <= 1


# --- Ctrl-C ---


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_leader_that_is_cut_off_tells_its_followers_that_it_is_not_known(desk: Desk, error: type[BaseException]) -> None:
    def meanwhile(names: list[Any]) -> None:
        if "a" in names:
            desk.meanwhile = lambda names: None
            raise error

    first, others = stand(desk, "a", "b")
    desk.meanwhile = meanwhile
    desk.go.set()
    assert first.end() == "first done"
    answers = [caller.end() for caller in others]
    assert {type(answer) for answer in answers} == {error, StoreError}, "one led"
    told = next(answer for answer in answers if isinstance(answer, StoreError))
    assert "cut off" in str(told) or "cut short" in str(told)
    assert "get()" in str(told)
    assert desk.batches == [["first"], ["a", "b"]], "and nothing was written twice"
    assert desk.submit("c") == "c done"
    assert Caller(desk, "d").end() == "d done"


@pytest.fixture
def interrupted() -> Iterator[Callable[[], None]]:
    """`interrupted()`, from another thread, lets the main thread meet a Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_a_follower_that_is_cut_off_holds_nobody_up(desk: Desk, interrupted: Callable[[], None]) -> None:
    first, (other,) = stand(desk, "a")

    def meanwhile() -> None:
        desk.queued(2)
        interrupted()

    thread = threading.Thread(target=meanwhile, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        desk.submit("mine")
    thread.join(LIMIT)
    desk.go.set()
    assert (first.end(), other.end()) == ("first done", "a done")
    assert desk.submit("b") == "b done"
    assert Caller(desk, "c").end() == "c done"


def test_a_follower_that_is_cut_off_when_the_lead_is_given_to_it_holds_nobody_up(desk: Desk, interrupted: Callable[[], None]) -> None:
    """It is the first in the queue; the ones behind it look for themselves after a while."""
    desk.go.clear()
    first = Caller(desk, "first")
    assert desk.entered.acquire(timeout=LIMIT)
    behind: list[Caller] = []

    def meanwhile() -> None:
        desk.queued(1)
        behind.append(Caller(desk, "behind"))
        desk.queued(2)
        interrupted()
        desk.go.set()

    thread = threading.Thread(target=meanwhile, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        desk.submit("mine")
    thread.join(LIMIT)
    assert first.end() == "first done"
    assert behind[0].end() == "behind done"
    assert desk.submit("b") == "b done"


def test_whatever_point_a_lone_call_is_cut_off_at_others_go_on(desk: Desk) -> None:
    def check() -> None:
        assert desk.submit("same thread") == "same thread done"
        assert Caller(desk, "another thread").end() == "another thread done"

    points = at_each_point(Points(group_room), lambda: desk.submit("cut"), cut, check, (Cut,))
    assert points > 5


def test_whatever_point_a_follower_is_cut_off_at_others_go_on(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first point, the second ... of a call that finds another one leading."""
    monkeypatch.setattr(group_room, "LOOK", 0.01)
    firsts: list[Caller] = []

    def follow() -> None:
        desk.go.clear()
        firsts.append(Caller(desk, "first"))
        assert desk.entered.acquire(timeout=LIMIT)
        over = threading.Event()

        def let_go() -> None:
            desk.queued(1, over)
            desk.go.set()

        thread = threading.Thread(target=let_go, daemon=True)
        thread.start()
        try:
            desk.submit("cut")
        finally:
            over.set()
            thread.join(LIMIT)

    def check() -> None:
        desk.go.set()
        assert firsts.pop().end() == "first done"
        assert desk.submit("same thread") == "same thread done"
        assert Caller(desk, "another thread").end() == "another thread done"
        while desk.entered.acquire(blocking=False):
            pass

    points = at_each_point(Points(group_room), follow, cut, check, (Cut,))
    assert points > 5


# --- signal handlers that write ---


def test_a_handler_may_write_in_the_middle_of_what_its_own_thread_commits(desk: Desk) -> None:
    """Or is refused by the one who commits; it never waits for itself."""
    nested: list[Any] = []

    def meanwhile(names: list[Any]) -> None:
        if names == ["mine"]:
            nested.append(desk.submit("handler"))

    desk.meanwhile = meanwhile
    assert desk.submit("mine") == "mine done"
    assert nested == ["handler done"]
    assert desk.submit("next") == "next done"


def test_a_handler_may_write_while_its_own_thread_waits_for_a_leader(desk: Desk) -> None:
    answers: list[Any] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: answers.append(desk.submit("handler")))
    try:
        first, _ = stand(desk)

        def meanwhile() -> None:
            desk.queued(1)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            desk.queued(2)
            desk.go.set()

        thread = threading.Thread(target=meanwhile, daemon=True)
        thread.start()
        assert desk.submit("mine") == "mine done"
        thread.join(LIMIT)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (first.end(), answers) == ("first done", ["handler done"])


def test_whatever_point_a_handler_that_writes_comes_at_both_writes_are_done(desk: Desk) -> None:
    answers: list[Any] = []

    def check() -> None:
        assert answers.pop() == "outer done"
        assert not answers or answers == ["handler done"]
        answers.clear()
        assert Caller(desk, "another thread").end() == "another thread done"

    def outer() -> None:
        answers.append(desk.submit("outer"))

    def handler() -> None:
        answers.append(desk.submit("handler"))

    assert at_each_point(Points(group_room), outer, handler, check) > 5
