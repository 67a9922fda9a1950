"""Pictures of many boxes: columns that are too high stand as several columns side by side.

Arrows then go straight from box to box, below the boxes between, and have no labels: such a picture is to find one's
way in; what a few boxes have to do with each other is in a picture of these alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from watersmeet.drawing.layout import Picture, PlacedArrow, PlacedBox

#: How wide the picture shall be, against its height.
_ASPECT: Final = 1.7
#: Pictures that are not higher than this, or not higher than wide, stay as they are.
_LOW: Final = 1600.0
_MARGIN: Final = 16.0
_BESIDE: Final = 24.0  # between two columns that were one
_BELOW: Final = 14.0
_BETWEEN: Final = 150.0  # between two that were not


def folded(picture: Picture) -> Picture:
    """The picture, with its columns folded if it is high and narrow. The order within columns stays."""
    if picture.height <= _LOW or picture.height <= picture.width:
        return picture
    columns = _columns(picture)
    most = max(map(len, columns))
    rows = min(range(1, most + 1), key=lambda r: abs(math.log(_width(columns, r) / _height(columns, r) / _ASPECT)))
    boxes: dict[str, PlacedBox] = {}
    x = _MARGIN
    for column in columns:
        wide = max(b.width for b in column)
        parts = [column[i : i + rows] for i in range(0, len(column), rows)]
        for part in parts:
            y = _MARGIN
            for box in part:
                boxes[box.box.id] = replace(box, x=x, y=y, width=wide)
                y += box.height + _BELOW
            x += wide + _BESIDE
        x += _BETWEEN - _BESIDE
    height = max(b.y + b.height for b in boxes.values()) + _MARGIN
    arrows = tuple(_straight(a, boxes) for a in picture.arrows)
    return replace(
        picture,
        width=x - _BETWEEN + _MARGIN,
        height=height,
        boxes=tuple(boxes[b.box.id] for b in picture.boxes),
        arrows=arrows,
    )


def _columns(picture: Picture) -> list[list[PlacedBox]]:
    """The columns from left to right, each from top to bottom. Lower boxes than others get the height of the others."""
    found: dict[float, list[PlacedBox]] = {}
    for box in picture.boxes:
        found.setdefault(box.x, []).append(box)
    # The height that arrows need, each with a place of its own, is not needed here.
    least = min(b.height for b in picture.boxes)
    return [[replace(b, height=least) for b in sorted(found[x], key=lambda b: b.y)] for x in sorted(found)]


def _width(columns: Sequence[Sequence[PlacedBox]], rows: int) -> float:
    wide = [
        max(b.width for b in c) * math.ceil(len(c) / rows) + _BESIDE * (math.ceil(len(c) / rows) - 1) for c in columns
    ]
    return sum(wide) + _BETWEEN * (len(columns) - 1) + 2 * _MARGIN


def _height(columns: Sequence[Sequence[PlacedBox]], rows: int) -> float:
    return max(min(len(c), rows) * (c[0].height + _BELOW) for c in columns) + 2 * _MARGIN


def _straight(arrow: PlacedArrow, boxes: dict[str, PlacedBox]) -> PlacedArrow:
    source, target = boxes[arrow.arrow.source], boxes[arrow.arrow.target]
    begin = (source.x + source.width, source.y + source.height / 2)
    end = (target.x, target.y + target.height / 2)
    return PlacedArrow(replace(arrow.arrow, label=""), (begin, end), end)
