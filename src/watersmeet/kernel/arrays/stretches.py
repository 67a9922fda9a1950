"""Sums and extremes over stretches: for each of many pairs, the values at the positions ("places") [low, high).

A frame is one or more disjoint stretches for each result. Sums are differences of running sums of integers, so a sum
depends only on the values of its own frame: it does not drift, however long the column is and however it is cut. Floats
are also added as integers: as two integers of a common unit if they span less than about 80 bits, which most columns
do, otherwise digit by digit (`exact_sum`). In both cases a sum is rounded once. Extremes use stretches of doubling
length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays import exact_sum
from watersmeet.kernel.arrays.exact_sum import Floats
from watersmeet.kernel.arrays.hashing import order_keys

Ints = npt.NDArray[np.int64]

#: A stretch of places [low, high) for each result, empty unless low < high.
Stretch = tuple[Ints, Ints]

_GREATEST: Final = np.iinfo(np.int64).max

#: The maximum bits of one of the two integers of a float, and the minimum for which they are worthwhile.
_MOST_BITS: Final = 42
_LEAST_BITS: Final = 30

#: Floats between 2^-_RANGE and 2^_RANGE can be scaled without loss.
_RANGE: Final = 900


def pick(values: pa.Array, at: Ints, there: col.Mask) -> pa.Array:
    """The values at the places `at`; NULL where `there` is false."""
    if there.all():
        return col.gather(values, at)
    return values.take(pa.array(np.where(there, at, 0), mask=~there))


def counts(weights: col.Mask, frame: Sequence[Stretch]) -> Ints:
    """The number of places with a weight in each frame."""
    if weights.all():
        found: Ints = np.sum([np.maximum(high - low, 0) for low, high in frame], axis=0)
        return found
    return sums(weights.astype(np.int64), frame)


def sums(values: Ints, frame: Sequence[Stretch]) -> Ints:
    """The sum of each frame. All sums together must fit into 64 bits."""
    total = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=total[1:])
    result: Ints = np.sum([np.where(low < high, total[high] - total[low], 0) for low, high in frame], axis=0)
    return result


def limb_sums(limbs: exact_sum.Limbs, weights: col.Mask, frame: Sequence[Stretch]) -> list[pa.Array]:
    """The limbs of each frame's sum, in normal form."""
    every = weights.all()
    found = [sums(limb if every else np.where(weights, limb, 0), frame) for limb in limbs]
    return [pa.array(limb) for limb in exact_sum.carried(np.stack(found))]


def digit_sums(kind: str, values: Floats, weights: col.Mask, frame: Sequence[Stretch]) -> list[pa.Array]:
    """The columns of an accumulator of kind `float` or `squares`, with a row for each frame."""
    rows = np.flatnonzero(weights & np.isfinite(values) & (values != 0))
    ones = np.ones(len(rows), np.int64)
    if kind == "squares":
        return _digits(exact_sum.split_squares(rows, values[rows], ones), len(values), frame, exact_sum.SQUARE_BINS)
    special = [pa.array(counts(weights & test, frame)) for test in _special(values)]
    return [*special, *_digits(exact_sum.split(rows, values[rows], ones), len(values), frame, exact_sum.BINS)]


def _special(values: Floats) -> tuple[col.Mask, col.Mask, col.Mask]:
    return np.isnan(values), np.isposinf(values), np.isneginf(values)


def _digits(digits: exact_sum.Digits, count: int, frame: Sequence[Stretch], bins: int) -> list[pa.Array]:
    """The first bin and the digits of each frame's sum."""
    results = len(frame[0][0])
    found = []
    for number in np.unique(digits.bins):
        mine = digits.bins == number
        dense = np.zeros(count, np.int64)
        np.add.at(dense, digits.rows[mine], digits.digits[mine])
        found.append(exact_sum.Digits(np.arange(results), np.full(results, number), sums(dense, frame)))
    lists = [table.lists() for (table,) in exact_sum.tables(results, [exact_sum.Digits.concat(found)], bins)]
    return [pa.concat_arrays(list(pieces)) for pieces in zip(*lists, strict=True)]


def float_sums(values: Floats, weights: col.Mask, frame: Sequence[Stretch], precision: int) -> Floats | None:
    """The sum of each frame, correctly rounded to `precision` (53 or 24) bits; 0 without values.

    None if the values span too many bits for two integers.
    """
    finite = np.isfinite(values)
    every = bool(finite.all())
    parts = _two_integers(np.where(weights if every else weights & finite, values, 0.0))
    if parts is None:
        return None
    bits, unit, high, low = parts
    upper, lower = sums(high, frame), sums(low, frame)
    over = lower >> bits
    lower -= over << bits
    upper += over
    # The two floats add up to the exact sum, so one addition rounds it once.
    near = upper.astype(np.float64)
    rest = (((upper - near.astype(np.int64)) << bits) + lower).astype(np.float64)
    near = np.ldexp(near, bits)
    total = near + rest
    if precision < 53:
        total = _to_odd(total, near, rest)
    total = np.ldexp(total, unit)
    if not every:
        nans, infinities, negatives = (counts(weights & test, frame) > 0 for test in _special(values))
        total[infinities], total[negatives] = np.inf, -np.inf
        total[nans | infinities & negatives] = np.nan
    return total


def _two_integers(values: Floats) -> tuple[np.int64, int, Ints, Ints] | None:
    """(bits, unit, high, low) with each value = (high * 2^bits + low) * 2^unit; None if two integers are too few."""
    bits = min(_MOST_BITS, 62 - len(values).bit_length())
    greatest = float(np.abs(values).max(initial=0.0))
    exponent = int(np.frexp(greatest)[1])
    if bits < _LEAST_BITS or abs(exponent) > _RANGE:
        return None
    scaled = np.ldexp(values, bits - exponent)
    high = np.trunc(scaled)
    low = np.ldexp(scaled - high, bits)
    if (low != np.trunc(low)).any() or ((scaled == 0) & (values != 0)).any():
        return None
    return np.int64(bits), exponent - 2 * bits, high.astype(np.int64), low.astype(np.int64)


def _to_odd(total: Floats, near: Floats, rest: Floats) -> Floats:
    """The sum near + rest, rounded such that a second rounding to fewer bits gives the result of a single rounding: if
    inexact, to the neighbor with an odd last bit.
    """
    back = total - near
    lost = (near - (total - back)) + (rest - back)
    even = (lost != 0) & (total.view(np.int64) & 1 == 0)
    return np.where(even, np.nextafter(total, np.where(lost > 0, np.inf, -np.inf)), total)


def extremes(values: pa.Array, weights: col.Mask, frame: Sequence[Stretch], *, largest: bool) -> pa.Array:
    """The smallest or largest value of each frame; NULL where it has none. values: in `key_form`."""
    kind = values.type
    if pa.types.is_floating(kind) or (
        (pa.types.is_integer(kind) or pa.types.is_temporal(kind)) and kind.bit_width <= 64
    ):
        keys = order_keys(values)
        best = _best(np.where(weights, ~keys if largest else keys, _GREATEST), frame)
        there = counts(weights, frame) > 0
        return _of_keys(~best if largest else best, kind, there)
    distinct, numbers = np.unique(order_keys(values)[weights], return_inverse=True)
    ranks = np.full(len(values), _GREATEST)
    ranks[weights] = len(distinct) - 1 - numbers if largest else numbers
    rows = np.zeros(len(distinct) + 1, np.int64)
    rows[ranks[weights]] = np.flatnonzero(weights)
    best = _best(ranks, frame)
    there = best < _GREATEST
    return pick(values, rows[np.where(there, best, 0)], there)


def _of_keys(keys: Ints, kind: pa.DataType, there: col.Mask) -> pa.Array:
    """The values of a fixed-width type with these `order_keys`."""
    keys = np.where(there, keys, 0)
    mask = None if there.all() else ~there
    if pa.types.is_floating(kind):
        floats = (keys ^ (keys >> 63 & np.int64(_GREATEST))).view(np.float64)
        return pa.array(floats.astype(kind.to_pandas_dtype()), kind, mask=mask, from_pandas=False)
    whole = np.ascontiguousarray(keys.astype(f"<i{kind.bit_width // 8}"))
    return pa.array(whole, mask=mask).view(kind)


def _best(values: Ints, frame: Sequence[Stretch]) -> Ints:
    found: Ints = np.min([_least(values, low, high) for low, high in frame], axis=0)
    return found


def _least(values: Ints, low: Ints, high: Ints) -> Ints:
    """The smallest of values[low:high] for each pair, computed by stretches of doubling length; the greatest integer if
    it is empty.
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
