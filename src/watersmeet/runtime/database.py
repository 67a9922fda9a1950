"""The parts of an open database that the runtime uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from watersmeet.catalog import Catalog, Relation
from watersmeet.circuit.circuit import Circuit
from watersmeet.connectors.base.sources import Feed
from watersmeet.objectstores import databasefiles
from watersmeet.objectstores.base import ObjectPath
from watersmeet.store.commits import CommitLog
from watersmeet.store.layout import Layout
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.system.threads import Clock

#: A function that names the columns of an operator in messages. The operators in the mapping are shown as relations.
ColumnNames = Callable[[Circuit, Catalog, Mapping[str, Relation], str], Sequence[str]]


def positions(circuit: Circuit, catalog: Catalog, leaves: Mapping[str, Relation], operator_id: str) -> Sequence[str]:  # noqa: ARG001
    """The operator's own column names: c0, c1, …"""
    return [f.name for f in circuit.by_id[operator_id].schema]


class SentRequests:
    """The requests of this process to an object store."""

    def __init__(self, layout: Layout) -> None:
        self._space = layout.root.space if isinstance(layout.root, ObjectPath) else ""
        self._counted = databasefiles.requests(self._space)

    def fresh(self) -> int:
        """The number of requests for the database's files since the last call; 0 for a directory."""
        before, self._counted = self._counted, databasefiles.requests(self._space)
        return self._counted - before


@dataclass(frozen=True)
class Database:
    """An open database. log: opened as the database's writer. catalog: returns the newest catalog.

    clock: the clock of its epochs. column_names: names columns in messages. feed: the input of sources, in a fork.
    joins: the cache of `limits` with the joins of each view, for one circuit and catalog.
    """

    layout: Layout
    log: CommitLog
    segments: SegmentFiles
    catalog: Callable[[], Catalog]
    clock: Clock = field(default_factory=Clock)
    column_names: ColumnNames = positions
    feed: Feed | None = None
    joins: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)

    @cached_property
    def requests(self) -> SentRequests:
        """The requests of this process to an object store."""
        return SentRequests(self.layout)
