"""What a statement returns to a cursor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from watersmeet.values.types import BIGINT, VARCHAR, Field, Origin, Schema, arrow_schema


class Running(Protocol):
    """A query that runs until it is closed."""

    def rows(self) -> pa.Table:
        """The rows, with the result's columns, that it gave since the last call. Never waits."""
        ...

    @property
    def ended(self) -> bool:
        """True once no more rows come, because LIMIT was reached."""
        ...

    @property
    def sign(self) -> int | None:
        """The column that is 1 for inserted and -1 for deleted rows; None if no row is ever deleted."""
        ...

    def unread(self, rows: int) -> None:
        """Notes how many of the rows given are not handed out yet.

        Returns the error that forbids handing them out, if the query was ended meanwhile and can be recovered.
        """
        ...

    def wait(self, seconds: float) -> None:
        """Returns when there may be rows, or after that many seconds."""
        ...

    def settle(self, most_s: float) -> None:
        """Returns when `rows` gives what is committed now, or after so many seconds."""
        ...

    def close(self) -> None:
        """Ends the query."""
        ...


@dataclass(frozen=True)
class Result:
    """The outcome of one statement.

    command: its first words, such as `SELECT` or `CREATE TABLE`.
    columns, table: the rows; None without rows.
    rowcount: rows returned or changed, -1 if that is meaningless.
    running: set for a query that runs until it is stopped.
    origins: for each column, that of a relation that it is, if it is nothing else; empty if that is not known.
    """

    command: str
    columns: Schema = ()
    table: pa.Table | None = None
    rowcount: int = -1
    notices: tuple[str, ...] = field(default=())
    running: Running | None = None
    origins: tuple[Origin | None, ...] = ()


def rows_result(command: str, columns: Schema, table: pa.Table, origins: tuple[Origin | None, ...] = ()) -> Result:
    """A result of the rows of `table`, whose columns are `columns` in order."""
    return Result(command, columns, table, table.num_rows, origins=origins)


def text_result(
    command: str, names: tuple[str, ...], rows: list[tuple[Any, ...]], numbers: tuple[str, ...] = ()
) -> Result:
    """A result of text columns, except for those in `numbers`, which are bigint."""
    columns = tuple(Field(n, VARCHAR) for n in names)
    return typed_result(command, tuple(_number(c) if c.name in numbers else c for c in columns), rows)


def typed_result(command: str, columns: Schema, rows: list[tuple[Any, ...]]) -> Result:
    """A result of a few rows of Python values."""
    arrays = [pa.array([r[i] for r in rows], c.type.arrow) for i, c in enumerate(columns)]
    table = pa.Table.from_arrays(arrays, schema=arrow_schema(columns, positional=False))
    return rows_result(command, columns, table)


def lines_result(command: str, title: str, lines: list[str]) -> Result:
    """A result of one text column with a row for each line."""
    return text_result(command, (title,), [(line,) for line in lines])


def _number(column: Field) -> Field:
    return Field(column.name, BIGINT, column.nullable)
