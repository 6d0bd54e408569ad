"""One process of a crash campaign: it opens a timer on the file that it is told, adds, cancels, moves and runs jobs, and writes each event.

`python child.py SETTINGS`, a JSON object with the fields of `Orders`. It goes on until its standard input ends, and then ends cleanly.
With `drain` it adds nothing, waits until nothing waits or runs any more, and writes how each job ended. Chance hangs on `seed`.
"""

import asyncio
import logging
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import planted
from eventlog import EventLog

from jobwheel import IJob, JobContext, Retry, RetryJob, ScheduledJob, State, TimerManager, events, open_timer
from jobwheel.errors import BadValue, StoreError

LIVE = (State.SCHEDULED, State.PAUSED, State.RUNNING, State.UNRESOLVABLE)
OFTEN = Retry(attempts=1000)
"""A run that a kill cut off comes again so often: in a campaign no job may fail for having met too many kills."""


class Orders(msgspec.Struct, forbid_unknown_fields=True):
    """What the parent tells a process.

    `pause`: mean seconds between two calls of one thread. `slow`: jobs of 100 that last 0.1 to 0.5 s. `mutant`: see `planted`.
    `timers`: how many there are on the one file; with several, one is shut down and started again now and then.
    `patience`: seconds that `drain` waits for the end of all jobs.
    """

    log: str
    process: int
    seed: int
    timer: dict[str, Any]
    threads: int = 1
    pause: float = 0.01
    slow: int = 3
    mutant: str | None = None
    timers: int = 1
    drain: bool = False
    patience: float = 60.0


log: EventLog


@dataclass
class Work(IJob, kind="faults.work", retry=OFTEN):
    name: str
    seconds: float = 0.0

    def run(self, ctx: JobContext) -> None:
        log("start", ctx.job_id, ctx.attempt, self.name)
        if self.seconds:
            time.sleep(self.seconds)
        log("end", ctx.job_id, ctx.attempt, self.name, "ok")


@dataclass
class Once(Work, kind="faults.once", on_crash="interrupt"):
    """At most once: a run that a kill cut off must not come again."""


@dataclass
class Narrow(Work, kind="faults.narrow", max_running=2):
    """Only two at a time, in all processes together."""


@dataclass
class Again(Work, kind="faults.again"):
    """Asks for a second attempt in its first one."""

    def run(self, ctx: JobContext) -> None:
        if ctx.attempt > 1:
            super().run(ctx)
            return
        log("start", ctx.job_id, ctx.attempt, self.name)
        log("end", ctx.job_id, ctx.attempt, self.name, "again")
        raise RetryJob(0.05)


@dataclass
class Loop(Work, kind="faults.loop"):
    """On the event loop."""

    async def run(self, ctx: JobContext) -> None:  # type: ignore[override]
        log("start", ctx.job_id, ctx.attempt, self.name)
        await asyncio.sleep(self.seconds)
        log("end", ctx.job_id, ctx.attempt, self.name, "ok")


KINDS: tuple[type[Work], ...] = (Work, Once, Narrow, Again, Loop)
WEIGHTS = (60, 15, 8, 10, 7)

Answer = tuple[str, int, str | None]
"""The name that was added, the id that now holds, and the name of the job that now holds."""


@dataclass
class Order:
    """One add, as it is written down and as it is made."""

    job: Work
    delay: float
    key: str | None
    policy: str
    by_date: bool

    def written(self) -> tuple[Any, ...]:
        return self.job.name, self.job.jobwheel_kind.name, self.key, self.policy, self.delay

    def names(self) -> dict[str, Any]:
        when: dict[str, Any] = {"delay": self.delay}
        if self.by_date:
            when = {"at": datetime.now(UTC) + timedelta(seconds=self.delay)}
        return {"job": self.job, "key": self.key, "if_exists": self.policy, **when}


@dataclass
class Caller:
    """Makes the calls of one thread. Keys that begin with `own` are used by this thread alone, so it knows where they lead."""

    timers: list[TimerManager]
    orders: Orders
    chance: random.Random
    own: str
    seen: list[int]
    """Ids that some thread of this process has found in the store: jobs of other processes too. Shared by the threads."""
    mine: deque[int] = field(default_factory=lambda: deque(maxlen=40))
    keys: dict[str, int] = field(default_factory=dict)

    numbers = count()
    names = count()

    def call(self, what: str, *args: Any, do: Callable[[], Any]) -> Any:
        number = next(self.numbers)
        log("ask", number, what, *args)
        try:
            value = do()
        except Exception as error:
            log("raised", number, named(error))
            return None
        log("answer", number, value)
        return value

    @property
    def timer(self) -> TimerManager:
        return self.chance.choice(self.timers)

    # --- adding ---

    def order(self) -> Order:
        chance, slow = self.chance, self.orders.slow
        key: str | None = None
        roll = chance.random()
        if roll < 0.15:
            key = f"{self.own}.{chance.randrange(6)}"
        elif roll < 0.27:
            key = f"shared.{chance.randrange(30)}"
        kind = chance.choices(KINDS, WEIGHTS)[0]
        seconds = chance.choices((0.0, chance.uniform(0, 0.04), chance.uniform(0.1, 0.5)), (93 - slow, 7, slow))[0]
        delay = chance.choices((0.0, chance.uniform(0, 0.3), chance.uniform(0.3, 1.5), chance.uniform(1.5, 3)), (30, 40, 25, 5))[0]
        job = kind(f"{self.orders.process}.{next(self.names)}", round(seconds, 4))
        return Order(job, delay, key, chance.choice(("replace", "keep")), chance.random() < 0.1)

    def add(self) -> None:
        order = self.order()

        def do() -> list[Answer]:
            return [answer_of(order, self.timer.add_job(**order.names()))]

        self.note([order], self.call("add", [order.written()], do=do))

    def add_batch(self) -> None:
        batch = [self.order() for _ in range(self.chance.randrange(2, 20))]

        def do() -> list[Answer]:
            added = self.timer.add_jobs([order.names() for order in batch])
            return [answer_of(order, job) for order, job in zip(batch, added, strict=True)]

        self.note(batch, self.call("add", [order.written() for order in batch], do=do))

    def note(self, batch: list[Order], answer: list[Answer] | None) -> None:
        for place, order in enumerate(batch):
            if answer is None:
                self.keys.pop(order.key or "", None)
                continue
            self.mine.append(answer[place][1])
            if order.key is not None and order.key.startswith(self.own):
                self.keys[order.key] = answer[place][1]

    # --- changing ---

    def change(self) -> None:
        chance, timer = self.chance, self.timer
        ids: Any = self.mine if chance.random() < 0.7 and self.mine else self.seen
        if not ids:
            return
        ref: int | str
        id = ref = ids[chance.randrange(len(ids))]
        if self.keys and chance.random() < 0.2:
            ref = chance.choice(list(self.keys))
            id = self.keys[ref]
        delay = chance.uniform(0, 1.0)
        match chance.choices(("cancel", "touch", "move", "now", "pause", "resume"), (40, 20, 10, 5, 12, 13))[0]:
            case "cancel":
                self.call("cancel", id, do=lambda: timer.cancel(ref))
            case "touch":
                self.call("touch", id, delay, do=lambda: touched(timer, ref, delay))
            case "move":
                self.call("move", id, delay, do=lambda: timer.reschedule(ref, delay))
            case "now":
                self.call("now", id, do=lambda: timer.run_now(ref))
            case "pause":
                self.call("pause", id, do=lambda: timer.pause(ref))
            case "resume":
                self.call("resume", id, do=lambda: timer.resume(ref))

    def look(self) -> None:
        """Finds jobs of anyone to be changed."""
        number = next(self.numbers)
        log("ask", number, "find", 0)
        try:
            self.seen[:] = [job.id for job in self.timer.find(state=LIVE, limit=60)]
        except Exception as error:
            log("raised", number, named(error))

    def live(self, over: threading.Event) -> None:
        while not over.is_set():
            acts = (self.add, self.add_batch, self.change, self.look)
            self.chance.choices(acts, (50, 4, 42, 4))[0]()
            over.wait(self.chance.expovariate(1 / self.orders.pause))


def answer_of(order: Order, job: ScheduledJob) -> Answer:
    """What `add_job` gave back. A job that was kept may be over by now and have dropped its data, and with it its name."""
    held = order.job.name if order.policy == "replace" else job.job.name if isinstance(job.job, Work) else None
    return order.job.name, job.id, held


def named(error: Exception) -> str:
    """What users catch it by, and what it says."""
    name = "StoreError" if isinstance(error, StoreError) else type(error).__name__
    return f"{name}: {error}"[:500]


def touched(timer: TimerManager, ref: int | str, delay: float) -> bool:
    try:
        return timer.touch(ref, delay)
    except BadValue:
        return False


# --- the two lives of a process ---


def restart(timers: list[TimerManager], orders: Orders, over: threading.Event) -> None:
    chance = random.Random(orders.seed)
    while not over.wait(chance.uniform(0.05, 0.4)):
        timer = chance.choice(timers)
        timer.shutdown(chance.choice((0.0, 0.0, 0.2)))
        timer.start()


def work(timers: list[TimerManager], orders: Orders) -> None:
    over = threading.Event()
    seen: list[int] = []
    threads = []
    for number in range(orders.threads):
        chance = random.Random(f"{orders.seed} {number}")
        caller = Caller(timers, orders, chance, f"own {orders.process}.{number}", seen)
        threads.append(threading.Thread(target=caller.live, args=(over,), name=f"caller-{number}"))
    if len(timers) > 1:
        threads.append(threading.Thread(target=restart, args=(timers, orders, over), name="restart"))
    for thread in threads:
        thread.start()
    sys.stdin.buffer.read()
    over.set()
    for thread in threads:
        thread.join()


def drain(timer: TimerManager, orders: Orders) -> None:
    caller = Caller([timer], orders, random.Random(), "", [])
    deadline = time.monotonic() + orders.patience
    while timer.find(state=LIVE, limit=1) and time.monotonic() < deadline:
        for job in timer.find(state=State.PAUSED, limit=10_000):
            caller.call("resume", job.id, do=lambda job=job: timer.resume(job))
        time.sleep(0.05)
    for job in timer.find(limit=10_000_000):
        if job.state in LIVE:
            log("left", job.id, job.state.value)
        log("final", job.id, job.state.value, job.attempt)


def main() -> None:
    global log  # noqa: PLW0603 (jobs are values and know nothing but their fields)
    orders = msgspec.json.decode(sys.argv[1], type=Orders)
    logging.basicConfig(level=logging.WARNING, format=f"{orders.process} %(asctime)s %(levelname)s %(threadName)s %(name)s %(message)s")
    log = EventLog(Path(orders.log), orders.process)
    log("up")
    if orders.mutant is not None:
        planted.plant(orders.mutant)
    timers = [open_timer(orders.timer) for _ in range(orders.timers)]
    for timer in timers:
        timer.on(events.JobSucceeded, lambda event: log("settled", event.job.id))
        timer.start()
    log("ready")
    if orders.drain:
        drain(timers[0], orders)
    else:
        work(timers, orders)
    log("down", [timer.shutdown(10.0) for timer in timers])


if __name__ == "__main__":
    main()
