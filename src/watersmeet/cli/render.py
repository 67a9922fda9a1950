"""Results as people read them: tables on a terminal, records if they are too wide, or one JSON object a row."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from watersmeet.cli.tables import NULL, Grid, visible
from watersmeet.session.connections.cursor import Cursor
from watersmeet.session.connections.texts import json_value, shown
from watersmeet.values.types import SqlType

#: Rows that a terminal shows; the rest is counted.
MAX_ROWS: Final = 1000
#: Types that are written to the right.
NUMBERS: Final = ("smallint", "integer", "bigint", "numeric", "real", "double precision")


def print_result(cursor: Cursor, console: Console, *, as_json: bool = False, expanded: bool = False) -> None:
    """Prints the rows that the last statement of `cursor` gave, if it gives any.

    expanded: as records even where a table would fit.
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
    """One JSON object a row; a name that comes twice gets a number. query: which of several the rows are of."""
    keys = _distinct(names if query is None else ["query", *names])[0 if query is None else 1 :]
    types: list[SqlType | None] = [*kinds] if kinds else [None] * len(keys)
    for row in rows:
        record = {} if query is None else {"query": query}
        record |= {key: json_value(v, kind) for key, v, kind in zip(keys, row, types, strict=True)}
        sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def bytes_text(count: float) -> str:
    """`12.3 MB` and the like."""
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
    # Who looks on gets the first rows; a file or a program gets all.
    rows = cursor.fetchmany(MAX_ROWS) if console.is_terminal else cursor.fetchall()
    cells = [[_cell(v, k) for v, k in zip(row, kinds, strict=True)] for row in rows]
    grid = Grid(names, cells, [k.name in NUMBERS for k in kinds])
    if cells and (expanded or grid.width > console.width):
        _print_records(names, cells, console)
    else:
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
        console.rule(f"row {number}", align="left", style="dim")
        record = Table(box=None, show_header=False, pad_edge=False)
        record.add_column(style="bold", no_wrap=True)
        record.add_column(overflow="fold")
        for name, cell in zip(names, row, strict=True):
            record.add_row(Text(visible(name)), Text(NULL, style="dim") if cell is None else Text(cell))
        console.print(record)


def _cell(value: Any, kind: SqlType) -> str | None:
    return None if value is None else visible(shown(value, kind))
