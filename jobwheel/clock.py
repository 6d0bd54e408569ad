"""Time as two clocks: elapsed seconds for delays, wall seconds for dates. Every part gets a `Clock`; nobody reads `time` itself."""

import time
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """Two readings. Implementations: `SystemClock` here, `ManualClock` in `jobwheel.testing`."""

    def elapsed(self) -> float:
        """Seconds since some fixed moment; counts suspend, ignores steps of the wall clock, never goes back."""
        ...

    def wall(self) -> float:
        """Seconds since 1970-01-01T00:00Z as the machine believes it now; may be stepped in both directions."""
        ...


class SystemClock:
    """The machine's clocks.

    `elapsed` is CLOCK_BOOTTIME on Linux, the only one there that counts suspend and ignores steps (`time.monotonic`
    stands still while the machine sleeps). Elsewhere it is `time.monotonic`; whether that counts suspend is the
    platform's affair.
    """

    __slots__ = ()

    # functools.partial over the C function: reading the clock is on every path, and a Python frame would double its price.
    elapsed = staticmethod(partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic)
    wall = staticmethod(time.time)


APART = 0.001
"""Seconds by which two readings of the two clocks may differ without the clocks having parted."""
TRIES = 5
"""How often they are read to see whether they have; the next question asks again."""


class Anchor:
    """Wall minus elapsed clock, the same number until the clocks part: so equal dates are equal due moments, and the other way round."""

    __slots__ = ("_clock", "_offset")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.wall() - clock.elapsed()

    def offset(self) -> float:
        """In seconds."""
        clock = self._clock
        if abs(clock.wall() - clock.elapsed() - self._offset) > APART:
            for _ in range(TRIES):
                before, wall, after = clock.elapsed(), clock.wall(), clock.elapsed()
                if after - before < APART / 2:  # else the thread lost the CPU between the readings, which proves nothing
                    if abs(wall - before - self._offset) > APART:
                        self._offset = wall - before
                    break
        return self._offset
