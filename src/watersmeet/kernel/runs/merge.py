"""Merging of runs: which, when, and how.

Merging is geometric: runs have levels, each of FAN_IN times as many rows as the one below, and as soon as
FAN_IN of the newest are of one level or lower they become one. Laws: merging never changes the sum of
diffs of any row, and it depends only on the runs and the budget, so that every replay merges alike.

A merge goes from low hashes to high ones, piece by piece: what it has made of a piece comes before its runs, which go
on behind that piece. So between any two pieces the runs have the content of before, in the same order for each hash,
and where a merge has come to is a fact of the runs. It goes on in the next epoch that changes the trace if the budget
of this one is used up. Newer runs come above it, and are merged among themselves meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.hashing import Hashes
from watersmeet.kernel.runs.order import Diffs, canonical_rows, stretches
from watersmeet.kernel.runs.run import Merging, Run, make_run

#: So many runs of comparable size become one.
FAN_IN: Final = 4
#: Runs of fewer rows are all of the lowest level.
LEVEL_0_ROWS: Final = 256
#: Above this size a merge pays only if it can remove rows, …
MERGED_BYTES: Final = 256 << 20
#: … or makes one of so many runs.
LARGE_FAN_IN: Final = 16
#: A larger result is cut into segments of about this size, by ranges of hashes, one after the other.
SEGMENT_BYTES: Final = 128 << 20
#: What must be merged in one piece because it has one hash must fit in Arrow's 2 GiB, with room to spare.
PIECE_BYTES: Final = 1 << 30
#: With more runs than this, segments of one result counted as one, merges go on whatever the budget says.
MOST_RUNS: Final = 64
#: What a task merges in an epoch unless told otherwise: about a second of work.
MERGE_BYTES: Final = 256 << 20
#: A trace may always merge so much, so that segments are not tiny, …
LEAST_BYTES: Final = 1 << 20
#: … and so many times what the epoch brought: a row is merged once a level, and there are fewer levels above an epoch.
_LEVELS: Final = 8
_SAMPLES: Final = 4096


class MergeRuns(Protocol):
    """Makes one run of some, oldest first. whole: nothing older lies below them. above: all that is newer."""

    def __call__(self, runs: Sequence[Run], /, *, whole: bool, above: Sequence[Run] = ()) -> Run: ...


#: Stores a run that a merge has made: gives the same rows as they are stored.
Keep = Callable[[Run], Run]


class MergeBudget:
    """How many bytes of runs the traces of one task may merge in an epoch.

    piece_bytes: how many at a time, of which there are three copies then; None: as many as suit large segments.
    """

    def __init__(self, most_bytes: int = MERGE_BYTES, piece_bytes: int | None = None) -> None:
        self._least_bytes = min(LEAST_BYTES, most_bytes)
        self._left_bytes = most_bytes
        self.whole_bytes = MERGED_BYTES if piece_bytes is None else piece_bytes
        """What is not larger is merged in one piece, if it may be merged in this epoch."""
        self.piece_bytes = SEGMENT_BYTES if piece_bytes is None else piece_bytes
        """The size of a piece of what is larger."""

    @property
    def least_bytes(self) -> int:
        """No piece of a merge is smaller, unless nothing is left of it."""
        return self._least_bytes

    def allowed_bytes(self, brought_bytes: int) -> int:
        """How much a trace may merge that got so many bytes."""
        return max(self._left_bytes, _LEVELS * brought_bytes, self._least_bytes)

    def spend(self, merged_bytes: int) -> None:
        """So much was merged."""
        self._left_bytes = max(0, self._left_bytes - merged_bytes)


def settled(
    runs: Iterable[Run], merge: MergeRuns, budget: MergeBudget, keep: Keep | None = None, *, replacing: bool = False
) -> list[Run]:
    """The runs, oldest first, of which the newest was just added, after merging as far as the budget goes.

    The smallest merges come first. keep: stores what a merge has made of a piece before it takes the next one; None:
    all of it stays in memory. replacing: newer rows replace older ones without a negative diff, so that merging always
    removes rows.
    """
    runs = list(runs)
    left_bytes = budget.allowed_bytes(runs[-1].size_bytes)
    while True:
        end = _end_of_merges(runs)
        tail = mergeable(runs[end:], replacing=replacing)
        if tail and _fits(runs[-tail:]):
            runs = begun(runs, tail)
            continue
        if not end:
            return runs
        start = _start_of_merge(runs, end)
        size = sum(r.size_bytes for r in runs[start:end])
        if _is_crowded(runs):
            most_bytes = size
        elif left_bytes < min(size, budget.least_bytes):
            return runs
        else:
            most_bytes = left_bytes
        merged_bytes = _advance(runs, start, end, merge, min(size, most_bytes), budget, keep)
        left_bytes -= merged_bytes
        budget.spend(merged_bytes)


def mergeable(runs: Sequence[Run], *, replacing: bool = False) -> int:
    """How many of the newest runs to merge now; 0 if none. Segments of one result count as one."""
    tail = members = size = newest = 0
    paying = paid = 0
    pays = True
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
        if group_level > newest:
            break
        size += sum(r.size_bytes for r in group)
        garbage = garbage or any(r.has_negative for r in group)
        members += 1
        tail += len(group)
        pays = pays and (size <= MERGED_BYTES or garbage)
        if pays:
            paying, paid = tail, members
        position = start
    if paid >= FAN_IN:
        return paying
    return tail if members >= LARGE_FAN_IN else 0


def level(rows: int) -> int:
    """The level of a run with so many rows."""
    found, rows = 0, rows // LEVEL_0_ROWS
    while rows >= FAN_IN:
        found, rows = found + 1, rows // FAN_IN
    return found


def begun(runs: Sequence[Run], tail: int) -> list[Run]:
    """The runs, of which a merge of the newest `tail` is under way. It has not taken anything yet."""
    number = 1 + max((r.merging.number for r in runs if r.merging), default=0)
    found = list(runs[:-tail])
    for run in runs[-tail:]:
        part = run.part(0, run.num_rows)
        part.merging = Merging(number, made=False, whole=tail == len(runs))
        found.append(part)
    return found


def _end_of_merges(runs: Sequence[Run]) -> int:
    """The place behind the newest run that is being merged; 0 if none is."""
    return next((i + 1 for i in reversed(range(len(runs))) if runs[i].merging), 0)


def _start_of_merge(runs: Sequence[Run], end: int) -> int:
    """Where the runs of the merge begin that has the one before `end`."""
    numbers = [None if r.merging is None else r.merging.number for r in runs[:end]]
    return next((i + 1 for i in reversed(range(end)) if numbers[i] != numbers[-1]), 0)


def _is_crowded(runs: Sequence[Run]) -> bool:
    return sum(not r.continues for r in runs) > MOST_RUNS


def _fits(runs: Sequence[Run]) -> bool:
    """Whether no hash has too many bytes to be merged."""
    size = sum(r.size_bytes for r in runs)
    if size <= MERGED_BYTES:
        return True
    sample, count = _sample(runs), -(-size // SEGMENT_BYTES)
    bounds = np.unique(sample[(np.arange(1, count) * len(sample)) // count])
    cuts = [[0, *np.searchsorted(r.hash, bounds).tolist(), r.num_rows] for r in runs]
    return all(
        sum(r.slice(c[i], c[i + 1]).size_bytes for r, c in zip(runs, cuts, strict=True)) <= PIECE_BYTES
        for i in range(len(bounds) + 1)
    )


def _advance(
    runs: list[Run],
    start: int,
    end: int,
    merge: MergeRuns,
    most_bytes: int,
    budget: MergeBudget,
    keep: Keep | None,
) -> int:
    """Merges a piece of runs [start, end), which are being merged, in place: how many bytes it had."""
    members = runs[start:end]
    places = _piece(members, most_bytes, budget)
    taken = [r.slice(0, place) for r, place in zip(members, places, strict=True) if place]
    states = [r.merging for r in members if r.merging]
    # Merges of several buckets may have become neighbours.
    whole, made = all(m.whole for m in states), any(m.made for m in states)
    merged = merge(taken, whole=whole, above=runs[end:])
    found = []
    if merged.num_rows:
        merged.continues, merged.merging = made, None
        found.append(merged if keep is None else keep(merged))
        made = True
    for run, place in zip(members, places, strict=True):
        if place < run.num_rows:
            rest = run.behind(place)
            rest.merging = Merging(states[0].number, made=made, whole=whole)
            found.append(rest)
    runs[start:end] = found
    return sum(r.size_bytes for r in taken)


def _piece(runs: Sequence[Run], most_bytes: int, budget: MergeBudget) -> list[int]:
    """How many of the first rows of each run are the next piece: about `most_bytes`, at least those of one hash."""
    size = sum(r.size_bytes for r in runs)
    if size <= min(most_bytes, budget.whole_bytes):
        return [r.num_rows for r in runs]
    most_bytes = min(most_bytes, budget.piece_bytes)
    sample = _sample(runs)
    place = min(len(sample) - 1, len(sample) * most_bytes // size)
    while place:
        places: list[int] = [int(np.searchsorted(r.hash, sample[place])) for r in runs]
        taken = sum(r.slice(0, p).size_bytes for r, p in zip(runs, places, strict=True))
        if 0 < taken <= 2 * most_bytes:
            return places
        place //= 2
    return [int(np.searchsorted(r.hash, sample[0], side="right")) for r in runs]


def _sample(runs: Sequence[Run]) -> Hashes:
    """Of all rows of the runs some hashes, ascending, with the least."""
    step = max(1, sum(r.num_rows for r in runs) // _SAMPLES)
    found: Hashes = np.sort(np.concatenate([r.hash[::step] for r in runs]))
    return found


def merge_runs(
    runs: Sequence[Run],
    /,
    *,
    whole: bool = False,  # noqa: ARG001 - any diffs may come later
    above: Sequence[Run] = (),  # noqa: ARG001
) -> Run:
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
