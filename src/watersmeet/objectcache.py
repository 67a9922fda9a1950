"""Copies of objects on the local disk, shared by all processes of a user on a machine and bounded by bytes.

Only objects that never change are kept, under names that are never given to other content, so a copy is never stale. A
copy appears under its name when it is complete. A loss of power could leave one damaged: copies are kept in a directory
that is named by the start of the machine, and those of earlier starts are deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import pyarrow as pa

from watersmeet import files
from watersmeet.errors import Error, error
from watersmeet.files import Bytes
from watersmeet.objectstores import ObjectPath

DIRECTORY: Final = "WATERSMEET_CACHE_DIR"
"""Environment: the directory of the copies; without it, one in the directory of temporary files."""
SIZE: Final = "WATERSMEET_CACHE_BYTES"
"""Environment: how many bytes all copies may take."""
DEFAULT_BYTES: Final = 10 << 30

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
#: When the copies take too much, the oldest go until this part of the limit is left free.
_FREED: Final = 0.1
#: Other processes add copies, too: all are counted anew after so many bytes of this one's (or a part of the limit).
_COUNT_BYTES: Final = 256 << 20
#: Unfinished copies are those of processes that died.
_UNFINISHED_S: Final = 3600


class ObjectCache:
    """Thread-safe. What can't be kept, because the disk is full for example, is not kept: that is no error."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self.directory = directory
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._left_bytes = 0

    def get(self, place: ObjectPath) -> pa.Buffer | None:
        """The copy of an object, mapped; None if there is none. It stays valid if the copy is deleted."""
        path = self._path(place)
        try:
            os.utime(path)
            with pa.memory_map(str(path)) as file:
                return file.read_buffer()
        except OSError:
            return None

    def has(self, place: ObjectPath) -> bool:
        """Whether there is a copy of an object."""
        return self._path(place).exists()

    def put(self, place: ObjectPath, pieces: Sequence[Bytes]) -> None:
        """Keeps the joined `pieces` as the copy of an object."""
        path = self._path(place)
        with contextlib.suppress(Error, OSError):
            files.discard(path)
            files.publish_content(path, pieces, durable=False)
            self._added(sum(len(p) for p in pieces))

    def move(self, place: ObjectPath, file: Path) -> None:
        """Keeps `file`, which is in the same directory, as the copy of an object; it is gone afterwards."""
        try:
            size_bytes = file.stat().st_size
            os.replace(file, self._path(place))
            self._added(size_bytes)
        except OSError:
            files.discard(file)

    def _path(self, place: ObjectPath) -> Path:
        space = hashlib.sha256(f"{place.location.url} {place.space} {place.path}".encode()).hexdigest()[:32]
        return self.directory / f"{space}-{place.name}"

    def _added(self, size_bytes: int) -> None:
        with self._lock:
            self._left_bytes -= size_bytes
            if self._left_bytes <= 0:
                self._left_bytes = min(self._make_room(), _COUNT_BYTES, max(1, self._max_bytes // 8))

    def _make_room(self) -> int:
        """Deletes the copies that were used the longest time ago, if all take too much; the bytes that are left."""
        found = []
        for entry in os.scandir(self.directory):
            with contextlib.suppress(OSError):
                stat = entry.stat()
                if not entry.name.startswith("."):
                    found.append((stat.st_mtime_ns, stat.st_size, entry.path))
                elif stat.st_mtime < time.time() - _UNFINISHED_S:
                    os.unlink(entry.path)
        total = sum(size for _, size, _ in found)
        if total > self._max_bytes:
            for _, size, path in sorted(found):
                files.discard(Path(path))
                total -= size
                if total <= self._max_bytes * (1 - _FREED):
                    break
        return max(0, self._max_bytes - total)


def cache() -> ObjectCache:
    """The copies that processes of this user and machine share. DATABASE_ACCESS, INVALID_PARAMETER."""
    return _cache(os.environ.get(DIRECTORY, ""), os.environ.get(SIZE, ""))


@lru_cache(maxsize=4)
def _cache(directory: str, size: str) -> ObjectCache:
    try:
        max_bytes = int(size or DEFAULT_BYTES)
    except ValueError:
        raise error("INVALID_PARAMETER", f"{SIZE} is not a number of bytes: {size!r}") from None
    root = Path(directory or os.path.join(tempfile.gettempdir(), f"watersmeet-cache-{os.getuid()}"))
    start = _start()
    own = root / start
    try:
        root.mkdir(0o700, parents=True, exist_ok=True)
        if root.stat().st_uid != os.getuid():
            raise error("DATABASE_ACCESS", f"the cache {root} belongs to another user", hint=f"Set {DIRECTORY}.")
        own.mkdir(0o700, exist_ok=True)
        for other in root.iterdir():
            if other.name != start and other.name.startswith("boot-"):
                shutil.rmtree(other, ignore_errors=True)
    except OSError as cause:
        raise files.failure(cause, root) from cause
    return ObjectCache(own, max_bytes)


def _start() -> str:
    """A name that is another one after the next start of the machine, where that is known."""
    try:
        return f"boot-{_BOOT.read_text().strip()}"
    except OSError:
        return "boot-unknown"
