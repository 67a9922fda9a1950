"""Results as people read them: tables on a terminal, or one JSON object a row."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from watersmeet.session.cursor import Cursor
from watersmeet.testing.comparison import written

#: Rows that a table shows; the rest is counted.
MAX_ROWS: Final = 1000


def print_result(cursor: Cursor, *, as_json: bool = False, console: Console | None = None) -> None:
    """Prints what the last statement of `cursor` gave: its rows, or how many rows it changed."""
    if cursor.description is None:
        return
    names = [d[0] for d in cursor.description]
    if as_json:
        for row in cursor:
            sys.stdout.write(json.dumps(dict(zip(names, row, strict=True)), default=written) + "\n")
        return
    rows = cursor.fetchall()
    (console or Console()).print(result_table(names, rows))


def result_table(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> Table:
    """A table of the rows, numbers to the right, NULLs dim, with the count below."""
    count = f"{len(rows):,} row" + ("" if len(rows) == 1 else "s")
    if len(rows) > MAX_ROWS:
        count += f", the first {MAX_ROWS:,} shown"
    table = Table(caption=count, caption_justify="left", header_style="bold")
    for i, name in enumerate(names):
        example = next((r[i] for r in rows if r[i] is not None), None)
        numeric = isinstance(example, (int, float)) or type(example).__name__ == "Decimal"
        table.add_column(name, justify="right" if numeric and not isinstance(example, bool) else "left",
                         overflow="fold")
    for row in rows[:MAX_ROWS]:
        table.add_row(*["[dim]NULL[/dim]" if v is None else _escaped(written(v)) for v in row])
    return table


def plan_text(cursor: Cursor) -> str:
    """The lines of an EXPLAIN result."""
    return "\n".join(str(row[0]) for row in cursor.fetchall())


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")


def bytes_text(count: float) -> str:
    """`12.3 MB` and the like."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
