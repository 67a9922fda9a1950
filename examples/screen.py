"""What the demos show while they run."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table

from watersmeet.cli.results import bytes_text


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


def with_sinks(connection: Any, title: str, caption: str) -> Group:
    """A line for each view and for each sink."""
    table = Table(caption=caption, caption_justify="left")
    found = sinks(connection.cursor())
    for name in ("name", "state", "delivered_rows", "rows_behind"):
        table.add_column(name.replace("_", " "), justify="left" if name in ("name", "state") else "right")
    for row in found:
        table.add_row(
            *(f"{v:,}" if isinstance(v := row[c.header.replace(" ", "_")], int) else str(v) for c in table.columns)
        )
    return Group(views_table(connection.status(), title, ""), table)


def sinks(cursor: Any) -> list[dict[str, Any]]:
    """What SHOW SINKS says."""
    cursor.execute("SHOW SINKS")
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def delivered(cursor: Any) -> bool:
    """Whether the sinks have nothing left to deliver."""
    return all(row["commits_behind"] == 0 for row in sinks(cursor))
