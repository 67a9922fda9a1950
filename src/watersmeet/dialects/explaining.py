"""EXPLAIN and EXPLAIN ANALYZE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from watersmeet.catalog import SHOWN_CREATED
from watersmeet.dialects.options import not_supported
from watersmeet.dialects.statements import Explain, ExplainFormat, Name, Refused, Statement
from watersmeet.dialects.tokens import Cursor, span_of, syntax_error

_KINDS: Final = tuple(tuple(word.upper().split()) for word in SHOWN_CREATED)
#: Statements that EXPLAIN ANALYZE would have to run.
_STATEMENTS: Final = ("CREATE", "INSERT", "UPDATE", "DELETE", "MERGE", "COPY", "DROP", "ALTER", "SUBSCRIBE")


@dataclass(frozen=True, kw_only=True)
class ExplainAnalyze(Statement):
    """`EXPLAIN ANALYZE [(options)] [kind] name`: what the operators of something that runs have done.

    kind: the word in front of the name, lower case; "" without one. seconds: in the last seconds; None: in the last
    epochs.
    """

    name: Name
    kind: str = ""
    verbose: bool = False
    format: ExplainFormat = "text"
    seconds: int | None = None


def read_explain(cursor: Cursor, base: dict[str, Any], read: Callable[[Cursor], Statement]) -> Statement:
    """EXPLAIN …: the cursor stands behind EXPLAIN; `read` reads the statement that is explained."""
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
    is_query = cursor.at("SELECT") or cursor.at("WITH") or cursor.at("VALUES") or cursor.at("(")
    if "seconds" in wanted and (is_query or not analyze):
        raise syntax_error(
            cursor.text, cursor.tokens[first], detail="DURATION_SECS is for EXPLAIN ANALYZE of something that runs."
        )
    if not analyze:
        return Explain(**base, statement=read(cursor), **wanted)
    if wanted.keys() & {"level", "trace"}:
        raise syntax_error(
            cursor.text, cursor.tokens[first], detail="With ANALYZE the options are VERBOSE, FORMAT and DURATION_SECS."
        )
    if is_query:
        return Explain(**base, statement=read(cursor), analyze=True, **wanted)
    return _read_analyzed(cursor, base, wanted)


def _read_analyzed(cursor: Cursor, base: dict[str, Any], wanted: dict[str, Any]) -> Statement:
    """What EXPLAIN ANALYZE names."""
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
    if kind and cursor.done:  # a relation may be called like that
        cursor.index, kind = start, ()
    name = cursor.relation_name()
    cursor.end()
    return ExplainAnalyze(**base, name=name, kind=" ".join(kind).lower(), **wanted)


def _is_query_in_parentheses(cursor: Cursor) -> bool:
    return cursor.at("(", "SELECT") or cursor.at("(", "(") or cursor.at("(", "WITH") or cursor.at("(", "VALUES")


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
