"""The shop as a person meets it: started from the terminal, used in a real browser, ended by Ctrl-C. Once on each waiting room."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest
from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
PAY_WITHIN = 6
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync --window-size=1100,900"
)


def until(look: Callable[[], T], seconds: float, what: str) -> T:
    """What `look` gives once it is truthy; fails the test with `what` when that takes longer than `seconds`.

    An element that is not there (yet, or any more: pages load, and parts of them are renewed) is not truthy.
    """
    deadline = time.monotonic() + seconds
    while True:
        with suppress(StaleElementReferenceException, NoSuchElementException):
            if seen := look():
                return seen
        if time.monotonic() > deadline:
            pytest.fail(f"not seen within {seconds} s: {what}")
        time.sleep(0.05)


class Terminal:
    """`python -m web_example` as somebody types it, and what it writes."""

    def __init__(self, folder: Path, backend: str) -> None:
        demo = (ROOT / "config" / "demo.yml").read_text(encoding="utf-8")
        config = folder / "shop.yml"
        config.write_text(demo.replace("pay_within: 20", f"pay_within: {PAY_WITHIN}"), encoding="utf-8")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        self._said, self._complained = folder / "stdout", folder / "stderr"
        env = os.environ | {"PORT": port, "JOBWHEEL_CONFIG": str(config), "JOBWHEEL_BACKEND": backend, "PYTHONPATH": str(ROOT)}
        with self._said.open("wb") as stdout, self._complained.open("wb") as stderr:
            # The folder is the working directory: the database's relative path must not meet that of a shop started by hand.
            self.process = subprocess.Popen([sys.executable, "-m", "web_example"], cwd=folder, env=env, stdout=stdout, stderr=stderr)
        self.address = f"http://127.0.0.1:{port}"

    def wait_until_open(self) -> None:
        """Returns when the terminal says where to look."""
        until(self._says_where, 20, "the address on the terminal")

    def _says_where(self) -> bool:
        assert self.process.poll() is None, self.complained
        return f" {self.address}\n" in self.said

    @property
    def said(self) -> str:
        return self._said.read_text(encoding="utf-8")

    @property
    def complained(self) -> str:
        return self._complained.read_text(encoding="utf-8")

    def press(self, signal_number: signal.Signals) -> int:
        """Sends the signal, gives back the exit code."""
        self.process.send_signal(signal_number)
        return self.process.wait(timeout=15)

    def kill(self) -> None:
        """Ends it without a good-bye, if it still runs."""
        self.process.kill()
        self.process.wait(timeout=15)


@pytest.fixture(params=["wheel", "apscheduler"])
def terminal(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path, request.param)
    try:
        terminal.wait_until_open()
        yield terminal
    finally:
        terminal.kill()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        missing = "chromium and chromedriver are needed: apt-get install chromium chromium-driver"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    home = tmp_path_factory.mktemp("browser")
    env = (
        os.environ | dict.fromkeys(("HOME", "TMPDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), str(home)) | {"no_proxy": "127.0.0.1,localhost"}
    )
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS.split(), f"--user-data-dir={home / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver, env=env))
    yield chrome
    chrome.quit()


class Page:
    """What a customer sees and does on the shop's pages."""

    def __init__(self, browser: webdriver.Chrome, address: str) -> None:
        self.browser = browser
        self.address = address
        # The page of the last test still asks a shop that has ended; what it complains of is none of this test's business.
        browser.get("about:blank")
        self.complaints()

    def complaints(self) -> list[str]:
        """What scripts and requests complained of since the last call."""
        entries = self.browser.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]

    def order(self) -> str:
        """Takes the first train, any seat; gives back the order's number, on the page of orders."""
        self.browser.get(self.address)
        self.click(".departure")
        until(lambda: "/departures/" in self.browser.current_url, 5, "the plan of the coach")
        self.click(".booking .primary")
        until(lambda: self.browser.current_url.endswith("/orders"), 5, "the page of orders")
        return until(lambda: self.find(".ticket").get_attribute("data-order"), 5, "the order's card") or ""

    def find(self, selector: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def click(self, selector: str) -> None:
        """Clicks what is there at this moment."""
        until(lambda: self.find(selector).click() is None, 5, f"{selector} to be clicked")

    def state(self, number: str) -> str:
        """The words that stand on the order's card."""
        return until(lambda: self.find(f"#order-{number} .ticket-state").text, 5, "the order's state")

    def left(self, number: str) -> int:
        """The seconds that its countdown shows."""
        minutes, _, seconds = until(lambda: self.find(f"#order-{number} .countdown").text, 5, "the countdown").partition(":")
        return int(minutes) * 60 + int(seconds)

    def pay(self, number: str) -> None:
        self.click(f"#order-{number} form[action$='/pay'] button")
        until(lambda: "Paid" in self.state(number), 5, "the order is paid")


def test_one_order_expires_before_the_eyes_and_another_is_paid(terminal: Terminal, browser: webdriver.Chrome) -> None:
    page = Page(browser, terminal.address)
    unpaid = page.order()
    paid = page.order()
    page.pay(paid)

    browser.execute_script("window.never_reloaded = true")
    first = page.left(unpaid)
    assert 0 < first <= PAY_WITHIN
    bar = float(str(page.find(f"#order-{unpaid} progress").get_property("value")))
    until(lambda: page.left(unpaid) < first, 3, "the countdown goes on")
    assert float(str(page.find(f"#order-{unpaid} progress").get_property("value"))) < bar
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
