"""Functions of arrays, and arrays, structs and rows with their syntax: `ARRAY[…]`, `a[i]`, `(s).field`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlglot import exp

from watersmeet.dialects.tree.nodes import sql_of
from watersmeet.dialects.tree.queries import name_of
from watersmeet.expressions.calls import Arguments, Builder, constant_of, count_checked, mismatch_of
from watersmeet.expressions.casts import cast, coerce, unify
from watersmeet.expressions.context import Context, Value, call, common_type, duckdb_cast, fill, number
from watersmeet.expressions.jsonfunctions import json_element
from watersmeet.types import BIGINT, BOOLEAN, INTEGER, JSONB, NUMERIC, VARCHAR, SqlType

#: What an array function gives for arrays of an element type.
Result = Callable[[SqlType], SqlType]

_INTEGERS: Final = SqlType("array", element=INTEGER)


def dimensions(kind: SqlType) -> int:
    """How deep the arrays of the type are nested."""
    return 0 if kind.element is None else 1 + dimensions(kind.element)


def _array(kind: SqlType) -> SqlType:
    return SqlType("array", element=kind)


def _element(kind: SqlType) -> SqlType:
    return kind


def _sum(kind: SqlType) -> SqlType:
    return kind if kind.is_float else BIGINT if kind.name in ("smallint", "integer") else NUMERIC


def _fixed(kind: SqlType) -> Result:
    return lambda _element: kind


def _function(name: str, shape: str, template: str, result: Result) -> Builder:
    """shape: a letter an argument: `a` an array, `e` an element, `i` an integer."""

    def build(arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
        count_checked(name, arguments, (len(shape),), node, ctx)
        known = [
            a.type if s == "e" else a.type.element
            for a, s in zip(arguments, shape, strict=True)
            if not a.unknown and (s == "e" or (s == "a" and a.type.name == "array"))
        ]
        kinds = [k for k in known if k is not None]
        kind = common_type(kinds) if kinds else None
        fits = all(
            a.unknown or s == "e" or (a.type.name == "array" if s == "a" else a.type.is_integer)
            for a, s in zip(arguments, shape, strict=True)
        )
        if kind is None or not fits:
            words = {"a": "an array", "e": "an element", "i": "an integer"}
            raise mismatch_of(name, arguments, node, ctx, f"It takes {', '.join(words[s] for s in shape)}.")
        wanted = {"a": _array(kind), "e": kind, "i": INTEGER}
        values = [
            cast(a, wanted[s], ctx, n) if a.unknown else coerce(a, wanted[s], ctx, n) if a.type != wanted[s] else a
            for a, s, n in zip(arguments, shape, nodes, strict=True)
        ]
        found = result(kind)
        return Value(duckdb_cast(fill(template, *[v.expression for v in values]), found), found)

    return build


def _length(name: str, template: str) -> Builder:
    """A function of an array and a dimension; of the first one only, unless the array has no other."""

    def build(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
        one = (
            [Value(exp.Literal.number(1), INTEGER, nullable=False)]
            if name == "array_length" and len(arguments) == 1
            else []
        )
        arguments = [*arguments, *one]
        count_checked(name, arguments, (2,), node, ctx)
        wanted = constant_of(arguments[1], INTEGER, node, ctx, example=1)
        if arguments[0].type.name != "array" or wanted is None:
            raise mismatch_of(name, arguments, node, ctx, "It takes an array and the number of a dimension.")
        depth = dimensions(arguments[0].type)
        array = arguments[0].finish().expression
        if not 1 <= wanted <= depth:
            return Value(duckdb_cast(exp.null(), INTEGER), INTEGER)
        for _ in range(wanted - 1):
            array = fill("list_extract(a0, 1)", array)
        return Value(duckdb_cast(fill(template, array), INTEGER), INTEGER)

    return build


def _cardinality(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("cardinality", arguments, (1,), node, ctx)
    if arguments[0].type.name != "array":
        raise mismatch_of("cardinality", arguments, node, ctx, "It takes an array.")
    array = arguments[0].finish().expression
    for _ in range(dimensions(arguments[0].type) - 1):
        array = fill("flatten(a0)", array)
    return Value(duckdb_cast(fill("len(a0)", array), INTEGER), INTEGER)


def _ndims(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("array_ndims", arguments, (1,), node, ctx)
    depth = dimensions(arguments[0].type)
    if not depth:
        raise mismatch_of("array_ndims", arguments, node, ctx, "It takes an array.")
    return Value(
        duckdb_cast(fill(f"CASE WHEN len(a0) > 0 THEN {depth} END", arguments[0].expression), INTEGER), INTEGER
    )


def _by_shape(name: str, *forms: tuple[str, str, Result]) -> Builder:
    """Several forms of one function, told apart by their number of arguments."""
    found = {len(shape): _function(name, shape, template, result) for shape, template, result in forms}

    def build(arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
        count_checked(name, arguments, tuple(found), node, ctx)
        return found[len(arguments)](arguments, nodes, node, ctx)

    return build


#: NULL is an array without elements to `||` and its kin (9.19).
_APPENDED: Final = "list_append(coalesce(a0, []), a1)"

_PREPENDED: Final = "list_prepend(a0, coalesce(a1, []))"

#: Two arrays as one; NULL if both are.
JOINED: Final = "CASE WHEN a0 IS NULL THEN a1 WHEN a1 IS NULL THEN a0 ELSE list_concat(a0, a1) END"

_SAME: Final = "(_e IS NOT DISTINCT FROM a1)"

ARRAY_FUNCTIONS: Final[dict[str, Builder]] = {
    "array_append": _by_shape("array_append", ("ae", _APPENDED, _array)),
    "array_cat": _by_shape("array_cat", ("aa", JOINED, _array)),
    "array_contains": _by_shape("array_contains", ("aa", "list_has_all(a0, a1)", _fixed(BOOLEAN))),
    "array_dims": _by_shape("array_dims", ("a", "CASE WHEN len(a0) > 0 THEN '[1:' || len(a0) || ']' END",
    _fixed(VARCHAR))),
    "array_distinct": _by_shape("array_distinct", ("a", "list_filter(a0, lambda _e, _i: list_position(a0, _e) = _i)",
    _array)),
    "array_length": _length("array_length", "nullif(len(a0), 0)"),
    "array_lower": _length("array_lower", "CASE WHEN len(a0) > 0 THEN 1 END"),
    "array_max": _by_shape("array_max", ("a", "list_max(a0)", _element)),
    "array_min": _by_shape("array_min", ("a", "list_min(a0)", _element)),
    "array_ndims": _ndims,
    "array_position": _by_shape(
        "array_position", ("ae", "list_position(a0, a1)", _fixed(INTEGER)),
        ("aei", "list_position(list_slice(a0, greatest(a2, 1), len(a0)), a1) + greatest(a2, 1) - 1", _fixed(INTEGER))),
    "array_positions": _by_shape(
        "array_positions", ("ae", (f"list_filter(list_transform(a0, lambda _e, _i: CASE WHEN {_SAME} THEN _i END), "
                                  "lambda _p: _p IS NOT NULL)"), _fixed(_INTEGERS))),
    "array_prepend": _by_shape("array_prepend", ("ea", _PREPENDED, _array)),
    "array_remove": _by_shape("array_remove", ("ae", f"list_filter(a0, lambda _e: NOT {_SAME})", _array)),
    "array_replace": _by_shape("array_replace", ("aee",
    f"list_transform(a0, lambda _e: CASE WHEN {_SAME} THEN a2 ELSE _e END)",
                                                 _array)),
    "array_reverse": _by_shape("array_reverse", ("a", "list_reverse(a0)", _array)),
    "array_sort": _by_shape("array_sort", ("a", "list_sort(a0, 'ASC', 'NULLS LAST')", _array)),
    "array_sum": _by_shape("array_sum", ("a", "list_sum(a0)", _sum)),
    "array_upper": _length("array_upper", "nullif(len(a0), 0)"),
    "cardinality": _cardinality,
    "trim_array": _by_shape("trim_array", ("ai",
    "CASE WHEN a1 BETWEEN 0 AND len(a0) THEN list_slice(a0, 1, len(a0) - a1) END", _array)),
}  # fmt: skip

Bind = Callable[[exp.Expression, Context], Value]
Reader = Callable[[Any, Context, Bind], Value]


def _array_literal(node: Any, ctx: Context, bind: Bind) -> Value:
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


READERS: Final[dict[type, Reader]] = {exp.Array: _array_literal, exp.Bracket: _bracket, exp.Dot: _dot}
