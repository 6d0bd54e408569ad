"""What a runner finds at the end of an attempt. A verdict decides; a store writes it down."""

from dataclasses import dataclass
from typing import Any

from jobwheel.row import Row, Series
from jobwheel.state import State


@dataclass(frozen=True, slots=True)
class Succeeded:
    """`run` returned; `result` is what it returned."""

    result: Any = None
    state = State.SUCCEEDED


@dataclass(frozen=True, slots=True)
class Failed:
    """The last attempt raised, or its time was up."""

    error: str
    trace: str | None = None
    state = State.FAILED


@dataclass(frozen=True, slots=True)
class Again:
    """Another attempt after `delay` seconds: SCHEDULED again."""

    delay: float
    error: str | None = None
    trace: str | None = None
    state = State.SCHEDULED


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The job ended itself by `CancelJob`, or ended because `cancel` asked for it."""

    error: str | None = None
    state = State.CANCELLED


@dataclass(frozen=True, slots=True)
class Missed:
    """Claimed later than its kind's `misfire_grace_time` allows, and so not started."""

    error: str
    state = State.MISSED


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The process that ran it is gone, and its kind says `on_crash="interrupt"`."""

    error: str
    state = State.INTERRUPTED


Outcome = Succeeded | Failed | Missed | Interrupted


@dataclass(frozen=True, slots=True)
class Onward:
    """A run of a recurring job is over, and the job goes on to its next moment."""

    outcome: Outcome | None
    """How the run ended, and the job with it if it was replaced meanwhile; None: the run goes on as a job of its own."""
    due: float
    """Elapsed seconds."""
    wall: float | None
    """Epoch seconds of the same moment, where it follows the wall clock."""
    nominal: float | None
    """Elapsed moment that the next run is for, where that is not `due`."""
    series: Series
    skipped: int
    """Moments since this run's own that had none."""
    state = State.SCHEDULED


Verdict = Succeeded | Failed | Again | Cancelled | Missed | Interrupted | Onward


def go_on(row: Row, onward: Onward) -> None:
    """The row, which the caller may write, stands at the next moment from now on."""
    terms = row.terms
    assert terms is not None
    row.due, row.delay = onward.due, None
    terms.wall, terms.nominal, terms.date, terms.series = onward.wall, onward.nominal, None, onward.series


SUCCEEDED = Succeeded()
"""The verdict of nearly every run, made once."""
