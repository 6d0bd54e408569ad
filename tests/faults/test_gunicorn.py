"""Web workers of gunicorn that share one file under load: every job that was acknowledged runs once, and none that was cancelled."""

import http.client
import json
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gunicorn  # type: ignore[import-untyped]
import pytest
from eventlog import read

HERE = Path(__file__).parent
UNCONTROLLED = ("--no-control-socket",) if gunicorn.version_info >= (25, 1) else ()
LIMIT = 30.0
CLIENTS, EACH = 8, 40


@dataclass
class Server:
    """gunicorn, its folder, and what its clients were told."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]
    added: dict[str, int] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    """Names of jobs of which a cancel was asked for, whatever was answered."""
    workers: set[int] = field(default_factory=set)
    cut: int = 0
    """Requests that were never answered."""

    def post(self, path: str) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        try:
            connection.request("POST", path)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        assert answer.status == 200, self.said()
        return json.loads(text)

    def client(self, number: int) -> None:
        chance = random.Random(number)
        for each in range(EACH):
            name = f"{number}.{each}"
            try:
                answer = self.post(f"/add/{name}?delay={chance.choice((0, 0, 0.1, 1.0))}")
                self.added[name] = answer["id"]
                self.workers.add(answer["pid"])
                if chance.random() < 0.3:
                    self.asked.add(name)
                    if self.post(f"/cancel/{answer['id']}")["cancelled"]:
                        self.cancelled.add(name)
            except (ConnectionError, http.client.HTTPException):
                self.cut += 1
            time.sleep(chance.uniform(0, 0.02))

    def __str__(self) -> str:
        cancelled, workers = len(self.cancelled), len(self.workers)
        return f"{len(self.added)} added, {cancelled} cancelled, {self.cut} requests without an answer, {workers} workers answered"

    def said(self) -> str:
        return (self.folder / "said").read_text()

    def runs(self) -> Counter[str]:
        return Counter(line.rest[2] for line in read(self.folder / "events") if line.what == "start")


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[Server]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLASK_", "JOBWHEEL_", "GUNICORN_"))}
    places = {
        "EVENTS": str(folder / "events"),
        "STORE": str(folder / "jobs.db"),
        "PYTHONPATH": os.pathsep.join(map(str, (HERE, HERE.parents[1]))),
    }
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", *UNCONTROLLED, "-b", f"127.0.0.1:{port}", "-w", "4", *arguments, "served:create_app()"],
            cwd=folder, env=kept | places, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
        )  # fmt: skip
    server = Server(folder, port, process)
    try:
        deadline = time.monotonic() + LIMIT
        while "Listening at" not in server.said() or server.said().count("Booting worker") < 4:
            assert time.monotonic() < deadline, server.said()
            time.sleep(0.05)
        yield server
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize(
    "arguments",
    [(), ("--preload",), ("--max-requests", "20"), ("--threads", "4", "--max-requests", "20", "--preload")],
    ids=lambda arguments: " ".join(arguments) or "plain",
)
def test_four_web_workers_lose_no_job_and_run_none_twice_under_load(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with serving(tmp_path, *arguments) as server:
        with ThreadPoolExecutor(CLIENTS) as crowd:
            list(crowd.map(server.client, range(CLIENTS)))
        check(server)
        print(f"{' '.join(arguments) or 'plain'}: {server}")
        assert len(server.added) > 0.9 * CLIENTS * EACH
        assert len(server.workers) >= (8 if "--max-requests" in arguments else 4)


def test_a_reload_under_load_replaces_the_web_workers_and_loses_no_job(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        with ThreadPoolExecutor(CLIENTS) as crowd:
            clients = [crowd.submit(server.client, number) for number in range(CLIENTS)]
            for count in (80, 200):
                while len(server.added) + server.cut < count and not all(client.done() for client in clients):
                    time.sleep(0.01)
                server.process.send_signal(signal.SIGHUP)
            for client in clients:
                client.result()
        check(server)
        print(f"two reloads: {server}")
        assert len(server.workers) > 4


def check(server: Server) -> None:
    """What was acknowledged and not cancelled has run once, and nothing else has; it ends cleanly."""
    wanted = server.added.keys() - server.asked
    deadline = time.monotonic() + LIMIT
    while not wanted <= server.runs().keys() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1.5)  # for a second run, if there is one
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(LIMIT) == 0, server.said()
    runs = server.runs()
    with closing(sqlite3.connect(server.folder / "jobs.db")) as connection:
        left = {name for (name,) in connection.execute("SELECT json_extract(data, '$.name') FROM job WHERE state < 4")}
        # Not only those of which cancel said True: it says False of one that was claimed, and that one may be handed back before it runs.
        gone = {name for (name,) in connection.execute("SELECT json_extract(data, '$.name') FROM job WHERE state = 6")}
    assert server.cancelled <= gone <= server.asked
    assert server.added.keys() - gone <= runs.keys()
    assert not left
    lost, twice = wanted - runs.keys(), [name for name, count in runs.items() if count > 1]
    assert (lost, twice, server.cancelled & runs.keys()) == (set(), [], set()), server.said()
    assert "Traceback" not in server.said(), server.said()
    assert any(name.startswith("boot") for name in runs)
