"""CREATE CONNECTION, SHOW CONNECTIONS.

RisingWave, "CREATE CONNECTION".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from watersmeet.catalog import Connection, Relation
from watersmeet.catalog.roles import ADMIN
from watersmeet.catalog.rowless import ConnectionType
from watersmeet.connectors.lakes.client import ICEBERG_CATALOG, ICEBERG_TABLE, iceberg_catalog_type
from watersmeet.database.definitions import add, may_create, new_relation
from watersmeet.database.secrets import with_secrets
from watersmeet.database.sessions.context import Session, error_at, located
from watersmeet.database.sessions.result import Result, text_result
from watersmeet.dialects.readers import reads
from watersmeet.dialects.tree.definitions import CreateOptions
from watersmeet.dialects.tree.statements import Statement
from watersmeet.dialects.tree.tokens import Cursor, read_options
from watersmeet.errors import did_you_mean
from watersmeet.session.handlers import handles

#: By type, the option that a connection must have (any of its spellings).
_NEEDED: Final[dict[ConnectionType, tuple[str, ...]]] = {
    "kafka": ("properties.bootstrap.server", "properties.bootstrap.servers"),
    "schema_registry": ("schema.registry",),
    "iceberg": ("catalog.type",),
}
#: How the names of options begin of those types that have no list of them.
_PREFIXES: Final[dict[ConnectionType, str]] = {"kafka": "properties.", "schema_registry": "schema.registry"}


@dataclass(frozen=True, kw_only=True)
class CreateConnection(CreateOptions):
    """`CREATE CONNECTION name WITH (type = …, …)`. options: names in lower case."""

    takes: ClassVar[str | None] = ADMIN

    makes: ClassVar[type[Relation]] = Connection


@reads("CREATE CONNECTION", own="connection")
def read_create_connection(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """CREATE CONNECTION …: the cursor stands behind CONNECTION.

    RisingWave, "CREATE CONNECTION".
    """
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.relation_name()
    cursor.expect("WITH")
    options = read_options(cursor)
    cursor.end()
    return CreateConnection(
        **base,
        name=name.name,
        name_span=name.span,
        schema=name.schema,
        if_not_exists=if_not_exists,
        options=options,
    )


@handles(CreateConnection)
def create_connection(session: Session, statement: CreateConnection) -> Result:
    """CREATE CONNECTION. Nothing is asked yet: a source or sink that names it asks."""
    statement = with_secrets(session, statement)
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE CONNECTION")
    options = dict(statement.options)
    said = options.pop("type", "")
    kind = next((k for k in _NEEDED if k == said.lower()), None)
    if kind is None:
        raise error_at(
            statement,
            statement.name_span,
            "CONNECTOR_OPTION",
            f'a connection can\'t be of type "{said}"',
            hint=did_you_mean(said, _NEEDED) or f"These are: {', '.join(_NEEDED)}.",
        )
    needed = _NEEDED[kind]
    wrong = [n for n in options if not _takes(kind, n)]
    if wrong or not options.keys() & set(needed):
        raise error_at(
            statement,
            statement.name_span,
            "CONNECTOR_OPTION",
            f'a connection of type {kind} has no option "{wrong[0]}"'
            if wrong
            else f'a connection of type {kind} needs the option "{needed[0]}"',
            hint=_hint(kind, wrong[0] if wrong else needed[0]),
        )
    if kind == "iceberg":
        with located(statement, statement.name_span):
            iceberg_catalog_type(options)
    add(session, new_relation(session, statement, Connection, (), type=kind, options=options))
    return Result("CREATE CONNECTION")


def _takes(kind: ConnectionType, option: str) -> bool:
    return option.startswith(_PREFIXES[kind]) if kind in _PREFIXES else ICEBERG_CATALOG.having(option) is not None


def _hint(kind: ConnectionType, option: str) -> str:
    if kind in _PREFIXES:
        return f"The names of its options begin with {_PREFIXES[kind]}"
    if ICEBERG_TABLE.having(option) is not None:
        return f"{option} is an option of the source or sink."
    return f"These are: {', '.join(s.name for s in ICEBERG_CATALOG.specs)}."


def show_connections(connections: Sequence[Relation]) -> Result:
    """The connections with their types. SHOW CREATE CONNECTION has the options."""
    return text_result("SHOW", ("Name", "Type"), [(c.name, c.type) for c in connections if isinstance(c, Connection)])
