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
    ComputedPart,
    Dictionary,
    EventTime,
    External,
    GeneratedColumn,
    Known,
    MessageFormat,
    StreamMode,
    Topic,
)
from watersmeet.values import DEFAULT_DIALECT
from watersmeet.values.types import Field, Schema
from watersmeet.values.watermarks import Term, Watermark

#: The word of DROP and ALTER. `any view`: VIEW where it includes materialized views; `topic`: TABLE where it means all
#: relations read as topics.
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
]


@dataclass(frozen=True, slots=True)
class Words:
    """The names of a kind in messages and statements.

    what: in messages. role: in messages about running, reading and creating; `what` if not given. show: the lists of
    SHOW that contain it. show_create: after SHOW CREATE. drop: after DROP and ALTER. Of several words the first is the
    best one. A kind without these is hidden: no statement can name it.
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


#: Marks a field that names columns, so that they can be renamed: a tuple of names, a dict by name, or a part of a
#: relation that has a method `renamed`.
NAMES_COLUMNS: Final = {"names_columns": True}

#: The columns of a topic that no statement writes.
_METADATA: Final = (TOMBSTONE, RECORD_NUMBER, VALUE_COLUMN, RECORD_PARTITION, RECORD_OFFSET, RECORD_HEADERS)


@dataclass(frozen=True, slots=True)
class Relation:
    """One named relation; each is of a class of `catalog.contents`.

    A relation returns an empty value for properties of other classes: `topic` is None for all but topics.

    id: `<kind letter><number>` such as `t3`; unique for the life of the database, safe as a file name. columns: in
    order (of an index: those of its table). primary_key: names of the key's columns, empty for a hidden row id.
    append_only: True if no row is ever updated or deleted (sources, APPEND ONLY tables, and the materialized views for
    which the planner proves it). sql: the text of the statement that created it. dialect: its dialect. depends_on: ids
    of the relations that this one reads (views), or its table (index). schema: in which its name is unique. path: of a
    view, the schemas in which its query looked up unqualified names. hidden: no statement names it. staged: created by
    an open transaction: hidden from all others, and removed if it does not commit. ready: for relations that the
    circuit feeds, False until the first content (backfill) is complete. known: by id, the names and columns, as its
    text has them, of relations that were altered since. stored: the names of renamed columns in data and plans.
    functions: ids of the functions of SQL that its text calls. since: the version of the catalog since which all
    sessions see it, with its first content.
    """

    # Properties of each kind.

    words: ClassVar[Words]
    family: ClassVar[str]
    """The word of plain SQL for what is kept and fed like it. Its first letter begins the ids."""
    entry: ClassVar[str]
    """The name of its class in a stored catalog."""
    has_rows: ClassVar[bool] = False
    """Whether rows come to it, which those that read it follow: not to texts and to indexes."""
    is_stored: ClassVar[bool] = False
    """Whether commits carry its changes, so that its content can be read."""
    can_alter: ClassVar[bool] = True
    """Whether ALTER changes anything of it."""
    can_alter_columns: ClassVar[bool] = False
    """Whether ALTER changes its columns: they are those that its statement declares."""
    is_external: ClassVar[bool] = False
    """Whether its content is that of something else, which its statement names."""

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
    staged: bool = False
    ready: bool = True
    known: dict[str, Known] = field(default_factory=dict)
    stored: dict[str, str] = field(default_factory=dict)
    functions: tuple[str, ...] = ()
    since: int = 0

    # Properties of some classes only.

    @property
    def connector(self) -> dict[str, str]:
        """The WITH options (lower-case names) of a source or a table that is fed by a connector."""
        return {}

    @property
    def format(self) -> MessageFormat | None:
        """The conversion of the connector's messages to rows."""
        return None

    @property
    def message_parts(self) -> dict[str, str]:
        """The part of a connector's message that a column shows, by column."""
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
        """For a stream, how its rows replace each other."""
        return None

    @property
    def defaults(self) -> dict[str, str]:
        """The default of a column for INSERT, as DuckDB SQL; ARRIVAL is the time of the INSERT. Other columns default
        to NULL.
        """
        return {}

    @property
    def generated(self) -> dict[str, GeneratedColumn]:
        """The expression of each generated column over other columns of the row, by column."""
        return {}

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """The range of a column, if it is smaller than that of its type (unsigned numbers)."""
        return {}

    @property
    def digits(self) -> dict[str, int]:
        """The fractional digits of a column of times, if they are fewer than those of its type."""
        return {}

    @property
    def fills(self) -> dict[str, str]:
        """The value that earlier rows have in an added column, as text, by column; others have NULL."""
        return {}

    @property
    def topic(self) -> Topic | None:
        """For a topic, whose rows are records in order of arrival."""
        return None

    @property
    def external(self) -> External | None:
        """For a relation whose content is read from an external system."""
        return None

    @property
    def dictionary(self) -> Dictionary | None:
        """For a dictionary."""
        return None

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of the primary key by which a dictionary is looked up: without the beginning of a range."""
        bounds = () if self.dictionary is None else self.dictionary.bounds
        return tuple(k for k in self.primary_key if k not in bounds)

    @property
    def reopened(self) -> bool:
        """For a source, whether each query reads it by itself, from its own offset."""
        return False

    @property
    def is_written_externally(self) -> bool:
        """Whether statements and views write its rows to an external system."""
        return self.reopened

    @property
    def unlisted(self) -> tuple[str, ...]:
        """The columns of a source that `*` leaves out."""
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
        """For a table fed by a connector, whether changes may keep values of earlier rows, or empty the table."""
        return False

    @property
    def loses_rows(self) -> bool:
        """For a table without a key that is fed by a connector, whether its rows may be deleted."""
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
        """The unique name: with its schema unless that is the default one."""
        return self.name if self.schema == COMMON_SCHEMA else f"{self.schema}.{self.name}"

    @property
    def takes_signs(self) -> bool:
        """Whether rows are written to it with `_tp_delta`."""
        return self.mode in ("changelog", "changelog_kv")

    @property
    def is_there(self) -> bool:
        """Whether all sessions see it, with its first content."""
        return self.ready and not self.staged

    @property
    def what(self) -> str:
        """Its kind in messages."""
        return self.words.what

    @property
    def role(self) -> str:
        """Its kind in messages about running and reading."""
        return self.words.role

    @property
    def title(self) -> str:
        """Its kind and name, for messages."""
        return f'{self.what} "{self.shown}"'

    @property
    def reader(self) -> str:
        """Its kind as a reader, and its name, for messages."""
        return f'{self.role} "{self.shown}"'

    @property
    def written_name(self) -> str:
        """Its name as a statement writes it, for hints."""
        return self.shown if re.fullmatch("[a-z_][a-z0-9_.]*", self.shown) else f'"{self.name}"'

    def connector_altered(self, option: str) -> str:
        """The statement that gives its connector an option, for hints. Only the default dialect has it."""
        word = (*self.words.drop, "source")[0].upper()
        statement = f"ALTER {word} {self.written_name} CONNECTOR WITH ({option})"
        return statement if self.dialect == DEFAULT_DIALECT else f"SET dialect = '{DEFAULT_DIALECT}'; {statement}"

    def query_altered(self, setting: str) -> str:
        """The statement that gives its query a setting, for hints."""
        return f"ALTER VIEW {self.written_name} MODIFY QUERY SETTING {setting}"

    @property
    def written(self) -> Schema:
        """The columns of a row in an INSERT without column list: without those that are filled automatically."""
        own = _METADATA if self.topic is not None else ()
        own = (*own, *self.generated)
        return tuple(c for c in self.columns if self.defaults.get(c.name) != ARRIVAL and c.name not in own)

    @property
    def given(self) -> Schema:
        """The columns whose values its connector reads."""
        return self.written

    @property
    def delivered(self) -> Schema:
        """The columns of a row from outside SQL: for an ordered stream including its time."""
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
        """The relation with its columns renamed, in order, without further ones."""
        own = {c.name: n for c, n in zip(self.columns, names, strict=False)}
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
        """The watermarks by column name: the declared one, or derived ones.

        A table that keeps the last row of each key, or loses rows, deletes earlier rows: it has no watermarks for its
        readers.
        """
        if self.event_time is None:
            return self.watermarks
        takes_back = not self.append_only and (bool(self.primary_key) or self.loses_rows)
        return {} if takes_back else {self.event_time.column: (Term(self.id),)}


def _renamed(value: Any, names: dict[str, str]) -> Any:
    """The value of a field of `NAMES_COLUMNS` for renamed columns, without missing ones."""
    if value is None:
        return None
    if isinstance(value, tuple):
        return tuple(names[c] for c in value if c in names)
    if isinstance(value, dict):
        return {names[c]: v for c, v in value.items() if c in names}
    return value.renamed(names)


R = TypeVar("R", bound=Relation)


def turned_into(kind: type[R], relation: Relation, **changes: Any) -> R:
    """The relation as one of another class, with the fields of both classes. changes: other values of fields."""
    both = {f.name for f in fields(kind)} & {f.name for f in fields(relation)}
    return kind(**{n: getattr(relation, n) for n in both} | changes)
