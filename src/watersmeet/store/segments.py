"""Segments: one file contains all blobs that one task (or transaction) wrote. This module writes segments, and reads
them in blocks from object stores.

Layout: header of 64 bytes (magic), blobs each at a multiple of 64 bytes (so that Arrow maps them without copying), then
the checksums of all preceding blocks (XXH3, 8 bytes for each block of `BLOCK_BYTES`), the footer (JSON), the trailer:
where the checksums begin (uint64), the length of the footer, the format (uint32), the hash in the file's name, magic.
Blobs of at least 1 MiB are separate files (`.run`): the blob, checksums and a trailer, with an empty footer. They
outlive the segment when unchanged state passes to the next epoch. A segment has a section for each bucket of a stage
whose state the task changed, which lists that state.

The hash covers the checksums and the footer. It is as good as a hash of the content, and any block can be checked
without the others. Names contain the writer, so that an overtaken writer never writes or deletes another's file.

Each process checks each block once, wherever it was read. Fetched blocks are kept in the local copies
(`objectstores.databasefiles`). Nearby blocks are fetched together with the gap between them, because a request costs as
much as some bytes; several requests run at a time.
"""

from __future__ import annotations

import json
import re
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from watersmeet.errors import Error, error
from watersmeet.objectstores import databasefiles, storage
from watersmeet.objectstores.base import ObjectPath
from watersmeet.objectstores.storage import AnyPath
from watersmeet.system.blobs import BlobParts, BlobRef, Pieces, Ranges

MAGIC: Final = b"WMSEGM\r\n"
SEGMENT_FORMAT_VERSION: Final = 4
HEADER_BYTES: Final = 64
ALIGNMENT_BYTES: Final = 64
OWN_FILE_BYTES: Final = 1 << 20

#: Blobs of this size that no task will read are written without the page cache.
DIRECT_BYTES: Final = 2 << 20

#: The size of a block; each has a checksum.
BLOCK_BYTES: Final = 64 << 10

CHECKSUM_BYTES: Final = 8
TRAILER: Final = struct.Struct("<QII16s8s")
_FILE: Final = re.compile(r"(?:([0-9]+)|t[0-9]+|s([0-9]+))-([0-9]+)-.*\.(?:segment|run)\Z")
_PREFIX: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\Z")


def epoch_prefix(epoch: int, writer: int, *place: int) -> str:
    """The prefix of the names of one task's files. writer: the log's, as in commits. place: the stage and the bucket,
    for a task that only runs these.
    """
    return "-".join([f"{epoch:010d}", str(writer), *map(str, place)])


def transaction_prefix(number: int, writer: int) -> str:
    """The prefix of the names of files of the transaction that will be commit `number`."""
    return f"t{number}-{writer}"


def snapshot_prefix(number: int, writer: int) -> str:
    """The prefix of the names of files of a compaction of the content up to commit `number`."""
    return f"s{number:012d}-{writer}"


def file_writer(name: str) -> int | None:
    """The writer of a segment or run file with this name; None for other names."""
    found = _FILE.match(name)
    return int(found[3]) if found else None


def file_epoch(name: str) -> int | None:
    """The epoch of a segment or run file with this name; None for a file of a transaction or compaction."""
    found = _FILE.match(name)
    return int(found[1]) if found and found[1] else None


def file_snapshot(name: str) -> int | None:
    """The `number` of `snapshot_prefix` in the name of a segment or run file; None for files that compaction did not
    write.
    """
    found = _FILE.match(name)
    return int(found[2]) if found and found[2] else None


def file_hash(name: str) -> str:
    """The hash in the name of a segment or run file."""
    return name.rpartition("-")[2].partition(".")[0]


class SegmentWriter:
    """Collects blobs. `finish` writes them, and must be called, because large ones may be written in the background
    until then. Not thread-safe.

    directory: segments/ of the database. prefix: that of the file names (`epoch_prefix`). own_file_bytes: by default
    `OWN_FILE_BYTES`. After an error no written file is referenced; the clean-up at start deletes them.
    """

    def __init__(self, directory: AnyPath, prefix: str, *, durable: bool, own_file_bytes: int | None = None) -> None:
        if not _PREFIX.match(prefix):
            raise error("INTERNAL_ERROR", f"not a prefix of a segment: {prefix!r}")
        self._directory = directory
        self._prefix = prefix
        self._files = storage.Publisher(durable=durable)
        self.own_file_bytes = OWN_FILE_BYTES if own_file_bytes is None else own_file_bytes
        """Blobs of at least this size are separate files."""
        self._pieces: list[bytes | memoryview] = [MAGIC.ljust(HEADER_BYTES, b"\0")]
        self._end_bytes = HEADER_BYTES
        self._blobs: list[tuple[int, int, int]] = []
        self._own: Counter[str] = Counter()

    def add(self, blob: Pieces, rows: int, *, unread: bool = False, held: bool = False) -> BlobRef:
        """Adds a blob, whose pieces must not change. The reference's `file` is "" (this segment, see `BlobRef.within`)
        or a separate file.

        unread: whether no task will read it; a large one is from a backlog or from history, and is rarely read soon.
        held: as in `storage.Publisher.publish`.
        """
        size = sum(map(len, blob))
        if size >= self.own_file_bytes:
            name = self._publish(blob, size, b"", "run", direct=unread and size >= DIRECT_BYTES, held=held)
            self._own[name] += 1
            return BlobRef(name, 0, size, rows)
        offset = self._pad()
        self._pieces.append(b"".join(blob))
        self._end_bytes += size
        self._blobs.append((offset, size, rows))
        return BlobRef("", offset, size, rows)

    def wait(self) -> None:
        """Waits until the separate files of all added large blobs exist."""
        self._files.finish()

    def drop(self, ref: BlobRef) -> None:
        """Deletes an added blob's separate file, unless another blob is equal."""
        self._own[ref.file] -= 1
        if not self._own[ref.file]:
            self.wait()
            storage.discard(self._directory / ref.file)

    def finish(self, sections: Mapping[str, Any] | None = None) -> str:
        """Writes the segment with `sections` (JSON by "stage/bucket") and returns its name; equal content has an equal
        name.

        If it is empty, writes nothing and returns "". Afterwards all separate files exist. The commit log flushes the
        directory once for all segments of a commit.
        """
        name = self._finished(sections or {}) if self._blobs or sections else ""
        self._files.finish()
        return name

    def _finished(self, sections: Mapping[str, Any]) -> str:
        value = {"blobs": self._blobs, "sections": sections}
        text = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
        return self._publish(self._pieces, self._pad(), text, "segment")

    def _publish(
        self,
        content: Pieces,
        size_bytes: int,
        footer: bytes,
        ending: str,
        *,
        direct: bool = False,
        held: bool = False,
    ) -> str:
        checksums = block_checksums(content)
        found = tail_hash(checksums, footer)
        trailer = TRAILER.pack(size_bytes, len(footer), SEGMENT_FORMAT_VERSION, found, MAGIC)
        name = f"{self._prefix}-{found.hex()}.{ending}"
        pieces = [*content, checksums, footer, trailer]
        self._files.publish(self._directory / name, pieces, direct=direct, held=held)
        return name

    def _pad(self) -> int:
        padding = -self._end_bytes % ALIGNMENT_BYTES
        if padding:
            self._pieces.append(bytes(padding))
            self._end_bytes += padding
        return self._end_bytes


def block_checksums(pieces: Pieces) -> bytes:
    """The checksums of the blocks of the joined `pieces`."""
    found = []
    digest = xxhash.xxh3_64()
    left = BLOCK_BYTES
    for piece in pieces:
        view = memoryview(piece).cast("B")
        start = 0
        while start < len(view):
            part = view[start : start + left]
            start += len(part)
            left -= len(part)
            digest.update(part)
            if not left:
                found.append(digest.digest())
                digest.reset()
                left = BLOCK_BYTES
    if left < BLOCK_BYTES:
        found.append(digest.digest())
    return b"".join(found)


def block_checksum(block: bytes | memoryview | pa.Buffer) -> bytes:
    """The checksum of one block."""
    return xxhash.xxh3_64_digest(block)


def tail_hash(checksums: bytes | memoryview, footer: bytes | memoryview) -> bytes:
    """The hash in the name of a file with these checksums and this footer."""
    digest = xxhash.xxh3_128(checksums)
    digest.update(footer)
    return digest.digest()


Blocks = npt.NDArray[np.int64]

#: The maximum number of unneeded blocks that are fetched between two needed ones.
_GAP_BLOCKS: Final = 2

#: The maximum number of blocks of one request.
_MOST_BLOCKS: Final = 128

#: The end of a file is fetched together with the last part of its content, which usually contains the index of a run:
#: one in this many bytes, but not more than …
_END_PART: Final = 16

_END_BYTES: Final = 256 << 10


class SegmentParts:
    """A run file that is read in parts, see `blobs.BlobParts`. Safe for several threads.

    used: the moment of its last use, for `SegmentFiles`.
    """

    def __init__(self, place: ObjectPath, length_bytes: int, *, run: bool = True) -> None:
        """length_bytes: that of its blob. run: whether that is a run. Nothing is read before `open_parts`."""
        self.place = place
        self._run = run
        self.used = 0
        self.is_open = False
        self._length = length_bytes
        self._content_blocks = -(-length_bytes // BLOCK_BYTES)
        self.size_bytes = length_bytes + self._content_blocks * CHECKSUM_BYTES + TRAILER.size
        self._copy = databasefiles.in_parts(place, self.size_bytes, BLOCK_BYTES)
        self._sound = np.zeros(-(-self.size_bytes // BLOCK_BYTES), np.bool_)
        self.buffer: pa.Buffer = self._copy.buffer.slice(0, length_bytes)

    def missing_bytes(self, ranges: Ranges) -> int:
        """See `BlobParts`."""
        blocks = self.blocks_of(ranges)
        return int(np.count_nonzero(~self._copy.there(blocks))) * BLOCK_BYTES

    def fetch(self, wanted: Sequence[tuple[BlobParts, Ranges]]) -> None:
        """See `BlobParts`."""
        by_file: dict[int, tuple[SegmentParts, list[Blocks]]] = {}
        for parts, ranges in wanted:
            assert isinstance(parts, SegmentParts)
            by_file.setdefault(id(parts), (parts, []))[1].append(parts.blocks_of(ranges))
        _fetch([(parts, np.unique(np.concatenate(blocks))) for parts, blocks in by_file.values()])

    def blocks_of(self, ranges: Ranges) -> Blocks:
        """The blocks with some of the bytes, ascending."""
        some = ranges[ranges[:, 0] < ranges[:, 1]]
        bounds = np.zeros(len(self._sound) + 1, np.int64)
        np.add.at(bounds, some[:, 0] // BLOCK_BYTES, 1)
        np.add.at(bounds, (some[:, 1] - 1) // BLOCK_BYTES + 1, -1)
        return np.flatnonzero(np.cumsum(bounds[:-1]) > 0)

    def end_blocks(self) -> Blocks:
        """The last blocks, which are needed for checks, and of a run also the first block and its index."""
        if not self._run:
            return self.blocks_of(np.array([[max(0, self._length - 1), self.size_bytes]]))
        content = min(_END_BYTES, max(BLOCK_BYTES, self._length // _END_PART))
        return self.blocks_of(np.array([[0, 1], [max(0, self._length - content), self.size_bytes]]))

    def unsound(self, blocks: Blocks) -> Blocks:
        """Blocks that this process has not yet checked."""
        return blocks[~self._sound[blocks]]

    def absent(self, blocks: Blocks) -> Blocks:
        """Blocks that are not in the local copy."""
        return blocks[~self._copy.there(blocks)]

    def requests(self, blocks: Blocks) -> list[tuple[ObjectPath, int, int, Callable[[bytes], None]]]:
        """The requests of `databasefiles.fetch_ranges` for these ascending blocks, including gaps between nearby
        ones.
        """
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
        """Checks fetched blocks. Returns the damaged ones."""
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
        """Whether the end belongs to the file with this name. If so, the file is open, and blocks can be checked."""
        tail = self._copy.buffer.slice(self._length)
        checksums = tail.slice(0, tail.size - TRAILER.size)
        length, footer, version, found, magic = TRAILER.unpack(tail.slice(checksums.size).to_pybytes())
        if magic == MAGIC and version != SEGMENT_FORMAT_VERSION:
            raise error(
                "DATABASE_FORMAT", f"{self.place.name} has segment format {version}, not {SEGMENT_FORMAT_VERSION}"
            )
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
        """Marks the file as used."""
        self._copy.used()


def open_parts(files: Iterable[SegmentParts]) -> None:
    """Prepares files for reading their parts. Raises STATE_DAMAGED, naming the file."""
    new = [(parts, parts.end_blocks()) for parts in files if not parts.is_open]
    _fetch(new)
    _fetch(new)  # the files are open now, so their blocks can be checked


def damaged(place: ObjectPath, reason: str) -> Error:
    """The error for a file whose content is not what was written."""
    return error("STATE_DAMAGED", f"{place.name} is damaged: {reason}", detail=f"The file is in {place.parent}.")


def _fetch(wanted: Sequence[tuple[SegmentParts, Blocks]]) -> None:
    fresh = [(parts, parts.unsound(blocks)) for parts, blocks in wanted]
    absent = [(parts, parts.absent(blocks)) for parts, blocks in fresh]
    _get(absent)
    misses = sum(len(blocks) for _, blocks in absent)
    databasefiles.looked_up(hits=sum(len(blocks) for _, blocks in wanted) - misses, misses=misses)
    # The local copy may be damaged, or incomplete because its writer died: the file is fetched again.
    again = [(parts, parts.check(blocks)) for parts, blocks in fresh]
    if any(len(blocks) for _, blocks in again):
        _get(again)
        for parts, blocks in again:
            if len(blocks) and len(parts.check(blocks)):
                raise damaged(parts.place, "a checksum does not match its content")
    for parts, _ in wanted:
        parts.keep()


def _get(wanted: Iterable[tuple[SegmentParts, Blocks]]) -> None:
    requests = [r for parts, blocks in wanted for r in parts.requests(blocks)]
    try:
        databasefiles.fetch_ranges(requests)
    except FileNotFoundError as cause:
        raise error("STATE_DAMAGED", "a file of the state is missing", detail=str(cause)) from cause
    databasefiles.looked_up(fetched_bytes=sum(end - begin for _, begin, end, _ in requests))


Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """The most recently used values: at most `max_bytes` in total, but always the newest value. Not thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._values: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self.size_bytes = 0
        """The bytes of all values, as given to `put`."""

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> Value | None:
        """The value of `key`, which becomes the newest one; None if it is missing."""
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def put(self, key: Key, value: Value, size_bytes: int) -> None:
        """Adds or replaces a value, and drops old ones."""
        self._drop(key)
        self._values[key] = (value, size_bytes)
        self.size_bytes += size_bytes
        while self.size_bytes > self._max_bytes and len(self._values) > 1:
            self.drop_oldest()

    @property
    def oldest(self) -> Value | None:
        """The least recently used value; None if there is none."""
        return next(iter(self._values.values()))[0] if self._values else None

    def drop_oldest(self) -> None:
        """Drops `oldest`."""
        self._drop(next(iter(self._values)))

    def clear(self) -> None:
        """Drops all values."""
        self._values.clear()
        self.size_bytes = 0

    def _drop(self, key: Key) -> None:
        found = self._values.pop(key, None)
        if found is not None:
            self.size_bytes -= found[1]
