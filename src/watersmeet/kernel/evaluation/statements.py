"""Prepared DuckDB statements over Arrow tables."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa

from watersmeet.errors import error
from watersmeet.kernel.evaluation.duck import Source, input_field
from watersmeet.types import SqlType

#: Errors that lie in a row's values: a time zone that does not exist is "not implemented", and an escape
#: character of LIKE that is none a "syntax error". All others are defects of the plan or of the machine.
#: UnicodeDecodeError: DuckDB cuts a text in its message within a character.
VALUE_ERRORS: Final = (
    duckdb.DataError,
    duckdb.InvalidInputException,
    duckdb.NotImplementedException,
    duckdb.SyntaxException,
    UnicodeDecodeError,
)
_COLUMN: Final = re.compile(r"\b(?:[clr]|t\d+_)\d+\b")
_ROW: Final = "_row"
_numbers: Final = itertools.count()

Rows = np.ndarray[tuple[int], np.dtype[np.int64]]
Columns = list[pa.ChunkedArray]


@dataclass(frozen=True)
class Statement:
    """A prepared statement. It reads the columns `reads` of its input, and numbers the rows if it filters them."""

    name: str
    source: Source
    reads: tuple[int, ...]
    numbered: bool


def cast_to(sql: str, kind: SqlType) -> str:
    """The expression as a value of `kind`."""
    return f"CAST(({sql}) AS {kind.duckdb})"


def prepare(
    connection: duckdb.DuckDBPyConnection,
    names: Sequence[str],
    types: Sequence[SqlType],
    items: Sequence[str],
    predicate: str | None = None,
) -> Statement:
    """A statement that returns `items` for the rows where `predicate` is true.

    May raise `VALUE_ERRORS` (an error in a constant) and duckdb.BinderException.
    """
    used = set(_COLUMN.findall(" ".join([*items, predicate or ""])))
    reads = tuple(i for i, name in enumerate(names) if name in used)
    fields = [input_field(names[i], types[i]) for i in reads]
    numbered = predicate is not None
    if numbered or not fields:
        fields.append(pa.field(_ROW, pa.int64()))
    number = next(_numbers)
    source = Source(pa.schema(fields))
    listed = ", ".join([*items, _ROW] if numbered else items)
    where = f" WHERE ({predicate})" if predicate else ""
    connection.register(f"input{number}", source)
    try:
        connection.execute(f"PREPARE statement{number} AS SELECT {listed} FROM input{number}{where}")
    except duckdb.Error:
        connection.unregister(f"input{number}")
        raise
    return Statement(f"{number}", source, reads, numbered)


def run(
    connection: duckdb.DuckDBPyConnection, statement: Statement, table: pa.Table, count: int
) -> tuple[Columns, Rows | None]:
    """The statement's columns over `table` of `count` rows, and the positions of the rows kept if it filters."""
    arrays = [table.column(i) for i in statement.reads]
    if len(statement.source.schema) > len(arrays):
        arrays.append(pa.chunked_array([pa.array(np.arange(count, dtype=np.int64))]))
    statement.source.table = pa.Table.from_arrays(arrays, schema=statement.source.schema)
    try:
        result = connection.execute(f"EXECUTE statement{statement.name}").to_arrow_table()
    finally:
        statement.source.table = statement.source.schema.empty_table()
    columns = result.columns
    rows = columns.pop().to_numpy() if statement.numbered else None
    return columns, rows


def drop(connection: duckdb.DuckDBPyConnection, statement: Statement) -> None:
    """Frees the statement."""
    connection.execute(f"DEALLOCATE statement{statement.name}")
    connection.unregister(f"input{statement.name}")


def plan_error(problem: duckdb.Error, exprs: Sequence[str], predicate: str | None) -> Exception:
    """The error of a plan whose expressions DuckDB does not accept at all."""
    where = [] if predicate is None else [f"predicate: {predicate}"]
    return error(
        "INTERNAL_ERROR",
        "an expression of the compiled plan is not valid",
        detail=f"{problem}\n" + "\n".join([*exprs, *where]),
    )
