"""Runs that are mapped where memory does not hold all of them: what is asked of one is read in one pass, and let go.

Epoch by epoch keys are looked up in all runs, in the order of hashes. If the machine keeps what was used last, and all
together is larger than memory, then nothing of a run is there any more when it is its turn again. So some runs stay,
and of the others, the passing runs, the rows that are asked for are copied, and their pages make room at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from watersmeet import pages
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.distinct import distinct
from watersmeet.kernel.arrays.expand import expanded
from watersmeet.kernel.arrays.hashing import Hashes
from watersmeet.kernel.runs.bytesof import bytes_of
from watersmeet.kernel.runs.run import Diffs, Run

_PAGE_BYTES: Final = 4096
#: All pages are read ahead if about one in so many is asked for: many small reads would take longer.
_DENSE: Final = 8
#: If more of the rows than one in so many are asked for, they are not copied: that would take memory.
_MOST_COPIED: Final = 8


class PassingRun(Run):
    """A mapped run of which no pages stay in memory. Use it as any other; `nearby` is for those who know the keys."""

    def __init__(self, run: Run) -> None:
        super().__init__(
            run.hash,
            run.columns,
            run.weights,
            run.keys,
            pure=run.pure,
            ref=run.ref,
            continues=run.continues,
            note=run.note,
            merging=run.merging,
        )
        self.has_negative = run.has_negative
        self.size_bytes = run.size_bytes

    def nearby(self, hashes: Hashes, spread: int) -> Run | None:
        """A copy of the rows that have one of the sorted distinct hashes h, or one from h to h | spread.

        None if these are many.
        """
        rows = self._rows(hashes, spread)
        if len(rows) * _MOST_COPIED > self.num_rows:
            return None
        if self._is_dense(len(rows), self.size_bytes):
            for ranges in self._columns():
                pages.will_need(ranges)
        found = self.take(rows)
        pages.let_go(_place(self.hash))
        for ranges in self._columns():
            pages.let_go(ranges)
        return found

    def _rows(self, hashes: Hashes, spread: int) -> col.Positions:
        first, last = self.hash[0], self.hash[-1]
        hashes = hashes[np.searchsorted(hashes | np.uint64(spread), first) : np.searchsorted(hashes, last, "right")]
        if self._is_dense(len(hashes), self.hash.nbytes):
            pages.will_need(_place(self.hash))
        low = np.searchsorted(self.hash, hashes)
        high = low.copy()
        hit = np.flatnonzero(self.hash[low] <= hashes | np.uint64(spread))
        high[hit] = np.searchsorted(self.hash, hashes[hit] | np.uint64(spread), "right")
        _, rows = expanded(low, high - low)
        return distinct(rows) if spread else rows

    def _is_dense(self, asked: int, size_bytes: int) -> bool:
        return asked * _PAGE_BYTES * _DENSE >= size_bytes

    def _columns(self) -> Iterator[pages.Addresses]:
        for array in self.arrays:
            yield from bytes_of(array, np.zeros(1, np.int64), np.full(1, self.num_rows), 0)
        if self.weights is not None:
            yield _place(self.weights)


def _place(values: Hashes | Diffs) -> pages.Addresses:
    """Where all of the values are."""
    begin = values.ctypes.data
    return np.array([[begin, begin + values.nbytes]])
