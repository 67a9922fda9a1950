"""Where a node of a tree stands in the text that it was read from.

sqlglot's parser notes in a node's `meta` the first and the last character of the token that it was made of; this module
alone knows of that.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from watersmeet.errors import Span

_KEYS: Final = ("start", "end")


def own_place(node: exp.Expression) -> Span | None:
    """The place that the node itself was given; None if it has none."""
    start = node.meta.get("start")
    return None if start is None else Span(start, node.meta["end"] + 1)


def set_place(node: exp.Expression, place: Span | None) -> None:
    """Gives a node its place, or takes it away (None)."""
    if place is None:
        for key in _KEYS:
            node.meta.pop(key, None)
    else:
        node.meta["start"], node.meta["end"] = place.start, place.end - 1
