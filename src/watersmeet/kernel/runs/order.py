"""The canonical order of changes, their consolidation, and their diffs.

Diffs of rows, which are mostly all 1: then they take no memory, and nothing goes through them row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.hashing import Hashes, hash_columns

Diffs = npt.NDArray[np.int64]
_ONE: Final = np.int64(1)


def ones(count: int) -> Diffs:
    """So many diffs of 1, not to be written to. They take no memory."""
    return np.broadcast_to(_ONE, count)


def are_ones(diff: Diffs) -> bool:
    """True if every diff is 1."""
    if _is_one_value(diff) and len(diff):
        return int(diff[0]) == 1
    return bool((diff == 1).all())


def taken(diff: Diffs, rows: npt.NDArray[np.int64]) -> Diffs:
    """The diffs at `rows`. Not to be written to."""
    return ones(len(rows)) if _is_one_value(diff) and are_ones(diff) else diff[rows]


def joined(diffs: Sequence[Diffs]) -> Diffs:
    """All diffs, in order; at least one array of them. Not to be written to."""
    if all(_is_one_value(d) and are_ones(d) for d in diffs):
        return ones(sum(map(len, diffs)))
    return np.concatenate(diffs)


def _is_one_value(diff: Diffs) -> bool:
    """Whether it takes no memory, so that one value says what all are."""
    return diff.strides == (0,)


def canonical_rows(
    arrays: Sequence[pa.Array], diff: Diffs, key_hash: Hashes, *, whole_row: bool
) -> tuple[col.Positions, Diffs]:
    """(positions, diffs) of the consolidated changes in canonical order.

    arrays: the columns in `one_form`. key_hash: of the key columns, or of the whole rows if
    `whole_row`. Only rows with equal key hashes are hashed and compared as rows.
    """
    n = len(diff)
    order = np.argsort(key_hash)
    all_ones = are_ones(diff)
    ties = _same_as_next(key_hash[order])
    if not ties.any():
        if all_ones:
            return order, diff
        diff = diff[order]
        return (order, diff) if diff.all() else (order[diff != 0], diff[diff != 0])
    tied = np.zeros(n, np.bool_)
    tied[1:] = ties
    tied[:-1] |= ties
    places = np.flatnonzero(tied)
    rows, first = _settle(arrays, order[places], key_hash, whole_row=whole_row)
    order[places] = rows
    starts_row = np.ones(n, np.bool_)
    starts_row[places] = first
    starts = np.flatnonzero(starts_row)
    if all_ones:  # equal rows only add up
        return (order, diff) if len(starts) == n else (order[starts], np.diff(starts, append=n))
    order, sums = order[starts], np.add.reduceat(diff[order], starts)
    return (order, sums) if sums.all() else (order[sums != 0], sums[sums != 0])


def stretches(hashes: Hashes) -> tuple[col.Positions, col.Positions]:
    """The starts and lengths of the stretches of equal values in sorted `hashes`."""
    if len(hashes) == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    starts = np.concatenate(([0], np.flatnonzero(hashes[1:] != hashes[:-1]) + 1))
    return starts, np.diff(starts, append=len(hashes))


def _same_as_next(values: Hashes) -> col.Mask:
    same: col.Mask = values[1:] == values[:-1]
    return same


def _settle(
    arrays: Sequence[pa.Array], rows: col.Positions, key_hash: Hashes, *, whole_row: bool
) -> tuple[col.Positions, col.Mask]:
    """Sorts `rows`, sorted by key hash and all tied in it, by row hash; marks the first of equal rows."""
    groups = key_hash[rows]
    if whole_row:
        hashes = np.zeros(len(rows), np.uint64)
    else:
        hashes = hash_columns(col.gather_all(arrays, rows), len(rows), as_key=False)
        places = _sorted_within(groups, hashes)
        rows, groups, hashes = rows[places], groups[places], hashes[places]
    alike = np.flatnonzero(_same_as_next(groups) & _same_as_next(hashes))
    first = np.ones(len(rows), np.bool_)
    equal = _equal_to_next(arrays, rows, alike)
    if not equal.all():
        rows = _settle_collisions(arrays, rows, groups, hashes)
        equal = _equal_to_next(arrays, rows, alike)
    first[alike[equal] + 1] = False
    return rows, first


def _equal_to_next(arrays: Sequence[pa.Array], rows: col.Positions, at: col.Positions) -> col.Mask:
    left, right = rows[at], rows[at + 1]
    return col.rows_equal(col.gather_all(arrays, left), col.gather_all(arrays, right), len(at))


def _sorted_within(groups: Hashes, hashes: Hashes) -> col.Positions:
    """The positions that sort by (group, hash); `groups` is sorted already.

    One argsort of a word with the group's number in the high bits and the top of the hash in the
    low ones; only if that leaves ties undecided, both words are sorted by.
    """
    numbers = np.zeros(len(groups), np.uint64)
    np.cumsum(~_same_as_next(groups), out=numbers[1:])
    bits = max(1, int(numbers[-1]).bit_length())
    word = (numbers << np.uint64(64 - bits)) | (hashes >> np.uint64(bits))
    places = np.argsort(word)
    undecided = _same_as_next(word[places])
    if undecided.any():
        inner = hashes[places]
        if (undecided & (inner[1:] != inner[:-1])).any():
            places = np.lexsort((hashes, groups))
    return places


def _settle_collisions(
    arrays: Sequence[pa.Array], rows: col.Positions, groups: Hashes, hashes: Hashes
) -> col.Positions:
    """Orders different rows that have the same hashes by their text: about one in 2^64 pairs of rows comes here."""
    rows = rows.copy()
    changes = ~(_same_as_next(groups) & _same_as_next(hashes))
    starts = np.concatenate(([0], np.flatnonzero(changes) + 1))
    for start, stop in zip(starts, np.append(starts[1:], len(rows)), strict=True):
        if stop - start > 1:
            part = rows[start:stop]
            texts = [repr([a[int(r)].as_py() for a in arrays]) for r in part]
            rows[start:stop] = part[sorted(range(len(part)), key=texts.__getitem__)]
    return rows
