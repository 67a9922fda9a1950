"""What one epoch's changes bring to the accumulators of their groups."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from watersmeet.kernel.aggregates.accumulators import Fed, Feed, Ints
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.hashing import hash_columns
from watersmeet.kernel.runs.cold import near
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.groups import Groups, group, key_form
from watersmeet.kernel.runs.order import canonical_rows
from watersmeet.kernel.runs.run import make_run
from watersmeet.kernel.runs.state import State


@dataclass(eq=False)
class Feeder:
    """Makes the feeds of an epoch. keys: the group columns in `key_form`. Multisets live in traces of `operator_id`."""

    delta: Delta
    keys: list[pa.Array]
    groups: Groups
    state: State
    operator_id: str
    _ordered: dict[int, pa.Array] = field(default_factory=dict)

    def feed(self, wanted: Feed) -> Fed:
        """The values of a feed, in the order of their groups."""
        if wanted.distinct:
            return self._distinct(wanted)
        groups = self.groups
        values = None if wanted.argument is None else self._column(wanted.argument)
        weights = self.delta.diff[groups.order]
        valid = None if values is None else col.validity(values)
        if valid is not None:
            weights = weights * valid
        if wanted.filter is not None:
            weights = weights * true_rows(self._column(wanted.filter))
        starts = groups.starts if len(groups.order) else np.zeros(0, np.int64)
        return Fed(groups.of_ordered, starts, values, weights, groups.count)

    def rows(self, wanted: Feed) -> tuple[Ints, Ints]:
        """The rows of the changes that count for `wanted`, which has an argument, and their diffs."""
        assert wanted.argument is not None
        counts = self.delta.diff != 0
        valid = col.validity(col.flat(self.delta.columns.column(wanted.argument)))
        if valid is not None:
            counts &= valid
        if wanted.filter is not None:
            counts &= true_rows(col.flat(self.delta.columns.column(wanted.filter)))
        rows = np.flatnonzero(counts)
        return rows, self.delta.diff[rows]

    def _column(self, position: int) -> pa.Array:
        """A column in the order of the groups."""
        if position not in self._ordered:
            self._ordered[position] = col.gather(col.flat(self.delta.columns.column(position)), self.groups.order)
        return self._ordered[position]

    def _distinct(self, wanted: Feed) -> Fed:
        """Weight 1 for a value that its group did not have before, -1 for one that it has no more."""
        assert wanted.argument is not None
        trace = self.state.trace(self.operator_id, f"distinct-{wanted.argument}-{wanted.filter}")
        rows, diff = self.rows(wanted)
        value = key_form(self.delta.columns.column(wanted.argument))
        arrays = [col.gather(a, rows) for a in (*self.keys, value)]
        hashes = hash_columns(arrays)
        places, diff = canonical_rows(arrays, diff, hashes, whole_row=False)
        arrays, hashes = [col.gather(a, places) for a in arrays], hashes[places]
        pairs = group(arrays, hashes)
        before = np.zeros(len(hashes), np.int64)
        for run in near(trace.runs, lambda: pairs.hashes):
            for pair, row in pairs.find(run.hash):
                same = pairs.same(pair, run.arrays, row)
                np.add.at(before, pairs.order[pair[same]], run.diff[row[same]])
        trace.append(make_run(hashes, arrays, diff, tuple(range(len(arrays)))))
        weights = (before + diff > 0).astype(np.int64) - (before > 0)
        moved = np.flatnonzero(weights)
        owner = self.groups.of_row[rows[places[moved]]]
        order = np.argsort(owner, kind="stable")
        owner, moved = owner[order], moved[order]
        starts = np.flatnonzero(np.diff(owner, prepend=-1))
        return Fed(owner, starts, col.gather(arrays[-1], moved), weights[moved], self.groups.count)


def true_rows(column: pa.Array) -> col.Mask:
    """Where a boolean column is true."""
    return np.asarray(column.fill_null(fill_value=False).to_numpy(zero_copy_only=False))
