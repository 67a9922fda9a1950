"""Runs whose bytes are not in memory. Their index (`run`) locates the rows of given keys, so that only these are read.

A remote run (in an object store) behaves like any other run: reading its rows fetches all of them. `near` returns an
ordinary run of the rows with some hashes. All that merging depends on (numbers of rows and bytes, negative diffs) is
known without reading the rows, so merges are the same as for local runs. Code that needs bytes is a generator of the
byte ranges that it needs next, so that many runs can wait `together`.

A streamed run is a mapped run in a state larger than memory. Each epoch probes all runs in the order of hashes, and the
machine's page cache keeps the most recent pages, so no page would still be in memory when it is needed again. Therefore
the smallest runs stay in memory. The needed rows of the others are read in pieces into the worker's own memory,
bypassing the page cache (`directfiles`), and copied.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from watersmeet.errors import error
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.columns import distinct, expanded
from watersmeet.kernel.arrays.hashing import Hashes
from watersmeet.kernel.runs.run import END_BYTES, IndexLayout, Run, index_layout, may_have
from watersmeet.system.blobs import BlobParts, DirectBlob, Ranges


def bytes_of(array: pa.Array, begins: col.Positions, ends: col.Positions, base: int) -> Generator[Ranges, None, None]:
    """The byte ranges of rows [begin, end) of an array, from the address `base`: first those that need no reads, then
    those that depend on the bytes read before, and so on.
    """
    kind = array.type
    buffers = array.buffers()
    begins, ends = begins + array.offset, ends + array.offset
    wanted = []
    if buffers[0] is not None:
        wanted.append(_bits_of(buffers[0], begins, ends, 1, base))
    if col.is_bytes(kind) or col.is_list(kind):
        wide = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) or pa.types.is_large_list(kind)
        dtype = np.dtype("<i8" if wide else "<i4")
        yield np.concatenate([*wanted, _bits_of(buffers[1], begins, ends + 1, 8 * dtype.itemsize, base)])
        offsets = np.frombuffer(buffers[1], dtype, int(ends.max()) + 1)
        first, last = offsets[begins].astype(np.int64), offsets[ends].astype(np.int64)
        some = np.flatnonzero(first < last)
        if not len(some):
            return
        if col.is_list(kind):
            yield from bytes_of(array.values, first[some], last[some], base)
        else:
            yield _bits_of(buffers[2], first[some], last[some], 8, base)
        return
    if (
        pa.types.is_primitive(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_fixed_size_binary(kind)
        or col.is_interval(kind)
    ):
        wanted.append(_bits_of(buffers[1], begins, ends, kind.bit_width, base))
    else:  # structs and similar types are rare: all their bytes
        wanted = [np.array([[b.address, b.address + b.size]]) - base for b in buffers if b is not None]
    if wanted:
        yield np.concatenate(wanted)


def _bits_of(buffer: pa.Buffer, begins: col.Positions, ends: col.Positions, width: int, base: int) -> Ranges:
    """The byte ranges of values of `width` bits."""
    found: Ranges = buffer.address - base + np.stack([begins * width // 8, -(-ends * width // 8)], axis=1)
    return found


Result = TypeVar("Result")

#: A generator that yields the byte ranges that it needs to continue, and returns a result.
Waiting = Generator[tuple[BlobParts, Ranges], None, Result]

_HASH_BYTES: Final = 8

#: A message of an IPC stream begins with a marker and its length.
_PREFIX_BYTES: Final = 8

#: The filters are read first if their bytes times this number are at most the bytes that they may save.
_FILTER_GAIN: Final = 2

#: If more than one in this many blocks is needed, the whole run is fetched.
_WHOLE: Final = 2


def together(works: Sequence[Waiting[Result]]) -> list[Result]:
    """The results of all works. The bytes that they wait for are fetched in common requests."""
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
    """Runs that contain at least those rows of `runs` that have one of the hashes; runs without such rows may be
    omitted.

    hashes: returns them in any order; only called if a run is not local. spread: for each hash h, also ask for all
    hashes from h to h | spread.
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
    return not isinstance(run, RemoteRun) or run.is_here


def _nearby(run: Run, hashes: Hashes, spread: int) -> Waiting[Run]:
    if isinstance(run, RemoteRun) and not run.is_here:
        return (yield from run.nearby(hashes, spread))
    return run


def opened(parts: BlobParts, ref: Any) -> Waiting[Run]:
    """The run in a blob. If it has an index, its rows are fetched when they are read."""
    size = parts.buffer.size
    yield parts, _range(max(0, size - END_BYTES), size)
    end = parts.buffer.slice(max(0, size - END_BYTES)).to_pybytes()
    index = index_layout(end, size) if len(end) == END_BYTES else None
    if index is None:
        yield parts, _range(0, size)
        return Run.from_ipc(parts.buffer, ref)
    yield parts, _range(index.hashes_at, size)
    place = 0
    for _ in range(2):  # the schema, and the positions of the columns of the only batch
        yield parts, _range(place, place + _PREFIX_BYTES)
        length = int.from_bytes(parts.buffer.slice(place + 4, 4).to_pybytes(), "little")
        end_of_message = place + _PREFIX_BYTES + length
        if end_of_message > index.filters_at:
            raise error("STATE_DAMAGED", "a stored run can't be read", detail=f"Its index fits another run ({ref}).")
        yield parts, _range(place, end_of_message)
        place = end_of_message
    return RemoteRun(Run.from_ipc(parts.buffer, ref), parts, index)


class RemoteRun(Run):
    """A run in an object store. All its rows are fetched as soon as they are read."""

    def __init__(self, sparse: Run, parts: BlobParts, index: IndexLayout) -> None:
        """sparse: the run over its bytes, most of which are not fetched yet."""
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
        """Fetches all rows when `hash`, `columns` or `weights` is first read."""
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
        """For each range of hashes, the blocks [first, last] that may contain it; no block if last is below first."""
        first = np.maximum(np.searchsorted(self._firsts, hashes) - 1, 0)
        return first, np.searchsorted(self._firsts, last_hashes, side="right") - 1

    def _all(self) -> Waiting[Run]:
        yield self.blob, _range(0, self.blob.buffer.size)
        self.hash, self.columns, self.weights = self.sparse.hash, self.sparse.columns, self.sparse.weights
        self.is_here = True
        return self

    def _filtered(self, hashes: Hashes, block: col.Positions) -> Waiting[col.Positions]:
        """The blocks in which the filters don't exclude the hashes, or all the given blocks if reading the filters
        costs too much.
        """
        width = self.index.filter_bytes
        begins = self.index.filters_at + distinct(block) * width
        filters = np.stack([begins, begins + width], axis=1)
        cost = self.blob.missing_bytes(filters) if width else 0
        if not width or cost * _FILTER_GAIN > self.blob.missing_bytes(self._hashes(distinct(block))):
            return block
        yield self.blob, filters
        every = np.frombuffer(self.blob.buffer, np.uint8, self.index.blocks * width, self.index.filters_at)
        return block[may_have(every.reshape(-1, width), block, hashes)]

    def _hashes(self, block: col.Positions) -> Ranges:
        """The byte ranges of the hashes of blocks."""
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
        """Fetches the columns of the rows, which ascend."""
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
    """A run of some rows of another. asked: the hashes of which it contains all rows; None if that is not checked."""

    def __init__(self, whole: Run, some: Run, asked: Hashes | None) -> None:
        super().__init__(some.hash, some.columns, some.weights, whole.keys, pure=whole.pure)
        self.has_negative = whole.has_negative  # merges treat it like the whole run
        self._asked = asked

    def expect(self, hashes: Hashes) -> None:
        if self._asked is None or not _are_among(hashes, self._asked):
            raise error("INTERNAL_ERROR", "keys are looked up in a run of which only rows of others were fetched")


def _are_among(hashes: Hashes, others: Hashes) -> bool:
    """Whether all of the first hashes are among the others; both are sorted."""
    if not len(hashes) or not len(others):
        return not len(hashes)
    places = np.minimum(np.searchsorted(others, hashes), len(others) - 1)
    return bool((others[places] == hashes).all())


def _once(ranges: Ranges) -> Generator[Ranges, None, None]:
    yield ranges


def _range(begin: int, end: int) -> Ranges:
    return np.array([[begin, end]], np.int64)


#: The approximate number of bytes of a run that are read at a time.
_PIECE_BYTES: Final = 16 << 20

#: If more than one in this many rows are needed, they are not copied, because copies would take memory.
_MOST_COPIED: Final = 8


class StreamedRun(RemoteRun):
    """A mapped run that does not stay in memory. Reading all of its rows uses the mapping.

    whole: the mapped run in its blob. run: the whole run, or consecutive rows of it. cold, blob: the whole run, for
    reads that bypass the page cache.
    """

    def __init__(self, run: Run, whole: Run, cold: RemoteRun, blob: DirectBlob) -> None:
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
        """See `near`. Returns the run itself if a large part of it is needed."""
        last_hashes = hashes | np.uint64(spread)
        first, last = self._blocks(hashes, last_hashes)
        found = [self.sparse.slice(0, 0)]
        count = 0
        block = self._begin // self.index.rows
        end_block = -(-(self._begin + self.num_rows) // self.index.rows)
        while (begin := int(np.searchsorted(last, block))) < len(hashes):  # the first block that may contain it
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
        """The rows of blocks [block, stop) that have one of the hashes. first, last: for each hash the blocks that may
        contain it.
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
    """The rows of neighboring runs, as one run."""
    hashes = np.concatenate([r.hash for r in runs])
    columns = pa.concat_tables([r.columns for r in runs]).combine_chunks()
    weights = None if runs[0].all_ones else np.concatenate([r.diff for r in runs])
    return Run(hashes, columns, weights, runs[0].keys, pure=runs[0].pure)
