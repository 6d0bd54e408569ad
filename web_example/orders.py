"""The rules of selling: reserve, pay, cancel, expire. Called by the views and by the job; knows no timer and no Flask.

Promises: an order leaves RESERVED exactly once. Payment, cancellation and expiry are each one UPDATE that asks for `state = 'reserved'`;
of several at the same moment the database lets one through, and the others learn from the row what happened.
Relies on: `Database.writing` (one writer at a time) and the index that allows one live order per seat.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from web_example.database import Database
from web_example.errors import (
    AlreadyCancelled,
    AlreadyPaid,
    Departed,
    Expired,
    NoSuchDeparture,
    NoSuchOrder,
    NoSuchSeat,
    SeatTaken,
    ShopError,
    SoldOut,
)
from web_example.models import Departure, Order, OrderState, Seat
from web_example.timetable import write_tomorrow

LIVE = (OrderState.RESERVED, OrderState.PAID)
OnReserved = Callable[[Session, Order], object]


@dataclass(frozen=True, slots=True)
class Listing:
    """One line of the departures: the train, how many of its seats are free, how many it has."""

    departure: Departure
    free: int
    total: int


class OrderService:
    """Sells the seats in `database`. An order not paid within `pay_within` seconds is to be cancelled by whoever keeps the time.

    Safe from any thread. `now` gives epoch seconds.
    """

    def __init__(self, database: Database, pay_within: float, now: Callable[[], float] = time.time) -> None:
        if not pay_within > 0:
            raise ValueError(f"pay_within is {pay_within!r}; it is the number of seconds a customer has to pay, so more than 0")
        self.pay_within = pay_within
        self.now = now
        self._database = database

    def departures(self) -> list[Listing]:
        """The trains that have not left, soonest first, with their free seats."""
        station_now = self._station_now()
        listings = self._departures(station_now)
        if not listings:
            with self._database.writing() as session:
                write_tomorrow(session, station_now)
            listings = self._departures(station_now)
        return listings

    def _departures(self, station_now: datetime) -> list[Listing]:
        query = (
            select(Departure, func.count(Seat.id), func.count(Order.id))
            .select_from(Departure)
            .join(Departure.seats)
            .outerjoin(Order, (Order.seat_id == Seat.id) & Order.state.in_(LIVE))
            .where(Departure.leaves_at > station_now)
            .group_by(Departure.id)
            .order_by(Departure.leaves_at)
        )
        with self._database.reading() as session:
            return [Listing(departure, total - taken, total) for departure, total, taken in session.execute(query)]

    def plan(self, departure_id: int) -> tuple[Departure, list[tuple[Seat, bool]]]:
        """A train and its seats in order, each with whether it is free. Raises NoSuchDeparture."""
        with self._database.reading() as session:
            departure = session.get(Departure, departure_id)
            if departure is None:
                raise NoSuchDeparture
            query = (
                select(Seat, Order.id)
                .outerjoin(Order, (Order.seat_id == Seat.id) & Order.state.in_(LIVE))
                .where(Seat.departure_id == departure_id)
                .order_by(Seat.row, Seat.letter)
            )
            return departure, [(seat, order_id is None) for seat, order_id in session.execute(query)]

    def reserve(self, departure_id: int, customer: str, seat_id: int | None = None, then: OnReserved | None = None) -> Order:
        """A new order of that seat, or of the first free one. Raises NoSuchDeparture, NoSuchSeat, Departed, SeatTaken or SoldOut.

        `then` is called with the session and the new order before they are committed; what it raises takes the order back.
        """
        with self._database.writing() as session:
            departure = session.get(Departure, departure_id)
            if departure is None:
                raise NoSuchDeparture
            if departure.leaves_at <= self._station_now():
                raise Departed
            seat = self._first_free(session, departure_id) if seat_id is None else session.get(Seat, seat_id)
            if seat is None or seat.departure_id != departure_id:
                raise NoSuchSeat if seat_id is not None else SoldOut
            now, name = self.now(), seat.name
            order = Order(
                seat=seat, customer=customer, state=OrderState.RESERVED, price=departure.price, made_at=now, pay_by=now + self.pay_within
            )
            session.add(order)
            try:
                session.flush()
            except IntegrityError as error:
                raise SeatTaken(name) from error
            if then is not None:
                then(session, order)
        return order

    def _first_free(self, session: Session, departure_id: int) -> Seat | None:
        taken = select(Order.seat_id).where(Order.state.in_(LIVE))
        query = select(Seat).where(Seat.departure_id == departure_id, Seat.id.not_in(taken)).order_by(Seat.row, Seat.letter).limit(1)
        return session.scalar(query)

    def pay(self, order_id: int, customer: str) -> None:
        """The order is paid when this returns. Raises NoSuchOrder, AlreadyPaid, AlreadyCancelled or Expired: then nothing was charged."""
        with self._database.writing() as session:
            if not self._end(session, order_id, OrderState.PAID, customer):
                raise self._refusal(session, order_id, customer, "It was not paid: nothing was charged.", "Nothing was charged twice.")

    def cancel(self, order_id: int, customer: str) -> None:
        """The order is cancelled, its seat free, when this returns. Raises as `pay` does; a paid order stays paid."""
        with self._database.writing() as session:
            if not self._end(session, order_id, OrderState.CANCELLED, customer):
                raise self._refusal(session, order_id, customer, "There is nothing to cancel.", "A paid ticket stays paid.")

    def cancel_if_unpaid(self, order_id: int) -> bool:
        """Its time is up: True if this call ended the order, False if it had ended (or never was). Calling it twice is harmless."""
        with self._database.writing() as session:
            return self._end(session, order_id, OrderState.EXPIRED)

    def take_back(self, order_id: int) -> bool:
        """Undoes a reservation that the shop could not keep, as if the customer had cancelled. True if it was still reserved."""
        with self._database.writing() as session:
            return self._end(session, order_id, OrderState.CANCELLED)

    def _end(self, session: Session, order_id: int, state: OrderState, customer: str | None = None) -> bool:
        query = update(Order).where(Order.id == order_id, Order.state == OrderState.RESERVED)
        if customer is not None:
            query = query.where(Order.customer == customer)
        moved = query.values(state=state, ended_at=self.now()).returning(Order.id)
        # Nothing of this session needs to be brought up to date: what follows reads the row anew, or ends it.
        return session.scalar(moved, execution_options={"synchronize_session": False}) is not None

    def _refusal(self, session: Session, order_id: int, customer: str, ended: str, paid: str) -> ShopError:
        order = session.get(Order, order_id)
        if order is None or order.customer != customer:
            return NoSuchOrder()
        if order.state is OrderState.PAID:
            return AlreadyPaid(f"Order {order_id} is paid; seat {order.seat.name} is yours. {paid}")
        if order.state is OrderState.EXPIRED:
            return Expired(f"The time to pay order {order_id} is over, and seat {order.seat.name} is free again. {ended}")
        return AlreadyCancelled(f"Order {order_id} was cancelled before, and its seat is free again. {ended}")

    def orders_of(self, customer: str) -> list[Order]:
        """The customer's fifty newest orders, newest first."""
        query = select(Order).where(Order.customer == customer).order_by(Order.id.desc()).limit(50)
        with self._database.reading() as session:
            return list(session.scalars(query))

    def reserved(self) -> list[Order]:
        """Every order that waits for its payment, of all customers, oldest first."""
        with self._database.reading() as session:
            return list(session.scalars(select(Order).where(Order.state == OrderState.RESERVED).order_by(Order.id)))

    def _station_now(self) -> datetime:
        return datetime.fromtimestamp(self.now(), UTC).astimezone().replace(tzinfo=None)
