"""A thousand jobs that run each second: the processor time they take, and what is missed, beside as many of APScheduler's.

APScheduler is as it comes (BackgroundScheduler, interval trigger, coalescing) but for `misfire_grace_time=None`, without which it drops
what is late. A run counts as missed when its job has run less often than whole intervals went by.
"""

import gc
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from benchmarks import peers
from benchmarks.peers import Numbered, call, set_note
from benchmarks.report import reached, row
from jobwheel import every

INTERVAL = 1.0


class Peer(Protocol):
    """What runs jobs again and again."""

    name: str

    def repeat(self, number: int) -> object: ...
    def stop(self) -> None: ...


class Jobwheel(peers.Jobwheel):
    """`every`, in memory."""

    def repeat(self, number: int) -> object:
        return self.timer.add_job(Numbered(number), trigger=every(INTERVAL), key=f"each:{number}")


class Apscheduler(peers.Apscheduler):
    """The interval trigger, in memory."""

    def repeat(self, number: int) -> object:
        return self.scheduler.add_job(call, "interval", seconds=INTERVAL, args=(number,), id=f"each:{number}")


def measure(make: Callable[[], Peer], count: int, turns: int) -> tuple[float, int, int]:
    """Seconds of processor time in `turns` intervals with `count` jobs; how many ran in them, and how many runs were missed."""
    ran: list[int] = []
    set_note(ran.append)
    peer = make()
    added = []
    for number in range(count):
        peer.repeat(number)
        added.append(time.monotonic())
    gc.collect()
    before, used = len(ran), time.process_time()
    time.sleep(turns * INTERVAL)
    used = time.process_time() - used
    runs, end = len(ran) - before, time.monotonic()
    time.sleep(INTERVAL / 2)  # for what is due at this moment and a little late
    often = Counter(ran)
    peer.stop()
    set_note(lambda number: None)
    missed = sum(max(0, int((end - since) / INTERVAL) - often[number]) for number, since in enumerate(added))
    return used, runs, missed


def compare_recurring(count: int, turns: int, rounds: int) -> None:
    ours = [measure(Jobwheel, count, turns) for _ in range(rounds)]
    theirs = [measure(Apscheduler, count, turns) for _ in range(rounds)]
    mine, other = (statistics.median(used for used, _, _ in found) for found in (ours, theirs))
    share = mine / (turns * INTERVAL) * 100
    text = f"{mine:.2f} s of CPU ({share:.1f} % of a core)  apscheduler {other:.2f} s ({other / mine:.1f}x)"
    row(f"{count:,} jobs, each every {INTERVAL:g} s, for {turns} s", text, f"goal 1x: {reached(mine <= other)}")
    runs, their_runs = (sum(runs for _, runs, _ in found) // rounds for found in (ours, theirs))
    missed, their_missed = (sum(missed for _, _, missed in found) for found in (ours, theirs))
    text = f"{missed} of {runs:,} a round  apscheduler {their_missed} of {their_runs:,}"
    row("  runs that were missed", text, f"goal 0: {reached(missed == 0)}")
