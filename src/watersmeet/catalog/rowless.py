"""Objects without rows: servers, connections, format schemas, named collections and subscriptions, sequences, sinks,
functions.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Final, Literal

from watersmeet.catalog.parts import COMMON_SCHEMA, Domain, MessageFormat, Numbering
from watersmeet.catalog.relations import Relation, Words
from watersmeet.catalog.views import MaterializedView
from watersmeet.values.calledfunctions import CalledFunction
from watersmeet.values.declaredtypes import Declared
from watersmeet.values.serialization import to_json
from watersmeet.values.types import Schema, SqlType


@dataclass(frozen=True, slots=True)
class NamedCollection(Relation):
    """A named collection of Timeplus, whose settings external streams and tables copy when they are created. It has no
    columns and no rows.

    settings: their names are in lower case. fixed: the names of settings that a statement can't override.
    """

    words: ClassVar[Words] = Words(
        "named collection", show=("named collections",), show_create=("named collection",), drop=("named collection",)
    )
    family: ClassVar[str] = "source"
    entry: ClassVar[str] = "named collection"
    can_alter: ClassVar[bool] = False

    settings: dict[str, str] = field(kw_only=True)
    fixed: tuple[str, ...] = field(default=(), kw_only=True)


SchemaType = Literal["avro", "protobuf"]


@dataclass(frozen=True, slots=True)
class FormatSchema(Relation):
    """A format schema of Timeplus, which external streams copy when they are created. It has no columns and no rows.

    type: the format of its messages. text: Avro's JSON, or the text of a .proto file.
    """

    words: ClassVar[Words] = Words(
        "format schema", show=("format schemas",), show_create=("format schema",), drop=("format schema",)
    )
    family: ClassVar[str] = "source"
    entry: ClassVar[str] = "format schema"
    can_alter: ClassVar[bool] = False

    type: SchemaType = field(kw_only=True)
    text: str = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Server(Relation):
    """A server of SQLstream, whose options foreign streams inherit. It has no columns and no rows.

    adapter: KAFKA10 or FILE. options: the options as written.
    """

    words: ClassVar[Words] = Words("server", show=("servers",), show_create=("server",), drop=("server",))
    family: ClassVar[str] = "source"
    entry: ClassVar[str] = "server"
    can_alter: ClassVar[bool] = False

    adapter: str = field(kw_only=True)
    options: dict[str, str] = field(default_factory=dict, kw_only=True)


ConnectionType = Literal["kafka", "schema_registry", "iceberg"]


@dataclass(frozen=True, slots=True)
class Connection(Relation):
    """A connection of RisingWave, whose options sources, tables and sinks copy when they are created. It has no columns
    and no rows.

    type: the connected system. options: their names are in lower case.
    """

    words: ClassVar[Words] = Words(
        "connection", show=("connections",), show_create=("connection",), drop=("connection",)
    )
    family: ClassVar[str] = "source"
    entry: ClassVar[str] = "connection"

    type: ConnectionType = field(kw_only=True)
    options: dict[str, str] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True, slots=True)
class NamedSubscription(Relation):
    """A subscription of RisingWave, which keeps the changes of the relation on which it depends. It has no columns and
    no rows of its own.

    retention_us: the time for which changes are kept. begun: the newest commit at its creation; only later changes are
    kept.
    """

    words: ClassVar[Words] = Words(
        "subscription", show=("subscriptions",), show_create=("subscription",), drop=("subscription",)
    )
    family: ClassVar[str] = "sink"
    entry: ClassVar[str] = "named subscription"

    retention_us: int = field(kw_only=True)
    begun: int = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class NumberSequence(Relation):
    """A sequence, whose numbers the writer hands out (`database.sessions.sequences`). It has no columns and no rows.

    owned: the table with which it is dropped, and the name of the column in its stored data; or empty.
    """

    words: ClassVar[Words] = Words("sequence", show=("sequences",), show_create=("sequence",), drop=("sequence",))
    family: ClassVar[str] = "sequence"
    entry: ClassVar[str] = "sequence"

    numbers: Numbering = field(kw_only=True)
    owned: tuple[str, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True, slots=True)
class EnumType(Relation):
    """An enum: a type of texts with an order. It has no columns and no rows. Columns have its labels in their types."""

    words: ClassVar[Words] = Words("type", show=("types",), show_create=("type",), drop=("type",))
    family: ClassVar[str] = "type"
    duplicate: ClassVar[str] = "DUPLICATE_TYPE"
    entry: ClassVar[str] = "enum"

    labels: tuple[str, ...] = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class DomainType(Relation):
    """A domain: a type with rules. It has no columns and no rows. Tables have a copy of the rules for their columns.

    base: the type of its values. declared: the part of that type that its values don't show. base_text, default_text:
    the type and DEFAULT as written.
    """

    words: ClassVar[Words] = Words("domain", show=("domains",), show_create=("domain",), drop=("domain", "type"))
    family: ClassVar[str] = "type"
    duplicate: ClassVar[str] = "DUPLICATE_TYPE"
    entry: ClassVar[str] = "domain"

    base: SqlType = field(kw_only=True)
    declared_base: Declared | None = field(default=None, kw_only=True)
    base_text: str = field(kw_only=True)
    default_text: str = field(default="", kw_only=True)
    rules: Domain = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Sink(Relation):
    """A sink, which writes the changes of a relation to a target. Its columns are the written ones, with the target's
    names.

    A sink INTO a table has no connector; its query writes the table `feeds`.

    delivers: the id of the relation, whose first columns are written. connector: the options of the target, with names
    in lower case. format: the form of written changes; only targets of messages use the encodings. primary_key: the key
    in the target. force_append_only: whether deletions are not written. target_id: the id by which the target
    identifies the sink: the id of the first sink in a chain of replacements. generation: the number of sinks with this
    target_id so far, each of which begins with the whole content. rate_limit: the maximum number of rows per second; 0:
    paused; None: no limit. conflicts: the id of the `SinkConflicts`; empty if no two rows can share the key, or if the
    sink only appends.
    """

    words: ClassVar[Words] = Words("sink", show=("sinks",), show_create=("sink",), drop=("sink",))
    family: ClassVar[str] = "sink"
    entry: ClassVar[str] = "sink"

    delivers: str = field(kw_only=True)
    connector: dict[str, str] = field(kw_only=True)
    format: MessageFormat = field(default_factory=MessageFormat, kw_only=True)
    force_append_only: bool = field(default=False, kw_only=True)
    target_id: str = field(kw_only=True)
    generation: int = field(default=1, kw_only=True)
    rate_limit: int | None = field(default=None, kw_only=True)
    conflicts: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class SinkQuery(MaterializedView):
    """The hidden query of the sink `owner`.

    deletes: whether a sink INTO a table deletes rows from the table. skips: whether rows that the table rejects become
    dead letters; otherwise they stop the sink.
    """

    words: ClassVar[Words] = Words("sink")
    entry: ClassVar[str] = "sink query"

    owner: str = field(kw_only=True)
    deletes: bool = field(default=False, kw_only=True)
    skips: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class SinkConflicts(SinkQuery):
    """The hidden view of the keys of the sink `owner` that several delivered rows share, with the number of rows."""

    words: ClassVar[Words] = Words("sink")
    entry: ClassVar[str] = "sink conflicts"


@dataclass(frozen=True, slots=True)
class PausedQuery(SinkQuery):
    """The content that the paused view `owner` will have when it is resumed."""

    words: ClassVar[Words] = Words("materialized view")
    entry: ClassVar[str] = "paused query"


#: The type of parameters and results of a function without types: those of each call.
ANY: Final = SqlType("any")


@dataclass(frozen=True)
class SqlFunction:
    """A function: in SQL an expression over its parameters, or a function of another language.

    schema, path: see `Relation`. parameters: an unnamed parameter has an empty name. returns: for a table function the
    struct of its columns; `ANY` for a function without types, whose parameters then are of that type, too. body:
    `SELECT expression`, or the text in the language. sql: the text of the statement that created it. functions: the ids
    of the functions that the body calls. dropped: whether statements can no longer call it; views and functions created
    with it still do. called: the function for expressions; None for one in SQL.
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
    called: CalledFunction | None = None

    @property
    def language(self) -> str:
        """The language of the body, lower case."""
        return "sql" if self.called is None else self.called.language

    @cached_property
    def id(self) -> str:
        """A hash of the definition, so that the same function created again has the same id."""
        content = json.dumps(to_json(replace(self, dropped=False)), sort_keys=True)
        return "f" + hashlib.sha256(content.encode()).hexdigest()[:16]

    @property
    def shown(self) -> str:
        """The name, qualified by its schema unless that is the default schema."""
        return self.name if self.schema == COMMON_SCHEMA else f"{self.schema}.{self.name}"

    @property
    def signature(self) -> str:
        """The name and the types of the parameters; their names, if they have no types."""
        if self.returns == ANY:
            return f"{self.shown}({', '.join(p.name for p in self.parameters)})"
        return f"{self.shown}({', '.join(p.type.sql for p in self.parameters)})"
