"""The rules of `jobwheel.services`, one test each."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from dependency_injector import containers, providers

from jobwheel.errors import BadType, UsageError
from jobwheel.services import as_services


class Mailer:
    pass


async def open_slowly() -> AsyncIterator[Mailer]:
    yield Mailer()


async def make_slowly() -> Mailer:
    return Mailer()


class Inner(containers.DeclarativeContainer):
    config = providers.Configuration()
    timer = providers.Object("inner timer")


class Shop(containers.DeclarativeContainer):
    config = providers.Configuration()
    mailer = providers.Factory(Mailer)
    jobwheel = providers.Container(Inner)
    timer = jobwheel.timer
    opened = providers.Resource(open_slowly)
    made = providers.Coroutine(make_slowly)
    unmet: providers.Dependency[Any] = providers.Dependency()


def test_no_source_means_no_services() -> None:
    services = as_services(None)
    assert services.names() == frozenset()
    assert services.missing(["b", "a"]) == ["a", "b"]


def test_a_mapping_gives_its_values_as_they_are_and_never_calls_them() -> None:
    def never() -> None:
        raise AssertionError

    services = as_services({"f": never, "kind": Mailer, "none": None})
    assert services.get("f") is never
    assert services.get("kind") is Mailer
    assert services.get("none") is None
    assert services.names() == {"f", "kind", "none"}


def test_a_change_of_the_mapping_is_seen() -> None:
    source: dict[str, object] = {}
    services = as_services(source)
    source["mailer"] = "new"
    assert services.names() == {"mailer"}
    assert services.get("mailer") == "new"


@pytest.mark.parametrize("source", [Shop(), Shop, containers.DynamicContainer(), SimpleNamespace(providers={})])
def test_whatever_has_providers_is_a_source(source: Any) -> None:
    if isinstance(source, containers.DynamicContainer) and not source.providers:
        source.mailer = providers.Factory(Mailer)
    if isinstance(source, SimpleNamespace):
        source.providers["mailer"] = Mailer
    services = as_services(source)
    assert "mailer" in services.names()
    assert isinstance(services.get("mailer"), Mailer)


def test_a_provider_is_called_at_each_get() -> None:
    services = as_services(Shop())
    assert services.get("mailer") is not services.get("mailer")


def test_an_override_is_seen_and_so_is_its_end() -> None:
    shop = Shop()
    services = as_services(shop)
    with shop.mailer.override("fake"):
        assert services.get("mailer") == "fake"
    assert isinstance(services.get("mailer"), Mailer)


def test_a_provider_that_is_replaced_is_seen() -> None:
    shop = Shop()
    services = as_services(shop)
    shop.set_provider("mailer", providers.Object("other"))
    assert services.get("mailer") == "other"


def test_names_of_nested_containers_are_no_obstacle() -> None:
    services = as_services(Shop())
    assert {"config", "timer", "jobwheel", "mailer"} <= services.names()
    assert services.get("timer") == "inner timer"


def test_names_and_missing_make_no_service() -> None:
    def never() -> None:
        raise AssertionError

    services = as_services(SimpleNamespace(providers={"a": never}))
    assert services.names() == {"a"}
    assert services.missing(iter(["c", "a", "b", "c"])) == ["b", "c"]


def test_services_are_services() -> None:
    services = as_services({"a": 1})
    assert as_services(services) is services


@pytest.mark.parametrize("source", [5, "orders", ["orders"], object(), SimpleNamespace(providers=5), SimpleNamespace(orders=1)])
def test_any_other_source_is_refused_with_what_is_accepted(source: object) -> None:
    with pytest.raises(BadType, match=r"services: a \w+ offers no services by name; give a mapping .*`\.providers`.* or None"):
        as_services(source)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no service is called 'mailr'.*did you mean 'mailer'"):
        as_services(Shop()).get("mailr")
    with pytest.raises(UsageError, match="there are: 1, zebra"):
        as_services({"zebra": 1, 1: 2}).get("orders")


@pytest.mark.parametrize("name", ["opened", "made"])
def test_an_asynchronous_provider_is_refused_with_the_reason_in_a_thread_without_a_loop(name: str) -> None:
    services = as_services(Shop())
    with ThreadPoolExecutor(1) as pool, pytest.raises(UsageError, match=f"provider of the service '{name}' is asynchronous"):
        pool.submit(services.get, name).result(10)


@pytest.mark.parametrize("name", ["opened", "made"])
def test_an_asynchronous_provider_is_refused_with_the_reason_inside_a_loop(name: str) -> None:
    async def ask() -> None:
        shop = Shop()
        if name == "opened":
            await shop.opened.init()  # type: ignore[misc]
        with pytest.raises(UsageError, match=f"provider of the service '{name}' is asynchronous"):
            as_services(shop).get(name)

    asyncio.run(ask())


def test_an_object_that_may_be_awaited_but_is_finished_is_a_service() -> None:
    class Pool:
        def __await__(self) -> Any:
            raise AssertionError

    pool = Pool()
    assert as_services(SimpleNamespace(providers={"pool": lambda: pool})).get("pool") is pool


def test_what_a_provider_raises_comes_through() -> None:
    with pytest.raises(Exception, match=r"Dependency .*unmet.* is not defined"):
        as_services(Shop()).get("unmet")

    def fail() -> None:
        raise RuntimeError("no route")

    with pytest.raises(RuntimeError, match="no route"):
        as_services(SimpleNamespace(providers={"a": fail})).get("a")
