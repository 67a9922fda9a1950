"""TPC-H's tables by DuckDB's generator, and its queries as `examples/tpch` has them."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import duckdb_extension_tpch
import pyarrow as pa

EXAMPLES = Path(__file__).parents[2] / "examples" / "tpch"
SCHEMA = (EXAMPLES / "tables.sql").read_text(encoding="utf-8")
#: In the order in which foreign keys want them.
TABLES = tuple(re.findall(r"CREATE TABLE (\w+)", SCHEMA))
QUERIES = {int(path.stem[1:]): path.read_text(encoding="utf-8") for path in sorted(EXAMPLES.glob("q*.sql"))}


def generated(scale: float) -> duckdb.DuckDBPyConnection:
    """A DuckDB of its own with the eight tables at a scale factor.

    With few suppliers the generator gives a part the same supplier twice: the second goes, as the key wants it.
    """
    [extension] = Path(duckdb_extension_tpch.__file__).parent.rglob("*.duckdb_extension")
    connection = duckdb.connect(config={"allow_unsigned_extensions": True})
    connection.execute(f"LOAD '{extension}'")
    connection.execute(f"CALL dbgen(sf = {scale}, suffix = '_made')")
    for table in TABLES:  # without the constraints, so that tests may write NULLs
        connection.execute(f"CREATE TABLE {table} AS SELECT * FROM {table}_made; DROP TABLE {table}_made")
    connection.execute(
        "DELETE FROM partsupp WHERE rowid NOT IN (SELECT min(rowid) FROM partsupp GROUP BY ps_partkey, ps_suppkey)"
    )
    return connection


def content(connection: duckdb.DuckDBPyConnection) -> dict[str, pa.Table]:
    """All tables, by name, each in the order of its first columns: the same bytes at every call."""
    return {t: connection.execute(f"SELECT * FROM {t} ORDER BY ALL").to_arrow_table() for t in TABLES}
