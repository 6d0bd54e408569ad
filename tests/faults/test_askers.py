"""A process whose timer is not started, as a command line or a web process that only adds: each call works, and others run the jobs."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from jobwheel import IJob, State, TimerManager

WaitUntil = Callable[..., None]
OpenedTimer = Callable[..., TimerManager]


@dataclass
class Note(IJob, kind="askers.note"):
    name: str
    runs: ClassVar[list[tuple[str, float]]] = []

    def run(self) -> None:
        self.runs.append((self.name, time.time()))


ASKER = """
import sys
sys.path.insert(0, sys.argv[2])
from jobwheel import open_timer
from test_askers import Note
timer = open_timer({"store": {"kind": "sqlite", "path": sys.argv[1]}})
assert timer.cancel("cancelled") and not timer.cancel("cancelled")
assert timer.reschedule("earlier", 0.5)
assert timer.reschedule("later", 3600)
assert timer.pause("paused")
assert timer.resume("resumed")
assert timer.run_now("at once")
assert timer.retry("failed") is False
timer.add_job(Note("added"), 0.5)
timer.add_job(Note("replaced by"), 0.5, key="replaced")
assert timer.get("earlier").state == "scheduled"
assert timer.stats().scheduled == 6, timer.stats()
assert not timer.started
"""


def test_a_process_that_never_starts_its_timer_may_add_cancel_and_move_and_others_run_the_jobs(
    tmp_path: Path, opened: OpenedTimer, wait_until: WaitUntil
) -> None:
    """Also what the other one has in its waiting room already, for another moment. What was moved to earlier is late by a sweep at most."""
    Note.runs = []
    timer = opened(store={"kind": "sqlite", "path": str(tmp_path / "jobs.db")})
    for name in ("cancelled", "later", "paused"):
        timer.add_job(Note(name), 2.0, key=name)
    for name in ("earlier", "resumed", "at once", "replaced"):
        timer.add_job(Note(name), 3600, key=name)
    timer.pause("resumed")
    begin = time.time()
    subprocess.run([sys.executable, "-c", ASKER, tmp_path / "jobs.db", Path(__file__).parent], check=True, timeout=60)
    end = time.time()
    wait_until(lambda: len(Note.runs) >= 4 and time.time() > begin + 2.5)
    moments = dict(Note.runs)
    assert sorted(name for name, _ in Note.runs) == ["added", "at once", "earlier", "replaced by"]
    assert max(moments.values()) < end + 0.5 + 1.0 + 1.5  # due, swept for, on a busy machine
    states = {key: timer.get(key) for key in ("cancelled", "later", "paused", "resumed")}
    assert {key: job and job.state for key, job in states.items()} == {
        "cancelled": State.CANCELLED, "later": State.SCHEDULED, "paused": State.PAUSED, "resumed": State.SCHEDULED,
    }  # fmt: skip
