"""Binds functions and operators of arrays, structs and rows (PostgreSQL 17, 9.19), of maps, and subscripts.

A map is an array of its entries, in the order in which they were written (RisingWave, "Map functions and operators").
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from sqlglot import exp

from watersmeet.dialects.tree.nodes import sql_of
from watersmeet.dialects.tree.queries import name_of
from watersmeet.expressions.calls import (
    Builder,
    FunctionCall,
    at_least,
    check_count,
    constant_of,
    counted,
)
from watersmeet.expressions.casts import cast, coerce, unify
from watersmeet.expressions.context import (
    EQUAL_KEYS,
    UNPAIRED_KEYS,
    Context,
    Value,
    call,
    common_type,
    duckdb_cast,
    failing,
    fill,
    number,
    string,
)
from watersmeet.values.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INTEGER,
    INTERVAL,
    JSONB,
    MAP_KEYS,
    NUMERIC,
    TIMESTAMP,
    VARCHAR,
    SqlType,
    map_of,
)

Bind = Callable[[exp.Expression, Context], Value]
Reader = Callable[[Any, Context, Bind], Value]
#: Returns the result type of an array function for an element type.
Result = Callable[[SqlType], SqlType]


def dimensions(kind: SqlType) -> int:
    """The nesting depth of the type's arrays."""
    return 0 if kind.element is None else 1 + dimensions(kind.element)


def _array_of(kind: SqlType) -> SqlType:
    return SqlType("array", element=kind)


def _element(kind: SqlType) -> SqlType:
    return kind


def _sum(kind: SqlType) -> SqlType:
    return kind if kind.is_float else BIGINT if kind.name in ("smallint", "integer") else NUMERIC


def _shaped(shape: str, template: str, result: Result | SqlType) -> Builder:
    """A function of arrays. shape: a letter for each argument: `a` array, `e` element, `i` integer."""

    def build(c: FunctionCall) -> Value:
        pairs = list(zip(c.arguments, shape, strict=True))
        known = [
            a.type if s == "e" else a.type.element
            for a, s in pairs
            if not a.unknown and (s == "e" or (s == "a" and a.type.name == "array"))
        ]
        kinds = [k for k in known if k is not None]
        kind = common_type(kinds) if kinds else None
        fits = all(
            a.unknown or s == "e" or (a.type.name == "array" if s == "a" else a.type.is_integer) for a, s in pairs
        )
        if kind is None or not fits:
            words = {"a": "an array", "e": "an element", "i": "an integer"}
            raise c.mismatch(f"It takes {', '.join(words[s] for s in shape)}.")
        wanted = {"a": _array_of(kind), "e": kind, "i": INTEGER}
        values = [
            a if a.type == wanted[s] and not a.unknown else coerce(a, wanted[s], c.ctx, n)
            for (a, s), n in zip(pairs, c.nodes, strict=True)
        ]
        found = result if isinstance(result, SqlType) else result(kind)
        return Value(duckdb_cast(fill(template, *[v.expression for v in values]), found), found)

    return counted(build, len(shape))


def _length(template: str) -> Builder:
    """A function of an array and a constant dimension. Deeper dimensions are those of the first element."""

    def build(c: FunctionCall) -> Value:
        array, dimension = c.arguments
        wanted = constant_of(dimension, INTEGER, c.node, c.ctx, example=1)
        if array.type.name != "array" or wanted is None:
            raise c.mismatch("It takes an array and the number of a dimension.")
        if not 1 <= wanted <= dimensions(array.type):
            return Value(duckdb_cast(exp.null(), INTEGER), INTEGER)
        inner = array.finish().expression
        for _ in range(wanted - 1):
            inner = fill("list_extract(a0, 1)", inner)
        return Value(duckdb_cast(fill(template, inner), INTEGER), INTEGER)

    return counted(build, 2)


_UPPER: Final = _length("nullif(len(a0), 0)")


def _array_length(c: FunctionCall) -> Value:
    one = Value(exp.Literal.number(1), INTEGER, nullable=False)
    return _UPPER(c.over([*c.arguments, one]) if len(c.arguments) == 1 else c)


def _cardinality(c: FunctionCall) -> Value:
    if c.arguments[0].type.name != "array":
        raise c.mismatch("It takes an array.")
    array = c.arguments[0].finish().expression
    for _ in range(dimensions(c.arguments[0].type) - 1):
        array = fill("flatten(a0)", array)
    return Value(duckdb_cast(fill("len(a0)", array), INTEGER), INTEGER)


def _ndims(c: FunctionCall) -> Value:
    depth = dimensions(c.arguments[0].type)
    if not depth:
        raise c.mismatch("It takes an array.")
    found = fill(f"CASE WHEN len(a0) > 0 THEN {depth} END", c.arguments[0].expression)
    return Value(duckdb_cast(found, INTEGER), INTEGER)


def _array_position(c: FunctionCall) -> Value:
    check_count(c, 2, 3)
    return (_POSITION if len(c.arguments) == 2 else _POSITION_FROM)(c)


#: `||` and similar functions treat NULL as an empty array (9.19).
_APPENDED: Final = "list_append(coalesce(a0, []), a1)"

_PREPENDED: Final = "list_prepend(a0, coalesce(a1, []))"

#: Two concatenated arrays; NULL if both are NULL.
JOINED: Final = "CASE WHEN a0 IS NULL THEN a1 WHEN a1 IS NULL THEN a0 ELSE list_concat(a0, a1) END"

_SAME: Final = "(_e IS NOT DISTINCT FROM a1)"

_POSITION: Final = _shaped("ae", "list_position(a0, a1)", INTEGER)
_POSITION_FROM: Final = _shaped(
    "aei", "list_position(list_slice(a0, greatest(a2, 1), len(a0)), a1) + greatest(a2, 1) - 1", INTEGER
)

_CAT: Final = _shaped("aa", JOINED, _array_of)
_SUM: Final = _shaped("a", "list_sum(a0)", _sum)
_SUM_OF_INTERVALS: Final = _shaped(
    "a",
    "CASE WHEN list_count(a0) > 0 THEN list_reduce(list_filter(a0, lambda _e: _e IS NOT NULL), "
    "lambda _s, _e: _s + _e) END",
    _element,
)


def _array_sum(c: FunctionCall) -> Value:
    return (_SUM_OF_INTERVALS if c.arguments[0].type.element == INTERVAL else _SUM)(c)


def _array_cat(c: FunctionCall) -> Value:
    """Two joined arrays; an array that is an element of the other one is appended or prepended."""
    one, other = (dimensions(a.type) for a in c.arguments)
    if one and other and one - other in (1, -1):
        return ARRAY_FUNCTIONS["array_append" if one > other else "array_prepend"](c)
    return _CAT(c)


def _flattened(c: FunctionCall) -> Value:
    """`array_flatten`: the arrays of an array joined into one."""
    element = c.arguments[0].type.element
    if element is None or element.name != "array":
        raise c.mismatch("It takes an array of arrays.")
    return Value(call("flatten", c.arguments[0].finish().expression), element)


ARRAY_FUNCTIONS: Final[dict[str, Builder]] = {
    "array_append": _shaped("ae", _APPENDED, _array_of),
    "array_cat": counted(_array_cat, 2),
    "array_contains": _shaped("aa", "list_has_all(a0, a1)", BOOLEAN),
    "array_flatten": counted(_flattened, 1),
    "array_dims": _shaped("a", "CASE WHEN len(a0) > 0 THEN '[1:' || len(a0) || ']' END", VARCHAR),
    "array_distinct": _shaped("a", "list_filter(a0, lambda _e, _i: list_position(a0, _e) = _i)", _array_of),
    "array_length": _array_length,
    "array_lower": _length("CASE WHEN len(a0) > 0 THEN 1 END"),
    "array_max": _shaped("a", "list_max(a0)", _element),
    "array_min": _shaped("a", "list_min(a0)", _element),
    "array_ndims": counted(_ndims, 1),
    "array_position": _array_position,
    "array_positions": _shaped("ae", f"list_filter(list_transform(a0, lambda _e, _i: CASE WHEN {_SAME} THEN _i END), "
                                     "lambda _p: _p IS NOT NULL)", _array_of(INTEGER)),
    "array_prepend": _shaped("ea", _PREPENDED, _array_of),
    "array_remove": _shaped("ae", f"list_filter(a0, lambda _e: NOT {_SAME})", _array_of),
    "array_replace": _shaped("aee", f"list_transform(a0, lambda _e: CASE WHEN {_SAME} THEN a2 ELSE _e END)", _array_of),
    "array_reverse": _shaped("a", "list_reverse(a0)", _array_of),
    "array_sort": _shaped("a", "list_sort(a0, 'ASC', 'NULLS LAST')", _array_of),
    "array_sum": counted(_array_sum, 1),
    "array_upper": _UPPER,
    "cardinality": counted(_cardinality, 1),
    "trim_array": _shaped(
        "ai", "CASE WHEN a1 BETWEEN 0 AND len(a0) THEN list_slice(a0, 1, len(a0) - a1) END", _array_of),
}  # fmt: skip

_KEYS: Final = "list_transform(a0, lambda _p: _p.key)"
_VALUES: Final = "list_transform(a0, lambda _p: _p.value)"
#: The array of the value of the key a1; it is empty if the map a0 doesn't contain the key.
_FOUND: Final = "list_transform(list_filter(a0, lambda _p: _p.key = a1), lambda _p: _p.value)"
_WITHOUT: Final = "list_filter(a0, lambda _p: _p.key IS DISTINCT FROM a1)"
_MERGED: Final = (
    "CASE WHEN a0 IS NULL THEN a1 WHEN a1 IS NULL THEN a0 ELSE list_concat(list_filter(a0, lambda _p: "
    "NOT list_contains(list_transform(a1, lambda _q: _q.key), _p.key)), a1) END"
)
_ZIPPED: Final = "list_transform(range(1, len(a0) + 1), lambda _i: struct_pack(key := a0[_i], value := a1[_i]))"


def _added(sign: str) -> str:
    """The map of the sums or differences of the values of equal keys, in the order of the keys."""
    value = (
        "coalesce(list_extract(list_transform(list_filter({0}, lambda _q: _q.key = _k), lambda _q: _q.value), 1), 0)"
    )
    both = f"{value.format('a0')} {sign} {value.format('a1')}"
    keys = "list_sort(list_distinct(list_transform(list_concat(a0, a1), lambda _p: _p.key)))"
    return f"list_transform({keys}, lambda _k: struct_pack(key := _k, value := {both}))"


def _mapping(template: str, result: Callable[[SqlType], SqlType], shape: str = "") -> Builder:
    """A function of a map. result: its type by that of the map. shape: a letter for each further argument: `k` key,
    `v` value, `m` another map. The type of the map a0 is that of all maps.
    """

    def build(c: FunctionCall) -> Value:
        maps = [a for a, s in zip(c.arguments, "m" + shape, strict=True) if s == "m" and not a.is_null]
        kind = common_type([a.type for a in maps]) if maps else None
        if kind is None or kind.name != "map":
            raise c.mismatch("It takes maps with keys and values of one type." if "m" in shape else "It takes a map.")
        if "v" in shape and (wider := common_type([kind.entry[1], (value := c.arguments[1 + shape.index("v")]).type])):
            kind = kind if value.unknown else map_of(kind.entry[0], wider)
        wanted = {"m": kind, "k": kind.entry[0], "v": kind.entry[1]}
        values = [
            coerce(a, wanted[s], c.ctx, n).finish() for a, s, n in zip(c.arguments, "m" + shape, c.nodes, strict=True)
        ]
        found = result(kind)
        return Value(duckdb_cast(fill(template, *[v.expression for v in values]), found), found)

    return counted(build, 1 + len(shape))


def map_of_entries(entries: exp.Expression, kind: SqlType) -> Value:
    """The map of an array of structs of key and value. Equal keys and NULL as a key are errors of the row."""
    failed = failing(EQUAL_KEYS, "a0", kind.duckdb)
    checked = f"CASE WHEN len(list_distinct({_KEYS})) = len(a0) THEN a0 WHEN a0 IS NOT NULL THEN {failed} END"
    return Value(fill(checked, duckdb_cast(entries, kind)), kind)


def map_type(key: SqlType, value: SqlType, ctx: Context, node: exp.Expression) -> SqlType:
    """The type of a map. Raises FEATURE_NOT_SUPPORTED for keys whose values have several forms."""
    if key.name not in MAP_KEYS:
        raise ctx.not_supported(f"a map with keys of type {key.sql}", node)
    return map_of(key, value)


def map_literal(
    pairs: list[tuple[exp.Expression, exp.Expression]],
    node: exp.Expression,
    ctx: Context,
    bind: Bind,
    *,
    plain: bool = False,
) -> Value:
    """The map of written keys and values. plain: equal keys are allowed."""
    if not pairs:
        return Value(exp.Array(expressions=[]), map_of(VARCHAR, VARCHAR), nullable=False, exact=False)
    keys, key = unify([bind(k, ctx) for k, _ in pairs], [k for k, _ in pairs], ctx, "MAP")
    values, value = unify([bind(v, ctx) for _, v in pairs], [v for _, v in pairs], ctx, "MAP")
    kind = map_type(key, value, ctx, node)
    parts = [fill("struct_pack(key := a0, value := a1)", k.expression, v.expression)
             for k, v in zip(keys, values, strict=True)]  # fmt: skip
    entries = exp.Array(expressions=parts)
    return Value(duckdb_cast(entries, kind), kind, nullable=False) if plain else map_of_entries(entries, kind)


def map_of_arrays(c: FunctionCall) -> Value:
    """The entries of an array of keys and one of values, which must have the same length."""
    (keys, values) = (a.finish() for a in c.arguments)
    if keys.type.element is None or values.type.element is None:
        raise c.mismatch("It takes an array of keys and an array of values.")
    kind = map_type(keys.type.element, values.type.element, c.ctx, c.node)
    zipped = duckdb_cast(fill(_ZIPPED, keys.expression, values.expression), kind)
    failed = failing(UNPAIRED_KEYS, "a0", kind.duckdb)
    template = f"CASE WHEN len(a0) = len(a1) THEN a2 WHEN len(a0) <> len(a1) THEN {failed} END"
    return Value(fill(template, keys.expression, values.expression, zipped), kind)


def _from_key_values(c: FunctionCall) -> Value:
    found = map_of_arrays(c)
    return map_of_entries(found.expression, found.type)


def _from_entries(c: FunctionCall) -> Value:
    rows = c.arguments[0].finish()
    if rows.type.element is None or len(rows.type.element.fields) != 2:
        raise c.mismatch("It takes an array of rows of a key and a value.")
    (_, key), (_, value) = rows.type.element.fields
    kind = map_type(key, value, c.ctx, c.node)
    entry = "struct_pack(key := struct_extract_at(_p, 1), value := struct_extract_at(_p, 2))"
    return map_of_entries(fill(f"list_transform(a0, lambda _p: {entry})", rows.expression), kind)


def _entries(kind: SqlType) -> SqlType:
    assert kind.element is not None
    return _array_of(kind.element)


MAP_FUNCTIONS: Final[dict[str, Builder]] = {
    "map_access": _mapping(f"list_extract({_FOUND}, 1)", lambda kind: kind.entry[1], "k"),
    "map_cat": _mapping(_MERGED, _element, "m"),
    "map_contains": _mapping(f"CASE WHEN a1 IS NOT NULL THEN len({_FOUND}) > 0 END", lambda _: BOOLEAN, "k"),
    "map_delete": _mapping(_WITHOUT, _element, "k"),
    "map_entries": _mapping("a0", _entries),
    "map_from_entries": counted(_from_entries, 1),
    "map_from_key_values": counted(_from_key_values, 2),
    "map_insert": _mapping(
        f"CASE WHEN a1 IS NULL THEN a0 WHEN a0 IS NOT NULL THEN "
        f"list_append({_WITHOUT}, struct_pack(key := a1, value := a2)) END",
        _element, "kv"),
    "map_keys": _mapping(_KEYS, lambda kind: _array_of(kind.entry[0])),
    "map_length": _mapping("len(a0)", lambda _: INTEGER),
    "map_values": _mapping(_VALUES, lambda kind: _array_of(kind.entry[1])),
}  # fmt: skip

#: Functions of maps that only grammars insert.
ENTRY_FUNCTIONS: Final[dict[str, Builder]] = {
    **{name: _mapping(_added(sign), _element, "m") for name, sign in (("map_add", "+"), ("map_subtract", "-"))},
    "map_contains_key_like": _mapping("len(list_filter(a0, lambda _p: _p.key LIKE a1)) > 0", lambda _: BOOLEAN, "k"),
    "map_extract_key_like": _mapping("list_filter(a0, lambda _p: _p.key LIKE a1)", _element, "k"),
    "map_contains_value_like": _mapping(
        "len(list_filter(a0, lambda _p: _p.value LIKE a1)) > 0", lambda _: BOOLEAN, "v"),
    "map_extract_value_like": _mapping("list_filter(a0, lambda _p: _p.value LIKE a1)", _element, "v"),
    "map_sort": _mapping("list_sort(a0)", _element), "map_reverse_sort": _mapping("list_sort(a0, 'DESC')", _element),
}  # fmt: skip

_PRESENT: Final = "list_filter(a0, lambda _e: _e IS NOT NULL)"
_ONCE: Final = f"list_distinct({_PRESENT})"

#: Values by frequency: the sign of the count, then the value.
_BY_FREQUENCY: Final = (
    "list_slice(list_transform(list_sort(list_transform(list_distinct(a0), "
    "lambda _v: struct_pack(n := {sign}len(list_filter(a0, lambda _o: _o = _v)), v := _v))), "
    "lambda _s: _s.v), 1, a1)"
)

#: Functions of all values of a group and a number: grammars substitute them for aggregate functions (`$`: no text can
#: name them). Without NULLs.
RANKING_FUNCTIONS: Final[dict[str, Builder]] = {
    "$collected": _shaped("ai", f"list_slice({_PRESENT}, 1, a1)", _array_of),
    "$collected_once": _shaped(
        "ai", f"list_slice(list_filter({_PRESENT}, lambda _e, _i: list_position({_PRESENT}, _e) = _i), 1, a1)",
        _array_of),
    "$greatest": _shaped("ai", f"list_slice(list_reverse_sort({_PRESENT}), 1, a1)", _array_of),
    "$greatest_once": _shaped("ai", f"list_slice(list_reverse_sort({_ONCE}), 1, a1)", _array_of),
    "$least": _shaped("ai", f"list_slice(list_sort({_PRESENT}), 1, a1)", _array_of),
    "$least_frequent": _shaped("ai", _BY_FREQUENCY.format(sign=""), _array_of),
    "$least_once": _shaped("ai", f"list_slice(list_sort({_ONCE}), 1, a1)", _array_of),
    "$most_frequent": _shaped("ai", _BY_FREQUENCY.format(sign="-"), _array_of),
}  # fmt: skip


def _events(c: FunctionCall) -> tuple[int, str]:
    """The number of conditions of rows `(time, condition, …)`, and a template of the seconds, or the number, of a row's
    time.
    """
    rows = c.arguments[0].type.element
    fields = rows.fields if rows is not None else ()
    if len(fields) < 2 or any(kind != BOOLEAN for _, kind in fields[1:]):
        raise c.mismatch("It takes a time and conditions.")
    time = "struct_extract(_r, '1')"
    moment = f"epoch({time})" if fields[0][1] in (TIMESTAMP, DATE) else time
    return len(fields) - 1, f"CAST({moment} AS DOUBLE)" + (" / 86400" if fields[0][1] == DATE else "")


def _funnel(c: FunctionCall) -> Value:
    """How many conditions rows met in their order, within a window after the row that met the first one.

    The list that is reduced has, for each condition, the time of the first row of the newest chain that reached it.
    """
    count, time = _events(c)
    if len(c.arguments) > 2:
        raise c.not_supported(f"a mode of {c.name}", hint="Only the default mode is supported: omit it.")
    met = ", ".join(f"CASE WHEN struct_extract(_r, '{i + 1}') THEN [{time}, {i}] END" for i in range(1, count + 1))
    each = f"list_filter([{met}], lambda _e: _e IS NOT NULL)"
    events = f"list_sort(flatten(list_transform(a0, lambda _r: {each})))"
    empty = ", ".join(["CAST(NULL AS DOUBLE)"] * count)
    before = "list_extract(_c, greatest(_k - 1, 1))"
    step = (
        f"CASE WHEN _k = _e[2] AND _k = 1 THEN _e[1] WHEN _k = _e[2] AND _e[1] <= {before} + a1 THEN {before} "
        "ELSE list_extract(_c, _k) END"
    )
    chains = (
        f"list_reduce({events}, lambda _c, _e: list_transform(range(1, {count + 1}), lambda _k: {step}), [{empty}])"
    )
    reached = f"list_max(list_transform({chains}, lambda _v, _k: CASE WHEN _v IS NULL THEN 0 ELSE _k END))"
    rows = c.arguments[0].finish().expression
    found = fill(f"CASE WHEN len(a0) > 0 THEN {reached} ELSE 0 END", rows, c.cast(1, DOUBLE).expression)
    return Value(duckdb_cast(fill("coalesce(a0, 0)", found), INTEGER), INTEGER, nullable=False)


#: Rows are letters from this code point on: one for each set of conditions that they meet.
_FIRST_LETTER: Final = 0x4E00

_STEPS: Final = re.compile(r"\(\?([0-9]+)\)|(\.\*)|(\.)|(\(\?t[^)]*\))|(\s+)")


def _sequence(c: FunctionCall) -> Value:
    """Whether rows, or how often they, meet conditions in the order of a pattern such as `(?1).*(?2)`.

    Rows that meet no condition are left out. Rows are letters of a text, on which the pattern is a regular expression.
    """
    count, time = _events(c)
    if count > 8:
        raise c.not_supported(f"{c.name} of more than 8 conditions")
    pattern, made, position = c.text(1, example="(?1)", what="a pattern"), "", 0
    while position < len(pattern):
        step = _STEPS.match(pattern, position)
        if step is None or (step[1] and not 1 <= int(step[1]) <= count):
            raise c.error("INVALID_VALUE", f'"{pattern[position:]}" is not part of a pattern of {c.name}')
        if step[4]:
            hint = "Write window_funnel(window)(time, condition, …), or compare the times of lag()."
            raise c.not_supported(f"a condition of time in a pattern of {c.name}", hint=hint)
        position = step.end()
        letters = [chr(_FIRST_LETTER + m) for m in range(1 << count) if step[1] and m >> (int(step[1]) - 1) & 1]
        made += f"[{''.join(letters)}]" if letters else ".*?" if step[2] else "." if step[3] else ""
    bits = " + ".join(f"CASE WHEN struct_extract(_r, '{i + 2}') THEN {1 << i} ELSE 0 END" for i in range(count))
    marked = f"list_sort(list_transform(a0, lambda _r: [{time}, CAST({bits} AS DOUBLE)]))"
    letters_of = f"lambda _e: chr(CAST(_e[2] AS INTEGER) + {_FIRST_LETTER})"
    text = f"array_to_string(list_transform(list_filter({marked}, lambda _e: _e[2] > 0), {letters_of}), '')"
    rows, regex = c.arguments[0].finish().expression, string(made)
    if c.name == "sequence_match":
        return Value(fill(f"coalesce(regexp_matches({text}, a1), false)", rows, regex), BOOLEAN, nullable=False)
    return Value(fill(f"coalesce(len(regexp_extract_all({text}, a1)), 0)", rows, regex), BIGINT, nullable=False)


#: Functions of the rows `(time, condition, …)` of a group, for grammars.
EVENT_FUNCTIONS: Final[dict[str, Builder]] = {
    **dict.fromkeys(("sequence_count", "sequence_match"), at_least(_sequence, 2)),
    "window_funnel": at_least(_funnel, 2),
}


def _array_literal(node: Any, ctx: Context, bind: Bind) -> Value:
    if not node.expressions:
        raise ctx.error(
            "DATATYPE_MISMATCH", "cannot determine type of empty array", node, hint="Cast it, for example: '{}'::int[]."
        )
    if isinstance(node.expressions[0], exp.Query):
        raise ctx.not_supported("ARRAY (SELECT …)", node)
    values, kind = unify([bind(e, ctx) for e in node.expressions], list(node.expressions), ctx, "ARRAY")
    return Value(exp.Array(expressions=[v.expression for v in values]), SqlType("array", element=kind), nullable=False)


def subscript(value: Value, node: Any, ctx: Context, bind: Bind) -> Value:
    """`array[2]` or `array[2:3]` (PostgreSQL 17, 8.15.3), or `map[key]`."""
    if value.type.name == "map" and len(node.expressions) == 1 and not isinstance(node.expressions[0], exp.Slice):
        parts, nodes = [value, bind(node.expressions[0], ctx)], [node.this, node.expressions[0]]
        return MAP_FUNCTIONS["map_access"](FunctionCall("map_access", parts, nodes, node, ctx))
    if value.type.name != "array" or value.type.element is None:
        raise ctx.error("DATATYPE_MISMATCH", f"cannot subscript type {value.type.sql} because it is not an array", node)
    if len(node.expressions) != 1:
        raise ctx.not_supported("an array slice of several dimensions", node)
    inner = node.expressions[0]
    if isinstance(inner, exp.Slice):
        return _slice(value, inner, node, ctx, bind)
    position = _index(inner, node, ctx, bind).expression
    if not (isinstance(position, exp.Literal) and int(position.name) > 0):
        position = fill("CASE WHEN a0 > 0 THEN a0 END", position)  # DuckDB counts negative indexes from the end
    return Value(call("array_extract", value.expression, position), value.type.element)


def _index(node: exp.Expression, place: exp.Expression, ctx: Context, bind: Bind) -> Value:
    index = bind(node, ctx)
    if index.unknown:
        index = cast(index, INTEGER, ctx, node)
    if not index.type.is_integer:
        raise ctx.error("DATATYPE_MISMATCH", "array subscript must have type integer", place)
    return index


def _slice(value: Value, node: exp.Slice, place: exp.Expression, ctx: Context, bind: Bind) -> Value:
    """The existing elements of `a[2:3]`, `a[:2]` or `a[2:]` (PostgreSQL 17, 8.15.3)."""
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
        of_json = f"A key of a JSON document is read with :{name} or ->> '{name}', whichever the dialect has."
        raise ctx.error(
            "DATATYPE_MISMATCH",
            f"column notation .{name} applied to type {value.type.sql}, which is not a struct",
            node,
            hint=of_json if value.type in (JSONB, VARCHAR) else None,
        )
    kind = dict(value.type.fields).get(name)
    if kind is None:
        raise ctx.error("UNDEFINED_COLUMN", f'field "{name}" not found in {value.type.sql}', node)
    return Value(call("struct_extract", value.expression, exp.Literal.string(name)), kind)


def row(nodes: list[exp.Expression], ctx: Context, bind: Bind) -> Value:
    """`row(…)` as a struct with the fields f1, f2 …"""
    values = [bind(n, ctx) for n in nodes]
    scalars = [v.finish() for v in values]
    fields = tuple((f"f{i + 1}", s.type) for i, s in enumerate(scalars))
    pairs = [
        exp.PropertyEQ(this=exp.to_identifier(f[0]), expression=s.expression)
        for f, s in zip(fields, scalars, strict=True)
    ]
    return Value(exp.Struct(expressions=pairs), SqlType("struct", fields=fields), nullable=False, parts=tuple(values))


READERS: Final[dict[type, Reader]] = {exp.Array: _array_literal, exp.Dot: _dot}
