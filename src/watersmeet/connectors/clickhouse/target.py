"""The target `clickhouse`: a table of ClickHouse, to which rows are added; for an upsert sink also rows that tell the
table's engine which ones are no longer there.

Each batch is one atomic INSERT with a token that identifies the batch. Replicated tables, and tables with
`non_replicated_deduplication_window`, keep tokens and accept each one only once. ClickHouse has no transactions that
write an offset with the rows, so only the database stores the offset. After a crash, a table without tokens may contain
unacknowledged batches twice.

RisingWave, "Sink data from RisingWave to ClickHouse". Timeplus, "ClickHouse External Table".
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.connectors.base.options import OptionSet, OptionSpec
from watersmeet.connectors.base.sources import TableConnector
from watersmeet.connectors.base.targets import (
    Delivery,
    SinkBatch,
    SinkOffset,
    Target,
    check_form,
    connector_for,
    rows_that_came,
)
from watersmeet.connectors.clickhouse.client import SYSTEM, ClickhouseReader, asked, check_server, literal, quoted
from watersmeet.connectors.clickhouse.types import TIMES, ClickhouseType, clickhouse_type
from watersmeet.connectors.databases.servers import Server
from watersmeet.connectors.databases.targets import passing
from watersmeet.errors import Error, did_you_mean, error
from watersmeet.formats.valuetexts import plain_text
from watersmeet.formats.writers import evaluate_text, row_codes
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
        OptionSpec(
            "clickhouse.delete.column",
            "The column of a ReplacingMergeTree that is 1 in a deleted row; default: that of the engine.",
        ),
    ),
)
#: The engine of a table with its parameters, and the prefixes that don't matter.
_ENGINE: Final = re.compile(r"(?:Replicated|Shared)?(\w+)(?:\(([^()]*)\))?")
_COLLAPSING: Final = ("CollapsingMergeTree", "VersionedCollapsingMergeTree")
_REPLACING: Final = "ReplacingMergeTree"
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
class _Marks:
    """The column by which an engine knows the rows that are no longer there. gone, here: its values for them and for
    others. all_gone: whether the old row of an update is marked as well, not only a deleted one. version: the column
    by which the engine orders the rows of a key; empty: by the order of arrival.
    """

    column: str
    gone: int
    here: int
    all_gone: bool
    version: str = ""


def _marks(engine: str, sorting_key: str, key: Sequence[str], delete_column: str, what: str) -> _Marks:
    """How an upsert sink marks rows in a table. engine: its engine with the parameters. sorting_key: its ORDER BY.

    RisingWave, "Upsert sinks". Raises CONNECTOR_OPTION for a table that would not keep the newest row of each key.
    """
    found = _ENGINE.match(engine)
    name, listed = (found[1], found[2] or "") if found is not None else (engine, "")
    # Replicated engines have two texts before: the path and the name of the replica.
    parameters = [p.strip().strip("`") for p in listed.split(",") if p.strip() and not p.strip().startswith("'")]
    sorted_by = {column.strip().strip("`") for column in sorting_key.split(",")}
    if name in _COLLAPSING:
        marks, fits = _Marks(parameters[0], -1, 1, True, "".join(parameters[1:])), set(key) <= sorted_by
    elif name == _REPLACING:
        column = delete_column or (parameters[1] if len(parameters) > 1 else "")
        if not column:
            raise error(
                "CONNECTOR_OPTION",
                f"{what} has no column that marks deleted rows",
                hint="Write clickhouse.delete.column = '…': a UInt8 column, best that of the engine: "
                "ReplacingMergeTree(version, deleted).",
            )
        marks, fits = _Marks(column, 1, 0, all_gone=False), set(key) == sorted_by
    else:
        raise error(
            "CONNECTOR_OPTION",
            f"{what} has the engine {name}, which keeps all rows that an upsert sink adds",
            hint=f"{', '.join((*_COLLAPSING, _REPLACING))} keep the newest row of each key.",
        )
    if not fits:
        raise error(
            "CONNECTOR_OPTION",
            f"{what} is ordered by ({sorting_key}), and the key of the sink is ({', '.join(key)})",
            detail="Rows replace each other by the ORDER BY of the table.",
            hint=f"Make the table with ORDER BY ({', '.join(key)}).",
        )
    return marks


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
        self._delivery = delivery
        self._upserts = delivery.format.rows == "upsert"
        self._table, self._delete_column = _table(delivery)
        self._marks: _Marks | None = None
        self._name = f"{database_id}-{delivery.target_id}"
        self._columns: list[_Column] = []

    def look(self) -> None:
        """Checks that the table exists and accepts the rows.

        Raises UNDEFINED_OBJECT, UNDEFINED_COLUMN, DATATYPE_MISMATCH, CONNECTOR_OPTION, RUNTIME_UNAVAILABLE.
        """
        table = self._table
        where = f"database = {literal(table.server.database)} AND {{}} = {literal(table.name)}"
        made = self._rows(f"SELECT engine_full, sorting_key FROM system.tables WHERE {where.format('name')}")
        if not made:
            raise error(
                "UNDEFINED_OBJECT",
                f"there is no {table.shown} in {table.server.shown}",
                hint="Create it first: its columns need the names of those that are written.",
            )
        found = self._rows(
            f"SELECT name, type, default_kind FROM system.columns WHERE {where.format('table')} ORDER BY position"
        )
        if self._upserts:
            engine, sorting_key = made[0]
            self._marks = _marks(engine, sorting_key, self._delivery.key, self._delete_column, table.shown)
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
                self.insert(self._marked(batch), token)
            fault("clickhouse.inserted")

    def _marked(self, batch: SinkBatch) -> pa.Table:
        """The rows to add for a batch: of a key first the old row, then the new one."""
        marks = self._marks
        if marks is None:
            return rows_that_came(batch)
        gone, here = np.flatnonzero(batch.diff < 0), np.flatnonzero(batch.diff > 0)
        if not marks.all_gone:
            keys = row_codes(batch.rows.select(self._delivery.key))
            gone = gone[~np.isin(keys[gone], keys[here])]
        rows = batch.rows.take(pa.array(np.concatenate([gone, here])))
        values = np.repeat(np.array([marks.gone, marks.here]), [len(gone), len(here)])
        return rows.append_column(marks.column, pa.array(values, pa.int16()))

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
        written = list(self._delivery.columns)
        if self._marks is not None:
            if self._marks.column in [c.name for c in written]:
                raise error(
                    "CONNECTOR_OPTION",
                    f'column "{self._marks.column}" of {table.shown} marks deleted rows, and the sink has a column of '
                    "the same name",
                )
            if self._marks.version and self._marks.version not in [c.name for c in written]:
                raise error(
                    "CONNECTOR_OPTION",
                    f'column "{self._marks.version}" of {table.shown} orders the rows of a key, and the sink has no '
                    "such column",
                    hint="Add one whose value rises with each change of a row, or use CollapsingMergeTree.",
                )
            written.append(Field(self._marks.column, SqlType("smallint")))
        for column in written:
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


def _table(delivery: Delivery) -> tuple[_Table, str]:
    """The target table of a delivery, and its column for deleted rows. Raises CONNECTOR_OPTION."""
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
    return _Table(server, options.needed("clickhouse.table")), options.text("clickhouse.delete.column")


CONNECTOR: Final = connector_for(
    ClickhouseTarget, SINK_OPTIONS, remembers=False, append=lambda target, rows: target.append(rows)
)

#: The connectors under the names and uses of the registry.
SINKS: Final = {"clickhouse": CONNECTOR}
TABLES: Final = {"clickhouse": TableConnector(ClickhouseReader, SYSTEM.options)}
