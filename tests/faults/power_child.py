"""The program whose power is cut: it uses a timer on a file from several threads, and says what it was promised.

    power_child.py FILE MARKS power|process [off|cancels]

Each line in MARKS is one write. `want NAME`: a call about that job begins, so until its answer anything may be true of it.
`is NAME STATE DUE`: the call has returned, and this is what it promised; `gone` is the state of a job that was cancelled. `start NAME` and
`end NAME`: the job's run. Planted faults: with `off` every connection is
told not to sync at all, whatever the store asks for; with `cancels` only cancels and pauses are not synced.
"""

import os
import random
import sqlite3
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from jobwheel import IJob, Retry, open_timer
from jobwheel.stores.sqlite.moves import Single

FAR = datetime.now(UTC) + timedelta(days=9000)
"""Nothing that is due then is due while a test runs."""
THREADS = 3
ROUNDS = 24
CROWD = 6
"""Jobs added by one `add_jobs`."""


@dataclass
class Note(IJob, kind="power.note", retry=Retry(attempts=9)):
    """Writes down when it starts and ends. The text makes rows long enough that a short run fills the log more than once."""

    name: str
    text: str = ""
    mark: ClassVar[Callable[[str], object]] = print

    def run(self) -> None:
        type(self).mark(f"start {self.name}")
        type(self).mark(f"end {self.name}")


@dataclass
class Once(Note, kind="power.once", on_crash="interrupt"):
    """The same, and must not be started twice."""


class Unsynced(sqlite3.Connection):
    """The planted fault: a connection on which `synchronous` is always off."""

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        cursor = super().execute(sql, *values)
        if "synchronous" in sql.lower():
            super().execute("PRAGMA synchronous=OFF")
        return cursor


def worker(timer: Any, number: int, mark: Callable[[str], object]) -> None:  # noqa: C901 (one kind of call after the other)
    """Adds, moves, replaces, pauses and cancels jobs of its own names, one call after the other."""
    chance = random.Random(number)
    moment = iter(range(1_000_000))

    def later() -> datetime:
        return FAR + timedelta(days=number, seconds=next(moment), microseconds=chance.randrange(1_000_000))

    for turn in range(ROUNDS):
        name = f"{number}-{turn}"
        text = name * chance.choice((10, 100, 400))
        due = later()
        mark(f"want {name}")
        timer.add_job(Note(name, text), at=due, key=name)
        mark(f"is {name} scheduled {due.isoformat()}")
        match turn % 4:
            case 0:
                mark(f"want {name}")
                assert timer.cancel(name)
                mark(f"is {name} gone -")
            case 1:
                due = later()
                mark(f"want {name}")
                assert timer.reschedule(name, at=due)
                mark(f"is {name} scheduled {due.isoformat()}")
            case 2:
                due = later()
                mark(f"want {name}")
                timer.add_job(Note(name, text), at=due, key=name)  # replaces the first
                mark(f"is {name} scheduled {due.isoformat()}")
            case 3:
                mark(f"want {name}")
                assert timer.pause(name)
                mark(f"is {name} paused {due.isoformat()}")
        if turn % 3 == 0:
            mark(f"want now-{name}")
            timer.add_job(Note(f"now-{name}", text), key=f"now-{name}")
            mark(f"is now-{name} due -")
            mark(f"want once-{name}")
            timer.add_job(Once(f"once-{name}", text), key=f"once-{name}")
            mark(f"is once-{name} due -")
        if turn % 8 == 7:
            crowd = [(f"{name}-{place}", later()) for place in range(CROWD)]
            for each, _ in crowd:
                mark(f"want {each}")
            timer.add_jobs({"job": Note(each, text), "at": due, "key": each} for each, due in crowd)
            for each, due in crowd:
                mark(f"is {each} scheduled {due.isoformat()}")
            if turn % 16 == 15:
                for each, _ in crowd:
                    mark(f"want {each}")
                assert sum(timer.cancel(each) for each, _ in crowd) == CROWD
                for each, _ in crowd:
                    mark(f"is {each} gone -")


def main(path: str, marks: str, durability: str, *planted: str) -> None:
    """All of it."""
    file = os.open(marks, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def mark(line: str) -> None:
        os.write(file, f"{line}\n".encode())

    Note.mark = staticmethod(mark)
    if "off" in planted:
        connect = sqlite3.connect
        sqlite3.connect = lambda *values, **names: connect(*values, **{"factory": Unsynced} | names)
    if "cancels" in planted:
        begin = Single.__init__
        Single.__init__ = lambda self, deadline, full, *more: begin(self, deadline, False, *more)  # type: ignore[method-assign]
    with open_timer({"store": {"kind": "sqlite", "path": path, "durability": durability}, "workers": {"threads": 2}}) as timer:
        threads = [threading.Thread(target=worker, args=(timer, number, mark)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
