"""Answers of the catalog to one client."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import duckdb
import pyarrow as pa
from sqlglot import exp

from watersmeet import duckdbs
from watersmeet.catalog import Catalog
from watersmeet.errors import Error, error
from watersmeet.server.catalog.functions import definitions
from watersmeet.server.catalog.queries import duckdb_sql
from watersmeet.server.catalog.tables import OWNER, SHAPES, filled
from watersmeet.server.messages import Column
from watersmeet.server.oids import TEXT, TYPES
from watersmeet.types import Field as SqlField
from watersmeet.types import Schema, SqlType

#: The number of the one database that there is.
_DATABASE: Final = 5
_MEMORY: Final = "256MB"

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


class CatalogTables:
    """The tables of a catalog in DuckDB, made anew when the catalog has changed. For several threads."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._seen: Catalog | None = None

    def connection(self, catalog: Catalog) -> duckdb.DuckDBPyConnection:
        """The connection, with the tables of a catalog. The caller holds the lock."""
        if self._connection is None:
            self._connection = duckdbs.connect(memory_limit=_MEMORY, locked=False)
            self._connection.execute("CREATE SCHEMA pg_catalog_")
            self._connection.execute("CREATE SCHEMA information_schema_")
        made = self._connection
        if self._seen is None or self._seen.relations is not catalog.relations or self._seen.version != catalog.version:
            first = self._seen is None
            for (schema, name), table in filled(catalog).items():
                made.register("rows_", table)
                made.execute(f"CREATE OR REPLACE TABLE {schema}_.{name} AS SELECT * FROM rows_")
                made.unregister("rows_")
            if first:
                for statement in definitions():
                    made.execute(statement)
            self._seen = catalog
        return made

    def close(self) -> None:
        """Gives everything back."""
        with self.lock:
            if self._connection is not None:
                self._connection.close()


class CatalogAnswers:
    """Answers queries of the catalog for one client (`backend.Backend`)."""

    def __init__(self, client: Any, tables: CatalogTables) -> None:
        self._client = client
        self._tables = tables

    def run(
        self, tree: exp.Expression, text: str, limit: int | None = None
    ) -> tuple[tuple[Column, ...], Schema, pa.Table]:
        """The columns and rows of a query; at most `limit` rows. FEATURE_NOT_SUPPORTED for what can't be answered."""
        sql = duckdb_sql(tree, text)
        with self._tables.lock:
            connection = self._tables.connection(self._client.session.catalog)
            self._tell(connection)
            try:
                if limit is not None:
                    sql = f"SELECT * FROM ({sql}) AS q_ LIMIT {limit}"
                found = connection.execute(sql).to_arrow_table()
            except duckdb.Error as cause:
                raise _failure(cause, text) from cause
        return _typed(found, _bytes_of(tree))

    def _tell(self, connection: duckdb.DuckDBPyConnection) -> None:
        """What differs from client to client: variables, the databases and roles there are, and the settings."""
        client = self._client
        path = list(client.session.path_in(client.session.catalog)) or ["public"]
        values = {"database": client.database, "user": client.user, "pid": client.process, "schema": path[0]}
        for name, value in values.items():
            connection.execute(f"SET VARIABLE {name} = ?", [value])
        connection.execute("SET VARIABLE path = ?", [path])
        connection.execute("SET VARIABLE started = to_timestamp(?)", [time.time()])
        database = {"oid": _DATABASE, "datname": client.database, "datdba": OWNER, "encoding": 6}
        database |= {"datlocprovider": "c", "datistemplate": False, "datallowconn": True, "datconnlimit": -1}
        database |= {"datcollate": "C", "datctype": "C", "dattablespace": 1663}
        role = {"rolname": client.user, "oid": OWNER, "rolsuper": False, "rolinherit": True, "rolcreaterole": False}
        role |= {"rolcreatedb": False, "rolcanlogin": True, "rolreplication": False, "rolconnlimit": -1}
        user = {"usename": client.user, "usesysid": OWNER, "usecreatedb": False, "usesuper": False}
        activity = {"datid": _DATABASE, "datname": client.database, "pid": client.process, "usename": client.user}
        settings = [
            {
                "name": n,
                "setting": v,
                "category": "Watersmeet",
                "context": "user",
                "vartype": "string",
                "source": "default",
            }
            for n, v in client.settings.rows()
        ]
        for name, rows in {
            "pg_database": [database],
            "pg_roles": [{**role, "rolbypassrls": False}],
            "pg_user": [user],
            "pg_stat_activity": [{**activity, "state": "active"}],
            "pg_settings": settings,
        }.items():
            table = pa.Table.from_pylist(rows, pa.schema(list(SHAPES["pg_catalog", name].items())))
            connection.register("rows_", table)
            connection.execute(f"CREATE OR REPLACE TABLE pg_catalog_.{name} AS SELECT * FROM rows_")
            connection.unregister("rows_")


def _failure(cause: duckdb.Error, text: str) -> Error:
    """Why a query of the catalog can't be answered."""
    told = str(cause).splitlines()[0]
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


def _typed(found: pa.Table, chars: frozenset[str]) -> tuple[tuple[Column, ...], Schema, pa.Table]:
    columns, schema, arrays = [], [], []
    for field, values in zip(found.schema, found.columns, strict=True):
        if field.name in _VECTORS and pa.types.is_list(field.type):
            field, values = pa.field(field.name, pa.string()), _vectors(values)  # noqa: PLW2901 - as clients read it
        column, kind = _column(field, chars)
        columns.append(column)
        schema.append(SqlField(field.name, kind))
        arrays.append(values if values.type.equals(kind.arrow) else values.cast(kind.arrow))
    names = [f"c{i}" for i in range(len(arrays))]
    return tuple(columns), tuple(schema), pa.Table.from_arrays(arrays, names=names)


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
