"""The console script `jobwheel`: `check` tells what is wrong with a configuration, `worker` runs jobs outside of the web process.
Also reached by `python -m jobwheel`.

`check` does: read the files as `open_timer` would, import the job modules, look for the members' packages, and for what `services` names.
Does not: open a store, start anything, or call anything for services.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from jobwheel.errors import SettingsError
from jobwheel.opening import find_named, find_parts, import_from_here
from jobwheel.settings import Settings, load
from jobwheel.supervisor import supervise


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: the process's own) and returns the exit code: 0 good, 1 problems, 2 wrong usage.

    Its first word says what it does; `worker` goes on until it is told to end, and takes the signals of the process: main thread only.
    """
    parser = _parser()
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as end:  # argparse has said what it has to say
        return end.code if isinstance(end.code, int) else 2
    if arguments.command == "check":
        return check(arguments.files)
    if arguments.command == "worker":
        return worker(arguments.config, arguments.processes, arguments.threads, arguments.timeout)
    parser.print_help(sys.stderr)
    return 2


def check(files: Sequence[str]) -> int:
    """Prints one line that starts with OK and returns 0, or prints the problems to stderr, one a line, and returns 1."""
    import_from_here()
    try:
        settings = load(*files)
        find_parts(settings)
        if settings.services is not None:
            find_named(settings.services)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"OK {' '.join(files)}: {_summary(settings)}")
    return 0


def worker(files: Sequence[str], processes: int, threads: int | None, timeout: float | None) -> int:
    """Runs jobs until a signal ends it; see `supervise`. What makes that impossible goes to stderr, one problem a line."""
    try:
        return supervise(files, processes, threads, timeout)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 1


def _summary(settings: Settings) -> str:
    wheel = f" ({settings.wheel.slots} slots of {settings.wheel.tick:g} s)" if settings.backend == "wheel" else ""
    return (
        f"backend {settings.backend}{wheel}, store {settings.store.kind}, engine {settings.workers.engine} "
        f"({settings.workers.threads} threads), jobs {', '.join(settings.jobs) or 'none named'}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="jobwheel", description="Work later, or in the background, inside a web application.")
    parser.add_argument("--version", action="version", version=f"jobwheel {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    words = commands.add_parser(
        "check",
        help="check configuration files",
        description="Checks the files together, later ones over earlier ones and JOBWHEEL_... variables over all, as open_timer does. "
        "Imports the modules named in `jobs`, looks for the packages that the chosen members need, and for the name in `services`, which "
        "it does not call. Starts nothing. "
        "Exit code 0: good; 1: problems, one a line on stderr; 2: wrong usage.",
    )
    words.add_argument("files", nargs="+", metavar="FILE", help="a YAML file with a section `jobwheel:`")
    _add_worker(commands.add_parser(
        "worker",
        help="run jobs outside of the web process",
        description="Runs the jobs of the files' store in processes of their own, each with `workers.threads` threads, and with what the "
        "setting `services` names. A process that dies is started again. SIGTERM, SIGINT and SIGHUP end it: nothing new is begun, running "
        "jobs get time, what was not begun waits for others; a second signal ends it at once. If it is killed, its processes end in the "
        "same way by themselves. Exit code 0: ended as told; 1: problems, on stderr, or what ran was cut off; 2: wrong usage.",
    ))  # fmt: skip
    return parser


def _add_worker(words: argparse.ArgumentParser) -> None:
    words.add_argument(
        "--config", nargs="+", action="extend", required=True, metavar="FILE", help="YAML files as for `check`, the same store as the web's"
    )
    words.add_argument("--processes", type=_count, default=1, metavar="N", help="how many processes run jobs (default 1)")
    words.add_argument("--threads", type=_count, metavar="N", help="threads in each, whatever `workers.threads` says")
    words.add_argument("--timeout", type=_span, metavar="SECONDS", help="what running jobs get to end, whatever `exit_timeout` says")


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} will not do; it must be a whole number from 1 on")
    return int(text)


def _span(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} will not do; it must be a number of seconds from 0 on")
    return seconds


def _version() -> str:
    try:
        return version("jobwheel")
    except PackageNotFoundError:
        return "(not installed)"
