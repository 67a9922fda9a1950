"""Joins with a single row that are dynamic filters: comparisons whose result has the left side's columns only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from watersmeet.algebra.cardinality import is_single_row
from watersmeet.algebra.coercion import cast, common_type, part_of
from watersmeet.algebra.comparisons import MIRRORED_SIGNS, SIGNS, Comparison
from watersmeet.algebra.nodes import Join, Node
from watersmeet.algebra.scalars import Scalar, conjuncts
from watersmeet.types import BOOLEAN

_ORDERED: Final = ("varchar", "bytea", "date", "time", "timestamp", "timestamptz")


@dataclass(frozen=True)
class Compared:
    """`left comparison right`: left over the join's left input, right over the right one, both of the same ordered
    type.
    """

    left: Scalar
    comparison: Comparison
    right: Scalar


def comparisons(node: Join, needed: frozenset[str]) -> list[Compared] | None:
    """The comparisons that make up a join of which `needed` columns are read; None if it is anything else."""
    if node.keys or not node.broadcast or node.residual is None or node.kind not in ("inner", "semi"):
        return None
    if (node.kind == "inner" and needed & node.right.ids) or not is_single_row(node.right):
        return None
    found = [_compared(p, node.left, node.right) for p in conjuncts(node.residual)]
    known = [c for c in found if c is not None]
    return known if len(known) == len(found) else None


def _compared(part: Scalar, left: Node, right: Node) -> Compared | None:
    node = part.expression
    sign = SIGNS.get(type(node))
    if sign is None:
        return None
    one, other = node.this.unnest(), node.expression.unnest()
    if Scalar(one, BOOLEAN).columns <= right.ids:
        one, other, sign = other, one, MIRRORED_SIGNS[sign]
    reads, given = Scalar(one, BOOLEAN).columns, Scalar(other, BOOLEAN).columns
    if not (reads and given and reads <= left.ids and given <= right.ids):
        return None
    mine, theirs = part_of(one, left.columns), part_of(other, right.columns)
    kind = None if mine is None or theirs is None else common_type(mine.type, theirs.type)
    if mine is None or theirs is None or kind is None or not (kind.is_numeric or kind.name in _ORDERED):
        return None
    return Compared(cast(mine, kind), sign, cast(theirs, kind))
