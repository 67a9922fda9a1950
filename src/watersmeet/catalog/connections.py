"""Connections: what sources and sinks of one system have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from watersmeet.catalog.relations import Relation
from watersmeet.catalog.words import Words

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
