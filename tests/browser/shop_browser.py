"""What the browser tests share: the shop started from a terminal, and its pages as a person sees and uses them."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest
from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
PAY_WITHIN = 6
SOON = 5
"""Seconds after which what waits in the other scenarios happens."""
TIMES = {
    "pay_within: 20": f"pay_within: {PAY_WITHIN}", "hold_room: 20": f"hold_room: {SOON}", "offline_after: 9": f"offline_after: {SOON}",
    "stars_after: 20": f"stars_after: {SOON}", "change_after: 20": f"change_after: {SOON}", '"*/10 * * * * *"': '"*/2 * * * * *"',
}  # fmt: skip


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
        for there, here in TIMES.items():
            assert there in demo
            demo = demo.replace(there, here)
        config.write_text(demo, encoding="utf-8")
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
        self.browser.get(f"{self.address}/departures")
        self.click(".departure")
        until(lambda: "/departures/" in self.browser.current_url, 5, "the plan of the coach")
        self.click(".booking .primary")
        until(lambda: self.browser.current_url.endswith("/orders"), 5, "the page of orders")
        return until(lambda: self.find(".ticket").get_attribute("data-order"), 5, "the order's card") or ""

    def go(self, path: str) -> None:
        self.browser.get(self.address + path)

    def words(self, selector: str) -> str:
        """What stands there now."""
        return until(lambda: self.find(selector).text, 5, f"words in {selector}")

    def wait_for(self, words: str, selector: str, seconds: float) -> None:
        """Returns when the words stand there, without a reload."""
        until(lambda: words in self.find(selector).text, seconds, f"{words!r} in {selector}")

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

    def bar(self, number: str) -> float:
        """The same as its bar shows it."""
        return float(str(self.find(f"#order-{number} progress").get_property("value")))

    def pay(self, number: str) -> None:
        self.click(f"#order-{number} form[action$='/pay'] button")
        until(lambda: "Paid" in self.state(number), 5, "the order is paid")
