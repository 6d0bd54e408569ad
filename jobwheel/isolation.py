"""Which kinds run in child processes, where a child finds their classes, and what it must be told before a job of them is taken.

Does: refuse at the caller's line what no child could run. Does not: start anything (`jobwheel.engines.children`). Called by `order`, which
checks jobs, and by the engines.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from jobwheel.errors import JobwheelError, UsageError
from jobwheel.kind import Kind
from jobwheel.settings import Settings


class ChildDied(JobwheelError):
    """The child process that ran the job ended before the run did: native code crashed, memory ran out, or `os._exit`.

    A failed attempt like one that raised, so `retry_on=(Exception,)` and `retry_on=(ChildDied,)` try it again. A kind with
    `on_crash="interrupt"` ends as interrupted instead, since nobody knows how far the run came.
    """


class NotReady(JobwheelError):
    """A run in a child process could not begin: no child could be started, or it could not import the job's class or the services."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a child finds a class: a module to import, or the file of the main program."""

    module: str
    path: str | None = None


def isolated(kind: Kind, engine: str) -> bool:
    """True if runs of this kind are in child processes, with `workers.engine` being `engine`."""
    isolation = kind.options.isolation
    return isolation == "process" or (isolation is None and engine == "processes")


def check_isolated(kind: Kind, settings: Settings) -> None:
    """Raises `UsageError` if no child process could ever run this isolated kind."""
    origin_of(kind)
    if kind.call.services and settings.services is None:
        names = ", ".join(map(repr, kind.call.services))
        raise UsageError(
            f"{kind.name}: its runs are in child processes, and {kind.job_class.__qualname__}.run needs {names}, which a child cannot get "
            f'from this process: set services: "module:name" (a mapping, a container, or a function that gives one), or give the kind '
            f'isolation="thread"'
        )


def origin_of(kind: Kind) -> Origin:
    """Where a child process finds the class of `kind`. Raises `UsageError` if it could not."""
    cls = kind.job_class
    module = sys.modules.get(cls.__module__)
    if "<locals>" in cls.__qualname__ and not any(value is cls for value in vars(module).values()):
        raise UsageError(
            f"{kind.name}: {cls.__qualname__} is defined inside a function, so a child process cannot import it: "
            f'move the class to the top of a module, or give it isolation="thread"'
        )
    if cls.__module__ not in {"__main__", "__mp_main__"}:  # the latter in a process of multiprocessing's
        return Origin(cls.__module__)
    spec = getattr(module, "__spec__", None)
    if spec is not None and spec.name:  # python -m
        return Origin(spec.name)
    path = getattr(module, "__file__", None)
    if path is not None and os.path.isfile(path):
        return Origin("__main__", os.path.abspath(path))
    raise UsageError(
        f"{kind.name}: {cls.__qualname__} is defined in a notebook, an interactive session or a text given to python, so a child process "
        f'cannot import it: move the class to a module, or give it isolation="thread"'
    )


class _Here:
    """What this process is. Written by its first thread alone."""

    child = False
    importing_main = False


def be_child() -> None:
    """From now on this process is one that an engine started to run single jobs."""
    _Here.child = True


@contextmanager
def importing_main() -> Iterator[None]:
    """Around the import of the main program in a child."""
    _Here.importing_main = True
    try:
        yield
    finally:
        _Here.importing_main = False


def may_start() -> bool:
    """False in a child, where a timer that an imported module makes and starts only adds: its jobs would run where they may be killed.

    Raises:
        UsageError: it is the main program, imported for a class in it, that starts the timer again.
    """
    if _Here.importing_main:
        raise UsageError(
            "the main program starts a timer while a child process imports it for a job class: put what starts the program under "
            'if __name__ == "__main__":, or move the class to a module of its own'
        )
    return not _Here.child
