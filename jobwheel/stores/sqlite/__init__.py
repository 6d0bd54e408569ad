"""The SQLite store: jobs in one file, which several processes of one machine share. See `store` for what it promises."""

from jobwheel.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
