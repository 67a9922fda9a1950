"""Fields of dates, times and intervals (PostgreSQL 17, 9.9.1)."""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from watersmeet.expressions.context import Context
from watersmeet.expressions.templates import fill
from watersmeet.expressions.values import Value, call, duckdb_cast, number
from watersmeet.types import BIGINT, NUMERIC, TIMESTAMP, TIMESTAMPTZ

_DATES: Final = ("timestamp", "timestamptz", "date")


def extracted(part: str, value: Value, ctx: Context, node: exp.Expression) -> Value:
    """`extract(part FROM value)`, a numeric; INVALID_VALUE for a field that the type has not."""
    if value.unknown or value.type.name not in ("date", "time", "timestamp", "timestamptz", "interval"):
        raise ctx.error("DATATYPE_MISMATCH", f"function extract({part} from {value.type.sql}) does not exist", node)
    if part in ("second", "seconds"):
        return _scaled(exp.Extract(this=exp.var("microseconds"), expression=value.expression), "0.000001")
    if part in ("millisecond", "milliseconds"):
        return _scaled(exp.Extract(this=exp.var("microseconds"), expression=value.expression), "0.001")
    if part == "epoch":
        if value.type.name in _DATES:
            return _scaled(
                call(
                    "epoch_us",
                    duckdb_cast(value.expression, TIMESTAMP) if value.type.name == "date" else value.expression,
                ),
                "0.000001",
            )
        return Value(duckdb_cast(call("epoch", value.expression), NUMERIC), NUMERIC)
    if part == "julian" and value.type.name in _DATES:
        return Value(duckdb_cast(exp.Extract(this=exp.var(part), expression=value.expression), NUMERIC), NUMERIC)
    if part in ("timezone", "timezone_hour", "timezone_minute") and value.type == TIMESTAMPTZ:
        return Value(fill("CASE WHEN a0 IS NOT NULL THEN CAST(0 AS DECIMAL(38,10)) END", value.expression), NUMERIC)
    if part not in _EXTRACTED:
        raise ctx.error("INVALID_VALUE", f'unit "{part}" not recognized for type {value.type.sql}', node)
    return Value(duckdb_cast(exp.Extract(this=exp.var(part), expression=value.expression), NUMERIC), NUMERIC)


_EXTRACTED: Final = frozenset(
    {
        "century",
        "day",
        "decade",
        "dow",
        "doy",
        "hour",
        "isodow",
        "isoyear",
        "microsecond",
        "microseconds",
        "millennium",
        "minute",
        "month",
        "quarter",
        "week",
        "year",
    }
)


def _scaled(count: exp.Expression, factor: str) -> Value:
    whole = duckdb_cast(count, BIGINT)
    return Value(duckdb_cast(exp.Mul(this=whole, expression=number(factor)), NUMERIC), NUMERIC)
