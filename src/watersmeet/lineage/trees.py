"""The tree of a query in the forms in which a row is explained.

`prepared`: as its user knows it from EXPLAIN (LOGICAL): without subqueries, conditions where they cost least. Columns
are all still there.
`plain`: the same rows, in nodes that can be written as SQL.
`Wide`: plain, but each row also has the columns of all nodes below that it is made of: one query gives a row and what
it comes from, up to the nodes that make one row of many.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatchmethod
from typing import Final

import numpy as np
from sqlglot import exp

from watersmeet.algebra.bounded import FileScan, Named, Recursion, SystemScan, TopicScan
from watersmeet.algebra.nodes import (
    Aggregate,
    Apply,
    Arrivals,
    AsofJoin,
    Changes,
    Column,
    Cut,
    Filter,
    Join,
    LateRowFilter,
    Leaf,
    Node,
    Project,
    Records,
    Repartition,
    SortKey,
    TemporalJoin,
    TimeFilter,
    TopN,
    Unary,
    Union,
    Versions,
    Window,
    WindowCall,
)
from watersmeet.algebra.rewrites import rewrite
from watersmeet.algebra.rewrites.antijoins import make_anti_joins
from watersmeet.algebra.rewrites.folding import fold_constants, fold_filters, fold_projects
from watersmeet.algebra.rewrites.keys import as_predicate
from watersmeet.algebra.rewrites.pushdown import push_filters
from watersmeet.algebra.rewrites.timefilters import time_filters
from watersmeet.algebra.rewrites.topn import recognise_topn
from watersmeet.algebra.rewrites.unnesting import unnest
from watersmeet.algebra.scalars import Scalar, column_ref, conjuncts
from watersmeet.algebra.trees import Rule, filtered, read, transform_up, walk
from watersmeet.errors import error
from watersmeet.lineage.cells import Cell
from watersmeet.types import BOOLEAN, INTEGER, TIMESTAMP, TIMESTAMPTZ
from watersmeet.watermarks import Watermark, value

_RULES: Final[tuple[Rule, ...]] = (
    unnest,
    fold_constants,
    fold_filters,
    push_filters,
    make_anti_joins,
    push_filters,
    fold_constants,
    recognise_topn,
    time_filters,
    fold_projects,
)
#: Functions whose value depends on the order of rows that are equal in the order.
_BY_ROWS: Final = frozenset({"row_number", "ntile", "lag", "lead", "first_value", "last_value", "nth_value"})
_RANKS: Final = frozenset({"rank", "dense_rank", "percent_rank", "cume_dist"})

_Order = tuple[tuple[Scalar, ...], tuple[SortKey, ...]]


@dataclass(frozen=True)
class Explained:
    """The query of a view, or one that is explained itself, and what is known of the moment at which it is.

    name: for messages. tree: prepared. ties: for each order of a node, the columns that break its ties.
    times: the numbers of the sources at the moment, for `watermarks.value`.
    """

    name: str
    tree: Node
    ties: Mapping[_Order, tuple[str, ...]]
    times: Mapping[str, int]

    @classmethod
    def of(cls, name: str, tree: Node, times: Mapping[str, int]) -> Explained:
        """FEATURE_NOT_SUPPORTED for what can't be computed again."""
        check_repeatable(name, tree)
        return cls(name, prepared(_without_names(tree)), _ties(tree), times)


def prepared(tree: Node) -> Node:
    """The tree as it is explained: the same rows."""
    for rule in _RULES:
        tree = rule(tree)
    used = tree.ids.union(*[n.reads for n in walk(tree)])
    return transform_up(tree, lambda n: n.input if isinstance(n, Window) and used.isdisjoint(_ids(n.outputs)) else n)


def _ids(columns: Sequence[Column]) -> frozenset[str]:
    return frozenset(c.id for c in columns)


def _without_names(tree: Node) -> Node:
    def inlined(node: Node) -> Node:
        if not isinstance(node, Named) or node.definition is None:
            return node
        return Project(node.definition, node.outputs, tuple(read(c) for c in node.definition.columns))

    return transform_up(tree, inlined)


def _ties(tree: Node) -> dict[_Order, tuple[str, ...]]:
    """Rows that an order leaves equal are ordered by the columns that are read there or above it."""
    if not any(isinstance(n, (AsofJoin, TopN, Window)) for n in walk(tree)):
        return {}
    found: dict[_Order, tuple[str, ...]] = {}
    for node in walk(rewrite(_without_names(tree))):
        if isinstance(node, TopN):
            found[(node.partition, node.order)] = tuple(c.id for c in node.input.columns)
        if isinstance(node, AsofJoin):
            found[_values(node)] = tuple(c.id for c in node.right.columns)
        if isinstance(node, Window):
            for call in node.calls:
                found.setdefault((node.partition, call.order), tuple(c.id for c in node.input.columns))
    return found


# -- what can't be computed again -------------------------------------------------------------------------------------


def check_repeatable(name: str, tree: Node) -> None:
    """FEATURE_NOT_SUPPORTED for a query with results that were decided once and that nothing can decide again."""
    for node in walk(tree):
        why = _decided(node)
        if why is not None:
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f"a row of {name} can't be explained",
                detail=f"{why}, so its query can't be run again for one row.",
                span=getattr(node, "span", None),
            )


def _decided(node: Node) -> str | None:
    if isinstance(node, TemporalJoin):
        return "It looks rows up as they are when others arrive (a process-time join), and does not keep what it found"
    if isinstance(node, (Join, AsofJoin, Apply)) and node.arrival:
        return "What it outputs ON ARRIVAL is never revised"
    if isinstance(node, Join) and node.partners is not None:
        return "Its outer join decides by clocks which rows have no partner"
    if isinstance(node, Cut) and node.keeps == "after":
        return "It has only the rows that came after it began, and the database does not keep which these are"
    if isinstance(node, Cut):
        return "It has the rows that were there when it began, and the database does not keep which these are"
    if isinstance(node, (Records, Changes)):
        return "It reads the changes of a relation one by one, not its content"
    if isinstance(node, Versions):
        return "It reads earlier versions of rows, which only its own state keeps"
    if isinstance(node, Arrivals) and not node.scan.append_only:
        return "It counts rows that were replaced or deleted since"
    if isinstance(node, LateRowFilter):
        return "It leaves out rows that come too late for one another"
    if isinstance(node, Recursion):
        return "It is recursive"
    if isinstance(node, (FileScan, SystemScan, TopicScan)):
        return "It reads what is outside of the database's relations"
    if isinstance(node, Apply) and node.kind in ("scalar", "array"):
        return "It has a subquery in the place of a value"
    return None


# -- plain ------------------------------------------------------------------------------------------------------------


def plain(tree: Node, explained: Explained) -> Node:
    """The same rows, in nodes that can be written as SQL."""
    return transform_up(tree, lambda node: _written(node, explained))


def _written(node: Node, explained: Explained) -> Node:
    if isinstance(node, TimeFilter):
        return filtered(node.input, [time_condition(node, explained)])
    if isinstance(node, AsofJoin):
        return _nearest(node, explained, node.right)
    if isinstance(node, Repartition):
        return node.input
    if isinstance(node, TopN):
        return ordered_whole(node, node.input, explained)
    if isinstance(node, Window):
        return _window(node, node.input, explained)
    return node


def time_condition(node: TimeFilter, explained: Explained) -> Scalar:
    """The comparison of a time with its bound at the moment."""
    column = next(c for c in node.columns if c.id == node.column)
    bound = bound_cell(node.bound, explained.times, column)
    waits = node.comparison[0] == "<"
    own = column_ref(column.id)
    if bound is None:
        known: exp.Expression = exp.false() if waits else exp.Not(this=exp.Is(this=own, expression=exp.null()))
    else:
        kinds: dict[str, type[exp.Binary]] = {"<": exp.LT, "<=": exp.LTE, ">": exp.GT, ">=": exp.GTE}
        known = kinds[node.comparison](this=own, expression=bound.literal.expression)
    if node.untimed:
        known = exp.paren(exp.Or(this=known, expression=exp.Is(this=own.copy(), expression=exp.null())))
    return Scalar(known, BOOLEAN)


def bound_cell(bound: Watermark, times: Mapping[str, int], column: Column) -> Cell | None:
    """A bound at the moment, to be compared with a column; None if it is not known yet."""
    time_us = value(bound, times)
    if time_us is None:
        return None
    text = str(np.datetime64(time_us, "us")).replace("T", " ").removesuffix(".000000")
    return Cell(text + "+00", TIMESTAMPTZ) if column.type == TIMESTAMPTZ else Cell(text, TIMESTAMP)


def _tied(node: Node, key: _Order, explained: Explained, skip: Sequence[SortKey]) -> tuple[SortKey, ...]:
    """The keys that break the ties of an order over the rows of `node`."""
    by_id = {c.id: c for c in node.columns}
    said = {k.value.column for k in skip}
    ids = explained.ties.get(key, tuple(by_id))
    return tuple(SortKey(read(by_id[i])) for i in ids if i in by_id and i not in said)


def ordered_whole(node: TopN, below: Node, explained: Explained) -> TopN:
    """A TopN over other rows, its order made one without ties."""
    if node.with_ties:
        return replace(node, input=below)
    ties = _tied(node.input, (node.partition, node.order), explained, node.order)
    return replace(node, input=below, order=(*node.order, *ties))


def _window(node: Window, below: Node, explained: Explained) -> Window:
    def whole(call: WindowCall) -> WindowCall:
        by_rows = call.function in _BY_ROWS or (call.frame.mode == "rows" and call.function not in _RANKS)
        if not by_rows:
            return call
        return replace(
            call, order=(*call.order, *_tied(node.input, (node.partition, call.order), explained, call.order))
        )

    return replace(node, input=below, calls=tuple(map(whole, node.calls)))


def candidates(node: AsofJoin, below: Node) -> Filter:
    """The rows of the right side, `below`, that are on the right side of a left row's value, with an equal key."""
    kinds: dict[str, type[exp.Binary]] = {"<": exp.LT, "<=": exp.LTE, ">": exp.GT, ">=": exp.GTE}
    compared = kinds[node.comparison](
        this=exp.paren(node.left_value.expression), expression=exp.paren(node.right_value.expression)
    )
    found = filtered(below, [*map(as_predicate, node.keys), Scalar(compared, BOOLEAN)])
    assert isinstance(found, Filter)
    return found


def _nearest(node: AsofJoin, explained: Explained, below: Node) -> Apply:
    """The join as one in which the right side is asked for the nearest row of each left row."""
    by_id = {c.id: c for c in node.right.columns}
    ties = [by_id[i] for i in node.ties or explained.ties.get(_values(node), tuple(by_id)) if i in by_id]
    order = (SortKey(node.right_value, node.comparison[0] == ">"), *(SortKey(read(c)) for c in ties))
    nearest: Node = TopN(candidates(node, below), (), order, 1)
    if node.residual is not None:
        nearest = filtered(nearest, conjuncts(node.residual))
    return Apply(node.left, nearest, node.kind)


def _values(node: AsofJoin) -> _Order:
    return (node.left_value, node.right_value), ()


# -- wide -------------------------------------------------------------------------------------------------------------


@dataclass
class Wide:
    """The wide form of a tree. node: it.

    present: by the identity of a node that is a side of an outer join, the column that is true where it has a row.
    parts: by the identity of a Union, the column with the number of the part that a row is of.
    """

    explained: Explained
    tree: Node
    present: dict[int, Column] = field(default_factory=dict)
    parts: dict[int, Column] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.node = self.widened(self.tree)

    def _column(self, kind: object) -> Column:
        return Column(f"#w{next(self._numbers)}", "", BOOLEAN if kind is bool else INTEGER, False)

    def _marked(self, node: Node, made: Node, *, padded: bool) -> Node:
        """A side of a join, with a column that tells its rows from the NULLs in their place."""
        if not padded:
            return made
        column = self.present[id(node)] = self._column(bool)
        outputs = (*made.columns, column)
        return Project(made, outputs, (*map(read, made.columns), Scalar(exp.true(), BOOLEAN, False)))

    @singledispatchmethod
    def widened(self, node: Node) -> Node:
        """A node with the columns of what its rows are made of."""
        if isinstance(node, Unary):
            return node.over([self.widened(node.input)])
        assert isinstance(node, (Leaf, Arrivals)), type(node).__name__
        return node

    @widened.register
    def _(self, node: Project) -> Node:
        below = self.widened(node.input)
        made = [(c, e) for c, e in zip(node.outputs, node.exprs, strict=True) if c.id not in below.ids]
        outputs, exprs = (*below.columns, *(c for c, _ in made)), (*map(read, below.columns), *(e for _, e in made))
        return Project(below, outputs, exprs)

    @widened.register
    def _(self, node: Join) -> Node:
        if node.kind in ("semi", "anti"):
            return replace(node, left=self.widened(node.left), right=plain(node.right, self.explained))
        left = self._marked(node.left, self.widened(node.left), padded=not node.keeps_left)
        right = self._marked(node.right, self.widened(node.right), padded=not node.keeps_right)
        return replace(node, left=left, right=right)

    @widened.register
    def _(self, node: AsofJoin) -> Node:
        right = self._marked(node.right, self.widened(node.right), padded=not node.keeps_right)
        return _nearest(replace(node, left=self.widened(node.left)), self.explained, right)

    @widened.register
    def _(self, node: TimeFilter) -> Node:
        return filtered(self.widened(node.input), [time_condition(node, self.explained)])

    @widened.register
    def _(self, node: Repartition) -> Node:
        return self.widened(node.input)

    @widened.register
    def _(self, node: TopN) -> Node:
        return ordered_whole(node, self.widened(node.input), self.explained)

    @widened.register
    def _(self, node: Window) -> Node:
        return _window(node, self.widened(node.input), self.explained)

    @widened.register
    def _(self, node: Aggregate) -> Node:
        return plain(node, self.explained)

    @widened.register
    def _(self, node: Union) -> Node:
        column = self.parts[id(node)] = self._column(int)
        parts = []
        for number, part in enumerate(node.parts):
            made = plain(part, self.explained)
            own = Column(f"{column.id}.{number}", "", INTEGER, False)
            literal = Scalar(exp.cast(exp.Literal.number(number), "INTEGER", dialect="duckdb"), INTEGER, False)
            parts.append(Project(made, (*made.columns, own), (*map(read, made.columns), literal)))
        return Union(tuple(parts), (*node.outputs, column))
