"""From a configuration to a timer: reads it, imports the job modules, finds the chosen members and hands all to `TimerManager`.

Does: tell every problem at once, with what to install or to mend. It is the one place that imports by name.
Does not: start anything, open anything, keep anything. Called by applications, `jobwheel.container`, `jobwheel.flask`, `jobwheel.cli`,
`jobwheel.supervised`, and in the child processes of engines.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import asdict
from functools import reduce
from operator import attrgetter
from typing import Any

from jobwheel.clock import SystemClock
from jobwheel.errors import BadType, SettingsError
from jobwheel.job import JobContext
from jobwheel.runner import Scope
from jobwheel.services import as_services
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
        services: what jobs may ask for by name: a mapping of names to objects, or a dependency-injector container. None: what the setting
            `services` names, if it is there; see `find_services`.

    A relative `store.path` counts from the working directory of this moment. The file is opened at the first use: what is wrong with it is
    a StoreError there, and not here.

    Raises:
        SettingsError: the configuration cannot be used; every problem of the settings, one a line, or if there is none, of the modules in
            `jobs` and the packages that are missing, or if there is none, that of the setting `services`.
        BadType: `config` or `services` is nothing of the above.
    """
    settings = read_settings(config)
    return make_timer(find_parts(settings), settings, services)


def make_timer(parts: Parts, settings: Settings, services: object = None) -> TimerManager:
    """The timer of these parts. Without `services` it has those that the setting names, if it does. Raises what `find_services` does."""
    if services is not None or settings.services is None:
        return TimerManager(parts, settings, services=services)
    services, scope = find_services(settings.services)
    timer = TimerManager(parts, settings, services=services)
    timer.scope = scope
    return timer


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


def import_from_here() -> None:
    """Lets modules of the current directory be imported, where an application has its own; a console script does not look there."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())


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
            yield _unimported("jobs", module, error)


def _unimported(setting: str, module: str, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name is not None and f"{module}.".startswith(f"{error.name}."):
        return f"{setting}: there is no module {module!r} ({error}); check its spelling and the directory the program runs in"
    mend = "mend it, or take it off the list" if setting == "jobs" else "mend it"
    return f"{setting}: importing {module!r} failed with {type(error).__name__}: {error}; {mend}"


class _AppScope:
    """The scope of an app's runs, which knows its app only weakly: here is who keeps it."""

    def __init__(self, app: object, scope: Scope) -> None:
        self.app = app
        self._scope = scope

    def __call__(self, context: JobContext) -> AbstractContextManager[Any]:
        return self._scope(context)


_finding: ContextVar[tuple[str, ...]] = ContextVar("_finding", default=())
"""The places whose services are being made further up on this call stack."""


def find_services(place: str) -> tuple[object, Scope | None]:
    """What the setting `services` names: what jobs may ask for by name, and what each of their runs is entered into.

    At "module:name" is a mapping of names to objects, a dependency-injector container, a Flask app with `jobwheel.flask.JobWheel`, or
    something that is called, without arguments, to give one of these. Of an app they are the services and the scope of its timer, so that
    each run is in an app context of its own; the app is kept alive by the scope.

    Raises:
        SettingsError: there is no such module or name, it cannot be imported, it raised when it was called, or it gives nothing of the
            above.
    """
    if place in _finding.get():
        raise SettingsError(
            f"services: {place!r} opens a timer while it is called, and that timer would call it again for its services: "
            "give open_timer(..., services=...) there, or name the services themselves"
        )
    token = _finding.set((*_finding.get(), place))
    try:
        return _as_services(place, find_named(place))
    finally:
        _finding.reset(token)


def find_named(place: str) -> object:
    """The object at the place "module:name" of the setting `services`, its module imported; calls nothing. Raises `SettingsError`."""
    module, _, name = place.partition(":")
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise SettingsError(_unimported("services", module, error)) from error
    try:
        return reduce(getattr, name.split("."), sys.modules[module])
    except AttributeError as error:
        raise SettingsError(f"services: the module {module!r} has no {name!r} ({error}); check its spelling in {place!r}") from error


def _as_services(place: str, source: object) -> tuple[object, Scope | None]:
    usable = _usable(place, source)
    if usable is None and callable(source):
        source = _called(place, source)
        usable = _usable(place, source)
    if usable is None:
        raise SettingsError(
            f"services: {place!r} gives {source!r:.80}, which offers no services by name; it must be a mapping of names to objects, a "
            "container, a Flask app with JobWheel, or a function without arguments that returns one of these"
        )
    return usable


def _usable(place: str, source: object) -> tuple[object, Scope | None] | None:
    """The services of an app, a mapping or a container; None if it is nothing of these."""
    extensions = getattr(source, "extensions", None)
    if isinstance(extensions, Mapping) and callable(getattr(source, "wsgi_app", None)):
        lend = getattr(extensions.get("jobwheel"), "services_and_scope", None)
        if lend is None:
            raise SettingsError(f"services: {place!r} is an app without jobwheel: call JobWheel().init_app(app) when the app is made")
        try:
            services, scope = lend()
        except Exception as error:
            raise SettingsError(f"services: the timer of the app {place!r} cannot be made: {type(error).__name__}: {error}") from error
        return services, _AppScope(source, scope)
    try:
        return None if source is None else (as_services(source), None)
    except BadType:
        return None


def _called(place: str, source: Any) -> object:
    try:
        inspect.signature(source).bind()
    except TypeError as error:
        raise SettingsError(f"services: {place!r} cannot be called without arguments ({error}); name a function that needs none") from error
    except ValueError:  # one of C, which does not tell its parameters
        pass
    try:
        given: object = source()
    except (Exception, SystemExit) as error:
        raise SettingsError(f"services: {place!r} raised {type(error).__name__}: {error}; nothing can run without what it gives") from error
    if inspect.iscoroutine(given):
        given.close()
        raise SettingsError(f"services: {place!r} is asynchronous, and is called where no event loop runs; name a plain function")
    return given
