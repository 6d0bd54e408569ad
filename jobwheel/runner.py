"""The runner: one attempt of one claimed row, step by step, to a verdict. The same code on every engine; it never writes a row.

Steps: see whether it is too late, begin the context, look the services up, enter the scope (Flask's app context), call `run`,
leave the scope, judge.
"""

import inspect
import logging
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from jobwheel.clock import Anchor, Clock
from jobwheel.delay import seconds
from jobwheel.errors import JobwheelError
from jobwheel.job import IJob, JobContext, context_of
from jobwheel.kind import Call
from jobwheel.log import logger
from jobwheel.recurring import grace
from jobwheel.retry import CancelJob, RetryJob
from jobwheel.row import Row
from jobwheel.services import Services
from jobwheel.verdict import SUCCEEDED, Again, Cancelled, Failed, Missed, Succeeded, Verdict

log = logger("jobwheel.run")

ERROR_LENGTH = 2000
TRACE_LENGTH = 20000

Scope = Callable[[JobContext], AbstractContextManager[Any]]
"""Made for each run and entered around it; it sees the run's exception."""


class TimedOut(JobwheelError):
    """The error text of a run that outlived its kind's `timeout`."""


class Runner:
    """Runs attempts for one timer; safe from any number of threads, since it keeps nothing of a run."""

    def __init__(self, clock: Clock, services: Services) -> None:
        self._clock = clock
        self._elapsed = clock.elapsed
        self._anchor = Anchor(clock)
        self._services = services
        self.scope: Scope | None = None

    def run(self, row: Row) -> Verdict:
        """One attempt in the calling thread. Whatever `run` raises, BaseExceptions included, becomes a verdict."""
        job = row.job
        assert job is not None, "only claimed rows are run"
        call, scope = row.kind.call, self.scope
        now = row.started = self._elapsed()
        if not row.kind.is_free and (missed := too_late(row, now)) is not None:
            row.started = None
            return missed
        try:
            if scope is None and call.is_plain and not call.wants_context:
                result = job.run()
            else:
                context = context_of(row)
                context.begin(now, self._anchor.offset())
                if scope is None:
                    result = job.run(context) if call.is_plain else self._call(job, call, context)
                else:
                    with scope(context):
                        result = self._call(job, call, context)
            return SUCCEEDED if result is None and row.run is None else self._judge_return(row, result)
        except BaseException as error:
            return self.judge_raise(row, error)

    async def run_async(self, row: Row) -> Verdict:
        """The same for a coroutine job, on the running event loop."""
        job = row.job
        assert job is not None, "only claimed rows are run"
        scope = self.scope
        now = row.started = self._elapsed()
        if (missed := too_late(row, now)) is not None:
            row.started = None
            return missed
        context = context_of(row)
        context.begin(now, self._anchor.offset())
        try:
            if scope is None:
                result = await self._call(job, row.kind.call, context)
            else:
                with scope(context):
                    result = await self._call(job, row.kind.call, context)
            return self._judge_return(row, result)
        except BaseException as error:
            return self.judge_raise(row, error)

    def _call(self, job: IJob, call: Call, context: JobContext) -> Any:
        given = {name: self._services.get(name) for name in call.services}
        if call.optional:
            present = self._services.names()
            given.update((name, self._services.get(name)) for name in call.optional if name in present)
        return job.run(context, **given) if call.wants_context else job.run(**given)

    def _judge_return(self, row: Row, result: Any) -> Verdict:
        if not row.kind.call.is_async and inspect.isawaitable(result):
            close = getattr(result, "close", None)
            if close is not None:
                close()
            return self.judge_raise(row, TypeError("run returned a coroutine that nobody awaits: declare it async def"))
        context = row.run
        if context is not None and context.timed_out:
            return self.timed_out(row)
        if context is not None and context.cancel_seen:
            return Cancelled("ended itself after cancel() asked for it")
        return SUCCEEDED if result is None else Succeeded(result)

    def judge_raise(self, row: Row, error: BaseException) -> Verdict:
        """The verdict on a run that ended by raising `error`; raises nothing itself."""
        try:
            context = row.run
            return self.timed_out(row) if context is not None and context.timed_out else self.judge(row, error)
        except BaseException as second:  # an exception class of the application's own can do anything when it is looked at
            return Failed(f"{type(error).__name__}, which could not be judged: {type(second).__name__}")

    def timed_out(self, row: Row) -> Verdict:
        """The verdict on a run that is past its time limit, whether it has ended or not: the same one when asked again."""
        context = context_of(row)
        context.timed_out = True
        if context.early is None:
            context.early = self.judge(row, TimedOut(f"still running after its timeout of {row.kind.options.timeout:g} seconds"))
        return context.early

    def judge(self, row: Row, error: BaseException) -> Verdict:
        """The verdict on an attempt that raised `error`; logs it unless the job ended itself."""
        if isinstance(error, CancelJob):
            return Cancelled(error.reason or None)
        if row.run is not None and row.run.cancel_asked:
            return Cancelled(text_of(error))
        if isinstance(error, RetryJob):
            return Again(seconds(error.delay), error.reason or None)
        wait = row.kind.options.retry.wait_after(row.nth, error)
        name, text = row.kind.name, text_of(error)
        if wait is None:
            self.tell(logging.ERROR, error, "job %d (%s) failed in attempt %d: %s", row.id, name, row.nth, text)
            return Failed(text, trace_of(error))
        again = "job %d (%s) raised in attempt %d and runs again in %.3g s: %s"
        self.tell(logging.WARNING, error, again, row.id, name, row.nth, wait, text)
        return Again(wait, text, trace_of(error))

    def tell(self, level: int, error: BaseException, text: str, *args: object) -> None:
        """Logs what there is to say of a run that raised. In a child process it is the parent that logs."""
        log.log(level, text, *args, exc_info=error)


def too_late(row: Row, now: float) -> Missed | None:
    """The verdict on a row that is later than its kind allows (`recurring.grace`); None if it may start."""
    limit = grace(row)
    if limit is None or now - row.due <= limit:
        return None
    return Missed(f"{now - row.due:.3f} s late, and misfire_grace_time is {limit:g} s")


def text_of(error: BaseException) -> str:
    """The error text of a run that raised `error`."""
    try:
        return f"{type(error).__name__}: {error}"[:ERROR_LENGTH]
    except BaseException:  # its own __str__ may raise
        return type(error).__name__


def trace_of(error: BaseException) -> str:
    """Its traceback, the end of it if it is long."""
    return "".join(traceback.format_exception(error))[-TRACE_LENGTH:]
