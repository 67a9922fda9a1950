"""`AT TIME ZONE`, and texts of timestamps with a zone."""

from __future__ import annotations

from typing import Final

import duckdb
from sqlglot import exp

from watersmeet.expressions.context import Context
from watersmeet.expressions.templates import fill
from watersmeet.expressions.values import Value, call, duckdb_cast, number, string
from watersmeet.timezones import ABBREVIATIONS, is_zone_name, with_offset_sql, zone_sql
from watersmeet.types import TIMESTAMP, TIMESTAMPTZ

_ZONED: Final = f"timezone({zone_sql('a0')}, a1)"
_SHIFTED: Final = {
    TIMESTAMPTZ: "timezone('UTC', a1) + to_seconds({})",
    TIMESTAMP: "timezone('UTC', a1 - to_seconds({}))",
}
_WITH_OFFSET: Final = with_offset_sql("a0")


def at_time_zone(zone: Value, value: Value, ctx: Context, node: exp.Expression) -> Value:
    """`value AT TIME ZONE zone`: the local time of a timestamptz, the moment of a timestamp.

    INVALID_PARAMETER for an unknown constant zone; rows with an unknown zone fail.
    """
    kind = TIMESTAMP if value.type == TIMESTAMPTZ else TIMESTAMPTZ
    if not isinstance(zone.expression, exp.Literal):
        return Value(fill(_ZONED, zone.finish().expression, value.expression), kind)
    offset = ABBREVIATIONS.get(zone.expression.name.upper())
    if offset is None:
        _check_name(zone.expression, ctx, node)
        return Value(call("timezone", zone.expression, value.expression), kind)
    if offset == 0:
        return Value(call("timezone", string("UTC"), value.expression), kind)
    return Value(fill(_SHIFTED[value.type].format("a0"), number(offset), value.expression), kind)


def _check_name(zone: exp.Literal, ctx: Context, node: exp.Expression) -> None:
    """INVALID_PARAMETER for a zone that does not exist; a view would have NULL for every row."""
    try:
        if is_zone_name(zone.name):
            ctx.check(call("timezone", zone, duckdb_cast(string("2000-01-01"), TIMESTAMP)))
            return
    except duckdb.Error:
        pass
    raise ctx.error(
        "INVALID_PARAMETER",
        f'time zone "{zone.name}" not recognized',
        node,
        detail="A zone is a name of the time zone database, or an abbreviation whose offset never changed.",
        hint="Write a name such as 'Europe/Berlin' or 'UTC'; 'Etc/GMT-3' is three hours east of UTC.",
    )


def text_with_offset(text: exp.Expression) -> exp.Expression:
    """The text of a timestamptz with an offset."""
    return fill(_WITH_OFFSET, text)
