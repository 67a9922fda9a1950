"""Copies of objects on the local disk, shared by all processes of a user on a machine and bounded by bytes.

Only objects that never change are kept, under names that are never given to other content, so a copy is never stale. A
copy appears under its name when it is complete. A loss of power could leave one damaged: copies are kept in a directory
that is named by the start of the machine, and those of earlier starts are deleted.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import mmap
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.errors import Error, error
from watersmeet.objectstores.base import ObjectPath
from watersmeet.system import files
from watersmeet.system.files import Bytes
from watersmeet.system.process import bytes_of

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

_IN_PARTS: Final = ".blocks"
#: In which the file system counts, also what a file with holes takes.
_DISK_BLOCK_BYTES: Final = 512


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

    def in_parts(self, place: ObjectPath, size_bytes: int, block_bytes: int) -> BlockCopy:
        """A copy of an object of that size, of which some blocks may be there."""
        with contextlib.suppress(Error, OSError):
            self._make()
            path = self._path(place).with_suffix(_IN_PARTS)
            return BlockCopy(size_bytes, block_bytes, path, self._added)
        return BlockCopy(size_bytes, block_bytes)

    def put(self, place: ObjectPath, pieces: Sequence[Bytes]) -> None:
        """Keeps the joined `pieces` as the copy of an object."""
        path = self._path(place)
        with contextlib.suppress(Error, OSError):
            self._make()
            files.discard(path)
            files.publish_content(path, pieces, durable=False)
            self._added(sum(len(p) for p in pieces))

    def _make(self) -> None:
        """Makes the directory again if somebody has deleted it."""
        if not self.directory.is_dir():
            _make(self.directory)

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
                    found.append((stat.st_mtime_ns, stat.st_blocks * _DISK_BLOCK_BYTES, entry.path))
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


class BlockCopy:
    """Some blocks of an object that never changes. Thread-safe.

    buffer: as long as the object; blocks that are not there are undefined. path: where the file is, with holes, which
    other processes share; None: in memory. What can't be kept there, as the disk is full or the file was deleted, is
    kept in memory.
    """

    def __init__(
        self, size_bytes: int, block_bytes: int, path: Path | None = None, added: Callable[[int], None] | None = None
    ) -> None:
        """added: is told of bytes that were added to the file. OSError if it can't be made or mapped."""
        self._block_bytes = block_bytes
        self._path = path
        self._added = added
        #: Behind the object, a byte for each block says whether it is there. It may lie: who reads a block checks it.
        self._marks_at = -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        total = self._marks_at + -(-size_bytes // block_bytes)
        self._inode = -1
        if path is None:
            self._pages = _Pages(-1, total)
        else:
            with open(path, "ab") as file:
                file.truncate(total)
                _set_aside(file.fileno(), self._marks_at, total)
            with open(path, "rb") as file:
                self._inode = os.fstat(file.fileno()).st_ino
                self._pages = _Pages(file.fileno(), total)
        whole = pa.foreign_buffer(self._pages.address, total, self._pages)
        self.buffer = whole.slice(0, size_bytes)
        self._marks = np.frombuffer(whole, np.uint8, offset=self._marks_at)

    def there(self, blocks: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of some blocks are there."""
        found: npt.NDArray[np.bool_] = self._marks[blocks] != 0
        return found

    def add(self, first_block: int, data: bytes) -> None:
        """Adds blocks, one after the other."""
        begin = first_block * self._block_bytes
        marks = b"\1" * -(-len(data) // self._block_bytes)
        if not self._written(begin, data, self._marks_at + first_block, marks):
            self._pages.write(begin, data)
            self._pages.write(self._marks_at + first_block, marks)
        elif self._added is not None:
            self._added(len(data))

    def used(self) -> None:
        """It is not among those that were used the longest time ago."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                os.utime(self._path)

    def _written(self, begin: int, data: bytes, marks_at: int, marks: bytes) -> bool:
        """Whether it could be written to the file."""
        if self._path is None:
            return False
        try:
            with open(self._path, "r+b", buffering=0) as file:
                number = file.fileno()
                return (
                    os.fstat(number).st_ino == self._inode
                    and os.pwrite(number, data, begin) == len(data)
                    and os.pwrite(number, marks, marks_at) == len(marks)
                )
        except OSError:
            return False


def _set_aside(fd: int, begin: int, end: int) -> None:
    """Gives bytes [begin, end) of a file their place on the disk, so that they can be read as they are mapped: a file
    system in memory gives it to a hole when it is read, and ends the process (SIGBUS) if it is full. OSError for that.
    """
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, begin, end - begin)
        except OSError as cause:
            if cause.errno in files.FULL:  # others can't do that, and read a hole as zeros
                raise


class _Pages:
    """Pages of a file, mapped: they change with the file until `write` makes them this process's own.

    Python's own maps keep a descriptor of the file, and Arrow's can't be written to. fd: -1 for memory. OSError.
    """

    def __init__(self, fd: int, size_bytes: int) -> None:
        flags = mmap.MAP_PRIVATE | (mmap.MAP_ANONYMOUS if fd < 0 else 0) | _MAP_NORESERVE
        address = _LIBC.mmap(None, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0)
        if address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "mmap")
        self.address: int = address
        self._size_bytes = size_bytes

    def write(self, begin: int, data: bytes) -> None:
        """Writes to the memory of this process alone."""
        assert begin + len(data) <= self._size_bytes
        ctypes.memmove(self.address + begin, data, len(data))

    def __del__(self) -> None:
        if hasattr(self, "address"):
            _LIBC.munmap(self.address, self._size_bytes)


_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_ssize_t,
)  # fmt: skip
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
#: Pages that are only read need no memory to be set aside.
_MAP_NORESERVE: Final = 0x4000 if sys.platform == "linux" else 0


def cache() -> ObjectCache:
    """The copies that processes of this user and machine share. DATABASE_ACCESS, INVALID_PARAMETER."""
    max_bytes = bytes_of(SIZE, least=0)
    return _cache(os.environ.get(DIRECTORY, ""), DEFAULT_BYTES if max_bytes is None else max_bytes)


@lru_cache(maxsize=4)
def _cache(directory: str, max_bytes: int) -> ObjectCache:
    root = Path(directory or os.path.join(tempfile.gettempdir(), f"watersmeet-cache-{os.getuid()}"))
    own = root / _start()
    _make(own)
    with contextlib.suppress(OSError):
        for other in root.iterdir():
            if other.name != own.name and other.name.startswith("boot-"):
                shutil.rmtree(other, ignore_errors=True)
    return ObjectCache(own, max_bytes)


def _make(own: Path) -> None:
    """Makes the directory of this start of the machine, and the one that it is in. DATABASE_ACCESS."""
    root = own.parent
    try:
        root.mkdir(0o700, parents=True, exist_ok=True)
        if root.stat().st_uid != os.getuid():
            raise error("DATABASE_ACCESS", f"the cache {root} belongs to another user", hint=f"Set {DIRECTORY}.")
        own.mkdir(0o700, exist_ok=True)
    except OSError as cause:
        raise error(
            "DATABASE_ACCESS",
            f"copies of objects can't be kept in {root}: {os.strerror(cause.errno or 0)}",
            hint=f"Let {DIRECTORY} name a directory that can be written to.",
        ) from cause


def _start() -> str:
    """A name that is another one after the next start of the machine, where that is known."""
    try:
        return f"boot-{_BOOT.read_text().strip()}"
    except OSError:
        return "boot-unknown"
