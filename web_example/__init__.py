"""Quiet Coach: a small shop for train seats that shows what jobwheel is for. Seven things in it happen later, by themselves.

Start it with `python -m web_example`, with `gunicorn -c web_example/gunicorn.py` (four processes), or with `flask --app web_example run`.
"""

import os
from pathlib import Path

from flask import Flask

from jobwheel.flask import JobWheel
from web_example.container import ShopContainer, fill
from web_example.pages import BLUEPRINTS, MODULES
from web_example.settings import read_shop

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
        container = fill(read_shop(path), path)
    app = Flask(__name__)
    app.extensions["shop"] = container
    for blueprint in BLUEPRINTS:
        app.register_blueprint(blueprint)
    JobWheel().init_app(app, timer=container.timer())
    container.wire(modules=MODULES, warn_unresolved=True)
    return app


def start(app: Flask) -> None:
    """Lets the shop's jobs run in this process before its first visitor comes, so that what an earlier run left behind ends in time.

    For a server's own start; called twice it does nothing more. Raises a JobwheelError if the timer cannot start.
    """
    container: ShopContainer = app.extensions["shop"]
    JobWheel.start(app)
    container.rearming().once()
