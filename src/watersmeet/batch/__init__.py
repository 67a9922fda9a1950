"""Bounded queries: from a parsed query to DuckDB SQL over the current content.

Scalars go through the same readers as in views, so that a query over tables and a view over them compute alike.
Everything else that DuckDB can do keeps its shape.
"""

from __future__ import annotations

from watersmeet.batch.failures import map_duckdb_error
from watersmeet.batch.translate import to_duckdb

__all__ = ["map_duckdb_error", "to_duckdb"]
