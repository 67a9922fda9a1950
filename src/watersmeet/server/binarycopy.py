"""Rows of COPY … FROM STDIN (FORMAT binary) to columns, by numpy: no row is an object of Python.

PostgreSQL, "COPY", "Binary Format". Where a row ends follows from the lengths of its values, one after the other. So
each place that may begin a row is looked at as if it did, all at once, and those that follow from the first one are
kept.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import Error, error
from watersmeet.server.binaryvalues import EPOCH_DAYS, EPOCH_US
from watersmeet.types import Field, Schema, SqlType

_SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0"
_HEADER_BYTES: Final = len(_SIGNATURE) + 8
_CRITICAL: Final = 0xFFFF_0000
_END: Final = b"\xff\xff"
#: So much is looked at at once; more if a row is longer.
_BLOCK_BYTES: Final = 1 << 24
_FIXED: Final = {
    "boolean": ">u1", "smallint": ">i2", "integer": ">i4", "bigint": ">i8", "real": ">f4", "double precision": ">f8",
    "date": ">i4", "time": ">i8", "timestamp": ">i8", "timestamptz": ">i8",
}  # fmt: skip
_VARIABLE: Final = ("varchar", "bytea", "jsonb", "numeric", "interval")
_INTERVAL: Final = np.dtype([("microseconds", ">i8"), ("days", ">i4"), ("months", ">i4")])
_MONTH_DAY_NANO: Final = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanoseconds", "<i8")])
#: The digits of each group of four, as text.
_DIGITS: Final = np.array([b"%04d" % n for n in range(10_000)], "S4")
_GROUP: Final = 10_000
#: Groups that a number may have in front of the point: 38 digits.
_MOST_GROUPS: Final = 10
_TEXT: Final = pa.large_string()
_SIGNS: Final = {0x0000: "", 0x4000: "-"}


def read_binary(data: bytes, columns: Schema) -> pa.Table:
    """The values, by names of columns: in the columns' types, numbers with digits behind the point as texts.

    BAD_COPY_FORMAT for what is no such file, INVALID_BINARY_VALUE for a value that is none of its column's type,
    FEATURE_NOT_SUPPORTED for columns of arrays and structs.
    """
    for column in columns:
        if column.type.name not in (*_FIXED, *_VARIABLE):
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f'COPY FROM STDIN in binary of column "{column.name}" of type {column.type.sql} is not supported',
                hint="Use text or CSV.",
            )
    body, parts, rows = _body(data), list[pa.Table](), 0
    size = _BLOCK_BYTES
    while len(body) and bytes(body[: len(_END) + 1]) != _END:
        whole = len(body) <= size
        block = np.frombuffer(body[:size], np.uint8)
        starts, lengths, end = _places(block, len(columns))
        if not len(starts):
            if whole:
                raise _failure(body, len(columns), rows + 1)
            size *= 2
            continue
        arrays = [_column(block, starts[:, i], lengths[:, i], column) for i, column in enumerate(columns)]
        parts.append(pa.Table.from_arrays(arrays, names=[c.name for c in columns]))
        rows += len(starts)
        body = body[end:]
    return pa.concat_tables(parts) if parts else pa.table({c.name: _empty(c) for c in columns})


def _empty(column: Field) -> pa.Array:
    nothing = np.zeros(0, np.int64)
    return _column(np.zeros(0, np.uint8), nothing, nothing, column)


def _body(data: bytes) -> memoryview:
    """The rows, without the header."""
    if data[: len(_SIGNATURE)] != _SIGNATURE or len(data) < _HEADER_BYTES:
        raise error("BAD_COPY_FORMAT", "COPY file signature not recognized")
    flags, extension = (int(n) for n in np.frombuffer(data, ">u4", 2, len(_SIGNATURE)))
    if flags & _CRITICAL:
        raise error("BAD_COPY_FORMAT", "unrecognized critical flags in COPY file header")
    if _HEADER_BYTES + extension > len(data):
        raise error("BAD_COPY_FORMAT", "the header of the COPY file has no end")
    return memoryview(data)[_HEADER_BYTES + extension :]


def _places(body: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Where the values of each whole row from the beginning on begin, and their lengths, -1 for NULL: an array of rows
    by columns each; and where the last of these rows ends.
    """
    high, low = divmod(count, 256)
    candidates = np.flatnonzero((body[:-1] == high) & (body[1:] == low)).astype(np.int64)
    none = np.zeros((0, count), np.int64)
    if not len(candidates) or candidates[0] != 0 or len(body) < 2 + 4 * count:
        return none, none, 0
    starts, lengths = np.empty((len(candidates), count), np.int64), np.empty((len(candidates), count), np.int64)
    place, valid = candidates + 2, np.ones(len(candidates), bool)
    for i in range(count):
        valid &= place + 4 <= len(body)
        lengths[:, i] = _big_endian(body, np.where(valid, place, 0), 4).copy().view(">i4")[:, 0]
        starts[:, i] = place + 4
        place = starts[:, i] + np.maximum(lengths[:, i], 0)
        valid &= (lengths[:, i] >= -1) & (place <= len(body))
        place = np.where(valid, place, 0)
    following = np.searchsorted(candidates, place)
    known = np.append(candidates, -1)[np.minimum(following, len(candidates))] == place
    chosen = _reached(np.where(valid & known, following, len(candidates)))
    chosen = chosen[valid[chosen]]  # the last one may have no end here
    return starts[chosen], lengths[chosen], int(place[chosen[-1]]) if len(chosen) else 0


def _reached(following: np.ndarray) -> np.ndarray:
    """What is reached from 0, in order, where `following` says what comes behind each; its length: nothing does."""
    end = len(following)
    jump = np.append(following, end)
    reached = np.zeros(end + 1, bool)
    reached[0] = True
    for _ in range(max(1, end.bit_length())):
        reached[jump[reached.nonzero()[0]]] = True
        jump = jump[jump]
    return np.flatnonzero(reached[:end])


def _failure(body: memoryview, count: int, row: int) -> Error:
    """Why no row can be read where one should begin."""
    found = int(np.frombuffer(body[:2], ">i2")[0]) if len(body) >= 2 else None
    if found == -1:
        return error("BAD_COPY_FORMAT", "received copy data after EOF marker")
    if found is not None and found != count:
        return error("BAD_COPY_FORMAT", f"row field count is {found}, expected {count}", detail=f"That is row {row}.")
    return error("BAD_COPY_FORMAT", "unexpected EOF in COPY data", detail=f"Row {row} has no end.")


def _big_endian(body: np.ndarray, starts: np.ndarray, width: int) -> np.ndarray:
    """So many bytes from each of these places on, of which there are some."""
    windows = np.lib.stride_tricks.sliding_window_view(body, width)
    found: np.ndarray = windows[np.minimum(starts, len(body) - width)]
    return found


def _column(body: np.ndarray, starts: np.ndarray, lengths: np.ndarray, column: Field) -> pa.Array:
    kind = column.type
    missing = lengths < 0
    if kind.name in _FIXED or kind.name == "interval":
        width = 16 if kind.name == "interval" else np.dtype(_FIXED[kind.name]).itemsize
        if bool((~missing & (lengths != width)).any()):
            raise _wrong(column, lengths[~missing & (lengths != width)][0])
        if len(body) < width:  # there are NULLs alone
            return pa.nulls(len(starts), kind.arrow)
        data = np.ascontiguousarray(_big_endian(body, np.where(missing, 0, starts), width))
        return _fixed_column(data, missing, kind)
    data, offsets = _gathered(body, starts, np.maximum(lengths, 0))
    if kind.name == "numeric":
        return _numbers(data, offsets, missing, column)
    if kind.name == "jsonb":
        return _documents(data, offsets, missing, column)
    found = _variable(pa.large_binary(), data, offsets, missing)
    if kind.name == "bytea":
        return found.cast(pa.binary())
    return _text(found)


def _text(values: pa.Array) -> pa.Array:
    """CHARACTER_NOT_IN_REPERTOIRE for bytes that are no text."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        raise error("CHARACTER_NOT_IN_REPERTOIRE", 'invalid byte sequence for encoding "UTF8"') from None


def _wrong(column: Field, length: int) -> Error:
    return error(
        "INVALID_BINARY_VALUE",
        f'incorrect binary data format in column "{column.name}"',
        detail=f"A value of type {column.type.sql} can't have {length} bytes.",
    )


def _fixed_column(data: np.ndarray, missing: np.ndarray, kind: SqlType) -> pa.Array:
    if kind.name == "interval":
        parts = data.view(_INTERVAL)[:, 0]
        found = np.empty(len(parts), _MONTH_DAY_NANO)
        found["months"], found["days"] = parts["months"], parts["days"]
        found["nanoseconds"] = parts["microseconds"].astype(np.int64) * 1000
        valid = None if not missing.any() else pa.array(~missing).buffers()[1]
        return pa.Array.from_buffers(pa.month_day_nano_interval(), len(found), [valid, pa.py_buffer(found)])
    values = data.view(_FIXED[kind.name])[:, 0]
    native = values.astype(values.dtype.newbyteorder("="))
    if kind.name == "boolean":
        return pa.array(native != 0, mask=missing)
    if kind.name == "date":
        return pa.array(_moved(native, EPOCH_DAYS), pa.int32(), mask=missing).view(pa.date32())
    if kind.name == "time":
        return pa.array(native, pa.int64(), mask=missing).view(pa.time64("us"))
    if kind.name in ("timestamp", "timestamptz"):
        return pa.array(_moved(native, EPOCH_US), pa.int64(), mask=missing).view(kind.arrow)
    return pa.array(native, kind.arrow, mask=missing)


def _moved(moments: np.ndarray, epoch: int) -> np.ndarray:
    """Moments counted from 1970; the least and the greatest number are the two that are infinite."""
    limits = np.iinfo(moments.dtype)
    least, greatest = limits.min, limits.max
    with np.errstate(over="ignore"):
        moved = moments + np.array(epoch, moments.dtype)
    return np.where(moments == greatest, greatest, np.where(moments == least, -greatest, moved))


def _gathered(body: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of values, one behind the other, and where each begins, with the end."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    places = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
    return body[places], offsets


def _variable(kind: pa.DataType, data: np.ndarray, offsets: np.ndarray, missing: np.ndarray) -> pa.Array:
    valid = pa.array(~missing).buffers()[1] if missing.any() else None
    return pa.Array.from_buffers(kind, len(missing), [valid, pa.py_buffer(offsets), pa.py_buffer(data)])


def _documents(data: np.ndarray, offsets: np.ndarray, missing: np.ndarray, column: Field) -> pa.Array:
    """Texts of jsonb: behind the number of its version, which is 1."""
    there = ~missing
    if bool((np.diff(offsets)[there] < 1).any()):
        raise _wrong(column, 0)
    first = offsets[:-1][there]
    if bool((data[first] != 1).any()):
        raise error("INVALID_BINARY_VALUE", f"unsupported jsonb version number {data[first][data[first] != 1][0]}")
    kept = np.ones(len(data), bool)
    kept[first] = False
    cut = np.concatenate([[0], np.cumsum(np.diff(offsets) - there)]).astype(np.int64)
    return _text(_variable(pa.large_binary(), data[kept], cut, missing))


def _numbers(data: np.ndarray, offsets: np.ndarray, missing: np.ndarray, column: Field) -> pa.Array:
    """Texts of numbers. They come as groups of four digits; the weight says how many of them stand in front of the
    point, less one.
    """
    there = ~missing
    sizes = np.diff(offsets)
    if bool((sizes[there] < 8).any()) or not len(data):
        if not there.any():
            return pa.nulls(len(missing), pa.string())
        raise _wrong(column, int(sizes[there].min()))
    head = _big_endian(data, np.where(there, offsets[:-1], 0), 8).copy().view(">u2").astype(np.int64)
    counts, weights, signs = head[:, 0], head[:, 1], head[:, 2]
    counts = np.where(there, counts, 0)
    weights = weights - (weights >= 1 << 15) * (1 << 16)
    if bool((sizes[there] != 8 + 2 * counts[there]).any()):
        raise _wrong(column, int(sizes[there][sizes[there] != 8 + 2 * counts[there]][0]))
    if not set(np.unique(signs[there]).tolist()) <= set(_SIGNS):
        raise error(
            "INVALID_VALUE", f'column "{column.name}" takes no NaN and no infinite number', detail="numeric is finite."
        )
    groups, group_offsets = _gathered(data, offsets[:-1] + 8, 2 * counts)
    values = groups.view(">u2").astype(np.int64)
    if bool((values >= _GROUP).any()):
        raise error("INVALID_BINARY_VALUE", f'invalid digit in external "numeric" value of column "{column.name}"')
    weights = np.where(counts > 0, weights, -1)
    if bool((weights >= _MOST_GROUPS).any()):
        raise error("INVALID_VALUE", f'numeric field overflow in column "{column.name}"')
    counts, weights = np.where(weights < -_MOST_GROUPS, 0, counts), np.maximum(weights, -_MOST_GROUPS)
    # Groups in front of the point, and behind it; where there are none, zeros stand for them.
    whole = np.minimum(counts, weights + 1).clip(0)
    digits, begin = _DIGITS[values].view(np.uint8), group_offsets[:-1] * 2
    parts = [
        pa.array(np.where(signs == 0x4000, "-0", "0")).cast(_TEXT),
        _variable(_TEXT, *_gathered(digits, begin, 4 * whole), missing),
        pc.binary_repeat(pa.scalar("0000", _TEXT), pa.array((weights + 1 - counts).clip(0))),
        pa.scalar(".", _TEXT),
        pc.binary_repeat(pa.scalar("0000", _TEXT), pa.array((-1 - weights).clip(0))),
        _variable(_TEXT, *_gathered(digits, begin + 4 * whole, 4 * (counts - whole)), missing),
        pa.scalar("0", _TEXT),
    ]
    return pc.binary_join_element_wise(*parts, pa.scalar("", _TEXT)).cast(pa.string())
