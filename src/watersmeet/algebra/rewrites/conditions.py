"""Rewrites of conditions: keys of joins, LEFT JOINs without matched rows, and branches of OR.

Conditions under OR: what all branches share moves out, and what all say about one side is implied for that side.

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

from watersmeet.algebra.nodes import Aggregate, Column, Filter, Join, KeyPair, Node, Project
from watersmeet.algebra.scalars import Scalar, conjunction, conjuncts, disjuncts, null_of, strict_columns
from watersmeet.algebra.trees import cast, common_type, filtered, is_exact, part_of, read, transform_up
from watersmeet.values.types import BOOLEAN


def key_pair(predicate: Scalar, left: Node, right: Node) -> KeyPair | None:
    """The predicate as a key of a join of `left` and `right`, both sides in one type; None if it can't be one."""
    node = predicate.expression
    if not isinstance(node, (exp.EQ, exp.NullSafeEQ)):
        return None
    one, other = Scalar(node.this, BOOLEAN).columns, Scalar(node.expression, BOOLEAN).columns
    if not one or not other:
        return None
    if one <= left.ids and other <= right.ids:
        sides = part_of(node.this, left.columns), part_of(node.expression, right.columns)
    elif one <= right.ids and other <= left.ids:
        sides = part_of(node.expression, left.columns), part_of(node.this, right.columns)
    else:
        return None
    if sides[0] is None or sides[1] is None:
        return None
    return paired(sides[0], sides[1], null_safe=isinstance(node, exp.NullSafeEQ))


def paired(left: Scalar, right: Scalar, *, null_safe: bool) -> KeyPair | None:
    """The key `left = right` in the common type; None if there is none."""
    target = common_type(left.type, right.type)
    if target is None:
        return None
    if null_safe and not (is_exact(left.type, target) and is_exact(right.type, target)):
        return None  # a value that the cast can't hold would become NULL, which here equals NULL
    return KeyPair(cast(left, target), cast(right, target), null_safe)


def as_predicate(pair: KeyPair) -> Scalar:
    """The key as a predicate."""
    kind = exp.NullSafeEQ if pair.null_safe else exp.EQ
    sides = [s.expression.copy() if s.column else exp.paren(s.expression) for s in (pair.left, pair.right)]
    return Scalar(kind(this=sides[0], expression=sides[1]), BOOLEAN)


def remove_duplicate_keys(tree: Node) -> Node:
    """Keeps each key of a join or aggregate once: `GROUP BY a, a` groups by `a` and outputs it twice."""
    return transform_up(tree, _without_duplicates)


def _without_duplicates(node: Node) -> Node:
    if isinstance(node, Join) and len(set(node.keys)) < len(node.keys):
        return replace(node, keys=tuple(dict.fromkeys(node.keys)))
    if isinstance(node, Aggregate) and len(set(node.keys)) < len(node.keys):
        keys = tuple(dict.fromkeys(node.keys))
        firsts = [node.outputs[node.keys.index(k)] for k in keys]
        calls = node.outputs[len(node.keys) :]
        slim = Aggregate(node.input, keys, node.calls, (*firsts, *calls))
        exprs = [read(firsts[keys.index(k)]) for k in node.keys] + [read(c) for c in calls]
        return Project(slim, node.outputs, tuple(exprs))
    return node


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
