"""`date_diff_within(2m)` in the condition of a join: a range of the two sides' times.

Timeplus, "Multi-JOINs and ASOF JOINs", "Range Bidirectional JOIN" (TP-30 to TP-35); ruling D-003-07: the bound is
included, in both directions, and the columns may stand before or after it. The texts of errors are Proton's.

`date_diff('second', l.t, r.t) BETWEEN -10 AND 10` in a join condition means the first time minus the second one.

As in Proton, this is not the scalar function, which counts the boundaries of a unit from the first time to the second;
a minute is 60 seconds. With both bounds it is a range join like `date_diff_within`. `SETTINGS join_date_diff =
'scalar'` makes it the scalar function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlglot import exp

from watersmeet.algebra.timewindows import duration_us
from watersmeet.binder.context.binding import condition_parts
from watersmeet.binder.context.scope import Scope
from watersmeet.catalog import TIME_COLUMN
from watersmeet.dialects.timeplus.nodes import RangeJoin
from watersmeet.dialects.tree.nodes import retyped, sql_of
from watersmeet.dialects.tree.queries import place_of
from watersmeet.errors import Error, Span, error
from watersmeet.values.places import own_place, set_place
from watersmeet.values.times import SECOND_US, UNITS_US

_SECONDS: Final = {unit: UNITS_US[unit] // SECOND_US for unit in ("second", "minute", "hour", "day", "week")}

_TURNED: Final[dict[type[exp.Expression], type[exp.Binary]]] = {
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.EQ: exp.EQ,
}


@dataclass(frozen=True)
class _Bound:
    """A comparison of `one - other` with a number of seconds."""

    kind: type[exp.Binary]
    one: exp.Expression
    other: exp.Expression
    seconds: int


def with_differences(node: exp.Join, text: str, settings: Mapping[str, str]) -> exp.Join:
    """The join with comparisons of its times in place of `date_diff` compared with whole numbers.

    SYNTAX_ERROR for a range without 0.
    """
    parts = condition_parts(node.args["on"])
    found = {i: bounds for i, p in enumerate(parts) if (bounds := _bounds(p))}
    if not found:
        return node
    is_range = _is_range([b for bounds in found.values() for b in bounds], parts[min(found)], text, settings)
    made: exp.Join = retyped(node.copy(), RangeJoin) if is_range else node.copy()
    whole = [
        exp.Paren(this=exp.and_(*[_comparison(b, p) for b in found[i]], copy=False)) if i in found else p.copy()
        for i, p in enumerate(parts)
    ]
    made.set("on", exp.and_(*whole, copy=False))
    return made


def _bounds(part: exp.Expression) -> list[_Bound]:
    part = part.unnest()
    if isinstance(part, exp.Between):
        low, high = (_one(exp.GTE, part.this, part.args["low"]), _one(exp.LTE, part.this, part.args["high"]))
        return [low, high] if low is not None and high is not None else []
    kind: Any = type(part)
    if not isinstance(part, exp.Binary) or kind not in _TURNED:
        return []
    found = _one(kind, part.this, part.expression) or _one(_TURNED[kind], part.expression, part.this)
    return [] if found is None else [found]


def _one(kind: type[exp.Binary], call: exp.Expression, number: exp.Expression) -> _Bound | None:
    call = call.unnest()
    if not isinstance(call, exp.Anonymous) or str(call.this).lower() != "$date_diff" or len(call.expressions) != 3:
        return None
    negative = isinstance(number, exp.Neg)
    literal = number.this if negative else number
    unit = _SECONDS.get(call.expressions[0].name.lower())
    if unit is None or not isinstance(literal, exp.Literal) or not literal.name.isdecimal():
        return None
    return _Bound(kind, call.expressions[1], call.expressions[2], int(literal.name) * unit * (-1 if negative else 1))


def _comparison(bound: _Bound, part: exp.Expression) -> exp.Expression:
    length = exp.cast(exp.Literal.string(f"{bound.seconds} seconds"), exp.DType.INTERVAL)
    made = bound.kind(this=bound.one.copy(), expression=exp.Add(this=bound.other.copy(), expression=length))
    set_place(made, place_of(part))
    return made


def _is_range(bounds: list[_Bound], part: exp.Expression, text: str, settings: Mapping[str, str]) -> bool:
    """Whether the bounds limit one difference on both sides. Then the range must contain 0: SYNTAX_ERROR."""
    if len({(sql_of(b.one), sql_of(b.other)) for b in bounds}) > 1:
        return False
    lower = [b.seconds for b in bounds if b.kind in (exp.GT, exp.GTE)]
    upper = [b.seconds for b in bounds if b.kind in (exp.LT, exp.LTE)]
    if not lower or not upper:
        return False
    check_lengths(max(lower), min(upper), place_of(part), text, settings)
    return True


def check_lengths(
    least: float, greatest: float, span: Span | None, text: str, settings: Mapping[str, str], *, both_ways: bool = False
) -> None:
    """SYNTAX_ERROR for a range (seconds) without 0 or longer than `max_join_range`.

    both_ways: it must go as far back as ahead, and not be empty.
    """
    wrong = (
        f"left bound of the range is less than or equal to zero, but got lower_bound={_number(least)}"
        if least > 0 or (both_ways and least == 0)
        else (
            f"right bound of the range is greater than or equal to zero, but got upper_bound={_number(greatest)}"
            if greatest < 0
            else None
        )
    )
    if wrong is not None:
        raise error(
            "SYNTAX_ERROR",
            f"Range join requires {wrong}",
            sql=text,
            span=span,
            detail="The range must go as far back as ahead, and must not be empty." if both_ways else None,
        )
    most = settings.get("max_join_range")
    if most is not None and greatest - least > int(most):
        raise error(
            "SYNTAX_ERROR",
            f"The join range ({_number(least)}, {_number(greatest)}) is too big. If two streams have big "
            f"difference in timestamps, "
            "set max_join_range to a greater number of seconds",
            sql=text,
            span=span,
        )


def _number(seconds: float) -> str:
    return f"{seconds:g}" if seconds % 1 else f"{seconds:.0f}"


_NAME: Final = "date_diff_within"


def with_ranges(node: exp.Join, left: Scope, right: Scope, text: str, settings: Mapping[str, str]) -> exp.Join:
    """The join with `l - d <= r AND l + d >= r` in place of each call, then marked as a range join.

    settings: `max_join_range`, in seconds. SYNTAX_ERROR, AMBIGUOUS_COLUMN, UNDEFINED_COLUMN.
    """
    condition = node.args.get("on")
    if condition is not None and settings.get("join_date_diff") != "scalar":
        node = with_differences(node, text, settings)
        condition = node.args["on"]
    if condition is None or not any(_is_call(n) for n in condition.find_all(exp.Anonymous)):
        return node
    made = retyped(node.copy(), RangeJoin)
    for call in list(made.args["on"].find_all(exp.Anonymous)):
        if _is_call(call):
            call.replace(_range(call, left, right, text, settings))
    return made


def _is_call(node: exp.Anonymous) -> bool:
    return str(node.this).lower() == _NAME


def _range(call: exp.Anonymous, left: Scope, right: Scope, text: str, settings: Mapping[str, str]) -> exp.Expression:
    arguments = list(call.expressions)
    bounds = [a for a in arguments if isinstance(a.this if isinstance(a, exp.Neg) else a, (exp.Interval, exp.Cast))]
    columns = [a for a in arguments if a not in bounds]
    if len(bounds) != 1 or len(columns) not in (0, 2):
        raise error(
            "SYNTAX_ERROR",
            f"wrong arguments of {_NAME}",
            sql=text,
            span=place_of(call),
            hint=f"Write {_NAME}(2m) or {_NAME}(left_stream.time, right_stream.time, 2m).",
        )
    bound = bounds[0]
    length_us = duration_us(bound)
    if length_us is not None:
        seconds = length_us / 1_000_000
        check_lengths(0 - seconds, seconds, place_of(call), text, settings, both_ways=True)
    one, other = columns or (_time_column(left, call, text), _time_column(right, call, text))
    within = [
        exp.GTE(this=one.copy(), expression=exp.Sub(this=other.copy(), expression=bound.copy())),
        exp.LTE(this=one.copy(), expression=exp.Add(this=other.copy(), expression=bound.copy())),
    ]
    for part in within:
        set_place(part, own_place(call))
    return exp.Paren(this=exp.And(this=within[0], expression=within[1]))


def _time_column(scope: Scope, call: exp.Anonymous, text: str) -> exp.Expression:
    tables = [t for t in scope.tables if t.alias is not None and any(c.name == TIME_COLUMN for c in t.columns)]
    if len(tables) == 1:
        return exp.column(exp.to_identifier(TIME_COLUMN, quoted=True), exp.to_identifier(tables[0].alias, quoted=True))
    raise _no_one(bool(tables), call, text)


def _no_one(several: bool, call: exp.Anonymous, text: str) -> Error:
    return error(
        "AMBIGUOUS_COLUMN" if several else "UNDEFINED_COLUMN",
        f"{'more than one relation' if several else 'no relation'} of one side has a column {TIME_COLUMN}",
        sql=text,
        span=place_of(call),
        hint=f"Name the columns: {_NAME}(left_stream.time, right_stream.time, 2m).",
    )
