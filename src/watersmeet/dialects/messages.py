"""What RisingWave's CREATE says of messages: INCLUDE, and FORMAT … ENCODE ….

Source: RisingWave's documentation of Kafka sources, and its tests of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from watersmeet.catalog import Encoding, MessageFormat, RowForm
from watersmeet.dialects.options import read_options
from watersmeet.dialects.tokens import Cursor, span_of
from watersmeet.errors import Error, Span, did_you_mean, error
from watersmeet.types import BYTEA, JSONB, TIMESTAMPTZ, VARCHAR, Field, SqlType

#: The connectors that read messages.
CONNECTORS: Final = ("kafka",)

_HEADERS: Final = SqlType("array", element=SqlType("struct", fields=(("key", VARCHAR), ("value", BYTEA))))
#: By part of a message: the type of a column that INCLUDE makes of it.
PARTS: Final[dict[str, SqlType]] = {
    "key": BYTEA,
    "partition": VARCHAR,
    "offset": VARCHAR,
    "timestamp": TIMESTAMPTZ,
    "header": _HEADERS,
    "payload": JSONB,
}

#: By their words, the types that a column of one header may have.
_HEADER_TYPES: Final = {"BYTEA": BYTEA, "VARCHAR": VARCHAR}
#: By part of the place of a row in a file.
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

#: What can be read: by FORMAT and ENCODE the options.
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
    """`INCLUDE part ['header' [type]] [AS name]`. type: None for the part's own; name: for the default one."""

    part: str
    header: str | None
    type: SqlType | None
    name: str | None
    span: Span


@dataclass(frozen=True)
class Encoded:
    """`FORMAT rows ENCODE encoding (options)`. spans: of the options."""

    rows: str
    encoding: str
    span: Span
    options: Mapping[str, str] = field(default_factory=dict)
    spans: Mapping[str, Span] = field(default_factory=dict)
    key_encoding: str | None = None


def read_included(cursor: Cursor) -> Included:
    """The cursor stands behind INCLUDE."""
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
    """The cursor stands behind FORMAT."""
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
    """(the columns that INCLUDE makes, the part that each shows). known: the parts that there are. SYNTAX_ERROR."""
    columns: list[Field] = []
    parts: dict[str, str] = {}
    what = {"cdc": "change", "kafka": "message"}.get(connector, "file")
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
        kind = item.type or (BYTEA if item.header else known[item.part])
        columns.append(Field(name, kind))
        parts[name] = {"header": f"header:{item.header}" if item.header else "headers"}.get(item.part, item.part)
    return columns, parts


def message_format(encoded: Encoded | None, text: str) -> MessageFormat:
    """The format of messages that are read; plain JSON if nothing is said. CONNECTOR_OPTION, FEATURE_NOT_SUPPORTED."""
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
                raise _unreadable("KEY ENCODE of a source", text, encoded, "Keys are read as they are needed.")
            keyed = encoding if rows == "debezium" else None
            return MessageFormat(rows, encoding, keyed, dict(encoded.options), "null", encoding == "json")
    pairs = ", ".join(f"{r.upper()} {e.upper()}" for r, e in READABLE)
    what = f"FORMAT {encoded.rows.upper()} ENCODE {encoded.encoding.upper()}"
    raise _unreadable(what, text, encoded, f"These are supported: {pairs}.")


def check_rows(
    form: MessageFormat,
    columns: tuple[Field, ...],
    primary_key: tuple[str, ...],
    parts: Mapping[str, str],
    *,
    is_table: bool,
) -> None:
    """CONNECTOR_OPTION if the columns and the key are not those that the format has."""
    what = f"FORMAT {form.rows.upper()}"
    if form.rows == "upsert":
        keys = [name for name, part in parts.items() if part == "key"]
        if not keys:
            raise error(
                "CONNECTOR_OPTION",
                "INCLUDE KEY clause not set",
                detail=f"With {what} the key of a message says which row it is.",
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


def _unreadable(what: str, text: str, encoded: Encoded, hint: str) -> Error:
    return error("FEATURE_NOT_SUPPORTED", f"{what} is not supported", sql=text, span=encoded.span, hint=hint)
