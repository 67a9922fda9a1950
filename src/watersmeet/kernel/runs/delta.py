"""Changes of a relation: `Delta`, its canonical order and form, and changes in slices, which need not fit in memory.

Usually all diffs are 1: then they take no memory, and operations skip them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.hashing import Hashes, hash_columns, positions_by_hash
from watersmeet.values.types import Schema, arrow_schema

Diffs = npt.NDArray[np.int64]
_ONE: Final = np.int64(1)


def ones(count: int) -> Diffs:
    """Diffs of 1. Read-only; they take no memory."""
    return np.broadcast_to(_ONE, count)


def are_ones(diff: Diffs) -> bool:
    """True if every diff is 1."""
    if _is_one_value(diff) and len(diff):
        return int(diff[0]) == 1
    return bool((diff == 1).all())


def taken(diff: Diffs, rows: npt.NDArray[np.int64]) -> Diffs:
    """The diffs at `rows`. Read-only."""
    return ones(len(rows)) if _is_one_value(diff) and are_ones(diff) else diff[rows]


def joined(diffs: Sequence[Diffs]) -> Diffs:
    """The concatenated diffs; at least one array of them. Read-only."""
    if all(_is_one_value(d) and are_ones(d) for d in diffs):
        return ones(sum(map(len, diffs)))
    return np.concatenate(diffs)


def _is_one_value(diff: Diffs) -> bool:
    """Whether the array repeats one value without taking memory."""
    return diff.strides == (0,)


def canonical_rows(
    arrays: Sequence[pa.Array], diff: Diffs, key_hash: Hashes, *, whole_row: bool
) -> tuple[col.Positions, Diffs]:
    """The consolidated changes as (positions, diffs), in canonical order.

    arrays: the columns in `one_form`. key_hash: the hash of the key columns, or of the whole rows if `whole_row`. Only
    rows with equal key hashes are hashed and compared as rows.
    """
    n = len(diff)
    order = positions_by_hash(key_hash)
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
    rows, first = settle(arrays, order[places], key_hash, whole_row=whole_row)
    order[places] = rows
    starts_row = np.ones(n, np.bool_)
    starts_row[places] = first
    starts = np.flatnonzero(starts_row)
    if all_ones:  # equal rows add up
        return (order, diff) if len(starts) == n else (order[starts], np.diff(starts, append=n))
    order, sums = order[starts], np.add.reduceat(diff[order], starts)
    return (order, sums) if sums.all() else (order[sums != 0], sums[sums != 0])


def stretches(hashes: Hashes) -> tuple[col.Positions, col.Positions]:
    """The starts and lengths of the stretches of equal values in sorted `hashes`."""
    if len(hashes) == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    leads = np.ones(len(hashes), np.bool_)
    np.not_equal(hashes[1:], hashes[:-1], out=leads[1:])
    starts = np.flatnonzero(leads)
    lengths = np.empty_like(starts)
    np.subtract(starts[1:], starts[:-1], out=lengths[:-1])
    lengths[-1] = len(hashes) - starts[-1]
    return starts, lengths


def _same_as_next(values: Hashes) -> col.Mask:
    same: col.Mask = values[1:] == values[:-1]
    return same


def settle(
    arrays: Sequence[pa.Array],
    rows: col.Positions,
    key_hash: Hashes,
    *,
    whole_row: bool = False,
    row_hashes: Hashes | None = None,
) -> tuple[col.Positions, col.Mask]:
    """Sorts `rows`, which are sorted by key hash, by row hash as well. Marks the first of equal rows.

    whole_row: the key hash is the row hash. row_hashes: those of `rows`, if they are known.
    """
    groups = key_hash[rows]
    if whole_row:
        hashes = np.zeros(len(rows), np.uint64)
    else:
        if row_hashes is None:
            row_hashes = hash_columns(col.gather_all(arrays, rows), len(rows), as_key=False)
        places = _sorted_within(groups, row_hashes)
        rows, groups, hashes = rows[places], groups[places], row_hashes[places]
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

    Sorts by one word, with the group's number in its high bits and the top of the hash in the low ones; only if that
    leaves ties, by both words.
    """
    numbers = np.zeros(len(groups), np.uint64)
    np.cumsum(~_same_as_next(groups), out=numbers[1:])
    bits = max(1, int(numbers[-1]).bit_length())
    word = (numbers << np.uint64(64 - bits)) | (hashes >> np.uint64(bits))
    places = positions_by_hash(word)
    undecided = _same_as_next(word[places])
    if undecided.any():
        inner = hashes[places]
        if (undecided & (inner[1:] != inner[:-1])).any():
            places = np.lexsort((hashes, groups))
    return places


def _settle_collisions(
    arrays: Sequence[pa.Array], rows: col.Positions, groups: Hashes, hashes: Hashes
) -> col.Positions:
    """Orders different rows that have the same hashes by their text: about one in 2^64 pairs of rows."""
    rows = rows.copy()
    changes = ~(_same_as_next(groups) & _same_as_next(hashes))
    starts = np.concatenate(([0], np.flatnonzero(changes) + 1))
    for start, stop in zip(starts, np.append(starts[1:], len(rows)), strict=True):
        if stop - start > 1:
            part = rows[start:stop]
            texts = [repr([a[int(r)].as_py() for a in arrays]) for r in part]
            rows[start:stop] = part[sorted(range(len(part)), key=texts.__getitem__)]
    return rows


@dataclass(frozen=True, eq=False)
class Delta:
    """Rows, and the change of each row's multiplicity.

    columns: c0, c1, …; there may be none, so `diff` determines the number of rows. diff: int64. net: True if it is
    known that no row has diffs of both signs.
    """

    columns: pa.Table
    diff: Diffs
    net: bool = False

    @property
    def num_rows(self) -> int:
        """The number of changes, not the sum of their diffs."""
        return len(self.diff)

    @cached_property
    def arrays(self) -> Sequence[pa.Array]:
        """The columns, each as one array. Their chunks are not kept."""
        arrays = tuple(col.flat(c) for c in self.columns.columns)
        object.__setattr__(self, "columns", pa.Table.from_arrays(arrays, schema=self.columns.schema))
        return arrays

    @cached_property
    def normal(self) -> Sequence[pa.Array]:
        """The columns, each as one array in `one_form`."""
        return tuple(map(col.one_form, self.arrays))

    @cached_property
    def orders(self) -> dict[tuple[int, ...], tuple[Hashes, col.Positions]]:
        """Orders of the rows that several operators use, by the positions of keys."""
        return {}

    @cached_property
    def runs(self) -> dict[tuple[int, ...], Any]:
        """The changes as consolidated runs (`Run`), if the operator that made them has such, by the positions of
        keys.
        """
        return {}

    @staticmethod
    def empty(schema: pa.Schema) -> Delta:
        """No changes of a relation with the Arrow `schema`; its names become c0, c1, …"""
        return Delta(col.positional([pa.nulls(0, f.type) for f in schema]), np.zeros(0, np.int64))

    @staticmethod
    @lru_cache(maxsize=4096)  # most inputs of most epochs have no changes
    def none(schema: Schema) -> Delta:
        """No changes of a relation with the columns `schema`. Always returns the same object."""
        return Delta.empty(arrow_schema(schema, positional=True))

    @staticmethod
    def concat(deltas: Sequence[Delta]) -> Delta:
        """All changes of one or more deltas with equal column types, in order. Raises ValueError without deltas."""
        if len(deltas) == 1:
            return deltas[0]
        return Delta(pa.concat_tables([d.columns for d in deltas]), joined([d.diff for d in deltas]))

    def select(self, positions: Sequence[int]) -> Delta:
        """Only the columns at `positions`, in that order, renamed to c0, c1, …"""
        return Delta(col.positional([self.columns.column(i) for i in positions]), self.diff)

    def take(self, rows: col.Positions) -> Delta:
        """The changes at `rows`."""
        return Delta(col.gather_table(self.columns, rows), taken(self.diff, rows))

    def negated(self) -> Delta:
        """The opposite changes."""
        return Delta(self.columns, -self.diff)


def consolidate(delta: Delta, key_positions: tuple[int, ...] | None = None) -> Delta:
    """The same changes in canonical order, with each distinct row once and no diff 0.

    Canonical order is by the hash of the key columns, then by row hash; without `key_positions`, by row hash. Equal
    multisets of changes give equal bytes: floats are in one form (0.0 for -0.0, one NaN).
    """
    arrays = delta.normal
    if delta.num_rows == 1 and delta.diff[0]:
        return Delta(col.positional(arrays), delta.diff)
    keys = arrays if key_positions is None else [arrays[i] for i in key_positions]
    hashes = hash_columns(keys, delta.num_rows, as_key=key_positions is not None)
    rows, diff = canonical_rows(arrays, delta.diff, hashes, whole_row=key_positions is None)
    if len(rows) == 0:
        return Delta(col.positional([a.slice(0, 0) for a in arrays]), diff)
    return Delta(col.positional(col.gather_all(arrays, rows)), diff)


def empties(delta: Delta) -> col.Mask:
    """The changes that empty the table. The last columns are `_kept` and `_seq`."""
    kept = delta.columns.column(delta.columns.num_columns - 2)
    if kept.null_count == len(kept):
        return np.zeros(delta.num_rows, np.bool_)
    emptied: col.Mask = kept.is_valid().to_numpy() & (delta.diff < 0)
    return emptied


@dataclass(frozen=True)
class Slicing:
    """The size of slices, and the folder of temporary files.

    rows, bytes: output with more rows, or with approximately more bytes, is cut into slices of this size, whichever is
    less. directory: None for the system's folder.
    """

    rows: int = 1 << 20
    bytes: int = 64 << 20
    directory: str | None = None

    def rows_of(self, row_bytes: float) -> int:
        """The number of rows of a slice whose rows have about `row_bytes` bytes; at least 1."""
        return max(1, min(self.rows, int(self.bytes / max(row_bytes, 1.0))))


class Sliced:
    """Changes as slices, which are computed each time they are read.

    The concatenated slices are the changes in their order. Slices may be empty. retracts_first: no slice with a
    negative diff follows one with a positive diff. net: whether it is known that no row of all slices has diffs of both
    signs.
    """

    def __init__(self, make: Callable[[], Iterable[Delta]], *, retracts_first: bool = False, net: bool = False) -> None:
        self._make = make
        self.retracts_first = retracts_first
        self.net = net

    def __iter__(self) -> Iterator[Delta]:
        return iter(self._make())


def slices_of(changes: Delta | Sliced) -> Iterable[Delta]:
    """The slices of changes; a `Delta` is one."""
    return (changes,) if isinstance(changes, Delta) else changes


#: The number of bits per hash in a set of hashes.
_PLACES: Final = 16

_MOST_BITS: Final = 25

#: After this many columns that each excluded less than half of the rows, whole rows are compared.
_USELESS_COLUMNS: Final = 2


def without_cancelling(delta: Delta) -> Delta:
    """The same changes in which no row has diffs of both signs.

    Rows stay in order, but those with an equal row of the other sign are last, consolidated.
    """
    if delta.net:
        return delta
    negative = delta.diff < 0
    if not negative.any() or negative.all():
        return replace(delta, net=True)
    shared = _shared(delta, negative)
    if not len(shared):
        return replace(delta, net=True)
    rest = np.ones(delta.num_rows, np.bool_)
    rest[shared] = False
    found = Delta.concat([delta.take(np.flatnonzero(rest)), consolidate(delta.take(shared))])
    return replace(found, net=True)


def _shared(delta: Delta, negative: col.Mask) -> col.Positions:
    """Ascending rows, including all that have an equal row of the other sign and few others.

    Column by column, rows are dropped whose value does not occur with the other sign, until two columns dropped few.
    The hashes of the whole rows drop the others, so the result does not depend on the order of the columns.
    """
    rows = np.arange(delta.num_rows)
    columns = delta.columns.columns
    useless = 0
    for i in _excluding(columns):
        column = columns[i]
        part = column if len(rows) == delta.num_rows else col.gather(col.flat(column), rows)
        kept = rows[_on_both_sides(hash_columns([part], as_key=False), negative[rows])]
        useless += 2 * len(kept) > len(rows)
        rows = kept
        if not len(rows):
            return rows
        if useless == _USELESS_COLUMNS:
            break
    whole = len(rows) == delta.num_rows
    parts = columns if whole else [col.gather(col.flat(c), rows) for c in columns]
    hashes = hash_columns(parts, len(rows), as_key=False)
    kept = np.flatnonzero(_on_both_sides(hashes, negative[rows]))
    rows, hashes = rows[kept], hashes[kept]
    if not len(rows):
        return rows
    order = positions_by_hash(hashes)
    starts, lengths = stretches(hashes[order])
    below = negative[rows[order]].astype(np.int64)
    count = np.add.reduceat(below, starts)
    both = np.repeat((count > 0) & (count < lengths), lengths)
    return np.sort(rows[order[both]])


#: The number of bits of a hash by which one column excludes rows.
_COLUMN_BITS: Final = 20


class RowSet:
    """A set of rows, which quickly excludes most others: column by column, in the order of `_shared`, then by the hash
    of the whole row.
    """

    def __init__(self) -> None:
        self._marks: list[tuple[int, col.Mask]] = []
        self._hashes: list[Hashes] = []
        self._known: Hashes | None = None

    def add(self, columns: Sequence[col.Column]) -> None:
        """Adds rows, given by their columns, of which there is at least one."""
        if not self._marks:
            self._marks = [(i, np.zeros(1 << _COLUMN_BITS, np.bool_)) for i in _excluding(columns)]
        for i, marks in self._marks:
            marks[_place(columns[i])] = True
        self._hashes.append(hash_columns(columns, as_key=False))
        self._known = None

    def maybe(self, columns: Sequence[col.Column]) -> col.Positions:
        """Ascending rows, including all that are in the set, and few others."""
        rows = np.arange(len(columns[0]))
        if not self._hashes:
            return rows[:0]
        for i, marks in self._marks:
            part = columns[i] if len(rows) == len(columns[i]) else col.gather(col.flat(columns[i]), rows)
            rows = rows[marks[_place(part)]]
            if not len(rows):
                return rows
        if self._known is None:
            self._known = np.sort(np.concatenate(self._hashes))
            self._hashes = [self._known]
        known = self._known
        hashes = hash_columns([col.gather(col.flat(c), rows) for c in columns], len(rows), as_key=False)
        at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
        found: col.Positions = rows[known[at] == hashes]
        return found


def _place(column: col.Column) -> col.Positions:
    places: col.Positions = (hash_columns([column], as_key=False) & np.uint64((1 << _COLUMN_BITS) - 1)).view(np.int64)
    return places


def _excluding(columns: Sequence[col.Column]) -> list[int]:
    """The columns in the order in which they are compared: cheap ones first, of these the ones with many values."""
    samples = [c.slice(0, _SAMPLE_ROWS) for c in columns]
    few = len(samples[0]) <= _FEW_ROWS if samples else True
    values = [0 if few else len(np.unique(hash_columns([s], as_key=False))) for s in samples]
    return sorted(range(len(columns)), key=lambda i: (_cost(columns[i].type), -values[i], -i))


#: The number of rows from which the number of a column's values is estimated. If there are few rows, any order will do.
_SAMPLE_ROWS: Final = 1 << 10

_FEW_ROWS: Final = 1 << 6


def _cost(kind: pa.DataType) -> int:
    if col.is_bytes(kind):
        return 1
    return 2 if kind.num_fields else 0


def _on_both_sides(hashes: Hashes, negative: col.Mask) -> col.Mask:
    """The mask of rows whose hash occurs with both signs, and of a few others."""
    few = min(np.count_nonzero(negative), np.count_nonzero(~negative))
    bits = min(_MOST_BITS, (int(few) * _PLACES).bit_length() + 1)
    places = (hashes & np.uint64((1 << bits) - 1)).view(np.int64)  # in a bucket, the high bits may all be equal
    below, above = np.flatnonzero(negative), np.flatnonzero(~negative)
    above = _occurring(places, above, below, bits)
    below = _occurring(places, below, above, bits)
    marked = np.zeros(len(hashes), np.bool_)
    marked[above] = True
    marked[below] = True
    return marked


def _occurring(places: col.Positions, rows: col.Positions, others: col.Positions, bits: int) -> col.Positions:
    """Those of `rows` whose place is that of one of `others`."""
    known = np.zeros(1 << bits, np.bool_)
    known[places[others]] = True
    found: col.Positions = rows[known[places[rows]]]
    return found
