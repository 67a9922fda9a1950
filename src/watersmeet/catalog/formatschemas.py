"""Schemas of messages that statements name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from watersmeet.catalog.relations import Relation
from watersmeet.catalog.words import Words

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
