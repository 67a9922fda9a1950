"""Prepared statements, portals and cursors: what a client keeps between its messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from watersmeet.errors import error
from watersmeet.server.flowing import Flow
from watersmeet.server.messages import Column
from watersmeet.server.parameters import Parameter
from watersmeet.server.steps import Outcome, Step


@dataclass(frozen=True)
class Prepared:
    """A prepared statement. columns: those of its rows; None without rows. empty: its text holds no statement."""

    text: str
    parameters: tuple[Parameter, ...]
    columns: tuple[Column, ...] | None
    empty: bool


@dataclass
class Portal:
    """A statement with its parameters, and how far its rows were taken. Cursors of DECLARE are portals, too.

    step: None for an empty statement. formats: of its columns, 0 text and 1 binary. outcome: once it ran. position:
    the number of rows in front of the next one. held: it outlives its transaction. flow: of a query that runs.
    """

    step: Step | None
    columns: tuple[Column, ...] | None
    formats: tuple[int, ...]
    outcome: Outcome | None = None
    position: int = 0
    held: bool = False
    is_cursor: bool = False
    flow: Flow | None = None

    def take(self, rows: int) -> pa.Table:
        """The next rows, at most so many; 0: all."""
        table = self.table
        end = table.num_rows if rows <= 0 else min(self.position + rows, table.num_rows)
        found = table.slice(self.position, end - self.position)
        self.position = end
        return found

    def close(self) -> None:
        """Ends the query that runs, if it is one."""
        if self.flow is not None:
            self.flow.close()

    @property
    def table(self) -> pa.Table:
        """All rows of what it ran."""
        assert self.outcome is not None
        assert self.outcome.table is not None
        return self.outcome.table

    @property
    def is_done(self) -> bool:
        """Whether no rows are left."""
        return bool(self.position >= self.table.num_rows)


def result_formats(wanted: Sequence[int], columns: tuple[Column, ...] | None) -> tuple[int, ...]:
    """The format of each column, from none (text), one for all, or one for each. PROTOCOL_VIOLATION."""
    count = len(columns or ())
    if any(f not in (0, 1) for f in wanted):
        raise error("PROTOCOL_VIOLATION", "a format is 0 (text) or 1 (binary)")
    if len(wanted) not in (0, 1, count):
        raise error("PROTOCOL_VIOLATION", f"{len(wanted)} formats were given for {count} columns")
    return tuple(wanted) if len(wanted) == count else (wanted[0] if wanted else 0,) * count
