"""In which columns a row has NULLs because an outer join found no partner for it."""

from __future__ import annotations

from collections.abc import Iterable

from watersmeet.algebra.nodes import Aggregate, Binary, Column, Node, Project, Union, Unnest
from watersmeet.algebra.scalars import Scalar

_NONE = frozenset[str]()

#: For each way in which rows may lack partners, the ids of the columns that are then NULL together.
Paddings = frozenset[frozenset[str]]


def paddings(node: Node) -> Paddings:
    """The columns of `node` that are NULL together in rows without partners, for each way of lacking partners.

    Only the largest sets: what is NULL when some partners are missing is also NULL when more are missing.

        Join full, a, b           ->  {columns of a}, {columns of b}
        Join left, a, b           ->  {columns of b}
    """
    if isinstance(node, Project):
        return _greatest(_made(node.outputs, node.exprs, p) for p in paddings(node.input))
    if isinstance(node, Aggregate):
        return _greatest(_made(node.outputs[: len(node.keys)], node.keys, p) for p in paddings(node.input))
    if isinstance(node, Union):
        return _greatest(
            frozenset(o.id for c, o in zip(part.columns, node.outputs, strict=True) if c.id in p)
            for part in node.parts
            for p in paddings(part)
        )
    if isinstance(node, Unnest) and node.outer:
        made = frozenset(c.id for c in node.elements)
        return _greatest(p | made for p in paddings(node.input))
    if isinstance(node, Binary) and node.gives_right:
        return _joined(node)
    return paddings(node.inputs[0]) if node.inputs else frozenset([_NONE])


def _joined(node: Binary) -> Paddings:
    left, right = paddings(node.left), paddings(node.right)
    found = [] if node.keeps_right else [p | node.right.ids for p in left]
    if not node.keeps_left:
        found += [p | node.left.ids for p in right]
    return _greatest(found or [a | b for a in left for b in right])


def _made(outputs: Iterable[Column], exprs: Iterable[Scalar], padding: frozenset[str]) -> frozenset[str]:
    """The outputs that read columns of `padding` and no others, and so are NULL with them."""
    return frozenset(c.id for c, e in zip(outputs, exprs, strict=True) if e.columns and e.columns <= padding)


def _greatest(found: Iterable[frozenset[str]]) -> Paddings:
    distinct = set(found)
    return frozenset(p for p in distinct if not any(p < q for q in distinct))
