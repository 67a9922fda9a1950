"""The algebra as SQL of DuckDB: how queries that end are run."""

from __future__ import annotations

from watersmeet.unparsing.failures import map_duckdb_error
from watersmeet.unparsing.queries import to_duckdb

__all__ = ["map_duckdb_error", "to_duckdb"]
