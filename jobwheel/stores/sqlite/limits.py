"""Which jobs may not be claimed now, though they are due. Called by `claims` and `store`.

By `max_running`: how many of a kind run, over all processes that share the file. The counts are the table `tally`'s, so they are exact
whoever runs what, and a dead process's runs count until they are rescued.

And by what befell them: of the jobs that two processes had when they died each process has one at a time. One of them may be what kills
its process; so the others, which were only beside it, are not failed for it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from sqlite3 import Connection

from jobwheel.held import ALONE
from jobwheel.kind import Kind, registered_kinds
from jobwheel.stores.sqlite import schema
from jobwheel.stores.sqlite.file import StoreFile

Limited = tuple[Kind, list[int]]
"""A kind that has a `max_running`, and the jobs of it that are wanted, in order."""

# By names, not by numbers: another process may have met a former name of the kind that this one has not.
RUNNING = f"""
SELECT kind.name, tally.n FROM tally JOIN kind ON kind.n = tally.kind
WHERE tally.state = {schema.RUNNING} AND kind.name IN (SELECT value FROM json_each(?))
"""


_SUSPECT = f"flags >= {schema.SUSPECT} AND state < {schema.ENDED}"
ANY = f"SELECT 1 FROM job WHERE {_SUSPECT} LIMIT 1"
SUSPECTS = f"SELECT id FROM job WHERE {_SUSPECT} AND id IN (SELECT value FROM json_each(?))"
RUNS = f"SELECT 1 FROM job INDEXED BY job_suspect WHERE {_SUSPECT} AND state = {schema.RUNNING} AND owner = ? LIMIT 1"


def beside_others(connection: Connection, file: StoreFile, ids: Sequence[int]) -> list[int]:
    """Those of them that may not be claimed now since they must run alone. Asked as `without_place` is."""
    if connection.execute(ANY).fetchone() is None:
        return []
    suspects = {id for (id,) in connection.execute(SUSPECTS, (json.dumps(list(ids)),))}
    first = connection.execute(RUNS, (file.number,)).fetchone() is None
    ordered = [id for id in ids if id in suspects]
    return ordered[1:] if first else ordered


def without_place(connection: Connection, limited: Mapping[str, Limited]) -> dict[int, str]:
    """Those of them that may not be claimed now, by their ids, with the names of their kinds.

    To be asked in one's turn to write, and used before it is over.
    """
    running = dict(connection.execute(RUNNING, (_names(kind for kind, _ in limited.values()),)).fetchall())
    return {id: kind.name for kind, ids in limited.values() for id in ids[_room(kind, running) :]}


def room(file: StoreFile) -> dict[str, int]:
    """How many more may run now: of each limited kind that this process knows, by its name; and of those that must run alone."""
    places = {ALONE: int(not file.read(RUNS, (file.number,)))}
    kinds = [kind for kind in registered_kinds() if kind.options.max_running is not None]
    if kinds:
        running: dict[str, int] = dict(file.read(RUNNING, (_names(kinds),)))
        places |= {kind.name: _room(kind, running) for kind in kinds}
    return places


def _names(kinds: Iterable[Kind]) -> str:
    return json.dumps([name for kind in kinds for name in (kind.name, *kind.aliases)])


def _room(kind: Kind, running: Mapping[str, int]) -> int:
    return max(0, (kind.options.max_running or 0) - sum(running.get(name, 0) for name in (kind.name, *kind.aliases)))
