"""Prepared DuckDB statements over Arrow tables, and what to do when one raises an error."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import error
from watersmeet.kernel.evaluation.duck import Source, as_type, input_field
from watersmeet.kernel.evaluation.tolerant import tolerant
from watersmeet.kernel.metrics import Counters
from watersmeet.types import BOOLEAN, SqlType

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
    """A prepared statement. It reads the columns `reads` of its input, and numbers the rows if it filters them.

    results: the Arrow types of its columns, without the number.
    """

    name: str
    source: Source
    reads: tuple[int, ...]
    results: tuple[pa.DataType, ...]
    numbered: bool


def prepare(
    connection: duckdb.DuckDBPyConnection,
    names: Sequence[str],
    types: Sequence[SqlType],
    exprs: Sequence[tuple[str, SqlType]],
    predicate: str | None,
    *,
    guarded: bool = False,
) -> Statement:
    """A statement that gives `exprs`, cast to their types, for the rows where `predicate` is true.

    guarded: each value comes as a struct with the one field `v`, which is NULL where the expression
    raised an error. May raise `VALUE_ERRORS` (an error in a constant) and duckdb.BinderException.
    """
    text = " ".join([sql for sql, _ in exprs] + ([predicate] if predicate else []))
    used = set(_COLUMN.findall(text))
    reads = tuple(i for i, name in enumerate(names) if name in used)
    fields = [input_field(names[i], types[i]) for i in reads]
    numbered = predicate is not None
    if numbered or not fields:
        fields.append(pa.field(_ROW, pa.int64()))
    number = next(_numbers)
    source = Source(pa.schema(fields))
    items = [f"CAST(({sql}) AS {kind.duckdb})" for sql, kind in exprs]
    if guarded:
        items = [f"TRY({{'v': {item}}})" for item in items]
    if numbered:
        items.append(_ROW)
    where = f" WHERE ({predicate})" if predicate else ""
    connection.register(f"input{number}", source)
    try:
        connection.execute(f"PREPARE statement{number} AS SELECT {', '.join(items)} FROM input{number}{where}")
    except duckdb.Error:
        connection.unregister(f"input{number}")
        raise
    return Statement(f"{number}", source, reads, tuple(kind.arrow for _, kind in exprs), numbered)


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


@dataclass(frozen=True)
class Recovery:
    """Evaluates expressions one by one so that only erroneous cells are lost. `counters` counts them."""

    connection: duckdb.DuckDBPyConnection
    names: tuple[str, ...]
    types: tuple[SqlType, ...]
    counters: Counters

    def project(
        self, table: pa.Table, count: int, exprs: Sequence[tuple[str, SqlType]], predicate: str | None
    ) -> tuple[Columns, Rows | None]:
        """As `run` of the statement of the same expressions, with NULL for cells that raise an error."""
        rows: Rows | None = None
        if predicate is not None:
            passed = self._evaluate(table, count, predicate, BOOLEAN).fill_null(False).to_numpy()
            rows = np.flatnonzero(passed)
            table, count = table.take(pa.array(rows)), rows.size
        return [self._evaluate(table, count, sql, kind) for sql, kind in exprs], rows

    def _evaluate(self, table: pa.Table, count: int, sql: str, kind: SqlType) -> pa.ChunkedArray:
        if count == 0:
            return pa.chunked_array([], kind.arrow)
        try:
            return self._once(table, count, sql, kind, guarded=False)
        except VALUE_ERRORS:
            pass
        by_parts = tolerant(self.connection, sql)
        try:
            values = self._guarded(table, count, by_parts, kind)
            plain = values if by_parts == sql else self._guarded(table, count, sql, kind)
        except (duckdb.BinderException, *VALUE_ERRORS):  # TRY takes no volatile functions and no subqueries
            return self._bisect(table, count, sql, kind)
        # An error that other parts of a condition made irrelevant is none.
        lost = pc.and_(pc.invert(plain[1]), pc.is_null(values[0]))
        self.counters.expression_errors += pc.sum(lost).as_py() or 0
        return as_type(values[0], kind.arrow)

    def _guarded(self, table: pa.Table, count: int, sql: str, kind: SqlType) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        """(values, NULL where an error was raised; where none was)."""
        structs = self._once(table, count, sql, kind, guarded=True)
        values = pa.chunked_array([chunk.flatten()[0] for chunk in structs.chunks])
        return values, structs.is_valid()

    def _once(self, table: pa.Table, count: int, sql: str, kind: SqlType, *, guarded: bool) -> pa.ChunkedArray:
        statement = prepare(self.connection, self.names, self.types, [(sql, kind)], None, guarded=guarded)
        try:
            column = run(self.connection, statement, table, count)[0][0]
        finally:
            drop(self.connection, statement)
        return column if guarded else as_type(column, kind.arrow)

    def _bisect(self, table: pa.Table, count: int, sql: str, kind: SqlType) -> pa.ChunkedArray:
        """Halves the rows until each half is without error or one row."""
        null = pa.nulls(1, kind.arrow)
        try:
            statement = prepare(self.connection, self.names, self.types, [(sql, kind)], None)
        except VALUE_ERRORS:  # an error in a constant part
            self.counters.expression_errors += count
            return pa.chunked_array([pa.nulls(count, kind.arrow)])
        pieces: list[pa.Array] = []
        waiting = [(0, count)]
        try:
            while waiting:
                start, stop = waiting.pop()
                try:
                    column = run(self.connection, statement, table.slice(start, stop - start), stop - start)[0][0]
                    pieces += as_type(column, kind.arrow).chunks
                except VALUE_ERRORS:
                    if stop - start == 1:
                        self.counters.expression_errors += 1
                        pieces.append(null)
                    else:
                        middle = (start + stop) // 2
                        waiting += [(middle, stop), (start, middle)]
        finally:
            drop(self.connection, statement)
        return pa.chunked_array(pieces, kind.arrow)


def plan_error(problem: duckdb.Error, exprs: Sequence[str], predicate: str | None) -> Exception:
    """The error of a plan whose expressions DuckDB does not accept at all."""
    where = [] if predicate is None else [f"predicate: {predicate}"]
    return error(
        "INTERNAL_ERROR",
        "an expression of the compiled plan is not valid",
        detail=f"{problem}\n" + "\n".join([*exprs, *where]),
    )
