"""CREATE EXTERNAL TABLE, EXTERNAL STREAM and DICTIONARY.

Timeplus, "Multi-JOINs and ASOF JOINs", "External Streams", "External Table", "Dictionary", "Direct JOIN".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

from watersmeet.catalog import (
    ARRIVAL,
    TIME_COLUMN,
    External,
    ExternalTable,
    ExternalView,
    MessageFormat,
    Relation,
    Source,
)
from watersmeet.catalog.roles import ADMIN
from watersmeet.connectors.externalstreams import kafka_connector, stream_columns
from watersmeet.connectors.files.options import absolute_path
from watersmeet.connectors.files.tables import file_connector
from watersmeet.connectors.iceberg.tables import iceberg_options
from watersmeet.connectors.mysql import target as mysql
from watersmeet.connectors.objects import CONFIG_FILE, ENVIRONMENT_SETTING, with_config_file
from watersmeet.connectors.postgres import target
from watersmeet.connectors.registry import KINDS, check_connector, check_kind, declared, taken_max_age_us
from watersmeet.database.committing import own_transaction
from watersmeet.database.definitions import add, check_columns, may_create, new_relation
from watersmeet.database.producing import take_computed_parts
from watersmeet.database.sessions.context import Session, error_at, located
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.readers import reads
from watersmeet.dialects.schemas import find_relation, near_relations
from watersmeet.dialects.timeplus.columns import read_columns
from watersmeet.dialects.tree.definitions import CreateRelation
from watersmeet.dialects.tree.sqltypes import type_default
from watersmeet.dialects.tree.statements import Statement
from watersmeet.dialects.tree.tokens import Cursor, read_new_name, read_setting
from watersmeet.errors import Span, did_you_mean, error
from watersmeet.formats.decoders import open_decoder
from watersmeet.maintenance.refreshing import refresh
from watersmeet.session.features.sharedoptions import with_format_schema, with_named_collection
from watersmeet.session.handlers import handles
from watersmeet.store.changes import quoted
from watersmeet.values.types import TIMESTAMP, Field, Schema

#: The kind of what is outside that this is itself, unless another host is named.
OWN: Final = "timeplus"


@reads("CREATE EXTERNAL TABLE", own="external table")
def read_external_table(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after EXTERNAL TABLE (TP-18)."""
    made = read_new_name(cursor, base)
    columns, ranges = read_columns(cursor) if cursor.at("(") else ((), {})
    options = _settings(cursor, "an external table")
    return CreateExternalTable(
        **made,
        columns=columns,
        ranges=ranges,
        options=options,
        own=options["type"].lower() == OWN and "hosts" not in options,
    )


@reads("CREATE EXTERNAL STREAM", own="external stream")
def read_external_stream(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after EXTERNAL STREAM (TP-12)."""
    made = read_new_name(cursor, base)
    if not cursor.at("("):
        raise cursor.error(detail="The columns of the stream were expected here.")
    columns, ranges = read_columns(cursor)
    arrivals: tuple[str, ...] = ()
    if TIME_COLUMN not in [c.name for c in columns]:
        columns, arrivals = (*columns, Field(TIME_COLUMN, TIMESTAMP, nullable=False)), (TIME_COLUMN,)
    return CreateExternalStream(
        **made,
        columns=columns,
        ranges=ranges,
        options=_settings(cursor, "an external stream"),
        arrivals=arrivals,
    )


def _settings(cursor: Cursor, what: str) -> dict[str, str]:
    """`SETTINGS type = '…', …` up to the end. CONNECTOR_OPTION."""
    if not cursor.take("SETTINGS"):
        raise cursor.error(detail=f"SETTINGS type = '…' of {what} were expected here.")
    options: dict[str, str] = {}
    read_setting(cursor, options)
    while cursor.take(","):
        read_setting(cursor, options)
    cursor.end()
    if "type" not in options:
        raise cursor.error(detail=f"{what[0].upper()}{what[1:]} needs the setting type.")
    return options


@dataclass(frozen=True, kw_only=True)
class CreateExternalTable(CreateRelation):
    """`CREATE EXTERNAL TABLE name [(columns)] SETTINGS type = '…', …`. options: the settings.

    No columns: those of the content. own: it is over a relation of this database.
    """

    takes: ClassVar[str | None] = ADMIN

    makes: ClassVar[type[Relation]] = ExternalTable

    own: bool = False
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CreateExternalStream(CreateRelation):
    """`CREATE EXTERNAL STREAM name (columns) SETTINGS type = '…', …`. options: the settings.

    arrivals: the time at which a row came.
    """

    takes: ClassVar[str | None] = ADMIN

    makes: ClassVar[type[Relation]] = Source

    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Clause:
    """A call with options by name: `MYSQL(DB 'testdb' TABLE 'products')`. name, options' names: lower case.

    span: of the call. own: as a source it is a relation of this database.
    """

    name: str
    options: Mapping[str, str]
    span: Span
    own: bool = False


@handles(CreateExternalTable)
def create_external_table(session: Session, statement: CreateExternalTable) -> Result:
    """A table whose content is fetched when a statement names it. For a running query it never changes (TP-18)."""
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE EXTERNAL TABLE")
    with located(statement, statement.name_span):
        options, needs = with_named_collection(session, statement.options)
    if statement.own:
        _over_stream(session, statement, options, needs)
        return Result("CREATE EXTERNAL TABLE")
    with located(statement, statement.name_span):
        max_age_us = taken_max_age_us(options)
        external = external_of(session, options.pop("type").lower(), options, statement.name, "database")
        external = replace(external, max_age_us=max_age_us)
        form = None
        if not session.replace_connectors:
            external, form = with_target(session, external)
    fill(
        session,
        statement,
        new_relation(
            session,
            statement,
            ExternalTable,
            statement.columns,
            depends_on=needs,
            ranges=dict(statement.ranges),
            external=external,
            format=form,
            defaults=_defaults(statement.columns) if form is not None else {},
        ),
        "an external table",
        statement.name_span,
    )
    return Result("CREATE EXTERNAL TABLE")


def _over_stream(
    session: Session, statement: CreateExternalTable, options: dict[str, str], needs: tuple[str, ...]
) -> None:
    """An external table over a relation of this database: a view of it that never changes for a running query.

    needs: the ids of what the statement names beside that relation.
    """
    kind = options.pop("type").lower()
    below = stream_of(session, statement, Clause(name=kind, options=options, span=statement.name_span))
    columns = (
        columns_of(below, statement.columns, statement, statement.name_span) if statement.columns else below.columns
    )
    add(
        session,
        new_relation(
            session,
            statement,
            ExternalView,
            columns,
            depends_on=(below.id, *needs),
            query=query_of(below, columns),
            external=External(kind, below.name),
        ),
    )


def query_of(below: Relation, columns: Schema) -> str:
    """The CREATE VIEW of these columns of a relation."""
    listed = ", ".join(quoted(c.name) for c in columns)
    return f"CREATE VIEW content AS SELECT {listed} FROM {quoted(below.schema)}.{quoted(below.name)}"


@handles(CreateExternalStream)
def create_external_stream(session: Session, statement: CreateExternalStream) -> Result:
    """A stream that a connector feeds (TP-12). Its readers see an append-only stream."""
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE EXTERNAL STREAM")
    check_columns(statement.columns, statement)
    with located(statement, statement.name_span):
        options, needs = with_named_collection(session, statement.options)
    kind = options.pop("type").lower()

    def checked() -> Relation:
        check_kind(kind, KINDS if session.replace_connectors else ("file", "kafka"), "an external stream")
        if kind == "kafka" and not session.replace_connectors:
            return _of_topic(session, statement, options, needs)
        made = new_relation(
            session,
            statement,
            Source,
            statement.columns,
            append_only=True,
            depends_on=needs,
            connector={} if session.replace_connectors else file_connector(options),
            defaults=dict.fromkeys(statement.arrivals, ARRIVAL),
            ranges=dict(statement.ranges),
        )
        session.require_files(made.connector)
        return check_connector(made) if made.connector else made

    with located(statement, statement.name_span):
        relation = checked()
    add(session, relation)
    return Result("CREATE EXTERNAL STREAM")


def _of_topic(
    session: Session, statement: CreateExternalStream, settings: dict[str, str], needs: tuple[str, ...]
) -> Relation:
    """A stream of the messages of a topic of Kafka. Each query reads it by itself, from where it says.

    needs: the ids of what the statement names.
    """
    if "config_file" in settings:
        session.require_files({"path": settings["config_file"]})
    declared = tuple(c for c in statement.columns if c.name not in statement.arrivals)
    has_registry = "kafka_schema_registry_url" in settings
    schema = None if has_registry else settings.pop("format_schema", None)
    computed = take_computed_parts(session, settings, statement.name, declared)
    connector, form = kafka_connector(settings, declared)
    if schema is not None:
        form, found = with_format_schema(session, form, schema)
        needs = (*needs, *found)
    columns, parts, unlisted = stream_columns(declared)
    open_decoder(columns, (), form, parts)
    made = new_relation(
        session,
        statement,
        Source,
        columns,
        append_only=True,
        connector=connector,
        depends_on=needs,
        format=form,
        message_parts=parts,
        defaults=_defaults(columns),
        ranges=dict(statement.ranges),
        reopened=True,
        unlisted=unlisted,
        computed_parts=computed,
    )
    check_connector(made)
    return made


def _defaults(columns: Schema) -> dict[str, str]:
    """What stands in columns that an INSERT leaves out and that can't be NULL."""
    return {c.name: d for c in columns if not c.nullable and (d := type_default(c.type)) is not None}


def external_of(session: Session, kind: str, options: dict[str, str], name: str, database: str) -> External:
    """Where the content is. database: the name of the option that names the database there."""
    if "query" in options and kind not in ("clickhouse", "mysql", "postgresql"):
        raise error("FEATURE_NOT_SUPPORTED", "the option QUERY of a source is not supported", hint="Name a table.")
    if kind == "file":
        options = file_connector(options)
        return External(
            "file", options.get("path", ""), {n: absolute_path(v) if n == "path" else v for n, v in options.items()}
        )
    if kind == "s3":
        if options.get(ENVIRONMENT_SETTING, "false").lower() == "true" or CONFIG_FILE in options:
            session.require_files({"path": ""})
        options = with_config_file(options)
    if kind == "iceberg":
        options = iceberg_options(options, "default", name)
        return External(kind, f"{options['database.name']}.{options['table.name']}", options)
    if kind == "http":
        return External(kind, options.get("url", "").partition("?")[0], options)  # the rest may be a secret
    return External(kind, f"{options.get(database, 'default')}.{options.get('table', name)}", options)


def with_target(session: Session, external: External) -> tuple[External, MessageFormat | None]:
    """What is written to an external table goes to a connector of sinks; how rows are encoded that go there.

    CONNECTOR_OPTION.
    """
    reader = session.database.outside.reader(external)
    found = replace(external, target=reader.written())
    if "on_conflict" in found.target:
        clauses = {"postgresql": target.conflict_clause, "mysql": mysql.conflict_clause}
        clauses[external.kind](found.target["on_conflict"])
    return found, reader.written_format()


def fill(session: Session, statement: CreateRelation, relation: ExternalTable, what: str, span: Span) -> None:
    """Adds a relation with its content. If the content can't be read, nothing is left.

    span: the clause that says where it is.
    """
    outside, external = session.database.outside, relation.external

    with located(statement, span):
        if external.kind in ("file", "iceberg"):
            session.require_files({"path": external.name} if external.kind == "file" else external.options)
        columns = declared(outside.reader(external, what), relation.columns)
    check_columns(columns, statement)
    made = replace(relation, columns=columns)
    with own_transaction(session):
        add(session, made)
        with located(statement, span):
            refresh(session, made)


def stream_of(session: Session, statement: CreateRelation, clause: Clause) -> Relation:
    """The stream of this database that a clause names. UNDEFINED_RELATION, CONNECTOR_OPTION."""
    options = clause.options
    unknown = [
        n
        for n in options
        if n not in ("db", "stream", "table", "user", "password", "port", "secure", "update_from_source")
    ]
    name = options.get("stream", options.get("table"))
    if unknown or name is None:
        raise error_at(
            statement,
            clause.span,
            "CONNECTOR_OPTION",
            f'{clause.name.upper()} has no option "{unknown[0]}"'
            if unknown
            else f"{clause.name.upper()} needs the option STREAM",
        )
    found = find_relation(session.catalog, name, options.get("db"), folded=False)
    if found is None:
        raise error_at(
            statement,
            clause.span,
            "UNDEFINED_RELATION",
            f'relation "{name}" does not exist',
            hint=near_relations(session.catalog, name, options.get("db")),
        )
    return found


def columns_of(below: Relation, columns: Schema, statement: CreateRelation, span: Span) -> Schema:
    """The columns of a relation with the names and types of `columns`.

    UNDEFINED_COLUMN, DATATYPE_MISMATCH.
    """
    known = {c.name: c for c in below.columns}
    for column in columns:
        if column.name not in known:
            raise error_at(
                statement,
                span,
                "UNDEFINED_COLUMN",
                f'column "{column.name}" of relation "{below.shown}" does not exist',
                hint=did_you_mean(column.name, known),
            )
        if known[column.name].type != column.type:
            raise error_at(
                statement,
                span,
                "DATATYPE_MISMATCH",
                f'column "{column.name}" of relation "{below.shown}" is '
                f"{known[column.name].type.sql}, not {column.type.sql}",
            )
    return tuple(known[c.name] for c in columns)
