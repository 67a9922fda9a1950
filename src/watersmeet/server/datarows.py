"""Columns to the bytes of DataRow messages, and of rows of COPY: by Arrow's kernels, no row is an object of Python.

The bytes of all rows are one buffer: header, and for each column the length and the value, joined element by element.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.server import binaryvalues, textvalues
from watersmeet.server.buffers import BINARY, NOTHING, fixed, joined, sized
from watersmeet.types import Schema

#: So many rows are encoded, and sent, at once.
BATCH_ROWS: Final = 1 << 16


def data_rows(table: pa.Table, columns: Schema, formats: Sequence[int]) -> Iterator[bytes]:
    """The DataRow messages of all rows of `table`, batch by batch. formats: 0 text, 1 binary, for each column."""
    for start in range(0, table.num_rows, BATCH_ROWS):
        batch = table.slice(start, BATCH_ROWS)
        fields = _fields(batch, columns, formats)
        lengths = sum((_lengths_of(f) for f in fields), np.full(batch.num_rows, 6, np.int64))
        head = np.empty(batch.num_rows, np.dtype([("kind", "S1"), ("length", ">i4"), ("columns", ">u2")]))
        head["kind"], head["length"], head["columns"] = b"D", lengths, len(columns)
        yield joined([fixed(head), *fields])


def binary_copy_rows(table: pa.Table, columns: Schema) -> Iterator[pa.Array]:
    """The rows of COPY … (FORMAT binary), batch by batch, without its header and its end."""
    for start in range(0, table.num_rows, BATCH_ROWS):
        batch = table.slice(start, BATCH_ROWS)
        head = fixed(np.full(batch.num_rows, len(columns), ">u2"))
        fields = _fields(batch, columns, [1] * len(columns))
        yield pc.binary_join_element_wise(head, *fields, NOTHING)


def text_columns(table: pa.Table, columns: Schema) -> list[pa.Array]:
    """The texts of all values, column by column, as large strings."""
    return [textvalues.texts(_one(table.column(i)), c.type) for i, c in enumerate(columns)]


def _fields(batch: pa.Table, columns: Schema, formats: Sequence[int]) -> list[pa.Array]:
    fields = []
    for i, (column, form) in enumerate(zip(columns, formats, strict=True)):
        values = _one(batch.column(i))
        encoded = binaryvalues.encoded(values, column.type) if form else textvalues.texts(values, column.type)
        fields.append(sized(encoded.cast(BINARY)))
    return fields


def _one(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array that begins at its buffers' start."""
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _lengths_of(field: pa.Array) -> np.ndarray:
    found: np.ndarray = pc.binary_length(field).to_numpy(zero_copy_only=False)
    return found


def copy_header() -> bytes:
    """What a binary COPY begins with."""
    return b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)


def copy_end() -> bytes:
    """What a binary COPY ends with."""
    return struct.pack(">h", -1)
