"""`watersmeet run`: runs a script, then shows how its views do until it is stopped."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from typing import Any, Final

from rich.console import Console
from rich.live import Live
from rich.table import Table

from watersmeet.cli.render import bytes_text, plan_text, print_result
from watersmeet.session.connection import Connection

#: How often the display is drawn anew, and how often a line is written where there is no terminal.
_DRAW_S: Final = 0.5
_LINE_S: Final = 5.0


def run_file(connection: Connection, text: str, *, once: bool, as_json: bool) -> int:
    """Runs `text`; then, if it has streaming sources and not `once`, shows progress until Ctrl-C. The exit code."""
    console = Console(stderr=True)
    for result in connection.execute_script(text):
        for notice in result.notices:
            console.print(f"NOTICE: {notice}", style="yellow", markup=False)
        if result.description is None:
            continue
        if [d[0] for d in result.description] == ["QUERY PLAN"]:
            sys.stdout.write(plan_text(result) + "\n")
        else:
            print_result(result, as_json=as_json)
    status = connection.status()
    if once or not status["sources"]:
        connection.cursor().execute("FLUSH")
        return 0
    return _watch(connection, console)


def _watch(connection: Connection, console: Console) -> int:
    """Shows progress until SIGINT or SIGTERM (0) or until the engine has failed (3)."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    rates = Rates()
    if console.is_terminal:
        with Live(console=console, refresh_per_second=4, transient=False) as live:
            while not stop.is_set():
                status = connection.status()
                live.update(progress_table(status, rates.update(status)))
                if status["state"] == "failed":
                    break
                stop.wait(_DRAW_S)
    else:
        while not stop.wait(_LINE_S):
            status = connection.status()
            sys.stderr.write(_line(status, rates.update(status)) + "\n")
            if status["state"] == "failed":
                break
    status = connection.status()
    if status["state"] == "failed":
        console.print(_failure(status), style="red", markup=False, highlight=False)
        return 3
    console.print("stopping at the end of the epoch …", style="dim")
    return 0


class Rates:
    """Rows a second of each source and view, over the time between two looks."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        self._at = time.monotonic()

    def update(self, status: dict[str, Any]) -> dict[str, float]:
        """Rates by id since the last call."""
        now = time.monotonic()
        counts = {v["id"]: v["rows_out"] for v in status["views"]} | {s["id"]: s["rows"] for s in status["sources"]}
        seconds = max(now - self._at, 1e-6)
        rates = {i: (n - self._before.get(i, n)) / seconds for i, n in counts.items()}
        self._before, self._at = counts, now
        return rates


def progress_table(status: dict[str, Any], rates: dict[str, float]) -> Table:
    """A line for each source and each view."""
    behind = status["behind"]
    table = Table(title=f"epoch {status['epoch']}, {status['duration_us'] / 1000:.0f} ms, "
                        f"{behind} transaction{'' if behind == 1 else 's'} behind",
                  title_justify="left", caption="Ctrl-C stops at the end of an epoch", caption_justify="left")
    for name in ("", "rows in", "rows out", "rows/s", "content", "watermark", "state rows", "state", "errors"):
        table.add_column(name, justify="left" if name == "" else "right")
    for s in status["sources"]:
        table.add_row(f"source {s['name']}", f"{s['rows']:,}", "", f"{rates[s['id']]:,.0f}", "", "", "", "",
                      _count(s["dead"]))
    for v in status["views"]:
        name = v["name"] if v["ready"] else f"{v['name']} (filling)"
        table.add_row(name, f"{v['rows_in']:,}", f"{v['rows_out']:,}", f"{rates[v['id']]:,.0f}", f"{v['rows']:,}",
                      str(v["watermark"] or "–"), f"{v['state_rows']:,}", bytes_text(v["state_bytes"]),
                      _count(v["expression_errors"]))
    return table


def _line(status: dict[str, Any], rates: dict[str, float]) -> str:
    """The same for a log file: one JSON object."""
    views = {v["name"]: {"rows_in": v["rows_in"], "rows_out": v["rows_out"], "rows_per_s": round(rates[v["id"]]),
                         "rows": v["rows"], "state_bytes": v["state_bytes"]} for v in status["views"]}
    sources = {s["name"]: {"rows": s["rows"], "rows_per_s": round(rates[s["id"]]), "dead": s["dead"]}
               for s in status["sources"]}
    return json.dumps({"epoch": status["epoch"], "behind": status["behind"], "sources": sources, "views": views})


def _failure(status: dict[str, Any]) -> str:
    found = status["error"]
    return found if isinstance(found, str) else f"error[{found['condition']}] {found['sqlstate']}: {found['message']}"


def _count(number: int) -> str:
    return f"[red]{number:,}[/red]" if number else "0"
