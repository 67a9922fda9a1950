"""CREATE and DROP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal

from sqlglot.dialects.dialect import Dialect
from sqlglot.tokens import Token

from watersmeet.catalog import DropWord
from watersmeet.dialects.statements import tables
from watersmeet.dialects.statements.tables import (
    Definition,
    TypeReader,
)
from watersmeet.dialects.tree.definitions import (
    CreateIndex,
    CreateMaterializedView,
    CreateSchema,
    CreateSource,
    CreateTable,
    CreateView,
    Drop,
    DropSchema,
    Emit,
)
from watersmeet.dialects.tree.queries import read_tree
from watersmeet.dialects.tree.sqltypes import read_type
from watersmeet.dialects.tree.statements import Name, Refused, Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_options, span_of
from watersmeet.errors import error

_EMITS: Final[dict[tuple[str, ...], Literal["changes", "window close", "arrival"]]] = {
    ("EMIT", "CHANGES"): "changes", ("EMIT", "ON", "WINDOW", "CLOSE"): "window close", ("EMIT", "ON",
      "ARRIVAL"): "arrival",
}  # fmt: skip
_KINDS: Final[dict[tuple[str, ...], DropWord]] = {
    ("TABLE",): "table", ("SOURCE",): "source", ("VIEW",): "view", ("MATERIALIZED", "VIEW"): "materialized view",
    ("INDEX",): "index", ("SINK",): "sink", ("CONNECTION",): "connection",
    ("SUBSCRIPTION",): "subscription",
}  # fmt: skip

#: What RisingWave creates and drops, and is not here.
_LACKING: Final = (
    "SINK",
    "FUNCTION",
    "AGGREGATE",
    "DATABASE",
    "TYPE",
    "SEQUENCE",
)


#: Runs of dbt's incremental models and snapshots begin with a temporary table of such a name.
_OF_DBT: Final = "__dbt_tmp"
_INSTEAD_OF_DBT: Final = (
    "A materialized view follows its inputs by itself: "
    "in dbt, write materialized='materialized_view' in place of 'incremental'."
)
_INSTEAD_OF_TEMPORARY: Final = "Create it without that word, and drop it when it is no longer needed."


def read_create(cursor: Cursor, dialect: Dialect, base: dict[str, Any]) -> Statement:
    """CREATE …: the cursor stands behind CREATE. base: the fields of `Statement`."""
    readers: dict[tuple[str, ...], Callable[[Cursor, Dialect, dict[str, Any]], Statement]] = {
        ("TABLE",): read_table, ("SOURCE",): _read_source, ("VIEW",): _read_view,
        ("MATERIALIZED", "VIEW"): _read_materialized_view, ("INDEX",): _read_index,
        ("SCHEMA",): read_create_schema,
    }  # fmt: skip
    for words, reader in readers.items():
        if cursor.take(*words):
            return reader(cursor, dialect, base)
    token = cursor.current
    if token is None:
        raise cursor.error()
    word = token.text.upper()
    lacking = (
        *_LACKING,
        "TEMPORARY",
        "TEMP",
        "UNIQUE",
        "EXTENSION",
        "TRIGGER",
        "RULE",
        "POLICY",
    )
    if word in lacking:
        span = span_of([cursor.tokens[0], token])
        temporary = _INSTEAD_OF_DBT if _OF_DBT in cursor.text else _INSTEAD_OF_TEMPORARY
        hint = temporary if word in ("TEMPORARY", "TEMP") else None
        return Refused(**base, error=not_supported(f"CREATE {word}", cursor.text, span, hint=hint))
    raise cursor.error(hint="CREATE TABLE, SOURCE, VIEW, MATERIALIZED VIEW, INDEX and SCHEMA are supported.")


def _if_not_exists(cursor: Cursor) -> bool:
    return cursor.take("IF", "NOT", "EXISTS")


def read_table(cursor: Cursor, dialect: Dialect, base: dict[str, Any], read_type: TypeReader = read_type) -> Statement:
    """CREATE TABLE …: the cursor stands behind TABLE."""
    if_not_exists = _if_not_exists(cursor)
    name = cursor.relation_name()
    definition = Definition(cursor, dialect, read_type)
    definition.read_columns()
    definition.read_clauses()
    query = None
    if cursor.take("AS"):
        if definition.columns:
            raise cursor.error(detail="CREATE TABLE … AS takes column names without types.")
        query = read_tree(cursor.originals(cursor.rest), cursor.text, dialect)
        if definition.options or definition.primary_key:
            definition.refuse("CREATE TABLE … AS with options or a primary key", name.span)
    elif definition.bare_names:
        column = definition.bare_names[0]
        raise error("SYNTAX_ERROR", f'column "{column}" has no type', sql=cursor.text, span=definition.spans[column])
    elif not definition.columns and "connector" not in definition.options and definition.origin is None:
        raise error("SYNTAX_ERROR", "a table needs columns", sql=cursor.text, span=name.span)
    if definition.refusal:
        return Refused(**base, error=definition.refusal)
    said = _relation(name, definition, if_not_exists=if_not_exists)
    if definition.origin is not None:
        return tables.CreateCapturedTable(**base, **said, append_only=definition.append_only, origin=definition.origin)
    return CreateTable(
        **base,
        **said,
        append_only=definition.append_only,
        query=query,
        column_names=tuple(definition.bare_names),
    )


def _read_source(cursor: Cursor, dialect: Dialect, base: dict[str, Any]) -> Statement:
    if_not_exists = _if_not_exists(cursor)
    name = cursor.relation_name()
    definition = Definition(cursor, dialect)
    definition.read_columns()
    definition.read_clauses()
    cursor.end()
    if definition.bare_names:
        column = definition.bare_names[0]
        raise error("SYNTAX_ERROR", f'column "{column}" has no type', sql=cursor.text, span=definition.spans[column])
    if definition.refusal:
        return Refused(**base, error=definition.refusal)
    return CreateSource(**base, **_relation(name, definition, if_not_exists=if_not_exists))


def _relation(name: Name, definition: Definition, *, if_not_exists: bool) -> dict[str, Any]:
    """What CREATE TABLE and CREATE SOURCE say alike."""
    return {
        "name": name.name,
        "name_span": name.span,
        "schema": name.schema,
        "columns": tuple(definition.columns),
        "primary_key": definition.primary_key,
        "options": definition.options,
        "if_not_exists": if_not_exists,
        "watermarks": tuple(definition.watermarks),
        "arrivals": tuple(definition.arrivals),
        "generated": definition.generated,
        "declared": definition.declared,
        "takes_columns": definition.takes_columns,
        "format": definition.format,
        "message_parts": definition.message_parts,
    }


def refused_create(
    cursor: Cursor, base: dict[str, Any], lacking: Iterable[tuple[str, ...]], there: str
) -> Refused | None:
    """CREATE of something that the dialect's own system has, and is not here; None if the cursor is at another word.

    lacking: the words behind CREATE. there: what can be created.
    """
    for words in lacking:
        if cursor.at(*words):
            span = span_of(cursor.tokens[: cursor.index + len(words)])
            refusal = not_supported(
                f"CREATE {' '.join(words)}", cursor.text, span, hint=f"CREATE {there} are supported."
            )
            return Refused(**base, error=refusal)
    return None


def _read_view(cursor: Cursor, dialect: Dialect, base: dict[str, Any]) -> Statement:
    fields, emit = _view(cursor, dialect)
    if emit is not None:
        return Refused(**base, error=not_supported("EMIT in a view that is not materialized", cursor.text, emit.span))
    return CreateView(**base, **fields)


def _read_materialized_view(cursor: Cursor, dialect: Dialect, base: dict[str, Any]) -> Statement:
    fields, emit = _view(cursor, dialect)
    return CreateMaterializedView(**base, **fields, emit=emit)


def cut_emit(tokens: Sequence[Token]) -> tuple[Sequence[Token], Emit | None]:
    """The tokens of a query without its EMIT clause, and that clause."""
    for words, mode in _EMITS.items():
        if tuple(t.text.upper() for t in tokens[-len(words) :]) == words:
            return tokens[: -len(words)], Emit(mode, span_of(tokens[-len(words) :]))
    return tokens, None


def _view(cursor: Cursor, dialect: Dialect) -> tuple[dict[str, Any], Emit | None]:
    """The fields of a view's statement, and its EMIT clause."""
    if_not_exists = _if_not_exists(cursor)
    name = cursor.relation_name()
    names: list[Name] = list(cursor.names()) if cursor.at("(") else []
    for i, column in enumerate(names):
        if column.name in [n.name for n in names[:i]]:
            raise error(
                "DUPLICATE_COLUMN",
                f'column "{column.name}" specified more than once',
                sql=cursor.text,
                span=column.span,
            )
    options = read_options(cursor) if cursor.take("WITH") else {}
    if not cursor.at("AS") and cursor.take("DESCRIPTION"):  # SQLstream's, for who reads the statement
        cursor.string()
    cursor.expect("AS")
    tokens, emit = cut_emit(cursor.rest)
    if not tokens:
        raise cursor.error()
    query = read_tree(cursor.originals(tokens), cursor.text, dialect)
    fields = {
        "name": name.name,
        "name_span": name.span,
        "schema": name.schema,
        "query": query,
        "column_names": tuple(n.name for n in names),
        "if_not_exists": if_not_exists,
        "options": options,
    }
    return fields, emit


def _read_index(cursor: Cursor, _dialect: Dialect, base: dict[str, Any]) -> Statement:
    if_not_exists = _if_not_exists(cursor)
    name = cursor.relation_name()
    cursor.expect("ON")
    table = cursor.relation_name()
    columns = cursor.names()
    include = cursor.names() if cursor.take("INCLUDE") else ()
    distributed = cursor.names() if cursor.take("DISTRIBUTED", "BY") else ()
    if cursor.take("WITH"):
        read_options(cursor)
    cursor.end()
    return CreateIndex(
        **base,
        name=name.name,
        name_span=name.span,
        schema=name.schema,
        table=table,
        columns=tuple(c.name for c in columns),
        include=tuple(c.name for c in include),
        distributed_by=tuple(c.name for c in distributed),
        if_not_exists=if_not_exists,
    )


def read_create_schema(cursor: Cursor, _dialect: Dialect, base: dict[str, Any]) -> Statement:
    """CREATE SCHEMA (Timeplus' CREATE DATABASE): the cursor stands behind the word."""
    if_not_exists = _if_not_exists(cursor)
    name = cursor.name()
    if not cursor.done:
        raise not_supported(f"{cursor.rest[0].text.upper()} of a schema", cursor.text, span_of(cursor.rest))
    return CreateSchema(**base, name=name, if_not_exists=if_not_exists)


def read_drop_schema(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """DROP SCHEMA (Timeplus' DROP DATABASE): the cursor stands behind the word."""
    if_exists = cursor.take("IF", "EXISTS")
    names = [cursor.name(reserved=True)]
    while cursor.take(","):
        names.append(cursor.name(reserved=True))
    cascade = cursor.take("CASCADE")
    if not cascade:
        cursor.take("RESTRICT")
    cursor.end()
    return DropSchema(**base, names=tuple(names), if_exists=if_exists, cascade=cascade)


def read_drop(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """DROP …: the cursor stands behind DROP."""
    if cursor.take("SCHEMA"):
        return read_drop_schema(cursor, base)
    for words, kind in _KINDS.items():
        if not cursor.take(*words):
            continue
        if_exists = cursor.take("IF", "EXISTS")
        names = [cursor.relation_name()]
        while cursor.take(","):
            names.append(cursor.relation_name())
        cascade = cursor.take("CASCADE")
        if not cascade:
            cursor.take("RESTRICT")
        cursor.end()
        return Drop(**base, kind=kind, names=tuple(names), if_exists=if_exists, cascade=cascade)
    token = cursor.current
    if token is None:
        raise cursor.error()
    if token.text.upper() in _LACKING:
        span = span_of([cursor.tokens[0], token])
        return Refused(**base, error=not_supported(f"DROP {token.text.upper()}", cursor.text, span))
    raise cursor.error(hint="DROP TABLE, SOURCE, VIEW, MATERIALIZED VIEW, INDEX and SCHEMA are supported.")
