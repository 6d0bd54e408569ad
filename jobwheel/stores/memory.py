"""The memory store: rows in dictionaries, gone with the process. The row itself is the entry that rooms hold.

Promises: every method is atomic, and none waits for another thread longer than a few instructions. Adding, cancelling,
touching, claiming and settling take no lock at all.
Relies on: a single `dict` or `deque` operation being atomic, and the two locks in each `Row`.
Not promised: a picture of several rows at one instant; `find` may miss a row that moves while it looks.

How a row changes hands: whoever takes its token decides. A claim leaves it taken and sets RUNNING, a cancel sets CANCELLED; a touch
gives it back. The end of a run is decided by `running.pop(id)`, which gives the row to one settler. A key is taken by
`setdefault`; where it leads is changed only by the thread that has deleted the `keyed` of the row it leads to.

Longer than other rooms, since each move is a few lines that only make sense beside the others that it may race with.
"""

import itertools
import threading
import time
from collections.abc import Iterable, Sequence
from heapq import nsmallest
from operator import attrgetter
from typing import ClassVar

from jobwheel.clock import Anchor, Clock
from jobwheel.errors import BadValue, JobExists, TooManyPending
from jobwheel.job import context_of
from jobwheel.kind import Kind
from jobwheel.recurring import resumed, same
from jobwheel.row import WAITS, Entry, Row, ScheduledJob, Terms, snapshot
from jobwheel.settings import Settings
from jobwheel.state import ENDED, State
from jobwheel.store import Claim, Counts, IfExists, Query, Ref, Store
from jobwheel.stores.history import REVIVABLE, History
from jobwheel.verdict import SUCCEEDED, Again, Failed, Onward, Succeeded, Verdict, go_on

SCHEDULED, PAUSED, RUNNING, CANCELLED = State.SCHEDULED, State.PAUSED, State.RUNNING, State.CANCELLED
_id = attrgetter("id")


class MemoryStore(Store):
    """See the module."""

    durable: ClassVar[bool] = False
    shared: ClassVar[bool] = False

    def __init__(self, clock: Clock, settings: Settings) -> None:
        self._clock = clock
        self._elapsed = clock.elapsed
        self._anchor = Anchor(clock)
        self._limit = settings.max_pending
        self._limit_lock = threading.RLock()  # only with max_pending: counting and adding are one step; a job's __del__ may add
        self._ids = itertools.count(1)
        self._rows: dict[int, Row] = {}  # all that live: scheduled, paused, running
        self._running: dict[int, Row] = {}
        self._paused: dict[int, Row] = {}
        self._keys: dict[str, Row] = {}  # the newest live row of each key
        self._limited: dict[str, set[int]] = {}  # running ids of the kinds that have a max_running
        self._limited_lock = threading.Lock()  # counting and entering are one step, for those kinds only
        self._history = History(settings.store.keep, settings.store.keep_days * 86400)

    def add(self, row: Row, if_exists: IfExists) -> tuple[Row, Row | None]:
        if self._limit:
            with self._limit_lock:
                if not self._yields(row, if_exists):
                    self._check_room(1, row.key)
                return self._add(row, if_exists)
        return self._add(row, if_exists)

    def _yields(self, row: Row, if_exists: IfExists) -> bool:
        """It will not be added, since a running one stays."""
        holder = None if row.key is None else self._keys.get(row.key)
        return holder is not None and holder.state is RUNNING and (if_exists == "keep" or (if_exists == "replace" and same(holder, row)))

    def _add(self, row: Row, if_exists: IfExists) -> tuple[Row, Row | None]:
        try:
            row.id = next(self._ids)
            self._rows[row.id] = row
            key = row.key
            if key is not None:
                row.keyed = True
                if self._keys.setdefault(key, row) is not row:
                    return self._add_contended(row, key, if_exists)
            row.token = True
            return row, None
        except BaseException:  # a Ctrl-C in the middle of it: nothing may be half-done
            self._discard(row)
            raise

    def _add_contended(self, row: Row, key: str, if_exists: IfExists) -> tuple[Row, Row | None]:
        """The key leads to another row, or did a moment ago."""
        while (holder := self._keys.setdefault(key, row)) is not row:
            equal = if_exists == "replace" and row.series is not None and same(holder, row)
            waits = holder.take()  # and so it is there for good: a row of a batch that is not decided yet is waited for
            try:
                if equal and (waits or (holder.state is RUNNING and not context_of(holder).cancel_asked)):
                    self._discard(row)
                    _renew(holder, row)
                    return holder, None
                if if_exists == "replace":
                    if waits:
                        return self._replace_waiting(row, key, holder)
                    if self._supersede(row, key, holder):
                        break
                elif waits or holder.state is RUNNING:
                    self._discard(row)
                    if if_exists == "error":
                        raise JobExists(key, holder.id)
                    return holder, None
            finally:
                # Not by a function: a Ctrl-C is delivered where one is entered, and the hold would outlive it.
                if waits and holder.state in WAITS:
                    holder.token = True
            time.sleep(0)  # its end frees the key in a few instructions
        row.token = True
        return row, None

    def _replace_waiting(self, row: Row, key: str, holder: Row) -> tuple[Row, Row | None]:
        """The caller holds `holder`, so nobody but another adder can take the key from it, and that one would hold it too."""
        try:
            del holder.keyed
            self._keys[key] = row
        finally:
            self._cancel_held(holder)
        row.token = True
        return row, holder

    def _cancel_held(self, row: Row) -> None:
        """Ends a row that the caller holds, whatever comes in between."""
        try:
            if self._paused:
                self._paused.pop(row.id, None)
            self._end(row, CANCELLED, self._elapsed())
        except BaseException:  # a Ctrl-C in the middle of it: a row that is neither here nor there would block its key for ever
            self._finish_end(row)
            raise

    def _supersede(self, row: Row, key: str, holder: Row) -> bool:
        """Takes the key from a running row, which gets no further attempt; False: it has ended or waits again, look anew."""
        context = context_of(holder)
        context.superseded = True
        # The flag first, then the look at the state: `_again` does it the other way round, so one of the two sees the other.
        if holder.state is not RUNNING or holder.run is not context:
            return False
        try:
            del holder.keyed
        except AttributeError:  # its end, or another adder, was faster
            return False
        self._keys[key] = row
        return True

    def add_many(self, rows: Sequence[tuple[Row, IfExists]]) -> list[tuple[Row, Row | None]]:
        if self._limit:
            with self._limit_lock:
                self._check_room(len(rows), *(row.key for row, _ in rows))
                return self._add_many(rows)
        return self._add_many(rows)

    def _add_many(self, rows: Sequence[tuple[Row, IfExists]]) -> list[tuple[Row, Row | None]]:
        # First all that can fail, without tokens, so that nobody can claim them; the conflicts that cannot fail come after.
        contended: list[tuple[int, Row, IfExists]] = []
        for number, (row, if_exists) in enumerate(rows):
            row.id = next(self._ids)
            self._rows[row.id] = row
            row.keyed = True
            if row.key is None or self._keys.setdefault(row.key, row) is row:
                continue
            contended.append((number, row, if_exists))
            if if_exists == "error" and (holder := self._keys.get(row.key)) is not None and holder.state not in ENDED:
                for added, _ in rows[: number + 1]:
                    self._discard(added)
                raise JobExists(row.key, holder.id)
        answers: list[tuple[Row, Row | None]] = [(row, None) for row, _ in rows]
        later = {number for number, _, _ in contended}
        for number, (row, _) in enumerate(rows):
            if number not in later:
                row.token = True
        for number, row, if_exists in contended:
            assert row.key is not None
            answers[number] = self._add_contended(row, row.key, "replace" if if_exists == "error" else if_exists)
        return answers

    def _check_room(self, wanted: int, *keys: str | None) -> None:
        """Raises `TooManyPending` unless so many more may wait; one that replaces a waiting one, or yields to it, is none more."""
        waiting = len(self._rows) - len(self._running)
        named = [key for key in keys if key is not None]
        wanted -= len(named) - len(set(named))
        wanted -= sum((holder := self._keys.get(key)) is not None and holder.state in WAITS for key in set(named))
        if wanted > 0 and waiting + wanted > self._limit:
            raise TooManyPending(self._limit)

    def _discard(self, row: Row) -> None:
        """Takes back a row that never got its token."""
        row.state = CANCELLED
        row.job = None
        self._rows.pop(row.id, None)
        if row.key is not None and self._keys.get(row.key) is row:
            del self._keys[row.key]

    def claim(self, entries: Sequence[Entry]) -> Claim:
        rows: list[Row] = []
        later: list[Entry] = []
        held: list[tuple[str, Entry]] = []
        now = self._elapsed()
        wall = self._clock.wall()
        running = self._running
        row: Row
        for row in entries:  # type: ignore[assignment]
            try:
                del row.token
            except AttributeError:
                if row.state is SCHEDULED:
                    later.append(row)
                continue
            if row.state is not SCHEDULED:
                row.token = True
                continue
            kind = row.kind
            if row.due > now or (row.terms is not None and _early_by_wall(row, now, wall)):
                row.token = True
                later.append(row)
            elif not kind.is_free and not self._may_run(kind, row):
                row.token = True
                held.append((kind.name, row))
            else:
                last, row.run = row.run, None
                row.attempt += 1
                if last is not None and last.error is not None:  # told until a run ends well
                    context = context_of(row)
                    context.error, context.trace = last.error, last.trace
                running[row.id] = row
                row.state = RUNNING
                rows.append(row)
        return Claim(rows, later, held)

    def _may_run(self, kind: Kind, row: Row) -> bool:
        most = kind.options.max_running
        if most is None:
            return True
        with self._limited_lock:
            ids = self._limited.setdefault(kind.name, set())
            if len(ids) >= most:
                return False
            ids.add(row.id)
            return True

    def _make_way(self, row: Row) -> None:
        ids = self._limited.get(row.kind.name)
        if ids is not None:
            ids.discard(row.id)

    def settle(self, row: Row, attempt: int, verdict: Verdict) -> State | None:
        if row.attempt != attempt or self._running.pop(row.id, None) is None:
            return None
        if self._limited:
            self._make_way(row)
        now = self._elapsed()
        if isinstance(verdict, Onward):
            return self._onward(row, verdict, now)
        if verdict is not SUCCEEDED or row.run is not None:
            context = context_of(row)
            if isinstance(verdict, Succeeded):
                context.result, context.error, context.trace = verdict.result, None, None
            else:
                context.error = verdict.error
                if isinstance(verdict, Failed | Again):
                    context.trace = verdict.trace
                if isinstance(verdict, Again):
                    row.ended = now
                    return self._again(row, now + verdict.delay)
        self._end(row, verdict.state, now)
        return verdict.state

    def _again(self, row: Row, due: float) -> State:
        if row.terms is None:
            row.terms = Terms()
        row.keep_created(row.terms)
        if row.terms.nominal is None:
            row.terms.nominal, row.terms.date = row.due, row.terms.wall
        row.terms.wall = None  # the wait for the next attempt is elapsed time
        row.due = due
        # The state first, then the look at the flags: `cancel` sets its flag and then looks at the state, so one of the two sees the other.
        row.state = SCHEDULED
        context = row.run
        if context is not None and (context.cancel_asked or context.superseded):
            self._end(row, CANCELLED if context.cancel_asked else State.FAILED, self._elapsed())
            return row.state
        row.token = True
        return SCHEDULED

    def _onward(self, row: Row, onward: Onward, now: float) -> State:
        outcome, context = onward.outcome, context_of(row)  # made before the row moves: it keeps the moment that the run was for
        if isinstance(outcome, Succeeded):
            context.result, context.error, context.trace = outcome.result, None, None
        elif outcome is not None:
            context.error = outcome.error
            context.trace = outcome.trace if isinstance(outcome, Failed) else None
        row.ended = now
        go_on(row, onward)
        row.state = SCHEDULED  # and then the look at the flags, as in `_again`
        if context.cancel_asked or context.superseded:
            ended = State.SUCCEEDED if outcome is None else outcome.state
            self._end(row, CANCELLED if context.cancel_asked else ended, now)
            return row.state
        row.token = True
        return SCHEDULED

    def part(self, row: Row, onward: Onward) -> Row | None:
        terms, of = Terms(), row.terms
        assert of is not None
        terms.tags, terms.created = of.tags, self._elapsed()
        terms.nominal, terms.date, terms.wall = of.nominal, of.date, of.wall
        run = Row(row.job, row.due, None, None, row.priority, terms, row.kind)
        run.id = next(self._ids)
        run.attempt, run.state = 1, RUNNING
        if self._running.pop(row.id, None) is None:
            return None
        if self._limited:
            with self._limited_lock:
                self._make_way(row)
                self._limited.setdefault(row.kind.name, set()).add(run.id)
        self._rows[run.id] = self._running[run.id] = run
        self._onward(row, onward, self._elapsed())
        return run

    def hand_back(self, rows: Iterable[Row], patience: float = 5.0) -> list[Row]:  # noqa: ARG002 (nobody is waited for)
        back = []
        for row in rows:
            if self._running.pop(row.id, None) is None:
                continue
            self._make_way(row)
            row.attempt -= 1
            row.state = SCHEDULED
            context = row.run
            if context is not None and (context.cancel_asked or context.superseded):
                self._end(row, CANCELLED, self._elapsed())
                continue
            row.token = True
            back.append(row)
        return back

    def _end(self, row: Row, state: State, now: float) -> None:
        """The caller holds the row for good: files it under `state`, drops its job unless it can be retried, frees its key."""
        # In this order the row can be found at each moment, by id and by key: history has it before it leaves the living.
        row.state = state
        row.ended = now
        self._history.put(row)
        if state not in REVIVABLE:
            row.job = None
        if row.key is not None:
            try:
                del row.keyed
            except AttributeError:  # a newer job has taken the key over
                pass
            else:
                del self._keys[row.key]
        self._rows.pop(row.id, None)

    def _finish_end(self, row: Row) -> None:
        """What `_end` of a cancelled row may have left undone; its count may then be one too high."""
        row.state = CANCELLED
        self._paused.pop(row.id, None)
        if row.id in self._rows:
            self._history.put(row)
        row.job = None
        if row.key is not None and self._keys.get(row.key) is row:
            del self._keys[row.key]
        self._rows.pop(row.id, None)

    def _live(self, ref: Ref) -> Row | None:
        if type(ref) is str:
            return self._keys.get(ref)
        return self._rows.get(ref if isinstance(ref, int) else ref.id)  # type: ignore[union-attr]

    def cancel(self, ref: Ref) -> Row | None:
        row = self._live(ref)
        while row is not None:
            if row.take():
                try:
                    self._cancel_held(row)
                finally:
                    if row.state in WAITS:  # a Ctrl-C came first, so it waits on; no function, see `_add_contended`
                        row.token = True
                return row
            if row.state in WAITS:
                continue  # its attempt ended a moment ago, and it waits for the next
            if row.state is not RUNNING or row.job is None:
                return None
            context = context_of(row)
            context.cancel_asked = True
            if row.state is RUNNING and row.run is context:
                return None
            # It ended or was scheduled again between the two looks: see `_again`.
        return None

    def touch(self, ref: Ref, delay: float | None) -> tuple[Row, bool] | None:
        row = self._keys.get(ref) if type(ref) is str else self._live(ref)
        if row is None:
            return None
        # What must be called is called before the row is held: a Ctrl-C that arrives in a call would leave it held for ever.
        now = self._elapsed()
        spare = Terms() if row.terms is None else None
        try:
            del row.token
        except AttributeError:
            if not row.take():
                return None
        terms = row.terms = row.terms or spare
        assert terms is not None
        wait = row.delay if delay is None else delay
        if wait is None or (delay is None and (row.state is PAUSED or terms.wall is not None or terms.series is not None)):
            row.token = True
            raise BadValue(
                f"touch({ref!r:.80}): a job that is paused, or was added with at= or a trigger, has no delay of its own; give touch one"
            )
        before = row.due
        if terms.created is None:  # `keep_created`, without the call
            terms.created = before - (row.delay or 0.0)
        # Of two touches at once the one that read the clock first may come last: it must not take back what the other one promised.
        now = terms.touched = now if now > terms.touched else terms.touched  # noqa: FURB136 (max would be a call)
        due = now + wait
        if terms.until is not None and due > terms.until:
            due = terms.until
        terms.wall = terms.date = terms.nominal = None
        row.due = due
        row.token = True
        return row, due < before

    def reschedule(self, ref: Ref, due: float, wall: float | None) -> Row | None:
        row = self._live(ref)
        now, spare = self._elapsed(), Terms()
        if row is None or not row.take():
            return None
        try:
            terms = row.terms = row.terms or spare
            row.keep_created(terms)
            if row.delay is None and wall is None and terms.series is None:
                row.delay = max(0.0, due - now)  # from now on it has a delay, and may be touched
            terms.wall = wall
            terms.date = terms.nominal = None
            row.due = due
        finally:
            row.token = True
        return row

    def pause(self, ref: Ref) -> Row | None:
        return self._flip(ref, SCHEDULED, PAUSED)

    def resume(self, ref: Ref) -> Row | None:
        return self._flip(ref, PAUSED, SCHEDULED)

    def _flip(self, ref: Ref, now: State, to: State) -> Row | None:
        row = self._live(ref)
        if row is None or not row.take():
            return None
        try:
            flipped = row.state is now
            if flipped:
                if to is SCHEDULED and row.series is not None:
                    self._skip_pause(row)
                row.state = to
                if to is PAUSED:
                    self._paused[row.id] = row
                else:
                    self._paused.pop(row.id, None)
        finally:
            row.token = True
        return row if flipped else None

    def _skip_pause(self, row: Row) -> None:
        elapsed = self._elapsed()
        onward = resumed(row, elapsed, self._clock.wall())
        if onward is not None:
            go_on(row, onward)

    def retry(self, ref: Ref) -> Row | None:
        if not self._limit:
            return self._retry(ref)
        with self._limit_lock:
            row = self._ended(ref)
            if row is None or row.state not in REVIVABLE or (row.key is not None and row.key in self._keys):
                return None
            self._check_room(1)
            return self._retry(ref)

    def _retry(self, ref: Ref) -> Row | None:
        row = self._ended(ref)
        if row is None or row.state not in REVIVABLE or (row.run is not None and row.run.hung):
            return None
        while row.id in self._rows:  # its end is a few instructions from done, or another caller has revived it
            if self._ended(row.id) is not row:
                return None
            time.sleep(0)
        if not self._history.take_out(row, self._rows):
            return None
        row.keyed = True
        if row.key is not None and self._keys.setdefault(row.key, row) is not row:
            self._history.put(row)
            self._rows.pop(row.id, None)
            return None
        terms = row.terms = row.terms or Terms()
        row.keep_created(terms)
        if terms.nominal is None:
            terms.nominal, terms.date = row.due, terms.wall
        terms.wall = None
        if row.run is not None:
            row.run.cancel_asked = False
        row.due = self._elapsed()
        row.state = SCHEDULED
        row.token = True
        return row

    def reanchor(self) -> list[Entry]:
        moved: list[Entry] = []
        for row in list(self._rows.values()):
            terms = row.terms
            if terms is not None and terms.wall is not None and row.take():
                if terms.wall is not None:
                    row.due = self._elapsed() + terms.wall - self._clock.wall()
                    if row.state is SCHEDULED:
                        moved.append(row)
                row.token = True
        return moved

    def waits(self, entry: Entry) -> bool:
        return not isinstance(entry, Row) or entry.state is SCHEDULED

    def window(self, until: float) -> list[Entry]:
        return [row for row in list(self._rows.values()) if row.state is SCHEDULED and row.due < until]

    def get(self, ref: Ref) -> ScheduledJob | None:
        # The living are looked at again at the end, in case it was revived between the two looks.
        row = self._live(ref) or self._ended(ref) or self._live(ref)
        return None if row is None else self._picture(row)

    def _ended(self, ref: Ref) -> Row | None:
        return self._history.get(ref if isinstance(ref, int | str) else ref.id, self._elapsed())

    def _picture(self, row: Row) -> ScheduledJob:
        return snapshot(row, self.offset())

    def offset(self) -> float:
        return self._anchor.offset()

    def find(self, query: Query) -> list[ScheduledJob]:
        return [self._picture(row) for row in nsmallest(query.limit, self._matching(query), key=_id)]

    def ids(self, query: Query) -> list[int]:
        return sorted(map(_id, self._matching(query)))

    def _matching(self, query: Query) -> list[Row]:
        rows = dict(self._rows)
        if query.states is None or query.states & ENDED:
            rows |= {row.id: row for row in self._history.all(self._elapsed())}
        return [row for row in rows.values() if row.id > query.after and _matches(row, query)]

    def counts(self) -> Counts:
        running, paused = len(self._running), len(self._paused)
        return Counts(
            scheduled=max(0, len(self._rows) - running - paused),
            paused=paused,
            running=running,
            ended=self._history.totals(self._elapsed()),
        )


def _matches(row: Row, query: Query) -> bool:
    if query.states is not None and row.state not in query.states:
        return False
    if query.kind is not None and row.kind.name != query.kind:
        return False
    if query.key is not None and row.key != query.key:
        return False
    if query.tag is not None and (row.terms is None or query.tag not in row.terms.tags):
        return False
    if query.text is None:
        return True
    error = row.run.error if row.run is not None else None
    return query.text.lower() in f"{row.job or ''} {row.key or ''} {error or ''}".lower()


def _renew(holder: Row, row: Row) -> None:
    """An equal recurring job was added again: what may differ in it is the newer one's."""
    holder.priority = row.priority
    if holder.terms is not None and row.terms is not None:
        holder.terms.tags = row.terms.tags


def _early_by_wall(row: Row, now: float, wall: float) -> bool:
    """A job of the wall clock whose date is not here yet, since the clocks have parted: due again when it is."""
    terms = row.terms
    if terms is None or terms.wall is None or terms.wall <= wall:
        return False
    row.due = now + terms.wall - wall
    return True
