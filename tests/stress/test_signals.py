"""The main thread is interrupted at any moment: by a handler that raises, as Ctrl-C does, and by handlers that use the timer.

Each program runs in a process of its own, so that a hang is a time-out and not the end of the test run.
"""

import subprocess
import sys
import textwrap

import pytest

HEAD = """
import itertools, logging, random, signal, threading, time
from dataclasses import dataclass
from jobwheel import IJob, open_timer

ran = set()

@dataclass
class Job(IJob):
    number: int
    def run(self):
        ran.add(self.number)

logging.disable(logging.CRITICAL)

class Cut(Exception):
    pass

timer = open_timer({"store": {"kind": "memory"}, "workers": {"threads": 3}})
timer.start()
store = timer._life.store
numbers = itertools.count()
end = time.monotonic() + 2.5

def interrupted(call, handler):
    signal.signal(signal.SIGALRM, handler)
    cuts = 0
    while time.monotonic() < end:
        try:
            signal.setitimer(signal.ITIMER_REAL, random.random() * 0.002 + 1e-5)
            while time.monotonic() < end:
                call()
        except Cut:
            cuts += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    return cuts

def raising(number, frame):
    raise Cut

def again(number, frame):
    signal.setitimer(signal.ITIMER_REAL, random.random() * 0.002 + 1e-5)
"""


def run(body: str) -> None:
    done = subprocess.run([sys.executable, "-c", HEAD + textwrap.dedent(body)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-3000:]


@pytest.mark.parametrize(
    "call",
    [
        "timer.add_job(Job(next(numbers)), 0.5, key='k')",
        "(timer.add_job(Job(next(numbers)), 0.5, key='k'), timer.cancel('k'))",
        "(timer.add_job(Job(next(numbers)), 9, key='k', if_exists='keep'), timer.pause('k'), timer.resume('k'))",
        "(timer.add_job(Job(next(numbers)), 9, key='k', if_exists='keep'), timer.touch('k'), timer.reschedule('k', 5))",
    ],
)
def test_a_ctrl_c_in_the_middle_of_a_call_blocks_neither_row_nor_key(call: str) -> None:
    """Whatever it cut short, the key can be used afterwards, and no row is held by a call that is gone."""
    run(f"""
        cuts = interrupted(lambda: {call}, raising)
        assert cuts > 50, cuts
        held = [row for row in list(store._rows.values()) if row.state in ("scheduled", "paused") and not hasattr(row, "token")]
        assert not held, held
        job = timer.add_job(Job(-1), key="k")
        assert timer.wait(job, 10).state == "succeeded"
    """)


def test_what_add_job_has_answered_for_runs_though_other_calls_were_cut_short() -> None:
    run("""
        answered = set()

        def call():
            number = next(numbers)
            timer.add_job(Job(number))
            answered.add(number)

        cuts = interrupted(call, raising)
        assert cuts > 50, cuts
        limit = time.monotonic() + 20
        while not answered <= ran and time.monotonic() < limit:
            time.sleep(0.01)
        assert answered <= ran, len(answered - ran)
    """)


@pytest.mark.parametrize("act", ["timer.get('k')", "timer.stats()", "timer.health()", "timer.add_job(Job(-2))", "timer.find(limit=3)"])
def test_a_signal_handler_may_use_the_timer_that_it_interrupted(act: str) -> None:
    run(f"""
        def handler(number, frame):
            {act}
            again(number, frame)

        def call():
            timer.add_job(Job(next(numbers)), 0.001, key="k")
            timer.get("k"), timer.stats(), timer.find(limit=3)

        interrupted(call, handler)
        assert timer.wait(timer.add_job(Job(-1)), 10).state == "succeeded"
    """)


def test_a_signal_handler_may_shut_the_timer_down_and_start_it_again() -> None:
    run("""
        def handler(number, frame):
            timer.shutdown(0)
            timer.start()
            again(number, frame)

        interrupted(lambda: timer.add_job(Job(next(numbers))), handler)
        limit = time.monotonic() + 20
        while timer.stats().pending + timer.stats().running and time.monotonic() < limit:
            time.sleep(0.01)
        timer.shutdown(5)
        limit = time.monotonic() + 10  # the watch thread is told to end and not waited for
        while (left := threading.enumerate()[1:]) and time.monotonic() < limit:
            time.sleep(0.01)
        assert not left, left
    """)
