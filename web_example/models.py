"""The shop's first tables: departures, their seats, and orders. No rules of selling here, but for the one that the database itself keeps.

A seat is free when no live order (reserved or paid) points at it. There is no counter and no flag beside the order's row, so nothing can
disagree with it: ending the order frees the seat in the same write.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import Enum, ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship


class OrderState(StrEnum):
    """Where an order is. RESERVED is the only one with a way out, so whoever moves the row first decides."""

    RESERVED = "reserved"
    PAID = "paid"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class Base(DeclarativeBase):
    """The shop's declarative base, also of the tables that `scenarios` add."""


def values(states: Iterable[StrEnum]) -> list[str]:
    """How a column keeps an enum: by its values."""
    return [state.value for state in states]


class Departure(Base):
    """One train on one day."""

    __tablename__ = "departures"
    __table_args__ = (UniqueConstraint("train", "leaves_at"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    train: Mapped[str]
    origin: Mapped[str]
    destination: Mapped[str]
    leaves_at: Mapped[datetime]
    """Naive on purpose: what the station's clock shows."""
    minutes: Mapped[int]
    platform: Mapped[str]
    price: Mapped[int]
    """In cents."""
    seats: Mapped[list["Seat"]] = relationship(back_populates="departure", order_by="Seat.row, Seat.letter")

    @property
    def arrives_at(self) -> datetime:
        return self.leaves_at + timedelta(minutes=self.minutes)


class Seat(Base):
    """One seat of one departure."""

    __tablename__ = "seats"
    __table_args__ = (UniqueConstraint("departure_id", "row", "letter"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    departure_id: Mapped[int] = mapped_column(ForeignKey("departures.id"))
    row: Mapped[int]
    letter: Mapped[str]
    departure: Mapped[Departure] = relationship(back_populates="seats", lazy="joined", innerjoin=True)

    @property
    def name(self) -> str:
        """As printed on the ticket: "4B"."""
        return f"{self.row}{self.letter}"


class Order(Base):
    """One customer's claim on one seat. Rows are never deleted; numbers are never used again."""

    __tablename__ = "orders"
    __table_args__ = (
        # The database refuses a second live order of a seat, whatever the code above it does.
        Index("one_live_order_per_seat", "seat_id", unique=True, sqlite_where=text("state IN ('reserved', 'paid')")),
        Index("orders_by_customer", "customer", "id"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    seat_id: Mapped[int] = mapped_column(ForeignKey("seats.id"))
    customer: Mapped[str]
    state: Mapped[OrderState] = mapped_column(Enum(OrderState, native_enum=False, create_constraint=True, values_callable=values))
    price: Mapped[int]
    """In cents, as it was when the order was made."""
    made_at: Mapped[float]
    """Epoch seconds, like the next two."""
    pay_by: Mapped[float]
    """What the countdown shows. It expires nothing: `state` alone says whether the order can still be paid."""
    ended_at: Mapped[float | None]
    seat: Mapped[Seat] = relationship(lazy="joined", innerjoin=True)
