"""The index of a large stored run: which of its rows may have a hash, without reading the others.

It follows the run in its blob: filters, the first hash of each block of `BLOCK_ROWS` rows, and a trailer. All columns
of a run lie one after the other, so that they are mapped as they are; a block is so many rows of each, not a range of
bytes.

A filter is a bloom filter of the hashes of one block, so that the filter of a block can be read by itself. With ten
bits a hash and four places, 1.2 % of the hashes that are not in a block look as if they were.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from watersmeet.kernel.arrays.hashing import Hashes
from watersmeet.kernel.runs.order import stretches

#: Runs that are not smaller have an index.
INDEXED_BYTES: Final = 1 << 20
BLOCK_ROWS: Final = 1024

_MAGIC: Final = b"WMINDEX\n"
#: Rows of a block, blocks, bytes of a filter.
_END: Final = struct.Struct("<III4x8s")
END_BYTES: Final = _END.size
_HASH_BYTES: Final = 8
_BITS: Final = 10
_PLACES: Final = 4
#: Filters of so many blocks are made at a time, in a core's own cache.
_AT_ONCE: Final = 32

_MIX: Final = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93))


@dataclass(frozen=True)
class Layout:
    """Where the index of a blob is. blocks: how many. filter_bytes: of one block, 0 if there are none.

    hashes_at, filters_at: where the first hashes and the filters begin.
    """

    rows: int
    blocks: int
    filter_bytes: int
    filters_at: int
    hashes_at: int


def layout(end: bytes, size_bytes: int) -> Layout | None:
    """What the last `END_BYTES` of a blob of so many bytes tell; None if it has no index."""
    rows, blocks, filter_bytes, magic = _END.unpack(end)
    hashes_at = size_bytes - END_BYTES - _HASH_BYTES * blocks
    filters_at = hashes_at - filter_bytes * blocks
    if magic != _MAGIC or filters_at < 0:
        return None
    return Layout(rows, blocks, filter_bytes, filters_at, hashes_at)


def index_bytes(hashes: Hashes, *, filters: bool) -> int:
    """How many bytes the index takes."""
    blocks = -(-len(hashes) // BLOCK_ROWS)
    return blocks * (_HASH_BYTES + (_filter_bytes(hashes) if filters else 0)) + END_BYTES


def write_index(target: memoryview, hashes: Hashes) -> None:
    """Writes the index of a run with these hashes, ascending; `target` has just the room for it, with filters or
    without.
    """
    firsts = np.ascontiguousarray(hashes[::BLOCK_ROWS])
    size = len(target) - firsts.nbytes - END_BYTES
    filter_bytes = size // max(1, len(firsts))
    if filter_bytes:
        _write_filters(np.frombuffer(target[:size], np.uint8).reshape(-1, filter_bytes), hashes)
    target[size : size + firsts.nbytes] = firsts.tobytes()
    target[size + firsts.nbytes :] = _END.pack(BLOCK_ROWS, len(firsts), filter_bytes, _MAGIC)


def may_have(filters: npt.NDArray[np.uint8], blocks: npt.NDArray[np.int64], hashes: Hashes) -> npt.NDArray[np.bool_]:
    """Of pairs of a block and a hash, whether the block may have the hash. filters: a row for each block."""
    found = np.ones(len(hashes), np.bool_)
    for bit in _bits(hashes, 8 * filters.shape[1]):
        found &= (filters[blocks, bit >> 3] >> (bit & 7).astype(np.uint8)) & 1 > 0
    return found


def _filter_bytes(hashes: Hashes) -> int:
    """Enough for the block with most distinct hashes, a multiple of 8."""
    if not len(hashes):
        return 0
    starts, _ = stretches(hashes)
    most = int(np.bincount(starts // BLOCK_ROWS).max()) + 1  # and the one that began in the block before
    return -(-most * _BITS // 64) * 8


def _write_filters(filters: npt.NDArray[np.uint8], hashes: Hashes) -> None:
    width = 8 * filters.shape[1]
    for begin in range(0, len(filters), _AT_ONCE):
        some = hashes[begin * BLOCK_ROWS : (begin + _AT_ONCE) * BLOCK_ROWS]
        is_new = np.ones(len(some), np.bool_)  # in its block: equal hashes have equal bits
        np.not_equal(some[1:], some[:-1], out=is_new[1:])
        is_new[::BLOCK_ROWS] = True
        rows = np.flatnonzero(is_new)
        places = rows // BLOCK_ROWS * width
        bits = np.zeros(-(-len(some) // BLOCK_ROWS) * width, np.bool_)
        for bit in _bits(some[rows], width):
            bits[places + bit] = True
        filters[begin : begin + _AT_ONCE] = np.packbits(bits, bitorder="little").reshape(-1, width // 8)


def _bits(hashes: Hashes, width: int) -> Iterator[npt.NDArray[np.int64]]:
    """The places of each hash in a filter of so many bits. Hashes that differ in a few bits have places far apart."""
    mixed = hashes * _MIX[0]
    mixed ^= mixed >> np.uint64(32)
    mixed *= _MIX[1]
    mixed ^= mixed >> np.uint64(29)
    low = np.uint64(0xFFFFFFFF)
    place, step = mixed & low, (mixed >> np.uint64(32)) | np.uint64(1)
    for _ in range(_PLACES):
        yield ((place * np.uint64(width)) >> np.uint64(32)).astype(np.int64)
        place = (place + step) & low
