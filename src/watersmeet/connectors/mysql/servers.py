"""What capturing changes needs of a MariaDB server: its settings, tables, and rows that are there already."""

from __future__ import annotations

import codecs
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from watersmeet.connectors.base.options import refuse
from watersmeet.connectors.databases.captures import DatabaseOptions, TableThere
from watersmeet.connectors.databases.tables import texts_of
from watersmeet.connectors.mysql.client import failure, library, quoted
from watersmeet.connectors.mysql.tables import COLUMNS, Column, column_of, line, receive
from watersmeet.errors import did_you_mean, error
from watersmeet.values.types import VARCHAR, SqlType


class Gtid(NamedTuple):
    """One transaction. Its number in the domain only grows, whichever server it was on."""

    domain: int
    server: int
    number: int


@dataclass(frozen=True)
class Gtids:
    """The last transactions, by domain."""

    last: dict[int, Gtid]

    @classmethod
    def parsed(cls, text: str) -> Gtids:
        """As the server writes them: `0-1-17,3-2-5`."""
        found = (Gtid(*map(int, part.split("-"))) for part in text.replace("\n", "").split(",") if part.strip())
        return cls({g.domain: g for g in found})

    def __str__(self) -> str:
        return ",".join("-".join(map(str, g)) for _, g in sorted(self.last.items()))

    def behind(self, transaction: Gtid) -> Gtids:
        """With one transaction more."""
        return Gtids({**self.last, transaction.domain: transaction})

    def has(self, other: Gtids) -> bool:
        """Whether every transaction of `other` is among these."""
        return all(d in self.last and self.last[d].number >= g.number for d, g in other.last.items())


_TABLE: Final = "SELECT ENGINE, TABLE_TYPE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"

_KEY: Final = """
SELECT COLUMN_NAME, SUB_PART FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND INDEX_NAME = 'PRIMARY' ORDER BY SEQ_IN_INDEX
"""

_VIRTUAL: Final = """
SELECT COLUMN_NAME FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND EXTRA LIKE '%%VIRTUAL GENERATED%%'
"""

#: What the server has to write, and what its settings say of that.
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

#: Engines whose rows and changes are of one moment in a snapshot.
_ENGINES: Final = ("InnoDB", "ROCKSDB")

#: Types whose order as texts is not that of ORDER BY, or whose values are not exact.
_UNORDERED: Final = ("enum", "set", "float", "double", "bit", "uuid", "inet4", "inet6")

_NUMBERS: Final = ("tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "year")
_BYTES: Final = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_TEXTS: Final = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")


class Rows(NamedTuple):
    """Rows that were read. texts: by column. upto: the texts of the greatest key; empty: to the end. place: the
    snapshot has everything up to there, and nothing behind.
    """

    texts: list[pa.Array]
    upto: tuple[str, ...]
    place: Gtids


def ask(connection: Any, query: str, values: Sequence[object] = ()) -> Sequence[tuple[Any, ...]]:
    """The rows that a query gives."""
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        found: Sequence[tuple[Any, ...]] = cursor.fetchall()
        return found


def check_server(connection: Any, options: DatabaseOptions) -> None:
    """CONNECTOR_OPTION if the server does not write what is needed. FEATURE_NOT_SUPPORTED for MySQL itself."""
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
    """Everything that is committed now is before that place."""
    ((place,),) = ask(connection, "SELECT @@gtid_binlog_pos")
    return str(Gtids.parsed(place or ""))


def table_there(connection: Any, options: DatabaseOptions, schema: str, name: str) -> TableThere:
    """A table that can be captured. UNDEFINED_OBJECT, CONNECTOR_OPTION."""
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
    """(the columns that the log has, the names of the others)."""
    virtual = {n for (n,) in ask(connection, _VIRTUAL, [schema, name])}
    found = (column_of(*row) for row in ask(connection, COLUMNS, [schema, name]))
    return tuple(c for c in found if c.name not in virtual), virtual


def _words(column: Column) -> str:
    """The type of a column as `MapColumn.words` has it."""
    if "COMPRESSED" in column.theirs:
        return "compressed"
    if column.kind in _TEXTS:
        return "text"
    if column.kind in (*_BYTES, "uuid"):
        return "binary"
    if column.kind == "decimal":
        return column.theirs.partition(")")[0].replace(" ", "") + ")"
    return f"{column.kind} unsigned" if "unsigned" in column.theirs and column.kind in _NUMBERS else column.kind


def read_rows(
    connection: Any, there: TableThere, columns: Sequence[str], after: Sequence[str], rows: int
) -> Rows | None:
    """The next rows behind the key `after`; None if the table has other columns now. Errors of the library;
    FEATURE_NOT_SUPPORTED for a key of a type that is not ordered as its texts are.
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
        ((place,),) = ask(connection, "SELECT BINLOG_GTID_POS(%s, %s)", [file, position])
        receive(connection, query, received, f'table "{there.shown}"')
        # As it was read, nobody changes its columns before the end, and nobody did behind the snapshot.
        if _columns(connection, there.schema, there.name)[0] != there.columns:
            return None
    finally:
        ask(connection, "ROLLBACK")
    texts = texts_of(received.getbuffer(), len(names))
    count = len(texts[0])
    upto = () if count < rows else tuple(texts[names.index(k)][count - 1].as_py() for k in there.key)
    return Rows(texts[: len(columns)], upto, Gtids.parsed(place or ""))


def _form(column: Column) -> SqlType:
    """As what a column is read, so that its texts are those that the log gives."""
    return SqlType("bytea") if column.kind in _BYTES else VARCHAR


def _behind(key: Sequence[Column], after: Sequence[str]) -> str:
    """That a key is greater. A comparison of rows at once would read the table from its begin."""
    name, value = quoted(key[0].name), _literal(key[0], after[0])
    if len(key) == 1:
        return f"{name} > {value}"
    return f"({name} >= {value} AND ({name} > {value} OR {_behind(key[1:], after[1:])}))"


def _literal(column: Column, text: str) -> str:
    if column.kind in _NUMBERS:
        return text
    if column.kind in _BYTES:
        return f"x'{text[2:]}'"
    escaped = text.encode().hex()
    return f"CONVERT(x'{escaped}' USING utf8mb4)" if text else "''"


#: Charsets whose texts are UTF-8 already.
_UTF8: Final = ("utf8mb4", "utf8mb3", "utf8")

#: The charsets of collations by the numbers that the log has for these. Older servers number collations of each charset
#: in one table, newer ones those that several charsets share in the other.
_COLLATIONS: Final = "SELECT ID, CHARACTER_SET_NAME FROM information_schema.{} WHERE ID IS NOT NULL"

_IS_NUMBERED: Final = """
SELECT 1 FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'information_schema'
AND TABLE_NAME = 'COLLATION_CHARACTER_SET_APPLICABILITY' AND COLUMN_NAME = 'ID'
"""

_SIZES: Final = "SELECT CHARACTER_SET_NAME, MAXLEN FROM information_schema.CHARACTER_SETS"

#: The most bytes, and values, that the server converts at once.
_MOST_BYTES: Final = 1 << 20

_MOST_VALUES: Final = 1000


class Charsets:
    """The charsets of a server, by the numbers of collations. One thread uses it. Errors of the library."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._names = dict(ask(connection, _COLLATIONS.format("COLLATIONS")))
        if ask(connection, _IS_NUMBERED):
            self._names |= dict(ask(connection, _COLLATIONS.format("COLLATION_CHARACTER_SET_APPLICABILITY")))
        self._sizes: dict[str, int] = dict(ask(connection, _SIZES))
        self._tables: dict[str, str] = {}
        self._labels: dict[tuple[int, tuple[bytes, ...]], tuple[str, ...]] = {}

    def has(self, collation: int) -> bool:
        """Whether it is known which charset a collation is of."""
        return collation in self._names

    def decoded(self, values: pa.StringArray, collation: int) -> pa.StringArray:
        """Texts of a column, given as the bytes that the log has."""
        name = self._names[collation]
        if name in _UTF8:
            return values
        encoded = values.cast(pa.binary()).dictionary_encode()
        found = self._texts(encoded.dictionary.to_pylist(), name)
        return pa.array(found, pa.string()).take(encoded.indices)

    def labels(self, labels: tuple[bytes, ...], collation: int) -> tuple[str, ...]:
        """The labels of a type."""
        key = collation, labels
        if key not in self._labels:
            name = self._names[collation]
            known = [x.decode() for x in labels] if name in _UTF8 else self._texts(labels, name)
            self._labels[key] = tuple(known)
        return self._labels[key]

    def _texts(self, values: Sequence[bytes], name: str) -> list[str]:
        if self._sizes.get(name) == 1:
            if name not in self._tables:
                self._tables[name] = "".join(self._converted([bytes([i]) for i in range(256)], name))
            return [codecs.charmap_decode(v, "strict", self._tables[name])[0] for v in values]
        found: list[str] = []
        begin = size_bytes = 0
        for i, value in enumerate(values):
            if i > begin and (size_bytes + len(value) > _MOST_BYTES or i - begin == _MOST_VALUES):
                found += self._converted(values[begin:i], name)
                begin, size_bytes = i, 0
            size_bytes += len(value)
        return found + self._converted(values[begin:], name)

    def _converted(self, values: Sequence[bytes], name: str) -> list[str]:
        if not values:
            return []
        listed = ", ".join(f"CONVERT(CONVERT(x'{v.hex()}' USING {name}) USING utf8mb4)" for v in values)
        (found,) = ask(self._connection, f"SELECT {listed}")
        return list(found)
