"""Removal of changes that cancel each other, where there are few: much cheaper than to consolidate all."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.hashing import Hashes, hash_columns
from watersmeet.kernel.runs.delta import Delta, consolidate
from watersmeet.kernel.runs.order import stretches

#: A set of hashes is a table of bits with so many places per hash.
_PLACES: Final = 16
_MOST_BITS: Final = 25


def without_cancelling(delta: Delta) -> Delta:
    """The same changes in which no row has diffs of both signs.

    Rows stay in order, except that those with an equal row of the other sign come last, consolidated.
    """
    negative = delta.diff < 0
    if not negative.any() or negative.all():
        return delta
    shared = _shared(delta, negative)
    if not len(shared):
        return delta
    rest = np.ones(delta.num_rows, np.bool_)
    rest[shared] = False
    return Delta.concat([delta.take(np.flatnonzero(rest)), consolidate(delta.take(shared))])


def _shared(delta: Delta, negative: col.Mask) -> col.Positions:
    """Rows, ascending, among them all that have an equal row of the other sign, and few others.

    Column by column, rows drop out whose value does not occur with the other sign; cheap columns first, and
    the later ones first, because they are NULL in one sign where an outer join's row finds or loses a partner.
    """
    rows = np.arange(delta.num_rows)
    columns = delta.columns.columns
    for i in sorted(range(len(columns)), key=lambda i: (_cost(columns[i].type), -i)):
        column = columns[i]
        part = column if len(rows) == delta.num_rows else col.gather(col.flat(column), rows)
        rows = rows[_on_both_sides(hash_columns([part], as_key=False), negative[rows])]
        if not len(rows):
            return rows
    hashes = hash_columns([col.gather(col.flat(c), rows) for c in columns], len(rows), as_key=False)
    order = np.argsort(hashes)
    starts, lengths = stretches(hashes[order])
    below = negative[rows[order]].astype(np.int64)
    count = np.add.reduceat(below, starts)
    both = np.repeat((count > 0) & (count < lengths), lengths)
    return np.sort(rows[order[both]])


def _cost(kind: pa.DataType) -> int:
    if col.is_bytes(kind):
        return 1
    return 2 if kind.num_fields else 0


def _on_both_sides(hashes: Hashes, negative: col.Mask) -> col.Mask:
    """Marks, among all rows and with a few wrong ones, those whose hash occurs with both signs."""
    few = min(np.count_nonzero(negative), np.count_nonzero(~negative))
    bits = min(_MOST_BITS, (int(few) * _PLACES).bit_length() + 1)
    places = (hashes & np.uint64((1 << bits) - 1)).view(np.int64)  # the high bits may all be those of a bucket
    marked = np.ones(len(hashes), np.bool_)
    for side in (negative, ~negative):
        known = np.zeros(1 << bits, np.bool_)
        known[places[side]] = True
        marked &= known[places]
    return marked
