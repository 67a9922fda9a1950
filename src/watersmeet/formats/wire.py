"""Columns as the bytes of binary formats, one value for each row: numbers of variable width, lengths, decimals.

Nothing here takes NULL: callers leave those rows out first.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.formats.writers import concatenated, spread

#: Writes a column without NULLs.
Encode = Callable[[pa.Array], pa.BinaryArray]


def numbers_of(column: pa.Array) -> npt.NDArray[np.int64]:
    """Whole numbers, and what Arrow keeps as such: days, milliseconds, microseconds."""
    if pa.types.is_date32(column.type):
        column = column.view(pa.int32())
    elif pa.types.is_time64(column.type) or pa.types.is_timestamp(column.type):
        column = column.view(pa.int64())
    found: npt.NDArray[np.int64] = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return found


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column in one piece."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def row_codes(rows: pa.Table) -> npt.NDArray[np.int64]:
    """The same number for equal rows. NULL equals NULL, and NaN equals NaN."""
    codes = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        encoded = one_array(column).dictionary_encode(null_encoding="encode")
        own = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        _, codes = np.unique(codes * (len(encoded.dictionary) + 1) + own, return_inverse=True)
    return codes


def reals(column: pa.Array, form: str) -> pa.BinaryArray:
    """Floating-point numbers in the form of that name of numpy's."""
    return fixed(column.to_numpy(zero_copy_only=False).astype(form))


def zigzag(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """0, -1, 1, -2 … as 0, 1, 2, 3 …"""
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)


def varints(numbers: npt.NDArray[np.uint64]) -> pa.BinaryArray:
    """Seven bits a byte, the lowest first; all but the last byte have the eighth."""
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
    """The bytes of each value as they are in memory; of each row, if there are two dimensions."""
    width = values.dtype.itemsize * (values.shape[1] if values.ndim > 1 else 1)
    offsets = np.arange(len(values) + 1, dtype=np.int32) * width
    return binary(offsets.astype(np.int32), np.ascontiguousarray(values).view(np.uint8).ravel())


def lengths_of(column: pa.Array) -> npt.NDArray[np.int64]:
    """How many bytes each value has."""
    found: npt.NDArray[np.int64] = pc.binary_length(column).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return found


def big_endian(column: pa.Decimal128Array) -> npt.NDArray[np.uint8]:
    """The unscaled numbers of decimals, as 16 bytes each, the highest first."""
    raw = np.frombuffer(column.buffers()[1], np.uint8, 16 * len(column), 16 * column.offset)
    return raw.reshape(-1, 16)[:, ::-1]


def shortest(numbers: npt.NDArray[np.uint8]) -> pa.BinaryArray:
    """Rows of big-endian two's complement without the leading bytes that only repeat the sign."""
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


def gathered(items: pa.BinaryArray, offsets: npt.NDArray[np.int32]) -> pa.BinaryArray:
    """Neighbouring items side by side: value i has the items from offsets[i] to offsets[i + 1]."""
    _, places, data = items.buffers()
    bytes_at = np.frombuffer(places, np.int32, len(items) + 1, 4 * items.offset)[offsets]
    return pa.BinaryArray.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(bytes_at.copy()), data])


def list_parts(column: pa.ListArray) -> tuple[pa.Array, npt.NDArray[np.int32]]:
    """(the items of all lists, the offsets of each list among them)."""
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
