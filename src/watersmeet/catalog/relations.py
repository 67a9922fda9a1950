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

#: What DROP and ALTER say. `any view`: VIEW where that is said of materialized ones, too; `topic`: TABLE where that is
#: said of all that is read as a topic.
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
    """What a kind is called by messages and statements.

    what: in messages. role: where it runs and reads others, and where a statement makes it; the same if not given.
    show: the lists of SHOW that it is in. show_create: behind SHOW CREATE. drop: behind DROP and ALTER. Of several
    words the first is the best one. A kind without these is hidden: no statement can name it.
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

    A relation of any class answers for what only others have, with nothing: `topic` is None for all but topics.

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
    since: the version of the catalog from which on it is there for all, with its first content.
    """

    # What each kind says of itself.

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

    # What only relations of some classes have.

    @property
    def connector(self) -> dict[str, str]:
        """The WITH options (lower-case names) of a source or a table that is fed by a connector."""
        return {}

    @property
    def format(self) -> MessageFormat | None:
        """How the messages of its connector become rows."""
        return None

    @property
    def message_parts(self) -> dict[str, str]:
        """By column, the part of a message of its connector that the column shows."""
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
    def generated(self) -> dict[str, GeneratedColumn]:
        """By column, how its value follows from others of the row."""
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
    def key_columns(self) -> tuple[str, ...]:
        """Of the primary key, those by which a dictionary is looked up: without the beginning of a range."""
        bounds = () if self.dictionary is None else self.dictionary.bounds
        return tuple(k for k in self.primary_key if k not in bounds)

    @property
    def reopened(self) -> bool:
        """Of a source, whether each query over it reads it from a place of its own on."""
        return False

    @property
    def is_written_outside(self) -> bool:
        """Whether statements and views write its rows to where it is, outside of the database."""
        return self.reopened

    @property
    def unlisted(self) -> tuple[str, ...]:
        """The columns of a source that `*` leaves out."""
        return ()

    @property
    def computed_parts(self) -> tuple[ComputedPart, ...]:
        """The parts of messages that follow from the rows that are written to a stream outside of the database."""
        return ()

    @property
    def feeds(self) -> str:
        """Of a view, the id of the stream that its rows are written to."""
        return ""

    @property
    def has_partial_changes(self) -> bool:
        """Of a table that a connector feeds, whether changes of its rows may keep values of the rows before, or empty
        it.
        """
        return False

    @property
    def loses_rows(self) -> bool:
        """Of a table without a key that a connector feeds, whether rows of it may go."""
        return False

    @property
    def owner(self) -> str:
        """Of what is hidden, the id of the view for which it works."""
        return ""

    @property
    def max_buffered_bytes(self) -> int | None:
        """Of a materialized view, how much each of its joins may keep; None: as much as there is."""
        return None

    @property
    def most_join_rows(self) -> int:
        """Of a materialized view, how many rows each of its joins may make in one epoch; 0: any number."""
        return MOST_JOIN_ROWS

    @property
    def is_named(self) -> bool:
        """Whether a statement can name it as a relation."""
        return not self.hidden and bool(self.words.show_create)

    @property
    def shown(self) -> str:
        """The name that no other relation has: with its schema, unless that is the common one."""
        return self.name if self.schema == COMMON_SCHEMA else f"{self.schema}.{self.name}"

    @property
    def takes_signs(self) -> bool:
        """Whether rows are written to it with `_tp_delta`."""
        return self.mode in ("changelog", "changelog_kv")

    @property
    def is_there(self) -> bool:
        """Whether it is there for all, with its first content."""
        return self.ready and not self.staged

    @property
    def what(self) -> str:
        """The word for it in messages."""
        return self.words.what

    @property
    def role(self) -> str:
        """The word for it where it runs and reads others."""
        return self.words.role

    @property
    def title(self) -> str:
        """What it is and its name, for messages."""
        return f'{self.what} "{self.shown}"'

    @property
    def reader(self) -> str:
        """What reads others and its name, for messages."""
        return f'{self.role} "{self.shown}"'

    @property
    def written_name(self) -> str:
        """Its name as a statement has it, for hints."""
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
        """The columns whose values a row without column list has: not those that are filled by themselves."""
        own = _METADATA if self.topic is not None else ()
        own = (*own, *self.generated)
        return tuple(c for c in self.columns if self.defaults.get(c.name) != ARRIVAL and c.name not in own)

    @property
    def given(self) -> Schema:
        """The columns whose values its connector gives."""
        return self.written

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
        return self.family

    @property
    def is_fed_by_circuit(self) -> bool:
        """Whether epochs of the circuit (not the session's transactions) write its changes."""
        return False

    @property
    def view_text(self) -> str:
        """Of a view of any kind, the CREATE statement whose query stands for it."""
        return self.sql

    def column(self, name: str) -> Field:
        """The column called `name`; KeyError if there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def renamed(self, names: tuple[str, ...]) -> Self:
        """The relation with its columns called so, in order, and without those behind them."""
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
        """The relation with its columns as data and plans call them."""
        return self.renamed(tuple(self.stored.get(c.name, c.name) for c in self.columns)) if self.stored else self

    @property
    def time_columns(self) -> dict[str, Watermark]:
        """The watermarks by column name: the declared one, or those that were derived.

        A table that keeps the last row of each key, or loses rows, takes older rows back: it gives none to its readers.
        """
        if self.event_time is None:
            return self.watermarks
        takes_back = not self.append_only and (bool(self.primary_key) or self.loses_rows)
        return {} if takes_back else {self.event_time.column: (Term(self.id),)}


def _renamed(value: Any, names: dict[str, str]) -> Any:
    """What a field of `NAMES_COLUMNS` is for columns that are called so now; without those that are not there."""
    if value is None:
        return None
    if isinstance(value, tuple):
        return tuple(names[c] for c in value if c in names)
    if isinstance(value, dict):
        return {names[c]: v for c, v in value.items() if c in names}
    return value.renamed(names)


R = TypeVar("R", bound=Relation)


def turned_into(kind: type[R], relation: Relation, **changes: Any) -> R:
    """The relation as one of another class, with what both classes have. changes: other values of fields."""
    both = {f.name for f in fields(kind)} & {f.name for f in fields(relation)}
    return kind(**{n: getattr(relation, n) for n in both} | changes)
