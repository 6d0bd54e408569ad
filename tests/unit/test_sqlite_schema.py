"""Which files are taken and which are refused, and how an older one is brought up to date. Nothing is written to what is refused.

A schema that was released is frozen: by the hash of its text, and by a small store that it made, `tests/data/schema_N.store`.
`python tests/unit/test_sqlite_schema.py` prints the hashes, and makes the store of the newest schema if it is not there yet. So a new
schema gets its line in FROZEN and its store by that command; what is there for older ones stays for ever.
"""

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from jobwheel import IJob, State, StoreError, TimerManager
from jobwheel.stores.sqlite import schema
from jobwheel.stores.sqlite.file import leave_file, open_file
from jobwheel.testing import START, ManualClock, manual_timer

FROZEN = (
    "bd1b7629397b6fdbd594dba1a69e20492a4b1695a963b2204ab49f1589cf14cf",
    "e405629a1065ba8f1b45b68b6997b5d54b94586475f872491179253b06ff9498",
)
"""The sha256 of each of `schema.MIGRATIONS`."""
DATA = Path(__file__).parents[1] / "data"
STORES = {int(path.stem.removeprefix("schema_")): path for path in DATA.glob("schema_*.store")}
BEGIN = datetime.fromtimestamp(START, UTC)

ran: list[str] = []


@dataclass
class Note(IJob, kind="schema.note"):
    """What the kept stores hold: `fails` and `dies` do so in their first process."""

    name: str
    when: datetime = BEGIN

    def run(self) -> None:
        if self.name == "fails" and making:
            raise ValueError("as it should")
        if self.name.startswith("dies") and making:
            os._exit(0)
        ran.append(self.name)


@dataclass
class Once(Note, kind="schema.once", on_crash="interrupt"):
    """At most once."""


making = False
SECOND = "ALTER TABLE meta ADD COLUMN note TEXT; CREATE TABLE later (x INTEGER);"
BROKEN = "CREATE TABLE later (x INTEGER); INSERT INTO nowhere VALUES (1);"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def sql(place: Path) -> Callable[..., list[Any]]:
    def execute(*statements: str) -> list[Any]:
        with closing(sqlite3.connect(place)) as connection, connection:
            return [connection.execute(statement).fetchall() for statement in statements][-1]

    return execute


@pytest.fixture
def made(place: Path) -> Path:
    """A store that was used and closed."""
    leave_file(open_file(str(place)))
    return place


@pytest.fixture
def unchanged(place: Path) -> Iterator[Callable[[], None]]:
    """`unchanged()` notes what the file holds; at the end it must hold the same."""
    notes: list[bytes] = []
    yield lambda: notes.append(place.read_bytes())
    assert place.read_bytes() == notes[0]
    assert not Path(f"{place}-wal").exists()
    assert sorted(path.name for path in place.parent.iterdir()) in (["jobs.db"], ["jobs.db", "jobs.db-lock"])


def refused(place: Path) -> str:
    with pytest.raises(StoreError) as raised:
        open_file(str(place))
    assert str(place) in str(raised.value)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("empty", [False, True], ids=["new", "0 bytes"])
def test_a_new_file_is_made_a_store(place: Path, empty: bool, sql: Callable[..., list[Any]]) -> None:
    if empty:
        place.touch()
    leave_file(open_file(str(place)))
    assert sql("PRAGMA application_id") == [(schema.APPLICATION,)]
    assert sql("PRAGMA user_version") == [(len(schema.MIGRATIONS),)]
    assert sql("PRAGMA journal_mode") == [("wal",)]
    assert sql("PRAGMA integrity_check") == [("ok",)]


def test_a_file_that_is_a_store_is_taken_as_it_is(made: Path, sql: Callable[..., list[Any]]) -> None:
    sql("UPDATE meta SET value = 77 WHERE name = 'next_id'")
    before = sql("SELECT * FROM sqlite_master")
    leave_file(open_file(str(made)))
    assert sql("SELECT * FROM sqlite_master") == before
    assert sql("SELECT value FROM meta WHERE name = 'next_id'") == [(77,)]


@pytest.mark.parametrize(
    "statements",
    [("CREATE TABLE customers (id)", "INSERT INTO customers VALUES (1)"), ("PRAGMA user_version = 5",), ("PRAGMA application_id = 7",)],
    ids=["tables", "version", "application"],
)
def test_another_programs_database_is_refused(
    place: Path, statements: tuple[str, ...], sql: Callable[..., list[Any]], unchanged: Callable[[], None]
) -> None:
    sql(*statements)
    unchanged()
    told = refused(place)
    assert "another program's database" in told
    assert "left as it is" in told or "left as it was" in told or "it was left" in told
    if "customers" in statements[0]:
        assert "customers" in told


def test_a_store_of_a_newer_version_is_refused(made: Path, sql: Callable[..., list[Any]], unchanged: Callable[[], None]) -> None:
    sql("PRAGMA user_version = 99")
    unchanged()
    told = refused(made)
    assert "newer jobwheel (schema 99, this one knows" in told
    assert "install that version" in told


def test_what_is_no_database_is_refused(place: Path, unchanged: Callable[[], None]) -> None:
    place.write_bytes(b"Dear diary, " * 1000)
    unchanged()
    assert "not an SQLite database" in refused(place)


def test_a_damaged_store_is_refused_with_what_to_do(made: Path, unchanged: Callable[[], None]) -> None:
    content = bytearray(made.read_bytes())
    content[4096 * 2 : 4096 * 6] = b"\xaa" * 4096 * 4
    made.write_bytes(content)
    unchanged()
    told = refused(made)
    assert "damaged" in told
    assert "backup" in told


def test_a_large_file_is_not_looked_through(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That would take as long as reading it; damage is told when it is met."""
    asked: list[str] = []
    monkeypatch.setattr(schema, "CHECK_UP_TO", 0)
    with closing(sqlite3.connect(made)) as connection:
        connection.set_trace_callback(asked.append)
        schema.prepare(connection, str(made))
        assert not any("quick_check" in statement for statement in asked)
        monkeypatch.undo()
        schema.prepare(connection, str(made))
        assert any("quick_check" in statement for statement in asked)


def test_a_file_system_without_shared_memory_is_refused(place: Path) -> None:
    """As SQLite tells: the mode stays what it was. A database in memory does so as well."""
    with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(StoreError, match="local disk"):
        schema.prepare(connection, str(place))


def test_an_older_store_is_brought_up_to_date_and_keeps_what_it_holds(
    made: Path, monkeypatch: pytest.MonkeyPatch, sql: Callable[..., list[Any]]
) -> None:
    sql("UPDATE meta SET value = 77 WHERE name = 'next_id'")
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, SECOND, "CREATE TABLE last (x INTEGER);"))
    leave_file(open_file(str(made)))
    assert sql("PRAGMA user_version") == [(len(schema.MIGRATIONS),)]
    assert sql("SELECT value, note FROM meta WHERE name = 'next_id'") == [(77, None)]
    assert sql("SELECT count(*) FROM later") == sql("SELECT count(*) FROM last") == [(0,)]
    leave_file(open_file(str(made)))


def test_a_step_that_fails_leaves_the_store_as_it_was(made: Path, monkeypatch: pytest.MonkeyPatch, sql: Callable[..., list[Any]]) -> None:
    before = sql("SELECT * FROM sqlite_master")
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, BROKEN))
    assert "nowhere" in refused(made)
    assert sql("SELECT * FROM sqlite_master") == before
    assert sql("PRAGMA user_version") == [(len(schema.MIGRATIONS) - 1,)]
    monkeypatch.undo()
    leave_file(open_file(str(made)))


def test_an_old_sqlite_is_refused_before_anything_is_made(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(StoreError, match=r"needs 3\.35\.0 or newer"):
        open_file(str(place))
    assert list(place.parent.iterdir()) == []


def test_what_another_program_does_meanwhile_is_waited_for(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It opens the new file as well, and a change to WAL does not wait by itself."""
    from jobwheel.stores.sqlite import file as file_room

    tries: list[int] = []
    prepare = schema.prepare

    def busy(connection: sqlite3.Connection, path: str) -> None:
        tries.append(1)
        if len(tries) < 3:
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorname = "SQLITE_BUSY"
            raise error
        prepare(connection, path)

    monkeypatch.setattr(schema, "prepare", busy)
    monkeypatch.setattr(file_room.time, "sleep", lambda seconds: None)
    leave_file(open_file(str(place)))
    assert len(tries) == 3


def test_a_released_schema_is_never_changed() -> None:
    """Files are there that it made. Its text has values of this version's constants in it: those of the file, which must stay too."""
    hashes = [sha256(text.encode()).hexdigest() for text in schema.MIGRATIONS]
    assert hashes == list(FROZEN), "a change of the schema is another step at the end of MIGRATIONS; see this file's head"
    assert sorted(STORES) == list(range(1, len(schema.MIGRATIONS) + 1)), "each schema keeps a store that it made; see this file's head"


@pytest.mark.parametrize("version", sorted(STORES))
def test_a_store_that_an_earlier_version_made_has_the_tables_of_a_new_one(
    version: int, place: Path, sql: Callable[..., list[Any]], made: Path, tmp_path: Path
) -> None:
    tables = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
    new = sql(tables)
    place.unlink()
    Path(f"{place}-lock").unlink()
    shutil.copy(STORES[version], place)
    assert sql("PRAGMA user_version") == [(version,)]
    leave_file(open_file(str(place)))
    assert sql("PRAGMA user_version") == [(len(schema.MIGRATIONS),)]
    assert sql(tables) == new


@pytest.mark.parametrize("version", sorted(STORES))
def test_a_store_that_an_earlier_version_made_is_worked_with(version: int, place: Path, sql: Callable[..., list[Any]]) -> None:
    """Jobs are found, added, replaced, moved, claimed, settled and rescued in it."""
    shutil.copy(STORES[version], place)
    ran.clear()
    timer, clock = manual_timer(store={"kind": "sqlite", "path": str(place)})
    try:
        before = timer.find()
        states = {job.key: job.state.value for job in before}
        kept = {"moved": "scheduled", "delayed": "scheduled", "replaced": "scheduled", "paused": "paused", "stays paused": "paused"}
        kept |= {"gone": "unresolvable", "done": "succeeded", "fails": "failed", "cancelled": "cancelled", "dies once": "interrupted"}
        assert kept.items() <= states.items()
        assert states.keys() - kept.keys() == {"dies"}
        delayed = timer.get("delayed")
        assert delayed is not None
        assert delayed.job == Note("delayed", BEGIN)
        assert (delayed.priority, delayed.tags) == (5, ("a", "b"))
        assert [job.key for job in timer.find(tag="b")] == ["delayed"]

        assert timer.add_job(Note("kept"), 1, key="replaced", if_exists="keep").job == Note("replaced")
        timer.add_job(Note("replacing"), 1, key="replaced")
        new = timer.add_jobs([{"job": Note(f"new {each}"), "delay": 2.0 + each, "key": f"new {each}"} for each in range(3)])
        assert min(job.id for job in new) > max(job.id for job in before)
        assert timer.touch("moved", 10)
        assert timer.resume("paused")
        assert timer.cancel("new 1")
        assert not timer.cancel("done")
        assert ran == []
        clock.advance(timedelta(days=2))
        assert ran[:4] == ["dies", "replacing", "new 0", "new 2"]
        assert sorted(ran) == sorted(["dies", "replacing", "new 0", "new 2", "moved", "delayed", "paused"])
        again = timer.find(key="dies")[0]
        assert (again.state, again.attempt) == (State.SUCCEEDED, 2)
        live = (State.SCHEDULED, State.PAUSED, State.RUNNING, State.UNRESOLVABLE)
        assert {job.key for job in timer.find(state=live)} == {"stays paused", "gone"}
        assert timer.retry(next(job.id for job in timer.find(state=State.FAILED)))
        clock.advance(1)
        assert ran[-1] == "fails"
        stats = timer.stats()
        assert (stats.scheduled, stats.paused, stats.running, stats.cancelled, stats.interrupted) == (0, 1, 0, 3, 1)
    finally:
        timer.shutdown(0)
    assert sql("PRAGMA integrity_check") == [("ok",)]


# --- making the store that is kept ---


def make(path: Path) -> None:
    """A store of two processes that died in a run: the second has found what the first was in. VACUUMed, in pages of 512 bytes."""
    global making  # noqa: PLW0603 (jobs are values and know nothing but their fields)
    making = True

    @dataclass
    class Gone(Note, kind="schema.gone"):
        """Of a kind that the tests do not know."""

    def first(timer: TimerManager, clock: ManualClock) -> None:
        timer.add_job(Note("done"), 0, key="done")
        timer.add_job(Note("fails"), 0, key="fails")
        timer.add_job(Note("cancelled"), 60, key="cancelled")
        timer.cancel("cancelled")
        clock.advance(0)
        timer.add_job(Note("moved"), at=BEGIN + timedelta(days=1), key="moved")
        timer.add_job(Note("delayed"), 3600, key="delayed", priority=5, tags=("a", "b"))
        timer.touch("delayed")
        timer.add_job(Note("replaced"), 60, key="replaced")
        timer.add_job(Gone("gone"), 60, key="gone")
        for name in ("paused", "stays paused"):
            timer.add_job(Note(name), 60, key=name)
            timer.pause(name)
        timer.add_job(Once("dies once"), 0, key="dies once")

    def second(timer: TimerManager, clock: ManualClock) -> None:
        timer.add_job(Note("dies"), 0, key="dies")

    for adds in (first, second):
        child = os.fork()
        if child == 0:
            timer, clock = manual_timer(store={"kind": "sqlite", "path": str(path)})
            adds(timer, clock)
            clock.advance(0)
        os.waitpid(child, 0)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in ("journal_mode = DELETE", "page_size = 512"):
            connection.execute(f"PRAGMA {statement}")
        connection.execute("UPDATE job SET more = json_remove(more, '$.trace')")  # it names files of one machine
        connection.execute("VACUUM")
        connection.execute("PRAGMA journal_mode = WAL")
    Path(f"{path}-lock").unlink()


if __name__ == "__main__":
    for step in schema.MIGRATIONS:
        print(sha256(step.encode()).hexdigest())
    newest = DATA / f"schema_{len(schema.MIGRATIONS)}.store"
    if not newest.exists():
        DATA.mkdir(exist_ok=True)
        make(newest)
        print(f"{newest}: {newest.stat().st_size} bytes")
