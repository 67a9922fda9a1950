"""CREATE EXTERNAL TABLE, EXTERNAL STREAM and DICTIONARY.

Timeplus, "Multi-JOINs and ASOF JOINs", "External Streams", "External Table", "Dictionary", "Direct JOIN".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from watersmeet.catalog import (
    ARRIVAL,
    TIME_COLUMN,
    External,
    ExternalTable,
    ExternalView,
    Relation,
    Source,
)
from watersmeet.catalog.roles import ADMIN
from watersmeet.connectors import registry as connectors
from watersmeet.connectors.base.options import taken_max_age_us
from watersmeet.database.definitions import add, check_columns, may_create, new_relation
from watersmeet.database.producing import take_computed_parts
from watersmeet.database.sessions.context import Session, located
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.readers import reads
from watersmeet.dialects.timeplus.columns import read_columns
from watersmeet.dialects.tree.definitions import CreateRelation
from watersmeet.dialects.tree.sqltypes import type_default
from watersmeet.dialects.tree.statements import Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_new_name, read_setting, span_of
from watersmeet.session.clauses import with_connector
from watersmeet.session.externalcontent import (
    Clause,
    columns_of,
    content_query,
    external_of,
    fill,
    stream_of,
    with_target,
)
from watersmeet.session.features.sharedoptions import with_format_schema, with_named_collection
from watersmeet.session.handlers import handles
from watersmeet.system.process import lazy_import
from watersmeet.values.types import TIMESTAMP, Field, Schema

if TYPE_CHECKING:
    from watersmeet.connectors import externalstreams
    from watersmeet.connectors.files import tables as filetables
    from watersmeet.formats import decoders
else:
    externalstreams = lazy_import("watersmeet.connectors.externalstreams")
    filetables = lazy_import("watersmeet.connectors.files.tables")
    decoders = lazy_import("watersmeet.formats.decoders")

#: The kind of external content that means this database, unless the statement names another host.
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


@reads("CREATE STREAM", own="external stream")
def read_stream_with_engine(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """`CREATE STREAM … ENGINE = ExternalStream`, as SHOW CREATE of Timeplus writes an external stream."""
    texts = [token.text.upper() for token in cursor.rest]
    is_external = any(texts[i : i + 3] == ["ENGINE", "=", "EXTERNALSTREAM"] for i in range(len(texts)))
    return read_external_stream(cursor, base) if is_external else None


def _settings(cursor: Cursor, what: str) -> dict[str, str]:
    """`SETTINGS type = '…', …` up to the end. Raises CONNECTOR_OPTION."""
    cursor.take("ENGINE", "=", "EXTERNALSTREAM")
    if cursor.at("AS"):
        hint = "CREATE FUNCTION … LANGUAGE python runs over rows; write its rows into a topic, or INSERT them."
        raise not_supported(f"AS (code in Python) of {what}", cursor.text, span_of(cursor.rest[:1]), hint=hint)
    if not cursor.take("SETTINGS"):
        raise cursor.error(detail=f"SETTINGS type = '…' of {what} were expected here.")
    options: dict[str, str] = {}
    read_setting(cursor, options)
    while cursor.take(","):
        read_setting(cursor, options)
    if cursor.take("COMMENT"):  # SHOW CREATE shows it
        cursor.string()
    cursor.end()
    if "type" not in options:
        raise cursor.error(detail=f"{what[0].upper()}{what[1:]} needs the setting type.")
    return options


@dataclass(frozen=True, kw_only=True)
class CreateExternalTable(CreateRelation):
    """`CREATE EXTERNAL TABLE name [(columns)] SETTINGS type = '…', …`. options: the settings.

    Without columns, the table has the columns of its content. own: whether it reads a relation of this database.
    """

    takes: ClassVar[str | None] = ADMIN

    makes: ClassVar[type[Relation]] = ExternalTable

    own: bool = False
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CreateExternalStream(CreateRelation):
    """`CREATE EXTERNAL STREAM name (columns) SETTINGS type = '…', …`. options: the settings.

    arrivals: the columns with the arrival time of a row.
    """

    takes: ClassVar[str | None] = ADMIN

    makes: ClassVar[type[Relation]] = Source

    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@handles(CreateExternalTable)
def create_external_table(session: Session, statement: CreateExternalTable) -> Result:
    """A table whose content is fetched when a statement names it. Within a running query it never changes (TP-18)."""
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
        if session.connectors == "used":
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
    """An external table over a relation of this database: a view that never changes within a running query.

    needs: the ids of the other objects that the statement names.
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
            query=content_query(below, columns),
            external=External(kind, below.name),
        ),
    )


@handles(CreateExternalStream)
def create_external_stream(session: Session, statement: CreateExternalStream) -> Result:
    """An append-only stream that a connector feeds (TP-12)."""
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE EXTERNAL STREAM")
    check_columns(statement.columns, statement)
    with located(statement, statement.name_span):
        options, needs = with_named_collection(session, statement.options)
    kind = options.pop("type").lower()

    def checked() -> Relation:
        ignored = session.connectors == "ignored"
        connectors.check_kind(kind, connectors.KINDS if ignored else ("file", "kafka"), "an external stream")
        if kind == "kafka" and not ignored:
            return _of_topic(session, statement, options, needs)
        made = new_relation(
            session,
            statement,
            Source,
            statement.columns,
            append_only=True,
            depends_on=needs,
            connector={} if ignored else filetables.file_connector(options),
            defaults=dict.fromkeys(statement.arrivals, ARRIVAL),
            ranges=dict(statement.ranges),
        )
        session.require_files(made.connector)
        return with_connector(session, made) if made.connector else made

    with located(statement, statement.name_span):
        relation = checked()
    add(session, relation)
    return Result("CREATE EXTERNAL STREAM")


def _of_topic(
    session: Session, statement: CreateExternalStream, settings: dict[str, str], needs: tuple[str, ...]
) -> Relation:
    """A stream of the messages of a topic of Kafka. Each query reads it separately, from its own offset.

    needs: the ids of the objects that the statement names.
    """
    if "config_file" in settings:
        session.require_files({"path": settings["config_file"]})
    declared = tuple(c for c in statement.columns if c.name not in statement.arrivals)
    has_registry = "kafka_schema_registry_url" in settings
    schema = None if has_registry else settings.pop("format_schema", None)
    computed = take_computed_parts(session, settings, statement.name, declared)
    connector, form = externalstreams.kafka_connector(settings, declared)
    if schema is not None:
        form, found = with_format_schema(session, form, schema)
        needs = (*needs, *found)
    columns, parts, unlisted = externalstreams.stream_columns(declared)
    decoders.open_decoder(columns, (), form, parts)
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
    return with_connector(session, made)


def _defaults(columns: Schema) -> dict[str, str]:
    """The defaults of the columns that can't be NULL, for rows that omit them."""
    return {c.name: d for c in columns if not c.nullable and (d := type_default(c.type)) is not None}
