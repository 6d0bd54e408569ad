"""The main program of a child process: runs one job after the other, as its parent tells it over a socket. The parent's side
is `children` and `isolated`.

Promises: the parent's end is the child's end, and that of its own children, whatever the job does meanwhile; signals that are meant for the
parent (a terminal's Ctrl-C, a supervisor's SIGTERM to the whole group) do not end a run; what a run that raised has to say is told to
the parent, and not logged here.
Relies on: being the leader of a process group of its own.

The job has the main thread, since signals and event loops want that one. Beside it one thread listens, and passes on what the job tells.
What a job prints goes where the parent's output goes. Logging is as a fresh interpreter has it, or as the imported modules set it up:
warnings and worse to stderr. Somewhat long: what is done in no other process than a child is here together.
"""

import asyncio
import errno
import faulthandler
import fcntl
import importlib
import importlib.machinery
import importlib.util
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from types import FrameType
from typing import Any

from jobwheel.clock import SystemClock
from jobwheel.codec import decode
from jobwheel.engines.wire import (
    Begun,
    Cancel,
    Channel,
    FromChild,
    Heeds,
    Late,
    Line,
    Over,
    Progress,
    Start,
    Told,
    Unready,
    over_of,
    shown_parts,
)
from jobwheel.errors import UsageError
from jobwheel.isolation import be_child, importing_main
from jobwheel.job import LINE_LENGTH, JobContext
from jobwheel.kind import Kind, find_kind
from jobwheel.row import Row, Terms
from jobwheel.runner import Runner, Scope, text_of, trace_of
from jobwheel.services import as_services
from jobwheel.state import State

BEAT = 0.1
"""Seconds between two tellings of the same job's progress."""
MAIN = "__jobwheel_main__"
"""The name of the main program's module here, so that what it guards by `if __name__ == "__main__":` is not done."""


class ChildContext(JobContext):
    """Tells what the job says to the parent. Used by the job's thread, but for `pass_on`."""

    def __init__(self, row: Row, tell: Callable[[FromChild], None]) -> None:
        super().__init__(row)
        self._tell = tell
        self._told = 0.0
        self._behind = False
        self._heeds = False

    def log(self, text: str) -> None:
        self._tell(Line(str(text)[:LINE_LENGTH]))

    def progress(self, done: int, total: int, text: str = "") -> None:
        super().progress(done, total, text)
        self._behind = True
        if time.monotonic() - self._told >= BEAT:
            self.pass_on()

    def pass_on(self) -> None:
        """Tells the progress, if there is any that was not told."""
        if self._behind:
            self._behind = False
            self._told = time.monotonic()
            now = shown_parts(self.progress_now)
            if now is not None:
                self._tell(Progress(now))

    @property
    def cancel_requested(self) -> bool:
        if not self._heeds:
            self._heeds = True
            self._tell(Heeds())
        return super().cancel_requested


class ChildRunner(Runner):
    """The runner of every engine, whose log lines go to the parent."""

    def __init__(self, services: object, scope: Scope | None, tell: Callable[[FromChild], None]) -> None:
        super().__init__(SystemClock(), as_services(services))
        self.scope = scope
        self._tell = tell
        self.spent = False
        """Memory ran out once: the next job is to find a fresh process."""

    def judge(self, row: Row, error: BaseException) -> Any:
        self.spent = self.spent or isinstance(error, MemoryError)
        return super().judge(row, error)

    def tell(self, level: int, error: BaseException, text: str, *args: object) -> None:
        self._tell(Told(level, text % args, trace_of(error)))


class Servant:
    """Runs what comes over the channel until it ends."""

    def __init__(self, channel: Channel, find: Callable[[], tuple[object, Scope | None]]) -> None:
        self._channel = channel
        self._find = find
        self._jobs: SimpleQueue[Start | None] = SimpleQueue()
        self._sending = threading.RLock()  # a signal handler of the job's may send in the middle of a sending
        self._runner: ChildRunner | None = None
        self._busy = False  # set by the listener when a job comes, cleared before its end is told: the next one comes only after that
        self._cancel = self._late = False  # written by the listener
        self._context: ChildContext | None = None
        self._coroutine: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._cut_off = False

    def live(self) -> None:
        """Until the parent is gone, or wants no more."""
        threading.Thread(target=self._listen, name="jobwheel-listener", daemon=True).start()
        while (start := self._jobs.get()) is not None:
            self._serve(start)
            _flush()

    def cut_off(self) -> None:
        """In a process that a job forked: it has no parent to tell anything."""
        self._cut_off = True
        self._sending = threading.RLock()
        self._channel.close()

    # --- the listener's thread ---

    def _listen(self) -> None:
        try:
            while True:
                self._take(self._channel.receive(BEAT if self._busy else None))
        except EOFError as end:
            if getattr(end.__cause__, "errno", None) == errno.EBADF:
                return  # the job has closed the line: the parent sees to it
            if self._busy:
                _end_group()
            self._jobs.put(None)

    def _take(self, message: object) -> None:
        match message:
            case Start():
                self._cancel = self._late = False
                self._busy = True
                self._jobs.put(message)
            case Cancel():
                self._cancel = True
                self._pass_flags()
            case Late():
                self._late = True
                self._pass_flags()
                self._end_coroutine()
            case _:
                with self._sending:
                    if self._context is not None:
                        self._context.pass_on()

    def _pass_flags(self) -> None:
        """From either thread, each after it has written its part: so one of them sees both."""
        context = self._context
        if context is not None:
            context.cancel_asked = self._cancel
            context.timed_out = self._late

    def _end_coroutine(self) -> None:
        coroutine = self._coroutine
        if coroutine is not None:
            with suppress(RuntimeError):  # its loop has ended
                coroutine[0].call_soon_threadsafe(coroutine[1].cancel)

    # --- the job's thread ---

    def _serve(self, start: Start) -> None:
        try:
            row = self._row(start)
            runner = self._runner = self._runner or ChildRunner(*self._find(), self._tell)
        except BaseException as error:  # whatever an application's module raises, `sys.exit` at its top level as well
            self._finish(Unready(text_of(error), trace_of(error)))
            return
        context = row.run = ChildContext(row, lambda message: self._say(context, message))
        self._context = context
        self._pass_flags()
        self._tell(Begun(time_now()))
        verdict = self._attempt(runner, row)
        self._finish(over_of(verdict, row.started, context.progress_now, runner.spent))

    def _attempt(self, runner: ChildRunner, row: Row) -> Any:
        if not row.kind.call.is_async:
            return runner.run(row)
        try:
            return asyncio.run(self._attempt_async(runner, row))
        except BaseException as error:  # cancelled at the very end, or an event loop that the job has broken
            return runner.judge_raise(row, error)
        finally:
            self._coroutine = None

    async def _attempt_async(self, runner: ChildRunner, row: Row) -> Any:
        task = asyncio.current_task()
        assert task is not None
        self._coroutine = asyncio.get_running_loop(), task
        if self._late:
            task.cancel()
        return await runner.run_async(row)

    def _row(self, start: Start) -> Row:
        kind = _kind(start)
        terms = Terms()
        terms.nominal, terms.wall = start.nominal, start.wall
        row = Row(decode(kind, start.data), start.due, None, start.key, 0, terms, kind)
        row.id, row.attempt = start.id, start.attempt
        return row

    def _tell(self, message: FromChild) -> None:
        with self._sending:
            if self._cut_off:
                return
            try:
                self._channel.send(message)
            except OSError:  # the parent is gone
                _end_group()

    def _say(self, context: ChildContext, message: FromChild) -> None:
        """What a context tells, while its run goes on: a thread that the run has left behind may have it for ever."""
        with self._sending:
            if context is self._context:
                self._tell(message)

    def _finish(self, message: Over | Unready) -> None:
        if self._cut_off:  # a process that the job has forked has come to the job's end as well: it has nothing more to do
            _flush()
            os._exit(isinstance(message, Unready) or message.state != State.SUCCEEDED)
        with self._sending:
            self._context = None  # from here on the listener tells nothing of it
            self._busy = False
            self._tell(message)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed, or none at all
            stream.flush()


def _kind(start: Start) -> Kind:
    """The kind, once its module is imported."""
    kind = find_kind(start.kind)
    if kind is None:
        if start.path is None:
            importlib.import_module(start.module)
        elif MAIN not in sys.modules:
            _import_main(start.path)
        kind = find_kind(start.kind)
    if kind is None:
        raise UsageError(
            f"importing {start.path or start.module} in a child process did not define the job kind {start.kind!r}: "
            f'move its class to the top of the module, or give it isolation="thread"'
        )
    return kind


def _import_main(path: str) -> None:
    with importing_main():
        _load_main(path)


def _load_main(path: str) -> None:
    loader = importlib.machinery.SourceFileLoader(MAIN, path)  # a program's file need not end in .py
    spec = importlib.util.spec_from_file_location(MAIN, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules["__main__"]
    sys.modules[MAIN] = sys.modules["__main__"] = module
    try:
        loader.exec_module(module)
    except BaseException:
        sys.modules["__main__"] = before
        del sys.modules[MAIN]
        raise


time_now = SystemClock.elapsed


def _end_group() -> None:
    """Ends this process at once, and those that its jobs have started."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)


def _ignore(_: int, __: FrameType | None) -> None:
    """A handler and not SIG_IGN, which the programs that a job starts would inherit."""


def _arm_lifeline(lifeline: int) -> None:
    """Has the kernel kill this process group when the parent's end of the pipe is gone, though native code hold the GIL here for ever."""
    os.set_inheritable(lifeline, False)
    if hasattr(fcntl, "F_SETSIG"):  # Linux
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _bound_memory(mebibytes: int) -> None:
    if mebibytes:
        limit = mebibytes * 1024 * 1024
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main(lifeline: int, memory: int, place: str | None, find_services: Callable[[str], tuple[object, Scope | None]]) -> None:
    """The child's life. `find_services` is handed in, since it is from a floor above."""
    be_child()
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ignore)
    _arm_lifeline(lifeline)
    _bound_memory(memory)
    with suppress(Exception):  # there may be no stderr
        faulthandler.enable()
    # The socket came as stdin, where no job is to find it.
    end = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    servant = Servant(Channel(end), lambda: (None, None) if place is None else find_services(place))
    os.register_at_fork(after_in_child=servant.cut_off)
    servant.live()
