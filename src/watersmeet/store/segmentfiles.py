"""Reads segments: files are mapped into memory and checked once; then blobs are read without copying.

When a process maps a file, it checks the trailer (magic, format, length), and that the checksums of the blocks and the
footer match the hash in the file's name, so that no file is mistaken for another. When a process first reads a blob of
a segment, it checks the blob's blocks. Only `read_change` and `check` read and check all blocks of a run file, which
has at least 1 MiB.

Changes can be read piece by piece (`changes`). In an object store, only the needed pieces are fetched.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.errors import Error, error
from watersmeet.objectstores import storage
from watersmeet.objectstores.base import ObjectPath
from watersmeet.objectstores.storage import AnyPath
from watersmeet.store.changes import (
    INDEX_END_BYTES,
    ChangeIndex,
    Diff,
    concat_pieces,
    decode_change,
    decode_piece,
    index_bytes,
    read_index,
)
from watersmeet.store.layout import check_name
from watersmeet.store.segments import (
    BLOCK_BYTES,
    CHECKSUM_BYTES,
    HEADER_BYTES,
    MAGIC,
    SEGMENT_FORMAT_VERSION,
    TRAILER,
    Recent,
    SegmentParts,
    block_checksum,
    file_hash,
    open_parts,
    tail_hash,
)
from watersmeet.system import files
from watersmeet.system.blobs import BlobRef, DirectBlob

_FILE_NAME: Final = re.compile(r'"([a-zA-Z0-9][a-zA-Z0-9_-]*\.(?:segment|run))"')

#: Outside of tasks, a mapping is released after this many commits without use. Most files are deleted by then, but a
#: mapping keeps the file's pages and its disk space.
KEPT_COMMITS: Final = 512

#: The bytes of indexes of changes that are kept in memory.
_KEPT_INDEX_BYTES: Final = 32 << 20

_PAGE_BYTES: Final = 4096
#: The estimated memory of a mapped file in addition to its pages: for the kernel's tables, and for each blob or block.
_MAP_BYTES: Final = 4096
_ENTRY_BYTES: Final = 128


@dataclass
class _Mapped:
    """One mapped file. content, checksums, footer: its parts. blobs: the (offset, length) of each blob. checked: the
    numbers of the checked blocks. used: the time of the last use.
    """

    buffer: pa.Buffer
    content: pa.Buffer
    checksums: pa.Buffer
    footer: pa.Buffer
    blobs: frozenset[tuple[int, int]] = frozenset()
    checked: set[int] = field(default_factory=set)
    used: int = 0

    @property
    def size_bytes(self) -> int:
        """The maximum memory of the file, with all its pages."""
        pages: int = -(-self.buffer.size // _PAGE_BYTES)
        entries: int = len(self.blobs) + self.checksums.size // CHECKSUM_BYTES
        return pages * _PAGE_BYTES + _MAP_BYTES + entries * _ENTRY_BYTES

    def is_sound(self, offset: int, length: int) -> bool:
        """Whether the blocks that contain these bytes match their checksums."""
        checksums = memoryview(self.checksums).cast("B")
        for number in range(offset // BLOCK_BYTES, -(-(offset + length) // BLOCK_BYTES)):
            if number not in self.checked:
                start = number * BLOCK_BYTES
                block = self.content.slice(start, min(BLOCK_BYTES, self.content.size - start))
                if checksums[CHECKSUM_BYTES * number : CHECKSUM_BYTES * (number + 1)] != block_checksum(block):
                    return False
                self.checked.add(number)
        return True


class SegmentFiles:
    """The segments of one directory, for one process. Safe for several threads.

    If a mapped file is deleted, its buffers stay valid. The least recently used mappings are released above
    `max_mapped_bytes` (counting all their pages; returned buffers keep their pages) and above `max_files`, because
    Linux allows a process at most 65,530 mappings.
    """

    def __init__(
        self,
        directory: AnyPath,
        *,
        path: Callable[[str], AnyPath] | None = None,
        max_mapped_bytes: int = 64 << 20,
        max_files: int = 1 << 14,
    ) -> None:
        """path: returns the path of a file by its name (`Layout.segment`); None: all are in `directory`."""
        self._directory = directory
        self._path = path or (lambda name: directory / check_name(name))
        self._max_files = max_files
        self._now = 0
        self._maps: Recent[str, _Mapped] = Recent(max_mapped_bytes)
        self._parts: Recent[str, SegmentParts] = Recent(max_mapped_bytes)
        self._indexes: Recent[BlobRef, ChangeIndex] = Recent(_KEPT_INDEX_BYTES)
        self._lock = threading.Lock()

    @property
    def mapped_bytes(self) -> int:
        """The maximum memory of the mappings."""
        return self._maps.size_bytes

    def read_blob(self, ref: BlobRef, condition: str = "STATE_DAMAGED") -> pa.Buffer:
        """The bytes of `ref`, mapped. Raises `condition`, naming the file, if it is missing, short or damaged."""
        return self._read(ref, condition, whole=not ref.file.endswith(".run"))

    def read_change(self, ref: BlobRef, columns: Collection[str] | None = None) -> tuple[pa.Table, Diff]:
        """The rows and diffs of a blob from `changes.encode_change`. columns: as in `changes.decode_change`.

        Raises DATABASE_DAMAGED, naming the file.
        """
        try:
            return decode_change(self._read(ref, "DATABASE_DAMAGED", whole=True), columns)
        except pa.ArrowException as cause:
            raise self._damaged(ref.file, "DATABASE_DAMAGED", "a blob holds no change") from cause

    def read_rows(
        self, ref: BlobRef, first: int, end: int, columns: Collection[str] | None = None
    ) -> tuple[pa.Table, Diff]:
        """The rows [first, end) of a change, at least one, and their diffs. Only the pieces with these rows are read.
        columns: as in `changes.decode_change`.

        Raises DATABASE_DAMAGED, naming the file.
        """
        index = self.index(ref)
        starts = (np.cumsum(index.rows) - index.rows).tolist()
        spans = [
            (begin, stop, max(0, first - start), end - start)
            for begin, stop, start, rows in zip(
                index.begins.tolist(), index.ends.tolist(), starts, index.rows.tolist(), strict=True
            )
            if start < end and first < start + rows
        ]
        self.fetch([(ref, spans[0][0], spans[-1][1])])
        found = []
        for begin, stop, low, high in spans:
            table, diff = self.read_piece(ref, begin, stop, columns)
            found.append((table.slice(low, high - low), diff[low:high]))
        return concat_pieces(found)

    def index(self, ref: BlobRef) -> ChangeIndex:
        """The index of a change. Raises DATABASE_DAMAGED, naming the file."""
        with self._lock:
            found = self._indexes.get(ref)
        if found is None:
            try:
                size = index_bytes(self._part(ref, max(0, ref.length_bytes - INDEX_END_BYTES), ref.length_bytes))
                end = self._part(ref, ref.length_bytes - size, ref.length_bytes) if size else None
                found = (read_index(end, ref.length_bytes) if end is not None else None) or ChangeIndex.whole(ref)
            except (ValueError, KeyError) as cause:
                raise self._damaged(ref.file, "DATABASE_DAMAGED", "a blob holds no change") from cause
            with self._lock:
                self._indexes.put(ref, found, found.size_bytes)
        return found

    def filters(self, ref: BlobRef, name: str) -> npt.NDArray[np.uint8]:
        """The filters of a column of a change that has some, one row for each piece. Raises DATABASE_DAMAGED."""
        index = self.index(ref)
        return np.frombuffer(self._part(ref, *index.filter_span(name)), np.uint8).reshape(len(index.ends), -1)

    def read_piece(
        self, ref: BlobRef, begin: int, end: int, columns: Collection[str] | None = None
    ) -> tuple[pa.Table, Diff]:
        """The rows and diffs of the piece of a change at these bytes of `ref`. columns: as in `changes.decode_change`.

        Raises DATABASE_DAMAGED, naming the file.
        """
        try:
            return decode_piece(self._part(ref, begin, end), columns)
        except pa.ArrowException as cause:
            raise self._damaged(ref.file, "DATABASE_DAMAGED", "a blob holds no change") from cause

    @property
    def are_remote(self) -> bool:
        """Whether the files are in an object store."""
        return isinstance(self._directory, ObjectPath)

    def fetch(self, wanted: Sequence[tuple[BlobRef, int, int]]) -> None:
        """Fetches bytes [begin, end) of changes in an object store with as few round trips as possible. Raises
        DATABASE_DAMAGED, naming the file.
        """
        if not self.are_remote:
            return
        found = [(self._parts_of(ref, run=False), begin, end) for ref, begin, end in wanted]
        remote = [(parts, np.array([[begin, end]])) for parts, begin, end in found if parts is not None]
        try:
            open_parts({id(parts): parts for parts, _ in remote}.values())
            if remote:
                remote[0][0].fetch(remote)
        except Error as cause:
            if cause.condition != "STATE_DAMAGED":
                raise
            raise error("DATABASE_DAMAGED", cause.message, detail=cause.detail) from cause

    def _part(self, ref: BlobRef, begin: int, end: int) -> pa.Buffer:
        """Bytes [begin, end) of a change, checked."""
        parts = self._parts_of(ref, run=False)
        if parts is not None:
            self.fetch([(ref, begin, end)])
            return parts.buffer.slice(begin, end - begin)
        content = self._read(ref, "DATABASE_DAMAGED", whole=False)
        if not self._map(ref.file, "DATABASE_DAMAGED").is_sound(ref.offset_bytes + begin, end - begin):
            raise self._damaged(ref.file, "DATABASE_DAMAGED", "a checksum does not match its content")
        return content.slice(begin, end - begin)

    def _read(self, ref: BlobRef, condition: str, *, whole: bool) -> pa.Buffer:
        mapped = self._map(ref.file, condition)
        place = (ref.offset_bytes, ref.length_bytes)
        if place not in mapped.blobs:
            raise error(
                condition,
                f"{ref.file} has no blob of {ref.length_bytes} bytes at {ref.offset_bytes}",
                detail=f"The file in {self._directory} has {mapped.buffer.size} bytes.",
            )
        if whole and not mapped.is_sound(*place):
            raise self._damaged(ref.file, condition, "a checksum does not match its content")
        return mapped.content.slice(*place)

    def read_section(self, name: str, place: str) -> Any:
        """The section of segment `name` for `place`, "stage/bucket". References in it with file "" mean this segment.

        Raises STATE_DAMAGED, naming the file.
        """
        sections = json.loads(self._map(name, "STATE_DAMAGED").footer.to_pybytes())["sections"]
        if place not in sections:
            raise error("STATE_DAMAGED", f"{name} has nothing of {place}", detail="A commit says so.")
        return sections[place]

    def referenced_files(self, name: str, place: str) -> set[str]:
        """The names of all segment and run files in this section, and `name`."""
        return {name, *_FILE_NAME.findall(json.dumps(self.read_section(name, place)))}

    def prefetch(self, names: Iterable[str]) -> None:
        """Fetches files ahead."""
        with self._lock:
            wanted = [self._path(n) for n in sorted(names) if self._maps.get(n) is None]
        storage.fetch(wanted)

    def direct(self, ref: BlobRef) -> DirectBlob | None:
        """Opens a blob for reading that bypasses the page cache, if it is a run file in a directory. Raises
        STATE_DAMAGED if it is missing.
        """
        path = self._path(ref.file)
        if isinstance(path, ObjectPath) or not ref.file.endswith(".run"):
            return None
        try:
            return DirectBlob(path, ref.offset_bytes, ref.length_bytes)
        except FileNotFoundError as cause:
            raise self._missing(ref.file, "STATE_DAMAGED") from cause
        except OSError as cause:
            raise files.failure(cause, path) from cause

    def parts(self, refs: Sequence[BlobRef]) -> list[SegmentParts | None]:
        """For each blob its parts, if it is a run file in an object store without a local copy; else None.

        Raises STATE_DAMAGED, naming the file.
        """
        found = [self._parts_of(ref) for ref in refs]
        open_parts(parts for parts in found if parts is not None)
        return found

    def _parts_of(self, ref: BlobRef, *, run: bool = True) -> SegmentParts | None:
        if not self.are_remote or not ref.file.endswith(".run"):
            return None
        place = self._path(ref.file)
        with self._lock:
            parts = self._parts.get(ref.file)
            if parts is None:
                if not isinstance(place, ObjectPath) or self._maps.get(ref.file) or storage.is_here(place):
                    return None
                parts = SegmentParts(place, ref.length_bytes, run=run)
                self._parts.put(ref.file, parts, parts.size_bytes)
            parts.used = self._now
            return parts

    def check(self, ref: BlobRef) -> None:
        """Reads `ref` and checks the whole content, also of a run file."""
        self._read(ref, "STATE_DAMAGED", whole=True)

    def age(self, now: int, most: int) -> None:
        """Sets the moment to `now`, which never decreases.

        Releases mappings that were not used for `most` moments, so that a process's memory does not grow with time.
        """
        with self._lock:
            self._now = max(now, self._now)
            while (oldest := self._maps.oldest) is not None and oldest.used < self._now - most:
                self._maps.drop_oldest()
            while (parts := self._parts.oldest) is not None and parts.used < self._now - most:
                self._parts.drop_oldest()

    def close(self) -> None:
        """Releases all maps."""
        with self._lock:
            self._maps.clear()
            self._parts.clear()

    def _map(self, name: str, condition: str) -> _Mapped:
        with self._lock:
            found = self._maps.get(name)
            if found is not None:
                found.used = self._now
                return found
        mapped = self._open(name, condition)
        with self._lock:
            mapped.used = self._now
            self._maps.put(name, mapped, mapped.size_bytes)
            while len(self._maps) > self._max_files:
                self._maps.drop_oldest()
        return mapped

    def _open(self, name: str, condition: str) -> _Mapped:
        path = self._path(name)
        try:
            buffer = storage.map_file(path)
        except FileNotFoundError as cause:
            raise self._missing(name, condition) from cause
        except OSError as cause:
            if isinstance(path, ObjectPath) or not path.stat().st_size:
                raise self._damaged(name, condition, "it is empty") from cause
            raise files.failure(cause, path) from cause
        return self._parse(name, buffer, condition)

    def _parse(self, name: str, buffer: pa.Buffer, condition: str) -> _Mapped:
        size = buffer.size
        is_run = name.endswith(".run")
        if size < HEADER_BYTES + TRAILER.size or not (is_run or buffer.slice(0, len(MAGIC)).to_pybytes() == MAGIC):
            raise self._damaged(name, condition, "it is short or no segment")
        length, footer_length, version, found, magic = TRAILER.unpack(buffer.slice(size - TRAILER.size).to_pybytes())
        if magic != MAGIC:
            raise self._damaged(name, condition, "its end is missing")
        if version != SEGMENT_FORMAT_VERSION:
            raise error("DATABASE_FORMAT", f"{name} has segment format {version}, this is {SEGMENT_FORMAT_VERSION}")
        tail = -(-length // BLOCK_BYTES) * CHECKSUM_BYTES
        if length + tail + footer_length + TRAILER.size != size:
            raise self._damaged(name, condition, "its end is missing")
        checksums, footer = buffer.slice(length, tail), buffer.slice(length + tail, footer_length)
        if found.hex() != file_hash(name):
            raise self._damaged(name, condition, "its content is that of another file")
        if tail_hash(checksums, footer) != found:
            raise self._damaged(name, condition, "its end does not fit its name")
        blobs = [(0, length)] if is_run else [(b[0], b[1]) for b in json.loads(footer.to_pybytes())["blobs"]]
        return _Mapped(buffer, buffer.slice(0, length), checksums, footer, frozenset(blobs))

    def _missing(self, name: str, condition: str) -> Error:
        return error(condition, f"{name} is missing from {self._directory}", detail="A commit names this file.")

    def _damaged(self, name: str, condition: str, reason: str) -> Error:
        return error(condition, f"{name} is damaged: {reason}", detail=f"The file is in {self._directory}.")
