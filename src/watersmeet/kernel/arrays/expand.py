"""Expansion of ranges into pairs, in pieces of bounded size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]


def pieces(low: Positions, counts: Positions, limit: int) -> Iterator[tuple[Positions, Positions]]:
    """All pairs (i, low[i] + k) with 0 <= k < counts[i], in order, as two arrays of at most `limit` pairs at a time.

    A row with more than `limit` pairs is cut too, so memory stays bounded however skewed the counts are.
    """
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    for start in range(0, total, limit):
        stop = min(total, start + limit)
        # Rows that have a pair in [start, stop); the first and the last may be cut.
        first = int(np.searchsorted(ends, start, side="right")) if start else 0
        last = int(np.searchsorted(ends, stop, side="left")) + 1 if stop < total else len(ends)
        begins = ends[first:last] - counts[first:last]
        part = np.minimum(ends[first:last], stop) - np.maximum(begins, start)
        yield (
            np.repeat(np.arange(first, last), part),
            np.arange(start, stop) + np.repeat(low[first:last] - begins, part),
        )


def expanded(low: Positions, counts: Positions) -> tuple[Positions, Positions]:
    """The same pairs, all at once."""
    total = int(counts.sum())
    return next(pieces(low, counts, total)) if total else (low[:0], low[:0])


def cut(positions: Positions, limit: int) -> Iterator[Positions]:
    """The positions in order, at most `limit` at a time."""
    for start in range(0, len(positions), limit):
        yield positions[start : start + limit]
