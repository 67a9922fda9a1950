"""Columns to DataRow messages and rows of COPY, by Arrow's kernels: no row is an object of Python.

The bytes of all rows are one buffer: header, and for each column the length and the value, joined element by element.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.server import valuebytes
from watersmeet.values.types import Schema

BINARY: Final = pa.large_binary()
NOTHING: Final = pa.scalar(b"", BINARY)


class Rows:
    """The bytes of rows, part by part from left to right. What has a fixed width is written by numpy, the rest, and all
    together, by one kernel of Arrow.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._fixed: list[np.ndarray] = []
        self._parts: list[pa.Array] = []

    def put(self, values: np.ndarray) -> None:
        """A part of fixed width: the bytes of each element."""
        self._fixed.append(values)

    def put_sized(self, values: pa.Array | np.ndarray) -> None:
        """Values (large binary, or of a fixed width) with their lengths in front; NULL is the length -1."""
        if isinstance(values, np.ndarray):
            self.put(np.full(self.count, values.dtype.itemsize, ">i4"))
            self.put(values)
            return
        lengths = pc.fill_null(pc.binary_length(values), -1).to_numpy(zero_copy_only=False)
        self.put(lengths.astype(">i4"))
        self._flush()
        self._parts.append(values)

    def array(self) -> pa.Array:
        """The rows as large binary."""
        self._flush()
        if len(self._parts) == 1 and not self._parts[0].null_count:
            return self._parts[0]
        return pc.binary_join_element_wise(*self._parts, NOTHING, null_handling="replace", null_replacement=b"")

    def joined(self) -> memoryview:
        """The bytes of all rows, one after the other."""
        return contents(self.array())

    def _flush(self) -> None:
        if self._fixed:
            kind = np.dtype([(f"f{i}", part.dtype) for i, part in enumerate(self._fixed)])
            record = np.empty(self.count, kind)
            for i, part in enumerate(self._fixed):
                record[f"f{i}"] = part
            self._fixed = []
            self._parts.append(fixed(record))


def contents(values: pa.Array) -> memoryview:
    """The bytes of values (large binary), one after the other."""
    if not len(values):
        return memoryview(b"")
    offsets = np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + len(values) + 1]
    return memoryview(values.buffers()[2]).cast("B")[offsets[0] : offsets[-1]]


def fixed(values: np.ndarray) -> pa.Array:
    """The bytes of each element of an array, as large binary."""
    offsets = _offsets(len(values), values.dtype.itemsize)
    return pa.Array.from_buffers(BINARY, len(values), [None, offsets, pa.py_buffer(np.ascontiguousarray(values))])


@lru_cache(maxsize=64)
def _offsets(count: int, width: int) -> pa.Buffer:
    return pa.py_buffer(np.arange(count + 1, dtype=np.int64) * width)


def sized(values: pa.Array) -> pa.Array:
    """Each value (large binary) with its length in front; NULL is the length -1."""
    rows = Rows(len(values))
    rows.put_sized(values)
    return rows.array()


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
    return [valuebytes.texts(_one(table.column(i)), c.type) for i, c in enumerate(columns)]


def _fields(batch: pa.Table, columns: Schema, formats: Sequence[int]) -> Iterator[pa.Array | np.ndarray]:
    """The bytes of the values of each column: as numpy has them where all have one width and none is NULL."""
    for i, (column, form) in enumerate(zip(columns, formats, strict=True)):
        values = _one(batch.column(i))
        if not form:
            yield valuebytes.texts(values, column.type).cast(BINARY)
        elif not values.null_count and (found := valuebytes.fixed_values(values, column.type)) is not None:
            yield found
        else:
            yield valuebytes.encoded(values, column.type).cast(BINARY)


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
