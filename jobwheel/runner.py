"""The runner: one attempt of one claimed row, step by step, to a verdict. The same code on every engine; it never writes a row.

Steps: begin the context, look the services up, enter the scope (Flask's app context), call `run`, leave the scope, judge.
"""

import logging
import traceback
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any

from jobwheel.clock import Clock
from jobwheel.errors import JobwheelError
from jobwheel.job import IJob, JobContext
from jobwheel.retry import CancelJob, RetryJob
from jobwheel.row import Row
from jobwheel.services import Services
from jobwheel.verdict import SUCCEEDED, Again, Cancelled, Failed, Succeeded, Verdict

log = logging.getLogger("jobwheel.run")

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
        self._wall = clock.wall
        self._services = services
        self.scope: Scope | None = None

    def run(self, row: Row) -> Verdict:
        """One attempt in the calling thread. Whatever `run` raises, BaseExceptions included, becomes a verdict."""
        job, context = self._begin(row)
        call = context.kind.call
        try:
            if self.scope is None and call.is_plain:
                result = job.run(context) if call.wants_context else job.run()
            elif self.scope is None:
                result = self._call(job, context)
            else:
                with self.scope(context):
                    result = self._call(job, context)
        except BaseException as error:
            return context.early or self.judge(row, error)
        if result is None and not context.cancel_seen and not context.timed_out:
            return SUCCEEDED
        return self._judge_return(row, result)

    async def run_async(self, row: Row) -> Verdict:
        """The same for a coroutine job, on the running event loop."""
        job, context = self._begin(row)
        try:
            if self.scope is None:
                result = await self._call(job, context)
            else:
                with self.scope(context):
                    result = await self._call(job, context)
        except BaseException as error:
            return self.timed_out(row) if context.timed_out else self.judge(row, error)
        return self._judge_return(row, result)

    def _begin(self, row: Row) -> tuple[IJob, JobContext]:
        job, context = row.job, row.run
        assert job is not None and context is not None, "only claimed rows are run"
        now = self._elapsed()
        context.begin(now, self._wall() - now)
        return job, context

    def _call(self, job: IJob, context: JobContext) -> Any:
        call = context.kind.call
        given = {name: self._services.get(name) for name in call.services}
        if call.optional:
            present = self._services.names()
            given.update((name, self._services.get(name)) for name in call.optional if name in present)
        return job.run(context, **given) if call.wants_context else job.run(**given)

    def _judge_return(self, row: Row, result: Any) -> Verdict:
        context = row.run
        assert context is not None
        if isinstance(result, Awaitable) and not context.kind.call.is_async:
            close = getattr(result, "close", None)
            if close is not None:
                close()
            return self.judge(row, TypeError("run returned a coroutine that nobody awaits: declare it async def"))
        if context.timed_out:
            return self.timed_out(row)
        if context.cancel_seen:
            return Cancelled("ended itself after cancel() asked for it")
        return SUCCEEDED if result is None else Succeeded(result)

    def timed_out(self, row: Row) -> Verdict:
        """The verdict on a run that is past its time limit, whether it has ended or not: the same one when asked again."""
        context = row.run
        assert context is not None
        context.timed_out = True
        if context.early is None:
            timeout = context.kind.options.timeout
            context.early = self.judge(row, TimedOut(f"still running after its timeout of {timeout:g} seconds"))
        return context.early

    def judge(self, row: Row, error: BaseException) -> Verdict:
        """The verdict on an attempt that raised `error`; logs it unless the job ended itself."""
        context = row.run
        assert context is not None
        if isinstance(error, CancelJob):
            return Cancelled(error.reason or None)
        if context.cancel_asked:
            return Cancelled(_text(error))
        if isinstance(error, RetryJob):
            return Again(error.delay, error.reason or None)
        wait = context.kind.options.retry.wait_after(row.attempt, error)
        kind = context.kind.name
        if wait is None:
            log.error("job %d (%s) failed in attempt %d: %s", row.id, kind, row.attempt, _text(error), exc_info=error)
            return Failed(_text(error), _trace(error))
        log.warning("job %d (%s) raised in attempt %d and runs again in %.3g s: %s", row.id, kind, row.attempt, wait, _text(error), exc_info=error)
        return Again(wait, _text(error), _trace(error))


def _text(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:ERROR_LENGTH]
    except Exception:  # its own __str__ may raise
        return type(error).__name__


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-TRACE_LENGTH:]
