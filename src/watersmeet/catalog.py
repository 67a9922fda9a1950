"""The catalog: what a database contains. Pure data, stored as JSON by `store.catalogs`.

A relation has a `name` that the user sees and an `id` that is never used twice: data, state and commits are kept under
the id, so a name that is dropped and created again starts empty.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal

from watersmeet.serialization import from_json
from watersmeet.types import Field, Schema, SqlType
from watersmeet.units import DAY_US
from watersmeet.watermarks import Term, Watermark

RelationKind = Literal["table", "source", "view", "materialized view", "index"]

#: append: every row is its own event; changelog: one with `_tp_delta` = -1 takes an equal one back. The others keep the
#: last row of each primary key; versioned_kv also older ones where a join asks for them, changelog_kv takes rows away
#: by `_tp_delta` = -1. Timeplus, "Multi-JOINs and ASOF JOINs", "Data to be Joined".
StreamMode = Literal["append", "changelog", "mutable", "versioned_kv", "changelog_kv"]

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

    @staticmethod
    def from_json(value: Any) -> Topic:
        """The inverse of `asdict`."""
        return Topic(**{**value, "required": tuple(value["required"])})


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


@dataclass(frozen=True)
class SqlFunction:
    """A function of SQL: an expression over its parameters.

    schema, path: as of a relation. parameters: the name of one without is empty. body: `SELECT expression`.
    sql: the text of the statement that made it. functions: ids of those that the body calls.
    dropped: no statement can call it any more; views and functions that were made with it still do.
    """

    name: str
    schema: str
    path: tuple[str, ...]
    parameters: Schema
    returns: SqlType
    body: str
    sql: str
    dialect: str
    functions: tuple[str, ...] = ()
    dropped: bool = False

    @cached_property
    def id(self) -> str:
        """A hash of all that it is: the same function made again is the same."""
        content = json.dumps({**self.to_json(), "dropped": False}, sort_keys=True)
        return "f" + hashlib.sha256(content.encode()).hexdigest()[:16]

    @property
    def shown(self) -> str:
        """The name, with its schema unless that is the common one."""
        return self.name if self.schema == COMMON_SCHEMA else f"{self.schema}.{self.name}"

    @property
    def signature(self) -> str:
        """The name and the types of the parameters."""
        return f"{self.shown}({', '.join(p.type.sql for p in self.parameters)})"

    def to_json(self) -> Any:
        """A JSON value from which `from_json` makes the same function."""
        return {
            **{n: getattr(self, n) for n in ("name", "schema", "body", "sql", "dialect", "dropped")},
            **{n: list(getattr(self, n)) for n in ("path", "functions")},
            "parameters": [p.to_json() for p in self.parameters],
            "returns": self.returns.to_json(),
        }

    @staticmethod
    def from_json(value: Any) -> SqlFunction:
        """The inverse of `to_json`."""
        lists = {n: tuple(value[n]) for n in ("path", "functions")}
        parameters = tuple(Field.from_json(p) for p in value["parameters"])
        return SqlFunction(
            **{**value, **lists, "parameters": parameters, "returns": SqlType.from_json(value["returns"])}
        )


@dataclass(frozen=True, slots=True)
class Relation:
    """One named relation.

    id: `<kind letter><number>` such as `t3`; unique for the life of the database, safe as a file name.
    schema: the one that it is in; names are unique there. path: of a view, the schemas in which its query looked up
    names without one.
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
    defaults: what a column gets that an INSERT leaves out, as DuckDB SQL; ARRIVAL is the time of the INSERT. Others get
    NULL.
    ranges: the least and the greatest number that a column takes, where its type takes more (unsigned numbers). digits:
    how many
        of a second a column of times keeps, where that are less than all.
    hidden: made for a query that runs until it is stopped; no statement names it. subscribed_us: of such a query that
    stays when nobody reads it (SUBSCRIBE TO), when it was started, in microseconds since 1970 (UTC); None for others.
    max_buffered_bytes: of a materialised view, how much each of its joins may keep; None: as much as there is.
    most_join_rows: of a materialised view, how many rows each of its joins may make in one epoch; 0: any number.
    topic: of a topic (Lenses), whose rows are records in the order in which they came.
    external: of a table whose content is brought from outside of the database. dictionary: of a dictionary: such a
    table, or a view.
    query: of an external table or dictionary over a relation of this database, a view, the CREATE VIEW that stands for
    it.
    feeds: of a hidden view, the id of the stream that its rows are written to if that lacks their keys; owner: the view
    for which it works.
    pump: made by CREATE PUMP; of kind view as long as it is stopped.
    known: of what names others in its text, by their ids: how those that were altered since were called then.
    stored: what columns that were renamed are called in data and plans. fills: by column that was added, what rows have
    in it that were there before, as text; NULL for others.
    staged: made by a transaction that is open: hidden from all others, and gone if it does not commit.
    functions: ids of the functions of SQL that its text calls.
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
    subscribed_us: int | None = None
    max_buffered_bytes: int | None = None
    most_join_rows: int = MOST_JOIN_ROWS
    topic: Topic | None = None
    schema: str = COMMON_SCHEMA
    path: tuple[str, ...] = (COMMON_SCHEMA,)
    external: External | None = None
    dictionary: Dictionary | None = None
    query: str = ""
    feeds: str = ""
    owner: str = ""
    pump: bool = False
    staged: bool = False
    known: dict[str, Known] = field(default_factory=dict)
    stored: dict[str, str] = field(default_factory=dict)
    fills: dict[str, str] = field(default_factory=dict)
    functions: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The name that no other relation has: with its schema, unless that is the common one."""
        return self.name if self.schema == COMMON_SCHEMA else f"{self.schema}.{self.name}"

    @property
    def takes_signs(self) -> bool:
        """Whether rows are written to it with `_tp_delta`."""
        return self.mode in ("changelog", "changelog_kv")

    @property
    def what(self) -> str:
        """What it is for people: its kind, what its statement called it, or a query that runs until it is stopped."""
        if self.hidden and not self.owner and not self.staged:
            return "query" if self.subscribed_us is None else "subscription"
        for word, is_one in (
            ("topic", self.topic),
            ("pump", self.pump),
            ("dictionary", self.dictionary),
            ("stream", self.mode),
            ("external table", self.external),
        ):
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
        for name in ("primary_key", "depends_on", "index_columns", "included", "functions"):
            values[name] = tuple(value.get(name, ()))
        values["ranges"] = {n: (r[0], r[1]) for n, r in value.get("ranges", {}).items()}
        values["path"] = tuple(value.get("path", (COMMON_SCHEMA,)))
        values["event_time"] = EventTime(**value["event_time"]) if value.get("event_time") else None
        values["topic"] = Topic.from_json(value["topic"]) if value.get("topic") else None
        values["external"] = External(**value["external"]) if value.get("external") else None
        values["dictionary"] = Dictionary(**value["dictionary"]) if value.get("dictionary") else None
        values["watermarks"] = {n: tuple(from_json(Term, t) for t in w) for n, w in value.get("watermarks", {}).items()}
        values["known"] = {
            i: Known(k["name"], k["schema"], tuple(k["columns"])) for i, k in value.get("known", {}).items()
        }
        return Relation(**values)

    def renamed(self, names: tuple[str, ...]) -> Relation:
        """The relation with its columns called so, in order, and without those behind them."""
        own = {c.name: n for c, n in zip(self.columns, names, strict=False)}

        def known(columns: Iterable[str]) -> tuple[str, ...]:
            return tuple(own[c] for c in columns if c in own)

        def by_name(values: dict[str, Any]) -> dict[str, Any]:
            return {own[n]: v for n, v in values.items() if n in own}

        time, topic = self.event_time, self.topic
        return replace(
            self,
            columns=tuple(replace(c, name=own[c.name]) for c in self.columns if c.name in own),
            primary_key=known(self.primary_key),
            index_columns=known(self.index_columns),
            included=known(self.included),
            event_time=None if time is None else replace(time, column=own[time.column]),
            topic=None if topic is None else replace(topic, required=known(topic.required)),
            watermarks=by_name(self.watermarks),
            defaults=by_name(self.defaults),
            ranges=by_name(self.ranges),
            digits=by_name(self.digits),
            fills=by_name(self.fills),
            stored={new: s for old, new in own.items() if (s := self.stored.get(old, old)) != new},
        )

    @property
    def as_stored(self) -> Relation:
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


@dataclass(frozen=True, slots=True)
class Catalog:
    """All relations of a database at one version. Immutable: every change gives a new catalog.

    schemas: those beside the common one, in order of creation. path: those in which names without a schema are looked
    up; of the session or view that asks, not stored. actual: of a catalog in the words of a view, the real one; first:
    ids of the relations that names mean above all. functions: of SQL, by id. callable: ids of those that the text of
    the view or function that asks can mean; None: all that are not dropped.
    """

    version: int = 0
    next_number: int = 1
    relations: dict[str, Relation] = field(default_factory=dict)
    """By id, in order of creation."""
    schemas: tuple[str, ...] = ()
    path: tuple[str, ...] = (COMMON_SCHEMA,)
    actual: Catalog | None = None
    first: frozenset[str] = frozenset()
    functions: dict[str, SqlFunction] = field(default_factory=dict)
    callable: frozenset[str] | None = None

    def seen_by(self, view: Relation) -> Catalog:
        """The catalog as the text of a view names it: what has another name since is called as it was, and functions
        are those that it was made with.
        """
        actual = self.actual or self
        words = {
            i: replace(actual.relations[i].renamed(k.columns), name=k.name, schema=k.schema)
            for i, k in view.known.items()
            if i in actual.relations
        }
        return replace(
            actual,
            path=view.path,
            relations={**actual.relations, **words},
            actual=actual,
            first=frozenset(words),
            callable=frozenset(view.functions),
        )

    def seen_in(self, function: SqlFunction) -> Catalog:
        """The catalog as the body of a function names it."""
        return replace(self, path=function.path, callable=frozenset(function.functions))

    def function(self, name: str, schema: str | None = None) -> SqlFunction | None:
        """The function of SQL that a call means, whatever its arguments are; None if there is none."""
        places = self.path if schema is None else (schema,)
        known = self.functions.values()
        named = [
            f
            for f in known
            if f.name == name
            and f.schema in places
            and (not f.dropped if self.callable is None else f.id in self.callable)
        ]
        return min(named, key=lambda f: places.index(f.schema), default=None)

    def with_functions(self, functions: Iterable[SqlFunction]) -> Catalog:
        """A catalog in which these are added, or replaced if their ids are known."""
        return replace(self, version=self.version + 1, functions={**self.functions, **{f.id: f for f in functions}})

    def _kept_functions(self) -> list[SqlFunction]:
        """All functions without those that were dropped and that nothing calls."""
        # a relation that is staged may call what comes with its transaction
        needed = {i for r in self.relations.values() for i in r.functions if i in self.functions}
        needed |= {f.id for f in self.functions.values() if not f.dropped}
        pending = list(needed)
        while pending:
            below = set(self.functions[pending.pop()].functions) - needed
            needed |= below
            pending += below
        return [f for i, f in self.functions.items() if i in needed]

    @property
    def as_stored(self) -> Catalog:
        """The catalog with columns as data and plans call them."""
        if not any(r.stored for r in self.relations.values()):
            return self
        return replace(self, relations={i: r.as_stored for i, r in self.relations.items()})

    def by_name(self, name: str, schema: str | None = None, *, folded: bool = False) -> Relation | None:
        """The relation called `name` in `schema`, or in the first schema of the path that has one; None if there is
        none.

        folded: the name was written without quotes, so that case does not tell it from others. No two relations of a
        schema have names that differ in case alone.
        """
        places = self.path if schema is None else (schema,)
        named = [
            r
            for r in self.relations.values()
            if not r.hidden and r.schema in places and (r.name == name or (folded and r.name.lower() == name.lower()))
        ]
        return min(named, key=lambda r: (r.id not in self.first, places.index(r.schema)), default=None)

    def with_schemas(self, schemas: tuple[str, ...]) -> Catalog:
        """A catalog with other schemas."""
        return replace(self, version=self.version + 1, schemas=schemas)

    def new_id(self, kind: RelationKind) -> str:
        """The id that the next relation of `kind` gets."""
        return f"{kind[0]}{self.next_number}"

    def with_relation(self, relation: Relation) -> Catalog:
        """A catalog in which `relation` is added, or replaced if its id is known."""
        number = self.next_number + (relation.id not in self.relations)
        return replace(
            self, version=self.version + 1, next_number=number, relations={**self.relations, relation.id: relation}
        )

    def without(self, ids: set[str]) -> Catalog:
        """A catalog without the relations `ids`."""
        kept = {i: r for i, r in self.relations.items() if i not in ids}
        return replace(self, version=self.version + 1, relations=kept)

    def dependents(self, relation_id: str) -> list[Relation]:
        """The relations that read `relation_id`, directly or not, in order of creation."""
        reached: set[str] = set()
        nearest = {relation_id}
        while nearest:  # a view that was replaced may read what was made after it
            nearest = {r.id for r in self.relations.values() if nearest & set(r.depends_on)} - reached
            reached |= nearest
        return [r for r in self.relations.values() if r.id in reached]

    def upstream(self, relation_ids: Iterable[str], *, writers: bool = False) -> set[str]:
        """The ids of `relation_ids` and of what they read, directly or not.

        writers: also of the views that write one of these.
        """
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
            "functions": [f.to_json() for f in self._kept_functions()],
        }

    @staticmethod
    def from_json(value: Any) -> Catalog:
        """The inverse of `to_json`."""
        relations = [Relation.from_json(r) for r in value["relations"]]
        functions = [SqlFunction.from_json(f) for f in value.get("functions", ())]
        return Catalog(
            value["version"],
            value["next_number"],
            {r.id: r for r in relations},
            tuple(value.get("schemas", ())),
            functions={f.id: f for f in functions},
        )
