"""Opens all in-memory databases of DuckDB.

By default DuckDB uses all cores and most of the memory, installs extensions on demand, reads variables of Python as
tables and shows progress on the terminal. These connections do none of this, and compute in UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import duckdb
import pyarrow as pa

#: The column with the order of arrival of rows.
ARRIVAL: Final = "?arrival"

_SHUT: Final = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
}

#: A string of JSON.
JSON_STRING: Final = r'"(?:[^"\\]|\\.)*"'

#: (pattern, replacement) in sequence, for jsonb as PostgreSQL prints it: remove white space outside strings, add
#: blanks, remove the last blank. Matches of the second pattern are adjacent, so that none begins within a string.
JSON_BLANKS: Final = (
    (rf"({JSON_STRING})|[ \t\r\n]+", r"\1"),
    (rf'((?:{JSON_STRING}|[^",:])*)([,:]|$)', r"\1\2 "),
    (" +$", ""),
)


def spaced_sql(text: str) -> str:
    """SQL for the text of a jsonb with PostgreSQL's blanks."""
    for pattern, replacement in JSON_BLANKS:
        text = f"regexp_replace({text}, '{pattern}', '{replacement}', 'g')"
    return text


#: The macro of `document ->> path`: of a string its content, of other members the text of jsonb.
JSON_TEXT: Final = "__internal_jsonb_text"

_MEMBER: Final = "json_extract_string(document, path)"
_TEXT_MACRO: Final = (
    f"CREATE MACRO {JSON_TEXT}(document, path) AS CASE WHEN NOT (starts_with({_MEMBER}, '{{') OR "
    f"starts_with({_MEMBER}, '[')) OR json_type(json_extract(document, path)) = 'VARCHAR' THEN {_MEMBER} "
    f"ELSE {spaced_sql(_MEMBER)} END"
)

#: Optimizers that are never used. The deliminator lets EXISTS over an inequality with an outer column compare that
#: column with itself, and evaluates failing expressions for unneeded rows. No query of TPC-H is slower without it.
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

    memory_limit: in DuckDB's form, `512MB`. spill_directory: for rows beyond this limit; without it, such a query
    fails. keeps_order: whether rows without ORDER BY keep the order of their input. external_access: whether SQL may
    read files and the network. optimizers: the only ones used; None for all. join_filters: whether joins filter one
    side by the keys of the other; not for SQL of clients, because DuckDB also filters below LIMIT and DISTINCT ON,
    which changes the result (its issues 21757 and 22924). locked: whether settings can't change later.
    """
    config: dict[str, Any] = {
        **_SHUT,
        "threads": threads,
        "memory_limit": memory_limit,
        "temp_directory": spill_directory,
        "preserve_insertion_order": keeps_order,
        "order_by_non_integer_literal": True,  # in an aggregate it has no effect, as in PostgreSQL
    }
    connection = duckdb.connect(":memory:", config=config)
    _quiet(connection)
    off = [*_WRONG] if join_filters else [*_WRONG, "join_filter_pushdown"]
    if optimizers is not None:
        names = [name for (name,) in connection.execute("SELECT name FROM duckdb_optimizers()").fetchall()]
        off += [name for name in names if name not in optimizers]
    connection.execute(_TEXT_MACRO)
    if off:
        connection.execute(f"SET disabled_optimizers = '{','.join(off)}'")
    if not external_access:
        connection.execute("SET enable_external_access = false")  # last: it forbids setting the directory
    if locked:
        connection.execute("SET lock_configuration = true")
    return connection


def another(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """A further connection to a connection's database, for another thread."""
    made = connection.cursor()
    _quiet(made)
    return made


def first_rows(result: duckdb.DuckDBPyConnection, most_rows: int) -> pa.Table:
    """The rows of a result, or at least `most_rows` + 1 of them. A reader returns few rows sooner than
    `to_arrow_table`.
    """
    reader = result.to_arrow_reader(most_rows + 1)
    batches, count = [], 0
    for batch in reader:
        batches.append(batch)
        count += batch.num_rows
        if count > most_rows:
            break
    return pa.Table.from_batches(batches, reader.schema)


def _quiet(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET enable_progress_bar = false")


def arrival_view(name: str) -> str:
    """The name of the view of an append-only relation that also has the column `ARRIVAL`."""
    return f"?arrival {name}"
