"""Type-checked only: every signature of `run` that the documentation allows, and every way to call the door. No error here."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Protocol, assert_type

from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from jobwheel import IJob, JobContext, Retry, ScheduledJob, State, TimerManager, events, job, open_timer
from jobwheel.testing import manual_timer


class Orders(Protocol):
    def cancel_if_unpaid(self, order_id: int) -> bool: ...


@dataclass
class Nothing(IJob):
    def run(self) -> None:
        return None


@dataclass
class Context(IJob, kind="typing.context"):
    order_id: int

    def run(self, ctx: JobContext) -> int:
        assert_type(ctx.attempt, int)
        assert_type(ctx.scheduled_for, datetime)
        assert_type(ctx.lateness, float)
        assert_type(ctx.cancel_requested, bool)
        return self.order_id


@dataclass
class Services(IJob, kind="typing.services", aliases=("old",), retry=Retry(attempts=5, backoff=2.0, cap=300), timeout=30, priority=1):
    order_id: int

    def run(self, ctx: JobContext, *, orders: Orders, mail: Mapping[str, str] | None = None) -> bool:
        return orders.cancel_if_unpaid(self.order_id)


@dataclass
class OnlyServices(IJob, max_running=2, misfire_grace_time=60, on_crash="interrupt", overlap="queue"):
    def run(self, *, orders: Orders) -> None:
        orders.cancel_if_unpaid(1)


@dataclass
class Coroutine(IJob):
    async def run(self, ctx: JobContext, *, orders: Orders) -> str:
        return f"{ctx.job_id} {orders}"


@dataclass
class CoroutineAlone(IJob):
    async def run(self) -> None: ...


@dataclass(slots=True, frozen=True)
class Slotted(IJob):
    order_id: int

    def run(self, _: JobContext, /) -> None: ...


DAY = date(2026, 12, 1)


class Users(Protocol):
    def count(self, day: date) -> int: ...


@job(kind="typing.count_users", retry=Retry(attempts=3), timeout=60, overlap="queue", catch_up=3, isolation="process")
def count_users(ctx: JobContext, day: date, hours: int = 24, *, users: Users) -> int:
    return users.count(day) + hours


@job
def tidy() -> None: ...


@job(kind="typing.fetch")
async def fetch(url: str, *, users: Users | None = None) -> bytes:
    return url.encode()


def plain(day: date) -> str:
    return str(day)


of_plain = job(plain, kind="typing.plain")


def use_functions(timer: TimerManager, ctx: JobContext, users: Users) -> None:
    timer.add_job(count_users(DAY), timedelta(hours=1), key="count")
    timer.add_job(count_users(DAY, hours=3))
    timer.add_jobs([(tidy(), 5), (of_plain(day=DAY), None)])
    timer.add_job(fetch("https://example.org"))
    timer.find(kind=count_users)
    timer.cancel_all(kind=tidy)
    assert_type(count_users.function(ctx, DAY, users=users), int)
    assert_type(of_plain.function(DAY), str)
    one: IJob = count_users(DAY)
    kinds: list[type[IJob]] = [count_users, tidy, fetch]
    print(one, kinds, count_users(DAY).day, count_users.jobwheel_kind)


async def use_async() -> None:
    assert_type(await fetch.function("https://example.org"), bytes)


def on_fault(error: BaseException, where: str) -> None: ...


def on_failed(event: events.JobFailed) -> None:
    assert_type(event.job, ScheduledJob)


def on_any(event: events.Event) -> None:
    assert_type(event.job.state, State)


def use(timer: TimerManager) -> None:
    job = timer.add_job(Context(1), timedelta(minutes=15), key="order:1", tags=["user:3"], max_wait=3600)
    assert_type(job, ScheduledJob)
    timer.add_job(Services(1), 900)
    timer.add_job(Services(1), 0.5, if_exists="keep", priority=3)
    timer.add_job(Slotted(1), at=datetime.now(UTC))
    assert_type(timer.add_jobs([(Context(1), 5), (Context(2), None)]), list[ScheduledJob])
    timer.add_jobs({"job": Context(number), "delay": number, "key": str(number)} for number in range(3))
    assert_type(timer.cancel(job), bool)
    timer.cancel(job.id)
    timer.cancel("order:1")
    assert_type(timer.touch("order:1", 5), bool)
    with Session() as session:
        assert_type(timer.add_job(Nothing(), 5, after_commit=session), ScheduledJob)
    timer.add_job(Nothing(), after_commit=scoped_session(sessionmaker()))
    timer.add_job(Nothing(), after_commit=SQLAlchemy().session)
    timer.reschedule(job, at=datetime.now(UTC))
    assert_type(timer.find(state="scheduled", kind=Context, after=job, limit=5), list[ScheduledJob])
    timer.find(state=[State.FAILED, "missed"], tag="user:3", text="42")
    assert_type(timer.get(3), ScheduledJob | None)
    assert_type(timer.wait(job, timeout=3.0), ScheduledJob)
    assert_type(timer.stats().pending, int)
    assert_type(timer.health().ok, bool)
    assert_type(timer.shutdown(timeout=1), list[int])
    timer.on(events.JobFailed, on_failed)
    timer.on(events.JobFailed, on_any)
    timer.on_error(on_fault)
    timer.on_error(lambda error, where: print(type(error), where.upper()))
    with open_timer("config/wheel.yml", services={"orders": object()}) as entered:
        assert_type(entered, TimerManager)
    manual, clock = manual_timer(store={"keep": 5})
    manual.add_job(Nothing())
    clock.advance(5)
