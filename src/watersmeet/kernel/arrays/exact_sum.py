"""Exact sums of floats: free of order, and a value that is taken away again leaves no trace.

A float is an integer times 2^-1074. Its sum is kept as digits of 32 bits: digit b counts 2^(32 b - 1074).
Digits are stored sparsely as (row, bin, digit) triples; only bins that a row uses exist. The normal
form, with digits in [-2^31, 2^31), is unique. Rounding happens once, when the sum is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.kernel.arrays import columns as col

#: Bins of the digits of a float64 sum, with room for carries.
BINS: Final = 72
#: The position of 1.0 above the smallest subnormal.
_ONE: Final = 1074
_CELLS: Final = 1 << 21

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Digits:
    """Triples in any order; equal (row, bin) pairs add up. rows: from 0. digits: any int64."""

    rows: Ints
    bins: Ints
    digits: Ints

    @staticmethod
    def concat(parts: list[Digits]) -> Digits:
        """All triples."""
        return Digits(
            *(
                np.concatenate([getattr(p, name) for p in parts] or [np.zeros(0, np.int64)])
                for name in ("rows", "bins", "digits")
            )
        )


def split(rows: Ints, values: Floats, weights: Ints) -> Digits:
    """The digits of values[i] * weights[i], for row rows[i]. All values are finite; weights are below 2^31."""
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
    """The digits of rows as `Table.lists` gives them; NULL is 0."""
    bounds = col.offsets(lists)
    lengths = np.diff(bounds)
    within = np.arange(int(bounds[-1] - bounds[0])) - np.repeat(bounds[:-1] - bounds[0], lengths)
    digits = lists.values.slice(int(bounds[0]), int(bounds[-1] - bounds[0])).to_numpy().astype(np.int64)
    bins = np.repeat(first.fill_null(0).to_numpy().astype(np.int64), lengths) + within
    return Digits(np.repeat(np.arange(len(lists)), lengths), bins, digits)


@dataclass(frozen=True)
class Table:
    """Sums of the rows [start, start + n) in normal form. digits: shape (bins, n), the first is bin `first`."""

    start: int
    first: int
    digits: Ints

    def lists(self) -> tuple[pa.Array, pa.Array]:
        """The sums as stored: per row the first bin that is used (int16) and the digits from it on (list of int32)."""
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
    """Dense sums of rows 0 … num_rows, some rows at a time: table i has the sums of parts[0] … parts[i].

    bins: how many there can be.
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
    """Makes the normal form, in place; the last bin takes the rest."""
    for i in range(len(digits) - 1):
        over = (digits[i] + (1 << 31)) >> 32
        digits[i] -= over << 32
        digits[i + 1] += over


def rounded(digits: Ints, first: int, precision: int, one: int = _ONE) -> Floats:
    """Digits in normal form, the first is bin `first`, with `precision` bits, half to even.

    one: the position of 1.0.
    """
    width, count = digits.shape
    columns = np.arange(count)
    # The sign is that of the highest digit; the magnitude has digits in [0, 2^32).
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
    # `word`: the 64 bits from the highest one; the rest below them matters only where it breaks a tie.
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
