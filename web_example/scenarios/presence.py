"""Who is online: each open page sends a sign every few seconds, each sign puts a job off, and the job that is not put off any more ends
the visit. `touch` is all that a sign costs; no row is read or written for it.
"""

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Mapped, mapped_column

from jobwheel import IJob, Retry, State, TimerManager
from web_example.database import Database
from web_example.models import Base

DAY = 86400
COLOURS = ("Amber", "Blue", "Copper", "Green", "Grey", "Red", "Silver", "White")
ANIMALS = ("Badger", "Crane", "Dormouse", "Fox", "Hare", "Heron", "Lynx", "Marten", "Otter", "Owl", "Stork", "Wren")


class Visit(Base):
    """One page that is, or was, open in a browser."""

    __tablename__ = "visits"

    id: Mapped[str] = mapped_column(primary_key=True)
    """A random word, told to that page alone: who knows it keeps the visit alive. (The wheel's page, which a real shop would show to its
    own people only, has it in the key of the job.)"""
    customer: Mapped[str] = mapped_column(index=True)
    opened_at: Mapped[float]
    closed_at: Mapped[float | None] = mapped_column(index=True)


@dataclass
class MarkOffline(IJob, kind="presence.mark_offline", retry=Retry(attempts=5, backoff=2.0), timeout=30):
    """Ends a visit of which nothing was heard for a while."""

    visit: str

    def run(self, *, presence: "Presence") -> None:
        presence.close(self.visit)


@dataclass(frozen=True, slots=True)
class Traveller:
    """Somebody as the others see them. `due` is when they count as gone if no sign comes; `left` when they went, None while online."""

    name: str
    me: bool
    since: float
    due: float
    left: float | None = None


class Presence:
    """The travellers who are here. A visit ends `offline_after` seconds after its last sign; safe from any thread."""

    def __init__(self, database: Database, timer: TimerManager, offline_after: float, now: Callable[[], float] = time.time) -> None:
        self._database = database
        self._timer = timer
        self.offline_after = offline_after
        self.now = now

    def sign(self, customer: str, visit: str) -> str:
        """The page of this visit is open. Returns the visit that it shall name next time: the same, or a new one if that has ended."""
        if visit and self._timer.touch(f"visit:{visit}"):
            return visit
        visit = secrets.token_urlsafe(9)
        with self._database.writing() as session:
            session.add(Visit(id=visit, customer=customer, opened_at=self.now()))
        self._timer.add_job(MarkOffline(visit), self.offline_after, key=f"visit:{visit}")
        return visit

    def close(self, visit: str) -> None:
        """Ends the visit; nothing if it has ended. Forgets those of yesterday."""
        now = self.now()
        with self._database.writing() as session:
            session.execute(update(Visit).where(Visit.id == visit, Visit.closed_at.is_(None)).values(closed_at=now))
            session.execute(delete(Visit).where(Visit.closed_at < now - DAY))

    def online(self, me: str) -> list[Traveller]:
        """Those with an open visit, the longest one first."""
        waiting = self._timer.find(kind=MarkOffline, state=State.SCHEDULED, limit=10_000)
        due = {job.key: job.due.timestamp() for job in waiting}
        here: dict[str, Traveller] = {}
        for visit in self._open():
            until = due.get(f"visit:{visit.id}", self.now())
            before = here.get(visit.customer)
            since, until = (before.since, max(before.due, until)) if before else (visit.opened_at, until)
            here[visit.customer] = Traveller(name_of(visit.customer), visit.customer == me, since, until)
        return list(here.values())

    def gone(self, me: str, limit: int = 5) -> list[Traveller]:
        """Those who went last, latest first, if they are not here again."""
        last = func.max(Visit.closed_at)
        # A visit without an end is the latest one: those who have one are online.
        query = (
            select(Visit.customer, func.min(Visit.opened_at), last)
            .group_by(Visit.customer)
            .having(func.count() == func.count(Visit.closed_at))
            .order_by(last.desc())
            .limit(limit)
        )
        with self._database.reading() as session:
            ended = [(customer, since, left) for customer, since, left in session.execute(query) if left is not None]
        return [Traveller(name_of(customer), customer == me, since, left, left) for customer, since, left in ended]

    def count(self) -> int:
        """How many travellers are online."""
        with self._database.reading() as session:
            return session.scalar(select(func.count(Visit.customer.distinct())).where(Visit.closed_at.is_(None))) or 0

    def promises(self) -> Iterator[Mapping[str, Any]]:
        """For `Rearming`: each open visit's job. When its last sign came nobody wrote down, so it has the whole time once more."""
        for visit in self._open():
            yield {"job": MarkOffline(visit.id), "delay": self.offline_after, "key": f"visit:{visit.id}"}

    def _open(self) -> list[Visit]:
        with self._database.reading() as session:
            return list(session.scalars(select(Visit).where(Visit.closed_at.is_(None)).order_by(Visit.opened_at)))


def name_of(customer: str) -> str:
    """What the others call a customer: always the same, and it says nothing about them."""
    digest = hashlib.sha256(customer.encode()).digest()
    return f"{COLOURS[digest[0] % len(COLOURS)]} {ANIMALS[digest[1] % len(ANIMALS)]}"
