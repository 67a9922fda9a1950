"""BEGIN, COMMIT, ROLLBACK, FLUSH."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from watersmeet.catalog import Relation
from watersmeet.dialects.statements import Begin, Commit, Flush, Rollback
from watersmeet.errors import error
from watersmeet.session.context import Session
from watersmeet.session.ordering import in_order_at_commit
from watersmeet.session.result import Result
from watersmeet.session.transaction import Change, Transaction, consolidated, in_one_form, joined, merged
from watersmeet.store.commits import added


def begin_statement(session: Session, statement: Begin) -> Result:
    """BEGIN."""
    if session.transaction is not None:
        session.notice("there is already a transaction in progress")
        return Result("BEGIN")
    session.transaction = Transaction(read_only=statement.read_only or session.database.read_only)
    return Result("BEGIN")


def commit_statement(session: Session, statement: Commit) -> Result:
    """COMMIT."""
    del statement
    if session.transaction is None:
        session.notice("there is no transaction in progress")
    else:
        commit(session)
    return Result("COMMIT")


def rollback_statement(session: Session, statement: Rollback) -> Result:
    """ROLLBACK."""
    del statement
    if session.transaction is None:
        session.notice("there is no transaction in progress")
    else:
        rollback(session)
    return Result("ROLLBACK")


def flush_statement(session: Session, statement: Flush) -> Result:
    """FLUSH: waits until all views show what was committed before."""
    del statement
    flush(session)
    return Result("FLUSH")


def flush(session: Session) -> None:
    """Waits until all views and running queries have processed what was committed before. Raises why a stream doesn't take what a view gives (INTO)."""
    session.require_writer("FLUSH")
    session.require_no_transaction("FLUSH")
    _flush(session)


def _flush(session: Session) -> None:
    session.database.flush()
    problem = session.database.unwritten.first()
    if problem is not None:
        raise problem


def commit(session: Session) -> None:
    """Commit the open transaction in one step. TRANSACTION_STATE, with everything undone, if it had failed."""
    transaction = session.transaction
    assert transaction is not None
    database = session.database
    with database.guard:
        session.transaction = None
        try:
            if transaction.failed:
                raise error("TRANSACTION_STATE", "the transaction had failed and was rolled back",
                            hint="Use ROLLBACK after an error, then begin again.")
            if gone := transaction.changes.keys() - database.catalog.relations.keys():
                raise error("TRANSACTION_STATE", "the transaction was rolled back: a table that it changed was dropped",
                            detail=f"{len(gone)} of its tables are gone.")
            streams = {r.id for r in database.catalog.relations.values() if r.mode is not None}
            changes = {i: joined(c) if i in streams else merged(c) for i, c in transaction.changes.items()}
            changes, overtaken = in_order_at_commit(session, changes)
            changes = {i: c for i, c in changes.items() if c.table.num_rows}
            rejected = added(transaction.rejected, overtaken)
            if changes or rejected:
                database.commit(changes, rejected=rejected)
        finally:
            database.content.clear_overlay()


def rollback(session: Session) -> None:
    """Undo the open transaction."""
    with session.database.guard:
        session.transaction = None
        session.database.content.clear_overlay()


def apply(session: Session, relation: Relation, change: Change, metrics: Mapping[str, Any] | None = None, *, rejected: int = 0) -> None:
    """Do a change of a table: commit it, or take it into the open transaction. The caller holds the guard.

    metrics: of the commit. rejected: how many rows were left out (`in_order`): they are counted if nothing else changes, too.

    A change with deleted rows need not be consolidated. That of a stream is not: every row that came counts, in its order.
    """
    plain = change.diff is None or relation.mode is not None
    change = Change(in_one_form(change.table), change.diff) if plain else consolidated(change)
    rows = change.table.num_rows
    if session.transaction is None:
        if rows or rejected:
            session.database.commit({relation.id: change} if rows else {}, metrics, {relation.id: rejected})
        return
    session.transaction.add(relation.id, change, rejected)
    if rows:
        session.database.content.overlay(relation.id, change.table, change.diffs)


@contextlib.contextmanager
def own_transaction(session: Session) -> Iterator[None]:
    """A transaction around several statements, unless one is open already."""
    if session.transaction is not None:
        yield
        return
    session.transaction = Transaction()
    try:
        yield
        commit(session)
    except BaseException:
        if session.transaction is not None:
            rollback(session)
        raise


def wait_if_wanted(session: Session) -> None:
    """After a change, with `rw_implicit_flush` set: wait until all views show it. Holds no lock."""
    if session.transaction is None and session.variables.is_on("implicit_flush"):
        _flush(session)
