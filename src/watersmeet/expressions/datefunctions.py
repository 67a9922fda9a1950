"""Functions of dates and times."""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from watersmeet.errors import did_you_mean
from watersmeet.expressions.calls import (
    Arguments,
    Builder,
    constant_text,
    count_checked,
    mismatch_of,
    refuse_volatile,
)
from watersmeet.expressions.casts import cast
from watersmeet.expressions.context import Context
from watersmeet.expressions.fields import extracted
from watersmeet.expressions.formats import formatted, strptime_format
from watersmeet.expressions.signatures import builders, signature
from watersmeet.expressions.templates import fill
from watersmeet.expressions.values import Value, call, duckdb_cast, string
from watersmeet.expressions.zones import at_time_zone
from watersmeet.types import DATE, DOUBLE, INTERVAL, TIMESTAMP, TIMESTAMPTZ, VARCHAR, SqlType
from watersmeet.units import DAY_US


def _to_char(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("to_char", arguments, (2,), node, ctx)
    if arguments[0].type.name not in ("timestamp", "timestamptz", "date") or arguments[0].unknown:
        raise ctx.not_supported(
            f"to_char of {arguments[0].type.sql}", node, hint="Cast it to varchar, or use lpad and round."
        )
    return Value(
        formatted(arguments[0].expression, constant_text(arguments[1], "to_char", node, ctx, example="YYYY")), VARCHAR
    )


def _read(name: str, kind: SqlType) -> Builder:
    """`to_date` and `to_timestamp` of a text."""

    def build(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
        count_checked(name, arguments, (2,), node, ctx)
        pattern = strptime_format(constant_text(arguments[1], name, node, ctx, example="YYYY"), node, ctx)
        text = cast(arguments[0], VARCHAR, ctx, node)
        return Value(duckdb_cast(call("strptime", text.expression, string(pattern)), kind), kind)

    return build


def _to_timestamp(arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("to_timestamp", arguments, (1, 2), node, ctx)
    if len(arguments) == 1:
        seconds = cast(arguments[0], DOUBLE, ctx, node)
        return Value(call("to_timestamp", seconds.expression), TIMESTAMPTZ)
    return _read("to_timestamp", TIMESTAMPTZ)(arguments, nodes, node, ctx)


def _date_part(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("date_part", arguments, (2,), node, ctx)
    field = constant_text(arguments[0], "date_part", node, ctx, example="year").lower()
    return Value(duckdb_cast(extracted(field, arguments[1], ctx, node).expression, DOUBLE), DOUBLE)


def _date_trunc(arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("date_trunc", arguments, (2, 3), node, ctx)
    written = constant_text(arguments[0], "date_trunc", node, ctx, example="year")
    field = written.lower()
    if field not in _TRUNCATED:
        raise ctx.error("INVALID_VALUE", f'unit "{written}" not recognized', node, hint=did_you_mean(field, _TRUNCATED))
    value = cast(arguments[1], TIMESTAMP, ctx, node) if arguments[1].unknown else arguments[1]
    kind = TIMESTAMP if value.type == DATE else value.type
    if kind not in (TIMESTAMP, TIMESTAMPTZ, INTERVAL) or (len(arguments) == 3 and kind != TIMESTAMPTZ):
        raise mismatch_of(
            "date_trunc", arguments, node, ctx, "It takes a field, a timestamp or interval, and for timestamptz a zone."
        )
    if len(arguments) == 3:
        zone = cast(arguments[2], VARCHAR, ctx, node)
        local = at_time_zone(zone, value, ctx, nodes[2])
        truncated = Value(_truncated(field, local, TIMESTAMP), TIMESTAMP)
        if field in _WITHIN_DAY:  # in an hour that comes twice, it stays in its own
            return Value(fill("a0 - (a1 - a2)", value.expression, local.expression, truncated.expression), kind)
        return at_time_zone(zone, truncated, ctx, nodes[2])
    return Value(duckdb_cast(_truncated(field, value, kind), kind), kind)


def _truncated(field: str, value: Value, kind: SqlType) -> exp.Expression:
    years = {"century": 100, "millennium": 1000}.get(field)
    if years is None or kind == INTERVAL:
        return call("date_trunc", string(field), value.expression)
    # centuries begin with the year 1
    return fill(f"date_trunc('year', a0) - to_years(CAST((year(a0) - 1) % {years} AS INTEGER))", value.expression)


_WITHIN_DAY: Final = ("microseconds", "milliseconds", "second", "minute", "hour")
_TRUNCATED: Final = (
    *_WITHIN_DAY,
    "day",
    "week",
    "month",
    "quarter",
    "year",
    "decade",
    "century",
    "millennium",
)


def _now(name: str, kind: SqlType) -> Builder:
    def build(_arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
        refuse_volatile(name, node, ctx)
        return Value(duckdb_cast(call("now"), kind), kind, nullable=False)

    return build


_MONTHS: Final = "(extract('year' FROM a0) * 12 + extract('month' FROM a0))"
_DAYS: Final = "extract('day' FROM a0)"
_MICROS: Final = (
    "(extract('hour' FROM a0) * 3600000000 + extract('minute' FROM a0) * 60000000 + extract('microseconds' FROM a0))"
)


def _interval(months: str, days: str, micros: str) -> str:
    return (
        f"to_months(CAST({months} AS INTEGER)) + to_days(CAST({days} AS INTEGER)) + "
        f"to_microseconds(CAST({micros} AS BIGINT))"
    )


_JUSTIFIED_DAYS: Final = _interval(f"{_MONTHS} + trunc({_DAYS} / 30)", f"{_DAYS} % 30", _MICROS)
_JUSTIFIED_HOURS: Final = _interval(_MONTHS, f"{_DAYS} + trunc({_MICROS} / {DAY_US})", f"{_MICROS} % {DAY_US}")
#: Everything in microseconds, a month as 30 days: one sign for all parts.
_ALL: Final = f"(({_MONTHS} * 30 + {_DAYS}) * {DAY_US} + {_MICROS})"
_JUSTIFIED: Final = _interval(
    f"trunc({_ALL} / {30 * DAY_US})", f"trunc({_ALL} % {30 * DAY_US} / {DAY_US})", f"{_ALL} % {DAY_US}"
)

#: The start of the bin: what is beyond the origin, less the rest of a division that goes down also below the origin.
_BEYOND: Final = "(epoch_us(a1) - epoch_us(a2))"
_WIDTH: Final = (
    "(CASE WHEN extract('month' FROM a0) = 0 AND extract('year' FROM a0) = 0 AND epoch_us(a0) > 0 THEN "
    "epoch_us(a0) END)"
)
_BIN: Final = f"a2 + to_microseconds({_BEYOND} - (({_BEYOND} % {_WIDTH}) + {_WIDTH}) % {_WIDTH})"

_MADE_INTERVAL: Final = [
    "to_years(a0)",
    "to_months(a1)",
    "to_days(a2 * 7)",
    "to_days(a3)",
    "to_hours(a4)",
    "to_minutes(a5)",
    "to_microseconds(CAST(round(a6 * 1000000) AS BIGINT))",
]

_BY_SIGNATURE: Final[dict[str, Builder]] = builders({
    "age": [signature("timestamp timestamp", "interval", "age(a0, a1)"),
            signature("timestamptz timestamptz", "interval", "age(a0, a1)")],
    "date_bin": [signature("interval timestamp timestamp", "timestamp", _BIN),
                 signature("interval timestamptz timestamptz", "timestamptz", _BIN)],
    "isfinite": [signature("date", "bool", "isfinite(a0)"), signature("timestamp", "bool", "isfinite(a0)"),
                 signature("timestamptz", "bool", "isfinite(a0)"), signature("interval", "bool", "a0 IS NOT NULL")],
    "justify_days": [signature("interval", "interval", _JUSTIFIED_DAYS)],
    "justify_hours": [signature("interval", "interval", _JUSTIFIED_HOURS)],
    "justify_interval": [signature("interval", "interval", _JUSTIFIED)],
    "make_date": [signature("int int int", "date", "make_date(a0, a1, a2)")],
    "make_interval": [signature(" ".join(["int"] * n) if n < 7 else "int int int int int int double", "interval",
                                " + ".join(_MADE_INTERVAL[:n])) for n in range(1, 8)],
    "make_time": [signature("int int double", "time", "make_time(a0, a1, a2)")],
    "make_timestamp": [signature("int int int int int double", "timestamp", "make_timestamp(a0, a1, a2, a3, a4, a5)")],
    "make_timestamptz": [signature("int int int int int double", "timestamptz",
    "make_timestamptz(a0, a1, a2, a3, a4, a5)")],
})  # fmt: skip


def _age(arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    if len(arguments) == 1:
        refuse_volatile("age", node, ctx)  # it counts from today
        midnight = Value(duckdb_cast(duckdb_cast(call("now"), DATE), TIMESTAMP), TIMESTAMP)
        return _BY_SIGNATURE["age"]([midnight, arguments[0]], [nodes[0], nodes[0]], node, ctx)
    return _BY_SIGNATURE["age"](arguments, nodes, node, ctx)


def _make_timestamptz(arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    if len(arguments) != 7:
        return _BY_SIGNATURE["make_timestamptz"](arguments, nodes, node, ctx)
    local = _BY_SIGNATURE["make_timestamp"](arguments[:6], nodes[:6], node, ctx)
    return at_time_zone(cast(arguments[6], VARCHAR, ctx, nodes[6]), local, ctx, nodes[6])


def _timezone(arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("timezone", arguments, (2,), node, ctx)
    zone, value = arguments
    if value.unknown or value.type == DATE:
        value = cast(value, TIMESTAMPTZ, ctx, nodes[1])
    if zone.type != VARCHAR or value.type not in (TIMESTAMP, TIMESTAMPTZ):
        raise mismatch_of("timezone", arguments, node, ctx, "It takes the name of a zone and a timestamp.")
    return at_time_zone(zone, value, ctx, nodes[0])


DATE_FUNCTIONS: Final[dict[str, Builder]] = {
    **_BY_SIGNATURE, "age": _age, "date_part": _date_part,
    "current_date": _now("current_date", DATE), "current_timestamp": _now("current_timestamp", TIMESTAMPTZ),
    "date_trunc": _date_trunc, "clock_timestamp": _now("clock_timestamp", TIMESTAMPTZ),
    "statement_timestamp": _now("statement_timestamp", TIMESTAMPTZ),
    "localtimestamp": _now("localtimestamp", TIMESTAMP), "now": _now("now", TIMESTAMPTZ),
    "proctime": _now("proctime", TIMESTAMPTZ), "to_char": _to_char, "to_date": _read("to_date", DATE),
    "to_timestamp": _to_timestamp, "make_timestamptz": _make_timestamptz, "timezone": _timezone,
}  # fmt: skip
