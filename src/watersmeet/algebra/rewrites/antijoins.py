"""LEFT JOINs whose matched rows are all filtered out."""

from __future__ import annotations

from sqlglot import exp

from watersmeet.algebra.nodes import Filter, Join, Node, Project
from watersmeet.algebra.nulls import strict_columns
from watersmeet.algebra.scalars import Scalar, conjuncts, null_of
from watersmeet.algebra.trees import filtered, read, transform_up


def make_anti_joins(tree: Node) -> Node:
    """NULL tests of a column that every match has make an anti join, which keeps and sends less.

    Filter(b.k IS NULL, a LEFT JOIN b ON a.k = b.k)   ->   Project(a.*, NULL …, a ANTI JOIN b ON a.k = b.k)
    """
    return transform_up(tree, _anti)


def _anti(node: Node) -> Node:
    if not (
        isinstance(node, Filter)
        and isinstance(node.input, Join)
        and node.input.kind == "left"
        and node.input.keys
        and node.input.partners is None
    ):
        return node
    join = node.input
    never_null = _not_null_in_matches(join)
    parts = conjuncts(node.predicate)
    kept = [p for p in parts if _tested(p) not in never_null]
    if len(kept) == len(parts):
        return node
    anti = Join(join.left, join.right, "anti", join.keys, join.residual, span=join.span, arrival=join.arrival)
    exprs = tuple(read(c) if c.id in join.left.ids else null_of(c.type) for c in join.columns)
    return filtered(Project(anti, join.columns, exprs), kept)


def _not_null_in_matches(join: Join) -> frozenset[str]:
    """Columns of the right input that are not NULL in any matching row."""
    found = {c for k in join.keys if not k.null_safe for c in strict_columns(k.right.expression)}
    found.update(*[strict_columns(p.expression) for p in conjuncts(join.residual)])
    return frozenset(found & join.right.ids)


def _tested(part: Scalar) -> str | None:
    """The column in `column IS NULL`; None for any other condition."""
    node = part.expression
    if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null) and isinstance(node.this, exp.Column):
        return str(node.this.name)
    return None
