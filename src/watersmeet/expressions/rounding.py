"""`FLOOR(time TO unit)`, `CEIL(time TO unit)`, `STEP(time BY interval)`: SQLstream, "JOIN clause", "Using JOINs to
Enrich Stream Data" (SS-67).

STEP, of s-Server's functions, is a FLOOR to a unit of any length: `to` is an interval. Units of a fixed length are
windows that begin at 1970 (`algebra.timewindows`), so that watermarks go through them; months and years are the
calendar's.
"""

from __future__ import annotations

from typing import Any, Final

from sqlglot import exp

from watersmeet.algebra.durations import duration_us
from watersmeet.algebra.timewindows import TimeWindow
from watersmeet.errors import did_you_mean
from watersmeet.expressions.context import Context
from watersmeet.expressions.operators import no_operator
from watersmeet.expressions.templates import fill
from watersmeet.expressions.temporal import Bind, Reader
from watersmeet.expressions.values import Value, duckdb_cast
from watersmeet.types import TIMESTAMP, TIMESTAMPTZ, VARCHAR
from watersmeet.units import UNITS_US

#: The length of a unit in microseconds; None: it has none.
UNITS: Final[dict[str, int | None]] = {
    **{unit.upper(): UNITS_US[unit] for unit in ("second", "minute", "hour", "day")},
    "MONTH": None,
    "YEAR": None,
}


#: A unit's name, or its length in microseconds.
Unit = str | int


def _length_us(unit: Unit) -> int | None:
    return unit if isinstance(unit, int) else UNITS[unit]


def floor(time: exp.Expression, unit: Unit, *, zoned: bool = False) -> exp.Expression:
    """The start of the `unit` that a timestamp is in. zoned: it is a timestamptz."""
    length_us = _length_us(unit)
    if length_us is None:
        assert isinstance(unit, str)
        return fill(f"date_trunc('{unit.lower()}', a0)", time)
    return TimeWindow("tumble", length_us, length_us).last_start(time, TIMESTAMPTZ if zoned else TIMESTAMP)


def after(start: exp.Expression, unit: Unit) -> exp.Expression:
    """The start of the next unit, given that of one."""
    length_us = _length_us(unit)
    if length_us is None:
        assert isinstance(unit, str)
        return fill(f"a0 + INTERVAL '1 {unit.lower()}'", start)
    return TimeWindow("tumble", length_us, length_us).end(start)


def unit_of(window: exp.Window, ctx: Context, bind: Bind) -> Unit | None:
    """The unit of `(ORDER BY FLOOR(ROWTIME TO unit) RANGE CURRENT ROW)`, a window that empties with each; None for
    others. INVALID_VALUE.
    """
    order, spec = window.args.get("order"), window.args.get("spec")
    if order is None or len(order.expressions) != 1 or (spec is not None and not _is_current_row(spec)):
        return None
    key = order.expressions[0].this
    if (
        not isinstance(key, exp.Floor)
        or key.args.get("to") is None
        or not isinstance(key.this, exp.Column)
        or key.this.name.upper() != "ROWTIME"
    ):
        return None
    return _unit(key, ctx, bind)


def _is_current_row(spec: exp.Expression) -> bool:
    return (
        spec.args.get("kind") == "RANGE"
        and spec.args.get("start") == "CURRENT ROW"
        and spec.args.get("end") in (None, "CURRENT ROW")
    )


def _floor(node: Any, ctx: Context, bind: Bind) -> Value:
    value, unit = _operand(node, ctx, bind)
    zoned = value.type == TIMESTAMPTZ
    return Value(duckdb_cast(floor(_timestamp(value), unit, zoned=zoned), value.type), value.type, value.nullable)


def _ceil(node: Any, ctx: Context, bind: Bind) -> Value:
    """What is a start already stays: the unit of the microsecond before ends there."""
    value, unit = _operand(node, ctx, bind)
    before = fill("a0 - INTERVAL '1 microsecond'", _timestamp(value))
    found = after(floor(before, unit, zoned=value.type == TIMESTAMPTZ), unit)
    return Value(duckdb_cast(found, value.type), value.type, value.nullable)


def _operand(node: Any, ctx: Context, bind: Bind) -> tuple[Value, Unit]:
    value, unit = bind(node.this, ctx), _unit(node, ctx, bind)
    if value.unknown or value.type.name not in ("timestamp", "timestamptz", "date"):
        shown = "STEP … BY an interval" if isinstance(unit, int) else f"{node.key.upper()} … TO {unit}"
        raise no_operator(ctx, node, shown, VARCHAR if value.unknown else value.type)
    return value, unit


def _unit(node: Any, ctx: Context, bind: Bind) -> Unit:
    """What a time is rounded to. INVALID_VALUE."""
    written = node.args["to"]
    if isinstance(written, exp.Interval):
        length_us = duration_us(bind(written, ctx).finish().expression)
        if length_us is None or length_us <= 0:
            raise ctx.error(
                "INVALID_VALUE",
                "STEP needs an interval above zero without months",
                written,
                hint="FLOOR(… TO MONTH) and FLOOR(… TO YEAR) go by the calendar." if length_us is None else None,
            )
        return length_us
    unit: str = written.name.upper()
    if unit not in UNITS:
        raise ctx.error("INVALID_VALUE", f'unit "{unit}" not recognized', node, hint=did_you_mean(unit, UNITS))
    return unit


def _timestamp(value: Value) -> exp.Expression:
    return duckdb_cast(value.expression, TIMESTAMP) if value.type.name == "date" else value.expression


READERS: Final[dict[type, Reader]] = {exp.Floor: _floor, exp.Ceil: _ceil}
