"""The three that keep jobs in an SQLite file, behind one face: jobwheel, APScheduler's SQLAlchemyJobStore, Huey's SqliteHuey.

All have eight workers and a file of their own, and are as they come: APScheduler with `misfire_grace_time=None`, without which it
drops late jobs. Their jobs note their number, as in `benchmarks.peers`.
"""

import signal
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from apscheduler.executors.pool import ThreadPoolExecutor as ApsPool
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from huey import SqliteHuey
from sqlalchemy import Engine, create_engine, event

from benchmarks.peers import WORKERS, Numbered, call
from jobwheel import IJob, open_timer


class Adder(Protocol):
    """What jobs can be added to, one by one."""

    def add(self, number: int, delay: float, key: str) -> object: ...
    def cancel(self, key: str) -> object: ...
    def stop(self) -> None: ...


class Touched(Adder, Protocol):
    """What jobs can be put off in."""

    def touch(self, key: str) -> object: ...


class Burner(Protocol):
    """What runs jobs that are due at one moment."""

    name: str

    def left(self) -> bool:
        """Whether the file still holds jobs to be run or to be settled."""
        ...

    def stop(self) -> None: ...


class Jobwheel:
    """As an application uses it: every check, a snapshot back from each add, started."""

    name = "jobwheel"

    def __init__(self, path: str, durability: str = "power", *, start: bool = True) -> None:
        store = {"kind": "sqlite", "path": path, "durability": durability}
        self.timer = open_timer({"store": store, "workers": {"threads": WORKERS}})
        if start:
            self.timer.start()

    def add(self, number: int, delay: float, key: str) -> object:
        return self.timer.add_job(Numbered(number), delay, key=key)

    def add_all(self, orders: Iterable[tuple[IJob, float] | dict[str, Any]]) -> None:
        self.timer.add_jobs(orders)

    def cancel(self, key: str) -> object:
        return self.timer.cancel(key)

    def touch(self, key: str) -> object:
        return self.timer.touch(key)

    def left(self) -> bool:
        stats = self.timer.stats()
        return bool(stats.scheduled or stats.running)

    def stop(self) -> None:
        self.timer.shutdown(5.0)

    @classmethod
    def burning(cls, path: str, count: int, due: datetime) -> "Jobwheel":
        """One that has `count` jobs due at `due`."""
        peer = cls(path)
        peer.add_all({"job": Numbered(number), "at": due, "key": f"order:{number}"} for number in range(count))
        return peer


class Apscheduler:
    """BackgroundScheduler with SQLAlchemyJobStore; the key is the job's id."""

    name = "apscheduler"

    def __init__(self, path: str, engine: Engine | None = None, *, paused: bool = False) -> None:
        self.store = SQLAlchemyJobStore(url=f"sqlite:///{path}", engine=engine)
        self.scheduler = BackgroundScheduler(
            jobstores={"default": self.store},
            executors={"default": ApsPool(WORKERS)},
            job_defaults={"misfire_grace_time": None},
            timezone=UTC,
        )
        self.scheduler.start(paused=paused)

    def add(self, number: int, delay: float, key: str) -> object:
        return self.add_at(number, datetime.now(UTC) + timedelta(seconds=delay), key)

    def add_at(self, number: int, date: datetime, key: str) -> object:
        return self.scheduler.add_job(call, "date", run_date=date, args=(number,), id=key)

    def cancel(self, key: str) -> object:
        return self.scheduler.remove_job(key)

    def touch(self, key: str) -> object:
        return self.scheduler.reschedule_job(key, trigger="date", run_date=datetime.now(UTC) + timedelta(seconds=30))

    def left(self) -> bool:
        return self.store.get_next_run_time() is not None

    def stop(self) -> None:
        self.scheduler.shutdown(wait=False)

    @classmethod
    def burning(cls, path: str, count: int, due: datetime) -> "Apscheduler":
        """One that has `count` jobs due at `due`. They are put into its file with SQLite's syncing off, or it would take a minute."""
        quick = create_engine(f"sqlite:///{path}")

        @event.listens_for(quick, "connect")
        def set_pragmas(connection: Any, _record: object) -> None:
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute("PRAGMA journal_mode=MEMORY")

        filler = cls(path, quick, paused=True)
        for number in range(count):
            filler.add_at(number, due, f"order:{number}")
        filler.stop()
        return cls(path)


class Huey:
    """SqliteHuey and its consumer of eight threads. Tasks are put where its scheduler looks each second, which spares it two moves of each.

    Its consumer starts so that such a look comes right after the due moment. Its workers sleep 0.1 s when they find nothing, and not
    up to the 10 s they would sleep otherwise.
    """

    name = "huey"

    def __init__(self, path: str, **settings: Any) -> None:
        self.huey = SqliteHuey(filename=path, **settings)
        self.task = self.huey.task()(call)
        self.consumer: Any = None

    def start(self) -> None:
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        self.consumer = self.huey.create_consumer(workers=WORKERS, max_delay=0.1)
        self.consumer.start()
        for number, handler in before.items():  # it takes the whole process for its own
            signal.signal(number, handler)

    def left(self) -> bool:
        return bool(self.huey.pending_count() or self.huey.scheduled_count())

    def stop(self) -> None:
        self.consumer.stop(graceful=True)
        self.huey.storage.close()

    @classmethod
    def burning(cls, path: str, count: int, due: datetime | None) -> "Huey":
        """One, not started, that has `count` tasks due at `due`; None: enqueued, to be taken at once. Filled with syncing off."""
        filler = cls(path, fsync=False)
        for number in range(count):
            if due is None:
                filler.huey.enqueue(filler.task.s(number))
            else:
                filler.huey.add_schedule(filler.task.s(number, eta=due))
        filler.huey.storage.close()
        return cls(path)
