"""Adding with a SQLAlchemy transaction: a call that waits in the session and is made once the transaction around it is committed.

Does: follow a session's transaction and savepoints. Does not: know jobs, stores, or a store's transactions; change what the session
does, but for one begin. Called by `TimerManager.add_job(..., after_commit=session)`. The one file that knows SQLAlchemy (extra
`sqlalchemy`), which it imports at the first such call.

The listeners are on SQLAlchemy's class `Session`, set once for the process: to take one off a session inside an event is not possible.
For sessions without waiting calls they are one look into a dictionary. What waits is kept in `session.info`, so it goes where the session
goes, and no two threads share it.

The calls are made at the end of the outermost transaction (`after_transaction_end`) and not at `after_commit`: by then the session has
let go of its connection, so a call that raises leaves a session that can be used on.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from jobwheel.errors import BadType, StoreError, UsageError

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, SessionTransaction, scoped_session

    AnySession = Session | scoped_session[Any]

WAITING = "jobwheel.after_commit"
"""Where in `session.info` the calls of its present transaction wait, in order."""


class Waiting:
    """One call, its words for an error, and the transaction or savepoint whose end decides on it; None: all are committed."""

    __slots__ = ("call", "name", "within")

    def __init__(self, within: SessionTransaction, call: Callable[[], object], name: str) -> None:
        self.within: SessionTransaction | None = within
        self.call = call
        self.name = name


def call_after_commit(session: AnySession, call: Callable[[], object], name: str) -> None:
    """Leaves `call` to the commit of the transaction that `session` is in; it is dropped if that, or a savepoint around it, is not.

    A session that is in no transaction begins one, as any use of a session does. What the call raises comes out of the commit as a
    `StoreError` that has `name`, after all other calls of the transaction were made.

    Raises:
        BadType: not a session.
        UsageError: SQLAlchemy is not installed; or the session can commit nothing now.
    """
    found = _session_of(session)
    if not found.in_transaction():
        if not found.autobegin:
            raise UsageError("after_commit=: this session has autobegin=False and is in no transaction; call its begin() first")
        found.begin()
    elif not found.is_active:
        raise UsageError(
            "after_commit=: the transaction of this session has failed or is being committed just now, so nothing can be added to it; "
            "roll it back, or add without after_commit"
        )
    within = found.get_nested_transaction() or found.get_transaction()
    assert within is not None
    found.info.setdefault(WAITING, []).append(Waiting(within, call, name))


def _session_of(session: object) -> Session:
    """The session that is meant, once its class is listened to."""
    try:
        orm = importlib.import_module("sqlalchemy.orm")
        event = importlib.import_module("sqlalchemy.event")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sqlalchemy":
            raise
        raise UsageError(
            "after_commit= needs the package sqlalchemy, which is not installed: pip install 'jobwheel[sqlalchemy]'"
        ) from error
    found = session() if isinstance(session, orm.scoped_session) else session
    if not isinstance(found, orm.Session):
        raise BadType(f"after_commit={session!r:.80}: a SQLAlchemy Session or scoped_session (db.session){_hint(session)}")
    # Threads that come here at once may each set the listeners: what they do is done already when they are called a second time.
    if not event.contains(orm.Session, "after_transaction_end", _on_end):
        event.listen(orm.Session, "after_commit", _on_commit)
        event.listen(orm.Session, "after_transaction_end", _on_end)
    return cast("Session", found)


def _hint(session: object) -> str:
    if hasattr(session, "sync_session"):
        return "; of an AsyncSession give its sync_session"
    if callable(session):
        return "; call it, and give the session that you get"
    return f", not {type(session).__name__}"


def _on_commit(session: Session) -> None:
    """A savepoint was released, or all is committed: what waited for that waits for the next transaction outward, or for nothing."""
    committed = session.get_nested_transaction() or session.get_transaction()
    for waiting in session.info.get(WAITING, ()):
        if waiting.within is committed:
            waiting.within = _outward(committed)


def _outward(transaction: SessionTransaction | None) -> SessionTransaction | None:
    outer = transaction and transaction.parent
    # Between two savepoints there may be what SQLAlchemy begins for itself while it flushes.
    while outer is not None and not outer.nested and outer.parent is not None:
        outer = outer.parent
    return outer


def _on_end(session: Session, transaction: SessionTransaction) -> None:
    """A transaction or savepoint is over: what still waits for its commit will never be called. With the outermost one the rest is."""
    waiting: list[Waiting] | None = session.info.get(WAITING)
    if waiting is None:
        return
    waiting[:] = (each for each in waiting if each.within is not transaction)
    if transaction.parent is None:
        del session.info[WAITING]
        _make(waiting)


def _make(calls: list[Waiting]) -> None:
    failed: list[tuple[str, Exception]] = []
    for each in calls:
        try:
            each.call()
        except Exception as error:  # whatever one meets, the others are of the same commit and are made
            failed.append((each.name, error))
    if failed:
        told = "; ".join(f"{name} ({type(error).__name__}: {error})" for name, error in failed)
        raise StoreError(
            f"the transaction is committed, but {len(failed)} of its {len(calls)} jobs are not stored: {told}. "
            "Add them again, or let a sweep of your own tables find what has no job"
        ) from failed[0][1]
