"""What `storage` does with the files of a database that are objects of a store.

An answer of a store other than plain success says nothing about what became of an object: a request whose answer was
lost is sent again, and is then told that the name is taken, by itself. So what is there is read after each such answer.

Copies of objects on the local disk, shared by all processes of a user on a machine and bounded by bytes.

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


Item = TypeVar("Item")
Result = TypeVar("Result")
Given = ParamSpec("Given")
PATIENCE: Final = "WATERSMEET_STORE_PATIENCE_SECONDS"

"""Environment: for how long a request that a store did not answer is sent again."""

_PATIENCE_S: Final = 60.0
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0

#: So many objects are read at a time.
_AT_ONCE: Final = 16


class _Patience:
    """How long one request goes on. INVALID_PARAMETER."""

    def __init__(self) -> None:
        given_s = seconds_of(PATIENCE)
        self._end = time.monotonic() + (_PATIENCE_S if given_s is None else given_s)
        self._pause_s = _FIRST_PAUSE_S

    def wait(self, problem: StoreProblem) -> None:
        """Waits for the next attempt. DATABASE_ACCESS if there is to be none."""
        if not problem.passes or time.monotonic() + self._pause_s > self._end:
            raise failure(problem) from problem
        time.sleep(self._pause_s * random.uniform(0.5, 1))  # noqa: S311 - so that many don't come at once
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)


@dataclass
class Requests:
    """How many requests were sent. hits, misses: objects that never change, or blocks of large ones, which were read on
    the local disk, or had to be fetched. fetched_bytes: of these.
    """

    count: int = 0
    hits: int = 0
    misses: int = 0
    fetched_bytes: int = 0


class _Here(threading.local):
    """requests: where those of this thread are counted; None: with those of the process."""

    requests: Requests | None = None


_HERE: Final = _Here()
_LOCK: Final = threading.Lock()
_OF_PROCESS: Final[dict[str, int]] = {}


@contextlib.contextmanager
def counting() -> Iterator[Requests]:
    """Counts the requests that this thread sends inside, and leaves them out of `requests`."""
    before, _HERE.requests = _HERE.requests, Requests()
    try:
        yield _HERE.requests
    finally:
        _HERE.requests = before


def requests(space: str) -> int:
    """How many requests this process has sent for the files of a database (`ObjectPath.space`)."""
    return _OF_PROCESS.get(space, 0)


def _sent(place: ObjectPath) -> Store:
    """The store of an object to which a request is sent now."""
    with _LOCK:
        if _HERE.requests is not None:
            _HERE.requests.count += 1
        else:
            _OF_PROCESS[place.space] = _OF_PROCESS.get(place.space, 0) + 1
    return open_store(place.location)


def looked_up(*, hits: int = 0, misses: int = 0, fetched_bytes: int = 0) -> None:
    """Counts what was looked for on the local disk, if anybody counts in this thread."""
    if _HERE.requests is not None:
        _HERE.requests.hits += hits
        _HERE.requests.misses += misses
        _HERE.requests.fetched_bytes += fetched_bytes


def failure(problem: StoreProblem) -> Error:
    """The error that stands for a problem of a store."""
    return error("DATABASE_ACCESS", problem.message, detail=problem.detail, hint=problem.hint)


def create(place: ObjectPath, data: Bytes) -> None:
    """Makes an object; FileExistsError if there is one with other content. DATABASE_ACCESS: it may be there or not."""
    patience = _Patience()
    while True:
        try:
            if _sent(place).create(place.path, bytes(data)):
                return
            problem = StoreProblem(f"{place} is there and is not", passes=True)
        except StoreProblem as cause:
            problem = cause
        try:
            found = read(place)
        except FileNotFoundError:
            patience.wait(problem)
            continue
        if found != data:
            raise FileExistsError(f"there is another {place}")
        return


def put(place: ObjectPath, pieces: Sequence[Bytes]) -> None:
    """Makes an object of the joined `pieces`, instead of what is there."""
    _again(lambda: _sent(place).put(place.path, *pieces))


def publish(place: ObjectPath, pieces: Sequence[Bytes], *, direct: bool = False) -> None:
    """As `put`, for an object that never changes: it is kept on the local disk, too, unless it is `direct`, which
    nobody is expected to read soon.
    """
    put(place, pieces)
    if not direct:
        cache().put(place, pieces)


def read(place: ObjectPath) -> bytes:
    """The content; FileNotFoundError."""
    return _again(lambda: _sent(place).get(place.path))


def mapped(place: ObjectPath) -> pa.Buffer:
    """The content of an object that never changes, from the local disk if it is there. FileNotFoundError."""
    found = cache().get(place)
    if found is not None:
        looked_up(hits=1)
        return found
    looked_up(misses=1)
    data = read(place)
    looked_up(fetched_bytes=len(data))
    cache().put(place, [data])
    # Mapped, it is not memory of the process: the machine takes its pages back.
    found = cache().get(place)
    return pa.py_buffer(data) if found is None else found


def read_many(places: Sequence[ObjectPath]) -> list[bytes | None]:
    """The contents of objects, several at a time; None of those that are not there."""
    return _at_once(_read_if_there, places)


def fetch(places: Sequence[ObjectPath]) -> None:
    """Gets copies of objects that never change, several at a time, of those of which there are none yet."""
    missing = [place for place in places if not cache().has(place)]
    if len(missing) > 1:
        looked_up(misses=len(missing))
        for begin in range(0, len(missing), _AT_ONCE):
            part = missing[begin : begin + _AT_ONCE]
            for place, data in zip(part, read_many(part), strict=True):
                if data is not None:
                    looked_up(fetched_bytes=len(data))
                    cache().put(place, [data])


def is_here(place: ObjectPath) -> bool:
    """Whether there is a whole copy of an object."""
    return cache().has(place)


def in_parts(place: ObjectPath, size_bytes: int, block_bytes: int) -> BlockCopy:
    """A copy of an object of that size which is to be filled block by block."""
    return cache().in_parts(place, size_bytes, block_bytes)


def fetch_ranges(wanted: Sequence[tuple[ObjectPath, int, int, Callable[[bytes], None]]]) -> None:
    """Hands bytes [begin, end) of each of some objects that never change to what takes them, several at a time.

    FileNotFoundError. Fewer bytes come of an object that is shorter.
    """

    def request(number: int) -> None:
        place, begin, end, take = wanted[number]
        take(_again(lambda: _sent(place).range(place.path, begin, end)))

    _at_once(request, range(len(wanted)))


def _read_if_there(place: ObjectPath) -> bytes | None:
    try:
        return read(place)
    except FileNotFoundError:
        return None


def _at_once(request: Callable[[Item], Result], places: Sequence[Item]) -> list[Result]:
    """What a request gives for each of several objects."""
    if len(places) < 2:
        return [request(place) for place in places]
    with ThreadPoolExecutor(min(_AT_ONCE, len(places)), "watersmeet-objects") as pool:
        return list(pool.map(counted(request), places))


def counted(request: Callable[Given, Result]) -> Callable[Given, Result]:
    """The same for another thread: its requests are counted with those of this one."""
    here = _HERE.requests

    def requested(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        _HERE.requests = here
        return request(*args, **kwargs)

    return requested


def exists(place: ObjectPath) -> bool:
    """Whether there is an object."""
    try:
        _again(lambda: _sent(place).stat(place.path))
    except FileNotFoundError:
        return False
    return True


def missing(places: Sequence[ObjectPath]) -> list[ObjectPath]:
    """Those of some objects that are not there; several are looked for at a time."""
    return [place for place, there in zip(places, _at_once(exists, places), strict=True) if not there]


def names(directory: ObjectPath, *, after: str = "") -> list[str]:
    """The names of the objects in a directory that are greater than `after`, sorted."""
    prefix = f"{directory.path}/" if directory.path else ""

    def listed() -> list[str]:
        found = _sent(directory).list(directory.path, after and prefix + after)
        return [name.removeprefix(prefix) for name, _ in found]

    return sorted(n for n in _again(listed) if "/" not in n)


def remove_unfinished(directory: ObjectPath) -> int:
    """Deletes what crashed attempts left in a directory, where the store can't help leaving it; how much that was."""
    return _again(lambda: open_store(directory.location).discard_unfinished(directory.path))


def is_empty(directory: ObjectPath) -> bool:
    """Whether there is no object in or below a directory."""
    return _again(lambda: next(iter(_sent(directory).list(directory.path)), None)) is None


def delete(places: Iterable[ObjectPath]) -> int:
    """Deletes objects, in their order if a request is not answered; how many, those that were gone already too."""
    found = list(places)
    if found:
        _again(lambda: _sent(found[0]).delete([p.path for p in found]))
    return len(found)


def _again(request: Callable[[], Result]) -> Result:
    """What a request gives that may be sent any number of times."""
    patience = _Patience()
    while True:
        try:
            return request()
        except StoreProblem as problem:
            patience.wait(problem)
