"""What this process knows of the content outside of the database: its readers, and as what it was last read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from watersmeet.catalog import External
from watersmeet.database.locks import lock
from watersmeet.database.problems import Problems
from watersmeet.lazyimport import lazy_import
from watersmeet.types import Schema

if TYPE_CHECKING:
    from watersmeet.connectors import registry as readers
    from watersmeet.connectors.base.readers import Reader
else:
    readers = lazy_import("watersmeet.connectors.registry")


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
        self._given: dict[tuple[str, str], readers.GivenReader] = {}

    def give(self, kind: str, name: str, columns: Schema, rows: Sequence[Sequence[str | None]]) -> None:
        """For tests: these rows (as texts) are the content of table `name` in a system of that kind."""
        self._given[kind, name] = readers.GivenReader(columns, rows)

    def reader(self, external: External, what: str = "an external table") -> Reader:
        """The reader of a content. CONNECTOR_OPTION, FEATURE_NOT_SUPPORTED for a kind that has none."""
        given = self._given.get((external.kind, external.name))
        if given is not None:
            return given
        readers.check_kind(external.kind, sorted(readers.READERS), what)
        return readers.READERS[external.kind](external)
