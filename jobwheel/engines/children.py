"""The child processes of one engine: started when needed, reused, ended. What runs in one is `child`; what is said to it, `isolated`.

Promises: a child has no file of this process but its output and the two ends made for it; it is borrowed by one thread at a time; it ends
when this process ends, however that comes, and a fork of this process has no part in it; killing it kills what its jobs have started in its
process group.
Relies on: at most as many threads borrowing as there shall be children.

A child is spawned, not forked: a fork of a process with threads inherits locks that nobody lets go of. Two ends lead to it: a socket for
messages, and a pipe on which nothing is ever said, whose end makes the kernel kill the child's process group (on Linux; elsewhere the
child's own thread sees the end of the socket). Somewhat long: one process's birth and death, and who has it meanwhile, belong together.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress

from jobwheel.engines.wire import Channel
from jobwheel.isolation import NotReady
from jobwheel.log import logger
from jobwheel.settings import Settings

log = logger("jobwheel.engine")

PROGRAM = """
import json, sys
order = json.loads(sys.argv.pop())
sys.path[:] = order.pop("path")
from jobwheel.engines.child import main
from jobwheel.opening import find_services
main(**order, find_services=find_services)
"""
"""What a child runs. It joins two floors of the package, as every program does."""
LIMITS = "this process is at its limit (ulimit -u, ulimit -n, or pids.max of its cgroup), or short of memory"
PAUSES = (0.1, 0.4, 1.0, 2.0)
"""Seconds between two tries to start a child."""
LEAVE = 0.5
"""Seconds that a child which is not wanted any more has to end by itself: its `atexit` functions run meanwhile."""
SOON = 1.0
"""Seconds from the end of the line to the end of the process."""
DEATH = 5.0
"""Seconds within which a killed process is gone; one that hangs in the kernel is not waited for any longer."""


class Child:
    """One child process. Used by one thread at a time."""

    def __init__(self, memory: int, services: str | None) -> None:
        """Raises OSError or `NotReady` if it cannot be started."""
        here, there = socket.socketpair()
        hold, lifeline = -1, -1
        try:
            lifeline, hold = os.pipe()
            lifeline = _above_stdio(lifeline)
            order = {"path": list(map(str, sys.path)), "lifeline": lifeline, "memory": memory, "place": services}
            self._process = subprocess.Popen(  # noqa: S603 (this very interpreter)
                [_interpreter(), *_flags(), "-c", PROGRAM, json.dumps(order)],
                stdin=there.fileno(), pass_fds=(lifeline,), start_new_session=True,
            )  # fmt: skip
        except BaseException:
            here.close()
            if hold >= 0:
                os.close(hold)
            raise
        finally:
            there.close()
            if lifeline >= 0:
                os.close(lifeline)
        here.settimeout(60.0)  # for sending; a child that takes nothing for so long hangs
        self._hold = hold
        self.channel = Channel(here)
        self._unknown = False  # how it ended
        self.runs = 0
        """Runs that it has ended."""
        self.kinds: set[str] = set()
        """Kinds that it has run, so that nothing is to be imported for them."""
        _living.add(self)

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_ended(self) -> bool:
        """Without taking note of it, so that its process group can still be named."""
        if self._process.returncode is not None:
            return True
        if not hasattr(os, "waitid"):
            return self._process.poll() is not None
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # the application lets the kernel, or another part of itself, take note of all its children
            self._unknown = True
            return True

    def ends_soon(self) -> bool:
        """False: it has closed its end of the line and lives on."""
        pause = threading.Event()
        deadline = time.monotonic() + SOON
        while not self.has_ended():
            if time.monotonic() > deadline:
                return False
            pause.wait(0.002)
        return True

    def leave(self) -> None:
        """Asks it to end."""
        self.channel.close()

    def kill(self) -> int | None:
        """Ends it and what its jobs have started; its exit status (negative: the signal), None if it is not known.

        It is its own end that is told, if it had ended before.
        """
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self.channel.close()
        try:
            status = self._process.wait(DEATH)
            return None if self._unknown else status
        except subprocess.TimeoutExpired:
            return None
        finally:
            self._let_go()

    def _let_go(self) -> None:
        _living.discard(self)
        hold, self._hold = self._hold, -1
        if hold >= 0:
            os.close(hold)
        if self._process.returncode is None:
            self._process.returncode = -signal.SIGKILL  # it will be so; nobody shall be warned of it later

    def disown(self) -> None:
        """After a fork: it is the parent's."""
        self._let_go()
        self.channel.close()


class Children:
    """Those of one engine. Borrowed and given back by its threads; the deque's operations are atomic."""

    def __init__(self, settings: Settings) -> None:
        self._recycle = settings.workers.recycle
        self._memory = settings.workers.memory
        self._services = settings.services
        self._idle: deque[Child] = deque()
        self._leaving: deque[tuple[Child, float]] = deque()
        self._count = 0
        self._count_lock = threading.Lock()  # guards the count, for an instruction
        self._closing = threading.Event()
        self.problem: str | None = None
        """Why no child can be started now."""

    def borrow(self) -> Child:
        """A child that runs nothing: one that is there, or a new one. Raises `NotReady` if none can be started."""
        self._look_after_leaving()
        while self._idle:
            try:
                child = self._idle.pop()  # the one that was used last: it is warm
            except IndexError:
                break
            if not child.has_ended():
                return child
            self.dismiss(child)
        return self._start()

    def _start(self) -> Child:
        for pause in (*PAUSES, None):
            try:
                child = Child(self._memory, self._services)
            except OSError as error:
                problem = f"no child process could be started ({error}): {LIMITS}"
                self.problem = problem
                if pause is None or self._closing.wait(pause):
                    raise NotReady(problem) from error
            else:
                self.problem = None
                self._counted(1)
                return child
        raise AssertionError

    def give_back(self, child: Child, spent: bool) -> None:
        """It has ended a run; `spent`: it shall have no other."""
        child.runs += 1
        if spent or (self._recycle and child.runs >= self._recycle):
            self._let_leave(child)
        else:
            self._idle.append(child)
        if self._closing.is_set():  # perhaps after `close` has looked
            self.close()

    def dismiss(self, child: Child) -> int | None:
        """Kills it; see `Child.kill`."""
        self._counted(-1)
        return child.kill()

    def _look_after_leaving(self) -> None:
        for _ in range(len(self._leaving)):
            try:
                child, until = self._leaving.popleft()
            except IndexError:
                return
            if child.has_ended() or time.monotonic() > until:
                self.dismiss(child)
            else:
                self._leaving.append((child, until))

    def close(self) -> None:
        """Ends those that run nothing, within a moment; the others when they are given back."""
        self._closing.set()
        while self._idle:
            try:
                self._let_leave(self._idle.pop())
            except IndexError:
                break
        pause = threading.Event()
        while self._leaving:
            self._look_after_leaving()
            if self._leaving:
                pause.wait(0.005)

    def _let_leave(self, child: Child) -> None:
        child.leave()
        self._leaving.append((child, time.monotonic() + LEAVE))

    @property
    def count(self) -> int:
        """How many there are, idle ones included."""
        return self._count

    def _counted(self, change: int) -> None:
        with self._count_lock:
            self._count += change


def _interpreter() -> str:
    """The Python that runs this process, also inside a server that is a program of its own (uWSGI)."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    candidates = [os.path.join(prefix, "bin", version) for prefix in (sys.prefix, sys.base_prefix)]
    if sys.executable and "py" in os.path.basename(sys.executable).lower():
        candidates.insert(0, sys.executable)
    for candidate in candidates:
        if os.access(candidate, os.X_OK):
            return candidate
    raise NotReady(
        f"no Python to start a child process with: sys.executable is {sys.executable!r}, and there is no {' nor '.join(candidates)}"
    )


def _flags() -> list[str]:
    """The options that this interpreter was started with (-O, -W, -X dev, ...)."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined] # noqa: SLF001 (as multiprocessing does)
    return flags


def _above_stdio(number: int) -> int:
    """The same file under a number that is not one of a child's stdin, stdout and stderr: here one of them may be closed."""
    low = []
    while number <= 2:
        low.append(number)
        number = os.dup(number)
    for each in low:
        os.close(each)
    return number


_living: set[Child] = set()
"""All of this process. A set's operations are atomic."""


def _after_fork() -> None:
    for child in tuple(_living):
        child.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
