"""Faults that are planted into the store, so that the crash campaign is tested itself: each must be found by it.

`plant(name)` is called in a process of the campaign before it opens its timer. All that it patches is patched here, and it refuses to
patch what is not there any more: a fault that bites no longer would make a campaign look good that finds nothing.
"""

import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from checker import Report

from jobwheel.errors import StoreError
from jobwheel.stores.sqlite import claims, moves, schema
from jobwheel.stores.sqlite.claims import Claims
from jobwheel.stores.sqlite.file import Add
from jobwheel.stores.sqlite.group import Group
from jobwheel.stores.sqlite.lockfile import LockFile
from jobwheel.stores.sqlite.records import COLUMNS
from jobwheel.stores.sqlite.rescue import Rescue
from jobwheel.stores.sqlite.store import SqliteStore

GAP = 0.03
"""Seconds between the two steps of what should be one."""
LATER = 0.05
"""Seconds after its acknowledgement at which an add is written."""
SETTLED_AGAIN = 0.3
"""Seconds after a settlement at which it is written once more."""
BEAT, LEASE = 0.1, 0.4
"""Seconds between two signs of life, and after the last one until a process counts as dead."""


def swap(owner: type, name: str, make: Callable[[Any], Any]) -> None:
    """Puts in the place of a method what `make` makes of it."""
    if name not in owner.__dict__:
        raise LookupError(f"{owner.__qualname__}.{name} is not there any more: this planted fault bites no longer, mend it")
    setattr(owner, name, make(owner.__dict__[name]))


def alter(name: str, *changes: tuple[str, str]) -> None:
    """Puts other conditions into a statement of `claims`."""
    statement: str = getattr(claims, name)
    for before, after in changes:
        if statement.count(before) != 1:
            raise LookupError(f"{before!r} is not once in claims.{name}: this planted fault bites no longer, mend it")
        statement = statement.replace(before, after)
    setattr(claims, name, statement)


def acknowledge_before_commit() -> None:
    """An add returns at once, and is written a moment later."""

    def make(submit: Any) -> Any:
        def early(self: Group, write: Any) -> Any:
            if not isinstance(write, Add):
                return submit(self, write)
            write.deadline += LATER
            threading.Timer(LATER, submit, (self, write)).start()
            return write.result

        return early

    swap(Group, "submit", make)


def claim_without_state_check() -> None:
    """A claim takes whatever is due, in any state."""
    alter("CLAIM", (f"AND +state IN ({schema.SCHEDULED}, {schema.PARKED})", ""))


def cancel_by_check_then_delete() -> None:
    """A cancel looks whether the job waits, and ends it in a second step."""

    def make(cancel: Any) -> Any:
        def in_two_steps(self: SqliteStore, ref: Any) -> Any:
            file = self._file
            key_or_id = ref if isinstance(ref, int | str) else ref.id
            found = file.read(moves.BY_KEY if isinstance(key_or_id, str) else moves.BY_ID, (key_or_id,))
            if not found or found[0][5] not in (schema.SCHEDULED, schema.PAUSED):
                return cancel(self, ref)
            time.sleep(GAP)
            end = f"UPDATE job SET state = {schema.CANCELLED}, ended = ?, owner = NULL WHERE id = ? RETURNING {COLUMNS}"
            return self._row(file.write_one(end, (self._moments.wall(), found[0][0]), True, lambda records: records[0]))

        return in_two_steps

    swap(SqliteStore, "cancel", make)


def no_rescue() -> None:
    """What a dead process ran stays as it is."""
    swap(Rescue, "look", lambda look: lambda self, file: [])


def settle_again() -> None:
    """Of ten settlements three are written once more, later; of three more the answer is lost, so that the dispatcher writes them again.

    That is no fault: a settlement of a run that is over changes nothing. It stands for the process that was taken for dead, which with
    the kernel's locks no living one is.
    """

    def make(settle: Any) -> Any:
        def twice(self: Claims, file: Any, settlements: Any, patience: float) -> Any:
            states = settle(self, file, settlements, patience)
            chance = random.random()
            if chance < 0.3:
                again = threading.Timer(SETTLED_AGAIN, settle, (self, file, list(settlements), patience))
                again.daemon = True
                again.start()
            elif chance < 0.6:
                raise StoreError("planted: it was written, and the answer is lost")
            return states

        return twice

    swap(Claims, "settle", make)


def settle_without_fencing() -> None:
    """A settlement is written whoever owns the row, in whichever attempt and state it is."""
    attempt = ("AND job.attempt = json_extract(run.value, '$[1]')", "")
    alter("SUCCEED", (f"AND +job.state = {schema.RUNNING} AND +job.owner = ?", "AND ? NOT NULL"), attempt)
    alter("SETTLE", (f"AND +job.state = {schema.RUNNING} AND +job.owner = :owner", "AND :owner NOT NULL"), attempt)
    settle_again()


def heartbeat_instead_of_lock() -> None:
    """A process lives while it touches a file now and then, and not while the kernel keeps its lock."""

    def beating(live: Any) -> Any:
        def begin(self: LockFile, number: int) -> bool:
            def beat() -> None:
                while True:
                    os.close(os.open(f"{self.path}-beat-{number}", os.O_CREAT | os.O_WRONLY))
                    os.utime(f"{self.path}-beat-{number}")
                    time.sleep(BEAT)

            threading.Thread(target=beat, daemon=True).start()
            answer: bool = live(self, number)
            return answer

        return begin

    def by_age(self: LockFile, number: int) -> bool:
        try:
            return time.time() - os.stat(f"{self.path}-beat-{number}").st_mtime > LEASE
        except FileNotFoundError:
            return False

    swap(LockFile, "live", beating)
    swap(LockFile, "is_dead", lambda is_dead: by_age)


@dataclass(frozen=True)
class Mutant:
    """A planted fault, and the plan under which it causes violations of one of these sorts at least. No sorts: it must do no harm."""

    name: str
    plant: Callable[[], None]
    sorts: tuple[str, ...]
    plan: dict[str, Any] = field(default_factory=dict)

    def found(self, report: Report) -> bool:
        return bool(set(self.sorts) & report.sorts.keys()) if self.sorts else not report.violations


TWICE = ("second run", "two at once", "ran after its end")
MUTANTS = {
    mutant.name: mutant
    for mutant in (
        Mutant("acknowledge before commit", acknowledge_before_commit, ("lost",), {"threads": 8, "kills": 4, "gap": (0.4, 0.8)}),
        Mutant(
            "claim without the state check",
            claim_without_state_check,
            (*TWICE, "ran after cancel"),
            {"processes": 2, "threads": 4, "kills": 2, "gap": (0.8, 1.2)},
        ),
        Mutant(
            "cancel by check-then-delete",
            cancel_by_check_then_delete,
            ("cancelled while running", "ran after cancel"),
            {"processes": 2, "threads": 8, "kills": 2, "gap": (1.0, 1.5)},
        ),
        Mutant("no rescue", no_rescue, ("lost", "not drained"), {"threads": 8, "kills": 4, "gap": (0.4, 0.8)}),
        Mutant("settlements written twice, fenced", settle_again, (), {"processes": 2, "threads": 4, "kills": 2, "gap": (1.5, 2.0)}),
        Mutant("settle without fencing", settle_without_fencing, TWICE, {"processes": 2, "threads": 4, "kills": 2, "gap": (1.5, 2.0)}),
        Mutant(
            "heartbeat instead of the lock",
            heartbeat_instead_of_lock,
            TWICE,
            {"processes": 3, "threads": 8, "kills": 2, "slow": 10, "limit": 4.0, "stops": 600, "gap": (0.4, 0.6), "stop": (1.6, 1.8)},
        ),
    )
}


def plant(name: str) -> None:
    """Plants the fault of this name into this process."""
    MUTANTS[name].plant()
