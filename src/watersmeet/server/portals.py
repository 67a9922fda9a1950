"""Prepared statements, portals and cursors: what a client keeps between its messages."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from watersmeet.errors import error
from watersmeet.server.flowing import Flow
from watersmeet.server.messages import Column
from watersmeet.server.parameters import Parameter
from watersmeet.server.steps import Outcome, Step


@dataclass
class Prepared:
    """A prepared statement. columns: those of its rows; None without rows. empty: its text holds no statement.

    described: as of what its columns were described; None if that can't be told.
    """

    text: str
    parameters: tuple[Parameter, ...]
    columns: tuple[Column, ...] | None
    empty: bool
    described: Hashable = None


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


def check_columns(
    columns: Sequence[Column] | None, told: Sequence[Column] | None, rows: pa.Table | None = None
) -> None:
    """PREPARED_RESULT_CHANGED if rows have other columns, or columns of other types, than their client was told.

    rows: what is NULL in all of them has any type.
    """
    if columns is told or [(c.name, c.oid) for c in columns or ()] == [(c.name, c.oid) for c in told or ()]:
        return
    if rows is not None and columns is not None and told is not None and len(columns) == len(told):
        given = zip(columns, told, rows.columns, strict=True)
        if all(c.oid == t.oid or values.null_count == rows.num_rows for c, t, values in given):
            return
    raise error(
        "PREPARED_RESULT_CHANGED",
        "cached plan must not change result type",
        detail="What the statement reads has other columns, or columns of other types, than when it was prepared.",
        hint="Prepare the statement again.",
    )


def result_formats(wanted: Sequence[int], columns: tuple[Column, ...] | None) -> tuple[int, ...]:
    """The format of each column, from none (text), one for all, or one for each. PROTOCOL_VIOLATION."""
    count = len(columns or ())
    if any(f not in (0, 1) for f in wanted):
        raise error("PROTOCOL_VIOLATION", "a format is 0 (text) or 1 (binary)")
    if len(wanted) not in (0, 1, count):
        raise error("PROTOCOL_VIOLATION", f"{len(wanted)} formats were given for {count} columns")
    return tuple(wanted) if len(wanted) == count else (wanted[0] if wanted else 0,) * count
