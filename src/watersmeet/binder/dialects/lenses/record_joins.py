"""Joins of records: what a stream or a table on each side makes of a join.

Lenses, "Joins", "Table/Stream joins compatibility table".

What two sources of records need to be joined: keys in one format, and equal numbers of partitions.

Lenses, "Joins", "Key decoder types", "Co-partitioning", "ON expressions and key change"; LS-31 to LS-36, D-004-16,
D-004-17. Formats are also compared if ON equates values. A key that a query computes has no format of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sqlglot import exp

from watersmeet.algebra.nodes import Column, Join, JoinKind, Node, Project, Repartition, TemporalJoin
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.timewindows import duration_us
from watersmeet.algebra.trees import read
from watersmeet.binder.clauses.joins import check_aliases, join
from watersmeet.binder.context.binding import Environment, condition_parts, value_of
from watersmeet.binder.context.rules import Binding, JoinClause, Sourced
from watersmeet.binder.context.scope import Scope, ScopeColumn, ScopeContext
from watersmeet.binder.dialects.lenses.join_conditions import (
    Within,
    check_on,
    grace_of,
    length_of,
    metadata_of,
    time_of,
    windowed,
)
from watersmeet.binder.dialects.lenses.metadata import check_decided
from watersmeet.binder.dialects.lenses.records import RecordKind, RecordLayout, RecordMetadata, metadata_in, packed
from watersmeet.catalog import KEY_COLUMN, RECORD_TIME
from watersmeet.dialects.lenses.grammar import lengths_of
from watersmeet.dialects.tree.queries import name_of
from watersmeet.errors import Error
from watersmeet.expressions.context import Value, of_scalar


def check_keys(left: Scope, right: Scope, node: exp.Join, env: Environment) -> RecordLayout:
    """How the joined records are stored if the join is by their keys. KEY_FORMATS."""
    one, other = metadata_of(left), metadata_of(right)
    formats = one.layout.key_format, other.layout.key_format
    if None not in formats:
        types = [f.key.type.sql for f in (one, other) if f.key is not None]
        shown = (
            [f"{f} ({t})" for f, t in zip(formats, types, strict=True)] if formats[0] == formats[1] else list(formats)
        )
        if shown[0] != shown[1]:
            names = [s.tables[-1].alias for s in (left, right)]
            raise env.error(
                "KEY_FORMATS",
                f"key formats differ: {names[0]} has {shown[0]}, {names[1]} has {shown[1]}",
                node.this,
                detail="Sources are joined by keys in one format, even if ON compares values.",
                hint=f"Write one of them again: INSERT INTO topic STORE KEY AS {formats[0]} VALUE AS AVRO SELECT TABLE "
                f"CAST(_key AS {types[0]}) AS _key, … FROM {names[1]}.",
            )
    counts = [f.layout.partitions for f in (one, other) if f.layout.partitions is not None]
    value_format = one.layout.value_format or other.layout.value_format
    return RecordLayout(formats[0] if formats[0] == formats[1] else None, max(counts, default=None), value_format)


def copartitioned(left: Sourced, right: Sourced) -> tuple[Sourced, Sourced]:
    """Both sources with equal numbers of partitions: the one with fewer is repartitioned (D-004-16), and so is one
    whose records are not where their keys belong.
    """
    layouts = metadata_of(left[1]).layout, metadata_of(right[1]).layout
    counts = [layout.partitions for layout in layouts]
    if counts[0] is None or counts[1] is None:
        return left, right
    wanted = max(counts[0], counts[1])
    one, other = (
        sourced if layout.partitions == wanted and layout.by_hash else (Repartition(sourced[0], wanted), sourced[1])
        for sourced, layout in zip((left, right), layouts, strict=True)
    )
    return one, other


#: By the kinds of the left and right side: the joins allowed, whether WITHIN is needed, and the kind of the result.
_MATRIX: Final[dict[tuple[RecordKind, RecordKind], tuple[tuple[str, ...], bool, RecordKind]]] = {
    ("stream", "stream"): (("INNER", "LEFT", "RIGHT", "FULL"), True, "stream"),
    ("table", "table"): (("INNER", "LEFT", "RIGHT", "FULL"), False, "table"),
    ("table", "stream"): (("RIGHT",), False, "stream"),
    ("stream", "table"): (("INNER", "LEFT"), False, "stream"),
}  # fmt: skip


def record_join(clause: JoinClause) -> Sourced:
    """`left JOIN right`, with the key, time and kind of its records.

    The error conditions of the compatibility table, with their places.
    """
    left, right, node, env, binding = clause.left, clause.right, clause.node, clause.env, clause.binding
    check_aliases(left[1], right[1], node, env)
    one, other = metadata_in(left[1]), metadata_in(right[1])
    if one is None or other is None:
        raise env.not_supported("a join with this item of FROM", node, hint="Topics and queries of WITH can be joined.")
    nature = _checked(node, one.nature, other.nature, env)
    if nature == "stream":
        both = Scope(left[1].tables + right[1].tables, left[1].visible + right[1].visible, env.outer)
        check_decided(condition_parts(node.args["on"]), ScopeContext(env.text, both, "JOIN/ON"))
    layout = check_keys(left[1], right[1], node, env)
    length_us, grace_us = length_of(node, env), grace_of(node, env)
    node = windowed(_conditioned(node, left[1], right[1], env, binding), time_of(left[1]), time_of(right[1]))
    sides = copartitioned(left, right)
    within = None if length_us is None else Within(*sides, length_us, grace_us)
    left, right = sides if within is None else within.without_late_rows()
    relation, scope = join(replace(clause, left=left, right=right, node=node))
    assert isinstance(relation, Join)
    joined: Node = relation
    if one.nature != other.nature:
        joined = _looked_up(relation, turned=one.nature == "table")
    key, time = _key(relation, one, other), _time(relation, one, other)
    key_column = binding.new_column(KEY_COLUMN, key.type, key.nullable)
    time_column = binding.new_column(RECORD_TIME, time.type, time.nullable)
    made: Node = Project(
        joined, (*relation.columns, key_column, time_column), (*map(read, relation.columns), key, time)
    )
    if within is not None:
        made = within.result(made, relation, node, env, binding)
    shown = _once(scope, len(left[1].visible), node, relation.kind)
    layout = layout if _by_key(relation, one, other) else replace(layout, key_format=None)
    return made, replace(
        scope, visible=shown, extension=RecordMetadata(nature, value_of(key_column), value_of(time_column), layout)
    )


def _checked(node: exp.Join, left: RecordKind, right: RecordKind, env: Environment) -> RecordKind:
    """The nature of the result. STREAM_JOIN_WITHOUT_WITHIN, WITHIN_NOT_ALLOWED, TWO_WITHIN, RECORD_JOIN_KIND."""
    kinds, windowed, nature = _MATRIX[left, right]
    kind = node.side.upper() or "INNER"
    within = lengths_of(node)
    if len({duration_us(w) for w in within}) > 1:
        raise _refused(
            "TWO_WITHIN", "a join has two different WITHIN", within[-1], env, "Write it once, before or after ON."
        )
    if within and not windowed:
        raise _refused(
            "WITHIN_NOT_ALLOWED",
            f"WITHIN is not allowed in a join of a {left} with a {right}",
            within[0],
            env,
            "Only two streams are joined within a time; leave WITHIN out.",
        )
    if kind not in kinds:
        shown = "OUTER" if kind == "FULL" else kind
        names = " or ".join(f"{k} JOIN" for k in kinds)
        raise _refused(
            "RECORD_JOIN_KIND",
            f"{shown} JOIN of a {left} with a {right} is not allowed",
            node,
            env,
            f"A {left} and a {right} can be joined by {names}.",
        )
    if windowed and not within:
        raise _refused(
            "STREAM_JOIN_WITHOUT_WITHIN",
            "a join of two streams needs WITHIN",
            node,
            env,
            "Add WITHIN and a duration, such as WITHIN 5s.",
        )
    return nature


def _refused(condition: str, message: str, node: exp.Expression, env: Environment, hint: str) -> Error:
    return env.error(condition, message, node, hint=hint)


def _conditioned(node: exp.Join, left: Scope, right: Scope, env: Environment, binding: Binding) -> exp.Join:
    """The join with its condition resolved. A condition that only filters the sources leaves a join by their keys
    (D-004-10).
    """
    made: exp.Join = node.copy()
    condition, equates = check_on(node.args["on"], left, right, env, binding)
    if not equates:
        by_key = exp.EQ(this=_named(left, KEY_COLUMN), expression=_named(right, KEY_COLUMN))
        condition = exp.and_(by_key, exp.Paren(this=condition), copy=False)
    made.set("on", condition)
    return made


def _named(scope: Scope, name: str) -> exp.Column:
    return exp.column(exp.to_identifier(name, quoted=True), exp.to_identifier(scope.tables[-1].alias, quoted=True))


def _once(scope: Scope, width: int, node: exp.Join, kind: JoinKind) -> tuple[ScopeColumn, ...]:
    """The columns that can be read unqualified. A field that ON equates with one of the same name is there once
    (D-004-11).

    width: of the left side.
    """
    pairs = [(p.this, p.expression) for p in condition_parts(node.args["on"]) if isinstance(p, exp.EQ)]
    equated = {
        name_of(a.this)
        for a, b in pairs
        if _is_field(a, scope) and _is_field(b, scope) and name_of(a.this) == name_of(b.this) != KEY_COLUMN
    }
    others = {c.name: c.value for c in scope.visible[width:]}
    merged = [
        replace(c, value=of_scalar(_merged(kind, c.value.finish(), others[c.name].finish())))
        if c.name in equated and c.name in others
        else c
        for c in scope.visible[:width]
    ]
    return (*merged, *(c for c in scope.visible[width:] if c.name not in equated))


def _is_field(node: exp.Expression, scope: Scope) -> bool:
    """True for a field of a source, but not for a field of a field."""
    return isinstance(node, exp.Column) and (
        node.args.get("table") is None or scope.table(*scope.qualifier(node)) is not None
    )


def _looked_up(joined: Join, *, turned: bool) -> Node:
    """A stream's records look up a table. Those that find nothing are output with later records of the table (LS-24,
    LS-26).
    """
    sides = (joined.right, joined.left) if turned else (joined.left, joined.right)
    keys = tuple(replace(k, left=k.right, right=k.left) for k in joined.keys) if turned else joined.keys
    outer = joined.kind != "inner"
    return TemporalJoin(
        *sides, "left" if outer else "inner", keys, joined.residual, None, span=joined.span, waits=outer
    )


def _key(joined: Join, one: RecordMetadata, other: RecordMetadata) -> Scalar:
    """The key of the result: the common key for a join by `_key` alone, else an object of the values that ON equates
    (LS-35).

    If two tables are joined, it has both keys, so that each pair has its own result (D-004-05). The same holds for a
    join by `_key` if an OUTER JOIN may output records of one key without a partner.
    """
    equated = [_merged(joined.kind, k.left, k.right) for k in joined.keys]
    if _by_key(joined, one, other):
        return equated[0]
    fields = [
        (_field(k.left, joined.left.columns, i), of_scalar(v))
        for i, (k, v) in enumerate(zip(joined.keys, equated, strict=True))
    ]
    if one.nature == other.nature == "table":
        fields += [(n, _extended(v, joined)) for n, v in (("left", one.key), ("right", other.key)) if v is not None]
    return packed(fields, always=True)


def _by_key(joined: Join, one: RecordMetadata, other: RecordMetadata) -> bool:
    """Whether the join is by the keys of its sources alone, which then are the keys of the result."""
    if one.nature == other.nature == "table" and joined.kind == "full" and joined.residual is not None:
        return False
    keys = [v.finish().column for v in (one.key, other.key) if v is not None]
    return len(joined.keys) == 1 and [joined.keys[0].left.column, joined.keys[0].right.column] == keys


def _extended(value: Value, joined: Join) -> Value:
    nullable = {c.id for c in joined.columns if c.nullable}
    return replace(value, nullable=value.nullable or bool(value.finish().columns & nullable))


def _field(scalar: Scalar, columns: tuple[Column, ...], position: int) -> str:
    names = {c.id: c.name for c in columns}
    return names.get(scalar.column or "", f"key{position + 1}")


def _merged(kind: JoinKind, left: Scalar, right: Scalar) -> Scalar:
    if kind == "full":
        return Scalar(
            exp.Coalesce(this=left.expression, expressions=[right.expression]),
            left.type,
            left.nullable or right.nullable,
        )
    return right if kind == "right" else left


def _time(joined: Join, one: RecordMetadata, other: RecordMetadata) -> Scalar:
    """The time of the result: the stream's if it looks up a table, else the later one, as in Kafka Streams."""
    if one.nature != other.nature:
        return (one if one.nature == "stream" else other).time.finish()
    left, right = one.time.finish(), other.time.finish()
    later: exp.Expression = exp.Greatest(this=left.expression.copy(), expressions=[right.expression.copy()])
    if joined.kind != "inner":  # of a side that is not there, the time is NULL
        later = exp.Coalesce(this=later, expressions=[left.expression.copy(), right.expression.copy()])
    return Scalar(later, left.type, left.nullable or right.nullable)
