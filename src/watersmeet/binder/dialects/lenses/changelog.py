"""Computes the records that a query writes to its topic: the changes of a table, with times.

Lenses, "Joins", "Join types": a table changes with its records. The time of a change is the greatest time of the
contributing records, including tombstones (Apache Kafka, "Core Concepts" of Kafka Streams, "Time"). The content of a
table has no trace of deleted rows, so a second tree computes the changes of the query from the changes of its inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from watersmeet.algebra.arrivals import Window
from watersmeet.algebra.nodes import (
    Aggregate,
    Arrivals,
    Cause,
    Changes,
    Column,
    Filter,
    Join,
    LateRowFilter,
    Node,
    Project,
    Records,
    Repartition,
    Scan,
    TopN,
    Unnest,
)
from watersmeet.algebra.properties import revision
from watersmeet.algebra.scalars import Scalar, conjunction, conjuncts
from watersmeet.algebra.timewindows import mentions_time
from watersmeet.algebra.trees import exactly, read, walk
from watersmeet.binder.context.binding import BoundQuery
from watersmeet.binder.dialects.lenses.records import key_parts, records_in
from watersmeet.catalog import KEY_COLUMN, RECORD_NUMBER, RECORD_TIME, TOMBSTONE
from watersmeet.values.types import BIGINT, BOOLEAN, TIMESTAMP, SqlType
from watersmeet.values.watermarks import Watermark, both


@dataclass(frozen=True)
class Changed:
    """The changes of a node. rows: `Changes` with the columns of the node. went, at: the columns that `Changes` adds.

    time: the id of the node's column with a time; None if it has no time, or one for each side.
    """

    rows: Node
    went: Column
    at: Column
    time: str | None


def changes_of(tree: Node) -> Changed:
    """The inserted and deleted rows of `tree`, a query over tables with a column `@time`."""
    return _Following().of(tree)


class _Following:
    def __init__(self) -> None:
        self._made = 0

    def of(self, node: Node) -> Changed:
        """The changes of a node, computed from the changes of its inputs."""
        if isinstance(node, Repartition):
            return self.of(node.input)
        if isinstance(node, Filter) and _is_followed(node.input):
            below = self.of(node.input)
            if mentions_time(node.predicate):
                return self._timed(node, below)
            return Changed(Filter(below.rows, node.predicate), below.went, below.at, below.time)
        if isinstance(node, Project) and _is_followed(node.input):
            return self._projected(node)
        if isinstance(node, Join):
            return self._joined(node)
        if isinstance(node, Aggregate):
            return self._grouped(node)
        return self._by_itself(node)

    def _projected(self, node: Project) -> Changed:
        """Changes of a projection. If it computes a time, inserted rows have this time."""
        below = self.of(node.input)
        passed = [
            c for c, e in zip(node.outputs, node.exprs, strict=True) if e.column is not None and e.column == below.time
        ]
        time, at = _named(node, RECORD_TIME), read(below.at)
        if time is None and passed:
            time = passed[0]
        elif time is not None and time not in passed and not isinstance(node.input, Join):
            own = node.exprs[node.outputs.index(time)].expression.copy()
            went = exp.If(this=read(below.went).expression, true=at.expression)
            at = Scalar(exp.Case(ifs=[went], default=own), TIMESTAMP)
        went, made = self._column("went", BOOLEAN), self._column("at", TIMESTAMP)
        rows = Project(below.rows, (*node.outputs, went, made), (*node.exprs, read(below.went), at))
        return Changed(rows, went, made, None if time is None else time.id)

    def _by_itself(self, node: Node) -> Changed:
        """Changes of a node whose rows are deleted only when another row with the same record key replaces them. Rows
        of a stream, and those of its sessions, have their own time.
        """
        time = _named(node, RECORD_TIME)
        if time is not None and _is_stream(node):
            went, at = self._column("went", BOOLEAN), self._column("at", TIMESTAMP)
            stays = Scalar(exp.false(), BOOLEAN, nullable=False)
            own = Project(node, (*node.columns, went, at), (*map(read, node.columns), stays, read(time)))
            return Changed(own, went, at, time.id)
        keys = [] if isinstance(node, Window) else _key_of(node)
        rows, match = self._with(node, keys or [read(c) for c in node.columns])
        return self._changes(rows, [Cause(None, match, None if time is None else time.id)])

    def _timed(self, node: Filter, below: Changed) -> Changed:
        """Changes where rows that are deleted by the passing of time have their own time, and others the time of their
        cause.
        """
        keys = _key_of(node)
        rows, match = self._with(node, keys)
        return self._changes(rows, [Cause(self._cause_rows(below, keys), match, below.time)])

    def _joined(self, node: Join) -> Changed:
        """Changes of a join. A pair has the greater time of its sides. A row without a partner has its own time, or
        that of a partner that was just deleted.

        Rows that can't have partners are recognized by NULL in the values that ON equates.
        """
        sides = [
            self._side(node, one, always=node.kind in ("inner", kept))
            for one, kept in ((node.left, "left"), (node.right, "right"))
        ]
        equated = [_either(node, a, b, sides[0].time) for a, b in zip(sides[0].equated, sides[1].equated, strict=True)]
        rows, matched = self._with(node, equated)
        causes = []
        for side in sides:
            rows, keys = self._with(rows, side.keys)
            cause_rows = self._cause_rows(side.changed, [*side.equated, *side.keys])
            causes.append(Cause(cause_rows, (*matched, *keys), side.time.id, len(matched)))
        return self._changes(rows, causes)

    def _side(self, node: Join, one: Node, *, always: bool) -> _Side:
        """A side of a join. always: whether each pair has a row of this side. Then parts of its key that ON equates are
        not compared a second time.
        """
        own = conjunction([p for p in conjuncts(node.residual) if p.columns and p.columns <= one.ids])
        equated = [k.left if one is node.left else k.right for k in node.keys]
        if own is not None:
            equated = [
                Scalar(exp.Case(ifs=[exp.If(this=own.expression.copy(), true=e.expression.copy())]), e.type)
                for e in equated
            ]
        time = _named(one, RECORD_TIME)
        assert time is not None, "only records are joined"
        keys = _key_of(one)
        if always:
            known = [_computed(one, e) for e in equated]
            keys = [k for k in keys if _computed(one, k) not in known]
        return _Side(self.of(one), equated, keys, time)

    def _grouped(self, node: Aggregate) -> Changed:
        """Changes of groups. A group changes when one of its rows is inserted or deleted."""
        below = self.of(node.input)
        outputs = node.outputs[: len(node.keys)]
        calls = zip(node.outputs[len(node.keys) :], node.calls, strict=True)
        times = [
            c.id
            for c, call in calls
            if call.function == "max"
            and call.argument is not None
            and call.argument.column is not None
            and call.argument.column == below.time
        ]
        cause_rows = self._cause_rows(below, node.keys)
        return self._changes(node, [Cause(cause_rows, tuple(c.id for c in outputs), times[0] if times else None)])

    def _cause_rows(self, changed: Changed, match: Sequence[Scalar]) -> Node:
        columns = [self._column("match", s.type) for s in match]
        return Project(changed.rows, (*columns, self._column("at", TIMESTAMP)), (*match, read(changed.at)))

    def _changes(self, rows: Node, causes: Sequence[Cause]) -> Changed:
        made = (self._column("went", BOOLEAN), self._column("at", TIMESTAMP))
        return Changed(Changes(rows, tuple(causes), made), *made, causes[0].time if len(causes) == 1 else None)

    def _with(self, node: Node, scalars: Sequence[Scalar]) -> tuple[Node, tuple[str, ...]]:
        """The node with the scalars as additional columns, and the ids of these."""
        added = {i: self._column("match", s.type) for i, s in enumerate(scalars) if s.column is None}
        ids = tuple(added[i].id if i in added else str(s.column) for i, s in enumerate(scalars))
        if not added:
            return node, ids
        exprs = (*map(read, node.columns), *(scalars[i] for i in added))
        return Project(node, (*node.columns, *added.values()), exprs), ids

    def _column(self, name: str, kind: SqlType) -> Column:
        self._made += 1
        return Column(f"@cause{self._made}", f"@{name}", kind, nullable=name != "went")


@dataclass(frozen=True)
class _Side:
    """A side of a join: the values that ON equates, the parts of its key, and its time."""

    changed: Changed
    equated: Sequence[Scalar]
    keys: Sequence[Scalar]
    time: Column


def _is_followed(node: Node) -> bool:
    """True if the changes of the node can be computed row by row: it or one of its inputs has a time.

    For the newest records, the changes are those of the read records, without the columns that only order them.
    """
    if isinstance(node, TopN):
        return False
    if isinstance(node, (Join, Aggregate)) or _named(node, RECORD_TIME) is not None:
        return True
    return isinstance(node, (Filter, Project)) and _is_followed(node.input)


def _is_stream(node: Node) -> bool:
    """Whether no row of the node is ever deleted; the rows of `Arrivals` are events."""
    while isinstance(node, (Filter, LateRowFilter, Project, Unnest)):
        node = node.input
    return isinstance(node, Arrivals) or revision(node) is None


def _named(node: Node, name: str) -> Column | None:
    """The records' own column with a name, which follows the columns of a join's sides."""
    return next((c for c in reversed(node.columns) if c.name == name), None)


def _key_of(node: Node) -> Sequence[Scalar]:
    """The parts of the record key; empty if there is no key."""
    key = _named(node, KEY_COLUMN)
    return [] if key is None else key_parts(read(key))


def _computed(node: Node, scalar: Scalar) -> exp.Expression:
    """The expression of a scalar over the input of the projections that `node` consists of."""
    while isinstance(node, (Project, Filter)):
        if isinstance(node, Project):
            made = {c.id: e.expression for c, e in zip(node.outputs, node.exprs, strict=True)}
            scalar = scalar.substitute(made)
        node = node.input
    return scalar.expression


def _either(node: Join, left: Scalar, right: Scalar, time: Column) -> Scalar:
    """The value that ON equates in a row of the join."""
    if node.kind != "full":
        return right if node.kind == "right" else left
    there = exp.Not(this=exp.Is(this=read(time).expression, expression=exp.null()))
    case = exp.Case(ifs=[exp.If(this=there, true=left.expression.copy())], default=right.expression.copy())
    return Scalar(case, left.type)


def records_of(query: BoundQuery) -> Node:
    """The changes of a query as records. A table has a value or, for a deleted row, a tombstone for each changed
    key.
    """
    tree = query.tree
    metadata = {c.name: c for c in tree.columns if c.name in (KEY_COLUMN, RECORD_TIME)}
    made = (
        Column("@deleted", TOMBSTONE, BOOLEAN, nullable=False),
        Column("@offset", RECORD_NUMBER, BIGINT, nullable=False),
    )
    kept = tuple(c.id for c in metadata.values())
    own = records_in(query)
    assert own is not None, "a query over records"
    if own.nature == "stream":
        return Records(tree, None, kept, made)
    key = metadata.get(KEY_COLUMN)
    parts = [] if key is None else key_parts(read(key))
    columns = tuple(Column(f"@key{i}", f"key{i}", p.type, p.nullable) for i, p in enumerate(parts))
    keys, changed = tuple(c.id for c in columns), changes_of(tree)
    added = (changed.went, changed.at)
    below = Project(
        changed.rows, (*tree.columns, *columns, *added), (*map(read, tree.columns), *parts, *map(read, added))
    )
    records = Records(below, keys, (*kept, *keys), made, metadata[RECORD_TIME].id, _clock(tree))
    return exactly(records, [c for c in records.columns if c not in columns])


def _clock(tree: Node) -> Watermark:
    """The clock for the times of changes: the least clock of all topics read; None if a topic has no clock."""
    times = [[w for _, w in node.watermarks] for node in walk(tree) if isinstance(node, Scan)]
    return both(*[w[0] if w else () for w in times])
