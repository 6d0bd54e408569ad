"""The store contract: what jobs exist, in which state. Every method is one atomic move; members live in `jobwheel/stores/`.

`TimerManager` and `Dispatcher` call it, from any thread and from several at once. A store calls nobody: it wakes no room,
starts no job, tells no listener. Times are elapsed seconds of the store's clock unless they are called wall.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

from jobwheel.row import Entry, Row, ScheduledJob
from jobwheel.state import State
from jobwheel.verdict import Onward, Verdict

Ref = ScheduledJob | int | str
"""How users name a job: the snapshot, its id, or its key (the live job, else the latest ended one)."""

IfExists = Literal["replace", "keep", "error"]


class Claim(NamedTuple):
    """The answer to a claim: rows that are RUNNING now and the caller's to run, and entries to arm again."""

    rows: list[Row]
    later: list[Entry]
    """Due later than the caller believed (touched, clock stepped), or just being changed by another thread."""
    held: list[tuple[str, Entry]] = []  # noqa: RUF012 (never written to)
    """Due, but `max_running` of its kind (named) run already: to be claimed when one of them ends."""


class Sweep(NamedTuple):
    """What a sweep found: entries that this process does not hold yet, and rows that ended since their process died."""

    entries: list[Entry] = []  # noqa: RUF012 (never written to)
    """Due about now: to be armed."""
    overdue: list[Entry] = []  # noqa: RUF012
    """Of a backlog, oldest first."""
    ended: list[Row] = []  # noqa: RUF012
    more: bool = False
    """There were more overdue ones than were wanted."""
    trouble: Exception | None = None
    """What the store failed with after some of it was done."""
    room: dict[str, int] = {}  # noqa: RUF012
    """Of each kind with a `max_running`: how many more of it may run, since runs ended in other processes too."""


@dataclass(frozen=True, slots=True)
class Query:
    """What `find` looks for; None in a field means any. `after` is the id that the page before ended with."""

    states: frozenset[State] | None = None
    kind: str | None = None
    tag: str | None = None
    key: str | None = None
    text: str | None = None
    after: int = 0
    limit: int = 100


@dataclass(frozen=True, slots=True)
class Counts:
    """How many jobs are in each state now; of the ended ones, how many have ended so since the store was made."""

    scheduled: int = 0
    paused: int = 0
    running: int = 0
    unresolvable: int = 0
    ended: dict[State, int] = field(default_factory=dict)


class Store(ABC):
    """See the module. `now` always comes from the clock that the store was made with, `Store(clock, settings)`."""

    durable: ClassVar[bool]
    """What it acknowledged outlives the process; payloads must then be encodable, which `TimerManager` checks at the add."""
    shared: ClassVar[bool]
    """Other processes may see and claim its rows."""

    def open(self) -> None:
        """Makes it ready; called at the first use in a process. Idempotent."""

    def close(self, patience: float = 5.0) -> None:
        """Lets go of files and connections, waiting for other processes for about so many seconds; `open` may follow."""

    @abstractmethod
    def add(self, row: Row, if_exists: IfExists) -> tuple[Row, Row | None]:
        """Lets `row` exist, with an id; gives (the row that now holds, the row that it replaced).

        With "keep" the first may be another one; with "replace" too, if that is the same recurring job (`recurring.same`): it goes on as it
        is, with the priority and the tags of `row`. Raises `JobExists` ("error") or `TooManyPending`; then nothing changed.
        """

    @abstractmethod
    def add_many(self, rows: Sequence[tuple[Row, IfExists]]) -> list[tuple[Row, Row | None]]:
        """The same for many at once, in order: all of them or, when it raises, none."""

    @abstractmethod
    def claim(self, entries: Sequence[Entry]) -> Claim:
        """SCHEDULED -> RUNNING for those that still are and whose due moment is here, attempt counted, `row.run` fresh.

        Of several claimers of one row exactly one gets it. Entries that are neither in `rows` nor in `later` need no care any more.
        """

    @abstractmethod
    def settle(self, row: Row, attempt: int, verdict: Verdict) -> State | None:
        """Writes the verdict of run number `attempt` down and gives the state it led to; SCHEDULED: the row must be armed.

        None: that run was settled before, and nothing was written. An `Again` becomes CANCELLED where `cancel` was asked for
        meanwhile, and FAILED where a newer job took the key; an `Onward` CANCELLED, and its outcome.
        """

    def settle_many(self, settlements: Sequence[tuple[Row, int, Verdict]], patience: float = 5.0) -> list[State | None]:  # noqa: ARG002
        """The same for several runs at once; it waits for other processes for about so many seconds at most."""
        return [self.settle(row, attempt, verdict) for row, attempt, verdict in settlements]

    def part(self, row: Row, onward: Onward) -> Row | None:  # noqa: ARG002 (for now)
        """A claimed recurring job goes on at once, and its run becomes a job of its own, without a key: gives that one, RUNNING.

        None: the row is not the caller's any more.
        """
        return None

    @abstractmethod
    def hand_back(self, rows: Iterable[Row], patience: float = 5.0) -> list[Row]:
        """RUNNING -> SCHEDULED for claimed rows that were not started, their attempt uncounted."""

    @abstractmethod
    def cancel(self, ref: Ref) -> Row | None:
        """SCHEDULED, PAUSED or UNRESOLVABLE -> CANCELLED; the row, or None. A running one is asked to stop and gets no other attempt.

        A store on disk gives of the row only what tells which one it was.
        """

    def cancel_many(self, ids: Sequence[int]) -> list[Row]:
        """Cancels those of them that wait, and gives them."""
        return [row for id in ids if (row := self.cancel(id)) is not None]

    @abstractmethod
    def touch(self, ref: Ref, delay: float | None) -> tuple[Row, bool] | None:
        """Due moment to now + `delay` (None: its own). Gives the row and whether it must be armed (it is due earlier than before)."""

    @abstractmethod
    def reschedule(self, ref: Ref, due: float, wall: float | None) -> Row | None:
        """A new due moment for a waiting job (`wall`: on the wall clock); the row must be armed unless it is paused."""

    @abstractmethod
    def pause(self, ref: Ref) -> Row | None:
        """SCHEDULED -> PAUSED."""

    @abstractmethod
    def resume(self, ref: Ref) -> Row | None:
        """PAUSED -> SCHEDULED; the row must be armed. A recurring job goes to its next moment (`recurring.resumed`)."""

    @abstractmethod
    def retry(self, ref: Ref) -> Row | None:
        """FAILED, MISSED or INTERRUPTED -> SCHEDULED, due now. None also where another live job holds its key."""

    def entry(self, row: Row) -> Entry | None:
        """What a room is to hold for a row that waits. None: nothing now, since it is far away; a later `window` has it."""
        return row

    def disown(self, entry: Entry | Row) -> None:
        """The entry, or the one of this row, was armed in a room that is gone."""

    def dropped(self, row: Row) -> Entry | None:
        """What a room may still hold for a row that was cancelled or paused, and is to forget."""
        return row

    @abstractmethod
    def reanchor(self) -> list[Entry]:
        """After a step of the wall clock: entries of wall-clock jobs, due moments derived anew, to be armed."""

    def waits(self, entry: Entry) -> bool:  # noqa: ARG002 (for those that can tell for nothing)
        """False if the entry certainly does not wait any more; may only be asked where it costs nothing."""
        return True

    def new_room(self) -> None:
        """A room begins that holds nothing yet."""

    @abstractmethod
    def offset(self) -> float:
        """Wall minus elapsed clock in seconds, by which it makes its pictures."""

    @abstractmethod
    def window(self, until: float) -> list[Entry]:
        """Entries of SCHEDULED rows due before `until` that the room does not hold yet; a shared store leaves the overdue to `sweep`.

        A store that is not shared gives all there are, to a room that starts. Where there are many a store on disk gives fewer at a time:
        it is asked again and again, and what it left out is found by a later `window` or `sweep` in time.
        """

    def sweep(self, want: int) -> Sweep:  # noqa: ARG002 (for those that share)
        """For a shared store, about once a second: sees to what other processes did and left, and forgets what history need not keep.

        Gives entries of jobs that this process does not hold: all that fall due about now, and about `want` that are overdue.
        """
        return Sweep()

    def overdue(self) -> float | None:
        """Due moment of the oldest SCHEDULED row that is due and that this process could run; None if there is none or it is not known."""
        return None

    @abstractmethod
    def get(self, ref: Ref) -> ScheduledJob | None:
        """A picture of the job, ended ones included while history keeps them."""

    @abstractmethod
    def find(self, query: Query) -> list[ScheduledJob]:
        """A page in order of id."""

    @abstractmethod
    def ids(self, query: Query) -> list[int]:
        """The ids of all that match, without pictures; `limit` does not count."""

    @abstractmethod
    def counts(self) -> Counts:
        """Kept while writing: costs the same whatever waits."""
