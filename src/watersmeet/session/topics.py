"""Topics and the processors that write them. Document 004: "Key decoder types", "Co-partitioning", "Joining and Grouping"."""

from __future__ import annotations

from typing import Final

from watersmeet.algebra.relations import Column, Project, Records
from watersmeet.algebra.relations import Relation as Tree
from watersmeet.algebra.trees import exactly, read
from watersmeet.catalog import ARRIVAL, KEY_COLUMN, RECORD_NUMBER, RECORD_TIME, TOMBSTONE, EventTime, Topic
from watersmeet.dialects.binder import BoundQuery, bind_query
from watersmeet.dialects.binder.records import key_parts
from watersmeet.dialects.statements import CreateProcessor, CreateTopic, Name
from watersmeet.session.context import Session, error_at
from watersmeet.session.ddl import add, check_columns, may_create, new_relation
from watersmeet.session.materialize import Bound, make, watermarks_of
from watersmeet.session.queries import readable
from watersmeet.session.result import Result
from watersmeet.types import BIGINT, BOOLEAN, TIMESTAMP, Field

_TIME: Final = Field(RECORD_TIME, TIMESTAMP, nullable=False)
_DELETED: Final = Field(TOMBSTONE, BOOLEAN, nullable=False)


def create_topic(session: Session, statement: CreateTopic) -> Result:
    """CREATE TABLE: a topic that is written by INSERT."""
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE TABLE")
    check_columns(statement.columns, statement)
    required = tuple(c.name for c in statement.columns if not c.nullable and c.name != KEY_COLUMN)
    columns = (*(Field(c.name, c.type, c.name != KEY_COLUMN) for c in statement.columns), _TIME, _DELETED)
    topic = Topic(statement.key_format, statement.value_format, statement.partitions or _partitions(session), required)
    add(session, new_relation(session, statement, "table", columns, append_only=True, event_time=EventTime(RECORD_TIME, 0), topic=topic,
                              defaults={RECORD_TIME: ARRIVAL, TOMBSTONE: "FALSE"}))
    return Result("CREATE TABLE")


def create_processor(session: Session, statement: CreateProcessor) -> Result:
    """INSERT INTO … SELECT STREAM or TABLE: makes the topic, and the processor that writes it."""
    session.require_writer("INSERT")
    session.require_no_transaction("a processor")
    bound = bind_processor(session, statement)
    may_create(session, statement, statement.name, statement.name_span, if_not_exists=False)
    make(session, bound)
    return Result("INSERT")


def bind_processor(session: Session, statement: CreateProcessor) -> Bound:
    """What the statement would make. Errors of the binder, with their places; UNDEFINED_RELATION for a target that is not there."""
    query = bind_query(statement.query, readable(session.catalog), statement.text, session.dialect)
    session.notices.extend(query.notices)
    check_columns(query.columns, statement)
    name = Name(statement.name, statement.name_span, schema=statement.schema)
    if session.find(name) is None and not session.variables.is_on("defaults.topic.autocreate"):
        raise error_at(statement, name.span, "UNDEFINED_RELATION", f'topic "{name.shown}" does not exist',
                       hint="SET defaults.topic.autocreate=true lets a processor make its topic.")
    if query.nature == "table" and not any(c.name == KEY_COLUMN for c in query.columns):
        raise error_at(statement, statement.span, "FEATURE_NOT_SUPPORTED", "a topic of a table without key is not supported",
                       hint="Select one: expression AS _key.")
    tree = _records(query)
    columns = tuple(Field(c.name, c.type, c.nullable) for c in tree.columns)
    required = tuple(c.name for c in query.columns if not c.nullable and c.name not in (KEY_COLUMN, RECORD_TIME))
    key_format = statement.key_format or query.layout.key_format
    topic = Topic(key_format, statement.value_format or "AVRO", _partitions(session), required, compacted=query.nature == "table")
    relation = new_relation(session, statement, "materialized view", columns, depends_on=query.depends_on, watermarks=watermarks_of(tree),
                            topic=topic)
    return Bound(tree, relation)


def _records(query: BoundQuery) -> Tree:
    """The changes of a query as records: of a table by its key, each a value or, where that is gone, none."""
    tree = query.tree
    facets = {c.name: c for c in tree.columns if c.name in (KEY_COLUMN, RECORD_TIME)}
    made = Column("@deleted", TOMBSTONE, BOOLEAN, nullable=False), Column("@offset", RECORD_NUMBER, BIGINT, nullable=False)
    kept = tuple(c.id for c in facets.values())
    if query.nature == "stream":
        return Records(tree, None, kept, made)
    key = facets.get(KEY_COLUMN)
    parts = [] if key is None else key_parts(read(key))
    columns = tuple(Column(f"@key{i}", f"key{i}", p.type, p.nullable) for i, p in enumerate(parts))
    below = Project(tree, (*tree.columns, *columns), (*map(read, tree.columns), *parts))
    records = Records(below, tuple(c.id for c in columns), (*kept, *(c.id for c in columns)), made)
    return exactly(records, [c for c in records.columns if c not in columns])


def _partitions(session: Session) -> int:
    return int(session.variables.get("defaults.topic.partitions"))
