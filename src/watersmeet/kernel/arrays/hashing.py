"""Key and row hashes, 64 bits, stable for ever, vectorised; and the SQL order of values as integers.

Laws:
- Equal values (see `columns`) always have equal hashes, for any chunks, slices or integer width.
- For one column of the types of `is_bijective`, two non-NULL values have equal hashes only if they are equal.
- The functions here are part of the stored state: buckets and runs depend on them. A change of a result must change
  `STATE_FORMAT_VERSION`; `tests/unit/kernel/test_hashing.py` pins values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import error
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.columns import pieces
from watersmeet.values.packing import offsets

Hashes = npt.NDArray[np.uint64]
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)
_POSITION: Final = np.uint64(0xD6E8FEB86659FD93)
_LENGTH: Final = np.uint64(0xA0761D6478BD642F)
_LIST: Final = np.uint64(0xE7037ED1A0B428DB)
_STRUCT: Final = np.uint64(0x8EBC6AF09C88C6E3)
_S30, _S27, _S31, _S32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)
_LOW: Final = np.uint64(0xFFFFFFFF)

#: So few hashes are sorted by NumPy alone.
_FEW: Final = 1 << 10

#: The hash of NULL of every type, and of a row without columns.
NULL_HASH: Final = np.uint64(0x589965CC75374CC3)

EMPTY_HASH: Final = np.uint64(0x1D8E4E27C47D124F)
_MASKS: Final = np.array([(1 << (8 * r)) - 1 for r in range(9)], np.uint64)

#: Strings are hashed in rounds of 8 bytes over all rows; the words after this many rounds are hashed row by row,
#: together for rows of similar length.
_ROUNDS: Final = 4

_ROUND_SALTS: Final = np.arange(1, _ROUNDS + 1, dtype=np.uint64) * _POSITION

#: The number of rows hashed at a time, so that intermediate results fit in a core's own cache.
_PIECE_ROWS: Final = 1 << 14

_PIECE_WORDS: Final = 1 << 14


def positions_by_hash(hashes: Hashes) -> col.Positions:
    """The positions that sort hashes, stably.

    Sorts one number for each hash: its high bits, and its position in the low ones. That takes half of the time of
    `np.argsort`. Then only few hashes are out of order, those with equal high bits.
    """
    order: col.Positions
    count = len(hashes)
    if count < _FEW:
        order = np.argsort(hashes, kind="stable")
        return order
    low = np.uint64((1 << (count - 1).bit_length()) - 1)
    words = hashes & ~low
    words |= np.arange(count, dtype=np.uint64)
    words.sort()
    words &= low
    order = words.view(np.int64)
    ordered = hashes[order]
    if (ordered[1:] < ordered[:-1]).any():
        order = order[np.argsort(ordered, kind="stable")]
    return order


def hash_columns(columns: Sequence[col.Column], num_rows: int | None = None, *, as_key: bool = True) -> Hashes:
    """One uint64 per row over all `columns`, in their order.

    num_rows: needed only without columns, where every row has `EMPTY_HASH`. as_key: intervals hash by SQL equality;
    otherwise by their three parts.
    """
    if not columns:
        return np.full(num_rows or 0, EMPTY_HASH, np.uint64)
    if len(columns) == 1:
        return _hash_column(columns[0], as_key=as_key)
    result = np.full(len(columns[0]), EMPTY_HASH, np.uint64)
    for column in columns:
        result ^= _hash_column(column, as_key=as_key)
        mix(result)
    return result


def row_hash(table: pa.Table, num_rows: int | None = None) -> Hashes:
    """The hash of whole rows. Unlike key hashes, it differs for '1 month' and '30 days'."""
    return hash_columns(table.columns, num_rows, as_key=False)


def bucket_of(hashes: Hashes, buckets: int) -> npt.NDArray[np.int64]:
    """The bucket of each key hash, from 0 to `buckets` - 1: hash * buckets / 2^64, rounded down. buckets: at most 2^31.

    So for any number of buckets, a bucket is a range of hashes, and its rows are one slice of a trace sorted by the
    hash of the same key. This does not hold for traces sorted by the hash of a longer key (an aggregate by (a, b) over
    rows distributed by a) or by another word (the times of a `TimeFilter`). Traces of a `TopN` and of extremes are
    sorted by the top half of the hash; there it holds except at the ends of a slice.
    """
    assert 0 < buckets <= 1 << 31
    count = np.uint64(buckets)
    found = np.empty(len(hashes), np.uint64)
    for start in range(0, len(hashes), _PIECE_ROWS):
        some = hashes[start : start + _PIECE_ROWS]
        # The high word of a 128-bit product: the product of the low halves can't carry beyond 64 bits.
        found[start : start + _PIECE_ROWS] = ((some >> _S32) * count + ((some & _LOW) * count >> _S32)) >> _S32
    return found.view(np.int64)


def bucket_of_one(key_hash: int, buckets: int) -> int:
    """The bucket of one key hash."""
    return key_hash * buckets >> 64


def bucket_start(bucket: int, buckets: int) -> int:
    """The least hash of a bucket; 2^64 for the bucket after the last one."""
    return -(-(bucket << 64) // buckets)


def is_bijective(kind: pa.DataType) -> bool:
    """Whether equal hashes of two values of the type (not NULL, in `one_form`) prove that they are equal."""
    t = pa.types
    return bool(
        t.is_integer(kind)
        or t.is_boolean(kind)
        or t.is_date(kind)
        or t.is_time(kind)
        or t.is_timestamp(kind)
        or t.is_floating(kind)
    )


def mix(values: Hashes) -> Hashes:
    """Splitmix64's finalizer, in place: a bijection of 64 bits. Returns `values`."""
    shifted = np.empty(min(len(values), _PIECE_ROWS), np.uint64)
    for start in range(0, len(values), _PIECE_ROWS):
        some = values[start : start + _PIECE_ROWS]
        other = shifted[: len(some)]
        some += _GOLDEN
        some ^= np.right_shift(some, _S30, out=other)
        some *= _MIX_1
        some ^= np.right_shift(some, _S27, out=other)
        some *= _MIX_2
        some ^= np.right_shift(some, _S31, out=other)
    return values


def _hash_column(column: col.Column, *, as_key: bool) -> Hashes:
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks == 1:
            return _hash_array(column.chunk(0), as_key=as_key)
        parts = [_hash_array(c, as_key=as_key) for c in column.chunks]
        return np.concatenate(parts) if parts else np.zeros(0, np.uint64)
    return _hash_array(column, as_key=as_key)


def _hash_array(array: pa.Array, *, as_key: bool) -> Hashes:
    if len(array) == 0:
        return np.zeros(0, np.uint64)
    if array.null_count == len(array):
        return np.full(len(array), NULL_HASH, np.uint64)
    result = _hash_values(array, as_key=as_key)
    valid = col.validity(array)
    if valid is not None:
        result[~valid] = NULL_HASH
    return result


def _hash_values(array: pa.Array, *, as_key: bool) -> Hashes:
    """The hashes of a column's values; undefined where NULL."""
    kind = array.type
    if col.is_bytes(kind):
        return _hash_bytes(array)
    if col.is_list(kind):
        return _hash_lists(array, as_key=as_key)
    if pa.types.is_struct(kind):
        result = np.full(len(array), _STRUCT, np.uint64)
        for field in col.struct_fields(array):
            result ^= _hash_array(field, as_key=as_key)
            mix(result)
        return result
    if pa.types.is_dictionary(kind):
        return _hash_array(array.dictionary_decode(), as_key=as_key)
    if col.is_interval(kind) and as_key:
        return _hash_words(col.normal_interval(array).view(np.uint64))
    if pa.types.is_decimal(kind) or col.is_interval(kind):
        return _hash_words(col.words(array))
    if is_bijective(kind):
        values = col.words(array)
        if pa.types.is_floating(kind):
            wide = values.astype(np.float64) + 0.0
            wide[np.isnan(wide)] = np.nan
            return mix(wide.view(np.uint64))
        return mix(values.astype(np.int64).view(np.uint64))
    raise error("FEATURE_NOT_SUPPORTED", f"no hash for values of type {kind}")


def _hash_words(values: npt.NDArray[Any]) -> Hashes:
    if values.ndim == 1:
        return mix(values.astype(np.int64).view(np.uint64))
    result = np.zeros(len(values), np.uint64)
    for i in range(values.shape[1]):
        result ^= values[:, i].astype(np.uint64)
        mix(result)
    return result


def _hash_lists(array: pa.Array, *, as_key: bool) -> Hashes:
    """The hash of each list: it mixes the length with the sum of the elements' hashes, each mixed with its index."""
    bounds = offsets(array)
    first, last = int(bounds[0]), int(bounds[-1])
    lengths = np.diff(bounds)
    elements = _hash_array(array.values.slice(first, last - first), as_key=as_key)
    places = np.arange(1, last - first + 1) - np.repeat(bounds[:-1] - first, lengths)
    elements += places.view(np.uint64) * _POSITION
    mix(elements)
    sums = np.zeros(len(elements) + 1, np.uint64)
    np.cumsum(elements, out=sums[1:])
    result = sums[bounds[1:] - first] - sums[bounds[:-1] - first]
    return mix(result + (lengths.view(np.uint64) * _LENGTH ^ _LIST))


def _hash_bytes(array: pa.Array) -> Hashes:
    bounds = offsets(array)
    buffer = array.buffers()[2]
    data = np.zeros(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)
    result = np.empty(len(array), np.uint64)
    for at in range(0, len(array), _PIECE_ROWS):
        part = bounds[at : at + _PIECE_ROWS + 1]
        result[at : at + _PIECE_ROWS] = _hash_piece(data, part[:-1], np.diff(part))
    return result


def _hash_piece(data: npt.NDArray[np.uint8], starts: col.Positions, lengths: col.Positions) -> Hashes:
    """The hash of each string: it mixes the length with the sum of its 8-byte words, each mixed with its index."""
    if len(data) < 8:
        data = np.concatenate([data, np.zeros(8 - len(data), np.uint8)])
    # The little-endian word at every offset of the data: overlapping, unaligned, without a copy.
    overlapping: Hashes = np.ndarray((len(data) - 7,), "<u8", data, 0, (1,))
    counts = (lengths + 7) >> 3
    least, most = int(counts.min()), int(counts.max())
    sums = lengths.view(np.uint64) * _LENGTH
    for place in range(min(most, _ROUNDS)):
        if place < least:
            sums += _mixed_words(overlapping, starts + 8 * place, lengths - 8 * place, _ROUND_SALTS[place])
        else:
            rows = np.flatnonzero(counts > place)
            at, left = starts[rows] + 8 * place, lengths[rows] - 8 * place
            sums[rows] += _mixed_words(overlapping, at, left, _ROUND_SALTS[place])
    if most > _ROUNDS:
        rows = np.flatnonzero(counts > _ROUNDS)
        rows = rows[np.argsort(-lengths[rows], kind="stable")]
        sums[rows] += _long_sums(overlapping, starts[rows], lengths[rows])
    return mix(sums)


def _long_sums(overlapping: Hashes, starts: col.Positions, lengths: col.Positions) -> Hashes:
    """For long strings, from the longest to the shortest, the sum of their mixed words after the first `_ROUNDS`."""
    sums = np.zeros(len(starts), np.uint64)
    counts, whole = (lengths + 7) >> 3, lengths >> 3
    begin = 0
    while begin < len(starts):
        end = begin + max(1, _PIECE_WORDS // int(counts[begin]))
        some, common = slice(begin, end), int(whole[begin:end][-1])
        # The words that all of them have: they need no mask, and don't exceed the data.
        width = max(1, _PIECE_WORDS // len(starts[some]))
        for place in range(_ROUNDS, common, width):
            places = np.arange(place, min(place + width, common))
            words = overlapping[starts[some, np.newaxis] + 8 * places]
            words += (places + 1).view(np.uint64) * _POSITION
            sums[some] += mix(words.reshape(-1)).reshape(words.shape).sum(axis=1, dtype=np.uint64)
        first = max(common, _ROUNDS)
        for index, places in pieces(np.full(len(starts[some]), first), counts[some] - first, _PIECE_WORDS):
            row = index + begin
            salts = (places + 1).view(np.uint64) * _POSITION
            mixed = _mixed_words(overlapping, starts[row] + 8 * places, lengths[row] - 8 * places, salts)
            firsts = np.flatnonzero(np.diff(row, prepend=-1))
            sums[row[firsts]] += np.add.reduceat(mixed, firsts)
        begin = end
    return sums


def _mixed_words(overlapping: Hashes, at: col.Positions, left: col.Positions, salt: Hashes | np.uint64) -> Hashes:
    """The words at the offsets `at`, of which `left` bytes count, mixed with their salt."""
    last = len(overlapping) - 1
    if int(at.max()) > last:  # a word at the end of the data would exceed it: read an earlier word and shift it
        late = np.flatnonzero(at > last)
        found = overlapping[np.minimum(at, last)]
        found[late] >>= ((at[late] - last) << 3).view(np.uint64)
    else:
        found = overlapping[at]
    found &= _MASKS[np.minimum(left, 8)]
    found += salt
    return mix(found)


Ints = npt.NDArray[np.int64]


def has_common_order(kind: pa.DataType) -> bool:
    """Whether `order_keys` of different arrays of the type compare like their values."""
    return not (col.is_interval(kind) or pa.types.is_decimal(kind) or col.is_bytes(kind))


def order_keys(array: pa.Array) -> Ints:
    """Integers that compare like the values, in general within this array only. Undefined where NULL.

    Equal integers mean equal values: floats are in one form (NaN is the greatest), intervals in `key_form`. Not for
    arrays and structs.
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
    """Numbers in [0, 2^32) that never decrease with increasing values; close values may have equal numbers. Stable for
    ever; no value is NULL.
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
    """Numbers in [0, 2^64) that never decrease with increasing values; different values may have equal numbers. Stable
    for ever. Undefined where NULL.

    Different integers, times and floats have different numbers; those of texts depend on their first 8 bytes.
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
    bounds = offsets(array)
    buffer = array.buffers()[2]
    data = np.zeros(1, np.uint8) if buffer is None or not buffer.size else np.frombuffer(buffer, np.uint8)
    result = np.zeros(len(array), np.uint64)
    for i in range(count):
        at = bounds[:-1] + i
        byte = np.where(at < bounds[1:], data[np.minimum(at, len(data) - 1)], 0)
        result = result << np.uint64(8) | byte.astype(np.uint64)
    return result


def _decimal_floats(array: pa.Array) -> npt.NDArray[np.float64]:
    """Floats that never decrease with increasing unscaled values: made of the high word only, unless it is just the
    sign.
    """
    low, high = col.words(array).T
    signed = np.ascontiguousarray(high).view(np.int64)
    wide = (signed + (signed < 0)).astype(np.float64) * 2.0**64
    return np.where(signed == 0, low.astype(np.float64), np.where(signed == -1, -((~low).astype(np.float64) + 1), wide))


def extremes(groups: Ints, values: pa.Array, num_groups: int, *, largest: bool) -> pa.Array:
    """The smallest (or largest) value of each group from 0 to num_groups - 1; NULL for groups without non-NULL
    values.
    """
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
