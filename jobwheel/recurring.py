"""Recurring jobs: from the end of one run to the moment of the next. Pure arithmetic over a row's terms; writes nothing down.

One row stands for the whole series. It is SCHEDULED for one nominal moment at a time; at the end of that run `follow` finds the next one,
and the store puts the row there in the same move that writes the outcome down. The nominal moments lie on a grid: of elapsed time for
`every` (whole microseconds through the stored `anchor`, so that nothing adds up), of the wall clock for all other triggers.

Which moments of the grid have no run is decided here and nowhere else: those that passed while nobody looked (`catch_up`), while a run
went on (`overlap`), or that came too late (`misfire_grace_time`). They are counted as skipped. A gap of any length costs the same, but that
the skipped moments of a wall-clock trigger are counted one by one, to COUNTED at most.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime
from math import ceil
from typing import Any

import msgspec

from jobwheel.log import logger
from jobwheel.row import Row, Series
from jobwheel.trigger import Every, next_of
from jobwheel.verdict import Again, Cancelled, Failed, Interrupted, Missed, Onward, Outcome, Succeeded, Verdict

log = logger("jobwheel.recurring")

SECOND = 1_000_000
NOISE = 0.05
"""Microseconds by which a float of seconds may miss the whole microsecond that it stands for."""
COUNTED = 1000
"""Skipped moments of a wall-clock trigger that are counted in one gap."""
GRACE = 1.0
"""Seconds of lateness from which a run counts as missed with `catch_up="skip"`, unless `misfire_grace_time` says otherwise."""


class Grid:
    """The nominal moments of `every` on the axis of elapsed seconds."""

    def __init__(self, every: Every, anchor: int) -> None:
        self._step = round(every.interval * SECOND)
        self.anchor = anchor

    def after(self, moment: float) -> float:
        """The first one after `moment`."""
        return self._at(self._number(moment) + 1)

    def count(self, start: float, end: float, most: int = 0) -> int:  # noqa: ARG002 (it costs nothing here)
        """How many there are after `start` and not after `end`."""
        return max(0, self._number(end) - self._number(start))

    def latest(self, most: int, start: float, end: float) -> float | None:
        """The first of the latest `most` after `start` and not after `end`."""
        last, first = self._number(end), self._number(start) + 1
        return None if last < first else self._at(max(first, last - most + 1))

    def _number(self, moment: float) -> int:
        return (round(moment * SECOND) - self.anchor) // self._step

    def _at(self, number: int) -> float:
        return (self.anchor + number * self._step) / SECOND


class Calendar:
    """Those of any other trigger on the axis of epoch seconds."""

    def __init__(self, trigger: Any) -> None:
        self._next = next_of(trigger)

    def after(self, moment: float) -> float | None:
        """The first one after `moment`; None if there is none."""
        due = self._next(datetime.fromtimestamp(moment, UTC))
        return None if due is None else due.timestamp()

    def count(self, start: float, end: float, most: int = COUNTED) -> int:
        """How many there are after `start` and not after `end`; `most` if there are more."""
        found = 0
        moment = self.after(start)
        while moment is not None and moment <= end and found < most:
            found += 1
            moment = self.after(moment)
        return found

    def latest(self, most: int, start: float, end: float) -> float | None:
        """The first of the latest `most` after `start` and not after `end`; by halves, since a trigger tells only what comes next."""
        found = self._up_to(start, end, most)
        low, high = start, end
        while len(found) == most and high - low > 1.0:
            middle = (low + high) / 2
            if len(self._up_to(middle, end, most)) == most:
                low = middle
            else:
                high = middle
        found = self._up_to(low, end, COUNTED + most)
        return found[-most:][0] if found else None

    def _up_to(self, start: float, end: float, most: int) -> list[float]:
        found: list[float] = []
        moment = self.after(start)
        while moment is not None and moment <= end and len(found) < most:
            found.append(moment)
            moment = self.after(moment)
        return found


def first(trigger: Any, now: float, wall: float) -> tuple[float, float | None, Series]:
    """Due moment (elapsed), the same on the wall clock for what follows that one, and the series of a recurring job added now.

    Raises what `next_of` does, and ValueError if the trigger has no moment any more.
    """
    if not isinstance(trigger, Every):
        moment = Calendar(trigger).after(wall)
        if moment is None:
            raise ValueError
        return now + moment - wall, moment, Series(trigger)
    if trigger.start is None:
        anchor = ceil(now * SECOND - NOISE) + round(trigger.interval * SECOND)
        return anchor / SECOND, None, Series(trigger, anchor)
    start = trigger.start.timestamp()
    if start > wall:
        return now + start - wall, start, Series(trigger)  # its grid begins when that date has come
    anchor = round((now + start - wall) * SECOND)
    return Grid(trigger, anchor).after(now - 1 / SECOND), None, Series(trigger, anchor)


def on_grid(every: Every, anchor: int, nominal: float) -> int:
    """The anchor whose grid `nominal` lies on, if it is that but for the rounding of both; else `anchor`."""
    step = round(every.interval * SECOND)
    off = (round(nominal * SECOND) - anchor + step // 2) % step - step // 2
    return anchor + off if abs(off) <= 2 else anchor


def late(trigger: Any) -> float:
    """Seconds by which a run is due after its nominal moment: the jitter."""
    return random.uniform(0.0, trigger.jitter) if isinstance(trigger, Every) and trigger.jitter else 0.0


def grace(row: Row) -> float | None:
    """Seconds of lateness after which the row is not run; None: however late."""
    options = row.kind.options
    if options.misfire_grace_time is None and options.catch_up == "skip" and row.series is not None:
        return GRACE
    return options.misfire_grace_time


def begin(row: Row, now: float, wall: float) -> int:
    """The row of a recurring job has been claimed. If a gap is made up for in so many runs, this one is the first of the latest: it moves
    there, and the answer is how many it leaves out.
    """
    series, terms, most = row.series, row.terms, row.kind.options.catch_up
    if series is None or terms is None or not isinstance(most, int) or row.nth != 1:
        return 0
    try:
        axis, nominal, offset = _axis(row, series, now, wall)
        if axis.count(nominal, now + offset, most) < most:
            return 0
        moment = axis.latest(most, nominal, now + offset)
        assert moment is not None
        skipped = axis.count(nominal, moment)
    except BaseException as error:  # an application's trigger: its run is not to be lost
        log.error("job %d (%s): its trigger failed, so no missed runs are made up for: %s", row.id, row.kind.name, error)
        return 0
    row.due, terms.nominal, terms.date = moment - offset, None, None
    terms.wall = None if isinstance(series.trigger, Every) else moment
    terms.series = msgspec.structs.replace(series, skipped=series.skipped + skipped)
    return skipped


def follow(row: Row, verdict: Verdict, now: float, wall: float) -> Verdict:
    """What becomes of a recurring job whose run came to `verdict`: `Onward` to its next moment, or its end, with this run counted.

    To be called by whoever may write the row.
    """
    series, terms = row.series, row.terms
    if series is None or terms is None or isinstance(verdict, Onward):
        return verdict
    if isinstance(verdict, Again):
        if isinstance(series.trigger, Every) and series.anchor is None and _start_to_come(row, series, wall) is None:
            axis = _axis(row, series, now, wall)[0]  # from now on its grid is one of elapsed time
            terms.series = msgspec.structs.replace(series, anchor=axis.anchor) if isinstance(axis, Grid) else series
        return verdict
    onward = None if isinstance(verdict, Cancelled) else _onward(row, series, verdict, now, wall)
    if not isinstance(onward, Onward):
        terms.series = msgspec.structs.replace(_counted(series, verdict, row, wall), before=series.before)
    return onward or verdict


def part(row: Row, now: float, wall: float) -> Onward | None:
    """For a claimed row whose kind says overlap="parallel": where it goes at once, while the run goes on as a job of its own."""
    series = row.series
    if series is None or row.kind.options.overlap != "parallel":
        return None
    onward = _onward(row, series, None, now, wall)
    return onward if isinstance(onward, Onward) else None


def resumed(row: Row, now: float, wall: float) -> Onward | None:
    """Where a paused recurring job goes: what passed in the pause is skipped. None: its moment is still to come."""
    series = row.series
    if series is None or row.due > now:
        return None
    series = msgspec.structs.replace(series, before=row.attempt)  # a run that waited for another attempt is over
    if (start := _start_to_come(row, series, wall)) is not None:
        return Onward(None, now + start - wall, start, None, series, 0)
    axis, nominal, offset = _axis(row, series, now, wall)
    moment = axis.after(now + offset)
    if moment is None:
        return None
    if isinstance(axis, Grid):
        series = msgspec.structs.replace(series, anchor=axis.anchor)
    return _placed(series, moment, offset, None, axis.count(nominal, now + offset) + 1)


def same(row: Row, other: Row) -> bool:
    """Whether two rows are the same recurring job: of one kind, with equal data and trigger."""
    if row.series is None or other.series is None or row.kind.name != other.kind.name:
        return False
    try:
        return bool(row.series.trigger == other.series.trigger) and _data(row.job) == _data(other.job)
    except Exception:  # an application's values can do anything when they are compared
        return False


def _data(job: Any) -> object:
    fields = getattr(type(job), "__dataclass_fields__", None)
    return [getattr(job, name) for name in fields] if fields is not None else getattr(job, "__dict__", None)


def _onward(row: Row, series: Series, outcome: Outcome | None, now: float, wall: float) -> Onward | Failed | None:
    """None: there is no next moment."""
    try:
        if (start := _start_to_come(row, series, wall)) is not None:  # it was run before by hand
            return Onward(outcome, now + start - wall, start, None, _counted(series, outcome, row, wall), 0)
        axis, nominal, offset = _axis(row, series, now, wall)
        moment = _next(row, outcome, axis, nominal, now + offset, offset)
        if moment is None:
            return None
        skipped = max(0, axis.count(nominal, moment) - 1) + isinstance(outcome, Missed)
        series = _counted(series, outcome, row, wall)
        if isinstance(axis, Grid):
            series = msgspec.structs.replace(series, anchor=axis.anchor)
        return _placed(series, moment, offset, outcome, skipped)
    except BaseException as error:
        log.exception("job %d (%s): its trigger failed, so it has no next run", row.id, row.kind.name)
        last = "" if outcome is None else f"; its last run: {outcome.state}"
        return Failed(f"its trigger failed, so it has no next run: {type(error).__name__}: {error}{last}")


def _counted(series: Series, outcome: Verdict | None, row: Row, wall: float) -> Series:
    """The series after one run more; `outcome` None: one that goes on as a job of its own."""
    return msgspec.structs.replace(
        series,
        runs=series.runs + (not isinstance(outcome, Missed)),
        failures=series.failures + isinstance(outcome, Failed | Interrupted),
        last_success=wall if isinstance(outcome, Succeeded) else series.last_success,
        before=row.attempt,
    )


def _start_to_come(row: Row, series: Series, wall: float) -> float | None:
    """The date of an `every(start=...)` whose grid has not begun, if it is still to come and the row does not stand there already."""
    every, terms = series.trigger, row.terms
    if series.anchor is not None or not isinstance(every, Every) or every.start is None or terms is None:
        return None
    start = every.start.timestamp()
    return None if start <= wall or start in (terms.wall, terms.date) else start


def _next(row: Row, outcome: Outcome | None, axis: Grid | Calendar, nominal: float, now: float, offset: float) -> float | None:
    options = row.kind.options
    if isinstance(outcome, Missed):
        return axis.after(max(nominal, now - (grace(row) or 0.0) - 1 / SECOND))
    started = now if outcome is None or row.started is None else row.started + offset
    if isinstance(options.catch_up, int) and (passed := axis.count(nominal, started, options.catch_up + 1)):
        few = passed <= options.catch_up
        return axis.after(nominal) if few else axis.latest(options.catch_up, nominal, started)
    return axis.after(max(nominal, started if options.overlap == "queue" else now))


def _axis(row: Row, series: Series, now: float, wall: float) -> tuple[Grid | Calendar, float, float]:
    """The axis of the row's moments, its nominal moment there, and what must be added to elapsed seconds to be there."""
    terms = row.terms
    assert terms is not None
    if isinstance(series.trigger, Every):
        nominal, anchor = row.due if terms.nominal is None else terms.nominal, series.anchor
        if anchor is None:
            start = series.trigger.start.timestamp() if series.trigger.start is not None else None
            stands = start is None or start in (terms.wall, terms.date)
            anchor = round((nominal if stands else now + start - wall) * SECOND)  # type: ignore[operator]
        return Grid(series.trigger, anchor), nominal, 0.0
    date = terms.wall if terms.nominal is None else terms.date
    offset = wall - now
    # Without a date it was moved by hand to an elapsed moment.
    return Calendar(series.trigger), date if date is not None else (row.due if terms.nominal is None else terms.nominal) + offset, offset


def _placed(series: Series, moment: float, offset: float, outcome: Outcome | None, skipped: int) -> Onward:
    series = msgspec.structs.replace(series, skipped=series.skipped + skipped)
    if isinstance(series.trigger, Every):
        wait = late(series.trigger)
        return Onward(outcome, moment + wait, None, moment if wait else None, series, skipped)
    return Onward(outcome, moment - offset, moment, None, series, skipped)
