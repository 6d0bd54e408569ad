"""Moments in the file and on this process's clocks. The file keeps whole microseconds of the clock that a row's `basis` names.

Basis 0 is the wall clock, for dates. Any other number is a boot of the machine: the elapsed clock of that boot, so that no step of the wall
clock moves a delay. After a reboot the rows of an earlier boot count by the wall clock: the file knows, for each boot, how far its elapsed
clock was from the wall clock when somebody last looked.
"""

import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from math import ceil, floor

from jobwheel.clock import Anchor, Clock, SystemClock
from jobwheel.errors import StoreError
from jobwheel.stores.sqlite.file import StoreFile
from jobwheel.stores.sqlite.group import Record

WALL = 0
SECOND = 1_000_000
NOISE = 0.05
"""Microseconds by which a float of seconds may miss the whole microsecond that it stands for."""
DRIFT = 50_000
"""Microseconds by which the offset in the file may be wrong before it is written anew."""


def micros(seconds: float) -> int:
    """A due moment for the file: not before `seconds`."""
    return ceil(seconds * SECOND - NOISE)


class Moments:
    """For one store: it translates, and keeps what the file knows of other boots."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._anchor = Anchor(clock)
        self._boot = boot_name(clock)
        self.basis = -1
        """This boot's number in the file."""
        self._offsets: dict[int, int] = {}
        self._read: Callable[[str], list[Record]] = lambda statement: []

    def join(self, file: StoreFile) -> None:
        """Lets the file know this boot."""
        self._read = file.read
        found = file.read("SELECT n FROM boot WHERE name = ?", (self._boot,))
        if not found:
            offset = round(self.offset() * SECOND)
            file.write(
                lambda connection: connection.execute("INSERT OR IGNORE INTO boot (name, offset) VALUES (?, ?)", (self._boot, offset)),
                full=False,
            )
            found = file.read("SELECT n FROM boot WHERE name = ?", (self._boot,))
        self.basis = found[0][0]
        self.look(file)

    def look(self, file: StoreFile) -> None:
        """Reads what the file knows of all boots, and writes down where the wall clock is now if that has changed."""
        self._offsets = dict(file.read("SELECT n, offset FROM boot"))
        offset = round(self.offset() * SECOND)
        if abs(self._offsets[self.basis] - offset) > DRIFT:
            file.write(lambda connection: connection.execute("UPDATE boot SET offset = ? WHERE n = ?", (offset, self.basis)), full=False)
            self._offsets[self.basis] = offset

    def offset(self) -> float:
        """Wall minus elapsed clock now, in seconds; the same until the clocks part."""
        return self._anchor.offset()

    def elapsed(self) -> int:
        """Now, on the elapsed clock."""
        return floor(self._clock.elapsed() * SECOND + NOISE)

    def reached(self) -> int:
        """The same, and not before it: for what must not be early by less than a microsecond."""
        return micros(self._clock.elapsed())

    def wall(self) -> int:
        """Now, on the wall clock; one microsecond later than it is, since a float of epoch seconds is no more exact."""
        return ceil(self._clock.wall() * SECOND) + 1

    def stamp(self) -> int:
        """Now, for what is written down to be shown: as `offset` has it."""
        return round((self._clock.elapsed() + self.offset()) * SECOND)

    def limits(self, ahead: int = 0) -> list[tuple[int, int]]:
        """For each basis (basis, its moment now, plus `ahead` microseconds)."""
        wall = self.wall() + ahead
        return [(basis, self.elapsed() + ahead if basis == self.basis else wall - offset) for basis, offset in self._offsets.items()]

    def to_elapsed(self, basis: int, moment: int) -> float:
        """A moment of the file in elapsed seconds of this process."""
        if basis == self.basis:
            return moment / SECOND
        return (moment + self._offset_of(basis)) / SECOND - self.offset()

    def to_wall(self, basis: int, moment: int) -> float:
        """A moment of the file in epoch seconds."""
        if basis == self.basis:
            return moment / SECOND + self.offset()
        return (moment + self._offset_of(basis)) / SECOND

    def _offset_of(self, basis: int) -> int:
        if basis not in self._offsets:  # a boot that came after the last look
            with suppress(StoreError):
                self._offsets = dict(self._read("SELECT n, offset FROM boot"))
        return self._offsets.get(basis, 0)


def boot_name(clock: Clock) -> str:
    """Names the boot that the clock's elapsed seconds count from; the same in every process that shares that clock."""
    if not isinstance(clock, SystemClock):
        name = getattr(clock, "boot", None)
        return str(name) if name else f"clock {_OWN}:{id(clock)}"
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        # A time namespace (containers, seldom) has an elapsed clock of its own.
        return f"{boot}:{os.stat('/proc/self/ns/time').st_ino}"
    except OSError:
        return f"process {_OWN}"  # no way to tell boots apart: to other processes our delays then count by the wall clock


_OWN = uuid.uuid4()
