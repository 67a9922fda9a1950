"""The files of a database, in a directory or in an object store: one set of functions for both.

A place is a path of the file system, or the name of an object. All functions do the same for both: a file appears
complete under its name or not at all, of several that create it one succeeds, and what was written is seen by all
afterwards. `durable` says whether a file of a file system also survives a loss of power; objects do. `UnderWay` writes
several files at a time.

`system.files` and `objectstores.databasefiles` have the two implementations, and say more about each function.
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
from typing import Final

import pyarrow as pa

from watersmeet.errors import Error, error
from watersmeet.objectstores import databasefiles
from watersmeet.objectstores.base import WHAT, Location, ObjectPath, is_url, location_at, timed
from watersmeet.system import files
from watersmeet.system.files import Bytes

#: So many are written at a time, …
_AT_ONCE: Final = 4

#: … and at most so many bytes wait for that in memory, or one file.
_WAITING_BYTES: Final = 64 << 20


class UnderWay:
    """Writes that are under way, several at a time. For one thread.

    `finish` must be called before anybody is told what they did.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[tuple[Future[None], int]] = deque()
        self._bytes = 0

    def begin(self, write: Callable[[], None], size_bytes: int) -> None:
        """Calls `write` soon, in another thread. size_bytes: what it holds in memory until it is done.

        Raises as an earlier one did.
        """
        while self._waiting and self._bytes + size_bytes > _WAITING_BYTES:
            self._await()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_AT_ONCE, "watersmeet-writes")
        self._waiting.append((self._pool.submit(write), size_bytes))
        self._bytes += size_bytes

    def finish(self) -> None:
        """Waits until all are done. Raises as the first one did that failed; others may be done all the same."""
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


Place = Path | ObjectPath
_FILE: Final = "file"

#: What is taken for a relative path, and was hardly meant as one.
_HALF_URL: Final = re.compile(r"(?:s3|gs|az|hdfs|file):/", re.IGNORECASE)

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")

#: A file of a file system that is not smaller is written beside what its writer does: it waits for the disk.
_SOON_BYTES: Final = 1 << 20


def place_at(path: str | Path) -> Place:
    """The place that a path or URL names. INVALID_PARAMETER; FEATURE_NOT_SUPPORTED for stores that are not known."""
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
def create_file(place: Place, data: Bytes, *, durable: bool, private: bool = False) -> None:
    """Puts `data` under a name in one step; FileExistsError if it is taken. Of several callers one succeeds.

    private: see `files.create_file`; who may read objects is a matter of the bucket.
    """
    if isinstance(place, ObjectPath):
        databasefiles.create(place, data)
    else:
        files.create_file(place, data, durable=durable, private=private)


@timed("put")
def replace_file(place: Place, data: Bytes, *, durable: bool) -> None:
    """Puts `data` under a name in one step, instead of what is there."""
    if isinstance(place, ObjectPath):
        databasefiles.put(place, [data])
    else:
        files.replace_file(place, data, durable=durable)


@timed("put")
def publish_content(place: Place, pieces: Sequence[Bytes], *, durable: bool, direct: bool = False) -> None:
    """Puts the joined `pieces` under a name that is made from the content.

    direct: nobody is expected to read it soon, so it takes no place where what is read is at hand: see
    `files.publish_content` and `databasefiles.publish`.
    """
    if isinstance(place, ObjectPath):
        databasefiles.publish(place, pieces, direct=direct)
    else:
        files.publish_content(place, pieces, durable=durable, direct=direct)


class Publisher:
    """`publish_content` for several files, without waiting for each: `finish` returns when all are there.

    For one thread. A file may be there before one that was given earlier, so nobody may be told of any until then.
    """

    def __init__(self, *, durable: bool) -> None:
        self._durable = durable
        self._under_way = UnderWay()

    def publish(self, place: Place, pieces: Sequence[Bytes], *, direct: bool = False, held: bool = False) -> None:
        """Publishes content now or soon; `pieces` must not change. Raises what an earlier one raised.

        direct: as in `publish_content`. held: they stay in memory in any case, so any number of them may wait.
        """
        size_bytes = sum(map(len, pieces))
        write = partial(publish_content, place, pieces, durable=self._durable, direct=direct)
        if isinstance(place, ObjectPath) or size_bytes >= _SOON_BYTES:
            self._under_way.begin(databasefiles.counted(write), 0 if held else size_bytes)
        else:
            write()

    def finish(self) -> None:
        """Waits for all files."""
        self._under_way.finish()


def sync_directory(directory: Place) -> None:
    """Flushes the names of a directory."""
    if not isinstance(directory, ObjectPath):
        files.sync_directory(directory)


@timed("read")
def read_file(place: Place) -> bytes:
    """The content; FileNotFoundError."""
    return databasefiles.read(place) if isinstance(place, ObjectPath) else files.read_file(place)


@timed("read")
def read_files(places: Sequence[Place]) -> list[bytes | None]:
    """The contents of files, as fast as they can be had; None of those that are not there."""
    objects = [place for place in places if isinstance(place, ObjectPath)]
    found = dict(zip(objects, databasefiles.read_many(objects), strict=True))
    return [found[p] if isinstance(p, ObjectPath) else _read_if_there(p) for p in places]


def _read_if_there(path: Path) -> bytes | None:
    try:
        return files.read_file(path)
    except FileNotFoundError:
        return None


@timed("read")
def fetch(places: Iterable[Place]) -> None:
    """Has files that never change at hand, which are going to be mapped: each by itself would take longer."""
    databasefiles.fetch([place for place in places if isinstance(place, ObjectPath)])


@timed("read")
def map_file(place: Place) -> pa.Buffer:
    """The content of a file that never changes, mapped into memory. It stays valid if the file is deleted.

    FileNotFoundError; OSError for what can't be mapped, as it is empty for example.
    """
    if isinstance(place, ObjectPath):
        return databasefiles.mapped(place)
    with pa.memory_map(str(place)) as file:
        # The buffer keeps the map alive after the file is closed, so no descriptor is held.
        return file.read_buffer()


def is_here(place: Place) -> bool:
    """Whether mapping a file that never changes needs nothing from elsewhere."""
    return not isinstance(place, ObjectPath) or databasefiles.is_here(place)


@timed("exists")
def exists(place: Place) -> bool:
    """Whether there is a file of that name."""
    return databasefiles.exists(place) if isinstance(place, ObjectPath) else files.exists(place)


@timed("exists")
def missing(places: Sequence[Place]) -> list[Place]:
    """Those of some files that are not there, as fast as that can be found out."""
    absent = set(databasefiles.missing([place for place in places if isinstance(place, ObjectPath)]))
    return [p for p in places if (p in absent if isinstance(p, ObjectPath) else not files.exists(p))]


@timed("list")
def list_names(directory: Place, *, after: str = "") -> list[str]:
    """The names of the finished files in a directory that are greater than `after`, sorted.

    FileNotFoundError if a file system has no such directory.
    """
    if isinstance(directory, ObjectPath):
        return databasefiles.names(directory, after=after)
    return [name for name in files.list_names(directory) if name > after]


@timed("delete")
def remove_files(places: Iterable[Place]) -> int:
    """Deletes files in order, those that are gone already too; the number of files deleted."""
    found = list(places)
    objects = [p for p in found if isinstance(p, ObjectPath)]
    return databasefiles.delete(objects) + files.remove_files(p for p in found if isinstance(p, Path))


def discard(place: Place) -> None:
    """Deletes a file if it is there and can be deleted."""
    if isinstance(place, ObjectPath):
        with contextlib.suppress(Error):
            databasefiles.delete([place])
    else:
        files.discard(place)


def remove_temporaries(directory: Place) -> int:
    """Deletes what crashed attempts left unfinished in a directory. Only for the writer, before it starts."""
    if isinstance(directory, ObjectPath):
        return databasefiles.remove_unfinished(directory)
    return files.remove_temporaries(directory)


def make_directory(directory: Place) -> None:
    """Makes a directory, where that is needed."""
    if not isinstance(directory, ObjectPath):
        files.make_directory(directory)


def remove_directory(directory: Place) -> None:
    """Deletes a directory with all that is in it, if it is there and can be deleted."""
    if isinstance(directory, ObjectPath):
        with contextlib.suppress(Error):
            databasefiles.delete(directory / name for name in databasefiles.names(directory))
    else:
        shutil.rmtree(directory, ignore_errors=True)
