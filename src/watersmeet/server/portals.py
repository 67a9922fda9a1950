"""Results as messages show them: tags, columns, and portals, which are statements with their parameters."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

from watersmeet.catalog import Catalog
from watersmeet.database.sessions.cursors import OpenCursor
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.tree import statements as st
from watersmeet.server.catalog.answers import CatalogResult
from watersmeet.server.catalog.tables import relation_oid
from watersmeet.server.messages import Column
from watersmeet.server.oids import result_column
from watersmeet.values.types import Schema

#: Commands whose tags have a number.
_COUNTED: Final = ("SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "COPY", "FETCH", "MOVE")


def complete_tag(result: Result, rows: int | None = None) -> str:
    """The tag of CommandComplete, for so many rows; None: those of the result."""
    if result.command not in _COUNTED:
        return result.command
    count = max(result.rowcount, 0) if rows is None else rows
    return f"INSERT 0 {count}" if result.command == "INSERT" else f"{result.command} {count}"


def has_rows(result: Result) -> bool:
    """Whether a statement returned rows, or does so as they arrive."""
    return result.table is not None or result.running is not None


def columns_of(result: Result | None, catalog: Catalog) -> tuple[Column, ...] | None:
    """The columns of a result as RowDescription has them, with the tables that they are of; None without rows."""
    if result is None or isinstance(result, CatalogResult):
        return None if result is None else result.described
    columns = tuple(map(result_column, result.columns))
    if not any(result.origins):
        return columns
    found = []
    for column, origin in zip(columns, result.origins, strict=True):
        relation = None if origin is None else catalog.relations.get(origin[0])
        names = [] if relation is None else [c.name for c in relation.columns if c.name not in relation.unlisted]
        if origin is not None and relation is not None and origin[1] in names:
            found.append(replace(column, table=relation_oid(relation), number=names.index(origin[1]) + 1))
        else:
            found.append(column)
    return tuple(found)


@dataclass
class Portal(OpenCursor):
    """A statement with its parameters, and how far its rows were taken.

    statement: None for an empty one. told: the columns that the client knows; None without rows. columns: these, as
    messages have them. formats: of each, 0 text and 1 binary.
    """

    statement: st.Statement | None = None
    told: Schema | None = None
    columns: tuple[Column, ...] | None = None
    formats: tuple[int, ...] = ()


def portal_of(cursor: OpenCursor, columns: tuple[Column, ...] | None) -> Portal:
    """A cursor of DECLARE as a portal, which runs nothing."""
    known = {f.name: getattr(cursor, f.name) for f in fields(cursor)}
    return Portal(**known, columns=columns, formats=(int(cursor.binary),) * len(columns or ()))
