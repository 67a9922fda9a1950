"""Parts of relations besides their columns, and columns with a special meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from watersmeet.values.times import DAY_US
from watersmeet.values.types import BIGINT, BYTEA, INTEGER, VARCHAR, Field, Schema

#: append: every row is an event of its own; changelog: a row with `_tp_delta` = -1 deletes an equal one. The other
#: modes keep the last row of each primary key; versioned_kv also earlier ones for joins, changelog_kv deletes rows by
#: `_tp_delta` = -1. Timeplus, "Multi-JOINs and ASOF JOINs", "Data to be Joined".
StreamMode = Literal["append", "changelog", "mutable", "versioned_kv", "changelog_kv"]

#: The column with the arrival time of a row, of every stream of Timeplus (TP-61).
TIME_COLUMN: Final = "_tp_time"
#: The column of a stream that has the time of each row (SQLstream, "JOIN clause").
ROWTIME: Final = "ROWTIME"

#: In rows that are written to a changelog stream: 1 for an inserted row, -1 for a deleted one.
DELTA_COLUMN: Final = "_tp_delta"

#: Columns of a topic that are not fields of its records' values: their key, their time, and whether the value is NULL
#: (a tombstone).
KEY_COLUMN: Final = "_key"
RECORD_TIME: Final = "@time"
TOMBSTONE: Final = "@deleted"
#: In records that are written to a topic: NULL replaces the whole value, a tombstone.
VALUE_COLUMN: Final = "_value"
#: Kafka's metadata of a record.
META_COLUMN: Final = "_meta"
#: In topics that a processor writes: the number that orders the records.
RECORD_NUMBER: Final = "@offset"

#: In topics of Kafka: the partition of a record, its offset there, and its headers.
RECORD_PARTITION: Final = "_meta.partition"
RECORD_OFFSET: Final = "_meta.offset"
RECORD_HEADERS: Final = "_meta.headers"

#: The default schema, which always exists; each dialect has its own name for it (`Semantics.schema`).
COMMON_SCHEMA: Final = "public"

#: The default limit of rows that each join of a view may make in one epoch. The largest epoch reads two million rows,
#: so each of them may match fifty others; 100 million short rows are some gigabytes of files and about a minute of
#: work.
MOST_JOIN_ROWS: Final = 100_000_000

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

    ahead_us: a time further ahead of the epoch's own than that does not move the watermark. idle_us: after this time
    without rows the input no longer holds back others; None: it always does. ordered: rows arrive in the order of their
    times: a row earlier than its predecessor is rejected where it is written; times are whole milliseconds.
    """

    column: str
    delay_us: int
    ahead_us: int = DAY_US
    idle_us: int | None = None
    ordered: bool = False

    def renamed(self, names: Mapping[str, str]) -> EventTime:
        """The same with renamed columns."""
        return replace(self, column=names[self.column])


@dataclass(frozen=True, slots=True)
class GeneratedColumn:
    """`column type AS (expression)`: its value follows from other columns of the row.

    sql: the expression as DuckDB SQL in which `c<i>` is column i of `reads`.
    """

    sql: str
    reads: Schema


@dataclass(frozen=True, slots=True)
class ComputedPart:
    """A part of the messages written to a stream, computed from the columns of each row.

    column: its column in the rows. part: "computed key" or "computed partition".
    """

    column: Field
    part: str
    value: GeneratedColumn


#: The meaning of one message of a topic, and the form of changes that a sink delivers. plain: an added row.
#: upsert: the newest row of its key, or, without a value, the deletion of the key. debezium, debezium_mongo: a change,
#: with the old and the new row.
RowForm = Literal["plain", "upsert", "debezium", "debezium_mongo"]
#: The encoding of a key or a value; parquet: only of files.
Encoding = Literal["json", "avro", "protobuf", "csv", "tsv", "xml", "bytes", "string", "int", "long", "parquet"]
#: The value of a field with bytes invalid for its type: NULL, the default of its type, or the message is set aside.
BadField = Literal["null", "default", "dead letter"]


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """How messages become rows, or rows messages.

    encoding: of the value. key_encoding: of the key; None: the key stays bytes (source), or is encoded like the value
    (sink). options: of the encodings, under RisingWave's names (`schema.registry`, `message`, `delimiter`), lower case.
    many_rows: the value of one message may have several rows. defaults: in a NOT NULL column, a NULL or missing field
    becomes the default of its type.
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

    key_format: None for a key that was computed (ON expressions and key change). required: the fields that every record
    with a value has. compacted: its records are the changes of a table, of which the newest of each key counts.
    by_hash: whether the partition of a record follows from its key, as with all producers that hash the key's bytes by
    murmur2. dead_letters: the topic of Kafka for records that can't be decoded; empty: none.
    """

    key_format: str | None
    value_format: str
    partitions: int
    required: tuple[str, ...] = ()
    compacted: bool = False
    by_hash: bool = True
    dead_letters: str = ""

    def renamed(self, names: Mapping[str, str]) -> Topic:
        """The same with renamed columns, without missing ones."""
        return replace(self, required=tuple(names[c] for c in self.required if c in names))


@dataclass(frozen=True, slots=True)
class External:
    """The external location of the content of an external table or dictionary.

    kind: of reader (`connectors.registry`): file, mysql, … name: of the server's table. options: of the reader, names
    in lower case. target: the options of the sink connector that writes it (`connectors.base.targets`); empty if it is
    not written. names: by column, its external name, if it differs. max_age_us: the minimum time between checks for
    changes while queries look it up; 0: whenever views are updated.
    """

    kind: str
    name: str
    options: dict[str, str] = field(default_factory=dict)
    target: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    max_age_us: int = 0

    def named(self, columns: Schema) -> Schema:
        """Columns with their external names."""
        return tuple(replace(c, name=self.names.get(c.name, c.name)) for c in columns)


@dataclass(frozen=True, slots=True)
class Merging:
    """How a row with an existing key is written: the existing row gets its values of `updated`.

    key: columns whose values are unique.
    """

    key: tuple[str, ...]
    updated: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Dictionary:
    """How joins look a dictionary up.

    Timeplus, "Multi-JOINs and ASOF JOINs", "Dictionary", "Direct JOIN with Dictionary".

    ttl_us: how long the answer for a key is reused; None: every row queries. stream: id of the mutable stream that is
    queried first (empty: none). fills: whether rows found only in the source are written to that stream. defaults: of
    attributes, DuckDB SQL: instead of NULL, and for missing keys. keys_below: all keys are whole numbers from 0 up to
    that (None: any keys). bounds: the columns between which a row is valid, both included; the first one is the last
    column of the primary key, and NULL in the second one means no end. Empty: rows are always valid. by_address: keys
    are networks, which the hidden `AddressRanges` looks up by the addresses that they contain.
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
    """The name and columns of a relation when a view that names it was created."""

    name: str
    schema: str
    columns: tuple[str, ...]
