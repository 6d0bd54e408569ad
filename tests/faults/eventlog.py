"""The file of events that a crash campaign is judged by: one write for each line, appended, by every process that takes part.

The kernel puts the lines of all processes into one order, and a line that was written outlives its process. So what a process is
about to do it writes before, and what it knows it writes after: a line in between that another process wrote lies between the two.

    ask N what ...     a call begins; N counts the calls of a process
    answer N value     it has returned
    raised N error     it has raised
    start id attempt name            a run begins, in the process that runs it
    end id attempt name how          it is over: "ok", or "again" where it asks for another attempt
    settled id                       its end is in the store (told by a listener of JobSucceeded)
    final id state attempt           how a job ended, as the last process finds it
    left id state                    a job that did not end, though the last process waited for it
    kill, stop, cont                 written by the parent just before the signal, for the process that gets it; a job that kills its
                                     own process writes `kill` itself
    sound text                       what PRAGMA integrity_check says while no process lives
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

PARENT = 0
"""The number of the process that starts and kills the others."""


def now() -> float:
    """The clock of all lines: seconds, the same in every process of a machine."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Line:
    """One event. `place` is its number in the file, `process` the number of the process that it is of, `at` the moment of writing."""

    place: int
    what: str
    process: int
    at: float
    rest: tuple[Any, ...] = ()


class EventLog:
    """Appends lines for one process; safe from any thread, and after a kill at any moment."""

    def __init__(self, path: Path, process: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._process = process

    def __call__(self, what: str, *rest: Any, process: int | None = None) -> float:
        """Writes one line; its moment."""
        at = now()
        line = msgspec.json.encode((what, self._process if process is None else process, at, *rest))
        # A line end before it too: what a killed process began to write must not swallow the line of another one.
        os.write(self._file, b"\n%b\n" % line)
        return at

    def close(self) -> None:
        os.close(self._file)


def read(path: Path) -> list[Line]:
    """All whole lines, in the order in which they were written. A cut one is its process's last and counts as not written."""
    lines: list[Line] = []
    for text in path.read_bytes().split(b"\n"):
        try:
            what, process, at, *rest = msgspec.json.decode(text)
        except (msgspec.DecodeError, ValueError):
            continue
        lines.append(Line(len(lines), what, process, at, tuple(rest)))
    return lines
