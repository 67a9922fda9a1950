"""Cursors: DECLARE, FETCH, MOVE and CLOSE, in every dialect.

PostgreSQL, "DECLARE", "FETCH". RisingWave, "Subscription cursors".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal

from watersmeet.database.sessions.context import Nested, Session
from watersmeet.database.sessions.cursors import Flow, OpenCursor
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.readers import reads
from watersmeet.dialects.tree.statements import Name, Statement
from watersmeet.dialects.tree.tokens import Cursor, read_options, span_of
from watersmeet.errors import error
from watersmeet.session.features.subscriptions import Beginning, read_beginning, subscription_rows
from watersmeet.session.handlers import handles, handles_nested
from watersmeet.values.times import length_us

#: More rows than any cursor has.
ALL_ROWS: Final = 1 << 62


@dataclass(frozen=True, kw_only=True)
class DeclareCursor(Statement):
    """`DECLARE name CURSOR FOR query`: its rows are fixed at its declaration.

    binary: the protocol sends rows in binary form. held: the cursor outlives its transaction.
    """

    takes: ClassVar[str | None] = None

    name: str
    query: Statement
    binary: bool = False
    held: bool = False


@dataclass(frozen=True, kw_only=True)
class DeclareSubscriptionCursor(Statement):
    """`DECLARE name SUBSCRIPTION CURSOR FOR subscription …`: stays open until CLOSE."""

    takes: ClassVar[str | None] = None

    name: str
    subscription: Name
    beginning: Beginning


@dataclass(frozen=True, kw_only=True)
class Fetch(Statement):
    """FETCH, and MOVE, which returns no rows.

    kind: the direction. count: the number of rows; None for all that follow.
    timeout_s: how long to wait for rows of a running query; None for the cursor's default.
    """

    takes: ClassVar[str | None] = None

    name: str
    kind: Literal["next", "absolute", "relative"]
    count: int | None
    moves: bool = False
    timeout_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class CloseCursor(Statement):
    """`CLOSE name`. name: None for CLOSE ALL."""

    takes: ClassVar[str | None] = None

    name: str | None


@reads("DECLARE")
def read_declare(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor is after DECLARE."""
    name = cursor.name().name
    if cursor.take("SUBSCRIPTION", "CURSOR"):
        cursor.expect("FOR")
        subscription = cursor.relation_name()
        return DeclareSubscriptionCursor(**base, name=name, subscription=subscription, beginning=read_beginning(cursor))
    binary = False
    while not cursor.take("CURSOR"):
        if cursor.take("BINARY"):
            binary = True
        elif not any(map(cursor.take, ("INSENSITIVE", "ASENSITIVE", "SCROLL"))) and not cursor.take("NO", "SCROLL"):
            raise cursor.error()
    held = cursor.take("WITH", "HOLD")
    if not held:
        cursor.take("WITHOUT", "HOLD")
    cursor.expect("FOR")
    return DeclareCursor(**base, name=name, query=cursor.statement(), binary=binary, held=held)


@reads("FETCH")
@reads("MOVE")
def read_fetch(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """FETCH and MOVE."""
    moves = cursor.tokens[0].text.upper() == "MOVE"
    kind, count = _direction(cursor)
    if not cursor.take("FROM"):
        cursor.take("IN")
    name = cursor.name().name
    timeout_s = _timeout(cursor) if cursor.take("WITH") else None
    cursor.end()
    return Fetch(**base, name=name, kind=kind, count=count, moves=moves, timeout_s=timeout_s)


def _timeout(cursor: Cursor) -> float:
    """`(timeout = '1s')`: the cursor is after WITH."""
    span = span_of(cursor.rest or cursor.tokens)
    options = read_options(cursor)
    length = length_us(options.get("timeout", ""))
    if options.keys() != {"timeout"} or length is None or length < 0:
        raise cursor.error_at(
            span,
            "INVALID_PARAMETER",
            "FETCH has the option timeout, a length of time",
            hint="Write WITH (timeout = '1s').",
        )
    return length / 1e6


_ONE: Final[dict[str, tuple[Literal["next", "absolute"], int]]] = {
    "NEXT": ("next", 1),
    "PRIOR": ("next", -1),
    "FIRST": ("absolute", 1),
    "LAST": ("absolute", -1),
}


def _direction(cursor: Cursor) -> tuple[Literal["next", "absolute", "relative"], int | None]:
    for word, found in _ONE.items():
        if cursor.take(word):
            return found
    if cursor.take("ABSOLUTE"):
        return "absolute", _number(cursor)
    if cursor.take("RELATIVE"):
        return "relative", _number(cursor)
    sign = -1 if cursor.take("BACKWARD") else 1
    if sign == 1:
        cursor.take("FORWARD")
    if cursor.take("ALL"):
        return "next", None if sign == 1 else -ALL_ROWS
    count = _number(cursor) if cursor.at("-") or (cursor.current is not None and cursor.current.text.isdecimal()) else 1
    return "next", sign * count


def _number(cursor: Cursor) -> int:
    return -cursor.integer() if cursor.take("-") else cursor.integer()


@reads("CLOSE")
def read_close(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor is after CLOSE."""
    name = None if cursor.take("ALL") else cursor.name().name
    cursor.end()
    return CloseCursor(**base, name=name)


@handles_nested(DeclareCursor)
def declare(session: Session, statement: DeclareCursor, nested: Nested) -> Result:
    """DECLARE … CURSOR. Outside of a transaction, a cursor must have WITH HOLD or belong to a running query."""
    session.cursors.check_new(statement.name)
    alone = session.transaction is None
    result = nested.run(statement.query)
    if result.running is None and alone and not statement.held:
        raise error("NO_TRANSACTION", "DECLARE CURSOR can only be used in transaction blocks")
    if result.table is None and result.running is None:
        raise error("FEATURE_NOT_SUPPORTED", "a cursor of this statement is not supported")
    flow = None if result.running is None else Flow(result.running, session.cancellation)
    # The rows of a running query are not fixed; outside of a transaction its cursor stays open until CLOSE.
    held = statement.held or (flow is not None and alone)
    session.cursors[statement.name] = OpenCursor(result, declared=True, held=held, binary=statement.binary, flow=flow)
    session.cursors.check_size(session.result_bytes)
    return Result("DECLARE CURSOR")


@handles(DeclareSubscriptionCursor)
def declare_subscription(session: Session, statement: DeclareSubscriptionCursor) -> Result:
    """DECLARE … SUBSCRIPTION CURSOR."""
    session.cursors.check_new(statement.name)
    result = subscription_rows(session, statement.subscription, statement.beginning, statement.text)
    assert result.running is not None
    flow = Flow(result.running, session.cancellation, waits=False)
    session.cursors[statement.name] = OpenCursor(result, declared=True, held=True, flow=flow)
    return Result("DECLARE CURSOR")


@handles_nested(Fetch)
def fetch(session: Session, statement: Fetch, nested: Nested) -> Result:
    """FETCH and MOVE. Holds no lock: it may wait for rows."""
    del nested
    cursor = session.cursors.named(statement.name)
    rows = cursor.fetch(statement.kind, statement.count, statement.timeout_s)
    if statement.moves:
        return Result("MOVE", rowcount=rows.num_rows)
    assert cursor.result is not None
    return replace(cursor.result, command="FETCH", table=rows, rowcount=rows.num_rows, running=None, notices=())


@handles(CloseCursor)
def close(session: Session, statement: CloseCursor) -> Result:
    """CLOSE."""
    if statement.name is None:
        session.cursors.drop(n for n, c in session.cursors.items() if c.declared)
        return Result("CLOSE CURSOR ALL")
    session.cursors.named(statement.name)
    session.cursors.drop([statement.name])
    return Result("CLOSE CURSOR")
