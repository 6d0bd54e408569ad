"""`@job`: a function as a job class, with the data, services and options that a class of its own would have."""

import asyncio
import importlib
import inspect
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from datetime import date, timedelta
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from dependency_injector import containers, providers
from dependency_injector.wiring import Provide, inject

import jobwheel
from jobwheel import IJob, JobContext, Retry, State, codec, every, job
from jobwheel import kind as kinds
from jobwheel.errors import BadType, BadValue, UsageError
from jobwheel.function import ClassOptions, FunctionJob

DAY = date(2026, 12, 1)
pytestmark = pytest.mark.usefixtures("own_kinds")


class Users:
    """A service."""

    def __init__(self, count: int = 7) -> None:
        self.days: list[date] = []
        self._count = count

    def count(self, day: date) -> int:
        self.days.append(day)
        return self._count


class Unit(Enum):
    HOUR = "hour"
    DAY = "day"


@dataclass
class Span:
    length: int
    unit: Unit = Unit.DAY


@job(kind="test_function.count_users", timeout=60, retry=Retry(attempts=2), aliases=("test_function.old",))
def count_users(ctx: JobContext, day: date, span: Span = Span(1), *, users: Users) -> int:  # noqa: B008 (a value, never changed)
    """Counts them."""
    ctx.log(f"{day} {span.length} {span.unit.value}")
    return users.count(day)


@job
def nothing() -> None:
    pass


@job
async def later(day: date, *, users: Users) -> int:
    await asyncio.sleep(0)
    return users.count(day)


# --- what it makes ---


def test_it_makes_a_job_class_whose_fields_are_the_data() -> None:
    made = count_users(DAY)
    assert isinstance(made, IJob)
    assert (made.day, made.span) == (DAY, Span(1))
    assert str(inspect.signature(count_users)).startswith("(day: datetime.date, span: ")
    assert made == count_users(day=DAY)
    assert made != count_users(DAY, Span(2))


def test_the_class_is_named_and_documented_as_the_function_is() -> None:
    assert count_users.__module__ == __name__
    assert count_users.__qualname__ == count_users.__name__ == "count_users"
    assert count_users.__doc__ == "Counts them."


def test_class_options_are_those_of_an_ijob() -> None:
    kind = count_users.jobwheel_kind
    assert (kind.name, kind.aliases) == ("test_function.count_users", ("test_function.old",))
    assert (kind.options.timeout, kind.options.retry) == (60, Retry(attempts=2))
    assert kind.call.wants_context
    assert kind.call.services == ("users",)


def test_it_takes_exactly_the_class_options_that_there_are() -> None:
    parameters = inspect.signature(IJob.__init_subclass__).parameters.values()
    assert list(ClassOptions.__annotations__) == [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]


def test_without_parentheses_the_kind_is_the_qualified_name() -> None:
    assert nothing.jobwheel_kind.name == "nothing"

    @job
    def inner() -> None: ...

    assert inner.jobwheel_kind.name == "test_without_parentheses_the_kind_is_the_qualified_name.<locals>.inner"


def test_a_job_is_shown_by_its_kind_and_its_fields() -> None:
    assert repr(count_users(DAY, Span(2))) == (
        "test_function.count_users(day=datetime.date(2026, 12, 1), span=Span(length=2, unit=<Unit.DAY: 'day'>))"
    )
    assert repr(nothing()) == "nothing()"


def test_the_function_is_there_to_be_called_with_services_by_hand() -> None:
    lines: list[str] = []

    class Context:
        def log(self, text: str) -> None:
            lines.append(text)

    context: Any = Context()
    assert count_users.function(context, DAY, users=Users(3)) == 3
    assert count_users(DAY).function is count_users.function
    assert lines == ["2026-12-01 1 day"]


def test_wrong_arguments_are_an_error_at_the_line_that_makes_the_job() -> None:
    with pytest.raises(TypeError, match="day"):
        count_users()
    with pytest.raises(TypeError, match="users"):
        count_users(DAY, users=Users())


def test_a_default_that_can_change_is_each_jobs_own() -> None:
    @job
    def send(to: list[str] = [], flags: dict[str, int] = {"a": 1}) -> None: ...  # noqa: B006

    one, other = send(), send()
    one.to.append("x")
    one.flags["b"] = 2
    assert (other.to, other.flags) == ([], {"a": 1})
    assert send().to == []


def test_positional_only_parameters_are_data_too(manual: Any) -> None:
    @job
    def add(ctx: JobContext, one: int, two: int = 2, /, three: int = 3) -> list[int]:
        return [ctx.attempt, one, two, three]

    timer, clock = manual()
    id = timer.add_job(add(10, three=30)).id
    clock.advance(0)
    assert timer.get(id).result == [1, 10, 2, 30]


# --- the context ---


def with_ctx(ctx, day: date = DAY):  # type: ignore[no-untyped-def]
    return ctx


def with_annotation(context: JobContext, day: date = DAY) -> JobContext:
    return context


def with_text(context: "jobwheel.JobContext", day: date = DAY) -> object:
    return context


def with_a_name_of_the_checker_alone(context: "TheirJobContext", day: date = DAY) -> object:  # type: ignore[name-defined]  # noqa: F821
    return context


def without(day: date = DAY) -> object:
    return None


@pytest.mark.parametrize(
    ("function", "wants"),
    [(with_ctx, True), (with_annotation, True), (with_text, True), (with_a_name_of_the_checker_alone, False), (without, False)],
)
def test_the_first_parameter_is_the_context_by_its_name_or_by_its_annotation(function: Any, wants: bool) -> None:
    made = job(function)
    assert made.jobwheel_kind.call.wants_context is wants
    assert [name for name in inspect.signature(made).parameters if name != "context"] == ["day"]


def test_an_annotation_that_is_there_for_the_type_checker_alone_names_the_context_all_the_same() -> None:
    def function(context: "theirs.JobContext", day: date = DAY) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert job(function).jobwheel_kind.call.wants_context


def second(day: date, ctx: JobContext) -> None: ...
def twice(ctx: JobContext, other: JobContext) -> None: ...
def by_keyword(*, ctx: JobContext) -> None: ...


@pytest.mark.parametrize("function", [second, twice, by_keyword])
def test_a_context_that_is_not_the_first_is_refused(function: Any) -> None:
    with pytest.raises(BadType, match=r"the context is the first parameter and the only one"):
        job(function)


# --- runs ---


def test_it_runs_with_its_services_and_its_context(manual: Any) -> None:
    users = Users()
    timer, clock = manual(services={"users": users})
    timer.add_job(count_users(DAY), 5, key="count")
    clock.advance(5)
    ended = timer.get("count")
    assert (ended.state, ended.result, ended.kind, ended.log) == (State.SUCCEEDED, 7, "test_function.count_users", ("2026-12-01 1 day",))
    assert users.days == [DAY]


def test_a_coroutine_function_is_awaited(manual: Any, opened: Any) -> None:
    assert later.jobwheel_kind.call.is_async
    timer, clock = manual(services={"users": Users(4)})
    id = timer.add_job(later(DAY)).id
    clock.advance(0)
    assert timer.get(id).result == 4
    threaded = opened(services={"users": Users(5)}, workers={"threads": 1})
    assert threaded.wait(threaded.add_job(later(DAY)), 10).result == 5


def test_a_missing_service_is_told_when_the_job_is_added(manual: Any) -> None:
    timer, _ = manual()
    with pytest.raises(UsageError, match="users"):
        timer.add_job(count_users(DAY))


def test_a_service_with_a_default_is_optional(manual: Any) -> None:
    @job
    def optional(*, users: Users | None = None, limit: int = 3) -> list[Any]:
        return [users is not None, limit]

    timer, clock = manual(services={"users": Users()})
    id = timer.add_job(optional()).id
    clock.advance(0)
    assert timer.get(id).result == [True, 3]


def test_jobs_are_found_and_cancelled_by_the_class(manual: Any) -> None:
    timer, _ = manual(services={"users": Users()})
    added = timer.add_job(count_users(DAY), 5)
    timer.add_job(nothing(), 5)
    assert [found.id for found in timer.find(kind=count_users)] == [added.id]
    assert timer.cancel_all(kind=count_users) == 1
    assert timer.stats().pending == 1


def test_it_is_retried_as_its_options_say(manual: Any) -> None:
    @job(retry=Retry(attempts=3, backoff=1))
    def fails(ctx: JobContext) -> None:
        if ctx.attempt < 3:
            raise ValueError(ctx.attempt)

    timer, clock = manual()
    id = timer.add_job(fails()).id
    clock.advance(60)
    assert (timer.get(id).state, timer.get(id).attempt) == (State.SUCCEEDED, 3)


def test_it_may_be_called_directly_with_options() -> None:
    made = job(without, kind="test_function.direct", priority=3)
    assert (made.jobwheel_kind.name, made.jobwheel_kind.options.priority) == ("test_function.direct", 3)


def test_a_recurring_one_runs_at_each_moment(manual: Any) -> None:
    users = Users()
    timer, clock = manual(services={"users": users})
    timer.add_job(count_users(DAY), trigger=every(60), key="count")
    clock.advance(180)
    assert len(users.days) == 3


# --- stored ---


@job(kind="test_function.all_types")
def all_types(
    number: int, real: float, text: str, flag: bool, day: date, wait: timedelta, span: Span, units: list[Unit], maybe: str | None = None
) -> None: ...


def test_its_data_is_read_back_from_its_stored_form() -> None:
    before = all_types(1, 2.5, "ä", True, DAY, timedelta(seconds=3), Span(2, Unit.HOUR), [Unit.DAY])
    after = codec.decode(all_types.jobwheel_kind, codec.storable(before))
    assert after == before
    assert type(after) is all_types


def test_a_value_of_another_type_is_refused_at_the_add(manual: Any, tmp_path: Path) -> None:
    timer, _ = manual(store={"kind": "sqlite", "path": tmp_path / "jobs.db"}, services={"users": Users()})
    with pytest.raises((BadType, BadValue), match=r"day"):
        timer.add_job(count_users("tomorrow"))


def test_a_file_gives_it_back_and_it_runs(manual: Any, tmp_path: Path) -> None:
    users = Users()
    timer, clock = manual(store={"kind": "sqlite", "path": tmp_path / "jobs.db"}, services={"users": users})
    timer.add_job(count_users(DAY, Span(3)), 5, key="count")
    assert timer.get("count").job == count_users(DAY, Span(3))
    assert [found.key for found in timer.find(kind=count_users)] == ["count"]
    clock.advance(5)
    assert timer.get("count").log == ("2026-12-01 3 day",)


MODULE = """
from __future__ import annotations

import os
from typing import TYPE_CHECKING

from datetime import date
from jobwheel import JobContext as Run
from jobwheel import job

if TYPE_CHECKING:
    from nowhere import Users, JobContext


@job(kind="stored.count")
def count(context: JobContext, date: date, later: Later | None = None, *, users: Users) -> Users:
    return users.count(date)


@job(kind="stored.plain")
def plain(date: date = date(2026, 1, 1)) -> str:
    return str(date)


@job(kind="stored.renamed")
def renamed(run_now: Run, date: date) -> int:
    return run_now.attempt


@job(kind="stored.isolated", isolation="process")
def isolated(ctx, day: date) -> int:
    ctx.log(day)
    return os.getpid()


from dataclasses import dataclass


@dataclass
class Later:
    number: int
"""


def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> Any:
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return importlib.import_module(name)


def test_annotations_may_be_texts_and_name_what_is_defined_further_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `from __future__ import annotations`; those of the services and of the context may be there for the type checker alone."""
    there = module(tmp_path, monkeypatch, "texts_e")
    before = there.count(DAY, there.Later(3))
    after = codec.decode(there.count.jobwheel_kind, codec.storable(before))
    assert after == before
    assert type(after.later) is there.Later
    assert there.renamed.jobwheel_kind.call.wants_context
    assert codec.decode(there.plain.jobwheel_kind, codec.storable(there.plain())) == there.plain(date(2026, 1, 1))


def test_a_reload_of_the_module_is_no_second_claim_of_the_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manual: Any) -> None:
    there = module(tmp_path, monkeypatch, "reloaded_e")
    timer, clock = manual(store={"kind": "sqlite", "path": tmp_path / "jobs.db"}, services={"users": Users(9)})
    timer.add_job(there.count(DAY), 5, key="count")
    before = there.count
    importlib.reload(there)
    assert there.count is not before
    assert [found.key for found in timer.find(kind=there.count)] == ["count"]
    clock.advance(5)
    assert timer.get("count").result == 9


def test_another_process_finds_it_by_module_and_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = module(tmp_path, monkeypatch, "elsewhere_e")
    kind = there.count.jobwheel_kind
    program = f"""
import importlib, sys
from jobwheel import codec, kind
importlib.import_module({kind.job_class.__module__!r})
found = {{one.name: one for one in kind.registered_kinds()}}[{kind.name!r}]
print(codec.decode(found, sys.stdin.read()))
"""
    stored = codec.storable(there.count(DAY)).decode()
    told = subprocess.run([sys.executable, "-c", program], input=stored, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (told.stdout.strip(), told.stderr) == ("stored.count(date=datetime.date(2026, 12, 1), later=None)", "")


def test_it_runs_in_a_child_process_where_it_asks_for_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Any) -> None:
    there = module(tmp_path, monkeypatch, "isolated_e")
    timer = opened(workers={"threads": 1})
    ended = timer.wait(timer.add_job(there.isolated(DAY)), 60)
    assert (ended.state, ended.log) == (State.SUCCEEDED, ("2026-12-01",)), ended.error
    assert ended.result != os.getpid()


def test_the_class_is_found_where_the_function_was_so_that_a_job_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(count_users(DAY))) == count_users(DAY)


def test_two_functions_may_not_claim_one_kind() -> None:
    with pytest.raises(UsageError, match=r"two job classes claim the kind 'test_function.count_users'"):
        job(without, kind="test_function.count_users")


# --- refused ---


def test_data_without_an_annotation_is_refused_and_named() -> None:
    def function(ctx, day: date, hour, *, users):  # type: ignore[no-untyped-def]
        pass

    with pytest.raises(BadType, match=r"function: the parameter 'hour' has no annotation, and jobs are stored by the types"):
        job(function)


def test_a_refused_function_registers_nothing() -> None:
    def function(hour): ...  # type: ignore[no-untyped-def]

    before = kinds.registered_kinds()
    with pytest.raises(BadType):
        job(kind="test_function.refused")(function)
    with pytest.raises(BadValue, match="timeout"):
        job(kind="test_function.refused", timeout=-1)(without)
    assert kinds.registered_kinds() == before


def star(*days: date) -> None: ...
def stars(**days: date) -> None: ...
def generator(day: date) -> Any:
    yield day


async def agenerator(day: date) -> Any:
    yield day


def method(self, day: date) -> None: ...  # type: ignore[no-untyped-def]
def of_class(cls: type, day: date) -> None: ...
def run_field(run: int) -> None: ...
def function_field(function: int) -> None: ...
def kind_field(jobwheel_kind: int) -> None: ...


class Owner:
    def bound(self, day: date) -> None: ...

    @classmethod
    def klass(cls, day: date) -> None: ...


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (star, r"\*days: datetime.date has no names and types"),
        (stars, r"\*\*days: datetime.date has no names and types"),
        (generator, "a generator: calling it would run nothing"),
        (agenerator, "a generator: calling it would run nothing"),
        (method, "the method method: a job has no object"),
        (of_class, "the method of_class: a job has no object"),
        (staticmethod(without), "the method without: a job has no object"),
        (classmethod(of_class), "the method of_class: a job has no object"),
        (Owner().bound, "the method Owner.bound: a job has no object"),
        (Owner.klass, "the method Owner.klass: a job has no object"),
        (Owner, "it takes a function; for a class derive from jobwheel.IJob"),
        (count_users, "it takes a function; for a class derive from jobwheel.IJob"),
        (partial(without), "it takes a function"),
        (print, "it takes a function"),
        (7, "it takes a function"),
        (lambda: None, "a lambda"),
        ("stats.hourly", r"@job\(kind='stats.hourly'\)"),
        (run_field, "a job has a 'run' of its own"),
        (function_field, "a job has a 'function' of its own"),
        (kind_field, "a job has a 'jobwheel_kind' of its own"),
    ],
    ids=str,
)
def test_what_cannot_be_a_job_is_refused_with_the_reason(wrong: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        job(wrong)


def test_an_unknown_class_option_is_refused() -> None:
    with pytest.raises(BadType, match="there is no class option tiemout"):
        job(tiemout=5)(without)  # type: ignore[call-overload]


# --- with dependency-injector ---


class Container(containers.DeclarativeContainer):
    """What the injected functions below are wired to."""

    users = providers.Singleton(Users, 11)


@job(kind="test_function.injected")
@inject
def injected(
    ctx: JobContext, day: date, users: Users = Provide["users"], *, more: Users = Provide["users"], clock: Any = None
) -> list[Any]:
    return [users.count(day), more.count(day), ctx.attempt, clock]


@job(kind="test_function.injected_async")
@inject
async def injected_async(day: date, *, users: Users = Provide["users"]) -> int:
    return users.count(day)


def test_parameters_that_inject_fills_are_neither_data_nor_services(manual: Any) -> None:
    assert list(inspect.signature(injected).parameters) == ["day"]
    assert injected.jobwheel_kind.call.optional == ("clock",)
    container = Container()
    container.wire(modules=[__name__])
    try:
        timer, clock = manual()
        ids = [timer.add_job(one).id for one in (injected(DAY), injected_async(DAY))]
        clock.advance(0)
        assert [timer.get(id).result for id in ids] == [[11, 11, 1, None], 11]
    finally:
        container.unwire()


def test_markers_without_inject_are_refused() -> None:
    def function(*, users: Users = Provide["users"]) -> None: ...

    with pytest.raises(UsageError, match="no @inject"):
        job(function)


# --- the name ---


def test_the_decorator_has_the_name_and_the_module_of_that_name_is_still_imported() -> None:
    assert jobwheel.job is job
    assert importlib.import_module("jobwheel.job").IJob is IJob
    assert importlib.import_module("jobwheel.job") is not job


def test_the_base_of_all_of_them_is_no_kind() -> None:
    assert FunctionJob not in [kind.job_class for kind in kinds.registered_kinds()]
    with pytest.raises(TypeError, match="abstract"):
        FunctionJob()
