"""DuckDB as the oracle of types: what type an expression has, and whether a constant is valid.

DuckDB runs the expressions of views, so its own answer can't deviate from what happens there.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import duckdb
import pyarrow as pa

from watersmeet.errors import again
from watersmeet.system import duckdbs
from watersmeet.values.types import (
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


#: DuckDB's types that SQL authors know by another name.
_EXACT: Final[dict[str, SqlType | None]] = {
    **_SCALARS,
    "ubigint": SqlType("numeric", 38, 0), "hugeint": SqlType("numeric", 38, 0), "uhugeint": SqlType("numeric", 38, 0),
    "bignum": None, "timestamp_s": None, "timestamp_ms": None, "timestamp_ns": None, "sqlnull": None,
}  # fmt: skip


def sql_type(kind: Any, *, exact: bool = False) -> SqlType | None:
    """The SQL type for a type object of DuckDB's Python client, None if there is none.

    It is the one that an author of SQL sees: any decimal is `numeric`, and the expression has yet to be cast to it.
    exact: the one whose values DuckDB gives without a cast, with the digits of decimals.
    """
    if str(kind).upper() == "JSON":
        return JSONB
    name = str(kind.id).lower()
    if name == "list":
        element = sql_type(kind.children[0][1], exact=exact)
        return None if element is None else SqlType("array", element=element)
    if name == "struct":
        fields = [(str(n), sql_type(k, exact=exact)) for n, k in kind.children]
        known = tuple((n, k) for n, k in fields if k is not None and n)  # list_zip's have no names
        return SqlType("struct", fields=known) if len(known) == len(fields) else None
    if exact and name == "decimal":
        digits = dict(kind.children)
        return SqlType("numeric", digits["precision"], digits["scale"])
    return (_EXACT if exact else _SCALARS).get(name)


@contextmanager
def _readable() -> Iterator[None]:
    """An error of DuckDB for one whose message was cut within a character, so that Python can't read it."""
    try:
        yield
    except UnicodeDecodeError:
        raise duckdb.InvalidInputException("Invalid Input Error: a text is malformed") from None


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
            self._connection = duckdbs.connect(memory_limit="200MB", external_access=self._external_access)
        return self._connection

    def type_of(self, sql: str) -> tuple[SqlType | None, str]:
        """The type of a DuckDB expression without columns, and DuckDB's name of it; raises duckdb.Error."""
        kind = self._asked(sql)
        return sql_type(kind), str(kind)

    def exact_type_of(self, sql: str) -> SqlType | None:
        """The type of the values of a DuckDB expression, which may have a FROM; None if it is none of ours or fails."""
        try:
            return sql_type(self._asked(sql), exact=True)
        except duckdb.Error:
            return None

    def _asked(self, sql: str) -> Any:
        """DuckDB's own type; raises duckdb.Error."""
        with self._lock:
            found = self._types.get(sql)
            if found is None:
                try:
                    found = self._connect().sql(f"SELECT {sql}").types[0]
                except duckdb.Error as err:
                    found = err
                self._types[sql] = found
                if len(self._types) > _CACHED:
                    self._types.popitem(last=False)
        if isinstance(found, duckdb.Error):
            raise again(found)
        return found

    def constant(self, sql: str) -> Any:
        """The value of a DuckDB expression without columns; raises duckdb.Error, also if Python can't hold it."""
        with self._lock, _readable():
            try:
                row = self._connect().execute(f"SELECT {sql}").fetchone()
            except OverflowError as cause:  # an interval of more days than a timedelta has
                raise duckdb.OutOfRangeException(f"Out of Range Error: {cause}") from None
        assert row is not None
        return row[0]

    def arrow_constant(self, sql: str) -> pa.Scalar:
        """The same in Arrow, which keeps the parts of intervals."""
        with self._lock, _readable():
            return self._connect().execute(f"SELECT {sql}").to_arrow_table().column(0)[0]

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
