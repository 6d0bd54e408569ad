"""The contract of stores that several share: what one adds, moves, cancels and runs, the other sees, and both tell the truth.

Each rule holds for two timers of one process and for two processes, on one file. A further member is one line in `SHARED`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mates import HOUR, Mate, Peer
from shelf import Note, Once, Other, Shelf, Two, at, together

from jobwheel import State
from jobwheel.held import ALONE
from jobwheel.state import ENDED
from jobwheel.testing import START, ManualClock
from jobwheel.verdict import Again, Failed, Succeeded

SHARED = ["sqlite"]
SPARE = 1.25
"""Seconds by which a touched job may be later for a process that did not touch it."""


@pytest.fixture(params=SHARED)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


@pytest.fixture
def mate(kind: str, place: str, clock: ManualClock) -> Iterator[Callable[..., Mate]]:
    """`mate(max_pending=...)`: one in this process."""
    made: list[Mate] = []

    def make(**settings: Any) -> Mate:
        made.append(Mate(Shelf(kind, place, clock, **settings)))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def peer(kind: str, place: str, clock: ManualClock) -> Iterator[Callable[..., Peer]]:
    """`peer(max_pending=...)`: one in a process of its own."""
    made: list[Peer] = []

    def make(**settings: Any) -> Peer:
        made.append(Peer(kind, place, clock, **settings))
        return made[-1]

    yield make
    for one in made:
        one.end()


Pair = tuple[Mate, Any]


@pytest.fixture(params=["timer", "process"])
def pair(request: pytest.FixtureRequest, mate: Callable[..., Mate], peer: Callable[..., Peer]) -> Pair:
    """One, and the other: a second store of this process or of another one."""
    return mate(), mate() if request.param == "timer" else peer()


@pytest.fixture
def processes(mate: Callable[..., Mate], peer: Callable[..., Peer]) -> tuple[Mate, Peer]:
    """This process, and another one that can be killed and stopped."""
    return mate(), peer()


# --- seeing ---


def test_both_see_the_same_jobs(pair: Pair) -> None:
    one, other = pair
    first = one.add("a", 5, key="a", tags=["t"], priority=3)
    second = other.add("b", at=at(7), max_wait=None)
    assert first != second
    assert one.ids() == other.ids() == sorted([first, second])
    assert one.counted() == other.counted() == {"scheduled": 2}
    for ref in (first, "a", second):
        assert one.get(ref) == other.get(ref)
    assert one.ids(tag="t") == other.ids(tag="t") == [first]


def test_ids_are_unique_whoever_gives_them(pair: Pair) -> None:
    one, other = pair
    mine, theirs = [one.add() for _ in range(1500)], [id for id, _ in other.put_many(1500)]
    assert len({*mine, *theirs}) == 3000
    assert mine == sorted(mine)
    assert theirs == sorted(theirs)


def test_what_a_run_comes_to_is_seen_by_both(pair: Pair) -> None:
    one, other = pair
    ids = [one.add(str(number)) for number in range(3)]
    assert one.claim(*ids) == ids
    assert [other.state(id) for id in ids] == [State.RUNNING] * 3
    one.settle(ids[0], Succeeded({"n": 1}))
    one.settle(ids[1], Failed("KeyError: x", "trace"))
    one.settle(ids[2], Again(9, "later"))
    assert [one.get(id) for id in ids] == [other.get(id) for id in ids]
    failed = other.get(ids[1])
    assert (failed.error, failed.trace, other.get(ids[0]).result, other.state(ids[2])) == (
        "KeyError: x",
        "trace",
        {"n": 1},
        State.SCHEDULED,
    )
    assert one.counted() == other.counted() == {"scheduled": 1, "succeeded": 1, "failed": 1}


# --- who runs it ---


def test_what_is_due_and_nobody_armed_is_given_to_whoever_looks_first(pair: Pair) -> None:
    """The adder has no timer, as a command line has none."""
    one, other = pair
    id = other.add(armed=False)
    assert one.look() == [id]
    assert one.look() == [], "it is armed"
    assert one.claim(id) == [id]
    assert one.settle(id) is State.SUCCEEDED
    assert other.state(id) is State.SUCCEEDED
    assert other.look() == []


def test_what_falls_due_soon_comes_out_of_the_sweep_before_it_is_due(pair: Pair, clock: ManualClock) -> None:
    one, other = pair
    id = other.add(delay=100, armed=False)
    assert one.look() == [], "far away"
    clock.advance(98)
    assert one.look() == [id]
    assert one.due_of(id) == 100.0
    clock.advance(2)
    assert one.claim(id) == [id]


def test_the_window_of_one_holds_what_the_other_added_before(pair: Pair) -> None:
    one, other = pair
    ids = [other.add(delay=delay, armed=False) for delay in (10, HOUR - 1)]
    far = other.add(delay=2 * HOUR, armed=False)
    one.store.new_room()
    assert one.look() == ids
    assert one.due_of(far) is None


def test_of_two_that_have_armed_a_row_one_claims_it_and_the_other_lets_go(pair: Pair) -> None:
    one, other = pair
    id = one.add()
    assert other.look() == [id]
    assert other.claim(id) == [id]
    assert one.claim(id) == []
    assert one.due_of(id) is None
    assert other.settle(id) is State.SUCCEEDED


def test_of_two_that_claim_at_once_each_row_goes_to_one(processes: tuple[Mate, Peer]) -> None:
    one, other = processes
    ids = [one.add() for _ in range(300)]
    assert sorted(other.look()) == ids
    other.begin("claim_all")
    mine = one.claim_all()
    theirs = other.answer()
    assert sorted([*mine, *theirs]) == ids
    assert one.counted() == {"running": 300}


def test_of_two_timers_that_claim_at_once_each_row_goes_to_one(mate: Callable[..., Mate]) -> None:
    one, other = mate(), mate()
    ids = [one.add() for _ in range(300)]
    other.look()
    mine, theirs = together(one.claim_all, other.claim_all)
    assert sorted([*mine, *theirs]) == ids


def test_a_limited_kind_is_counted_over_all(pair: Pair) -> None:
    one, other = pair
    ids = [one.add(job=Two(str(number))) for number in range(5)]
    assert sorted(other.look()) == ids
    assert one.claim(*ids[:1]) == ids[:1]
    assert other.claim(*ids[1:]) == ids[1:2]
    assert one.claim(*ids[2:]) == other.claim(*ids[2:]) == []
    assert (one.room("test_stores.two"), other.room("test_stores.two")) == (0, 0)
    other.settle(ids[1])
    assert (one.room("test_stores.two"), other.room("test_stores.two")) == (1, 1), "a sweep tells"
    assert one.claim(*ids[2:]) == ids[2:3], "what found no place is held, and may be claimed again"
    assert other.claim(*ids[3:]) == []


def test_of_two_processes_that_claim_a_limited_kind_at_once_no_more_than_may_run(processes: tuple[Mate, Peer]) -> None:
    one, other = processes
    ids = [one.add(job=Two()) for _ in range(40)]
    assert sorted(other.look()) == ids
    ran: list[int] = []
    for _ in range(20):
        other.begin("claim_all")
        mine = one.claim_all()
        theirs = other.answer()
        assert len(mine) + len(theirs) == 2
        for by, claimed in ((one, mine), (other, theirs)):
            for id in claimed:
                by.settle(id)
        ran += [*mine, *theirs]
    assert sorted(ran) == ids


def test_what_a_dead_process_ran_of_a_limited_kind_counts_until_it_is_rescued(processes: tuple[Mate, Peer]) -> None:
    one, other = processes
    ids = [one.add(job=Two(str(number))) for number in range(3)]
    other.look()
    assert other.claim(*ids[:2]) == ids[:2]
    other.kill()
    assert one.claim(ids[2]) == []
    one.look()
    assert one.room("test_stores.two") == 2
    assert one.claim(*ids) == ids[:2]


# --- what a run tells of itself ---


def test_the_progress_and_the_log_of_a_run_are_seen_by_others_after_its_processs_next_look(processes: tuple[Mate, Peer]) -> None:
    one, other = processes
    id = other.add(key="k")
    other.claim(id)
    other.says(id, (3, 10, "third"), "first line", "not UTF-8: \udc80")
    assert one.get("k").progress is None  # type: ignore[union-attr]
    other.look()
    job = one.get("k")
    assert job is not None
    assert (job.progress, job.log) == ((3, 10, "third"), ("first line", "not UTF-8: \\udc80"))
    other.says(id, (0.5, "ten", "odd"))
    other.look()
    assert one.get("k").progress == (0.5, "ten", "odd")  # type: ignore[union-attr]
    other.settle(id)
    assert len(one.get(id).log) == 2  # type: ignore[union-attr]


def test_what_is_urgent_is_found_at_once_however_long_the_backlog_is(mate: Callable[..., Mate]) -> None:
    one = mate()
    for number in range(2000):
        one.add(str(number), armed=False)
    urgent = one.add("urgent", armed=False, priority=5)
    one.shelf.clock.advance(60)
    other = mate()
    sweep = other.store.sweep(100)
    assert [entry.id for entry in sweep.entries] == [urgent]


# --- moving what the other has armed ---


def test_a_cancel_by_the_other_is_never_run(pair: Pair) -> None:
    one, other = pair
    id = one.add(key="k")
    assert other.cancel("k")
    assert not other.cancel("k")
    assert not one.cancel(id)
    assert one.claim(id) == []
    assert one.due_of(id) is None
    assert one.state(id) is State.CANCELLED


def test_what_the_other_puts_off_comes_back_to_be_armed_again(pair: Pair, clock: ManualClock) -> None:
    one, other = pair
    touched, moved, dated = (one.add(key=key, delay=5) for key in ("touched", "moved", "dated"))
    clock.advance(5)
    assert other.touch("touched")
    assert other.reschedule("moved", 20.0)
    assert other.reschedule("dated", 30.0, START + 30)
    assert one.claim(touched, moved, dated) == []
    later = [one.due_of(id) for id in (touched, moved, dated)]
    assert later == [10.0 if isinstance(other, Mate) else 10.0 + SPARE, 20.0, 30.0], "one process knows what it has promised"
    clock.advance(25)
    assert one.claim(touched, moved, dated) == [touched, moved, dated]


@pytest.mark.parametrize("how", ["touch", "reschedule", "date"])
def test_what_the_other_moves_earlier_comes_out_of_the_sweep(pair: Pair, clock: ManualClock, how: str) -> None:
    """Though an entry with the later moment is armed here."""
    one, other = pair
    id = one.add(delay=HOUR / 2)
    if how == "touch":
        assert other.touch(id, 10)
    else:
        assert other.reschedule(id, 10.0, START + 10 if how == "date" else None)
    due = 10.0 if how != "touch" or isinstance(other, Mate) else 10.0 + SPARE
    clock.advance(due - 2)
    assert one.look() == [id]
    assert one.due_of(id) == due
    assert one.claim(id) == []
    clock.advance(2)
    assert one.claim(id) == [id]


def test_what_the_other_runs_now_comes_out_of_the_sweep_at_once(pair: Pair) -> None:
    one, other = pair
    id = one.add(delay=HOUR / 2)
    assert other.reschedule(id, 0.0)
    assert one.look() == [id]
    assert one.claim(id) == [id]


def test_what_the_other_pauses_waits_until_somebody_resumes_it(pair: Pair) -> None:
    one, other = pair
    id = one.add(key="k")
    assert other.pause("k")
    assert not one.pause("k")
    assert one.claim(id) == []
    assert one.look() == []
    assert other.resume("k")
    assert one.look() == [id]
    assert one.claim(id) == [id]
    assert not other.pause("k")


def test_what_one_pauses_the_other_may_resume_before_the_old_entry_comes_up(pair: Pair, clock: ManualClock) -> None:
    one, other = pair
    id = one.add(delay=5)
    assert one.pause(id)
    assert other.resume(id)
    clock.advance(5)
    assert one.look() == [], "it is still armed here"
    assert one.claim(id) == [id]


def test_what_the_other_retries_comes_out_of_the_sweep(pair: Pair) -> None:
    one, other = pair
    id = one.add(key="k")
    one.claim(id)
    one.settle(id, Failed("x"))
    assert other.retry("k")
    assert not one.retry("k")
    assert one.look() == [id]
    assert one.claim(id) == [id]
    assert one.runs[id].attempt == 2


def test_a_touch_stops_at_the_bound_that_the_adder_gave(pair: Pair) -> None:
    one, other = pair
    id = one.add(delay=30, max_wait=50)
    assert other.touch(id, 1000)
    assert one.shelf.due(id) == 50.0


@pytest.mark.parametrize("how", ["cancel", "touch", "reschedule", "pause", "resume", "retry", "replace"])
def test_a_move_of_a_job_that_only_the_other_has_met_knows_it(mate: Callable[..., Mate], peer: Callable[..., Peer], how: str) -> None:
    one, other = mate(), peer()
    id = other.add("x", 50, key="k")
    if how == "resume":
        other.pause("k")
    if how == "retry":
        other.reschedule("k", 0.0)
        other.claim(id)
        other.settle(id, Failed("x"))
    moves: dict[str, Callable[[], Any]] = {
        "cancel": lambda: one.store.cancel("k"),
        "touch": lambda: (one.store.touch("k", 5) or [None])[0],
        "reschedule": lambda: one.store.reschedule("k", 5.0, None),
        "pause": lambda: one.store.pause("k"),
        "resume": lambda: one.store.resume("k"),
        "retry": lambda: one.store.retry("k"),
        "replace": lambda: one.store.add(one.shelf.row(job=Other("new"), key="k"), "replace")[1],
    }
    row = moves[how]()
    assert (row.id, row.kind) == (id, Note.jobwheel_kind)
    if row.state is State.SCHEDULED:
        assert row.job == Note("x")
        assert one.store.entry(row) is not None


# --- what the other runs ---


def test_a_cancel_of_what_the_other_runs_asks_it_to_stop(pair: Pair) -> None:
    one, other = pair
    id = one.add(key="k")
    one.claim(id)
    assert not other.cancel("k")
    assert other.get(id).cancel_requested
    one.look()
    assert one.asked_to_stop(id), "it knows by its next sweep"
    assert one.get(id).cancel_requested  # type: ignore[union-attr]
    assert one.settle(id, Again(0)) is State.CANCELLED
    assert other.state(id) is State.CANCELLED


def test_what_the_other_runs_cannot_be_moved(pair: Pair) -> None:
    one, other = pair
    id = one.add(key="k")
    one.claim(id)
    assert [other.touch("k", 5), other.reschedule("k", 5.0), other.pause("k"), other.resume("k"), other.retry("k")] == [False] * 5


def test_a_newer_job_of_the_other_takes_the_key_of_what_runs_here(pair: Pair) -> None:
    one, other = pair
    old = one.add(key="k")
    one.claim(old)
    assert other.put(key="k", if_exists="error") == "JobExists"
    assert other.put(key="k", if_exists="keep") == (old, None)
    new, replaced = other.put(delay=9, key="k")
    assert (replaced, other.get("k").id) == (None, new)
    assert one.settle(old, Again(0, "x")) is State.FAILED
    assert one.get("k").id == new  # type: ignore[union-attr]


def test_what_another_process_runs_is_settled_and_handed_back_by_it_alone(processes: tuple[Mate, Peer]) -> None:
    one, other = processes
    id = one.add()
    one.claim(id)
    assert other.settle(id) is None
    assert other.settle(id, Failed("x")) is None
    assert other.settle(id, Again(0)) is None
    assert other.hand_back(id) == []
    assert one.state(id) is State.RUNNING
    assert one.settle(id) is State.SUCCEEDED


def test_a_run_that_hangs_in_the_other_is_not_tried_beside_itself(pair: Pair) -> None:
    one, other = pair
    id = one.add(key="k")
    one.claim(id)
    one.hangs(id, True)
    assert one.settle(id, Failed("TimedOut")) is State.FAILED
    assert not other.retry("k")
    assert not one.retry("k")
    one.hangs(id, False)
    one.look()
    assert other.retry("k")
    assert not one.retry("k")


def test_a_run_that_hung_in_a_process_that_is_gone_may_be_tried_again(processes: tuple[Mate, Peer]) -> None:
    one, other = processes
    id = other.add(key="k")
    other.claim(id)
    other.hangs(id, True)
    assert other.settle(id, Failed("TimedOut")) is State.FAILED
    assert not one.retry("k")
    other.kill()
    assert one.retry("k")
    assert one.claim(id) == [id]
    assert one.runs[id].attempt == 2


# --- keys and limits ---


def test_a_key_is_unique_among_all(pair: Pair) -> None:
    one, other = pair
    old = one.add(key="k", delay=5)
    assert other.put(key="k", if_exists="error") == "JobExists"
    assert other.put(key="k", if_exists="keep") == (old, None)
    new, replaced = other.put(key="k", delay=5)
    assert (replaced, one.state(old)) == (old, State.CANCELLED)
    assert one.get("k").id == new  # type: ignore[union-attr]
    assert one.put(key="k", if_exists="keep") == (new, None)


def test_of_two_processes_that_add_the_same_keys_at_once_each_key_goes_to_one(processes: tuple[Mate, Peer]) -> None:
    one, other = processes
    other.begin("put_many", 200, "k")
    mine = one.put_many(200, "k")
    theirs = other.answer()
    for pair_ in zip(mine, theirs, strict=True):
        assert sorted(isinstance(answer, tuple) for answer in pair_) == [False, True]
    assert one.counted() == {"scheduled": 200}


@pytest.mark.parametrize("where", ["timer", "process"])
def test_max_pending_is_exact_over_all(mate: Callable[..., Mate], peer: Callable[..., Peer], where: str) -> None:
    one = mate(max_pending=50)
    if where == "timer":
        other = mate(max_pending=50)
        mine, theirs = together(lambda: one.put_many(40), lambda: other.put_many(40))
    else:
        process = peer(max_pending=50)
        process.begin("put_many", 40)
        mine = one.put_many(40)
        theirs = process.answer()
    answers = [*mine, *theirs]
    assert sum(answer == "TooManyPending" for answer in answers) == 30
    assert one.counted() == {"scheduled": 50}
    assert one.cancel(next(answer for answer in answers if answer != "TooManyPending")[0])
    assert one.put() != "TooManyPending"


# --- the death of a process ---


def test_what_a_killed_process_ran_runs_again_with_the_attempt_counted(processes: tuple[Mate, Peer]) -> None:
    one, other = processes
    id = other.add("x", key="k")
    assert other.claim(id) == [id]
    assert one.ended() == []
    assert one.state("k") is State.RUNNING
    other.kill()
    assert one.look() == [id]
    assert one.claim(id) == [id]
    assert (one.runs[id].attempt, one.runs[id].job) == (2, one.get(id).job)  # type: ignore[union-attr]
    assert one.settle(id) is State.SUCCEEDED
    assert one.counted() == {"succeeded": 1}


def test_what_a_killed_process_had_armed_is_run_by_the_others(processes: tuple[Mate, Peer], clock: ManualClock) -> None:
    one, other = processes
    ids = [other.add(delay=delay) for delay in (0, 5)]
    other.kill()
    assert one.look() == ids[:1]
    clock.advance(5)
    assert one.look() == ids[1:]
    assert one.claim(*ids) == ids
    assert [one.runs[id].attempt for id in ids] == [1, 1]


def test_what_must_run_at_most_once_is_interrupted_and_told(processes: tuple[Mate, Peer]) -> None:
    one, other = processes
    id = other.add(job=Once("x"), key="k")
    other.claim(id)
    other.kill()
    ((ended, state, error),) = one.ended()
    assert (ended, state) == (id, State.INTERRUPTED)
    assert error is not None
    assert "its process died" in error
    job = one.get("k")
    assert job is not None
    assert (job.state, job.error, job.attempt, job.job) == (State.INTERRUPTED, error, 1, Once("x"))
    assert one.ended() == [], "told once"
    assert one.retry("k"), "somebody who knows better may"


def test_of_what_was_asked_to_stop_or_replaced_nothing_runs_again(processes: tuple[Mate, Peer]) -> None:
    one, other = processes
    asked, replaced = other.add(key="asked"), other.add(key="replaced")
    other.claim(asked, replaced)
    assert not one.cancel("asked")
    newer = one.add(key="replaced", delay=50)
    other.kill()
    assert sorted((id, state) for id, state, _ in one.ended()) == sorted([(asked, State.CANCELLED), (replaced, State.FAILED)])
    assert one.get("replaced").id == newer  # type: ignore[union-attr]
    assert one.counted() == {"scheduled": 1, "cancelled": 1, "failed": 1}


def test_a_job_that_kills_its_process_each_time_ends_as_failed(mate: Callable[..., Mate], peer: Callable[..., Peer]) -> None:
    one = mate()
    id = one.add("x", armed=False)
    for attempt in range(1, 4):
        process = peer()
        process.look()
        assert process.claim(id) == [id]
        assert one.shelf.attempt(id) == attempt
        process.kill()
        ended = one.ended()
    assert [(ended_id, state) for ended_id, state, _ in ended] == [(id, State.FAILED)]
    job = one.get(id)
    assert job is not None
    assert job.attempt == 3
    assert job.error is not None
    assert "its process died while it had the job, 3 times" in job.error
    assert one.look() == []


def test_of_jobs_that_two_processes_died_with_each_process_has_one_at_a_time(mate: Callable[..., Mate], peer: Callable[..., Peer]) -> None:
    """One of them may be what kills: so the next death befalls none of the others."""
    one = mate()
    ids, fresh = [one.add(str(number), armed=False) for number in range(3)], one.add("fresh")
    for _ in range(2):
        process = peer()
        process.look()
        assert process.claim(*ids) == ids
        process.kill()
        one.look()
    assert one.claim(*ids, fresh) == [ids[0], fresh]
    assert one.claim(*ids[1:]) == []
    other = peer()
    other.look()
    assert other.claim(*ids[1:]) == [ids[1]]
    assert one.room(ALONE) == 0
    one.settle(ids[0])
    assert one.room(ALONE) == 1
    assert one.claim(*ids[2:]) == [ids[2]]


def test_a_job_that_kills_takes_no_other_with_it(mate: Callable[..., Mate], peer: Callable[..., Peer]) -> None:
    """Each process claims what there is, and dies when the first of them runs."""
    one = mate()
    poison, *others = ids = [one.add(str(number), armed=False) for number in range(5)]
    for claimed in (ids, ids, [poison]):
        process = peer()
        process.look()
        assert process.claim(*ids) == claimed
        process.kill()
        one.look()
    assert one.state(poison) is State.FAILED
    for id in others:
        assert one.claim(id) == [id]
        assert one.settle(id) is State.SUCCEEDED


def test_a_death_counts_as_one_attempt_among_the_others(mate: Callable[..., Mate], peer: Callable[..., Peer]) -> None:
    one = mate()
    id = one.add("x", delay=0)
    one.claim(id)
    assert one.settle(id, Again(0, "ValueError: first")) is State.SCHEDULED
    process = peer()
    process.look()
    assert process.claim(id) == [id]
    process.kill()
    assert one.ended() == []
    assert (one.state(id), one.shelf.attempt(id)) == (State.SCHEDULED, 2)


def test_a_process_that_stands_still_is_not_dead(processes: tuple[Mate, Peer]) -> None:
    one, other = processes
    id = other.add()
    other.claim(id)
    other.stop()
    try:
        assert one.ended() == []
        assert one.look() == []
        assert one.state(id) is State.RUNNING
        assert one.add() > 0, "nor does it hold up the others"
    finally:
        other.cont()
    assert other.settle(id) is State.SUCCEEDED


def test_a_process_that_closes_in_order_leaves_nothing_to_see_to(processes: tuple[Mate, Peer]) -> None:
    one, other = processes
    id = other.add()
    other.claim(id)
    other.hand_back(id)
    other.close()
    assert one.ended() == []
    assert one.claim(id) == [id]
    assert one.runs[id].attempt == 1


def test_a_process_that_closes_while_it_runs_something_lives_on_for_it(processes: tuple[Mate, Peer]) -> None:
    """What outlives a shutdown must not run a second time beside itself."""
    one, other = processes
    id = other.add()
    other.claim(id)
    other.close()
    assert one.ended() == []
    assert one.look() == []
    assert one.state(id) is State.RUNNING
    assert other.settle(id) is State.SUCCEEDED
    assert one.state(id) is State.SUCCEEDED


# --- history ---


def test_both_see_the_same_history(pair: Pair) -> None:
    one, other = pair
    ids = [one.add(str(number)) for number in range(4)]
    one.claim(*ids)
    for id in ids:
        one.settle(id)
    assert other.ids(states=ENDED) == ids
    assert one.counted() == other.counted() == {"succeeded": 4}
