"""CREATE and DROP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.tokens import Token

from watersmeet.catalog import DropWord, MessageFormat
from watersmeet.clients.lakes import CONNECTORS as LAKES
from watersmeet.dialects import captured
from watersmeet.dialects.messages import (
    CONNECTORS,
    FILE_PARTS,
    PARTS,
    Encoded,
    Included,
    included_columns,
    message_format,
    read_encoded,
    read_included,
)
from watersmeet.dialects.options import not_supported, read_options
from watersmeet.dialects.queries import read_expression, read_tree
from watersmeet.dialects.sqltypes import read_type
from watersmeet.dialects.statements import (
    CreateIndex,
    CreateMaterializedView,
    CreateSchema,
    CreateSource,
    CreateTable,
    CreateView,
    Drop,
    DropSchema,
    Emit,
    Name,
    Refused,
    Statement,
    Watermark,
)
from watersmeet.dialects.tokens import Cursor, span_of
from watersmeet.errors import Error, Span, error
from watersmeet.objectstores.base import CONNECTORS as STORES
from watersmeet.types import TIMESTAMP, TIMESTAMPTZ, Field, SqlType

#: The connectors that read files and objects.
FILES: Final = ("file", "posix_fs", *STORES)

_EMITS: Final[dict[tuple[str, ...], Literal["changes", "window close", "arrival"]]] = {
    ("EMIT", "CHANGES"): "changes", ("EMIT", "ON", "WINDOW", "CLOSE"): "window close", ("EMIT", "ON",
      "ARRIVAL"): "arrival",
}  # fmt: skip
_KINDS: Final[dict[tuple[str, ...], DropWord]] = {
    ("TABLE",): "table", ("SOURCE",): "source", ("VIEW",): "view", ("MATERIALIZED", "VIEW"): "materialized view",
    ("INDEX",): "index", ("SINK",): "sink", ("CONNECTION",): "connection",
    ("SUBSCRIPTION",): "subscription",
}  # fmt: skip

#: Reads the type of a column.
TypeReader = Callable[[Cursor], SqlType]
#: What RisingWave creates and drops, and is not here.
_LACKING: Final = (
    "SINK",
    "FUNCTION",
    "AGGREGATE",
    "DATABASE",
    "TYPE",
    "SEQUENCE",
)


class Definition:
    """What is read of a CREATE TABLE or CREATE SOURCE, clause by clause."""

    def __init__(
        self, cursor: Cursor, dialect: Dialect, read_type: TypeReader = read_type, *, has_values: bool = True
    ) -> None:
        """has_values: whether columns may say what is in them, by DEFAULT or AS."""
        self.cursor = cursor
        self.has_values = has_values
        self.dialect = dialect
        self.read_type = read_type
        self.columns: list[Field] = []
        self.bare_names: list[str] = []
        self.spans: dict[str, Span] = {}
        self.primary_key: tuple[str, ...] = ()
        self.watermarks: list[Watermark] = []
        self.arrivals: list[str] = []
        self.generated: dict[str, exp.Expression] = {}
        self.declared: dict[str, exp.Expression] = {}
        self.options: dict[str, str] = {}
        self.included: list[Included] = []
        self.encoded: Encoded | None = None
        self.format: MessageFormat | None = None
        self.message_parts: dict[str, str] = {}
        self.star: Span | None = None
        self.takes_columns = False
        self.origin: captured.Origin | None = None
        self.append_only = False
        self.refusal: Error | None = None

    def refuse(self, feature: str, span: Span, hint: str | None = None) -> None:
        """Notes that the statement has a feature that is lacking; the first one is reported."""
        self.refusal = self.refusal or not_supported(feature, self.cursor.text, span, hint=hint)

    def read_columns(self) -> None:
        """The columns in parentheses. `finish` checks them."""
        cursor = self.cursor
        if not cursor.take("("):
            return
        while not cursor.at(")"):
            self._read_item()
            if not cursor.take(","):
                break
        cursor.expect(")")

    def _read_item(self) -> None:
        cursor = self.cursor
        start = cursor.index
        if cursor.take("WATERMARK", "FOR"):
            column = cursor.name()
            cursor.expect("AS")
            tokens = cursor.until(",", ")")
            tree = read_expression(cursor.originals(tokens), cursor.text, self.dialect)
            span = span_of(cursor.tokens[start : cursor.index])
            self.watermarks.append(Watermark(column.name, tree, span))
        elif cursor.take("PRIMARY", "KEY"):
            self._set_key(tuple(n.name for n in cursor.names()), span_of(cursor.tokens[start : cursor.index]))
        elif cursor.at("*"):
            self.star = span_of([cursor.tokens[cursor.index]])
            cursor.index += 1
        elif any(cursor.at(word) for word in ("CONSTRAINT", "UNIQUE", "CHECK", "FOREIGN", "EXCLUDE", "PERIOD")):
            self.refuse(f"{cursor.tokens[start].text.upper()} in a table", span_of([cursor.tokens[start]]))
            cursor.until(",", ")")
        else:
            self._read_column()

    def _read_column(self) -> None:
        cursor = self.cursor
        name = cursor.name()
        if name.name in self.spans:
            raise error(
                "DUPLICATE_COLUMN", f'column "{name.name}" specified more than once', sql=cursor.text, span=name.span
            )
        self.spans[name.name] = name.span
        if cursor.at(",") or cursor.at(")"):
            self.bare_names.append(name.name)
            return
        kind = self.read_type(cursor)
        nullable = True
        while not (cursor.at(",") or cursor.at(")")):
            start = cursor.index
            if cursor.take("NOT", "NULL"):
                nullable = False
            elif cursor.take("PRIMARY", "KEY"):
                self._set_key((name.name,), name.span)
            elif cursor.take("AS", "PROCTIME", "(", ")"):
                if kind not in (TIMESTAMP, TIMESTAMPTZ):
                    raise error(
                        "DATATYPE_MISMATCH",
                        f'column "{name.name}" AS PROCTIME() can\'t be {kind.sql}',
                        sql=cursor.text,
                        span=name.span,
                        hint="It must be a timestamp with time zone, or a timestamp.",
                    )
                self.arrivals.append(name.name)
            elif not self.has_values and (cursor.at("DEFAULT") or cursor.at("AS")):
                what = "DEFAULT" if cursor.at("DEFAULT") else "a generated column"
                cursor.until(",", ")")
                self.refuse(what, span_of(cursor.tokens[start : cursor.index]))
            elif cursor.take("AS"):
                self.generated[name.name] = self._read_value(cursor.until(",", ")"))
            elif cursor.take("DEFAULT"):
                first = cursor.index
                cursor.index += 1  # which may be NULL
                cursor.until(",", ")", "NOT", "NULL", "PRIMARY")
                self.declared[name.name] = self._read_value(cursor.tokens[first : cursor.index])
            elif cursor.at("GENERATED"):
                cursor.until(",", ")")
                place = span_of(cursor.tokens[start : cursor.index])
                self.refuse("GENERATED … AS", place, f"Write {name.name} {kind.sql} AS (expression).")
            elif any(cursor.at(word) for word in ("UNIQUE", "CHECK", "REFERENCES", "CONSTRAINT", "COLLATE")):
                word = cursor.tokens[start].text.upper()
                cursor.until(",", ")")
                self.refuse(f"{word} on a column", span_of(cursor.tokens[start : cursor.index]))
            elif not cursor.take("NULL"):
                raise cursor.error()
        if name.name in self.generated and not nullable:
            self.refuse("NOT NULL on a generated column", name.span)
        self.columns.append(Field(name.name, kind, nullable))

    def _read_value(self, tokens: Sequence[Token]) -> exp.Expression:
        return read_expression(self.cursor.originals(tokens), self.cursor.text, self.dialect)

    def _set_key(self, names: tuple[str, ...], span: Span) -> None:
        if self.primary_key:
            raise error("SYNTAX_ERROR", "multiple primary keys are not allowed", sql=self.cursor.text, span=span)
        self.primary_key = names
        self.key_span = span

    def finish(self) -> None:
        """Checks what was read, once nothing more is."""
        names = [c.name for c in self.columns]
        for key in self.primary_key:
            if key not in names and not self.takes_columns:
                raise error(
                    "UNDEFINED_COLUMN",
                    f'column "{key}" named in key does not exist',
                    sql=self.cursor.text,
                    span=self.key_span,
                )
        if len(set(self.primary_key)) < len(self.primary_key):
            raise error(
                "DUPLICATE_COLUMN",
                "a column appears twice in the primary key",
                sql=self.cursor.text,
                span=self.key_span,
            )
        for key in self.primary_key:
            if key in self.generated:
                raise error(
                    "FEATURE_NOT_SUPPORTED",
                    "Generated columns should not be part of the primary key. "
                    f'Here column "{key}" is defined as part of the primary key.',
                    sql=self.cursor.text,
                    span=self.key_span,
                )
        self.columns = [Field(c.name, c.type, c.nullable and c.name not in self.primary_key) for c in self.columns]
        for mark in self.watermarks:
            if mark.column not in names and not self.takes_columns:
                raise error(
                    "UNDEFINED_COLUMN",
                    f'column "{mark.column}" of the watermark does not exist',
                    sql=self.cursor.text,
                    span=mark.span,
                )
        if self.bare_names and self.columns:
            name = self.bare_names[0]
            raise error("SYNTAX_ERROR", f'column "{name}" has no type', sql=self.cursor.text, span=self.spans[name])

    def read_clauses(self) -> None:
        """The clauses between the columns and the end (or AS)."""
        cursor = self.cursor
        while not cursor.done and not cursor.at("AS"):
            start = cursor.index
            if cursor.take("APPEND", "ONLY"):
                self.append_only = True
            elif cursor.at("WITH", "("):
                cursor.index += 1
                self.options.update(read_options(cursor))
            elif cursor.take("FORMAT"):
                self.encoded = read_encoded(cursor)
            elif cursor.take("ON", "CONFLICT"):
                if not (cursor.take("OVERWRITE") or cursor.take("DO", "UPDATE", "FULL")):
                    cursor.until("WITH", "APPEND", "FORMAT", "AS")
                    self.refuse("ON CONFLICT other than OVERWRITE", span_of(cursor.tokens[start : cursor.index]))
            elif cursor.take("INCLUDE"):
                self.included.append(read_included(cursor))
            elif cursor.take("WITH", "VERSION", "COLUMN"):
                cursor.names()
                self.refuse("WITH VERSION COLUMN", span_of(cursor.tokens[start : cursor.index]))
            elif cursor.at("FROM"):
                self.origin = captured.read_origin(cursor)
            else:
                raise cursor.error()
        self._finish_format()
        self.finish()

    def _finish_format(self) -> None:
        """What FORMAT … ENCODE and INCLUDE mean is up to the connector: files, or messages."""
        encoded = self.encoded
        if self.origin is not None or self.options.get("connector", "").lower() in captured.CONNECTORS:
            self.takes_columns = self.star is not None or not self.columns
            columns, self.message_parts = included_columns(self.included, "cdc", captured.PARTS, self.cursor.text)
            self.columns += columns
            if encoded is not None and (encoded.rows, encoded.encoding) not in captured.FORMATS:
                self.refuse(f"FORMAT {encoded.rows.upper()} with changes of a database", encoded.span)
            return
        if self.options.get("connector", "").lower() in CONNECTORS:
            connector = self.options["connector"].lower()
            self.takes_columns = self.star is not None or not self.columns
            columns, self.message_parts = included_columns(self.included, connector, PARTS, self.cursor.text)
            self.columns += columns
            try:
                self.format = message_format(encoded, self.cursor.text)
            except Error as problem:
                self.refusal = self.refusal or problem
            return
        if self.options.get("connector", "").lower() in LAKES:
            self.takes_columns = self.star is not None or not self.columns
            for item in self.included:
                self.refuse("INCLUDE with a table of a lake", item.span)
            if encoded is not None and (encoded.rows, encoded.encoding) != ("none", "none"):
                self.refuse(f"FORMAT {encoded.rows.upper()} with a table of a lake", encoded.span, "Leave it out.")
            return
        connector = self.options.get("connector", "").lower()
        if connector in FILES:
            columns, self.message_parts = included_columns(self.included, connector, FILE_PARTS, self.cursor.text)
            self.columns += columns
        else:
            for item in self.included:
                self.refuse(f"INCLUDE with connector {connector}" if connector else "INCLUDE of a table", item.span)
        if self.star is not None:
            hint = "List the columns: they are not read from the data."
            self.refuse("a column list with *", self.star, hint)
        if encoded is None:
            return
        for key, value in encoded.options.items():
            self.options.setdefault(key, value)
        self.options.setdefault("format", encoded.encoding)
        if encoded.rows != "plain":
            self.refuse(f"FORMAT {encoded.rows.upper()}", encoded.span, "With files, FORMAT PLAIN is supported.")


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
        place = span_of([cursor.tokens[0], token])
        temporary = _INSTEAD_OF_DBT if _OF_DBT in cursor.text else _INSTEAD_OF_TEMPORARY
        hint = temporary if word in ("TEMPORARY", "TEMP") else None
        return Refused(**base, error=not_supported(f"CREATE {word}", cursor.text, place, hint=hint))
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
        return captured.CreateCapturedTable(
            **base, **said, append_only=definition.append_only, origin=definition.origin
        )
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
            place = span_of(cursor.tokens[: cursor.index + len(words)])
            refusal = not_supported(
                f"CREATE {' '.join(words)}", cursor.text, place, hint=f"CREATE {there} are supported."
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
        place = span_of([cursor.tokens[0], token])
        return Refused(**base, error=not_supported(f"DROP {token.text.upper()}", cursor.text, place))
    raise cursor.error(hint="DROP TABLE, SOURCE, VIEW, MATERIALIZED VIEW, INDEX and SCHEMA are supported.")
