"""The tables of the catalog in DuckDB: as each client may see them, kept until the catalog changes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import duckdb

from watersmeet import duckdbs
from watersmeet.catalog import Catalog, Role
from watersmeet.catalog.roles import ADMIN
from watersmeet.errors import error
from watersmeet.server.catalog.functions import definitions
from watersmeet.server.catalog.privileges import TRUSTED_OID, rights_tables
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
#: Of the tables that are views, the names of the tables under them.
_UNDER: Final = {"pg_database": "databases_", "pg_roles": "roles_"}


@dataclass
class _Made:
    """Tables in DuckDB. seen: the catalog that they are of."""

    connection: duckdb.DuckDBPyConnection
    seen: Catalog | None = None


class CatalogTables:
    """The tables of a catalog in DuckDB. For several threads, one at a time."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._made: OrderedDict[Hashable, _Made] = OrderedDict()
        self._asking: Any = None
        self._refused: int | None = None

    @contextmanager
    def of(self, client: Any) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection with the tables as a client (`backend.Backend`) may see them, for this thread alone."""
        catalog, roles = client.session.catalog, known_roles(client.session)
        with self._lock:
            self._asking, self._refused = client, None
            try:
                yield self._connection(catalog, roles)
            finally:
                refused, self._asking = self._refused, None
        if refused is not None:
            raise error(
                "PERMISSION_DENIED",
                f"permission denied to signal process {refused}",
                detail="It takes the role admin, or to be the user whose process it is.",
            )

    def close(self) -> None:
        """Gives everything back."""
        with self._lock:
            for made in self._made.values():
                made.connection.close()
            self._made.clear()

    def _connection(self, catalog: Catalog, roles: Sequence[Role]) -> duckdb.DuckDBPyConnection:
        key = (catalog.granted, tuple(r.name for r in roles))
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = _Made(duckdbs.connect(memory_limit=_MEMORY, locked=False))
            made.connection.execute("CREATE SCHEMA pg_catalog_")
            made.connection.execute("CREATE SCHEMA information_schema_")
            made.connection.create_function(
                "signal_", self._signal, ["INTEGER", "BOOLEAN"], "BOOLEAN", side_effects=True
            )
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

    def _signal(self, process: int, ends: bool) -> bool:
        """Of pg_cancel_backend and pg_terminate_backend."""
        client = self._asking
        found = next((a for a in client.clients.activity() if a.process == process), None)
        if found is None:
            return False
        if not may_signal(client, found):
            self._refused = process
            return False
        return bool(client.clients.signal(process, ends=ends))


def may_signal(client: Any, activity: Activity) -> bool:
    """Whether a client may know what another one does, and end it: of its own user's, and an admin of all."""
    session = client.session
    return bool(session.rights.has(ADMIN) or activity.user == session.user)


def _fill(connection: duckdb.DuckDBPyConnection, catalog: Catalog, roles: Sequence[Role], *, first: bool) -> None:
    tables = {(s, n): t for (s, n), t in filled(catalog, roles).items()}
    for name, table in rights_tables(catalog, roles, relation_oids(catalog)).items():
        tables["pg_catalog", name] = table
    for (schema, name), table in tables.items():
        connection.register("rows_", table)
        connection.execute(f"CREATE OR REPLACE TABLE {schema}_.{_UNDER.get(name, name)} AS SELECT * FROM rows_")
        connection.unregister("rows_")
    if first:
        for statement in (_VIEWS, *definitions()):
            connection.execute(statement)
