"""The changes of a table with the time of what caused them.

Document 004, "Join types": a table follows its records. The time of a change is the greatest one of the records that
take part, tombstones among them (Apache Kafka, "Core Concepts" of Kafka Streams, "Time": what joins and groups give has
the greatest time of the records that contribute). The content of a table does not tell: of what went, and why, it has
nothing. So the changes of what a query reads are followed up through it, beside the content.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from watersmeet.algebra.relations import (
    Aggregate,
    Cause,
    Changes,
    Column,
    Filter,
    Join,
    Project,
    Relation,
    Repartition,
    TopN,
)
from watersmeet.algebra.scalars import Scalar, conjunction, conjuncts
from watersmeet.algebra.times import mentions_time
from watersmeet.algebra.trees import read
from watersmeet.binder.dialects.lenses.records import key_parts
from watersmeet.catalog import KEY_COLUMN, RECORD_TIME
from watersmeet.types import BOOLEAN, TIMESTAMP, SqlType


@dataclass(frozen=True)
class Changed:
    """rows: `Changes` of a node, with its columns. went, at: what `Changes` adds.

    time: the id of the node's own time; None if it has none, or one of each side.
    """

    rows: Relation
    went: Column
    at: Column
    time: str | None


def changes_of(tree: Relation) -> Changed:
    """What comes to and goes from the content of `tree`, a query over tables with a column `@time`."""
    return _Following().of(tree)


class _Following:
    def __init__(self) -> None:
        self._made = 0

    def of(self, node: Relation) -> Changed:
        """The changes of a node: row by row those of its input, of joins and groups by the changes of what they
        read.
        """
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
        """A time of the query's own is that of what comes."""
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

    def _by_itself(self, node: Relation) -> Changed:
        """What takes the place of a row, by the key of records, has caused that it went."""
        time = _named(node, RECORD_TIME)
        rows, match = self._with(node, _key_of(node) or [read(c) for c in node.columns])
        return self._changes(rows, [Cause(None, match, None if time is None else time.id)])

    def _timed(self, node: Filter, below: Changed) -> Changed:
        """Rows that go as time passes have their own time, others that of what caused it."""
        keys = _key_of(node)
        rows, match = self._with(node, keys)
        return self._changes(rows, [Cause(self._told(below, keys), match, below.time)])

    def _joined(self, node: Join) -> Changed:
        """A pair has the time of its sides; a row without partner its own, and that of partners that have just gone.

        Rows that ON keeps from meeting any are told from others by the lack of what it equates.
        """
        sides = [self._side(node, one) for one in (node.left, node.right)]
        equated = [_either(node, a, b, sides[0].time) for a, b in zip(sides[0].equated, sides[1].equated, strict=True)]
        rows, matched = self._with(node, equated)
        causes = []
        for side in sides:
            rows, keys = self._with(rows, side.keys)
            told = self._told(side.changed, [*side.equated, *side.keys])
            causes.append(Cause(told, (*matched, *keys), side.time.id, len(matched)))
        return self._changes(rows, causes)

    def _side(self, node: Join, one: Relation) -> _Side:
        own = conjunction([p for p in conjuncts(node.residual) if p.columns and p.columns <= one.ids])
        equated = [k.left if one is node.left else k.right for k in node.keys]
        if own is not None:
            equated = [
                Scalar(exp.Case(ifs=[exp.If(this=own.expression.copy(), true=e.expression.copy())]), e.type)
                for e in equated
            ]
        time = _named(one, RECORD_TIME)
        assert time is not None, "only records are joined"
        return _Side(self.of(one), equated, _key_of(one), time)

    def _grouped(self, node: Aggregate) -> Changed:
        """A group changes when one of its rows comes or goes."""
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
        told = self._told(below, node.keys)
        return self._changes(node, [Cause(told, tuple(c.id for c in outputs), times[0] if times else None)])

    def _told(self, changed: Changed, match: Sequence[Scalar]) -> Relation:
        columns = [self._column("match", s.type) for s in match]
        return Project(changed.rows, (*columns, self._column("at", TIMESTAMP)), (*match, read(changed.at)))

    def _changes(self, rows: Relation, causes: Sequence[Cause]) -> Changed:
        made = (self._column("went", BOOLEAN), self._column("at", TIMESTAMP))
        return Changed(Changes(rows, tuple(causes), made), *made, causes[0].time if len(causes) == 1 else None)

    def _with(self, node: Relation, scalars: Sequence[Scalar]) -> tuple[Relation, tuple[str, ...]]:
        """The node with the scalars among its columns, and their ids."""
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
    """A side of a join: what it equates, the parts of its key, its time."""

    changed: Changed
    equated: Sequence[Scalar]
    keys: Sequence[Scalar]
    time: Column


def _is_followed(node: Relation) -> bool:
    """True if what is made of the node row by row can be followed so: it has a time, or is made of what has one.

    The newest records are followed as they are read: without the columns that order them, which nobody else reads.
    """
    if isinstance(node, TopN):
        return False
    if isinstance(node, (Join, Aggregate)) or _named(node, RECORD_TIME) is not None:
        return True
    return isinstance(node, (Filter, Project)) and _is_followed(node.input)


def _named(node: Relation, name: str) -> Column | None:
    """The column of the records themselves: those of the sides of a join come before it."""
    return next((c for c in reversed(node.columns) if c.name == name), None)


def _key_of(node: Relation) -> Sequence[Scalar]:
    """The parts of the records' key; none if they have none."""
    key = _named(node, KEY_COLUMN)
    return [] if key is None else key_parts(read(key))


def _either(node: Join, left: Scalar, right: Scalar, time: Column) -> Scalar:
    """What a row of the join has of what ON equates."""
    if node.kind != "full":
        return right if node.kind == "right" else left
    there = exp.Not(this=exp.Is(this=read(time).expression, expression=exp.null()))
    case = exp.Case(ifs=[exp.If(this=there, true=left.expression.copy())], default=right.expression.copy())
    return Scalar(case, left.type)
