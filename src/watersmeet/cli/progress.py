"""Shows the state and the progress of sources and views as a table or as a line of a log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from rich import box
from rich.table import Table
from rich.text import Text

from watersmeet.cli.results import bytes_text
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.variables import Variables
from watersmeet.runtime.backfill import progress_of
from watersmeet.runtime.status import SourceStatus, Status, ViewStatus
from watersmeet.session.connections.connection import Connection
from watersmeet.session.status import database_status
from watersmeet.store.manifests import Backfill, backfill_of
from watersmeet.values import DEFAULT_DIALECT

#: The columns of the table, and the order in which a narrow terminal omits them.
_COLUMNS: Final = ("", "rows in", "rows/s", "rows out", "content", "watermark", "state rows", "state", "errors")

_LEAST_FIRST: Final = ("state rows", "rows out", "state", "rows in", "watermark", "errors", "rows/s")

#: The number of lines around those of sources and views: title, head, caption, and the prompt.
_OTHER_LINES: Final = 8


def status_of(connection: Connection) -> Status:
    """The status of the database of a connection, without memory."""
    return database_status(Session(connection.opened, Variables(DEFAULT_DIALECT)), memory=False)


def rows_in(status: Status) -> dict[str, int]:
    """The number of rows that each source and view has received, by id."""
    return {v.id: v.rows_in for v in status.views} | {s.id: s.rows for s in status.sources}


def progress_table(
    status: Status,
    rates: dict[str, float],
    seconds: float,
    size: tuple[int, int] = (200, 200),
    *,
    ending: str = "Ctrl-C stops at the end of an epoch",
) -> Table:
    """A table with a line for each source and view, with as many columns and lines as fit.

    size: the columns and lines of the terminal. ending: the effect of Ctrl-C.
    """
    rows = _rows(status, rates)
    room = max(1, size[1] - _OTHER_LINES)
    hidden = max(0, len(rows) - room)
    caption = f"… and {hidden:,} more, SHOW JOBS lists all. " if hidden else ""
    return _table(rows[:room], _fitting(rows[:room], size[0]), _title(status, seconds), caption + ending)


def status_table(status: Status, width: int) -> Table:
    """A table with a line for each source and view, without rates."""
    rows = _rows(status, {})
    title = f"{status.state}, epoch {status.epoch:,}, {_behind(status)}"
    return _table(rows, [n for n in _fitting(rows, width) if n != "rows/s"], title, None)


def _rows(status: Status, rates: dict[str, float]) -> list[dict[str, Text]]:
    return [_source_cells(s, rates) for s in status.sources] + [
        _view_cells(v, rates, status.backfill) for v in status.views
    ]


def _table(rows: Sequence[dict[str, Text]], names: Sequence[str], title: str, caption: str | None) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        caption=caption,
        caption_justify="left",
        box=box.ROUNDED,
        header_style="bold",
    )
    for name in names:
        table.add_column(name, justify="left" if name == "" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(row.get(name, Text()) for name in names))
    return table


def _source_cells(source: SourceStatus, rates: dict[str, float]) -> dict[str, Text]:
    return {
        "": Text(f"source {source.name}", style="cyan"),
        "rows in": Text(f"{source.rows:,}"),
        "rows/s": Text(f"{rates.get(source.id, 0):,.0f}"),
        "watermark": Text(source.watermark or ""),
        "errors": _source_errors(source),
    }


def _view_cells(view: ViewStatus, rates: dict[str, float], backfill: Backfill | None) -> dict[str, Text]:
    fill = backfill_of(view.id, backfill)
    filling = " (filling)" if fill is None else f" (filling, {progress_of(fill):.0%})"
    name = view.name + (" (stopped)" if view.error else "" if view.ready else filling)
    return {
        "": Text(name),
        "rows in": Text(f"{view.rows_in:,}"),
        "rows/s": Text(f"{rates.get(view.id, 0):,.0f}"),
        "rows out": Text(f"{view.rows_out:,}"),
        "content": Text(f"{view.rows:,}"),
        "watermark": Text(_watermark(view)),
        "state rows": Text(f"{view.state_rows:,}"),
        "state": Text(bytes_text(view.state_bytes)),
        "errors": _count(view.expression_errors),
    }


def _fitting(rows: Sequence[dict[str, Text]], width: int) -> list[str]:
    """The names of the columns that fit: always names and content, others if they fit."""
    widths = {name: max([len(name), *(row[name].cell_len for row in rows if name in row)]) for name in _COLUMNS}
    named = list(_COLUMNS)
    for name in _LEAST_FIRST:
        if 1 + sum(widths[n] + 3 for n in named) > width:
            named.remove(name)
    return named


_SOURCE_FIELDS: Final = ("rows", "dead", "watermark", "late", "ahead", "idle")
_VIEW_FIELDS: Final = ("rows_in", "rows_out", "rows", "watermark", "held_back_by", "state_rows", "state_bytes")


def progress_line(status: Status, rates: dict[str, float], *, as_json: bool) -> str:
    """The progress as a line of a log file."""
    if as_json:
        sources = {
            s.name: {**{n: getattr(s, n) for n in _SOURCE_FIELDS}, "rows_per_s": round(rates.get(s.id, 0))}
            for s in status.sources
        }
        views = {
            v.name: {
                **{n: getattr(v, n) for n in _VIEW_FIELDS},
                "rows_per_s": round(rates.get(v.id, 0)),
                "errors": v.expression_errors,
                "stopped": bool(v.error),
            }
            for v in status.views
        }
        found = {"epoch": status.epoch, "behind": status.behind, "sources": sources, "views": views}
        return json.dumps(found, ensure_ascii=False, default=str)
    parts = [f"epoch {status.epoch:,}"]
    parts += [
        f"source {s.name}: {s.rows:,} rows, {rates.get(s.id, 0):,.0f}/s"
        + (f", {s.late:,} late" if s.late else "")
        + (f", {s.ahead:,} ahead" if s.ahead else "")
        + (f", {s.dead:,} set aside" if s.dead else "")
        for s in status.sources
    ]
    parts += [
        f"{v.name}: in {v.rows_in:,}, {rates.get(v.id, 0):,.0f}/s, out {v.rows_out:,}, "
        f"content {v.rows:,}, state {bytes_text(v.state_bytes)}"
        + (f", stopped: {v.error['message']}" if v.error else "")
        + (f", watermark {_watermark(v)}" if v.held_back_by is not None else "")
        for v in status.views
    ]
    return " | ".join(parts)


def _title(status: Status, seconds: float) -> str:
    clock = f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02}"
    return (
        f"{clock}  epoch {status.epoch:,}, the last one of {status.metrics.rows:,} rows in "
        f"{status.metrics.duration_us / 1000:,.0f} ms, {_behind(status)}"
    )


def _behind(status: Status) -> str:
    return f"{status.behind:,} transaction{'' if status.behind == 1 else 's'} behind"


def _watermark(view: ViewStatus) -> str:
    """The watermark of a view, or the source without one that it waits for."""
    if view.held_back_by is None:
        return "–"
    return view.watermark or f"waits for {view.held_back_by}"


def _source_errors(source: SourceStatus) -> Text:
    """The numbers of rejected records, and of rows that were dropped as late."""
    count = _count(source.dead)
    return count.append(f" ({source.late:,} late)", style="yellow") if source.late else count


def _count(number: int) -> Text:
    return Text(f"{number:,}", style="bold red" if number else "")
