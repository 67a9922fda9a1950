"""What both demos show while they run."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from watersmeet.cli.render import bytes_text


def views_table(status: dict[str, Any], title: str, caption: str) -> Table:
    """A line for each view: what it has, what went through it, what it keeps."""
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    for name in ("view", "rows", "rows in", "rows out", "state rows", "state"):
        table.add_column(name, justify="left" if name == "view" else "right")
    for view in status["views"]:
        table.add_row(
            view["name"],
            f"{view['rows']:,}",
            f"{view['rows_in']:,}",
            f"{view['rows_out']:,}",
            f"{view['state_rows']:,}",
            bytes_text(view["state_bytes"]),
        )
    return table
