"""Durations as users give them."""

from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from math import inf, nan
from typing import Any

import pytest

from jobwheel.delay import LONGEST, seconds
from jobwheel.errors import BadType, BadValue


@pytest.mark.parametrize(
    ("given", "expected"),
    [(0, 0.0), (0.0, 0.0), (-0.0, 0.0), (1, 1.0), (2.5, 2.5), (timedelta(minutes=15), 900.0), (timedelta(0), 0.0), (LONGEST, LONGEST)],
)
def test_numbers_and_timedeltas_are_seconds(given: Any, expected: float) -> None:
    value = seconds(given)
    assert type(value) is float
    assert value == expected


@pytest.mark.parametrize("given", [-1, -0.001, timedelta(microseconds=-1), -(10**400)])
def test_negative_is_refused_with_what_to_do(given: Any) -> None:
    with pytest.raises(BadValue, match="negative; 0 means as soon as a worker is free"):
        seconds(given)


@pytest.mark.parametrize("given", [inf, -inf, nan])
def test_what_is_not_finite_is_refused(given: float) -> None:
    with pytest.raises(BadValue, match="must be finite"):
        seconds(given)


@pytest.mark.parametrize("given", [LONGEST * 1.001, 10**12, 10**400, 1e300, timedelta.max])
def test_over_a_hundred_years_is_refused(given: Any) -> None:
    """R33: a huge number is an error at the caller's line, also one that no float can hold."""
    with pytest.raises(BadValue, match="over 100 years"):
        seconds(given)


@pytest.mark.parametrize("given", [True, False, "5", None, b"5", [5], Decimal(5), Fraction(1, 2), 5j])
def test_what_is_no_duration_is_refused_with_the_types_that_are(given: Any) -> None:
    with pytest.raises(BadType, match=r"seconds .int or float. or a timedelta"):
        seconds(given)


def test_the_message_names_the_argument_and_the_value() -> None:
    with pytest.raises(BadValue, match="max_wait=-3"):
        seconds(-3, "max_wait")


def test_errors_are_also_what_python_users_expect() -> None:
    with pytest.raises(ValueError, match="negative"):
        seconds(-1)
    with pytest.raises(TypeError, match="seconds"):
        seconds("1")
