"""What a statement gives to a cursor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from watersmeet.types import BIGINT, VARCHAR, Field, Schema, arrow_schema


class Running(Protocol):
    """A query that runs until it is closed."""

    def rows(self) -> pa.Table:
        """The rows that it gave and that were not asked for yet, of the result's columns. Never waits."""
        ...

    @property
    def ended(self) -> bool:
        """True once nothing more comes: LIMIT was reached."""
        ...

    @property
    def sign(self) -> int | None:
        """The column that tells rows that came (1) from those that went (-1); None if none ever goes."""
        ...

    def unread(self, rows: int) -> None:
        """Of all rows that it gave, only so many are not handed out after this.

        The error that says why they must not be handed out, if it was ended meanwhile and can be recovered.
        """
        ...

    def wait(self, seconds: float) -> None:
        """Returns when there may be rows, at the latest after so many seconds."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...


@dataclass(frozen=True)
class Result:
    """The outcome of one statement.

    command: its first words, such as `SELECT` or `CREATE TABLE`. columns, table: the rows, None without any.
    rowcount: rows given or changed, -1 if that means nothing here. running: of a query that runs until it is stopped.
    """

    command: str
    columns: Schema = ()
    table: pa.Table | None = None
    rowcount: int = -1
    notices: tuple[str, ...] = field(default=())
    running: Running | None = None


def rows_result(command: str, columns: Schema, table: pa.Table) -> Result:
    """The result that consists of `table`, whose columns are `columns` in order."""
    return Result(command, columns, table, table.num_rows)


def text_result(
    command: str, names: tuple[str, ...], rows: list[tuple[Any, ...]], numbers: tuple[str, ...] = ()
) -> Result:
    """A result of text columns, but for those in `numbers`, which are whole numbers (bigint)."""
    columns = tuple(Field(n, VARCHAR) for n in names)
    return typed_result(command, tuple(_number(c) if c.name in numbers else c for c in columns), rows)


def typed_result(command: str, columns: Schema, rows: list[tuple[Any, ...]]) -> Result:
    """A result of a few rows that are at hand as Python values."""
    arrays = [pa.array([r[i] for r in rows], c.type.arrow) for i, c in enumerate(columns)]
    table = pa.Table.from_arrays(arrays, schema=arrow_schema(columns, positional=False))
    return rows_result(command, columns, table)


def lines_result(command: str, title: str, lines: list[str]) -> Result:
    """A result of one text column, a row a line."""
    return text_result(command, (title,), [(line,) for line in lines])


def _number(column: Field) -> Field:
    return Field(column.name, BIGINT, column.nullable)
