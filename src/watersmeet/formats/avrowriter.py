"""Writes rows as Avro messages: Confluent's header with the schema's id, then the record.

Records are built column by column: Avro concatenates the fields of a record without separators. Source: Avro 1.12,
"Binary encoding", "Logical types"; Confluent, "Wire format"; RisingWave, "Sink data to Kafka", AVRO, for the field of
each column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import Error, error
from watersmeet.formats.registry import Part, Registry, open_registry, subject_of
from watersmeet.formats.valuetexts import interval_text, numeric_text, one_array
from watersmeet.formats.writers import (
    Encode,
    big_endian,
    concatenated,
    evaluate_text,
    fixed,
    gathered,
    lengths_of,
    list_parts,
    numbers_of,
    reals,
    shortest,
    spread,
    varints,
    with_nulls,
    zigzag,
)
from watersmeet.values.types import DEFAULT_PRECISION, DEFAULT_SCALE, Field, Schema, SqlType

_PRIMITIVE: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_DERIVED: Final[dict[str, Any]] = {
    "boolean": "boolean",
    "smallint": "int",
    "integer": "int",
    "bigint": "long",
    "real": "float",
    "double precision": "double",
    "varchar": "string",
    "bytea": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "time": {"type": "long", "logicalType": "time-micros"},
    "timestamp": {"type": "long", "logicalType": "local-timestamp-micros"},
    "timestamptz": {"type": "long", "logicalType": "timestamp-micros"},
    "interval": "string",
    "jsonb": "string",
}
_MOST_UNSIGNED: Final = 2**32


def derived_schema(columns: Schema, name: str) -> dict[str, Any]:
    """The schema of a record with a field for each column. All fields are nullable, so that they can be added and
    removed.

    Raises CONNECTOR_OPTION for names of columns that are invalid in Avro.
    """
    for column in columns:
        _check_name(column.name)
    fields = [_derived_field(c.name, c.type, f"{name}_{c.name}") for c in columns]
    return {"type": "record", "name": _name(name), "fields": fields}


def envelope_schema(columns: Schema, space: str) -> dict[str, Any]:
    """Debezium's envelope of rows with a field for each column.

    space: its namespace, of any characters. Raises CONNECTOR_OPTION like `derived_schema`. Source: Debezium, "Avro
    Serialization".
    """
    source = [
        {"name": "db", "type": "string"},
        {"name": "table", "type": ["null", "string"], "default": None},
        {"name": "ts_ms", "type": "long"},
    ]
    fields = [
        {"name": "before", "type": ["null", derived_schema(columns, "Value")], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": {"type": "record", "name": "Source", "fields": source}},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ]
    return {"type": "record", "name": "Envelope", "namespace": _namespace(space), "fields": fields}


def _namespace(text: str) -> str:
    return ".".join(_name(part) for part in text.split("."))


def _derived_field(name: str, kind: SqlType, path: str) -> dict[str, Any]:
    return {"name": name, "type": ["null", _derived(kind, path)], "default": None}


def _derived(kind: SqlType, path: str) -> Any:
    if kind.name == "numeric":
        precision, scale = kind.precision or DEFAULT_PRECISION, _scale(kind)
        return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    if kind.element is not None:
        return {"type": "array", "items": ["null", _derived(kind.element, f"{path}_item")]}
    if kind.name == "struct":
        for name, _ in kind.fields:
            _check_name(name)
        fields = [_derived_field(n, t, f"{path}_{n}") for n, t in kind.fields]
        return {"type": "record", "name": _name(path), "fields": fields}
    return _DERIVED[kind.name]


def _scale(kind: SqlType) -> int:
    return DEFAULT_SCALE if kind.precision is None else kind.scale or 0


def _name(text: str) -> str:
    """A valid name in Avro."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", text)
    return name if name and not name[0].isdigit() else f"_{name}"


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise error(
            "CONNECTOR_OPTION",
            f'Avro can\'t have a field "{name}"',
            hint="Names are of letters, digits and _: rename the column by AS.",
        )


class AvroWriter:
    """Writes records with the newest schema of the subject. If the subject has no schema, one is derived from the
    columns and registered. A writer's schema never changes.

    whole: whether the value is the only column itself, not a record with this field; NULL has no payload. schema: the
    schema to register instead of a derived one.
    """

    def __init__(
        self,
        columns: Schema,
        options: Mapping[str, str],
        topic: str,
        part: Part,
        *,
        whole: bool = False,
        schema: dict[str, Any] | None = None,
    ) -> None:
        registry = open_registry(options)
        if registry is None:
            raise error("CONNECTOR_OPTION", "ENCODE AVRO needs the option schema.registry")
        self._registry: Registry = registry
        self._columns = columns
        asked = options.get("message" if part == "value" else "key.message")
        self._named = bool(asked)
        self._record = asked or _name(f"{topic}_{part}")
        self._subject = subject_of(topic, part, options, asked)
        self._header: bytes | None = None
        self._encode: Callable[[pa.Table], pa.BinaryArray] | None = None
        self._whole = whole
        self._schema = schema
        if not whole and schema is None:
            derived_schema(columns, self._record)

    def write(self, rows: pa.Table) -> pa.BinaryArray:
        name = self._columns[0].name
        if not self._whole or not rows.column(name).null_count:
            return self._write(rows)
        there = np.flatnonzero(rows.column(name).is_valid().to_numpy())
        return spread(self._write(rows.take(pa.array(there))), there, len(rows))

    def _write(self, rows: pa.Table) -> pa.BinaryArray:
        if self._encode is None or self._header is None:
            self._connect()
        assert self._encode is not None
        assert self._header is not None
        return concatenated([self._header, self._encode(rows)])

    def _connect(self) -> None:
        """Loads or registers the schema. Raises OSError if the registry is unavailable, CONNECTOR_OPTION if its schema
        doesn't fit the columns.
        """
        newest = self._registry.newest(self._subject)
        if newest is None:
            space, _, name = self._record.rpartition(".")
            schema = self._derived(name)
            if space and isinstance(schema, dict):
                schema["namespace"] = space
            id_ = self._registry.register(self._subject, "AVRO", json.dumps(schema))
        elif newest.kind != "AVRO":
            raise error("CONNECTOR_OPTION", f'the schema of the subject "{self._subject}" is {newest.kind}, not AVRO')
        else:
            id_, schema = newest.id, json.loads(newest.text)
        self._encode = record_encoder(self._columns, schema)
        self._header = b"\0" + id_.to_bytes(4, "big")

    def _derived(self, name: str) -> Any:
        if self._schema is not None:
            return {**self._schema, "name": name} if self._named else self._schema
        return _derived(self._columns[0].type, name) if self._whole else derived_schema(self._columns, name)


def record_encoder(columns: Schema, schema: Any) -> Callable[[pa.Table], pa.BinaryArray]:
    """Writes rows of `columns` as records of an Avro schema (parsed JSON).

    A schema that is not a record is for the only column. Raises CONNECTOR_OPTION if the schema doesn't fit the columns.
    """
    named: dict[str, Any] = {}
    space = ""
    if isinstance(schema, dict) and schema.get("type") == "record":
        encode = _record(columns, schema, named, space)

        def write(rows: pa.Table) -> pa.BinaryArray:
            arrays = [one_array(rows.column(c.name)) for c in columns]
            return encode(arrays, len(rows))

        return write
    if len(columns) != 1:
        raise error("CONNECTOR_OPTION", f"the schema is no record, and there are {len(columns)} columns")
    (column,) = columns
    single = _value(column.type, schema, column.name, named, space)
    return lambda rows: single(one_array(rows.column(column.name)))


def _record(
    columns: Schema, schema: Mapping[str, Any], named: dict[str, Any], space: str
) -> Callable[[list[pa.Array], int], pa.BinaryArray]:
    """Writes the arrays of the columns as records."""
    space = _remember(schema, named, space)
    by_name = {c.name: i for i, c in enumerate(columns)}
    fields: list[tuple[int, Encode] | bytes] = []
    for field in schema["fields"]:
        place = by_name.pop(field["name"], None)
        if place is not None:
            fields.append((place, _value(columns[place].type, field["type"], field["name"], named, space)))
            continue
        union = field["type"]
        if not isinstance(union, list) or "null" not in union:
            raise _refused(field["name"], "there is no such column, and the schema wants a value")
        fields.append(bytes([2 * union.index("null")]))
    if by_name:
        raise _refused(next(iter(by_name)), "the schema has no such field")

    def write(arrays: list[pa.Array], rows: int) -> pa.BinaryArray:
        parts = [f if isinstance(f, bytes) else f[1](arrays[f[0]]) for f in fields]
        if not any(isinstance(p, pa.Array) for p in parts):
            return pa.array([b"".join(parts)] * rows, pa.binary())
        return concatenated(parts)

    return write


def _remember(schema: Mapping[str, Any], named: dict[str, Any], space: str) -> str:
    """Stores a named type for later references; returns the namespace inside it."""
    name, space = schema["name"], schema.get("namespace", space)
    if "." in name:
        space, _, name = name.rpartition(".")
    named[f"{space}.{name}" if space else name] = schema
    return space


def _value(kind: SqlType, schema: Any, path: str, named: dict[str, Any], space: str) -> Encode:
    """A writer of a column, with NULLs if the schema allows them."""
    if isinstance(schema, list):
        rest = [s for s in schema if s != "null"]
        if len(rest) != 1 or len(schema) > 2:
            raise _refused(path, f"a union of {len(schema)} types can't be written")
        inner = _plain(kind, rest[0], path, named, space)
        if len(schema) == 1:
            return lambda column: with_nulls(_not_null(column, path), inner, b"\0", b"")
        null, value = (bytes([2 * i]) for i in (schema.index("null"), schema.index(rest[0])))
        return lambda column: with_nulls(column, inner, value, null)
    inner = _plain(kind, schema, path, named, space)
    return lambda column: inner(_not_null(column, path))


def _not_null(column: pa.Array, path: str) -> pa.Array:
    if column.null_count:
        raise error("INVALID_VALUE", f'"{path}" is NULL, which its Avro schema doesn\'t take')
    return column


def _plain(kind: SqlType, schema: Any, path: str, named: dict[str, Any], space: str) -> Encode:
    """Writes a column without NULLs."""
    if isinstance(schema, str) and schema not in _PRIMITIVE:
        schema = named.get(schema, named.get(f"{space}.{schema}", schema))
    of = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(of, (dict, list)):
        return _plain(kind, of, path, named, space)
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    found: Encode | None = None
    if kind.name == "struct" and of == "record":
        return _struct(kind, schema, named, space)
    if kind.element is not None and of == "array":
        items = _value(kind.element, schema["items"], f"{path}[]", named, space)
        return lambda column: _array(column, items)
    if kind.name == "numeric":
        found = _decimal(kind, of, logical, schema, path)
    elif of in ("int", "long"):
        found = _integer(kind, of, logical)
    elif of == "string":
        found = _string(kind)
    elif (kind.name, of) in (("varchar", "bytes"), ("bytea", "bytes")):
        found = _lengthed
    elif (kind.name, of) == ("boolean", "boolean"):
        found = _boolean
    elif (kind.name, of) == ("real", "float"):
        found = partial(reals, form="<f4")
    elif kind.is_float and of == "double":
        found = partial(reals, form="<f8")
    elif (kind.name, of, logical) == ("interval", "fixed", "duration"):
        found = partial(_duration, path=path)
    elif (kind.name, of) == ("varchar", "enum"):
        found = partial(_enum, symbols=schema["symbols"], path=path)
    if found is None:
        shown = json.dumps(schema) if isinstance(schema, dict) else of
        raise _refused(path, f"{kind.sql} can't be written as {shown}")
    return found


def _refused(path: str, why: str) -> Error:
    return error("CONNECTOR_OPTION", f'the Avro schema does not take "{path}": {why}')


def _struct(kind: SqlType, schema: Any, named: dict[str, Any], space: str) -> Encode:
    encode = _record(tuple(Field(n, t) for n, t in kind.fields), schema, named, space)
    return lambda column: encode([column.field(i) for i in range(len(kind.fields))], len(column))


def _array(column: pa.ListArray, items: Encode) -> pa.BinaryArray:
    """A writer of arrays as one block: the number of items, the items, and 0 for the end. An empty array is only the
    end.
    """
    values, offsets = list_parts(column)
    counts = np.diff(offsets).astype(np.int64)
    blocks = concatenated([varints(zigzag(counts)), gathered(items(values), offsets), b"\0"])
    return pc.if_else(pa.array(counts == 0), pa.scalar(b"\0", pa.binary()), blocks)


def _integer(kind: SqlType, of: str, logical: str | None) -> Encode | None:
    divisor = 1
    if kind.is_integer:
        if kind.name == "bigint" and of == "int":
            return None
    elif kind.name == "date":
        if (of, logical) != ("int", "date"):
            return None
    elif kind.name == "time":
        divisor = {("int", "time-millis"): 1000, ("long", "time-micros"): 1}.get((of, logical or ""), 0)
    elif kind.name in ("timestamp", "timestamptz") and of == "long":
        prefix = "local-timestamp" if kind.name == "timestamp" else "timestamp"
        divisor = {f"{prefix}-millis": 1000, f"{prefix}-micros": 1}.get(logical or "", 0)
    else:
        return None
    if not divisor:
        return None
    return lambda column: varints(zigzag(numbers_of(column) // divisor))


def _string(kind: SqlType) -> Encode | None:
    if kind.name in ("varchar", "jsonb"):
        return _lengthed
    if kind.name == "interval":
        return lambda column: _lengthed(evaluate_text([column], interval_text("t0")))
    return None


def _lengthed(column: pa.Array) -> pa.BinaryArray:
    return concatenated([varints(zigzag(lengths_of(column))), column.cast(pa.binary())])


def _boolean(column: pa.Array) -> pa.BinaryArray:
    return fixed(column.cast(pa.uint8()).to_numpy(zero_copy_only=False))


def _decimal(kind: SqlType, of: str, logical: str | None, schema: Any, path: str) -> Encode | None:
    if of == "string":
        return lambda column: _lengthed(evaluate_text([column], numeric_text("t0", kind)))
    if logical != "decimal" or of not in ("bytes", "fixed"):
        return None
    precision, scale = int(schema["precision"]), int(schema.get("scale", 0))
    size = int(schema.get("size", 0))
    precision = min(precision, DEFAULT_PRECISION)

    def write(column: pa.Array) -> pa.BinaryArray:
        try:
            scaled = column.cast(pa.decimal128(precision, scale))
        except pa.ArrowInvalid as cause:
            detail = f"The schema has decimals of {precision} digits, {scale} after the point."
            raise error("INVALID_VALUE", f'a number in "{path}" does not fit its Avro schema', detail=detail) from cause
        numbers = big_endian(scaled)
        if of == "bytes":
            short = shortest(numbers)
            return concatenated([varints(zigzag(lengths_of(short))), short])
        return fixed(_resized(numbers, size, path))

    return write


def _resized(numbers: np.ndarray, size: int, path: str) -> np.ndarray:
    """Numbers in big-endian two's complement with `size` instead of 16 bytes."""
    sign = np.where(numbers[:, :1] & 0x80, 0xFF, 0).astype(np.uint8)
    if size >= 16:
        return np.hstack([np.repeat(sign, size - 16, axis=1), numbers])
    cut, kept = numbers[:, : 16 - size], numbers[:, 16 - size :]
    if (cut != sign).any() or ((kept[:, :1] ^ sign) & 0x80).any():
        raise error("INVALID_VALUE", f'a number in "{path}" does not fit in {size} bytes of its Avro schema')
    return kept


def _duration(column: pa.Array, path: str) -> pa.BinaryArray:
    raw = np.frombuffer(column.buffers()[1], np.uint8, 16 * len(column), 16 * column.offset)
    parts = raw.view(np.dtype([("months", "<i4"), ("days", "<i4"), ("nanos", "<i8")]))
    numbers = np.column_stack([parts["months"].astype(np.int64), parts["days"], parts["nanos"] // 1_000_000])
    if ((numbers < 0) | (numbers >= _MOST_UNSIGNED)).any():
        raise error(
            "INVALID_VALUE", f'an interval in "{path}" has a negative part, which a duration of Avro can\'t have'
        )
    return fixed(numbers.astype("<u4"))


def _enum(column: pa.Array, symbols: list[str], path: str) -> pa.BinaryArray:
    places = pc.index_in(column, pa.array(symbols, pa.string()))
    if places.null_count:
        raise error("INVALID_VALUE", f'a text in "{path}" is none of the symbols of its Avro schema')
    return varints(zigzag(numbers_of(places)))
