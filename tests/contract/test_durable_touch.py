"""Touches in a file that processes share: how often they are written, and that no job starts before what was promised of it.

Another process is a peer (`mates`); clocks stand unless a test moves them. `DELAY` is each job's own.
"""

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from mates import Mate, Peer
from shelf import Shelf

from jobwheel import IJob, JobContext, State, StoreError
from jobwheel.errors import BadValue
from jobwheel.store import Query
from jobwheel.stores.sqlite import claims, touching
from jobwheel.stores.sqlite.group import Group
from jobwheel.stores.sqlite.moments import SECOND
from jobwheel.testing import START, ManualClock, manual_timer
from jobwheel.verdict import Again

DELAY = 10.0
SPARE = touching.AHEAD / SECOND


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


@pytest.fixture
def mate(place: str, clock: ManualClock) -> Iterator[Callable[[], Mate]]:
    """`mate()`: a timer's part, in this process."""
    made: list[Mate] = []

    def make() -> Mate:
        made.append(Mate(Shelf("sqlite", place, clock)))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def peer(place: str, clock: ManualClock) -> Iterator[Callable[[], Any]]:
    """`peer()`: another process."""
    made: list[Peer] = []

    def make() -> Peer:
        made.append(Peer("sqlite", place, clock))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture
def one(mate: Callable[[], Mate]) -> Mate:
    return mate()


@pytest.fixture
def sql(place: str) -> Callable[..., list[Any]]:
    def execute(statement: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(place)) as connection, connection:
            return connection.execute(statement, values).fetchall()

    return execute


@pytest.fixture
def row(sql: Callable[..., list[Any]]) -> Callable[[int], tuple[float, bool]]:
    """Of a job: its due moment in the file, and whether some process may start it earlier."""

    def look(id: int) -> tuple[float, bool]:
        ((due, toucher),) = sql("SELECT due, toucher FROM job WHERE id = ?", id)
        return due / SECOND, toucher is not None

    return look


Row = Callable[[int], tuple[float, bool]]


def file_of(mate: Mate) -> Any:
    return mate.store._file  # type: ignore[attr-defined]


def written(mate: Mate) -> int:
    """Rows that this process has changed in the file, so far."""
    return int(file_of(mate)._writer.total_changes)


def before(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, do: Callable[[], object], after: bool = False) -> None:
    """The next call of that method does this first, or last."""
    method = getattr(owner, name)
    left = [do]

    def wrapped(*given: Any, **named: Any) -> Any:
        if left and not after:
            left.pop()()
        answer = method(*given, **named)
        if left:
            left.pop()()
        return answer

    monkeypatch.setattr(owner, name, wrapped)


# --- how often it is written ---


def test_a_busy_key_is_written_at_most_once_a_second_and_never_later_than_it_promises(one: Mate, clock: ManualClock, row: Row) -> None:
    """200 touches a second for 5 seconds."""
    id = one.add(delay=DELAY, key="k")
    begin = written(one)
    for _ in range(1000):
        clock.advance(0.005)
        assert one.touch("k")
        assert 0 <= row(id)[0] - (clock.elapsed() + DELAY) <= SPARE + 1e-6
        assert one.due_of(id) == pytest.approx(clock.elapsed() + DELAY, abs=1e-6)
    assert written(one) - begin <= 5
    clock.advance(DELAY - 0.001)
    assert one.claim(id) == []
    clock.advance(0.001)
    assert one.claim(id) == [id]


def test_a_thousand_keys_are_each_written_at_most_once_a_second(one: Mate, clock: ManualClock) -> None:
    ids = [id for id, _ in one.put_many(1000, "k")]
    for id in ids:
        one.reschedule(id, DELAY)
    begin = written(one)
    for _ in range(10):
        clock.advance(0.1)
        assert all(one.touch(id, DELAY) for id in ids)
    assert written(one) - begin == 1000


@pytest.mark.parametrize(("delay", "writes"), [(DELAY, 0), (DELAY + SPARE, 0), (DELAY + SPARE + 1, 1), (DELAY - 1, 1)])
def test_a_touch_that_asks_for_more_than_is_written_or_for_less_than_is_promised_is_written(
    one: Mate, delay: float, writes: int, row: Row
) -> None:
    id = one.add(delay=DELAY)
    assert one.touch(id)
    begin = written(one)
    assert one.touch(id, delay)
    assert written(one) - begin == writes
    assert one.due_of(id) == delay
    assert row(id) == (delay + SPARE if writes else DELAY + SPARE, True)


def test_touches_of_what_does_not_wait_write_nothing(one: Mate) -> None:
    ran, gone = one.add(key="ran"), one.add(key="gone")
    one.claim(ran)
    one.cancel(gone)
    begin = written(one)
    assert not any(one.touch(ref, 5) for ref in (ran, gone, "ran", "gone", "never", 77))
    assert written(one) == begin
    one.settle(ran)
    begin = written(one)
    assert not one.touch("ran", 5)
    assert written(one) == begin


def test_touched_up_to_its_bound_a_job_runs_there_and_nothing_more_is_written(one: Mate, clock: ManualClock, row: Row) -> None:
    id = one.add(delay=DELAY, max_wait=30)
    while clock.elapsed() < 29:
        assert one.touch(id)
        assert row(id)[0] <= 30
        if clock.elapsed() >= 20:
            assert one.due_of(id) == row(id)[0] == 30
        if clock.elapsed() == 20:
            begin = written(one)
        clock.advance(1)
    assert written(one) == begin
    assert one.claim(id) == []
    clock.advance(1)
    assert one.claim(id) == [id]


def test_a_paused_job_has_just_the_moment_that_a_touch_gives_it(one: Mate, row: Row) -> None:
    id = one.add(delay=DELAY)
    assert one.touch(id)
    assert one.pause(id)
    assert one.touch(id, 7)
    assert row(id) == (7.0, False)
    with pytest.raises(BadValue, match="no delay of its own"):
        one.touch(id)
    assert row(id) == (7.0, False)


# --- who runs it, and when ---


def test_only_the_touching_process_starts_it_at_its_exact_moment_the_others_when_the_file_says(
    one: Mate, peer: Callable[[], Any], clock: ManualClock
) -> None:
    other = peer()
    mine, theirs = one.add(delay=DELAY), other.add(delay=DELAY)
    clock.advance(4)
    assert one.touch(mine)
    assert other.touch(theirs)
    clock.advance(DELAY - 2)
    one.look()
    other.look()
    clock.advance(2)
    assert (one.due_of(mine), one.due_of(theirs)) == (14.0, 14.0 + SPARE)
    assert (other.due_of(theirs), other.due_of(mine)) == (14.0, 14.0 + SPARE)
    assert one.claim(theirs) == other.claim(mine) == []
    assert one.claim(mine) == [mine]
    assert other.claim(theirs) == [theirs]


def test_what_nobody_starts_at_its_exact_moment_anybody_does_a_second_later(one: Mate, peer: Callable[[], Any], clock: ManualClock) -> None:
    other = peer()
    id = one.add(delay=DELAY)
    assert one.touch(id)
    clock.advance(DELAY + SPARE - 0.001)
    other.look()
    assert other.claim(id) == []
    clock.advance(0.001)
    assert other.claim(id) == [id]
    assert one.claim(id) == []
    assert not one.touch(id)


def test_the_exact_moment_is_what_the_run_is_late_against_and_what_it_was_scheduled_for(one: Mate, clock: ManualClock, row: Row) -> None:
    ids = [one.add(delay=DELAY) for _ in range(2)]
    for id in ids:
        assert one.touch(id)
    clock.advance(DELAY + 0.5)
    assert one.claim(ids[0]) == [ids[0]]
    clock.advance(3)
    assert one.claim(ids[1]) == [ids[1]], "anybody might have by now"
    for id in ids:
        assert one.runs[id].due == DELAY
        assert row(id) == (DELAY, False)


def test_a_picture_has_the_exact_moment_in_the_touching_process_and_the_written_one_elsewhere(one: Mate, peer: Callable[[], Any]) -> None:
    other = peer()
    id = one.add(delay=DELAY, key="k")
    assert one.touch("k")
    assert [job.due.timestamp() - START for job in (one.get(id), other.get(id)) if job] == [DELAY, DELAY + SPARE]
    assert [job.due.timestamp() for job in one.store.find(Query())] == [START + DELAY]


def test_every_timer_of_the_touching_process_knows_the_exact_moment(mate: Callable[[], Mate], clock: ManualClock) -> None:
    one, other = mate(), mate()
    id = one.add(delay=DELAY)
    assert one.touch(id)
    other.look()
    assert other.due_of(id) is None, "far away"
    begin = written(one)
    clock.advance(1)
    assert other.touch(id)
    assert written(one) == begin
    assert other.due_of(id) == DELAY + 1
    clock.advance(DELAY - 0.5)
    assert one.claim(id) == []
    assert one.due_of(id) == DELAY + 1, "it had the moment before"
    clock.advance(0.5)
    assert other.claim(id) == [id]


def test_a_room_that_is_made_anew_is_given_the_exact_moment(one: Mate) -> None:
    ids = [one.add(delay=delay) for delay in (DELAY, 2 * DELAY)]
    assert all(one.touch(id) for id in ids)
    one.store.new_room()
    one.armed.clear()
    assert one.look() == ids
    assert [one.due_of(id) for id in ids] == [DELAY, 2 * DELAY]


def test_another_process_that_touches_it_is_the_one_from_then_on(one: Mate, peer: Callable[[], Any], clock: ManualClock) -> None:
    other = peer()
    id = one.add(delay=DELAY)
    assert one.touch(id)
    assert other.touch(id, DELAY / 2)
    clock.advance(DELAY / 2)
    assert one.claim(id) == []
    assert one.due_of(id) == DELAY / 2 + SPARE
    begin = written(one)
    assert one.touch(id)
    assert written(one) == begin + 1, "once"
    clock.advance(DELAY)
    assert other.claim(id) == []
    assert other.due_of(id) == 1.5 * DELAY + SPARE
    assert one.claim(id) == [id]


@pytest.mark.parametrize("touched", [False, True])
def test_at_the_bound_where_all_write_the_same_moment_the_last_one_to_touch_it_is_the_one(
    one: Mate, peer: Callable[[], Any], clock: ManualClock, touched: bool
) -> None:
    other = peer()
    id = one.add(delay=DELAY, max_wait=DELAY + 1)
    assert one.touch(id)
    clock.advance(0.5)
    assert other.touch(id)
    if touched:
        clock.advance(0.1)
        assert one.touch(id)
    clock.advance(DELAY - clock.elapsed() + (0.5 if touched else 0))
    other.look()
    first, last = (other, one) if touched else (one, other)
    assert first.claim(id) == [], "by a promise that another process has replaced"
    assert last.claim(id) == []
    clock.advance(0.5)
    assert last.claim(id) == [id]


@pytest.mark.parametrize("how", ["claim", "cancel", "cancel all", "replace", "reschedule", "date", "pause", "hand back", "again"])
@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_whatever_else_moves_a_job_ends_the_right_to_start_it_early(
    one: Mate, peer: Callable[[], Any], clock: ManualClock, row: Row, how: str, where: str
) -> None:
    id = one.add(delay=DELAY, key="k")
    assert one.touch("k")
    assert row(id)[1]
    by: Any = one if where == "here" else peer()
    if how in ("claim", "hand back", "again"):
        clock.advance(DELAY + (0 if where == "here" else SPARE))
        by.look()
        assert by.claim(id) == [id]
        if how == "hand back":
            by.hand_back(id)
        if how == "again":
            assert by.settle(id, Again(20)) is State.SCHEDULED
    elif how == "cancel":
        assert by.cancel("k")
    elif how == "cancel all":
        assert [gone.id for gone in one.store.cancel_many([id])] == [id]
    elif how == "replace":
        assert by.put(key="k", delay=99)[1] == id
    elif how in ("reschedule", "date"):
        assert by.reschedule("k", 30.0, START + 30 if how == "date" else None)
    else:
        assert by.pause("k")
    assert not row(id)[1]
    if how in ("reschedule", "date", "again"):
        clock.advance(11)
        assert one.look() is not None
        assert id not in one.armed or one.claim(id) == []


def test_a_pause_keeps_the_exact_moment(one: Mate, row: Row, clock: ManualClock) -> None:
    id = one.add(delay=DELAY)
    assert one.touch(id)
    clock.advance(1)
    assert one.touch(id)
    assert one.pause(id)
    assert row(id) == (DELAY + 1, False)
    assert one.resume(id)
    assert one.due_of(id) == DELAY + 1


# --- processes that end ---


def test_a_process_that_opened_the_file_anew_may_not_start_early_what_it_touched_before(one: Mate, clock: ManualClock, row: Row) -> None:
    id = one.add(delay=DELAY)
    assert one.touch(id)
    one.close()
    one.store.open()
    one.look()
    assert one.due_of(id) == DELAY + SPARE
    clock.advance(DELAY)
    assert one.claim(id) == []
    clock.advance(SPARE)
    assert one.claim(id) == [id]


def test_what_a_killed_process_touched_runs_a_second_later_than_promised_at_most_and_no_earlier(
    one: Mate, peer: Callable[[], Any], clock: ManualClock
) -> None:
    other = peer()
    id = other.add(delay=DELAY)
    assert other.touch(id)
    clock.advance(1)
    assert other.touch(id), "which is not written"
    other.kill()
    clock.advance(DELAY - 1)
    one.look()
    assert one.claim(id) == []
    clock.advance(SPARE)
    assert clock.elapsed() >= DELAY + 1
    assert one.claim(id) == [id]


def test_the_child_of_a_fork_may_not_start_early_what_its_parent_touched(one: Mate, clock: ManualClock) -> None:
    id = one.add(delay=DELAY)
    assert one.touch(id)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            mate = Mate(Shelf("sqlite", one.shelf.path, clock))
            clock.advance(DELAY)
            early = mate.claim(id)
            begin = written(mate)
            right = (early, mate.due_of(id), mate.touch(id), written(mate) - begin) == ([], DELAY + SPARE, True, 1)
            code = 0 if right else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    clock.advance(DELAY)
    assert one.claim(id) == [], "the child has touched it since"


# --- races ---


def test_of_a_touch_and_a_claim_in_its_turn_the_touch_sees_that_the_claim_won(
    one: Mate, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The touch comes when the claim has taken the promise and not written yet: it waits for its own turn to write."""
    id = one.add(delay=DELAY)
    assert one.touch(id)
    clock.advance(DELAY)
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(one.touch(id)), daemon=True)
    looked = threading.Event()
    submit = Group.submit

    def begin() -> None:
        thread.start()
        assert looked.wait(10)

    def submitting(self: Group, write: Any) -> Any:
        looked.set()
        return submit(self, write)

    before(monkeypatch, file_of(one).promises, "take", begin, after=True)
    monkeypatch.setattr(Group, "submit", submitting)
    assert one.claim(id) == [id]
    thread.join(10)
    assert answers == [False]


def test_a_touch_just_before_a_claim_is_kept_and_the_entry_comes_back_with_the_new_moment(
    one: Mate, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = one.add(delay=DELAY)
    assert one.touch(id)
    clock.advance(1)
    entry = one.armed[id]
    clock.advance(DELAY - 1)
    answers: list[Any] = []
    before(monkeypatch, file_of(one).promises, "take", lambda: answers.append(one.store.touch(id, 1.0)))
    claim = one.store.claim([entry])
    ((touched, arm),) = answers
    assert (touched.due, arm) == (DELAY + 1, False)
    assert (claim.rows, claim.later) == ([], [entry])
    assert entry.due == DELAY + 1
    clock.advance(1)
    assert [run.id for run in one.store.claim([entry]).rows] == [id]


def test_between_its_write_and_its_answer_a_touch_is_not_claimed_by_what_was_promised_before(
    one: Mate, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job falls due at this very moment; the entry comes back late, and is armed again by the touch."""
    id = one.add(delay=DELAY)
    assert one.touch(id)
    clock.advance(DELAY)
    seen: list[Any] = []

    def claim() -> None:
        assert one.claim(id) == []
        seen.append(one.due_of(id))

    before(monkeypatch, file_of(one).promises, "keep", claim)
    touched = one.store.touch(id, None)
    assert touched is not None
    assert seen == [2 * DELAY + SPARE]
    assert (touched[0].due, touched[1]) == (2 * DELAY, True)
    assert [entry.due for entry in one.shelf.entries(touched[0])] == [2 * DELAY]


@pytest.mark.parametrize("bound", [None, 11.5])
def test_at_its_bound_too_a_promise_of_before_counts_no_more_once_a_touch_is_written(
    one: Mate, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, bound: float | None
) -> None:
    """What is written does not change any more there, so the row alone does not tell."""
    id = one.add(delay=DELAY, max_wait=bound)
    assert one.touch(id)
    clock.advance(DELAY)
    file_of(one).promises._by_id[id].kept = False  # as if the promise were in another thread's hands: it must be written

    def claim() -> None:
        assert one.claim(id) == []

    before(monkeypatch, file_of(one).promises, "keep", claim)
    assert one.touch(id, 1.25)
    assert one.due_of(id) == DELAY + 1.25


def test_a_write_that_takes_longer_than_it_is_ahead_is_written_again(
    one: Mate, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, row: Row
) -> None:
    id = one.add(delay=DELAY)
    slow = [2.0, 2.0]
    run = touching._Touch.run

    def slowly(self: Any, connection: Any) -> None:
        run(self, connection)
        clock.advance(slow.pop() if slow else 0)

    monkeypatch.setattr(touching._Touch, "run", slowly)
    assert one.touch(id)
    assert slow == []
    assert one.due_of(id) == 4.0 + DELAY
    assert row(id)[0] >= 4.0 + DELAY


def test_a_write_by_one_process_promises_later_than_all_that_another_did_before_it_could_see_it(
    one: Mate, peer: Callable[[], Any], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one touches without a write, half a second after this one has chosen its moment and before that is in the file."""
    other = peer()
    id = other.add(delay=DELAY)
    assert other.touch(id)
    one.look()
    run = touching._Touch.run

    def slowly(self: Any, connection: Any) -> None:
        run(self, connection)
        clock.advance(0.5)
        assert other.touch(id)

    monkeypatch.setattr(touching._Touch, "run", slowly)
    assert one.touch(id)
    clock.advance(DELAY - 0.001)
    assert one.claim(id) == []
    assert other.claim(id) == []
    clock.advance(0.001)
    assert one.claim(id) == [id]


def test_touches_that_meet_at_one_write_share_it(one: Mate, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, row: Row) -> None:
    """The second comes when the first has written and does not know it yet."""
    id = one.add(delay=DELAY)
    begin = written(one)
    second: list[Any] = []

    def come() -> None:
        clock.advance(0.5)
        second.append(one.touch(id))

    before(monkeypatch, file_of(one).promises, "keep", come)
    assert one.touch(id)
    assert second == [True]
    assert written(one) == begin + 1
    assert one.due_of(id) == DELAY + 0.5
    assert row(id) == (DELAY + SPARE, True)


def test_a_later_touch_of_another_thread_is_not_undone_by_the_end_of_an_earlier_one(
    one: Mate, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asked for less, and was written after the first one."""
    id = one.add(delay=DELAY)
    before(monkeypatch, file_of(one).promises, "keep", lambda: one.touch(id, 3.0))
    assert one.touch(id)
    assert one.due_of(id) == 3.0
    clock.advance(3)
    assert one.claim(id) == [id]


# --- a store that fails ---


def test_a_claim_that_fails_leaves_the_promise_as_it_was(one: Mate, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    id = one.add(delay=DELAY)
    assert one.touch(id)
    clock.advance(DELAY)
    entry = one.armed[id]
    with monkeypatch.context() as broken:
        broken.setattr(claims, "CLAIM", "UPDATE nowhere SET x = :owner")
        with pytest.raises(StoreError):
            one.store.claim([entry])
    assert [run.id for run in one.store.claim([entry]).rows] == [id]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_touch_whose_write_fails_promises_nothing_and_the_next_one_is_written(
    one: Mate, monkeypatch: pytest.MonkeyPatch, row: Row, moment: str
) -> None:
    id = one.add(delay=DELAY)
    run = touching._Touch.run
    left = [1, 1]  # together with others, and by itself

    def failing(self: Any, connection: Any) -> None:
        if left and moment == "before":
            left.pop()
            raise sqlite3.OperationalError("the disk is away")
        run(self, connection)
        if left:
            left.pop()
            raise sqlite3.OperationalError("the disk is away")

    monkeypatch.setattr(touching._Touch, "run", failing)
    left.pop()
    with pytest.raises(StoreError):
        one.touch(id)
    assert row(id) == (DELAY, False)
    assert len(file_of(one).promises) == 0
    assert one.touch(id)
    assert row(id) == (DELAY + SPARE, True)


def test_a_touch_that_needs_no_write_is_not_acknowledged_by_a_file_that_is_away(one: Mate, place: str) -> None:
    id = one.add(delay=DELAY)
    assert one.touch(id)
    os.rename(place, f"{place}-away")
    try:
        with pytest.raises(StoreError, match="deleted or replaced"):
            one.touch(id)
    finally:
        os.rename(f"{place}-away", place)
    assert one.touch(id)


# --- with a timer ---


@dataclass
class Sleepy(IJob, kind="test_durable_touch.sleepy"):
    seen: ClassVar[list[tuple[float, float]]] = []

    def run(self, ctx: JobContext) -> None:
        self.seen.append((ctx.scheduled_for.timestamp() - START, ctx.lateness))


def test_a_touched_job_of_a_timer_runs_at_its_exact_moment(place: str) -> None:
    Sleepy.seen.clear()
    timer, clock = manual_timer(store={"kind": "sqlite", "path": place})
    with timer:
        timer.add_job(Sleepy(), DELAY, key="k")
        for _ in range(40):
            clock.advance(0.3)
            assert timer.touch("k")
        clock.advance(DELAY - 0.001)
        assert Sleepy.seen == []
        clock.advance(0.001)
    ((scheduled, lateness),) = Sleepy.seen
    assert (round(scheduled, 6), lateness) == (12 + DELAY, 0.0)
