"""The paths inside a database, all created by this module from names that can't leave its folder; checks of its file
system; the writer's lock.

At most one process writes a database. The lock ends with its process. Its only use is an immediate error that names the
other process: where locks don't work, the commit log excludes a second writer. Object stores have no locks; in these,
the process that opened a database last writes it.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import socket
import time
import urllib.parse
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from watersmeet.errors import error
from watersmeet.objectstores import databasefiles, storage
from watersmeet.objectstores.base import ObjectPath
from watersmeet.objectstores.storage import AnyPath
from watersmeet.system import files
from watersmeet.system.process import make_folder, remove_folder
from watersmeet.system.secretvalues import serve

#: The version of the files, which changes whenever an older release could not read them. 1 had neither writers nor an
#: id, 2 another form of backfills, 3 one form for all relations of the catalog, 4 other forms of the output of epochs,
#: 6 a segment for each stage and bucket, 7 snapshots in Parquet; 9 deleted fences, which the writers of this version
#: need; 14 other names, 16 epochs that compute views again, and fills that replay epochs.
DATABASE_FORMAT_VERSION: Final = 16

#: The oldest format whose files this release reads as they are. The first writer gives the database the present number.
OLDEST_FORMAT_VERSION: Final = 13

#: The permissions of a new database: only for its user, or according to the process's umask.
FilePermissions = Literal["private", "umask"]

DIRECTORIES: Final = (
    "catalog",
    "commits",
    "low-water",
    "segments",
    "snapshots",
    "plans",
    "sources",
    "intents",
    "checkpoint",
    "dead",
    "readers",
    "secrets",
    "subscriptions",
    "sinks",
    "sequences",
    "forks",
)

#: The folders that no other process uses.
_LOCAL: Final = ("intents", "checkpoint")

_ID: Final = re.compile(r"[a-z]+[0-9]+\Z")
_NUMBERED: Final = re.compile(r"[0-9]{12}\.json\Z")
_OF_WRITER: Final = re.compile(r"([a-zA-Z]+[0-9]*)-([0-9]+)\.[a-z]+\Z")
_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]*(\.[a-z]+)?\Z")


def file_numbers(directory: AnyPath, *, after: int = 0) -> list[int]:
    """The ascending numbers above `after` of the files in `directory` whose name is a number."""
    return [int(n[:-5]) for n in storage.list_names(directory, after=f"{after:012d}.json") if _NUMBERED.match(n)]


class WriterFile(NamedTuple):
    """A file of one writer, named `<id>-<writer>` and an ending. id: that of its subject, usually a relation."""

    id: str
    writer: int
    path: AnyPath


def writer_file(directory: AnyPath, file_id: str, writer: int, ending: str = ".json") -> AnyPath:
    """The file of that writer for `file_id` in `directory`.

    Each writer has its own files, so that an overtaken writer never changes those of its successor.
    """
    return directory / check_name(f"{file_id}-{writer}{ending}")


def writer_files(directory: AnyPath) -> list[WriterFile]:
    """All files named by `writer_file`, by id, and then in the order of their writers."""
    found = [m for name in storage.list_names(directory) if (m := _OF_WRITER.match(name))]
    return sorted(WriterFile(m[1], int(m[2]), directory / m.string) for m in found)


def check_id(relation_id: str) -> str:
    """`relation_id`, if it has the form of an id (`t3`); otherwise raises INTERNAL_ERROR."""
    if not _ID.match(relation_id):
        raise error("INTERNAL_ERROR", f"not a relation id: {relation_id!r}")
    return relation_id


def check_name(name: str) -> str:
    """`name`, if it is safe as the name of a file of the store; otherwise raises DATABASE_DAMAGED, because it is from a
    file.
    """
    if not _NAME.match(name):
        raise error("DATABASE_DAMAGED", f"not a name of a file of the store: {name!r}")
    return name


class Layout:
    """The files of one database: a directory, or the names in an object store that begin with its URL.

    root: a path or a URL (`storage.path_at`). id: that of the database; files of another database are rejected.
    durable: whether writes must survive a loss of power (False for temporary databases). create: create missing files
    and folders; otherwise DATABASE_FORMAT if there is no database at `root`. permissions: those of a new database; an
    existing one follows its directory. serves: whether to call `serve_secrets`. older: whether a database of an older
    format may be read, as a fork reads a main database that an earlier release writes. Before any change, raises
    DATABASE_FORMAT for another format and for a directory with other content, UNDEFINED_OBJECT for a missing fork.
    """

    def __init__(
        self,
        root: AnyPath | str,
        *,
        durable: bool = True,
        create: bool = True,
        permissions: FilePermissions = "private",
        serves: bool = True,
        older: bool = False,
    ) -> None:
        self.root = storage.path_at(root)
        self.durable = durable
        self._made_here: Path | None = None
        self.format = DATABASE_FORMAT_VERSION
        self._is_fork = False
        self._format = self.root / "FORMAT"
        found = self._read_format()
        if found is None:
            if not create:
                raise error("DATABASE_FORMAT", f"there is no Watersmeet database at {self.root}")
            self._refuse_missing_fork()
            found = self._create(permissions)
        elif create or self.format == DATABASE_FORMAT_VERSION:
            with self.explaining():
                self._make_directories()  # a copy may lack empty ones
        elif not older:
            raise error(
                "DATABASE_FORMAT",
                f"the database at {self.root} has format {self.format}, older than format {DATABASE_FORMAT_VERSION} "
                "of this release",
                hint="Open it once for writing, which upgrades it; the release that wrote it can't open it afterwards.",
            )
        self.id = found
        if isinstance(self.root, ObjectPath):
            self.root = replace(self.root, space=found)
        self.commits = self.root / "commits"
        self.low_waters = self.root / "low-water"
        self.segments = self.root / "segments"
        self.snapshots = self.root / "snapshots"
        self.catalogs = self.root / "catalog"
        self.plans = self.root / "plans"
        self.sources = self.root / "sources"
        self.secrets = self.root / "secrets"
        self.subscriptions = self.root / "subscriptions"
        self.sinks = self.root / "sinks"
        self.sequences = self.root / "sequences"
        self.forks = self.root / "forks"
        if serves:
            self.serve_secrets()

    def serve_secrets(self) -> None:
        """Lets references to secrets of the database, which its forks share, read those of this layout."""
        serve(self.id, self._secret_value)

    @property
    def is_fork(self) -> bool:
        """Whether it is a fork of another database, the main database."""
        return self._is_fork

    @property
    def main(self) -> AnyPath:
        """The root of the main database of a fork."""
        return self.root.parent.parent

    @property
    def shared(self) -> frozenset[str]:
        """The names of the segment and run files that a fork reads from its main database; empty for others. Raises
        DATABASE_FORMAT for a fork that was dropped or moved.
        """
        return self._fork[1]

    @property
    def identity(self) -> str:
        """A text that no other database with the same path has, not even an earlier fork with this name."""
        return f"{self.id}{self._fork[0]}"

    @cached_property
    def _fork(self) -> tuple[str, frozenset[str]]:
        """(the time at which a fork was created, the names of the files that it shares); ("", no names) for others."""
        if not self._is_fork:
            return "", frozenset()
        path = fork_file(self.root.parent, self.root.name)
        try:
            record = self.unseal(path)
        except FileNotFoundError:
            raise error(
                "DATABASE_FORMAT",
                f"{self.root} was a fork of another database, which no longer has it",
                hint="A fork stays in the folder forks of its database. CREATE FORK creates another one.",
            ) from None
        return f"-{record['time_us']}", frozenset(record["files"])

    @property
    def directory(self) -> Path | None:
        """The directory of the database; None if it is in an object store."""
        return None if isinstance(self.root, ObjectPath) else self.root

    @cached_property
    def local(self) -> Path:
        """The directory of files that only this process uses: in the database, or a temporary one."""
        if self.directory is not None:
            return self.directory
        made = make_folder("local")
        self._made_here = made
        atexit.register(self.close)
        for name in _LOCAL:
            (made / name).mkdir()
        return made

    def close(self) -> None:
        """Deletes the files that only this process used. May be called again."""
        made, self._made_here = self._made_here, None
        if made is not None:
            remove_folder(made)
            atexit.unregister(self.close)

    @property
    def intents(self) -> Path:
        """The directory of intents."""
        return self.local / "intents"

    @property
    def checkpoint(self) -> Path:
        """The directory of the checkpoints of streaming queries."""
        return self.local / "checkpoint"

    def seal(self, path: AnyPath, value: Any) -> bytes:
        """The content for the file `path` of this database, from which `unseal` returns `value` (JSON)."""
        return self.seal_text(path, json.dumps(value, separators=(",", ":")))

    def seal_text(self, path: AnyPath, text: str) -> bytes:
        """Like `seal`, for a value in compact JSON."""
        return _sealed(text, self._place(path), self.id)

    def unseal(self, path: AnyPath) -> Any:
        """The value in the file `path`.

        Raises FileNotFoundError without this file, and DATABASE_DAMAGED if its content is not what was written under
        this name.
        """
        return self.unsealed(path, storage.read_file(path))

    def unsealed(self, path: AnyPath, data: bytes) -> Any:
        """The value in `data`, the content of the file `path`. Raises DATABASE_DAMAGED like `unseal`."""
        return _unsealed(data, self._place(path), self.id)

    def _place(self, path: AnyPath) -> str:
        return f"{path.parent.name}/{path.name}"

    def commit(self, number: int) -> AnyPath:
        """The manifest of commit `number`."""
        return self.commits / f"{number:012d}.json"

    def catalog(self, name: str) -> AnyPath:
        """The catalog with that name in commits."""
        return self.catalogs / f"{check_name(name)}.json"

    def low_water(self, number: int) -> AnyPath:
        """The file that announces low-water mark `number`."""
        return self.low_waters / f"{number:012d}.json"

    def segment(self, name: str) -> AnyPath:
        """The path of a segment or run file."""
        return (self.main / "segments" if name in self.shared else self.segments) / check_name(name)

    def snapshot_manifest(self, number: int) -> AnyPath:
        """The checkpoint of the content up to commit `number`."""
        return self.snapshots / f"{number:012d}.json"

    def circuit(self, fingerprint: str) -> AnyPath:
        """The compiled circuit with that fingerprint."""
        return self.plans / f"{check_name(fingerprint)}.json"

    def plan(self, relation_id: str, writer: int) -> AnyPath:
        """The compiled plan of one relation, as stored by a writer."""
        return writer_file(self.plans, check_id(relation_id), writer)

    def intent(self, epoch: int) -> Path:
        """The input of epoch `epoch`."""
        return self.intents / f"{epoch:012d}.json"

    def secret(self, name: str) -> AnyPath:
        """The file of a secret."""
        return self.secrets / f"{urllib.parse.quote(name, safe='').replace('.', '%2E')}.json"

    def _secret_value(self, name: str) -> str:
        try:
            return str(self.unseal(self.secret(name)))
        except FileNotFoundError:
            raise error("UNDEFINED_OBJECT", f'secret "{name}" does not exist') from None

    def dead(self, relation_id: str) -> AnyPath:
        """The directory of the dead letters of a relation, which may not exist."""
        return self.root / "dead" / check_id(relation_id)

    def dead_directories(self) -> list[Path]:
        """The existing directories of dead letters; none in an object store."""
        return [] if self.directory is None else [p for p in (self.directory / "dead").iterdir() if p.is_dir()]

    def _read_format(self) -> str | None:
        """The id of the existing database; None if one can be created."""
        if isinstance(self.root, Path) and self.root.exists() and not self.root.is_dir():
            raise error("DATABASE_FORMAT", f"{self.root} is not a directory")
        try:
            text = storage.read_file(self._format)
        except FileNotFoundError:
            if not self._is_free():
                raise error(
                    "DATABASE_FORMAT",
                    f"{self.root} is not empty and holds no Watersmeet database",
                    hint="Choose a path that does not exist yet, or an empty directory.",
                ) from None
            return None
        try:
            value = json.loads(text)
            version = int(value["format"])
            is_read = OLDEST_FORMAT_VERSION <= version <= DATABASE_FORMAT_VERSION
            found = str(value["id"]) if is_read else ""
            self.format = version
            self._is_fork = bool(value.get("fork"))
            is_whole = value.get("check") in (None, _format_check(version, value.get("id")))
        except (ValueError, KeyError, TypeError, AttributeError) as cause:
            raise error("DATABASE_DAMAGED", f"cannot read {self._format}") from cause
        if not is_whole:
            raise error("DATABASE_DAMAGED", f"{self._format} differs from the written content")
        if not is_read:
            newer = version > DATABASE_FORMAT_VERSION
            raise error(
                "DATABASE_FORMAT",
                f"the database at {self.root} has format {version}, {'newer' if newer else 'older'} than "
                f"format {DATABASE_FORMAT_VERSION} of this release",
                hint="Use the release of Watersmeet that wrote it"
                + (", or a newer one" if newer else ": write its statements by SHOW CREATE and its rows by COPY")
                + ". Nothing was changed.",
            )
        return found

    def upgrade(self) -> None:
        """Gives a database of an older format the present one, which older releases refuse."""
        storage.replace_file(self._format, format_text(self.id, fork=self._is_fork), durable=self.durable)
        self.format = DATABASE_FORMAT_VERSION

    def _is_free(self) -> bool:
        """Whether a database can be created at this path."""
        if isinstance(self.root, ObjectPath):
            return databasefiles.is_empty(self.root)
        return not (self.root.exists() and files.list_names(self.root))

    def _refuse_missing_fork(self) -> None:
        """Raises UNDEFINED_OBJECT at a path that only a fork of an existing database may have."""
        if self.root.parent.name != "forks":
            return
        if storage.exists(self.main / "FORMAT"):
            raise error(
                "UNDEFINED_OBJECT",
                f'fork "{self.root.name}" of the database at {self.main} does not exist',
                hint="Run CREATE FORK in that database; SHOW FORKS lists its forks.",
            )

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """A context in which errors of a fork that was dropped meanwhile become UNDEFINED_OBJECT."""
        try:
            yield
        except Exception:
            self.require_fork()
            raise

    def require_fork(self) -> None:
        """Raises UNDEFINED_OBJECT if this fork was dropped after it had been found."""
        if self._is_fork and not storage.exists(self._format):
            self._refuse_missing_fork()

    def _create(self, permissions: FilePermissions) -> str:
        if isinstance(self.root, Path):
            make_root(self.root, permissions)
        # FORMAT is written first, so a non-empty directory without it is not a database.
        with contextlib.suppress(FileExistsError):  # Another process created its database meanwhile.
            storage.create_file(self._format, format_text(secrets.token_hex(8)), durable=self.durable)
        self._make_directories()
        found = self._read_format()
        assert found is not None
        return found

    def _make_directories(self) -> None:
        if isinstance(self.root, ObjectPath):
            return
        missing = sorted({*DIRECTORIES} - {*os.listdir(self.root)})
        try:
            for name in missing:
                storage.make_directory(self.root / name)
        except OSError as cause:
            if cause.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            lacks = f"the database at {self.root} lacks the folders {', '.join(missing)}"
            raise error("DATABASE_DAMAGED", lacks, detail=str(cause)) from cause
        if self.durable and missing:
            storage.sync_directory(self.root)


def format_text(identity: str, *, fork: bool = False) -> bytes:
    """The content of FORMAT. fork: whether the database is a fork."""
    value = {"format": DATABASE_FORMAT_VERSION, "id": identity} | ({"fork": True} if fork else {})
    return f"{json.dumps({**value, 'check': _format_check(DATABASE_FORMAT_VERSION, identity)})}\n".encode()


def fork_file(folder: AnyPath, name: str) -> AnyPath:
    """The file of the main database that records a fork. folder: its folder `forks`."""
    return folder / check_name(f"{name}.json")


def _format_check(version: int, identity: object) -> str:
    """A checksum of FORMAT, so that one flipped bit never looks like another version."""
    return f"{zlib.crc32(f'{version} {identity}'.encode()):08x}"


def make_root(root: Path, permissions: FilePermissions) -> None:
    """Creates the directory of a database."""
    private = permissions == "private"
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            root.mkdir(0o700 if private else 0o777)
        if private and root.stat().st_mode & 0o077:
            root.chmod(0o700)
    except OSError as cause:
        raise files.failure(cause, root) from cause


def _sealed(value: str, place: str, database: str) -> bytes:
    """JSON with its location: a line with the place, `value` (compact JSON), and the checksum of both.

    place: the folder and the name. database: the id of the database.
    """
    header = json.dumps({"file": place, "database": database}, separators=(",", ":"))
    text = f"{header}\n{value}".encode()
    return b"%s\n%08x\n" % (text, zlib.crc32(text))


def _unsealed(data: bytes, place: str, database: str) -> Any:
    """The inverse of `_sealed`. Raises DATABASE_DAMAGED, naming the file, for a wrong checksum or a copy of another
    file.
    """
    text, _, checksum = data.rstrip(b"\n").rpartition(b"\n")
    header, _, value = text.partition(b"\n")
    if not value or checksum != b"%08x" % zlib.crc32(text):
        raise error("DATABASE_DAMAGED", f"{place} is damaged: its checksum does not match its content")
    said = json.loads(header)
    if said["file"] != place:
        raise error("DATABASE_DAMAGED", f"{place} is damaged: its content is that of {said['file']}")
    if said["database"] != database:
        raise error("DATABASE_DAMAGED", f"{place} is damaged: it is a file of another database")
    return json.loads(value)


#: Where Databricks mounts object stores.
_OF_DATABRICKS: Final = ("/Volumes/", "/dbfs/")

#: The object that tests whether a store has conditional writes.
_PROBE: Final = "PROBE"


def check_storage(layout: Layout) -> None:
    """Raises FILE_SYSTEM_UNSUITABLE, with the reason, unless the database's directory or object store meets the
    requirements. Raises DATABASE_ACCESS if files can't be created or deleted.

    Required: a hard link never replaces a file, and is the same file as its target; a rename replaces a file; another
    descriptor sees a lock; a directory's entries can be flushed. All test files are deleted.
    """
    if layout.directory is None:
        _check_objects(layout)
        return
    with _named(layout.directory) as (first, second):
        for problem, works in (
            ("a hard link replaces a file, or fails", _links),
            ("a rename does not replace a file", _renames),
            ("a lock on a file is not seen by others", _locks),
        ):
            try:
                fine = works(first, second)
            except OSError as cause:
                if cause.errno in files.FULL:
                    raise files.failure(cause, layout.directory) from cause
                raise _unsuitable(layout, problem, cause.strerror) from cause
            if not fine:
                raise _unsuitable(layout, problem, None)
        if layout.durable:
            try:
                files.sync_directory(layout.directory)
            except Exception as cause:
                raise _unsuitable(layout, "a directory can't be flushed", str(cause)) from cause


@contextlib.contextmanager
def _named(directory: Path) -> Iterator[tuple[Path, Path]]:
    """The paths of two temporary files, each with its own name as content. They are deleted afterwards."""
    paths = files.temporary_path(directory), files.temporary_path(directory)
    try:
        for path in paths:
            files.write_new(path, path.name.encode())
        yield paths
    except OSError as cause:
        raise files.failure(cause, directory) from cause
    finally:
        for path in paths:
            files.discard(path)


def _check_objects(layout: Layout) -> None:
    """Checks the object store. Some stores with the protocol of S3 replace an object although a request may only create
    it.
    """
    # This object stays: if it were deleted, each killed process would leave another one.
    probe = layout.root / _PROBE
    for _ in range(2):  # only the first process creates it
        try:
            storage.create_file(probe, secrets.token_hex(8).encode(), durable=True)
        except FileExistsError:
            return
    raise error(
        "FILE_SYSTEM_UNSUITABLE",
        f"the object store of {layout.root} can't hold a database: it replaces an object that was to be created",
        hint="Use a store that obeys the header If-None-Match of a PUT.",
    )


def _links(first: Path, second: Path) -> bool:
    try:
        os.link(first, second)
    except FileExistsError:
        os.unlink(second)
        os.link(first, second)
        return os.path.samefile(first, second)
    return False


def _renames(first: Path, second: Path) -> bool:
    os.unlink(second)
    files.write_new(second, second.name.encode())
    os.replace(first, second)
    return files.read_file(second) == first.name.encode() and not files.exists(first)


def _locks(first: Path, second: Path) -> bool:
    del first
    handles = [os.open(second, os.O_RDWR), os.open(second, os.O_RDWR)]
    try:
        fcntl.flock(handles[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(handles[1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
    finally:
        for handle in handles:
            os.close(handle)


def _unsuitable(layout: Layout, problem: str, cause: str | None) -> Exception:
    return error(
        "FILE_SYSTEM_UNSUITABLE",
        f"the file system of {layout.root} can't hold a database: {problem}",
        detail=None if cause is None else f"The system says: {cause}.",
        hint="Put the database on a local disk, or on another file system with hard links, atomic renames and locks."
        if not str(layout.root).startswith(_OF_DATABRICKS)
        else "Give the URL of the folder's store, such as s3://bucket/shop: DBFS and volumes are no file systems.",
    )


_FILE: Final = "LOCK"
_PAUSES_S: Final = (0.001, 0.01, 0.05)


class WriterLock:
    """The lock of a database's writer, held from construction to `release()`.

    breaks: takes the lock even if another process holds it, which the log then excludes. Otherwise raises
    DATABASE_IN_USE, naming the process. A second lock in the same process counts as another process.
    """

    def __init__(self, layout: Layout, *, breaks: bool = False) -> None:
        self._handle: int | None = None
        if layout.directory is None:
            return
        self._path = layout.directory / _FILE
        try:
            handle = self._open(layout.directory)
            if breaks and not _lock(handle):
                os.close(handle)
                self._path.unlink(missing_ok=True)  # the other process keeps the lock of a file without a name
                handle = self._open(layout.directory)
        except OSError as cause:
            raise files.failure(cause, self._path) from cause
        if not _lock(handle):
            os.close(handle)
            raise error(
                "DATABASE_IN_USE",
                f"the database at {layout.root} is in use by {_holder(self._path)}",
                hint=f"Read it meanwhile with: watersmeet query 'SELECT …' --path {layout.root}",
            )
        self._handle = handle
        self.note()

    def note(self, port: int | None = None) -> None:
        """Writes to the lock's file which process holds it. port: the port at which the process serves clients."""
        if self._handle is None:
            return
        text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "port": port}) + "\n"
        with contextlib.suppress(OSError):  # a full disk must not prevent locking
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, text.encode(), 0)

    def _open(self, directory: Path) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT, files.rights(directory))

    def release(self) -> None:
        """Releases the lock. May be called again."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


def has_writer(root: AnyPath) -> bool | None:
    """Whether a process has the database at a path open for writing; None if that is unknown, as in an object store."""
    if isinstance(root, ObjectPath):
        return None
    try:
        handle = os.open(root / _FILE, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not files.try_lock(handle, shared=True)
    finally:
        os.close(handle)


def writer_port(root: AnyPath) -> int | None:
    """The port at which the process that writes the database serves clients; None if it serves none, or is unknown."""
    if isinstance(root, ObjectPath):
        return None
    port = _noted(root / _FILE).get("port")
    return port if isinstance(port, int) else None


def _noted(path: Path) -> dict[str, Any]:
    """The values that the holder of a lock has written; empty if they can't be read."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _lock(handle: int) -> bool:
    """Takes the lock. False if another process holds it for longer than `has_writer` does."""
    for pause_s in _PAUSES_S:
        if files.try_lock(handle):
            return True
        time.sleep(pause_s)
    return files.try_lock(handle)


def _holder(path: Path) -> str:
    value = _noted(path)
    if not value:
        return "another process"
    if value.get("pid") == os.getpid():
        return f"another connection of this process (pid {os.getpid()})"
    return f"process {value.get('pid')} on host {value.get('host')}"
