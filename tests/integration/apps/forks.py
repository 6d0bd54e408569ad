"""Forks while another thread holds every lock of a started timer. The child uses its timer, and so does the parent afterwards.

`python forks.py`; writes to the file that PIDS names; exits with 0 if nobody hung and every job ran in the process that added it.
"""

import faulthandler
import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

from flask import Flask
from pids import create_app

from jobwheel import State, TimerManager
from jobwheel.flask import JobWheel

LOCKS = (type(threading.Lock()), type(threading.RLock()))
FORKS = 5


def locks_of(*roots: object) -> list[Any]:
    """Every lock that can be reached from here through objects of jobwheel, of threading and of the builtins."""
    seen: dict[int, object] = {}
    todo: list[object] = list(roots)
    while todo:
        each = todo.pop()
        if id(each) in seen or isinstance(each, type | ModuleType | FunctionType | Flask):
            continue
        seen[id(each)] = each
        if type(each).__module__.partition(".")[0] in ("jobwheel", "builtins", "threading", "collections", "_thread", "_queue"):
            todo += gc.get_referents(each)
            todo += [getattr(each, name) for name in getattr(type(each), "__slots__", ()) if hasattr(each, name)]
    return [each for each in seen.values() if isinstance(each, LOCKS)]


@contextmanager
def held(locks: list[Any]) -> Iterator[int]:
    """Another thread holds those of the locks that are free, or become so in a moment."""
    taken, over = threading.Event(), threading.Event()
    mine: list[Any] = []

    def hold() -> None:
        mine.extend(lock for lock in locks if lock.acquire(timeout=0.01))
        taken.set()
        over.wait()
        for lock in mine:
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    try:
        yield len(mine)
    finally:
        over.set()
        thread.join()


def hammer(timer: TimerManager, over: threading.Event) -> None:
    """Keeps the timer's threads and tables busy."""
    while not over.wait(0.001):
        timer.touch("hammer", 100)
        timer.find(limit=3)
        timer.stats()


def child(app: Flask, timer: TimerManager, number: int) -> int:
    """What the forked process does: its first request starts its timer, and both of its jobs run here."""
    faulthandler.dump_traceback_later(3, exit=True)  # a child that hangs says where, and ends with a status that is not 0
    assert not timer.started
    client = app.test_client()
    assert client.get("/pid").text == str(os.getpid())
    assert timer.started
    client.get(f"/later/child{number}?delay=0.01")
    assert timer.get("parent") is None
    return int(timer.wait(f"child{number}", 5).state is not State.SUCCEEDED)


def main() -> int:
    app = create_app()
    timer: TimerManager = app.extensions["jobwheel"].timer
    JobWheel.start(app)
    client = app.test_client()
    client.get("/later/parent?delay=1.5")
    client.get("/later/hammer?delay=100")
    over = threading.Event()
    hammers = [threading.Thread(target=hammer, args=(timer, over)) for _ in range(2)]
    for each in hammers:
        each.start()
    failed = 0
    for number in range(FORKS):
        with held(locks_of(timer)) as count:
            process = os.fork()
            if process == 0:
                code = 2
                try:
                    code = child(app, timer, number)
                finally:
                    os._exit(code)
        failed += os.waitpid(process, 0)[1] != 0
        assert count >= 5, count
    over.set()
    for each in hammers:
        each.join()
    client.get("/later/after?delay=0")
    for key in ("parent", "after"):
        failed += timer.wait(key, 10).state is not State.SUCCEEDED
    return failed


if __name__ == "__main__":
    sys.exit(main())
