"""COPY … TO and COPY … FROM a file.

PostgreSQL, "COPY".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect

from watersmeet.dialects.options import not_supported, read_value
from watersmeet.dialects.queries import read_tree
from watersmeet.dialects.statements import Name, Refused, Statement
from watersmeet.dialects.tokens import Cursor, span_of
from watersmeet.errors import Span, error

_STREAMS: Final = ("STDIN", "STDOUT", "PROGRAM")


@dataclass(frozen=True, kw_only=True)
class Copy(Statement):
    """What COPY … FROM and COPY … TO share. options, spans: by name in lower case."""

    columns: tuple[Name, ...]
    path: str
    path_span: Span
    options: Mapping[str, str]
    spans: Mapping[str, Span]


@dataclass(frozen=True, kw_only=True)
class CopyFrom(Copy):
    """`COPY table [(columns)] FROM 'path' [(options)]`."""

    table: Name


@dataclass(frozen=True, kw_only=True)
class CopyTo(Copy):
    """`COPY {table [(columns)] | (query)} TO 'path' [(options)]`."""

    table: Name | None
    query: exp.Expression | None


def read_copy(cursor: Cursor, dialect: Dialect, base: dict[str, Any]) -> Statement:
    """COPY …: the cursor stands behind COPY."""
    query, table = None, None
    columns: tuple[Name, ...] = ()
    if cursor.take("("):
        query = read_tree(cursor.originals(cursor.until(")")), cursor.text, dialect)
        cursor.expect(")")
    else:
        table = cursor.relation_name()
        columns = cursor.names() if cursor.at("(") else ()
    comes = query is None and cursor.take("FROM")
    if not comes:
        cursor.expect("TO")
    for word in _STREAMS:
        if cursor.at(word):
            feature = f"COPY {'FROM' if comes else 'TO'} {word}"
            refused = not_supported(
                feature,
                cursor.text,
                span_of(cursor.rest[:1]),
                hint="A server and its clients have it; here, name a file.",
            )
            return Refused(**base, error=refused)
    path_span = span_of(cursor.rest[:1] or cursor.tokens)
    path = cursor.string()
    cursor.take("WITH")
    spans: dict[str, Span] = {}
    options = read_copy_options(cursor, spans) if cursor.at("(") else {}
    cursor.end()
    base = {**base, "path": path, "path_span": path_span, "options": options, "spans": spans, "columns": columns}
    if comes:
        assert table is not None
        return CopyFrom(**base, table=table)
    return CopyTo(**base, table=table, query=query)


def read_copy_options(cursor: Cursor, spans: dict[str, Span]) -> dict[str, str]:
    """`(NAME [=] [value], …)`: names in lower case; without a value it is `true`."""
    cursor.expect("(")
    options: dict[str, str] = {}
    while not cursor.at(")"):
        start = cursor.index
        name = cursor.word()
        if name.name in options:
            raise error("CONNECTOR_OPTION", f'option "{name.name}" is given twice', sql=cursor.text, span=name.span)
        cursor.take("=")
        is_bare = cursor.at(",") or cursor.at(")")
        options[name.name] = "true" if is_bare else _read_text(cursor)
        spans[name.name] = span_of(cursor.tokens[start : cursor.index])
        if not cursor.take(","):
            break
    cursor.expect(")")
    return options


def _read_text(cursor: Cursor) -> str:
    """A value; that of a string may be anything."""
    token = cursor.current
    if token is not None and token.token_type.name == "STRING":
        return cursor.string()
    return read_value(cursor)
