"""Joins of streams by their clocks: which pairs come out, when, and which rows come out alone.

Document 001, "Working With Streaming Joins", "Output Rowtimes" (SS-22 to SS-36); rulings D-001-01 to D-001-03, D-001-12, D-001-13,
D-001-16, D-001-18. A row **enters** its window at its rowtime, or later if the window ends before the current row. A pair
comes out with the later of both entries as its rowtime, if both rows are in their windows then; a preserved row that has no partner when
it enters comes out alone, with that rowtime, whatever comes later. The clock is the lower one of the two streams: pairs come out when
it has reached their rowtime, rows without partner when it has passed it. So nothing is taken back, the rowtime rises, and the join is a
stream itself, whose clock is the one by which its rows come out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from watersmeet.algebra.relations import Join, KeyPair, Project, Relation, TimeFilter
from watersmeet.algebra.scalars import Scalar, conjunction, conjuncts
from watersmeet.algebra.timewindows import interval_of
from watersmeet.algebra.trees import read
from watersmeet.algebra.watermarks import of_scalar, watermarks
from watersmeet.dialects.binder.joinwindows import RangeWindow, range_window
from watersmeet.dialects.binder.rowtimes import ROWTIME
from watersmeet.dialects.binder.scope import Scope, ScopeColumn, StreamInput
from watersmeet.dialects.binder.shared import Binding, Environment, value_of
from watersmeet.dialects.queries import place_of
from watersmeet.errors import error
from watersmeet.types import BOOLEAN, INTEGER, TIMESTAMP
from watersmeet.watermarks import both

_OUTER: Final = ("left", "right", "full")


def clock_join(joined: Relation, scope: Scope, left: Scope, right: Scope, node: exp.Join, env: Environment,
               binding: Binding) -> tuple[Relation, Scope]:
    """The join of two streams: `joined`, a regular join with the scope `scope`, held to their windows and their clocks.

    FEATURE_NOT_SUPPORTED for a condition that is no plain one.
    """
    if not isinstance(joined, Join):
        raise error("FEATURE_NOT_SUPPORTED", "a subquery in the condition of a join of streams is not supported", sql=env.text,
                    span=place_of(node), hint="Join the subquery in FROM.")
    assert left.stream is not None
    assert right.stream is not None
    sides = [(_timestamp(s.rowtime.value.finish()), range_window(s.window, env)) for s in (left.stream, right.stream)]
    tree = _windowed(joined, sides)
    clock = both(*[of_scalar(t, watermarks(r)) for (t, _), r in zip(sides, joined.inputs, strict=True)])
    rowtime = binding.new_column(ROWTIME, TIMESTAMP, nullable=False)
    entered = [_moved(t, w.end_us) for t, w in sides]
    moment = exp.Greatest(this=entered[0], expressions=[entered[1]], ignore_nulls=True)
    columns, exprs = [*tree.columns, rowtime], [*map(read, tree.columns), Scalar(moment, TIMESTAMP, nullable=False)]
    held = rowtime
    if tree.kind in _OUTER:
        # Moments are whole microseconds: t < clock says t + 1 <= clock.
        held = binding.new_column("released", TIMESTAMP, nullable=False)
        alone = exp.Or(this=_is_null(sides[0][0]), expression=_is_null(sides[1][0]))
        later = exp.Add(this=exp.paren(moment.copy()), expression=interval_of(1))
        columns.append(held)
        exprs.append(Scalar(exp.Case(ifs=[exp.If(this=alone, true=later)], default=moment.copy()), TIMESTAMP, nullable=False))
    timed = Project(tree, tuple(columns), tuple(exprs))
    found = TimeFilter(timed, held.id, "<=", clock, final=True, promised=(rowtime.id,))
    return found, replace(scope, stream=StreamInput(ScopeColumn(ROWTIME, value_of(rowtime))))


def _timestamp(time: Scalar) -> Scalar:
    """A rowtime is a timestamp without time zone, in UTC."""
    return time if time.type == TIMESTAMP else Scalar(exp.cast(time.expression, TIMESTAMP.duckdb, dialect="duckdb"), TIMESTAMP, time.nullable)


def _windowed(joined: Join, sides: Sequence[tuple[Scalar, RangeWindow]]) -> Join:
    """The join of the rows that are in their windows at the moment at which the second one enters."""
    (left, one), (right, other) = sides
    keys = list(joined.keys)
    if one == other == RangeWindow():
        parts = []
        keys.append(KeyPair(left, right))
    else:
        parts = [*_stays(left, one, right, other), *_stays(right, other, left, one)]
    partners = (_before(right, other, left, one), _before(left, one, right, other))
    # With a window that is one moment long every pair enters with that row.
    needs = {"left": one.start_us > one.end_us, "right": other.start_us > other.end_us,
             "full": one.start_us > one.end_us or other.start_us > other.end_us}.get(joined.kind, False)
    if not keys and joined.kind in _OUTER:
        nothing = Scalar(exp.Literal.number(0), INTEGER, nullable=False)
        keys.append(KeyPair(nothing, nothing))
    return replace(joined, keys=tuple(keys), residual=conjunction([*conjuncts(joined.residual), *parts]), broadcast=not keys,
                   partners=partners if needs else None)


def _stays(time: Scalar, window: RangeWindow, other: Scalar, others: RangeWindow) -> list[Scalar]:
    """A row is still in its window when the other one enters: `time >= (other + end) - start`."""
    found = [_compared(exp.GTE, time.expression, _moved(other, others.end_us - window.start_us))]
    if window.months is not None:
        begins = exp.Sub(this=exp.paren(_moved(other, others.end_us)), expression=exp.paren(window.months))
        found.append(_compared(exp.GTE, time.expression, begins))
    return found


def _before(time: Scalar, window: RangeWindow, other: Scalar, others: RangeWindow) -> Scalar:
    """A row enters not after the other one: `time + end <= other + its end`."""
    return _compared(exp.LTE, time.expression, _moved(other, others.end_us - window.end_us))


def _compared(kind: type[exp.Binary], one: exp.Expression, other: exp.Expression) -> Scalar:
    return Scalar(kind(this=one.copy(), expression=other.copy()), BOOLEAN)


def _moved(time: Scalar, amount_us: int) -> exp.Expression:
    """A time plus or minus a constant interval."""
    if not amount_us:
        return time.expression.copy()
    kind = exp.Add if amount_us > 0 else exp.Sub
    return kind(this=time.expression.copy(), expression=interval_of(abs(amount_us)))


def _is_null(time: Scalar) -> exp.Expression:
    return exp.Is(this=time.expression.copy(), expression=exp.null())
