"""`JobWheel`, the Flask extension: it gives an app its timer and finds it again.

Does: check the app's config, put an `AppTimer` into `app.extensions["jobwheel"]` and let it see the app's requests.
Does not: keep the app, start anything, add routes. Called by applications; names of it are in `jobwheel.flask`.
"""

from typing import cast

from flask import Flask, current_app
from flask.signals import request_started
from werkzeug.local import LocalProxy

from jobwheel.errors import BadType, UsageError
from jobwheel.flask.app_timer import AppTimer
from jobwheel.flask.options import read_options
from jobwheel.timer import TimerManager

NAME = "jobwheel"


class JobWheel:
    """The Flask extension; one object serves any number of apps.

    Args:
        app: an app to give a timer to at once, as `init_app` does.
        timer: what `init_app` gives to apps for which it is told no other timer.
    """

    def __init__(self, app: Flask | None = None, timer: TimerManager | None = None) -> None:
        self._timer = timer if timer is None else _checked(timer)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask, timer: TimerManager | None = None) -> None:
        """Gives `app` its timer: this one, else the extension's, else one that is made to the app's config when it is first needed.

        Nothing is started; see `jobwheel.flask` for when it is. A second call with the same timer, or with none, does nothing.

        Config keys, read now:
            JOBWHEEL_AUTOSTART: True: start with the first request of each process, but in the reloader's parent. False or "never": only
                `start` does it. "always": also in what looks like the reloader's parent.
            JOBWHEEL: the settings as a mapping, or JOBWHEEL_CONFIG: one or several YAML files, or a mapping; as `open_timer` takes them.
            JOBWHEEL_SERVICES: the services of jobs: a mapping, or a container. These three are left alone when there is a timer already.

        One timer may be given to several apps. Its jobs run in the app that was given it last and is still alive, whichever app added
        them; where each job must see its own app, give each app its own timer. Apps are not kept alive for their jobs: with none left
        jobs run outside of an app context, and a timer that was made to an app's config ends with its app.

        Raises:
            SettingsError: the config cannot be used; every problem, one a line.
            BadType: `timer` is no TimerManager.
            UsageError: the app has another timer already.
        """
        timer = self._timer if timer is None else _checked(timer)
        there = app.extensions.get(NAME)
        if isinstance(there, AppTimer):
            if timer is not None and not there.holds(timer):
                raise UsageError(f"the Flask app {app.name!r} has another timer already; call init_app once, with the timer it shall have")
            return
        state = AppTimer(app, read_options(app.config, timer is not None), timer)
        app.extensions[NAME] = state
        # Not `before_request`, which does not come to us when a function that was registered earlier answers the request.
        request_started.connect(state.on_request, app)

    @property
    def timer(self) -> TimerManager:
        """The timer of the current app. Raises RuntimeError outside of an app context, UsageError if the app has none."""
        return _find(current_app).timer

    @staticmethod
    def start(app: Flask | None = None) -> bool:
        """Starts the timer of `app` (default: the current app) in this process, for servers where nobody makes the first request.

        Returns:
            True: it runs here. False: this process is the parent of the reloader, so it stays silent.

        Raises:
            UsageError: the app has no timer, a service is missing that a job asks for, or no thread could be started.
            SettingsError: the timer was made only now, and a job module or a package is missing.
        """
        return _find(current_app if app is None else app).start()


def _find(app: Flask) -> AppTimer:
    state = getattr(app, "extensions", {}).get(NAME)
    if not isinstance(state, AppTimer):
        raise UsageError(f"{app!r} has no timer: call JobWheel().init_app(app) when the app is made, and give the Flask app itself")
    return state


def _checked(timer: object) -> TimerManager:
    if isinstance(timer, TimerManager):
        return timer
    hint = "call it to get its timer" if callable(timer) else "make one with open_timer()"
    raise BadType(f"timer={timer!r}: a TimerManager is needed; {hint}")


current_timer = cast("TimerManager", LocalProxy(lambda: _find(current_app).timer))
"""Stands for the timer of the current app, in views and in jobs, as `current_app` does for the app."""
