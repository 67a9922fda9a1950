r"""The tree of a query, in the forms used to explain a row.

`prepared` is the form that EXPLAIN (LOGICAL) shows: without subqueries, and with conditions where they cost least; but
with all columns. `plain` has the same rows, in nodes that can be written as SQL. `Wide` is plain, but each row also has
the columns of all nodes below from which it is computed: one query returns a row and its inputs, down to the nodes that
combine several rows.

If an expression fails for a row of a view, its innermost failing part is NULL (docs/SEMANTICS.md); in a batch query it
is an error. So `guarded` puts each part of a view's expressions that can fail inside TRY, like
`kernel.evaluation.recovery`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, singledispatchmethod
from typing import Any, Final

import numpy as np
from sqlglot import exp

from watersmeet.algebra.bounded import FileScan, Named, Recursion, SystemScan, TopicScan
from watersmeet.algebra.nodes import (
    Aggregate,
    AggregateCall,
    Apply,
    Arrivals,
    AsofJoin,
    Changes,
    Clock,
    Column,
    Cut,
    Join,
    KeyPair,
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
    WindowFrame,
)
from watersmeet.algebra.properties import revision
from watersmeet.algebra.rewrites import rewrite
from watersmeet.algebra.rewrites.conditions import as_predicate, make_anti_joins, recognise_topn, time_filters
from watersmeet.algebra.rewrites.pushdown import fold_constants, fold_filters, fold_projects, push_filters
from watersmeet.algebra.rewrites.unnesting import unnest
from watersmeet.algebra.scalars import Scalar, column_ref, conjunction, conjuncts
from watersmeet.algebra.trees import Rule, filtered, read, transform_up, walk, with_inputs
from watersmeet.errors import error
from watersmeet.lineage.lookups import (
    CantTellError,
    Ever,
    Moment,
    as_of,
    decisions,
    gives_candidates,
    on_arrival,
    pairs_and_rows_alone,
    reevaluated,
    standing_still,
    undecidable,
    undecidable_then,
    unknown_then,
    with_what_was_decided,
)
from watersmeet.lineage.steps import TRY, Cell
from watersmeet.lineage.subqueries import all_rounds, inlined, numbered_rounds, reads_rounds_within, with_joined_values
from watersmeet.values.types import BOOLEAN, INTEGER, TIMESTAMP, TIMESTAMPTZ
from watersmeet.values.watermarks import Watermark, value

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

#: The functions whose value depends on the order of rows that are equal in the ORDER BY.
_BY_ROWS: Final = frozenset({"row_number", "ntile", "lag", "lead", "first_value", "last_value", "nth_value"})

_RANKS: Final = frozenset({"rank", "dense_rank", "percent_rank", "cume_dist"})
_Order = tuple[tuple[Scalar, ...], tuple[SortKey, ...]]


@dataclass(frozen=True)
class Explained:
    """The query of a view, or an explained query, as of a moment.

    name: for messages. tree: prepared. ties: for each order of a node, the columns that break its ties. times: the
    watermarks of sources at the moment, for `watermarks.value`. then: the tree from which each row can be re-evaluated
    as of its own commit (`lookups`); None if that is impossible. looks_back: each row must be re-evaluated, because
    candidates don't determine its origin. changes: each row is a change of the query's content, reconstructed as of its
    epoch. once: for a query that returns candidates, the tree with its past decisions.
    """

    name: str
    tree: Node
    ties: Mapping[_Order, tuple[str, ...]]
    times: Mapping[str, int]
    then: Node | None = None
    looks_back: bool = False
    changes: bool = False
    once: Node | None = None

    @classmethod
    def of(
        cls, name: str, tree: Node, times: Mapping[str, int], began: Rule, then: Rule, ever: Ever | None
    ) -> Explained:
        """The query with this tree.

        began: as in `lookups.standing_still`. then: unless rows are re-evaluated, replaces scans by those of an earlier
        moment, and versions of rows by the kept ones. ever: reconstructs decisions below nodes that combine rows; None
        if that is impossible. Raises FEATURE_NOT_SUPPORTED for results that can't be computed again.
        """
        _check(name, map(_forgotten, walk(tree)))
        joined = with_joined_values(inlined(tree))
        made = standing_still(prepared(joined), began)
        why = undecidable(made) or next(filter(None, map(_replaced, walk(made))), None)
        why_then = undecidable_then(made)
        decided = made if why_then is None else None
        if why is not None:
            if decided is not None:
                return cls(name, decided, _ties(joined), times, decided, looks_back=True)
            if ever is None:
                _check(name, [why_then or why])
            else:
                made = _reconstructed(name, made, ever, why_then)
        once = made if gives_candidates(made) else None
        return cls(name, transform_up(on_arrival(made), then), _ties(joined), times, decided, once=once)

    @classmethod
    def of_changes(cls, name: str, tree: Node, times: Mapping[str, int]) -> Explained:
        """The query of a relation whose rows are the changes of a query's content. Raises FEATURE_NOT_SUPPORTED like
        `of`.
        """
        _check(name, map(_forgotten, walk(tree)))
        joined = with_joined_values(inlined(tree))
        made = prepared(joined)
        if unknown_then(made) or any(isinstance(n, TimeFilter) for n in walk(made)):
            _check(name, ["Its records are the changes of what can't be told as of an earlier moment"])
        return cls(name, made, _ties(joined), times, made, looks_back=True, changes=True)

    def as_of(self, moment: Moment) -> Explained:
        """For a query whose rows can be re-evaluated, its output in one commit; for changes, the content as of the
        commit.
        """
        assert self.then is not None
        if self.changes:
            return Explained(self.name, as_of(self.then, moment), self.ties, moment.times)
        return Explained(self.name, reevaluated(self.then, moment), self.ties, moment.times)

    def reconstructed(self, ever: Ever) -> Explained:
        """The same query with past decisions as content. Raises CantTellError."""
        assert self.once is not None
        return Explained(self.name, with_what_was_decided(self.once, ever), self.ties, self.times)

    @cached_property
    def waits(self) -> bool:
        """Whether rows wait in the query, so that earlier rows are candidates as of each commit."""
        return self.then is not None and any(isinstance(n, TemporalJoin) and n.waits for n in walk(self.then))

    @cached_property
    def revises(self) -> bool:
        """Whether rows of the re-evaluated query may be deleted later."""
        return self.then is not None and revision(self.then) is not None

    @cached_property
    def decisions(self) -> str:
        """The decisions that the query made once, when rows arrived; empty if it made none."""
        return "; ".join(decisions(self.tree))


def _reconstructed(name: str, tree: Node, ever: Ever, why: str | None) -> Node:
    """The tree with past decisions as content. why: the reason, in the relation looked up, why its rows can't be
    re-evaluated separately.
    """
    try:
        made = with_what_was_decided(tree, ever)
    except CantTellError as err:
        _check(name, [why or str(err)])
    else:
        _check(name, map(_replaced, walk(made)))
    return made


def prepared(tree: Node) -> Node:
    """The tree that is explained, with the same rows."""
    for rule in _RULES:
        tree = rule(tree)
    by_place = [i.ids for n in walk(tree) if isinstance(n, (Recursion, Union)) for i in n.inputs]
    used = tree.ids.union(*[n.reads for n in walk(tree)], *by_place)
    return transform_up(tree, lambda n: n.input if isinstance(n, Window) and used.isdisjoint(_ids(n.outputs)) else n)


def _ids(columns: Sequence[Column]) -> frozenset[str]:
    return frozenset(c.id for c in columns)


def _ties(tree: Node) -> dict[_Order, tuple[str, ...]]:
    """The columns that break the ties of each order: those that its node or a node above reads."""
    if not any(isinstance(n, (AsofJoin, TopN, Window)) for n in walk(tree)):
        return {}
    found: dict[_Order, tuple[str, ...]] = {}
    for node in walk(rewrite(tree)):
        if isinstance(node, TopN):
            found[(node.partition, node.order)] = tuple(c.id for c in node.input.columns)
        if isinstance(node, AsofJoin):
            found[_values(node)] = tuple(c.id for c in node.right.columns)
        if isinstance(node, Window):
            for call in node.calls:
                found.setdefault((node.partition, call.order), tuple(c.id for c in node.input.columns))
    return found


# -- what can't be computed again -------------------------------------------------------------------------------------
def _check(name: str, reasons: Iterable[str | None]) -> None:
    """Raises FEATURE_NOT_SUPPORTED for a query with decisions that can't be repeated."""
    why = next((r for r in reasons if r is not None), None)
    if why is not None:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"a row of {name} can't be explained",
            detail=f"{why}, so its query can't be run again for one row.",
        )


def _forgotten(node: Node) -> str | None:
    if isinstance(node, Clock):
        return "Its rows have the times at which they were computed, which only its own state keeps"
    if isinstance(node, (Records, Changes)):
        return "It reads the changes of a relation one by one, and only its content is kept"
    if isinstance(node, AsofJoin) and node.arrival and isinstance(node.right, Versions):
        return "It looks up versions of rows once, when others arrive, and which versions there were then is not kept"
    if isinstance(node, Recursion) and (node.free or reads_rounds_within(node)):
        return "It has a recursion within another one or within a subquery, whose rows it reads in each round"
    if isinstance(node, (FileScan, SystemScan, TopicScan)):
        return "It reads what is outside of the database's relations"
    return None


def _replaced(node: Node) -> str | None:
    if isinstance(node, Arrivals) and not node.scan.append_only:
        return "It counts rows that were replaced or deleted since"
    return None


# -- plain ------------------------------------------------------------------------------------------------------------
def plain(tree: Node, explained: Explained) -> Node:
    """A tree with the same rows, in nodes that can be written as SQL."""
    if isinstance(tree, Recursion):
        return all_rounds(tree)
    node = with_inputs(tree, [plain(i, explained) for i in tree.inputs])
    return _written(node, explained, candidates=gives_candidates(tree))


def _written(node: Node, explained: Explained, *, candidates: bool) -> Node:
    """The node in plain SQL operators. candidates: whether a join or ASOF join returns all its candidate pairs."""
    if isinstance(node, (Cut, LateRowFilter, Repartition)):
        return node.input
    if candidates and isinstance(node, (Join, AsofJoin)):
        return _candidates(node)
    if isinstance(node, TimeFilter):
        return filtered(node.input, [time_condition(node, explained)])
    if isinstance(node, AsofJoin):
        return _nearest(node, explained, node.right)
    if isinstance(node, TopN):
        return ordered_whole(node, node.input, explained)
    if isinstance(node, Window):
        return _window(node, node.input, explained)
    return node


def time_condition(node: TimeFilter, explained: Explained) -> Scalar:
    """The comparison of the time column with the value of the bound at the explained commit."""
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
    """The value of a bound at the moment, for a comparison with a column; None if it is not known yet."""
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
    """The TopN over the given rows, with a total order."""
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


def _candidates(node: Join | AsofJoin) -> Node:
    """The rows that a join over plain inputs may have output."""
    if isinstance(node, AsofJoin):
        near = conjunction([_compared(node), *conjuncts(node.residual)])
        node = Join(node.left, node.right, node.kind, node.keys, near)
    if node.kind == "semi":
        return replace(node, arrival=False)
    return node.left if node.kind == "anti" else pairs_and_rows_alone(node)


def _compared(node: AsofJoin) -> Scalar:
    kinds: dict[str, type[exp.Binary]] = {"<": exp.LT, "<=": exp.LTE, ">": exp.GT, ">=": exp.GTE}
    compared = kinds[node.comparison](
        this=exp.paren(node.left_value.expression), expression=exp.paren(node.right_value.expression)
    )
    return Scalar(compared, BOOLEAN)


def on_the_right_side(node: AsofJoin) -> list[Scalar]:
    """The conditions by which right rows with an equal key are on the correct side of a left row's value."""
    return [*map(as_predicate, node.keys), _compared(node)]


def _nearest(node: AsofJoin, explained: Explained, below: Node) -> Apply:
    """The join as a lateral query for the nearest row of each left row."""
    by_id = {c.id: c for c in node.right.columns}
    ties = [by_id[i] for i in node.ties or explained.ties.get(_values(node), tuple(by_id)) if i in by_id]
    order = (SortKey(node.right_value, node.comparison[0] == ">"), *(SortKey(read(c)) for c in ties))
    nearest: Node = TopN(filtered(below, on_the_right_side(node)), (), order, 1)
    if node.residual is not None:
        nearest = filtered(nearest, conjuncts(node.residual))
    return Apply(node.left, nearest, node.kind)


def _values(node: AsofJoin) -> _Order:
    return (node.left_value, node.right_value), ()


# -- wide -------------------------------------------------------------------------------------------------------------
@dataclass
class Wide:
    """The wide form of a tree.

    present: for each side of an outer join (by identity), the column that is true where the side has a row. parts: for
    each Union (by identity), the column with the number of a row's part. rounds: for each Recursion (by identity), the
    column with the number of a row's round.
    """

    explained: Explained
    tree: Node
    present: dict[int, Column] = field(default_factory=dict)
    parts: dict[int, Column] = field(default_factory=dict)
    rounds: dict[int, Column] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.node = self.widened(self.tree)

    def _column(self, kind: object) -> Column:
        return Column(f"#w{next(self._numbers)}", "", BOOLEAN if kind is bool else INTEGER, False)

    def _marked(self, node: Node, made: Node, *, padded: bool) -> Node:
        """A side of a join, with a column that distinguishes its rows from NULLs for a missing row."""
        if not padded:
            return made
        column = self.present[id(node)] = self._column(bool)
        outputs = (*made.columns, column)
        return Project(made, outputs, (*map(read, made.columns), Scalar(exp.true(), BOOLEAN, False)))

    @singledispatchmethod
    def widened(self, node: Node) -> Node:
        """A node with the columns of its input rows."""
        if isinstance(node, Unary):
            return node.over([self.widened(node.input)])
        assert isinstance(node, (Leaf, Arrivals, Named)), type(node).__name__
        return node

    @widened.register
    def _(self, node: Recursion) -> Node:
        column = self.rounds[id(node)] = self._column(int)
        return numbered_rounds(node, column)

    @widened.register
    def _(self, node: Project) -> Node:
        below = self.widened(node.input)
        made = [(c, e) for c, e in zip(node.outputs, node.exprs, strict=True) if c.id not in below.ids]
        outputs, exprs = (*below.columns, *(c for c, _ in made)), (*map(read, below.columns), *(e for _, e in made))
        return Project(below, outputs, exprs)

    @widened.register
    def _(self, node: Join) -> Node:
        decided = gives_candidates(node)
        if node.kind in ("semi", "anti"):
            made = replace(node, left=self.widened(node.left), right=plain(node.right, self.explained))
            return _candidates(made) if decided else made
        left = self._marked(node.left, self.widened(node.left), padded=not node.keeps_left)
        right = self._marked(node.right, self.widened(node.right), padded=not node.keeps_right)
        made = replace(node, left=left, right=right)
        return _candidates(made) if decided else made

    @widened.register
    def _(self, node: AsofJoin) -> Node:
        right = self._marked(node.right, self.widened(node.right), padded=not node.keeps_right)
        if gives_candidates(node):
            return _candidates(replace(node, left=self.widened(node.left), right=right))
        return _nearest(replace(node, left=self.widened(node.left)), self.explained, right)

    @widened.register
    def _(self, node: TimeFilter) -> Node:
        return filtered(self.widened(node.input), [time_condition(node, self.explained)])

    @widened.register
    def _(self, node: Cut | LateRowFilter | Repartition) -> Node:
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


_PARTS: Final = (AggregateCall, KeyPair, Node, SortKey, WindowCall, WindowFrame)
_NEVER_FAILS: Final = (exp.Column, exp.Literal, exp.Null, exp.Boolean)

#: Nodes that can't raise an error themselves, or have no value.
_OPEN: Final = (exp.Paren, exp.Connector, exp.Not, exp.If, exp.PropertyEQ, exp.Query)

_COMPARES: Final = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Is)


def guarded(explained: Explained) -> Explained:
    """The same query with NULL where an expression fails."""
    return replace(
        explained,
        tree=_guarded(explained.tree),
        then=_guarded(explained.then),
        once=_guarded(explained.once),
        ties={_guarded(order): ids for order, ids in explained.ties.items()},
    )


def _guarded(value: Any) -> Any:
    """A node, or a part of one, with all its expressions inside TRY."""
    if isinstance(value, Scalar):
        return _guard(value)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(map(_guarded, value))
    if isinstance(value, _PARTS):
        changed = {f.name: _guarded(getattr(value, f.name)) for f in fields(value)}  # type: ignore[arg-type]
        return replace(value, **changed)  # type: ignore[type-var]
    return value


def _guard(scalar: Scalar) -> Scalar:
    return Scalar(_tried(scalar.expression), scalar.type)


def _tried(node: exp.Expression) -> exp.Expression:
    """The expression, in which each part that can fail is inside TRY."""
    root = exp.Paren(this=node.copy())
    for part in list(root.this.walk())[::-1]:  # operands precede what is computed from them
        if _can_fail(part):
            made = exp.Anonymous(this=TRY)
            part.replace(made)
            made.append("expressions", part)
    return root.this.copy()


def _can_fail(node: exp.Expression) -> bool:
    if not isinstance(node, exp.Condition) or isinstance(node, _OPEN) or isinstance(node.parent, exp.Escape):
        return False
    is_test = isinstance(node, exp.Is) and isinstance(node.expression, (exp.Null, exp.Boolean))
    return not is_test and not _is_safe(node)


def _is_safe(node: exp.Expression) -> bool:
    if isinstance(node, _COMPARES):
        return _is_safe(node.left) and _is_safe(node.right)
    if isinstance(node, exp.Paren):
        return _is_safe(node.this)
    return isinstance(node, _NEVER_FAILS)
