"""jobwheel in a Flask application: the extension `JobWheel`, and `current_timer`, the timer of the current app.

    wheel = JobWheel()

    def create_app():
        app = Flask(__name__)
        app.config["JOBWHEEL_CONFIG"] = "config/wheel.yml"
        wheel.init_app(app)                      # or wheel.init_app(app, timer=container.timer())
        return app

    @app.post("/orders/<int:id>/pay")
    def pay(id):
        current_timer.cancel(f"order:{id}")      # or the timer that your container injects: it is the same one

Each run of a job is inside an app context of its own: `current_app`, `g` and the teardown functions work, and these are given what the job
raised. There is no request in it; `url_for` needs `SERVER_NAME`. No routes are added, and no `SECRET_KEY` is needed.

Nothing starts at import or in `init_app`: the timer starts in each process with the first request that this process serves, and never in
the parent of the reloader or in a `flask` command. A server that must run what is due before its first visitor starts it in each worker
(in `create_app` it would be the master process of gunicorn and uWSGI that runs the jobs):

    def post_worker_init(worker): JobWheel.start(worker.wsgi)          # gunicorn.conf.py
    uwsgidecorators.postfork(lambda: JobWheel.start(app))              # uWSGI with master, py-call-osafterfork and enable-threads
    JobWheel.start(app); waitress.serve(app)                           # waitress, and any server of one process

For the tests of an application give `init_app` the timer of `jobwheel.testing.manual_timer`.
"""

try:
    import flask as _flask  # noqa: F401 (only to say what to install, before a room that needs it says so worse)
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}; it comes with the extra: pip install 'jobwheel[flask]'", name=error.name) from error

from jobwheel.flask.app_timer import AppTimer
from jobwheel.flask.extension import JobWheel, current_timer
from jobwheel.flask.options import Options

__all__ = ["AppTimer", "JobWheel", "Options", "current_timer"]
