"""Columns in fewer bytes, for rows that are compressed and written, or sent. Numbers and times become differences from
the minimum, in as few bytes as possible; strings become their lengths and one buffer with the bytes of all.

Compression dominates the time of writing rows, in proportion to their bytes, and removes little of this redundancy
itself; and Spark's Java copies sent bytes several times. Packing takes one pass over each column.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_PACKED: Final = b"watersmeet.packed"
_SCHEMA: Final = b"watersmeet.schema"

#: Unsigned integer types by their number of bits.
_SIGNED: Final[dict[int, np.dtype[Any]]] = {16: np.dtype(np.int16), 32: np.dtype(np.int32), 64: np.dtype(np.int64)}
_UNSIGNED: Final = (np.dtype(np.uint8), np.dtype(np.uint16), np.dtype(np.uint32))


def pack_columns(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The rows in a batch whose schema describes the packing, and a batch of one row with the bytes of strings, if any.
    Other metadata of the schema is kept. The bytes of packed columns depend only on the rows; other columns are
    unchanged.
    """
    lows: dict[int, int] = {}
    texts: dict[int, pa.Buffer] = {}
    arrays = []
    for number, array in enumerate(batch.columns):
        found = array
        if _is_text(array.type):
            found, texts[number] = _lengths(array)
        elif (bounds := bounds_of(array)) is not None:
            low, high = bounds[0] or 0, bounds[1] or 0
            if (above := _above(array, low, high)) is not None:
                found, lows[number] = above, low
        arrays.append(found)
    layout = json.dumps({"lows": lows, "texts": list(texts)}).encode()
    metadata = {**(batch.schema.metadata or {}), _PACKED: layout, _SCHEMA: batch.schema.serialize().to_pybytes()}
    names = batch.schema.names
    head = pa.RecordBatch.from_arrays(arrays, names=names).replace_schema_metadata(metadata)
    if not texts:
        return [head]
    pieces = [pa.Array.from_buffers(pa.large_binary(), 1, [None, _ends(0, b.size), b]) for b in texts.values()]
    return [head, pa.RecordBatch.from_arrays(pieces, names=[names[i] for i in texts])]


class Layout(NamedTuple):
    """How a batch is packed. schema: that of its rows. lows: the minimum of the columns that are differences, by their
    position. texts: the columns of the second batch, as positions in the first; if there are none, there is no second
    batch.
    """

    schema: pa.Schema
    lows: dict[str, int]
    texts: list[int]


def packed_layout(schema: pa.Schema) -> Layout | None:
    """How a batch with this schema is packed; None if it is not from `pack_columns`."""
    metadata = schema.metadata
    if not metadata or _PACKED not in metadata:
        return None
    layout = json.loads(metadata[_PACKED])
    return Layout(_read_schema(metadata[_SCHEMA]), layout["lows"], layout["texts"])


@lru_cache(maxsize=256)
def _read_schema(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


def unpack_columns(
    layout: Layout, head: pa.Table, texts: pa.Table | None, columns: Sequence[int] | None = None
) -> pa.Table:
    """The inverse of `pack_columns`. Each column of the tables has one chunk.

    columns: the positions of the columns that the tables have, ascending; None for all.
    """
    schema, lows = layout.schema, layout.lows
    numbers = range(len(schema)) if columns is None else columns
    places = {column: place for place, column in enumerate(n for n in layout.texts if n in numbers)}
    arrays = []
    for number, column in zip(numbers, head.columns, strict=True):
        array, kind = column.chunk(0), schema.field(number).type
        if number in places:
            assert texts is not None
            array = _strings(array, kind, texts.column(places[number]).chunk(0).buffers()[2])
        elif (low := lows.get(str(number))) is not None:
            array = _wide(array, kind, low)
        arrays.append(array)
    chosen = schema if columns is None else pa.schema([schema.field(n) for n in numbers], schema.metadata)
    return pa.Table.from_arrays(arrays, schema=chosen)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _words(kind: pa.DataType) -> np.dtype[Any] | None:
    """The integer type of the values' bytes; None for types that are not packed."""
    is_packed = pa.types.is_signed_integer(kind) or pa.types.is_temporal(kind)
    return _SIGNED.get(kind.bit_width) if is_packed else None


def bounds_of(array: pa.Array) -> tuple[int, int] | tuple[None, None] | None:
    """The least and the greatest value as numbers; None for each if all values are NULL, and None for other types than
    integers and times.
    """
    words = _words(array.type)
    if words is None:
        return None
    found = pc.min_max(array.view(pa.from_numpy_dtype(words)))
    return found["min"].as_py(), found["max"].as_py()


def _above(array: pa.Array, low: int, high: int) -> pa.Array | None:
    """The differences of the values from `low`; None if they need as many bytes as the values."""
    words = _words(array.type)
    assert words is not None
    narrow = _fitting(high - low)
    if narrow is None or narrow.itemsize >= words.itemsize:
        return None
    values = np.frombuffer(array.buffers()[1], words)[array.offset : array.offset + len(array)]
    above = np.empty(len(array), narrow)
    np.subtract(values, words.type(low), out=above, casting="unsafe")
    if array.null_count:
        above[~_valid(array)] = 0  # values of NULLs are arbitrary
    return _array(above, array)


def _fitting(most: int) -> np.dtype[Any] | None:
    return next((kind for kind in _UNSIGNED if most <= np.iinfo(kind).max), None)


def _valid(array: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    found: np.ndarray[Any, np.dtype[np.bool_]] = array.is_valid().to_numpy(zero_copy_only=False)
    return found


def _array(values: np.ndarray[Any, Any], like: pa.Array) -> pa.Array:
    """Values that are NULL where those of `like` are."""
    valid = pc.is_valid(like).buffers()[1] if like.null_count else None
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(values)], like.null_count)


def _wide(array: pa.Array, kind: pa.DataType, low: int) -> pa.Array:
    words = _words(kind)
    assert words is not None
    values = np.frombuffer(array.buffers()[1], array.type.to_pandas_dtype())[array.offset : array.offset + len(array)]
    wide = values.astype(words)
    wide += words.type(low)
    return pa.Array.from_buffers(kind, len(array), [array.buffers()[0], pa.py_buffer(wide)], array.null_count)


def offsets(array: pa.Array) -> npt.NDArray[np.int64]:
    """The n + 1 offsets of a string, binary or list array, into its data or child."""
    wide = (
        pa.types.is_large_string(array.type)
        or pa.types.is_large_binary(array.type)
        or pa.types.is_large_list(array.type)
    )
    buffer = array.buffers()[1]
    if len(array) == 0 or buffer is None:
        return np.zeros(1, np.int64)
    dtype = np.dtype("<i8" if wide else "<i4")
    return np.frombuffer(buffer, dtype, len(array) + 1, array.offset * dtype.itemsize).astype(np.int64)


def _lengths(array: pa.Array) -> tuple[pa.Array, pa.Buffer]:
    """The length of each string in bytes, and the bytes of all."""
    data = array.buffers()[2]
    if not len(array):
        return pa.array([], pa.uint8()), pa.py_buffer(b"")
    bounds = offsets(array)
    lengths = np.diff(bounds)
    if array.null_count and lengths[~_valid(array)].any():
        return _lengths(array.take(pa.array(np.arange(len(array)))))  # removes the bytes of NULLs
    narrow = _fitting(int(lengths.max()))
    assert narrow is not None
    first, last = int(bounds[0]), int(bounds[-1])
    return _array(lengths.astype(narrow), array), pa.py_buffer(b"") if data is None else data.slice(first, last - first)


def _strings(lengths: pa.Array, kind: pa.DataType, data: pa.Buffer) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    values = np.frombuffer(lengths.buffers()[1], lengths.type.to_pandas_dtype())[: len(lengths)]
    np.cumsum(values, out=offsets[1:])
    return pa.Array.from_buffers(
        kind, len(lengths), [lengths.buffers()[0], pa.py_buffer(offsets), data], lengths.null_count
    )


def _ends(*numbers: int) -> pa.Buffer:
    return pa.py_buffer(np.array(numbers, np.int64))
