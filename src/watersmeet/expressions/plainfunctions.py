"""Binds functions of ClickHouse that are one expression of DuckDB over values of known types.

Texts count characters. Weeks begin on Sunday, as in mode 0. Vectors are arrays of numbers or tuples of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sqlglot import exp

from watersmeet.expressions.arrayfunctions import array_of, default_of
from watersmeet.expressions.calls import (
    Builder,
    FunctionCall,
    Signature,
    at_least,
    builders,
    constant_of,
    counted,
    in_python,
    limited,
    refuse_volatile,
    signature,
)
from watersmeet.expressions.casts import at_time_zone, cast, coerce, unify
from watersmeet.expressions.context import Value, call, duckdb_cast, fill, string
from watersmeet.expressions.documents import document_and_path
from watersmeet.expressions.jsonfunctions import made_of
from watersmeet.expressions.regexpatterns import checked, groups
from watersmeet.expressions.timetexts import java_format
from watersmeet.values.types import BIGINT, BYTEA, DOUBLE, INTEGER, INTERVAL, TIMESTAMP, VARCHAR, SqlType

_TEXTS: Final = array_of(VARCHAR)
_VECTOR: Final = array_of(DOUBLE)


def _of(kind: str, template: str) -> list[Signature]:
    return [signature("text", kind, template)]


def _of_time(kind: str, template: str) -> list[Signature]:
    return [signature("timestamp", kind, template)]


def _pair(kind: str, template: str) -> list[Signature]:
    return [signature("text text", kind, template)]


def _padded(name: str) -> list[Signature]:
    length = limited("a1 * 4")
    return [
        signature("text int", "text", f"{name}(a0, {length}, ' ')"),
        signature("text int text", "text", f"{name}(a0, {length}, a2)"),
    ]


_TOKENS: Final = "'[^\\x00-\\x2f\\x3a-\\x40\\x5b-\\x60\\x7b-\\x7f]+'"
_XML: Final = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("''", "&apos;"))


def _replaced(pairs: tuple[tuple[str, str], ...]) -> str:
    found = "a0"
    for before, after in pairs:
        found = f"replace({found}, '{before}', '{after}')"
    return found


#: The host of a URL, its labels, and how many of them are significant: `b.co.uk` has three, `b.com` two.
_HOST: Final = "regexp_extract(a0, '^(?:[A-Za-z][A-Za-z0-9+.-]*:)?(?://)?(?:[^/?#@]*@)?([^/?#:@]*)', 1)"
_SHORT: Final = "list_contains(['com', 'net', 'org', 'co'], list_extract(_l, -2))"
_SIGNIFICANT: Final = f"CASE WHEN len(_l) > 2 AND {_SHORT} THEN 3 ELSE 2 END"


def _labels(template: str) -> str:
    return f"list_extract(list_transform([string_split({_HOST}, '.')], lambda _l: {template}), 1)"


_CUT_HOST: Final = _labels(
    f"CASE WHEN len(_l) < 2 THEN '' ELSE array_to_string(list_slice(_l, -({_SIGNIFICANT}), -1), '.') END"
)
_FIRST_LABEL: Final = _labels(f"CASE WHEN len(_l) < 2 THEN '' ELSE list_extract(_l, -({_SIGNIFICANT})) END")
_PATH: Final = "regexp_extract(a0, '^(?:[A-Za-z][A-Za-z0-9+.-]*:)?(?://)?[^/?#]*(.*)$', 1)"
_START: Final = "left(a0, length(a0) - length(_p))"


def _hierarchy(start: str, first: str) -> str:
    """The parts of a URL up to each sign that ends one."""
    ends = (
        "list_filter(range(1, length(_p) + 1), lambda _i: substring(_p, _i, 1) IN ('/', '?', '#') OR _i = length(_p))"
    )
    steps = f"list_transform(list_filter({ends}, lambda _i: _i > {first}), lambda _i: {start}left(_p, _i))"
    return f"list_extract(list_transform([{_PATH}], lambda _p: {steps}), 1)"


_SUNDAY: Final = "CAST(date_trunc('week', a0 + INTERVAL 1 DAY) AS DATE) - 1"
_YEARS: Final = "(date_part('year', a0) - 1970)"

_OF_TIMES: Final[dict[str, Builder]] = builders({
    "from_unix_timestamp64_second": [signature("bigint", "timestamp", "make_timestamp(a0 * 1000000)")],
    "to_unix_timestamp64_second": _of_time("bigint", "CAST(floor(epoch(a0)) AS BIGINT)"),
    "month_name": _of_time("text", "strftime(a0, '%B')"),
    "time_diff": [signature("timestamp timestamp", "bigint", "date_diff('second', a0, a1)")],
    "time_slot": _of_time("timestamp", "time_bucket(INTERVAL 30 MINUTE, a0, TIMESTAMP '1970-01-01')"),
    "timezone_of": _of_time("text", "CASE WHEN a0 IS NOT NULL THEN 'UTC' END"),
    "timezone_offset": _of_time("int", "CASE WHEN a0 IS NOT NULL THEN 0 END"),
    "to_days_since_year_zero": _of_time("int", "CAST(a0 AS DATE) - DATE '1970-01-01' + 719528"),
    "to_last_day_of_month": _of_time("date", "last_day(a0)"),
    "to_last_day_of_week": _of_time("date", f"{_SUNDAY} + 6"),
    "to_millisecond": _of_time("int", "CAST(floor(date_part('microsecond', a0) / 1000) % 1000 AS INTEGER)"),
    "to_microsecond": _of_time("int", "CAST(date_part('microsecond', a0) % 1000000 AS INTEGER)"),
    "to_modified_julian_day": [signature("text", "int", "CAST(a0 AS DATE) - DATE '1858-11-17'")],
    "from_modified_julian_day": [signature("int", "text", "CAST(DATE '1858-11-17' + a0 AS VARCHAR)")],
    "to_relative_year_num": _of_time("int", "CAST(date_part('year', a0) AS INTEGER)"),
    "to_relative_quarter_num": _of_time(
        "int", "CAST(date_part('year', a0) * 4 + date_part('quarter', a0) - 1 AS INTEGER)"),
    "to_relative_month_num": _of_time("int", "CAST(date_part('year', a0) * 12 + date_part('month', a0) AS INTEGER)"),
    "to_relative_week_num": _of_time("int", "CAST(floor((CAST(a0 AS DATE) - DATE '1970-01-01' + 3) / 7) AS INTEGER)"),
    "to_relative_day_num": _of_time("int", "CAST(a0 AS DATE) - DATE '1970-01-01'"),
    "to_relative_hour_num": _of_time("bigint", "CAST(floor(epoch(a0) / 3600) AS BIGINT)"),
    "to_relative_minute_num": _of_time("bigint", "CAST(floor(epoch(a0) / 60) AS BIGINT)"),
    "to_relative_second_num": _of_time("bigint", "CAST(floor(epoch(a0)) AS BIGINT)"),
    "to_start_of_iso_year": _of_time("date", "CAST(date_trunc('week', make_date(CAST(date_part('isoyear', a0) "
                                     "AS BIGINT), 1, 4)) AS DATE)"),
    "to_start_of_millisecond": _of_time("timestamp", "date_trunc('milliseconds', a0)"),
    "to_start_of_microsecond": _of_time("timestamp", "date_trunc('microseconds', a0)"),
    "make_datetime": [signature("bigint bigint bigint bigint bigint bigint", "timestamp",
                                "make_timestamp(a0, a1, a2, a3, a4, CAST(a5 AS DOUBLE))")],
    "yyyymmdd_to_date": [signature("bigint", "date", "make_date(a0 // 10000, a0 // 100 % 100, a0 % 100)")],
})  # fmt: skip

_OF_TEXTS: Final[dict[str, Builder]] = builders({
    "byte_hamming_distance": _pair("bigint", "hamming(a0, a1)"),
    "edit_distance": _pair("bigint", "levenshtein(a0, a1)"),
    "count_matches": _pair("bigint", "len(list_filter(regexp_extract_all(a0, a1, 0, 's'), lambda _m: _m <> ''))"),
    "count_matches_case_insensitive": _pair(
        "bigint", "len(list_filter(regexp_extract_all(a0, a1, 0, 'is'), lambda _m: _m <> ''))"),
    "count_substrings_case_insensitive": _pair(
        "bigint", "(length(a0) - length(replace(lower(a0), lower(a1), ''))) // length(a1)"),
    "cut_to_first_significant_subdomain": _of("text", _CUT_HOST),
    "first_significant_subdomain": _of("text", _FIRST_LABEL),
    "cut_url_parameter": _pair("text", "regexp_replace(regexp_replace(a0, '([?&;])' || regexp_escape(a1) || "
                               "'=[^&#;]*[&;]', '\\1', 'g'), '[?&;]' || regexp_escape(a1) || '=[^&#;]*', '', 'g')"),
    "decode_url_form_component": _of("text", "url_decode(replace(a0, '+', ' '))"),
    "encode_url_form_component": _of("text", "replace(url_encode(a0), '%20', '+')"),
    "decode_xml_component": _of("text", _replaced(tuple((b, a) for a, b in reversed(_XML)))),
    "encode_xml_component": _of("text", _replaced(_XML)),
    "ends_with_utf8": _pair("bool", "ends_with(a0, a1)"), "starts_with_utf8": _pair("bool", "starts_with(a0, a1)"),
    "ends_with_case_insensitive": _pair("bool", "ends_with(lower(a0), lower(a1))"),
    "starts_with_case_insensitive": _pair("bool", "starts_with(lower(a0), lower(a1))"),
    "first_line": _of("text", "regexp_extract(a0, '^[^\\r\\n]*')"),
    "has_subsequence": _pair("bool", "regexp_matches(a0, array_to_string(list_transform(string_split(a1, ''), "
                             "lambda _c: regexp_escape(_c)), '.*'), 's')"),
    "has_token": _pair("bool", f"list_contains(regexp_extract_all(a0, {_TOKENS}), a1)"),
    "has_token_case_insensitive": _pair("bool", f"list_contains(regexp_extract_all(lower(a0), {_TOKENS}), lower(a1))"),
    "is_valid_utf8": _of("bool", "CASE WHEN a0 IS NOT NULL THEN true END"), "to_valid_utf8": _of("text", "a0"),
    "left_pad": _padded("lpad"), "left_pad_utf8": _padded("lpad"),
    "right_pad": _padded("rpad"), "right_pad_utf8": _padded("rpad"),
    "left_utf8": [signature("text int", "text", "left(a0, a1)")],
    "right_utf8": [signature("text int", "text", "right(a0, a1)")],
    "ngrams": [signature("text int", "text[]", "list_transform(range(1, greatest(length(a0) - a1 + 2, 1)), "
                         "lambda _i: substring(a0, _i, a1))")],
    "regexp_quote_meta": _of("text", "regexp_replace(a0, '([\\\\|()^$.\\[\\]?*+{:-])', '\\\\\\1', 'g')"),
    "space": [signature("int", "text", f"repeat(' ', {limited('a0', 'a0')})")],
    "split_by_non_alpha": _of("text[]", "regexp_extract_all(a0, '[^\\s[:punct:]]+')"),
    "substring_index": [signature("text text int", "text", "CASE WHEN a2 >= 0 THEN array_to_string(list_slice("
                                  "string_split(a0, a1), 1, a2), a1) ELSE array_to_string(list_slice("
                                  "string_split(a0, a1), a2, -1), a1) END")],
    "tokens": _of("text[]", f"regexp_extract_all(a0, {_TOKENS})"),
    "url_hierarchy": _of("text[]", _hierarchy(f"{_START} || ", "0")),
    "url_path_hierarchy": _of("text[]", _hierarchy("", "1")),
    "base64_url_encode": _of("text", "rtrim(replace(replace(to_base64(encode(a0)), '+', '-'), '/', '_'), '=')"),
    "base64_url_decode": _of("text", "decode(from_base64(rpad(replace(replace(a0, '-', '+'), '_', '/'), "
                             "CAST(ceil(length(a0) / 4) * 4 AS INTEGER), '=')))"),
})  # fmt: skip

_UUID_OR_ZERO: Final = "coalesce(TRY_CAST(a0 AS UUID), CAST('00000000-0000-0000-0000-000000000000' AS UUID))"

_OF_NUMBERS: Final[dict[str, Builder]] = builders({
    "bit_hamming_distance": [signature("bigint bigint", "int", "bit_count(xor(a0, a1))")],
    "int_exp2": [signature("int", "uint64", "CAST(pow(2, a0) AS DECIMAL(20, 0))")],
    "int_exp10": [signature("int", "uint64", "CAST(pow(10, a0) AS DECIMAL(20, 0))")],
    "log1p": [signature("double", "double", "ln(1 + a0)")],
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
    return Value(exp.Array(expressions=[string(name) for name, _ in c.arguments[0].type.fields]), _TEXTS)


def _zoned(c: FunctionCall, *, from_utc: bool) -> Value:
    """`from_utc_timestamp(t, zone)`: the local time of a time in UTC; `to_utc_timestamp` the other way."""
    time, zone = cast(c.arguments[0], TIMESTAMP, c.ctx, c.node), cast(c.arguments[1], VARCHAR, c.ctx, c.node)
    if from_utc:
        moment = fill("a0 AT TIME ZONE 'UTC'", time.expression)
        return at_time_zone(zone, Value(moment, SqlType("timestamptz")), c.ctx, c.node)
    moment = at_time_zone(zone, time, c.ctx, c.node).expression
    return Value(fill("a0 AT TIME ZONE 'UTC'", moment), TIMESTAMP, time.nullable)


def _date_name(c: FunctionCall) -> Value:
    """`date_name('month', t)`: the name of a month or a weekday, the digits of other parts."""
    part = c.text(0, example="month", what="a part").lower()
    time = cast(c.arguments[1], TIMESTAMP, c.ctx, c.node).expression
    if part in ("month", "weekday"):
        return Value(call("strftime", time, string("%B" if part == "month" else "%A")), VARCHAR)
    names = {"dayofyear": "doy", "year": "year", "quarter": "quarter", "day": "day", "week": "week", "hour": "hour",
             "minute": "minute", "second": "second"}  # fmt: skip
    if part not in names:
        raise c.not_supported(f"date_name('{part}', …)", hint=f"Supported: {', '.join(['month', 'weekday', *names])}.")
    number = f"CAST(CAST(date_part('{names[part]}', a0) AS BIGINT) AS VARCHAR)"
    return Value(fill(number, time), VARCHAR)


#: The number of a week by the mode of `to_week`.
_WEEKS: Final = {0: "strftime(a0, '%U')", 2: None, 3: "date_part('week', a0)", 5: "strftime(a0, '%W')"}


def _to_week(c: FunctionCall) -> Value:
    mode = 0 if len(c.arguments) < 2 else constant_of(c.arguments[1], BIGINT, c.node, c.ctx, example=0)
    template = _WEEKS.get(mode)
    if template is None:
        raise c.not_supported(f"mode {mode} of to_week", hint="Modes 0, 3 (ISO) and 5 are supported.")
    time = cast(c.arguments[0], TIMESTAMP, c.ctx, c.node).expression
    return Value(duckdb_cast(fill(template, time), INTEGER), INTEGER)


def _joda(c: FunctionCall) -> Value:
    time = cast(c.arguments[0], TIMESTAMP, c.ctx, c.node)
    return Value(call("strftime", time.expression, java_format(c, 1, reading=False)), VARCHAR, time.nullable)


def _joda_of_seconds(c: FunctionCall) -> Value:
    seconds = fill("make_timestamp(a0 * 1000000)", c.cast(0, BIGINT).expression)
    return _joda(c.over([Value(seconds, TIMESTAMP), *c.arguments[1:]]))


def _extract_groups(c: FunctionCall) -> Value:
    """The texts of all groups of the first match; an empty array without one."""
    count = groups(c.text(1, example="", what="a pattern"))
    if not count:
        raise c.error("INVALID_VALUE", f"the pattern of {c.name} has no group")
    text = c.cast(0, VARCHAR).expression
    regex = checked(c.cast(1, VARCHAR).expression.name, c.node, c.ctx)
    parts = [call("regexp_extract", text, regex, exp.Literal.number(i + 1), string("s")) for i in range(count)]
    template = "CASE WHEN regexp_matches(a0, a1, 's') THEN a2 WHEN a0 IS NOT NULL THEN [] END"
    return Value(duckdb_cast(fill(template, text, regex, exp.Array(expressions=parts)), _TEXTS), _TEXTS)


def _transform(c: FunctionCall) -> Value:
    """`transform(x, [from …], [to …], default)`: the value at the place of x; the default, or x itself, otherwise."""
    texts = c.arguments[1].type.element, c.arguments[2].type.element
    if None in texts:
        raise c.mismatch("It takes a value, an array of values, an array of results and a default.")
    found, wanted = texts
    assert found is not None
    assert wanted is not None
    value = coerce(c.arguments[0], found, c.ctx, c.nodes[0]).finish().expression
    other = c.arguments[3] if len(c.arguments) > 3 else c.arguments[0]
    results, kind = unify([Value(exp.null(), wanted), other], [c.nodes[2], c.nodes[-1]], c.ctx, c.name)
    after = duckdb_cast(c.arguments[2].finish().expression, array_of(kind))
    place = "list_position(a1, a0)"
    template = f"CASE WHEN {place} IS NULL THEN a3 ELSE list_extract(a2, {place}) END"
    return Value(fill(template, value, c.arguments[1].finish().expression, after, results[1].expression), kind)


def _json_extract(template: str, kind_of: str) -> Builder:
    """A value of a JSON document of the type of the last argument, or its default; see `documents` for paths."""

    def build(c: FunctionCall) -> Value:
        kind = c.arguments[-1].type
        document, path = document_and_path(c.over(c.arguments[:-1], c.nodes[:-1]))
        entry = SqlType("struct", fields=(("1", VARCHAR), ("2", kind)))
        found = array_of(entry) if kind_of == "pairs" else kind
        filled = fill(template.replace("{kind}", kind.duckdb), document, path, default_of(found))
        return Value(duckdb_cast(filled, found), found)

    return at_least(build, 2)


def _to_json(c: FunctionCall) -> Value:
    value = c.arguments[0]
    known = cast(value, VARCHAR, c.ctx, c.node) if value.unknown else value
    return Value(duckdb_cast(made_of(known).expression, VARCHAR), VARCHAR, known.nullable)


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


def _intervals(unit: str) -> Builder:
    def build(c: FunctionCall) -> Value:
        count = c.cast(0, BIGINT).expression
        return Value(fill(f"a0 * INTERVAL 1 {unit}", count), INTERVAL)

    return counted(build, 1)


def _random_bytes(c: FunctionCall) -> Value:
    """Random bytes, as many as the argument says."""
    refuse_volatile(c)
    digits = "lambda _i: format('{:02x}', CAST(floor(random() * 256) AS INTEGER))"
    size = limited("a0", "a0", "BIGINT")
    found = fill(f"unhex(array_to_string(list_transform(range({size}), {digits}), ''))", c.cast(0, BIGINT).expression)
    return Value(found, BYTEA, nullable=False)


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

#: Functions of all values of a group, which grammars substitute for aggregate functions.
_OF_GROUPS: Final[dict[str, Builder]] = {
    "corr": _of_pairs(f"{_SXY} / sqrt(({_SXX}) * ({_SYY}))"),
    "covar_pop": _of_pairs(f"{_SXY} / {_COUNT}"), "covar_samp": _of_pairs(f"{_SXY} / ({_COUNT} - 1)"),
    "regression_slope": _of_pairs(_SLOPE), "regression_intercept": _of_pairs(f"_m.q - {_SLOPE} * _m.p"),
    "exponential_moving_average": _of_pairs(
        "(1 - pow(2, -1 / a1)) * list_sum(list_transform(list_zip(_m.x, _m.y), "
        "lambda _e: _e[1] * pow(2, (_e[2] - list_max(_m.y)) / a1)))", 2),
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


_VALUE: Final = "coalesce(TRY_CAST(json_extract(a0, a1) AS {kind}), a2)"
_PAIRS: Final = (
    'coalesce(list_transform(json_keys(a0, a1), lambda _k: struct_pack("1" := _k, "2" := '
    "TRY_CAST(json_extract(json_extract(a0, a1), '$.\"' || _k || '\"') AS {kind}))), a2)"
)

_UNITS: Final = ("microsecond", "millisecond", "second", "minute", "hour", "day", "week", "month", "quarter", "year")

#: Names are those of the reference in lower case; grammars insert them with the prefix `$`.
PLAIN_FUNCTIONS: Final[Mapping[str, Builder]] = {
    **_OF_TIMES, **_OF_TEXTS, **_OF_NUMBERS, **_OF_PLACES, **_OF_VECTORS, **_OF_GROUPS,
    "entropy": counted(_entropy, 1), "sum_map": _by_key("list_sum"), "min_map": _by_key("list_min"),
    "max_map": _by_key("list_max"),
    "crc32": in_python("import zlib\ndef f(text):\n    return zlib.crc32(text.encode())\n", "text", "bigint"),
    "erf": in_python("import math\ndef f(x):\n    return math.erf(x)\n", "double", "double"),
    "erfc": in_python("import math\ndef f(x):\n    return math.erfc(x)\n", "double", "double"),
    "tuple_plus": _tuple_pairs("+"), "tuple_minus": _tuple_pairs("-"), "tuple_multiply": _tuple_pairs("*"),
    "tuple_divide": _tuple_pairs("/"), "tuple_multiply_by_number": _tuple_pairs("*"),
    "tuple_divide_by_number": _tuple_pairs("/"),
    "tuple_concat": at_least(_tuple_concat, 1), "tuple_names": counted(_tuple_names, 1),
    "from_utc_timestamp": counted(lambda c: _zoned(c, from_utc=True), 2),
    "to_utc_timestamp": counted(lambda c: _zoned(c, from_utc=False), 2),
    "date_name": counted(_date_name, 2), "to_week": counted(_to_week, 1, 2),
    "format_datetime_in_joda_syntax": counted(_joda, 2),
    "from_unix_timestamp_in_joda_syntax": counted(_joda_of_seconds, 2),
    "extract_groups": counted(_extract_groups, 2), "transform": counted(_transform, 3, 4),
    "json_extract": _json_extract(_VALUE, "value"),
    "json_extract_keys_and_values": _json_extract(_PAIRS, "pairs"),
    "to_json_string": counted(_to_json, 1), "to_type_name": counted(_to_type_name, 1),
    "round_down": counted(_round_down, 2), "round_bankers": _rounded("round_even"), "floor": _rounded("floor"),
    "ceil": _rounded("ceil"), "trunc": _rounded("trunc"),
    **dict.fromkeys(("random_string", "random_fixed_string"), counted(_random_bytes, 1, 2)),
    **{f"to_interval_{unit}": _intervals(unit) for unit in _UNITS if unit != "second"},
}  # fmt: skip
