"""A message to thousands, sent in the background while urgent mails overtake it: the message is cut into slices, each a job of low
priority; an urgent mail is one of high priority, so it has the next worker that is free. No mail leaves: the outbox is a table.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import UniqueConstraint, func, select, update
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.orm import Mapped, mapped_column

from jobwheel import IJob, JobContext, Retry, ScheduledJob, State, TimerManager
from web_example.database import Database
from web_example.errors import ShopError
from web_example.models import Base

SLICE = 20
"""Mails in one job: long enough to be worth a job, short enough that an urgent mail soon finds a free worker."""
MOST = 10_000
RUSH, LEISURE = 50, -10


class Message(Base):
    """One message and to how many it goes."""

    __tablename__ = "messages"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str] = mapped_column(index=True)
    subject: Mapped[str]
    recipients: Mapped[int]
    urgent: Mapped[bool]
    asked_at: Mapped[float]
    stopped: Mapped[bool] = mapped_column(default=False)


class Mail(Base):
    """The outbox: one mail that has been sent."""

    __tablename__ = "mails"
    __table_args__ = (UniqueConstraint("message_id", "number"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    message_id: Mapped[int]
    number: Mapped[int]
    """Which of the message's recipients it went to, from 1 on."""
    waited: Mapped[float]
    """Seconds from the customer's click until somebody began to send it."""


class NoSubject(ShopError):
    title = "What is it about?"

    def __init__(self) -> None:
        super().__init__("A message needs a subject of one to a hundred letters. Nothing was sent.")


class NoRecipients(ShopError):
    title = "To how many?"

    def __init__(self) -> None:
        super().__init__(f"A message goes to one recipient at least and to {MOST} at most. Nothing was sent.")


class NoSuchMessage(ShopError):
    status = 404
    title = "No such message"

    def __init__(self) -> None:
        super().__init__("There is no message of yours with this number.")


@dataclass
class SendSlice(IJob, kind="mail.send_slice", priority=LEISURE, retry=Retry(attempts=5, backoff=2.0), timeout=60):
    """Sends the mails from number `first` to number `last` of a message."""

    message_id: int
    first: int
    last: int

    def run(self, ctx: JobContext, *, mailing: "Mailing") -> int:
        numbers = mailing.unsent(self.message_id, self.first, self.last)
        mailing.send(self.message_id, numbers, on_sent=lambda done: ctx.progress(done, len(numbers)))
        if numbers:
            ctx.log(f"sent to recipients {numbers[0]} to {numbers[-1]}")
        return len(numbers)


@dataclass
class SendUrgent(IJob, kind="mail.send_urgent", priority=RUSH, retry=Retry(attempts=5, backoff=2.0), timeout=30):
    """Sends one mail before all others that wait."""

    message_id: int

    def run(self, ctx: JobContext, *, mailing: "Mailing") -> None:
        mailing.send(self.message_id, mailing.unsent(self.message_id, 1, 1))
        ctx.log("sent before all others")


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a message is: mails sent, and how long the latest one had to wait for its turn (None: none was sent)."""

    message: Message
    sent: int
    waited: float | None

    @property
    def ended(self) -> bool:
        return self.message.stopped or self.sent >= self.message.recipients


class Mailing:
    """Sends messages; one mail takes `mail_takes` seconds. Safe from any thread. `pause` waits that long."""

    def __init__(
        self,
        database: Database,
        timer: TimerManager,
        mail_takes: float,
        now: Callable[[], float] = time.time,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._database = database
        self._timer = timer
        self.mail_takes = mail_takes
        self.now = now
        self._pause = pause

    def write(self, customer: str, subject: str, recipients: int) -> Message:
        """A message to that many; returns when it waits to be sent, all of it. Raises NoSubject or NoRecipients."""
        if not 1 <= recipients <= MOST:
            raise NoRecipients
        message = self._written(customer, subject, recipients, urgent=False)
        self._timer.add_jobs(self._slices(message))
        return message

    def write_urgent(self, customer: str, subject: str) -> Message:
        """A message to one, which does not wait behind those to many. Raises NoSubject."""
        message = self._written(customer, subject, 1, urgent=True)
        self._timer.add_job(SendUrgent(message.id), key=f"mail:{message.id}")
        return message

    def stop(self, message_id: int, customer: str) -> None:
        """What was not sent yet will not be. Raises NoSuchMessage."""
        stop = update(Message).where(Message.id == message_id, Message.customer == customer).values(stopped=True).returning(Message.id)
        with self._database.writing() as session:
            if session.scalar(stop) is None:
                raise NoSuchMessage
        self._timer.cancel_all(tag=f"message:{message_id}")

    def unsent(self, message_id: int, first: int, last: int) -> list[int]:
        """Which of these mails are still to be sent: none of a stopped message, the rest of one that a crash cut short."""
        with self._database.reading() as session:
            message = session.get(Message, message_id)
            if message is None or message.stopped:
                return []
            sent = select(Mail.number).where(Mail.message_id == message_id, Mail.number.between(first, last))
            return sorted(set(range(first, last + 1)).difference(session.scalars(sent)))

    def send(self, message_id: int, numbers: list[int], on_sent: Callable[[int], object] = lambda done: None) -> None:
        """Sends these mails, one after the other, then writes them all down. A repeat of one that is written down adds nothing."""
        began = self.now()
        for done, _ in enumerate(numbers, start=1):
            self._pause(self.mail_takes)
            on_sent(done)
        with self._database.writing() as session:
            message = session.get(Message, message_id)
            if message is not None and numbers:
                waited = max(0.0, began - message.asked_at)
                rows = [{"message_id": message_id, "number": number, "waited": waited} for number in numbers]
                session.execute(insert(Mail).on_conflict_do_nothing(), rows)

    def standings(self, customer: str, *, urgent: bool, limit: int) -> list[Standing]:
        """The customer's latest messages and how far they are, latest first."""
        sent = select(func.count()).where(Mail.message_id == Message.id).scalar_subquery()
        waited = select(func.max(Mail.waited)).where(Mail.message_id == Message.id).scalar_subquery()
        mine = select(Message, sent, waited).where(Message.customer == customer, Message.urgent == urgent)
        query = mine.order_by(Message.id.desc()).limit(limit)
        with self._database.reading() as session:
            return [Standing(message, count, waited) for message, count, waited in session.execute(query)]

    def jobs_of(self, message_id: int) -> list[ScheduledJob]:
        """The message's jobs that run or have run, in the order in which they came to an end."""
        jobs = self._timer.find(tag=f"message:{message_id}", state=(State.RUNNING, State.SUCCEEDED, State.FAILED), limit=MOST)
        return sorted(jobs, key=lambda job: (job.ended is None, job.ended or job.due))

    def promises(self) -> Iterator[Mapping[str, Any]]:
        """For `Rearming`: the jobs of each message that is not sent to all."""
        sent = select(func.count()).where(Mail.message_id == Message.id).scalar_subquery()
        with self._database.reading() as session:
            messages = list(session.scalars(select(Message).where(~Message.stopped, sent < Message.recipients)))
        for message in messages:
            if message.urgent:
                yield {"job": SendUrgent(message.id), "key": f"mail:{message.id}"}
                continue
            for slice_ in self._slices(message):
                if self.unsent(message.id, slice_["job"].first, slice_["job"].last):
                    yield slice_

    def _written(self, customer: str, subject: str, recipients: int, urgent: bool) -> Message:
        if not (subject := " ".join(subject.split())) or len(subject) > 100:
            raise NoSubject
        message = Message(customer=customer, subject=subject, recipients=recipients, urgent=urgent, asked_at=self.now())
        with self._database.writing() as session:
            session.add(message)
        return message

    @staticmethod
    def _slices(message: Message) -> Iterator[dict[str, Any]]:
        for first in range(1, message.recipients + 1, SLICE):
            job = SendSlice(message.id, first, min(first + SLICE - 1, message.recipients))
            yield {"job": job, "key": f"mail:{message.id}:{first}", "tags": [f"message:{message.id}"]}
