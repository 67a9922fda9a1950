"""Rows in the order of arrival: what is known of them without the rows that arrive later."""

from __future__ import annotations

from watersmeet.algebra.nodes import Arrivals, Cut, Filter, Node, Project, Unnest
from watersmeet.algebra.ordered import Window


def arrivals_below(node: Node, *, unnested: bool = False) -> Arrivals | None:
    """The `Arrivals` that the rows of `node` come from, if there are only cuts, filters and projects in between.

    unnested: allow `Unnest` in between; the rows that it makes of one row arrive together.
    """
    while isinstance(node, (Cut, Filter, Project)) or (unnested and isinstance(node, Unnest)):
        node = node.input
    return node if isinstance(node, Arrivals) else None


def is_by_arrival(node: Window) -> bool:
    """Whether all calls order rows by arrival and look back, so that no later row changes a value."""
    arrivals = arrivals_below(node.input, unnested=True)
    if arrivals is None:
        return False
    age = [(c.id, True) for c in arrivals.age]
    return all([(k.value.column, k.descending) for k in c.order] == age and c.looks_back for c in node.calls)


def lagging(node: Window) -> int | None:
    """How many earlier rows of a partition a new row reads, if all calls are lag by arrival; else None."""
    found = [c.number for c in node.calls if c.function == "lag"]
    return max(1, *found) if len(found) == len(node.calls) and is_by_arrival(node) else None
