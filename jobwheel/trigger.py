"""When a recurring job is due: `every` so many seconds, `cron` expressions, and `Trigger`, the class of an application's own.

A trigger is a value: it knows no job and no clock, and says for any moment which one comes next. What is missed, skipped or made up for is
decided in `recurring`. The stored form of a trigger is its kind's name and its dataclass fields, as with jobs.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, ClassVar, cast
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from jobwheel.delay import LONGEST, seconds
from jobwheel.errors import BadType, BadValue, UsageError

SHORTEST = 0.001
"""The shortest interval in seconds: as exact as jobwheel is."""
FIELDS, WITH_SECONDS = 5, 6
"""So many fields a cron expression has, without and with seconds before them."""
A_SECOND = timedelta(seconds=1)


class Trigger(ABC):
    """Tells moments. Subclass it, as a frozen dataclass, for a rule of your own:

        @dataclass(frozen=True)
        class NewMoon(Trigger, kind="shop.new_moon"):
            def next_due(self, after: datetime) -> datetime | None: ...

    `kind` is the stable name under which it is stored (default: the class's qualified name); the fields may be of the types that a job's
    may be. An object that merely has `next_due` will do with `store.kind: memory`.

    `next_due` is called on jobwheel's own threads: it must be quick, always say the same of one moment, and read no file or database.
    """

    trigger_kind: ClassVar[str]

    def __init_subclass__(cls, *, kind: str | None = None, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if "trigger_kind" not in cls.__dict__ or kind is not None:  # else it is the copy that @dataclass(slots=True) makes
            cls.trigger_kind = kind or cls.__qualname__
        other = _kinds.get(cls.trigger_kind)
        if other is not None and (other.__module__, other.__qualname__.split(".")[-1]) != (cls.__module__, cls.__qualname__.split(".")[-1]):
            raise UsageError(
                f"two trigger classes claim the kind {cls.trigger_kind!r}: {other.__module__}.{other.__qualname__} and "
                f"{cls.__module__}.{cls.__qualname__}; give one of them another name with kind=... in its class statement"
            )
        _kinds[cls.trigger_kind] = cls

    @abstractmethod
    def next_due(self, after: datetime) -> datetime | None:
        """The first moment strictly after `after` (aware), aware, in UTC; None: there is none any more."""


_kinds: dict[str, type[Trigger]] = {}
"""By the name under which they are stored. Written by class statements only."""


def find_trigger(kind: str) -> type[Trigger] | None:
    """The class of that name; None if no code registered it."""
    return _kinds.get(kind)


@dataclass(frozen=True, slots=True)
class Every(Trigger, kind="every"):
    """See `every`. Moments are on a grid of whole microseconds."""

    interval: float
    start: datetime | None = None
    jitter: float = 0.0

    def next_due(self, after: datetime) -> datetime | None:
        """The next moment of the grid through `start`; without a start, `after` and the interval. Without the jitter."""
        after = _aware(after, "after").astimezone(UTC)
        step = timedelta(seconds=self.interval)
        try:
            if self.start is None:
                return after + step
            start = self.start.astimezone(UTC)
            return start if start > after else start + step * ((after - start) // step + 1)
        except OverflowError:  # beyond the year 9999
            return None


@dataclass(frozen=True, slots=True)
class Cron(Trigger, kind="cron"):
    """See `cron`."""

    expression: str
    tz: str = "UTC"

    def next_due(self, after: datetime) -> datetime | None:
        """The next moment that fits the expression in its zone; None: none within fifty years."""
        after = _aware(after, "after").astimezone(UTC)
        try:
            return self._next(after)
        except OverflowError:  # beyond the year 9999
            return None

    def _next(self, after: datetime) -> datetime | None:
        minute, hour, *rest = self.expression.split()
        if self.tz == "UTC" or not (minute.startswith("*") or hour.startswith("*") or len(rest) == WITH_SECONDS - 2):
            for moment in CronSim(self.expression, after.astimezone(_zone(self.tz))):
                due = moment.astimezone(UTC)
                if due > after:  # inside the hour that is there twice the first one may have passed
                    return due
            return None
        return self._each_real(after)

    def _each_real(self, after: datetime) -> datetime | None:
        """For wildcards: from one change of the clocks to the next, with a fixed offset in between.

        cronsim's own way steps over matches where the clocks move by half an hour.
        """
        zone = _zone(self.tz)
        offset = _offset(after, zone)
        while (found := next(CronSim(self.expression, (after + offset).replace(tzinfo=UTC)), None)) is not None:
            due = found - offset
            if _offset(due, zone) == offset:
                return due
            low, high = after, due  # the clocks change in between
            while high - low > A_SECOND and (middle := (low + (high - low) / 2).replace(microsecond=0)) > low:
                low, high = (middle, high) if _offset(middle, zone) == offset else (low, middle)
            after, offset = high - A_SECOND, _offset(high, zone)
        return None


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta(0)


def every(interval: float | timedelta, *, start: datetime | None = None, jitter: float | timedelta = 0.0) -> Every:
    """Fixed rate: a run each `interval`, in elapsed time, whatever the wall clock does and however long the runs take.

    Args:
        interval: seconds or timedelta, from a millisecond to 100 years, rounded to whole microseconds.
        start: an aware datetime, the first due moment; of a grid that began in the past, the next moment. Default: now and the interval.
        jitter: seconds or timedelta, less than `interval`: each run is due up to so much later, by chance, than its moment on the grid.
            It does not add up. `ctx.scheduled_for` is the moment on the grid.

    Raises:
        BadValue, BadType: one of these is something else.
    """
    length = round(seconds(interval, "every"), 6)
    if length < SHORTEST:
        raise BadValue(f"every({interval!r}): the shortest interval is a millisecond (0.001)")
    if start is not None:
        start = _start(start)
    late = round(seconds(jitter, "jitter"), 6)
    if late >= length:
        raise BadValue(f"every({interval!r}, jitter={jitter!r}): the jitter must be less than the interval")
    return Every(length, start, late)


def cron(expression: str, *, tz: str | ZoneInfo = "UTC") -> Cron:
    """Wall time by a cron expression: minute, hour, day of the month, month, day of the week; six fields begin with the seconds.

    The rules are those of Debian's cron (library `cronsim`). 0 and 7 are Sunday; names (MON, JAN) are good. With day of the month and
    day of the week both given, either will do. In the zone `tz`, when the clocks change: a fixed time that is skipped in spring runs
    once, at the end of the gap; one that comes twice in autumn runs once, the first time; with a wildcard hour or minute each real hour
    has its run. With a field for seconds (other than 0) the latter rule holds for all.

    Args:
        expression: for example "30 2 * * *", each day at half past two.
        tz: the name of a zone, or a ZoneInfo.

    Raises:
        BadValue, BadType: the expression never fits or is none, or there is no such zone.
    """
    if not isinstance(expression, str):
        raise BadType(f'cron({expression!r}): a text like "30 2 * * *"')
    fields = expression.split()
    if len(fields) not in (FIELDS, WITH_SECONDS):
        raise BadValue(
            f"cron({expression!r}): it has {len(fields)} fields; five are: minute, hour, day of the month, month, day of the week "
            f"(six: seconds before them)"
        )
    if len(fields) == WITH_SECONDS and fields[0] == "0":
        fields = fields[1:]
    name = tz.key if isinstance(tz, ZoneInfo) else tz
    if not isinstance(name, str):
        raise BadType(f'cron(tz={tz!r}): the name of a zone, such as "Europe/Berlin", or a ZoneInfo made from one')
    _zone(name)
    made = Cron(" ".join(fields), name)
    try:
        first = made.next_due(datetime.now(UTC))
    except CronSimError as error:
        raise BadValue(f"cron({expression!r}): {error}; the fields are minute, hour, day of the month, month, day of the week") from error
    if first is None:
        raise BadValue(f"cron({expression!r}): no moment within fifty years fits it")
    return made


def preview(trigger: Any, n: int = 10, *, after: datetime | None = None) -> list[datetime]:
    """The next `n` moments of a trigger after `after` (aware; default now), in UTC, without jitter; fewer if it has no more.

    Raises:
        BadValue, BadType: no trigger, or one whose `next_due` gives no later moment.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise BadValue(f"preview(..., {n!r}): how many moments, a whole number from 0 on")
    moment = datetime.now(UTC) if after is None else _aware(after, "after")
    moments: list[datetime] = []
    ask = next_of(trigger)
    while len(moments) < n and (due := ask(moment)) is not None:
        moments.append(due)
        moment = due
    return moments


def next_of(trigger: Any) -> Callable[[datetime], datetime | None]:
    """`trigger.next_due`, its answers checked. Raises `BadType` if it has none."""
    ask = getattr(trigger, "next_due", None)
    if isinstance(trigger, type) or not callable(ask):
        raise BadType(f"trigger={trigger!r:.80}: every(...), cron(...), or an object with next_due(after)")

    def checked(after: datetime) -> datetime | None:
        due = ask(after)
        if due is None:
            return None
        if not isinstance(due, datetime) or due.utcoffset() is None or due <= after:
            raise BadValue(f"{trigger!r:.80}.next_due({after}) gave {due!r:.80}: an aware datetime after that moment is needed, or None")
        if (due - after).total_seconds() > LONGEST:
            return None
        return due.astimezone(UTC)

    return checked


def _start(start: Any) -> datetime:
    _aware(start, "start")
    try:
        start = start.astimezone(UTC)  # in one zone, since moments in a fold are unequal to themselves in others
        away = abs((start - datetime.now(UTC)).total_seconds())
    except OverflowError:
        away = 2 * LONGEST
    if away > LONGEST:
        raise BadValue(f"start={start!r} is over 100 years away, which is longer than any job is kept")
    return start  # type: ignore[no-any-return]


def _aware(moment: Any, what: str) -> datetime:
    if not isinstance(moment, datetime):
        raise BadType(f"{what}={moment!r}: an aware datetime, not {type(moment).__name__}")
    if moment.utcoffset() is None:
        raise BadValue(f"{what}={moment!r} has no time zone, so it names no moment; use for example datetime.now(UTC)")
    return moment


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    try:
        # No `astimezone(UTC)` object of datetime for "UTC": cronsim knows that one by identity and spares itself the work.
        return cast("ZoneInfo", UTC) if name == "UTC" else ZoneInfo(name)
    except (OSError, ValueError, LookupError) as error:
        near = difflib.get_close_matches(name, available_timezones(), 1)
        hint = f"did you mean {near[0]!r}?" if near else 'zones have names like "Europe/Berlin" or "UTC"'
        raise BadValue(f"tz={name!r}: there is no such time zone; {hint}") from error
