"""Matching of keys: the distinct keys of one run, found in other runs.

A match by hash is verified on the key itself, once per distinct key and run: that is enough because the
runs are pure (see `Run.parts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.expand import pieces
from watersmeet.kernel.runs.diffs import Diffs
from watersmeet.kernel.runs.order import canonical_rows
from watersmeet.kernel.runs.run import Run
from watersmeet.kernel.runs.trace import PIECE_ROWS, find


class Probe:
    """The distinct keys ("groups") of a pure run: group g is its rows [starts[g], starts[g] + lengths[g]).

    exact: equal hashes are known to mean equal keys, so that nothing needs to be compared.
    """

    def __init__(self, run: Run, *, exact: bool) -> None:
        assert run.pure
        self.run = run
        self.starts, self.lengths = run.stretches
        self.hashes = run.hash[self.starts]
        self._exact = exact
        self._found: dict[int, tuple[Run, col.Positions, col.Positions]] = {}

    @property
    def num_groups(self) -> int:
        """The number of distinct keys."""
        return len(self.starts)

    def of_rows(self, values: Diffs) -> Diffs:
        """Values by group as values by row."""
        return values if self.num_groups == self.run.num_rows else np.repeat(values, self.lengths)

    def sums(self) -> Diffs:
        """The sum of diffs of each group."""
        return np.add.reduceat(self.run.diff, self.starts) if self.num_groups else np.zeros(0, np.int64)

    def ranges(self, other: Run) -> tuple[col.Positions, col.Positions]:
        """For each group, the rows [low, high) of the pure run `other` that have its key."""
        if id(other) not in self._found:
            found = find(other, self.hashes)
            low, high = found.low, found.high
            hit = np.flatnonzero(high > low)
            if len(hit) and not self._exact:
                mine, theirs = self.starts[hit], low[hit]
                same = col.rows_equal(
                    col.gather_all(self.run.key_arrays, mine),
                    col.gather_all(other.key_arrays, theirs),
                    len(hit),
                    as_key=True,
                )
                high[hit[~same]] = theirs[~same]
            self._found[id(other)] = (other, low, high)  # keeps `other` alive, so its id stays its own
        return self._found[id(other)][1:]

    def counts(self, others: Iterable[Run]) -> Diffs:
        """For each group, the sum of diffs over all rows of the pure runs `others` that have its key."""
        total = np.zeros(self.num_groups, np.int64)
        for other in others:
            low, high = self.ranges(other)
            if other.all_ones:
                total += high - low
            else:
                for group, row in pieces(low, high - low, PIECE_ROWS):
                    np.add.at(total, group, other.diff[row])
        return total

    def matches(self, others: Iterable[Run]) -> col.Positions:
        """For each group, the number of rows of the pure runs `others` that have its key."""
        total = np.zeros(self.num_groups, np.int64)
        for other in others:
            low, high = self.ranges(other)
            total += high - low
        return total

    def pairs(self, other: Run, limit: int = PIECE_ROWS) -> Iterator[tuple[col.Positions, col.Positions]]:
        """All (row here, row of `other`) with equal keys, in order, at most `limit` at a time."""
        low, high = self.ranges(other)
        yield from self._expanded(np.flatnonzero(high > low), low, high, limit)

    def rows_of(
        self, groups: col.Positions, other: Run, limit: int = PIECE_ROWS
    ) -> Iterator[tuple[col.Positions, col.Positions]]:
        """All (group, row of `other`) with equal keys, of the given groups only, at most `limit` at a time."""
        low, high = self.ranges(other)
        for index, row in pieces(low[groups], (high - low)[groups], limit):
            yield groups[index], row

    def content(self, others: Iterable[Run]) -> tuple[col.Positions, list[pa.Array], Diffs] | None:
        """(groups, columns, diffs) of all rows of `others` that have a key of this run; None if there are none.

        Consolidated, by group, within a group in canonical order.
        """
        groups, tables, diffs = [], [], []
        for other in others:
            for group, rows in self.rows_of(np.arange(self.num_groups), other):
                groups.append(group)
                tables.append(col.gather_all(other.arrays, rows))
                diffs.append(other.diff[rows])
        if not groups:
            return None
        arrays = [pa.concat_arrays([t[i] for t in tables]) for i in range(len(tables[0]))]
        found = np.concatenate(groups)
        rows, diff = canonical_rows(arrays, np.concatenate(diffs), found.astype(np.uint64), whole_row=False)
        return found[rows], col.gather_all(arrays, rows), diff

    def _expanded(
        self, hit: col.Positions, low: col.Positions, high: col.Positions, limit: int
    ) -> Iterator[tuple[col.Positions, col.Positions]]:
        low, counts = low[hit], (high - low)[hit]
        if self.num_groups == self.run.num_rows:
            mine = self.starts[hit]
            whole = len(mine) == self.run.num_rows
            for index, row in pieces(low, counts, limit):
                yield index if whole else mine[index], row
            return
        for group, mine in pieces(self.starts[hit], self.lengths[hit], limit):  # a group may have any number of rows
            for index, row in pieces(low[group], counts[group], limit):
                yield mine[index], row


def probes(runs: Iterable[Run], *, exact: bool) -> list[Probe]:
    """Probes for all rows of `runs`."""
    return [Probe(part, exact=exact) for run in runs if run.num_rows for part in run.parts]


def parts(runs: Iterable[Run]) -> list[Run]:
    """The pure runs that `runs` are made of."""
    return [part for run in runs if run.num_rows for part in run.parts]
