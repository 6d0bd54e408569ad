"""What goes between an engine and its child processes: a handful of messages as JSON, each after its length, over one socket.

No pickle, and nothing that names code but the module of a class that this program itself has registered.
"""

import json
import select
import socket
import time
from typing import Any

import msgspec

from jobwheel.verdict import SUCCEEDED, Again, Cancelled, Failed, Interrupted, Missed, Onward, Succeeded, Verdict

SHOWN = 10_000
"""Characters kept of a result that has no JSON form."""


class Start(msgspec.Struct, tag=True):
    """To the child: run this. It is idle; `Begun` or `Unready` follows."""

    id: int
    kind: str
    module: str
    path: str | None
    """The file of the main program, if the class is defined there."""
    data: str
    key: str | None
    attempt: int
    due: float
    nominal: float | None
    wall: float | None


class Cancel(msgspec.Struct, tag=True):
    """To the child: `cancel` was called for its job."""


class Late(msgspec.Struct, tag=True):
    """To the child: the time limit of its run is over."""


class Begun(msgspec.Struct, tag=True):
    """From the child: the run begins, at this elapsed moment."""

    moment: float


class Unready(msgspec.Struct, tag=True):
    """From the child: it cannot begin, and waits for another job."""

    error: str
    trace: str


class Line(msgspec.Struct, tag=True):
    """From the child: a line of the job's log."""

    text: str


class Progress(msgspec.Struct, tag=True):
    """From the child: how far the job is."""

    now: tuple[Any, Any, Any]


class Heeds(msgspec.Struct, tag=True):
    """From the child: the job looks at `cancel_requested`."""


class Told(msgspec.Struct, tag=True):
    """From the child: what its runner has to say of a run that raised."""

    level: int
    text: str
    trace: str


class Over(msgspec.Struct, tag=True):
    """From the child: the run is over, and it waits for another job unless it is `spent`."""

    state: str
    started: float | None
    result: Any = None
    error: str | None = None
    trace: str | None = None
    delay: float = 0.0
    progress: tuple[Any, Any, Any] | None = None
    spent: bool = False


ToChild = Start | Cancel | Late
FromChild = Begun | Unready | Line | Progress | Heeds | Told | Over


class Channel:
    """One end of the socket. One thread at a time receives, one at a time sends."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._arrived = bytearray()
        self._poll = select.poll()  # not select: it knows no file descriptor from 1024 on
        self._poll.register(end, select.POLLIN)

    def send(self, message: ToChild | FromChild) -> None:
        """Raises OSError when the other end is gone."""
        # Not msgspec's encoder, which refuses text that is no UTF-8, such as a file's name in a key or in an error.
        text = json.dumps(msgspec.to_builtins(message)).encode()
        self._end.sendall(len(text).to_bytes(4, "big") + text)

    def receive(self, timeout: float | None) -> FromChild | ToChild | None:
        """The next message; None: there was none for `timeout` seconds. Raises EOFError when the other end is gone."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (text := self._next()) is None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            if not self._poll.poll(left):
                return None
            try:
                piece = self._end.recv(65536)
            except OSError as error:
                raise EOFError from error
            if not piece:
                raise EOFError
            self._arrived += piece
        message: FromChild | ToChild = msgspec.convert(json.loads(text), FromChild | ToChild)
        return message

    def _next(self) -> bytes | None:
        arrived = self._arrived
        if len(arrived) < 4 or len(arrived) < (end := 4 + int.from_bytes(arrived[:4], "big")):
            return None
        text = bytes(arrived[4:end])
        del arrived[:end]
        return text

    def close(self) -> None:
        """This end is gone."""
        self._end.close()


def over_of(verdict: Verdict, started: float | None, progress: Any, spent: bool) -> Over:
    """The message that tells the verdict of a run."""
    over = Over(verdict.state, started, progress=shown_parts(progress), spent=spent)
    if isinstance(verdict, Succeeded):
        over.result = shown(verdict.result)
    elif not isinstance(verdict, Onward):
        over.error = verdict.error
    if isinstance(verdict, Failed | Again):
        over.trace = verdict.trace
    if isinstance(verdict, Again):
        over.delay = verdict.delay
    return over


def verdict_of(over: Over) -> Verdict:
    """The verdict that was told."""
    error = over.error or ""
    match over.state:
        case "succeeded":
            return SUCCEEDED if over.result is None else Succeeded(over.result)
        case "scheduled":
            return Again(over.delay, over.error, over.trace)
        case "cancelled":
            return Cancelled(over.error)
        case "missed":
            return Missed(error)
        case "interrupted":
            return Interrupted(error)
        case _:
            return Failed(error, over.trace)


def shown_parts(progress: tuple[Any, Any, Any] | None) -> tuple[Any, Any, Any] | None:
    """What a job told of its progress, which may be anything."""
    return None if progress is None else (shown(progress[0]), shown(progress[1]), shown(progress[2]))


def shown(value: object) -> Any:
    """The value as JSON has it: a tuple as a list, a date as text, a dataclass as a dict; what has no such form becomes its repr."""
    if value is None or type(value) in {str, int, float, bool}:
        return value
    try:
        return msgspec.json.decode(msgspec.json.encode(value, enc_hook=_repr))
    except Exception:  # an application's own values can do anything when they are looked at
        return _repr(value)


def _repr(value: object) -> str:
    try:
        return repr(value)[:SHOWN]
    except Exception:
        return f"a {type(value).__name__}, which could not be shown"
