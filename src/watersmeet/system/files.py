"""Writes, publishes and deletes files of a database.

A file appears complete under its name or not at all. durable: it also survives a loss of power, as the file and its
directory entry are flushed before the call returns. Files and directories inherit the permissions of their directory,
within the umask: a private directory (0700) has private files (0600).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from watersmeet.errors import Error, error

#: The prefix of the names of unfinished files, which only the clean-up at start reads.
TEMPORARY: Final = ".tmp-"

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_counter = itertools.count()
#: A random part of names, because process ids are not unique across machines and containers.
_TOKEN: Final = os.urandom(6).hex()

#: The maximum number of buffers of one writev that all systems support.
_WRITEV_BUFFERS: Final = 512
#: The size of one direct write, which bypasses the page cache.
_DIRECT_BYTES: Final = 1 << 20

Bytes = bytes | memoryview


def failure(cause: OSError, path: Path) -> Error:
    """The error for an OSError at a path."""
    if cause.errno in FULL:
        return error(
            "DISK_FULL",
            f"no space left for {path.name}",
            detail=f"Writing in {path.parent} failed.",
            hint="Free some space and try again: nothing of the failed step was kept.",
        )
    reason = os.strerror(cause.errno) if cause.errno else str(cause)
    return error("DATABASE_ACCESS", f"cannot access {path}: {reason}")


def temporary_path(directory: Path) -> Path:
    """A name in `directory` that is unique across threads, processes and machines."""
    return directory / f"{TEMPORARY}{_TOKEN}-{os.getpid()}-{next(_counter)}"


def replace_file(path: Path, data: Bytes, *, durable: bool, private: bool = False) -> None:
    """Replaces the content of `path` atomically. private: as in `create_file`."""
    temporary = temporary_path(path.parent)
    with _cleaning(temporary, path):
        _write(temporary, [data], durable=durable, mode=0o600 if private else None)
        os.replace(temporary, path)
        if durable:
            sync_directory(path.parent)


def create_file(path: Path, data: Bytes, *, durable: bool, private: bool = False) -> None:
    """Creates a file atomically. Raises FileExistsError if the name is taken. Exactly one of several callers succeeds.

    private: whether only the user of this process can read it. The caller flushes the directory (`sync_directory`), to
    distinguish a missing file from one that is not yet durable.
    """
    temporary = temporary_path(path.parent)
    with _cleaning(temporary, path):
        _write(temporary, [data], durable=durable, mode=0o600 if private else None)
        os.link(temporary, path)
    discard(temporary)


def link(source: Path, target: Path) -> None:
    """Gives an immutable file a second path in the same file system, which may exist already."""
    with _cleaning(source, target), contextlib.suppress(FileExistsError):
        os.link(source, target)


def write_new(path: Path, data: Bytes) -> None:
    """Creates the file `path`, but not atomically: readers may see it unfinished. Raises OSError."""
    _write(path, [data], durable=False)


def make_directory(path: Path) -> None:
    """Creates a directory and its parents if missing, with the permissions of their parents."""
    try:
        os.mkdir(path, os.stat(path.parent).st_mode & 0o777)
    except FileExistsError:
        pass
    except FileNotFoundError:
        make_directory(path.parent)
        make_directory(path)
    except OSError as cause:
        raise failure(cause, path) from cause


def rights(directory: Path) -> int:
    """The mode of a new file in `directory`."""
    return os.stat(directory).st_mode & 0o666


def publish_content(path: Path, pieces: Sequence[Bytes], *, durable: bool, direct: bool = False) -> None:
    """Writes the joined `pieces` to `path`, whose name is derived from the content.

    An existing file with that name and size is kept, because it has that content from an earlier attempt. The caller
    flushes the directory. direct: bypass the page cache where possible, for content that is not read soon.
    """
    with contextlib.suppress(OSError):
        if os.stat(path).st_size == sum(len(p) for p in pieces):
            return
    temporary = temporary_path(path.parent)
    with _cleaning(temporary, path):
        _write(temporary, pieces, durable=durable, direct=direct)
        os.replace(temporary, path)


def publish_file(temporary: Path, path: Path, *, durable: bool) -> None:
    """Renames a finished file, which a library has written. The caller flushes the directory."""
    with _cleaning(temporary, path):
        os.chmod(temporary, rights(path.parent))
        if durable:
            sync_file(temporary)
        os.replace(temporary, path)


def sync_directory(directory: Path) -> None:
    """Flushes the entries of `directory`."""
    try:
        sync_file(directory)
    except OSError as cause:
        raise failure(cause, directory) from cause


def remove_files(paths: Iterable[Path]) -> int:
    """Deletes the existing files of `paths`, in order. Returns their number."""
    removed = 0
    for path in paths:
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue
        except OSError as cause:
            raise failure(cause, path) from cause
        removed += 1
    return removed


def list_names(directory: Path) -> list[str]:
    """The names of the finished files in `directory`, sorted."""
    return sorted(name for name in os.listdir(directory) if not name.startswith("."))


def remove_temporaries(directory: Path) -> int:
    """Deletes unfinished files of crashed processes. Only for the writer, before it starts."""
    return remove_files(directory / n for n in os.listdir(directory) if n.startswith(TEMPORARY))


def read_file(path: Path) -> bytes:
    """The content of `path`. Raises FileNotFoundError."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise
    except OSError as cause:
        raise failure(cause, path) from cause


def try_lock(handle: int, *, shared: bool = False) -> bool:
    """Locks an open file, without waiting, until the handle is closed. False if another handle holds the lock."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def exists(path: Path) -> bool:
    """Whether `path` exists."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


@contextlib.contextmanager
def _cleaning(temporary: Path, path: Path) -> Iterator[None]:
    """A context that converts OSError to `Error`, and deletes the unfinished file after an error."""
    try:
        yield
    except FileExistsError:
        discard(temporary)
        raise
    except OSError as cause:
        discard(temporary)
        raise failure(cause, path) from cause


def discard(path: Path) -> None:
    """Deletes an unfinished file; errors are ignored."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def _write(
    path: Path, pieces: Sequence[Bytes], *, durable: bool, mode: int | None = None, direct: bool = False
) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, rights(path.parent) if mode is None else mode)
    try:
        if direct:
            pieces = [_written_direct(handle, pieces)]
        write_all(handle, pieces)
        if durable:
            os.fsync(handle)
    finally:
        os.close(handle)


def _written_direct(handle: int, pieces: Sequence[Bytes]) -> memoryview:
    """Writes all whole blocks, bypassing the page cache. Returns the rest of `pieces`."""
    block, used = memoryview(mmap.mmap(-1, _DIRECT_BYTES)), 0  # this begins at a page, which is required
    _set_direct(handle, wanted=True)
    for piece in pieces:
        left = memoryview(piece).cast("B")
        while len(left):
            part = left[: _DIRECT_BYTES - used]
            block[used : used + len(part)] = part
            left, used = left[len(part) :], used + len(part)
            if used == _DIRECT_BYTES:
                _write_block(handle, block)
                used = 0
    _set_direct(handle, wanted=False)
    return block[:used]


def _write_block(handle: int, block: memoryview) -> None:
    """Writes a block of whole pages, bypassing the page cache if the file system accepts it."""
    try:
        written = os.write(handle, block)
    except OSError as cause:
        if cause.errno != errno.EINVAL:
            raise
        written = 0  # the file system requires another block size
    if written < len(block):
        _set_direct(handle, wanted=False)
        write_all(handle, [block[written:]])


def _set_direct(handle: int, *, wanted: bool) -> None:
    """Switches direct writes on or off, on systems that support them."""
    flag = getattr(os, "O_DIRECT", 0)
    before = fcntl.fcntl(handle, fcntl.F_GETFL)
    with contextlib.suppress(OSError):
        fcntl.fcntl(handle, fcntl.F_SETFL, before | flag if wanted else before & ~flag)


def write_all(handle: int, pieces: Sequence[Bytes]) -> None:
    """Writes everything, although one call may only write a part (at most 2 GiB, or the last free blocks). Raises
    OSError.
    """
    views = [memoryview(p).cast("B") for p in pieces if len(p)]
    while views:
        written = os.writev(handle, views[:_WRITEV_BUFFERS])
        while views and written >= len(views[0]):
            written -= len(views[0])
            views.pop(0)
        if written:
            views[0] = views[0][written:]


def sync_file(path: Path) -> None:
    """Makes the content of a file, or the entries of a directory, survive a loss of power. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def copy_bytes(source: BinaryIO, target: BinaryIO, size_bytes: int) -> None:
    """Copies the first bytes of a file. Raises DATABASE_DAMAGED if it is shorter."""
    while size_bytes:
        block = source.read(min(size_bytes, 1 << 20))
        if not block:
            raise error("DATABASE_DAMAGED", f"{source.name} is shorter than it was")
        target.write(block)
        size_bytes -= len(block)
