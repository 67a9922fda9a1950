"""Objects without rows: servers, connections, format schemas, named collections and subscriptions, sinks, functions."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal

from watersmeet.catalog.parts import COMMON_SCHEMA, MessageFormat
from watersmeet.catalog.relations import Relation, Words
from watersmeet.catalog.views import MaterializedView
from watersmeet.values.serialization import to_json
from watersmeet.values.types import Schema, SqlType


@dataclass(frozen=True, slots=True)
class NamedCollection(Relation):
    """A named collection of Timeplus: settings copied by external streams and tables when they are created. It has no
    columns and no rows.

    settings: names in lower case. fixed: the names of those that a statement can't override.
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
    """A format schema of Timeplus, copied by external streams when they are created. It has no columns and no rows.

    type: the format of its messages. text: Avro's JSON, or that of a .proto file.
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
    """A server of SQLstream: options that foreign streams inherit. It has no columns and no rows.

    adapter: KAFKA10 or FILE. options: as they are written.
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
    """A connection of RisingWave: options copied by sources, tables and sinks when they are created. It has no columns
    and no rows.

    type: the connected system. options: names in lower case.
    """

    words: ClassVar[Words] = Words(
        "connection", show=("connections",), show_create=("connection",), drop=("connection",)
    )
    family: ClassVar[str] = "source"
    entry: ClassVar[str] = "connection"
    can_alter: ClassVar[bool] = False

    type: ConnectionType = field(kw_only=True)
    options: dict[str, str] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True, slots=True)
class NamedSubscription(Relation):
    """A subscription of RisingWave: it keeps the changes of the relation on which it depends. It has no columns and no
    rows of its own.

    retention_us: how long, in microseconds. begun: the newest commit at its creation: later changes are kept.
    """

    words: ClassVar[Words] = Words(
        "subscription", show=("subscriptions",), show_create=("subscription",), drop=("subscription",)
    )
    family: ClassVar[str] = "sink"
    entry: ClassVar[str] = "named subscription"

    retention_us: int = field(kw_only=True)
    begun: int = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Sink(Relation):
    """A sink: writes the changes of one relation to a target. Its columns are those it writes, with the target's names.

    A sink INTO a table has no connector: its query writes the table, its `feeds`.

    delivers: id of that relation, whose first columns they are. connector: the options of the target, lower-case names.
    format: the form of written changes; only targets of messages use the encodings. primary_key: the key in the target.
    force_append_only: deletions are not written. target_id: the id of the first sink in the chain of replacements, by
    which the target identifies it; its own if it replaced none. generation: the number of sinks with that target_id so
    far: each begins with the whole content. rate_limit: the maximum of rows per second; 0: paused; None: no limit.
    """

    words: ClassVar[Words] = Words("sink", show=("sinks",), show_create=("sink",), drop=("sink",))
    family: ClassVar[str] = "sink"
    entry: ClassVar[str] = "sink"
    can_alter: ClassVar[bool] = False

    delivers: str = field(kw_only=True)
    connector: dict[str, str] = field(kw_only=True)
    format: MessageFormat = field(default_factory=MessageFormat, kw_only=True)
    force_append_only: bool = field(default=False, kw_only=True)
    target_id: str = field(kw_only=True)
    generation: int = field(default=1, kw_only=True)
    rate_limit: int | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class SinkQuery(MaterializedView):
    """The query of the sink `owner`, hidden.

    deletes: for a sink INTO a table, whether deleted rows are deleted from the table. skips: whether rows that the
    table rejects are set aside; otherwise they stop the sink.
    """

    words: ClassVar[Words] = Words("sink")
    entry: ClassVar[str] = "sink query"

    owner: str = field(kw_only=True)
    deletes: bool = field(default=False, kw_only=True)
    skips: bool = field(default=False, kw_only=True)


@dataclass(frozen=True)
class SqlFunction:
    """A function of SQL: an expression over its parameters.

    schema, path: as of a relation. parameters: the name of an unnamed one is empty. body: `SELECT expression`. sql: the
    text of the statement that created it. functions: ids of those that the body calls. dropped: statements can't call
    it any more; views and functions created with it still do.
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
        """A hash of the definition: the same function created again has the same id."""
        content = json.dumps(to_json(replace(self, dropped=False)), sort_keys=True)
        return "f" + hashlib.sha256(content.encode()).hexdigest()[:16]

    @property
    def shown(self) -> str:
        """The name, with its schema unless that is the default one."""
        return self.name if self.schema == COMMON_SCHEMA else f"{self.schema}.{self.name}"

    @property
    def signature(self) -> str:
        """The name and the types of the parameters."""
        return f"{self.shown}({', '.join(p.type.sql for p in self.parameters)})"
