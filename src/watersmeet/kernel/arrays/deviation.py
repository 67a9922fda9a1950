"""Variance and standard deviation from exact sums of values and of their squares.

The numerator n * sum(x^2) - sum(x)^2 is computed exactly, in digits of 32 bits, and rounded once: there is no
cancellation, and neither order nor values that are gone leave a trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.kernel.arrays import exact_sum, wide
from watersmeet.kernel.arrays.exact_sum import Digits, Floats, Ints

#: Bins of the digits of a sum of squares of float64, which count 2^(32 b - 2148).
SQUARE_BINS: Final = 144
_SQUARE_ONE: Final = 2148
#: By which powers of two the squares of very large and very small numbers are kept apart. Even: roots have half of it.
_FAR: Final = 1200
_SMALL: Final = 2.0**-900
_LOW: Final = np.int64(0xFFFFFFFF)
_U32: Final = np.uint64(32)
_ULOW: Final = np.uint64(0xFFFFFFFF)
#: Groups that are worked on at a time.
_PIECE: Final = 4096


def split_squares(rows: Ints, values: Floats, weights: Ints) -> Digits:
    """The digits of values[i]^2 * weights[i], for row rows[i]. All values are finite; weights are below 2^31."""
    bits = values.view(np.int64)
    exponent = bits >> 52 & 0x7FF
    mantissa = ((bits & (1 << 52) - 1) | np.where(exponent > 0, np.int64(1 << 52), np.int64(0))).view(np.uint64)
    position = 2 * (np.maximum(exponent, 1) - 1)
    first, shift = position >> 5, (position & 31).astype(np.uint64)
    limbs = _squared(np.stack([mantissa & _ULOW, mantissa >> _U32]))
    over = np.zeros(len(rows), np.uint64)
    digits = []
    for limb in [*limbs, np.zeros_like(over)]:
        moved = (limb << shift) + over
        digits.append((moved & _ULOW).view(np.int64) * weights)
        over = moved >> _U32
    return Digits(
        np.concatenate([rows] * len(digits)),
        np.concatenate([first + i for i in range(len(digits))]),
        np.concatenate(digits),
    )


def wide_squares(array: pa.Array) -> wide.Limbs:
    """The squares of integers or decimals: twice as many limbs as `wide.limb_count`."""
    limbs = wide.split(array)
    magnitude = wide.magnitude(wide.carry(limbs), limbs[-1] < 0)
    return _squared(magnitude)[: 2 * len(limbs)].view(np.int64)


def _squared(limbs: wide.Words) -> wide.Words:
    """The square of a number of limbs in [0, 2^32), in twice as many."""
    count = len(limbs)
    result = np.zeros((2 * count, limbs.shape[1]), np.uint64)
    for i in range(count):
        over = np.zeros(limbs.shape[1], np.uint64)
        for j in range(count):
            product = limbs[i] * limbs[j] + result[i + j] + over  # at most (2^32 - 1)^2 + 2 (2^32 - 1): it fits
            result[i + j] = product & _ULOW
            over = product >> _U32
        result[i + count] = over
    return result


def float_numerators(
    counts: Ints, sums: tuple[pa.Array, pa.Array], squares: tuple[pa.Array, pa.Array]
) -> tuple[Floats, Ints]:
    """Numerators by group as (f, p): f * 2^p, f correctly rounded; from (first bin, digits) as `exact_sum` stores them.

    p is 0, or `_FAR` up or down where the number would not be a normal float.
    """
    pieces = [(np.zeros(0), np.zeros(0, np.int64))]
    for piece in _pieces(len(counts)):
        ((one,),) = exact_sum.tables(_length(piece, counts), [exact_sum.stored(*(a[piece] for a in sums))])
        ((other,),) = exact_sum.tables(
            _length(piece, counts), [exact_sum.stored(*(a[piece] for a in squares))], SQUARE_BINS
        )
        digits, first = _numerator(one.digits, 2 * one.first, other.digits, other.first, counts[piece])
        found = exact_sum.rounded(digits, first, 53, _SQUARE_ONE)
        power = np.where(np.isinf(found), _FAR, np.where(found < _SMALL, -_FAR, 0))
        for far in (_FAR, -_FAR):
            rows = np.flatnonzero(power == far)
            if len(rows):
                found[rows] = exact_sum.rounded(digits[:, rows], first, 53, _SQUARE_ONE + far)
        pieces.append((found, power))
    return np.concatenate([f for f, _ in pieces]), np.concatenate([p for _, p in pieces])


def wide_numerators(counts: Ints, sums: Sequence[pa.Array], squares: Sequence[pa.Array]) -> wide.Limbs:
    """The same from limbs, exact."""
    pieces = []
    for piece in _pieces(len(counts)):
        one, other = (_balanced([np.asarray(a[piece].to_numpy()) for a in part]) for part in (sums, squares))
        pieces.append(_numerator(one, 0, other, 0, counts[piece])[0])
    return np.concatenate(pieces, axis=1) if pieces else np.zeros((1, 0), np.int64)


def nearest(limbs: wide.Limbs) -> Floats:
    """Whole numbers as float64, correctly rounded."""
    return exact_sum.rounded(_balanced(list(limbs)), 0, 53, 0)


def _pieces(count: int) -> Iterator[slice]:
    return (slice(start, start + _PIECE) for start in range(0, count, _PIECE))


def _length(piece: slice, counts: Ints) -> int:
    return len(counts[piece])


def _balanced(limbs: Sequence[Ints]) -> Ints:
    """Digits in [-2^31, 2^31) of limbs that may be larger."""
    digits = np.stack([*limbs, *[np.zeros_like(limbs[0])] * 2])
    exact_sum.carry(digits)
    return digits


def _numerator(sums: Ints, sums_first: int, squares: Ints, squares_first: int, counts: Ints) -> tuple[Ints, int]:
    """(digits, first bin) of counts * squares - sums^2. sums_first: the bin of the square of the lowest digit."""
    first = min(sums_first, squares_first)
    width = max(sums_first + 2 * len(sums), squares_first + len(squares) + 2) - first + 2
    total = np.zeros((width, len(counts)), np.int64)
    low, high = counts & _LOW, counts >> 32
    for i, digit in enumerate(squares, squares_first - first):
        _add(total, i, digit * low)
        _add(total, i + 1, digit * high)
    used = [i for i in range(len(sums)) if sums[i].any()]
    for i in used:
        for j in used:
            _add(total, sums_first - first + i + j, -sums[i] * sums[j])
    exact_sum.carry(total)
    return total, first


def _add(total: Ints, place: int, product: Ints) -> None:
    total[place] += product & _LOW
    total[place + 1] += product >> 32


def deviation(function: str, counts: Ints, numerators: Floats, powers: Ints | int = 0) -> Floats:
    """var_pop, var_samp, stddev_pop or stddev_samp of groups with numerators * 2^powers and at least 1 value (2 for
    samp).
    """
    others = counts - 1 if function.endswith("samp") else counts
    values: Floats = numerators / np.maximum(counts * others, 1)
    if function.startswith("stddev"):
        values, powers = np.sqrt(values), powers // 2
    with np.errstate(over="ignore", under="ignore"):
        scaled: Floats = np.ldexp(values, powers)
    return scaled
