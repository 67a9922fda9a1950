"""SHOW TOPICS, TABLES and PROCESSORS, DESCRIBE TABLE of Lenses: topics, what keeps their records, what writes them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from typing import Any, Final

from watersmeet.catalog import KEY_COLUMN, META_FACET, RECORD_NUMBER, RECORD_TIME, TOMBSTONE, Relation
from watersmeet.dialects.lenses.ddl import IDLE_TIMEOUT
from watersmeet.session.access.context import Session
from watersmeet.session.access.result import Result, text_result, typed_result
from watersmeet.session.services.status import database_status
from watersmeet.types import BIGINT, VARCHAR, Field, Schema

_TOPICS: Final[Schema] = (
    Field("Name", VARCHAR),
    Field("Key Format", VARCHAR),
    Field("Value Format", VARCHAR),
    Field("Partitions", BIGINT),
    Field("Written By", VARCHAR),
)

#: A row of DESCRIBE: name, type, whether it is never NULL.
Described = tuple[str, str, bool | None]


def topics(relations: Iterable[Relation]) -> Result:
    """A row for each relation; what is of another dialect has no formats."""
    return typed_result("SHOW", _TOPICS, [(r.name, *_facts(r)) for r in relations])


def _facts(relation: Relation) -> tuple[Any, ...]:
    topic = relation.topic
    if topic is None:
        return None, None, None, relation.kind
    return topic.key_format, topic.value_format, topic.partitions, _writer(relation)


def _writer(relation: Relation) -> str:
    if relation.role == "processor":
        return "processor"
    return "stopped processor" if RECORD_NUMBER in [c.name for c in relation.columns] else "INSERT"


def processors(session: Session, wanted: Callable[[str], bool]) -> Result:
    """A row for each processor, by the name of its topic."""
    status = database_status(session)
    rows = [
        (
            v["name"],
            "failed" if v["error"] else status["state"] if v["ready"] else "filling",
            session.catalog.relations[v["id"]].sql,
        )
        for v in status["views"]
        if v["kind"] == "processor" and wanted(v["name"])
    ]
    return text_result("SHOW", ("Name", "State", "Sql"), rows)


def required(relation: Relation) -> tuple[str, ...]:
    """The columns that every record of a topic with a value has; of what is no topic none."""
    return () if relation.topic is None else (*relation.topic.required, KEY_COLUMN)


def described(relation: Relation) -> list[Described]:
    """The facets of a topic's records, as queries name them, then how they are kept and written."""
    assert relation.topic is not None
    fields = [
        (c.name, c.type.sql, c.name in required(relation))
        for c in relation.columns
        if c.name not in (KEY_COLUMN, RECORD_TIME, TOMBSTONE, RECORD_NUMBER)
    ]
    key = [(c.name, c.type.sql, True) for c in relation.columns if c.name == KEY_COLUMN]
    time = relation.column(RECORD_TIME)
    topic = relation.topic
    return [
        *key,
        *fields,
        (f"{META_FACET}.timestamp", time.type.sql, not time.nullable),
        ("key format", topic.key_format or ("computed" if key else "none"), None),
        ("value format", topic.value_format, None),
        ("partitions", str(topic.partitions), None),
        *_idle(relation),
        ("written by", _writer(relation), None),
        ("table description", "topic", None),
    ]


def _idle(relation: Relation) -> list[Described]:
    """The time after which a silent topic holds nobody back, if it has one."""
    time = relation.event_time
    if time is None or time.idle_us is None:
        return []
    return [(IDLE_TIMEOUT, f"{dt.timedelta(microseconds=time.idle_us)}", None)]
