"""The public face as a type checker sees it: a user's correct code passes mypy --strict, a wrong call is one error."""

import re
import subprocess
import sys
from importlib.metadata import files
from pathlib import Path

import pytest

import jobwheel

pytest.importorskip("mypy")
HERE = Path(__file__).parent


def checked(name: str) -> list[str]:
    """mypy's lines on the file, checked as a user's own code would be: with the settings of no project."""
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file",
        "",
        "--no-error-summary",
        "--hide-error-context",
        str(HERE / name),
    ]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert answer.stderr == ""
    return answer.stdout.splitlines()


def test_every_documented_signature_and_call_passes_mypy_strict() -> None:
    assert checked("good_jobs.py") == []


def test_a_wrong_call_is_exactly_one_error() -> None:
    """R89."""
    errors = [line for line in checked("bad_calls.py") if ": error:" in line]
    told = [int(re.search(r":(\d+): error", line).group(1)) for line in errors]  # type: ignore[union-attr]
    wrong = [number for number, line in enumerate((HERE / "bad_calls.py").read_text().splitlines(), 1) if line.endswith("# wrong")]
    assert told == wrong, "\n".join(errors)


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(jobwheel.__file__).parent / "py.typed").exists()
    assert files("jobwheel") is not None
