"""Writes the algebra as SQL of DuckDB, in which batch queries run."""

from __future__ import annotations

from watersmeet.unparsing.queries import QuerySql, map_duckdb_error, needs_isolation, to_duckdb

__all__ = ["QuerySql", "map_duckdb_error", "needs_isolation", "to_duckdb"]
