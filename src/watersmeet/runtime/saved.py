"""What the sources remember, on disk: a file a relation, and up to which commit they are right.

Each writer has files of its own, with its number in the name, so that a writer that was overtaken never changes those
of the one that goes on. Those of the newest writer count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from watersmeet import files
from watersmeet.errors import error
from watersmeet.runtime.database import Database

_COMMIT: Final = "COMMIT"
_NAME: Final = re.compile(r"(COMMIT|[a-z]+[0-9]+)-([0-9]+)\.saved\Z")


class Saved:
    """The files of one database, as its writer has them. Not thread-safe."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def path(self, relation_id: str) -> Path:
        """Where this writer saves what the source of a relation remembers."""
        return self._db.layout.sources / f"{relation_id}-{self._db.log.writer}.saved"

    def newest(self, relation_id: str) -> Path | None:
        """What was saved last for a relation; None if nothing was."""
        found = [(writer, path) for name, writer, path in self._files() if name == relation_id]
        return max(found)[1] if found else None

    def read_commit(self) -> int:
        """The commit up to which what was saved is right; 0 if nothing was saved."""
        path = self.newest(_COMMIT)
        try:
            return 0 if path is None else int(json.loads(files.read_file(path))["commit"])
        except (ValueError, KeyError, TypeError) as cause:
            raise error("DATABASE_DAMAGED", f"cannot read sources/{path and path.name} of the database") from cause

    def write_commit(self, commit: int) -> None:
        """What this writer saved is right up to that commit: what writers before it saved of the same goes."""
        layout = self._db.layout
        files.replace_file(self.path(_COMMIT), json.dumps({"commit": commit}).encode(), durable=layout.durable)
        found = self._files()
        own = {name for name, writer, _ in found if writer == self._db.log.writer}
        files.remove_files(path for name, writer, path in found if name in own and writer < self._db.log.writer)

    def forget(self, kept: Iterable[str]) -> None:
        """Deletes what was saved for relations that are not among `kept`."""
        names = {_COMMIT, *kept}
        files.remove_files(path for name, writer, path in self._files() if name not in names)

    def _files(self) -> list[tuple[str, int, Path]]:
        """(relation id or COMMIT, writer, path) of all files."""
        directory = self._db.layout.sources
        found = [m for name in files.list_names(directory) if (m := _NAME.match(name))]
        return [(m[1], int(m[2]), directory / m.string) for m in found]
