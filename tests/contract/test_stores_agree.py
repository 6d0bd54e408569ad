"""One random life of many jobs, told to two stores by the same words: whatever a user can see is the same in both.

The memory store is the model. The other one is used by two timers in turn, so that what one does the other sees. What may differ is left
out: an ended job in memory has dropped its data; and what a step of the wall clock does to the moments of what is past, which are shown by
the clock as it was on a disk, and by the clock as it is in memory.
"""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from shelf import Note, Other, Shelf, Two, at

from jobwheel import BadValue, JobExists, ScheduledJob, State
from jobwheel.row import Row
from jobwheel.store import Query
from jobwheel.testing import START, ManualClock
from jobwheel.verdict import SUCCEEDED, Again, Cancelled, Failed, Missed, Succeeded

DURABLE = ["sqlite"]
KEYS = [None, None, "a", "b", "c"]
ERROR = 6
PLAIN = ("kind", "key", "state", "attempt", "priority", "tags", "error", "result", "cancel_requested", "progress", "log")


class Side:
    """One store as the test uses it: jobs by their numbers in the test, in place of the store's ids."""

    def __init__(self, shelves: list[Shelf]) -> None:
        self.shelves = shelves
        self.turn = 0
        self.ids: dict[int, int] = {}
        self.numbers: dict[int, int] = {}
        self.jobs: dict[int, Any] = {}
        self.runs: dict[int, Row] = {}

    @property
    def shelf(self) -> Shelf:
        """The one whose turn it is."""
        self.turn += 1
        return self.shelves[self.turn % len(self.shelves)]

    def add(self, number: int, job: Any, if_exists: Any, **given: Any) -> Any:
        shelf = self.shelf
        row = shelf.row(job=job, **given)
        try:
            held, replaced = shelf.store.add(row, if_exists)
        except JobExists as error:
            return "exists", self.numbers[error.id]
        if held is row:
            self.ids[number], self.numbers[row.id], self.jobs[number] = row.id, number, job
        return self.numbers[held.id], replaced and self.numbers[replaced.id]

    def claim(self, number: int) -> Any:
        shelf = self.shelves[0]  # one runs them all: each limits by itself what it runs of a kind
        row = shelf.row(job=self.jobs[number])
        row.id = self.ids[number]
        if not shelf.store.shared:
            (row,) = [entry for entry in shelf.store.window(1e12) if entry.id == row.id] or [row]  # type: ignore[list-item]
        claim = shelf.store.claim([row])
        for run in claim.rows:
            self.runs[number] = run
        return [run.attempt for run in claim.rows]

    def settle(self, number: int, attempt: int, verdict: Any) -> Any:
        run = self.runs.get(number)
        return None if run is None else self.shelves[0].store.settle(run, attempt, verdict)

    def back(self, number: int) -> Any:
        run = self.runs.get(number)
        return None if run is None else len(self.shelves[0].store.hand_back([run]))

    def ref(self, number: int) -> Any:
        """A job's id; of a negative number a key."""
        return KEYS[-number] if number < 0 else self.ids[number]

    def move(self, name: str, number: int, *given: Any) -> Any:
        try:
            answer = getattr(self.shelf.store, name)(self.ref(number), *given)
        except BadValue:
            return "refused"
        if answer is None:
            return None
        row = answer[0] if name == "touch" else answer
        return self.numbers[row.id], row.state

    def seen(self) -> dict[int, Any]:
        """All that can be seen of all jobs."""
        jobs = self.shelf.store.find(Query(limit=10**6))
        return {self.numbers[job.id]: _seen(job) for job in jobs}


def _seen(job: ScheduledJob) -> Any:
    if job.state.ended or job.state is State.RUNNING:
        return tuple(getattr(job, name) for name in PLAIN)
    return *(getattr(job, name) for name in PLAIN), round(job.due.timestamp() - START, 4), job.job


def _alike(model: dict[int, Any], other: dict[int, Any]) -> bool:
    """A claim lets memory forget what the attempt before failed with."""
    if model == other:
        return True
    return model.keys() == other.keys() and all(
        one == theirs or (one[ERROR] is None and one == (*theirs[:ERROR], None, *theirs[ERROR + 1 :]) and one[2] is not State.SUCCEEDED)
        for one, theirs in zip(model.values(), (other[number] for number in model), strict=True)
    )


@pytest.fixture(params=DURABLE)
def sides(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    clock = ManualClock()
    settings: dict[str, Any] = {"store": {"keep": 10_000}}
    model = Side([Shelf("memory", "unused.db", clock, **settings)])
    others = Side([Shelf(request.param, f"{tmp_path}/jobs.db", clock, **settings) for _ in range(2)])
    yield clock, model, others
    for shelf in others.shelves:
        shelf.store.close()


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_done_to_both_is_seen_of_both(sides: tuple[ManualClock, Side, Side], seed: int) -> None:  # noqa: C901 (many moves)
    clock, model, other = sides
    random = Random(seed)
    done: list[str] = []

    def both(what: str, act: Callable[[Side], Any]) -> None:
        answers = act(model), act(other)
        done.append(f"{what} -> {answers[0]}")
        assert answers[0] == answers[1], done[-12:]

    for number in range(400):
        jobs = list(model.ids)
        one = random.choice(jobs[-25:]) if jobs else 0
        ref = one if random.random() < 0.7 else -random.randrange(2, 5)
        move = (
            "add" if not jobs else random.choice([*["add"] * 3, *["claim"] * 5, *["settle"] * 4, "back", "cancel", "touch", "move", *REST])
        )
        if move == "add":
            job = random.choice([Note, Note, Note, Other, Two])(str(number))
            order = _order(random, clock)
            if_exists = random.choice(["replace", "replace", "keep", "error"])
            both(f"add {number} {order} {if_exists}", lambda side: side.add(number, job, if_exists, **order))  # noqa: B023
        elif move == "claim":
            both(f"claim {one}", lambda side: side.claim(one))  # noqa: B023
        elif move == "settle":
            verdict = random.choice(
                [SUCCEEDED, Succeeded([1]), Failed("x", "t"), Again(0, "y"), Again(5, "z"), Cancelled("w"), Missed("v")]
            )
            attempt = random.choice([1, 2, model.runs[one].attempt if one in model.runs else 1])
            both(f"settle {one} {attempt} {verdict}", lambda side: side.settle(one, attempt, verdict))  # noqa: B023
        elif move == "back":
            both(f"hand back {one}", lambda side: side.back(one))  # noqa: B023
        elif move == "touch":
            delay = random.choice([None, 0, 5, 50])
            both(f"touch {ref} {delay}", lambda side: side.move("touch", ref, delay))  # noqa: B023
        elif move == "move":
            dated = random.random() < 0.4
            due = clock.elapsed() + random.choice([-1, 0, 5] if dated else [0, 5])
            wall = clock.wall() + due - clock.elapsed() if dated else None
            both(f"reschedule {ref} {due} {wall}", lambda side: side.move("reschedule", ref, due, wall))  # noqa: B023
        elif move == "time":
            clock.advance(random.choice([0.5, 3, 10]))
        elif move == "step":
            clock.set_wall(random.choice([-20, 20]))
            for shelf in (*model.shelves, *other.shelves):
                shelf.store.reanchor()
            done.append("the wall clock is stepped")
        elif move == "look":
            for shelf in (*model.shelves, *other.shelves):
                shelf.store.sweep(100)
        else:
            ref = one if move == "retry" else ref  # which one of a key ended last, a step of the wall clock may hide
            both(f"{move} {ref}", lambda side: side.move(move, ref))  # noqa: B023
        assert _alike(model.seen(), other.seen()), done[-12:]
        assert {shelf.counted() == model.shelf.counted() for shelf in other.shelves} == {True}, done[-12:]


REST = ["cancel", "pause", "pause", "resume", "resume", "retry", "retry", "time", "time", "step", "look"]


def _order(random: Random, clock: ManualClock) -> dict[str, Any]:
    order: dict[str, Any] = {"key": random.choice(KEYS)}
    kind = random.randrange(4)
    if kind == 0:
        order["at"] = at(clock.wall() - START + random.choice([-5, 0, 5]))
    elif kind == 1:
        order |= {"delay": 5, "max_wait": 12}
    elif kind == 2:
        order["delay"] = random.choice([0, 2.5, 60])
    if random.random() < 0.3:
        order |= {"tags": ["t"], "priority": random.choice([-5, 9])}
    return order
