"""Aggregate functions as SQL of DuckDB, with the results that views have: the same order of values, the same types."""

from __future__ import annotations

from typing import Final

from watersmeet.algebra.nodes import AggregateCall
from watersmeet.types import BIGINT, NUMERIC, VARCHAR
from watersmeet.unparsing.texts import cast, order_by, sort_key, sql, text_literal

_NAMES: Final = {"array_agg": "list", "first_value": "first", "last_value": "last", "jsonb_agg": "string_agg"}
#: Functions whose result depends on the order of the values.
_LISTED: Final = frozenset({"array_agg", "first_value", "last_value", "jsonb_agg", "mode", "string_agg"})


def aggregate(call: AggregateCall, over: str = "") -> str:
    """The call, of exactly its type. over: a window that it is called over."""
    made = _text(call, over)
    return made if call.function == "count" else cast(made, call.type)


def _text(call: AggregateCall, over: str) -> str:
    if call.argument is None:
        return f"{call.function}({'*' if call.function == 'count' else ''}){_rest(call, over)}"
    argument = sql(call.argument)
    if call.function == "avg" and call.type == NUMERIC:
        total, count = (f"{f}({_distinct(call)}{argument}){_rest(call, over)}" for f in ("sum", "count"))
        return _exact_average(total, count)
    if call.function == "percentile_cont":
        fraction = 1 - float(call.constant or 0) if call.order[0].descending else call.constant
        return f"quantile_cont({argument}, {fraction!r}){_rest(call, over)}"
    if call.function == "percentile_disc":
        return _percentile_disc(call, argument, over)
    if call.function == "jsonb_agg":
        values = f"coalesce({cast(argument, VARCHAR)}, 'null')"
        order = _order(call, values if call.distinct else argument, over)
        return f"'[' || string_agg({_distinct(call)}{values}, ','{order}){_rest(call, over)} || ']'"
    arguments = [argument, *map(sql, call.extra)]
    if isinstance(call.constant, str):
        arguments.append(text_literal(call.constant))
    listed = f"{_distinct(call)}{', '.join(arguments)}{_order(call, argument, over)}"
    return f"{_NAMES.get(call.function, call.function)}({listed}){_rest(call, over)}"


def _order(call: AggregateCall, own: str, over: str) -> str:
    """The order of the values: that of the call, and then `own`, so that it does not depend on the rows' order.

    Of DISTINCT values DuckDB orders by what is among the arguments only. Over a window they are in its order.
    """
    keys = [sort_key(k) for k in call.order]
    if call.function in _LISTED and not over and not any(sql(k.value) == own for k in call.order):
        keys.append(f"{own} NULLS LAST")
    return f" ORDER BY {', '.join(keys)}" if keys else ""


def _distinct(call: AggregateCall) -> str:
    return "DISTINCT " if call.distinct else ""


def _rest(call: AggregateCall, over: str) -> str:
    condition = "" if call.filter is None else f" FILTER (WHERE {sql(call.filter)})"
    return condition + over


def _percentile_disc(call: AggregateCall, argument: str, over: str) -> str:
    condition = "" if call.filter is None else f" AND ({sql(call.filter)})"
    values = f"list({argument} {order_by(call.order)}) FILTER (WHERE {argument} IS NOT NULL{condition}){over}"
    place = f"{call.constant!r} * count({argument}){_rest(call, over)}"
    return f"list_extract({values}, {cast(f'greatest(1, ceil({place}))', BIGINT)})"


def _exact_average(total: str, count: str) -> str:
    """Sum / count to ten digits behind the point, rounded half away from zero."""
    scaled = f"CAST({total} * 10000000000 AS HUGEINT)"
    quotient = f"({scaled} * 2 + sign({scaled}) * {count}) // ({count} * 2)"
    return f"CAST({quotient} AS DECIMAL(38, 0)) * 0.0000000001"
