"""`AppScope`: what each run of a timer is entered into, an app context of its own.

Does: choose the app, and keep jobs from running in the reloader's parent. Does not: keep apps alive. Set as `timer.scope` by
`jobwheel.flask.app_timer`, called by the runner for each run, on any thread.
"""

import logging
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NoReturn

from flask import Flask

from jobwheel.flask.process import WHY_SILENT, is_reloader_parent
from jobwheel.job import JobContext
from jobwheel.retry import RetryJob
from jobwheel.runner import Scope
from jobwheel.timer import TimerManager

log = logging.getLogger("jobwheel.flask")


class AppScope:
    """For one timer. Runs are in the app that came last of those that are still alive; `inner` is entered within its context."""

    def __init__(self, timer: TimerManager, inner: Scope | None) -> None:
        # Weak, as the apps are: the threads of a started timer hold this object.
        self._timer = weakref.ref(timer)
        self._inner = inner
        self._apps: tuple[weakref.ref[Flask], ...] = ()  # replaced, never changed
        self._even_in_parent = False

    def add(self, app: Flask, even_in_parent: bool) -> None:
        """From now on runs are in `app`; `even_in_parent`: also if this process turns out to be the reloader's parent."""
        self._apps = (*(known for known in self._apps if known() is not None), weakref.ref(app))
        self._even_in_parent = self._even_in_parent or even_in_parent

    def app(self) -> Flask | None:
        """The app that runs are in now; None if all are gone."""
        for known in reversed(self._apps):
            app = known()
            if app is not None:
                return app
        return None

    def __call__(self, context: JobContext) -> AbstractContextManager[Any]:
        if is_reloader_parent() and not self._even_in_parent:
            self._fall_silent()
        app = self.app()
        outer: AbstractContextManager[Any] = nullcontext() if app is None else app.app_context()
        return outer if self._inner is None else _both(outer, self._inner, context)

    def _fall_silent(self) -> NoReturn:
        """For a timer that was started before `app.run(debug=True)` made this process the reloader's parent: its jobs wait again."""
        timer = self._timer()
        if timer is not None and timer.started:
            log.info(WHY_SILENT)
            timer.shutdown(0)
        raise RetryJob(0, "not in the parent of the reloader")


@contextmanager
def _both(outer: AbstractContextManager[Any], inner: Scope, context: JobContext) -> Iterator[None]:
    with outer, inner(context):
        yield


def enter_app(timer: TimerManager, app: Flask, even_in_parent: bool) -> None:
    """From now on the runs of `timer` are in `app`. A scope that the timer has already is kept, inside the app context."""
    scope = timer.scope
    if not isinstance(scope, AppScope):
        scope = AppScope(timer, scope)
        timer.scope = scope
    scope.add(app, even_in_parent)
