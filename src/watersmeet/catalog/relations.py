"""The fields and properties that all relations have, and the words for each kind."""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Any, ClassVar, Final, Literal, Self, TypeVar

from watersmeet.catalog.parts import (
    ARRIVAL,
    COMMON_SCHEMA,
    KEY_COLUMN,
    MOST_JOIN_ROWS,
    RECORD_HEADERS,
    RECORD_NUMBER,
    RECORD_OFFSET,
    RECORD_PARTITION,
    TOMBSTONE,
    VALUE_COLUMN,
    Check,
    ColumnFamily,
    ComputedPart,
    Conflict,
    Constraint,
    Dictionary,
    Domain,
    EventTime,
    External,
    ForeignKey,
    GeneratedColumn,
    Known,
    MessageFormat,
    Serial,
    StreamMode,
    Topic,
    Unique,
)
from watersmeet.values import DEFAULT_DIALECT
from watersmeet.values.declaredtypes import Declared
from watersmeet.values.times import UTC
from watersmeet.values.types import Field, Schema
from watersmeet.values.watermarks import Term, Watermark

#: The word for a kind in DROP and ALTER. `any view`: VIEW in dialects where it includes materialized views. `topic`:
#: TABLE in dialects where it means all relations read as topics.
DropWord = Literal[
    "table",
    "source",
    "view",
    "materialized view",
    "index",
    "stream",
    "dictionary",
    "any view",
    "topic",
    "pump",
    "sink",
    "server",
    "connection",
    "format schema",
    "named collection",
    "subscription",
    "sequence",
    "domain",
    "type",
]


@dataclass(frozen=True, slots=True)
class Words:
    """The names of a kind in messages and statements.

    what: the name in messages. role: the name in messages about running, reading and creating; `what` if not given.
    show: the lists of SHOW that contain it. show_create: the words after SHOW CREATE. drop: the words after DROP and
    ALTER. The first of several words is the preferred one. A kind without these words is hidden: no statement can name
    it.
    """

    what: str
    role: str = ""
    show: tuple[str, ...] = ()
    show_create: tuple[str, ...] = ()
    drop: tuple[DropWord, ...] = ()

    def __post_init__(self) -> None:
        if not self.role:
            object.__setattr__(self, "role", self.what)


def one(word: str) -> str:
    """The word with its article."""
    return f"{'an' if word[0] in 'aeio' else 'a'} {word}"


#: Marks a field with names of columns, so that they can be renamed: a tuple of names, a dict by name, or a part of a
#: relation with a method `renamed`.
NAMES_COLUMNS: Final = {"names_columns": True}

#: The columns of a topic that no statement writes.
_METADATA: Final = (TOMBSTONE, RECORD_NUMBER, VALUE_COLUMN, RECORD_PARTITION, RECORD_OFFSET, RECORD_HEADERS)


@dataclass(frozen=True, slots=True)
class Relation:
    """The base class of named relations; `catalog.contents` lists the classes.

    A relation returns an empty value for properties of other classes: `topic` is None unless it is a topic.

    id: `<kind letter><number>` such as `t3`; unique for the life of the database, and safe as a file name. columns: the
    columns in order; an index has those of its table. primary_key: the names of the key's columns; empty for a hidden
    row id. append_only: whether no row is ever updated or deleted (sources, APPEND ONLY tables, and the materialized
    views for which the planner proves it). sql: the text of the statement that created it. dialect: the dialect of this
    statement. depends_on: the ids of the relations that a view reads, or of an index's table. schema: the schema in
    which its name is unique. path: for a view, the schemas in which its query looked up unqualified names. hidden:
    whether no statement can name it. zone: for a view, the time zone of its query.
    staged: whether an open transaction created it; then it is invisible to other
    transactions, and removed if this one does not commit. ready: False until the first content (backfill) of a relation
    fed by the circuit is complete. known: for relations that were altered later, their names and columns in its text,
    by id. stored: the names of renamed columns in data and plans. functions: the ids of the SQL functions that its text
    calls. since: the version of the catalog from which all sessions see it with its first content. comment, comments:
    the texts of COMMENT ON for it, and for its columns by name.
    """

    # Properties of each kind of relation.

    words: ClassVar[Words]
    family: ClassVar[str]
    """The word of plain SQL for the most similar kind of relation. Ids begin with its first letter."""
    duplicate: ClassVar[str] = "DUPLICATE_OBJECT"
    """The condition of an error about another relation of the same name."""
    entry: ClassVar[str]
    """The name of the class in a stored catalog."""
    has_rows: ClassVar[bool] = False
    """Whether it has rows whose changes its readers follow, unlike stored queries and indexes."""
    is_stored: ClassVar[bool] = False
    """Whether commits contain its changes, so that its content can be read."""
    can_alter: ClassVar[bool] = True
    """Whether ALTER can change it."""
    can_alter_columns: ClassVar[bool] = False
    """Whether ALTER can change its columns, because its statement declares them."""
    is_external: ClassVar[bool] = False
    """Whether its content is that of another object, which its statement names."""

    id: str
    name: str
    columns: Schema
    _: KW_ONLY
    primary_key: tuple[str, ...] = field(default=(), metadata=NAMES_COLUMNS)
    append_only: bool = False
    sql: str = ""
    depends_on: tuple[str, ...] = ()
    dialect: str = DEFAULT_DIALECT
    schema: str = COMMON_SCHEMA
    path: tuple[str, ...] = (COMMON_SCHEMA,)
    hidden: bool = False
    zone: str = UTC
    staged: bool = False
    ready: bool = True
    known: dict[str, Known] = field(default_factory=dict)
    stored: dict[str, str] = field(default_factory=dict)
    functions: tuple[str, ...] = ()
    since: int = 0
    comment: str = ""
    comments: dict[str, str] = field(default_factory=dict, metadata=NAMES_COLUMNS)

    @property
    def only_grows(self) -> bool:
        """Whether no stored change deletes rows."""
        return self.append_only and not self.rewritten

    # Properties of only some classes.

    @property
    def rewritten(self) -> bool:
        """Whether PROMOTE has deleted rows of an append-only table or view."""
        return False

    @property
    def connector(self) -> dict[str, str]:
        """The WITH options of a source, or of a table that a connector feeds, with names in lower case."""
        return {}

    @property
    def format(self) -> MessageFormat | None:
        """The conversion of the connector's messages to rows."""
        return None

    @property
    def message_parts(self) -> dict[str, str]:
        """The part of a connector's message in each column, by column."""
        return {}

    @property
    def event_time(self) -> EventTime | None:
        """The event time of a source or table with WATERMARK FOR."""
        return None

    @property
    def watermarks(self) -> dict[str, Watermark]:
        """The watermarks of a materialized view by column name."""
        return {}

    @property
    def mode(self) -> StreamMode | None:
        """The mode of a stream, by which rows replace earlier ones."""
        return None

    @property
    def defaults(self) -> dict[str, str]:
        """The defaults of columns for INSERT as DuckDB SQL, by column; ARRIVAL is the time of the INSERT. Other columns
        default to NULL.
        """
        return {}

    @property
    def generated(self) -> dict[str, GeneratedColumn]:
        """The expressions of generated columns over other columns of the row, by column."""
        return {}

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """The ranges of columns that are narrower than their types (unsigned numbers), by column."""
        return {}

    @property
    def digits(self) -> dict[str, int]:
        """The fractional digits of columns of times that have fewer than their types, by column."""
        return {}

    @property
    def lengths(self) -> dict[str, int]:
        """The number of characters, or bytes, to which the values of a column are cut, by column."""
        return {}

    @property
    def declared(self) -> dict[str, Declared]:
        """The declared types of columns whose types don't show them, by column."""
        return {}

    @property
    def serials(self) -> dict[str, Serial]:
        """The columns whose missing values are numbers in sequence."""
        return {}

    @property
    def domains(self) -> dict[str, Domain]:
        """The rules of columns whose types are domains."""
        return {}

    @property
    def choices(self) -> dict[str, tuple[str, ...]]:
        """The allowed texts of columns that are enums, in the order of their numbers, by column."""
        return {}

    @property
    def version(self) -> str:
        """The column of a keyed stream by which an older row never replaces a newer one; empty: the last row stays."""
        return ""

    @property
    def keeps_first(self) -> bool:
        """Whether the first of equal versions stays, not the last."""
        return False

    @property
    def coalesced(self) -> bool:
        """Whether a row with the key of an existing one keeps the values of the columns that the writer omits."""
        return False

    @property
    def families(self) -> tuple[ColumnFamily, ...]:
        """The columns of a coalesced stream that are only set together."""
        return ()

    @property
    def fills(self) -> dict[str, str]:
        """The values of earlier rows in added columns as texts, by column; NULL in other added columns."""
        return {}

    @property
    def dropped(self) -> tuple[str, ...]:
        """The names of dropped columns in the stored data, which may still have them."""
        return ()

    @property
    def conflict(self) -> Conflict | None:
        """The conflict rule of a table with a key; None: a new row replaces the row of its key."""
        return None

    @property
    def key_name(self) -> str:
        """The name of the constraint that is the primary key."""
        return f"{self.name}_pkey"

    @property
    def rejects_duplicates(self) -> bool:
        """Whether INSERT raises an error for a row with the primary key of an existing one."""
        return False

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """The constraints besides the primary key."""
        return (*self.uniques, *self.checks, *self.foreign_keys)

    @property
    def uniques(self) -> tuple[Unique, ...]:
        """The keys of a table besides its primary key."""
        return ()

    @property
    def checks(self) -> tuple[Check, ...]:
        """The conditions that each row of a table meets."""
        return ()

    @property
    def foreign_keys(self) -> tuple[ForeignKey, ...]:
        """The references of a table's rows to those of other tables."""
        return ()

    @property
    def topic(self) -> Topic | None:
        """The properties of a topic, whose rows are records in order of arrival."""
        return None

    @property
    def external(self) -> External | None:
        """The location of a relation whose content is read from an external system."""
        return None

    @property
    def dictionary(self) -> Dictionary | None:
        """The properties of a dictionary."""
        return None

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of the primary key by which a dictionary is looked up, without the lower bound of a range."""
        bounds = () if self.dictionary is None else self.dictionary.bounds
        return tuple(k for k in self.primary_key if k not in bounds)

    @property
    def reopened(self) -> bool:
        """Whether each query reads a source separately from its own offset."""
        return False

    @property
    def is_written_externally(self) -> bool:
        """Whether statements and views write its rows to an external system."""
        return self.reopened

    @property
    def is_unconnected(self) -> bool:
        """Whether it is an external stream without its connector, because the session does without connectors."""
        return False

    @property
    def unlisted(self) -> tuple[str, ...]:
        """The columns that `*` omits."""
        return ()

    @property
    def computed_parts(self) -> tuple[ComputedPart, ...]:
        """The parts of messages of an external stream that are computed from the written rows."""
        return ()

    @property
    def feeds(self) -> str:
        """For a view, the id of the stream to which its rows are written."""
        return ""

    @property
    def has_partial_changes(self) -> bool:
        """Whether changes of a table that a connector feeds may keep values of earlier rows, or empty the table."""
        return False

    @property
    def loses_rows(self) -> bool:
        """Whether the rows of a table without a key that a connector feeds may be deleted."""
        return False

    @property
    def owner(self) -> str:
        """For a hidden relation, the id of the view that uses it."""
        return ""

    @property
    def max_buffered_bytes(self) -> int | None:
        """For a materialized view, the memory limit of each of its joins; None: no limit."""
        return None

    @property
    def most_join_rows(self) -> int:
        """For a materialized view, the limit of rows that each of its joins may make in one epoch; 0: none."""
        return MOST_JOIN_ROWS

    @property
    def is_named(self) -> bool:
        """Whether a statement can name it as a relation."""
        return not self.hidden and bool(self.words.show_create)

    @property
    def shown(self) -> str:
        """The unique name, qualified by its schema unless that is the default schema."""
        return self.name if self.schema == COMMON_SCHEMA else f"{self.schema}.{self.name}"

    @property
    def takes_signs(self) -> bool:
        """Whether rows are written to it with `_tp_delta`."""
        return self.mode in ("changelog", "changelog_kv", "versioned_kv", "mutable")

    @property
    def is_there(self) -> bool:
        """Whether all sessions see it with its first content."""
        return self.ready and not self.staged

    @property
    def what(self) -> str:
        """The kind in messages."""
        return self.words.what

    @property
    def role(self) -> str:
        """The kind in messages about running and reading."""
        return self.words.role

    @property
    def title(self) -> str:
        """The kind and the name for messages."""
        return f'{self.what} "{self.shown}"'

    @property
    def reader(self) -> str:
        """The kind of reader and the name for messages."""
        return f'{self.role} "{self.shown}"'

    @property
    def written_name(self) -> str:
        """The name as it is written in a statement, for hints."""
        return self.shown if re.fullmatch("[a-z_][a-z0-9_.]*", self.shown) else f'"{self.name}"'

    def connector_altered(self, option: str) -> str:
        """The statement that sets an option of the connector, for hints. Only the default dialect has it."""
        word = (*self.words.drop, "source")[0].upper()
        statement = f"ALTER {word} {self.written_name} CONNECTOR WITH ({option})"
        return statement if self.dialect == DEFAULT_DIALECT else f"SET dialect = '{DEFAULT_DIALECT}'; {statement}"

    def query_altered(self, setting: str) -> str:
        """The statement that sets a setting of the query, for hints."""
        return f"ALTER VIEW {self.written_name} MODIFY QUERY SETTING {setting}"

    @property
    def written(self) -> Schema:
        """The columns of a row in an INSERT without column list, without those that are filled automatically."""
        own = _METADATA if self.topic is not None else ()
        own = (*own, *self.always_generated)
        return tuple(c for c in self.columns if self.defaults.get(c.name) != ARRIVAL and c.name not in own)

    @property
    def always_generated(self) -> tuple[str, ...]:
        """The generated columns that can't be written."""
        return tuple(name for name, made in self.generated.items() if not made.yields)

    @property
    def given(self) -> Schema:
        """The columns whose values its connector reads."""
        return self.written

    @property
    def delivered(self) -> Schema:
        """The columns of a row that is not written by SQL, which for an ordered stream include its time."""
        return self.columns if self.event_time is not None and self.event_time.ordered else self.written

    @property
    def always_there(self) -> tuple[str, ...]:
        """The columns that every record of a topic with a value has; empty for other relations."""
        return () if self.topic is None else (*self.topic.required, KEY_COLUMN)

    @property
    def written_by(self) -> str:
        """A description of the writer of the relation's rows, as SHOW TOPICS shows it."""
        return self.family

    @property
    def is_fed_by_circuit(self) -> bool:
        """Whether epochs of the circuit (not the session's transactions) write its changes."""
        return False

    @property
    def has_plan(self) -> bool:
        """Whether operators of the circuit compute its rows."""
        return self.is_fed_by_circuit

    @property
    def view_text(self) -> str:
        """For a view of any kind, the CREATE statement whose query defines it."""
        return self.sql

    def column(self, name: str) -> Field:
        """The column called `name`; KeyError if there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def renamed(self, names: tuple[str, ...]) -> Self:
        """The relation with its columns renamed in order, without additional ones."""
        return self.with_names({c.name: n for c, n in zip(self.columns, names, strict=False)})

    def with_names(self, own: dict[str, str]) -> Self:
        """The relation with the columns in `own` by their new names, without the others."""
        named = [f.name for f in fields(self) if f.metadata == NAMES_COLUMNS]
        return replace(
            self,
            columns=tuple(replace(c, name=own[c.name]) for c in self.columns if c.name in own),
            stored={new: s for old, new in own.items() if (s := self.stored.get(old, old)) != new},
            **{n: _renamed(getattr(self, n), own) for n in named},
        )

    @property
    def as_stored(self) -> Self:
        """The relation with the column names of data and plans."""
        return self.renamed(tuple(self.stored.get(c.name, c.name) for c in self.columns)) if self.stored else self

    @property
    def time_columns(self) -> dict[str, Watermark]:
        """The watermarks by column name, either the declared one or derived ones.

        A table that keeps only the last row of each key, or loses rows, deletes earlier rows, so it has no watermarks
        for its readers.
        """
        if self.event_time is None:
            return self.watermarks
        takes_back = not self.append_only and (bool(self.primary_key) or self.loses_rows)
        return {} if takes_back else {self.event_time.column: (Term(self.id),)}


def _renamed(value: Any, names: dict[str, str]) -> Any:
    """The value of a field of `NAMES_COLUMNS` for renamed columns, without missing ones."""
    if value is None:
        return None
    if isinstance(value, str):
        return names.get(value, "")
    if isinstance(value, tuple):
        parts = (names.get(c) if isinstance(c, str) else c.renamed(names) for c in value)
        return tuple(p for p in parts if p is not None)
    if isinstance(value, dict):
        return {names[c]: v for c, v in value.items() if c in names}
    return value.renamed(names)


R = TypeVar("R", bound=Relation)


def turned_into(kind: type[R], relation: Relation, **changes: Any) -> R:
    """The relation converted to another class with the common fields. changes: new values of fields."""
    both = {f.name for f in fields(kind)} & {f.name for f in fields(relation)}
    return kind(**{n: getattr(relation, n) for n in both} | changes)
