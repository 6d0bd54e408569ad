"""`python -m web_example` in a terminal: what it says when it starts, when it cannot, and when it is ended."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def port_that_is_free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def started(folder: Path, **env: str) -> Iterator[subprocess.Popen[str]]:
    """The shop in a process of its own, with `folder` as working directory, its output in pipes."""
    environment = {"JOBWHEEL_CONFIG": str(ROOT / "config" / "demo.yml")} | env
    with subprocess.Popen(
        [sys.executable, "-m", "web_example"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def refusal(folder: Path, **env: str) -> tuple[int, str]:
    """Exit code and complaint of a shop that cannot start."""
    with started(folder, **env) as process:
        said, complained = process.communicate(timeout=30)
        assert said == ""
        assert "Traceback" not in complained
        return process.returncode, complained


def wait_until_open(process: subprocess.Popen[str], port: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        assert process.poll() is None, process.communicate()
        try:
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"http://127.0.0.1:{port}/", timeout=5).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("backend", ["wheel", "apscheduler"])
def test_it_says_where_to_look_and_a_signal_ends_it_cleanly(tmp_path: Path, backend: str, ending: signal.Signals) -> None:
    port = port_that_is_free()
    with started(tmp_path, PORT=str(port), JOBWHEEL_BACKEND=backend) as process:
        wait_until_open(process, port)
        process.send_signal(ending)
        said, complained = process.communicate(timeout=15)
    assert process.returncode == 0
    assert f"http://127.0.0.1:{port}\n" in said
    assert f"Jobs wait in:          {backend} (" in said
    assert f"sqlite ({tmp_path}/web_example_demo_jobs.db); a restart loses none\n" in said
    assert (tmp_path / "web_example_demo_jobs.db").exists()
    assert "Traceback" not in said + complained
    assert "ERROR" not in complained


def test_in_memory_it_says_that_jobs_end_with_it_and_makes_no_file_of_jobs(tmp_path: Path) -> None:
    port = port_that_is_free()
    with started(tmp_path, PORT=str(port), JOBWHEEL_STORE__KIND="memory") as process:
        wait_until_open(process, port)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=15)
    assert "memory; they end with this process\n" in said
    assert not (tmp_path / "web_example_demo_jobs.db").exists()


def test_a_taken_port_is_told_and_another_one_is_proposed(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        code, complaint = refusal(tmp_path, PORT=str(other.getsockname()[1]))
    assert code == 1
    assert "PORT=8001" in complaint


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http", "80 80", "²"])
def test_a_port_that_is_none_is_refused(tmp_path: Path, port: str) -> None:
    code, complaint = refusal(tmp_path, PORT=port)
    assert code == 2
    assert "from 1 to 65535" in complaint


def test_a_configuration_that_cannot_be_used_is_told_in_words(tmp_path: Path) -> None:
    assert refusal(tmp_path, JOBWHEEL_CONFIG="none.yml") == (
        1,
        "none.yml cannot be read: No such file or directory. Name the file in JOBWHEEL_CONFIG\n",
    )
    code, complaint = refusal(tmp_path, JOBWHEEL_BACKEND="weel")
    assert code == 1
    assert "wheel" in complaint
    (tmp_path / "bad.yml").write_text("jobwheel: {jobs: [web_example.jobs]}\nshop: {pay_within: never}\n")
    code, complaint = refusal(tmp_path, JOBWHEEL_CONFIG="bad.yml")
    assert code == 1
    assert "pay_within" in complaint


def test_listing_the_routes_starts_nothing_and_leaves_no_file(tmp_path: Path) -> None:
    flask = [sys.executable, "-m", "flask", "--app", "web_example", "routes"]
    listed = subprocess.run(
        flask, check=False, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=30
    )
    assert listed.returncode == 0, listed.stderr
    assert "/orders/<int:order_id>/pay" in listed.stdout
    assert "jobwheel started" not in listed.stdout + listed.stderr
    assert list(tmp_path.iterdir()) == []
