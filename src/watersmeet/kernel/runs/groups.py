"""Grouping of changes by key, and finding groups again in a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.distinct import distinct
from watersmeet.kernel.arrays.expand import pieces
from watersmeet.kernel.arrays.hashing import Hashes, is_bijective
from watersmeet.kernel.runs.order import stretches

Ints = npt.NDArray[np.int64]

_PIECE_ROWS: Final = 1 << 20


@dataclass(frozen=True, eq=False)
class Groups:
    """The groups of some rows, by ascending hash of their keys.

    order: the rows, group by group. starts: where in `order` each group starts. hashes, keys: of each group.
    """

    order: Ints
    starts: Ints
    hashes: Hashes
    keys: tuple[pa.Array, ...]

    @property
    def count(self) -> int:
        """The number of groups."""
        return len(self.starts)

    @cached_property
    def lengths(self) -> Ints:
        """The number of rows of each group."""
        return np.diff(self.starts, append=len(self.order))

    @cached_property
    def of_ordered(self) -> Ints:
        """For each row of `order`, its group."""
        return np.repeat(np.arange(self.count), self.lengths)

    @cached_property
    def of_row(self) -> Ints:
        """For each row, its group."""
        result = np.empty(len(self.order), np.int64)
        result[self.order] = self.of_ordered
        return result

    @cached_property
    def trusted(self) -> bool:
        """True if equal hashes alone prove equal keys."""
        return all(is_bijective(k.type) and k.null_count == 0 for k in self.keys) and len(self.keys) <= 1

    @cached_property
    def unique(self) -> bool:
        """True if no two groups have the same hash."""
        return not bool((self.hashes[1:] == self.hashes[:-1]).any())

    def find(self, hashes: Hashes) -> Iterator[tuple[Ints, Ints]]:
        """(group, place in `hashes`) for each pair with equal hashes, in pieces. `hashes` is sorted; compare keys!"""
        low = np.searchsorted(hashes, self.hashes)
        high = np.searchsorted(hashes, self.hashes, side="right")
        yield from pieces(low, high - low, _PIECE_ROWS)

    def same(self, group: Ints, keys: Sequence[pa.Array], rows: Ints, *, hashes_agree: bool = True) -> col.Mask:
        """Whether the key of each group is that of the row of `keys` at its side.

        hashes_agree: their hashes are known to be equal, all 64 bits of them.
        """
        if hashes_agree and self.trusted and all(k.null_count == 0 for k in keys):
            return np.ones(len(group), np.bool_)
        return col.rows_equal(
            [col.gather(k, group) for k in self.keys], [col.gather(k, rows) for k in keys], len(group), as_key=True
        )

    def take(self, groups: Ints) -> tuple[Hashes, list[pa.Array]]:
        """Hashes and keys of some groups."""
        return self.hashes[groups], [col.gather(k, groups) for k in self.keys]


def group(keys: Sequence[pa.Array], hashes: Hashes) -> Groups:
    """Groups rows by `keys`, which are in `key_form`; `hashes` are their key hashes."""
    order = np.argsort(hashes)
    ordered = hashes[order]
    starts, _ = stretches(ordered)
    result = _groups(keys, ordered, order, starts)
    if result.trusted or len(starts) == len(order):
        return result
    later = np.ones(len(order), np.bool_)
    later[starts] = False
    places = np.flatnonzero(later)
    same = col.rows_equal(
        [col.gather(k, order[places]) for k in keys],
        [col.gather(k, order[places - 1]) for k in keys],
        len(places),
        as_key=True,
    )
    if same.all():
        return result
    return _settle(keys, ordered, order, result, distinct(result.of_ordered[places[~same]]))


def _groups(keys: Sequence[pa.Array], ordered: Hashes, order: Ints, starts: Ints) -> Groups:
    first = order[starts]
    return Groups(order, starts, ordered[starts], tuple(col.gather(k, first) for k in keys))


def _settle(keys: Sequence[pa.Array], ordered: Hashes, order: Ints, found: Groups, mixed: Ints) -> Groups:
    """Splits the groups `mixed`, whose different keys have the same hash.

    About one in 2^64 pairs of keys comes here.
    """
    order = order.copy()
    begins = np.zeros(len(order), np.bool_)
    begins[found.starts] = True
    for g in mixed:
        start = int(found.starts[g])
        stop = start + int(found.lengths[g])
        part = order[start:stop]
        texts = [repr([k[int(row)].as_py() for k in keys]) for row in part]
        places = sorted(range(len(part)), key=texts.__getitem__)
        order[start:stop] = part[places]
        begins[start:stop] = [i == 0 or texts[p] != texts[places[i - 1]] for i, p in enumerate(places)]
    return _groups(keys, ordered, order, np.flatnonzero(begins))


def key_form(column: col.Column) -> pa.Array:
    """The column with equal values in equal bytes: floats in one form, intervals as whole months, days and the rest."""
    array = col.flat(column)
    if not col.is_interval(array.type) or len(array) == 0:
        return col.one_form(array)
    days, nanos = col.normal_interval(array).T
    data = np.empty(len(array), np.dtype([("months", "<i4"), ("days", "<i4"), ("nanos", "<i8")]))
    sign = np.sign(days)
    data["months"], data["days"], data["nanos"] = sign * (np.abs(days) // 30), sign * (np.abs(days) % 30), nanos
    valid = col.validity(array)
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(array.type, len(array), [bitmap, pa.py_buffer(data)])
