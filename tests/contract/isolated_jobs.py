"""Jobs for tests of runs in child processes: in a module of their own, which a child imports without pytest."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from jobwheel import CancelJob, IJob, JobContext, Retry, RetryJob, job, open_timer
from jobwheel.isolation import ChildDied


class Hard(BaseException):
    pass


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError


def spend(seconds: float) -> None:
    time.sleep(seconds)


def loop_for_ever() -> None:
    while True:
        time.sleep(0.01)


def hold_the_gil() -> None:
    ctypes.PyDLL(None).sleep(1000)


def eat_memory() -> None:
    eaten = []
    while True:
        eaten.append(bytearray(64 * 1024 * 1024))


def eat_crumbs() -> None:
    """Until there is not even room for telling."""
    eaten: list[Any] = []
    while True:
        eaten.append([None, None])


def start_a_program(file: str) -> None:
    """A child of the child, which outlives the run unless somebody sees to it."""
    program = subprocess.Popen(["sleep", "1000"])
    Path(file).write_text(str(program.pid))


def say(ctx: JobContext, go: str) -> None:
    """Tells in three steps, and waits for the file `go` after the first."""
    ctx.log("first")
    ctx.progress(1, 3, "one")
    while not os.path.exists(go):
        time.sleep(0.005)
    ctx.log("last")
    ctx.progress(2, 3)
    ctx.progress(3, 3, "three")


def fast_then_waits(ctx: JobContext, go: str) -> None:
    for number in range(100):
        ctx.progress(number, 100)
    while not os.path.exists(go):
        time.sleep(0.005)


def hello(ctx: JobContext, then: Any) -> None:
    """Tells where it runs, and goes on to something else."""
    ctx.log(str(os.getpid()))
    if isinstance(then, float):
        time.sleep(then)
    else:
        ACTS[then](ctx, None)


def terminate_a_program() -> int:
    program = subprocess.Popen(["sleep", "1000"])
    program.terminate()
    return program.wait()


def add(path: str) -> int:
    timer = open_timer({"store": {"path": path}})
    timer.start()
    assert not timer.started, "a timer in a child would run jobs there"
    try:
        return timer.add_job(Act("echo", "added in a child")).id
    finally:
        timer.shutdown()


def fork_and_exit(ctx: JobContext) -> None:
    """Dies, and leaves a process with all its files behind."""
    forked = os.fork()
    if not forked:
        loop_for_ever()
    ctx.log(str(forked))
    os._exit(5)


def fork_and_return() -> Any:
    """Its fork returns from the job as well; gives how that ended."""
    forked = os.fork()
    return os.waitpid(forked, 0)[1] if forked else "of the fork"


leave: Any = None


def leave_a_thread(ctx: JobContext) -> None:
    """It tells something whenever `call_the_thread` lets it."""
    global leave  # noqa: PLW0603
    leave = (threading.Semaphore(0), threading.Semaphore(0))

    def tell() -> None:
        while leave[0].acquire():
            ctx.log("of another run")
            ctx.progress(1, 1)
            leave[1].release()

    threading.Thread(target=tell, daemon=True).start()


def call_the_thread(ctx: JobContext) -> None:
    ctx.log("mine")
    leave[0].release()
    leave[1].acquire()


def heed(ctx: JobContext) -> str:
    ctx.log("waits")
    while not ctx.cancel_requested:
        time.sleep(0.005)
    ctx.log("heeded")
    return "heeded"


def told(ctx: JobContext) -> dict[str, Any]:
    return {
        "job_id": ctx.job_id,
        "key": ctx.key,
        "attempt": ctx.attempt,
        "scheduled_for": ctx.scheduled_for.timestamp(),
        "started_at": ctx.started_at.timestamp(),
        "lateness": ctx.lateness,
        "now": datetime.now(UTC).timestamp(),
        "cancel": ctx.cancel_requested,
    }


def open_files() -> list[str]:
    names = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own
            names.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(names)


def raise_(error: BaseException) -> None:
    raise error


RAISING: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("no such order"),
    "SystemExit": lambda: SystemExit(1),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "Hard": lambda: Hard("own"),
    "Unspeakable": Unspeakable,
    "MemoryError": MemoryError,
    "CancelledError": asyncio.CancelledError,
    "RecursionError": RecursionError,
    "surrogate": lambda: ValueError("file \udc80"),
    "CancelJob": lambda: CancelJob("enough"),
}

ACTS: dict[str, Callable[[JobContext, Any], Any]] = {
    "pid": lambda ctx, arg: os.getpid(),
    "echo": lambda ctx, arg: arg,
    "raise": lambda ctx, arg: raise_(RAISING[arg]()),
    "exit": lambda ctx, arg: os._exit(arg),
    "die": lambda ctx, arg: os.kill(os.getpid(), arg),
    "crash": lambda ctx, arg: ctypes.string_at(0),
    "hang": lambda ctx, arg: loop_for_ever(),
    "freeze": lambda ctx, arg: hold_the_gil(),
    "eat_crumbs": lambda ctx, arg: eat_crumbs(),
    "eat": lambda ctx, arg: eat_memory(),
    "spend": lambda ctx, arg: spend(arg),
    "say": say,
    "heed": lambda ctx, arg: heed(ctx),
    "told": lambda ctx, arg: told(ctx),
    "again": lambda ctx, arg: raise_(RetryJob(0.01, "not yet")) if ctx.attempt == 1 else ctx.attempt,
    "first_fails": lambda ctx, arg: raise_(ValueError("first")) if ctx.attempt == 1 else ctx.attempt,
    "first_dies": lambda ctx, arg: os._exit(7) if ctx.attempt == 1 else ctx.attempt,
    "program": lambda ctx, arg: (start_a_program(arg), loop_for_ever()),
    "object": lambda ctx, arg: object(),
    "tuple": lambda ctx, arg: (1, datetime(2026, 1, 2, tzinfo=UTC)),
    "chatter": lambda ctx, arg: [ctx.log(f"line {number}") or ctx.progress(number, arg) for number in range(arg)] and None,
    "never_silent": lambda ctx, arg: [ctx.log("again") for _ in iter(int, 1)],
    "stdin": lambda ctx, arg: sys.stdin.read(),
    "print": lambda ctx, arg: print(arg),
    "files": lambda ctx, arg: open_files(),
    "handlers": lambda ctx, arg: [os.kill(os.getpid(), number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
    "hello": hello,
    "terminate_a_program": lambda ctx, arg: terminate_a_program(),
    "add": lambda ctx, arg: add(arg),
    "flags": lambda ctx, arg: [sys.flags.optimize, sys.flags.utf8_mode],
    "close_all": lambda ctx, arg: (os.closerange(3, 1000), loop_for_ever()),
    "fork_and_exit": lambda ctx, arg: fork_and_exit(ctx),
    "fast_then_waits": fast_then_waits,
    "fork_and_return": lambda ctx, arg: fork_and_return(),
    "leave_a_thread": lambda ctx, arg: leave_a_thread(ctx),
    "call_the_thread": lambda ctx, arg: call_the_thread(ctx),
}


@dataclass
class Act(IJob, kind="isolated.act"):
    what: str
    arg: Any = None

    def run(self, ctx: JobContext) -> Any:
        return ACTS[self.what](ctx, self.arg)


@dataclass
class Isolated(Act, kind="isolated.isolated", isolation="process"):
    pass


@dataclass
class Here(Act, kind="isolated.here", isolation="thread"):
    pass


@dataclass
class Limited(Act, kind="isolated.limited", timeout=0.3):
    pass


@dataclass
class LimitedTwice(Act, kind="isolated.limited_twice", timeout=0.3, retry=Retry(attempts=2)):
    pass


@dataclass
class Punctual(Act, kind="isolated.punctual", misfire_grace_time=5):
    pass


@dataclass
class Twice(Act, kind="isolated.twice", retry=Retry(attempts=2)):
    pass


@dataclass
class TwiceIfItDied(Act, kind="isolated.twice_if_it_died", retry=Retry(attempts=2, retry_on=(ChildDied,))):
    pass


@dataclass
class OnceOnly(Act, kind="isolated.once_only", retry=Retry(attempts=2), on_crash="interrupt"):
    pass


@dataclass
class ActAsync(IJob, kind="isolated.act_async"):
    what: str
    arg: Any = None

    async def run(self, ctx: JobContext) -> Any:
        await asyncio.sleep(0)
        return ACTS[self.what](ctx, self.arg)


@dataclass
class LimitedAsync(ActAsync, kind="isolated.limited_async", timeout=0.3):
    pass


@dataclass
class Brief(Act, kind="isolated.brief", timeout=0.02):
    pass


@dataclass
class Sleeper(IJob, kind="isolated.sleeper", timeout=0.3):
    """A coroutine that writes down how it ended."""

    file: str

    async def run(self) -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            Path(self.file).write_text("cancelled")  # noqa: ASYNC240 (its last words)
            raise


@job(kind="isolated.double", isolation="process")
def double(number: int) -> tuple[int, int]:
    return 2 * number, os.getpid()


@dataclass
class Served(IJob, kind="isolated.served", isolation="process"):
    def run(self, *, shop: Any, missing: Any = "nothing") -> Any:
        return shop, missing


@dataclass
class Scoped(IJob, kind="isolated.scoped", isolation="process"):
    def run(self, ctx: JobContext) -> Any:
        return list(inside)


@dataclass
class Rich(IJob, kind="isolated.rich", isolation="process"):
    when: datetime
    raw: bytes
    parts: list[tuple[int, str]] = field(default_factory=list)

    def run(self) -> str:
        return repr(self)


inside: list[int] = []


@contextmanager
def scope(ctx: JobContext) -> Iterator[None]:
    inside.append(ctx.job_id)
    yield
    inside.clear()


services = {"shop": "the shop"}


def make_services() -> dict[str, str]:
    return services


no_services: dict[str, str] = {}


class Container:
    providers: ClassVar[dict[str, Any]] = {"shop": lambda: "the shop"}


def fail() -> None:
    raise OSError("the shop is closed")
