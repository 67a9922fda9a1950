"""Recursive queries, round by round. The first round is what the anchor gives; each later one is what the step makes of
the round before. So no row comes from itself.

What the rounds gave is lent to the connection that is asked, under the names that are made here.
"""

from __future__ import annotations

from typing import Final

from watersmeet.algebra.bounded import Named, PastScan, Recursion
from watersmeet.algebra.nodes import Column, Filter, Join, Node, Project, Scan, Union, Unnest, Values
from watersmeet.algebra.trees import Rule, transform_up, walk

_ROW_BY_ROW: Final = (Filter, Named, PastScan, Project, Scan, Union, Unnest, Values)


def all_name(recursion: Recursion) -> str:
    """The name of the rows of all rounds, with the number of the round behind their own columns."""
    return f"{recursion.name} rounds"


def round_name(recursion: Recursion, number: int) -> str:
    """The name of the rows of one round."""
    return f"{recursion.name} round {number}"


def all_rounds(recursion: Recursion) -> Node:
    """The rows of a recursion, as they are lent."""
    return Named(all_name(recursion), None, recursion.outputs)


def numbered_rounds(recursion: Recursion, number: Column) -> Node:
    """The same, each with the number of the round that gave it."""
    return Named(all_name(recursion), None, (*recursion.outputs, number))


def of_round(recursion: Recursion, number: int) -> Node:
    """What gives the rows of a round, the first of which is 1."""
    if number == 1:
        return recursion.anchor
    return _over(recursion, round_name(recursion, number - 1))


def of_all_rounds(recursion: Recursion) -> Node | None:
    """What gives the rows of all rounds but the first: as one query, if the step gives for all rows together what it
    gives for each of them.
    """
    alone = all(
        isinstance(n, _ROW_BY_ROW) or (isinstance(n, Join) and n.kind in ("inner", "semi"))
        for n in walk(recursion.step)
    )
    return _over(recursion, all_name(recursion)) if alone else None


def reads_rounds_within(recursion: Recursion) -> bool:
    """Whether a recursion in its step reads its rounds."""
    within = [n for n in walk(recursion.step) if isinstance(n, Recursion)]
    return any(_is_round(n, recursion) for inner in within for n in walk(inner))


def _is_round(node: Node, recursion: Recursion) -> bool:
    return isinstance(node, Named) and node.definition is None and node.name == recursion.name


def _over(recursion: Recursion, name: str) -> Node:
    def read(node: Node) -> Node:
        return Named(name, None, node.columns) if _is_round(node, recursion) else node

    rule: Rule = read
    return transform_up(recursion.step, rule)
