"""The store contract, one suite for all members. A new member is one line in `STORES`; for shared ones there is `test_shared_stores` too.

The tests speak the language of `jobwheel.store`: rows in, states out, time from a manual clock; no room, no engine, no timer.
"""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import pytest
from shelf import Note, Other, Shelf, Two, at, ids_of, same, together

from jobwheel import BadValue, JobExists, State, TooManyPending
from jobwheel.job import context_of
from jobwheel.row import Row
from jobwheel.state import ENDED, MOVES, check_move
from jobwheel.store import Query
from jobwheel.stores import memory as memory_store
from jobwheel.testing import START
from jobwheel.verdict import SUCCEEDED, Again, Cancelled, Failed, Interrupted, Missed, Succeeded, Verdict

STORES = ["memory", "sqlite"]

DAY = 86_400.0


@pytest.fixture(params=STORES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def shelves(kind: str, tmp_path: Path) -> Iterator[Callable[..., Shelf]]:
    """`shelves(max_pending=..., store={...})` makes a shelf; all are closed at the end."""
    made: list[Shelf] = []

    def make(**settings: Any) -> Shelf:
        made.append(Shelf(kind, f"{tmp_path}/{len(made)}.db", **settings))
        return made[-1]

    yield make
    for shelf in made:
        shelf.store.close()


@pytest.fixture
def shelf(shelves: Callable[..., Shelf]) -> Shelf:
    return shelves()


# --- add ---


def test_an_added_row_is_scheduled_and_can_be_found(shelf: Shelf) -> None:
    row = shelf.add("x", 60, key="k", tags=["t"], priority=4)
    job = shelf.store.get(row.id)
    assert job is not None
    assert (job.id, job.kind, job.key, job.job, job.state, job.attempt) == (row.id, "test_stores.note", "k", Note("x"), State.SCHEDULED, 0)
    assert (job.priority, job.tags) == (4, ("t",))
    assert (job.due - job.created).total_seconds() == 60
    assert shelf.store.get("k") == shelf.store.get(job) == job
    assert shelf.counted() == {"scheduled": 1}


def test_ids_grow_in_the_order_of_the_adds(shelf: Shelf) -> None:
    ids = [shelf.add().id for _ in range(50)]
    assert ids == sorted(set(ids))
    assert ids[0] >= 1


def test_opening_again_changes_nothing(shelf: Shelf) -> None:
    row = shelf.add()
    shelf.store.open()
    assert shelf.ids() == [row.id]


def test_a_closed_store_opens_again_at_its_next_use(shelf: Shelf) -> None:
    row = shelf.add("x", 5)
    shelf.store.close()
    shelf.store.close()
    if shelf.store.durable:
        assert shelf.ids() == [row.id]
        assert shelf.state(row.id) is State.SCHEDULED
    shelf.store.close()
    assert shelf.add().id > row.id


def test_a_picture_names_its_job_as_well_as_id_and_key_do(shelf: Shelf) -> None:
    shelf.add("x", 60, key="k")
    job = shelf.store.get("k")
    assert job is not None
    assert shelf.store.get(job) == job
    assert [same(shelf.store.pause(job), job), same(shelf.store.resume(job), job)] == [True, True]
    touched = shelf.store.touch(job, 5)
    assert touched is not None
    assert (touched[0].id, touched[1], shelf.due("k")) == (job.id, True, 5.0)
    assert same(shelf.store.reschedule(job, 9.0, None), job)
    assert (same(shelf.store.cancel(job), job), shelf.store.retry(job)) == (True, None)


def test_a_row_is_added_with_its_own_moment_delay_and_bound(shelf: Shelf) -> None:
    """Whatever the store does with the row later, it comes back as it was given."""
    row = shelf.add("x", 0.25, key="k", tags=["t", "s"], priority=-7, max_wait=9.5)
    shelf.clock.advance(0.25)
    (run,) = shelf.claim(row)
    assert (run.due, run.delay, run.key, run.priority, run.created) == (0.25, 0.25, "k", -7, 0.0)
    assert run.terms is not None
    assert (run.terms.tags, run.terms.until, run.terms.wall, run.terms.nominal) == (("t", "s"), 9.5, None, None)
    dated = shelf.add("dated", at=at(-3))
    (run,) = shelf.claim(dated)
    assert (run.due, run.delay, run.created, run.terms and run.terms.wall) == (-3.0, None, 0.25, START - 3)


# --- keys ---


def test_replace_cancels_the_one_that_waits_and_gives_both(shelf: Shelf) -> None:
    old = shelf.add("old", 5, key="k")
    new = shelf.row("new", 5, key="k")
    assert shelf.put(new) == (new.id, old.id)
    assert new.id > old.id
    assert (shelf.state(old.id), shelf.state("k")) == (State.CANCELLED, State.SCHEDULED)
    assert shelf.store.get("k") == shelf.store.get(new.id)
    assert shelf.counted() == {"scheduled": 1, "cancelled": 1}
    assert shelf.claim(old) == []


def test_keep_gives_the_one_that_waits_and_adds_nothing(shelf: Shelf) -> None:
    old = shelf.add("old", 5, key="k")
    assert shelf.put(shelf.row("new", 5, key="k"), "keep") == (old.id, None)
    assert shelf.ids() == [old.id]
    assert shelf.counted() == {"scheduled": 1}


def test_error_raises_with_key_and_id_and_adds_nothing(shelf: Shelf) -> None:
    old = shelf.add("old", 5, key="k")
    with pytest.raises(JobExists) as raised:
        shelf.store.add(shelf.row("new", 5, key="k"), "error")
    assert (raised.value.key, raised.value.id) == ("k", old.id)
    assert shelf.ids() == [old.id]
    assert shelf.counted() == {"scheduled": 1}


@pytest.mark.parametrize("if_exists", ["replace", "keep", "error"])
def test_a_key_that_nobody_holds_is_just_taken(shelf: Shelf, if_exists: Any) -> None:
    row = shelf.row("x", key="k")
    assert shelf.put(row, if_exists) == (row.id, None)


@pytest.mark.parametrize("if_exists", ["replace", "keep", "error"])
@pytest.mark.parametrize("how", ["settled", "failed", "cancelled"])
def test_a_row_that_has_ended_holds_no_key(shelf: Shelf, if_exists: Any, how: str) -> None:
    if how == "cancelled":
        shelf.add("old", 5, key="k")
        shelf.store.cancel("k")
    else:
        shelf.ended("old", SUCCEEDED if how == "settled" else Failed("x"), key="k")
    row = shelf.row("new", key="k")
    assert shelf.put(row, if_exists) == (row.id, None)
    assert shelf.state("k") is State.SCHEDULED


def test_a_paused_row_holds_its_key(shelf: Shelf) -> None:
    old = shelf.add("old", 5, key="k")
    shelf.store.pause("k")
    assert shelf.put(shelf.row(key="k"), "keep") == (old.id, None)
    with pytest.raises(JobExists):
        shelf.store.add(shelf.row(key="k"), "error")
    new = shelf.row("new", key="k")
    assert shelf.put(new) == (new.id, old.id)
    assert shelf.counted() == {"scheduled": 1, "cancelled": 1}


def test_while_the_holder_runs_replace_adds_keep_gives_it_and_error_raises(shelf: Shelf) -> None:
    old = shelf.running("old", key="k")
    assert shelf.put(shelf.row(key="k"), "keep") == (old.id, None)
    with pytest.raises(JobExists):
        shelf.store.add(shelf.row(key="k"), "error")
    new = shelf.row("new", key="k")
    assert shelf.put(new) == (new.id, None)
    assert (shelf.state(old.id), shelf.state("k")) == (State.RUNNING, State.SCHEDULED)
    assert shelf.store.settle(old, 1, SUCCEEDED) is State.SUCCEEDED
    assert same(shelf.store.get("k"), new), "the end of the old one leaves the key with the new one"
    with pytest.raises(JobExists):
        shelf.store.add(shelf.row(key="k"), "error")


def test_a_run_whose_key_was_taken_gets_no_further_attempt(shelf: Shelf) -> None:
    old = shelf.running("old", key="k")
    new = shelf.add("new", 5, key="k")
    assert shelf.store.settle(old, 1, Again(5, "ValueError: x")) is State.FAILED
    assert shelf.state("k") is State.SCHEDULED
    job = shelf.store.get(old.id)
    assert job is not None
    assert job.error == "ValueError: x"
    shelf.clock.advance(10)
    assert shelf.claimed(old, new) == [new.id]


def test_a_claimed_row_that_never_started_and_lost_its_key_is_cancelled_when_handed_back(shelf: Shelf) -> None:
    old = shelf.running("old", key="k")
    new = shelf.add("new", key="k")
    assert shelf.store.hand_back([old]) == []
    assert shelf.state(old.id) is State.CANCELLED
    assert shelf.claimed(old, new) == [new.id]


def test_between_attempts_a_row_holds_its_key(shelf: Shelf) -> None:
    row = shelf.running(key="k")
    shelf.store.settle(row, 1, Again(5))
    with pytest.raises(JobExists):
        shelf.store.add(shelf.row(key="k"), "error")
    new = shelf.row(key="k")
    assert shelf.put(new) == (new.id, row.id)


def test_of_several_that_replace_one_key_at_once_one_waits_in_the_end(shelf: Shelf) -> None:
    for _ in range(100):
        rows = [shelf.row(str(number), 50, key="k") for number in range(4)]
        together(*(lambda row=row: shelf.store.add(row, "replace") for row in rows))  # type: ignore[misc]
        assert len(shelf.ids(key="k", states=frozenset({State.SCHEDULED}), limit=1000)) == 1
    assert shelf.counted() == {"scheduled": 1, "cancelled": 399}


def test_of_several_that_add_one_key_with_error_at_once_exactly_one_gets_it(shelf: Shelf) -> None:
    for round_ in range(100):
        rows = [shelf.row(key=f"k{round_}") for _ in range(4)]
        answers = together(*(lambda row=row: shelf.store.add(row, "error") for row in rows))  # type: ignore[misc]
        assert sum(isinstance(answer, JobExists) for answer in answers) == 3
    assert shelf.counted() == {"scheduled": 100}


# --- add_many ---


def test_many_are_added_in_order(shelf: Shelf) -> None:
    rows = [shelf.row(str(number), number) for number in range(10)]
    assert shelf.store.add_many([(row, "replace") for row in rows]) == [(row, None) for row in rows]
    assert shelf.ids() == [row.id for row in rows] == sorted(row.id for row in rows)
    assert shelf.store.add_many([]) == []


def test_many_with_one_conflict_that_is_an_error_add_none(shelf: Shelf) -> None:
    old = shelf.add("old", 5, key="k")
    rows = [shelf.row("a", key="a"), shelf.row("b"), shelf.row("c", key="k"), shelf.row("d", key="d")]
    with pytest.raises(JobExists) as raised:
        shelf.store.add_many([(rows[0], "replace"), (rows[1], "keep"), (rows[2], "error"), (rows[3], "error")])
    assert (raised.value.key, raised.value.id) == ("k", old.id)
    assert shelf.ids() == [old.id]
    assert shelf.counted() == {"scheduled": 1}
    assert shelf.claim(*rows) == []
    for key in ("a", "d"):
        assert shelf.store.get(key) is None
        shelf.add(key=key, if_exists="error")


def test_many_may_keep_replace_and_meet_running_ones(shelf: Shelf) -> None:
    kept, replaced, runs = shelf.add("kept", 5, key="kept"), shelf.add("replaced", 5, key="replaced"), shelf.running("runs", key="runs")
    new = [shelf.row(key="kept"), shelf.row(key="replaced"), shelf.row(key="runs"), shelf.row()]
    answers = shelf.store.add_many([(new[0], "keep"), (new[1], "replace"), (new[2], "replace"), (new[3], "error")])
    assert [(held.id, gone and gone.id) for held, gone in answers] == [
        (kept.id, None),
        (new[1].id, replaced.id),
        (new[2].id, None),
        (new[3].id, None),
    ]
    assert shelf.counted() == {"scheduled": 4, "running": 1, "cancelled": 1}
    assert shelf.state(runs.id) is State.RUNNING


def test_the_same_key_twice_in_many_leaves_the_last(shelf: Shelf) -> None:
    rows = [shelf.row(str(number), key="k") for number in range(3)]
    answers = shelf.store.add_many([(row, "replace") for row in rows])
    assert [held for held, _ in answers] == rows
    assert [gone and gone.id for _, gone in answers] == [None, rows[0].id, rows[1].id]
    assert shelf.counted() == {"scheduled": 1, "cancelled": 2}


def test_while_many_are_added_nobody_claims_a_row_that_is_taken_back(shelf: Shelf) -> None:
    """All or none, also for those who look meanwhile."""
    shelf.add("old", 5, key="k")
    for _ in range(30):
        rows = [shelf.row(str(number), key=f"n{number}") for number in range(50)] + [shelf.row(key="k")]
        orders: list[Any] = [(row, "error") for row in rows]
        answers = together(lambda orders=orders: shelf.store.add_many(orders), lambda rows=rows: [shelf.claim(row) for row in rows])  # type: ignore[misc]
        assert isinstance(answers[0], JobExists)
        assert answers[1] == [[]] * 51
    assert shelf.counted() == {"scheduled": 1}


# --- claim ---


def test_a_claim_makes_due_rows_running_and_counts_the_attempt(shelf: Shelf) -> None:
    row = shelf.add(key="k")
    claim = shelf.claims(row)
    assert (ids_of(claim.rows), list(claim.later), list(claim.held)) == ([row.id], [], [])
    (run,) = claim.rows
    assert (run.attempt, run.state, run.job, run.run) == (1, State.RUNNING, Note(), None)
    assert (shelf.attempt("k"), shelf.state("k")) == (1, State.RUNNING)
    assert shelf.counted() == {"running": 1}


def test_a_claim_of_nothing_is_nothing(shelf: Shelf) -> None:
    assert shelf.store.claim([]).rows == []


def test_what_is_not_due_is_given_back_to_be_armed_again(shelf: Shelf) -> None:
    """A touch came between the room and the claim."""
    row = shelf.add(delay=10)
    (entry,) = shelf.entries(row)
    claim = shelf.store.claim([entry])
    assert (claim.rows, claim.later) == ([], [entry])
    assert entry.due == 10.0
    assert shelf.state(row.id) is State.SCHEDULED
    shelf.clock.advance(10)
    assert ids_of(shelf.store.claim([entry]).rows) == [row.id]


def test_what_does_not_wait_any_more_is_dropped(shelf: Shelf) -> None:
    cancelled, paused, runs, ended = shelf.add(), shelf.add(), shelf.running(), shelf.ended()
    shelf.store.cancel(cancelled.id)
    shelf.store.pause(paused.id)
    claim = shelf.claims(cancelled, paused, runs, ended)
    assert (claim.rows, list(claim.later), list(claim.held)) == ([], [], [])


def test_a_row_named_twice_is_claimed_once(shelf: Shelf) -> None:
    row = shelf.add()
    assert shelf.claimed(row, row) == [row.id]


def test_of_several_claimers_exactly_one_gets_each_row(shelf: Shelf) -> None:
    rows = [shelf.add() for _ in range(500)]
    orders = [list(rows) for _ in range(4)]
    Random(1).shuffle(orders[1])
    orders[2].reverse()
    answers = together(*(lambda order=order: [one for row in order for one in shelf.claim(row)] for order in orders))  # type: ignore[misc]
    claimed = [row.id for answer in answers for row in answer]
    assert sorted(claimed) == sorted(row.id for row in rows)
    assert all(shelf.attempt(row.id) == 1 for row in rows)
    assert shelf.counted() == {"running": 500}


def test_of_a_cancel_and_a_claim_exactly_one_succeeds(shelf: Shelf) -> None:
    """R38."""
    for _ in range(300):
        row = shelf.add()
        claimed, cancelled = together(lambda row=row: shelf.claim(row), lambda row=row: shelf.store.cancel(row.id))  # type: ignore[misc]
        assert bool(claimed) != bool(cancelled)
        for run in claimed:
            shelf.store.settle(run, 1, SUCCEEDED)
    counted = shelf.counted()
    assert counted.get("succeeded", 0) + counted.get("cancelled", 0) == 300
    assert set(counted) <= {"succeeded", "cancelled"}


def test_of_a_touch_and_a_claim_exactly_one_succeeds(shelf: Shelf) -> None:
    """R43."""
    for _ in range(300):
        row = shelf.add()
        claimed, touched = together(lambda row=row: shelf.claim(row), lambda row=row: shelf.store.touch(row.id, 50))  # type: ignore[misc]
        assert bool(claimed) != bool(touched)


def test_a_date_is_not_claimed_before_its_wall_clock_moment(shelf: Shelf) -> None:
    row = shelf.add(at=at(10))
    (entry,) = shelf.entries(row)
    shelf.clock.set_wall(-3)
    shelf.clock.advance(11)
    claim = shelf.store.claim([entry])
    assert (claim.rows, claim.later) == ([], [entry])
    assert entry.due == 13.0
    shelf.clock.advance(2)
    assert ids_of(shelf.store.claim([entry]).rows) == [row.id]


# --- max_running ---


def test_no_more_than_max_running_of_a_kind_are_claimed_and_the_rest_is_told(shelf: Shelf) -> None:
    rows = [shelf.add(job=Two(str(number))) for number in range(5)]
    other = shelf.add()
    entries = shelf.entries(*rows)
    claim = shelf.store.claim([*entries, *shelf.entries(other)])
    assert ids_of(claim.rows) == [rows[0].id, rows[1].id, other.id]
    assert list(claim.held) == [("test_stores.two", entry) for entry in entries[2:]]
    assert list(claim.later) == []
    assert shelf.counted() == {"scheduled": 3, "running": 3}


@pytest.mark.parametrize("how", ["settle", "again", "hand_back"])
def test_each_end_of_a_run_makes_room_for_one(shelf: Shelf, how: str) -> None:
    rows = [shelf.add(job=Two()) for _ in range(5)]
    first, second = shelf.claim(*rows)
    if how == "settle":
        shelf.store.settle(first, 1, Failed("x"))
    elif how == "again":
        shelf.store.settle(first, 1, Again(100))
    else:
        shelf.store.hand_back([first])
    assert shelf.claimed(rows[2], rows[3]) == [rows[2].id]
    assert shelf.store.settle(second, 1, SUCCEEDED) is State.SUCCEEDED
    assert shelf.claimed(rows[3], rows[4]) == [rows[3].id]


def test_max_running_holds_against_several_claimers(shelf: Shelf) -> None:
    for _ in range(50):
        rows = [shelf.add(job=Two()) for _ in range(8)]
        answers = together(*(lambda row=row: shelf.claim(row) for row in rows))  # type: ignore[misc]
        claimed = [row for answer in answers for row in answer]
        assert len(claimed) == 2
        for row in claimed:
            shelf.store.settle(row, row.attempt, SUCCEEDED)
        for row in rows:
            shelf.store.cancel(row.id)


# --- settle ---


@pytest.mark.parametrize(
    ("verdict", "error"),
    [
        (SUCCEEDED, None),
        (Succeeded({"sent": 3}), None),
        (Failed("ValueError: x", "Traceback ..."), "ValueError: x"),
        (Cancelled("enough"), "enough"),
        (Missed("too late"), "too late"),
        (Interrupted("process gone"), "process gone"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_verdict_ends_a_run_in_its_state(shelf: Shelf, verdict: Any, error: str | None) -> None:
    row = shelf.running("x", key="k")
    shelf.clock.advance(3)
    assert shelf.store.settle(row, 1, verdict) is verdict.state
    job = shelf.store.get(row.id)
    assert job is not None
    assert (job.state, job.error, job.attempt) == (verdict.state, error, 1)
    assert job.result == getattr(verdict, "result", None)
    assert job.trace == getattr(verdict, "trace", None)
    assert job.kind == "test_stores.note"
    assert shelf.store.get("k") == job
    assert shelf.counted() == {verdict.state.value: 1}


def test_what_a_run_said_of_itself_is_kept_with_it(shelf: Shelf) -> None:
    row = shelf.running("x", key="k")
    shelf.clock.advance(2)
    row.started = shelf.clock.elapsed()
    context = context_of(row)
    context.begin(2.0, START)
    context.progress(3, 7, "pages")
    context.log("one")
    context.log("two")
    running = shelf.store.get("k")
    assert running is not None
    assert (running.progress, running.log, running.lateness, running.started) == ((3, 7, "pages"), ("one", "two"), 2.0, at(2))
    assert (running.ended, running.result) == (None, None)
    shelf.clock.advance(3)
    assert shelf.store.settle(row, 1, Succeeded({"sent": [1, 2]})) is State.SUCCEEDED
    job = shelf.store.get("k")
    assert job is not None
    assert (job.progress, job.log, job.lateness, job.started, job.ended) == ((3, 7, "pages"), ("one", "two"), 2.0, at(2), at(5))
    assert (job.result, job.cancel_requested, job.timed_out, job.error) == ({"sent": [1, 2]}, False, False, None)


def test_a_run_that_is_asked_to_stop_knows_it(shelf: Shelf) -> None:
    row = shelf.running("x", key="k")
    assert shelf.store.cancel("k") is None
    assert context_of(row).cancel_requested
    context_of(row).timed_out = True
    assert shelf.store.settle(row, 1, Cancelled("enough")) is State.CANCELLED
    job = shelf.store.get("k")
    assert job is not None
    assert (job.cancel_requested, job.timed_out) == (True, True)


def test_a_run_is_settled_once(shelf: Shelf) -> None:
    row = shelf.running()
    assert shelf.store.settle(row, 1, Failed("first")) is State.FAILED
    assert shelf.store.settle(row, 1, SUCCEEDED) is None
    assert shelf.state(row.id) is State.FAILED
    assert shelf.counted() == {"failed": 1}


def test_the_last_error_is_told_until_an_attempt_ends_well(shelf: Shelf) -> None:
    row = shelf.running("x")
    for attempt, error in ((1, "first"), (2, "second")):
        shelf.store.settle(row, attempt, Again(0.0, error, f"trace of {error}"))
        (row,) = shelf.claim(row)
        job = shelf.store.get(row.id)
        assert job is not None
        assert (job.state, job.attempt, job.error, job.trace) == (State.RUNNING, attempt + 1, error, f"trace of {error}")
    shelf.store.settle(row, 3, SUCCEEDED)
    job = shelf.store.get(row.id)
    assert job is not None
    assert (job.state, job.error, job.trace) == (State.SUCCEEDED, None, None)


def test_a_verdict_on_an_earlier_attempt_is_refused(shelf: Shelf) -> None:
    """A thread that hung and ends later must not settle the run that came after its own."""
    row = shelf.running()
    shelf.store.settle(row, 1, Again(0))
    (second,) = shelf.claim(row)
    assert shelf.store.settle(row, 1, Failed("late")) is None
    assert shelf.state(row.id) is State.RUNNING
    assert shelf.store.settle(second, 2, SUCCEEDED) is State.SUCCEEDED


def test_many_are_settled_at_once_each_by_its_own_verdict(shelf: Shelf) -> None:
    rows = [shelf.running(str(number), key=f"k{number}") for number in range(6)]
    shelf.store.cancel("k4")
    shelf.add("newer", 5, key="k5")
    verdicts: list[Verdict] = [SUCCEEDED, Succeeded(3), Failed("x"), Again(5), Again(5), Again(5, "y")]
    states = shelf.store.settle_many([(row, 1, verdict) for row, verdict in zip(rows, verdicts, strict=True)])
    expected = [State.SUCCEEDED, State.SUCCEEDED, State.FAILED, State.SCHEDULED, State.CANCELLED, State.FAILED]
    assert states == expected == [shelf.state(row.id) for row in rows]
    assert [row.state for row in rows] == expected
    assert (rows[3].due, shelf.due("k3")) == (5.0, 5.0)
    assert shelf.store.settle_many([]) == []


PAIRS: list[tuple[Verdict, Verdict]] = [
    (SUCCEEDED, SUCCEEDED),
    (Failed("first"), Failed("second")),
    (SUCCEEDED, Failed("second")),
    (Failed("first"), SUCCEEDED),
    (Again(5, "first"), SUCCEEDED),
    (SUCCEEDED, Again(5, "second")),
]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{type(pair[0]).__name__}-{type(pair[1]).__name__}")
def test_of_two_verdicts_on_one_run_among_many_one_counts_and_the_other_is_told_none(shelf: Shelf, pair: tuple[Verdict, Verdict]) -> None:
    """The watch and the worker may both settle a run at its time limit; listeners and waiting threads must hear of one end."""
    row, other = shelf.running(key="k"), shelf.running()
    states = shelf.store.settle_many([(row, 1, pair[0]), (other, 1, SUCCEEDED), (row, 1, pair[1])])
    assert states[1] is State.SUCCEEDED
    assert sorted([states[0] is None, states[2] is None]) == [False, True]
    counts = states.index(None) == 0
    job = shelf.store.get(row.id)
    assert job is not None
    assert job.state is pair[counts].state is states[2 * counts]
    assert job.error == getattr(pair[counts], "error", None)
    assert row.state is job.state


@pytest.mark.parametrize("verdict", [SUCCEEDED, Failed("in time")], ids=lambda verdict: type(verdict).__name__)
@pytest.mark.parametrize("stale", [SUCCEEDED, Failed("late"), Again(5, "late")], ids=lambda verdict: type(verdict).__name__)
@pytest.mark.parametrize("last", [True, False])
def test_a_verdict_on_an_earlier_attempt_among_many_displaces_none(shelf: Shelf, verdict: Verdict, stale: Verdict, last: bool) -> None:
    first = shelf.running(key="k")
    assert shelf.store.settle(first, 1, Failed("x")) is State.FAILED
    revived = shelf.store.retry(first.id)
    assert revived is not None
    first.run = None if stale is SUCCEEDED else first.run
    (second,) = shelf.claim(revived)
    batch = [(second, 2, verdict), (first, 1, stale)]
    states = shelf.store.settle_many(batch if last else batch[::-1])
    assert (states if last else states[::-1]) == [verdict.state, None]
    job = shelf.store.get("k")
    assert job is not None
    assert (job.state, job.error, job.attempt) == (verdict.state, getattr(verdict, "error", None), 2)


def test_a_row_that_does_not_run_cannot_be_settled(shelf: Shelf) -> None:
    row = shelf.add()
    assert shelf.store.settle(row, 0, SUCCEEDED) is None
    assert shelf.store.settle(row, 1, SUCCEEDED) is None
    assert shelf.state(row.id) is State.SCHEDULED


def test_of_several_that_settle_at_once_exactly_one_does(shelf: Shelf) -> None:
    for _ in range(200):
        row = shelf.running()
        answers = together(*(lambda row=row: shelf.store.settle(row, 1, SUCCEEDED) for _ in range(3)))  # type: ignore[misc]
        assert sorted(answers, key=str) == [None, None, State.SUCCEEDED]
    assert shelf.counted() == {"succeeded": 200}


def test_again_makes_the_row_wait_for_its_next_attempt(shelf: Shelf) -> None:
    row = shelf.running(key="k")
    shelf.clock.advance(2)
    assert shelf.store.settle(row, 1, Again(5.0, "ValueError: x", "trace")) is State.SCHEDULED
    job = shelf.store.get("k")
    assert job is not None
    assert (job.state, job.attempt, job.error, job.trace) == (State.SCHEDULED, 1, "ValueError: x", "trace")
    assert shelf.due("k") == 7.0
    assert shelf.claim(row) == []
    shelf.clock.advance(5)
    (second,) = shelf.claim(row)
    assert (second.id, second.attempt) == (row.id, 2)
    assert shelf.counted() == {"running": 1}


def test_every_attempt_knows_what_the_job_was_scheduled_for(shelf: Shelf) -> None:
    delayed, dated = shelf.add("delayed", 3), shelf.add("dated", at=at(3))
    for _ in range(3):
        shelf.clock.advance(5)
        runs = shelf.claim(delayed, dated)
        for run in runs:
            context_of(run).begin(shelf.clock.elapsed(), shelf.clock.wall() - shelf.clock.elapsed())
        assert [context_of(run).scheduled_for for run in runs] == [at(3), at(3)]
        assert [context_of(run).lateness for run in runs] == [runs[0].started or shelf.clock.elapsed() - run.due for run in runs]
        assert shelf.store.settle_many([(run, run.attempt, Again(0)) for run in runs]) == [State.SCHEDULED] * 2
        delayed, dated = runs
    shelf.store.touch(delayed.id, 5)
    moved = shelf.store.reschedule(dated.id, shelf.clock.elapsed() + 5, None)
    assert moved is not None
    shelf.clock.advance(5)
    runs = shelf.claim(moved, *(row for row in [delayed]))
    for run in runs:
        context_of(run).begin(shelf.clock.elapsed(), shelf.clock.wall() - shelf.clock.elapsed())
    assert [context_of(run).scheduled_for for run in runs] == [at(20), at(20)], "a new moment is a new plan"


def test_a_step_of_the_wall_clock_does_not_move_the_wait_for_another_attempt(shelf: Shelf) -> None:
    row = shelf.running(at=at(-1))
    shelf.store.settle(row, 1, Again(10))
    shelf.entries(row)
    shelf.clock.set_wall(-100)
    assert shelf.store.reanchor() == []
    shelf.clock.advance(10)
    assert shelf.claimed(row) == [row.id]


def test_again_after_a_cancel_request_is_cancelled(shelf: Shelf) -> None:
    row = shelf.running(key="k")
    assert shelf.store.cancel("k") is None
    assert shelf.store.settle(row, 1, Again(5, "x")) is State.CANCELLED
    assert shelf.counted() == {"cancelled": 1}


def test_of_a_cancel_and_an_again_the_job_never_runs_again(shelf: Shelf) -> None:
    """Whichever comes first: the request is seen by the settlement, or the waiting row is cancelled."""
    for _ in range(300):
        row = shelf.running()
        again, cancelled = together(lambda row=row: shelf.store.settle(row, 1, Again(0)), lambda row=row: shelf.store.cancel(row.id))  # type: ignore[misc]
        assert (again, cancelled is not None) in ((State.CANCELLED, False), (State.SCHEDULED, True))
        assert shelf.claim(row) == []
    assert shelf.counted() == {"cancelled": 300}


def test_of_a_replace_and_an_again_the_old_job_never_runs_again(shelf: Shelf) -> None:
    for number in range(300):
        row = shelf.running(key=f"k{number}")
        new = shelf.row("new", 50, key=f"k{number}")
        together(lambda row=row: shelf.store.settle(row, 1, Again(0)), lambda new=new: shelf.store.add(new, "replace"))  # type: ignore[misc]
        assert shelf.claim(row) == []
        assert shelf.state(row.id) in (State.FAILED, State.CANCELLED)
        assert same(shelf.store.get(f"k{number}"), new)
    assert shelf.counted()["scheduled"] == 300


# --- hand_back ---


def test_what_was_claimed_and_not_started_waits_again_uncounted(shelf: Shelf) -> None:
    rows = [shelf.add(str(number), key=f"k{number}") for number in range(3)]
    back = shelf.store.hand_back(shelf.claim(*rows))
    assert ids_of(back) == ids_of(rows)
    assert [row.attempt for row in back] == [shelf.attempt(row.id) for row in rows] == [0, 0, 0]
    assert shelf.counted() == {"scheduled": 3}
    again = shelf.claim(*back)
    assert ids_of(again) == ids_of(rows)
    assert [row.attempt for row in again] == [1, 1, 1]


def test_what_does_not_run_is_not_handed_back(shelf: Shelf) -> None:
    waits, ended = shelf.add(), shelf.ended()
    assert shelf.store.hand_back([waits, ended]) == []
    assert shelf.counted() == {"scheduled": 1, "succeeded": 1}
    assert (shelf.attempt(waits.id), shelf.attempt(ended.id)) == (0, 1)


def test_a_cancel_request_before_the_hand_back_is_kept(shelf: Shelf) -> None:
    row = shelf.running()
    shelf.store.cancel(row.id)
    assert shelf.store.hand_back([row]) == []
    assert shelf.state(row.id) is State.CANCELLED
    assert shelf.claim(row) == []


def test_of_a_cancel_and_a_hand_back_the_job_never_runs(shelf: Shelf) -> None:
    for _ in range(300):
        row = shelf.running()
        back, cancelled = together(lambda row=row: shelf.store.hand_back([row]), lambda row=row: shelf.store.cancel(row.id))  # type: ignore[misc]
        assert (bool(back), cancelled is not None) in ((True, True), (False, False))
        assert shelf.claim(row) == []
    assert shelf.counted() == {"cancelled": 300}


# --- cancel, touch, reschedule, pause, resume ---


def test_cancel_ends_what_waits_and_only_asks_what_runs(shelf: Shelf) -> None:
    waits, paused, runs, ended = shelf.add(delay=5), shelf.add(delay=5), shelf.running(), shelf.ended()
    shelf.store.pause(paused.id)
    answers = [shelf.store.cancel(row.id) for row in (waits, paused, runs, ended)]
    assert [answer and answer.id for answer in answers] == [waits.id, paused.id, None, None]
    assert [shelf.store.cancel(row.id) for row in (waits, paused, runs, ended)] == [None] * 4
    job = shelf.store.get(runs.id)
    assert job is not None
    assert (job.state, job.cancel_requested) == (State.RUNNING, True)
    assert shelf.counted() == {"cancelled": 2, "running": 1, "succeeded": 1}


def test_of_many_those_that_wait_are_cancelled_and_given(shelf: Shelf) -> None:
    waits, paused, ended, runs = shelf.add(delay=5, key="k"), shelf.add(delay=5), shelf.ended(), shelf.running(key="r")
    shelf.store.pause(paused.id)
    gone = shelf.store.cancel_many([waits.id, ended.id, 999, paused.id, runs.id, waits.id])
    assert sorted(ids_of(gone)) == [waits.id, paused.id]
    assert all(row.state is State.CANCELLED for row in gone)
    assert [shelf.state(row.id) for row in (waits, paused, ended, runs)] == [
        State.CANCELLED, State.CANCELLED, State.SUCCEEDED, State.RUNNING,
    ]  # fmt: skip
    assert shelf.store.cancel_many([]) == []
    shelf.add(key="k", if_exists="error")
    assert shelf.counted() == {"scheduled": 1, "running": 1, "cancelled": 2, "succeeded": 1}


def test_a_run_that_was_asked_to_stop_may_still_succeed(shelf: Shelf) -> None:
    row = shelf.running()
    shelf.store.cancel(row.id)
    assert shelf.store.settle(row, 1, SUCCEEDED) is State.SUCCEEDED


def test_unknown_refs_are_none(shelf: Shelf) -> None:
    for ref in ("nope", 999):
        assert shelf.store.cancel(ref) is None
        assert shelf.store.touch(ref, None) is None
        assert shelf.store.touch(ref, 5) is None
        assert shelf.store.reschedule(ref, 5.0, None) is None
        assert shelf.store.pause(ref) is None
        assert shelf.store.resume(ref) is None
        assert shelf.store.retry(ref) is None
        assert shelf.store.get(ref) is None


def test_touch_says_whether_the_row_must_be_armed(shelf: Shelf) -> None:
    row = shelf.add(delay=30, key="k")
    shelf.clock.advance(10)

    def touched(ref: Any, delay: float | None) -> tuple[int, float, bool]:
        answer = shelf.store.touch(ref, delay)
        assert answer is not None
        return answer[0].id, answer[0].due, answer[1]

    assert touched("k", None) == (row.id, 40.0, False)
    assert shelf.due("k") == 40.0
    assert touched("k", 5) == (row.id, 15.0, True)
    assert shelf.due("k") == 15.0
    assert touched(row.id, None) == (row.id, 40.0, False)
    assert shelf.due("k") == 40.0


def test_touch_stops_at_max_wait(shelf: Shelf) -> None:
    row = shelf.add(delay=30, max_wait=50)
    shelf.clock.advance(25)
    shelf.store.touch(row.id, None)
    assert shelf.due(row.id) == 50.0
    shelf.store.touch(row.id, 1000)
    assert shelf.due(row.id) == 50.0
    shelf.store.touch(row.id, 1)
    assert shelf.due(row.id) == 26.0


def test_touch_of_what_does_not_wait_is_none(shelf: Shelf) -> None:
    runs, ended = shelf.running(), shelf.ended()
    assert [shelf.store.touch(row.id, 5) for row in (runs, ended)] == [None, None]


def test_touch_without_a_delay_of_its_own_is_refused_and_changes_nothing(shelf: Shelf) -> None:
    dated, paused = shelf.add(at=at(10)), shelf.add(delay=10)
    shelf.store.pause(paused.id)
    for row in (dated, paused):
        with pytest.raises(BadValue, match="no delay of its own"):
            shelf.store.touch(row.id, None)
        assert shelf.due(row.id) == 10.0
    assert shelf.store.cancel(dated.id) is not None, "the refusal holds nothing"
    assert shelf.store.resume(paused.id) is not None


def test_reschedule_sets_the_moment_and_its_clock(shelf: Shelf) -> None:
    row = shelf.add(delay=30)

    def moved(due: float, wall: float | None) -> None:
        answer = shelf.store.reschedule(row.id, due, wall)
        assert answer is not None
        assert (answer.id, answer.due, answer.state) == (row.id, due, State.SCHEDULED)
        shelf.entries(answer)

    moved(5.0, None)
    assert shelf.due(row.id) == 5.0
    moved(60.0, START + 60)
    shelf.clock.set_wall(20)
    assert [entry.due for entry in shelf.store.reanchor()] == [40.0]
    assert shelf.due(row.id) == 60.0, "shown on the wall clock"
    with pytest.raises(BadValue, match="no delay of its own"):
        shelf.store.touch(row.id, None)
    moved(5.0, None)
    assert shelf.store.reanchor() == []
    touched = shelf.store.touch(row.id, None)
    assert touched is not None
    assert touched[0].due == 30.0, "its own delay is still the one it was added with"


def test_reschedule_of_what_does_not_wait_is_none(shelf: Shelf) -> None:
    runs, ended = shelf.running(), shelf.ended()
    assert [shelf.store.reschedule(row.id, 5.0, None) for row in (runs, ended)] == [None, None]


def test_pause_and_resume_are_true_once(shelf: Shelf) -> None:
    row = shelf.add(key="k")
    assert [same(shelf.store.pause("k"), row), shelf.store.pause("k")] == [True, None]
    assert shelf.counted() == {"paused": 1}
    assert shelf.claim(row) == []
    assert [same(shelf.store.resume("k"), row), shelf.store.resume("k")] == [True, None]
    assert shelf.counted() == {"scheduled": 1}
    assert shelf.claimed(row) == [row.id]
    assert [shelf.store.pause("k"), shelf.store.resume("k")] == [None, None]


def test_a_row_is_paused_between_attempts(shelf: Shelf) -> None:
    row = shelf.running()
    shelf.store.settle(row, 1, Again(0))
    assert same(shelf.store.pause(row.id), row)
    assert shelf.claim(row) == []
    assert same(shelf.store.resume(row.id), row)
    (second,) = shelf.claim(row)
    assert (second.id, second.attempt) == (row.id, 2)


def test_no_move_changes_when_a_job_was_added(shelf: Shelf) -> None:
    row = shelf.add(delay=30, key="k")

    def created() -> Any:
        job = shelf.store.get("k")
        assert job is not None
        return job.created

    shelf.clock.advance(1)
    shelf.store.touch("k", None)
    assert created() == at(0)
    shelf.store.reschedule("k", 60.0, START + 60)
    assert created() == at(0)
    shelf.store.reschedule("k", 1.0, None)
    assert created() == at(0)
    (run,) = shelf.claim(row)
    assert (created(), run.created) == (at(0), 0.0)
    shelf.store.settle(run, 1, Again(5))
    assert created() == at(0)
    shelf.clock.advance(5)
    (run,) = shelf.claim(row)
    shelf.store.settle(run, 2, Failed("x"))
    shelf.store.retry("k")
    assert created() == at(0)


def test_of_a_pause_and_a_claim_exactly_one_succeeds(shelf: Shelf) -> None:
    for _ in range(100):
        row = shelf.add()
        claimed, paused = together(lambda row=row: shelf.claim(row), lambda row=row: shelf.store.pause(row.id))  # type: ignore[misc]
        assert bool(claimed) != (paused is not None)


# --- retry ---


@pytest.mark.parametrize("verdict", [Failed("x"), Missed("x"), Interrupted("x")], ids=lambda verdict: str(verdict.state))
def test_retry_revives_with_id_key_and_tags_due_now(shelf: Shelf, verdict: Verdict) -> None:
    row = shelf.ended("x", verdict, key="k", tags=["t"])
    shelf.clock.advance(100)
    revived = shelf.store.retry("k")
    assert revived is not None
    assert revived.id == row.id
    job = shelf.store.get("k")
    assert job is not None
    assert (job.state, job.job, job.tags, shelf.due("k")) == (State.SCHEDULED, Note("x"), ("t",), 100.0)
    assert shelf.counted() == {"scheduled": 1}
    assert shelf.ids() == [row.id]
    (second,) = shelf.claim(revived)
    assert (second.id, second.attempt) == (row.id, 2)
    assert shelf.store.settle(second, 2, SUCCEEDED) is State.SUCCEEDED
    assert shelf.counted() == {"succeeded": 1}


def test_retry_of_anything_else_is_none(shelf: Shelf) -> None:
    rows = [shelf.add(delay=5), shelf.running(), shelf.ended(), shelf.ended("x", Cancelled()), shelf.add(delay=5)]
    shelf.store.cancel(rows[4].id)
    before = shelf.counted()
    assert [shelf.store.retry(row.id) for row in rows] == [None] * 5
    assert shelf.counted() == before


def test_retry_where_a_live_row_holds_the_key_is_none_and_changes_nothing(shelf: Shelf) -> None:
    failed = shelf.ended("x", Failed("x"), key="k")
    shelf.add("new", 5, key="k")
    assert shelf.store.retry(failed.id) is None
    assert (shelf.state(failed.id), shelf.state("k")) == (State.FAILED, State.SCHEDULED)
    assert shelf.counted() == {"scheduled": 1, "failed": 1}
    shelf.store.cancel("k")
    assert shelf.store.retry(failed.id) is not None


def test_retry_counts_as_one_more_that_waits(shelves: Callable[..., Shelf]) -> None:
    shelf = shelves(max_pending=1)
    failed, done = shelf.ended("x", Failed("x")), shelf.ended()
    waits = shelf.add(delay=5)
    with pytest.raises(TooManyPending):
        shelf.store.retry(failed.id)
    assert [shelf.store.retry(ref) for ref in (done.id, waits.id, 999, "nope")] == [None] * 4, "they could not be retried anyway"
    shelf.store.cancel(waits.id)
    assert same(shelf.store.retry(failed.id), failed)


def test_a_run_that_was_revived_is_a_new_one(shelf: Shelf) -> None:
    """What was asked of the last run, and what it said, is not of the next one."""
    row = shelf.running("x", key="k")
    shelf.store.cancel("k")
    context_of(row).log("first")
    shelf.store.settle(row, 1, Failed("x", "trace"))
    revived = shelf.store.retry("k")
    assert revived is not None
    (second,) = shelf.claim(revived)
    assert second.run is None or not (second.run.lines or second.run.cancel_asked)
    job = shelf.store.get("k")
    assert job is not None
    assert (job.cancel_requested, job.ended) == (False, None)
    assert shelf.store.settle(second, 2, Again(0, "y")) is State.SCHEDULED
    (third,) = shelf.claim(second)
    assert shelf.store.settle(third, 3, SUCCEEDED) is State.SUCCEEDED
    job = shelf.store.get("k")
    assert job is not None
    assert (job.error, job.trace, job.log, job.attempt) == (None, None, (), 3)


def test_a_run_that_goes_on_past_its_time_limit_is_not_tried_beside_itself(shelf: Shelf) -> None:
    """A thread cannot be ended; it was settled as timed out, and hangs still."""
    row = shelf.running("x", key="k")
    context_of(row).timed_out = context_of(row).hung = True
    assert shelf.store.settle(row, 1, Failed("TimedOut")) is State.FAILED
    assert shelf.store.retry("k") is None
    assert shelf.store.retry(row.id) is None
    assert shelf.state("k") is State.FAILED
    context_of(row).hung = False
    revived = shelf.store.retry("k")
    assert same(revived, row)
    assert shelf.claimed(row) == [row.id]


def test_of_several_that_retry_at_once_exactly_one_does(shelf: Shelf) -> None:
    for _ in range(100):
        row = shelf.ended("x", Failed("x"))
        answers = together(*(lambda row=row: shelf.store.retry(row.id) for _ in range(3)))  # type: ignore[misc]
        assert sum(answer is not None for answer in answers) == 1
    assert shelf.counted() == {"scheduled": 100}


def test_a_retry_at_the_moment_of_the_failure_loses_nothing(shelf: Shelf) -> None:
    """The row is revived while the thread that ended it is still filing it."""
    for number in range(100):
        row = shelf.running(key=f"k{number}")

        def retry(row: Row = row) -> Any:
            while (revived := shelf.store.retry(row.id)) is None:
                pass
            return revived

        _, revived = together(lambda row=row: shelf.store.settle(row, 1, Failed("x")), retry)  # type: ignore[misc]
        assert shelf.state(f"k{number}") is State.SCHEDULED
        assert shelf.claimed(revived) == [row.id]
    assert shelf.counted() == {"running": 100}


# --- window, reanchor ---


def fresh(shelf: Shelf, until: float) -> list[Any]:
    """What a room that begins now is given, up to that moment."""
    shelf.store.new_room()
    return [*shelf.sweep(), *shelf.store.window(until)]


def test_a_new_room_is_given_once_what_is_scheduled_and_due_before(shelf: Shelf) -> None:
    rows = [shelf.add(str(delay), delay) for delay in (0, 5, 9.9, 10, 1000)]
    paused, runs = shelf.add(delay=1), shelf.running()
    shelf.store.pause(paused.id)
    shelf.store.settle(runs, 1, Again(3))
    shelf.ended()
    given = fresh(shelf, 10)
    assert sorted((entry.due, entry.id) for entry in given) == [(0, rows[0].id), (3, runs.id), (5, rows[1].id), (9.9, rows[2].id)]
    assert all((entry.priority, entry.kind and entry.kind.name, entry.place) == (0, "test_stores.note", None) for entry in given)
    assert len(fresh(shelf, inf)) == 6
    (now,) = [entry for entry in fresh(shelf, 1) if entry.due <= 0]
    assert ids_of(shelf.store.claim([now]).rows) == [rows[0].id]


def test_reanchor_gives_dates_that_wait_with_their_new_moments(shelf: Shelf) -> None:
    dated, passed, paused = shelf.add("dated", at=at(100)), shelf.add("passed", at=at(30)), shelf.add("paused", at=at(100))
    delayed, runs = shelf.add("delayed", 100), shelf.running("runs", at=at(-5))
    shelf.store.pause(paused.id)
    entries: dict[int, Any] = {entry.id: entry for entry in fresh(shelf, inf)}
    assert {id: entry.due for id, entry in entries.items()} == {dated.id: 100.0, passed.id: 30.0, delayed.id: 100.0}
    shelf.clock.set_wall(50)
    moved: list[Any] = shelf.store.reanchor()
    assert {entry.id: entry.due for entry in moved} == {dated.id: 50.0, passed.id: -20.0}
    assert all(entry is entries[entry.id] for entry in moved), "what the room holds already is moved in it"
    assert (entries[delayed.id].due, shelf.due(dated.id), shelf.state(runs.id)) == (100.0, 100.0, State.RUNNING)
    assert ids_of(shelf.store.claim([entries[passed.id]]).rows) == [passed.id]
    resumed = shelf.store.resume(paused.id)
    assert resumed is not None
    assert resumed.due == 50.0
    shelf.clock.advance(50)
    assert shelf.claimed(resumed) == [paused.id]


def test_a_room_holds_one_entry_for_a_row_and_forgets_it_when_it_is_dropped(shelf: Shelf) -> None:
    row = shelf.add(delay=5, priority=4)
    (entry,) = shelf.entries(row)
    (same_entry,) = shelf.entries(row)
    assert same_entry is entry
    assert (entry.due, entry.priority, entry.kind) == (5.0, 4, Note.jobwheel_kind)
    assert shelf.store.waits(entry)
    touched = shelf.store.touch(row.id, 50)
    assert touched is not None
    assert (touched[1], entry.due) == (False, 50.0), "put off where it is"
    touched = shelf.store.touch(row.id, 1)
    assert touched is not None
    assert (touched[1], shelf.entries(touched[0]), entry.due) == (True, [entry], 1.0)
    cancelled = shelf.store.cancel(row.id)
    assert cancelled is not None
    assert shelf.store.dropped(cancelled) in (entry, None)
    assert not shelf.store.waits(entry)
    assert shelf.store.claim([entry]).rows == []


def test_an_entry_whose_job_runs_or_has_run_waits_no_more(shelf: Shelf) -> None:
    row = shelf.add()
    (entry,) = shelf.entries(row)
    (run,) = shelf.store.claim([entry]).rows
    assert not shelf.store.waits(entry)
    shelf.store.settle(run, 1, Again(5))
    (again,) = shelf.entries(run)
    assert (shelf.store.waits(again), again.due) == (True, 5.0)
    shelf.clock.advance(5)
    (run,) = shelf.store.claim([again]).rows
    shelf.store.settle(run, 2, SUCCEEDED)
    assert not shelf.store.waits(again)


def test_a_paused_row_comes_back_to_the_room_when_it_is_resumed(shelf: Shelf) -> None:
    row = shelf.add(delay=5)
    (entry,) = shelf.entries(row)
    paused = shelf.store.pause(row.id)
    assert paused is not None
    shelf.store.dropped(paused)
    shelf.clock.advance(6)
    claim = shelf.store.claim([entry])
    assert (claim.rows, claim.later) == ([], [])
    resumed = shelf.store.resume(row.id)
    assert resumed is not None
    (entry,) = shelf.entries(resumed)
    assert (entry.due, shelf.store.waits(entry)) == (5.0, True)
    assert ids_of(shelf.store.claim([entry]).rows) == [row.id]


def test_the_oldest_overdue_row_is_known_or_not_told(shelf: Shelf) -> None:
    """A store that only its own process uses need not tell: what is due there is in the dispatcher's hands."""
    assert shelf.store.overdue() is None
    shelf.add(delay=50)
    first, second = shelf.add(delay=5), shelf.add(delay=8)
    assert shelf.store.overdue() is None
    shelf.clock.advance(10)
    assert shelf.store.overdue() == (5.0 if shelf.store.shared else None)
    shelf.claim(first)
    assert shelf.store.overdue() == (8.0 if shelf.store.shared else None)
    shelf.store.pause(second.id)
    assert shelf.store.overdue() is None


# --- find, get, ids ---


def library(shelf: Shelf) -> dict[str, int]:
    rows = {
        "failed": shelf.ended("alpha", Failed("KeyError: zeta"), key="F", tags=["a"]),
        "done": shelf.ended("beta", key="D", tags=["b"]),
        "waits": shelf.add("Gamma", 100, key="W", tags=["a", "b"]),
        "paused": shelf.add("delta", 100, key="P"),
        "cancelled": shelf.add("epsilon", 100, key="C", tags=["a"]),
        "runs": shelf.running(job=Other("theta"), key="R", tags=["b"]),
    }
    shelf.store.pause("P")
    shelf.store.cancel("C")
    return {name: row.id for name, row in rows.items()}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, "failed done waits paused cancelled runs"),
        ({"states": frozenset({State.FAILED, State.RUNNING})}, "failed runs"),
        ({"states": frozenset({State.SCHEDULED})}, "waits"),
        ({"states": frozenset()}, ""),
        ({"kind": "test_stores.other"}, "runs"),
        ({"kind": "nope"}, ""),
        ({"tag": "a"}, "failed waits cancelled"),
        ({"tag": "a", "states": frozenset({State.CANCELLED})}, "cancelled"),
        ({"key": "D"}, "done"),
        ({"text": "gamma"}, "waits"),
        ({"text": "ZETA"}, "failed"),
        ({"text": "nowhere"}, ""),
        ({"kind": "test_stores.note", "tag": "b", "text": "gam"}, "waits"),
        ({"limit": 3}, "failed done waits"),
    ],
    ids=str,
)
def test_find_and_ids_give_what_matches_in_order_of_id(shelf: Shelf, query: dict[str, Any], expected: str) -> None:
    names = {id: name for name, id in library(shelf).items()}
    assert " ".join(names[id] for id in shelf.ids(**query)) == expected
    if "limit" not in query:
        assert " ".join(names[id] for id in shelf.store.ids(Query(**query, limit=1))) == expected, "ids knows no limit"


@pytest.mark.parametrize("limit", [1, 7, 100, 1000])
def test_keyset_pages_give_each_job_once_while_jobs_move(shelf: Shelf, limit: int) -> None:
    rows = [shelf.add(str(number)) for number in range(100)]
    random = Random(limit)
    seen: list[int] = []
    page = shelf.store.find(Query(limit=limit))
    while page:
        seen += [job.id for job in page]
        for row in random.sample(rows, 5):
            for run in shelf.claim(row):
                if random.random() < 0.5:
                    shelf.store.settle(run, run.attempt, SUCCEEDED)
        page = shelf.store.find(Query(after=page[-1].id, limit=limit))
    assert seen == [row.id for row in rows]


def test_a_key_finds_the_live_row_and_else_the_latest_ended_one(shelf: Shelf) -> None:
    first = shelf.ended("1", key="k")
    second = shelf.ended("2", Failed("x"), key="k")
    assert same(shelf.store.get("k"), second)
    third = shelf.add("3", 5, key="k")
    assert same(shelf.store.get("k"), third)
    assert shelf.ids(key="k") == [first.id, second.id, third.id]


def test_a_page_begins_after_the_id_of_the_last_one(shelf: Shelf) -> None:
    rows = [shelf.add(str(number), 5) for number in range(5)]
    assert shelf.ids(after=rows[1].id, limit=2) == ids_of(rows[2:4])
    assert shelf.ids(after=rows[4].id) == []
    assert shelf.store.ids(Query(after=rows[2].id)) == ids_of(rows[3:])


def test_cancelled_ones_are_found_by_id_key_and_state(shelf: Shelf) -> None:
    row = shelf.add("x", 5, key="k", tags=["t"])
    shelf.clock.advance(2)
    shelf.store.cancel("k")
    job = shelf.store.get("k")
    assert job is not None
    assert (job.id, job.state, job.tags, job.ended, job.attempt) == (row.id, State.CANCELLED, ("t",), at(2), 0)
    assert shelf.store.get(row.id) == job


@pytest.fixture
def nervous() -> Iterator[None]:
    """Threads take turns a thousand times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("nervous")
def test_a_job_can_be_found_at_every_moment_of_its_end(shelves: Callable[..., Shelf]) -> None:
    """Whoever looks while it ends sees it before or after, and never not at all."""
    shelf = shelves(store={"keep": 10_000})
    stop = threading.Event()
    current: list[int] = [shelf.add().id]
    missing: list[int] = []

    def look() -> None:
        while not stop.is_set():
            id = current[0]
            if shelf.store.get(id) is None:
                missing.append(id)

    def work() -> None:
        try:
            for number in range(3000):
                row = shelf.add()
                current[0] = row.id
                if number % 2:
                    shelf.store.cancel(row.id)
                else:
                    (run,) = shelf.claim(row)
                    shelf.store.settle(run, 1, SUCCEEDED if number % 4 else Failed("x"))
        finally:
            stop.set()

    together(look, look, work)
    assert missing == []


# --- counts and history ---


def test_counts_are_exact_after_every_move(shelf: Shelf) -> None:  # noqa: C901 (a move has many names)
    random = Random(5)
    rows: list[Row] = []
    runs: dict[int, Row] = {}
    ended: Counter[str] = Counter()
    for _ in range(1200):
        move = random.choice(
            ["add", "add", "key", "claim", "claim", "settle", "again", "back", "cancel", "pause", "resume", "touch", "retry"]
        )
        row = random.choice(rows) if rows else None
        if move == "add" or row is None:
            rows.append(shelf.add(delay=random.choice([0, 0, 5])))
        elif move == "key":
            held, replaced = shelf.store.add(shelf.row(key=random.choice("abc")), random.choice(["replace", "keep"]))
            rows.append(held)
            ended["cancelled"] += replaced is not None
        elif move == "claim":
            runs.update({run.id: run for run in shelf.claim(row)})
        elif move in ("settle", "again"):
            verdict = Again(0) if move == "again" else random.choice([SUCCEEDED, Failed("x"), Missed("x")])
            run = runs.get(row.id, row)
            state = shelf.store.settle(run, run.attempt, verdict)
            if state is not None and state.ended:
                ended[state.value] += 1
        elif move == "back":
            was = shelf.state(row.id)
            if was is State.RUNNING and not shelf.store.hand_back([runs[row.id]]):
                ended["cancelled"] += 1
        elif move == "cancel":
            ended["cancelled"] += shelf.store.cancel(row.id) is not None
        elif move == "retry":
            was = shelf.state(row.id)
            if shelf.store.retry(row.id) is not None:
                assert was is not None
                ended[was.value] -= 1
        elif move == "touch":
            shelf.store.touch(row.id, random.choice([0, 5]))
        else:
            (shelf.store.pause if move == "pause" else shelf.store.resume)(row.id)
        shelf.check()
        assert {name: count for name, count in shelf.counted().items() if State(name).ended} == {
            name: count for name, count in ended.items() if count
        }


def test_history_keeps_the_newest_ended(shelves: Callable[..., Shelf]) -> None:
    shelf = shelves(store={"keep": 20})
    waits = shelf.add(delay=5)
    rows = [shelf.ended(str(number)) for number in range(1000)]
    shelf.store.sweep(0)
    assert shelf.ids(states=ENDED, limit=1000) == [row.id for row in rows[-20:]]
    assert shelf.store.get(rows[0].id) is None
    assert shelf.counted() == {"scheduled": 1, "succeeded": 1000}
    assert shelf.state(waits.id) is State.SCHEDULED


def test_history_forgets_by_age(shelves: Callable[..., Shelf]) -> None:
    shelf = shelves(store={"keep_days": 1})
    old = shelf.ended("old", Failed("x"), key="k")
    shelf.clock.advance(DAY / 2)
    new = shelf.ended("new")
    shelf.clock.advance(DAY / 2 + 1)
    assert shelf.ids() == [new.id]
    assert shelf.store.get("k") is None
    assert shelf.store.retry(old.id) is None
    assert shelf.counted() == {"failed": 1, "succeeded": 1}


def test_what_history_has_forgotten_is_gone_before_anyone_tidies_up(shelves: Callable[..., Shelf]) -> None:
    shelf = shelves(store={"keep_days": 1})
    old = shelf.ended("old", Failed("x"), key="k", tags=["t"])
    shelf.clock.advance(DAY + 1)
    assert shelf.store.get(old.id) is None
    assert shelf.store.get("k") is None
    assert shelf.ids() == shelf.ids(key="k") == shelf.ids(tag="t") == []
    assert shelf.store.ids(Query()) == shelf.store.ids(Query(states=ENDED)) == shelf.store.ids(Query(key="k")) == []
    assert shelf.store.retry(old.id) is None
    assert shelf.store.retry("k") is None
    shelf.store.sweep(0)
    assert shelf.counted() == {"failed": 1}


def test_no_history_keeps_nothing_and_counts_all(shelves: Callable[..., Shelf]) -> None:
    shelf = shelves(store={"keep": 0})
    shelf.ended()
    shelf.ended("x", Failed("x"))
    assert shelf.ids() == []
    assert shelf.counted() == {"succeeded": 1, "failed": 1}


def test_an_older_ended_row_of_a_key_goes_without_taking_the_newer_one_along(shelves: Callable[..., Shelf]) -> None:
    shelf = shelves(store={"keep": 2})
    shelf.ended("1", key="k")
    second = shelf.ended("2", key="k")
    shelf.ended("3")
    shelf.store.sweep(0)
    assert same(shelf.store.get("k"), second)


@pytest.mark.parametrize("order", ["ends", "adds"])
def test_history_keeps_those_that_ended_last_whenever_they_were_added(shelves: Callable[..., Shelf], order: str) -> None:
    shelf = shelves(store={"keep": 2})
    rows = [shelf.running(str(number)) for number in range(5)]
    order_of_ends = rows[::-1] if order == "ends" else rows
    for row in order_of_ends:
        shelf.clock.advance(1)
        shelf.store.settle(row, 1, SUCCEEDED)
    shelf.store.sweep(0)
    assert sorted(shelf.ids()) == sorted(ids_of(order_of_ends[-2:]))


# --- max_pending ---


def test_max_pending_counts_what_waits(shelves: Callable[..., Shelf]) -> None:
    shelf = shelves(max_pending=3)
    rows = [shelf.add(key=f"k{number}") for number in range(3)]
    shelf.store.pause(rows[0].id)
    with pytest.raises(TooManyPending):
        shelf.store.add(shelf.row(), "replace")
    with pytest.raises(TooManyPending):
        shelf.store.add(shelf.row(key="new"), "keep")
    assert shelf.store.get("new") is None
    assert shelf.counted() == {"scheduled": 2, "paused": 1}
    shelf.claim(rows[1])
    shelf.add("in its place")
    with pytest.raises(TooManyPending):
        shelf.store.add(shelf.row(), "replace")
    shelf.store.cancel(rows[0].id)
    shelf.add()


def test_at_the_limit_a_key_may_still_be_replaced_or_kept(shelves: Callable[..., Shelf]) -> None:
    shelf = shelves(max_pending=1)
    old = shelf.add("old", 5, key="k")
    assert shelf.put(shelf.row(key="k"), "keep") == (old.id, None)
    with pytest.raises(JobExists):
        shelf.store.add(shelf.row(key="k"), "error")
    shelf.add("new", 5, key="k")
    assert shelf.counted() == {"scheduled": 1, "cancelled": 1}


def test_max_pending_takes_many_whole_or_not_at_all(shelves: Callable[..., Shelf]) -> None:
    shelf = shelves(max_pending=5)
    shelf.store.add_many([(shelf.row(), "replace") for _ in range(3)])
    with pytest.raises(TooManyPending):
        shelf.store.add_many([(shelf.row(key=f"k{number}"), "replace") for number in range(3)])
    assert shelf.counted() == {"scheduled": 3}
    assert shelf.store.get("k0") is None
    shelf.store.add_many([(shelf.row(), "replace") for _ in range(2)])


def test_max_pending_is_exact_under_several_adders(shelves: Callable[..., Shelf]) -> None:
    shelf = shelves(max_pending=50)

    def add() -> int:
        added = 0
        for _ in range(40):
            try:
                shelf.store.add(shelf.row(), "replace")
            except TooManyPending:
                continue
            added += 1
        return added

    assert sum(together(add, add, add, add)) == 50
    assert shelf.counted() == {"scheduled": 50}


def test_a_row_that_waits_for_its_next_attempt_waits_as_others_do(shelves: Callable[..., Shelf]) -> None:
    """It has been let in before: it comes back whatever waits, and counts."""
    shelf = shelves(max_pending=1)
    run = shelf.running()
    shelf.add(delay=5)
    assert shelf.store.settle(run, 1, Again(5)) is State.SCHEDULED
    with pytest.raises(TooManyPending):
        shelf.store.add(shelf.row(), "replace")
    assert shelf.counted() == {"scheduled": 2}


# --- races of the memory store, one interleaving each ---


@pytest.fixture
def memory() -> Shelf:
    return Shelf("memory", "unused.db")


class Between:
    """Does `meanwhile` once, in the middle of a call of the store: what another thread may do there."""

    def __init__(self, call: Callable[..., Any], meanwhile: Callable[[], Any]) -> None:
        self.call = call
        self.meanwhile: Callable[[], Any] | None = meanwhile

    def __call__(self, *given: Any) -> Any:
        answer = self.call(*given)
        if (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            meanwhile()
        return answer


def test_of_two_touches_the_one_that_read_the_clock_first_does_not_take_back_what_the_other_promised(memory: Shelf) -> None:
    row = memory.add(delay=30, key="k")

    def later_touch() -> None:
        memory.clock.advance(10)
        assert memory.store.touch("k", None) is not None

    memory.store._elapsed = Between(memory.clock.elapsed, later_touch)  # type: ignore[attr-defined]
    assert memory.store.touch("k", None) is not None
    assert row.due == 40.0


def test_a_cancel_that_sees_the_run_and_not_its_end_cancels_the_next_attempt(memory: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    row = memory.running(key="k")
    settled: list[State | None] = []
    between = Between(memory_store.context_of, lambda: settled.append(memory.store.settle(row, 1, Again(0))))
    monkeypatch.setattr(memory_store, "context_of", between)
    cancelled = memory.store.cancel("k")
    assert settled == [State.SCHEDULED]
    assert cancelled is row
    assert memory.claim(row) == []
    assert memory.counted() == {"cancelled": 1}


def test_a_replacement_that_sees_the_run_and_not_its_end_replaces_the_next_attempt(memory: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = memory.running(key="k"), memory.row(key="k")
    between = Between(memory_store.context_of, lambda: memory.store.settle(old, 1, Again(0)))
    monkeypatch.setattr(memory_store, "context_of", between)
    assert memory.store.add(new, "replace")[0] is new
    assert memory.state(old.id) in (State.CANCELLED, State.FAILED)
    assert memory.claim(old, new) == [new]
    assert memory.store.get("k") == memory.store.get(new.id)


def test_a_replacement_that_sees_the_run_and_not_its_good_end_takes_the_free_key(memory: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = memory.running(key="k"), memory.row(key="k")
    between = Between(memory_store.context_of, lambda: memory.store.settle(old, 1, SUCCEEDED))
    monkeypatch.setattr(memory_store, "context_of", between)
    assert memory.store.add(new, "replace") == (new, None)
    assert memory.counted() == {"scheduled": 1, "succeeded": 1}
    assert memory.store.cancel("k") is new


def test_a_cancel_that_sees_the_run_and_not_its_hand_back_cancels_it(memory: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    row = memory.running(key="k")
    between = Between(memory_store.context_of, lambda: memory.store.hand_back([row]))
    monkeypatch.setattr(memory_store, "context_of", between)
    assert memory.store.cancel("k") is row
    assert memory.claim(row) == []


def test_a_cancel_frees_the_job_object_at_once(memory: Shelf) -> None:
    """R46: whatever still refers to the row."""
    row = memory.add(delay=5)
    memory.store.cancel(row.id)
    assert row.job is None


# --- the table of states ---


class Watched(Row):
    """A row that checks each of its moves against the table."""

    __slots__ = ("_before", "_state")

    @property  # type: ignore[override]
    def state(self) -> State:
        return self._state

    @state.setter
    def state(self, to: State) -> None:
        now = getattr(self, "_state", to)
        # SCHEDULED without a token may be a step inside a settlement, which leaves RUNNING.
        step = now is State.SCHEDULED and not hasattr(self, "token") and getattr(self, "_before", None) is State.RUNNING
        if to is not now and not (step and to in MOVES[State.RUNNING]):
            check_move(now, to)
        self._before, self._state = now, to


def test_no_row_ever_moves_but_along_the_table() -> None:
    """For the memory store, whose rows are the truth: a random life of many rows, each move checked as it is made."""
    shelf = Shelf("memory", "unused.db")
    random = Random(11)
    rows: list[Row] = []
    for _ in range(5000):
        move = random.randrange(12)
        row = random.choice(rows[-40:]) if rows else None
        if move < 3 or row is None:
            watched = Watched(Note(), shelf.clock.elapsed(), 0.0, random.choice([None, "a", "b"]), 0, None, Note.jobwheel_kind)
            try:
                shelf.store.add(watched, random.choice(["replace", "keep", "error"]))
            except JobExists:
                continue
            rows.append(watched)
        elif move < 6:
            shelf.claim(row)
        elif move == 6:
            shelf.store.settle(
                row, row.attempt, random.choice([SUCCEEDED, Failed("x"), Again(0), Cancelled(), Missed("x"), Interrupted("x")])
            )
        elif move == 7:
            shelf.store.hand_back([row])
        elif move == 8:
            shelf.store.cancel(row.id)
        elif move == 9:
            shelf.store.retry(row.id)
        else:
            (shelf.store.pause if move == 10 else shelf.store.resume)(row.id)
    assert len(shelf.counted()) > 6
