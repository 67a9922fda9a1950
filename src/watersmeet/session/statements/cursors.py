"""DECLARE, FETCH, MOVE and CLOSE."""

from __future__ import annotations

from dataclasses import replace

from watersmeet.database.sessions.context import Nested, Session
from watersmeet.database.sessions.cursors import Flow, OpenCursor
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.statements.cursors import CloseCursor, DeclareCursor, DeclareSubscriptionCursor, Fetch
from watersmeet.errors import error
from watersmeet.session.features.subscriptions import subscription_rows


def declare(session: Session, statement: DeclareCursor, nested: Nested) -> Result:
    """DECLARE … CURSOR. Outside of a transaction, only a cursor WITH HOLD or over a query that runs can be declared."""
    session.cursors.check_new(statement.name)
    alone = session.transaction is None
    result = nested.run(statement.query)
    if result.running is None and alone and not statement.held:
        raise error("NO_TRANSACTION", "DECLARE CURSOR can only be used in transaction blocks")
    if result.table is None and result.running is None:
        raise error("FEATURE_NOT_SUPPORTED", "a cursor of this statement is not supported")
    flow = None if result.running is None else Flow(result.running, session.cancellation)
    # A query that runs belongs to no moment: outside of a transaction its cursor stays until CLOSE.
    held = statement.held or (flow is not None and alone)
    session.cursors[statement.name] = OpenCursor(result, declared=True, held=held, binary=statement.binary, flow=flow)
    session.cursors.check_size(session.result_bytes)
    return Result("DECLARE CURSOR")


def declare_subscription(session: Session, statement: DeclareSubscriptionCursor) -> Result:
    """DECLARE … SUBSCRIPTION CURSOR."""
    session.cursors.check_new(statement.name)
    result = subscription_rows(session, statement.subscription, statement.beginning, statement.text)
    assert result.running is not None
    flow = Flow(result.running, session.cancellation, waits=False)
    session.cursors[statement.name] = OpenCursor(result, declared=True, held=True, flow=flow)
    return Result("DECLARE CURSOR")


def fetch(session: Session, statement: Fetch, nested: Nested) -> Result:
    """FETCH and MOVE. Holds no lock: it may wait for rows."""
    del nested
    cursor = session.cursors.named(statement.name)
    rows = cursor.fetch(statement)
    if statement.moves:
        return Result("MOVE", rowcount=rows.num_rows)
    assert cursor.result is not None
    return replace(cursor.result, command="FETCH", table=rows, rowcount=rows.num_rows, running=None, notices=())


def close(session: Session, statement: CloseCursor) -> Result:
    """CLOSE."""
    if statement.name is None:
        session.cursors.drop(n for n, c in session.cursors.items() if c.declared)
        return Result("CLOSE CURSOR ALL")
    session.cursors.named(statement.name)
    session.cursors.drop([statement.name])
    return Result("CLOSE CURSOR")
