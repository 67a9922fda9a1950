"""BEGIN, COMMIT, ROLLBACK, FLUSH."""

from __future__ import annotations

from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.result import Result
from watersmeet.database.transactions import commit, flush, new_transaction, rollback
from watersmeet.dialects.tree.statements import Begin, Commit, Flush, Rollback


def begin_statement(session: Session, statement: Begin) -> Result:
    """BEGIN."""
    if session.transaction is not None:
        session.notice("there is already a transaction in progress")
        return Result("BEGIN")
    session.transaction = new_transaction(session, read_only=statement.read_only)
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
