"""Several threads that want different things of the same jobs at the same moment: every answer stays true."""

import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from crowds import LIMIT, Count, check_empty, crowd, drained, nervous, now

from jobwheel import IJob, JobContext, JobExists, Retry, RetryJob, State, TimerManager, events


def test_of_cancel_and_run_exactly_one_happens_to_each_of_ten_thousand_jobs(opened: Any, wait_until: Any) -> None:
    """R38: all due at one moment, each cancelled by two of eight threads around that moment."""
    timer = opened(workers={"threads": 4})
    runs = Count.fresh()
    due = now() + 0.6
    jobs = [timer.add_job(Count(number), max(0.0, due - now())) for number in range(10_000)]
    shares = [jobs[share::4] for share in range(4)]

    def cancel(number: int) -> list[int]:
        mine, pause = list(shares[number % 4]), threading.Event()
        Random(number).shuffle(mine)
        while now() < due - 0.001:
            pause.wait(0.0005)
        cancelled = [job.id for job in mine[:200] if timer.cancel(job)]
        while not runs:  # the rest when they run already, else all would be cancelled before the first one could
            pause.wait(0.0001)
        for start in range(200, len(mine), 100):
            cancelled += [job.id for job in mine[start : start + 100] if timer.cancel(job)]
            pause.wait(0.0005)  # lets the workers have their share
        return cancelled

    with nervous():
        answers = crowd(8, cancel)
    wait_until(lambda: drained(timer), 60, what="the end of all jobs")
    cancelled = Counter(id for answer in answers for id in answer)
    ran = Counter(jobs[number].id for number, _, _ in runs)
    assert set((cancelled + ran).values()) == {1}, "a job was cancelled twice, ran twice, or both"
    assert len(cancelled) + len(ran) == 10_000
    assert min(len(cancelled), len(ran)) > 100, "no race"
    assert (timer.stats().cancelled, timer.stats().succeeded) == (len(cancelled), len(ran))
    assert min(start for _, start, _ in runs) >= due - 0.001
    check_empty(timer)


def test_a_touch_that_says_true_is_kept(opened: Any, wait_until: Any) -> None:
    """R43: no job starts before its last successful touch plus the delay, and each runs once."""
    timer = opened(workers={"threads": 4}, wheel={"slots": 16, "tick": 0.01})
    runs = Count.fresh()
    delay, size = 0.03, 1000
    jobs = [timer.add_job(Count(number), delay, key=f"k{number}") for number in range(size)]

    def touch(number: int) -> dict[int, float]:
        random, end, earliest = Random(number), now() + 1.5, {}
        while now() < end:
            one = random.randrange(size)
            before = now()
            if timer.touch(f"k{one}" if number % 2 else jobs[one], delay if number % 3 else None):
                earliest[one] = before + delay
        return earliest

    with nervous(1e-4):
        answers = crowd(4, touch)
    wait_until(lambda: drained(timer), 60, what="the end of all jobs")
    assert Counter(number for number, _, _ in runs) == Counter(range(size))
    started = {number: start for number, start, _ in runs}
    for answer in answers:
        for number, earliest in answer.items():
            assert started[number] >= earliest
    check_empty(timer)


@dataclass
class Contested(IJob, kind="stress.contested", retry=Retry(attempts=3)):
    """Now and then fails, asks for another attempt, or adds its own key again."""

    number: int
    key: str
    timer: ClassVar[TimerManager]
    runs: ClassVar[list[tuple[int, int]]] = []
    added: ClassVar[list[int]] = []

    def run(self, ctx: JobContext) -> None:
        self.runs.append((ctx.job_id, ctx.attempt))
        choice = (self.number + ctx.attempt) % 11
        if choice == 0:
            raise ValueError
        if choice == 1:
            raise RetryJob(0.001)
        if choice == 2:
            self.added.append(self.timer.add_job(Contested(self.number + 1, self.key), 0.001, key=self.key).id)


def test_fights_for_a_few_keys_end_with_exact_counts_and_nothing_left(opened: Any, wait_until: Any, caplog: Any) -> None:  # noqa: C901 (a fight has many moves)
    """Eight threads add, replace, keep, cancel, touch, pause and resume the same three keys, with running and retried jobs."""
    caplog.set_level("CRITICAL", "jobwheel.run")  # thousands of failing runs need not be kept by the test
    timer = opened(workers={"threads": 4}, store={"keep": 10**6}, wheel={"slots": 8, "tick": 0.01})
    Contested.timer, Contested.runs, Contested.added = timer, [], []
    keys = ["a", "b", "c"]
    cancelled: list[int] = []
    timer.on(events.JobCancelled, lambda event: cancelled.append(event.job.id))
    waiting_at_once: list[int] = []
    barrier = threading.Barrier(8)

    def fight(number: int) -> list[int]:
        random, added = Random(number), []
        for step in range(1200):
            key = random.choice(keys)
            choice = random.random()
            if choice < 0.45:
                job = Contested(random.randrange(100), key)
                with suppress(JobExists):
                    if_exists = random.choice(["replace", "keep", "error"])
                    added.append(timer.add_job(job, random.choice([None, 0, 0.001, 0.01]), key=key, if_exists=if_exists).id)
            elif choice < 0.60:
                timer.cancel(key)
            elif choice < 0.80:
                timer.touch(key, random.choice([0, 0.001, 0.01]))
            elif choice < 0.87:
                timer.pause(key)
            elif choice < 0.97:
                timer.resume(key)
            else:
                timer.run_now(key)
            if step % 100 == 99:
                barrier.wait(LIMIT)
                if number == 0:
                    # Nobody but running jobs moves now; each of those can add to its own key, and that is one waiting job again.
                    timer.pause_all()
                    wait_until(lambda: timer.stats().running == 0, what="quiet")
                    waiting_at_once.extend(len(timer.find(key=key, state=["scheduled", "paused"], limit=10**6)) for key in keys)
                    timer.resume_all()
                barrier.wait(LIMIT)
        return added

    with nervous(1e-4):
        answers = crowd(8, fight)
    assert max(waiting_at_once) == 1, "two jobs wait under one key"
    for key in keys:
        timer.resume(key)
    wait_until(lambda: drained(timer), 60, what="the end of all jobs")
    check_empty(timer)

    ids = {id for answer in answers for id in answer} | set(Contested.added)
    jobs = {job.id: job for job in timer.find(limit=10**7)}
    assert set(jobs) == ids, "each job that was added has ended, and no other one is there"
    stats = timer.stats()
    by_state = Counter(job.state for job in jobs.values())
    assert (stats.succeeded, stats.failed, stats.cancelled) == tuple(
        by_state[state] for state in (State.SUCCEEDED, State.FAILED, State.CANCELLED)
    )
    assert max(Counter(Contested.runs).values()) == 1, "one attempt of one job ran twice"
    ran = {id for id, _ in Contested.runs}
    assert ran >= {id for id, job in jobs.items() if job.state is not State.CANCELLED}
    wait_until(lambda: len(cancelled) == stats.cancelled, what="an event for each cancelled job")
    assert len(set(cancelled)) == stats.cancelled


@dataclass
class Scarce(IJob, kind="stress.scarce", max_running=3):
    number: int
    inside: ClassVar[int] = 0
    most: ClassVar[int] = 0
    runs: ClassVar[list[int]] = []
    lock: ClassVar[threading.Lock] = threading.Lock()

    def run(self) -> None:
        cls = type(self)
        with cls.lock:
            cls.inside += 1
            cls.most = max(cls.most, cls.inside)
        cls.runs.append(self.number)
        with cls.lock:
            cls.inside -= 1


def test_a_kind_with_max_running_never_runs_more_and_never_gets_stuck(opened: Any, wait_until: Any) -> None:
    """Jobs that wait for their turn are cancelled, paused, touched; the timer is stopped and started."""
    timer = opened(workers={"threads": 6, "queue": 30})
    Scarce.inside = Scarce.most = 0
    Scarce.runs = []

    def work(number: int) -> tuple[int, int]:
        random, cancelled, mine = Random(number), 0, []
        for step in range(600):
            if number == 7:
                if step % 30 == 0:
                    timer.shutdown(0)
                    timer.start()
                threading.Event().wait(0.001)
                continue
            mine.append(timer.add_job(Scarce(step * 8 + number), random.choice([None, 0, 0.001])))
            other = random.choice(mine)
            choice = random.random()
            if choice < 0.2:
                cancelled += timer.cancel(other)
            elif choice < 0.3:
                timer.touch(other, 0.002)
            elif choice < 0.4 and timer.pause(other):
                timer.resume(other)
        return len(mine), cancelled

    with nervous(1e-4):
        answers = crowd(8, work)
    wait_until(lambda: drained(timer), 60, what="the end of all jobs")
    added, cancelled = (sum(column) for column in zip(*answers, strict=True))
    assert Scarce.most <= 3
    assert len(Scarce.runs) == len(set(Scarce.runs)) == added - cancelled
    assert timer.stats().cancelled == cancelled
    check_empty(timer)


def test_pause_and_resume_at_once_never_lose_a_job(opened: Any, wait_until: Any) -> None:
    timer = opened(workers={"threads": 4}, wheel={"slots": 8, "tick": 0.01})
    runs = Count.fresh()
    jobs = [timer.add_job(Count(number), 0.5 + number / 10_000) for number in range(1000)]

    def flip(number: int) -> None:
        random, end = Random(number), now() + 1.0
        while now() < end:
            job = random.choice(jobs)
            (timer.pause if number % 2 else timer.resume)(job)

    with nervous():
        crowd(4, flip)
    for job in jobs:
        timer.resume(job)
    wait_until(lambda: drained(timer), 30, what="all jobs to run")
    assert Counter(number for number, _, _ in runs) == Counter(range(1000))
    check_empty(timer)


@dataclass
class Failing(IJob, kind="stress.failing"):
    number: int
    runs: ClassVar[list[tuple[int, int]]] = []

    def run(self, ctx: JobContext) -> None:
        self.runs.append((self.number, ctx.attempt))
        if ctx.attempt < 3:
            raise ValueError


def test_retries_by_hand_at_the_moment_of_the_failure_lose_nothing(opened: Any, wait_until: Any, caplog: Any) -> None:
    caplog.set_level("CRITICAL", "jobwheel.run")
    timer = opened(workers={"threads": 4}, store={"keep": 10**6})
    Failing.runs = []
    jobs = [timer.add_job(Failing(number), key=f"k{number}") for number in range(300)]

    def retry(number: int) -> int:
        retried, left, end = 0, set(jobs), now() + 30
        while left and now() < end:
            for job in tuple(left):
                retried += timer.retry(job if number % 2 else job.key)
                if (found := timer.get(job)) is not None and found.state is State.SUCCEEDED:
                    left.discard(job)
        return retried

    with nervous(1e-4):
        retried = sum(crowd(3, retry))
    wait_until(lambda: drained(timer), 30, what="the end of all jobs")
    assert retried == 600
    assert Counter(Failing.runs) == Counter((number, attempt) for number in range(300) for attempt in (1, 2, 3))
    assert (timer.stats().succeeded, timer.stats().failed) == (300, 0)
    check_empty(timer)


def test_a_listener_that_uses_the_timer_and_adders_beside_it_come_to_an_end(opened: Any, wait_until: Any) -> None:
    """R37."""
    timer = opened(workers={"threads": 4}, store={"keep": 100})
    runs = Count.fresh()
    heard: list[int] = []

    def listener(event: events.JobSucceeded) -> None:
        heard.append(event.job.id)
        if len(heard) <= 1000:
            timer.cancel(timer.add_job(Count(-1), 1000))
            timer.find(limit=5)
            timer.stats()
            timer.health()

    timer.on(events.JobSucceeded, listener)
    crowd(4, lambda number: [timer.add_job(Count(step * 4 + number), step % 3 / 1000) for step in range(500)])
    wait_until(lambda: len(heard) == 2000, 30, what="2000 events")
    assert len(runs) == 2000
    assert timer.stats().cancelled == 1000
    check_empty(timer)
