"""Relations: what a database contains, a class for each kind.

`Relation.kind` says how one is kept and fed: rows of tables are written, those of materialized views come from the
circuit, views are texts. `what` is the word for it in messages. A relation of any class answers for what only others
have, with nothing: so `relation.topic` is None for all but topics.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Any, ClassVar, Final, Literal, Self, TypeVar

from watersmeet.dialectnames import DEFAULT_DIALECT
from watersmeet.serialization import kinds
from watersmeet.types import Field, Schema
from watersmeet.units import DAY_US
from watersmeet.watermarks import Term, Watermark

#: How a relation is kept and fed; its class says what it is.
RelationKind = Literal["table", "source", "view", "materialized view", "index"]

#: append: every row is its own event; changelog: one with `_tp_delta` = -1 takes an equal one back. The others keep the
#: last row of each primary key; versioned_kv also older ones where a join asks for them, changelog_kv takes rows away
#: by `_tp_delta` = -1. Timeplus, "Multi-JOINs and ASOF JOINs", "Data to be Joined".
StreamMode = Literal["append", "changelog", "mutable", "versioned_kv", "changelog_kv"]

#: The column with the time at which a row came, of every stream of Timeplus (TP-61).
TIME_COLUMN: Final = "_tp_time"
#: The column of a stream that has the time of each row (SQLstream, "JOIN clause").
ROWTIME: Final = "ROWTIME"

#: In rows that are written to a changelog stream: 1 for a row that comes, -1 for one that goes (ruling D-003-09).
DELTA_COLUMN: Final = "_tp_delta"

#: Columns of a topic beside the fields of its records' values: their key, their time, and whether the value is NULL (a
#: tombstone).
KEY_COLUMN: Final = "_key"
RECORD_TIME: Final = "@time"
TOMBSTONE: Final = "@deleted"
#: In records that are written to a topic: NULL stands for the whole value, a tombstone.
VALUE_FACET: Final = "_value"
#: What Kafka knows of a record: only its time can be read.
META_FACET: Final = "_meta"
#: In topics that a processor writes: by which the records are ordered.
RECORD_NUMBER: Final = "@offset"

#: The schema that is always there and that all dialects start in; each has its own name for it (`Semantics.schema`).
COMMON_SCHEMA: Final = "public"

#: How many rows each join of a view may make in one epoch unless the view says otherwise. The largest epoch reads two
#: million rows, so each of them may meet fifty others; 100 million narrow rows are some gigabytes of files and about a
#: minute of work.
MOST_JOIN_ROWS: Final = 100_000_000

#: The default of a column that gets the time at which a row came.
ARRIVAL: Final = "now()"


@dataclass(frozen=True, slots=True)
class EventTime:
    """`WATERMARK FOR column AS column - delay`.

    ahead_us: a time further ahead of the epoch's own than that does not move the watermark. idle_us: without rows for
    so
    long, the input no longer holds back others; None: it always does. ordered: rows come in the order of their times:
    one that is before another that came before it is rejected where it is written; times are whole milliseconds.
    """

    column: str
    delay_us: int
    ahead_us: int = DAY_US
    idle_us: int | None = None
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class Topic:
    """What a topic is beside its columns: the formats of its key and its value, its number of partitions.

    key_format: None for a key that was computed (ON expressions and key change). required: the fields that no record
    with a value leaves out. compacted: its records are the changes of a table, of each key the newest.
    """

    key_format: str | None
    value_format: str
    partitions: int
    required: tuple[str, ...] = ()
    compacted: bool = False


@dataclass(frozen=True, slots=True)
class External:
    """Where the content of an external table or dictionary is: outside of the database.

    kind: of reader (`sources.external`): file, mysql, … name: of the table there. options: as the reader wants them,
    names in lower case.
    """

    kind: str
    name: str
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Dictionary:
    """How joins look a dictionary up.

    Timeplus, "Multi-JOINs and ASOF JOINs", "Dictionary", "Direct JOIN with Dictionary".

    ttl_us: what a key was answered with serves so long again; None: every row asks. stream: id of the mutable stream
    that is asked first (empty: none). fills: whether what it lacks and the source has is written to it.
    """

    ttl_us: int | None = None
    stream: str = ""
    fills: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """What a relation was called, and its columns, when a view that names it was written."""

    name: str
    schema: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """One named relation; each is of a class below.

    id: `<kind letter><number>` such as `t3`; unique for the life of the database, safe as a file name.
    columns: in order (of an index: those of its table).
    primary_key: names of the key's columns, empty for a hidden row id.
    append_only: True if no row is ever updated or deleted (sources, APPEND ONLY tables, and the materialized views for
    which the planner proves it).
    sql: the text of the statement that made it. dialect: its dialect.
    depends_on: ids of the relations that this one reads (views), or its table (index).
    schema: the one that it is in; names are unique there. path: of a view, the schemas in which its query looked up
    names without one.
    hidden: no statement names it. staged: made by a transaction that is open: hidden from all others, and gone if it
    does not commit.
    ready: of what the circuit feeds, False until its first content (backfill) is complete.
    known: of what names others in its text, by their ids: how those that were altered since were called then.
    stored: what columns that were renamed are called in data and plans.
    functions: ids of the functions of SQL that its text calls.
    """

    kind: ClassVar[RelationKind]
    what: ClassVar[str]
    """The word for it in messages."""
    role: ClassVar[str]
    """The word for it where it runs and reads others."""
    entry: ClassVar[str]
    """The name of its class in a stored catalog."""

    id: str
    name: str
    columns: Schema
    _: KW_ONLY
    primary_key: tuple[str, ...] = ()
    append_only: bool = False
    sql: str = ""
    depends_on: tuple[str, ...] = ()
    dialect: str = DEFAULT_DIALECT
    schema: str = COMMON_SCHEMA
    path: tuple[str, ...] = (COMMON_SCHEMA,)
    hidden: bool = False
    staged: bool = False
    ready: bool = True
    known: dict[str, Known] = field(default_factory=dict)
    stored: dict[str, str] = field(default_factory=dict)
    functions: tuple[str, ...] = ()

    # What only relations of some classes have.

    @property
    def connector(self) -> dict[str, str]:
        """The WITH options (lower-case names) of a source or a table that is fed by a connector."""
        return {}

    @property
    def event_time(self) -> EventTime | None:
        """Of a source or table with WATERMARK FOR."""
        return None

    @property
    def watermarks(self) -> dict[str, Watermark]:
        """By column name, those of a materialized view."""
        return {}

    @property
    def mode(self) -> StreamMode | None:
        """Of a stream, how its rows replace each other."""
        return None

    @property
    def defaults(self) -> dict[str, str]:
        """What a column gets that an INSERT leaves out, as DuckDB SQL; ARRIVAL is the time of the INSERT. Others get
        NULL.
        """
        return {}

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """The least and the greatest number that a column takes, where its type takes more (unsigned numbers)."""
        return {}

    @property
    def digits(self) -> dict[str, int]:
        """How many digits of a second a column of times keeps, where that are less than all."""
        return {}

    @property
    def fills(self) -> dict[str, str]:
        """By column that was added, what rows have in it that were there before, as text; NULL for others."""
        return {}

    @property
    def topic(self) -> Topic | None:
        """Of a topic, whose rows are records in the order in which they came."""
        return None

    @property
    def external(self) -> External | None:
        """Of a relation whose content is brought from outside of the database."""
        return None

    @property
    def dictionary(self) -> Dictionary | None:
        """Of a dictionary."""
        return None

    @property
    def query(self) -> str:
        """Of an external table or dictionary over a relation of this database, the CREATE VIEW that stands for it."""
        return ""

    @property
    def feeds(self) -> str:
        """Of a view, the id of the stream that its rows are written to."""
        return ""

    @property
    def owner(self) -> str:
        """Of a hidden view, the id of the view for which it works."""
        return ""

    @property
    def subscribed_us(self) -> int | None:
        """Of a subscription, when it was started, in microseconds since 1970 (UTC)."""
        return None

    @property
    def pump(self) -> bool:
        """Whether CREATE PUMP made it."""
        return False

    @property
    def index_columns(self) -> tuple[str, ...]:
        """Of an index, the names of its key columns."""
        return ()

    @property
    def included(self) -> tuple[str, ...]:
        """Of an index, the columns of its INCLUDE, empty for all columns."""
        return ()

    @property
    def max_buffered_bytes(self) -> int | None:
        """Of a materialized view, how much each of its joins may keep; None: as much as there is."""
        return None

    @property
    def most_join_rows(self) -> int:
        """Of a materialized view, how many rows each of its joins may make in one epoch; 0: any number."""
        return MOST_JOIN_ROWS

    @property
    def shown(self) -> str:
        """The name that no other relation has: with its schema, unless that is the common one."""
        return self.name if self.schema == COMMON_SCHEMA else f"{self.schema}.{self.name}"

    @property
    def takes_signs(self) -> bool:
        """Whether rows are written to it with `_tp_delta`."""
        return self.mode in ("changelog", "changelog_kv")

    @property
    def title(self) -> str:
        """What it is and its name, for messages."""
        return self._titled(self.what)

    @property
    def reader(self) -> str:
        """What reads others and its name, for messages."""
        return self._titled(self.role)

    def _titled(self, what: str) -> str:
        return f"running {self.name}" if what == "query" else f'{what} "{self.shown}"'

    @property
    def written(self) -> Schema:
        """The columns whose values a row without column list has: not those that are filled by themselves."""
        own = (TOMBSTONE, RECORD_NUMBER, VALUE_FACET) if self.topic is not None else ()
        return tuple(c for c in self.columns if self.defaults.get(c.name) != ARRIVAL and c.name not in own)

    @property
    def delivered(self) -> Schema:
        """The columns whose values a row has that comes from outside SQL: of an ordered stream its time, too."""
        return self.columns if self.event_time is not None and self.event_time.ordered else self.written

    @property
    def always_there(self) -> tuple[str, ...]:
        """The columns that every record of a topic with a value has; of what is no topic none."""
        return () if self.topic is None else (*self.topic.required, KEY_COLUMN)

    @property
    def written_by(self) -> str:
        """What writes its rows, in words."""
        return self.kind

    @property
    def is_stored(self) -> bool:
        """True if commits carry its changes, so that its content can be read."""
        return self.kind in ("table", "materialized view")

    @property
    def is_fed_by_circuit(self) -> bool:
        """True if epochs of the circuit (not the session's transactions) write its changes."""
        return self.kind == "materialized view" or (self.kind == "table" and bool(self.connector))

    def column(self, name: str) -> Field:
        """The column called `name`; KeyError if there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def renamed(self, names: tuple[str, ...]) -> Self:
        """The relation with its columns called so, in order, and without those behind them."""
        own = {c.name: n for c, n in zip(self.columns, names, strict=False)}

        def known(columns: Iterable[str]) -> tuple[str, ...]:
            return tuple(own[c] for c in columns if c in own)

        def by_name(values: dict[str, Any]) -> dict[str, Any]:
            return {own[n]: v for n, v in values.items() if n in own}

        time, topic = self.event_time, self.topic
        values: dict[str, Any] = {
            "primary_key": known(self.primary_key),
            "index_columns": known(self.index_columns),
            "included": known(self.included),
            "event_time": None if time is None else replace(time, column=own[time.column]),
            "topic": None if topic is None else replace(topic, required=known(topic.required)),
            "watermarks": by_name(self.watermarks),
            "defaults": by_name(self.defaults),
            "ranges": by_name(self.ranges),
            "digits": by_name(self.digits),
            "fills": by_name(self.fills),
        }
        return replace(
            self,
            columns=tuple(replace(c, name=own[c.name]) for c in self.columns if c.name in own),
            stored={new: s for old, new in own.items() if (s := self.stored.get(old, old)) != new},
            **{f.name: values[f.name] for f in fields(self) if f.name in values},
        )

    @property
    def as_stored(self) -> Self:
        """The relation with its columns as data and plans call them."""
        return self.renamed(tuple(self.stored.get(c.name, c.name) for c in self.columns)) if self.stored else self

    @property
    def time_columns(self) -> dict[str, Watermark]:
        """The watermarks by column name: the declared one, or those that were derived.

        A table that keeps the last row of each key takes older rows back: it gives none to those who read it.
        """
        if self.event_time is None:
            return self.watermarks
        return {self.event_time.column: (Term(self.id),)} if self.append_only or not self.primary_key else {}


R = TypeVar("R", bound=Relation)


def turned_into(kind: type[R], relation: Relation, **changes: Any) -> R:
    """The relation as one of another class, with what both classes have. changes: other values of fields."""
    both = {f.name for f in fields(kind)} & {f.name for f in fields(relation)}
    return kind(**{n: getattr(relation, n) for n in both} | changes)


@dataclass(frozen=True, slots=True)
class Input(Relation):
    """What rows are written to: a table or a source."""

    connector: dict[str, str] = field(default_factory=dict, kw_only=True)
    event_time: EventTime | None = field(default=None, kw_only=True)
    defaults: dict[str, str] = field(default_factory=dict, kw_only=True)
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict, kw_only=True)
    digits: dict[str, int] = field(default_factory=dict, kw_only=True)
    fills: dict[str, str] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True, slots=True)
class Table(Input):
    """A table."""

    kind: ClassVar[RelationKind] = "table"
    what: ClassVar[str] = "table"
    role: ClassVar[str] = "table"
    entry: ClassVar[str] = "table"


@dataclass(frozen=True, slots=True)
class Stream(Table):
    """A table of the dialects that call it a stream."""

    what: ClassVar[str] = "stream"
    role: ClassVar[str] = "stream"
    entry: ClassVar[str] = "stream"

    mode: StreamMode = field(default="append", kw_only=True)


@dataclass(frozen=True, slots=True)
class TopicTable(Table):
    """A topic that INSERT writes, or that a processor has written."""

    what: ClassVar[str] = "topic"
    role: ClassVar[str] = "topic"
    entry: ClassVar[str] = "topic"

    topic: Topic = field(kw_only=True)

    @property
    def written_by(self) -> str:
        return "stopped processor" if RECORD_NUMBER in [c.name for c in self.columns] else "INSERT"


@dataclass(frozen=True, slots=True)
class ExternalTable(Table):
    """A table whose content is brought from outside of the database."""

    what: ClassVar[str] = "external table"
    role: ClassVar[str] = "external table"
    entry: ClassVar[str] = "external table"

    external: External = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class DictionaryTable(ExternalTable):
    """A dictionary whose content is brought from outside of the database."""

    what: ClassVar[str] = "dictionary"
    role: ClassVar[str] = "dictionary"
    entry: ClassVar[str] = "dictionary"

    dictionary: Dictionary = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Source(Input):
    """A source: its rows are read, and not kept."""

    kind: ClassVar[RelationKind] = "source"
    what: ClassVar[str] = "source"
    role: ClassVar[str] = "source"
    entry: ClassVar[str] = "source"


@dataclass(frozen=True, slots=True)
class View(Relation):
    """A plain view: its text."""

    kind: ClassVar[RelationKind] = "view"
    what: ClassVar[str] = "view"
    role: ClassVar[str] = "view"
    entry: ClassVar[str] = "view"


@dataclass(frozen=True, slots=True)
class ExternalView(View):
    """An external table over a relation of this database."""

    what: ClassVar[str] = "external table"
    role: ClassVar[str] = "external table"
    entry: ClassVar[str] = "external view"

    external: External = field(kw_only=True)
    query: str = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class DictionaryView(View):
    """A dictionary over a relation of this database."""

    what: ClassVar[str] = "dictionary"
    role: ClassVar[str] = "dictionary"
    entry: ClassVar[str] = "dictionary view"

    dictionary: Dictionary = field(kw_only=True)
    query: str = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class StoppedPump(View):
    """A pump as long as it is stopped."""

    what: ClassVar[str] = "pump"
    role: ClassVar[str] = "pump"
    entry: ClassVar[str] = "stopped pump"

    feeds: str = field(kw_only=True)

    @property
    def pump(self) -> bool:
        """Whether CREATE PUMP made it."""
        return True


@dataclass(frozen=True, slots=True)
class MaterializedView(Relation):
    """A view that the circuit keeps up to date. feeds: of one INTO a stream."""

    kind: ClassVar[RelationKind] = "materialized view"
    what: ClassVar[str] = "materialized view"
    role: ClassVar[str] = "materialized view"
    entry: ClassVar[str] = "materialized view"

    watermarks: dict[str, Watermark] = field(default_factory=dict, kw_only=True)
    max_buffered_bytes: int | None = field(default=None, kw_only=True)
    most_join_rows: int = field(default=MOST_JOIN_ROWS, kw_only=True)
    feeds: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class Pump(MaterializedView):
    """A pump that is started."""

    what: ClassVar[str] = "pump"
    role: ClassVar[str] = "pump"
    entry: ClassVar[str] = "pump"

    @property
    def pump(self) -> bool:
        """Whether CREATE PUMP made it."""
        return True


@dataclass(frozen=True, slots=True)
class Processor(MaterializedView):
    """A processor, and the topic that it writes."""

    what: ClassVar[str] = "topic"
    role: ClassVar[str] = "processor"
    entry: ClassVar[str] = "processor"

    topic: Topic = field(kw_only=True)

    @property
    def written_by(self) -> str:
        return "processor"


@dataclass(frozen=True, slots=True)
class Query(MaterializedView):
    """A query that runs until it is stopped, hidden."""

    what: ClassVar[str] = "query"
    role: ClassVar[str] = "query"
    entry: ClassVar[str] = "query"


@dataclass(frozen=True, slots=True)
class Subscription(Query):
    """A query that stays when nobody reads it (SUBSCRIBE TO), hidden."""

    what: ClassVar[str] = "subscription"
    role: ClassVar[str] = "subscription"
    entry: ClassVar[str] = "subscription"

    subscribed_us: int = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class CacheFill(MaterializedView):
    """What the view `owner` finds that the cache of a dictionary lacks, hidden; it is written to that cache."""

    entry: ClassVar[str] = "cache fill"

    owner: str = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Index(Relation):
    """An index of a table or materialized view."""

    kind: ClassVar[RelationKind] = "index"
    what: ClassVar[str] = "index"
    role: ClassVar[str] = "index"
    entry: ClassVar[str] = "index"

    index_columns: tuple[str, ...] = field(default=(), kw_only=True)
    included: tuple[str, ...] = field(default=(), kw_only=True)


_CLASSES: Final[tuple[type[Relation], ...]] = (
    Table,
    Stream,
    TopicTable,
    ExternalTable,
    DictionaryTable,
    Source,
    View,
    ExternalView,
    DictionaryView,
    StoppedPump,
    MaterializedView,
    Pump,
    Processor,
    Query,
    Subscription,
    CacheFill,
    Index,
)
kinds(Relation, {c.entry: c for c in _CLASSES}, by="entry")
