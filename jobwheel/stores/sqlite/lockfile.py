"""The lock file beside the store's file: who writes now (byte 0), and which processes live (byte 1 + number, held for life).

Promises: of all processes one holds byte 0; a wait for it ends at its deadline; a process that dies, however, is seen to be dead at
once, and one that is merely stopped or slow is not. No clock and no heartbeat: the locks are the kernel's (POSIX record locks).
Relies on: one `LockFile` per path in a process (`file.StoreFile` sees to it), since closing any other descriptor of the same file
would let go of all its locks; a local file system.
Not promised: that nobody deletes the file; `intact` finds that out.
"""

import errno
import fcntl
import os
import struct
import sys
import time

FIRST_SLEEP, LONGEST_SLEEP = 0.00005, 0.001
"""Seconds between two tries for byte 0: doubled from the first to the longest. Short, so that no process starves (SQLite's own handler
sleeps up to 100 ms between tries, and one of four writers got 1 turn in 3 s by it)."""

_FLOCK = "hhqqi4x"  # struct flock on Linux with 64-bit offsets: type, whence, start, length, pid


class Held(Exception):
    """Another process has held byte 0 until the deadline; `pid` is its number if the kernel tells."""

    def __init__(self, pid: int | None) -> None:
        super().__init__(pid)
        self.pid = pid


class LockFile:
    """See the module. Made (and the file with it) by the process that uses it; never after a fork by the child."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._identity = _identity(os.fstat(self.fd))

    def lock(self, deadline: float) -> None:
        """Takes byte 0, the right to write. `deadline` is a moment of `time.monotonic`. Raises `Held` when it has passed."""
        sleep = FIRST_SLEEP
        while not self._try(0):
            left = deadline - time.monotonic()
            if left <= 0:
                raise Held(self._holder())
            time.sleep(min(sleep, left))
            sleep = min(2 * sleep, LONGEST_SLEEP)

    def try_lock(self, deadline: float) -> bool:
        """The same; False when the deadline has passed."""
        try:
            self.lock(deadline)
        except Held:
            return False
        return True

    def unlock(self) -> None:
        """Lets byte 0 go."""
        fcntl.lockf(self.fd, fcntl.LOCK_UN, 1, 0)

    def live(self, number: int) -> bool:
        """From now on process `number` lives, and it is this one, until it ends or closes. False: another one has that number."""
        return self._try(1 + number)

    def is_dead(self, number: int) -> bool:
        """True if no process lives under `number`. Not to be asked about one's own: that one always looks dead."""
        if not self._try(1 + number):
            return False
        fcntl.lockf(self.fd, fcntl.LOCK_UN, 1, 1 + number)
        return True

    def intact(self) -> bool:
        """False when the file was deleted or replaced: then others look for locks elsewhere, and nothing here proves anything."""
        try:
            return _identity(os.stat(self.path)) == self._identity
        except FileNotFoundError:
            return False

    def read(self) -> str:
        """What `write` left there, perhaps by another process; empty if nothing."""
        return os.pread(self.fd, 100, 0).decode("ascii", "replace")

    def write(self, text: str) -> None:
        """Keeps a short text in the file; to be called while byte 0 is held."""
        if self.read() != text:
            os.ftruncate(self.fd, 0)
            os.pwrite(self.fd, text.encode("ascii"), 0)
            os.fsync(self.fd)

    def close(self) -> None:
        """Lets go of every lock."""
        os.close(self.fd)

    def _try(self, byte: int) -> bool:
        try:
            fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise
        return True

    def _holder(self) -> int | None:
        if sys.platform != "linux":
            return None
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(self.fd, fcntl.F_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else pid


def _identity(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_dev, stat.st_ino
