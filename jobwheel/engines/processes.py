"""The process engine: the thread engine, whose workers have each run done in a child process. See `threads` and `isolated`."""

from typing import ClassVar

from jobwheel.engines.threads import ThreadEngine


class ProcessEngine(ThreadEngine):
    """Each run is in a child process, but of kinds that say `isolation="thread"`. A coroutine job, too, takes a worker and a child."""

    word: ClassVar[str] = "processes"
