"""Processes on one store's file, by plain words: a `Mate` is one's part in it, a `Peer` is a mate in a process of its own.

Answers are ids, states and pictures, which can be sent; a mate keeps by itself the entries that it armed and the rows that it runs.
Clocks are moved by the test alone: a peer's stands where the test's stands at each call.
"""

import os
import signal
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

from shelf import Shelf, ids_of

from jobwheel import ScheduledJob, State
from jobwheel.job import context_of
from jobwheel.row import Entry, Row
from jobwheel.testing import ManualClock
from jobwheel.verdict import SUCCEEDED, Verdict

HOUR = 3600.0
LIMIT = 30.0
"""Seconds after which a peer that has not answered hangs."""


class Mate:
    """One process's part, or one timer's: its store, what its room holds, what it runs."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self.store = shelf.store
        self.armed: dict[int, Entry] = {}
        self.runs: dict[int, Row] = {}
        self.store.new_room()
        self._load()

    def add(self, text: str = "", delay: float | None = None, if_exists: Any = "replace", armed: bool = True, **given: Any) -> int:
        """The id of the row that holds. `armed`: a timer is started there."""
        return self.put(text, delay, if_exists, armed, **given)[0]

    def put(self, text: str = "", delay: float | None = None, if_exists: Any = "replace", armed: bool = True, **given: Any) -> Any:
        """The ids of the row that holds and of the one that was replaced, or the name of the error."""
        row = self.shelf.row(text, delay, **given)
        try:
            held, replaced = self.store.add(row, if_exists)
        except Exception as error:
            return type(error).__name__
        if armed and held is row:
            self._arm(row)
        return held.id, replaced and replaced.id

    def put_many(self, count: int, key: str | None = None, if_exists: Any = "error") -> list[Any]:
        """`put` so many times; with keys `key`0, `key`1, ..."""
        return [self.put(key=key and f"{key}{number}", if_exists=if_exists) for number in range(count)]

    def _arm(self, row: Row | None) -> None:
        entry = None if row is None else self.store.entry(row)
        if row is not None and entry is not None:
            self.armed[row.id] = entry

    def look(self) -> list[int]:
        """What a keeper does: arms what sweep and window give, and tells of which jobs."""
        sweep = self.store.sweep(1000)
        entries: list[Any] = [*sweep.overdue, *sweep.entries]
        self.armed |= {entry.id: entry for entry in entries}
        return ids_of(entries) + self._load()

    def _load(self) -> list[int]:
        entries: list[Any] = self.store.window(self.shelf.clock.elapsed() + HOUR)
        self.armed |= {entry.id: entry for entry in entries}
        return ids_of(entries)

    def ended(self) -> list[tuple[int, State, str | None]]:
        """Jobs that a sweep found to have ended since their process died, in which state, and why."""
        sweep = self.store.sweep(1000)
        self.armed |= {entry.id: entry for entry in [*sweep.overdue, *sweep.entries]}  # type: ignore[attr-defined]
        return [(row.id, row.state, row.run and row.run.error) for row in sweep.ended]

    def claim(self, *ids: int) -> list[int]:
        """Claims armed entries; those that are to be armed again, or held until there is room for them, stay armed."""
        claim = self.store.claim([self.armed.pop(id) for id in ids])
        self.runs |= {row.id: row for row in claim.rows}
        again: list[Any] = [*claim.later, *(entry for _, entry in claim.held)]
        self.armed |= {entry.id: entry for entry in again}
        return ids_of(claim.rows)

    def claim_all(self) -> list[int]:
        """Claims what is armed, one by one."""
        return [id for one in list(self.armed) for id in self.claim(one)]

    def room(self, kind: str) -> int:
        """How many more of a limited kind may run, as a sweep tells the dispatcher."""
        sweep = self.store.sweep(1000)
        self.armed |= {entry.id: entry for entry in [*sweep.overdue, *sweep.entries]}  # type: ignore[attr-defined]
        return sweep.room[kind]

    def due_of(self, id: int) -> float | None:
        """Of an armed entry; None: there is none."""
        entry = self.armed.get(id)
        return None if entry is None else entry.due

    def settle(self, id: int, verdict: Verdict | None = None) -> State | None:
        """None for `SUCCEEDED`. Of a row that runs elsewhere: what a process would write that took the row for its own."""
        row = self.runs.get(id)
        if row is None:
            row = self.shelf.row()
            row.id, row.attempt, row.state = id, self.shelf.attempt(id), State.RUNNING
        state = self.store.settle(row, row.attempt, SUCCEEDED if verdict is None else verdict)
        if state is State.SCHEDULED:
            self._arm(row)
        return state

    def says(self, id: int, progress: tuple[Any, Any, str] | None, *lines: str) -> None:
        """What the job tells of itself while it runs here."""
        context = context_of(self.runs[id])
        context.progress_now = progress
        for line in lines:
            context.log(line)

    def hangs(self, id: int, yes: bool) -> None:
        """Whether the thread of a run goes on past its time limit."""
        context_of(self.runs[id]).hung = yes

    def hand_back(self, id: int) -> list[int]:
        return ids_of(self.store.hand_back([self.runs.get(id) or self._foreign(id)]))

    def _foreign(self, id: int) -> Row:
        row = self.shelf.row()
        row.id, row.attempt, row.state = id, self.shelf.attempt(id), State.RUNNING
        return row

    def asked_to_stop(self, id: int) -> bool:
        """What the run itself sees."""
        run = self.runs[id].run
        return run is not None and run.cancel_asked

    def cancel(self, ref: Any) -> bool:
        return self.store.cancel(ref) is not None

    def touch(self, ref: Any, delay: float | None = None) -> bool:
        touched = self.store.touch(ref, delay)
        if touched is not None and touched[1]:
            self._arm(touched[0])
        return touched is not None

    def reschedule(self, ref: Any, due: float, wall: float | None = None) -> bool:
        return self._moved(self.store.reschedule(ref, due, wall))

    def pause(self, ref: Any) -> bool:
        return self.store.pause(ref) is not None

    def resume(self, ref: Any) -> bool:
        return self._moved(self.store.resume(ref))

    def retry(self, ref: Any) -> bool:
        return self._moved(self.store.retry(ref))

    def _moved(self, row: Row | None) -> bool:
        if row is not None and row.state is State.SCHEDULED:
            self._arm(row)
        return row is not None

    def get(self, ref: Any) -> ScheduledJob | None:
        return self.store.get(ref)

    def state(self, ref: Any) -> State | None:
        return self.shelf.state(ref)

    def ids(self, **query: Any) -> list[int]:
        return self.shelf.ids(**query)

    def counted(self) -> dict[str, int]:
        return self.shelf.counted()

    def overdue(self) -> float | None:
        return self.store.overdue()

    def close(self) -> None:
        self.store.close()


class Peer:
    """A mate in a process of its own: its words are this one's; `begin` says one and `answer` waits for what it gives."""

    def __init__(self, kind: str, path: str, clock: ManualClock, **settings: Any) -> None:
        context = get_context("spawn")
        self._clock = clock
        self._line, line = context.Pipe()
        self.process = context.Process(target=_serve, args=(line, kind, path, clock.boot, settings), daemon=True)
        self.process.start()
        line.close()
        assert self.pid == self.process.pid

    def begin(self, word: str, *given: Any, **named: Any) -> None:
        self._line.send((word, given, named, self._clock.elapsed(), self._clock.wall()))

    def answer(self) -> Any:
        assert self._line.poll(LIMIT), "a peer does not answer"
        answer = self._line.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def __getattr__(self, word: str) -> Callable[..., Any]:
        def say(*given: Any, **named: Any) -> Any:
            self.begin(word, *given, **named)
            return self.answer()

        return say

    @property
    def pid(self) -> int:
        """Of its process, once that is ready."""
        self.begin("pid")
        return int(self.answer())

    def kill(self) -> None:
        """As a crash does: nothing is closed."""
        os.kill(self.process.pid or 0, signal.SIGKILL)
        self.process.join(LIMIT)

    def stop(self) -> None:
        """It stands still, as under a debugger, and goes on with `cont`."""
        os.kill(self.process.pid or 0, signal.SIGSTOP)

    def cont(self) -> None:
        os.kill(self.process.pid or 0, signal.SIGCONT)

    def end(self) -> None:
        """Whatever it does."""
        if self.process.is_alive():
            self.kill()
        self._line.close()


def _serve(line: Any, kind: str, path: str, boot: str, settings: dict[str, Any]) -> None:
    clock = ManualClock()
    clock.boot = boot
    mate: Mate | None = None
    while True:
        try:
            word, given, named, elapsed, wall = line.recv()
        except EOFError:
            return
        clock._elapsed, clock._wall = elapsed, wall
        try:
            mate = mate or Mate(Shelf(kind, path, clock, **settings))
            line.send(os.getpid() if word == "pid" else getattr(mate, word)(*given, **named))
        except Exception as error:
            line.send(AssertionError(f"in the peer: {type(error).__name__}: {error}"))
