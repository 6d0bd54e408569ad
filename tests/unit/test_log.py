"""Logging cannot break the thread that logs, whatever an application's handlers raise."""

import logging
import threading
from collections.abc import Iterator

import pytest

from jobwheel.log import logger

log = logger("jobwheel.test_log")


class Broken(logging.Handler):
    """Raises what it is told to."""

    error: BaseException = ValueError("handler")

    def emit(self, record: logging.LogRecord) -> None:
        raise self.error


@pytest.fixture
def broken() -> Iterator[Broken]:
    handler = Broken()
    logging.getLogger("jobwheel.test_log").addHandler(handler)
    yield handler
    logging.getLogger("jobwheel.test_log").removeHandler(handler)


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_thread_survives_whatever_a_handler_raises(broken: Broken, error: type[BaseException]) -> None:
    broken.error = error("of the handler")
    survived = threading.Event()

    def live() -> None:
        try:
            raise RuntimeError("what is told")
        except RuntimeError:
            log.exception("told")
        log.error("%d", 1)
        survived.set()

    thread = threading.Thread(target=live)
    thread.start()
    thread.join()
    assert survived.is_set()


def test_in_the_main_thread_an_error_of_a_handler_is_swallowed_too(broken: Broken) -> None:
    log.warning("told")


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_a_signal_raises_in_the_main_thread_passes(broken: Broken, error: type[BaseException]) -> None:
    """A Ctrl-C or a SIGTERM that comes in the middle of a log line must end the program all the same."""
    broken.error = error()
    with pytest.raises(error):
        log.warning("told")


def test_the_line_that_logs_is_the_callers(caplog: pytest.LogCaptureFixture) -> None:
    log.warning("told %s", "here")
    (record,) = caplog.records
    assert (record.getMessage(), record.funcName) == ("told here", "test_the_line_that_logs_is_the_callers")
