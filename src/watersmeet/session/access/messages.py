"""What a topic of Kafka has now, for queries that end."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from watersmeet.algebra.bounded import TopicScan
from watersmeet.catalog import Relation, Source
from watersmeet.connectors.base.deadletters import DeadLetterWriter
from watersmeet.connectors.base.sources import Unavailable
from watersmeet.connectors.kafka.reading import read_topic
from watersmeet.connectors.kafka.source import KafkaSource, begun, from_place
from watersmeet.errors import error
from watersmeet.session.access.context import Session
from watersmeet.types import Field


def messages_now(session: Session, relation: Relation, topic: TopicScan) -> pa.Table:
    """The messages that are committed in a topic now, as rows with the columns that `topic` names.

    A notice says how many can't be decoded. RUNTIME_UNAVAILABLE, CONNECTOR_OPTION, UNDEFINED_OBJECT.
    """
    assert isinstance(relation, Source), "the binder reads no other relation so"
    names = [c.name for c in topic.outputs]
    read = replace(
        relation,
        columns=tuple(c for c in relation.columns if c.name in names or c.name not in relation.message_parts),
        message_parts={c: part for c, part in relation.message_parts.items() if c in names},
        connector=begun(from_place(relation.connector, topic.start, topic.shards)),
    )
    source, aside = KafkaSource(read), DeadLetterWriter(None)
    columns = tuple(Field(c.name, c.type, c.nullable) for c in topic.outputs)
    try:
        rows = read_topic(source.now(), source.spec(), columns, aside)
    except Unavailable as cause:
        raise error("RUNTIME_UNAVAILABLE", str(cause), hint="Try again.") from cause
    if aside.first is not None:
        session.notice(f"{relation.title}: {_left_out(aside)}")
    return rows


def _left_out(aside: DeadLetterWriter) -> str:
    first = aside.first
    assert first is not None
    place = f"partition {first['partition']}, offset {first['offset']}: {first['reason']}"
    count = "1 message is" if aside.rows == 1 else f"{aside.rows} messages are"
    return f"{count} left out (the first: {place})"
