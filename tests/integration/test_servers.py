"""The Flask extension under real servers: which process runs the jobs, which never does, and how a server with a timer ends.

The app is `apps/pids.py`. Each process that imports it adds a job "boot" to its own timer in memory, due 0.2 s later, and a request adds
one that is due after 0.5 s: by the time the later one has run, every process that ticks has written down its pid for "boot".
"""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import gunicorn  # type: ignore[import-untyped]
import pytest

ROOT = Path(__file__).parents[2]
APPS = Path(__file__).parent / "apps"
LIMIT = 20.0
END = 5.0
"""Seconds within which a server with nothing but waiting jobs ends after a signal."""

# Else newer versions make a socket in the home directory, the same one for all servers of a user.
UNCONTROLLED = ("--no-control-socket",) if gunicorn.version_info >= (25, 1) else ()
GUNICORN = ("-m", "gunicorn", *UNCONTROLLED, "-b", "127.0.0.1:PORT", "pids:create_app()")
ONE_PROCESS = ("waitress", "flask run", "flask run in one thread", "app.run")
SERVERS: dict[str, tuple[str, ...]] = {
    "gunicorn gthread": (*GUNICORN, "-w", "1", "-k", "gthread", "--threads", "4"),
    "gunicorn preload": (*GUNICORN, "-w", "2", "--preload"),
    "gunicorn debug": (*GUNICORN, "-w", "1"),
    "waitress": ("pids.py", "waitress", "PORT"),
    "flask run": ("-m", "flask", "--app", "pids", "run", "-p", "PORT"),
    "flask run in one thread": ("-m", "flask", "--app", "pids", "run", "--without-threads", "-p", "PORT"),
    "flask run debug": ("-m", "flask", "--app", "pids", "run", "--debug", "-p", "PORT"),
    "app.run": ("pids.py", "plain", "PORT"),
    "app.run debug": ("pids.py", "debug", "PORT"),
}
ENV = {"gunicorn debug": {"FLASK_DEBUG": "1"}}
RELOADING = ("flask run debug", "app.run debug")


class Server:
    """A server in a process group of its own, its output in a file."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
        self._process = process
        self._port = port
        self._folder = folder
        self.pid = process.pid

    def get(self, path: str) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=LIMIT)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            text = answer.read().decode()
            assert answer.status == 200, text + self.said()
            return text
        finally:
            connection.close()

    def first(self, path: str) -> str:
        """The answer to the first request, which is sent until the port is open."""
        deadline = time.monotonic() + LIMIT
        while True:
            try:
                return self.get(path)
            except ConnectionError:
                assert time.monotonic() < deadline, self.said()
                assert self._process.poll() is None, self.said()
                time.sleep(0.05)

    def pids(self, event: str, text: str = "") -> list[int]:
        """The processes that wrote this, a line for each time."""
        file = self._folder / "pids"
        lines = [line.split(" ") for line in file.read_text().splitlines()] if file.exists() else []
        return [int(line[1]) for line in lines if line[0] == event and line[2] in (text, text or line[2])]

    def wait_for(self, event: str, text: str = "", count: int = 1) -> list[int]:
        self.wait_until(lambda: len(self.pids(event, text)) >= count)
        return self.pids(event, text)

    def wait_until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT
        while not true():
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.02)

    def said(self) -> str:
        return (self._folder / "said").read_text()

    def wait_ended(self) -> int:
        """The exit code, when it ends by itself."""
        return self._wait_ended(LIMIT)

    def _wait_ended(self, limit: float) -> int:
        try:
            return self._process.wait(limit)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it has not ended within {limit:g} s; it said:\n{self.said()}")

    def end(self, ending: signal.Signals, *, to_all: bool = False, limit: float = END) -> int:
        """The exit code after a signal, sent as a supervisor does, or to all processes of the server as Ctrl-C does."""
        (os.killpg if to_all else os.kill)(self.pid, ending)
        return self._wait_ended(limit)


@contextmanager
def serving(folder: Path, *arguments: str, **env: str) -> Iterator[Server]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLASK_", "WERKZEUG_", "JOBWHEEL_", "GUNICORN_"))}
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, *(argument.replace("PORT", str(port)) for argument in arguments)],
            cwd=APPS,
            env=kept | {"PYTHONPATH": f"{ROOT}{os.pathsep}{APPS}", "PYTHONUNBUFFERED": "1", "PIDS": str(folder / "pids")} | env,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        yield Server(process, port, folder)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def named(folder: Path, name: str, **env: str) -> Iterator[Server]:
    with serving(folder, *SERVERS[name], **ENV.get(name, {}), **env) as server:
        yield server


@pytest.mark.parametrize("name", [name for name in SERVERS if name != "gunicorn preload"])
def test_jobs_run_once_in_the_process_that_serves_requests_and_in_no_other(tmp_path: Path, name: str) -> None:
    with named(tmp_path, name) as server:
        worker = int(server.first("/later/one"))
        assert server.wait_for("ran", "one") == [worker]
        assert server.pids("ran", "boot") == [worker]
        importers = server.pids("import")
    # What was ruled out was there: the reloader's parent has imported the app and added its job as well.
    assert len(importers) == (2 if name in RELOADING else 1)
    assert (worker == server.pid) == (name in ONE_PROCESS)


def test_of_preloaded_workers_each_that_served_a_request_ticks_and_the_master_never(tmp_path: Path) -> None:
    with named(tmp_path, "gunicorn preload") as server:
        server.first("/later/one")
        workers: set[int] = set()
        with ThreadPoolExecutor(2) as both:
            while len(workers) < 2:
                workers |= {int(pid) for pid in both.map(server.get, ["/later/two?hold=0.2"] * 2)}
        server.wait_until(lambda: set(server.pids("ran", "two")) == workers)
        assert server.pids("import") == [server.pid]
        assert set(server.pids("ran")) == workers
        assert server.pid not in workers
        assert server.pids("ran", "boot") == []
        assert "several worker processes" in server.said()


def test_a_timer_that_was_started_before_the_fork_starts_anew_in_a_worker_at_its_first_request(tmp_path: Path) -> None:
    with named(tmp_path, "gunicorn preload", START="create") as server:
        worker = int(server.first("/later/one"))
        assert server.wait_for("ran", "one") == [worker]
        assert server.wait_for("ran", "boot") == [server.pid]


@pytest.mark.parametrize("preload", [(), ("--preload",)])
def test_the_gunicorn_hook_starts_each_worker_without_a_request(tmp_path: Path, preload: tuple[str, ...]) -> None:
    with serving(tmp_path, *GUNICORN, "-w", "2", "-c", "gunicorn_starts.py", *preload) as server:
        workers = server.wait_for("ran", "worker", count=2)
        assert len(set(workers)) == 2
        assert server.pid not in workers


def test_waitress_runs_what_is_due_before_the_first_request(tmp_path: Path) -> None:
    with named(tmp_path, "waitress") as server:
        assert server.wait_for("ran", "boot") == [server.pid]


@pytest.mark.parametrize("name", RELOADING)
def test_the_reloaders_parent_runs_nothing_though_it_was_started_before_it_became_one(tmp_path: Path, name: str) -> None:
    with named(tmp_path, name, START="create") as server:
        worker = int(server.first("/later/one"))
        assert server.wait_for("ran", "one") == [worker]
        assert server.pids("ran", "boot") == [worker]
        assert worker != server.pid
        assert server.said().count("parent of Werkzeug's reloader") == 1


@pytest.mark.parametrize("name", ["flask run", "flask run debug", "gunicorn gthread"])
def test_autostart_never_leaves_every_process_silent(tmp_path: Path, name: str) -> None:
    with named(tmp_path, name, FLASK_JOBWHEEL_AUTOSTART="never") as server:
        server.first("/later/one?delay=0.01&hold=0.5")
        assert server.pids("ran") == []


def test_a_flask_command_that_makes_a_request_starts_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, "-m", "flask", "--app", "pids", "look") as server:
        server.wait_until(lambda: server.said() == "200 False\n")
        server.wait_ended()
        assert server.pids("ran") == []


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("name", SERVERS)
def test_a_signal_ends_a_server_with_waiting_jobs_at_once_and_cleanly(tmp_path: Path, name: str, ending: signal.Signals) -> None:
    with named(tmp_path, name) as server:
        server.first("/later/two?delay=3600")
        server.get("/later/one?delay=0.2")  # late enough for the server to be through with the request, which gunicorn may log as broken
        server.wait_for("ran", "one")
        # A plain Python process has no handler for SIGTERM, so that it dies of it.
        code = -ending if ending is signal.SIGTERM and name in ONE_PROCESS else 0
        # Not so under gunicorn: a worker that gets the terminal's and its master's signal at once can block itself for good.
        assert server.end(ending, to_all=name in RELOADING) == code
        assert "Traceback" not in server.said()
        assert "Exception" not in server.said()
        assert server.pids("ran", "two") == []


@pytest.mark.parametrize("name", ["gunicorn gthread", "waitress"])
def test_a_job_that_hangs_holds_the_end_up_no_longer_than_exit_timeout(tmp_path: Path, name: str) -> None:
    with named(tmp_path, name, EXIT_TIMEOUT="0.5") as server:
        server.first("/hang")
        server.wait_for("hangs")
        assert server.end(signal.SIGINT, limit=0.5 + END) == 0
        assert "Traceback" not in server.said()


def test_a_fork_while_every_lock_is_held_leaves_the_child_and_the_parent_a_working_timer(tmp_path: Path) -> None:
    with serving(tmp_path, "forks.py") as server:
        assert server.wait_ended() == 0, server.said()
        children = [server.pids("ran", f"child{number}") for number in range(5)]
        assert len({pid for [pid] in children}) == 5
        assert [server.pids("ran", text) for text in ("boot", "parent", "after")] == [[server.pid]] * 3
