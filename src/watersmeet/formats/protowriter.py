"""Writes rows as messages of Protocol Buffers, built column by column.

The fields of a message are concatenated, each with its number; absent fields are not written. Source: Protocol Buffers,
"Encoding"; Confluent, "Wire format"; RisingWave, "Sink data to Kafka", PROTOBUF, for the field of each column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import Error, error
from watersmeet.formats.protoschema import (
    TIMESTAMP,
    ProtoField,
    ProtoMessage,
    ProtoSchema,
    from_text,
    protobuf_schema,
    wrapped_type,
)
from watersmeet.formats.registry import Part, open_registry, subject_of
from watersmeet.formats.valuetexts import one_array, plain_text
from watersmeet.formats.writers import (
    Encode,
    concatenated,
    evaluate_text,
    fixed,
    gathered,
    lengths_of,
    list_parts,
    numbers_of,
    reals,
    spread,
    varints,
    with_nulls,
    zigzag,
)
from watersmeet.values.types import Field, Schema, SqlType

_VARINT, _FIXED64, _SPAN, _FIXED32 = 0, 1, 2, 5
#: The least and the greatest value by type of an integer field.
_RANGES: Final = {
    **dict.fromkeys(("int32", "sint32", "sfixed32"), (-(2**31), 2**31 - 1)),
    **dict.fromkeys(("int64", "sint64", "sfixed64"), (-(2**63), 2**63 - 1)),
    **dict.fromkeys(("uint32", "fixed32"), (0, 2**32 - 1)),
    **dict.fromkeys(("uint64", "fixed64"), (0, 2**64 - 1)),
}
_GREATEST_NUMPY: Final = 2**63 - 1
_WORDS: Final = {"fixed64": "<u8", "sfixed64": "<i8", "fixed32": "<u4", "sfixed32": "<i4"}
_MILLION: Final = 1_000_000


class ProtobufWriter:
    """Writes messages of one type. If the options set a registry, they have its header and the newest schema of the
    subject, which never changes for a writer; else they have no header.

    Raises CONNECTOR_OPTION for columns without a fitting field, OSError if the schema is temporarily unavailable.
    """

    def __init__(self, columns: Schema, options: Mapping[str, str], topic: str, part: Part) -> None:
        self._columns, self._options, self._topic, self._part = columns, options, topic, part
        self._message = options.get("message" if part == "value" else "key.message")
        self._registry = open_registry(options)
        self._header = b""
        self._encode: Callable[[Sequence[pa.Array], int], pa.BinaryArray] | None = None
        self._without_null: frozenset[str] = frozenset()
        """The columns of a key in which NULL and the default of the type would be equal."""
        if self._registry is None:
            schema = protobuf_schema(options)
            self._take(schema, schema.message(self._message))

    def write(self, rows: pa.Table) -> pa.BinaryArray:
        if self._encode is None:
            self._connect()
        assert self._encode is not None
        arrays = [one_array(rows.column(c.name)) for c in self._columns]
        for column, array in zip(self._columns, arrays, strict=True):
            if column.name in self._without_null and array.null_count:
                raise error(
                    "DELIVERY_REFUSED",
                    f'a row has NULL in column "{column.name}" of its key, for which its message has no presence',
                    hint="Make the field optional in the schema of the key.",
                )
        written = self._encode(arrays, len(rows))
        return concatenated([self._header, written]) if self._header else written

    def _connect(self) -> None:
        assert self._registry is not None
        subject = subject_of(self._topic, self._part, self._options, self._message)
        newest = self._registry.newest(subject)
        if newest is None or newest.kind != "PROTOBUF":
            why = "has no schema" if newest is None else f"has a schema of {newest.kind}, not of PROTOBUF"
            raise error(
                "CONNECTOR_OPTION",
                f'the subject "{subject}" of the registry {why}',
                hint="Register the .proto file first: none is made of the columns.",
            )
        schema = from_text(newest, self._registry)
        message = schema.message(self._message)
        self._take(schema, message)
        self._header = b"\0" + newest.id.to_bytes(4, "big") + _path_bytes(schema, message)

    def _take(self, schema: ProtoSchema, message: ProtoMessage) -> None:
        self._encode = message_encoder(self._columns, schema, message)
        if self._part == "key":
            parts = {c.name: message.field(c.name) for c in self._columns}
            self._without_null = frozenset(n for n, part in parts.items() if part is not None and not part.has_presence)


def message_encoder(
    columns: Schema, schema: ProtoSchema, message: ProtoMessage, inside: str = ""
) -> Callable[[Sequence[pa.Array], int], pa.BinaryArray]:
    """Writes the arrays of the columns as messages; fields without a column are absent.

    Raises CONNECTOR_OPTION for columns without a fitting field.
    """
    fields = []
    for place, column in enumerate(columns):
        part = message.field(column.name)
        if part is None:
            raise _refused(inside + column.name, f'message "{message.name}" has no such field')
        fields.append((part.number, place, _field(column.type, part, schema, inside + column.name)))
    fields.sort(key=lambda f: f[0])

    def write(arrays: Sequence[pa.Array], rows: int) -> pa.BinaryArray:
        if not fields:
            return pa.array([b""] * rows, pa.binary())
        return concatenated([encode(arrays[place]) for _, place, encode in fields])

    return write


def _path_bytes(schema: ProtoSchema, message: ProtoMessage) -> bytes:
    """The path of the message in its schema: a zero byte for the first message, else its length and its indexes."""
    path = _path(schema, schema.top, message.name)
    if path == [0]:
        return b"\0"
    numbers = zigzag(np.array([len(path), *path], np.int64))
    return b"".join(varints(numbers).to_pylist())


def _path(schema: ProtoSchema, names: Sequence[str], wanted: str) -> list[int]:
    for place, name in enumerate(names):
        if name == wanted:
            return [place]
        if wanted.startswith(f"{name}."):
            return [place, *_path(schema, schema.messages[name].nested, wanted)]
    raise error("CONNECTOR_OPTION", f'message: "{wanted}" is in a file that the schema imports, not in the schema')


def _field(kind: SqlType, part: ProtoField, schema: ProtoSchema, path: str) -> Encode:
    """A writer of a column with the number of its field; b"" for an absent field."""
    if part.repeated:
        return _repeated(kind, part, schema, path)
    wire, encode = _single(kind, part, schema, path)
    tag = _tag(part.number, wire)
    if part.has_presence:
        return lambda column: with_nulls(column, encode, tag, b"")

    def write(column: pa.Array) -> pa.BinaryArray:
        """Writes no default, because an absent field has its default."""
        values = encode(column.drop_null())
        there = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        kept = ~_is_default(values, wire)
        written = spread(concatenated([tag, values.filter(pa.array(kept))]), there[kept], len(column))
        return pc.fill_null(written, pa.scalar(b"", pa.binary()))

    return write


def _is_default(values: pa.BinaryArray, wire: int) -> npt.NDArray[np.bool_]:
    """The mask of encoded values that are zero, false or empty."""
    zero = bytes({_FIXED64: 8, _FIXED32: 4}.get(wire, 1))
    found: npt.NDArray[np.bool_] = pc.equal(values, pa.scalar(zero, pa.binary())).to_numpy(zero_copy_only=False)
    return found


def _repeated(kind: SqlType, part: ProtoField, schema: ProtoSchema, path: str) -> Encode:
    if kind.element is None:
        raise _refused(path, f"{kind.sql} can't be written as a repeated field")
    wire, encode = _single(kind.element, part, schema, path)
    tag = _tag(part.number, wire)

    def each(column: pa.ListArray) -> pa.BinaryArray:
        """The number of the field before each item."""
        items, offsets = list_parts(column)
        return gathered(concatenated([tag, encode(_without_null(items, path))]), offsets)

    def packed(column: pa.ListArray) -> pa.BinaryArray:
        """All numbers after a single tag of the field; nothing if there are no numbers."""
        items, offsets = list_parts(column)
        spans = gathered(encode(_without_null(items, path)), offsets)
        written = concatenated([_tag(part.number, _SPAN), _spanned(spans)])
        return pc.if_else(pa.array(np.diff(offsets) > 0), written, pa.scalar(b"", pa.binary()))

    write = each if wire == _SPAN else packed
    return lambda column: with_nulls(column, write, b"", b"")


def _without_null(items: pa.Array, path: str) -> pa.Array:
    if items.null_count:
        raise error("INVALID_VALUE", f'"{path}" has a NULL in it, which a repeated field can\'t have')
    return items


def _tag(number: int, wire: int) -> bytes:
    return varints(np.array([number << 3 | wire], np.uint64))[0].as_py()  # type: ignore[no-any-return]


def _single(kind: SqlType, part: ProtoField, schema: ProtoSchema, path: str) -> tuple[int, Encode]:
    """The wire type, and the writer of a column without NULLs."""
    if part.type == "message":
        return _SPAN, _message(kind, part.named, schema, path)
    found: tuple[int, Encode] | None = None
    if part.type in _RANGES and (kind.is_integer or (kind.name == "numeric" and not kind.arrow.scale)):
        found = _integer(part.type, path)
    elif (kind.name, part.type) == ("boolean", "bool"):
        found = _VARINT, lambda column: fixed(column.cast(pa.uint8()).to_numpy(zero_copy_only=False))
    elif kind.is_float and part.type == "double":
        found = _FIXED64, partial(reals, form="<f8")
    elif (kind.name, part.type) == ("real", "float"):
        found = _FIXED32, partial(reals, form="<f4")
    elif part.type == "bytes" and kind.name in ("bytea", "varchar"):
        found = _SPAN, lambda column: _spanned(column.cast(pa.binary()))
    elif part.type == "string" and kind.name != "bytea" and not kind.is_nested:
        text = plain_text("t0", kind)
        found = _SPAN, lambda column: _spanned(evaluate_text([column], text))
        if kind.name == "varchar":
            found = _SPAN, lambda column: _spanned(column.cast(pa.binary()))
    elif part.type == "enum" and kind.name == "varchar":
        found = _VARINT, partial(_enum, numbers={w: n for n, w in schema.enums[part.named].items()}, path=path)
    if found is None:
        raise _refused(path, f"{kind.sql} can't be written as {part.named or part.type}")
    return found


def _refused(path: str, why: str) -> Error:
    return error("CONNECTOR_OPTION", f'the schema of Protobuf does not take "{path}": {why}')


def _message(kind: SqlType, named: str, schema: ProtoSchema, path: str) -> Encode:
    if named == TIMESTAMP:
        if kind.name not in ("timestamp", "timestamptz"):
            raise _refused(path, f"{kind.sql} can't be written as {named}")
        return _timestamp
    wrapped = wrapped_type(named)
    if wrapped is not None:
        inner = _field(kind, ProtoField("value", 1, wrapped), schema, path)
        return lambda column: _spanned(inner(column))
    if kind.name != "struct" or named not in schema.messages or schema.messages[named].is_map_entry:
        raise _refused(path, f"{kind.sql} can't be written as {named.partition('@')[0]}")
    fields = tuple(Field(n, t) for n, t in kind.fields)
    encode = message_encoder(fields, schema, schema.messages[named], f"{path}.")
    return lambda column: _spanned(encode(column.flatten(), len(column)))


def _spanned(values: pa.BinaryArray) -> pa.BinaryArray:
    """Each value, preceded by its length."""
    return concatenated([varints(lengths_of(values).view(np.uint64)), values])


def _timestamp(column: pa.Array) -> pa.BinaryArray:
    """Seconds and nanoseconds since 1970 as fields 1 and 2; nanoseconds are never negative."""
    micros = numbers_of(column)
    seconds, nanos = np.floor_divide(micros, _MILLION), np.mod(micros, _MILLION) * 1000
    parts = []
    for number, values in ((1, seconds), (2, nanos)):
        written = concatenated([_tag(number, _VARINT), varints(values.view(np.uint64))])
        parts.append(pc.if_else(pa.array(values == 0), pa.scalar(b"", pa.binary()), written))
    return _spanned(concatenated(parts))


def _integer(of: str, path: str) -> tuple[int, Encode]:
    least, greatest = _RANGES[of]
    wide = greatest > _GREATEST_NUMPY

    def numbers(column: pa.Array) -> npt.NDArray[np.integer[Any]]:
        try:
            found: npt.NDArray[np.integer[Any]] = column.cast(pa.uint64() if wide else pa.int64()).to_numpy(
                zero_copy_only=False
            )
        except pa.ArrowInvalid as cause:
            raise _too_large(of, path) from cause
        if not wide and len(found) and (found.min() < least or found.max() > greatest):
            raise _too_large(of, path)
        return found

    if of in _WORDS:
        form = _WORDS[of]
        return (_FIXED64 if form.endswith("8") else _FIXED32), lambda column: fixed(numbers(column).astype(form))
    if of.startswith("sint"):
        return _VARINT, lambda column: varints(zigzag(numbers(column).astype(np.int64)))
    return _VARINT, lambda column: varints(np.ascontiguousarray(numbers(column)).view(np.uint64))


def _too_large(of: str, path: str) -> Error:
    return error("INVALID_VALUE", f'a number in "{path}" does not fit into {of} of its schema of Protobuf')


def _enum(column: pa.Array, numbers: Mapping[str, int], path: str) -> pa.BinaryArray:
    words = pa.array(list(numbers), pa.string())
    places = pc.index_in(column, words)
    if places.null_count:
        unknown = column.filter(places.is_null())[0].as_py()
        raise error("INVALID_VALUE", f'"{unknown}" in "{path}" is no word of its enum')
    values = np.array(list(numbers.values()), np.int64)[places.to_numpy(zero_copy_only=False)]
    return varints(values.view(np.uint64))
