"""Programs that share one file, as the tests of this folder put them on: each is a few lines after HEAD and writes to one file of events.

A program ends when its standard input does, unless it ends by itself. Every one that is still there at the end is killed.
"""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from checker import Report, check
from eventlog import PARENT, EventLog, Line, read

HERE = Path(__file__).parent
LIMIT = 30.0
"""Seconds after which a wait has failed."""

HEAD = """
import faulthandler, fcntl, logging, os, random, signal, sqlite3, sys, threading, time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
import child
from child import Again, Narrow, Once, Work
from eventlog import EventLog, now
from jobwheel import IJob, JobContext, Retry, State, open_timer
from jobwheel.errors import StoreError

number = int(sys.argv[1])
log = child.log = EventLog(Path("events"), number)
logging.basicConfig(level=logging.WARNING)

def opened(**store):
    timer = open_timer({"store": {"kind": "sqlite", "path": "jobs.db", "keep": 1_000_000} | store})
    timer.on(child.events.JobSucceeded, lambda event: log("settled", event.job.id))
    return timer

def add(timer, job, delay=0.0):
    # Writes down the call, whatever becomes of it; gives the seconds that it took.
    order = child.Order(job, delay, None, "replace", False)
    caller = child.Caller([timer], child.Orders("", number, 0, {}), random.Random(), "", [])
    begin = now()
    caller.call("add", [order.written()], do=lambda: [child.answer_of(order, timer.add_job(**order.names()))])
    return now() - begin

def comes(name):
    while not Path(name).exists():
        time.sleep(0.01)

def stays(timer):
    sys.stdin.read()
    timer.shutdown()
"""


class Program:
    """One process. What it prints is in the stage's `said`."""

    def __init__(self, stage: "Stage", number: int, text: str) -> None:
        self._stage = stage
        self.number = number
        self._process = subprocess.Popen(
            [sys.executable, "-c", HEAD + textwrap.dedent(text), str(number)],
            cwd=stage.folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (HERE, HERE.parents[1])))},
            stdin=subprocess.PIPE,
            stdout=stage.output,
            stderr=stage.output,
        )
        self.pid = self._process.pid

    def kill(self) -> None:
        self._stage.log("kill", process=self.number)
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._stage.log("stop", process=self.number)
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._stage.log("cont", process=self.number)
        self._process.send_signal(signal.SIGCONT)

    def stopped(self) -> bool:
        """Whether the kernel has it stopped."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def ended(self) -> int | None:
        return self._process.poll()

    def wait_ended(self) -> int:
        return self._process.wait(LIMIT)

    def end(self) -> None:
        """Lets it end cleanly."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self.wait_ended()
        assert code == 0, self._stage.said()

    def put_away(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


class Stage:
    """One folder, its programs and their events."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events = folder / "events"
        self.output = (folder / "said").open("ab")
        self.log = EventLog(self.events, PARENT)
        self.programs: list[Program] = []

    def program(self, text: str) -> Program:
        program = Program(self, len(self.programs) + 1, text)
        self.programs.append(program)
        return program

    def cue(self, name: str) -> None:
        """What the programs wait for with `comes`."""
        (self.folder / name).touch()

    def said(self) -> str:
        return (self.folder / "said").read_text()

    def lines(self, what: str, **wanted: Any) -> list[Line]:
        """Those of this event, by `process` if it is given."""
        return [line for line in read(self.events) if line.what == what and all(getattr(line, k) == v for k, v in wanted.items())]

    def wait_until(self, true: Callable[[], Any], what: str, limit: float = LIMIT) -> None:
        deadline = time.monotonic() + limit
        while not true():
            assert time.monotonic() < deadline, f"waited {limit:g} s in vain for {what}; they said:\n{self.said()}"
            time.sleep(0.02)

    def wait_for(self, what: str, count: int = 1, *, limit: float = LIMIT, **wanted: Any) -> list[Line]:
        self.wait_until(lambda: len(self.lines(what, **wanted)) >= count, f"{count} x {what}", limit)
        return self.lines(what, **wanted)

    def judged(self, **options: bool) -> Report:
        return check(read(self.events), **options)


@contextmanager
def staged(folder: Path) -> Iterator[Stage]:
    """A stage in this folder; nothing of it lives on."""
    stage = Stage(folder)
    try:
        yield stage
    finally:
        for program in stage.programs:
            program.put_away()
        stage.log.close()
        stage.output.close()
