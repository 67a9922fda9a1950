"""What happens to the rows of a relation: they are only inserted, inserted and deleted, or never change."""

from __future__ import annotations

from typing import Literal

from watersmeet.algebra.arriving import is_by_arrival
from watersmeet.algebra.nodes import (
    Arrivals,
    AsofJoin,
    Cut,
    Join,
    Node,
    Scan,
    TemporalJoin,
    Values,
    Window,
)

#: Rows are only inserted; rows are inserted and deleted; the content never changes.
ChangeKind = Literal["append", "changelog", "static"]


def change_kind(node: Node) -> ChangeKind:
    """What happens to the rows of a relation."""
    if isinstance(node, Cut):
        return "static" if node.keeps == "before" else change_kind(node.input)
    if isinstance(node, Scan):
        return "append" if node.append_only else "changelog"
    if isinstance(node, Values):
        return "static"
    if isinstance(node, TemporalJoin) or (isinstance(node, AsofJoin) and node.arrival):
        return change_kind(node.left)
    if isinstance(node, Arrivals):
        return change_kind(node.scan)
    kinds = {change_kind(i) for i in node.inputs}
    if kinds == {"static"}:
        return "static"
    grows = node.grows or (isinstance(node, Join) and node.kind == "inner")
    grows = grows or (isinstance(node, Window) and is_by_arrival(node))
    return "append" if grows and "changelog" not in kinds else "changelog"
