"""Run files of an object store, of which only the blocks are fetched that are needed.

Each block is checked once by each process that reads it, wherever it comes from. What is fetched is kept in the local
copies (`objectstores.cache`), by block. Blocks that are close to each other are fetched with what lies between them,
as a request costs as much as some bytes; several requests are on their way at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.blobs import BlobParts, Ranges
from watersmeet.errors import Error, error
from watersmeet.objectstores import databasefiles
from watersmeet.objectstores.base import ObjectPath
from watersmeet.store.packs import (
    BLOCK_BYTES,
    CHECKSUM_BYTES,
    MAGIC,
    PACK_FORMAT_VERSION,
    TRAILER,
    block_checksum,
    file_hash,
    tail_hash,
)

Blocks = npt.NDArray[np.int64]

#: So many blocks that nobody asked for are fetched between two that are needed.
_GAP_BLOCKS: Final = 2
#: And so many at most with one request.
_MOST_BLOCKS: Final = 128
#: With the end of a file, a part of its content is fetched, which mostly has the index of a run: one in so many bytes,
#: but not more than …
_END_PART: Final = 16
_END_BYTES: Final = 256 << 10


class PackParts:
    """A run file in parts. See `blobs.BlobParts`. Safe for several threads.

    used: the moment of its last use, for `PackFiles`.
    """

    def __init__(self, place: ObjectPath, length_bytes: int) -> None:
        """length_bytes: of the blob in it. Nothing is read before `open_parts`."""
        self.place = place
        self.used = 0
        self.is_open = False
        self._length = length_bytes
        self._content_blocks = -(-length_bytes // BLOCK_BYTES)
        self.size_bytes = length_bytes + self._content_blocks * CHECKSUM_BYTES + TRAILER.size
        self._copy = databasefiles.in_parts(place, self.size_bytes, BLOCK_BYTES)
        self._sound = np.zeros(-(-self.size_bytes // BLOCK_BYTES), np.bool_)
        self.buffer: pa.Buffer = self._copy.buffer.slice(0, length_bytes)

    def missing_bytes(self, ranges: Ranges) -> int:
        """As `BlobParts`."""
        blocks = self.blocks_of(ranges)
        return int(np.count_nonzero(~self._copy.there(blocks))) * BLOCK_BYTES

    def fetch(self, wanted: Sequence[tuple[BlobParts, Ranges]]) -> None:
        """As `BlobParts`."""
        by_file: dict[int, tuple[PackParts, list[Blocks]]] = {}
        for parts, ranges in wanted:
            assert isinstance(parts, PackParts)
            by_file.setdefault(id(parts), (parts, []))[1].append(parts.blocks_of(ranges))
        _fetch([(parts, np.unique(np.concatenate(blocks))) for parts, blocks in by_file.values()])

    def blocks_of(self, ranges: Ranges) -> Blocks:
        """The blocks that have some of the bytes, ascending."""
        some = ranges[ranges[:, 0] < ranges[:, 1]]
        bounds = np.zeros(len(self._sound) + 1, np.int64)
        np.add.at(bounds, some[:, 0] // BLOCK_BYTES, 1)
        np.add.at(bounds, (some[:, 1] - 1) // BLOCK_BYTES + 1, -1)
        return np.flatnonzero(np.cumsum(bounds[:-1]) > 0)

    def end_blocks(self) -> Blocks:
        """The first block, and those at the end without which nothing can be checked."""
        content = min(_END_BYTES, max(BLOCK_BYTES, self._length // _END_PART))
        return self.blocks_of(np.array([[0, 1], [max(0, self._length - content), self.size_bytes]]))

    def unsound(self, blocks: Blocks) -> Blocks:
        """Those of some blocks that this process has not yet found to be what was written."""
        return blocks[~self._sound[blocks]]

    def absent(self, blocks: Blocks) -> Blocks:
        """Those that are not in the local copy."""
        return blocks[~self._copy.there(blocks)]

    def requests(self, blocks: Blocks) -> list[tuple[ObjectPath, int, int, Callable[[bytes], None]]]:
        """For `databasefiles.fetch_ranges`, what gets these blocks, ascending, and what lies between near ones."""
        if not len(blocks):
            return []
        begins = np.flatnonzero(np.diff(blocks, prepend=-_GAP_BLOCKS - 2) > _GAP_BLOCKS + 1)
        ends = np.append(begins[1:], len(blocks)) - 1
        found = []
        for first, last in zip(blocks[begins].tolist(), blocks[ends].tolist(), strict=True):
            for begin in range(first, last + 1, _MOST_BLOCKS):
                end = min(begin + _MOST_BLOCKS, last + 1)
                span = begin * BLOCK_BYTES, min(end * BLOCK_BYTES, self.size_bytes)
                found.append((self.place, *span, self._taker(begin, span[1] - span[0])))
        return found

    def check(self, blocks: Blocks) -> Blocks:
        """Checks blocks that are there: those that are not what was written."""
        if not self.is_open:
            return np.zeros(0, np.int64) if self._check_end() else blocks
        damaged = []
        checksums = memoryview(self._copy.buffer).cast("B")[self._length :]
        for number in blocks.tolist():
            if number < self._content_blocks:
                block = self.buffer.slice(number * BLOCK_BYTES, min(BLOCK_BYTES, self._length - number * BLOCK_BYTES))
                if checksums[CHECKSUM_BYTES * number : CHECKSUM_BYTES * (number + 1)] != block_checksum(block):
                    damaged.append(number)
                    continue
            self._sound[number] = True
        return np.array(damaged, np.int64)

    def _check_end(self) -> bool:
        """Whether the end of the file is that of the file of this name; then it is open, and blocks can be checked."""
        tail = self._copy.buffer.slice(self._length)
        checksums = tail.slice(0, tail.size - TRAILER.size)
        length, footer, version, found, magic = TRAILER.unpack(tail.slice(checksums.size).to_pybytes())
        if magic == MAGIC and version != PACK_FORMAT_VERSION:
            raise error("DATABASE_FORMAT", f"{self.place.name} has pack format {version}, not {PACK_FORMAT_VERSION}")
        self.is_open = (
            (length, footer, magic) == (self._length, 0, MAGIC)
            and found.hex() == file_hash(self.place.name)
            and tail_hash(checksums, b"") == found
        )
        return self.is_open

    def _taker(self, first_block: int, size_bytes: int) -> Callable[[bytes], None]:
        def take(data: bytes) -> None:
            if len(data) != size_bytes:
                raise damaged(self.place, "its end is missing")
            self._copy.add(first_block, data)

        return take

    def keep(self) -> None:
        """It was used."""
        self._copy.used()


def open_parts(files: Iterable[PackParts]) -> None:
    """Makes files ready whose parts are going to be read. STATE_DAMAGED, naming the file."""
    new = [(parts, parts.end_blocks()) for parts in files if not parts.is_open]
    _fetch(new)
    _fetch(new)  # now that they are open, their blocks can be checked


def damaged(place: ObjectPath, reason: str) -> Error:
    """A file is not what was written."""
    return error("STATE_DAMAGED", f"{place.name} is damaged: {reason}", detail=f"The file is in {place.parent}.")


def _fetch(wanted: Sequence[tuple[PackParts, Blocks]]) -> None:
    fresh = [(parts, parts.unsound(blocks)) for parts, blocks in wanted]
    absent = [(parts, parts.absent(blocks)) for parts, blocks in fresh]
    _get(absent)
    misses = sum(len(blocks) for _, blocks in absent)
    databasefiles.looked_up(hits=sum(len(blocks) for _, blocks in wanted) - misses, misses=misses)
    # What the local copies have may be damaged, or not complete, as its writer died: it is fetched again.
    again = [(parts, parts.check(blocks)) for parts, blocks in fresh]
    if any(len(blocks) for _, blocks in again):
        _get(again)
        for parts, blocks in again:
            if len(blocks) and len(parts.check(blocks)):
                raise damaged(parts.place, "a checksum does not match its content")
    for parts, _ in wanted:
        parts.keep()


def _get(wanted: Iterable[tuple[PackParts, Blocks]]) -> None:
    requests = [r for parts, blocks in wanted for r in parts.requests(blocks)]
    try:
        databasefiles.fetch_ranges(requests)
    except FileNotFoundError as cause:
        raise error("STATE_DAMAGED", "a file of the state is missing", detail=str(cause)) from cause
    databasefiles.looked_up(fetched_bytes=sum(end - begin for _, begin, end, _ in requests))
