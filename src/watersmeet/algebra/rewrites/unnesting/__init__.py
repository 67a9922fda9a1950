"""Dependent joins become plain joins: after `unnest` no tree has an `Apply`."""

from __future__ import annotations

from watersmeet.algebra.nodes import Apply, Node
from watersmeet.algebra.rewrites.pushdown import push_filters
from watersmeet.algebra.rewrites.unnesting.joining import Joining
from watersmeet.algebra.rewrites.unnesting.lifted import Names
from watersmeet.algebra.trees import with_inputs


def unnest(tree: Node) -> Node:
    """The tree without dependent joins, the innermost first.

    Filter(a.x > m, Apply(left, a, Aggregate([], max(b.y) AS m, Filter(b.k = a.k, b))))
        ->  Filter(a.x > m, a LEFT JOIN Aggregate([b.k], max(b.y) AS m, b) ON b.k = a.k)
    """
    return _unnested(tree, Names(tree))


def _unnested(node: Node, names: Names) -> Node:
    inputs = [_unnested(i, names) for i in node.inputs]
    node = with_inputs(node, inputs)
    if not isinstance(node, Apply):
        return node
    if node.right.free & node.left.ids:
        # conditions that reject NULLs make inner joins, which conditions on the domain can pass
        node = with_inputs(node, [node.left, push_filters(node.right)])
        assert isinstance(node, Apply)
    return Joining(node, names).joined()
