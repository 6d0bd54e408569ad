"""Which process this is: the reloader's parent, which serves nobody; a `flask` command, which is no server; a fork that Python missed.

Only a positive sign counts. By their environment variables a debugging gunicorn worker and the reloader's parent look the same.
Called by `jobwheel.flask.app_timer` and `jobwheel.flask.scope` at the moment they would start or run something.
"""

import os
import sys

import click
from flask.cli import AppGroup, run_command

WHY_SILENT = (
    "jobwheel stays silent in this process: it is the parent of Werkzeug's reloader, and its child serves the requests and runs the jobs "
    "(JOBWHEEL_AUTOSTART = 'always' overrides this)"
)

WHY_DEAD = (
    "the timer was started before this process was forked, and its threads stayed in the parent: no job will run here. The server forks "
    "without Python's fork hooks; under uWSGI set py-call-osafterfork = true, and start the timer after the fork (see jobwheel.flask)"
)

_process = os.getpid()


def _after_fork() -> None:
    global _process  # noqa: PLW0603 - what a process is, is one value for all of it
    _process = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def is_unseen_fork() -> bool:
    """True in a child that was forked without Python's fork hooks, so that nothing in it was made anew."""
    return _process != os.getpid()


def is_reloader_parent() -> bool:
    """True in the process that only watches files; known once `run_simple` has imported the reloader, which every server does not."""
    return "werkzeug._reloader" in sys.modules and os.environ.get("WERKZEUG_RUN_MAIN") != "true"


def is_flask_command() -> bool:
    """True in the thread of a `flask` command other than `flask run`: a request there comes from a test client."""
    context = click.get_current_context(silent=True)
    if context is None or context.command is run_command:
        return False
    return isinstance(context.find_root().command, AppGroup)
