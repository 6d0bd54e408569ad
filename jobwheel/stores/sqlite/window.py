"""What of the file is in this process's waiting room: a ticket for each job of the near future that this process can run. For one store.

A ticket is a hint: the claim decides by the file. Tickets come from this process's own adds and moves, from the window (what falls due
until the horizon, loaded ahead of time and in bounded pieces), and from the sweep (what is overdue or about to be, and has no ticket
here: added, moved or left behind by other processes).

Promises: what this process adds is armed exactly; what others add or move is seen by the next sweep, and armed exactly if it falls due
later than that; memory is bounded whatever the file holds; a million overdue rows cost a sweep no more than a thousand.
Relies on: one thread at a time calling `load` and `sweep`; any may call `entry`.

No row falls between the horizon and the adder: `load` first publishes the new horizon and then reads the file; an adder first writes to
the file and then reads the horizon. One of the two sees the other.
"""

import json
from math import inf
from operator import attrgetter

from jobwheel.clock import APART
from jobwheel.row import Ticket
from jobwheel.stores.sqlite import schema
from jobwheel.stores.sqlite.file import StoreFile
from jobwheel.stores.sqlite.group import Record
from jobwheel.stores.sqlite.kinds import Kinds
from jobwheel.stores.sqlite.moments import SECOND, Moments

MOST = 20_000
"""Tickets loaded for the window at once; with so many here no more are loaded until SHORT before the horizon."""
SHORT = 5.0
"""Seconds before the horizon at which more must be loaded, however many are here."""
AHEAD = 3_750_000
"""Microseconds by which a sweep looks into the future: more than the time between two sweeps, so that what others add is not late, nor
what was touched by another timer of this process, which the file has a second later than it is due here."""
BEHIND = 3_000_000
"""Microseconds back to which a row counts as due about now: what others added or moved since the last sweep."""
PAGE = 1024
PAGES = 10
"""Rows that one query reads, and queries of one sweep on one basis: what has a ticket is passed by, and the next sweep goes on there."""

Found = tuple[int, int, int, int, int]
"""Of a row: id, basis, due, priority, kind."""

DUE = f"""
SELECT id, due, priority, kind FROM job
WHERE state = {schema.SCHEDULED} AND basis = ? AND due >= ? AND due < ? AND kind IN (SELECT value FROM json_each(?))
ORDER BY due, priority DESC, kind LIMIT ? OFFSET ?
"""
URGENT = f"""
SELECT id, due, priority, kind FROM job INDEXED BY job_urgent
WHERE state = {schema.SCHEDULED} AND priority > 0 AND basis = ? AND due < ? AND kind IN (SELECT value FROM json_each(?))
ORDER BY due LIMIT {PAGE}
"""
PARKED = f"""
SELECT id, basis, due, priority, kind FROM job
WHERE state = {schema.PARKED} AND id > ? AND kind IN (SELECT value FROM json_each(?)) ORDER BY id LIMIT ?
"""
ALIVE = f"SELECT id FROM job WHERE id IN (SELECT value FROM json_each(?)) AND +state IN ({schema.SCHEDULED}, {schema.PARKED})"

_due = attrgetter("due")


def _found(file: StoreFile, basis: int, records: list[Record]) -> list[Found]:
    """Of rows that are due by the file, those that this process has touched are so when it has promised."""
    exact = file.promises.exact
    return [(id, basis, exact(id, basis, due), priority, kind) for id, due, priority, kind in records]


class Window:
    """See the module."""

    def __init__(self, moments: Moments, kinds: Kinds) -> None:
        self.tickets: dict[int, Ticket] = {}
        self.unreadable: set[int] = set()
        """Jobs whose data this process could not read: it does not try them again."""
        self.horizon = -inf
        """Elapsed moment up to which everything is here."""
        self.more = False
        """The last sweep left overdue rows behind since it had as many as were wanted."""
        self._moments = moments
        self._kinds = kinds
        self._cursors: dict[int, tuple[int, int]] = {}
        self._parked_after = 0
        self._stepped = False  # the wall clock was, since the window was loaded; set by the room's thread, reset by the keeper's

    def entry(self, id: int, basis: int, due: int, priority: int, kind: int, wanted: bool = False) -> Ticket | None:
        """The ticket to arm for a job that waits; None if it is none of this process's, or beyond the horizon and not `wanted`."""
        moment = self._moments.to_elapsed(basis, due)
        ticket = self.tickets.get(id)
        if ticket is None:
            known = self._kinds.kind_of(kind)
            if (moment >= self.horizon and not wanted) or known is None or id in self.unreadable:
                return None
            ticket = self.tickets.setdefault(id, Ticket(id, moment, priority, known))
        ticket.due = moment
        ticket.wall = None if basis == self._moments.basis else self._moments.to_wall(basis, due)
        return ticket

    def load(self, file: StoreFile, until: float) -> list[Ticket]:
        """New tickets for what falls due before `until` (elapsed), the overdue left out, unless more than half of the way there is loaded.

        Where there are too many it gives fewer, and the horizon is nearer.
        """
        if self._stepped:
            self._stepped, self.horizon = False, -inf
        since, now = self.horizon, self._moments.elapsed() / SECOND
        if since - now > (until - now) / 2 or until <= since or (len(self.tickets) > MOST and since - now > SHORT):
            return []
        self.horizon = until
        start = max(since, now)
        try:
            records, reached = self._read(file, start, until)
        except BaseException:
            self.horizon = since
            raise
        self.horizon = max(reached, start + 1 / SECOND)
        return self._all_new(records)

    def _read(self, file: StoreFile, start: float, until: float) -> tuple[list[Found], float]:
        found: list[Found] = []
        known, reached, elapsed = json.dumps(self._kinds.known()), until, self._moments.elapsed()
        ahead, far = round(start * SECOND) - elapsed, round(min(until - start, 1e9) * SECOND)
        for basis, moment in self._moments.limits(ahead):
            records = file.read(DUE, (basis, moment, moment + far, known, MOST, 0))
            found += _found(file, basis, records)
            if len(records) == MOST:
                reached = min(reached, self._moments.to_elapsed(basis, records[-1][1]))
        return found, reached

    def _all_new(self, found: list[Found]) -> list[Ticket]:
        # Last of all, when nothing can fail any more: who has a ticket is passed by from now on, so it must be handed out.
        return [ticket for one in found if (ticket := self._new(*one)) is not None]

    def _is_new(self, id: int, basis: int, due: int) -> bool:
        """It has no ticket here, or one that would come too late."""
        ticket = self.tickets.get(id)
        return ticket is None or ticket.due > self._moments.to_elapsed(basis, due) + APART

    def _new(self, id: int, basis: int, due: int, priority: int, kind: int) -> Ticket | None:
        return self.entry(id, basis, due, priority, kind, wanted=True) if self._is_new(id, basis, due) else None

    def sweep(self, file: StoreFile, want: int) -> tuple[list[Ticket], list[Ticket]]:
        """New tickets: of all that falls due about now, and about `want` of what is overdue, oldest first.

        The former are read by themselves, so that what others add or move to this moment does not wait for the end of a backlog.
        """
        self._drop_dead(file)
        known = json.dumps(self._kinds.known())
        now: list[Found] = []
        late: list[Found] = []
        more = False
        for basis, limit in self._moments.limits(AHEAD):
            recent = limit - AHEAD - BEHIND
            for page in range(PAGES):
                records = file.read(DUE, (basis, recent, limit, known, PAGE, page * PAGE))
                now += [one for one in _found(file, basis, records) if self._is_new(*one[:3])]
                if len(records) < PAGE:
                    break
            urgent = file.read(URGENT, (basis, recent, known))  # of a backlog, so that it does not hide them
            now += [one for one in _found(file, basis, urgent) if self._is_new(*one[:3])]
            more = self._read_overdue(file, basis, limit - AHEAD, want, known, late) or more
        parked, after = self._look_at_parked(file, known)
        self.more, self._parked_after = more, after
        entries = self._all_new(now + parked)  # first: a row that was read both ways is none of the backlog
        overdue = self._all_new(late)
        overdue.sort(key=_due)  # of several bases
        return entries, overdue

    def _read_overdue(self, file: StoreFile, basis: int, limit: int, want: int, known: str, found: list[Found]) -> bool:
        """Adds to `found` from where the last sweep stopped; True if there is more, and enough for now."""
        since, skip = self._cursors.pop(basis, (-(2**62), 0))
        for _ in range(PAGES if want > 0 else 0):
            records = file.read(DUE, (basis, since, limit, known, PAGE, skip))
            found += [one for one in _found(file, basis, records) if self._is_new(*one[:3])]
            if len(records) < PAGE:
                return False
            last = records[-1][1]
            same = sum(record[1] == last for record in records)  # the next page begins after these, inside one moment if need be
            since, skip = last, same + (skip if last == since else 0)
            if len(found) >= want:
                return True
        if want > 0:
            self._cursors[basis] = (since, skip)
        return False

    def _drop_dead(self, file: StoreFile) -> None:
        """Lets go of some tickets that are long due and wait no more: others ran or cancelled them, and nothing is claimed here."""
        overdue = (self._moments.elapsed() - BEHIND) / SECOND
        tickets = [ticket for ticket in list(self.tickets.values()) if ticket.due < overdue]
        some = tickets[: PAGE // 2] + tickets[-PAGE // 2 :]
        if some:
            alive = {id for (id,) in file.read(ALIVE, (json.dumps([ticket.id for ticket in some]),))}
            for ticket in some:
                if ticket.id not in alive and self.tickets.get(ticket.id) is ticket:
                    self.tickets.pop(ticket.id, None)

    def _look_at_parked(self, file: StoreFile, known: str) -> tuple[list[Found], int]:
        records = file.read(PARKED, (self._parked_after, known, PAGE))
        found = [(id, *rest) for id, *rest in records if id not in self.unreadable]
        return found, records[-1][0] if len(records) == PAGE else 0

    def reanchor(self) -> list[Ticket]:
        """The wall clock was stepped: tickets that follow it, with their moments by the new one. The window is loaded anew after it."""
        moved = []
        for ticket in list(self.tickets.values()):
            if ticket.wall is not None:
                ticket.due = ticket.wall - self._moments.offset()
                moved.append(ticket)
        self._stepped = True
        return moved

    def put_off(self, id: int, due: float) -> bool:
        """Lets the ticket of a job that falls due later than before know it; False: there is none here, or it would come too late."""
        ticket = self.tickets.get(id)
        if ticket is None or ticket.due > due:
            return False
        ticket.due, ticket.wall = due, None
        return True

    def forget(self) -> None:
        """A new room begins."""
        self.tickets.clear()
        self._cursors.clear()
        self.horizon = -inf
