"""The shop's parts and how they hang together. The factory makes one container per app; views and jobs are given what it holds, by name."""

import os
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from dependency_injector import containers, providers

from jobwheel import TimerManager
from jobwheel.container import JobwheelContainer
from web_example import jobs
from web_example.database import Database
from web_example.orders import OrderService
from web_example.rearming import Rearming
from web_example.scenarios.address import Addresses
from web_example.scenarios.counting import Counting
from web_example.scenarios.mailing import Mailing
from web_example.scenarios.presence import Presence
from web_example.scenarios.rides import Rides
from web_example.scenarios.rooms import Rooms
from web_example.settings import ShopSettings, ShopSettingsError, read_shop


def _rearming(timer: TimerManager, orders: OrderService, **scenarios: Any) -> Rearming:
    return Rearming(timer, partial(jobs.promises, orders), *(scenario.promises for scenario in scenarios.values()))


class ShopContainer(containers.DeclarativeContainer):
    """Settings: see `ShopSettings`, and `jobwheel_file`, the YAML file of the timer.

    Nothing is opened before it is asked for: a container alone touches no file and starts no thread.
    """

    __self__ = providers.Self()

    config = providers.Configuration(strict=True)
    now = providers.Object(time.time)
    # The timer looks the services of its jobs up in this very container, by the names below.
    jobwheel = providers.Container(JobwheelContainer, config=config.jobwheel_file, services=__self__)
    timer = jobwheel.timer

    database = providers.ThreadSafeSingleton(Database, path=config.database)
    orders = providers.ThreadSafeSingleton(OrderService, database, pay_within=config.pay_within, now=now)
    rooms = providers.ThreadSafeSingleton(Rooms, database, timer, hold=config.hold_room, now=now)
    presence = providers.ThreadSafeSingleton(Presence, database, timer, offline_after=config.offline_after, now=now)
    rides = providers.ThreadSafeSingleton(Rides, database, timer, stars_after=config.stars_after, now=now)
    addresses = providers.ThreadSafeSingleton(Addresses, database, timer, change_after=config.change_after, now=now)
    counting = providers.ThreadSafeSingleton(Counting, database, timer, presence, schedule=config.count_at, now=now)
    mailing = providers.ThreadSafeSingleton(Mailing, database, timer, mail_takes=config.mail_takes, now=now)
    rearming = providers.ThreadSafeSingleton(
        _rearming, timer, orders,
        rooms=rooms, presence=presence, rides=rides, addresses=addresses, counting=counting, mailing=mailing,
    )  # fmt: skip


def fill(settings: ShopSettings, jobwheel_file: str | Path) -> ShopContainer:
    """A container with these settings."""
    container = ShopContainer()
    container.config.from_dict(asdict(settings) | {"jobwheel_file": str(jobwheel_file)})
    return container


def for_worker() -> ShopContainer:
    """What the shop's jobs ask for in a `jobwheel worker`, where there is no app: the configuration names this function under `services`.

    The worker names its file in JOBWHEEL_CONFIG. Raises ShopSettingsError where nobody does: with the database of another file the rows
    would not be those of the jobs.
    """
    file = os.environ.get("JOBWHEEL_CONFIG")
    if not file:
        raise ShopSettingsError("JOBWHEEL_CONFIG is not set: it must name the file that the worker was given")
    return fill(read_shop(file), file)
