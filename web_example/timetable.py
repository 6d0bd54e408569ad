"""The demo's trains: the same few every day, written for tomorrow when none lies ahead. Called by `orders` in its own transaction."""

from datetime import datetime, time, timedelta
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from web_example.models import Departure, Seat


class Train(NamedTuple):
    """One line of the timetable; `rows` of four seats each."""

    name: str
    origin: str
    destination: str
    leaves: time
    minutes: int
    platform: str
    price: int
    rows: int


TRAINS = (
    Train("QC 11", "Berlin", "Prague", time(6, 32), 252, "5", 2990, 8),
    Train("QC 24", "Berlin", "Hamburg", time(8, 14), 107, "7", 1990, 8),
    Train("QC 37", "Vienna", "Venice", time(9, 25), 459, "2", 4490, 7),
    Train("QC 52", "Zürich", "Milan", time(11, 33), 197, "9", 3490, 6),
    Train("QC 68", "Paris", "Strasbourg", time(14, 55), 106, "23", 2790, 7),
    Train("QC 99", "Copenhagen", "Stockholm", time(18, 21), 308, "4", 3990, 1),
)
LETTERS = "ABCD"


def write_tomorrow(session: Session, station_now: datetime) -> None:
    """Puts tomorrow's trains into the timetable if nothing leaves after `station_now`; otherwise nothing."""
    if session.scalar(select(Departure.id).where(Departure.leaves_at > station_now).limit(1)) is not None:
        return
    tomorrow = station_now.date() + timedelta(days=1)
    for train in TRAINS:
        seats = [Seat(row=row, letter=letter) for row in range(1, train.rows + 1) for letter in LETTERS]
        session.add(
            Departure(
                train=train.name,
                origin=train.origin,
                destination=train.destination,
                leaves_at=datetime.combine(tomorrow, train.leaves),
                minutes=train.minutes,
                platform=train.platform,
                price=train.price,
                seats=seats,
            )
        )
