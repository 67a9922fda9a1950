"""Converts the changes of a relation to messages.

Law: the result of `encode` always depends only on the rows, their diffs and the time: equal batches give equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog import MessageFormat
from watersmeet.catalog.parts import Encoding
from watersmeet.errors import error
from watersmeet.formats.avrowriter import AvroWriter, envelope_schema
from watersmeet.formats.payloads import WINDOW, Numbers, WindowedKeyWriter, value_of
from watersmeet.formats.protowriter import ProtobufWriter
from watersmeet.formats.registry import Part
from watersmeet.formats.valuetexts import JsonStyle, evaluate, json_value
from watersmeet.formats.writers import (
    SqlWriter,
    Writer,
    bytes_writer,
    concatenated,
    csv_writer,
    integer_writer,
    json_writer,
    spread,
    string_writer,
    template_writer,
    tsv_writer,
)
from watersmeet.formats.xmltext import xml_writer
from watersmeet.values.types import BIGINT, VARCHAR, Field, Schema, SqlType

_TRUE: Final = ("true", "t", "1", "yes", "on")
_FALSE: Final = ("false", "f", "0", "no", "off")
#: The unsigned types by the number of bits.
_UNSIGNED: Final = {16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}


@dataclass(frozen=True)
class Encoded:
    """Messages in order. keys, values: binary, NULL if a message has none. headers: list<struct<key: string, value:
    binary>>; None without headers. times_ms: milliseconds since 1970 (UTC); None for the time of writing.
    partition_numbers: see `partitions`; None without numbers.
    """

    keys: pa.BinaryArray
    values: pa.BinaryArray
    headers: pa.ListArray | None = None
    times_ms: pa.Int64Array | None = None
    partition_numbers: pa.UInt64Array | None = None

    def __len__(self) -> int:
        return len(self.values)

    def partitions(self, count: int) -> list[int]:
        """The partition of each message out of `count`: its number modulo `count`, or -1 if the client chooses."""
        numbers = self.partition_numbers
        if numbers is None:
            return [-1] * len(self)
        found = (numbers.fill_null(0).to_numpy() % np.uint64(count)).astype(np.int64)
        chosen: list[int] = np.where(numbers.is_valid().to_numpy(zero_copy_only=False), found, -1).tolist()
        return chosen


class Encoder(Protocol):
    """Converts the changes of a relation to messages. Not thread-safe."""

    def encode(self, rows: pa.Table, diff: Numbers, time_us: int) -> Encoded:
        """The messages of a consolidated change. rows: columns by name. diff: the number of insertions (+) or deletions
        (-) of each row.

        time_us: the time of the commit in microseconds since 1970 (UTC). Raises OSError while a system is unavailable,
        an `Error` for a row that can never be written.
        """


@dataclass(frozen=True)
class Destination:
    """The destination of messages: the topic, and the names of the database and the relation."""

    topic: str = ""
    database: str = ""
    relation: str = ""


def open_encoder(
    columns: Schema,
    key: tuple[str, ...],
    format: MessageFormat,  # noqa: A002 - the word of SQL
    destination: Destination,
    *,
    force_append_only: bool = False,
    parts: Mapping[str, str] | None = None,
) -> Encoder:
    """The encoder of `format`.

    key: the names of the columns of the message key; empty: messages without keys, for plain rows only.
    force_append_only: whether plain rows omit deletions, which otherwise are an error. parts: the part of a message by
    column: key, headers (a JSON object), header:<name>, timestamp, tombstone (whether the message has no value), or one
    of `BROKERS_OWN`, which is not written; `COMPUTED_KEY` instead of any key; `COMPUTED_PARTITION` (a whole number, see
    `Encoded.partitions`). Other columns are the value. timestamp, tombstone and computed parts are for plain rows only.

    Raises CONNECTOR_OPTION for combinations that can't be encoded, LIBRARY_MISSING.
    """
    parts = parts or {}
    written = tuple(c for c in columns if c.name not in parts)
    by_part = {part: column for column, part in parts.items()}
    own_keys = tuple(c for c in columns if c.name == by_part.get(COMPUTED_KEY, by_part.get("key")))
    keyed = own_keys or tuple(_column(columns, name) for name in key)
    headers = _header_writer(parts)
    if format.rows == "debezium":
        if not keyed:
            raise _needs_key("DEBEZIUM")
        if format.encoding == "json":
            return _Debezium(*_json_envelopes(written, keyed, format, destination))
        if format.encoding == "avro":
            key_writer = _key_writer(keyed, format, destination, is_own=False)
            return _Debezium(key_writer, None, _AvroEnvelopes(written, format, destination))
        raise error("FEATURE_NOT_SUPPORTED", f"FORMAT DEBEZIUM ENCODE {format.encoding.upper()} for a sink")
    keys = _key_writer(keyed, format, destination, is_own=bool(own_keys)) if keyed else None
    values = open_writer(written, format.encoding, format.options, destination)
    if format.rows == "upsert":
        if keys is None:
            raise _needs_key("UPSERT")
        return _Upsert(keys, values, headers)
    if format.rows == "plain":
        columns_of = [by_part.get(part) for part in ("timestamp", "tombstone", COMPUTED_PARTITION)]
        return _Plain(keys, values, headers, *columns_of, force_append_only=force_append_only)
    raise error("FEATURE_NOT_SUPPORTED", f"FORMAT {format.rows.upper()} for a sink")


def open_writer(
    columns: Schema,
    encoding: Encoding,
    options: Mapping[str, str],
    destination: Destination,
    *,
    part: Part = "value",
    whole: bool = False,
) -> Writer:
    """The writer of values in `encoding`. part: value or key, for the schema registry. whole: whether in Avro the value
    is the only column itself, not a record with this field.
    """
    if encoding == "json":
        connected = flag(options, "schemas.enable", default=False)
        style = JsonStyle(date="days_from_epoch" if connected else "days_from_ce").asked(options)
        writer = json_writer(columns, _key_style(style) if part == "key" else style)
        if not connected:
            return writer
        schema = _connect_struct(columns, f"{destination.database}.{destination.relation}")
        return _Wrapped(b'{"schema":' + _dumped(schema) + b',"payload":', writer)
    if encoding == "csv":
        return csv_writer(columns, options.get("delimiter", ","))
    if encoding == "xml":
        return xml_writer(columns, options)
    if encoding == "tsv":
        return tsv_writer(columns)
    if encoding == "string":
        return string_writer(columns)
    if encoding == "bytes":
        return bytes_writer(columns)
    if encoding in ("int", "long"):
        return integer_writer(columns, 4 if encoding == "int" else 8)
    if encoding == "template":
        return template_writer(columns, options, "key_format" if part == "key" else "value_format")
    if encoding == "avro":
        return AvroWriter(columns, options, destination.topic, part, whole=whole)
    if encoding == "protobuf":
        return ProtobufWriter(columns, options, destination.topic, part)
    raise error("FEATURE_NOT_SUPPORTED", f"ENCODE {encoding.upper()} for a sink")


def flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """A Boolean option. Raises CONNECTOR_OPTION if it is neither true nor false."""
    asked = options.get(name, "").lower()
    if not asked:
        return default
    if asked not in (*_TRUE, *_FALSE):
        raise error("CONNECTOR_OPTION", f"{name} has to be true or false, not '{options[name]}'")
    return asked in _TRUE


def _column(columns: Schema, name: str) -> Any:
    return next(c for c in columns if c.name == name)


def _needs_key(form: str) -> Exception:
    return error(
        "CONNECTOR_OPTION",
        f"FORMAT {form} needs a key",
        hint="Name its columns: primary_key = 'a, b'.",
    )


def _key_writer(columns: Schema, format: MessageFormat, destination: Destination, *, is_own: bool) -> Writer:  # noqa: A002
    """is_own: whether the key is a separate column, which is written unchanged unless the format specifies an
    encoding.
    """
    if (window := format.options.get(WINDOW)) is not None:
        (key,) = columns
        plain = replace(format, options={n: v for n, v in format.options.items() if n != WINDOW})
        inner = _key_writer((value_of(key, window),), plain, destination, is_own=is_own)
        return WindowedKeyWriter(key, window, inner)
    options = {n: v for n, v in format.options.items() if n != "schemas.enable" or format.key_encoding is None}
    options |= {n.removeprefix("key."): v for n, v in format.options.items() if n.startswith("key.")}
    encoding = format.key_encoding
    if format.encoding == "protobuf" and encoding is None and not is_own and "key.message" not in format.options:
        raise error(
            "CONNECTOR_OPTION",
            "ENCODE PROTOBUF with a key needs a format of the key",
            hint="Write KEY ENCODE TEXT, or the option key.message.",
        )
    if is_own and encoding in ("json", "avro") and columns[0].type.name == "struct":
        fields = tuple(Field(name, kind) for name, kind in columns[0].type.fields)
        return _Unpacked(columns[0].name, open_writer(fields, encoding, options, destination, part="key"))
    if is_own and encoding == "json":
        style = _key_style(JsonStyle().asked(options))
        return SqlWriter(columns, f"CASE WHEN t0 IS NOT NULL THEN {json_value('t0', columns[0].type, style)} END")
    if encoding is None:
        encoding = ("bytes" if columns[0].type.name == "bytea" else "string") if is_own else format.encoding
    return open_writer(columns, encoding, options, destination, part="key", whole=is_own)


def _key_style(style: JsonStyle) -> JsonStyle:
    """The style in which NaN, infinities and NULL are different keys."""
    return replace(style, float="string")


class _Unpacked:
    """Writes the fields of a column with objects as columns."""

    def __init__(self, name: str, inner: Writer) -> None:
        self._name = name
        self._inner = inner

    def write(self, rows: pa.Table) -> pa.BinaryArray:
        column = rows.column(self._name).combine_chunks()
        parts = dict(zip([f.name for f in column.type], column.flatten(), strict=True))
        return pc.if_else(column.is_valid(), self._inner.write(pa.table(parts)), pa.scalar(None, pa.binary()))


class _Wrapped:
    """Writes JSON of Kafka Connect, with the schema next to each value."""

    def __init__(self, before: bytes, inner: Writer) -> None:
        self._before = before
        self._inner = inner

    def write(self, rows: pa.Table) -> pa.BinaryArray:
        return concatenated([self._before, self._inner.write(rows), b"}"])


#: The parts of messages that brokers set.
BROKERS_OWN: Final = ("partition", "offset")
#: The parts of messages that are computed from other columns of the row.
COMPUTED_KEY: Final = "computed key"
COMPUTED_PARTITION: Final = "computed partition"

#: A function from rows to their headers; None if no column has headers.
HeaderWriter = Callable[[pa.Table], "pa.ListArray | None"]

_PAIRS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class _Plain:
    """Encodes a message for each insertion of a row. times, tombstones, numbers: the columns of timestamps, tombstones
    and partition numbers.
    """

    def __init__(
        self,
        keys: Writer | None,
        values: Writer,
        headers: HeaderWriter,
        times: str | None,
        tombstones: str | None,
        numbers: str | None,
        *,
        force_append_only: bool,
    ) -> None:
        self._keys, self._values, self._headers = keys, values, headers
        self._times, self._tombstones, self._numbers = times, tombstones, numbers
        self._force_append_only = force_append_only

    def encode(self, rows: pa.Table, diff: Numbers, time_us: int) -> Encoded:
        del time_us
        came = diff > 0
        if not self._force_append_only and not came.all():
            raise error(
                "INVALID_VALUE",
                "a row was deleted, which a sink that only appends can't say",
                hint="force_append_only = 'true' leaves deletions out; FORMAT UPSERT writes them.",
            )
        if not came.all() or (diff != 1).any():
            rows = rows.take(pa.array(np.repeat(np.arange(len(diff)), np.maximum(diff, 0))))
        keys = self._keys.write(rows) if self._keys else pa.nulls(len(rows), pa.binary())
        values = self._values.write(rows)
        if self._tombstones is not None:
            gone = rows.column(self._tombstones).combine_chunks()
            values = pc.if_else(pc.fill_null(gone, fill_value=False), pa.scalar(None, pa.binary()), values)
        return Encoded(keys, values, self._headers(rows), self._times_ms(rows), self._partition_numbers(rows))

    def _times_ms(self, rows: pa.Table) -> pa.Int64Array | None:
        if self._times is None:
            return None
        micros = rows.column(self._times).combine_chunks().cast(pa.timestamp("us")).cast(pa.int64())
        return pc.divide(micros, 1000)

    def _partition_numbers(self, rows: pa.Table) -> pa.UInt64Array | None:
        """Negative numbers count as unsigned numbers with the same bits."""
        if self._numbers is None:
            return None
        numbers = rows.column(self._numbers).combine_chunks()
        if pa.types.is_integer(numbers.type):
            return numbers.view(_UNSIGNED[numbers.type.bit_width]).cast(pa.uint64())
        try:
            return numbers.cast(pa.uint64())
        except pa.ArrowInvalid as cause:
            raise error("INVALID_VALUE", "the number of a partition is not between 0 and 2⁶⁴ - 1") from cause


@dataclass(frozen=True)
class ChangedKeys:
    """The changes of keys in the order of their first occurrence. first: the place of a row of each key. gone, came:
    the place of its last deleted and inserted row; -1 for none.
    """

    first: npt.NDArray[np.int64]
    gone: npt.NDArray[np.int64]
    came: npt.NDArray[np.int64]


def changed_keys(keys: pa.BinaryArray, diff: Numbers) -> ChangedKeys:
    """The changes of keys; keys are equal if their bytes are equal, as for brokers."""
    coded = keys.dictionary_encode(null_encoding="encode")
    codes = coded.indices.to_numpy(zero_copy_only=False)
    found = []
    for of in (np.arange(len(diff))[::-1], np.flatnonzero(diff < 0), np.flatnonzero(diff > 0)):
        last = np.full(len(coded.dictionary), -1, np.int64)
        last[codes[of]] = of
        found.append(last)
    return ChangedKeys(*found)


def _message_keys(keys: Writer, rows: pa.Table) -> pa.BinaryArray:
    """The keys of messages. Raises DELIVERY_REFUSED for NULL, because the message would have no key."""
    found = keys.write(rows)
    if found.null_count:
        raise error(
            "DELIVERY_REFUSED",
            "a row has NULL as its key, and a message without a key neither replaces nor deletes a row",
            hint="KEY ENCODE JSON writes NULL.",
        )
    return found


class _Upsert:
    """Encodes a message for each changed key, with its new row, or without a value if the row was deleted."""

    def __init__(self, keys: Writer, values: Writer, headers: HeaderWriter) -> None:
        self._keys, self._values, self._headers = keys, values, headers

    def encode(self, rows: pa.Table, diff: Numbers, time_us: int) -> Encoded:
        del time_us
        keys = _message_keys(self._keys, rows)
        changed = changed_keys(keys, diff)
        is_there = changed.came >= 0
        if len(changed.first) == len(rows) and is_there.all():
            return Encoded(keys, self._values.write(rows), self._headers(rows))
        there = np.flatnonzero(is_there)
        values = self._values.write(rows.take(pa.array(changed.came[there])))
        places = pa.array(np.where(is_there, changed.came, changed.first))
        headers = self._headers(rows.take(places))
        return Encoded(keys.take(places), spread(values, there, len(is_there)), headers)


class _Envelopes(Protocol):
    """Debezium's envelopes."""

    def write(self, rows: pa.Table, changed: ChangedKeys, time_ms: int) -> pa.BinaryArray:
        """The envelopes of the changed keys. time_ms: milliseconds since 1970 (UTC)."""


class _Debezium:
    """Encodes an envelope with the row before and after for each changed key, and a tombstone after a deletion.

    around_keys: the bytes before and after each key.
    """

    def __init__(self, keys: Writer, around_keys: tuple[bytes, bytes] | None, envelopes: _Envelopes) -> None:
        self._keys, self._around_keys, self._envelopes = keys, around_keys, envelopes

    def encode(self, rows: pa.Table, diff: Numbers, time_us: int) -> Encoded:
        keys = _message_keys(self._keys, rows)
        changed = changed_keys(keys, diff)
        values = self._envelopes.write(rows, changed, time_us // 1000)
        is_deletion = changed.came < 0
        times = 1 + is_deletion
        place = np.repeat(np.arange(len(times)), times)
        is_tombstone = np.zeros(len(place), bool)
        is_tombstone[np.cumsum(times)[is_deletion] - 1] = True
        keys = keys.take(pa.array(changed.first[place]))
        if self._around_keys:
            keys = concatenated([self._around_keys[0], keys, self._around_keys[1]])
        return Encoded(keys, values if not is_tombstone.any() else values.take(pa.array(place, mask=is_tombstone)))


def _json_envelopes(
    columns: Schema,
    key: Schema,
    format: MessageFormat,  # noqa: A002
    destination: Destination,
) -> tuple[Writer, tuple[bytes, bytes] | None, _Envelopes]:
    """The parts of `_Debezium` for JSON."""
    style = JsonStyle(date="days_from_epoch").asked(format.options)
    enabled = flag(format.options, "schemas.enable", default=True)
    prefix = f"RisingWave.{destination.database}.{destination.relation}"
    is_json = format.key_encoding in (None, "json")
    keys = json_writer(key, _key_style(style)) if is_json else _key_writer(key, format, destination, is_own=False)
    key_schema = _dumped(_connect_struct(key, f"{prefix}.Key"))
    around_keys = (b'{"schema":' + key_schema + b',"payload":', b"}") if is_json and enabled else None
    schema = _dumped(_debezium_schema(columns, prefix)) if enabled else None
    return keys, around_keys, _JsonEnvelopes(json_writer(columns, style), schema, destination)


class _JsonEnvelopes:
    """schema: the schema to write next to each envelope."""

    def __init__(self, values: Writer, schema: bytes | None, destination: Destination) -> None:
        self._values = values
        self._before = b'{"before":' if schema is None else b'{"schema":' + schema + b',"payload":{"before":'
        self._after = b"}" if schema is None else b"}}"
        self._source = {"db": destination.database, "table": destination.relation}

    def write(self, rows: pa.Table, changed: ChangedKeys, time_ms: int) -> pa.BinaryArray:
        texts = self._values.write(rows)
        null = pa.scalar(b"null", pa.binary())
        before = pc.fill_null(texts.take(_or_null(changed.gone)), null)
        after = pc.fill_null(texts.take(_or_null(changed.came)), null)
        source = _dumped({**self._source, "ts_ms": time_ms})
        behind = b'","ts_ms":%d,"source":%b%b' % (time_ms, source, self._after)
        operations = _operations(changed).cast(pa.binary())
        return concatenated([self._before, before, b',"after":', after, b',"op":"', operations, behind])


class _AvroEnvelopes:
    def __init__(self, columns: Schema, format: MessageFormat, destination: Destination) -> None:  # noqa: A002
        self._columns = columns
        row = SqlType("struct", fields=tuple((c.name, c.type) for c in columns))
        source = SqlType("struct", fields=(("db", VARCHAR), ("table", VARCHAR), ("ts_ms", BIGINT)))
        kinds = {"before": row, "after": row, "source": source, "op": VARCHAR, "ts_ms": BIGINT}
        fields = tuple(Field(name, kind) for name, kind in kinds.items())
        schema = envelope_schema(columns, destination.topic)
        self._writer = AvroWriter(fields, format.options, destination.topic, "value", schema=schema)
        self._source = (destination.database, destination.relation)

    def write(self, rows: pa.Table, changed: ChangedKeys, time_ms: int) -> pa.BinaryArray:
        names = [c.name for c in self._columns]
        values = pa.StructArray.from_arrays([rows.column(n).combine_chunks() for n in names], names)
        count = len(changed.first)
        times = pa.repeat(pa.scalar(time_ms, pa.int64()), count)
        source = [*(pa.repeat(text, count) for text in self._source), times]
        envelopes = {
            "before": values.take(_or_null(changed.gone)),
            "after": values.take(_or_null(changed.came)),
            "source": pa.StructArray.from_arrays(source, ["db", "table", "ts_ms"]),
            "op": _operations(changed),
            "ts_ms": times,
        }
        return self._writer.write(pa.table(envelopes))


def _operations(changed: ChangedKeys) -> pa.StringArray:
    """The letters of changes."""
    names = np.where(changed.gone < 0, 0, np.where(changed.came < 0, 2, 1))
    return pa.array(["c", "u", "d"]).take(pa.array(names))


def _or_null(places: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(places, mask=places < 0)


def _header_writer(parts: Mapping[str, str]) -> HeaderWriter:
    """A writer of the column with all headers if there is one, else of the columns with single headers."""
    whole = [column for column, part in parts.items() if part == "headers"]
    if whole:
        return lambda rows: _of_objects(rows.column(whole[0]).combine_chunks())
    single = {part.removeprefix("header:"): column for column, part in parts.items() if part.startswith("header:")}
    return lambda rows: _headers(rows, single)


def _of_objects(objects: pa.StringArray) -> pa.ListArray:
    """A header for each member of a JSON object. Raises INVALID_VALUE for other values."""
    kinds, pairs = evaluate(
        [objects],
        [
            "CASE WHEN json_type(t0) NOT IN ('OBJECT', 'NULL') THEN t0 END",
            "CASE WHEN json_type(t0) = 'OBJECT' THEN map_entries(CAST(CAST(t0 AS JSON) AS MAP(VARCHAR, VARCHAR))) END",
        ],
    )
    if len(wrong := kinds.drop_null()):
        raise error("INVALID_VALUE", f"headers can't be {wrong[0].as_py()}", hint='Write an object: {"name": "value"}.')
    return pairs.cast(_PAIRS)


def _headers(rows: pa.Table, columns: Mapping[str, str]) -> pa.ListArray | None:
    """columns: the columns of values by header name; for NULL the message lacks the header."""
    if not columns:
        return None
    values = [rows.column(c).combine_chunks().cast(pa.binary()) for c in columns.values()]
    count = len(values)
    flat = pa.concat_arrays(values).take(pa.array(np.arange(len(rows) * count).reshape(count, -1).T.ravel()))
    names = pa.array(list(columns), pa.string()).take(pa.array(np.tile(np.arange(count), len(rows))))
    valid = flat.is_valid().to_numpy(zero_copy_only=False)
    ends = np.concatenate(([0], np.cumsum(valid)))[np.arange(len(rows) + 1) * count]
    pairs = pa.StructArray.from_arrays([names, flat], ["key", "value"]).filter(pa.array(valid))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pairs)


# The schemas that Kafka Connect and Debezium write next to a value.

#: Connect's type and the meaning of the value for each type.
_CONNECT: Final[dict[str, tuple[str, str]]] = {
    "boolean": ("boolean", ""),
    "smallint": ("int16", ""),
    "integer": ("int32", ""),
    "bigint": ("int64", ""),
    "real": ("float", ""),
    "double precision": ("double", ""),
    "numeric": ("string", ""),
    "varchar": ("string", ""),
    "bytea": ("bytes", ""),
    "date": ("int32", "org.apache.kafka.connect.data.Date"),
    "time": ("int64", "org.apache.kafka.connect.data.Time"),
    "timestamp": ("int64", "org.apache.kafka.connect.data.Timestamp"),
    "timestamptz": ("string", "io.debezium.time.ZonedTimestamp"),
    "interval": ("string", "io.debezium.time.Interval"),
    "jsonb": ("string", "io.debezium.data.Json"),
}


def _connect_type(kind: SqlType) -> dict[str, Any]:
    if kind.name == "map":
        keys, values = (_connect_type(part) for part in kind.entry)
        return {"type": "map", "keys": keys, "values": {**values, "optional": True}}
    if kind.element is not None:
        return {"type": "array", "items": {**_connect_type(kind.element), "optional": True}}
    if kind.name == "struct":
        fields = [{"field": n, "optional": True, **_connect_type(t)} for n, t in kind.fields]
        return {"type": "struct", "fields": fields}
    name, meaning = _CONNECT[kind.name]
    return {"type": name, **({"name": meaning} if meaning else {})}


def _connect_fields(columns: Schema) -> list[dict[str, Any]]:
    return [{"field": c.name, "optional": True, **_connect_type(c.type)} for c in columns]


def _connect_struct(columns: Schema, name: str) -> dict[str, Any]:
    return {"type": "struct", "fields": _connect_fields(columns), "optional": False, "name": name}


def _debezium_schema(columns: Schema, prefix: str) -> dict[str, Any]:
    def row(field: str) -> dict[str, Any]:
        fields = _connect_fields(columns)
        return {"type": "struct", "fields": fields, "optional": True, "name": f"{prefix}.Key", "field": field}

    source = {
        "type": "struct",
        "fields": [
            {"field": "db", "optional": False, "type": "string"},
            {"field": "table", "optional": True, "type": "string"},
            {"field": "ts_ms", "optional": False, "type": "int64"},
        ],
        "optional": False,
        "name": f"{prefix}.Source",
        "field": "source",
    }
    return {
        "type": "struct",
        "fields": [
            row("before"),
            row("after"),
            source,
            {"field": "op", "optional": False, "type": "string"},
            {"field": "ts_ms", "optional": False, "type": "int64"},
        ],
        "optional": False,
        "name": f"{prefix}.Envelope",
    }


def _dumped(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
