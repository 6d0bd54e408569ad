"""`@job`: a typed function as a job, for work that needs no class of its own.

Does: make of a function the `IJob` dataclass that one would write by hand, when its module is imported. Does not: run anything, or know
stores and engines, to which such a class is one like any other.
"""

from __future__ import annotations

import copy
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

from jobwheel.errors import BadType, UsageError
from jobwheel.job import IJob, JobContext
from jobwheel.kind import CatchUp, Isolation, OnCrash, Overlap, is_marker, signature
from jobwheel.retry import Retry

P = ParamSpec("P")
R = TypeVar("R")


class ClassOptions(TypedDict, total=False):
    """The class options of `IJob`, where they are described."""

    kind: str | None
    aliases: tuple[str, ...]
    retry: Retry | None
    timeout: float | None
    priority: int | None
    max_running: int | None
    misfire_grace_time: float | None
    on_crash: OnCrash | None
    overlap: Overlap | None
    catch_up: CatchUp | None
    isolation: Isolation | None


class FunctionJob(IJob, Generic[P, R]):
    """What `@job` makes of a function: a dataclass of its data, whose `run` calls it; `function` is the function itself."""

    if TYPE_CHECKING:
        function: Callable[P, R]

        # The fields are the parameters without the context and the services, and no type can take keyword-only ones away.
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...

    def __repr__(self) -> str:
        values = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in fields(self))  # type: ignore[arg-type]
        return f"{self.jobwheel_kind.name}({values})"


class Decorator(Protocol):
    """What `job(...)` with options gives."""

    def __call__(self, function: Callable[P, R], /) -> type[FunctionJob[P, R]]: ...


@overload
def job(function: Callable[P, R], /, **options: Unpack[ClassOptions]) -> type[FunctionJob[P, R]]: ...
@overload
def job(**options: Unpack[ClassOptions]) -> Decorator: ...
def job(function: Any = None, /, **options: Any) -> Any:
    """Makes a job class of a function, for work that needs no class of its own.

        @job(kind="stats.hourly", timeout=60)
        def count_users(ctx: JobContext, day: date, *, users: UserService) -> int:
            return users.count(day)

        timer.add_job(count_users(date(2026, 12, 1)), timedelta(hours=1), key="count")
        timer.find(kind=count_users)
        assert count_users.function(ctx, date(2026, 12, 1), users=FakeUsers()) == 3    # in a test, with services by hand

    What it makes is the class that this stands for:

        @dataclass
        class count_users(IJob, kind="stats.hourly", timeout=60):
            day: date

            def run(self, ctx: JobContext, *, users: UserService) -> int:
                return users.count(self.day)

    A first parameter that is named `ctx`, or annotated `JobContext`, is given the context. The other positional parameters are the job's
    data: fields with their annotations, which are exact types, and their defaults. A default that can change, such as a list, is copied
    for each job. Keyword-only parameters are services, looked up by name when the job runs; those with a default are optional, and those
    with `Provide[...]` under `@inject` (below `@job`) are left alone. The function may be `async def`. Like a class it is found by stored
    jobs when its module was imported.

    A type checker knows `count_users.function` exactly. When a job is made it lets any arguments pass, since no type can take the services
    out of a signature; wrong ones are a TypeError at that line.

    Args:
        function: the function, where `@job` stands without parentheses: its kind is then its qualified name.
        options: the class options of `IJob`: `kind`, `aliases`, `retry`, `timeout`, and the rest.

    Raises:
        BadType, BadValue, UsageError: at the decorator: a parameter of the data has no annotation, `*args` or `**kwargs`, a generator, a
            method, a lambda; a context that is not the first; or a class option that `IJob` would refuse.
    """
    if function is None:
        return partial(_job_class, options)
    return _job_class(options, function)


def _job_class(options: dict[str, Any], function: Any) -> type[FunctionJob[..., Any]]:
    _check_function(function)
    name = function.__qualname__
    parameters = list(signature(function).parameters.values())
    context = _context(name, function, parameters)
    values = [parameter for parameter in parameters if _is_value(parameter, context)]
    for parameter in parameters:
        _check_parameter(name, parameter, context)
    namespace = {
        "__module__": function.__module__,
        "__qualname__": name,
        "__doc__": function.__doc__,
        "__annotations__": {parameter.name: _annotation(function, parameter) for parameter in values},
        "function": staticmethod(function),
        "run": _run(function, [parameter for parameter in parameters if parameter not in values], values),
        **dict(_defaults(values)),
    }
    made = types.new_class(function.__name__, (FunctionJob,), options, lambda body: body.update(namespace))
    return dataclass(repr=False)(made)


def _check_function(function: Any) -> None:
    """Raises unless it is a function that can be found again by its name."""
    if isinstance(function, str):
        raise BadType(f"@job({function!r}): give the kind by its name: @job(kind={function!r})")
    if isinstance(function, staticmethod | classmethod) or inspect.ismethod(function):
        raise BadType(
            f"@job on the method {function.__func__.__qualname__}: a job has no object to be called on; take a function, or an IJob"
        )
    name = getattr(function, "__qualname__", None)
    if not callable(function) or isinstance(function, type) or name is None or inspect.isbuiltin(function):
        raise BadType(f"@job on {function!r:.80}: it takes a function; for a class derive from jobwheel.IJob")
    if function.__name__ == "<lambda>":
        raise BadType("@job on a lambda: it has no name to be found by, and no annotations; write a def")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise BadType(f"@job on {name}, a generator: calling it would run nothing. Use def or async def without yield")


def _context(name: str, function: Any, parameters: list[inspect.Parameter]) -> inspect.Parameter | None:
    """The parameter that is given the context, if there is one."""
    found = [parameter for parameter in parameters if parameter.name == "ctx" or _names_context(function, parameter)]
    if not found:
        return None
    if found != parameters[:1] or found[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise BadType(f"@job on {name}: the context is the first parameter and the only one of its kind: def {function.__name__}(ctx, ...)")
    return found[0]


def _names_context(function: Any, parameter: inspect.Parameter) -> bool:
    annotation = _annotation(function, parameter)
    if isinstance(annotation, str):  # imported for the type checker alone
        return annotation.rpartition(".")[2] == JobContext.__name__
    return annotation is JobContext


def _is_value(parameter: inspect.Parameter, context: inspect.Parameter | None) -> bool:
    positional = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    return positional and parameter is not context and not is_marker(parameter.default)


def _check_parameter(name: str, parameter: inspect.Parameter, context: inspect.Parameter | None) -> None:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise BadType(f"@job on {name}: {parameter} has no names and types to be stored by; write each parameter out")
    if parameter.name in ("self", "cls"):
        raise BadType(f"@job on the method {name}: a job has no object to be called on; take a function of the module, or an IJob")
    if not _is_value(parameter, context):
        return
    if parameter.name in ("function", "run") or hasattr(FunctionJob, parameter.name):
        raise UsageError(f"@job on {name}: a job has a {parameter.name!r} of its own; give the parameter another name")
    if parameter.annotation is parameter.empty:
        raise BadType(
            f"@job on {name}: the parameter {parameter.name!r} has no annotation, and jobs are stored by the types of their data; "
            f"write {parameter.name}: its exact type, or put a * before it if it is a service"
        )


def _annotation(function: Any, parameter: inspect.Parameter) -> Any:
    """The type, if its names are known by now; else its text, which is looked up in the module when the first job is stored."""
    annotation = parameter.annotation
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if annotation is parameter.empty:
        return annotation
    known = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return typing.get_type_hints(types.SimpleNamespace(__annotations__={"it": annotation}), known, include_extras=True)["it"]
    except Exception:  # whatever evaluating it raises: NameError for what is defined further down
        return annotation


def _defaults(values: list[inspect.Parameter]) -> Iterator[tuple[str, Any]]:
    for parameter in values:
        default = parameter.default
        if default is not parameter.empty:
            unhashable = type(default).__hash__ is None
            yield parameter.name, field(default_factory=partial(copy.deepcopy, default)) if unhashable else default


def _run(function: Any, rest: list[inspect.Parameter], values: list[inspect.Parameter]) -> Any:
    """The `run` of the class: it is given what is not the job's data, and its signature says so."""
    in_order = [value.name for value in values if value.kind is value.POSITIONAL_ONLY]
    by_name = [value.name for value in values if value.kind is not value.POSITIONAL_ONLY]

    def run(self: Any, /, *context: Any, **services: Any) -> Any:
        data = {name: getattr(self, name) for name in by_name}
        return function(*context, *[getattr(self, name) for name in in_order], **data, **services)

    async def run_async(self: Any, /, *context: Any, **services: Any) -> Any:
        return await run(self, *context, **services)

    chosen: Any = run_async if inspect.iscoroutinefunction(function) else run
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    chosen.__signature__ = inspect.Signature([own, *rest])
    if hasattr(function, "__wrapped__"):  # by @inject, which gives it what its markers stand for
        chosen.__wrapped__ = function
    return chosen


__all__ = ["job"]
