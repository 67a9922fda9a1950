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
from watersmeet.server.buffers import BINARY, Rows
from watersmeet.types import Schema

#: So many rows are encoded, and sent, at once.
BATCH_ROWS: Final = 1 << 16


def data_rows(table: pa.Table, columns: Schema, formats: Sequence[int]) -> Iterator[memoryview]:
    """The DataRow messages of all rows of `table`, batch by batch. formats: 0 text, 1 binary, for each column."""
    for start in range(0, table.num_rows, BATCH_ROWS):
        batch = table.slice(start, BATCH_ROWS)
        fields = list(_fields(batch, columns, formats))
        lengths = np.full(batch.num_rows, 6 + 4 * len(columns), np.int64)
        for field in fields:
            lengths += _sizes_of(field)
        rows = Rows(batch.num_rows)
        rows.put(np.full(batch.num_rows, b"D", "S1"))
        rows.put(lengths.astype(">i4"))
        rows.put(np.full(batch.num_rows, len(columns), ">u2"))
        for field in fields:
            rows.put_sized(field)
        yield rows.joined()


def binary_copy_rows(table: pa.Table, columns: Schema) -> Iterator[pa.Array]:
    """The rows of COPY … (FORMAT binary), batch by batch, without its header and its end."""
    for start in range(0, table.num_rows, BATCH_ROWS):
        batch = table.slice(start, BATCH_ROWS)
        rows = Rows(batch.num_rows)
        rows.put(np.full(batch.num_rows, len(columns), ">u2"))
        for field in _fields(batch, columns, [1] * len(columns)):
            rows.put_sized(field)
        yield rows.array()


def text_columns(table: pa.Table, columns: Schema) -> list[pa.Array]:
    """The texts of all values, column by column, as large strings."""
    return [textvalues.texts(_one(table.column(i)), c.type) for i, c in enumerate(columns)]


def _fields(batch: pa.Table, columns: Schema, formats: Sequence[int]) -> Iterator[pa.Array | np.ndarray]:
    """The bytes of the values of each column: as numpy has them where all have one width and none is NULL."""
    for i, (column, form) in enumerate(zip(columns, formats, strict=True)):
        values = _one(batch.column(i))
        if not form:
            yield textvalues.texts(values, column.type).cast(BINARY)
        elif not values.null_count and (found := binaryvalues.fixed_values(values, column.type)) is not None:
            yield found
        else:
            yield binaryvalues.encoded(values, column.type).cast(BINARY)


def _one(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array that begins at its buffers' start."""
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _sizes_of(field: pa.Array | np.ndarray) -> np.ndarray | int:
    """How many bytes the values of a field have, 0 for NULL."""
    if isinstance(field, np.ndarray):
        return field.dtype.itemsize
    found: np.ndarray = pc.fill_null(pc.binary_length(field), 0).to_numpy(zero_copy_only=False)
    return found


def copy_header() -> bytes:
    """What a binary COPY begins with."""
    return b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)


def copy_end() -> bytes:
    """What a binary COPY ends with."""
    return struct.pack(">h", -1)
