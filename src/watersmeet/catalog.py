"""The catalog: what a database contains. Pure data, stored as JSON by `store.catalogs`.

A relation has a `name` that the user sees and an `id` that is never used twice: data, state
and commits are kept under the id, so a name that is dropped and created again starts empty.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

from watersmeet.types import DAY_US, Field, Schema
from watersmeet.watermarks import Term, Watermark

RelationKind = Literal["table", "source", "view", "materialized view", "index"]

#: append: every row is its own event. The others keep the last row of each primary key; versioned_kv also older ones where
#: a join asks for them, changelog_kv takes rows away by `_tp_delta` = -1. Document 003, "Data to be Joined".
StreamMode = Literal["append", "mutable", "versioned_kv", "changelog_kv"]

#: In rows that are written to a changelog stream: 1 for a row that comes, -1 for one that goes (ruling D-003-09).
DELTA_COLUMN: Final = "_tp_delta"

#: Columns of a topic beside the fields of its records' values: their key, their time, and whether the value is NULL (a tombstone).
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

#: The default of a column that gets the time at which a row came.
ARRIVAL: Final = "now()"


@dataclass(frozen=True, slots=True)
class EventTime:
    """`WATERMARK FOR column AS column - delay`.

    ahead_us: a time further ahead of the epoch's own than that does not move the watermark. idle_us: without rows for so
    long, the input no longer holds back others; None: it always does. ordered: rows come in the order of their times: one that is before
    another that came before it is rejected where it is written; times are whole milliseconds.
    """

    column: str
    delay_us: int
    ahead_us: int = DAY_US
    idle_us: int | None = None
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class Topic:
    """What a topic is beside its columns: the formats of its key and its value, its number of partitions.

    key_format: None for a key that was computed (ON expressions and key change). required: the fields that no record with a value
    leaves out. compacted: its records are the changes of a table, of each key the newest.
    """

    key_format: str | None
    value_format: str
    partitions: int
    required: tuple[str, ...] = ()
    compacted: bool = False

    @staticmethod
    def from_json(value: Any) -> Topic:
        """The inverse of `asdict`."""
        return Topic(**{**value, "required": tuple(value["required"])})


@dataclass(frozen=True, slots=True)
class External:
    """Where the content of an external table or dictionary is: outside of the database.

    kind: of reader (`sources.external`): file, mysql, … name: of the table there. options: as the reader wants them, names in lower case.
    """

    kind: str
    name: str
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Dictionary:
    """How joins look a dictionary up. Document 003, "Dictionary", "Direct JOIN with Dictionary".

    ttl_us: what a key was answered with serves so long again; None: every row asks. stream: id of the mutable stream that is asked first
    (empty: none). fills: whether what it lacks and the source has is written to it.
    """

    ttl_us: int | None = None
    stream: str = ""
    fills: bool = False


@dataclass(frozen=True, slots=True)
class Relation:
    """One named relation.

    id: `<kind letter><number>` such as `t3`; unique for the life of the database, safe as a file name.
    schema: the one that it is in; names are unique there. path: of a view, the schemas in which its query looked up names without one.
    columns: the declared columns in order (of an index: those of its table).
    primary_key: names of the key's columns, empty for a hidden row id.
    append_only: True if no row is ever updated or deleted (sources, APPEND ONLY tables, and the
        materialised views for which the planner proves it).
    connector: the WITH options (lower-case names) of a source or a table that is fed by a connector.
    sql: the text of the statement that made it. dialect: its dialect.
    depends_on: ids of the relations that this one reads (views), or its table (index).
    index_columns: of an index, the names of its key columns. included: those of its INCLUDE, empty for all columns.
    ready: of a materialised view, False until its first content (backfill) is complete.
    event_time: of a source or table with WATERMARK FOR. watermarks: by column name, those of a materialised view.
    mode: of a stream (a table of the Timeplus dialect), how its rows replace each other.
    defaults: what a column gets that an INSERT leaves out, as DuckDB SQL; ARRIVAL is the time of the INSERT. Others get NULL.
    ranges: the least and the greatest number that a column takes, where its type takes more (unsigned numbers). digits: how many
        of a second a column of times keeps, where that are less than all.
    hidden: made for a query that runs until it is stopped; no statement names it.
    max_buffered_bytes: of a materialised view, how much each of its joins may keep; None: as much as there is.
    topic: of a topic (Lenses), whose rows are records in the order in which they came.
    external: of a table whose content is brought from outside of the database. dictionary: of a dictionary: such a table, or a view.
    query: of an external table or dictionary over a relation of this database, a view, the CREATE VIEW that stands for it.
    feeds: of a hidden view, the id of the stream that its rows are written to if that lacks their keys; owner: the view for which it works.
    pump: made by CREATE PUMP; of kind view as long as it is stopped.
    """

    id: str
    name: str
    kind: RelationKind
    columns: Schema
    primary_key: tuple[str, ...] = ()
    append_only: bool = False
    connector: dict[str, str] = field(default_factory=dict)
    sql: str = ""
    depends_on: tuple[str, ...] = ()
    index_columns: tuple[str, ...] = ()
    included: tuple[str, ...] = ()
    ready: bool = True
    event_time: EventTime | None = None
    watermarks: dict[str, Watermark] = field(default_factory=dict)
    dialect: str = "risingwave"
    mode: StreamMode | None = None
    defaults: dict[str, str] = field(default_factory=dict)
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    digits: dict[str, int] = field(default_factory=dict)
    hidden: bool = False
    max_buffered_bytes: int | None = None
    topic: Topic | None = None
    schema: str = COMMON_SCHEMA
    path: tuple[str, ...] = (COMMON_SCHEMA,)
    external: External | None = None
    dictionary: Dictionary | None = None
    query: str = ""
    feeds: str = ""
    owner: str = ""
    pump: bool = False

    @property
    def shown(self) -> str:
        """The name that no other relation has: with its schema, unless that is the common one."""
        return self.name if self.schema == COMMON_SCHEMA else f"{self.schema}.{self.name}"

    @property
    def what(self) -> str:
        """What it is for people: its kind, what its statement called it, or a query that runs until it is stopped."""
        if self.hidden and not self.owner:
            return "query"
        for word, is_one in (("topic", self.topic), ("pump", self.pump), ("dictionary", self.dictionary), ("stream", self.mode),
                             ("external table", self.external)):
            if is_one:
                return word
        return self.kind

    @property
    def role(self) -> str:
        """What it is for people that runs and reads others: the processor of a topic, else as `what`."""
        return "processor" if self.topic is not None and self.kind == "materialized view" else self.what

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

    def to_json(self) -> Any:
        """A JSON value from which `from_json` makes the same relation."""
        return {**asdict(self), "columns": [c.to_json() for c in self.columns]}

    @staticmethod
    def from_json(value: Any) -> Relation:
        """The inverse of `to_json`."""
        values = dict(value)
        values["columns"] = tuple(Field.from_json(c) for c in value["columns"])
        for name in ("primary_key", "depends_on", "index_columns", "included"):
            values[name] = tuple(value.get(name, ()))
        values["ranges"] = {n: (r[0], r[1]) for n, r in value.get("ranges", {}).items()}
        values["path"] = tuple(value.get("path", (COMMON_SCHEMA,)))
        values["event_time"] = EventTime(**value["event_time"]) if value.get("event_time") else None
        values["topic"] = Topic.from_json(value["topic"]) if value.get("topic") else None
        values["external"] = External(**value["external"]) if value.get("external") else None
        values["dictionary"] = Dictionary(**value["dictionary"]) if value.get("dictionary") else None
        values["watermarks"] = {n: tuple(Term.from_json(**t) for t in w) for n, w in value.get("watermarks", {}).items()}
        return Relation(**values)

    @property
    def time_columns(self) -> dict[str, Watermark]:
        """The watermarks by column name: the declared one, or those that were derived.

        A table that keeps the last row of each key takes older rows back: it gives none to those who read it.
        """
        if self.event_time is None:
            return self.watermarks
        return {self.event_time.column: (Term(self.id),)} if self.append_only or not self.primary_key else {}


@dataclass(frozen=True, slots=True)
class Catalog:
    """All relations of a database at one version. Immutable: every change gives a new catalog.

    schemas: those beside the common one, in order of creation. path: those in which names without a schema are looked up; of the
    session or view that asks, not stored.
    """

    version: int = 0
    next_number: int = 1
    relations: dict[str, Relation] = field(default_factory=dict)
    """By id, in order of creation."""
    schemas: tuple[str, ...] = ()
    path: tuple[str, ...] = (COMMON_SCHEMA,)

    def by_name(self, name: str, schema: str | None = None, *, folded: bool = False) -> Relation | None:
        """The relation called `name` in `schema`, or in the first schema of the path that has one; None if there is none.

        folded: the name was written without quotes, so that case does not tell it from others. No two relations of a schema have names
        that differ in case alone.
        """
        for place in self.path if schema is None else (schema,):
            for relation in self.relations.values():
                if not relation.hidden and relation.schema == place and (relation.name == name or (folded and relation.name.lower() == name.lower())):
                    return relation
        return None

    def with_schemas(self, schemas: tuple[str, ...]) -> Catalog:
        """A catalog with other schemas."""
        return replace(self, version=self.version + 1, schemas=schemas)

    def new_id(self, kind: RelationKind) -> str:
        """The id that the next relation of `kind` gets."""
        return f"{kind[0]}{self.next_number}"

    def with_relation(self, relation: Relation) -> Catalog:
        """A catalog in which `relation` is added, or replaced if its id is known."""
        number = self.next_number + (relation.id not in self.relations)
        return replace(self, version=self.version + 1, next_number=number, relations={**self.relations, relation.id: relation})

    def without(self, ids: set[str]) -> Catalog:
        """A catalog without the relations `ids`."""
        kept = {i: r for i, r in self.relations.items() if i not in ids}
        return replace(self, version=self.version + 1, relations=kept)

    def dependents(self, relation_id: str) -> list[Relation]:
        """The relations that read `relation_id`, directly or not, in order of creation."""
        reached = {relation_id}
        found = []
        for relation in self.relations.values():
            if reached & set(relation.depends_on):
                reached.add(relation.id)
                found.append(relation)
        return found

    def upstream(self, relation_ids: Iterable[str], *, writers: bool = False) -> set[str]:
        """The ids of `relation_ids` and of what they read, directly or not. writers: also of the views that write one of these."""
        found: set[str] = set()
        pending = list(relation_ids)
        while pending:
            relation_id = pending.pop()
            if relation_id not in found and relation_id in self.relations:
                found.add(relation_id)
                pending += self.relations[relation_id].depends_on
                if writers:
                    pending += [r.id for r in self.relations.values() if r.feeds == relation_id]
        return found

    def to_json(self) -> Any:
        """A JSON value from which `from_json` makes the same catalog."""
        return {
            "version": self.version,
            "next_number": self.next_number,
            "schemas": list(self.schemas),
            "relations": [r.to_json() for r in self.relations.values()],
        }

    @staticmethod
    def from_json(value: Any) -> Catalog:
        """The inverse of `to_json`."""
        relations = [Relation.from_json(r) for r in value["relations"]]
        return Catalog(value["version"], value["next_number"], {r.id: r for r in relations}, tuple(value.get("schemas", ())))
