"""Functions of Lenses' reference that other dialects lack, or that differ there.

Their names have a prefix: the grammar substitutes them for the functions of its dialect, and no text can name them.
Positions in texts count from 0. A value that a function can't compute (a text that does not match a date pattern, bytes
that are not UTF-8) is NULL. Times are timestamps without a zone, in UTC. Patterns of dates are those of Java's
DateTimeFormatter.
"""

from __future__ import annotations

import re
from typing import Final

from sqlglot import exp

from watersmeet.dialects.tree.nodes import RECORD_FUNCTION
from watersmeet.expressions.calls import (
    Builder,
    FunctionCall,
    Signature,
    at_least,
    builders,
    counted,
    inserted,
    limited,
    refuse_volatile,
    signature,
)
from watersmeet.expressions.casts import cast
from watersmeet.expressions.clock import at_time_zone
from watersmeet.expressions.context import Value, call, duckdb_cast, fill
from watersmeet.expressions.jsonfunctions import made_of
from watersmeet.expressions.regexpatterns import checked, groups
from watersmeet.expressions.sqljsonpaths import matches
from watersmeet.expressions.timetexts import java_format
from watersmeet.values.types import BIGINT, DATE, DOUBLE, INTEGER, REAL, TIME, TIMESTAMP, VARCHAR, SqlType

_TEXTS: Final = SqlType("array", element=VARCHAR)
_DAY_MS: Final = 86_400_000

#: Milliseconds of the years 1 to 9999.
_IN_YEARS: Final = "BETWEEN -62135596800000 AND 253402300799999"

_HIDDEN: Final = "repeat('*', length(a0))"
_STARS: Final = "'*****'"
_WIDTH: Final = limited("CAST(a1 AS BIGINT) * 4")
_PADDED: Final = f"CASE WHEN length(a0) >= a1 OR a2 = '' THEN a0 ELSE {{}}(a0, {_WIDTH}, a2) END"
_CENTERED: Final = (
    f"CASE WHEN length(a0) >= a1 OR a2 = '' THEN a0 "
    f"ELSE rpad(lpad(a0, CAST(length(a0) + (({_WIDTH}) - length(a0)) // 2 AS INTEGER), a2), a1, a2) END"
)
_EACH_WORD: Final = "array_to_string(list_transform(regexp_extract_all(a0, '{}'), lambda _w: {}), '')"
_SWAPPED: Final = (
    "array_to_string(list_transform(string_split(a0, ''), "
    "lambda _c: CASE WHEN _c = upper(_c) THEN lower(_c) ELSE upper(_c) END), '')"
)
#: The second argument, at least 0; unlike greatest(a1, 0) it is NULL if the argument is.
_COUNT: Final = "(CASE WHEN a1 < 0 THEN 0 ELSE a1 END)"

#: The part of a text from one position up to another, which is not included.
_SLICE: Final = f"substring(a0, CAST({_COUNT} AS BIGINT) + 1, CASE WHEN a2 < {_COUNT} THEN 0 ELSE a2 - {_COUNT} END)"
_HAVERSINE: Final = (
    "2 * 6371000 * asin(sqrt(pow(sin(radians(a2 - a0) / 2), 2) "
    "+ cos(radians(a0)) * cos(radians(a2)) * pow(sin(radians(a3 - a1) / 2), 2)))"
)


def _padding(template: str) -> list[Signature]:
    """A function of a text, a length and the text that fills it, which is a space by default."""
    return [
        signature("text int", "text", template.replace("a2", "' '")),
        signature("text int text", "text", template),
    ]


_BY_SIGNATURE: Final[dict[str, Builder]] = builders({
    "abbreviate": [signature("text int", "text",
                             "CASE WHEN length(a0) <= a1 THEN a0 WHEN a1 > 3 THEN left(a0, a1 - 3) || '...' END")],
    "anonymize": [signature("text", "text", _HIDDEN)],
    "base64": [signature("text", "text", "to_base64(encode(a0))"), signature("bytea", "text", "to_base64(a0)")],
    "capitalize": [signature("text", "text", "upper(left(a0, 1)) || substring(a0, 2)")],
    "center": _padding(_CENTERED),
    "chop": [signature("text", "text", "left(a0, greatest(length(a0) - 1, 0))")],
    "contains": [signature("text text", "bool", "contains(a0, a1)")],
    "decode64": [signature("text", "text", "TRY(decode(from_base64(a0)))")],
    "deletewhitespace": [signature("text", "text", "regexp_replace(a0, '[\\s\\pZ]', '', 'g')")],
    "digits": [signature("text", "text", "regexp_replace(a0, '\\P{Nd}', '', 'g')")],
    "distance": [signature("double double double double", "double", _HAVERSINE)],
    "dropleft": [signature("text int", "text", f"substring(a0, CAST({_COUNT} AS BIGINT) + 1)")],
    "dropright": [signature("text int", "text", f"CASE WHEN a1 > length(a0) THEN '' "
                                                f"ELSE left(a0, length(a0) - {_COUNT}) END")],
    "email": [signature("text", "text", f"CASE WHEN strpos(a0, '@') > 1 THEN left(a0, 1) || {_STARS} || "
                                        f"substring(a0, strpos(a0, '@')) ELSE {_HIDDEN} END")],
    "endswith": [signature("text text", "bool", "ends_with(a0, a1)")],
    **{f"first{n}": [signature("text", "text", f"left(a0, {n}) || {_STARS}")] for n in range(1, 5)},
    **{f"last{n}": [signature("text", "text", f"{_STARS} || right(a0, {n})")] for n in range(1, 5)},
    "indexof": [signature("text text", "int", "strpos(a0, a1) - 1")],
    "initials": [signature("text", "text", _EACH_WORD.format("[^\\s]+", "_w[1]"))],
    "lpad": _padding(_PADDED.format("lpad")), "rpad": _padding(_PADDED.format("rpad")),
    "round": [signature("bigint", "bigint", "a0"), signature("numeric", "bigint", "floor(a0 + 0.5)"),
              signature("double", "bigint", "floor(a0 + CAST('0.5' AS DOUBLE))")],
    "stripaccents": [signature("text", "text", "strip_accents(a0)")],
    "substr": [signature("text int", "text", f"substring(a0, CAST({_COUNT} AS BIGINT) + 1)"),
               signature("text int int", "text", _SLICE)],
    "swapcase": [signature("text", "text", _SWAPPED)],
    **{name: [signature("text int", "text", f"left(a0, {_COUNT})")] for name in ("takeleft", "truncate")},
    "takeright": [signature("text int", "text", f"right(a0, {_COUNT})")],
    "time_micros": [signature("bigint", "time", "CAST(make_timestamp(((a0 % 86400000000) + 86400000000) % "
                                                "86400000000) AS TIME)")],
    "time_millis": [signature("bigint", "time", f"CAST(make_timestamp(((a0 % {_DAY_MS}) + {_DAY_MS}) % {_DAY_MS} * "
                                                "1000) AS TIME)")],
    "timestamp_micros": [signature("bigint", "timestamp",
                                   f"CASE WHEN a0 // 1000 {_IN_YEARS} THEN make_timestamp(a0) END")],
    "timestamp_millis": [signature("bigint", "timestamp",
                                   f"CASE WHEN a0 {_IN_YEARS} THEN make_timestamp(a0 * 1000) END")],
    "uncapitalize": [signature("text", "text", _EACH_WORD.format("[^\\s]+|\\s+", "lower(_w[1]) || _w[2:]"))],
})  # fmt: skip


def _mkstring(c: FunctionCall) -> Value:
    """The JSON of any value."""
    value = cast(c.arguments[0], VARCHAR, c.ctx, c.node) if c.arguments[0].unknown else c.arguments[0]
    return Value(duckdb_cast(made_of(value, ordered=False).expression, VARCHAR), VARCHAR)


def _pattern(c: FunctionCall) -> exp.Expression:
    """The regular expression, the second argument. INVALID_VALUE for a constant that RE2 rejects, FEATURE_NOT_SUPPORTED
    for look-around.
    """
    pattern = c.cast(1, VARCHAR).expression
    return _checked(pattern.name, c) if pattern.is_string else pattern


def _checked(pattern: str, c: FunctionCall) -> exp.Expression:
    if re.search(r"\(\?<?[=!]", pattern):
        raise c.not_supported(
            "look-around in a regular expression", hint="Match a longer text, and take its part by REGEX_MATCHES."
        )
    return checked(pattern, c.node, c.ctx)


def _regexp(c: FunctionCall) -> Value:
    """The parts of a text that match."""
    return Value(call("regexp_extract_all", c.cast(0, VARCHAR).expression, _pattern(c)), _TEXTS)


def _regex_matches(c: FunctionCall) -> Value:
    """For each match the whole match, then the text of each group of the pattern, which must be constant."""
    pattern = c.text(1, example="", what="a pattern")
    text, regex = c.cast(0, VARCHAR).expression, _checked(pattern, c)
    found = [fill(f"regexp_extract_all(a0, a1, {n})", text, regex) for n in range(groups(pattern) + 1)]
    places = ", ".join(f"a{n}[_i]" for n in range(len(found)))
    return Value(
        fill(f"list_transform(range(1, len(a0) + 1), lambda _i: [{places}])", *found), SqlType("array", element=_TEXTS)
    )


def _reversed(c: FunctionCall) -> Value:
    """A text or an array, last element first."""
    if c.arguments[0].type.name == "array":
        return Value(call("list_reverse", c.arguments[0].finish().expression), c.arguments[0].type)
    if not c.arguments[0].unknown and c.arguments[0].type != VARCHAR:
        raise c.mismatch("It takes a string or an array.")
    return Value(call("reverse", c.cast(0, VARCHAR).expression), VARCHAR)


def _size(c: FunctionCall) -> Value:
    """The number of elements of an array."""
    if c.arguments[0].type.name != "array":
        raise c.mismatch("It takes an array.")
    return Value(duckdb_cast(call("len", c.arguments[0].finish().expression), INTEGER), INTEGER)


def _flatten(c: FunctionCall) -> Value:
    """The elements of all arrays of an array."""
    inner = c.arguments[0].type.element
    if inner is None or inner.name != "array":
        raise c.mismatch("It takes an array of arrays.")
    return Value(call("flatten", c.arguments[0].finish().expression), inner)


def _repeat(c: FunctionCall) -> Value:
    """An array of n times the element."""
    element = c.cast(0, VARCHAR) if c.arguments[0].unknown else c.arguments[0]
    template = f"list_transform(range({limited('CAST(a1 AS BIGINT) * 8')}), lambda _i: a0)"
    kind = SqlType("array", element=element.type)
    return Value(duckdb_cast(fill(template, element.finish().expression, c.cast(1, INTEGER).expression), kind), kind)


def _zip(*, whole: bool) -> Builder:
    """`zip([1, 2], 'x', [3, 4], 'y')`: an array of objects. whole: as long as the longest array, not the shortest."""

    def build(c: FunctionCall) -> Value:
        arrays, fields = c.arguments[::2], []
        if len(c.arguments) % 2 or not all(a.type.element is not None for a in arrays):
            raise c.mismatch("It takes arrays, each with the name of a field after it.")
        for index, array in enumerate(arrays):
            name = c.text(2 * index + 1, example=f"f{index}", what="a field name")
            assert array.type.element is not None
            fields.append((name, array.type.element))
        if len(dict(fields)) < len(fields):
            raise c.error("INVALID_VALUE", f"{c.name} has two fields of one name")
        lengths = ", ".join(f"len(a{i})" for i in range(len(arrays)))
        # NULL if one array is
        count = f"{'greatest' if whole else 'least'}({lengths}) + 0 * ({lengths.replace(', ', ' + ')})"
        made = ", ".join(f"""'{name.replace("'", "''")}': a{i}[_i]""" for i, (name, _) in enumerate(fields))
        listed = fill(
            f"list_transform(range(1, {count} + 1), lambda _i: {{{made}}})", *[a.finish().expression for a in arrays]
        )
        kind = SqlType("array", element=SqlType("struct", fields=tuple(fields)))
        return Value(duckdb_cast(listed, kind), kind)

    return at_least(build, 4)


def _json_all(c: FunctionCall) -> Value:
    return Value(matches(c.cast(0, VARCHAR).expression, c.text(1, example="$", what="a path"), c), _TEXTS)


def _json_first(c: FunctionCall) -> Value:
    return Value(fill("list_extract(a0, 1)", _json_all(c).expression), VARCHAR)


def _moment(c: FunctionCall, index: int) -> exp.Expression:
    """An argument as a timestamp: a time of day on the first day of 1970, a number as milliseconds since then."""
    value = c.arguments[index]
    if not value.unknown and value.type.is_integer:
        return _BY_SIGNATURE["timestamp_millis"](c.over([value], [c.nodes[index]])).expression
    if not value.unknown and value.type == TIME:
        return fill("DATE '1970-01-01' + a0", value.expression)
    return c.cast(index, TIMESTAMP).expression


def _read(c: FunctionCall) -> exp.Expression:
    """The text that is the first argument as a timestamp, by the pattern that is the second."""
    text, pattern = c.cast(0, VARCHAR).expression, java_format(c, 1, reading=True)
    if pattern.name.endswith("%z"):
        text = fill("regexp_replace(a0, 'Z$', '+00:00')", text)
    return duckdb_cast(call("try_strptime", text, pattern), TIMESTAMP)


def _formatted(c: FunctionCall) -> Value:
    return Value(call("strftime", _moment(c, 0), java_format(c, 1, reading=False)), VARCHAR)


def _converted(c: FunctionCall) -> Value:
    return Value(call("strftime", _read(c), java_format(c, 2, reading=False)), VARCHAR)


def _parsed(kind: SqlType) -> Builder:
    return counted(lambda c: Value(duckdb_cast(_read(c), kind), kind), 2)


def _to_timestamp(c: FunctionCall) -> Value:
    """A timestamp from milliseconds or a text, with or without a pattern."""
    return _parsed(TIMESTAMP)(c) if len(c.arguments) == 2 else Value(_moment(c, 0), TIMESTAMP)


def _timestamp(c: FunctionCall) -> Value:
    """The UTC time of a date and a time of day in a zone."""
    local = Value(fill("a0 + a1", c.cast(0, DATE).expression, c.cast(1, TIME).expression), TIMESTAMP)
    moment = at_time_zone(c.cast(2, VARCHAR), local, c.ctx, c.nodes[2])
    return Value(fill("a0 AT TIME ZONE 'UTC'", moment.expression), TIMESTAMP)


def _part(template: str, kind: SqlType) -> Builder:
    """A part of a date or time, by a template of the timestamp."""
    return counted(lambda c: Value(duckdb_cast(fill(template, _moment(c, 0)), kind), kind), 1)


def _of_clock(template: str, kind: SqlType) -> Builder:
    """A value of the current time, which is `a0`; FEATURE_NOT_SUPPORTED in a view."""

    def build(c: FunctionCall) -> Value:
        refuse_volatile(c)
        now = duckdb_cast(call("now"), TIMESTAMP)
        return Value(duckdb_cast(fill(template, now), kind), kind, nullable=False)

    return counted(build, 0)


def _random(template: str, kind: SqlType) -> Builder:
    """A random value; FEATURE_NOT_SUPPORTED in a view."""

    def build(c: FunctionCall) -> Value:
        refuse_volatile(c)
        return Value(duckdb_cast(fill(template), kind), kind, nullable=False)

    return counted(build, 0)


def _header(kind: SqlType, size: int) -> Builder:
    """A number from the text of a header, which is the base64 of its `size` bytes, big-endian; NULL for other texts."""
    template = (
        f"list_transform([TRY(CASE WHEN strlen(a0) = {size} THEN encode(a0) ELSE from_base64(a0) END)], "
        f"lambda _b: CASE WHEN octet_length(_b) = {size} THEN CAST(CAST(_b AS BIT) AS {kind.duckdb}) END)[1]"
    )
    return lambda c: Value(duckdb_cast(fill(template, c.arguments[0].expression), kind), kind)


def _unchanged(c: FunctionCall) -> Value:
    return c.arguments[0]


_BUILDERS: Final[dict[str, Builder]] = {
    **_BY_SIGNATURE,
    "as_non_nullable": counted(_unchanged, 1), "as_nullable": counted(_unchanged, 1),
    "convert_datetime": counted(_converted, 3), "curdate": _of_clock("a0", DATE), "curtime": _of_clock("a0", TIME),
    "date": _of_clock("a0", DATE), "today": _of_clock("a0", DATE),
    "datetime": _of_clock("a0", TIMESTAMP), "tomorrow": _of_clock("a0 + INTERVAL 1 DAY", TIMESTAMP),
    "yesterday": _of_clock("a0 - INTERVAL 1 DAY", TIMESTAMP),
    "extract_date": _part("a0", DATE), "extract_time": _part("a0", TIME), "month_text": _part("monthname(a0)", VARCHAR),
    **{name: _part(f"{name}(a0)", INTEGER) for name in ("day", "hour", "minute", "month", "second", "week", "year")},
    "flatten": counted(_flatten, 1),
    **{f"format_{kind}": counted(_formatted, 2) for kind in ("date", "time", "timestamp")},
    **{f"headeras{word}": counted(_header(kind, size), 1) for word, kind, size in (
        ("int", INTEGER, 4), ("long", BIGINT, 8), ("float", REAL, 4), ("double", DOUBLE, 8))},
    "json_extract_all": counted(_json_all, 2), "json_extract_first": counted(_json_first, 2),
    "mkstring": counted(_mkstring, 1),
    **{name: _parsed(DATE) for name in ("parse_date", "to_date")},
    **{name: _parsed(TIME) for name in ("parse_time_micros", "parse_time_millis")},
    **{name: _parsed(TIMESTAMP) for name in ("parse_timestamp_micros", "parse_timestamp_millis", "to_datetime")},
    "regex_matches": counted(_regex_matches, 2), "regexp": counted(_regexp, 2),
    "randint": _random("CAST(floor(random() * 4294967296) AS BIGINT) - 2147483648", INTEGER),
    "repeat": counted(_repeat, 2), "reverse": counted(_reversed, 1), "sizeof": counted(_size, 1),
    "timestamp": counted(_timestamp, 3), "to_timestamp": counted(_to_timestamp, 1, 2),
    "uuid": _random("uuid()", VARCHAR), "zip": _zip(whole=False), "zip_all": _zip(whole=True),
}  # fmt: skip


RECORD_FUNCTIONS: Final[dict[str, Builder]] = inserted(_BUILDERS, RECORD_FUNCTION)
