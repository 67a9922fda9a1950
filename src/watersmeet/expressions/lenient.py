"""Functions that take what ClickHouse's take: a fraction where a whole number is meant, seconds or a text for a time.

Their names begin with `$`: grammars put them in place of functions of their dialects, no text can name them.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from watersmeet.errors import did_you_mean
from watersmeet.expressions.calls import Arguments, Builder, constant_text, count_checked, mismatch_of
from watersmeet.expressions.casts import cast, text_of
from watersmeet.expressions.context import Context
from watersmeet.expressions.templates import fill
from watersmeet.expressions.values import Value, call, duckdb_cast, string, wrap
from watersmeet.formats.addresses import address_sql, network_sql, rest_sql
from watersmeet.types import BIGINT, BOOLEAN, DATE, DOUBLE, INTEGER, TIMESTAMP, VARCHAR, SqlType

_PARTS: Final = ("microsecond", "millisecond", "second", "minute", "hour", "day", "week", "month", "quarter", "year")


def _truncated(arguments: Arguments, _nodes: list[exp.Expression], _node: exp.Expression, _ctx: Context) -> Value:
    """A number without its fraction, cut towards zero; anything else as it is."""
    value = arguments[0]
    if value.unknown or not value.type.is_numeric or value.type.is_integer:
        return value
    return Value(call("trunc", value.expression), value.type, value.nullable)


def _condition(arguments: Arguments, _nodes: list[exp.Expression], _node: exp.Expression, _ctx: Context) -> Value:
    """A number as a condition: it holds unless it is 0; anything else as it is."""
    value = arguments[0]
    if value.type.is_numeric and (value.is_number_literal or not value.unknown):
        return Value(fill("(a0 <> 0)", value.finish().expression), BOOLEAN, value.nullable)
    return value


def _number(arguments: Arguments, _nodes: list[exp.Expression], _node: exp.Expression, _ctx: Context) -> Value:
    """1 or 0 for a condition; anything else as it is."""
    value = arguments[0]
    if value.unknown or value.type != BOOLEAN:
        return value
    return Value(duckdb_cast(value.expression, INTEGER), INTEGER, value.nullable)


def _moment(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    """A time of a text, of seconds since 1970, or of a date; digits and a time zone that follow change nothing."""
    count_checked("to_datetime", arguments, (1, 2, 3), node, ctx)
    value = arguments[0]
    if not value.unknown and value.type.is_numeric:
        seconds = duckdb_cast(value.expression, SqlType("numeric", 38, 6) if not value.type.is_float else value.type)
        micros = fill("make_timestamp(CAST(trunc(a0 * 1000000) AS BIGINT))", seconds)
        return Value(micros, TIMESTAMP, value.nullable)
    return cast(value, TIMESTAMP, ctx, node)


def _day(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    """A date of a text, of days since 1970, or of a time."""
    count_checked("to_date", arguments, (1,), node, ctx)
    value = arguments[0]
    if not value.unknown and value.type.is_integer:
        return Value(fill("(DATE '1970-01-01' + CAST(a0 AS INTEGER))", value.expression), DATE, value.nullable)
    return cast(value, DATE, ctx, node)


def _date_diff(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    """How many boundaries of the unit lie between two times: above 0 where the second one is later."""
    unit = constant_text(arguments[0], "date_diff", node, ctx, example="day").lower()
    if unit not in _PARTS:
        raise ctx.error("INVALID_VALUE", f'unit "{unit}" not recognized', node, hint=did_you_mean(unit, _PARTS))
    times = [cast(a, TIMESTAMP, ctx, node) for a in arguments[1:]]
    return Value(
        call("date_diff", string(unit), *[t.expression for t in times]), BIGINT, any(t.nullable for t in times)
    )


def _json_text(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    """The text at a path of a JSON document: '' where there is nothing, or no document; objects as they are."""
    document, path = cast(arguments[0], VARCHAR, ctx, node), arguments[1].expression
    found = fill(
        "CASE WHEN json_valid(a0) THEN coalesce(json_extract_string(a0, a1), '') WHEN a0 IS NOT NULL THEN '' END",
        document.expression,
        path,
    )
    return Value(found, VARCHAR, document.nullable)


def _length(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    """Bytes of a text, elements of an array."""
    count_checked("length", arguments, (1,), node, ctx)
    value = arguments[0]
    if value.type.name == "array":
        return Value(call("len", value.expression), BIGINT, value.nullable)
    if not value.unknown and value.type != VARCHAR:
        raise mismatch_of("length", arguments, node, ctx, "It takes a string or an array.")
    text = cast(value, VARCHAR, ctx, node)
    return Value(duckdb_cast(call("strlen", text.expression), BIGINT), BIGINT, text.nullable)


def _empty(sign: str) -> Builder:
    def build(arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
        length = _length(arguments, nodes, node, ctx)
        return Value(fill(f"(a0 {sign} 0)", length.expression), BOOLEAN, length.nullable)

    return build


def _concat(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    """The texts one after the other; NULL if one is NULL."""
    count_checked("concat", arguments, (max(1, len(arguments)),), node, ctx)
    texts = [cast(a, VARCHAR, ctx, node).expression if a.unknown else text_of(a) for a in arguments]
    return Value(
        fill(" || ".join(f"a{i}" for i in range(len(texts))), *texts), VARCHAR, any(a.nullable for a in arguments)
    )


def _substring(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    """A part of a text by its first character and its length; from the end for a first one below 0, nothing for 0."""
    count_checked("substring", arguments, (2, 3), node, ctx)
    if arguments[0].type != VARCHAR or any(not a.type.is_integer for a in arguments[1:]):
        raise mismatch_of("substring", arguments, node, ctx, "It takes a string and whole numbers.")
    text = cast(arguments[0], VARCHAR, ctx, node)
    parts = [text.expression, *[a.expression for a in arguments[1:]]]
    whole = "substring(a0, a1)" if len(parts) == 2 else "substring(a0, a1, greatest(a2, 0))"
    null = "" if len(parts) == 2 else "WHEN a2 IS NULL THEN NULL "
    return Value(
        fill(f"CASE {null}WHEN a1 = 0 THEN left(a0, 0) ELSE {whole} END", *parts),
        VARCHAR,
        any(a.nullable for a in arguments),
    )


def _element(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    """The element of an array at a place from 1 on, or from -1 on from its end; NULL if there is none."""
    array, place = arguments
    if array.type.name != "array" or array.type.element is None:
        raise ctx.error("DATATYPE_MISMATCH", f"cannot subscript type {array.type.sql} because it is not an array", node)
    if place.unknown or not place.type.is_integer:
        raise ctx.error("DATATYPE_MISMATCH", "array subscript must have type integer", node)
    return Value(call("list_extract", array.finish().expression, place.expression), array.type.element)


def _int_div(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    """The whole part of a quotient, cut towards zero."""
    count_checked("int_div", arguments, (2,), node, ctx)
    parts = [a if a.type.is_integer and not a.unknown else cast(a, DOUBLE, ctx, node) for a in arguments]
    whole = all(p.type.is_integer for p in parts)
    text = (
        "CAST(a0 AS BIGINT) // CAST(a1 AS BIGINT)"
        if whole
        else "CAST(trunc(CAST(a0 AS DOUBLE) / nullif(CAST(a1 AS DOUBLE), 0)) AS BIGINT)"
    )
    return Value(fill(text, *[wrap(p.expression) for p in parts]), BIGINT)


def _as_date(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    """The second value, as a date if the first one is one."""
    given, found = arguments
    return cast(found, DATE, ctx, node) if given.type == DATE and not given.unknown else found


def _emit_version(_arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    """What is left where no emission is numbered."""
    raise ctx.error(
        "FEATURE_NOT_SUPPORTED",
        "emit_version() is not supported here",
        node,
        code=183,
        hint="It can only be a separate item in the select list of a running SELECT.",
    )


def _of_address(sql: str) -> Builder:
    """A text that follows from the digits `_d` of an address of IP, which is the argument; NULL for what is none."""
    template = f"list_transform([{address_sql('a0')}], lambda _d: {sql})[1]"

    def build(arguments: Arguments, nodes: list[exp.Expression], _node: exp.Expression, ctx: Context) -> Value:
        address = arguments[0].finish()
        if address.type != VARCHAR:
            raise ctx.error("DATATYPE_MISMATCH", f"an address of IP is a string, not {address.type.sql}", nodes[0])
        return Value(fill(template, address.expression), VARCHAR)

    return build


LENIENT_FUNCTIONS: Final[dict[str, Builder]] = {
    "$address_network": _of_address(network_sql("_d")),
    "$address_rest": _of_address(rest_sql("_d")),
    "$as_date": _as_date,
    "$concat": _concat,
    "$condition": _condition,
    "$date_diff": _date_diff,
    "$day": _day,
    "$element": _element,
    "$emit_version": _emit_version,
    "$empty": _empty("="),
    "$int_div": _int_div,
    "$json_text": _json_text,
    "$length": _length,
    "$moment": _moment,
    "$number": _number,
    "$not_empty": _empty(">"),
    "$substring": _substring,
    "$truncated": _truncated,
}
