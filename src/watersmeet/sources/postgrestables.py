"""Tables of PostgreSQL as a whole: what external tables and dictionaries show.

Timeplus, "External Table", "Dictionary"; ClickHouse, "PostgreSQL" among the sources of dictionaries.
"""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa

from watersmeet.catalog import External
from watersmeet.databaseservers import Server
from watersmeet.errors import did_you_mean, error
from watersmeet.postgresclient import connected, failure, library
from watersmeet.sources.options import Options, refuse
from watersmeet.sources.postgrescolumns import Column, column_of, described, texts_of, typed
from watersmeet.types import Field, Schema, SqlType

_PORT: Final = 5432
#: Kinds of relations whose changes are all in the log of the server.
_LOGGED_KINDS: Final = ("r", "p", "m")

_RELATION: Final = """
SELECT c.oid, c.relkind, c.relpersistence FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
"""
_PLACE: Final = (
    "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END"
)


class PostgresReader:
    """The rows of one table, view or query, all of one moment."""

    def __init__(self, external: External) -> None:
        self._external = external
        self.options = postgres_options(external)

    def columns(self) -> Schema | None:
        found = self._described()
        for column in found:
            if column.type is None:
                refuse(
                    f'column "{column.name}" of {self.options.what} has type {column.theirs}, which has no equivalent',
                    hint="Declare the columns, that one as string.",
                )
        return tuple(Field(c.name, c.type, c.nullable) for c in found if c.type is not None)

    def version(self) -> Any:
        """The place in the server's log of changes, before which all that is read was written. A relation whose changes
        are not all in there may always have changed. invalidate_query: what that gives.
        """
        options = self.options
        with connected(options.server) as connection:
            if options.invalidate_query:
                return connection.execute(options.invalidate_query).fetchall()
            if options.query or options.where:
                return time.monotonic_ns()  # what a query calls may change with the time
            oid, kind, persistence = self._relation(connection)
            if kind not in _LOGGED_KINDS or persistence != "p":
                return time.monotonic_ns()
            return oid, *connection.execute(_PLACE).fetchone()

    def read(self, columns: Schema) -> pa.Table:
        sql = library().sql
        known = {c.name: c for c in self._described()}
        if missing := [c.name for c in columns if c.name not in known]:
            refuse(f'{self.options.what} has no column "{missing[0]}"', hint=did_you_mean(missing[0], known))
        listed = sql.SQL(", ").join(_text(known[c.name], c.type) for c in columns)
        query = sql.SQL("COPY (SELECT {} FROM {}{}) TO STDOUT (FORMAT csv, FORCE_QUOTE *)").format(
            listed, self._from(), sql.SQL(f" WHERE {self.options.where}" if self.options.where else "")
        )
        received = io.BytesIO()
        with connected(self.options.server) as connection:
            try:
                with connection.cursor().copy(query) as copying:
                    for block in copying:
                        received.write(block)
            except library().Error as cause:
                raise failure(cause, self.options.server, f"{self.options.schema}.{self.options.table}") from cause
        return typed(texts_of(received.getbuffer(), len(columns)), columns, self.options.what)

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
            raise error(
                "UNDEFINED_OBJECT",
                f"there is no {options.what} in {options.server.shown}",
                hint=did_you_mean(options.table, [name for (name,) in named]) or "Check the table and its schema.",
            )
        return found

    def _from(self) -> Any:
        sql = library().sql
        if self.options.query:
            return sql.SQL("({}) AS q").format(sql.SQL(self.options.query))
        return sql.Identifier(self.options.schema, self.options.table)


class PostgresOptions(NamedTuple):
    """Where the rows are. query: in place of a table. where: a condition in PostgreSQL's SQL. invalidate_query: gives
    something else when the rows may have changed. on_conflict: what becomes of rows that are inserted, see
    `written_table`.
    """

    server: Server
    schema: str
    table: str
    query: str
    where: str
    invalidate_query: str
    on_conflict: str

    @property
    def what(self) -> str:
        """For messages."""
        return "the query" if self.query else f'table "{self.schema}.{self.table}"'


def postgres_options(external: External) -> PostgresOptions:
    """The options of an external table (address, database, …) or of a dictionary's source (host, port, db, …).

    CONNECTOR_OPTION.
    """
    options = Options(_without_pools(external.options))
    host, port = _address(options)
    server = Server(
        host,
        port,
        _needed(options, "user"),
        options.text("password") or "",
        _needed(options, "database", "db"),
        (options.text("ssl_mode") or "prefer").lower(),
    )
    found = PostgresOptions(
        server,
        options.text("schema") or "public",
        options.text("table") or external.name.rpartition(".")[2],
        (options.text("query") or "").strip().rstrip(";"),
        options.text("where") or "",
        options.text("invalidate_query") or "",
        options.text("on_conflict") or "",
    )
    if found.query and found.where:
        refuse("options query and where contradict each other", hint="Write the condition in the query.")
    options.finish("postgresql")
    return found


def written_table(external: External) -> dict[str, str]:
    """The table as the options of connector `postgresql` of sinks; empty for what can't be written."""
    options = postgres_options(external)
    if options.query or options.where:
        return {}
    server = options.server
    return {
        "connector": "postgresql",
        "host": server.host,
        "port": str(server.port),
        "user": server.user,
        "password": server.password,
        "database": server.database,
        "schema": options.schema,
        "table": options.table,
        "ssl_mode": server.ssl_mode,
        **({"on_conflict": options.on_conflict} if options.on_conflict else {}),
    }


def _without_pools(options: Mapping[str, str]) -> dict[str, str]:
    """Connections are kept here in another way."""
    pools = ("pooled_connections", "background_reconnect", "priority", "name")
    return {n: v for n, v in options.items() if n not in pools}


def _needed(options: Options, *names: str) -> str:
    value = options.text(*names)
    if not value:
        refuse(f'what is of kind postgresql needs the option "{names[0]}"', hint=f"Write {names[0]} = '…'.")
    return value


def _address(options: Options) -> tuple[str, int]:
    address = options.text("address")
    if address is not None:
        host, _, port = address.rpartition(":") if ":" in address.rpartition("]")[2] else (address, "", "")
    else:
        host, port = options.text("host") or "", options.text("port") or ""
    if not host:
        refuse('what is of kind postgresql needs the option "address"', hint="Write address = 'host:5432'.")
    if port and not port.isdecimal():
        refuse(f'the port of PostgreSQL can\'t be "{port}"', hint="It is a number, such as 5432.")
    return host.strip("[]"), int(port or _PORT)


def _columns_of_query(connection: Any, source: Any) -> list[Column]:
    sql = library().sql
    described = connection.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(source)).description
    found = []
    for column in described:
        row = connection.execute(
            "SELECT t.typname, t.typtype, e.typname, e.typtype FROM pg_type t "
            "LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A' WHERE t.oid = %s",
            [column.type_code],
        ).fetchone()
        modifier = ((column.precision << 16) | column.scale) + 4 if column.precision else -1
        kind, outer, element, element_kind = row
        found.append(column_of(column.name, kind, outer, element, element_kind, modifier, required=False))
    return found


def _text(column: Column, wanted: SqlType) -> Any:
    """What gives a column's text, as `convert` reads it."""
    sql = library().sql
    name = sql.Identifier(column.name)
    if wanted.name in ("array", "struct", "jsonb") and not column.is_json:
        return sql.SQL("to_json({})::text").format(name)
    return sql.SQL("{}::text").format(name)
