"""The contract of everything that is started and stopped: one list of rules, to be inherited by a test class for each member.

A subclass says in `make` how to make one that was never started. Rules that only what may be started again has to keep are in
`RestartableContract`. All waiting has a limit; threads are told apart by being there before or not.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import pytest

LIMIT = 10.0
"""Seconds after which something that should have ended hangs."""


class Living(Protocol):
    """What is under test, by the words of this contract."""

    def start(self) -> Any: ...

    def stop(self) -> Any: ...


def new_threads(before: set[threading.Thread]) -> set[threading.Thread]:
    """Threads that live now and did not then."""
    return {thread for thread in threading.enumerate() if thread.is_alive()} - before


def within_limit(work: Callable[[], Any], limit: float = LIMIT) -> Any:
    """What `work` returns, run on a thread of its own: so a hang fails the test and not the suite."""
    answers: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="test-within-limit", daemon=True)
    thread.start()
    thread.join(limit)
    assert not thread.is_alive(), f"it hangs for more than {limit:g} s"
    if errors:
        raise errors[0]
    return answers[0]


class LifecycleContract:
    """What may be started once."""

    def make(self) -> Living:
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _threads_before(self) -> None:
        self.before = set(threading.enumerate())

    def left(self) -> set[threading.Thread]:
        return new_threads(self.before)

    def wait_until_none_is_left(self) -> None:
        deadline = time.monotonic() + LIMIT
        while self.left() and time.monotonic() < deadline:
            for thread in self.left():
                thread.join(0.05)
        assert self.left() == set()

    def test_making_one_starts_no_thread(self) -> None:
        one = self.make()
        assert self.left() == set()
        within_limit(one.stop)

    def test_stop_before_start_is_nothing(self) -> None:
        one = self.make()
        within_limit(one.stop)
        within_limit(one.stop)
        assert self.left() == set()

    def test_stop_twice_is_stop_once(self) -> None:
        one = self.make()
        within_limit(one.start)
        within_limit(one.stop)
        within_limit(one.stop)
        self.wait_until_none_is_left()

    def test_no_thread_outlives_stop(self) -> None:
        one = self.make()
        within_limit(one.start)
        within_limit(one.stop)
        self.wait_until_none_is_left()

    def test_all_its_threads_are_daemons(self) -> None:
        """R64: the end of the process waits for none of them."""
        one = self.make()
        within_limit(one.start)
        assert all(thread.daemon for thread in self.left())
        within_limit(one.stop)

    def test_several_threads_may_stop_it_at_once(self) -> None:
        one = self.make()
        within_limit(one.start)
        barrier = threading.Barrier(4)
        failed: list[BaseException] = []

        def stop() -> None:
            barrier.wait(LIMIT)
            try:
                one.stop()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=stop, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
            assert not thread.is_alive()
        assert failed == []
        self.wait_until_none_is_left()


class RestartableContract(LifecycleContract):
    """What may be started again after it was stopped; starting what is started is nothing."""

    def test_start_twice_is_start_once(self) -> None:
        one = self.make()
        within_limit(one.start)
        threads = self.left()
        within_limit(one.start)
        assert self.left() == threads
        within_limit(one.stop)
        self.wait_until_none_is_left()

    def test_stop_then_start_again_as_often_as_one_likes(self) -> None:
        one = self.make()
        for _ in range(5):
            within_limit(one.start)
            assert self.left()
            within_limit(one.stop)
        self.wait_until_none_is_left()

    def test_stop_before_the_first_start_does_not_spoil_it(self) -> None:
        one = self.make()
        within_limit(one.stop)
        within_limit(one.start)
        assert self.left()
        within_limit(one.stop)

    def test_several_threads_may_start_it_at_once(self) -> None:
        """R81: one set of threads, whoever was first."""
        one = self.make()
        barrier = threading.Barrier(16)

        def start() -> None:
            barrier.wait(LIMIT)
            one.start()

        starters = [threading.Thread(target=start, daemon=True) for _ in range(16)]
        for thread in starters:
            thread.start()
        for thread in starters:
            thread.join(LIMIT)
            assert not thread.is_alive()
        names = sorted(thread.name for thread in self.left())
        within_limit(one.stop)
        self.wait_until_none_is_left()
        within_limit(one.start)
        assert sorted(thread.name for thread in self.left()) == names
        within_limit(one.stop)

    def test_starting_and_stopping_at_once_ends_in_one_of_both(self) -> None:
        one = self.make()

        def flip() -> None:
            for _ in range(30):
                one.start()
                one.stop()

        threads = [threading.Thread(target=flip, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(3 * LIMIT)
            assert not thread.is_alive(), "start and shutdown wait for each other"
        within_limit(one.stop)
        self.wait_until_none_is_left()
