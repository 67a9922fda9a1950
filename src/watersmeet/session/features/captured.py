"""CREATE SOURCE and CREATE TABLE with change data capture, or of messages from MQTT; RESET SOURCE.

RisingWave, "Ingest data from PostgreSQL CDC", "Ingest data from MySQL CDC", "RESET SOURCE".

RESET SOURCE continues a captured database whose position is lost, or a captured table that was replaced on the server.
In RisingWave it resumes at the end of the log. Watersmeet reads the content again, so that no change is missing: views
see the tables empty, and then with their rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, NamedTuple

from watersmeet.capture.capturing import Captures, committed, dropping, tables_of
from watersmeet.capture.receiving import begin, checked_options, decoder_of_received
from watersmeet.capture.tablechanges import check_version, emptied_table
from watersmeet.catalog import (
    Captured,
    CapturedDatabase,
    CapturedTable,
    ReceivedSource,
    ReceivedTable,
    Relation,
    Source,
    Table,
)
from watersmeet.catalog.roles import ADMIN
from watersmeet.connectors.base.options import refuse
from watersmeet.connectors.databases.captures import (
    DatabaseOptions,
    DatabasePosition,
    System,
    TableOptions,
    TableThere,
    is_of_table,
    table_options,
)
from watersmeet.connectors.databases.tables import TableColumn
from watersmeet.connectors.registry import SYSTEMS, system_of
from watersmeet.database.assignment import generated_columns
from watersmeet.database.committing import own_transaction
from watersmeet.database.definitions import add, check_columns, may_create, new_relation
from watersmeet.database.sessions.context import Session, error_at, located
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.readers import reads
from watersmeet.dialects.statements.sourceclauses import (
    CreateCapturedTable,
    CreateReceivedSource,
    CreateReceivedTable,
    check_rows,
)
from watersmeet.dialects.tree.definitions import CreateRelation, CreateSource, CreateTable
from watersmeet.dialects.tree.statements import Name, Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported
from watersmeet.errors import did_you_mean, error
from watersmeet.session.clauses import (
    input_fields,
    limit_fields,
    refuse_named_types,
    refuse_serials,
    table_fields,
    with_schema_columns,
)
from watersmeet.session.handlers import handles
from watersmeet.values.serialization import to_json
from watersmeet.values.types import VARCHAR, Field, Schema, SqlType


@dataclass(frozen=True, kw_only=True)
class ResetSource(Statement):
    """`RESET SOURCE name`: reads a captured database, or a table of one, again."""

    takes: ClassVar[str | None] = ADMIN
    defines: ClassVar[bool] = True

    name: Name


@reads("RESET SOURCE")
def read_reset_source(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """`RESET SOURCE name`; None for RESET of a variable `source`."""
    if cursor.done:
        return None
    name = cursor.relation_name()
    cursor.end()
    return ResetSource(**base, name=name)


#: RisingWave's CDC connectors that Watersmeet does not support.
_OTHER_SYSTEMS: Final = ("citus-cdc", "mongodb-cdc", "sqlserver-cdc")


def is_captured(statement: CreateRelation) -> bool:
    """Whether a statement has a CDC connector. Raises FEATURE_NOT_SUPPORTED for systems that Watersmeet does not
    support.
    """
    connector = statement.options.get("connector", "").lower()
    if connector in _OTHER_SYSTEMS:
        listed = " and ".join(f"{s.title} (connector {name})" for name, s in SYSTEMS.items())
        raise not_supported(
            f"connector {connector}",
            statement.text,
            statement.name_span,
            hint=f"Changes of {listed} are captured. Debezium's messages of other systems are read from Kafka.",
        )
    return bool(connector) and connector in SYSTEMS


def create_captured_database(session: Session, statement: CreateSource) -> Result:
    """CREATE SOURCE: the captured database that its tables share."""
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE SOURCE")
    if statement.columns or statement.primary_key:
        raise error_at(
            statement,
            statement.name_span,
            "FEATURE_NOT_SUPPORTED",
            f"a source of connector {statement.options['connector'].lower()} has no columns",
            hint="CREATE TABLE … FROM source TABLE 'schema.table' makes a table of one.",
        )
    if session.connectors == "checked":
        _add_unconnected(session, statement, statement.options)
        return Result("CREATE SOURCE")
    with _opened(session, statement, statement.options) as opened:
        made = opened.system.publish(opened.connection, opened.options, None)
        with _begun(session, opened, replace(opened.database, made=made)) as database:
            add(session, database)
    return Result("CREATE SOURCE")


def create_captured_table(session: Session, statement: CreateTable) -> Result:
    """CREATE TABLE with the connector: a captured database with only this table."""
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE TABLE")
    refuse_named_types(statement)
    of_table = {n: v for n, v in statement.options.items() if is_of_table(n)}
    of_database = {n: v for n, v in statement.options.items() if not is_of_table(n)}
    name = of_table.pop("table.name", "")
    connector = statement.options["connector"].lower()
    with located(statement, statement.name_span):
        if not name:
            refuse(f'a table of connector {connector} needs the option "table.name"', hint="Write table.name = '…'.")
        options = table_options(of_table, connector)
    if session.connectors == "checked":
        _add_unconnected(session, statement, of_database)
        return Result("CREATE TABLE")
    with _opened(session, statement, of_database) as opened:
        there = opened.system.table(opened.connection, opened.options, name)
        given = opened.database
        table = _table(session, statement, opened.system, given.id, there, options)
        made = opened.system.publish(opened.connection, opened.options, there)
        published = opened.system.published(opened.connection, opened.options, there)
        hidden = replace(given, name=f"{given.name}.{given.id}", hidden=True, of_table=table.id, made=made)
        captured = replace(table.captured, database=hidden.id, published=published)
        table = replace(table, depends_on=(hidden.id,), captured=captured)
        with _begun(session, opened, hidden) as database:
            add(session, database)
            add(session, table)
    return Result("CREATE TABLE")


@handles(CreateCapturedTable)
def create_table_from(session: Session, statement: CreateCapturedTable) -> Result:
    """CREATE TABLE … FROM source TABLE."""
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE TABLE")
    refuse_named_types(statement)
    origin = statement.origin
    source: Relation = session.relation(origin.source, statement)
    if session.connectors == "checked":
        _add_unconnected(session, statement, None)
        return Result("CREATE TABLE")
    if not isinstance(source, CapturedDatabase):
        raise error_at(
            statement,
            origin.source.span,
            "CATALOG_TYPE_MISMATCH",
            f"{source.title} is no source of tables",
            hint=f"CREATE SOURCE … WITH (connector = '{next(iter(SYSTEMS))}', …) makes one.",
        )
    system = system_of(source.connector["connector"])
    with located(statement, origin.span):
        options = table_options(statement.options, system.connector)
        settings = system.options(source.connector)
        with system.connected(settings) as connection:
            there = system.table(connection, settings, origin.table)
            table = _table(session, statement, system, source.id, there, options)
            system.publish(connection, settings, there)
            captured = replace(table.captured, published=system.published(connection, settings, there))
    with own_transaction(session):
        add(session, replace(table, depends_on=(source.id,), captured=captured))
    return Result("CREATE TABLE")


def _add_unconnected(session: Session, statement: CreateRelation, given: Mapping[str, str] | None) -> None:
    """Adds a table without rows, or a source without columns, so that statements that name it can be checked.

    given: the options of the database, if the statement has them. Raises RUNTIME_UNAVAILABLE if the columns are not
    declared, because only the server knows them.
    """
    if given is not None:
        system = system_of(given["connector"])
        with located(statement, statement.name_span):
            system.options({**system.defaults(given), **given, "connector": system.connector})
    kind = Table if isinstance(statement, CreateTable) else Source
    if kind is Table and (statement.takes_columns or not statement.columns):
        session.require_outside("the columns of the table", statement, statement.name_span)
    generated, functions = generated_columns(session, statement)
    add(
        session,
        new_relation(
            session,
            statement,
            kind,
            statement.columns,
            primary_key=statement.primary_key,
            generated=generated,
            functions=functions,
        ),
    )


class _Opened(NamedTuple):
    """A connection to a database that a statement names. database: its entry, which is not in the catalog yet."""

    system: System
    options: DatabaseOptions
    connection: Any
    database: CapturedDatabase


@contextlib.contextmanager
def _opened(session: Session, statement: CreateRelation, given: Mapping[str, str]) -> Iterator[_Opened]:
    """The database that the options describe, in a transaction. Errors have the span of the statement's name."""
    system = system_of(given["connector"])
    with located(statement, statement.name_span):
        options = {**system.defaults(given), **given, "connector": system.connector}
        settings = system.options(options)
        with system.connected(settings) as connection, own_transaction(session):
            system.check(connection, settings)
            entry = new_relation(session, statement, CapturedDatabase, (), connector=options, start="")
            yield _Opened(system, settings, connection, entry)


@contextlib.contextmanager
def _begun(session: Session, opened: _Opened, database: CapturedDatabase) -> Iterator[CapturedDatabase]:
    """The entry with the position at which its capture starts. A failed statement or transaction drops the server's
    slot and publication.
    """
    start, more = opened.system.begin(opened.connection, opened.options)
    made = replace(database, start=start, made=(*database.made, *more))
    if made.made:
        drop = dropping(session, made)
        assert session.transaction is not None
        transaction = session.transaction
        transaction.ends.callback(lambda: None if transaction.committed else drop())
    yield made


def _table(
    session: Session,
    statement: CreateTable,
    system: System,
    database_id: str,
    there: TableThere,
    options: TableOptions,
) -> CapturedTable:
    """The entry of a table. Raises CONNECTOR_OPTION, DATATYPE_MISMATCH, UNDEFINED_COLUMN."""
    for given, feature in (
        (statement.watermarks, "WATERMARK"),
        (statement.declared, "DEFAULT"),
        (statement.arrivals, "AS PROCTIME()"),
        (statement.append_only, "APPEND ONLY"),
        (statement.conflict, "ON CONFLICT"),
    ):
        if given:
            raise error(
                "FEATURE_NOT_SUPPORTED", f"{feature} in a table of connector {system.connector} is not supported"
            )
    columns = _columns(statement, system, there)
    key = statement.primary_key or there.key
    if set(key) != set(there.key):
        refuse(
            f'the primary key of table "{there.shown}" is ({", ".join(there.key)}), not ({", ".join(key)})',
            hint=f"Write PRIMARY KEY ({', '.join(there.key)}).",
        )
    columns = tuple(replace(c, nullable=c.nullable and c.name not in key) for c in columns)
    check_columns(columns, statement)
    generated, functions = generated_columns(session, replace(statement, columns=columns))
    read = [c for c in columns if c.name not in statement.message_parts and c.name not in generated]
    if missing := [k for k in key if k not in {c.name for c in read}]:
        raise error("UNDEFINED_COLUMN", f'column "{missing[0]}" of the primary key is not among the columns')
    return new_relation(
        session,
        statement,
        CapturedTable,
        columns,
        primary_key=there.key,
        message_parts=dict(statement.message_parts),
        generated=generated,
        functions=functions,
        captured=Captured(
            database_id,
            there.schema,
            there.name,
            there.oid,
            {c.name: there.types[c.name] for c in read},
            options.has_snapshot,
            options.batch_rows,
            tuple(n for n in there.types if n not in {c.name for c in read}),
            stops=options.stops,
        ),
    )


def _columns(statement: CreateTable, system: System, there: TableThere) -> Schema:
    """The columns of the server's table, if requested, followed by the declared ones, which are checked."""
    known = {c.name: c for c in there.columns}
    declared = {c.name: c for c in statement.columns}
    for column in statement.columns:
        if column.name in statement.message_parts or column.name in statement.generated:
            continue
        found = known.get(column.name)
        if found is None and column.name in there.unwritten:
            refuse(f'column "{column.name}" of table "{there.shown}" {there.unwritten[column.name]}')
        if found is None:
            raise error(
                "UNDEFINED_COLUMN",
                f'table "{there.shown}" has no column "{column.name}"',
                hint=did_you_mean(column.name, known),
            )
        _check_readable(system, found, there)
        if not _takes(system, column.type, found.type):
            has = found.theirs if found.type is None else found.type.sql
            raise error(
                "DATATYPE_MISMATCH",
                f'column "{column.name}" of table "{there.shown}" has type {has}, not {column.type.sql}',
                hint=f"Declare it {'varchar' if found.type is None else found.type.sql}.",
            )
    if not statement.takes_columns:
        return statement.columns
    taken = []
    for found in there.columns:
        if found.name in declared:
            continue
        _check_readable(system, found, there)
        if found.type is None:
            refuse(
                f'column "{found.name}" of table "{there.shown}" has type {found.theirs}, which has no equivalent',
                hint=f"Write (*, {found.name} varchar) to have it as text.",
            )
        taken.append(Field(found.name, found.type, found.nullable))
    return (*taken, *statement.columns)


def _check_readable(system: System, column: TableColumn, there: TableThere) -> None:
    if not system.can_read(column):
        refuse(
            f'column "{column.name}" of table "{there.shown}" has type {column.theirs}, whose changes are not read',
            hint="List the columns of the table without it.",
        )


def _takes(system: System, declared: SqlType, theirs: SqlType | None) -> bool:
    """Whether a column of type `declared` accepts all values of the server's type `theirs`."""
    if declared in (VARCHAR, theirs):
        return True
    if theirs is None:
        return False
    if declared.name == theirs.name == "numeric":
        return True  # at the first value with more digits, the replication of the table stops
    if declared.element is not None and theirs.element is not None:
        return _takes(system, declared.element, theirs.element)
    return declared.name in system.wider.get(theirs.name, ())


_COMMAND = "RESET SOURCE"


@handles(ResetSource)
def reset_source(session: Session, statement: ResetSource) -> Result:
    """RESET SOURCE: one commit empties the tables and stores the position from which they are read again.

    A table of a shared source can be reset without the others. Raises CATALOG_TYPE_MISMATCH for an object that is not
    captured; UNDEFINED_COLUMN, DATATYPE_MISMATCH, UNDEFINED_OBJECT if the server's table no longer fits; errors of the
    client.
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
    """(the named captured database, or that of the named table; the tables to read again; whether these are all its
    tables).
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
    """The entry for the table that has the name on the server now. Starts the publication of its changes."""
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


@handles(CreateReceivedTable)
@handles(CreateReceivedSource)
def create_received(session: Session, statement: CreateReceivedTable | CreateReceivedSource) -> Result:
    """CREATE SOURCE or CREATE TABLE of messages from MQTT. Both store them as rows, and read those sent from now on.

    RisingWave, "Ingest data from MQTT brokers". Raises RUNTIME_UNAVAILABLE if the broker does not answer.
    """
    is_table = isinstance(statement, CreateTable)
    tag = Result("CREATE TABLE" if is_table else "CREATE SOURCE")
    with located(statement, statement.name_span):
        statement = checked_options(session, statement)
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return tag
    if not is_table and statement.primary_key:
        raise error_at(
            statement,
            statement.name_span,
            "FEATURE_NOT_SUPPORTED",
            "a source can't have a primary key",
            hint="CREATE TABLE … WITH (connector = …) keeps the last row of each key.",
        )
    statement = with_schema_columns(session, statement)
    check_columns(statement.columns, statement)
    refuse_serials(statement)
    if isinstance(statement, CreateTable):
        fields = table_fields(session, statement)
    else:
        fields = {**input_fields(session, statement), **limit_fields(statement), "append_only": True}
    kind = ReceivedTable if is_table else ReceivedSource
    made = new_relation(session, statement, kind, statement.columns, options=dict(statement.options), **fields)
    with own_transaction(session), located(statement, statement.name_span):
        if made.format is not None:
            session.require_files(made.format.options)
            check_rows(made.format, made.given, made.primary_key, made.message_parts, is_table=is_table)
        decoder_of_received(made)
        if session.connectors == "used":
            begin(session, made)
        add(session, made)
    return tag
