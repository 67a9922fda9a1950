"""Tables of ClickHouse as a whole: what external tables and dictionaries show."""

from __future__ import annotations

import datetime as dt
import io
import json
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from watersmeet.catalog import External
from watersmeet.connectors.base.readers import Condition, Constant
from watersmeet.connectors.clickhouse.client import (
    DATES,
    TIMES,
    WHOLE,
    ClickhouseType,
    asked,
    check_server,
    clickhouse_type,
    literal,
    quoted,
)
from watersmeet.connectors.databases.servers import tls_context
from watersmeet.connectors.databases.tables import System, TableReader
from watersmeet.values.types import TIMESTAMP, VARCHAR, SqlType

SYSTEM: Final = System("clickhouse", "ClickHouse", 8123, None, "", user="default", database="default")
#: Columns that are no part of the rows that are written, and change without them.
_COMPUTED: Final = "ALIAS"
#: Lists, and 64 bits, as the rest reads them.
_SETTINGS: Final = "output_format_json_quote_64bit_integers = 0"


class Column(NamedTuple):
    """A column there."""

    name: str
    clickhouse: ClickhouseType

    @property
    def theirs(self) -> str:
        """See `TableColumn`."""
        return self.clickhouse.shown

    @property
    def type(self) -> SqlType | None:
        """See `TableColumn`."""
        return self.clickhouse.here

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
        """The parts that a table of the family MergeTree has: whatever is written makes others. Of other tables and
        views, and of queries, something new each time. invalidate_query: what that gives.
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
        if theirs.name == "String":  # by their bytes, there as here
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
    """A condition that is met by just the rows that meet it here."""
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
    """What gives a value's text, as `convert` reads it."""
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
