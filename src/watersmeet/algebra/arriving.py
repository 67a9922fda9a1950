"""Rows in the order in which they came: what is known of them without looking at those that come later."""

from __future__ import annotations

from watersmeet.algebra.ordered import Window
from watersmeet.algebra.relations import Arrivals, Cut, Filter, Project, Relation, Unnest


def arrivals_below(node: Relation, *, unnested: bool = False) -> Arrivals | None:
    """What gives the rows of `node`, if they are what was written to a relation, maybe cut, filtered or projected.

    unnested: or several of each, which came at once.
    """
    while isinstance(node, (Cut, Filter, Project)) or (unnested and isinstance(node, Unnest)):
        node = node.input
    return node if isinstance(node, Arrivals) else None


def is_by_arrival(node: Window) -> bool:
    """Whether all functions order rows by arrival and look back only: no later row changes a value."""
    arrivals = arrivals_below(node.input, unnested=True)
    if arrivals is None:
        return False
    age = [(c.id, True) for c in arrivals.age]
    return all([(k.value.column, k.descending) for k in c.order] == age and c.looks_back for c in node.calls)


def lagging(node: Window) -> int | None:
    """How many rows of a partition are asked for again by those that come, where all functions are lag by arrival."""
    found = [c.number for c in node.calls if c.function == "lag"]
    return max(1, *found) if len(found) == len(node.calls) and is_by_arrival(node) else None
