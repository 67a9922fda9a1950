"""Whether a directory lies on a file system that can hold a database."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from watersmeet import files
from watersmeet.errors import error
from watersmeet.store.layout import Layout


def check_file_system(layout: Layout) -> None:
    """FILE_SYSTEM_UNSUITABLE, saying what failed, unless the database's directory does what the store builds on.

    A hard link never takes the place of a file and is the file that it was made from; a rename replaces; a lock is seen
    through another descriptor; the entries of a directory can be flushed. Nothing is left behind.
    """
    with _named(layout) as (first, second):
        for problem, works in (
            ("a hard link replaces a file, or fails", _links),
            ("a rename does not replace a file", _renames),
            ("a lock on a file is not seen by others", _locks),
        ):
            try:
                fine = works(first, second)
            except OSError as cause:
                if cause.errno in files.FULL:
                    raise files.failure(cause, layout.root) from cause
                raise _unsuitable(layout, problem, cause.strerror) from cause
            if not fine:
                raise _unsuitable(layout, problem, None)
        if layout.durable:
            try:
                files.sync_directory(layout.root)
            except Exception as cause:
                raise _unsuitable(layout, "a directory can't be flushed", str(cause)) from cause


@contextlib.contextmanager
def _named(layout: Layout) -> Iterator[tuple[Path, Path]]:
    """Two files, the name of the first and the name of the second in it, that are gone afterwards."""
    paths = files.temporary_path(layout.root), files.temporary_path(layout.root)
    try:
        for path in paths:
            files.write_new(path, path.name.encode())
        yield paths
    except OSError as cause:
        raise files.failure(cause, layout.root) from cause
    finally:
        for path in paths:
            files.discard(path)


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
