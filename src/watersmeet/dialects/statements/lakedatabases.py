"""CREATE DATABASE over a catalog of Iceberg as it is written.

Timeplus, "Iceberg External Stream", "Create an Iceberg Database".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from watersmeet.dialects.tree.definitions import CreateSchema
from watersmeet.dialects.tree.tokens import Cursor, read_setting


@dataclass(frozen=True, kw_only=True)
class CreateLakeDatabase(CreateSchema):
    """`CREATE DATABASE name SETTINGS type = 'iceberg', …`. settings: names in lower case, `type` among them."""

    settings: Mapping[str, str]


def read_database(cursor: Cursor, base: dict[str, Any]) -> CreateLakeDatabase | None:
    """The cursor stands behind DATABASE. None, with the cursor where it was, for one without SETTINGS."""
    begin = cursor.index
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.name()
    if not cursor.take("SETTINGS"):
        cursor.index = begin
        return None
    settings: dict[str, str] = {}
    read_setting(cursor, settings)
    while cursor.take(","):
        read_setting(cursor, settings)
    cursor.end()
    if "type" not in settings:
        raise cursor.error(detail="A database with SETTINGS needs the setting type.")
    return CreateLakeDatabase(**base, name=name, if_not_exists=if_not_exists, settings=settings)
