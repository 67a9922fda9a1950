"""SQLstream's CREATE FOREIGN TABLE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from watersmeet.catalog import ExternalTable, Relation
from watersmeet.dialects.statements import CreateRelation, Name
from watersmeet.errors import Span


@dataclass(frozen=True, kw_only=True)
class CreateForeignTable(CreateRelation):
    """`CREATE FOREIGN TABLE name [(columns)] SERVER server [OPTIONS (…)]`. options: as those of a server.

    places: of the options. Without columns it has those of the table there.
    """

    makes: ClassVar[type[Relation]] = ExternalTable

    server: Name
    options: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, Span] = field(default_factory=dict)
