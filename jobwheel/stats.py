"""What a timer says of itself: `Stats` in numbers, `Health` in problems. Immutable; taken one number after the other."""

import msgspec


class Stats(msgspec.Struct, frozen=True):
    """Counts. The ended ones count since the store was made (the file; in memory the timer), whether history keeps them or not.

    Those of jobs are of the store, and so of all processes that share it; from `overdue` on they are of this process alone. They are read
    one after the other while jobs go on, so they need not add up.

    A recurring job is one job, which has not ended: its runs are counted in its own picture (`runs`, `failures`, `skipped`).
    """

    scheduled: int = 0
    paused: int = 0
    running: int = 0
    """Claimed: on a worker, or in the short queue before the workers."""
    unresolvable: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    missed: int = 0
    interrupted: int = 0
    overdue: int = 0
    """Due in this process and waiting for a free worker, still unclaimed."""
    threads: int = 0
    busy: int = 0
    queued: int = 0
    """Claimed rows in the queue before the workers."""
    hung: int = 0
    """Runs past their time limit whose thread has not ended."""

    @property
    def pending(self) -> int:
        """Jobs that wait: scheduled, paused or unresolvable. What `max_pending` bounds."""
        return self.scheduled + self.paused + self.unresolvable


class Health(msgspec.Struct, frozen=True):
    """Whether the timer does its work. `ok` is True exactly when `problems` is empty."""

    problems: tuple[str, ...] = ()
    """Each in words, with what to do."""
    started: bool = False
    paused: bool = False
    """`pause_all` is in force: on purpose, so no problem."""
    lag: float = 0.0
    """Seconds by which the waiting room's thread is behind."""
    lateness: float = 0.0
    """Seconds that the oldest due job has waited for a worker."""
    errors: int = 0
    """Exceptions that the timer's own threads survived."""
    events_dropped: int = 0
    unresolvable: int = 0
    """Jobs whose kind no code here knows, or whose data cannot be read: they wait for a process that can."""

    @property
    def ok(self) -> bool:
        return not self.problems
