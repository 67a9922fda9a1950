"""Turns dependent joins into plain joins with the conditions that are lifted out of their right sides.

After `unnest` no tree has an `Apply`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Final

from sqlglot import exp

from watersmeet.algebra.nodes import (
    Aggregate,
    AggregateCall,
    Apply,
    Column,
    Filter,
    Join,
    JoinKind,
    Node,
    Project,
    TemporalJoin,
    Values,
)
from watersmeet.algebra.properties import asked_on_arrival
from watersmeet.algebra.rewrites.lifting import (
    Equality,
    Lifted,
    Lifting,
    Names,
    case,
    equality,
    equals,
    inequality,
    is_not_null,
    is_null,
    is_one_constant_row,
    one_row,
    reference,
)
from watersmeet.algebra.rewrites.pushdown import is_volatile, push_filters
from watersmeet.algebra.scalars import Scalar, conjunction, conjuncts
from watersmeet.algebra.trees import exactly, filtered, read, walk, with_inputs
from watersmeet.errors import error
from watersmeet.values.types import BIGINT, BOOLEAN

#: The maximum number of joins for a NOT IN of rows: those of three columns that can be NULL on both sides.
_MOST_WAYS: Final = 27

_TRUE = Scalar(exp.true(), BOOLEAN, nullable=False)


@dataclass(frozen=True)
class Keyed:
    """A right side that only equalities link to the left side.

    pure: the conditions that read only the left side.
    mapping: columns of the right side that replace columns of the left side in expressions over both.
    """

    right: Node
    equalities: tuple[Equality, ...]
    pure: tuple[Scalar, ...]
    mapping: Mapping[str, Scalar]

    @property
    def keys(self) -> tuple[Scalar, ...]:
        """The distinct right operands of the equalities."""
        return tuple(dict.fromkeys(e.inner for e in self.equalities))

    def over(self, outputs: Sequence[Column]) -> list[Scalar]:
        """The conditions of a join, with the columns `outputs` instead of `keys`."""
        keys = self.keys
        return [
            *self.pure,
            *[
                equals(read(outputs[keys.index(e.inner)]), Scalar(e.outer, e.inner.type), null_safe=e.null_safe)
                for e in self.equalities
            ],
        ]


class Joining:
    """Joins the two sides of a dependent join."""

    def __init__(self, node: Apply, names: Names) -> None:
        self.node = node
        self.names = names
        self.left = node.left
        self.arrival = asked_on_arrival(node)
        self.lifting = Lifting(node.left, names, node.span)
        self.lifted = self.lifting.lift(node.right)
        self.pairs = [(k.left, self.lifted.resolve(k.right)) for k in node.pairs]

    def joined(self) -> Node:
        """The tree that replaces the dependent join."""
        node, lifted = self.node, self.lifted
        if node.kind in ("inner", "left"):
            return self._lateral()
        if lifted.total:
            return self._of_one_row()
        if node.kind == "mark":
            assert node.mark is not None
            relation, value = self._three_valued() if node.null_aware else self._two_valued()
            return self._with_mark(relation, value)
        if node.kind == "anti" and node.null_aware:
            return self._not_in()
        return self._existence(
            self.left, lifted.relation, "semi" if node.kind == "semi" else "anti", [*lifted.conditions, *self._equal()]
        )

    def _equal(self) -> list[Scalar]:
        return [equals(a, b) for a, b in self.pairs]

    def _with_mark(self, relation: Node, value: Scalar) -> Node:
        assert self.node.mark is not None
        columns = self.left.columns
        return Project(relation, (*columns, self.node.mark), (*[read(c) for c in columns], value))

    # -- LATERAL and scalar subqueries --------------------------------------------------------------------------

    def _lateral(self) -> Node:
        node, lifted = self.node, self.lifted
        if is_one_constant_row(lifted.relation) and (node.kind == "inner" or not lifted.conditions):
            row = lifted.relation
            assert isinstance(row, Values)
            constants = Project(
                self.left, self.left.columns + row.outputs, (*[read(c) for c in self.left.columns], *row.rows[0])
            )
            return self._outputs(filtered(constants, lifted.conditions), lifted, None)
        if node.kind == "inner" and not lifted.total:
            return self._outputs(self._join(self.left, lifted.relation, "inner", lifted.conditions), lifted, None)
        if lifted.total or not lifted.deferred:
            return self._outputs(self._join(self.left, lifted.relation, "left", lifted.conditions), lifted, None)
        marked, found = self._marked(lifted.relation)
        return self._outputs(self._join(self.left, marked, "left", lifted.conditions), lifted, found)

    def _outputs(self, joined: Node, lifted: Lifted, found: Column | None) -> Node:
        """The columns of both sides; deferred ones are NULL where `found` is NULL."""
        if not lifted.deferred:
            return exactly(joined, self.node.columns)
        exprs = []
        for column in self.node.columns:
            value = lifted.value(column)
            if found is not None and column.id in lifted.deferred:
                value = case([(is_not_null(read(found)), value.expression)], None, column.type)
            exprs.append(value)
        return Project(joined, self.node.columns, tuple(exprs))

    def _of_one_row(self) -> Node:
        """A predicate over a right side with exactly one row for each left row."""
        node = self.node
        joined = self._join(self.left, self.lifted.relation, "left", self.lifted.conditions)
        equal = conjunction([equals(a, b) for a, b in self.pairs]) or _TRUE
        known = Scalar(
            exp.Coalesce(this=exp.paren(equal.expression), expressions=[exp.false()]), BOOLEAN, nullable=False
        )
        if node.kind == "mark":
            return self._with_mark(joined, equal if node.null_aware else known)
        if node.kind == "semi":
            return exactly(filtered(joined, conjuncts(equal)), self.left.columns)
        passed = exp.Not(this=exp.paren((equal if node.null_aware else known).expression))
        return exactly(filtered(joined, [Scalar(passed, BOOLEAN)]), self.left.columns)

    # -- semi and anti joins ------------------------------------------------------------------------------------

    def _join(
        self, left: Node, right: Node, kind: JoinKind, parts: Iterable[Scalar], *, broadcast: bool = False
    ) -> Node:
        """A join of the left side.

        A left row is not kept in the state if the right side is evaluated on its arrival or never changes.
        """
        condition = conjunction(list(parts))
        if self.arrival and kind in ("inner", "left"):
            return TemporalJoin(
                left, right, "left" if kind == "left" else "inner", (), condition, None, span=self.node.span
            )
        arrival = self.arrival and kind in ("semi", "anti")
        return Join(
            left,
            right,
            kind,
            (),
            condition,
            broadcast or isinstance(right, Values),
            span=self.node.span,
            arrival=arrival,
        )

    def _existence(self, left: Node, right: Node, kind: JoinKind, parts: Sequence[Scalar]) -> Node:
        """The rows of `left` for which some row of `right`, or no row, satisfies all parts.

        If no part links the sides, a single row of `right` suffices.
        """
        right, linking = _own_parts(left, right, parts)
        if not any(p.columns & right.ids for p in linking):
            return self._join(left, one_row(right, self.names), kind, linking, broadcast=True)
        return self._by_extreme(left, right, kind, linking) or self._join(left, right, kind, linking)

    def _by_extreme(self, left: Node, right: Node, kind: JoinKind, linking: Sequence[Scalar]) -> Node | None:
        """A join with a single row of `right` if only an inequality links the sides: x < some y if x < the greatest
        y.
        """
        found = [(p, inequality(p, right)) for p in linking if p.columns & right.ids]
        if len(found) != 1 or found[0][1] is None:
            return None
        part, (function, inner) = found[0][0], found[0][1]
        best = self.names.new(function, inner.type, nullable=True)
        call = AggregateCall(function, inner, None, distinct=False, type=inner.type)
        joined = self._join(left, Aggregate(right, (), (call,), (best,)), "left", [])
        changed = part.expression.transform(lambda n: reference(best) if n == inner.expression else n)
        tests = [Scalar(changed, BOOLEAN), *[p for p in linking if p is not part]]
        if kind == "anti":
            whole = conjunction(tests)
            assert whole is not None
            known = exp.Coalesce(this=exp.paren(whole.expression), expressions=[exp.false()])
            tests = [Scalar(exp.Not(this=known), BOOLEAN, nullable=False)]
        return exactly(filtered(joined, tests), left.columns)

    def _not_in(self) -> Node:
        """NOT IN: the rows of `left` to which no row is equal and for which no comparison is NULL."""
        lifted = self.lifted
        unsure = [(a, b) for a, b in self.pairs if a.nullable or b.nullable]
        if not unsure:
            return self._existence(self.left, lifted.relation, "anti", [*lifted.conditions, *self._equal()])
        if len(unsure) < len(self.pairs) or any(p.columns & lifted.relation.ids for p in lifted.conditions):
            return self._existence(self.left, lifted.relation, "anti", [*lifted.conditions, *self._not_unequal()])
        result = self.left
        for parts in self._unrefuted():
            result = self._existence(result, lifted.relation, "anti", [*lifted.conditions, *parts])
        return result

    def _not_unequal(self) -> list[Scalar]:
        """The conditions that the sides of each pair are equal or one of them is NULL."""
        parts = []
        for a, b in self.pairs:
            choices = [equals(a, b), *[is_null(v) for v in (a, b) if v.nullable]]
            either = (
                exp.paren(exp.or_(*[c.expression for c in choices], copy=True))
                if len(choices) > 1
                else choices[0].expression
            )
            parts.append(Scalar(either, BOOLEAN))
        return parts

    def _unrefuted(self) -> list[list[Scalar]]:
        """The ways in which no pair of the sides is unequal: each is equal, or its right or its left side is NULL. Each
        condition reads one side or is an equality, so that no way needs a nested loop.
        """
        choices = [[equals(a, b), *[is_null(v) for v in (b, a) if v.nullable]] for a, b in self.pairs]
        if prod(map(len, choices)) > _MOST_WAYS:
            raise error(
                "FEATURE_NOT_SUPPORTED",
                "NOT IN of rows with more than three columns that can be NULL is not supported",
                span=self.node.span,
                hint="Write NOT EXISTS, or add IS NOT NULL to both sides.",
            )
        return [list(way) for way in product(*choices)]

    # -- marks --------------------------------------------------------------------------------------------------

    def _two_valued(self) -> tuple[Node, Scalar]:
        parts = [*self.lifted.conditions, *self._equal()]
        relation, found = self._found(self.left, self.lifted, parts)
        return relation, is_not_null(read(found))

    def _three_valued(self) -> tuple[Node, Scalar]:
        unsure = [(a, b) for a, b in self.pairs if a.nullable or b.nullable]
        relation, value = self._two_valued()
        if not unsure:
            return relation, value
        if len(self.pairs) > 1:
            relation, unknown = self._some_unsure(relation)
        else:
            ((left, right),) = self.pairs
            relation, unknown = self._unknown(relation, left, right)
        return relation, case([(value, exp.true()), (unknown, exp.null())], exp.false(), BOOLEAN)

    def _some_unsure(self, left: Node) -> tuple[Node, Scalar]:
        """`left` with a condition that is true if no pair of the sides is unequal for some row of the right side."""
        conditions = self.lifted.conditions
        correlated = any(p.columns & self.lifted.relation.ids for p in conditions)
        ways = [self._not_unequal()] if correlated else self._unrefuted()
        flags = []
        for way in ways:
            left, found = self._found(left, self.lifted, [*conditions, *way])
            flags.append(is_not_null(read(found)).expression)
        return left, Scalar(exp.paren(exp.or_(*flags, copy=True)), BOOLEAN, nullable=False)

    def _found(self, left: Node, lifted: Lifted, parts: Sequence[Scalar]) -> tuple[Node, Column]:
        """`left` with a column that is not NULL if some row of the lifted relation satisfies all parts."""
        keyed = self._keyed(lifted, parts)
        if keyed.keys:
            outputs = self._key_columns(keyed)
            right, found = self._marked(Aggregate(keyed.right, keyed.keys, (), outputs))
        else:
            outputs, right = (), one_row(keyed.right, self.names)
            found = right.columns[0]
        return self._join(left, right, "left", keyed.over(outputs)), found

    def _unknown(self, left: Node, one: Scalar, other: Scalar) -> tuple[Node, Scalar]:
        """`left` with a column that is not NULL if the comparison of `one` with `other` is NULL for a row that
        satisfies the conditions.
        """
        keyed = self._keyed(self.lifted, self.lifted.conditions, [other])
        other = other.substitute({i: s.expression for i, s in keyed.mapping.items()})
        outputs = self._key_columns(keyed)
        rows, known = (self.names.new("count", BIGINT, nullable=False) for _ in range(2))
        calls = (
            AggregateCall("count", None, None, distinct=False, type=BIGINT),
            AggregateCall("count", other, None, distinct=False, type=BIGINT),
        )
        counted = Aggregate(keyed.right, keyed.keys, calls, (*outputs, rows, known))
        joined = self._join(left, counted, "left", keyed.over(outputs))
        some_null = exp.GT(this=reference(rows), expression=reference(known))
        some_row = exp.GT(this=reference(rows), expression=exp.Literal.number(0))
        return joined, Scalar(exp.or_(some_null, exp.and_(is_null(one).expression, some_row)), BOOLEAN)

    def _keyed(self, lifted: Lifted, parts: Sequence[Scalar], more: Sequence[Scalar] = ()) -> Keyed:
        """The right side, linked to the left side only by equalities. A join with the domain resolves other conditions
        between them.

        more: additional expressions whose left columns need substitutes.
        """
        right, linking = _own_parts(self.left, lifted.relation, parts)
        mapping: Mapping[str, Scalar] = {}
        wanted = self.lifting.reads(more)
        if wanted or any(p.columns & right.ids and equality(p, right) is None for p in linking):
            ground, mapping = self.lifting.grounded(Lifted(right, tuple(linking)), wanted)
            right, linking = ground.relation, list(ground.conditions)
        found = [equality(p, right) for p in linking]
        pure = tuple(p for p, e in zip(linking, found, strict=True) if e is None)
        return Keyed(right, tuple(e for e in found if e is not None), pure, mapping)

    def _key_columns(self, keyed: Keyed) -> tuple[Column, ...]:
        return tuple(self.names.new("key", k.type, k.nullable) for k in keyed.keys)

    def _marked(self, right: Node) -> tuple[Node, Column]:
        """`right` with a column that is TRUE."""
        found = self.names.new("found", BOOLEAN, nullable=False)
        return Project(right, (*right.columns, found), (*[read(c) for c in right.columns], _TRUE)), found


def _own_parts(left: Node, right: Node, parts: Sequence[Scalar]) -> tuple[Node, list[Scalar]]:
    """`right` filtered by the parts that read only `right`, and the other parts."""
    own = [p for p in parts if p.columns & right.ids and not p.columns & left.ids]
    return filtered(right, own), [p for p in parts if p not in own]


def unnest(tree: Node) -> Node:
    """The tree without dependent joins; the innermost ones are replaced first.

    Filter(a.x > m, Apply(left, a, Aggregate([], max(b.y) AS m, Filter(b.k = a.k, b))))
        ->  Filter(a.x > m, a LEFT JOIN Aggregate([b.k], max(b.y) AS m, b) ON b.k = a.k)
    """
    return _unnested(tree, Names(tree))


def _below_semi_joins(node: Node, part: Scalar) -> Node:
    """The node with a condition on columns of the left sides of its semi and anti joins, which may also read outer
    columns.
    """
    if isinstance(node, Project) and not any(is_volatile(e) for e in node.exprs):
        mapping = {c.id: e.expression for c, e in zip(node.outputs, node.exprs, strict=True)}
        return replace(node, input=_below_semi_joins(node.input, part.substitute(mapping)))
    if isinstance(node, Filter):
        return replace(node, input=_below_semi_joins(node.input, part))
    if isinstance(node, Join) and node.kind in ("semi", "anti"):
        return replace(node, left=_below_semi_joins(node.left, part))
    return filtered(node, [part])


def _reads_outside(node: Node, outer: AbstractSet[str]) -> bool:
    """Whether a join that a condition can't leave reads columns of the left side of a dependent join."""
    return isinstance(node, Join) and node.kind != "inner" and bool(node.free & outer)


def _unnested(node: Node, names: Names) -> Node:
    inputs = [_unnested(i, names) for i in node.inputs]
    node = with_inputs(node, inputs)
    if not isinstance(node, Apply):
        return node
    if node.kind == "semi" and node.pairs and any(_reads_outside(n, node.left.ids) for n in walk(node.right)):
        # as conditions of the right side, the equalities also link the inner joins with the distinct outer values
        right = node.right
        for pair in node.pairs:
            right = _below_semi_joins(right, equals(pair.left, pair.right))
        node = replace(node, right=right, pairs=())
    if node.right.free & node.left.ids:
        # conditions that reject NULLs turn outer joins into inner joins, past which conditions on the domain can move
        node = with_inputs(node, [node.left, push_filters(node.right)])
        assert isinstance(node, Apply)
    return Joining(node, names).joined()
