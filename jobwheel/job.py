"""What users write: `IJob`, the job as a value; and what its `run` is given: `JobContext`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, ClassVar

from jobwheel.errors import BadType, UsageError
from jobwheel.kind import Kind, OnCrash, Options, Overlap, read_call, register
from jobwheel.retry import Retry
from jobwheel.row import Row
from jobwheel.verdict import Verdict

LOG_LINES = 200
LINE_LENGTH = 2000


class IJob(ABC):
    """A job: a value whose dataclass fields are its data and whose `run` does the work.

    Options are keywords of the class statement, inherited by subclasses (but for `kind` and `aliases`):

    Args:
        kind: the stable name under which it is stored; default the qualified name of the class.
        aliases: former kinds, so that stored jobs of a renamed class still run.
        retry: a `Retry`; default one attempt.
        timeout: seconds after which a run is marked timed out and `ctx.cancel_requested` is set.
        priority: larger runs first when workers are scarce; default 0.
        max_running: how many of this kind may run at once in this process.
        misfire_grace_time: seconds of lateness after which a job is dropped as `missed`; default None: late is not lost.
        on_crash: "rerun" (default) or "interrupt": what becomes of a run that its process did not survive.
        overlap: for recurring jobs: "skip" (default), "queue" or "parallel".

    `run` takes nothing or a first parameter for the `JobContext`, and keyword-only parameters, each a service looked up by
    name when the job runs. It may be `async def`. What it returns is kept as the job's result.

    Raises:
        UsageError: at the class statement: a kind that another class holds, or a `run` that could never be called.
    """

    jobwheel_kind: ClassVar[Kind]

    def __init_subclass__(
        cls,
        *,
        kind: str | None = None,
        aliases: tuple[str, ...] = (),
        retry: Retry | None = None,
        timeout: float | None = None,
        priority: int | None = None,
        max_running: int | None = None,
        misfire_grace_time: float | None = None,
        on_crash: OnCrash | None = None,
        overlap: Overlap | None = None,
        **rest: Any,
    ) -> None:
        super().__init_subclass__(**rest)
        given = {
            "retry": retry, "timeout": timeout, "priority": priority, "max_running": max_running,
            "misfire_grace_time": misfire_grace_time, "on_crash": on_crash, "overlap": overlap,
        }  # fmt: skip
        given = {name: value for name, value in given.items() if value is not None}
        before: Kind | None = getattr(cls, "jobwheel_kind", None)
        # @dataclass(slots=True) makes the class anew from a copy of its __dict__, without the keywords: they are in that copy.
        made_anew = "jobwheel_kind" in cls.__dict__ and before is not None and not given and kind is None and not aliases
        if made_anew and before is not None:
            name, aliases = before.name, before.aliases
        else:
            name = _checked_name(cls, kind if kind is not None else cls.__qualname__)
            aliases = tuple(_checked_name(cls, alias) for alias in ((aliases,) if isinstance(aliases, str) else aliases))
        options = replace(before.options, **given) if before is not None else Options(**given)  # type: ignore[arg-type]
        call = read_call(cls.run, cls.__qualname__)
        cls.jobwheel_kind = Kind(name, aliases, cls, options, call)
        if not getattr(cls.run, "__isabstractmethod__", False):
            register(cls.jobwheel_kind)

    @abstractmethod
    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Does the work; see the class for the parameters it may take. Raising means a failed attempt."""
        # (*args: Any, **kwargs: Any) is the one signature that mypy lets every override narrow.


def _checked_name(cls: type, name: str) -> str:
    if not isinstance(name, str):
        raise BadType(f"{cls.__qualname__}: kind and aliases are texts, got {name!r}")
    if not name or name != name.strip() or "\0" in name:
        raise UsageError(f"{cls.__qualname__}: the kind {name!r} is empty or has blanks or NUL at an end; it is stored, so keep it plain")
    return name


class JobContext:
    """What one run knows of itself, and its way to speak: the first argument of `IJob.run`.

    Made when the row is claimed. One thread runs the job and writes here; `cancel_asked`, `timed_out` and `superseded` are set
    by others, each by one assignment.
    """

    # Not slots but class-level defaults: a run that needs none of them pays for none of them.
    ended: float | None = None
    error: str | None = None
    trace: str | None = None
    result: Any = None
    progress_now: tuple[int, int, str] | None = None
    timed_out: bool = False
    early: Verdict | None = None
    cancel_asked: bool = False
    cancel_seen: bool = False
    superseded: bool = False
    lines: deque[str] | tuple[str, ...] = ()
    _started: float | None = None
    _offset: float = 0.0

    def __init__(self, row: Row, kind: Kind) -> None:
        self.kind = kind
        self._row = row
        self._due = row.due

    def begin(self, now: float, offset: float) -> None:
        """The run starts: `now` elapsed, `offset` from there to the wall clock. Called by the runner."""
        self._started = now
        self._offset = offset

    @property
    def job_id(self) -> int:
        """The job's id, the same in every attempt."""
        return self._row.id

    @property
    def key(self) -> str | None:
        """The key the job was added with."""
        return self._row.key

    @property
    def attempt(self) -> int:
        """1 in the first run."""
        return self._row.attempt

    @property
    def scheduled_for(self) -> datetime:
        """The nominal due moment, aware, in UTC: the same in every attempt, however late the run is."""
        terms = self._row.terms
        if terms is not None and terms.wall is not None:
            return datetime.fromtimestamp(terms.wall, UTC)
        nominal = self._due if terms is None or terms.nominal is None else terms.nominal
        return datetime.fromtimestamp(nominal + self._offset, UTC)

    @property
    def started_at(self) -> datetime:
        """When this run started, aware, in UTC."""
        return datetime.fromtimestamp(self._due if self._started is None else self._started + self._offset, UTC)

    @property
    def lateness(self) -> float:
        """Seconds from the due moment of this attempt to its start; never negative."""
        return 0.0 if self._started is None else max(0.0, self._started - self._due)

    @property
    def begun(self) -> float | None:
        """Elapsed seconds at the start; None while the run waits for a worker."""
        return self._started

    @property
    def cancel_requested(self) -> bool:
        """True once `timer.cancel` was called for this running job, or its time limit is over. A long job looks at it now and then.

        A job that has seen True after a cancel and then returns ends as cancelled.
        """
        if self.cancel_asked:
            self.cancel_seen = True
            return True
        return self.timed_out

    def log(self, text: str) -> None:
        """Keeps a line with the job (the newest 200, each cut at 2000 characters); seen in `timer.get(id).log`."""
        if not self.lines:
            self.lines = deque(maxlen=LOG_LINES)
        self.lines.append(str(text)[:LINE_LENGTH])  # type: ignore[union-attr]

    def progress(self, done: int, total: int, text: str = "") -> None:
        """Tells how far the job is; seen in `timer.get(id).progress` as (done, total, text)."""
        self.progress_now = (done, total, text)
