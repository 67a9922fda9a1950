"""The contract of writers, which turn rows into bytes, one value for each row; and shared binary encodings.

Binary encodings don't support NULL: callers remove these rows first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import Error, did_you_mean, error
from watersmeet.formats.valuetexts import JsonStyle, evaluate, json_object, literal, one_array, plain_text
from watersmeet.values.packing import offsets
from watersmeet.values.types import Schema, SqlType


class Writer(Protocol):
    """Writes rows of its columns. Not thread-safe."""

    def write(self, rows: pa.Table) -> pa.BinaryArray:
        """One value for each row in order, which may be NULL. The columns of `rows` are found by name.

        Raises OSError while a system is unavailable, an `Error` for a row that can't be written.
        """


class SqlWriter:
    """Writes rows by a DuckDB expression over the columns, which are called t0, t1 …"""

    def __init__(self, columns: Schema, expression: str) -> None:
        self._names = [c.name for c in columns]
        self._expression = expression

    def write(self, rows: pa.Table) -> pa.BinaryArray:
        return evaluate_text([rows.column(n) for n in self._names], self._expression)


def evaluate_text(columns: Sequence[pa.ChunkedArray | pa.Array], expression: str) -> pa.BinaryArray:
    """The text of a DuckDB expression for each row, as bytes."""
    (text,) = evaluate(list(columns), [expression])
    return text.cast(pa.binary())


def places(columns: Schema) -> list[str]:
    """The names of the columns in the SQL of a `SqlWriter`."""
    return [f"t{i}" for i in range(len(columns))]


def json_writer(columns: Schema, style: JsonStyle) -> SqlWriter:
    """Writes an object with a member for each column."""
    return SqlWriter(columns, json_object(columns, places(columns), style))


def csv_writer(columns: Schema, delimiter: str = ",", null: str = "") -> SqlWriter:
    """Writes lines without their end: RFC 4180, with quotes where needed. NULL is the text `null`; an equal text is
    quoted.

    Raises CONNECTOR_OPTION unless the delimiter is one character.
    """
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise error("CONNECTOR_OPTION", "delimiter has to be one character, not a quote and not the end of a line")
    needs = literal('["\\r\\n' + re.escape(delimiter) + "]")
    fields = []
    for name, column in zip(places(columns), columns, strict=True):
        text = plain_text(name, column.type)
        quoted = f"""'"' || replace({text}, '"', '""') || '"'"""
        if column.type.name in ("varchar", "jsonb") or column.type.is_nested or delimiter in "-+.: 0123456789" or null:
            wanted = f"{text} = {literal(null)} OR regexp_matches({text}, {needs}) OR trim({text}) <> {text}"
            text = f"CASE WHEN {wanted} THEN {quoted} ELSE {text} END"
        fields.append(f"coalesce({text}, {literal(null)})")
    return SqlWriter(columns, f", {literal(delimiter)}, ".join(fields).join(("concat(", ")")))


def csv_header(columns: Schema, delimiter: str) -> bytes:
    """The line with the names of the columns."""
    names = pa.table({f"c{i}": pa.array([c.name]) for i, c in enumerate(columns)})
    plain = tuple(type(c)(f"c{i}", SqlType("varchar")) for i, c in enumerate(columns))
    line: bytes = csv_writer(plain, delimiter).write(names)[0].as_py()
    return line + b"\n"


#: The escapes of characters in TSV, with the backslash first.
_ESCAPED: Final = (("'\\'", "'\\\\'"), ("chr(9)", "'\\t'"), ("chr(10)", "'\\n'"), ("chr(13)", "'\\r'"))


def tsv_writer(columns: Schema) -> SqlWriter:
    r"""Writes lines without their end: fields between tabs, with \t, \n, \r and \\ for these characters; \N is NULL."""
    fields = []
    for name, column in zip(places(columns), columns, strict=True):
        text = plain_text(name, column.type)
        is_free = column.type.name in ("varchar", "jsonb") or column.type.is_nested
        for character, escaped in _ESCAPED if is_free else ():
            text = f"replace({text}, {character}, {escaped})"
        fields.append(f"coalesce({text}, '\\N')")
    return SqlWriter(columns, ", chr(9), ".join(fields).join(("concat(", ")")))


#: Text without braces, the name of a column in braces, or a brace.
_TEMPLATE: Final = re.compile(r"((?:[^\\{}]|\\(?![{}]))+)|\{([^{}]+)\}|(\\?[{}])")


def template_writer(columns: Schema, options: Mapping[str, str], name: str) -> SqlWriter:
    r"""Writes texts with the values of columns. name: the option with the template, such as `user:{id}`; `\{` and
    `\}` are braces.

    RisingWave, "Sink data from RisingWave to Redis". Raises CONNECTOR_OPTION, UNDEFINED_COLUMN.
    """
    template = options.get(name)
    if template is None:
        raise error("CONNECTOR_OPTION", f"ENCODE TEMPLATE needs the option {name}", hint=f"{name} = 'user:{{id}}'.")
    by_name = {c.name: (f"t{i}", c.type) for i, c in enumerate(columns)}
    parts = []
    for text, column, brace in _TEMPLATE.findall(template):
        if column:
            if column not in by_name:
                raise error(
                    "UNDEFINED_COLUMN",
                    f'option {name} names column "{column}", which is not written',
                    hint=did_you_mean(column, by_name) or f"It can name {', '.join(by_name)}.",
                )
            parts.append(f"coalesce({plain_text(*by_name[column])}, 'NULL')")
        elif brace in ("{", "}"):
            raise error("CONNECTOR_OPTION", f"option {name} has a {brace} without its other brace")
        else:
            parts.append(literal(text or brace[1:]))
    return SqlWriter(columns, f"concat({', '.join(parts) or literal('')})")


def string_writer(columns: Schema) -> SqlWriter:
    """Writes the only column as text. Raises CONNECTOR_OPTION for several columns."""
    return SqlWriter(columns, plain_text("t0", _only(columns, "STRING")))


class OneColumn:
    """Writes the only column by a function of its array."""

    def __init__(self, columns: Schema, write: Callable[[pa.Array], pa.BinaryArray]) -> None:
        self._name = columns[0].name
        self._write = write

    def write(self, rows: pa.Table) -> pa.BinaryArray:
        return self._write(one_array(rows.column(self._name)))


def bytes_writer(columns: Schema) -> OneColumn:
    """Writes the only column, bytea or text, unchanged."""
    _only(columns, "BYTES", "bytea", "varchar")
    return OneColumn(columns, lambda column: column.cast(pa.binary()))


def integer_writer(columns: Schema, width: int) -> OneColumn:
    """Writes the only column, an integer, in `width` bytes, big-endian, like Kafka's own serializers."""
    name = "INT" if width == 4 else "LONG"
    _only(columns, name, *(("smallint", "integer", "bigint")[: 2 if width == 4 else 3]))
    return OneColumn(columns, lambda column: _big_endian(column, width))


def _only(columns: Schema, encoding: str, *types: str) -> SqlType:
    if len(columns) != 1:
        names = ", ".join(f'"{c.name}"' for c in columns)
        raise error(
            "CONNECTOR_OPTION",
            f"{encoding} encodes one column, here are {len(columns)}",
            detail=f"The columns are {names}." if names else None,
        )
    (column,) = columns
    if types and column.type.name not in types:
        raise _wrong_type(encoding, column.name, column.type.sql, types)
    return column.type


def _wrong_type(encoding: str, name: str, kind: str, types: Sequence[str]) -> Error:
    return error(
        "CONNECTOR_OPTION",
        f'{encoding} can\'t encode column "{name}" of type {kind}',
        detail=f"It encodes {' and '.join(types)}.",
    )


def _big_endian(column: pa.Array, width: int) -> pa.BinaryArray:
    numbers = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    data = pa.py_buffer(numbers.astype(f">i{width}").tobytes())
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(column), [None, data])
    values = fixed.cast(pa.binary())
    if not column.null_count:
        return values
    return pc.if_else(column.is_valid(), values, pa.scalar(None, pa.binary()))


def concatenated(parts: Sequence[bytes | pa.Array]) -> pa.BinaryArray:
    """Constants and columns (at least one) concatenated row by row; NULL if a column is NULL."""
    known = [pa.scalar(p, pa.binary()) if isinstance(p, bytes) else p for p in parts]
    return pc.binary_join_element_wise(*known, pa.scalar(b"", pa.binary()))


def spread(values: pa.Array, places: npt.NDArray[np.int64], length: int) -> pa.Array:
    """An array of `length` with `values` at `places`, and NULL elsewhere."""
    take = np.full(length, -1, np.int64)
    take[places] = np.arange(len(values))
    return values.take(pa.array(take, mask=take < 0))


def value_bytes(values: pa.BinaryArray) -> memoryview:
    """All values concatenated."""
    _, offsets, data = values.buffers()
    ends = memoryview(offsets).cast("i")[values.offset : values.offset + len(values) + 1]
    return memoryview(data if data is not None else b"")[ends[0] : ends[-1]]


#: Writes a column without NULLs.
Encode = Callable[[pa.Array], pa.BinaryArray]


def numbers_of(column: pa.Array) -> npt.NDArray[np.int64]:
    """The integers of whole numbers, and of types that Arrow stores as integers: days, milliseconds, microseconds."""
    if pa.types.is_date32(column.type):
        column = column.view(pa.int32())
    elif pa.types.is_time64(column.type) or pa.types.is_timestamp(column.type):
        column = column.view(pa.int64())
    found: npt.NDArray[np.int64] = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return found


def row_codes(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Equal numbers for equal rows. NULL equals NULL, and NaN equals NaN."""
    codes = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        encoded = one_array(column).dictionary_encode(null_encoding="encode")
        own = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        _, codes = np.unique(codes * (len(encoded.dictionary) + 1) + own, return_inverse=True)
    return codes


def reals(column: pa.Array, form: str) -> pa.BinaryArray:
    """Floating-point numbers as an array of a NumPy type."""
    return fixed(column.to_numpy(zero_copy_only=False).astype(form))


def zigzag(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """0, -1, 1, -2 … as 0, 1, 2, 3 …"""
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)


def varints(numbers: npt.NDArray[np.uint64]) -> pa.BinaryArray:
    """Numbers with seven bits per byte, lowest bits first; all bytes but the last have the eighth bit set."""
    lengths = np.ones(len(numbers), np.int32)
    for bits in range(7, 64, 7):
        lengths += numbers >= np.uint64(1 << bits)
    offsets = np.zeros(len(numbers) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    data = np.empty(offsets[-1], np.uint8)
    for k in range(int(lengths.max(initial=0))):
        longer = np.flatnonzero(lengths > k)
        byte = (numbers[longer] >> np.uint64(7 * k)).astype(np.uint8) & 0x7F
        data[offsets[longer] + k] = byte | np.where(lengths[longer] > k + 1, 0x80, 0).astype(np.uint8)
    return binary(offsets, data)


def binary(offsets: npt.NDArray[np.int32], data: npt.NDArray[np.uint8]) -> pa.BinaryArray:
    """The bytes between the offsets."""
    return pa.BinaryArray.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def fixed(values: npt.NDArray[np.generic]) -> pa.BinaryArray:
    """The bytes of each value in memory, or of each row of a two-dimensional array."""
    width = values.dtype.itemsize * (values.shape[1] if values.ndim > 1 else 1)
    offsets = np.arange(len(values) + 1, dtype=np.int32) * width
    return binary(offsets.astype(np.int32), np.ascontiguousarray(values).view(np.uint8).ravel())


def lengths_of(column: pa.Array) -> npt.NDArray[np.int64]:
    """The bytes of each value."""
    found: npt.NDArray[np.int64] = pc.binary_length(column).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return found


def big_endian(column: pa.Decimal128Array) -> npt.NDArray[np.uint8]:
    """The unscaled numbers of decimals, as 16 bytes each, big-endian."""
    raw = np.frombuffer(column.buffers()[1], np.uint8, 16 * len(column), 16 * column.offset)
    return raw.reshape(-1, 16)[:, ::-1]


def shortest(numbers: npt.NDArray[np.uint8]) -> pa.BinaryArray:
    """Big-endian two's complement numbers without redundant leading bytes."""
    sign = np.where(numbers[:, 0] & 0x80, 0xFF, 0).astype(np.uint8)
    lengths = np.full(len(numbers), numbers.shape[1], np.int32)
    open_ = np.ones(len(numbers), bool)
    for i in range(numbers.shape[1] - 1):
        open_ &= (numbers[:, i] == sign) & ((numbers[:, i + 1] ^ sign) & 0x80 == 0)
        lengths -= open_
    offsets = np.zeros(len(numbers) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    kept = np.arange(numbers.shape[1]) >= numbers.shape[1] - lengths[:, None]
    return binary(offsets, numbers[kept])


def gathered(items: pa.BinaryArray, bounds: npt.NDArray[np.int32]) -> pa.BinaryArray:
    """The concatenation of consecutive items: value i consists of the items from bounds[i] to bounds[i + 1]."""
    bytes_at = offsets(items)[bounds].astype(np.int32)
    return pa.BinaryArray.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bytes_at), items.buffers()[2]])


def list_parts(column: pa.ListArray) -> tuple[pa.Array, npt.NDArray[np.int32]]:
    """The items of all lists, and the offsets of each list."""
    offsets = np.asarray(column.offsets)
    return column.values.slice(offsets[0], offsets[-1] - offsets[0]), (offsets - offsets[0]).astype(np.int32)


def with_nulls(column: pa.Array, encode: Encode, before: bytes, null: bytes) -> pa.BinaryArray:
    """`before` and the value, or `null`."""
    if not column.null_count:
        values = encode(column)
        return concatenated([before, values]) if before else values
    valid = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    values = encode(column.drop_null())
    values = concatenated([before, values]) if before else values
    return pc.fill_null(spread(values, valid, len(column)), pa.scalar(null, pa.binary()))
