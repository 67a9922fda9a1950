"""Why rows of a relation may go again: what EMIT ON ARRIVAL has to refuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from watersmeet.algebra.arriving import is_by_arrival
from watersmeet.algebra.relations import (
    Aggregate,
    Apply,
    AsofJoin,
    Changes,
    Cut,
    Join,
    Records,
    Relation,
    Scan,
    TemporalJoin,
    TimeFilter,
    Values,
    Window,
)

_KINDS: Final = {"left": "a LEFT JOIN", "right": "a RIGHT JOIN", "full": "a FULL JOIN", "anti": "an anti join"}


def revision(node: Relation) -> str | None:
    """What takes rows of `node` back, as the beginning of a sentence; None if its rows only come."""
    if isinstance(node, Scan):
        return None if node.append_only else f'"{node.relation_name}" is not append-only'
    if isinstance(node, (Changes, Records, Values)):
        return None
    if node.grows:
        return _first(node.inputs)
    if isinstance(node, TimeFilter):
        return (
            None
            if node.final or node.stays
            else "time takes rows back"
            if node.comparison[0] == ">"
            else revision(node.input)
        )
    if isinstance(node, TemporalJoin):
        return revision(node.left)
    if isinstance(node, (Join, AsofJoin)):
        return _join(node)
    if isinstance(node, Apply):
        return None if asked_on_arrival(node) else "a subquery revises rows"
    if isinstance(node, Aggregate):
        return revision(node.input) if not node.calls else "an aggregate revises its groups"
    if isinstance(node, Window) and is_by_arrival(node):
        return revision(node.input)
    return "a window function or LIMIT revises rows" if node.inputs else None


def stands_still(node: Relation) -> bool:
    """True if nothing changes after the start of the query: all that it reads is as it was before."""
    if isinstance(node, Cut) and node.keeps == "before":
        return True
    if isinstance(node, TimeFilter):
        return False
    return isinstance(node, Values) if not node.inputs else all(map(stands_still, node.inputs))


def comes_later(node: Relation) -> bool:
    """True if the first row of `node` comes after the start of the query, when all that stands still is there."""
    if isinstance(node, Cut):
        return node.keeps == "after"
    if node.grows or isinstance(node, TimeFilter):
        return all(map(comes_later, node.inputs))
    if isinstance(node, (Apply, TemporalJoin)) or (isinstance(node, Join) and node.kind in ("left", "semi", "anti")):
        return comes_later(node.left)
    return isinstance(node, Join) and (any if node.kind == "inner" else all)(map(comes_later, node.inputs))


def asked_on_arrival(node: Apply) -> bool:
    """True if the right side is evaluated once for each left row, when it comes: it is said, or no later answer would
    be another.
    """
    return (node.arrival or (stands_still(node.right) and comes_later(node.left))) and revision(node.left) is None


def decided_by(node: Join | AsofJoin) -> Sequence[Relation]:
    """The inputs that have to grow only for a join that is decided on arrival to be never revised."""
    return (node.left,) if isinstance(node, AsofJoin) or node.kind in ("semi", "anti") else node.inputs


def _join(node: Join | AsofJoin) -> str | None:
    if node.arrival:
        return _first(decided_by(node))
    if isinstance(node, AsofJoin):
        return "an ASOF join revises partners"
    return _first(node.inputs) if node.kind in ("inner", "semi") else f"{_KINDS[node.kind]} revises rows"


def _first(inputs: Sequence[Relation]) -> str | None:
    return next((found for found in map(revision, inputs) if found is not None), None)
