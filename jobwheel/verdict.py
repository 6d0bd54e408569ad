"""What a runner finds at the end of an attempt. A verdict decides; a store writes it down."""

from dataclasses import dataclass
from typing import Any

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


Verdict = Succeeded | Failed | Again | Cancelled | Missed | Interrupted

SUCCEEDED = Succeeded()
"""The verdict of nearly every run, made once."""
