"""Change data capture from MariaDB: required settings, tables, snapshots with their GTID, and the binary log."""

from __future__ import annotations

import contextlib
import io
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog import Captured
from watersmeet.connectors.base.options import OptionSet, OptionSpec, refuse
from watersmeet.connectors.databases.captures import (
    Added,
    Batch,
    Changed,
    DatabaseOptions,
    Mask,
    Piece,
    Stream,
    System,
    TablePosition,
    TableThere,
    database_specs,
    server_of,
)
from watersmeet.connectors.databases.servers import SSL_MODES, ssl_mode
from watersmeet.connectors.databases.tables import TableColumn, texts_of
from watersmeet.connectors.mysql.binlog import Gtids, LogBatch, LogReader
from watersmeet.connectors.mysql.client import (
    BYTES,
    COLUMNS,
    NUMBERS,
    TEXTS,
    Column,
    ask,
    column_of,
    connect,
    failure,
    library,
    line,
    quoted,
    receive,
)
from watersmeet.connectors.mysql.logstatements import AddedColumn
from watersmeet.connectors.mysql.rowimages import Charsets
from watersmeet.errors import did_you_mean, error
from watersmeet.system.process import fault
from watersmeet.values.types import VARCHAR, Schema, SqlType

_TABLE: Final = "SELECT ENGINE, TABLE_TYPE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"

_KEY: Final = """
SELECT COLUMN_NAME, SUB_PART FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND INDEX_NAME = 'PRIMARY' ORDER BY SEQ_IN_INDEX
"""

_VIRTUAL: Final = """
SELECT COLUMN_NAME FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND EXTRA LIKE '%%VIRTUAL GENERATED%%'
"""

#: Settings that the server must have: (name, value, the problem of another value, the remedy).
_SETTINGS: Final = (
    ("log_bin", "ON", "Its log of changes is off.", "Start the server with log_bin."),
    ("binlog_format", "ROW", "Its log has statements, not rows.", "Run SET GLOBAL binlog_format = ROW there."),
    ("binlog_row_image", "FULL", "Its log lacks columns.", "Run SET GLOBAL binlog_row_image = FULL there."),
    (
        "binlog_row_metadata",
        "FULL",
        "Its log lacks the names of columns.",
        "Run SET GLOBAL binlog_row_metadata = FULL there (MariaDB has it from 10.5 on).",
    ),
)

_MISSING_TABLE: Final = 1146

#: The engines whose snapshots contain rows and the log offset of one moment.
_ENGINES: Final = ("InnoDB", "ROCKSDB")

#: The types whose values are inexact, or whose order as texts differs from ORDER BY.
_UNORDERED: Final = ("enum", "set", "float", "double", "bit", "uuid", "inet4", "inet6")


class Rows(NamedTuple):
    """Rows that were read. texts: the values by column. upto: the texts of the greatest key; empty: the end of the
    table. offset: the snapshot contains exactly the transactions up to this offset.
    """

    texts: list[pa.Array]
    upto: tuple[str, ...]
    offset: Gtids


def check_server(connection: Any, options: DatabaseOptions) -> None:
    """Raises CONNECTOR_OPTION if the server does not write the required log, FEATURE_NOT_SUPPORTED for MySQL itself."""
    where = f"{options.server.host}:{options.server.port}"
    ((version,),) = ask(connection, "SELECT VERSION()")
    if "MariaDB" not in version:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"the server at {where} is MySQL {version}, whose changes are not captured",
            hint="Changes of MariaDB are. Debezium's messages of MySQL are read from Kafka.",
        )
    known = dict(ask(connection, "SHOW GLOBAL VARIABLES WHERE Variable_name IN %s", [[s[0] for s in _SETTINGS]]))
    for name, wanted, detail, hint in _SETTINGS:
        if (found := known.get(name, "nothing")) != wanted:
            refuse(f"the MySQL server at {where} has {name} = {found}", detail=detail, hint=hint)


def end_of_log(connection: Any) -> str:
    """An offset after all transactions that are committed now."""
    ((offset,),) = ask(connection, "SELECT @@gtid_binlog_pos")
    return str(Gtids.parsed(offset or ""))


def table_there(connection: Any, options: DatabaseOptions, schema: str, name: str) -> TableThere:
    """A table that can be captured. Raises UNDEFINED_OBJECT, CONNECTOR_OPTION."""
    shown = f"{schema}.{name}"
    try:
        ask(connection, f"SELECT 1 FROM {quoted(schema, name)} LIMIT 0")
    except library().Error as cause:
        if cause.args[:1] != (_MISSING_TABLE,):
            raise failure(cause, options.server, shown) from cause
        others = ask(connection, "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s", [schema])
        raise error(
            "UNDEFINED_OBJECT",
            f'there is no table "{shown}" in {options.server.shown}',
            hint=did_you_mean(name, [n for (n,) in others]) or "Check the table and its database.",
        ) from cause
    ((engine, kind),) = ask(connection, _TABLE, [schema, name])
    if kind != "BASE TABLE":
        refuse(f'changes of "{shown}" are not captured: it is a {kind.lower()}')
    if engine not in _ENGINES:
        refuse(
            f'table "{shown}" has engine {engine}, which has no transactions',
            hint=f"ALTER TABLE {shown} ENGINE = InnoDB gives it some.",
        )
    key = ask(connection, _KEY, [schema, name])
    if not key or any(size is not None for _, size in key):
        refuse(
            f'table "{shown}" has no primary key of whole columns',
            detail="By their keys changes find the rows that they change.",
            hint=f"ALTER TABLE {shown} ADD PRIMARY KEY (…) gives it one.",
        )
    columns, virtual = _columns(connection, schema, name)
    types = {c.name: _words(c) for c in columns}
    unwritten = dict.fromkeys(virtual, "is virtual, and the server does not write its changes")
    return TableThere(schema, name, 0, columns, tuple(k for k, _ in key), types, unwritten)


def _columns(connection: Any, schema: str, name: str) -> tuple[tuple[Column, ...], set[str]]:
    """The columns that the log contains, and the names of the others."""
    virtual = {n for (n,) in ask(connection, _VIRTUAL, [schema, name])}
    found = (column_of(*row) for row in ask(connection, COLUMNS, [schema, name]))
    return tuple(c for c in found if c.name not in virtual), virtual


def _words(column: Column) -> str:
    """The type of a column in the form of `MapColumn.words`."""
    if "COMPRESSED" in column.theirs:
        return "compressed"
    if column.kind in TEXTS:
        return "text"
    if column.kind in (*BYTES, "uuid"):
        return "binary"
    if column.kind == "decimal":
        return column.theirs.partition(")")[0].replace(" ", "") + ")"
    return f"{column.kind} unsigned" if "unsigned" in column.theirs and column.kind in NUMBERS else column.kind


def read_rows(
    connection: Any, there: TableThere, columns: Sequence[str], after: Sequence[str], rows: int
) -> Rows | None:
    """The next rows after the key `after`; None if the table's columns have changed. Raises errors of the library, and
    FEATURE_NOT_SUPPORTED for a key whose texts have a different order.
    """
    known = {c.name: c for c in there.columns if isinstance(c, Column)}
    for name in there.key:
        if known[name].kind in _UNORDERED:
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f'table "{there.shown}" has a key of type {known[name].kind}, by which its rows are not read in pieces',
                hint="WITH (snapshot = 'false') follows its changes alone.",
            )
    names = [*columns, *(k for k in there.key if k not in columns)]
    where = f" WHERE {_behind([known[k] for k in there.key], after)}" if after else ""
    order = ", ".join(quoted(k) for k in there.key)
    lines = line([(known[n], _form(known[n])) for n in names])
    query = f"SELECT {lines} FROM {quoted(there.schema, there.name)}{where} ORDER BY {order} LIMIT {rows}"
    received = io.BytesIO()
    ask(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    ask(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
    try:
        found = {n.lower(): v for n, v in ask(connection, "SHOW STATUS LIKE 'binlog_snapshot_%%'")}
        file, position = found["binlog_snapshot_file"], int(found["binlog_snapshot_position"])
        ((offset,),) = ask(connection, "SELECT BINLOG_GTID_POS(%s, %s)", [file, position])
        receive(connection, query, received, f'table "{there.shown}"')
        # The read locks the columns until it ends, and none changed after the snapshot.
        if _columns(connection, there.schema, there.name)[0] != there.columns:
            return None
    finally:
        ask(connection, "ROLLBACK")
    texts = texts_of(received.getbuffer(), len(names))
    count = len(texts[0])
    upto = () if count < rows else tuple(texts[names.index(k)][count - 1].as_py() for k in there.key)
    return Rows(texts[: len(columns)], upto, Gtids.parsed(offset or ""))


def _form(column: Column) -> SqlType:
    """The type to which a column is cast, so that its texts equal those of the log."""
    return SqlType("bytea") if column.kind in BYTES else VARCHAR


def _behind(key: Sequence[Column], after: Sequence[str]) -> str:
    """The condition that a key is greater. A comparison of whole rows would read the table from its start."""
    name, value = quoted(key[0].name), _literal(key[0], after[0])
    if len(key) == 1:
        return f"{name} > {value}"
    return f"({name} >= {value} AND ({name} > {value} OR {_behind(key[1:], after[1:])}))"


def _literal(column: Column, text: str) -> str:
    if column.kind in NUMBERS:
        return text
    if column.kind in BYTES:
        return f"x'{text[2:]}'"
    escaped = text.encode().hex()
    return f"CONVERT(x'{escaped}' USING utf8mb4)" if text else "''"


CONNECTOR: Final = "mysql-cdc"
SERVER_ID: Final = "server.id"

#: The range of replica numbers.
SERVER_IDS: Final = (1, (1 << 32) - 1)

#: MySQL's names of the levels of TLS.
_MODES: Final = ("disabled", "preferred", "required", "verify_ca", "verify_identity")


@dataclass(frozen=True)
class MysqlOptions(DatabaseOptions):
    """server_id: the number of the log's reader among the replicas of the server."""

    server_id: int


CAPTURE_OPTIONS: Final = OptionSet(
    CONNECTOR,
    database_specs(
        3306,
        (*SSL_MODES, *_MODES),
        OptionSpec(
            SERVER_ID,
            "The number of the reader among the replicas of the server; generated if missing.",
            "integer",
            default=SERVER_IDS[0],
            minimum=SERVER_IDS[0],
            maximum=SERVER_IDS[1],
        ),
    ),
)


def database_options(given: Mapping[str, str]) -> MysqlOptions:
    """The options, with a server_id already chosen. Raises CONNECTOR_OPTION for missing, unknown or invalid options."""
    options = CAPTURE_OPTIONS.read(given)
    options.check()
    server = server_of(options, ssl_mode(options.choice("ssl.mode").replace("_", "-")))
    return MysqlOptions(server, server.database, options.flag("auto.schema.change"), options.number(SERVER_ID))


#: The offset is committed after this many bytes of the server's log even if no table changed.
_IDLE_BYTES: Final = 16 << 20

#: The maximum time per call for which a piece waits for the log to reach its offset.
_LOOK_S: Final = 0.05

#: The types whose values are not read.
_UNREAD: Final = (
    *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"),
    *("geometrycollection", "inet4", "inet6", "vector", "json"),
)

_UUID: Final = r"^\\x(.{8})(.{4})(.{4})(.{4})(.{12})$"


class MysqlSystem(System):
    """See `System`."""

    connector = CONNECTOR
    title = "MariaDB"
    known = CAPTURE_OPTIONS
    wider: ClassVar[Mapping[str, Sequence[str]]] = {
        "smallint": ("boolean", "integer", "bigint", "numeric"),
        "integer": ("bigint", "numeric"),
        "bigint": ("numeric",),
        "real": ("double precision",),
        "varchar": ("jsonb",),
    }
    has_schemas = False

    def options(self, given: Mapping[str, str]) -> MysqlOptions:
        return database_options(given)

    def defaults(self, given: Mapping[str, str]) -> dict[str, str]:  # noqa: ARG002
        lowest, highest = SERVER_IDS
        return {SERVER_ID: str(lowest + secrets.randbelow(highest - lowest + 1))}

    @contextlib.contextmanager
    def connected(self, options: DatabaseOptions) -> Iterator[Any]:
        with contextlib.closing(connect(options.server)) as connection:
            try:
                yield connection
            except library().Error as cause:
                raise failure(cause, options.server) from cause

    def check(self, connection: Any, options: DatabaseOptions) -> None:
        check_server(connection, options)
        # the server only checks the right to read the log when it is read
        LogReader(options.server, _own(options).server_id, Gtids.parsed(end_of_log(connection)), None).close()

    def table(self, connection: Any, options: DatabaseOptions, name: str) -> TableThere:
        schema, _, table = name.rpartition(".")
        return table_there(connection, options, schema or options.schema, table)

    def can_read(self, column: TableColumn) -> bool:
        return not (isinstance(column, Column) and (column.kind in _UNREAD or "COMPRESSED" in column.theirs))

    def publish(self, connection: Any, options: DatabaseOptions, table: TableThere | None) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def begin(self, connection: Any, options: DatabaseOptions) -> tuple[str, tuple[str, ...]]:  # noqa: ARG002
        return end_of_log(connection), ()

    def stream(self, options: DatabaseOptions, offset: str, history: str) -> Stream:  # noqa: ARG002
        return BinlogStream(_own(options), offset)

    def end(self, options: DatabaseOptions) -> str:
        with self.connected(options) as connection:
            return end_of_log(connection)

    def has(self, offset: str, other: str) -> bool:
        return Gtids.parsed(offset).has(Gtids.parsed(other))

    def lag(self, options: DatabaseOptions, offset: str) -> tuple[int | None, int | None]:  # noqa: ARG002
        return None, None


class _Pending(NamedTuple):
    """A piece at an offset that the reader of the log has not reached yet. of: the table and its position at that
    time.
    """

    of: tuple[Captured, TablePosition | None]
    piece: Piece
    offset: Gtids


class BinlogStream(Stream):
    """See `Stream`.

    A piece of a table is read at a known offset of the log, and returned when the log has been read up to exactly this
    offset. Until then all changes of the table are applied, also to rows that no piece contains yet. So all rows up to
    the key of the newest piece always equal the server's rows at the offset; a piece replaces rows that earlier changes
    inserted.
    """

    def __init__(self, options: MysqlOptions, offset: str) -> None:
        self._options = options
        self._pending: _Pending | None = None
        self._added: Mapping[tuple[str, str], list[AddedColumn]] = {}
        self._columns: dict[tuple[str, str], dict[str, Column]] = {}
        self._unchanged: set[tuple[str, str]] = set()
        self._connection = connect(options.server)
        try:
            check_server(self._connection, options)
            known = Charsets(self._connection)
            self._reader = LogReader(options.server, options.server_id, Gtids.parsed(offset), known)
        except BaseException:
            self._connection.close()
            raise
        self.committed(offset)
        self.reached = offset

    def read(self, wait_s: float, tables: Callable[[], Collection[tuple[str, str]]]) -> Batch | None:
        until = None if self._pending is None else self._pending.offset
        batch = self._reader.read(wait_s if until is None else _LOOK_S, tables, until)
        self.reached = str(self._reader.reached)
        if batch is not None:
            self._unchanged -= {(r.table.schema, r.table.name) for r in batch.rows}
        return batch

    def committed(self, offset: str) -> None:  # noqa: ARG002
        self._read_bytes, self._files = self._reader.read_bytes, self._reader.files

    def is_far_from(self, offset: str) -> bool:
        """Also true after the start of a new log file, because old files are purged."""
        is_far = self._reader.read_bytes - self._read_bytes >= _IDLE_BYTES or self._reader.files != self._files
        return is_far and self.reached != offset

    def close(self) -> None:
        self._reader.close()
        self._connection.close()

    def table(self, schema: str, name: str) -> TableThere:
        return table_there(self._connection, self._options, schema, name)

    def piece(
        self, captured: Captured, there: TableThere, columns: Sequence[str], position: TablePosition | None
    ) -> Piece | None:
        if self._pending is None or self._pending.of != (captured, position):
            fault("capture.chunk")
            name = (there.schema, there.name)
            before = position or TablePosition()
            if position is None:
                self._unchanged.add(name)
            try:
                found = read_rows(self._connection, there, columns, before.upto, captured.batch_rows)
            except library().Error as cause:
                raise failure(cause, self._options.server, ".".join(name)) from cause
            if found is None:
                return None
            rows = before.rows + len(found.texts[0])
            moved = replace(before, done=not found.upto, upto=found.upto or before.upto, rows=rows)
            self._pending = _Pending((captured, position), Piece(found.texts, moved, replaces=True), found.offset)
        if not self._reader.reached.has(self._pending.offset):
            return None
        piece, self._pending = self._pending.piece, None
        return piece._replace(replaces=(there.schema, there.name) not in self._unchanged)

    def wanted(
        self,
        captured: Captured,  # noqa: ARG002
        key: Sequence[str],  # noqa: ARG002
        position: TablePosition,  # noqa: ARG002
        batch: Batch,  # noqa: ARG002
        change: Changed,
    ) -> Mask:
        return np.ones(len(change.transactions), np.bool_)

    def behind(self, position: TablePosition, offset: str) -> TablePosition:  # noqa: ARG002
        return position

    def stopped(self, captured: Captured, batch: Batch) -> str:
        assert isinstance(batch, LogBatch)
        name = (captured.schema, captured.table)
        shown = f'table "{captured.schema}.{captured.table}"'
        if why := batch.stopped.get(name):
            return why
        known = {c.lower(): c for c in captured.types}
        for column, why in batch.touched.get(name, {}).items():
            if not column:
                return f"{shown} {why}"
            if column in known:
                return f'column "{known[column]}" of {shown} {why}'
        return ""

    def added(self, captured: Captured, batch: Batch) -> Added | None:
        assert isinstance(batch, LogBatch)
        name = (captured.schema, captured.table)
        if name not in batch.added:
            return None
        self._added = batch.added
        return Added((*captured.types, *(c.name for c in batch.added[name])), batch.offset, begins_again=True)

    def added_now(self, there: TableThere, position: TablePosition | None) -> Added | None:
        # Changes of a table and of its columns are ignored before its first rows are read.
        return Added(tuple(there.types), self.reached) if position is None else None

    def value_before(self, there: TableThere, column: str) -> str | None:
        added = self._added.get((there.schema, there.name), ())
        found = next((c for c in added if c.name == column), AddedColumn(column, None))
        if found.why:
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f'column "{column}" was added to table "{there.shown}", and {found.why}',
                detail="The server writes no changes of rows for that.",
            )
        return found.value

    def plain(self, captured: Captured, columns: Schema, texts: Sequence[pa.Array]) -> list[pa.Array]:
        known = self._described(captured, columns)
        done = []
        for column, text in zip(columns, texts, strict=True):
            kind, wanted = known[column.name].kind if column.name in known else "", column.type.name
            if kind == "timestamp" and wanted == "timestamptz":
                done.append(pc.binary_join_element_wise(text, "+00:00", ""))
            elif wanted == "varchar" and (width := _zerofill_width(known.get(column.name))):
                done.append(pc.utf8_lpad(text, width, "0"))
            elif kind in ("float", "double") and wanted == "varchar":
                done.append(text.cast(pa.float64()).cast(pa.string()))
            elif kind == "uuid":
                done.append(pc.ascii_lower(pc.replace_substring_regex(text, _UUID, r"\1-\2-\3-\4-\5")))
            else:
                done.append(text)
        return done

    def _described(self, captured: Captured, columns: Schema) -> dict[str, Column]:
        """The columns of a table on the server at their first use. Later changes of types stop the table."""
        name = (captured.schema, captured.table)
        known = self._columns.get(name, {})
        if any(c.name not in known for c in columns):
            found = self.table(*name).columns
            known = self._columns[name] = known | {c.name: c for c in found if isinstance(c, Column)}
        return known


def _zerofill_width(column: Column | None) -> int:
    """The number of characters to which the server pads numbers of a column with zeros; 0 if it does not.

    MariaDB, "Numeric Data Type Overview", "ZEROFILL". Floats are texts with all their digits.
    """
    if column is None or "zerofill" not in column.theirs or column.kind in ("float", "double"):
        return 0
    found = re.search(r"\((\d+)(?:,(\d+))?\)", column.theirs)
    return int(found[1]) + (int(found[2] or 0) > 0) if found else 0


def _own(options: DatabaseOptions) -> MysqlOptions:
    assert isinstance(options, MysqlOptions)
    return options
