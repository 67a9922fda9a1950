"""`connection = name` in the options of statements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, TypeVar

from watersmeet.catalog import Connection
from watersmeet.catalog.connections import ConnectionType
from watersmeet.dialects.schemas import relation_written
from watersmeet.dialects.tree.definitions import CreateRelation, CreateSink
from watersmeet.errors import did_you_mean
from watersmeet.session.access.context import Session, error_at

#: What connection a connector takes.
_BY_CONNECTOR: Final[dict[str, ConnectionType]] = {"kafka": "kafka", "iceberg": "iceberg"}

Given = TypeVar("Given", bound=CreateRelation | CreateSink)


def with_connections(session: Session, statement: Given) -> tuple[Given, tuple[str, ...]]:
    """The statement with the options of the connections that it names, and their ids. UNDEFINED_OBJECT."""
    connector = statement.options.get("connector", "").lower()
    options, ids = _options(session, statement, statement.options, _BY_CONNECTOR.get(connector))
    made = replace(statement, options=options)
    if made.format is not None:
        options, more = _options(session, statement, made.format.options, "schema_registry")
        made, ids = replace(made, format=replace(made.format, options=options)), (*ids, *more)
    return made, ids


def _options(
    session: Session, statement: Given, options: Mapping[str, str], wanted: ConnectionType | None
) -> tuple[dict[str, str], tuple[str, ...]]:
    found = dict(options)
    name = found.pop("connection", None)
    if name is None:
        return found, ()
    connection = relation_written(session.catalog, name)
    if not isinstance(connection, Connection):
        known = [r.shown for r in session.catalog.relations.values() if isinstance(r, Connection)]
        raise error_at(
            statement,
            statement.name_span,
            "UNDEFINED_OBJECT",
            f'connection "{name}" does not exist',
            hint=did_you_mean(name, known) or "Create it first: CREATE CONNECTION name WITH (type = 'kafka', …).",
        )
    if connection.type != wanted:
        raise error_at(
            statement,
            statement.name_span,
            "CONNECTOR_OPTION",
            f'connection "{name}" is of type {connection.type}',
            hint="WITH (connector = 'kafka', …) and WITH (connector = 'iceberg', …) take one of the type with the "
            "connector's name, ENCODE … (…) one of type schema_registry.",
        )
    if twice := sorted(connection.options.keys() & found.keys()):
        raise error_at(
            statement,
            statement.name_span,
            "CONNECTOR_OPTION",
            f'option "{twice[0]}" is given by connection "{name}", too',
            hint="Leave it out here.",
        )
    return {**connection.options, **found}, (connection.id,)
