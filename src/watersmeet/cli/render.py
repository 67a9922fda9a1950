"""Results as people read them: tables on a terminal, records if they are too wide, or one JSON object a row."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import sys
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from watersmeet.session.cursor import Cursor
from watersmeet.session.values import Interval
from watersmeet.types import SqlType

#: Rows that a table shows; the rest is counted.
MAX_ROWS: Final = 1000
#: The width of what is no terminal: wide enough that nothing is folded.
_FILE_WIDTH: Final = 100_000
_PLAIN_ELEMENT: Final = re.compile(r'[^\s,{}()"\\]+')
_NUMBERS: Final = ("smallint", "integer", "bigint", "numeric", "real", "double precision")


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


def print_json(names: Sequence[str], rows: Iterable[tuple[Any, ...]], kinds: Sequence[SqlType] = ()) -> None:
    """One JSON object a row; a name that comes twice gets a number."""
    keys = _distinct(names)
    types: list[SqlType | None] = [*kinds] if kinds else [None] * len(keys)
    for row in rows:
        record = {key: json_value(v, kind) for key, v, kind in zip(keys, row, types, strict=True)}
        sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def json_value(value: Any, kind: SqlType | None = None) -> Any:
    """The value for JSON: decimals and times as text, so that no digit is lost."""
    if isinstance(value, float) and not math.isfinite(value):
        return shown(value)
    if isinstance(value, list):
        return [json_value(v) for v in value]
    if isinstance(value, dict):
        return {k: json_value(v) for k, v in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return shown(value, kind)


def shown(value: Any, kind: SqlType | None = None) -> str:
    """The text of a value, as RisingWave writes it."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return _decimal(value, kind)
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    if isinstance(value, dt.datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, Interval):
        return interval_text(value)
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, (list, dict)):
        return _nested(value, kind)
    return str(value)


def _decimal(value: Decimal, kind: SqlType | None) -> str:
    """The digits of a decimal; without trailing zeros where the scale is nobody's choice."""
    text = format(value, "f") if value.is_finite() else str(value)
    if kind is None or kind.precision is not None or "." not in text:
        return text
    return text.rstrip("0").rstrip(".")


def interval_text(value: Interval) -> str:
    """An interval as PostgreSQL writes it: `1 year 2 mons 3 days 04:05:06`."""
    years, months = divmod(abs(value.months), 12)
    sign = -1 if value.months < 0 else 1
    parts = [f"{sign * n} {unit}{'' if n == 1 and sign > 0 else 's'}"
             for n, unit in ((years, "year"), (months, "mon")) if n]
    if value.month_days:
        parts.append(f"{value.month_days} day{'' if value.month_days == 1 else 's'}")
    if value.microseconds_of_day or not parts:
        seconds, microseconds = divmod(abs(value.microseconds_of_day), 1_000_000)
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        clock += f".{microseconds:06}".rstrip("0") if microseconds else ""
        parts.append(("-" if value.microseconds_of_day < 0 else "") + clock)
    return " ".join(parts)


def bytes_text(count: float) -> str:
    """`12.3 MB` and the like."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _nested(value: Any, kind: SqlType | None) -> str:
    if kind is not None and kind.name == "array" and isinstance(value, list):
        return "{" + ",".join(_element(v, kind.element) for v in value) + "}"
    if kind is not None and kind.name == "struct" and isinstance(value, dict):
        return "(" + ",".join(_element(v, t) if v is not None else ""
                              for v, (_, t) in zip(value.values(), kind.fields, strict=False)) + ")"
    return json.dumps(json_value(value), ensure_ascii=False)


def _element(value: Any, kind: SqlType | None) -> str:
    """An element of an array or struct, quoted where it would be misread."""
    text = shown(value, kind)
    nested = kind is not None and kind.name == "array"
    if value is None or nested or (_PLAIN_ELEMENT.fullmatch(text) and text.upper() != "NULL"):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


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
        table.add_column(Text(name), justify="right" if kind.name in _NUMBERS else "left", overflow="fold")
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
