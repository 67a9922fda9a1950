"""CREATE SOURCE and CREATE TABLE over databases of PostgreSQL whose changes are captured.

RisingWave, "Ingest data from PostgreSQL CDC".
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from watersmeet.catalog import Captured, CapturedDatabase, CapturedTable, Relation
from watersmeet.dialects.captured import CreateCapturedTable
from watersmeet.dialects.statements import CreateRelation, CreateSource, CreateTable
from watersmeet.errors import Span, did_you_mean, error
from watersmeet.postgresclient import connect, failure, library
from watersmeet.session.access.capturing import dropping
from watersmeet.session.access.columnvalues import generated_columns
from watersmeet.session.access.context import Session, error_at, located
from watersmeet.session.access.definitions import add, check_columns, may_create, new_relation
from watersmeet.session.access.result import Result
from watersmeet.session.access.transactions import own_transaction
from watersmeet.sources.capture.options import (
    CONNECTOR,
    TABLE_OPTIONS,
    DatabaseOptions,
    TableOptions,
    database_options,
    table_options,
)
from watersmeet.sources.capture.servers import TableThere, check_server, ensure_publication, ensure_slot, table_there
from watersmeet.sources.options import refuse
from watersmeet.types import VARCHAR, Field, Schema, SqlType

_SLOT: Final = "slot.name"
#: RisingWave's connectors of databases that are not captured here.
_OTHER_SYSTEMS: Final = ("citus-cdc", "mongodb-cdc", "mysql-cdc", "sqlserver-cdc")
#: Types whose values are all values of those behind, too.
_WIDER: Final = {
    "smallint": ("integer", "bigint", "numeric"),
    "integer": ("bigint", "numeric"),
    "bigint": ("numeric",),
    "real": ("double precision",),
}


def is_captured(statement: CreateRelation) -> bool:
    """Whether a statement has the connector whose changes are captured. FEATURE_NOT_SUPPORTED for those of other
    systems.
    """
    connector = statement.options.get("connector", "").lower()
    if connector in _OTHER_SYSTEMS:
        raise error_at(
            statement,
            statement.name_span,
            "FEATURE_NOT_SUPPORTED",
            f"connector {connector} is not supported",
            hint=f"Changes of PostgreSQL are captured, by connector {CONNECTOR}. Debezium's messages of other systems "
            "are read from Kafka.",
        )
    return connector == CONNECTOR


def create_captured_database(session: Session, statement: CreateSource) -> Result:
    """CREATE SOURCE: a slot, which tables share."""
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE SOURCE")
    if statement.columns or statement.primary_key:
        raise error_at(
            statement,
            statement.name_span,
            "FEATURE_NOT_SUPPORTED",
            f"a source of connector {CONNECTOR} has no columns",
            hint="CREATE TABLE … FROM source TABLE 'schema.table' makes a table of one.",
        )
    with _opened(session, statement, statement.name_span, statement.options) as (connection, made):
        ensure = database_options(made.connector)
        owns = ensure_publication(connection, ensure, None)
        with _slot(session, connection, ensure, replace(made, owns_publication=owns)) as database:
            add(session, database)
    return Result("CREATE SOURCE")


def create_captured_table(session: Session, statement: CreateTable) -> Result:
    """CREATE TABLE with the connector: a slot for this table alone."""
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE TABLE")
    of_table = {n: v for n, v in statement.options.items() if n in TABLE_OPTIONS}
    of_database = {n: v for n, v in statement.options.items() if n not in TABLE_OPTIONS}
    name = of_table.pop("table.name", "")
    with located(statement, statement.name_span):
        if not name:
            refuse(f'a table of connector {CONNECTOR} needs the option "table.name"', hint="Write table.name = '…'.")
        options = table_options(of_table)
    with _opened(session, statement, statement.name_span, of_database) as (connection, made):
        database_settings = database_options(made.connector)
        there = _there(connection, database_settings, name)
        table = _table(session, statement, made.id, there, options)
        owns = ensure_publication(connection, database_settings, there)
        hidden = replace(made, name=f"{made.name}.{made.id}", hidden=True, of_table=table.id, owns_publication=owns)
        table = replace(table, depends_on=(hidden.id,), captured=replace(table.captured, database=hidden.id))
        with _slot(session, connection, database_settings, hidden) as database:
            add(session, database)
            add(session, table)
    return Result("CREATE TABLE")


def create_table_from(session: Session, statement: CreateCapturedTable) -> Result:
    """CREATE TABLE … FROM source TABLE."""
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE TABLE")
    origin = statement.origin
    source: Relation = session.relation(origin.source, statement)
    if not isinstance(source, CapturedDatabase):
        raise error_at(
            statement,
            origin.source.span,
            "CATALOG_TYPE_MISMATCH",
            f"{source.title} is no source of tables",
            hint=f"CREATE SOURCE … WITH (connector = '{CONNECTOR}', …) makes one.",
        )
    with located(statement, origin.span):
        options = table_options(statement.options)
        settings = database_options(source.connector)
        with contextlib.closing(connect(settings.server)) as connection, _failures(settings):
            there = _there(connection, settings, origin.table)
            table = _table(session, statement, source.id, there, options)
            ensure_publication(connection, settings, there)
    with own_transaction(session):
        add(session, replace(table, depends_on=(source.id,)))
    return Result("CREATE TABLE")


@contextlib.contextmanager
def _opened(
    session: Session, statement: CreateRelation, span: Span, given: dict[str, str] | Any
) -> Iterator[tuple[Any, CapturedDatabase]]:
    """A connection to the database that options name, and its entry in the catalog, in a transaction. Errors have their
    place.
    """
    options = {_SLOT: f"watersmeet_{secrets.token_hex(8)}", **given}
    with located(statement, span):
        settings = database_options(options)
        with contextlib.closing(connect(settings.server)) as connection, _failures(settings), own_transaction(session):
            check_server(connection, settings)
            yield (
                connection,
                new_relation(session, statement, CapturedDatabase, (), connector=options, start_lsn=0),
            )


@contextlib.contextmanager
def _failures(settings: DatabaseOptions) -> Iterator[None]:
    try:
        yield
    except library().Error as cause:
        raise failure(cause, settings.server) from cause


@contextlib.contextmanager
def _slot(
    session: Session, connection: Any, settings: DatabaseOptions, database: CapturedDatabase
) -> Iterator[CapturedDatabase]:
    """The entry with its slot. What was made is dropped if the statement, or its transaction, fails."""
    start_lsn, owns_slot = ensure_slot(connection, settings)
    made = replace(database, start_lsn=start_lsn, owns_slot=owns_slot)
    drop = dropping(session, made)
    assert session.transaction is not None
    transaction = session.transaction
    transaction.ends.callback(lambda: None if transaction.committed else drop())
    yield made


def _there(connection: Any, settings: DatabaseOptions, name: str) -> TableThere:
    schema, _, table = name.rpartition(".")
    return table_there(connection, settings, schema or settings.schema, table)


def _table(
    session: Session, statement: CreateTable, database_id: str, there: TableThere, options: TableOptions
) -> CapturedTable:
    """The entry of a table. CONNECTOR_OPTION, DATATYPE_MISMATCH, UNDEFINED_COLUMN."""
    for given, feature in (
        (statement.watermarks, "WATERMARK"),
        (statement.declared, "DEFAULT"),
        (statement.arrivals, "AS PROCTIME()"),
        (statement.append_only, "APPEND ONLY"),
    ):
        if given:
            raise error("FEATURE_NOT_SUPPORTED", f"{feature} in a table of connector {CONNECTOR} is not supported")
    columns = _columns(statement, there)
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
        ),
    )


def _columns(statement: CreateTable, there: TableThere) -> Schema:
    """The columns of the table there before those that are declared, if they are wanted. Those that are declared are
    checked.
    """
    known = {c.name: c for c in there.columns}
    declared = {c.name: c for c in statement.columns}
    for column in statement.columns:
        if column.name in statement.message_parts or column.name in statement.generated:
            continue
        found = known.get(column.name)
        if found is None:
            raise error(
                "UNDEFINED_COLUMN",
                f'table "{there.shown}" has no column "{column.name}"',
                hint=did_you_mean(column.name, known),
            )
        if not _takes(column.type, found.type):
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
        if found.type is None:
            refuse(
                f'column "{found.name}" of table "{there.shown}" has type {found.theirs}, which has no equivalent',
                hint=f"Write (*, {found.name} varchar) to have it as text.",
            )
        taken.append(Field(found.name, found.type, found.nullable))
    return (*taken, *statement.columns)


def _takes(declared: SqlType, theirs: SqlType | None) -> bool:
    """Whether a column of that type takes all values of the type there."""
    if declared in (VARCHAR, theirs):
        return True
    if theirs is None:
        return False
    if declared.name == theirs.name == "numeric":
        return True  # a value with more digits stops the table
    if declared.element is not None and theirs.element is not None:
        return _takes(declared.element, theirs.element)
    return declared.name in _WIDER.get(theirs.name, ())
