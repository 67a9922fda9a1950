"""Bounds between times of the two sides of a join, from its equalities and comparisons.

`s1.ts BETWEEN s2.ts AND s2.ts + INTERVAL '1 minute'` bounds s1.ts - s2.ts by 0 and one minute (RisingWave, "Joins",
"Interval joins"). With watermarks on both sides, such bounds tell which rows can't match any more.

Times are in microseconds; a timestamptz is in UTC, a date is its midnight. Bounds are necessary, not sufficient: `<`
counts as `<=`, and an expression other than a sum of times and constant intervals bounds nothing. An interval with
months or years counts with its shortest or longest length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from sqlglot import exp

from watersmeet.algebra.nodes import Column, Join, KeyPair
from watersmeet.algebra.scalars import Scalar, conjuncts
from watersmeet.algebra.timewindows import TIME_TYPES, lengths_us
from watersmeet.algebra.trees import read
from watersmeet.values.times import DAY_US

_LESS: Final = (exp.LT, exp.LTE)
_GREATER: Final = (exp.GT, exp.GTE)
_INTEGERS: Final = (exp.DataType.Type.INT, exp.DataType.Type.BIGINT)
#: Nodes that make up intervals with the same length for every row.
_CONSTANT: Final = (
    exp.Literal,
    exp.Interval,
    exp.Var,
    exp.Cast,
    exp.DataType,
    exp.Paren,
    exp.Neg,
    exp.Add,
    exp.Sub,
    exp.Mul,
    exp.Div,
)
#: The kinds whose value a cast keeps, by its target.
_LOSSLESS: Final[dict[exp.DataType.Type, tuple[str, ...]]] = {
    exp.DataType.Type.TIMESTAMP: ("time", "date"), exp.DataType.Type.TIMESTAMPNTZ: ("time", "date"),
    exp.DataType.Type.TIMESTAMPTZ: ("time", "date"), exp.DataType.Type.DATE: ("date",),
}  # fmt: skip


@dataclass(frozen=True)
class TimeBound:
    """`lo_us <= left - right <= hi_us` for every pair of a join; None: no bound on that side.

    left, right: times over the left and the right input. Each is a plain column, or together they are the two equal
    sides of the key number `key`.
    """

    left: Scalar
    right: Scalar
    lo_us: int | None
    hi_us: int | None
    key: int | None = None

    @property
    def mirrored(self) -> TimeBound:
        """The same bound with the sides exchanged."""
        lo, hi = (None if b is None else -b for b in (self.hi_us, self.lo_us))
        return TimeBound(self.right, self.left, lo, hi, self.key)


def time_bounds(node: Join) -> tuple[TimeBound, ...]:
    """All bounds between a time of the left and one of the right input of `node`, those of its keys first.

    There is at most one for two columns. Its limits may contradict each other (`lo_us > hi_us`); then no pair matches.
    """
    found: dict[tuple[Scalar, Scalar], TimeBound] = {}
    for number, pair in enumerate(node.keys):
        if _is_time_key(pair):
            found.setdefault((pair.left, pair.right), TimeBound(pair.left, pair.right, 0, 0, number))
    left, right = ({c.id: c for c in side.columns} for side in (node.left, node.right))
    for part in conjuncts(node.residual):
        bound = bound_of(part.expression, left, right)
        if bound is not None:
            place = bound.left, bound.right
            found[place] = _narrowed(found[place], bound) if place in found else bound
    return tuple(found.values())


def bound_of(comparison: exp.Expression, left: Mapping[str, Column], right: Mapping[str, Column]) -> TimeBound | None:
    """The bound that one comparison gives for a time of `left` and one of `right`, by the names in it; else None."""
    difference = _difference(comparison, {**left, **right})
    if difference is None or sorted(difference.times.values()) != [-1, 1]:
        return None
    low, high = sorted(difference.times, key=lambda i: difference.times[i], reverse=True)  # low - high + constant <= 0
    if low in left and high in right:
        return TimeBound(read(left[low]), read(right[high]), None, -difference.least_us)
    if low in right and high in left:
        return TimeBound(read(left[high]), read(right[low]), difference.least_us, None)
    return None


@dataclass(frozen=True)
class _Sum:
    """A sum of times, each with a factor, and a constant from `least_us` to `most_us`: one number, except for months.

    kind: time (a timestamp of either type), date, interval, or days (a number of days, as an integer).
    """

    kind: Literal["time", "date", "interval", "days"]
    times: Mapping[str, int]
    least_us: int = 0
    most_us: int = 0

    def plus(self, other: _Sum, kind: Literal["time", "date", "interval", "days"], sign: int) -> _Sum:
        times = {i: self.times.get(i, 0) + sign * other.times.get(i, 0) for i in {**self.times, **other.times}}
        least_us, most_us = (other.least_us, other.most_us) if sign > 0 else (-other.most_us, -other.least_us)
        return _Sum(kind, {i: n for i, n in times.items() if n}, self.least_us + least_us, self.most_us + most_us)


#: (kind, sign, kind) -> kind: the arithmetic of times that is exact.
_ARITHMETIC: Final[dict[tuple[str, int, str], Literal["time", "date", "interval", "days"]]] = {
    ("time", 1, "interval"): "time", ("time", -1, "interval"): "time", ("interval", 1, "time"): "time",
    ("date", 1, "interval"): "time", ("date", -1, "interval"): "time", ("interval", 1, "date"): "time",
    ("interval", 1, "interval"): "interval", ("interval", -1, "interval"): "interval", ("time", -1, "time"): "interval",
    ("date", 1, "days"): "date", ("date", -1, "days"): "date", ("days", 1, "date"): "date", ("date", -1,
      "date"): "days",
    ("days", 1, "days"): "days", ("days", -1, "days"): "days",
}  # fmt: skip


def _sum_of(node: exp.Expression, columns: Mapping[str, Column]) -> _Sum | None:
    """The expression as a sum of times; None if it isn't one."""
    node = node.unnest()
    if isinstance(node, exp.Column):
        name = columns[node.name].type.name if node.name in columns else ""
        return _Sum("date" if name == "date" else "time", {node.name: 1}) if name in TIME_TYPES else None
    if isinstance(node, exp.Literal):
        return _Sum("days", {}, *[int(node.name) * DAY_US] * 2) if node.is_int else None
    if isinstance(node, exp.Neg):
        inner = _sum_of(node.this, columns)
        return (
            _Sum(inner.kind, {}).plus(inner, inner.kind, -1)
            if inner is not None and inner.kind in ("interval", "days")
            else None
        )
    if isinstance(node, (exp.Add, exp.Sub)):
        one, other = _sum_of(node.this, columns), _sum_of(node.expression, columns)
        if one is not None and other is not None:
            sign = 1 if isinstance(node, exp.Add) else -1
            kind = _ARITHMETIC.get((one.kind, sign, other.kind))
            return None if kind is None else one.plus(other, kind, sign)
    if isinstance(node, exp.Cast) and node.to.this != exp.DataType.Type.INTERVAL:
        inner = _sum_of(node.this, columns)
        if inner is None:
            return None
        if node.to.this in _INTEGERS:
            return inner if inner.kind == "days" else None
        return (
            replace(inner, kind="date" if node.to.this == exp.DataType.Type.DATE else "time")
            if (inner.kind in _LOSSLESS.get(node.to.this, ()))
            else None
        )
    if all(isinstance(n, _CONSTANT) for n in node.walk()):
        lengths = lengths_us(node)
        return None if lengths is None else _Sum("interval", {}, *lengths)
    return None


def _difference(node: exp.Expression, columns: Mapping[str, Column]) -> _Sum | None:
    """A sum that is at most 0 if the comparison `node` is true; None unless it is `<`, `<=`, `>` or `>=` of times."""
    node = node.unnest()
    if not isinstance(node, (*_LESS, *_GREATER)):
        return None
    one, other = _sum_of(node.this, columns), _sum_of(node.expression, columns)
    if one is None or other is None or (one.kind in ("time", "date")) != (other.kind in ("time", "date")):
        return None
    return one.plus(other, "interval", -1) if isinstance(node, _LESS) else other.plus(one, "interval", -1)


def _is_time_key(pair: KeyPair) -> bool:
    never_null = not pair.left.nullable and not pair.right.nullable
    return (
        pair.left.type.name in TIME_TYPES and pair.left.type == pair.right.type and (never_null or not pair.null_safe)
    )


def _narrowed(one: TimeBound, other: TimeBound) -> TimeBound:
    los = [b.lo_us for b in (one, other) if b.lo_us is not None]
    his = [b.hi_us for b in (one, other) if b.hi_us is not None]
    return replace(one, lo_us=max(los, default=None), hi_us=min(his, default=None))
