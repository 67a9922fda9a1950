"""Binds subqueries in expressions: scalar, EXISTS, IN, ANY, ALL. Each becomes a dependent join, which the algebra
unnests.

A condition that consists of EXISTS or IN becomes a semi or anti join. Elsewhere a dependent join adds a column with the
value of the scalar subquery, or the truth value of EXISTS or IN. NOT IN follows the SQL standard: x NOT IN S is not
true if x is NULL (unless S is empty) or if S has a NULL. docs/SEMANTICS shows the difference from RisingWave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from sqlglot import exp

from watersmeet.algebra.nodes import Aggregate, AggregateCall, AggregateFunction, Apply, Column, KeyPair, Node
from watersmeet.algebra.properties import is_single_row
from watersmeet.algebra.scalars import NEGATED, conjuncts
from watersmeet.binder.context.binding import Environment, filtered, key_of, value_of
from watersmeet.binder.context.rules import Binding, BindQuery
from watersmeet.binder.context.scope import Scope
from watersmeet.dialects.tree.queries import node_span
from watersmeet.expressions.aggregatecalls import UNORDERED
from watersmeet.expressions.context import Context, Value, duckdb_cast, wrap
from watersmeet.expressions.operators import comparable, compare
from watersmeet.expressions.scalars import bind_condition, bind_value
from watersmeet.values.spans import set_span
from watersmeet.values.types import BIGINT, BOOLEAN, SqlType

_NEGATED: Final[dict[type[exp.Expression], type[exp.Expression]]] = {**NEGATED, exp.EQ: exp.NEQ, exp.NEQ: exp.EQ}

#: The values of a set that suffice to decide whether `x op y` is true for some y.
_DECIDING: Final[dict[type[exp.Expression], tuple[AggregateFunction, ...]]] = {
    exp.LT: ("max",),
    exp.LTE: ("max",),
    exp.GT: ("min",),
    exp.GTE: ("min",),
    exp.NEQ: ("min", "max"),
}


@dataclass(frozen=True)
class Predicate:
    """A subquery with a truth value. items: the left side of IN; empty for EXISTS."""

    node: exp.Expression
    query: exp.Expression
    items: tuple[exp.Expression, ...]
    negated: bool


def recognised(node: exp.Expression) -> Predicate | None:
    """The EXISTS or IN, possibly negated, of which a condition consists; None for other conditions."""
    negated = False
    inner = node
    while isinstance(inner, (exp.Paren, exp.Not)):
        negated ^= isinstance(inner, exp.Not)
        inner = inner.this
    if isinstance(inner, exp.Exists):
        return Predicate(node, _without_limit(_query(inner.this)), (), negated)
    if isinstance(inner, exp.In) and inner.args.get("query") is not None:
        return Predicate(node, _query(inner.args["query"]), _items(inner.this), negated)
    if isinstance(inner, exp.EQ) and isinstance(inner.expression, exp.Any) and _is_query(inner.expression.this):
        return Predicate(node, _query(inner.expression.this), _items(inner.this), negated)
    if isinstance(inner, exp.NEQ) and isinstance(inner.expression, exp.All) and _is_query(inner.expression.this):
        return Predicate(node, _query(inner.expression.this), _items(inner.this), not negated)
    return None


def has_subquery(node: exp.Expression) -> bool:
    """True if the expression contains a subquery."""
    return node.find(exp.Subquery, exp.Exists, exp.Query) is not None


def _is_query(node: exp.Expression) -> bool:
    return isinstance(node.unnest() if isinstance(node, (exp.Paren, exp.Subquery)) else node, exp.Query)


def _array_of_rows(node: exp.Expression) -> exp.Expression | None:
    """The query of `ARRAY (SELECT …)` or `ARRAY (VALUES …)`."""
    named = isinstance(node, exp.Array) or (isinstance(node, exp.Anonymous) and str(node.this).lower() == "array")
    found = named and len(node.expressions) == 1 and isinstance(node.expressions[0], (exp.Query, exp.Values))
    return node.expressions[0] if found else None


def _query(node: exp.Expression) -> exp.Expression:
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def _without_limit(query: exp.Expression) -> exp.Expression:
    """The query of EXISTS without its LIMIT, which has no effect unless it is 0."""
    limit = query.args.get("limit")
    number = limit.expression if isinstance(limit, exp.Limit) else None
    if not isinstance(number, exp.Literal) or not number.name.isdecimal() or int(number.name) == 0:
        return query
    query = query.copy()
    query.set("limit", None)
    return query


def _items(node: exp.Expression) -> tuple[exp.Expression, ...]:
    if isinstance(node, exp.Tuple):
        return tuple(node.expressions)
    return (node,)


def _counts_only_if_true(node: exp.Expression) -> bool:
    """True if the condition `node` may be false instead of NULL, because only AND and OR enclose it."""
    while isinstance(node.parent, (exp.And, exp.Or, exp.Paren)):
        node = node.parent
    return (
        isinstance(node.parent, (exp.Where, exp.Having))
        or (isinstance(node.parent, exp.If) and node.arg_key == "this")
        or (isinstance(node.parent, exp.Join) and node.arg_key == "on")
    )


class Subqueries:
    """The subqueries of a clause whose columns are those of `scope`.

    Binding an expression records the dependent joins that it needs; `applied` adds them to the clause's relation.
    """

    def __init__(self, env: Environment, binding: Binding, bind: BindQuery, scope: Scope) -> None:
        self._env = Environment(env.text, env.ctes, scope)
        self._binding = binding
        self._bind = bind
        # # rows of a stream are never deleted: they match the table as of their arrival
        self._arrival = scope.stream is not None
        self._pending: list[partial[Apply]] = []
        self._known: dict[tuple[exp.Expression, bool], Value] = {}

    def applied(self, relation: Node) -> Node:
        """`relation` with the columns of the subqueries bound since the last call."""
        for pending in self._pending:
            relation = pending(relation)
        self._pending = []
        return relation

    def reads(self) -> frozenset[str]:
        """The ids of the enclosing columns that are read by subqueries not yet applied."""
        found = frozenset[str]()
        for pending in self._pending:
            pairs = pending.keywords.get("pairs", ())
            found = found.union(pending.keywords["right"].free, *[p.left.columns for p in pairs])
        return found

    # -- conditions ---------------------------------------------------------------------------------------------

    def filtered(self, relation: Node, parts: Sequence[exp.Expression], ctx: Context, clause: str) -> Node:
        """The rows of `relation` for which all parts of a condition are true. Parts without subqueries are tested
        first.
        """
        return self.bound(parts, ctx, clause)(relation)

    def bound(self, parts: Sequence[exp.Expression], ctx: Context, clause: str) -> Callable[[Node], Node]:
        """Binds all parts immediately. The result is a function that filters a relation by them."""
        plain = [s for p in parts if not has_subquery(p) for s in conjuncts(bind_condition(p, ctx, clause).finish())]
        others = []
        for part in parts:
            predicate = recognised(part)
            if predicate is not None:
                self._pass(predicate, ctx)
            elif has_subquery(part):
                others += conjuncts(bind_condition(part, ctx, clause).finish())
        pending, self._pending = self._pending, []

        def apply(relation: Node) -> Node:
            relation = filtered(relation, plain)
            for join in pending:
                relation = join(relation)
            return filtered(relation, others)

        return apply

    def _pass(self, predicate: Predicate, ctx: Context) -> None:
        """Records the semi or anti join for a condition."""
        right, pairs = self._matched(predicate, ctx)
        kind: Literal["semi", "anti"] = "anti" if predicate.negated else "semi"
        self._pending.append(
            partial(
                Apply,
                right=right,
                kind=kind,
                pairs=pairs,
                null_aware=predicate.negated and bool(pairs),
                span=node_span(predicate.node),
                arrival=self._arrival,
            )
        )

    # -- values -------------------------------------------------------------------------------------------------

    def value(self, node: exp.Expression, ctx: Context) -> Value | None:
        """The value of an expression that is a subquery, else None."""
        rows = _array_of_rows(node)
        if isinstance(rows, exp.Values):
            return self._array_of_values(rows, ctx)
        if rows is not None:
            batch = self._binding.rules.batch
            return self._single(rows, rows, ctx, "array") if batch else self._array(rows, ctx)
        if not isinstance(node, (exp.Subquery, exp.Exists, exp.In, exp.Binary)):
            return None
        if isinstance(node, exp.Binary) and not (
            isinstance(node.expression, (exp.Any, exp.All)) and _is_query(node.expression.this)
        ):
            return None
        if isinstance(node, exp.In) and node.args.get("query") is None:
            return None
        true_only = _counts_only_if_true(node)
        key = (node, true_only)
        if key not in self._known:
            self._known[key] = self._value(node, ctx, true_only=true_only)
        return self._known[key]

    def _value(self, node: exp.Expression, ctx: Context, *, true_only: bool) -> Value:
        if isinstance(node, exp.Subquery):
            return self._scalar(node, ctx)
        predicate = recognised(node)
        if predicate is not None:
            # # NULL matters under a negation, so also for `<> ALL`
            return self._mark(predicate, ctx, true_only=true_only and not predicate.negated)
        assert isinstance(node, exp.Binary)
        return self._quantified(node, ctx, true_only=true_only)

    def _array_of_values(self, rows: exp.Values, ctx: Context) -> Value:
        """Binds ARRAY (VALUES …) like ARRAY[…]."""
        cells = [row.expressions if isinstance(row, exp.Tuple) else [row] for row in rows.expressions]
        if any(len(row) != 1 for row in cells):
            raise ctx.error("SYNTAX_ERROR", "subquery must return only one column", rows)
        return bind_value(exp.Array(expressions=[row[0] for row in cells]), ctx)

    def _scalar(self, node: exp.Expression, ctx: Context) -> Value:
        if self._binding.rules.batch:
            return self._single(node, node, ctx, "scalar")
        right = self._bound(node)
        if len(right.columns) != 1:
            raise ctx.error("SYNTAX_ERROR", "subquery must return only one column", node)
        if not is_single_row(right):
            raise ctx.error(
                "SCALAR_SUBQUERY_ROWS",
                "Scalar subquery might produce more than one row.",
                node,
                hint="Aggregate without GROUP BY, or compare a whole key with =.",
            )
        self._pending.append(partial(Apply, right=right, kind="left", span=node_span(node), arrival=self._arrival))
        (column,) = right.columns
        return Value(value_of(column).expression, column.type)

    def _single(
        self, query: exp.Expression, node: exp.Expression, ctx: Context, kind: Literal["scalar", "array"]
    ) -> Value:
        """The single value of a subquery, or the array of all its rows, in a query that ends."""
        right = self._bound(query)
        if len(right.columns) != 1:
            raise ctx.error("SYNTAX_ERROR", "subquery must return only one column", node)
        (column,) = right.columns
        given = column.type if kind == "scalar" else SqlType("array", element=column.type)
        found = self._binding.new_column(column.name, given, nullable=kind == "scalar")
        self._pending.append(partial(Apply, right=right, kind=kind, mark=found, span=node_span(node)))
        return value_of(found)

    def _array(self, query: exp.Expression, ctx: Context) -> Value:
        """The array of all rows of a subquery in the order of `array_agg`; empty if it has no rows."""
        if query.args.get("order") is not None and query.args.get("limit") is None:
            raise ctx.not_supported(
                "ORDER BY in ARRAY (SELECT …) of a view",
                query.args["order"],
                hint="Write (SELECT array_agg(a ORDER BY b) FROM …).",
            )
        right = self._bound(query)
        if len(right.columns) != 1:
            raise ctx.error("SYNTAX_ERROR", "subquery must return only one column", query)
        scalar = value_of(right.columns[0]).finish()
        kind = SqlType("array", element=scalar.type)
        call = AggregateCall("array_agg", scalar, None, distinct=False, type=kind)
        found = self._binding.new_column("array", kind, nullable=True)
        aggregate = Aggregate(right, (), (call,), (found,))
        self._pending.append(partial(Apply, right=aggregate, kind="left", span=node_span(query), arrival=self._arrival))
        empty = duckdb_cast(exp.Array(expressions=[]), kind)
        return Value(exp.Coalesce(this=value_of(found).expression, expressions=[empty]), kind, nullable=False)

    def _mark(self, predicate: Predicate, ctx: Context, *, true_only: bool) -> Value:
        right, pairs = self._matched(predicate, ctx)
        null_aware = not true_only and any(s.nullable for p in pairs for s in (p.left, p.right))
        mark = self._binding.new_column("mark", BOOLEAN, null_aware)
        self._pending.append(
            partial(
                Apply,
                right=right,
                kind="mark",
                pairs=pairs,
                mark=mark,
                null_aware=null_aware,
                span=node_span(predicate.node),
                arrival=self._arrival,
            )
        )
        value = value_of(mark)
        return Value(exp.Not(this=value.expression), BOOLEAN, null_aware) if predicate.negated else value

    def _matched(self, predicate: Predicate, ctx: Context) -> tuple[Node, tuple[KeyPair, ...]]:
        """The rows of the subquery, and their comparisons with the left side."""
        lefts = [bind_value(i, ctx) for i in predicate.items]
        right = self._bound(predicate.query)
        if predicate.items and len(lefts) != len(right.columns):
            few = "few" if len(right.columns) < len(lefts) else "many"
            raise ctx.error("SYNTAX_ERROR", f"subquery has too {few} columns", predicate.query)
        return right, tuple(
            self._pair(i, v, c, ctx) for i, v, c in zip(predicate.items, lefts, right.columns, strict=False)
        )

    def _pair(self, node: exp.Expression, left: Value, column: Column, ctx: Context) -> KeyPair:
        equality = exp.EQ(this=node.copy(), expression=node.copy())
        set_span(equality, node_span(node))
        return key_of(equality, *comparable(equality, left, value_of(column), ctx), ctx)

    def _quantified(self, node: exp.Binary, ctx: Context, *, true_only: bool) -> Value:
        """Binds `x op ANY (…)` by the least or greatest value, and `x op ALL (…)` as NOT (x negated op ANY (…))."""
        is_all = isinstance(node.expression, exp.All)
        kind = _NEGATED.get(type(node)) if is_all else type(node)
        if kind not in _DECIDING or isinstance(node.this, exp.Tuple):
            raise ctx.not_supported(f"this comparison with {'ALL' if is_all else 'ANY'} (SELECT …)", node)
        operator = kind(this=node.this.copy(), expression=node.this.copy())
        set_span(operator, node_span(node))
        left = bind_value(node.this, ctx)
        right = self._bound(_query(node.expression.this))
        if len(right.columns) != 1:
            raise ctx.error("SYNTAX_ERROR", "subquery has too many columns", node.expression)
        written = type(node)(this=node.this.copy(), expression=node.this.copy())  # errors name the operator as written
        set_span(written, node_span(node))
        left, given = comparable(written, left, value_of(right.columns[0]), ctx)
        if given.type.name in (*UNORDERED, "boolean"):
            raise ctx.not_supported(f"an ordered comparison with values of type {given.type.sql}", node)
        scalar = given.finish()
        deciding = [AggregateCall(f, scalar, None, distinct=False, type=scalar.type) for f in _DECIDING[kind]]
        counts = [AggregateCall("count", a, None, distinct=False, type=BIGINT) for a in (None, scalar)]
        calls = (*deciding, *counts)
        columns = tuple(self._binding.new_column(c.function, c.type, c.function != "count") for c in calls)
        found = Aggregate(right, (), calls, columns)
        self._pending.append(partial(Apply, right=found, kind="left", span=node_span(node), arrival=self._arrival))
        *bests, rows, known = [value_of(c).expression for c in columns]
        tests = [compare(operator, left, Value(b, scalar.type), ctx).expression for b in bests]
        some: exp.Expression = exp.or_(*tests, copy=True)
        if true_only and not is_all:
            return Value(exp.paren(some) if len(tests) > 1 else some, BOOLEAN)
        unknown = exp.or_(
            exp.Is(this=wrap(left.expression), expression=exp.null()), exp.GT(this=rows, expression=known), copy=True
        )
        empty = exp.EQ(this=rows.copy(), expression=exp.Literal.number(0))
        result: exp.Expression = exp.Case(
            ifs=[
                exp.If(this=some, true=exp.true()),
                exp.If(this=empty, true=exp.false()),
                exp.If(this=unknown, true=exp.null()),
            ],
            default=exp.false(),
        )
        return Value(exp.Not(this=exp.paren(result)) if is_all else exp.paren(result), BOOLEAN)

    def _bound(self, query: exp.Expression) -> Node:
        return self._bind(query, self._env, self._binding).relation
