"""What a job class declares about itself: its stable name, its options, and how its `run` wants to be called.

`IJob.__init_subclass__` makes a `Kind` for each class and registers it here; stores look kinds up by name, so that only
what code registered can ever be made from stored data. Nothing here runs a job.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from jobwheel.errors import BadType, BadValue, UsageError
from jobwheel.retry import Retry

if TYPE_CHECKING:
    from jobwheel.job import IJob

if sys.version_info >= (3, 14):
    from annotationlib import Format

    signature = partial(inspect.signature, annotation_format=Format.FORWARDREF)
else:
    signature = inspect.signature
"""That of a function, whose annotations may name what is not there when the program runs."""

OnCrash = Literal["rerun", "interrupt"]
Overlap = Literal["skip", "queue", "parallel"]
CatchUp = Literal["coalesce", "skip"] | int
Isolation = Literal["thread", "process"]


@dataclass(frozen=True, slots=True)
class Call:
    """How `run` wants to be called: with a context or not, with which services, as a coroutine or not."""

    wants_context: bool
    services: tuple[str, ...]
    optional: tuple[str, ...]
    """Services with a default: left out when the container has none of that name."""
    is_async: bool
    is_plain: bool = field(init=False)
    """Nothing to look up and nothing to await."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_plain", not (self.services or self.optional or self.is_async))


ONE_ATTEMPT = Retry()
PRIORITIES = range(-100, 101)
"""Each has a lane of its own, which every worker passes on its way to the next job."""


def check_priority(priority: object) -> None:
    """Raises `BadType` or `BadValue` unless it is a whole number from -100 to 100."""
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise BadType(f"priority={priority!r}: a whole number; larger runs first, 0 is the default")
    if priority not in PRIORITIES:
        raise BadValue(f"priority={priority!r}: from {PRIORITIES[0]} to {PRIORITIES[-1]}; larger runs first, 0 is the default")


@dataclass(frozen=True, slots=True)
class Options:
    """The keywords of the class statement. A subclass inherits those it does not give."""

    retry: Retry = ONE_ATTEMPT
    timeout: float | None = None
    priority: int = 0
    max_running: int | None = None
    misfire_grace_time: float | None = None
    on_crash: OnCrash = "rerun"
    overlap: Overlap = "skip"
    catch_up: CatchUp = "coalesce"
    isolation: Isolation | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.retry, Retry):
            raise BadType(f"retry={self.retry!r}: give a jobwheel.Retry, for example Retry(attempts=3, backoff=2)")
        check_priority(self.priority)
        for name in ("timeout", "misfire_grace_time"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise BadType(f"{name}={value!r}: seconds as a number, or None for no limit")
            if value is not None and not (0 < value < math.inf):
                raise BadValue(f"{name}={value!r}: it must be finite and more than 0; None means no limit")
        if self.max_running is not None and (isinstance(self.max_running, bool) or not isinstance(self.max_running, int)):
            raise BadType(f"max_running={self.max_running!r}: a whole number, or None for no limit")
        if self.max_running is not None and self.max_running < 1:
            raise BadValue(f"max_running={self.max_running!r}: at least 1; None means no limit")
        self._check_words()

    def _check_words(self) -> None:
        if self.on_crash not in ("rerun", "interrupt"):
            raise BadValue(f"on_crash={self.on_crash!r}: 'rerun' (at least once) or 'interrupt' (at most once)")
        if self.overlap not in ("skip", "queue", "parallel"):
            raise BadValue(f"overlap={self.overlap!r}: 'skip', 'queue' or 'parallel'")
        if self.catch_up not in ("coalesce", "skip") and (type(self.catch_up) is not int or self.catch_up < 1):
            raise BadValue(
                f"catch_up={self.catch_up!r}: 'coalesce' (one run), 'skip' (none), or how many missed runs to make up for at most"
            )
        if self.isolation not in (None, "thread", "process"):
            raise BadValue(f"isolation={self.isolation!r}: 'thread' or 'process'; None: as the engine does")


@dataclass(frozen=True, slots=True)
class Kind:
    """One registered job class."""

    name: str
    aliases: tuple[str, ...]
    job_class: type[IJob]
    options: Options
    call: Call
    is_free: bool = field(init=False)
    """Its rows may be claimed without a look at `max_running` or at how late they are."""

    is_quick: bool = field(init=False)
    """A worker may run it without more ado: no time limit to watch, no coroutine, no process of its own."""

    def __post_init__(self) -> None:
        options = self.options
        punctual = options.misfire_grace_time is not None or options.catch_up == "skip"
        object.__setattr__(self, "is_free", options.max_running is None and not punctual)
        object.__setattr__(self, "is_quick", options.timeout is None and not self.call.is_async and options.isolation is None)


_registry: dict[str, Kind] = {}
"""Names and aliases to kinds. Written by class statements only; one atomic assignment each."""


def find_kind(name: str) -> Kind | None:
    """The kind registered under this name or alias in this process; None if no code registered it."""
    return _registry.get(name)


def unknown_kind(name: str) -> Kind:
    """Stands for a kind that no code in this process registered, where a job of it is only told of."""
    return Kind(name, (), _Unknown, Options(), _NOTHING)  # type: ignore[arg-type]


class _Unknown:
    """The class of jobs of unknown kinds: there are none."""


_NOTHING = Call(wants_context=False, services=(), optional=(), is_async=False)


def registered_kinds() -> list[Kind]:
    """Every kind of this process once, in order of definition."""
    return list(dict.fromkeys(_registry.values()))


def register(kind: Kind) -> None:
    """Makes `kind` findable by its name and aliases.

    The same module and qualified name is the same class defined again (a reload, a notebook cell, `@dataclass(slots=True)`)
    and replaces the old one.

    Raises:
        UsageError: another class holds one of the names; the message names both.
    """
    for name in (kind.name, *kind.aliases):
        other = _registry.get(name)
        if other is not None and _path(other.job_class) != _path(kind.job_class):
            raise UsageError(
                f"two job classes claim the kind {name!r}: {_path(other.job_class)} and {_path(kind.job_class)}; "
                f"give one of them another name with kind=... in its class statement"
            )
    for name in (kind.name, *kind.aliases):
        _registry[name] = kind


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def read_call(run: Callable[..., Any], owner: str) -> Call:
    """How the function `run` of the class `owner` wants to be called, read from its signature.

    Raises:
        BadType: a generator, which would never be run to its end, or parameters that nobody could fill.
    """
    if inspect.isgeneratorfunction(run) or inspect.isasyncgenfunction(run):
        raise BadType(f"{owner}.run is a generator: calling it would run nothing. Use def or async def without yield")
    parameters = list(signature(run).parameters.values())[1:]
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and not is_marker(p.default)]
    if len(positional) > 1:
        names = ", ".join(p.name for p in positional[1:])
        raise BadType(f"{owner}.run({names}): only the context may be positional; put a * before the services: run(self, ctx, *, {names})")
    services = [p for p in parameters if p.kind is p.KEYWORD_ONLY and not is_marker(p.default)]
    if any(is_marker(p.default) for p in parameters) and not hasattr(run, "__wrapped__"):
        raise UsageError(f"{owner}.run has Provide[...] defaults but no @inject: it would get the markers instead of the services")
    return Call(
        wants_context=bool(positional),
        services=tuple(p.name for p in services if p.default is p.empty),
        optional=tuple(p.name for p in services if p.default is not p.empty),
        is_async=inspect.iscoroutinefunction(run),
    )


def is_marker(default: object) -> bool:
    # dependency-injector's Provide[...] and Closing[...]; told by their module, since this room must not import it.
    return type(default).__module__.startswith("dependency_injector")
