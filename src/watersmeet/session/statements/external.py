"""CREATE EXTERNAL TABLE, EXTERNAL STREAM and DICTIONARY.

Timeplus, "Multi-JOINs and ASOF JOINs", "External Streams", "External Table", "Dictionary", "Direct JOIN".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from watersmeet.catalog import (
    ARRIVAL,
    Dictionary,
    DictionaryTable,
    DictionaryView,
    External,
    ExternalTable,
    ExternalView,
    Relation,
    Source,
)
from watersmeet.circuit.operators import FOREVER_US
from watersmeet.dialects.schemas import find_relation, near_relations
from watersmeet.dialects.statements import (
    Clause,
    CreateDictionary,
    CreateExternalStream,
    CreateExternalTable,
    CreateRelation,
)
from watersmeet.dialects.typedefaults import type_default
from watersmeet.errors import Span, did_you_mean, error
from watersmeet.formats.decoders import open_decoder
from watersmeet.session.access.context import Session, error_at, located
from watersmeet.session.access.definitions import add, check_columns, may_create, new_relation
from watersmeet.session.access.messageparts import take_computed_parts
from watersmeet.session.access.result import Result
from watersmeet.session.access.transactions import own_transaction
from watersmeet.session.services.refreshing import refresh
from watersmeet.session.statements.formatschemas import with_format_schema
from watersmeet.session.statements.namedcollections import with_named_collection
from watersmeet.sources.connectors import check_connector
from watersmeet.sources.external import KINDS, check_kind, declared, file_connector
from watersmeet.sources.fileoptions import absolute_path
from watersmeet.sources.kafka.externalstreams import kafka_connector, stream_columns
from watersmeet.store.merging import quoted
from watersmeet.types import Schema

#: Layouts by name (without `complex_key_`): the options that say how the product stores them, on which nothing here
#: depends.
_WHOLE: Final = {
    "flat": ("initial_array_size", "max_array_size"),
    "hashed": ("shards", "shard_load_queue_backlog", "max_load_factor"),
    "sparse_hashed": ("shards", "shard_load_queue_backlog", "max_load_factor"),
    "hashed_array": ("shards",),
}
_CACHES: Final = {
    "cache": (
        "size_in_cells",
        "max_update_queue_size",
        "update_queue_push_timeout_milliseconds",
        "query_wait_timeout_milliseconds",
        "max_threads_for_updates",
    ),
    "ssd_cache": ("block_size", "file_size", "read_buffer_size", "write_buffer_size", "path"),
    "hybrid_hash_cache": ("ttl", "path", "max_hot_key_count"),
}
_OTHERS: Final = {"direct": (), "mutable_cache": ("db", "stream", "update_from_source")}
_LACKING: Final = ("ip_trie", "range_hashed", "polygon", "regexp_tree")
_TRUTH: Final = {"true": True, "1": True, "false": False, "0": False}


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
        external = _external(options.pop("type").lower(), options, statement.name, "database")
    _fill(
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
    below = _stream(session, statement, Clause(name=kind, options=options, span=statement.name_span))
    columns = (
        _columns_of(below, statement.columns, statement, statement.name_span) if statement.columns else below.columns
    )
    add(
        session,
        new_relation(
            session,
            statement,
            ExternalView,
            columns,
            depends_on=(below.id, *needs),
            query=_query(below, columns),
            external=External(kind, below.name),
        ),
    )


def _query(below: Relation, columns: Schema) -> str:
    listed = ", ".join(quoted(c.name) for c in columns)
    return f"CREATE VIEW content AS SELECT {listed} FROM {quoted(below.schema)}.{quoted(below.name)}"


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
        defaults={c.name: d for c in columns if not c.nullable and (d := type_default(c.type)) is not None},
        ranges=dict(statement.ranges),
        reopened=True,
        unlisted=unlisted,
        computed_parts=computed,
    )
    check_connector(made)
    return made


def create_dictionary(session: Session, statement: CreateDictionary) -> Result:
    """A dictionary (TP-19, TP-44 to TP-48): content from outside or from a stream. Its layout says how joins look it
    up.
    """
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE DICTIONARY")
    check_columns(statement.columns, statement)
    dictionary = _layout(session, statement)
    needs = (dictionary.stream,) if dictionary.stream else ()
    source = statement.source
    if source.own:
        below = _stream(session, statement, source)
        _check_columns_of(below, statement, source.span)
        shown = tuple(below.column(c.name) for c in statement.columns)
        add(
            session,
            new_relation(
                session,
                statement,
                DictionaryView,
                shown,
                primary_key=statement.primary_key,
                depends_on=(below.id, *needs),
                dictionary=dictionary,
                query=_query(below, shown),
            ),
        )
        return Result("CREATE DICTIONARY")
    with located(statement, source.span):
        external = _external(source.name, dict(source.options), statement.name, "db")
    _fill(
        session,
        statement,
        new_relation(
            session,
            statement,
            DictionaryTable,
            statement.columns,
            primary_key=statement.primary_key,
            depends_on=needs,
            ranges=dict(statement.ranges),
            external=external,
            dictionary=dictionary,
        ),
        "the source of a dictionary",
        source.span,
    )
    return Result("CREATE DICTIONARY")


def _external(kind: str, options: dict[str, str], name: str, database: str) -> External:
    """Where the content is. database: the name of the option that names the database there."""
    if "query" in options and kind != "postgresql":
        raise error("FEATURE_NOT_SUPPORTED", "the option QUERY of a source is not supported", hint="Name a table.")
    if kind == "file":
        options = file_connector(options)
        return External(
            "file", options.get("path", ""), {n: absolute_path(v) if n == "path" else v for n, v in options.items()}
        )
    return External(kind, f"{options.get(database, 'default')}.{options.get('table', name)}", options)


def _fill(session: Session, statement: CreateRelation, relation: ExternalTable, what: str, span: Span) -> None:
    """Adds a relation with its content. If the content can't be read, nothing is left.

    span: the clause that says where it is.
    """
    outside, external = session.database.outside, relation.external

    with located(statement, span):
        if external.kind == "file":
            session.require_files({"path": external.name})
        columns = declared(outside.reader(external, what), relation.columns)
    check_columns(columns, statement)
    made = replace(relation, columns=columns)
    with own_transaction(session):
        add(session, made)
        with located(statement, span):
            refresh(session, made)


def _layout(session: Session, statement: CreateDictionary) -> Dictionary:
    """How joins look up the dictionary. FEATURE_NOT_SUPPORTED, INVALID_PARAMETER, CONNECTOR_OPTION."""
    layout = statement.layout
    name = layout.name.removeprefix("complex_key_")
    known = {**_WHOLE, **_CACHES, **_OTHERS}
    if name in _LACKING:
        raise error_at(
            statement,
            layout.span,
            "FEATURE_NOT_SUPPORTED",
            f"layout {layout.name.upper()} of a dictionary is not supported",
            hint="Use a layout that looks up the whole key.",
        )
    if name not in known:
        raise error_at(
            statement,
            layout.span,
            "INVALID_PARAMETER",
            f'there is no dictionary layout "{layout.name}"',
            hint=did_you_mean(name, known),
        )
    for option in layout.options:
        if option not in known[name]:
            raise error_at(
                statement,
                layout.span,
                "CONNECTOR_OPTION",
                f'layout {layout.name.upper()} has no option "{option}"',
                hint=did_you_mean(option, known[name]),
            )
    if name == "mutable_cache":
        stream = _stream(session, statement, layout)
        if stream.mode != "mutable":
            raise error_at(statement, layout.span, "CATALOG_TYPE_MISMATCH", f'"{stream.shown}" is not a mutable stream')
        _check_columns_of(stream, statement, layout.span)
        return Dictionary(stream=stream.id, fills=_truth(statement, layout, "update_from_source"))
    if name == "direct":
        return Dictionary()
    seconds = statement.lifetime_s
    if name == "hybrid_hash_cache":
        seconds = _seconds(statement, layout)
    if seconds is None and name in _CACHES:
        raise error_at(
            statement,
            layout.span,
            "INVALID_PARAMETER",
            f"layout {layout.name.upper()} needs LIFETIME",
            hint="Write LIFETIME(300), in seconds.",
        )
    return Dictionary(ttl_us=FOREVER_US if not seconds else seconds * 1_000_000)


def _seconds(statement: CreateDictionary, layout: Clause) -> int:
    text = layout.options.get("ttl", "")
    if not text.isdecimal() or not int(text):
        raise error_at(
            statement,
            layout.span,
            "INVALID_PARAMETER",
            "layout HYBRID_HASH_CACHE needs the option TTL, seconds above 0",
        )
    return int(text)


def _truth(statement: CreateDictionary, clause: Clause, name: str) -> bool:
    text = clause.options.get(name, "false").lower()
    if text not in _TRUTH:
        raise error_at(
            statement,
            clause.span,
            "CONNECTOR_OPTION",
            f'option {name} can\'t be "{text}"',
            hint="It must be true or false.",
        )
    return _TRUTH[text]


def _stream(session: Session, statement: CreateRelation, clause: Clause) -> Relation:
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


def _columns_of(below: Relation, columns: Schema, statement: CreateRelation, span: Span) -> Schema:
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


def _check_columns_of(below: Relation, statement: CreateDictionary, span: Span) -> None:
    """Checks that a stream has the dictionary's columns, and one row for each of its keys."""
    _columns_of(below, statement.columns, statement, span)
    if not below.primary_key or set(below.primary_key) != set(statement.primary_key):
        raise error_at(
            statement,
            span,
            "CATALOG_TYPE_MISMATCH",
            f'the primary key of "{below.shown}" is not that of the dictionary',
            hint="A mutable stream with the dictionary's PRIMARY KEY has one row for each key.",
        )
