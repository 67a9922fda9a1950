"""Topics and the processors that write them.

Lenses, "Joins": "Key decoder types", "Co-partitioning", "Joining and Grouping".
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from sqlglot import exp

from watersmeet.algebra.durations import timeout_us
from watersmeet.algebra.nodes import Column, Project
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.trees import read
from watersmeet.algebra.watermarks import clocks
from watersmeet.binder import BoundQuery, bind_query
from watersmeet.binder.dialects.registry import rules_of
from watersmeet.catalog import (
    ARRIVAL,
    KEY_COLUMN,
    RECORD_HEADERS,
    RECORD_NUMBER,
    RECORD_OFFSET,
    RECORD_PARTITION,
    RECORD_TIME,
    TOMBSTONE,
    EventTime,
    Processor,
    Relation,
    Table,
    Topic,
    TopicTable,
    turned_into,
)
from watersmeet.dialects.statements import CreateProcessor, CreateTopic, Name, StartProcessor, StopProcessor
from watersmeet.formats.decoders import open_decoder
from watersmeet.formats.windowedkeys import split_window
from watersmeet.planner import compile_connector_table
from watersmeet.session.access.context import Session, error_at, located, sentence, undefined_relation
from watersmeet.session.access.definitions import add, check_columns, may_create, new_relation, remove
from watersmeet.session.access.filling import Bound, fill, stop_feeding
from watersmeet.session.access.kafkatopics import (
    connector_for,
    dead_letter_topic,
    ensure_topic,
    format_for,
    reading_options,
    target_options,
    undone_by_rollback,
)
from watersmeet.session.access.reading import bounded, fetch, readable, table_tree
from watersmeet.session.access.result import Result
from watersmeet.session.access.transactions import own_transaction
from watersmeet.session.services.delivery import Deliveries, begin
from watersmeet.session.services.views import make, watermarks_of
from watersmeet.sinks.deliveries import dead_letter_delivery, topic_delivery
from watersmeet.sinks.targets import connector_of
from watersmeet.sources.connectors import check_connector
from watersmeet.sources.kafka.options import kafka_options
from watersmeet.sources.kafka.topics import is_hashed
from watersmeet.types import BIGINT, BOOLEAN, INTEGER, JSONB, TIMESTAMP, Field

_TIME: Final = Field(RECORD_TIME, TIMESTAMP, nullable=False)
_DELETED: Final = Field(TOMBSTONE, BOOLEAN, nullable=False)
#: Columns of topics of Kafka that have what the brokers know of a record.
_PLACE: Final = (Field(RECORD_PARTITION, INTEGER), Field(RECORD_OFFSET, BIGINT), Field(RECORD_HEADERS, JSONB))
#: By column, the part of a message that it is.
MESSAGE_PARTS: Final = {
    KEY_COLUMN: "key",
    RECORD_TIME: "timestamp",
    TOMBSTONE: "tombstone",
    RECORD_PARTITION: "partition",
    RECORD_OFFSET: "offset",
    RECORD_HEADERS: "headers",
}
#: Into which other formats records can be turned. Lenses, "Serialization formats".
_CHANGES: Final = {
    "INT": ("LONG", "STRING", "AVRO"),
    "LONG": ("STRING", "AVRO"),
    "STRING": ("AVRO",),
    "JSON": ("AVRO", "STRING"),
    "AVRO": ("JSON", "STRING"),
    "XML": ("JSON", "AVRO"),
    "CSV": ("JSON", "AVRO"),
    "PROTOBUF": ("JSON", "AVRO"),
}
_READ_ONLY: Final = ("XML", "CSV", "PROTOBUF")
#: Formats of a single value.
_SCALARS: Final = ("INT", "LONG", "STRING", "BYTES")
#: The formats of computed keys, by their types.
_KEYS: Final = {"smallint": "INT", "integer": "INT", "bigint": "LONG", "varchar": "STRING", "bytea": "BYTES"}
#: What a topic in the database says of properties that change nothing.
_REPLICATION: Final = "replication has no effect: a topic is in the database, once"
_COMPACTED: Final = (
    "compacted has no effect: a topic keeps all its records, and as a table it has the last one of each key"
)


def create_topic(session: Session, statement: CreateTopic) -> Result:
    """CREATE TABLE: a topic written by INSERT. With a connection to Kafka it is a topic there."""
    connector = connector_for(session, statement.name)
    if statement.replaces and connector:
        raise error_at(
            statement,
            statement.span,
            "FEATURE_NOT_SUPPORTED",
            "CREATE OR REPLACE TABLE of a topic of Kafka is not supported",
            hint="DROP TABLE deletes the topic with its records; CREATE TABLE creates it again.",
        )
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE TABLE")
    check_columns(statement.columns, statement)
    if connector:
        _create_in_kafka(session, statement, connector)
        return Result("CREATE TABLE")
    if statement.compacted:
        session.notice(_COMPACTED)
    if statement.replication is not None:
        session.notice(_REPLICATION)
    required = tuple(c.name for c in statement.columns if not c.nullable and c.name != KEY_COLUMN)
    columns = (*(Field(c.name, c.type, c.name != KEY_COLUMN) for c in statement.columns), _TIME, _DELETED)
    topic = Topic(statement.key_format, statement.value_format, statement.partitions or _partitions(session), required)
    add(
        session,
        new_relation(
            session,
            statement,
            TopicTable,
            columns,
            append_only=True,
            event_time=EventTime(RECORD_TIME, 0, idle_us=statement.idle_us or _idle_us(session)),
            topic=topic,
            defaults={RECORD_TIME: ARRIVAL, TOMBSTONE: "FALSE"},
        ),
    )
    return Result("CREATE TABLE")


def _create_in_kafka(session: Session, statement: CreateTopic, connector: dict[str, str]) -> None:
    """A topic whose rows are the records in Kafka. Others write there, too, so any field may be missing."""
    fields = tuple(Field(c.name, c.type, c.nullable or c.name != KEY_COLUMN) for c in statement.columns)
    columns = (*fields, _TIME, _DELETED, *_PLACE)
    with located(statement, statement.name_span):
        message_format = format_for(session, statement.key_format, statement.value_format)
        open_decoder(columns, (), message_format, MESSAGE_PARTS)
        partitions, created = ensure_topic(
            session,
            statement,
            connector,
            partitions=statement.partitions,
            replication=statement.replication,
            compacted=statement.compacted,
        )
    delete = undone_by_rollback(session, connector) if created else lambda: None
    by_hash = bool(created) or is_hashed(kafka_options(connector).properties, connector["topic"])
    if not by_hash:
        session.notice(
            f'topic "{connector["topic"]}" is not partitioned by murmur2 of its keys: joins repartition its records'
        )
    required = tuple(c.name for c in statement.columns if not c.nullable and c.name != KEY_COLUMN)
    with ExitStack() as undone, own_transaction(session), located(statement, statement.name_span):
        undone.callback(delete)
        dead_letters = dead_letter_topic(session, statement, connector)
        if dead_letters and ensure_topic(session, statement, dead_letters, partitions=None)[1]:
            undone.callback(undone_by_rollback(session, dead_letters))
        relation = check_connector(
            new_relation(
                session,
                statement,
                TopicTable,
                columns,
                append_only=True,
                connector={**connector, **reading_options(session), **created},
                format=message_format,
                message_parts=MESSAGE_PARTS,
                event_time=EventTime(RECORD_TIME, 0, idle_us=statement.idle_us or _idle_us(session)),
                topic=Topic(
                    statement.key_format,
                    statement.value_format,
                    partitions,
                    required,
                    by_hash=by_hash,
                    dead_letters=dead_letters.get("topic", ""),
                ),
                defaults={RECORD_TIME: ARRIVAL, TOMBSTONE: "FALSE"},
            )
        )
        if (delivery := dead_letter_delivery(relation)) is not None:
            connector_of(delivery).check(delivery)
            begin(session.database, relation.id, delivery.generation, snapshot=False)
        fill(session, relation, compile_connector_table(relation, session.database.buckets))
        undone.pop_all()


def create_processor(session: Session, statement: CreateProcessor) -> Result:
    """INSERT INTO … SELECT STREAM or TABLE: creates the topic and the processor that writes it."""
    session.require_definer("INSERT")
    bound = bind_processor(session, statement)
    declared = session.find(_target(statement))
    if declared is None:
        may_create(session, statement, statement.name, statement.name_span, if_not_exists=False)
    relation = _in_kafka(session, statement, bound, declared)
    bound = replace(bound, relation=relation)
    if declared is None and not relation.topic.target:
        make(session, bound)
        return Result("INSERT")
    with own_transaction(session):
        if declared is not None:
            remove(session, {declared.id})
        _make_delivered(session, statement, bound, relation, created=declared is None)
    return Result("INSERT")


def _make_delivered(
    session: Session, statement: CreateProcessor, bound: Bound, relation: Processor, *, created: bool
) -> None:
    """Makes a processor, and begins to deliver its records, if its topic is in Kafka. created: so is the topic."""
    topic = relation.topic
    if not topic.target:
        make(session, bound)
        return
    with located(statement, statement.name_span):
        if created:
            partitions, is_new = ensure_topic(
                session, statement, topic.target, partitions=None, is_table=topic.compacted
            )
            if is_new:
                undone_by_rollback(session, topic.target)
            bound = replace(bound, relation=replace(relation, topic=replace(topic, partitions=partitions)))
        delivery = topic_delivery(relation)
        assert delivery is not None
        connector_of(delivery).check(delivery)
    make(session, bound)
    begin(session.database, relation.id, 1, snapshot=True)


def _in_kafka(session: Session, statement: CreateProcessor, bound: Bound, declared: Relation | None) -> Processor:
    """The processor with the topic of Kafka that it writes, if it is there.

    INVALID_PARAMETER for a format that its records can't have.
    """
    relation = bound.relation
    assert isinstance(relation, Processor)
    if declared is not None:
        target = target_options(declared.connector)
        if not target or declared.format is None:
            return relation
        return replace(relation, topic=replace(relation.topic, target=target, target_format=declared.format))
    target = connector_for(session, statement.name)
    if not target:
        return relation
    with located(statement, statement.name_span):
        key_format, value_format = _formats(session, relation)
        topic = replace(
            relation.topic,
            value_format=value_format,
            target=target,
            target_format=format_for(session, key_format, value_format),
        )
    return replace(relation, topic=topic)


def _formats(session: Session, relation: Processor) -> tuple[str, str]:
    """In which formats the records of a processor are written to Kafka: those of its topic, else by the types."""
    topic = relation.topic
    structured = "AVRO" if session.variables.get("kafka.schema.registry.url") else "JSON"
    fields = [c for c in relation.columns if c.name not in (KEY_COLUMN, RECORD_TIME, TOMBSTONE, RECORD_NUMBER)]
    value_format = topic.value_format
    if value_format in _READ_ONLY or (value_format in _SCALARS and len(fields) != 1):
        value_format = structured
    key = next((c for c in relation.columns if c.name == KEY_COLUMN), None)
    key_format = topic.key_format
    if key_format is None or key_format in _READ_ONLY:
        key_format = "BYTES" if key is None else _KEYS.get(key.type.name, structured)
    return key_format, value_format


def _check_change(statement: CreateProcessor, word: str, has: str | None, wanted: str | None) -> None:
    """INVALID_PARAMETER for STORE with a format that records of another one can't be turned into."""
    if has is None or wanted is None or wanted == has:
        return
    own = split_window(has)[1]
    allowed = tuple(has.removesuffix(own) + other for other in _CHANGES.get(own, ()))
    if wanted in allowed:
        return
    raise error_at(
        statement,
        statement.name_span,
        "INVALID_PARAMETER",
        f"{has} can't be stored AS {wanted}" if word == "VALUE" else f"a key in {has} can't be stored AS {wanted}",
        hint=f"{has} can become {' or '.join(allowed)}." if allowed else f"Leave {word} AS out: it stays {has}.",
    )


def stop_processor(session: Session, statement: StopProcessor) -> Result:
    """STOP PROCESSOR, DROP PROCESSOR: the topic that it writes stays as it is.

    DEPENDENT_OBJECTS while views read the topic.
    """
    session.require_definer("STOP PROCESSOR")
    relation = session.find(statement.name)
    if relation is None:
        names = [r.shown for r in session.catalog.relations.values() if isinstance(r, Processor)]
        raise undefined_relation(session.catalog, statement.name, statement, "processor", names)
    if not isinstance(relation, Processor):
        raise error_at(
            statement, statement.name.span, "CATALOG_TYPE_MISMATCH", f'no processor writes "{relation.shown}"'
        )
    above = session.catalog.dependents(relation.id)
    if above:
        raise error_at(
            statement,
            statement.span,
            "DEPENDENT_OBJECTS",
            f'cannot stop the processor of "{relation.shown}"',
            detail=sentence(f"{r.reader} reads it" for r in above),
            hint="Stop or drop these first.",
        )
    session.put(turned_into(TopicTable, relation, depends_on=()))
    stop_feeding(session, {relation.id})
    return Result("STOP PROCESSOR")


def start_processor(session: Session, statement: StartProcessor) -> Result:
    """START PROCESSOR: what writes records to Kafka, and was stopped by an error, goes on where it was; what waits
    tries again at once.
    """
    session.require_definer("START PROCESSOR")
    session.require_no_transaction("START PROCESSOR")
    relation = session.relation(statement.name, statement)
    deliveries = session.database.deliveries
    if not isinstance(deliveries, Deliveries) or deliveries.status(relation.id) is None:
        raise error_at(
            statement,
            statement.name.span,
            "CATALOG_TYPE_MISMATCH",
            f'nothing writes records of "{relation.shown}" to Kafka',
            hint="A processor is started by INSERT INTO … SELECT STREAM or TABLE.",
        )
    deliveries.restart(relation.id)
    return Result("START PROCESSOR")


def _target(statement: CreateProcessor) -> Name:
    return Name(statement.name, statement.name_span, schema=statement.schema)


def bind_processor(session: Session, statement: CreateProcessor) -> Bound:
    """What the statement would create.

    Errors of the binder, with their places; UNDEFINED_RELATION for a missing target.
    """
    query = bind_query(statement.query, readable(session.catalog), statement.text, session.dialect)
    session.notices.extend(query.notices)
    check_columns(query.columns, statement)
    name = _target(statement)
    declared = session.find(name)
    if declared is None and not session.variables.is_on("defaults.topic.autocreate"):
        raise error_at(
            statement,
            name.span,
            "UNDEFINED_RELATION",
            f'topic "{name.shown}" does not exist',
            hint="SET defaults.topic.autocreate=true lets a processor create its topic.",
        )
    rules = rules_of(session.dialect)
    kept = rules.records_kept(query)
    if kept is None:
        raise error_at(
            statement,
            statement.span,
            "FEATURE_NOT_SUPPORTED",
            "a processor that reads no records is not supported",
            hint="Write rows by INSERT … VALUES, or by a SELECT without STREAM and TABLE.",
        )
    if kept.compacted and not any(c.name == KEY_COLUMN for c in query.columns):
        raise error_at(
            statement,
            statement.span,
            "FEATURE_NOT_SUPPORTED",
            "a topic of a table without a key is not supported",
            hint="Select one: expression AS _key.",
        )
    if statement.key_format is not None and not any(c.name == KEY_COLUMN for c in query.columns):
        raise error_at(
            statement,
            statement.span,
            "INVALID_PARAMETER",
            f"the records have no key that could be stored as {statement.key_format}",
            hint="Select one: expression AS _key.",
        )
    _check_change(statement, "KEY", kept.key_format, statement.key_format)
    _check_change(statement, "VALUE", kept.value_format, statement.value_format)
    tree = rules.records_of(query if declared is None else _into(session, query, declared, statement))
    columns = tuple(Field(c.name, c.type, c.nullable) for c in tree.columns)
    required = tuple(c.name for c in query.columns if not c.nullable and c.name not in (KEY_COLUMN, RECORD_TIME))
    key_format = statement.key_format or kept.key_format
    topic = Topic(
        key_format,
        statement.value_format or kept.value_format or "AVRO",
        _partitions(session),
        required,
        compacted=kept.compacted,
    )
    if declared is not None and declared.topic is not None:
        _check_formats(statement, declared.topic, name)
        topic = replace(declared.topic, compacted=topic.compacted)
    relation = new_relation(
        session,
        statement,
        Processor,
        columns,
        depends_on=query.depends_on,
        watermarks=watermarks_of(tree, clocks),
        topic=topic,
    )
    return Bound(tree, relation)


def _check_formats(statement: CreateProcessor, declared: Topic, name: Name) -> None:
    """INVALID_PARAMETER for STORE with formats other than those that the topic was declared with."""
    for word, said, has in (
        ("KEY", statement.key_format, declared.key_format),
        ("VALUE", statement.value_format, declared.value_format),
    ):
        if said is not None and said != has:
            raise error_at(
                statement,
                name.span,
                "INVALID_PARAMETER",
                f'topic "{name.shown}" is declared with {word} AS {has}, not {said}',
                hint="Leave STORE out.",
            )


def _into(session: Session, query: BoundQuery, declared: Relation, statement: CreateProcessor) -> BoundQuery:
    """The query with the columns of an existing topic. The topic must be empty and without readers, as a processor is
    its only writer.

    READ_ONLY_RELATION, DEPENDENT_OBJECTS, DATATYPE_MISMATCH, UNDEFINED_COLUMN, NOT_NULL_VIOLATION.
    """
    span = statement.name_span
    if declared.topic is None or not isinstance(declared, Table) or declared.event_time is None:
        kind, what = (
            (declared.family, "is no topic")
            if declared.topic is None
            else ("topic", "has a processor that writes it, or had one")
        )
        raise error_at(statement, span, "READ_ONLY_RELATION", f'can\'t write {kind} "{declared.shown}": it {what}')
    if declared.id in query.depends_on:
        raise error_at(
            statement,
            span,
            "FEATURE_NOT_SUPPORTED",
            f'a processor that reads topic "{declared.shown}", which it writes, is not supported',
            hint="Write another topic.",
        )
    if session.catalog.dependents(declared.id) or _has_records(session, declared):
        raise error_at(
            statement,
            span,
            "FEATURE_NOT_SUPPORTED",
            f'a processor of topic "{declared.shown}", which has records or readers, is not supported',
            hint="Start the processor before its topic is written or read.",
        )
    own = {c.name: c for c in query.tree.columns}
    metadata = (RECORD_TIME, TOMBSTONE, RECORD_PARTITION, RECORD_OFFSET, RECORD_HEADERS)
    fields = [c for c in declared.columns if c.name not in metadata]
    for name in own:
        if name not in [c.name for c in fields] and name != RECORD_TIME:
            raise error_at(statement, span, "UNDEFINED_COLUMN", f'topic "{declared.shown}" has no field "{name}"')
    exprs: list[Scalar] = []
    for field in [*fields, _TIME]:
        column = own.get(field.name)
        if column is None or (column.nullable and field.name in declared.always_there):
            what = "has no" if column is None else "may have NULL as"
            raise error_at(
                statement,
                span,
                "NOT_NULL_VIOLATION",
                f'the query {what} field "{field.name}" of topic "{declared.shown}"',
            )
        if column.type != field.type:
            raise error_at(
                statement,
                span,
                "DATATYPE_MISMATCH",
                f'field "{field.name}" of topic "{declared.shown}" is of type {field.type.sql} '
                f"but expression is of type {column.type.sql}",
                hint="You will need to rewrite or cast the expression.",
            )
        exprs.append(read(column))
    outputs = tuple(
        Column(f"@{f.name}", f.name, e.type, e.nullable) for f, e in zip([*fields, _TIME], exprs, strict=True)
    )
    tree = Project(query.tree, outputs, tuple(exprs))
    return replace(query, tree=tree, columns=tuple(Field(c.name, c.type, c.nullable) for c in outputs))


def _has_records(session: Session, topic: Relation) -> bool:
    tree = exp.select("1").from_(table_tree(topic, None)).limit(1)
    return bool(fetch(session, bounded(session, tree, ""), newest=True).num_rows)


def _partitions(session: Session) -> int:
    return int(session.variables.get("defaults.topic.partitions"))


def _idle_us(session: Session) -> int | None:
    text = session.variables.get("defaults.topic.watermark_idle_timeout")
    return timeout_us(text) if text else None
