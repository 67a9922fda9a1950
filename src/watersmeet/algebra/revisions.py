"""Why a relation may delete rows, which EMIT ON ARRIVAL has to refuse."""

from __future__ import annotations

from watersmeet.algebra.arriving import is_by_arrival
from watersmeet.algebra.nodes import Apply, Cut, Join, Node, Scan, TimeFilter, Values, Window


def revision(node: Node) -> str | None:
    """Why `node` may delete rows, as the beginning of a sentence; None if it never does."""
    if isinstance(node, Scan):
        return None if node.append_only else f'"{node.relation_name}" is not append-only'
    if isinstance(node, Apply) and asked_on_arrival(node):
        return None
    decisive = node.inputs if isinstance(node, Window) and is_by_arrival(node) else node.grows_with
    if decisive is None:
        return node.revises
    return next((found for found in map(revision, decisive) if found is not None), None)


def stands_still(node: Node) -> bool:
    """True if the content never changes after the start of the query."""
    if isinstance(node, Cut) and node.keeps == "before":
        return True
    if isinstance(node, TimeFilter):
        return False
    return isinstance(node, Values) if not node.inputs else all(map(stands_still, node.inputs))


def comes_later(node: Node) -> bool:
    """True if `node` is empty at the start of the query and gets its first row later."""
    if isinstance(node, Cut):
        return node.keeps == "after"
    if node.preserved:
        return any(map(comes_later, node.preserved))
    return (node.grows or isinstance(node, Join)) and all(map(comes_later, node.inputs))


def asked_on_arrival(node: Apply) -> bool:
    """True if the right side is evaluated once for each left row, when it arrives: because the query says so, or
    because a later evaluation would give the same.
    """
    return (node.arrival or (stands_still(node.right) and comes_later(node.left))) and revision(node.left) is None
