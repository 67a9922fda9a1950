"""Changes of a relation: `Delta`, its canonical form, and changes that come in slices.

Changes that depend on the rows that are there, as a partial `Upsert` takes them.

Changes that are too many to be held at once: they are made slice by slice.

Removal of changes that cancel each other, where there are few: much cheaper than to consolidate all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.hashing import Hashes, hash_columns
from watersmeet.kernel.runs.order import Diffs, canonical_rows, joined, stretches, taken
from watersmeet.values.types import Schema, arrow_schema


@dataclass(frozen=True, eq=False)
class Delta:
    """Rows and by how much the multiplicity of each changes.

    columns: c0, c1, … (maybe none: the number of rows is that of `diff`). diff: int64.
    """

    columns: pa.Table
    diff: Diffs

    @property
    def num_rows(self) -> int:
        """The number of changes, not the sum of their diffs."""
        return len(self.diff)

    @property
    def arrays(self) -> list[pa.Array]:
        """The columns, each as one array."""
        return [col.flat(c) for c in self.columns.columns]

    @staticmethod
    def empty(schema: pa.Schema) -> Delta:
        """No changes of a relation with the Arrow `schema`; its names become c0, c1, …"""
        return Delta(col.positional([pa.array([], f.type) for f in schema]), np.zeros(0, np.int64))

    @staticmethod
    @lru_cache(maxsize=4096)  # most inputs of most epochs have no changes
    def none(schema: Schema) -> Delta:
        """No changes of a relation with the columns `schema`. The same each time."""
        return Delta.empty(arrow_schema(schema, positional=True))

    @staticmethod
    def concat(deltas: Sequence[Delta]) -> Delta:
        """All changes of one or more deltas with equal column types, in order. ValueError if there are none."""
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
    """The same changes with one row per distinct row, no diff 0, in canonical order.

    Canonical order is by the hash of the key columns, then by row hash; without `key_positions` by
    row hash alone. Equal multisets of changes give equal bytes. Floats come out in one form
    (0.0 for -0.0, one NaN).
    """
    arrays = [col.one_form(c) for c in delta.columns.columns]
    keys = arrays if key_positions is None else [arrays[i] for i in key_positions]
    hashes = hash_columns(keys, delta.num_rows, as_key=key_positions is not None)
    rows, diff = canonical_rows(arrays, delta.diff, hashes, whole_row=key_positions is None)
    if len(rows) == 0:
        return Delta(col.positional([a.slice(0, 0) for a in arrays]), diff)
    return Delta(col.positional(col.gather_all(arrays, rows)), diff)


def empties(delta: Delta) -> col.Mask:
    """Which changes empty the table. The last columns are `_kept` and `_seq`."""
    kept = delta.columns.column(delta.columns.num_columns - 2)
    if kept.null_count == len(kept):
        return np.zeros(delta.num_rows, np.bool_)
    emptied: col.Mask = kept.is_valid().to_numpy() & (delta.diff < 0)
    return emptied


@dataclass(frozen=True)
class Slicing:
    """How large slices are, and where they wait if they have to.

    rows, bytes: output of more rows, or of about more bytes, is made in slices of that size, whichever is less.
    directory: where temporary files are made; None for the system's place.
    """

    rows: int = 1 << 20
    bytes: int = 64 << 20
    directory: str | None = None

    def rows_of(self, row_bytes: float) -> int:
        """The rows of a slice whose rows have about that many bytes; at least 1."""
        return max(1, min(self.rows, int(self.bytes / max(row_bytes, 1.0))))


class Sliced:
    """Changes as slices, which are made when they are read: each reading makes them anew.

    The slices one after the other are the changes in their order. Slices may be empty.
    """

    def __init__(self, make: Callable[[], Iterable[Delta]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Delta]:
        return iter(self._make())


def slices_of(changes: Delta | Sliced) -> Iterable[Delta]:
    """The slices of changes; those that are held at once are one."""
    return (changes,) if isinstance(changes, Delta) else changes


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
