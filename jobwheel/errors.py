"""The errors jobwheel raises at its callers. All of them derive from `JobwheelError`.

Each message says what was wrong, why it matters and what to do. Control flow out of `IJob.run` (`RetryJob`,
`CancelJob`) lives in `jobwheel.retry`: those are not errors.
"""


class JobwheelError(Exception):
    """Base of every error that jobwheel raises."""


class SettingsError(JobwheelError):
    """The configuration cannot be used. The message lists every problem found, one a line."""


class UsageError(JobwheelError):
    """A call that can never work as written: the code, not the moment, is wrong."""


class BadValue(UsageError, ValueError):
    """An argument of the right type with a value that is refused (negative delay, naive datetime, ...)."""


class BadType(UsageError, TypeError):
    """An argument of a type that is refused."""


class JobExists(JobwheelError):
    """`add_job(..., if_exists="error")` met a job that holds the key. `id` is that job's id."""

    def __init__(self, key: str, id: int) -> None:
        super().__init__(f"a job with key {key!r} is already there (id {id}); cancel it, or add with if_exists='replace' or 'keep'")
        self.key = key
        self.id = id


class TooManyPending(JobwheelError):
    """`max_pending` jobs wait already; nothing was added. `limit` is the setting's value."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"max_pending is {limit} and that many jobs are waiting; nothing was added. Try again later, cancel some, or raise the setting"
        )
        self.limit = limit


class StoreError(JobwheelError):
    """The store could not do what was asked; nothing was half-done."""


class CapabilityError(UsageError):
    """The chosen member of a seam (store, waiting room, engine) cannot do this. The message names one that can."""


class WaitTimeout(JobwheelError, TimeoutError):
    """`wait` was given a timeout, and the job has not ended within it. The job goes on."""
