"""Whether a file system or an object store can hold a database."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from watersmeet import files, storage
from watersmeet.errors import error
from watersmeet.store.layout import Layout

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
