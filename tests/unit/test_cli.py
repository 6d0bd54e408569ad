"""The rules of the command line, one test each."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jobwheel.cli import main

Write = Callable[..., str]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a file into the current directory of the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    for variable in [name for name in os.environ if name.startswith("JOBWHEEL_")]:
        monkeypatch.delenv(variable)

    def _write(text: str, name: str = "wheel.yml") -> str:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return name

    return _write


def test_a_good_file_prints_one_line_and_exits_0(write: Write, capsys: Capture) -> None:
    assert main(["check", write("jobwheel: {wheel: {slots: 60}}")]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out == "OK wheel.yml: backend wheel (60 slots of 1 s), store sqlite, engine threads (8 threads), jobs none named\n"


def test_problems_go_to_stderr_one_a_line_and_exit_1(write: Write, capsys: Capture) -> None:
    assert main(["check", write("jobwheel: {bakend: wheel, wheel: {slots: 0}}")]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.partition(": ")[2].partition(":")[0] for line in err.splitlines()] == ["bakend", "wheel.slots"]


def test_a_missing_file_is_a_problem(write: Write, capsys: Capture) -> None:
    write("")
    assert main(["check", "none.yml"]) == 1
    assert capsys.readouterr().err.startswith("none.yml: the file cannot be read")


def test_several_files_are_checked_together_and_the_environment_over_them(
    write: Write, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [write("jobwheel: {wheel: {slots: 60, tick: 2}}", "a.yml"), write("jobwheel: {wheel: {slots: 70}}", "b.yml")]
    monkeypatch.setenv("JOBWHEEL_WORKERS__THREADS", "3")
    assert main(["check", *files]) == 0
    assert capsys.readouterr().out.startswith("OK a.yml b.yml: backend wheel (70 slots of 2 s), store sqlite, engine threads (3 threads)")


def test_job_modules_are_imported_from_the_current_directory(write: Write, capsys: Capture) -> None:
    write("", "jobs_of_this_cli_test.py")
    assert main(["check", write("jobwheel: {jobs: [jobs_of_this_cli_test]}")]) == 0
    assert sys.modules.pop("jobs_of_this_cli_test")
    assert "jobs jobs_of_this_cli_test" in capsys.readouterr().out


def test_a_job_module_that_cannot_be_imported_is_a_problem(write: Write, capsys: Capture) -> None:
    assert main(["check", write("jobwheel: {jobs: [no_such_jobs_module]}")]) == 1
    assert "no_such_jobs_module" in capsys.readouterr().err


def test_a_member_whose_package_is_missing_is_a_problem(write: Write, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if "apscheduler" in name.split(".")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "apscheduler", None)
    assert main(["check", write("jobwheel: {backend: apscheduler}")]) == 1
    assert "pip install 'jobwheel[apscheduler]'" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["check"], ["chekc", "x.yml"], ["check", "--fast", "x.yml"]])
def test_wrong_usage_exits_2_and_says_the_right_one(arguments: list[str], capsys: Capture) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "usage: jobwheel" in err


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["check", "--help"]])
def test_asking_for_version_or_help_exits_0(arguments: list[str], capsys: Capture) -> None:
    assert main(arguments) == 0
    assert "jobwheel" in capsys.readouterr().out


def test_the_package_can_be_run_as_a_module(write: Write) -> None:
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-m", "jobwheel", "check", write("jobwheel: {backend: whel}")],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "wheel.yml: backend: there is no member 'whel'; did you mean wheel?\n"


def test_the_name_in_services_is_looked_up_and_not_called(write: Write, capsys: Capture) -> None:
    write("def it(): raise SystemExit('called')", "wiring_of_this_cli_test.py")
    assert main(["check", write("jobwheel: {services: 'wiring_of_this_cli_test:it'}")]) == 0
    assert main(["check", write("jobwheel: {services: 'wiring_of_this_cli_test:no'}")]) == 1
    assert sys.modules.pop("wiring_of_this_cli_test")
    assert "services: the module 'wiring_of_this_cli_test' has no 'no'" in capsys.readouterr().err


# --- worker; what it does when it works is in tests/faults/test_worker.py ---

UNWORKABLE = {
    "no file": (None, "wheel.yml: the file cannot be read"),
    "a wrong setting": ("{bakend: wheel}", "wheel.yml: bakend: no such setting"),
    "memory": ("{store: {kind: memory}}", "store.kind: 'memory' keeps jobs inside one process, so no other process could run them; set"),
    "no threads": ("{workers: {threads: 0}}", "workers.threads: 0 lets a process only add jobs, and here they are to be run; give"),
}


@pytest.mark.parametrize("what", UNWORKABLE)
def test_a_worker_that_could_run_nothing_says_why_and_exits_1(write: Write, capsys: Capture, what: str) -> None:
    text, told = UNWORKABLE[what]
    name = "wheel.yml" if text is None else write(f"jobwheel: {text}")
    write("", "other.txt")
    assert main(["worker", "--config", name, "--processes", "2"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    [line] = err.splitlines()
    assert line.startswith(told)


def test_a_worker_is_told_all_that_is_wrong_at_once(write: Write, capsys: Capture) -> None:
    assert main(["worker", "--config", write("jobwheel: {store: {kind: memory}, workers: {threads: 0}}")]) == 1
    assert [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()] == ["store.kind", "workers.threads"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--config"],
        ["wheel.yml"],
        ["--config", "wheel.yml", "--processes", "0"],
        ["--config", "wheel.yml", "--processes", "two"],
        ["--config", "wheel.yml", "--threads", "0"],
        ["--config", "wheel.yml", "--timeout", "-1"],
        ["--config", "wheel.yml", "--timeout", "inf"],
    ],
)
def test_wrong_usage_of_worker_exits_2(arguments: list[str], capsys: Capture) -> None:
    assert main(["worker", *arguments]) == 2
    assert "usage: jobwheel worker" in capsys.readouterr().err


def test_a_worker_takes_files_together_or_one_by_one(write: Write, capsys: Capture) -> None:
    first, second, third = (write(f"jobwheel: {{bad{number}: 1}}", f"{number}.yml") for number in range(3))
    assert main(["worker", "--config", first, second, "--config", third]) == 1
    assert [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()] == [first, second, third]
