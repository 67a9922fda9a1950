"""DESCRIBE of a topic."""

from __future__ import annotations

import datetime as dt

from watersmeet.binder.context.rules import Described
from watersmeet.binder.dialects.lenses.records import HIDDEN
from watersmeet.catalog import (
    KEY_COLUMN,
    META_FACET,
    RECORD_HEADERS,
    RECORD_OFFSET,
    RECORD_PARTITION,
    RECORD_TIME,
    Relation,
    Topic,
)
from watersmeet.dialects.lenses.ddl import IDLE_TIMEOUT


def described(relation: Relation, topic: Topic) -> list[Described]:
    """The columns and metadata of a topic's records, as queries name them, then how they are kept and written."""
    fields = [(c.name, c.type.sql, c.name in relation.always_there) for c in relation.columns if c.name not in HIDDEN]
    key = [(c.name, c.type.sql, True) for c in relation.columns if c.name == KEY_COLUMN]
    time = relation.column(RECORD_TIME)
    place = [c.name for c in relation.columns if c.name in (RECORD_PARTITION, RECORD_OFFSET, RECORD_HEADERS)]
    return [
        *key,
        *fields,
        (f"{META_FACET}.timestamp", time.type.sql, not time.nullable),
        *[(name, relation.column(name).type.sql, name != RECORD_HEADERS) for name in place],
        ("key format", topic.key_format or ("computed" if key else "none"), None),
        ("value format", topic.value_format, None),
        ("partitions", str(topic.partitions), None),
        *_idle(relation),
        ("written by", relation.written_by, None),
        ("table description", "topic", None),
    ]


def _idle(relation: Relation) -> list[Described]:
    """The time after which a silent topic no longer holds back others, if it has one."""
    time = relation.event_time
    if time is None or time.idle_us is None:
        return []
    return [(IDLE_TIMEOUT, f"{dt.timedelta(microseconds=time.idle_us)}", None)]
