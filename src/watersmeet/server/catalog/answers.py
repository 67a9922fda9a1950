"""Answers of the catalog to one client."""

from __future__ import annotations

import datetime as dt
import re
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Final

import duckdb
import pyarrow as pa
from sqlglot import exp

from watersmeet import duckdbs
from watersmeet.errors import Error, error
from watersmeet.kernel.evaluation.duck import rows_of
from watersmeet.server.catalog.kept import CatalogTables, may_signal, put
from watersmeet.server.catalog.privileges import TRUSTED_OID, role_oid
from watersmeet.server.catalog.queries import duckdb_sql
from watersmeet.server.catalog.tables import DATABASE_OID
from watersmeet.server.clients import Activity
from watersmeet.server.messages import Column
from watersmeet.server.oids import TEXT, TYPES
from watersmeet.types import Field as SqlField
from watersmeet.types import Schema, SqlType
from watersmeet.unparsing import needs_isolation

#: Arrow's types of results: PostgreSQL's numbers of the types, and the SQL type that has their bytes.
_RESULTS: Final[dict[pa.DataType, tuple[int, str]]] = {
    pa.bool_(): (16, "boolean"),
    pa.int8(): (21, "smallint"),
    pa.int16(): (21, "smallint"),
    pa.int32(): (23, "integer"),
    pa.int64(): (20, "bigint"),
    pa.uint8(): (23, "integer"),
    pa.uint16(): (23, "integer"),
    pa.uint32(): (26, "integer"),
    pa.uint64(): (20, "bigint"),
    pa.float32(): (700, "real"),
    pa.float64(): (701, "double precision"),
    pa.string(): (TEXT, "varchar"),
    pa.date32(): (1082, "date"),
    pa.timestamp("us"): (1114, "timestamp"),
    pa.timestamp("us", "UTC"): (1184, "timestamptz"),
    pa.month_day_nano_interval(): (1186, "interval"),
}
_ARRAYS: Final = {26: 1028, TEXT: 1009, **{t.oid: t.array for t in TYPES.values()}}
#: Columns of PostgreSQL's type "char", which clients read as a byte.
_CHARS: Final = frozenset({
    "typtype", "typcategory", "relkind", "relpersistence", "relreplident", "contype", "prokind", "provolatile",
    "attidentity", "attgenerated", "attalign", "attstorage", "deptype", "amtype", "typdelim", "confupdtype",
    "confdeltype", "confmatchtype", "tgenabled",
})  # fmt: skip


#: Columns of PostgreSQL's types int2vector and oidvector, by the numbers of these types.
_VECTORS: Final = {"indkey": 22, "indoption": 22, "indclass": 30, "indcollation": 30, "proargtypes": 30}


#: Columns of PostgreSQL's type name, of which clients read arrays as texts. The number of the type of these arrays.
_NAMES: Final = ("attname", "conname", "nspname", "relname", "typname")
_NAME_ARRAY: Final = 1003


class CatalogAnswers:
    """Answers queries of the catalog for one client (`backend.Backend`)."""

    def __init__(self, client: Any, tables: CatalogTables) -> None:
        self._client = client
        self._tables = tables
        self._of: duckdb.DuckDBPyConnection | None = None
        self._connection: duckdb.DuckDBPyConnection | None = None

    def run(
        self, tree: exp.Query, text: str, *, describes: bool = False
    ) -> tuple[tuple[Column, ...], Schema, pa.Table]:
        """The columns and rows of a query. describes: no rows. FEATURE_NOT_SUPPORTED for what can't be answered."""
        cancellation = self._client.session.cancellation
        sql = cancellation.computing(duckdb_sql, tree.limit(0) if describes else tree, text)
        if cancellation.computing(lambda: needs_isolation(sql, columns_are_small=True)):
            raise error(
                "FEATURE_NOT_SUPPORTED",
                "this query of the catalog could take too much time or memory",
                detail="It has too many joins, is too long, or calls a function that may make large values.",
                sql=text,
            )
        connection = self._connected()
        self._tell(connection, sql)
        acts = not describes and any(word in sql.lower() for word in ("_backend(", "set_config("))
        acting = self._tables.acting(self._client, connection) if acts else nullcontext()
        with acting, cancellation.over(connection):
            try:
                found = rows_of(connection, sql, self._client.session.result_bytes)
            except duckdb.Error as cause:
                raise _failure(cause, text) from cause
        return _typed(found, _bytes_of(tree), _names_of(tree))

    def _connected(self) -> duckdb.DuckDBPyConnection:
        """A connection of this client alone to the tables as it may see them."""
        tables = self._tables.of(self._client)
        if self._connection is None or self._of is not tables:
            self._of, self._connection = tables, duckdbs.another(tables)
        return self._connection

    def _tell(self, connection: duckdb.DuckDBPyConnection, sql: str) -> None:
        """What differs from client to client, where a query asks for it: variables, settings, what all do."""
        client, session = self._client, self._client.session
        path = list(session.path_in(session.catalog)) or ["public"]
        values = {
            "database": client.database,
            "user": client.user if session.role is None else session.role.name,
            "login": client.user,
        }
        values |= {"pid": client.process, "schema": path[0], "path": path, "trusted": session.user is None}
        values["me"] = TRUSTED_OID if session.role is None else role_oid(session.role.name)
        for name, value in values.items():
            connection.execute(f"SET VARIABLE {name} = ?", [value])
        connection.execute("SET VARIABLE started = to_timestamp(?)", [time.time()])
        asked = sql.lower()
        if "current_setting" in asked:
            shown = client.settings.shown()
            connection.execute("SET VARIABLE settings = ?", [list(shown)])
            connection.execute("SET VARIABLE shown = ?", [list(shown.values())])
        if "pg_settings" in asked:
            put(connection, "pg_settings", [_setting(*row) for row in client.settings.rows()])
        if "pg_stat_activity" in asked:
            own = [_activity(a, client.database) for a in client.clients.activity() if may_signal(client, a)]
            put(connection, "pg_stat_activity", own)


def _setting(name: str, value: str, unit: str | None) -> dict[str, Any]:
    row = {"name": name, "setting": value, "unit": unit, "boot_val": value, "reset_val": value}
    return {**row, "category": "Watersmeet", "context": "user", "vartype": "string", "source": "default"}


def _activity(activity: Activity, database: str) -> dict[str, Any]:
    began = dt.datetime.fromtimestamp(activity.began_s, dt.UTC)
    row = {"datid": DATABASE_OID, "datname": database, "pid": activity.process, "usename": activity.user}
    row |= {"usesysid": role_oid(activity.user), "application_name": activity.application, "state": activity.state}
    return {**row, "client_addr": activity.address, "backend_start": began, "backend_type": "client backend"}


#: What macros raise: a condition and a message.
_RAISED: Final = re.compile(r"(UNDEFINED_(?:OBJECT|RELATION)): (.*)")
_FAILURES: Final = (
    (duckdb.InterruptException, "QUERY_CANCELED", "the statement was canceled"),
    (duckdb.OutOfMemoryException, "OUT_OF_MEMORY", "this query of the catalog needs too much memory"),
)


def _failure(cause: duckdb.Error, text: str) -> Error:
    """Why a query of the catalog can't be answered."""
    for kind, condition, message in _FAILURES:
        if isinstance(cause, kind):
            return error(condition, message, sql=text)
    told = str(cause).splitlines()[0]
    if (raised := _RAISED.search(told)) is not None:
        return error(raised[1], raised[2], sql=text)
    return error(
        "FEATURE_NOT_SUPPORTED",
        "this query of the catalog is not supported",
        detail=f"{told}",
        sql=text,
        hint="SHOW and DESCRIBE tell the same in every dialect.",
    )


def _bytes_of(tree: exp.Expression) -> frozenset[str]:
    """The names of columns whose values are single bytes, those that the query calls otherwise among them."""
    names = set(_CHARS)
    while (
        found := {a.alias for a in tree.find_all(exp.Alias) if isinstance(a.this, exp.Column) and a.this.name in names}
        - names
    ):
        names |= found
    return frozenset(names)


def _names_of(tree: exp.Query) -> frozenset[str]:
    """The names of columns whose values are arrays of names: aggregates of a column that holds some."""
    lists = (a for a in tree.selects if isinstance(a, exp.Alias) and isinstance(a.this, exp.ArrayAgg))
    return frozenset(a.alias for a in lists if isinstance(a.this.this, exp.Column) and a.this.this.name in _NAMES)


def _typed(
    found: pa.Table, chars: frozenset[str], names: frozenset[str]
) -> tuple[tuple[Column, ...], Schema, pa.Table]:
    columns, schema, arrays = [], [], []
    for field, values in zip(found.schema, found.columns, strict=True):
        if field.name in _VECTORS and pa.types.is_list(field.type):
            field, values = pa.field(field.name, pa.string()), _vectors(values)  # noqa: PLW2901 - as clients read it
        column, kind = _column(field, chars)
        if field.name in names:
            column = replace(column, oid=_NAME_ARRAY)
        columns.append(column)
        schema.append(SqlField(field.name, kind))
        arrays.append(values if values.type.equals(kind.arrow) else values.cast(kind.arrow))
    numbered = [f"c{i}" for i in range(len(arrays))]
    return tuple(columns), tuple(schema), pa.Table.from_arrays(arrays, names=numbered)


def _vectors(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Numbers with spaces between them."""
    return pa.chunked_array([[None if v is None else " ".join(map(str, v)) for v in values.to_pylist()]], pa.string())


def _column(field: pa.Field, chars: frozenset[str]) -> tuple[Column, SqlType]:
    kind = field.type
    if pa.types.is_list(kind):
        oid, name = _RESULTS.get(kind.value_type, (TEXT, "varchar"))
        return Column(field.name, _ARRAYS[oid]), SqlType("array", element=SqlType(name))
    if pa.types.is_decimal(kind):
        return Column(field.name, 1700), SqlType("numeric", kind.precision, kind.scale)
    if kind == pa.string() and field.name in chars:
        return Column(field.name, 18, 1), SqlType("varchar")
    oid, name = _RESULTS.get(kind, (TEXT, "varchar"))
    oid = _VECTORS.get(field.name, oid) if name == "varchar" else oid
    return Column(field.name, oid, TYPES[name].length if name != "varchar" else -1), SqlType(name)
