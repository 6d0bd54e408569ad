"""The shop's own section of the configuration file. jobwheel reads its section of the same file by itself."""

import math
from dataclasses import dataclass, fields
from pathlib import Path

import yaml

from jobwheel import UsageError, cron


class ShopSettingsError(Exception):
    """The shop's section cannot be used; the message says which file and why."""


@dataclass(frozen=True, slots=True)
class ShopSettings:
    """`shop:` as read: how long things take, in seconds, when travellers are counted, and where the rows are kept."""

    pay_within: float = 900.0
    """An order that is not paid by then is cancelled."""
    hold_room: float = 600.0
    """A booked room to which nobody came by then is released."""
    offline_after: float = 30.0
    """So long after the last sign of its page a traveller counts as gone."""
    stars_after: float = 172_800.0
    """A ride that is not rated by then has five stars."""
    change_after: float = 3600.0
    """A changed address takes force after that."""
    count_at: str = "0 * * * *"
    """The cron expression by which travellers are counted, in the time of Berlin."""
    mail_takes: float = 0.005
    """How long the sending of one mail takes."""
    database: str = "web_example.db"
    """The SQLite file, relative to the working directory."""


SECONDS = tuple(field.name for field in fields(ShopSettings) if isinstance(field.default, float))


def read_shop(path: str | Path) -> ShopSettings:
    """The `shop:` section of the YAML file at `path`; what it leaves out has its default. Raises ShopSettingsError."""
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ShopSettingsError(f"{path} cannot be read: {error.strerror}. Name the file in JOBWHEEL_CONFIG") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ShopSettingsError(f"{path} is not YAML: {error}") from error
    section = (content.get("shop") if isinstance(content, dict) else None) or {}
    known = {field.name for field in fields(ShopSettings)}
    if not isinstance(section, dict) or not section.keys() <= known:
        raise ShopSettingsError(f"{path}: shop: takes {', '.join(sorted(known))}; got {section!r}")
    settings = ShopSettings(**section)
    for name in SECONDS:
        seconds: object = getattr(settings, name)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
            raise ShopSettingsError(f"{path}: shop.{name}: {seconds!r} is not a number of seconds above 0")
    try:
        cron(settings.count_at)
    except UsageError as error:
        raise ShopSettingsError(f"{path}: shop.count_at: {error}") from error
    if not isinstance(settings.database, str) or not settings.database:
        raise ShopSettingsError(f"{path}: shop.database: {settings.database!r} is not the path of a file")
    return settings
