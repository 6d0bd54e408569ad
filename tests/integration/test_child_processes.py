"""Whole programs whose jobs run in child processes: how they end, however that comes, and what a main program may look like."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

JOBS = Path(__file__).parent.parent / "contract"
LIMIT = 60.0

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")

HEAD = """
import os, sys, time
sys.path.insert(0, JOBS)
from isolated_jobs import *
from jobwheel import IJob, open_timer

def started(**workers):
    timer = open_timer({"store": {"kind": "memory"}, "exit_timeout": 0.3, "workers": {"engine": "processes", "threads": 2} | workers})
    timer.start()
    return timer

def idle_and_busy(timer, what="hang"):
    first = timer.add_job(Act("hello", 0.5))
    busy = timer.add_job(Act("hello", what))
    print(int(timer.wait(first, 30).log[0]), flush=True)
    while not timer.get(busy).log:
        time.sleep(0.005)
    print(int(timer.get(busy).log[0]), flush=True)
"""


class Program:
    """One that runs; `pids` are what it has printed first."""

    def __init__(self, file: Path, code: str, *arguments: str, **options: Any) -> None:
        file.write_text(HEAD.replace("JOBS", repr(str(JOBS)), 1) + textwrap.dedent(code))
        command = [*arguments, sys.executable, "-W", "default", str(file)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **options
        )
        self.pids: list[int] = []

    def read_pids(self, count: int = 2) -> list[int]:
        assert self.process.stdout is not None
        while len(self.pids) < count:
            line = self.process.stdout.readline()
            assert line, f"the program ended before: {self.process.stderr and self.process.stderr.read()}"
            if line.strip().isdigit():
                self.pids.append(int(line))
        return self.pids

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=LIMIT)
        return self.process.returncode, out, err


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    made: list[Program] = []

    def make(code: str, *arguments: str, **options: Any) -> Program:
        made.append(Program(tmp_path / "program.py", code, *arguments, **options))
        return made[-1]

    yield make
    for each in made:
        if each.process.poll() is None:
            os.killpg(each.process.pid, signal.SIGKILL)
            each.process.wait()
        for stream in (each.process.stdin, each.process.stdout, each.process.stderr):
            with suppress(BrokenPipeError):
                stream.close()
        for pid in each.pids:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def none_alive(pids: list[int]) -> bool:
    return not any(map(alive, pids))


@pytest.mark.parametrize("what", ["hang", "freeze"])
def test_children_end_when_their_parent_is_killed(program: Any, wait_until: Any, what: str) -> None:
    """Idle or busy, and in native code that never lets go of the GIL."""
    one = program(f"""
        timer = started()
        idle_and_busy(timer, "{what}")
        time.sleep(1000)
    """)
    pids = one.read_pids()
    assert all(map(alive, pids))
    one.process.kill()
    wait_until(lambda: none_alive(pids), what="the children's end")
    assert one.end()[2] == ""


def test_children_and_what_their_jobs_started_end_when_their_parent_is_killed(program: Any, wait_until: Any, tmp_path: Path) -> None:
    one = program(f"""
        timer = started()
        timer.add_job(Act("program", {str(tmp_path / "pid")!r}))
        while not os.path.exists({str(tmp_path / "pid")!r}) or not open({str(tmp_path / "pid")!r}).read():
            time.sleep(0.005)
        print(open({str(tmp_path / "pid")!r}).read(), flush=True)
        time.sleep(1000)
    """)
    pids = one.read_pids(1)
    one.process.kill()
    wait_until(lambda: none_alive(pids), what="the end of what the job had started")


def test_children_end_with_their_parents_end(program: Any, wait_until: Any) -> None:
    one = program("""
        timer = started()
        idle_and_busy(timer)
    """)
    pids = one.read_pids()
    assert one.end() == (0, "", "jobwheel: the process ends while jobs still run: 2\n")
    wait_until(lambda: none_alive(pids), what="the children's end")


def test_a_terminals_interrupt_ends_the_program_and_its_children_without_a_word_of_theirs(program: Any, wait_until: Any) -> None:
    """Ctrl-C in a terminal goes to all processes of the foreground group."""
    one = program(
        """
        timer = started()
        try:
            idle_and_busy(timer)
            for _ in range(6000):
                time.sleep(0.01)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """,
        sys.executable, "-c", "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]))",
    )  # fmt: skip
    pids = one.read_pids()
    assert one.process.stdin is not None
    one.process.stdin.write("\x03")
    one.process.stdin.flush()
    _, out, err = one.end()
    assert "interrupted" in out
    assert "Traceback" not in out + err
    assert "KeyboardInterrupt" not in out + err
    wait_until(lambda: none_alive(pids), what="the children's end")


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_to_a_child_does_not_end_its_run(program: Any, number: str) -> None:
    """A supervisor that stops a service tells all its processes; the parent decides how long a run may go on."""
    one = program(f"""
        import signal
        timer = started()
        job = timer.add_job(Act("hello", 0.5))
        while not timer.get(job).log:
            time.sleep(0.005)
        os.kill(int(timer.get(job).log[0]), signal.{number})
        print(timer.wait(job, 30).state)
    """)
    assert one.end() == (0, "succeeded\n", "")


def test_a_job_that_a_program_starts_has_the_signals_of_a_fresh_program(program: Any) -> None:
    one = program("""
        timer = started()
        print(timer.wait(timer.add_job(Act("terminate_a_program")), 30).result)
    """)
    assert one.end() == (0, "-15\n", "")


def test_a_main_program_without_a_guard_is_told_what_it_lacks(program: Any) -> None:
    """Its file is imported in the child, which must not become a second such program."""
    one = program("""
        class Own(IJob, kind="own", isolation="process"):
            def run(self): return os.getpid()

        timer = started(engine="threads")
        print(timer.wait(timer.add_job(Own()), 30).error)
    """)
    code, out, err = one.end()
    assert code == 0
    assert out.startswith("NotReady: the child process could not begin: UsageError: the main program starts a timer while a child process")
    assert err.startswith("job 1 (own) failed in attempt 1: NotReady: ")


def test_a_guarded_main_program_runs_its_own_jobs_in_children(program: Any) -> None:
    one = program("""
        from dataclasses import dataclass

        @dataclass
        class Own(IJob, kind="own"):
            number: int
            def run(self): return self.number, __name__

        if __name__ == "__main__":
            with started() as timer:
                print([timer.wait(timer.add_job(Own(number)), 30).result for number in range(3)])
    """)
    main = "__jobwheel_main__"
    assert one.end() == (0, f"{[[number, main] for number in range(3)]}\n", "")


def test_a_package_that_is_run_by_its_name_runs_its_own_jobs_in_children(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "__main__.py").write_text(
        textwrap.dedent("""
        import os
        from jobwheel import IJob, open_timer

        class Own(IJob, kind="own", isolation="process"):
            def run(self): return __name__

        if __name__ == "__main__":
            with open_timer({"store": {"kind": "memory"}}) as timer:
                print(timer.wait(timer.add_job(Own()), 30).result)
    """)
    )
    done = subprocess.run([sys.executable, "-m", "shop"], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "shop.__main__\n", "")


def test_a_class_in_a_text_given_to_python_is_refused_with_the_reason(tmp_path: Path) -> None:
    code = textwrap.dedent("""
        from jobwheel import IJob, open_timer

        class Own(IJob, kind="own", isolation="process"):
            def run(self): ...

        with open_timer({"store": {"kind": "memory"}}) as timer:
            timer.add_job(Own())
    """)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert "UsageError: own: Own is defined in a notebook, an interactive session or a text given to python" in done.stderr


def test_a_fork_of_the_parent_has_no_part_in_its_children(program: Any) -> None:
    """It has children of its own, ends without ending the parent's, and does not keep those alive that the parent lets go of."""
    one = program("""
        import signal, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        timer = started()
        mine = timer.wait(timer.add_job(Act("pid")), 30).result
        forked = os.fork()
        if not forked:
            theirs = timer.wait(timer.add_job(Act("pid")), 30).result
            assert theirs != mine
            timer.shutdown()
            os._exit(0)
        assert os.waitpid(forked, 0)[1] == 0
        assert timer.wait(timer.add_job(Act("pid")), 30).result == mine
        forked = os.fork()
        if not forked:
            time.sleep(1000)
        print(timer.shutdown(1))
        while os.path.exists(f"/proc/{mine}"):
            time.sleep(0.005)
        os.kill(forked, signal.SIGKILL)
    """)
    assert one.end() == (0, "[]\n", "")


def test_children_of_a_killed_parent_end_though_a_fork_of_it_lives_on(program: Any, wait_until: Any) -> None:
    one = program("""
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        timer = started()
        idle_and_busy(timer)
        forked = os.fork()
        if forked:
            print(forked, flush=True)
        time.sleep(1000)
    """)
    pids = one.read_pids(3)
    one.process.kill()
    wait_until(lambda: none_alive(pids[:2]), what="the children's end")
    assert alive(pids[2])


def test_a_program_without_any_open_output_has_children_too(program: Any, tmp_path: Path) -> None:
    """A daemon whose stdin, stdout and stderr are closed: their numbers are given to other files."""
    one = program(f"""
        for number in (0, 1, 2):
            os.close(number)
        timer = started()
        jobs = [timer.wait(timer.add_job(Act(*what)), 30) for what in (("pid",), ("print", "x"), ("exit", 3), ("pid",))]
        with open({str(tmp_path / "out")!r}, "w") as file:
            file.write(repr([job.state.value for job in jobs]))
    """)
    one.end()
    assert (tmp_path / "out").read_text() == "['succeeded', 'succeeded', 'failed', 'succeeded']"


def test_a_parent_that_ignores_its_children_has_them_all_the_same(program: Any) -> None:
    """With SIGCHLD ignored the kernel forgets how they ended."""
    one = program("""
        import signal
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        with started() as timer:
            print(timer.wait(timer.add_job(Act("exit", 3)), 30).error)
            print(timer.wait(timer.add_job(Act("echo", "next")), 30).result)
    """)
    code, out, _ = one.end()
    assert (code, out.splitlines()[1]) == (0, "next")
    assert "its exit status is not known" in out.splitlines()[0]


def test_jobs_survive_on_disk_and_run_in_children_that_may_add_more(program: Any, tmp_path: Path) -> None:
    """A job that adds a job from its child does so by a timer of its own over the same file, which is not started there."""
    one = program(f"""
        with open_timer({{"store": {{"path": {str(tmp_path / "jobs.db")!r}}}, "workers": {{"engine": "processes"}}}}) as timer:
            added = timer.wait(timer.add_job(Act("add", {str(tmp_path / "jobs.db")!r})), 30).result
            job = timer.wait(added, 30)
            print(job.state, job.result)
    """)
    assert one.end() == (0, "succeeded added in a child\n", "")


def test_the_interpreter_of_a_child_has_the_options_of_its_parents(tmp_path: Path) -> None:
    code = HEAD.replace("JOBS", repr(str(JOBS)), 1) + "with started() as timer: print(timer.wait(timer.add_job(Act('flags')), 30).result)"
    done = subprocess.run(
        [sys.executable, "-O", "-X", "utf8", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert (done.stdout, done.stderr) == ("[1, 1]\n", "")
