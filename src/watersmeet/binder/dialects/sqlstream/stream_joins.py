"""Binds joins of a stream with another stream, by their clocks, or with a table, and the windows of streams.

SQLstream, "JOIN clause", "Syntax", "Working With Streaming Joins", "Example with ROWS", "Output Rowtimes" (SS-07 to
SS-12, SS-22 to SS-41, SS-65).

**Windows** (`OVER (RANGE INTERVAL '1' MINUTE PRECEDING)`). A row **enters** its window at its rowtime, or later if the
window ends before the current row. With RANGE it stays for a length of time. With ROWS it stays until enough rows have
followed it; LEAD of the rowtime computes this time. With units (`ORDER BY FLOOR(ROWTIME TO HOUR)`) it stays until the
next unit begins. Both edges are included, and only the end of a moment counts: a row that enters and leaves in the same
moment was never in the window.

**Streams.** The rowtime of a pair is the time at which the second of its rows enters; the pair is output if the first
row is still in its window then. A preserved row without a partner at its entry is output with NULLs and with the entry
as rowtime, even if partners arrive later. The clock of the join is the lesser clock of both streams: pairs are output
when it has reached their rowtime, rows without a partner when it has passed it. So no row is deleted, rowtimes never
decrease, and the join is itself a stream with this clock.

**Tables** ("Stream-Table Joins"; SS-47 to SS-61, SS-65, SS-66). Each row of the stream matches the table as of the
start of the query. The stream looks up the table, so no rows of the stream are kept, and later changes of the table
have no effect. The table may be the preserved side of an outer join if the stream has a window that becomes empty at
the end of a unit: then the rows of the table that matched no row of that hour, say, are output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from sqlglot import exp

from watersmeet.algebra.arrivals import WindowCall, WindowFrame
from watersmeet.algebra.nodes import (
    Aggregate,
    Apply,
    Column,
    Join,
    KeyPair,
    Node,
    Project,
    SortKey,
    TemporalJoin,
    TimeFilter,
    Union,
    Window,
)
from watersmeet.algebra.properties import is_single_row
from watersmeet.algebra.rewrites import rewrite
from watersmeet.algebra.scalars import Scalar, conjunction, conjuncts, null_of
from watersmeet.algebra.timewindows import has_months, interval_of, lengths_us
from watersmeet.algebra.trees import read, transform_up, walk
from watersmeet.algebra.watermarks import INFINITY, of_scalar, watermarks
from watersmeet.binder.clauses.lookups import is_looked_up, looking_up, wants_versions
from watersmeet.binder.clauses.timewindows import arrivals
from watersmeet.binder.context.binding import Environment, value_of
from watersmeet.binder.context.rules import Binding
from watersmeet.binder.context.scope import Scope, ScopeColumn, ScopeContext, StreamInput
from watersmeet.catalog import ROWTIME
from watersmeet.dialects.tree.queries import name_of, node_span
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.errors import Error, Span, error
from watersmeet.expressions.context import Context
from watersmeet.expressions.operators import Unit, after, floor, unit_of
from watersmeet.expressions.scalars import bind_value
from watersmeet.values.types import BOOLEAN, INTEGER, TIMESTAMP
from watersmeet.values.watermarks import both


@dataclass(frozen=True)
class RangeWindow:
    """The rows whose rowtime is between `start_us` and `end_us` before the current rowtime.

    months: the start as an interval if it contains months, whose length varies; `start_us` is then an upper bound.
    """

    start_us: int = 0
    end_us: int = 0
    months: exp.Expression | None = None


@dataclass(frozen=True)
class RowsWindow:
    """The rows between `start` and `end` rows before the newest row of the current moment."""

    start: int
    end: int = 0


@dataclass(frozen=True)
class UnitWindow:
    """The rows of the current `unit` of time. All of them leave the window when it ends."""

    unit: Unit


StreamWindow = RangeWindow | RowsWindow | UnitWindow

#: The window of a stream without OVER: RANGE CURRENT ROW (SS-26).
CURRENT: Final = RangeWindow()

#: The greatest number of rows that a ROWS bound may have.
_MOST_ROWS: Final = 1 << 31


def named_windows(nodes: Sequence[exp.Window], env: Environment) -> Mapping[str, exp.Window]:
    """The windows of a WINDOW clause by name. Raises SYNTAX_ERROR for a repeated name."""
    found: dict[str, exp.Window] = {}
    for node in nodes:
        name = name_of(node.this)
        if name in found:
            raise env.error("SYNTAX_ERROR", f'window "{name}" is already defined', node.this)
        found[name] = node
    return found


def with_definition(scope: Scope, windows: Mapping[str, exp.Window], env: Environment) -> Scope:
    """The scope with the definition of the window that it names. Raises UNDEFINED_OBJECT, and errors such as
    UNDEFINED_COLUMN in ORDER BY of the window.
    """
    if scope.stream is None or scope.stream.window is None:
        return scope
    node = scope.stream.window
    alias = node.args.get("alias")
    if alias is not None:
        name = name_of(alias)
        if name not in windows:
            raise env.error(
                "UNDEFINED_OBJECT",
                f'window "{name}" does not exist',
                alias,
                hint=f"Write WINDOW {name} AS (RANGE INTERVAL '1' MINUTE PRECEDING) at the end of the query.",
            )
        node = windows[name]
    order = node.args.get("order")
    for column in () if order is None else order.find_all(exp.Column):
        bind_value(column, ScopeContext(env.text, scope, "OVER"))
    return replace(scope, stream=replace(scope.stream, window=node))


def stream_window(node: exp.Window | None, env: Environment, called: str = "a window of a join") -> StreamWindow:
    """The window that a clause defines. called: in errors.

    Raises SYNTAX_ERROR, INVALID_VALUE, FEATURE_NOT_SUPPORTED.
    """
    if node is None:
        return CURRENT
    ctx = Context(env.text, called)
    spec = node.args.get("spec")
    for part in node.args.get("partition_by") or []:
        raise ctx.not_supported(f"PARTITION BY in {called}", part)
    kind = "" if spec is None or spec.args.get("exclude") else spec.args.get("kind", "").upper()
    if kind not in ("RANGE", "ROWS"):
        raise ctx.error(
            "SYNTAX_ERROR",
            f"{called} must be RANGE or ROWS",
            node,
            hint="RANGE INTERVAL '1' MINUTE PRECEDING.",
        )
    unit = unit_of(node, ctx, bind_value)
    if unit is not None:
        return UnitWindow(unit)
    order = node.args.get("order")
    if order is not None and not all(_is_rowtime(o) for o in order.expressions):
        raise ctx.not_supported(
            f"this order of {called}",
            node,
            hint="Rows of a stream are in the order of ROWTIME. A window that empties is "
            "(ORDER BY FLOOR(ROWTIME TO HOUR) RANGE CURRENT ROW).",
        )
    return _range(node, spec, ctx) if kind == "RANGE" else _rows(node, spec, ctx)


def _rows(node: exp.Window, spec: exp.Expression, ctx: Context) -> RowsWindow:
    first = _number(spec.args.get("start"), spec.args.get("start_side"), node, ctx)
    last = 0 if spec.args.get("end") is None else _number(spec.args["end"], spec.args.get("end_side"), node, ctx)
    if last > first:
        raise ctx.error("INVALID_VALUE", "a window ends before it begins", node, hint="Write the greater number first.")
    return RowsWindow(first, last)


def _number(value: exp.Expression | str | None, side: str | None, node: exp.Window, ctx: Context) -> int:
    """The number of rows before the current one."""
    if value == "CURRENT ROW":
        return 0
    if not isinstance(value, exp.Expression):
        raise ctx.not_supported(
            f"{value} in {ctx.clause}", node, hint="Write a number of rows, so that the rows to keep are limited."
        )
    _check_side(value, side, ctx)
    if not isinstance(value, exp.Literal) or not value.is_int or int(value.name) > _MOST_ROWS:
        raise ctx.error(
            "DATATYPE_MISMATCH", "the bound of a ROWS window must be a whole number", value, hint="ROWS 5 PRECEDING."
        )
    return int(value.name)


def _check_side(value: exp.Expression, side: str | None, ctx: Context) -> None:
    """Checks that a bound lies before the current row."""
    if side is None:
        raise ctx.error("SYNTAX_ERROR", f"PRECEDING was expected in {ctx.clause}", value)
    if side.upper() != "PRECEDING":
        raise ctx.not_supported(f"{side.upper()} in {ctx.clause}", value, detail="A window has no future rows.")


def _range(node: exp.Window, spec: exp.Expression, ctx: Context) -> RangeWindow:
    first = _bound(spec.args.get("start"), spec.args.get("start_side"), node, ctx)
    last = (0, None) if spec.args.get("end") is None else _bound(spec.args["end"], spec.args.get("end_side"), node, ctx)
    if last[1] is not None:
        raise ctx.not_supported("a window that ends months before the current row", node, hint="Write its end in days.")
    if last[0] > first[0]:
        raise ctx.error(
            "INVALID_VALUE", "a window ends before it begins", node, hint="Write the greater interval first."
        )
    return RangeWindow(first[0], last[0], first[1])


def _is_rowtime(node: exp.Expression) -> bool:
    item = node.this if isinstance(node, exp.Ordered) else node
    descends = isinstance(node, exp.Ordered) and bool(node.args.get("desc"))
    return isinstance(item, exp.Column) and item.name.upper() == ROWTIME and not descends


def _bound(
    value: exp.Expression | str | None, side: str | None, node: exp.Window, ctx: Context
) -> tuple[int, exp.Expression | None]:
    """The distance of a bound from the current row, and the interval if it has months."""
    if value == "CURRENT ROW":
        return 0, None
    if not isinstance(value, exp.Expression):
        raise ctx.not_supported(
            f"{value} in {ctx.clause}", node, hint="Write an interval, so that the rows to keep are limited."
        )
    _check_side(value, side, ctx)
    interval = bind_value(value, ctx).finish()
    lengths = lengths_us(interval.expression)
    if lengths is None or interval.type.name != "interval":
        raise ctx.error(
            "DATATYPE_MISMATCH",
            "the bound of a RANGE window must be a constant interval",
            value,
            hint="RANGE INTERVAL '1' MINUTE PRECEDING.",
        )
    if lengths[0] < 0:
        raise ctx.error("INVALID_VALUE", "the bound of a window can't be negative", value)
    return lengths[1], interval.expression if has_months(interval.expression) else None


@dataclass(frozen=True)
class Framed:
    """A stream as a side of a join.

    relation: the rows with the columns that the window needs.
    time: their rowtime.
    window: the window as written.
    enters: the time at which a row enters; infinity: not yet known.
    leaves: the first moment after a row has left; None: it stays for the RANGE of `window`.
    """

    relation: Node
    time: Scalar
    window: StreamWindow
    enters: Scalar
    leaves: Scalar | None = None


def framed(stream: Node, time: Scalar, window: StreamWindow, binding: Binding) -> Framed:
    """The stream `stream` as a side of a join, with the rowtime `time` and the window `window`."""
    if isinstance(window, RangeWindow):
        return Framed(stream, time, window, Scalar(moved(time, window.end_us), TIMESTAMP, nullable=False))
    if time.column is None:
        rowtime = _column("_rowtime", binding)
        stream, time = Project(stream, (*stream.columns, rowtime), (*map(read, stream.columns), time)), read(rowtime)
    if isinstance(window, RowsWindow):
        return _by_rows(stream, time, window, binding)
    end = _column("_leaves", binding)
    over = after(floor(time.expression, window.unit), window.unit)
    with_end = Project(
        stream, (*stream.columns, end), (*map(read, stream.columns), Scalar(over, TIMESTAMP, nullable=False))
    )
    return Framed(with_end, time, window, time, read(end))


def _by_rows(stream: Node, time: Scalar, window: RowsWindow, binding: Binding) -> Framed:
    """The order of arrival. Rows of a join with equal rowtimes are ordered by their values."""
    found = arrivals(stream, binding)
    rows, age = found if found is not None else (stream, ())
    order = (SortKey(time), *(SortKey(read(c), descending=True) for c in age))

    def ahead(places: int) -> WindowCall:
        never = Scalar(INFINITY.copy(), TIMESTAMP, nullable=False)
        return WindowCall("lead", (time, never), places, None, order, WindowFrame("range", None, 0), TIMESTAMP)

    made, calls = [_column("_leaves", binding)], [ahead(window.start + 1)]
    if window.end:
        made.append(_column("_enters", binding))
        calls.append(ahead(window.end))
    numbered = Window(rows, (), tuple(calls), tuple(made), keeps_time=True)
    return Framed(numbered, time, window, read(made[1]) if window.end else time, read(made[0]))


def _column(name: str, binding: Binding) -> Column:
    return binding.new_column(name, TIMESTAMP, nullable=False)


def timestamp(time: Scalar) -> Scalar:
    """A rowtime as a timestamp without time zone, in UTC."""
    return (
        time
        if time.type == TIMESTAMP
        else Scalar(exp.cast(time.expression, TIMESTAMP.duckdb, dialect="duckdb"), TIMESTAMP, time.nullable)
    )


def moved(time: Scalar, amount_us: int) -> exp.Expression:
    """A time plus or minus a constant interval."""
    if not amount_us:
        return time.expression.copy()
    kind = exp.Add if amount_us > 0 else exp.Sub
    return kind(this=time.expression.copy(), expression=interval_of(abs(amount_us)))


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
    """Gives the regular join `joined` its meaning if at most one of its sides is a stream; returns it with its scope.

    Raises JOIN_WITHOUT_EQUALITY, JOIN_KIND, FEATURE_NOT_SUPPORTED.
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
        span = node_span(node)
        asked = transform_up(
            joined, lambda n: replace(n, arrival=True) if isinstance(n, Apply) and n.span == span else n
        )
        return asked, replace(scope, stream=StreamInput(left.stream.rowtime))
    window = stream_window(stream.window, env)
    relation, rowtime = _joined(
        joined, stream.rowtime, window.unit if isinstance(window, UnitWindow) else None, node, env, binding
    )
    return relation, replace(scope, stream=StreamInput(rowtime))


def _joined(
    joined: Node, time: ScopeColumn, unit: Unit | None, node: exp.Join, env: Environment, binding: Binding
) -> tuple[Node, ScopeColumn]:
    """The join and its rowtime. unit: the unit at whose end the window of the stream becomes empty, or None."""
    span = node_span(node.this)
    if not isinstance(joined, Join):
        raise not_supported(
            "a subquery in ON of a stream-table join",
            env.text,
            span,
            hint="Write it in WHERE, or join a view with its result.",
        )
    rowtime = next(c for c in joined.columns if c.id == time.value.finish().column)
    on_left = rowtime.id in joined.left.ids
    stream, table = (joined.left, joined.right) if on_left else (joined.right, joined.left)
    keys = joined.keys if on_left else tuple(KeyPair(k.right, k.left, k.null_safe) for k in joined.keys)
    stream_stays = joined.kind in ("full", "left" if on_left else "right")
    table_stays = joined.kind in ("full", "right" if on_left else "left")
    if not keys and (node.args.get("on") is not None or joined.kind != "inner"):
        raise _no_equality(env.text, span)
    if table_stays and unit is None:
        raise error(
            "JOIN_KIND",
            "an outer join of a stream and a table can't preserve the table",
            sql=env.text,
            span=span,
            detail="The stream never ends, so a row of the table may always get a match later.",
            hint=_KEPT_HINT,
        )
    kind: Literal["inner", "left"] = "left" if stream_stays else "inner"
    met = TemporalJoin(stream, table, kind, keys, joined.residual, None, span=span)
    if not table_stays or unit is None:
        return met, time
    relation, rowtime = _with_the_rest(met, joined.columns, rowtime, unit, binding)
    return relation, ScopeColumn(time.name, value_of(rowtime))


def check_equalities(tree: Node, text: str) -> None:
    """Raises JOIN_WITHOUT_EQUALITY for CROSS JOINs and commas unless WHERE has an equality for them (SS-59).

    tree: the tree of the whole query.
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
    """The matches of the stream and, at the end of each `unit` in which the stream had rows, the rows of the table that
    matched none of them.

    The clock has passed these units, so they are final. columns: the columns of the result.
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
    """The join of two streams: the regular join `joined` with the scope `scope`, restricted by their windows and
    clocks.

    Raises FEATURE_NOT_SUPPORTED for a condition that makes `joined` a different kind of join.
    """
    if not isinstance(joined, Join):
        raise env.not_supported(
            "a subquery in the condition of a join of streams", node, hint="Join the subquery in FROM."
        )
    assert left.stream is not None
    assert right.stream is not None
    times = [timestamp(s.rowtime.value.finish()) for s in (left.stream, right.stream)]
    one, other = (
        framed(r, t, stream_window(s.window, env), binding)
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
    # With ROWS, the windows of the current moment may still change, but rows already output stay.
    final = not any(isinstance(s.window, RowsWindow) for s in (one, other))
    found = TimeFilter(timed, held.id, "<=", clock, final=final, stays=not final, promised=(rowtime.id,))
    return found, replace(scope, stream=StreamInput(ScopeColumn(ROWTIME, value_of(rowtime))))


def _windowed(joined: Join, left: Framed, right: Framed) -> Join:
    """The join of pairs of rows that are both in their windows when the second one enters."""
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
    """False if a row is in its window only for a single moment, so that both rows of a pair enter at the same time."""
    return not isinstance(side.window, RangeWindow) or side.window.start_us > side.window.end_us


def _stays(side: Framed, other: Framed) -> list[Scalar]:
    """The condition that a row is still in its window when the other row enters: `time >= other's entry - start`, or it
    leaves later.

    A row that leaves at the moment of its entry was never in the window.
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
    """The condition that a row enters no later than the other row: `time <= other's entry - end`."""
    if isinstance(side.window, RangeWindow):
        return _compared(exp.LTE, side.time, _entry(other, -side.window.end_us))
    return _compared(exp.LTE, side.enters, other.enters.expression)


def _entry(side: Framed, later_us: int) -> exp.Expression:
    """The time at which a row enters, plus a length of time."""
    if isinstance(side.window, RangeWindow):
        return moved(side.time, side.window.end_us + later_us)
    return moved(side.enters, later_us)


def _compared(kind: type[exp.Binary], one: Scalar, other: exp.Expression) -> Scalar:
    return Scalar(kind(this=one.expression.copy(), expression=other.copy()), BOOLEAN)


def _is_null(time: Scalar) -> exp.Expression:
    return exp.Is(this=time.expression.copy(), expression=exp.null())
