"""How all measurements print, and what they share in taking the time."""

import gc
import time
from collections.abc import Callable

quick = False
"""Set by the command line: everything is cut short, and no goal is judged."""


def row(name: str, figures: str, verdict: str = "") -> None:
    print(f"{name:<52} {figures:<62} {verdict}", flush=True)


def reached(good: bool) -> str:
    return "not judged" if quick else "reached" if good else "NOT REACHED"


def timed(what: Callable[[], None]) -> float:
    gc.collect()
    begin = time.perf_counter()
    what()
    return time.perf_counter() - begin
