"""Processors: the queries that write topics. Lenses, "Joins", "Key decoder types", "Joining and Grouping"."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Final

import pyarrow as pa
from sqlglot import exp

from watersmeet.algebra.nodes import Column, Project
from watersmeet.algebra.trees import read
from watersmeet.binder import BoundQuery
from watersmeet.binder.dialects import rules_of
from watersmeet.catalog import (
    KEY_COLUMN,
    RECORD_HEADERS,
    RECORD_NUMBER,
    RECORD_OFFSET,
    RECORD_PARTITION,
    RECORD_TIME,
    TOMBSTONE,
    Processor,
    Relation,
    Table,
    Topic,
    TopicTable,
    TopicWriter,
    turned_into,
)
from watersmeet.connectors.base.targets import writer_delivery
from watersmeet.connectors.registry import connector_of
from watersmeet.database.committing import own_transaction
from watersmeet.database.definitions import check_columns, may_create, new_relation, remove
from watersmeet.database.filling import Bound, stop_feeding
from watersmeet.database.reading import batch_query, fetch, readable, table_tree
from watersmeet.database.rebuild import bound, clocks_of, statement_of, tree_of
from watersmeet.database.sessions.context import Session, error_at, located, sentence, undefined_relation
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.schemas import schema_meant
from watersmeet.dialects.tree.definitions import CreateProcessor
from watersmeet.dialects.tree.statements import Name, StartProcessor, StopProcessor
from watersmeet.errors import Error
from watersmeet.formats.payloads import split_window, window_prefix
from watersmeet.maintenance.maintaining import changes_from_now, copy, write
from watersmeet.maintenance.views import make
from watersmeet.session.statements.topics import (
    TIME,
    KafkaTopic,
    add_stored,
    add_topic,
    connector_for,
    partitions_wanted,
    setting,
    with_whole_name,
)
from watersmeet.sinkwriters.writers import SinkWriters, begin
from watersmeet.values.types import BIGINT, BYTEA, INTEGER, VARCHAR, Field

#: The formats into which STORE can convert records. Lenses, "Serialization formats".
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
#: Formats of a single value, and the types of these values.
_SCALARS: Final = {"INT": INTEGER, "LONG": BIGINT, "STRING": VARCHAR, "BYTES": BYTEA}
#: The formats of computed keys, by their types.
_KEYS: Final = {"smallint": "INT", "integer": "INT", "bigint": "LONG", "varchar": "STRING", "bytea": "BYTES"}
#: Columns that a query does not compute.
_METADATA: Final = (RECORD_TIME, TOMBSTONE, RECORD_NUMBER, RECORD_PARTITION, RECORD_OFFSET, RECORD_HEADERS)


def create_processor(session: Session, statement: CreateProcessor) -> Result:
    """INSERT INTO … SELECT STREAM or TABLE: creates the topic, if it is missing, and the processor that writes it."""
    session.require_definer("INSERT")
    statement = with_whole_name(session, statement)
    topic = session.find(_target(statement))
    if topic is not None and _has_one_writer(topic):
        with own_transaction(session):
            _share(session, topic, statement)
            return create_processor(session, statement)
    bound = bind_processor(session, statement)
    if topic is None:
        may_create(session, statement, statement.name, statement.name_span, if_not_exists=False)
        connector = connector_for(session, statement.name)
        if not connector:
            make(session, bound)
            return Result("INSERT")
    with own_transaction(session):
        if topic is None:
            topic = _created_in_kafka(session, statement, bound.relation, connector)
        if topic.connector or _is_in_use(session, topic):
            _make_writer(session, statement, bound, topic)
        else:
            remove(session, {topic.id})
            make(session, bound)
    return Result("INSERT")


def _has_one_writer(topic: Relation) -> bool:
    """Whether the records of a topic are the rows of its processor, which may have been stopped."""
    return isinstance(topic, Processor) or (
        isinstance(topic, TopicTable) and not topic.connector and topic.event_time is None
    )


def _is_in_use(session: Session, topic: Relation) -> bool:
    """Whether a topic in the database has records, readers or processors."""
    writers = any(r.feeds == topic.id for r in session.catalog.relations.values())
    return writers or bool(session.catalog.dependents(topic.id)) or bool(_records(session, topic)[0].num_rows)


def _share(session: Session, old: Relation, statement: CreateProcessor) -> None:
    """Replaces a topic that only its processor could write by a topic with the same records that others can write too.
    The processor continues after these records.

    Readers that the open transaction created are created again. Raises DEPENDENT_OBJECTS for other readers.
    """
    assert old.topic is not None
    readers = _readers(session, old, statement)
    remove(session, {r.id for r in readers})
    rows, upto = _records(session, old)
    if isinstance(old, Processor):
        session.put(turned_into(TopicWriter, old))
    else:
        remove(session, {old.id})
    fields = tuple(c for c in old.columns if c.name not in _METADATA)
    topic = add_stored(session, statement_of(old), fields, old.topic)
    if isinstance(old, Processor):
        session.put(turned_into(TopicWriter, old, feeds=topic.id))
    with session.database.guard:
        write(session, old, topic, rows, upto)
    ids = {old.id: topic.id}
    for reader in readers:
        ids[reader.id] = session.catalog.new_id(type(reader))
        depends_on = tuple(ids.get(i, i) for i in reader.depends_on)
        redirected = replace(reader, id=ids[reader.id], depends_on=depends_on, known={})
        tree = tree_of(redirected, readable(session.catalog), 0)
        again = Bound(tree, replace(redirected, watermarks=clocks_of(tree)))
        if reader.feeds:
            _make_feeding(session, again, session.catalog.relations[reader.feeds])
        else:
            make(session, again)


def _records(session: Session, topic: Relation) -> tuple[pa.Table, int]:
    """The records of a topic, and a commit that its content equals. Later commits are kept until the transaction
    ends.
    """
    changes = changes_from_now(session)
    names = [c.name for c in topic.columns]
    tree = exp.select(*(exp.column(n, quoted=True) for n in names)).from_(table_tree(topic, None))
    while True:
        rows = fetch(session, batch_query(session, tree, ""), newest=True)
        if not changes.take(topic.id):
            return rows.rename_columns(names), changes.taken


def _readers(session: Session, topic: Relation, statement: CreateProcessor) -> list[Processor | TopicWriter]:
    """The processors that read a topic which gets another writer, in order of creation. Raises DEPENDENT_OBJECTS for
    readers that the open transaction has not created. A check of a script has no transaction around the script.
    """
    made = frozenset() if session.transaction is None else session.transaction.definitions.made
    readers = session.catalog.dependents(topic.id)
    again = [r for r in readers if isinstance(r, (Processor, TopicWriter))]
    found = [r for r in again if r.id in made or session.connectors == "checked"]
    lasting = [r for r in readers if r not in found]
    if lasting:
        raise error_at(
            statement,
            statement.name_span,
            "DEPENDENT_OBJECTS",
            f"{topic.title} can't get another writer, because it is read",
            detail=sentence(f"{r.reader} reads it" for r in lasting),
            hint="Stop or drop its readers first. A topic that CREATE TABLE declares can get writers at any time.",
        )
    return found


def _make_writer(session: Session, statement: CreateProcessor, bound: Bound, topic: Relation) -> None:
    """Creates a processor that writes a topic with other writers. The records for a topic of Kafka are delivered."""
    writer = turned_into(TopicWriter, bound.relation, name=_free_name(session, topic), feeds=topic.id)
    if not topic.connector:
        _make_feeding(session, replace(bound, relation=writer), topic)
        if writer.name != topic.name:
            session.notice(f'processor "{writer.shown}" writes {topic.title}, as others do')
        return
    with located(statement, statement.name_span):
        delivery = writer_delivery(writer, topic)
        connector_of(delivery).check(delivery)
    make(session, replace(bound, relation=writer))
    begin(session.database, writer.id, 1, snapshot=True)
    if writer.name != topic.name:
        session.notice(f'processor "{writer.shown}" writes {topic.title}, as others do')


def _make_feeding(session: Session, bound: Bound, topic: Relation) -> None:
    """Creates a processor of a topic in the database, and writes its records for the existing input."""
    changes = changes_from_now(session)
    make(session, bound)
    copy(session, bound.relation, topic, changes)


def _free_name(session: Session, topic: Relation) -> str:
    """The name of the topic; further processors of the topic append a number."""
    taken = {r.name for r in _processors(session) if r.schema == topic.schema}
    name, number = topic.name, 1
    while name in taken:
        number += 1
        name = f"{topic.name}_{number}"
    return name


def _processors(session: Session) -> list[Relation]:
    return [r for r in session.catalog.relations.values() if isinstance(r, (Processor, TopicWriter))]


def _created_in_kafka(
    session: Session, statement: CreateProcessor, relation: Relation, connector: dict[str, str]
) -> Relation:
    """The topic of Kafka that a processor creates, with the types of its records in Kafka.

    Raises INVALID_PARAMETER for a format that its records don't support.
    """
    topic = relation.topic
    assert topic is not None
    fields = [c for c in relation.columns if c.name not in (KEY_COLUMN, *_METADATA)]
    key = next((c for c in relation.columns if c.name == KEY_COLUMN), Field(KEY_COLUMN, BYTEA))
    key_format, value_format = _formats(session, topic, key, fields)
    fields = [replace(c, type=_SCALARS.get(value_format, c.type)) for c in fields]
    return add_topic(
        session,
        statement,
        connector,
        KafkaTopic(
            (replace(key, type=_SCALARS.get(key_format, key.type)), *fields),
            key_format,
            value_format,
            required=topic.required,
            shown_key_format=topic.key_format,
            is_table=topic.compacted,
        ),
    )


def _formats(session: Session, topic: Topic, key: Field, fields: list[Field]) -> tuple[str, str]:
    """The formats of a processor's records in Kafka: those of its topic, otherwise by type."""
    structured = "AVRO" if session.variables.get("kafka.schema.registry.url") else "JSON"
    value_format = topic.value_format
    if value_format in _READ_ONLY or (value_format in _SCALARS and len(fields) != 1):
        value_format = structured
    key_format = topic.key_format
    if key_format is None or key_format in _READ_ONLY:
        prefix, kind = window_prefix(key.type)
        key_format = prefix + _KEYS.get(kind.name, structured)
    return key_format, value_format


def _check_change(statement: CreateProcessor, word: str, has: str | None, wanted: str | None) -> None:
    """Raises INVALID_PARAMETER for STORE with a format into which the records can't be converted."""
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
    """STOP PROCESSOR, DROP PROCESSOR: the topic that it writes stays unchanged.

    Raises DEPENDENT_OBJECTS while views read the topic, if it is in the database.
    """
    session.require_definer("STOP PROCESSOR")
    writer = _writer(session, statement.name)
    if writer is not None:
        _deliver_rest(session, writer)
        remove(session, {writer.id})
        return Result("STOP PROCESSOR")
    relation = session.find(statement.name)
    if relation is None:
        names = [r.shown for r in _processors(session)]
        raise undefined_relation(session.catalog, statement.name, statement, "processor", names)
    if not isinstance(relation, Processor):
        others = [f'"{r.shown}"' for r in session.catalog.relations.values() if r.feeds == relation.id]
        raise error_at(
            statement,
            statement.name.span,
            "CATALOG_TYPE_MISMATCH",
            f'no processor is called "{relation.shown}"' if others else f'no processor writes "{relation.shown}"',
            hint=f"The topic is written by {' and '.join(others)}." if others else None,
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


def _writer(session: Session, name: Name) -> TopicWriter | None:
    """The processor of a topic of Kafka that has that name."""
    schema = None if name.schema is None else schema_meant(name.schema, session.catalog)
    places = session.catalog.path if name.schema is None else (schema,)
    found = (r for r in _processors(session) if r.name == name.name and r.schema in places)
    return next((r for r in found if isinstance(r, TopicWriter)), None)


def _deliver_rest(session: Session, writer: TopicWriter) -> None:
    """Writes the records for all committed rows to Kafka; a notice reports how many can't be written."""
    deliveries = session.database.service(SinkWriters)
    with contextlib.suppress(Error):  # a processor can be stopped even if epochs fail
        session.database.flush(topics=True)
    status = None if deliveries is None else deliveries.status(writer.id)
    if status is not None and status.rows:
        why = f": {status.problem}" if status.problem else ""
        session.notice(f"{writer.title} was stopped before {status.rows} records were in Kafka{why}")


def start_processor(session: Session, statement: StartProcessor) -> Result:
    """START PROCESSOR: a processor that an error stopped resumes at its position; a waiting one retries at once. Given
    a topic, this also restarts the writer of its dead letters.
    """
    session.require_definer("START PROCESSOR")
    session.require_no_transaction("START PROCESSOR")
    found = [r for r in (_writer(session, statement.name), session.find(statement.name)) if r is not None]
    if not found:
        names = [r.shown for r in _processors(session)]
        raise undefined_relation(session.catalog, statement.name, statement, "processor", names)
    deliveries = session.database.service(SinkWriters)
    session.require_outputs(found[0], statement, statement.name.span)
    assert deliveries is not None
    delivered = [r for r in found if deliveries.status(r.id) is not None]
    if not delivered:
        raise error_at(
            statement,
            statement.name.span,
            "CATALOG_TYPE_MISMATCH",
            f'nothing writes records of "{found[0].shown}" to Kafka',
            hint="A processor is started by INSERT INTO … SELECT STREAM or TABLE.",
        )
    for relation in delivered:
        deliveries.restart(relation.id)
    return Result("START PROCESSOR")


def _target(statement: CreateProcessor) -> Name:
    return Name(statement.name, statement.name_span, schema=statement.schema)


def bind_processor(session: Session, statement: CreateProcessor) -> Bound:
    """The processor that the statement would create.

    Raises errors of the binder, with their positions, and UNDEFINED_RELATION for a missing target.
    """
    statement = with_whole_name(session, statement)
    query = bound(statement, readable(session.catalog), session.dialect)
    session.notices.extend(query.notices)
    check_columns(query.columns, statement)
    name = _target(statement)
    declared = session.find(name)
    if declared is None and setting(session, name.name, "autocreate") != "true":
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
        partitions_wanted(session),
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
        watermarks=clocks_of(tree),
        topic=topic,
    )
    return Bound(tree, relation)


def _check_formats(statement: CreateProcessor, declared: Topic, name: Name) -> None:
    """Raises INVALID_PARAMETER for STORE with formats other than those that the topic was declared with."""
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
    """The query with the columns of an existing topic.

    Raises READ_ONLY_RELATION, DATATYPE_MISMATCH, UNDEFINED_COLUMN, NOT_NULL_VIOLATION.
    """
    span = statement.name_span
    if declared.topic is None or not isinstance(declared, Table) or declared.event_time is None:
        kind, what = (
            (declared.family, "is no topic")
            if declared.topic is None
            else ("topic", "has a processor that writes it, or had one")
        )
        raise error_at(
            statement,
            span,
            "READ_ONLY_RELATION",
            f'can\'t write {kind} "{declared.shown}": it {what}',
            hint="Write the processors of a topic before its records, or declare it by CREATE TABLE."
            if declared.topic is not None
            else None,
        )
    if declared.id in session.catalog.upstream(query.depends_on, writers=True):
        raise error_at(
            statement,
            span,
            "FEATURE_NOT_SUPPORTED",
            f'a processor that reads topic "{declared.shown}", which it writes, is not supported',
            detail="Each record that it writes could produce another record.",
            hint="Write another topic.",
        )
    own = {c.name: c for c in query.tree.columns}
    fields = [c for c in declared.columns if c.name not in _METADATA]
    for name in own:
        if name not in [c.name for c in fields] and name != RECORD_TIME:
            raise error_at(statement, span, "UNDEFINED_COLUMN", f'topic "{declared.shown}" has no field "{name}"')
    given: list[Column] = []
    for field in [*fields, TIME]:
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
        given.append(column)
    outputs = tuple(
        Column(f"@{f.name}", f.name, c.type, c.nullable) for f, c in zip([*fields, TIME], given, strict=True)
    )
    tree = Project(query.tree, outputs, tuple(map(read, given)))
    return replace(query, tree=tree, columns=tuple(Field(c.name, c.type, c.nullable) for c in outputs))
