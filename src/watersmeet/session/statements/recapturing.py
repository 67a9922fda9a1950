"""RESET SOURCE: a captured database whose place is lost, or a captured table that is another one there now, goes on.

RisingWave, "RESET SOURCE", which goes on at the end of the log. Here what is there is read again, so that no change is
missing: views see the tables empty, and then with their rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from watersmeet.capture.capturing import Captures, committed, tables_of
from watersmeet.capture.tablechanges import check_version, emptied_table
from watersmeet.catalog import CapturedDatabase, CapturedTable
from watersmeet.connectors.databases.captures import DatabaseOptions, DatabasePosition, System
from watersmeet.connectors.registry import system_of
from watersmeet.database.sessions.context import Session, error_at, located
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.statements.captured import ResetSource
from watersmeet.serialization import to_json

_COMMAND = "RESET SOURCE"


def reset_source(session: Session, statement: ResetSource) -> Result:
    """RESET SOURCE: one commit empties the tables, with the place from which they are read again.

    Of a table of a source that several share, that table alone. CATALOG_TYPE_MISMATCH for what is not captured;
    UNDEFINED_COLUMN, DATATYPE_MISMATCH, UNDEFINED_OBJECT if a table there does not fit any more; those of the client.
    """
    session.require_writer(_COMMAND)
    session.require_definer(_COMMAND)
    session.require_no_transaction(_COMMAND)
    database, tables, is_whole = _found(session, statement)
    captures = session.database.service(Captures)
    assert captures is not None
    system = system_of(database.connector["connector"])
    with captures.halted(database.id), located(statement, statement.name.span):
        options = system.options(database.connector)
        with system.connected(options) as connection:
            system.check(connection, options)
            now = [_as_it_is(system, connection, options, table) for table in tables]
            position = committed(session.database, database)
            if is_whole:
                start, made = system.begin_again(connection, options, database.made)
                database, position = (
                    replace(database, start=start, made=made),
                    DatabasePosition(start, letters=position.letters),
                )
        with session.database.guard:
            catalog = session.database.catalog
            for relation in (database, *now):
                catalog = catalog.with_relation(relation)
            left = {i: p for i, p in position.tables.items() if i not in {t.id for t in now}}
            changes = {t.id: change for t in now if (change := emptied_table(session, t)).table.num_rows}
            session.database.commit(
                changes, captured={database.id: to_json(replace(position, tables=left))}, catalog=catalog
            )
    return Result(_COMMAND)


def _found(session: Session, statement: ResetSource) -> tuple[CapturedDatabase, list[CapturedTable], bool]:
    """The captured database that is named, or of a table that is; the tables that are read again; whether these are
    all that the database has.
    """
    known = session.catalog.relations
    relation = session.relation(statement.name, statement)
    database = known.get(relation.captured.database) if isinstance(relation, CapturedTable) else relation
    if not isinstance(database, CapturedDatabase):
        raise error_at(
            statement,
            statement.name.span,
            "CATALOG_TYPE_MISMATCH",
            f"{relation.title} is not captured",
            detail="RESET SOURCE is for sources whose changes of tables are captured, and for these tables.",
        )
    if isinstance(relation, CapturedTable):
        return database, [relation], database.of_table == relation.id
    return database, tables_of(session.database, database.id), True


def _as_it_is(system: System, connection: Any, options: DatabaseOptions, table: CapturedTable) -> CapturedTable:
    """The entry of a table for the table of its name that is there now, of which changes are published."""
    captured = table.captured
    name = f"{captured.schema}.{captured.table}" if system.has_schemas else captured.table
    there = system.table(connection, options, name)
    check_version(table, there.lineage._replace(oid=captured.oid), there.types)
    system.publish(connection, options, there)
    published = system.published(connection, options, there)
    left_out = captured.left_out
    if not options.adds_columns:
        left_out = tuple(n for n in there.types if n not in captured.types)
    now = replace(captured, oid=there.oid, has_snapshot=True, left_out=left_out, added={}, published=published)
    return replace(table, captured=now)
