"""The file system below a database: whether it can hold one, and the writer's lock.

The writer's lock: at most one process writes a database. It goes with the process, however that ends.

It is a courtesy: a second process is told at once, and who has the database. What keeps two writers apart where locks
don't hold is the commit log. Object stores have no locks: there the process that opens a database last writes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from watersmeet.errors import error
from watersmeet.objectstores import storage
from watersmeet.store.layout import Layout
from watersmeet.system import files

#: The object by which it is tested whether a store obeys.
_PROBE: Final = "PROBE"


def check_storage(layout: Layout) -> None:
    """FILE_SYSTEM_UNSUITABLE, saying what failed, unless the database's directory or object store does what the store
    builds on. DATABASE_ACCESS if files can't be made or deleted there.

    A hard link never takes the place of a file and is the file that it was made from; a rename replaces; a lock is seen
    through another descriptor; the entries of a directory can be flushed. Nothing is left behind.
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
    """Two files, the name of the first and the name of the second in it, that are gone afterwards."""
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
    """Some stores that speak the protocol of S3 replace an object that a request only wants to create."""
    # It stays: of others, which are taken away, a process that is killed would leave one each time.
    probe = layout.root / _PROBE
    with contextlib.suppress(FileExistsError):
        storage.create_file(probe, secrets.token_hex(8).encode(), durable=True)
    try:
        storage.create_file(probe, secrets.token_hex(8).encode(), durable=True)
    except FileExistsError:
        pass
    else:
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
        hint="Put the database on a local disk, or on another file system with hard links, atomic renames and locks.",
    )


_FILE: Final = "LOCK"
_PAUSES_S: Final = (0.001, 0.01, 0.05)


class WriterLock:
    """Held from construction to `release()`. DATABASE_IN_USE, naming the process, if another one holds it.

    A second connection of the same process is another one, too.
    """

    def __init__(self, layout: Layout) -> None:
        self._handle: int | None = None
        if layout.directory is None:
            return
        self._path = layout.directory / _FILE
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT, files.rights(layout.directory))
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
        text = json.dumps({"pid": os.getpid(), "host": socket.gethostname()}) + "\n"
        with contextlib.suppress(OSError):  # The text is for messages only: a full disk must not keep us out.
            os.ftruncate(handle, 0)
            os.pwrite(handle, text.encode(), 0)

    def release(self) -> None:
        """Lets others write. May be called again."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


def has_writer(layout: Layout) -> bool | None:
    """Whether a process has the database open for writing; None if nobody can tell, as in an object store."""
    if layout.directory is None:
        return None
    try:
        handle = os.open(layout.directory / _FILE, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not files.try_lock(handle, shared=True)
    finally:
        os.close(handle)


def _lock(handle: int) -> bool:
    """Takes the lock; False if another one has it for longer than `has_writer` takes."""
    for pause_s in _PAUSES_S:
        if files.try_lock(handle):
            return True
        time.sleep(pause_s)
    return files.try_lock(handle)


def _holder(path: Path) -> str:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return "another process"
    if value.get("pid") == os.getpid():
        return f"another connection of this process (pid {os.getpid()})"
    return f"process {value.get('pid')} on host {value.get('host')}"
