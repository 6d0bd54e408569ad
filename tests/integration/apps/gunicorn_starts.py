"""A gunicorn configuration that starts the timer in each worker without waiting for a request."""

from typing import Any

from pids import Write

from jobwheel.flask import JobWheel


def post_worker_init(worker: Any) -> None:
    JobWheel.start(worker.wsgi)
    worker.wsgi.extensions["jobwheel"].timer.add_job(Write("worker"))
