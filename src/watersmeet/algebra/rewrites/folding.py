"""Folds constant conditions, empty relations, and neighbouring filters and projects."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from sqlglot import exp

from watersmeet.algebra.nodes import (
    Aggregate,
    Filter,
    Join,
    Node,
    Project,
    TopN,
    Unary,
    Union,
)
from watersmeet.algebra.rewrites.pushdown import is_volatile
from watersmeet.algebra.scalars import Scalar, conjunction, conjuncts, null_of
from watersmeet.algebra.trees import empty, filtered, is_empty, read, transform_up


def fold_constants(tree: Node) -> Node:
    """Removes conditions that are always true. One that is never true leaves a relation without rows.

    Filter(TRUE AND x > 1, t)  ->  Filter(x > 1, t)
    Filter(x > 1 AND NULL, t)  ->  Values()
    t LEFT JOIN Values()       ->  Project(t.*, NULL …)
    """
    return transform_up(tree, _without_constants)


def fold_filters(tree: Node) -> Node:
    """Neighbouring filters become one: Filter(p, Filter(q, t)) -> Filter(q AND p, t)."""
    return transform_up(tree, _one_filter)


def fold_projects(tree: Node) -> Node:
    """Neighbouring projects become one, unless an expression would be computed more often than before.

    Project(y + 1, Project(x * 2 AS y, t))  ->  Project((x * 2) + 1, t)
    """
    return transform_up(tree, _one_project)


def truth(part: Scalar) -> bool | None:
    """True or False (False also for NULL) if the condition is constant, else None."""
    node = part.expression
    if isinstance(node, exp.Boolean):
        return bool(node.this)
    if isinstance(node, exp.Null):
        return False
    if isinstance(node, exp.Not) and isinstance(node.this, exp.Boolean):
        return not node.this.this
    if isinstance(node, exp.EQ) and isinstance(node.this, exp.Literal) and isinstance(node.expression, exp.Literal):
        same_kind = node.this.is_string == node.expression.is_string
        if same_kind and (node.this.is_string or (node.this.is_int and node.expression.is_int)):
            return bool(node.this.this == node.expression.this)
    return None


def _without_constants(node: Node) -> Node:
    if isinstance(node, Filter):
        parts = conjuncts(node.predicate)
        if is_empty(node.input) or any(truth(p) is False for p in parts):
            return empty(node.columns)
        return filtered(node.input, [p for p in parts if truth(p) is None])
    one_row = isinstance(node, Aggregate) and not node.keys
    if (isinstance(node, Unary) and is_empty(node.input) and not one_row) or any(map(is_empty, node.preserved)):
        return empty(node.columns)
    if isinstance(node, TopN) and node.limit == 0:
        return empty(node.columns)
    if isinstance(node, Union) and any(is_empty(p) for p in node.parts):
        return _shorter(node)
    if isinstance(node, Join):
        return _join(node)
    return node


def _shorter(node: Union) -> Node:
    parts = [p for p in node.parts if not is_empty(p)]
    if not parts:
        return empty(node.columns)
    if len(parts) == 1:
        return Project(parts[0], node.outputs, tuple(read(c) for c in parts[0].columns))
    return Union(tuple(parts), node.outputs)


def _join(node: Join) -> Node:
    parts = conjuncts(node.residual)
    never = any(truth(p) is False for p in parts)
    left_gone, right_gone = is_empty(node.left) or (never and node.kind == "right"), is_empty(node.right) or never
    if right_gone and node.kind in ("inner", "semi"):
        return empty(node.columns)
    if right_gone and node.kind == "anti":
        return node.left
    if right_gone and node.kind == "left":
        return _extended(node, node.left)
    if left_gone and node.kind == "right":
        return _extended(node, node.right)
    open_parts = [p for p in parts if truth(p) is not True]
    return node if len(open_parts) == len(parts) else replace(node, residual=conjunction(open_parts))


def _extended(node: Join, kept: Node) -> Node:
    exprs = [read(c) if c.id in kept.ids else null_of(c.type) for c in node.columns]
    return Project(kept, node.columns, tuple(exprs))


def _one_filter(node: Node) -> Node:
    if isinstance(node, Filter) and isinstance(node.input, Filter):
        return filtered(node.input.input, conjuncts(node.input.predicate) + conjuncts(node.predicate))
    return node


def _one_project(node: Node) -> Node:
    if not isinstance(node, Project):
        return node
    if [e.column for e in node.exprs] == [c.id for c in node.input.columns] == [c.id for c in node.outputs]:
        return node.input
    inner = node.input
    if isinstance(inner, Project) and can_merge(inner.exprs, [c.id for c in inner.outputs], node.exprs):
        mapping = {c.id: e.expression for c, e in zip(inner.outputs, inner.exprs, strict=True)}
        merged = Project(inner.input, node.outputs, tuple(e.substitute(mapping) for e in node.exprs))
        return _one_project(merged)
    return node


def can_merge(inner: tuple[Scalar, ...], ids: list[str], outer: tuple[Scalar, ...]) -> bool:
    """True if replacing `ids` by the `inner` expressions computes nothing twice."""
    uses = Counter(c.name for e in outer for c in e.expression.find_all(exp.Column))
    for scalar, column_id in zip(inner, ids, strict=True):
        costs = not isinstance(scalar.expression, (exp.Column, exp.Literal, exp.Null, exp.Boolean))
        if costs and (uses[column_id] > 1 or (uses[column_id] and is_volatile(scalar))):
            return False
    return True
