"""Prints what jobwheel costs beside its peers, as ratios within this run; see `--help`. In memory; `python -m benchmarks durable` on disk.

Delays are random in [120, 3600) s unless jobs are to fire, so that nothing fires while adding. Keys are touched and cancelled in
random order. The job object and the key are made inside the timed loop, as an application makes them.
"""

import argparse
import gc
import os
import platform
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from benchmarks import background, durable, recurring, report
from benchmarks.peers import Apscheduler, Heap, Jobwheel, Peer, set_note
from benchmarks.report import reached, row, timed

GOALS = {
    "add": ("add, keyed, per second", 7.0),
    "touch": ("touch by key, per second", 12.0),
    "cancel": ("cancel by key, per second", 4.0),
    "fire": ("jobs due at one moment, done per second", 20.0),
}


def rates(peer: Peer, pending: int, count: int, seed: int) -> dict[str, float]:
    """Adds, touches and cancels per second with `pending` jobs waiting."""
    chance = random.Random(seed)
    for number in range(pending):
        peer.add(number, chance.uniform(120, 3600), f"order:{number}")
    delays = [chance.uniform(120, 3600) for _ in range(count)]

    def add() -> None:
        adding = peer.add
        for number, delay in enumerate(delays, pending):
            adding(number, delay, f"order:{number}")

    keys = [f"order:{number}" for number in chance.sample(range(pending + count), count)]

    def touch() -> None:
        touching = peer.touch
        for key in keys:
            touching(key, 3600.0)

    chosen = [f"order:{number}" for number in chance.sample(range(pending + count), count)]

    def cancel() -> None:
        cancelling = peer.cancel
        for key in chosen:
            cancelling(key)

    found = {name: count / timed(what) for name, what in (("add", add), ("touch", touch), ("cancel", cancel))}
    peer.stop()
    return found


def compare_rates(pending: int, count: int, rounds: int) -> None:
    found: dict[str, list[dict[str, float]]] = {"jobwheel": [], "apscheduler": [], "heap": []}
    for seed in range(rounds):
        for make in (Jobwheel, Apscheduler, Heap):
            found[make.name].append(rates(make(), pending, count, seed))
            gc.collect()
    for name in ("add", "touch", "cancel"):
        title, goal = GOALS[name]
        ours, theirs, heap = (statistics.median(one[name] for one in found[peer]) for peer in ("jobwheel", "apscheduler", "heap"))
        text = f"{ours:9,.0f}  apscheduler {theirs:8,.0f} ({ours / theirs:4.1f}x)  heap {heap:9,.0f} ({ours / heap:4.2f}x)"
        row(f"{title}, {pending:,} pending", text, f"goal {goal:g}x: {reached(ours / theirs >= goal)}")


def fire(make: Callable[[], Peer], count: int, lead: float) -> float:
    """Seconds from the due moment of `count` no-op jobs to the end of the last."""
    done = threading.Semaphore(0)
    ran: list[int] = []
    last = [0.0]

    def note(number: int) -> None:
        ran.append(number)
        if len(ran) == count:
            last[0] = time.time()
            done.release()

    set_note(note)
    peer = make()
    due = float(int(time.time() + lead))
    date = datetime.fromtimestamp(due, UTC)
    for number in range(count):
        peer.add_at(number, date, f"order:{number}")
    if time.time() > due:
        sys.exit(f"{peer.name}: adding took longer than {lead} s; give it more with --lead")
    gc.collect()
    done.acquire(timeout=300)
    peer.stop()
    set_note(lambda number: None)
    return last[0] - due


def compare_fire(count: int, lead: float, rounds: int) -> None:
    ours = statistics.median(fire(Jobwheel, count, lead / 4) for _ in range(rounds))
    heap = statistics.median(fire(Heap, count, lead / 4) for _ in range(rounds))
    theirs = fire(Apscheduler, count, lead)
    text = f"{ours:6.3f} s  apscheduler {theirs:6.3f} s ({theirs / ours:4.1f}x)  heap + pool {heap:6.3f} s ({heap / ours:4.1f}x)"
    row(f"{count:,} no-op jobs due at one moment", text, f"goal 20x and 1x: {reached(theirs / ours >= 20 and heap > ours)}")


def memory(count: int) -> None:
    """Bytes a pending job beside the user's job and key."""

    def of(way: str) -> float:
        command = [sys.executable, "-m", "benchmarks.memory", str(count), way]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    allocated, held = of("allocated"), of("resident")
    text = f"{allocated:6.0f} allocated, {held:6.0f} resident"
    row(f"bytes a pending job, {count:,} pending", text, f"goal 350: {reached(held <= 350)}")


def million(count: int, seconds: float) -> None:
    """CPU of an idle wheel with `count` jobs, then single adds and adds by four threads while they wait."""
    peer = Jobwheel()
    chance = random.Random(3)
    timer = peer.timer
    for number in range(count):
        peer.add(number, chance.uniform(1200, 86400), f"order:{number}")
    while timer.session is not None and timer.session.room.ticker.inbox:  # type: ignore[attr-defined]
        time.sleep(0.1)
    time.sleep(1)
    begin = time.process_time()
    time.sleep(seconds)
    idle = (time.process_time() - begin) / seconds
    row(f"idle, {count:,} pending", f"{idle * 100:.3f} % of a core over {seconds:g} s", f"goal 0.1 %: {reached(idle < 0.001)}")
    worst = 0.0
    for number in range(count, count + count // 10):
        begin = time.perf_counter()
        peer.add(number, 1200 + number % 7200, f"order:{number}")
        worst = max(worst, time.perf_counter() - begin)
    row(f"slowest of {count // 10:,} single adds meanwhile", f"{worst * 1000:.1f} ms", f"goal 50 ms: {reached(worst < 0.05)}")
    peer.stop()


def threads(count: int, rounds: int) -> None:
    """Adds per second by four threads together, against one thread."""

    def run(number_of_threads: int) -> float:
        peer = Jobwheel()
        gate = threading.Barrier(number_of_threads + 1)

        def add(first: int) -> None:
            gate.wait()
            for number in range(first, first + count // number_of_threads):
                peer.add(number, 120 + number % 3000, f"order:{number}")

        workers = [threading.Thread(target=add, args=(index * count,)) for index in range(number_of_threads)]
        for worker in workers:
            worker.start()
        gc.collect()
        gate.wait()
        begin = time.perf_counter()
        for worker in workers:
            worker.join()
        rate = count / (time.perf_counter() - begin)
        peer.stop()
        return rate

    one = statistics.median(run(1) for _ in range(rounds))
    four = statistics.median(run(4) for _ in range(rounds))
    text = f"{four:,.0f} per second, one thread {one:,.0f} ({four / one:4.2f}x)"
    row("adds by 4 threads together", text, f"goal 0.8x: {reached(four / one >= 0.8)}")


def lateness(count: int, seconds: float) -> None:
    """How late `count` jobs spread over `seconds` start, for each peer."""
    texts = []
    good = False
    for make in (Jobwheel, Apscheduler, Heap):
        due: dict[int, float] = {}
        late: list[float] = []
        set_note(lambda number, due=due, late=late: late.append(time.monotonic() - due[number]))  # type: ignore[misc]
        peer = make()
        chance = random.Random(5)
        for number in range(count):
            delay = 0.5 + chance.uniform(0, seconds)
            due[number] = time.monotonic() + delay
            peer.add(number, delay, f"order:{number}")
        time.sleep(seconds + 1.5)
        peer.stop()
        late.sort()
        p50, p99 = late[len(late) // 2] * 1000, late[len(late) * 99 // 100] * 1000
        texts.append(f"{peer.name} {p50:.2f}/{p99:.2f} ms")
        if make is Jobwheel:
            good = p50 < 2 and p99 < 10 and len(late) == count and late[0] >= -0.0005
    set_note(lambda number: None)
    row(f"lateness p50/p99 of {count:,} jobs over {seconds:g} s", "  ".join(texts), f"goal 2/10 ms: {reached(good)}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything: shows that it runs, not what it costs")
    parser.add_argument(
        "--only", nargs="*", default=[], choices=["rates", "fire", "memory", "million", "threads", "lateness", "background", "recurring"]
    )
    parser.add_argument("--rounds", type=int, default=3, help="medians of so many")
    parser.add_argument("--lead", type=float, default=40.0, help="seconds that adding before the burst may take")
    options = parser.parse_args()
    report.quick = options.quick
    scale = 10 if options.quick else 1
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}; medians of {options.rounds}\n", flush=True)
    runs = {
        "rates": lambda: compare_rates(100_000 // scale, 20_000 // scale, options.rounds),
        "fire": lambda: compare_fire(100_000 // scale, options.lead / scale, options.rounds),
        "threads": lambda: threads(200_000 // scale, options.rounds),
        "lateness": lambda: lateness(1000 // scale, 10 / scale),
        "background": lambda: background.in_memory(50_000 // scale, options.rounds),
        "recurring": lambda: recurring.compare_recurring(1000 // scale, 15 if scale == 1 else 2, options.rounds),
        "memory": lambda: memory(100_000 // scale),
        "million": lambda: million(1_000_000 // scale, 20 / scale),
    }
    for name, run in runs.items():
        if not options.only or name in options.only:
            run()


if __name__ == "__main__":
    if sys.argv[1:2] == ["durable"]:
        durable.main(sys.argv[2:])
    else:
        main()
