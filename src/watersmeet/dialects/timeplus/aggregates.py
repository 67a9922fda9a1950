"""Converts Timeplus' aggregate functions to those of standard SQL, or to functions of the list of all values.

Timeplus, "Aggregation". `_if` at the end of a name adds a condition as the last argument, `_distinct` counts each value
once. Parameters may be in front: `quantile(0.9)(x)`. NULLs count in no function but `count(*)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from sqlglot import exp

from watersmeet.dialects.timeplus.columns import tree_of
from watersmeet.dialects.tree.nodes import AnyRow

#: The arguments of a call, its parameters, and its condition; None for a wrong number of arguments.
_Build = Callable[[Sequence[exp.Expression], Sequence[exp.Expression], exp.Expression | None], exp.Expression | None]


def call(name: str, *arguments: exp.Expression) -> exp.Expression:
    """A call of a function of all dialects."""
    return exp.Anonymous(this=name, expressions=list(arguments))


def wrapped(node: exp.Expression) -> exp.Expression:
    """The expression in parentheses if an operator could bind more tightly."""
    return exp.Paren(this=node) if isinstance(node, (exp.Binary, exp.Not)) else node


def _float(x: exp.Expression) -> exp.Expression:
    return exp.Cast(this=x, to=tree_of("float64"))


def _present(x: exp.Expression) -> exp.Expression:
    return exp.Not(this=exp.Is(this=wrapped(x.copy()), expression=exp.Null()))


def _where(tree: exp.Expression, *conditions: exp.Expression | None) -> exp.Expression:
    """An aggregate over the rows for which all conditions hold."""
    found: exp.Expression | None = None
    for condition in conditions:
        if condition is not None:
            found = condition if found is None else exp.And(this=wrapped(found), expression=wrapped(condition))
    return tree if found is None else exp.Filter(this=tree, expression=exp.Where(this=found))


def _plain(name: str, *, of_floats: bool = False, of_numbers: bool = False) -> _Build:
    """An aggregate function of standard SQL of one argument. of_numbers: a condition counts as 1 or 0."""

    def build(
        a: Sequence[exp.Expression], p: Sequence[exp.Expression], c: exp.Expression | None
    ) -> exp.Expression | None:
        if len(a) != 1 or p:
            return None
        value = a[0].expressions[0] if isinstance(a[0], exp.Distinct) else a[0]
        value = _float(value) if of_floats else call("$number", value) if of_numbers else value
        return _where(call(name, exp.Distinct(expressions=[value]) if isinstance(a[0], exp.Distinct) else value), c)

    return build


def _count(a: Sequence[exp.Expression], p: Sequence[exp.Expression], c: exp.Expression | None) -> exp.Expression | None:
    if len(a) > 1 or p:
        return None
    return _where(call("count", *(a or [exp.Star()])), c)


def _distinct(
    a: Sequence[exp.Expression], _p: Sequence[exp.Expression], c: exp.Expression | None
) -> exp.Expression | None:
    """The number of different values, or of different tuples. The precision, a parameter, has no effect."""
    if not a:
        return None
    return _where(call("count", exp.Distinct(expressions=[a[0] if len(a) == 1 else call("$tuple_cast", *a)])), c)


def _extreme(*, descending: bool) -> _Build:
    """`arg_max(x, by)`: the x of the row with the greatest `by`; among equal `by` the least x."""

    def build(
        a: Sequence[exp.Expression], p: Sequence[exp.Expression], c: exp.Expression | None
    ) -> exp.Expression | None:
        if len(a) != 2 or p:
            return None
        order = exp.Order(this=a[0], expressions=[exp.Ordered(this=a[1], desc=descending, nulls_first=False)])
        return _where(call("first_value", order), c, _present(a[1]))

    return build


def _met(name: str) -> _Build:
    """`earliest(x)` and `latest(x)`: the first and last non-NULL value in order of arrival."""

    def build(
        a: Sequence[exp.Expression], p: Sequence[exp.Expression], c: exp.Expression | None
    ) -> exp.Expression | None:
        return _where(call(name, a[0]), c, _present(a[0])) if len(a) == 1 and not p else None

    return build


def _any(a: Sequence[exp.Expression], p: Sequence[exp.Expression], c: exp.Expression | None) -> exp.Expression | None:
    """`any(x)`: the first non-NULL value in order of arrival; the least one of rows that have no order."""
    if len(a) != 1 or p:
        return None
    return _where(AnyRow(this=MET["any"], expressions=[a[0]]), c, _present(a[0]))


def _listed(make: Callable[[exp.Expression, Sequence[exp.Expression]], exp.Expression], most: int, *,
            distinct: bool = False, least: int = 0) -> _Build:  # fmt: skip
    """A function of all values and of at most `most` parameters."""

    def build(
        a: Sequence[exp.Expression], p: Sequence[exp.Expression], c: exp.Expression | None
    ) -> exp.Expression | None:
        if len(a) == 2 and most and not p and a[1].is_int:  # group_array_last(x, 10)
            a, p = a[:1], a[1:]
        if len(a) != 1 or not least <= len(p) <= most or not all(n.is_number for n in p):
            return None
        values = call("array_agg", exp.Distinct(expressions=[a[0]]) if distinct else a[0])
        return make(_where(values, c, _present(a[0])), p)

    return build


def _first(values: exp.Expression, p: Sequence[exp.Expression]) -> exp.Expression:
    return call("$array_slice", values, exp.Literal.number(1), p[0]) if p else values


def _last(values: exp.Expression, p: Sequence[exp.Expression]) -> exp.Expression:
    return call("$array_slice", values, exp.Neg(this=p[0]))


def _function(name: str) -> Callable[[exp.Expression, Sequence[exp.Expression]], exp.Expression]:
    return lambda values, p: call(name, values, *p)


def _most(name: str) -> _Build:
    """`max_k(x, k, context …)`: the k greatest values, with context as tuples."""

    def build(
        a: Sequence[exp.Expression], p: Sequence[exp.Expression], c: exp.Expression | None
    ) -> exp.Expression | None:
        if len(a) < 2 or p or not a[1].is_int:
            return None
        value = a[0] if len(a) == 2 else call("$tuple_cast", a[0], *a[2:])
        return call(name, _where(call("array_agg", value), c, _present(a[0])), a[1])

    return build


def _top(a: Sequence[exp.Expression], p: Sequence[exp.Expression], c: exp.Expression | None) -> exp.Expression | None:
    """`top_k(x, k)`: the k most frequent values with their counts; without them for a third argument that is false, and
    for `top_k(k)(x)`. Equally frequent ones are in the order of the values.
    """
    known = [*a[:1], *p, exp.false()] if p else list(a)
    if not 2 <= len(known) <= 3 or not known[1].is_int:
        return None
    counted = len(known) == 2 or known[2] == exp.true()
    values = _where(call("array_agg", known[0]), c, _present(known[0]))
    return call("$ranked" if counted else "$most_frequent", values, known[1])


def _continuous(x: exp.Expression, level: exp.Expression, c: exp.Expression | None) -> exp.Expression:
    """A float64 that is interpolated between the two nearest values."""
    ordered = exp.Ordered(this=_float(call("$number", x)))
    return _where(exp.WithinGroup(this=call("percentile_cont", level), expression=exp.Order(expressions=[ordered])), c)


def _is_level(node: exp.Expression) -> bool:
    return isinstance(node, exp.Literal) and not node.is_string and 0 <= float(node.name) <= 1


def _quantile(level: str = "") -> _Build:
    """`quantile(0.9)(x)`, `quantile(x, 0.9)`, `quantile(x)`. level: that of the function's name."""

    def build(
        a: Sequence[exp.Expression], p: Sequence[exp.Expression], c: exp.Expression | None
    ) -> exp.Expression | None:
        given = [*p, *a[1:]]
        if level and not given:
            given = [exp.Literal.number(level)]
        if not a or len(given) > 1 or not all(map(_is_level, given)):
            return None
        return _continuous(a[0], given[0] if given else exp.Literal.number("0.5"), c)

    return build


def _quantiles(
    a: Sequence[exp.Expression], p: Sequence[exp.Expression], c: exp.Expression | None
) -> exp.Expression | None:
    """`quantiles(0.5, 0.9)(x)`: an array."""
    if len(a) != 1 or not p or not all(map(_is_level, p)):
        return None
    return exp.Array(expressions=[_continuous(a[0].copy(), level, None if c is None else c.copy()) for level in p])


def _weighted(
    a: Sequence[exp.Expression], p: Sequence[exp.Expression], c: exp.Expression | None
) -> exp.Expression | None:
    """`avg_weighted(x, weight)`."""
    if len(a) != 2 or p:
        return None
    x, weight = wrapped(_float(a[0])), wrapped(_float(a[1]))
    total = call("sum", exp.Mul(this=x, expression=weight))
    whole = call("sum", _float(a[1].copy()))
    return exp.Paren(this=exp.Div(this=_where(total, c), expression=_where(whole, None if c is None else c.copy())))


#: The aggregates of the first or last value in order of arrival.
MET: Final[Mapping[str, str]] = {
    "earliest": "first_value", "first_value": "first_value", "any": "first_value",
    "latest": "last_value", "last_value": "last_value", "any_last": "last_value",
}  # fmt: skip

_QUANTILES: Final = ("10", "25", "50", "75", "90", "95", "99")


def _paired(name: str, *, parameters: int = 0, most: int = 2) -> _Build:
    """A function of all pairs of values, of its parameters, or of a third argument."""

    def build(
        a: Sequence[exp.Expression], p: Sequence[exp.Expression], c: exp.Expression | None
    ) -> exp.Expression | None:
        if not 2 <= len(a) <= most or len(p) != parameters:
            return None
        days = exp.Cast(this=call("date_part", exp.Literal.string("epoch"), a[1]), to=tree_of("float64"))
        other = exp.Div(this=days, expression=exp.Literal.number(86400)) if name == "xirr" else a[1]
        rows = _where(call("array_agg", call("$tuple_cast", a[0], other)), c, _present(a[0]), _present(a[1]))
        more = [*p, *a[2:]] or ([exp.Literal.number("0.1")] if name == "xirr" else [])
        return call(f"${name}", rows, *more)

    return build


def _regression(
    a: Sequence[exp.Expression], p: Sequence[exp.Expression], c: exp.Expression | None
) -> exp.Expression | None:
    """`simple_linear_regression(x, y)`: the slope and the intercept."""
    parts = [_paired(f"regression_{name}")([n.copy() for n in a], p, c and c.copy()) for name in ("slope", "intercept")]
    return None if None in parts else call("$tuple_cast", *parts)


def _retention(
    a: Sequence[exp.Expression], p: Sequence[exp.Expression], c: exp.Expression | None
) -> exp.Expression | None:
    """`retention(c1, c2, …)`: 1 for each condition that some row meets, if some row meets the first one."""
    if not a or p:
        return None

    def met(condition: exp.Expression) -> exp.Expression:
        case = exp.Case(ifs=[exp.If(this=condition.copy(), true=exp.Literal.number(1))], default=exp.Literal.number(0))
        return _where(call("max", case), None if c is None else c.copy())

    first = met(a[0])
    return exp.Array(expressions=[first, *(exp.Mul(this=first.copy(), expression=met(n)) for n in a[1:])])


def _chained(name: str) -> _Build:
    """A function of times and conditions: `window_funnel(60)(time, c1, c2 …)`, `sequence_match('(?1)(?2)')(…)`."""

    def build(
        a: Sequence[exp.Expression], p: Sequence[exp.Expression], c: exp.Expression | None
    ) -> exp.Expression | None:
        if len(a) < 2 or not p:
            return None
        row = call("$tuple_cast", a[0], *(call("$condition", n) for n in a[1:]))
        return call(f"${name}", _where(call("array_agg", row), c, *map(_present, a)), *p)

    return build


def _up_to(a: Sequence[exp.Expression], p: Sequence[exp.Expression], c: exp.Expression | None) -> exp.Expression | None:
    """`uniq_up_to(n)(x)`: the number of different values, at most n + 1."""
    count = _distinct(a, (), c)
    if count is None or len(p) != 1 or not p[0].is_int:
        return None
    return call("least", count, exp.Literal.number(int(p[0].name) + 1))


def _single(
    a: Sequence[exp.Expression], p: Sequence[exp.Expression], c: exp.Expression | None
) -> exp.Expression | None:
    """`single_value_or_null(x)`: the only value, NULL if there are several."""
    if len(a) != 1 or p:
        return None
    one = exp.EQ(this=_distinct([a[0].copy()], (), c and c.copy()), expression=exp.Literal.number(1))
    value = _where(call("min", a[0]), c)
    return exp.Paren(this=exp.Case(ifs=[exp.If(this=one, true=value)]))


def _sum_count(
    a: Sequence[exp.Expression], p: Sequence[exp.Expression], c: exp.Expression | None
) -> exp.Expression | None:
    if len(a) != 1 or p:
        return None
    parts = [_where(call(name, a[0].copy()), None if c is None else c.copy()) for name in ("sum", "count")]
    return call("$tuple_cast", *parts)


def _joined(
    a: Sequence[exp.Expression], p: Sequence[exp.Expression], c: exp.Expression | None
) -> exp.Expression | None:
    """`group_concat(', ')(x)`: the texts of all values with a separator."""
    if len(a) != 1 or len(p) > 1:
        return None
    values = _where(call("array_agg", a[0]), c, _present(a[0]))
    return call("$array_string_concat", values, *p)


def _exact_levels(
    a: Sequence[exp.Expression], p: Sequence[exp.Expression], c: exp.Expression | None
) -> exp.Expression | None:
    """`quantiles_exact(0.5, 0.9)(x)`: an array of values."""
    if len(a) != 1 or not p or not all(map(_is_level, p)):
        return None
    values = _where(call("array_agg", a[0]), c, _present(a[0]))
    return exp.Array(expressions=[call("$quantile_exact", values.copy(), level) for level in p])


_BUILDERS: Final[Mapping[str, _Build]] = {
    "count": _count, "min": _plain("min"), "max": _plain("max"),
    **{name: _plain("sum", of_numbers=True) for name in ("sum", "sum_kahan", "sum_with_overflow")},
    **{name: _plain(name, of_floats=True) for name in ("avg", "stddev_pop", "stddev_samp", "var_pop", "var_samp")},
    **dict.fromkeys(
        ("count_distinct", "uniq", "uniq_combined", "uniq_exact", "uniq_hll12", "uniq_theta", "unique", "unique_exact"),
        _distinct,
    ),
    **{f"group_bit_{sign}": _plain(f"bit_{sign}") for sign in ("and", "or", "xor")},
    "arg_max": _extreme(descending=True), "arg_min": _extreme(descending=False),
    **{name: _met(made) for name, made in MET.items()}, "any": _any,
    "avg_weighted": _weighted, "median": _quantile(), "quantile": _quantile(), "quantiles": _quantiles,
    **{name: _plain("stddev_pop", of_floats=True) for name in ("std", "stddev")},
    **{f"{name}_stable": _plain(name, of_floats=True) for name in ("stddev_pop", "stddev_samp", "var_pop", "var_samp")},
    **dict.fromkeys(("quantile_tdigest", "quantile_timing", "median_tdigest", "median_timing"), _quantile()),
    **dict.fromkeys(("quantiles_tdigest", "quantiles_timing"), _quantiles), "quantiles_exact": _exact_levels,
    "median_exact": _listed(_function("$quantile_exact"), 0),
    **{name: _paired(name) for name in ("corr", "covar_pop", "covar_samp")},
    **{f"{name}_stable": _paired(name) for name in ("corr", "covar_pop", "covar_samp")},
    "exponential_moving_average": _paired("exponential_moving_average", parameters=1),
    "xirr": _paired("xirr", most=3), "simple_linear_regression": _regression,
    **{name: _listed(_function(f"${name}"), 0)
       for name in ("skew_pop", "skew_samp", "kurt_pop", "kurt_samp", "entropy")},
    **{name: _paired(name) for name in ("sum_map", "min_map", "max_map")},
    "retention": _retention, "sum_count": _sum_count, "group_concat": _joined, "group_bitmap": _distinct,
    "any_value": _any, "uniq_combined64": _distinct, "uniq_up_to": _up_to, "single_value_or_null": _single,
    **dict.fromkeys(("array_concat_agg", "group_array_array"), _listed(lambda v, _: call("$array_flatten", v), 0)),
    "quantile_exact_inclusive": _quantile(), "quantiles_exact_inclusive": _quantiles,
    **{name: _paired(name) for name in ("bounding_ratio", "delta_sum_timestamp")},
    **{name: _chained(name) for name in ("sequence_count", "sequence_match", "window_funnel")},
    **{f"p{n}": _quantile(f"0.{n}") for n in _QUANTILES},
    "quantile_exact": _listed(_function("$quantile_exact"), 1),
    "group_array": _listed(_first, 1), "group_array_last": _listed(_last, 1, least=1),
    "group_uniq_array": _listed(_first, 1, distinct=True),
    "group_array_sorted": _listed(lambda v, p: _first(call("$array_sort", v), p), 1, least=1),
    "moving_sum": _listed(_function("$array_cum_sum"), 0),
    "group_array_moving_sum": _listed(_function("$moving_sum"), 1),
    "group_array_moving_avg": _listed(_function("$moving_avg"), 1),
    "max_k": _most("$greatest"), "min_k": _most("$least"), "top_k": _top, "top_k_exact": _top,
}  # fmt: skip

#: The functions that may have parameters in front of their arguments.
PARAMETRIC: Final = frozenset({
    "group_array", "group_array_last", "group_array_moving_avg", "group_array_moving_sum", "group_array_sorted",
    "exponential_moving_average", "group_concat", "group_uniq_array", "quantile", "quantile_exact", "quantile_tdigest",
    "quantile_timing", "quantiles", "quantiles_exact", "quantiles_tdigest", "quantiles_timing", "top_k",
    "top_k_exact", "uniq_combined", "uniq_combined64", "uniq_up_to", "sequence_count", "sequence_match",
    "window_funnel", "quantile_exact_inclusive", "quantiles_exact_inclusive",
})  # fmt: skip

#: The names of aggregate functions, without those of conditions.
AGGREGATES: Final = frozenset(_BUILDERS)


def base_name(name: str) -> str:
    """The name without `_if` and `_distinct` of an aggregate with a condition or of different values."""
    for ending in ("_if", "_distinct"):
        if name not in _BUILDERS and name.endswith(ending):
            name = name.removesuffix(ending)
    return name


def aggregate(
    name: str, arguments: Sequence[exp.Expression], parameters: Sequence[exp.Expression]
) -> exp.Expression | None:
    """The tree of a call; None for other functions and for calls with other arguments."""
    base = base_name(name)
    if base not in _BUILDERS:
        return None
    written, condition = list(arguments), None
    if name not in _BUILDERS and name.endswith("_if"):
        if not written:
            return None
        condition = written.pop()
    if name not in _BUILDERS and "_distinct" in name.removeprefix(base):
        if not written:
            return None
        written = [exp.Distinct(expressions=written)]
    return _BUILDERS[base](written, parameters, condition)
