"""The shop through its pages, with a timer whose time is moved by hand: what the wheel does to an order is what the customer sees.

The tests that take one process run on both stores.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from jobwheel import State, TimerManager
from jobwheel.errors import StoreError
from jobwheel.testing import manual_timer
from web_example import create_app
from web_example.container import fill
from web_example.jobs import CancelUnpaidOrder, timer_key
from web_example.orders import OrderService
from web_example.scenarios import counting
from web_example.settings import ShopSettings

FROM_HERE = {"Origin": "http://localhost"}
PAGES = ("/", "/departures", "/orders", "/rooms", "/presence", "/rides", "/address", "/counts", "/messages", "/wheel")
CODE = {
    "/orders": ("class CancelUnpaidOrder", "after_commit=session"),
    "/rooms": ("class ReleaseRoom", "self._timer.add_job(ReleaseRoom(booking.id), self.hold"),
    "/presence": ("class MarkOffline", "self._timer.touch("),
    "/rides": ("class GiveFiveStars", "at=_date(ride.rate_by)"),
    "/address": ("class ApplyAddress", "raise RetryJob(left)"),
    "/counts": ("@job(kind=", "trigger=self.trigger"),
    "/messages": ("class SendSlice", "self._timer.add_jobs("),
}
TIMES = ShopSettings(
    pay_within=20, hold_room=20, offline_after=9, stars_after=20, change_after=20, count_at="*/10 * * * * *", mail_takes=1e-6
)


class Shop:
    """One process of the shop in `folder`, its time standing still until `pass_by`. Time starts `after` seconds later than usual."""

    def __init__(self, folder: Path, store: str = "sqlite", after: float = 0.0) -> None:
        container = fill(replace(TIMES, database=str(folder / "shop.db")), "unused")
        self.timer: TimerManager
        kept = {"kind": store, "path": str(folder / "jobs.db")}
        # Every manual clock starts at the same moment, so "after" means the same for all processes.
        self.timer, self._clock = manual_timer(services=container, jobs=["web_example.jobs", "web_example.scenarios"], store=kept)
        container.timer.override(self.timer)
        container.now.override(self._clock.wall)
        self.app = create_app(container=container)
        self.parts = container
        self.orders: OrderService = container.orders()
        self._clock.set_wall(after)  # what is due by now runs, as at the start of a process

    def pass_by(self, seconds: float) -> None:
        self._clock.advance(seconds)

    def close(self) -> None:
        self.timer.shutdown()
        self.parts.database().close()


@pytest.fixture(params=["sqlite", "memory"])
def shop(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shop]:
    shop = Shop(tmp_path, request.param)
    yield shop
    shop.close()


@pytest.fixture
def customer(shop: Shop) -> FlaskClient:
    return shop.app.test_client()


def post(client: FlaskClient, path: str, **form: str) -> TestResponse:
    return client.post(path, data=form, headers=FROM_HERE)


def order(client: FlaskClient, train: str = "QC 11", seat: str = "") -> int:
    """Orders as a browser does, looking at the list first; gives back the new order's number."""
    departure = departure_of(client, train)
    assert post(client, f"/departures/{departure}/orders", seat=seat).status_code == 303
    return max(states(client))


def departure_of(client: FlaskClient, train: str) -> int:
    page = client.get("/departures").text
    return int(page[: page.index(train)].rpartition("/departures/")[2].partition('"')[0])


def states(client: FlaskClient) -> dict[int, str]:
    answer: dict[str, Any] = client.get("/orders.json").get_json()
    return {each["id"]: each["state"] for each in answer["orders"]}


def free(shop: Shop, train: str = "QC 11") -> int:
    return next(line.free for line in shop.orders.departures() if line.departure.train == train)


def waiting(shop: Shop) -> list[str | None]:
    """What waits, but for the count of travellers, which always does."""
    return [job.key for job in shop.timer.find(state=State.SCHEDULED) if job.key != counting.KEY]


def assert_refused(answer: TestResponse, status: int, *words: str) -> None:
    assert answer.status_code == status
    assert answer.mimetype == "text/html"
    for word in words:
        assert word in answer.text
    assert "Traceback" not in answer.text


def test_an_order_that_is_not_paid_in_time_is_cancelled_and_its_seat_is_free_again(shop: Shop, customer: FlaskClient) -> None:
    total = free(shop)
    number = order(customer)
    assert states(customer) == {number: "reserved"}
    assert free(shop) == total - 1
    shop.pass_by(19.9)
    assert states(customer) == {number: "reserved"}
    shop.pass_by(0.1)
    assert states(customer) == {number: "expired"}
    assert free(shop) == total
    assert "Not paid in time" in customer.get("/orders").text


def test_a_paid_order_stays_paid_and_its_job_never_runs(shop: Shop, customer: FlaskClient) -> None:
    number = order(customer)
    total = free(shop)
    job = shop.timer.get(timer_key(number))
    assert job is not None
    assert job.job == CancelUnpaidOrder(number)
    answer = post(customer, f"/orders/{number}/pay")
    assert (answer.status_code, answer.location) == (303, "/orders")
    assert waiting(shop) == []
    shop.pass_by(60)
    assert states(customer) == {number: "paid"}
    assert free(shop) == total
    ended = shop.timer.get(job.id)
    assert ended is None or ended.state is State.CANCELLED


def test_a_cancelled_order_gives_its_seat_back_at_once_and_its_job_never_runs(shop: Shop, customer: FlaskClient) -> None:
    total = free(shop)
    number = order(customer)
    assert post(customer, f"/orders/{number}/cancel").status_code == 303
    assert (states(customer), waiting(shop), free(shop)) == ({number: "cancelled"}, [], total)


def test_each_order_waits_for_its_own_moment(shop: Shop, customer: FlaskClient) -> None:
    first = order(customer)
    shop.pass_by(12)
    second = order(customer)
    assert waiting(shop) == [timer_key(first), timer_key(second)]
    shop.pass_by(8)
    assert states(customer) == {first: "expired", second: "reserved"}
    shop.pass_by(12)
    assert states(customer) == {first: "expired", second: "expired"}


def test_an_order_is_held_on_the_timer_for_as_long_as_the_page_says(shop: Shop, customer: FlaskClient) -> None:
    number = order(customer)
    job = shop.timer.get(timer_key(number))
    assert job is not None
    assert job.due - job.created == timedelta(seconds=20)
    answer = customer.get("/orders.json").get_json()
    assert answer["orders"][0]["pay_by"] - answer["now"] == pytest.approx(20)


def test_payment_after_expiry_twice_or_of_a_cancelled_order_gets_a_page_that_says_so(shop: Shop, customer: FlaskClient) -> None:
    late, twice, gone = order(customer), order(customer), order(customer)
    post(customer, f"/orders/{twice}/pay")
    post(customer, f"/orders/{gone}/cancel")
    shop.pass_by(20.001)
    assert_refused(post(customer, f"/orders/{late}/pay"), 410, "Too late", "nothing was charged")
    assert_refused(post(customer, f"/orders/{twice}/pay"), 409, "Already paid", "Nothing was charged twice")
    assert_refused(post(customer, f"/orders/{twice}/cancel"), 409, "Already paid")
    assert_refused(post(customer, f"/orders/{gone}/pay"), 409, "Already cancelled")
    assert states(customer) == {late: "expired", twice: "paid", gone: "cancelled"}


def test_a_seat_that_is_taken_and_a_train_that_is_full_get_a_page_that_says_so(shop: Shop, customer: FlaskClient) -> None:
    departure = departure_of(customer, "QC 99")
    seats = [seat.id for seat, _ in shop.orders.plan(departure)[1]]
    order(customer, "QC 99", str(seats[2]))
    assert_refused(post(customer, f"/departures/{departure}/orders", seat=str(seats[2])), 409, "seat is taken", "1C")
    for _ in seats[1:]:
        order(customer, "QC 99")
    assert_refused(post(customer, f"/departures/{departure}/orders", seat=""), 409, "Sold out")
    assert "Sold out" in customer.get("/departures").text
    assert "Sold out" in customer.get(f"/departures/{departure}").text
    assert len(waiting(shop)) == len(seats)
    shop.pass_by(20)
    assert free(shop, "QC 99") == len(seats)


@pytest.mark.parametrize(
    "path", ["/departures/999/orders", f"/departures/{10**30}/orders", "/orders/999/pay", f"/orders/{10**30}/cancel", "/orders/x/pay"]
)
def test_what_does_not_exist_cannot_be_ordered_paid_or_cancelled(customer: FlaskClient, path: str) -> None:
    assert_refused(post(customer, path), 404)


@pytest.mark.parametrize("seat", ["999999", "0", "-1", "1.5", "x", "²", "9" * 40, " 1"])
def test_a_seat_that_does_not_exist_is_refused_and_nothing_is_ordered(shop: Shop, customer: FlaskClient, seat: str) -> None:
    assert_refused(post(customer, f"/departures/{departure_of(customer, 'QC 11')}/orders", seat=seat), 404, "No such seat")
    assert shop.orders.reserved() == []
    assert waiting(shop) == []


def test_unknown_pages_and_wrong_methods_get_the_shops_own_page(customer: FlaskClient) -> None:
    for path in ("/nowhere", "/departures/999", f"/departures/{10**30}"):
        assert_refused(customer.get(path), 404, "Quiet Coach")
    assert_refused(customer.get("/orders/1/pay"), 405, "Quiet Coach")


def test_an_order_of_someone_else_is_not_shown_and_cannot_be_touched(shop: Shop, customer: FlaskClient) -> None:
    number = order(customer)
    stranger = shop.app.test_client()
    for _ in range(2):  # once without a cookie, once with an own one
        assert number not in states(stranger)
        assert_refused(post(stranger, f"/orders/{number}/pay"), 404, "No such order")
        assert_refused(post(stranger, f"/orders/{number}/cancel"), 404, "No such order")
        order(stranger)
    forger = shop.app.test_client()
    forger.set_cookie("shop_customer", "")
    assert states(forger) == {}
    assert states(customer) == {number: "reserved"}


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, False),
        ({"Origin": "http://localhost"}, True),
        ({"Origin": "http://evil.example"}, False),
        ({"Origin": "http://localhost:8001"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://["}, False),
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"}, False),
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://localhost"}, False),
        ({"Sec-Fetch-Site": "none"}, False),
    ],
)
def test_only_the_shops_own_pages_may_order(shop: Shop, customer: FlaskClient, headers: dict[str, str], allowed: bool) -> None:
    answer = customer.post(f"/departures/{departure_of(customer, 'QC 11')}/orders", data={"seat": ""}, headers=headers)
    assert answer.status_code == (303 if allowed else 403)
    assert len(shop.orders.reserved()) == allowed


def test_pages_load_from_nowhere_else_and_hold_no_script_or_style_of_their_own(customer: FlaskClient) -> None:
    order(customer)
    for path in (*PAGES, f"/departures/{departure_of(customer, 'QC 11')}", "/nowhere"):
        answer = customer.get(path)
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'self'; ")
        assert answer.headers["Referrer-Policy"] == "same-origin"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "://" not in answer.text
        assert " style=" not in answer.text
        assert "<style" not in answer.text
        assert answer.text.count("<script") == answer.text.count('<script type="module" src="/static/')
    with customer.get("/static/shop.css") as style:
        assert style.status_code == 200


def test_every_page_is_led_to_from_the_first_one_and_shows_the_lines_that_do_it(shop: Shop, customer: FlaskClient) -> None:
    start = customer.get("/").text
    for page in PAGES[1:]:
        assert f'href="{page}"' in start
    for page, words in CODE.items():
        text = customer.get(page).text
        for line in words:
            assert line in text


def test_the_cookie_is_given_with_the_first_order_and_cannot_be_read_by_scripts(customer: FlaskClient) -> None:
    assert "Set-Cookie" not in customer.get("/").headers
    answer = post(customer, f"/departures/{departure_of(customer, 'QC 11')}/orders", seat="")
    assert "HttpOnly" in answer.headers["Set-Cookie"]
    assert "SameSite=Lax" in answer.headers["Set-Cookie"]


def test_the_wheel_page_lists_what_waits(shop: Shop, customer: FlaskClient) -> None:
    assert counting.KEY in customer.get("/wheel").text
    number = order(customer)
    page = customer.get("/wheel").text
    assert timer_key(number) in page
    assert "orders.cancel_unpaid" in page
    shop.pass_by(20)
    assert timer_key(number) not in customer.get("/wheel").text


@contextmanager
def broken(part: object, monkeypatch: pytest.MonkeyPatch, call: str, error: type[Exception] = StoreError) -> Iterator[None]:
    """The part while one of its calls fails, as when a disk is full."""

    def fails(*_: object, **__: object) -> None:
        raise error("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(part, call, fails, raising=True)
        yield


@pytest.mark.parametrize("moment", ["before the commit", "after the commit"])
def test_an_order_that_cannot_get_its_time_limit_is_not_held(
    shop: Shop, customer: FlaskClient, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    departure, total = departure_of(customer, "QC 11"), free(shop)
    part, call = (shop.timer, "add_job") if moment == "before the commit" else (shop.timer._life.store, "add")
    with broken(part, monkeypatch, call):
        assert_refused(post(customer, f"/departures/{departure}/orders", seat=""), 503, "Nothing was ordered and nothing was charged")
    assert shop.orders.reserved() == []
    assert waiting(shop) == []
    assert free(shop) == total
    order(customer)


def test_an_order_that_is_not_committed_gets_no_job(shop: Shop, customer: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    order(customer)
    seat = shop.orders.reserved()[0].seat_id
    assert_refused(post(customer, f"/departures/{departure_of(customer, 'QC 11')}/orders", seat=str(seat)), 409)
    assert len(waiting(shop)) == 1


def test_a_payment_counts_though_its_job_cannot_be_cancelled(shop: Shop, customer: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    number = order(customer)
    with broken(shop.timer, monkeypatch, "cancel"):
        assert post(customer, f"/orders/{number}/pay").status_code == 303
    shop.pass_by(20)
    assert states(customer) == {number: "paid"}


@pytest.mark.parametrize("store", ["sqlite", "memory"])
def test_reservations_of_an_earlier_process_get_the_rest_of_their_time(tmp_path: Path, store: str) -> None:
    before = Shop(tmp_path, store)
    customer = before.app.test_client()
    early = order(customer)
    before.pass_by(15)
    late, paid = order(customer), order(customer)
    post(customer, f"/orders/{paid}/pay")
    cookie = customer.get_cookie("shop_customer")
    assert cookie is not None
    before.close()  # 15 s on; what waited in memory is gone

    after = Shop(tmp_path, store, after=25)
    returning = after.app.test_client()
    returning.set_cookie("shop_customer", cookie.value)
    assert waiting(after) == ([timer_key(late)] if store == "sqlite" else [])
    returning.get("/")
    after.pass_by(0)
    assert states(returning) == {early: "expired", late: "reserved", paid: "paid"}
    after.pass_by(9.9)
    assert states(returning)[late] == "reserved"
    after.pass_by(0.1)
    assert states(returning) == {early: "expired", late: "expired", paid: "paid"}
    after.close()


def test_what_a_file_keeps_expires_after_a_restart_though_nobody_visits(tmp_path: Path) -> None:
    before = Shop(tmp_path)
    order(before.app.test_client())
    before.close()
    after = Shop(tmp_path, after=25)
    assert after.orders.reserved() == []
    after.close()


def test_an_order_whose_process_died_before_its_job_was_added_gets_one_and_the_others_keep_theirs(tmp_path: Path) -> None:
    before = Shop(tmp_path)
    customer = before.app.test_client()
    whole = order(customer)
    torn = before.orders.reserve(departure_of(customer, "QC 24"), "ada").id  # committed, and the process ends here
    kept = before.timer.get(timer_key(whole))
    assert waiting(before) == [timer_key(whole)]
    before.close()

    after = Shop(tmp_path, after=5)
    after.app.test_client().get("/")
    assert set(waiting(after)) == {timer_key(whole), timer_key(torn)}
    found = after.timer.get(timer_key(whole))
    assert kept is not None
    assert found is not None
    assert found.id == kept.id
    after.pass_by(14.9)
    assert [order.id for order in after.orders.reserved()] == [whole, torn]
    after.pass_by(0.1)
    assert after.orders.reserved() == []
    after.close()


def test_while_no_limit_can_be_given_nothing_can_be_ordered_all_else_goes_on_and_no_order_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = Shop(tmp_path)
    customer = before.app.test_client()
    mine = order(customer)
    cookie = customer.get_cookie("shop_customer")
    assert cookie is not None
    departure = departure_of(customer, "QC 24")
    before.orders.reserve(departure, "ada")
    before.close()
    after = Shop(tmp_path, after=5)
    returning = after.app.test_client()
    returning.set_cookie("shop_customer", cookie.value)
    caplog.clear()
    with broken(after.timer, monkeypatch, "add_jobs"):
        assert returning.get("/").status_code == 200
        assert states(returning) == {mine: "reserved"}
        assert post(returning, f"/orders/{mine}/pay").status_code == 303
        assert_refused(post(returning, f"/departures/{departure}/orders", seat=""), 503, "try again in a minute")
    assert states(returning) == {mine: "paid"}
    assert [(record.levelname, record.exc_info) for record in caplog.records] == [("ERROR", None)] * 4
    assert "the disk is full" in caplog.text
    assert len(after.orders.reserved()) == 1
    after.pass_by(15)
    assert after.orders.reserved() == []
    after.close()


def test_an_order_that_can_neither_be_held_nor_taken_back_is_found_by_the_next_request(
    shop: Shop, customer: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    departure = departure_of(customer, "QC 11")
    with broken(shop.timer._life.store, monkeypatch, "add"), broken(shop.orders, monkeypatch, "take_back", OSError):
        assert_refused(post(customer, f"/departures/{departure}/orders", seat=""), 500, "Something went wrong on our side")
    assert len(shop.orders.reserved()) == 1
    customer.get("/")
    shop.pass_by(20)
    assert shop.orders.reserved() == []
