"""Where the bytes of an array's rows are."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import pyarrow as pa

from watersmeet.blobs import Ranges
from watersmeet.kernel.arrays import columns as col


def bytes_of(array: pa.Array, begins: col.Positions, ends: col.Positions, base: int) -> Generator[Ranges, None, None]:
    """Where the bytes of rows [begin, end) of an array are, from the address `base`: what can be told without reading
    any, then what can be told once these are here, and so on.
    """
    kind = array.type
    buffers = array.buffers()
    begins, ends = begins + array.offset, ends + array.offset
    wanted = []
    if buffers[0] is not None:
        wanted.append(_bits_of(buffers[0], begins, ends, 1, base))
    if col.is_bytes(kind) or col.is_list(kind):
        wide = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) or pa.types.is_large_list(kind)
        dtype = np.dtype("<i8" if wide else "<i4")
        yield np.concatenate([*wanted, _bits_of(buffers[1], begins, ends + 1, 8 * dtype.itemsize, base)])
        offsets = np.frombuffer(buffers[1], dtype, int(ends.max()) + 1)
        first, last = offsets[begins].astype(np.int64), offsets[ends].astype(np.int64)
        some = np.flatnonzero(first < last)
        if not len(some):
            return
        if col.is_list(kind):
            yield from bytes_of(array.values, first[some], last[some], base)
        else:
            yield _bits_of(buffers[2], first[some], last[some], 8, base)
        return
    if (
        pa.types.is_primitive(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_fixed_size_binary(kind)
        or col.is_interval(kind)
    ):
        wanted.append(_bits_of(buffers[1], begins, ends, kind.bit_width, base))
    else:  # structs and the like, of which there are few: all of it
        wanted = [np.array([[b.address, b.address + b.size]]) - base for b in buffers if b is not None]
    if wanted:
        yield np.concatenate(wanted)


def _bits_of(buffer: pa.Buffer, begins: col.Positions, ends: col.Positions, width: int, base: int) -> Ranges:
    """Where values of so many bits are."""
    found: Ranges = buffer.address - base + np.stack([begins * width // 8, -(-ends * width // 8)], axis=1)
    return found
