"""The states of a job and the legal moves between them, as one table. The contract suite holds every store to it."""

from enum import StrEnum

from jobwheel.errors import JobwheelError


class State(StrEnum):
    """Where a job is in its life. Members compare equal to their lower-case value."""

    # A StrEnum because its members hash at the speed of a str; a plain Enum hashes in Python, which the claim would feel.
    SCHEDULED = "scheduled"
    PAUSED = "paused"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    MISSED = "missed"
    INTERRUPTED = "interrupted"
    UNRESOLVABLE = "unresolvable"

    @property
    def ended(self) -> bool:
        """True when the job will not run again unless it is retried by hand."""
        return self in ENDED


MOVES: dict[State, frozenset[State]] = {
    State.SCHEDULED: frozenset({State.RUNNING, State.PAUSED, State.CANCELLED, State.UNRESOLVABLE}),
    State.PAUSED: frozenset({State.SCHEDULED, State.CANCELLED, State.UNRESOLVABLE}),
    State.RUNNING: frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.MISSED, State.INTERRUPTED, State.SCHEDULED}),
    State.SUCCEEDED: frozenset(),
    State.FAILED: frozenset({State.SCHEDULED}),
    State.CANCELLED: frozenset(),
    State.MISSED: frozenset({State.SCHEDULED}),
    State.INTERRUPTED: frozenset({State.SCHEDULED}),
    State.UNRESOLVABLE: frozenset({State.SCHEDULED, State.RUNNING, State.CANCELLED}),
}
"""From each state to the states it may move to. RUNNING -> SCHEDULED is a retry, a hand-back or the next run of a recurring job."""

ENDED = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.MISSED, State.INTERRUPTED})


class IllegalMove(JobwheelError):
    """A store was asked for a move that the table does not know: a fault of jobwheel, not of its user."""


def check_move(now: State, to: State) -> None:
    """Raises `IllegalMove` unless the table allows `now -> to`."""
    if to not in MOVES[now]:
        raise IllegalMove(f"a {now} job cannot become {to}; legal from there: {', '.join(sorted(MOVES[now])) or 'nothing'}")
