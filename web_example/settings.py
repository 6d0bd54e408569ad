"""The shop's own section of the configuration file. jobwheel reads its section of the same file by itself."""

import math
from dataclasses import dataclass, fields
from pathlib import Path

import yaml


class ShopSettingsError(Exception):
    """The shop's section cannot be used; the message says which file and why."""


@dataclass(frozen=True, slots=True)
class ShopSettings:
    """`shop:` as read: seconds to pay in, and the path of the SQLite file (relative to the working directory)."""

    pay_within: float = 900.0
    database: str = "web_example.db"


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
        raise ShopSettingsError(f"{path}: shop: takes {' and '.join(sorted(known))}, got {section!r}")
    settings = ShopSettings(**section)
    pay_within: object = settings.pay_within
    if isinstance(pay_within, bool) or not isinstance(pay_within, int | float) or not 0 < pay_within < math.inf:
        raise ShopSettingsError(f"{path}: shop.pay_within: {pay_within!r} is not a number of seconds above 0")
    if not isinstance(settings.database, str) or not settings.database:
        raise ShopSettingsError(f"{path}: shop.database: {settings.database!r} is not the path of a file")
    return settings
