"""jobwheel: work later, or in the background, inside a web application, with nothing to deploy.

    from dataclasses import dataclass
    from datetime import timedelta
    from jobwheel import IJob, open_timer

    @dataclass
    class CancelUnpaidOrder(IJob, kind="orders.cancel_unpaid"):
        order_id: int

        def run(self, ctx, *, orders):
            orders.cancel_if_unpaid(self.order_id)

    timer = open_timer(services={"orders": orders})
    timer.start()
    timer.add_job(CancelUnpaidOrder(17), timedelta(minutes=15), key="order:17")
    timer.cancel("order:17")  # it was paid: True means it will never run

The names below are the public face; besides them `jobwheel.events`, `jobwheel.jobs`, `jobwheel.testing`, `jobwheel.container` and
`jobwheel.flask`.
"""

from jobwheel import events
from jobwheel.errors import (
    BadType,
    BadValue,
    CapabilityError,
    JobExists,
    JobwheelError,
    SettingsError,
    StoreError,
    TooManyPending,
    UsageError,
    WaitTimeout,
)
from jobwheel.function import job
from jobwheel.isolation import ChildDied
from jobwheel.job import IJob, JobContext
from jobwheel.opening import open_timer
from jobwheel.retry import CancelJob, Retry, RetryJob
from jobwheel.row import ScheduledJob
from jobwheel.state import State
from jobwheel.stats import Health, Stats
from jobwheel.timer import TimerManager
from jobwheel.trigger import Trigger, cron, every, preview

__version__ = "0.1.0"

__all__ = [
    "BadType",
    "BadValue",
    "CancelJob",
    "CapabilityError",
    "ChildDied",
    "Health",
    "IJob",
    "JobContext",
    "JobExists",
    "JobwheelError",
    "Retry",
    "RetryJob",
    "ScheduledJob",
    "SettingsError",
    "State",
    "Stats",
    "StoreError",
    "TimerManager",
    "TooManyPending",
    "Trigger",
    "UsageError",
    "WaitTimeout",
    "cron",
    "events",
    "every",
    "job",
    "open_timer",
    "preview",
]
