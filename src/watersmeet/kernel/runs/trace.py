"""Trace: the runs of one arrangement, probing by hash, and traces that keep the newest row of each key.

A trace whose newest row of a key replaces all older ones: what an operator remembers of each key.

Rows have diff 1; diff -1 says that the key is gone. A key's row is written once per change, and a
merge keeps the newest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.columns import distinct, pieces
from watersmeet.kernel.arrays.hashing import Hashes, is_bijective
from watersmeet.kernel.runs.cold import near
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.groups import Groups, Ints
from watersmeet.kernel.runs.merge import Keep, MergeBudget, MergeRuns, begun, merge_runs, settled
from watersmeet.kernel.runs.order import stretches
from watersmeet.kernel.runs.run import Run, make_run

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


_UNKNOWN: Final = -1
_GONE: Final = -2


def latest_rows(trace: Trace, groups: Groups) -> list[pa.Array] | None:
    """The newest row of each group, all columns; NULL in every column where the trace has none.

    None: has none at all.
    """
    place = np.full(groups.count, _UNKNOWN, np.int64)
    parts: list[list[pa.Array]] = []
    size = 0
    for run in reversed(near(trace.runs, lambda: groups.hashes)):
        for owner, row in groups.find(run.hash):
            fresh = np.flatnonzero(place[owner] == _UNKNOWN)
            fresh = fresh[groups.same(owner[fresh], run.key_arrays, row[fresh])]
            if not len(fresh):
                continue
            group, found = owner[fresh], row[fresh]
            place[group] = np.where(run.diff[found] < 0, _GONE, np.arange(size, size + len(group)))
            parts.append(col.gather_all(run.arrays, found))
            size += len(group)
    if not parts:
        return None
    positions = pa.array(place, mask=place < 0)
    return [pa.concat_arrays(pieces).take(positions) for pieces in zip(*parts, strict=True)]


def append_latest(trace: Trace, run: Run) -> None:
    """Puts the rows of `run`, one per key, over all older ones of their keys."""
    trace.append(run, merge, replacing=True)


def merge(runs: Sequence[Run], /, *, whole: bool, above: Sequence[Run] = ()) -> Run:  # noqa: ARG001 - see below
    """The newest row of each key of some runs, oldest first.

    whole: nothing lies below, so that keys that are gone go. What lies above replaces these rows anyway.
    """
    hashes = np.concatenate([r.hash for r in runs])
    order = np.argsort(hashes, kind="stable")
    arrays = [pa.concat_arrays([r.arrays[i] for r in runs]) for i in range(len(runs[0].arrays))]
    diff = np.concatenate([r.diff for r in runs])
    keys = runs[0].keys
    kept = _last_of_key(hashes[order], order, [arrays[k] for k in keys])
    if whole:
        kept = kept[diff[kept] > 0]
    return make_run(hashes[kept], [col.gather(a, kept) for a in arrays], diff[kept], keys)


def _last_of_key(ordered: Hashes, order: Ints, keys: Sequence[pa.Array]) -> Ints:
    """The last row of each key among rows in hash order, of which later ones are newer."""
    starts, lengths = stretches(ordered)
    last: Ints = order[starts + lengths - 1]
    if len(keys) == 1 and is_bijective(keys[0].type) and keys[0].null_count == 0:
        return last
    later = np.ones(len(order), np.bool_)
    later[starts] = False
    places = np.flatnonzero(later)
    same = col.rows_equal(
        [col.gather(k, order[places - 1]) for k in keys],
        [col.gather(k, order[places]) for k in keys],
        len(places),
        as_key=True,
    )
    if same.all():
        return last
    # Different keys with one hash: about one in 2^64 pairs of keys comes here.
    mixed = distinct(np.searchsorted(starts, places[~same], side="right") - 1)
    kept = [last[i : i + 1] for i in range(len(last))]
    for g in mixed.tolist():
        rows = order[starts[g] : starts[g] + lengths[g]].tolist()
        kept[g] = np.array(list({repr([k[row].as_py() for k in keys]): row for row in rows}.values()), np.int64)
    return np.concatenate(kept)
