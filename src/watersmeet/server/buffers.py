"""Values as bytes, element by element: fixed widths, lengths in front, one behind the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

BINARY: Final = pa.large_binary()
NOTHING: Final = pa.scalar(b"", BINARY)


def joined(parts: Sequence[pa.Array]) -> bytes:
    """The bytes of all rows, one after the other."""
    found = pc.binary_join_element_wise(*parts, NOTHING, null_handling="replace", null_replacement=b"")
    offsets = np.frombuffer(found.buffers()[1], np.int64)[found.offset : found.offset + len(found) + 1]
    return memoryview(found.buffers()[2])[offsets[0] : offsets[-1]].tobytes() if len(found) else b""


def fixed(values: np.ndarray) -> pa.Array:
    """The bytes of each element of an array."""
    kind = pa.binary(values.dtype.itemsize)
    return pa.FixedSizeBinaryArray.from_buffers(kind, len(values), [None, pa.py_buffer(values)]).cast(BINARY)


def sized(values: pa.Array) -> pa.Array:
    """Each value (large binary) with its length in front; NULL is the length -1."""
    lengths = pc.fill_null(pc.binary_length(values), -1).to_numpy(zero_copy_only=False)
    return pc.binary_join_element_wise(
        fixed(lengths.astype(">i4")), values, NOTHING, null_handling="replace", null_replacement=b""
    )
