"""Joins of a stream: with another stream, by their clocks, or with a table.

Joins of streams by their clocks: which pairs are output, when, and which rows are output without a partner.

SQLstream, "JOIN clause", "Working With Streaming Joins", "Output Rowtimes" (SS-22 to SS-36); rulings D-001-01 to
D-001-03, D-001-12, D-001-13, D-001-16, D-001-18. A row **enters** its window at its rowtime, or later if the window
ends before the current row. The rowtime of a pair is the later of both entries; the pair is output if both rows are in
their windows then. A preserved row without a partner at its entry is output alone, with the entry as rowtime, whatever
arrives later. The clock is the lower one of both streams: pairs are output when it has reached their rowtime, rows
without a partner when it has passed it. So no row is deleted, rowtimes never decrease, and the join is itself a
stream, whose clock is the one that lets its rows out.

Joins of a stream and a table: each row of the stream matches the table as it was when the query started.

SQLstream, "JOIN clause", "Stream-Table Joins"; SS-47 to SS-61, SS-65, SS-66; rulings D-001-14, D-001-15. The stream
looks the table up, so no rows of the stream are kept, and later changes of the table have no effect. The table may be
the preserved side of an outer join if the stream has a window that empties: at the end of the hour, rows of the table
that matched none of its rows are output.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from sqlglot import exp

from watersmeet.algebra.nodes import (
    Aggregate,
    Apply,
    Column,
    Join,
    KeyPair,
    Node,
    Project,
    TemporalJoin,
    TimeFilter,
    Union,
)
from watersmeet.algebra.properties import is_single_row
from watersmeet.algebra.rewrites import rewrite
from watersmeet.algebra.scalars import Scalar, conjunction, conjuncts, null_of
from watersmeet.algebra.timewindows import interval_of
from watersmeet.algebra.trees import read, transform_up, walk
from watersmeet.algebra.watermarks import of_scalar, watermarks
from watersmeet.binder.clauses.lookups import is_looked_up, looking_up, wants_versions
from watersmeet.binder.context.binding import Environment, value_of
from watersmeet.binder.context.rules import Binding
from watersmeet.binder.context.scope import Scope, ScopeColumn, StreamInput
from watersmeet.binder.dialects.sqlstream.join_windows import (
    CURRENT,
    Framed,
    RangeWindow,
    RowsWindow,
    UnitWindow,
    framed,
    join_window,
    moved,
    timestamp,
)
from watersmeet.catalog import ROWTIME
from watersmeet.dialects.tree.queries import place_of
from watersmeet.errors import Error, Span, error
from watersmeet.expressions.operators import Unit, after, floor
from watersmeet.values.types import BOOLEAN, INTEGER, TIMESTAMP
from watersmeet.values.watermarks import both

_EQUALITY_HINT: Final = (
    "Compare a column of the stream with one of the table: ON s.k = t.k. Other conditions can be added to it."
)

_KEPT_HINT: Final = (
    "Preserve the stream, or give it a window that empties: OVER (ORDER BY FLOOR(ROWTIME TO HOUR) RANGE "
    "CURRENT ROW) outputs the rows of the table that matched nothing in an hour."
)


def stream_table_join(
    joined: Node, scope: Scope, left: Scope, right: Scope, node: exp.Join, env: Environment, binding: Binding
) -> tuple[Node, Scope]:
    """The regular join `joined` with its scope, with its meaning if one of the sides, or none, is a stream.

    JOIN_WITHOUT_EQUALITY, JOIN_KIND, FEATURE_NOT_SUPPORTED.
    """
    stream = left.stream or right.stream
    if stream is None:
        return (looking_up(joined, node, left, env, binding) if is_looked_up(node.this) else joined), scope
    if wants_versions(node.this):
        raise env.not_supported(
            "FOR SYSTEM_TIME AS OF a time of the stream",
            node.this,
            detail="A row would have to be deleted when a version arrives later.",
            hint="FOR SYSTEM_TIME AS OF PROCTIME() follows the table.",
        )
    if left.stream is not None and isinstance(node.this, exp.Lateral):
        place = place_of(node)
        asked = transform_up(
            joined, lambda n: replace(n, arrival=True) if isinstance(n, Apply) and n.span == place else n
        )
        return asked, replace(scope, stream=StreamInput(left.stream.rowtime))
    window = join_window(stream.window, env)
    relation, rowtime = _joined(
        joined, stream.rowtime, window.unit if isinstance(window, UnitWindow) else None, node, env, binding
    )
    return relation, replace(scope, stream=StreamInput(rowtime))


def _joined(
    joined: Node, time: ScopeColumn, unit: Unit | None, node: exp.Join, env: Environment, binding: Binding
) -> tuple[Node, ScopeColumn]:
    """The join and its rowtime. unit: when the window of the stream empties; None if it doesn't."""
    place = place_of(node.this)
    if not isinstance(joined, Join):
        raise error(
            "FEATURE_NOT_SUPPORTED",
            "a subquery in ON of a stream-table join is not supported",
            sql=env.text,
            span=place,
            hint="Write it in WHERE, or join a view with its result.",
        )
    rowtime = next(c for c in joined.columns if c.id == time.value.finish().column)
    on_left = rowtime.id in joined.left.ids
    stream, table = (joined.left, joined.right) if on_left else (joined.right, joined.left)
    keys = joined.keys if on_left else tuple(KeyPair(k.right, k.left, k.null_safe) for k in joined.keys)
    stream_stays = joined.kind in ("full", "left" if on_left else "right")
    table_stays = joined.kind in ("full", "right" if on_left else "left")
    if not keys and (node.args.get("on") is not None or joined.kind != "inner"):
        raise _no_equality(env.text, place)
    if table_stays and unit is None:
        raise error(
            "JOIN_KIND",
            "an outer join of a stream and a table can't preserve the table",
            sql=env.text,
            span=place,
            detail="The stream never ends, so it is never known that a row of the table has no match.",
            hint=_KEPT_HINT,
        )
    kind: Literal["inner", "left"] = "left" if stream_stays else "inner"
    met = TemporalJoin(stream, table, kind, keys, joined.residual, None, span=place)
    if not table_stays or unit is None:
        return met, time
    relation, rowtime = _with_the_rest(met, joined.columns, rowtime, unit, binding)
    return relation, ScopeColumn(time.name, value_of(rowtime))


def check_equalities(tree: Node, text: str) -> None:
    """JOIN_WITHOUT_EQUALITY for CROSS JOINs and commas for which WHERE has no equality either (SS-59).

    tree: of the whole query.
    """
    if not any(_is_theta(n) or (isinstance(n, Apply) and n.arrival and n.kind == "inner") for n in walk(tree)):
        return
    theta = next(filter(_is_theta, walk(rewrite(tree))), None)
    if theta is not None:
        raise _no_equality(text, theta.span if isinstance(theta, TemporalJoin) else None)


def _is_theta(node: Node) -> bool:
    return isinstance(node, TemporalJoin) and not node.keys and not is_single_row(node.right)


def _no_equality(text: str, span: Span | None) -> Error:
    """The error for a join without an equality."""
    return error(
        "JOIN_WITHOUT_EQUALITY",
        "a join of a stream and a table needs an equality between their columns",
        sql=text,
        span=span,
        hint=_EQUALITY_HINT,
    )


def _with_the_rest(
    met: TemporalJoin, columns: tuple[Column, ...], rowtime: Column, unit: Unit, binding: Binding
) -> tuple[Node, Column]:
    """The matches of the stream and, for each `unit` in which it had rows, the rows of the table that matched none of
    them, at its end.

    No row changes a unit that is behind the clock, so these are final. columns: of the result.
    """
    stream, table = met.left, met.right
    end = binding.new_column("_end", TIMESTAMP, rowtime.nullable)
    at = timestamp(read(rowtime))
    ends = Scalar(after(floor(at.expression, unit), unit), TIMESTAMP, at.nullable)
    ended = Project(stream, (*stream.columns, end), (*map(read, stream.columns), ends))
    over = binding.new_column("_end", TIMESTAMP, rowtime.nullable)
    units = Aggregate(ended, (read(end),), (), (over,))
    every = Join(table, units, "inner", (), broadcast=True)
    pairs = (KeyPair(read(over), read(end)), *(KeyPair(k.right, k.left, k.null_safe) for k in met.keys))
    alone = Join(every, ended, "anti", pairs, met.residual, span=met.span)
    rest = TimeFilter(alone, over.id, "<=", watermarks(stream)[rowtime.id], final=True)
    time = binding.new_column(rowtime.name, TIMESTAMP, rowtime.nullable)
    there = table.ids
    parts = (
        Project(met, (*columns, time), (*map(read, columns), at)),
        Project(
            rest, (*columns, time), (*(read(c) if c.id in there else null_of(c.type) for c in columns), read(over))
        ),
    )
    return Union(parts, (*columns, time)), time


_OUTER: Final = ("left", "right", "full")


def clock_join(
    joined: Node, scope: Scope, left: Scope, right: Scope, node: exp.Join, env: Environment, binding: Binding
) -> tuple[Node, Scope]:
    """The join of two streams: `joined`, a regular join with the scope `scope`, restricted to their windows and clocks.

    FEATURE_NOT_SUPPORTED for a condition that makes another kind of join.
    """
    if not isinstance(joined, Join):
        raise env.not_supported(
            "a subquery in the condition of a join of streams", node, hint="Join the subquery in FROM."
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
