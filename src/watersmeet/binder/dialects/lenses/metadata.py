"""What a query over records adds to its select list: the records' key and time.

Lenses, "Joins": "Matching expression (ON)", "ON expressions and key change" (LS-35, LS-46).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from watersmeet.algebra.nodes import Node
from watersmeet.algebra.timewindows import mentions_time
from watersmeet.binder.clauses.aggregates import Grouping
from watersmeet.binder.context.binding import Environment, Item, scope_columns
from watersmeet.binder.context.rules import NamedItem
from watersmeet.binder.context.scope import Scope, ScopeColumn, single
from watersmeet.binder.dialects.lenses.records import (
    HIDDEN,
    RESERVED,
    RecordKind,
    RecordLayout,
    RecordMetadata,
    metadata_in,
    packed,
)
from watersmeet.catalog import KEY_COLUMN, RECORD_TIME
from watersmeet.dialects.lenses.grammar import RecordSelect
from watersmeet.dialects.tree.queries import place_of
from watersmeet.errors import Error, error
from watersmeet.expressions.aggregatecalls import has_aggregate
from watersmeet.expressions.context import Context, Value, of_scalar
from watersmeet.expressions.scalars import bind_value
from watersmeet.values.types import TIMESTAMP


def metadata_of(columns: Sequence[ScopeColumn], nature: RecordKind, layout: RecordLayout) -> RecordMetadata:
    """The key and the time among the columns of one item of FROM."""
    by_name = {c.name: c.value for c in columns}
    return RecordMetadata(nature, by_name.get(KEY_COLUMN), by_name[RECORD_TIME], layout)


def scope_of_records(tree: Node, item: NamedItem, kind: RecordKind, layout: RecordLayout, env: Environment) -> Scope:
    """The scope of records. INVALID_NAME for a field with the name of record metadata.

    The item's names are those of the first columns. The key and the time can be read by their own names too, and are
    not renamed.
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
    """How the records of a query are stored: like those it reads, but a computed key has no format of its own
    (LS-35).
    """
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

    AMBIGUOUS_COLUMN if two sources have a field of the same name (D-004-11); UNDEFINED_COLUMN if there are no fields.
    """
    fields = [c for c in columns if c.name not in HIDDEN]
    if not fields:
        raise error(
            "UNDEFINED_COLUMN",
            "the records have no fields",
            sql=text,
            span=place_of(node),
            hint=f"Select what they have: {KEY_COLUMN}.",
        )
    names = [c.name for c in fields]
    twice = next((n for i, n in enumerate(names) if n in names[:i]), None)
    if twice is not None:
        raise error(
            "AMBIGUOUS_COLUMN",
            f'both sources have a field "{twice}"',
            sql=text,
            span=place_of(node),
            hint="List the fields, with their sources in front.",
        )
    return fields


def with_metadata(items: Sequence[Item], scope: Scope, ctx: Context, group: exp.Group | None) -> list[Item]:
    """The select list, then `_key` and `@time` of the records, unless the list has them.

    group: of an aggregate, whose records have what they are grouped by as their key. Its aliases are expanded.
    """
    metadata = metadata_in(scope)
    assert metadata is not None
    _check_names(items, ctx)
    selected = {name for _, name, _ in items}
    key: Value | None
    if isinstance(ctx, Grouping):
        nodes = group.expressions if group is not None else []
        key = of_scalar(packed([_grouped(n, i, items, ctx) for i, n in enumerate(nodes)])) if nodes else None
        time = bind_value(
            exp.Anonymous(this="max", expressions=[exp.column(exp.to_identifier(RECORD_TIME, quoted=True))]), ctx
        )
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


def _check_names(items: Sequence[Item], ctx: Context) -> None:
    """INVALID_NAME for a field with the name of record metadata or of a topic's own column, DATATYPE_MISMATCH for a
    time of another type.
    """
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
    """A key of GROUP BY, its number `position`: its name, and its value above the groups.

    A number refers to an item of the select list.
    """
    node = node.unnest()
    if isinstance(node, exp.Literal) and not node.is_string:
        value, name, _ = items[int(node.name) - 1]
        return name or f"key{position + 1}", value
    return node.name if isinstance(node, exp.Column) else f"key{position + 1}", bind_value(node, ctx)


def by_key(node: exp.Select, scope: Scope, text: str) -> exp.Group:
    """The GROUP BY of a query with aggregates but without GROUP BY: records are grouped by their key."""
    metadata = metadata_in(scope)
    assert metadata is not None
    if metadata.key is None:
        raise error(
            "COLUMN_NOT_GROUPED",
            "records without a key can't be grouped by it",
            sql=text,
            span=place_of(node),
            hint="Add GROUP BY.",
        )
    return exp.Group(expressions=[exp.column(exp.to_identifier(KEY_COLUMN, quoted=True))])


def check_decided(parts: Sequence[exp.Expression], ctx: Context) -> None:
    """FEATURE_NOT_SUPPORTED for a condition on a stream whose result changes with time: records of a stream are never
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
    return error(
        "JOIN_AND_GROUP",
        "joining and grouping in one query is not supported",
        sql=text,
        span=place_of(place),
        hint="Join in a query of WITH, and group its result.",
    )


def check_select(node: exp.Select, text: str) -> None:
    """What a query over records can't be: JOIN_SOURCES (LS-38), JOIN_AND_GROUP (LS-40), and what Lenses' document does
    not
    have.
    """
    if node.args.get("from_") is not None and not isinstance(node, RecordSelect) and node.parent is not None:
        raise error(
            "SYNTAX_ERROR",
            "a query inside a query over records must say STREAM or TABLE",
            sql=text,
            span=place_of(node),
            hint="Write SELECT STREAM or SELECT TABLE.",
        )
    joins = node.args.get("joins") or []
    if len(joins) > 1:
        raise error(
            "JOIN_SOURCES",
            "a query joins two sources only",
            sql=text,
            span=place_of(joins[1]),
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
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f"{shown} in a query over records is not supported",
                sql=text,
                span=place_of(node.args[name]),
                hint=hint,
            )
    own = [*node.expressions, *[p for n in ("where", "having", "group") if (p := node.args.get(n)) is not None]]
    for part in own:
        inner = part.find(exp.Query, exp.Window)
        if inner is not None:
            what = "a window function" if isinstance(inner, exp.Window) else "a subquery"
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f"{what} in a query over records is not supported",
                sql=text,
                span=place_of(inner),
                hint="Join the sources, or group them.",
            )
