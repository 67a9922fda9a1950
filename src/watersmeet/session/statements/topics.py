"""Topics: CREATE TABLE of Lenses, topics in Kafka (settings `kafka.*` and `topic.*`), SHOW TOPICS and PROCESSORS.

Lenses, "Joins", "Key decoder types", "Co-partitioning".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar, cast

from watersmeet.algebra.timewindows import timeout_us
from watersmeet.catalog import (
    ARRIVAL,
    KEY_COLUMN,
    RECORD_HEADERS,
    RECORD_OFFSET,
    RECORD_PARTITION,
    RECORD_TIME,
    TOMBSTONE,
    EventTime,
    MessageFormat,
    Processor,
    Relation,
    Topic,
    TopicTable,
    TopicWriter,
)
from watersmeet.catalog.parts import Encoding
from watersmeet.connectors.base.targets import dead_letter_delivery
from watersmeet.connectors.kafka import cluster
from watersmeet.connectors.kafka.client import START, TOPIC_ID, kafka_options
from watersmeet.connectors.kafka.cluster import is_hashed
from watersmeet.connectors.registry import check_connector, connector_of
from watersmeet.database.committing import own_transaction
from watersmeet.database.definitions import add, check_columns, may_create, new_relation
from watersmeet.database.filling import fill
from watersmeet.database.sessions.context import Session, error_at, located
from watersmeet.database.sessions.result import Result, text_result, typed_result
from watersmeet.database.transaction import if_committed
from watersmeet.dialects.schemas import schema_meant
from watersmeet.dialects.tree.definitions import CreateProcessor, CreateTopic
from watersmeet.dialects.tree.statements import Name
from watersmeet.dialects.variables import KAFKA_PROPERTIES, TOPIC_CONFIGURATION
from watersmeet.errors import Error, error
from watersmeet.formats.decoders import open_decoder
from watersmeet.formats.payloads import WINDOW, split_window
from watersmeet.planner import compile_connector_table
from watersmeet.session.status import database_status
from watersmeet.sinkwriters.writers import SinkWriters, begin
from watersmeet.values.types import BIGINT, BOOLEAN, INTEGER, JSONB, TIMESTAMP, VARCHAR, Field, Schema

#: Settings that connector kafka calls by another name, with the name of its option.
_OPTIONS: Final = {"bootstrap.servers": "properties.bootstrap.server"}

_ON_ERROR: Final = {"continue": "skip", "fail": "stop", "dlq": "skip"}


def connector_for(session: Session, topic: str) -> dict[str, str]:
    """The options of connector kafka for a topic, from the settings; empty if topics are in the database."""
    settings = session.variables
    if not settings.get("kafka.bootstrap.servers") or session.connectors != "used":
        return {}
    properties = {name: settings.get(f"kafka.{name}") for name in KAFKA_PROPERTIES}
    return {
        "connector": "kafka",
        "topic": topic,
        **{_OPTIONS.get(name, f"properties.{name}"): value for name, value in properties.items() if value},
    }


def format_for(session: Session, key_format: str, value_format: str) -> MessageFormat:
    """The formats of the records of a topic of Kafka. Raises INVALID_PARAMETER for AVRO without a registry."""
    settings = session.variables
    options = dict(session.semantics.message_options)
    window, key_format = split_window(key_format)
    if window is not None:
        options[WINDOW] = window
    registry = settings.get("kafka.schema.registry.url")
    if registry:
        options["schema.registry"] = registry
        for part in ("username", "password"):
            if value := settings.get(f"kafka.schema.registry.{part}"):
                options[f"schema.registry.{part}"] = value
    elif "AVRO" in (key_format, value_format):
        raise error(
            "INVALID_PARAMETER",
            "a topic of Kafka with AVRO needs a schema registry",
            hint="Write SET kafka.schema.registry.url = 'http://host:8081'.",
        )
    return MessageFormat(
        encoding=cast("Encoding", value_format.lower()),
        key_encoding=cast("Encoding", key_format.lower()),
        options=options,
    )


def setting(session: Session, topic: str, name: str) -> str:
    """The value of a setting for a topic, otherwise the default for all topics."""
    own = session.variables.get(f"topic.{topic}.{name}")
    return own or session.variables.get(f"defaults.topic.{name}")


def reading_options(session: Session) -> dict[str, str]:
    """Further options of connector kafka: the start of reading, and the treatment of undecodable records."""
    return {
        "scan.startup.mode": session.variables.get("auto.offset.reset"),
        "on_error": _ON_ERROR[session.variables.get("error.policy")],
    }


def dead_letter_topic(
    session: Session, statement: CreateTopic | CreateProcessor, connector: dict[str, str]
) -> dict[str, str]:
    """The options of the topic for records that can't be decoded, from the settings; empty if there is none.

    Raises INVALID_PARAMETER if the settings don't name one.
    """
    if session.variables.get("error.policy") != "dlq":
        return {}
    name = session.variables.get("dead.letter.queue")
    if not name or name == connector["topic"]:
        raise error_at(
            statement,
            statement.name_span,
            "INVALID_PARAMETER",
            "error.policy 'dlq' needs a dead-letter topic"
            if not name
            else f'topic "{name}" can\'t be its own dead-letter topic',
            hint="Write SET dead.letter.queue = 'topic'.",
        )
    return {**connector, "topic": name}


def ensure_topic(
    session: Session,
    statement: CreateTopic | CreateProcessor,
    connector: dict[str, str],
    *,
    partitions: int | None,
    replication: int | None = None,
    compacted: bool | None = None,
    is_table: bool = False,
) -> tuple[int, dict[str, str]]:
    """Creates the topic of a statement in Kafka, or uses an existing one unchanged.

    Returns its number of partitions and, if it was created, further options of connector kafka, with which it is read
    from its start. partitions, replication, compacted: by default, those of the settings. is_table: its records are the
    changes of a table, so it is compacted unless a setting forbids it. Raises INVALID_PARAMETER if it exists with
    another number of partitions than the statement requires, and errors of the connection.
    """
    name, properties = connector["topic"], kafka_options(connector).properties
    own = session.variables.get(f"topic.{name}.partitions")
    asked = partitions or (int(own) if own else None)
    there = cluster.partitions_of(properties, name)
    if there is None:
        wanted = asked or int(setting(session, name, "partitions"))
        copies = replication or int(setting(session, name, "replication"))
        found = {n: value for n in TOPIC_CONFIGURATION if (value := setting(session, name, n))}
        if compacted is not None:
            found["cleanup.policy"] = "compact" if compacted else "delete"
        elif is_table:
            found.setdefault("cleanup.policy", "compact")
        topic_id = cluster.create_topic(properties, name, wanted, copies, found)
        if topic_id is not None:
            return wanted, {START: json.dumps(dict.fromkeys(range(wanted), 0)), TOPIC_ID: topic_id}
        there = cluster.partitions_of(properties, name)
    if there is None:
        raise error("RUNTIME_UNAVAILABLE", f'topic "{name}" is created and deleted by somebody else')
    if asked is not None and asked != there:
        raise error_at(
            statement,
            statement.name_span,
            "INVALID_PARAMETER",
            f'topic "{name}" exists in Kafka with {there} partitions, not {asked}',
            hint=f"Leave partitions out, or write partitions={there}.",
        )
    session.notice(f'topic "{name}" exists in Kafka, with {there} partitions: it is used as it is')
    return there, {}


def undone_by_rollback(session: Session, connector: dict[str, str]) -> Callable[[], None]:
    """Deletes a topic that was created for a statement, if its transaction is rolled back.

    Returns a function that deletes the topic immediately, for the case that the statement itself fails.
    """
    delete = _deletion(session, connector)
    transaction = session.transaction
    if transaction is not None:
        transaction.ends.callback(lambda: None if transaction.committed else delete())
    return delete


def drop_topics(session: Session, relations: Iterable[Relation]) -> None:
    """Deletes the topics of dropped relations from Kafka; in a transaction, when it commits."""
    for relation in relations:
        connector = topic_of(relation)
        if not connector:
            continue
        delete = _deletion(session, connector)
        transaction = session.transaction
        if transaction is None:
            delete()
        else:
            transaction.ends.callback(if_committed, transaction, delete)


def _deletion(session: Session, connector: dict[str, str]) -> Callable[[], None]:
    def delete() -> None:
        try:
            cluster.delete_topic(kafka_options(connector).properties, connector["topic"])
        except Error as err:
            session.notice(f'topic "{connector["topic"]}" stays in Kafka: {err.message}')

    return delete


def topic_of(relation: Relation) -> dict[str, str]:
    """The options of connector kafka for a topic that is in Kafka; empty for other relations."""
    return relation.connector if isinstance(relation, TopicTable) else {}


TIME: Final = Field(RECORD_TIME, TIMESTAMP, nullable=False)
_DELETED: Final = Field(TOMBSTONE, BOOLEAN, nullable=False)

#: Columns of Kafka topics with the metadata that brokers add to a record.
_PLACE: Final = (Field(RECORD_PARTITION, INTEGER), Field(RECORD_OFFSET, BIGINT), Field(RECORD_HEADERS, JSONB))

#: The part of a Kafka message from which each column is read.
MESSAGE_PARTS: Final = {
    KEY_COLUMN: "key",
    RECORD_TIME: "timestamp",
    TOMBSTONE: "tombstone",
    RECORD_PARTITION: "partition",
    RECORD_OFFSET: "offset",
    RECORD_HEADERS: "headers",
}

#: Notices for properties without effect on a topic in the database.
_REPLICATION: Final = "replication has no effect: a topic is in the database, once"

_COMPACTED: Final = (
    "compacted has no effect: a topic keeps all its records, and as a table it has the last one of each key"
)


def create_topic(session: Session, statement: CreateTopic) -> Result:
    """CREATE TABLE: a topic written by INSERT.

    With a connection to Kafka, it is created in Kafka. OR REPLACE keeps the topic in Kafka and its records, and reads
    it again.
    """
    with own_transaction(session):
        _create(session, with_whole_name(session, statement))
    return Result("CREATE TABLE")


Created = TypeVar("Created", CreateProcessor, CreateTopic)


def with_whole_name(session: Session, statement: Created) -> Created:
    """The statement, in which the name of the topic contains the dots if the part before the first dot is not a
    schema.
    """
    if statement.schema is None or schema_meant(statement.schema, session.catalog) is not None:
        return statement
    return replace(statement, name=f"{statement.schema}.{statement.name}", schema=None)


def _create(session: Session, statement: CreateTopic) -> None:
    connector = connector_for(session, statement.name)
    replaced = session.find(Name(statement.name, statement.name_span, schema=statement.schema))
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return
    if statement.replaces and replaced is not None and topic_of(replaced):
        session.notice(f"{replaced.title} stays in Kafka with its records{': they are read anew' if connector else ''}")
    check_columns(statement.columns, statement)
    required = tuple(c.name for c in statement.columns if not c.nullable and c.name != KEY_COLUMN)
    if connector:
        add_topic(
            session,
            statement,
            connector,
            KafkaTopic(
                statement.columns,
                statement.key_format,
                statement.value_format,
                required,
                statement.key_format,
                statement.partitions,
                statement.replication,
                statement.compacted,
                idle_us=statement.idle_us,
            ),
        )
        return
    if statement.compacted:
        session.notice(_COMPACTED)
    if statement.replication is not None:
        session.notice(_REPLICATION)
    partitions = statement.partitions or partitions_wanted(session)
    topic = Topic(statement.key_format, statement.value_format, partitions, required)
    fields = tuple(replace(c, nullable=c.nullable and c.name != KEY_COLUMN) for c in statement.columns)
    add_stored(session, statement, fields, topic, statement.idle_us)


def add_stored(
    session: Session,
    statement: CreateProcessor | CreateTopic,
    fields: Schema,
    topic: Topic,
    idle_us: int | None = None,
) -> TopicTable:
    """Creates a topic in the database. fields: its key and its fields. idle_us: None: from the settings."""
    columns = (*(Field(c.name, c.type, c.nullable or c.name != KEY_COLUMN) for c in fields), TIME, _DELETED)
    made = new_relation(
        session,
        statement,
        TopicTable,
        columns,
        append_only=True,
        event_time=EventTime(RECORD_TIME, 0, idle_us=idle_us or _idle_us(session)),
        topic=topic,
        defaults={RECORD_TIME: ARRIVAL, TOMBSTONE: "FALSE"},
    )
    add(session, made)
    return made


@dataclass(frozen=True)
class KafkaTopic:
    """A topic of Kafka to read. columns: its key, then its fields. required: the fields that every INSERT must have.
    shown_key_format: the format by which joins compare keys; None for computed keys. partitions, replication,
    compacted: those of the statement; None for those of the settings. is_table: its records are the changes of a table.
    """

    columns: Schema
    key_format: str
    value_format: str
    required: tuple[str, ...]
    shown_key_format: str | None
    partitions: int | None = None
    replication: int | None = None
    compacted: bool | None = None
    is_table: bool = False
    idle_us: int | None = None


def add_topic(
    session: Session, statement: CreateTopic | CreateProcessor, connector: dict[str, str], wanted: KafkaTopic
) -> Relation:
    """Adds a topic whose rows are the records in Kafka, where it is created if it is missing. Any field may be missing,
    because other programs also write the topic.
    """
    fields = tuple(replace(c, nullable=c.nullable or c.name != KEY_COLUMN) for c in wanted.columns)
    columns = (*fields, TIME, _DELETED, *_PLACE)
    with located(statement, statement.name_span):
        message_format = format_for(session, wanted.key_format, wanted.value_format)
        open_decoder(columns, (), message_format, MESSAGE_PARTS)
        partitions, created = ensure_topic(
            session,
            statement,
            connector,
            partitions=wanted.partitions,
            replication=wanted.replication,
            compacted=wanted.compacted,
            is_table=wanted.is_table,
        )
    delete = undone_by_rollback(session, connector) if created else lambda: None
    by_hash = bool(created) or is_hashed(kafka_options(connector).properties, connector["topic"])
    if not by_hash:
        session.notice(
            f'topic "{connector["topic"]}" is not partitioned by murmur2 of its keys: joins repartition its records'
        )
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
                event_time=EventTime(RECORD_TIME, 0, idle_us=wanted.idle_us or _idle_us(session)),
                topic=Topic(
                    wanted.shown_key_format,
                    wanted.value_format,
                    partitions,
                    wanted.required,
                    by_hash=by_hash,
                    dead_letters=dead_letters.get("topic", ""),
                ),
                defaults={RECORD_TIME: ARRIVAL, TOMBSTONE: "FALSE"},
            )
        )
        if (delivery := dead_letter_delivery(relation)) is not None:
            connector_of(delivery).check(delivery)
            begin(session.database, relation.id, delivery.generation, snapshot=False)
        fill(session, relation, compile_connector_table(relation))
        undone.pop_all()
    return session.catalog.relations[relation.id]


def partitions_wanted(session: Session) -> int:
    """The number of partitions of topics whose statement does not have one."""
    return int(session.variables.get("defaults.topic.partitions"))


def _idle_us(session: Session) -> int | None:
    text = session.variables.get("defaults.topic.watermark_idle_timeout")
    return timeout_us(text) if text else None


_TOPICS: Final[Schema] = (
    Field("Name", VARCHAR),
    Field("Key Format", VARCHAR),
    Field("Value Format", VARCHAR),
    Field("Partitions", BIGINT),
    Field("Written By", VARCHAR),
)


def topics(relations: Iterable[Relation]) -> Result:
    """A row for each relation. Relations of other dialects have no formats."""
    return typed_result("SHOW", _TOPICS, [(r.name, *_facts(r)) for r in relations])


def _facts(relation: Relation) -> tuple[Any, ...]:
    topic = relation.topic
    if topic is None:
        return None, None, None, relation.written_by
    return topic.key_format, topic.value_format, topic.partitions, relation.written_by


def processors(session: Session, wanted: Callable[[str], bool]) -> Result:
    """A row for each processor. The first one of a topic has the topic's name."""
    status = database_status(session)
    rows = [
        (
            v.name,
            "failed" if v.error else undelivered(session, v.id) or status.health_of(v).state,
            relation.sql,
        )
        for v in status.views
        if isinstance(relation := session.catalog.relations[v.id], (Processor, TopicWriter)) and wanted(v.name)
    ]
    return text_result("SHOW", ("Name", "State", "Sql"), rows)


def undelivered(session: Session, relation_id: str) -> str | None:
    """The reason why the records of a processor, or the dead letters of a topic, are not written to Kafka; None if they
    are written, or the relation does not exist.
    """
    deliveries = session.database.service(SinkWriters)
    status = None if deliveries is None else deliveries.status(relation_id)
    if status is None or status.problem is None:
        return None
    goes_on = f"; START PROCESSOR {session.catalog.relations[relation_id].shown} goes on"
    return f"{status.state}: {status.problem}{goes_on if status.state == 'stopped' else ''}"
