"""Time as two clocks: elapsed seconds for delays, wall seconds for dates. Every part gets a `Clock`; nobody reads `time` itself."""

import time
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

    if hasattr(time, "CLOCK_BOOTTIME"):

        def elapsed(self, _read=time.clock_gettime, _clock=time.CLOCK_BOOTTIME) -> float:  # type: ignore[no-untyped-def]
            return _read(_clock)  # type: ignore[no-any-return]

    else:  # pragma: no cover

        def elapsed(self) -> float:
            return time.monotonic()

    def wall(self) -> float:
        return time.time()
