"""A client of ClickHouse over HTTP, and the reader of whole tables for external tables and dictionaries.

ClickHouse, "HTTP Interface".
"""

from __future__ import annotations

import base64
import datetime as dt
import http.client
import io
import json
import re
import ssl
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from watersmeet.catalog import External
from watersmeet.connectors.base.sources import Condition, Constant
from watersmeet.connectors.clickhouse.types import DATES, TIMES, WHOLE, ClickhouseType, clickhouse_type
from watersmeet.connectors.databases.servers import (
    Server,
    no_database,
    no_tls,
    not_allowed,
    not_let_in,
    tls_context,
    unreachable,
)
from watersmeet.connectors.databases.tables import System, TableReader
from watersmeet.errors import Error, error
from watersmeet.system.secretvalues import revealed
from watersmeet.values.types import TIMESTAMP, VARCHAR, SqlType

_SYSTEM: Final = "ClickHouse"

#: The maximum time until the server begins or continues an answer.
_TIMEOUT_S: Final = 300

#: Ports of the native protocol, with the HTTP ports of the same servers.
_NATIVE: Final = {9000: 8123, 9440: 8443}

#: The numbers of errors. ClickHouse, "ErrorCodes.cpp".
_LOGIN: Final = (192, 193, 194, 516)

_RIGHT: Final = (164, 291, 497)
_NO_DATABASE: Final = 81
_UNDEFINED: Final = (16, 47, 60)

#: The numbers of temporary problems: memory, disks, concurrent queries, parts to merge, replicas, their coordinator.
_PASSING: Final = (
    *(23, 74, 75, 76, 159, 160, 198, 202, 209, 210, 225, 236, 241, 242, 243, 252, 279, 285, 286, 289, 319, 394),
    *(439, 473, 999),
)

#: The form of messages: `Code: 60. DB::Exception: text. (NAME) (version 26.9.2.1)`; older servers use other forms.
_SAID: Final = re.compile(
    r"Code: (\d+)[.,](?: e\.displayText\(\) =)? DB::Exception: "
    r"(.*?)(?:\. \([A-Z_]+\))?(?:,? \(?(?:version|e\.what).*)?$",
    re.DOTALL,
)

_GRANT: Final = re.compile(r"necessary to have the grant (.+?) ON (\S+?)\.?$")


def check_server(server: Server) -> None:
    """Raises CONNECTOR_OPTION for a known port of another protocol, and for a user name that HTTP can't transmit."""
    if ":" in server.user:
        raise error("CONNECTOR_OPTION", f'user "{server.user}" can\'t be given to ClickHouse over HTTP: it has a colon')
    if server.port in _NATIVE:
        raise error(
            "CONNECTOR_OPTION",
            f"port {server.port} is that of ClickHouse's native protocol",
            hint=f"Write the port of its HTTP interface, {_NATIVE[server.port]} unless it was changed.",
        )


def asked(
    server: Server, sql: str, data: memoryview | bytes | None = None, table: str = "", rights: str = "SELECT"
) -> bytes:
    """The whole answer to a statement. data: the data that follows it. table, rights: the table and the rights that the
    statement needs, for messages.

    Raises the errors of `failure`, and RUNTIME_UNAVAILABLE if the server can't be reached.
    """
    # The server then buffers the answer, so that a late error never follows a part of it.
    parameters = {"database": server.database, "wait_end_of_query": "1"}
    if data is not None:
        parameters["query"] = sql
    token = base64.b64encode(f"{server.user}:{revealed(server.password)}".encode()).decode()
    headers = {"Authorization": f"Basic {token}", "Content-Type": "application/octet-stream"}
    connection = _connection(server)
    try:
        connection.request("POST", f"/?{urlencode(parameters)}", sql.encode() if data is None else data, headers)
        answer = connection.getresponse()
        body = answer.read()
    except ssl.SSLError as cause:
        raise no_tls(_SYSTEM, server, str(cause)) from None
    except (OSError, http.client.HTTPException) as cause:
        raise unreachable(_SYSTEM, server, str(cause) or type(cause).__name__) from None
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        raise failure(server, answer.status, dict(answer.headers), body.decode(errors="replace"), table, rights)
    return body


def _connection(server: Server) -> http.client.HTTPConnection:
    context = tls_context(server.ssl_mode)
    if context is None:
        return http.client.HTTPConnection(server.host, server.port, timeout=_TIMEOUT_S)
    return http.client.HTTPSConnection(server.host, server.port, timeout=_TIMEOUT_S, context=context)


def failure(
    server: Server, status: int, headers: Mapping[str, str], text: str, table: str = "", rights: str = "SELECT"
) -> Error:
    """The error for an answer other than 200.

    It is UNDEFINED_OBJECT if the table is missing, CONNECTOR_OPTION if an administrator must act, RUNTIME_UNAVAILABLE
    for temporary problems.
    """
    found = _SAID.match(text.strip())
    known = headers.get("X-ClickHouse-Exception-Code", "")
    number = int(found[1]) if found else int(known) if known.isdecimal() else 0
    said = (found[2] if found else text).strip()[:2000]
    if number in _LOGIN:
        return not_let_in(_SYSTEM, server, said)
    if number in _RIGHT:
        needed = _GRANT.search(said)
        return not_allowed(server, said, *((needed[2], needed[1]) if needed else (table, rights)))
    if number == _NO_DATABASE:
        return no_database(server)
    if number in _UNDEFINED:
        return error("UNDEFINED_OBJECT", said, detail=f"In {server.shown}.")
    if number in _PASSING or (not number and status >= http.HTTPStatus.INTERNAL_SERVER_ERROR):
        return unreachable(_SYSTEM, server, said or f"It answers {status}.")
    if not number:
        return error(
            "CONNECTOR_OPTION",
            f"{server.host}:{server.port} does not answer as the HTTP interface of ClickHouse",
            detail=said[:200] or f"It answers {status}.",
            hint="Check host and port.",
        )
    return error("CONNECTOR_OPTION", f"{server.shown} refuses: {said}", detail=f"Error {number}.")


def quoted(*names: str) -> str:
    """A quoted name with all its parts."""
    return ".".join("`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`" for name in names)


def literal(text: str) -> str:
    """A text as an SQL literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0")
    return f"'{escaped}'"


SYSTEM: Final = System("clickhouse", "ClickHouse", 8123, None, "", user="default", database="default")

#: Kinds of columns that are not written and may change without a write.
_COMPUTED: Final = "ALIAS"

#: The settings for lists and 64-bit numbers in the form that `convert` reads.
_SETTINGS: Final = "output_format_json_quote_64bit_integers = 0"


class Column(NamedTuple):
    """A column of the server's table."""

    name: str
    clickhouse: ClickhouseType

    @property
    def theirs(self) -> str:
        """See `TableColumn`."""
        return self.clickhouse.shown

    @property
    def type(self) -> SqlType | None:
        """See `TableColumn`."""
        return self.clickhouse.read

    @property
    def nullable(self) -> bool:
        """See `TableColumn`."""
        return self.clickhouse.nullable


class ClickhouseReader(TableReader[Column]):
    """See `TableReader`."""

    def __init__(self, external: External) -> None:
        super().__init__(external, SYSTEM)
        check_server(self.options.server)

    def version(self) -> Any:
        """The parts of a table of the MergeTree family, which every write changes. For other tables, views and queries,
        a new value each time, or the result of invalidate_query.
        """
        options = self.options
        if options.invalidate_query:
            return self._asked(options.invalidate_query)
        if options.query or options.where:
            return time.monotonic_ns()
        where = f"database = {literal(options.schema)} AND {{}} = {literal(options.table)}"
        found = self._rows(
            f"SELECT engine, toString(uuid), create_table_query FROM system.tables WHERE {where.format('name')}"
        )
        if not found or not found[0][0].endswith("MergeTree"):
            return time.monotonic_ns()
        of_columns = f"FROM system.columns WHERE {where.format('table')}"
        if self._rows(f"SELECT toString(count()) {of_columns} AND default_kind = '{_COMPUTED}'") != [["0"]]:
            return time.monotonic_ns()
        parts = (
            "SELECT toString(count()), toString(groupBitXor(cityHash64(name, hash_of_all_files))) FROM system.parts "
            f"WHERE {where.format('table')} AND active"
        )
        return found, self._rows(parts)

    def written(self) -> dict[str, str]:
        """See `clickhouse.target`."""
        options, server = self.options, self.options.server
        if options.query or options.where:
            return {}
        host = f"[{server.host}]" if ":" in server.host else server.host
        scheme = "http" if tls_context(server.ssl_mode) is None else "https"
        return {
            "connector": "clickhouse",
            "clickhouse.url": f"{scheme}://{host}:{server.port}",
            "clickhouse.user": server.user,
            "clickhouse.password": server.password,
            "clickhouse.database": server.database,
            "clickhouse.table": options.table,
        }

    def _described(self) -> list[Column]:
        options = self.options
        if options.query:
            described = self._rows(f"DESCRIBE TABLE {self._from()}")
        else:
            where = f"WHERE database = {literal(options.schema)}"
            described = self._rows(
                f"SELECT name, type FROM system.columns {where} AND table = {literal(options.table)} ORDER BY position"
            )
            if not described:
                raise self._no_table([name for (name,) in self._rows(f"SELECT name FROM system.tables {where}")])
        return [Column(name, clickhouse_type(theirs)) for name, theirs, *_ in described]

    def _receive(
        self,
        columns: Sequence[tuple[Column, SqlType]],
        conditions: Sequence[tuple[Column, Condition]],
        received: io.BytesIO,
    ) -> None:
        items = ", ".join(_text(column, wanted) for column, wanted in columns)
        received.write(self._asked(f"{self._select(items, conditions)} SETTINGS {_SETTINGS} FORMAT CSV"))

    def _shown(self, columns: Sequence[tuple[Column, SqlType]], conditions: Sequence[tuple[Column, Condition]]) -> str:
        return self._select(", ".join(quoted(column.name) for column, _ in columns), conditions)

    def _select(self, items: str, conditions: Sequence[tuple[Column, Condition]]) -> str:
        parts = [f"({self.options.where})"] if self.options.where else []
        parts += [_tested(column, condition) for column, condition in conditions]
        return f"SELECT {items} FROM {self._from()}" + (f" WHERE {' AND '.join(parts)}" if parts else "")

    def _from(self) -> str:
        if self.options.query:
            return f"({self.options.query})"
        return quoted(self.options.schema, self.options.table)

    def _is_tested(self, column: Column, condition: Condition) -> bool:
        wanted, theirs = condition.column.type, column.clickhouse
        if not condition.values:
            return not wanted.is_nested and wanted.name != "jsonb"
        if theirs.name in WHOLE:
            least, greatest = WHOLE[theirs.name]
            return (wanted.is_integer or wanted.name == "numeric") and all(
                isinstance(v, int) and least <= v <= greatest for v in condition.values
            )
        if theirs.name == "String":  # ordered by their bytes in both systems
            return wanted == VARCHAR
        if theirs.name.startswith("Decimal"):
            return column.type == wanted
        bounds = (DATES | TIMES).get(theirs.name)
        return (
            bounds is not None
            and column.type == wanted
            and all(isinstance(v, type(bounds[0])) and bounds[0] <= v <= bounds[1] for v in condition.values)
        )

    def _rows(self, query: str) -> list[list[Any]]:
        lines = self._asked(f"{query} FORMAT JSONCompactEachRow").splitlines()
        return [json.loads(line) for line in lines]

    def _asked(self, query: str) -> bytes:
        return asked(self.options.server, query, table=self.options.name)


def _tested(column: Column, condition: Condition) -> str:
    """A condition that selects exactly the rows that it would select in Watersmeet."""
    name, operator = quoted(column.name), condition.operator
    if not condition.values:
        return f"{name} {operator}"
    values = ", ".join(_literal(column, v) for v in condition.values)
    return f"{name} IN ({values})" if operator == "IN" else f"{name} {operator} {values}"


def _literal(column: Column, value: Constant) -> str:
    theirs = column.clickhouse
    if isinstance(value, str):
        return literal(value)
    if isinstance(value, dt.datetime):
        return f"toDateTime64('{value.isoformat(' ', 'microseconds')}', 6, 'UTC')"
    if isinstance(value, dt.date):
        return f"{'toDate' if theirs.name == 'Date' else 'toDate32'}('{value.isoformat()}')"
    if theirs.name.startswith("Decimal"):
        _, scale = theirs.decimal
        return f"toDecimal128('{value:f}', {scale})"
    return str(value)


def _text(column: Column, wanted: SqlType) -> str:
    """The expression of a value's text in the form that `convert` reads."""
    name, theirs = quoted(column.name), column.clickhouse
    if wanted.name == "bytea":
        return f"concat('\\\\x', hex({name}))"
    if theirs.name in ("Array", "Map", "Tuple", "JSON", "Object"):
        return f"toJSONString({name})"
    if theirs.name == "FixedString":
        return f"toStringCutToZero({name})"
    if theirs.name.startswith("DateTime") and wanted == TIMESTAMP:
        return f"toString({name}, 'UTC')"
    return f"toString({name})"
