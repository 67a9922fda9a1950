"""UNION and UNION ALL."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from watersmeet.algebra.relations import Column, Project, Relation, Union
from watersmeet.dialects.binder.casts import coerce
from watersmeet.dialects.binder.context import Context
from watersmeet.dialects.binder.shared import Binding, Bound, Environment, Output, distinct, read, value_of
from watersmeet.dialects.binder.sources import BindQuery, not_supported
from watersmeet.dialects.binder.values import Value, common_type, duckdb_cast
from watersmeet.types import SqlType


def bind_union(node: exp.SetOperation, env: Environment, binding: Binding, bind: BindQuery) -> Bound:
    """A set operation. UNION is UNION ALL with each row once."""
    if not isinstance(node, exp.Union):
        raise not_supported(f"{type(node).__name__.upper()} in a view", node, env)
    parts, places = [], []
    for part in _all_parts(node):
        parts.append(bind(part, env, binding))
        places.append(part)
    ctx = Context(env.text, "UNION")
    width = len(parts[0].outputs)
    for part, place in zip(parts[1:], places[1:], strict=True):
        if len(part.outputs) != width:
            raise ctx.error("SYNTAX_ERROR", "each UNION query must have the same number of columns", place,
                            detail=f"They have {width} and {len(part.outputs)}.")
    kinds = [_kind([p.outputs[i] for p in parts], ctx, places) for i in range(width)]
    columns = tuple(
        binding.new_column(first.column.name, kind, any(p.outputs[i].column.nullable for p in parts))
        for i, (first, kind) in enumerate(zip(parts[0].outputs, kinds, strict=True)))
    inputs = tuple(_converted(p, kinds, ctx, place, binding) for p, place in zip(parts, places, strict=True))
    tree: Relation = Union(inputs, columns)
    if node.args.get("distinct"):
        tree = distinct(tree, binding)
    outputs = tuple(
        Output(c, o.named, all(p.outputs[i].unknown for p in parts), o.span)
        for i, (c, o) in enumerate(zip(tree.columns, parts[0].outputs, strict=True)))
    return Bound(tree, outputs)


def _all_parts(node: exp.Union) -> list[exp.Expression]:
    """The queries of a chain of UNION ALL (or of UNION, where what is below may also be UNION ALL)."""
    distinct_above = bool(node.args.get("distinct"))
    parts: list[exp.Expression] = [node.expression]
    left = node.this
    while isinstance(left, exp.Union) and not any(left.args.get(k) for k in ("with_", "order", "limit", "offset")) and (
            distinct_above or not left.args.get("distinct")):
        parts.append(left.expression)
        left = left.this
    return [left, *reversed(parts)]


def _kind(outputs: Sequence[Output], ctx: Context, places: Sequence[exp.Expression]) -> SqlType:
    known = [o.column.type for o in outputs if not o.unknown]
    if not known:
        return outputs[0].column.type
    kind = common_type(known)
    if kind is None:
        other = next(o for o in outputs if not o.unknown and common_type([known[0], o.column.type]) is None)
        place = places[list(outputs).index(other)]
        raise ctx.error("DATATYPE_MISMATCH",
                        f"UNION types {known[0].sql} and {other.column.type.sql} cannot be matched", place)
    return kind


def _converted(part: Bound, kinds: Sequence[SqlType], ctx: Context, place: exp.Expression,
               binding: Binding) -> Relation:
    """A part with its columns cast to the types of the union."""
    if all(o.column.type == k for o, k in zip(part.outputs, kinds, strict=True)):
        return part.relation
    columns: list[Column] = []
    exprs = []
    for output, kind in zip(part.outputs, kinds, strict=True):
        column = output.column
        if column.type == kind:
            columns.append(column)
            exprs.append(read(column))
            continue
        value = value_of(column)
        cast = Value(duckdb_cast(value.expression, kind), kind) if output.unknown else coerce(value, kind, ctx, place)
        columns.append(binding.new_column(column.name, kind, cast.nullable))
        exprs.append(cast.finish())
    return Project(part.relation, tuple(columns), tuple(exprs))
