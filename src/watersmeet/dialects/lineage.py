"""EXPLAIN ROW and EXPLAIN MISSING ROW: why rows are there, or not. Watersmeet's own, in all dialects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from watersmeet.dialects.statements import Select, Statement
from watersmeet.dialects.tokens import Cursor, span_of
from watersmeet.errors import error

#: So many rows of each step are shown unless LIMIT says otherwise.
ROWS: Final = 100
MOST: Final = 1000
_LEADING: Final = (("SELECT", TokenType.SELECT), ("*", TokenType.STAR), ("FROM", TokenType.FROM))


@dataclass(frozen=True, kw_only=True)
class ExplainRow(Statement):
    """`EXPLAIN [MISSING] ROW [(LIMIT limit)] …`: where the rows of a query come from.

    query: of the rows. missing: of `EXPLAIN MISSING ROW relation WHERE condition`: why no row meets the condition.
    """

    query: exp.Expression
    missing: bool = False
    limit: int = ROWS


def read_explain_row(cursor: Cursor, base: dict[str, Any], read: Callable[[Cursor], Statement]) -> Statement | None:
    """The statement; None if EXPLAIN, behind which the cursor stands, is about something else. `read` reads a query."""
    missing = cursor.take("MISSING", "ROW")
    if not missing and not (cursor.at("ROW") and not cursor.at("ROW", ",")):
        return None
    if not missing:
        cursor.expect("ROW")
    limit = _limit(cursor) if cursor.at("(", "LIMIT") else ROWS
    if cursor.done:
        raise cursor.error()
    if missing:
        query = _of_condition(cursor, read)
    else:
        found = read(cursor)
        if not isinstance(found, Select):
            raise error(
                "FEATURE_NOT_SUPPORTED",
                "EXPLAIN ROW of this statement is not supported",
                sql=cursor.text,
                span=found.span,
                hint="EXPLAIN ROW SELECT … shows where the rows of a query come from.",
            )
        query = found.query
    return ExplainRow(**base, query=query, missing=missing, limit=limit)


def _limit(cursor: Cursor) -> int:
    cursor.expect("(")
    cursor.expect("LIMIT")
    place = span_of(cursor.rest[:1]) if cursor.rest else None
    found = cursor.integer()
    if not 0 < found <= MOST:
        raise error("INVALID_PARAMETER", f"LIMIT is from 1 to {MOST}", sql=cursor.text, span=place)
    cursor.expect(")")
    return found


def _of_condition(cursor: Cursor, read: Callable[[Cursor], Statement]) -> exp.Expression:
    """`relation [alias] WHERE condition` as the query of all rows that meet it."""
    rest = cursor.originals(cursor.rest)
    first = rest[0]
    leading = [Token(kind, text, first.line, first.col, first.start, first.start, []) for text, kind in _LEADING]
    found = read(Cursor([*leading, *rest], cursor.text))
    query = found.query if isinstance(found, Select) else None
    parts = {k for k, v in query.args.items() if v} if isinstance(query, exp.Select) else set()
    if query is None or not parts <= {"expressions", "from_", "from", "where", "kind"} or "where" not in parts:
        raise error(
            "SYNTAX_ERROR",
            "EXPLAIN MISSING ROW takes one relation and a condition",
            sql=cursor.text,
            span=span_of(rest),
            hint="Write EXPLAIN MISSING ROW relation WHERE column = value AND ….",
        )
    return query
