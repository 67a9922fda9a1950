"""Where everything is: columns of boxes from left to right, arrows in between, labels before the arrow heads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from watersmeet.drawing.diagram import Arrow, Box, Diagram
from watersmeet.drawing.layers import Layered, Slot, layered

TITLE_SIZE: Final = 13.0
LINE_SIZE: Final = 11.0
LABEL_SIZE: Final = 10.0
LINE_HEIGHT: Final = 15.0
PADDING: Final = 10.0
_MARGIN: Final = 16.0
_PORT: Final = 20.0  # between two arrows that end at one box: a label is in between
_GAP: Final = 18.0  # between two boxes of a column
_CURVE: Final = 56.0  # where arrows change their height
_HEAD: Final = 14.0
_SWEEPS: Final = 16
_NARROW: Final = frozenset("iljtfrI.,:;|!'()[]/\\ -`\"")
_WIDE: Final = frozenset("mwMWQOGD@%&+=<>~")
_SHARES: Final = (0.42, 0.64, 0.9)
_BOLD: Final = 1.1


@dataclass(frozen=True, slots=True)
class PlacedBox:
    """A box with its upper left corner and its size."""

    box: Box
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class PlacedArrow:
    """An arrow as points: straight lines where two neighbours have one height, curves in between.

    label: its lower right corner, if the arrow has a label.
    """

    arrow: Arrow
    points: tuple[tuple[float, float], ...]
    label: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Picture:
    """A diagram with places for all its parts."""

    diagram: Diagram
    width: float
    height: float
    boxes: tuple[PlacedBox, ...]
    arrows: tuple[PlacedArrow, ...]


def place(diagram: Diagram) -> Picture:
    """The picture of a diagram: no two boxes or labels overlap, every text fits."""
    return _Layout(diagram).picture()


class _Layout:
    def __init__(self, diagram: Diagram) -> None:
        self._diagram = diagram
        self._boxes = {b.id: b for b in diagram.boxes}
        self._graph: Layered = layered(diagram)
        self._tops = self._rows()
        self._lefts, self._runs = self._columns()

    def picture(self) -> Picture:
        boxes = []
        for column in self._graph.columns:
            for slot in column:
                if slot.box is not None:
                    box = self._boxes[slot.box]
                    boxes.append(
                        PlacedBox(box, self._lefts[slot.column], self._tops[id(slot)], _width(box), self._height(slot))
                    )
        arrows = tuple(self._arrow(arrow, way) for arrow, way in self._graph.ways)
        width = max((b.x + b.width for b in boxes), default=0.0) + _MARGIN
        height = (
            max((self._tops[id(s)] + self._height(s) for c in self._graph.columns for s in c), default=0.0) + _MARGIN
        )
        return Picture(self._diagram, width, height, tuple(boxes), arrows)

    def _height(self, slot: Slot) -> float:
        if slot.box is None:
            return _PORT
        lines = 1 + len(self._boxes[slot.box].lines)
        return max(lines * LINE_HEIGHT + PADDING, len(slot.before) * _PORT + PADDING)

    def _centre(self, slot: Slot, tops: dict[int, float]) -> float:
        return tops[id(slot)] + self._height(slot) / 2

    def _rows(self) -> dict[int, float]:
        """The top of each slot: near the middle of its neighbours, in the order of its column."""
        columns = self._graph.columns
        tops: dict[int, float] = {}
        for column in columns:
            y = _MARGIN
            for slot in column:
                tops[id(slot)] = y
                y += self._height(slot) + _GAP
        for sweep in range(_SWEEPS):
            for column in columns if sweep % 2 else reversed(columns):
                wanted = []
                for slot in column:
                    near = slot.before + slot.after
                    middle = sum(self._centre(n, tops) for n in near) / len(near) if near else self._centre(slot, tops)
                    wanted.append(middle - self._height(slot) / 2)
                found = _separated(wanted, [self._height(s) + _GAP for s in column])
                tops.update({id(s): y for s, y in zip(column, found, strict=True)})
        lowest = min(tops.values(), default=0.0)
        return {i: y - lowest + _MARGIN for i, y in tops.items()}

    def _columns(self) -> tuple[list[float], list[float]]:
        """The left edge of each column, and how far before it arrows run straight, with their labels above them."""
        lefts, runs = [], []
        x = _MARGIN
        for number, column in enumerate(self._graph.columns):
            labels = [text_width(a.label, LABEL_SIZE) for a, way in self._graph.ways if way[-1].column == number]
            run = math.ceil(max(labels, default=0.0)) + _HEAD
            if number:
                x += _CURVE + run
            lefts.append(x)
            runs.append(run)
            x += max((_width(self._boxes[s.box]) for s in column if s.box is not None), default=0.0)
        return lefts, runs

    def _edge(self, column: int) -> float:
        """Where the curves to the right of a column begin."""
        return self._lefts[column + 1] - self._runs[column + 1] - _CURVE

    def _arrow(self, arrow: Arrow, way: Sequence[Slot]) -> PlacedArrow:
        y = self._centre(way[0], self._tops)
        points = [(self._lefts[way[0].column] + _width(self._boxes[arrow.source]), y), (self._edge(way[0].column), y)]
        for slot in way[1:-1]:
            y = self._centre(slot, self._tops)
            points += [(self._lefts[slot.column] - self._runs[slot.column], y), (self._edge(slot.column), y)]
        last = way[-1]
        left, y = self._lefts[last.column], self._port(arrow, way)
        points += [(left - self._runs[last.column], y), (left, y)]
        return PlacedArrow(arrow, tuple(points), (left - _HEAD + 2, y - 4))

    def _port(self, arrow: Arrow, way: Sequence[Slot]) -> float:
        """The height at which the arrow ends: the arrows of a box in the order in which they come."""
        target = way[-1]
        ends = [(self._centre(w[-2], self._tops), i, a) for i, (a, w) in enumerate(self._graph.ways) if w[-1] is target]
        order = [a for _, _, a in sorted(ends, key=lambda e: e[:2])]
        place_in_order = next(i for i, a in enumerate(order) if a is arrow)
        return self._centre(target, self._tops) + (place_in_order - (len(order) - 1) / 2) * _PORT


def _width(box: Box) -> float:
    widths = [text_width(box.title, TITLE_SIZE, bold=True), *[text_width(line, LINE_SIZE) for line in box.lines]]
    return math.ceil(max(widths)) + 2 * PADDING


def _separated(wanted: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Tops as near to `wanted` as the order and the `heights` allow (least squares, by pooling neighbours)."""
    offsets = [sum(heights[:i]) for i in range(len(heights))]
    pools: list[tuple[float, int]] = []
    for value in (w - o for w, o in zip(wanted, offsets, strict=True)):
        mean, size = value, 1
        while pools and pools[-1][0] > mean:
            other, count = pools.pop()
            mean = (mean * size + other * count) / (size + count)
            size += count
        pools.append((mean, size))
    tops = [mean for mean, size in pools for _ in range(size)]
    return [t + o for t, o in zip(tops, offsets, strict=True)]


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Width in the units of `size`, the height of the font: a little more than in Helvetica, Arial or DejaVu Sans."""
    shares = sum(_SHARES[0 if c in _NARROW else 2 if c in _WIDE or ord(c) > 0x2E7F else 1] for c in text)
    return shares * size * (_BOLD if bold else 1.0)
