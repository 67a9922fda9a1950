"""Spans of nodes in the text that they were parsed from.

sqlglot's parser keeps the first and the last character of a node's token in its `meta`; only this module reads it.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from watersmeet.errors import Span

_KEYS: Final = ("start", "end")


def own_span(node: exp.Expression) -> Span | None:
    """The span of the node itself; None if it has none."""
    start = node.meta.get("start")
    return None if start is None else Span(start, node.meta["end"] + 1)


def set_span(node: exp.Expression, span: Span | None) -> None:
    """Sets the span of a node, or removes it (None)."""
    if span is None:
        for key in _KEYS:
            node.meta.pop(key, None)
    else:
        node.meta["start"], node.meta["end"] = span.start, span.end - 1
