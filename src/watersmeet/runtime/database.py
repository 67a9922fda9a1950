"""The parts of an open database that the runtime works with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from watersmeet.catalog import Catalog, Relation
from watersmeet.circuit.circuit import Circuit
from watersmeet.objectstores import databasefiles
from watersmeet.objectstores.base import ObjectPath
from watersmeet.runtime.clock import Clock
from watersmeet.store.commits import CommitLog
from watersmeet.store.layout import Layout
from watersmeet.store.packfiles import PackFiles

#: Names the columns of an operator of a circuit for messages; the operators that are given are shown as relations.
ColumnNames = Callable[[Circuit, Catalog, Mapping[str, Relation], str], Sequence[str]]


def positions(circuit: Circuit, catalog: Catalog, leaves: Mapping[str, Relation], operator_id: str) -> Sequence[str]:  # noqa: ARG001
    """The names that the operator itself has: c0, c1, …"""
    return [f.name for f in circuit.by_id[operator_id].schema]


class SentRequests:
    """What this process asks an object store for."""

    def __init__(self, layout: Layout) -> None:
        self._space = layout.root.space if isinstance(layout.root, ObjectPath) else ""
        self._counted = databasefiles.requests(self._space)

    def fresh(self) -> int:
        """How many requests it sent since the last call, for the files of the database; none for a directory."""
        before, self._counted = self._counted, databasefiles.requests(self._space)
        return self._counted - before


@dataclass(frozen=True)
class Database:
    """An open database. log: opened as its writer. catalog: gives the newest catalog.

    clock: gives the time of its epochs. column_names: how messages call columns. joins: the joins of each view, for one
    circuit and catalog (`limits`): they are asked for in every epoch.
    """

    layout: Layout
    log: CommitLog
    packs: PackFiles
    catalog: Callable[[], Catalog]
    clock: Clock = field(default_factory=Clock)
    column_names: ColumnNames = positions
    joins: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)

    @cached_property
    def requests(self) -> SentRequests:
        """What this process asks an object store for."""
        return SentRequests(self.layout)
