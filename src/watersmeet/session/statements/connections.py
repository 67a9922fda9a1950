"""CREATE CONNECTION, SHOW CONNECTIONS.

RisingWave, "CREATE CONNECTION".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from watersmeet.catalog import Connection, Relation
from watersmeet.catalog.connections import ConnectionType
from watersmeet.dialects.statements import CreateConnection
from watersmeet.errors import did_you_mean
from watersmeet.session.access.context import Session, error_at
from watersmeet.session.access.definitions import add, may_create, new_relation
from watersmeet.session.access.result import Result, text_result
from watersmeet.session.access.secrets import with_secrets

#: By type, how the names of its options begin, and the option that it must have (any of its spellings).
_TYPES: Final[dict[ConnectionType, tuple[str, tuple[str, ...]]]] = {
    "kafka": ("properties.", ("properties.bootstrap.server", "properties.bootstrap.servers")),
    "schema_registry": ("schema.registry", ("schema.registry",)),
}


def create_connection(session: Session, statement: CreateConnection) -> Result:
    """CREATE CONNECTION. Nothing is asked yet: a source or sink that names it asks."""
    statement = with_secrets(session, statement)
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE CONNECTION")
    options = dict(statement.options)
    said = options.pop("type", "")
    kind = next((k for k in _TYPES if k == said.lower()), None)
    if kind is None:
        raise error_at(
            statement,
            statement.name_span,
            "CONNECTOR_OPTION",
            f'a connection can\'t be of type "{said}"',
            hint=did_you_mean(said, _TYPES) or "Write WITH (type = 'kafka', …) or WITH (type = 'schema_registry', …).",
        )
    prefix, needed = _TYPES[kind]
    wrong = [n for n in options if not n.startswith(prefix)]
    if wrong or not options.keys() & set(needed):
        raise error_at(
            statement,
            statement.name_span,
            "CONNECTOR_OPTION",
            f'a connection of type {kind} has no option "{wrong[0]}"'
            if wrong
            else f'a connection of type {kind} needs the option "{needed[0]}"',
            hint=f"The names of its options begin with {prefix}",
        )
    add(session, new_relation(session, statement, Connection, (), type=kind, options=options))
    return Result("CREATE CONNECTION")


def show_connections(connections: Sequence[Relation]) -> Result:
    """The connections with their types. SHOW CREATE CONNECTION has the options."""
    return text_result("SHOW", ("Name", "Type"), [(c.name, c.type) for c in connections if isinstance(c, Connection)])
