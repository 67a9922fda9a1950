"""The writer's lock: at most one process writes a database. It goes with the process, however that ends.

It is a courtesy: a second process is told at once, and who has the database. What keeps two writers apart where locks
don't hold is the commit log. Object stores have no locks: there the process that opens a database last writes it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Final

from watersmeet import files
from watersmeet.errors import error
from watersmeet.store.layout import Layout

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
