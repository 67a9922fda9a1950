"""The SQL order of values, as integers: for min and max."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.hashing import Hashes

Ints = npt.NDArray[np.int64]


def order_keys(array: pa.Array) -> Ints:
    """Integers that compare as the values do; comparable within this array only. Undefined where NULL.

    Equal integers mean equal values: floats are in one form (NaN is the greatest), intervals in `key_form`.
    Arrays and structs have no order here.
    """
    kind = array.type
    t = pa.types
    if col.is_interval(kind):
        days, nanos = col.normal_interval(array).T
        order = np.lexsort((nanos, days))
        step = (days[order][1:] != days[order][:-1]) | (nanos[order][1:] != nanos[order][:-1])
        result = np.zeros(len(array), np.int64)
        result[order[1:]] = np.cumsum(step)
        return result
    if t.is_decimal(kind) or col.is_bytes(kind):
        ranks = pc.rank(array, sort_keys="ascending", tiebreaker="dense")
        return np.asarray(ranks.to_numpy()).astype(np.int64)
    if t.is_floating(kind):
        bits = col.words(array).astype(np.float64).view(np.int64)
        return bits ^ (bits >> 63 & np.int64(0x7FFFFFFFFFFFFFFF))
    return col.words(array).astype(np.int64)


def order_prefixes(array: pa.Array) -> Hashes:
    """Numbers in [0, 2^32) that never fall where the values rise; values near each other may share one.

    Stable for ever.

    The array has no NULLs.
    """
    kind = array.type
    t = pa.types
    middle = np.int64(1) << 31
    if col.is_bytes(kind):
        return _first_bytes(array)
    if col.is_interval(kind):
        whole = col.normal_interval(array)[:, 0]
    elif t.is_timestamp(kind):
        whole = col.words(array) >> 22
    elif t.is_time64(kind):
        whole = col.words(array) >> 5
    elif t.is_boolean(kind) or t.is_date(kind) or (t.is_integer(kind) and kind.bit_width <= 32):
        whole = col.words(array).astype(np.int64)
    else:
        floats = _decimal_floats(array) if t.is_decimal(kind) else col.words(array).astype(np.float64)
        bits = floats.view(np.int64)
        whole = (bits ^ (bits >> 63 & np.int64(0x7FFFFFFFFFFFFFFF))) >> 32
    return (np.clip(whole, -middle, middle - 1) + middle).astype(np.uint64)


def order_words(array: pa.Array) -> Hashes:
    """Numbers in [0, 2^64) that never fall where the values rise; different values may share one. Stable for ever.

    The array has no NULLs. Integers, times and floats have words of their own, texts by their first 8 bytes.
    """
    kind = array.type
    t = pa.types
    if col.is_bytes(kind):
        return _first_bytes(array, 8)
    if col.is_interval(kind):
        whole = col.normal_interval(array)[:, 0].astype(np.int64)
    elif t.is_floating(kind) or t.is_decimal(kind):
        floats = _decimal_floats(array) if t.is_decimal(kind) else col.words(array).astype(np.float64)
        bits = floats.view(np.int64)
        whole = bits ^ (bits >> 63 & np.int64(0x7FFFFFFFFFFFFFFF))
    else:
        whole = col.words(array).astype(np.int64)
    return whole.view(np.uint64) ^ np.uint64(1 << 63)


def _first_bytes(array: pa.Array, count: int = 4) -> Hashes:
    bounds = col.offsets(array)
    buffer = array.buffers()[2]
    data = np.zeros(1, np.uint8) if buffer is None or not buffer.size else np.frombuffer(buffer, np.uint8)
    result = np.zeros(len(array), np.uint64)
    for i in range(count):
        at = bounds[:-1] + i
        byte = np.where(at < bounds[1:], data[np.minimum(at, len(data) - 1)], 0)
        result = result << np.uint64(8) | byte.astype(np.uint64)
    return result


def _decimal_floats(array: pa.Array) -> npt.NDArray[np.float64]:
    """Floats that never fall where the unscaled values rise: by the high word alone unless it only has the sign."""
    low, high = col.words(array).T
    signed = np.ascontiguousarray(high).view(np.int64)
    wide = (signed + (signed < 0)).astype(np.float64) * 2.0**64
    return np.where(signed == 0, low.astype(np.float64), np.where(signed == -1, -((~low).astype(np.float64) + 1), wide))


def extremes(groups: Ints, values: pa.Array, num_groups: int, *, largest: bool) -> pa.Array:
    """Per group 0 … num_groups its smallest (or largest) value; NULL for groups without values that are not NULL."""
    keys = order_keys(values)
    valid = col.validity(values)
    rows = np.arange(len(values)) if valid is None else np.flatnonzero(valid)
    group, keys = groups[rows], keys[rows]
    bounds = np.iinfo(np.int64)
    best = np.full(num_groups, bounds.min if largest else bounds.max)
    (np.maximum if largest else np.minimum).at(best, group, keys)
    winners = np.flatnonzero(keys == best[group])
    place = np.full(num_groups, -1, np.int64)
    place[group[winners]] = rows[winners]
    return values.take(pa.array(place, mask=place < 0))
