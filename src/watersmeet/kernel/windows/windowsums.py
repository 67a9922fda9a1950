"""Aggregates over frames: accumulators as differences of running sums, which are exact integers.

So a sum depends on the rows of its frame alone: not on their order, and not on the rows beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import Aggregate, AggregateSpec
from watersmeet.errors import error
from watersmeet.kernel.aggregates.accumulators import Part, accumulators_of
from watersmeet.kernel.aggregates.results import result
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays import deviation, exact_sum, wide
from watersmeet.kernel.arrays.exact_sum import Floats
from watersmeet.kernel.arrays.ordering import order_keys
from watersmeet.kernel.runs.groups import Ints, key_form
from watersmeet.kernel.windows.windowframes import Stretch
from watersmeet.kernel.windows.windowvalues import pick
from watersmeet.types import Schema

_GREATEST: Final = np.iinfo(np.int64).max


def framed(
    op: Aggregate, arrays: Sequence[pa.Array], schema: Schema, frame: Sequence[Stretch], kind: pa.DataType
) -> tuple[pa.Array, col.Mask]:
    """The one call of `op` over each frame as `kind`, and where it is too large (NULL then).

    arrays, schema: of the rows in the order of the window.
    """
    (call,) = op.calls
    plan = accumulators_of(op, schema)
    count = len(arrays[0])
    weights = np.ones(count, np.bool_)
    if call.filter is not None:
        weights &= np.asarray(arrays[call.filter].fill_null(fill_value=False).to_numpy(zero_copy_only=False))
    values = None if call.argument is None else arrays[call.argument]
    valid = None if values is None else col.validity(values)
    if valid is not None:
        weights &= valid
    state: list[pa.Array] = []
    for part in plan.parts:
        state += _accumulated(
            part,
            values,
            np.ones(count, np.bool_) if part.feed.argument is None and part.feed.filter is None else weights,
            frame,
        )
    return result(call, plan, state, None if values is None else values.type, kind)


def _accumulated(part: Part, values: pa.Array | None, weights: col.Mask, frame: Sequence[Stretch]) -> list[pa.Array]:
    """The accumulator's columns, a row for each frame."""
    if part.kind == "count":
        return [pa.array(_sums(weights.astype(np.int64), frame))]
    assert values is not None
    if part.kind == "true":
        return [pa.array(_sums((weights & (col.words(values) != 0)).astype(np.int64), frame))]
    if part.kind == "sum":
        return _limb_sums(wide.split(values), weights, frame)
    if part.kind == "squares" and not pa.types.is_floating(values.type):
        return _limb_sums(deviation.wide_squares(values), weights, frame)
    if part.kind in ("float", "squares"):
        return _float_sums(part.kind, col.words(values).astype(np.float64), weights, frame)
    if part.kind in ("min", "max"):
        return [_extreme(key_form(values), weights, frame, largest=part.kind == "max")]
    raise error("FEATURE_NOT_SUPPORTED", f"{part.kind} as a window function is not supported")


def _sums(values: Ints, frame: Sequence[Stretch]) -> Ints:
    total = np.concatenate(([0], np.cumsum(values)))
    result: Ints = np.sum([np.where(low < high, total[high] - total[low], 0) for low, high in frame], axis=0)
    return result


def _limb_sums(limbs: wide.Limbs, weights: col.Mask, frame: Sequence[Stretch]) -> list[pa.Array]:
    sums = [_sums(np.where(weights, limb, 0), frame) for limb in limbs]
    return [pa.array(limb) for limb in wide.carry(np.stack(sums))]


def _float_sums(kind: str, values: Floats, weights: col.Mask, frame: Sequence[Stretch]) -> list[pa.Array]:
    """Columns as in `accumulators`, of kind `float` or `squares`."""
    rows = np.flatnonzero(weights & np.isfinite(values) & (values != 0))
    ones = np.ones(len(rows), np.int64)
    if kind == "squares":
        return _digit_sums(deviation.split_squares(rows, values[rows], ones), len(values), frame, deviation.SQUARE_BINS)
    tests = (np.isnan(values), np.isposinf(values), np.isneginf(values))
    special = [pa.array(_sums((weights & test).astype(np.int64), frame)) for test in tests]
    return [*special, *_digit_sums(exact_sum.split(rows, values[rows], ones), len(values), frame, exact_sum.BINS)]


def _digit_sums(digits: exact_sum.Digits, count: int, frame: Sequence[Stretch], bins: int) -> list[pa.Array]:
    """First bin and digits of each frame's sum."""
    sums = []
    for number in np.unique(digits.bins):
        mine = digits.bins == number
        dense = np.zeros(count, np.int64)
        np.add.at(dense, digits.rows[mine], digits.digits[mine])
        sums.append(exact_sum.Digits(np.arange(count), np.full(count, number), _sums(dense, frame)))
    lists = [table.lists() for (table,) in exact_sum.tables(count, [exact_sum.Digits.concat(sums)], bins)]
    return [pa.concat_arrays(list(pieces)) for pieces in zip(*lists, strict=True)]


def _extreme(values: pa.Array, weights: col.Mask, frame: Sequence[Stretch], *, largest: bool) -> pa.Array:
    """The smallest or largest value of each frame; NULL where it has none."""
    distinct, numbers = np.unique(order_keys(values)[weights], return_inverse=True)
    ranks = np.full(len(values), _GREATEST)
    ranks[weights] = len(distinct) - 1 - numbers if largest else numbers
    rows = np.zeros(len(distinct) + 1, np.int64)
    rows[ranks[weights]] = np.flatnonzero(weights)
    best = np.min([_least(ranks, low, high) for low, high in frame], axis=0)
    there = best < _GREATEST
    return pick(values, rows[np.where(there, best, 0)], there)


def _least(values: Ints, low: Ints, high: Ints) -> Ints:
    """The smallest of values[low:high] for each pair, by stretches of doubling length; the greatest integer for
    none.
    """
    result = np.full(len(low), _GREATEST)
    lengths = high - low
    level = np.where(lengths > 0, np.frexp(np.maximum(lengths, 1).astype(np.float64))[1] - 1, -1)
    table = values
    for k in range(int(level.max(initial=-1)) + 1):
        if k:
            half = 1 << k - 1
            table = np.minimum(table[:-half], table[half:])
        rows = np.flatnonzero(level == k)
        result[rows] = np.minimum(table[low[rows]], table[high[rows] - (1 << k)])
    return result


def aggregate_of(function: str, argument: int | None, condition: int | None) -> Aggregate:
    """The aggregate operator whose layout a window aggregate uses."""
    return Aggregate(
        (), (), append_only=False, keys=(), calls=(AggregateSpec(function, argument, condition, distinct=False),)
    )
