"""What a job class may say of itself: kinds and aliases, options, the signature of `run`; and what a run knows."""

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from dependency_injector import containers, providers
from dependency_injector.wiring import Provide, inject

from jobwheel import BadType, BadValue, IJob, JobContext, Retry, State, UsageError
from jobwheel.kind import Options, find_kind, registered_kinds

pytestmark = pytest.mark.usefixtures("own_kinds")


class Wanted(containers.DeclarativeContainer):
    mail = providers.Object("mail")


# --- kinds ---


def test_the_kind_is_the_qualified_name_unless_given() -> None:
    class Unnamed(IJob):
        def run(self) -> None: ...

    class Named(IJob, kind="orders.cancel"):
        def run(self) -> None: ...

    assert Unnamed.jobwheel_kind.name == Unnamed.__qualname__
    assert Named.jobwheel_kind.name == "orders.cancel"
    assert find_kind("orders.cancel") is Named.jobwheel_kind


def test_an_unknown_kind_is_none() -> None:
    assert find_kind("os:system") is None


def test_two_classes_with_one_kind_are_an_error_that_names_both() -> None:
    class First(IJob, kind="same"):
        def run(self) -> None: ...

    with pytest.raises(UsageError, match=r"same.*First.*Second"):

        class Second(IJob, kind="same"):
            def run(self) -> None: ...

    kind = find_kind("same")
    assert kind is not None
    assert kind.job_class is First


def test_an_alias_may_not_be_another_class_kind() -> None:
    class First(IJob, kind="taken"):
        def run(self) -> None: ...

    with pytest.raises(UsageError, match="two job classes claim the kind 'taken'"):

        class Second(IJob, kind="free", aliases=("taken",)):
            def run(self) -> None: ...

    assert find_kind("free") is None, "a refused class registers nothing"


def test_aliases_lead_to_the_renamed_class() -> None:
    class New(IJob, kind="new", aliases=("old", "older")):
        def run(self) -> None: ...

    assert find_kind("old") is find_kind("older") is find_kind("new") is New.jobwheel_kind
    assert registered_kinds().count(New.jobwheel_kind) == 1


def test_the_same_name_in_the_same_module_is_the_class_defined_again() -> None:
    """A reload or a notebook cell run twice: the newer one counts."""

    def define(result: int) -> type[IJob]:
        class Cell(IJob, kind="cell"):
            def run(self) -> int:
                return result

        return Cell

    define(1)
    newer = define(2)
    kind = find_kind("cell")
    assert kind is not None
    assert kind.job_class is newer


def test_a_module_may_be_reloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reloaded_jobs.py").write_text("from jobwheel import IJob\nclass Again(IJob):\n    def run(self): return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("reloaded_jobs")
    importlib.reload(module)
    kind = find_kind("Again")
    assert kind is not None
    assert kind.job_class is module.Again
    del sys.modules["reloaded_jobs"]


def test_a_dataclass_with_slots_keeps_kind_aliases_and_options() -> None:
    """`@dataclass(slots=True)` makes a second class, without the keywords."""

    @dataclass(slots=True)
    class Slotted(IJob, kind="slotted", aliases=("slim",), retry=Retry(attempts=3), timeout=30, priority=4, max_running=2):
        number: int

        def run(self) -> int:
            return self.number

    kind = find_kind("slotted")
    assert kind is not None
    assert kind.job_class is Slotted
    assert find_kind("slim") is kind
    assert Slotted.jobwheel_kind.options == Options(retry=Retry(attempts=3), timeout=30, priority=4, max_running=2)
    assert Slotted(5).run() == 5


def test_a_frozen_dataclass_is_a_job() -> None:
    @dataclass(frozen=True, slots=True)
    class Frozen(IJob, kind="frozen"):
        number: int

        def run(self) -> None: ...

    assert Frozen(1) == Frozen(1)


@pytest.mark.parametrize("kind", ["", " ", " a", "a\n", "a\0b"])
def test_a_kind_that_would_not_store_well_is_refused(kind: str) -> None:
    with pytest.raises(UsageError, match="keep it plain"):

        class Odd(IJob, kind=kind):
            def run(self) -> None: ...


def test_a_kind_that_is_no_text_is_refused() -> None:
    with pytest.raises(BadType, match="kind and aliases are texts"):

        class Odd(IJob, kind=5):  # type: ignore[arg-type]
            def run(self) -> None: ...


def test_one_alias_may_be_given_as_a_text() -> None:
    class New(IJob, kind="now", aliases="then"):  # type: ignore[arg-type]
        def run(self) -> None: ...

    assert find_kind("then") is New.jobwheel_kind
    assert find_kind("t") is None


def test_an_abstract_class_is_no_kind_and_cannot_be_made() -> None:
    class Base(IJob, kind="base", timeout=5):
        def name(self) -> str:
            return "shared"

    assert find_kind("base") is None
    with pytest.raises(TypeError, match="abstract"):
        Base()  # type: ignore[abstract]


def test_a_class_without_run_cannot_be_made() -> None:
    class Empty(IJob):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Empty()  # type: ignore[abstract]


def test_a_misspelt_option_is_refused_by_name() -> None:
    with pytest.raises(BadType, match="timeuot"):

        class Misspelt(IJob, timeuot=5):
            def run(self) -> None: ...


# --- options ---


def test_options_have_their_stated_defaults() -> None:
    class Plain(IJob):
        def run(self) -> None: ...

    options = Plain.jobwheel_kind.options
    assert (options.retry, options.timeout, options.priority, options.max_running) == (Retry(attempts=1), None, 0, None)
    assert (options.misfire_grace_time, options.on_crash, options.overlap) == (None, "rerun", "skip")


def test_a_subclass_inherits_options_but_not_the_kind() -> None:
    class Base(IJob, kind="with.options", aliases=("former",), timeout=5, priority=3):
        def run(self) -> None: ...

    class Sub(Base, priority=9):
        def run(self) -> None: ...

    class SubSub(Sub):
        pass

    assert Sub.jobwheel_kind.name == Sub.__qualname__
    assert Sub.jobwheel_kind.aliases == ()
    assert (Sub.jobwheel_kind.options.timeout, Sub.jobwheel_kind.options.priority) == (5, 9)
    assert SubSub.jobwheel_kind.options == Sub.jobwheel_kind.options
    assert SubSub.jobwheel_kind.name == SubSub.__qualname__


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout": 0}, {"timeout": -1}, {"timeout": inf}, {"timeout": nan}, {"misfire_grace_time": 0}, {"misfire_grace_time": nan},
        {"max_running": 0}, {"max_running": -2}, {"on_crash": "ignore"}, {"overlap": "drop"},
    ],
    ids=str,
)  # fmt: skip
def test_an_option_out_of_range_is_refused_by_name(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(BadValue, match=f"{name}="):

        class Odd(IJob, **wrong):
            def run(self) -> None: ...


@pytest.mark.parametrize(
    "wrong",
    [
        {"retry": 3}, {"timeout": "30"}, {"timeout": True}, {"timeout": timedelta(seconds=3)}, {"priority": 1.5}, {"priority": True},
        {"priority": "high"}, {"max_running": 1.0}, {"max_running": True}, {"misfire_grace_time": "x"},
    ],
    ids=str,
)  # fmt: skip
def test_an_option_of_a_wrong_type_is_refused_by_name(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(BadType, match=f"{name}="):

        class Odd(IJob, **wrong):
            def run(self) -> None: ...


# --- the signature of run ---


def test_run_may_take_nothing_or_a_context_under_any_name() -> None:
    class Nothing(IJob):
        def run(self) -> None: ...

    class Context(IJob):
        def run(self, ctx: JobContext) -> None: ...

    class OtherName(IJob):
        def run(self, context: JobContext, /) -> None: ...

    assert not Nothing.jobwheel_kind.call.wants_context
    assert Context.jobwheel_kind.call.wants_context
    assert OtherName.jobwheel_kind.call.wants_context
    assert Nothing.jobwheel_kind.call.is_plain


def test_keyword_only_parameters_are_services_and_those_with_a_default_are_optional() -> None:
    class Wants(IJob):
        def run(self, ctx: JobContext, *, orders: Any, mail: Any = None, clock: Any) -> None: ...

    call = Wants.jobwheel_kind.call
    assert (call.services, call.optional, call.wants_context, call.is_async) == (("orders", "clock"), ("mail",), True, False)
    assert not call.is_plain


def test_services_without_a_context() -> None:
    class Wants(IJob):
        async def run(self, *, orders: Any) -> None: ...

    call = Wants.jobwheel_kind.call
    assert (call.services, call.wants_context, call.is_async) == (("orders",), False, True)


def test_a_second_positional_parameter_is_refused_with_the_line_to_write() -> None:
    with pytest.raises(BadType, match=r"put a \* before the services: run\(self, ctx, \*, orders, mail\)"):

        class Wrong(IJob):
            def run(self, ctx: JobContext, orders: Any, mail: Any) -> None: ...


def test_a_generator_is_refused_since_calling_it_runs_nothing() -> None:
    with pytest.raises(BadType, match="is a generator"):

        class Generator(IJob):
            def run(self) -> Iterator[int]:
                yield 1


def test_an_async_generator_is_refused() -> None:
    """R83."""
    with pytest.raises(BadType, match="is a generator"):

        class Generator(IJob):
            async def run(self) -> AsyncIterator[int]:
                yield 1


def test_provide_defaults_under_inject_are_left_to_the_container() -> None:
    class Injected(IJob):
        @inject
        def run(self, ctx: JobContext, *, mail: Any = Provide[Wanted.mail], orders: Any) -> None: ...

    assert Injected.jobwheel_kind.call.services == ("orders",)
    assert Injected.jobwheel_kind.call.optional == ()
    assert Injected.jobwheel_kind.call.wants_context


def test_a_positional_provide_default_is_not_the_context() -> None:
    class Injected(IJob):
        @inject
        def run(self, mail: Any = Provide[Wanted.mail]) -> None: ...

    assert not Injected.jobwheel_kind.call.wants_context


def test_provide_without_inject_is_refused() -> None:
    """R80: the job would get the marker."""
    with pytest.raises(UsageError, match="no @inject"):

        class Marker(IJob):
            def run(self, *, mail: Any = Provide[Wanted.mail]) -> None: ...


def test_an_injected_coroutine_is_seen_as_one() -> None:
    class Injected(IJob):
        @inject
        async def run(self, *, mail: Any = Provide[Wanted.mail]) -> None: ...

    assert Injected.jobwheel_kind.call.is_async


def test_a_refused_class_leaves_no_kind_behind() -> None:
    before = registered_kinds()
    with pytest.raises(BadType):

        class Wrong(IJob, kind="wrong"):
            def run(self) -> Iterator[int]:
                yield 1

    assert registered_kinds() == before


def test_a_class_nested_in_another_has_its_own_kind() -> None:
    class Outer:
        class Inner(IJob):
            def run(self) -> None: ...

    assert Outer.Inner.jobwheel_kind.name.endswith("Outer.Inner")


# --- what a run knows ---


def test_the_context_tells_what_the_run_is(manual: Any) -> None:
    seen: list[JobContext] = []

    @dataclass
    class Look(IJob):
        def run(self, ctx: JobContext) -> None:
            seen.append(ctx)
            assert not ctx.cancel_requested

    timer, clock = manual()
    job = timer.add_job(Look(), 60, key="look")
    clock.suspend(67)
    (ctx,) = seen
    assert (ctx.job_id, ctx.key, ctx.attempt) == (job.id, "look", 1)
    assert ctx.scheduled_for == datetime(2026, 1, 1, 0, 1, tzinfo=UTC) == job.due
    assert ctx.started_at == datetime(2026, 1, 1, 0, 1, 7, tzinfo=UTC)
    assert ctx.lateness == 7.0


def test_scheduled_for_is_the_nominal_moment_in_every_attempt(manual: Any) -> None:
    """R15: what the job is about does not move with its delays."""
    seen: list[tuple[int, datetime, float]] = []

    class Failing(IJob, retry=Retry(attempts=3, backoff=10)):
        def run(self, ctx: JobContext) -> None:
            seen.append((ctx.attempt, ctx.scheduled_for, ctx.lateness))
            raise ValueError("no")

    timer, clock = manual()
    due = timer.add_job(Failing(), 60).due
    clock.suspend(63)
    clock.advance(100)
    assert seen == [(1, due, 3.0), (2, due, 0.0), (3, due, 0.0)]


def test_the_context_keeps_the_newest_lines_cut_to_length(manual: Any) -> None:
    class Talkative(IJob):
        def run(self, ctx: JobContext) -> None:
            for number in range(250):
                ctx.log(f"line {number}")
            ctx.log("x" * 5000)
            ctx.log(17)  # type: ignore[arg-type]

    timer, clock = manual()
    job = timer.add_job(Talkative())
    clock.advance(0)
    lines = timer.get(job).log
    assert len(lines) == 200
    assert lines[0] == "line 52"
    assert lines[-2] == "x" * 2000
    assert lines[-1] == "17"


def test_progress_is_seen_while_it_runs_and_after(manual: Any) -> None:
    seen: list[Any] = []

    class Long(IJob):
        def run(self, ctx: JobContext) -> None:
            ctx.progress(1, 4)
            seen.append(timer.get(ctx.job_id))
            ctx.progress(4, 4, "all sent")

    timer, clock = manual()
    job = timer.add_job(Long())
    clock.advance(0)
    assert (seen[0].state, seen[0].progress) == (State.RUNNING, (1, 4, ""))
    assert timer.get(job).progress == (4, 4, "all sent")


def test_a_job_is_a_plain_value_that_can_be_run_without_any_timer() -> None:
    @dataclass
    class Add(IJob):
        one: int
        other: int

        def run(self, *, offset: int = 0) -> int:
            return self.one + self.other + offset

    class Wait(IJob):
        async def run(self) -> str:
            return "done"

    assert Add(1, 2).run(offset=10) == 13
    assert asyncio.run(Wait().run()) == "done"
