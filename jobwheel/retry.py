"""What follows a run that raised: the policy `Retry`, and the two exceptions by which `run` itself decides."""

import math
import random
from dataclasses import dataclass
from datetime import timedelta

from jobwheel.delay import LONGEST, seconds
from jobwheel.errors import BadType, BadValue


@dataclass(frozen=True, slots=True)
class Retry:
    """How often, and after which waits, a failing job runs again.

    Args:
        attempts: runs in all, the first included; 1 means no second one.
        backoff: seconds before the second run; each further wait doubles it (2, 4, 8, ...).
        cap: the longest wait in seconds; None for no cap.
        jitter: the fraction of a wait that chance may take away: 0.2 waits 80 to 100 % of it. 0 to 1.
        retry_on: exception classes that deserve another attempt; any other fails the job at once.
    """

    attempts: int = 1
    backoff: float = 0.0
    cap: float | None = None
    jitter: float = 0.0
    retry_on: tuple[type[BaseException], ...] = (Exception,)

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            raise BadValue(f"Retry(attempts={self.attempts!r}): it counts all runs, so it is a whole number from 1 on")
        for name, value in (("backoff", self.backoff), ("cap", 0.0 if self.cap is None else self.cap), ("jitter", self.jitter)):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise BadType(f"Retry({name}={value!r}): seconds as a number, got {type(value).__name__}")
            if not 0 <= value < math.inf:
                raise BadValue(f"Retry({name}={value!r}): it must be finite and not negative")
        if self.jitter > 1:
            raise BadValue(f"Retry(jitter={self.jitter!r}): it is a fraction of the wait, 0 to 1")
        kinds = self.retry_on
        if not isinstance(kinds, tuple) or not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
            raise BadType(f"Retry(retry_on={self.retry_on!r}): a tuple of exception classes")

    def wait_after(self, attempt: int, error: BaseException) -> float | None:
        """Seconds to wait after run number `attempt` raised `error`; None when it was the last or the error deserves no other."""
        if attempt >= self.attempts or not isinstance(error, self.retry_on):
            return None
        # 2.0**1024 overflows; by then every cap and every patience is long past.
        wait = self.backoff * 2.0 ** min(attempt - 1, 1000)
        if self.cap is not None:
            wait = min(wait, self.cap)
        wait = min(wait, LONGEST)
        return wait * (1.0 - self.jitter * random.random()) if self.jitter else wait


class CancelJob(BaseException):
    """Raise it in `run` to end the job as cancelled; `reason` is kept as its error text. It is control flow, hence no `Exception`."""

    reason: str = ""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class RetryJob(BaseException):
    """Raise it in `run` to ask for another attempt after `delay` (seconds or timedelta), whatever the policy says of attempts."""

    delay: float = 0.0
    reason: str = ""

    def __init__(self, delay: float | timedelta = 0.0, reason: str = "") -> None:
        super().__init__(reason)
        self.delay = seconds(delay, "delay")
        self.reason = reason
