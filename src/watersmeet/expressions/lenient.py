"""Binds functions with ClickHouse's argument rules: a fraction for an integer, a number as a condition; and those
of vectors, tuples, places on the earth, and of all numbers of a group.

Their names begin with `$`, so no text can call them; grammars insert them for functions of their dialects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sqlglot import exp

from watersmeet.errors import did_you_mean
from watersmeet.expressions.arrayfunctions import array_of, default_of
from watersmeet.expressions.calls import (
    Builder,
    FunctionCall,
    Signature,
    at_least,
    builders,
    counted,
    in_python,
    inserted,
    signature,
)
from watersmeet.expressions.casts import cast, text_of, unify
from watersmeet.expressions.context import Value, call, duckdb_cast, fill, string, wrap
from watersmeet.expressions.jsonfunctions import json_element
from watersmeet.expressions.nestedfunctions import EVENT_FUNCTIONS, MAP_FUNCTIONS, RANKING_FUNCTIONS
from watersmeet.values.types import BIGINT, BOOLEAN, DATE, DOUBLE, INTEGER, JSONB, TIMESTAMP, VARCHAR, SqlType

_PARTS: Final = ("microsecond", "millisecond", "second", "minute", "hour", "day", "week", "month", "quarter", "year")


#: The short names of units, as in durations.
_ABBREVIATED: Final = {"us": "microsecond", "ms": "millisecond", "s": "second", "m": "minute", "h": "hour", "d": "day"}


def _truncated(c: FunctionCall) -> Value:
    """A number truncated towards zero; other values unchanged."""
    value = c.arguments[0]
    if value.unknown or not value.type.is_numeric or value.type.is_integer:
        return value
    return Value(call("trunc", value.expression), value.type, value.nullable)


def _condition(c: FunctionCall) -> Value:
    """A number as a condition: true unless it is 0; other values unchanged."""
    value = c.arguments[0]
    if value.type.is_numeric and (value.is_number_literal or not value.unknown):
        return Value(fill("(a0 <> 0)", value.finish().expression), BOOLEAN, value.nullable)
    return value


def _number(c: FunctionCall) -> Value:
    """1 or 0 for a condition; other values unchanged."""
    value = c.arguments[0]
    if value.unknown or value.type != BOOLEAN:
        return value
    return Value(duckdb_cast(value.expression, INTEGER), INTEGER, value.nullable)


def _day(c: FunctionCall) -> Value:
    """A date from a text, days since 1970, or a time."""
    value = c.arguments[0]
    if not value.unknown and value.type.is_integer:
        return Value(fill("(DATE '1970-01-01' + CAST(a0 AS INTEGER))", value.expression), DATE, value.nullable)
    return cast(value, DATE, c.ctx, c.node)


def _date_diff(c: FunctionCall) -> Value:
    """The number of boundaries of the unit between two times: above 0 if the second one is later."""
    unit = c.text(0, example="day").lower()
    unit = _ABBREVIATED.get(unit, unit)
    if unit not in _PARTS:
        raise c.error("INVALID_VALUE", f'unit "{unit}" not recognized', hint=did_you_mean(unit, _PARTS))
    times = [cast(a, TIMESTAMP, c.ctx, c.node) for a in c.arguments[1:]]
    return Value(
        call("date_diff", string(unit), *[t.expression for t in times]), BIGINT, any(t.nullable for t in times)
    )


def _json_text(c: FunctionCall) -> Value:
    """The text at a path of a JSON document; '' for an invalid document or a missing path. Objects stay JSON."""
    document, path = c.cast(0, VARCHAR), c.arguments[1].expression
    found = fill(
        "CASE WHEN json_valid(a0) THEN coalesce(json_extract_string(a0, a1), '') WHEN a0 IS NOT NULL THEN '' END",
        document.expression,
        path,
    )
    return Value(found, VARCHAR, document.nullable)


def _quoted_text(value: Value) -> exp.Expression:
    """The text of a part of a map: strings and times in quotes."""
    text = text_of(value)
    if value.type.is_numeric or value.type.is_nested:
        return text
    escaped = call("replace", call("replace", text, string("\\"), string("\\\\")), string("'"), string("\\'"))
    return call("concat", string("'"), escaped, string("'"))


def _to_string(c: FunctionCall) -> Value:
    """The text of a value; of a map `{'a':1,'b':2}`."""
    value = c.arguments[0]
    if value.type.name != "map":
        return c.cast(0, VARCHAR)
    item = exp.to_identifier("_p")
    parts = [
        fill("CASE WHEN a0 IS NULL THEN 'NULL' ELSE a1 END", part, _quoted_text(Value(part, kind)))
        for name, kind in zip(("key", "value"), value.type.entry, strict=True)
        for part in [call("struct_extract", item, string(name))]
    ]
    each = exp.Lambda(this=fill("concat(a0, ':', a1)", *parts), expressions=[item])
    items = call("list_transform", value.finish().expression, each)
    return Value(fill("'{' || array_to_string(a0, ',') || '}'", items), VARCHAR)


def _length(c: FunctionCall) -> Value:
    """The number of bytes of a text, or of elements of an array or a map."""
    value = c.arguments[0]
    if value.type.element is not None:
        return Value(call("len", value.finish().expression), BIGINT, value.nullable)
    if not value.unknown and value.type != VARCHAR:
        raise c.mismatch("It takes a string or an array.")
    text = cast(value, VARCHAR, c.ctx, c.node)
    return Value(duckdb_cast(call("strlen", text.expression), BIGINT), BIGINT, text.nullable)


def _empty(c: FunctionCall) -> Value:
    length = _length(c)
    return Value(fill("(a0 = 0)", length.expression), BOOLEAN, length.nullable)


def _not_empty(c: FunctionCall) -> Value:
    length = _length(c)
    return Value(fill("(a0 > 0)", length.expression), BOOLEAN, length.nullable)


def _concat(c: FunctionCall) -> Value:
    """The concatenated texts; NULL if one is NULL."""
    texts = [cast(a, VARCHAR, c.ctx, c.node).expression if a.unknown else text_of(a) for a in c.arguments]
    return Value(
        fill(" || ".join(f"a{i}" for i in range(len(texts))), *texts), VARCHAR, any(a.nullable for a in c.arguments)
    )


def _substring(c: FunctionCall) -> Value:
    """The part of a text from a character on with a length. A negative number counts from the end; 0 returns ''."""
    if c.arguments[0].type != VARCHAR or any(not a.type.is_integer for a in c.arguments[1:]):
        raise c.mismatch("It takes a string and whole numbers.")
    text = c.cast(0, VARCHAR)
    parts = [text.expression, *[a.expression for a in c.arguments[1:]]]
    whole = "substring(a0, a1)" if len(parts) == 2 else "substring(a0, a1, greatest(a2, 0))"
    null = "" if len(parts) == 2 else "WHEN a2 IS NULL THEN NULL "
    return Value(
        fill(f"CASE {null}WHEN a1 = 0 THEN left(a0, 0) ELSE {whole} END", *parts),
        VARCHAR,
        any(a.nullable for a in c.arguments),
    )


def _of_map(document: Value, key: Value, c: FunctionCall) -> Value:
    """The text of a key of a map, which is a JSON object; '' without it."""
    found = json_element(document, key, text=True)
    if found is None:
        raise c.error("DATATYPE_MISMATCH", "the key of a map is a string")
    return Value(call("coalesce", found.expression, string("")), VARCHAR, nullable=False)


def _element(c: FunctionCall) -> Value:
    """The element of an array by its index, from 1 on or backwards from -1, NULL outside of the array; or of a map."""
    array, place = c.arguments
    if array.type == JSONB and not array.unknown:
        return _of_map(array, place, c)
    if array.type.name == "map":
        found, kind = MAP_FUNCTIONS["map_access"](c), array.type.entry[1]
        contained = MAP_FUNCTIONS["map_contains"](c).expression
        parts = (contained, found.expression, default_of(kind))
        return Value(fill("CASE WHEN a0 THEN a1 WHEN NOT a0 THEN a2 END", *parts), kind)
    if array.type.name != "array" or array.type.element is None:
        raise c.error("DATATYPE_MISMATCH", f"cannot subscript type {array.type.sql} because it is not an array")
    if place.unknown or not place.type.is_integer:
        raise c.error("DATATYPE_MISMATCH", "array subscript must have type integer")
    return Value(call("list_extract", array.finish().expression, place.expression), array.type.element)


def _int_div(c: FunctionCall) -> Value:
    """The integer quotient, truncated towards zero."""
    parts = [a if a.type.is_integer and not a.unknown else cast(a, DOUBLE, c.ctx, c.node) for a in c.arguments]
    whole = all(p.type.is_integer for p in parts)
    text = (
        "CAST(a0 AS BIGINT) // CAST(a1 AS BIGINT)"
        if whole
        else "CAST(trunc(CAST(a0 AS DOUBLE) / nullif(CAST(a1 AS DOUBLE), 0)) AS BIGINT)"
    )
    return Value(fill(text, *[wrap(p.expression) for p in parts]), BIGINT)


def _as_date(c: FunctionCall) -> Value:
    """The second value, converted to a date if the first one is a date."""
    given, found = c.arguments
    return cast(found, DATE, c.ctx, c.node) if given.type == DATE and not given.unknown else found


def _emit_version(c: FunctionCall) -> Value:
    """The error for a call in a query whose emissions have no numbers."""
    raise c.ctx.error(
        "FEATURE_NOT_SUPPORTED",
        "emit_version() is not supported here",
        c.node,
        code=183,
        hint="It can only be a separate item in the select list of a running SELECT.",
    )


_VECTOR: Final = array_of(DOUBLE)

_UUID_OR_ZERO: Final = "coalesce(TRY_CAST(a0 AS UUID), CAST('00000000-0000-0000-0000-000000000000' AS UUID))"

#: The places of the bits of a number that are 1, from the lowest.
_BITS: Final = "list_filter(range(0, 63), lambda _i: a0 // CAST(pow(2, _i) AS BIGINT) % 2 = 1)"

_DURATIONS: Final = (
    (1, 0), (10, 1), (30, 10), (60, 30), (120, 60), (180, 120), (240, 180), (300, 240), (600, 300), (1200, 600),
    (1800, 1200), (3600, 1800), (7200, 3600), (18000, 7200), (36000, 18000),
)  # fmt: skip


def _steps(*steps: tuple[int, int], last: int) -> str:
    """A number rounded down to a step. steps: a bound, which is excluded, and the result below it."""
    cases = " ".join(f"WHEN a0 < {bound} THEN {found}" for bound, found in steps)
    return f"CASE {cases} WHEN a0 IS NOT NULL THEN {last} END"


_OF_NUMBERS: Final[dict[str, Builder]] = builders({
    "bit_hamming_distance": [signature("bigint bigint", "int", "bit_count(xor(a0, a1))")],
    "int_exp2": [signature("int", "uint64", "CAST(pow(2, a0) AS DECIMAL(20, 0))")],
    "int_exp10": [signature("int", "uint64", "CAST(pow(10, a0) AS DECIMAL(20, 0))")],
    "log1p": [signature("double", "double", "ln(1 + a0)")],
    **{f"{name}2": [signature("bigint bigint", "bigint", template), signature("double double", "double", template)]
       for name, template in (("max", "greatest(a0, a1)"), ("min", "least(a0, a1)"))},
    "avg2": [signature("double double", "double", "(a0 + a1) / 2")],
    "int_div_or_null": [signature("bigint bigint", "bigint", "a0 // nullif(a1, 0)")],
    "modulo_or_null": [signature("bigint bigint", "bigint", "a0 % nullif(a1, 0)"),
                       signature("double double", "double", "a0 % nullif(a1, 0)")],
    "positive_modulo_or_null": [signature("bigint bigint", "bigint", "(a0 % nullif(a1, 0) + abs(a1)) % abs(a1)")],
    "count_digits": [signature("bigint", "int", "length(CAST(abs(CAST(a0 AS HUGEINT)) AS VARCHAR))")],
    "round_age": [
        signature("double", "int", _steps((1, 0), (18, 17), (25, 18), (35, 25), (45, 35), (55, 45), last=55))],
    "round_duration": [signature("double", "int", _steps(*_DURATIONS, last=36000))],
    "bitmask_to_list": [signature("bigint", "text", f"array_to_string(list_transform({_BITS}, lambda _b: "
                                  "CAST(CAST(pow(2, _b) AS HUGEINT) AS VARCHAR)), ',')")],
    "to_decimal_string": [signature("double int", "text", "printf('%.' || CAST(a1 AS VARCHAR) || 'f', a0)")],
    "sigmoid": [signature("double", "double", "1 / (1 + exp(-a0))")],
    "round_to_exp2": [
        signature("bigint", "bigint", "CASE WHEN a0 < 1 THEN 0 ELSE CAST(pow(2, floor(log2(a0))) AS BIGINT) END")],
    "to_uuid": [signature("text", "uuid", "CAST(a0 AS UUID)")],
    "to_uuid_or_null": [signature("text", "uuid", "TRY_CAST(a0 AS UUID)")],
    "to_uuid_or_zero": [signature("text", "uuid", _UUID_OR_ZERO)],
    "to_uuid_or_default": [
        signature("text", "uuid", _UUID_OR_ZERO),
        signature("text uuid", "uuid", "coalesce(TRY_CAST(a0 AS UUID), CAST(a1 AS UUID))")],
})  # fmt: skip

#: The radius of the earth in meters, as a sphere.
_RADIUS: Final = "6371007.180918"

_HALVES: Final = (
    "pow(sin(radians(a3 - a1) / 2), 2) + cos(radians(a1)) * cos(radians(a3)) * pow(sin(radians(a2 - a0) / 2), 2)"
)

_SPHERE: Final = f"2 * {_RADIUS} * asin(sqrt({_HALVES}))"

_MIDDLE: Final = "radians((a1 + a3) / 2)"

_EAST: Final = "(180 - abs(180 - abs(a0 - a2)))"

#: The distance on a plane that touches the ellipsoid WGS-84, for points that are less than 13 degrees apart.
_PLANE: Final = (
    f"sqrt(pow((111132.09 - 566.05 * cos(2 * {_MIDDLE}) + 1.2 * cos(4 * {_MIDDLE})) * (a1 - a3), 2) + "
    f"pow((111415.13 * cos({_MIDDLE}) - 94.55 * cos(3 * {_MIDDLE}) + 0.12 * cos(5 * {_MIDDLE})) * {_EAST}, 2))"
)


def _points(template: str) -> list[Signature]:
    return [signature("double double double double", "double", template)]


_OF_PLACES: Final[dict[str, Builder]] = builders({
    "geo_distance": _points(f"CASE WHEN {_EAST} < 13 THEN {_PLANE} ELSE {_SPHERE} END"),
    "great_circle_angle": _points(f"degrees(2 * asin(sqrt({_HALVES})))"),
    "great_circle_distance": _points(_SPHERE),
})  # fmt: skip


def _vector(value: Value, c: FunctionCall) -> exp.Expression:
    """An array of double precision from an array of numbers or a tuple of them."""
    if value.type.name == "struct" and all(kind.is_numeric for _, kind in value.type.fields):
        whole = value.finish().expression
        parts = [call("struct_extract", whole, string(name)) for name, _ in value.type.fields]
        return duckdb_cast(exp.Array(expressions=parts), _VECTOR)
    if value.type.element is None or not value.type.element.is_numeric:
        raise c.mismatch("It takes arrays or tuples of numbers.")
    return duckdb_cast(value.finish().expression, _VECTOR)


def _of_vectors(template: str, count: int) -> Builder:
    """A number from one or two vectors."""

    def build(c: FunctionCall) -> Value:
        return Value(duckdb_cast(fill(template, *[_vector(a, c) for a in c.arguments]), DOUBLE), DOUBLE)

    return counted(build, count)


_APART: Final = "list_transform(list_zip(a0, a1), lambda _p: abs(_p[1] - _p[2]))"

_SIZES: Final = "list_transform(a0, lambda _e: abs(_e))"

_OF_VECTORS: Final[dict[str, Builder]] = {
    "l1_norm": _of_vectors(f"list_sum({_SIZES})", 1), "linf_norm": _of_vectors(f"list_max({_SIZES})", 1),
    "l2_norm": _of_vectors("sqrt(list_inner_product(a0, a0))", 1),
    "l2_squared_norm": _of_vectors("list_inner_product(a0, a0)", 1),
    "l1_distance": _of_vectors(f"list_sum({_APART})", 2), "linf_distance": _of_vectors(f"list_max({_APART})", 2),
    "l2_distance": _of_vectors("list_distance(a0, a1)", 2),
    "l2_squared_distance": _of_vectors("pow(list_distance(a0, a1), 2)", 2),
    "cosine_distance": _of_vectors("list_cosine_distance(a0, a1)", 2),
    "dot_product": _of_vectors("list_inner_product(a0, a1)", 2),
    "array_dot_product": _of_vectors("list_inner_product(a0, a1)", 2),
}  # fmt: skip


def _of_power(template: str, count: int) -> Builder:
    """A number from vectors and an exponent, which is the last argument."""

    def build(c: FunctionCall) -> Value:
        vectors = [_vector(a, c) for a in c.arguments[:-1]]
        return Value(duckdb_cast(fill(template, *vectors, c.cast(count, DOUBLE).expression), DOUBLE), DOUBLE)

    return counted(build, count + 1)


_OF_POWERS: Final[dict[str, Builder]] = {
    "lp_norm": _of_power("pow(list_sum(list_transform(a0, lambda _e: pow(abs(_e), a1))), 1 / a1)", 1),
    "lp_distance": _of_power(f"pow(list_sum(list_transform({_APART}, lambda _e: pow(_e, a2))), 1 / a2)", 2),
}


def _tested(*, whole: bool) -> Builder:
    """Whether all, or some, of the bits of a number at places are 1."""

    def build(c: FunctionCall) -> Value:
        number, *places = (c.cast(i, BIGINT).expression for i in range(len(c.arguments)))
        bits = [fill("a0 // CAST(pow(2, a1) AS BIGINT) % 2 = 1", number, place) for place in places]
        return Value(fill((" AND " if whole else " OR ").join(f"a{i}" for i in range(len(bits))), *bits), BOOLEAN)

    return at_least(build, 2)


def _places(template: str) -> Builder:
    """An array of numbers from the places of bits."""
    kind = array_of(BIGINT)
    return counted(lambda c: Value(duckdb_cast(fill(template, c.cast(0, BIGINT).expression), kind), kind), 1)


def _in_ellipses(c: FunctionCall) -> Value:
    """Whether a point is in one of some ellipses, each of which is a center and two half axes."""
    if len(c.arguments) % 4 != 2:
        raise c.mismatch("It takes x, y, and x, y, a, b for each ellipse.")
    x, y, *rest = (c.cast(i, DOUBLE).expression for i in range(len(c.arguments)))
    parts = [
        fill("pow((a0 - a2) / a4, 2) + pow((a1 - a3) / a5, 2) <= 1", x, y, *rest[i : i + 4])
        for i in range(0, len(rest), 4)
    ]
    return Value(fill(" OR ".join(f"a{i}" for i in range(len(parts))), *parts), BOOLEAN)


def _tuple_pairs(operator: str) -> Builder:
    """An operator over the elements of two tuples, or of a tuple and a number."""

    def build(c: FunctionCall) -> Value:
        left, right = c.arguments
        if left.type.name != "struct" or (
            right.type.name == "struct" and len(right.type.fields) != len(left.type.fields)
        ):
            raise c.mismatch("It takes tuples of equal length.")
        parts = []
        for i, (name, kind) in enumerate(left.type.fields):
            one = Value(call("struct_extract", left.finish().expression, string(name)), kind)
            other = right
            if right.type.name == "struct":
                label, of = right.type.fields[i]
                other = Value(call("struct_extract", right.finish().expression, string(label)), of)
            both, found = unify([one, other], [c.nodes[0], c.nodes[1]], c.ctx, c.name)
            wide = DOUBLE if operator == "/" or found.is_float else BIGINT if found.is_integer else found
            template = f"CAST(a0 AS {wide.duckdb}) {operator} CAST(a1 AS {wide.duckdb})"
            parts.append(Value(duckdb_cast(fill(template, *[b.expression for b in both]), wide), wide))
        return tuple_of(parts)

    return counted(build, 2)


def tuple_of(parts: list[Value]) -> Value:
    """The tuple of values: a struct with the fields 1, 2 …"""
    kind = SqlType("struct", fields=tuple((str(i + 1), p.type) for i, p in enumerate(parts)))
    pairs = [exp.PropertyEQ(this=exp.to_identifier(str(i + 1), quoted=True), expression=p.finish().expression)
             for i, p in enumerate(parts)]  # fmt: skip
    return Value(exp.Struct(expressions=pairs), kind, nullable=False, parts=tuple(parts))


def _negated(c: FunctionCall) -> Value:
    """The tuple of the elements with the other sign."""
    if c.arguments[0].type.name != "struct":
        raise c.mismatch("It takes a tuple.")
    whole = c.arguments[0].finish().expression
    return tuple_of([
        Value(fill("-struct_extract(a0, a1)", whole, string(name)), kind) for name, kind in c.arguments[0].type.fields
    ])  # fmt: skip


def _different(c: FunctionCall) -> Value:
    """The number of elements in which two tuples differ."""
    left, right = c.arguments
    if left.type.name != "struct" or len(left.type.fields) != len(right.type.fields):
        raise c.mismatch("It takes tuples of equal length.")
    parts = [
        fill("CASE WHEN struct_extract(a0, a2) = struct_extract(a1, a3) THEN 0 ELSE 1 END",
             left.finish().expression, right.finish().expression, string(one), string(other))
        for (one, _), (other, _) in zip(left.type.fields, right.type.fields, strict=True)
    ]  # fmt: skip
    return Value(fill(" + ".join(f"a{i}" for i in range(len(parts))), *parts), INTEGER)


def _tuple_concat(c: FunctionCall) -> Value:
    if any(a.type.name != "struct" for a in c.arguments):
        raise c.mismatch("It takes tuples.")
    return tuple_of([
        Value(call("struct_extract", a.finish().expression, string(name)), kind)
        for a in c.arguments for name, kind in a.type.fields
    ])  # fmt: skip


def _tuple_names(c: FunctionCall) -> Value:
    if c.arguments[0].type.name != "struct":
        raise c.mismatch("It takes a tuple.")
    return Value(exp.Array(expressions=[string(name) for name, _ in c.arguments[0].type.fields]), array_of(VARCHAR))


def _round_down(c: FunctionCall) -> Value:
    """The greatest number of an array that is not above a number; else the least one."""
    values, kind = unify(
        [c.arguments[0], Value(exp.null(), c.arguments[1].type.element or BIGINT)], c.nodes, c.ctx, c.name
    )
    steps = duckdb_cast(c.arguments[1].finish().expression, array_of(kind))
    template = "coalesce(list_max(list_filter(a1, lambda _e: _e <= a0)), list_min(a1))"
    return Value(fill(template, values[0].expression, steps), kind)


def _rounded(name: str) -> Builder:
    """Rounds to a number of digits, which may be negative."""

    def build(c: FunctionCall) -> Value:
        number = c.cast(0, DOUBLE).expression
        digits = c.cast(1, INTEGER).expression if len(c.arguments) > 1 else exp.Literal.number(0)
        if name == "round_even":
            return Value(fill("round_even(a0, a1)", number, digits), DOUBLE)
        return Value(fill(f"{name}(a0 * pow(10, a1)) / pow(10, a1)", number, digits), DOUBLE)

    return counted(build, 1, 2)


_PAIR_LIST: Final = array_of(SqlType("struct", fields=(("1", DOUBLE), ("2", DOUBLE))))


def _of_pairs(template: str, *counts: int) -> Builder:
    """A number of all pairs of numbers of a group: `_m.x` and `_m.y` are their lists, `_m.p` and `_m.q` the means."""
    lists = [f"list_transform(a0, lambda _e: struct_extract(_e, '{i}'))" for i in (1, 2)]
    parts = ", ".join(f"{n} := {f.format(v)}" for n, f, v in zip(
        "xypq", ("{}", "{}", "list_avg({})", "list_avg({})"), lists * 2, strict=True))  # fmt: skip
    whole = f"list_extract(list_transform([struct_pack({parts})], lambda _m: {template}), 1)"

    def build(c: FunctionCall) -> Value:
        more = [c.cast(i, DOUBLE).expression for i in range(1, len(c.arguments))]
        pairs = duckdb_cast(c.arguments[0].finish().expression, _PAIR_LIST)
        return Value(duckdb_cast(fill(whole, pairs, *more), DOUBLE), DOUBLE)

    return counted(build, *(counts or (1,)))


def _of_values(template: str) -> Builder:
    """A number of all numbers of a group: `_m.x` is their list, `_m.p` the mean."""
    whole = f"list_extract(list_transform([struct_pack(x := a0, p := list_avg(a0))], lambda _m: {template}), 1)"

    def build(c: FunctionCall) -> Value:
        return Value(duckdb_cast(fill(whole, duckdb_cast(c.arguments[0].finish().expression, _VECTOR)), DOUBLE), DOUBLE)

    return counted(build, 1)


def _products(left: str, right: str) -> str:
    """The sum of the products of the deviations of two lists."""
    pairs = f"list_zip(_m.{left[0]}, _m.{right[0]})"
    return f"list_sum(list_transform({pairs}, lambda _e: (_e[1] - _m.{left[1]}) * (_e[2] - _m.{right[1]})))"


_SXX, _SXY, _SYY = _products("xp", "xp"), _products("xp", "yq"), _products("yq", "yq")

_COUNT: Final = "len(_m.x)"

_SLOPE: Final = f"({_SXY}) / ({_SXX})"


def _moment(power: int) -> str:
    return f"(list_sum(list_transform(_m.x, lambda _e: pow(_e - _m.p, {power}))) / {_COUNT})"


_SAMPLE: Final = f"({_moment(2)} * {_COUNT} / ({_COUNT} - 1))"

#: The value of payments at a rate, and its derivative; times are years of 365 days.
_TIME: Final = "((_e[2] - list_min(_m.y)) / 365)"

_FLOWS: Final = "list_zip(_m.x, _m.y)"

_WORTH: Final = f"list_sum(list_transform({_FLOWS}, lambda _e: _e[1] / pow(1 + _r, {_TIME})))"

_CHANGE: Final = f"list_sum(list_transform({_FLOWS}, lambda _e: -{_TIME} * _e[1] / pow(1 + _r, {_TIME} + 1)))"

#: Newton's method from a guess.
_RATE: Final = (
    f"list_reduce(list_transform(range(0, 60), lambda _i: CAST(0 AS DOUBLE)), lambda _r, _s: _r - {_WORTH} / "
    f"nullif({_CHANGE}, 0), a1)"
)

_BY_X: Final = "list_sort(list_transform(list_zip(_m.x, _m.y), lambda _e: [_e[1], _e[2]]))"

_IN_ORDER: Final = "list_sort(list_transform(list_zip(_m.y, _m.x), lambda _e: [_e[1], _e[2]]))"

#: Functions of all values of a group, which grammars substitute for aggregate functions.
_OF_GROUPS: Final[dict[str, Builder]] = {
    "corr": _of_pairs(f"{_SXY} / sqrt(({_SXX}) * ({_SYY}))"),
    "covar_pop": _of_pairs(f"{_SXY} / {_COUNT}"), "covar_samp": _of_pairs(f"{_SXY} / ({_COUNT} - 1)"),
    "regression_slope": _of_pairs(_SLOPE), "regression_intercept": _of_pairs(f"_m.q - {_SLOPE} * _m.p"),
    "exponential_moving_average": _of_pairs(
        "(1 - pow(2, -1 / a1)) * list_sum(list_transform(list_zip(_m.x, _m.y), "
        "lambda _e: _e[1] * pow(2, (_e[2] - list_max(_m.y)) / a1)))", 2),
    "delta_sum_timestamp": _of_pairs(
        f"list_sum(list_transform(range(2, {_COUNT} + 1), lambda _i: greatest({_IN_ORDER}[_i][2] - "
        f"{_IN_ORDER}[_i - 1][2], 0)))"),
    "bounding_ratio": _of_pairs(f"({_BY_X}[-1][2] - {_BY_X}[1][2]) / ({_BY_X}[-1][1] - {_BY_X}[1][1])"),
    "skew_pop": _of_values(f"{_moment(3)} / pow({_moment(2)}, 1.5)"),
    "skew_samp": _of_values(f"{_moment(3)} / pow({_SAMPLE}, 1.5)"),
    "kurt_pop": _of_values(f"{_moment(4)} / pow({_moment(2)}, 2)"),
    "kurt_samp": _of_values(f"{_moment(4)} / pow({_SAMPLE}, 2)"),
    "xirr": _of_pairs(_RATE, 2),
}  # fmt: skip


def _entropy(c: FunctionCall) -> Value:
    return Value(call("list_entropy", c.arguments[0].finish().expression), DOUBLE)


def _by_key(function: str) -> Builder:
    """The keys and the sums (minima, maxima) of the values of a list of tuples of keys and values, by key."""

    def build(c: FunctionCall) -> Value:
        rows = c.arguments[0].finish()
        fields = rows.type.element.fields if rows.type.element is not None else ()
        if len(fields) != 2 or any(kind.element is None for _, kind in fields):
            raise c.mismatch("It takes an array of keys and an array of values.")
        keys, values = (kind for _, kind in fields)
        pairs = "flatten(list_transform(a0, lambda _r: list_zip(struct_extract(_r, '1'), struct_extract(_r, '2'))))"
        named = f"list_transform({pairs}, lambda _e: struct_pack(k := _e[1], v := _e[2]))"
        once = "list_sort(list_distinct(list_transform(_m, lambda _e: _e.k)))"
        total = f"{function}(list_transform(list_filter(_m, lambda _e: _e.k = _k), lambda _e: _e.v))"
        both = f"struct_pack(k := {once}, v := list_transform({once}, lambda _k: {total}))"
        made = f"list_extract(list_transform([{named}], lambda _m: {both}), 1)"
        found = fill(made, rows.expression)
        parts = [(call("struct_extract", found, string(n)), kind) for n, kind in (("k", keys), ("v", values))]
        return tuple_of([Value(duckdb_cast(e, kind), kind) for e, kind in parts])

    return counted(build, 1)


#: The names of types in snake case.
_TYPE_NAMES: Final[Mapping[str, str]] = {
    "boolean": "bool", "smallint": "int16", "integer": "int32", "bigint": "int64", "real": "float32",
    "double precision": "float64", "varchar": "string", "bytea": "fixed_string", "date": "date", "uuid": "uuid",
    "timestamp": "datetime64(6)", "timestamptz": "datetime64(6, 'UTC')", "jsonb": "json", "interval": "interval_second",
}  # fmt: skip


def type_name(kind: SqlType) -> str:
    """The name of a type as in a declaration of a column."""
    if kind.name == "map":
        return f"map({', '.join(map(type_name, kind.entry))})"
    if kind.element is not None:
        return f"array({type_name(kind.element)})"
    if kind.name == "struct":
        plain = [str(i + 1) for i in range(len(kind.fields))] == [name for name, _ in kind.fields]
        return f"tuple({', '.join(type_name(k) if plain else f'{name} {type_name(k)}' for name, k in kind.fields)})"
    if kind.name == "numeric":
        return f"decimal({38 if kind.precision is None else kind.precision}, {kind.scale or 0})"
    return _TYPE_NAMES.get(kind.name, kind.name)


def _to_type_name(c: FunctionCall) -> Value:
    value = c.arguments[0]
    name = "string" if value.unknown else type_name(value.type)
    if value.is_null:
        name = "nullable(nothing)"
    elif value.nullable and not value.type.is_nested:
        name = f"nullable({name})"
    return Value(string(name), VARCHAR, nullable=False)


#: Names are those of the reference in lower case; grammars insert them with the prefix `$`.
_OF_ANY: Final[dict[str, Builder]] = {
    **_OF_NUMBERS, **_OF_PLACES, **_OF_VECTORS, **_OF_POWERS, **_OF_GROUPS, **EVENT_FUNCTIONS,
    "bit_test_all": _tested(whole=True), "bit_test_any": _tested(whole=False),
    "bitmask_to_array": _places(f"list_transform({_BITS}, lambda _b: CAST(pow(2, _b) AS BIGINT))"),
    "bit_positions_to_array": _places(_BITS), "point_in_ellipses": at_least(_in_ellipses, 6),
    "tuple_negate": counted(_negated, 1), "tuple_hamming_distance": counted(_different, 2),
    **dict.fromkeys(("tuple_modulo", "tuple_modulo_by_number"), _tuple_pairs("%")),
    **dict.fromkeys(("tuple_int_div", "tuple_int_div_by_number"), _tuple_pairs("//")),
    "entropy": counted(_entropy, 1), "sum_map": _by_key("list_sum"), "min_map": _by_key("list_min"),
    "max_map": _by_key("list_max"),
    "erf": in_python("import math\ndef f(x):\n    return math.erf(x)\n", "double", "double"),
    "erfc": in_python("import math\ndef f(x):\n    return math.erfc(x)\n", "double", "double"),
    "tuple_plus": _tuple_pairs("+"), "tuple_minus": _tuple_pairs("-"), "tuple_multiply": _tuple_pairs("*"),
    "tuple_divide": _tuple_pairs("/"), "tuple_multiply_by_number": _tuple_pairs("*"),
    "tuple_divide_by_number": _tuple_pairs("/"),
    "tuple_concat": at_least(_tuple_concat, 1), "tuple_names": counted(_tuple_names, 1),
    "to_type_name": counted(_to_type_name, 1),
    "round_down": counted(_round_down, 2), "round_bankers": _rounded("round_even"), "floor": _rounded("floor"),
    "ceil": _rounded("ceil"), "trunc": _rounded("trunc"),
}  # fmt: skip

LENIENT_FUNCTIONS: Final[dict[str, Builder]] = {
    **inserted(_OF_ANY),
    **RANKING_FUNCTIONS,
    "$as_date": _as_date, "$concat": at_least(_concat, 1, name="concat"), "$condition": _condition,
    "$date_diff": counted(_date_diff, 3, name="date_diff"), "$to_date": counted(_day, 1, name="to_date"),
    "$element": _element, "$emit_version": _emit_version, "$empty": counted(_empty, 1, name="length"),
    "$int_div": counted(_int_div, 2, name="int_div"), "$json_text": _json_text,
    "$length": counted(_length, 1, name="length"),
    "$number": _number, "$not_empty": counted(_not_empty, 1, name="length"),
    "$to_string": counted(_to_string, 1, name="to_string"),
    "$substring": counted(_substring, 2, 3, name="substring"), "$truncated": _truncated,
}  # fmt: skip
