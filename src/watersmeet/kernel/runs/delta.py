"""Delta: changes of a relation, and its canonical form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.hashing import hash_columns
from watersmeet.kernel.runs.diffs import Diffs, joined, taken
from watersmeet.kernel.runs.order import canonical_rows
from watersmeet.types import Schema, arrow_schema


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
