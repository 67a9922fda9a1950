"""The changes of earlier commits, as rows that a query can read.

The scans of a view read one commit, all commits up to now, or each commit by itself.

The versions of a table's rows that a join keeps are read from its state, because nothing else contains them. Of the
versions older than the watermarks, the state only has to keep the newest of each key. Others that it may still contain
are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final, Protocol

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
from watersmeet.database.scans import own_commit
from watersmeet.errors import Error, error
from watersmeet.kernel.operators.arrange import ROWS
from watersmeet.kernel.runs.shares import load
from watersmeet.lineage.lookups import CantTellError, Since
from watersmeet.lineage.origins import ADDED, COMMIT, OLDEST
from watersmeet.lineage.steps import Asker
from watersmeet.runtime.plans import kept_circuit
from watersmeet.runtime.stages import stored_state
from watersmeet.store.changes import RelationChange, fitted, quoted
from watersmeet.store.commits import Commit
from watersmeet.store.readers import Reader, low_water_number
from watersmeet.system.duckdbs import ARRIVAL, arrival_view
from watersmeet.values.types import BIGINT, BOOLEAN, Field, arrow_schema
from watersmeet.values.watermarks import value

#: Additional columns: how often a row was inserted, the commits as of which it was present, and the order of rows,
#: newest first.
DIFF: Final = f"{ADDED}diff"

SPAN: Final = (f"{ADDED}from", f"{ADDED}until")
_NEVER: Final = 2**63 - 1
AGE: Final = (f"{ADDED}epoch", f"{ADDED}sequence")


class History:
    """The changes of append-only relations, up to an epoch, as views of a connection."""

    def __init__(
        self, database: OpenDatabase, epoch: Commit, connection: duckdb.DuckDBPyConnection, entered: ExitStack
    ) -> None:
        """entered: its exit releases lent tables and pinned commits."""
        self._database, self._log, self._epoch = database, database.log, epoch
        self._connection, self._entered = connection, entered
        self._lent: dict[str, int] = {}
        """For each lent table, by name, the first commit whose rows it contains."""
        self._present: dict[str, pa.Table] = {}
        reader = Reader(database.layout)
        entered.callback(reader.close)
        reader.pin(low_water_number(database.layout))
        self._low_water = low_water_number(database.layout)

    def shows(self, view: Relation, commit: int) -> bool:
        """Whether the view already had content as of that commit."""
        return self._read(view, commit).catalog_version >= view.since

    def epoch_before(self, view: Relation, commit: int) -> int:
        """The number of the epoch before the epoch of a commit."""
        return self._read(view, commit).epoch_before

    def changes(self, view: Relation, columns: Sequence[Column]) -> PastScan:
        """All rows inserted into a view, with the given columns and the commit of each; for rows of the initial fill,
        that of the fill.
        """
        name = f"changes of {view.id}"
        if name not in self._lent:
            filled, parts = 0, []
            for commit in self._epochs():
                if view.id in commit.relations:
                    rows = self._rows(view, commit.relations[view.id])
                    if commit.catalog_version < view.since:
                        filled = filled or commit.number
                    number = filled if commit.catalog_version < view.since else commit.number
                    parts.append(_with_commit(rows, number))
            self._lend(name, (*view.columns, *_number_fields(COMMIT)), parts, 0)
        outputs = (*columns, *_numbers(COMMIT))
        return PastScan(view.id, name, Past("commit", str(self._epoch.number)), outputs, None)

    def inserted(self, relation: Relation, scan: Scan, moment: PastScan) -> PastScan:
        """The rows inserted into a relation in the epoch of a commit."""
        name = f"came in {moment.name} {relation.id}"
        if name not in self._lent:
            epoch = self._read(relation, int(moment.past.sql))
            parts = [self._rows(relation, c.relations[relation.id]) for c in self._of_epoch(relation, epoch)]
            self._lend(name, relation.columns, parts, epoch.number)
        return PastScan(relation.id, name, moment.past, _outputs(scan), None)

    def arrived(self, view: Relation, relation: Relation, scan: Scan, began: int | None, moment: PastScan) -> PastScan:
        """All rows inserted into a relation, each with the number of the epoch in which the view read it.

        Rows that the initial fill read have the epoch of the fill, or 0 if they are older than the history. began: the
        commit after which the view began, if only later rows count.
        """
        name = arrived_name(view, relation, began)
        columns = (*relation.columns, *_number_fields(COMMIT, *AGE))
        if name not in self._lent:
            parts, filled = list[pa.Table](), 0
            first = 0 if began is None else self._own_commit(relation, began)
            if began is not None and first < self._low_water:
                raise self.expired(relation)
            for epoch in self._epochs():
                is_first = self._is_first(epoch)
                if began is None and (is_first or epoch.catalog_version < view.since):
                    filled = 0 if is_first else epoch.number
                    continue
                for commit in self._of_epoch(relation, epoch, first if is_first else None):
                    if began is None or commit.number > first:
                        rows = _aged(self._rows(relation, commit.relations[relation.id]), commit.number)
                        parts.append(_with_commit(rows, epoch.number))
            if began is None:
                parts.append(_with_commit(self._older(relation, parts), filled))
            self._lend(name, columns, parts, 0)
        outputs = (*_outputs(scan), *_numbers(COMMIT))
        return PastScan(relation.id, name, moment.past, outputs, None)

    def events(self, view: Relation, relation: Relation, scan: Scan, last: int) -> PastScan:
        """All insertions and deletions of a relation up to an epoch, with the columns `COMMIT` and `DIFF`. Rows present
        when the view was filled have the epoch of the fill, or 0 if the fill is older than the history.
        """
        name = _events_name(view, relation, last)
        columns = (*relation.columns, *_number_fields(COMMIT, DIFF))
        if name not in self._lent:
            filled, before, parts = 0, 0, list[pa.Table]()
            for epoch in self._epochs():
                is_first = self._is_first(epoch)
                if is_first or epoch.catalog_version < view.since:
                    filled, before = 0 if is_first else epoch.number, self._last_of(relation, epoch)
                elif epoch.number <= last:
                    for commit in self._of_epoch(relation, epoch):
                        rows = self._changed(relation, commit.relations[relation.id])
                        parts += [_with_commit(r, epoch.number) for r in rows]
            there = _with_commit(self._content(relation, before), filled)
            parts.append(there.append_column(DIFF, pa.array(np.ones(there.num_rows, np.int64))))
            names = [c.name for c in columns]
            self._lend(name, columns, [p.select(names) for p in parts], 0)
        outputs = (*_outputs(scan), *_numbers(COMMIT, DIFF))
        return PastScan(relation.id, name, Past("commit", str(last)), outputs, None)

    def all_inserted(self, view: Relation, relation: Relation, scan: Scan, began: int | None, moment: PastScan) -> None:
        """Lends all rows inserted into a relation, like `arrived`. Raises HISTORY_GONE if some of them are older than
        the history.
        """
        arrived = self.arrived(view, relation, scan, began, moment)
        self.check_complete(relation, arrived.name)

    def there_ever(self, view: Relation, relation: Relation, scan: Scan, last: int) -> None:
        """Lends all rows that a relation ever had up to an epoch, each with the first commit as of which it was
        present, and the first later one as of which it was not. Rows present when the view was filled are treated as in
        `events`.
        """
        name, events = there_name(view, relation, last), self.events(view, relation, scan, last)
        if name in self._lent:
            return
        columns = (*relation.columns, *_number_fields(*SPAN))
        own, number, diff = ", ".join(quoted(c.name) for c in relation.columns), quoted(COMMIT), quoted(DIFF)
        rows = self._connection.execute(f"""
WITH changes AS (
    SELECT {own}, {number}, sum({diff}) AS n FROM {quoted(events.name)} GROUP BY ALL HAVING sum({diff}) <> 0),
counted AS (
    SELECT {own}, {number}, sum(n) OVER w AS n, lead({number}, 1, {_NEVER}) OVER w AS until FROM changes
    WINDOW w AS (PARTITION BY {own} ORDER BY {number}))
SELECT {own}, {number}, until, unnest(range(n::BIGINT)) FROM counted WHERE n > 0""").to_arrow_table()
        self._lend(name, columns, [conformed(rows.select(range(len(columns))), _schema(columns))], 0)

    def newest_ever(
        self, view: Relation, relation: Relation, scan: Scan, began: int, keys: Sequence[str], moment: PastScan
    ) -> None:
        """Lends the rows inserted into a relation since a view began, each of which counts until a newer row with equal
        keys.
        """
        name, arrived = newest_name(view, relation, keys), self.arrived(view, relation, scan, began, moment)
        columns = (*relation.columns, *_number_fields(*AGE, *SPAN))
        if name not in self._lent:
            own, number = ", ".join(quoted(n) for n in (*(c.name for c in relation.columns), *AGE)), quoted(COMMIT)
            age, equal = ", ".join(map(quoted, AGE)), ", ".join(map(quoted, keys))
            until = f"lag({number}, 1, {_NEVER}) OVER (PARTITION BY {equal} ORDER BY {age})"
            text = f"SELECT {own}, {number}, {until} FROM {quoted(arrived.name)}"
            rows = self._connection.execute(text).to_arrow_table()
            self._lend(name, columns, [conformed(rows, _schema(columns))], 0)

    def present(self, view: Relation, relation: Relation, scan: Scan, last: int, commit: int | None) -> PastScan:
        """The rows of a scan that are present as of the commit `last`, and were inserted or last updated in `commit`.
        If that is None, all present rows, each with its commit in the column `COMMIT`.
        """
        whole = present_name(view, relation, scan, last)
        columns = tuple(Field(n, c.type) for c, n in zip(scan.outputs, scan.source_names, strict=True))
        numbered, outputs = (*columns, *_number_fields(COMMIT)), _outputs(scan)
        if whole not in self._present:
            events = self.events(view, relation, scan, last)
            own, number = ", ".join(quoted(c.name) for c in columns), quoted(COMMIT)
            self._present[whole] = self._connection.execute(f"""
WITH changes AS (SELECT {own}, {number}, sum({quoted(DIFF)}) AS n FROM {quoted(events.name)} GROUP BY {own}, {number})
SELECT {own}, max({number}) FILTER (WHERE n > 0) AS {number} FROM changes GROUP BY {own} HAVING sum(n) > 0
""").to_arrow_table()
        name, rows, shown = whole, self._present[whole], numbered
        if commit is None:
            outputs = (*outputs, *_numbers(COMMIT))
        else:
            name, rows, shown = f"{whole} in {commit}", rows.filter(pc.equal(rows.column(COMMIT), commit)), columns
        if name not in self._lent:
            self._lend(name, shown, [conformed(rows.select(range(len(shown))), _schema(shown))], commit or 0)
        return PastScan(relation.id, name, Past("commit", str(last if commit is None else commit)), outputs, None)

    def check_complete(self, relation: Relation, name: str) -> None:
        """Raises HISTORY_GONE for lent rows for which the commit of their look-up is unknown."""
        text = f"SELECT min({quoted(COMMIT)}) FROM {quoted(name)}"
        first = (self._connection.execute(text).fetchone() or (None,))[0]
        if first is not None and first <= 0:
            raise self.expired(relation)

    def since(self, relation: Relation, rows: Since, moment: PastScan) -> PastScan:
        """The rows inserted into a relation after a commit, up to the epoch of another commit."""
        if rows.replaced and rows.scan.append_only:
            return self._ever(relation, rows, moment)
        name = f"came after {rows.commit} up to {moment.name} {relation.id}{' in order' if rows.age else ''}"
        columns = (*relation.columns, *_number_fields(*AGE[: len(rows.age)]))
        if name not in self._lent:
            epoch = self._read(relation, int(moment.past.sql))
            assert epoch.frontier is not None
            upto, began = self._last_of(relation, epoch), self._own_commit(relation, rows.commit)
            if began < min(self._low_water, upto):
                raise self.expired(relation)
            parts = []
            if rows.replaced:
                there = self._content(relation, began)
                for column in columns[len(relation.columns) :]:
                    there = there.append_column(column.name, pa.array(np.zeros(there.num_rows, np.int64)))
                parts.append(there)
            for number in range(began + 1, upto + 1):
                change = self._read(relation, number).relations.get(relation.id)
                if change is not None:
                    part = self._rows(relation, change, replaced=rows.replaced)
                    parts.append(_aged(part, number) if rows.age else part)
            self._lend(name, columns, parts, began + 1)
        order = (Column(c.id, n, c.type, c.nullable) for c, n in zip(rows.age, AGE, strict=False))
        return PastScan(relation.id, name, moment.past, (*_outputs(rows.scan), *order), None)

    def _ever(self, relation: Relation, rows: Since, moment: PastScan) -> PastScan:
        """All rows of an append-only relation as of a moment: a prefix of its current rows."""
        name = f"came up to {moment.name} {relation.id} in order"
        columns = (*relation.columns, *_number_fields(*AGE))
        if name not in self._lent:
            upto = self._last_of(relation, self._read(relation, int(moment.past.sql)))
            later = 0
            for number in range(upto + 1, self._last_of(relation, self._epoch) + 1):
                change = self._read(relation, number).relations.get(relation.id)
                later += 0 if change is None else self._rows(relation, change).num_rows
            names, view = ", ".join(quoted(c.name) for c in relation.columns), quoted(arrival_view(relation.shown))
            found = self._connection.execute(
                f"SELECT {names}, 0, -{quoted(ARRIVAL)} FROM {view} ORDER BY {quoted(ARRIVAL)} "
                f"LIMIT (SELECT count(*) - {later} FROM {view})"
            ).to_arrow_table()
            self._lend(name, columns, [conformed(found, _schema(columns))], 0)
        order = (Column(c.id, n, c.type, c.nullable) for c, n in zip(rows.age, AGE, strict=True))
        return PastScan(relation.id, name, moment.past, (*_outputs(rows.scan), *order), None)

    def _own_commit(self, relation: Relation, began: int) -> int:
        """The commit after which a relation's rows count, for `began` as in `arrived`."""
        return own_commit(self._database, relation, began, self._epoch, self._low_water)

    def _last_of(self, relation: Relation, epoch: Commit) -> int:
        """The last commit that counts for a relation as of an epoch."""
        assert epoch.frontier is not None
        return epoch.number if relation.is_fed_by_circuit else epoch.frontier.transaction

    def _content(self, relation: Relation, upto: int) -> pa.Table:
        """The rows of a relation as of a commit: its current rows without later changes."""
        schema = arrow_schema(relation.columns, positional=False)
        parts = [schema.empty_table().append_column(DIFF, pa.array([], pa.int64()))]
        for number in range(upto + 1, self._last_of(relation, self._epoch) + 1):
            change = self._read(relation, number).relations.get(relation.id)
            parts += [] if change is None else self._changed(relation, change)
        names = ", ".join(quoted(c.name) for c in relation.columns)
        rows = pa.concat_tables(parts, promote_options="permissive")
        with lent(self._connection, rows, (*relation.columns, Field(DIFF, BIGINT)), "later"):
            now = f"SELECT {names}, 1 AS n FROM {quoted(relation.shown)}"
            both = f"{now} UNION ALL SELECT {names}, -{quoted(DIFF)} FROM later"
            text = f"SELECT {names}, unnest(range(sum(n)::BIGINT)) FROM ({both}) GROUP BY {names} HAVING sum(n) > 0"
            found = self._connection.execute(text).to_arrow_table()
        return conformed(found.select(range(len(relation.columns))), schema)

    def _older(self, relation: Relation, later: Sequence[pa.Table]) -> pa.Table:
        """The current rows of a relation without later ones."""
        names = ", ".join(quoted(c.name) for c in relation.columns)
        schema = arrow_schema(relation.columns, positional=False)
        rows = pa.concat_tables([schema.empty_table(), *(t.select(schema.names) for t in later)])
        with lent(self._connection, rows, relation.columns, "later"):
            text = f"SELECT {names} FROM {quoted(relation.shown)} EXCEPT ALL SELECT {names} FROM later"
            found = self._connection.execute(text).to_arrow_table()
        return conformed(found, schema)

    def first(self, name: str) -> int:
        """The first commit whose rows a view of the connection has; 0 if it has all rows."""
        return self._lent.get(name, 0)

    def expired(self, relation: Relation) -> Error:
        """The error for rows of a relation that are older than the history."""
        return error(
            "HISTORY_GONE",
            f"a row of {relation.title} can't be explained",
            detail=f"It came before commit {self._low_water + 1}, the oldest that is kept, and what it found then is "
            "not known any more.",
            hint="ALTER SYSTEM SET retention = '1 day' keeps history for longer.",
        )

    def _epochs(self) -> Iterator[Commit]:
        """The kept epochs, oldest first."""
        found = []
        number = self._epoch.number
        while number > self._low_water and (commit := self._log.find(number)) is not None:
            found.append(commit)
            number = commit.epoch_before
        return reversed(found)

    def _is_first(self, epoch: Commit) -> bool:
        """Whether an epoch is the oldest kept one of a history that began earlier."""
        return 0 < epoch.epoch_before <= self._low_water

    def _of_epoch(self, relation: Relation, epoch: Commit, after: int | None = None) -> Iterator[Commit]:
        """The commits with changes of a relation in an epoch: for a table those that the epoch read, for other
        relations the epoch itself.

        after: return only later commits; None for all.
        """
        if relation.is_fed_by_circuit:
            commits: Sequence[Commit] = [epoch]
        else:
            if after is None:
                after = self._last_of(relation, self._read(relation, epoch.epoch_before)) if epoch.epoch_before else 0
            upto = self._last_of(relation, epoch)
            commits = [self._read(relation, n) for n in range(after + 1, upto + 1)]
        return (c for c in commits if relation.id in c.relations)

    def _read(self, relation: Relation, number: int) -> Commit:
        commit = self._log.find(number)
        if commit is None:
            raise self.expired(relation)
        return commit

    def _rows(self, relation: Relation, change: RelationChange, *, replaced: bool = False) -> pa.Table:
        """The inserted rows of a change, repeated by their diff. replaced: whether the relation accepts deletions."""
        parts = [arrow_schema(relation.columns, positional=False).empty_table()]
        for rows in self._changed(relation, change):
            diff = rows.column(DIFF).to_numpy()
            if not replaced and (diff < 0).any():
                raise error("INTERNAL_ERROR", f"{relation.title} lost rows, though it only grows")
            inserted = np.repeat(np.arange(rows.num_rows), np.maximum(diff, 0))
            parts.append(rows.drop_columns([DIFF]).take(pa.array(inserted)))
        return pa.concat_tables(parts)

    def _changed(self, relation: Relation, change: RelationChange) -> list[pa.Table]:
        """The rows of a change with their diffs."""
        stored = relation.as_stored
        schema, names = arrow_schema(stored.columns, positional=False), [c.name for c in relation.columns]
        found = []
        for blob in change.blobs:
            rows, diff = self._database.segments.read_change(blob)
            whole = fitted(rows, schema, stored.fills).rename_columns(names)
            found.append(whole.append_column(DIFF, pa.array(diff, pa.int64())))
        return found

    def _lend(self, name: str, columns: Sequence[Field], parts: Sequence[pa.Table], first: int) -> None:
        schema = _schema(columns)
        rows = pa.concat_tables([schema.empty_table(), *parts], promote_options="permissive")
        self._entered.enter_context(lent(self._connection, rows, columns, name))
        self._lent[name] = first


def arrived_name(view: Relation, relation: Relation, began: int | None) -> str:
    """The name under which `History` lends the rows inserted into a relation."""
    return f"arrived {relation.id} for {view.id}{'' if began is None else f' after {began}'}"


def newest_name(view: Relation, relation: Relation, keys: Sequence[str]) -> str:
    """The name under which `History` lends the inserted rows of a relation in which newer rows replace older ones."""
    return f"newest of {relation.id} by {', '.join(keys)} for {view.id}"


def present_name(view: Relation, relation: Relation, scan: Scan, last: int) -> str:
    """The name under which `History` lends the current rows of a relation with their commits."""
    return f"stayed {', '.join(scan.source_names)} of {_events_name(view, relation, last)}"


def _events_name(view: Relation, relation: Relation, last: int) -> str:
    return f"events of {relation.id} for {view.id} up to {last}"


def there_name(view: Relation, relation: Relation, last: int) -> str:
    """The name under which `History` lends all rows that a relation ever had."""
    return f"all of {relation.id} for {view.id} up to {last}"


def _schema(columns: Sequence[Field]) -> pa.Schema:
    return arrow_schema(tuple(columns), positional=False)


def _aged(rows: pa.Table, commit: int) -> pa.Table:
    """The rows, with columns that order the rows of all commits, newest first."""
    ages = (np.full(rows.num_rows, -commit, np.int64), -np.arange(rows.num_rows, dtype=np.int64))
    for name, age in zip(AGE, ages, strict=True):
        rows = rows.append_column(name, pa.array(age))
    return rows


def _with_commit(rows: pa.Table, number: int) -> pa.Table:
    return rows.append_column(COMMIT, pa.array(np.full(rows.num_rows, number, np.int64)))


def _numbers(*names: str) -> tuple[Column, ...]:
    """Integer columns with the given names in a view of the connection."""
    return tuple(Column(n, n, BIGINT, False) for n in names)


def _number_fields(*names: str) -> tuple[Field, ...]:
    """The same columns, as fields."""
    return tuple(Field(n, BIGINT, nullable=False) for n in names)


def _outputs(scan: Scan) -> tuple[Column, ...]:
    """The columns of a scan, with the relation's column names."""
    return tuple(Column(c.id, n, c.type, c.nullable) for c, n in zip(scan.outputs, scan.source_names, strict=True))


class Explaining(Protocol):
    """The state of one explanation, for the moments that it reads."""

    catalog: Catalog
    epoch: Commit
    history: History
    asker: Asker

    def times(self, commit: int | None = None) -> dict[str, int]:
        """The watermarks as of a commit, by default the newest."""

    def then(self, node: Node, past: PastScan) -> Node:
        """The scan as of an earlier moment."""


def as_of_commit(view: Relation, commit: int, name: str | None = None) -> PastScan:
    """A scan that stands for a commit of a view. name: by default, that of the commit."""
    return PastScan(view.id, name or f"commit {commit}", Past("commit", str(commit)), (), None)


@dataclass(frozen=True)
class AsOf:
    """A commit as the scans of a view read it (implements `lineage.lookups.Moment`). last: the last commit that counts.
    waited: whether earlier rows may have waited.
    """

    explaining: Explaining
    view: Relation
    moment: PastScan
    last: int
    waited: bool = False

    @property
    def times(self) -> dict[str, int]:
        return self.explaining.times(int(self.moment.past.sql))

    def inserted(self, scan: Scan, began: int | None) -> Node:
        history, relation = self.explaining.history, self.explaining.catalog.relations[scan.relation_id]
        if history.shows(self.view, int(self.moment.past.sql)):
            return history.inserted(relation, scan, self.moment)
        return self.then(scan) if began is None else self.since(Since(scan, began))  # all rows of the initial fill

    @property
    def commit(self) -> int | None:
        """The commit in which the rows were inserted; None for rows of all commits."""
        return int(self.moment.past.sql)

    def present(self, scan: Scan) -> Node:
        relation = self.explaining.catalog.relations[scan.relation_id]
        return self.explaining.history.present(self.view, relation, scan, self.last, self.commit)

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
    """All rows inserted so far, with the commit of each. They look up the current rows."""

    @property
    def commit(self) -> int | None:
        return None

    def inserted(self, scan: Scan, began: int | None) -> Node:
        relation = self.explaining.catalog.relations[scan.relation_id]
        return self.explaining.history.arrived(self.view, relation, scan, began, self.moment)

    def then(self, node: Node) -> Node:
        return node


@dataclass(frozen=True)
class Ever:
    """All commits up to one, as the scans of a view read them (implements `lineage.lookups.Ever`). lenders: by name,
    the function that lends all rows that a relation ever had.
    """

    explaining: Explaining
    view: Relation
    last: int
    lenders: dict[str, Callable[[History], None]]

    def inserted(self, scan: Scan, began: int | None, number: Column) -> Node:
        relation = self._stored(scan)
        found = self._scan(scan, arrived_name(self.view, relation, began), {COMMIT: number})
        self.lenders[found.name] = lambda h: h.all_inserted(self.view, relation, scan, began, self._moment)
        if self.last == self.explaining.epoch.number:
            return found
        upto = exp.LTE(this=column_ref(number.id), expression=exp.Literal.number(self.last))
        return filtered(found, [Scalar(upto, BOOLEAN)])

    def present(self, scan: Scan, number: Column) -> Node:
        relation = self._stored(scan)
        found = self._scan(scan, present_name(self.view, relation, scan, self.last), {COMMIT: number})

        def lend(history: History) -> None:
            history.present(self.view, relation, scan, self.last, None)
            history.check_complete(relation, found.name)

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


#: Additional columns: the time from which a version is valid, and whether a row exists from then on.
_MADE: Final = (f"{ADDED}since", f"{ADDED}live")


def kept_by(database: OpenDatabase, epoch: Commit, view: Relation, node: Versions) -> operators.Versions | None:
    """The operator whose versions a view reads; None if there is none, or more than one."""
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
    """A scan of the versions. `kept_versions` lends its rows under the scan's name."""
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

    The column `OLDEST` is true if the key may have had earlier versions, which are deleted.
    """
    assert epoch.circuit is not None
    *fields, oldest = (Field(c.name, c.type, c.nullable) for c in scan.outputs)
    rows = _stored(database, epoch, kept_circuit(database.layout, epoch.circuit), operator, fields)
    names = [quoted(f.name) for f in fields]
    since, listed = quoted(_MADE[0]), ", ".join(names)
    bound_us = value(operator.retain, epoch.progress.watermarks)
    with lent(connection, rows, (*fields, Field(DIFF, BIGINT)), "kept"):
        text = f"SELECT {listed} FROM kept GROUP BY ALL HAVING sum({quoted(DIFF)}) > 0"
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
    """The stored state of all buckets: inserted and deleted rows, with the column `DIFF`."""
    schema = arrow_schema((*fields, Field(DIFF, BIGINT)), positional=False)
    parts = [schema.empty_table()]
    for bucket in range(circuit.buckets):
        place = f"{circuit.stages[operator.id]}/{bucket}"
        if place not in epoch.segments:
            continue
        state = stored_state(database.segments, epoch.segments[place], place)
        for ref in state.operators.get(operator.id, {}).get(ROWS, ()):
            run = load(ref, database.segments.read_blob(ref.blob))
            rows = [*run.arrays, pa.array(run.diff, pa.int64())]
            parts.append(pa.Table.from_arrays(rows, names=schema.names))
    return pa.concat_tables(parts, promote_options="permissive")


def began(database: OpenDatabase, epoch: Commit, view: MaterializedView) -> int:
    """The commit after which a view began, if only later rows count; otherwise any number.

    The view's plan contains it. Views that it reads are older.
    """
    if epoch.circuit is None:
        return 0
    circuit = kept_circuit(database.layout, epoch.circuit)
    sink = circuit.sink_of.get(view.id)
    upstream = circuit.upstream({sink.id}) if sink is not None else frozenset[str]()
    return max((o.moment for o in map(circuit.by_id.__getitem__, upstream) if isinstance(o, operators.Cut)), default=0)
