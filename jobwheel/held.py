"""Due entries that are put aside, since as many of their kind, or of all coroutines, run as may: by the name of what is full.

Called by the dispatcher alone: entries are put aside while it pumps, and let go by whatever thread ends a run. A deque serves both;
an entry that is let go twice does no harm, since the claim decides.
"""

from collections import deque
from collections.abc import Callable

from jobwheel.row import Entry

ALONE = " alone"
"""Under this name are those that may run only by themselves, since they may be what kills their process. No kind has it: theirs have no
blanks at their ends."""
TIDY = 1000
"""Entries under one name from which on dead ones are looked for, each time that they have doubled."""


class Held:
    """By name, in order. `waits` tells whether an entry may still be of use."""

    def __init__(self, waits: Callable[[Entry], bool]) -> None:
        self._waits = waits
        self._by_name: dict[str, deque[Entry]] = {}
        self._tidy_at = TIDY

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def __len__(self) -> int:
        return sum(map(len, self._by_name.values()))

    def names(self) -> tuple[str, ...]:
        """Every name under which something was ever put aside."""
        return tuple(self._by_name)

    def put(self, name: str, entry: Entry) -> None:
        """Puts an entry aside."""
        waiting = self._by_name.setdefault(name, deque())
        waiting.append(entry)
        if len(waiting) > self._tidy_at:
            alive = {id(entry): entry for entry in tuple(waiting) if self._waits(entry)}
            self._by_name[name] = deque(alive.values())
            self._tidy_at = max(TIDY, 2 * len(alive))

    def take(self, name: str) -> Entry | None:
        """The one that waits longest under this name; None if there is none."""
        waiting = self._by_name.get(name)
        try:
            return waiting.popleft() if waiting else None
        except IndexError:  # another thread took it
            return None
