"""The files of a database in an object store, with copies of them on the local disk.

After any answer other than success, it is unknown whether an object was created: its own first attempt may have taken
the name of a repeated request. So the object is read after each such answer.

Copies are shared by all processes of a user on a machine, and limited in bytes. Only immutable objects are copied,
under names that are never reused, so a copy is never stale. A copy appears under its name when it is complete. A loss
of power could damage a copy, so the directory of copies is named after the boot of the machine, and those of earlier
boots are deleted.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import mmap
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.errors import Error, error
from watersmeet.objectstores.base import ObjectPath, Store, StoreProblem
from watersmeet.objectstores.stores import open_store
from watersmeet.system import files
from watersmeet.system.files import Bytes
from watersmeet.system.process import bytes_of, seconds_of

DIRECTORY: Final = "WATERSMEET_CACHE_DIR"

"""Environment variable: the directory of the copies; by default, one in the directory of temporary files."""

SIZE: Final = "WATERSMEET_CACHE_BYTES"

"""Environment variable: the maximum bytes of all copies."""

DEFAULT_BYTES: Final = 10 << 30
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")

#: When the copies exceed the limit, the oldest are deleted until this part of the limit is free.
_FREED: Final = 0.1

#: All copies are counted again after this process has added this many bytes (or a part of the limit), because other
#: processes also add copies.
_COUNT_BYTES: Final = 256 << 20

#: The age from which on unfinished copies are those of processes that died.
_UNFINISHED_S: Final = 3600

_IN_PARTS: Final = ".blocks"

#: The unit in which file systems count blocks, also for files with holes.
_DISK_BLOCK_BYTES: Final = 512


class ObjectCache:
    """The local copies of objects. Thread-safe. If a copy can't be kept, for example on a full disk, no error is
    raised.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self.directory = directory
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._left_bytes = 0

    def get(self, path: ObjectPath) -> pa.Buffer | None:
        """The copy of an object, mapped; None without one. It stays valid after the copy is deleted."""
        copy = self._path(path)
        try:
            os.utime(copy)
            with pa.memory_map(str(copy)) as file:
                return file.read_buffer()
        except OSError:
            return None

    def has(self, path: ObjectPath) -> bool:
        """Whether there is a copy of an object."""
        return self._path(path).exists()

    def in_parts(self, path: ObjectPath, size_bytes: int, block_bytes: int) -> BlockCopy:
        """A copy of an object of that size with some of its blocks."""
        with contextlib.suppress(Error, OSError):
            self._make()
            copy = self._path(path).with_suffix(_IN_PARTS)
            return BlockCopy(size_bytes, block_bytes, copy, self._added)
        return BlockCopy(size_bytes, block_bytes)

    def put(self, path: ObjectPath, pieces: Sequence[Bytes]) -> None:
        """Keep the joined `pieces` as the copy of an object."""
        copy = self._path(path)
        with contextlib.suppress(Error, OSError):
            self._make()
            files.discard(copy)
            files.publish_content(copy, pieces, durable=False)
            self._added(sum(len(p) for p in pieces))

    def _make(self) -> None:
        """Create the directory again if it was deleted."""
        if not self.directory.is_dir():
            _make(self.directory)

    def _path(self, path: ObjectPath) -> Path:
        space = hashlib.sha256(f"{path.location.url} {path.space} {path.path}".encode()).hexdigest()[:32]
        return self.directory / f"{space}-{path.name}"

    def _added(self, size_bytes: int) -> None:
        with self._lock:
            self._left_bytes -= size_bytes
            if self._left_bytes <= 0:
                self._left_bytes = min(self._make_room(), _COUNT_BYTES, max(1, self._max_bytes // 8))

    def _make_room(self) -> int:
        """Delete the least recently used copies if all exceed the limit. Returns the remaining bytes."""
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

    buffer: as long as the object; missing blocks are undefined. path: a file with holes, shared with other processes;
    None to use memory. Blocks that can't be written to the file, because the disk is full or the file was deleted, stay
    in memory.
    """

    def __init__(
        self, size_bytes: int, block_bytes: int, path: Path | None = None, added: Callable[[int], None] | None = None
    ) -> None:
        """added: called with the number of bytes added to the file. Raises OSError if the file can't be created or
        mapped.
        """
        self._block_bytes = block_bytes
        self._path = path
        self._added = added
        #: After the object, a byte for each block marks whether it exists. It may be wrong: readers check each block.
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
        """The blocks of a set that are in the copy."""
        found: npt.NDArray[np.bool_] = self._marks[blocks] != 0
        return found

    def add(self, first_block: int, data: bytes) -> None:
        """Add consecutive blocks."""
        begin = first_block * self._block_bytes
        marks = b"\1" * -(-len(data) // self._block_bytes)
        if not self._written(begin, data, self._marks_at + first_block, marks):
            self._pages.write(begin, data)
            self._pages.write(self._marks_at + first_block, marks)
        elif self._added is not None:
            self._added(len(data))

    def used(self) -> None:
        """Mark the copy as recently used."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                os.utime(self._path)

    def _written(self, begin: int, data: bytes, marks_at: int, marks: bytes) -> bool:
        """Write a block to the file. Returns whether that succeeded."""
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
    """Allocate bytes [begin, end) of a file on the disk, so that they can be read when mapped: a file system in memory
    allocates a hole when it is read, and kills the process (SIGBUS) if it is full. Raises OSError if it is full.
    """
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, begin, end - begin)
        except OSError as cause:
            if cause.errno in files.FULL:  # other file systems can't allocate, and read a hole as zeros
                raise


class _Pages:
    """Mapped pages of a file: they follow the file until `write` makes them private to this process.

    (Python's own mappings keep a descriptor of the file, and Arrow's are read-only.) fd: -1 for memory. Raises OSError.
    """

    def __init__(self, fd: int, size_bytes: int) -> None:
        flags = mmap.MAP_PRIVATE | (mmap.MAP_ANONYMOUS if fd < 0 else 0) | _MAP_NORESERVE
        address = _LIBC.mmap(None, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0)
        if address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "mmap")
        self.address: int = address
        self._size_bytes = size_bytes

    def write(self, begin: int, data: bytes) -> None:
        """Write only to the memory of this process."""
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

#: Pages that are only read need no reserved memory.
_MAP_NORESERVE: Final = 0x4000 if sys.platform == "linux" else 0


def cache() -> ObjectCache:
    """The copies shared by processes of this user and machine. Raises DATABASE_ACCESS, INVALID_PARAMETER."""
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
    """Create the directory of this boot, and its parent. Raises DATABASE_ACCESS."""
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
    """A name that changes with each boot, if the system provides one."""
    try:
        return f"boot-{_BOOT.read_text().strip()}"
    except OSError:
        return "boot-unknown"


Item = TypeVar("Item")
Result = TypeVar("Result")
Given = ParamSpec("Given")
PATIENCE: Final = "WATERSMEET_STORE_PATIENCE_SECONDS"

"""Environment variable: the time for which an unanswered request is repeated."""

_PATIENCE_S: Final = 60.0
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0

#: The number of objects read at a time.
_AT_ONCE: Final = 16


class _Patience:
    """The time limit of repeated requests. Raises INVALID_PARAMETER."""

    def __init__(self) -> None:
        given_s = seconds_of(PATIENCE)
        self._end = time.monotonic() + (_PATIENCE_S if given_s is None else given_s)
        self._pause_s = _FIRST_PAUSE_S

    def wait(self, problem: StoreProblem) -> None:
        """Wait for the next attempt. Raises DATABASE_ACCESS if there is none."""
        if not problem.passes or time.monotonic() + self._pause_s > self._end:
            raise failure(problem) from problem
        time.sleep(self._pause_s * random.uniform(0.5, 1))  # noqa: S311 - so that many don't come at once
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)


@dataclass
class Requests:
    """The number of requests. hits, misses: the immutable objects, or blocks of large ones, that were on the local disk
    or were not. fetched_bytes: the bytes of the misses.
    """

    count: int = 0
    hits: int = 0
    misses: int = 0
    fetched_bytes: int = 0


class _Here(threading.local):
    """The counts of a thread. requests: None if its requests are counted for the process."""

    requests: Requests | None = None


_HERE: Final = _Here()
_LOCK: Final = threading.Lock()
_OF_PROCESS: Final[dict[str, int]] = {}


@contextlib.contextmanager
def counting() -> Iterator[Requests]:
    """A context that counts the requests of this thread, and excludes them from `requests`."""
    before, _HERE.requests = _HERE.requests, Requests()
    try:
        yield _HERE.requests
    finally:
        _HERE.requests = before


def requests(space: str) -> int:
    """The requests of this process for the files of a database (`ObjectPath.space`)."""
    return _OF_PROCESS.get(space, 0)


def _sent(path: ObjectPath) -> Store:
    """The store of an object to which a request is sent now."""
    with _LOCK:
        if _HERE.requests is not None:
            _HERE.requests.count += 1
        else:
            _OF_PROCESS[path.space] = _OF_PROCESS.get(path.space, 0) + 1
    return open_store(path.location)


def looked_up(*, hits: int = 0, misses: int = 0, fetched_bytes: int = 0) -> None:
    """Count accesses to the local disk, if this thread counts."""
    if _HERE.requests is not None:
        _HERE.requests.hits += hits
        _HERE.requests.misses += misses
        _HERE.requests.fetched_bytes += fetched_bytes


def failure(problem: StoreProblem) -> Error:
    """The error for a problem of a store."""
    return error("DATABASE_ACCESS", problem.message, detail=problem.detail, hint=problem.hint)


def create(path: ObjectPath, data: Bytes) -> None:
    """Create an object. Raises FileExistsError if it exists with other content. After DATABASE_ACCESS, it may exist or
    not.
    """
    patience = _Patience()
    while True:
        try:
            if _sent(path).create(path.path, bytes(data)):
                return
            problem = StoreProblem(f"{path} is there and is not", passes=True)
        except StoreProblem as cause:
            problem = cause
        try:
            found = read(path)
        except FileNotFoundError:
            patience.wait(problem)
            continue
        if found != data:
            raise FileExistsError(f"there is another {path}")
        return


def put(path: ObjectPath, pieces: Sequence[Bytes]) -> None:
    """Write an object of the joined `pieces`."""
    _again(lambda: _sent(path).put(path.path, *pieces))


def publish(path: ObjectPath, pieces: Sequence[Bytes], *, direct: bool = False) -> None:
    """Like `put`, for an object that never changes. It is also kept on the local disk, unless `direct`: then it is not
    expected to be read soon.
    """
    put(path, pieces)
    if not direct:
        cache().put(path, pieces)


def read(path: ObjectPath) -> bytes:
    """The content of an object. Raises FileNotFoundError."""
    return _again(lambda: _sent(path).get(path.path))


def mapped(path: ObjectPath) -> pa.Buffer:
    """The content of an object that never changes, from the local disk if possible. Raises FileNotFoundError."""
    found = cache().get(path)
    if found is not None:
        looked_up(hits=1)
        return found
    looked_up(misses=1)
    data = read(path)
    looked_up(fetched_bytes=len(data))
    cache().put(path, [data])
    # Mapped content is not memory of the process, because the system can reclaim its pages.
    found = cache().get(path)
    return pa.py_buffer(data) if found is None else found


def read_many(paths: Sequence[ObjectPath]) -> list[bytes | None]:
    """The contents of objects, several at a time; None for missing ones."""
    return _at_once(_read_if_there, paths)


def fetch(paths: Sequence[ObjectPath]) -> None:
    """Fetch missing copies of objects that never change, several at a time."""
    missing = [path for path in paths if not cache().has(path)]
    if len(missing) > 1:
        looked_up(misses=len(missing))
        for begin in range(0, len(missing), _AT_ONCE):
            part = missing[begin : begin + _AT_ONCE]
            for path, data in zip(part, read_many(part), strict=True):
                if data is not None:
                    looked_up(fetched_bytes=len(data))
                    cache().put(path, [data])


def is_here(path: ObjectPath) -> bool:
    """Whether there is a whole copy of an object."""
    return cache().has(path)


def in_parts(path: ObjectPath, size_bytes: int, block_bytes: int) -> BlockCopy:
    """A copy of an object of that size that will be filled block by block."""
    return cache().in_parts(path, size_bytes, block_bytes)


def fetch_ranges(wanted: Sequence[tuple[ObjectPath, int, int, Callable[[bytes], None]]]) -> None:
    """Pass bytes [begin, end) of each of some objects that never change to its function, several at a time.

    Raises FileNotFoundError. If an object ends before `end`, the function receives fewer bytes.
    """

    def request(number: int) -> None:
        path, begin, end, take = wanted[number]
        take(_again(lambda: _sent(path).range(path.path, begin, end)))

    _at_once(request, range(len(wanted)))


def _read_if_there(path: ObjectPath) -> bytes | None:
    try:
        return read(path)
    except FileNotFoundError:
        return None


def _at_once(request: Callable[[Item], Result], paths: Sequence[Item]) -> list[Result]:
    """The results of a request for each of several objects."""
    if len(paths) < 2:
        return [request(path) for path in paths]
    with ThreadPoolExecutor(min(_AT_ONCE, len(paths)), "watersmeet-objects") as pool:
        return list(pool.map(counted(request), paths))


def counted(request: Callable[Given, Result]) -> Callable[Given, Result]:
    """The function, for another thread, whose requests are then counted with those of this thread."""
    here = _HERE.requests

    def requested(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        _HERE.requests = here
        return request(*args, **kwargs)

    return requested


def exists(path: ObjectPath) -> bool:
    """Whether the object exists."""
    try:
        _again(lambda: _sent(path).stat(path.path))
    except FileNotFoundError:
        return False
    return True


def missing(paths: Sequence[ObjectPath]) -> list[ObjectPath]:
    """The objects that don't exist; several are checked at a time."""
    return [path for path, there in zip(paths, _at_once(exists, paths), strict=True) if not there]


def names(directory: ObjectPath, *, after: str = "", nested: bool = False) -> list[str]:
    """The names of the objects in a directory that are greater than `after`, sorted. nested: also those in directories
    in it, with their paths.
    """
    prefix = f"{directory.path}/" if directory.path else ""

    def listed() -> list[str]:
        found = _sent(directory).list(directory.path, after and prefix + after)
        return [name.removeprefix(prefix) for name, _ in found]

    return sorted(n for n in _again(listed) if nested or "/" not in n)


def remove_unfinished(directory: ObjectPath) -> int:
    """Delete files of crashed writes in a directory, and return their number."""
    return _again(lambda: open_store(directory.location).discard_unfinished(directory.path))


def is_empty(directory: ObjectPath) -> bool:
    """Whether there is no object in or below a directory."""
    return _again(lambda: next(iter(_sent(directory).list(directory.path)), None)) is None


def delete(paths: Iterable[ObjectPath]) -> int:
    """Delete objects; in order, if a request is not answered. Returns their number, including missing ones."""
    found = list(paths)
    if found:
        _again(lambda: _sent(found[0]).delete([p.path for p in found]))
    return len(found)


def _again(request: Callable[[], Result]) -> Result:
    """The result of a request that may be repeated."""
    patience = _Patience()
    while True:
        try:
            return request()
        except StoreProblem as problem:
            patience.wait(problem)
