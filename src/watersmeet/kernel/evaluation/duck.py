"""The process's own DuckDB for expressions: one thread, no files, no network, UTC."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Sequence
from typing import Final

import duckdb
import pyarrow as pa

from watersmeet import duckdbs
from watersmeet.errors import Error, error
from watersmeet.machine import cores, memory_bytes
from watersmeet.types import SqlType

_SHARE: Final = 0.4
_LEAST_MEMORY_BYTES: Final = 256 << 20

#: What planning an expression needs: the others cost a fifth of a short statement's time. Not "expression_rewriter": it
#: takes errors away (`n + 1 > 10` becomes `n > 9`), and then a row's value depends on whether another row fails.
_OPTIMIZERS: Final = ("common_subexpressions", "reorder_filter")

#: How long an interrupted query has to end before it is told again.
_INTERRUPT_S: Final = 0.05

#: So many rows of a result are counted at once where it may have a certain size.
_BATCH_ROWS: Final = 1 << 16

#: The Arrow extension under which DuckDB takes a string column as JSON without parsing it again.
_JSON: Final = {b"ARROW:extension:name": b"arrow.json", b"ARROW:extension:metadata": b""}


def memory_share_bytes() -> int:
    """This process's part of the machine's memory, if as many work as there are cores."""
    return max(_LEAST_MEMORY_BYTES, int(memory_bytes() * _SHARE / cores()))


def connect(
    memory_limit_bytes: int | None = None, *, optimizers: Sequence[str] = _OPTIMIZERS
) -> duckdb.DuckDBPyConnection:
    """A connection for expressions, to a new in-memory database that can reach nothing outside itself."""
    return duckdbs.connect(
        memory_limit=f"{memory_limit_bytes or memory_share_bytes()}B",
        spill_directory=os.path.join(tempfile.gettempdir(), f"watersmeet-duckdb-{os.getpid()}"),
        optimizers=optimizers,
    )


def rows_of(connection: duckdb.DuckDBPyConnection, sql: str, most_bytes: int = 0) -> pa.Table:
    """The rows of a query that may take long; at most so many bytes of them, unless that is 0: RESULT_LIMIT.

    Ctrl-C ends it at once, and the connection serves on; raises duckdb.Error.

    DuckDB looks for signals until the first rows are there, not while it makes the others, and leaves the query half
    done. So in the main thread, which gets the signals, another thread runs it.
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
        ended.wait()  # not `join`: Python takes a thread whose `join` was interrupted for one that has ended
    except BaseException:
        given_up.set()  # a thread that begins after this does nothing
        while begun.is_set() and not ended.is_set():
            connection.interrupt()  # again and again: a query that is about to begin forgets it
            ended.wait(_INTERRUPT_S)
        raise
    if failures:
        raise failures[0]
    return found[0]


def _rows(connection: duckdb.DuckDBPyConnection, sql: str, most_bytes: int) -> pa.Table:
    result = connection.execute(sql)
    if not most_bytes:
        return result.to_arrow_table()
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
    """RESULT_LIMIT."""
    return error(
        "RESULT_LIMIT",
        "the result is too large",
        detail=f"It may have {most_bytes} bytes here.",
        hint="Ask for fewer rows or columns, or set max_result_size.",
    )


def is_interrupt(cause: BaseException) -> bool:
    """Whether an error stands for Ctrl-C: DuckDB raises one of its own then."""
    return isinstance(cause, KeyboardInterrupt) or (
        isinstance(cause, RuntimeError) and isinstance(cause.__cause__, KeyboardInterrupt)
    )


class Source:
    """A named input of prepared statements: DuckDB asks it for the rows anew at each execution."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.table = schema.empty_table()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


def input_field(name: str, kind: SqlType) -> pa.Field:
    """The Arrow field under which DuckDB sees a column of `kind` as `kind.duckdb`."""
    return pa.field(name, _marked(kind), metadata=_JSON if kind.name == "jsonb" else None)


def _marked(kind: SqlType) -> pa.DataType:
    if kind.name == "array":
        assert kind.element is not None
        return pa.list_(input_field("item", kind.element))
    if kind.name == "struct":
        return pa.struct([input_field(name, inner) for name, inner in kind.fields])
    return kind.arrow


def as_type(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """`column` with exactly the type `kind`: DuckDB names the items of lists otherwise."""
    if str(column.type) == str(kind):
        return column
    return column.cast(kind)
