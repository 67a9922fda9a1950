"""Expressions as SQL of DuckDB: names, orders, aggregates with the results of views, window functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from watersmeet.algebra.nodes import AggregateCall, Column, SortKey, WindowCall, WindowFrame
from watersmeet.algebra.scalars import Scalar
from watersmeet.formats.valuetexts import literal
from watersmeet.store.changes import quoted as quoted
from watersmeet.values.types import BIGINT, NUMERIC, VARCHAR, SqlType

#: The comparisons, whose texts need no generator of sqlglot: its first use takes a tenth of a look-up in a new process.
_COMPARED: Final[dict[type[exp.Expression], str]] = {
    exp.EQ: "=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}


def sql(scalar: Scalar) -> str:
    """The text of an expression."""
    node = scalar.expression
    sign = _COMPARED.get(type(node))
    if sign is not None:
        left, right = _plain(node.this), _plain(node.expression)
        if left is not None and right is not None:
            return f"{left} {sign} {right}"
    found = _plain(node)
    return str(node.sql(dialect="duckdb", copy=False)) if found is None else found  # sqlglot would not change it


def _plain(node: exp.Expression) -> str | None:
    """The text of a constant or a column; None for another expression."""
    if isinstance(node, exp.Literal):
        return literal(node.this) if node.is_string else str(node.this)
    if isinstance(node, exp.Null):
        return "NULL"
    return quoted(node.name) if isinstance(node, exp.Column) else None


def cast(text: str, kind: SqlType) -> str:
    """The text `CAST(text AS kind)`."""
    return f"CAST({text} AS {kind.duckdb})"


def as_column(text: str, column: Column) -> str:
    """The item of a select list that is `column`."""
    name = quoted(column.id)
    return text if text == name else f"{text} AS {name}"


def alias(columns: Sequence[Column]) -> str:
    """The alias of an item of FROM, with the names of its columns."""
    return f"{quoted('~' + columns[0].id)}({', '.join(quoted(c.id) for c in columns)})"


def order_by(keys: Sequence[SortKey], items: Sequence[str] = ()) -> str:
    """The text `ORDER BY …`; empty without keys. items: the items of the select list, whose positions may replace
    keys.
    """
    return f"ORDER BY {', '.join(sort_key(k, items) for k in keys)}" if keys else ""


def sort_key(key: SortKey, items: Sequence[str] = ()) -> str:
    """One key of an order."""
    text = key_text(key.value)
    place = items.index(text) + 1 if text in items else text
    return f"{place}{' DESC' if key.descending else ''} NULLS {'FIRST' if key.nulls_first else 'LAST'}"


def key_text(scalar: Scalar) -> str:
    """The text of a sort or partition key. A constant is cast, because DuckDB reads a bare one as a position in the
    select list.
    """
    constant = isinstance(scalar.expression, (exp.Literal, exp.Neg))
    return cast(sql(scalar), scalar.type) if constant else sql(scalar)


_NAMES: Final = {"array_agg": "list", "first_value": "first", "last_value": "last", "jsonb_agg": "string_agg"}

#: Functions whose result depends on the order of the values.
_LISTED: Final = frozenset({"array_agg", "first_value", "last_value", "jsonb_agg", "string_agg"})


def aggregate(call: AggregateCall, over: str = "") -> str:
    """The text of an aggregate call, of exactly its type. over: its window, if any."""
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
    if call.function == "mode":  # DuckDB would read a constant argument as a percentile
        return f"mode() WITHIN GROUP ({order_by(call.order)}){_rest(call, over)}"
    if call.function == "percentile_disc":
        return _percentile_disc(call, argument, over)
    if call.function == "jsonb_agg":
        values = f"coalesce({cast(argument, VARCHAR)}, 'null')"
        order = _order(call, values if call.distinct else argument, over)
        return f"'[' || string_agg({_distinct(call)}{values}, ','{order}){_rest(call, over)} || ']'"
    if call.function == "jsonb_object_agg":
        return _object_of(call, argument, over)
    arguments = [argument, *map(sql, call.extra)]
    if isinstance(call.constant, str):
        arguments.append(literal(call.constant))
    listed = f"{_distinct(call)}{', '.join(arguments)}{_order(call, argument, over)}"
    return f"{_NAMES.get(call.function, call.function)}({listed}){_rest(call, over)}"


def _object_of(call: AggregateCall, key: str, over: str) -> str:
    """The object of `jsonb_object_agg`: its keys ascend, and of equal keys the last in the call's order counts."""
    value = cast(sql(call.extra[0]), VARCHAR)
    order = ", ".join([f"json_extract_string({key}, '$')", *(sort_key(k) for k in call.order), f"{value} NULLS LAST"])
    condition = f"{key} IS NOT NULL" + ("" if call.filter is None else f" AND ({sql(call.filter)})")
    pairs = f"list({{'k': {cast(key, VARCHAR)}, 'v': {value}}} ORDER BY {order}) FILTER (WHERE {condition}){over}"
    last = "lambda _p, _i: _i = len(_l) OR _l[_i + 1].k <> _p.k"
    members = f"list_transform(list_filter(_l, {last}), lambda _p: _p.k || ':' || coalesce(_p.v, 'null'))"
    whole = f"'{{' || array_to_string({members}, ',') || '}}'"
    return f"list_transform([{pairs}], lambda _l: CASE WHEN _l IS NOT NULL THEN {whole} END)[1]"


def _order(call: AggregateCall, own: str, over: str) -> str:
    """The order of the values: that of the call, followed by `own`, so that it does not depend on the order of rows.

    DuckDB only orders DISTINCT values by arguments. Over a window, values have the window's order.
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
    """The average: sum / count with ten decimals, rounded half away from zero."""
    scaled = f"CAST({total} * 10000000000 AS HUGEINT)"
    quotient = f"({scaled} * 2 + sign({scaled}) * {count}) // ({count} * 2)"
    return f"CAST({quotient} AS DECIMAL(38, 0)) * 0.0000000001"


_NUMBERED: Final = ("lag", "lead", "nth_value", "ntile")
_FRAMED: Final = ("first_value", "last_value", "nth_value")


def window(call: WindowCall, partition: Sequence[str]) -> str:
    """The text of `call` OVER the rows with equal values in `partition`, of exactly the call's type."""
    return cast(_call(call, partition), call.type)


def _call(call: WindowCall, partition: Sequence[str]) -> str:
    framed = call.aggregate is not None or call.function in _FRAMED
    parts = [f"PARTITION BY {', '.join(partition)}"] if partition else []
    parts += [p for p in (order_by(call.order), _frame(call.frame) if framed else "") if p]
    over = f" OVER ({' '.join(parts)})"
    if call.aggregate is not None:
        return aggregate(call.aggregate, over)
    arguments = [sql(a) for a in call.arguments]
    if call.function in _NUMBERED:
        arguments.insert(1, str(call.number) if call.varying is None else sql(call.varying))
    nulls = " IGNORE NULLS" if call.skips_nulls else ""
    return f"{call.function}({', '.join(arguments)}{nulls}){over}"


def _frame(frame: WindowFrame) -> str:
    low = _bound(frame.start, frame.before, "PRECEDING")
    high = _bound(frame.end, frame.after, "FOLLOWING")
    exclude = "" if frame.exclude == "none" else f" EXCLUDE {frame.exclude.upper()}"
    return f"{frame.mode.upper()} BETWEEN {low} AND {high}{exclude}"


def _bound(place: int | None, distance: Scalar | None, side: str) -> str:
    """The text of a frame's bound. place: negative before the row, positive after it, None for unbounded."""
    if place is None:
        return f"UNBOUNDED {side}"
    if place == 0:
        return "CURRENT ROW"
    shown = str(abs(place)) if distance is None else f"({sql(distance)})"
    return f"{shown} {'PRECEDING' if place < 0 else 'FOLLOWING'}"
