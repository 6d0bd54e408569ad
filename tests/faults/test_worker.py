"""`jobwheel worker` as it is run, told to end, killed, and given what cannot work. Each test tells one story with real processes."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from jobwheel import ScheduledJob, State, TimerManager, open_timer

LIMIT = 30.0
ROOT = str(Path(__file__).parents[2])

JOBS = """
import os, subprocess, time
from dataclasses import dataclass
from jobwheel import IJob

def log(*words):
    line = " ".join(map(str, (*words, os.getpid()))) + "\\n"
    file = os.open("events", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode())
    os.close(file)

@dataclass
class Work(IJob, kind="worker.work"):
    name: str
    until: str = ""

    def run(self, ctx):
        log("start", self.name, ctx.attempt)
        end = time.monotonic() + 60
        while self.until and not os.path.exists(self.until) and time.monotonic() < end:
            time.sleep(0.01)
        log("end", self.name, ctx.attempt)

class Starting(IJob, kind="worker.starting"):
    def run(self, ctx):
        subprocess.run(["sh", "-c", "echo $$ > program; exec sleep 60"], check=True)

class Orphaning(IJob, kind="worker.orphaning"):
    def run(self, ctx):
        subprocess.run(["sh", "-c", "sleep 0.2 & echo $! > orphan"], check=True)
"""

Folder = Path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """Where the application is: its jobs, and a file `wheel.yml` by which its web process only adds."""
    (tmp_path / "worker_jobs.py").write_text(JOBS)
    (tmp_path / "wheel.yml").write_text("jobwheel: {jobs: [worker_jobs], workers: {threads: 0, queue: 32}, exit_timeout: 10}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "worker_jobs", raising=False)
    return tmp_path


@pytest.fixture
def web(folder: Folder) -> Iterator[TimerManager]:
    """The timer of a web process that only adds."""
    with open_timer("wheel.yml") as timer:
        yield timer


class Worker:
    """One `jobwheel worker`."""

    def __init__(self, folder: Folder, *words: str, program: str | None = None, **variables: str) -> None:
        self.folder = folder
        start = ["-m", "jobwheel"] if program is None else ["-c", program]
        with (folder / "said").open("ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, *start, "worker", "--config", "wheel.yml", "--threads", "1", *words],
                cwd=folder, env=os.environ | {"PYTHONPATH": ROOT} | variables,
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
            )  # fmt: skip

    def said(self) -> str:
        return (self.folder / "said").read_text()

    def children(self) -> list[int]:
        """Pids of its children that run, in order."""
        with suppress(FileNotFoundError):
            pids = map(int, Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split())
            return [pid for pid in pids if alive(pid)]
        return []

    def tell(self, number: int) -> None:
        self.process.send_signal(number)

    def code(self) -> int:
        try:
            return self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end; it said:\n{self.said()}") from None


@pytest.fixture
def worker(folder: Folder) -> Iterator[Callable[..., Worker]]:
    """Starts one. Nothing of it lives on."""
    workers: list[Worker] = []

    def _start(*words: str, **options: Any) -> Worker:
        workers.append(Worker(folder, *words, **options))
        return workers[-1]

    yield _start
    for one in workers:
        left = one.children()
        for pid in (one.process.pid, *left):
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        one.process.wait()


Start = Callable[..., Worker]


def alive(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    return False


@contextmanager
def in_time(seconds: float) -> Iterator[None]:
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < seconds


def until(true: Callable[[], Any], what: str, worker: Worker | None = None) -> None:
    end = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < end, f"waited in vain for {what}; it said:\n{worker.said() if worker else ''}"
        time.sleep(0.02)


def events(folder: Folder, what: str) -> list[list[str]]:
    """Lines of this event: name, attempt, pid."""
    with suppress(FileNotFoundError):
        return [line.split()[1:] for line in (folder / "events").read_text().splitlines() if line.startswith(f"{what} ")]
    return []


def work(name: str, until: str = "") -> Any:
    import worker_jobs  # type: ignore[import-not-found]

    return worker_jobs.Work(name, until)


def started(worker: Worker, count: int) -> None:
    until(lambda: worker.said().count("has started") >= count, f"{count} starts", worker)


# --- its work ---


def test_two_processes_run_what_a_web_process_only_adds_each_job_once(folder: Folder, web: TimerManager, worker: Start) -> None:
    running = worker("--processes", "2", JOBWHEEL_WORKERS__QUEUE="1")
    started(running, 2)
    jobs = [web.add_job(work(str(each), "go"), 0.05 * (each % 20)) for each in range(50)]
    until(lambda: len({pid for _, _, pid in events(folder, "start")}) == 2, "both to be at work", running)
    (folder / "go").touch()
    ends = [web.wait(job, LIMIT) for job in jobs]
    running.tell(signal.SIGTERM)
    assert running.code() == 0, running.said()
    assert {end.state for end in ends} == {State.SUCCEEDED}
    starts = events(folder, "start")
    assert Counter(name for name, _, _ in starts) == {str(each): 1 for each in range(50)}
    told = [line.partition("]: ")[2].partition(") ")[2] for line in running.said().splitlines() if " INFO " in line and "process" in line]
    assert told == ["has started"] * 2 + ["has ended"] * 2
    assert "another one starts" not in running.said(), running.said()


APP = """
import os, flask, jobwheel.flask
from jobwheel import IJob

class Greet(IJob, kind="worker.greet"):
    def run(self, *, greeting):
        return f"{greeting} {flask.current_app.config['NAME']} of {os.path.basename(os.environ['JOBWHEEL_CONFIG'])}"

def create_app():
    app = flask.Flask(__name__)
    app.config["NAME"] = "shop"
    app.config["JOBWHEEL"] = {"jobs": [__name__]}
    app.config["JOBWHEEL_SERVICES"] = {"greeting": "hello"}
    jobwheel.flask.JobWheel(app)
    return app
"""


def test_its_jobs_have_the_services_and_the_context_of_the_app_that_the_setting_names(
    folder: Folder, worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "worker_app.py").write_text(APP)
    (folder / "wheel.yml").write_text("jobwheel: {jobs: [worker_app], services: 'worker_app:create_app'}")
    monkeypatch.delitem(sys.modules, "worker_app", raising=False)
    running = worker("--processes", "1")
    started(running, 1)
    timer = open_timer("wheel.yml")
    import worker_app  # type: ignore[import-not-found]

    assert timer.wait(timer.add_job(worker_app.Greet()), LIMIT).result == "hello shop of wheel.yml"
    timer.shutdown()


def test_failures_of_jobs_are_logged_to_stderr(folder: Folder, web: TimerManager, worker: Start) -> None:
    (folder / "events").mkdir()  # so that writing to it fails
    running = worker()
    assert web.wait(web.add_job(work("one")), LIMIT).state is State.FAILED
    assert "ERROR jobwheel.run[" in running.said()
    assert "IsADirectoryError" in running.said()


# --- processes that die ---


def test_a_process_that_is_killed_is_replaced_and_its_job_runs_again_elsewhere(folder: Folder, web: TimerManager, worker: Start) -> None:
    running = worker("--processes", "2")
    started(running, 2)
    job = web.add_job(work("cut", "go"))
    until(lambda: events(folder, "start"), "the start", running)
    victim = int(events(folder, "start")[0][2])
    assert victim in running.children()
    os.kill(victim, signal.SIGKILL)
    until(lambda: len(events(folder, "start")) == 2, "the second run", running)
    (folder / "go").touch()
    assert web.wait(job, LIMIT).state is State.SUCCEEDED
    assert [attempt for _, attempt, _ in events(folder, "start")] == ["1", "2"]
    assert events(folder, "start")[1][2] != str(victim)
    started(running, 3)
    assert f"process {victim} (" in running.said()
    assert "was killed by SIGKILL after" in running.said()
    assert "another one starts in 1 s" in running.said()
    assert len(running.children()) == 2


def test_what_jobs_of_a_killed_process_have_started_is_killed_too(folder: Folder, web: TimerManager, worker: Start) -> None:
    running = worker()
    import worker_jobs

    job = web.add_job(worker_jobs.Starting())
    path = folder / "program"
    until(lambda: path.exists() and path.read_text().endswith("\n"), "the program", running)
    program = int(path.read_text())
    assert web.cancel(job) is False  # so that it does not run again
    [child] = running.children()
    os.kill(child, signal.SIGKILL)
    until(lambda: not alive(program), "the program's end", running)


def test_one_that_always_dies_before_it_runs_is_tried_three_times_and_given_up(folder: Folder, worker: Start) -> None:
    (folder / "worker_jobs.py").write_text("import os; os._exit(3)")
    running = worker("--processes", "4")
    assert running.code() == 1
    lines = running.said().splitlines()
    assert len(lines) == 3, running.said()
    assert all("ended with code 3 before it ran" in line for line in lines)
    assert "another one starts in 1 s" in lines[0]
    assert "another one starts in 2 s" in lines[1]
    assert lines[2].endswith("it was tried 3 times, and is given up")


def test_one_that_cannot_start_now_may_start_later(folder: Folder, web: TimerManager, worker: Start) -> None:
    (folder / "worker_jobs.py").write_text("import os\nif not os.path.exists('mended'): os.kill(os.getpid(), 9)\n" + JOBS)
    running = worker("--processes", "2")
    until(lambda: "before it ran" in running.said(), "a death", running)
    (folder / "mended").touch()
    started(running, 2)
    assert web.wait(web.add_job(work("one")), LIMIT).state is State.SUCCEEDED


def test_a_process_that_falls_to_it_is_taken_note_of_as_by_process_1(folder: Folder, web: TimerManager, worker: Start) -> None:
    """Told by a subreaper, which the kernel gives orphans to as it gives them to process 1 of a container."""
    program = "import ctypes, sys; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); from jobwheel.cli import main; sys.exit(main())"
    running = worker(program=program)
    import worker_jobs

    assert web.wait(web.add_job(worker_jobs.Orphaning()), LIMIT).state is State.SUCCEEDED
    orphan = Path(f"/proc/{(folder / 'orphan').read_text().strip()}")
    until(lambda: not orphan.exists(), "the orphan to be gone, zombie and all", running)
    running.tell(signal.SIGTERM)
    assert running.code() == 0


# --- its end ---


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_lets_running_jobs_end_and_what_was_not_begun_waits(
    folder: Folder, web: TimerManager, worker: Start, number: signal.Signals
) -> None:
    running = worker("--processes", "1")
    started(running, 1)
    first = web.add_job(work("first", "go"))
    until(lambda: events(folder, "start"), "the start", running)
    others = [web.add_job(work(str(each))) for each in range(3)]
    until(lambda: web.stats().running == 4, "the others to be claimed", running)
    running.tell(number)
    until(lambda: web.stats().running == 1, "the others to be handed back", running)
    assert {state_of(web, job) for job in others} == {State.SCHEDULED}
    (folder / "go").touch()
    assert running.code() == 0, running.said()
    assert state_of(web, first) is State.SUCCEEDED
    assert {(job.state, job.attempt) for each in others if (job := web.get(each))} == {(State.SCHEDULED, 0)}
    assert [name for name, _, _ in events(folder, "start")] == ["first"]


def test_a_job_that_outlasts_the_timeout_is_cut_off_and_runs_again(folder: Folder, web: TimerManager, worker: Start) -> None:
    running = worker("--timeout", "0.3")
    started(running, 1)
    job = web.add_job(work("long", "go"))
    until(lambda: events(folder, "start"), "the start", running)
    with in_time(4.0):
        running.tell(signal.SIGTERM)
        assert running.code() == 0, running.said()
    (folder / "go").touch()
    worker()
    assert web.wait(job, LIMIT).attempt == 2


def test_a_second_signal_ends_all_at_once(folder: Folder, web: TimerManager, worker: Start) -> None:
    running = worker("--processes", "2")
    started(running, 2)
    web.add_job(work("long", "go"))
    until(lambda: events(folder, "start"), "the start", running)
    running.tell(signal.SIGINT)
    running.tell(signal.SIGINT)  # passed on by somebody, or the same key press
    until(lambda: "SIGINT: running jobs have 10 s to end" in running.said(), "the drain", running)
    time.sleep(0.6)
    assert running.process.poll() is None
    with in_time(3.0):
        running.tell(signal.SIGINT)
        assert running.code() == 1
    assert "SIGINT again" in running.said()


def test_processes_whose_supervisor_is_killed_drain_and_end_by_themselves(folder: Folder, web: TimerManager, worker: Start) -> None:
    running = worker("--processes", "2")
    started(running, 2)
    children = running.children()
    assert len(children) == 2
    job = web.add_job(work("last", "go"))
    until(lambda: events(folder, "start"), "the start", running)
    busy = int(events(folder, "start")[0][2])
    running.process.kill()
    [idle] = [pid for pid in children if pid != busy]
    until(lambda: not alive(idle), "the idle one to end")
    assert alive(busy)
    (folder / "go").touch()
    until(lambda: not alive(busy), "the busy one to end")
    assert state_of(web, job) is State.SUCCEEDED
    assert [attempt for _, attempt, _ in events(folder, "start")] == ["1"]


def test_one_that_hangs_at_its_end_is_ended_by_force_and_tells_where(folder: Folder, worker: Start) -> None:
    hang = "import atexit, time, worker_end\natexit.register(time.sleep, 60)\n"
    (folder / "worker_jobs.py").write_text(hang + JOBS)
    (folder / "worker_end.py").write_text("import jobwheel.supervised\n__import__('sys').modules['__main__'].LAST = 0.5\n")
    running = worker("--timeout", "0")
    started(running, 1)
    with in_time(10.0):
        running.tell(signal.SIGTERM)
        assert running.code() == 0
    assert "Timeout (0:00:00" in running.said()
    assert "ended with code 1" in running.said()


def state_of(timer: TimerManager, job: ScheduledJob) -> State | None:
    found = timer.get(job)
    return None if found is None else found.state


# --- what cannot work ---

SHOP = "from jobwheel import IJob\nclass Wanting(IJob, kind='worker.wanting'):\n    def run(self, *, orders): ...\n"
FAULTS = {
    "no such module": ("jobs: [no_such_jobs]", "", "jobs: there is no module 'no_such_jobs' (No module named 'no_such_jobs'); check its"),
    "a module that raises": ("jobs: [worker_jobs]", "1 / 0", "jobs: importing 'worker_jobs' failed with ZeroDivisionError: division by"),
    "services that are none": ("services: 'worker_jobs:it'", "def it(): return 5", "services: 'worker_jobs:it' gives 5, which offers no"),
    "a service that is missing": (
        "jobs: [worker_jobs]",
        SHOP,
        "worker.wanting: Wanting.run needs 'orders', and the services have: nothing",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_work_is_told_once_before_the_others_start(folder: Folder, worker: Start, fault: str) -> None:
    settings, text, told = FAULTS[fault]
    (folder / "worker_jobs.py").write_text(textwrap.dedent(text))
    (folder / "wheel.yml").write_text(f"jobwheel: {{{settings}}}")
    running = worker("--processes", "4")
    assert running.code() == 1
    [line] = running.said().splitlines()
    assert line.startswith(told)


def test_services_that_cannot_be_made_now_are_tried_again(folder: Folder, worker: Start) -> None:
    """Their database may come up later."""
    text = """
        import pathlib

        def it():
            up = pathlib.Path("up")
            if not up.exists():
                up.touch()
                raise ConnectionError("down")
            return {}
    """
    (folder / "worker_jobs.py").write_text(textwrap.dedent(text))
    (folder / "wheel.yml").write_text("jobwheel: {services: 'worker_jobs:it'}")
    running = worker("--processes", "1")
    started(running, 1)
    assert "services: 'worker_jobs:it' raised ConnectionError: down" in running.said()
