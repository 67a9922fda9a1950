"""Notes: what the writer tells other processes beside the commits, as JSON, most of it by relation id, in files.

Nothing depends on them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from watersmeet import storage
from watersmeet.errors import Error
from watersmeet.store.layout import Layout


class Note:
    """One of them. Not thread-safe."""

    def __init__(self, layout: Layout, name: str) -> None:
        self._path = layout.sources / name
        self._written = ""

    @property
    def is_written(self) -> bool:
        """Whether this process has written it."""
        return bool(self._written)

    def write(self, value: Mapping[str, Any]) -> None:
        """Writes what is new; never fails."""
        text = json.dumps(value, ensure_ascii=False, default=str)
        if text == self._written:
            return
        with contextlib.suppress(Error, OSError):
            storage.replace_file(self._path, text.encode(), durable=False)
            self._written = text

    def read(self) -> dict[str, Any]:
        """What the writer wrote last; empty if there is nothing to read."""
        try:
            found = json.loads(storage.read_file(self._path))
        except (Error, OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def discard(self) -> None:
        """Deletes what an earlier writer left."""
        storage.discard(self._path)
