"""The shop as a person meets it: started from the terminal, used in a real browser, ended by Ctrl-C. Once on each waiting room."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from shop_browser import PAY_WITHIN, Page, Terminal, until


@pytest.fixture(params=["wheel", "apscheduler"])
def terminal(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path, request.param)
    try:
        terminal.wait_until_open()
        yield terminal
    finally:
        terminal.kill()


def test_one_order_expires_before_the_eyes_and_another_is_paid(terminal: Terminal, browser: webdriver.Chrome) -> None:
    page = Page(browser, terminal.address)
    unpaid = page.order()
    paid = page.order()
    page.pay(paid)

    browser.execute_script("window.never_reloaded = true")
    first = page.left(unpaid)
    assert 0 < first <= PAY_WITHIN
    bar = page.bar(unpaid)
    until(lambda: page.left(unpaid) < first and page.bar(unpaid) < bar, 3, "the countdown goes on")
    until(lambda: "Not paid in time" in page.state(unpaid), PAY_WITHIN + 3, "the order expires without a reload")
    assert not page.find(f"#order-{unpaid} form").is_displayed()
    assert browser.execute_script("return window.never_reloaded")

    # The paid one's time is over too by now, or in a moment; a third order's expiry proves that the wheel went past it.
    third = page.order()
    until(lambda: "Not paid in time" in page.state(third), PAY_WITHIN + 3, "the third order expires")
    assert "Paid" in page.state(paid)
    assert page.complaints() == []

    assert terminal.press(signal.SIGINT) == 0
    assert "Traceback" not in terminal.complained + terminal.said
    assert "ERROR" not in terminal.complained


def test_the_wheel_page_shows_what_waits_and_lets_go_of_what_is_paid(terminal: Terminal, browser: webdriver.Chrome) -> None:
    page = Page(browser, terminal.address)
    number = page.order()
    browser.get(f"{terminal.address}/wheel")
    assert f"order:{number}" in page.find("table").text
    until(lambda: f"order:{number}" not in page.find("table").text, PAY_WITHIN + 5, "the ended job leaves the list without a reload")
    browser.back()
    until(lambda: "Not paid in time" in page.state(number), 5, "the order has expired")
    assert terminal.press(signal.SIGTERM) == 0
    assert "Traceback" not in terminal.complained


def test_a_restart_ends_what_was_left_unpaid(browser: webdriver.Chrome, tmp_path: Path) -> None:
    before = Terminal(tmp_path, "wheel")
    try:
        before.wait_until_open()
        page = Page(browser, before.address)
        number = page.order()
    finally:
        before.kill()
    after = Terminal(tmp_path, "wheel")
    try:
        after.wait_until_open()
        browser.get(f"{after.address}/orders")
        until(lambda: "Not paid in time" in page.state(number), PAY_WITHIN + 5, "the new process ends the order of the old one")
        assert after.press(signal.SIGINT) == 0
    finally:
        after.kill()
