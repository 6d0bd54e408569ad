"""The rules of `jobwheel.container`, one test each."""

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from dependency_injector import containers, providers

from jobwheel.container import JobwheelContainer, OneForAll
from jobwheel.errors import SettingsError
from jobwheel.job import IJob
from jobwheel.settings import Settings
from jobwheel.timer import TimerManager


class OrderService:
    """A user of the timer that is a service of its jobs as well."""

    def __init__(self, timer: TimerManager) -> None:
        self.timer = timer
        self.cancelled: list[int] = []
        self.done = threading.Event()

    def order(self, number: int) -> None:
        self.timer.add_job(CancelUnpaid(number), 0)

    def cancel(self, number: int) -> None:
        self.cancelled.append(number)
        self.done.set()


@dataclass
class CancelUnpaid(IJob, kind="test_container.cancel_unpaid"):
    number: int

    def run(self, *, orders: OrderService) -> None:
        orders.cancel(self.number)


class Shop(containers.DeclarativeContainer):
    """The example of `JobwheelContainer`'s docstring."""

    __self__ = providers.Self()
    config = providers.Configuration(strict=True)
    jobwheel = providers.Container(JobwheelContainer, config=config.jobwheel, services=__self__)
    timer = jobwheel.timer
    orders = providers.ThreadSafeSingleton(OrderService, timer=timer)


SHOP_YML = "shop: {name: Shop}\njobwheel: {store: {kind: memory}, workers: {threads: 2}}\n"


@pytest.fixture
def shop(tmp_path: Path) -> Any:
    path = tmp_path / "shop.yml"
    path.write_text(SHOP_YML, encoding="utf-8")
    shop = Shop()
    shop.config.from_yaml(path, required=True)
    return shop


def ask_from_16_threads(ask: Any) -> list[Any]:
    barrier = threading.Barrier(16)

    def one(_: int) -> Any:
        barrier.wait(10)
        return ask()

    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(one, range(16), timeout=30))


def test_16_threads_that_ask_at_once_get_one_timer() -> None:
    container = JobwheelContainer(config={})
    timers = ask_from_16_threads(container.timer)
    assert isinstance(timers[0], TimerManager)
    assert all(timer is timers[0] for timer in timers)
    assert container.timer() is timers[0]


def test_threads_that_build_at_once_get_what_was_published_first() -> None:
    everyone_builds = threading.Barrier(16)

    def build() -> object:
        everyone_builds.wait(10)
        return object()

    provider: OneForAll[object] = OneForAll(build)
    assert len({id(one) for one in ask_from_16_threads(provider)}) == 1


def test_building_a_timer_waits_for_no_thread_that_builds_another() -> None:
    inner: OneForAll[str] = OneForAll(lambda: "inner")

    def build() -> str:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(inner).result(10)

    assert OneForAll(build)() == "inner"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_child_that_is_forked_while_a_thread_builds_builds_its_own() -> None:
    building, go_on = threading.Event(), threading.Event()
    parent = os.getpid()

    def build() -> int:
        if os.getpid() == parent:
            building.set()
            go_on.wait(10)
        return os.getpid()

    provider: OneForAll[int] = OneForAll(build)
    thread = threading.Thread(target=provider)
    thread.start()
    building.wait(10)
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # a child that hangs is killed
        os._exit(0 if provider() == os.getpid() else 1)
    status = os.waitpid(child, 0)[1]
    go_on.set()
    thread.join(10)
    assert os.waitstatus_to_exitcode(status) == 0
    assert provider() == parent


def test_a_job_module_that_asks_for_the_timer_while_it_is_built_gets_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    container = JobwheelContainer(config={"jobs": ["asking_of_this_test"]})
    monkeypatch.setattr(sys, "asked_container", container, raising=False)
    (tmp_path / "asking_of_this_test.py").write_text("import sys\ntimer = sys.asked_container.timer()\n", encoding="utf-8")
    timer = container.timer()
    assert sys.modules.pop("asking_of_this_test").timer is timer


def test_each_container_has_its_own_timer() -> None:
    assert JobwheelContainer(config={}).timer() is not JobwheelContainer(config={}).timer()


def test_building_starts_nothing() -> None:
    before = set(threading.enumerate())
    timer = JobwheelContainer(config={}).timer()
    assert set(threading.enumerate()) == before
    assert timer.shutdown() == []


def test_the_config_may_be_a_path_a_list_of_paths_a_mapping_or_settings(tmp_path: Path) -> None:
    path = tmp_path / "wheel.yml"
    path.write_text("jobwheel: {max_pending: 4}", encoding="utf-8")
    for config in (path, str(path), [path], {"max_pending": 4}, Settings(max_pending=4)):
        assert JobwheelContainer(config=config).settings().max_pending == 4


def test_without_a_config_it_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOBWHEEL_BACKEND", raising=False)
    assert JobwheelContainer().settings().backend == "wheel"


def test_a_bad_config_is_told_when_the_timer_is_asked_for_and_again() -> None:
    container = JobwheelContainer(config={"bakend": "wheel"})
    for _ in range(2):
        with pytest.raises(SettingsError, match="did you mean backend"):
            container.timer()


def test_a_whole_config_instead_of_its_section_is_refused_with_what_to_give(shop: Any) -> None:
    with pytest.raises(SettingsError, match="give what stands under `jobwheel`"):
        JobwheelContainer(config=shop.config).timer()


def test_inside_the_applications_container_it_takes_the_section_of_its_config(shop: Any) -> None:
    assert shop.jobwheel.settings().workers.threads == 2
    assert shop.timer() is shop.jobwheel.timer() is shop.orders().timer


def test_a_service_that_uses_the_timer_is_given_to_the_timers_jobs(shop: Any) -> None:
    with shop.timer():
        shop.orders().order(7)
        assert shop.orders().done.wait(10)
    assert shop.orders().cancelled == [7]


def test_an_override_of_a_service_is_seen_by_the_next_run(shop: Any) -> None:
    fake = OrderService(shop.timer())
    with shop.timer() as timer:
        orders = shop.orders()
        with shop.orders.override(fake):
            timer.wait(timer.add_job(CancelUnpaid(1)), 10)
        timer.wait(timer.add_job(CancelUnpaid(2)), 10)
    assert fake.cancelled == [1]
    assert orders.cancelled == [2]


def test_alone_it_serves_the_services_it_is_given() -> None:
    found: list[int] = []

    class Orders:
        cancel = staticmethod(found.append)

    class Other(containers.DeclarativeContainer):
        orders = providers.Object(Orders)

    for services in ({"orders": Orders}, Other(), Other):
        with JobwheelContainer(config={"store": {"kind": "memory"}}, services=services).timer() as timer:
            timer.wait(timer.add_job(CancelUnpaid(len(found))), 10)
    assert found == [0, 1, 2]


def test_16_threads_that_ask_for_a_service_and_the_timer_at_once_get_one_of_each(shop: Any) -> None:
    pairs = ask_from_16_threads(lambda: (shop.orders(), shop.timer()))
    assert len({id(orders) for orders, _ in pairs}) == len({id(timer) for _, timer in pairs}) == 1


def test_the_timer_can_be_overridden_and_reset(shop: Any) -> None:
    first = shop.timer()
    with shop.timer.override("fake"):
        assert shop.timer() == "fake"
    assert shop.timer() is first
    shop.reset_singletons()
    assert shop.timer() is not first


def test_two_containers_of_one_class_share_nothing() -> None:
    one, two = Shop(config={"jobwheel": {}}), Shop(config={"jobwheel": {"max_pending": 9}})
    assert one.timer() is not two.timer()
    assert (one.jobwheel.settings().max_pending, two.jobwheel.settings().max_pending) == (0, 9)
