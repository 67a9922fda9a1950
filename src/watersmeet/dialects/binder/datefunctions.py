"""Functions of dates and times."""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from watersmeet.dialects.binder.calls import (
    Arguments,
    Builder,
    by_duckdb,
    constant_text,
    count_checked,
    refuse_volatile,
)
from watersmeet.dialects.binder.casts import cast
from watersmeet.dialects.binder.context import Context
from watersmeet.dialects.binder.formats import strftime_format
from watersmeet.dialects.binder.values import Value, call, duckdb_cast, string
from watersmeet.errors import did_you_mean
from watersmeet.types import DATE, DOUBLE, TIMESTAMP, TIMESTAMPTZ, VARCHAR, SqlType


def _to_char(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("to_char", arguments, (2,), node, ctx)
    if arguments[0].type.name not in ("timestamp", "timestamptz", "date"):
        raise ctx.not_supported(f"to_char of {arguments[0].type.sql}", node)
    pattern = strftime_format(constant_text(arguments[1], "to_char", node, ctx), node, ctx)
    return Value(call("strftime", arguments[0].expression, string(pattern)), VARCHAR)


def _to_timestamp(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("to_timestamp", arguments, (1, 2), node, ctx)
    if len(arguments) == 1:
        seconds = cast(arguments[0], DOUBLE, ctx, node)
        return Value(call("to_timestamp", seconds.expression), TIMESTAMPTZ)
    pattern = strftime_format(constant_text(arguments[1], "to_timestamp", node, ctx), node, ctx)
    text = cast(arguments[0], VARCHAR, ctx, node)
    return Value(duckdb_cast(call("strptime", text.expression, string(pattern)), TIMESTAMPTZ), TIMESTAMPTZ)


def _to_date(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("to_date", arguments, (2,), node, ctx)
    pattern = strftime_format(constant_text(arguments[1], "to_date", node, ctx), node, ctx)
    text = cast(arguments[0], VARCHAR, ctx, node)
    return Value(duckdb_cast(call("strptime", text.expression, string(pattern)), DATE), DATE)


def _date_trunc(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("date_trunc", arguments, (2, 3), node, ctx)
    if arguments[1].unknown:
        arguments = [arguments[0], cast(arguments[1], TIMESTAMP, ctx, node), *arguments[2:]]
    if arguments[0].unknown and arguments[0].expression.name.lower() not in _TRUNCATED:
        raise ctx.error("INVALID_VALUE", f'unit "{arguments[0].expression.name}" not recognized', node,
                        hint=did_you_mean(arguments[0].expression.name.lower(), _TRUNCATED))
    value = by_duckdb("date_trunc", "date_trunc", arguments[:2], node, ctx)
    kind = TIMESTAMP if arguments[1].type == DATE else arguments[1].type
    if len(arguments) == 3:
        raise ctx.not_supported("date_trunc with a time zone", node)
    return Value(duckdb_cast(value.expression, kind), kind) if value.type != kind else value


_TRUNCATED: Final = ("microseconds", "milliseconds", "second", "minute", "hour", "day", "week", "month", "quarter", "year",
                    "decade", "century", "millennium")


def _now(name: str, kind: SqlType) -> Builder:
    def build(_arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
        refuse_volatile(name, node, ctx)
        return Value(duckdb_cast(call("now"), kind), kind, nullable=False)

    return build


DATE_FUNCTIONS: Final[dict[str, Builder]] = {
    "current_date": _now("current_date", DATE), "current_timestamp": _now("current_timestamp", TIMESTAMPTZ),
    "date_trunc": _date_trunc, "localtimestamp": _now("localtimestamp", TIMESTAMP), "now": _now("now", TIMESTAMPTZ),
    "proctime": _now("proctime", TIMESTAMPTZ), "to_char": _to_char, "to_date": _to_date, "to_timestamp": _to_timestamp,
}  # fmt: skip
