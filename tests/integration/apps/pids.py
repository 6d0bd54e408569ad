"""A Flask app that writes down which process imports it and which one runs its jobs: a line for each in the file that PIDS names.

Environment: START=create calls `JobWheel.start` while the app is made, EXIT_TIMEOUT is the setting. `python pids.py MODE PORT` serves it
with `app.run` (MODE plain or debug) or with waitress.
"""

import logging
import os
import sys
import time
from dataclasses import dataclass

import waitress  # type: ignore[import-untyped]
from flask import Flask, request

from jobwheel import IJob
from jobwheel.flask import JobWheel, current_timer


def write(event: str, text: str = "") -> None:
    file = os.open(os.environ["PIDS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{event} {os.getpid()} {text}\n".encode())
    os.close(file)


@dataclass
class Write(IJob, kind="pids.write"):
    text: str

    def run(self) -> None:
        write("ran", self.text)


@dataclass
class Hang(IJob, kind="pids.hang"):
    def run(self) -> None:
        write("hangs")
        time.sleep(60)


def create_app() -> Flask:
    logging.basicConfig(level=logging.INFO)
    app = Flask(__name__)
    app.config.from_prefixed_env()
    limit = float(os.environ.get("EXIT_TIMEOUT", "5"))
    app.config["JOBWHEEL"] = {"store": {"kind": "memory"}, "workers": {"threads": 2}, "exit_timeout": limit}
    JobWheel(app)
    timer = app.extensions["jobwheel"].timer
    timer.add_job(Write("boot"), 0.2)

    @app.get("/later/<text>")
    def later(text: str) -> str:
        """Adds a job that writes `text` after `delay` seconds, and answers with its process after `hold` more."""
        current_timer.add_job(Write(text), request.args.get("delay", 0.5, float), key=text)
        time.sleep(request.args.get("hold", 0.0, float))
        return str(os.getpid())

    @app.get("/pid")
    def pid() -> str:
        return str(os.getpid())

    @app.get("/hang")
    def hang() -> str:
        current_timer.add_job(Hang())
        return str(os.getpid())

    @app.cli.command("look")
    def look() -> None:
        """Looks at a page of its own, as some commands do."""
        print(app.test_client().get("/later/command").status_code, timer.started)

    if os.environ.get("START") == "create":
        JobWheel.start(app)
    write("import")
    return app


if __name__ == "__main__":
    mode, port = sys.argv[1], int(sys.argv[2])
    app = create_app()
    if mode == "waitress":
        JobWheel.start(app)
        waitress.serve(app, host="127.0.0.1", port=port)
    else:
        app.run(port=port, debug=mode == "debug")
