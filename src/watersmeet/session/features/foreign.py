"""CREATE SERVER, CREATE FOREIGN STREAM and CREATE FOREIGN TABLE (on a server with wrapper SYS_JDBC).

SQLstream, "CREATE SERVER", "CREATE FOREIGN STREAM", "Integrating Kafka", "CREATE FOREIGN TABLE", "Reading from and
writing to databases"; "Stream-Table Join": a query over streams reads the table as of the start of the query.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

from watersmeet.catalog import (
    ARRIVAL,
    ROWTIME,
    EventTime,
    ExternalTable,
    Relation,
    Server,
    Source,
)
from watersmeet.catalog.roles import ADMIN
from watersmeet.connectors.base.options import taken_max_age_us
from watersmeet.connectors.base.targets import view_delivery
from watersmeet.connectors.databases.tables import TableReader
from watersmeet.connectors.foreignstreams import (
    CLASSES,
    EARLIER_KINDS,
    FILE_PART_TYPES,
    FILE_PROVENANCE,
    IDLE_OF_TABLES,
    KINDS,
    LACKING_KINDS,
    LACKING_SERVERS,
    OPTIONS_QUERY,
    PROVENANCE,
    PROVENANCE_PREFIX,
    SERVERS,
    SYS_JDBC,
    Foreign,
    foreign_options,
    foreign_table,
    names_there,
)
from watersmeet.connectors.registry import connector_of
from watersmeet.database.definitions import add, check_columns, may_create, new_relation
from watersmeet.database.sessions.context import Session, error_at, located, undefined_relation
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.readers import reads
from watersmeet.dialects.sqlstream.ddl import read_definition, read_options
from watersmeet.dialects.statements.ddl import skip_description
from watersmeet.dialects.tree.definitions import (
    CreateOptions,
    CreateRelation,
)
from watersmeet.dialects.tree.statements import Name, Refused, Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_new_name, span_of
from watersmeet.errors import Span, did_you_mean
from watersmeet.maintenance.querysources import queried_options
from watersmeet.session.clauses import check_messages, event_time, with_connector, without_connector
from watersmeet.session.externalcontent import fill
from watersmeet.session.handlers import handles
from watersmeet.system.secretvalues import revealed_options
from watersmeet.values.types import TIMESTAMP, Field

#: The wrapper of all supported stream adapters, and the wrapper of databases.
_WRAPPER: Final = "ECDA"

_DATABASES: Final = "SYS_JDBC"


@reads("CREATE SERVER", own="server")
def read_server(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """`CREATE SERVER name [TYPE 'type'] FOREIGN DATA WRAPPER wrapper [OPTIONS (…)]`: the cursor is after SERVER."""
    made = read_new_name(cursor, base)
    start = cursor.index
    kind = cursor.string() if cursor.take("TYPE") else ""
    kind_span = span_of(cursor.tokens[start : cursor.index]) if kind else made["name_span"]
    cursor.expect("FOREIGN", "DATA", "WRAPPER")
    wrapper = cursor.name(reserved=True)
    options = read_options(cursor, {}) if cursor.take("OPTIONS") else {}
    skip_description(cursor)
    cursor.end()
    adapter = options.pop("CLASSNAME", "")
    kind = kind or next((k for word, k in CLASSES.items() if word in adapter.rpartition(".")[2]), "")
    if wrapper.name.upper() == _DATABASES:
        kind = _DATABASES
    elif wrapper.name.upper() != _WRAPPER and not kind:
        hint = "The wrappers are ECDA, with TYPE 'KAFKA10' or 'FILE', and SYS_JDBC."
        refusal = not_supported(f"foreign data wrapper {wrapper.name}", cursor.text, wrapper.span, hint=hint)
        return Refused(**base, error=refusal)
    if not kind:
        raise cursor.error_at(
            made["name_span"],
            "SYNTAX_ERROR",
            "a server of wrapper ECDA needs a type",
            hint="Write TYPE 'KAFKA10' or TYPE 'FILE'.",
        )
    return CreateServer(
        **made,
        kind=EARLIER_KINDS.get(kind.upper(), kind.upper()),
        kind_span=kind_span,
        options=options,
    )


@reads("CREATE FOREIGN STREAM", own="foreign stream")
def read_foreign_stream(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """`CREATE FOREIGN STREAM name (columns) SERVER server [OPTIONS (…)]`; the cursor stands after STREAM."""
    made = read_new_name(cursor, base)
    if not cursor.at("("):
        hint = "List its columns with their types: they are not read from the data."
        return Refused(
            **base, error=not_supported("a foreign stream without columns", cursor.text, made["name_span"], hint=hint)
        )
    definition = read_definition(cursor)
    cursor.expect("SERVER")
    server = cursor.relation_name()
    spans: dict[str, Span] = {}
    options = read_options(cursor, spans) if cursor.take("OPTIONS") else {}
    skip_description(cursor)
    cursor.end()
    if definition.bare_names or not definition.columns:
        raise cursor.error_at(made["name_span"], "SYNTAX_ERROR", "a stream needs columns with types")
    if definition.primary_key:
        definition.refuse("PRIMARY KEY of a stream", definition.key_span)
    if definition.refusal:
        return Refused(**base, error=definition.refusal)
    return CreateForeignStream(
        **made,
        columns=tuple(definition.columns),
        watermarks=tuple(definition.watermarks),
        lengths=definition.lengths,
        server=server,
        options=options,
        spans=spans,
    )


@reads("CREATE FOREIGN TABLE", own="foreign table")
def read_foreign_table(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """`CREATE FOREIGN TABLE name [(columns)] SERVER server [OPTIONS (…)]`; the cursor stands after TABLE."""
    made = read_new_name(cursor, base)
    definition = read_definition(cursor)
    cursor.expect("SERVER")
    server = cursor.relation_name()
    spans: dict[str, Span] = {}
    options = read_options(cursor, spans) if cursor.take("OPTIONS") else {}
    skip_description(cursor)
    cursor.end()
    if definition.bare_names:
        raise cursor.error_at(made["name_span"], "SYNTAX_ERROR", "the columns of a table need types")
    if definition.primary_key:
        definition.refuse("PRIMARY KEY of a foreign table", definition.key_span)
    if definition.watermarks:
        definition.refuse("WATERMARK of a foreign table", definition.watermarks[0].span)
    if definition.refusal:
        return Refused(**base, error=definition.refusal)
    return CreateForeignTable(
        **made,
        columns=tuple(definition.columns),
        server=server,
        options=options,
        spans=spans,
    )


@dataclass(frozen=True, kw_only=True)
class CreateServer(CreateOptions):
    """`CREATE SERVER name TYPE 'kind' FOREIGN DATA WRAPPER ECDA [OPTIONS (…)]`. kind: in upper case.

    options: quoted names as written, others in upper case.
    """

    takes: ClassVar[str | None] = ADMIN

    makes: ClassVar[type[Relation]] = Server

    kind: str
    kind_span: Span


@dataclass(frozen=True, kw_only=True)
class CreateForeignStream(CreateRelation):
    """`CREATE FOREIGN STREAM name (columns) SERVER server [OPTIONS (…)]`. options: like those of a server. spans: those
    of the options.
    """

    takes: ClassVar[str | None] = ADMIN

    makes: ClassVar[type[Relation]] = Source

    server: Name
    spans: Mapping[str, Span] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CreateForeignTable(CreateRelation):
    """`CREATE FOREIGN TABLE name [(columns)] SERVER server [OPTIONS (…)]`. options: like those of a server.

    spans: those of the options. Without columns, the table has those of the server's table.
    """

    takes: ClassVar[str | None] = ADMIN

    makes: ClassVar[type[Relation]] = ExternalTable

    server: Name
    options: Mapping[str, str] = field(default_factory=dict)
    spans: Mapping[str, Span] = field(default_factory=dict)


#: Later than any time: each row advances the clock, because its time is its arrival.
_EVER_US: Final = 1 << 62


@handles(CreateServer)
def create_server(session: Session, statement: CreateServer) -> Result:
    """A server: options that its foreign streams copy when they are created."""
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE SERVER")
    if statement.kind not in (*KINDS, SYS_JDBC):
        raise error_at(
            statement,
            statement.kind_span,
            "FEATURE_NOT_SUPPORTED" if statement.kind in LACKING_KINDS else "CONNECTOR_OPTION",
            f"servers of type {statement.kind} are not supported",
            hint=did_you_mean(statement.kind, KINDS) or f"The types are {', '.join(KINDS)}.",
        )
    if statement.kind == SYS_JDBC:
        _tell_idle(session, statement.options)
    add(session, new_relation(session, statement, Server, (), adapter=statement.kind, options=dict(statement.options)))
    return Result("CREATE SERVER")


def _tell_idle(session: Session, options: Mapping[str, str]) -> None:
    """Adds a notice for each option of a database that has no effect."""
    for name in options:
        if name.lower() in IDLE_OF_TABLES:
            session.notice(f"option {name} has no effect: connections and batches are handled in another way")


@handles(CreateForeignStream)
def create_foreign_stream(session: Session, statement: CreateForeignStream) -> Result:
    """A stream of a topic's messages, or of the records of files. Its ROWTIME is the arrival time, unless the stream
    declares a watermark.
    """
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE FOREIGN STREAM")
    check_columns(statement.columns, statement)
    kind, inherited, depends_on = _server(session, statement)
    provenance = FILE_PROVENANCE if kind == "FILE" else PROVENANCE
    parts = {c.name: provenance[c.name] for c in statement.columns if c.name in provenance}
    for column in statement.columns if kind == "FILE" else ():
        _check_file_part(statement, column, parts.get(column.name))
    values = [c.name for c in statement.columns if c.name not in parts]
    options = {**inherited, **statement.options}
    asked = next((options.pop(name) for name in list(options) if name.upper() == OPTIONS_QUERY), "")
    with located(statement, statement.name_span, statement.spans):
        options |= queried_options(session, asked) if asked else {}
        meant = foreign_options(kind, options, values)
        relation = replace(_stream(session, statement, meant, parts, depends_on), options_query=asked)
    for notice in meant.notices:
        session.notice(notice)
    add(session, relation)
    return Result("CREATE FOREIGN STREAM")


def _check_file_part(statement: CreateForeignStream, column: Field, part: str | None) -> None:
    """Checks a column that holds the location of a row in its file. Raises DATATYPE_MISMATCH, UNDEFINED_COLUMN."""
    if part is not None and column.type.name not in FILE_PART_TYPES[part]:
        types = " or ".join(FILE_PART_TYPES[part])
        raise error_at(statement, statement.name_span, "DATATYPE_MISMATCH", f"column {column.name} can only be {types}")
    if part is None and column.name.startswith(PROVENANCE_PREFIX):
        raise error_at(
            statement,
            statement.name_span,
            "UNDEFINED_COLUMN",
            f"files have no column {column.name}",
            hint=did_you_mean(column.name, FILE_PROVENANCE) or f"They have {', '.join(FILE_PROVENANCE)}.",
        )


def _stream(
    session: Session,
    statement: CreateForeignStream,
    meant: Foreign,
    parts: dict[str, str],
    depends_on: tuple[str, ...],
) -> Source:
    has_format = meant.format is not None
    clock = event_time(statement)
    columns, defaults = statement.columns, {}
    if clock is None:
        columns = (Field(ROWTIME, TIMESTAMP, nullable=False), *columns)
        clock = EventTime(ROWTIME, 0, ahead_us=_EVER_US)
        defaults[ROWTIME] = ARRIVAL
        check_columns(columns, statement)
    if has_format and not meant.rowtime_written:
        parts = {**parts, ROWTIME: "offset"}  # files can be written with any column but the offset
    session.require_files(meant.connector)
    connector = {} if session.connectors == "ignored" else meant.connector
    made = new_relation(
        session,
        statement,
        Source,
        tuple(Field(meant.members.get(c.name, c.name), c.type, c.nullable) for c in columns),
        append_only=True,
        depends_on=depends_on,
        connector=connector,
        format=meant.format,
        message_parts=parts,
        event_time=clock,
        defaults=defaults,
        reopened=has_format and bool(connector),
        lengths={meant.members.get(name, name): length for name, length in statement.lengths.items()},
    )
    if connector.get("connector") == "rotating_file":
        delivery = view_delivery(made, made)
        if session.connectors == "checked":
            made = without_connector(made)
        else:
            connector_of(delivery).check(delivery)
    elif connector:
        if has_format and meant.is_read:
            check_messages(made)
        made = with_connector(session, made)
    return made.renamed(tuple(c.name for c in columns)) if meant.members else made


def _server(session: Session, statement: CreateForeignStream) -> tuple[str, dict[str, str], tuple[str, ...]]:
    """(the kind of the server, its options, its id if statements can drop it). Raises UNDEFINED_RELATION."""
    name = statement.server
    found = session.find(name)
    if isinstance(found, Server) and found.adapter != SYS_JDBC:
        return found.adapter, revealed_options(found.options), (found.id,)
    plain = name.name.upper()
    if found is None and plain in SERVERS:
        return SERVERS[plain], {}, ()
    if found is None and plain in LACKING_SERVERS:
        raise not_supported(f"server {plain}", statement.text, name.span)
    if found is not None:
        what = "a server of tables" if isinstance(found, Server) else "not a server"
        raise error_at(statement, name.span, "CATALOG_TYPE_MISMATCH", f'"{found.shown}" is {what}')
    known = [r.shown for r in session.catalog.relations.values() if isinstance(r, Server)]
    raise undefined_relation(session.catalog, name, statement, "server", [*known, *SERVERS])


@handles(CreateForeignTable)
def create_foreign_table(session: Session, statement: CreateForeignTable) -> Result:
    """A table that is read when a statement names it, and written by INSERT and by pumps."""
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE FOREIGN TABLE")
    server = _server_of_table(session, statement)
    _tell_idle(session, statement.options)
    with located(statement, statement.name_span, statement.spans):
        options = {**revealed_options(server.options), **statement.options}
        max_age_us = taken_max_age_us(options)
        external = replace(foreign_table(options, statement.name), max_age_us=max_age_us)
        reader = session.database.external_readers.reader(external, "a foreign table")
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


def _server_of_table(session: Session, statement: CreateForeignTable) -> Server:
    """Raises UNDEFINED_RELATION, CATALOG_TYPE_MISMATCH."""
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
