"""One store's file in one process: who may write, what a cut-off call leaves behind, signal handlers, forks, deletion, closing.

What only other processes can show has its children here as small programs; what is about the store's moves is in `tests/contract`.
"""

import fcntl
import gc
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from interrupts import Cut, Points, at_each_point, cut

from jobwheel import StoreError
from jobwheel.stores.sqlite import file as file_room
from jobwheel.stores.sqlite import group as group_room
from jobwheel.stores.sqlite import lockfile as lockfile_room
from jobwheel.stores.sqlite import schema
from jobwheel.stores.sqlite.file import Closed, StoreFile, leave_file, open_file
from jobwheel.stores.sqlite.group import Write
from jobwheel.stores.sqlite.lockfile import Held

LIMIT = 10.0
ROOMS = (file_room, group_room, lockfile_room)
NEXT = "UPDATE meta SET value = value + 1 WHERE name = 'test' RETURNING value"


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


@pytest.fixture
def file(place: str) -> Iterator[StoreFile]:
    """A file with a number in it that tests count with."""
    file = open_file(place)
    file.write(lambda connection: connection.execute("INSERT INTO meta VALUES ('test', 0)"), full=False)
    yield file
    leave_file(file)


class Count(Write):
    """Counts, by as many statements as it is told."""

    __slots__ = ("error_at", "steps")

    def __init__(self, steps: int = 1, error: BaseException | None = None, alone: bool = False, patience: float = LIMIT) -> None:
        super().__init__(time.monotonic() + patience, full=False, alone=alone)
        self.steps = steps
        self.error_at = error
        self.single = steps == 1 and error is None and not alone

    def run(self, connection: sqlite3.Connection) -> None:
        if self.error_at is not None:
            raise self.error_at
        for _ in range(self.steps):
            ((self.result,),) = connection.execute(NEXT).fetchall()


def count(file: StoreFile) -> int:
    ((value,),) = file.read("SELECT value FROM meta WHERE name = 'test'")
    return int(value)


def within(work: Callable[[], Any]) -> Any:
    """What `work` gives, done on a thread of its own: a call that waits for itself fails the test and does not hang it."""
    answers: list[Any] = []

    def run() -> None:
        try:
            answers.append(work())
        except BaseException as error:
            answers.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT)
    assert not thread.is_alive(), "a call waits for itself, or for ever"
    if isinstance(answers[0], BaseException):
        raise answers[0]
    return answers[0]


def in_child(program: str, *arguments: str) -> str:
    """What a Python program prints that has the file room at hand."""
    head = "import os, sys\nfrom jobwheel.stores.sqlite.file import open_file, leave_file\nfrom jobwheel import StoreError\n"
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(program), *arguments], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.strip()


def byte_0_is_free(place: str) -> bool:
    """As another process sees it."""
    program = """
        import fcntl
        descriptor = os.open(sys.argv[1], os.O_RDWR)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError:
            print("held")
        else:
            print("free")
    """
    return in_child(program, f"{place}-lock") == "free"


class Holder:
    """Another process that holds byte 0 until it is let go."""

    def __init__(self, place: str) -> None:
        program = """
            import fcntl, os, sys
            descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
            fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, 0)
            print("held", flush=True)
            sys.stdin.read()
        """
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), f"{place}-lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "held\n"

    def let_go(self) -> None:
        self.process.communicate(timeout=LIMIT)


@pytest.fixture
def holder(place: str, file: StoreFile) -> Iterator[Holder]:
    holder = Holder(place)
    yield holder
    holder.let_go()


class Free:
    """Another process that tells whether byte 0 is free."""

    def __init__(self, place: str) -> None:
        program = """
            import fcntl, os, sys
            descriptor = os.open(sys.argv[1], os.O_RDWR)
            for line in sys.stdin:
                try:
                    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
                    fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, 0)
                    print("free", flush=True)
                except OSError:
                    print("held", flush=True)
        """
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), f"{place}-lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self) -> bool:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("?\n")
        self.process.stdin.flush()
        return self.process.stdout.readline() == "free\n"

    def end(self) -> None:
        self.process.communicate(timeout=LIMIT)


@pytest.fixture
def free(place: str) -> Iterator[Free]:
    """`free()`: whether another process could write now."""
    Path(f"{place}-lock").touch()
    free = Free(place)
    yield free
    free.end()


# --- opening ---


def test_all_of_one_process_share_one_file_and_the_last_one_closes_it(place: str) -> None:
    first, second = open_file(place), open_file(f"{os.path.dirname(place)}/../{Path(place).parent.name}/jobs.db")
    assert first is second
    leave_file(first)
    assert second.write_one("SELECT 1", (), False, len) == 1
    leave_file(second)
    assert second.closed
    third = open_file(place)
    assert third is not first
    assert third.number > first.number
    leave_file(third)


def test_a_symlink_leads_to_the_same_file(place: str, file: StoreFile, tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(place)
    other = open_file(str(tmp_path / "link.db"))
    assert other is file
    leave_file(other)


def test_each_process_has_a_number_of_its_own_and_gives_it_back_when_it_closes(place: str, file: StoreFile) -> None:
    theirs = int(in_child("file = open_file(sys.argv[1]); print(file.number); leave_file(file)", place))
    assert theirs > file.number
    assert file.read("SELECT n, pid FROM process") == [(file.number, os.getpid())]
    assert file.dead() == []


def test_a_process_that_ends_without_a_word_closes_the_file_all_the_same(place: str, file: StoreFile) -> None:
    in_child("file = open_file(sys.argv[1])", place)
    assert file.dead() == []
    assert len(file.read("SELECT n FROM process")) == 1


def test_one_that_is_gone_without_closing_is_dead_and_those_that_live_are_not(place: str, file: StoreFile) -> None:
    number, pid = map(
        int, in_child("file = open_file(sys.argv[1]); print(file.number, os.getpid(), flush=True); os._exit(0)", place).split()
    )
    assert file.dead() == [(number, pid)]
    assert file.is_dead(number)
    assert file.dead() == [(number, pid)], "asking changes nothing"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.write_bytes(b"no database at all, but long enough to be looked at" * 50), ("SQLITE_NOTADB", "left as it is")),
        (lambda path: path.mkdir(), ("is a directory",)),
        (lambda path: path.parent.joinpath("jobs.db-lock").mkdir(), ("jobs.db-lock",)),
    ],
)
def test_what_cannot_be_opened_is_told_and_leaves_nothing_open(place: str, spoil: Callable[[Path], Any], words: tuple[str, ...]) -> None:
    spoil(Path(place))
    before = set(os.listdir("/proc/self/fd"))
    content = Path(place).read_bytes() if Path(place).is_file() else None
    for _ in range(2):
        with pytest.raises(StoreError) as raised:
            open_file(place)
        assert all(word in str(raised.value) for word in words)
        assert "\n" not in str(raised.value)
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) <= before
    assert content is None or Path(place).read_bytes() == content


def test_a_missing_directory_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"no directory {tmp_path}/nowhere; make it"):
        open_file(str(tmp_path / "nowhere" / "jobs.db"))


def test_the_opening_waits_for_its_turn_and_tells_who_does_not_let_it(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_room, "PATIENCE", 0.01)
    Path(f"{place}-lock").touch()
    holder = Holder(place)
    with pytest.raises(StoreError, match=f"process {holder.process.pid} has held the right to write"):
        open_file(place)
    holder.let_go()
    monkeypatch.undo()
    leave_file(open_file(place))


# --- writing ---


def test_a_write_is_one_transaction(file: StoreFile) -> None:
    def work(connection: sqlite3.Connection) -> None:
        connection.execute(NEXT).fetchall()
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        file.write(work, full=False)
    assert count(file) == 0
    assert file.write(lambda connection: connection.execute(NEXT).fetchall(), full=True) == [(1,)]


def test_a_write_that_fails_in_sqlite_is_told_as_a_store_error(file: StoreFile) -> None:
    with pytest.raises(StoreError, match="no such table"):
        file.write(lambda connection: connection.execute("INSERT INTO nowhere VALUES (1)"), full=False)
    with pytest.raises(StoreError, match="no such table"):
        file.write_one("INSERT INTO nowhere VALUES (1)", (), False, len)
    with pytest.raises(StoreError, match="no such table"):
        file.read("SELECT * FROM nowhere")
    assert file.group.submit(Count()) == 1
    assert byte_0_is_free(file.path)


def test_reads_cannot_write(file: StoreFile) -> None:
    with pytest.raises(StoreError):
        file.read("DELETE FROM meta")
    assert count(file) == 0


def test_of_a_batch_only_what_fails_fails(file: StoreFile) -> None:
    failing = [Count(2, ValueError("a")), Count(2, StoreError("b")), Count(2, sqlite3.IntegrityError("c"))]
    good = [Count(), Count(2), Count(3)]
    batch: list[Write] = [good[0], failing[0], good[1], failing[1], failing[2], good[2]]
    file._commit(batch)
    assert [str(write.error) for write in failing[:2]] == ["a", "b"]
    assert isinstance(failing[2].error, StoreError)
    assert [write.error for write in good] == [None] * 3
    assert count(file) == 6
    assert sorted(write.result for write in good) == [write.result for write in good]


def test_a_write_with_a_transaction_of_its_own_is_undone_when_it_raises(file: StoreFile) -> None:
    class Half(Write):
        def run(self, connection: sqlite3.Connection) -> None:
            connection.execute(NEXT).fetchall()
            raise ValueError("half")

    with pytest.raises(ValueError, match="half"):
        file.group.submit(Half(time.monotonic() + LIMIT, True, alone=True))
    assert count(file) == 0


def test_the_disk_is_waited_for_if_one_of_a_batch_must(file: StoreFile) -> None:
    def level() -> int:
        ((now,),) = file._writer.execute("PRAGMA synchronous").fetchall()
        return int(now)

    file._commit([Count(), Count()])
    assert level() == 1
    must = Count(2)
    must.full = True
    file._commit([Count(), must, Count()])
    assert level() == 2


def test_a_write_whose_time_is_up_takes_no_other_one_with_it(file: StoreFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for other processes until its own deadline."""
    lock = file._locks.lock
    tries: list[float] = []

    def held_at_first(deadline: float) -> None:
        tries.append(deadline)
        if len(tries) == 1:
            raise Held(4711)
        lock(deadline)

    monkeypatch.setattr(file._locks, "lock", held_at_first)
    late, early = Count(patience=-1.0), Count()
    file._commit([late, early])
    assert isinstance(late.error, StoreError)
    assert "process 4711" in str(late.error)
    assert (early.error, early.result) == (None, 1)
    assert len(tries) == 2
    assert tries[0] < tries[1]


def test_a_write_waits_for_the_other_process_and_then_is_done(file: StoreFile, holder: Holder) -> None:
    thread = threading.Thread(target=lambda: file.group.submit(Count()), daemon=True)
    thread.start()
    holder.let_go()
    thread.join(LIMIT)
    assert count(file) == 1


def test_a_write_that_may_not_wait_any_longer_names_who_holds_it_up(file: StoreFile, holder: Holder) -> None:
    with pytest.raises(StoreError, match=f"process {holder.process.pid} has held the right to write for too long"):
        file.group.submit(Count(patience=0.01))
    with pytest.raises(StoreError, match=f"process {holder.process.pid}"):
        file.write_one(NEXT, (), False, len, patience=0.01)
    assert count(file) == 0, "reading waits for nobody"


def test_byte_0_is_free_after_each_write(file: StoreFile) -> None:
    for write in (Count(), Count(2), Count(2, ValueError("x"))):
        with suppress(ValueError):
            file.group.submit(write)
        assert byte_0_is_free(file.path)


def test_ids_are_given_once_by_all_threads(file: StoreFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_room, "IDS", 7)
    seen: list[list[int]] = [[] for _ in range(4)]
    threads = [threading.Thread(target=lambda own=own: own.extend(file.next_id() for _ in range(100))) for own in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert len({id for own in seen for id in own}) == 400
    assert all(own == sorted(own) for own in seen)


# --- cut off by Ctrl-C ---

CALLS: dict[str, Callable[[StoreFile], Any]] = {
    "a lone write": lambda file: file.group.submit(Count()),
    "a lone transaction": lambda file: file.group.submit(Count(3)),
    "a write": lambda file: file.write(lambda connection: connection.execute(NEXT).fetchall(), full=True),
    "a statement": lambda file: file.write_one(NEXT, (), False, len),
    "a read": lambda file: file.read("SELECT 1"),
    "an id": lambda file: file.next_id(),
    "a look": lambda file: (file.check(), file.dead()),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_whatever_point_a_call_is_cut_off_at_this_process_and_others_go_on(
    file: StoreFile, call: Callable[[StoreFile], Any], free: Free, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_room, "IDS", 1)
    other = threading.Thread

    def check() -> None:
        assert free(), "byte 0 is held: no other process could write"
        assert not file._writer.in_transaction or file.write_one(NEXT, (), False, len)
        before = count(file)
        file.group.submit(Count())
        thread = other(target=lambda: (file.group.submit(Count(2)), file.next_id(), file.read("SELECT 1")), daemon=True)
        thread.start()
        thread.join(LIMIT)
        assert not thread.is_alive(), "another thread waits for ever"
        assert count(file) == before + 3

    points = at_each_point(Points(*ROOMS), lambda: call(file), cut, check, (Cut,))
    assert points >= 3
    assert file.read("PRAGMA integrity_check") == [("ok",)]


def test_whatever_point_a_closing_is_cut_off_at_this_process_and_others_go_on(place: str, free: Free) -> None:
    """The file can be opened anew, and nobody waits for the one that was being closed."""
    files = [open_file(place)]

    def check() -> None:
        assert free(), "byte 0 is held: no other process could write"
        again = open_file(place)
        assert again.write_one("SELECT 1", (), False, len) == 1
        assert within(lambda: again.write_one("SELECT 1", (), False, len)) == 1
        again.close()
        file_room._files.clear()
        files.append(open_file(place))

    def close() -> None:
        files[-1].close()

    points = at_each_point(Points(*ROOMS), close, cut, check, (Cut,))
    assert points > 5
    leave_file(files[-1])


def test_whatever_point_an_opening_is_cut_off_at_this_process_and_others_go_on(place: str, free: Free) -> None:
    def work() -> None:
        leave_file(open_file(place))

    def check() -> None:
        assert free(), "byte 0 is held: no other process could write"
        file = within(lambda: open_file(place))
        assert file.write_one("SELECT 1", (), False, len) == 1
        assert file.number not in [number for number, _ in file.dead()]
        leave_file(file)

    points = at_each_point(Points(*ROOMS, schema), work, cut, check, (Cut,))
    assert points > 10


# --- signal handlers that write ---


@pytest.mark.parametrize("call", [*list(CALLS.values())[:6]], ids=[*list(CALLS.keys())[:6]])
@pytest.mark.parametrize("handled", ["write", "statement", "id", "read"])
def test_whatever_point_a_handler_comes_at_it_is_served_or_refused_and_the_call_goes_on(
    file: StoreFile, call: Callable[[StoreFile], Any], handled: str, free: Free, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_room, "IDS", 1)
    acts: dict[str, Callable[[], Any]] = {
        "write": lambda: file.group.submit(Count(2)),
        "statement": lambda: file.write_one(NEXT, (), False, len),
        "id": file.next_id,
        "read": lambda: file.read("SELECT 1"),
    }
    outcomes: list[str] = []

    def handler() -> None:
        try:
            acts[handled]()
        except StoreError as error:
            outcomes.append(str(error))
        else:
            outcomes.append("served")

    def check() -> None:
        assert free()
        before = count(file)
        file.group.submit(Count())
        assert count(file) == before + 1

    at_each_point(Points(*ROOMS), lambda: call(file), handler, check)
    assert "served" in outcomes
    refusals = [outcome for outcome in outcomes if outcome != "served"]
    assert all("signal handler" in refusal for refusal in refusals), refusals
    assert handled != "read" or not refusals


@pytest.mark.parametrize("call", [*list(CALLS.values())[:4]], ids=[*list(CALLS.keys())[:4]])
def test_whatever_a_handler_does_nothing_is_written_without_byte_0(file: StoreFile, call: Callable[[StoreFile], Any], free: Free) -> None:
    """SQLite tells of each statement that it begins, by the trace callback: then byte 0 must be this process's."""
    wrong: list[str] = []

    def begins(statement: str) -> None:
        if not statement.startswith(("PRAGMA synchronous", "ROLLBACK", "--")) and free():
            wrong.append(f"{points.where}: {statement}")

    points = Points(*ROOMS)

    def handler() -> None:
        with suppress(StoreError):
            file.write_one(NEXT, (), False, len)

    file._writer.set_trace_callback(begins)
    at_each_point(points, lambda: call(file), handler, lambda: None)
    file._writer.set_trace_callback(None)
    assert wrong == []


def test_a_handler_that_comes_while_its_thread_waits_for_another_process_does_not_write_past_it(
    file: StoreFile, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[Any] = []

    def sleep(seconds: float) -> None:
        if not waits:
            waits.append(None)
            try:
                waits[0] = file.write_one(NEXT, (), False, len, patience=0.01)
            except StoreError as error:
                waits[0] = error

    monkeypatch.setattr(lockfile_room.time, "sleep", sleep)
    with pytest.raises(StoreError):
        file.write_one(NEXT, (), False, len, patience=0.02)
    assert isinstance(waits[0], StoreError)
    assert count(file) == 0


# --- deleted, replaced, closed ---


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_nothing_is_acknowledged_by_a_file_that_is_gone(file: StoreFile, how: str) -> None:
    """SQLite would write into the deleted one without a word."""
    kept = f"{file.path}.kept"
    os.rename(file.path, kept)
    if how == "replaced":
        Path(file.path).write_bytes(Path(kept).read_bytes())
    for write in (lambda: file.group.submit(Count()), lambda: file.write_one(NEXT, (), False, len)):
        with pytest.raises(StoreError, match="deleted or replaced"):
            write()
    with pytest.raises(StoreError, match="deleted or replaced"):
        file.check()
    os.replace(kept, file.path)
    file.check()
    assert file.group.submit(Count()) == 1, "put back, it goes on"


def test_a_lock_file_that_is_gone_is_found_by_the_look(file: StoreFile) -> None:
    file.check()
    os.rename(f"{file.path}-lock", f"{file.path}-kept")
    with pytest.raises(StoreError, match="-lock was deleted or replaced"):
        file.check()
    Path(f"{file.path}-lock").touch()
    with pytest.raises(StoreError, match="-lock was deleted or replaced"):
        file.check()
    os.replace(f"{file.path}-kept", f"{file.path}-lock")
    file.check()


def test_a_closed_file_says_so(place: str) -> None:
    file = open_file(place)
    leave_file(file)
    for use in (
        lambda: file.group.submit(Count()),
        lambda: file.write_one("SELECT 1", (), False, len),
        lambda: file.read("SELECT 1"),
        file.check,
    ):
        with pytest.raises(Closed):
            use()
    assert file.close()
    assert os.path.exists(place)
    assert not os.path.exists(f"{place}-wal"), "the last one has written it back"


def test_a_closing_waits_until_the_present_write_is_done(file: StoreFile) -> None:
    inside, go = threading.Event(), threading.Event()

    def work(connection: sqlite3.Connection) -> int:
        inside.set()
        assert go.wait(LIMIT)
        return len(connection.execute(NEXT).fetchall())

    answers: list[Any] = []
    writer = threading.Thread(target=lambda: answers.append(file.write(work, full=False)), daemon=True)
    writer.start()
    assert inside.wait(LIMIT)
    closer = threading.Thread(target=lambda: answers.append(file.close()), daemon=True)
    closer.start()
    go.set()
    writer.join(LIMIT)
    closer.join(LIMIT)
    assert answers == [1, True]


def test_a_file_with_running_rows_stays_open_with_the_proof_that_its_process_lives(place: str) -> None:
    file = open_file(place)
    file.runs[7] = None  # type: ignore[assignment]
    leave_file(file)
    assert not file.closed
    assert in_child("file = open_file(sys.argv[1]); print(file.dead()); leave_file(file)", place) == "[]"
    again = open_file(place)
    assert again is file
    file.runs.clear()
    leave_file(again)
    assert file.closed


def test_the_end_of_the_process_closes_what_is_open(place: str) -> None:
    program = """
        import atexit
        from jobwheel.stores.sqlite import file as room
        file = open_file(sys.argv[1])
        room._close_all()
        print(file.closed, os.path.exists(sys.argv[1] + "-wal"))
    """
    assert in_child(program, place) == "True False"


@pytest.mark.parametrize("code", ["SQLITE_CORRUPT", "SQLITE_NOTADB"])
def test_a_damaged_file_is_not_written_any_more(file: StoreFile, code: str) -> None:
    class Broken(Write):
        def run(self, connection: sqlite3.Connection) -> None:
            error = sqlite3.DatabaseError("malformed")
            error.sqlite_errorname = code
            raise error

    with pytest.raises(StoreError, match=code):
        file.group.submit(Broken(time.monotonic() + LIMIT, True))
    for use in (lambda: file.group.submit(Count()), lambda: file.read("SELECT 1"), file.check):
        with pytest.raises(StoreError, match=code):
            use()
    with closing(sqlite3.connect(file.path)) as connection:
        assert connection.execute("SELECT value FROM meta WHERE name = 'test'").fetchall() == [(0,)]


def test_what_has_been_refused_for_a_while_goes_on_when_it_can(file: StoreFile) -> None:
    class Full(Write):
        def run(self, connection: sqlite3.Connection) -> None:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorname = "SQLITE_FULL"
            raise error

    with pytest.raises(StoreError, match="free some space"):
        file.group.submit(Full(time.monotonic() + LIMIT, True))
    assert file.group.submit(Count()) == 1


# --- forks ---


def forked(child: Callable[[], Any]) -> str:
    """What `child` gives, done in a fork of this process: its text, or the error's."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:  # pragma: no cover
        try:
            answer = str(child())
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read().decode()
    os.waitpid(pid, 0)
    return answer


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_fork_neither_uses_nor_closes_what_the_parent_has_open(place: str, file: StoreFile) -> None:
    file.group.submit(Count())

    def child() -> str:
        assert file_room._files == {}
        leave_file(file)
        assert file.close()
        own = open_file(place)
        assert own is not file
        numbers = own.number, own.group.submit(Count())
        alive = own.dead()
        leave_file(own)
        gc.collect()
        return f"{numbers[0] > file.number} {numbers[1]} {alive}"

    assert forked(child) == "True 2 []"
    assert file.group.submit(Count()) == 3
    assert file.dead() == []
    assert file.read("PRAGMA integrity_check") == [("ok",)]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_the_parent_keeps_its_life_and_its_turn_over_a_fork(place: str, file: StoreFile) -> None:
    """The child's descriptors are the parent's too; whatever it closes, the parent's locks stay."""

    def child() -> str:
        own = open_file(place)
        leave_file(own)
        return "ended"

    assert forked(child) == "ended"
    assert in_child(
        "file = open_file(sys.argv[1]); print(file.dead()); leave_file(file)", place
    ) == "[]", "another process sees the parent living"  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_fork_waits_until_no_thread_is_inside_sqlite(place: str, file: StoreFile) -> None:
    inside, over = threading.Event(), threading.Event()

    def begin(statement: str) -> None:
        inside.set()

    def work() -> None:
        for _ in range(200):
            file.write_one(NEXT, (), False, len)
            if over.is_set():
                return

    file._writer.set_trace_callback(begin)
    threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert inside.wait(LIMIT)
    answers = [forked(lambda: open_file(place).write_one(NEXT, (), False, len)) for _ in range(5)]
    over.set()
    for thread in threads:
        thread.join(LIMIT)
    file._writer.set_trace_callback(None)
    assert answers == ["1"] * 5
    assert file.read("PRAGMA integrity_check") == [("ok",)]


def test_a_child_of_a_server_that_forks_without_python_is_told_what_to_do(
    place: str, file: StoreFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a child has the parent's connections and its register, and SQLite would take the parent's locks for its own."""
    monkeypatch.setattr(file, "pid", os.getpid() - 1)
    monkeypatch.setattr(file_room, "_inherited", {})
    for _ in range(2):
        with pytest.raises(StoreError, match="lazy-apps"):
            open_file(place)
    monkeypatch.undo()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_nothing_of_sqlite_is_open_at_the_moment_of_a_fork(place: str, file: StoreFile) -> None:
    """SQLite knows its locks by file and process: a child with the parent's list of them would take none of its own."""

    def child() -> str:
        return str(sorted(os.path.basename(path) for path in map(_target, os.listdir("/proc/self/fd")) if path.startswith(place)))

    file.group.submit(Count())
    assert forked(child) == "['jobs.db-lock']"
    assert file.group.submit(Count()) == 2
    assert count(file) == 2
    assert file.group.submit(Count(2)) == 4


def test_a_look_at_the_files_in_the_middle_of_a_fork_finds_nothing_wrong(file: StoreFile) -> None:
    """The last connection to close takes the WAL with it, and the next one makes another."""
    file.group.submit(Count())
    file.check()
    begun = threading.Event()
    errors: list[str] = []

    def look() -> None:
        begun.set()
        try:
            file.check()
        except StoreError as error:
            errors.append(str(error))

    thread = threading.Thread(target=look, daemon=True)
    file.before_fork()
    thread.start()
    assert begun.wait(10)
    thread.join(0.2)
    file.after_fork_in_parent()
    thread.join(10)
    file.check()
    assert errors == []


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_fork_in_the_middle_of_a_write_of_another_thread_waits_for_it_and_both_go_on(place: str, file: StoreFile) -> None:
    inside, go = threading.Event(), threading.Event()

    def work(connection: sqlite3.Connection) -> Any:
        inside.set()
        go.wait(0.05)
        return connection.execute(NEXT).fetchall()

    answers: list[Any] = []
    writer = threading.Thread(target=lambda: answers.append(file.write(work, full=False)), daemon=True)
    writer.start()
    assert inside.wait(LIMIT)
    assert forked(lambda: open_file(place).write_one(NEXT, (), False, len)) == "1"
    writer.join(LIMIT)
    assert answers == [[(1,)]]
    assert count(file) == 2


def test_the_lock_file_is_closed_in_programs_that_a_child_becomes(file: StoreFile) -> None:
    flags = fcntl.fcntl(file._locks.fd, fcntl.F_GETFD)
    assert flags & fcntl.FD_CLOEXEC
