"""SHOW TOPICS, TABLES and PROCESSORS of Lenses: topics, what stores their records, and what writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from watersmeet.catalog import Processor, Relation, TopicWriter
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.result import Result, text_result, typed_result
from watersmeet.session.services.status import database_status
from watersmeet.sinkwriters.writers import SinkWriters
from watersmeet.values.types import BIGINT, VARCHAR, Field, Schema

_TOPICS: Final[Schema] = (
    Field("Name", VARCHAR),
    Field("Key Format", VARCHAR),
    Field("Value Format", VARCHAR),
    Field("Partitions", BIGINT),
    Field("Written By", VARCHAR),
)


def topics(relations: Iterable[Relation]) -> Result:
    """A row for each relation. Those of other dialects have no formats."""
    return typed_result("SHOW", _TOPICS, [(r.name, *_facts(r)) for r in relations])


def _facts(relation: Relation) -> tuple[Any, ...]:
    topic = relation.topic
    if topic is None:
        return None, None, None, relation.written_by
    return topic.key_format, topic.value_format, topic.partitions, relation.written_by


def processors(session: Session, wanted: Callable[[str], bool]) -> Result:
    """A row for each processor. The first one of a topic has its name."""
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
    """Why the topic of a processor does not get its records in Kafka, or the dead-letter topic of a topic its records;
    None if it does, or there is none.
    """
    deliveries = session.database.service(SinkWriters)
    status = None if deliveries is None else deliveries.status(relation_id)
    if status is None or status.problem is None:
        return None
    goes_on = f"; START PROCESSOR {session.catalog.relations[relation_id].shown} goes on"
    return f"{status.state}: {status.problem}{goes_on if status.state == 'stopped' else ''}"
