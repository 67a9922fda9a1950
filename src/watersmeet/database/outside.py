"""External content: its readers, the versions read last, and the problems of relations that stop no view."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from watersmeet.catalog import External
from watersmeet.errors import Error
from watersmeet.store.layout import Layout
from watersmeet.store.positions import StatusFile
from watersmeet.system.process import lazy_import
from watersmeet.system.threads import lock

if TYPE_CHECKING:
    from watersmeet.connectors import registry as readers
    from watersmeet.connectors.base.sources import Reader
else:
    readers = lazy_import("watersmeet.connectors.registry")


class Problems:
    """Errors by relation id. Safe for several threads.

    The writer's are its own, those of the writer before are forgotten: it tries anew. Who only reads the database sees
    those of the last writer.
    """

    def __init__(self, layout: Layout, name: str, *, read_only: bool) -> None:
        self._status_file = StatusFile(layout, name)
        self._read_only = read_only
        self._found: dict[str, Error] = {}
        self._lock = threading.Lock()
        if not read_only:
            self._status_file.discard()

    def __setitem__(self, relation_id: str, problem: Error) -> None:
        with self._lock:
            self._found[relation_id] = problem
            self._status_file.write(self._values())

    def pop(self, relation_id: str) -> None:
        """The relation has no problem any more."""
        with self._lock:
            if self._found.pop(relation_id, None) is not None:
                self._status_file.write(self._values())

    def get(self, relation_id: str) -> Error | None:
        """The problem of a relation."""
        with self._lock:
            return self._found.get(relation_id)

    def first(self) -> Error | None:
        """That which has been there for the longest time."""
        with self._lock:
            return next(iter(self._found.values()), None)

    def to_json(self) -> dict[str, dict[str, Any]]:
        """All of them, as the JSON of errors."""
        if self._read_only:
            return self._status_file.read()
        with self._lock:
            return self._values()

    def _values(self) -> dict[str, dict[str, Any]]:
        return {i: p.to_json() for i, p in self._found.items()}


class Outside:
    """Readers, and by relation id what was read last. Whoever reads holds `lock`.

    problems: why a content could not be read when that was last tried. versions: of what the database has. checked_us:
    when it was last asked whether it has changed.
    """

    def __init__(self, problems: Problems) -> None:
        self.lock = lock("outside")
        self.problems = problems
        self.versions: dict[str, Any] = {}
        self.checked_us: dict[str, int] = {}

    def reader(self, external: External, what: str = "an external table") -> Reader:
        """The reader of a content. CONNECTOR_OPTION, FEATURE_NOT_SUPPORTED for a kind that has none."""
        readers.check_kind(external.kind, sorted(readers.TABLES), what)
        return readers.TABLES[external.kind].open(external)
