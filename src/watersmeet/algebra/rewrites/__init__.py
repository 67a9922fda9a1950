"""Rewrites: pure functions from tree to tree that keep the result, in the order of `RULES`.

Every rule keeps the ids and the order of the root's columns, so rules can be removed or added independently. No rule
depends on a dialect.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from watersmeet.algebra.nodes import Node
from watersmeet.algebra.rewrites.conditions import (
    factor_disjunctions,
    make_anti_joins,
    recognise_topn,
    remove_duplicate_keys,
    time_filters,
)
from watersmeet.algebra.rewrites.joinorder import JoinOrder, connect_joins, ordered
from watersmeet.algebra.rewrites.pushdown import fold_constants, fold_filters, fold_projects, push_filters
from watersmeet.algebra.rewrites.required import prune_columns, spread_for_readers
from watersmeet.algebra.rewrites.unnesting import unnest
from watersmeet.algebra.trees import Rule

__all__ = ["RULES", "JoinOrder", "rewrite", "rewriting"]

#: The order matters. Dependent joins are removed first, because the other rules do not support them. Conditions are
#: pushed to the joins before the joins are ordered, and again afterwards. Comparisons with the clock become nodes after
#: that. Columns are pruned last, followed by the rules that depend on the readers of each node.
RULES: Final[tuple[Rule, ...]] = (
    unnest,
    fold_constants,
    fold_filters,
    factor_disjunctions,
    push_filters,
    make_anti_joins,
    connect_joins,
    push_filters,
    fold_constants,
    recognise_topn,
    time_filters,
    fold_projects,
    remove_duplicate_keys,
    prune_columns,
    fold_projects,
    spread_for_readers,
)


def rewrite(tree: Node, join_order: JoinOrder = "bushy") -> Node:
    """The tree after all `RULES`, which computes the same result with less work. join_order: the shape of its trees of
    joins.
    """
    for _, changed in rewriting(tree, join_order):
        tree = changed
    return tree


def rewriting(tree: Node, join_order: JoinOrder = "bushy") -> Iterator[tuple[str, Node]]:
    """The tree after each of the `RULES`, with the name of the rule."""
    for rule in RULES:
        tree = ordered(tree, join_order) if rule is connect_joins else rule(tree)
        yield rule.__name__, tree
