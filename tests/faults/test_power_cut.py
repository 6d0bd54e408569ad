"""No acknowledged call is undone by a power cut, in `durability: power`. `power.py` says how a power cut is made without one.

A test that finds nothing proves nothing, so the same look must find lost calls where they are to be expected: with `durability: process`,
which promises nothing about power, with connections that never sync, and with cancels that are left to be synced by somebody else.
"""

import os
import random
import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import power_child
import pytest
from power import Disk, calls, record, strace

from jobwheel import JobwheelError, State, TimerManager, open_timer

IMAGES = 300
"""How many images are looked at, about; half of them at a moment right after an answer."""
RESTARTS = 10
"""In how many of them at least, about, a timer is started, to run what was due."""
SEED = 20261201
CLOSE = timedelta(microseconds=1)
"""A due moment is kept to the microsecond; on its way it is a float."""
LIVE = {State.SCHEDULED, State.PAUSED, State.RUNNING}
WaitUntil = Callable[..., None]


@dataclass
class Promised:
    """What the program was told so far, from its marks."""

    now: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By name: (state, due) that the latest answered call promised. Not here: a call about it is under way, or its run has ended."""
    answers: int = 0

    def hear(self, line: str) -> bool:
        """Takes a mark in; True if it was an answer."""
        word, name, *promise = line.split()
        match word:
            case "want":
                self.now.pop(name, None)
            case "is" if self.now.get(name, ("",))[0] not in {"ended", "once"}:
                self.now[name] = (promise[0], promise[1])
            case "start" if name.startswith("once-"):
                self.now[name] = ("once", "")
            case "end" if not name.startswith("once-"):
                self.now[name] = ("ended", "")
        self.answers += word == "is"
        return word == "is"

    def broken(self, timer: TimerManager) -> list[str]:
        """Each promise that the timer's store does not keep."""
        live = {job.key: job for job in timer.find(limit=1_000_000) if job.state in LIVE}
        faults = []
        for name, (state, due) in self.now.items():
            job = live.get(name)
            match state:
                case "ended":  # it may run again: that its end was written down is not promised
                    continue
                case "once":  # it has started, so it must not start again
                    kept = job is None or job.state is State.RUNNING
                case "gone":
                    kept = job is None
                case "due":
                    kept = job is not None and job.state is not State.PAUSED
                case _:
                    kept = job is not None and job.state.value == state and abs(job.due - datetime.fromisoformat(due)) <= CLOSE
            if not kept:
                faults.append(f"{name} must be {state} {due}, but is {job and (job.state.value, job.due.isoformat())}")
        return faults


@dataclass
class Found:
    """What a look at all images found."""

    images: int = 0
    bad: int = 0
    faults: list[str] = field(default_factory=list)
    restarts: int = 0
    reruns: int = 0
    checkpoints: int = 0
    """Writes to the database itself between the first answer and the last."""
    answers: int = 0


@pytest.fixture(scope="module")
def recorder() -> None:
    """strace is there. CI promises it; elsewhere these tests are left out without it."""
    if strace() is None:
        reason = "strace is not here, or may not look into processes: apt-get install strace; in a container, allow ptrace"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)


def look(folder: Path, wait_until: WaitUntil, durability: str, *planted: str, images: int = IMAGES) -> Found:
    """Records the program once, cuts the power again and again, and compares about so many images with what had been promised then."""
    store, log, marks = folder / "store", folder / "log", folder / "marks"
    store.mkdir()
    program = [sys.executable, power_child.__file__, str(store / "jobs.db"), str(marks), durability, *planted]
    record(program, log, timeout=60)
    answers = marks.read_text().count("is ")
    changes = sum(call.result is not None and call.path.startswith(str(store)) for call in calls(log))
    chance, disk, promised, found = random.Random(SEED), Disk(store), Promised(), Found(answers=answers)
    for call in calls(log):
        if call.path == str(marks) and call.name == "write" and call.result is None:  # as it begins, so that nothing later is credited
            now = promised.hear(call.text.decode()) and chance.random() < images / 4 / answers
        else:
            now = disk.follow(call) and chance.random() < images / 4 / changes
            found.checkpoints += call.name == "pwrite64" and call.path.endswith(".db") and 0 < promised.answers < answers
        if now:
            for image in (disk.image(), disk.image(chance)):
                faults = _examine(image, folder / "image", promised, found, wait_until)
                found.images += 1
                found.bad += bool(faults)
                found.faults += faults
    return found


def _examine(image: dict[str, bytes], folder: Path, promised: Promised, found: Found, wait_until: WaitUntil) -> list[str]:
    """The faults of one image, opened as the next start of the program would. In some of them what was due is run, too."""
    folder.mkdir()
    for name, content in image.items():
        if not name.endswith("-lock"):  # it knows the file by its inode, which a power cut keeps and an image does not
            (folder / name).write_bytes(content)
    file = folder / "jobs.db"
    try:
        timer = open_timer({"store": {"kind": "sqlite", "path": str(file), "durability": "process"}})
        faults = promised.broken(timer)
        # One of `once-...` that was claimed is interrupted, whether it had started or not.
        cut = {name for name, (state, _) in promised.now.items() if state == "due" and name.startswith("now-")}
        if found.images % (IMAGES // RESTARTS) == 7 or (cut and found.restarts < RESTARTS):
            ran: list[str] = []
            power_child.Note.mark = staticmethod(ran.append)
            timer.start()
            if not faults:
                wait_until(lambda: cut <= {line.split()[1] for line in ran}, what="the jobs that the cut left")
            faults += [
                f"{name} was started twice" for name, (state, _) in promised.now.items() if state == "once" and f"start {name}" in ran
            ]
            found.restarts += 1
            found.reruns += len(cut)
        timer.shutdown()
        with closing(sqlite3.connect(file)) as opened:
            verdict = opened.execute("PRAGMA integrity_check").fetchall()
        if verdict != [("ok",)]:
            faults.append(f"integrity_check: {verdict}")
    except (sqlite3.Error, JobwheelError) as error:
        faults = [repr(error)]
    finally:
        shutil.rmtree(folder)
    return faults


@pytest.mark.usefixtures("recorder")
def test_a_power_cut_undoes_no_acknowledged_call(tmp_path: Path, wait_until: WaitUntil) -> None:
    """Adds, replacements, batches, moves, pauses and cancels from three threads, while jobs run."""
    found = look(tmp_path, wait_until, "power")
    assert found.faults == []
    assert found.images > IMAGES / 2
    assert found.restarts > RESTARTS / 3
    assert found.reruns
    assert found.checkpoints, "no checkpoint in the middle: the run is too short to prove anything about it"


@pytest.mark.parametrize("planted", [("process",), ("power", "off")], ids=["durability process", "a store that does not sync"])
@pytest.mark.usefixtures("recorder")
def test_it_finds_lost_calls_where_they_are_to_be_expected(tmp_path: Path, wait_until: WaitUntil, planted: tuple[str, ...]) -> None:
    """Otherwise the test above would prove nothing."""
    found = look(tmp_path, wait_until, *planted, images=IMAGES // 3)
    assert found.images > IMAGES / 6
    assert found.bad > found.images / 2, found


@pytest.mark.usefixtures("recorder")
def test_it_finds_cancels_that_were_not_synced(tmp_path: Path, wait_until: WaitUntil) -> None:
    """A sync for somebody else's add makes most of them durable all the same; the look must find the rest."""
    found = look(tmp_path, wait_until, "power", "cancels", images=IMAGES * 2 // 3)
    assert any("must be gone" in fault for fault in found.faults), found
