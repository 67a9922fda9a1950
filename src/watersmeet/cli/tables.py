"""Tables of text: cells padded to the width of their column, in a box.

Faster than rich's, whose every cell is a tree of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich import box
from rich.cells import cell_len
from rich.console import Console

#: What the text of a missing value is.
NULL: Final = "NULL"

#: How control characters are shown: a terminal would obey them.
_CONTROLS: Final = {c: f"\\x{c:02X}" for c in (*range(32), *range(127, 160))} | {
    ord("\n"): "\n",
    ord("\t"): "\t",
    ord("\r"): "\\r",
}

#: A line, and from where to where missing values are in it.
Line = tuple[str, Sequence[tuple[int, int]]]


class Grid:
    """A table of `names` and `cells`, of which None is a missing value; right: the columns that are written to the
    right.
    """

    def __init__(self, names: Sequence[str], cells: Sequence[Sequence[str | None]], right: Sequence[bool]) -> None:
        self._names = [visible(n) for n in names]
        self._cells = cells
        self._right = right
        self._widths = [
            max([_width(name), *(_width(NULL if c is None else c) for c in column)])
            for name, column in zip(self._names, zip(*cells, strict=True) if cells else [()] * len(names), strict=True)
        ]

    @property
    def width(self) -> int:
        """Characters in a line."""
        return sum(self._widths) + 3 * len(self._widths) + 1

    def head(self, console: Console) -> tuple[str, str, str]:
        """What is above the cells, in characters that the console has: a line, the names, a line."""
        lines = self._box(console)
        widths = [w + 2 for w in self._widths]
        return (
            lines.get_top(widths),
            "\n".join(text for text, _ in self._lines(self._names, lines)),
            lines.get_row(widths, "head"),
        )

    def body(self, console: Console) -> Iterator[Line]:
        """The lines of the cells: as many for each row as its cells have."""
        lines = self._box(console)
        for row in self._cells:
            yield from self._lines(row, lines)

    def foot(self, console: Console) -> str:
        """The line below them."""
        return self._box(console).get_bottom([w + 2 for w in self._widths])

    def _box(self, console: Console) -> box.Box:
        return box.ROUNDED.substitute(console.options)

    def _lines(self, row: Sequence[str | None], lines: box.Box) -> Iterator[Line]:
        parts = [(NULL if c is None else c).split("\n") for c in row]
        for n in range(max((len(p) for p in parts), default=1)):
            padded = [
                padded_cell(p[n] if n < len(p) else "", w, right=r)
                for p, w, r in zip(parts, self._widths, self._right, strict=True)
            ]
            marks: list[tuple[int, int]] = []
            if n == 0 and None in row:
                at = 2
                for cell, text in zip(row, padded, strict=True):
                    if cell is None:
                        marks.append((at, at + len(text)))
                    at += len(text) + 3
            yield f"{lines.mid_left} " + f" {lines.mid_vertical} ".join(padded) + f" {lines.mid_right}", marks


def visible(text: str) -> str:
    r"""The text without control characters, which are written as `\x1B` and the like; lines and tabs stay what they
    look like.
    """
    return text if text.isprintable() else text.translate(_CONTROLS).expandtabs()


def padded_cell(text: str, width: int, *, right: bool) -> str:
    """The text with spaces to so many columns of a terminal, unless it has more."""
    space = " " * (width - cell_len(text))
    return space + text if right else text + space


def _width(text: str) -> int:
    return cell_len(text) if "\n" not in text else max(cell_len(line) for line in text.split("\n"))
