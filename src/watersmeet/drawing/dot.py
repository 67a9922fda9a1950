"""DOT, the text that Graphviz and most drawing programs read."""

from __future__ import annotations

from watersmeet.drawing.diagram import Diagram
from watersmeet.drawing.svg import STYLES


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
