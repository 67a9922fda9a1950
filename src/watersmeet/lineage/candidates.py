"""Views whose rows were decided once, when they came: on arrival, by clocks, or by the moment at which the view began.

Run again now, such a query gives candidates: all rows that the view has, and perhaps others that were decided
otherwise. As many candidates with the values of a row as there are such rows are the rows themselves. That holds as
long as no row is taken back that a candidate is made of, and every operator above goes row by row.
"""

from __future__ import annotations

from typing import Final

from watersmeet.algebra.nodes import (
    AsofJoin,
    Cut,
    Expand,
    Filter,
    Join,
    LateRowFilter,
    Node,
    Project,
    Repartition,
    TemporalJoin,
    TimeFilter,
    Union,
    Unnest,
)
from watersmeet.algebra.properties import revision
from watersmeet.algebra.scalars import null_of
from watersmeet.algebra.trees import read, transform_up, walk

_ROW_BY_ROW: Final = (Cut, Expand, Filter, LateRowFilter, Project, Repartition, TimeFilter, Union, Unnest)


def decision(node: Node) -> str | None:
    """What a node decides once about its rows, as the end of a sentence; None if it decides nothing."""
    if isinstance(node, Cut) and node.keeps == "after":
        return "only rows that came after it began count"
    if isinstance(node, Cut):
        return "only rows that were there when it began count"
    if isinstance(node, LateRowFilter):
        return "rows that come too late for one another don't count"
    if isinstance(node, TemporalJoin):
        return "rows are looked up once, as they are when others arrive"
    if isinstance(node, (Join, AsofJoin)) and node.arrival:
        return "what comes out on arrival is never revised"
    if isinstance(node, Join) and node.partners is not None:
        return "clocks decide once which rows have no partner"
    return None


def decisions(tree: Node) -> list[str]:
    """All that is decided once in a tree, each once."""
    return list(dict.fromkeys(d for d in map(decision, walk(tree)) if d is not None))


def gives_candidates(node: Node) -> bool:
    """Whether the tree, run now, may have rows that its view has not."""
    return decision(node) is not None or any(map(gives_candidates, node.inputs))


def undecidable(tree: Node) -> str | None:
    """Why the rows of a tree can't be told from its candidates, as a sentence without its point; None if they can."""
    for node in walk(tree):
        why = _undecidable(node) if gives_candidates(node) else None
        if why is not None:
            (said, *_) = decisions(node)
            return f"In it {said}, but {why}"
    return None


def _undecidable(node: Node) -> str | None:
    if isinstance(node, (Join, AsofJoin, TemporalJoin)):
        shown = [node.left] if node.kind == "anti" else [node.left, node.right]
        taken = next((t for t in map(revision, shown) if t is not None), None)
    elif isinstance(node, _ROW_BY_ROW):
        taken = revision(node.inputs[0]) if isinstance(node, (Cut, LateRowFilter)) else None
    else:
        return "it computes with many rows at once, and which of them counted is not kept"
    return None if taken is None else f"{taken}, and rows as they were then are not kept"


def on_arrival(tree: Node) -> Node:
    """The tree with its look-ups as joins that are decided on arrival: they have the same candidates."""

    def joined(node: Node) -> Node:
        if not isinstance(node, TemporalJoin):
            return node
        return Join(node.left, node.right, node.kind, node.keys, node.residual, arrival=True, span=node.span)

    return transform_up(tree, joined)


def pairs_and_rows_alone(node: Join) -> Node:
    """The candidates of a join: all pairs, and every row of the sides that an outer join preserves."""
    pairs = Join(node.left, node.right, "inner", node.keys, node.residual)
    sides = [node.left] * (node.kind in ("left", "full")) + [node.right] * (node.kind in ("right", "full"))
    if not sides:
        return pairs
    return Union((pairs, *(_alone(node, side) for side in sides)), node.columns)


def _alone(node: Join, side: Node) -> Project:
    """The rows of one side, with NULLs in the place of the other."""
    return Project(side, node.columns, tuple(read(c) if c.id in side.ids else null_of(c.type) for c in node.columns))
