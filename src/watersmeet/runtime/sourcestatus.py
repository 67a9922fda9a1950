"""The status of the sources in a file, so that other processes can show it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from watersmeet.runtime.database import Database
from watersmeet.store.notes import Note

#: The file is written so often at most, in an object store less often: an epoch waits for the request.
_INTERVAL_US: Final = 1_000_000
_REMOTE_INTERVAL_US: Final = 10_000_000
_NAME: Final = "STATUS.json"


class SourceStatusFile:
    """The writer's side. Not thread-safe."""

    def __init__(self, db: Database) -> None:
        self._note = Note(db.layout, _NAME)
        self._interval_us = _REMOTE_INTERVAL_US if db.layout.directory is None else _INTERVAL_US
        self._next_us = 0

    def publish(self, status: Callable[[], dict[str, dict[str, Any]]], now_us: int, *, there_are: bool) -> None:
        """Writes what is new of the sources, if there are any; never fails, as nothing depends on it."""
        if now_us < self._next_us or not (there_are or self._note.is_written):
            return
        self._next_us = now_us + self._interval_us
        self._note.write(status())


def read_source_status(db: Database) -> dict[str, dict[str, Any]]:
    """The status that the writer's sources gave last, by relation id; empty if there is nothing to read."""
    return Note(db.layout, _NAME).read()
