"""Dates and times with a syntax of their own: `INTERVAL`, `EXTRACT`, `AT TIME ZONE`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlglot import exp

from watersmeet.dialects.binder.casts import cast
from watersmeet.dialects.binder.context import Context
from watersmeet.dialects.binder.operators import no_operator
from watersmeet.dialects.binder.values import Value, call, duckdb_cast, number
from watersmeet.types import BIGINT, INTERVAL, NUMERIC, TIMESTAMP, TIMESTAMPTZ, VARCHAR

Bind = Callable[[exp.Expression, Context], Value]
Reader = Callable[[Any, Context, Bind], Value]


def _interval(node: Any, ctx: Context, _bind: Bind) -> Value:
    unit = node.args.get("unit")
    if isinstance(unit, exp.IntervalSpan):
        raise ctx.not_supported("an interval from unit to unit", node)
    if node.this is None or not node.this.is_string:
        raise ctx.error("SYNTAX_ERROR", "an interval is written as a string", node, hint="INTERVAL '1' DAY.")
    written = node.this.name + (f" {unit.name}" if unit is not None else "")
    return cast(Value(exp.Literal.string(written), VARCHAR, nullable=False, unknown=True), INTERVAL, ctx, node)


def _at_time_zone(node: Any, ctx: Context, bind: Bind) -> Value:
    value, zone = bind(node.this, ctx), bind(node.args["zone"], ctx)
    if value.unknown:
        value = cast(value, TIMESTAMPTZ, ctx, node)
    if value.type.name not in ("timestamp", "timestamptz"):
        raise no_operator(ctx, node, "AT TIME ZONE", value.type, zone.type)
    kind = TIMESTAMPTZ if value.type == TIMESTAMP else TIMESTAMP
    return Value(call("timezone", zone.expression, value.expression), kind)


def _extract(node: Any, ctx: Context, bind: Bind) -> Value:
    part = node.this.name.lower()
    value = bind(node.expression, ctx)
    if value.unknown or value.type.name not in ("date", "time", "timestamp", "timestamptz", "interval"):
        raise ctx.error("DATATYPE_MISMATCH", f"function extract({part} from {value.type.sql}) does not exist", node)
    if part in ("second", "seconds"):
        return _scaled(exp.Extract(this=exp.var("microseconds"), expression=value.expression), "0.000001")
    if part in ("millisecond", "milliseconds"):
        return _scaled(exp.Extract(this=exp.var("microseconds"), expression=value.expression), "0.001")
    if part == "epoch":
        if value.type.name in ("timestamp", "timestamptz", "date"):
            return _scaled(call("epoch_us", duckdb_cast(value.expression, TIMESTAMP)
                                if value.type.name == "date" else value.expression), "0.000001")
        return Value(duckdb_cast(call("epoch", value.expression), NUMERIC), NUMERIC)
    if part not in _EXTRACTED:
        raise ctx.error("INVALID_VALUE", f'unit "{part}" not recognized for type {value.type.sql}', node)
    return Value(duckdb_cast(exp.Extract(this=exp.var(part), expression=value.expression), NUMERIC), NUMERIC)


_EXTRACTED: Final = frozenset(
    {"century", "day", "decade", "dow", "doy", "hour", "isodow", "isoyear", "microsecond", "microseconds",
     "millennium", "minute", "month", "quarter", "week", "year"}
)


def _scaled(count: exp.Expression, factor: str) -> Value:
    whole = duckdb_cast(count, BIGINT)
    return Value(duckdb_cast(exp.Mul(this=whole, expression=number(factor)), NUMERIC), NUMERIC)


READERS: Final[dict[type, Reader]] = {
    exp.Interval: _interval, exp.AtTimeZone: _at_time_zone, exp.Extract: _extract,
}
