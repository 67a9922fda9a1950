"""What the sources say of themselves, in a file: so that other processes can show it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from watersmeet.errors import Error
from watersmeet.runtime.database import Database
from watersmeet.sources.base import Source
from watersmeet.store import files

#: The file is written so often at most.
_INTERVAL_US: Final = 1_000_000


class Sayings:
    """The writer's side. Not thread-safe."""

    def __init__(self, db: Database) -> None:
        self._path = _path(db)
        self._next_us = 0
        self._written = ""

    def publish(self, sources: Mapping[str, Source], now_us: int) -> None:
        """Writes what is new; never fails, as nothing depends on it."""
        if now_us < self._next_us or not (sources or self._written):
            return
        self._next_us = now_us + _INTERVAL_US
        text = json.dumps({i: s.status() for i, s in sources.items()}, ensure_ascii=False, default=str)
        if text != self._written:
            with contextlib.suppress(Error, OSError):
                self._path.parent.mkdir(exist_ok=True)
                files.replace_file(self._path, text.encode(), durable=False)
                self._written = text


def read_sayings(db: Database) -> dict[str, dict[str, Any]]:
    """What the writer's sources said last, by relation id; empty if there is nothing to read."""
    try:
        found = json.loads(files.read_file(_path(db)))
    except (Error, OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _path(db: Database) -> Path:
    return db.layout.root / "sources" / "STATUS.json"
