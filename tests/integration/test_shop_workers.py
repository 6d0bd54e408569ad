"""The shop in four gunicorn workers on one file of jobs: which worker takes an order, a payment or an expiry does not matter.

The app is `apps/shop_workers.py`, or for the other scenarios the shop as it is, served with `web_example/gunicorn.py`.
"""

import http.client
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import gunicorn  # type: ignore[import-untyped]
import pytest

from jobwheel import TimerManager, open_timer
from web_example.jobs import CancelUnpaidOrder, timer_key

ROOT = Path(__file__).parents[2]
APPS = Path(__file__).parent / "apps"
PAY_WITHIN = 3.0
TIMES = {
    "pay_within: 900": f"pay_within: {PAY_WITHIN}", "hold_room: 600": "hold_room: 2", "offline_after: 30": "offline_after: 2",
    "stars_after: 172800": "stars_after: 2", "change_after: 3600": "change_after: 2", '"0 * * * *"': '"* * * * * *"',
}  # fmt: skip
LATE = 5.0
"""Seconds past its time within which an order has ended, whatever was killed: a sweep comes about once a second."""
LIMIT = 30.0

# Else newer versions make a socket in the home directory, the same one for all servers of a user.
UNCONTROLLED = ("--no-control-socket",) if gunicorn.version_info >= (25, 1) else ()


class Answer(NamedTuple):
    status: int
    pid: int
    cookie: str
    body: bytes


class Order(NamedTuple):
    id: int
    pid: int
    """The worker that took it."""
    cookie: str


class Row(NamedTuple):
    """An order as the shop's database has it."""

    id: int
    state: str
    pay_by: float
    ended_at: float | None


class Server:
    """gunicorn with its workers, in a process group of its own."""

    def __init__(self, folder: Path, app: str = "shop_workers:create_app()", **settings: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port: int = probe.getsockname()[1]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLASK_", "JOBWHEEL_", "GUNICORN_"))}
        own = {"PYTHONPATH": f"{ROOT}{os.pathsep}{APPS}", "RUNS": str(folder / "runs"), "JOBWHEEL_CONFIG": str(folder / "shop.yml")}
        options = ("-c", str(ROOT / "web_example" / "gunicorn.py"), "-b", f"127.0.0.1:{self._port}", app)
        self._said = folder / "said"
        with self._said.open("ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gunicorn", *UNCONTROLLED, *options],
                cwd=folder, env=kept | own | settings, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self._said.read_text()

    def ask(self, method: str, path: str, cookie: str = "", body: str = "", accept: str = "*/*") -> Answer:
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=LIMIT)) as connection:
            headers = {"Sec-Fetch-Site": "same-origin", "Content-Type": "application/x-www-form-urlencoded", "Cookie": cookie}
            headers["Accept"] = accept
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            given = answer.getheader("Set-Cookie", "").partition(";")[0]
            return Answer(answer.status, int(answer.getheader("X-Pid", "0")), given or cookie, answer.read())

    def wait_until_open(self) -> None:
        def is_open() -> bool:
            assert self.process.poll() is None, self.said
            with suppress(ConnectionError):
                return self.ask("GET", "/departures").status == 200
            return False

        wait_for(is_open, LIMIT, "the first page", lambda: self.said)

    def order(self, _: object = None) -> Order:
        """A new customer orders any seat of the first train."""
        answer = self.ask("POST", "/departures/1/orders", body="seat=")
        assert answer.status == 303, self.said
        orders = json.loads(self.ask("GET", "/orders.json", answer.cookie).body)["orders"]
        return Order(orders[0]["id"], answer.pid, answer.cookie)

    def order_many(self, count: int) -> list[Order]:
        with ThreadPoolExecutor(8) as customers:
            return list(customers.map(self.order, range(count)))

    def pay(self, order: Order) -> int:
        """The worker that took the payment."""
        answer = self.ask("POST", f"/orders/{order.id}/pay", order.cookie)
        assert answer.status == 303, self.said
        return answer.pid

    def kill(self) -> None:
        """All of its processes at once, without a good-bye."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(LIMIT)


def wait_for(true: Callable[[], bool], limit: float, what: str, more: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + limit
    while not true():
        assert time.monotonic() < deadline, f"not within {limit:g} s: {what}\n{more()}"
        time.sleep(0.05)


class Shop:
    """The folder that the servers of one test share: the shop's database, the file of jobs, and what was run."""

    def __init__(self, folder: Path, servers: ExitStack) -> None:
        self.folder = folder
        self._servers = servers
        text = (ROOT / "config" / "default.yml").read_text(encoding="utf-8")
        for there, here in TIMES.items():
            assert there in text
            text = text.replace(there, here)
        (folder / "shop.yml").write_text(text, encoding="utf-8")

    def open(self, *app: str, **settings: str) -> Server:
        server = Server(self.folder, *app, **settings)
        self._servers.callback(server.kill)
        server.wait_until_open()
        return server

    def rows(self) -> dict[int, Row]:
        with closing(sqlite3.connect(self.folder / "web_example.db", timeout=5)) as database:
            return {row[0]: Row(*row) for row in database.execute("SELECT id, state, pay_by, ended_at FROM orders")}

    def runs(self) -> list[tuple[int, bool]]:
        """The order of each run, and whether it was the one that ended it."""
        file = self.folder / "runs"
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [(int(order), ended == "True") for order, ended, _ in lines]

    @contextmanager
    def timer(self) -> Iterator[TimerManager]:
        """A timer on the same file that runs nothing."""
        timer = open_timer({"store": {"path": str(self.folder / "web_example_jobs.db")}})
        yield timer
        timer.shutdown()

    def wait_until_none_is_reserved(self, server: Server) -> None:
        self_limit = PAY_WITHIN + LATE + 1
        wait_for(lambda: all(row.state != "reserved" for row in self.rows().values()), self_limit, "every order ends", lambda: server.said)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with ExitStack() as servers:
        yield Shop(tmp_path, servers)


def test_an_order_of_one_worker_is_paid_in_another_and_each_unpaid_one_expires_once(shop: Shop) -> None:
    server = shop.open()

    def buy(number: int) -> tuple[Order, int]:
        order = server.order()
        return order, server.pay(order) if number % 2 else 0

    with ThreadPoolExecutor(8) as customers:
        bought = list(customers.map(buy, range(24)))
    paid, unpaid = [order for order, payer in bought if payer], [order for order, payer in bought if not payer]
    assert len({order.pid for order, _ in bought}) > 1
    assert any(order.pid != payer for order, payer in bought if payer)

    shop.wait_until_none_is_reserved(server)
    rows = shop.rows()
    assert {order.id for order in paid} == {row.id for row in rows.values() if row.state == "paid"}
    assert {order.id for order in unpaid} == {row.id for row in rows.values() if row.state == "expired"}
    for row in rows.values():
        if row.state == "expired":
            assert row.ended_at is not None
            assert 0 <= row.ended_at - row.pay_by < LATE
    with shop.timer() as timer:
        wait_for(lambda: timer.stats().running == 0, LATE, "the runs are written down")
        stats = timer.stats()
        assert (stats.pending, stats.succeeded, stats.cancelled, stats.failed) == (0, len(unpaid), len(paid), 0)
        jobs = [timer.get(timer_key(order.id)) for order in unpaid]
    assert [job and (job.attempt, job.result) for job in jobs] == [(1, "expired")] * len(unpaid)
    assert sorted(shop.runs()) == sorted((order.id, True) for order in unpaid)
    os.kill(server.process.pid, signal.SIGTERM)
    assert server.process.wait(LIMIT) == 0
    assert "Traceback" not in server.said


@pytest.mark.parametrize("wait", [0.2, PAY_WITHIN], ids=["while they wait", "while they expire"])
@pytest.mark.parametrize("victim", ["a worker", "the master", "all of them"])
def test_no_order_stays_reserved_past_its_time_whatever_is_killed(shop: Shop, victim: str, wait: float) -> None:
    server = shop.open()
    orders = server.order_many(12)
    ((busiest, _),) = Counter(order.pid for order in orders).most_common(1)
    latest = max(row.pay_by for row in shop.rows().values())
    time.sleep(max(0.0, latest - PAY_WITHIN + wait - time.time()))
    if victim == "a worker":
        os.kill(busiest, signal.SIGKILL)
    elif victim == "the master":
        os.kill(server.process.pid, signal.SIGKILL)  # its workers see it after a while and end
    else:
        server.kill()
    here = time.time()
    if victim != "a worker":
        server = shop.open()
        here = time.time()

    shop.wait_until_none_is_reserved(server)
    rows = shop.rows()
    assert {row.state for row in rows.values()} == {"expired"}
    assert set(rows) == {order.id for order in orders}
    for row in rows.values():
        assert row.ended_at is not None
        assert row.ended_at >= row.pay_by
        assert row.ended_at < max(row.pay_by, here) + LATE
    ended = Counter(order for order, was_it in shop.runs() if was_it)
    assert max(ended.values()) == 1
    with shop.timer() as timer:
        wait_for(lambda: timer.stats().pending + timer.stats().running == 0, LATE, "no job waits or runs", lambda: server.said)
        assert timer.stats().failed == 0
        assert all(isinstance(job.job, CancelUnpaidOrder) or job.job is None for job in timer.find())
    number = server.order().id  # and it goes on selling
    assert shop.rows()[number].state == "reserved"


def test_nothing_doubles_in_any_scenario_whatever_number_of_workers(shop: Shop) -> None:
    server = shop.open("web_example:create_app()")
    customers = [server.ask("POST", "/rides").cookie for _ in range(4)]

    def post(number: int, path: str, body: str = "") -> None:
        assert server.ask("POST", path, customers[number % 4], body).status == 303, server.said

    with ThreadPoolExecutor(8) as hands:
        rooms = ("Forest", "Harbour", "Island", "Lake", "Meadow", "Summit")
        calls = [(number, f"/rooms/{room}/bookings", "") for number, room in enumerate(rooms)]
        calls += [(number, "/address", f"address=ada{number}@new.example") for number in range(8)]
        calls += [(number, "/messages", "subject=Timetable&recipients=400") for number in range(2)]
        calls += [(number, path, "") for number in range(8) for path in ("/presence/sign", "/rides", "/messages/urgent")]
        list(hands.map(lambda call: post(*call), calls))

    with shop.timer() as timer:

        def is_over() -> bool:
            return timer.stats().running == 0 and all(job.trigger is not None for job in timer.find(state=("scheduled", "running")))

        wait_for(is_over, LIMIT, "all that was promised is done", lambda: f"{timer.find(state='scheduled')}\n{server.said}")
        expected = {
            "rooms.release": 6,
            "presence.mark_offline": 8,
            "rides.give_five_stars": 12,
            "mail.send_slice": 40,
            "mail.send_urgent": 8,
        }
        assert {kind: len(timer.find(kind=kind, state="succeeded")) for kind in expected} == expected
        assert {job.attempt for job in timer.find(state="succeeded")} == {1}
        assert timer.stats().failed == 0
        counted = [job for job in timer.find() if job.trigger is not None]
        assert len(counted) == 1
        with closing(sqlite3.connect(shop.folder / "web_example.db", timeout=5)) as database:
            applied = database.execute("SELECT count(*), count(wish) FROM mailboxes").fetchone()
            mails = database.execute("SELECT count(*) FROM mails").fetchone()
        assert applied == (4, 0)
        assert mails == (2 * 400 + 8,)

        def runs() -> int:
            series = timer.get(counted[0])
            assert series is not None
            assert series.failures == 0
            return series.runs

        wait_for(lambda: runs() > 2, LIMIT, "three counts", lambda: server.said)
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.process.wait(LIMIT) == 0
        with closing(sqlite3.connect(shop.folder / "web_example.db", timeout=5)) as database:
            assert database.execute("SELECT count(*) FROM counts").fetchone() == (runs(),)
    assert "Traceback" not in server.said


def test_signs_that_come_to_any_worker_keep_a_visit_alive(shop: Shop) -> None:
    server = shop.open()

    def sign(number: int) -> tuple[set[int], set[str], str]:
        """The workers that were asked, the visits that were answered, and the customer, of a page that was open for eight seconds."""
        pids, visits, visit, cookie = set(), set(), "", ""
        until = time.monotonic() + 8
        while time.monotonic() < until:
            answer = server.ask("POST", "/presence/sign", cookie, f"visit={visit}", "application/json")
            assert answer.status == 200, server.said
            pids.add(answer.pid)
            visit, cookie = json.loads(answer.body)["visit"], answer.cookie
            visits.add(visit)
            time.sleep(0.3 + number / 20)
        return pids, visits, cookie

    with ThreadPoolExecutor(8) as pages:
        seen = list(pages.map(sign, range(8)))
    assert len(set.union(*(pids for pids, _, _ in seen))) > 1
    assert [len(visits) for _, visits, _ in seen] == [1] * 8

    def closed() -> list[float]:
        with closing(sqlite3.connect(shop.folder / "web_example.db", timeout=5)) as database:
            return [seconds for (seconds,) in database.execute("SELECT closed_at - opened_at FROM visits WHERE closed_at IS NOT NULL")]

    wait_for(lambda: len(closed()) == 8, 2 + LATE, "all visits are over", lambda: server.said)
    assert min(closed()) >= 8 + 2 - 1  # the last sign came up to a second before the page was closed
    assert "Traceback" not in server.said


def test_jobs_run_in_workers_of_their_own_while_the_web_processes_only_add(shop: Shop) -> None:
    server = shop.open("web_example:create_app()", JOBWHEEL_WORKERS__THREADS="0")
    cookie = server.ask("POST", "/rides").cookie
    for path, body in (("/rooms/Lake/bookings", ""), ("/messages", "subject=Timetable&recipients=400"), ("/messages/urgent", "")):
        assert server.ask("POST", path, cookie, body).status == 303, server.said
    assert server.ask("POST", "/departures/1/orders", cookie, "seat=").status == 303
    time.sleep(max(PAY_WITHIN, 2.0) + 1)
    with shop.timer() as timer:
        assert (timer.stats().succeeded, timer.stats().running) == (0, 0)
        said = shop.folder / "worker"
        file = str(shop.folder / "shop.yml")
        env = {name: value for name, value in os.environ.items() if not name.startswith("JOBWHEEL_")}
        with said.open("ab") as out:
            worker = subprocess.Popen(
                [sys.executable, "-m", "jobwheel", "worker", "--config", file, "--processes", "2"],
                cwd=shop.folder, env=env | {"PYTHONPATH": str(ROOT)}, stdout=out, stderr=out,
            )  # fmt: skip
        try:
            wait_for(lambda: timer.stats().succeeded >= 1 + 1 + 1 + 1 + 20, LIMIT, "the workers do it", said.read_text)
        finally:
            worker.terminate()
            assert worker.wait(LIMIT) == 0, said.read_text()
        assert timer.stats().failed == 0
    assert {row.state for row in shop.rows().values()} == {"expired"}
    page = server.ask("GET", "/messages", cookie).body.decode()
    assert "400 of 400 sent" in page
    assert "Traceback" not in server.said + said.read_text()
