"""One store's file as this process has it: two connections, the lock file, this process's number in it. Shared by all timers on that file.

Promises: everything that writes (checkpoints, opening and closing too) is done under byte 0 of the lock file, so processes take turns
and none starves; a wait for another process ends at its deadline with a `StoreError` that names it; nothing is acknowledged by a file
that was deleted or replaced meanwhile; a fork neither uses, nor closes, nor damages what the parent has open.
Relies on: a local file system with POSIX locks.

Locks, in the order in which they are taken: `_writing` (one thread of this process writes), byte 0 (of all processes), `_inside` (held
while SQLite works on the writing connection). `_reading` is held alone. A fork waits for `_inside` and `_reading`, so that no thread is in
the middle of SQLite's own mutexes, which the child could never have; it does not wait for other processes.

Reads have a connection of their own: an open cursor on the writing one would make a write fail at once with SQLITE_BUSY_SNAPSHOT.
"""

import atexit
import contextlib
import ctypes
import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from jobwheel.errors import StoreError
from jobwheel.row import Row
from jobwheel.stores.sqlite import schema
from jobwheel.stores.sqlite.group import Group, Write
from jobwheel.stores.sqlite.lockfile import Held, LockFile
from jobwheel.stores.sqlite.trouble import BROKEN, code_of, told

T = TypeVar("T")
Record = tuple[Any, ...]
Values = Sequence[Any] | dict[str, Any]

PATIENCE = 5.0
"""Seconds that a call waits for other processes to let it write."""
IDS = 1024
"""Numbers of jobs that a process takes at once; what it does not use is never used."""
CACHE = -16000
"""KiB of pages that each connection keeps: helps from some 500,000 waiting jobs on."""


class Waited(StoreError):
    """Another process did not let this one write in time."""


class Closed(StoreError):
    """This process has closed the file since the caller got it."""


class StoreFile:
    """See the module. `open_file` gives it."""

    def __init__(self, path: str, checkpoint: int = 1000) -> None:
        self.path = path
        self._checkpoint = checkpoint
        self.pid = os.getpid()
        self.number = 0
        """This process's own among those that have the file open: the owner of what it runs."""
        self.runs: dict[int, Row] = {}
        """Rows that are RUNNING with this process as their owner. Changed while writing only, so under the lock it is exact."""
        self.users = 0
        self.closed = False
        self.broken: str | None = None
        """Why nothing is written any more."""
        self.group = Group(self._commit)
        self._writing = threading.RLock()
        self._inside = threading.RLock()
        self._reading = threading.RLock()
        self._turns = 0  # of writing, so far
        self._busy = False  # the thread in `_writing` has byte 0; a signal handler finds it so
        self._full = True
        self._ids = iter(range(0))
        self._ids_lock = threading.RLock()  # reentrant, as all here, for signal handlers
        self._locks: LockFile
        self._writer: sqlite3.Connection
        self._reader: sqlite3.Connection
        self._identity: tuple[int, int]
        schema.check_sqlite()
        self._open()

    # --- opening and closing ---

    def _open(self) -> None:
        directory = os.path.dirname(self.path)
        if not os.path.isdir(directory):
            raise StoreError(f"store.path: there is no directory {directory}; make it, or set store.path to a file in another one")
        if os.path.isdir(self.path):
            raise StoreError(f"store.path: {self.path} is a directory; it must be the path of a file")
        opened: list[Any] = []
        try:
            self._locks = LockFile(f"{self.path}-lock")
            opened.append(self._locks)
            self._lock(time.monotonic() + PATIENCE)
            try:
                self._connect(opened)
            finally:
                self._locks.unlock()
        except BaseException as error:
            for one in reversed(opened):
                with contextlib.suppress(sqlite3.Error):
                    one.close()
            if isinstance(error, sqlite3.Error | OSError):
                raise told(self.path, error) from error
            raise

    def _connect(self, opened: list[Any]) -> None:
        self._refuse_foreign_wal()
        self._writer = self._connection()
        opened.append(self._writer)
        _patiently(lambda: schema.prepare(self._writer, self.path))
        self._writer.execute("PRAGMA synchronous = FULL")
        self._writer.execute(f"PRAGMA wal_autocheckpoint = {self._checkpoint}")
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            while not self.number:
                opening = (self.pid, time.time_ns() // 1000)
                ((number,),) = self._writer.execute("INSERT INTO process (pid, opened) VALUES (?, ?) RETURNING n", opening).fetchall()
                if self._locks.live(number):
                    self.number = number
            self._writer.execute("COMMIT")
        except BaseException:
            self._writer.rollback()
            raise
        self._reader = self._connection()
        opened.append(self._reader)
        self._reader.execute("PRAGMA query_only = ON")
        stat = os.stat(self.path)
        self._identity = (stat.st_dev, stat.st_ino)
        self._locks.write(str(stat.st_ino))

    def _refuse_foreign_wal(self) -> None:
        """SQLite would replay a WAL that belongs to another file, one that was replaced while its WAL stayed."""
        known = self._locks.read()
        wal = f"{self.path}-wal"
        if not known or not os.path.exists(self.path) or str(os.stat(self.path).st_ino) == known:
            return
        if os.path.exists(wal) and os.path.getsize(wal):
            raise StoreError(
                f"{self.path} was replaced by another file, and {wal} belongs to the one before: together they would be damaged. Stop "
                f"every process that uses it, move {wal} and {self.path}-shm away, and start again; or, if all of them were copied here "
                f"together from another place, delete {self.path}-lock"
            )

    def _connection(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None, check_same_thread=False, cached_statements=256)
        connection.text_factory = _as_it_is
        try:
            connection.execute(f"PRAGMA cache_size = {CACHE}")
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self, patience: float = PATIENCE) -> bool:
        """Ends this process's part in the file. What it still runs goes on, and counts as cut off from here on.

        False: not now, since the caller is a signal handler in the middle of a write.
        """
        if self.pid != os.getpid() or self.closed:
            return True
        with self._writing:
            if self._busy:
                return False
            with contextlib.suppress(StoreError, sqlite3.Error, OSError):
                self._lock(time.monotonic() + patience)
                try:
                    if not self.runs and self._in_place() and not self.broken:
                        self._writer.execute("DELETE FROM process WHERE n = ?", (self.number,))
                finally:
                    # Reading and writing ends under the lock as well: the last one to close writes the WAL back into the file.
                    with self._reading, self._inside:
                        self.closed = True
                        self._reader.close()
                        self._writer.close()
                    self._locks.unlock()
                    self._locks.close()
            self.closed = True
            return True

    # --- writing ---

    def write(self, work: Callable[[sqlite3.Connection], T], full: bool, patience: float = PATIENCE) -> T:
        """What `work` returns, done in one transaction; rolled back if it raises. `full`: on disk before this returns."""
        return self._turn(lambda: self._transaction(work), full, time.monotonic() + patience)

    def write_one(self, statement: str, values: Values, full: bool, note: Callable[[list[Record]], T], patience: float = PATIENCE) -> T:
        """What `note` makes of the rows that this one statement returns; it is called before another writer comes, and does not fail."""

        def one() -> T:
            try:
                return note(self._writer.execute(statement, values).fetchall())
            except sqlite3.Error as error:
                raise self._told(error) from error

        return self._turn(one, full, time.monotonic() + patience)

    def _turn(self, work: Callable[[], T], full: bool, deadline: float) -> T:
        """Does `work` as the one that writes, of all threads and all processes."""
        with self._writing:
            if self._busy:
                return self._turn_of_handler(work, full)
            self._check_use()
            # Whatever comes in between, a Ctrl-C too, byte 0 is let go: what stands in `finally` calls nothing that is written in Python.
            try:
                while not self._busy:
                    turns = self._turns
                    self._lock(deadline)
                    # A handler that came before this had a turn of its own, and has let byte 0 go with it: then it is taken again.
                    self._busy = turns == self._turns
                with self._inside:
                    self._get_ready(full)
                    return work()
            finally:
                self._busy = False
                self._turns += 1
                fcntl.lockf(self._locks.fd, fcntl.LOCK_UN, 1, 0)

    def _turn_of_handler(self, work: Callable[[], T], full: bool) -> T:
        """The caller is a signal handler that interrupted this thread's own turn: it may share it, unless a transaction is open."""
        if self._writer.in_transaction:
            raise StoreError("this call came from a signal handler in the middle of a write of the same thread; call it again later")
        with self._inside:
            if full and not self._full:  # never less than what the interrupted one has asked for
                self._get_ready(full)
            return work()

    def _get_ready(self, full: bool) -> None:
        if not self._in_place():
            raise StoreError(
                f"the store's file {self.path} was deleted or replaced while it was in use: nothing is written to it any more. "
                f"Put it back; or stop every process that uses it, move {self.path}-wal and -shm away, which belong to the old "
                f"file, and start them anew"
            )
        try:
            if self._writer.in_transaction:
                self._writer.rollback()
            if full is not self._full:
                self._writer.execute("PRAGMA synchronous = " + ("FULL" if full else "NORMAL"))
                self._full = full
        except sqlite3.Error as error:
            raise self._told(error) from error

    def _lock(self, deadline: float) -> None:
        try:
            self._locks.lock(deadline)
        except Held as held:
            who = f"process {held.pid}" if held.pid else "another process"
            raise Waited(
                f"{self.path}: {who} has held the right to write for too long: it hangs, is stopped, or its disk is slow"
            ) from None

    def _in_place(self) -> bool:
        try:
            stat = os.stat(self.path)
        except OSError:
            return False
        return stat.st_ino == self._identity[1] and stat.st_dev == self._identity[0]

    def _transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        writer = self._writer
        try:
            writer.execute("BEGIN IMMEDIATE")
            answer = work(writer)
            writer.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._told(error) from error
        finally:
            if writer.in_transaction:
                writer.rollback()
        return answer

    def _told(self, error: sqlite3.Error) -> StoreError:
        failure = told(self.path, error)
        if code_of(error) in BROKEN:
            self.broken = str(failure)
        return failure

    def _commit(self, batch: list[Write]) -> None:
        """Does the writes of one batch; see `group`."""
        while batch:
            try:
                self._turn(partial(self._run, batch), any(write.full for write in batch), min(write.deadline for write in batch))
                return
            except Exception as error:
                # Nothing was begun. Who came later than the one whose time is up has time left.
                now = time.monotonic()
                over = [write for write in batch if not isinstance(error, Waited) or write.deadline <= now] or batch
                for write in over:
                    write.error = error
                batch = [write for write in batch if write.error is None]

    def _run(self, batch: list[Write]) -> None:
        try:
            left = Add.run_plain(self._writer, batch)
        except sqlite3.Error as error:  # of the adds that were tried in one statement none is there
            self._told(error)
            left = batch
        if left and (len(left) == 1 or not self._try_together(left)):
            for write in left:
                self._try(write)

    def _try_together(self, writes: list[Write]) -> bool:
        """All in one transaction; False, and nothing is done, if that fails."""

        def work(connection: sqlite3.Connection) -> None:
            for write in writes:
                write.result = write.error = None
                try:
                    write.run(connection)
                except sqlite3.Error:
                    raise
                except Exception as error:
                    write.error = error

        try:
            self._transaction(work)
        except StoreError:
            return False
        return True

    def _try(self, write: Write) -> None:
        write.result = write.error = None
        try:
            if write.single:
                write.run(self._writer)
            else:
                self._transaction(write.run)
        except sqlite3.Error as error:
            write.error = self._told(error)
        except Exception as error:
            write.error = error

    # --- reading ---

    def read(self, statement: str, values: Values = ()) -> list[Record]:
        """All rows of a query."""
        with self._reading:
            self._check_use()
            try:
                return self._reader.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                raise self._told(error) from error

    def check(self) -> None:
        """Raises `StoreError` when the file is not what it was."""
        self._check_use()
        if not self._in_place() or not self._locks.intact():
            raise StoreError(f"the store's file {self.path} (or the lock file beside it) was deleted or replaced while it was in use")

    def _check_use(self) -> None:
        if self.closed:
            raise Closed(f"{self.path} was closed by this process")
        if self.broken:
            raise StoreError(self.broken)

    # --- processes ---

    def dead(self) -> list[tuple[int, int]]:
        """Numbers and pids of processes that ended without closing the file."""
        others = self.read("SELECT n, pid FROM process WHERE n <> ?", (self.number,))
        return [(number, pid) for number, pid in others if self._locks.is_dead(number)]

    def is_dead(self, number: int) -> bool:
        """True if the process of that number, another one, has ended. To be asked while writing, before anything is taken from it."""
        return self._locks.is_dead(number)

    def next_id(self) -> int:
        """A number that no other job of this file has or will have; growing in this process."""
        with self._ids_lock:
            for number in self._ids:
                return number
            first: int = self.write_one(
                "UPDATE meta SET value = value + ? WHERE name = 'next_id' RETURNING value - ?",
                (IDS, IDS),
                False,
                lambda records: records[0][0],
            )
            self._ids = iter(range(first + 1, first + IDS))
            return first

    # --- forks ---

    def before_fork(self) -> None:
        """Waits until no thread is inside SQLite; not for ever, lest a fork hangs on a disk."""
        self._fork_holds = [lock for lock in (self._inside, self._reading) if lock.acquire(timeout=PATIENCE)]

    def after_fork_in_parent(self) -> None:
        """Goes on."""
        for lock in self._fork_holds:
            lock.release()

    def abandon(self) -> None:
        """In the child: the connections are the parent's. They are kept for ever, since closing one would harm the parent's file."""
        for one in (self._writer, self._reader):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))
        _abandoned.append(self)


class Add(Write):
    """A row to be added: its values in the order of `INSERT`. `run` is for the one whose key somebody has."""

    __slots__ = ("id", "plain", "values")

    def __init__(self, deadline: float, full: bool, id: int, values: Record, plain: bool) -> None:
        super().__init__(deadline, full)
        self.plain = plain
        """It may be added together with others in one statement."""
        self.id = id
        self.values = values

    @staticmethod
    def run_plain(connection: sqlite3.Connection, batch: list[Write]) -> list[Write]:
        """Adds what can be added without a look at anything, by one statement; gives the rest.

        One statement, since each one gives up the GIL, and beside a thread that computes it takes 5 ms to get it back.
        """
        adds = [write for write in batch if isinstance(write, Add) and write.plain]
        if not adds:
            return batch
        left = insert(connection, [add.values for add in adds])
        for add in adds:
            add.done = add.id not in left
        return [write for write in batch if not write.done]


_INTO = "INSERT INTO job (id, kind, data, key, priority, basis, due, delay, created, tags, more, state, attempt, flags)"
_ROW = f"({'?, ' * 11}0, 0, 0)"
_OR_NOT = "ON CONFLICT DO NOTHING"
ONE = f"{_INTO} VALUES {_ROW} {_OR_NOT}"
SEVERAL = f"""
{_INTO} SELECT {", ".join(f"json_extract(value, '$[{number}]')" for number in range(11))}, 0, 0, 0
FROM json_each(?) WHERE true {_OR_NOT}
"""
PIECE = 500
MANY = f"{_INTO} VALUES {', '.join([_ROW] * PIECE)} {_OR_NOT}"
"""Half as dear a row as `SEVERAL`, but a statement of its own for each number of rows."""
PRESENT = "SELECT id FROM job WHERE id IN (SELECT value FROM json_each(?))"


def insert(connection: sqlite3.Connection, rows: Sequence[Record]) -> set[int]:
    """Adds SCHEDULED rows; gives the ids of those that are not added since somebody has their key."""
    added, number = 0, len(rows)
    for start in range(0, number - PIECE + 1, PIECE):
        added += connection.execute(MANY, [value for row in rows[start : start + PIECE] for value in row]).rowcount
    rest = rows[number - number % PIECE :]
    if len(rest) == 1:
        added += connection.execute(ONE, rest[0]).rowcount
    elif rest:
        added += connection.execute(SEVERAL, (msgspec.json.encode(rest).decode(),)).rowcount
    if added == number:
        return set()
    ids = [row[0] for row in rows]
    return set(ids).difference(*connection.execute(PRESENT, (msgspec.json.encode(ids).decode(),)))


def _as_it_is(text: bytes) -> str:
    # Text that is no UTF-8 makes one row unreadable, and not all fail that are read with it.
    return text.decode("utf-8", "surrogateescape")


def _patiently(work: Callable[[], None]) -> None:
    """Tries again while another program is in the way: changing a file to WAL does not wait by itself."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return work()
        except sqlite3.OperationalError as error:
            if code_of(error) not in ("SQLITE_BUSY", "SQLITE_LOCKED") or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


_files: dict[str, StoreFile] = {}
_registry = threading.RLock()  # guards _files and each file's `users`
_abandoned: list[StoreFile] = []


def open_file(path: str, checkpoint: int = 1000) -> StoreFile:
    """The file at `path`, made if it is not there; of several calls in one process all get the same one. Each ends with `leave_file`.

    `checkpoint`: pages of WAL after which they are written back into the file; the first caller's counts.

    Raises:
        StoreError: it cannot be used; the message says why and what to do.
    """
    path = os.path.realpath(path)
    with _registry:
        file = _files.get(path)
        if file is not None and file.closed:
            file = None
        if file is not None and file.pid != os.getpid():  # a server that forks without Python's hooks, as uWSGI does by default
            _files.pop(path).abandon()
            file = None
        if file is None:
            file = _files[path] = StoreFile(path, checkpoint)
        file.users += 1
        return file


def leave_file(file: StoreFile) -> None:
    """Closes it if the caller was the last one."""
    with _registry:
        if file.pid != os.getpid():
            return
        file.users -= 1
        if file.users <= 0 and _files.get(file.path) is file and file.close():
            del _files[file.path]


def _close_all() -> None:
    """At the end of the process, after its timers were stopped."""
    for file in list(_files.values()):
        file.close(1.0)


def _before_fork() -> None:
    _registry.acquire()
    for file in _files.values():
        file.before_fork()


def _after_fork_in_parent() -> None:
    for file in _files.values():
        file.after_fork_in_parent()
    _registry.release()


def _after_fork_in_child() -> None:
    global _registry  # noqa: PLW0603 (the parent's may be held by a thread that the child does not have)
    _registry = threading.RLock()
    for file in _files.values():
        file.abandon()
    _files.clear()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
