"""Trace: the runs of one arrangement, and probing by hash."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.expand import pieces
from watersmeet.kernel.arrays.hashing import Hashes
from watersmeet.kernel.runs.cold import near
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.merge import Keep, MergeBudget, MergeRuns, begun, merge_runs, settled
from watersmeet.kernel.runs.run import Run

#: Pairs that are expanded at a time.
PIECE_ROWS: Final = 1 << 20


@dataclass(frozen=True, eq=False)
class Matches:
    """For each of some sorted distinct hashes, the rows [low, high) of `run` that have it."""

    run: Run
    low: col.Positions
    high: col.Positions


class Trace:
    """The current content of an arrangement, as the sum of its runs, oldest first.

    Laws: appending and merging never change the sum of diffs of any row; the runs depend only on the
    sequence of runs appended, not on when or where it happened. A row is rewritten by merges about
    log4(rows of the trace / rows of a run) times. Large merges take several epochs, and the content is the same in
    between.

    budget: how much may be merged in this epoch; may be shared by traces. keep: see `settled`.
    """

    def __init__(self, runs: Iterable[Run] = (), budget: MergeBudget | None = None, keep: Keep | None = None) -> None:
        self._runs = tuple(runs)
        self._keep = keep
        self._budget = MergeBudget() if budget is None else budget

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs, oldest first."""
        return self._runs

    @property
    def num_rows(self) -> int:
        """Entries in all runs; a row and its retraction count as two until a merge meets both."""
        return sum(r.num_rows for r in self._runs)

    @property
    def size_bytes(self) -> int:
        """Bytes of the values in all runs."""
        return sum(r.size_bytes for r in self._runs)

    def append(self, run: Run, merge: MergeRuns = merge_runs, *, replacing: bool = False) -> None:
        """Adds changes, and merges by `merge` what is due, as far as the budget goes. replacing: as in `settled`."""
        if run.num_rows:
            runs = [*self._runs, run]
            self._runs = tuple(settled(runs, merge, self._budget, self._keep, replacing=replacing))

    def merge_all(self, merge: MergeRuns) -> None:
        """Merges all runs, in this epoch or from it on, unless they are being merged."""
        if self._runs and not any(r.merging for r in self._runs):
            self._runs = tuple(settled(begun(self._runs, len(self._runs)), merge, self._budget, self._keep))

    def replace(self, runs: Iterable[Run]) -> None:
        """Puts other runs in the place of all; nothing is merged."""
        self._runs = tuple(runs)

    def matches(self, hashes: Hashes) -> list[Matches]:
        """Where each of the sorted distinct `hashes` is, by run; O(hashes * log rows)."""
        return [find(run, hashes) for run in near(self._runs, lambda: hashes)] if len(hashes) else []

    def lookup(self, hashes: Hashes) -> Iterator[tuple[col.Positions, Run, col.Positions]]:
        """Every entry that has one of the sorted distinct `hashes`: (index of the hash, run, row), in pieces.

        Oldest run first, ascending by hash within a run. Different keys may share a hash: compare them.
        """
        for m in self.matches(hashes):
            for index, rows in pieces(m.low, m.high - m.low, PIECE_ROWS):
                yield index, m.run, rows

    def entries(self, hashes: Hashes) -> Delta | None:
        """All entries with one of the sorted distinct `hashes`, not consolidated; None if there are none."""
        found = [Delta(col.gather_table(run.columns, rows), run.diff[rows]) for _, run, rows in self.lookup(hashes)]
        return Delta.concat(found) if found else None


def find(run: Run, hashes: Hashes) -> Matches:
    """Where each of the sorted distinct `hashes` is in `run`."""
    run.expect(hashes)
    low = np.searchsorted(run.hash, hashes)
    high = low.copy()
    hit = np.flatnonzero(run.hash[np.minimum(low, run.num_rows - 1)] == hashes)
    high[hit] = np.searchsorted(run.hash, hashes[hit], side="right")
    return Matches(run, low, high)
