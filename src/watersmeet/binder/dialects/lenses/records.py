"""Topics as streams of records or as tables, and the key and time that a query over records adds to its select list.

Lenses, "Joins": "Join types", "Matching expression (ON)", "ON expressions and key change" (LS-10, LS-35, LS-46). A
stream has every record that has a value. A table has the last record of each key, unless its value is NULL (a
tombstone).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from sqlglot import exp

from watersmeet.algebra.nodes import Arrivals, Column, Filter, Node, Project, Scan, SortKey, TopN
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.trees import exactly, read
from watersmeet.binder.clauses.arrival import new_age, newest
from watersmeet.binder.context.binding import Bound, BoundQuery, value_of
from watersmeet.binder.context.rules import Binding, Described
from watersmeet.binder.context.scope import Extension, Scope
from watersmeet.catalog import (
    KEY_COLUMN,
    META_FACET,
    RECORD_HEADERS,
    RECORD_NUMBER,
    RECORD_OFFSET,
    RECORD_PARTITION,
    RECORD_TIME,
    TOMBSTONE,
    VALUE_FACET,
    Relation,
    Table,
    Topic,
)
from watersmeet.dialects.lenses.ddl import IDLE_TIMEOUT
from watersmeet.errors import Span, error
from watersmeet.expressions.context import Value, call, duckdb_cast
from watersmeet.values.types import BOOLEAN, TIMESTAMP, SqlType

#: How the records of a topic are read: all of them, or the last one of each key.
RecordKind = Literal["stream", "table"]


@dataclass(frozen=True)
class RecordLayout:
    """How records are stored.

    key_format: None for a computed key. partitions, value_format: None if they come from no topic. by_hash: as of a
    `Topic`.
    """

    key_format: str | None = None
    partitions: int | None = None
    value_format: str | None = None
    by_hash: bool = True


#: The layout of records that come from no topic.
PLAIN: Final = RecordLayout()


@dataclass(frozen=True)
class RecordMetadata(Extension):
    """What the records of a scope have beside the columns. key: None without a key."""

    nature: RecordKind
    key: Value | None
    time: Value
    layout: RecordLayout = PLAIN


@dataclass(frozen=True)
class QueryRecords(Extension):
    """The records that a query gives. Its last columns (`beside`) are their metadata."""

    nature: RecordKind
    layout: RecordLayout


def metadata_in(scope: Scope) -> RecordMetadata | None:
    """The metadata of the records in a scope, or None."""
    return scope.extension if isinstance(scope.extension, RecordMetadata) else None


def records_in(query: Bound | BoundQuery) -> QueryRecords | None:
    """The records that a query gives; None if it reads none."""
    return query.extension if isinstance(query.extension, QueryRecords) else None


#: What brokers know of a record of Kafka.
_OF_BROKERS: Final = (RECORD_PARTITION, RECORD_OFFSET, RECORD_HEADERS)

#: Columns that `*` leaves out.
HIDDEN: Final = (KEY_COLUMN, RECORD_TIME, TOMBSTONE, RECORD_NUMBER, *_OF_BROKERS)

#: Names that no field of a record can have: a topic's columns that nobody writes, and metadata that is no column.
RESERVED: Final = (TOMBSTONE, RECORD_NUMBER, VALUE_FACET, META_FACET, *_OF_BROKERS)


def bind_records(
    scan: Scan, relation: Relation, nature: RecordKind, binding: Binding, text: str, span: Span | None
) -> Node:
    """The records of a relation: its fields, then `_key` (where it has one) and `@time`."""
    if relation.topic is None:
        return _relation(scan, relation, nature, binding, text, span)
    by_name = {c.name: c for c in scan.columns}
    rows: Node = scan
    if nature == "table" and KEY_COLUMN not in by_name:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"the records of {relation.title} have no key, so it can't be read as a table",
            sql=text,
            span=span,
            hint="Read it by SELECT STREAM.",
        )
    if nature == "table":
        if KEY_COLUMN not in relation.always_there:  # of a record without a key nothing can be the last one
            has_key = exp.Not(this=exp.Is(this=read(by_name[KEY_COLUMN]).expression, expression=exp.null()))
            rows = Filter(rows, Scalar(has_key, BOOLEAN, nullable=False))
        rows = _newest(rows, relation, by_name, binding)
    rows = Filter(rows, Scalar(exp.Not(this=read(by_name[TOMBSTONE]).expression), BOOLEAN, nullable=False))
    required = {*relation.always_there, RECORD_TIME}
    kept = [c for c in scan.columns if c.name not in HIDDEN] + [
        by_name[n] for n in (KEY_COLUMN, RECORD_TIME, *_OF_BROKERS) if n in by_name
    ]
    outputs = tuple(replace(c, nullable=c.nullable and c.name not in required) for c in kept)
    return Project(rows, outputs, tuple(read(c) for c in kept))


def _newest(rows: Node, relation: Relation, by_name: dict[str, Column], binding: Binding) -> Node:
    """The last record of each key: by arrival, or by the numbers that the topic's processor gives its records."""
    keys = key_parts(read(by_name[KEY_COLUMN]))
    if isinstance(relation, Table):
        found = newest(rows, keys, binding)
        assert found is not None, "a topic that is written by INSERT knows how its records came"
        return exactly(found[0], rows.columns)
    order = (
        SortKey(read(by_name[RECORD_NUMBER]), descending=True),
        SortKey(read(by_name[RECORD_TIME]), descending=True),
    )
    return exactly(TopN(rows, tuple(keys), order, 1), [c for c in rows.columns if c.name != RECORD_NUMBER])


def key_parts(key: Scalar) -> list[Scalar]:
    """The fields of a computed key, at any depth; a plain key itself."""
    if key.type.name != "struct":
        return [key]
    fields = [
        Scalar(call("struct_extract", key.expression, exp.Literal.string(n)), kind) for n, kind in key.type.fields
    ]
    return [part for field in fields for part in key_parts(field)]


def _relation(
    scan: Scan, relation: Relation, nature: RecordKind, binding: Binding, text: str, span: Span | None
) -> Node:
    """A relation of another dialect: its rows are records, its primary key is their key."""
    rows: Node = scan
    if nature == "stream" and not scan.append_only:
        if not isinstance(relation, Table) or relation.connector:
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f'{relation.family} "{relation.name}" deletes rows, so it can\'t be read as a stream',
                sql=text,
                span=span,
                hint="Read it by SELECT TABLE.",
            )
        age = new_age(binding)
        rows = exactly(Arrivals(scan, age), scan.columns)
    by_name = {c.name: c for c in scan.columns}
    added: list[tuple[Column, Scalar]] = []
    if relation.primary_key and KEY_COLUMN not in by_name:
        key = packed([(k, value_of(by_name[k])) for k in relation.primary_key])
        added.append((binding.new_column(KEY_COLUMN, key.type, key.nullable), key))
    if RECORD_TIME not in by_name:
        times = [c for c in scan.columns if c.name in relation.time_columns and c.type == TIMESTAMP]
        time = read(times[0]) if times else Scalar(duckdb_cast(exp.null(), TIMESTAMP), TIMESTAMP)
        added.append((binding.new_column(RECORD_TIME, TIMESTAMP, time.nullable), time))
    return Project(rows, (*scan.columns, *(c for c, _ in added)), (*map(read, scan.columns), *(s for _, s in added)))


def packed(fields: Sequence[tuple[str, Value]], *, always: bool = False) -> Scalar:
    """A single value as it is; several values (or any with `always`) as an object."""
    scalars = [(n, v.finish()) for n, v in fields]
    if len(scalars) == 1 and not always:
        return scalars[0][1]
    names: list[str] = []
    for name, _ in scalars:
        names.append(name if name not in names else f"{name}{len(names) + 1}")
    pairs = [
        exp.PropertyEQ(this=exp.to_identifier(n, quoted=True), expression=s.expression)
        for n, (_, s) in zip(names, scalars, strict=True)
    ]
    return Scalar(
        exp.Struct(expressions=pairs),
        SqlType("struct", fields=tuple((n, s.type) for n, (_, s) in zip(names, scalars, strict=True))),
        nullable=False,
    )


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
