"""Dates and times with a syntax of their own: `INTERVAL`, `EXTRACT`, `AT TIME ZONE`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from sqlglot import exp

from watersmeet.expressions.casts import cast
from watersmeet.expressions.context import Context
from watersmeet.expressions.fields import extracted
from watersmeet.expressions.operators import no_operator
from watersmeet.expressions.templates import fill
from watersmeet.expressions.values import Value
from watersmeet.expressions.zones import at_time_zone
from watersmeet.types import BOOLEAN, DATE, INTERVAL, TIMESTAMP, TIMESTAMPTZ, VARCHAR

Bind = Callable[[exp.Expression, Context], Value]
Reader = Callable[[Any, Context, Bind], Value]


def _interval(node: Any, ctx: Context, _bind: Bind) -> Value:
    unit = node.args.get("unit")
    if node.this is None or not node.this.is_string:
        raise ctx.error("SYNTAX_ERROR", "an interval must be written as a string", node, hint="INTERVAL '1' DAY.")
    if isinstance(unit, exp.IntervalSpan):
        written = _spanned(node.this.name.strip(), f"{unit.this.name} TO {unit.expression.name}".upper(), node, ctx)
    else:
        written = node.this.name + (f" {unit.name}" if unit is not None else "")
    return cast(Value(exp.Literal.string(written), VARCHAR, nullable=False, unknown=True), INTERVAL, ctx, node)


def _spanned(text: str, units: str, node: exp.Expression, ctx: Context) -> str:
    """The text of an interval from unit to unit with its units."""
    sign, bare = ("-", text[1:]) if text.startswith("-") else ("", text)
    if units == "YEAR TO MONTH" and re.fullmatch(r"\d+-\d+", bare):
        years, months = bare.split("-")
        return f"{sign}{years} years {sign}{months} months"
    if units.startswith("DAY TO ") and re.fullmatch(r"\d+ \d+(:\d+){0,2}(\.\d+)?", bare):
        days, time = bare.split(" ")
        return f"{sign}{days} days {sign}{time if ':' in time else time + ':00'}"
    if units in ("HOUR TO MINUTE", "HOUR TO SECOND") and re.fullmatch(r"\d+:\d+(:\d+)?(\.\d+)?", bare):
        return text
    if units == "MINUTE TO SECOND" and re.fullmatch(r"\d+:\d+(\.\d+)?", bare):
        minutes, seconds = bare.split(":")
        return f"{sign}{minutes} minutes {sign}{seconds} seconds"
    raise ctx.not_supported(
        f"the interval '{text}' {units}", node, hint="Write its units, for example '1 day 2 hours'."
    )


def _at_time_zone(node: Any, ctx: Context, bind: Bind) -> Value:
    value, zone = bind(node.this, ctx), bind(node.args["zone"], ctx)
    if value.unknown or value.type == DATE:
        value = cast(value, TIMESTAMPTZ, ctx, node)
    if zone.type == INTERVAL:
        raise ctx.not_supported("an interval as a time zone", node, hint="Add it to the time AT TIME ZONE 'UTC'.")
    if value.type.name not in ("timestamp", "timestamptz") or zone.type != VARCHAR:
        raise no_operator(ctx, node, "AT TIME ZONE", value.type, zone.type)
    return at_time_zone(zone, value, ctx, node.args["zone"])


def _extract(node: Any, ctx: Context, bind: Bind) -> Value:
    return extracted(node.this.name.lower(), bind(node.expression, ctx), ctx, node)


def _overlaps(node: Any, ctx: Context, bind: Bind) -> Value:
    """`(start, end) OVERLAPS (start, end)`, an end may be an interval (PostgreSQL 17, 9.9)."""
    sides = [node.this, node.expression]
    if not all(isinstance(s, exp.Tuple) and len(s.expressions) == 2 for s in sides):
        raise ctx.error("SYNTAX_ERROR", "wrong number of parameters of OVERLAPS expression", node)
    bounds: list[exp.Expression] = []
    for side in sides:
        start, end = (bind(e, ctx) for e in side.expressions)
        start = cast(start, TIMESTAMP, ctx, node) if start.unknown or start.type.name == "date" else start
        if not end.unknown and end.type == INTERVAL:
            end = Value(fill("a0 + a1", start.expression, end.expression), start.type)
        end = cast(end, start.type, ctx, node) if end.unknown or end.type != start.type else end
        if start.type.name not in ("timestamp", "timestamptz", "time"):
            raise no_operator(ctx, node, "OVERLAPS", start.type, end.type)
        bounds += [start.expression, end.expression]
    # a period without length is a moment
    whole = (
        "CASE WHEN least(a0, a1) = least(a2, a3) THEN TRUE WHEN least(a0, a1) > least(a2, a3) "
        "THEN least(a0, a1) < greatest(a2, a3) ELSE least(a2, a3) < greatest(a0, a1) END"
    )
    return Value(fill(whole, *bounds), BOOLEAN)


READERS: Final[dict[type, Reader]] = {
    exp.Interval: _interval,
    exp.AtTimeZone: _at_time_zone,
    exp.Extract: _extract,
    exp.Overlaps: _overlaps,
}
