"""The order of inner joins: the written one, unless it would join inputs that no equality connects.

FROM a, b, c WHERE a.x = c.x AND b.y = c.y   ->   (a JOIN c ON a.x = c.x) JOIN b ON c.y = b.y
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlglot import exp

from watersmeet.algebra.relations import Join, KeyPair, Relation
from watersmeet.algebra.rewrites.keys import as_predicate, key_pair
from watersmeet.algebra.scalars import Scalar, conjunction, conjuncts
from watersmeet.algebra.trees import exactly, filtered, is_single_row, with_inputs
from watersmeet.errors import Span


def connect_joins(tree: Relation) -> Relation:
    """The tree with inner joins reordered where that avoids a join without a key."""
    if not _is_plain(tree):
        return with_inputs(tree, [connect_joins(i) for i in tree.inputs])
    cluster = _Cluster([], [], [], None)
    has_gap = _collect(tree, cluster)
    if not has_gap:
        return _rebuilt(tree)
    groups = [connect_joins(leaf) for leaf in cluster.leaves]
    while len(groups) > 1:
        one, other = _next_pair(groups, cluster)
        groups[one] = _joined(groups[one], groups.pop(other), cluster)
    return exactly(filtered(groups[0], cluster.rest), tree.columns)


@dataclass(slots=True)
class _Cluster:
    """The inputs of neighbouring inner joins in the written order and all their conditions.

    span: the place of the first join without a key.
    """

    leaves: list[Relation]
    keys: list[KeyPair]
    rest: list[Scalar]
    span: Span | None


def _is_plain(node: Relation) -> bool:
    return isinstance(node, Join) and node.kind == "inner" and not node.broadcast


def _collect(node: Relation, cluster: _Cluster) -> bool:
    """Fills `cluster`; True if some join of it has no key."""
    if not (isinstance(node, Join) and _is_plain(node)):
        cluster.leaves.append(node)
        return False
    gap = not node.keys
    cluster.span = node.span if gap else cluster.span
    for side in (node.left, node.right):
        gap |= _collect(side, cluster)
    cluster.keys.extend(node.keys)
    cluster.rest.extend(conjuncts(node.residual))
    return gap


def _rebuilt(node: Relation) -> Relation:
    if isinstance(node, Join) and _is_plain(node):
        return replace(node, left=_rebuilt(node.left), right=_rebuilt(node.right))
    return connect_joins(node)


def _oriented(pair: KeyPair, left: Relation, right: Relation) -> KeyPair | None:
    if pair.left.columns <= left.ids and pair.right.columns <= right.ids:
        return pair
    if pair.left.columns <= right.ids and pair.right.columns <= left.ids:
        return KeyPair(pair.right, pair.left, pair.null_safe)
    return None


def _is_key(condition: KeyPair | Scalar, left: Relation, right: Relation) -> bool:
    if isinstance(condition, KeyPair):
        return _oriented(condition, left, right) is not None
    return key_pair(condition, left, right) is not None


def _sides(condition: KeyPair | Scalar) -> list[frozenset[str]]:
    """The columns of both sides of an equality."""
    if isinstance(condition, KeyPair):
        return [condition.left.columns, condition.right.columns]
    node = condition.expression
    if not isinstance(node, (exp.EQ, exp.NullSafeEQ)):
        return []
    return [Scalar(side, condition.type).columns for side in (node.this, node.expression)]


def _next_pair(groups: list[Relation], cluster: _Cluster) -> tuple[int, int]:
    """The groups to join next, in the written order of preference.

    First two that a key connects; then an input of one row with another if together they give
    one side of a key; then inputs of many rows (which the planner will refuse); then the rest.
    """
    pairs = [(one, other) for one in range(len(groups)) for other in range(one + 1, len(groups))]
    conditions: list[KeyPair | Scalar] = [*cluster.keys, *cluster.rest]
    for one, other in pairs:
        if any(_is_key(c, groups[one], groups[other]) for c in conditions):
            return one, other
    single = {i for i, g in enumerate(groups) if is_single_row(g)}
    sides = [s for c in conditions for s in _sides(c)]
    for one, other in pairs:
        left, right = groups[one].ids, groups[other].ids
        if {one, other} & single and any(s <= left | right and not (s <= left or s <= right) for s in sides):
            return one, other
    return next((p for p in pairs if not set(p) & single), pairs[0])


def _joined(left: Relation, right: Relation, cluster: _Cluster) -> Relation:
    """Joins two groups with all conditions that can be tested now, and takes these out of the cluster."""
    known = left.ids | right.ids
    keys, open_keys = [], []
    for pair in cluster.keys:
        oriented = _oriented(pair, left, right)
        if oriented is not None:
            keys.append(oriented)
        elif pair.left.columns | pair.right.columns <= known:
            cluster.rest.append(as_predicate(pair))
        else:
            open_keys.append(pair)
    cluster.keys[:] = open_keys
    residual: list[Scalar] = []
    open_parts: list[Scalar] = []
    for part in cluster.rest:
        found = key_pair(part, left, right)
        if found is not None:
            keys.append(found)
        elif part.columns and part.columns <= known:
            residual.append(part)
        else:
            open_parts.append(part)
    cluster.rest[:] = open_parts
    return Join(left, right, "inner", tuple(keys), conjunction(residual), span=cluster.span)
