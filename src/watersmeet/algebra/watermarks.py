"""Watermarks of columns, computed from the plan and the watermarks of sources; time bounds; state retention.

A watermark on a column promises that no later insert or delete has a lower value in that column, except for NULLs. An
operator that may revise a row with an older value has no watermark.

**Time bounds.** `s1.ts BETWEEN s2.ts AND s2.ts + INTERVAL '1 minute'` bounds s1.ts - s2.ts by 0 and one minute
(RisingWave, "Joins", "Interval joins"). Times are in microseconds; a timestamptz is in UTC, a date is its midnight.
Bounds are necessary, not sufficient, for a match: `<` counts as `<=`, and only sums of times and constant intervals
have bounds. An interval with months or years counts with its shortest or longest length.

**Retention.** Suppose `lo <= l.t - r.t <= hi` is true for every pair, and Wl and Wr are the watermarks of the two
times. A left row below Wr + lo matches no later right row. An earlier right row may still be needed: if left rows
without a match are also output (left, full, semi, anti), a left row can be revised until it is below Wr + lo. The
revision depends on its partners, none of which is below l.t - hi (unless partners are determined on arrival).

As in RisingWave ("Joins", "State cleaning" of window and interval joins; RW-40, RW-47), both times need watermarks: a
side without a watermark keeps its rows. Unlike in RisingWave, both sides are cleaned, not only the larger one, also for
keys without new rows. If one side never changes, rows of the other side are deleted from the state once they are
joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Final, Literal

from sqlglot import exp

from watersmeet.algebra.arrivals import WindowCall
from watersmeet.algebra.nodes import (
    Aggregate,
    Apply,
    AsofJoin,
    Column,
    Join,
    KeyPair,
    LateRowFilter,
    Node,
    Partitioned,
    Project,
    Records,
    Scan,
    TemporalJoin,
    TimeFilter,
    Union,
    Unnest,
    Versions,
    Window,
)
from watersmeet.algebra.properties import asked_on_arrival, is_by_arrival, stands_still
from watersmeet.algebra.scalars import Scalar, conjunction, conjuncts
from watersmeet.algebra.timewindows import (
    TIME_TYPES,
    duration_us,
    floor_of,
    least_of,
    lengths_us,
    months_floor_of,
    months_of,
)
from watersmeet.algebra.trees import read, transform_up
from watersmeet.values.times import DAY_US
from watersmeet.values.watermarks import Term, Watermark, both, by_months, floored, shifted

_LESS: Final = (exp.LT, exp.LTE)
_GREATER: Final = (exp.GT, exp.GTE)
_INTEGERS: Final = (exp.DataType.Type.INT, exp.DataType.Type.BIGINT)

#: The nodes of which an interval with the same length for every row may consist.
_CONSTANT: Final = (
    exp.Literal, exp.Interval, exp.Var, exp.Cast, exp.DataType, exp.Paren, exp.Neg, exp.Add, exp.Sub, exp.Mul,
    exp.Div,
)  # fmt: skip

#: For each target of a cast, the kinds whose values it keeps.
_LOSSLESS: Final[dict[exp.DataType.Type, tuple[str, ...]]] = {
    exp.DataType.Type.TIMESTAMP: ("time", "date"), exp.DataType.Type.TIMESTAMPNTZ: ("time", "date"),
    exp.DataType.Type.TIMESTAMPTZ: ("time", "date"), exp.DataType.Type.DATE: ("date",),
}  # fmt: skip


@dataclass(frozen=True)
class TimeBound:
    """The bounds `lo_us <= left - right <= hi_us` that every pair of a join satisfies; None: unbounded.

    left, right: times over the left and the right input. They are plain columns, or the two equal sides of the key
    number `key`.
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
    """All bounds between times of the left and the right input of `node`; bounds from keys come first.

    Two columns have at most one bound. Its limits may contradict each other (`lo_us > hi_us`); then no pair matches.
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
    """The bound from a comparison of a time of `left` with a time of `right`, given their names; else None."""
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
    """A sum of times, each with a factor, and a constant between `least_us` and `most_us` (equal unless it has months).

    kind: `time` (a timestamp of either type), `date`, `interval`, or `days` (an integer number of days).
    """

    kind: Literal["time", "date", "interval", "days"]
    times: Mapping[str, int]
    least_us: int = 0
    most_us: int = 0

    def plus(self, other: _Sum, kind: Literal["time", "date", "interval", "days"], sign: int) -> _Sum:
        times = {i: self.times.get(i, 0) + sign * other.times.get(i, 0) for i in {**self.times, **other.times}}
        least_us, most_us = (other.least_us, other.most_us) if sign > 0 else (-other.most_us, -other.least_us)
        return _Sum(kind, {i: n for i, n in times.items() if n}, self.least_us + least_us, self.most_us + most_us)


#: The exact arithmetic of times: (kind, sign, kind) -> kind.
_ARITHMETIC: Final[dict[tuple[str, int, str], Literal["time", "date", "interval", "days"]]] = {
    ("time", 1, "interval"): "time", ("time", -1, "interval"): "time", ("interval", 1, "time"): "time",
    ("date", 1, "interval"): "time", ("date", -1, "interval"): "time", ("interval", 1, "date"): "time",
    ("interval", 1, "interval"): "interval", ("interval", -1, "interval"): "interval", ("time", -1, "time"): "interval",
    ("date", 1, "days"): "date", ("date", -1, "days"): "date", ("days", 1, "date"): "date", ("date", -1,
      "date"): "days",
    ("days", 1, "days"): "days", ("days", -1, "days"): "days",
}  # fmt: skip


def _sum_of(node: exp.Expression, columns: Mapping[str, Column]) -> _Sum | None:
    """The expression as a sum of times; None for other expressions."""
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


#: The time that is later than all others.
INFINITY: Final = exp.cast(exp.Literal.string("infinity"), exp.DataType.Type.TIMESTAMP)

#: Watermarks by column id.
Watermarks = Mapping[str, Watermark]


def watermarks(node: Node) -> Watermarks:
    """The watermarks of the columns of `node` that have one."""
    below = [watermarks(i) for i in node.inputs]
    held = node.held
    return {**{i: w for marks in below for i, w in marks.items() if i in held}, **_own(node, *below)}


@singledispatch
def _own(node: Node, *below: Watermarks) -> Watermarks:  # noqa: ARG001 - the signature of all
    """The watermarks of `node` in addition to those that it keeps (`held`), computed from the watermarks of its
    inputs.
    """
    return {}


@_own.register
def _(node: Scan) -> Watermarks:
    return dict(node.watermarks)


@_own.register
def _(node: LateRowFilter, below: Watermarks) -> Watermarks:
    if node.late:
        return {}
    return {node.column: both(below[node.column], node.bound) if node.column in below else node.bound}


@_own.register
def _(node: Records, below: Watermarks) -> Watermarks:  # noqa: ARG001
    return {node.time: node.clock} if node.key is not None and node.time is not None and node.clock else {}


@_own.register
def _(node: Unnest, below: Watermarks) -> Watermarks:
    """The watermarks of elements of arrays that begin with the least element, such as the windows of HOP."""
    first = [(c.id, least_of(a.expression)) for c, a in zip(node.elements, node.arrays, strict=True)]
    return _present((i, _rising(e, below)) for i, e in first if e is not None)


@_own.register
def _(node: Project, below: Watermarks) -> Watermarks:
    return _present((c.id, of_scalar(e, below)) for c, e in zip(node.outputs, node.exprs, strict=True))


@_own.register
def _(node: Aggregate, below: Watermarks) -> Watermarks:
    return _present((c.id, of_scalar(k, below)) for c, k in zip(node.outputs, node.keys, strict=False))


@_own.register
def _(node: Window, below: Watermarks) -> Watermarks:
    if node.delays:
        return {}
    if is_by_arrival(node):
        return below
    return _present((c.id, _ahead(call, below)) for c, call in zip(node.outputs, node.calls, strict=True))


@_own.register
def _(node: TimeFilter, below: Watermarks) -> Watermarks:
    """The watermark of the column; rows are output or deleted by their time, so other columns may have old values."""
    own = node.bound if node.final or node.comparison[0] == ">" else both(below.get(node.column, ()), node.bound)
    further = [(i, both(below.get(i, ()), node.bound)) for i in node.same if node.comparison[0] == "<"]
    further += [(i, node.bound) for i in node.promised]
    return _present([*further, *([] if node.untimed else [(node.column, own)])])


@_own.register
def _(node: Versions, below: Watermarks) -> Watermarks:  # noqa: ARG001
    return {node.made[0].id: (Term(node.scan.relation_id),)}


@_own.register
def _(node: Apply, left: Watermarks, right: Watermarks) -> Watermarks:  # noqa: ARG001
    """The watermarks of the left side if the right side never changes, so that its answers stay the same."""
    return left if asked_on_arrival(node) or stands_still(node.right) else {}


@_own.register
def _(node: Union, *below: Watermarks) -> Watermarks:
    return _present(
        (c.id, both(*[marks.get(p.columns[i].id, ()) for p, marks in zip(node.parts, below, strict=True)]))
        for i, c in enumerate(node.outputs)
    )


def clocks(node: Node) -> Watermarks:
    """The greatest times so far. Unlike watermarks they promise nothing: late rows, and rows that waited in a temporal
    join, may have older times.
    """

    def unpromised(part: Node) -> Node:
        if isinstance(part, TemporalJoin):
            return replace(part, waits=False)
        return part.input if isinstance(part, LateRowFilter) and not part.clock else part

    return watermarks(transform_up(node, unpromised))


@_own.register
def _(node: AsofJoin, left: Watermarks, right: Watermarks) -> Watermarks:
    """Right rows at or before the value of a left row revise its result, which is final once the right watermark has
    passed the value.
    """
    column = node.left_value.column
    if node.comparison not in (">=", ">") or column is None:
        return {}
    return _present([(column, both(left.get(column, ()), of_scalar(node.right_value, right)))])


@_own.register
def _(node: Join, left: Watermarks, right: Watermarks) -> Watermarks:
    """The watermarks of times that a condition bounds by times of the other side, because only matches change a row."""
    bounds = time_bounds(node)
    found: dict[str, Watermark] = {}
    if node.kind == "inner":
        # A side that never changes pairs with a row when the row arrives.
        found = {**(left if stands_still(node.right) else {}), **(right if stands_still(node.left) else {})}
    elif node.kind in ("left", "semi", "anti") and (stands_still(node.right) or (node.arrival and node.kind != "left")):
        found = dict(left)
    for bound, own, other in [*((b, left, right) for b in bounds), *((b.mirrored, right, left) for b in bounds)]:
        met = of_scalar(bound.right, other)
        if bound.left.column is not None and bound.lo_us is not None and met:
            found.setdefault(bound.left.column, both(of_scalar(bound.left, own), shifted(met, bound.lo_us)))
    given = {c.id for c in node.columns}
    return _present((i, w) for i, w in found.items() if i in given)


def _ahead(call: WindowCall, below: Watermarks) -> Watermark:
    """The watermark of `lead(t, n, 'infinity') OVER (ORDER BY t)`, whose value only changes to or from new times, or to
    a later time.
    """
    if call.function != "lead" or call.skips_nulls or call.number < 0 or not call.order or call.order[0].descending:
        return ()
    time, *default = call.arguments
    return (
        of_scalar(time, below) if time == call.order[0].value and all(d.expression == INFINITY for d in default) else ()
    )


def of_scalar(scalar: Scalar, below: Watermarks) -> Watermark:
    """The watermark of an expression over columns with the watermarks `below`; empty unless it increases with them."""
    return _rising(scalar.expression, below) if scalar.type.name in TIME_TYPES else ()


def _rising(node: exp.Expression, below: Watermarks) -> Watermark:
    if isinstance(node, exp.Paren):
        return _rising(node.this, below)
    if isinstance(node, exp.Column):
        return below.get(node.name, ())
    if isinstance(node, exp.Cast) and node.to.this in (
        exp.DType.TIMESTAMP,
        exp.DType.TIMESTAMPNTZ,
        exp.DType.TIMESTAMPTZ,
    ):
        # A cast from a date, or between the two types, keeps the moment, because everything is computed in UTC.
        return _rising(node.this, below)
    if isinstance(node, (exp.Add, exp.Sub)):
        return _moved(node, below)
    if isinstance(node, (exp.Coalesce, exp.Greatest)):
        return both(*[_rising(operand, below) for operand in (node.this, *node.expressions)])
    window = floor_of(node)
    if window is not None:
        time, size_us, origin_us = window
        return floored(_rising(time, below), size_us, origin_us)
    months = months_floor_of(node)
    return () if months is None else by_months(_rising(months[0], below), "floor_months", months[1])


def _moved(node: exp.Add | exp.Sub, below: Watermarks) -> Watermark:
    """A time plus or minus a constant interval."""
    sides: Sequence[exp.Expression] = (node.this, node.expression)
    for time, amount in (sides, sides[::-1]) if isinstance(node, exp.Add) else (sides,):
        found = _rising(time, below)
        if found:
            sign = -1 if isinstance(node, exp.Sub) else 1
            length, months = duration_us(amount), months_of(amount)
            if months is not None:
                return by_months(found, "add_months", sign * months)
            return () if length is None else shifted(found, sign * length)
    return ()


def _present(pairs: Iterable[tuple[str, Watermark]]) -> Watermarks:
    return {i: w for i, w in pairs if w}


@dataclass(frozen=True)
class Retention:
    """The rule that rows are needed until `time` is below `bound`. key: the number of the side's key that equals
    `time`, if any.
    """

    time: Scalar
    bound: Watermark
    key: int | None = None


def of_join(node: Join) -> tuple[Retention | None, Retention | None]:
    """The rules for rows of the left and the right input that are still needed after an epoch; None: all rows."""
    bounds = time_bounds(node)
    if not bounds:
        still = [node.kind == "inner" and stands_still(s) for s in (node.right, node.left)]
        left_kept, right_kept = (
            _unmet(s) if met else None for s, met in zip((node.left, node.right), still, strict=True)
        )
        return left_kept, right_kept
    left, right = _Side(watermarks(node.left), bounds), _Side(watermarks(node.right), [b.mirrored for b in bounds])
    # A row without a partner may be revised as long as a partner can still arrive.
    lefts, rights = left, right
    if node.partners is not None:
        decided = [
            time_bounds(replace(node, residual=conjunction([*conjuncts(node.residual), p]))) for p in node.partners
        ]
        lefts, rights = replace(left, bounds=decided[0]), replace(right, bounds=[b.mirrored for b in decided[1]])
    return (
        left.kept(right, rights if node.kind in ("right", "full") and not node.arrival else None),
        right.kept(left, lefts if node.kind in ("left", "full", "semi", "anti") and not node.arrival else None),
    )


def _unmet(side: Node) -> Retention | None:
    """The rule for rows that are joined with a side that never changes: they are joined once a watermark has passed
    them.
    """
    marks = watermarks(side)
    return next((Retention(read(c), marks[c.id]) for c in side.columns if c.id in marks), None)


def of_asof(node: AsofJoin, *, grows: bool) -> tuple[Watermark, Watermark]:
    """Two bounds: left rows below the first never change again; of the right rows below the second, only the newest of
    each key is still needed. An empty bound applies to no row.

    grows: whether the right side never deletes a row or replaces the newest row by an older one.

    A left row matches the newest right row before it, so later right rows don't change left rows below their watermark.
    With `<` and `<=` the partner of a left row is the next right row, which may arrive at any later time; any right row
    between the left row and both watermarks proves that later rows change nothing. If partners are determined on
    arrival, only new left rows read the state, but if the newest row may be deleted, the previous one replaces it.
    """
    left, right = of_scalar(node.left_value, watermarks(node.left)), of_scalar(node.right_value, watermarks(node.right))
    return right if node.comparison in (">=", ">") else (), left if node.arrival and grows else both(left, right)


def of_aggregate(node: Aggregate) -> tuple[int, Watermark] | None:
    """The number of a group key with a watermark, and the watermark, below which groups are final; or None."""
    below = watermarks(node.input)
    return next(((i, w) for i, k in enumerate(node.keys) if (w := of_scalar(k, below))), None)


def of_partition(node: Partitioned) -> tuple[int, Watermark] | None:
    """The number of a partition key with a watermark, and the watermark, below which partitions are final; or None."""
    below = watermarks(node.input)
    return next(((i, w) for i, k in enumerate(node.partition) if (w := of_scalar(k, below))), None)


def of_order(node: Window) -> tuple[Scalar, Watermark, int] | None:
    """The time that orders the rows of a window, its watermark, and the number of rows below the watermark that are
    still needed; or None.

    All rows are needed by functions that read more than a fixed number of rows, and by windows with partitions, because
    a partition without new rows would keep its rows anyway.
    """
    first = {c.order[0] if c.order else None for c in node.calls}
    if (
        node.partition
        or len(first) != 1
        or not all(c.function in ("lag", "lead") and not c.skips_nulls for c in node.calls)
    ):
        return None
    key = first.pop()
    if key is None or key.descending or key.value.nullable:
        return None
    mark = of_scalar(key.value, watermarks(node.input))
    if not mark:
        return None
    # New rows still change the last rows, whose values are then all read again.
    distances = [c.number if c.function == "lead" else -c.number for c in node.calls]
    return key.value, mark, max(1, max(0, *distances) - min(0, *distances))


@dataclass(frozen=True)
class _Side:
    """One side of a join. bounds: the bounds between its times and those of the other side."""

    marks: Watermarks
    bounds: Sequence[TimeBound]

    def kept(self, other: _Side, alone: _Side | None) -> Retention | None:
        """The rule for rows of this side that are still needed. alone: the other side if its rows without a match are
        also output; else None.
        """
        for bound, passed in self._met(other):
            if alone is None:
                return Retention(bound.left, passed, bound.key)
            assert bound.lo_us is not None
            for met, revised in alone._met(self):
                if met.left == bound.right:
                    return Retention(bound.left, both(passed, shifted(revised, bound.lo_us)), bound.key)
        return None

    def _met(self, other: _Side) -> Iterator[tuple[TimeBound, Watermark]]:
        """The bounds, those of keys first, with the time below which rows of this side match no later row of the other
        side.
        """
        for bound in self.bounds:
            mark = of_scalar(bound.right, other.marks)
            if mark and bound.lo_us is not None and of_scalar(bound.left, self.marks):
                yield bound, shifted(mark, bound.lo_us)
