"""Type-checked only: each line that ends in `# wrong` has exactly one error, and no other line has any."""

from dataclasses import dataclass

from jobwheel import IJob, JobContext, State, TimerManager, events, job


@dataclass
class Remind(IJob):
    user: int

    def run(self, ctx: JobContext) -> None: ...


def on_failed(event: events.JobFailed) -> None: ...


@job(kind="typing.count")
def count(ctx: JobContext, day: int, *, users: list[str]) -> int:
    return len(users)


def on_fault(error: BaseException) -> None: ...


def use(timer: TimerManager) -> None:
    timer.add_job(Remind("user"), 5)  # wrong
    timer.add_job(Remind, 5)  # wrong
    timer.add_job(Remind(1), "5")  # wrong
    timer.add_job(Remind(1), dealy=5)  # wrong
    timer.add_job(Remind(1), if_exists="overwrite")  # wrong
    timer.add_job(Remind(1), key=7)  # wrong
    timer.add_job(Remind(1), after_commit=True)  # wrong
    timer.cancel(None)  # wrong
    timer.cancel(1.5)  # wrong
    timer.on(events.JobSucceeded, on_failed)  # wrong
    timer.add_job(Remind(1)).state = State.FAILED  # wrong
    print(timer.stats().pendign)  # wrong
    timer.add_job(count)  # wrong
    timer.add_job(count.function)  # wrong
    timer.on_error(on_fault)  # wrong


def use_function(ctx: JobContext) -> None:
    count.function(ctx, "1", users=[])  # wrong
    count.function(ctx, 1)  # wrong
    print(count.function(ctx, 1, users=[]).upper())  # wrong
    job(timeout="30")  # wrong
    job(7)  # wrong


class Timeout(IJob, timeout="30"):  # wrong
    def run(self) -> None: ...
