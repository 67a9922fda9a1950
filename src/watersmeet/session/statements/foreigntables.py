"""CREATE FOREIGN TABLE: a table of a database that a server of wrapper SYS_JDBC names.

SQLstream, "CREATE FOREIGN TABLE", "Reading from and writing to databases"; "Stream-Table Join": a query over streams
takes the table as it is when the query begins.
"""

from __future__ import annotations

from dataclasses import replace

from watersmeet.catalog import ExternalTable, Server
from watersmeet.connectors.databases.tables import TableReader
from watersmeet.connectors.registry import taken_max_age_us
from watersmeet.connectors.spellings.foreigntables import SYS_JDBC, foreign_table, names_there
from watersmeet.database.definitions import may_create, new_relation
from watersmeet.database.sessions.context import Session, error_at, located, undefined_relation
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.tree.definitions import CreateForeignTable
from watersmeet.secretvalues import revealed_options
from watersmeet.session.statements.external import fill


def create_foreign_table(session: Session, statement: CreateForeignTable) -> Result:
    """A table that is read when a statement names it, and written by INSERT and by pumps."""
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE FOREIGN TABLE")
    server = _server(session, statement)
    with located(statement, statement.name_span, statement.places):
        options = {**revealed_options(server.options), **statement.options}
        max_age_us = taken_max_age_us(options)
        external = replace(foreign_table(options, statement.name), max_age_us=max_age_us)
        reader = session.database.outside.reader(external, "a foreign table")
        assert isinstance(reader, TableReader)
        external = replace(external, target=reader.written())
        there = reader.names()
        external = replace(external, names=names_there([c.name for c in statement.columns], there))
    fill(
        session,
        statement,
        new_relation(session, statement, ExternalTable, statement.columns, depends_on=(server.id,), external=external),
        "a foreign table",
        statement.name_span,
    )
    return Result("CREATE FOREIGN TABLE")


def _server(session: Session, statement: CreateForeignTable) -> Server:
    """UNDEFINED_RELATION, CATALOG_TYPE_MISMATCH."""
    name = statement.server
    found = session.find(name)
    if isinstance(found, Server) and found.adapter == SYS_JDBC:
        return found
    if found is not None:
        what = "a server of another wrapper" if isinstance(found, Server) else "not a server"
        raise error_at(
            statement,
            name.span,
            "CATALOG_TYPE_MISMATCH",
            f'"{found.shown}" is {what}',
            hint="A foreign table needs one of wrapper SYS_JDBC.",
        )
    known = [r.shown for r in session.catalog.relations.values() if isinstance(r, Server) and r.adapter == SYS_JDBC]
    raise undefined_relation(session.catalog, name, statement, "server", known)
