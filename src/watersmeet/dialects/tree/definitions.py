"""Statements that create, alter and drop objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from sqlglot import exp

from watersmeet.catalog import (
    DropWord,
    Index,
    MaterializedView,
    MessageFormat,
    Processor,
    Pump,
    Relation,
    Sink,
    Source,
    Stream,
    StreamMode,
    Table,
    TopicTable,
    View,
)
from watersmeet.catalog.roles import ADMIN
from watersmeet.dialects.tree.statements import Insert, Name, Statement
from watersmeet.errors import Span
from watersmeet.values.types import Field, Schema


@dataclass(frozen=True)
class Watermark:
    """`WATERMARK FOR column AS expression`."""

    column: str
    expression: exp.Expression
    span: Span


@dataclass(frozen=True, kw_only=True)
class Create(Statement):
    """Creates an object. schema: the written qualifier of its name, or None; name_span covers both.

    replaces: CREATE OR REPLACE. makes: the kind of the relation.
    """

    defines: ClassVar[bool] = True

    makes: ClassVar[type[Relation]]

    name: str
    name_span: Span
    schema: str | None
    if_not_exists: bool = False
    replaces: bool = False


@dataclass(frozen=True, kw_only=True)
class CreateRelation(Create):
    """The fields of CREATE TABLE, CREATE SOURCE and similar statements.

    columns: declared columns; a column is not nullable if NOT NULL or part of the primary key; empty: from the
    connector's data. options: WITH options (lower-case names) and those of FORMAT … ENCODE, where `format` is the
    encoding (json, csv, parquet). arrivals: columns that are `AS PROCTIME()`. generated: by column, its `AS
    expression`. declared: by column, its DEFAULT. takes_columns: the columns of the schema precede them. format,
    message_parts: of a connector of messages, as in `catalog.Input`.
    """

    columns: Schema
    primary_key: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    watermarks: tuple[Watermark, ...] = ()
    arrivals: tuple[str, ...] = ()
    generated: Mapping[str, exp.Expression] = field(default_factory=dict)
    declared: Mapping[str, exp.Expression] = field(default_factory=dict)
    takes_columns: bool = False
    format: MessageFormat | None = None
    message_parts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CreateTable(CreateRelation):
    """`CREATE TABLE`.

    append_only: rejects UPDATE and DELETE. query: of CREATE TABLE … AS, with `columns` empty and the names in
    `column_names` (empty: those of the query).
    """

    makes: ClassVar[type[Relation]] = Table

    append_only: bool = False
    query: exp.Expression | None = None
    column_names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CreateSource(CreateRelation):
    """`CREATE SOURCE`."""

    makes: ClassVar[type[Relation]] = Source


@dataclass(frozen=True)
class StreamIndex:
    """`index name (columns) storing (storing)`."""

    name: Name
    columns: tuple[Name, ...]
    storing: tuple[Name, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CreateStream(CreateRelation):
    """`CREATE [MUTABLE] STREAM`. defaults, ranges: as in the catalog.

    ordered: rows are in the order of the time with the watermark. digits: as in the catalog.
    """

    makes: ClassVar[type[Relation]] = Stream

    mode: StreamMode
    defaults: Mapping[str, str]
    digits: Mapping[str, int] = field(default_factory=dict)
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    indexes: tuple[StreamIndex, ...] = ()
    ordered: bool = False


@dataclass(frozen=True, kw_only=True)
class CreateOptions(Create):
    """Creates an object that consists of options, whose names the reader has folded."""

    options: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class CreateTopic(CreateRelation):
    """Lenses' `CREATE TABLE topic (_key type, field type, …) FORMAT (key, value) PROPERTIES (…)`.

    columns: `_key` and the fields, as declared. compacted: whether Kafka keeps only the last record of each key.
    idle_us: the time without records after which it no longer holds back others. None: from the settings.
    """

    makes: ClassVar[type[Relation]] = TopicTable

    key_format: str
    value_format: str
    partitions: int | None = None
    replication: int | None = None
    compacted: bool | None = None
    idle_us: int | None = None


@dataclass(frozen=True, kw_only=True)
class CreateProcessor(Create):
    """Lenses' `INSERT INTO target [STORE KEY AS format VALUE AS format] SELECT STREAM|TABLE …`: a continuous query that
    writes a topic.
    """

    makes: ClassVar[type[Relation]] = Processor

    query: exp.Expression
    key_format: str | None = None
    value_format: str | None = None


@dataclass(frozen=True, kw_only=True)
class CreateView(Create):
    """`CREATE VIEW name [(columns)] AS query`. column_names: empty if the query names the columns."""

    makes: ClassVar[type[Relation]] = View

    query: exp.Expression
    column_names: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Emit:
    """When a view outputs rows: `EMIT CHANGES`, `EMIT ON WINDOW CLOSE`, `EMIT ON ARRIVAL`. span: of the clause."""

    mode: Literal["changes", "window close", "arrival"]
    span: Span


@dataclass(frozen=True, kw_only=True)
class CreateMaterializedView(CreateView):
    """`CREATE MATERIALIZED VIEW name [INTO stream] [(columns)] [WITH (options)] AS query [EMIT …]`.

    into: the stream for its rows.
    """

    makes: ClassVar[type[Relation]] = MaterializedView

    emit: Emit | None = None
    into: Name | None = None


@dataclass(frozen=True, kw_only=True)
class CreatePump(CreateMaterializedView):
    """`CREATE PUMP name [STARTED | STOPPED] AS INSERT INTO into [(targets)] query`."""

    makes: ClassVar[type[Relation]] = Pump

    started: bool
    targets: tuple[Name, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AlterPump(Statement):
    """`ALTER PUMP name, … START` or `STOP`; for `schema.*`, `every` is the schema, and `names` is empty."""

    defines: ClassVar[bool] = True
    once: ClassVar[bool] = True

    names: tuple[Name, ...]
    start: bool
    every: Name | None = None


@dataclass(frozen=True, kw_only=True)
class CreateSink(Create):
    """`CREATE SINK name [INTO into [(targets)]] {FROM source | AS query} [WITH (options)] [FORMAT … ENCODE …]`.

    source: None with a query; query: None with a source; query_text: with its EMIT. options: names in lower case.
    spans: of the options, and of the words from FORMAT on as `format`. format: None without FORMAT; its `options` are
    those after ENCODE.
    """

    takes: ClassVar[str | None] = ADMIN

    makes: ClassVar[type[Relation]] = Sink

    source: Name | None
    query: exp.Expression | None
    emit: Emit | None
    query_text: str
    into: Name | None
    options: Mapping[str, str]
    spans: Mapping[str, Span]
    targets: tuple[Name, ...] = ()
    format: MessageFormat | None = None


@dataclass(frozen=True, kw_only=True)
class StartSink(Statement):
    """`ALTER SINK name START`: a stopped sink resumes."""

    defines: ClassVar[bool] = True
    once: ClassVar[bool] = True

    name: Name
    if_exists: bool = False


@dataclass(frozen=True, kw_only=True)
class Alter(Statement):
    """`ALTER kind name …` of a relation."""

    defines: ClassVar[bool] = True
    once: ClassVar[bool] = True

    kind: DropWord
    name: Name
    if_exists: bool = False


@dataclass(frozen=True, kw_only=True)
class RenameRelation(Alter):
    """`… RENAME TO new`; `RENAME STREAM name TO new`."""

    new: Name


@dataclass(frozen=True, kw_only=True)
class RenameColumn(Alter):
    """`… RENAME [COLUMN] column TO new`."""

    column: Name
    new: Name


@dataclass(frozen=True, kw_only=True)
class AddColumn(Alter):
    """`… ADD [COLUMN] column type [NULL | NOT NULL]`.

    definition: as written. default: for rows without a value, as in the catalog. range, digits: of its type, as in the
    catalog. if_not_exists: without effect if the column exists.
    """

    column: Field
    column_span: Span
    definition: str
    default: str | None = None
    range: tuple[int, int] | None = None
    digits: int | None = None
    if_not_exists: bool = False


@dataclass(frozen=True, kw_only=True)
class AlterConnector(Alter):
    """`… CONNECTOR WITH (option = 'value', …)`. spans: of the options. clause: its words."""

    takes: ClassVar[str | None] = ADMIN

    options: Mapping[str, str]
    spans: Mapping[str, Span]
    clause: str = "CONNECTOR WITH"


@dataclass(frozen=True, kw_only=True)
class AlterQuery(Alter):
    """`… MODIFY QUERY SETTING name = value, …` of a view. spans: of the settings."""

    settings: Mapping[str, str]
    spans: Mapping[str, Span]


@dataclass(frozen=True, kw_only=True)
class RefreshSchema(Alter):
    """`… REFRESH SCHEMA`: reads the columns from the schema again."""


@dataclass(frozen=True, kw_only=True)
class CreateIndex(Create):
    """`CREATE INDEX name ON table (columns) [INCLUDE (include)]`."""

    makes: ClassVar[type[Relation]] = Index

    table: Name
    columns: tuple[str, ...]
    include: tuple[str, ...] = ()
    distributed_by: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CreateSchema(Statement):
    """`CREATE [OR REPLACE] SCHEMA name`."""

    defines: ClassVar[bool] = True

    name: Name
    if_not_exists: bool = False
    replaces: bool = False


@dataclass(frozen=True, kw_only=True)
class DropSchema(Statement):
    """`DROP SCHEMA names [CASCADE]`."""

    defines: ClassVar[bool] = True
    once: ClassVar[bool] = True

    names: tuple[Name, ...]
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True, kw_only=True)
class Drop(Statement):
    """`DROP kind names [CASCADE]`."""

    defines: ClassVar[bool] = True
    once: ClassVar[bool] = True

    kind: DropWord
    names: tuple[Name, ...]
    if_exists: bool = False
    cascade: bool = False


Pairs = tuple[tuple[Name, exp.Expression], ...]


@dataclass(frozen=True)
class MergeClauses:
    """The clauses of a MERGE apart from its INSERT. on: columns of the table, and the values with which they are
    compared; updated: the columns of existing rows that are set, and their values.
    """

    on: Pairs
    updated: Pairs


@dataclass(frozen=True, kw_only=True)
class CreateMergingPump(CreatePump):
    """A pump that runs a MERGE: `query` returns the rows to insert."""

    clauses: MergeClauses


@dataclass(frozen=True, kw_only=True)
class Merge(Statement):
    """`MERGE INTO table USING source ON … [WHEN MATCHED THEN UPDATE SET …] WHEN NOT MATCHED THEN INSERT …`.

    insert: writes the missing rows.
    """

    once: ClassVar[bool] = True

    insert: Insert
    clauses: MergeClauses
