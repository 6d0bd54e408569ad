"""Bytes a pending job costs beside the user's job and key: `python -m benchmarks.memory COUNT allocated|resident` prints one number.

A process of its own for each number, so that nothing of what other measurements freed is counted in or out.
"""

import gc
import random
import resource
import sys
import time
import tracemalloc

from benchmarks.peers import Jobwheel, Numbered


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def main() -> None:
    count, way = int(sys.argv[1]), sys.argv[2]
    chance = random.Random(7)
    jobs = [(Numbered(number), f"order:{number}", chance.uniform(120, 3600)) for number in range(count)]
    peer = Jobwheel()
    gc.collect()
    if way == "allocated":
        tracemalloc.start()
    before = resident()
    for job, key, delay in jobs:
        peer.timer.add_job(job, delay, key=key)
    del job, key, delay
    time.sleep(2.5)  # the ticker places them at its next look
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] if way == "allocated" else resident() - before
    print(used / count)
    peer.stop()


if __name__ == "__main__":
    main()
