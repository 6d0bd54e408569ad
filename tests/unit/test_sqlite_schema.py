"""Which files are taken and which are refused, and how an older one is brought up to date. Nothing is written to what is refused."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jobwheel import StoreError
from jobwheel.stores.sqlite import schema
from jobwheel.stores.sqlite.file import leave_file, open_file

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
