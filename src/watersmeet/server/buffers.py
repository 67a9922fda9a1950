"""Values as bytes, element by element: fixed widths, lengths in front, one behind the other."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
