"""What the sources remember, on disk: a file a relation, and up to which commit they are right.

Those of the newest writer count.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from watersmeet import files
from watersmeet.errors import error
from watersmeet.runtime.database import Database
from watersmeet.store.layout import WriterFile, writer_file, writer_files

_COMMIT: Final = "COMMIT"


class Saved:
    """The files of one database, as its writer has them. Not thread-safe."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def path(self, relation_id: str) -> Path:
        """Where this writer saves what the source of a relation remembers."""
        return writer_file(self._db.layout.sources, relation_id, self._db.log.writer, ".saved")

    def newest(self, relation_id: str) -> Path | None:
        """What was saved last for a relation; None if nothing was."""
        return next((f.path for f in reversed(self._files()) if f.id == relation_id), None)

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
        own = {f.id for f in found if f.writer == self._db.log.writer}
        files.remove_files(f.path for f in found if f.id in own and f.writer < self._db.log.writer)

    def forget(self, kept: Iterable[str]) -> None:
        """Deletes what was saved for relations that are not among `kept`."""
        names = {_COMMIT, *kept}
        files.remove_files(f.path for f in self._files() if f.id not in names)

    def _files(self) -> list[WriterFile]:
        return writer_files(self._db.layout.sources)
