"""Runs whose bytes are elsewhere: of some keys only the rows of these are fetched, with an index (`blocks`).

A cold run is a run like any other: who asks for its rows gets all of them, which are fetched then. Who needs the rows
of some hashes asks `near` first, which gives an ordinary run of just these rows. What decides about merging (rows,
bytes, whether there are negative diffs) is known without the rows, so that all goes on as if they were here.

What waits for bytes is a generator of what it needs next, so that many runs wait together: `together`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from watersmeet.blobs import BlobParts, Ranges
from watersmeet.errors import error
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.distinct import distinct
from watersmeet.kernel.arrays.expand import expanded
from watersmeet.kernel.arrays.hashing import Hashes
from watersmeet.kernel.runs import blocks
from watersmeet.kernel.runs.bytesof import bytes_of
from watersmeet.kernel.runs.run import Run

Result = TypeVar("Result")

#: Yields what it needs before it goes on; returns what it makes.
Waiting = Generator[tuple[BlobParts, Ranges], None, Result]

_HASH_BYTES: Final = 8
#: A message of an IPC stream begins with a marker and its length.
_PREFIX_BYTES: Final = 8
#: The filters are read first if they cost no more than this part of what they may spare.
_FILTER_GAIN: Final = 2
#: If more of the blocks than this part are asked for, the run is fetched as a whole.
_WHOLE: Final = 2


def together(works: Sequence[Waiting[Result]]) -> list[Result]:
    """What the works return; what several of them wait for is fetched at a time."""
    results: dict[int, Result] = {}
    waiting = dict(enumerate(works))
    while waiting:
        asked = []
        for number, work in list(waiting.items()):
            try:
                asked.append(next(work))
            except StopIteration as end:
                results[number] = end.value
                del waiting[number]
        if asked:
            asked[0][0].fetch(asked)
    return [results[number] for number in range(len(works))]


def near(runs: Iterable[Run], hashes: Callable[[], Hashes], spread: int = 0) -> list[Run]:
    """Runs with at least the rows of `runs` that have one of the hashes; those that have none may be left out.

    hashes: in any order; asked for only if a run is not here. spread: instead of each hash h all from h to h | spread.
    """
    runs = list(runs)
    if all(_is_here(run) for run in runs):
        return runs
    wanted = distinct(hashes())
    if not len(wanted):
        return []
    found = together([_nearby(run, wanted, spread) for run in runs])
    return [run for run in found if run.num_rows]


def _is_here(run: Run) -> bool:
    return not isinstance(run, ColdRun) or run.is_here


def _nearby(run: Run, hashes: Hashes, spread: int) -> Waiting[Run]:
    if isinstance(run, ColdRun) and not run.is_here:
        return (yield from run.nearby(hashes, spread))
    return run


def opened(parts: BlobParts, ref: Any) -> Waiting[Run]:
    """The run that is in a blob; its rows are fetched when they are asked for, if it has an index."""
    size = parts.buffer.size
    yield parts, _range(max(0, size - blocks.END_BYTES), size)
    end = parts.buffer.slice(max(0, size - blocks.END_BYTES)).to_pybytes()
    index = blocks.layout(end, size) if len(end) == blocks.END_BYTES else None
    if index is None:
        yield parts, _range(0, size)
        return Run.from_ipc(parts.buffer, ref)
    yield parts, _range(index.hashes_at, size)
    place = 0
    for _ in range(2):  # the schema, and where the columns of the one batch are
        yield parts, _range(place, place + _PREFIX_BYTES)
        length = int.from_bytes(parts.buffer.slice(place + 4, 4).to_pybytes(), "little")
        end_of_message = place + _PREFIX_BYTES + length
        if end_of_message > index.filters_at:
            raise error("STATE_DAMAGED", "a stored run can't be read", detail=f"Its index fits another run ({ref}).")
        yield parts, _range(place, end_of_message)
        place = end_of_message
    return ColdRun(Run.from_ipc(parts.buffer, ref), parts, index)


class ColdRun(Run):
    """A run that is elsewhere. Its rows are fetched as soon as they are asked for, all of them."""

    def __init__(self, sparse: Run, parts: BlobParts, index: blocks.Layout) -> None:
        """sparse: the run as it will be, over bytes most of which are not here."""
        self.keys = sparse.keys
        self.pure = sparse.pure
        self.ref = sparse.ref
        self.continues = sparse.continues
        self.note = sparse.note
        self.merging = sparse.merging
        self.has_negative = sparse.has_negative
        self.size_bytes = sparse.size_bytes
        self.is_here = False
        """Whether all rows have been fetched."""
        self.sparse = sparse
        self.blob = parts
        self.index = index
        self._firsts = np.frombuffer(parts.buffer, np.uint64, index.blocks, index.hashes_at).copy()

    def __getattr__(self, name: str) -> Any:
        """hash, columns, weights: they are not set before they are first asked for."""
        if name not in ("hash", "columns", "weights"):
            raise AttributeError(name)
        together([self._all()])
        return getattr(self, name)

    @property
    def num_rows(self) -> int:
        """The number of entries."""
        return len(self.sparse.hash)

    @property
    def all_ones(self) -> bool:
        """True if every diff is 1."""
        return self.sparse.weights is None

    def slice(self, start: int, stop: int) -> Run:
        """The run of rows [start, stop), without a copy."""
        return super().slice(start, stop) if start < stop else self.sparse.slice(start, start)

    def nearby(self, hashes: Hashes, spread: int) -> Waiting[Run]:
        """See `near`. hashes: sorted and distinct."""
        last_hashes = hashes | np.uint64(spread)
        first, last = self._blocks(hashes, last_hashes)
        owner, block = expanded(first, np.maximum(last - first + 1, 0))
        if not spread:
            block = yield from self._filtered(hashes[owner], block)
        found = distinct(block)
        if len(found) * _WHOLE > self.index.blocks:
            return (yield from self._all())
        rows = yield from self._rows(found, hashes, last_hashes)
        yield from self._columns(rows)
        return Nearby(self.sparse, self.sparse.take(rows), None if spread else hashes)

    def _blocks(self, hashes: Hashes, last_hashes: Hashes) -> tuple[col.Positions, col.Positions]:
        """Of each range of hashes the blocks [first, last] in which it may be; in none if last is below first."""
        first = np.maximum(np.searchsorted(self._firsts, hashes) - 1, 0)
        return first, np.searchsorted(self._firsts, last_hashes, side="right") - 1

    def _all(self) -> Waiting[Run]:
        yield self.blob, _range(0, self.blob.buffer.size)
        self.hash, self.columns, self.weights = self.sparse.hash, self.sparse.columns, self.sparse.weights
        self.is_here = True
        return self

    def _filtered(self, hashes: Hashes, block: col.Positions) -> Waiting[col.Positions]:
        """Of pairs of a hash and a block, the blocks of those that may be in the run, if that is cheap to find out."""
        width = self.index.filter_bytes
        begins = self.index.filters_at + distinct(block) * width
        filters = np.stack([begins, begins + width], axis=1)
        cost = self.blob.missing_bytes(filters) if width else 0
        if not width or cost * _FILTER_GAIN > self.blob.missing_bytes(self._hashes(distinct(block))):
            return block
        yield self.blob, filters
        every = np.frombuffer(self.blob.buffer, np.uint8, self.index.blocks * width, self.index.filters_at)
        return block[blocks.may_have(every.reshape(-1, width), block, hashes)]

    def _hashes(self, block: col.Positions) -> Ranges:
        """Where the hashes of blocks are."""
        begins = block * self.index.rows
        ends = np.minimum(begins + self.index.rows, len(self.sparse.hash))
        at = self.sparse.hash.ctypes.data - self.blob.buffer.address
        found: Ranges = at + _HASH_BYTES * np.stack([begins, ends], axis=1)
        return found

    def _rows(self, block: col.Positions, hashes: Hashes, last_hashes: Hashes) -> Waiting[col.Positions]:
        """The rows of blocks that have the hashes."""
        yield self.blob, self._hashes(block)
        begins = block * self.index.rows
        counts = np.minimum(self.index.rows, len(self.sparse.hash) - begins)
        rows = np.repeat(begins - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
        there = self.sparse.hash[rows]
        low, high = np.searchsorted(there, hashes), np.searchsorted(there, last_hashes, side="right")
        wanted = np.zeros(len(rows) + 1, np.int64)
        np.add.at(wanted, low, 1)
        np.add.at(wanted, high, -1)
        return rows[np.cumsum(wanted[:-1]) > 0]

    def _columns(self, rows: col.Positions) -> Waiting[None]:
        """Has the columns of rows, ascending, here."""
        if not len(rows):
            return
        starts = np.flatnonzero(np.diff(rows, prepend=rows[0] - 2) != 1)
        begins, ends = rows[starts], rows[np.append(starts[1:], len(rows)) - 1] + 1
        base = self.blob.buffer.address
        works = [bytes_of(array, begins, ends, base) for array in self.sparse.arrays]
        if self.sparse.weights is not None:
            at = self.sparse.weights.ctypes.data - base
            works.append(_once(at + _HASH_BYTES * np.stack([begins, ends], axis=1)))
        while works:
            asked = [(work, ranges) for work in works if (ranges := next(work, None)) is not None]
            works = [work for work, _ in asked]
            if asked:
                yield self.blob, np.concatenate([ranges for _, ranges in asked])


class Nearby(Run):
    """Some rows of a run. asked: it has all that have one of these hashes; None: who made it sees to that."""

    def __init__(self, whole: Run, some: Run, asked: Hashes | None) -> None:
        super().__init__(some.hash, some.columns, some.weights, whole.keys, pure=whole.pure)
        self.has_negative = whole.has_negative  # so that all goes as with the whole run
        self._asked = asked

    def expect(self, hashes: Hashes) -> None:
        if self._asked is None or not _are_among(hashes, self._asked):
            raise error("INTERNAL_ERROR", "keys are looked up in a run of which only rows of others were fetched")


def _are_among(hashes: Hashes, others: Hashes) -> bool:
    """Whether all of some are among others; both are sorted."""
    if not len(hashes) or not len(others):
        return not len(hashes)
    places = np.minimum(np.searchsorted(others, hashes), len(others) - 1)
    return bool((others[places] == hashes).all())


def _once(ranges: Ranges) -> Generator[Ranges, None, None]:
    yield ranges


def _range(begin: int, end: int) -> Ranges:
    return np.array([[begin, end]], np.int64)
