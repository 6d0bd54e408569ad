"""Quiet Coach: a small shop for train seats that shows what jobwheel is for. What is not paid in time is cancelled by a job.

Start it with `python -m web_example`, with `gunicorn -c web_example/gunicorn.py` (four processes), or with `flask --app web_example run`.
"""

import os
from pathlib import Path

from flask import Flask

from jobwheel.flask import JobWheel
from web_example.container import ShopContainer
from web_example.settings import read_shop
from web_example.views import shop

DEFAULT_CONFIG = Path(__file__).parents[1] / "config" / "default.yml"


def config_file() -> Path:
    """The configuration file in force: `JOBWHEEL_CONFIG`, else `config/default.yml`."""
    return Path(os.environ.get("JOBWHEEL_CONFIG") or DEFAULT_CONFIG)


def create_app(config: str | Path | None = None, *, container: ShopContainer | None = None) -> Flask:
    """The shop as a WSGI application, ready to serve; nothing runs and no file is made before its first request.

    `config` is the YAML file to read (default: see `config_file`). A `container` that is given (in tests) has its settings already.
    """
    if container is None:
        path = Path(config) if config is not None else config_file()
        settings = read_shop(path)
        container = ShopContainer()
        container.config.from_dict({"jobwheel_file": str(path), "database": settings.database, "pay_within": settings.pay_within})
    app = Flask(__name__)
    app.extensions["shop"] = container
    app.register_blueprint(shop)
    JobWheel().init_app(app, timer=container.timer())
    container.wire(modules=["web_example.views"], warn_unresolved=True)
    return app


def start(app: Flask) -> None:
    """Lets the shop's jobs run in this process before its first visitor comes, so that what an earlier run left behind ends in time.

    For a server's own start; called twice it does nothing more. Raises a JobwheelError if the timer cannot start.
    """
    container: ShopContainer = app.extensions["shop"]
    JobWheel.start(app)
    container.rearming().once(container.timer(), container.orders())
