"""Durations as users give them: numbers of seconds or timedeltas, checked once at the caller's line."""

from datetime import timedelta
from math import isfinite

from jobwheel.errors import BadType, BadValue

LONGEST = 100 * 365.25 * 86400
"""100 years in seconds: longer than any process and store, and far below where clocks and dates overflow."""


def seconds(value: object, what: str = "delay") -> float:
    """`value` in seconds.

    Raises:
        BadType: not a number or timedelta (a bool is none either).
        BadValue: negative, NaN, infinite, or over 100 years.
    """
    if isinstance(value, timedelta):
        number = value.total_seconds()
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise BadType(f"{what}={value!r}: give seconds (int or float) or a timedelta, not {type(value).__name__}")
    elif isinstance(value, float) and not isfinite(value):
        raise BadValue(f"{what}={value!r}: it must be finite; for 'never', do not add the job")
    else:
        number = value
    if number < 0:
        raise BadValue(f"{what}={value!r} is negative; 0 means as soon as a worker is free, at= takes a moment in the past")
    if number > LONGEST:
        raise BadValue(f"{what}={value!r} is over 100 years, the longest that is kept")
    return float(number)
