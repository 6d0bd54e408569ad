"""`JobwheelContainer`: the timer as a provider, for applications built with dependency-injector.

Does: give one timer per container, made at the first request. Does not: start it, or anything else. The only file that imports
dependency_injector (extra `container`). Called by applications.
"""

from typing import Any, TypeVar

try:
    from dependency_injector import containers, providers
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}; it comes with the extra: pip install 'jobwheel[container]'", name=error.name) from error

from jobwheel.opening import find_parts, make_timer, read_settings
from jobwheel.settings import Settings
from jobwheel.timer import TimerManager

T = TypeVar("T")


class OneForAll(providers.Singleton[T]):
    """A singleton that threads agree on without a lock.

    Threads that ask at once may each build one; the first to be published is given to all, the others are dropped. That is fine for
    what starts nothing and opens nothing when built, and it cannot hang. `ThreadSafeSingleton` can: all of them share one lock,
    which would be held here while job modules are imported. A thread that imports such a module and asks for any singleton at its
    top level then waits for ever; a child forked meanwhile finds the lock taken; and a job module that asks for this very timer
    while it is built would be given another one than everybody else.
    """

    def __init__(self, provides: Any = None, *args: Any, **kwargs: Any) -> None:
        self._published: dict[str, T] = {}
        super().__init__(provides, *args, **kwargs)

    def _provide(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        one = self._published.get("one")
        if one is None:
            build = providers.Factory(self.provides, *self.args, **self.kwargs)
            # `setdefault` is atomic: one thread wins, and all return its object.
            one = self._published.setdefault("one", build(*args, **kwargs))
        return one

    def reset(self) -> Any:
        self._published.clear()
        return super().reset()


class JobwheelContainer(containers.DeclarativeContainer):
    """The timer of an application, as `timer`; nothing starts when it is built.

    Alone::

        wheel = JobwheelContainer(config="config/wheel.yml", services=container)
        with wheel.timer() as timer:
            timer.add_job(CancelUnpaidOrder(7), 900)

    Inside the application's own container, whose services may use the timer and be used by its jobs::

        class Shop(containers.DeclarativeContainer):
            __self__ = providers.Self()
            config = providers.Configuration(strict=True)
            jobwheel = providers.Container(JobwheelContainer, config=config.jobwheel, services=__self__)
            timer = jobwheel.timer
            orders = providers.ThreadSafeSingleton(OrderService, timer=timer)

        shop = Shop()
        shop.config.from_yaml("config/shop.yml", required=True)
        shop.timer().start()

    Here a job's `run(self, ctx, *, orders)` is given `shop.orders()` when it runs, so `shop.orders.override(...)` is seen.
    With `config="config/shop.yml"` instead of `config.jobwheel`, jobwheel reads the file itself: then the environment
    (JOBWHEEL_STORE__KIND) goes over it, and a key that is written twice is refused. Make `orders` a `ThreadSafeSingleton`, not a
    `Singleton`, which builds several when several workers ask at once.

    `timer` raises what `open_timer` raises. `reset_singletons()` lets go of the timer but does not shut it down; do that before.
    """

    config: providers.Provider[Any] = providers.Object(None)
    """What `open_timer` takes as `config`: a path, a list of paths, a mapping, a `Settings`; None for the default."""
    services: providers.Provider[Any] = providers.Object(None)
    """What `open_timer` takes as `services`: a mapping, or a container."""
    settings: OneForAll[Settings] = OneForAll(read_settings, config)
    """The checked `Settings`, read once."""
    parts = providers.Callable(find_parts, settings)
    """The members that the settings name. Override it to give the timer another clock or a member of your own."""
    timer: OneForAll[TimerManager] = OneForAll(make_timer, parts, settings, services)
    """The one `TimerManager` of this container, for any number of threads."""
