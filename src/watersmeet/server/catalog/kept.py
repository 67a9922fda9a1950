"""The tables of the catalog in DuckDB: as each client may see them, kept until the catalog changes."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import duckdb
import pyarrow as pa

from watersmeet import duckdbs
from watersmeet.catalog import Catalog, Role
from watersmeet.catalog.roles import ADMIN
from watersmeet.errors import Error, error
from watersmeet.server.catalog.functions import definitions
from watersmeet.server.catalog.privileges import TRUSTED_OID, rights_tables
from watersmeet.server.catalog.shapes import OF_CLIENTS, SHAPES
from watersmeet.server.catalog.tables import filled, relation_oids
from watersmeet.server.clients import Activity
from watersmeet.session.statements.roles import known_roles

_MEMORY: Final = "256MB"
#: For so many kinds of clients, of those that may know of different things, tables are kept.
_MOST: Final = 8

#: What of the tables follows from the client's variables.
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
#: Columns of information_schema that hold the name of the database.
_DATABASES: Final = frozenset({
    "catalog_name", "constraint_catalog", "routine_catalog", "sequence_catalog", "specific_catalog", "table_catalog",
    "trigger_catalog", "udt_catalog", "unique_constraint_catalog",
})  # fmt: skip
_WITH_DATABASES: Final = {
    name: sorted(_DATABASES.intersection(columns))
    for (schema, name), columns in SHAPES.items()
    if schema == "information_schema" and not _DATABASES.isdisjoint(columns)
}
#: Of the tables that are views, the names of the tables under them.
_UNDER: Final = {"pg_database": "databases_", "pg_roles": "roles_", **{n: f"{n}_" for n in _WITH_DATABASES}}


@dataclass
class _Made:
    """Tables in DuckDB. seen: the catalog that they are of."""

    connection: duckdb.DuckDBPyConnection
    seen: Catalog | None = None


class CatalogTables:
    """The tables of a catalog in DuckDB, which clients ask beside each other."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._made: OrderedDict[Hashable, _Made] = OrderedDict()
        #: By the secrets of their connections, clients that ask now.
        self._asking: dict[str, _Asking] = {}

    def of(self, client: Any) -> duckdb.DuckDBPyConnection:
        """A connection with the tables as a client (`backend.Backend`) may see them now: others may be made of it."""
        catalog, roles = client.session.catalog, known_roles(client.session)
        key = (catalog.granted, tuple(r.name for r in roles))
        with self._lock:
            made = self._made.get(key)
            if made is None:
                made = self._made[key] = _Made(self._new())
                if len(self._made) > _MOST:
                    _, oldest = self._made.popitem(last=False)
                    oldest.connection.close()
            self._made.move_to_end(key)
            seen = made.seen
            same = seen is not None and seen.relations is catalog.relations and seen.roles is catalog.roles
            if seen is None or not same or seen.version != catalog.version:
                _fill(made.connection, catalog, roles, first=seen is None)
                made.seen = catalog
            return made.connection

    @contextmanager
    def acting(self, client: Any, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
        """Inside, queries of the connection may end what clients do, and set what the client may set.

        PERMISSION_DENIED for clients of other users; the errors of SET.
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
                detail="It takes the role admin, or to be the user whose process it is.",
            )

    def close(self) -> None:
        """Gives everything back."""
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
        for name in OF_CLIENTS:
            put(connection, name, [])
        return connection

    def _configure(self, name: str, value: str, local: bool, secret: str) -> str:
        """Of set_config."""
        asking = self._asking.get(secret)
        if asking is None:
            return value
        try:
            asking.client.settings.set(name, value, local=local)
            return str(asking.client.settings.get(name))
        except Error as err:
            asking.failure = err
            raise

    def _signal(self, process: int, ends: bool, secret: str) -> bool:
        """Of pg_cancel_backend and pg_terminate_backend."""
        asking = self._asking.get(secret)
        if asking is None:
            return False
        found = next((a for a in asking.client.clients.activity() if a.process == process), None)
        if found is None:
            return False
        if not may_signal(asking.client, found):
            asking.refused = process
            return False
        return bool(asking.client.clients.signal(process, ends=ends))


@dataclass
class _Asking:
    """A client that asks. refused: the number of one that it may not end. failure: of what it sets."""

    client: Any
    refused: int | None = None
    failure: Error | None = None


def put(connection: duckdb.DuckDBPyConnection, name: str, rows: list[dict[str, Any]]) -> None:
    """Gives one of the tables `OF_CLIENTS` its rows, for this connection alone."""
    table = pa.Table.from_pylist(rows, pa.schema(list(SHAPES["pg_catalog", name].items())))
    _replace(connection, f"TEMP TABLE {name}", table)


def _replace(connection: duckdb.DuckDBPyConnection, name: str, table: pa.Table) -> None:
    connection.register("rows_", table)
    connection.execute(f"CREATE OR REPLACE {name} AS SELECT * FROM rows_")
    connection.unregister("rows_")


def may_signal(client: Any, activity: Activity) -> bool:
    """Whether a client may know what another one does, and end it: of its own user's, and an admin of all."""
    session = client.session
    return bool(session.rights.has(ADMIN) or (activity.actor is not None and activity.actor == session.user))


def _fill(connection: duckdb.DuckDBPyConnection, catalog: Catalog, roles: Sequence[Role], *, first: bool) -> None:
    """Makes all tables anew, in one step."""
    tables = dict(filled(catalog, roles))
    for name, table in rights_tables(catalog, roles, relation_oids(catalog)).items():
        tables["pg_catalog", name] = table
    connection.execute("BEGIN")
    try:
        for (schema, name), table in tables.items():
            if name not in OF_CLIENTS:
                _replace(connection, f"TABLE {schema}_.{_UNDER.get(name, name)}", table)
        for statement in (*_views(), *definitions()) if first else ():
            connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _views() -> list[str]:
    """The statements that make the tables which follow from the client's variables."""
    made = [_VIEWS]
    for name, columns in _WITH_DATABASES.items():
        told = ", ".join(f"CAST(getvariable('database') AS VARCHAR) AS {c}" for c in columns)
        view = f"information_schema_.{name}"
        made.append(f"CREATE VIEW {view} AS SELECT * REPLACE ({told}) FROM {view}_")
    return made
