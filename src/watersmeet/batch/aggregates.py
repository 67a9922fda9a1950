"""Aggregates of bounded queries that have to give what views give: the same order of values, the same types."""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from watersmeet.algebra.relations import AggregateCall
from watersmeet.expressions.values import Value, call, duckdb_cast, number, string, wrap
from watersmeet.types import BIGINT, VARCHAR

_NAMES: Final = {
    "array_agg": "list",
    "first_value": "first",
    "last_value": "last",
    "jsonb_agg": "string_agg",
    "mode": "mode",
    "percentile_disc": "list",
}

#: As they are written.
AS_VIEWS: Final = frozenset({
    "approx_count_distinct", "array_agg", "first_value", "jsonb_agg", "last_value", "mode", "percentile_disc", "stddev",
    "stddev_pop", "stddev_samp", "string_agg", "var_pop", "var_samp", "variance",
})  # fmt: skip


def as_view(bound: AggregateCall) -> Value:
    """The value of a call as a view has it: values in its order and then in their own, NULLs last."""
    assert bound.argument is not None
    argument = bound.argument.expression
    if bound.function == "jsonb_agg":
        argument = call("coalesce", duckdb_cast(argument, VARCHAR), string("null"))
    parts = [argument, *(s.expression for s in bound.extra)]
    if bound.function == "string_agg" and isinstance(bound.constant, str):
        parts.append(string(bound.constant))
    if bound.function in _NAMES or bound.function == "string_agg":
        # of DISTINCT values DuckDB orders by what is among the arguments only
        own = argument if bound.distinct or bound.function != "jsonb_agg" else bound.argument.expression
        keys = [(k.value.expression, k.descending, k.nulls_first) for k in bound.order]
        keys += [] if any(k == own for k, _, _ in keys) else [(own, False, False)]
        order = [exp.Ordered(this=k.copy(), desc=down or None, nulls_first=first) for k, down, first in keys]
        parts = _ordered(parts, order, distinct=bound.distinct)
    elif bound.distinct:
        parts = [exp.Distinct(expressions=parts)]
    made: exp.Expression = exp.Anonymous(this=_NAMES.get(bound.function, bound.function), expressions=parts)
    condition = None if bound.filter is None else bound.filter.expression
    if bound.function == "percentile_disc":
        present = exp.Not(this=exp.Is(this=wrap(argument), expression=exp.null()))
        place = exp.Mul(this=number(repr(bound.constant)), expression=_where(call("count", argument), condition))
        place = duckdb_cast(call("greatest", number(1), call("ceil", place)), BIGINT)
        both = present if condition is None else exp.and_(present, exp.paren(condition.copy()))
        return Value(duckdb_cast(call("list_extract", _where(made, both), place), bound.type), bound.type)
    made = _where(made, condition)
    if bound.function == "jsonb_agg":
        made = exp.DPipe(this=exp.DPipe(this=string("["), expression=made), expression=string("]"))
    return Value(duckdb_cast(made, bound.type), bound.type, nullable=bound.function != "count")


def _where(made: exp.Expression, condition: exp.Expression | None) -> exp.Expression:
    return made if condition is None else exp.Filter(this=made, expression=exp.Where(this=condition.copy()))


def _ordered(parts: list[exp.Expression], order: list[exp.Ordered], *, distinct: bool) -> list[exp.Expression]:
    if distinct:  # of the first argument alone: the delimiter is the same in all rows
        parts = [exp.Distinct(expressions=parts[:1]), *parts[1:]]
    return [*parts[:-1], exp.Order(this=parts[-1], expressions=order)]
