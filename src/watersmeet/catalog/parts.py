"""Parts of relations besides their columns, and columns with a special meaning."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeVar

from watersmeet.values import ConflictAction, ReferenceAction
from watersmeet.values.times import DAY_US
from watersmeet.values.types import BIGINT, BYTEA, INTEGER, VARCHAR, Field, Schema

#: The modes of streams. append: every row is a separate event. changelog: a row with `_tp_delta` = -1 deletes an equal
#: row. The other modes keep the last row of each primary key; versioned_kv also keeps earlier rows for joins, and
#: changelog_kv deletes rows by `_tp_delta` = -1. Timeplus, "Multi-JOINs and ASOF JOINs", "Data to be Joined".
StreamMode = Literal["append", "changelog", "mutable", "versioned_kv", "changelog_kv"]

#: The column with the arrival time of a row, which every stream of Timeplus has (TP-61).
TIME_COLUMN: Final = "_tp_time"
#: The column of a stream with the time of each row (SQLstream, "JOIN clause").
ROWTIME: Final = "ROWTIME"

#: The column in rows written to a changelog stream that is 1 for an inserted row and -1 for a deleted row.
DELTA_COLUMN: Final = "_tp_delta"

#: The columns of a topic that are not fields of its records' values: the key, the time, and whether the value is NULL
#: (a tombstone).
KEY_COLUMN: Final = "_key"
RECORD_TIME: Final = "@time"
TOMBSTONE: Final = "@deleted"
#: The column in records written to a topic that replaces the whole value by NULL, which makes a tombstone.
VALUE_COLUMN: Final = "_value"
#: Kafka's metadata of a record.
META_COLUMN: Final = "_meta"
#: The column of topics written by a processor with the number that orders the records.
RECORD_NUMBER: Final = "@offset"

#: The columns of Kafka topics with the partition of a record, its offset, and its headers.
RECORD_PARTITION: Final = "_meta.partition"
RECORD_OFFSET: Final = "_meta.offset"
RECORD_HEADERS: Final = "_meta.headers"

#: The last offset of the partition of a record, in queries that end.
LAST_OFFSET: Final = "_meta.last_offset"

#: The default schema, which always exists; each dialect has its own name for it (`Semantics.schema`).
COMMON_SCHEMA: Final = "public"
#: How statements name the schema of their session's temporary relations, and the prefix of its name. The catalog does
#: not list these schemas.
TEMPORARY: Final = "pg_temp"


def is_temporary(schema: str) -> bool:
    """Whether a schema is that of the temporary relations of a session."""
    return schema.startswith(f"{TEMPORARY}_")


#: The default limit of rows that each join of a view may output in one epoch. The largest epoch reads two million rows,
#: each of which may match fifty others; 100 million short rows are some gigabytes of files and about a minute of work.
MOST_JOIN_ROWS: Final = 100_000_000

#: Whether an epoch computes a view again from the present rows of its inputs: where that is estimated to be cheaper,
#: always if it is possible, or never.
Recomputing = Literal["auto", "always", "never"]
RECOMPUTINGS: Final[tuple[Recomputing, ...]] = ("auto", "always", "never")

#: The default of a column that records the arrival time of a row.
ARRIVAL: Final = "now()"


#: Dead letters as rows. A record of a file has file, line and text; a message has topic, partition, offset, key and
#: value, and text if the value is text.
DEAD_LETTER_COLUMNS: Final[Schema] = (
    Field("source", VARCHAR),
    Field("file", VARCHAR),
    Field("topic", VARCHAR),
    Field("partition", INTEGER),
    Field("offset", BIGINT),
    Field("line", BIGINT),
    Field("key", BYTEA),
    Field("value", BYTEA),
    Field("text", VARCHAR),
    Field("reason", VARCHAR),
    Field("rows", BIGINT),
    Field("epoch", BIGINT),
)


@dataclass(frozen=True, slots=True)
class EventTime:
    """`WATERMARK FOR column AS column - delay`.

    ahead_us: the maximum distance of a time ahead of the epoch's time; times further ahead do not move the watermark.
    idle_us: the idle time after which the input no longer holds back others; None: it always does. ordered: whether
    rows arrive in the order of their times, which are whole milliseconds; a row earlier than its predecessor is then
    rejected when it is written.
    """

    column: str
    delay_us: int
    ahead_us: int = DAY_US
    idle_us: int | None = None
    ordered: bool = False

    def renamed(self, names: Mapping[str, str]) -> EventTime:
        """A copy with renamed columns."""
        return replace(self, column=names[self.column])


@dataclass(frozen=True, slots=True)
class Conflict:
    """`ON CONFLICT action WITH VERSION COLUMN(versions)` of a table. versions: columns; a new row is ignored if its
    values in them are less than those of the row of its key, compared one after the other, NULL below all others.
    """

    action: ConflictAction = "overwrite"
    versions: tuple[str, ...] = ()

    def renamed(self, names: Mapping[str, str]) -> Conflict:
        """A copy with renamed columns."""
        return replace(self, versions=tuple(names[v] for v in self.versions))


@dataclass(frozen=True, slots=True)
class Numbering:
    """The numbers of a sequence, from `start` in steps of `step`, within `least` and `greatest`. None: PostgreSQL's
    default for the type (smallint, integer or bigint). cycles: whether it begins again after its last number. cache:
    the number of CACHE, which only the catalog shows.
    """

    type: str = "bigint"
    start: int | None = None
    step: int = 1
    least: int | None = None
    greatest: int | None = None
    cycles: bool = False
    cache: int = 1

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest number."""
        bits = {"smallint": 15, "integer": 31, "bigint": 63}[self.type]
        least = (1 if self.step > 0 else -(1 << bits)) if self.least is None else self.least
        greatest = ((1 << bits) - 1 if self.step > 0 else -1) if self.greatest is None else self.greatest
        return least, greatest

    @property
    def first(self) -> int:
        """The first number."""
        return self.bounds[self.step < 0] if self.start is None else self.start


@dataclass(frozen=True, slots=True)
class Serial:
    """A column whose value in rows that omit it is the next number of a sequence: of type serial, with GENERATED … AS
    IDENTITY, or with DEFAULT nextval(…).

    sequence: the id of the sequence. identity: `always` or `by default`; empty for others.
    """

    sequence: str
    identity: Literal["", "always", "by default"] = ""


@dataclass(frozen=True, slots=True)
class GeneratedColumn:
    """`column type AS (expression)`: its value follows from other columns of the row.

    sql: the expression as DuckDB SQL, in which `c<i>` is column i of `reads`. yields: whether it is a DEFAULT, which
    only fills the column of rows that are written without it.
    """

    sql: str
    reads: Schema
    yields: bool = False


@dataclass(frozen=True, slots=True)
class Domain:
    """The rules of a domain. name: as statements show it. default: DuckDB SQL for the value of a column without its own
    DEFAULT; empty for NULL. checks: their conditions read a column `value`.
    """

    name: str
    nullable: bool = True
    default: str = ""
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True, slots=True)
class Unique:
    """`UNIQUE (columns)`: no two rows have the same values, where NULL differs from NULL.

    deferrable, deferred: whether SET CONSTRAINTS changes when it is checked, and whether that is at COMMIT. index: the
    id of the index, if CREATE UNIQUE INDEX created it. comment: the text of COMMENT ON CONSTRAINT.
    """

    name: str
    columns: tuple[str, ...]
    deferrable: bool = False
    deferred: bool = False
    index: str = ""
    comment: str = ""

    def renamed(self, names: Mapping[str, str]) -> Unique | None:
        """A copy with renamed columns; None without one of them."""
        return _over(self, names)


@dataclass(frozen=True, slots=True)
class ColumnFamily:
    """`FAMILY name (columns)`: the columns that an INSERT into a coalesced stream sets together."""

    name: str
    columns: tuple[str, ...]

    def renamed(self, names: Mapping[str, str]) -> ColumnFamily:
        """A copy with renamed columns, without missing ones."""
        return replace(self, columns=tuple(names[c] for c in self.columns if c in names))


@dataclass(frozen=True, slots=True)
class Check:
    """`CHECK (expression)`: the expression is not false in any row. text: the expression as it was written. comment: as
    of `Unique`.
    """

    name: str
    condition: GeneratedColumn
    text: str
    comment: str = ""

    def renamed(self, names: Mapping[str, str]) -> Check | None:
        """A copy with renamed columns; None without one of them."""
        reads = self.condition.reads
        if any(c.name not in names for c in reads):
            return None
        text = self.text
        for column in reads:
            if names[column.name] != column.name:
                text = re.sub(rf"(?<![\w\"']){re.escape(column.name)}(?![\w\"'])", names[column.name], text)
        reads = tuple(replace(c, name=names[c.name]) for c in reads)
        return replace(self, condition=replace(self.condition, reads=reads), text=text)


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """`FOREIGN KEY (columns) REFERENCES table (referenced)`: a row without NULL in its columns has the key of a row of
    the table.

    table: its id. referenced: its columns by their names in the stored data. on_delete, on_update: the action
    on the rows that reference a row. deferrable, deferred, comment: as of `Unique`.
    """

    name: str
    columns: tuple[str, ...]
    table: str
    referenced: tuple[str, ...]
    on_delete: ReferenceAction = "no action"
    on_update: ReferenceAction = "no action"
    deferrable: bool = False
    deferred: bool = False
    comment: str = ""

    def renamed(self, names: Mapping[str, str]) -> ForeignKey | None:
        """A copy with renamed columns; None without one of them."""
        return _over(self, names)


Constraint = Unique | Check | ForeignKey
"""A constraint of a table besides its primary key."""

K = TypeVar("K", Unique, ForeignKey)


def _over(key: K, names: Mapping[str, str]) -> K | None:
    if any(c not in names for c in key.columns):
        return None
    return replace(key, columns=tuple(names[c] for c in key.columns))


@dataclass(frozen=True, slots=True)
class ComputedPart:
    """A part of the messages written to a stream, computed from the columns of each row.

    column: the column of the rows that holds it. part: "computed key" or "computed partition".
    """

    column: Field
    part: str
    value: GeneratedColumn


#: The meaning of a message of a topic, and the form in which a sink writes changes. plain: an added row. upsert: the
#: newest row of its key, or without a value the deletion of the key. debezium, debezium_mongo: a change with the old
#: and the new row.
RowForm = Literal["plain", "upsert", "debezium", "debezium_mongo"]
#: The encoding of a key or a value; parquet is only for files.
Encoding = Literal[
    "json", "avro", "protobuf", "csv", "tsv", "xml", "bytes", "string", "int", "long", "parquet", "template"
]
#: The handling of a field whose bytes are invalid for its type: NULL, the default of the type, or rejecting the
#: message.
BadField = Literal["null", "default", "dead letter"]


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """The conversion between messages and rows.

    encoding: the encoding of the value. key_encoding: the encoding of the key; None: the key stays bytes (source), or
    is encoded like the value (sink). options: the options of the encodings under RisingWave's names in lower case
    (`schema.registry`, `message`, `delimiter`). many_rows: whether the value of a message may contain several rows.
    defaults: whether a NULL or missing field of a NOT NULL column becomes the default of its type.
    """

    rows: RowForm = "plain"
    encoding: Encoding = "json"
    key_encoding: Encoding | None = None
    options: dict[str, str] = field(default_factory=dict)
    bad_field: BadField = "dead letter"
    many_rows: bool = False
    defaults: bool = False


@dataclass(frozen=True, slots=True)
class Topic:
    """The formats of a topic's key and value, and its number of partitions.

    key_format: None for a computed key (ON expressions and key change). required: the fields that every record with a
    value has. compacted: whether the records are the changes of a table, so that only the newest record of each key
    counts. by_hash: whether the murmur2 hash of the key's bytes determines the partition of a record. dead_letters: the
    Kafka topic for undecodable records; empty: none.
    """

    key_format: str | None
    value_format: str
    partitions: int
    required: tuple[str, ...] = ()
    compacted: bool = False
    by_hash: bool = True
    dead_letters: str = ""

    def renamed(self, names: Mapping[str, str]) -> Topic:
        """A copy with renamed columns and without missing ones."""
        return replace(self, required=tuple(names[c] for c in self.required if c in names))


@dataclass(frozen=True, slots=True)
class External:
    """The external location of the content of an external table or dictionary.

    kind: the kind of reader (`connectors.registry`): file, mysql, … name: the name of the table on the server. options:
    the options of the reader, with names in lower case. target: the options of the sink connector that writes it
    (`connectors.base.targets`); empty if it is not written. names: the external names of columns if they differ.
    max_age_us: the minimum time between checks for changes while queries look it up; 0: it is checked whenever views
    are updated.
    """

    kind: str
    name: str
    options: dict[str, str] = field(default_factory=dict)
    target: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    max_age_us: int = 0

    def named(self, columns: Schema) -> Schema:
        """The columns with their external names."""
        return tuple(replace(c, name=self.names.get(c.name, c.name)) for c in columns)


@dataclass(frozen=True, slots=True)
class Merging:
    """The rule for writing a row with an existing key: the existing row takes its values of `updated`.

    key: columns whose values are unique.
    """

    key: tuple[str, ...]
    updated: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Dictionary:
    """The way in which joins look up a dictionary.

    Timeplus, "Multi-JOINs and ASOF JOINs", "Dictionary", "Direct JOIN with Dictionary".

    ttl_us: the time for which the answer for a key is reused; None: every row is looked up. stream: the id of the
    mutable stream that is looked up first (empty: none). fills: whether rows found only in the source are written to
    that stream. defaults: DuckDB SQL of the values of attributes that replace NULL and are used for missing keys.
    keys_below: all keys are whole numbers from 0 to below this number (None: any keys). bounds: the columns between
    which a row is valid, both included; the first one is the last column of the primary key, and NULL in the second one
    means no end. Empty: rows are always valid. by_address: whether keys are networks, which the hidden `AddressRanges`
    finds by the addresses that they contain.
    """

    ttl_us: int | None = None
    stream: str = ""
    fills: bool = False
    defaults: dict[str, str] = field(default_factory=dict)
    keys_below: int | None = None
    bounds: tuple[str, ...] = ()
    by_address: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """The name and columns that a relation had when a view that names it was created."""

    name: str
    schema: str
    columns: tuple[str, ...]
