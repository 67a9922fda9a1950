"""Relations without columns and rows, which other relations name: named collections, format schemas, servers,
connections, named subscriptions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from watersmeet.catalog.relations import Relation
from watersmeet.catalog.words import Words


@dataclass(frozen=True, slots=True)
class NamedCollection(Relation):
    """A named collection of Timeplus: settings that external streams and tables take over when they are created. It has
    no columns and no rows.

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
    """A format schema of Timeplus: external streams take it over when they are created. It has no columns and no rows.

    type: what it is a schema of. text: Avro's JSON, or that of a .proto file.
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
    """A connection of RisingWave: options that sources, tables and sinks take over when they are created. It has no
    columns and no rows.

    type: of what. options: names in lower case.
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

    retention_us: for how long, in microseconds. begun: the newest commit when it was made: changes behind it are kept.
    """

    words: ClassVar[Words] = Words(
        "subscription", show=("subscriptions",), show_create=("subscription",), drop=("subscription",)
    )
    family: ClassVar[str] = "sink"
    entry: ClassVar[str] = "named subscription"

    retention_us: int = field(kw_only=True)
    begun: int = field(kw_only=True)
