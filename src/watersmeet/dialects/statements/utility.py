"""SHOW, SET, DESCRIBE, transactions, KILL and FLUSH."""

from __future__ import annotations

from typing import Any, Final

from sqlglot.tokens import TokenType

from watersmeet.catalog import SHOWN, SHOWN_CREATED
from watersmeet.dialects.statements.roles import SetRole, read_set_role
from watersmeet.dialects.statements.sessionstate import read_reset_state, read_set_mode
from watersmeet.dialects.statements.tables import read_reset_source
from watersmeet.dialects.tree.statements import (
    Begin,
    Commit,
    Describe,
    Flush,
    KillQuery,
    Name,
    Refused,
    SetVariable,
    Show,
    ShowVariable,
    Statement,
)
from watersmeet.dialects.tree.tokens import Cursor, not_supported, quoted, read_value, span_of, unquoted
from watersmeet.errors import Span

#: What SHOW lists beside kinds of relations; what is not here is refused by name.
_OTHER_LISTS: Final = (
    "internal tables", "relations", "jobs", "databases", "schemas", "functions", "cluster", "processlist",
    "all", "parameters", "errors", "files", "connections", "secrets", "dead letters", "processors",
    "memory", "queries", "roles", "grants", "connectors",
)  # fmt: skip
_LISTS: Final = tuple(tuple(what.upper().split()) for what in (*SHOWN, *_OTHER_LISTS))
_DESCRIBED: Final = (("TABLE",), ("STREAM",), ("VIEW",), ("DICTIONARY",), ("FORMATTED",))
_CREATED: Final = tuple(tuple(word.upper().split()) for word in (*SHOWN_CREATED, "function"))


def read_show(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """SHOW …: the cursor stands behind SHOW."""
    for words in _LISTS:
        if cursor.take(*words):
            return _show(cursor, base, " ".join(words).lower())
    if cursor.take("COLUMNS"):
        cursor.expect("FROM")
        name = cursor.relation_name()
        return _show(cursor, base, "columns", name)
    if cursor.take("CREATE"):
        for words in _CREATED:
            if cursor.take(*words):
                name = cursor.relation_name()
                return _show(cursor, base, "create " + " ".join(words).lower(), name)
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
        name = cursor.relation_name() if what == "dead letters" else cursor.name(reserved=True)
    like = cursor.string() if cursor.take("LIKE") else None
    cursor.end()
    return Show(**base, what=what, name=name, like=like)


def read_set(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """SET …: the cursor stands behind SET."""
    local = not cursor.take("SESSION") and cursor.take("LOCAL")
    if cursor.take("SCHEMA"):
        return _set_schema(cursor, base)
    if cursor.take("ROLE"):
        if local:
            return Refused(**base, error=not_supported("SET LOCAL ROLE", cursor.text, span_of(cursor.tokens[:3])))
        if not cursor.take("TO"):
            cursor.take("=")
        return read_set_role(cursor, base)
    if cursor.take("TIME", "ZONE"):
        name = "timezone"
        if cursor.take("INTERVAL"):
            offset = cursor.string()
            cursor.take("HOUR", "TO", "MINUTE")
            cursor.end()
            return SetVariable(**base, name=name, value=offset, local=local)
    elif (of_mode := read_set_mode(cursor, base)) is not None:
        return of_mode
    else:
        name = cursor.word().name
        while cursor.take("."):
            name += "." + cursor.word().name
        if not cursor.take("TO"):
            cursor.expect("=")
    if cursor.take("DEFAULT"):
        cursor.end()
        return SetVariable(**base, name=name, value=None, local=local)
    read = read_schema if name == "search_path" else read_value
    values = [read(cursor)]
    while cursor.take(","):
        values.append(read(cursor))
    cursor.end()
    return SetVariable(**base, name=name, value=", ".join(values), local=local)


def _set_schema(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """SET SCHEMA 'name' (SQLstream's document; PostgreSQL): the text is read as a name."""
    span = span_of(cursor.rest[:1]) if not cursor.done else base["span"]
    name = unquoted(cursor.string(), cursor.folding)
    cursor.end()
    return SetVariable(**base, name="search_path", value=None, schema=Name(name, span))


def read_use(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """USE name: the cursor stands behind USE."""
    name = cursor.name(reserved=True)
    cursor.end()
    return SetVariable(**base, name="search_path", value=None, schema=name)


def read_schema(cursor: Cursor) -> str:
    """A schema of `search_path` in the form that the variable keeps: with quotes where they are needed."""
    token = cursor.current
    if token is not None and token.token_type in (TokenType.STRING, TokenType.NATIONAL_STRING):
        return quoted(unquoted(cursor.string(), cursor.folding))
    return quoted(cursor.name(reserved=True).name)


def read_reset(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """RESET name, RESET ROLE, RESET SOURCE name."""
    if len(cursor.rest) > 1 and cursor.take("SOURCE"):
        return read_reset_source(cursor, base)
    if cursor.take("ROLE"):
        cursor.end()
        return SetRole(**base, name=None)
    if (of_state := read_reset_state(cursor, base)) is not None:
        return of_state
    name = cursor.word().name
    cursor.end()
    return SetVariable(**base, name=name, value=None)


def read_describe(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """DESCRIBE name, also DESC, and with TABLE, STREAM, … or (Lenses) FORMATTED in front."""
    if len(cursor.rest) > 1:
        next((words for words in _DESCRIBED if cursor.take(*words)), None)
    name = cursor.relation_name()
    cursor.end()
    return Describe(**base, name=name)


def read_begin(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """BEGIN or START: the cursor stands behind it."""
    if not cursor.take("TRANSACTION"):
        cursor.take("WORK")
    read_only = False
    while not cursor.done:
        if cursor.take("READ", "ONLY"):
            read_only = True
        elif cursor.take("ISOLATION", "LEVEL", "READ", "COMMITTED") or cursor.take("READ", "WRITE"):
            pass
        elif cursor.at("ISOLATION"):
            hint = "There is one level: READ COMMITTED."
            refused = not_supported("this isolation level", cursor.text, span_of(cursor.rest), hint=hint)
            return Refused(**base, error=refused)
        elif not cursor.take(","):
            break
    cursor.end()
    return Begin(**base, read_only=read_only)


def read_commit(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """COMMIT or END."""
    if not cursor.take("TRANSACTION"):
        cursor.take("WORK")
    cursor.end()
    return Commit(**base)


def read_kill(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """KILL QUERY: the cursor stands behind KILL. SYNC and ASYNC change nothing: it is done when it returns."""
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


def read_flush(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """FLUSH or WAIT."""
    cursor.end()
    return Flush(**base)
