"""The catalog's tables in DuckDB, kept until the catalog changes, and the answers from them to each client."""

from __future__ import annotations

import datetime as dt
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Final

import duckdb
import pyarrow as pa
from sqlglot import exp

from watersmeet.catalog import Catalog, NumberSequence, Role
from watersmeet.catalog.roles import ADMIN
from watersmeet.database.sessions.context import Nested
from watersmeet.database.sessions.cursors import OpenCursor, Prepared
from watersmeet.database.sessions.result import Result
from watersmeet.database.sessions.sequences import count_of
from watersmeet.dialects.tree.statements import Statement
from watersmeet.errors import Error, error
from watersmeet.kernel.evaluation.duck import rows_of
from watersmeet.server.catalog.definitions import qualified_default, qualified_expression, qualified_view
from watersmeet.server.catalog.functions import definitions
from watersmeet.server.catalog.queries import CatalogQuery, duckdb_sql, infer_types, with_values
from watersmeet.server.catalog.shapes import DEFAULTS, OF_CLIENTS, SHAPES
from watersmeet.server.catalog.tables import (
    DATABASE_OID,
    TRUSTED_OID,
    Row,
    arrow_table,
    functions_by_oid,
    relation_oid,
    role_oid,
    rows_of_tables,
    sequence_row,
)
from watersmeet.server.clients import Activity, ClientState
from watersmeet.server.messages import Column
from watersmeet.server.oids import TEXT, TYPES
from watersmeet.session.features.roles import known_roles
from watersmeet.session.features.settings import put_setting
from watersmeet.session.features.subscriptions import notify
from watersmeet.system import duckdbs
from watersmeet.unparsing import needs_isolation
from watersmeet.values.types import VARCHAR, Schema, SqlType
from watersmeet.values.types import Field as SqlField

_MEMORY: Final = "256MB"

#: The functions that act for the client.
_ACTING: Final = ("_backend(", "set_config(", "pg_notify(")

#: The types of the parameters of `_Made.qualified` in DuckDB.
_QUALIFIED: Final = ["VARCHAR", "UINTEGER", "VARCHAR"]

#: The number of cached sets of tables: clients with different privileges have different ones.
_MOST: Final = 8

#: Tables that depend on the client's variables.
_VIEWS: Final = f"""
CREATE VIEW pg_catalog_.pg_database AS
SELECT * REPLACE (getvariable('database') AS datname) FROM pg_catalog_.databases_;
CREATE VIEW pg_catalog_.pg_roles AS SELECT * FROM pg_catalog_.roles_
UNION ALL BY NAME
SELECT getvariable('login') AS rolname, true AS rolsuper, true AS rolinherit, true AS rolcreaterole,
       false AS rolcreatedb, true AS rolcanlogin, false AS rolreplication, -1 AS rolconnlimit, true AS rolbypassrls,
       CAST({TRUSTED_OID} AS UINTEGER) AS oid
WHERE getvariable('trusted') AND getvariable('login') NOT IN (SELECT rolname FROM pg_catalog_.roles_)
"""

#: Columns of information_schema with the name of the database.
_DATABASES: Final = frozenset({
    "catalog_name", "constraint_catalog", "routine_catalog", "sequence_catalog", "specific_catalog", "table_catalog",
    "trigger_catalog", "udt_catalog", "unique_constraint_catalog",
})  # fmt: skip

_WITH_DATABASES: Final = {
    name: sorted(_DATABASES.intersection(columns))
    for (schema, name), columns in SHAPES.items()
    if schema == "information_schema" and not _DATABASES.isdisjoint(columns)
}

#: The tables that are views, with the names of the tables that they read.
_UNDER: Final = {"pg_database": "databases_", "pg_roles": "roles_", **{n: f"{n}_" for n in _WITH_DATABASES}}


@dataclass
class _Made:
    """A set of tables in DuckDB. seen: the catalog that they show. rows: those of each table."""

    connection: duckdb.DuckDBPyConnection
    seen: Catalog | None = None
    rows: Mapping[tuple[str, str], list[Row]] | None = None

    def qualified(self, what: str, oid: int | None, text: str | None) -> str | None:
        """The text of a view, a DEFAULT or a CHECK of a relation, in which names have their schemas; or the statement
        that created a function.
        """
        assert self.seen is not None
        if what == "function":
            functions = {oid: f.sql for oid, f in functions_by_oid(self.seen)}
            return None if oid is None else functions.get(oid)
        found = next((r for r in self.seen.shown if relation_oid(r) == oid), None)
        if found is None or text is None:
            return text
        if what == "view":
            return qualified_view(found, self.seen)
        if what == "default":
            return qualified_default(found, text, self.seen)
        inner = text.removeprefix("CHECK (").removesuffix(")")
        return f"CHECK ({qualified_expression(inner, found.dialect, self.seen)})"


class CatalogTables:
    """The tables of a catalog in DuckDB, shared by all clients."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._made: OrderedDict[Hashable, _Made] = OrderedDict()
        #: Clients with a running query, by the secret of their connection.
        self._asking: dict[str, _Asking] = {}

    def of(self, client: ClientState) -> duckdb.DuckDBPyConnection:
        """A connection with the tables that a client (`backend.Backend`) may see now; its `cursor` creates further
        connections.
        """
        catalog, roles = client.session.catalog, known_roles(client.session)
        key = (catalog.granted, tuple(r.name for r in roles), client.session.temporaries.schema)
        with self._lock:
            made = self._made.get(key)
            if made is None:
                made = self._made[key] = _Made(self._new())
                made.connection.create_function(
                    "qualified_", made.qualified, _QUALIFIED, "VARCHAR", null_handling="special"
                )
                if len(self._made) > _MOST:
                    _, oldest = self._made.popitem(last=False)
                    oldest.connection.close()
            self._made.move_to_end(key)
            seen = made.seen
            same = seen is not None and seen.relations is catalog.relations and seen.roles is catalog.roles
            if seen is None or not same or seen.version != catalog.version:
                _fill(made, catalog, roles)
                made.seen = catalog
            return made.connection

    @contextmanager
    def acting(self, client: ClientState, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
        """A context in which queries of the connection may end statements of clients and change settings.

        Raises PERMISSION_DENIED for clients of other users, and the errors of SET.
        """
        secret = secrets.token_hex(16)
        connection.execute("SET VARIABLE asking = ?", [secret])
        asking = self._asking[secret] = _Asking(client)
        try:
            yield
        except Error:
            if asking.failure is None:
                raise
        finally:
            del self._asking[secret]
        if asking.failure is not None:
            raise asking.failure
        if asking.refused is not None:
            raise error(
                "PERMISSION_DENIED",
                f"permission denied to signal process {asking.refused}",
                detail="It requires the role admin, or the user of that process.",
            )

    def close(self) -> None:
        """Releases everything."""
        with self._lock:
            for made in self._made.values():
                made.connection.close()
            self._made.clear()

    def _new(self) -> duckdb.DuckDBPyConnection:
        connection = duckdbs.connect(memory_limit=_MEMORY, join_filters=False, locked=False)
        connection.execute("CREATE SCHEMA pg_catalog_; CREATE SCHEMA information_schema_")
        kinds = ["INTEGER", "BOOLEAN", "VARCHAR"]
        connection.create_function("signal_", self._signal, kinds, "BOOLEAN", side_effects=True)
        kinds = ["VARCHAR", "VARCHAR", "BOOLEAN", "VARCHAR"]
        connection.create_function("configure_", self._configure, kinds, "VARCHAR", side_effects=True)
        kinds = ["VARCHAR", "VARCHAR", "VARCHAR"]
        connection.create_function(
            "notify_", self._notify, kinds, "VARCHAR", side_effects=True, null_handling="special"
        )
        for name in OF_CLIENTS:
            put(connection, name, [])
        return connection

    def _notify(self, channel: str | None, payload: str | None, secret: str) -> str:
        """Implements pg_notify."""
        asking = self._asking.get(secret)
        if asking is not None:
            try:
                notify(asking.client.session, channel or "", payload or "")
            except Error as err:
                asking.failure = err
                raise
        return ""

    def _configure(self, name: str, value: str, local: bool, secret: str) -> str:
        """Implements set_config."""
        asking = self._asking.get(secret)
        if asking is None:
            return value
        try:
            put_setting(asking.client.session, name, value, local=local)
            ended = local and asking.client.session.transaction is None
            return value if ended else asking.client.settings.get(name)
        except Error as err:
            asking.failure = err
            raise

    def _signal(self, process: int, ends: bool, secret: str) -> bool:
        """Implements pg_cancel_backend and pg_terminate_backend."""
        asking = self._asking.get(secret)
        if asking is None:
            return False
        found = next((a for a in asking.client.clients.activity() if a.process == process), None)
        if found is None:
            return False
        if not may_signal(asking.client, found):
            asking.refused = process
            return False
        return asking.client.clients.signal(process, ends=ends)


@dataclass
class _Asking:
    """A client with a current query. refused: a process that it may not end. failure: the error of a setting."""

    client: ClientState
    refused: int | None = None
    failure: Error | None = None


def put(connection: duckdb.DuckDBPyConnection, name: str, rows: list[dict[str, object]]) -> None:
    """Fills one of the tables `OF_CLIENTS`, only for this connection."""
    table = pa.Table.from_pylist(rows, pa.schema(list(SHAPES["pg_catalog", name].items())))
    _replace(connection, f"TEMP TABLE {name}", table)


def _replace(connection: duckdb.DuckDBPyConnection, name: str, table: pa.Table) -> None:
    connection.register("rows_", table)
    connection.execute(f"CREATE OR REPLACE {name} AS SELECT * FROM rows_")
    connection.unregister("rows_")


def may_signal(client: ClientState, activity: Activity) -> bool:
    """Whether a client may see the activity of another one and end it: clients of the same user, or all for an
    admin.
    """
    session = client.session
    return session.rights.has(ADMIN) or (activity.actor is not None and activity.actor == session.user)


def _fill(made: _Made, catalog: Catalog, roles: Sequence[Role]) -> None:
    """Replaces the tables whose rows have changed, in one transaction: most definitions change few of them."""
    rows = rows_of_tables(catalog, roles)
    connection, known = made.connection, made.rows or {}
    connection.execute("BEGIN")
    try:
        for key, found in rows.items():
            schema, name = key
            if name not in OF_CLIENTS and found != known.get(key):
                _replace(connection, f"TABLE {schema}_.{_UNDER.get(name, name)}", arrow_table(key, found))
        for statement in (*_views(), *definitions()) if made.rows is None else ():
            connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    made.rows = rows


def _views() -> list[str]:
    """The statements that create the tables which depend on the client's variables."""
    made = [_VIEWS]
    for name, columns in _WITH_DATABASES.items():
        casts = ", ".join(f"CAST(getvariable('database') AS VARCHAR) AS {c}" for c in columns)
        view = f"information_schema_.{name}"
        made.append(f"CREATE VIEW {view} AS SELECT * REPLACE ({casts}) FROM {view}_")
    return made


#: For Arrow's types of results, the oid of PostgreSQL's type, and the SQL type with the same bytes.
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

#: Columns of PostgreSQL's type name, whose arrays clients read as text[]; and the oid of name[].
_NAMES: Final = ("attname", "conname", "enumlabel", "nspname", "relname", "typname")

_NAME_ARRAY: Final = 1003
_JSON: Final = 114


@dataclass(frozen=True)
class CatalogResult(Result):
    """The answer to a query of the catalog. described: its columns, whose types only exist in the catalog."""

    described: tuple[Column, ...] = ()


class CatalogAnswers:
    """Answers queries of the catalog for one client (`backend.Backend`)."""

    def __init__(self, client: ClientState, tables: CatalogTables) -> None:
        self._client = client
        self._tables = tables
        self._of: duckdb.DuckDBPyConnection | None = None
        self._connection: duckdb.DuckDBPyConnection | None = None

    def run(self, statement: Statement, nested: Nested) -> CatalogResult:
        """The rows of a query. Raises FEATURE_NOT_SUPPORTED for one that can't be answered."""
        del nested
        assert isinstance(statement, CatalogQuery)
        return self._answer(statement.tree, statement.text, describes=False)

    def describe(self, statement: Statement) -> CatalogResult:
        """The columns of a query, and the types of its open parameters."""
        assert isinstance(statement, CatalogQuery)
        infer_types(statement.tree)
        return self._answer(statement.tree, statement.text, describes=True)

    def inlined(self, tree: exp.Expression, text: str) -> exp.Expression:
        """A query of the session with values instead of calls of the catalog's functions with constants."""

        def value(query: exp.Query) -> tuple[object, SqlType]:
            found = self._answer(query, text, describes=False)
            assert found.table is not None
            return found.table.column(0)[0].as_py(), found.columns[0].type

        return with_values(tree, value)

    def _answer(self, tree: exp.Query, text: str, *, describes: bool) -> CatalogResult:
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
        acts = not describes and any(word in sql.lower() for word in _ACTING)
        acting = self._tables.acting(self._client, connection) if acts else nullcontext()
        with acting, cancellation.over(connection):
            try:
                found = rows_of(connection, sql, self._client.session.result_bytes)
            except duckdb.Error as cause:
                raise _failure(cause, text) from cause
        columns, schema, table = _typed(found, _bytes_of(tree), _names_of(tree), _documents_of(tree))
        return CatalogResult("SELECT", schema, table, table.num_rows, described=columns)

    def _connected(self) -> duckdb.DuckDBPyConnection:
        """A connection for this client, with only the tables that it may see."""
        tables = self._tables.of(self._client)
        if self._connection is None or self._of is not tables:
            self._of, self._connection = tables, duckdbs.another(tables)
        return self._connection

    def _tell(self, connection: duckdb.DuckDBPyConnection, sql: str) -> None:
        """Sets the data of this client that a query needs: variables, settings and activity."""
        client, session = self._client, self._client.session
        path = list(session.lasting_path)
        values: dict[str, object] = {
            "database": client.database,
            "user": client.user if session.role is None else session.role.name,
            "login": client.user,
        }
        values |= {"pid": client.process, "schema": path[0] if path else None, "trusted": session.user is None}
        values["recovers"] = session.database.read_only
        values["me"] = TRUSTED_OID if session.role is None else role_oid(session.role.name)
        for name, value in values.items():
            connection.execute(f"SET VARIABLE {name} = ?", [value])
        channels = [] if session.inbox is None else list(session.inbox.channels)
        connection.execute("SET VARIABLE channels = CAST(? AS VARCHAR[])", [channels])
        connection.execute("SET VARIABLE path = CAST(? AS VARCHAR[])", [path])
        connection.execute("SET VARIABLE started = to_timestamp(?)", [time.time()])
        asked = sql.lower()
        if "current_setting" in asked:
            shown = {name.lower(): client.settings.get(name) for name, _, _ in client.settings.listed()}
            connection.execute("SET VARIABLE settings = ?", [list(shown)])
            connection.execute("SET VARIABLE shown = ?", [list(shown.values())])
        if "pg_sequences" in asked:
            sequences = [r for r in session.catalog.shown if isinstance(r, NumberSequence)]
            counts = [(r, count_of(session, r)) for r in sequences]
            rows = [{**sequence_row(r), "last_value": c.last if c.called else None} for r, c in counts]
            put(connection, "pg_sequences", [{**DEFAULTS["pg_catalog", "pg_sequences"], **row} for row in rows])
        if "pg_timezone_names" in asked:
            connection.execute(_ZONES)
        if "pg_cursors" in asked:
            open_now = [(name, cursor) for name, cursor in session.cursors.items() if cursor.declared or cursor.result]
            put(connection, "pg_cursors", [_cursor(*one) for one in open_now])
        if "pg_prepared_statements" in asked:
            put(connection, "pg_prepared_statements", [_prepared(*p) for p in session.prepared.items() if p[0]])
        if "pg_settings" in asked:
            put(connection, "pg_settings", [_setting(*row) for row in client.settings.listed()])
        if "pg_stat_activity" in asked:
            own = [_activity(a, client.database) for a in client.clients.activity() if may_signal(client, a)]
            put(connection, "pg_stat_activity", own)


#: Fills the table of the time zones.
_ZONES: Final = """
CREATE OR REPLACE TEMP TABLE pg_timezone_names AS
SELECT name, abbrev, CAST(utc_offset AS VARCHAR) AS utc_offset, is_dst FROM system.main.pg_timezone_names()
"""


def _cursor(name: str, cursor: OpenCursor) -> dict[str, object]:
    shown: dict[str, object] = {"name": name, "is_holdable": cursor.held, "is_binary": cursor.binary}
    return {**DEFAULTS["pg_catalog", "pg_cursors"], **shown}


def _prepared(name: str, prepared: Prepared) -> dict[str, object]:
    types = [(VARCHAR if p.kind is None else p.kind).sql for p in prepared.parameters]
    shown: dict[str, object] = {"name": name, "statement": prepared.text, "parameter_types": types}
    shown |= {"result_types": None if prepared.columns is None else [c.type.sql for c in prepared.columns]}
    return {**DEFAULTS["pg_catalog", "pg_prepared_statements"], **shown}


def _setting(name: str, value: str, unit: str | None) -> dict[str, object]:
    row = {"name": name, "setting": value, "unit": unit, "boot_val": value, "reset_val": value}
    return {**row, "category": "Watersmeet", "context": "user", "vartype": "string", "source": "default"}


def _activity(activity: Activity, database: str) -> dict[str, object]:
    began = dt.datetime.fromtimestamp(activity.began_s, dt.UTC)
    row = {"datid": DATABASE_OID, "datname": database, "pid": activity.process, "usename": activity.user}
    row |= {"usesysid": role_oid(activity.user), "application_name": activity.application, "state": activity.state}
    return {**row, "client_addr": activity.address, "backend_start": began, "backend_type": "client backend"}


#: Errors of macros: a condition and a message.
_RAISED: Final = re.compile(r"(UNDEFINED_(?:OBJECT|RELATION)): (.*)")

_FAILURES: Final = (
    (duckdb.InterruptException, "QUERY_CANCELED", "the statement was canceled"),
    (duckdb.OutOfMemoryException, "OUT_OF_MEMORY", "this query of the catalog needs too much memory"),
)


def _failure(cause: duckdb.Error, text: str) -> Error:
    """The error for a query of the catalog that failed."""
    for kind, condition, message in _FAILURES:
        if isinstance(cause, kind):
            return error(condition, message, sql=text)
    message = str(cause).splitlines()[0]
    if (raised := _RAISED.search(message)) is not None:
        return error(raised[1], raised[2], sql=text)
    return error(
        "FEATURE_NOT_SUPPORTED",
        "this query of the catalog is not supported",
        detail=f"{message}",
        sql=text,
        hint="SHOW and DESCRIBE tell the same in every dialect.",
    )


def _bytes_of(tree: exp.Expression) -> frozenset[str]:
    """The names of columns with single bytes, including their aliases in the query."""
    names = set(_CHARS)
    while (
        found := {a.alias for a in tree.find_all(exp.Alias) if isinstance(a.this, exp.Column) and a.this.name in names}
        - names
    ):
        names |= found
    return frozenset(names)


def _names_of(tree: exp.Query) -> frozenset[str]:
    """The names of columns with arrays of names, which are aggregates of a column of names."""
    return frozenset(a.alias for a in tree.selects if isinstance(a, exp.Alias) and _is_list_of_names(a.this))


def _is_list_of_names(node: exp.Expression) -> bool:
    """Whether a value is `array_agg` of a column of type name, also in a subquery."""
    if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Select) and len(node.this.selects) == 1:
        node = node.this.selects[0].unalias()
    if not isinstance(node, exp.ArrayAgg):
        return False
    item = node.this.this if isinstance(node.this, exp.Order) else node.this
    return isinstance(item, exp.Column) and item.name in _NAMES


def _documents_of(tree: exp.Query) -> frozenset[str]:
    """The names of columns with documents, which `json_build_object` makes."""
    made = (a for a in tree.selects if isinstance(a, exp.Alias) and not isinstance(a.this, exp.Cast))
    return frozenset(a.alias for a in made if any(_is_document(call) for call in a.this.find_all(exp.Func)))


def _is_document(call: exp.Func) -> bool:
    return isinstance(call, exp.JSONObject) or str(call.this).lower() == "json_build_object"


def _typed(
    found: pa.Table, chars: frozenset[str], names: frozenset[str], documents: frozenset[str]
) -> tuple[tuple[Column, ...], Schema, pa.Table]:
    columns, schema, arrays = [], [], []
    for field, values in zip(found.schema, found.columns, strict=True):
        if field.name in _VECTORS and pa.types.is_list(field.type):
            field, values = pa.field(field.name, pa.string()), _vectors(values)  # noqa: PLW2901 - as clients read it
        column, kind = _column(field, chars)
        if field.name in names:
            column = replace(column, oid=_NAME_ARRAY)
        elif field.name in documents and column.oid == TEXT:
            column = replace(column, oid=_JSON)
        columns.append(column)
        schema.append(SqlField(field.name, kind))
        arrays.append(values if values.type.equals(kind.arrow) else values.cast(kind.arrow))
    numbered = [f"c{i}" for i in range(len(arrays))]
    return tuple(columns), tuple(schema), pa.Table.from_arrays(arrays, names=numbered)


def _vectors(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts of vectors: numbers separated by spaces."""
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
