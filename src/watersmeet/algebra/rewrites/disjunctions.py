"""Conditions under OR: what all branches share moves out, and what all say about one side is implied for that side.

    (k = j AND x) OR (k = j AND y)                    ->  k = j AND (x OR y)
    (a.n = 1 AND b.n = 2) OR (a.n = 3 AND b.n = 4)    implies  a.n = 1 OR a.n = 3
    k = j OR (k IS NULL AND j IS NULL)                ->  k IS NOT DISTINCT FROM j

The first and the last give joins their keys (TPC-H Q19); the second keeps rows out of joins (Q7). All hold in SQL's
three-valued logic, and where an expression that fails counts as NULL. The last one gives false rather than NULL for a
single NULL, which makes no difference to whether a condition is true.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from watersmeet.algebra.coercion import is_exact, part_of
from watersmeet.algebra.nodes import Column, Filter, Join, Node
from watersmeet.algebra.scalars import Scalar, conjunction, conjuncts, disjuncts
from watersmeet.algebra.trees import filtered, transform_up
from watersmeet.types import BOOLEAN


def factor_disjunctions(tree: Node) -> Node:
    """The tree with the common conjuncts of every OR in front of it."""
    return transform_up(tree, _factored)


def implied(part: Scalar, ids: frozenset[str]) -> Scalar | None:
    """What the OR `part` implies for the columns `ids` alone; None if a branch implies nothing, or if it is no OR."""
    branches = _branches(part)
    if len(branches) < 2 or part.columns <= ids:
        return None
    local = [[c for c in branch if c.columns and c.columns <= ids] for branch in branches]
    return _either(local) if all(local) else None


def _factored(node: Node) -> Node:
    if isinstance(node, Filter):
        parts = conjuncts(node.predicate)
        found = [null_safe(f, node.columns) for p in parts for f in factors(p)]
        return node if found == parts else filtered(node.input, found)
    if isinstance(node, Join) and node.residual is not None:
        parts = conjuncts(node.residual)
        columns = (*node.left.columns, *node.right.columns)
        found = [null_safe(f, columns) for p in parts for f in factors(p)]
        return node if found == parts else replace(node, residual=conjunction(list(dict.fromkeys(found))))
    return node


def factors(part: Scalar) -> list[Scalar]:
    """Conjuncts that are together equivalent to `part`."""
    branches = _branches(part)
    common = [c for c in dict.fromkeys(branches[0]) if all(c in b for b in branches[1:])]
    if len(branches) < 2 or not common:
        return [part]
    rests = [[c for c in branch if c not in common] for branch in branches]
    return [*common, _either(rests)] if all(rests) else common


def null_safe(part: Scalar, columns: Sequence[Column]) -> Scalar:
    """`a IS NOT DISTINCT FROM b` if the condition says that two columns are equal or both NULL; else the condition.

    For columns only: another expression may fail, which is not NULL.
    """
    branches = sorted(_branches(part), key=len)
    if [len(b) for b in branches] != [1, 2]:
        return part
    equal, tests = branches[0][0].expression, [c.expression for c in branches[1]]
    if not isinstance(equal, exp.EQ) or not all(_is_null_test(t) for t in tests):
        return part
    sides = {_plain(s, columns) for s in (equal.this, equal.expression)}
    if not all(isinstance(s, exp.Column) for s in sides) or sides != {_plain(t.this, columns) for t in tests}:
        return part
    return Scalar(exp.NullSafeEQ(this=equal.this.copy(), expression=equal.expression.copy()), BOOLEAN, nullable=False)


def _is_null_test(node: exp.Expression) -> bool:
    return isinstance(node, exp.Is) and isinstance(node.expression, exp.Null)


def _plain(node: exp.Expression, columns: Sequence[Column]) -> exp.Expression:
    """A value without parentheses and without casts that can't fail."""
    node = node.unnest()
    while isinstance(node, exp.Cast):
        inner, whole = part_of(node.this, columns), part_of(node, columns)
        if inner is None or whole is None or not is_exact(inner.type, whole.type):
            break
        node = node.this.unnest()
    return node


def _either(branches: list[list[Scalar]]) -> Scalar:
    """The OR over `branches`, each the AND of its parts."""
    ands = [conjunction(branch) for branch in branches]
    return Scalar(exp.or_(*[a.expression for a in ands if a is not None], copy=True), BOOLEAN)


def _branches(part: Scalar) -> list[list[Scalar]]:
    """The conjuncts of each branch; one branch if `part` is no OR."""
    return [conjuncts(branch) for branch in disjuncts(part)]
