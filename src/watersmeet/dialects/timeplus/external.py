"""CREATE EXTERNAL TABLE, EXTERNAL STREAM and DICTIONARY of Timeplus, as they are written.

Timeplus, "Multi-JOINs and ASOF JOINs", "External Table", "Dictionary".
"""

from __future__ import annotations

from typing import Any, Final

from sqlglot import Dialect, exp

from watersmeet.catalog import TIME_COLUMN
from watersmeet.dialects.timeplus.columns import key_names, read_columns, read_default
from watersmeet.dialects.tree.definitions import Clause, CreateDictionary, CreateExternalStream, CreateExternalTable
from watersmeet.dialects.tree.queries import node_span
from watersmeet.dialects.tree.statements import Name, Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_setting, read_value, span_of
from watersmeet.errors import error
from watersmeet.values.types import TIMESTAMP, Field

#: The kind of what is outside that this is itself, unless another host is named.
_OWN: Final = "timeplus"


def read_external_table(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands behind EXTERNAL TABLE (TP-18)."""
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.relation_name()
    columns, ranges = read_columns(cursor) if cursor.at("(") else ((), {})
    options = _settings(cursor, "an external table")
    return CreateExternalTable(
        **base,
        name=name.name,
        name_span=name.span,
        schema=name.schema,
        columns=columns,
        if_not_exists=if_not_exists,
        ranges=ranges,
        options=options,
        own=options["type"].lower() == _OWN and "hosts" not in options,
    )


def read_external_stream(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands behind EXTERNAL STREAM (TP-12)."""
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.relation_name()
    if not cursor.at("("):
        raise cursor.error(detail="The columns of the stream were expected here.")
    columns, ranges = read_columns(cursor)
    arrivals: tuple[str, ...] = ()
    if TIME_COLUMN not in [c.name for c in columns]:
        columns, arrivals = (*columns, Field(TIME_COLUMN, TIMESTAMP, nullable=False)), (TIME_COLUMN,)
    return CreateExternalStream(
        **base,
        name=name.name,
        name_span=name.span,
        schema=name.schema,
        columns=columns,
        if_not_exists=if_not_exists,
        ranges=ranges,
        options=_settings(cursor, "an external stream"),
        arrivals=arrivals,
    )


def read_dictionary(cursor: Cursor, dialect: Dialect, base: dict[str, Any]) -> Statement:
    """The cursor stands behind DICTIONARY (TP-45 to TP-48). The clauses may come in any order."""
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.relation_name()
    if not cursor.at("("):
        raise cursor.error(detail="The columns of the dictionary were expected here.")
    declared: dict[str, exp.Expression] = {}

    def declare(column: str) -> None:
        declared[column] = read_default(cursor, dialect)

    columns, ranges = read_columns(cursor, declare)
    key: tuple[Name, ...] = ()
    bounds: tuple[Name, ...] = ()
    source = layout = lifetime_s = None
    while not cursor.done:
        start = cursor.index
        if cursor.take("PRIMARY", "KEY"):
            key = key_names(cursor)
            while cursor.take(","):
                key = (*key, cursor.name())
        elif cursor.take("SOURCE"):
            source = _clause(cursor)
        elif cursor.take("LAYOUT"):
            layout = _clause(cursor)
        elif cursor.take("LIFETIME"):
            lifetime_s = _lifetime(cursor)
        elif cursor.take("RANGE"):
            bounds = _range(cursor)
        elif cursor.at("SETTINGS") or cursor.at("COMMENT"):
            cursor.index += 1
            span = span_of(cursor.tokens[start : cursor.index])
            raise not_supported(f"{cursor.tokens[start].text.upper()} of a dictionary", cursor.text, span)
        else:
            raise cursor.error()
    for word, found in (("PRIMARY KEY", key), ("SOURCE", source), ("LAYOUT", layout)):
        if not found:
            raise cursor.error(detail=f"A dictionary needs {word}.")
    assert source is not None
    assert layout is not None
    _check_key((*key, *bounds), [c.name for c in columns], cursor)
    for part in key:
        if part.name in declared:
            raise not_supported("DEFAULT of a column of the key", cursor.text, node_span(declared[part.name]))
    keys = tuple(k.name for k in key)
    return CreateDictionary(
        **base,
        name=name.name,
        name_span=name.span,
        schema=name.schema,
        primary_key=keys,
        if_not_exists=if_not_exists,
        ranges=ranges,
        columns=tuple(Field(c.name, c.type, c.nullable and c.name not in keys) for c in columns),
        source=source,
        layout=layout,
        lifetime_s=lifetime_s,
        bounds=bounds,
        declared=declared,
    )


def _settings(cursor: Cursor, what: str) -> dict[str, str]:
    """`SETTINGS type = '…', …` up to the end. CONNECTOR_OPTION."""
    if not cursor.take("SETTINGS"):
        raise cursor.error(detail=f"SETTINGS type = '…' of {what} were expected here.")
    options: dict[str, str] = {}
    read_setting(cursor, options)
    while cursor.take(","):
        read_setting(cursor, options)
    cursor.end()
    if "type" not in options:
        raise cursor.error(detail=f"{what[0].upper()}{what[1:]} needs the setting type.")
    return options


def _clause(cursor: Cursor) -> Clause:
    """`(NAME(option value …))` or `(NAME)`."""
    cursor.expect("(")
    start = cursor.index
    name = cursor.name(reserved=True)
    options: dict[str, str] = {}
    if cursor.take("("):
        while not cursor.at(")"):
            option = cursor.name(reserved=True)
            if option.name.lower() in options:
                raise error(
                    "CONNECTOR_OPTION", f'option "{option.name}" is given twice', sql=cursor.text, span=option.span
                )
            nested = _NESTED.get(option.name.lower())
            if nested is not None and cursor.take("("):
                options |= nested(cursor)
                continue
            options[option.name.lower()] = read_value(cursor)
            if cursor.at("("):
                raise not_supported("a call as the value of an option", cursor.text, option.span)
        cursor.expect(")")
    span = span_of(cursor.tokens[start : cursor.index])
    cursor.expect(")")
    kind = name.name.lower()
    return Clause(name=kind, options=options, span=span, own=kind == _OWN and "host" not in options)


def _credentials(cursor: Cursor) -> dict[str, str]:
    """`USER 'u' PASSWORD 'p')`: names begin with `credentials.`."""
    options: dict[str, str] = {}
    while not cursor.take(")"):
        name = cursor.name(reserved=True).name.lower()
        options[f"credentials.{name}"] = read_value(cursor)
    return options


def _headers(cursor: Cursor) -> dict[str, str]:
    """`HEADER(NAME 'n' VALUE 'v') …)`: names begin with `headers.`."""
    options: dict[str, str] = {}
    while not cursor.take(")"):
        cursor.expect("HEADER", "(", "NAME")
        name = read_value(cursor)
        cursor.expect("VALUE")
        options[f"headers.{name}"] = read_value(cursor)
        cursor.expect(")")
    return options


#: The options of sources whose values are options themselves.
_NESTED: Final = {"credentials": _credentials, "headers": _headers}


def _range(cursor: Cursor) -> tuple[Name, Name]:
    """`(MIN first MAX last)`: the columns between which a row is valid, both included."""
    cursor.expect("(")
    cursor.expect("MIN")
    first = cursor.name()
    cursor.expect("MAX")
    last = cursor.name()
    cursor.expect(")")
    return first, last


def _lifetime(cursor: Cursor) -> tuple[int, int]:
    """`(300)`, `(MIN 1 MAX 10)`: the least and the greatest number of seconds."""
    cursor.expect("(")
    least = greatest = None
    while not cursor.at(")"):
        if cursor.take("MIN"):
            least = cursor.integer()
        else:
            cursor.take("MAX")
            greatest = cursor.integer()
    end = cursor.index
    cursor.expect(")")
    if greatest is None or (least is not None and least > greatest):
        raise error(
            "INVALID_PARAMETER",
            "LIFETIME has no maximum, or one below its minimum",
            sql=cursor.text,
            span=span_of(cursor.tokens[end : end + 1]),
            hint="Write LIFETIME(MIN 1 MAX 10) or LIFETIME(10), in seconds.",
        )
    return (greatest if least is None else least), greatest


def _check_key(key: tuple[Name, ...], known: list[str], cursor: Cursor) -> None:
    for part in key:
        if part.name not in known:
            raise error(
                "UNDEFINED_COLUMN", f'column "{part.name}" named in key does not exist', sql=cursor.text, span=part.span
            )
    if len({p.name for p in key}) < len(key):
        raise error("DUPLICATE_COLUMN", "a column appears twice in the primary key", sql=cursor.text, span=key[-1].span)
