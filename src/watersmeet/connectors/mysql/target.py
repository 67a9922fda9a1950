"""Tables of MySQL and MariaDB as targets of the connectors `jdbc` and `mysql`.

Rows are written by multi-row statements, INSERT … ON DUPLICATE KEY UPDATE. Deleted keys are written to a temporary
table, by which rows are deleted.

MySQL may treat two different keys of Watersmeet as equal, because its collations ignore case, accents or trailing
spaces, and other unique indexes also count as keys. If this is possible, the keys are checked after the rows are
written, in the same transaction.

RisingWave, "Sink data from RisingWave to MySQL with the JDBC connector".
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog import Merging
from watersmeet.connectors.base.options import OptionSet, OptionSpec
from watersmeet.connectors.base.sources import TableConnector, Unavailable
from watersmeet.connectors.base.targets import Delivery, RowChange, SinkBatch, check_form, rows_that_came
from watersmeet.connectors.databases.targets import (
    RIGHTS,
    DatabaseTarget,
    TargetColumn,
    TargetTable,
    database_connector,
    named_table,
    table_specs,
)
from watersmeet.connectors.mysql.capture import MysqlSystem
from watersmeet.connectors.mysql.client import (
    LOOSE,
    SYSTEM,
    MysqlReader,
    connect,
    failure,
    library,
    number_and_text,
    quoted,
    rounds,
    takes,
)
from watersmeet.errors import Error, error
from watersmeet.formats.valuetexts import EXACT_JSON, plain_text
from watersmeet.formats.writers import SqlWriter, concatenated, json_writer, places, value_bytes
from watersmeet.system.process import fault
from watersmeet.values.types import VARCHAR, Field, SqlType

#: The SQL mode: no value is silently rounded, truncated or replaced; a backslash is a plain character; 0 does not
#: request a new number.
_SQL_MODE: Final = (
    "STRICT_ALL_TABLES,NO_BACKSLASH_ESCAPES,NO_AUTO_VALUE_ON_ZERO,NO_ZERO_DATE,NO_ZERO_IN_DATE,"
    "ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
)
#: The maximum time to wait for the end of an earlier writer's connection.
_ENDING_S: Final = 30
#: The maximum bytes of a statement, unless a single row is longer.
_STATEMENT_BYTES: Final = 1 << 20
_KEYS_TABLE: Final = "watersmeet_keys"
#: The clause after ON DUPLICATE KEY.
_CLAUSE: Final = re.compile(r"(?i)\s*UPDATE\s")
#: The errors of KILL: the connection has ended, or belongs to another user.
_NOT_KILLED: Final = (1094, 1095)
#: The numbers of errors about a row that the class of SQLSTATE does not show: checks, triggers, values of a type.
_REFUSALS: Final = (1265, 1364, 1366, 1411, 1525, 1644, 3140, 3819, 4025)

_ENGINE: Final = """
SELECT t.TABLE_TYPE, t.ENGINE, e.TRANSACTIONS FROM information_schema.TABLES t
LEFT JOIN information_schema.ENGINES e ON e.ENGINE = t.ENGINE WHERE t.TABLE_SCHEMA = %s AND t.TABLE_NAME = %s
"""
_COLUMNS: Final = """
SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, NUMERIC_SCALE, DATETIME_PRECISION, IS_NULLABLE, COLUMN_DEFAULT, EXTRA,
    CHARACTER_SET_NAME, COLLATION_NAME
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION
"""
_INDEXES: Final = """
SELECT INDEX_NAME, COLUMN_NAME, SUB_PART, NULLABLE FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND NON_UNIQUE = 0
"""


class MysqlRows(NamedTuple):
    """Rows as SQL, `(1,'a')`. keys: the keys of `rows`. gone: the keys of deleted rows. Both are empty for a sink that
    only appends.
    """

    rows: pa.BinaryArray
    keys: pa.BinaryArray
    gone: pa.BinaryArray


class MysqlTarget(DatabaseTarget[MysqlRows]):
    """A target; see `databases.targets`."""

    microseconds = "datetime(6)"

    def __init__(self, delivery: Delivery, database_id: str, table: TargetTable) -> None:
        super().__init__(delivery, database_id, table)
        self._key_texts = json_writer(self._key, EXACT_JSON)
        self._types: dict[str, str] = {}
        """The type of each column in the server's table, with character set and collation."""
        self._are_texts: set[str] = set()
        """The columns with a collation."""
        self._loose: dict[str, str] = {}
        """The column with staged texts, by key column in which the server may treat different texts as equal."""
        self._numbers: set[str] = set()
        """The columns that the server numbers."""
        self._merges = False
        """Whether the server may treat two keys as equal."""
        self._packet_bytes = 0

    def _connect(self) -> Any:
        connection = connect(self._where.server)
        with connection.cursor() as cursor:
            cursor.execute("SET sql_mode = %s", [_SQL_MODE])
            # gap locks between keys would block other writers of the table
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            cursor.execute("SELECT @@max_allowed_packet")
            (self._packet_bytes,) = cursor.fetchone()
        return connection

    def _end_others(self) -> None:
        (other,) = self._run("SELECT IS_USED_LOCK(%s)", [self._application]).fetchone()
        if other is not None:
            try:
                self._run("KILL %s", [other])
            except library().Error as cause:
                if number_and_text(cause)[0] not in _NOT_KILLED:
                    raise
        (held,) = self._run("SELECT GET_LOCK(%s, %s)", [self._application, _ENDING_S]).fetchone()
        if held != 1:
            raise Unavailable(f"another connection delivers {self._delivery.title}, and does not end")

    def _columns(self) -> Mapping[str, TargetColumn]:
        where = [self._where.schema, self._where.table]
        engine = self._run(_ENGINE, where).fetchone()
        if engine is not None and engine[2] != "YES":
            kind = f"has engine {engine[1]}" if engine[0] == "BASE TABLE" else "is a view"
            raise error(
                "CONNECTOR_OPTION",
                f"{self._where.what} {kind}, which has no transactions",
                hint="Name a table of InnoDB.",
            )
        wanted = {c.name: c.type for c in self._delivery.columns}
        found = {}
        self._types, self._are_texts, self._numbers = {}, set(), set()
        for name, kind, shown, scale, digits, nullable, default, extra, charset, collation in self._run(
            _COLUMNS, where
        ):
            column = wanted.get(name)
            computes = extra.endswith(" GENERATED") or "auto_increment" in extra
            accepts = column is not None and takes(column, kind, shown)
            is_rounded = column is not None and accepts and rounds(column, kind, scale, digits)
            required = nullable == "NO" and default is None and not computes and "DEFAULT" not in extra
            found[name] = TargetColumn(shown, accepts, is_rounded, computes, required)
            self._types[name] = f"{shown} CHARACTER SET {charset} COLLATE {collation}" if collation else shown
            if collation:
                self._are_texts.add(name)
            if "auto_increment" in extra:
                self._numbers.add(name)
        return found

    def _unique_keys(self) -> Mapping[frozenset[str], bool]:
        key = frozenset(c.name for c in self._key)
        loose = [c.name for c in self._key if c.type == VARCHAR and self._types[c.name].startswith(LOOSE)]
        self._loose = {name: f"watersmeet_text_{i}" for i, name in enumerate(loose)}
        indexes: dict[str, set[str]] = {}
        nullable = set()
        for name, column, prefix, has_nulls in self._run(_INDEXES, [self._where.schema, self._where.table]):
            if has_nulls == "YES" or column is None or prefix is not None:
                nullable.add(name)
            # an index of an expression or of a column's prefix
            indexes.setdefault(name, set()).add(f"\0{name}" if column is None or prefix is not None else column)
        found = {frozenset(columns): name in nullable for name, columns in indexes.items()}
        if self._delivery.merging is not None:
            self._check_merging(self._delivery.merging, found)
        self._merges = bool(self._loose or key & self._are_texts) or any(not key <= columns for columns in found)
        return found

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._run("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")  # also locks gaps between rows
        with self._transaction():
            self._run(f"SELECT count(*) FROM {self._table} FOR UPDATE")
            yield

    def _change(self, change: RowChange) -> None:
        marks = [f"watersmeet_key_{i}" for i in range(len(change.key))]
        for column, mark in zip(change.key, marks, strict=True):
            self._types[mark] = self._types[column.name]
            if column.name in self._are_texts:
                self._are_texts.add(mark)
        keys = [Field(mark, c.type) for c, mark in zip(change.key, marks, strict=True)]
        columns = (*keys, *(self._delivery.columns if change.rows is not None else ()))
        values = [] if change.rows is None else change.rows.columns
        rows = pa.table([*change.keys.columns, *values], names=[c.name for c in columns])
        listed = ", ".join(f"{quoted(c.name)} {self._types[c.name].replace('%', '%%')}" for c in columns)
        self._run(f"CREATE TEMPORARY TABLE {self._keys_table} ({listed}) ENGINE = InnoDB")
        self._insert(self._keys_table, self._listed(columns), self._written(rows, columns))
        same = self._same([(c.name, mark) for c, mark in zip(change.key, marks, strict=True)])
        joined = f"{self._keys_table} AS c STRAIGHT_JOIN {self._table} AS t ON {same}"
        (found,) = self._run(f"SELECT count(*) FROM {joined}").fetchone()
        self._check_changed(found, change)
        if change.rows is None:
            self._run(f"DELETE t FROM {joined}")
        else:
            changes = ", ".join(f"t.{name} = c.{name}" for name in (quoted(c.name) for c in self._delivery.columns))
            self._run(f"UPDATE {joined} SET {changes}")

    def _check_merging(self, merging: Merging, keys: Collection[frozenset[str]]) -> None:
        """Raises FEATURE_NOT_SUPPORTED if the table has another unique key, by which MySQL could update an unrelated
        row.
        """
        for other in sorted(map(sorted, keys)):
            if not {*merging.key} <= {*other} and not {*other} & self._numbers:
                raise error(
                    "FEATURE_NOT_SUPPORTED",
                    f"MERGE by ({', '.join(merging.key)}) into {self._where.what}, which has more than one unique key, "
                    "is not supported",
                    detail=f"MySQL would compare ({', '.join(name.strip(chr(0)) for name in other)}), too.",
                )

    def _make_progress_table(self) -> None:
        columns = "".join(f", {name} bigint NOT NULL" for name in self._offset_columns())
        self._run(
            f"CREATE TABLE IF NOT EXISTS {self._progress_table} (sink varchar(191) CHARACTER SET ascii COLLATE "
            f"ascii_bin PRIMARY KEY, writer varchar(64) NOT NULL{columns}) ENGINE = InnoDB"
        )

    def _add_progress_row(self) -> None:
        self._run(f"INSERT IGNORE INTO {self._progress_table} VALUES (%s, '', 0, 0, 0, 0)", [self._name])

    def _prepare(self) -> None:
        columns = ", ".join(f"{quoted(c.name)} {self._types[c.name].replace('%', '%%')} NOT NULL" for c in self._key)
        texts = "".join(f", {text} longblob NOT NULL" for text in self._loose.values())
        self._run(
            f"CREATE TEMPORARY TABLE {self._keys_table} (watersmeet_number bigint AUTO_INCREMENT PRIMARY KEY, "
            f"{columns}{texts}) ENGINE = InnoDB"
        )

    def _rows(self, batches: Sequence[SinkBatch]) -> MysqlRows:
        columns, nothing = self._delivery.columns, pa.array([], pa.binary())
        if not self._key:
            return self._added(pa.concat_tables([rows_that_came(p) for p in batches]))
        table, gone = self._newest(batches, self._key_texts)
        came = table.filter(pa.array(~gone))
        keys = self._written_keys(came) if self._merges else nothing
        return MysqlRows(self._written(came, columns), keys, self._written_keys(table.filter(pa.array(gone))))

    def _written_keys(self, rows: pa.Table) -> pa.BinaryArray:
        for name, text in self._loose.items():
            rows = rows.append_column(text, rows.column(name))
        return self._written(rows, self._staged_key)

    @property
    def _staged_key(self) -> tuple[Field, ...]:
        return (*self._key, *(Field(text, VARCHAR) for text in self._loose.values()))

    def _added(self, rows: pa.Table) -> MysqlRows:
        nothing = pa.array([], pa.binary())
        columns = self._delivery.columns
        return MysqlRows(self._written(rows.select([c.name for c in columns]), columns), nothing, nothing)

    def _written(self, rows: pa.Table, columns: Sequence[Field]) -> pa.BinaryArray:
        if not len(rows):
            return pa.array([], pa.binary())
        values = ", ',', ".join(
            f"coalesce({_literal(place, c.type, is_text=c.name in self._are_texts)}, 'NULL')"
            for place, c in zip(places(tuple(columns)), columns, strict=True)
        )
        return SqlWriter(tuple(columns), f"concat('(', {values}, ')')").write(rows)

    def _write(self, rows: MysqlRows) -> None:
        if len(rows.gone):
            self._keep_keys(rows.gone)
            self._run(f"DELETE t FROM {self._keys_table} AS c STRAIGHT_JOIN {self._table} AS t ON {self._same_key}")
        fault("database.copied")
        merging = self._delivery.merging
        if merging is not None:
            clause = self._on_duplicate(merging.key[0], merging.updated)
        elif self._key:
            kept = [c.name for c in self._delivery.columns if c not in self._key]
            clause = self._on_duplicate(self._key[0].name, kept)
        else:
            clause = self._where.on_conflict
        self._insert(self._table, self._names, rows.rows, clause)
        if len(rows.keys):
            self._keep_keys(rows.keys)
            listed = ", ".join(f"t.{quoted(c.name)}" for c in self._key)
            (there,) = self._run(
                f"SELECT count(DISTINCT {listed}) FROM {self._keys_table} AS c STRAIGHT_JOIN {self._table} AS t "
                f"ON {self._same_key}"
            ).fetchone()
            if there != len(rows.keys):
                raise self._refused(
                    "Two keys that differ here are one there: by the type or collation of a column, or by another "
                    "unique index."
                )

    def _keep_keys(self, keys: pa.BinaryArray) -> None:
        self._run(f"DELETE FROM {self._keys_table}")
        self._insert(self._keys_table, self._listed(self._staged_key), keys)

    def _insert(self, table: str, names: str, rows: pa.BinaryArray, behind: str = "") -> None:
        """Writes rows by statements within the server's size limit."""
        before = f"INSERT INTO {table} ({names}) VALUES ".replace("%%", "%").encode()
        after = behind.replace("%%", "%").encode()
        data = value_bytes(concatenated([b",", rows]))
        ends = np.cumsum(np.asarray(pc.binary_length(rows)) + 1)
        room = min(_STATEMENT_BYTES, self._packet_bytes - len(before) - len(after) - 1)
        begin = first = 0
        while first < len(ends):
            last = max(first + 1, int(np.searchsorted(ends, begin + room, side="right")))
            end = int(ends[last - 1])
            if end - begin > self._packet_bytes - len(before) - len(after) - 1:
                raise self._refused(
                    f"A row has {end - begin} bytes, and the server's max_allowed_packet is {self._packet_bytes}."
                )
            self._connection.query(b"".join((before, data[begin + 1 : end], after)))
            begin, first = end, last

    def _on_duplicate(self, of_key: str, updated: Sequence[str]) -> str:
        """The clause by which an existing row takes columns of the written row. of_key: a column of the key."""
        first = quoted(of_key)
        changes = [f"{name} = VALUES({name})" for name in map(quoted, updated)] or [f"{first} = {self._table}.{first}"]
        return f" ON DUPLICATE KEY UPDATE {', '.join(changes)}"

    @property
    def _keys_table(self) -> str:
        return quoted(self._where.schema, _KEYS_TABLE)

    @property
    def _same_key(self) -> str:
        """The condition that a row t has exactly the bytes of the key c."""
        same = self._same([(c.name, c.name) for c in self._key])
        texts = (
            f"CAST(CONVERT(t.{quoted(name)} USING utf8mb4) AS BINARY) = c.{text}" for name, text in self._loose.items()
        )
        return " AND ".join([same, *texts])

    def _same(self, pairs: Sequence[tuple[str, str]]) -> str:
        """The condition that columns of a row t have exactly the bytes of columns of c."""
        conditions = []
        for name, other in pairs:
            own, given = f"t.{quoted(name)}", f"c.{quoted(other)}"
            conditions.append(f"{own} = {given}")
            if name in self._are_texts:
                conditions.append(f"CAST({own} AS BINARY) = CAST({given} AS BINARY)")
        return " AND ".join(conditions)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        connection = self._connection
        connection.begin()
        try:
            yield
        except BaseException:
            with contextlib.suppress(library().Error):
                connection.rollback()
            raise
        connection.commit()

    def _run(self, text: str, parameters: Sequence[Any] = ()) -> Any:
        cursor = self._connection.cursor()
        cursor.execute(text, tuple(parameters))
        return cursor

    def _quoted(self, *names: str) -> str:
        return quoted(*names)

    def _errors(self) -> type[Exception]:
        found: type[Exception] = library().Error
        return found

    def _refusal(self, cause: Any) -> str | None:
        number, text = number_and_text(cause)
        is_row = (getattr(cause, "sqlstate", None) or "").startswith(("22", "23")) or number in _REFUSALS
        return text if is_row else None

    def _failure(self, cause: Any) -> Error:
        return failure(cause, self._where.server, self._where.name, RIGHTS)


def _literal(value: str, kind: SqlType, *, is_text: bool) -> str:
    """DuckDB SQL for the literal of a value; NULL for NULL. is_text: whether the server's column stores texts."""
    name = kind.name
    if is_text:
        return _string(plain_text(value, kind))
    if name == "boolean":
        return f"CASE {value} WHEN true THEN '1' WHEN false THEN '0' END"
    if name == "bytea":
        return f"'x''' || hex({value}) || ''''"
    if kind.is_float:
        # The server reads a number with a point and without exponent as a decimal. It rejects numbers that are not
        # finite.
        text = f"CAST(CAST({value} AS DOUBLE) AS VARCHAR)"
        number = f"CASE WHEN contains({text}, 'e') THEN {text} ELSE {text} || 'e0' END"
        return f"CASE WHEN isfinite({value}) THEN {number} ELSE '''' || {text} || '''' END"
    if name == "timestamptz":
        return _string(f"CAST(CAST({value} AS TIMESTAMP) AS VARCHAR)")
    if name in ("smallint", "integer", "bigint", "numeric"):
        return plain_text(value, kind)
    return _string(plain_text(value, kind))


def _string(text: str) -> str:
    return f"'''' || replace({text}, '''', '''''') || ''''"


SINK_OPTIONS: Final = OptionSet(
    "mysql of sinks",
    table_specs(
        3306,
        OptionSpec("on_conflict", "The effect of an inserted row whose key exists: the end of ON DUPLICATE KEY."),
    ),
)


def _target(delivery: Delivery, database_id: str) -> MysqlTarget:
    """The target of a delivery. Raises CONNECTOR_OPTION for invalid options."""
    check_form(delivery)
    options = SINK_OPTIONS.read(delivery.connector)
    clause = conflict_clause(options.text("on_conflict"))
    return MysqlTarget(delivery, database_id, named_table(options, None, clause))


def conflict_clause(text: str) -> str:
    """The option `on_duplicate_clause` as a clause of INSERT. Raises CONNECTOR_OPTION if it is invalid."""
    if text and not _CLAUSE.match(text):
        raise error(
            "CONNECTOR_OPTION",
            f'on_duplicate_clause can\'t be "{text}"',
            hint="Write UPDATE n = n + VALUES(n), …: what stands behind ON DUPLICATE KEY.",
        )
    return f" ON DUPLICATE KEY {text.strip().replace('%', '%%')}" if text else ""


CONNECTOR: Final = database_connector(_target, SINK_OPTIONS)

#: The connectors under the names and uses of the registry.
SINKS: Final = {"mysql": CONNECTOR}
TABLES: Final = {"mysql": TableConnector(MysqlReader, SYSTEM.options)}
CAPTURES: Final = {"mysql-cdc": MysqlSystem()}
