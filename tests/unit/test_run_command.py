"""The rules of `jobwheel.jobs.RunCommand`, one test each, with real programs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jobwheel import IJob, Retry, ScheduledJob, State, TimerManager, open_timer
from jobwheel.codec import storable
from jobwheel.errors import BadType, BadValue
from jobwheel.jobs import RunCommand

LIMIT = 20.0
ROOT = str(Path(__file__).parents[2])


@pytest.fixture
def timer() -> Iterator[TimerManager]:
    with open_timer({"store": {"kind": "memory"}, "workers": {"threads": 2}}) as timer:
        yield timer


@pytest.fixture
def run(timer: TimerManager) -> Callable[..., ScheduledJob]:
    """Runs a command to its end."""
    return lambda *argv, **fields: timer.wait(timer.add_job(RunCommand(list(argv), **fields)), LIMIT)


def shell(text: str) -> tuple[str, str, str]:
    return "sh", "-c", text


def until(true: Callable[[], object], what: str) -> None:
    end = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """It runs, and is no zombie that its parent has not looked at yet."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    return False


def pid_in(path: Path) -> int:
    until(lambda: path.exists() and path.read_text().endswith("\n"), f"a pid in {path.name}")
    return int(path.read_text())


Run = Callable[..., ScheduledJob]


# --- ends ---


def test_exit_code_0_is_success_and_the_result(run: Run) -> None:
    end = run("true")
    assert (end.state, end.result, end.error) == (State.SUCCEEDED, 0, None)


def test_another_exit_code_is_a_failure_with_the_code_and_the_last_lines(run: Run) -> None:
    end = run(*shell("for each in $(seq 30); do echo line $each; done; echo bad >&2; exit 7"))
    assert end.state is State.FAILED
    assert end.error is not None
    assert end.error.startswith("CommandFailed: sh ended with code 7; its last lines:\nline 22\n")
    assert end.error.endswith("line 30\nbad")


def test_a_failure_without_output_says_just_the_code(run: Run) -> None:
    assert run("false").error == "CommandFailed: false ended with code 1"


def test_a_program_that_a_signal_killed_is_a_failure_with_the_signal(run: Run) -> None:
    assert run(*shell("kill -SEGV $$")).error == "CommandFailed: sh was killed by SIGSEGV"


def test_a_failed_command_has_the_attempts_of_its_class(timer: TimerManager, tmp_path: Path) -> None:
    class Twice(RunCommand, kind="run_command.twice", retry=Retry(attempts=2)):
        pass

    end = timer.wait(timer.add_job(Twice(list(shell(f"echo x >> {tmp_path}/runs; test $(wc -l < {tmp_path}/runs) = 2")))), LIMIT)
    assert (end.state, end.attempt) == (State.SUCCEEDED, 2)


# --- what cannot be started ---


def test_a_program_that_does_not_exist_is_a_failure_that_says_so(run: Run) -> None:
    error = run("no-such-program").error
    assert error is not None
    assert error.startswith("CommandFailed: no-such-program: it could not be started: there is no such program on this machine")


def test_a_directory_that_does_not_exist_is_a_failure_that_says_so(run: Run) -> None:
    error = run("true", cwd="/no/such").error
    assert error == "CommandFailed: true: it could not be started: there is no directory '/no/such' (cwd) on this machine"


def test_a_file_that_is_no_program_is_a_failure_that_says_so(run: Run, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("text")
    error = run(str(tmp_path / "plain")).error
    assert error is not None
    assert error.endswith("it could not be started: Permission denied")


# --- what it is given ---


def test_no_shell_reads_the_arguments(run: Run) -> None:
    assert run("printf", "%s\\n", "$HOME; *", "two  words").log == ("$HOME; *", "two  words")


def test_it_runs_in_its_directory(run: Run, tmp_path: Path) -> None:
    assert run("pwd", cwd=str(tmp_path)).log == (str(tmp_path),)


def test_its_variables_are_added_to_those_of_the_process_and_replace_them(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_PROCESS", "kept")
    monkeypatch.setenv("REPLACED", "old")
    assert run(*shell("echo $OF_THE_PROCESS $REPLACED $ADDED"), env={"REPLACED": "new", "ADDED": "more"}).log == ("kept new more",)
    assert os.environ["REPLACED"] == "old"


def test_its_stdin_is_empty(run: Run) -> None:
    end = run("cat")
    assert (end.state, end.log) == (State.SUCCEEDED, ())


def test_it_is_in_a_session_of_its_own_and_has_no_file_of_the_process_but_the_lifeline(run: Run, tmp_path: Path) -> None:
    with (tmp_path / "open").open("w"):
        end = run(
            sys.executable, "-I", "-c", "import os; print(os.getsid(0) == os.getpid(), sorted(map(int, os.listdir('/proc/self/fd')))[:3])"
        )
        more = run(sys.executable, "-I", "-c", "import os; print(len(os.listdir('/proc/self/fd')))")
    assert end.log == ("True [0, 1, 2]",)
    assert int(more.log[0]) <= 5  # the lifeline, and the directory itself


# --- output ---


def test_its_output_is_in_the_log_while_it_runs(timer: TimerManager, tmp_path: Path) -> None:
    job = timer.add_job(
        RunCommand(list(shell(f"echo first; echo second >&2; while ! test -e {tmp_path}/go; do sleep 0.01; done; echo third")))
    )
    until(lambda: (now := timer.get(job)) is not None and len(now.log) == 2, "two lines")
    now = timer.get(job)
    assert now is not None
    assert (now.state, now.log) == (State.RUNNING, ("first", "second"))
    (tmp_path / "go").touch()
    assert timer.wait(job, LIMIT).log == ("first", "second", "third")


def test_a_flood_of_output_is_read_and_the_newest_lines_are_kept(run: Run) -> None:
    end = run(*shell("yes 0123456789012345678901234567890123456789 | head -n 300000; echo last"))
    assert end.state is State.SUCCEEDED
    assert len(end.log) == 200
    assert end.log[-1] == "last"


def test_output_without_a_newline_is_bounded_and_kept(run: Run) -> None:
    end = run(*shell("head -c 30000000 /dev/zero | tr '\\0' x; printf end >&2"))
    assert end.state is State.SUCCEEDED
    assert end.log == ("x" * 2000,)


def test_of_a_line_with_carriage_returns_the_last_part_is_kept_as_a_terminal_shows_it(run: Run) -> None:
    end = run(*shell(r"printf 'one\r\n'; for each in $(seq 3000); do printf '\r%d of 3000' $each; done; printf '\r\ndone\r'"))
    assert end.log == ("one", "3000 of 3000", "done")


def test_what_is_no_utf_8_is_replaced(run: Run) -> None:
    assert run(*shell(r"printf 'caf\303\251 \377\n'")).log == ("café \N{REPLACEMENT CHARACTER}",)


def test_a_long_last_line_does_not_push_the_code_out_of_the_error(run: Run) -> None:
    error = run(*shell("head -c 5000 /dev/zero | tr '\\0' x; echo; echo short; exit 3")).error
    assert error is not None
    assert error.startswith("CommandFailed: sh ended with code 3; its last lines:\nxxx")
    assert error.endswith("x\nshort")
    assert len(error) < 2000


# --- being ended ---


def test_at_its_time_limit_it_is_ended_with_its_children(run: Run, tmp_path: Path) -> None:
    begin = time.monotonic()
    end = run(*shell(f"sleep 60 & echo $! > {tmp_path}/pid; echo begun; wait"), timeout=0.3)
    assert time.monotonic() - begin < 5.0
    assert end.state is State.FAILED
    assert end.error == "CommandFailed: sh was ended at its time limit of 0.3 seconds; its last lines:\nbegun"
    assert not alive(pid_in(tmp_path / "pid"))


def test_one_that_ignores_sigterm_is_killed_two_seconds_later(run: Run) -> None:
    begin = time.monotonic()
    end = run(*shell("trap 'echo no' TERM; while true; do sleep 0.05; done"), timeout=0.3)
    assert 2.0 < time.monotonic() - begin < 10.0
    assert end.error is not None
    assert end.error.startswith("CommandFailed: sh was ended at its time limit of 0.3 seconds")
    assert "no" in end.log


def test_in_its_grace_it_can_say_more_and_end_as_it_likes(run: Run) -> None:
    end = run(*shell("trap 'echo tidied; exit 0' TERM; echo begun; while true; do sleep 0.02; done"), timeout=0.3)
    assert (end.log[0], end.log[-1]) == ("begun", "tidied")
    assert end.state is State.FAILED


def test_a_cancel_ends_it(timer: TimerManager, tmp_path: Path) -> None:
    job = timer.add_job(RunCommand(list(shell(f"echo $$ > {tmp_path}/pid; sleep 60"))))
    pid = pid_in(tmp_path / "pid")
    assert not timer.cancel(job)
    end = timer.wait(job, LIMIT)
    assert end.state is State.CANCELLED
    assert not alive(pid)


def test_the_time_limit_of_its_kind_ends_it_too(timer: TimerManager, tmp_path: Path) -> None:
    class Short(RunCommand, kind="run_command.short", timeout=0.3):
        pass

    end = timer.wait(timer.add_job(Short(list(shell(f"echo $$ > {tmp_path}/pid; sleep 60")))), LIMIT)
    assert end.state is State.FAILED
    assert end.error == "TimedOut: still running after its timeout of 0.3 seconds"
    pid = pid_in(tmp_path / "pid")
    until(lambda: not alive(pid), "the program's end")


def test_children_that_outlive_it_may_write_for_a_moment_and_are_killed(run: Run, tmp_path: Path) -> None:
    begin = time.monotonic()
    end = run(*shell(f"(sleep 0.2; echo tail; exec sleep 60) & echo $! > {tmp_path}/pid; echo head"))
    assert end.state is State.SUCCEEDED
    assert end.log == ("head", "tail")
    assert time.monotonic() - begin < 5.0
    pid = pid_in(tmp_path / "pid")
    until(lambda: not alive(pid), "the child's end")


def test_a_daemon_with_a_session_of_its_own_is_left_alone_though_it_keeps_the_pipe_open(run: Run, tmp_path: Path) -> None:
    end = run(*shell(f"setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 60' & while ! test -s {tmp_path}/pid; do sleep 0.01; done"))
    assert end.state is State.SUCCEEDED
    pid = pid_in(tmp_path / "pid")
    assert alive(pid)
    os.kill(pid, signal.SIGKILL)


def test_one_that_closes_its_output_and_goes_on_is_waited_for(run: Run, tmp_path: Path) -> None:
    assert run(*shell(f"exec >&- 2>&-; sleep 0.2; touch {tmp_path}/done")).state is State.SUCCEEDED
    assert (tmp_path / "done").exists()


def children() -> set[int]:
    """Of this process: those that have ended and that nobody has taken note of are there as well."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has gone meanwhile
            _, _, rest = path.read_text().rpartition(")")
            if int(rest.split()[1]) == os.getpid():
                found.add(int(path.parent.name))
    return found


def test_nothing_is_left_open_or_unreaped(run: Run) -> None:
    run("true")
    before, others = len(os.listdir("/proc/self/fd")), children()
    run("true")
    run("no-such-program")
    run("sleep", "60", timeout=0.05)
    assert len(os.listdir("/proc/self/fd")) == before
    assert children() <= others


PROGRAM = """
import os, sys, time
from jobwheel import open_timer
from jobwheel.jobs import RunCommand
timer = open_timer({"store": {"kind": "memory"}, "exit_timeout": 0})
timer.start()
timer.add_job(RunCommand(["sh", "-c", "sleep 60 & echo $! > child; echo $$ > pid; wait"]))
while not (os.path.exists("pid") and open("pid").read().endswith("\\n")):
    time.sleep(0.01)
if sys.argv[1] == "kill":
    os.kill(os.getpid(), 9)
if sys.argv[1] == "fork" and os.fork() == 0:
    os.write(1, b"%d" % os.getpid())
    os.close(1)
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel sees to it on Linux alone")
@pytest.mark.parametrize("way", ["kill", "leave", "fork"])
def test_it_ends_with_the_process_that_runs_it(tmp_path: Path, way: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, way],
        check=False, cwd=tmp_path, env=os.environ | {"PYTHONPATH": ROOT}, stdout=subprocess.PIPE, timeout=LIMIT,
    )  # fmt: skip
    pids = [pid_in(tmp_path / name) for name in ("pid", "child")]
    try:
        until(lambda: not any(map(alive, pids)), "the end of the program and its child")
        assert done.returncode == (-signal.SIGKILL if way == "kill" else 0)
    finally:
        for pid in (*pids, *map(int, filter(None, [done.stdout]))):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


# --- as data ---


def test_it_can_be_stored_and_is_read_back_as_it_is() -> None:
    assert RunCommand.jobwheel_kind.name == "jobwheel.run_command"
    for job in (RunCommand(["a"]), RunCommand(["a", "b"], timeout=5, cwd="/", env={"A": "b"})):
        assert storable(job)


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a text": ({"argv": "ls -l"}, BadType, r"no shell reads it: \['ls', '-l'\]"),
    "a tuple": ({"argv": ("ls",)}, BadType, "a list of texts"),
    "a path in it": ({"argv": ["ls", Path("/")]}, BadType, r"str\(...\) around paths"),
    "nothing": ({"argv": []}, BadValue, "starts with the program's name"),
    "no name": ({"argv": [""]}, BadValue, "starts with the program's name"),
    "a NUL": ({"argv": ["ls", "a\0b"]}, BadValue, "has a NUL"),
    "a text as timeout": ({"argv": ["ls"], "timeout": "5"}, BadType, "seconds as a number"),
    "True as timeout": ({"argv": ["ls"], "timeout": True}, BadType, "seconds as a number"),
    "no time": ({"argv": ["ls"], "timeout": 0}, BadValue, "finite and more than 0"),
    "for ever": ({"argv": ["ls"], "timeout": float("inf")}, BadValue, "finite and more than 0"),
    "a Path": ({"argv": ["ls"], "cwd": Path("/")}, BadType, r"write str\(...\) around a Path"),
    "no directory": ({"argv": ["ls"], "cwd": ""}, BadValue, "the path of a directory"),
    "a list as env": ({"argv": ["ls"], "env": ["A=b"]}, BadType, "a dict of texts"),
    "a number in env": ({"argv": ["ls"], "env": {"A": 1}}, BadType, "a dict of texts"),
    "a name with =": ({"argv": ["ls"], "env": {"A=b": ""}}, BadValue, "has a '=' in it"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_program_could_be_started_with_is_refused_at_the_callers_line(what: str) -> None:
    fields, error, words = REFUSED[what]
    with pytest.raises(error, match=words):
        RunCommand(**fields)


def test_the_text_of_an_env_is_not_in_its_error() -> None:
    with pytest.raises(BadType) as caught:
        RunCommand(["ls"], env={"PASSWORD": 5, "B": "secret"})  # type: ignore[dict-item]
    assert "secret" not in str(caught.value)


def test_a_subclass_with_fields_of_its_own_is_a_kind_of_its_own() -> None:
    @dataclass
    class Backup(RunCommand, kind="run_command.backup", max_running=1):
        number: int = 0

    assert issubclass(Backup, IJob)
    assert storable(Backup(["true"], number=3))
    with pytest.raises(BadType):
        Backup("true")  # type: ignore[arg-type]
