"""The console script `jobwheel`: checks a configuration before it is deployed. Also reached by `python -m jobwheel`.

Does: read the files as `open_timer` would, import the job modules, look for the members' packages. Does not: open a store, start
anything, or ask for services, which only the application has.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from jobwheel.errors import SettingsError
from jobwheel.opening import find_parts
from jobwheel.settings import Settings, load


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: the process's own) and returns the exit code: 0 good, 1 problems, 2 wrong usage."""
    parser = _parser()
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as end:  # argparse has said what it has to say
        return end.code if isinstance(end.code, int) else 2
    if arguments.command != "check":
        parser.print_help(sys.stderr)
        return 2
    return check(arguments.files)


def check(files: Sequence[str]) -> int:
    """Prints one line that starts with OK and returns 0, or prints the problems to stderr, one a line, and returns 1."""
    # A console script starts with its own directory on the import path; the application's modules are in the current one.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        settings = load(*files)
        find_parts(settings)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"OK {' '.join(files)}: {_summary(settings)}")
    return 0


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
        "Imports the modules named in `jobs` and looks for the packages that the chosen members need. Starts nothing. "
        "Exit code 0: good; 1: problems, one a line on stderr; 2: wrong usage.",
    )
    words.add_argument("files", nargs="+", metavar="FILE", help="a YAML file with a section `jobwheel:`")
    return parser


def _version() -> str:
    try:
        return version("jobwheel")
    except PackageNotFoundError:
        return "(not installed)"
