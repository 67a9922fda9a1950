"""Results as people read them: tables on a terminal, records if they are too wide, or one JSON object a row."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from watersmeet.session.cursor import Cursor
from watersmeet.session.texts import json_value, shown
from watersmeet.types import SqlType

#: Rows that a table shows; the rest is counted.
MAX_ROWS: Final = 1000
#: The width of what is no terminal: wide enough that nothing is folded.
_FILE_WIDTH: Final = 100_000
#: Types that are written to the right.
NUMBERS: Final = ("smallint", "integer", "bigint", "numeric", "real", "double precision")


def output() -> Console:
    """Standard output: as wide as the terminal; what goes to a file or a pipe is never folded."""
    width = None if sys.stdout.isatty() else _FILE_WIDTH
    return Console(width=width, highlight=False, soft_wrap=False)


def errors_output() -> Console:
    """Standard error, for notices, errors and progress."""
    width = None if sys.stderr.isatty() else _FILE_WIDTH
    return Console(stderr=True, width=width, highlight=False)


def print_result(cursor: Cursor, console: Console, *, as_json: bool = False, expanded: bool = False) -> None:
    """Prints the rows that the last statement of `cursor` gave, if it gives any.

    expanded: as records even where a table would fit.
    """
    if cursor.description is None:
        return
    names = [d[0] for d in cursor.description]
    kinds = [d[1] for d in cursor.description]
    if as_json:
        print_json(names, cursor, kinds)
        return
    rows = cursor.fetchall()
    if names == ["QUERY PLAN"]:
        console.print("\n".join(str(row[0]) for row in rows), markup=False, soft_wrap=True)
        return
    _print_rows(names, kinds, rows, console, expanded=expanded)


def print_json(names: Sequence[str], rows: Iterable[tuple[Any, ...]], kinds: Sequence[SqlType] = (), *, query: str | None = None) -> None:
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


def _print_rows(names: Sequence[str], kinds: Sequence[SqlType], rows: Sequence[tuple[Any, ...]], console: Console, *,
                expanded: bool) -> None:
    cells = [[_cell(v, k) for v, k in zip(row, kinds, strict=True)] for row in rows[:MAX_ROWS]]
    table = _table(names, kinds, cells)
    too_wide = Measurement.get(console, console.options.update(max_width=_FILE_WIDTH), table).maximum > console.width
    if cells and (expanded or too_wide):
        _print_records(names, cells, console)
    else:
        console.print(table)
    count = f"({len(rows):,} row{'' if len(rows) == 1 else 's'}"
    if len(rows) > MAX_ROWS:
        count += f", the first {MAX_ROWS:,} shown"
    console.print(count + ")", style="dim")


def _table(names: Sequence[str], kinds: Sequence[SqlType], cells: Sequence[Sequence[Text]]) -> Table:
    table = Table(header_style="bold", box=box.ROUNDED)
    for name, kind in zip(names, kinds, strict=True):
        table.add_column(Text(name), justify="right" if kind.name in NUMBERS else "left", overflow="fold")
    for row in cells:
        table.add_row(*row)
    return table


def _print_records(names: Sequence[str], cells: Sequence[Sequence[Text]], console: Console) -> None:
    """A block of lines `name  value` for each row."""
    for number, row in enumerate(cells, 1):
        console.rule(f"row {number}", align="left", style="dim")
        record = Table(box=None, show_header=False, pad_edge=False)
        record.add_column(style="bold", no_wrap=True)
        record.add_column(overflow="fold")
        for name, cell in zip(names, row, strict=True):
            record.add_row(Text(name), cell)
        console.print(record)


def _cell(value: Any, kind: SqlType) -> Text:
    return Text("NULL", style="dim") if value is None else Text(shown(value, kind))
