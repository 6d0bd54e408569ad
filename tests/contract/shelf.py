"""A store with its clock, and short words for what the tests of the store contract do with it.

Rows are told apart by their ids: a store may give another object for the same job each time. What a test settles is the row that the claim
gave. Entries are what `Store.entry` makes of a row, as in a timer; the room that they would wait in is the test itself.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import Any

from jobwheel import IJob, State
from jobwheel.opening import find_member
from jobwheel.order import Intake
from jobwheel.row import Entry, Row
from jobwheel.services import as_services
from jobwheel.settings import from_mapping
from jobwheel.store import Claim, Query, Store
from jobwheel.testing import START, ManualClock
from jobwheel.verdict import SUCCEEDED, Verdict


@dataclass
class Note(IJob, kind="test_stores.note"):
    text: str = ""

    def run(self) -> None: ...


@dataclass
class Other(Note, kind="test_stores.other", priority=3):
    pass


@dataclass
class Two(Note, kind="test_stores.two", max_running=2):
    pass


@dataclass
class Once(Note, kind="test_stores.once", on_crash="interrupt"):
    pass


class Shelf:
    """`Shelf(kind, path, clock, max_pending=..., store={...})`; its room is new and wants everything."""

    def __init__(self, kind: str, path: str, clock: ManualClock | None = None, **settings: Any) -> None:
        self.clock = clock or ManualClock()
        self.path = path
        section = {"kind": kind, "path": path, "durability": "process", **settings.pop("store", {})}
        self.settings = from_mapping({"store": section, **settings})
        self.store: Store = find_member("store.kind", kind)(self.clock, self.settings)
        self.store.open()
        self.store.new_room()
        self.store.window(inf)
        self.desk = Intake(self.clock, as_services(None), self.store.durable)

    def row(self, text: str = "", delay: float | None = None, job: IJob | None = None, **given: Any) -> Row:
        return self.desk.row(job or Note(text), delay, **given)

    def add(self, text: str = "", delay: float | None = None, if_exists: Any = "replace", **given: Any) -> Row:
        """Adds a row and arms it."""
        row = self.row(text, delay, **given)
        held, _ = self.store.add(row, if_exists)
        assert held is row
        self.entries(row)
        return row

    def put(self, row: Row, if_exists: Any = "replace") -> tuple[int, int | None]:
        """The ids of what `Store.add` answers."""
        held, replaced = self.store.add(row, if_exists)
        return held.id, replaced and replaced.id

    def entries(self, *rows: Row) -> list[Entry]:
        return [entry for row in rows if (entry := self.store.entry(row)) is not None]

    def claims(self, *rows: Row) -> Claim:
        return self.store.claim(self.entries(*rows))

    def claim(self, *rows: Row) -> list[Row]:
        """The rows that are the caller's to run and to settle."""
        return self.claims(*rows).rows

    def claimed(self, *rows: Row) -> list[int]:
        return ids_of(self.claim(*rows))

    def running(self, text: str = "", **given: Any) -> Row:
        row = self.add(text, **given)
        (claimed,) = self.claim(row)
        assert claimed.id == row.id
        return claimed

    def ended(self, text: str = "", verdict: Verdict = SUCCEEDED, **given: Any) -> Row:
        row = self.running(text, **given)
        assert self.store.settle(row, row.attempt, verdict) is verdict.state
        return row

    def state(self, ref: Any) -> State | None:
        job = self.store.get(ref)
        return None if job is None else job.state

    def attempt(self, ref: Any) -> int:
        job = self.store.get(ref)
        assert job is not None
        return job.attempt

    def ids(self, **query: Any) -> list[int]:
        return [job.id for job in self.store.find(Query(**query))]

    def due(self, ref: Any) -> float:
        """Seconds from the moment at which the clock began."""
        job = self.store.get(ref)
        assert job is not None
        return (job.due - datetime.fromtimestamp(START, UTC)).total_seconds()

    def sweep(self, want: int = 1000) -> list[Any]:
        """Entries of what is overdue, oldest first, and then of what falls due about now."""
        sweep = self.store.sweep(want)
        return [*sweep.overdue, *sweep.entries]

    def swept(self, want: int = 1000) -> list[int]:
        return ids_of(self.sweep(want))

    def counted(self) -> dict[str, int]:
        counts = self.store.counts()
        live = {"scheduled": counts.scheduled, "paused": counts.paused, "running": counts.running, "unresolvable": counts.unresolvable}
        return {name: count for name, count in {**live, **{state.value: count for state, count in counts.ended.items()}}.items() if count}

    def check(self) -> None:
        """What `counts` says is what `find` sees."""
        seen = Counter(job.state.value for job in self.store.find(Query(limit=10**6)))
        assert {name: count for name, count in self.counted().items() if not State(name).ended} == {
            name: count for name, count in seen.items() if not State(name).ended
        }


def ids_of(rows: Iterable[Any]) -> list[int]:
    """Of rows, entries or pictures."""
    return [row.id for row in rows]


def same(row: Any, other: Any) -> bool:
    """They are there, and stand for the same job."""
    return row is not None and other is not None and row.id == other.id


def at(seconds: float) -> datetime:
    """That many seconds after the clock's beginning, as a date."""
    return datetime.fromtimestamp(START + seconds, UTC)


def together(*works: Callable[[], Any]) -> list[Any]:
    """Runs them at the same moment, each on a thread, and gives their answers in order; an exception is an answer too."""
    barrier = threading.Barrier(len(works))
    answers: list[Any] = [None] * len(works)

    def run(number: int, work: Callable[[], Any]) -> None:
        barrier.wait(10)
        try:
            answers[number] = work()
        except Exception as error:
            answers[number] = error

    threads = [threading.Thread(target=run, args=(number, work), daemon=True) for number, work in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "a move of the store waits for ever"
    return answers
