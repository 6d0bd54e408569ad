"""What `jobwheel worker` runs: processes with a timer each (`jobwheel.supervised`), started, watched and ended.

Promises: what cannot work is told once, by one process before the others start; a process that ended is started again, ever later while
it lives only for a moment, and what its jobs have started in its process group is killed; SIGTERM and SIGINT let running jobs end, and
a second one ends all at once; when this process is killed, its children drain and end by themselves; whatever child process falls to it,
as process 1 of a container, is taken note of.
Relies on: being the main program, so that signals and all child processes are its own.
Not promised: that a process is ended which lives and hangs.

No module of the application is imported here: what crashes there takes a child along, which is started again.
"""

import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from types import FrameType
from typing import Any

import msgspec

from jobwheel.errors import SettingsError
from jobwheel.log import logger
from jobwheel.opening import find_member
from jobwheel.settings import Settings, load, told
from jobwheel.supervised import FORMAT, LAST, Order, Word

log = logger("jobwheel.worker")

STEADY = 10.0
"""Seconds that a process must have lived to be started again at once."""
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0
"""Seconds until it is else: doubled from the first to the longest."""
TRIES = 3
"""Processes in a row that end before they run, from which on it is given up, if none ever ran."""
SAME = 0.5
"""Seconds within which a second signal counts as the first one: a terminal and a program in between may both pass it on."""
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def supervise(files: Sequence[str], processes: int, threads: int | None = None, timeout: float | None = None) -> int:
    """Runs the jobs of the store that `files` name in so many processes until it is told to end; gives the exit code.

    Args:
        files: as for `open_timer`; a process reads them anew when it starts. If it is one, the processes find its path in JOBWHEEL_CONFIG,
            unless that is set already.
        threads: in each process; None: as the files say.
        timeout: seconds that running jobs have to end; None: the setting `exit_timeout`.

    Raises:
        SettingsError: nothing can be run by these settings.
    """
    settings = load(*files)
    problems = list(_problems(settings, threads))
    if problems:
        raise told(problems)
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # a standard stream that was closed, whose number must not be that of something else
    os.close(number)
    logging.basicConfig(format=FORMAT)
    logging.getLogger("jobwheel").setLevel(logging.INFO)
    return Supervisor(files, processes, threads, settings.exit_timeout if timeout is None else timeout).run()


def _problems(settings: Settings, threads: int | None) -> Iterator[str]:
    if not find_member("store.kind", settings.store.kind).shared:
        yield (
            f"store.kind: {settings.store.kind!r} keeps jobs inside one process, so no other process could run them; "
            "set store.kind: sqlite, here and in the processes that add"
        )
    if not (settings.workers.threads if threads is None else threads):
        yield "workers.threads: 0 lets a process only add jobs, and here they are to be run; give --threads, or a file in which it is more"


class Slot:
    """The place of one process, and the process that is in it now."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.link: socket.socket | None = None
        self.heard = b""
        self.word: Word | None = None
        self.since = 0.0
        self.not_before = 0.0
        self.wait = 0.0

    @property
    def name(self) -> str:
        return f"process {self.process.pid if self.process else '-'} ({self.number})"

    def hear(self) -> None:
        """Takes what its process has said so far."""
        while self.link is not None:
            try:
                said = self.link.recv(65536)
            except BlockingIOError:
                return
            except OSError:
                said = b""
            self.heard += said
            if self.word is None and b"\n" in self.heard:
                with suppress(msgspec.MsgspecError):
                    self.word = msgspec.json.decode(self.heard.partition(b"\n")[0], type=Word)
            if not said:
                self.link.close()
                self.link = None

    def signal(self, number: int) -> None:
        """Sends it to the process; SIGKILL also to what is in its process group."""
        if self.process is not None:
            with suppress(ProcessLookupError, PermissionError):
                (os.killpg if number == signal.SIGKILL else os.kill)(self.process.pid, number)


class Supervisor:
    """See the module. Made and run once, on the main thread."""

    def __init__(self, files: Sequence[str], processes: int, threads: int | None, timeout: float) -> None:
        self._files = list(files)
        self._threads = threads
        self._timeout = timeout
        self._environment = dict(os.environ)
        if len(self._files) == 1 and not self._environment.get("JOBWHEEL_CONFIG"):
            # For what makes the services, which may need the application's own sections of the file.
            self._environment["JOBWHEEL_CONFIG"] = os.path.abspath(self._files[0])
        self._slots = [Slot(number) for number in range(1, processes + 1)]
        self._signals: deque[int] = deque()
        self._bell, self._ring = os.pipe()
        self._ever_ran = False
        self._fruitless = 0
        self._ending: float | None = None
        self._code = 0
        self._refusal: str | None = None

    def run(self) -> int:
        """Until all has ended; gives the exit code. Raises `SettingsError` if the first process says that it could never work."""
        for end in (self._bell, self._ring):
            os.set_blocking(end, False)
        with self._signals_heard():
            try:
                while True:
                    self._heed_signals()
                    self._reap()
                    for slot in self._slots:
                        self._hear(slot)
                    if self._ending is None:
                        self._start_due()
                    elif not any(slot.process for slot in self._slots):
                        break
                    self._sleep()
            finally:
                for slot in self._slots:
                    if slot.link is not None:
                        slot.link.close()
                os.close(self._bell)
                os.close(self._ring)
        if self._refusal is not None:
            raise SettingsError(self._refusal)
        return self._code

    # --- signals ---

    @contextmanager
    def _signals_heard(self) -> Iterator[None]:
        before: dict[int, Any] = {number: signal.getsignal(number) for number in (*ENDING, signal.SIGCHLD)}
        for number, handler in before.items():
            if number != signal.SIGHUP or handler is not signal.SIG_IGN:  # as nohup has it
                signal.signal(number, self._take_signal)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _take_signal(self, number: int, _: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self._signals.append(number)
        with suppress(BlockingIOError):
            os.write(self._ring, b".")

    def _heed_signals(self) -> None:
        while self._signals:
            name = signal.Signals(self._signals.popleft()).name
            if self._ending is None:
                log.info("%s: running jobs have %g s to end; once more ends them at once", name, self._timeout)
                self._end_all()
            elif time.monotonic() - self._ending > SAME:
                log.warning("%s again: what runs is cut off", name)
                self._kill_all()

    def _end_all(self) -> None:
        self._ending = time.monotonic()
        for slot in self._slots:
            slot.signal(signal.SIGTERM)

    def _kill_all(self) -> None:
        self._code = 1
        for slot in self._slots:
            slot.signal(signal.SIGKILL)

    # --- children ---

    def _start_due(self) -> None:
        now = time.monotonic()
        for slot in self._wanted():
            if self._signals:
                return
            if slot.process is None and slot.not_before <= now:
                self._start(slot, now)

    def _wanted(self) -> list[Slot]:
        """The first one shows whether it works at all."""
        return self._slots if self._ever_ran else self._slots[:1]

    def _start(self, slot: Slot, now: float) -> None:
        slot.since, slot.heard, slot.word = now, b"", None
        try:
            here, there = socket.socketpair()
        except OSError as error:
            self._failed(slot, f"a process could not be started: {error.strerror}", now)
            return
        order = Order(self._files, self._threads, self._timeout, there.fileno())
        # The options that this interpreter was started with (-O, -W, -X dev, ...), as multiprocessing passes them on.
        flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined] # noqa: SLF001
        try:
            slot.process = subprocess.Popen(  # noqa: S603 (this very interpreter)
                [sys.executable, *flags, "-m", "jobwheel.supervised", json.dumps(msgspec.to_builtins(order))],
                env=self._environment, stdin=subprocess.DEVNULL, pass_fds=(there.fileno(),), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            here.close()
            self._failed(slot, f"a process could not be started: {error.strerror}", now)
            return
        finally:
            there.close()
        here.setblocking(False)
        slot.link = here

    def _hear(self, slot: Slot) -> None:
        before = slot.word
        slot.hear()
        if before is None and slot.word is not None and slot.word.runs:
            self._ever_ran = True
            log.info("%s has started", slot.name)

    def _reap(self) -> None:
        while (pid := _ended_child()) is not None:
            slot = next((slot for slot in self._slots if slot.process is not None and slot.process.pid == pid), None)
            if slot is not None:
                self._hear(slot)
                slot.signal(signal.SIGKILL)  # what its jobs have started and left, as long as the group can be named
            _, status = os.waitpid(pid, 0)
            if slot is not None:
                self._ended(slot, os.waitstatus_to_exitcode(status))

    def _ended(self, slot: Slot, code: int) -> None:
        name, now, word = slot.name, time.monotonic(), slot.word
        assert slot.process is not None
        slot.process.returncode = code  # it was not asked itself, and would warn that nobody did
        slot.process = None
        if slot.link is not None:  # a child of its own has it still
            slot.link.close()
            slot.link = None
        how = f"ended with code {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"
        if self._ending is not None:
            log.info("%s has ended%s", name, "" if code in {0, -signal.SIGTERM} else f": it {how}")
        elif word is not None and word.runs:
            self._start_again(slot, f"{name} {how} after {now - slot.since:.1f} s", now)
        elif word is not None and word.final and not self._ever_ran:
            self._refusal = word.why
            self._give_up()
        else:
            self._failed(slot, f"{name} {how} before it ran{f': {word.why}' if word is not None else ''}", now)

    def _failed(self, slot: Slot, text: str, now: float) -> None:
        self._fruitless += 1
        if self._ever_ran or self._fruitless < TRIES:
            self._start_again(slot, text, now)
        else:
            log.error("%s; it was tried %d times, and is given up", text, TRIES)
            self._give_up()

    def _start_again(self, slot: Slot, text: str, now: float) -> None:
        steady = now - slot.since >= STEADY
        slot.wait = 0.0 if steady else min(max(FIRST_WAIT, 2 * slot.wait), LONGEST_WAIT)
        slot.not_before = now + slot.wait
        log.warning("%s; another one starts %s", text, "now" if steady else f"in {slot.wait:g} s")

    def _give_up(self) -> None:
        self._code = 1
        self._end_all()

    # --- waiting ---

    def _sleep(self) -> None:
        """Until a signal comes, a process says something, or something is to be done."""
        now = time.monotonic()
        if self._ending is None:
            until = min((slot.not_before for slot in self._wanted() if slot.process is None), default=inf)
        else:
            until = self._ending + self._timeout + LAST + 1.0
            if now >= until:
                self._kill_late()
                until = inf
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        for slot in self._slots:
            if slot.link is not None:
                poll.register(slot.link, select.POLLIN)
        poll.poll(None if until == inf else max(0.0, until - now) * 1000 + 1)
        with suppress(BlockingIOError):
            os.read(self._bell, 65536)

    def _kill_late(self) -> None:
        for slot in self._slots:
            if slot.process is not None:
                log.error("%s has not ended in time, and is killed", slot.name)
        self._kill_all()


def _ended_child() -> int | None:
    """The pid of a child that has ended and was not taken note of; None if there is none."""
    try:
        end = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if end is None else end.si_pid


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
