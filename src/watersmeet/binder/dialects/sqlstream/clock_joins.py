"""Joins of streams by their clocks: which pairs are output, when, and which rows are output without a partner.

SQLstream, "JOIN clause", "Working With Streaming Joins", "Output Rowtimes" (SS-22 to SS-36); rulings D-001-01 to
D-001-03, D-001-12, D-001-13, D-001-16, D-001-18. A row **enters** its window at its rowtime, or later if the window
ends before the current row. The rowtime of a pair is the later of both entries; the pair is output if both rows are in
their windows then. A preserved row without a partner at its entry is output alone, with the entry as rowtime, whatever
arrives later. The clock is the lower one of both streams: pairs are output when it has reached their rowtime, rows
without a partner when it has passed it. So no row is deleted, rowtimes never decrease, and the join is itself a stream,
whose clock is the one that lets its rows out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sqlglot import exp

from watersmeet.algebra.nodes import Join, KeyPair, Node, Project, TimeFilter
from watersmeet.algebra.scalars import Scalar, conjunction, conjuncts
from watersmeet.algebra.timewindows import interval_of
from watersmeet.algebra.trees import read
from watersmeet.algebra.watermarks import of_scalar, watermarks
from watersmeet.binder.context.binding import Environment, value_of
from watersmeet.binder.context.rules import Binding
from watersmeet.binder.context.scope import Scope, ScopeColumn, StreamInput
from watersmeet.binder.dialects.sqlstream.join_windows import CURRENT, RangeWindow, RowsWindow, UnitWindow, join_window
from watersmeet.binder.dialects.sqlstream.row_lifetimes import Framed, framed, moved, timestamp
from watersmeet.catalog import ROWTIME
from watersmeet.dialects.tree.queries import place_of
from watersmeet.errors import error
from watersmeet.types import BOOLEAN, INTEGER, TIMESTAMP
from watersmeet.watermarks import both

_OUTER: Final = ("left", "right", "full")


def clock_join(
    joined: Node, scope: Scope, left: Scope, right: Scope, node: exp.Join, env: Environment, binding: Binding
) -> tuple[Node, Scope]:
    """The join of two streams: `joined`, a regular join with the scope `scope`, restricted to their windows and clocks.

    FEATURE_NOT_SUPPORTED for a condition that makes another kind of join.
    """
    if not isinstance(joined, Join):
        raise error(
            "FEATURE_NOT_SUPPORTED",
            "a subquery in the condition of a join of streams is not supported",
            sql=env.text,
            span=place_of(node),
            hint="Join the subquery in FROM.",
        )
    assert left.stream is not None
    assert right.stream is not None
    times = [timestamp(s.rowtime.value.finish()) for s in (left.stream, right.stream)]
    one, other = (
        framed(r, t, join_window(s.window, env), binding)
        for r, t, s in zip(joined.inputs, times, (left.stream, right.stream), strict=True)
    )
    clock = both(*[of_scalar(t, watermarks(r)) for r, t in zip(joined.inputs, times, strict=True)])
    tree = _windowed(replace(joined, left=one.relation, right=other.relation), one, other)
    rowtime = binding.new_column(ROWTIME, TIMESTAMP, nullable=False)
    moment = exp.Greatest(
        this=one.enters.expression.copy(), expressions=[other.enters.expression.copy()], ignore_nulls=True
    )
    columns, exprs = [*tree.columns, rowtime], [*map(read, tree.columns), Scalar(moment, TIMESTAMP, nullable=False)]
    held = rowtime
    if tree.kind in _OUTER:
        # Times are whole microseconds, so t < clock means t + 1 <= clock.
        held = binding.new_column("released", TIMESTAMP, nullable=False)
        alone = exp.Or(this=_is_null(one.time), expression=_is_null(other.time))
        later = exp.Add(this=exp.paren(moment.copy()), expression=interval_of(1))
        columns.append(held)
        exprs.append(
            Scalar(exp.Case(ifs=[exp.If(this=alone, true=later)], default=moment.copy()), TIMESTAMP, nullable=False)
        )
    timed = Project(tree, tuple(columns), tuple(exprs))
    # With ROWS, the content of the current moment may still change; rows already output stay.
    final = not any(isinstance(s.window, RowsWindow) for s in (one, other))
    found = TimeFilter(timed, held.id, "<=", clock, final=final, stays=not final, promised=(rowtime.id,))
    return found, replace(scope, stream=StreamInput(ScopeColumn(ROWTIME, value_of(rowtime))))


def _windowed(joined: Join, left: Framed, right: Framed) -> Join:
    """The join of rows that are both in their windows when the second one enters."""
    keys = list(joined.keys)
    if left.window == right.window == CURRENT:
        parts = []
        keys.append(KeyPair(left.time, right.time))
    else:
        parts = [*_stays(left, right), *_stays(right, left)]
    partners = (_before(right, left), _before(left, right))
    needs = {"left": _lasts(left), "right": _lasts(right), "full": _lasts(left) or _lasts(right)}.get(
        joined.kind, False
    )
    if not keys and joined.kind in _OUTER:
        nothing = Scalar(exp.Literal.number(0), INTEGER, nullable=False)
        keys.append(KeyPair(nothing, nothing))
    return replace(
        joined,
        keys=tuple(keys),
        residual=conjunction([*conjuncts(joined.residual), *parts]),
        broadcast=not keys,
        partners=partners if needs else None,
    )


def _lasts(side: Framed) -> bool:
    """False if a row is in its window for a single moment, so that every pair enters with it."""
    return not isinstance(side.window, RangeWindow) or side.window.start_us > side.window.end_us


def _stays(side: Framed, other: Framed) -> list[Scalar]:
    """A row is still in its window when the other one enters: `time >= other's entry - start`, or it leaves after that.

    A row that leaves when it enters was never in the window.
    """
    if side.leaves is not None:
        rest = (
            []
            if side.enters == side.time and isinstance(side.window, UnitWindow)
            else [_compared(exp.GT, side.leaves, side.enters.expression)]
        )
        return [_compared(exp.GT, side.leaves, other.enters.expression), *rest]
    assert isinstance(side.window, RangeWindow)
    found = [_compared(exp.GTE, side.time, _entry(other, -side.window.start_us))]
    if side.window.months is not None:
        begins = exp.Sub(this=exp.paren(other.enters.expression.copy()), expression=exp.paren(side.window.months))
        found.append(_compared(exp.GTE, side.time, begins))
    return found


def _before(side: Framed, other: Framed) -> Scalar:
    """A row enters no later than the other one: `time <= other's entry - end`."""
    if isinstance(side.window, RangeWindow):
        return _compared(exp.LTE, side.time, _entry(other, -side.window.end_us))
    return _compared(exp.LTE, side.enters, other.enters.expression)


def _entry(side: Framed, later_us: int) -> exp.Expression:
    """When a row enters, plus a length of time."""
    if isinstance(side.window, RangeWindow):
        return moved(side.time, side.window.end_us + later_us)
    return moved(side.enters, later_us)


def _compared(kind: type[exp.Binary], one: Scalar, other: exp.Expression) -> Scalar:
    return Scalar(kind(this=one.expression.copy(), expression=other.copy()), BOOLEAN)


def _is_null(time: Scalar) -> exp.Expression:
    return exp.Is(this=time.expression.copy(), expression=exp.null())
