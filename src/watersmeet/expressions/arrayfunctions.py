"""Binds ClickHouse's functions of arrays and tuples, with lambdas: `array_map(x -> x * 2, a)`.

A lambda is part of a `LambdaCall`. Its parameters are variables of DuckDB's lambda over the first array, or over the
indexes of several arrays of one length. A condition may be a number, which is true unless it is 0. A function that
selects an element returns the default of its type if there is none. Tuples are structs with the fields 1, 2 …
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from sqlglot import exp

from watersmeet.dialects.tree.nodes import LambdaCall
from watersmeet.dialects.tree.queries import name_of
from watersmeet.dialects.tree.sqltypes import type_default
from watersmeet.expressions.calls import Builder, FunctionCall, at_least, check_count, counted, limited
from watersmeet.expressions.casts import cast, coerce, text_of, unify
from watersmeet.expressions.context import Context, Value, call, duckdb_cast, fill, number, variable
from watersmeet.values.types import BIGINT, BOOLEAN, DOUBLE, INTEGER, NUMERIC, VARCHAR, SqlType, map_of

Bind = Callable[[exp.Expression, Context], Value]


def array_of(kind: SqlType) -> SqlType:
    """The array type with elements of type `kind`."""
    return SqlType("array", element=kind)


def default_of(kind: SqlType) -> exp.Expression:
    """The default of a type in DuckDB; NULL for a type without one."""
    found = type_default(kind)
    return duckdb_cast(exp.null() if found is None else fill(found), kind)


@dataclass(frozen=True)
class Mapped:
    """The arguments of a function of arrays.

    arrays: the arrays; the first one is the result of functions that select elements. values: an array with the values
    of the lambda, or the first array itself without a lambda.
    """

    c: FunctionCall
    arrays: tuple[Value, ...]
    values: Value
    is_plain: bool

    @property
    def conditions(self) -> exp.Expression:
        """The values as an array of booleans without NULLs."""
        kind = element_of(self.values)
        if kind != BOOLEAN and not kind.is_numeric:
            raise self.c.mismatch("Its lambda must return a condition.")
        test = "_e" if kind == BOOLEAN else "_e <> 0"
        return fill(f"list_transform(a0, lambda _e: coalesce({test}, false))", self.values.expression)

    @property
    def numbers(self) -> Value:
        """The values as an array of bigint, numeric or double precision."""
        kind = element_of(self.values)
        if kind == BOOLEAN:
            kind = INTEGER
        if not kind.is_numeric:
            raise self.c.mismatch("It takes an array of numbers.")
        wide = BIGINT if kind.is_integer else DOUBLE if kind.is_float else NUMERIC
        return Value(duckdb_cast(self.values.expression, array_of(wide)), array_of(wide))


def element_of(array: Value) -> SqlType:
    """The type of the elements of an array."""
    assert array.type.element is not None
    return array.type.element


def _arrays(c: FunctionCall, values: Sequence[Value]) -> tuple[Value, ...]:
    for value in values:
        if value.type.name != "array":
            raise c.mismatch("It takes arrays.")
    return tuple(Value(v.finish().expression, v.type) for v in values)


Make = Callable[[Mapped], Value]


def _map(m: Mapped) -> Value:
    return m.values


def _select(template: str, kind: Callable[[SqlType], SqlType]) -> Make:
    """A template over the first array a0, the conditions a1 and the default of an element a2."""

    def make(m: Mapped) -> Value:
        element = element_of(m.arrays[0])
        found = kind(element)
        parts = (m.arrays[0].expression, m.conditions, default_of(element))
        return Value(duckdb_cast(fill(template, *parts), found), found)

    return make


def _same(kind: SqlType) -> SqlType:
    return kind


def _fixed(kind: SqlType) -> Callable[[SqlType], SqlType]:
    return lambda _element: kind


#: The condition that holds for nothing but the array's end; conditions have no NULLs.
_INDEXES: Final = "list_filter(list_transform(a1, lambda _e, _i: CASE WHEN _e THEN _i END), lambda _n: _n IS NOT NULL)"

#: The number of the last element up to `_i`, or of the first one from it on, for which the condition holds.
_BEFORE: Final = "coalesce(list_max(list_filter(range(1, _i + 1), lambda _j: list_extract(a1, _j))), 1)"
_BEHIND: Final = "coalesce(list_min(list_filter(range(_i, len(a0) + 1), lambda _j: list_extract(a1, _j))), len(a0))"
#: The first elements of pieces, and the one behind the last piece.
_STARTS: Final = (
    "list_concat([1], list_filter(list_transform(a1, lambda _e, _i: CASE WHEN _e AND _i > 1 THEN _i END), "
    "lambda _n: _n IS NOT NULL), [len(a0) + 1])"
)
_STARTS_BEHIND: Final = _STARTS.replace("_i > 1 THEN _i END", "_i < len(a0) THEN _i + 1 END")
_PIECES: Final = (
    "CASE WHEN len(a0) = 0 THEN [] ELSE list_extract(list_transform([{starts}], lambda _s: list_transform("
    "range(1, len(_s)), lambda _k: list_slice(a0, list_extract(_s, _k), list_extract(_s, _k + 1) - 1))), 1) END"
)


def _arrays_of(kind: SqlType) -> SqlType:
    return array_of(array_of(kind))


_SELECTING: Final[Mapping[str, Make]] = {
    "array_split": _select(_PIECES.format(starts=_STARTS), _arrays_of),
    "array_reverse_split": _select(_PIECES.format(starts=_STARTS_BEHIND), _arrays_of),
    "array_fill": _select(f"list_transform(a0, lambda _e, _i: list_extract(a0, {_BEFORE}))", array_of),
    "array_reverse_fill": _select(f"list_transform(a0, lambda _e, _i: list_extract(a0, {_BEHIND}))", array_of),
    "array_all": _select("len(list_filter(a1, lambda _e: NOT _e)) = 0", _fixed(BOOLEAN)),
    "array_exists": _select("len(list_filter(a1, lambda _e: _e)) > 0", _fixed(BOOLEAN)),
    "array_count": _select("len(list_filter(a1, lambda _e: _e))", _fixed(BIGINT)),
    "array_filter": _select("list_where(a0, a1)", array_of),
    "array_first": _select("list_extract(list_append(list_where(a0, a1), a2), 1)", _same),
    "array_last": _select("list_extract(list_prepend(a2, list_where(a0, a1)), -1)", _same),
    "array_first_or_null": _select("list_extract(list_where(a0, a1), 1)", _same),
    "array_last_or_null": _select("list_extract(list_where(a0, a1), -1)", _same),
    "array_first_index": _select("coalesce(list_position(a1, true), 0)", _fixed(BIGINT)),
    "array_last_index": _select(f"list_extract(list_prepend(0, {_INDEXES}), -1)", _fixed(BIGINT)),
}


def _numeric(template: str, result: SqlType | None = None) -> Make:
    """A template over the numbers a0. result: None for the type of the numbers."""

    def make(m: Mapped) -> Value:
        numbers = m.numbers
        found = element_of(numbers) if result is None else result
        return Value(duckdb_cast(fill(template, numbers.expression), found), found)

    return make


def _listed(template: str) -> Make:
    """A template over the numbers a0 and an empty array of them a1, whose result is such an array."""

    def make(m: Mapped) -> Value:
        numbers = m.numbers
        empty = duckdb_cast(exp.Array(expressions=[]), numbers.type)
        return Value(duckdb_cast(fill(template, numbers.expression, empty), numbers.type), numbers.type)

    return make


def _extreme(name: str) -> Make:
    def make(m: Mapped) -> Value:
        kind = element_of(m.values)
        return Value(fill(f"coalesce({name}(a0), a1)", m.values.expression, default_of(kind)), kind)

    return make


def _sorted(*, descending: bool) -> Make:
    """The first array in the order of the values; equal ones keep their order."""
    place, order = ("-_i", "DESC") if descending else ("_i", "ASC")

    def make(m: Mapped) -> Value:
        if m.is_plain:
            found = fill(f"list_sort(a0, '{order}', 'NULLS LAST')", m.arrays[0].expression)
            return Value(found, m.arrays[0].type)
        places = f"list_transform(a0, lambda _e, _i: {place})"
        ranked = f"list_sort(list_zip(a1, {places}, a0), '{order}', 'NULLS LAST')"
        template = f"list_transform({ranked}, lambda _s: struct_extract(_s, 3))"
        found = fill(template, m.arrays[0].expression, m.values.expression)
        return Value(duckdb_cast(found, m.arrays[0].type), m.arrays[0].type)

    return make


def _let(template: str) -> str:
    """A template that names the array a0 `_m`, so that its expression is computed once."""
    return f"list_extract(list_transform([a0], lambda _m: {template}), 1)"


_RUNNING: Final = (
    "list_reduce(list_transform(a0, lambda _e: [_e]), "
    "lambda _s, _x: list_append(_s, coalesce(list_extract(_s, -1), 0) + list_extract(_x, 1)), a1)"
)
_NOT_NEGATIVE: Final = _RUNNING.replace("coalesce", "greatest(coalesce").replace("_x, 1))", "_x, 1), 0))")

_COMPUTING: Final[Mapping[str, Make]] = {
    "array_map": _map,
    "array_avg": _numeric("list_avg(a0)", DOUBLE),
    "array_sum": _numeric("coalesce(list_sum(a0), 0)"),
    "array_product": _numeric("coalesce(list_product(a0), 1)", DOUBLE),
    "array_cum_sum": _listed(_RUNNING),
    "array_cum_sum_non_negative": _listed(_NOT_NEGATIVE),
    "array_difference": _listed(_let(
        "list_transform(_m, lambda _e, _i: CASE WHEN _i = 1 THEN 0 ELSE _e - list_extract(_m, _i - 1) END)")),
    "array_min": _extreme("list_min"), "array_max": _extreme("list_max"),
    "array_sort": _sorted(descending=False), "array_reverse_sort": _sorted(descending=True),
}  # fmt: skip

#: The functions whose first argument may be a lambda.
_HIGHER: Final[Mapping[str, Make]] = {**_SELECTING, **_COMPUTING}

#: Functions for which the lambda is required.
_LAMBDA_ONLY: Final = (
    "array_map", "array_filter", "array_split", "array_reverse_split", "array_fill", "array_reverse_fill",
)  # fmt: skip

#: The functions whose lambda takes a key and a value of a map, with the template over the map a0 and the values a1.
_OF_MAPS: Final = {
    "map_filter": "list_where(a0, a1)",
    "map_exists": "len(list_filter(a1, lambda _e: _e)) > 0",
    "map_all": "len(list_filter(a1, lambda _e: NOT _e)) = 0",
    "map_apply": "list_transform(a0, lambda _e: struct_pack(key := struct_extract_at(_e, 1), "
    "value := struct_extract_at(_e, 2)))",
}


def _plain_call(make: Make) -> Builder:
    """A function of arrays without a lambda."""

    def build(c: FunctionCall) -> Value:
        (array,) = _arrays(c, c.arguments)
        return make(Mapped(c, (array,), array, is_plain=True))

    return counted(build, 1)


def _without_lambda(c: FunctionCall) -> Value:
    raise c.mismatch("Its first argument is a lambda: x -> x > 1.")


def _applied(node: Any, ctx: Context, bind: Bind) -> Value:
    """A call whose first argument is a lambda."""
    function, arguments = node.args["function"], list(node.expressions)
    c = FunctionCall(node.this, [bind(a, ctx) for a in arguments], arguments, node, ctx)
    if c.name == "array_fold":
        return _folded(c, function, bind)
    if c.name in _OF_MAPS:
        return _of_entries(c, function, bind)
    if c.name not in _HIGHER:
        raise c.not_supported(f"{c.name} with a lambda", hint="array_map, array_filter and array_fold take one.")
    names = [name_of(p) for p in function.expressions]
    arrays = _arrays(c, c.arguments)
    if len(names) != len(arrays) or not arrays:
        raise c.mismatch(f"The lambda takes {len(names)} values of {len(names)} arrays, not of {len(arrays)}.")
    item = variable(len(ctx.variables))
    if len(arrays) == 1:
        elements, over = [Value(item, element_of(arrays[0]))], arrays[0].expression
    else:
        elements = [Value(call("list_extract", a.expression, item), element_of(a)) for a in arrays]
        over = fill("range(1, len(a0) + 1)", arrays[0].expression)
    body = _body(function.this, dict(zip(names, elements, strict=True)), ctx, bind)
    each = exp.Lambda(this=body.expression, expressions=[item.copy()])
    values = Value(call("list_transform", over, each), array_of(body.type))
    return _HIGHER[c.name](Mapped(c, arrays, values, is_plain=False))


def _of_entries(c: FunctionCall, function: exp.Expression, bind: Bind) -> Value:
    """A function of a map, whose lambda takes a key and a value."""
    names = [name_of(p) for p in function.expressions]
    kind = c.arguments[0].type if len(c.arguments) == 1 else VARCHAR
    if kind.name != "map" or len(names) != 2:
        raise c.mismatch("It takes a lambda of a key and a value, and a map.")
    entries, item = c.arguments[0].finish().expression, variable(len(c.ctx.variables))
    parts = {
        name: Value(call("struct_extract", item, exp.Literal.string(part)), of)
        for name, part, of in zip(names, ("key", "value"), kind.entry, strict=True)
    }
    body = _body(function.this, parts, c.ctx, bind)
    values = Value(call("list_transform", entries, exp.Lambda(this=body.expression, expressions=[item.copy()])),
                   array_of(body.type))  # fmt: skip
    if c.name != "map_apply":
        found = kind if c.name == "map_filter" else BOOLEAN
        conditions = Mapped(c, (values,), values, is_plain=False).conditions
        return Value(duckdb_cast(fill(_OF_MAPS[c.name], entries, conditions), found), found)
    if len(body.type.fields) != 2:
        raise c.mismatch("Its lambda returns a tuple of a key and a value.")
    made = map_of(*[of for _, of in body.type.fields])
    return Value(duckdb_cast(fill(_OF_MAPS[c.name], values.expression), made), made)


def _body(node: exp.Expression, variables: Mapping[str, Value], ctx: Context, bind: Bind) -> Value:
    """The value of a lambda's body with these variables in sight."""
    outer, ctx.variables = ctx.variables, {**ctx.variables, **variables}
    try:
        value = bind(node, ctx)
    finally:
        ctx.variables = outer
    value = cast(value, VARCHAR, ctx, node) if value.unknown else value
    return Value(value.finish().expression, value.type, value.nullable)


def _folded(c: FunctionCall, function: exp.Expression, bind: Bind) -> Value:
    """`array_fold((acc, x) -> …, array, start)`. The lambda returns the type of the start."""
    start, arrays = c.arguments[-1], _arrays(c, c.arguments[:-1])
    names = [name_of(p) for p in function.expressions]
    if len(names) != len(arrays) + 1 or not arrays:
        raise c.mismatch("Its lambda takes the accumulator and a value of each array.")
    start = cast(start, VARCHAR, c.ctx, c.node) if start.unknown else start
    state, step, index = (variable(len(c.ctx.variables) + i) for i in range(3))
    found = {names[0]: Value(fill("struct_extract(a0, 'acc')", state), start.type)}
    for i, (name, array) in enumerate(zip(names[1:], arrays, strict=True)):
        found[name] = Value(fill(f"struct_extract(a0, 'e{i}')", step), element_of(array))
    body = coerce(_body(function.this, found, c.ctx, bind), start.type, c.ctx, c.nodes[0])

    def rows(state_of: str, values: list[str], *more: exp.Expression) -> exp.Expression:
        parts = ", ".join([f"acc := {state_of}", *(f"e{i} := {v}" for i, v in enumerate(values))])
        return fill(f"struct_pack({parts})", *more)

    every = range(len(arrays))
    empty = [duckdb_cast(exp.null(), element_of(a)) for a in arrays]
    first = rows("a0", [f"a{i + 1}" for i in every], start.finish().expression, *empty)
    places = fill("range(1, len(a0) + 1)", arrays[0].expression)
    values = [call("list_extract", a.expression, index) for a in arrays]
    items = rows("a0", [f"a{i + 1}" for i in every], empty_of(start.type), *values)
    steps = call("list_transform", places, exp.Lambda(this=items, expressions=[index.copy()]))
    next_ = rows("a0", [f"struct_extract(a1, 'e{i}')" for i in every], body.finish().expression, step)
    each = exp.Lambda(this=next_, expressions=[state.copy(), step.copy()])
    whole = call("list_reduce", steps, each, first)
    return Value(duckdb_cast(fill("struct_extract(a0, 'acc')", whole), start.type), start.type)


def empty_of(kind: SqlType) -> exp.Expression:
    """NULL with a type."""
    return duckdb_cast(exp.null(), kind)


def _shaped(shape: str, template: str, result: Callable[[SqlType], SqlType] | SqlType) -> Builder:
    """A function of arrays and values of their elements' type. shape: for each argument `a` array, `e` element, `i`
    integer; the last one may be missing if it is in capitals, then it is NULL.
    """

    def build(c: FunctionCall) -> Value:
        check_count(c, *({len(shape)} if shape.islower() else {len(shape) - 1, len(shape)}))
        shapes = shape.lower()[: len(c.arguments)]
        kinds = [a.type.element if s == "a" else a.type for a, s in zip(c.arguments, shapes, strict=True)]
        if any(s == "a" and a.type.name != "array" for a, s in zip(c.arguments, shapes, strict=True)):
            raise c.mismatch("It takes an array.")
        places = [i for i, s in enumerate(shapes) if s in "ae"]
        plain = [c.arguments[i] if shapes[i] == "e" else Value(exp.null(), kinds[i] or VARCHAR) for i in places]
        _, kind = unify(plain, [c.nodes[i] for i in places], c.ctx, c.name)
        wanted = {"a": array_of(kind), "e": kind, "i": BIGINT}
        values = [coerce(v, wanted[s], c.ctx, n).finish().expression
                  for v, s, n in zip(c.arguments, shapes, c.nodes, strict=True)]  # fmt: skip
        missing = len(shape) - len(values)
        values += [empty_of(wanted[s]) for s in shape.lower()[-missing:]] if missing else []
        found = result if isinstance(result, SqlType) else result(kind)
        return Value(duckdb_cast(fill(template, *values, default_of(kind)), found), found)

    return build


#: The parts of an array from one index to another; an index below 0 counts from the end.
_SLICE_START: Final = "(CASE WHEN a1 < 0 THEN greatest(len(a0) + a1 + 1, 1) ELSE greatest(a1, 1) END)"
_SLICE: Final = (
    f"list_slice(a0, {_SLICE_START}, CASE WHEN a2 IS NULL THEN len(a0) WHEN a2 < 0 THEN len(a0) + a2 "
    f"ELSE {_SLICE_START} + a2 - 1 END)"
)
_COMPACT: Final = _let(
    "list_filter(_m, lambda _e, _i: _i = 1 OR _e IS DISTINCT FROM list_extract(_m, greatest(_i - 1, 1)))"
)
_FIRST_ONCE: Final = _let("list_filter(_m, lambda _e, _i: list_position(_m, _e) = _i)")
_SIZE: Final = limited("abs(a1) * 8")
_RESIZED: Final = (
    f"CASE WHEN a1 >= 0 THEN list_resize(a0, {_SIZE}, coalesce(a2, a3)) "
    f"ELSE list_reverse(list_resize(list_reverse(a0), -({_SIZE}), coalesce(a2, a3))) END"
)


_TURN: Final = "((_i - 1 + a1) % len(a0) + len(a0)) % len(a0) + 1"
_ROTATED: Final = f"list_transform(a0, lambda _e, _i: list_extract(a0, {_TURN}))"
_SHIFTED: Final = (
    "list_transform(a0, lambda _e, _i: CASE WHEN _i + a1 BETWEEN 1 AND len(a0) THEN list_extract(a0, _i + a1) "
    "ELSE coalesce(a2, a3) END)"
)


def _concat(c: FunctionCall) -> Value:
    values, kind = unify(_arrays(c, c.arguments), c.nodes, c.ctx, c.name)
    whole = reduce(lambda a, b: fill("list_concat(a0, a1)", a, b), [v.expression for v in values])
    return Value(duckdb_cast(whole, kind), kind)


def _string_concat(c: FunctionCall) -> Value:
    """The texts of the elements without NULLs, with a separator."""
    (array,) = _arrays(c, c.arguments[:1])
    item = exp.to_identifier("_e")
    each = exp.Lambda(this=text_of(Value(item.copy(), element_of(array))), expressions=[item])
    texts = call("list_transform", array.expression, each)
    separator = c.text(1, example="", what="a separator") if len(c.arguments) > 1 else ""
    return Value(call("array_to_string", texts, exp.Literal.string(separator)), VARCHAR)


def _flatten(c: FunctionCall) -> Value:
    (array,) = _arrays(c, c.arguments)
    found, kind = array.expression, array.type
    while kind.element is not None and kind.element.name == "array":
        found, kind = call("flatten", found), kind.element
    return Value(found, kind)


def _tuple(c: FunctionCall) -> Value:
    """A tuple: a struct with the fields 1, 2 …"""
    scalars = [v.finish() for v in c.arguments]
    fields = tuple((str(i + 1), s.type) for i, s in enumerate(scalars))
    pairs = [
        exp.PropertyEQ(this=exp.to_identifier(name, quoted=True), expression=s.expression)
        for (name, _), s in zip(fields, scalars, strict=True)
    ]
    kind = SqlType("struct", fields=fields)
    return Value(exp.Struct(expressions=pairs), kind, nullable=False, parts=tuple(c.arguments))


def _tuple_element(c: FunctionCall) -> Value:
    """An element by its number from 1, or by its name."""
    value, place = c.arguments[:2]
    if value.type.name == "array" and value.type.element is not None and value.type.element.name == "struct":
        item = variable(len(c.ctx.variables))
        inner = _tuple_element(c.over([Value(item, value.type.element), *c.arguments[1:]]))
        each = exp.Lambda(this=inner.expression, expressions=[item.copy()])
        return Value(call("list_transform", value.expression, each), array_of(inner.type))
    if value.type.name != "struct":
        raise c.mismatch("It takes a tuple, and the number or the name of an element.")
    names = [name for name, _ in value.type.fields]
    written = place.expression.name
    first, _, rest = written.partition(".")
    if rest and (first + rest).isdecimal():  # `t.1.2`, in which 1.2 is one token
        outer = _tuple_element(c.over([value, Value(exp.Literal.number(first), place.type)]))
        return _tuple_element(c.over([outer, Value(exp.Literal.number(rest), place.type)]))
    name = written if written in names or not written.isdecimal() else dict(enumerate(names, 1)).get(int(written), "")
    if name not in names:
        if len(c.arguments) > 2:
            return c.arguments[2]
        raise c.error("UNDEFINED_COLUMN", f"the tuple has no element {written}")
    found = call("struct_extract", value.finish().expression, exp.Literal.string(name))
    return Value(found, dict(value.type.fields)[name])


def _zip(c: FunctionCall) -> Value:
    """An array of tuples. Arrays of different lengths fail."""
    arrays = _arrays(c, c.arguments)
    fields = tuple((str(i + 1), element_of(a)) for i, a in enumerate(arrays))
    kind = array_of(SqlType("struct", fields=fields))
    return Value(duckdb_cast(call("list_zip", *[a.expression for a in arrays]), kind), kind)


def _range(c: FunctionCall) -> Value:
    bounds = [c.cast(i, BIGINT).expression for i in range(len(c.arguments))]
    if len(bounds) == 1:
        return Value(fill(f"range(0, {limited('a0 * 8', 'a0', 'BIGINT')})", *bounds), array_of(BIGINT))
    length = limited("abs(a1 - a0) * 8", "a1", "BIGINT")
    return Value(fill(f"range(a0, {length}{', a2' if len(bounds) > 2 else ''})", *bounds), array_of(BIGINT))


#: The functions of `array_reduce`, each with the template of its result, and its type if it is not that of elements.
_REDUCING: Final[Mapping[str, str]] = {
    "sum": "array_sum", "avg": "array_avg", "min": "array_min", "max": "array_max", "count": "length",
    "uniq": "array_uniq", "uniq_exact": "array_uniq", "unique": "array_uniq", "unique_exact": "array_uniq",
    **{name: f"list_{name}" for name in ("median", "stddev_pop", "stddev_samp", "var_pop", "var_samp")},
    "any": "array_element_1", "group_array": "array", "group_uniq_array": "array_distinct",
}  # fmt: skip


def _reduced(c: FunctionCall) -> Value:
    name = c.text(0, example="sum", what="a name").lower()
    if name not in _REDUCING:
        raise c.not_supported(
            f"array_reduce('{name}', …)", hint=f"Supported functions: {', '.join(_REDUCING)}; or write array_fold."
        )
    inner = c.over(c.arguments[1:], c.nodes[1:])
    made = _REDUCING[name]
    if made.startswith("list_"):
        (array,) = _arrays(c, inner.arguments)
        numbers = duckdb_cast(array.expression, array_of(DOUBLE))
        return Value(call(made, numbers), DOUBLE)
    if made == "array":
        return _arrays(c, inner.arguments)[0]
    if made == "length":
        return Value(duckdb_cast(call("list_count", _arrays(c, inner.arguments)[0].expression), BIGINT), BIGINT)
    if made == "array_element_1":
        array = _arrays(c, inner.arguments)[0]
        return Value(fill("coalesce(list_extract(a0, 1), a1)", array.expression, default_of(element_of(array))),
                     element_of(array))  # fmt: skip
    return _BUILDERS[made](inner)


def _ranked(c: FunctionCall) -> Value:
    """The most frequent values as tuples with their counts; equally frequent ones by value."""
    (array,) = _arrays(c, c.arguments[:1])
    kind = array_of(SqlType("struct", fields=(("1", element_of(array)), ("2", BIGINT))))
    count = "-len(list_filter(_m, lambda _o: _o = _v))"
    counts = f"list_transform(list_distinct(_m), lambda _v: struct_pack(n := {count}, v := _v))"
    found = _let(
        f'list_transform(list_slice(list_sort({counts}), 1, a1), lambda _s: struct_pack("1" := _s.v, "2" := -_s.n))'
    )
    return Value(duckdb_cast(fill(found, array.expression, c.cast(1, BIGINT).expression), kind), kind)


def _quantile_exact(c: FunctionCall) -> Value:
    """The value at the level of the sorted values; the default of their type without values."""
    (array,) = _arrays(c, c.arguments[:1])
    level = c.cast(1, DOUBLE).expression if len(c.arguments) > 1 else duckdb_cast(number("0.5"), DOUBLE)
    found = _let("list_extract(_m, least(CAST(floor(len(_m) * a1) AS BIGINT) + 1, len(_m)))")
    value = fill(found, fill("list_sort(a0)", array.expression), level)
    return Value(fill("coalesce(a0, a1)", value, default_of(element_of(array))), element_of(array))


def _moving(template: str, result: SqlType | None) -> Builder:
    """A function of each value and the ones before it, as many as the second argument, or all."""

    def build(c: FunctionCall) -> Value:
        size = int(c.arguments[1].expression.name) if len(c.arguments) > 1 else 2**31
        (array,) = _arrays(c, c.arguments[:1])
        numbers = Mapped(c, (array,), array, is_plain=True).numbers
        kind = array_of(element_of(numbers) if result is None else result)
        each = _let(f"list_transform(_m, lambda _e, _i: {template.format(size)})")
        return Value(duckdb_cast(fill(each, numbers.expression), kind), kind)

    return counted(build, 1, 2)


def _not_null(c: FunctionCall) -> Value:
    """The value, or the default of its type instead of NULL."""
    value = cast(c.arguments[0], VARCHAR, c.ctx, c.node) if c.arguments[0].unknown else c.arguments[0]
    whole = fill("coalesce(a0, a1)", value.finish().expression, default_of(value.type))
    return Value(whole, value.type, nullable=False)


_BUILDERS: Final[dict[str, Builder]] = {
    **{name: _plain_call(make) for name, make in _HIGHER.items() if name not in _LAMBDA_ONLY},
    **dict.fromkeys(_LAMBDA_ONLY, _without_lambda), "array_fold": _without_lambda,
    "array_compact": _shaped("a", _COMPACT, array_of),
    "array_concat": at_least(_concat, 1),
    "array_distinct": _shaped("a", _FIRST_ONCE, array_of),
    "array_enumerate": _shaped("a", "list_transform(a0, lambda _e, _i: _i)", array_of(BIGINT)),
    "array_flatten": counted(_flatten, 1),
    "array_intersect": _shaped("aa", "list_filter(list_distinct(a0), lambda _e: list_contains(a1, _e))", array_of),
    "array_pop_back": _shaped("a", "list_slice(a0, 1, len(a0) - 1)", array_of),
    "array_pop_front": _shaped("a", "list_slice(a0, 2, len(a0))", array_of),
    "array_push_back": _shaped("ae", "list_append(a0, a1)", array_of),
    "array_push_front": _shaped("ae", "list_prepend(a1, a0)", array_of),
    "array_reduce": at_least(_reduced, 2),
    "array_resize": _shaped("aiE", _RESIZED, array_of),
    "array_reverse": _shaped("a", "list_reverse(a0)", array_of),
    "array_slice": _shaped("aiI", _SLICE, array_of),
    "array_string_concat": counted(_string_concat, 1, 2),
    "array_uniq": _shaped("a", "len(list_distinct(a0)) + CASE WHEN len(a0) > list_count(a0) THEN 1 ELSE 0 END", BIGINT),
    "array_with_constant": counted(
        lambda c: _repeated(c.over([c.arguments[1], c.arguments[0]], [c.nodes[1], c.nodes[0]])), 2),
    "array_zip": at_least(_zip, 1),
    "array_enumerate_dense": _shaped("a", _let("list_transform(_m, lambda _e: list_position(list_filter(_m, lambda _o, "
                                     "_i: list_position(_m, _o) = _i), _e))"), array_of(BIGINT)),
    "array_enumerate_uniq": _shaped("a", _let("list_transform(_m, lambda _e, _i: len(list_filter(list_slice(_m, 1, "
                                    "_i), lambda _o: _o IS NOT DISTINCT FROM _e)))"), array_of(BIGINT)),
    "array_except": _shaped("aa", "list_filter(a0, lambda _e: NOT list_contains(a1, _e))", array_of),
    "array_jaccard_index": _shaped("aa", "len(list_filter(list_distinct(a0), lambda _e: list_contains(a1, _e))) / "
                                   "CAST(len(list_distinct(list_concat(a0, a1))) AS DOUBLE)", DOUBLE),
    "array_rotate_left": _shaped("ai", _ROTATED, array_of),
    "array_rotate_right": _shaped("ai", _ROTATED.replace("a1", "-a1"), array_of),
    "array_shift_left": _shaped("aiE", _SHIFTED, array_of),
    "array_shift_right": _shaped("aiE", _SHIFTED.replace("a1", "(-a1)"), array_of),
    "array_union": _shaped("aa", _let("list_filter(_m, lambda _e, _i: list_position(_m, _e) = _i)").replace(
        "[a0]", "[list_concat(a0, a1)]"), array_of),
    "array_shingles": _shaped("ai", "list_transform(range(1, greatest(len(a0) - a1 + 2, 1)), lambda _i: list_slice(a0, "
                              "_i, _i + a1 - 1))", lambda kind: array_of(array_of(kind))),
    "array_symmetric_difference": _shaped(
        "aa", "list_sort(list_filter(list_distinct(list_concat(a0, a1)), "
        "lambda _e: list_contains(a0, _e) <> list_contains(a1, _e)))", array_of),
    "assume_not_null": counted(_not_null, 1),
    "has_substr": _shaped("aa", "len(a1) = 0 OR len(list_filter(range(1, len(a0) + 1), lambda _i: "
                          "list_slice(a0, _i, _i + len(a1) - 1) = a1)) > 0", BOOLEAN),
    "count_equal": _shaped("ae", "len(list_filter(a0, lambda _e: _e IS NOT DISTINCT FROM a1))", BIGINT),
    "has": _shaped("ae", "coalesce(list_contains(a0, a1), false)", BOOLEAN),
    "has_all": _shaped("aa", "list_has_all(a0, a1)", BOOLEAN),
    "has_any": _shaped("aa", "list_has_any(a0, a1)", BOOLEAN),
    "index_of": _shaped("ae", "coalesce(list_position(a0, a1), 0)", BIGINT),
    "moving_avg": _moving("list_avg(list_slice(_m, greatest(_i - {} + 1, 1), _i))", DOUBLE),
    "moving_sum": _moving("list_sum(list_slice(_m, greatest(_i - {} + 1, 1), _i))", None),
    "quantile_exact": counted(_quantile_exact, 1, 2), "ranked": counted(_ranked, 2),
    "range": counted(_range, 1, 2, 3),
    "tuple_cast": at_least(_tuple, 1), "tuple_element": counted(_tuple_element, 2, 3),
}  # fmt: skip


def _repeated(c: FunctionCall) -> Value:
    """An array with a value, and how many times."""
    value = cast(c.arguments[0], VARCHAR, c.ctx, c.node) if c.arguments[0].unknown else c.arguments[0]
    kind = array_of(value.type)
    template = f"list_transform(range({limited('CAST(a1 AS BIGINT) * 8')}), lambda _i: a0)"
    return Value(duckdb_cast(fill(template, value.finish().expression, c.cast(1, BIGINT).expression), kind), kind)


#: Names are those of the reference; grammars insert them with the prefix `$`.
LIST_FUNCTIONS: Final[Mapping[str, Builder]] = _BUILDERS

READERS: Final[dict[type, Callable[[Any, Context, Bind], Value]]] = {LambdaCall: _applied}
