"""Runs that are mapped where memory does not hold all of them: what is asked of one is read in one pass, and let go.

Epoch by epoch keys are looked up in all runs, in the order of hashes. If the machine keeps what was used last, and all
together is larger than memory, then nothing of a run is there any more when it is its turn again. So some runs stay,
and of the others, the passing runs, the rows that are asked for are read piece by piece into memory of the worker's
own, past the machine's cache of files (`directfiles`), and copied.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.directfiles import DirectBlob
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.distinct import distinct
from watersmeet.kernel.arrays.expand import expanded
from watersmeet.kernel.arrays.hashing import Hashes
from watersmeet.kernel.runs.cold import ColdRun, Nearby, Waiting
from watersmeet.kernel.runs.run import Run

#: About so much of a run is read at a time.
_PIECE_BYTES: Final = 16 << 20
#: If more of the rows than one in so many are asked for, they are not copied: that would take memory.
_MOST_COPIED: Final = 8


class PassingRun(ColdRun):
    """A mapped run that does not stay in memory. Who asks for all of its rows reads it as it is mapped.

    whole: what is in its blob, mapped. run: that, or consecutive rows of it. cold, blob: the same as `whole`, to be
    read past the cache.
    """

    def __init__(self, run: Run, whole: Run, cold: ColdRun, blob: DirectBlob) -> None:
        super().__init__(cold.sparse, cold.blob, cold.index)
        self.hash, self.columns, self.weights = run.hash, run.columns, run.weights
        self.pure, self.ref, self.continues, self.note = run.pure, run.ref, run.continues, run.note
        self.merging, self.has_negative, self.size_bytes = run.merging, run.has_negative, run.size_bytes
        self._direct = blob
        self._begin = (run.hash.ctypes.data - whole.hash.ctypes.data) // run.hash.itemsize
        self._piece_blocks = max(1, self.index.blocks * _PIECE_BYTES // max(1, blob.buffer.size))

    @property
    def num_rows(self) -> int:
        """The number of entries."""
        return len(self.hash)

    @property
    def all_ones(self) -> bool:
        """True if every diff is 1."""
        return self.weights is None

    def nearby(self, hashes: Hashes, spread: int) -> Waiting[Run]:
        """See `near`. The run itself, if a large part of it is asked for."""
        last_hashes = hashes | np.uint64(spread)
        first, last = self._blocks(hashes, last_hashes)
        found = [self.sparse.slice(0, 0)]
        count = 0
        block = self._begin // self.index.rows
        end_block = -(-(self._begin + self.num_rows) // self.index.rows)
        while (begin := int(np.searchsorted(last, block))) < len(hashes):  # the first that may be there or behind
            block = max(block, int(first[begin]))
            if block >= end_block:
                break
            stop = min(block + self._piece_blocks, end_block)
            end = int(np.searchsorted(first, stop))
            asked = hashes[begin:end], last_hashes[begin:end], first[begin:end], last[begin:end]
            rows = yield from self._rows_between(block, stop, *asked)
            yield from self._columns(rows)
            found.append(self.sparse.take(rows))
            self._direct.drop()
            count += len(rows)
            if count * _MOST_COPIED > self.num_rows:
                return self
            block = stop
        return Nearby(self, _one(found), None if spread else hashes)

    def _rows_between(
        self,
        block: int,
        stop: int,
        hashes: Hashes,
        last_hashes: Hashes,
        first: col.Positions,
        last: col.Positions,
    ) -> Waiting[col.Positions]:
        """The rows of this run in blocks [block, stop) that have one of the hashes, which may be in blocks from `first`
        to `last`.
        """
        begins, ends = np.maximum(first, block) - block, np.minimum(last, stop - 1) + 1 - block
        some = begins < ends
        size = stop - block + 1
        asked = np.bincount(begins[some], minlength=size) - np.bincount(ends[some], minlength=size)
        blocks = block + np.flatnonzero(np.cumsum(asked[:-1]) > 0)
        if not len(blocks):
            return blocks
        if len(blocks) < blocks[-1] + 1 - blocks[0]:
            rows = yield from self._rows(blocks, hashes, last_hashes)
        else:
            yield self.blob, self._hashes(blocks)
            place = int(blocks[0]) * self.index.rows
            there = self.sparse.hash[place : (int(blocks[-1]) + 1) * self.index.rows]
            low = np.searchsorted(there, hashes)
            high = low.copy()
            hit = np.flatnonzero(there[np.minimum(low, len(there) - 1)] <= last_hashes)
            high[hit] = np.searchsorted(there, last_hashes[hit], "right")
            rows = place + expanded(low, high - low)[1]
            if len(rows) and not (np.diff(rows) > 0).all():
                rows = distinct(rows)  # ranges of hashes may have rows in common
        return rows[(rows >= self._begin) & (rows < self._begin + self.num_rows)]


def _one(runs: list[Run]) -> Run:
    """One run of the rows of neighbouring runs."""
    hashes = np.concatenate([r.hash for r in runs])
    columns = pa.concat_tables([r.columns for r in runs]).combine_chunks()
    weights = None if runs[0].all_ones else np.concatenate([r.diff for r in runs])
    return Run(hashes, columns, weights, runs[0].keys, pure=runs[0].pure)
