"""`AppTimer`: what one app has in `app.extensions["jobwheel"]`, its timer and the options of its config.

Does: make the timer when it is first needed, and start it at the first request of each process. Does not: keep the app.
Made by `jobwheel.flask.extension`.

No lock here, so that none can be held while another thread forks. Threads that need the timer at once may each make one, which starts
nothing; the first to be published is everybody's. Threads with the first request may each start it: `TimerManager.start` lets one
do it and the others wait.
"""

import _thread
import logging
import os
import weakref
from typing import Any

from flask import Flask, request

from jobwheel.flask.options import Options
from jobwheel.flask.process import WHY_DEAD, WHY_SILENT, is_flask_command, is_reloader_parent, is_unseen_fork
from jobwheel.flask.scope import enter_app
from jobwheel.opening import open_timer
from jobwheel.runner import Scope
from jobwheel.services import Services
from jobwheel.timer import TimerManager

log = logging.getLogger("jobwheel.flask")


class AppTimer:
    """One app's timer: `timer`, and `start()` for servers where nobody makes the first request. `options` is what the config said."""

    def __init__(self, app: Flask, options: Options, timer: TimerManager | None) -> None:
        self.options = options
        self._app = weakref.ref(app)
        self._published: dict[str, TimerManager] = {}
        # Ids of processes, not flags: a forked child finds its parent's here and decides anew.
        self._asked_in: int | None = None
        self._started_in: int | None = None
        if timer is not None:
            self._enter(timer)
            self._published["timer"] = timer

    @property
    def timer(self) -> TimerManager:
        """The app's timer; made now if it is not there yet, which imports the job modules of its settings.

        Raises:
            SettingsError: a job module cannot be imported, or a package of a chosen member is missing.
        """
        timer = self._published.get("timer")
        if timer is None:
            made = open_timer(self.options.settings, services=self.options.services)
            self._enter(made)
            timer = self._published.setdefault("timer", made)
            if timer is made:
                self._end_with_app(made)
        return timer

    def services_and_scope(self) -> tuple[Services, Scope | None]:
        """What the jobs of this app's timer may ask for and are entered into; for other timers, see `opening.find_services`."""
        timer = self.timer
        return timer.services, timer.scope

    def start(self) -> bool:
        """Starts the timer in this process; False: it is the parent of the reloader, so it stays silent. Raises as `JobWheel.start`."""
        if self.options.autostart != "always" and is_reloader_parent():
            log.info(WHY_SILENT)
            return False
        timer, process = self.timer, os.getpid()
        if timer.started and self._started_in != process and is_unseen_fork():
            log.error(WHY_DEAD)
        timer.start()
        self._started_in = process
        return True

    def on_request(self, _app: Flask, **_: Any) -> None:
        """Each request passes here. The first one of a process starts the timer; one that was started and shut down since stays so."""
        process = os.getpid()
        if self._asked_in == process or is_flask_command():
            return
        if self.options.autostart != "never" and self._started_in != process:
            self.start()
        if request.environ.get("wsgi.multiprocess"):
            self._warn_of_siblings()
        self._asked_in = process

    def holds(self, timer: TimerManager) -> bool:
        """True if `timer` is the app's timer; makes none."""
        return self._published.get("timer") is timer

    def _warn_of_siblings(self) -> None:
        timer = self._published.get("timer")
        if timer is not None and timer.started and timer.settings.store.kind == "memory":
            log.warning(
                "the server runs several worker processes, and jobs are kept in memory: each worker has a timer of its own, in which the "
                "others can cancel nothing, and a job that every worker adds runs in each; set store.kind: sqlite, or have one worker"
            )

    def _enter(self, timer: TimerManager) -> None:
        app = self._app()
        if app is not None:
            enter_app(timer, app, self.options.autostart == "always")

    def _end_with_app(self, timer: TimerManager) -> None:
        """Else the threads of a test suite's apps would outlive them, one set for each app."""
        app = self._app()
        if app is not None:
            # A weak one, since a service that the timer is given may hold the app; a started timer is held by its threads.
            finalizer = weakref.finalize(app, _end, weakref.ref(timer))
            finalizer.atexit = False  # at exit the timer waits for its jobs by itself


def _end(known: weakref.ref[TimerManager]) -> None:
    timer = known()
    if timer is not None and timer.started:
        # The garbage collector calls this, on any thread and under any lock that it may hold: no place to wait, so a bare thread does.
        _thread.start_new_thread(timer.shutdown, (0,))
