"""Exact sums of floats, integers and decimals, and variances: independent of the order, and of retracted values.

A float is an integer times 2^-1074. Its sum is kept as digits of 32 bits: digit b counts 2^(32 b - 1074). Digits are
stored sparsely as (row, bin, digit) triples. The normal form, with digits in [-2^31, 2^31), is unique. Rounding happens
once, when the sum is read.

A wide integer column is an int64 array of shape (limbs, rows), little end first: the value of a row is the sum of
limb[i] * 2^(32 i). `carried` gives the normal form: all limbs but the last in [0, 2^32), the last one signed. Sums of
normal forms hold 2^31 terms before a limb could overflow.

Variance and standard deviation: the numerator n * sum(x^2) - sum(x)^2 is computed exactly and rounded once, so there is
no cancellation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.kernel.arrays import columns as col
from watersmeet.values.packing import offsets

Limbs = npt.NDArray[np.int64]

#: Limbs of a magnitude: each in [0, 2^32).
Words = npt.NDArray[np.uint64]

_BITS: Final = np.int64(32)
_STEP: Final = 9
_WORD: Final = 1 << 63


def limb_count(kind: pa.DataType) -> int:
    """The number of limbs for the sum of a column of integers or decimals of this type."""
    if pa.types.is_decimal(kind):
        return 1 if kind.precision <= 9 else 2 if kind.precision <= 18 else 4
    return 2 if kind.bit_width > 32 else 1


def limbs_of(array: pa.Array) -> Limbs:
    """The values of an integer or decimal128 array as limbs in normal form, undefined where NULL."""
    count = limb_count(array.type)
    words = col.words(array)
    if count == 4:
        low, high = words[:, 0], np.ascontiguousarray(words[:, 1]).view(np.int64)
        return np.stack([(low & _ULOW).view(np.int64), (low >> _U32).view(np.int64), high & _LOW, high >> _BITS])
    values = _one_word(words)
    return values[np.newaxis, :] if count == 1 else split_words(values)


def narrow(array: pa.Array, weights: Ints | None = None) -> Ints | None:
    """The values of an integer or decimal128 array in one word each, undefined where NULL; None if a sum of some of
    them might not fit into 63 bits. weights: the factor of each value; None if all are 1.
    """
    if limb_count(array.type) > 2 or len(array) == 0:
        return None
    values = _one_word(col.words(array))
    greatest = max(int(values.max()), -int(values.min()))
    weight = 1 if weights is None else max(int(weights.max()), -int(weights.min()))
    return values if greatest * weight * len(values) < 1 << 62 else None


def _one_word(words: npt.NDArray[np.generic]) -> Ints:
    return np.ascontiguousarray(words[:, 0]).view(np.int64) if words.ndim == 2 else words.astype(np.int64)


def split_words(values: npt.NDArray[np.int64]) -> Limbs:
    """Integers of 64 bits as two limbs in normal form."""
    return np.stack([values & _LOW, values >> _BITS])


def carried(limbs: Limbs) -> Limbs:
    """The limbs in normal form."""
    result = limbs.copy()
    for i in range(len(result) - 1):
        result[i + 1] += result[i] >> _BITS
        result[i] &= _LOW
    return result


def scaled(limbs: Limbs, power: int, *divisors: npt.NDArray[np.int64]) -> tuple[Words, col.Mask]:
    """The numbers value * 10^power / (product of divisors), rounded half away from zero: their magnitudes, and the mask
    of negative ones.

    divisors: each above 0.
    """
    normal = carried(limbs)
    negative: col.Mask = normal[-1] < 0
    size = magnitude_of(normal, negative)
    while power > 0:
        step = min(power, _STEP)
        size = _times(size, np.uint64(10**step))
        power -= step
    if not divisors and power == 0:
        return size, negative
    # floor((floor(2 v / d) + 1) / 2) is v / d rounded. Floors can be nested, so divisors are applied one by one.
    quotient = _times(size, np.uint64(2))
    while power < 0:
        step = min(-power, _STEP)
        quotient = _divided(quotient, np.uint64(10**step))
        power += step
    for divisor in divisors:
        quotient = _divided(quotient, divisor.view(np.uint64))
    return _half_up(quotient), negative


def to_decimal(magnitude: Words, negative: col.Mask, kind: pa.DataType, valid: col.Mask) -> tuple[pa.Array, col.Mask]:
    """The decimal128 array of unscaled values, NULL where not `valid` or too large, and the mask of too large
    values.
    """
    words = [magnitude[i] if i < len(magnitude) else np.zeros_like(magnitude[0]) for i in range(4)]
    low, high = words[0] | words[1] << _U32, words[2] | words[3] << _U32
    limit = 10**kind.precision
    limit_high, limit_low = np.uint64(limit >> 64), np.uint64(limit & (1 << 64) - 1)
    large = (high > limit_high) | ((high == limit_high) & (low >= limit_low))
    if len(magnitude) > 4:
        large |= magnitude[4:].any(axis=0)
    low = np.where(negative, ~low + np.uint64(1), low)
    high = np.where(negative, ~high + (low == 0), high)
    kept = valid & ~large
    data = np.where(kept, np.stack([low, high]), np.uint64(0)).T
    return _array(kind, kept, np.ascontiguousarray(data)), valid & large


def small_decimal(limbs: Limbs, kind: pa.DataType, valid: col.Mask, power: int) -> pa.Array | None:
    """A decimal128 array of the values * 10^power, NULL where not `valid`. None if one of them is too large, or needs
    the general arithmetic of `scaled`.
    """
    normal = carried(limbs)
    if len(normal) > 2 or (len(normal) == 2 and not (normal[1] == normal[1].astype(np.int32)).all()):
        return None
    values = np.where(valid, normal[0] if len(normal) == 1 else normal[0] | normal[1] << _BITS, 0)
    greatest = max(int(values.max(initial=0)), -int(values.min(initial=0)))
    if greatest * 10**power >= 10**kind.precision:
        return None
    step = power if greatest * 10**power < _WORD else max(0, power - _STEP)
    if greatest * 10**step >= _WORD or power - step > _STEP:
        return None
    values *= 10**step
    if step == power:
        return _array(kind, valid, np.stack([values, values >> np.int64(63)], axis=1))
    factor = 10 ** (power - step)
    below, above = (values & _LOW).view(np.uint64) * np.uint64(factor), (values >> _BITS) * np.int64(factor)
    low = below + (above << _BITS).view(np.uint64)
    high = (above >> _BITS) + (low < below)
    return _array(kind, valid, np.stack([low.view(np.int64), high], axis=1))


def to_integer(limbs: Limbs, kind: pa.DataType, valid: col.Mask) -> tuple[pa.Array, col.Mask]:
    """The int64 (or narrower) array, NULL where not `valid` or too large, and the mask of too large values."""
    normal = carried(limbs)
    if len(normal) == 1:
        values, large = normal[0], np.zeros(len(valid), np.bool_)
    else:
        values = normal[0] | normal[1] << _BITS
        assert len(normal) == 2, "decimals do not become integers"
        large = (normal[1] < -(1 << 31)) | (normal[1] >= 1 << 31)
    width = kind.bit_width
    if width < 64:
        large |= (values < -(1 << width - 1)) | (values >= 1 << width - 1)
    kept = valid & ~large
    return _array(kind, kept, np.where(kept, values, 0).astype(f"<i{width // 8}")), valid & large


def _array(kind: pa.DataType, valid: col.Mask, data: npt.NDArray[np.generic]) -> pa.Array:
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(valid), [bitmap, pa.py_buffer(data)])


def magnitude_of(normal: Limbs, negative: col.Mask) -> Words:
    """The magnitude as limbs in [0, 2^32), one more than the number has."""
    positive = carried(np.where(negative, -normal, normal))
    return np.concatenate([positive[:-1], positive[-1:] & _LOW, positive[-1:] >> _BITS]).view(np.uint64)


def _times(magnitude: Words, factor: np.uint64) -> Words:
    """The limbs multiplied by `factor`, which is below 2^31."""
    result = np.empty((len(magnitude) + 1, magnitude.shape[1]), np.uint64)
    over = np.zeros(magnitude.shape[1], np.uint64)
    for i, limb in enumerate(magnitude):
        product = limb * factor + over
        result[i] = product & _ULOW
        over = product >> _U32
    result[-1] = over
    return result if over.any() else result[:-1]


def _divided(magnitude: Words, divisor: np.uint64 | Words) -> Words:
    """The quotient, rounded down. Rows with a divisor of 2^32 or more are rare and are divided one by one."""
    large = np.flatnonzero(divisor > _ULOW) if isinstance(divisor, np.ndarray) else np.zeros(0, np.int64)
    small = np.minimum(divisor, _ULOW)
    result = np.empty_like(magnitude)
    rest = np.zeros(magnitude.shape[1], np.uint64)
    for i in range(len(magnitude) - 1, -1, -1):
        part = rest << _U32 | magnitude[i]
        result[i] = part // small
        rest = part - result[i] * small
    for row in large:
        assert isinstance(divisor, np.ndarray)
        value = sum(int(limb) << 32 * i for i, limb in enumerate(magnitude[:, row])) // int(divisor[row])
        result[:, row] = [value >> 32 * i & 0xFFFFFFFF for i in range(len(magnitude))]
    return result


def _half_up(twice: Words) -> Words:
    """(value + 1) / 2, rounded down."""
    result = twice.copy()
    result[0] += np.uint64(1)
    for i in range(len(result) - 1):
        result[i + 1] += result[i] >> _U32
        result[i] &= _ULOW
    for i in range(len(result)):
        above = result[i + 1] if i + 1 < len(result) else np.uint64(0)
        result[i] = (result[i] >> np.uint64(1)) | (above & np.uint64(1)) << np.uint64(31)
    return result


#: The number of bins of a float64 sum's digits, with room for carries.
BINS: Final = 72

#: The number of binary places from the smallest subnormal to 1.0.
_ONE: Final = 1074

_CELLS: Final = 1 << 21
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Digits:
    """Triples (row, bin, digit) in any order; those with equal row and bin add up. rows: from 0. digits: any int64."""

    rows: Ints
    bins: Ints
    digits: Ints

    @staticmethod
    def concat(parts: list[Digits]) -> Digits:
        """The triples of all parts."""
        return Digits(
            *(
                np.concatenate([getattr(p, name) for p in parts] or [np.zeros(0, np.int64)])
                for name in ("rows", "bins", "digits")
            )
        )


def split(rows: Ints, values: Floats, weights: Ints) -> Digits:
    """The digits of values[i] * weights[i], each for row rows[i]. All values are finite; weights are below 2^31."""
    bits = values.view(np.int64)
    exponent = bits >> 52 & 0x7FF
    mantissa = (bits & (1 << 52) - 1) | np.where(exponent > 0, np.int64(1 << 52), np.int64(0))
    position = np.maximum(exponent, 1) - 1
    first, shift = position >> 5, position & 31
    weights = np.where(bits < 0, -weights, weights)
    low = (mantissa & 0xFFFFFFFF) << shift
    high = ((mantissa >> 32) << shift) + (low >> 32)
    digits = [(low & 0xFFFFFFFF) * weights, (high & 0xFFFFFFFF) * weights, (high >> 32) * weights]
    return Digits(np.concatenate([rows] * 3), np.concatenate([first, first + 1, first + 2]), np.concatenate(digits))


def stored(first: pa.Array, lists: pa.Array) -> Digits:
    """The digits of rows, read from the form of `Table.lists`; NULL is 0."""
    bounds = offsets(lists)
    lengths = np.diff(bounds)
    within = np.arange(int(bounds[-1] - bounds[0])) - np.repeat(bounds[:-1] - bounds[0], lengths)
    digits = lists.values.slice(int(bounds[0]), int(bounds[-1] - bounds[0])).to_numpy().astype(np.int64)
    bins = np.repeat(first.fill_null(0).to_numpy().astype(np.int64), lengths) + within
    return Digits(np.repeat(np.arange(len(lists)), lengths), bins, digits)


@dataclass(frozen=True)
class Table:
    """The sums of the rows [start, start + n) in normal form. digits: an array of shape (bins, n), beginning with bin
    `first`.
    """

    start: int
    first: int
    digits: Ints

    def lists(self) -> tuple[pa.Array, pa.Array]:
        """The sums in stored form: for each row the first used bin (int16), and the digits from that bin on (list of
        int32).
        """
        width = len(self.digits)
        used = self.digits != 0
        empty = ~used.any(axis=0)
        low = np.where(empty, 0, np.argmax(used, axis=0))
        high = np.where(empty, 0, width - np.argmax(used[::-1], axis=0))
        bins = np.arange(width)
        inside = (bins >= low[:, np.newaxis]) & (bins < high[:, np.newaxis])
        offsets = np.concatenate(([0], np.cumsum(high - low)))
        digits = pa.array(self.digits.T[inside].astype(np.int32))
        return (
            pa.array(np.where(empty, 0, low + self.first).astype(np.int16)),
            pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), digits),
        )

    def rounded(self, precision: int) -> Floats:
        """The sums with `precision` (53 or 24) bits, half to even, as float64; infinite if too large."""
        return rounded(self.digits, self.first, precision)


def tables(num_rows: int, parts: list[Digits], bins: int = BINS) -> Iterator[tuple[Table, ...]]:
    """Dense sums of rows 0 to num_rows - 1, for some rows at a time: table i has the sums of parts[0] to parts[i].

    bins: the maximum number of bins.
    """
    used = [p.bins for p in parts if p.bins.size]
    if not used:
        yield tuple(Table(0, 0, np.zeros((1, num_rows), np.int64)) for _ in parts)
        return
    first = min(int(b.min()) for b in used)
    width = min(bins, max(int(b.max()) for b in used) + 3) - first
    step = max(1, _CELLS // width)
    if num_rows > step:
        orders = [np.argsort(p.rows, kind="stable") for p in parts]
        parts = [Digits(p.rows[o], p.bins[o], p.digits[o]) for p, o in zip(parts, orders, strict=True)]
    for start in range(0, num_rows, step):
        count = min(step, num_rows - start)
        total = np.zeros(width * count, np.int64)
        found = []
        for p in parts:
            a, b = (0, p.rows.size) if num_rows <= step else np.searchsorted(p.rows, (start, start + count))
            np.add.at(total, (p.bins[a:b] - first) * count + (p.rows[a:b] - start), p.digits[a:b])
            dense = total.reshape(width, count)
            carry(dense)
            found.append(Table(start, first, dense.copy()))
        yield tuple(found)


def carry(digits: Ints) -> None:
    """Brings digits into normal form, in place; the last bin receives the remaining carry."""
    for i in range(len(digits) - 1):
        over = (digits[i] + (1 << 31)) >> 32
        digits[i] -= over << 32
        digits[i + 1] += over


def rounded(digits: Ints, first: int, precision: int, one: int = _ONE) -> Floats:
    """Digits in normal form from bin `first` on, rounded to `precision` bits, half to even.

    one: the number of binary places below 1.0.
    """
    width, count = digits.shape
    columns = np.arange(count)
    # The sign is the highest digit's; the magnitude has digits in [0, 2^32).
    top = width - 1 - np.argmax(digits[::-1] != 0, axis=0)
    sign = np.sign(digits[top, columns])
    magnitude = digits * sign
    for i in range(width - 1):
        over = magnitude[i] >> 32
        magnitude[i] -= over << 32
        magnitude[i + 1] += over
    top = width - 1 - np.argmax(magnitude[::-1] != 0, axis=0)
    padded = np.concatenate([np.zeros((2, count), np.int64), magnitude]).view(np.uint64)
    high, middle, low = (padded[top + 2 - i, columns] for i in range(3))
    # `word` has the highest 64 bits. Lower bits matter only to break a tie.
    lead = (32 - np.frexp(high.astype(np.float64))[1]).astype(np.uint64)
    pair = high << np.uint64(32) | middle
    word = np.where(lead > 0, pair << lead | low >> (np.uint64(32) - lead), pair)
    drop = np.uint64(64 - precision)
    kept = word >> drop
    tail = word & ((np.uint64(1) << drop) - np.uint64(1))
    half = np.uint64(1) << (drop - np.uint64(1))
    up = tail > half
    ties = np.flatnonzero(tail == half)
    if len(ties):
        below = np.cumsum(magnitude[:, ties] != 0, axis=0)
        deep = (top[ties] >= 3) & (below[np.maximum(top[ties] - 3, 0), np.arange(len(ties))] > 0)
        rest = deep | ((low[ties] << lead[ties] & np.uint64(0xFFFFFFFF)) != 0)
        up[ties] = rest | (kept[ties] & np.uint64(1) == 1)
    mantissa = (kept + up).astype(np.float64)
    power = 32 * (top + first) + 31 - lead.astype(np.int64) - (precision - 1) - one
    with np.errstate(over="ignore"):
        return np.where(sign == 0, 0.0, np.ldexp(mantissa * sign, power.astype(np.int32)))


#: The number of bins for a sum of squares of float64, whose digit b counts 2^(32 b - 2148).
SQUARE_BINS: Final = 144

_SQUARE_ONE: Final = 2148

#: The power of two by which squares of very large and very small numbers are scaled: even, because roots are scaled by
#: half of it.
_FAR: Final = 1200

_SMALL: Final = 2.0**-900
_LOW: Final = np.int64(0xFFFFFFFF)
_U32: Final = np.uint64(32)
_ULOW: Final = np.uint64(0xFFFFFFFF)

#: The number of groups processed at a time.
_PIECE: Final = 4096


def split_squares(rows: Ints, values: Floats, weights: Ints) -> Digits:
    """The digits of values[i]^2 * weights[i], each for row rows[i]. All values are finite; weights are below 2^31."""
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


def wide_squares(array: pa.Array) -> Limbs:
    """The squares of integers or decimals, with twice as many limbs as `limb_count`."""
    limbs = limbs_of(array)
    magnitude = magnitude_of(carried(limbs), limbs[-1] < 0)
    return _squared(magnitude)[: 2 * len(limbs)].view(np.int64)


def _squared(limbs: Words) -> Words:
    """The square of a number with limbs in [0, 2^32), in twice as many limbs."""
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
    """The numerator of each group as (f, p), meaning f * 2^p with f correctly rounded.

    Sums and squares are in their stored form (first bin, digits). p is 0, or `_FAR` or -`_FAR` where the numerator is
    not a normal float.
    """
    pieces = [(np.zeros(0), np.zeros(0, np.int64))]
    for piece in _pieces(len(counts)):
        ((one,),) = tables(_length(piece, counts), [stored(*(a[piece] for a in sums))])
        ((other,),) = tables(_length(piece, counts), [stored(*(a[piece] for a in squares))], SQUARE_BINS)
        digits, first = _numerator(one.digits, 2 * one.first, other.digits, other.first, counts[piece])
        found = rounded(digits, first, 53, _SQUARE_ONE)
        power = np.where(np.isinf(found), _FAR, np.where(found < _SMALL, -_FAR, 0))
        for far in (_FAR, -_FAR):
            rows = np.flatnonzero(power == far)
            if len(rows):
                found[rows] = rounded(digits[:, rows], first, 53, _SQUARE_ONE + far)
        pieces.append((found, power))
    return np.concatenate([f for f, _ in pieces]), np.concatenate([p for _, p in pieces])


def wide_numerators(counts: Ints, sums: Sequence[pa.Array], squares: Sequence[pa.Array]) -> Limbs:
    """The exact numerators, from sums and squares as limbs."""
    pieces = []
    for piece in _pieces(len(counts)):
        one, other = (_balanced([np.asarray(a[piece].to_numpy()) for a in part]) for part in (sums, squares))
        pieces.append(_numerator(one, 0, other, 0, counts[piece])[0])
    return np.concatenate(pieces, axis=1) if pieces else np.zeros((1, 0), np.int64)


def nearest(limbs: Limbs) -> Floats:
    """Whole numbers as float64, correctly rounded."""
    return rounded(_balanced(list(limbs)), 0, 53, 0)


def _pieces(count: int) -> Iterator[slice]:
    return (slice(start, start + _PIECE) for start in range(0, count, _PIECE))


def _length(piece: slice, counts: Ints) -> int:
    return len(counts[piece])


def _balanced(limbs: Sequence[Ints]) -> Ints:
    """Limbs of any size as digits in [-2^31, 2^31)."""
    digits = np.stack([*limbs, *[np.zeros_like(limbs[0])] * 2])
    carry(digits)
    return digits


def _numerator(sums: Ints, sums_first: int, squares: Ints, squares_first: int, counts: Ints) -> tuple[Ints, int]:
    """The numerators counts * squares - sums^2 as (digits, first bin). sums_first: the bin of the square of the lowest
    digit of the sums.
    """
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
    carry(total)
    return total, first


def _add(total: Ints, place: int, product: Ints) -> None:
    total[place] += product & _LOW
    total[place + 1] += product >> 32


def deviation(function: str, counts: Ints, numerators: Floats, powers: Ints | int = 0) -> Floats:
    """var_pop, var_samp, stddev_pop or stddev_samp of groups with the numerators `numerators` * 2^`powers`. Each group
    has at least 1 value (2 for samp).
    """
    others = counts - 1 if function.endswith("samp") else counts
    values: Floats = numerators / np.maximum(counts * others, 1)
    if function.startswith("stddev"):
        values, powers = np.sqrt(values), powers // 2
    with np.errstate(over="ignore", under="ignore"):
        scaled: Floats = np.ldexp(values, powers)
    return scaled
