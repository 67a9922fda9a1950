"""Clients of MySQL and MariaDB: the library, which is an optional dependency, connections, errors, readers of whole
tables, and types: the SQL type as which each is read, and the SQL types whose values it stores.
"""

from __future__ import annotations

import datetime as dt
import io
import ssl
import time
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any, Final, NamedTuple

from watersmeet.catalog import External
from watersmeet.connectors.base.sources import Condition, Constant
from watersmeet.connectors.databases.servers import (
    KeptConnections,
    Server,
    no_database,
    no_tls,
    not_allowed,
    not_let_in,
    tls_context,
    unchecked_tls,
    unreachable,
)
from watersmeet.connectors.databases.tables import System, TableReader
from watersmeet.errors import Error, error
from watersmeet.system import process
from watersmeet.system.secretvalues import revealed
from watersmeet.values.types import JSONB, REAL, TIMESTAMP, VARCHAR, SqlType

_SYSTEM: Final = "MySQL"
_CONNECT_S: Final = 10

#: The numbers of errors. MySQL, "Server Error Message Reference"; MariaDB, "MariaDB Error Code Reference".
_LOGIN: Final = (1045, 1251, 1698, 1862, 2059, 2061)

_RIGHT: Final = (1044, 1142, 1143, 1227, 1370)
_NO_DATABASE: Final = 1049
_UNDEFINED: Final = (1051, 1054, 1146)
_TLS: Final = (2026, 3159)

#: The numbers of temporary problems: connections, resources, locks, the operator, a temporarily read-only server.
_PASSING: Final = (
    *(0, 1021, 1037, 1040, 1041, 1053, 1077, 1114, 1152, 1158, 1159, 1160, 1161, 1180, 1203, 1205, 1213, 1226, 1290),
    *(1317, 1614, 1836, 1927, 1969, 2000, 2002, 2003, 2006, 2012, 2013, 2014, 2055, 3024, 4031),
)


#: The maximum number of digits of a numeric.
_DIGITS: Final = 38
#: The number of fractional digits of a second.
_MICROSECONDS: Final = 6

TEXTS: Final = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
BYTES: Final = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
WHOLE: Final = ("tinyint", "smallint", "mediumint", "int", "bigint")
NUMBERS: Final = (*WHOLE, "decimal", "year")
#: The prefixes of types that store some different texts as equal values.
LOOSE: Final = ("char(", "uuid", "inet4", "inet6")

#: The columns of a table (schema, name), for `column_of`.
COLUMNS: Final = """
SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, NUMERIC_PRECISION, NUMERIC_SCALE, IS_NULLABLE
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION
"""


class _Type(NamedTuple):
    """The conversions of a type. read: its SQL type; None: it is only read as a declared text. takes: the names of the
    SQL types whose values are all stored unchanged; None: all types. unsigned: the SQL type of the unsigned form if it
    differs.
    """

    read: SqlType | None
    takes: tuple[str, ...] | None = ()
    unsigned: SqlType | None = None


_SMALLINT, _INTEGER, _BIGINT = SqlType("smallint"), SqlType("integer"), SqlType("bigint")
_UINT64: Final = SqlType("numeric", 20, 0)
TYPES: Final[dict[str, _Type]] = {
    "tinyint": _Type(_SMALLINT, ("boolean",), _SMALLINT),
    "smallint": _Type(_SMALLINT, ("smallint",), _INTEGER),
    "mediumint": _Type(_INTEGER, ("smallint",), _INTEGER),
    "int": _Type(_INTEGER, ("smallint", "integer"), _BIGINT),
    "bigint": _Type(_BIGINT, ("smallint", "integer", "bigint"), _UINT64),
    "year": _Type(_SMALLINT),
    "bit": _Type(None, ("boolean",)),
    "decimal": _Type(None, ("smallint", "integer", "bigint", "numeric")),
    "float": _Type(REAL, ("real",)),
    "double": _Type(SqlType("double precision"), ("real", "double precision")),
    "date": _Type(SqlType("date"), ("date",)),
    "time": _Type(SqlType("time"), ("time",)),
    "datetime": _Type(TIMESTAMP, ("timestamp", "timestamptz")),
    "timestamp": _Type(SqlType("timestamptz"), ("timestamptz",)),
    "json": _Type(JSONB, ("varchar", "jsonb", "struct", "array")),
    **dict.fromkeys(TEXTS, _Type(VARCHAR, None)),
    **dict.fromkeys(("enum", "uuid", "inet4", "inet6"), _Type(VARCHAR, ("varchar",))),
    "set": _Type(VARCHAR),
    "binary": _Type(SqlType("bytea")),
    **dict.fromkeys(BYTES[1:], _Type(SqlType("bytea"), ("bytea",))),
}


class Column(NamedTuple):
    """A column. theirs: the server's type with its parameters. kind: the type without parameters. type: the SQL type;
    None: no equivalent.
    """

    name: str
    theirs: str
    kind: str
    type: SqlType | None
    nullable: bool


def column_of(name: str, kind: str, theirs: str, precision: int | None, scale: int | None, nullable: str) -> Column:
    """The column that a row of `COLUMNS` describes."""
    return Column(name, theirs, kind, read_type(kind, theirs, precision, scale), nullable == "YES")


def read_type(kind: str, theirs: str = "", precision: int | None = None, scale: int | None = None) -> SqlType | None:
    """The SQL type of a column; None if it has no equivalent."""
    if kind == "decimal" and precision is not None and precision <= _DIGITS:
        return SqlType("numeric", precision, scale or 0)
    if kind == "bit" and theirs:
        return SqlType("boolean") if precision == 1 else _UINT64
    known = TYPES.get(kind, _Type(None))
    return known.unsigned if known.unsigned and "unsigned" in theirs else known.read


def takes(kind: SqlType, theirs: str, shown: str) -> bool:
    """Whether a column stores all values of a type. theirs, shown: the column's type without and with parameters."""
    accepted = TYPES.get(theirs, _Type(None)).takes
    return accepted is None or (kind.name in accepted and (kind.name == "boolean" or "unsigned" not in shown))


def rounds(kind: SqlType, theirs: str, scale: int | None, digits: int | None) -> bool:
    """Whether a column silently stores rounded values. scale: the decimals of the type. digits: the fractional digits
    of a second.
    """
    if theirs == "decimal" and kind.name == "numeric":
        return kind.decimals > (scale or 0)
    return theirs in ("time", "datetime", "timestamp") and (digits or 0) < _MICROSECONDS


def library() -> ModuleType:
    """The module pymysql. Raises LIBRARY_MISSING if it is not installed."""
    return process.library("pymysql", "connections to MySQL")


@cache
def _connections() -> Any:
    """The library's class of connections, changed so that connections with optional TLS load no certificates."""
    base: Any = library().connections.Connection

    class Connection(base):  # type: ignore[misc]
        def _create_ssl_ctx(self, wanted: Any) -> ssl.SSLContext:
            context: ssl.SSLContext = wanted or unchecked_tls()
            return context

    return Connection


def connect(server: Server) -> Any:
    """A new connection, which commits each statement. Times are in UTC. Raises RUNTIME_UNAVAILABLE,
    CONNECTOR_OPTION.
    """
    pymysql = library()
    try:
        return _connections()(
            host=server.host,
            port=server.port,
            user=server.user,
            password=revealed(server.password),
            database=server.database,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=_CONNECT_S,
            init_command="SET time_zone = '+00:00'",
            program_name="watersmeet",
            ssl=tls_context(server.ssl_mode),
            ssl_disabled=server.ssl_mode == "disable",
        )
    except pymysql.Error as cause:
        raise failure(cause, server) from cause


def quoted(*names: str) -> str:
    """A quoted name with all its parts, for statements with parameters."""
    return ".".join("`" + name.replace("`", "``").replace("%", "%%") + "`" for name in names)


def number_and_text(cause: Any) -> tuple[int, str]:
    """The number of an error of the library (0: the connection is closed) and the message of the server."""
    number, text = (*cause.args, "")[:2] if len(cause.args) > 1 else (0, str(cause))
    return (number if isinstance(number, int) else 0), str(text).strip()


def failure(cause: Any, server: Server, table: str = "", rights: str = "SELECT") -> Error:
    """The error of a statement for an error of the library. It never contains a secret.

    rights: the rights that the user needs on the table.

    It is UNDEFINED_OBJECT if the table is missing, CONNECTOR_OPTION if an administrator must act, RUNTIME_UNAVAILABLE
    for temporary problems.
    """
    number, text = number_and_text(cause)
    if number in _RIGHT:
        return not_allowed(server, text, table, rights)
    if number in _UNDEFINED:
        return error("UNDEFINED_OBJECT", text, detail=f"In {server.shown}.")
    if number == _NO_DATABASE:
        return no_database(server)
    if number in _LOGIN:
        return not_let_in(_SYSTEM, server, text)
    if number in _TLS or isinstance(cause.__cause__, ssl.SSLError):
        return no_tls(_SYSTEM, server, text)
    if number in _PASSING:
        return unreachable(_SYSTEM, server, text or None)
    return error("CONNECTOR_OPTION", f"{server.shown} refuses: {text}", detail=f"Error {number}.")


connected: Final = KeptConnections(connect, lambda c: c.ping(reconnect=False), library, failure).use
"""See `KeptConnections.use`."""


SYSTEM: Final = System("mysql", "MySQL", 3306, None, "on_duplicate_clause")

#: The number of rows that are fetched from the library in one call.
_FETCHED_ROWS: Final = 10_000

#: The engines all of whose changes are in the server's log.
_LOGGED: Final = ("InnoDB", "MyISAM", "Aria", "ROCKSDB")

#: The names of types that need a special conversion, by their numbers in results.
_NUMBERED: Final = {4: "float", 7: "timestamp", 16: "bit", 255: "geometry"}


class MysqlReader(TableReader[Column]):
    """See `TableReader`."""

    def __init__(self, external: External) -> None:
        super().__init__(external, SYSTEM)

    def version(self) -> Any:
        """An offset in the server's log after all changes of the content. A new value each time for a server without a
        log, and for content that may change without it. With invalidate_query, the result of this query.
        """
        options = self.options
        with connected(options.server) as connection, connection.cursor() as cursor:
            if options.invalidate_query:
                cursor.execute(options.invalidate_query)
                return cursor.fetchall()
            if not options.query and not options.where:
                cursor.execute(
                    "SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
                    [options.schema, options.table],
                )
                engine = cursor.fetchone()
                if engine is not None and engine[0] in _LOGGED:
                    return _offset(cursor) or time.monotonic_ns()
            return time.monotonic_ns()

    def _described(self) -> Sequence[Column]:
        options = self.options
        with connected(options.server) as connection, connection.cursor() as cursor:
            if options.query:
                cursor.execute(f"SELECT * FROM {self._from()} LIMIT 0", ())
                found = [(name, _NUMBERED.get(code, "text")) for name, code, *_ in cursor.description]
                return [Column(name, kind, kind, read_type(kind), nullable=True) for name, kind in found]
            cursor.execute(COLUMNS, [options.schema, options.table])
            columns = [column_of(*row) for row in cursor.fetchall()]
            if not columns:
                cursor.execute(
                    "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s", [options.schema]
                )
                raise self._no_table([name for (name,) in cursor.fetchall()])
            return columns

    def _receive(
        self,
        columns: Sequence[tuple[Column, SqlType]],
        conditions: Sequence[tuple[Column, Condition]],
        received: io.BytesIO,
    ) -> None:
        query = self._select(line(columns), conditions)
        with connected(self.options.server) as connection:
            try:
                receive(connection, query, received, self.options.what)
            except library().Error as cause:
                raise failure(cause, self.options.server, self.options.name) from cause

    def _shown(self, columns: Sequence[tuple[Column, SqlType]], conditions: Sequence[tuple[Column, Condition]]) -> str:
        return self._select(", ".join(quoted(column.name) for column, _ in columns), conditions).replace("%%", "%")

    def _select(self, items: str, conditions: Sequence[tuple[Column, Condition]]) -> str:
        parts = ["(" + self.options.where.replace("%", "%%") + ")"] if self.options.where else []
        parts += [_tested(column, condition) for column, condition in conditions]
        return f"SELECT {items} FROM {self._from()}" + (f" WHERE {' AND '.join(parts)}" if parts else "")

    def _is_tested(self, column: Column, condition: Condition) -> bool:
        if self.options.query:  # the types of its columns are not all known
            return False
        wanted = condition.column.type
        if not condition.values:
            return wanted != JSONB
        if column.kind in WHOLE:
            return wanted.is_integer or wanted.name == "numeric"
        if column.kind in TEXTS:  # other characters may be missing in the character set of the column
            return wanted == VARCHAR and all(isinstance(v, str) and v.isascii() for v in condition.values)
        return column.type == wanted and column.kind in ("date", "datetime", "decimal")

    def _from(self) -> str:
        if self.options.query:
            return f"({self.options.query.replace('%', '%%')}) AS q"
        return quoted(self.options.schema, self.options.table)


def _tested(column: Column, condition: Condition) -> str:
    """A condition that is true for all rows that satisfy it in Watersmeet, and possibly for more.

    Watersmeet orders texts by their bytes. Equal characters are equal in all collations, so equalities can use an
    index.
    """
    name, operator = quoted(column.name), condition.operator
    if not condition.values:
        return f"{name} {operator}"
    values = [_literal(v) for v in condition.values]
    if operator == "IN":
        return f"{name} IN ({', '.join(values)})"
    if column.kind in TEXTS and operator != "=":
        name, values = f"CAST(CONVERT({name} USING utf8mb4) AS BINARY)", [f"CAST({v} AS BINARY)" for v in values]
    return f"{name} {operator} {values[0]}"


def _literal(value: Constant) -> str:
    if isinstance(value, str):
        return f"_utf8mb4 0x{value.encode().hex()}" if value else "''"
    if isinstance(value, dt.datetime):
        return f"TIMESTAMP'{value.isoformat(' ')}'"
    return f"DATE'{value.isoformat()}'" if isinstance(value, dt.date) else str(value)


def receive(connection: Any, query: str, received: io.BytesIO, what: str) -> None:
    """Writes the lines of a query whose rows are made by `line`. what: the table, for messages. Raises errors of the
    library.
    """
    cursor = connection.cursor(library().cursors.SSCursor)
    cursor.execute(query, ())
    while rows := cursor.fetchmany(_FETCHED_ROWS):
        if (None,) in rows:
            raise error("INVALID_VALUE", f"a row of {what} is longer than the server's max_allowed_packet")
        received.write(b"\n".join([text for (text,) in rows]))
        received.write(b"\n")


def line(columns: Sequence[tuple[Column, SqlType]]) -> str:
    """SQL of a row as a line of CSV in which all values except NULL are quoted."""
    values = ", ',', ".join(_text(column, wanted) for column, wanted in columns)
    return f"CAST(CONCAT({values}) AS BINARY)"


def _text(column: Column, wanted: SqlType) -> str:
    """SQL of a value's text inside quotes, in the form that `convert` reads; empty for NULL."""
    name = quoted(column.name)
    if wanted.name == "bytea":
        text = f"CONCAT(0x5C78, HEX({name}))"
    elif column.kind == "float":
        text = f"({name} * 1e0)"  # the server's text of a float has six digits, and adding 0 would lose the sign of -0
    elif column.kind == "bit":
        text = f"CAST({name} AS UNSIGNED)"
    elif column.kind == "timestamp" and wanted.name == "timestamptz":
        text = f"CONCAT({name}, '+00:00')"
    else:
        text = name
    # a quoted value with doubled quotes
    exact = f"CONVERT({text} USING utf8mb4) COLLATE utf8mb4_bin"
    return f"IFNULL(CONCAT(0x22, REPLACE({exact}, _utf8mb4 0x22, _utf8mb4 0x2222), 0x22), '')"


def _offset(cursor: Any) -> Any:
    """The current offset of the server's log, before which all changes can be read; None if the server has no log."""
    cursor.execute("SELECT @@log_bin, VERSION()")
    logs, version = cursor.fetchone()
    if not logs:
        return None
    if "MariaDB" not in version:
        cursor.execute("SELECT @@gtid_mode, @@gtid_executed, @@server_uuid")
        mode, *offset = cursor.fetchone()
        return tuple(offset) if mode == "ON" else None
    # Changes in the log of MariaDB may not be visible yet. After a snapshot it reports the offset of the snapshot.
    cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    try:
        cursor.execute("SHOW STATUS LIKE 'binlog_snapshot_%'")
        found = dict(cursor.fetchall())
    finally:
        cursor.execute("COMMIT")
    offset = found.get("Binlog_snapshot_file"), found.get("Binlog_snapshot_position")
    return offset if all(offset) else None


def ask(connection: Any, query: str, values: Sequence[object] = ()) -> Sequence[tuple[Any, ...]]:
    """The rows of a query."""
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        found: Sequence[tuple[Any, ...]] = cursor.fetchall()
        return found
