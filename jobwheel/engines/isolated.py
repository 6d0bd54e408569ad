"""Runs in child processes: one attempt of one row in a borrowed child, to a verdict. Called by the thread engine's workers.

Promises: raises nothing; comes back soon after the run's time limit, with the child killed; what the job logs, tells and asks is seen in
the row's context while it runs; a run that has begun is never begun a second time here.
Relies on: `children`. The runner of the child has judged what the run raised; what befell the child is judged here.

A run begins when its child says so: the child's start and the imports of the job's module do not count into the kind's `timeout`, they have
a limit of their own.
"""

import signal
from math import inf

from jobwheel.clock import Clock
from jobwheel.codec import encode
from jobwheel.engine import Desk
from jobwheel.engines.children import Child, Children
from jobwheel.engines.wire import Begun, Cancel, Heeds, Late, Line, Over, Progress, Start, Told, Unready, verdict_of
from jobwheel.isolation import ChildDied, NotReady, origin_of
from jobwheel.job import JobContext, context_of
from jobwheel.log import logger
from jobwheel.row import Row
from jobwheel.runner import Runner, too_late
from jobwheel.verdict import Interrupted, Verdict

log = logger("jobwheel.run")

GRACE = 1.0
"""Seconds between the time limit and the kill for a run that can know of it: a coroutine, or one that has looked at `cancel_requested`."""
EACH = 0.1
"""Seconds between two looks at whether `cancel` was called for the run, and whether its process is there."""
PREPARE = 60.0
"""Seconds that a child has to start and to import what it needs."""
AT_ONCE = 5.0
"""Seconds in which one that has run jobs of the kind must begin; else another child has the job."""
SILENT = "the child process closed its line to this process {}, and was killed: a job closes only files that it has opened"
LEFT = 1000
"""Messages that are still read at the time limit."""


class _Unbegun(Exception):
    """An idle child has ended before it took the run: another one may."""


class IsolatedRuns:
    """For one engine; safe from any number of threads."""

    def __init__(self, clock: Clock, runner: Runner, desk: Desk, children: Children) -> None:
        self._clock = clock
        self._runner = runner
        self._desk = desk
        self._children = children

    def run(self, row: Row) -> Verdict:
        """One attempt, in the calling thread's patience."""
        missed = too_late(row, self._clock.elapsed())
        if missed is not None:
            row.started = None
            return missed
        context = context_of(row)
        try:
            start = _start_of(row)
            while True:
                try:
                    return self._in_child(row, context, start)
                except _Unbegun:
                    continue
        except ChildDied as error:
            return self._judge_death(row, context, error.with_traceback(None))
        except NotReady as error:
            return self._runner.judge_raise(row, error.with_traceback(None))
        except Exception as error:
            return self._runner.judge_raise(row, error)

    def _in_child(self, row: Row, context: JobContext, start: Start) -> Verdict:
        child = self._children.borrow()
        talk = _Talk(self._clock, self._runner, self._desk, row, context, child)
        verdict: Verdict | None = None
        try:
            verdict = talk.verdict(start)
        except (EOFError, OSError) as error:
            silent = not child.ends_soon()
            status = self._children.dismiss(child)
            if talk.late:
                verdict = self._runner.timed_out(row)
            elif not talk.begun and child.runs:
                raise _Unbegun from error
            else:
                when = "while it ran the job" if talk.begun else "before the run began"
                raise ChildDied(SILENT.format(when) if silent else _how(status, when)) from None
        except BaseException:
            self._children.dismiss(child)
            raise
        else:
            if verdict is None:
                self._children.dismiss(child)
                verdict = self._runner.timed_out(row)
            else:
                self._children.give_back(child, talk.spent)
        return verdict

    def _judge_death(self, row: Row, context: JobContext, error: ChildDied) -> Verdict:
        if row.kind.options.on_crash != "interrupt" or context.cancel_asked:
            return self._runner.judge_raise(row, error)
        log.error("job %d (%s) was interrupted in attempt %d: %s", row.id, row.kind.name, row.nth, error)
        return Interrupted(f"{type(error).__name__}: {error}")


class _Talk:
    """What is said between this process and a child about one run."""

    def __init__(self, clock: Clock, runner: Runner, desk: Desk, row: Row, context: JobContext, child: Child) -> None:
        self._clock = clock
        self._runner = runner
        self._desk = desk
        self._row = row
        self._context = context
        self._child = child
        self._limit = inf
        self._heeds = row.kind.call.is_async
        self._told_cancel = False
        self._knows_kind = row.kind.name in child.kinds
        self.begun = False
        self.late = False
        """Past the time limit."""
        self.spent = False
        """The child shall have no other run."""

    def verdict(self, start: Start) -> Verdict | None:
        """The verdict on the run; None: its time is over, and the child must be killed.

        Raises:
            EOFError, OSError: the child is gone.
            NotReady: it cannot run the job.
        """
        self._limit = self._clock.elapsed() + (AT_ONCE if self._knows_kind else PREPARE)
        self._child.channel.send(start)
        while True:
            self._pass_cancel()
            left = self._limit - self._clock.elapsed()
            if left <= 0:
                verdict = self._last_words()
                if verdict is not None:
                    return verdict
                if self._limit <= self._clock.elapsed() and not self._prolong():
                    return None
                continue
            message = self._child.channel.receive(min(left, EACH))
            if message is None:
                if self._child.has_ended():  # and something that it has started keeps its end of the socket open
                    verdict = self._last_words()
                    if verdict is None:
                        raise EOFError
                    return verdict
            elif (verdict := self._take(message)) is not None:
                return verdict

    def _pass_cancel(self) -> None:
        if self._context.cancel_asked and not self._told_cancel:
            self._told_cancel = True
            self._child.channel.send(Cancel())

    def _last_words(self) -> Verdict | None:
        """The verdict, if it has come and was not read yet: this process may have been held up. One that never falls silent is cut off."""
        for _ in range(LEFT):
            message = self._child.channel.receive(0)
            if message is None:
                return None
            if (verdict := self._take(message)) is not None:
                return verdict
        return None

    def _prolong(self) -> bool:
        """True if the run, which is past its limit, is to have a moment to end by itself."""
        if not self.begun and self._knows_kind:
            raise EOFError  # something that an earlier run has left there keeps it from beginning: another child may
        if not self.begun:
            raise NotReady(
                f"the child process was not ready within {PREPARE:g} s: importing {self._row.kind.job_class.__module__}, or making the "
                f'services, does not come to an end there. What starts a program belongs under if __name__ == "__main__":'
            )
        if self.late:
            return False
        self.late = True
        self._desk.timed_out(self._row)
        if self._heeds:
            self._runner.timed_out(self._row)
            self._limit = self._clock.elapsed() + GRACE
            self._child.channel.send(Late())
        return self._heeds

    def _take(self, message: object) -> Verdict | None:
        row, context = self._row, self._context
        match message:
            case Begun(moment):
                self.begun = True
                self._child.kinds.add(row.kind.name)
                row.started = moment
                context.begin(moment, self._clock.wall() - self._clock.elapsed())
                timeout = row.kind.options.timeout
                self._limit = inf if timeout is None else moment + timeout
            case Line(text):
                context.log(text)
            case Progress(now):
                context.progress_now = now
            case Heeds():
                self._heeds = True
            case Told(level, text, trace):
                if not self.late:  # else the time limit was told
                    log.log(level, "%s\n%s", text, trace.rstrip())
            case Unready(error, trace):
                problem = NotReady(f"the child process could not begin: {error}")
                problem.add_note(trace)
                raise problem
            case Over():
                row.started, self.spent = message.started, message.spent
                context.progress_now = message.progress
                return self._runner.timed_out(row) if self.late else verdict_of(message)
        return None


def _start_of(row: Row) -> Start:
    """Raises `UsageError` if there is no telling: the job's data has no stored form, or its class is nowhere to be imported from."""
    assert row.job is not None, "only claimed rows are run"
    origin, terms = origin_of(row.kind), row.terms
    return Start(
        row.id, row.kind.name, origin.module, origin.path, encode(row.job).decode(), row.key, row.nth, row.due,
        nominal=None if terms is None else terms.nominal,
        wall=None if terms is None else terms.wall if terms.wall is not None else terms.date,
    )  # fmt: skip


def _how(status: int | None, when: str) -> str:
    """How a child ended."""
    if status is None:
        return f"the child process ended {when}; its exit status is not known"
    if status >= 0:
        return f"the child process ended with exit code {status} {when}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "a signal of no name"
    why = "; the kernel does that when memory runs out" if -status == signal.SIGKILL else ""
    return f"the child process was ended by signal {-status} ({name}) {when}{why}"
