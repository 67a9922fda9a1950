"""Files that are whole or absent, even after a power failure."""

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
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        with open(handle, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path)
    except OSError as cause:
        temporary.unlink(missing_ok=True)
        raise _failure(cause, path) from cause


def _failure(cause: OSError, path: Path) -> Error:
    if cause.errno in _FULL:
        return error("DISK_FULL", f"no space left for {path.name}", detail=f"Writing in {path.parent} failed.",
                     hint="Free some space and try again: nothing of the failed step was kept.")
    return error("DATABASE_ACCESS", f"cannot write {path}: {cause.strerror}")
