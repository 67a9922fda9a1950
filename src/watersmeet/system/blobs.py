"""References to parts of stored files, and direct reads of large files, which bypass the page cache.

Blobs that are read once would evict pages that are read often, and mapping their pages costs as much as comparing their
rows.
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
"""The bytes of a blob, in several buffers."""


class BlobRef(NamedTuple):
    """A reference to bytes [offset_bytes, offset_bytes + length_bytes) of a file, which contain a table of `rows` rows.

    file: its name in the database or the state store; "" for the segment that contains this reference.
    """

    file: str
    offset_bytes: int
    length_bytes: int
    rows: int

    def within(self, segment: str) -> BlobRef:
        """The reference with the name of a file. segment: the file whose footer contains the reference."""
        return self if self.file else self._replace(file=segment)


def joined(blob: Pieces) -> pa.Buffer:
    """The bytes of a blob in one buffer, aligned to 64 bytes."""
    buffer = pa.allocate_buffer(sum(map(len, blob)))
    target, end = memoryview(buffer).cast("B"), 0
    for piece in blob:
        target[end : end + len(piece)] = piece
        end += len(piece)
    return buffer


Ranges = npt.NDArray[np.int64]
"""Ranges of bytes [begin, end), one in each row."""


class BlobParts(Protocol):
    """A blob in another store, of which only some ranges are in memory.

    buffer: of the blob's length; undefined outside of the fetched ranges.
    """

    buffer: pa.Buffer

    def missing_bytes(self, ranges: Ranges) -> int:
        """The number of bytes that `fetch` would read for these ranges."""
        ...

    def fetch(self, wanted: Sequence[tuple[BlobParts, Ranges]]) -> None:
        """Fills ranges of several blobs of one store, including this one, with as few round trips as possible.

        Raises STATE_DAMAGED, with the name of the file, if bytes are missing or have changed.
        """
        ...


#: Direct reads require offsets, addresses and lengths that are multiples of this.
_BLOCK_BYTES: Final = 4096

#: Gaps up to this size are also read, which is faster than another request.
_GAP_BYTES: Final = 64 << 10

#: From this size on, a range uses huge pages, which the kernel clears and frees faster.
_LARGE_BYTES: Final = 4 << 20

#: The maximum bytes of one request.
_REQUEST_BYTES: Final = 2 << 20

#: The number of concurrent requests.
_AT_ONCE: Final = 4


class DirectBlob:
    """A `BlobParts` of an immutable file; the file may be deleted later.

    buffer: zero outside of the fetched ranges, which take memory until `drop`. Raises FileNotFoundError.
    """

    def __init__(self, path: Path, offset_bytes: int, length_bytes: int) -> None:
        self._path = path
        self._file, self._direct = _open(path)
        weakref.finalize(self, os.close, self._file)
        self._first_bytes = offset_bytes // _BLOCK_BYTES * _BLOCK_BYTES
        """The offset in the file of the first byte in memory."""
        self._skipped_bytes = offset_bytes - self._first_bytes
        self._end_bytes = self._skipped_bytes + length_bytes
        size = max(1, -(-self._end_bytes // _BLOCK_BYTES)) * _BLOCK_BYTES
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._fetched: list[tuple[int, int]] = []
        self.buffer = pa.py_buffer(self._memory).slice(self._skipped_bytes, length_bytes)

    def missing_bytes(self, ranges: Ranges) -> int:
        """The number of bytes that `fetch` would read."""
        return sum(end - begin for begin, end in _merged(ranges + self._skipped_bytes))

    def fetch(self, wanted: Sequence[tuple[BlobParts, Ranges]]) -> None:
        """Fills ranges of several blobs of files. Raises STATE_DAMAGED if a file is too short."""
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
        """Frees the memory of the fetched ranges, which are undefined afterwards."""
        for begin, end in self._fetched:
            self._memory.madvise(mmap.MADV_DONTNEED, begin, end - begin)
        self._fetched.clear()

    def _read(self, begin: int, end: int) -> None:
        """Reads the bytes of the file that belong to [begin, end) of the memory."""
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
    """The file, and whether its file system supports direct reads."""
    if hasattr(os, "O_DIRECT"):
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECT), True
        except FileNotFoundError:
            raise
        except OSError:
            pass
    return os.open(path, os.O_RDONLY), False


def _merged(ranges: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """The blocks of the ranges, ascending; neighbors are merged."""
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
