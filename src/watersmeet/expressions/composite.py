"""Arrays, structs and rows: `ARRAY[…]`, `a[i]`, `(s).field`, `row(…)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlglot import exp

from watersmeet.dialects.tree.nodes import sql_of
from watersmeet.dialects.tree.queries import name_of
from watersmeet.expressions.casts import cast, unify
from watersmeet.expressions.context import Context
from watersmeet.expressions.jsonfunctions import json_element
from watersmeet.expressions.templates import fill
from watersmeet.expressions.values import Value, call, number
from watersmeet.types import INTEGER, JSONB, SqlType

Bind = Callable[[exp.Expression, Context], Value]
Reader = Callable[[Any, Context, Bind], Value]


def _array(node: Any, ctx: Context, bind: Bind) -> Value:
    if not node.expressions:
        raise ctx.error(
            "DATATYPE_MISMATCH", "cannot determine type of empty array", node, hint="Cast it, for example: '{}'::int[]."
        )
    if isinstance(node.expressions[0], exp.Query):
        raise ctx.not_supported("ARRAY (SELECT …)", node)
    values, kind = unify([bind(e, ctx) for e in node.expressions], list(node.expressions), ctx, "ARRAY")
    return Value(exp.Array(expressions=[v.expression for v in values]), SqlType("array", element=kind), nullable=False)


def _bracket(node: Any, ctx: Context, bind: Bind) -> Value:
    value = bind(node.this, ctx)
    if value.type == JSONB and not value.unknown:
        return _json_element(value, node, ctx, bind)
    if value.type.name != "array" or value.type.element is None:
        raise ctx.error("DATATYPE_MISMATCH", f"cannot subscript type {value.type.sql} because it is not an array", node)
    if len(node.expressions) != 1:
        raise ctx.not_supported("an array slice of several dimensions", node)
    inner = node.expressions[0]
    if isinstance(inner, exp.Slice):
        return _slice(value, inner, node, ctx, bind)
    position = _index(inner, node, ctx, bind).expression
    if not (isinstance(position, exp.Literal) and int(position.name) > 0):
        position = fill("CASE WHEN a0 > 0 THEN a0 END", position)  # DuckDB counts negative ones from the end
    return Value(call("array_extract", value.expression, position), value.type.element)


def _json_element(document: Value, node: Any, ctx: Context, bind: Bind) -> Value:
    """`j['key']` and `j[0]` (PostgreSQL 17, 8.14.5)."""
    keys = [None if isinstance(n, exp.Slice) else bind(n, ctx) for n in node.expressions]
    found = json_element(document, keys[0], text=False) if len(keys) == 1 and keys[0] is not None else None
    if found is None:
        raise ctx.error("DATATYPE_MISMATCH", "jsonb subscript must be coercible to either integer or text", node)
    return found


def _index(node: exp.Expression, place: exp.Expression, ctx: Context, bind: Bind) -> Value:
    index = bind(node, ctx)
    if index.unknown:
        index = cast(index, INTEGER, ctx, node)
    if not index.type.is_integer:
        raise ctx.error("DATATYPE_MISMATCH", "array subscript must have type integer", place)
    return index


def _slice(value: Value, node: exp.Slice, place: exp.Expression, ctx: Context, bind: Bind) -> Value:
    """`a[2:3]`, `a[:2]`, `a[2:]`: what is there of it (PostgreSQL 17, 8.15.3)."""
    first = number(1) if node.this is None else _index(node.this, place, ctx, bind).expression
    last = (
        call("len", value.expression)
        if node.expression is None
        else _index(node.expression, place, ctx, bind).expression
    )
    cut = fill(
        "CASE WHEN a1 IS NULL OR a2 IS NULL THEN NULL WHEN a2 < greatest(a1, 1) THEN list_slice(a0, 1, 0) "
        "ELSE list_slice(a0, greatest(a1, 1), a2) END",
        value.expression,
        first,
        last,
    )
    return Value(cut, value.type)


def _dot(node: Any, ctx: Context, bind: Bind) -> Value:
    if isinstance(node.expression, exp.Anonymous):
        name = node.expression.name.lower()
        raise ctx.error("UNDEFINED_FUNCTION", f"function {sql_of(node.this, 'postgres')}.{name} does not exist", node)
    return field_of(bind(node.this, ctx), node.expression, ctx, node)


def field_of(value: Value, identifier: exp.Expression, ctx: Context, node: exp.Expression) -> Value:
    """`(value).identifier`."""
    name = name_of(identifier)
    if value.type.name != "struct":
        raise ctx.error(
            "DATATYPE_MISMATCH",
            f"column notation .{name} applied to type {value.type.sql}, which is not a struct",
            node,
        )
    kind = dict(value.type.fields).get(name)
    if kind is None:
        raise ctx.error("UNDEFINED_COLUMN", f'field "{name}" not found in {value.type.sql}', node)
    return Value(call("struct_extract", value.expression, exp.Literal.string(name)), kind)


def row(nodes: list[exp.Expression], ctx: Context, bind: Bind) -> Value:
    """`row(…)`: a struct with the fields f1, f2 …"""
    values = [bind(n, ctx) for n in nodes]
    scalars = [v.finish() for v in values]
    fields = tuple((f"f{i + 1}", s.type) for i, s in enumerate(scalars))
    pairs = [
        exp.PropertyEQ(this=exp.to_identifier(f[0]), expression=s.expression)
        for f, s in zip(fields, scalars, strict=True)
    ]
    return Value(exp.Struct(expressions=pairs), SqlType("struct", fields=fields), nullable=False, parts=tuple(values))


READERS: Final[dict[type, Reader]] = {exp.Array: _array, exp.Bracket: _bracket, exp.Dot: _dot}
