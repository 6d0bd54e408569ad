"""A Flask application on the SQLite store, as gunicorn serves it in `test_gunicorn.py`. It writes to the file of events that EVENTS names.

Each process that imports it adds one job: with --preload that is the master, which so has the store open before it forks.
"""

import os
from pathlib import Path

import child
from child import Work
from eventlog import EventLog
from flask import Flask, request

from jobwheel.flask import JobWheel, current_timer


def create_app() -> Flask:
    app = Flask(__name__)
    app.config["JOBWHEEL"] = {
        "store": {"kind": "sqlite", "path": os.environ["STORE"], "keep": 1_000_000},
        "workers": {"threads": 4},
    }
    JobWheel(app)
    # Not the process's own number, since workers are forked from a master that has this open: lines of one file need none.
    child.log = EventLog(Path(os.environ["EVENTS"]), os.getpid())
    os.register_at_fork(after_in_child=lambda: setattr(child, "log", EventLog(Path(os.environ["EVENTS"]), os.getpid())))
    app.extensions["jobwheel"].timer.add_job(Work(f"boot {os.getpid()}"), 0.5)

    @app.post("/add/<name>")
    def add(name: str) -> dict[str, int]:
        return {"pid": os.getpid(), "id": current_timer.add_job(Work(name, 0.01), request.args.get("delay", 0.0, float)).id}

    @app.post("/cancel/<int:id>")
    def cancel(id: int) -> dict[str, bool]:
        return {"cancelled": current_timer.cancel(id)}

    return app
