"""Binds functions with ClickHouse's argument rules: a fraction for an integer, seconds or a text for a time, IP
addresses.

Their names begin with `$`, so no text can call them; grammars insert them for functions of their dialects. All IP
addresses are IPv6 addresses; IPv4 addresses are in `::ffff:0:0/96` (RFC 4291, section 2.2). Texts with a zone
(`fe80::1%eth0`) are not addresses.
"""

from __future__ import annotations

from typing import Final

from watersmeet.errors import did_you_mean
from watersmeet.expressions.calls import Builder, FunctionCall, at_least, counted
from watersmeet.expressions.casts import cast, text_of
from watersmeet.expressions.context import Value, call, duckdb_cast, fill, string, wrap
from watersmeet.expressions.nestedfunctions import RANKING_FUNCTIONS
from watersmeet.values.types import BIGINT, BOOLEAN, DATE, DOUBLE, INTEGER, TIMESTAMP, VARCHAR, SqlType

DIGITS: Final = 32

"""The number of hexadecimal digits in an address."""

IPV4: Final = "0" * 20 + "ffff"

"""The first digits of IPv4 addresses."""

_BYTE: Final = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_FOUR: Final = f"{_BYTE}(\\.{_BYTE}){{3}}"
_GROUP: Final = "[0-9a-f]{1,4}"
_GROUPS: Final = f"(({_GROUP}:)*{_GROUP})?"


def address_sql(text: str) -> str:
    """SQL of the 32 lower-case hexadecimal digits of an address; NULL for other texts. text: an SQL expression."""
    tail = "regexp_extract(_t, '[0-9.]*$')"
    parts = ", ".join(f"TRY_CAST(split_part({tail}, '.', {i}) AS INTEGER)" for i in range(1, 5))
    # An IPv4 address at the end becomes two groups.
    groups = (
        f"CASE WHEN regexp_matches(_t, ':{_FOUR}$') THEN left(_t, length(_t) - length({tail})) || "
        f"format('{{:02x}}{{:02x}}:{{:02x}}{{:02x}}', {parts}) ELSE _t END"
    )
    left, right = "split_part(_s, '::', 1)", "substring(_s, strpos(_s, '::') + 2)"
    is_cut = " AND ".join(f"regexp_full_match({part}, '{_GROUPS}')" for part in (left, right))
    whole = (
        f"CASE WHEN regexp_full_match(_s, '({_GROUP}:){{7}}{_GROUP}') THEN {_padded('_s')} "
        f"WHEN contains(_s, '::') AND {is_cut} "
        f"AND length({_padded(left)}) + length({_padded(right)}) <= 28 THEN {_padded(left)} || "
        f"repeat('0', CAST(32 - length({_padded(left)}) - length({_padded(right)}) AS BIGINT)) || {_padded(right)} END"
    )
    six = f"list_transform(list_transform([lower({text})], lambda _t: {groups}), lambda _s: {whole})[1]"
    four = (
        f"'{IPV4}' || array_to_string(list_transform(string_split({text}, '.'), "
        "lambda _p: format('{:02x}', TRY_CAST(_p AS INTEGER))), '')"
    )
    return f"CASE WHEN regexp_full_match({text}, '{_FOUR}') THEN {four} ELSE {six} END"


def _padded(groups: str) -> str:
    """SQL of groups with leading zeros and without colons."""
    return (
        f"CASE WHEN {groups} = '' THEN '' ELSE "
        f"array_to_string(list_transform(string_split({groups}, ':'), lambda _g: lpad(_g, 4, '0')), '') END"
    )


def network_sql(digits: str) -> str:
    """SQL of the key for stored address ranges: the first 16 bits of an IPv6 address, or of the IPv4 address."""
    return f"CASE WHEN starts_with({digits}, '{IPV4}') THEN '4' || {digits}[25:28] ELSE '6' || {digits}[1:4] END"


def rest_sql(digits: str) -> str:
    """SQL of the bits of an address after those of `network_sql`."""
    return f"CASE WHEN starts_with({digits}, '{IPV4}') THEN {digits}[29:32] ELSE {digits}[5:32] END"


_PARTS: Final = ("microsecond", "millisecond", "second", "minute", "hour", "day", "week", "month", "quarter", "year")


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


def _moment(c: FunctionCall) -> Value:
    """A time from a text, seconds since 1970, or a date; arguments for digits and time zone have no effect."""
    value = c.arguments[0]
    if not value.unknown and value.type.is_numeric:
        seconds = duckdb_cast(value.expression, SqlType("numeric", 38, 6) if not value.type.is_float else value.type)
        micros = fill("make_timestamp(CAST(trunc(a0 * 1000000) AS BIGINT))", seconds)
        return Value(micros, TIMESTAMP, value.nullable)
    return cast(value, TIMESTAMP, c.ctx, c.node)


def _day(c: FunctionCall) -> Value:
    """A date from a text, days since 1970, or a time."""
    value = c.arguments[0]
    if not value.unknown and value.type.is_integer:
        return Value(fill("(DATE '1970-01-01' + CAST(a0 AS INTEGER))", value.expression), DATE, value.nullable)
    return cast(value, DATE, c.ctx, c.node)


def _date_diff(c: FunctionCall) -> Value:
    """The number of boundaries of the unit between two times: above 0 if the second one is later."""
    unit = c.text(0, example="day").lower()
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


def _length(c: FunctionCall) -> Value:
    """The number of bytes of a text, or of elements of an array."""
    value = c.arguments[0]
    if value.type.name == "array":
        return Value(call("len", value.expression), BIGINT, value.nullable)
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


def _element(c: FunctionCall) -> Value:
    """The element of an array by its index, from 1 on or backwards from -1; NULL outside of the array."""
    array, place = c.arguments
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


def _of_address(sql: str) -> Builder:
    """A text computed from the digits `_d` of the IP address in the argument; NULL for other texts."""
    template = f"list_transform([{address_sql('a0')}], lambda _d: {sql})[1]"

    def build(c: FunctionCall) -> Value:
        address = c.arguments[0].finish()
        if address.type != VARCHAR:
            message = f"an address of IP is a string, not {address.type.sql}"
            raise c.ctx.error("DATATYPE_MISMATCH", message, c.nodes[0])
        return Value(fill(template, address.expression), VARCHAR)

    return build


LENIENT_FUNCTIONS: Final[dict[str, Builder]] = {
    **RANKING_FUNCTIONS,
    "$address_network": _of_address(network_sql("_d")), "$address_rest": _of_address(rest_sql("_d")),
    "$as_date": _as_date, "$concat": at_least(_concat, 1, name="concat"), "$condition": _condition,
    "$date_diff": counted(_date_diff, 3, name="date_diff"), "$day": counted(_day, 1, name="to_date"),
    "$element": _element, "$emit_version": _emit_version, "$empty": counted(_empty, 1, name="length"),
    "$int_div": counted(_int_div, 2, name="int_div"), "$json_text": _json_text,
    "$length": counted(_length, 1, name="length"), "$moment": counted(_moment, 1, 2, 3, name="to_datetime"),
    "$number": _number, "$not_empty": counted(_not_empty, 1, name="length"),
    "$substring": counted(_substring, 2, 3, name="substring"), "$truncated": _truncated,
}  # fmt: skip
