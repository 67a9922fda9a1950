"""Reads the clauses of sources and of tables with a connector: FORMAT … ENCODE, INCLUDE, `FROM source TABLE 'table'`.

RisingWave, "Data formats and encoding options", "INCLUDE clause", "Ingest data from PostgreSQL CDC", "RESET SOURCE",
"Ingest data from webhook".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from sqlglot import exp

from watersmeet.catalog import (
    Encoding,
    MessageFormat,
    ReceivedSource,
    ReceivedTable,
    Relation,
    RowForm,
    WebhookTable,
)
from watersmeet.catalog.roles import ADMIN
from watersmeet.dialects.tree.definitions import CreateSource, CreateTable
from watersmeet.dialects.tree.statements import Name
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_options, span_of
from watersmeet.errors import Span, did_you_mean, error
from watersmeet.objectstores.base import CONNECTORS as STORES
from watersmeet.values.types import (
    BYTEA,
    JSONB,
    TIMESTAMPTZ,
    VARCHAR,
    Field,
    SqlType,
)

#: The connectors whose CREATE SOURCE creates a captured database.
CAPTURE_CONNECTORS: Final = ("postgres-cdc", "mysql-cdc")

#: The formats of CDC, whose messages are changes of rows.
CHANGE_FORMATS: Final = (("plain", "json"), ("debezium", "json"))

#: The parts of a CDC message that INCLUDE can turn into columns, and the types of these columns.
CHANGE_PARTS: Final[dict[str, SqlType]] = {
    "timestamp": TIMESTAMPTZ,
    "database_name": VARCHAR,
    "schema_name": VARCHAR,
    "table_name": VARCHAR,
}


@dataclass(frozen=True)
class Origin:
    """`FROM source TABLE 'table'`. span: the span of the clause."""

    source: Name
    table: str
    span: Span


@dataclass(frozen=True, kw_only=True)
class CreateCapturedTable(CreateTable):
    """`CREATE TABLE … FROM source TABLE 'table'`."""

    takes: ClassVar[str | None] = ADMIN

    origin: Origin


#: The connectors whose messages are received from a broker that keeps no log, and the parts of their messages.
RECEIVING: Final = ("mqtt",)
RECEIVED_PARTS: Final[dict[str, SqlType]] = {"partition": VARCHAR, "offset": VARCHAR, "payload": JSONB}


@dataclass(frozen=True, kw_only=True)
class CreateReceivedTable(CreateTable):
    """`CREATE TABLE … WITH (connector = 'mqtt', …)`."""

    makes: ClassVar[type[Relation]] = ReceivedTable


@dataclass(frozen=True, kw_only=True)
class CreateReceivedSource(CreateSource):
    """`CREATE SOURCE … WITH (connector = 'mqtt', …)`."""

    makes: ClassVar[type[Relation]] = ReceivedSource


#: The connector of tables whose rows are requests, and the option that refers to the secret of VALIDATE.
WEBHOOK, VALIDATE_SECRET = "webhook", "validate.secret"


@dataclass(frozen=True, kw_only=True)
class CreateWebhookTable(CreateTable):
    """`CREATE TABLE … WITH (connector = 'webhook') [VALIDATE [SECRET name] AS condition]`."""

    takes: ClassVar[str | None] = ADMIN
    makes: ClassVar[type[Relation]] = WebhookTable

    condition: exp.Expression | None


def read_origin(cursor: Cursor) -> Origin:
    """Reads `FROM source TABLE 'table'`; the cursor stands at FROM."""
    start = cursor.index
    cursor.expect("FROM")
    source = cursor.relation_name()
    cursor.expect("TABLE")
    table = cursor.string()
    return Origin(source, table, span_of(cursor.tokens[start : cursor.index]))


#: The connectors that read messages.
CONNECTORS: Final = ("kafka", "kinesis", "nats")

#: The type of the column of all headers of a message.
HEADERS: Final = SqlType("array", element=SqlType("struct", fields=(("key", VARCHAR), ("value", BYTEA))))

#: The parts of a message that INCLUDE can turn into columns, with the types of these columns.
PARTS: Final[dict[str, SqlType]] = {
    "key": BYTEA,
    "partition": VARCHAR,
    "offset": VARCHAR,
    "timestamp": TIMESTAMPTZ,
    "header": HEADERS,
    "payload": JSONB,
}

#: The types of an INCLUDE column for a single header, by name.
_HEADER_TYPES: Final = {"BYTEA": BYTEA, "VARCHAR": VARCHAR}

#: The parts of a row's location in a file, with the types of their INCLUDE columns.
FILE_PARTS: Final[dict[str, SqlType]] = {"file": VARCHAR, "offset": VARCHAR}

_REGISTRY: Final = (
    "connection",
    "schema.registry",
    "schema.registry.username",
    "schema.registry.password",
    "schema.registry.name.strategy",
    "message",
    "key.message",
    "schema.location",
)

_JSON: Final = ("timestamptz.handling.mode",)
_AVRO: Final = (*_REGISTRY, "map.handling.mode")

#: The readable formats: for each FORMAT and ENCODE the options.
READABLE: Final[dict[tuple[RowForm, Encoding], tuple[str, ...]]] = {
    ("plain", "json"): (*_JSON, *_REGISTRY),
    ("plain", "avro"): _AVRO,
    ("plain", "protobuf"): _REGISTRY,
    ("plain", "csv"): ("delimiter", "without_header"),
    ("plain", "bytes"): (),
    ("upsert", "json"): (*_JSON, *_REGISTRY),
    ("upsert", "avro"): _AVRO,
    ("upsert", "protobuf"): _REGISTRY,
    ("debezium", "json"): (*_JSON, "ignore_key"),
    ("debezium", "avro"): (*_AVRO, "ignore_key"),
    ("debezium_mongo", "json"): (*_JSON, "strong_schema"),
}


@dataclass(frozen=True)
class Included:
    """`INCLUDE part ['header' [type]] [AS name]`. type: None for the default type of the part. name: None for the
    default name.
    """

    part: str
    header: str | None
    type: SqlType | None
    name: str | None
    span: Span


@dataclass(frozen=True)
class Encoded:
    """`FORMAT rows ENCODE encoding (options)`. spans: the spans of the options."""

    rows: str
    encoding: str
    span: Span
    options: Mapping[str, str] = field(default_factory=dict)
    spans: Mapping[str, Span] = field(default_factory=dict)
    key_encoding: str | None = None


def read_included(cursor: Cursor) -> Included:
    """Reads INCLUDE; the cursor stands after INCLUDE."""
    start = cursor.index - 1
    part = cursor.word()
    header = kind = None
    token = cursor.current
    if part.name == "header" and token is not None and token.token_type.name == "STRING":
        header = str(token.text)
        cursor.index += 1
        kind = next((kind for word, kind in _HEADER_TYPES.items() if cursor.take(word)), None)
    name = cursor.name().name if cursor.take("AS") else None
    return Included(part.name, header, kind, name, span_of(cursor.tokens[start : cursor.index]))


def read_encoded(cursor: Cursor) -> Encoded:
    """Reads FORMAT … ENCODE; the cursor stands after FORMAT."""
    start = cursor.index - 1
    rows = cursor.word().name
    cursor.expect("ENCODE")
    encoding = cursor.word().name
    spans: dict[str, Span] = {}
    options = read_options(cursor, spans) if cursor.at("(") else {}
    key_encoding = cursor.word().name if cursor.take("KEY", "ENCODE") else None
    return Encoded(rows, encoding, span_of(cursor.tokens[start : cursor.index]), options, spans, key_encoding)


def included_columns(
    found: list[Included], connector: str, known: Mapping[str, SqlType], text: str
) -> tuple[list[Field], dict[str, str]]:
    """The columns of INCLUDE, and the part of the message in each. known: the available parts. Raises SYNTAX_ERROR."""
    columns: list[Field] = []
    parts: dict[str, str] = {}
    kinds = {"cdc": "change", WEBHOOK: "request", **dict.fromkeys((*CONNECTORS, *RECEIVING), "message")}
    what = kinds.get(connector, "file")
    for item in found:
        if item.part not in known:
            raise error(
                "SYNTAX_ERROR",
                f"INCLUDE {item.part} is no part of a {what}",
                sql=text,
                span=item.span,
                hint=did_you_mean(item.part, known) or "It is one of " + ", ".join(known) + ".",
            )
        own = f"_rw_{connector}_{item.part}" + (f"_{item.header}" if item.header else "")
        name = item.name or own
        kind = item.type or (known[item.part] if not item.header else VARCHAR if connector == WEBHOOK else BYTEA)
        columns.append(Field(name, kind))
        parts[name] = {"header": f"header:{item.header}" if item.header else "headers"}.get(item.part, item.part)
    return columns, parts


def message_format(encoded: Encoded | None, text: str) -> MessageFormat:
    """The format of messages to read; plain JSON by default. Raises CONNECTOR_OPTION, FEATURE_NOT_SUPPORTED."""
    if encoded is None:
        return MessageFormat(bad_field="null")
    for (rows, encoding), known in READABLE.items():
        if (rows, encoding) == (encoded.rows, encoded.encoding):
            for name in encoded.options:
                if name not in known:
                    raise error(
                        "CONNECTOR_OPTION",
                        f'FORMAT {rows.upper()} ENCODE {encoding.upper()} has no option "{name}"',
                        sql=text,
                        span=encoded.spans[name],
                        hint=did_you_mean(name, known)
                        or ("It has " + ", ".join(sorted(known)) + "." if known else "It has no options."),
                    )
            if encoded.key_encoding is not None:
                raise not_supported(
                    "KEY ENCODE of a source", text, encoded.span, hint="Keys are read as they are needed."
                )
            keyed = encoding if rows == "debezium" else None
            return MessageFormat(rows, encoding, keyed, dict(encoded.options), "null", encoding == "json")
    pairs = ", ".join(f"{r.upper()} {e.upper()}" for r, e in READABLE)
    what = f"FORMAT {encoded.rows.upper()} ENCODE {encoded.encoding.upper()}"
    raise not_supported(what, text, encoded.span, hint=f"These are supported: {pairs}.")


def check_rows(
    form: MessageFormat,
    columns: tuple[Field, ...],
    primary_key: tuple[str, ...],
    parts: Mapping[str, str],
    *,
    is_table: bool,
) -> None:
    """Raises CONNECTOR_OPTION if the format does not match the columns and the key."""
    what = f"FORMAT {form.rows.upper()}"
    if form.rows == "upsert":
        keys = [name for name, part in parts.items() if part == "key"]
        if not keys:
            raise error(
                "CONNECTOR_OPTION",
                "INCLUDE KEY clause not set",
                detail=f"With {what} the key of a message identifies the row.",
                hint="Write INCLUDE KEY AS k, and PRIMARY KEY (k).",
            )
        if not is_table or primary_key != (keys[0],):
            raise error(
                "CONNECTOR_OPTION",
                f'{what} needs a table whose primary key is the column of INCLUDE KEY, "{keys[0]}"',
                hint=f"Write CREATE TABLE … PRIMARY KEY ({keys[0]}).",
            )
    elif form.rows != "plain" and not (is_table and primary_key):
        raise error(
            "CONNECTOR_OPTION",
            f"{what} needs a table with a primary key",
            detail="Its messages change rows, which only a table keeps.",
            hint="Write CREATE TABLE … PRIMARY KEY (…).",
        )
    values = [c for c in columns if c.name not in parts]
    if form.encoding == "bytes" and (len(values) != 1 or values[0].type != BYTEA):
        raise error(
            "CONNECTOR_OPTION",
            "ENCODE BYTES needs exactly one column of type bytea",
            hint="Write (data bytea).",
        )


#: The connectors that read files or objects of a store.
FILES: Final = ("file", "posix_fs", *STORES)
