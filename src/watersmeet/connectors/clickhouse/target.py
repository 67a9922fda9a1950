"""The target `clickhouse`: a table of ClickHouse, to which rows are added.

Each batch is one atomic INSERT with a token that identifies the batch. Replicated tables, and tables with
`non_replicated_deduplication_window`, keep tokens and accept each one only once. ClickHouse has no transactions that
write an offset with the rows, so only the database stores the offset. After a crash, a table without tokens may contain
unacknowledged batches twice.

RisingWave, "Sink data from RisingWave to ClickHouse". Timeplus, "ClickHouse External Table".
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.connectors.base.options import OptionSet, OptionSpec
from watersmeet.connectors.base.targets import (
    Delivery,
    SinkBatch,
    SinkOffset,
    Target,
    check_form,
    connector_for,
    rows_that_came,
)
from watersmeet.connectors.clickhouse.client import asked, check_server, literal, quoted
from watersmeet.connectors.clickhouse.types import TIMES, ClickhouseType, clickhouse_type
from watersmeet.connectors.databases.servers import Server
from watersmeet.connectors.databases.targets import passing
from watersmeet.errors import Error, did_you_mean, error
from watersmeet.formats.valuetexts import plain_text
from watersmeet.formats.writers import evaluate_text
from watersmeet.system.process import fault
from watersmeet.values.types import Field, SqlType

SINK_OPTIONS: Final = OptionSet(
    "clickhouse of sinks",
    (
        OptionSpec("clickhouse.url", "The URL of the server's HTTP interface.", is_needed=True),
        OptionSpec("clickhouse.user", "The user.", default="default"),
        OptionSpec("clickhouse.password", "The password of the user.", secret=True),
        OptionSpec("clickhouse.database", "The database.", default="default"),
        OptionSpec("clickhouse.table", "The table, which must exist.", is_needed=True),
    ),
)
_RIGHTS: Final = "INSERT"
#: All rows of a statement are one block, which is stored or not.
_SETTINGS: Final = {
    "max_insert_block_size": 1 << 30,
    "min_insert_block_size_rows": 1 << 30,
    "min_insert_block_size_bytes": 0,
    "input_format_null_as_default": 0,
    "async_insert": 0,
}


class _Column:
    """The conversion of a column's values to those of ClickHouse's column."""

    def __init__(self, column: Field, there: ClickhouseType) -> None:
        self.name = column.name
        self._column = column
        self._there = there
        self._bounds = there.bounds(column.type)

    @property
    def takes(self) -> bool:
        """Whether ClickHouse's column can store the values of this column, at least those that `written` accepts."""
        return self._there.takes(self._column.type)

    @property
    def rounds(self) -> bool:
        """Whether ClickHouse's column would store the values rounded."""
        return self._there.rounds(self._column.type)

    def written(self, values: pa.ChunkedArray, what: str) -> pa.ChunkedArray:
        """The values in the form in which they are sent. Raises DELIVERY_REFUSED for a value that ClickHouse's column
        would change.
        """
        if values.null_count and not self._there.nullable:
            raise self._refused("NULL", what)
        if self._bounds is not None and len(values):
            found, (least, greatest) = pc.min_max(values).as_py(), self._bounds
            value = next((v for v in found.values() if v is not None and not least <= v <= greatest), None)
            if value is not None:
                raise self._refused(str(value), what)
        if _as_text(self._column.type):
            return evaluate_text([values], plain_text("t0", self._column.type)).cast(pa.string())
        return values

    def _refused(self, value: str, what: str) -> Error:
        return error(
            "DELIVERY_REFUSED",
            f'column "{self.name}" of {what} has type {self._there.shown}, which does not take {value}',
        )


def _as_text(kind: SqlType) -> bool:
    return kind.name in ("time", "interval", "jsonb", "struct")


@dataclass(frozen=True)
class _Table:
    server: Server
    name: str

    @property
    def shown(self) -> str:
        """The name of the table for messages."""
        return f'table "{self.server.database}.{self.name}"'

    @property
    def quoted(self) -> str:
        """The name of the table in statements."""
        return quoted(self.server.database, self.name)


class ClickhouseTarget(Target):
    """See `base.targets.Target`. It keeps no offset."""

    def __init__(self, delivery: Delivery, database_id: str) -> None:
        check_form(delivery)
        if delivery.format.rows == "upsert":
            raise error(
                "FEATURE_NOT_SUPPORTED",
                "connector clickhouse of sinks with type = 'upsert' is not supported",
                hint="type = 'append-only' is.",
            )
        self._delivery = delivery
        self._table = _table(delivery)
        self._name = f"{database_id}-{delivery.target_id}"
        self._columns: list[_Column] = []

    def look(self) -> None:
        """Checks that the table exists and accepts the rows.

        Raises UNDEFINED_OBJECT, UNDEFINED_COLUMN, DATATYPE_MISMATCH, CONNECTOR_OPTION, RUNTIME_UNAVAILABLE.
        """
        table = self._table
        where = f"database = {literal(table.server.database)} AND {{}} = {literal(table.name)}"
        if not self._rows(f"SELECT name FROM system.tables WHERE {where.format('name')}"):
            raise error(
                "UNDEFINED_OBJECT",
                f"there is no {table.shown} in {table.server.shown}",
                hint="Create it first: its columns need the names of those that are written.",
            )
        found = self._rows(
            f"SELECT name, type, default_kind FROM system.columns WHERE {where.format('table')} ORDER BY position"
        )
        self._columns = self._matched({name: (clickhouse_type(kind), default) for name, kind, default in found})

    def open(self, generation: int) -> SinkOffset | None:  # noqa: ARG002 - it keeps no offset
        with passing():
            self.look()
        return None

    def deliver(self, batches: Sequence[SinkBatch]) -> None:
        for batch in batches:
            offset = batch.offset
            part = (self._name, offset.generation, offset.commit, offset.rows - len(batch.rows), offset.rows)
            token = hashlib.blake2b(repr(part).encode(), digest_size=16).hexdigest()
            with passing():
                self.insert(rows_that_came(batch), token)
            fault("clickhouse.inserted")

    def insert(self, rows: pa.Table, token: str) -> None:
        """Adds all rows or none. token: identifies these rows; INSERTs of other rows must never have the same token."""
        if not len(rows):
            return
        table = self._table
        arrays = [c.written(rows.column(c.name), table.shown) for c in self._columns]
        sent = pa.table(arrays, names=[c.name for c in self._columns]).combine_chunks()
        body = pa.BufferOutputStream()
        with pa.ipc.new_stream(body, sent.schema) as stream:
            stream.write_table(sent)
        listed = ", ".join(f"{name} = {value}" for name, value in _SETTINGS.items())
        listed += f", insert_deduplication_token = {literal(token)}"
        names = ", ".join(quoted(c.name) for c in self._columns)
        statement = f"INSERT INTO {table.quoted} ({names}) SETTINGS {listed} FORMAT ArrowStream"
        asked(table.server, statement, memoryview(body.getvalue()), f"{table.server.database}.{table.name}", _RIGHTS)

    def append(self, rows: pa.Table) -> None:
        """Adds the rows of a statement, with a new token: without one, the server could omit rows that it already
        has.
        """
        self.look()
        self.insert(rows, secrets.token_hex(16))

    def _matched(self, there: dict[str, tuple[ClickhouseType, str]]) -> list[_Column]:
        table, found = self._table, []
        for column in self._delivery.columns:
            if column.name not in there:
                raise error(
                    "UNDEFINED_COLUMN",
                    f'{table.shown} has no column "{column.name}"',
                    detail=f"What is written has one of type {column.type.sql}.",
                    hint=did_you_mean(column.name, there),
                )
            kind, default = there[column.name]
            made = _Column(column, kind)
            if default in ("ALIAS", "MATERIALIZED") or not made.takes:
                why = "computes its values itself" if default else f"has type {kind.shown}"
                raise error(
                    "DATATYPE_MISMATCH",
                    f'column "{column.name}" of {table.shown} {why}'
                    + (", which rounds values" if made.rounds and not default else ""),
                    detail=f"What is written has values of type {column.type.sql} for it.",
                    hint="Times need DateTime64(6)." if kind.name in TIMES else None,
                )
            found.append(made)
        return found

    def _rows(self, query: str) -> list[list[Any]]:
        lines = asked(self._table.server, f"{query} FORMAT JSONCompactEachRow").splitlines()
        return [json.loads(line) for line in lines]


def _table(delivery: Delivery) -> _Table:
    """The target table of a delivery. Raises CONNECTOR_OPTION."""
    options = SINK_OPTIONS.read(delivery.connector)
    parts = urlsplit(options.needed("clickhouse.url"))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise error("CONNECTOR_OPTION", "option clickhouse.url has to be http://host:8123 or https://host:8443")
    is_secure = parts.scheme == "https"
    server = Server(
        parts.hostname,
        parts.port or (8443 if is_secure else 8123),
        options.text("clickhouse.user"),
        options.text("clickhouse.password"),
        options.text("clickhouse.database"),
        "verify-full" if is_secure else "disable",
    )
    check_server(server)
    return _Table(server, options.needed("clickhouse.table"))


CONNECTOR: Final = connector_for(
    ClickhouseTarget, SINK_OPTIONS, remembers=False, append=lambda target, rows: target.append(rows)
)
