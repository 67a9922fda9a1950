"""Trace: the runs of one arrangement, merged geometrically, and probing by hash."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.kernel import columns as col
from watersmeet.kernel.delta import Delta, Diffs
from watersmeet.kernel.expand import pieces
from watersmeet.kernel.hashing import Hashes
from watersmeet.kernel.order import canonical_rows, stretches
from watersmeet.kernel.run import Run, make_run

#: So many runs of comparable size become one.
FAN_IN: Final = 4
#: Runs of fewer rows are all of the lowest level.
LEVEL_0_ROWS: Final = 256
#: A merge whose result might be larger is not done: it would take too long within one epoch.
MERGED_BYTES: Final = 256 << 20
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
    log4(rows of the trace / rows of a run) times.
    """

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._runs = tuple(runs)

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

    def append(self, run: Run) -> None:
        """Adds changes, and merges the newest runs if there are enough of comparable size."""
        if run.num_rows == 0:
            return
        runs = [*self._runs, run]
        while (tail := mergeable(runs)) > 1:
            merged = merge_runs(runs[-tail:])
            del runs[-tail:]
            if merged.num_rows:
                runs.append(merged)
        self._runs = tuple(runs)

    def replace(self, runs: Iterable[Run]) -> None:
        """Puts other runs in the place of all: for traces that are merged by another rule (`latest`)."""
        self._runs = tuple(runs)

    def matches(self, hashes: Hashes) -> list[Matches]:
        """Where each of the sorted distinct `hashes` is, by run; O(hashes * log rows)."""
        return [find(run, hashes) for run in self._runs] if len(hashes) else []

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
    low = np.searchsorted(run.hash, hashes)
    high = low.copy()
    hit = np.flatnonzero(run.hash[np.minimum(low, run.num_rows - 1)] == hashes)
    high[hit] = np.searchsorted(run.hash, hashes[hit], side="right")
    return Matches(run, low, high)


def _level(run: Run) -> int:
    """Each level has runs of FAN_IN times as many rows as the one before; 0 is the lowest."""
    level, rows = 0, run.num_rows // LEVEL_0_ROWS
    while rows >= FAN_IN:
        level, rows = level + 1, rows // FAN_IN
    return level


def mergeable(runs: Sequence[Run]) -> int:
    """How many of the newest runs to merge now; 0 if none."""
    level = max((_level(r) for r in runs[-1:]), default=0)
    tail = 0
    size = 0
    for run in reversed(runs):
        size += run.size_bytes
        if _level(run) > level or size > MERGED_BYTES:
            break
        tail += 1
    return tail if tail >= FAN_IN else 0


def merge_runs(runs: Sequence[Run]) -> Run:
    """One run with the same sum of diffs for every row.

    Only rows whose hash occurs with a negative diff can cancel, so only those are compared and consolidated;
    all others keep the order of their runs.
    """
    hashes = np.concatenate([r.hash for r in runs])
    order = np.argsort(hashes, kind="stable")  # timsort: a merge, since each run is sorted
    arrays = [pa.concat_arrays([r.arrays[i] for r in runs]) for i in range(len(runs[0].arrays))]
    keys = runs[0].keys
    if all(r.weights is None for r in runs):
        diff = np.ones(len(order), np.int64)
    else:
        diff = np.concatenate([r.diff for r in runs])[order]
        if any(r.has_negative for r in runs):
            order, diff = _without_cancelled(arrays, hashes, order, diff)
    return make_run(hashes[order], col.gather_all(arrays, order), diff, keys)


def _without_cancelled(arrays: Sequence[pa.Array], hashes: Hashes, order: col.Positions,
                       diff: Diffs) -> tuple[col.Positions, Diffs]:
    starts, lengths = stretches(hashes[order])
    touched = np.repeat(np.minimum.reduceat(diff, starts) < 0, lengths)
    rows = order[touched]
    found, sums = canonical_rows(col.gather_all(arrays, rows), diff[touched], hashes[rows], whole_row=False)
    order = np.concatenate([order[~touched], rows[found]])
    diff = np.concatenate([diff[~touched], sums])
    places = np.argsort(hashes[order], kind="stable")
    return order[places], diff[places]
