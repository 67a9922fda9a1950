"""What the sources remember, on disk: a file a relation, and up to which commit they are right.

Those of the newest writer count.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from watersmeet import files, storage
from watersmeet.connectors.base.sources import Source
from watersmeet.runtime.database import Database
from watersmeet.storage import Place
from watersmeet.store.layout import WriterFile, writer_file, writer_files

_COMMIT: Final = "COMMIT"
_logger: Final = logging.getLogger(__name__)


class Saved:
    """The files of one database, as its writer has them. Not thread-safe."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def save(self, relation_id: str, source: Source) -> None:
        """Saves what the source of a relation remembers."""
        path = self._path(relation_id)
        local = self._local(path)
        source.save(local)
        if local != path:
            storage.replace_file(path, local.read_bytes(), durable=self._db.layout.durable)

    def load(self, relation_id: str, source: Source) -> None:
        """Lets the source of a relation remember what was saved last, if anything was."""
        path = self._newest(relation_id)
        if path is not None:
            local = self._local(path)
            if local != path:
                files.make_directory(local.parent)
                files.replace_file(local, storage.read_file(path), durable=False)
            source.load(local)

    def _path(self, relation_id: str) -> Place:
        return writer_file(self._db.layout.sources, relation_id, self._db.log.writer, ".saved")

    def _newest(self, relation_id: str) -> Place | None:
        return next((f.path for f in reversed(self._files()) if f.id == relation_id), None)

    def _local(self, path: Place) -> Path:
        """The file that sources read and write for one that may be in an object store."""
        return path if isinstance(path, Path) else self._db.layout.local / "sources" / path.name

    def read_commit(self) -> int:
        """The commit up to which what was saved is right; 0 if nothing was saved, or the file is damaged."""
        path = self._newest(_COMMIT)
        try:
            return 0 if path is None else int(json.loads(storage.read_file(path))["commit"])
        except (ValueError, KeyError, TypeError):
            _logger.warning("cannot read sources/%s of the database", path and path.name)
            return 0

    def write_commit(self, commit: int) -> None:
        """What this writer saved is right up to that commit: what writers before it saved of the same goes."""
        layout = self._db.layout
        storage.replace_file(self._path(_COMMIT), json.dumps({"commit": commit}).encode(), durable=layout.durable)
        found = self._files()
        own = {f.id for f in found if f.writer == self._db.log.writer}
        storage.remove_files(f.path for f in found if f.id in own and f.writer < self._db.log.writer)

    def forget(self, kept: Iterable[str]) -> None:
        """Deletes what was saved for relations that are not among `kept`, but by no later writer."""
        names, writer = {_COMMIT, *kept}, self._db.log.writer
        storage.remove_files(f.path for f in self._files() if f.id not in names and f.writer <= writer)

    def _files(self) -> list[WriterFile]:
        return writer_files(self._db.layout.sources)
