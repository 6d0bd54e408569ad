"""What a store outage looks like to callers: a `StoreError` that says what, why and what to do; nothing half-done, nothing run twice.

Three kinds: a file that is refused when it is opened and left byte for byte as it was; an outage of a running timer that passes; and one
that does not pass before a restart.
"""

import contextlib
import logging
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from jobwheel import IJob, TimerManager, open_timer
from jobwheel.errors import StoreError
from jobwheel.stores.sqlite.file import StoreFile

WaitUntil = Callable[..., None]
OpenedTimer = Callable[..., TimerManager]
SOON = 0.3
"""Seconds until the jobs of a test are due: long enough to begin the outage before."""
JOBS = 5
HOLD = (
    "import fcntl, os, sys; fcntl.lockf(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX, 1, 0); print('held', flush=True); sys.stdin.read()"
)
"""A process that stops in the middle of a write."""


@dataclass
class Note(IJob, kind="outage.note"):
    """Counts its runs."""

    number: int
    text: str = ""
    runs: ClassVar[list[int]] = []

    def run(self) -> None:
        self.runs.append(self.number)


@dataclass
class Gate(IJob, kind="outage.gate"):
    """Runs until its gate is opened."""

    number: int
    gates: ClassVar[list[threading.Event]] = []
    inside: ClassVar[list[int]] = []

    def run(self) -> None:
        self.inside.append(self.number)
        assert self.gates[self.number].wait(30)


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the jobs that ran; and waits that are seconds elsewhere are short here."""
    monkeypatch.setattr("jobwheel.stores.sqlite.store.PATIENCE", 0.2)
    monkeypatch.setattr("jobwheel.stores.sqlite.file.PATIENCE", 0.2)
    monkeypatch.setattr(StoreFile.write_one, "__defaults__", (0.2,))
    monkeypatch.setattr("jobwheel.stores.sqlite.claims.CLAIM_PATIENCE", 0.2)
    monkeypatch.setattr("jobwheel.dispatcher.FIRST_WAIT", 0.1)
    monkeypatch.setattr("jobwheel.dispatcher.LONGEST_WAIT", 0.4)
    monkeypatch.setattr("jobwheel.keeper.EACH", 0.1)
    Note.runs, Gate.gates, Gate.inside = [], [threading.Event(), threading.Event()], []
    return Note.runs


def settings(file: Path) -> dict[str, Any]:
    return {"store": {"kind": "sqlite", "path": str(file)}}


def store_with(file: Path, jobs: int = 50, text: str = "") -> None:
    """A closed store with jobs that are due in an hour."""
    timer = open_timer(settings(file))
    timer.add_jobs((Note(number, text), 3600) for number in range(jobs))
    timer.shutdown()


def sql(file: Path, *statements: str) -> None:
    with closing(sqlite3.connect(file)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


# --- files that are refused ---


def garbage(file: Path) -> None:
    file.write_bytes(random.Random(1).randbytes(9000))


def another_programs(file: Path) -> None:
    sql(file, "CREATE TABLE guests (name)", "PRAGMA application_id = 77")


def anybodys(file: Path) -> None:
    sql(file, "CREATE TABLE guests (name)")


def newer(file: Path) -> None:
    store_with(file)
    with closing(sqlite3.connect(file)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute(f"PRAGMA user_version = {version + 1}")


def damaged(file: Path) -> None:
    store_with(file, text="x" * 500)
    with file.open("r+b") as opened:
        opened.seek(3 * 4096)
        opened.write(random.Random(1).randbytes(5 * 4096))


def cut(file: Path) -> None:
    store_with(file, text="x" * 500)
    os.truncate(file, file.stat().st_size // 2)


def a_directory(file: Path) -> None:
    file.mkdir()


def no_directory(file: Path) -> None:
    file.parent.rmdir()


REFUSED = [
    (garbage, "not an SQLite database", "another file"),
    (another_programs, "another program's database.*77.*guests", "a file of its own"),
    (anybodys, "another program's database.*guests", "a file of its own"),
    (newer, "newer jobwheel", "install that version"),
    (damaged, "damaged", "restore a backup"),
    (cut, "damaged", "restore a backup"),
    (a_directory, "is a directory", "path of a file"),
    (no_directory, "no directory", "make it"),
]


@pytest.mark.parametrize(("make", "why", "remedy"), REFUSED, ids=[make.__name__ for make, _, _ in REFUSED])
def test_a_file_that_cannot_be_a_store_is_refused_and_left_as_it_is(
    tmp_path: Path, make: Callable[[Path], None], why: str, remedy: str
) -> None:
    """Every call says the same, health() tells instead of raising, and not a byte changes."""
    file = tmp_path / "here" / "jobs.db"
    file.parent.mkdir()
    make(file)
    before = contents(file.parent) if file.parent.exists() else {}
    timer = open_timer(settings(file))
    calls: list[Callable[[], object]] = [lambda: timer.add_job(Note(1)), lambda: timer.add_jobs([(Note(1), 1)]), timer.find, timer.start]
    calls += [lambda: timer.cancel(1), lambda: timer.get("key"), timer.stats]
    for call in calls:
        with pytest.raises(StoreError, match=f"(?s){file.parent}.*{why}.*{remedy}|{why}.*{file.parent}.*{remedy}") as told:
            call()
        assert "\n" not in str(told.value)
    assert not timer.started
    (problem,) = timer.health().problems
    assert str(file.parent) in problem
    timer.shutdown()
    after = contents(file.parent) if file.parent.exists() else {}
    assert {name: after.get(name) for name in before} == before
    assert {name: content for name, content in after.items() if name not in before and content and not name.endswith("-shm")} == {}


def test_an_empty_file_becomes_a_store(tmp_path: Path, opened: OpenedTimer) -> None:
    """`touch` and tempfile make such."""
    file = tmp_path / "jobs.db"
    file.touch()
    timer = opened(start=False, **settings(file))
    assert timer.get(timer.add_job(Note(1), 60).id) is not None


def test_a_refused_file_can_be_put_right_without_a_new_timer(tmp_path: Path, opened: OpenedTimer) -> None:
    """Nothing of the failed opening is left behind, no descriptor and no lock."""
    file = tmp_path / "jobs.db"
    garbage(file)
    timer = opened(start=False, **settings(file))
    for _ in range(3):
        with pytest.raises(StoreError):
            timer.add_job(Note(1), 60)
    held = [name for name in os.listdir("/proc/self/fd") if os.path.realpath(f"/proc/self/fd/{name}").startswith(str(tmp_path))]
    assert held == []
    file.unlink()
    timer.add_job(Note(1), 60)
    assert timer.stats().scheduled == 1


NOBODY = """
import os, sys
from jobwheel import IJob, StoreError, open_timer
timer = open_timer({"store": {"kind": "sqlite", "path": sys.argv[2]}})
timer.stats()
timer.shutdown()          # everything is loaded now, also what another user may not read
if os.geteuid() == 0:
    os.setuid(65534)
timer = open_timer({"store": {"kind": "sqlite", "path": sys.argv[1]}})
try:
    timer.start()
except StoreError as error:
    print(error)
timer.shutdown()
"""


@pytest.mark.parametrize("there", ["nothing", "the file", "all files"])
def test_a_directory_that_may_not_be_written_is_told_with_the_user(there: str) -> None:
    """At the start, not with the first job."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        file = folder / "store" / "jobs.db"
        file.parent.mkdir()
        if there != "nothing":
            store_with(file)
            if there == "the file":
                (file.parent / "jobs.db-lock").unlink(missing_ok=True)
            for each in file.parent.iterdir():
                each.chmod(0o666)
        before = contents(file.parent)
        folder.chmod(0o755)
        file.parent.chmod(0o555)
        try:
            done = subprocess.run(
                [sys.executable, "-c", NOBODY, file, folder / "other.db"], capture_output=True, text=True, check=False, timeout=60
            )
        finally:
            file.parent.chmod(0o755)
        user = 65534 if os.geteuid() == 0 else os.geteuid()
        assert (done.returncode, done.stderr) == (0, "")
        assert str(file) in done.stdout
        assert f"user {user}" in done.stdout
        assert "permissions" in done.stdout
        assert contents(file.parent) == before


# --- outages that pass ---


@contextmanager
def a_process_stopped_in_a_write(file: Path) -> Iterator[str]:
    """Another one holds the right to write."""
    with subprocess.Popen([sys.executable, "-c", HOLD, f"{file}-lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        yield f"process {holder.pid}"
        holder.stdin.close()


@contextmanager
def another_program_in_a_transaction(file: Path) -> Iterator[str]:
    """Somebody looks into the file with a program that knows nothing of the lock file."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield "another program holds SQLite's lock"
        connection.rollback()


def _away(path: Path) -> Iterator[str]:
    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)
    yield "deleted or replaced"
    aside.rename(path)


@contextmanager
def the_file_is_away(file: Path) -> Iterator[str]:
    yield from _away(file)


@contextmanager
def the_directory_is_away(file: Path) -> Iterator[str]:
    yield from _away(file.parent)


@contextmanager
def the_disk_is_full(file: Path) -> Iterator[str]:
    """The file is on a small disk of its own, which is filled to the last page."""
    filler = file.with_name("filler")
    with filler.open("wb", buffering=0) as opened, contextlib.suppress(OSError):
        while True:
            opened.write(bytes(4096))
    yield "the disk is full"
    filler.unlink()


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A directory on a disk of 1 MiB."""
    folder = Path(tempfile.mkdtemp())
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "jobwheel-test", folder], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"no disk can be mounted here, so none can be filled: {done.stderr.strip()}")
        try:
            yield folder
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)
    finally:
        folder.rmdir()


PASSING = [
    a_process_stopped_in_a_write,
    another_program_in_a_transaction,
    the_file_is_away,
    the_directory_is_away,
    the_disk_is_full,
]


@pytest.fixture(params=PASSING, ids=lambda outage: outage.__name__)
def outage(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Callable[[Path], Any]]:
    """A path for a store, and what can happen to it."""
    folder = request.getfixturevalue("small_disk") if request.param is the_disk_is_full else tmp_path
    (folder / "store").mkdir()
    return folder / "store" / "jobs.db", request.param


def test_jobs_that_fall_due_in_an_outage_run_once_after_it(
    outage: tuple[Path, Callable[[Path], Any]],
    opened: OpenedTimer,
    wait_until: WaitUntil,
    caplog: pytest.LogCaptureFixture,
    runs: list[int],
) -> None:
    """Meanwhile nothing runs, calls say what is wrong and change nothing, health() is not ok; the log tells begin and end, once each."""
    file, begin = outage
    caplog.set_level(logging.INFO, "jobwheel")
    timer = opened(**settings(file), workers={"threads": 2})
    kept = timer.add_job(Note(100), 3600, key="kept")
    timer.add_jobs((Note(number), SOON) for number in range(JOBS))
    due = time.monotonic() + SOON
    caplog.clear()
    with begin(file) as why:
        wait_until(lambda: time.monotonic() > due + 0.2 and not timer.health().ok, what="health() to tell the outage")
        (problem,) = timer.health().problems
        assert why in problem
        calls: list[Callable[[], object]] = [lambda: timer.add_job(Note(101), key="lost"), lambda: timer.add_jobs([(Note(101), 0)])]
        calls += [
            lambda: timer.cancel("kept"),
            lambda: timer.reschedule("kept", 0),
            lambda: timer.pause("kept"),
            lambda: timer.touch("kept"),
        ]
        for call in calls:
            # Where a claim waits for the same thing at this moment, a call is told that it waited for the claim.
            with pytest.raises(StoreError, match=f"{why}|another thread of this process has been writing for too long") as told:
                call()
            assert str(file) in str(told.value)
        assert runs == []
    wait_until(lambda: len(runs) >= JOBS, what="the jobs that were due")
    wait_until(lambda: timer.health().ok and timer.stats().succeeded == JOBS, what="health() to be well again")
    assert sorted(runs) == list(range(JOBS))
    assert timer.get("lost") is None
    still = timer.get("kept")
    assert still is not None
    assert still.state is kept.state
    assert abs(still.due - kept.due) < timedelta(milliseconds=1)
    assert timer.stats().scheduled == 1
    told_of = [(record.levelname, record.getMessage()) for record in caplog.records if "the store" in record.getMessage()]
    assert [level for level, _ in told_of] == ["ERROR", "INFO"], told_of
    assert why in told_of[0][1]
    assert all(job.attempt == 1 for job in timer.find(state="succeeded"))


def test_a_run_that_ends_in_an_outage_is_settled_after_it_and_not_run_again(
    outage: tuple[Path, Callable[[Path], Any]], opened: OpenedTimer, wait_until: WaitUntil, runs: list[int]
) -> None:
    """What it did is known here, and is written down as soon as it can be."""
    file, begin = outage
    timer = opened(**settings(file), workers={"threads": 2})
    ids = [timer.add_job(Gate(number)).id for number in range(2)]
    wait_until(lambda: len(Gate.inside) == 2, what="both runs to be under way")
    with begin(file):
        for gate in Gate.gates:
            gate.set()
        wait_until(lambda: not timer.health().ok, what="health() to tell the outage")
    wait_until(lambda: timer.stats().succeeded == 2, what="both runs to be settled")
    assert [timer.get(id).attempt for id in ids] == [1, 1]  # type: ignore[union-attr]
    wait_until(lambda: timer.health().ok)


def test_a_lock_file_that_is_away_is_told_and_costs_no_acknowledged_job(
    tmp_path: Path, opened: OpenedTimer, wait_until: WaitUntil, caplog: pytest.LogCaptureFixture, runs: list[int]
) -> None:
    """Without it no process can prove to another one that it lives; what is in the file is safe."""
    timer = opened(**settings(tmp_path / "jobs.db"))
    away = _away(tmp_path / "jobs.db-lock")
    why = next(away)
    wait_until(lambda: not timer.health().ok)
    assert why in timer.health().problems[0]
    with contextlib.suppress(StoreError):
        timer.add_job(Note(1), key="added")
    next(away, None)
    wait_until(lambda: timer.health().ok)
    if timer.get("added") is None:
        timer.add_job(Note(1))
    wait_until(lambda: runs == [1])
    assert sum("the store fails" in record.getMessage() for record in caplog.records) == 1


def test_a_full_store_without_a_full_disk_keeps_what_it_acknowledged(tmp_path: Path, opened: OpenedTimer) -> None:
    """SQLITE_FULL by a limit on the file; adds fail from some moment on, the rest goes on, and adds too once there is room."""
    timer = opened(start=False, **settings(tmp_path / "jobs.db"))
    timer.stats()
    writer = timer._life.store._open._writer  # type: ignore[attr-defined]
    (pages,) = writer.execute("PRAGMA page_count").fetchone()
    writer.execute(f"PRAGMA max_page_count = {pages + 8}")
    added: list[int] = []
    why = None
    while why is None:
        try:
            added.append(timer.add_job(Note(len(added), "x" * 500), 3600).id)
        except StoreError as error:
            why = str(error)
    assert added
    assert "the disk is full" in why
    with pytest.raises(StoreError, match="the disk is full"):
        timer.add_jobs((Note(number, "x" * 500), 3600) for number in range(50))
    assert [job.id for job in timer.find(limit=2000)] == added
    assert timer.cancel(added[0])
    writer.execute("PRAGMA max_page_count = 1000000")
    timer.add_job(Note(1, "x" * 500), 3600)
    assert timer.stats().scheduled == len(added)


def test_a_store_that_another_process_holds_is_not_opened_before_that_lets_go(tmp_path: Path, opened: OpenedTimer, runs: list[int]) -> None:
    """The start fails with its name after a while, and succeeds when it is made again."""
    file = tmp_path / "jobs.db"
    store_with(file)
    timer = opened(start=False, **settings(file))
    with a_process_stopped_in_a_write(file) as holder, pytest.raises(StoreError, match=holder):
        timer.start()
    timer.start()
    assert timer.stats().scheduled == 50


def test_a_store_on_a_full_disk_is_not_half_made(small_disk: Path, opened: OpenedTimer) -> None:
    """What is there after the failure is opened as a new store once there is room."""
    file = small_disk / "jobs.db"
    timer = opened(start=False, **settings(file))
    with the_disk_is_full(file) as why, pytest.raises(StoreError, match=why):
        timer.start()
    timer.start()
    timer.add_job(Note(1), 60)
    assert timer.stats().scheduled == 1
    timer.shutdown()


# --- outages that do not pass ---


def elsewhere(program: str, *values: object) -> None:
    """Done by another process: a close in this one would let go of the locks that SQLite holds on the same file here."""
    subprocess.run([sys.executable, "-c", program, *map(str, values)], check=True, timeout=30)


def test_a_deleted_file_acknowledges_nothing(
    tmp_path: Path, opened: OpenedTimer, wait_until: WaitUntil, caplog: pytest.LogCaptureFixture, runs: list[int]
) -> None:
    """An unlinked file takes writes without an error, so each write looks. What is left of it is not thrown away by a restart."""
    file = tmp_path / "jobs.db"
    timer = opened(**settings(file))
    timer.add_jobs((Note(number), SOON) for number in range(JOBS))
    due = time.monotonic() + SOON
    file.unlink()
    with pytest.raises(StoreError, match="deleted or replaced"):
        timer.add_job(Note(100))
    wait_until(lambda: time.monotonic() > due + 1.0)
    assert runs == []
    assert "deleted or replaced" in timer.health().problems[0]
    assert sum("the store fails" in record.getMessage() for record in caplog.records) == 1
    assert not file.exists()
    timer.shutdown()
    with pytest.raises(StoreError, match="is missing, and its newest part"):
        timer.start()
    for part in ("-wal", "-shm"):
        Path(f"{file}{part}").unlink()
    timer.start()
    timer.add_job(Note(7))
    wait_until(lambda: runs == [7])


def test_a_file_replaced_by_another_store_gets_nothing_of_the_old_one(
    tmp_path: Path, opened: OpenedTimer, wait_until: WaitUntil, runs: list[int]
) -> None:
    """Nor does anything of it run. A restart wants the old one's log out of the way: SQLite would take it for the new one's."""
    file, other = tmp_path / "jobs.db", tmp_path / "other.db"
    store_with(other, jobs=3)
    timer = opened(**settings(file))
    timer.add_jobs((Note(number), SOON) for number in range(JOBS))
    due = time.monotonic() + SOON
    elsewhere("import os, sys; os.replace(*sys.argv[1:])", other, file)
    with pytest.raises(StoreError, match="deleted or replaced"):
        timer.add_job(Note(100))
    with pytest.raises(StoreError, match="deleted or replaced"):
        timer.cancel(1)
    wait_until(lambda: time.monotonic() > due + 1.0)
    assert runs == []
    timer.shutdown()
    new, log = file.read_bytes(), tmp_path / "jobs.db-wal"
    for _ in range(2):
        with pytest.raises(StoreError, match=f"replaced.*{log}.*move"):
            timer.start()
    assert file.read_bytes() == new
    log.rename(tmp_path / "old-wal")
    (tmp_path / "jobs.db-shm").unlink()
    timer.start()
    assert [job.job for job in timer.find()] == [Note(number) for number in range(3)]
    timer.run_now(timer.find()[2])
    wait_until(lambda: runs == [2])
    timer.shutdown()
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


SPOIL = """
import os, random, sys
with open(sys.argv[1], "r+b") as file:
    size = os.fstat(file.fileno()).st_size
    file.seek(int(sys.argv[2]))
    file.write(random.Random(1).randbytes((size - int(sys.argv[2])) // 2))
"""


def test_damage_that_is_met_later_stops_all_writing(
    tmp_path: Path, opened: OpenedTimer, wait_until: WaitUntil, caplog: pytest.LogCaptureFixture, runs: list[int]
) -> None:
    """A large file is not looked through at its start. From the first bad page on nothing is written, and nothing runs unclaimed."""
    file = tmp_path / "jobs.db"
    timer = open_timer(settings(file))
    due = time.time() + 2 * SOON
    timer.add_jobs((Note(number, "x" * 3000), 2 * SOON) for number in range(4000))
    timer.shutdown()
    start = file.stat().st_size // 4 // 4096 * 4096
    elsewhere(SPOIL, file, start)
    timer = opened(**settings(file))
    wait_until(lambda: not timer.health().ok and time.time() > due)
    (problem,) = timer.health().problems
    assert "damaged" in problem
    assert "restore a backup" in problem
    with pytest.raises(StoreError, match=r"damaged.*restore a backup"):
        timer.add_job(Note(-1))
    with pytest.raises(StoreError, match=r"damaged.*restore a backup"):
        timer.find()
    assert sum("the store fails" in record.getMessage() for record in caplog.records) == 1
    assert len(runs) == len(set(runs))
    timer.shutdown()
    spoilt = file.read_bytes()[start:]
    assert spoilt.startswith(random.Random(1).randbytes(len(spoilt) // 2)), "the damaged part was written to"


CRASH = """
import os, sys
from jobwheel import open_timer
from test_outages import Note
timer = open_timer({"store": {"kind": "sqlite", "path": sys.argv[1]}})
for number in range(100):
    timer.add_job(Note(number), 3600)
os._exit(0)
"""


def crashed(file: Path) -> Path:
    """A store whose process died before its log was written back; the log."""
    subprocess.run([sys.executable, "-c", CRASH, file], check=True, timeout=30, env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)})
    return file.with_name("jobs.db-wal")


def test_a_damaged_log_loses_what_came_after_the_damage_and_no_more(tmp_path: Path, opened: OpenedTimer) -> None:
    """SQLite cannot tell it from a log that was not finished, so there is no error: copies must be made by SQLite, never file by file."""
    file = tmp_path / "jobs.db"
    log = crashed(file)
    with log.open("r+b") as opened_log:
        opened_log.seek(log.stat().st_size // 2)
        opened_log.write(random.Random(1).randbytes(5000))
    timer = opened(start=False, **settings(file))
    numbers = [job.job.number for job in timer.find(limit=1000)]  # type: ignore[union-attr]
    assert numbers == list(range(len(numbers)))
    assert 10 < len(numbers) < 100
    timer.add_job(Note(1000), 3600)
    timer.shutdown()
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_backup_made_by_sqlite_while_the_timer_works_holds_every_acknowledged_job(tmp_path: Path, opened: OpenedTimer) -> None:
    """`VACUUM INTO`, by another program. It is a store of its own, and a plain copy of the file is not: the log is missing."""
    file, backup, copy = tmp_path / "jobs.db", tmp_path / "backup.db", tmp_path / "copy.db"
    timer = opened(**settings(file))
    timer.add_jobs((Note(number), 3600) for number in range(100))
    elsewhere("import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('VACUUM INTO ?', (sys.argv[2],))", file, backup)
    elsewhere("import shutil, sys; shutil.copy(*sys.argv[1:])", file, copy)
    again = opened(start=False, **settings(backup))
    assert [job.job for job in again.find(limit=1000)] == [Note(number) for number in range(100)]
    less = opened(start=False, **settings(copy))
    with contextlib.suppress(StoreError):
        assert len(less.find(limit=1000)) < 100


def test_all_files_copied_together_by_a_stopped_program_are_the_same_store(tmp_path: Path, opened: OpenedTimer) -> None:
    """To another place, too; with a log that holds the newest jobs, after a crash, the lock file is to be left behind."""
    crashed(tmp_path / "jobs.db")
    copy = tmp_path / "copy"
    copy.mkdir()
    for each in list(tmp_path.glob("jobs.db*")):
        shutil.copy(each, copy)
    timer = opened(start=False, **settings(copy / "jobs.db"))
    with pytest.raises(StoreError, match=r"delete .*jobs\.db-lock"):
        timer.find()
    (copy / "jobs.db-lock").unlink()
    assert len(timer.find(limit=1000)) == 100


def test_a_spoilt_shm_loses_nothing(tmp_path: Path, opened: OpenedTimer) -> None:
    """It is an index of the log, which the first process to open the store makes anew."""
    file = tmp_path / "jobs.db"
    crashed(file)
    (tmp_path / "jobs.db-shm").write_bytes(random.Random(1).randbytes(32768))
    assert len(opened(start=False, **settings(file)).find(limit=1000)) == 100
