"""Merging of runs: which, when, and how.

Merging is geometric: runs have levels, each of FAN_IN times as many rows as the one below, and as soon as
FAN_IN of the newest are of one level or lower they become one. Laws: merging never changes the sum of
diffs of any row, and it depends only on the runs, so that every replay merges alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.hashing import Hashes
from watersmeet.kernel.runs.delta import Diffs
from watersmeet.kernel.runs.order import canonical_rows, stretches
from watersmeet.kernel.runs.run import Run, make_run

#: So many runs of comparable size become one.
FAN_IN: Final = 4
#: Runs of fewer rows are all of the lowest level.
LEVEL_0_ROWS: Final = 256
#: Above this size a merge pays only if it can remove rows.
MERGED_BYTES: Final = 256 << 20
#: A larger result is cut into segments of about this size, by ranges of hashes, one after the other.
SEGMENT_BYTES: Final = 128 << 20
#: What must be merged in one piece because it has one hash must fit in Arrow's 2 GiB, with room to spare.
PIECE_BYTES: Final = 1 << 30
_SAMPLES: Final = 4096


class MergeRuns(Protocol):
    """Makes one run of some, oldest first. whole: nothing older lies below them."""

    def __call__(self, runs: Sequence[Run], /, *, whole: bool) -> Run: ...


def settled(runs: Iterable[Run], merge: MergeRuns, *, replacing: bool = False) -> list[Run]:
    """The runs, oldest first, after merging the newest as long as there are enough of comparable size.

    replacing: newer rows replace older ones without a negative diff, so that merging always removes rows.
    """
    runs = list(runs)
    while tail := mergeable(runs, replacing=replacing):
        merged = merge_in_segments(runs[-tail:], merge, whole=tail == len(runs))
        if merged is None:
            break
        runs[-tail:] = merged
    return runs


def mergeable(runs: Sequence[Run], *, replacing: bool = False) -> int:
    """How many of the newest runs to merge now; 0 if none. Segments of one result count as one."""
    tail = members = size = newest = 0
    garbage = replacing
    position = len(runs)
    while position:
        start = position - 1
        while start and runs[start].continues:  # the first segments may be gone
            start -= 1
        group = runs[start:position]
        group_level = level(sum(r.num_rows for r in group))
        if position == len(runs):
            newest = group_level
        size += sum(r.size_bytes for r in group)
        garbage = garbage or any(r.has_negative for r in group)
        if group_level > newest or (size > MERGED_BYTES and not garbage):
            break
        members += 1
        tail += len(group)
        position = start
    return tail if members >= FAN_IN else 0


def level(rows: int) -> int:
    """The level of a run with so many rows."""
    found, rows = 0, rows // LEVEL_0_ROWS
    while rows >= FAN_IN:
        found, rows = found + 1, rows // FAN_IN
    return found


def merge_in_segments(runs: Sequence[Run], merge: MergeRuns, *, whole: bool) -> list[Run] | None:
    """What the runs become; None if one hash has too many bytes to be merged."""
    size = sum(r.size_bytes for r in runs)
    if size <= MERGED_BYTES:
        merged = merge(runs, whole=whole)
        return [merged] if merged.num_rows else []
    # Quantiles of the hashes, from a sample of every run.
    step = max(1, sum(r.num_rows for r in runs) // _SAMPLES)
    sample = np.sort(np.concatenate([r.hash[::step] for r in runs]))
    count = -(-size // SEGMENT_BYTES)
    bounds = np.unique(sample[(np.arange(1, count) * len(sample)) // count])
    cuts = [[0, *np.searchsorted(r.hash, bounds).tolist(), r.num_rows] for r in runs]
    segments = [
        [r.slice(c[i], c[i + 1]) for r, c in zip(runs, cuts, strict=True) if c[i] < c[i + 1]]
        for i in range(len(bounds) + 1)
    ]
    if any(sum(r.size_bytes for r in s) > PIECE_BYTES for s in segments):
        return None
    merged_segments = [m for s in segments if s and (m := merge(s, whole=whole)).num_rows]
    for later in merged_segments[1:]:
        later.continues = True
    return merged_segments


def merge_runs(runs: Sequence[Run], /, *, whole: bool = False) -> Run:  # noqa: ARG001 - any diffs may come later
    """One run with the same sum of diffs for every row.

    Only rows whose hash occurs with a negative diff can cancel, so only those are compared and consolidated;
    all others keep the order of their runs.
    """
    hashes = np.concatenate([r.hash for r in runs])
    order = np.argsort(hashes, kind="stable")  # timsort: a merge, since each run is sorted
    arrays = [pa.concat_arrays([r.arrays[i] for r in runs]) for i in range(len(runs[0].arrays))]
    if all(r.all_ones for r in runs):
        diff = np.ones(len(order), np.int64)
    else:
        diff = np.concatenate([r.diff for r in runs])[order]
        if any(r.has_negative for r in runs):
            order, diff = _without_cancelled(arrays, hashes, order, diff)
    return make_run(hashes[order], col.gather_all(arrays, order), diff, runs[0].keys)


def _without_cancelled(
    arrays: Sequence[pa.Array], hashes: Hashes, order: col.Positions, diff: Diffs
) -> tuple[col.Positions, Diffs]:
    starts, lengths = stretches(hashes[order])
    touched = np.repeat(np.minimum.reduceat(diff, starts) < 0, lengths)
    rows = order[touched]
    found, sums = canonical_rows(col.gather_all(arrays, rows), diff[touched], hashes[rows], whole_row=False)
    order = np.concatenate([order[~touched], rows[found]])
    diff = np.concatenate([diff[~touched], sums])
    places = np.argsort(hashes[order], kind="stable")
    return order[places], diff[places]
