"""A fork in a process that has the store open: the child has locks of its own, so nobody throws its files away under it.

SQLite keeps its locks by file and process. A child that inherited that list would believe that it holds the parent's, and take none; the
next process to close the file as the last one would delete the WAL into which the child goes on writing.
"""

import json
import os
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HEAD = """
import ctypes, json, os, signal, sys, time
from dataclasses import dataclass
from jobwheel import IJob, StoreError, open_timer

@dataclass
class Note(IJob, kind="fork_locks.note"):
    number: int
    def run(self): ...

path = sys.argv[1]
def opened():
    return open_timer({"store": {"kind": "sqlite", "path": path}})

def locks():
    found = set()
    names = {os.stat(path + end).st_ino: end for end in ("", "-shm") if os.path.exists(path + end)}
    for line in open("/proc/locks"):
        parts = line.split()
        inode = int(parts[5].split(":")[2])
        if parts[1] == "POSIX" and int(parts[4]) == os.getpid() and inode in names:
            found.add(names[inode])
    return sorted(found)

timer = opened()
timer.add_job(Note(0), 3600, key="parent:0")
read, write = os.pipe()
"""


def run(path: Path, body: str) -> str:
    """What the program says, which both processes may add to."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", HEAD + textwrap.dedent(body), str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout


def keys(path: Path) -> set[str]:
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        found = {key for (key,) in connection.execute("SELECT key FROM job")}
    connection.close()
    return found


@pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="this system does not show who holds which lock")
def test_a_forked_child_holds_locks_of_its_own(tmp_path: Path) -> None:
    said = run(
        tmp_path / "jobs.db",
        """
        child = os.fork()
        timer.add_job(Note(1), 3600, key="child:1" if child == 0 else "parent:1")
        os.write(write, (json.dumps(locks()) + "\\n").encode())
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        print(os.read(read, 1000).decode(), end="")
        """,
    )
    assert [json.loads(line) for line in said.splitlines()] == [["", "-shm"], ["", "-shm"]]
    assert keys(tmp_path / "jobs.db") == {"parent:0", "parent:1", "child:1"}


@pytest.mark.parametrize("end", ["timer.shutdown()", "os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_what_a_child_has_acknowledged_outlives_its_parent_and_whoever_closes_the_file_after_it(tmp_path: Path, end: str) -> None:
    """The parent ends while its child goes on adding; then another process opens the file and closes it."""
    path = tmp_path / "jobs.db"
    body = f"""
        child = os.fork()
        if child:
            os.read(read, 1)
            {end}
            os._exit(0)
        os.write(write, b".")
        os.close(1)
        os.close(2)
        while not os.path.exists(path + ".end"):
            number = time.monotonic_ns()
            timer.add_job(Note(number), 3600, key=f"child:{{number}}")
            with open(path + ".answered", "a") as file:
                file.write(f"child:{{number}}\\n")
        timer.shutdown()
        open(path + ".over", "w").close()
        os._exit(0)
        """
    program = subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", HEAD + textwrap.dedent(body), str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    program.communicate(timeout=30)
    for _ in range(3):
        run(path, "timer.find(); timer.shutdown()")
    Path(f"{path}.end").touch()
    run(path, "while not os.path.exists(path + '.over'): time.sleep(0.02)")
    answered = set(Path(f"{path}.answered").read_text().split())
    assert answered
    assert answered <= keys(path)


def test_a_child_of_a_fork_that_python_was_not_told_of_is_refused_and_the_parent_goes_on(tmp_path: Path) -> None:
    said = run(
        tmp_path / "jobs.db",
        """
        child = ctypes.PyDLL(None).fork()
        if child == 0:
            try:
                timer.add_job(Note(1), 3600, key="child:1")
            except StoreError as error:
                os.write(write, str(error).encode())
            os._exit(0)
        os.waitpid(child, 0)
        print(os.read(read, 1000).decode())
        timer.add_job(Note(1), 3600, key="parent:1")
        """,
    )
    assert "lazy-apps" in said
    assert keys(tmp_path / "jobs.db") == {"parent:0", "parent:1"}


def test_a_fork_while_the_file_is_away_ends_nothing_for_good(tmp_path: Path) -> None:
    said = run(
        tmp_path / "jobs.db",
        """
        os.rename(path, path + ".away")
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        try:
            timer.add_job(Note(1), 3600)
        except StoreError as error:
            print(error)
        print(timer.health().problems[0])
        os.rename(path + ".away", path)
        timer.add_job(Note(1), 3600, key="parent:1")
        print(timer.health().problems)
        """,
    )
    assert [line.startswith("the store fails") or "deleted or replaced" in line for line in said.splitlines()] == [True, True, False]
    assert keys(tmp_path / "jobs.db") == {"parent:0", "parent:1"}


def test_a_child_that_was_forked_while_sqlite_hung_is_told_so_and_the_parent_goes_on(tmp_path: Path) -> None:
    said = run(
        tmp_path / "jobs.db",
        """
        import sqlite3, threading
        from jobwheel.stores.sqlite import file as file_room
        file_room.FORK_PATIENCE = 0.2
        foreign = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        foreign.execute("BEGIN IMMEDIATE")
        inside = threading.Thread(target=lambda: timer.add_job(Note(1), 3600, key="parent:1"))
        inside.start()
        file = timer._life.store._open
        while file._inside.acquire(blocking=False):
            file._inside.release()
            time.sleep(0.001)
        child = os.fork()
        if child == 0:
            try:
                timer.add_job(Note(1), 3600, key="child:1")
            except StoreError as error:
                os.write(write, str(error).encode())
            os._exit(0)
        foreign.execute("ROLLBACK")
        foreign.close()
        inside.join()
        os.waitpid(child, 0)
        print(os.read(read, 1000).decode())
        """,
    )
    assert "inside SQLite" in said
    assert "lazy-apps" not in said
    assert keys(tmp_path / "jobs.db") == {"parent:0", "parent:1"}


def test_a_parent_that_has_no_descriptors_left_after_a_fork_goes_on_when_it_has_some(tmp_path: Path) -> None:
    said = run(
        tmp_path / "jobs.db",
        """
        from jobwheel.stores.sqlite import file as file_room
        connect, file = file_room.StoreFile._connection, timer._life.store._open
        def refuse(self):
            raise OSError(24, "Too many open files", path)
        file_room.StoreFile._connection = refuse
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        try:
            timer.add_job(Note(1), 3600)
        except StoreError as error:
            print(error)
        file_room.StoreFile._connection = connect
        timer.add_job(Note(1), 3600, key="parent:1")
        """,
    )
    assert "Too many open files" in said
    assert keys(tmp_path / "jobs.db") == {"parent:0", "parent:1"}
