"""Queries that run until they are stopped, as people read them: each row on a line when it comes, with its sign where
rows may go.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from watersmeet.catalog import DELTA_COLUMN
from watersmeet.cli.render import NUMBERS, print_json
from watersmeet.cli.tables import padded_cell, visible
from watersmeet.session.connections.cursor import Cursor
from watersmeet.session.connections.texts import shown

#: How long one query is waited for before the others, and Ctrl-C, are looked at.
_TURN_S: Final = 0.1
#: Columns are as wide as the rows that came first, at least so wide and at most.
_WIDTHS: Final = (4, 40)
_SEPARATOR: Final = " │ "


class Follower:
    """Prints the rows of one running query as they come.

    title: what is printed above rows that follow those of another query; None if it is alone.
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
        # A sign that nobody selected is shown in front instead.
        hides = sign is not None and sign == len(description) - 1 and self._names[sign] == DELTA_COLUMN
        self._shown = [i for i in range(len(description)) if not (hides and i == sign)]
        self._widths: list[int] = []

    @property
    def runs(self) -> bool:
        """False once no more rows come."""
        return self._cursor.runs

    def follow(self, seconds: float, *, headed: bool) -> bool:
        """Prints what comes within so many seconds at most; True if anything came.

        headed: other rows were printed since its last ones.
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
        """The names of the columns, as wide as the rows at hand."""
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
        """The cells under each other, numbers to the right."""
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
    """Prints what running queries gave so far."""
    for query in queries:
        query.follow(0, headed=True)
