"""The moments that touches promised and that only this process knows: who may move one, who may take one, and when it counts."""

import threading
from typing import Any

import pytest

from jobwheel.stores.sqlite import promises as room
from jobwheel.stores.sqlite.promises import Promise, Promises


@pytest.fixture
def promises() -> Promises:
    return Promises()


def kept(promises: Promises, id: int = 1, exact: int = 10, stored: int = 20, until: int | None = None) -> Promise:
    """A promise made at 0 that is in the file."""
    promise = Promise(0, 0, exact, stored, until)
    promises.put(id, promise)
    assert promises.keep(id, promise, 0, exact) == exact
    return promise


@pytest.mark.parametrize(
    ("now", "delay", "due"),
    [(1, 10, 11), (10, 10, 20), (11, 10, None), (0, 10, 10), (5, 4, None)],
    ids=["on", "to what is written", "past it", "not at all", "back"],
)
def test_a_touch_needs_no_write_between_what_was_promised_and_what_is_written(
    promises: Promises, now: int, delay: int, due: int | None
) -> None:
    promise = kept(promises)
    assert promises.move(1, promise, now, delay) == due
    assert promises.exact(1, 0, 20) == (due or 10)


def test_of_two_touches_the_one_that_read_the_clock_first_takes_nothing_back(promises: Promises) -> None:
    promise = kept(promises)
    assert promises.move(1, promise, 7, 10) == 17
    assert promises.move(1, promise, 3, 10) == 17


def test_at_its_bound_a_job_needs_no_write_any_more(promises: Promises) -> None:
    promise = kept(promises, exact=20, stored=20, until=20)
    assert promises.move(1, promise, 15, 10) == 20
    assert promises.move(1, promise, 19, 1000) == 20
    assert promises.move(1, promise, 19, 0) is None, "less than before"


def test_what_is_being_written_is_neither_moved_nor_taken_and_its_exact_moment_not_told(promises: Promises) -> None:
    old = kept(promises)
    promise = Promise(0, 5, 15, 25, None)
    promises.put(1, promise)
    assert promises.move(1, promise, 6, 10) is None
    assert promises.move(1, old, 6, 10) is None
    assert promises.take([1], 0, 1000) == {}
    assert promises.exact(1, 0, 25) == 25
    assert promises.keep(1, promise, 8, 10) == 18
    assert promises.exact(1, 0, 25) == 18
    assert promises.move(1, promise, 9, 10) == 19


def test_a_promise_is_kept_from_a_clock_that_was_read_after_the_write(promises: Promises) -> None:
    promise = Promise(0, 0, 10, 20, None)
    promises.put(1, promise)
    assert promises.keep(1, promise, 11, 10) is None, "the write took longer than it was ahead"
    assert promises.keep(1, promise, 9, 10) == 19


def test_a_promise_that_two_touches_share_is_the_later_one(promises: Promises) -> None:
    promise = Promise(0, 0, 10, 20, None)
    promises.put(1, promise)
    assert promises.keep(1, promise, 5, 10) == 15
    assert promises.keep(1, promise, 2, 10) == 15


def test_what_a_claim_has_taken_no_touch_finds(promises: Promises) -> None:
    promise = kept(promises)
    assert promises.take([1, 2], 0, 9) == {}, "too early"
    assert promises.take([1, 2], 7, 10) == {}, "on another clock"
    taken = promises.take([1, 2], 0, 10)
    assert taken == {1: promise}
    assert promises.move(1, promise, 5, 10) is None
    assert promises.get(1, 0, 20) is None
    promises.give_back(taken)
    assert promises.move(1, promise, 5, 10) == 15


def test_a_newer_promise_is_not_overwritten_by_one_that_is_given_back(promises: Promises) -> None:
    kept(promises)
    taken = promises.take([1], 0, 10)
    newer = kept(promises, exact=30, stored=40)
    promises.give_back(taken)
    assert promises.get(1, 0, 40) is newer


@pytest.mark.parametrize("first", ["touch", "claim"])
def test_of_a_touch_and_a_claim_at_one_moment_the_second_sees_what_the_first_did(promises: Promises, first: str) -> None:
    promise = kept(promises)
    begun = threading.Event()
    answers: list[Any] = []

    def second() -> None:
        begun.set()
        answers.append(promises.move(1, promise, 10, 5) if first == "claim" else promises.take([1], 0, 10))

    thread = threading.Thread(target=second, daemon=True)
    with promises._moving:
        thread.start()
        assert begun.wait(10)
        answer: Any = promises.take([1], 0, 10) if first == "claim" else promises.move(1, promise, 10, 5)
    thread.join(10)
    assert (answer, *answers) == (({1: promise}, None) if first == "claim" else (15, {}))


def test_only_a_row_that_says_what_was_written_has_the_promise(promises: Promises) -> None:
    promise = kept(promises)
    assert promises.get(1, 0, 20) is promise
    assert promises.get(1, 0, 21) is promises.get(1, 3, 20) is promises.get(2, 0, 20) is None
    assert promises.exact(1, 0, 21) == 21


def test_only_the_promise_that_is_named_is_dropped(promises: Promises) -> None:
    promise = kept(promises)
    promises.drop(1, Promise(0, 0, 10, 20, None))
    assert promises.get(1, 0, 20) is promise
    promises.drop(1, promise)
    promises.drop(1)
    assert len(promises) == 0


def test_promises_that_are_over_are_forgotten_and_the_others_stay(promises: Promises, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MANY", 100)
    promises = Promises()
    lasting = kept(promises, id=0, exact=10**6, stored=10**6)
    most = 0
    for number in range(1, 2000):
        promises.put(number, Promise(0, 10 * number, 10 * number + 5, 10 * number + 50, None))
        most = max(most, len(promises))
    assert most <= 101
    assert promises.get(0, 0, 10**6) is lasting
