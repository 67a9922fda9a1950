"""Expansion of ranges into pairs, in pieces of bounded size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]


def pieces(counts: Positions, limit: int) -> Iterator[tuple[Positions, Positions]]:
    """All pairs (i, k) with 0 <= k < counts[i], in order, as two arrays of at most `limit` pairs at a time.

    A row with more than `limit` pairs is cut too, so memory stays bounded however skewed the counts are.
    """
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    for start in range(0, total, limit):
        stop = min(total, start + limit)
        # Rows that have a pair in [start, stop); the first and the last may be cut.
        first = int(np.searchsorted(ends, start, side="right")) if start else 0
        last = int(np.searchsorted(ends, stop, side="left")) if stop < total else len(ends) - 1
        row_ends = np.minimum(ends[first : last + 1], stop)
        row_starts = np.maximum(ends[first : last + 1] - counts[first : last + 1], start)
        part = row_ends - row_starts
        index = np.repeat(np.arange(first, last + 1), part)
        skipped = (ends - counts)[first : last + 1]
        yield index, np.arange(start, stop) - np.repeat(skipped, part)
