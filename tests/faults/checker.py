"""The judge of a crash campaign: reads the events of all processes in the kernel's order and says which promises were broken.

It knows nothing of the store. What it cannot know it does not judge: a call that never answered may or may not have had its effect.
A run counts as over where its `end` was written or its process was killed; the line of a kill is written before the kill.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from eventlog import Line

INTERRUPTS = "faults.once"
"""The kind with on_crash="interrupt"."""
EARLY = 0.005
"""Seconds by which a start may seem early: a due moment on the wall clock is written down on the other clock."""
TOO_LONG = "has held the right to write for too long"
"""What a StoreError says where a writer was stopped: the only one that passes there."""
NEVER = 1 << 62
LIVE = frozenset({"scheduled", "paused", "running", "unresolvable"})


@dataclass(frozen=True, slots=True)
class Violation:
    sort: str
    text: str

    def __str__(self) -> str:
        return f"{self.sort}: {self.text}"


@dataclass(slots=True)
class Call:
    """One call of a process. `answered` is the place of its answer, far behind the end of the file where none came."""

    what: str
    args: tuple[Any, ...]
    process: int
    asked: int
    at: float
    answered: int = NEVER
    answered_at: float = 0.0
    value: Any = None
    error: str | None = None

    @property
    def has_answer(self) -> bool:
        return self.answered != NEVER and self.error is None

    @property
    def may_count(self) -> bool:
        """It had its effect, or nobody knows."""
        return not self.has_answer or self.value is not False


@dataclass(slots=True)
class Run:
    id: int
    attempt: int
    name: str
    process: int
    place: int
    at: float
    end: int = NEVER
    how: str = ""
    killed: int = NEVER
    """Where its process was killed."""

    @property
    def over(self) -> int:
        return min(self.end, self.killed)

    def may_run_again(self, before: int) -> bool:
        """Before this place it was cut off, or it had asked for another attempt."""
        return self.killed < before or (self.how == "again" and self.end < before)


@dataclass(slots=True)
class Job:
    """What a process meant to add, and what is known of it."""

    name: str
    kind: str
    key: str | None
    policy: str
    delay: float
    call: Call
    id: int | None = None
    held: str | None = None
    """The name of the job that holds after the add: its own, or with "keep" another one. None: never acknowledged, or nobody knows."""
    runs: list[Run] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    settled: int = NEVER
    final: str | None = None

    def __str__(self) -> str:
        return f"job {self.name} (id {self.id}, {self.kind})"

    @property
    def acknowledged(self) -> bool:
        return self.held == self.name

    def of(self, *what: str) -> Iterator[Call]:
        return (call for call in self.calls if call.what in what)

    @property
    def ended(self) -> int:
        """The place at which it was certainly over."""
        return min([self.settled, *(call.answered for call in self.of("cancel") if call.has_answer and call.value)])

    def runs_all_through(self, begin: int, end: int) -> bool:
        return any(run.place < begin and run.over > end for run in self.runs)


@dataclass(slots=True)
class Report:
    """What a campaign was, in numbers, and what was found."""

    violations: list[Violation] = field(default_factory=list)
    kills: int = 0
    stops: int = 0
    acknowledged: int = 0
    cancelled: int = 0
    ran: int = 0
    twice: int = 0
    """Second starts after a kill, which are right."""
    unasked: int = 0
    """Jobs that ran though their add was never acknowledged, which is right too."""
    interrupted: int = 0
    store_errors: int = 0

    def add(self, other: "Report") -> None:
        """Takes in what another campaign was."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    @property
    def sorts(self) -> Counter[str]:
        return Counter(violation.sort for violation in self.violations)

    def __str__(self) -> str:
        numbers = (
            f"{self.kills} kills, {self.stops} stops, {self.acknowledged} acknowledged, {self.cancelled} cancelled, {self.ran} ran, "
            f"{self.twice} twice at a kill, {self.interrupted} interrupted, {self.unasked} unacknowledged that ran, "
            f"{self.store_errors} store errors, {len(self.violations)} violations"
        )
        first = [str(violation) for sort in self.sorts for violation in [v for v in self.violations if v.sort == sort][:5]]
        return "\n  ".join([numbers, *(f"{count} x {sort}" for sort, count in self.sorts.items()), *first])


def check(lines: Sequence[Line], *, store_errors: bool = False) -> Report:
    """Every promise, held against these events. `store_errors`: a call may raise StoreError for a writer that was stopped (`TOO_LONG`)."""
    return _Events(lines, store_errors).report


def judge_output(text: str, *, store_errors: bool = False) -> list[Violation]:
    """What no process should have said: a traceback, or a line of level ERROR. `store_errors`: as for `check`."""

    def wrong(line: str) -> bool:
        return line.startswith("Traceback (") or (" ERROR " in line and not (store_errors and TOO_LONG in line))

    return [Violation("said", line[:300]) for line in text.splitlines() if wrong(line)]


class _Events:
    def __init__(self, lines: Sequence[Line], store_errors: bool) -> None:
        self.report = Report()
        self._store_errors = store_errors
        self._kills: dict[int, int] = {}
        self._kill_places: list[int] = []
        self._calls: dict[tuple[int, int], Call] = {}
        self._jobs: dict[str, Job] = {}
        self._by_id: dict[int, Job] = {}
        self._running: dict[tuple[int, int, int], Run] = {}
        self._by_key: defaultdict[str, list[Job]] = defaultdict(list)
        for line in lines:
            getattr(self, f"_see_{line.what}", self._see_nothing)(line, *line.rest)
        for call in self._calls.values():
            if call.what != "add" and (job := self._by_id.get(call.args[0])) is not None:
                job.calls.append(call)
        for job in self._jobs.values():
            for run in job.runs:
                run.killed = self._kills.get(run.process, NEVER)
            if job.key is not None:
                self._by_key[job.key].append(job)
        for job in self._jobs.values():
            self._judge(job)
        self._count()

    def _found(self, sort: str, text: str) -> None:
        self.report.violations.append(Violation(sort, text))

    # --- reading ---

    def _see_nothing(self, line: Line, *rest: Any) -> None:
        pass

    def _see_kill(self, line: Line) -> None:
        self.report.kills += 1
        self._kills.setdefault(line.process, line.place)
        self._kill_places.append(line.place)

    def _see_stop(self, line: Line) -> None:
        self.report.stops += 1

    def _see_sound(self, line: Line, text: str) -> None:
        if text != "ok":
            self._found("integrity", f"integrity_check says {text!r} at line {line.place}")

    def _see_ask(self, line: Line, number: int, what: str, *args: Any) -> None:
        call = self._calls[line.process, number] = Call(what, args, line.process, line.place, line.at)
        if what == "add":
            for name, kind, key, policy, delay in args[0]:
                self._jobs[name] = Job(name, kind, key, policy, delay, call)

    def _see_answer(self, line: Line, number: int, value: Any) -> None:
        call = self._calls[line.process, number]
        call.answered, call.answered_at, call.value = line.place, line.at, value
        if call.what == "add":
            for name, id, held in value:
                if held is not None:
                    self._jobs[name].held = held
                    self._identify(held, id, line)

    def _see_raised(self, line: Line, number: int, error: str) -> None:
        call = self._calls[line.process, number]
        call.answered, call.error = line.place, error
        if error.startswith("StoreError"):
            self.report.store_errors += 1
            if self._store_errors and TOO_LONG in error:
                return
        self._found("raised", f"{call.what}{call.args!r:.80} of process {line.process} raised {error}")

    def _identify(self, name: str, id: int, line: Line) -> Job | None:
        """The job of this name, now known to have this id."""
        job = self._jobs.get(name)
        if job is None:
            self._found("unexpected", f"{name!r} (id {id}) at line {line.place}: no process ever meant to add it")
            return None
        if job.id is None:
            job.id = id
            other = self._by_id.setdefault(id, job)
            if other is not job:
                self._found("one id for two", f"{job} and {other}")
        elif job.id != id:
            self._found("added twice", f"{job} is also there as id {id} (line {line.place})")
        return job

    def _see_start(self, line: Line, id: int, attempt: int, name: str) -> None:
        run = self._running[id, attempt, line.process] = Run(id, attempt, name, line.process, line.place, line.at)
        job = self._identify(name, id, line)
        if job is not None:
            job.runs.append(run)

    def _see_end(self, line: Line, id: int, attempt: int, name: str, how: str) -> None:
        run = self._running[id, attempt, line.process]
        run.end, run.how = line.place, how

    def _see_settled(self, line: Line, id: int) -> None:
        if id in self._by_id:
            self._by_id[id].settled = line.place

    def _see_final(self, line: Line, id: int, state: str, attempt: int) -> None:
        if id in self._by_id:
            self._by_id[id].final = state

    def _see_left(self, line: Line, id: int, state: str) -> None:
        job = self._by_id.get(id)
        self._found("not drained", f"{job or f'id {id}'} is still {state} after the last process has waited for it")

    # --- judging ---

    def _judge(self, job: Job) -> None:
        self._judge_runs(job)
        self._judge_cancels(job)
        self._judge_moves(job)
        self._judge_pauses(job)
        self._judge_key(job)
        self._judge_end(job)

    def _kills_between(self, begin: int, end: int) -> int:
        return bisect_left(self._kill_places, end) - bisect_right(self._kill_places, begin)

    def _judge_runs(self, job: Job) -> None:
        before: Run | None = None
        for run in job.runs:
            if before is None:
                # The line of a kill comes before it, and so perhaps before the last lines of its process.
                begin = min(job.call.asked, self._kills.get(job.call.process, NEVER) - 1)
                if not 1 <= run.attempt <= 1 + self._kills_between(begin, run.place):
                    self._found("attempt", f"{job}: its first start is attempt {run.attempt}")
            else:
                self._judge_second(job, before, run)
            if run.place > job.settled:
                self._found("ran after its end", f"{job}: settled at line {job.settled}, started again at line {run.place}")
            before = run

    def _judge_second(self, job: Job, before: Run, run: Run) -> None:
        """A run follows another one only where that one was cut off or asked for it, and its attempt is a later one."""
        if not before.may_run_again(run.place):
            self._found(
                "second run" if before.over < run.place else "two at once",
                f"{job}: process {before.process} ran attempt {before.attempt} from line {before.place} and was not killed, "
                f"process {run.process} ran attempt {run.attempt} from line {run.place}",
            )
            return
        asked = before.how == "again"
        # Each kill may have cut off one claim that never came to its run.
        most = asked + self._kills_between(min(before.place, before.killed - 1), run.place)
        if not 1 <= run.attempt - before.attempt <= most:
            self._found("attempt", f"{job}: attempt {run.attempt} follows attempt {before.attempt}")
        elif not asked:
            self.report.twice += 1
            if job.kind == INTERRUPTS:
                self._found("interrupted ran again", f"{job}: line {before.place} and line {run.place}")

    def _judge_cancels(self, job: Job) -> None:
        """True: it waited and never runs. False while it ran: no further attempt."""
        for call in job.of("cancel"):
            if not call.has_answer:
                continue
            for run in job.runs:
                if call.value:
                    if run.place > call.answered:
                        self._found("ran after cancel", f"{job}: cancelled at line {call.answered}, started at line {run.place}")
                    elif not run.may_run_again(call.answered):
                        self._found("cancelled while running", f"{job}: it ran from line {run.place}; cancel said True at {call.answered}")
                elif run.place > call.answered and job.runs_all_through(call.asked, call.answered):
                    self._found(
                        "ran on after cancel",
                        f"{job}: it ran when cancel was asked for at line {call.asked}, and again at line {run.place}",
                    )

    def _judge_moves(self, job: Job) -> None:
        """Nothing is moved that is over or runs; nothing starts before the due moment that the last acknowledged call has set."""
        for call in job.of("touch", "move", "now", "pause"):
            if not call.has_answer or not call.value:
                continue
            if job.ended < call.asked:
                self._found("true of an ended job", f"{job}: over at line {job.ended}, {call.what} said True at line {call.answered}")
            if job.runs_all_through(call.asked, call.answered):
                self._found("true of a running job", f"{job}: it ran when {call.what} was asked for at line {call.asked}")
        for run in job.runs:
            due = self._due(job, run.place)
            if run.at < due - EARLY:
                self._found("early", f"{job}: started at line {run.place}, {due - run.at:.3f} s before the moment that was promised")

    def _due(self, job: Job, place: int) -> float:
        """The earliest moment at which it can be due by what was asked for before `place`."""
        moves = [job.call, *(call for call in job.of("touch", "move", "now") if call.may_count and call.asked < place)]
        # What had its answer before another one was asked for counts no more once that one has its answer.
        border = max((call.asked for call in moves if call.has_answer and call.answered < place), default=-1)
        delays: dict[str, Callable[[Call], float]] = {"add": lambda call: job.delay, "now": lambda call: 0.0}
        return min(call.at + delays.get(call.what, lambda call: call.args[1])(call) for call in moves if call.answered > border)

    def _judge_pauses(self, job: Job) -> None:
        for call in job.of("pause"):
            if not call.has_answer or not call.value:
                continue
            resumed = [other for other in job.of("resume", "now") if other.may_count and other.answered > call.asked]
            for run in job.runs:
                if run.place > call.answered and not any(other.asked < run.place for other in resumed):
                    self._found("ran while paused", f"{job}: paused at line {call.answered}, started at line {run.place}")

    def _judge_key(self, job: Job) -> None:
        """With "keep" the older job stays, with "replace" the newer one; two of one key never wait."""
        if job.key is None or job.held is None:
            return
        if job.held != job.name:
            self._judge_kept(job, self._jobs.get(job.held))
            return
        for other in self._by_key[job.key]:
            if other is not job and other.acknowledged and other.call.answered < job.call.asked:
                self._judge_followed(other, job)

    def _judge_kept(self, job: Job, other: Job | None) -> None:
        """`job` was not added, since `other` had its key."""
        if job.runs:
            self._found("ran though another was kept", f"{job}: {job.held} was kept, started at line {job.runs[0].place}")
        if other is None or other.key != job.key:
            self._found("unexpected", f"{job} with key {job.key!r} gave way to {job.held}, which has another key")
        elif other.ended < job.call.asked:
            self._found("kept an ended job", f"{job} gave way to {other}, which was over at line {other.ended}")

    def _judge_followed(self, other: Job, job: Job) -> None:
        """`job` was added after `other`, which has the same key, and holds."""
        late = [run.place for run in other.runs if run.place > job.call.answered]
        if not late:
            return
        if job.policy == "replace":
            # It may have been on its way to its run. Not if it was not due yet; and that run was its last one.
            not_due = self._due(other, job.call.answered) > job.call.answered_at + EARLY
            if not_due or other.runs_all_through(job.call.asked, job.call.answered):
                self._found("ran after replace", f"{other}: replaced by {job} at line {job.call.answered}, started at line {late[0]}")
        elif other.runs[0].place == late[0] and not self._may_be_replaced(other, job.call.answered, but=job):
            self._found("two of one key", f"{other} waited when {job} was added with keep at line {job.call.asked}")

    def _judge_end(self, job: Job) -> None:
        cancelled = any(call.has_answer and call.value for call in job.of("cancel"))
        done = job.settled != NEVER or any(run.how == "ok" for run in job.runs)
        if job.acknowledged and not done and not cancelled and not self._may_have_ended(job):
            runs = ", ".join(f"attempt {run.attempt} in process {run.process}" for run in job.runs) or "never"
            self._found("lost", f"{job}: acknowledged at line {job.call.answered}, started {runs}, never ended; it is {job.final} now")
        if job.final is None or job.final in LIVE:
            return
        if cancelled and job.final != "cancelled":
            self._found("another end", f"{job}: cancel said True, but it has {job.final}")
        elif job.settled != NEVER and job.final != "succeeded":
            self._found("another end", f"{job}: it had succeeded, and now it is {job.final}")
        elif job.final == "missed" or (job.final == "failed" and not self._may_be_replaced(job, NEVER)):
            self._found("another end", f"{job}: {job.final}, though it never fails")

    def _may_have_ended(self, job: Job) -> bool:
        """Without a run to its end, and rightly so."""
        cut = any(run.killed != NEVER for run in job.runs)
        # False is said of a job that was claimed, too; it gets no further attempt, and none at all if its process died before its run.
        if any(not call.has_answer or cut or job.final == "cancelled" for call in job.of("cancel")):
            return True
        if self._may_be_replaced(job, NEVER):
            return True
        # Where it was claimed and its process killed before the run could be written down, only its end tells.
        claimed = job.final == "interrupted" and self._kills_between(job.call.asked, NEVER) > 0
        return job.kind == INTERRUPTS and (cut or claimed)

    def _may_be_replaced(self, job: Job, before: int, but: Job | None = None) -> bool:
        """By another one of its key, before this place."""
        return job.key is not None and any(
            other.policy == "replace" and other.call.answered > job.call.asked and other.call.asked < before
            for other in self._by_key[job.key]
            if other is not job and other is not but
        )

    def _count(self) -> None:
        report = self.report
        for job in self._jobs.values():
            report.acknowledged += job.acknowledged
            report.cancelled += any(call.has_answer and call.value is True for call in job.of("cancel"))
            report.ran += bool(job.runs)
            report.unasked += bool(job.runs) and job.held is None
            report.interrupted += job.final == "interrupted"
