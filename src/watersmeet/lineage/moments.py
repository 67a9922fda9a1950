"""Commits, as the scans of a view see them: one, all that came up to now, or all of them at once.

The versions of a table's rows that a join keeps, as of an epoch: rows that a query can read.

They are read from the state itself, as nothing else has them. Of versions behind the watermarks the state has to keep
the newest of each key alone; others may still be there, and don't count: what is left of them says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import duckdb
import pyarrow as pa
from sqlglot import exp

from watersmeet.algebra.bounded import Past, PastScan
from watersmeet.algebra.nodes import Arrivals, Column, Node, Scan, Versions
from watersmeet.algebra.scalars import Scalar, column_ref
from watersmeet.algebra.trees import filtered
from watersmeet.catalog import Catalog, MaterializedView, Relation
from watersmeet.circuit import operators
from watersmeet.circuit.circuit import Circuit
from watersmeet.database.opened import OpenDatabase
from watersmeet.database.reading import conformed, lent
from watersmeet.kernel.operators.arrange import ROWS
from watersmeet.kernel.runs.shares import load
from watersmeet.lineage.asking import Asker
from watersmeet.lineage.history import (
    AGE,
    SPAN,
    History,
    arrived_name,
    newest_name,
    stayed_name,
    there_name,
)
from watersmeet.lineage.lookups import Since
from watersmeet.lineage.origins import ADDED, COMMIT, OLDEST
from watersmeet.lineage.told import CantTellError
from watersmeet.runtime.output import stored_state
from watersmeet.runtime.plans import kept_circuit
from watersmeet.store.changes import quoted
from watersmeet.store.manifests import Commit
from watersmeet.values.types import BIGINT, BOOLEAN, Field, arrow_schema
from watersmeet.values.watermarks import value


class Explaining(Protocol):
    """An explanation that is under way, as moments need it."""

    catalog: Catalog
    epoch: Commit
    history: History
    asker: Asker

    def times(self, commit: int | None = None) -> dict[str, int]:
        """How far time had come as of a commit, by default now."""

    def then(self, node: Node, past: PastScan) -> Node:
        """A scan as of an earlier moment."""


def as_of_commit(view: Relation, commit: int, name: str | None = None) -> PastScan:
    """What stands for a commit, as a moment of a view. name: by default that of the commit."""
    return PastScan(view.id, name or f"commit {commit}", Past("commit", str(commit)), (), None)


@dataclass(frozen=True)
class AsOf:
    """A commit, as the scans of a view see it (`lineage.lookups.Moment`). last: the last one that counts. waited: what
    had come before may have waited.
    """

    explaining: Explaining
    view: Relation
    moment: PastScan
    last: int
    waited: bool = False

    @property
    def times(self) -> dict[str, int]:
        return self.explaining.times(int(self.moment.past.sql))

    def came(self, scan: Scan, began: int | None) -> Node:
        history, relation = self.explaining.history, self.explaining.catalog.relations[scan.relation_id]
        if history.shows(self.view, int(self.moment.past.sql)):
            return history.came(relation, scan, self.moment)
        return self.then(scan) if began is None else self.since(Since(scan, began))  # all that it was filled with

    @property
    def commit(self) -> int | None:
        """The commit in which rows came; None for those of all commits."""
        return int(self.moment.past.sql)

    def stayed(self, scan: Scan) -> Node:
        relation = self.explaining.catalog.relations[scan.relation_id]
        return self.explaining.history.stayed(self.view, relation, scan, self.last, self.commit)

    def before(self, node: Node) -> Node:
        commit, history = int(self.moment.past.sql), self.explaining.history
        if not self.waited or not isinstance(node, Scan) or not history.shows(self.view, commit):
            return node
        return self.explaining.then(node, as_of_commit(self.view, history.epoch_before(self.view, commit)))

    def then(self, node: Node) -> Node:
        return self.explaining.then(node, self.moment)

    def since(self, rows: Since) -> Node:
        return self.explaining.history.since(
            self.explaining.catalog.relations[rows.scan.relation_id], rows, self.moment
        )


class Arrived(AsOf):
    """All that came up to now, with the commit in which it came. What is looked up is as it is now."""

    @property
    def commit(self) -> int | None:
        return None

    def came(self, scan: Scan, began: int | None) -> Node:
        relation = self.explaining.catalog.relations[scan.relation_id]
        return self.explaining.history.arrived(self.view, relation, scan, began, self.moment)

    def then(self, node: Node) -> Node:
        return node


@dataclass(frozen=True)
class Ever:
    """All commits up to one, as the scans of a view see them (`lineage.told.Ever`). lenders: by name, what lends what
    was ever there.
    """

    explaining: Explaining
    view: Relation
    last: int
    lenders: dict[str, Callable[[History], None]]

    def came(self, scan: Scan, began: int | None, number: Column) -> Node:
        relation = self._stored(scan)
        found = self._scan(scan, arrived_name(self.view, relation, began), {COMMIT: number})
        self.lenders[found.name] = lambda h: h.came_ever(self.view, relation, scan, began, self._moment)
        if self.last == self.explaining.epoch.number:
            return found
        upto = exp.LTE(this=column_ref(number.id), expression=exp.Literal.number(self.last))
        return filtered(found, [Scalar(upto, BOOLEAN)])

    def stayed(self, scan: Scan, number: Column) -> Node:
        relation = self._stored(scan)
        found = self._scan(scan, stayed_name(self.view, relation, scan, self.last), {COMMIT: number})

        def lend(history: History) -> None:
            history.stayed(self.view, relation, scan, self.last, None)
            history.check_told(relation, found.name)

        self.lenders[found.name] = lend
        return found

    def there(self, scan: Scan, since: Column, until: Column) -> Node:
        relation = self._stored(scan)
        found = self._scan(
            scan, there_name(self.view, relation, self.last), dict(zip(SPAN, (since, until), strict=True))
        )
        self.lenders[found.name] = lambda h: h.there_ever(self.view, relation, scan, self.last)
        return found

    def newest(self, rows: Arrivals, began: int, keys: Sequence[Column], since: Column, until: Column) -> Node:
        relation, scan = self._stored(rows.scan), rows.scan
        sources = {c.id: n for c, n in zip(scan.outputs, scan.source_names, strict=True)}
        names = [sources[k.id] for k in keys]
        more = dict(zip((*AGE, *SPAN), (*rows.age, since, until), strict=True))
        found = self._scan(scan, newest_name(self.view, relation, names), more)
        self.lenders[found.name] = lambda h: h.newest_ever(self.view, relation, scan, began, names, self._moment)
        return found

    @property
    def _moment(self) -> PastScan:
        return as_of_commit(self.view, self.last, "ever")

    def _scan(self, scan: Scan, name: str, more: Mapping[str, Column]) -> PastScan:
        own = (replace(c, name=n) for c, n in zip(scan.outputs, scan.source_names, strict=True))
        outputs = (*own, *(replace(c, name=n) for n, c in more.items()))
        return PastScan(scan.relation_id, name, Past("commit", str(self.last)), outputs, None)

    def _stored(self, scan: Scan) -> Relation:
        relation = self.explaining.catalog.relations[scan.relation_id]
        if isinstance(relation, MaterializedView):
            raise CantTellError(
                f"Rows of {relation.title} are looked up, or look up, below what computes with many rows"
            )
        return relation


#: Columns beside those of the table: from when a version counts, and whether there is a row from then on.
_MADE: Final = (f"{ADDED}since", f"{ADDED}live")

_DIFF: Final = f"{ADDED}diff"


def kept_by(database: OpenDatabase, epoch: Commit, view: Relation, node: Versions) -> operators.Versions | None:
    """The operator whose versions a view reads; None if there is none, or more than one that might be it."""
    if epoch.circuit is None:
        return None
    circuit = kept_circuit(database.layout, epoch.circuit)
    below = circuit.below_sinks.get(view.id, frozenset())
    found = [
        o
        for o in map(circuit.by_id.__getitem__, below)
        if isinstance(o, operators.Versions) and o.source == node.scan.relation_id
    ]
    return found[0] if len(found) == 1 and len(found[0].schema) == len(node.columns) else None


def versions_scan(node: Versions, operator: operators.Versions, epoch: Commit) -> PastScan:
    """What stands for the versions: rows that are lent by `kept_versions` under the scan's name."""
    names = (*node.scan.source_names, *_MADE)
    outputs = (Column(c.id, n, c.type, c.nullable) for c, n in zip(node.columns, names, strict=True))
    oldest = Column(f"{node.made[0].id}.oldest", OLDEST, BOOLEAN, nullable=False)
    past = Past("commit", str(epoch.number))
    return PastScan(node.scan.relation_id, f"versions {operator.id}", past, (*outputs, oldest), None)


def kept_versions(
    database: OpenDatabase,
    epoch: Commit,
    connection: duckdb.DuckDBPyConnection,
    scan: PastScan,
    operator: operators.Versions,
) -> tuple[pa.Table, Sequence[Field]]:
    """The versions that count as of the newest epoch, and their columns.

    `OLDEST` is true for those before which there may have been others of their key that are forgotten.
    """
    assert epoch.circuit is not None
    *fields, oldest = (Field(c.name, c.type, c.nullable) for c in scan.outputs)
    rows = _stored(database, epoch, kept_circuit(database.layout, epoch.circuit), operator, fields)
    names = [quoted(f.name) for f in fields]
    since, listed = quoted(_MADE[0]), ", ".join(names)
    bound_us = value(operator.retain, epoch.progress.watermarks)
    with lent(connection, rows, (*fields, Field(_DIFF, BIGINT)), "kept"):
        text = f"SELECT {listed} FROM kept GROUP BY ALL HAVING sum({quoted(_DIFF)}) > 0"
        if bound_us is None:
            text = f"SELECT *, FALSE AS {quoted(OLDEST)} FROM ({text})"
        else:
            moment = f"CAST(make_timestamp({bound_us}) AS {fields[-2].type.duckdb})"
            key = ", ".join(names[i] for i in operator.keys)
            newest = f"max({since}) FILTER ({since} < {moment}) OVER (PARTITION BY {key})"
            text = (
                f"SELECT *, {since} < {moment} AS {quoted(OLDEST)} FROM ({text}) "
                f"QUALIFY {since} >= {moment} OR {since} = {newest}"
            )
        found = connection.execute(text).to_arrow_table()
    columns = (*fields, oldest)
    return conformed(found, arrow_schema(columns, positional=False)), columns


def _stored(
    database: OpenDatabase, epoch: Commit, circuit: Circuit, operator: operators.Versions, fields: Sequence[Field]
) -> pa.Table:
    """What is stored of the state in all buckets: rows that came and went, with the column `_DIFF`."""
    schema = arrow_schema((*fields, Field(_DIFF, BIGINT)), positional=False)
    parts = [schema.empty_table()]
    for bucket in range(circuit.buckets):
        place = f"{circuit.stages[operator.id]}/{bucket}"
        if place not in epoch.packs:
            continue
        state = stored_state(database.packs, epoch.packs[place], place)
        for ref in state.operators.get(operator.id, {}).get(ROWS, ()):
            run = load(ref, database.packs.read_blob(ref.blob))
            rows = [*run.arrays, pa.array(run.diff, pa.int64())]
            parts.append(pa.Table.from_arrays(rows, names=schema.names))
    return pa.concat_tables(parts, promote_options="permissive")
