"""Each scenario on its page, in a real browser: what waits is seen to happen, without a reload, and what is done in time prevents it."""

import re
import signal
from collections.abc import Iterator
from functools import partial

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from shop_browser import SOON, Page, Terminal, until

LATE = SOON + 5
"""Seconds within which what happens after SOON is seen."""
PAGES = ("/", "/departures", "/orders", "/rooms", "/presence", "/rides", "/address", "/counts", "/messages", "/wheel")


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """One shop for all tests of this file; it has to end cleanly after them."""
    terminal = Terminal(tmp_path_factory.mktemp("shop"), "wheel")
    try:
        terminal.wait_until_open()
        yield terminal
        assert terminal.press(signal.SIGINT) == 0
        assert "Traceback" not in terminal.complained + terminal.said
        assert "ERROR" not in terminal.complained
    finally:
        terminal.kill()


@pytest.fixture
def page(browser: webdriver.Chrome, terminal: Terminal) -> Iterator[Page]:
    """A new customer's pages, which complain of nothing."""
    page = Page(browser, terminal.address)
    page.go("/")
    browser.delete_all_cookies()
    browser.execute_script("sessionStorage.clear()")
    yield page
    assert page.complaints() == []


def stay(page: Page) -> None:
    """Marks the page; `stayed` tells that it was not loaded anew since."""
    page.browser.execute_script("window.never_reloaded = true")


def stayed(page: Page) -> bool:
    return bool(page.browser.execute_script("return window.never_reloaded"))


def test_the_first_page_leads_to_every_scenario(page: Page) -> None:
    links = [link.get_attribute("href") for link in page.browser.find_elements(By.CSS_SELECTOR, ".scene")]
    assert len(links) == 7
    for link in links:
        page.browser.get(str(link))
        assert page.find("h1").is_displayed()


def test_no_page_is_wider_than_a_small_phone(page: Page) -> None:
    page.browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": False}
    )
    try:
        for path in PAGES:
            page.go(path)
            for details in page.browser.find_elements(By.CSS_SELECTOR, "details"):
                details.click()
            seen, whole = page.browser.execute_script("const e = document.documentElement; return [e.clientWidth, e.scrollWidth]")
            assert seen <= 390
            assert whole == seen, path
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_room_is_released_before_the_eyes_and_another_is_kept(page: Page) -> None:
    page.go("/rooms")
    page.click("#book-Forest")
    page.click("#arrive-Forest")
    page.wait_for("You are here", "[data-live='room-Forest']", 5)
    page.click("#book-Lake")
    page.wait_for("Yours, if you come", "[data-live='room-Lake']", 5)
    stay(page)
    page.wait_for("Free", "[data-live='room-Lake']", LATE)
    assert stayed(page)
    assert "You are here" in page.words("[data-live='room-Forest']")
    news = str(page.find("[data-news]").get_property("textContent"))
    assert news.startswith("Lake")
    assert news.endswith("Free")


def test_a_part_that_is_renewed_keeps_the_keyboard_where_it_was(page: Page) -> None:
    page.go("/rooms")
    page.click("#book-Island")
    until(lambda: page.find("#leave-Island").is_displayed(), 5, "the booking")
    page.browser.execute_script("document.getElementById('leave-Island').focus()")
    # Another tab comes to the room; this one learns of it, and its button for leaving has the focus still.
    page.browser.execute_script("fetch(document.getElementById('arrive-Island').form.action, {method: 'POST'})")
    page.wait_for("You are here", "[data-live='room-Island']", 5)
    assert page.browser.switch_to.active_element.get_attribute("id") == "leave-Island"
    page.browser.switch_to.active_element.send_keys(Keys.ENTER)
    page.wait_for("Free", "[data-live='room-Island']", 5)


def test_signs_keep_one_online_until_they_end(page: Page) -> None:
    page.go("/presence")
    page.wait_for("(you)", "[data-live='online']", 5)
    stay(page)
    since = page.words(".me td:nth-child(2)")
    until(
        lambda: page.browser.execute_script(f"return performance.now() > {1000 * (SOON + 2)}"),
        SOON + 5,
        "longer than a visit without signs",
    )
    assert page.words(".me td:nth-child(2)") == since
    page.click("#signs")
    page.wait_for("(you)", "[data-live='gone']", LATE)
    assert "(you)" not in page.words("[data-live='online']")
    page.click("#signs")
    page.wait_for("(you)", "[data-live='online']", 5)
    assert stayed(page)


def test_a_visit_goes_on_from_page_to_page(page: Page) -> None:
    page.go("/presence")
    page.wait_for("(you)", "[data-live='online']", 5)
    visit = page.browser.execute_script("return sessionStorage.getItem('visit')")
    page.go("/departures")
    page.go("/presence")
    page.wait_for("(you)", "[data-live='online']", 5)
    assert page.browser.execute_script("return sessionStorage.getItem('visit')") == visit
    assert page.words("[data-live='online']").count("(you)") == 1


def test_an_unrated_ride_gets_five_stars_and_a_rated_one_keeps_its_own(page: Page) -> None:
    def rides(count: int) -> list[str]:
        """The numbers on the page, once there are so many."""
        found = [str(tile.get_attribute("data-ride")) for tile in page.browser.find_elements(By.CSS_SELECTOR, "[data-ride]")]
        return found if len(found) == count else []

    page.go("/rides")
    for count in (1, 2):
        page.click("#ride")
        until(partial(rides, count), 5, "the ride")
    rated, unrated = rides(2)
    page.click(f"#rate-{rated}-3")
    page.wait_for("Your stars", f"[data-live='ride-{rated}']", 5)
    stay(page)
    assert "Five stars in" in page.words(f"[data-live='ride-{unrated}']")
    page.wait_for("You said nothing", f"[data-live='ride-{unrated}']", LATE)
    assert stayed(page)
    assert page.find(f"[data-live='ride-{rated}'] .stars").get_attribute("aria-label") == "3 of 5 stars"


def test_an_address_takes_force_later_and_the_last_wish_alone(page: Page) -> None:
    def ask(address: str) -> None:
        page.find("#address").send_keys(address, Keys.ENTER)
        page.wait_for(address, "#address-wish", 5)

    page.go("/address")
    ask("first@new.example")
    page.click("#withdraw")
    page.wait_for("No change is on its way", "[data-live='mailbox']", 5)
    ask("second@new.example")
    ask("third@new.example")
    stay(page)
    page.wait_for("third@new.example", "#address-now", LATE)
    assert stayed(page)
    assert "No change is on its way" in page.words("[data-live='mailbox']")


def test_the_chart_grows_while_one_looks(page: Page) -> None:
    page.go("/counts")
    stay(page)

    def bars() -> int:
        return len(page.browser.find_elements(By.CSS_SELECTOR, ".chart rect"))

    before = until(bars, 10, "the first count")
    until(lambda: bars() > before, 10, "another count, without a reload")
    assert stayed(page)


def test_a_message_goes_to_all_while_an_urgent_mail_overtakes_it(page: Page) -> None:
    page.go("/messages")
    page.find("[name=recipients]").clear()
    page.find("[name=recipients]").send_keys("1500")
    page.click("#send")
    until(lambda: int(page.words("#sent").split()[0]) > 0, 10, "the first mails")
    page.click("#urgent")
    until(lambda: page.words("#waited-urgent").endswith(" s"), 10, "the urgent mail")
    sent = int(page.words("#sent").split()[0])
    assert 0 < sent < 1500
    stay(page)
    assert "sent to recipients" in page.words(".log")
    until(lambda: page.find("#all-sent").is_displayed(), 30, "all mails")
    assert stayed(page)
    assert page.words("#sent") == "1500 of 1500 sent"
    urgent, mass = (float(page.words(f"#waited-{kind}").removesuffix(" s")) for kind in ("urgent", "message"))
    assert urgent < mass


def test_a_message_can_be_stopped(page: Page) -> None:
    page.go("/messages")
    page.find("[name=recipients]").clear()
    page.find("[name=recipients]").send_keys("2000")
    page.click("#send")
    page.click("#stop")
    page.wait_for("Stopped", "[data-live='delivery']", 5)
    assert int(page.words("#sent").split()[0]) < 2000


def test_the_wheel_shows_jobs_of_several_scenarios(page: Page) -> None:
    page.go("/rides")
    page.click("#ride")
    until(lambda: page.find("[data-ride]").is_displayed(), 5, "the ride")
    page.go("/wheel")
    words = page.words("table")
    assert re.search(r"ride:\d+", words)
    assert "stats:hourly" in words
