"""Binds functions with ClickHouse's argument rules: a fraction for an integer, a number as a condition.

Their names begin with `$`, so no text can call them; grammars insert them for functions of their dialects.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from watersmeet.errors import did_you_mean
from watersmeet.expressions.arrayfunctions import default_of
from watersmeet.expressions.calls import Builder, FunctionCall, at_least, counted
from watersmeet.expressions.casts import cast, text_of
from watersmeet.expressions.context import Value, call, duckdb_cast, fill, string, wrap
from watersmeet.expressions.jsonfunctions import json_element
from watersmeet.expressions.nestedfunctions import MAP_FUNCTIONS, RANKING_FUNCTIONS
from watersmeet.values.types import BIGINT, BOOLEAN, DATE, DOUBLE, INTEGER, JSONB, TIMESTAMP, VARCHAR

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


LENIENT_FUNCTIONS: Final[dict[str, Builder]] = {
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
