"""Views whose rows are looked up, once, in what changes: they are decided again as of the moment at which they came.

A row of such a view comes out in the epoch in which its left row comes, with the right rows as they are at the end of
that epoch. So as of that commit nothing is open: what came in it on the left, joined with what was there on the right,
is what came out. It takes the history since that commit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from watersmeet.algebra.nodes import (
    Arrivals,
    AsofJoin,
    Cut,
    Expand,
    Filter,
    Join,
    Node,
    Project,
    Records,
    Repartition,
    Scan,
    TemporalJoin,
    TimeFilter,
    Union,
    Unnest,
    Versions,
)
from watersmeet.algebra.revisions import revision
from watersmeet.algebra.trees import Rule, transform_up, walk, with_inputs
from watersmeet.lineage.candidates import decision

_ROW_BY_ROW: Final = (Expand, Filter, Project, Repartition, Union, Unnest)


def undecidable_then(tree: Node) -> str | None:
    """Why the rows of a tree can't be decided again as of the moments at which they came, as a sentence without its
    point; None if they can, "" if it is not because of what is looked up.
    """
    if isinstance(tree, Scan):
        taken = revision(tree)
        return None if taken is None else f"{taken}, and what it looked up when its rows came is not kept"
    if isinstance(tree, TemporalJoin) and tree.waits:
        return "Rows that find nothing wait in it, and when they came is not kept"
    if isinstance(tree, TemporalJoin) and tree.ttl_us is not None:
        return "What it finds serves later rows of the same key, and when it was found is not kept"
    if _looks_up(tree):
        left, right = tree.inputs
        return undecidable_then(left) or _unknown(right)
    if isinstance(tree, _ROW_BY_ROW) or (isinstance(tree, Cut) and tree.keeps == "after"):
        return next((why for why in map(undecidable_then, tree.inputs) if why is not None), None)
    return ""


def _looks_up(node: Node) -> bool:
    """Whether each left row is decided when it comes, by the right rows that are there."""
    if isinstance(node, (AsofJoin, Join)):
        return node.arrival and (isinstance(node, AsofJoin) or node.kind in ("semi", "anti"))
    return isinstance(node, TemporalJoin)


def _unknown(looked_up: Node) -> str | None:
    """Why the rows in which a join looks are not known as of earlier moments."""
    for node in walk(looked_up):
        if isinstance(node, TimeFilter):
            return "What it looks up depends on time, and how far that had come then is not kept"
        if isinstance(node, (Arrivals, Records, Versions)) or decision(node) is not None:
            return "What it looks up was itself decided once"
    return None


def decided_again(tree: Node, came: Callable[[Scan], Node], then: Rule) -> Node:
    """The tree as of a commit, with what was decided in it: as a query over content alone.

    came: what of a relation came in the commit. then: makes scans those of the commit.
    """
    if isinstance(tree, Scan):
        return came(tree)
    if isinstance(tree, Cut):
        return decided_again(tree.input, came, then)
    if _looks_up(tree):
        left, right = tree.inputs
        left, right = decided_again(left, came, then), transform_up(right, then)
        if isinstance(tree, TemporalJoin):
            return Join(left, right, tree.kind, tree.keys, tree.residual, span=tree.span)
        assert isinstance(tree, (AsofJoin, Join))
        return replace(tree, left=left, right=right, arrival=False)
    return with_inputs(tree, [decided_again(i, came, then) for i in tree.inputs])
