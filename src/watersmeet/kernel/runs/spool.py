"""Where changes wait that are too many for memory: files without a name, which are gone with their last reader."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.hashing import Hashes, hash_columns
from watersmeet.kernel.runs.delta import Delta, consolidate
from watersmeet.kernel.runs.diffs import are_ones, joined, ones
from watersmeet.kernel.runs.frames import decode, encode
from watersmeet.kernel.runs.order import stretches
from watersmeet.kernel.runs.sliced import Slicing

_HashesOf = Callable[[Delta], Hashes]

_ALIGNMENT: Final = 64
#: Equal ranges of hashes, of which neighbouring ones are consolidated together.
_RANGES: Final = 1 << 12


class Spool:
    """One temporary file of blobs: `add`, then `buffers`, which maps them. What is mapped is the disk's, not memory's.

    directory: where the file is made, None for the system's place. It has no name there, so nothing is left behind.
    """

    def __init__(self, directory: str | None = None) -> None:
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - closed when it is mapped
        self._places: list[tuple[int, int]] = []
        self._end_bytes = 0

    def add(self, blob: pa.Buffer) -> int:
        """Writes a blob; its number."""
        padding = -self._end_bytes % _ALIGNMENT
        self._file.write(bytes(padding))
        self._file.write(memoryview(blob))
        self._places.append((self._end_bytes + padding, blob.size))
        self._end_bytes += padding + blob.size
        return len(self._places) - 1

    def buffers(self) -> list[pa.Buffer]:
        """The blobs in order; nothing can be added any more."""
        with self._file:
            self._file.flush()
            if not self._end_bytes:
                return []
            mapped = pa.py_buffer(mmap.mmap(self._file.fileno(), self._end_bytes, access=mmap.ACCESS_READ))
        return [mapped.slice(start, size) for start, size in self._places]


def spooled(slices: Iterable[Delta], slicing: Slicing) -> list[Delta]:
    """The slices that have rows, in a file."""
    spool = Spool(slicing.directory)
    for piece in slices:
        if piece.num_rows:
            spool.add(encode(piece))
    return [decode(b) for b in spool.buffers()]


def whole(slices: Iterable[Delta], schema: pa.Schema, slicing: Slicing) -> Delta:
    """The changes of all slices, with columns in a file. schema: of the columns."""
    found = spooled(slices, slicing)
    if not found:
        return Delta.empty(schema)
    rows = sum(d.num_rows for d in found)
    diff = ones(rows) if all(are_ones(d.diff) for d in found) else joined([d.diff for d in found])
    return Delta(pa.concat_tables([d.columns for d in found]), diff)


def contiguous(slices: Iterable[Delta], schema: pa.Schema, slicing: Slicing) -> Delta:
    """As `whole`, with one array for each column: memory for one column at a time.

    Raises Error INTERNAL_ERROR if the strings of a column do not fit in one array (2 GiB).
    """
    chunked = whole(slices, schema, slicing)
    spool = Spool(slicing.directory)
    none = ones(chunked.num_rows)
    for column in chunked.columns.columns:
        spool.add(encode(Delta(col.positional([col.flat(column)]), none)))
    arrays = [decode(b).arrays[0] for b in spool.buffers()]
    return Delta(col.positional(arrays), chunked.diff)


def consolidated(slices: Iterable[Delta], keys: tuple[int, ...] | None, slicing: Slicing) -> Iterator[Delta]:
    """What `consolidate` gives for all slices together, in slices, in its order: byte for byte the same.

    Each slice is consolidated and put into a file; then the rows of all slices are taken range of hashes by range of
    hashes, those of a hot key by ranges of row hashes. Memory: about a slice. keys: as in `consolidate`.
    """

    def main_hashes(piece: Delta) -> Hashes:
        return _hashes(piece, keys)

    pieces = spooled((consolidate(piece, keys) for piece in slices), slicing)
    for parts in _by_ranges(pieces, main_hashes, slicing.rows):
        for some in [parts] if keys is None else _without_hot(parts, main_hashes, slicing.rows):
            yield consolidate(Delta.concat(some), keys)


def _hashes(piece: Delta, keys: tuple[int, ...] | None) -> Hashes:
    columns = piece.arrays if keys is None else [piece.arrays[i] for i in keys]
    return hash_columns(columns, piece.num_rows, as_key=keys is not None)


def _by_ranges(pieces: Sequence[Delta], hashes: _HashesOf, limit: int) -> Iterator[list[Delta]]:
    """The rows of pieces that are sorted by `hashes`, by ranges of these: `limit` rows at a time, or a range."""
    if not pieces:
        return
    least = min(_hash_at(p, 0, hashes) for p in pieces)
    greatest = max(_hash_at(p, -1, hashes) for p in pieces)
    # Ranges of the hashes that there are: those of a bucket are but a part of all.
    bounds = np.array([least + (greatest + 1 - least) * i // _RANGES for i in range(1, _RANGES)], np.uint64)
    places = np.array([[0, *np.searchsorted(hashes(p), bounds).tolist(), p.num_rows] for p in pieces])
    ends = np.cumsum(np.diff(places, axis=1).sum(axis=0))
    begin = 0
    while begin < _RANGES:
        before = ends[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + limit, side="right")))
        if found := _between(pieces, places[:, begin], places[:, end]):
            yield found
        begin = end


def _hash_at(piece: Delta, row: int, hashes: _HashesOf) -> int:
    return int(hashes(piece.take(np.array([row % piece.num_rows])))[0])


def _without_hot(parts: list[Delta], hashes: _HashesOf, limit: int) -> Iterator[list[Delta]]:
    """The same rows in the same order; if they are many, those of the hottest key apart, by ranges of row hashes."""
    if sum(p.num_rows for p in parts) <= 2 * limit:
        yield parts
        return
    starts, lengths = stretches(hashes(largest := max(parts, key=lambda p: p.num_rows)))
    hottest = hashes(largest)[starts[lengths.argmax()]]
    first, last = (np.array([np.searchsorted(hashes(p), hottest, side) for p in parts]) for side in ("left", "right"))
    if below := _between(parts, np.zeros_like(first), first):
        yield from _without_hot(below, hashes, limit)
    yield from _by_ranges(_between(parts, first, last), lambda p: _hashes(p, None), limit)
    if above := _between(parts, last, np.array([p.num_rows for p in parts])):
        yield from _without_hot(above, hashes, limit)


def _between(pieces: Sequence[Delta], first: col.Positions, last: col.Positions) -> list[Delta]:
    """Rows [first[i], last[i]) of piece i, of those that have any."""
    return [
        Delta(p.columns.slice(a, b - a), p.diff[a:b])
        for p, a, b in zip(pieces, first.tolist(), last.tolist(), strict=True)
        if a < b
    ]
