"""The process's own DuckDB for expressions (one thread, no files, no network, UTC), and its prepared statements."""

from __future__ import annotations

import itertools
import os
import re
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa

from watersmeet.errors import Error, error
from watersmeet.kernel.arrays.columns import fixed, no_rows
from watersmeet.kernel.evaluation.functioncalls import functions_of, interrupt, registered, stopped_in
from watersmeet.system import duckdbs
from watersmeet.system.process import cores, memory_bytes
from watersmeet.values.types import SqlType

_SHARE: Final = 0.4
_LEAST_MEMORY_BYTES: Final = 256 << 20

#: The optimizers that expressions need. The others would take a fifth of a short statement's time.
#: "expression_rewriter" is not used: it removes errors (`n + 1 > 10` becomes `n > 9`), and then a row's value depends
#: on whether another row fails.
_OPTIMIZERS: Final = ("common_subexpressions", "reorder_filter")

#: The time that an interrupted query has to end before it is interrupted again.
_INTERRUPT_S: Final = 0.05

#: The number of rows counted at a time of a result whose size is limited.
_BATCH_ROWS: Final = 1 << 16

#: The Arrow extension type that DuckDB reads as JSON without parsing it again.
_JSON: Final = {b"ARROW:extension:name": b"arrow.json", b"ARROW:extension:metadata": b""}


def memory_share_bytes() -> int:
    """This process's share of the machine's memory if every core runs a process."""
    return max(_LEAST_MEMORY_BYTES, int(memory_bytes() * _SHARE / cores()))


def connect(
    memory_limit_bytes: int | None = None, *, optimizers: Sequence[str] = _OPTIMIZERS
) -> duckdb.DuckDBPyConnection:
    """A connection for expressions, to a new in-memory database without access to anything outside."""
    return duckdbs.connect(
        memory_limit=f"{memory_limit_bytes or memory_share_bytes()}B",
        spill_directory=os.path.join(tempfile.gettempdir(), f"watersmeet-duckdb-{os.getpid()}"),
        optimizers=optimizers,
    )


def rows_of(connection: duckdb.DuckDBPyConnection, sql: str, most_bytes: int = 0) -> pa.Table:
    """The rows of a query that may take long. Raises RESULT_LIMIT above `most_bytes`, unless that is 0, and
    duckdb.Error.

    Ctrl-C ends the query at once, and the connection stays usable. In the main thread, which receives the signals, the
    query runs in another thread: DuckDB handles signals only until the first rows exist, and would then leave the query
    half done.
    """
    if threading.current_thread() is not threading.main_thread():
        return _rows(connection, sql, most_bytes)
    found: list[pa.Table] = []
    failures: list[BaseException] = []
    begun, ended, given_up = threading.Event(), threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        try:
            if not given_up.is_set():
                found.append(_rows(connection, sql, most_bytes))
        except BaseException as cause:
            failures.append(cause)
        ended.set()

    try:
        threading.Thread(target=run, name="watersmeet-select", daemon=True).start()
        ended.wait()  # not `join`: if interrupted, Python would regard the thread as ended
    except BaseException:
        given_up.set()  # a thread that only starts now does nothing
        while begun.is_set() and not ended.is_set():
            interrupt(connection)  # repeatedly, because a query that is about to start resets the interruption
            ended.wait(_INTERRUPT_S)
        raise
    if failures:
        raise failures[0]
    return found[0]


def _rows(connection: duckdb.DuckDBPyConnection, sql: str, most_bytes: int) -> pa.Table:
    with registered(connection, sql) as known:
        try:
            result = connection.execute(known)
            if not most_bytes:
                return result.to_arrow_table()
            return _limited(result, most_bytes)
        except duckdb.InvalidInputException as cause:
            raise stopped_in(cause) or cause from cause
        except OSError as cause:  # as Arrow reports an interruption between two batches
            raise duckdb.InterruptException(str(cause)) if "INTERRUPT" in str(cause) else cause from cause


def _limited(result: duckdb.DuckDBPyConnection, most_bytes: int) -> pa.Table:
    reader = result.to_arrow_reader(_BATCH_ROWS)
    batches: list[pa.RecordBatch] = []
    left = most_bytes
    for batch in reader:
        left -= batch.nbytes
        if left < 0:
            raise too_large(most_bytes)
        batches.append(batch)
    return pa.Table.from_batches(batches, reader.schema)


def too_large(most_bytes: int) -> Error:
    """The error RESULT_LIMIT."""
    return error(
        "RESULT_LIMIT",
        "the result is too large",
        detail=f"It may have {most_bytes} bytes here.",
        hint="Ask for fewer rows or columns, or set max_result_size.",
    )


def is_interrupt(cause: BaseException) -> bool:
    """Whether an error means Ctrl-C, for which DuckDB raises its own class."""
    return isinstance(cause, KeyboardInterrupt) or (
        isinstance(cause, RuntimeError) and isinstance(cause.__cause__, KeyboardInterrupt)
    )


class Source:
    """A named input of prepared statements, read by DuckDB at each execution."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.table = no_rows(schema)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


def input_field(name: str, kind: SqlType) -> pa.Field:
    """The Arrow field under which DuckDB sees a column of `kind` as `kind.duckdb`."""
    return pa.field(name, _marked(kind), metadata=_JSON if kind.name == "jsonb" else None)


def _marked(kind: SqlType) -> pa.DataType:
    if kind.element is not None:
        return pa.list_(input_field("item", kind.element))
    if kind.name == "struct":
        return pa.struct([input_field(name, inner) for name, inner in kind.fields])
    return kind.arrow


def as_type(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """`column` with exactly the type `kind`; DuckDB's lists have another name for their items."""
    if str(column.type) == str(kind):
        return column
    return column.cast(kind)


#: Errors caused by a row's values: an unknown time zone is "not implemented", an invalid escape character of LIKE a
#: "syntax error". All other errors are defects of the plan or of the machine. UnicodeDecodeError occurs when DuckDB
#: cuts its message within a character.
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
    """A prepared statement. It reads the columns `reads` of its input; if it filters rows, it also returns their
    positions.
    """

    name: str
    source: Source
    reads: tuple[int, ...]
    numbered: bool


def cast_to(sql: str, kind: SqlType) -> str:
    """The expression, cast to `kind`."""
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
    functions_of(connection).register(*items, predicate or "")
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
    """The statement's columns for `table` of `count` rows, and the positions of the kept rows if it filters them."""
    arrays = [table.column(i) for i in statement.reads]
    if len(statement.source.schema) > len(arrays):
        arrays.append(pa.chunked_array([fixed(np.arange(count, dtype=np.int64), pa.int64())]))
    statement.source.table = pa.Table.from_arrays(arrays, schema=statement.source.schema)
    try:
        result = connection.execute(f"EXECUTE statement{statement.name}").to_arrow_table()
    finally:
        statement.source.table = no_rows(statement.source.schema)
    columns = result.columns
    rows = columns.pop().to_numpy() if statement.numbered else None
    return columns, rows


def drop(connection: duckdb.DuckDBPyConnection, statement: Statement) -> None:
    """Frees the statement."""
    connection.execute(f"DEALLOCATE statement{statement.name}")
    connection.unregister(f"input{statement.name}")


def plan_error(problem: duckdb.Error, exprs: Sequence[str], predicate: str | None) -> Exception:
    """The error for a plan whose expressions DuckDB rejects."""
    where = [] if predicate is None else [f"predicate: {predicate}"]
    return error(
        "INTERNAL_ERROR",
        "an expression of the compiled plan is not valid",
        detail=f"{problem}\n" + "\n".join([*exprs, *where]),
    )
