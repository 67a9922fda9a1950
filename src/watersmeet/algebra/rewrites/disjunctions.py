"""Conditions under OR: what all branches share comes out of it, and what each says of one side alone is said there.

    (k = j AND x) OR (k = j AND y)                    ->  k = j AND (x OR y)
    (a.n = 1 AND b.n = 2) OR (a.n = 3 AND b.n = 4)    implies  a.n = 1 OR a.n = 3

The first gives joins their keys (TPC-H Q19), the second keeps rows out of them (Q7). Both hold in SQL's logic of three
values, also where a part that fails counts as NULL.
"""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from watersmeet.algebra.relations import Filter, Join, Relation
from watersmeet.algebra.scalars import Scalar, conjunction, conjuncts, disjuncts
from watersmeet.algebra.trees import filtered, transform_up
from watersmeet.types import BOOLEAN


def factor_disjunctions(tree: Relation) -> Relation:
    """The tree with the common conjuncts of every OR in front of it."""
    return transform_up(tree, _factored)


def implied(part: Scalar, ids: frozenset[str]) -> Scalar | None:
    """What the OR `part` says of the columns `ids` alone; None if a branch says nothing of them, or if it is no OR."""
    branches = _branches(part)
    if len(branches) < 2 or part.columns <= ids:
        return None
    local = [[c for c in branch if c.columns and c.columns <= ids] for branch in branches]
    return _either(local) if all(local) else None


def _factored(node: Relation) -> Relation:
    if isinstance(node, Filter):
        parts = conjuncts(node.predicate)
        found = [f for p in parts for f in factors(p)]
        return node if found == parts else filtered(node.input, found)
    if isinstance(node, Join) and node.residual is not None:
        parts = conjuncts(node.residual)
        found = [f for p in parts for f in factors(p)]
        return node if found == parts else replace(node, residual=conjunction(list(dict.fromkeys(found))))
    return node


def factors(part: Scalar) -> list[Scalar]:
    """Conjuncts that together say what `part` says."""
    branches = _branches(part)
    common = [c for c in dict.fromkeys(branches[0]) if all(c in b for b in branches[1:])]
    if len(branches) < 2 or not common:
        return [part]
    rests = [[c for c in branch if c not in common] for branch in branches]
    return [*common, _either(rests)] if all(rests) else common


def _either(branches: list[list[Scalar]]) -> Scalar:
    """The OR of the ANDs of `branches`."""
    ands = [conjunction(branch) for branch in branches]
    return Scalar(exp.or_(*[a.expression for a in ands if a is not None], copy=True), BOOLEAN)


def _branches(part: Scalar) -> list[list[Scalar]]:
    """The conjuncts of each branch; a single branch if `part` is no OR."""
    return [conjuncts(branch) for branch in disjuncts(part)]
