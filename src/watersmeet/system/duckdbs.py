"""DuckDB in memory: the one place where connections are made.

DuckDB's defaults take all cores and most of the memory, in every process, install what a query asks for, read Python's
variables by their names and show progress on the screen. A connection made here does none of that, and computes in UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import duckdb

#: The column that says in which order rows came.
ARRIVAL: Final = "?arrival"

_SHUT: Final = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
}

#: Optimizers that are never used. The deliminator makes EXISTS over an inequality with an outer column compare that
#: column with itself, and evaluates failing expressions for rows that no outer row asks for. None of TPC-H's queries is
#: slower without it.
_WRONG: Final = ("deliminator",)


def connect(
    *,
    memory_limit: str,
    threads: int = 1,
    spill_directory: str = "",
    keeps_order: bool = True,
    external_access: bool = False,
    optimizers: Sequence[str] | None = None,
    join_filters: bool = True,
    locked: bool = True,
) -> duckdb.DuckDBPyConnection:
    """A connection to a new database in memory.

    memory_limit: as DuckDB writes it, `512MB`. spill_directory: where rows go that exceed it; none: a query
    fails then. keeps_order: whether rows without ORDER BY keep the order of their input.
    external_access: whether SQL may read files and the network. optimizers: all that planning does; None: everything.
    join_filters: whether what a join reads is filtered by the keys of its other side. DuckDB does so below LIMIT and
    DISTINCT ON, too, where other rows then come out (its issues 21757 and 22924): so not for SQL that clients wrote.
    locked: no setting can be changed later.
    """
    config: dict[str, Any] = {
        **_SHUT,
        "threads": threads,
        "memory_limit": memory_limit,
        "temp_directory": spill_directory,
        "preserve_insertion_order": keeps_order,
        "order_by_non_integer_literal": True,  # of an aggregate: it changes nothing, and is no error in PostgreSQL
    }
    connection = duckdb.connect(":memory:", config=config)
    _quiet(connection)
    off = [*_WRONG] if join_filters else [*_WRONG, "join_filter_pushdown"]
    if optimizers is not None:
        names = [name for (name,) in connection.execute("SELECT name FROM duckdb_optimizers()").fetchall()]
        off += [name for name in names if name not in optimizers]
    if off:
        connection.execute(f"SET disabled_optimizers = '{','.join(off)}'")
    if not external_access:
        connection.execute("SET enable_external_access = false")  # after the spill directory, which it would refuse
    if locked:
        connection.execute("SET lock_configuration = true")
    return connection


def another(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """A further connection to the database of one, for another thread."""
    made = connection.cursor()
    _quiet(made)
    return made


def _quiet(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET enable_progress_bar = false")


def arrival_view(name: str) -> str:
    """The name of the view of a relation `name`, whose rows only come, that has the column `ARRIVAL` as well."""
    return f"?arrival {name}"
