"""Cuts a call short, or lets a signal handler run, at each single point where that can happen. For the tests of what must survive it.

CPython looks for signals when a function is entered, after each call of a function in C, and when a loop jumps back; nowhere else. A tracer
counts the instructions that lead to such a look, in the code under test, and lets a signal be pending before the one that it is told; where
it is delivered is then up to the interpreter, as in life. So nothing is left to chance, and no point is tried that there is not.
"""

import _thread
import dis
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType, ModuleType
from typing import Any, Self

import pytest

SIGNAL, ALARM = signal.SIGUSR1, signal.SIGUSR2
LIMIT = 15.0
"""Seconds after which a call that was interrupted waits for ever."""
LOOKS = frozenset(
    number
    for name, number in dis.opmap.items()
    if (name.startswith("CALL") and "INTRINSIC" not in name) or name.startswith("JUMP_BACKWARD")
)


class Points:
    """The points of calls that pass through the code of these modules. To be used in the main thread, which is the one that has signals."""

    def __init__(self, *modules: ModuleType) -> None:
        self._files = {module.__file__ for module in modules}
        self.passed = 0
        self.where = ""

    def act(self, work: Callable[[], Any], at: int, action: Callable[[], Any]) -> bool:
        """Does `work`, and `action` at its point number `at`, from 1 on, where it may raise; False: there are not that many."""
        self.passed, self.where = 0, ""
        # A subscript: what the tracer calls would itself be a point at which the signal is delivered, and so would raise_signal.
        pending: Any = defaultdict(partial(_thread.interrupt_main, SIGNAL))

        def trace(frame: FrameType, event: str, arg: Any) -> Any:
            if frame.f_code.co_filename not in self._files:
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return inside

        def inside(frame: FrameType, event: str, arg: Any) -> Any:
            if event == "opcode" and frame.f_code.co_code[frame.f_lasti] in LOOKS:
                self.passed += 1
                if self.passed == at:
                    self.where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
                    pending[None]
            return inside

        before, tracer = signal.signal(SIGNAL, lambda number, frame: action()), sys.gettrace()
        sys.settrace(trace)
        try:
            work()
        finally:
            sys.settrace(tracer)
            signal.signal(SIGNAL, before)
        return self.passed >= at


def at_each_point(
    points: Points,
    work: Callable[[], Any],
    action: Callable[[], Any],
    check: Callable[[], Any],
    expected: tuple[type[BaseException], ...] = (),
) -> int:
    """`work` with `action` at its first point, its second, ... each time followed by `check`; how many there were.

    `expected`: what `work` may raise.
    """
    if sys.version_info[:2] != (3, 11):
        pytest.skip("where CPython looks for signals is known to this test for 3.11 alone")
    number, there = 0, True
    while there:
        number += 1
        with Limit(f"after an interrupt at point {number}") as limit:
            with suppress(*expected):
                there = points.act(work, number, action)
            limit.what = f"after an interrupt in {points.where}"
            try:
                check()
            except BaseException as error:
                raise AssertionError(f"after an interrupt in {points.where}: {error!r}") from error
    return number - 1


class Limit:
    """Ends what the main thread waits for in vain by an exception."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._over = threading.Event()

    def __enter__(self) -> Self:
        self._before = signal.signal(ALARM, self._ring)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        signal.signal(ALARM, self._before)

    def _watch(self) -> None:
        if not self._over.wait(LIMIT):
            signal.pthread_kill(threading.main_thread().ident or 0, ALARM)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it waits for ever, {self.what}")


class Cut(BaseException):
    """What a handler raises that ends a call, as Ctrl-C does."""


def cut() -> None:
    """An action: ends the call."""
    raise Cut
