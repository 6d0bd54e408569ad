"""The judge of the crash campaign, on events written by hand: it finds each broken promise, and lets pass what only looks like one.

A line is (what, process, ...); each comes one second after the one before. The job is called a, its id is 7, process 1 adds it.
"""

from pathlib import Path
from typing import Any

import pytest
from checker import Report, check, judge_output
from eventlog import EventLog, Line, read

At = tuple[Any, ...]


def judged(*lines: At, **options: bool) -> Report:
    return check([Line(place, what, process, float(place), tuple(rest)) for place, (what, process, *rest) in enumerate(lines)], **options)


def asks(
    number: int, name: str = "a", kind: str = "faults.work", key: str | None = None, policy: str = "replace", delay: float = 0.0
) -> At:
    return ("ask", 1, number, "add", [[name, kind, key, policy, delay]])


def added(number: int, name: str = "a", id: int = 7, held: str = "") -> At:
    return ("answer", 1, number, [[name, id, held or name]])


def call(process: int, what: str, value: Any, *more: Any, id: int = 7) -> tuple[At, At]:
    """A call that is answered at once. Its number is unique in these stories, where no process makes the same call twice."""
    number = f"{what}{value}"
    return ("ask", process, number, what, id, *more), ("answer", process, number, value)


ADDED = (asks(1), added(1))
RAN = (("start", 1, 7, 1, "a"), ("end", 1, 7, 1, "a", "ok"), ("settled", 1, 7))
BEGINS = ("start", 1, 7, 1, "a")
BEGINS_IN_2 = ("start", 2, 7, 2, "a")
ENDS_IN_2 = ("end", 2, 7, 2, "a", "ok")
KILL = ("kill", 1)
KEYED = (asks(1, key="k"), added(1))
B_RAN = (("start", 1, 8, 1, "b"), ("end", 1, 8, 1, "b", "ok"))

BROKEN: dict[str, tuple[At, ...]] = {
    "lost": ADDED,
    "lost: its process was killed in the run, and nobody ran it again": (*ADDED, BEGINS, KILL),
    "lost: cancel said False, and it never ran": (*ADDED, *call(1, "cancel", False)),
    "lost: the touched one": (*ADDED, *call(2, "touch", True, 1.0)),
    "unexpected": (*ADDED, *RAN, ("start", 1, 8, 1, "b")),
    "unexpected: one with another key was kept": (*ADDED, *RAN, asks(2, "b", key="k", policy="keep"), added(2, "b", held="a")),
    "one id for two": (*ADDED, *RAN, asks(2, "b"), added(2, "b", 7), ("start", 1, 7, 1, "b")),
    "added twice": (*ADDED, *RAN, ("start", 1, 8, 1, "a")),
    "ran after cancel": (*ADDED, *call(2, "cancel", True), *RAN),
    "ran after cancel: after a kill": (*ADDED, BEGINS, KILL, *call(2, "cancel", True), BEGINS_IN_2),
    "cancelled while running": (*ADDED, BEGINS, *call(2, "cancel", True), ("end", 1, 7, 1, "a", "ok")),
    "cancelled while running: it had ended": (*ADDED, *RAN, *call(2, "cancel", True)),
    "cancelled while running: its process was stopped, not killed": (*ADDED, BEGINS, ("stop", 1), *call(2, "cancel", True)),
    "ran on after cancel": (*ADDED, BEGINS, *call(2, "cancel", False), KILL, BEGINS_IN_2, ENDS_IN_2),
    "ran after its end": (*ADDED, *RAN, KILL, BEGINS_IN_2, ENDS_IN_2),
    "second run": (*ADDED, *RAN[:2], BEGINS_IN_2, ENDS_IN_2),
    "second run: the kill came after it": (*ADDED, *RAN[:2], BEGINS_IN_2, KILL, ENDS_IN_2),
    "second run: another process was killed": (*ADDED, *RAN[:2], ("kill", 3), BEGINS_IN_2, ENDS_IN_2),
    "two at once": (*ADDED, BEGINS, ("stop", 1), BEGINS_IN_2, ENDS_IN_2, ("cont", 1), ("end", 1, 7, 1, "a", "ok")),
    "interrupted ran again": (asks(1, kind="faults.once"), added(1), BEGINS, KILL, BEGINS_IN_2, ENDS_IN_2),
    "attempt": (*ADDED, BEGINS, KILL, ("start", 2, 7, 1, "a"), ("end", 2, 7, 1, "a", "ok")),
    "attempt: one too many": (*ADDED, BEGINS, KILL, ("start", 2, 7, 3, "a"), ("end", 2, 7, 3, "a", "ok")),
    "attempt: the first is a second": (*ADDED, BEGINS_IN_2, ENDS_IN_2),
    "attempt: asked for, and not counted": (*ADDED, BEGINS, ("end", 1, 7, 1, "a", "again"), ("start", 2, 7, 1, "a"), ("settled", 2, 7)),
    "early": (asks(1, delay=2.5), added(1), *RAN),
    "early: before the touched moment": (*ADDED, *call(1, "touch", True, 3.0), *RAN),
    "early: after a kill": (*ADDED, BEGINS, KILL, *call(2, "move", True, 4.0), BEGINS_IN_2, ENDS_IN_2),
    "true of an ended job": (*ADDED, *RAN, *call(2, "touch", True, 0.0)),
    "true of an ended job: it was cancelled": (*ADDED, *call(1, "cancel", True), *call(2, "pause", True)),
    "true of a running job": (*ADDED, BEGINS, *call(2, "touch", True, 0.0), ("end", 1, 7, 1, "a", "ok")),
    "ran while paused": (*ADDED, *call(2, "pause", True), *RAN),
    "ran while paused: the resume came before": (*ADDED, *call(2, "resume", True), *call(2, "pause", True), *RAN),
    "ran while paused: the resume said False": (*ADDED, *call(2, "pause", True), *call(2, "resume", False), *RAN),
    "ran after replace": (asks(1, key="k", delay=4.0), added(1), asks(2, "b", key="k"), added(2, "b", 8), *RAN, *B_RAN),
    "ran after replace: it ran, and again after a kill": (
        *KEYED, BEGINS, asks(2, "b", key="k"), added(2, "b", 8), KILL, BEGINS_IN_2, ENDS_IN_2, *B_RAN,
    ),
    "two of one key": (*KEYED, asks(2, "b", key="k", policy="keep"), added(2, "b", 8), *RAN, *B_RAN),
    "kept an ended job": (*KEYED, *RAN, asks(2, "b", key="k", policy="keep"), added(2, "b", held="a")),
    "ran though another was kept": (
        *KEYED, asks(2, "b", key="k", policy="keep"), added(2, "b", held="a"), *RAN, ("start", 1, 8, 1, "b"),
    ),
    "not drained": (*ADDED, *RAN, ("left", 9, 7, "running")),
    "another end": (*ADDED, *call(1, "cancel", True), ("final", 9, 7, "succeeded", 1)),
    "another end: it had succeeded": (*ADDED, *RAN, ("final", 9, 7, "interrupted", 1)),
    "another end: it failed": (*ADDED, BEGINS, KILL, ("final", 9, 7, "failed", 3)),
    "integrity": (("sound", 0, "row 3 missing from index job_due"),),
    "raised": (asks(1), ("raised", 1, 1, "OperationalError: database is locked")),
}  # fmt: skip


@pytest.mark.parametrize("story", BROKEN)
def test_each_broken_promise_is_found(story: str) -> None:
    sort = story.partition(":")[0]
    report = judged(*BROKEN[story])
    assert sort in report.sorts, report


# A job that is there twice breaks several promises at once.
@pytest.mark.parametrize("sort", sorted({story.partition(":")[0] for story in BROKEN} - {"added twice", "one id for two"}))
def test_a_broken_promise_is_not_taken_for_another_one(sort: str) -> None:
    assert judged(*BROKEN[sort]).sorts.keys() == {sort}


GOOD: dict[str, tuple[At, ...]] = {
    "it ran": (*ADDED, *RAN, ("final", 9, 7, "succeeded", 1), ("sound", 0, "ok")),
    "it started before its add had answered": (asks(1), BEGINS, added(1), ("end", 1, 7, 1, "a", "ok")),
    "its add never answered, and it ran": (asks(1), KILL, BEGINS_IN_2, ENDS_IN_2),
    "its add never answered, and it is gone": (asks(1), KILL),
    "the run was cut off by a kill and came again": (*ADDED, BEGINS, KILL, BEGINS_IN_2, ENDS_IN_2, ("settled", 2, 7)),
    "the run had ended at the kill and came again": (*ADDED, *RAN[:2], KILL, BEGINS_IN_2, ENDS_IN_2),
    "its end was in the store at the kill": (*ADDED, *RAN[:2], KILL, ("final", 9, 7, "succeeded", 1)),
    "it had been claimed at the kill": (*ADDED, KILL, BEGINS_IN_2, ENDS_IN_2),
    "it had been claimed at two kills": (*ADDED, BEGINS, KILL, ("kill", 2), ("start", 3, 7, 3, "a"), ("end", 3, 7, 3, "a", "ok")),
    "its first line came after that of its kill": (*ADDED, KILL, BEGINS, BEGINS_IN_2, ENDS_IN_2),
    "it asked for another attempt": (*ADDED, BEGINS, ("end", 1, 7, 1, "a", "again"), BEGINS_IN_2, ENDS_IN_2),
    "it was stopped for a while": (*ADDED, BEGINS, ("stop", 1), ("cont", 1), ("end", 1, 7, 1, "a", "ok")),
    "it was cancelled": (*ADDED, *call(2, "cancel", True), ("final", 9, 7, "cancelled", 0)),
    "it was cancelled after a kill": (*ADDED, BEGINS, KILL, *call(2, "cancel", True)),
    "it was cancelled between two attempts": (*ADDED, BEGINS, ("end", 1, 7, 1, "a", "again"), *call(2, "cancel", True)),
    "cancel came too late": (*ADDED, *RAN, *call(2, "cancel", False)),
    "cancel and start crossed": (*ADDED, ("ask", 2, 1, "cancel", 7), BEGINS, ("answer", 2, 1, False), ("end", 1, 7, 1, "a", "ok")),
    "cancel was asked for in the run, and a kill ended it": (*ADDED, BEGINS, *call(2, "cancel", False), KILL),
    "cancel was asked for when it was claimed, and a kill ended it": (
        *ADDED, *call(2, "cancel", False), KILL, ("final", 9, 7, "cancelled", 1),
    ),
    "cancel never answered, and it never ran": (*ADDED, ("ask", 1, 2, "cancel", 7), KILL),
    "cancel never answered, and it ran": (*ADDED, ("ask", 3, 1, "cancel", 7), ("kill", 3), *RAN),
    "it was interrupted": (asks(1, kind="faults.once"), added(1), BEGINS, KILL, ("final", 9, 7, "interrupted", 1)),
    "it was interrupted before its first line": (asks(1, kind="faults.once"), added(1), KILL, ("final", 9, 7, "interrupted", 1)),
    "it was moved to an earlier moment": (asks(1, delay=90.0), added(1), *call(1, "move", True, 1.0), *RAN),
    "it was let run now": (asks(1, delay=90.0), added(1), *call(1, "now", True), *RAN),
    "two moves crossed": (
        asks(1, delay=90.0), added(1), ("ask", 2, 1, "touch", 7, 80.0), ("ask", 3, 1, "touch", 7, 1.0), ("answer", 2, 1, True),
        ("answer", 3, 1, True), *RAN,
    ),
    "a touch never answered": (asks(1, delay=90.0), added(1), ("ask", 2, 1, "touch", 7, 0.0), ("kill", 2), *RAN),
    "a touch came too late": (*ADDED, *RAN, *call(2, "touch", False, 9.0)),
    "it was paused and resumed": (*ADDED, *call(2, "pause", True), *call(2, "resume", True), *RAN),
    "pause and resume crossed": (
        *ADDED, ("ask", 2, 1, "pause", 7), ("ask", 3, 1, "resume", 7), ("answer", 3, 1, True), ("answer", 2, 1, True), *RAN,
    ),
    "it was replaced": (*KEYED, asks(2, "b", key="k"), added(2, "b", 8), *B_RAN),
    "it ran when it was replaced": (
        *KEYED, BEGINS, asks(2, "b", key="k"), added(2, "b", 8), KILL, ("start", 2, 8, 1, "b"), ("end", 2, 8, 1, "b", "ok"),
    ),
    "it was claimed and not yet started when it was replaced": (*KEYED, asks(2, "b", key="k"), added(2, "b", 8), *RAN, *B_RAN),
    "it was perhaps replaced": (*KEYED, asks(2, "b", key="k"), KILL),
    "it was kept": (*KEYED, asks(2, "b", key="k", policy="keep"), added(2, "b", held="a"), *RAN),
    "it was kept in its run": (*KEYED, BEGINS, asks(2, "b", key="k", policy="keep"), added(2, "b", held="a"), *RAN[1:]),
    "it was replaced in its run, and failed instead of its second attempt": (
        *KEYED, BEGINS, asks(2, "b", key="k"), added(2, "b", 8), *B_RAN, ("end", 1, 7, 1, "a", "again"), ("final", 9, 7, "failed", 1),
    ),
    "it was claimed, replaced, and not kept any more": (
        *KEYED, asks(2, "b", key="k"), added(2, "b", 8), *B_RAN, ("settled", 1, 8),
        asks(3, "c", key="k", policy="keep"), added(3, "c", 9), *RAN, ("start", 1, 9, 1, "c"), ("end", 1, 9, 1, "c", "ok"),
    ),
    "the one before it with its key had ended": (
        *KEYED, *RAN, asks(2, "b", key="k", policy="keep"), added(2, "b", 8), *B_RAN,
    ),
}  # fmt: skip


@pytest.mark.parametrize("story", GOOD)
def test_what_is_right_passes(story: str) -> None:
    report = judged(*GOOD[story])
    assert not report.violations, report


STOPPED = "StoreError: jobs.db: process 4711 has held the right to write for too long: it hangs, is stopped, or its disk is slow"


def test_a_store_error_passes_only_where_a_writer_may_have_been_stopped() -> None:
    story = (asks(1), ("raised", 1, 1, STOPPED))
    assert judged(*story).sorts == {"raised": 1}
    report = judged(*story, store_errors=True)
    assert not report.violations
    assert report.store_errors == 1


@pytest.mark.parametrize(
    "error",
    [
        "StoreError: jobs.db is damaged (SQLITE_CORRUPT)",
        "StoreError: jobs.db was deleted or replaced while the store's file was in use",
        "StoreError: jobs.db: database is locked (SQLITE_BUSY); this is unexpected: please report it",
        STOPPED.replace("StoreError", "OperationalError"),
    ],
)
def test_a_stopped_writer_excuses_no_other_error(error: str) -> None:
    assert judged(asks(1), ("raised", 1, 1, error), store_errors=True).sorts == {"raised": 1}


@pytest.mark.parametrize("stops", [False, True], ids=["without stops", "with stops"])
@pytest.mark.parametrize(
    ("text", "found", "found_with_stops"),
    [
        ("", 0, 0),
        ("3 2026-01-01 10:00:00,000 WARNING worker-1 jobwheel a run was given up\n", 0, 0),
        ("3 2026-01-01 10:00:00,000 ERROR keeper jobwheel the store fails: it is gone\n", 1, 1),
        (f"3 2026-01-01 10:00:00,000 ERROR keeper jobwheel the store fails: {STOPPED}\n", 1, 0),
        ("Exception in thread caller-1:\nTraceback (most recent call last):\n  File ...\nKeyError: 'ERROR'\n", 1, 1),
        ("3 2026-01-01 10:00:00,000 WARNING jobwheel ERR", 0, 0),
    ],
    ids=["nothing", "a warning", "an error", "a stopped writer", "a traceback", "a line that a kill cut short"],
)
def test_what_the_processes_said_is_judged_too(text: str, found: int, found_with_stops: int, stops: bool) -> None:
    violations = judge_output(text, store_errors=stops)
    assert [violation.sort for violation in violations] == ["said"] * (found_with_stops if stops else found)


def test_the_report_counts_what_happened() -> None:
    report = judged(
        *ADDED, BEGINS, ("stop", 2), ("cont", 2), KILL, BEGINS_IN_2, ENDS_IN_2, ("settled", 2, 7),
        asks(2, "b"), added(2, "b", 8), *call(2, "cancel", True, id=8),
        asks(3, "c"), KILL, ("start", 2, 9, 1, "c"), ("end", 2, 9, 1, "c", "ok"),
    )  # fmt: skip
    assert not report.violations, report
    assert (report.kills, report.stops, report.acknowledged, report.cancelled, report.ran) == (2, 1, 2, 1, 2)
    assert (report.twice, report.unasked, report.store_errors) == (1, 1, 0)


def test_a_line_that_a_kill_cut_short_swallows_no_other(tmp_path: Path) -> None:
    path = tmp_path / "events"
    one, two = EventLog(path, 1), EventLog(path, 2)
    one("ask", 1, "add", [["a", "faults.work", None, "replace", 0.0]])
    with path.open("ab") as file:
        file.write(b'\n["start",1,4.5,7,1,"')
    moment = two("start", 7, 1, "ä\nö")
    assert [(line.place, line.what, line.process, line.rest) for line in read(path)] == [
        (0, "ask", 1, (1, "add", [["a", "faults.work", None, "replace", 0.0]])),
        (1, "start", 2, (7, 1, "ä\nö")),
    ]
    assert read(path)[1].at == moment
    one.close()
    two.close()
