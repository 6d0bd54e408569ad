"""Prints what jobwheel costs on disk beside its peers and the machine's own limit, as ratios within this run.

Peers take turns of a fraction of a second, so that a slow minute of the disk is in all of them. Ratios are medians over the rounds of
each round's ratio. "disk" is how often 12 KiB could be overwritten and synced per second in the same rounds, which is what one commit
takes at the least.
"""

import argparse
import gc
import itertools
import json
import os
import platform
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, Self

from benchmarks import background, report
from benchmarks.durable_peers import Adder, Apscheduler, Burner, Huey, Jobwheel, Touched
from benchmarks.peers import Numbered, set_note
from benchmarks.raw import KEY, NUMBER, Grouped, Raw, disk
from benchmarks.report import reached, row, timed

Rates = dict[str, float]

median = statistics.median
TURNS = 6
"""How many times the peers take turns in a round."""
RATE = 200
"""Adds per second and process, where several processes share a file."""
IDLE = 30.0
"""Seconds without a sign of life after which a user is offline."""


def ratio(rounds: Sequence[Rates], ours: str, theirs: str) -> float:
    return median(one[ours] / one[theirs] for one in rounds)


def compare(name: str, rounds: Sequence[Rates], ours: str, goals: dict[str, float], limit: str = "") -> None:
    """A line for each peer that has a goal, with how many times its rate `ours` is; and one for what nobody could surpass."""
    below = median(one["disk"] for one in rounds)
    mine = median(one[ours] for one in rounds)
    for theirs, goal in goals.items():
        times, other = ratio(rounds, ours, theirs), median(one[theirs] for one in rounds)
        text = f"{mine:9,.0f}  {theirs} {other:7,.0f} ({times:.3g}x)  [disk {below:,.0f}]"
        row(name, text, f"goal {goal:g}x: {reached(times >= goal)}")
    if limit:
        most = median(one[limit] for one in rounds)
        text = (
            f"{most:9,.0f}, which is {ratio(rounds, limit, 'apscheduler'):.3g}x apscheduler; reached {ratio(rounds, ours, limit):.2f} of it"
        )
        row(f"  the machine's limit ({limit})", text)


class Round:
    """A folder, and the disk's rate before and after what is done in it."""

    def __init__(self) -> None:
        os.makedirs("build", exist_ok=True)  # not the system's folder for temporary files, which may be in memory
        self.folder = tempfile.TemporaryDirectory(prefix="bench-", dir="build")

    def __enter__(self) -> Self:
        self.before = disk(self.folder.name)
        return self

    def __exit__(self, *error: object) -> None:
        self.folder.cleanup()

    def spot(self, name: str) -> str:
        return os.path.join(self.folder.name, name)

    def rate(self) -> float:
        return (self.before + disk(self.folder.name)) / 2

    def model(self) -> str:
        """A file in which jobwheel has written one job."""
        path = self.spot("model.db")
        if not os.path.exists(path):
            peer = Jobwheel(path, start=False)
            peer.timer.add_job(Numbered(NUMBER), 3600.0, key=KEY)
            peer.stop()
        return path


def adds(peer: Adder, threads: int, seconds: float, first: int) -> tuple[list[int], float]:
    """How many jobs each of `threads` threads added within `seconds`, and how long it took them all."""
    gate = threading.Barrier(threads + 1)
    counts = [0] * threads

    def add(index: int) -> None:
        chance = random.Random(index)
        numbers = itertools.count(first + index * 100_000)
        gate.wait()
        end = time.perf_counter() + seconds
        done = 0
        while time.perf_counter() < end:
            number = next(numbers)
            peer.add(number, chance.uniform(120, 3600), f"order:{number}")
            done += 1
        counts[index] = done

    adders = [threading.Thread(target=add, args=(index,)) for index in range(threads)]
    for adder in adders:
        adder.start()
    gc.collect()
    gate.wait()
    begin = time.perf_counter()
    for adder in adders:
        adder.join()
    return counts, time.perf_counter() - begin


def cancels(peer: Adder, numbers: Iterable[int], seconds: float) -> tuple[int, float]:
    """How many of these were cancelled within `seconds`, and how long it took."""
    keys = [f"order:{number}" for number in numbers]
    gc.collect()
    begin = time.perf_counter()
    done = 0
    for key in keys:
        peer.cancel(key)
        done += 1
        if time.perf_counter() - begin > seconds:
            break
    return done, time.perf_counter() - begin


def take_turns(peers: dict[str, Adder], threads: int, seconds: float) -> tuple[Rates, dict[str, list[int]]]:
    """Adds per second of each, `seconds` of work each in `TURNS` turns; and how many each added in each turn."""
    added: dict[str, list[int]] = {name: [] for name in peers}
    taken = dict.fromkeys(peers, 0.0)
    for turn in range(TURNS):
        for name, peer in peers.items():
            counts, spent = adds(peer, threads, seconds / TURNS, turn * threads * 100_000)
            added[name].append(sum(counts))
            taken[name] += spent
    return {name: sum(added[name]) / taken[name] for name in peers}, added


def take_cancel_turns(peers: dict[str, Adder], added: dict[str, list[int]], seconds: float) -> Rates:
    """Cancels per second of each, in random order, of what one thread has added in turns before."""
    count, taken = dict.fromkeys(peers, 0), dict.fromkeys(peers, 0.0)
    chance = random.Random(1)
    for turn in range(TURNS):
        for name, peer in peers.items():
            numbers = list(range(turn * 100_000, turn * 100_000 + added[name][turn]))
            chance.shuffle(numbers)
            done, spent = cancels(peer, numbers, seconds / TURNS)
            count[name] += done
            taken[name] += spent
    return {name: count[name] / taken[name] for name in peers}


def stop(peers: dict[str, Adder]) -> None:
    for peer in peers.values():
        peer.stop()


def one_thread(rounds: int, seconds: float) -> None:
    """Adds by one thread in both modes, and cancels."""
    added: list[Rates] = []
    cancelled: list[Rates] = []
    for _ in range(rounds):
        with Round() as here:
            both: dict[str, Adder] = {
                "jobwheel": Jobwheel(here.spot("power.db")),
                "apscheduler": Apscheduler(here.spot("aps.db")),
                "raw commits": Raw(here.model(), here.spot("raw.db")),
            }
            more: dict[str, Adder] = {
                "process": Jobwheel(here.spot("process.db"), "process"),
                "raw, process": Raw(here.model(), here.spot("raw-process.db"), "process"),
            }
            rates, numbers = take_turns(both | more, 1, seconds)
            added.append(rates | {"disk": here.rate()})
            cancelled.append(take_cancel_turns(both, numbers, seconds / 2) | {"disk": here.rate()})
            stop(both | more)
    compare("adds per second by 1 thread, power", added, "jobwheel", {"apscheduler": 7.0, "raw commits": 0.7}, "raw commits")
    compare("adds per second by 1 thread, process", added, "process", {"apscheduler": 25.0}, "raw, process")
    compare("cancels per second by key, power", cancelled, "jobwheel", {"apscheduler": 5.0}, "raw commits")


def eight_threads(rounds: int, seconds: float) -> None:
    found: list[Rates] = []
    for _ in range(rounds):
        with Round() as here:
            peers: dict[str, Adder] = {
                "jobwheel": Jobwheel(here.spot("power.db")),
                "apscheduler": Apscheduler(here.spot("aps.db")),
                "raw group commit": Grouped(here.model(), here.spot("raw.db")),
            }
            found.append(take_turns(peers, 8, seconds)[0] | {"disk": here.rate()})
            stop(peers)
    compare("adds per second by 8 threads, power", found, "jobwheel", {"apscheduler": 15.0, "raw group commit": 0.7}, "raw group commit")


def many_threads(rounds: int, seconds: float) -> None:
    """Whether 32 threads get the same share."""
    shares, rates, limits = [], [], []
    for _ in range(rounds):
        with Round() as here:
            ours, raw = Jobwheel(here.spot("power.db")), Grouped(here.model(), here.spot("raw.db"))
            counts, taken = adds(ours, 32, seconds, 0)
            shares.append(min(counts) / max(counts))
            rates.append(sum(counts) / taken)
            counts, taken = adds(raw, 32, seconds / 2, 0)
            limits.append(sum(counts) / taken)
            ours.stop()
            raw.stop()
    text = f"{median(shares):.2f} of the fastest ({min(shares):.2f} at worst); {median(rates):,.0f} per second, raw {median(limits):,.0f}"
    row("adds by 32 threads, power: the slowest thread", text, f"goal 0.5: {reached(median(shares) >= 0.5)}")


def bulk(rounds: int, count: int) -> None:
    """`add_jobs`, beside executemany of the very rows that it wrote."""
    found: list[Rates] = []
    for number in range(rounds):
        with Round() as here:
            path = here.spot("power.db")
            peer = Jobwheel(path)
            chance = random.Random(number)
            orders = [{"job": Numbered(one), "delay": chance.uniform(120, 3600), "key": f"order:{one}"} for one in range(count)]
            ours = timed(lambda peer=peer, orders=orders: peer.add_all(orders))  # type: ignore[misc]
            with closing(sqlite3.connect(path)) as reader:
                rows = reader.execute("SELECT * FROM job").fetchall()
            peer.stop()
            raw = Raw(here.model(), here.spot("raw.db"))
            theirs = timed(lambda raw=raw, rows=rows: raw.add_all(rows))  # type: ignore[misc]
            raw.stop()
            found.append({"jobwheel": len(rows) / ours, "raw executemany": len(rows) / theirs, "disk": here.rate()})
    compare(f"add_jobs of {count:,}, power: jobs per second", found, "jobwheel", {"raw executemany": 0.4})


def burn(make: Callable[[str, int, datetime], Burner], path: str, count: int, lead: float) -> float:
    """Seconds from the due moment of `count` no-op jobs to when all have run and the file holds none any more."""
    ran = itertools.count(1)
    done = threading.Event()
    set_note(lambda number: done.set() if next(ran) == count else None)
    due = float(int(time.time() + lead)) + 1
    peer = make(path, count, datetime.fromtimestamp(due, UTC))
    if time.time() > due:
        sys.exit(f"{peer.name}: adding took longer than {lead} s; give it more with --lead")
    gc.collect()
    if isinstance(peer, Huey):
        time.sleep(max(0.0, due - time.time()) % 1.0 + 0.01)
        peer.start()
    if not done.wait(timeout=300):
        sys.exit(f"{peer.name}: not all of {count} jobs ran within 300 s")
    while peer.left():
        time.sleep(0.002)
    taken = time.time() - due
    peer.stop()
    set_note(lambda number: None)
    return taken


def burn_queue(path: str, count: int) -> float:
    """The same for Huey with nothing scheduled: the tasks are in its queue already, and its workers start."""
    ran = itertools.count(1)
    done = threading.Event()
    set_note(lambda number: done.set() if next(ran) == count else None)
    peer = Huey.burning(path, count, None)
    gc.collect()
    begin = time.time()
    peer.start()
    done.wait(timeout=300)
    taken = time.time() - begin
    peer.stop()
    set_note(lambda number: None)
    return taken


def fire(rounds: int, count: int, lead: float) -> None:
    """Jobs due at one moment."""
    found: list[Rates] = []
    for _ in range(rounds):
        with Round() as here:
            taken = {
                "jobwheel": burn(Jobwheel.burning, here.spot("power.db"), count, lead / 2),
                "huey": burn(Huey.burning, here.spot("huey.db"), count, lead / 2),
                "queue": burn_queue(here.spot("queue.db"), count),
                "apscheduler": burn(Apscheduler.burning, here.spot("aps.db"), count, lead),
            }
            found.append({name: count / seconds for name, seconds in taken.items()} | {"disk": here.rate()})
    mine = count / median(one["jobwheel"] for one in found)
    for theirs, goal in (("apscheduler", 8.0), ("huey", 5.0)):
        seconds, times = count / median(one[theirs] for one in found), ratio(found, "jobwheel", theirs)
        text = f"{mine:7.3f} s  {theirs} {seconds:6.3f} s ({times:.1f}x)  [disk {median(one['disk'] for one in found):,.0f}]"
        row(f"{count:,} no-op jobs due at one moment, settled", text, f"goal {goal:g}x: {reached(times >= goal)}")
    seconds, times = count / median(one["queue"] for one in found), ratio(found, "jobwheel", "queue")
    row("  huey with them enqueued beforehand, not scheduled", f"{seconds:7.3f} s ({times:.1f}x)")


def fill(path: str, count: int, soon: int) -> None:
    """Copies the one row of the file until there are `count`: `soon` due within the hour, the others within the week after it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("PRAGMA synchronous=OFF")
        file.execute("PRAGMA cache_size=-200000")
        columns = [column[0] for column in file.execute("SELECT * FROM job LIMIT 0").description]
        new = {
            "id": "id + n",
            "key": "'order:' || n",
            "data": f"replace(data, '{NUMBER}', n)",
            "due": f"due + CASE WHEN n <= {soon} THEN (n - {soon}) * 3000000000 / {soon} ELSE abs(random()) % 604800000000 END",
        }
        values = ", ".join(new.get(column, column) for column in columns)
        numbers = "WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number LIMIT ?)"
        file.execute("BEGIN")
        file.execute(f"{numbers} INSERT INTO job SELECT {values} FROM job, number WHERE key = ?", (count, KEY))  # noqa: S608 (our own words)
        file.execute("UPDATE meta SET value = (SELECT max(id) + 1 FROM job) WHERE name = 'next_id'")
        file.execute("COMMIT")
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def lapse(path: str, count: int) -> None:
    """Lets `count` of the jobs that are due last be a minute late."""
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        (base,) = file.execute("SELECT due - 3600000000 FROM job WHERE key = ?", (KEY,)).fetchone()
        wanted = "SELECT id FROM job WHERE due > ? ORDER BY id DESC LIMIT ?"
        file.execute(f"UPDATE job SET due = ? WHERE id IN ({wanted})", (base - 60_000_000, base + 7200_000_000, count))  # noqa: S608


def child(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.durable_child", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen[str]) -> Any:
    out, _ = process.communicate(timeout=300)
    if process.returncode:
        sys.exit(f"{process.args!r} ended with {process.returncode}")
    return json.loads(out)


def million(rounds: int, count: int, soon: int, seconds: float) -> None:
    """A start on a file that is full, beside one on a file that is not there yet."""
    first, more, peak = [], [], []
    overdue = 20
    with Round() as here:
        full = here.model()
        begin = time.perf_counter()
        fill(full, count, soon)
        made = time.perf_counter() - begin
        size = os.path.getsize(full)
        for number in range(rounds):
            lapse(full, overdue)
            loaded = answer(child("start", full, seconds))
            empty = answer(child("start", here.spot(f"empty-{number}.db"), seconds))
            if loaded["ran"] != overdue:
                print(f"{loaded['ran']} jobs ran where {overdue} were overdue")
            first.append(loaded["first"])
            more.append((loaded["resident"] - empty["resident"]) / 1e6)
            peak.append((loaded["peak"] - empty["peak"]) / 1e6)
    name = f"start with {count:,} rows, {soon:,} due within the hour"
    text = f"first of {overdue} overdue ran after {median(first):.3f} s ({max(first):.3f} at worst)"
    row(name, text, f"goal 0.5 s: {reached(median(first) < 0.5)}")
    text = f"{median(more):.1f} MB more than with none ({median(peak):.1f} at the peak)"
    row("  memory", text, f"goal 20 MB: {reached(median(more) < 20)}")
    row("  the file", f"{size / 1e6:,.0f} MB, made in {made:.1f} s")


def lateness(count: int, seconds: float) -> None:
    """How late `count` durable jobs spread over `seconds` start."""
    due: dict[int, float] = {}
    late: list[float] = []
    set_note(lambda number: late.append(time.monotonic() - due[number]))
    with Round() as here:
        peer = Jobwheel(here.spot("power.db"))
        chance = random.Random(5)
        gc.collect()
        for number in range(count):
            delay = 0.5 + chance.uniform(0, seconds)
            due[number] = time.monotonic() + delay
            peer.add(number, delay, f"order:{number}")
        time.sleep(seconds + 1.5)
        peer.stop()
        below = here.rate()
    set_note(lambda number: None)
    late.sort()
    p50, p99 = late[len(late) // 2] * 1000, late[len(late) * 99 // 100] * 1000
    good = p50 < 3 and p99 < 20 and len(late) == count and late[0] >= 0
    text = f"p50 {p50:.2f} ms  p99 {p99:.2f} ms  worst {late[-1] * 1000:.1f} ms  [disk {below:,.0f}]"
    row(f"lateness of {len(late):,} durable jobs over {seconds:g} s", text, f"goal 3/20 ms: {reached(good)}")


def processes(rounds: int, seconds: float) -> None:
    """Four processes add to one file at a steady rate."""
    worst, nearly_all, rates, below = [], [], [], []
    for _ in range(rounds):
        with Round() as here:
            path = here.model()
            begin = time.time() + 2.0
            found = [answer(one) for one in [child("add", path, RATE, seconds, begin) for _ in range(4)]]
            waits = sorted(itertools.chain.from_iterable(one["waits"] for one in found))
            worst.append(waits[-1] * 1000)
            nearly_all.append(waits[len(waits) * 99 // 100] * 1000)
            rates.append(min(len(one["waits"]) / one["taken"] for one in found))
            below.append(here.rate())
    text = f"worst {max(worst):.1f} ms ({median(worst):.1f} median)  p99 {median(nearly_all):.2f} ms  [disk {median(below):,.0f}]"
    row(f"4 processes, each {min(rates):.0f} adds per second: wait", text, f"goal 100 ms: {reached(max(worst) < 100)}")


def life(rounds: int, seconds: float) -> None:
    """Jobs added to run at once, until all are settled."""
    for durability, threads in (("power", 1), ("power", 8), ("process", 1)):
        rates = []
        for _ in range(rounds):
            with Round() as here:
                peer = Jobwheel(here.spot("power.db"), durability)
                counts, taken = adds(Now(peer), threads, seconds, 0)
                begin = time.perf_counter()
                while peer.left():
                    time.sleep(0.002)
                rates.append(sum(counts) / (taken + time.perf_counter() - begin))
                peer.stop()
        row(f"added, claimed, run, settled; {threads} adding, {durability}", f"{median(rates):9,.0f} jobs per second")


def in_background(rounds: int, count: int) -> None:
    """Jobs added to run at once, beside Huey, which as it comes also has each task on disk before it goes on."""
    for seconds, adders in ((0.0, 1), (0.0, 8), (0.001, 1), (0.001, 8)):
        found: list[Rates] = []
        for _ in range(rounds):
            with Round() as here:
                peers: dict[str, background.Queue] = {
                    "jobwheel": background.JobwheelOnDisk(here.spot("power.db")),
                    "huey": background.HueyOnDisk(here.spot("huey.db")),
                }
                found.append(background.rates(peers, count, seconds, adders) | {"disk": here.rate()})
        text = "jobs of 1 ms" if seconds else "no-op jobs"
        compare(f"{text} done per second, {adders} adding, power", found, "jobwheel", {"huey": 1.0})


def commits(path: str) -> int:
    """How many transactions have been written to a file in WAL mode while it was open: SQLite counts them in the file beside it."""
    with open(f"{path}-shm", "rb") as index:
        return int.from_bytes(index.read(12)[8:], sys.byteorder)


def touches(peer: Touched, keys: Sequence[str], seconds: float) -> float:
    """Touches per second in random order, at least one of each."""
    chance = random.Random(7)
    gc.collect()
    begin = time.perf_counter()
    done = 0
    while not done or time.perf_counter() - begin < seconds:
        for key in chance.sample(keys, len(keys)):
            peer.touch(key)
        done += len(keys)
    return done / (time.perf_counter() - begin)


def touch(rounds: int, users: int, seconds: float) -> None:
    """Idle time-outs of so many users, each put off at each of their requests."""
    found: list[Rates] = []
    writes = []
    for _ in range(rounds):
        with Round() as here:
            path = here.spot("power.db")
            ours, theirs = Jobwheel(path), Apscheduler(here.spot("aps.db"))
            keys = [f"user:{number}" for number in range(users)]
            for number, key in enumerate(keys):
                ours.add(number, IDLE, key)
                theirs.add(number, IDLE, key)
            touches(theirs, keys, 0.0)
            touches(ours, keys, 0.0)
            before, begin = commits(path), time.perf_counter()
            rates = {"jobwheel": touches(ours, keys, seconds)}
            writes.append((commits(path) - before) / users / (time.perf_counter() - begin))
            rates["apscheduler"] = touches(theirs, keys, seconds / 2)
            found.append(rates | {"disk": here.rate()})
            ours.stop()
            theirs.stop()
    compare(f"touches per second of {users} jobs, power", found, "jobwheel", {"apscheduler": 12.0})
    row("  writes for each job", f"{median(writes):9.2f} per second", f"goal 1: {reached(median(writes) <= 1)}")


class Now:
    """Adds jobs without a delay."""

    def __init__(self, peer: Jobwheel) -> None:
        self.cancel, self.stop, self._add_job = peer.cancel, peer.stop, peer.timer.add_job

    def add(self, number: int, _delay: float, key: str) -> object:
        return self._add_job(Numbered(number), key=key)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks durable", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ["one", "eight", "many", "bulk", "touch", "fire", "million", "lateness", "processes", "life", "background"]
    parser.add_argument("--quick", action="store_true", help="a tenth of everything: shows that it runs, not what it costs")
    parser.add_argument("--only", nargs="*", default=[], choices=names)
    parser.add_argument("--rounds", type=int, default=3, help="medians of so many")
    parser.add_argument("--lead", type=float, default=5.0, help="seconds that filling APScheduler before the burst may take")
    options = parser.parse_args(arguments)
    report.quick = options.quick
    scale, rounds = 10 if options.quick else 1, options.rounds
    print(
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {os.cpu_count()} cores, {platform.machine()}; "
        f"medians of {rounds}\n",
        flush=True,
    )
    runs: dict[str, Callable[[], None]] = {
        "one": lambda: one_thread(rounds, 1.2 / scale),
        "eight": lambda: eight_threads(rounds, 1.2 / scale),
        "many": lambda: many_threads(rounds, 2.0 / scale),
        "bulk": lambda: bulk(rounds, 10_000 // scale),
        "touch": lambda: touch(rounds, 100, 4.0 / scale),
        "fire": lambda: fire(rounds, 10_000 // scale, options.lead / scale),
        "million": lambda: million(rounds, 1_000_000 // scale, 6000 // scale, 2.0),
        "lateness": lambda: lateness(1000 // scale, 10 / scale),
        "processes": lambda: processes(rounds, 4.0 / scale),
        "life": lambda: life(rounds, 1.0 / scale),
        "background": lambda: in_background(rounds, 3000 // scale),
    }
    for name, run in runs.items():
        if not options.only or name in options.only:
            run()
