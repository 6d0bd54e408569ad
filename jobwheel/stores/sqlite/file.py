"""One store's file as this process has it: two connections, the lock file, this process's number in it. Shared by all timers on that file.

Promises: everything that writes (checkpoints, opening and closing too) is done under byte 0 of the lock file, so processes take turns
and none starves; a wait for another process ends at its deadline with a `StoreError` that names it; nothing is acknowledged by a file
that was deleted or replaced meanwhile; over a fork nothing of SQLite is open, so that parent and child have each their own.
Relies on: a local file system with POSIX locks.

Locks, in the order in which they are taken: `_writing` (one thread of this process writes), byte 0 (of all processes), `_inside` (held
while SQLite works on the writing connection), `_reading` (the same for the reading one; a read takes it alone). A fork takes them all, for
a limited time: no thread may be in the middle of SQLite's own mutexes, which the child could never have, and no connection may be open.

Reads have a connection of their own: an open cursor on the writing one would make a write fail at once with SQLITE_BUSY_SNAPSHOT.

Long, since opening, taking turns, closing and forking are one story about the same few locks, which has to be seen whole.
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

from jobwheel.errors import JobwheelError, StoreError
from jobwheel.row import Row
from jobwheel.stores.sqlite import schema
from jobwheel.stores.sqlite.adds import Add
from jobwheel.stores.sqlite.group import Group, Record, Write
from jobwheel.stores.sqlite.lockfile import Held, LockFile
from jobwheel.stores.sqlite.promises import Promises
from jobwheel.stores.sqlite.trouble import BROKEN, code_of, told

T = TypeVar("T")
Values = Sequence[Any] | dict[str, Any]
Chosen = Callable[[sqlite3.Connection], Values | None]
"""Gives the values of a statement when its turn has come, by what it then finds in the file; None: there is nothing to do."""

PATIENCE = 5.0
"""Seconds that a call waits for other processes to let it write."""
FORK_PATIENCE = 2.0
"""Seconds that a fork waits for what a thread does with the file, and for other processes."""
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
        self.hung: dict[int, Row] = {}
        """Rows that were settled as timed out while their thread went on."""
        self.promises = Promises()
        """Of this process's touches."""
        self.users = 0
        self.patience = PATIENCE
        """Seconds that the close may wait for other processes."""
        self.closed = False
        self.parted = False
        """The connections are closed for a fork."""
        self._apart = False
        """They could not be opened again after it: the file was away, say."""
        self.fork_was_seen = False
        """The hook before the fork has run."""
        self._fork_turn = False
        self._fork_holds: list[Any] = []
        self._wal: int | None = None
        self.broken: str | None = None
        """Why nothing is written any more."""
        self.group = Group(self._commit)
        self._writing = threading.RLock()
        self._inside = threading.RLock()
        self._reading = threading.RLock()
        self._stepping = False  # in the middle of a statement that returns rows
        self._turns = 0  # of writing, so far
        self._busy = False  # the thread in `_writing` has byte 0; a signal handler finds it so
        self._full = True
        self._ids = iter(range(0))
        self._ids_lock = threading.RLock()  # reentrant, as all here, for signal handlers
        self._locks: LockFile
        self._writer: sqlite3.Connection
        self._reader: sqlite3.Connection
        self._identity: tuple[int, int]
        self._name = ""
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
        if not os.path.exists(self.path):
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))  # so that it has a name from the beginning
            self._name = _name_of(self.path)
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
        self._locks.write(self._name)

    def _refuse_foreign_wal(self) -> None:
        """SQLite would replay a WAL that belongs to another file, one that was replaced while its WAL stayed."""
        known, wal = self._locks.read(), f"{self.path}-wal"
        self._name = _name_of(self.path)
        if not (os.path.exists(wal) and os.path.getsize(wal)):
            return
        if not self._name:
            raise StoreError(
                f"{self.path} is missing, and its newest part, {wal}, is there: put the file back, or move {wal} and {self.path}-shm "
                f"away to begin anew"
            )
        if known and self._name != known:
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

    def close(self, patience: float | None = None) -> bool:
        """Ends this process's part in the file. False: not now, for something runs, or the caller is a signal handler in mid-write."""
        if self.pid != os.getpid() or self.closed:
            return True
        with self._writing:
            if self._busy:
                return False
            if self.runs or any(row.run is not None and row.run.hung for row in list(self.hung.values())):
                return False  # they have this process as their owner, so the proof that it lives stays until its very end
            clean = False
            try:
                self._lock(time.monotonic() + (self.patience if patience is None else patience))
                with self._reading, self._inside:
                    self.closed = True
                    if self.in_place() and not self.broken:
                        self._writer.execute("DELETE FROM process WHERE n = ?", (self.number,))
                    # Under the lock as well: the last one to close writes the WAL back into the file.
                    self._reader.close()
                    self._writer.close()
                    clean = True
            except (StoreError, sqlite3.Error, OSError):
                pass
            finally:
                self.closed = True
                os.close(self._locks.fd)  # and with it every lock
            if not clean:
                self._keep_connections()
            return True

    def _keep_connections(self) -> None:
        """For ever, since closing them is not safe."""
        for one in (self._writer, self._reader):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))

    # --- writing ---

    def write(self, work: Callable[[sqlite3.Connection], T], full: bool, patience: float = PATIENCE) -> T:
        """What `work` returns, done in one transaction; rolled back if it raises. `full`: on disk before this returns."""
        return self._turn(lambda: self._transaction(work), full, time.monotonic() + patience)

    def write_one(
        self, statement: str, values: Values | Chosen, full: bool, note: Callable[[list[Record]], T], patience: float = PATIENCE
    ) -> T:
        """What `note` makes of the rows that this one statement returns; it is called before another writer comes, and does not fail."""

        def one() -> T:
            try:
                self._stepping = True
                chosen = values(self._writer) if callable(values) else values
                return note([] if chosen is None else self._writer.execute(statement, chosen).fetchall())
            except sqlite3.Error as error:
                raise self._told(error) from error
            finally:
                self._stepping = False

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
        if self._writer.in_transaction or self._stepping:
            raise StoreError("this call came from a signal handler in the middle of a write of the same thread; call it again later")
        with self._inside:
            if full and not self._full:  # never less than what the interrupted one has asked for
                self._get_ready(full)
            return work()

    def _get_ready(self, full: bool) -> None:
        if not self.in_place():
            raise self._gone(self.path)
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

    def in_place(self) -> bool:
        """It is still the file that was opened."""
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
                except JobwheelError as error:  # a refusal, before anything was changed
                    write.error = error

        try:
            self._transaction(work)
        except Exception:
            return False
        return True

    def _try(self, write: Write) -> None:
        write.result = write.error = None
        try:
            if write.single:
                self._stepping = True
                write.run(self._writer)
            else:
                self._transaction(write.run)
        except sqlite3.Error as error:
            write.error = self._told(error)
        except Exception as error:
            write.error = error
        finally:
            self._stepping = False

    # --- reading ---

    def read(self, statement: str, values: Values = ()) -> list[Record]:
        """All rows of a query."""
        self._check_use()
        with self._reading:
            self._check_use()  # again, since a shutdown may have come in between
            try:
                return self._reader.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                raise self._told(error) from error

    def check(self) -> None:
        """Raises `StoreError` when the files are not what they were: the file, its WAL, and the lock file beside it."""
        self._check_use()
        if not self.in_place():
            raise self._gone(self.path)
        if not self._locks.intact():
            raise self._gone(f"{self.path}-lock")
        with self._reading:  # which a fork has while the connections are closed: the WAL may be away then, and is another one after it
            try:
                wal = os.stat(f"{self.path}-wal").st_ino
            except OSError:
                wal = 0
            if wal != self._wal:
                if self._wal:
                    raise self._gone(f"{self.path}-wal")
                self._wal = wal

    def _gone(self, what: str) -> StoreError:
        return StoreError(
            f"{what} was deleted or replaced while the store's file {self.path} was in use: put it back; or stop every process that uses "
            f"the store, move {self.path}-wal and -shm away if it is the file itself that was replaced, and start them anew"
        )

    def _check_use(self) -> None:
        if self._apart:
            with self._inside, self._reading:
                try:
                    self._connect_again()
                except (sqlite3.Error, OSError) as error:
                    self._apart = True
                    raise told(self.path, error) from error
                if self._apart:
                    raise self._gone(self.path)
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
        """Closes both connections, when no thread is inside SQLite; waits for that, but not for ever, lest a fork hangs on a disk.

        SQLite keeps its locks by file and process: a child that inherited its list of them would believe that it holds the parent's, and
        take none of its own.
        """
        held = [lock for lock in (self._writing, self._inside, self._reading) if lock.acquire(timeout=FORK_PATIENCE)]
        self._fork_holds = held
        self.fork_was_seen = True
        if self.closed or self._busy or self._inside not in held or self._reading not in held:
            return
        with contextlib.suppress(sqlite3.Error, StoreError, OSError):
            if self._writing in held:
                self._fork_turn = self._locks.try_lock(time.monotonic() + FORK_PATIENCE)
            self.parted = True
            self._reader.close()
            self._writer.close()

    def after_fork_in_parent(self) -> None:
        """Opens them again, and goes on."""
        try:
            if self.parted:
                self._connect_again()
        except (sqlite3.Error, OSError):
            self._apart = True  # the next use tries again, and tells
        finally:
            self.parted = self.fork_was_seen = False
            if self._fork_turn:
                self._locks.unlock()
            self._fork_turn = False
            for lock in reversed(self._fork_holds):
                lock.release()

    def _connect_again(self) -> None:
        self._apart = not self.in_place()
        if self._apart:
            return  # the next use tells, or connects
        with contextlib.ExitStack() as opened:
            writer, reader = (opened.enter_context(contextlib.closing(self._connection())) for _ in range(2))
            writer.execute("PRAGMA synchronous = FULL")
            writer.execute(f"PRAGMA wal_autocheckpoint = {self._checkpoint}")
            reader.execute("PRAGMA query_only = ON")
            opened.pop_all()
        self._writer, self._reader, self._full, self._wal = writer, reader, True, None

    def abandon(self) -> None:
        """It is kept for ever: in the child of a fork, where it is the parent's, or at the end of a process where something runs on."""
        if not self.parted:
            self._keep_connections()
        _abandoned.append(self)


def _name_of(path: str) -> str:
    """Tells a file from another one that has its path, and by chance its inode number, later. Empty if there is none.

    To be called only while this process has no connection to it: closing any descriptor of a file lets go of the process's locks on it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        inode = os.fstat(descriptor).st_ino
        generation = fcntl.ioctl(descriptor, FS_IOC_GETVERSION, bytes(8)).hex()
    except OSError:  # a file system without generations
        generation = ""
    finally:
        os.close(descriptor)
    return f"{inode}:{generation}"


FS_IOC_GETVERSION = 0x80087601
"""Of Linux: the generation of an inode, which changes when its number is given to a new file."""


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
_inherited: dict[str, str] = {}
"""Paths of files that a parent had open over a fork, and why: this process can never have locks of its own on them."""


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
            _leave_to_parent(path, _files.pop(path))
            file = None
        if path in _inherited:
            raise StoreError(f"{path} was open when this process was forked, and SQLite cannot be used in such a child: {_inherited[path]}")
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
        if not file.close(1.0):
            file.abandon()  # something runs on, perhaps for as long as other things end; the kernel closes it


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
    for path, file in _files.items():
        _leave_to_parent(path, file)
    _files.clear()


UNSEEN_FORK = (
    "the server does not run Python's hook before a fork, which closes it; let it load the application after the fork "
    "(uWSGI: lazy-apps = true)"
)
HUNG_FORK = (
    f"a thread has been inside SQLite for over {FORK_PATIENCE:g} s, waiting for a disk or for another program, so it could not be "
    f"closed; fork again"
)


def _leave_to_parent(path: str, file: StoreFile) -> None:
    if not (file.parted or file.closed):
        _inherited[path] = HUNG_FORK if file.fork_was_seen else UNSEEN_FORK
    file.abandon()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
