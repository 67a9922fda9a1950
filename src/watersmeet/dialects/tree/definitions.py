"""The statements that create, alter and drop objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from sqlglot import exp

from watersmeet.catalog import (
    Conflict,
    Domain,
    DropWord,
    Index,
    MaterializedView,
    MessageFormat,
    Numbering,
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
from watersmeet.errors import Error, Span
from watersmeet.values import ReferenceAction
from watersmeet.values.declaredtypes import Declared
from watersmeet.values.types import Field, Schema, SqlType


@dataclass(frozen=True)
class Watermark:
    """`WATERMARK FOR column AS expression`."""

    column: str
    expression: exp.Expression
    span: Span


@dataclass(frozen=True)
class ConstraintClause:
    """A constraint of a table as it is written.

    span: the whole clause. name: empty without one. columns: those of a key, in the table. condition, text: the
    expression of CHECK. table, referenced, on_delete, on_update: the parts of FOREIGN KEY. is_column: whether it is
    among the clauses of a column.
    """

    kind: Literal["primary key", "unique", "check", "foreign key"]
    span: Span
    name: str = ""
    columns: tuple[Name, ...] = ()
    condition: exp.Expression | None = None
    text: str = ""
    table: Name | None = None
    referenced: tuple[Name, ...] = ()
    on_delete: ReferenceAction = "no action"
    on_update: ReferenceAction = "no action"
    deferrable: bool = False
    deferred: bool = False
    is_column: bool = False


@dataclass(frozen=True)
class NamedType:
    """The type of a column that the parser does not know. depth: of how many dimensions it is an array. error: the
    error if the catalog does not know it either.
    """

    name: Name
    depth: int
    error: Error


@dataclass(frozen=True)
class SerialClause:
    """A column of type serial, or with GENERATED … AS IDENTITY; see the catalog's `Serial`. name: that of its sequence
    in SEQUENCE NAME.
    """

    numbers: Numbering
    identity: Literal["", "always", "by default"] = ""
    name: Name | None = None


@dataclass(frozen=True, kw_only=True)
class Create(Statement):
    """Creates an object. schema: the qualifier of its name as written, or None. name_span: the span of the qualified
    name.

    replaces: whether it is CREATE OR REPLACE. makes: the kind of the relation. temporary: whether it belongs to the
    session.
    """

    defines: ClassVar[bool] = True

    makes: ClassVar[type[Relation]]

    name: str
    name_span: Span
    schema: str | None
    if_not_exists: bool = False
    replaces: bool = False
    temporary: bool = False


@dataclass(frozen=True, kw_only=True)
class CreateRelation(Create):
    """The fields of CREATE TABLE, CREATE SOURCE and similar statements.

    columns: the declared columns, where NOT NULL and the primary key make a column not nullable; empty: the connector's
    data determines the columns. options: the options of WITH (lower-case names) and of FORMAT … ENCODE, where `format`
    is the encoding (json, csv, parquet). arrivals: the columns that are `AS PROCTIME()`. generated: the `AS expression`
    by column. declared: the DEFAULT by column. takes_columns: whether the columns of the schema precede the declared
    ones. format, message_parts: the fields of `catalog.Input` for a connector that reads messages. ranges, lengths:
    the fields of the catalog. declared_types: its field `declared`. value_texts: the DEFAULT or generated value of
    columns as written.
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
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    lengths: Mapping[str, int] = field(default_factory=dict)
    declared_types: Mapping[str, Declared] = field(default_factory=dict)
    named_types: Mapping[str, NamedType] = field(default_factory=dict)
    domains: Mapping[str, Domain] = field(default_factory=dict)
    serials: Mapping[str, SerialClause] = field(default_factory=dict)
    value_texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CreateTable(CreateRelation):
    """`CREATE TABLE`.

    append_only: whether UPDATE and DELETE are rejected. conflict: the rule of ON CONFLICT. query: the query of CREATE
    TABLE … AS; `columns` is then empty, and `column_names` has the declared names (empty: the names from the query).
    constraints: all but NOT NULL, with the primary key. rejects_duplicates: a field of the catalog; None: the session's
    default. on_commit: ON COMMIT of a temporary table. without_data: WITH NO DATA after a query.
    """

    makes: ClassVar[type[Relation]] = Table

    append_only: bool = False
    conflict: Conflict | None = None
    query: exp.Expression | None = None
    column_names: tuple[str, ...] = ()
    constraints: tuple[ConstraintClause, ...] = ()
    rejects_duplicates: bool | None = None
    on_commit: Literal["preserve rows", "delete rows", "drop"] = "preserve rows"
    without_data: bool = False


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
    """`CREATE [MUTABLE] STREAM`. defaults, digits, choices, unlisted, version, keeps_first, coalesced: the fields of
    the catalog. families: the columns of each FAMILY by its name.

    ordered: whether rows are in the order of the column with the watermark. yielding: the columns of `generated` whose
    expression is a DEFAULT.
    """

    makes: ClassVar[type[Relation]] = Stream

    mode: StreamMode
    defaults: Mapping[str, str]
    digits: Mapping[str, int] = field(default_factory=dict)
    indexes: tuple[StreamIndex, ...] = ()
    ordered: bool = False
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unlisted: tuple[str, ...] = ()
    yielding: tuple[str, ...] = ()
    version: str = ""
    keeps_first: bool = False
    coalesced: bool = False
    families: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TruncateStream(Statement):
    """`TRUNCATE STREAM name`: deletes all rows."""

    defines: ClassVar[bool] = True
    once: ClassVar[bool] = True

    name: Name
    if_exists: bool = False


@dataclass(frozen=True, kw_only=True)
class CreateOptions(Create):
    """Creates an object that consists of options. The names of the options are folded."""

    options: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class CreateTopic(CreateRelation):
    """Lenses' `CREATE TABLE topic (_key type, field type, …) FORMAT (key, value) PROPERTIES (…)`.

    columns: `_key` and the fields, as declared. compacted: whether Kafka keeps only the last record of each key.
    idle_us: the idle time after which the topic no longer holds back others. None: the settings determine the value.
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
    """`CREATE VIEW name [(columns)] AS query`. `column_names` is empty if the query names the columns."""

    makes: ClassVar[type[Relation]] = View

    query: exp.Expression
    column_names: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Emit:
    """The clause that sets when a view outputs rows: `EMIT CHANGES`, `EMIT ON WINDOW CLOSE` or `EMIT ON ARRIVAL`."""

    mode: Literal["changes", "window close", "arrival"]
    span: Span


@dataclass(frozen=True, kw_only=True)
class CreateMaterializedView(CreateView):
    """`CREATE MATERIALIZED VIEW name [INTO stream] [(columns)] [WITH (options)] AS query [EMIT …]`.

    into: the stream to which the view writes its rows. paused: whether the view begins paused. without_data: WITH NO
    DATA.
    """

    makes: ClassVar[type[Relation]] = MaterializedView

    emit: Emit | None = None
    into: Name | None = None
    paused: bool = False
    without_data: bool = False


@dataclass(frozen=True, kw_only=True)
class CreatePump(CreateMaterializedView):
    """`CREATE PUMP name [STARTED | STOPPED] AS INSERT INTO into [(targets)] query`."""

    makes: ClassVar[type[Relation]] = Pump

    started: bool
    targets: tuple[Name, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PauseView(Statement):
    """`SYSTEM PAUSE MATERIALIZED VIEW name`, or RESUME."""

    defines: ClassVar[bool] = True

    name: Name
    pause: bool


@dataclass(frozen=True, kw_only=True)
class AlterPump(Statement):
    """`ALTER PUMP name, … START` or `STOP`. A name `*` stands for all pumps of its schema, which may be `*`, too."""

    defines: ClassVar[bool] = True
    once: ClassVar[bool] = True

    names: tuple[Name, ...]
    start: bool


@dataclass(frozen=True, kw_only=True)
class ResetStream(Statement):
    """`ALTER STREAM name, … RESET`. names: as those of `AlterPump`."""

    defines: ClassVar[bool] = True
    once: ClassVar[bool] = True

    names: tuple[Name, ...]


@dataclass(frozen=True, kw_only=True)
class CreateSink(Create):
    """`CREATE SINK name [INTO into [(targets)]] {FROM source | AS query} [WITH (options)] [FORMAT … ENCODE …]`.

    Either `source` or `query` is None. query_text: the text of the query with its EMIT. options: their names are in
    lower case. spans: the spans of the options, and as `format` the span of the words from FORMAT on. format: None
    without FORMAT; its `options` are the options after ENCODE.
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
    """`ALTER SINK name START`, which resumes a stopped sink."""

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
class RedefineView(Alter):
    """`ALTER [MATERIALIZED] VIEW name AS query` (RisingWave), `ALTER VIEW name MODIFY QUERY query` (Timeplus).

    query: the span of the query in the text, up to the end of the statement.
    """

    alone: ClassVar[bool] = True

    query: Span


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

    definition: the column as written. default: the value for existing rows, in the form of the catalog. declared: the
    expression of DEFAULT. range, digits, length, declared_type: the limits of its type, as in the catalog.
    if_not_exists: whether the statement has no effect if the column exists. constraints: those of the column. serial:
    for a column with numbers in sequence. named_type: a type that only the catalog knows.
    """

    column: Field
    column_span: Span
    definition: str
    default: str | None = None
    declared: exp.Expression | None = None
    range: tuple[int, int] | None = None
    digits: int | None = None
    length: int | None = None
    declared_type: Declared | None = None
    if_not_exists: bool = False
    constraints: tuple[ConstraintClause, ...] = ()
    serial: SerialClause | None = None
    named_type: NamedType | None = None


@dataclass(frozen=True, kw_only=True)
class DropColumn(Alter):
    """`… DROP [COLUMN] [IF EXISTS] column`."""

    column: Name
    if_column_exists: bool = False


@dataclass(frozen=True, kw_only=True)
class AlterColumn(Alter):
    """`… ALTER [COLUMN] column {[SET DATA] TYPE type [USING …] | {SET | DROP} {DEFAULT | NOT NULL}}`,
    `… ADD GENERATED …`, `… DROP IDENTITY [IF EXISTS]`.

    clause: the words of the change. type, declared_type: the new type, and type_text as written. using: the text of the
    expression of its values; empty: the column itself. is_cast: whether that is a cast of the column. declared: the
    expression of SET DEFAULT, and default_text as written. nullable: for SET and DROP NOT NULL. serial, serial_text:
    the numbers of ADD GENERATED, and the clause as written. if_identity: IF EXISTS.
    """

    column: Name
    clause: str
    type: SqlType | None = None
    declared_type: Declared | None = None
    type_text: str = ""
    using: str = ""
    is_cast: bool = True
    declared: exp.Expression | None = None
    default_text: str = ""
    nullable: bool | None = None
    serial: SerialClause | None = None
    serial_text: str = ""
    if_identity: bool = False


@dataclass(frozen=True, kw_only=True)
class SetSchema(Alter):
    """`… SET SCHEMA schema`."""

    schema: Name


@dataclass(frozen=True, kw_only=True)
class SwapNames(Alter):
    """`… SWAP WITH other`: exchanges the names of two relations of a kind."""

    other: Name


@dataclass(frozen=True, kw_only=True)
class AlterWithoutEffect(Alter):
    """A clause that changes nothing in Watersmeet. clause: its words. reason: why it has no effect."""

    clause: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class AlterConnector(Alter):
    """`… CONNECTOR WITH (option = 'value', …)`. spans: the spans of the options. clause: the words before the
    options.
    """

    takes: ClassVar[str | None] = ADMIN

    options: Mapping[str, str]
    spans: Mapping[str, Span]
    clause: str = "CONNECTOR WITH"


@dataclass(frozen=True, kw_only=True)
class AlterSink(AlterConnector):
    """`ALTER SINK name CONNECTOR WITH (…)`."""


@dataclass(frozen=True, kw_only=True)
class AlterConnection(AlterConnector):
    """`ALTER CONNECTION name CONNECTOR WITH (…)`."""


@dataclass(frozen=True, kw_only=True)
class AlterQuery(Alter):
    """`… MODIFY QUERY SETTING name = value, …` of a view. spans: the spans of the settings."""

    settings: Mapping[str, str]
    spans: Mapping[str, Span]


@dataclass(frozen=True, kw_only=True)
class RefreshSchema(Alter):
    """`… REFRESH SCHEMA`, which reads the columns from the schema again."""


@dataclass(frozen=True, kw_only=True)
class AlterFormat(RefreshSchema):
    """`… FORMAT form ENCODE encoding (options)`: other options of the format. format_span: the span of the clause."""

    takes: ClassVar[str | None] = ADMIN

    format: MessageFormat
    format_span: Span


@dataclass(frozen=True, kw_only=True)
class CreateIndex(Create):
    """`CREATE [UNIQUE] INDEX name ON table (columns) [INCLUDE (include)]`."""

    makes: ClassVar[type[Relation]] = Index

    table: Name
    columns: tuple[str, ...]
    include: tuple[str, ...] = ()
    distributed_by: tuple[str, ...] = ()
    is_unique: bool = False


@dataclass(frozen=True, kw_only=True)
class CreateSchema(Statement):
    """`CREATE [OR REPLACE] SCHEMA name`."""

    defines: ClassVar[bool] = True

    name: Name
    if_not_exists: bool = False
    replaces: bool = False


@dataclass(frozen=True, kw_only=True)
class RenameSchema(Statement):
    """`ALTER SCHEMA name {RENAME TO | SWAP WITH} new`. swaps: whether `new` exists and gets the name of the first."""

    defines: ClassVar[bool] = True
    once: ClassVar[bool] = True

    name: Name
    new: Name
    swaps: bool = False


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
    """The clauses of a MERGE except for its INSERT. on: columns of the table, and the values with which ON compares
    them. updated: the columns that UPDATE sets in existing rows, and their values.
    """

    on: Pairs
    updated: Pairs


@dataclass(frozen=True, kw_only=True)
class CreateMergingPump(CreatePump):
    """A pump that runs a MERGE. `query` returns the rows to insert."""

    clauses: MergeClauses


@dataclass(frozen=True, kw_only=True)
class Merge(Statement):
    """`MERGE INTO table USING source ON … [WHEN MATCHED THEN UPDATE SET …] WHEN NOT MATCHED THEN INSERT …`.

    insert: the statement that writes the missing rows.
    """

    once: ClassVar[bool] = True

    insert: Insert
    clauses: MergeClauses
