"""Rows to bytes: one value for each row, whatever the message around it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import Error, error
from watersmeet.formats.scalars import evaluate
from watersmeet.formats.valuetexts import JsonStyle, json_object, literal, plain_text
from watersmeet.types import Schema, SqlType


class Writer(Protocol):
    """Writes rows of the columns it was made for. Not thread-safe."""

    def write(self, rows: pa.Table) -> pa.BinaryArray:
        """One value for each row, in their order; NULL where a row has none. The columns of `rows` are found by name.

        Raises OSError if it needs something that can't be had for now, an `Error` for a row that can't be written.
        """


class SqlWriter:
    """Writes by one expression of DuckDB over the columns, which it calls t0, t1 …"""

    def __init__(self, columns: Schema, expression: str) -> None:
        self._names = [c.name for c in columns]
        self._expression = expression

    def write(self, rows: pa.Table) -> pa.BinaryArray:
        return evaluate_text([rows.column(n) for n in self._names], self._expression)


def evaluate_text(columns: Sequence[pa.ChunkedArray | pa.Array], expression: str) -> pa.BinaryArray:
    """A text of DuckDB for each row, as bytes."""
    (text,) = evaluate(list(columns), [expression])
    return text.cast(pa.binary())


def places(columns: Schema) -> list[str]:
    """What the SQL of a `SqlWriter` calls the columns."""
    return [f"t{i}" for i in range(len(columns))]


def json_writer(columns: Schema, style: JsonStyle) -> SqlWriter:
    """Writes an object with a member for each column."""
    return SqlWriter(columns, json_object(columns, places(columns), style))


def csv_writer(columns: Schema, delimiter: str = ",", null: str = "") -> SqlWriter:
    """Writes lines without their end: RFC 4180, with quotes where they are needed. NULL is the text `null`; the same
    text that is no NULL has quotes.

    CONNECTOR_OPTION unless the delimiter is one character.
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


#: What is a character's text in a line of fields between tabs; the backslash first.
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


def string_writer(columns: Schema) -> SqlWriter:
    """Writes the only column as text. CONNECTOR_OPTION for several columns."""
    return SqlWriter(columns, plain_text("t0", _only(columns, "STRING")))


class OneColumn:
    """Writes the only column by a function of its array."""

    def __init__(self, columns: Schema, write: Callable[[pa.Array], pa.BinaryArray]) -> None:
        self._name = columns[0].name
        self._write = write

    def write(self, rows: pa.Table) -> pa.BinaryArray:
        column = rows.column(self._name)
        return self._write(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)


def bytes_writer(columns: Schema) -> OneColumn:
    """Writes the only column, bytea or text, as it is."""
    _only(columns, "BYTES", "bytea", "varchar")
    return OneColumn(columns, lambda column: column.cast(pa.binary()))


def integer_writer(columns: Schema, width: int) -> OneColumn:
    """Writes the only column, an integer, in `width` bytes, the highest first, as Kafka's own serializers do."""
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
    """Bytes side by side, row by row: constants and columns, of which at least one; NULL where a column is NULL."""
    known = [pa.scalar(p, pa.binary()) if isinstance(p, bytes) else p for p in parts]
    return pc.binary_join_element_wise(*known, pa.scalar(b"", pa.binary()))


def spread(values: pa.Array, places: npt.NDArray[np.int64], length: int) -> pa.Array:
    """An array of `length` that has `values` at `places`, and NULL elsewhere."""
    take = np.full(length, -1, np.int64)
    take[places] = np.arange(len(values))
    return values.take(pa.array(take, mask=take < 0))


def value_bytes(values: pa.BinaryArray) -> memoryview:
    """All values, one behind the other."""
    _, offsets, data = values.buffers()
    ends = memoryview(offsets).cast("i")[values.offset : values.offset + len(values) + 1]
    return memoryview(data if data is not None else b"")[ends[0] : ends[-1]]
