"""Integers wider than 64 bits, a column at a time: exact sums and averages of integers and decimals.

A wide column is an int64 array of shape (limbs, rows), little end first: the value of a row is the
sum of limb[i] * 2^(32 i). `carry` gives the normal form: all limbs but the last in [0, 2^32), the
last one signed. Sums of normal forms hold 2^31 terms before a limb could overflow.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.kernel.arrays import columns as col

Limbs = npt.NDArray[np.int64]
#: Limbs of a magnitude: each in [0, 2^32).
Words = npt.NDArray[np.uint64]

_BITS: Final = np.int64(32)
_LOW: Final = np.int64(0xFFFFFFFF)
_U32: Final = np.uint64(32)
_ULOW: Final = np.uint64(0xFFFFFFFF)
_STEP: Final = 9


def limb_count(kind: pa.DataType) -> int:
    """How many limbs hold the sum of a column of integers or decimals of this type."""
    if pa.types.is_decimal(kind):
        return 1 if kind.precision <= 9 else 2 if kind.precision <= 18 else 4
    return 2 if kind.bit_width > 32 else 1


def split(array: pa.Array) -> Limbs:
    """The values of an integer or decimal128 array as limbs in normal form; what stands for NULL is undefined."""
    count = limb_count(array.type)
    words = col.words(array)
    if count == 4:
        low, high = words[:, 0], np.ascontiguousarray(words[:, 1]).view(np.int64)
        return np.stack([(low & _ULOW).view(np.int64), (low >> _U32).view(np.int64), high & _LOW, high >> _BITS])
    values = np.ascontiguousarray(words[:, 0]).view(np.int64) if words.ndim == 2 else words.astype(np.int64)
    return values[np.newaxis, :] if count == 1 else np.stack([values & _LOW, values >> _BITS])


def carry(limbs: Limbs) -> Limbs:
    """The normal form."""
    result = limbs.copy()
    for i in range(len(result) - 1):
        result[i + 1] += result[i] >> _BITS
        result[i] &= _LOW
    return result


def scaled(limbs: Limbs, power: int, *divisors: npt.NDArray[np.int64]) -> tuple[Words, col.Mask]:
    """Gives value * 10^power / product of divisors, rounded half away from zero: its magnitude, and where it is
    negative.

    divisors: above 0.
    """
    normal = carry(limbs)
    negative: col.Mask = normal[-1] < 0
    size = magnitude(normal, negative)
    while power > 0:
        step = min(power, _STEP)
        size = _times(size, np.uint64(10**step))
        power -= step
    if not divisors and power == 0:
        return size, negative
    # floor((floor(2 v / d) + 1) / 2) is v / d rounded; floors may be nested, so factors go one by one.
    quotient = _times(size, np.uint64(2))
    while power < 0:
        step = min(-power, _STEP)
        quotient = _divided(quotient, np.uint64(10**step))
        power += step
    for divisor in divisors:
        quotient = _divided(quotient, divisor.view(np.uint64))
    return _half_up(quotient), negative


def to_decimal(magnitude: Words, negative: col.Mask, kind: pa.DataType, valid: col.Mask) -> tuple[pa.Array, col.Mask]:
    """The decimal128 array of unscaled values; NULL where not `valid` or too large.

    Also tells where they are too large.
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


def to_integer(limbs: Limbs, kind: pa.DataType, valid: col.Mask) -> tuple[pa.Array, col.Mask]:
    """The int64 (or narrower) array; NULL where not `valid` or too large. Also tells where they are too large."""
    normal = carry(limbs)
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


def magnitude(normal: Limbs, negative: col.Mask) -> Words:
    """Limbs in [0, 2^32), one more than there were."""
    positive = carry(np.where(negative, -normal, normal))
    return np.concatenate([positive[:-1], positive[-1:] & _LOW, positive[-1:] >> _BITS]).view(np.uint64)


def _times(magnitude: Words, factor: np.uint64) -> Words:
    """factor: below 2^31."""
    result = np.empty((len(magnitude) + 1, magnitude.shape[1]), np.uint64)
    over = np.zeros(magnitude.shape[1], np.uint64)
    for i, limb in enumerate(magnitude):
        product = limb * factor + over
        result[i] = product & _ULOW
        over = product >> _U32
    result[-1] = over
    return result if over.any() else result[:-1]


def _divided(magnitude: Words, divisor: np.uint64 | Words) -> Words:
    """The quotient, rounded down. Rows with a divisor of 2^32 or more are rare and go one by one."""
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
