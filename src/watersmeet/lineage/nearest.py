"""Keys that were looked for and are not there: the nearest there are."""

from __future__ import annotations

from collections.abc import Sequence

from watersmeet.algebra.nodes import Node
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.trees import filtered
from watersmeet.lineage.asking import Asker
from watersmeet.lineage.cells import Cell, equal
from watersmeet.lineage.names import Names, expression_text


def key_text(keys: Sequence[Scalar], values: Sequence[Cell], names: Names) -> str:
    """`orders.id = 7 AND …`."""
    pairs = zip(keys, values, strict=True)
    return " AND ".join(
        f"{expression_text(k, names)} {'IS NULL' if v.text is None else '= ' + v.shown}" for k, v in pairs
    )


def nearest_text(asker: Asker, tree: Node, keys: Sequence[Scalar], values: Sequence[Cell], names: Names) -> str:
    """The nearest keys that a plain tree has instead of one that it lacks.

    The first keys that are there together count as found; the next one is the one that is not.
    """
    if not asker.some(tree):
        return "there are no rows at all"
    found: list[Scalar] = []
    for number, (key, value) in enumerate(zip(keys, values, strict=True)):
        below = filtered(tree, found)
        if asker.some(filtered(below, [equal(key, value)])):
            found.append(equal(key, value))
            continue
        there = f"with {key_text(keys[:number], values[:number], names)} " if number else ""
        return there + _around(asker, below, key, value, names)
    return "no row has all of them together"


def _around(asker: Asker, tree: Node, key: Scalar, value: Cell, names: Names) -> str:
    text = expression_text(key, names)
    if value.text is None:
        return f"no {text} is NULL"
    low, high = asker.extremes(tree, key, value)
    parts = [f"{side} {cell.shown}" for side, cell in (("below", low), ("above", high)) if cell.text is not None]
    if not parts:
        return f"{text} is NULL everywhere"
    return f"the nearest {text}: {', '.join(parts)}"
