"""The store contract for recurring jobs: one row for the series, moved by one step from a run's end to the next moment.

As in `test_stores`: rows in, states out, time from a manual clock. The second half is for stores that several processes share.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from mates import Mate, Peer
from shelf import Note, Shelf, at, ids_of, together

from jobwheel import IJob, JobExists, Retry, State, Trigger, cron, every
from jobwheel import trigger as triggers
from jobwheel.job import context_of
from jobwheel.recurring import follow, part
from jobwheel.row import Row
from jobwheel.store import Query
from jobwheel.testing import START, ManualClock
from jobwheel.verdict import SUCCEEDED, Again, Cancelled, Failed, Missed, Onward, Succeeded, Verdict

STORES = ["memory", "sqlite"]
SHARED = ["sqlite"]


@dataclass
class Parallel(IJob, kind="test_recurring_stores.parallel", overlap="parallel", max_running=2):
    text: str = ""

    def run(self) -> None: ...


@dataclass
class Once(IJob, kind="test_recurring_stores.once", on_crash="interrupt"):
    text: str = ""

    def run(self) -> None: ...


@dataclass
class Thrice(IJob, kind="test_recurring_stores.thrice", retry=Retry(attempts=3)):
    def run(self) -> None: ...


@dataclass
class Rich(IJob, kind="test_recurring_stores.rich"):
    words: set[str] = field(default_factory=set)
    numbers: frozenset[int] = frozenset()
    places: dict[str, set[str]] = field(default_factory=dict)

    def run(self) -> None: ...


@dataclass(frozen=True)
class Moons(Trigger, kind="test_recurring_stores.moons"):
    days: int = 1

    def next_due(self, after: datetime) -> datetime | None:
        return after + timedelta(days=self.days)


@pytest.fixture(params=STORES)
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shelf]:
    shelf = Shelf(request.param, str(tmp_path / "jobs.db"))
    yield shelf
    shelf.store.close()


def add(shelf: Shelf, trigger: Any = None, job: IJob | None = None, key: str | None = "k", **given: Any) -> Row:
    """A recurring job of a new id."""
    return shelf.add(job=job or Note("x"), trigger=trigger or every(60), key=key, **given)


def again(shelf: Shelf, trigger: Any = None, job: IJob | None = None, if_exists: Any = "replace", **given: Any) -> tuple[int, int | None]:
    """What the store answers to another add: the id of the row that holds, and of the one that was replaced."""
    return shelf.put(shelf.row(job=job or Note("x"), trigger=trigger or every(60), key="k", **given), if_exists)


def run(shelf: Shelf, row: Row, after: float = 60) -> Row:
    """The row, claimed so many seconds later."""
    shelf.clock.advance(after)
    (claimed,) = shelf.claim(row)
    claimed.started = shelf.clock.elapsed()
    return claimed


def moment(shelf: Shelf, row: Row) -> datetime:
    """What the row's run is for."""
    context = context_of(row)
    context.begin(shelf.clock.elapsed(), shelf.clock.wall() - shelf.clock.elapsed())
    return context.scheduled_for


def settle(shelf: Shelf, row: Row, verdict: Verdict = SUCCEEDED) -> State | None:
    return shelf.store.settle(row, row.attempt, onward(shelf, row, verdict))


def onward(shelf: Shelf, row: Row, verdict: Verdict = SUCCEEDED) -> Verdict:
    return follow(row, verdict, shelf.clock.elapsed(), shelf.clock.wall())


def picture(shelf: Shelf, ref: Any = "k") -> Any:
    job = shelf.store.get(ref)
    assert job is not None
    return job


def counts(shelf: Shelf, ref: Any = "k") -> tuple[int, int, int, int]:
    job = picture(shelf, ref)
    return job.runs, job.failures, job.skipped, job.attempt


# --- adding ---


@pytest.mark.parametrize("state", ["scheduled", "paused", "running"])
def test_an_equal_one_is_the_same_job_in_whatever_state(shelf: Shelf, state: str) -> None:
    row = add(shelf, tags=["old"], priority=1)
    if state == "paused":
        shelf.store.pause(row.id)
    elif state == "running":
        row = run(shelf, row)
    assert again(shelf, tags=["new"], priority=7) == (row.id, None)
    job = picture(shelf)
    assert (job.state, job.priority, job.tags) == (state, 7, ("new",))
    assert job.due == datetime.fromtimestamp(START + 60, UTC)
    assert shelf.ids(tag="old") == []
    assert shelf.ids() == shelf.ids(tag="new") == [row.id]
    shelf.check()


@pytest.mark.parametrize(
    ("trigger", "job"),
    [
        (every(61), None),
        (every(60, jitter=1), None),
        (every(60, start=at(60)), None),
        (cron("* * * * *"), None),
        (None, Note("y")),
        (None, Thrice()),
    ],
    ids=["interval", "jitter", "start", "trigger", "data", "kind"],
)
def test_a_different_one_replaces_it(shelf: Shelf, trigger: Any, job: IJob | None) -> None:
    row = add(shelf)
    held, replaced = again(shelf, trigger, job)
    assert replaced == row.id != held
    assert shelf.state(row.id) is State.CANCELLED
    assert picture(shelf).id == held
    shelf.check()


def test_a_one_shot_is_never_the_same_as_a_recurring_job(shelf: Shelf) -> None:
    row = add(shelf)
    held, replaced = shelf.put(shelf.row("x", 60, key="k"))
    assert replaced == row.id
    assert again(shelf)[1] == held


def test_keep_changes_nothing_and_error_refuses(shelf: Shelf) -> None:
    row = add(shelf, tags=["old"])
    for trigger in (every(60), every(5)):
        assert again(shelf, trigger, if_exists="keep", tags=["new"]) == (row.id, None)
        with pytest.raises(JobExists):
            again(shelf, trigger, if_exists="error", tags=["new"])
    assert picture(shelf).tags == ("old",)
    assert shelf.ids() == [row.id]


def test_after_its_end_an_equal_one_is_a_new_job(shelf: Shelf) -> None:
    row = add(shelf)
    shelf.store.cancel(row.id)
    held, replaced = again(shelf)
    assert held != row.id
    assert replaced is None


def test_many_threads_that_register_the_same_have_one_job(shelf: Shelf) -> None:
    answers = together(*(lambda: again(shelf) for _ in range(12)))
    assert len({held for held, _ in answers}) == 1
    assert {replaced for _, replaced in answers} == {None}
    assert len(shelf.ids()) == 1
    shelf.check()


# --- from one moment to the next ---


def test_the_end_of_a_run_lets_the_row_wait_for_the_next_moment(shelf: Shelf) -> None:
    row = run(shelf, add(shelf))
    assert settle(shelf, row, Succeeded({"n": 1})) is State.SCHEDULED
    job = picture(shelf)
    assert (job.id, job.state, job.due, job.result) == (row.id, State.SCHEDULED, at(120), {"n": 1})
    assert counts(shelf) == (1, 0, 0, 0)
    assert job.last_success == at(60)
    assert shelf.counted() == {"scheduled": 1}
    assert shelf.claim(row) == []
    shelf.clock.advance(60)
    assert shelf.claimed(row) == [row.id]
    assert counts(shelf) == (1, 0, 0, 1)


def test_what_a_run_came_to_is_there_until_the_next_one_has_ended(shelf: Shelf) -> None:
    row = run(shelf, add(shelf))
    settle(shelf, row, Failed("ValueError: x", "trace"))
    job = picture(shelf)
    assert (job.error, job.trace, job.result, job.failures, job.last_success) == ("ValueError: x", "trace", None, 1, None)
    settle(shelf, run(shelf, row))
    job = picture(shelf)
    assert (job.error, job.trace, job.failures, job.runs, job.last_success) == (None, None, 1, 2, at(120))


def test_a_missed_run_is_none(shelf: Shelf) -> None:
    row = run(shelf, add(shelf), after=200)
    row.started = None
    settle(shelf, row, Missed("late"))
    job = picture(shelf)
    assert (job.state, job.due, job.error, job.started) == (State.SCHEDULED, at(240), "late", None)
    assert counts(shelf) == (0, 0, 3, 0)


def test_attempts_are_counted_for_each_run(shelf: Shelf) -> None:
    row = run(shelf, add(shelf, job=Thrice()))
    assert settle(shelf, row, Again(5, "once more")) is State.SCHEDULED
    assert (counts(shelf), picture(shelf).due) == ((0, 0, 0, 1), at(65))
    row = run(shelf, row, after=5)
    assert (row.nth, row.attempt) == (2, 2)
    assert moment(shelf, row) == at(60)
    settle(shelf, row)
    assert (counts(shelf), picture(shelf).due) == ((1, 0, 0, 0), at(120))
    row = run(shelf, row, after=55)
    assert (row.nth, row.attempt) == (1, 3)
    assert moment(shelf, row) == at(120)


def test_a_run_is_settled_once(shelf: Shelf) -> None:
    row = run(shelf, add(shelf))
    attempt, verdict = row.attempt, onward(shelf, row)
    assert shelf.store.settle(row, attempt, verdict) is State.SCHEDULED
    assert shelf.store.settle(row, attempt, verdict) is None
    assert shelf.store.settle(row, attempt, Failed("too late")) is None
    assert counts(shelf) == (1, 0, 0, 0)


def test_several_are_settled_at_once(shelf: Shelf) -> None:
    rows = [add(shelf, key=None) for _ in range(3)] + [shelf.add("once")]
    shelf.clock.advance(60)
    claimed = shelf.claim(*rows)
    for row in claimed:
        row.started = 60.0
    states = shelf.store.settle_many([(row, row.attempt, onward(shelf, row)) for row in claimed])
    assert sorted(states) == ["scheduled", "scheduled", "scheduled", "succeeded"]  # type: ignore[type-var]
    assert [counts(shelf, row.id)[0] for row in rows[:3]] == [1, 1, 1]


@pytest.mark.parametrize("trigger", [every(60), cron("* * * * *"), every(60, start=at(60)), Moons()], ids=str)
def test_the_moments_of_every_trigger_are_kept_exactly(shelf: Shelf, trigger: Any) -> None:
    row = add(shelf, trigger)
    due, step = picture(shelf).due, timedelta(days=1) if isinstance(trigger, Moons) else timedelta(minutes=1)
    for number in range(1, 8):
        row = run(shelf, row, after=step.total_seconds())
        assert moment(shelf, row) == due + (number - 1) * step
        settle(shelf, row)
        assert picture(shelf).due == due + number * step


def test_jitter_moves_the_due_moment_and_not_what_it_is_for(shelf: Shelf) -> None:
    row = add(shelf, every(60, jitter=30))
    for number in range(1, 8):
        late = (picture(shelf).due - at(60 * number)).total_seconds()
        assert 0 <= late < 30
        row = run(shelf, row, after=60 * number + 30 - shelf.clock.elapsed())
        assert moment(shelf, row) == at(60 * number)
        settle(shelf, row)


def test_a_cancel_during_the_run_ends_the_series(shelf: Shelf) -> None:
    row = run(shelf, add(shelf))
    assert shelf.store.cancel("k") is None
    assert settle(shelf, row) is State.CANCELLED
    assert counts(shelf, row.id)[0] == 1
    assert shelf.store.cancel("k") is None
    assert again(shelf)[0] != row.id


def test_a_run_that_cancels_itself_ends_the_series(shelf: Shelf) -> None:
    row = run(shelf, add(shelf))
    assert settle(shelf, row, Cancelled("enough")) is State.CANCELLED
    assert picture(shelf, row.id).error == "enough"


@pytest.mark.parametrize("verdict", [SUCCEEDED, Failed("x"), Missed("late")], ids=lambda verdict: str(verdict.state))
def test_one_that_is_replaced_during_its_run_ends_as_that_did(shelf: Shelf, verdict: Any) -> None:
    row = run(shelf, add(shelf))
    held, replaced = again(shelf, every(5))
    assert held != row.id
    assert replaced is None
    assert settle(shelf, row, verdict) is verdict.state
    assert picture(shelf).id == held
    assert shelf.counted() == {"scheduled": 1, verdict.state.value: 1}


def test_an_equal_add_after_a_cancel_of_the_running_one_is_a_new_job(shelf: Shelf) -> None:
    row = run(shelf, add(shelf))
    shelf.store.cancel("k")
    held, _ = again(shelf)
    assert held != row.id
    assert settle(shelf, row) is State.CANCELLED
    assert (picture(shelf).id, picture(shelf).state) == (held, State.SCHEDULED)


def test_what_is_handed_back_was_not_run(shelf: Shelf) -> None:
    row = run(shelf, add(shelf))
    assert ids_of(shelf.store.hand_back([row])) == [row.id]
    assert (counts(shelf), picture(shelf).due) == ((0, 0, 0, 0), at(60))
    assert shelf.claimed(row) == [row.id]


def test_a_resume_skips_what_passed(shelf: Shelf) -> None:
    row = add(shelf)
    shelf.store.pause("k")
    shelf.clock.advance(200)
    assert picture(shelf).state is State.PAUSED
    resumed = shelf.store.resume("k")
    assert resumed is not None
    assert resumed.due == 240
    assert (counts(shelf), picture(shelf).due, picture(shelf).state) == ((0, 0, 3, 0), at(240), State.SCHEDULED)
    assert shelf.claim(row) == []


def test_a_touch_and_a_reschedule_move_the_next_run_alone(shelf: Shelf) -> None:
    row = add(shelf)
    assert shelf.store.touch("k", 90) is not None
    row = run(shelf, row, after=90)
    settle(shelf, row)
    assert picture(shelf).due == at(120)
    assert shelf.store.reschedule("k", 95, None) is not None
    row = run(shelf, row, after=5)
    settle(shelf, row)
    assert picture(shelf).due == at(120)
    with pytest.raises(ValueError, match="give touch one"):
        shelf.store.touch("k", None)


# --- parallel ---


def parted(shelf: Shelf, row: Row) -> Row | None:
    """The run of a claimed row as a job of its own."""
    moved = part(row, shelf.clock.elapsed(), shelf.clock.wall())
    assert isinstance(moved, Onward)
    return shelf.store.part(row, moved)


def test_a_run_may_become_a_job_of_its_own_while_the_series_goes_on(shelf: Shelf) -> None:
    row = run(shelf, add(shelf, job=Parallel("x"), tags=["t"], priority=4))
    alone = parted(shelf, row)
    assert alone is not None
    series, single = picture(shelf), picture(shelf, alone.id)
    assert (series.id, series.state, series.due, series.runs) == (row.id, State.SCHEDULED, at(120), 1)
    assert (single.state, single.key, single.tags, single.priority, single.attempt) == (State.RUNNING, None, ("t",), 4, 1)
    assert (single.job, single.due, single.trigger) == (Parallel("x"), at(60), None)
    assert moment(shelf, alone) == at(60)
    assert shelf.counted() == {"scheduled": 1, "running": 1}
    assert settle(shelf, alone, Failed("x")) is State.FAILED
    assert shelf.counted() == {"scheduled": 1, "failed": 1}
    shelf.clock.advance(60)
    assert shelf.claimed(row) == [row.id]
    shelf.check()


def test_such_a_run_has_attempts_of_its_own(shelf: Shelf) -> None:
    alone = parted(shelf, run(shelf, add(shelf, job=Parallel())))
    assert alone is not None
    assert settle(shelf, alone, Again(5, "x")) is State.SCHEDULED
    alone = run(shelf, alone, after=5)
    assert (alone.nth, moment(shelf, alone)) == (2, at(60))
    assert settle(shelf, alone) is State.SUCCEEDED
    assert picture(shelf).state is State.SCHEDULED


def test_such_runs_are_counted_by_the_limit_of_their_kind_and_the_series_is_not(shelf: Shelf) -> None:
    row = add(shelf, job=Parallel(), trigger=every(10))
    first = parted(shelf, run(shelf, row, after=10))
    second = parted(shelf, run(shelf, row, after=10))
    assert first is not None
    assert second is not None
    shelf.clock.advance(10)
    claim = shelf.claims(row)
    assert (claim.rows, [name for name, _ in claim.held]) == ([], ["test_recurring_stores.parallel"])
    settle(shelf, first)
    assert shelf.claimed(row) == [row.id]


def test_a_row_that_is_not_the_callers_is_not_parted(shelf: Shelf) -> None:
    row = run(shelf, add(shelf, job=Parallel()))
    moved = part(row, shelf.clock.elapsed(), shelf.clock.wall())
    assert moved is not None
    shelf.store.hand_back([row])
    row.attempt += 1
    assert shelf.store.part(row, moved) is None
    assert shelf.counted() == {"scheduled": 1}


def test_a_cancel_before_the_parting_ends_the_series_and_leaves_the_run(shelf: Shelf) -> None:
    row = run(shelf, add(shelf, job=Parallel()))
    moved = part(row, shelf.clock.elapsed(), shelf.clock.wall())
    assert moved is not None
    shelf.store.cancel("k")
    alone = shelf.store.part(row, moved)
    assert alone is not None
    assert (shelf.state(row.id), shelf.state(alone.id)) == (State.CANCELLED, State.RUNNING)
    assert settle(shelf, alone) is State.SUCCEEDED
    assert shelf.store.get("k") is not None


def test_a_replacement_before_the_parting_ends_the_series_and_leaves_the_run(shelf: Shelf) -> None:
    row = run(shelf, add(shelf, job=Parallel()))
    moved = part(row, shelf.clock.elapsed(), shelf.clock.wall())
    assert moved is not None
    held, _ = again(shelf, every(5))
    alone = shelf.store.part(row, moved)
    assert alone is not None
    assert shelf.state(row.id) in (State.SUCCEEDED, State.CANCELLED)
    assert (shelf.state(alone.id), picture(shelf).id) == (State.RUNNING, held)


# --- a fight ---


def test_adds_of_the_same_job_while_it_runs_again_and_again_never_make_a_second_one(shelf: Shelf) -> None:
    """Registering and settling at the same moments, many times: the row is one all the while, and no settlement is lost."""
    row = add(shelf, every(1))
    first, stop, answers = row.id, threading.Event(), set()

    def register() -> None:
        while not stop.is_set():
            answers.add(again(shelf, every(1)))

    def turn() -> int:
        ended = 0
        try:
            one = row
            for _ in range(150):
                shelf.clock._elapsed += 1
                shelf.clock._wall += 1
                claimed = shelf.claim(one)
                while not claimed:
                    claimed = shelf.claim(one)  # a registration holds it for a few instructions
                (one,) = claimed
                one.started = shelf.clock.elapsed()
                ended += settle(shelf, one) is State.SCHEDULED
        finally:
            stop.set()
        return ended

    assert together(turn, register, register)[0] == 150
    assert answers == {(first, None)}
    assert shelf.ids() == [first]
    assert counts(shelf)[0] == 150


# --- several processes ---


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=SHARED)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Kind and path."""
    return request.param, str(tmp_path / "jobs.db")


@pytest.fixture
def mate(place: tuple[str, str], clock: ManualClock) -> Iterator[Callable[..., Mate]]:
    made: list[Mate] = []

    def make(**settings: Any) -> Mate:
        made.append(Mate(Shelf(*place, clock, **settings)))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def peer(place: tuple[str, str], clock: ManualClock) -> Iterator[Callable[..., Peer]]:
    made: list[Peer] = []

    def make(**settings: Any) -> Peer:
        made.append(Peer(*place, clock, **settings))
        return made[-1]

    yield make
    for one in made:
        one.end()


def recur(one: Any, trigger: Any = None, job: IJob | None = None, key: str | None = "k", **given: Any) -> Any:
    return one.put(job=job or Note("x"), trigger=trigger or every(60), key=key, **given)


def test_processes_that_register_the_same_have_one_job(mate: Callable[..., Mate], peer: Callable[..., Peer]) -> None:
    """At the same moment, too."""
    peers = [peer(), peer(), peer()]
    for one in peers:
        one.begin("put", job=Note("x"), trigger=every(60), key="k")
    answers = [one.answer() for one in peers]
    answers.append(recur(mate()))
    assert len({held for held, _ in answers}) == 1
    assert {replaced for _, replaced in answers} == {None}
    assert len(peers[0].ids()) == 1


def test_equal_sets_and_dicts_are_equal_in_every_process(mate: Callable[..., Mate], peer: Callable[..., Peer]) -> None:
    """Each process orders a set in its own way."""
    words = [f"word {number}" for number in range(40)]

    def rich(order: int) -> Rich:
        turned = words[::order]
        return Rich(set(turned), frozenset(range(40)[::order]), {word: set(turned) for word in turned})

    one = mate()
    first, _ = recur(one, job=rich(1))
    assert {recur(other, job=rich(order)) for other in (peer(), peer(), peer(), one) for order in (1, -1)} == {(first, None)}
    assert recur(one, job=Rich(set(words[1:])))[0] != first


def test_each_moment_is_claimed_by_one_of_them(mate: Callable[..., Mate], peer: Callable[..., Peer], clock: ManualClock) -> None:
    one, others = mate(), [peer(), peer()]
    (id, _), *_ = [recur(each) for each in (one, *others)]
    for each in others:
        each.look()
    ran = []
    for _ in range(8):
        clock.advance(60)
        claims = []
        for each in (one, *others):
            each.look()
        for each in others:
            each.begin("claim_all")
        claims = [one.claim_all(), *(each.answer() for each in others)]
        assert sorted(map(len, claims)) == [0, 0, 1]
        by = claims.index([id])
        ran.append(by)
        if by == 0:
            row = one.runs[id]
            row.started = clock.elapsed()
            assert one.settle(id, onward(one.shelf, row)) is State.SCHEDULED
        else:
            others[by - 1].hand_back(id)
            one.look()
            assert one.claim(id) == [id]
            row = one.runs[id]
            row.started = clock.elapsed()
            assert one.settle(id, onward(one.shelf, row)) is State.SCHEDULED
    job = one.get("k")
    assert job is not None
    assert (job.runs, job.skipped, job.due) == (8, 0, at(540))


def test_the_run_of_a_killed_process_runs_again_for_the_same_moment(
    mate: Callable[..., Mate], peer: Callable[..., Peer], clock: ManualClock
) -> None:
    one, other = mate(), peer()
    id, _ = recur(other, every(60, jitter=5))
    clock.advance(66)
    assert other.claim(id) == [id]
    other.kill()
    assert one.ended() == []
    assert one.claim(id) == [id]
    row = one.runs[id]
    row.started = clock.elapsed()
    assert (row.nth, moment(one.shelf, row)) == (2, at(60))
    assert one.settle(id, onward(one.shelf, row)) is State.SCHEDULED
    job = one.get("k")
    assert job is not None
    assert (job.runs, job.attempt) == (1, 0)
    assert at(120) <= job.due < at(125)


def test_a_run_that_must_not_run_again_is_interrupted_and_the_series_goes_on(
    mate: Callable[..., Mate], peer: Callable[..., Peer], clock: ManualClock
) -> None:
    one, other = mate(), peer()
    id, _ = recur(other, job=Once())
    clock.advance(60)
    assert other.claim(id) == [id]
    other.kill()
    one.look()
    job = one.get("k")
    assert job is not None
    assert (job.state, job.runs, job.failures, job.due) == (State.SCHEDULED, 1, 1, at(120))
    assert "its process died while it ran" in (job.error or "")
    clock.advance(60)
    one.look()
    assert one.claim(id) == [id]


def test_crashes_are_counted_for_each_run_by_itself(mate: Callable[..., Mate], peer: Callable[..., Peer], clock: ManualClock) -> None:
    """A process that dies now and then must not cost a series its later runs."""
    one = mate()
    id, _ = recur(one)
    for number in range(1, 6):
        clock.advance(60 * number - clock.elapsed())
        other = peer()
        other.look()
        assert other.claim(id) == [id]
        other.kill()
        assert one.ended() == []
        assert one.claim(id) == [id], f"crash {number}"
        row = one.runs[id]
        row.started = clock.elapsed()
        assert row.nth == 2
        one.settle(id, onward(one.shelf, row))
    job = one.get("k")
    assert job is not None
    assert (job.runs, job.failures) == (5, 0)


def test_a_run_that_kills_its_process_each_time_has_failed_and_the_next_moment_is_another_chance(
    mate: Callable[..., Mate], peer: Callable[..., Peer], clock: ManualClock
) -> None:
    one = mate()
    id, _ = recur(one)
    clock.advance(60)
    for _ in range(3):
        other = peer()
        other.look()
        assert other.claim(id) == [id]
        other.kill()
        one.look()
    job = one.get("k")
    assert job is not None
    assert (job.state, job.runs, job.failures, job.due) == (State.SCHEDULED, 1, 1, at(120))
    assert "3 times" in (job.error or "")


def test_a_pause_of_one_holds_for_all_and_stays_over_the_registration_of_another(
    mate: Callable[..., Mate], peer: Callable[..., Peer], clock: ManualClock
) -> None:
    one, other = mate(), peer()
    id, _ = recur(one)
    assert other.pause("k")
    assert recur(one) == recur(other) == (id, None)
    clock.advance(100)
    assert one.claim_all() == other.claim_all() == []
    assert one.state("k") is State.PAUSED
    assert other.resume("k")
    assert one.get("k") == other.get("k")
    clock.advance(20)
    one.look()
    assert one.claim(id) == [id]


def test_a_trigger_that_a_process_does_not_know_is_left_to_one_that_does(
    mate: Callable[..., Mate], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rolling deploy: it is told as unresolvable, keeps its key, and waits."""
    one = mate()
    id, _ = recur(one, Moons())
    with monkeypatch.context() as patch:
        patch.delitem(triggers._kinds, "test_recurring_stores.moons")
        other = mate()
        assert other.state("k") is State.UNRESOLVABLE
        clock.advance(86400)
        other.look()
        assert other.claim_all() == []
        assert other.ids(states=frozenset({State.UNRESOLVABLE})) == [id]
    one.look()
    assert one.state("k") is State.SCHEDULED
    assert one.claim(id) == [id]


def test_a_series_is_kept_over_a_reopening(mate: Callable[..., Mate], clock: ManualClock) -> None:
    one = mate()
    id, _ = recur(one, cron("* * * * *", tz="Europe/Berlin"), tags=["t"], priority=3)
    clock.advance(60)
    one.claim(id)
    one.runs[id].started = clock.elapsed()
    one.settle(id, onward(one.shelf, one.runs[id], Failed("x", "trace")))
    before = one.get("k")
    one.close()
    other = mate()
    assert other.get("k") == before
    assert other.shelf.store.find(Query()) == [before]
    assert recur(other, cron("* * * * *", tz="Europe/Berlin"), tags=["t"], priority=3) == (id, None)
    assert other.get("k") == before


def test_a_cancel_by_another_process_during_a_run_ends_the_series(
    mate: Callable[..., Mate], peer: Callable[..., Peer], clock: ManualClock
) -> None:
    one, other = mate(), peer()
    id, _ = recur(one)
    clock.advance(60)
    one.claim(id)
    one.runs[id].started = clock.elapsed()
    assert not other.cancel("k")
    assert one.settle(id, onward(one.shelf, one.runs[id])) is State.CANCELLED
    assert other.state(id) is State.CANCELLED


def test_another_definition_from_another_process_during_a_run_takes_over(
    mate: Callable[..., Mate], peer: Callable[..., Peer], clock: ManualClock
) -> None:
    one, other = mate(), peer()
    id, _ = recur(one)
    clock.advance(60)
    one.claim(id)
    one.runs[id].started = clock.elapsed()
    held, replaced = recur(other, every(5))
    assert (held != id, replaced) == (True, None)
    assert one.settle(id, onward(one.shelf, one.runs[id])) is State.SUCCEEDED
    assert one.ids(key="k", states=frozenset({State.SCHEDULED})) == [held]


def test_the_parallel_run_of_a_killed_process_runs_again_and_the_series_goes_on(
    mate: Callable[..., Mate], place: tuple[str, str], clock: ManualClock
) -> None:
    one = mate()
    id, _ = recur(one, every(60, jitter=5), Parallel("x"))
    clock.advance(66)
    child = together_in_a_child(place, clock, id)
    assert child is not None
    assert one.ended() == []
    assert one.state(child) is State.SCHEDULED
    assert one.claim(child) == [child]
    row = one.runs[child]
    assert (row.nth, moment(one.shelf, row)) == (2, at(60))
    job = one.get("k")
    assert job is not None
    assert (job.state, job.runs) == (State.SCHEDULED, 1)


def together_in_a_child(place: tuple[str, str], clock: ManualClock, id: int) -> int | None:
    """A process that claims the job, parts its run, and dies; the id of the run."""
    context = get_context("spawn")
    line, other = context.Pipe()
    process = context.Process(target=_part_and_die, args=(other, place, clock.boot, clock.elapsed(), clock.wall(), id), daemon=True)
    process.start()
    assert line.poll(30)
    answer: int | None = line.recv()
    process.kill()
    process.join(30)
    return answer


def _part_and_die(line: Any, place: tuple[str, str], boot: str, elapsed: float, wall: float, id: int) -> None:
    clock = ManualClock(wall)
    clock.boot, clock._elapsed = boot, elapsed
    one = Mate(Shelf(*place, clock))
    one.look()
    assert one.claim(id) == [id]
    row = one.runs[id]
    row.started = clock.elapsed()
    alone = parted(one.shelf, row)
    line.send(alone and alone.id)
    threading.Event().wait()
