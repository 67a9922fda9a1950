"""EXISTS, IN and their negations in WHERE: semi and anti joins.

NOT IN follows the SQL standard: x NOT IN S is not true if x is NULL (unless S is empty) or if S
has a NULL. See docs/SEMANTICS for how that differs from RisingWave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sqlglot import exp

from watersmeet.algebra.relations import Join, KeyPair, Relation
from watersmeet.algebra.scalars import Scalar, conjunction
from watersmeet.dialects.binder.context import Context
from watersmeet.dialects.binder.expressions import bind_value
from watersmeet.dialects.binder.joins import SUBQUERIES, columns_of, equality_key, split
from watersmeet.dialects.binder.operators import compare
from watersmeet.dialects.binder.scope import ScopeContext
from watersmeet.dialects.binder.shared import Binding, filtered, one_row
from watersmeet.dialects.binder.values import Value, wrap
from watersmeet.dialects.queries import place_of
from watersmeet.errors import Error
from watersmeet.types import BOOLEAN


@dataclass(frozen=True)
class Predicate:
    """A condition of WHERE that is a subquery. items: the left side of IN, empty for EXISTS."""

    node: exp.Expression
    query: exp.Expression
    items: tuple[exp.Expression, ...]
    negated: bool


@dataclass(frozen=True)
class Inner:
    """A bound subquery: its rows, the values of its select list, the conditions that refer to the query around it."""

    relation: Relation
    values: tuple[Value, ...]
    places: tuple[exp.Expression, ...]
    correlated: tuple[exp.Expression, ...]
    context: ScopeContext


BindInner = Callable[[exp.Expression], Inner]


def recognised(node: exp.Expression) -> Predicate | None:
    """The predicate that a part of WHERE is, None if it is no subquery of a known form."""
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
    """True if a subquery stands somewhere in the expression."""
    return node.find(*SUBQUERIES) is not None


def refused(node: exp.Expression, ctx: Context) -> Error:
    """The error for a subquery where none can be."""
    inner = node.find(*SUBQUERIES)
    found = inner.find_ancestor(exp.In, exp.Exists, exp.Any, exp.All) if inner is not None else None
    if isinstance(inner, exp.Exists) or isinstance(found, (exp.In, exp.Exists, exp.Any, exp.All)):
        return ctx.not_supported("a subquery under OR or inside of an expression", inner,
                                 hint="EXISTS and IN may stand in WHERE, alone or joined by AND.")
    return ctx.not_supported("a scalar subquery", inner)


def _is_query(node: exp.Expression) -> bool:
    return isinstance(node.unnest() if isinstance(node, (exp.Paren, exp.Subquery)) else node, exp.Query)


def _query(node: exp.Expression) -> exp.Expression:
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def _without_limit(query: exp.Expression) -> exp.Expression:
    """The query of EXISTS without a LIMIT above 0, which changes nothing there."""
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


def apply(predicate: Predicate, relation: Relation, ctx: ScopeContext, bind_inner: BindInner,
          binding: Binding) -> Relation:
    """`relation` with only the rows for which the predicate is true."""
    joined = _joined(predicate, relation, ctx, bind_inner, binding)
    return replace(joined, span=place_of(predicate.node)) if isinstance(joined, Join) else joined


def _joined(predicate: Predicate, relation: Relation, ctx: ScopeContext, bind_inner: BindInner,
            binding: Binding) -> Relation:
    if any(has_subquery(i) for i in predicate.items):
        raise refused(predicate.items[0], ctx)
    inner = bind_inner(predicate.query)
    keys, residual = split(inner.correlated, relation, inner.relation, inner.context)
    _check_reach(keys, residual, relation, inner, predicate, ctx)
    if not predicate.items:
        return _exists(predicate, relation, inner, keys, residual, binding)
    if len(predicate.items) != len(inner.values):
        few = "few" if len(inner.values) < len(predicate.items) else "many"
        raise ctx.error("SYNTAX_ERROR", f"subquery has too {few} columns", predicate.query)
    pairs = [_pair(node, item, relation, inner, ctx)
             for node, item in zip(predicate.items, inner.values, strict=True)]
    if not predicate.negated:
        return _in(relation, inner, keys, residual, pairs)
    return _not_in(predicate, relation, inner, keys, residual, pairs, ctx, binding)


def _check_reach(keys: Sequence[KeyPair], residual: Sequence[Scalar], relation: Relation, inner: Inner,
                 predicate: Predicate, ctx: Context) -> None:
    known = relation.ids | inner.relation.ids
    if any(s.columns - known for s in [*residual, *[x for k in keys for x in (k.left, k.right)]]):
        raise ctx.not_supported("a reference to a query further out than the next one", predicate.node)


def _exists(predicate: Predicate, relation: Relation, inner: Inner, keys: list[KeyPair], residual: list[Scalar],
            binding: Binding) -> Relation:
    kind: Literal["semi", "anti"] = "anti" if predicate.negated else "semi"
    if not keys and not residual:
        return Join(relation, one_row(inner.relation, binding), kind, (), None, broadcast=True)
    return Join(relation, inner.relation, kind, tuple(keys), conjunction(residual))


@dataclass(frozen=True)
class _Pair:
    """One `x = y` of IN: both sides, the comparison, and the key if the sides are apart."""

    left: Value
    right: Value
    equal: Value
    key: KeyPair | None


def _pair(node: exp.Expression, right: Value, relation: Relation, inner: Inner, ctx: Context) -> _Pair:
    left = bind_value(node, ctx)
    equality = exp.EQ(this=node.copy(), expression=node.copy())
    equal = compare(equality, left, right, ctx)
    return _Pair(left, right, equal, equality_key(equality, left, right, relation, inner.relation, ctx))


def _in(relation: Relation, inner: Inner, keys: list[KeyPair], residual: list[Scalar],
        pairs: list[_Pair]) -> Relation:
    keys = keys + [p.key for p in pairs if p.key is not None]
    residual = residual + [p.equal.finish() for p in pairs if p.key is None]
    return Join(relation, inner.relation, "semi", tuple(keys), conjunction(residual))


def _is_null(value: Value) -> Scalar:
    return Scalar(exp.Is(this=wrap(value.expression), expression=exp.null()), BOOLEAN, nullable=False)


def _not_in(predicate: Predicate, relation: Relation, inner: Inner, keys: list[KeyPair], residual: list[Scalar],
            pairs: list[_Pair], ctx: Context, binding: Binding) -> Relation:
    open_pairs = [p for p in pairs if p.left.nullable or p.right.nullable]
    if not open_pairs:
        keys = keys + [p.key for p in pairs if p.key is not None]
        residual = residual + [p.equal.finish() for p in pairs if p.key is None]
        return Join(relation, inner.relation, "anti", tuple(keys), conjunction(residual))
    if len(pairs) > 1:
        raise ctx.not_supported("NOT IN of rows that can be NULL", predicate.node,
                                hint="Write NOT EXISTS, or add IS NOT NULL to both sides.")
    pair = pairs[0]
    if keys or residual:
        return _correlated_not_in(relation, inner, keys, residual, pair)
    if pair.key is None or columns_of(pair.right) - inner.relation.ids:
        raise ctx.not_supported("NOT IN of a constant", predicate.node, hint="Write NOT EXISTS.")
    result: Relation = Join(relation, inner.relation, "anti", (pair.key,), None)
    if pair.right.nullable:
        nulls = filtered(inner.relation, [_is_null(pair.right)])
        result = Join(result, one_row(nulls, binding), "anti", (), None, broadcast=True)
    if pair.left.nullable:
        result = Join(result, one_row(inner.relation, binding), "anti", (), _is_null(pair.left), broadcast=True)
    return result


def _correlated_not_in(relation: Relation, inner: Inner, keys: list[KeyPair], residual: list[Scalar],
                       pair: _Pair) -> Relation:
    """Within the rows of one correlation: x = y, or one of them NULL."""
    choices = [pair.equal.finish().expression]
    choices += [_is_null(v).expression for v in (pair.left, pair.right) if v.nullable]
    either = exp.Paren(this=exp.or_(*choices, copy=True))
    residual = [*residual, Scalar(either, BOOLEAN, nullable=True)]
    return Join(relation, inner.relation, "anti", tuple(keys), conjunction(residual))
