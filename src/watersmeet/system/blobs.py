"""Pieces of stored files: where they are, and reading parts of large files past the machine's cache of files.

What is read once and not again for long would only drive out of the cache what is read often, and for the machine it
costs as much to map, and to take back, page after page as to compare what is in them.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.errors import error

Pieces = Sequence[bytes | memoryview]
"""The bytes of a blob, in pieces that lie anywhere in memory."""


class BlobRef(NamedTuple):
    """Bytes [offset_bytes, offset_bytes + length_bytes) of `file`. rows: of the table in it.

    file: its name among those of a database, or in a state store; "" for "the pack in which this is written".
    """

    file: str
    offset_bytes: int
    length_bytes: int
    rows: int

    def within(self, pack: str) -> BlobRef:
        """The reference as seen from outside: `pack` is the name of the pack in whose footer it was found."""
        return self if self.file else self._replace(file=pack)


def joined(blob: Pieces) -> pa.Buffer:
    """The bytes of a blob in one piece, at a multiple of 64 bytes."""
    buffer = pa.allocate_buffer(sum(map(len, blob)))
    target, end = memoryview(buffer).cast("B"), 0
    for piece in blob:
        target[end : end + len(piece)] = piece
        end += len(piece)
    return buffer


Ranges = npt.NDArray[np.int64]
"""Ranges of bytes: of each [begin, end), as a row."""


class BlobParts(Protocol):
    """The bytes of a blob that is elsewhere, of which only some are here.

    buffer: as long as the blob. What has not been fetched must not be read: it is undefined.
    """

    buffer: pa.Buffer

    def missing_bytes(self, ranges: Ranges) -> int:
        """How many bytes `fetch` would have to get from elsewhere for these ranges."""
        ...

    def fetch(self, wanted: Sequence[tuple[BlobParts, Ranges]]) -> None:
        """Has ranges of blobs of one store, this one's among them, in their buffers, with as few waits as possible.

        STATE_DAMAGED, naming the file, if bytes are missing or not those that were written.
        """
        ...


#: Direct reading wants places in files, places in memory, and lengths that are multiples of this.
_BLOCK_BYTES: Final = 4096

#: Gaps that are not larger are read, too: that is quicker than another request.
_GAP_BYTES: Final = 64 << 10

#: For so many bytes there are to be large pages of memory, which the machine clears and takes back more quickly.
_LARGE_BYTES: Final = 4 << 20

#: So many bytes are read by one request …
_REQUEST_BYTES: Final = 2 << 20

#: … and so many requests are under way at a time.
_AT_ONCE: Final = 4


class DirectBlob:
    """A blob of a file that never changes; of it only some parts are in memory (`blobs.BlobParts`).

    buffer: as long as the blob; 0 where nothing was fetched. It takes the memory of what was fetched, until `drop`.
    FileNotFoundError if there is no such file; it may be deleted later.
    """

    def __init__(self, path: Path, offset_bytes: int, length_bytes: int) -> None:
        self._path = path
        self._file, self._direct = _open(path)
        weakref.finalize(self, os.close, self._file)
        self._first_bytes = offset_bytes // _BLOCK_BYTES * _BLOCK_BYTES
        """The place in the file that is the first in memory."""
        self._skipped_bytes = offset_bytes - self._first_bytes
        self._end_bytes = self._skipped_bytes + length_bytes
        size = max(1, -(-self._end_bytes // _BLOCK_BYTES)) * _BLOCK_BYTES
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._fetched: list[tuple[int, int]] = []
        self.buffer = pa.py_buffer(self._memory).slice(self._skipped_bytes, length_bytes)

    def missing_bytes(self, ranges: Ranges) -> int:
        """How many bytes `fetch` would read."""
        return sum(end - begin for begin, end in _merged(ranges + self._skipped_bytes))

    def fetch(self, wanted: Sequence[tuple[BlobParts, Ranges]]) -> None:
        """Has ranges of blobs like this one in their buffers. STATE_DAMAGED if the file is too short."""
        reads = []
        for blob, ranges in wanted:
            assert isinstance(blob, DirectBlob)
            for begin, end in _merged(ranges + blob._skipped_bytes):
                blob._fetched.append((begin, end))
                if end - begin >= _LARGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
                    blob._memory.madvise(mmap.MADV_HUGEPAGE, begin, end - begin)
                reads += [
                    (blob, first, min(first + _REQUEST_BYTES, end)) for first in range(begin, end, _REQUEST_BYTES)
                ]
        if len(reads) == 1:
            _read(reads[0])
        else:
            for _ in _readers().map(_read, reads):
                pass

    def drop(self) -> None:
        """Gives back the memory of what was fetched: it is undefined from now on."""
        for begin, end in self._fetched:
            self._memory.madvise(mmap.MADV_DONTNEED, begin, end - begin)
        self._fetched.clear()

    def _read(self, begin: int, end: int) -> None:
        """Reads what belongs to bytes [begin, end) of the memory."""
        view = memoryview(self._memory)
        wanted = min(end, self._end_bytes)
        while begin < wanted:
            count = os.preadv(self._file, [view[begin:end]], self._first_bytes + begin)
            if not self._direct and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(self._file, self._first_bytes + begin, count, os.POSIX_FADV_DONTNEED)
            begin += count
            if begin < wanted and (not count or count % _BLOCK_BYTES):
                raise error(
                    "STATE_DAMAGED",
                    f"{self._path.name} is shorter than it was",
                    detail=f"The file is in {self._path.parent}.",
                )


def _read(part: tuple[DirectBlob, int, int]) -> None:
    blob, begin, end = part
    blob._read(begin, end)


def _open(path: Path) -> tuple[int, bool]:
    """The file, and whether it is read past the cache: not every file system can do that."""
    if hasattr(os, "O_DIRECT"):
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECT), True
        except FileNotFoundError:
            raise
        except OSError:
            pass
    return os.open(path, os.O_RDONLY), False


def _merged(ranges: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """The blocks of the ranges; those that are near each other as one range, ascending."""
    ranges = ranges[ranges[:, 0] < ranges[:, 1]]
    if not len(ranges):
        return
    begins = ranges[:, 0] // _BLOCK_BYTES * _BLOCK_BYTES
    ends = -(-ranges[:, 1] // _BLOCK_BYTES) * _BLOCK_BYTES
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], np.maximum.accumulate(ends[order])
    apart = np.flatnonzero(begins[1:] > ends[:-1] + _GAP_BYTES)
    firsts, lasts = np.append(0, apart + 1), np.append(apart, len(ends) - 1)
    yield from zip(begins[firsts].tolist(), ends[lasts].tolist(), strict=True)


@cache
def _readers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_AT_ONCE, "watersmeet-reader")
