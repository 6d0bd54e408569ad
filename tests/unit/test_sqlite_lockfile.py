"""The lock file: byte 0 is one process's at a time, a byte of its own proves each process's life. Another process tells its own view."""

import fcntl
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobwheel.stores.sqlite import lockfile as lockfile_room
from jobwheel.stores.sqlite.lockfile import FIRST_SLEEP, LONGEST_SLEEP, Held, LockFile

PROGRAM = """
    import os, sys, time
    from jobwheel.stores.sqlite.lockfile import Held, LockFile
    locks = LockFile(sys.argv[1])
    for line in sys.stdin:
        try:
            answer = eval(line, {"locks": locks, "os": os, "now": time.monotonic()})
        except Held as held:
            answer = ("held", held.pid)
        print(answer, flush=True)
"""


class Other:
    """Another process with the same lock file; it answers expressions."""

    def __init__(self, path: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PROGRAM), path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, expression: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=10)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db-lock")


@pytest.fixture
def locks(path: str) -> Iterator[LockFile]:
    locks = LockFile(path)
    yield locks
    locks.close()


@pytest.fixture
def other(path: str) -> Iterator[Other]:
    other = Other(path)
    yield other
    other.kill()


class Time:
    """A clock that only sleeps move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.sleeps: list[float] = []
        monkeypatch.setattr(lockfile_room, "time", self)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


def test_of_all_processes_one_holds_byte_0(locks: LockFile, other: Other) -> None:
    locks.lock(0.0)
    assert other("locks.lock(0.0)") == f"('held', {os.getpid()})"
    locks.unlock()
    assert other("locks.lock(0.0)") == "None"
    with pytest.raises(Held) as raised:
        locks.lock(0.0)
    assert raised.value.pid == other.process.pid
    assert other("locks.unlock()") == "None"
    locks.lock(0.0)


def test_a_wait_ends_at_its_deadline_and_is_made_of_short_sleeps_first(
    locks: LockFile, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    other("locks.lock(0.0)")
    time = Time(monkeypatch)
    with pytest.raises(Held):
        locks.lock(time.now + 0.01)
    assert time.now == pytest.approx(100.01)
    assert time.sleeps[0] == FIRST_SLEEP
    assert max(time.sleeps) <= LONGEST_SLEEP
    assert all(later <= 2 * earlier for earlier, later in zip(time.sleeps, time.sleeps[1:], strict=False))


def test_a_deadline_that_has_passed_allows_one_try(locks: LockFile, other: Other, monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time(monkeypatch)
    locks.lock(time.now - 5)
    locks.unlock()
    other("locks.lock(0.0)")
    with pytest.raises(Held):
        locks.lock(time.now - 5)
    assert time.sleeps == []


def test_who_dies_lets_byte_0_go_at_once(locks: LockFile, other: Other) -> None:
    other("locks.lock(0.0)")
    other.kill()
    locks.lock(0.0)


def test_a_process_lives_under_its_number_until_it_dies(locks: LockFile, other: Other) -> None:
    assert locks.live(3)
    assert other("locks.is_dead(3)") == "False"
    assert other("locks.is_dead(4)") == "True"
    assert other("locks.live(3)") == "False"
    assert other("locks.live(4)") == "True"
    assert not locks.is_dead(4)
    other.kill()
    assert locks.is_dead(4)
    assert locks.is_dead(4), "asking takes nothing"
    third = Other(locks.path)
    assert third("locks.is_dead(3)") == "False"
    third.kill()


def test_lives_and_the_right_to_write_are_apart(locks: LockFile, other: Other) -> None:
    locks.live(1)
    assert other("locks.lock(0.0)") == "None"
    assert other("locks.is_dead(1)") == "False"
    assert other("locks.live(2)") == "True"
    assert locks.is_dead(3)


def test_a_stopped_process_is_not_dead(locks: LockFile, other: Other) -> None:
    import signal

    other("locks.live(5)")
    os.kill(other.process.pid, signal.SIGSTOP)
    assert not locks.is_dead(5)
    os.kill(other.process.pid, signal.SIGCONT)
    assert other("locks.live(5)") == "True"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_fork_inherits_no_life(locks: LockFile, other: Other) -> None:
    assert locks.live(7)
    locks.lock(0.0)
    pid = os.fork()
    if pid == 0:  # pragma: no cover
        os._exit(10 * (not locks.is_dead(7)) + (not _held(locks)))  # the parent's, as another process sees it
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 10
    assert other("locks.is_dead(7)") == "False", "the child's end changes nothing"
    assert other("locks.lock(0.0)") == f"('held', {os.getpid()})"


def _held(locks: LockFile) -> bool:
    try:
        locks.lock(0.0)
    except Held:
        return True
    return False


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_file_that_is_gone_is_found_out(locks: LockFile, how: str) -> None:
    assert locks.intact()
    os.rename(locks.path, f"{locks.path}.kept")
    if how == "replaced":
        Path(locks.path).touch()
    assert not locks.intact()
    os.replace(f"{locks.path}.kept", locks.path)
    assert locks.intact()


def test_a_short_text_is_kept_for_the_next_ones(locks: LockFile, other: Other) -> None:
    assert locks.read() == ""
    locks.write("123456")
    assert other("locks.read()") == "123456"
    locks.write("9")
    assert (locks.read(), other("locks.read()")) == ("9", "9")


def test_closing_lets_go_of_everything(path: str, other: Other) -> None:
    locks = LockFile(path)
    locks.live(3)
    locks.lock(0.0)
    locks.close()
    assert other("locks.is_dead(3)") == "True"
    assert other("locks.lock(0.0)") == "None"


def test_an_error_of_the_system_is_not_taken_for_a_lock_that_is_held(locks: LockFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def lockf(*given: Any) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", lockf)
    with pytest.raises(OSError, match="No locks available"):
        locks.lock(0.0)
    with pytest.raises(OSError, match="No locks available"):
        locks.is_dead(3)
    monkeypatch.undo()


def test_programs_that_a_process_becomes_do_not_have_it(locks: LockFile) -> None:
    assert fcntl.fcntl(locks.fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
