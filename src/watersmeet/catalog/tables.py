"""Tables, sources, indexes, and captured databases with their tables."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from watersmeet.catalog.parts import (
    KEY_COLUMN,
    RECORD_NUMBER,
    Check,
    ColumnFamily,
    ComputedPart,
    Conflict,
    Dictionary,
    Domain,
    EventTime,
    External,
    ForeignKey,
    GeneratedColumn,
    MessageFormat,
    Serial,
    StreamMode,
    Topic,
    Unique,
)
from watersmeet.catalog.relations import NAMES_COLUMNS, Relation, Words
from watersmeet.catalog.views import MaterializedView
from watersmeet.values.declaredtypes import Declared
from watersmeet.values.types import TIMESTAMP, TIMESTAMPTZ, Field, Schema
from watersmeet.values.watermarks import LateSide

LAKES: Final = {"delta": "Delta Lake", "deltalake": "Delta Lake", "iceberg": "Apache Iceberg"}

"""The names of systems by connector, for connectors that read lake tables."""


@dataclass(frozen=True, slots=True)
class Input(Relation):
    """A relation that accepts written rows: a table or a source.

    format: the conversion of a connector's messages to rows. message_parts: the part of a message in each column:
    `key`, `partition`, `offset`, `timestamp`, `payload`, `headers`, `header:<name>`, `topic`, `tombstone` (whether it
    has no value). choices: the allowed texts of columns that are enums. domains: the rules of columns whose types are
    domains. unlisted: the columns that `*` omits.
    """

    has_rows: ClassVar[bool] = True
    can_alter_columns: ClassVar[bool] = True

    connector: dict[str, str] = field(default_factory=dict, kw_only=True)
    format: MessageFormat | None = field(default=None, kw_only=True)
    message_parts: dict[str, str] = field(default_factory=dict, kw_only=True, metadata=NAMES_COLUMNS)
    event_time: EventTime | None = field(default=None, kw_only=True, metadata=NAMES_COLUMNS)
    defaults: dict[str, str] = field(default_factory=dict, kw_only=True, metadata=NAMES_COLUMNS)
    generated: dict[str, GeneratedColumn] = field(default_factory=dict, kw_only=True, metadata=NAMES_COLUMNS)
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict, kw_only=True, metadata=NAMES_COLUMNS)
    digits: dict[str, int] = field(default_factory=dict, kw_only=True, metadata=NAMES_COLUMNS)
    lengths: dict[str, int] = field(default_factory=dict, kw_only=True, metadata=NAMES_COLUMNS)
    declared: dict[str, Declared] = field(default_factory=dict, kw_only=True, metadata=NAMES_COLUMNS)
    domains: dict[str, Domain] = field(default_factory=dict, kw_only=True, metadata=NAMES_COLUMNS)
    serials: dict[str, Serial] = field(default_factory=dict, kw_only=True, metadata=NAMES_COLUMNS)
    fills: dict[str, str] = field(default_factory=dict, kw_only=True, metadata=NAMES_COLUMNS)
    dropped: tuple[str, ...] = field(default=(), kw_only=True)
    choices: dict[str, tuple[str, ...]] = field(default_factory=dict, kw_only=True, metadata=NAMES_COLUMNS)
    unlisted: tuple[str, ...] = field(default=(), kw_only=True, metadata=NAMES_COLUMNS)


@dataclass(frozen=True, slots=True)
class Table(Input):
    """A table. key: the name of the constraint that is its primary key; empty: derived from its own. key_comment: the
    text of COMMENT ON for this constraint. rewritten: whether PROMOTE has deleted rows of an append-only table.
    """

    words: ClassVar[Words] = Words("table", show=("tables",), show_create=("table", "stream"), drop=("table", "topic"))
    family: ClassVar[str] = "table"
    entry: ClassVar[str] = "table"
    is_stored: ClassVar[bool] = True

    conflict: Conflict | None = field(default=None, kw_only=True, metadata=NAMES_COLUMNS)
    key: str = field(default="", kw_only=True)
    key_comment: str = field(default="", kw_only=True)
    rewritten: bool = field(default=False, kw_only=True)
    rejects_duplicates: bool = field(default=False, kw_only=True)
    uniques: tuple[Unique, ...] = field(default=(), kw_only=True, metadata=NAMES_COLUMNS)
    checks: tuple[Check, ...] = field(default=(), kw_only=True, metadata=NAMES_COLUMNS)
    foreign_keys: tuple[ForeignKey, ...] = field(default=(), kw_only=True, metadata=NAMES_COLUMNS)

    @property
    def key_name(self) -> str:
        """The name of the constraint that is the primary key."""
        return self.key or f"{self.name}_pkey"

    @property
    def is_fed_by_circuit(self) -> bool:
        """Whether its connector writes it."""
        return bool(self.connector)

    @property
    def has_partial_changes(self) -> bool:
        """Whether its messages are changes of rows."""
        return self.format is not None and self.format.rows.startswith("debezium")

    @property
    def loses_rows(self) -> bool:
        """Whether it reads a lake table from which rows may be deleted."""
        lake = self.connector.get("connector", "").lower() in LAKES
        return lake and not self.primary_key and not self.append_only


@dataclass(frozen=True, slots=True)
class Stream(Table):
    """A table of the dialects with streams.

    version: the column by which an older row never replaces a newer one of its key; empty: the last row written stays.
    keeps_first: whether the first of equal versions stays, not the last. coalesced: whether a row with the key of an
    existing one keeps the values of the columns that the writer omits. families: see `ColumnFamily`.
    """

    words: ClassVar[Words] = Words(
        "stream", show=("streams", "tables"), show_create=("stream", "table"), drop=("stream", "table", "topic")
    )
    entry: ClassVar[str] = "stream"

    mode: StreamMode = field(default="append", kw_only=True)
    version: str = field(default="", kw_only=True, metadata=NAMES_COLUMNS)
    keeps_first: bool = field(default=False, kw_only=True)
    coalesced: bool = field(default=False, kw_only=True)
    families: tuple[ColumnFamily, ...] = field(default=(), kw_only=True, metadata=NAMES_COLUMNS)


@dataclass(frozen=True, slots=True)
class PushedTable(Table):
    """A table whose rows another system sends, and no source of the circuit reads. options: those of its connector."""

    options: dict[str, str] = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class WebhookTable(PushedTable):
    """A table whose rows also arrive as HTTP requests. The generated options have the conditions that requests must
    meet.
    """

    words: ClassVar[Words] = Words("table", show=("tables",), show_create=("table", "stream"), drop=("table", "topic"))
    entry: ClassVar[str] = "webhook table"


@dataclass(frozen=True, slots=True)
class ReceivedTable(PushedTable):
    """A table whose rows are messages of a broker that keeps no log."""

    words: ClassVar[Words] = Words(
        "table", show=("tables", "sources"), show_create=("table", "stream"), drop=("table", "topic")
    )
    entry: ClassVar[str] = "received table"


@dataclass(frozen=True, slots=True)
class ReceivedSource(ReceivedTable):
    """A source with such a connector. Unlike others it stores its rows, because nothing else does."""

    words: ClassVar[Words] = Words(
        "source", show=("sources", "streams"), show_create=("source", "stream"), drop=("source", "stream")
    )
    family: ClassVar[str] = "source"
    entry: ClassVar[str] = "received source"


@dataclass(frozen=True, slots=True)
class TopicTable(Table):
    """A topic written by INSERT or by a processor. With a connector it is a Kafka topic, whose rows are the records of
    all its producers.
    """

    words: ClassVar[Words] = Words(
        "topic", show=("topics", "tables"), show_create=("topic", "table", "stream"), drop=("table", "topic")
    )
    entry: ClassVar[str] = "topic"
    can_alter: ClassVar[bool] = False

    topic: Topic = field(kw_only=True, metadata=NAMES_COLUMNS)

    @property
    def given(self) -> Schema:
        """All columns for a Kafka topic, because a record has its own time."""
        return self.columns

    @property
    def always_there(self) -> tuple[str, ...]:
        """The key, if it is never NULL. Other producers may omit the required fields of a Kafka topic."""
        keys = tuple(c.name for c in self.columns if c.name == KEY_COLUMN and not c.nullable)
        return keys if self.connector else (*self.topic.required, *keys)

    @property
    def written_by(self) -> str:
        """INSERT or a stopped processor; for a Kafka topic, any producer."""
        if self.connector:
            return "Kafka"
        return "stopped processor" if RECORD_NUMBER in [c.name for c in self.columns] else "INSERT"


@dataclass(frozen=True, slots=True)
class ExternalTable(Table):
    """A table whose content is read from an external system."""

    words: ClassVar[Words] = Words(
        "external table", show=("tables",), show_create=("table", "stream"), drop=("table", "stream", "topic")
    )
    entry: ClassVar[str] = "external table"
    is_external: ClassVar[bool] = True
    can_alter_columns: ClassVar[bool] = False

    external: External = field(kw_only=True)

    @property
    def is_written_externally(self) -> bool:
        """Whether statements and views write its rows to the external system."""
        return bool(self.external.target)


@dataclass(frozen=True, slots=True)
class DictionaryTable(ExternalTable):
    """A dictionary whose content is read from an external system."""

    words: ClassVar[Words] = Words(
        "dictionary",
        show=("dictionaries", "tables"),
        show_create=("dictionary", "table", "stream"),
        drop=("dictionary", "table", "stream", "topic"),
    )
    entry: ClassVar[str] = "dictionary"

    dictionary: Dictionary = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class AddressRanges(DictionaryTable):
    """The content of the dictionary `owner`, whose keys are IP networks, as ranges of addresses with the row of the
    longest prefix. It is hidden. networks: the column with the networks.
    """

    words: ClassVar[Words] = Words("dictionary")
    entry: ClassVar[str] = "address ranges"
    can_alter: ClassVar[bool] = False

    owner: str = field(kw_only=True)
    networks: tuple[str, ...] = field(kw_only=True, metadata=NAMES_COLUMNS)


@dataclass(frozen=True, slots=True)
class Source(Input):
    """A source, whose rows are read but not stored.

    reopened: whether each query reads it separately from its own offset by a `QuerySource`. computed_parts: the
    computed parts of messages that are written to it. options_query: a query that returns the start offset, run
    whenever a query starts reading the topic; empty: the connector determines the offset.
    """

    words: ClassVar[Words] = Words(
        "source", show=("sources", "streams"), show_create=("source", "stream"), drop=("source", "stream")
    )
    family: ClassVar[str] = "source"
    entry: ClassVar[str] = "source"

    reopened: bool = field(default=False, kw_only=True)
    computed_parts: tuple[ComputedPart, ...] = field(default=(), kw_only=True)
    options_query: str = field(default="", kw_only=True)

    @property
    def is_unconnected(self) -> bool:
        return self.format is not None and not self.connector


@dataclass(frozen=True, slots=True)
class QuerySource(Source):
    """The hidden reader of a `reopened` source for one view or running query, the `owner`.

    of: the id of the source. start, shards, strict: see `algebra.arrivals.Reopened`.
    """

    words: ClassVar[Words] = Words("source")
    entry: ClassVar[str] = "query source"
    can_alter: ClassVar[bool] = False
    can_alter_columns: ClassVar[bool] = False

    owner: str = field(kw_only=True)
    of: str = field(kw_only=True)
    start: str = field(kw_only=True)
    shards: str = field(kw_only=True)
    strict: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Index(Relation):
    """An index of a table or materialized view.

    index_columns: the columns of its key. included: the columns of INCLUDE; empty for all.
    """

    words: ClassVar[Words] = Words("index", show=("indexes",), show_create=("index",), drop=("index",))
    family: ClassVar[str] = "index"
    entry: ClassVar[str] = "index"

    index_columns: tuple[str, ...] = field(default=(), kw_only=True, metadata=NAMES_COLUMNS)
    included: tuple[str, ...] = field(default=(), kw_only=True, metadata=NAMES_COLUMNS)


@dataclass(frozen=True, slots=True)
class CapturedDatabase(Relation):
    """A database whose changes are read once for any number of tables. It has no columns and no rows.

    connector: the options, including generated values. start: the offset from which changes are read
    (`connectors.databases.captures`). made: the objects that it created on the server (slot, publication) and that are
    dropped with it. of_table: the id of its only table if the statement of this table created the database, which is
    then hidden.
    """

    words: ClassVar[Words] = Words("source", show=("sources",), show_create=("source",), drop=("source",))
    family: ClassVar[str] = "source"
    entry: ClassVar[str] = "captured database"
    can_alter: ClassVar[bool] = False

    connector: dict[str, str] = field(kw_only=True)
    start: str = field(kw_only=True)
    made: tuple[str, ...] = field(default=(), kw_only=True)
    of_table: str = field(default="", kw_only=True)

    @property
    def owner(self) -> str:
        """The id of the table whose statement created it; empty if it has a statement of its own."""
        return self.of_table


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured table on the server. database: the id of the `CapturedDatabase`. oid: the server's number of the
    table, or 0. types: the types on the server by column, as texts that are equal for equal types.

    has_snapshot: whether existing rows are read. batch_rows: the number of existing rows per batch. left_out: columns
    on the server that the table does not have. added: columns that were added later, each with the log offset of the
    first transaction that is known to have it; rows of earlier transactions may lack the column. published: the
    publication entries through which the server writes its changes, which differ if an entry was removed and added
    again; empty: unknown. stops: whether a row with a value that has no equivalent stops the table instead of becoming
    a dead letter.
    """

    database: str
    schema: str
    table: str
    oid: int
    types: dict[str, str]
    has_snapshot: bool = True
    batch_rows: int = 0
    left_out: tuple[str, ...] = ()
    added: dict[str, str] = field(default_factory=dict)
    published: str = ""
    stops: bool = False


@dataclass(frozen=True, slots=True)
class CapturedTable(Table):
    """A table that captures a table of another database."""

    words: ClassVar[Words] = Words("table", show=("tables",), show_create=("table", "stream"), drop=("table", "topic"))
    entry: ClassVar[str] = "captured table"
    can_alter_columns: ClassVar[bool] = False

    captured: Captured = field(kw_only=True)


#: The stored names of the columns that late rows have in addition.
LATE_COLUMNS: Final = ("?late_at", "?late_below")


@dataclass(frozen=True, slots=True)
class LateRows(Relation):
    """The late rows of the source or table `owner`, or those that an operator of the view `owner` drops. Epochs write
    them: when a row was dropped, the watermark that it missed, and its columns. Only `late_rows` reads them, and only
    its limits delete rows.

    number: which one of a view's operators, from 1; 0 for a source. operator: its id when the view was defined. time:
    the column that decides which rows are late. reads: the ids of the relations from which rows come.
    """

    words: ClassVar[Words] = Words("late rows")
    family: ClassVar[str] = "table"
    entry: ClassVar[str] = "late rows"
    has_rows: ClassVar[bool] = True
    is_stored: ClassVar[bool] = True
    can_alter: ClassVar[bool] = False

    owner: str = field(kw_only=True)
    fills: dict[str, str] = field(default_factory=dict, kw_only=True, metadata=NAMES_COLUMNS)
    dropped: tuple[str, ...] = field(default=(), kw_only=True)
    number: int = field(default=0, kw_only=True)
    operator: str = field(default="", kw_only=True)
    time: str = field(default="", kw_only=True)
    reads: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def is_fed_by_circuit(self) -> bool:
        """Always True."""
        return True

    @property
    def has_plan(self) -> bool:
        """Always False: the readers of its owner, or the operators of its owner's plan, write it."""
        return False


def late_rows_of(relation: Relation) -> list[LateRows]:
    """The entries, without ids, for the late rows of a relation; none if none of its rows is ever dropped as late."""
    if isinstance(relation, MaterializedView):
        return [_late_rows(relation, side.columns, number, side) for number, side in enumerate(relation.late, 1)]
    time = relation.event_time
    if time is None or not relation.time_columns or relation.topic is not None or relation.owner:
        return []
    made = _late_rows(relation, relation.columns)
    stored = {**relation.stored, **made.stored}
    return [replace(made, stored=stored, fills=relation.fills, dropped=relation.dropped, time=time.column)]


def _late_rows(relation: Relation, columns: Schema, number: int = 0, side: LateSide | None = None) -> LateRows:
    at, below = (_free_name(name[1:], columns) for name in LATE_COLUMNS)
    own = (Field(at, TIMESTAMPTZ), Field(below, TIMESTAMP))
    return LateRows(
        "",
        f"?late rows of {relation.id}" + (f".{number}" if number else ""),
        (*own, *(replace(c, nullable=True) for c in columns)),
        schema=relation.schema,
        dialect=relation.dialect,
        hidden=True,
        stored=dict(zip((at, below), LATE_COLUMNS, strict=True)),
        owner=relation.id,
        number=number,
        operator="" if side is None else side.operator,
        time="" if side is None else side.time,
        reads=() if side is None else side.reads,
    )


def _free_name(name: str, columns: Schema) -> str:
    """A name that no column has: `name`, with underscores before it if needed."""
    while name in [c.name for c in columns]:
        name = f"_{name}"
    return name
