"""Binds topics as streams of records or as tables, and the metadata of records: their key and time.

Lenses, "Joins": "Join types", "Matching expression (ON)", "ON expressions and key change" (LS-10, LS-35, LS-46). A
stream contains every record with a value. A table contains the last record of each key, unless its value is NULL (a
tombstone). A query over records adds their key and time to its select list.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from sqlglot import exp

from watersmeet.algebra.nodes import Arrivals, Column, Filter, Node, Project, Scan, SortKey, TopN
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.timewindows import mentions_time
from watersmeet.algebra.trees import exactly, read
from watersmeet.binder.clauses.aggregates import Grouping
from watersmeet.binder.clauses.timewindows import new_age, newest
from watersmeet.binder.context.binding import Bound, BoundQuery, Environment, Item, scope_columns, value_of
from watersmeet.binder.context.rules import Binding, Described, NamedItem
from watersmeet.binder.context.scope import Extension, Scope, ScopeColumn, single
from watersmeet.catalog import (
    KEY_COLUMN,
    META_COLUMN,
    RECORD_HEADERS,
    RECORD_NUMBER,
    RECORD_OFFSET,
    RECORD_PARTITION,
    RECORD_TIME,
    TOMBSTONE,
    VALUE_COLUMN,
    Relation,
    Table,
    Topic,
)
from watersmeet.dialects.lenses.ddl import IDLE_TIMEOUT
from watersmeet.dialects.lenses.grammar import RecordSelect
from watersmeet.dialects.tree.queries import node_error, node_span
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.errors import Error, Span, error
from watersmeet.expressions.aggregatecalls import has_aggregate
from watersmeet.expressions.context import Context, Value, call, duckdb_cast, of_scalar
from watersmeet.expressions.scalars import bind_value
from watersmeet.formats.payloads import windowed_key
from watersmeet.values.types import BOOLEAN, TIMESTAMP, SqlType

#: The records of a topic that a query reads: all of them, or the last one of each key.
RecordKind = Literal["stream", "table"]


@dataclass(frozen=True)
class RecordLayout:
    """The formats and partitions of records.

    key_format: None for a computed key. partitions, value_format: None for records of no topic. by_hash: see `Topic`.
    """

    key_format: str | None = None
    partitions: int | None = None
    value_format: str | None = None
    by_hash: bool = True


#: The layout of records that are read from no topic.
PLAIN: Final = RecordLayout()


@dataclass(frozen=True)
class RecordMetadata(Extension):
    """The metadata of the records of a scope. key: None for records without a key."""

    nature: RecordKind
    key: Value | None
    time: Value
    layout: RecordLayout = PLAIN


@dataclass(frozen=True)
class QueryRecords(Extension):
    """The facts about the records of a query's result, whose last columns (`beside`) are their metadata."""

    nature: RecordKind
    layout: RecordLayout


def metadata_in(scope: Scope) -> RecordMetadata | None:
    """The metadata of the records in a scope, or None."""
    return scope.extension if isinstance(scope.extension, RecordMetadata) else None


def records_in(query: Bound | BoundQuery) -> QueryRecords | None:
    """The facts about the records of a query's result; None if the query reads no records."""
    return query.extension if isinstance(query.extension, QueryRecords) else None


#: The fields of `_meta` that Kafka sets.
_OF_BROKERS: Final = (RECORD_PARTITION, RECORD_OFFSET, RECORD_HEADERS)

#: The kind of a group's key (`windowed_key`) by the column with the start of a record's window.
STARTS: Final = {"@window": "time", "@session": "session"}

#: The columns that `*` omits.
HIDDEN: Final = (KEY_COLUMN, RECORD_TIME, TOMBSTONE, RECORD_NUMBER, VALUE_COLUMN, *_OF_BROKERS, *STARTS)

#: Names that fields of records can't have: columns that Watersmeet fills, and metadata.
RESERVED: Final = (TOMBSTONE, RECORD_NUMBER, VALUE_COLUMN, META_COLUMN, *_OF_BROKERS)


def bind_records(
    scan: Scan, relation: Relation, nature: RecordKind, binding: Binding, text: str, span: Span | None
) -> Node:
    """The records of a relation: the fields, then `_key` (if it has a key) and `@time`."""
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
        if KEY_COLUMN not in relation.always_there:  # records without a key are all kept
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
    """The last record of each key in order of arrival, or of the numbers that the topic's processor assigns."""
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
    """The fields of a computed key at any depth; for a plain key, the key itself."""
    if key.type.name != "struct":
        return [key]
    fields = [
        Scalar(call("struct_extract", key.expression, exp.Literal.string(n)), kind) for n, kind in key.type.fields
    ]
    return [part for field in fields for part in key_parts(field)]


def _relation(
    scan: Scan, relation: Relation, nature: RecordKind, binding: Binding, text: str, span: Span | None
) -> Node:
    """Binds a relation of another dialect: its rows are the records, its primary key is their key."""
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
    """A single value unchanged; several values, or with `always` any, packed into an object."""
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
    """DESCRIBE of a topic: the columns and metadata of its records by the names in queries, then their storage."""
    fields = [(c.name, c.type.sql, c.name in relation.always_there) for c in relation.columns if c.name not in HIDDEN]
    key = [(c.name, c.type.sql, True) for c in relation.columns if c.name == KEY_COLUMN]
    time = relation.column(RECORD_TIME)
    place = [c.name for c in relation.columns if c.name in (RECORD_PARTITION, RECORD_OFFSET, RECORD_HEADERS)]
    return [
        *key,
        *fields,
        (f"{META_COLUMN}.timestamp", time.type.sql, not time.nullable),
        *[(name, relation.column(name).type.sql, name != RECORD_HEADERS) for name in place],
        ("key format", topic.key_format or ("computed" if key else "none"), None),
        ("value format", topic.value_format, None),
        ("partitions", str(topic.partitions), None),
        *_idle(relation),
        ("written by", relation.written_by, None),
        ("table description", "topic", None),
    ]


def _idle(relation: Relation) -> list[Described]:
    """The idle time after which the topic no longer holds back other topics, if it is set."""
    time = relation.event_time
    if time is None or time.idle_us is None:
        return []
    return [(IDLE_TIMEOUT, f"{dt.timedelta(microseconds=time.idle_us)}", None)]


def metadata_of(columns: Sequence[ScopeColumn], nature: RecordKind, layout: RecordLayout) -> RecordMetadata:
    """The key and the time among the columns of one item of FROM."""
    by_name = {c.name: c.value for c in columns}
    return RecordMetadata(nature, by_name.get(KEY_COLUMN), by_name[RECORD_TIME], layout)


def scope_of_records(tree: Node, item: NamedItem, kind: RecordKind, layout: RecordLayout, env: Environment) -> Scope:
    """The scope of records. Raises INVALID_NAME for a field with the name of record metadata.

    The item's names rename the first columns, but never the key and the time, which keep their names.
    """
    own = scope_columns(tree.columns)
    for column, name in zip(own, item.names, strict=False):
        if name != column.name and name in (*HIDDEN, *RESERVED):
            raise env.error(
                "INVALID_NAME",
                f'a list of names can\'t rename field "{column.name}" to "{name}"',
                item.node,
                hint="Select it by that name: expression AS _key sets the key.",
            )
    shown = scope_columns(tree.columns, item.names)
    lost = [c for c in own if c.name in HIDDEN and c.name not in [s.name for s in shown]]
    return replace(single(item.alias, [*shown, *lost], item.schema), extension=metadata_of(own, kind, layout))


def layout_of(items: Sequence[Item], scope: Scope, *, groups: bool) -> RecordLayout:
    """The formats of a query's records, taken from the records that it reads; a computed key has no format (LS-35)."""
    metadata = metadata_in(scope)
    assert metadata is not None
    layout, key = metadata.layout, metadata.key
    kept = (
        not groups
        and key is not None
        and all(v.expression == key.expression for v, name, _ in items if name == KEY_COLUMN)
    )
    return layout if kept else replace(layout, key_format=None)


def starred(columns: Sequence[ScopeColumn], node: exp.Expression, text: str) -> list[ScopeColumn]:
    """The meaning of `*`: the fields of the value (LS-46).

    Raises AMBIGUOUS_COLUMN if two sources have a field of the same name, UNDEFINED_COLUMN if there are no fields.
    """
    fields = [c for c in columns if c.name not in HIDDEN]
    if not fields:
        raise node_error(
            text, node, "UNDEFINED_COLUMN", "the records have no fields", hint=f"Select what they have: {KEY_COLUMN}."
        )
    names = [c.name for c in fields]
    twice = next((n for i, n in enumerate(names) if n in names[:i]), None)
    if twice is not None:
        raise node_error(
            text,
            node,
            "AMBIGUOUS_COLUMN",
            f'both sources have a field "{twice}"',
            hint="List the fields, with their sources in front.",
        )
    return fields


def with_metadata(items: Sequence[Item], scope: Scope, ctx: Context, group: exp.Group | None) -> list[Item]:
    """The select list, followed by `_key` and `@time` of the records unless the list has them.

    group: the GROUP BY of an aggregate, with its aliases expanded; the grouping values become the key of the records.
    """
    metadata = metadata_in(scope)
    assert metadata is not None
    _check_names(items, ctx)
    selected = {name for _, name, _ in items}
    key: Value | None
    if isinstance(ctx, Grouping):
        nodes = [n for n in group.expressions if n.name not in STARTS] if group is not None else []
        key = of_scalar(packed([_grouped(n, i, items, ctx) for i, n in enumerate(nodes)])) if nodes else None
        time = bind_value(
            exp.Anonymous(this="max", expressions=[exp.column(exp.to_identifier(RECORD_TIME, quoted=True))]), ctx
        )
        key = _in_window(scope, key, time, ctx)
    else:
        key, time = metadata.key, metadata.time
    return [
        *items,
        *[
            (v, n, items[0][2])
            for n, v in ((KEY_COLUMN, key), (RECORD_TIME, time))
            if v is not None and n not in selected
        ],
    ]


def _in_window(scope: Scope, group: Value | None, end: Value, ctx: Context) -> Value | None:
    """The key of a group in its window, `group` without windows. end: the time of its last record."""
    name = next((c.name for c in scope.visible if c.name in STARTS), None)
    if name is None or group is None:
        return group
    start = bind_value(exp.column(exp.to_identifier(name, quoted=True)), ctx)
    times = [("start", start)] if STARTS[name] == "time" else [("start", start), ("end", end)]
    made = packed([("value", group), ("window", of_scalar(packed(times, always=True)))])
    return of_scalar(Scalar(made.expression, windowed_key(group.type, STARTS[name]), nullable=False))


def _check_names(items: Sequence[Item], ctx: Context) -> None:
    """Raises INVALID_NAME for reserved names of fields, DATATYPE_MISMATCH for a time of the wrong type."""
    for value, name, node in items:
        if name in RESERVED:
            raise ctx.error(
                "INVALID_NAME",
                f'a field can\'t be named "{name}"',
                node,
                hint=(
                    f"Give it another name with AS. The key and the time of a record can be selected as "
                    f"{KEY_COLUMN} and {RECORD_TIME}."
                ),
            )
        if name == RECORD_TIME and not value.unknown and value.type != TIMESTAMP:
            raise ctx.error(
                "DATATYPE_MISMATCH",
                f"the time of a record is of type {TIMESTAMP.sql} but expression is of type {value.type.sql}",
                node,
                hint="You will need to rewrite or cast the expression.",
            )


def _grouped(node: exp.Expression, position: int, items: Sequence[Item], ctx: Context) -> tuple[str, Value]:
    """The name of the grouping key number `position`, and its value after grouping.

    A key that is a number refers to an item of the select list.
    """
    node = node.unnest()
    if isinstance(node, exp.Literal) and not node.is_string:
        value, name, _ = items[int(node.name) - 1]
        return name or f"key{position + 1}", value
    return node.name if isinstance(node, exp.Column) else f"key{position + 1}", bind_value(node, ctx)


def by_key(node: exp.Select, scope: Scope, text: str) -> exp.Group:
    """The default GROUP BY of a query with aggregates, which groups records by their key."""
    metadata = metadata_in(scope)
    assert metadata is not None
    if metadata.key is None:
        raise node_error(
            text, node, "COLUMN_NOT_GROUPED", "records without a key can't be grouped by it", hint="Add GROUP BY."
        )
    return exp.Group(expressions=[exp.column(exp.to_identifier(KEY_COLUMN, quoted=True))])


def check_decided(parts: Sequence[exp.Expression], ctx: Context) -> None:
    """Raises FEATURE_NOT_SUPPORTED for conditions on a stream that change with time, because its records are never
    deleted.
    """
    for part in parts:
        if mentions_time(bind_value(part, ctx).finish()):
            raise ctx.not_supported(
                "now() in a condition on a stream",
                part,
                detail="Results would have to be deleted as time passes, and records of a stream never are.",
                hint="Read the records by SELECT TABLE.",
            )


def _join_and_group(place: exp.Expression, text: str) -> Error:
    return node_error(
        text,
        place,
        "JOIN_AND_GROUP",
        "joining and grouping in one query is not supported",
        hint="Join in a query of WITH, and group its result.",
    )


def check_select(node: exp.Select, text: str) -> None:
    """Raises JOIN_SOURCES (LS-38), JOIN_AND_GROUP (LS-40), and FEATURE_NOT_SUPPORTED for clauses that Lenses' document
    does not define.
    """
    if node.args.get("from_") is not None and not isinstance(node, RecordSelect) and node.parent is not None:
        raise node_error(
            text,
            node,
            "SYNTAX_ERROR",
            "a query inside a query over records must say STREAM or TABLE",
            hint="Write SELECT STREAM or SELECT TABLE.",
        )
    joins = node.args.get("joins") or []
    if len(joins) > 1:
        raise node_error(
            text,
            joins[1],
            "JOIN_SOURCES",
            "a query joins two sources only",
            hint="Join the first two in a query of WITH, and its result with the third one.",
        )
    group = node.args.get("group")
    grouped = group or next((e for e in node.expressions if has_aggregate(e, Context(text))), None)
    if joins and grouped is not None:
        raise _join_and_group(grouped, text)
    for name in ("distinct", "order", "limit", "offset"):
        if node.args.get(name):
            hint = (
                "Group by the fields."
                if name == "distinct"
                else "It is only allowed after a SELECT by itself, or in one without STREAM and TABLE."
            )
            shown = {"order": "ORDER BY"}.get(name, name.upper())
            raise not_supported(f"{shown} in a query over records", text, node_span(node.args[name]), hint=hint)
    own = [*node.expressions, *[p for n in ("where", "having", "group") if (p := node.args.get(n)) is not None]]
    for part in own:
        inner = part.find(exp.Query, exp.Window)
        if inner is not None:
            what = "a window function" if isinstance(inner, exp.Window) else "a subquery"
            raise not_supported(
                f"{what} in a query over records", text, node_span(inner), hint="Join the sources, or group them."
            )
