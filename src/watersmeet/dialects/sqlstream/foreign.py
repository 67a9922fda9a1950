"""CREATE SERVER, CREATE FOREIGN STREAM and CREATE FOREIGN TABLE of SQLstream.

SQLstream, "CREATE SERVER", "CREATE FOREIGN STREAM", "CREATE FOREIGN TABLE".
"""

from __future__ import annotations

from typing import Any, Final

from sqlglot.dialects.dialect import Dialect
from sqlglot.tokens import TokenType

from watersmeet.dialects import ddl
from watersmeet.dialects.foreigntables import CreateForeignTable
from watersmeet.dialects.options import not_supported, read_value
from watersmeet.dialects.statements import CreateForeignStream, CreateServer, Refused, Statement
from watersmeet.dialects.tokens import Cursor, span_of
from watersmeet.errors import Span, error

#: The wrapper of all adapters of streams that are here, and that of databases.
_WRAPPER: Final = "ECDA"
_DATABASES: Final = "SYS_JDBC"


def read_server(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """`CREATE SERVER name [TYPE 'type'] FOREIGN DATA WRAPPER wrapper [OPTIONS (…)]`: the cursor is behind SERVER."""
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.relation_name()
    start = cursor.index
    kind = cursor.string() if cursor.take("TYPE") else ""
    kind_span = span_of(cursor.tokens[start : cursor.index]) if kind else name.span
    cursor.expect("FOREIGN", "DATA", "WRAPPER")
    wrapper = cursor.name(reserved=True)
    options = read_options(cursor, {}) if cursor.take("OPTIONS") else {}
    _skip_description(cursor)
    cursor.end()
    if wrapper.name.upper() == _DATABASES:
        kind = _DATABASES
    elif wrapper.name.upper() != _WRAPPER:
        refusal = not_supported(f"foreign data wrapper {wrapper.name}", cursor.text, wrapper.span)
        return Refused(**base, error=refusal)
    if not kind:
        raise error(
            "SYNTAX_ERROR",
            "a server of wrapper ECDA needs a type",
            sql=cursor.text,
            span=name.span,
            hint="Write TYPE 'KAFKA10' or TYPE 'FILE'.",
        )
    return CreateServer(
        **base,
        name=name.name,
        name_span=name.span,
        schema=name.schema,
        if_not_exists=if_not_exists,
        kind=kind.upper(),
        kind_span=kind_span,
        options=options,
    )


def read_foreign_stream(cursor: Cursor, dialect: Dialect, base: dict[str, Any], read_type: ddl.TypeReader) -> Statement:
    """`CREATE FOREIGN STREAM name (columns) SERVER server [OPTIONS (…)]`; the cursor stands behind STREAM."""
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.relation_name()
    definition = ddl.Definition(cursor, dialect, read_type, has_values=False)
    if not cursor.at("("):
        raise cursor.error(detail="The columns of the stream were expected here.")
    definition.read_columns()
    cursor.expect("SERVER")
    server = cursor.relation_name()
    places: dict[str, Span] = {}
    options = read_options(cursor, places) if cursor.take("OPTIONS") else {}
    _skip_description(cursor)
    cursor.end()
    if definition.bare_names or not definition.columns:
        raise error("SYNTAX_ERROR", "a stream needs columns with types", sql=cursor.text, span=name.span)
    if definition.primary_key:
        definition.refuse("PRIMARY KEY of a stream", definition.key_span)
    if definition.refusal:
        return Refused(**base, error=definition.refusal)
    return CreateForeignStream(
        **base,
        name=name.name,
        name_span=name.span,
        schema=name.schema,
        columns=tuple(definition.columns),
        watermarks=tuple(definition.watermarks),
        if_not_exists=if_not_exists,
        server=server,
        options=options,
        places=places,
    )


def read_foreign_table(cursor: Cursor, dialect: Dialect, base: dict[str, Any], read_type: ddl.TypeReader) -> Statement:
    """`CREATE FOREIGN TABLE name [(columns)] SERVER server [OPTIONS (…)]`; the cursor stands behind TABLE."""
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.relation_name()
    definition = ddl.Definition(cursor, dialect, read_type, has_values=False)
    if cursor.at("("):
        definition.read_columns()
    cursor.expect("SERVER")
    server = cursor.relation_name()
    places: dict[str, Span] = {}
    options = read_options(cursor, places) if cursor.take("OPTIONS") else {}
    _skip_description(cursor)
    cursor.end()
    if definition.bare_names:
        raise error("SYNTAX_ERROR", "the columns of a table need types", sql=cursor.text, span=name.span)
    if definition.primary_key:
        definition.refuse("PRIMARY KEY of a foreign table", definition.key_span)
    if definition.watermarks:
        definition.refuse("WATERMARK of a foreign table", definition.watermarks[0].span)
    if definition.refusal:
        return Refused(**base, error=definition.refusal)
    return CreateForeignTable(
        **base,
        name=name.name,
        name_span=name.span,
        schema=name.schema,
        columns=tuple(definition.columns),
        if_not_exists=if_not_exists,
        server=server,
        options=options,
        places=places,
    )


def read_options(cursor: Cursor, places: dict[str, Span]) -> dict[str, str]:
    """`("NAME" 'value', name 'value', …)`: names as they are written, those without quotes in upper case.

    places: gets that of each option. CONNECTOR_OPTION for one that is given twice.
    """
    cursor.expect("(")
    options: dict[str, str] = {}
    while not cursor.at(")"):
        token = cursor.current
        if token is None or token.token_type == TokenType.STRING:
            raise cursor.error(detail="The name of an option was expected here.")
        name = cursor.name(reserved=True)
        cursor.take("=")
        if name.name in options:
            raise error("CONNECTOR_OPTION", f'option "{name.name}" is given twice', sql=cursor.text, span=name.span)
        options[name.name] = read_value(cursor)
        places[name.name] = Span(name.span.start, cursor.tokens[cursor.index - 1].end + 1)
        if not cursor.take(","):
            break
    cursor.expect(")")
    return options


def _skip_description(cursor: Cursor) -> None:
    if cursor.take("DESCRIPTION"):
        cursor.string()
