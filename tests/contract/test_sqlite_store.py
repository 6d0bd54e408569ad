"""What the SQLite store promises beyond the contract: files that others wrote, many rows, errors half-way, reboots.

Rows that no code here would write are put into the file by SQL, as another version, another program or an accident would leave them.
"""

import json
import logging
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import pytest
from mates import HOUR, Mate
from shelf import Note, Once, Other, Shelf, Two, at, ids_of, together

from jobwheel import IJob, JobExists, State, StoreError
from jobwheel.job import context_of
from jobwheel.row import Row
from jobwheel.state import ENDED, MOVES
from jobwheel.store import Query
from jobwheel.stores.sqlite import moves, schema, window
from jobwheel.stores.sqlite import store as sqlite_store
from jobwheel.stores.sqlite.records import STATES
from jobwheel.testing import START, ManualClock
from jobwheel.verdict import SUCCEEDED, Again, Cancelled, Failed, Interrupted, Missed, Succeeded

DAY = 86_400.0
MICRO = 1e-6


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


@pytest.fixture
def shelves(place: str) -> Iterator[Callable[..., Shelf]]:
    """`shelves(clock, max_pending=...)`: a store on the test's file, one of several if called again."""
    made: list[Shelf] = []

    def make(clock: ManualClock | None = None, **settings: Any) -> Shelf:
        made.append(Shelf("sqlite", place, clock, **settings))
        return made[-1]

    yield make
    for shelf in made:
        shelf.store.close()


@pytest.fixture
def shelf(shelves: Callable[..., Shelf]) -> Shelf:
    return shelves()


@pytest.fixture
def sql(place: str) -> Callable[..., list[Any]]:
    """What another program does with the file."""

    def execute(statement: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(place)) as connection, connection:
            return connection.execute(statement, values).fetchall()

    return execute


class Inserted:
    """Puts rows of any kind and data into the file."""

    def __init__(self, sql: Callable[..., list[Any]]) -> None:
        self.sql = sql
        self.ids = iter(range(10**9, 2 * 10**9))

    def __call__(self, kind: str, data: Any = "{}", due: float = START, state: int = schema.SCHEDULED, **columns: Any) -> int:
        self.sql("INSERT OR IGNORE INTO kind (name) VALUES (?)", kind)
        id = next(self.ids)
        values = {
            "id": id, "data": data, "priority": 0, "state": state, "basis": 0, "due": round(due * 1_000_000), "attempt": 0,
            "created": round(START * 1_000_000), "flags": 0, **columns,
        }  # fmt: skip
        names, marks = ", ".join(values), ", ".join("?" for _ in values)
        self.sql(
            f"INSERT INTO job (kind, {names}) VALUES ((SELECT n FROM kind WHERE name = ?), {marks})",
            kind, *values.values(),
        )  # fmt: skip
        return id


@pytest.fixture
def inserted(sql: Callable[..., list[Any]]) -> Inserted:
    return Inserted(sql)


def given(shelf: Shelf, until: float = HOUR) -> list[int]:
    """Ids of what one look of a keeper brings."""
    return [*shelf.swept(), *ids_of(shelf.store.window(shelf.clock.elapsed() + until))]


def entries(shelf: Shelf, want: int = 1000) -> list[Any]:
    return shelf.sweep(want)


def row_of(shelf: Shelf, id: int) -> Row:
    """A row by which this process may claim one that it did not add."""
    row = shelf.row()
    row.id = id
    return row


# --- what the file holds ---


def test_ids_are_never_given_twice_whatever_was_deleted_or_closed(shelves: Callable[..., Shelf], sql: Callable[..., list[Any]]) -> None:
    seen: list[int] = []
    for _ in range(3):
        shelf = shelves(store={"keep": 0})
        seen += [shelf.ended().id, shelf.add("x", 5).id]
        shelf.store.cancel(seen[-1])
        shelf.store.sweep(0)
        assert sql("SELECT count(*) FROM job") == [(0,)]
        shelf.store.close()
    assert seen == sorted(set(seen))


def test_everything_is_as_it_was_after_closing_and_opening(shelves: Callable[..., Shelf]) -> None:
    shelf = shelves()
    shelf.add("a", 5, key="a", tags=["t"], priority=3, max_wait=50)
    shelf.add("b", at=at(7))
    shelf.store.pause("a")
    shelf.ended("c", Succeeded([1]), key="c")
    shelf.ended("d", Failed("KeyError: x", "trace"))
    shelf.store.settle(shelf.running("e"), 1, Again(5, "y"))
    before, counted = shelf.store.find(Query()), shelf.counted()
    shelf.store.close()
    again = shelves(shelf.clock)
    assert again.store.find(Query()) == before
    assert again.counted() == counted
    assert again.store.touch("a", 1000) is not None
    assert again.due("a") == 50.0


def test_a_result_without_a_stored_form_is_kept_as_it_shows_itself(shelf: Shelf) -> None:
    class Odd:
        def __repr__(self) -> str:
            return "<odd>"

    results = [Odd(), {"a": Odd()}, float("nan"), [1, (2, 3)], b"x", 2**70, "\ud800"]
    for result in results:
        row = shelf.running()
        assert shelf.store.settle(row, 1, Succeeded(result)) is State.SUCCEEDED
    kept = [job.result for job in shelf.store.find(Query())]
    assert kept[0] == "<odd>"
    assert kept[3] == [1, [2, 3]]
    assert all(value is not None for value in (kept[1], kept[4], kept[5], kept[6]))


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
@pytest.mark.parametrize("where", ["error", "trace", "progress", "log"])
def test_what_a_run_says_in_broken_text_does_not_keep_it_from_ending(shelf: Shelf, text: str, where: str) -> None:
    """`os.fsdecode` makes such texts of odd file names, and they come up in errors."""
    row = shelf.running(key="k")
    if where == "progress":
        context_of(row).progress(1, 2, text)
    if where == "log":
        context_of(row).log(text)
    verdict = Failed(text if where == "error" else "x", text if where == "trace" else None)
    assert shelf.store.settle(row, 1, verdict) is State.FAILED
    job = shelf.store.get("k")
    assert job is not None
    assert job.state is State.FAILED


def test_many_are_all_there_or_none_though_their_batch_is_large(shelf: Shelf) -> None:
    shelf.add(key="k777")
    rows = [shelf.row(str(number), key=f"k{number}") for number in range(1000)]
    with pytest.raises(JobExists):
        shelf.store.add_many([(row, "error") for row in rows])
    assert shelf.counted() == {"scheduled": 1}
    shelf.store.add_many([(row, "replace") for row in rows])
    assert shelf.counted() == {"scheduled": 1000, "cancelled": 1}


@pytest.mark.parametrize("durability", ["power", "process"])
def test_adds_cancels_and_moves_wait_for_the_disk_and_claims_do_not(shelves: Callable[..., Shelf], durability: str) -> None:
    """But for claims of what must run at most once: undone by a power cut, they would run twice."""
    shelf = shelves(store={"durability": durability})
    file = shelf.store._file  # type: ignore[attr-defined]
    written: list[bool] = []

    def waited() -> bool:
        """Whether what was just done was on the disk before it returned."""
        (level,) = file._writer.execute("PRAGMA synchronous").fetchone()
        written.append(level == 2)
        return written[-1]

    power = durability == "power"
    rows = [shelf.add(key=f"k{number}") for number in range(3)]
    assert waited() is power
    runs = shelf.claim(*rows)
    assert not waited()
    shelf.store.add_many([(shelf.row(), "replace")])
    assert waited() is power
    shelf.store.settle(runs[0], 1, SUCCEEDED)
    assert not waited()
    shelf.store.cancel("k1")
    assert waited() is power
    shelf.store.settle(runs[1], 1, Failed("x"))
    assert not waited()
    for move in (
        lambda: shelf.store.retry(shelf.ended("x", Failed("x")).id),
        lambda: shelf.store.cancel(shelf.add("x", 5).id),
        lambda: shelf.store.touch(shelf.add("x", 5).id, 7),
        lambda: shelf.store.reschedule(shelf.add("x", 5).id, 7.0, None),
        lambda: shelf.store.pause(shelf.add("x", 5).id),
    ):
        shelf.store.hand_back([shelf.running()])
        assert not waited()
        assert move() is not None
        assert waited() is power
    once = shelf.add(job=Once())
    shelf.store.hand_back([runs[2]])
    assert not waited()
    assert shelf.claimed(once) == [once.id]
    assert waited() is power


# --- kinds and data that cannot be read here ---


def test_a_row_of_an_unknown_kind_is_seen_and_never_claimed(shelf: Shelf, inserted: Inserted) -> None:
    id, paused = inserted("nobody.knows", '{"x": 1}', key="k"), inserted("nobody.knows", state=schema.PAUSED)
    job = shelf.store.get("k")
    assert job is not None
    assert (job.id, job.state, job.kind, job.job, job.key) == (id, State.UNRESOLVABLE, "nobody.knows", None, "k")
    assert shelf.ids() == shelf.ids(states=frozenset({State.UNRESOLVABLE})) == shelf.ids(kind="nobody.knows") == [id, paused]
    assert shelf.ids(states=frozenset({State.SCHEDULED, State.PAUSED})) == []
    assert shelf.ids(text='"x"') == [id]
    assert shelf.counted() == {"unresolvable": 2}
    shelf.check()
    assert given(shelf) == []
    assert shelf.store.overdue() is None
    assert shelf.store.claim([row_of(shelf, id)]).rows == []
    assert shelf.store.ids(Query(states=frozenset({State.UNRESOLVABLE}))) == [id, paused]


def test_a_row_of_an_unknown_kind_keeps_its_key_and_can_be_moved(shelf: Shelf, inserted: Inserted) -> None:
    id = inserted("nobody.knows", key="k", delay=5_000_000)
    with pytest.raises(JobExists):
        shelf.store.add(shelf.row(key="k"), "error")
    assert shelf.put(shelf.row(key="k"), "keep") == (id, None)
    assert shelf.store.touch("k", 50) is not None
    assert shelf.due("k") == 50.0
    assert shelf.store.reschedule("k", 60.0, None) is not None
    assert shelf.store.pause("k") is not None
    assert shelf.store.resume("k") is not None
    assert shelf.state("k") is State.UNRESOLVABLE
    new = shelf.row(key="k")
    assert shelf.put(new) == (new.id, id)
    assert shelf.state(id) is State.CANCELLED
    other = inserted("nobody.knows")
    assert shelf.store.cancel(other) is not None
    assert shelf.counted() == {"scheduled": 1, "cancelled": 2}


@pytest.mark.usefixtures("own_kinds")
def test_a_row_is_claimed_as_soon_as_its_kind_is_registered(shelf: Shelf, inserted: Inserted) -> None:
    due, soon, far = (inserted("late.comer", '{"x": 7}', START + delay) for delay in (0, 1, HOUR / 2))
    assert given(shelf) == []

    @dataclass
    class Late(IJob, kind="late.comer"):
        x: int = 0

        def run(self) -> None: ...

    found = entries(shelf)
    assert ids_of(found) == [due, soon]
    (run,) = shelf.store.claim(found[:1]).rows
    assert (run.job, run.kind.name) == (Late(7), "late.comer")
    shelf.store.settle(run, 1, SUCCEEDED)
    assert shelf.counted() == {"scheduled": 2, "succeeded": 1}
    shelf.clock.advance(HOUR / 2 - 2)
    assert far in given(shelf), "before it is due, though the window had passed it by"


@pytest.mark.usefixtures("own_kinds")
def test_rows_of_a_renamed_class_are_run_by_it(shelf: Shelf, inserted: Inserted) -> None:
    ids = [inserted("old.name", '{"x": 1}', key="k"), inserted("older.name", '{"x": 2}')]

    @dataclass
    class New(IJob, kind="new.name", aliases=("old.name", "older.name")):
        x: int = 0

        def run(self) -> None: ...

    added = shelf.add(job=New(3)).id
    for name in ("new.name", "old.name"):
        assert sorted(shelf.ids(kind=name)) == sorted([*ids, added])
    job = shelf.store.get("k")
    assert job is not None
    assert (job.kind, job.job, job.state) == ("new.name", New(1), State.SCHEDULED)
    runs = shelf.store.claim(entries(shelf)).rows
    assert sorted((run.id, run.job.x) for run in runs) == sorted([(ids[0], 1), (ids[1], 2)])  # type: ignore[union-attr]
    assert shelf.store.settle_many([(run, 1, SUCCEEDED) for run in runs]) == [State.SUCCEEDED] * 2


@pytest.mark.parametrize("kind", ["os:system", "builtins.eval", "os.system", "subprocess:Popen", "__main__.Note", "jobwheel.IJob", ""])
def test_a_kind_is_never_looked_for_in_modules(shelf: Shelf, inserted: Inserted, kind: str) -> None:
    id = inserted(kind, json.dumps({"command": "echo hacked > /tmp/never"}))
    assert shelf.state(id) is State.UNRESOLVABLE
    assert given(shelf) == []
    assert shelf.store.claim([row_of(shelf, id)]).rows == []
    assert shelf.counted() == {"unresolvable": 1}


UNREADABLE = {
    "not json": "{x",
    "wrong type": '{"text": 5}',
    "no object": "[1, 2]",
    "nothing": "",
    "not utf-8": b"{\xff\xfe}",
    "a number": 5,
    "deep": "[" * 5000,
}


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_data_that_cannot_be_read_is_parked_and_its_neighbours_run(
    shelves: Callable[..., Shelf], shelf: Shelf, inserted: Inserted, data: Any, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Never lost, never in a loop: this store tries it once, one that is made later (with newer code, say) tries it again."""
    sound = shelf.add("sound")
    bad = inserted("test_stores.note", "{}", key="bad")
    with closing(sqlite3.connect(shelf.path)) as connection, connection:
        connection.execute("UPDATE job SET data = CAST(? AS TEXT) WHERE id = ?", (data, bad))
    found = [*shelf.entries(sound), *entries(shelf)]
    claim = shelf.store.claim(found)
    assert ids_of(claim.rows) == [sound.id]
    assert claim.later == []
    job = shelf.store.get("bad")
    assert job is not None
    assert (job.id, job.state, job.job, job.attempt) == (bad, State.UNRESOLVABLE, None, 0)
    assert shelf.ids(states=frozenset({State.UNRESOLVABLE})) == [bad]
    assert shelf.counted() == {"running": 1, "unresolvable": 1}
    for _ in range(3):
        assert given(shelf) == []
    assert [record.levelno for record in caplog.records if str(bad) in record.getMessage()] == [logging.ERROR]
    with pytest.raises(JobExists):
        shelf.store.add(shelf.row(key="bad"), "error")
    later = shelves(shelf.clock)
    (entry,) = entries(later)
    assert entry.id == bad
    assert later.store.claim([entry]).rows == []
    with closing(sqlite3.connect(shelf.path)) as connection, connection:
        connection.execute("""UPDATE job SET data = '{"text": "mended"}' WHERE id = ?""", (bad,))
    last = shelves(shelf.clock)
    assert last.state(bad) is State.SCHEDULED
    (run,) = last.store.claim(entries(last)).rows
    assert (run.job, run.attempt) == (Note("mended"), 1)
    assert last.store.settle(run, 1, SUCCEEDED) is State.SUCCEEDED
    last.check()


def test_what_is_parked_keeps_all_that_it_was_added_with(
    shelves: Callable[..., Shelf], shelf: Shelf, sql: Callable[..., list[Any]]
) -> None:
    row = shelf.add("x", 5, key="k", max_wait=50, tags=["t"], priority=4)
    shelf.clock.advance(5)
    (run,) = shelf.claim(row)
    assert shelf.store.settle(run, 1, Again(0, "ValueError: x")) is State.SCHEDULED
    sql("UPDATE job SET data = '{x'")
    assert shelf.claim(run) == []
    assert shelf.counted() == {"unresolvable": 1}
    sql("""UPDATE job SET data = '{"text": "x"}'""")
    later = shelves(shelf.clock)
    (again,) = later.store.claim(entries(later)).rows
    assert (again.job, again.attempt, again.key, again.priority) == (Note("x"), 2, "k", 4)
    assert again.terms is not None
    assert (again.terms.tags, again.terms.until, again.terms.nominal) == (("t",), 50.0, 5.0)


def test_what_is_parked_may_be_cancelled_and_replaced(shelf: Shelf, inserted: Inserted) -> None:
    bad = [inserted("test_stores.note", "{x", key=f"k{number}") for number in range(3)]
    assert shelf.store.claim(entries(shelf)).rows == []
    assert shelf.counted() == {"unresolvable": 3}
    assert [shelf.store.pause(bad[0]), shelf.store.resume(bad[0]), shelf.store.retry(bad[0])] == [None] * 3
    assert shelf.store.touch(bad[0], 5) is not None
    assert shelf.store.cancel("k0") is not None
    new = shelf.row(key="k1")
    assert shelf.put(new) == (new.id, bad[1])
    assert shelf.counted() == {"scheduled": 1, "unresolvable": 1, "cancelled": 2}


# --- errors half-way ---


def _fail(*given: Any) -> Any:
    raise StoreError("it fails, once")


class Failing:
    """Lets the n-th call that touches the file fail, before or after it was done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, shelf: Shelf, *names: str) -> None:
        file = shelf.store._file  # type: ignore[attr-defined]
        self.left: int | None = None
        self.after = False
        self.calls = 0
        for name in names or ("read", "write", "write_one"):
            monkeypatch.setattr(file, name, self._wrapped(getattr(file, name)))

    def _wrapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*given: Any, **named: Any) -> Any:
            self.calls += 1
            if self.left is None:
                return call(*given, **named)
            self.left -= 1
            if self.left >= 0:
                return call(*given, **named)
            self.left = None
            if self.after and call.__name__ == "write_one":
                call(*given[:3], _fail, *given[4:], **named)  # written, and the answer is lost
            elif self.after:
                call(*given, **named)
            return _fail()

        return wrapped

    def at(self, number: int, after: bool) -> None:
        self.left, self.after = number, after

    def passed(self) -> bool:
        """The call ended before the failure was reached."""
        passed = self.left is not None
        self.left = None
        return passed


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_look_that_fails_half_way_leaves_nothing_behind_for_ever(
    shelves: Callable[..., Shelf], monkeypatch: pytest.MonkeyPatch, inserted: Inserted, after: bool
) -> None:
    """What it had found already is found again by the next one."""
    shelf = shelves(store={"keep": 1})
    failing = Failing(monkeypatch, shelf)
    number, done = 0, False
    while not done:
        for _ in range(2):
            shelf.ended()
        shelf.store.new_room()
        expected = [inserted("test_stores.note", due=START + shelf.clock.elapsed() + delay) for delay in (-1, 0, 1, 20)]
        expected.append(inserted("test_stores.note", state=schema.PARKED))
        failing.at(number, after)
        found: list[int] = []
        with suppress(StoreError):
            found += shelf.swept()
            found += ids_of(shelf.store.window(shelf.clock.elapsed() + HOUR))
        done = failing.passed()
        for _ in range(2):
            found += given(shelf)
        assert sorted(set(found)) == sorted(expected), f"call {number} of the file fails"
        for id in expected:
            shelf.store.cancel(id)
        shelf.store.new_room()
        shelf.store.window(inf)
        number += 1
    assert number > 5


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_claim_that_fails_half_way_leaves_no_row_running_that_nobody_runs(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, inserted: Inserted, after: bool
) -> None:
    failing = Failing(monkeypatch, shelf)
    number, done = 0, False
    while not done:
        rows = [shelf.add(str(number)), shelf.add("late", 50), shelf.add("cancelled"), shelf.add(job=Two())]
        found = shelf.entries(*rows)
        bad = inserted("test_stores.note", "{x")
        found += [entry for entry in entries(shelf) if entry.id == bad]
        shelf.store.cancel(rows[2].id)
        failing.at(number, after)
        try:
            claim = shelf.store.claim(found)
        except StoreError:
            runs: list[Row] = []
        else:
            runs = claim.rows
        done = failing.passed()
        wanted = {rows[0].id, rows[3].id}
        assert set(ids_of(runs)) <= wanted
        for _ in range(2):  # a sweep hands back what runs by the file alone, the next one gives it
            runs += shelf.store.claim(entries(shelf)).rows
        runs += shelf.store.claim(found).rows
        assert sorted(ids_of(runs)) == sorted(wanted), f"call {number} of the file fails"
        assert [run.attempt for run in runs] == [1, 1]
        assert shelf.store.settle_many([(run, 1, SUCCEEDED) for run in runs]) == [State.SUCCEEDED] * 2
        shelf.store.cancel(rows[1].id)
        shelf.store.cancel(bad)
        number += 1
    assert number > 2


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_verdicts_that_could_not_be_written_can_be_written_later(shelf: Shelf, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    failing = Failing(monkeypatch, shelf)
    number, done = 0, False
    while not done:
        runs = [shelf.running(str(index)) for index in range(4)]
        batch = list(zip(runs, [1] * 4, [SUCCEEDED, Failed("x"), Again(0), SUCCEEDED], strict=True))
        failing.at(number, after)
        with suppress(StoreError):
            shelf.store.settle_many(batch)
        done = failing.passed()
        shelf.store.settle_many(batch)
        expected = [State.SUCCEEDED, State.FAILED, State.SCHEDULED, State.SUCCEEDED]
        assert [shelf.state(run.id) for run in runs] == expected, f"call {number} of the file fails"
        number += 1
    assert number > 1
    shelf.store.sweep(0)
    assert "running" not in shelf.counted()


def test_rows_that_run_by_the_file_alone_are_handed_back_uncounted(shelf: Shelf) -> None:
    """A claim was written, and its answer was an error."""
    row = shelf.running(key="k")
    shelf.store._file.runs.clear()  # type: ignore[attr-defined]
    shelf.store.sweep(0)
    assert (shelf.state("k"), shelf.attempt("k")) == (State.SCHEDULED, 0)
    assert shelf.claimed(row) == [row.id]


def test_a_limited_kind_has_its_places_back_whatever_became_of_its_runs(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, sql: Callable[..., list[Any]]
) -> None:
    for _ in range(3):
        first, second = shelf.claim(*(shelf.add(job=Two()) for _ in range(2)))
        sql("DELETE FROM job")  # somebody cleans up by hand
        assert shelf.store.settle(first, 1, SUCCEEDED) is None
        assert shelf.store.hand_back([second]) == []
    failing = Failing(monkeypatch, shelf, "write_one")
    rows = [shelf.add(job=Two()) for _ in range(2)]
    failing.at(0, after=False)
    with pytest.raises(StoreError):
        shelf.claim(*rows)
    assert shelf.claimed(*rows) == ids_of(rows)


@pytest.mark.parametrize("how", ["touch", "reschedule", "pause", "resume", "retry"])
def test_a_move_in_the_middle_of_which_the_store_is_closed_is_made_and_neither_waits_for_the_other(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The close waits for the move to be written; so the move must not wait for what the close holds."""
    store: Any = shelf.store
    id = (shelf.ended("x", Failed("x")) if how == "retry" else shelf.add("x", 50)).id
    if how == "resume":
        store.pause(id)
    run = moves.Edit.run
    closer = threading.Thread(target=store.close, daemon=True)

    def closing(self: Any, connection: Any) -> None:
        if closer.ident is None:
            closer.start()
            deadline = time.monotonic() + 10
            while store._open is not None:
                assert time.monotonic() < deadline
                time.sleep(0.001)
        run(self, connection)

    monkeypatch.setattr(moves.Edit, "run", closing)
    deeds: dict[str, Callable[[], Any]] = {
        "touch": lambda: store.touch(id, 5),
        "reschedule": lambda: store.reschedule(id, 5.0, None),
        "pause": lambda: store.pause(id),
        "resume": lambda: store.resume(id),
        "retry": lambda: store.retry(id),
    }
    (answer,) = together(deeds[how])
    assert answer is not None
    assert not isinstance(answer, Exception)
    closer.join(10)
    assert not closer.is_alive()
    assert shelf.state(id) is (State.PAUSED if how == "pause" else State.SCHEDULED)


@dataclass
class Renamed(Note, kind="test_sqlite_store.renamed", aliases=("test_sqlite_store.former",), max_running=2):
    """Of which a process of an older version may run some under the former name."""


def test_a_limited_kind_is_counted_under_its_former_names_too(shelf: Shelf, inserted: Inserted) -> None:
    """One that another process runs under a name that no look here has met yet counts as well."""
    new = [shelf.add(job=Renamed()) for _ in range(2)]
    inserted("test_sqlite_store.former", state=schema.RUNNING, owner=10**6)
    claim = shelf.claims(*new)
    assert (ids_of(claim.rows), ids_of(entry for _, entry in claim.held)) == ([new[0].id], [new[1].id])
    shelf.store.settle(claim.rows[0], 1, SUCCEEDED)
    old = inserted("test_sqlite_store.former")
    (entry,) = entries(shelf)
    claim = shelf.store.claim([entry, *shelf.entries(new[1])])
    assert (ids_of(claim.rows), ids_of(entry for _, entry in claim.held)) == ([old], [new[1].id])
    assert shelf.counted()["running"] == 2


# --- the window and the sweep ---


@pytest.mark.parametrize("count", [9, 10, 11, 95])
def test_the_window_is_loaded_in_pieces_ahead_of_time_and_each_row_once(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, inserted: Inserted, count: int
) -> None:
    monkeypatch.setattr(window, "MOST", 10)
    ids = [inserted("test_stores.note", due=START + 10 + number) for number in range(count)]
    shelf.store.new_room()
    seen: dict[int, Any] = {}
    most = 0
    while shelf.clock.elapsed() < 10 + count:
        for entry in [*entries(shelf), *shelf.store.window(shelf.clock.elapsed() + HOUR)]:
            assert entry.id not in seen
            assert entry.due > shelf.clock.elapsed() - MICRO, "in time"
            seen[entry.id] = entry
        most = max(most, len(seen) - len([1 for entry in seen.values() if entry.due <= shelf.clock.elapsed()]))
        shelf.clock.advance(1)
        shelf.store.claim([entry for entry in seen.values() if entry.due == shelf.clock.elapsed()])
    assert sorted(seen) == ids
    assert shelf.counted() == {"running": count}
    assert most <= 3 * 10, "memory is bounded, whatever the file holds"


def test_what_is_added_beyond_the_window_is_not_held_and_comes_in_time(shelf: Shelf) -> None:
    shelf.store.new_room()
    shelf.store.window(HOUR)
    near, far = shelf.row("near", HOUR - 1), shelf.row("far", HOUR + 5)
    for row in (near, far):
        shelf.store.add(row, "replace")
    assert ids_of(shelf.entries(near, far)) == [near.id]
    shelf.clock.advance(HOUR / 2 - 1)
    assert given(shelf) == [], "half of the way is loaded"
    shelf.clock.advance(1)
    assert given(shelf) == [far.id]


def test_a_row_that_is_put_off_beyond_the_window_comes_in_time(shelf: Shelf) -> None:
    shelf.store.new_room()
    shelf.store.window(HOUR)
    row = shelf.row("x", 10)
    shelf.store.add(row, "replace")
    (entry,) = shelf.entries(row)
    shelf.store.reschedule(row.id, 3 * HOUR, None)
    shelf.clock.advance(10)
    claim = shelf.store.claim([entry])
    assert (claim.rows, ids_of(claim.later), entry.due) == ([], [row.id], 3 * HOUR)  # type: ignore[comparison-overlap]
    assert given(shelf) == []


def test_the_overdue_are_given_as_many_as_are_wanted_oldest_first(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, inserted: Inserted
) -> None:
    monkeypatch.setattr(window, "PAGE", 10)
    ids = [inserted("test_stores.note", due=START - 10 - number) for number in range(100)]
    ids.reverse()
    seen: list[int] = []
    while True:
        sweep = shelf.store.sweep(20)
        found: list[Any] = sweep.overdue
        assert (len(found) <= 30, sweep.entries) == (True, [])
        seen += ids_of(found)
        assert sweep.more or len(seen) == 100
        if not found:
            break
    assert seen == ids
    assert shelf.swept() == []


def test_a_sweep_that_wants_no_backlog_gives_none_and_takes_none(shelf: Shelf, inserted: Inserted) -> None:
    old, now = inserted("test_stores.note", due=START - 100), inserted("test_stores.note")
    assert shelf.swept(0) == [now]
    assert shelf.swept(1) == [old]


def test_what_falls_due_now_does_not_wait_for_the_end_of_a_backlog(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, inserted: Inserted
) -> None:
    monkeypatch.setattr(window, "PAGE", 10)
    for number in range(100):
        inserted("test_stores.note", due=START - 100 - number)
    now, soon = inserted("test_stores.note"), inserted("test_stores.note", due=START + 1)
    sweep = shelf.store.sweep(10)
    assert ids_of(sweep.entries) == [now, soon]
    assert (len(sweep.overdue), sweep.more) == (10, True)


@pytest.mark.parametrize("size", [3, 10, 1024])
def test_a_thousand_rows_due_at_one_moment_all_come(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, inserted: Inserted, sql: Callable[..., list[Any]], size: int
) -> None:
    monkeypatch.setattr(window, "PAGE", size)
    inserted("test_stores.note")
    sql(
        "INSERT INTO job (kind, data, priority, state, basis, due, attempt, created, flags) "
        "SELECT kind, data, 0, 0, 0, due, 0, created, 0 FROM job, json_each(?)",
        json.dumps(list(range(999))),
    )
    ran: list[int] = []
    idle = 0
    while idle < 2:  # one sweep may begin where the one before left off, and find nothing behind it
        runs = shelf.store.claim(entries(shelf, 64)).rows
        idle = 0 if runs else idle + 1
        ran += ids_of(runs)
        shelf.store.settle_many([(run, 1, SUCCEEDED) for run in runs])
    assert len(set(ran)) == len(ran) == 1000
    assert shelf.counted() == {"succeeded": 1000}


def test_of_rows_due_at_one_moment_none_waits_behind_a_kind_that_is_full(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, inserted: Inserted
) -> None:
    monkeypatch.setattr(window, "PAGE", 10)
    limited = [inserted("test_stores.two") for _ in range(35)]
    other = inserted("test_stores.other")
    seen: list[int] = []
    for _ in range(4):
        seen += shelf.swept(100)
    assert sorted(seen) == sorted([*limited, other])


def test_rows_that_nobody_takes_do_not_hide_the_ones_behind_them(shelf: Shelf, monkeypatch: pytest.MonkeyPatch, inserted: Inserted) -> None:
    """More overdue rows than a sweep reads wait in this process's lanes."""
    monkeypatch.setattr(window, "PAGE", 5)
    monkeypatch.setattr(window, "PAGES", 2)
    old = [inserted("test_stores.note", due=START - 100 + number) for number in range(40)]
    seen: list[int] = []
    for _ in range(10):
        seen += shelf.swept(100)
    assert sorted(seen) == old
    late = inserted("test_stores.note", due=START - 1)
    for _ in range(10):
        seen += shelf.swept(100)
    assert seen[-1] == late
    oldest = inserted("test_stores.note", due=START - 500)
    for _ in range(10):
        seen += shelf.swept(100)
    assert seen[-1] == oldest


def test_the_overdue_of_a_file_that_is_full_of_the_future_are_found(shelf: Shelf, inserted: Inserted) -> None:
    for number in range(50):
        inserted("test_stores.note", due=START + 100 + number)
    overdue = inserted("test_stores.note", due=START - 5)
    assert shelf.swept() == [overdue]
    assert shelf.store.overdue() == -5.0


# --- two clocks, and boots ---


def test_a_delay_does_not_follow_the_wall_clock_and_a_date_does(shelf: Shelf) -> None:
    delayed, dated = shelf.add("delayed", 100), shelf.add("dated", at=at(100))
    held = {entry.id: entry for entry in shelf.entries(delayed, dated)}  # type: ignore[attr-defined]
    shelf.clock.set_wall(90)
    assert ids_of(shelf.store.reanchor()) == [dated.id]
    assert {id: entry.due for id, entry in held.items()} == {delayed.id: 100.0, dated.id: 10.0}
    shelf.clock.advance(10)
    assert ids_of(shelf.store.claim(list(held.values())).rows) == [dated.id]
    shelf.clock.set_wall(-90)
    assert ids_of(shelf.store.reanchor()) == []
    shelf.clock.advance(89)
    assert shelf.claimed(delayed) == []
    shelf.clock.advance(1)
    assert shelf.claimed(delayed) == [delayed.id]


def test_dates_that_no_room_holds_follow_the_wall_clock_too(shelf: Shelf) -> None:
    shelf.store.new_room()
    shelf.store.window(HOUR)
    dated = shelf.row("dated", at=at(2 * HOUR))
    shelf.store.add(dated, "replace")
    assert shelf.entries(dated) == []
    shelf.clock.set_wall(1.5 * HOUR)
    assert shelf.store.reanchor() == []
    assert given(shelf) == [dated.id], "it has come near"
    assert shelf.due(dated.id) == 2 * HOUR
    shelf.clock.advance(HOUR / 2)
    assert shelf.claimed(dated) == [dated.id]


def after_reboot(shelves: Callable[..., Shelf], wall: float) -> Shelf:
    """The machine has booted again; its wall clock then shows so many seconds since START."""
    clock = ManualClock(START + wall)
    return shelves(clock)


def test_rows_of_another_boot_count_by_the_wall_clock(shelves: Callable[..., Shelf]) -> None:
    before = shelves()
    before.clock.advance(1000)
    ids = [before.add("x", 60).id, before.add("y", 10).id, before.add("z", at=at(1060)).id]
    before.store.close()
    shelf = after_reboot(shelves, 1020)
    shelf.store.new_room()
    found = {entry.id: entry.due for entry in [*entries(shelf), *shelf.store.window(HOUR)]}
    assert found == {ids[0]: pytest.approx(40.0, abs=2e-6), ids[1]: pytest.approx(-10.0, abs=2e-6), ids[2]: pytest.approx(40.0, abs=2e-6)}
    assert [shelf.due(id) for id in ids] == [1060.0, 1010.0, 1060.0]
    assert shelf.store.overdue() == pytest.approx(-10.0, abs=2e-6)
    shelf.clock.advance(39.99)
    assert shelf.store.claim([row_of(shelf, ids[0])]).rows == []
    shelf.clock.advance(0.02)
    assert ids_of(shelf.store.claim([row_of(shelf, ids[0])]).rows) == [ids[0]]


def test_a_step_of_the_wall_clock_before_the_reboot_is_known(shelves: Callable[..., Shelf]) -> None:
    """The file keeps how far the clocks were apart when somebody last looked."""
    before = shelves()
    id = before.add("x", 100).id
    before.clock.set_wall(5000)
    before.store.sweep(0)
    before.store.close()
    shelf = after_reboot(shelves, 5030)
    assert shelf.due(id) == 5100.0
    shelf.clock.advance(69)
    assert shelf.store.claim([row_of(shelf, id)]).rows == []
    shelf.clock.advance(1.001)
    assert ids_of(shelf.store.claim([row_of(shelf, id)]).rows) == [id]


def test_a_row_of_another_boot_that_is_touched_or_tried_again_counts_by_this_one(shelves: Callable[..., Shelf]) -> None:
    before = shelves()
    touched, again, bound = before.add("t", 60), before.add("a", 0), before.add("b", 60, max_wait=100)
    before.store.close()
    shelf = after_reboot(shelves, 10)
    shelf.store.touch(touched.id, None)
    shelf.store.touch(bound.id, 1000)
    (run,) = [run for run in shelf.store.claim(entries(shelf)).rows if run.id == again.id]
    shelf.store.settle(run, 1, Again(60))
    shelf.clock.set_wall(-500)
    shelf.store.sweep(0)
    shelf.clock.advance(60)
    wanted = [row_of(shelf, row.id) for row in (touched, again, bound)]
    assert ids_of(shelf.store.claim(wanted).rows) == [touched.id, again.id]
    shelf.clock.advance(30)
    assert ids_of(shelf.store.claim(wanted).rows) == [bound.id], "100 s after its add, and 10 of them were gone at this boot"


def test_two_boots_at_once_see_the_same_moments(shelves: Callable[..., Shelf]) -> None:
    """Containers with a time namespace of their own, say: their elapsed clocks differ, their wall clock is one."""
    one = shelves()
    one.clock.advance(500)
    other = after_reboot(shelves, 500)
    ids = [one.add("one", 10).id, other.add("other", 10).id]
    assert [one.due(id) for id in ids] == [other.due(id) for id in ids] == [510.0, 510.0]
    for shelf in (one, other):
        shelf.store.new_room()
        shelf.store.sweep(0)
        assert sorted(ids_of(shelf.store.window(shelf.clock.elapsed() + 100))) == ids
        shelf.clock.advance(10.00001)
    assert ids_of(one.store.claim([row_of(one, id) for id in ids]).rows) == ids
    assert ids_of(other.store.claim([row_of(other, id) for id in ids]).rows) == []


def test_boots_that_are_needed_are_not_forgotten(shelves: Callable[..., Shelf]) -> None:
    """Where boots cannot be told apart each process is one, and so there are many."""
    idle = shelves()
    bound = shelves()
    row = bound.add("x", 60, max_wait=100)
    touching = shelves()
    assert touching.store.touch(row.id, 30) is not None
    for _ in range(40):
        other = shelves()
        other.store.sweep(0)
        other.store.close()
    idle.store.sweep(0)
    added = idle.add("late", 50)
    last = shelves()
    assert (idle.due(added.id), last.due(added.id)) == (50.0, 50.0)
    assert last.store.claim([row_of(last, added.id)]).rows == []
    assert last.store.touch(row.id, 1000) is not None
    assert last.due(row.id) == 100.0
    last.clock.advance(50.001)
    assert ids_of(last.store.claim([row_of(last, added.id)]).rows) == [added.id]


# --- history ---


def test_a_sweep_prunes_in_small_pieces(
    shelves: Callable[..., Shelf], monkeypatch: pytest.MonkeyPatch, sql: Callable[..., list[Any]]
) -> None:
    monkeypatch.setattr(sqlite_store, "PRUNE", 10)
    shelf = shelves(store={"keep": 5})
    runs = [shelf.running(str(number), tags=["t", str(number)]) for number in range(57)]
    shelf.store.settle_many([(run, 1, SUCCEEDED) for run in runs])
    pieces: list[int] = []
    file = shelf.store._file  # type: ignore[attr-defined]
    write_one = file.write_one
    monkeypatch.setattr(file, "write_one", lambda *given, **named: pieces.append(write_one(*given, **named)) or pieces[-1])
    shelf.store.sweep(0)
    assert all(piece <= 10 for piece in pieces if isinstance(piece, int))
    assert shelf.ids() == ids_of(runs[-5:])
    assert sql("SELECT count(*) FROM job") == [(5,)]
    assert sql("SELECT count(*) FROM tag") == [(10,)], "their tags go with them"
    assert shelf.counted() == {"succeeded": 57}
    shelf.check()


def test_a_sweep_prunes_what_is_too_old_and_leaves_what_lives(shelves: Callable[..., Shelf], sql: Callable[..., list[Any]]) -> None:
    shelf = shelves(store={"keep_days": 1})
    shelf.ended("x", Failed("x"))
    waits = shelf.add("waits", 10 * DAY)
    paused = shelf.add("paused", 10 * DAY)
    shelf.store.pause(paused.id)
    runs = shelf.running("runs")
    shelf.clock.advance(2 * DAY)
    new = shelf.ended("new")
    shelf.store.sweep(0)
    assert sorted(sql("SELECT id FROM job")) == sorted([(waits.id,), (paused.id,), (runs.id,), (new.id,)])
    assert shelf.counted() == {"scheduled": 1, "paused": 1, "running": 1, "failed": 1, "succeeded": 1}


def test_what_was_pruned_by_one_counts_for_all(shelves: Callable[..., Shelf]) -> None:
    one = shelves(store={"keep": 1})
    other = shelves(one.clock, store={"keep": 1000})
    for _ in range(5):
        one.ended()
    other.store.sweep(0)
    assert len(other.ids()) == 5
    one.store.sweep(0)
    assert len(other.ids()) == 1
    assert one.counted() == other.counted() == {"succeeded": 5}


def test_a_revived_job_is_not_pruned(shelves: Callable[..., Shelf]) -> None:
    shelf = shelves(store={"keep": 2})
    failed = shelf.ended("x", Failed("x"))
    shelf.ended()
    shelf.store.retry(failed.id)
    for _ in range(5):
        shelf.ended()
    shelf.store.sweep(0)
    assert shelf.state(failed.id) is State.SCHEDULED
    assert shelf.counted() == {"scheduled": 1, "succeeded": 6}


# --- the table of states ---


def test_no_row_in_the_file_ever_moves_but_along_the_table(  # noqa: C901 (a move has many names)
    shelves: Callable[..., Shelf], inserted: Inserted, sql: Callable[..., list[Any]]
) -> None:
    """A random life of many rows; a trigger writes each move down as it is made."""
    shelf = shelves(store={"keep": 10_000})
    sql("CREATE TABLE moved (old INTEGER, new INTEGER)")
    sql("CREATE TRIGGER watch AFTER UPDATE OF state ON job BEGIN INSERT INTO moved VALUES (old.state, new.state); END")
    random = Random(11)
    rows: list[Row] = []
    runs: dict[int, Row] = {}
    for number in range(5000):
        move = random.randrange(14)
        row = random.choice(rows[-40:]) if rows else None
        if move < 3 or row is None:
            row = shelf.row(key=random.choice([None, "a", "b"]))
            try:
                shelf.store.add(row, random.choice(["replace", "keep", "error"]))
            except JobExists:
                continue
            rows.append(row)
        elif move < 6:
            runs.update({run.id: run for run in shelf.claim(row)})
        elif move == 6:
            run = runs.get(row.id, row)
            shelf.store.settle(
                run, run.attempt, random.choice([SUCCEEDED, Failed("x"), Again(0), Cancelled(), Missed("x"), Interrupted("x")])
            )
        elif move == 7:
            shelf.store.hand_back([runs.get(row.id, row)])
        elif move == 8:
            shelf.store.cancel(row.id)
        elif move == 9:
            shelf.store.retry(row.id)
        elif move == 10:
            shelf.store.touch(row.id, 0)
        elif move == 11 and number % 3 == 0:
            row.id = inserted("test_stores.note", "{x")
            shelf.store.claim([row])
        else:
            (shelf.store.pause if move == 12 else shelf.store.resume)(row.id)
    moved = Counter((STATES[old], STATES[new]) for old, new in sql("SELECT old, new FROM moved") if old != new)
    # PARKED is a row that was claimed and could not be read: RUNNING, and handed back as such.
    strange = {pair for pair in moved if pair[1] not in MOVES[pair[0]]} - {(State.RUNNING, State.UNRESOLVABLE)}
    assert not strange
    assert len(moved) > 12
    shelf.check()
    assert {state for _, state in moved} >= ENDED - {State.MISSED}


def test_the_counts_are_right_whoever_writes(shelf: Shelf, inserted: Inserted, sql: Callable[..., list[Any]]) -> None:
    ids = [inserted("test_stores.note") for _ in range(5)]
    sql("UPDATE job SET state = 1 WHERE id = ?", ids[0])
    sql("UPDATE job SET state = 5, ended = 0 WHERE id = ?", ids[1])
    sql("DELETE FROM job WHERE id = ?", ids[2])
    assert shelf.counted() == {"scheduled": 2, "paused": 1, "failed": 1}
    sql("DELETE FROM job")
    assert shelf.counted() == {"failed": 1}


def test_a_mate_that_only_asks_changes_nothing(shelf: Shelf, sql: Callable[..., list[Any]]) -> None:
    shelf.add("x", 5, key="k")
    before = sql("SELECT * FROM job"), sql("SELECT * FROM tally"), sql("SELECT * FROM kind")
    asks = Mate(Shelf("sqlite", shelf.path, shelf.clock))
    asks.get("k"), asks.ids(), asks.counted(), asks.overdue()
    assert (sql("SELECT * FROM job"), sql("SELECT * FROM tally"), sql("SELECT * FROM kind")) == before
    asks.close()


def test_priorities_and_kinds_come_with_the_entries(shelf: Shelf, inserted: Inserted) -> None:
    inserted("test_stores.other", priority=7)
    (entry,) = entries(shelf)
    assert (entry.priority, entry.kind) == (7, Other.jobwheel_kind)


def test_the_whole_file_may_be_asked_for(shelf: Shelf, inserted: Inserted) -> None:
    """By the manual clock's timer, which looks at everything."""
    ids = [inserted("test_stores.note", due=START + delay) for delay in (0, 5, 10 * DAY)]
    shelf.store.new_room()
    assert sorted([*shelf.swept(), *ids_of(shelf.store.window(inf))]) == ids
