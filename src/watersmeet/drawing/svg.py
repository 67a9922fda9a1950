"""A placed diagram as SVG (plain shapes and texts, no scripts, no fonts of its own), or as DOT for Graphviz."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from watersmeet.drawing.layout import (
    LABEL_SIZE,
    LINE_HEIGHT,
    LINE_SIZE,
    PADDING,
    TITLE_SIZE,
    Diagram,
    Picture,
    PlacedArrow,
    PlacedBox,
)


@dataclass(frozen=True, slots=True)
class Style:
    """Colours of a box."""

    fill: str
    stroke: str


STYLES: Final = {
    "plain": Style("#f5f5f4", "#78716c"),
    "table": Style("#e0f2fe", "#0369a1"),
    "source": Style("#dcfce7", "#15803d"),
    "view": Style("#fef3c7", "#b45309"),
    "sink": Style("#f3e8ff", "#7e22ce"),
}

_FONT: Final = "Helvetica, Arial, 'DejaVu Sans', sans-serif"
_INK: Final = "#1c1917"
_GREY: Final = "#57534e"


def to_svg(picture: Picture) -> str:
    """The picture as a document of its own."""
    width, height = round(picture.width), round(picture.height)
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family={quoteattr(_FONT)}>',
        f"<title>{escape(picture.diagram.title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *[_arrow(a) for a in picture.arrows],
        *[_box(b) for b in picture.boxes],
        "</svg>",
        "",
    ]
    return "\n".join(parts)


def _box(placed: PlacedBox) -> str:
    style = STYLES[placed.box.style]
    x, height = placed.x + PADDING, LINE_HEIGHT * (1 + len(placed.box.lines))
    y = placed.y + (placed.height - height) / 2 + LINE_HEIGHT - 3
    font = f'font-size="{TITLE_SIZE:g}" font-weight="bold" fill="{_INK}"'
    texts = [f'<text x="{x:.1f}" y="{y:.1f}" {font}>{escape(placed.box.title)}</text>']
    for i, line in enumerate(placed.box.lines, 1):
        texts.append(
            f'<text x="{x:.1f}" y="{y + i * LINE_HEIGHT:.1f}" font-size="{LINE_SIZE:g}" fill="{_GREY}">'
            f"{escape(line)}</text>"
        )
    frame = (
        f'<rect x="{placed.x:.1f}" y="{placed.y:.1f}" width="{placed.width:.1f}" height="{placed.height:.1f}" rx="6" '
        f'fill="{style.fill}" stroke="{style.stroke}" stroke-width="1.2"/>'
    )
    return "\n".join(["<g>", frame, *texts, "</g>"])


def _arrow(placed: PlacedArrow) -> str:
    x, y = placed.points[-1]
    line = f'<path d="{_path(placed.points)}" fill="none" stroke="{_GREY}" stroke-width="1.2"/>'
    head = f'<path d="M {x:.1f} {y:.1f} l -8 -4 v 8 z" fill="{_GREY}"/>'
    if not placed.arrow.label:
        return f"{line}\n{head}"
    right, bottom = placed.label
    label = (
        f'<text x="{right:.1f}" y="{bottom:.1f}" font-size="{LABEL_SIZE:g}" text-anchor="end" fill="{_GREY}">'
        f"{escape(placed.arrow.label)}</text>"
    )
    return f"{line}\n{head}\n{label}"


def _path(points: Sequence[tuple[float, float]]) -> str:
    """Straight between points of one height, else a curve that leaves and arrives level."""
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
        lines.append(f'  {_quoted(box.id)} [label="{text}", fillcolor="{style.fill}", color="{style.stroke}"];')
    for arrow in diagram.arrows:
        label = f" [label={_quoted(arrow.label)}]" if arrow.label else ""
        lines.append(f"  {_quoted(arrow.source)} -> {_quoted(arrow.target)}{label};")
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
