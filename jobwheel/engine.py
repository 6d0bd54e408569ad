"""The engine contract: where a claimed row runs. It gets only rows that are due and claimed, and never a waiting one.

An engine calls `runner.run(row)` for each row and gives the verdict to its desk; it judges and writes nothing. Members live in
`jobwheel/engines/`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from jobwheel.row import Entry, Row
from jobwheel.verdict import Verdict


class Desk(Protocol):
    """Whom an engine reports to: the dispatcher. Its methods come from any thread of the engine, return soon and never raise."""

    @property
    def blocking(self) -> bool:
        """`done` may wait for a disk: not to be called where others wait for the caller, such as on an event loop."""
        ...

    def done(self, row: Row, attempt: int, verdict: Verdict) -> None:
        """The row's run number `attempt` came to `verdict`."""
        ...

    def timed_out(self, row: Row) -> None:
        """The row's present run is past its time limit and goes on; `done` follows, now or at its end."""
        ...

    def pump(self) -> None:
        """The engine has room for more."""
        ...

    def fault(self, where: str, error: BaseException) -> None:
        """A thread of the engine met an error outside of any job, and goes on: counted, and told the hooks of `on_error`."""
        ...

    def release(self, what: str) -> None:
        """There is room for one more of what `sift` held back under this name."""
        ...


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """How an engine is."""

    threads: int = 0
    busy: int = 0
    queued: int = 0
    """Claimed rows that wait for a worker."""
    hung: int = 0
    """Runs past their time limit whose thread has not ended yet."""
    children: int = 0
    """Child processes, idle ones included."""
    problem: str | None = None
    """In words, when it cannot do its work."""


class Engine(ABC):
    """See the module. `Engine(clock, settings, runner, desk)`; made for each start of the timer, a stopped one is not started again."""

    by_itself: ClassVar[bool] = True
    """It runs what it was given without further ado."""

    @abstractmethod
    def start(self) -> None:
        """Starts its threads. Raises `UsageError` if it cannot run anything at all; then none is left running."""

    @abstractmethod
    def room(self) -> int:
        """How many rows `submit` takes now; the back-pressure that leaves the rest unclaimed."""

    def sift(self, entries: list[Entry], hold: Callable[[str, Entry], None]) -> list[Entry]:  # noqa: ARG002 (for those that hold something)
        """Those of `entries` that it can take now; the others it gives to `hold` under a name of its own, see `Desk.release`."""
        return entries

    @abstractmethod
    def submit(self, rows: list[Row]) -> None:
        """Takes claimed rows over. Never blocks and never refuses."""

    @abstractmethod
    def withdraw(self) -> list[Row]:
        """Gives back what was submitted and not started; from now on it starts nothing. The caller submits nothing more."""

    @abstractmethod
    def stop(self, timeout: float) -> list[Row]:
        """Waits up to `timeout` seconds for the running rows, but never for the calling thread's own; gives those that still run."""

    @abstractmethod
    def inside_run(self) -> bool:
        """True when the calling thread is running a job."""

    @abstractmethod
    def health(self) -> EngineHealth:
        """How it is now."""
