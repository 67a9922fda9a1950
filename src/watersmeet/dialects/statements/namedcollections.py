"""CREATE NAMED COLLECTION as it is written.

Timeplus, "Named Collection".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from watersmeet.catalog import NamedCollection, Relation
from watersmeet.dialects.tree.definitions import Create
from watersmeet.dialects.tree.tokens import Cursor, read_setting


@dataclass(frozen=True, kw_only=True)
class CreateNamedCollection(Create):
    """`CREATE NAMED COLLECTION name AS setting = value [[NOT] OVERRIDABLE], …`. settings, fixed: as in the catalog."""

    makes: ClassVar[type[Relation]] = NamedCollection

    settings: Mapping[str, str]
    fixed: tuple[str, ...]


def read_named_collection(cursor: Cursor, base: dict[str, Any]) -> CreateNamedCollection:
    """The cursor stands behind COLLECTION. CONNECTOR_OPTION for a setting that is given twice."""
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.relation_name()
    cursor.expect("AS")
    settings: dict[str, str] = {}
    fixed: list[str] = []
    while True:
        setting = read_setting(cursor, settings)
        if cursor.take("NOT", "OVERRIDABLE"):
            fixed.append(setting)
        else:
            cursor.take("OVERRIDABLE")
        if not cursor.take(","):
            break
    cursor.end()
    return CreateNamedCollection(
        **base,
        name=name.name,
        name_span=name.span,
        schema=name.schema,
        if_not_exists=if_not_exists,
        settings=settings,
        fixed=tuple(fixed),
    )
