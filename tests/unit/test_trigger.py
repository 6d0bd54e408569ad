"""Triggers: which moment comes next. They know no clock, so all here is arithmetic; the oracle of cron is a walk minute by minute."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from functools import cache
from math import inf, nan
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobwheel import Trigger, UsageError, cron, every, preview
from jobwheel import trigger as triggers
from jobwheel.codec import UnreadableData, decode_trigger, encode_trigger, storable_trigger
from jobwheel.errors import BadType, BadValue

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
NAIVE = NEW_YEAR.replace(tzinfo=None)


@pytest.fixture
def own_triggers() -> Any:
    """Trigger kinds that a test registers are forgotten after it."""
    before = dict(triggers._kinds)
    yield
    triggers._kinds.clear()
    triggers._kinds.update(before)


def local(moments: list[datetime], zone: str) -> list[str]:
    return [moment.astimezone(ZoneInfo(zone)).strftime("%d %H:%M%z") for moment in moments]


def between(trigger: Trigger, start: datetime, end: datetime) -> list[datetime]:
    """What `trigger` gives after `start` and not after `end`, each asked for with the one before."""
    found: list[datetime] = []
    moment = trigger.next_due(start)
    while moment is not None and moment <= end:
        found.append(moment)
        moment = trigger.next_due(moment)
    return found


def on_day(expression: str, zone: str, day: date, days: int = 1) -> list[str]:
    """The moments of so many local days, in local time."""
    midnight = datetime.combine(day, time(), ZoneInfo(zone)).astimezone(UTC)
    end = datetime.combine(day + days * DAY, time(), ZoneInfo(zone)).astimezone(UTC)
    return local(between(cron(expression, tz=zone), midnight - timedelta(microseconds=1), end - timedelta(microseconds=1)), zone)


# --- every: what it takes ---


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (60, 60.0),
        (0.001, 0.001),
        (0.1, 0.1),
        (timedelta(hours=1), 3600.0),
        (1 / 3, 0.333333),
        (100 * 365.25 * 86400, 100 * 365.25 * 86400),
    ],
)
def test_an_interval_is_seconds_or_a_timedelta_in_whole_microseconds(given: Any, seconds: float) -> None:
    assert every(given) == every(seconds)
    assert every(given).next_due(NEW_YEAR) == NEW_YEAR + timedelta(seconds=seconds)


@pytest.mark.parametrize("given", [0, -1, 0.0009, 1e-9, nan, inf, -inf, 1e300, timedelta(0), timedelta(microseconds=999), timedelta.max])
def test_an_interval_that_cannot_be_is_refused(given: Any) -> None:
    with pytest.raises(BadValue, match="every"):
        every(given)


@pytest.mark.parametrize("given", [True, "60", None, [60], 5j, NEW_YEAR])
def test_an_interval_of_another_type_is_refused(given: Any) -> None:
    with pytest.raises(BadType, match="every"):
        every(given)


@pytest.mark.parametrize(
    ("start", "error", "match"),
    [
        (NAIVE, BadValue, r"start=.*no time zone"),
        ("2026-01-01", BadType, "start="),
        (date(2026, 1, 1), BadType, "start="),
        (0, BadType, "start="),
    ],
)
def test_a_start_that_names_no_moment_is_refused(start: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        every(60, start=start)


@pytest.mark.parametrize(
    ("jitter", "error"), [(60, BadValue), (61, BadValue), (-1, BadValue), (nan, BadValue), ("1", BadType), (True, BadType), (None, BadType)]
)
def test_a_jitter_must_be_less_than_the_interval(jitter: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="jitter"):
        every(60, jitter=jitter)


def test_triggers_of_equal_meaning_are_equal_and_can_be_keys() -> None:
    assert every(60) == every(timedelta(minutes=1)) == every(60.0, jitter=0)
    assert every(60) != every(61) != every(60, jitter=1)
    berlin = datetime(2026, 1, 1, 1, tzinfo=ZoneInfo(BERLIN))
    assert every(60, start=NEW_YEAR) == every(60, start=berlin)
    assert cron("0 3 * * *") == cron("  0  3 *\t* * ") == cron("0 3 * * *", tz=ZoneInfo("UTC")) == cron("0 0 3 * * *")
    assert cron("0 3 * * *") != cron("0 3 * * *", tz=BERLIN)
    assert len({every(60), every(60.0), cron("0 3 * * *"), cron("0  3 * * *")}) == 2


def test_triggers_cannot_be_changed() -> None:
    for trigger in (every(60), cron("0 3 * * *")):
        for field in dataclasses.fields(trigger):  # type: ignore[arg-type]
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(trigger, field.name, 1)


# --- every: its moments ---


def test_without_a_start_the_first_moment_is_one_interval_later() -> None:
    assert preview(every(90), 3, after=NEW_YEAR) == [NEW_YEAR + timedelta(seconds=90 * n) for n in (1, 2, 3)]


def test_a_start_in_the_future_is_the_first_moment() -> None:
    start = NEW_YEAR + timedelta(hours=5)
    assert preview(every(60, start=start), 2, after=NEW_YEAR) == [start, start + MINUTE]
    assert every(60, start=start).next_due(start - timedelta(microseconds=1)) == start


def test_a_start_in_the_past_only_places_the_grid() -> None:
    start = NEW_YEAR - 10 * DAY + timedelta(seconds=7)
    assert every(3600, start=start).next_due(NEW_YEAR) == NEW_YEAR + timedelta(seconds=7)
    assert every(3600, start=start).next_due(start) == start + timedelta(hours=1)


@pytest.mark.parametrize("after", [NAIVE, "now", None, 0])
def test_a_moment_without_a_zone_is_refused_by_all_who_are_asked(after: Any) -> None:
    for trigger in (every(60), cron("* * * * *")):
        with pytest.raises((BadType, BadValue), match="after="):
            trigger.next_due(after)


aware = st.datetimes(NAIVE.replace(1990), NAIVE.replace(2090), timezones=st.sampled_from([UTC, ZoneInfo(BERLIN), ZoneInfo(LORD_HOWE)]))
intervals = st.one_of(st.integers(1, 10**6).map(lambda n: n / 1000), st.sampled_from([1 / 3, 0.1, 7.7, 86400.0, 1e8]))


@given(after=aware, start=aware, interval=intervals)
def test_the_next_moment_of_a_grid_is_the_first_one_after(after: datetime, start: datetime, interval: float) -> None:
    trigger = every(interval, start=start)
    step = timedelta(seconds=round(interval, 6))
    due = trigger.next_due(after)
    assert due is not None
    assert due.tzinfo is UTC
    assert due > after.astimezone(UTC)
    assert (due - start.astimezone(UTC)) % step == timedelta(0)
    assert due == start.astimezone(UTC) or (due > start.astimezone(UTC) and due - step <= after.astimezone(UTC))


# --- cron: what it takes ---


@pytest.mark.parametrize(
    ("expression", "match"),
    [
        ("", "it has 0 fields"),
        ("* * * *", "it has 4 fields; five are: minute, hour"),
        ("* * * * * * *", "it has 7 fields"),
        ("60 * * * *", "minute"),
        ("* 24 * * *", "hour"),
        ("* * 0 * *", "day"),
        ("* * 32 * *", "day"),
        ("* * * 13 *", "month"),
        ("* * * * 8", "day-of-week"),
        ("* * * FEBR *", "month"),
        ("* * * * MONDAY", "day-of-week"),
        ("-1 * * * *", "minute"),
        ("5- * * * *", "minute"),
        ("10-5 * * * *", "minute"),
        ("*/0 * * * *", "minute"),
        ("*/ * * * *", "minute"),
        ("1,,2 * * * *", "minute"),
        ("a b c d e", "minute"),
        ("1.5 * * * *", "minute"),
        ("\u0661 * * * *", "minute"),
        ("0 0 30 2 *", "day"),
        ("0 0 31 4,6 *", "day"),
        ("60 * * * * *", "second"),
        ("@daily", "it has 1 fields"),
    ],
)
def test_an_expression_that_is_none_is_refused_with_the_field(expression: str, match: str) -> None:
    with pytest.raises(BadValue, match=match):
        cron(expression)


@pytest.mark.parametrize("given", [None, 5, ["*"] * 5, b"* * * * *"])
def test_an_expression_is_a_text(given: Any) -> None:
    with pytest.raises(BadType, match="cron"):
        cron(given)


@pytest.mark.parametrize(
    ("zone", "error", "match"),
    [
        ("Europe/Berln", BadValue, "did you mean 'Europe/Berlin'"),
        ("", BadValue, "no such time zone"),
        ("Mars", BadValue, "no such time zone"),
        ("Europe", BadValue, "no such time zone"),
        ("../etc/passwd", BadValue, "no such time zone"),
        ("/etc/passwd", BadValue, "no such time zone"),
        ("a\0b", BadValue, "no such time zone"),
        (None, BadType, "tz=None"),
        (UTC, BadType, "tz="),
        (timezone(timedelta(hours=1)), BadType, "tz="),
        (2, BadType, "tz=2"),
    ],
)
def test_a_zone_that_is_none_is_refused(zone: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        cron("0 3 * * *", tz=zone)


def test_the_zone_may_be_an_object_and_is_utc_by_default() -> None:
    assert cron("0 3 * * *", tz=ZoneInfo(BERLIN)) == cron("0 3 * * *", tz=BERLIN)
    assert cron("0 3 * * *").next_due(NEW_YEAR) == datetime(2026, 1, 1, 3, tzinfo=UTC)
    assert cron("0 3 * * *", tz=BERLIN).next_due(NEW_YEAR) == datetime(2026, 1, 1, 2, tzinfo=UTC)


def test_the_zone_of_the_machine_means_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Nonsense/Zone")
    assert cron("0 3 * * *").next_due(NEW_YEAR) == datetime(2026, 1, 1, 3, tzinfo=UTC)


fields = st.text("0123456789*/,-#LWlwMONSUNJAN?@ \u00b2", max_size=8)


@given(st.one_of(st.lists(fields, min_size=5, max_size=6).map(" ".join), st.text(max_size=20)))
@settings(max_examples=400, deadline=None)
def test_whatever_the_text_it_is_a_trigger_or_refused_in_words(text: str) -> None:
    try:
        trigger = cron(text)
    except UsageError:
        return
    due = trigger.next_due(NEW_YEAR)
    assert due is None or due > NEW_YEAR


# --- cron: its moments ---


@pytest.mark.parametrize("sunday", ["0", "7", "SUN", "sun", "Sun"])
def test_0_and_7_and_the_name_are_sunday(sunday: str) -> None:
    assert cron(f"0 0 * * {sunday}").next_due(NEW_YEAR) == datetime(2026, 1, 4, tzinfo=UTC)


def test_1_to_5_are_monday_to_friday() -> None:
    for days in ("1-5", "MON-FRI", "mon,tue,wed,thu,fri"):
        assert [moment.isoweekday() for moment in preview(cron(f"0 0 * * {days}"), 7, after=NEW_YEAR)] == [5, 1, 2, 3, 4, 5, 1]
    assert [moment.isoweekday() for moment in preview(cron("0 0 * * 5-7"), 4, after=NEW_YEAR)] == [5, 6, 7, 5]


def test_names_of_months_are_good() -> None:
    assert cron("0 0 1 MAR *") != cron("0 0 1 3 *")  # they are told by their text
    assert cron("0 0 1 mar *").next_due(NEW_YEAR) == cron("0 0 1 3 *").next_due(NEW_YEAR) == datetime(2026, 3, 1, tzinfo=UTC)


def test_with_day_of_month_and_day_of_week_either_will_do() -> None:
    found = preview(cron("0 0 13 * FRI"), 6, after=datetime(2026, 2, 1, tzinfo=UTC))
    assert [moment.day for moment in found] == [6, 13, 20, 27, 6, 13]  # the 13th of both months is a Friday
    found = preview(cron("0 0 14 * FRI"), 6, after=datetime(2026, 2, 1, tzinfo=UTC))
    assert [moment.day for moment in found] == [6, 13, 14, 20, 27, 6]


def test_the_29th_of_february_comes_in_leap_years_alone() -> None:
    found = preview(cron("0 12 29 2 *", tz=BERLIN), 3, after=NEW_YEAR)
    assert [(moment.year, moment.month, moment.day) for moment in found] == [(2028, 2, 29), (2032, 2, 29), (2036, 2, 29)]
    assert cron("0 0 29 2 *").next_due(datetime(2096, 3, 1, tzinfo=UTC)) == datetime(2104, 2, 29, tzinfo=UTC)  # 2100 is none


def test_the_last_day_of_the_month_is_l() -> None:
    assert [moment.day for moment in preview(cron("0 0 L * *"), 4, after=NEW_YEAR)] == [31, 28, 31, 30]


def test_six_fields_begin_with_the_seconds() -> None:
    assert [moment.second for moment in preview(cron("*/15 * * * * *"), 5, after=NEW_YEAR)] == [15, 30, 45, 0, 15]
    assert cron("30 0 3 * * *").next_due(NEW_YEAR) == NEW_YEAR + timedelta(hours=3, seconds=30)


def test_a_moment_is_strictly_after_the_one_asked_for() -> None:
    trigger = cron("0 3 * * *")
    three = datetime(2026, 1, 1, 3, tzinfo=UTC)
    assert trigger.next_due(three - timedelta(microseconds=1)) == three
    assert trigger.next_due(three) == three + DAY
    assert trigger.next_due(three + timedelta(microseconds=1)) == three + DAY


def test_a_moment_may_be_asked_for_in_any_zone() -> None:
    trigger = cron("0 3 * * *", tz=BERLIN)
    assert {trigger.next_due(NEW_YEAR.astimezone(ZoneInfo(zone))) for zone in ("UTC", BERLIN, NEW_YORK, LORD_HOWE)} == {
        datetime(2026, 1, 1, 2, tzinfo=UTC)
    }


# --- cron where the clocks change ---

SPRING = {BERLIN: date(2026, 3, 29), NEW_YORK: date(2026, 3, 8), LORD_HOWE: date(2026, 10, 4)}
AUTUMN = {BERLIN: date(2026, 10, 25), NEW_YORK: date(2026, 11, 1), LORD_HOWE: date(2026, 4, 5)}


@pytest.mark.parametrize(
    ("zone", "expression", "days"),
    [
        (BERLIN, "30 2 * * *", ["28 02:30+0100", "29 03:00+0200", "30 02:30+0200"]),
        (BERLIN, "0 2 * * *", ["28 02:00+0100", "29 03:00+0200", "30 02:00+0200"]),
        (BERLIN, "59 1 * * *", ["28 01:59+0100", "29 01:59+0100", "30 01:59+0200"]),
        (BERLIN, "0 3 * * *", ["28 03:00+0100", "29 03:00+0200", "30 03:00+0200"]),
        (BERLIN, "0 0 * * *", ["28 00:00+0100", "29 00:00+0100", "30 00:00+0200"]),
        (NEW_YORK, "30 2 * * *", ["07 02:30-0500", "08 03:00-0400", "09 02:30-0400"]),
        (NEW_YORK, "0 0 * * *", ["07 00:00-0500", "08 00:00-0500", "09 00:00-0400"]),
        (LORD_HOWE, "15 2 * * *", ["03 02:15+1030", "04 02:30+1100", "05 02:15+1100"]),
        (LORD_HOWE, "30 2 * * *", ["03 02:30+1030", "04 02:30+1100", "05 02:30+1100"]),
        (LORD_HOWE, "0 0 * * *", ["03 00:00+1030", "04 00:00+1030", "05 00:00+1100"]),
    ],
)
def test_a_fixed_time_that_spring_skips_runs_once_at_the_end_of_the_gap(zone: str, expression: str, days: list[str]) -> None:
    """The day before, that day, and the day after."""
    assert on_day(expression, zone, SPRING[zone] - DAY, 3) == days


@pytest.mark.parametrize(
    ("zone", "expression", "days"),
    [
        (BERLIN, "30 2 * * *", ["24 02:30+0200", "25 02:30+0200", "26 02:30+0100"]),
        (BERLIN, "0 3 * * *", ["24 03:00+0200", "25 03:00+0100", "26 03:00+0100"]),
        (BERLIN, "0 0 * * *", ["24 00:00+0200", "25 00:00+0200", "26 00:00+0100"]),
        (NEW_YORK, "30 1 * * *", ["31 01:30-0400", "01 01:30-0400", "02 01:30-0500"]),
        (NEW_YORK, "0 0 * * *", ["31 00:00-0400", "01 00:00-0400", "02 00:00-0500"]),
        (LORD_HOWE, "45 1 * * *", ["04 01:45+1100", "05 01:45+1100", "06 01:45+1030"]),
        (LORD_HOWE, "0 2 * * *", ["04 02:00+1100", "05 02:00+1030", "06 02:00+1030"]),
        (LORD_HOWE, "0 0 * * *", ["04 00:00+1100", "05 00:00+1100", "06 00:00+1030"]),
    ],
)
def test_a_fixed_time_that_autumn_has_twice_runs_once_the_first_time(zone: str, expression: str, days: list[str]) -> None:
    """The day before, that day, and the day after."""
    assert on_day(expression, zone, AUTUMN[zone] - DAY, 3) == days


def test_asked_in_the_second_of_two_equal_hours_a_fixed_time_waits_for_the_next_day() -> None:
    second = datetime(2026, 10, 25, 2, 10, tzinfo=ZoneInfo(BERLIN), fold=1)
    assert cron("30 2 * * *", tz=BERLIN).next_due(second) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)
    assert cron("0,30 2 * * *", tz=BERLIN).next_due(second.replace(fold=0)) == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK, LORD_HOWE])
def test_each_real_hour_of_a_short_day_has_its_run(zone: str) -> None:
    """On Lord Howe the clock shows 02:30 when it should show 02:00, so there too it shows a full hour 23 times."""
    assert len(on_day("0 * * * *", zone, SPRING[zone])) == 23
    assert len(on_day("0 * * * *", zone, SPRING[zone] + DAY)) == 24


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK])
def test_each_real_hour_of_a_long_day_has_its_run(zone: str) -> None:
    assert len(on_day("0 * * * *", zone, AUTUMN[zone])) == 25
    assert len(on_day("0 * * * *", zone, AUTUMN[zone] + DAY)) == 24


@pytest.mark.parametrize(("zone", "spring", "autumn"), [(BERLIN, 92, 100), (NEW_YORK, 92, 100), (LORD_HOWE, 94, 98)])
def test_each_real_quarter_of_an_hour_has_its_run(zone: str, spring: int, autumn: int) -> None:
    assert len(on_day("*/15 * * * *", zone, SPRING[zone])) == spring
    assert len(on_day("*/15 * * * *", zone, AUTUMN[zone])) == autumn
    for day in (SPRING[zone], AUTUMN[zone]):
        assert len(on_day("*/15 * * * *", zone, day - DAY)) == len(on_day("*/15 * * * *", zone, day + DAY)) == 96


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("45 1-3 * * *", ["04 01:45+1030", "04 02:45+1100", "04 03:45+1100"]),
        ("45 */1 4 10 *", None),
        ("*/15 3 * * *", ["04 03:00+1100", "04 03:15+1100", "04 03:30+1100", "04 03:45+1100"]),
        ("*/15 2 * * *", ["04 02:30+1100", "04 02:45+1100"]),
    ],
)
def test_where_the_clock_moves_by_half_an_hour_in_spring_nothing_is_stepped_over(expression: str, expected: list[str] | None) -> None:
    found = on_day(expression, LORD_HOWE, SPRING[LORD_HOWE])
    if expected is None:  # 45 of each hour, all of which are there
        expected = [f"04 {hour:02}:45+{'1030' if hour < 2 else '1100'}" for hour in range(24)]
    assert found == expected


def test_where_the_clock_moves_by_half_an_hour_in_autumn_nothing_is_stepped_over() -> None:
    day = AUTUMN[LORD_HOWE]
    assert on_day("45 * * * *", LORD_HOWE, day)[:4] == ["05 00:45+1100", "05 01:45+1100", "05 01:45+1030", "05 02:45+1030"]
    assert on_day("*/15 3 * * *", LORD_HOWE, day) == ["05 03:00+1030", "05 03:15+1030", "05 03:30+1030", "05 03:45+1030"]
    assert on_day("*/30 0 * * *", LORD_HOWE, day + DAY) == ["06 00:00+1030", "06 00:30+1030"]


def test_a_date_that_a_zone_has_not_runs_once_when_the_gap_ends() -> None:
    """Samoa went from Thursday the 29th to Saturday the 31st of December 2011."""
    apia = "Pacific/Apia"
    assert on_day("0 12 * * *", apia, date(2011, 12, 29), 3) == ["29 12:00-1000", "31 00:00+1400", "31 12:00+1400"]
    hours = on_day("0 * * * *", apia, date(2011, 12, 29), 3)
    assert len(hours) == 48
    assert hours[23:25] == ["29 23:00-1000", "31 00:00+1400"]


def test_a_day_that_begins_after_midnight_has_its_midnight_run() -> None:
    """Cairo's clocks go from 00:00 to 01:00."""
    assert on_day("0 0 * * *", "Africa/Cairo", date(2026, 4, 23), 3) == ["23 00:00+0200", "24 01:00+0300", "25 00:00+0300"]


def test_a_day_that_has_its_midnight_twice_runs_once() -> None:
    """Havana's clocks go from 01:00 back to 00:00."""
    assert on_day("0 0 * * *", "America/Havana", date(2026, 10, 31), 3) == ["31 00:00-0400", "01 00:00-0400", "02 00:00-0500"]


class Case(NamedTuple):
    """A zone and a day on which its clocks change."""

    zone: str
    day: date


CHANGES = [
    *(Case(zone, day) for which in (SPRING, AUTUMN) for zone, day in which.items()),
    Case("Africa/Cairo", date(2026, 4, 24)),
    Case("Africa/Cairo", date(2026, 10, 30)),
    Case("America/Havana", date(2026, 3, 8)),
    Case("America/Havana", date(2026, 11, 1)),
    Case("Antarctica/Troll", date(2026, 3, 29)),
    Case("Antarctica/Troll", date(2026, 10, 25)),
    Case("Pacific/Apia", date(2011, 12, 30)),
    Case("Asia/Kathmandu", date(1986, 1, 1)),  # from +05:30 to +05:45
]


@cache
def minutes_around(case: Case) -> list[tuple[datetime, datetime]]:
    """Each real minute of the two weeks around the change, and what the wall clock shows in it."""
    start = datetime.combine(case.day, time(), UTC) - 7 * DAY
    zone = ZoneInfo(case.zone)
    return [(moment, moment.astimezone(zone)) for moment in (start + number * MINUTE for number in range(14 * 24 * 60))]


class Field(NamedTuple):
    """One field of an expression as it is written, and the numbers that it means."""

    text: str
    numbers: frozenset[int]


def stepped(low: int, high: int, star: bool) -> st.SearchStrategy[Field]:
    def make(given: tuple[int, int, int]) -> Field:
        first, second, step = given
        first, last = (low, high) if star else (min(first, second), max(first, second))
        if first == last:
            return Field(str(first), frozenset({first}))  # with a step it would mean: from there on
        text = "*" if star else f"{first}-{last}"
        return Field(text if step == 1 else f"{text}/{step}", frozenset(range(first, last + 1, step)))

    return st.tuples(st.integers(low, high), st.integers(low, high), st.integers(1, high - low + 1)).map(make)


def listed(low: int, high: int) -> st.SearchStrategy[Field]:
    return st.sets(st.integers(low, high), min_size=1, max_size=4).map(lambda n: Field(",".join(map(str, sorted(n))), frozenset(n)))


def plain(low: int, high: int) -> st.SearchStrategy[Field]:
    return st.one_of(listed(low, high), stepped(low, high, star=False))


ANY_DAY, ANY_MONTH, ANY_WEEKDAY = Field("*", frozenset(range(1, 32))), Field("*", frozenset(range(1, 13))), Field("*", frozenset(range(8)))
days_and_weekdays = st.one_of(
    st.just((ANY_DAY, ANY_WEEKDAY)),
    st.tuples(plain(1, 28), st.just(ANY_WEEKDAY)),
    st.tuples(st.just(ANY_DAY), plain(0, 7)),
    st.tuples(plain(1, 28), plain(0, 7)),
)
rolling = st.one_of(  # those whose hour or minute is a wildcard: they follow real time
    st.tuples(st.one_of(plain(0, 59), stepped(0, 59, star=True)), stepped(0, 23, star=True)),
    st.tuples(stepped(0, 59, star=True), plain(0, 23)),
)


def fits(shown: datetime, minute: Field, hour: Field, day: Field, weekday: Field) -> bool:
    if shown.minute not in minute.numbers or shown.hour not in hour.numbers:
        return False
    by_day, by_weekday = shown.day in day.numbers, bool({shown.isoweekday(), shown.isoweekday() % 7} & weekday.numbers)
    return by_day and by_weekday if "*" in (day.text, weekday.text) else by_day or by_weekday


@given(case=st.sampled_from(CHANGES), times=rolling, days=days_and_weekdays, data=st.data())
@settings(max_examples=150, deadline=None)
def test_with_a_wildcard_each_real_minute_that_fits_has_its_run(case: Case, times: Any, days: Any, data: Any) -> None:
    (minute, hour), (day, weekday) = times, days
    trigger = cron(f"{minute.text} {hour.text} {day.text} * {weekday.text}", tz=case.zone)
    walk = minutes_around(case)
    expected = [moment for moment, shown in walk if fits(shown, minute, hour, day, weekday)]
    near = datetime.combine(case.day, time(), UTC) - timedelta(hours=20)
    asked = [near, *(data.draw(st.sampled_from(walk))[0] + timedelta(seconds=data.draw(st.integers(0, 59))) for _ in range(5))]
    for start in asked:
        moment = start
        for due in [due for due in expected if due > start][:40]:
            moment = trigger.next_due(moment)  # type: ignore[assignment]
            assert moment == due, (trigger, start)


@given(case=st.sampled_from([case for case in CHANGES if case.zone != "Pacific/Apia"]), hour=st.integers(0, 23), minute=st.integers(0, 59))
@settings(max_examples=150, deadline=None)
def test_a_fixed_time_runs_exactly_once_on_each_local_date(case: Case, hour: int, minute: int) -> None:
    zone = ZoneInfo(case.zone)
    start = datetime.combine(case.day - 20 * DAY, time(), zone).astimezone(UTC)
    found = between(cron(f"{minute} {hour} * * *", tz=case.zone), start - timedelta(microseconds=1), start + 40 * DAY)
    shown = [moment.astimezone(zone) for moment in found]
    dates = [moment.date() for moment in shown]
    assert dates == [dates[0] + number * DAY for number in range(len(dates))]
    assert len(dates) >= 39
    for moment in shown:
        wanted = datetime.combine(moment.date(), time(hour, minute), zone)  # fold=0: the first of two
        real = wanted.astimezone(UTC)
        if real.astimezone(zone).time() == time(hour, minute):
            assert moment.astimezone(UTC) == real
        else:  # there is no such time on that day: the end of the gap, which is where the offset changes
            assert moment.utcoffset() != (moment.astimezone(UTC) - timedelta(seconds=1)).astimezone(zone).utcoffset()


@given(
    parts=st.tuples(
        st.one_of(plain(0, 59), stepped(0, 59, star=True)),
        st.one_of(plain(0, 59), stepped(0, 59, star=True)),
        st.one_of(plain(0, 23), stepped(0, 23, star=True)),
        plain(1, 28),
        plain(0, 7),
    ),
    with_seconds=st.booleans(),
    case=st.sampled_from(CHANGES),
    after=st.integers(0, 14 * 86400),
)
@settings(max_examples=150, deadline=None)
def test_moments_only_ever_grow_and_do_not_depend_on_where_one_asks(parts: Any, with_seconds: bool, case: Case, after: int) -> None:
    second, minute, hour, day, weekday = (part.text for part in parts)
    trigger = cron(f"{second + ' ' if with_seconds else ''}{minute} {hour} {day} * {weekday}", tz=case.zone)
    moment = datetime.combine(case.day, time(), UTC) - 7 * DAY + timedelta(seconds=after)
    for _ in range(15):
        due = trigger.next_due(moment)
        assert due is not None
        assert due.tzinfo is UTC
        assert due > moment
        assert trigger.next_due(moment + (due - moment) / 2) == due
        assert trigger.next_due(due - timedelta(microseconds=1)) == due
        moment = due


# --- preview ---


def test_preview_gives_the_next_moments_in_utc_without_jitter() -> None:
    assert preview(cron("0 3 * * *", tz=BERLIN), 2, after=NEW_YEAR) == [
        datetime(2026, 1, 1, 2, tzinfo=UTC),
        datetime(2026, 1, 2, 2, tzinfo=UTC),
    ]
    assert preview(every(60, jitter=50), 3, after=NEW_YEAR) == [NEW_YEAR + number * MINUTE for number in (1, 2, 3)]
    assert {moment.tzinfo for moment in preview(every(60), 3, after=NEW_YEAR.astimezone(ZoneInfo(BERLIN)))} == {UTC}


def test_preview_begins_now_and_gives_ten() -> None:
    before = datetime.now(UTC)
    found = preview(every(60))
    assert len(found) == 10
    assert before + MINUTE <= found[0] <= datetime.now(UTC) + MINUTE
    assert preview(every(60), 0) == []


class Thrice:
    """An application's own, which comes to an end."""

    moments = tuple(NEW_YEAR + number * MINUTE for number in (1, 2, 3))

    def next_due(self, after: datetime) -> datetime | None:
        return next((moment for moment in self.moments if moment > after), None)


def test_preview_ends_where_the_trigger_does() -> None:
    assert preview(Thrice(), 10, after=NEW_YEAR) == list(Thrice.moments)
    assert preview(Thrice(), 10, after=Thrice.moments[-1]) == []


def test_preview_ends_where_the_calendar_does() -> None:
    """Datetimes end with the year 9999."""
    assert len(preview(every(timedelta(days=36500)), 100, after=NEW_YEAR)) == 79
    assert len(preview(cron("0 0 1 1 *"), 5, after=datetime(9997, 6, 1, tzinfo=UTC))) == 2


def answers(with_what: Any) -> Any:
    class Own:
        def next_due(self, after: datetime) -> Any:
            return with_what(after)

    return Own()


@pytest.mark.parametrize(
    "with_what",
    [
        lambda after: after,
        lambda after: after - MINUTE,
        lambda after: NAIVE.replace(2090),
        lambda after: "tomorrow",
        lambda after: 5.0,
        lambda after: date(2030, 1, 1),
        lambda after: False,
    ],
    ids=["the same", "earlier", "naive", "text", "number", "date", "False"],
)
def test_a_trigger_that_gives_no_later_moment_is_refused(with_what: Callable[[datetime], Any]) -> None:
    with pytest.raises(BadValue, match="an aware datetime after that moment is needed, or None"):
        preview(answers(with_what), 3, after=NEW_YEAR)


@pytest.mark.parametrize("trigger", [None, 60, "0 3 * * *", object(), Thrice, every, Trigger])
def test_what_is_no_trigger_is_refused(trigger: Any) -> None:
    with pytest.raises(BadType, match=r"every\(\.\.\.\), cron\(\.\.\.\), or an object with next_due"):
        preview(trigger)


@pytest.mark.parametrize("n", [-1, 1.5, "3", None, True])
def test_how_many_is_a_whole_number(n: Any) -> None:
    with pytest.raises(UsageError, match="how many"):
        preview(every(60), n)


def test_preview_refuses_a_naive_moment() -> None:
    with pytest.raises(BadValue, match=r"after=.*no time zone"):
        preview(every(60), 3, after=NAIVE)


# --- triggers of an application's own ---


def test_the_kind_of_a_trigger_is_its_name_unless_given(own_triggers: None) -> None:
    class Plain(Trigger):
        def next_due(self, after: datetime) -> datetime | None:
            return None

    class Named(Plain, kind="tests.named"):
        pass

    assert Plain.trigger_kind == Plain.__qualname__
    assert Named.trigger_kind == "tests.named"
    assert triggers.find_trigger("tests.named") is Named
    assert triggers.find_trigger("tests.none") is None


def test_a_trigger_that_does_not_say_what_is_next_cannot_be_made(own_triggers: None) -> None:
    class Nothing(Trigger, kind="tests.nothing"):
        pass

    with pytest.raises(TypeError, match="next_due"):
        Nothing()  # type: ignore[abstract]


def test_two_classes_cannot_claim_one_kind(own_triggers: None) -> None:
    class One(Trigger, kind="tests.claimed"):
        pass

    with pytest.raises(UsageError, match=r"two trigger classes claim the kind 'tests.claimed'.*One.*Two.*kind="):

        class Two(Trigger, kind="tests.claimed"):
            pass

    assert triggers.find_trigger("tests.claimed") is One
    with pytest.raises(UsageError, match="every"):

        class Mine(Trigger, kind="every"):
            pass


@pytest.mark.parametrize("slots", [False, True])
def test_a_class_that_is_made_anew_is_the_same_kind(own_triggers: None, slots: bool) -> None:
    """A reload, and what @dataclass(slots=True) does."""

    def define() -> type[Trigger]:
        @dataclasses.dataclass(frozen=True, slots=slots)
        class Again(Trigger, kind="tests.again"):
            hour: int = 3

            def next_due(self, after: datetime) -> datetime | None:
                return after + self.hour * MINUTE

        return Again

    first, second = define(), define()
    assert first is not second
    assert second.trigger_kind == "tests.again"
    assert triggers.find_trigger("tests.again") is second


# --- their stored form ---


@pytest.mark.parametrize(
    "trigger",
    [
        every(60),
        every(0.001),
        every(1 / 3, jitter=0.1),
        every(60, start=NEW_YEAR),
        every(60, start=datetime(2026, 6, 1, 12, tzinfo=ZoneInfo(BERLIN))),
        every(60, start=datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo(BERLIN))),  # there are two of it, and each has its equals
        every(60, start=datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo(BERLIN), fold=1)),
        every(60, start=datetime(2026, 3, 29, 2, 30, tzinfo=ZoneInfo(BERLIN))),  # there is none of it
        every(timedelta(days=36525)),
        cron("30 2 * * MON-FRI", tz=BERLIN),
        cron("*/5 * * * * *"),
    ],
    ids=str,
)
def test_a_trigger_is_read_back_as_it_was(trigger: Trigger) -> None:
    storable_trigger(trigger)
    back = decode_trigger(encode_trigger(trigger))
    assert back == trigger
    assert type(back) is type(trigger)
    assert preview(back, 5, after=NEW_YEAR) == preview(trigger, 5, after=NEW_YEAR)
    assert encode_trigger(back) == encode_trigger(trigger)


def test_a_trigger_of_ones_own_is_stored_by_its_fields(own_triggers: None) -> None:
    @dataclasses.dataclass(frozen=True)
    class Shift(Trigger, kind="tests.shift"):
        at: time
        days: tuple[int, ...]

        def next_due(self, after: datetime) -> datetime | None:
            return after + DAY

    shift = Shift(time(6, 30), (1, 2))
    storable_trigger(shift)
    assert decode_trigger(encode_trigger(shift)) == shift


@dataclasses.dataclass
class NoSubclass:
    def next_due(self, after: datetime) -> datetime | None:
        return None


def test_what_cannot_be_stored_is_refused_with_what_to_do(own_triggers: None) -> None:
    class NoDataclass(Trigger, kind="tests.no_dataclass"):
        def next_due(self, after: datetime) -> datetime | None:
            return None

    @dataclasses.dataclass(frozen=True)
    class Holds(Trigger, kind="tests.holds"):
        thing: object

        def next_due(self, after: datetime) -> datetime | None:
            return None

    for trigger in (NoSubclass(), NoDataclass()):
        with pytest.raises(BadType, match=r"frozen dataclass and a subclass of jobwheel.Trigger"):
            storable_trigger(trigger)
    with pytest.raises(BadType, match="cannot be stored"):
        storable_trigger(Holds(object()))


def test_a_stored_trigger_that_no_code_knows_or_can_make_is_told_as_unreadable(own_triggers: None) -> None:
    @dataclasses.dataclass(frozen=True)
    class Gone(Trigger, kind="tests.gone"):
        hour: int = 3

        def next_due(self, after: datetime) -> datetime | None:
            return None

    stored = encode_trigger(Gone())
    del triggers._kinds["tests.gone"]
    with pytest.raises(UnreadableData, match=r"'tests.gone'.*import the class"):
        decode_trigger(stored)

    @dataclasses.dataclass(frozen=True)
    class Other(Trigger, kind="tests.gone"):
        hour: str = ""

        def next_due(self, after: datetime) -> datetime | None:
            return None

    with pytest.raises(UnreadableData, match=r"no .*Other can be made"):
        decode_trigger(stored)
