"""One attempt, step by step, to a verdict: by the runner alone, on a row that a store gave it."""

import asyncio
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from jobwheel import CancelJob, IJob, JobContext, Retry, RetryJob
from jobwheel.order import Intake
from jobwheel.row import Row
from jobwheel.runner import ERROR_LENGTH, TRACE_LENGTH, Runner
from jobwheel.services import as_services
from jobwheel.settings import Settings
from jobwheel.stores.memory import MemoryStore
from jobwheel.testing import ManualClock
from jobwheel.verdict import SUCCEEDED, Again, Cancelled, Failed, Succeeded, Verdict


class Hard(BaseException):
    pass


@dataclass
class Do(IJob, kind="test_runner.do"):
    what: Callable[[JobContext], Any]

    def run(self, ctx: JobContext) -> Any:
        return self.what(ctx)


@dataclass
class Again3(Do, kind="test_runner.again3", retry=Retry(attempts=3, backoff=2, retry_on=(ValueError,))):
    pass


@dataclass
class DoAsync(IJob, kind="test_runner.do_async"):
    what: Callable[[JobContext], Any]

    async def run(self, ctx: JobContext) -> Any:
        return await self.what(ctx)


@dataclass
class WithServices(IJob, kind="test_runner.services"):
    def run(self, ctx: JobContext, *, orders: Any, mail: Any = "no mail") -> Any:
        return (ctx.job_id, orders, mail)


@dataclass
class ServicesAlone(IJob, kind="test_runner.services_alone"):
    def run(self, *, orders: Any) -> Any:
        return orders


class Bench:
    """A store, a clock and a runner; `run(job)` gives the verdict on its first attempt."""

    def __init__(self, services: object = None) -> None:
        self.clock = ManualClock()
        self.services = as_services(services)
        self.store = MemoryStore(self.clock, Settings())
        self.runner = Runner(self.clock, self.services)

    def claimed(self, job: IJob) -> Row:
        row, _ = self.store.add(Intake(self.clock, self.services).row(job), "replace")
        (claimed,) = self.store.claim([row]).rows
        return claimed

    def run(self, job: IJob) -> Verdict:
        row = self.claimed(job)
        if job.jobwheel_kind.call.is_async:
            return asyncio.run(self.runner.run_async(row))
        return self.runner.run(row)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def raising(error: BaseException) -> Callable[[JobContext], None]:
    def what(_: JobContext) -> None:
        raise error

    return what


def test_a_run_that_returns_nothing_has_succeeded(bench: Bench) -> None:
    assert bench.run(Do(lambda _: None)) is SUCCEEDED


@pytest.mark.parametrize("result", [0, "", [], False, {"a": 1}])
def test_what_run_returns_is_the_result(bench: Bench, result: Any) -> None:
    assert bench.run(Do(lambda _: result)) == Succeeded(result)


def test_a_run_that_raises_has_failed_with_error_and_trace(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """R56: one ERROR with the traceback, and the text is kept."""
    verdict = bench.run(Do(raising(ValueError("no such order"))))
    assert isinstance(verdict, Failed)
    assert verdict.error == "ValueError: no such order"
    assert "Traceback" in (verdict.trace or "")
    assert "in what" in (verdict.trace or "")
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("jobwheel.run", logging.ERROR)
    assert record.exc_info
    assert "test_runner.do" in record.getMessage()


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), Hard("x"), asyncio.CancelledError(), StopIteration()], ids=repr
)
def test_whatever_is_raised_becomes_a_verdict(bench: Bench, error: BaseException) -> None:
    """R57."""
    verdict = bench.run(Do(raising(error)))
    assert isinstance(verdict, Failed)
    assert verdict.error.startswith(type(error).__name__)


def test_a_good_run_logs_nothing_above_debug(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """R84."""
    caplog.set_level(logging.DEBUG, "jobwheel")
    bench.run(Do(lambda _: 5))
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []


def test_nothing_is_printed(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.run(Do(raising(ValueError("x"))))
    bench.run(Do(lambda _: None))
    assert capsys.readouterr().out == ""


def test_an_error_that_cannot_be_printed_is_told_by_its_class(bench: Bench) -> None:
    class Shy(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not me")

    verdict = bench.run(Do(raising(Shy())))
    assert isinstance(verdict, Failed)
    assert verdict.error.startswith("Shy")


def test_long_texts_are_cut(bench: Bench) -> None:
    verdict = bench.run(Do(raising(ValueError("x" * 100_000))))
    assert isinstance(verdict, Failed)
    assert len(verdict.error) <= ERROR_LENGTH
    assert len(verdict.trace or "") <= TRACE_LENGTH


def test_an_error_worth_a_retry_is_another_attempt_and_a_warning(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    verdict = bench.run(Again3(raising(ValueError("later"))))
    assert isinstance(verdict, Again)
    assert (verdict.delay, verdict.error) == (2.0, "ValueError: later")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_an_error_that_the_policy_does_not_name_fails_at_once(bench: Bench) -> None:
    assert isinstance(bench.run(Again3(raising(KeyError("x")))), Failed)
    assert isinstance(bench.run(Again3(raising(SystemExit()))), Failed)


def test_cancel_job_ends_it_as_cancelled_without_an_error_in_the_log(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    assert bench.run(Again3(raising(CancelJob("paid already")))) == Cancelled("paid already")
    assert bench.run(Do(raising(CancelJob()))) == Cancelled(None)
    assert caplog.records == []


def test_retry_job_asks_for_another_attempt_whatever_the_policy(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    assert bench.run(Do(raising(RetryJob(30, "not yet")))) == Again(30.0, "not yet")
    assert caplog.records == []


def test_after_a_cancel_a_failing_run_is_cancelled_and_not_retried(bench: Bench) -> None:
    """R41."""

    def what(ctx: JobContext) -> None:
        bench.store.cancel(ctx.job_id)
        raise ValueError("stopped in the middle")

    assert bench.run(Again3(what)) == Cancelled("ValueError: stopped in the middle")


def test_after_a_cancel_a_retry_job_is_cancelled(bench: Bench) -> None:
    def what(ctx: JobContext) -> None:
        bench.store.cancel(ctx.job_id)
        raise RetryJob(5)

    assert isinstance(bench.run(Do(what)), Cancelled)


def test_a_run_that_saw_the_cancel_and_returns_is_cancelled(bench: Bench) -> None:
    def what(ctx: JobContext) -> None:
        assert not ctx.cancel_requested
        bench.store.cancel(ctx.job_id)
        assert ctx.cancel_requested

    assert isinstance(bench.run(Do(what)), Cancelled)


def test_a_run_that_never_looked_at_the_cancel_and_returns_has_succeeded(bench: Bench) -> None:
    """Its work is done, so that is what it says."""
    assert bench.run(Do(lambda ctx: bench.store.cancel(ctx.job_id))) is SUCCEEDED


def test_services_come_by_name_and_an_optional_one_only_if_it_is_there() -> None:
    assert Bench({"orders": "o"}).run(WithServices()) == Succeeded((1, "o", "no mail"))
    assert Bench({"orders": "o", "mail": "m"}).run(WithServices()) == Succeeded((1, "o", "m"))
    assert Bench({"orders": "o"}).run(ServicesAlone()) == Succeeded("o")


def test_services_are_looked_up_when_the_job_runs() -> None:
    """R82: an override after the add is seen."""
    services = {"orders": "real"}
    bench = Bench(services)
    row = bench.claimed(ServicesAlone())
    services["orders"] = "fake"
    assert bench.runner.run(row) == Succeeded("fake")


def test_a_service_that_is_gone_or_whose_factory_raises_is_a_failed_run() -> None:
    services = {"orders": "real"}
    bench = Bench(services)
    row = bench.claimed(ServicesAlone())
    del services["orders"]
    verdict = bench.runner.run(row)
    assert isinstance(verdict, Failed)
    assert "no service is called 'orders'" in verdict.error

    def broken() -> None:
        raise OSError("no database")

    verdict = Bench(SimpleNamespace(providers={"orders": broken})).run(ServicesAlone())
    assert isinstance(verdict, Failed)
    assert verdict.error == "OSError: no database"


def test_a_coroutine_is_run_to_its_end(bench: Bench) -> None:
    """R83."""

    async def what(ctx: JobContext) -> int:
        await asyncio.sleep(0)
        return ctx.attempt

    assert bench.run(DoAsync(what)) == Succeeded(1)


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), KeyboardInterrupt()], ids=repr)
def test_whatever_a_coroutine_raises_becomes_a_verdict(bench: Bench, error: BaseException) -> None:
    async def what(_: JobContext) -> None:
        raise error

    assert isinstance(bench.run(DoAsync(what)), Failed)


def test_a_plain_run_that_returns_a_coroutine_has_failed(bench: Bench) -> None:
    """R83: it is never a success without having run, and no warning about it comes later."""

    async def forgotten() -> None: ...

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        verdict = bench.run(Do(lambda _: forgotten()))
    assert isinstance(verdict, Failed)
    assert "declare it async def" in verdict.error


class Scopes:
    """A scope that writes down what it saw."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    @contextmanager
    def __call__(self, ctx: JobContext) -> Iterator[None]:
        self.seen.append(f"enter {ctx.job_id}")
        try:
            yield
        except BaseException as error:
            self.seen.append(type(error).__name__)
            raise
        finally:
            self.seen.append("leave")


@pytest.mark.parametrize("job", [Do(lambda _: 5), DoAsync(lambda _: asyncio.sleep(0, 5))], ids=["def", "async"])
def test_a_scope_is_entered_around_each_run(bench: Bench, job: IJob) -> None:
    scopes = Scopes()
    bench.runner.scope = scopes
    assert bench.run(job) == Succeeded(5)
    assert scopes.seen == ["enter 1", "leave"]


def test_a_scope_is_left_after_an_error_and_sees_it(bench: Bench) -> None:
    scopes = Scopes()
    bench.runner.scope = scopes
    assert isinstance(bench.run(Do(raising(Hard()))), Failed)
    assert scopes.seen == ["enter 1", "Hard", "leave"]


def test_services_are_looked_up_inside_the_scope() -> None:
    """A service may need the application context that the scope pushes."""
    scopes = Scopes()
    bench = Bench(SimpleNamespace(providers={"orders": lambda: list(scopes.seen)}))
    bench.runner.scope = scopes
    assert bench.run(ServicesAlone()) == Succeeded(["enter 1"])


@pytest.mark.parametrize("where", ["make", "enter", "leave"])
def test_a_scope_that_raises_is_a_failed_run(bench: Bench, where: str) -> None:
    class Broken:
        def __enter__(self) -> None:
            if where == "enter":
                raise OSError(where)

        def __exit__(self, *_: object) -> None:
            if where == "leave":
                raise OSError(where)

    def scope(_: JobContext) -> Broken:
        if where == "make":
            raise OSError(where)
        return Broken()

    bench.runner.scope = scope  # type: ignore[assignment]
    verdict = bench.run(Do(lambda _: 5))
    assert isinstance(verdict, Failed)
    assert verdict.error == f"OSError: {where}"


def test_a_job_without_parameters_needs_no_context(bench: Bench) -> None:
    class Plain(IJob, kind="test_runner.plain"):
        def run(self) -> int:
            return 7

    assert bench.run(Plain()) == Succeeded(7)
