"""A changed address takes force only after `change_after` seconds: time to withdraw it if somebody else asked for it. Asking again replaces
the job by its key, withdrawing cancels it.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Mapped, Session, mapped_column

from jobwheel import IJob, JobContext, Retry, RetryJob, TimerManager
from web_example.database import Database
from web_example.errors import ShopError
from web_example.models import Base
from web_example.rearming import release

FIRST = "traveller@example.org"
"""Where tickets go until the customer says otherwise."""
ADDRESS = re.compile(r"[^@\s]{1,64}@[^@\s]{1,190}")
EXACT = 0.001
"""Seconds by which the date of a job may differ from its row's: dates are rounded."""


class Mailbox(Base):
    """Where one customer's tickets are sent, and where they shall be sent soon."""

    __tablename__ = "mailboxes"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str] = mapped_column(unique=True)
    address: Mapped[str] = mapped_column(default=FIRST)
    changed_at: Mapped[float | None]
    wish: Mapped[str | None]
    wish_at: Mapped[float | None]
    """Epoch seconds: when the wish takes force."""


class NoAddress(ShopError):
    title = "That is no address"

    def __init__(self) -> None:
        super().__init__("A mail address has the form name@place and no blanks. Nothing was changed.")


@dataclass
class ApplyAddress(IJob, kind="address.apply", retry=Retry(attempts=5, backoff=2.0), timeout=30):
    """Lets the wish of a mailbox take force; nothing if it was withdrawn."""

    mailbox_id: int

    def run(self, ctx: JobContext, *, addresses: "Addresses") -> None:
        left = addresses.apply(self.mailbox_id)
        if left > 0:  # it was changed again at this very moment: sleep on until the new one's time
            raise RetryJob(left)
        ctx.log(f"mailbox {self.mailbox_id} is up to date")


class Addresses:
    """The customers' addresses. A new one takes force `change_after` seconds after it was asked for; safe from any thread."""

    def __init__(self, database: Database, timer: TimerManager, change_after: float, now: Callable[[], float] = time.time) -> None:
        self._database = database
        self._timer = timer
        self.change_after = change_after
        self.now = now

    def of(self, customer: str) -> Mailbox:
        """The customer's mailbox; one that was never changed has the first address."""
        with self._database.reading() as session:
            return _find(session, customer) or Mailbox(customer=customer, address=FIRST)

    def ask(self, customer: str, address: str) -> None:
        """The address takes force later, in place of any other that was asked for. Raises NoAddress."""
        if not ADDRESS.fullmatch(address):
            raise NoAddress
        with self._database.writing() as session:
            mailbox = _find(session, customer) or Mailbox(customer=customer)
            mailbox.wish, mailbox.wish_at = address, self.now() + self.change_after
            session.add(mailbox)
        self._timer.add_job(ApplyAddress(mailbox.id), at=_date(mailbox.wish_at), key=f"address:{mailbox.id}")

    def withdraw(self, customer: str) -> None:
        """What was asked for does not take force; nothing if it has, or there is nothing."""
        with self._database.writing() as session:
            mailbox = _find(session, customer)
            if mailbox is not None:
                mailbox.wish = mailbox.wish_at = None
        if mailbox is not None:
            release(self._timer, f"address:{mailbox.id}")

    def apply(self, mailbox_id: int) -> float:
        """Lets what was asked for take force if its time has come. Returns the seconds that are left to it; 0: there is nothing to do."""
        with self._database.writing() as session:
            mailbox = session.get(Mailbox, mailbox_id)
            if mailbox is None or mailbox.wish is None or mailbox.wish_at is None:
                return 0.0
            now = self.now()
            if mailbox.wish_at - now > EXACT:
                return mailbox.wish_at - now
            mailbox.address, mailbox.changed_at = mailbox.wish, now
            mailbox.wish = mailbox.wish_at = None
            return 0.0

    def promises(self) -> Iterator[Mapping[str, Any]]:
        """For `Rearming`: the job of each address that was asked for. A date that has passed means now."""
        with self._database.reading() as session:
            asked = list(session.scalars(select(Mailbox).where(Mailbox.wish_at.is_not(None))))
        for mailbox in asked:
            assert mailbox.wish_at is not None
            yield {"job": ApplyAddress(mailbox.id), "at": _date(mailbox.wish_at), "key": f"address:{mailbox.id}"}


def _find(session: Session, customer: str) -> Mailbox | None:
    return session.scalar(select(Mailbox).where(Mailbox.customer == customer))


def _date(epoch: float) -> datetime:
    return datetime.fromtimestamp(epoch, UTC)
