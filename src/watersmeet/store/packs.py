"""Writing packs: one file holds all blobs that one task (or transaction) wrote, and says what is in it.

Layout: header of 64 bytes (magic), blobs each at a multiple of 64 bytes (so that Arrow maps them without
copying), then the checksums of all blocks before them (XXH3, 8 bytes for each block of `BLOCK_BYTES`), the footer
(JSON), the trailer: where the checksums begin (uint64), the length of the footer, the format (uint32), the hash in the
file's name, magic. Blobs of at least 1 MiB are files of their own (`.run`): the blob, checksums and a trailer, with
an empty footer. They survive the pack when state that has not changed moves on to the next epoch.

The hash is that of the checksums and the footer, which is as good as one of the content, and any block can be checked
without the others. Names say which writer made a file, so that what a writer that was overtaken still writes or deletes
is never another's file. `PackFiles` says what is checked when.

A pack has a section for each bucket of a stage whose state the task changed, and says there what that state is.
"""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import xxhash

from watersmeet import storage
from watersmeet.blobs import BlobRef, Pieces
from watersmeet.errors import error
from watersmeet.storage import Place

MAGIC: Final = b"WMPACK\r\n"
PACK_FORMAT_VERSION: Final = 4
HEADER_BYTES: Final = 64
ALIGNMENT_BYTES: Final = 64
OWN_FILE_BYTES: Final = 1 << 20
#: Blobs of this size that no task is going to read are written past the machine's cache.
DIRECT_BYTES: Final = 2 << 20
#: So much has a checksum of its own.
BLOCK_BYTES: Final = 64 << 10
CHECKSUM_BYTES: Final = 8
TRAILER: Final = struct.Struct("<QII16s8s")

_FILE: Final = re.compile(r"(?:([0-9]+)|t[0-9]+|s([0-9]+))-([0-9]+)-.*\.(?:pack|run)\Z")
_PREFIX: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\Z")


def epoch_prefix(epoch: int, writer: int, *place: int) -> str:
    """The start of the names of what one task writes. writer: of the log, as in commits. place: the stage and the
    bucket of a task that runs no more than these.
    """
    return "-".join([f"{epoch:010d}", str(writer), *map(str, place)])


def transaction_prefix(number: int, writer: int) -> str:
    """The start of the names of what the transaction writes that is to be commit `number`."""
    return f"t{number}-{writer}"


def snapshot_prefix(number: int, writer: int) -> str:
    """The start of the names of what a compaction of the content up to commit `number` writes."""
    return f"s{number:012d}-{writer}"


def file_writer(name: str) -> int | None:
    """The writer that made a pack or run file of this name; None if it is no name of such a file."""
    found = _FILE.match(name)
    return int(found[3]) if found else None


def file_epoch(name: str) -> int | None:
    """The epoch that a pack or run file of this name was made in; None for one of a transaction or compaction."""
    found = _FILE.match(name)
    return int(found[1]) if found and found[1] else None


def file_snapshot(name: str) -> int | None:
    """The `number` of `snapshot_prefix` in the name of a pack or run file; None for one of an epoch or transaction."""
    found = _FILE.match(name)
    return int(found[2]) if found and found[2] else None


def file_hash(name: str) -> str:
    """The hash in the name of a pack or run file."""
    return name.rpartition("-")[2].partition(".")[0]


class PackWriter:
    """Collects blobs; `finish` writes them, and must be called: large ones may be under way until then. Not for several
    threads.

    directory: packs/ of the database. prefix: start of the file names (`epoch_prefix`). own_file_bytes: None is
    `OWN_FILE_BYTES`.
    After an error nothing that was written is referenced by anything; the clean-up at start takes it away.
    """

    def __init__(self, directory: Place, prefix: str, *, durable: bool, own_file_bytes: int | None = None) -> None:
        if not _PREFIX.match(prefix):
            raise error("INTERNAL_ERROR", f"not a prefix of a pack: {prefix!r}")
        self._directory = directory
        self._prefix = prefix
        self._files = storage.Publisher(durable=durable)
        self.own_file_bytes = OWN_FILE_BYTES if own_file_bytes is None else own_file_bytes
        """Blobs that are not smaller are files of their own."""
        self._pieces: list[bytes | memoryview] = [MAGIC.ljust(HEADER_BYTES, b"\0")]
        self._end_bytes = HEADER_BYTES
        self._blobs: list[tuple[int, int, int]] = []
        self._own: Counter[str] = Counter()

    def add(self, blob: Pieces, rows: int, *, unread: bool = False, held: bool = False) -> BlobRef:
        """Adds a blob, whose pieces must not change. The reference's `file` is "" (this pack, see `BlobRef.within`) or
        a file of its own.

        unread: no task is going to read it. If it is large it comes with a backlog or with history, and others rarely
        read it soon. held: as in `storage.Publisher.publish`.
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
        """Waits until all files of their own that were added are there."""
        self._files.finish()

    def drop(self, ref: BlobRef) -> None:
        """A blob with a file of its own is not needed after all: the file goes, unless another blob is the same."""
        self._own[ref.file] -= 1
        if not self._own[ref.file]:
            self.wait()
            storage.discard(self._directory / ref.file)

    def finish(self, sections: Mapping[str, Any] | None = None) -> str:
        """Writes the pack with `sections` (JSON by "stage/bucket") and gives its name. Same content, same name.

        "", with no pack written, if nothing is in it. All files of their own are there afterwards. The directory is
        flushed once for all packs of a commit, by the commit log.
        """
        name = self._finished(sections or {}) if self._blobs or sections else ""
        self._files.finish()
        return name

    def _finished(self, sections: Mapping[str, Any]) -> str:
        value = {"blobs": self._blobs, "sections": sections}
        text = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
        return self._publish(self._pieces, self._pad(), text, "pack")

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
        trailer = TRAILER.pack(size_bytes, len(footer), PACK_FORMAT_VERSION, found, MAGIC)
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
    """The hash that the name of a file carries which has these checksums and this footer."""
    digest = xxhash.xxh3_128(checksums)
    digest.update(footer)
    return digest.digest()
