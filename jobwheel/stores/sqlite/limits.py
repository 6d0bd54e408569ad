"""`max_running`: how many of a kind run now, over all processes that share the file, and which jobs find no place. Called by `claims` and
`store`; the counts are the table `tally`'s, so they are exact whoever runs what, and a dead process's runs count until they are rescued.
"""

import json
from collections.abc import Iterable, Mapping
from sqlite3 import Connection

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


def without_place(connection: Connection, limited: Mapping[str, Limited]) -> list[int]:
    """Those of them that may not be claimed now. To be asked in one's turn to write, and used before it is over."""
    running = dict(connection.execute(RUNNING, (_names(kind for kind, _ in limited.values()),)).fetchall())
    return [id for kind, ids in limited.values() for id in ids[_room(kind, running) :]]


def room(file: StoreFile) -> dict[str, int]:
    """Of each limited kind that this process knows, by its name: how many more of it may run now."""
    kinds = [kind for kind in registered_kinds() if kind.options.max_running is not None]
    if not kinds:
        return {}
    running: dict[str, int] = dict(file.read(RUNNING, (_names(kinds),)))
    return {kind.name: _room(kind, running) for kind in kinds}


def _names(kinds: Iterable[Kind]) -> str:
    return json.dumps([name for kind in kinds for name in (kind.name, *kind.aliases)])


def _room(kind: Kind, running: Mapping[str, int]) -> int:
    return max(0, (kind.options.max_running or 0) - sum(running.get(name, 0) for name in (kind.name, *kind.aliases)))
