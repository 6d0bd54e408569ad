"""A booked room is given to others when nobody came: a job releases it after `hold` seconds, and "I am here" takes that job away."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Enum, Index, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, Session, mapped_column

from jobwheel import IJob, JobContext, Retry, TimerManager
from web_example.database import Database
from web_example.errors import ShopError, TooLate
from web_example.models import Base, values
from web_example.rearming import release

ROOMS = {"Forest": 4, "Harbour": 6, "Island": 3, "Lake": 2, "Meadow": 8, "Summit": 12}
"""The station's meeting rooms, each with its chairs."""


class BookingState(StrEnum):
    """Where a booking is. Whoever moves the row out of BOOKED first decides."""

    BOOKED = "booked"
    USED = "used"
    LEFT = "left"
    RELEASED = "released"


class Booking(Base):
    """One customer's claim on one room."""

    __tablename__ = "bookings"
    __table_args__ = (Index("one_live_booking_per_room", "room", unique=True, sqlite_where=text("state IN ('booked', 'used')")),)

    id: Mapped[int] = mapped_column(primary_key=True)
    room: Mapped[str]
    customer: Mapped[str]
    state: Mapped[BookingState] = mapped_column(Enum(BookingState, native_enum=False, values_callable=values))
    come_by: Mapped[float]
    """Epoch seconds; what the countdown shows. `state` alone says whether the room is still held."""


class NoSuchRoom(ShopError):
    status = 404
    title = "No such room"

    def __init__(self) -> None:
        super().__init__("The station has no such room. Pick one from the list.")


class NoSuchBooking(ShopError):
    status = 404
    title = "No such booking"

    def __init__(self) -> None:
        super().__init__("There is no booking of yours with this number.")


class RoomTaken(ShopError):
    status = 409
    title = "This room is taken"

    def __init__(self, room: str) -> None:
        super().__init__(f"Somebody was faster: the room {room} is booked. Nothing was changed; pick another one.")


@dataclass
class ReleaseRoom(IJob, kind="rooms.release", retry=Retry(attempts=5, backoff=2.0), timeout=30):
    """Gives the room to others if nobody came."""

    booking_id: int

    def run(self, ctx: JobContext, *, rooms: "Rooms") -> str:
        if not rooms.release_unused(self.booking_id):
            return "somebody came, or gave it back"
        ctx.log(f"nobody came for booking {self.booking_id}")
        return "released"


class Rooms:
    """The rooms of the station. A booking is kept for `hold` seconds; safe from any thread."""

    def __init__(self, database: Database, timer: TimerManager, hold: float, now: Callable[[], float] = time.time) -> None:
        self._database = database
        self._timer = timer
        self.hold = hold
        self.now = now

    def plan(self) -> dict[str, Booking | None]:
        """Each room with its live booking."""
        query = select(Booking).where(Booking.state.in_((BookingState.BOOKED, BookingState.USED)))
        with self._database.reading() as session:
            live = {booking.room: booking for booking in session.scalars(query)}
        return {room: live.get(room) for room in ROOMS}

    def book(self, room: str, customer: str) -> Booking:
        """A new booking, and the job that ends it. Raises NoSuchRoom or RoomTaken."""
        if room not in ROOMS:
            raise NoSuchRoom
        booking = Booking(room=room, customer=customer, state=BookingState.BOOKED, come_by=self.now() + self.hold)
        try:
            with self._database.writing() as session:
                session.add(booking)
        except IntegrityError as error:
            raise RoomTaken(room) from error
        self._timer.add_job(ReleaseRoom(booking.id), self.hold, key=f"room:{booking.id}")
        return booking

    def arrive(self, booking_id: int, customer: str) -> None:
        """The customer is there, so the job is taken away. Raises NoSuchBooking or TooLate."""
        self._move(booking_id, customer, BookingState.USED, BookingState.BOOKED)
        release(self._timer, f"room:{booking_id}")

    def leave(self, booking_id: int, customer: str) -> None:
        """The customer does not need the room (any more). Raises NoSuchBooking or TooLate."""
        self._move(booking_id, customer, BookingState.LEFT, BookingState.BOOKED, BookingState.USED)
        release(self._timer, f"room:{booking_id}")

    def release_unused(self, booking_id: int) -> bool:
        """True if this call ended the booking; False if somebody came, or it had ended."""
        with self._database.writing() as session:
            return self._moved(session, booking_id, BookingState.RELEASED, BookingState.BOOKED)

    def promises(self) -> Iterator[Mapping[str, Any]]:
        """For `Rearming`: each booked room's job, due when the rest of its time is over."""
        for booking in self.plan().values():
            if booking is not None and booking.state is BookingState.BOOKED:
                left = min(max(0.0, booking.come_by - self.now()), self.hold)
                yield {"job": ReleaseRoom(booking.id), "delay": left, "key": f"room:{booking.id}"}

    def _move(self, booking_id: int, customer: str, to: BookingState, *before: BookingState) -> None:
        with self._database.writing() as session:
            booking = session.get(Booking, booking_id)
            if booking is None or booking.customer != customer:
                raise NoSuchBooking
            if booking.state is not to and not self._moved(session, booking_id, to, *before):
                raise TooLate(f"Nobody came in time, so the room {booking.room} is for others again. Book it once more if it is free.")

    @staticmethod
    def _moved(session: Session, booking_id: int, to: BookingState, *before: BookingState) -> bool:
        """One UPDATE that asks for the state before: of several at the same moment the database lets one through."""
        moved = update(Booking).where(Booking.id == booking_id, Booking.state.in_(before)).values(state=to).returning(Booking.id)
        return session.scalar(moved, execution_options={"synchronize_session": False}) is not None
