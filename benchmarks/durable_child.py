"""Measurements that need a process of their own; `benchmarks.durable` starts it and reads the JSON that it prints.

`start PATH SECONDS`: opens and starts a timer on the file, and waits. Prints seconds from the call of `start` to the first run (null:
none ran), how many ran, bytes of memory then and at most. `add PATH RATE SECONDS BEGIN`: adds at a steady rate from `BEGIN` (epoch
seconds) on. Prints how long each add took.
"""

import json
import sys
import time

from benchmarks.durable_peers import Jobwheel
from benchmarks.memory import resident
from benchmarks.peers import set_note


def peak() -> int:
    """Bytes of this process that were in memory at most. (What getrusage tells counts the process that started this one in.)"""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def start(path: str, seconds: float) -> dict[str, object]:
    runs: list[float] = []
    set_note(lambda number: runs.append(time.perf_counter()))
    peer = Jobwheel(path, start=False)
    begin = time.perf_counter()
    peer.timer.start()
    started = time.perf_counter()
    time.sleep(seconds)
    found: dict[str, object] = {
        "first": min(runs) - begin if runs else None,
        "start": started - begin,
        "ran": len(runs),
        "resident": resident(),
        "peak": peak(),
    }
    peer.stop()
    return found


def add(path: str, rate: float, seconds: float, begin: float) -> dict[str, object]:
    peer = Jobwheel(path)
    first = time.time_ns() % 10**9 * 1000  # no two processes have the same keys
    offset = time.perf_counter() - time.time()
    waits: list[float] = []
    for number in range(int(rate * seconds)):
        moment = begin + offset + number / rate
        time.sleep(max(0.0, moment - time.perf_counter()))
        before = time.perf_counter()
        peer.add(number, 3000.0, f"order:{first + number}")
        waits.append(time.perf_counter() - before)
    taken = time.time() - begin
    peer.stop()
    return {"waits": waits, "taken": taken}


def main() -> None:
    way, path, *numbers = sys.argv[1:]
    print(json.dumps({"start": start, "add": add}[way](path, *map(float, numbers))))  # type: ignore[operator]


if __name__ == "__main__":
    main()
