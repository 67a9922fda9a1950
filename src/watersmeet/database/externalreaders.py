"""The readers of external content, the versions that were read last, and errors of relations that stop no view."""

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
    """Errors by relation id. Thread-safe.

    A new writer starts without errors, because it reads everything again. Read-only processes see the errors of the
    last writer.
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
        """Removes the error of a relation."""
        with self._lock:
            if self._found.pop(relation_id, None) is not None:
                self._status_file.write(self._values())

    def get(self, relation_id: str) -> Error | None:
        """The error of a relation."""
        with self._lock:
            return self._found.get(relation_id)

    def first(self) -> Error | None:
        """The oldest error."""
        with self._lock:
            return next(iter(self._found.values()), None)

    def to_json(self) -> dict[str, dict[str, Any]]:
        """All errors as JSON."""
        if self._read_only:
            return self._status_file.read()
        with self._lock:
            return self._values()

    def _values(self) -> dict[str, dict[str, Any]]:
        return {i: p.to_json() for i, p in self._found.items()}


class ExternalReaders:
    """Readers of external content by relation id, with the last read versions. A reading thread holds `lock`.

    problems: the error of the last failed read. versions: the versions of the stored content. checked_us: the time of
    the last check for changes.
    """

    def __init__(self, problems: Problems) -> None:
        self.lock = lock("external")
        self.problems = problems
        self.versions: dict[str, Any] = {}
        self.checked_us: dict[str, int] = {}

    def reader(self, external: External, what: str = "an external table") -> Reader:
        """The reader of an external relation. Raises CONNECTOR_OPTION, and FEATURE_NOT_SUPPORTED for a kind without a
        reader.
        """
        readers.check_kind(external.kind, sorted(readers.TABLES), what)
        return readers.TABLES[external.kind].open(external)
