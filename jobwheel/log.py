"""The loggers of jobwheel: ordinary ones under "jobwheel", but nothing that logging does can break the thread that logs."""

import logging
from collections.abc import Mapping
from typing import Any


class Log(logging.LoggerAdapter[logging.Logger]):
    """Swallows what an application's filter or handler raises: a ticker or a worker must not die of it."""

    def log(self, level: int, msg: object, *args: Any, exc_info: Any = None, **kwargs: Any) -> None:
        """As `logging.Logger.log`, but it never raises."""
        try:
            extra: Mapping[str, Any] = {"stacklevel": 2, **kwargs}
            super().log(level, msg, *args, exc_info=exc_info, **extra)
        except Exception:  # noqa: S110 (there is nowhere to tell it: telling is what failed)
            pass


def logger(name: str) -> Log:
    """The logger of that name under "jobwheel"."""
    return Log(logging.getLogger(name), {})
