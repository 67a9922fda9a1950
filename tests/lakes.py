"""DuckDB as a reader of lakes: its extensions come as packages."""

from __future__ import annotations

import importlib
from pathlib import Path

import duckdb


def duckdb_with(*extensions: str) -> duckdb.DuckDBPyConnection:
    """A connection with these extensions."""
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for name in extensions:
        (folder,) = importlib.import_module(f"duckdb_extension_{name}").__path__
        (file,) = Path(folder).rglob("*.duckdb_extension")
        connection.execute(f"LOAD '{file}'")
    return connection
