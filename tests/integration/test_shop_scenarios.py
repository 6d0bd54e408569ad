"""The pages of the scenarios, with a timer whose time is moved by hand: what a customer does, sees, and is refused. On both stores."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from test_shop import FROM_HERE, Shop, assert_refused, broken, post, waiting

from web_example.scenarios.address import FIRST
from web_example.scenarios.presence import name_of

POSTS = [
    "/departures/1/orders", "/orders/1/pay", "/orders/1/cancel", "/rooms/Lake/bookings", "/bookings/1/arrive", "/bookings/1/leave",
    "/presence/sign", "/rides", "/rides/1/stars", "/address", "/address/withdraw", "/messages", "/messages/urgent", "/messages/1/stop",
]  # fmt: skip


@pytest.fixture(params=["sqlite", "memory"])
def shop(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shop]:
    shop = Shop(tmp_path, request.param)
    yield shop
    shop.close()


@pytest.fixture
def customer(shop: Shop) -> FlaskClient:
    return shop.app.test_client()


def part(client: FlaskClient, path: str, name: str) -> str:
    """The words of one live part of a page."""
    text = client.get(path).text
    start = text.index(f'data-live="{name}"')
    return " ".join(re.sub(r"<[^>]*>", " ", text[text.index(">", start) + 1 :]).split())


def test_what_is_posted_is_all_that_changes_anything(shop: Shop) -> None:
    routes = {str(rule) for rule in shop.app.url_map.iter_rules() if "POST" in (rule.methods or ())}
    assert {re.sub(r"<[^>]*>", "#", route) for route in routes} == {re.sub(r"\b(1|Lake)\b", "#", path) for path in POSTS}


@pytest.mark.parametrize("path", POSTS)
def test_a_post_from_elsewhere_is_refused(customer: FlaskClient, path: str) -> None:
    for headers in ({}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert_refused(customer.post(path, headers=headers), 403, "own pages only")


@pytest.mark.parametrize(
    ("path", "form", "status"),
    [
        ("/rooms/Cellar/bookings", {}, 404),
        ("/bookings/1/arrive", {}, 404),
        (f"/bookings/{10**30}/leave", {}, 404),
        ("/rides/1/stars", {"stars": "5"}, 404),
        (f"/rides/{10**30}/stars", {"stars": "5"}, 404),
        ("/rides/1/stars", {}, 400),
        ("/rides/1/stars", {"stars": "²"}, 400),
        ("/address", {}, 400),
        ("/address", {"address": "nowhere"}, 400),
        ("/messages", {"subject": "x", "recipients": "0"}, 400),
        ("/messages", {"subject": "x", "recipients": "9" * 40}, 400),
        ("/messages", {"subject": "x"}, 400),
        ("/messages", {"recipients": "1"}, 400),
        ("/messages/1/stop", {}, 404),
        (f"/messages/{10**30}/stop", {}, 404),
    ],
)
def test_what_does_not_exist_or_makes_no_sense_gets_a_page_that_says_so(
    shop: Shop, customer: FlaskClient, path: str, form: dict[str, str], status: int
) -> None:
    assert_refused(post(customer, path, **form), status, "Quiet Coach")
    assert waiting(shop) == []


def test_a_room_is_released_before_the_eyes_of_who_booked_it_and_kept_by_who_comes(shop: Shop, customer: FlaskClient) -> None:
    post(customer, "/rooms/Lake/bookings")
    post(customer, "/rooms/Forest/bookings")
    assert "Yours, if you come" in part(customer, "/rooms", "room-Lake")
    stranger = shop.app.test_client()
    assert part(stranger, "/rooms", "room-Lake").startswith("Lake 2 chairs Booked by somebody else")
    assert_refused(post(stranger, "/rooms/Lake/bookings"), 409, "Somebody was faster")
    assert_refused(post(stranger, "/bookings/1/arrive"), 404)
    post(customer, "/bookings/2/arrive")
    shop.pass_by(20)
    assert part(customer, "/rooms", "room-Lake").startswith("Lake 2 chairs Free")
    assert "You are here" in part(customer, "/rooms", "room-Forest")
    assert_refused(post(customer, "/bookings/1/arrive"), 410, "Nobody came in time")
    post(customer, "/bookings/2/leave")
    assert "Free" in part(customer, "/rooms", "room-Forest")


def test_signs_keep_a_traveller_online_and_their_absence_ends_it(shop: Shop, customer: FlaskClient) -> None:
    def sign(visit: str) -> str:
        answer = customer.post("/presence/sign", data={"visit": visit}, headers=FROM_HERE | {"Accept": "application/json"})
        assert answer.status_code == 200
        return str(answer.get_json()["visit"])

    visit = sign("")
    cookie = customer.get_cookie("shop_customer")
    assert cookie is not None
    for _ in range(4):
        shop.pass_by(8)
        assert sign(visit) == visit
    assert f"{name_of(cookie.value)} (you)" in part(customer, "/presence", "online")
    assert "(you)" not in part(shop.app.test_client(), "/presence", "online")
    shop.pass_by(9)
    assert part(customer, "/presence", "online").startswith("Nobody is here")
    assert f"{name_of(cookie.value)} (you) went at" in part(customer, "/presence", "gone")
    assert cookie.value not in customer.get("/presence").text + customer.get("/wheel").text
    assert sign(visit) != visit
    assert len(sign("\0<x>")) < 20


def test_without_scripts_a_button_gives_the_sign(customer: FlaskClient) -> None:
    answer = post(customer, "/presence/sign")
    assert (answer.status_code, answer.location) == (303, "/presence")
    assert "(you)" in part(customer, "/presence", "online")


def test_an_unrated_ride_gets_five_stars_and_a_rated_one_keeps_its_own(shop: Shop, customer: FlaskClient) -> None:
    post(customer, "/rides")
    post(customer, "/rides")
    assert "Five stars in" in part(customer, "/rides", "ride-1")
    assert_refused(post(customer, "/rides/2/stars", stars="6"), 400, "One to five stars")
    post(customer, "/rides/2/stars", stars="3")
    shop.pass_by(20)
    assert "★★★★★ You said nothing" in part(customer, "/rides", "ride-1")
    assert "Your stars" in part(customer, "/rides", "ride-2")
    assert 'aria-label="3 of 5 stars"' in customer.get("/rides").text
    assert_refused(post(customer, "/rides/1/stars", stars="1"), 410, "5 stars already")


def test_a_changed_address_is_shown_until_it_takes_force_and_can_be_replaced_and_withdrawn(shop: Shop, customer: FlaskClient) -> None:
    assert FIRST in part(customer, "/address", "mailbox")
    post(customer, "/address", address="first@new.example")
    shop.pass_by(15)
    post(customer, "/address", address=" second@new.example ")
    assert len(waiting(shop)) == 1
    words = part(customer, "/address", "mailbox")
    assert FIRST in words
    assert "Soon to second@new.example 0:20" in words
    shop.pass_by(20)
    assert part(customer, "/address", "mailbox").startswith("Tickets are sent to second@new.example")
    post(customer, "/address", address="third@new.example")
    post(customer, "/address/withdraw")
    assert "No change is on its way" in part(customer, "/address", "mailbox")
    assert waiting(shop) == []
    assert FIRST in part(shop.app.test_client(), "/address", "mailbox")


def test_the_chart_grows_with_each_count(shop: Shop, customer: FlaskClient) -> None:
    assert "Nothing was counted yet" in part(customer, "/counts", "chart")
    shop.pass_by(35)
    page = customer.get("/counts").text
    assert page.count("<rect") == 3
    assert "Next count in 0:05 Then at" in part(customer, "/counts", "next")


def test_a_message_is_sent_to_all_and_an_urgent_mail_beside_it(shop: Shop, customer: FlaskClient) -> None:
    post(customer, "/messages", subject="<b>Timetable</b>", recipients="50")
    post(customer, "/messages/urgent")
    assert "0 of 50 sent" in part(customer, "/messages", "delivery")
    shop.pass_by(0)
    page = customer.get("/messages").text
    assert "&lt;b&gt;Timetable" in page
    words = part(customer, "/messages", "delivery")
    assert "50 of 50 sent All sent sent to recipients 1 to 20" in words
    assert "An urgent mail waits 0.00 s" in part(customer, "/messages", "waits")
    assert "Timetable" not in shop.app.test_client().get("/messages").text


def test_a_stopped_message_says_so_and_cannot_be_stopped_by_others(shop: Shop, customer: FlaskClient) -> None:
    post(customer, "/messages", subject="Timetable", recipients="50")
    assert_refused(post(shop.app.test_client(), "/messages/1/stop"), 404, "No such message")
    post(customer, "/messages/1/stop")
    shop.pass_by(0)
    assert "0 of 50 sent Stopped" in part(customer, "/messages", "delivery")


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/rooms/Lake/bookings", {}),
        ("/rides", {}),
        ("/address", {"address": "ada@new.example"}),
        ("/messages", {"subject": "x", "recipients": "20"}),
        ("/messages/urgent", {}),
        ("/presence/sign", {}),
    ],
)
def test_a_promise_whose_job_could_not_be_set_is_kept_all_the_same(
    shop: Shop, customer: FlaskClient, monkeypatch: pytest.MonkeyPatch, path: str, form: dict[str, str]
) -> None:
    customer.get("/")  # the start is over
    with broken(shop.timer, monkeypatch, "add_job"), broken(shop.timer, monkeypatch, "add_jobs"):
        assert_refused(post(customer, path, **form), 503, "Our clock does not answer", "is kept")
    assert waiting(shop) == []
    customer.get("/")
    assert len(waiting(shop)) == 1


def test_what_is_in_time_counts_though_its_job_cannot_be_taken_away(
    shop: Shop, customer: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    post(customer, "/rooms/Lake/bookings")
    post(customer, "/rides")
    post(customer, "/address", address="ada@new.example")
    with broken(shop.timer, monkeypatch, "cancel"):
        for path, form in (("/bookings/1/arrive", {}), ("/rides/1/stars", {"stars": "1"}), ("/address/withdraw", {})):
            assert post(customer, path, **form).status_code == 303
    shop.pass_by(60)
    assert "You are here" in part(customer, "/rooms", "room-Lake")
    assert "Your stars" in part(customer, "/rides", "ride-1")
    assert FIRST in part(customer, "/address", "mailbox")


def test_after_a_crash_at_the_worst_moment_everything_still_ends_in_its_time(tmp_path: Path) -> None:
    before = Shop(tmp_path)
    customer = before.app.test_client()
    customer.get("/")
    post(customer, "/rooms/Lake/bookings")
    post(customer, "/rides")
    post(customer, "/address", address="ada@new.example")
    post(customer, "/messages", subject="x", recipients="20")
    before.timer.cancel_all()  # as if the process had died after each row, before its job
    cookie = customer.get_cookie("shop_customer")
    assert cookie is not None
    before.close()

    after = Shop(tmp_path, after=25)
    returning = after.app.test_client()
    returning.set_cookie("shop_customer", cookie.value)
    returning.get("/")
    after.pass_by(0)
    assert "Free" in part(returning, "/rooms", "room-Lake")
    assert "You said nothing" in part(returning, "/rides", "ride-1")
    assert part(returning, "/address", "mailbox").startswith("Tickets are sent to ada@new.example")
    assert "All sent" in part(returning, "/messages", "delivery")
    after.close()
