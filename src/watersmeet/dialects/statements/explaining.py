"""Reads EXPLAIN, EXPLAIN ANALYZE, and Watersmeet's own EXPLAIN ROW and EXPLAIN MISSING ROW."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from watersmeet.catalog import SHOWN_CREATED
from watersmeet.dialects.tree.queries import QUERIES
from watersmeet.dialects.tree.statements import Explain, ExplainFormat, Name, Refused, Select, Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, span_of, syntax_error
from watersmeet.values.types import JSONB, VARCHAR, Field, Schema

_KINDS: Final = tuple(tuple(word.upper().split()) for word in SHOWN_CREATED)

#: Statements that EXPLAIN ANALYZE would have to run.
_STATEMENTS: Final = ("CREATE", "INSERT", "UPDATE", "DELETE", "MERGE", "COPY", "DROP", "ALTER", "SUBSCRIBE")


@dataclass(frozen=True, kw_only=True)
class ExplainAnalyze(Statement):
    """`EXPLAIN ANALYZE [(options)] [kind] name`: the metrics of the operators of a relation.

    kind: the word before the name in lower case, or "". seconds: the length of the measured time; None: the last
    epochs.
    """

    takes: ClassVar[str | None] = None
    tells: ClassVar[bool] = True

    name: Name
    kind: str = ""
    verbose: bool = False
    format: ExplainFormat = "text"
    seconds: int | None = None


def read_explain(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads EXPLAIN; the cursor stands after EXPLAIN."""
    of_row = _read_explain_row(cursor, base)
    if of_row is not None:
        return of_row
    first = cursor.index
    wanted: dict[str, Any] = {}
    if cursor.take("ANALYZE"):
        wanted["analyze"] = True
    if cursor.at("(") and not _is_query_in_parentheses(cursor):
        cursor.expect("(")
        _read_explain_option(cursor, wanted)
        while cursor.take(","):
            _read_explain_option(cursor, wanted)
        cursor.expect(")")
    elif cursor.take("VERBOSE"):
        wanted["verbose"] = True
    analyze = wanted.pop("analyze", False)
    is_query = any(map(cursor.at, QUERIES)) and not (analyze and cursor.at("TABLE"))  # a kind of relation there
    if "seconds" in wanted and (is_query or not analyze):
        raise syntax_error(
            cursor.text, cursor.tokens[first], detail="DURATION_SECS is for EXPLAIN ANALYZE of something that runs."
        )
    if not analyze:
        return Explain(**base, statement=cursor.statement(), **wanted)
    if wanted.keys() & {"level", "trace"}:
        raise syntax_error(
            cursor.text, cursor.tokens[first], detail="With ANALYZE the options are VERBOSE, FORMAT and DURATION_SECS."
        )
    if is_query:
        return Explain(**base, statement=cursor.statement(), analyze=True, **wanted)
    return _read_analyzed(cursor, base, wanted)


def _read_analyzed(cursor: Cursor, base: dict[str, Any], wanted: dict[str, Any]) -> Statement:
    """Reads EXPLAIN ANALYZE of a relation."""
    start = cursor.index
    statement = next((word for word in _STATEMENTS if cursor.take(word)), None)
    if statement is not None:
        return Refused(
            **base,
            error=not_supported(
                f"EXPLAIN ANALYZE {statement}",
                cursor.text,
                span_of(cursor.tokens[start : cursor.index]),
                hint="EXPLAIN ANALYZE SELECT … shows what a query does, EXPLAIN ANALYZE MATERIALIZED VIEW … what the "
                "operators of a view have done.",
            ),
        )
    kind = next((words for words in _KINDS if cursor.take(*words)), ())
    if kind and cursor.done:  # a relation may have this word as its name
        cursor.index, kind = start, ()
    name = cursor.relation_name()
    cursor.end()
    return ExplainAnalyze(**base, name=name, kind=" ".join(kind).lower(), **wanted)


def _is_query_in_parentheses(cursor: Cursor) -> bool:
    return any(cursor.at("(", word) for word in QUERIES)


def _flag(cursor: Cursor) -> bool:
    if cursor.take("FALSE") or cursor.take("OFF"):
        return False
    if not cursor.take("TRUE"):
        cursor.take("ON")
    return True


def _read_explain_option(cursor: Cursor, wanted: dict[str, Any]) -> None:
    start = cursor.index
    word = cursor.word().name
    if word == "verbose":
        wanted["verbose"] = _flag(cursor)
    elif word in ("logical", "physical", "distsql"):
        wanted["level"] = word
    elif word == "trace":
        wanted["trace"] = _flag(cursor)
    elif word == "analyze":
        wanted["analyze"] = _flag(cursor)
    elif word == "duration_secs":
        wanted["seconds"] = cursor.integer()
    elif word == "backfill":
        _flag(cursor)
    elif word == "type":
        level = cursor.word().name
        if level not in ("logical", "physical", "distsql"):
            cursor.index -= 1
            raise cursor.error(detail="LOGICAL, PHYSICAL or DISTSQL was expected here.")
        wanted["level"] = level
    elif word == "format":
        kind = cursor.word().name
        if kind not in ("text", "json", "dot"):
            raise not_supported(
                f"EXPLAIN (FORMAT {kind.upper()})",
                cursor.text,
                span_of(cursor.tokens[start : cursor.index]),
                hint="FORMAT TEXT, JSON and DOT are supported.",
            )
        wanted["format"] = kind
    else:
        cursor.index = start
        raise cursor.error(detail="The options are ANALYZE, VERBOSE, TRACE, LOGICAL, PHYSICAL, DISTSQL and FORMAT.")


#: The default of LIMIT, the maximum number of rows per step.
ROWS: Final = 100

MOST: Final = 1000
_LEADING: Final = (("SELECT", TokenType.SELECT), ("*", TokenType.STAR), ("FROM", TokenType.FROM))


#: The name of the column that EXPLAIN returns.
TITLE: Final = "QUERY PLAN"

#: The columns of EXPLAIN ROW and EXPLAIN MISSING ROW.
ROW_COLUMNS: Final[Schema] = (
    Field("step", VARCHAR, nullable=False),
    Field("relation", VARCHAR),
    Field("row", JSONB),
    Field("detail", VARCHAR),
)


@dataclass(frozen=True, kw_only=True)
class ExplainRow(Statement):
    """`EXPLAIN [MISSING] ROW [(LIMIT limit)] …`: where the rows of a query come from.

    query: selects the rows. missing: whether it is `EXPLAIN MISSING ROW relation WHERE condition`, which explains why
    no row satisfies the condition.
    """

    takes: ClassVar[str | None] = None

    query: exp.Expression
    missing: bool = False
    limit: int = ROWS


def _read_explain_row(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """Reads EXPLAIN [MISSING] ROW; returns None for another EXPLAIN."""
    missing = cursor.take("MISSING", "ROW")
    if not missing and not (cursor.at("ROW") and not cursor.at("ROW", ",")):
        return None
    if not missing:
        cursor.expect("ROW")
    limit = _limit(cursor) if cursor.at("(", "LIMIT") else ROWS
    if cursor.done:
        raise cursor.error()
    if missing:
        query = _of_condition(cursor)
    else:
        found = cursor.statement()
        if not isinstance(found, Select):
            raise not_supported(
                "EXPLAIN ROW of this statement",
                cursor.text,
                found.span,
                hint="EXPLAIN ROW SELECT … shows where the rows of a query come from.",
            )
        query = found.query
    return ExplainRow(**base, query=query, missing=missing, limit=limit)


def _limit(cursor: Cursor) -> int:
    cursor.expect("(")
    cursor.expect("LIMIT")
    span = span_of(cursor.rest[:1]) if cursor.rest else None
    found = cursor.integer()
    if not 0 < found <= MOST:
        raise cursor.error_at(span, "INVALID_PARAMETER", f"LIMIT is from 1 to {MOST}")
    cursor.expect(")")
    return found


def _of_condition(cursor: Cursor) -> exp.Expression:
    """Turns `relation [alias] WHERE condition` into the query of all rows that satisfy it."""
    rest = cursor.originals(cursor.rest)
    first = rest[0]
    leading = [Token(kind, text, first.line, first.col, first.start, first.start, []) for text, kind in _LEADING]
    found = cursor.over([*leading, *rest]).statement()
    query = found.query if isinstance(found, Select) else None
    parts = {k for k, v in query.args.items() if v} if isinstance(query, exp.Select) else set()
    if query is None or not parts <= {"expressions", "from_", "from", "where", "kind"} or "where" not in parts:
        raise cursor.error_at(
            span_of(rest),
            "SYNTAX_ERROR",
            "EXPLAIN MISSING ROW takes one relation and a condition",
            hint="Write EXPLAIN MISSING ROW relation WHERE column = value AND ….",
        )
    return query
