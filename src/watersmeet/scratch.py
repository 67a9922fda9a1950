"""Folders for what a process needs only while it lives: where queries spill, where Spark works.

A process that is killed can't remove its folders. So each has a file that its process keeps locked, and who makes its
first folder removes those of processes that are gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PREFIX: Final = "watersmeet-"
_LOCK: Final = ".owner"

_guard: Final = threading.Lock()
_locks: Final[dict[Path, int]] = {}
"""By folder of this process, the file that it keeps locked."""
_swept: Final[set[str]] = set()
"""Where folders of others were looked for."""


def make_folder(what: str) -> Path:
    """An empty folder among the temporary files of the machine, until `remove_folder`. what: is part of its name."""
    place = tempfile.gettempdir()
    with _guard:
        if place not in _swept:
            _swept.add(place)
            _sweep(place)
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{what}-"))
    new = folder / f"{_LOCK}.new"
    lock = os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    new.rename(folder / _LOCK)  # nobody ever sees it unlocked
    with _guard:
        _locks[folder] = lock
    return folder


def remove_folder(folder: Path) -> None:
    """Deletes a folder of `make_folder` with all that is in it. May be called again."""
    shutil.rmtree(folder, ignore_errors=True)
    with _guard:
        lock = _locks.pop(folder, None)
    if lock is not None:
        os.close(lock)


@contextlib.contextmanager
def scratch_folder(what: str) -> Iterator[Path]:
    """A folder as of `make_folder`, which is removed at the end of the block."""
    folder = make_folder(what)
    try:
        yield folder
    finally:
        remove_folder(folder)


def _sweep(place: str) -> None:
    """Removes the folders of this user's processes that are gone."""
    with contextlib.suppress(OSError), os.scandir(place) as found:
        for entry in found:
            if entry.name.startswith(_PREFIX):
                with contextlib.suppress(OSError):  # it is no folder of ours, or its process is there
                    _remove_abandoned(Path(entry.path))


def _remove_abandoned(folder: Path) -> None:
    """Removes a folder whose process is gone. OSError for any other one."""
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        if os.fstat(lock).st_uid == os.getuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
