"""Ready-made jobs. `RunCommand`: a program as a job.

    from jobwheel.jobs import RunCommand

    timer.add_job(RunCommand(["pg_dump", "--file", "shop.sql", "shop"], timeout=600), trigger=cron("30 3 * * *"), key="backup")

A process that runs such jobs must know their kind: import this module where the jobs of the application are, or name it in `jobs`.
"""

import fcntl
import os
import select
import signal
import subprocess
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any

from jobwheel.errors import BadType, BadValue, JobwheelError
from jobwheel.job import LINE_LENGTH, LOG_LINES, IJob, JobContext

GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL for a program that is to end."""
LINGER = 1.0
"""Seconds for which a program's children that outlive it may write on, before they are killed."""
DEATH = 5.0
"""Seconds within which a killed program is gone; one that hangs in the kernel is not waited for any longer."""
EACH = 0.1
"""Seconds between two looks at the time limit and at `ctx.cancel_requested`."""
CHUNK = 65536
LONGEST = 4 * LINE_LENGTH
"""Bytes kept of a line, as many as its characters that the log keeps can have."""
LAST_LINES, LAST_LENGTH = 10, 1500
"""How many of the last lines, and characters of them, are in the error."""


class CommandFailed(JobwheelError):
    """A program of `RunCommand` could not be started, ended with another code than 0, or was killed.

    `code`: its exit code; negative: the signal that killed it; None: it has none. `lines`: the last of its output.
    """

    def __init__(self, text: str, code: int | None = None, lines: tuple[str, ...] = ()) -> None:
        super().__init__("\n".join((f"{text}; its last lines:", *lines)) if lines else text)
        self.code = code
        self.lines = lines


@dataclass
class RunCommand(IJob, kind="jobwheel.run_command", isolation="thread"):
    """Runs a program, and waits for its end on a worker thread. Options (`retry`, `max_running`, ...) are those of a subclass of yours:

        class Backup(RunCommand, kind="shop.backup", retry=Retry(attempts=3, backoff=60), max_running=1): ...

    Exit code 0 is success, and the job's result. Any other is a failed attempt (`CommandFailed`), its text with the code and the last lines
    of output. What the program writes to stdout and stderr goes line by line into the job's log while it runs: as UTF-8, what is none
    replaced; of a line the first 2000 characters, and what follows its last carriage return; of all, the newest 200 lines. Its stdin is
    empty.

    At its time limit, when the job is cancelled, and when its kind's `timeout` is over, the program and its children get SIGTERM, and
    two seconds later SIGKILL. Its children are what is in its process group; what made itself a session of its own (a daemon, `setsid`) is
    left alone. Those that outlive a program that ended by itself may write on for a second and are then killed.

    A `shutdown` waits for it as for any running job. When the process that runs it has ended, even by `kill -9`, the kernel kills the
    program and its children: on Linux, unless they close the file descriptors that they inherit; elsewhere they go on. The job then runs
    again, as any job that was cut off.

    Args:
        argv: the program and its arguments, each a text; no shell reads them, so nothing in them needs quotes. The program is looked
            for in PATH unless it has a slash; a relative one starts from `cwd`.
        timeout: seconds that the program may run; default no limit.
        cwd: the directory it runs in; default that of the process.
        env: variables that are added to the environment of the process or replace its own. They are stored with the job, as all of its
            data is: no place for passwords.

    Raises:
        BadType, BadValue: a field is of another type, or nothing that a program could be started with.
    """

    argv: list[str]
    timeout: float | None = None
    cwd: str | None = None
    env: dict[str, str] | None = None

    def __post_init__(self) -> None:
        _check(self)

    def run(self, ctx: JobContext) -> int:
        """Runs the program to its end and gives its exit code, 0. Raises `CommandFailed`."""
        program = _Program(self, ctx)
        try:
            return program.follow()
        finally:
            program.put_away()


def _check(job: RunCommand) -> None:
    argv: Any = job.argv
    if isinstance(argv, str):
        raise BadType(f"argv={argv!r:.80}: a list of texts, the program and each argument by itself, since no shell reads it: ['ls', '-l']")
    if not isinstance(argv, list) or not all(isinstance(word, str) for word in argv):
        raise BadType(f"argv={argv!r:.80}: a list of texts, the program and its arguments; write str(...) around paths and numbers")
    if not argv or not argv[0] or any("\0" in word for word in argv):
        raise BadValue(f"argv={argv!r:.80}: it starts with the program's name, and no text in it has a NUL")
    timeout: Any = job.timeout
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
        raise BadType(f"timeout={timeout!r:.80}: seconds as a number, or None for no limit")
    if timeout is not None and not 0 < timeout < inf:
        raise BadValue(f"timeout={timeout!r}: it must be finite and more than 0; None means no limit")
    cwd: Any = job.cwd
    if cwd is not None and not isinstance(cwd, str):
        raise BadType(f"cwd={cwd!r:.80}: the path of a directory as a text, or None; write str(...) around a Path")
    if cwd is not None and (not cwd or "\0" in cwd):
        raise BadValue(f"cwd={cwd!r:.80}: the path of a directory; None means that of the process")
    env: Any = job.env
    if env is not None and (not isinstance(env, dict) or not all(isinstance(text, str) for pair in env.items() for text in pair)):
        raise BadType("env: a dict of texts, names to values, or None")
    if env is not None and any(not name or "=" in name or "\0" in name + value for name, value in env.items()):
        raise BadValue("env: a name is empty or has a '=' in it, or there is a NUL")


class _Program:
    """One run of a program. Used by one thread."""

    def __init__(self, job: RunCommand, ctx: JobContext) -> None:
        """Starts it. Raises `CommandFailed`."""
        self._name = job.argv[0]
        self._limit = job.timeout
        self._ctx = ctx
        self._code: int | None = None
        self._lost = False  # its end was noted by somebody else in this process
        lifeline, self._hold = _lifeline()
        try:
            self._process = subprocess.Popen(  # noqa: S603 (what it is to run is what the job says)
                job.argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=job.cwd,
                env=None if job.env is None else os.environ | job.env, start_new_session=True, pass_fds=lifeline,
            )  # fmt: skip
        except (OSError, ValueError) as error:  # ValueError: text that the file system's encoding does not have
            _let_go(self._hold)
            raise CommandFailed(f"{self._name}: it could not be started: {_why(error, job)}") from error
        else:
            _tie(lifeline, self._process.pid)
        finally:
            for number in lifeline:
                os.close(number)
        assert self._process.stdout is not None
        self._output = _Output(self._process.stdout.fileno(), ctx)

    def follow(self) -> int:
        """Until its end, which is hastened if need be; gives 0."""
        limit = inf if self._limit is None else time.monotonic() + self._limit
        cut_off = None
        while not self._has_ended():
            self._output.read(EACH)
            if self._ctx.cancel_requested:
                cut_off = "was ended, since the job was to stop"
            elif time.monotonic() >= limit:
                cut_off = f"was ended at its time limit of {self._limit:g} seconds"
            if cut_off is not None:
                self._signal(signal.SIGTERM)
                end = time.monotonic() + GRACE
                self._await(GRACE)
                self._output.read_to_end(end - time.monotonic())  # its children have the time too, and most have its output
                break
        else:
            self._output.read_to_end(LINGER)
        self._signal(signal.SIGKILL)  # its children, and itself if it is still there
        self._await(DEATH)
        self._output.finish()
        if cut_off is None and self._code == 0:
            return 0
        raise CommandFailed(f"{self._name} {cut_off or self._ended()}{self._survived()}", self._code, self._output.last())

    def _ended(self) -> str:
        if self._code is None:
            return "has ended, with what is not known: this process ignores SIGCHLD, or something in it waits for every child"
        if self._code >= 0:
            return f"ended with code {self._code}"
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-self._code).name}"
        return f"was killed by signal {-self._code}"

    def _survived(self) -> str:
        return "" if self._lost or self._code is not None else f", and goes on: process {self._process.pid} could not be killed"

    def _await(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._has_ended() and (left := end - time.monotonic()) > 0:
            self._output.read(min(EACH, left))

    def _has_ended(self) -> bool:
        """Without taking note of it, so that its process group can still be named."""
        if self._code is not None or self._lost:
            return True
        if not hasattr(os, "waitid"):
            self._code = self._process.poll()
            return self._code is not None
        try:
            end = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            self._lost = True
            return True
        if end is not None:
            self._code = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
        return end is not None

    def _signal(self, number: int) -> None:
        if not self._lost and self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def put_away(self) -> None:
        """Lets go of it; what is still in its process group is killed."""
        if self._process.stdout is not None:
            self._process.stdout.close()
        if not self._has_ended():  # the run itself was broken off
            self._signal(signal.SIGKILL)
        _let_go(self._hold)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(None if self._has_ended() else 1.0)


class _Output:
    """What a program writes, by lines, into the log of its job. Bounded, whatever it writes."""

    def __init__(self, pipe: int, ctx: JobContext) -> None:
        self._pipe = pipe
        self._ctx = ctx
        self._rest = b""  # of a line that has not ended
        self._over = False
        self._pause = 0.001
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._poll = select.poll()  # not select: it knows no file descriptor from 1024 on
        self._poll.register(pipe, select.POLLIN)
        os.set_blocking(pipe, False)

    def read(self, wait: float) -> bool:
        """Waits for something for so many seconds at most, and takes one piece of it; False if nothing came."""
        if self._over:  # and the program goes on, which it does not do for long as a rule
            self._pause = min(2 * self._pause, EACH)
            time.sleep(min(wait, self._pause))
            return False
        if not self._poll.poll(wait * 1000):
            return False
        try:
            chunk = os.read(self._pipe, CHUNK)
        except BlockingIOError:
            return False
        self._over = not chunk
        self._take(chunk)
        return not self._over

    def read_to_end(self, seconds: float) -> None:
        """What comes until all have closed it, or the time is over."""
        end = time.monotonic() + seconds
        while not self._over and (left := end - time.monotonic()) > 0:
            self.read(left)

    def finish(self) -> None:
        """What is there and was not read, and the line that did not end."""
        for _ in range(32):  # more than a pipe holds, and not for ever if somebody goes on writing to it
            if not self.read(0.0):
                break
        if self._rest:
            self._tell(self._rest)

    def last(self) -> tuple[str, ...]:
        """The last lines, as far as an error has room for them."""
        kept: list[str] = []
        room = LAST_LENGTH
        for line in reversed(self._last):
            room -= len(line) + 1
            if room < 0:
                break
            kept.insert(0, line)
        return tuple(kept)

    def _take(self, chunk: bytes) -> None:
        *lines, rest = (self._rest + chunk).split(b"\n")
        for line in lines[-LOG_LINES:]:
            self._tell(line)
        if len(rest) > LONGEST:  # a progress bar, or no text at all
            start = rest.rfind(b"\r", 0, -1) + 1
            rest = rest[start : start + LONGEST]
        self._rest = rest

    def _tell(self, line: bytes) -> None:
        text = line.removesuffix(b"\r").rpartition(b"\r")[2][:LONGEST].decode(errors="replace")
        self._last.append(text[: LAST_LENGTH // 2])
        self._ctx.log(text)


def _why(error: OSError | ValueError, job: RunCommand) -> str:
    if isinstance(error, FileNotFoundError | NotADirectoryError) and job.cwd is not None and not os.path.isdir(job.cwd):
        return f"there is no directory {job.cwd!r} (cwd) on this machine"
    if isinstance(error, FileNotFoundError):
        return "there is no such program on this machine, or what it names as its interpreter is missing; check its spelling, and PATH"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


_holds: set[int] = set()
"""Ends of pipes on which nothing is ever said: a program lives while its own is open. Each is added and taken out by one thread."""


def _lifeline() -> tuple[tuple[int, ...], int | None]:
    """The end for a program, if the kernel can kill by it, and the end that this process holds."""
    if not hasattr(fcntl, "F_SETSIG"):  # not Linux
        return (), None
    lifeline, hold = os.pipe()
    _holds.add(hold)
    if lifeline <= 2:  # stdin, stdout or stderr is closed here, and the program's own would take its place
        low, lifeline = lifeline, fcntl.fcntl(lifeline, fcntl.F_DUPFD_CLOEXEC, 3)
        os.close(low)
    return (lifeline,), hold


def _tie(lifeline: tuple[int, ...], group: int) -> None:
    """Has the kernel kill this process group when nobody holds the other end of its lifeline any more."""
    for number in lifeline:
        with suppress(OSError):  # it has ended already
            fcntl.fcntl(number, fcntl.F_SETOWN, -group)
            fcntl.fcntl(number, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(number, fcntl.F_SETFL, fcntl.fcntl(number, fcntl.F_GETFL) | os.O_ASYNC)


def _let_go(hold: int | None) -> None:
    if hold is not None and hold in _holds:
        _holds.discard(hold)
        os.close(hold)


def _after_fork() -> None:
    """In a child, which must not keep its parent's programs alive."""
    for hold in list(_holds):
        _let_go(hold)


os.register_at_fork(after_in_child=_after_fork)


__all__ = ["CommandFailed", "RunCommand"]
