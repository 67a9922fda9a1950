"""Clients of PostgreSQL: the library, which is an optional dependency, connections, errors, and readers of whole
tables.
"""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final

from watersmeet.catalog import External
from watersmeet.connectors.base.sources import Condition
from watersmeet.connectors.databases.servers import (
    KeptConnections,
    Server,
    no_database,
    no_tls,
    not_allowed,
    not_let_in,
    unreachable,
)
from watersmeet.connectors.databases.tables import System, TableReader
from watersmeet.connectors.postgres.types import WHOLE, Column, column_of, described, type_of
from watersmeet.errors import Error, error
from watersmeet.system import process
from watersmeet.system.secretvalues import revealed
from watersmeet.values.types import TIMESTAMP, VARCHAR, SqlType

_SYSTEM: Final = "PostgreSQL"

#: The settings that determine the texts of values, regardless of the settings of the server, the database and the user.
_SETTINGS: Final = (
    "-c DateStyle=ISO -c IntervalStyle=postgres -c bytea_output=hex -c extra_float_digits=1 -c TimeZone=UTC "
    "-c default_transaction_read_only=off"
)

_CONNECT_S: Final = 10

#: The server's messages about a connection for which the library has no code.
_LOGIN: Final = ("password authentication failed", "no password supplied", "no pg_hba.conf entry", "role ")

_SSL: Final = ("SSL", "certificate")
_INSUFFICIENT, _NO_TABLE, _NO_COLUMN, _NO_SCHEMA = "42501", "42P01", "42703", "3F000"

#: The classes of SQLSTATE of temporary problems: connections, resources, the operator, rolled-back transactions.
_PASSING: Final = ("08", "53", "57", "40")


def library() -> ModuleType:
    """The module psycopg. Raises LIBRARY_MISSING if it is not installed."""
    process.library("psycopg.sql", "connections to PostgreSQL")
    return process.library("psycopg", "connections to PostgreSQL")


def connect(server: Server, *, replication: bool = False) -> Any:
    """A new connection, which commits each statement. Raises RUNTIME_UNAVAILABLE, CONNECTOR_OPTION.

    replication: whether it accepts replication commands.
    """
    psycopg = library()
    more = {"replication": "database"} if replication else {}
    try:
        return psycopg.connect(
            host=server.host,
            port=server.port,
            user=server.user,
            password=revealed(server.password),
            dbname=server.database,
            sslmode=server.ssl_mode,
            connect_timeout=_CONNECT_S,
            application_name="watersmeet",
            client_encoding="UTF8",
            options=_SETTINGS,
            autocommit=True,
            **more,
        )
    except psycopg.Error as cause:
        raise failure(cause, server) from cause


def failure(cause: Any, server: Server, table: str = "", rights: str = "SELECT") -> Error:
    """The error of a statement for an error of the library. It never contains a secret.

    rights: the rights that the user needs on the table.

    It is UNDEFINED_OBJECT if the table is missing, CONNECTOR_OPTION if an administrator must act, RUNTIME_UNAVAILABLE
    for temporary problems.
    """
    text = str(cause).strip()
    state = getattr(cause, "sqlstate", None) or ""
    if state == _INSUFFICIENT:
        return not_allowed(server, text, table, rights)
    if state in (_NO_TABLE, _NO_COLUMN, _NO_SCHEMA):
        return error(
            "UNDEFINED_OBJECT", text.splitlines()[0].removeprefix("ERROR:").strip(), detail=f"In {server.shown}."
        )
    if not state and ("database " in text and "does not exist" in text):
        return no_database(server)
    if not state and any(word in text for word in _LOGIN):
        return not_let_in(_SYSTEM, server, text.splitlines()[-1].strip())
    if not state and any(word in text for word in _SSL):
        return no_tls(_SYSTEM, server, text.splitlines()[-1].strip())
    if not state or state.startswith(_PASSING):
        return unreachable(_SYSTEM, server, text.splitlines()[-1].strip() if text else None)
    return error("CONNECTOR_OPTION", f"{server.shown} refuses: {text.splitlines()[0]}", detail=f"SQLSTATE {state}.")


connected: Final = KeptConnections(connect, lambda connection: connection.execute(""), library, failure).use
"""See `KeptConnections.use`."""


SYSTEM: Final = System("postgresql", "PostgreSQL", 5432, "public", "on_conflict")

#: The kinds of relations all of whose changes are in the server's log.
_LOGGED_KINDS: Final = ("r", "p", "m")

#: The types of texts for which texts with equal characters are equal.

_TEXTS: Final = ("text", "varchar")

_RELATION: Final = """
SELECT c.oid, c.relkind, c.relpersistence FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
"""

_OFFSET: Final = (
    "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END, "
    "pg_current_snapshot()::text"  # a commit is in the log before queries see its rows
)


class PostgresReader(TableReader[Column]):
    """See `TableReader`."""

    def __init__(self, external: External) -> None:
        super().__init__(external, SYSTEM)

    def version(self) -> Any:
        """A value that changes whenever the content may have changed.

        It is the result of `invalidate_query` if set, else an offset of the server's log, or a new value at each call
        if not all changes of the relation are logged.
        """
        options = self.options
        with connected(options.server) as connection:
            if options.invalidate_query:
                return connection.execute(options.invalidate_query).fetchall()
            if options.query or options.where:
                return time.monotonic_ns()  # functions of a query may depend on the time
            oid, kind, persistence = self._relation(connection)
            if kind not in _LOGGED_KINDS or persistence != "p":
                return time.monotonic_ns()
            return oid, *connection.execute(_OFFSET).fetchone()

    def _receive(
        self,
        columns: Sequence[tuple[Column, SqlType]],
        conditions: Sequence[tuple[Column, Condition]],
        received: io.BytesIO,
    ) -> None:
        rows = self._select([_text(column, wanted) for column, wanted in columns], conditions)
        query = library().sql.SQL("COPY ({}) TO STDOUT (FORMAT csv, FORCE_QUOTE *)").format(rows)
        with connected(self.options.server) as connection:
            try:
                with connection.cursor().copy(query) as copying:
                    received.writelines(copying)
            except library().Error as cause:
                raise failure(cause, self.options.server, self.options.name) from cause

    def _shown(self, columns: Sequence[tuple[Column, SqlType]], conditions: Sequence[tuple[Column, Condition]]) -> str:
        query = self._select([library().sql.Identifier(column.name) for column, _ in columns], conditions)
        with connected(self.options.server) as connection:
            return str(query.as_string(connection))

    def _select(self, items: Sequence[Any], conditions: Sequence[tuple[Column, Condition]]) -> Any:
        sql = library().sql
        parts = [sql.SQL(f"({self.options.where})")] if self.options.where else []
        parts += [_tested(column, condition) for column, condition in conditions]
        where = sql.SQL(" WHERE ") + sql.SQL(" AND ").join(parts) if parts else sql.SQL("")
        return sql.SQL("SELECT {} FROM {}{}").format(sql.SQL(", ").join(items), self._from(), where)

    def _is_tested(self, column: Column, condition: Condition) -> bool:
        wanted = condition.column.type
        if not condition.values:
            return not (column.is_json or column.has_parts or wanted.is_nested)
        if column.theirs in WHOLE:
            return wanted.is_integer or wanted.name == "numeric"
        if column.theirs in _TEXTS:  # in all server encodings ASCII is the same and below the other characters
            return wanted == VARCHAR and all(
                isinstance(v, str) and v.isascii() and "\0" not in v for v in condition.values
            )
        same = column.type == wanted
        return same and (wanted.name == "date" or wanted == TIMESTAMP or wanted.precision is not None)

    def _described(self) -> list[Column]:
        with connected(self.options.server) as connection:
            if self.options.query:
                return _columns_of_query(connection, self._from())
            oid, _, _ = self._relation(connection)
            return described(connection, oid)

    def _relation(self, connection: Any) -> Any:
        options = self.options
        found = connection.execute(_RELATION, [options.schema, options.table]).fetchone()
        if found is None:
            named = connection.execute(
                "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = %s",
                [options.schema],
            )
            raise self._no_table([name for (name,) in named])
        return found

    def _from(self) -> Any:
        sql = library().sql
        if self.options.query:
            return sql.SQL("({}) AS q").format(sql.SQL(self.options.query))
        return sql.Identifier(self.options.schema, self.options.table)


def _columns_of_query(connection: Any, source: Any) -> list[Column]:
    sql = library().sql
    described = connection.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(source)).description
    found = []
    for column in described:
        modifier = ((column.precision << 16) | column.scale) + 4 if column.precision else -1
        found.append(column_of(column.name, *type_of(connection, column.type_code, modifier), required=False))
    return found


def _tested(column: Column, condition: Condition) -> Any:
    """A condition that is true for all rows that satisfy it in Watersmeet, and possibly for more.

    Watersmeet orders texts by their bytes. Equal bytes are equal in all collations, so equalities can use an index.
    """
    sql = library().sql
    name, values = sql.Identifier(column.name), sql.SQL(", ").join([sql.Literal(v) for v in condition.values])
    if not condition.values:
        return sql.SQL(f"{{}} {condition.operator}").format(name)
    if condition.operator == "IN":
        return sql.SQL("{} IN ({})").format(name, values)
    by_bytes = ' COLLATE "C"' if column.theirs in _TEXTS and condition.operator != "=" else ""
    return sql.SQL(f"{{}}{by_bytes} {condition.operator} {{}}").format(name, values)


def _text(column: Column, wanted: SqlType) -> Any:
    """The expression of a column's text in the form that `convert` reads."""
    sql = library().sql
    name = sql.Identifier(column.name)
    if wanted.name in ("array", "struct", "jsonb") and not column.is_json:
        return sql.SQL("to_json({})::text").format(name)
    return sql.SQL("{}::text").format(name)
