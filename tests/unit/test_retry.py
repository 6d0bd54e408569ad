"""The retry policy, and the exceptions by which a run decides itself."""

from datetime import timedelta
from math import inf, nan
from typing import Any

import pytest

from jobwheel import CancelJob, Retry, RetryJob
from jobwheel.delay import LONGEST
from jobwheel.errors import BadType, BadValue


def waits(policy: Retry, error: BaseException | None = None) -> list[float]:
    """The waits that the policy gives to a run that always raises."""
    found = []
    while (wait := policy.wait_after(len(found) + 1, error or ValueError())) is not None:
        found.append(wait)
    return found


def test_by_default_there_is_no_second_attempt() -> None:
    assert waits(Retry()) == []


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_attempts_count_all_runs(attempts: int) -> None:
    assert len(waits(Retry(attempts=attempts))) == attempts - 1


def test_backoff_doubles() -> None:
    assert waits(Retry(attempts=5, backoff=2)) == [2, 4, 8, 16]


def test_cap_bounds_each_wait() -> None:
    assert waits(Retry(attempts=6, backoff=2, cap=10)) == [2, 4, 8, 10, 10]
    assert waits(Retry(attempts=3, backoff=60, cap=10)) == [10, 10]
    assert waits(Retry(attempts=3, backoff=60, cap=0)) == [0, 0]


def test_thousands_of_attempts_neither_overflow_nor_wait_longer_than_a_job_may() -> None:
    policy = Retry(attempts=10**9, backoff=3)
    for attempt in (1000, 1024, 5000, 10**8):
        assert policy.wait_after(attempt, ValueError()) == LONGEST


def test_without_backoff_every_wait_is_nothing() -> None:
    assert set(waits(Retry(attempts=2000))) == {0.0}


def test_jitter_takes_away_at_most_its_fraction_and_differs() -> None:
    policy = Retry(attempts=2, backoff=100, jitter=0.2)
    seen = {policy.wait_after(1, ValueError()) for _ in range(200)}
    assert all(wait is not None and 80 <= wait <= 100 for wait in seen)
    assert len(seen) > 100


def test_retry_on_decides_by_class_and_subclass() -> None:
    policy = Retry(attempts=3, retry_on=(OSError, KeyError))
    assert len(waits(policy, ConnectionResetError())) == 2
    assert len(waits(policy, KeyError())) == 2
    assert waits(policy, ValueError()) == []


def test_a_base_exception_is_retried_only_when_named() -> None:
    assert waits(Retry(attempts=3), SystemExit()) == []
    assert len(waits(Retry(attempts=3, retry_on=(SystemExit,)), SystemExit())) == 2


@pytest.mark.parametrize(
    "wrong",
    [{"attempts": 0}, {"attempts": -1}, {"backoff": -1}, {"backoff": inf}, {"cap": nan}, {"cap": -1}, {"jitter": 1.1}, {"jitter": -0.1}],
)
def test_values_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(BadValue, match=f"Retry\\({name}="):
        Retry(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [{"attempts": 2.5}, {"attempts": "3"}, {"attempts": True}, {"backoff": "2"}, {"backoff": True}, {"cap": "x"}, {"jitter": "x"}],
)
def test_values_of_a_wrong_type_are_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises((BadType, BadValue), match=f"Retry\\({name}="):
        Retry(**wrong)


@pytest.mark.parametrize("wrong", [ValueError, (ValueError(),), ("ValueError",), (int,), None])
def test_retry_on_must_be_a_tuple_of_exception_classes(wrong: Any) -> None:
    with pytest.raises(BadType, match="a tuple of exception classes"):
        Retry(retry_on=wrong)


def test_a_policy_is_a_value() -> None:
    assert Retry(attempts=3) == Retry(attempts=3)
    with pytest.raises(AttributeError):
        Retry().attempts = 5  # type: ignore[misc]


def test_retry_job_takes_a_delay_like_add_job() -> None:
    assert RetryJob().delay == 0.0
    assert RetryJob(timedelta(minutes=1)).delay == 60.0
    assert RetryJob(5, "later").reason == "later"
    with pytest.raises(BadValue, match="negative"):
        RetryJob(-1)
    with pytest.raises(BadType, match="seconds"):
        RetryJob("soon")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [CancelJob, RetryJob])
def test_control_flow_passes_an_except_exception_in_the_job(kind: type[BaseException]) -> None:
    assert not issubclass(kind, Exception)
