"""The files of a database, in a directory or in an object store: one set of functions for both.

A path belongs to the file system or to an object. All functions do the same for both: a file appears completely under
its name or not at all; of several attempts to create it, one succeeds; and afterwards all readers see it. `durable`:
whether a file of a file system also survives a loss of power; objects do. `BackgroundWrites` writes several files at a
time.

`system.files` and `objectstores.databasefiles` are the two implementations, with details of each function.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, Self, TypeVar

import pyarrow as pa

from watersmeet.errors import Error, error
from watersmeet.objectstores import databasefiles
from watersmeet.objectstores.base import WHAT, Location, ObjectPath, is_url, location_at, timed
from watersmeet.system import files
from watersmeet.system.files import Bytes

#: The number of files written at a time, …
_AT_ONCE: Final = 4

#: … and the maximum bytes that wait for it in memory, unless one file has more.
_WAITING_BYTES: Final = 64 << 20


class BackgroundWrites:
    """Background writes, several at a time. For one thread.

    `finish` must be called before the writes are announced.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[tuple[Future[None], int]] = deque()
        self._bytes = 0

    def begin(self, write: Callable[[], None], size_bytes: int) -> None:
        """Call `write` soon, in another thread. size_bytes: the memory that it needs until then.

        Raises the error of an earlier write.
        """
        while self._waiting and self._bytes + size_bytes > _WAITING_BYTES:
            self._await()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_AT_ONCE, "watersmeet-writes")
        self._waiting.append((self._pool.submit(write), size_bytes))
        self._bytes += size_bytes

    def finish(self) -> None:
        """Wait for all writes. Raises the first error; other writes may have succeeded."""
        try:
            while self._waiting:
                self._await()
        finally:
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = None

    def _await(self) -> None:
        done, size_bytes = self._waiting.popleft()
        self._bytes -= size_bytes
        done.result()


AnyPath = Path | ObjectPath
_FILE: Final = "file"
T = TypeVar("T")

#: The number of actions that `Concurrently` runs at a time.
_ACTIONS: Final = 16


class Concurrently:
    """Actions that don't depend on each other: at the same time in an object store, where each waits for requests, and
    sequentially in a directory. At the end of the block all have ended.
    """

    def __init__(self, root: AnyPath) -> None:
        self._pool = ThreadPoolExecutor(_ACTIONS, "watersmeet-requests") if isinstance(root, ObjectPath) else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def begin(self, action: Callable[[], T]) -> Future[T]:
        """Begins an action. The future has its result or error; in a directory, this raises the error."""
        if self._pool is not None:
            return self._pool.submit(databasefiles.counted(action))
        done = Future[T]()
        done.set_result(action())
        return done


#: A pattern for a mistyped URL, which would be regarded as a relative path.
_HALF_URL: Final = re.compile(r"(?:s3|gs|az|hdfs|file):/", re.IGNORECASE)

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")

#: Files of a file system are written in the background from this size on, because they wait for the disk.
_SOON_BYTES: Final = 1 << 20


def path_at(path: str | AnyPath) -> AnyPath:
    """The path that a text or URL names. Raises INVALID_PARAMETER; FEATURE_NOT_SUPPORTED for unknown stores."""
    if isinstance(path, ObjectPath):
        return path
    if isinstance(path, Path) or "://" not in path:
        if _HALF_URL.match(str(path)):
            raise error(
                "INVALID_PARAMETER",
                f"{path} is neither a path nor a URL",
                hint="Write s3://bucket/name or file:///directory, as text: a Path of Python has no //.",
            )
        return Path(path).absolute()
    scheme, _, rest = path.partition("://")
    if scheme == _FILE:
        if not rest.startswith("/"):
            raise error("INVALID_PARAMETER", f"{path} is not a URL of a file", hint="Write file:///directory.")
        return Path(rest)
    if not is_url(path):
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"databases at {scheme}:// are not supported",
            hint="A database is a directory, or a URL of s3://bucket/name, gs://bucket/name, az://container/name or "
            "hdfs://namenode:port/name.",
        )
    bucket, _, name = rest.partition("/")
    if "@" in bucket:
        raise error(
            "INVALID_PARAMETER",
            f"a URL of a database begins with {scheme}:// and the name of a {WHAT[scheme]}, without a user or password",
            hint="Give credentials in the environment of the process.",
        )
    if _CONTROL.search(name):
        raise error("INVALID_PARAMETER", f"a URL of a database has no control characters, as {path!r} has")
    parts = [part for part in name.split("/") if part]
    if not bucket or not parts or {".", ".."} & {*parts}:
        raise error(
            "INVALID_PARAMETER",
            f"{path} does not name a database",
            hint=f"Write {scheme}://{bucket or 'bucket'}/name: the bucket and the name of the database in it.",
        )
    location: Location = location_at(f"{scheme}://{bucket}")
    return ObjectPath(location, "/".join(parts))


@timed("create")
def create_file(path: AnyPath, data: Bytes, *, durable: bool, private: bool = False) -> None:
    """Create a file in one step. Raises FileExistsError if the name is taken. Of several callers, one succeeds.

    private: see `files.create_file`; access to objects is a setting of the bucket.
    """
    if isinstance(path, ObjectPath):
        databasefiles.create(path, data)
    else:
        files.create_file(path, data, durable=durable, private=private)


@timed("put")
def replace_file(path: AnyPath, data: Bytes, *, durable: bool, private: bool = False) -> None:
    """Write a file in one step. private: as in `create_file`."""
    if isinstance(path, ObjectPath):
        databasefiles.put(path, [data])
    else:
        files.replace_file(path, data, durable=durable, private=private)


@timed("put")
def publish_content(path: AnyPath, pieces: Sequence[Bytes], *, durable: bool, direct: bool = False) -> None:
    """Write the joined `pieces` under a name derived from the content.

    direct: don't cache it, because it won't be read soon; as in `files.publish_content` and `databasefiles.publish`.
    """
    if isinstance(path, ObjectPath):
        databasefiles.publish(path, pieces, direct=direct)
    else:
        files.publish_content(path, pieces, durable=durable, direct=direct)


def publish_again(source: AnyPath, target: AnyPath, *, durable: bool) -> None:
    """Give an immutable file a second path, in the same file system or object store. It may exist already."""
    if isinstance(source, Path) and isinstance(target, Path):
        files.link(source, target)
    else:
        publish_content(target, [read_file(source)], durable=durable)


class Publisher:
    """`publish_content` for several files, without waiting for each: `finish` returns when all exist.

    For one thread. Files may appear in any order, so none may be announced before that.
    """

    def __init__(self, *, durable: bool) -> None:
        self._durable = durable
        self._background = BackgroundWrites()

    def publish(self, path: AnyPath, pieces: Sequence[Bytes], *, direct: bool = False, held: bool = False) -> None:
        """Publish content, now or in the background. Raises the error of an earlier background write.

        pieces: must not change afterwards. direct: as in `publish_content`. held: whether the caller keeps the pieces
        in memory anyway, so that they don't count as waiting bytes.
        """
        size_bytes = sum(map(len, pieces))
        write = partial(publish_content, path, pieces, durable=self._durable, direct=direct)
        if isinstance(path, ObjectPath) or size_bytes >= _SOON_BYTES:
            self._background.begin(databasefiles.counted(write), 0 if held else size_bytes)
        else:
            write()

    def finish(self) -> None:
        """Waits for all files."""
        self._background.finish()


def sync_directory(directory: AnyPath) -> None:
    """Flush the entries of a directory."""
    if not isinstance(directory, ObjectPath):
        files.sync_directory(directory)


@timed("read")
def read_file(path: AnyPath) -> bytes:
    """The content of a file. Raises FileNotFoundError."""
    return databasefiles.read(path) if isinstance(path, ObjectPath) else files.read_file(path)


@timed("read")
def read_files(paths: Sequence[AnyPath]) -> list[bytes | None]:
    """The contents of files, in parallel where possible; None for missing ones."""
    objects = [path for path in paths if isinstance(path, ObjectPath)]
    found = dict(zip(objects, databasefiles.read_many(objects), strict=True))
    return [found[p] if isinstance(p, ObjectPath) else _read_if_there(p) for p in paths]


def _read_if_there(path: Path) -> bytes | None:
    try:
        return files.read_file(path)
    except FileNotFoundError:
        return None


@timed("read")
def fetch(paths: Iterable[AnyPath]) -> None:
    """Cache immutable files that will be mapped: fetching each separately would take longer."""
    databasefiles.fetch([path for path in paths if isinstance(path, ObjectPath)])


@timed("read")
def map_file(path: AnyPath) -> pa.Buffer:
    """The content of a file that never changes, mapped into memory.

    It stays valid after the file is deleted. Raises FileNotFoundError, and OSError for a file that can't be mapped,
    such as an empty one.
    """
    if isinstance(path, ObjectPath):
        return databasefiles.mapped(path)
    with pa.memory_map(str(path)) as file:
        # The buffer keeps the mapping after the file is closed, so no descriptor stays open.
        return file.read_buffer()


def is_here(path: AnyPath) -> bool:
    """Whether mapping a file that never changes needs no request."""
    return not isinstance(path, ObjectPath) or databasefiles.is_here(path)


@timed("exists")
def exists(path: AnyPath) -> bool:
    """Whether there is a file with that name."""
    return databasefiles.exists(path) if isinstance(path, ObjectPath) else files.exists(path)


@timed("exists")
def missing(paths: Sequence[AnyPath]) -> list[AnyPath]:
    """The files that don't exist, checked in parallel where possible."""
    absent = set(databasefiles.missing([path for path in paths if isinstance(path, ObjectPath)]))
    return [p for p in paths if (p in absent if isinstance(p, ObjectPath) else not files.exists(p))]


@timed("list")
def list_names(directory: AnyPath, *, after: str = "") -> list[str]:
    """The names of the finished files in a directory that are greater than `after`, sorted.

    Raises FileNotFoundError if a file system has no such directory.
    """
    if isinstance(directory, ObjectPath):
        return databasefiles.names(directory, after=after)
    return [name for name in files.list_names(directory) if name > after]


@timed("delete")
def remove_files(paths: Iterable[AnyPath]) -> int:
    """Delete files in order, ignoring missing ones. Returns the number of deleted files."""
    found = list(paths)
    objects = [p for p in found if isinstance(p, ObjectPath)]
    return databasefiles.delete(objects) + files.remove_files(p for p in found if isinstance(p, Path))


def discard(path: AnyPath) -> None:
    """Delete a file if it exists and can be deleted."""
    if isinstance(path, ObjectPath):
        with contextlib.suppress(Error):
            databasefiles.delete([path])
    else:
        files.discard(path)


def remove_temporaries(directory: AnyPath) -> int:
    """Delete unfinished files of crashed attempts in a directory. For the only writer, before it starts."""
    if isinstance(directory, ObjectPath):
        return databasefiles.remove_unfinished(directory)
    return files.remove_temporaries(directory)


def make_directory(directory: AnyPath) -> None:
    """Create a directory, if the file system needs one."""
    if not isinstance(directory, ObjectPath):
        files.make_directory(directory)


def remove_directory(directory: AnyPath) -> None:
    """Delete a directory with its content, if it exists and can be deleted."""
    if isinstance(directory, ObjectPath):
        with contextlib.suppress(Error):
            databasefiles.delete(directory / name for name in databasefiles.names(directory, nested=True))
    else:
        shutil.rmtree(directory, ignore_errors=True)
