"""The crash campaign: starts processes on one file, kills and stops them at random moments, and has what they wrote down judged.

`python tests/faults/campaign.py` is the long run, `make faults`: every plan below, then every planted fault; it prints a table, and exits
with 1 where a promise was broken or a planted fault was not found. The short run is `test_campaign.py`. A seed decides what is done and
when; what the machine makes of it is chance, so a run is like another one of its seed, but not the same.

While all processes are dead a copy of the file is checked by SQLite: a copy, so that the next process meets the log as the kill left it.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import planted
from checker import Report, check, judge_output
from eventlog import PARENT, EventLog, read

HERE = Path(__file__).parent
PATIENCE = 60.0
"""Seconds that the last process waits for all that is left."""
IMPATIENCE = 3.0
"""The same where a fault is planted that may leave something for ever."""
TOTAL = 600
"""Calls per second, of all processes and threads, that the plans aim at: two cores must keep up with them."""


@dataclass(frozen=True)
class Plan:
    """How many processes on one file, what happens to them, and until when."""

    name: str
    processes: int = 1
    threads: int = 1
    timers: int = 1
    """In each process; with several, they are shut down and started again now and then."""
    durability: str = "power"
    kills: int = 10
    stops: int = 0
    """How often a process is stopped, where it is 60 that one is killed."""
    births: bool = False
    """Again and again on a new file, with the kill while it is being made."""
    gap: tuple[float, float] = (0.1, 0.9)
    """Seconds between two blows, from and to."""
    stop: tuple[float, float] = (0.1, 1.2)
    """Seconds that a process is stopped."""
    slow: int = 3
    """Jobs of 100 that last 0.1 to 0.5 s."""
    limit: float = 600.0
    """Seconds after which there are no more blows, however few there were."""
    mutant: str | None = None
    patience: float = PATIENCE


LONG = (
    Plan("1 process, 1 thread", threads=1, kills=60),
    Plan("1 process, 8 threads", threads=8, kills=40),
    Plan("1 process, 8 threads, process", threads=8, durability="process", kills=40),
    Plan("4 processes, 1 thread", processes=4, threads=1, kills=60, gap=(0.05, 0.5)),
    Plan("4 processes, 8 threads, stops", processes=4, threads=8, kills=60, stops=30, gap=(0.05, 0.6)),
    Plan("4 processes, 8 threads, stops, process", processes=4, threads=8, durability="process", kills=60, stops=30, gap=(0.05, 0.6)),
    Plan("4 processes, stopped beyond patience", processes=4, threads=8, kills=8, stops=600, gap=(0.5, 1.5), stop=(5.3, 6.5)),
    Plan("2 processes, 2 timers in each", processes=2, threads=4, timers=2, kills=40),
    Plan("4 processes on a new file", processes=4, threads=2, kills=40, births=True),
)
SHORT = (
    replace(LONG[1], kills=8, gap=(0.05, 0.6)),
    replace(LONG[4], kills=14),
    replace(LONG[7], kills=8),
    replace(LONG[8], kills=12),
)


@dataclass
class Child:
    """A living process of the campaign."""

    number: int
    process: subprocess.Popen[bytes]
    stopped: bool = False


def carry_out(plan: Plan, folder: Path, seed: int) -> Report:
    """What became of a plan; its files and events stay in `folder`."""
    if not plan.births:
        return Campaign(plan, folder, seed).run()
    report = Report()
    while report.kills < plan.kills:
        report.add(Campaign(plan, folder / str(report.kills), seed + report.kills).run())
    return report


@dataclass
class Campaign:
    """One plan on one file, in a folder of its own."""

    plan: Plan
    folder: Path
    seed: int
    children: list[Child] = field(default_factory=list)
    numbers: int = PARENT
    kills: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.chance = random.Random(f"{self.plan.name} {self.seed}")
        self.events = self.folder / "events"
        self.log = EventLog(self.events, PARENT)
        self.file = self.folder / "jobs.db"
        self.said = (self.folder / "said").open("ab")

    def run(self) -> Report:
        """Carries the plan out, lets what is left come to its end, and judges."""
        try:
            self.birth() if self.plan.births else self.blows()
            self.kill(*self.children)
            self.drain()
        finally:
            for child in self.children:
                child.process.kill()
                child.process.wait()
            self.log.close()
            self.said.close()
        report = check(read(self.events), store_errors=bool(self.plan.stops))
        if self.plan.mutant is None:  # a planted fault may speak of itself
            report.violations += judge_output((self.folder / "said").read_text(errors="replace"), store_errors=bool(self.plan.stops))
        return report

    # --- what happens to the processes ---

    def blows(self) -> None:
        plan, chance = self.plan, self.chance
        if plan.mutant is not None:
            self.wait_for("ready", {self.start().number for _ in range(plan.processes)})
        end = time.monotonic() + plan.limit
        while self.kills < plan.kills and time.monotonic() < end:
            while len(self.children) < plan.processes:
                self.start()
            time.sleep(chance.uniform(*plan.gap))
            victim = chance.choice(self.children)
            match chance.choices(("kill", "all", "stop", "end"), (60, 10, plan.stops, 5))[0]:
                case "kill":
                    self.kill(victim)
                case "all":
                    self.kill(*self.children)
                case "stop":
                    self.stop(victim)
                case "end":
                    self.end(victim)
            if not self.children:
                self.check_file()

    def birth(self) -> None:
        """All processes are started on a file that is not there, and killed while they make it."""
        for _ in range(self.plan.processes):
            self.start()
        self.wait_for("up", {self.numbers})
        time.sleep(self.chance.uniform(0, 0.12))
        self.kill(*self.children)

    def wait_for(self, what: str, numbers: set[int]) -> None:
        deadline = time.monotonic() + 30
        while not numbers <= {line.process for line in read(self.events) if line.what == what}:
            ended = [child.number for child in self.children if child.number in numbers and child.process.poll() is not None]
            assert not ended, f"ended before it was {what}: processes {ended}; {self.told()}"
            assert time.monotonic() < deadline, f"not {what}: processes {numbers}; {self.told()}"
            time.sleep(0.002)

    def told(self) -> str:
        """What the processes said last."""
        return f"in {self.folder} they said:\n{(self.folder / 'said').read_text()[-2000:]}"

    def start(self, *, drain: bool = False) -> Child:
        plan = self.plan
        self.numbers += 1
        orders = {
            "log": str(self.events),
            "process": self.numbers,
            "seed": self.chance.randrange(1 << 30),
            "timer": {"store": {"kind": "sqlite", "path": str(self.file), "durability": plan.durability, "keep": 1_000_000}},
            "threads": plan.threads,
            "timers": plan.timers,
            "pause": plan.threads * plan.processes / TOTAL,
            "slow": plan.slow,
            "mutant": plan.mutant,
            "drain": drain,
            "patience": plan.patience,
        }
        command = [sys.executable, str(HERE / "child.py"), msgspec.json.encode(orders).decode()]
        env = os.environ | {"PYTHONPATH": str(HERE.parents[1])}
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=self.said, stderr=self.said, env=env)
        child = Child(self.numbers, process)
        self.children.append(child)
        return child

    def kill(self, *children: Child) -> None:
        """At one moment. The line of a kill comes before the kill."""
        for child in children:
            self.log("kill", process=child.number)
        for child in children:
            child.process.kill()
        for child in children:
            self.buried(child, -signal.SIGKILL)
            self.kills += 1

    def stop(self, child: Child) -> None:
        """For a while; sometimes it is killed in it."""
        self.log("stop", process=child.number)
        child.process.send_signal(signal.SIGSTOP)
        time.sleep(self.chance.uniform(*self.plan.stop))
        if self.chance.random() < 0.3:
            self.kill(child)
        else:
            self.log("cont", process=child.number)
            child.process.send_signal(signal.SIGCONT)

    def end(self, child: Child) -> None:
        """Cleanly, as a server does that is told to."""
        self.buried(child, 0)

    def buried(self, child: Child, code: int, limit: float = 30.0) -> None:
        """It has ended so; one that ended otherwise has crashed by itself, and the campaign with it."""
        assert child.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            child.process.stdin.close()
        found = child.process.wait(limit)
        self.children.remove(child)
        assert found == code, f"process {child.number} ended with {found}, not with {code}; {self.told()}"

    def drain(self) -> None:
        """One last process, that nobody harms."""
        self.check_file()
        self.buried(self.start(drain=True), 0, self.plan.patience + 30)
        self.check_file()

    def check_file(self) -> None:
        """While no process lives, which is when a plain copy is a whole one."""
        assert not self.children
        if not self.file.exists():
            return
        with tempfile.TemporaryDirectory() as folder:
            for path in (self.file, Path(f"{self.file}-wal")):
                if path.exists():
                    shutil.copy(path, folder)
            with contextlib.closing(sqlite3.connect(Path(folder) / self.file.name)) as copy:
                try:
                    self.log("sound", copy.execute("PRAGMA integrity_check(1)").fetchone()[0])
                except sqlite3.DatabaseError as error:
                    self.log("sound", f"{type(error).__name__}: {error}")


def caught(mutant: planted.Mutant, folder: Path, seed: int, limit: float) -> Iterator[Report]:
    """Campaigns with this fault planted, until the judge has found it or `limit` seconds are over; the last report tells which."""
    end = time.monotonic() + limit
    number = 0
    while time.monotonic() < end:
        plan = Plan(mutant.name, **mutant.plan, mutant=mutant.name, patience=IMPATIENCE if mutant.sorts else PATIENCE)
        report = carry_out(plan, folder / f"{mutant.name} {number}", seed + number)
        yield report
        if mutant.found(report) or not mutant.sorts:
            return
        number += 1


# --- the long run ---

COLUMNS = ("kills", "stops", "acknowledged", "cancelled", "ran", "twice", "unasked", "interrupted", "store_errors")
HEADS = (
    "kills",
    "stops",
    "acknowledged",
    "cancelled",
    "ran",
    "twice at a kill",
    "ran unack'd",
    "interrupted",
    "store errors",
    "violations",
)


def row(name: str, cells: list[Any], note: str = "") -> None:
    print(
        f"{name:<40}" + "".join(f"{cell!s:>{max(8, len(head) + 2)}}" for head, cell in zip(HEADS, cells, strict=True)) + f"  {note}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 20), help="default: chance; it is printed")
    parser.add_argument("--scale", type=float, default=1.0, help="times as many kills")
    parser.add_argument("--only", default="", help="plans and planted faults with this in their names")
    parser.add_argument("--folder", type=Path, default=None, help="where files and events are kept; default: a temporary one")
    chosen = parser.parse_args()
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="jobwheel-faults-"))
    print(f"seed {chosen.seed}, folder {folder}")
    row("", list(HEADS))
    bad = total = 0
    for plan in LONG:
        if chosen.only not in plan.name:
            continue
        plan = replace(plan, kills=round(plan.kills * chosen.scale))  # noqa: PLW2901
        report = carry_out(plan, folder / plan.name, chosen.seed)
        row(plan.name, [getattr(report, column) for column in COLUMNS] + [len(report.violations)])
        total += report.kills
        if report.violations:
            bad += 1
            print(report)
    print(f"{total} kills. Planted faults, which must be found:")
    for mutant in planted.MUTANTS.values():
        if chosen.only not in mutant.name:
            continue
        for report in caught(mutant, folder, chosen.seed, limit=120):
            found = ", ".join(f"{count} x {sort}" for sort, count in report.sorts.items()) or "nothing"
            row(mutant.name, [getattr(report, column) for column in COLUMNS] + [len(report.violations)], f"found: {found}")
        if not mutant.found(report):
            bad += 1
            print(f"NOT FOUND: {mutant.name}, {', '.join(mutant.sorts)}")
    if not bad and chosen.folder is None:
        shutil.rmtree(folder)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
