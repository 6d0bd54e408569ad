"""The rules of `add_job(..., after_commit=session)`, one test each: what the transaction keeps is scheduled, and nothing else."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from sqlite3 import Connection as SqliteConnection
from types import SimpleNamespace
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, ForeignKey, create_engine, event, select, text
from sqlalchemy.exc import IntegrityError, PendingRollbackError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker
from sqlalchemy.pool import StaticPool

from jobwheel import IJob, JobExists, State, StoreError, TimerManager, TooManyPending, UsageError, events, open_timer
from jobwheel.after_commit import WAITING
from jobwheel.errors import BadType, BadValue
from jobwheel.testing import ManualClock, manual_timer

ManualTimer = Callable[..., tuple[TimerManager, ManualClock]]


@dataclass
class Expire(IJob, kind="after_commit.expire"):
    order_id: int

    def run(self) -> None:
        pass


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    after: Mapped[int | None] = mapped_column(ForeignKey("orders.id", deferrable=True, initially="DEFERRED"))


def _on_connect(connection: SqliteConnection, _: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")


def _on_begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def open_engine(url: str = "sqlite://", **options: Any) -> Engine:
    """SQLite as SQLAlchemy's documents say it must be set for savepoints to be real."""
    engine = create_engine(url, **options)
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)
    Base.metadata.create_all(engine)
    return engine


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = open_engine(poolclass=StaticPool)
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session:
        yield session


@pytest.fixture
def timer(manual: ManualTimer) -> TimerManager:
    return manual()[0]


def add(timer: TimerManager, session: Any, number: int, **more: Any) -> None:
    """An order's row and its job, both in the session's transaction."""
    if isinstance(session, Session):
        session.add(Order(id=number))
    timer.add_job(Expire(number), 60, key=f"order:{number}", after_commit=session, **more)


def waiting(timer: TimerManager) -> list[int]:
    """The orders that have a job, in the order of the adds."""
    jobs = [job.job for job in timer.find(state=State.SCHEDULED)]
    return [job.order_id for job in jobs if isinstance(job, Expire)]


def stored(engine: Engine) -> list[int]:
    with Session(engine) as session:
        return list(session.scalars(select(Order.id).order_by(Order.id)))


def test_a_job_is_scheduled_when_the_transaction_is_committed_and_not_before(timer: TimerManager, session: Session) -> None:
    add(timer, session, 1)
    session.flush()
    assert waiting(timer) == []
    session.commit()
    assert waiting(timer) == [1]


def test_nothing_is_scheduled_on_rollback_and_the_next_transaction_does_not_bring_it_back(timer: TimerManager, session: Session) -> None:
    add(timer, session, 1)
    session.rollback()
    add(timer, session, 2)
    session.commit()
    assert waiting(timer) == [2]


def test_the_delay_counts_from_the_call(manual: ManualTimer, session: Session) -> None:
    timer, clock = manual()
    picture = timer.add_job(Expire(1), 60, key="order:1", after_commit=session)
    clock.advance(50)
    session.commit()
    job = timer.get("order:1")
    assert job is not None
    assert (job.due, job.created) == (picture.due, picture.created)
    clock.advance(9.9)
    assert waiting(timer) == [1]
    clock.advance(0.1)
    assert waiting(timer) == []


def test_a_transaction_that_takes_longer_than_the_delay_makes_the_job_late_and_not_lost(manual: ManualTimer, session: Session) -> None:
    timer, clock = manual()
    timer.add_job(Expire(1), 60, key="order:1", after_commit=session)
    clock.advance(100)
    session.commit()
    clock.advance(0)
    job = timer.get("order:1")
    assert job is not None
    assert job.state is State.SUCCEEDED
    assert job.lateness == pytest.approx(40)


def test_the_answer_is_a_picture_of_what_will_be(manual: ManualTimer, session: Session) -> None:
    timer, clock = manual()
    picture = timer.add_job(Expire(1), timedelta(minutes=1), key="order:1", priority=5, tags=["shop"], after_commit=session)
    assert (picture.id, picture.key, picture.job, picture.state) == (0, "order:1", Expire(1), State.SCHEDULED)
    assert (picture.priority, picture.tags) == (5, ("shop",))
    assert picture.due.timestamp() == clock.wall() + 60
    assert timer.get("order:1") is None
    assert not timer.cancel(picture)
    session.commit()
    job = timer.get("order:1")
    assert job is not None
    assert job.id > 0


def test_several_adds_keep_their_order(timer: TimerManager, session: Session) -> None:
    for number in (3, 1, 2):
        add(timer, session, number)
        if number == 1:
            with session.begin_nested():
                add(timer, session, 7)
    session.commit()
    assert waiting(timer) == [3, 1, 7, 2]


def test_a_session_that_is_used_again_fires_once_for_each_transaction(timer: TimerManager, session: Session) -> None:
    heard: list[int] = []
    timer.on(events.JobAdded, lambda added: heard.append(added.job.id))
    add(timer, session, 1)
    session.commit()
    session.commit()
    add(timer, session, 2)
    session.commit()
    session.rollback()
    assert waiting(timer) == [1, 2]
    assert len(heard) == 2
    assert WAITING not in session.info


def test_closing_without_a_commit_drops(timer: TimerManager, engine: Engine) -> None:
    with Session(engine) as session:
        add(timer, session, 1)
    session.commit()
    add(timer, session, 2)
    session.close()
    session.commit()
    assert waiting(timer) == []


@pytest.mark.parametrize("end", ["rollback", "close"])
def test_an_add_to_a_session_without_a_transaction_begins_it(timer: TimerManager, session: Session, end: str) -> None:
    assert not session.in_transaction()
    timer.add_job(Expire(1), after_commit=session)
    getattr(session, end)()
    session.commit()
    assert waiting(timer) == []
    timer.add_job(Expire(2), after_commit=session)
    session.commit()
    assert waiting(timer) == [2]


def test_a_session_that_begins_only_when_told_to_is_not_begun_for_an_add(timer: TimerManager, engine: Engine) -> None:
    with Session(engine, autobegin=False) as session:
        with pytest.raises(UsageError, match=r"call its begin\(\) first"):
            timer.add_job(Expire(1), after_commit=session)
        assert not session.in_transaction()
        with session.begin():
            add(timer, session, 2)
    assert waiting(timer) == [2]


def test_a_block_commits_at_its_end_and_rolls_back_on_an_error(timer: TimerManager, engine: Engine) -> None:
    maker = sessionmaker(engine)
    with maker.begin() as session:
        add(timer, session, 1)
    with suppress(ZeroDivisionError), maker.begin() as session:
        add(timer, session, 2)
        raise ZeroDivisionError
    assert (waiting(timer), stored(engine)) == ([1], [1])


def test_a_savepoint_that_is_rolled_back_takes_its_jobs_along_and_no_others(timer: TimerManager, session: Session, engine: Engine) -> None:
    add(timer, session, 1)
    savepoint = session.begin_nested()
    add(timer, session, 2)
    savepoint.rollback()
    add(timer, session, 3)
    session.commit()
    assert waiting(timer) == [1, 3] == stored(engine)


def test_a_released_savepoint_schedules_when_the_outer_transaction_commits(timer: TimerManager, session: Session) -> None:
    with session.begin_nested():
        add(timer, session, 1)
    assert waiting(timer) == []
    session.commit()
    assert waiting(timer) == [1]


def test_a_released_savepoint_in_one_that_is_rolled_back_is_rolled_back_with_it(timer: TimerManager, session: Session) -> None:
    add(timer, session, 1)
    outer = session.begin_nested()
    with session.begin_nested():
        add(timer, session, 2)
    add(timer, session, 3)
    outer.rollback()
    session.commit()
    assert waiting(timer) == [1]


@pytest.mark.parametrize("end", ["rollback", "close"])
def test_the_end_of_the_outer_transaction_drops_what_is_in_released_and_open_savepoints(
    timer: TimerManager, session: Session, end: str
) -> None:
    add(timer, session, 1)
    with session.begin_nested():
        add(timer, session, 2)
    session.begin_nested()
    add(timer, session, 3)
    getattr(session, end)()
    session.commit()
    assert waiting(timer) == []


def test_a_commit_takes_the_open_savepoints_along(timer: TimerManager, session: Session, engine: Engine) -> None:
    add(timer, session, 1)
    session.begin_nested()
    session.begin_nested()
    add(timer, session, 2)
    session.commit()
    assert waiting(timer) == [1, 2] == stored(engine)


STEPS = ("add", "savepoint", "release", "undo", "commit", "rollback", "close")


@given(st.lists(st.sampled_from(STEPS), max_size=30))
@settings(deadline=None, max_examples=150)
def test_whatever_the_nesting_the_jobs_are_those_of_the_rows_that_stayed(steps: list[str]) -> None:
    engine = open_engine(poolclass=StaticPool)
    timer, _ = manual_timer()
    with Session(engine) as session:
        for number, step in enumerate(steps, 1):
            nested = session.get_nested_transaction()
            if step == "add":
                add(timer, session, number)
            elif step == "savepoint":
                session.begin_nested()
            elif step in {"commit", "rollback", "close"}:
                getattr(session, step)()
                assert WAITING not in session.info
            elif nested is not None:
                nested.commit() if step == "release" else nested.rollback()
    assert waiting(timer) == stored(engine)
    timer.shutdown()
    engine.dispose()


def test_a_failed_flush_drops_and_the_session_takes_no_more_until_it_is_rolled_back(timer: TimerManager, session: Session) -> None:
    session.execute(text("INSERT INTO orders (id) VALUES (1)"))
    add(timer, session, 1)
    with pytest.raises(IntegrityError):
        session.flush()
    with pytest.raises(UsageError, match="roll it back"):
        timer.add_job(Expire(2), after_commit=session)
    with pytest.raises(PendingRollbackError):
        session.commit()
    session.rollback()
    session.commit()
    assert waiting(timer) == []


def test_a_commit_that_the_database_refuses_schedules_nothing(timer: TimerManager, session: Session, engine: Engine) -> None:
    session.add(Order(id=1, after=99))
    timer.add_job(Expire(1), after_commit=session)
    with pytest.raises(IntegrityError):
        session.commit()
    assert waiting(timer) == []
    session.rollback()
    add(timer, session, 2)
    session.commit()
    assert waiting(timer) == [2] == stored(engine)


def test_an_add_from_inside_a_flush_belongs_to_the_transaction_around_it(timer: TimerManager, session: Session) -> None:
    @event.listens_for(session, "after_flush")
    def _each_new_order(inner: Session, _: object) -> None:
        for row in inner.new:
            timer.add_job(Expire(row.id), after_commit=inner)

    session.add(Order(id=1))
    session.commit()
    with session.begin_nested() as savepoint:
        session.add(Order(id=2))
        session.flush()
        savepoint.rollback()
    session.add(Order(id=3))
    session.commit()
    assert waiting(timer) == [1, 3]


def test_a_listener_of_the_commit_itself_is_told_that_it_comes_too_late(timer: TimerManager, session: Session) -> None:
    told: list[Exception] = []

    @event.listens_for(session, "after_commit")
    def _too_late(inner: Session) -> None:
        with pytest.raises(UsageError, match="being committed") as refusal:
            timer.add_job(Expire(2), after_commit=inner)
        told.append(refusal.value)

    add(timer, session, 1)
    session.commit()
    assert len(told) == 1
    assert waiting(timer) == [1]


def test_a_session_that_was_in_use_before_the_first_add_is_followed_as_well(engine: Engine) -> None:
    code = """
import jobwheel, sys
from jobwheel.testing import manual_timer
from sqlalchemy import create_engine, event, text
from sqlalchemy.orm import Session
class Job(jobwheel.IJob):
    def run(self): pass
class Own(Session): pass
timer, _ = manual_timer()
session = Own(create_engine("sqlite://"))
event.listen(session, "after_commit", lambda session: None)
session.execute(text("select 1")); session.commit(); session.execute(text("select 1"))
timer.add_job(Job(), 5, after_commit=session)
assert not timer.find()
session.commit()
assert len(timer.find()) == 1
session.close()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_scoped_session_means_the_one_of_this_thread(timer: TimerManager, tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path}/orders.db")
    scoped = scoped_session(sessionmaker(engine))
    both = threading.Barrier(2)
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(number, 40, 2):
                timer.add_job(Expire(turn), 60, after_commit=scoped)
                both.wait(10)
                (scoped.commit if number else scoped.rollback)()
                both.wait(10)
            scoped.remove()
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    engine.dispose()
    assert not failed
    assert waiting(timer) == list(range(1, 40, 2))


def test_the_session_of_flask_sqlalchemy_drops_with_the_request_and_commits_with_its_commit(timer: TimerManager) -> None:
    app = Flask(__name__)
    app.config["SQLALCHEMY_DATABASE_URI"] = "sqlite://"
    db = SQLAlchemy(app)

    @app.post("/<int:number>/<word>")
    def order(number: int, word: str) -> str:
        timer.add_job(Expire(number), 60, after_commit=db.session)
        db.session.execute(text("select 1"))
        if word == "commit":
            db.session.commit()
        return ""

    client = app.test_client()
    for number, word in ((1, "forget"), (2, "commit"), (3, "forget"), (4, "commit")):
        assert client.post(f"/{number}/{word}").status_code == 200
    with app.app_context():
        db.session.commit()
        db.engine.dispose()
    assert waiting(timer) == [2, 4]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"job": Expire}, BadType),
        ({"delay": -1}, BadValue),
        ({"delay": "soon"}, BadType),
        ({"delay": 5, "max_wait": 1}, BadValue),
        ({"key": ""}, BadValue),
        ({"tags": "shop"}, BadType),
        ({"if_exists": "drop"}, BadValue),
        ({"priority": 1000}, BadValue),
    ],
)
def test_bad_arguments_raise_at_the_call_and_leave_the_session_as_it_was(
    timer: TimerManager, session: Session, arguments: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        timer.add_job(**({"job": Expire(1)} | arguments), after_commit=session)
    assert not session.in_transaction()
    session.commit()
    assert waiting(timer) == []


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (True, "not bool"),
        ("session", "not str"),
        (sessionmaker(), "call it"),
        (Session, "call it"),
        (SimpleNamespace(sync_session=None), "give its sync_session"),
    ],
)
def test_what_is_no_session_is_refused_with_what_to_give(timer: TimerManager, given: Any, hint: str) -> None:
    with pytest.raises(BadType, match=f"Session or scoped_session.*{hint}"):
        timer.add_job(Expire(1), after_commit=given)
    assert waiting(timer) == []


def test_without_sqlalchemy_it_says_what_to_install(timer: TimerManager, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "sqlalchemy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(UsageError, match=r"pip install 'jobwheel\[sqlalchemy\]'"):
        timer.add_job(Expire(1), after_commit=object())  # type: ignore[arg-type]
    timer.add_job(Expire(2))
    assert waiting(timer) == [2]


def test_add_jobs_has_no_after_commit_and_says_so(timer: TimerManager, session: Session) -> None:
    with pytest.raises(BadType, match="after_commit= is for add_job alone"):
        timer.add_jobs([{"job": Expire(1), "after_commit": session}])
    session.commit()
    assert waiting(timer) == []


def test_the_job_that_holds_the_key_is_replaced_at_the_commit_and_not_before(timer: TimerManager, session: Session) -> None:
    old = timer.add_job(Expire(1), 60, key="order")
    timer.add_job(Expire(2), 60, key="order", after_commit=session)
    assert timer.get("order") == old
    session.rollback()
    assert timer.get("order") == old
    timer.add_job(Expire(3), 60, key="order", after_commit=session)
    session.commit()
    assert waiting(timer) == [3]
    timer.add_job(Expire(4), 60, key="order", if_exists="keep", after_commit=session)
    session.commit()
    assert waiting(timer) == [3]


@dataclass
class Full:
    """A store whose `add` fails for some orders."""

    timer: TimerManager
    monkeypatch: pytest.MonkeyPatch
    tried: list[int] = field(default_factory=list)

    def of(self, *numbers: int) -> None:
        store = self.timer._life.store
        whole = store.add

        def add(row: Any, if_exists: Any) -> Any:
            self.tried.append(row.job.order_id)
            if row.job.order_id in numbers:
                raise StoreError("the disk is full")
            return whole(row, if_exists)

        self.monkeypatch.setattr(store, "add", add, raising=True)


def test_a_store_that_refuses_after_the_commit_is_told_and_the_other_jobs_are_still_added(
    timer: TimerManager, session: Session, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Full(timer, monkeypatch)
    store.of(1, 3)
    for number in (1, 2, 3, 4):
        add(timer, session, number)
    with pytest.raises(StoreError) as refusal:
        session.commit()
    told = str(refusal.value)
    assert told.startswith("the transaction is committed, but 2 of its 4 jobs are not stored: after_commit.expire with key 'order:1'")
    assert "order:3" in told
    assert told.count("the disk is full") == 2
    assert isinstance(refusal.value.__cause__, StoreError)
    assert store.tried == [1, 2, 3, 4]
    assert waiting(timer) == [2, 4]
    assert stored(engine) == [1, 2, 3, 4]


@contextmanager
def by_hand(session: Session) -> Iterator[None]:
    yield
    session.commit()


@contextmanager
def closing(session: Session) -> Iterator[None]:
    with session, session.begin():
        yield


WAYS: dict[str, Callable[[Session], AbstractContextManager[Any]]] = {"commit": by_hand, "block": Session.begin, "two blocks": closing}


@pytest.mark.parametrize("way", WAYS)
def test_a_session_whose_jobs_could_not_be_stored_can_be_used_on(
    timer: TimerManager, engine: Engine, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    store = Full(timer, monkeypatch)
    store.of(1)
    session = Session(engine)
    with pytest.raises(StoreError), WAYS[way](session):
        add(timer, session, 1)
    assert not session.in_transaction()
    assert session.get(Order, 1) is not None
    add(timer, session, 2)
    session.commit()
    session.close()
    assert waiting(timer) == [2]
    assert store.tried == [1, 2]


def test_an_existing_key_and_a_full_timer_are_told_by_the_commit_too(manual: ManualTimer, session: Session) -> None:
    timer, _ = manual(max_pending=1)
    timer.add_job(Expire(1), 60, key="order")
    timer.add_job(Expire(2), 60, key="order", if_exists="error", after_commit=session)
    with pytest.raises(StoreError, match=r"is committed.*JobExists") as refusal:
        session.commit()
    assert isinstance(refusal.value.__cause__, JobExists)
    timer.add_job(Expire(3), 60, after_commit=session)
    with pytest.raises(StoreError, match="TooManyPending") as refusal:
        session.commit()
    assert isinstance(refusal.value.__cause__, TooManyPending)
    assert waiting(timer) == [1]


def test_two_timers_may_wait_for_one_commit(manual: ManualTimer, session: Session) -> None:
    (one, _), (other, _) = manual(), manual()
    add(one, session, 1)
    other.add_job(Expire(2), after_commit=session)
    session.commit()
    assert (waiting(one), waiting(other)) == ([1], [2])


def test_in_a_file_the_data_is_checked_at_the_call_and_the_job_is_there_for_every_process_after_the_commit(
    manual: ManualTimer, session: Session, tmp_path: Path
) -> None:
    store = {"kind": "sqlite", "path": str(tmp_path / "jobs.db")}
    timer, clock = manual(store=store)
    other = open_timer({"store": store})
    with pytest.raises(BadType, match="order_id"):
        timer.add_job(Expire("one"), after_commit=session)  # type: ignore[arg-type]
    assert not session.in_transaction()
    add(timer, session, 1)
    with session.begin_nested() as savepoint:
        add(timer, session, 2)
        savepoint.rollback()
    add(timer, session, 3)
    assert waiting(other) == []
    clock.advance(20)
    session.commit()
    assert waiting(other) == [1, 3] == waiting(timer)
    clock.advance(39.9)
    assert waiting(timer) == [1, 3]
    clock.advance(0.1)
    assert waiting(timer) == []
    other.shutdown()
