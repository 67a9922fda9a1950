"""SQLstream's functions and expressions of time, as functions that the grammar inserts and as units that STEP has.

s-Server, "CHAR_TO_TIMESTAMP", "TIMESTAMP_TO_CHAR", "UNIX_TIMESTAMP", "TO_TIMESTAMP", "TSDIFF", "STEP"; "Date,
Timestamp, and Interval Operators": `(a - b) SECOND` is the interval between two times in a unit. `FLOOR((s.ROWTIME -
TIMESTAMP '1970-01-01 00:00:00') SECOND / 10 TO SECOND)`, the older form of `STEP(s.ROWTIME BY INTERVAL '10' SECOND)`,
is converted to it, so that groups by it close.
"""

from __future__ import annotations

from typing import Final

import sqlglot
from sqlglot import exp

#: Functions of this dialect, with the inserted ones.
TIME_FUNCTIONS: Final = {
    name: f"$time.{name.lower()}"
    for name in ("CHAR_TO_TIMESTAMP", "TIMESTAMP_TO_CHAR", "UNIX_TIMESTAMP", "TO_TIMESTAMP", "TSDIFF")
}

#: `(a - b) unit`, and the number of units in it.
IN_UNIT: Final = "$time.in_unit"
UNITS: Final = "$time.units"

#: `CAST(x AS INTERVAL unit)`.
INTERVAL_OF: Final = "$time.interval_of"

_EPOCH: Final = "1970-01-01 00:00:00"


class InOneUnit(exp.Anonymous):  # type: ignore[misc]
    """`(a - b) unit` with one unit, so that its text is a number."""


def in_unit(difference: exp.Expression, unit: str, *, single: bool) -> exp.Anonymous:
    """`(a - b) unit`; the unit is the last one of `DAY TO SECOND`. single: whether it is the only one."""
    kind = InOneUnit if single else exp.Anonymous
    return kind(this=IN_UNIT, expressions=[difference, exp.Literal.string(unit)])


#: The conditions of predicates of periods from `a` to `b` and from `c` to `d`, whose ends do not belong to them.
#: SQL:2011, 8.20 "<period predicate>"; s-Server, "Temporal Predicates" (those with STRICTLY).
_PERIODS: Final = {
    "CONTAINS": "a <= c AND b >= d",
    "EQUALS": "a = c AND b = d",
    "OVERLAPS": "a < d AND b > c",
    "PRECEDES": "b <= c",
    "SUCCEEDS": "a >= d",
    "IMMEDIATELY PRECEDES": "b = c",
    "IMMEDIATELY SUCCEEDS": "a = d",
    "STRICTLY CONTAINS": "a < c AND b > d",
    "STRICTLY PRECEDES": "b < c",
    "STRICTLY SUCCEEDS": "a > d",
}

#: The predicates that are not supported, because s-Server defines them by pictures.
_OF_PICTURES: Final = (
    "LEADS",
    "LAGS",
    "STRICTLY OVERLAPS",
    "STRICTLY LEADS",
    "STRICTLY LAGS",
    "IMMEDIATELY LEADS",
    "IMMEDIATELY LAGS",
)

PERIOD_WORDS: Final = tuple(sorted((*_PERIODS, *_OF_PICTURES), key=len, reverse=True))


def period_of(node: exp.Expression | None) -> list[exp.Expression] | None:
    """The bounds of `(start, end)`, `PERIOD (start, end)` or `(start, length)`; None for other expressions."""
    is_period = isinstance(node, exp.Anonymous) and str(node.this).upper() == "PERIOD"
    if node is None or not (is_period or isinstance(node, exp.Tuple)) or len(node.expressions) != 2:
        return None
    start, end = node.expressions
    return [start, exp.Add(this=start.copy(), expression=end) if isinstance(end, exp.Interval) else end]


def of_periods(words: str, left: exp.Expression, right: exp.Expression | None) -> exp.Expression | None:
    """A predicate of two periods, as a condition in parentheses; None if it is not supported or one is no period."""
    first, second = period_of(left), period_of(right)
    if words not in _PERIODS or first is None or second is None:
        return None
    bounds = dict(zip("abcd", (*first, *second), strict=True))
    made = sqlglot.parse_one(_PERIODS[words])
    for column in list(made.find_all(exp.Column)):
        column.replace(exp.paren(bounds[column.name]))
    return exp.paren(made, copy=False)


def adapted_time(node: exp.Expression) -> exp.Expression | None:
    """The node that replaces a function or expression of time; None for others."""
    name = TIME_FUNCTIONS.get(str(node.this).upper()) if isinstance(node, exp.Anonymous) else None
    if name is not None:
        if name.endswith(".to_timestamp") and len(node.expressions) != 1:
            return None
        return exp.Anonymous(this=name, expressions=[e.copy() for e in node.expressions])
    if isinstance(node, exp.Cast) and isinstance(node.to.this, exp.Interval):
        unit = node.to.this.args["unit"]
        last = unit.expression if isinstance(unit, exp.IntervalSpan) else unit
        inner = node.this.copy() if not isinstance(node.this, exp.Literal) or not node.this.is_string else None
        if inner is None:
            return exp.Interval(this=node.this.copy(), unit=unit.copy())
        return exp.Anonymous(this=INTERVAL_OF, expressions=[inner, exp.Literal.string(last.name)])
    if isinstance(node, exp.Cast) and (measured := _in_units(node)) is not None:
        return exp.Cast(this=exp.Anonymous(this=UNITS, expressions=measured), to=node.to.copy())
    grouped = isinstance(node.parent, exp.Group)
    if isinstance(node, exp.Floor):
        return _step(node, grouped=grouped)
    if grouped and _is_in_unit(node):
        found = _since_epoch(node)
        return None if found is None else exp.Floor(this=found[0], to=exp.Var(this=found[1]))
    return None


_TEXTS: Final = (exp.DType.VARCHAR, exp.DType.CHAR, exp.DType.NVARCHAR, exp.DType.NCHAR, exp.DType.BPCHAR)


def _in_units(node: exp.Cast) -> list[exp.Expression] | None:
    """The interval and its unit in a cast of `(a - b) unit` or `INTERVAL 'n' unit` to a number, and to a text if the
    interval has only one unit.
    """
    length, unit = node.this, node.this.args.get("unit")
    if node.to.this == exp.DType.INTERVAL:
        return None
    if _is_in_unit(length):
        shown = node.to.this not in _TEXTS or isinstance(length, InOneUnit)
        return [e.copy() for e in length.expressions] if shown else None
    is_interval = isinstance(length, exp.Interval) and isinstance(unit, exp.Var)
    return [length.copy(), exp.Literal.string(unit.name.upper())] if is_interval else None


def _is_in_unit(node: exp.Expression) -> bool:
    return isinstance(node, exp.Anonymous) and node.this == IN_UNIT


def _step(node: exp.Floor, *, grouped: bool) -> exp.Expression | None:
    """`FLOOR((t - epoch) unit / n TO unit)` as STEP: a group, or the number of steps as an interval of that unit."""
    unit, inner = node.args.get("to"), node.this.unnest()
    if not isinstance(unit, exp.Var) or not isinstance(inner, exp.Div) or not _is_in_unit(inner.this.unnest()):
        return None
    found, size = _since_epoch(inner.this.unnest()), inner.expression
    if found is None or found[1] != unit.name.upper() or not isinstance(size, exp.Literal) or not size.is_int:
        return None
    length = exp.Interval(this=exp.Literal.string(size.name), unit=exp.Var(this=found[1]))
    step = exp.Floor(this=found[0], to=length)
    if grouped:
        return step
    epoch = exp.cast(exp.Literal.string(_EPOCH), exp.DType.TIMESTAMP)
    return exp.Div(this=exp.paren(exp.Sub(this=step, expression=epoch), copy=False), expression=size.copy())


def _since_epoch(node: exp.Expression) -> tuple[exp.Expression, str] | None:
    """The time and the unit of `(time - TIMESTAMP '1970-01-01 00:00:00') unit`."""
    difference, unit = node.expressions
    difference = difference.unnest()
    since = difference.expression.unnest() if isinstance(difference, exp.Sub) else None
    if not isinstance(since, exp.Cast) or since.this.name not in (_EPOCH, f"{_EPOCH}.000", "1970-01-01"):
        return None
    return difference.this.copy(), unit.name
