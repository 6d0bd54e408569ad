"""Five stars for a ride that nobody rated: a job gives them `stars_after` seconds after the arrival, and rating takes that job away."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from jobwheel import IJob, JobContext, Retry, TimerManager
from web_example.database import Database
from web_example.errors import ShopError, TooLate
from web_example.models import Base
from web_example.rearming import release
from web_example.timetable import TRAINS

STARS = range(1, 6)


class Ride(Base):
    """One ride of one customer."""

    __tablename__ = "rides"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str] = mapped_column(index=True)
    train: Mapped[str]
    arrived_at: Mapped[float]
    rate_by: Mapped[float]
    """Epoch seconds; what the countdown shows. `stars` alone says whether the ride can still be rated."""
    stars: Mapped[int | None]
    by_customer: Mapped[bool] = mapped_column(default=False)


class NoSuchRide(ShopError):
    status = 404
    title = "No such ride"

    def __init__(self) -> None:
        super().__init__("There is no ride of yours with this number.")


class NoSuchStars(ShopError):
    title = "One to five stars"

    def __init__(self) -> None:
        super().__init__("A ride is given one, two, three, four or five stars.")


@dataclass
class GiveFiveStars(IJob, kind="rides.give_five_stars", retry=Retry(attempts=5, backoff=2.0), timeout=30):
    """Silence is praise: five stars, unless the customer was faster."""

    ride_id: int

    def run(self, ctx: JobContext, *, rides: "Rides") -> str:
        if not rides.give_five(self.ride_id):
            return "rated before"
        ctx.log(f"five stars for ride {self.ride_id}")
        return "five stars"


class Rides:
    """The customers' rides. What is not rated `stars_after` seconds after the arrival has five stars; safe from any thread."""

    def __init__(self, database: Database, timer: TimerManager, stars_after: float, now: Callable[[], float] = time.time) -> None:
        self._database = database
        self._timer = timer
        self.stars_after = stars_after
        self.now = now

    def take(self, customer: str) -> Ride:
        """A ride that has just ended, and the job that rates it when nobody does."""
        now = self.now()
        with self._database.writing() as session:
            train = TRAINS[(session.scalar(select(func.count(Ride.id))) or 0) % len(TRAINS)]
            ride = Ride(customer=customer, train=f"{train.origin} → {train.destination}", arrived_at=now, rate_by=now + self.stars_after)
            session.add(ride)
        self._timer.add_job(GiveFiveStars(ride.id), at=_date(ride.rate_by), key=f"ride:{ride.id}")
        return ride

    def rate(self, ride_id: int, customer: str, stars: int) -> None:
        """The customer's own stars; the job is taken away. Raises NoSuchRide, NoSuchStars or TooLate."""
        if stars not in STARS:
            raise NoSuchStars
        with self._database.writing() as session:
            ride = session.get(Ride, ride_id)
            if ride is None or ride.customer != customer:
                raise NoSuchRide
            if not self._rated(session, ride_id, stars, by_customer=True):
                raise TooLate(f"This ride has its {ride.stars} stars already. They stay.")
        release(self._timer, f"ride:{ride_id}")

    def give_five(self, ride_id: int) -> bool:
        """True if this call rated the ride, False if it was rated before."""
        with self._database.writing() as session:
            return self._rated(session, ride_id, STARS[-1], by_customer=False)

    def rides_of(self, customer: str) -> list[Ride]:
        """The customer's ten latest rides, latest first."""
        query = select(Ride).where(Ride.customer == customer).order_by(Ride.id.desc()).limit(10)
        with self._database.reading() as session:
            return list(session.scalars(query))

    def promises(self) -> Iterator[Mapping[str, Any]]:
        """For `Rearming`: each unrated ride's job. A date that has passed means now."""
        with self._database.reading() as session:
            unrated = list(session.scalars(select(Ride).where(Ride.stars.is_(None))))
        for ride in unrated:
            yield {"job": GiveFiveStars(ride.id), "at": _date(ride.rate_by), "key": f"ride:{ride.id}"}

    @staticmethod
    def _rated(session: Session, ride_id: int, stars: int, by_customer: bool) -> bool:
        """One UPDATE that asks for a ride without stars: of several at the same moment the database lets one through."""
        rated = update(Ride).where(Ride.id == ride_id, Ride.stars.is_(None)).values(stars=stars, by_customer=by_customer).returning(Ride.id)
        return session.scalar(rated, execution_options={"synchronize_session": False}) is not None


def _date(epoch: float) -> datetime:
    return datetime.fromtimestamp(epoch, UTC)
