"""Diagrams: a layered layout (columns of boxes from left to right, arrows between them), written as SVG without scripts
and fonts, or as DOT for Graphviz.

Layers follow longest paths; then barycenters reduce the crossings of arrows: Sugiyama, Tagawa, Toda, "Methods for
visual understanding of hierarchical system structures" (1981). Long arrows from one box share a path until they
separate. In pictures with many boxes, high columns are folded into several; arrows pass between the boxes, without
labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final
from xml.sax.saxutils import escape, quoteattr

_ORDER_SWEEPS: Final = 12


@dataclass(slots=True)
class Slot:
    """A position in a column, for a box or for a passing arrow (`box` is None)."""

    column: int
    box: str | None
    before: list[Slot] = field(default_factory=list)
    after: list[Slot] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Layered:
    """A layered diagram. columns: the slots from left to right, each column from top to bottom. ways: the slots of each
    arrow.
    """

    columns: list[list[Slot]]
    ways: list[tuple[Arrow, list[Slot]]]


def layered(diagram: Diagram) -> Layered:
    """The diagram in columns, in which every arrow leads from one column to the next. The long arrows of a box share
    slots.
    """
    numbers = _numbers(diagram)
    slots = {b.id: Slot(numbers[b.id], b.id) for b in diagram.boxes}
    columns: list[list[Slot]] = [[] for _ in range(max(numbers.values(), default=-1) + 1)]
    for slot in slots.values():
        columns[slot.column].append(slot)
    passing: dict[tuple[str, int], Slot] = {}
    ways = []
    for arrow in diagram.arrows:
        way = [slots[arrow.source]]
        for column in range(numbers[arrow.source] + 1, numbers[arrow.target]):
            if (arrow.source, column) not in passing:
                passing[arrow.source, column] = slot = Slot(column, None)
                columns[column].append(slot)
                _link(way[-1], slot)
            way.append(passing[arrow.source, column])
        _link(way[-1], slots[arrow.target])
        ways.append((arrow, [*way, slots[arrow.target]]))
    return Layered(_uncrossed(columns), ways)


def _link(one: Slot, other: Slot) -> None:
    one.after.append(other)
    other.before.append(one)


def _numbers(diagram: Diagram) -> dict[str, int]:
    """The column of each box: as far left as its inputs allow; for a box without inputs, just before its first
    reader.
    """
    inputs: dict[str, list[str]] = {b.id: [] for b in diagram.boxes}
    readers: dict[str, list[str]] = {b.id: [] for b in diagram.boxes}
    for arrow in diagram.arrows:
        inputs[arrow.target].append(arrow.source)
        readers[arrow.source].append(arrow.target)
    numbers: dict[str, int] = {}

    def number(box: str, path: tuple[str, ...]) -> int:
        assert box not in path, f"a cycle through {box}"
        if box not in numbers:
            numbers[box] = max((number(i, (*path, box)) + 1 for i in inputs[box]), default=0)
        return numbers[box]

    for box in diagram.boxes:
        number(box.id, ())
    for box in diagram.boxes:
        if not inputs[box.id] and readers[box.id]:
            numbers[box.id] = min(numbers[r] for r in readers[box.id]) - 1
    return numbers


def _uncrossed(columns: list[list[Slot]]) -> list[list[Slot]]:
    """The order with the fewest crossings among those found by sweeps to the right and to the left."""
    best, fewest = [list(c) for c in columns], _crossings(columns)
    for sweep in range(_ORDER_SWEEPS):
        if not fewest:
            break
        rightward = sweep % 2 == 0
        current = [list(c) for c in best] if sweep == 0 else [list(c) for c in columns]
        for column in current if rightward else reversed(current):
            places = _places(current)
            column.sort(key=lambda s: _barycentre(s.before if rightward else s.after, places, s))
        columns = current
        count = _crossings(columns)
        if count < fewest:
            best, fewest = [list(c) for c in columns], count
    return best


def _places(columns: Sequence[Sequence[Slot]]) -> dict[int, int]:
    return {id(s): i for column in columns for i, s in enumerate(column)}


def _barycentre(neighbours: Sequence[Slot], places: Mapping[int, int], slot: Slot) -> float:
    if not neighbours:
        return places[id(slot)]
    return sum(places[id(n)] for n in neighbours) / len(neighbours)


def _crossings(columns: Sequence[Sequence[Slot]]) -> int:
    places = _places(columns)
    count = 0
    for column in columns:
        ends = [places[id(n)] for s in column for n in sorted(s.after, key=lambda n: places[id(n)])]
        count += sum(a > b for i, a in enumerate(ends) for b in ends[i + 1 :])
    return count


@dataclass(frozen=True, slots=True)
class Box:
    """A box with a title and lines below it. style: a key of `STYLES`."""

    id: str
    title: str
    lines: tuple[str, ...] = ()
    style: str = "plain"


@dataclass(frozen=True, slots=True)
class Arrow:
    """An arrow between two boxes, by id. Several arrows between the same boxes are drawn side by side."""

    source: str
    target: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Diagram:
    """A graph without cycles."""

    title: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]

    def __post_init__(self) -> None:
        ids = {b.id for b in self.boxes}
        assert len(ids) == len(self.boxes), "two boxes have one id"
        assert all(a.source in ids and a.target in ids for a in self.arrows), "an arrow without its box"


TITLE_SIZE: Final = 13.0
LINE_SIZE: Final = 11.0
LABEL_SIZE: Final = 10.0
LINE_HEIGHT: Final = 15.0
PADDING: Final = 10.0
_MARGIN: Final = 16.0
_PORT: Final = 20.0  # between two arrows that end at one box, with a label between them
_GAP: Final = 18.0  # between two boxes of a column
_CURVE: Final = 56.0  # where arrows change their height
_HEAD: Final = 14.0
_SWEEPS: Final = 16
_NARROW: Final = frozenset("iljtfrI.,:;|!'()[]/\\ -`\"")
_WIDE: Final = frozenset("mwMWQOGD@%&+=<>~")
_SHARES: Final = (0.42, 0.64, 0.9)
_BOLD: Final = 1.1
_GLYPH: Final = 14.0


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
    """An arrow as points: straight lines between neighbors of the same height, otherwise curves.

    label: the lower right corner of the label, if any.
    """

    arrow: Arrow
    points: tuple[tuple[float, float], ...]
    label: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Picture:
    """A diagram with the positions of all its parts."""

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
        """The top of each slot, near the middle of its neighbors; each column keeps its order."""
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
        """The left edge of each column, and the length before it on which arrows run straight, with their labels above
        them.
        """
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
        """The x at which the curves to the right of a column begin."""
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
        """The height at which an arrow ends at a box; a box's arrows end in the order in which they arrive."""
        target = way[-1]
        ends = [(self._centre(w[-2], self._tops), i, a) for i, (a, w) in enumerate(self._graph.ways) if w[-1] is target]
        order = [a for _, _, a in sorted(ends, key=lambda e: e[:2])]
        place_in_order = next(i for i, a in enumerate(order) if a is arrow)
        return self._centre(target, self._tops) + (place_in_order - (len(order) - 1) / 2) * _PORT


def _width(box: Box) -> float:
    glyph = _GLYPH + PADDING if STYLES[box.style].glyph else 0
    title = text_width(box.title, TITLE_SIZE, bold=True) + glyph
    return math.ceil(max([title, *[text_width(line, LINE_SIZE) for line in box.lines]])) + 2 * PADDING


def _separated(wanted: Sequence[float], heights: Sequence[float]) -> list[float]:
    """The tops that are as near to `wanted` as the order and the `heights` allow (least squares, by pooling
    neighbors).
    """
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
    """The width of a text, in the units of `size`, the height of the font: a little more than in Helvetica, Arial or
    DejaVu Sans.
    """
    shares = sum(_SHARES[0 if c in _NARROW else 2 if c in _WIDE or ord(c) > 0x2E7F else 1] for c in text)
    return shares * size * (_BOLD if bold else 1.0)


#: The target ratio of width to height.
_ASPECT: Final = 1.7

#: Pictures below this height, or wider than high, are not folded.
_LOW: Final = 1600.0

_BESIDE: Final = 24.0  # between two columns that were one column
_BELOW: Final = 14.0
_BETWEEN: Final = 150.0  # between two columns that were not


def folded(picture: Picture) -> Picture:
    """The picture, with its columns folded if it is high and narrow. The order within columns stays."""
    if picture.height <= _LOW or picture.height <= picture.width:
        return picture
    columns = _columns(picture)
    most = max(map(len, columns))
    rows = min(
        range(1, most + 1), key=lambda r: abs(math.log(_folded_width(columns, r) / _height(columns, r) / _ASPECT))
    )
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
    arrows = tuple(_between(a, boxes) for a in picture.arrows)
    return replace(
        picture,
        width=x - _BETWEEN + _MARGIN,
        height=height,
        boxes=tuple(boxes[b.box.id] for b in picture.boxes),
        arrows=arrows,
    )


def _columns(picture: Picture) -> list[list[PlacedBox]]:
    """The columns from left to right, each from top to bottom. All boxes get the same height."""
    found: dict[float, list[PlacedBox]] = {}
    for box in picture.boxes:
        found.setdefault(box.x, []).append(box)
    # Arrows need no extra height in this layout.
    least = min(b.height for b in picture.boxes)
    return [[replace(b, height=least) for b in sorted(found[x], key=lambda b: b.y)] for x in sorted(found)]


def _folded_width(columns: Sequence[Sequence[PlacedBox]], rows: int) -> float:
    wide = [
        max(b.width for b in c) * math.ceil(len(c) / rows) + _BESIDE * (math.ceil(len(c) / rows) - 1) for c in columns
    ]
    return sum(wide) + _BETWEEN * (len(columns) - 1) + 2 * _MARGIN


def _height(columns: Sequence[Sequence[PlacedBox]], rows: int) -> float:
    return max(min(len(c), rows) * (c[0].height + _BELOW) for c in columns) + 2 * _MARGIN


def _between(arrow: PlacedArrow, boxes: dict[str, PlacedBox]) -> PlacedArrow:
    """The arrow along the gaps: right of its source, above the row of its target, left of its target."""
    source, target = boxes[arrow.arrow.source], boxes[arrow.arrow.target]
    begin, middle = source.x + source.width, source.y + source.height / 2
    end, y = target.x, target.y + target.height / 2
    out, into, above = begin + _BESIDE / 2, end - _BESIDE / 2, target.y - _BELOW / 2
    points = [(begin, middle), (out, middle), (into, y), (end, y)]
    if into > out:
        points[2:2] = [(out, above), (into, above)]
    return PlacedArrow(replace(arrow.arrow, label=""), tuple(points), (end, y))


@dataclass(frozen=True, slots=True)
class Style:
    """The style of a box, in the palette of the console. edge: the color of the left edge. glyph: a path in 14 by 14
    units.
    """

    edge: str
    glyph: str = ""
    fill: str = "#ffffff"
    dashes: str = ""


_INK: Final = "#14242a"
_QUIET: Final = "#566a71"
_RULE: Final = "#c6d1d4"
_LINE: Final = "#7f949b"
_PAPER: Final = "#f6f8f8"

#: The look of each style of a box. The console draws the same glyphs (`server/web/static/topology.js`).
STYLES: Final = {
    "plain": Style(_LINE, fill="#eef2f2", dashes="4 3"),
    "table": Style("#5c7c1d", "M1 1h12v12H1zM1 5h12M5 5v8"),
    "source": Style("#6741d9", "M1 7h8M6 3.5 9.5 7 6 10.5M11.5 1v12"),
    "view": Style("#0b7285", "M7 1 13 4 7 7 1 4zM1 7l6 3 6-3M1 10l6 3 6-3"),
    "virtual": Style("#0b7285", "M7 4 13 7 7 10 1 7z", dashes="4 3"),
    "sink": Style("#c2571a", "M13 7H5M8 3.5 4.5 7 8 10.5M2.5 1v12"),
}

_FONT: Final = "Inter, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif"


def to_svg(picture: Picture) -> str:
    """The picture as a standalone document."""
    width, height = round(picture.width), round(picture.height)
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family={quoteattr(_FONT)}>',
        f"<title>{escape(picture.diagram.title)}</title>",
        f'<rect width="{width}" height="{height}" fill="{_PAPER}"/>',
        *[_arrow(a) for a in picture.arrows],
        *[_box(b) for b in picture.boxes],
        "</svg>",
        "",
    ]
    return "\n".join(parts)


def _box(placed: PlacedBox) -> str:
    style = STYLES[placed.box.style]
    x, height = placed.x + PADDING + 3, LINE_HEIGHT * (1 + len(placed.box.lines))
    y = placed.y + (placed.height - height) / 2 + LINE_HEIGHT - 3
    font = f'font-size="{TITLE_SIZE:g}" font-weight="bold" fill="{_INK}"'
    texts = [f'<text x="{x:.1f}" y="{y:.1f}" {font}>{escape(placed.box.title)}</text>']
    for i, line in enumerate(placed.box.lines, 1):
        texts.append(
            f'<text x="{x:.1f}" y="{y + i * LINE_HEIGHT:.1f}" font-size="{LINE_SIZE:g}" fill="{_QUIET}">'
            f"{escape(line)}</text>"
        )
    place = f'x="{placed.x:.1f}" y="{placed.y:.1f}"'
    dashes = f' stroke-dasharray="{style.dashes}"' if style.dashes else ""
    frame = (
        f'<rect {place} width="{placed.width:.1f}" height="{placed.height:.1f}" rx="7" fill="{style.fill}" '
        f'stroke="{_RULE}"{dashes}/>'
    )
    edge = f'<rect {place} width="5" height="{placed.height:.1f}" rx="2" fill="{style.edge}"/>'
    corner = f"translate({placed.x + placed.width - _GLYPH - 8:.1f} {placed.y + 8:.1f})"
    glyph = f'<path transform="{corner}" d="{style.glyph}" fill="none" stroke="{_LINE}"/>' if style.glyph else ""
    return "\n".join(part for part in ("<g>", frame, edge, glyph, *texts, "</g>") if part)


def _arrow(placed: PlacedArrow) -> str:
    x, y = placed.points[-1]
    line = f'<path d="{_path(placed.points)}" fill="none" stroke="{_LINE}" stroke-width="1.2"/>'
    head = f'<path d="M {x:.1f} {y:.1f} l -8 -4 v 8 z" fill="{_LINE}"/>'
    if not placed.arrow.label:
        return f"{line}\n{head}"
    right, bottom = placed.label
    label = (
        f'<text x="{right:.1f}" y="{bottom:.1f}" font-size="{LABEL_SIZE:g}" text-anchor="end" fill="{_QUIET}">'
        f"{escape(placed.arrow.label)}</text>"
    )
    return f"{line}\n{head}\n{label}"


def _path(points: Sequence[tuple[float, float]]) -> str:
    """A path that is straight between points of one height, otherwise a curve with horizontal ends."""
    parts = [f"M {points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x0, y0), (x1, y1) in pairwise(points):
        if y0 == y1:
            parts.append(f"H {x1:.1f}")
        else:
            middle = (x0 + x1) / 2
            parts.append(f"C {middle:.1f} {y0:.1f} {middle:.1f} {y1:.1f} {x1:.1f} {y1:.1f}")
    return " ".join(parts)


def to_dot(diagram: Diagram) -> str:
    """The diagram as a digraph, drawn from left to right."""
    lines = [
        f"digraph {_quoted(diagram.title)} {{",
        "  rankdir=LR;",
        '  node [shape=box, style="rounded,filled", fontname="Helvetica"];',
        '  edge [fontname="Helvetica", fontsize=10];',
    ]
    for box in diagram.boxes:
        style = STYLES[box.style]
        text = "\\n".join(_escaped(line) for line in (box.title, *box.lines))
        lines.append(f'  {_quoted(box.id)} [label="{text}", fillcolor="{style.fill}", color="{style.edge}"];')
    for arrow in diagram.arrows:
        label = f" [label={_quoted(arrow.label)}]" if arrow.label else ""
        lines.append(f"  {_quoted(arrow.source)} -> {_quoted(arrow.target)}{label};")
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
