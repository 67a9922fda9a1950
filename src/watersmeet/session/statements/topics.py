"""Topics: CREATE TABLE. Lenses, "Joins", "Key decoder types", "Co-partitioning"."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

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
    Relation,
    Topic,
    TopicTable,
)
from watersmeet.connectors.base.deliveries import dead_letter_delivery
from watersmeet.connectors.base.targets import connector_of
from watersmeet.connectors.kafka.cluster import is_hashed
from watersmeet.connectors.kafka.options import kafka_options
from watersmeet.connectors.registry import check_connector
from watersmeet.database.committing import own_transaction
from watersmeet.database.definitions import add, check_columns, may_create, new_relation
from watersmeet.database.filling import fill
from watersmeet.database.sessions.context import Session, located
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.tree.definitions import CreateProcessor, CreateTopic
from watersmeet.dialects.tree.statements import Name
from watersmeet.formats.decoders import open_decoder
from watersmeet.planner import compile_connector_table
from watersmeet.session.access.kafkatopics import (
    connector_for,
    dead_letter_topic,
    ensure_topic,
    format_for,
    reading_options,
    topic_of,
    undone_by_rollback,
)
from watersmeet.sinkwriters.writers import begin
from watersmeet.values.types import BIGINT, BOOLEAN, INTEGER, JSONB, TIMESTAMP, Field, Schema

TIME: Final = Field(RECORD_TIME, TIMESTAMP, nullable=False)
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
#: What a topic in the database says of properties that change nothing.
_REPLICATION: Final = "replication has no effect: a topic is in the database, once"
_COMPACTED: Final = (
    "compacted has no effect: a topic keeps all its records, and as a table it has the last one of each key"
)


def create_topic(session: Session, statement: CreateTopic) -> Result:
    """CREATE TABLE: a topic written by INSERT. With a connection to Kafka it is a topic there.

    With OR REPLACE a topic of Kafka stays there with its records, and is read anew.
    """
    with own_transaction(session):
        _create(session, statement)
    return Result("CREATE TABLE")


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
    columns = (*(Field(c.name, c.type, c.name != KEY_COLUMN) for c in statement.columns), TIME, _DELETED)
    partitions = statement.partitions or partitions_wanted(session)
    topic = Topic(statement.key_format, statement.value_format, partitions, required)
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


@dataclass(frozen=True)
class KafkaTopic:
    """A topic of Kafka that is to be read. columns: its key, then its fields. required: the fields that INSERT always
    gives. shown_key_format: by which joins compare keys; None for a computed one. partitions, replication, compacted:
    as the statement says, None where the settings do. is_table: its records are the changes of a table.
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
    """Adds a topic whose rows are the records in Kafka, and creates it there if it is missing. Others write there, too,
    so any field may be missing.
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
    """Of topics whose statement does not say how many partitions they have."""
    return int(session.variables.get("defaults.topic.partitions"))


def _idle_us(session: Session) -> int | None:
    text = session.variables.get("defaults.topic.watermark_idle_timeout")
    return timeout_us(text) if text else None
