"""Binds ClickHouse's conversions with a default, its functions of times and formats, numbers and random values.

A conversion ending with `_or_zero`, `_or_null` or `_or_default` reads a whole text; if it can't, its value is the
default of the type, NULL or the second argument. Times have no zone and are UTC: a function with a zone reads or shows
local times of that zone. A format has MySQL's signs, in which `%M` is also the minute.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from sqlglot import exp

from watersmeet.dialects.tree.nodes import is_open
from watersmeet.expressions.calls import (
    Builder,
    FunctionCall,
    Signature,
    at_least,
    builders,
    constant_of,
    counted,
    limited,
    refuse_volatile,
    signature,
)
from watersmeet.expressions.casts import cast, coerce
from watersmeet.expressions.clock import at_time_zone
from watersmeet.expressions.context import Value, call, duckdb_cast, fill, string
from watersmeet.expressions.timetexts import java_format
from watersmeet.values.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    INTERVAL,
    REAL,
    SMALLINT,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    SqlType,
)

#: The types of conversions: by name, DuckDB's type that has its range, and the type of the result.
_KINDS: Final[Mapping[str, tuple[str, SqlType]]] = {
    "int8": ("TINYINT", SMALLINT), "int16": ("SMALLINT", SMALLINT), "int32": ("INTEGER", INTEGER),
    "int": ("INTEGER", INTEGER), "int64": ("BIGINT", BIGINT), "uint8": ("UTINYINT", SMALLINT),
    "uint16": ("USMALLINT", INTEGER), "uint32": ("UINTEGER", BIGINT), "uint": ("UINTEGER", BIGINT),
    "uint64": ("UBIGINT", SqlType("numeric", 20, 0)), "int128": ("HUGEINT", SqlType("numeric", 38, 0)),
    "float32": ("FLOAT", REAL), "float": ("FLOAT", REAL), "float64": ("DOUBLE", DOUBLE), "bool": ("BOOLEAN", BOOLEAN),
    "date": ("DATE", DATE), "date32": ("DATE", DATE), "datetime": ("TIMESTAMP", TIMESTAMP),
    "datetime64": ("TIMESTAMP", TIMESTAMP),
}  # fmt: skip

_DECIMALS: Final = {"decimal32": 9, "decimal64": 18, "decimal128": 38, "decimal": 38}
_START: Final = "1970-01-01"
_NUMBER_TEXT: Final = "CASE WHEN regexp_full_match(a0, '[+-]?[0-9]+') THEN a0 END"


def _read(c: FunctionCall, name: str) -> tuple[exp.Expression, SqlType]:
    """The first argument as a type, NULL if it is not one of its texts; and the type of the result."""
    value = c.arguments[0]
    if name in _DECIMALS:
        scale = int(c.arguments[1].expression.name)
        duckdb, kind = f"DECIMAL({_DECIMALS[name]},{scale})", SqlType("numeric", _DECIMALS[name], scale)
    else:
        duckdb, kind = _KINDS[name]
    text = value.unknown or value.type == VARCHAR
    source = c.cast(0, VARCHAR).expression if text else value.finish().expression
    if text and (kind.is_integer or (kind.name == "numeric" and not kind.scale)):
        source = fill(_NUMBER_TEXT, source)
    elif not text and value.type.is_numeric and kind.is_integer:
        source = call("trunc", source)
    read = fill(f"TRY_CAST(a0 AS {duckdb})", source)
    if duckdb == "TIMESTAMP" and name == "datetime":
        read = call("date_trunc", string("second"), read)
    return duckdb_cast(read, kind), kind


def _zero(kind: SqlType) -> exp.Expression:
    plain = string(_START) if kind in (DATE, TIMESTAMP) else exp.false() if kind == BOOLEAN else exp.Literal.number(0)
    return duckdb_cast(plain, kind)


def _or(name: str, otherwise: str) -> Builder:
    more = 1 if name in _DECIMALS else 0

    def build(c: FunctionCall) -> Value:
        read, kind = _read(c, name)
        if otherwise == "null":
            return Value(read, kind)
        default = _zero(kind)
        if len(c.arguments) > 1 + more and otherwise == "default":
            default = coerce(c.arguments[-1], kind, c.ctx, c.nodes[-1]).finish().expression
        return Value(exp.Coalesce(this=read, expressions=[default]), kind, nullable=False)

    counts = (1 + more, 2 + more, 3 + more) if otherwise == "default" or name.startswith("date") else (1 + more,)
    return counted(build, *counts)


#: Other forms of times: day first, as in ClickHouse.
_FORMATS: Final = (
    "%d/%m/%y %H:%M:%S", "%d/%m/%y", "%d/%m/%Y %H:%M:%S", "%d/%m/%Y", "%d %b %Y %H:%M:%S", "%d %b %Y",
    "%a, %d %b %Y %H:%M:%S GMT", "%Y%m%d%H%M%S", "%Y%m%d",
)  # fmt: skip
_LISTED: Final = ", ".join(f"'{f}'" for f in _FORMATS)
_BEST: Final = (
    "CASE WHEN regexp_full_match(a0, '[0-9]{9,10}') THEN make_timestamp(CAST(a0 AS BIGINT) * 1000000) "
    "WHEN regexp_matches(a0, ':.*(Z|[+-][0-9][0-9]:?[0-9][0-9])$') THEN TRY_CAST(a0 AS TIMESTAMPTZ) AT TIME ZONE 'UTC' "
    f"ELSE coalesce(CASE WHEN NOT regexp_matches(a0, '^[0-9]{{1,2}}/|^[0-9]{{14}}$|^[0-9]{{8}}$') "
    f"THEN TRY_CAST(a0 AS TIMESTAMP) END, try_strptime(a0, [{_LISTED}])) END"
)


def _moment(c: FunctionCall) -> Value:
    """A time from a text in many forms, seconds since 1970, or a date. A zone is that of the text."""
    value, zone = c.arguments[0], None
    for extra in c.arguments[1:]:
        zone = extra if extra.unknown or extra.type == VARCHAR else zone
    if not value.unknown and value.type.is_numeric:
        seconds = duckdb_cast(value.expression, SqlType("numeric", 38, 6) if not value.type.is_float else value.type)
        return Value(fill("make_timestamp(CAST(trunc(a0 * 1000000) AS BIGINT))", seconds), TIMESTAMP, value.nullable)
    if value.unknown and not value.is_null and not is_open(value.expression):
        known = c.ctx.constant(fill(_BEST, value.expression))
        written = value if known is None else replace(value, expression=string(str(known)))
        found = cast(written, TIMESTAMP, c.ctx, c.nodes[0])
    elif value.unknown or value.type == VARCHAR:
        text = c.cast(0, VARCHAR)
        failing = call("coalesce", fill(_BEST, text.expression), duckdb_cast(text.expression, TIMESTAMP))
        found = Value(failing, TIMESTAMP, text.nullable)
    else:
        found = cast(value, TIMESTAMP, c.ctx, c.node)
    return found if zone is None else _to_utc(found, zone, c)


def _to_utc(local: Value, zone: Value, c: FunctionCall) -> Value:
    moment = at_time_zone(cast(zone, VARCHAR, c.ctx, c.node), local, c.ctx, c.node)
    return Value(fill("a0 AT TIME ZONE 'UTC'", moment.expression), TIMESTAMP, local.nullable)


def _local(value: Value, zone: Value, c: FunctionCall) -> Value:
    """The local time in a zone of a time in UTC."""
    moment = Value(fill("a0 AT TIME ZONE 'UTC'", cast(value, TIMESTAMP, c.ctx, c.node).expression), TIMESTAMPTZ)
    return at_time_zone(cast(zone, VARCHAR, c.ctx, c.node), moment, c.ctx, c.node)


def _to_timezone(c: FunctionCall) -> Value:
    return _local(c.arguments[0], c.arguments[1], c)


def _truncated(c: FunctionCall) -> Value:
    """date_trunc(unit, time, zone): the start of the unit in the zone."""
    unit = c.cast(0, VARCHAR).expression
    local = _local(c.arguments[1], c.arguments[2], c)
    return _to_utc(Value(call("date_trunc", unit, local.expression), TIMESTAMP), c.arguments[2], c)


#: Signs of MySQL's formats as those of strftime.
_SIGNS: Final[Mapping[str, str]] = {
    **{s: f"%{s}" for s in "YymdHSIpjabw%"}, "D": "%m/%d/%y", "F": "%Y-%m-%d", "G": "%G", "M": "%M", "R": "%H:%M",
    "T": "%H:%M:%S", "V": "%V", "W": "%A", "c": "%m", "f": "%f", "h": "%I", "i": "%M", "n": "\n", "r": "%I:%M %p",
    "s": "%S", "t": "\t", "u": "%u", "k": "%H", "l": "%I", "e": "%d", "z": "%z", "E": "%E",
}  # fmt: skip


def _strftime(c: FunctionCall, *, reading: bool) -> exp.Expression:
    """A constant format as one of strftime, or of strptime for `reading`."""
    made = ""
    for part in re.findall(r"%.|[^%]+|%$", c.text(1, example="%Y", what="a format"), re.DOTALL):
        if part[0] != "%":
            made += part
        elif part[1:] in _SIGNS and part[1:] not in ("E", "V" if reading else "E"):
            made += _SIGNS[part[1:]] if reading or part != "%z" else "+0000"
        else:
            raise c.not_supported(f"{part} in a format of {c.name}", hint=f"Supported: {' '.join(sorted(_SIGNS))}.")
    return string(made)


def _format_datetime(c: FunctionCall) -> Value:
    time = _local(c.arguments[0], c.arguments[2], c) if len(c.arguments) > 2 else cast(
        c.arguments[0], TIMESTAMP, c.ctx, c.node)  # fmt: skip
    return Value(call("strftime", time.expression, _strftime(c, reading=False)), VARCHAR, time.nullable)


def _parse(otherwise: str, *, joda: bool = False) -> Builder:
    """parse_datetime(text, format, zone). otherwise: `fail`, `null` or `zero` for a text without the format."""

    def build(c: FunctionCall) -> Value:
        pattern = java_format(c, 1, reading=True) if joda else _strftime(c, reading=True)
        text = c.cast(0, VARCHAR)
        found = call("strptime" if otherwise == "fail" else "try_strptime", text.expression, pattern)
        if otherwise == "zero":
            found = exp.Coalesce(this=found, expressions=[_zero(TIMESTAMP)])
        value = Value(duckdb_cast(found, TIMESTAMP), TIMESTAMP)
        return _to_utc(value, c.arguments[2], c) if len(c.arguments) > 2 else value

    return counted(build, 2, 3)


def _best(otherwise: str) -> Builder:
    def build(c: FunctionCall) -> Value:
        found = fill(_BEST, c.cast(0, VARCHAR).expression)
        if otherwise == "zero":
            found = exp.Coalesce(this=found, expressions=[_zero(TIMESTAMP)])
        return Value(found, TIMESTAMP, otherwise == "null")

    return counted(build, 1, 2, 3)


def _time(template: str, kind: str) -> list[Signature]:
    return [signature("timestamp", kind, template)]


def _double(template: str) -> list[Signature]:
    return [signature("double", "double", template)]


_BY_SIGNATURE: Final[dict[str, Builder]] = builders({
    "to_unix_timestamp64_milli": _time("epoch_ms(a0)", "bigint"),
    "to_unix_timestamp64_micro": _time("epoch_us(a0)", "bigint"),
    "to_unix_timestamp64_nano": _time("epoch_us(a0) * 1000", "bigint"),
    "from_unix_timestamp64_milli": [signature("bigint", "timestamp", "make_timestamp(a0 * 1000)")],
    "from_unix_timestamp64_micro": [signature("bigint", "timestamp", "make_timestamp(a0)")],
    "from_unix_timestamp64_nano": [signature("bigint", "timestamp", "make_timestamp(a0 // 1000)")],
    "from_unix_timestamp": [signature("bigint", "timestamp", "make_timestamp(a0 * 1000000)")],
    "to_yyyymm": _time("CAST(strftime(a0, '%Y%m') AS INTEGER)", "int"),
    "to_yyyymmdd": _time("CAST(strftime(a0, '%Y%m%d') AS INTEGER)", "int"),
    "to_yyyymmddhhmmss": _time("CAST(strftime(a0, '%Y%m%d%H%M%S') AS BIGINT)", "bigint"),
    **{name: _time(f"CAST(date_part('{part}', a0) AS INTEGER)", "int") for name, part in (
        ("day_of_week", "isodow"), ("weekday", "isodow"), ("day_of_year", "doy"), ("day_of_month", "day"),
        ("year", "year"), ("quarter", "quarter"), ("month", "month"), ("day", "day"), ("hour", "hour"),
        ("minute", "minute"))},
    "second": _time("CAST(date_part('second', a0) AS INTEGER)", "int"),
    **{f"to_start_of_{unit}": _time(f"CAST(date_trunc('{unit}', a0) AS DATE)", "date")
       for unit in ("year", "quarter", "month")},
    "e": [signature("", "double", "exp(CAST(1 AS DOUBLE))")], "exp2": _double("pow(2, a0)"),
    "exp10": _double("pow(10, a0)"), "log2": _double("log2(a0)"), "lgamma": _double("lgamma(a0)"),
    "tgamma": _double("gamma(a0)"), "sign": [signature("double", "int", "CAST(sign(a0) AS INTEGER)")],
    "is_finite": [signature("double", "bool", "isfinite(a0)")],
    "is_infinite": [signature("double", "bool", "isinf(a0)")], "is_nan": [signature("double", "bool", "isnan(a0)")],
    "hypot": [signature("double double", "double", "sqrt(a0 * a0 + a1 * a1)")],
    "bit_count": [signature("bigint", "int", "bit_count(a0)")],
    "bit_not": [signature("int", "int", "~a0"), signature("bigint", "bigint", "~a0")],
    "bit_shift_left": [signature("bigint bigint", "bigint", "a0 << CAST(a1 AS INTEGER)")],
    "bit_shift_right": [signature("bigint bigint", "bigint", "a0 >> CAST(a1 AS INTEGER)")],
    "bit_test": [signature("bigint bigint", "bool", "(a0 >> CAST(a1 AS INTEGER)) & 1 = 1")],
    "int_div_or_zero": [signature("bigint bigint", "bigint", "coalesce(a0 // nullif(a1, 0), 0)")],
    "modulo_or_zero": [signature("bigint bigint", "bigint", "coalesce(a0 % nullif(a1, 0), 0)")],
    "positive_modulo": [signature("bigint bigint", "bigint", "(a0 % a1 + abs(a1)) % a1")],
})  # fmt: skip


def _xor(c: FunctionCall) -> Value:
    """Whether an odd number of conditions is true."""
    tests = [fill("CAST(CAST(a0 AS BOOLEAN) AS INTEGER)", a.finish().expression) for a in c.arguments]
    total = " + ".join(f"a{i}" for i in range(len(tests)))
    return Value(fill(f"({total}) % 2 = 1", *tests), BOOLEAN)


def _random(template: str, kind: SqlType, *counts: int, numbers: int = 0) -> Builder:
    """A random value from a template over doubles; FEATURE_NOT_SUPPORTED in a view. numbers: the arguments that it
    reads; further ones only make calls different.
    """

    def build(c: FunctionCall) -> Value:
        refuse_volatile(c)
        parts = [c.cast(i, DOUBLE).expression for i in range(numbers)]
        return Value(duckdb_cast(fill(template, *parts), kind), kind, nullable=False)

    return counted(build, *counts)


_NORMAL: Final = "sqrt(-2 * ln(1 - random())) * cos(2 * pi() * random())"
_CHARACTERS: Final = (
    "array_to_string(list_transform(range(CAST(least(a0, 1048576) AS BIGINT)), "
    "lambda _i: chr(CAST(32 + floor(random() * 95) AS INTEGER))), '')"
)
_UINT32: Final = "floor(random() * 4294967296)"

#: How many products of random numbers are above exp(-mean): Knuth's method, as a sum of exponential times below 1.
_POISSON: Final = (
    "len(list_filter(list_reduce(list_transform(range(CAST(a0 + 10 * sqrt(a0) + 20 AS BIGINT)), "
    "lambda _i: [-ln(1 - random()) / a0]), lambda _s, _x: list_append(_s, list_extract(_s, -1) + _x[1])), "
    "lambda _t: _t < 1))"
)

_RANDOM: Final[dict[str, Builder]] = {
    "rand": _random(_UINT32, BIGINT, 0, 1), "rand32": _random(_UINT32, BIGINT, 0, 1),
    "rand64": _random(f"CAST({_UINT32} AS HUGEINT) * 4294967296 + CAST({_UINT32} AS HUGEINT)",
                      SqlType("numeric", 20, 0), 0, 1),
    "rand_uniform": _random("a0 + random() * (a1 - a0)", DOUBLE, 2, 3, numbers=2),
    "rand_normal": _random(f"a0 + sqrt(a1) * {_NORMAL}", DOUBLE, 2, 3, numbers=2),
    "rand_log_normal": _random(f"exp(a0 + sqrt(a1) * {_NORMAL})", DOUBLE, 2, 3, numbers=2),
    "rand_exponential": _random("-ln(1 - random()) / a0", DOUBLE, 1, 2, numbers=1),
    "rand_bernoulli": _random("CASE WHEN random() < a0 THEN 1 ELSE 0 END", INTEGER, 1, 2, numbers=1),
    "rand_canonical": _random("random()", DOUBLE, 0, 1),
    "rand_poisson": _random(_POISSON, BIGINT, 1, 2, numbers=1),
    "rand_binomial": _random("len(list_filter(range(CAST(a0 AS BIGINT)), lambda _i: random() < a1))", BIGINT, 2, 3,
                             numbers=2),
    "random_printable_ascii": _random(_CHARACTERS, VARCHAR, 1, 2, numbers=1),
    "uuid": _random("uuid()", VARCHAR, 0, 1), "generate_uuidv4": _random("uuid()", VARCHAR, 0, 1),
}  # fmt: skip


def _of_time(kind: str, template: str) -> list[Signature]:
    return [signature("timestamp", kind, template)]


_SUNDAY: Final = "CAST(date_trunc('week', a0 + INTERVAL 1 DAY) AS DATE) - 1"

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
    "make_datetime64": [
        signature(" ".join(["bigint"] * count), "timestamp", f"make_timestamp(a0, a1, a2, a3, a4, {seconds})")
        for count, seconds in ((6, "CAST(a5 AS DOUBLE)"), (7, "a5 + a6 / 1000"), (8, "a5 + a6 / pow(10, a7)"))],
    "from_days_since_year_zero": [signature("int", "date", "DATE '1970-01-01' + (a0 - 719528)")],
    "to_modified_julian_day_or_null": [signature("text", "int", "TRY_CAST(a0 AS DATE) - DATE '1858-11-17'")],
    "from_modified_julian_day_or_null": [signature("int", "text", "CAST(DATE '1858-11-17' + a0 AS VARCHAR)")],
    "to_days_in_month": _of_time("int", "CAST(date_part('day', last_day(a0)) AS INTEGER)"),
    "to_month_num_since_epoch": _of_time(
        "int", "CAST((date_part('year', a0) - 1970) * 12 + date_part('month', a0) - 1 AS INTEGER)"),
    "to_year_num_since_epoch": _of_time("int", "CAST(date_part('year', a0) - 1970 AS INTEGER)"),
    "to_nanosecond": _of_time("int", "CAST(date_part('microsecond', a0) % 1000000 * 1000 AS INTEGER)"),
    "yyyymmddhhmmss_to_datetime": [
        signature("bigint", "timestamp", "strptime(CAST(a0 AS VARCHAR), '%Y%m%d%H%M%S')")],
    "yyyymmdd_to_date": [signature("bigint", "date", "make_date(a0 // 10000, a0 // 100 % 100, a0 % 100)")],
})  # fmt: skip


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


def _time_slots(c: FunctionCall) -> Value:
    """The beginnings of the slots of a time and of the seconds after it; slots have 1800 seconds, or as given."""
    start, kind = c.cast(0, TIMESTAMP).expression, SqlType("array", element=TIMESTAMP)
    size = c.cast(2, BIGINT).expression if len(c.arguments) > 2 else exp.Literal.number(1800)
    first = "CAST(floor(epoch(a0) / a2) AS BIGINT)"
    last = "CAST(floor((epoch(a0) + a1) / a2) AS BIGINT) + 1"
    each = f"list_transform(range({first}, {limited(f'({last} - {first}) * 8', last, 'BIGINT')}), "
    made = fill(f"{each} lambda _i: make_timestamp(_i * a2 * 1000000))", start, c.cast(1, BIGINT).expression, size)
    return Value(duckdb_cast(made, kind), kind)


_EACH_UNIT: Final = ("microsecond", "millisecond", "minute", "hour", "day", "week", "month", "quarter", "year")

#: Names are those of the reference in lower case; grammars insert them with the prefix `$`.
CONVERSIONS: Final[Mapping[str, Builder]] = {
    **_BY_SIGNATURE, **_RANDOM, **_OF_TIMES,
    "from_utc_timestamp": counted(lambda c: _zoned(c, from_utc=True), 2),
    "to_utc_timestamp": counted(lambda c: _zoned(c, from_utc=False), 2),
    "date_name": counted(_date_name, 2), "to_week": counted(_to_week, 1, 2),
    "format_datetime_in_joda_syntax": counted(_joda, 2),
    "from_unix_timestamp_in_joda_syntax": counted(_joda_of_seconds, 2),
    **dict.fromkeys(("random_string", "random_fixed_string"), counted(_random_bytes, 1, 2)),
    **{f"to_interval_{unit}": _intervals(unit) for unit in _EACH_UNIT},
    **{f"to_{name}_or_{what}": _or(name, what)
       for name in (*_KINDS, *_DECIMALS) for what in ("zero", "null", "default")},
    "to_time": counted(_moment, 1, 2, 3), "to_timezone": counted(_to_timezone, 2),
    "parse_datetime_best_effort": counted(_moment, 1, 2),
    "parse_datetime64_best_effort": counted(_moment, 1, 2, 3),
    **{f"parse_datetime{n}_best_effort_or_{what}": _best(what) for n in ("", "64") for what in ("null", "zero")},
    "date_trunc_in": counted(_truncated, 3), "format_datetime": counted(_format_datetime, 2, 3),
    "parse_datetime": _parse("fail"), "parse_datetime_or_null": _parse("null"),
    "parse_datetime_or_zero": _parse("zero"), "parse_datetime_in_joda_syntax": _parse("fail", joda=True),
    "parse_datetime_in_joda_syntax_or_null": _parse("null", joda=True),
    "parse_datetime_in_joda_syntax_or_zero": _parse("zero", joda=True),
    "time_slots": counted(_time_slots, 2, 3), "xor": at_least(_xor, 2),
}  # fmt: skip
