"""What goes wrong with a file, in words: each error of SQLite or the operating system as a `StoreError` that says what to do."""

import os
import sqlite3

from jobwheel.errors import StoreError

_LOCKED = "another program holds SQLite's lock on it: let it end its transaction, and keep other programs from writing to this file"
_ADVICE = {
    "SQLITE_BUSY": _LOCKED,
    "SQLITE_LOCKED": _LOCKED,
    "SQLITE_FULL": "the disk is full: free some space; what was acknowledged is safe, and nothing has to be restarted",
    "SQLITE_READONLY": "user {user} may not write to it or to its directory: mend the permissions (SQLite makes files beside it)",
    "SQLITE_CANTOPEN": "user {user} cannot open it or make files beside it: mend the permissions, or set store.path",
    "SQLITE_CORRUPT": (
        "its content is damaged; it was left as it is. Stop every process that uses it, move it away together with its -wal and -shm, "
        "then restore a backup in its place, or what `sqlite3 FILE .recover` finds, or begin anew"
    ),
    "SQLITE_TOOBIG": "a job's data is too big for SQLite, which takes up to a billion bytes: keep it elsewhere, and its place in the job",
    "SQLITE_NOTADB": "it is not an SQLite database; it was left as it is. Set store.path to another file, or move this one away",
    "SQLITE_IOERR": "the disk or its file system fails: see the system's log",
    "SQLITE_PERM": "user {user} has no access to it: mend the permissions",
}

BROKEN = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
"""Errors after which nothing more is written to the file."""


def code_of(error: sqlite3.Error) -> str:
    """SQLite's own name of the error, such as SQLITE_FULL, without its extension; empty if it has none."""
    name: str = getattr(error, "sqlite_errorname", "") or ""
    return "_".join(name.split("_")[:2])


def told(path: str, error: sqlite3.Error | OSError) -> StoreError:
    """The error for callers."""
    if isinstance(error, OSError):
        return StoreError(
            f"the store's file {path} cannot be used ({error.strerror}: {error.filename}, user {_user()}): "
            f"mend the permissions, or set store.path to another place"
        )
    code = code_of(error)
    advice = _ADVICE.get(code, "this is unexpected: please report it").format(user=_user())
    return StoreError(f"the store's file {path} failed with {code or type(error).__name__} ({error}): {advice}")


def _user() -> int:
    return os.geteuid()
