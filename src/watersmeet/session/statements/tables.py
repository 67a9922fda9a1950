"""CREATE TABLE, SOURCE and STREAM. A stream is a table written by INSERT, whose rows have times.

SQLstream, "JOIN clause"; Timeplus, "Multi-JOINs and ASOF JOINs".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypeVar

from watersmeet.catalog import ColumnFamily, EventTime, Index, Input, Source, Stream, Table
from watersmeet.connectors.base.options import RATE_LIMIT
from watersmeet.connectors.base.sources import DEFAULT
from watersmeet.connectors.registry import late_start
from watersmeet.database.assignment import default_values, generated_columns
from watersmeet.database.committing import own_transaction
from watersmeet.database.definitions import add, check_columns, may_create, new_relation, schema_for
from watersmeet.database.filling import fill
from watersmeet.database.reading import BatchQuery, batch_query
from watersmeet.database.rowchecks import check_fed_types
from watersmeet.database.secrets import with_secrets
from watersmeet.database.sessions.context import Session, error_at, located
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.statements.sourceclauses import check_rows
from watersmeet.dialects.tree.definitions import CreateRelation, CreateSource, CreateStream, CreateTable
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.maintenance.refreshing import refresh_read
from watersmeet.planner import compile_connector_table
from watersmeet.session.clauses import (
    OPTIONS,
    add_table,
    event_time,
    input_fields,
    refuse_serials,
    table_fields,
    with_connections,
    with_connector,
    with_default_sequences,
    with_named_types,
    with_schema_columns,
)
from watersmeet.session.features.captured import create_captured_database, create_captured_table, is_captured
from watersmeet.session.features.lakedatabases import create_lake_table, lake_of
from watersmeet.session.statements.constraints import constrained
from watersmeet.session.statements.dml import insert_all
from watersmeet.values.types import Field

Made = TypeVar("Made", bound=Input)


def create_table(session: Session, statement: CreateTable) -> Result:
    """CREATE TABLE, with or without a connector, or AS a query."""
    statement, connections = with_connections(session, statement)
    statement = with_secrets(session, statement)
    if is_captured(statement):
        return create_captured_table(session, statement)
    ignores = statement.conflict is not None and statement.conflict.action == "ignore"
    if statement.append_only and statement.primary_key and not ignores:
        raise not_supported(
            "APPEND ONLY with a primary key",
            statement.text,
            statement.name_span,
            detail="When PRIMARY KEY constraint applied to an APPEND ONLY table, the ON CONFLICT behavior must be "
            "DO NOTHING.",
            hint="Write ON CONFLICT DO NOTHING, or leave out APPEND ONLY or the primary key.",
        )
    # Its query may read the replaced relation.
    query = batch_query(session, statement.query, statement.text) if statement.query and statement.replaces else None
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE TABLE")
    statement = with_schema_columns(session, statement)
    statement, sequences = with_default_sequences(session, with_named_types(session, statement))
    if statement.query is not None:
        return _create_table_as(session, statement, query or batch_query(session, statement.query, statement.text))
    fields = table_fields(session, statement)
    connector = _connector(session, statement)
    relation = new_relation(
        session, statement, Table, statement.columns, connector=connector, depends_on=connections, **fields
    )
    relation = _checked(session, relation, statement)
    relation = constrained(session, relation, statement)
    if relation.connector:
        operators = compile_connector_table(relation)
        fill(session, relation, operators)
    else:
        add_table(session, relation, statement.serials, sequences)
    _note_on_commit(session, relation, statement)
    return Result("CREATE TABLE")


def _note_on_commit(session: Session, relation: Table, statement: CreateTable) -> None:
    if statement.on_commit != "preserve rows":
        session.temporaries.on_commit[relation.id] = statement.on_commit


def _create_table_as(session: Session, statement: CreateTable, query: BatchQuery) -> Result:
    names = statement.column_names or tuple(c.name for c in query.columns)
    if len(names) != len(query.columns):
        raise error_at(
            statement,
            statement.name_span,
            "SYNTAX_ERROR",
            f"CREATE TABLE names {len(names)} columns, the query has {len(query.columns)}",
        )
    columns = tuple(Field(n, c.type) for n, c in zip(names, query.columns, strict=True))
    check_columns(columns, statement)
    refresh_read(session, query.depends_on)
    relation = new_relation(session, statement, Table, columns, append_only=statement.append_only)
    _note_on_commit(session, relation, statement)
    with own_transaction(session):
        add(session, relation)
        if statement.without_data:
            return Result("CREATE TABLE AS")
        return Result("CREATE TABLE AS", rowcount=insert_all(session, relation, query))


def create_source(session: Session, statement: CreateSource) -> Result:
    """CREATE SOURCE."""
    statement, connections = with_connections(session, statement)
    statement = with_secrets(session, statement)
    if is_captured(statement):
        return create_captured_database(session, statement)
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE SOURCE")
    if "connector" not in statement.options:
        raise error_at(
            statement,
            statement.name_span,
            "CONNECTOR_OPTION",
            "a source needs a connector",
            hint="Write WITH (connector = 'file', …).",
        )
    if statement.primary_key:
        raise error_at(
            statement,
            statement.name_span,
            "FEATURE_NOT_SUPPORTED",
            "a source can't have a primary key",
            hint="CREATE TABLE … WITH (connector = …) keeps the last row of each key.",
        )
    statement = with_schema_columns(session, statement)
    source = new_relation(
        session,
        statement,
        Source,
        statement.columns,
        append_only=True,
        connector=_connector(session, statement),
        depends_on=connections,
        **input_fields(session, statement),
    )
    add(session, _checked(session, source, statement))
    return Result("CREATE SOURCE")


#: Options of tables in RisingWave and PostgreSQL that no result depends on.
_WITHOUT_EFFECT: Final = (
    "dml_rate_limit", "backfill_rate_limit", "streaming_parallelism", "streaming_max_parallelism", "fillfactor",
)  # fmt: skip


def _connector(session: Session, statement: CreateRelation) -> dict[str, str]:
    """The options of the connector; empty without a connector, and where tests replace it."""
    options = {n: v for n, v in statement.options.items() if n not in OPTIONS}
    for name in [n for n in options if n in _WITHOUT_EFFECT]:
        session.notice(f"option {name} of a table has no effect")
        del options[name]
    if "retention_seconds" in options:
        hint = "A view with WHERE column > now() - INTERVAL '1 day' has the newest rows; DELETE removes others."
        raise not_supported("option retention_seconds of a table", statement.text, statement.name_span, hint=hint)
    if "connector" not in options and options:
        raise error_at(
            statement,
            statement.name_span,
            "CONNECTOR_OPTION",
            f"option {min(options)} needs a connector",
            hint="Write WITH (connector = …, …).",
        )
    if session.connectors == "ignored":
        return {}
    limit = session.variables.get(RATE_LIMIT)
    return {RATE_LIMIT: limit, **options} if options and limit.lower() != DEFAULT else options


def _checked(session: Session, relation: Made, statement: CreateRelation) -> Made:
    """The catalog entry, after checking its columns and its connector's options."""
    if not relation.columns:
        raise error_at(
            statement,
            statement.name_span,
            "FEATURE_NOT_SUPPORTED",
            f'{relation.family} "{relation.shown}" has no columns',
            hint="List the columns: they are not read from the data.",
        )
    check_columns(relation.columns, statement)
    if relation.connector:
        refuse_serials(statement)
        check_fed_types(relation, relation.columns, statement.declared_types, statement, statement.name_span)
        if statement.domains:
            what = f"a domain as the type of a column of {relation.title}, which a connector fills,"
            raise not_supported(what, statement.text, statement.name_span)
        with located(statement, statement.name_span):
            session.require_files(relation.connector)
            if relation.format is not None:
                session.require_files(relation.format.options)
                key = relation.primary_key
                check_rows(relation.format, relation.given, key, relation.message_parts, is_table=relation.is_stored)
            relation = with_connector(session, relation)
        if late := late_start(relation.connector):
            session.notice(late)
    return relation


#: Later than any time: each row advances the clock of an ordered stream.
_EVER_US: Final = 1 << 62


def _clock(statement: CreateStream) -> EventTime | None:
    """The event time of a stream; if the stream is ordered, each row advances it to its own time."""
    found = event_time(statement)
    return replace(found, ahead_us=_EVER_US, ordered=True) if found is not None and statement.ordered else found


def create_stream(session: Session, statement: CreateStream) -> Result:
    """CREATE STREAM and CREATE MUTABLE STREAM, with its indexes, which are named `stream.index`."""
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE STREAM")
    lake = lake_of(session, schema_for(session, statement))
    if lake is not None:
        return create_lake_table(session, statement, lake)
    check_columns(statement.columns, statement)
    generated, functions = generated_columns(session, statement)
    generated |= {name: replace(generated[name], yields=True) for name in statement.yielding}
    stream = new_relation(
        session,
        statement,
        Stream,
        statement.columns,
        primary_key=statement.primary_key,
        append_only=statement.mode == "append",
        mode=statement.mode,
        defaults={**statement.defaults, **default_values(statement, statement.digits)},
        ranges=dict(statement.ranges),
        digits=dict(statement.digits),
        lengths=dict(statement.lengths),
        event_time=_clock(statement),
        generated=generated,
        functions=functions,
        choices=dict(statement.choices),
        unlisted=statement.unlisted,
        version=statement.version,
        keeps_first=statement.keeps_first,
        coalesced=statement.coalesced,
        families=tuple(ColumnFamily(name, columns) for name, columns in statement.families.items()),
    )
    names = [f"{statement.name}.{i.name.name}" for i in statement.indexes]
    for name, index in zip(names, statement.indexes, strict=True):
        may_create(session, statement, name, index.name.span, if_not_exists=False)
    add(session, stream)
    for name, index in zip(names, statement.indexes, strict=True):
        add(
            session,
            new_relation(
                session,
                statement,
                Index,
                statement.columns,
                name=name,
                depends_on=(stream.id,),
                index_columns=tuple(c.name for c in index.columns),
                included=tuple(c.name for c in index.storing),
            ),
        )
    return Result("CREATE STREAM")
