"""Keys of joins and groups: equalities found in predicates, duplicates removed."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from watersmeet.algebra.coercion import cast, common_type, is_exact, part_of
from watersmeet.algebra.nodes import Aggregate, Join, KeyPair, Node, Project
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.trees import read, transform_up
from watersmeet.types import BOOLEAN


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
