"""Reading packs: files are mapped into memory and checked once, then blobs are given without copying.

What is checked: when a process maps a file, its trailer (magic, format, the hash that its name must carry, so that no
file is taken for another) and the checksum of a pack's footer; when it first reads a blob of a pack, the blob's
checksum. The content of a run file, at least 1 MiB, is not read as a whole: its length and name are checked, its
content by `check`.
"""

from __future__ import annotations

import json
import re
import threading
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from watersmeet import files, storage
from watersmeet.blobs import BlobRef
from watersmeet.errors import Error, error
from watersmeet.objectstores import ObjectPath
from watersmeet.storage import Place
from watersmeet.store.layout import check_name
from watersmeet.store.packs import HEADER_BYTES, MAGIC, PACK_FORMAT_VERSION, TRAILER, content_hash, file_hash
from watersmeet.store.recent import Recent

_FILE_NAME: Final = re.compile(rb'"([a-zA-Z0-9][a-zA-Z0-9_-]*\.(?:pack|run))"')

#: Outside of tasks a map is let go once so many commits came that needed nothing of it. Most files are gone by then,
#: but a map keeps the file's pages, and its place on the disk.
KEPT_COMMITS: Final = 512

_PAGE_BYTES: Final = 4096
#: What a map costs beside its pages: the kernel's entries, and one of `checksums`.
_MAP_BYTES: Final = 4096
_CHECKSUM_BYTES: Final = 256


@dataclass
class _Mapped:
    """One mapped file. footer: a part of it. checksums: by (offset, length); None once checked. used: the moment of
    its last use.
    """

    buffer: pa.Buffer
    footer: pa.Buffer | None = None
    checksums: dict[tuple[int, int], int | None] = field(default_factory=dict)
    used: int = 0

    @property
    def size_bytes(self) -> int:
        """What it takes at most, with all its pages in memory."""
        pages: int = -(-self.buffer.size // _PAGE_BYTES)
        return pages * _PAGE_BYTES + _MAP_BYTES + len(self.checksums) * _CHECKSUM_BYTES


class PackFiles:
    """The packs of one directory, for one process. Safe for several threads.

    A mapped file may be deleted meanwhile: its buffers stay valid. The least recently used maps are let go
    above `max_mapped_bytes` (as if all their pages were in memory; buffers given out keep theirs) and, as Linux gives
    a process no more than 65,530 maps, above `max_files`.
    """

    def __init__(self, directory: Place, *, max_mapped_bytes: int = 64 << 20, max_files: int = 1 << 14) -> None:
        self._directory = directory
        self._max_files = max_files
        self._now = 0
        self._maps: Recent[str, _Mapped] = Recent(max_mapped_bytes)
        self._lock = threading.Lock()

    @property
    def mapped_bytes(self) -> int:
        """What the maps that it holds take at most."""
        return self._maps.size_bytes

    def read_blob(self, ref: BlobRef, condition: str = "STATE_DAMAGED") -> pa.Buffer:
        """The bytes of `ref`, mapped. Raises `condition`, naming the file, if it is missing, short or damaged."""
        mapped = self._map(ref.file, condition)
        place = (ref.offset_bytes, ref.length_bytes)
        if place not in mapped.checksums:
            raise error(
                condition,
                f"{ref.file} has no blob of {ref.length_bytes} bytes at {ref.offset_bytes}",
                detail=f"The file in {self._directory} has {mapped.buffer.size} bytes.",
            )
        blob = mapped.buffer.slice(*place)
        checksum = mapped.checksums[place]
        if checksum is not None:
            if zlib.crc32(blob) != checksum:
                raise self._damaged(ref.file, condition, "its checksum does not match its content")
            mapped.checksums[place] = None
        return blob

    def read_footer(self, name: str, condition: str = "STATE_DAMAGED") -> dict[str, Any]:
        """The footer that was given to `PackWriter.finish`. References in it with file "" mean this pack."""
        footer = json.loads(self._footer(name, condition).to_pybytes())["footer"]
        assert isinstance(footer, dict)
        return footer

    def referenced_files(self, name: str) -> set[str]:
        """The names of all pack and run files that the footer of pack `name` mentions, and `name`."""
        footer = self._footer(name, "STATE_DAMAGED")
        return {name, *(m.decode() for m in _FILE_NAME.findall(footer))}

    def prefetch(self, names: Iterable[str]) -> None:
        """Has files at hand that are going to be read."""
        with self._lock:
            wanted = [self._directory / check_name(n) for n in names if self._maps.get(n) is None]
        storage.fetch(wanted)

    def check(self, ref: BlobRef) -> None:
        """As reading `ref`, and the whole content of a run file is checked against the hash in its name."""
        blob = self.read_blob(ref)
        if ref.file.endswith(".run") and content_hash([blob]) != file_hash(ref.file):
            raise self._damaged(ref.file, "STATE_DAMAGED", "its content does not fit its name")

    def age(self, now: int, most: int) -> None:
        """It is moment `now`, never an earlier one: maps that were not used for `most` moments are let go.

        So the memory of a process follows what it reads, and not how long it runs.
        """
        with self._lock:
            self._now = max(now, self._now)
            while (oldest := self._maps.oldest) is not None and oldest.used < self._now - most:
                self._maps.drop_oldest()

    def close(self) -> None:
        """Lets all maps go."""
        with self._lock:
            self._maps.clear()

    def _footer(self, name: str, condition: str) -> pa.Buffer:
        footer = self._map(name, condition).footer
        assert footer is not None, f"{name} is no pack"
        return footer

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
        path = self._directory / check_name(name)
        try:
            buffer = storage.map_file(path)
        except FileNotFoundError as cause:
            raise error(
                condition, f"{name} is missing from {self._directory}", detail="A commit names this file."
            ) from cause
        except OSError as cause:
            if isinstance(path, ObjectPath) or not path.stat().st_size:
                raise self._damaged(name, condition, "it is empty") from cause
            raise files.failure(cause, path) from cause
        return self._parse(name, buffer, condition)

    def _parse(self, name: str, buffer: pa.Buffer, condition: str) -> _Mapped:
        size = buffer.size
        is_run = name.endswith(".run")
        if size < HEADER_BYTES + TRAILER.size or not (is_run or buffer.slice(0, len(MAGIC)).to_pybytes() == MAGIC):
            raise self._damaged(name, condition, "it is short or no pack")
        trailer = buffer.slice(size - TRAILER.size).to_pybytes()
        offset, length, checksum, version, found, magic = TRAILER.unpack(trailer)
        if magic != MAGIC or offset + length + TRAILER.size != size:
            raise self._damaged(name, condition, "its end is missing")
        if version > PACK_FORMAT_VERSION:
            raise error("DATABASE_FORMAT", f"{name} has pack format {version}, newer than {PACK_FORMAT_VERSION}")
        if found.hex() != file_hash(name):
            raise self._damaged(name, condition, "its content is that of another file")
        if is_run:
            return _Mapped(buffer, None, {(0, offset): None})
        footer = buffer.slice(offset, length)
        if zlib.crc32(footer) != checksum:
            raise self._damaged(name, condition, "its checksum does not fit its footer")
        blobs = json.loads(footer.to_pybytes())["blobs"]
        return _Mapped(buffer, footer, {(b[0], b[1]): b[3] for b in blobs})

    def _damaged(self, name: str, condition: str, reason: str) -> Error:
        return error(condition, f"{name} is damaged: {reason}", detail=f"The file is in {self._directory}.")
