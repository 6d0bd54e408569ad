"""The travellers are counted every hour, by cron. The job is registered at each start of each process, which leaves exactly one."""

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.orm import Mapped, mapped_column

from jobwheel import JobContext, Retry, ScheduledJob, TimerManager, cron, job
from web_example.database import Database
from web_example.models import Base
from web_example.scenarios.presence import Presence

KEY = "stats:hourly"
ZONE = "Europe/Berlin"


class Count(Base):
    """How many travellers were online at one moment."""

    __tablename__ = "counts"

    at: Mapped[float] = mapped_column(primary_key=True)
    """Epoch seconds: the moment by the clock, however late the count was made. A second count of that moment finds it taken."""
    travellers: Mapped[int]


@job(kind="stats.count_travellers", retry=Retry(attempts=5, backoff=2.0), timeout=30)
def count_travellers(ctx: JobContext, *, counting: "Counting") -> None:
    """Counts for the moment that the schedule names."""
    counting.count(ctx.scheduled_for)


class Counting:
    """The counts, made at the moments of the cron expression `schedule`; safe from any thread."""

    def __init__(
        self, database: Database, timer: TimerManager, presence: Presence, schedule: str, now: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._timer = timer
        self._presence = presence
        self.trigger = cron(schedule, tz=ZONE)
        self.now = now

    def register(self) -> None:
        """Has no effect where it is registered already, with this schedule: it keeps its next moment, and is not run twice."""
        self._timer.add_job(count_travellers(), trigger=self.trigger, key=KEY)

    def count(self, moment: datetime) -> None:
        """Writes down how many are online now, as the count of that moment, unless there is one."""
        with self._database.writing() as session:
            found = insert(Count).values(at=moment.timestamp(), travellers=self._presence.count())
            session.execute(found.on_conflict_do_nothing())

    def latest(self, limit: int = 24) -> list[Count]:
        """The latest counts, oldest first."""
        with self._database.reading() as session:
            return list(session.scalars(select(Count).order_by(Count.at.desc()).limit(limit)))[::-1]

    def series(self) -> ScheduledJob | None:
        """The registered job: when it is due next, how often it has run. None if nothing is registered."""
        return self._timer.get(KEY)

    def promises(self) -> Iterator[Mapping[str, Any]]:
        """For `Rearming`: the registration is the same promise again and again."""
        yield {"job": count_travellers(), "trigger": self.trigger, "key": KEY, "if_exists": "replace"}
