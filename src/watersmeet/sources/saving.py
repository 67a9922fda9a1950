"""Files that are whole or absent, even after a power failure, with the rights of the directory that they are in."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from watersmeet.errors import Error, error

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_atomically(path: Path, text: str) -> None:
    """Replaces the file by one with this text; makes its directory if need be. DISK_FULL, DATABASE_ACCESS."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        make_directory(path.parent)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, file_rights(path.parent))
        with open(handle, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path)
    except OSError as cause:
        temporary.unlink(missing_ok=True)
        raise save_error(cause, path) from cause


def make_directory(path: Path) -> None:
    """Makes `path` and what is missing above it, with the rights of what is there."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(path.parent.stat().st_mode & 0o777, exist_ok=True)


def file_rights(directory: Path) -> int:
    """The mode of a new file in `directory`: the rights that the directory has."""
    return directory.stat().st_mode & 0o666


def save_error(cause: OSError, path: Path) -> Error:
    """What writing `path` failed with."""
    if cause.errno in _FULL:
        return error(
            "DISK_FULL",
            f"no space left for {path.name}",
            detail=f"Writing in {path.parent} failed.",
            hint="Free some space and try again: nothing of the failed step was kept.",
        )
    return error("DATABASE_ACCESS", f"cannot write {path}: {cause.strerror}")
