"""Cursors: DECLARE, FETCH, MOVE and CLOSE, in every dialect.

PostgreSQL, "DECLARE", "FETCH". RisingWave, "Subscription cursors".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from sqlglot.tokens import Token

from watersmeet.dialects.tree.statements import Name, Statement
from watersmeet.dialects.tree.tokens import Cursor, read_options, span_of
from watersmeet.errors import error
from watersmeet.values.times import length_us

#: More rows than any cursor has.
ALL_ROWS: Final = 1 << 62


@dataclass(frozen=True)
class Beginning:
    """Where a cursor over a subscription begins: with the content, with what comes from now on, with the oldest change
    there is, or with the changes from a time on (milliseconds since 1970, UTC).
    """

    kind: Literal["full", "now", "begin", "since"]
    since_ms: int = 0


@dataclass(frozen=True, kw_only=True)
class DeclareCursor(Statement):
    """`DECLARE name CURSOR FOR query`: its rows are those of the moment when it is declared.

    binary: the protocol sends the rows in binary. held: it outlives its transaction.
    """

    takes: ClassVar[str | None] = None

    name: str
    query: Statement
    binary: bool = False
    held: bool = False


@dataclass(frozen=True, kw_only=True)
class DeclareSubscriptionCursor(Statement):
    """`DECLARE name SUBSCRIPTION CURSOR FOR subscription …`: it stays until CLOSE."""

    takes: ClassVar[str | None] = None

    name: str
    subscription: Name
    beginning: Beginning


@dataclass(frozen=True, kw_only=True)
class Fetch(Statement):
    """FETCH, and MOVE, which returns no rows.

    kind: where the rows are. count: None: all that follow. timeout_s: how long to wait for rows of a query that runs;
    None: as its cursor does.
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


def read_beginning(cursor: Cursor) -> Beginning:
    """`FULL`, `SINCE now()`, `SINCE proctime()`, `SINCE begin()`, `SINCE 1715669376304`, or nothing; to the end."""
    found = Beginning("now")
    if cursor.take("FULL"):
        found = Beginning("full")
    elif cursor.take("SINCE"):
        if cursor.take("NOW", "(", ")") or cursor.take("PROCTIME", "(", ")"):
            pass
        elif cursor.take("BEGIN", "(", ")"):
            found = Beginning("begin")
        else:
            found = Beginning("since", cursor.integer())
    cursor.end()
    return found


def read_declare(cursor: Cursor, base: dict[str, Any], inner: Callable[[Sequence[Token]], Statement]) -> Statement:
    """The cursor is behind DECLARE. inner: reads the query."""
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
    if cursor.done:
        raise cursor.error()
    return DeclareCursor(**base, name=name, query=inner(cursor.originals(cursor.rest)), binary=binary, held=held)


def read_fetch(cursor: Cursor, base: dict[str, Any], *, moves: bool = False) -> Statement:
    """The cursor is behind FETCH or MOVE."""
    kind, count = _direction(cursor)
    if not cursor.take("FROM"):
        cursor.take("IN")
    name = cursor.name().name
    timeout_s = _timeout(cursor) if cursor.take("WITH") else None
    cursor.end()
    return Fetch(**base, name=name, kind=kind, count=count, moves=moves, timeout_s=timeout_s)


def read_move(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor is behind MOVE."""
    return read_fetch(cursor, base, moves=True)


def _timeout(cursor: Cursor) -> float:
    """`(timeout = '1s')`: the cursor is behind WITH."""
    span = span_of(cursor.rest or cursor.tokens)
    options = read_options(cursor)
    length = length_us(options.get("timeout", ""))
    if options.keys() != {"timeout"} or length is None or length < 0:
        raise error(
            "INVALID_PARAMETER",
            "FETCH has the option timeout, a length of time",
            sql=cursor.text,
            span=span,
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


def read_close(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor is behind CLOSE."""
    name = None if cursor.take("ALL") else cursor.name().name
    cursor.end()
    return CloseCursor(**base, name=name)
