"""The loggers of jobwheel: ordinary ones under "jobwheel", but nothing that logging does can break the thread that logs."""

import logging
import threading
from collections.abc import Mapping
from typing import Any


class Log(logging.LoggerAdapter[logging.Logger]):
    """Swallows what an application's filter or handler raises: a ticker or a worker must not die of it.

    In the main thread what is no `Exception` passes: there it may come from a signal, such as Ctrl-C, that has nothing to do with logging.
    """

    def log(self, level: int, msg: object, *args: Any, exc_info: Any = None, **kwargs: Any) -> None:
        """As `logging.Logger.log`, but it raises nothing of its handlers."""
        try:
            extra: Mapping[str, Any] = {"stacklevel": 2, **kwargs}
            super().log(level, msg, *args, exc_info=exc_info, **extra)
        except BaseException as error:  # there is nowhere to tell it: telling is what failed
            if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
                raise


def logger(name: str) -> Log:
    """The logger of that name under "jobwheel"."""
    return Log(logging.getLogger(name), {})
