"""From a configuration to a timer: reads it, imports the job modules, finds the chosen members and hands all to `TimerManager`.

Does: tell every problem at once, with what to install or to mend. It is the one place that imports by name.
Does not: start anything, open anything, keep anything. Called by applications, `jobwheel.container`, `jobwheel.flask`, `jobwheel.cli`.
"""

import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Any

from jobwheel.clock import SystemClock
from jobwheel.errors import BadType, SettingsError
from jobwheel.settings import MEMBERS, Settings, from_mapping, load, told
from jobwheel.timer import Parts, TimerManager

AnyPath = str | os.PathLike[str]
Config = AnyPath | Sequence[AnyPath] | Mapping[str, Any] | Settings | None


def open_timer(config: Config = None, *, services: object = None) -> TimerManager:
    """A timer made to `config`, not started: `with open_timer(...) as timer:` starts it, and so does `timer.start()`.

    Args:
        config: a YAML file, or several, later ones over earlier ones; environment variables (JOBWHEEL_STORE__KIND) go over all.
            None: the built-in default (SQLite in ./jobwheel.db) and the environment. A mapping with the form of a file's
            `jobwheel:` section, or a `Settings`: taken as it is, without the environment.
        services: what jobs may ask for by name: a mapping of names to objects, or a dependency-injector container.

    A relative `store.path` counts from the working directory of this moment. The file is opened at the first use: what is wrong with it is
    a StoreError there, and not here.

    Raises:
        SettingsError: the configuration cannot be used; every problem of the settings, one a line, or if there is none, of the modules in
            `jobs` and the packages that are missing.
        BadType: `config` or `services` is nothing of the above.
    """
    settings = read_settings(config)
    return TimerManager(find_parts(settings), settings, services=services)


def read_settings(config: Config = None) -> Settings:
    """The checked settings that `config` means; see `open_timer` for its forms and what is raised."""
    if config is None:
        return load()
    if isinstance(config, Settings):
        # One that was made by hand has not been checked yet.
        return from_mapping(asdict(config))
    if isinstance(config, Mapping):
        return from_mapping(config)
    paths = [config] if isinstance(config, str | os.PathLike) else config
    if not isinstance(paths, Sequence) or not paths or not all(isinstance(path, str | os.PathLike) for path in paths):
        raise BadType(f"config={config!r}: give a path, a list of paths, a mapping of settings, a Settings, or None for the default")
    return load(*paths)


def find_parts(settings: Settings) -> Parts:
    """The parts that `settings` names, with the job modules imported; makes and starts nothing.

    Raises:
        SettingsError: every job module that cannot be imported and every member whose packages are missing, one a line.
    """
    problems = list(_import_jobs(settings.jobs))
    found: dict[str, Any] = {}
    for setting in MEMBERS:
        word = attrgetter(setting)(settings)
        try:
            found[setting] = find_member(setting, word)
        except SettingsError as error:
            problems.append(str(error))
    if problems:
        raise told(problems)
    return Parts(clock=SystemClock(), store=found["store.kind"], room=found["backend"], engine=found["workers.engine"])


def find_member(setting: str, word: str) -> Any:
    """The class of the member `word` of the seam that `setting` chooses ("backend", "store.kind", "workers.engine").

    Raises:
        SettingsError: it needs a package that is not installed; the message says which extra to install.
    """
    place, extra = MEMBERS[setting][word]
    module, _, name = place.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        package = (error.name or "jobwheel").partition(".")[0]
        if not extra or package == "jobwheel":
            raise
        install = f"pip install 'jobwheel[{extra}]'"
        raise SettingsError(f"{setting}: {word!r} needs the package {package}, which is not installed: {install}") from error


def _import_jobs(modules: Sequence[str]) -> Iterator[str]:
    """Imports each module, which registers its kinds; yields the reason for each that fails."""
    for module in modules:
        try:
            importlib.import_module(module)
        # Whatever a module raises at import is told with its name, and the next one is tried; `sys.exit` at its top level as well,
        # which would end the program without a word.
        except (Exception, SystemExit) as error:
            if isinstance(error, ModuleNotFoundError) and error.name is not None and f"{module}.".startswith(f"{error.name}."):
                yield f"jobs: there is no module {module!r} ({error}); check its spelling and the directory the program runs in"
            else:
                yield f"jobs: importing {module!r} failed with {type(error).__name__}: {error}; mend it, or take it off the list"
