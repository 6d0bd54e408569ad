"""The shop's SQLite file: opening it, and one short transaction at a time from any thread. Called by `orders`; knows no rules.

Promises: a `writing` block has the file's only write lock from its first statement on, so what it reads cannot change before it
commits; other writers wait up to five seconds. Objects read in a block stay readable after it.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from sqlite3 import Connection as SqliteConnection
from sqlite3 import OperationalError

from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import ConnectionPoolEntry

from web_example.models import Base


def _on_connect(connection: SqliteConnection, _entry: ConnectionPoolEntry) -> None:
    # The driver's own idea of when a transaction begins is switched off; _on_begin says it instead.
    connection.isolation_level = None
    connection.execute("PRAGMA busy_timeout = 5000")
    connection.execute("PRAGMA foreign_keys = ON")
    # WAL: readers and the writer do not block each other. The file remembers it. Changing to it does not wait for locks; when it fails,
    # somebody else is changing it just now, or the next connection does: everything is right in the old mode too, only slower.
    with suppress(OperationalError):
        connection.execute("PRAGMA journal_mode = WAL")


def _on_begin(connection: Connection) -> None:
    # A plain BEGIN that turns into a writer half-way fails at once when another one wrote meanwhile; IMMEDIATE waits its turn instead.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN")


class Database:
    """The shop's database in the file at `path`, which is made, with its folder and tables, when it is not there."""

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Sixteen: eight threads of the server and eight of the timer may each be in a transaction.
        self._engine = create_engine(URL.create("sqlite", database=str(path)), pool_size=16, max_overflow=8)
        event.listen(self._engine, "connect", _on_connect)
        event.listen(self._engine, "begin", _on_begin)
        writer = self._engine.execution_options(writes=True)
        self._reads = sessionmaker(self._engine, expire_on_commit=False)
        self._writes = sessionmaker(writer, expire_on_commit=False)
        with writer.begin() as connection:
            Base.metadata.create_all(connection)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session for looking; it sees one moment of the file."""
        with self._reads.begin() as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A session for changing; leaving the block commits, an exception rolls back all of it."""
        with self._writes.begin() as session:
            yield session

    def close(self) -> None:
        """Closes the idle connections; the object stays usable."""
        self._engine.dispose()
