"""The shop's parts and how they hang together. The factory makes one container per app; views and jobs are given what it holds, by name."""

import time

from dependency_injector import containers, providers

from jobwheel.container import JobwheelContainer
from web_example.database import Database
from web_example.jobs import Rearming
from web_example.orders import OrderService


class ShopContainer(containers.DeclarativeContainer):
    """Settings: `config.jobwheel_file` (the YAML file), `config.database` (a path) and `config.pay_within` (seconds).

    Nothing is opened before it is asked for: a container alone touches no file and starts no thread.
    """

    __self__ = providers.Self()

    config = providers.Configuration(strict=True)
    now = providers.Object(time.time)
    database = providers.ThreadSafeSingleton(Database, path=config.database)
    orders = providers.ThreadSafeSingleton(OrderService, database=database, pay_within=config.pay_within, now=now)
    # The timer looks the services of its jobs up in this very container, by the names above.
    jobwheel = providers.Container(JobwheelContainer, config=config.jobwheel_file, services=__self__)
    timer = jobwheel.timer
    rearming = providers.ThreadSafeSingleton(Rearming)
