"""Columns as Arrow arrays: gathered rows, equality of rows, the normal form of values, times as integers.

Equality is that of SQL keys and of changelog rows: NULL = NULL, NaN = NaN, -0.0 = 0.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import error
from watersmeet.values.packing import offsets
from watersmeet.values.times import DAY_US

Mask = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.int64]
Column: TypeAlias = pa.Array | pa.ChunkedArray

#: Called directly, because for few rows the wrapper `pc.take` doubles the cost.
_TAKE = pc.get_function("take")

_UNCHECKED = pc.TakeOptions(boundscheck=False)
_NANOS_PER_DAY = 86_400_000_000_000


def flat(column: Column) -> pa.Array:
    """The column as one array, without a copy if it has one chunk.

    Raises Error INTERNAL_ERROR if its strings do not fit in one array (2 GiB).
    """
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    whole = column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        if whole.num_chunks != 1:
            raise error(
                "INTERNAL_ERROR",
                "a column of one epoch is larger than 2 GiB",
                hint="Lower the number of rows per epoch.",
            )
        whole = whole.chunk(0)
    return whole


def gather(column: pa.Array, positions: Positions) -> pa.Array:
    """The values at `positions`, which must be in range (not checked)."""
    return _TAKE.call([column, _index(positions)], _UNCHECKED)


def gather_all(columns: Sequence[pa.Array], positions: Positions) -> list[pa.Array]:
    """The values of each column at `positions`, which must be in range (not checked)."""
    index = _index(positions)
    return [_TAKE.call([c, index], _UNCHECKED) for c in columns]


def _index(positions: Positions) -> pa.Array:
    return fixed(np.asarray(positions, np.int64), pa.int64())


def fixed(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Values as an array of a type with the same bytes. (`pa.array` would import pandas, if that is installed.)"""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def no_rows(schema: pa.Schema) -> pa.Table:
    """A table without rows. (`empty_table` imports pandas, as `pa.array` does.)"""
    return pa.Table.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)


def gather_table(table: pa.Table, positions: Positions) -> pa.Table:
    """The rows at `positions`; names are kept."""
    arrays = gather_all([flat(c) for c in table.columns], positions)
    return pa.Table.from_arrays(arrays, schema=table.schema)


def positional(arrays: Sequence[Column]) -> pa.Table:
    """A table with columns c0, c1, …"""
    return pa.Table.from_arrays(list(arrays), names=[f"c{i}" for i in range(len(arrays))])


def validity(array: pa.Array) -> Mask | None:
    """True where not NULL; None if nothing is NULL."""
    if array.null_count == 0:
        return None
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False))


def words(array: pa.Array) -> npt.NDArray[Any]:
    """The values of a fixed-width array without a copy, as integers or floats; values of 16 bytes or more are rows of
    uint64.

    Undefined where NULL.
    """
    kind = array.type
    if pa.types.is_boolean(kind):
        array, kind = array.cast(pa.int8()), pa.int8()
    width = kind.bit_width // 8
    if pa.types.is_floating(kind):
        dtype = np.dtype(f"<f{width}")
    elif width <= 8:
        dtype = np.dtype(f"<u{width}" if pa.types.is_unsigned_integer(kind) else f"<i{width}")
    else:
        dtype = np.dtype("<u8")
    buffer = array.buffers()[1]
    if len(array) == 0 or buffer is None:
        return np.zeros((0,) if width <= 8 else (0, width // 8), dtype)
    per_value = max(1, width // 8)
    values = np.frombuffer(buffer, dtype, len(array) * per_value, array.offset * width)
    return values if per_value == 1 else values.reshape(-1, per_value)


def is_bytes(kind: pa.DataType) -> bool:
    """True for types of bytes with offsets."""
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
    )


def is_list(kind: pa.DataType) -> bool:
    """True for lists with offsets."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def is_interval(kind: pa.DataType) -> bool:
    """True for month_day_nano intervals."""
    return bool(kind == pa.month_day_nano_interval())


def normal_interval(array: pa.Array) -> npt.NDArray[np.int64]:
    """Intervals as (days, nanoseconds of a day): SQL's order, in which a month has 30 days."""
    raw = words(array)
    months_days = np.ascontiguousarray(raw[:, 0]).view(np.int32).reshape(-1, 2).astype(np.int64)
    carry, nanos = np.divmod(np.ascontiguousarray(raw[:, 1]).view(np.int64), _NANOS_PER_DAY)
    return np.stack([months_days[:, 0] * 30 + months_days[:, 1] + carry, nanos], axis=1)


def struct_fields(array: pa.Array) -> list[pa.Array]:
    """The fields of a struct array, cut to its slice; a NULL struct's fields are undefined."""
    return [array.field(i) for i in range(array.type.num_fields)]


def equal(left: pa.Array, right: pa.Array, *, as_key: bool = False) -> Mask:
    """The mask of equal values of two arrays of one type and length.

    as_key: intervals compare as in SQL ('1 month' = '30 days'); otherwise by their parts.
    """
    same = _equal_values(left, right, as_key=as_key)
    left_valid, right_valid = validity(left), validity(right)
    if left_valid is None and right_valid is None:
        return same
    ones = np.ones(len(left), np.bool_)
    lv = ones if left_valid is None else left_valid
    rv = ones if right_valid is None else right_valid
    result: Mask = (same & lv & rv) | ~(lv | rv)
    return result


def rows_equal(left: Sequence[pa.Array], right: Sequence[pa.Array], num_rows: int, *, as_key: bool = False) -> Mask:
    """The mask of rows that are equal in every column."""
    same = np.ones(num_rows, np.bool_)
    for a, b in zip(left, right, strict=True):
        same &= equal(a, b, as_key=as_key)
    return same


def _equal_values(left: pa.Array, right: pa.Array, *, as_key: bool) -> Mask:
    kind = left.type
    if is_bytes(kind) or pa.types.is_fixed_size_binary(kind):
        return np.asarray(pc.equal(left, right).fill_null(False).to_numpy(zero_copy_only=False))
    if is_list(kind):
        return _equal_lists(left, right, as_key=as_key)
    if pa.types.is_struct(kind):
        return rows_equal(struct_fields(left), struct_fields(right), len(left), as_key=as_key)
    if pa.types.is_null(kind):
        return np.ones(len(left), np.bool_)
    if is_interval(kind) and as_key:
        return np.asarray((normal_interval(left) == normal_interval(right)).all(axis=1))
    a, b = words(left), words(right)
    same = np.asarray(a == b)
    if pa.types.is_floating(kind):
        same = same | (np.isnan(a) & np.isnan(b))
    return same if same.ndim == 1 else np.asarray(same.all(axis=1))


def _equal_lists(left: pa.Array, right: pa.Array, *, as_key: bool) -> Mask:
    left_offsets, right_offsets = offsets(left), offsets(right)
    lengths = np.diff(left_offsets)
    same: Mask = lengths == np.diff(right_offsets)
    for valid in (validity(left), validity(right)):
        if valid is not None:
            same = same & valid
    rows = np.flatnonzero(same & (lengths > 0))
    if not len(rows):
        return same
    counts = lengths[rows]
    starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
    within = np.arange(int(counts.sum())) - np.repeat(starts, counts)
    elements = equal(
        gather(left.values, np.repeat(left_offsets[rows], counts) + within),
        gather(right.values, np.repeat(right_offsets[rows], counts) + within),
        as_key=as_key,
    )
    same = same.copy()
    same[rows] = np.logical_and.reduceat(elements, starts)
    return same


@lru_cache(maxsize=1024)
def has_floats(kind: pa.DataType) -> bool:
    """Whether values of the type contain floats."""
    if pa.types.is_floating(kind):
        return True
    return any(has_floats(kind.field(i).type) for i in range(kind.num_fields))


def one_form(column: Column) -> pa.Array:
    """The column with 0.0 for -0.0 and one form of NaN: equal values become equal bytes. Not copied if nothing
    changes.
    """
    array = flat(column)
    kind = array.type
    if not has_floats(kind) or len(array) == 0:
        return array
    if pa.types.is_floating(kind):
        values = words(array)
        odd = np.signbit(values) & (values == 0) | np.isnan(values)
        if not odd.any():
            return array
        fixed = np.where(np.isnan(values), np.nan, np.where(values == 0, 0.0, values)).astype(values.dtype)
        valid = validity(array)
        return pa.array(fixed, kind, mask=None if valid is None else ~valid, from_pandas=False)
    valid = validity(array)
    mask = None if valid is None else pa.array(~valid)
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays(
            [one_form(f) for f in struct_fields(array)],
            fields=[kind.field(i) for i in range(kind.num_fields)],
            mask=mask,
        )
    starts = offsets(array)
    child = one_form(array.values.slice(int(starts[0]), int(starts[-1] - starts[0])))
    return pa.ListArray.from_arrays(pa.array((starts - starts[0]).astype(np.int32)), child, type=kind, mask=mask)


def data_bytes(array: pa.Array) -> int:
    """The number of bytes of the values, without validity bitmaps: equal for equal content."""
    kind = array.type
    if is_bytes(kind) or is_list(kind):
        bounds = offsets(array)
        first, last = int(bounds[0]), int(bounds[-1])
        inner = last - first if is_bytes(kind) else data_bytes(array.values.slice(first, last - first))
        return inner + 4 * len(array)
    if pa.types.is_struct(kind):
        return sum(data_bytes(f) for f in struct_fields(array))
    if pa.types.is_null(kind):
        return 0
    return int(len(array) * kind.bit_width) // 8


Number = TypeVar("Number", np.int64, np.uint64)


def distinct(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """The distinct values of a one-dimensional array, ascending.

    `np.unique` hashes integers, which takes 50 times as long for a million distinct values.
    """
    if len(values) == 0:
        return values
    if not bool((values[1:] >= values[:-1]).all()):
        values = np.sort(values)
    return values[np.concatenate(([True], values[1:] != values[:-1]))]


def pieces(low: Positions, counts: Positions, limit: int) -> Iterator[tuple[Positions, Positions]]:
    """All pairs (i, low[i] + k) with 0 <= k < counts[i], in order, as two arrays of at most `limit` pairs at a time.

    Rows with more than `limit` pairs are also cut, so memory is bounded for any skew.
    """
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    if total == len(counts) <= limit and (counts == 1).all():
        if total:
            yield np.arange(total), low.copy()
        return
    for start in range(0, total, limit):
        stop = min(total, start + limit)
        # Rows with a pair in [start, stop); the first and the last may be cut.
        first = int(np.searchsorted(ends, start, side="right")) if start else 0
        last = int(np.searchsorted(ends, stop, side="left")) + 1 if stop < total else len(ends)
        begins = ends[first:last] - counts[first:last]
        part = counts if total <= limit else np.minimum(ends[first:last], stop) - np.maximum(begins, start)
        index = np.repeat(np.arange(last - first), part)
        values = np.arange(start, stop)
        values += (low[first:last] - begins)[index]
        index += first
        yield index, values


def expanded(low: Positions, counts: Positions) -> tuple[Positions, Positions]:
    """The pairs of `pieces`, all at once."""
    total = int(counts.sum())
    return next(pieces(low, counts, total)) if total else (low[:0], low[:0])


def cut(positions: Positions, limit: int) -> Iterator[Positions]:
    """The positions in order, in arrays of at most `limit`."""
    for start in range(0, len(positions), limit):
        yield positions[start : start + limit]


#: The last day whose beginning fits in 64 bits; its negative is the first.
MOST_DAYS: Final = np.iinfo(np.int64).max // DAY_US


def microseconds(column: Column) -> tuple[npt.NDArray[np.int64], Mask | None]:
    """For a timestamp or date column: (microseconds since 1970, UTC, 0 where NULL; its `validity`).

    Dates beyond timestamps, such as infinity, become the nearest day.
    """
    array = flat(column)
    valid = validity(array)
    if pa.types.is_date32(array.type):
        days = pc.cast(array.view(pa.int32()), pa.int64())
        within = pc.max_element_wise(
            pc.min_element_wise(days, MOST_DAYS, skip_nulls=False), -MOST_DAYS, skip_nulls=False
        )
        numbers = pc.multiply(within, DAY_US)
    else:
        numbers = array.view(pa.int64())
    if valid is not None:
        numbers = pc.fill_null(numbers, 0)
    return np.asarray(numbers.to_numpy(zero_copy_only=False)), valid
