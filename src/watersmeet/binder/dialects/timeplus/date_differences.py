"""`date_diff('second', l.t, r.t) BETWEEN -10 AND 10` in a join condition means the first time minus the second one.

As in Proton, this is not the scalar function, which counts the boundaries of a unit from the first time to the second;
a minute is 60 seconds. With both bounds it is a range join like `date_diff_within`. `SETTINGS join_date_diff =
'scalar'` makes it the scalar function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlglot import exp

from watersmeet.binder.context.keys import condition_parts
from watersmeet.dialects.timeplus.nodes import RangeJoin
from watersmeet.dialects.tree.nodes import retyped, sql_of
from watersmeet.dialects.tree.queries import place_of
from watersmeet.errors import Span, error
from watersmeet.places import set_place
from watersmeet.units import SECOND_US, UNITS_US

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
