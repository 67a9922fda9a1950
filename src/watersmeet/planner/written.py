"""What can be computed from the newest rows of a key without reading all of its rows: joins with the last rows
written.
"""

from __future__ import annotations

from watersmeet.algebra.arriving import arrivals_below
from watersmeet.algebra.nodes import AsofJoin, Cut, Filter, Node, Project, TopN
from watersmeet.algebra.retention import of_partition

_Ids = frozenset[str]


def is_last_written(node: TopN, needed: _Ids) -> bool:
    """Whether the rows are the last ones of each key and their order is not read: of rows that are never deleted and
    whose order is known.

    During a backfill this does not hold if rows can be deleted: what is there then has no order.
    """
    arrivals = arrivals_below(node.input)
    if arrivals is None or not (_is_cut(node.input) or (arrivals.scan.append_only and not arrivals.moment)):
        return False
    age = [c.id for c in arrivals.age]
    by_age = [k.value.column for k in node.order] == age and not any(k.descending for k in node.order)
    plain = bool(node.partition) and all(k.column in node.input.ids for k in node.partition)
    return by_age and plain and (node.limit, node.offset, node.with_ties) == (1, 0, False) and not needed & set(age)


def kept_versions(join: AsofJoin) -> TopN | None:
    """The right side of a join on arrival, if it is the rows of each key with the greatest values, ties broken by
    `ties`.

    Only for rows that are never deleted: no other row can become a partner later.
    """
    top = join.right
    if not join.arrival or not isinstance(top, TopN) or top.limit is None or top.offset or top.with_ties:
        return None
    if (
        arrivals_below(top.input) is None
        or of_partition(top) is not None
        or any(k.left.type != k.right.type for k in join.keys)
    ):
        return None
    value, *rest = top.order
    by_value = value.value == join.right_value and value.descending and not value.nulls_first
    by_ties = tuple(k.value.column for k in rest) == join.ties and not any(k.descending for k in rest)
    return top if by_value and by_ties and set(top.partition) == {k.right for k in join.keys} else None


def _is_cut(node: Node) -> bool:
    while isinstance(node, (Filter, Project)):
        node = node.input
    return isinstance(node, Cut)
