"""The tables of a store's file, their versions, and what must be true of a file before it is used. Called by `file` under the write lock.

States are numbers in the file, in this order: SCHEDULED, PAUSED, RUNNING and PARKED live, the rest have ended. PARKED is a row
whose data its kind's class could not be made from; like one of an unknown kind it is `unresolvable` to the process that looks.

Moments are whole microseconds. `due` counts on the clock that `basis` names: 0 is the wall clock, any other the elapsed clock of one
boot of the machine (table `boot`, which knows how far that clock is from the wall clock). `tally` and `tag` are kept by triggers, so
they are right whoever writes.
"""

import sqlite3

from jobwheel.errors import StoreError

APPLICATION = 0x6A6F6277  # "jobw"
OLDEST_SQLITE = (3, 35, 0)
"""The first with RETURNING."""
CHECK_UP_TO = 8 * 2**20
"""Bytes up to which a file is looked through for damage when it is opened: some milliseconds."""

SCHEDULED, PAUSED, RUNNING, PARKED, SUCCEEDED, FAILED, CANCELLED, MISSED, INTERRUPTED = range(9)
ENDED = SUCCEEDED
"""States from here on have ended."""
DELETED = 9
"""In `tally`, of kind 0: how many ended rows were deleted from the history."""

CANCEL_ASKED, SUPERSEDED, AT_MOST_ONCE, HUNG = 1, 2, 4, 8
"""Bits of `flags`: cancelled while it ran; a newer job took its key; its kind says on_crash="interrupt" (written when it is claimed); it
failed by its time limit, and its thread went on in the process that is still its `owner`."""
CRASH = 16
"""Added to `flags` each time that the process died while the job ran: the bits from here on count that."""
HOLDER = f"key IS NOT NULL AND state < {ENDED} AND flags & {SUPERSEDED} = 0"
"""True of the one row that its key leads to; the words of the index `job_key`."""

FIRST = f"""
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('next_id', 1);
CREATE TABLE kind (n INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE boot (n INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, offset INTEGER NOT NULL);
INSERT INTO boot VALUES (0, 'wall', 0);
CREATE TABLE process (n INTEGER PRIMARY KEY AUTOINCREMENT, pid INTEGER NOT NULL, opened INTEGER NOT NULL);
CREATE TABLE job (
    id INTEGER PRIMARY KEY,
    kind INTEGER NOT NULL,
    data TEXT NOT NULL,
    key TEXT,
    priority INTEGER NOT NULL,
    state INTEGER NOT NULL,
    basis INTEGER NOT NULL,
    due INTEGER NOT NULL,
    delay INTEGER,
    attempt INTEGER NOT NULL,
    created INTEGER NOT NULL,
    owner INTEGER,
    flags INTEGER NOT NULL,
    tags TEXT,
    more TEXT,
    started INTEGER,
    late INTEGER,
    ended INTEGER
);
CREATE INDEX job_due ON job (basis, due, priority DESC, kind, state) WHERE state = {SCHEDULED};
CREATE UNIQUE INDEX job_key ON job (key) WHERE {HOLDER};
CREATE INDEX job_running ON job (owner) WHERE state = {RUNNING};
CREATE INDEX job_parked ON job (id) WHERE state = {PARKED};
CREATE INDEX job_ended ON job (ended) WHERE state >= {ENDED};
CREATE TABLE tally (kind INTEGER, state INTEGER, n INTEGER NOT NULL, PRIMARY KEY (kind, state)) WITHOUT ROWID;
CREATE TABLE tag (tag TEXT, job INTEGER, PRIMARY KEY (tag, job)) WITHOUT ROWID;
CREATE TRIGGER job_added AFTER INSERT ON job BEGIN
    INSERT INTO tally VALUES (new.kind, new.state, 1) ON CONFLICT DO UPDATE SET n = n + 1;
END;
CREATE TRIGGER job_moved AFTER UPDATE OF state ON job WHEN old.state <> new.state BEGIN
    UPDATE tally SET n = n - 1 WHERE kind = old.kind AND state = old.state;
    INSERT INTO tally VALUES (new.kind, new.state, 1) ON CONFLICT DO UPDATE SET n = n + 1;
END;
CREATE TRIGGER live_job_deleted AFTER DELETE ON job WHEN old.state < {ENDED} BEGIN
    UPDATE tally SET n = n - 1 WHERE kind = old.kind AND state = old.state;
END;
CREATE TRIGGER ended_job_deleted AFTER DELETE ON job WHEN old.state >= {ENDED} BEGIN
    INSERT INTO tally VALUES (0, {DELETED}, 1) ON CONFLICT DO UPDATE SET n = n + 1;
END;
CREATE TRIGGER tagged_job_added AFTER INSERT ON job WHEN new.tags IS NOT NULL BEGIN
    INSERT OR IGNORE INTO tag SELECT value, new.id FROM json_each(new.tags);
END;
CREATE TRIGGER tagged_job_deleted AFTER DELETE ON job WHEN old.tags IS NOT NULL BEGIN
    DELETE FROM tag WHERE job = old.id AND tag IN (SELECT value FROM json_each(old.tags));
END;
"""

SUSPECT = 2 * CRASH
"""`flags` from here on: two processes have died while they had the job, so at the next death it counts as failed."""
SECOND = f"""
ALTER TABLE job ADD COLUMN toucher INTEGER;
CREATE INDEX job_urgent ON job (basis, due) WHERE state = {SCHEDULED} AND priority > 0;
CREATE INDEX job_suspect ON job (id) WHERE flags >= {SUSPECT} AND state < {ENDED};
"""
"""`toucher`: number of the process that may claim the job before its `due`, at the moment that its touches promised; NULL: none may. Only
ever set while the state is SCHEDULED."""

MIGRATIONS = (FIRST, SECOND)
"""Each brings a file from the version that is its place here to the next one. Never change one that was released: add another."""


def check_sqlite() -> None:
    """Raises `StoreError` if this Python's SQLite is too old."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        wanted = ".".join(map(str, OLDEST_SQLITE))
        raise StoreError(
            f"this Python has SQLite {sqlite3.sqlite_version}, and store.kind sqlite needs {wanted} or newer: use a newer Python"
        )


def prepare(connection: sqlite3.Connection, path: str) -> None:
    """Makes the tables of a new file, brings an older one up to date, and refuses what is no store or comes from a newer jobwheel.

    Nothing is written to a file that is refused.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")]
        if application or version or tables:
            found = f"its application_id is {application}, its tables: {', '.join(sorted(tables)[:5]) or 'none'}"
            raise StoreError(f"{path} is another program's database ({found}); it was left as it is: set store.path to a file of its own")
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{path} was written by a newer jobwheel (schema {version}, this one knows {len(MIGRATIONS)}); it was left as it is: "
            f"install that version, or set store.path to another file"
        )
    _check(connection, path)
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreError(
            f"{path}: its file system has no shared memory for SQLite's WAL (journal mode {mode}), as network file systems have none: "
            f"set store.path to a local disk"
        )
    for number in range(version, len(MIGRATIONS)):
        connection.executescript(
            f"BEGIN IMMEDIATE; {MIGRATIONS[number]}PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {number + 1}; COMMIT"
        )


def _check(connection: sqlite3.Connection, path: str) -> None:
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    if pages * size > CHECK_UP_TO:
        return
    (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if answer != "ok":
        raise StoreError(
            f"{path} is damaged ({answer.splitlines()[-1]}); it was left as it is: move it away together with its -wal and -shm, "
            f"then restore a backup in its place, or begin anew"
        )
