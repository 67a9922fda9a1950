"""Reads SHOW, SET, DESCRIBE, transactions, KILL and FLUSH."""

from __future__ import annotations

from typing import Any, Final

from watersmeet.catalog import SHOWN, SHOWN_CREATED
from watersmeet.dialects.tree.statements import (
    Describe,
    KillQuery,
    Name,
    Refused,
    SetVariable,
    Show,
    ShowVariable,
    Statement,
)
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_value, span_of
from watersmeet.errors import Span

#: The lists that SHOW accepts besides the kinds of relations.
_OTHER_LISTS: Final = (
    "internal tables", "relations", "jobs", "databases", "schemas", "functions", "cluster", "processlist",
    "all", "parameters", "errors", "files", "connections", "secrets", "dead letters", "late rows", "processors",
    "memory", "queries", "roles", "grants", "connectors", "workers", "users", "cursors", "subscription cursors",
)  # fmt: skip

#: All lists that SHOW accepts in each dialect, without those of features.
LISTS: Final = (*SHOWN, *_OTHER_LISTS)

_LISTS: Final = tuple(tuple(what.upper().split()) for what in LISTS)
_DESCRIBED: Final = (("TABLE",), ("STREAM",), ("VIEW",), ("DICTIONARY",), ("FORMATTED",))
_CREATED: Final = tuple(tuple(word.upper().split()) for word in (*SHOWN_CREATED, "function"))


def read_show(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads SHOW; the cursor stands after SHOW."""
    for words in _LISTS:
        if cursor.take(*words):
            return _show(cursor, base, " ".join(words).lower())
    if cursor.at("INDEX", "FROM") and cursor.take("INDEX"):  # MySQL's word for it
        return _show(cursor, base, "indexes")
    if cursor.take("COLUMNS"):
        cursor.expect("FROM")
        name = cursor.relation_name()
        return _show(cursor, base, "columns", name)
    if cursor.take("CREATE"):
        for words in _CREATED:
            if cursor.take(*words):
                name = cursor.relation_name()
                return _show(cursor, base, "create " + " ".join(words).lower(), name)
        if len(cursor.rest) > 1:
            word = cursor.word()
            hint = "SHOW SECRETS lists the names of secrets." if word.name == "secret" else None
            feature = f"SHOW CREATE {word.name.upper()}"
            return Refused(**base, error=not_supported(feature, cursor.text, base["span"], hint=hint))
        raise cursor.error()
    if cursor.take("TIME", "ZONE"):
        variable = Name("timezone", span_of(cursor.tokens[1:3]))
    elif cursor.take("TRANSACTION", "ISOLATION", "LEVEL"):
        variable = Name("transaction_isolation", span_of(cursor.tokens[1:4]))
    else:
        variable = cursor.word()
        while cursor.take("."):
            part = cursor.word()
            variable = Name(f"{variable.name}.{part.name}", Span(variable.span.start, part.span.end))
    cursor.end()
    return ShowVariable(**base, name=variable.name, name_span=variable.span)


def _show(cursor: Cursor, base: dict[str, Any], what: str, name: Name | None = None) -> Statement:
    if name is None and (cursor.take("FROM") or cursor.take("IN")):
        named = what in ("dead letters", "late rows", "indexes")
        name = cursor.relation_name() if named else cursor.name(reserved=True)
    like = read_value(cursor) if cursor.take("LIKE") else None
    cursor.end()
    return Show(**base, what=what, name=name, like=like)


def read_use(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads USE; the cursor stands after USE."""
    name = cursor.name(reserved=True)
    cursor.end()
    return SetVariable(**base, name="search_path", value=None, schema=name)


def read_describe(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads DESCRIBE or DESC; TABLE, STREAM, … or (Lenses) FORMATTED may precede the name."""
    if len(cursor.rest) > 1:
        next((words for words in _DESCRIBED if cursor.take(*words)), None)
    name = cursor.relation_name()
    cursor.end()
    return Describe(**base, name=name)


def read_kill(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads KILL QUERY; the cursor stands after KILL. SYNC and ASYNC have no effect: the statement always returns after
    the end of the query.
    """
    cursor.expect("QUERY")
    if not cursor.take("WHERE"):
        ids = [cursor.query_id()]
    elif cursor.take("QUERY_ID", "IN", "("):
        ids = [cursor.query_id()]
        while cursor.take(","):
            ids.append(cursor.query_id())
        cursor.expect(")")
    elif cursor.take("QUERY_ID", "="):
        ids = [cursor.query_id()]
    else:
        raise not_supported(
            "this condition of KILL QUERY",
            cursor.text,
            span_of(cursor.rest or cursor.tokens),
            hint="Write WHERE query_id = 'id' or WHERE query_id IN ('id', …).",
        )
    if not cursor.take("SYNC"):
        cursor.take("ASYNC")
    cursor.end()
    return KillQuery(**base, ids=tuple(ids))
