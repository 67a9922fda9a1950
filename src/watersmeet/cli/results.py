"""Prints results for people, as tables or, if they are too wide, as records; or for programs, as one JSON object per
row, CSV, Markdown or Parquet.

This module pads cells to the width of their column, which is faster than rich, where each cell is a tree. Rows of a
query that runs until it is stopped are printed on one line each when they arrive, with a sign if rows may be deleted.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from watersmeet.catalog import DELTA_COLUMN
from watersmeet.database.reading import conformed
from watersmeet.session.connections.cursor import Cursor
from watersmeet.session.connections.texts import json_value, shown
from watersmeet.system.process import lazy_import
from watersmeet.values.types import Field, Schema, SqlType, arrow_schema

if TYPE_CHECKING:
    from watersmeet.formats import writingfiles
else:
    writingfiles = lazy_import("watersmeet.formats.writingfiles")

#: The text of a missing value.
NULL: Final = "NULL"

#: The visible forms of control characters, which a terminal would execute.
_CONTROLS: Final = {c: f"\\x{c:02X}" for c in (*range(32), *range(127, 160))} | {
    ord("\n"): "\n",
    ord("\t"): "\t",
    ord("\r"): "\\r",
}

#: A line, with the spans of missing values in it.
Line = tuple[str, Sequence[tuple[int, int]]]


class Grid:
    """A table of `names` and `cells`, where None is a missing value. right: the right-aligned columns."""

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
        """The number of characters in a line."""
        return sum(self._widths) + 3 * len(self._widths) + 1

    def head(self, console: Console) -> tuple[str, str, str]:
        """The lines above the cells in characters of the console: a border, the names, a border."""
        lines = self._box(console)
        widths = [w + 2 for w in self._widths]
        return (
            lines.get_top(widths),
            "\n".join(text for text, _ in self._lines(self._names, lines)),
            lines.get_row(widths, "head"),
        )

    def body(self, console: Console) -> Iterator[Line]:
        """The lines of the cells; a row has as many lines as its highest cell."""
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
    r"""The text with control characters written as `\x1B` and the like. Line breaks and tabs keep their appearance."""
    return text if text.isprintable() else text.translate(_CONTROLS).expandtabs()


def padded_cell(text: str, width: int, *, right: bool) -> str:
    """The text, padded with spaces to a width in columns of a terminal."""
    space = " " * (width - cell_len(text))
    return space + text if right else text + space


def _width(text: str) -> int:
    return cell_len(text) if "\n" not in text else max(cell_len(line) for line in text.split("\n"))


#: The number of rows that a terminal shows; other rows are only counted.
MAX_ROWS: Final = 1000

#: The maximum length of the line above a record.
_RULE_WIDTH: Final = 100

#: The types whose columns are right-aligned.
NUMBERS: Final = ("smallint", "integer", "bigint", "numeric", "real", "double precision")


def print_result(cursor: Cursor, console: Console, *, as_json: bool = False, expanded: bool = False) -> None:
    """Prints the rows of the last statement of `cursor`, if it returns any.

    expanded: whether to print records even if a table would fit.
    """
    if cursor.description is None:
        return
    names = [d[0] for d in cursor.description]
    if as_json:
        print_json(names, cursor, [d[1] for d in cursor.description])
    elif names == ["QUERY PLAN"]:
        console.print("\n".join(str(row[0]) for row in cursor.fetchall()), markup=False, soft_wrap=True)
    else:
        _print_rows(cursor, console, expanded=expanded)


def print_json(
    names: Sequence[str], rows: Iterable[tuple[Any, ...]], kinds: Sequence[SqlType] = (), *, query: str | None = None
) -> None:
    """Prints a JSON object for each row; a number is appended to duplicate names. query: the query of the rows, if
    several run.
    """
    keys = _distinct(names if query is None else ["query", *names])[0 if query is None else 1 :]
    types: list[SqlType | None] = [*kinds] if kinds else [None] * len(keys)
    for row in rows:
        record = {} if query is None else {"query": query}
        record |= {key: json_value(v, kind) for key, v, kind in zip(keys, row, types, strict=True)}
        sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def write_rows(cursor: Cursor, form: str) -> None:
    """Writes all rows of the last statement of `cursor`, if it returns any, to standard output as csv, markdown or
    parquet.
    """
    if cursor.description is None:
        return
    names = _distinct([d[0] for d in cursor.description])
    columns = tuple(Field(n, d[1], nullable=d[6]) for n, d in zip(names, cursor.description, strict=True))
    if form == "markdown":
        _write_markdown(columns, cursor)
        return
    sys.stdout.flush()
    writer = writingfiles.FileWriter(columns, "parquet" if form == "parquet" else "csv", {})
    file = writer.begin(sys.stdout.buffer)
    file.write(conformed(cursor.arrow().rename_columns(names), arrow_schema(columns, positional=False)))
    file.close()
    sys.stdout.buffer.flush()


def _write_markdown(columns: Schema, cursor: Cursor) -> None:
    """Writes a GitHub Markdown table with right-aligned numbers."""
    marks = ["---:" if c.type.name in NUMBERS else "---" for c in columns]
    cells = [
        [NULL if v is None else visible(shown(v, c.type)) for v, c in zip(row, columns, strict=True)] for row in cursor
    ]
    for line in ([c.name for c in columns], marks, *cells):
        texts = [text.replace("|", "\\|").replace("\n", "<br>") for text in line]
        sys.stdout.write(f"| {' | '.join(texts)} |\n")


def bytes_text(count: float) -> str:
    """A size such as `12.3 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _distinct(names: Sequence[str]) -> list[str]:
    keys: list[str] = []
    for name in names:
        key, number = name, 1
        while key in keys:
            key, number = f"{name}_{number}", number + 1
        keys.append(key)
    return keys


def _print_rows(cursor: Cursor, console: Console, *, expanded: bool) -> None:
    names, kinds = zip(*[(d[0], d[1]) for d in cursor.description or []], strict=True)
    # a terminal shows the first rows; a file or a program receives all
    rows = cursor.fetchmany(MAX_ROWS) if console.is_terminal else cursor.fetchall()
    cells = [[_cell(v, k) for v, k in zip(row, kinds, strict=True)] for row in rows]
    grid = Grid(names, cells, [k.name in NUMBERS for k in kinds])
    if cells and (expanded or grid.width > console.width):
        _print_records(names, cells, console)
    elif cells or not console.is_terminal or grid.width <= console.width:
        _print_grid(grid, console)
    total = max(cursor.rowcount, len(rows))  # a query that ran has no count
    count = f"({total:,} row{'' if total == 1 else 's'}"
    if len(rows) < total:
        count += f", the first {len(rows):,} shown"
    console.print(count + ")", style="dim")


def _print_grid(grid: Grid, console: Console) -> None:
    if not console.is_terminal:
        console.file.writelines(
            line + "\n" for line in (*grid.head(console), *(text for text, _ in grid.body(console)), grid.foot(console))
        )
        return
    for text, style in zip(grid.head(console), ("", "bold", ""), strict=True):
        console.print(Text(text, style), soft_wrap=True)
    for text, missing in grid.body(console):
        line = Text(text)
        for start, end in missing:
            line.stylize("dim", start, end)
        console.print(line, soft_wrap=True)
    console.print(grid.foot(console), markup=False, soft_wrap=True)


def _print_records(names: Sequence[str], cells: Sequence[Sequence[str | None]], console: Console) -> None:
    """A block of lines `name  value` for each row."""
    for number, row in enumerate(cells, 1):
        console.print(Rule(f"row {number}", align="left", style="dim"), width=min(console.width, _RULE_WIDTH))
        record = Table(box=None, show_header=False, pad_edge=False)
        record.add_column(style="bold", no_wrap=True)
        record.add_column(overflow="fold")
        for name, cell in zip(names, row, strict=True):
            record.add_row(Text(visible(name)), Text(NULL, style="dim") if cell is None else Text(cell))
        console.print(record)


def _cell(value: Any, kind: SqlType) -> str | None:
    return None if value is None else visible(shown(value, kind))


#: The time to wait for one query before checking the others, and Ctrl-C.
_TURN_S: Final = 0.1

#: The minimum and maximum width of columns, whose width is that of the first rows.
_WIDTHS: Final = (4, 40)

_SEPARATOR: Final = " │ "


class Follower:
    """Prints the rows of a running query as they arrive.

    title: printed before rows that follow those of another query; None for a single query.
    """

    def __init__(self, cursor: Cursor, console: Console, *, as_json: bool = False, title: str | None = None) -> None:
        self.rows = 0
        self.title = title
        self._cursor = cursor
        self._console = console
        self._as_json = as_json
        description = cursor.description or []
        self._kinds = [d[1] for d in description]
        self._names = [d[0] for d in description]
        sign = cursor.sign
        # A sign column that was not selected is shown as a prefix.
        hides = sign is not None and sign == len(description) - 1 and self._names[sign] == DELTA_COLUMN
        self._shown = [i for i in range(len(description)) if not (hides and i == sign)]
        self._widths: list[int] = []

    @property
    def runs(self) -> bool:
        """False once no more rows follow."""
        return self._cursor.runs

    def follow(self, seconds: float, *, headed: bool) -> bool:
        """Prints rows that arrive within a time; returns True if any did.

        headed: whether rows of other queries were printed since its last rows.
        """
        if not self._cursor.wait(seconds):
            return False
        rows = self._cursor.fetchall()
        self.rows += len(rows)
        if self._as_json:
            print_json(self._names, rows, self._kinds, query=self.title)
            return True
        cells = [[visible(shown(row[i], self._kinds[i]).replace("\n", "↵")) for i in self._shown] for row in rows]
        if headed or not self._widths:
            self._head(cells)
        for row, line in zip(rows, cells, strict=True):
            self._console.print(self._line(line, row), soft_wrap=True)
        return True

    def _head(self, cells: Sequence[Sequence[str]]) -> None:
        """The names of the columns, padded to the width of the given rows."""
        names = [self._names[i] for i in self._shown]
        least, most = _WIDTHS
        self._widths = [
            max(least, cell_len(n), min(most, max((cell_len(r[i]) for r in cells), default=0)))
            for i, n in enumerate(names)
        ]
        if self.title is not None:
            self._console.print(Text(f"-- {self.title}", style="bold"), soft_wrap=True)
        signs = "  " if self._cursor.sign is not None else ""
        self._console.print(Text(signs + self._joined(names), style="bold"), soft_wrap=True)

    def _line(self, cells: Sequence[str], row: Sequence[Any]) -> Text:
        sign = self._cursor.sign
        if sign is None:
            return Text(self._joined(cells))
        comes = row[sign] > 0
        return Text(f"{'+' if comes else '-'} {self._joined(cells)}", style="green" if comes else "red")

    def _joined(self, cells: Sequence[str]) -> str:
        """The aligned cells of each row on one line, with numbers to the right."""
        return _SEPARATOR.join(
            padded_cell(cell, width, right=self._kinds[i].name in NUMBERS)
            for cell, width, i in zip(cells, self._widths, self._shown, strict=True)
        ).rstrip()


def follow(queries: Sequence[Follower], stop: threading.Event) -> None:
    """Prints the rows of running queries until all have ended or `stop` is set."""
    last: Follower | None = None
    while any(q.runs for q in queries) and not stop.is_set():
        for query in queries:
            if query.runs and query.follow(_TURN_S / len(queries), headed=last is not query):
                last = query


def drain(queries: Sequence[Follower]) -> None:
    """Prints the rows that running queries have returned since the last call."""
    for query in queries:
        query.follow(0, headed=True)
