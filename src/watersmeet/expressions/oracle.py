"""DuckDB as the oracle of types: what type an expression has, and whether a constant is valid.

DuckDB runs the expressions of views, so its own answer can't deviate from what happens there.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Final

import duckdb

from watersmeet.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    INTERVAL,
    JSONB,
    NUMERIC,
    REAL,
    SMALLINT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    SqlType,
)

_CACHED: Final = 4096

_SCALARS: Final[dict[str, SqlType]] = {
    "boolean": BOOLEAN, "tinyint": SMALLINT, "smallint": SMALLINT, "integer": INTEGER, "bigint": BIGINT,
    "utinyint": SMALLINT, "usmallint": INTEGER, "uinteger": BIGINT, "ubigint": NUMERIC, "hugeint": NUMERIC,
    "uhugeint": NUMERIC, "bignum": NUMERIC, "float": REAL, "double": DOUBLE, "decimal": NUMERIC, "varchar": VARCHAR,
    "blob": BYTEA, "date": DATE, "time": TIME, "timestamp": TIMESTAMP, "timestamp_s": TIMESTAMP,
    "timestamp_ms": TIMESTAMP, "timestamp_ns": TIMESTAMP, "timestamp with time zone": TIMESTAMPTZ,
    "interval": INTERVAL, "uuid": VARCHAR, "json": JSONB, "sqlnull": VARCHAR,
}  # fmt: skip


def sql_type(kind: Any) -> SqlType | None:
    """The SQL type for a type object of DuckDB's Python client, None if there is none."""
    if str(kind).upper() == "JSON":
        return JSONB
    name = str(kind.id).lower()
    if name == "list":
        element = sql_type(kind.children[0][1])
        return None if element is None else SqlType("array", element=element)
    if name == "struct":
        fields = [(str(n), sql_type(k)) for n, k in kind.children]
        known = tuple((n, k) for n, k in fields if k is not None)
        return SqlType("struct", fields=known) if len(known) == len(fields) else None
    return _SCALARS.get(name)


class Oracle:
    """One in-memory DuckDB connection and its answers, which never change. Safe for threads.

    external_access: whether it may look at files, for `columns_of`.
    """

    def __init__(self, *, external_access: bool = False) -> None:
        self._external_access = external_access
        self._lock = threading.Lock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._types: OrderedDict[str, Any] = OrderedDict()
        self._functions: dict[str, tuple[str, str]] | None = None

    def _connect(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            self._connection = duckdb.connect(
                config={
                    "threads": 1,
                    "memory_limit": "200MB",
                    "enable_external_access": self._external_access,
                    "autoinstall_known_extensions": False,
                    "autoload_known_extensions": False,
                }
            )
            self._connection.execute("SET TimeZone = 'UTC'")
            self._connection.execute("SET lock_configuration = true")
        return self._connection

    def type_of(self, sql: str) -> tuple[SqlType | None, str]:
        """The type of a DuckDB expression without columns, and DuckDB's name of it; raises duckdb.Error."""
        with self._lock:
            found = self._types.get(sql)
            if found is None:
                try:
                    kind = self._connect().sql(f"SELECT {sql}").types[0]
                    found = (sql_type(kind), str(kind))
                except duckdb.Error as err:
                    found = err
                self._types[sql] = found
                if len(self._types) > _CACHED:
                    self._types.popitem(last=False)
        if isinstance(found, duckdb.Error):
            raise found
        result: tuple[SqlType | None, str] = found
        return result

    def constant(self, sql: str) -> Any:
        """The value of a DuckDB expression without columns; raises duckdb.Error."""
        with self._lock:
            row = self._connect().execute(f"SELECT {sql}").fetchone()
        assert row is not None
        return row[0]

    def columns_of(self, source: str) -> list[tuple[str, SqlType | None, str]]:
        """The columns of an item of FROM: name, type, DuckDB's name of the type; raises duckdb.Error. Not kept."""
        with self._lock:
            found = self._connect().sql(f"SELECT * FROM {source}")
            return [(n, sql_type(t), str(t)) for n, t in zip(found.columns, found.types, strict=True)]

    def functions(self) -> dict[str, tuple[str, str]]:
        """DuckDB's functions by name: kind (scalar, aggregate, table, macro …) and stability."""
        with self._lock:
            if self._functions is None:
                rows = (
                    self._connect()
                    .execute(
                        "SELECT function_name, min(function_type), max(coalesce(stability, 'CONSISTENT')) "
                        "FROM duckdb_functions() GROUP BY 1"
                    )
                    .fetchall()
                )
                self._functions = {name: (kind, stability) for name, kind, stability in rows}
            return self._functions


ORACLE: Final = Oracle()
