"""Where a job's services come from: one face over a mapping and over a dependency-injection container.

Does: look a name up at the moment it is asked for, so that an override in a test, or a changed container, is seen by the next run.
Does not: keep what it gave, import a container library, or read a job's signature. Called by `TimerManager` at start and by the
runner in each attempt.
"""

import asyncio
import difflib
import inspect
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from jobwheel.errors import BadType, UsageError


class Services:
    """Services by name, out of a mapping whose values are the services themselves: given as they are, never called.

    Each call looks at the mapping anew.
    """

    __slots__ = ("_source",)

    def __init__(self, source: Any) -> None:
        self._source = source

    def _entries(self) -> Mapping[str, Any]:
        entries: Mapping[str, Any] = self._source
        return entries

    def names(self) -> frozenset[str]:
        """The names that `get` knows at this moment."""
        return frozenset(self._entries())

    def missing(self, names: Iterable[str]) -> list[str]:
        """Those of `names` that are not there, sorted. Makes no service."""
        return sorted(set(names).difference(self._entries()))

    def get(self, name: str) -> object:
        """The service `name`. Raises `UsageError` when there is none."""
        entries = self._entries()
        try:
            return entries[name]
        except KeyError:
            known = sorted(map(str, entries))
        near = difflib.get_close_matches(name, known, 1)
        there = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known) or 'none'}"
        raise UsageError(f"no service is called {name!r}, so the job that asks for it cannot run; {there}")


class ContainedServices(Services):
    """Services of a container: `container.providers` is a mapping of names to callables, and each `get` calls one."""

    __slots__ = ()

    def _entries(self) -> Mapping[str, Any]:
        entries: Mapping[str, Any] = self._source.providers
        return entries

    def get(self, name: str) -> object:
        """What the provider `name` gives now. Raises `UsageError` when there is none, or when it gives something to await."""
        provider: Any = super().get(name)
        try:
            service: object = provider()
        except RuntimeError as error:
            # What an asynchronous Resource does in a thread without an event loop, which is where jobs run.
            if "event loop" in str(error):
                raise UsageError(_asynchronous(name)) from error
            raise
        # Narrower than `inspect.isawaitable`: a finished pool or client may define `__await__` and is a service all the same.
        if asyncio.isfuture(service) or inspect.iscoroutine(service):
            if inspect.iscoroutine(service):
                service.close()
            raise UsageError(_asynchronous(name))
        return service


def _asynchronous(name: str) -> str:
    return (
        f"the provider of the service {name!r} is asynchronous: it gives something to await, and a job's services are taken in a "
        "plain thread. Offer a provider that gives the finished object, or let the job's own `async def run` open what it needs"
    )


def as_services(source: object) -> Services:
    """The services of `source`: None (no services), a mapping of names to objects, or an object whose `.providers` is a mapping of
    names to callables (a dependency-injector container, declared or dynamic). What is `Services` already is given back.

    Raises:
        BadType: anything else.
    """
    if source is None:
        return Services(MappingProxyType({}))
    if isinstance(source, Services):
        return source
    if isinstance(source, Mapping):
        return Services(source)
    if isinstance(getattr(source, "providers", None), Mapping):
        return ContainedServices(source)
    raise BadType(
        f"services: a {type(source).__name__} offers no services by name; give a mapping {{'orders': order_service}}, "
        "an object with `.providers` (a dependency-injector container), or None"
    )
