"""The shop in four processes on one file of jobs: `gunicorn -c web_example/gunicorn.py` in the folder that holds `web_example`."""

from typing import Any

from web_example import start

wsgi_app = "web_example:create_app()"
bind = "127.0.0.1:8000"
workers = 4


def post_worker_init(worker: Any) -> None:
    """Each worker runs what is due from its start on, also when nobody visits."""
    start(worker.wsgi)
