"""The process's own DuckDB: one thread, no files, no network, UTC.

DuckDB's defaults take all cores and most of the memory, in every worker, and let SQL text
read files. An expression may do neither.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any, Final

import duckdb
import pyarrow as pa

from watersmeet.types import SqlType

_SHARE: Final = 0.4
_LEAST_MEMORY_BYTES: Final = 256 << 20

#: What planning an expression needs: the others cost a fifth of a short statement's time.
_OPTIMIZERS: Final = ("expression_rewriter", "common_subexpressions", "reorder_filter")

#: The Arrow extension under which DuckDB takes a string column as JSON without parsing it again.
_JSON: Final = {b"ARROW:extension:name": b"arrow.json", b"ARROW:extension:metadata": b""}


def memory_share_bytes() -> int:
    """This process's part of the machine's memory, if as many work as there are cores."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(_LEAST_MEMORY_BYTES, int(total * _SHARE / (os.cpu_count() or 1)))


def connect(memory_limit_bytes: int | None = None) -> duckdb.DuckDBPyConnection:
    """A connection to a new in-memory database that can reach nothing outside itself."""
    config: dict[str, Any] = {
        "threads": 1,
        "memory_limit": f"{memory_limit_bytes or memory_share_bytes()}B",
        "temp_directory": os.path.join(tempfile.gettempdir(), f"watersmeet-duckdb-{os.getpid()}"),
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "python_enable_replacements": "false",
    }
    connection = duckdb.connect(":memory:", config=config)
    connection.execute("SET TimeZone = 'UTC'")
    names = [name for (name,) in connection.execute("SELECT name FROM duckdb_optimizers()").fetchall()]
    off = ",".join(name for name in names if name not in _OPTIMIZERS)
    connection.execute(f"SET disabled_optimizers = '{off}'")
    connection.execute("SET enable_external_access = false")  # after the temporary directory, which it would refuse
    connection.execute("SET lock_configuration = true")
    return connection


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
