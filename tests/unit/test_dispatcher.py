"""The dispatcher with stores on disk: overdue rows beside what falls due now, verdicts in batches, and stores that fail for a while.

Store, engine and room are the test's own. What it does with the memory store is seen in `test_timer` and `test_timing`.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from jobwheel import IJob, State, StoreError, events
from jobwheel.dispatcher import BATCH, LOW, Alarm, Dispatcher
from jobwheel.events import Hub
from jobwheel.row import Row, Ticket
from jobwheel.store import Claim
from jobwheel.testing import ManualClock
from jobwheel.verdict import SUCCEEDED, Failed, Verdict
from jobwheel.waits import Waits

LIMIT = 10.0


@dataclass
class Note(IJob, kind="test_dispatcher.note"):
    def run(self) -> None: ...


@dataclass
class Two(IJob, kind="test_dispatcher.two", max_running=2):
    def run(self) -> None: ...


class Disk:
    """A store on disk that claims what it is told, and may fail."""

    durable = True
    shared = True

    def __init__(self) -> None:
        self.claims: list[list[int]] = []
        self.batches: list[list[int]] = []
        self.error: Exception | None = None
        self.full: set[str] = set()
        self.gone: set[int] = set()
        self.meanwhile: Callable[[], Any] = lambda: None
        self.states: dict[int, State | None] = {}

    def claim(self, entries: list[Any]) -> Claim:
        if self.error is not None:
            raise self.error
        self.claims.append([entry.id for entry in entries])
        held = [(entry.kind.name, entry) for entry in entries if entry.kind.name in self.full]
        waiting = [entry for entry in entries if entry.kind.name not in self.full and entry.id not in self.gone]
        return Claim([_row(entry.id, entry.kind) for entry in waiting], [], held)

    def settle_many(self, settlements: list[Any], patience: float = 5.0) -> list[State | None]:
        self.batches.append([row.id for row, _, _ in settlements])
        if self.error is not None:
            raise self.error
        self.meanwhile()
        return [self.states.get(row.id, verdict.state) for row, _, verdict in settlements]

    def entry(self, row: Row) -> Ticket:
        return Ticket(row.id, row.due, 0, row.kind)

    def offset(self) -> float:
        return 0.0

    def waits(self, entry: Any) -> bool:
        return True


class Slots:
    """An engine with so much room; `submit` takes it."""

    def __init__(self, room: int) -> None:
        self.left = room
        self.rows: list[int] = []

    def room(self) -> int:
        return self.left

    def sift(self, entries: list[Any], hold: Any) -> list[Any]:
        return entries

    def submit(self, rows: list[Row]) -> None:
        self.left -= len(rows)
        self.rows += [row.id for row in rows]


def _row(id: int, kind: Any = Note.jobwheel_kind) -> Row:
    row = Row(Note(), 0.0, 0.0, None, 0, None, kind)
    row.id, row.state, row.attempt = id, State.RUNNING, 1
    return row


def tickets(*ids: int, priority: int = 0, kind: Any = Note.jobwheel_kind) -> list[Any]:
    return [Ticket(id, -float(id), priority, kind) for id in ids]


class Bench:
    """A dispatcher between doubles."""

    def __init__(self, room: int = 0) -> None:
        self.clock = ManualClock()
        self.store = Disk()
        self.engine = Slots(room)
        self.hub = Hub(inline=True)
        self.waits = Waits()
        self.armed: list[Any] = []
        self.freed: list[str] = []
        self.low: list[int] = []
        self.dispatcher = Dispatcher(self.clock, self.store, self.hub, 1000.0, self.waits, self.freed.append)  # type: ignore[arg-type]
        self.dispatcher.connect(self.engine, self._arm)  # type: ignore[arg-type]
        self.dispatcher.on_low = lambda: self.low.append(len(self.dispatcher.overdue))

    def _arm(self, entry: Any) -> None:
        self.armed.append(entry)

    def pump(self, room: int) -> list[list[int]]:
        """The claims that are made with so much room."""
        self.store.claims.clear()
        self.engine.left = room
        self.dispatcher.pump()
        return self.store.claims

    def ring(self) -> None:
        """The room brings what was armed for the dispatcher itself."""
        alarms = [entry for entry in self.armed if isinstance(entry, Alarm)]
        self.armed = [entry for entry in self.armed if not isinstance(entry, Alarm)]
        self.dispatcher.due(alarms)


@pytest.fixture
def bench() -> Bench:
    return Bench()


# --- overdue rows ---


def test_overdue_rows_run_when_nothing_else_is_due(bench: Bench) -> None:
    bench.dispatcher.add_overdue(tickets(1, 2, 3), False)
    assert bench.pump(8) == [[1, 2, 3]]
    assert bench.engine.rows == [1, 2, 3]


@pytest.mark.parametrize("room", [1, 2, 3, 7, 8])
def test_at_least_every_other_row_is_of_what_falls_due_now(bench: Bench, room: int) -> None:
    bench.dispatcher.due(tickets(*range(1, 101)))
    bench.dispatcher.add_overdue(tickets(*range(1001, 1101)), True)
    taken: list[int] = []
    for _ in range(40 // room):
        taken += [id for claim in bench.pump(room) for id in claim]
        due_now = sum(id < 1000 for id in taken)
        assert due_now >= len(taken) // 2
        assert len(taken) - due_now >= len(taken) // 2 - 1, "and the overdue have their share"
    assert [id for id in taken if id < 1000] == sorted(id for id in taken if id < 1000)
    assert [id for id in taken if id > 1000] == sorted(id for id in taken if id > 1000)


def test_room_that_one_side_does_not_need_goes_to_the_other(bench: Bench) -> None:
    bench.dispatcher.due(tickets(1))
    bench.dispatcher.add_overdue(tickets(11, 12, 13, 14, 15), False)
    assert sorted(bench.pump(6)[0]) == [1, 11, 12, 13, 14, 15]
    bench.dispatcher.due(tickets(*range(1, 7)))
    bench.dispatcher.add_overdue(tickets(11), False)
    assert sorted(bench.pump(7)[0]) == [1, 2, 3, 4, 5, 6, 11]


def test_overdue_rows_go_by_priority_among_themselves(bench: Bench) -> None:
    bench.dispatcher.add_overdue([*tickets(1, 2), *tickets(3, priority=5), *tickets(4, priority=-5)], False)
    assert bench.pump(8) == [[3, 1, 2, 4]]


def test_more_overdue_rows_are_asked_for_once_when_few_are_left(bench: Bench) -> None:
    bench.dispatcher.add_overdue(tickets(*range(1, LOW + 20)), True)
    bench.pump(10)
    assert bench.low == []
    bench.pump(20)
    bench.pump(20)
    assert len(bench.low) == 1
    bench.dispatcher.add_overdue(tickets(2001), True)
    bench.pump(1)
    assert len(bench.low) == 2


def test_nobody_is_asked_for_more_where_there_is_no_more(bench: Bench) -> None:
    bench.dispatcher.add_overdue(tickets(1, 2), False)
    bench.pump(5)
    assert bench.low == []


def test_more_are_asked_for_though_all_that_came_were_taken_at_once(bench: Bench) -> None:
    bench.engine.left = 64
    bench.dispatcher.add_overdue(tickets(*range(1, 65)), True)
    assert len(bench.engine.rows) == 64
    assert bench.low


def test_a_full_engine_leaves_overdue_rows_unclaimed_and_pauses_hold_them(bench: Bench) -> None:
    bench.dispatcher.add_overdue(tickets(1, 2), False)
    assert bench.pump(0) == []
    bench.dispatcher.paused = True
    assert bench.pump(5) == []
    bench.dispatcher.paused = False
    assert bench.pump(5) == [[1, 2]]


def test_the_oldest_is_told_of_both(bench: Bench) -> None:
    assert bench.dispatcher.oldest() is None
    bench.dispatcher.due(tickets(3))
    assert bench.dispatcher.oldest() == -3.0
    bench.dispatcher.add_overdue(tickets(7), False)
    assert bench.dispatcher.oldest() == -7.0


def test_what_a_failing_claim_took_out_is_claimed_later(bench: Bench) -> None:
    bench.dispatcher.due(tickets(1, 2))
    bench.dispatcher.add_overdue(tickets(11, 12), False)
    bench.store.error = StoreError("locked")
    assert bench.pump(4) == []
    assert bench.dispatcher.store_error == "StoreError: locked"
    bench.store.error = None
    assert sorted(id for claim in bench.pump(4) for id in claim) == [1, 2, 11, 12]
    assert bench.dispatcher.store_error is None


def test_a_claimed_row_lets_none_go_that_is_held_for_its_kind(bench: Bench) -> None:
    """A row of a store on disk is another object than the entry that it was claimed by."""
    bench.store.full = {"test_dispatcher.two"}
    bench.dispatcher.due(tickets(*range(1, 6), kind=Two.jobwheel_kind))
    assert bench.pump(5) == [[1, 2, 3, 4, 5]]
    bench.engine.left = 0
    bench.store.full = {"one that is full"}
    bench.store.gone = {13}
    bench.dispatcher.due(tickets(11, 12, 13, kind=Two.jobwheel_kind))
    assert bench.pump(3) == [[11, 12, 13], [1]], "one of them does not run after all, so one may in its place"
    assert bench.engine.rows == [11, 12, 1]


# --- verdicts ---


def settled(bench: Bench, *ids: int, verdict: Verdict = SUCCEEDED, kind: Any = Note.jobwheel_kind) -> None:
    for id in ids:
        bench.dispatcher.done(_row(id, kind), 1, verdict)


def test_a_lone_verdict_is_written_at_once(bench: Bench) -> None:
    settled(bench, 1)
    settled(bench, 2)
    assert bench.store.batches == [[1], [2]]


def test_verdicts_that_come_while_one_is_written_are_the_next_batch_and_their_threads_do_not_wait(bench: Bench) -> None:
    inside, go = threading.Event(), threading.Event()

    def meanwhile() -> None:
        bench.store.meanwhile = lambda: None
        inside.set()
        assert go.wait(LIMIT)

    bench.store.meanwhile = meanwhile
    writer = threading.Thread(target=lambda: settled(bench, 1), daemon=True)
    writer.start()
    assert inside.wait(LIMIT)
    settled(bench, 2, 3, 4)
    assert bench.store.batches == [[1]], "this thread went away"
    go.set()
    writer.join(LIMIT)
    assert bench.store.batches == [[1], [2, 3, 4]]


def test_a_batch_has_its_limit(bench: Bench) -> None:
    bench.store.error = StoreError("locked")
    settled(bench, *range(1, BATCH + 4))
    bench.store.batches.clear()
    bench.store.error = None
    bench.ring()
    assert [len(batch) for batch in bench.store.batches] == [BATCH, 3]
    assert [id for batch in bench.store.batches for id in batch] == list(range(1, BATCH + 4))


def test_each_verdict_is_told_by_what_it_led_to(bench: Bench) -> None:
    seen: list[Any] = []
    bench.hub.on(events.Event, lambda event: seen.append((type(event).__name__, event.job.id)))
    with bench.waits.waiting_for(1) as first, bench.waits.waiting_for(2) as second, bench.waits.waiting_for(3) as third:
        bench.store.states = {2: State.SCHEDULED, 3: None}
        settled(bench, 1, 2, 3)
        assert (first.is_set(), second.is_set(), third.is_set()) == (True, False, False)
    assert seen == [("JobSucceeded", 1), ("JobRetrying", 2)], "what was settled before is told by whoever did"
    assert [entry.id for entry in bench.armed] == [2], "and what waits again is armed"


def test_the_end_of_a_limited_run_frees_its_place_once_it_is_written(bench: Bench) -> None:
    bench.store.error = StoreError("locked")
    settled(bench, 1, kind=Two.jobwheel_kind)
    assert bench.freed == []
    bench.store.error = None
    bench.ring()
    assert bench.freed == ["test_dispatcher.two"]


def test_runs_that_end_in_other_processes_let_as_many_held_ones_be_claimed_in_order(bench: Bench) -> None:
    bench.engine.left = 10
    bench.store.full = {"test_dispatcher.two"}
    bench.dispatcher.due(tickets(1, 2, 3, 4, kind=Two.jobwheel_kind))
    assert bench.engine.rows == []
    bench.store.full, bench.store.claims = set(), []
    bench.dispatcher.release_up_to({"test_dispatcher.other": 5, "test_dispatcher.two": 0})
    assert bench.store.claims == []
    bench.dispatcher.release_up_to({"test_dispatcher.two": 2})
    assert bench.engine.rows == [1, 2]
    bench.dispatcher.release_up_to({"test_dispatcher.two": 9})
    assert bench.engine.rows == [1, 2, 3, 4]


def test_a_run_that_the_file_does_not_know_any_more_frees_its_place_too(bench: Bench) -> None:
    bench.store.states = {1: None}
    settled(bench, 1, kind=Two.jobwheel_kind)
    assert bench.freed == ["test_dispatcher.two"]


def test_verdicts_that_cannot_be_written_are_kept_in_order_and_tried_at_one_stroke(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Each try may wait for seconds on a file that another process holds, and it is the room's own thread that tries."""
    caplog.set_level(logging.INFO)
    bench.store.error = StoreError("locked")
    settled(bench, *range(1, 11))
    bench.store.batches.clear()
    for _ in range(3):
        bench.ring()
    assert bench.store.batches == [list(range(1, 11))] * 3
    bench.store.error = None
    bench.ring()
    assert bench.store.batches == [list(range(1, 11))] * 4
    bench.ring()
    assert len(bench.store.batches) == 4
    told = [record.getMessage() for record in caplog.records if record.name == "jobwheel.dispatcher"]
    assert [message.split(",")[0] for message in told] == ["the store fails", "the store works again"]


def test_tries_become_rarer_and_begin_anew_after_a_good_one(bench: Bench) -> None:
    bench.store.error = StoreError("locked")
    settled(bench, 1)
    waits = []
    for _ in range(7):
        (alarm,) = bench.armed
        waits.append(alarm.due - bench.clock.elapsed())
        bench.ring()
    assert waits == [1, 2, 4, 8, 16, 30, 30]
    bench.store.error = None
    bench.ring()
    bench.store.error = StoreError("again")
    settled(bench, 2)
    assert bench.armed[-1].due == 1.0


def test_a_shutdown_tries_once_more(bench: Bench) -> None:
    bench.store.error = StoreError("locked")
    settled(bench, 1, 2)
    bench.dispatcher.stop()
    bench.store.batches.clear()
    bench.dispatcher.settle_left()
    assert bench.store.batches == [[1, 2]]
    bench.store.error = None
    bench.dispatcher.settle_left()
    assert bench.store.batches == [[1, 2], [1, 2]]


def test_two_ways_of_failing_are_one_trouble_and_over_when_both_work(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench.dispatcher.trouble("sweep", StoreError("a"))
    bench.store.error = StoreError("b")
    settled(bench, 1)
    assert bench.dispatcher.store_error == "StoreError: b"
    bench.store.error = None
    bench.ring()
    assert bench.dispatcher.store_error is not None, "the sweep fails still"
    bench.dispatcher.works("sweep")
    assert bench.dispatcher.store_error is None
    told = [record.getMessage().split(",")[0] for record in caplog.records if record.name == "jobwheel.dispatcher"]
    assert told == ["the store fails", "the store works again"]


def test_a_job_that_ended_with_another_process_is_told_here(bench: Bench) -> None:
    seen: list[Any] = []
    bench.hub.on(events.Event, lambda event: seen.append((type(event).__name__, event.job.id)))
    row = _row(5)
    row.state = State.INTERRUPTED
    with bench.waits.waiting_for(5) as ended:
        bench.dispatcher.ended(row)
        assert ended.is_set()
    assert seen == [("JobInterrupted", 5)]


def test_a_desk_on_disk_says_that_it_may_wait(bench: Bench) -> None:
    assert bench.dispatcher.blocking
    settled(bench, 1, verdict=Failed("x"))
    assert bench.store.batches == [[1]]
