"""What users write: `IJob`, the job as a value; and what its `run` is given: `JobContext`."""

from __future__ import annotations

import inspect
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, ClassVar

from jobwheel.errors import BadType, UsageError
from jobwheel.kind import CatchUp, Isolation, Kind, OnCrash, Options, Overlap, read_call, register
from jobwheel.retry import Retry
from jobwheel.row import Row
from jobwheel.verdict import Verdict

LOG_LINES = 200
LINE_LENGTH = 2000


class IJob(ABC):
    """A job: a value whose dataclass fields are its data and whose `run` does the work.

    Fields: str, int, float, bool, None, bytes, datetime, date, time, timedelta, UUID, Decimal, Enum, dataclasses, and list, tuple, set,
    dict of these, annotated with their exact types. Objects of other kinds only with `store.kind: memory`.

    Options are keywords of the class statement, inherited by subclasses (but for `kind` and `aliases`):

    Args:
        kind: the stable name under which it is stored; default the qualified name of the class.
        aliases: former kinds, so that stored jobs of a renamed class still run.
        retry: a `Retry`; default one attempt.
        timeout: seconds after which a run is marked timed out and `ctx.cancel_requested` is set.
        priority: larger runs first when workers are scarce; default 0.
        max_running: how many of this kind, aliases included, may run at once: in all processes that share the store. In memory, in each
            timer. With a store on disk a run of a process that has died counts until that is noticed, which takes about a second.
        misfire_grace_time: seconds of lateness after which a job is dropped as `missed`; default None: late is not lost.
        on_crash: "rerun" (default) or "interrupt": what becomes of a run that its process did not survive. Kept for stores that
            survive their process; the memory store does not.
        overlap: for recurring jobs, when a run is due while the one before goes on: "skip" (default) it, "queue" one run that starts when
            that one has ended, or let them run in "parallel".
        catch_up: for recurring jobs, after a gap in which runs were missed: "coalesce" (default) runs once for all of them; "skip" goes on
            with the next one that is due; a number makes up for the latest so many, one after the other. With "skip" a run counts as
            missed when it could start only `misfire_grace_time` (default: one second) after its due moment.
        isolation: "process": each run is in a child process, which is killed at the time limit, so that a hang or a crash of native code
            costs one run; "thread": never; default: as the setting `workers.engine` says. The child imports the module of the class and
            makes the job anew from its data, which must have a stored form as for a store on disk; services come from the setting
            `services`; the result is what JSON makes of it (a tuple comes back as a list; what has no JSON form, as its repr). A run that
            is a coroutine, or has looked at `ctx.cancel_requested`, has one second from the time limit to the kill. A child that dies is
            a failed attempt (`ChildDied`), or with `on_crash="interrupt"` an interrupted job. What a job prints, and the logging of its
            own modules, goes where a fresh Python's would, to the output of the web process; that it failed is logged in the web process.

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
        catch_up: CatchUp | None = None,
        isolation: Isolation | None = None,
        **rest: Any,
    ) -> None:
        try:
            super().__init_subclass__(**rest)
        except TypeError as error:
            if not rest:
                raise
            raise BadType(f"{cls.__qualname__}: there is no class option {', '.join(rest)}; see jobwheel.IJob") from error
        given = {
            "retry": retry, "timeout": timeout, "priority": priority, "max_running": max_running,
            "misfire_grace_time": misfire_grace_time, "on_crash": on_crash, "overlap": overlap,
            "catch_up": catch_up, "isolation": isolation,
        }  # fmt: skip
        given = {name: value for name, value in given.items() if value is not None}
        before: Kind | None = getattr(cls, "jobwheel_kind", None)
        # @dataclass(slots=True) makes the class anew from a copy of its __dict__, without the keywords: they are in that copy.
        made_anew = "jobwheel_kind" in cls.__dict__ and before is not None and not given and kind is None and not aliases
        if made_anew and before is not None:
            name, aliases = before.name, before.aliases
            cls.__qualname__ = before.job_class.__qualname__  # dataclass sets it only after this
        else:
            name = _checked_name(cls, kind if kind is not None else cls.__qualname__)
            aliases = tuple(_checked_name(cls, alias) for alias in ((aliases,) if isinstance(aliases, str) else aliases))
        options = replace(before.options, **given) if before is not None else Options(**given)  # type: ignore[arg-type]
        if isinstance(inspect.getattr_static(cls, "run"), staticmethod | classmethod):
            raise BadType(f"{cls.__qualname__}.run is a static or class method; it is called on the job: def run(self, ...)")
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

    One thread runs the job and writes here; `cancel_asked`, `timed_out`, `superseded` and `hung` (settled as timed out, and its
    thread goes on) are set by others, each by one assignment.
    """

    # Not slots but class-level defaults: a run that needs none of them pays for none of them.
    error: str | None = None
    trace: str | None = None
    result: Any = None
    progress_now: tuple[int, int, str] | None = None
    timed_out: bool = False
    early: Verdict | None = None
    cancel_asked: bool = False
    cancel_seen: bool = False
    superseded: bool = False
    hung: bool = False
    lines: deque[str] | tuple[str, ...] = ()
    said: object = None  # what other processes can see of it; the store's
    _started: float = 0.0
    _offset: float = 0.0

    def __init__(self, row: Row) -> None:
        # No reference to the row: it refers to the context, and a cycle would leave every ended job to the garbage collector.
        self.job_id = row.id
        """The job's id, the same in every attempt."""
        self.key = row.key
        """The key the job was added with."""
        self.attempt = row.nth
        """1 in the first attempt; a recurring job counts those of each run by themselves."""
        self.due = row.due
        terms = row.terms
        self._nominal = row.due if terms is None or terms.nominal is None else terms.nominal
        self._wall = None if terms is None else terms.wall if terms.wall is not None else terms.date

    def begin(self, now: float, offset: float) -> None:
        """The run starts: `now` elapsed, `offset` from there to the wall clock. Called by the runner."""
        self._started = now
        self._offset = offset

    @property
    def scheduled_for(self) -> datetime:
        """The nominal due moment, aware, in UTC: the same in every attempt, however late the run is."""
        return datetime.fromtimestamp(self._nominal + self._offset if self._wall is None else self._wall, UTC)

    @property
    def started_at(self) -> datetime:
        """When this run started, aware, in UTC."""
        return datetime.fromtimestamp(self._started + self._offset, UTC)

    @property
    def lateness(self) -> float:
        """Seconds from the due moment of this attempt to its start; never negative."""
        return max(0.0, self._started - self.due)

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
        """Keeps a line with the job (the newest 200, each cut at 2000 characters); seen in `timer.get(id).log`: at once in
        this process, about a second later in others.
        """
        if not isinstance(self.lines, deque):
            self.lines = deque(maxlen=LOG_LINES)
        self.lines.append(str(text)[:LINE_LENGTH])

    def progress(self, done: int, total: int, text: str = "") -> None:
        """Tells how far the job is; seen in `timer.get(id).progress` as (done, total, text), as soon as a line of `log` is."""
        self.progress_now = (done, total, text)


_making = threading.RLock()  # held for a few instructions, and only where a run needs a context that it did not start with


def context_of(row: Row) -> JobContext:
    """The context of a RUNNING row; made now if its run did without one so far."""
    if row.run is None:
        with _making:
            if row.run is None:
                row.run = JobContext(row)
    return row.run


def _after_fork() -> None:
    global _making  # noqa: PLW0603 (the parent's may be held by a thread that the child does not have)
    _making = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
