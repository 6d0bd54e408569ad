"""One process of `jobwheel worker`: a started timer, until it is told to end. `jobwheel.supervisor` starts it and tells it.

Does: open the timer of the files with the services that they name, tell when it runs or why it cannot, drain and end at SIGTERM, or when
its supervisor is gone. Does not: heed other signals, which are the supervisor's affair. Its standard streams are those of the supervisor.

Logging: as the application sets it up; if it does not, warnings and worse to stderr, and jobwheel's own news.
"""

import faulthandler
import json
import logging
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from types import FrameType

import msgspec

from jobwheel.errors import JobwheelError, SettingsError, UsageError
from jobwheel.opening import import_from_here, open_timer
from jobwheel.settings import load
from jobwheel.timer import TimerManager

FORMAT = "%(asctime)s %(levelname)s %(name)s[%(process)d]: %(message)s"
LAST = 5.0
"""Seconds past the time for running jobs after which the process is ended by force: a thread or an `atexit` function hangs."""


class Order(msgspec.Struct):
    """What the supervisor wants, as JSON on the command line."""

    files: list[str]
    threads: int | None
    timeout: float
    link: int
    """The number of the file that leads to the supervisor: it ends when the supervisor does, and bears one `Word`."""


class Word(msgspec.Struct):
    """To the supervisor: it runs, or why it does not. `final`: it would say the same if it were started again."""

    runs: bool
    why: str = ""
    final: bool = False


def main(order: Order) -> int:
    """The life of the process; gives its exit code."""
    link = socket.socket(fileno=order.link)
    bell, ring = os.pipe()
    os.set_blocking(ring, False)

    def end(_: int, __: FrameType | None) -> None:
        with suppress(BlockingIOError):
            os.write(ring, b".")

    def pass_by(_: int, __: FrameType | None) -> None:
        """A handler and not SIG_IGN, which the programs that a job starts would inherit."""

    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_by)
    signal.signal(signal.SIGTERM, end)
    try:
        timer = _timer(order)
        logging.basicConfig(format=FORMAT)  # does nothing where the application has set logging up
        timer.start()
    except JobwheelError as error:
        _tell(link, Word(False, str(error), _is_final(error)))
        return 1
    except Exception as error:
        _tell(link, Word(False, f"{type(error).__name__}: {error}"))
        raise
    signal.signal(signal.SIGTERM, end)  # whatever the application's modules have put there
    if logging.getLogger("jobwheel").level == logging.NOTSET:
        logging.getLogger("jobwheel").setLevel(logging.INFO)
    _tell(link, Word(True))
    poll = select.poll()
    for file in (link.fileno(), bell):
        poll.register(file, select.POLLIN)
    poll.poll()
    faulthandler.dump_traceback_later(order.timeout + LAST, exit=True, file=2)
    timer.shutdown(order.timeout)
    return 0


def _is_final(error: JobwheelError) -> bool:
    """False where the application's own code, such as the services', raised what may pass: its database is not up yet, say."""
    passing = error.__cause__ is not None and not isinstance(error.__cause__, ImportError | AttributeError | NameError | TypeError)
    return isinstance(error, SettingsError | UsageError) and not passing


def _timer(order: Order) -> TimerManager:
    import_from_here()
    settings = load(*order.files)
    if order.threads is not None:
        settings = replace(settings, workers=replace(settings.workers, threads=order.threads))
    # Running jobs have had their time when the process comes to its end.
    return open_timer(replace(settings, exit_timeout=0.0))


def _tell(link: socket.socket, word: Word) -> None:
    with suppress(OSError):  # the supervisor is gone
        link.sendall(json.dumps(msgspec.to_builtins(word)).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(msgspec.json.decode(sys.argv[1], type=Order)))
