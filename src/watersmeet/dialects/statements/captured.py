"""What RisingWave's statements say of captured databases: CREATE TABLE with `FROM source TABLE 'schema.table'` and
INCLUDE, RESET SOURCE.

Source: RisingWave, "Ingest data from PostgreSQL CDC", "RESET SOURCE".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from watersmeet.catalog.roles import ADMIN
from watersmeet.dialects.tree.definitions import CreateTable
from watersmeet.dialects.tree.statements import Name, Statement
from watersmeet.dialects.tree.tokens import Cursor, span_of
from watersmeet.errors import Span
from watersmeet.values.types import TIMESTAMPTZ, VARCHAR, SqlType

#: The connectors whose CREATE SOURCE makes a captured database.
CAPTURE_CONNECTORS: Final = ("postgres-cdc", "mysql-cdc")
#: What may be said of its changes: they are changes of rows.
CHANGE_FORMATS: Final = (("plain", "json"), ("debezium", "json"))
#: What INCLUDE can make a column of, and its type.
CHANGE_PARTS: Final[dict[str, SqlType]] = {
    "timestamp": TIMESTAMPTZ,
    "database_name": VARCHAR,
    "schema_name": VARCHAR,
    "table_name": VARCHAR,
}


@dataclass(frozen=True)
class Origin:
    """`FROM source TABLE 'table'`. span: of the clause."""

    source: Name
    table: str
    span: Span


@dataclass(frozen=True, kw_only=True)
class CreateCapturedTable(CreateTable):
    """`CREATE TABLE … FROM source TABLE 'table'`."""

    takes: ClassVar[str | None] = ADMIN

    origin: Origin


@dataclass(frozen=True, kw_only=True)
class ResetSource(Statement):
    """`RESET SOURCE name`: a captured database, or a table of one, is read anew."""

    takes: ClassVar[str | None] = ADMIN
    defines: ClassVar[bool] = True

    name: Name


def read_reset_source(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands behind RESET SOURCE."""
    name = cursor.relation_name()
    cursor.end()
    return ResetSource(**base, name=name)


def read_origin(cursor: Cursor) -> Origin:
    """The cursor stands at FROM."""
    start = cursor.index
    cursor.expect("FROM")
    source = cursor.relation_name()
    cursor.expect("TABLE")
    table = cursor.string()
    return Origin(source, table, span_of(cursor.tokens[start : cursor.index]))
