"""What an app's config says of its timer, checked when the extension is given the app, before anything is made.

Does: read the keys JOBWHEEL and JOBWHEEL_*, refuse unknown ones with the nearest name, tell all problems at once.
Does not: import job modules or make the timer, which waits for its first use. Called by `jobwheel.flask.extension`.
"""

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from jobwheel.errors import BadType, SettingsError
from jobwheel.opening import read_settings
from jobwheel.services import Services, as_services
from jobwheel.settings import ENVIRONMENT, Settings

KEYS = ("JOBWHEEL", "JOBWHEEL_AUTOSTART", "JOBWHEEL_CONFIG", "JOBWHEEL_SERVICES")

Autostart = Literal["auto", "never", "always"]
WORDS: dict[object, Autostart] = {True: "auto", False: "never", "auto": "auto", "never": "never", "always": "always"}


@dataclass(frozen=True, slots=True)
class Options:
    """One app's share of the config.

    `autostart`: whether requests start the timer ("auto", "never"), or even in the reloader's parent ("always"). `settings`: what the
    timer is made to, None if the app was given one. `services`: what its jobs may ask for; None: what the setting
    `services` names.
    """

    autostart: Autostart = "auto"
    settings: Settings | None = None
    services: Services | None = field(default_factory=lambda: as_services(None))


def read_options(config: Mapping[str, Any], has_timer: bool) -> Options:
    """The options in an app's `config`; the settings and services of a timer are read only if the app has none.

    Raises:
        SettingsError: every problem, one a line.
    """
    problems = list(_unknown(config))
    word = config.get("JOBWHEEL_AUTOSTART", True)
    autostart = WORDS.get(word) if isinstance(word, bool | int | str) else None
    if autostart is None:
        problems.append(f"JOBWHEEL_AUTOSTART={word!r} will not do; it must be True, False, 'auto', 'never' or 'always'")
    options = Options(autostart or "auto")
    if not has_timer:
        try:
            options = Options(options.autostart, *_made(_settings(config), config.get("JOBWHEEL_SERVICES")))
        except (SettingsError, BadType) as error:
            problems.append(str(error))
    if problems:
        raise SettingsError("the Flask app's config:\n" + "\n".join(problems))
    return options


def _made(settings: Settings, services: object) -> tuple[Settings, Services | None]:
    if isinstance(services, str):  # the environment was loaded into the config: there it is the setting of that name
        return read_settings(replace(settings, services=services)), None
    return settings, as_services(services)


def _settings(config: Mapping[str, Any]) -> Settings:
    given = {key: config[key] for key in ("JOBWHEEL", "JOBWHEEL_CONFIG") if config.get(key) not in (None, "")}
    if len(given) > 1:
        raise SettingsError("JOBWHEEL and JOBWHEEL_CONFIG are both set; only one can say how the timer is made, remove the other")
    return read_settings(next(iter(given.values()), None))


def _unknown(config: Mapping[str, Any]) -> Iterator[str]:
    for key, value in config.items():
        # Whole environments are loaded into configs, and there the names of settings, and those of Kubernetes, have their own meaning.
        if not key.startswith("JOBWHEEL") or key in KEYS or os.environ.get(key) == value:
            continue
        if key in ENVIRONMENT:
            yield f"{key}: that is a name for the environment; here write JOBWHEEL = {{...}}, as a file's section `jobwheel:` is written"
            continue
        near = difflib.get_close_matches(key, KEYS, 1)
        there = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(KEYS)}"
        yield f"{key}: there is no such key; {there}"
