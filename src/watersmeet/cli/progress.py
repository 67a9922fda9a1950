"""How views and sources do, as a table for a terminal and as a line for a log."""

from __future__ import annotations

import json
import time
from collections import deque
from typing import Any, Final

from rich import box
from rich.table import Table
from rich.text import Text

from watersmeet.cli.render import bytes_text

#: Rates are means over so many seconds: epochs come in steps.
_WINDOW_S: Final = 5.0


class Rates:
    """Rows a second that came in, for each source and view, over the last few seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, dict[str, int]]] = deque()

    def update(self, status: dict[str, Any], now_s: float | None = None) -> dict[str, float]:
        """Rates by id, with `status` as the newest look."""
        now_s = time.monotonic() if now_s is None else now_s
        counts = {v["id"]: v["rows_in"] for v in status["views"]} | {s["id"]: s["rows"] for s in status["sources"]}
        self._seen.append((now_s, counts))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - _WINDOW_S:
            self._seen.popleft()
        since_s, before = self._seen[0]
        seconds = max(now_s - since_s, 1e-6)
        return {i: max(0, n - before.get(i, 0)) / seconds if len(self._seen) > 1 else 0.0 for i, n in counts.items()}


def progress_table(status: dict[str, Any], rates: dict[str, float], seconds: float) -> Table:
    """A line for each source and each view."""
    table = Table(title=_title(status, seconds), title_justify="left", caption="Ctrl-C stops at the end of an epoch",
                  caption_justify="left", box=box.ROUNDED, header_style="bold")
    for name in ("", "rows in", "rows/s", "rows out", "content", "watermark", "state rows", "state", "errors"):
        table.add_column(name, justify="left" if name == "" else "right", no_wrap=name != "")
    for s in status["sources"]:
        table.add_row(Text(f"source {s['name']}", style="cyan"), f"{s['rows']:,}", f"{rates.get(s['id'], 0):,.0f}", "", "",
                      s["watermark"] or "", "", "", _source_errors(s))
    for v in status["views"]:
        name = v["name"] + (" (stopped)" if v["error"] else "" if v["ready"] else " (filling)")
        table.add_row(Text(name), f"{v['rows_in']:,}", f"{rates.get(v['id'], 0):,.0f}", f"{v['rows_out']:,}",
                      f"{v['rows']:,}", _watermark(v), f"{v['state_rows']:,}", bytes_text(v["state_bytes"]),
                      _count(v["expression_errors"]))
    return table


def progress_line(status: dict[str, Any], rates: dict[str, float], *, as_json: bool) -> str:
    """The same for a log file."""
    if as_json:
        return json.dumps({
            "epoch": status["epoch"], "behind": status["behind"],
            "sources": {s["name"]: {"rows": s["rows"], "rows_per_s": round(rates.get(s["id"], 0)), "dead": s["dead"],
                                    "watermark": s["watermark"], "late": s["late"], "ahead": s["ahead"], "idle": s["idle"]}
                        for s in status["sources"]},
            "views": {v["name"]: {"rows_in": v["rows_in"], "rows_per_s": round(rates.get(v["id"], 0)),
                                  "rows_out": v["rows_out"], "rows": v["rows"], "watermark": v["watermark"],
                                  "held_back_by": v["held_back_by"],
                                  "state_rows": v["state_rows"], "state_bytes": v["state_bytes"],
                                  "errors": v["expression_errors"], "stopped": bool(v["error"])} for v in status["views"]},
        }, ensure_ascii=False, default=str)
    parts = [f"epoch {status['epoch']:,}"]
    parts += [f"source {s['name']}: {s['rows']:,} rows, {rates.get(s['id'], 0):,.0f}/s"
              + (f", {s['late']:,} late" if s["late"] else "") + (f", {s['ahead']:,} ahead" if s["ahead"] else "")
              + (f", {s['dead']:,} set aside" if s["dead"] else "") for s in status["sources"]]
    parts += [f"{v['name']}: in {v['rows_in']:,}, {rates.get(v['id'], 0):,.0f}/s, out {v['rows_out']:,}, "
              f"content {v['rows']:,}, state {bytes_text(v['state_bytes'])}"
              + (f", stopped: {v['error']['message']}" if v["error"] else "")
              + (f", watermark {_watermark(v)}" if v["held_back_by"] is not None else "") for v in status["views"]]
    return " | ".join(parts)


def _title(status: dict[str, Any], seconds: float) -> str:
    behind = status["behind"]
    clock = f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02}"
    return (f"{clock}  epoch {status['epoch']:,}, the last one of {status['rows']:,} rows in "
            f"{status['duration_us'] / 1000:,.0f} ms, {behind:,} transaction{'' if behind == 1 else 's'} behind")


def _watermark(view: dict[str, Any]) -> str:
    """How far a view's event time has come; by whom it is held back, if that is not far at all."""
    if view["held_back_by"] is None:
        return "–"
    return view["watermark"] or f"waits for {view['held_back_by']}"


def _source_errors(source: dict[str, Any]) -> Text:
    """Records that were set aside; rows that were dropped because they came late."""
    count = _count(source["dead"])
    return count.append(f" ({source['late']:,} late)", style="yellow") if source["late"] else count


def _count(number: int) -> Text:
    return Text(f"{number:,}", style="bold red" if number else "")
