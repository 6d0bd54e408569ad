"""The configuration as frozen values: read from YAML files, mappings and the environment, checked whole before anything is built.

Does: names every setting with its type and range, knows the members of the seams by name, tells all problems at once.
Does not: import members or job modules (`jobwheel.opening`), nor resolve paths. Called by `opening`, `testing`, `cli`.
Somewhat long, because values, reading and refusing hang on one table of fields.
"""

import difflib
import math
import os
import re
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import msgspec
import yaml
from msgspec import Meta

from jobwheel.errors import SettingsError


class Member(NamedTuple):
    """One member of a seam: where its class is, and the extra that installs what it needs."""

    place: str = ""
    """"module:Class"; empty: a known word whose member comes in a later version."""
    extra: str = ""


LATER = Member()

MEMBERS: dict[str, dict[str, Member]] = {
    "backend": {
        "wheel": Member("jobwheel.backends.wheel:WheelRoom"),
        "apscheduler": Member("jobwheel.backends.apscheduler:ApschedulerRoom", extra="apscheduler"),
    },
    "store.kind": {
        "sqlite": Member("jobwheel.stores.sqlite:SqliteStore"),
        "memory": Member("jobwheel.stores.memory:MemoryStore"),
        "postgres": LATER,
    },
    "workers.engine": {
        "threads": Member("jobwheel.engines.threads:ThreadEngine"),
        "processes": Member("jobwheel.engines.processes:ProcessEngine"),
        "celery": LATER,
    },
}
"""The members of each seam, by the setting that chooses one. Adding a member is one line here."""

# The descriptions complete the sentence "... will not do; it must be ..." in error messages.
Word = Annotated[str, Meta(description="the name of a member")]
Text = Annotated[str, Meta(min_length=1, description="a text that is not empty")]
Count = Annotated[int, Meta(ge=0, description="a whole number from 0 on")]
Some = Annotated[int, Meta(ge=1, description="a whole number from 1 on")]
Span = Annotated[float, Meta(ge=0, description="a finite number from 0 on")]
Above = Annotated[float, Meta(gt=0, description="a finite number above 0")]
Place = Annotated[
    Annotated[str, Meta(pattern=r"^\w+(\.\w+)*:\w+(\.\w+)*$")] | None, Meta(description='a text such as "shop.wiring:services"')
]
Module = Annotated[str, Meta(pattern=r"^\w+(\.\w+)*$")]


@dataclass(frozen=True, slots=True)
class WheelSettings:
    """The ring: `slots` slots, each `tick` seconds wide."""

    slots: Some = 3600
    tick: Above = 1.0


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where jobs are kept, and how many ended ones: the newest `keep`, each for at most `keep_days` days.

    `path` (from the working directory on) and `durability` are for SQLite: with "power" what was acknowledged survives a power cut, with
    "process" a crash of the process. `url` is for stores that come in a later version.
    """

    kind: Word = "sqlite"
    path: Text = "jobwheel.db"
    # Not in the repr: it may hold a password.
    url: Annotated[str | None, Meta(description="a text")] = field(default=None, repr=False)
    durability: Annotated[Literal["power", "process"], Meta(description="power or process")] = "power"
    keep: Count = 1000
    keep_days: Span = 7.0


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Where due jobs run: `threads` threads, and at most `coroutines` coroutine jobs at once.

    `threads: 0`: this process only adds, and others on the same file run what is due (`jobwheel worker`): they see within about a second
    what was added. `queue`: how many claimed jobs may wait for a thread; 0: four per thread while runs are short, and none while they are
    long and other processes could take them. `ageing`: seconds past its due moment after which a job of low priority is served out of
    turn.

    `engine`: "threads" or "processes", where each run is in a child process unless its kind says `isolation="thread"`. For runs in child
    processes (that, or a kind with `isolation="process"`): there are at most as many children as threads, which wait for them; one is
    replaced after `recycle` runs, and may have `memory` MiB of address space, its interpreter included; 0: no limit.
    """

    engine: Word = "threads"
    threads: Count = 8
    queue: Count = 0
    coroutines: Some = 100
    ageing: Span = 2.0
    recycle: Count = 1000
    memory: Count = 0


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one timer; `load` and `from_mapping` give checked ones.

    `max_pending`: how many jobs may wait, 0 for no limit. `jobs`: modules whose kinds this timer runs and checks at start.
    `exit_timeout`: seconds that the end of the process waits for running jobs.
    `services`: "module:name" of what jobs may ask for, for processes that jobwheel itself starts (`jobwheel worker`, children of
    `isolation="process"`), and for `open_timer` when it is given none: a mapping, a container, a Flask app with `JobWheel`, or a callable
    without arguments that gives one of these (`opening.find_services`).
    """

    backend: Word = "wheel"
    wheel: WheelSettings = WheelSettings()
    store: StoreSettings = StoreSettings()
    workers: WorkerSettings = WorkerSettings()
    max_pending: Count = 0
    jobs: Annotated[tuple[Module, ...], Meta(description="a list of module names, such as [shop.jobs]")] = ()
    exit_timeout: Span = 5.0
    services: Place = None


def _typed(kind: type, prefix: str = "") -> dict[str, Any]:
    return {prefix + name: hint for name, hint in get_type_hints(kind, include_extras=True).items()}


SECTIONS: dict[str, Any] = {name: kind for name, kind in _typed(Settings).items() if is_dataclass(kind)}
FIELDS: dict[str, Any] = {name: kind for name, kind in _typed(Settings).items() if name not in SECTIONS}
for _section, _kind in SECTIONS.items():
    FIELDS |= _typed(_kind, _section + ".")

PREFIX = "JOBWHEEL_"
ENVIRONMENT = {PREFIX + name.upper().replace(".", "__"): name for name in FIELDS}
"""The setting that each environment variable sets: JOBWHEEL_STORE__KIND sets store.kind."""

RESERVED = frozenset({"JOBWHEEL_CONFIG"})
"""Variables that are not settings: applications name their config file by it."""

# Kubernetes puts these into every pod beside a service that is called "jobwheel"; nobody wrote them, so nobody could mend them.
_FOREIGN = re.compile(r"JOBWHEEL_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_.*)?)")


def load(*paths: str | os.PathLike[str], env: Mapping[str, str] = os.environ) -> Settings:
    """The settings of these YAML files, later ones over earlier ones, and of `env` over all; without paths the defaults and `env`.

    Of each file only the section `jobwheel:` is read; a file without one is refused. A list (`jobs`) is replaced, not extended.
    An empty environment variable counts as not set.

    Raises:
        SettingsError: every problem of every file and of `env`, one a line.
    """
    problems: list[str] = []
    values: dict[str, Any] = {}
    for path in paths:
        values |= _read(_section_of(path, problems), f"{os.fspath(path)}: ", problems)
    return _built(values | _from_env(env, problems), problems)


def from_mapping(mapping: Mapping[str, Any], env: Mapping[str, str] = MappingProxyType({})) -> Settings:
    """The settings of a mapping that has the form of a file's `jobwheel:` section, and of `env` (default: none) over it.

    Raises:
        SettingsError: every problem, one a line.
    """
    problems: list[str] = []
    values = _read(mapping, "settings: ", problems)
    return _built(values | _from_env(env, problems), problems)


def fixed(settings: Settings) -> Settings:
    """The same settings, with paths that no later change of the working directory moves."""
    return replace(settings, store=replace(settings.store, path=os.path.abspath(settings.store.path)))


def _section_of(path: str | os.PathLike[str], problems: list[str]) -> object:
    """The `jobwheel:` section of a file as plain values; empty when it cannot be read, and then `problems` has grown."""
    try:
        root = yaml.compose(Path(path).read_bytes(), Loader=yaml.SafeLoader)
        entries = root.value if isinstance(root, yaml.MappingNode) else []
        ours = [(key, value) for key, value in entries if key.value == "jobwheel"]
        problems += [f"{os.fspath(path)}: {problem}" for problem in _twice(ours)]
        if ours:
            problems += [f"{os.fspath(path)}: {problem}" for problem in _twice_inside(ours[-1][1])]
            # Only this section becomes values, by the safe loader: which tags stand in the application's sections is its affair.
            section: object = yaml.SafeLoader("").construct_document(ours[-1][1])
            return section
        present = ", ".join(str(key.value) for key, _ in entries) or "nothing"
        problems.append(f"{os.fspath(path)}: there is no section `jobwheel:` (found: {present}); put the settings under that name")
    except OSError as error:
        problems.append(f"{os.fspath(path)}: the file cannot be read ({error.strerror}); check the path, it starts from {Path.cwd()}")
    except (yaml.YAMLError, ValueError) as error:
        problems.append(f"{os.fspath(path)}: this is not valid YAML, so nothing in it counts: {' '.join(str(error).split())}")
    return None


def _twice_inside(section: yaml.Node) -> Iterable[str]:
    """What `_twice` says of the section `jobwheel:` and of the sections in it."""
    if isinstance(section, yaml.MappingNode):
        yield from _twice(section.value)
        for key, inner in section.value:
            if str(key.value) in SECTIONS and isinstance(inner, yaml.MappingNode):
                yield from _twice(inner.value, f"{key.value}.")


def _twice(entries: Iterable[tuple[yaml.Node, yaml.Node]], prefix: str = "") -> Iterable[str]:
    """Each key that stands twice in one mapping (YAML takes the last and says nothing)."""
    first: dict[str, int] = {}
    for key, _ in entries:
        name, line = str(key.value), key.start_mark.line + 1
        if name in first:
            yield f"{prefix}{name}: it stands in line {first[name]} and again in line {line}; only one can count, remove the other"
        first.setdefault(name, line)


def _read(section: object, source: str, problems: list[str], prefix: str = "") -> dict[str, Any]:
    """The values of one layer by dotted name; what is wrong goes to `problems`. None is an empty section."""
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        place = f"the section {prefix[:-1]}" if prefix else "the settings"
        problems.append(f"{source}{place} must be a mapping of names to values, got {reprlib.repr(section)}")
        return {}
    values: dict[str, Any] = {}
    for key, value in section.items():
        name = f"{prefix}{key}"
        if name in SECTIONS:
            values |= _read(value, source, problems, f"{name}.")
        elif name not in FIELDS or "." in str(key):
            problems.append(f"{source}{name}: {_unknown(name, prefix)}")
        else:
            values[name], wrong = _fit(name, value)
            problems += [f"{source}{name}: {wrong}"] if wrong else []
    return values


def _from_env(env: Mapping[str, str], problems: list[str]) -> dict[str, Any]:
    """The values of the environment by dotted name; what is wrong goes to `problems`."""
    values: dict[str, Any] = {}
    for variable in sorted(env):
        text = env[variable].strip()
        if not text or not variable.startswith(PREFIX) or variable in RESERVED or _FOREIGN.fullmatch(variable):
            continue
        source = f"environment variable {variable}"
        if variable not in ENVIRONMENT:
            inside = [name for name in ENVIRONMENT if name.startswith(f"{variable}__")]
            near = inside or difflib.get_close_matches(variable.upper(), ENVIRONMENT, 1)
            problems.append(f"{source}: no such setting; {_hint(near, ENVIRONMENT)}")
            continue
        name = ENVIRONMENT[variable]
        value = [part.strip() for part in text.split(",") if part.strip()] if name == "jobs" else text
        values[name], wrong = _fit(name, value, strict=False)
        problems += [f"{source}: {wrong}"] if wrong else []
    return values


def _fit(name: str, value: object, strict: bool = True) -> tuple[Any, str]:
    """The value as the setting `name` has it, and an empty text; or None and the reason why it will not do."""
    try:
        good = msgspec.convert(os.fspath(value) if isinstance(value, os.PathLike) else value, FIELDS[name], strict=strict)
        fits = not isinstance(good, float) or math.isfinite(good)
    except msgspec.ValidationError:
        fits = False
    if not fits:
        wanted = FIELDS[name].__metadata__[-1].description
        return None, f"{reprlib.repr(value)} ({type(value).__name__}) will not do; it must be {wanted}"
    if name in MEMBERS and not MEMBERS[name].get(good, LATER).place:
        return None, _no_member(MEMBERS[name], good)
    return good, ""


def _no_member(members: Mapping[str, Member], word: str) -> str:
    here = [name for name, member in members.items() if member.place]
    if word in members:
        return f"{word!r} comes in a later version; this one has {', '.join(here)}"
    return f"there is no member {word!r}; {_hint(difflib.get_close_matches(word.lower(), here, 1), here)}"


def _unknown(name: str, prefix: str) -> str:
    """Why the key is refused, with the nearest valid name: the same word elsewhere, else a similar one here, else one elsewhere."""
    if prefix == "" and name == "jobwheel":
        return "a mapping is taken as the section itself; give what stands under `jobwheel`"
    word = name.removeprefix(prefix).lower()
    if "." in word and word in FIELDS:
        return "no such setting; nest it: what stands before the dot is a section, what follows is a key in that section"
    everywhere = {known.rpartition(".")[2]: known for known in (*FIELDS, *SECTIONS)}
    here = {last: known for last, known in everywhere.items() if known == prefix + last}
    near = [word] if word in everywhere else difflib.get_close_matches(word, here, 1) or difflib.get_close_matches(word, everywhere, 1)
    return f"no such setting; {_hint([everywhere[last] for last in near], here.values())}"


def _hint(near: Iterable[str], known: Iterable[str]) -> str:
    return f"did you mean {' or '.join(near)}?" if near else f"known here: {', '.join(sorted(known))}"


def _built(values: Mapping[str, Any], problems: list[str]) -> Settings:
    """Settings from values by dotted name, or `SettingsError` with all problems."""
    if problems:
        raise told(problems)
    sections = {
        section: kind(**{each.name: values[name] for each in fields(kind) if (name := f"{section}.{each.name}") in values})
        for section, kind in SECTIONS.items()
    }
    return Settings(**sections, **{name: value for name, value in values.items() if "." not in name})


def told(problems: Iterable[str]) -> SettingsError:
    """The error that tells these problems, one a line, whatever a value or another library's message holds."""
    return SettingsError("\n".join(" ".join(problem.splitlines()) for problem in problems))
