"""Windows of the streams that a join reads: `OVER (RANGE INTERVAL '1' MINUTE PRECEDING)`.

SQLstream, "JOIN clause", "Syntax", "Working With Streaming Joins" (SS-07 to SS-12, SS-24 to SS-29); rulings D-001-09,
D-001-13. A row is in its window from the moment at which the end of the window reaches it until the start of the
window passes it; both moments are included.

Streams with their windows: from when until when a row of a stream takes part in a join.

SQLstream, "JOIN clause", "Working With Streaming Joins", "Example with ROWS", "Using JOINs to Enrich Stream Data"
(SS-10, SS-24, SS-41, SS-65); rulings D-001-13, D-001-19. A row enters at its rowtime, or later if the window ends
before the current row. With RANGE it stays for a length of time. With ROWS it stays until too many rows have followed
it; the time of that is a lead of the rowtime. With units (`ORDER BY FLOOR(ROWTIME TO HOUR)`) it stays until the next
unit begins. Only the end of a moment counts: a row that enters and leaves in the same moment was never in the window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlglot import exp

from watersmeet.algebra.nodes import Column, Node, Project, SortKey, Window
from watersmeet.algebra.ordered import WindowCall, WindowFrame
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.timewindows import has_months, interval_of, lengths_us
from watersmeet.algebra.trees import read
from watersmeet.algebra.watermarks import INFINITY
from watersmeet.binder.clauses.arrival import arrivals
from watersmeet.binder.context.binding import Environment
from watersmeet.binder.context.rules import Binding
from watersmeet.binder.context.scope import Scope, ScopeContext
from watersmeet.catalog import ROWTIME
from watersmeet.dialects.tree.queries import name_of
from watersmeet.expressions.context import Context
from watersmeet.expressions.operators import Unit, after, floor, unit_of
from watersmeet.expressions.scalars import bind_value
from watersmeet.values.types import TIMESTAMP


@dataclass(frozen=True)
class RangeWindow:
    """The rows whose rowtime is from `start_us` to `end_us` before the current one.

    months: the start as an interval with months, whose length varies; `start_us` is then at least as long.
    """

    start_us: int = 0
    end_us: int = 0
    months: exp.Expression | None = None


@dataclass(frozen=True)
class RowsWindow:
    """The rows from `start` to `end` places before the newest row of the current moment."""

    start: int
    end: int = 0


@dataclass(frozen=True)
class UnitWindow:
    """The rows of the current `unit` of time. All of them leave when it ends."""

    unit: Unit


JoinWindow = RangeWindow | RowsWindow | UnitWindow

#: The window of a stream without OVER: RANGE CURRENT ROW (SS-26).
CURRENT: Final = RangeWindow()

#: The greatest number of rows that a ROWS bound may have.
_MOST_ROWS: Final = 1 << 31


def named_windows(nodes: Sequence[exp.Window], env: Environment) -> Mapping[str, exp.Window]:
    """The windows of a WINDOW clause by name. SYNTAX_ERROR for a repeated name."""
    found: dict[str, exp.Window] = {}
    for node in nodes:
        name = name_of(node.this)
        if name in found:
            raise env.error("SYNTAX_ERROR", f'window "{name}" is already defined', node.this)
        found[name] = node
    return found


def with_definition(scope: Scope, windows: Mapping[str, exp.Window], env: Environment) -> Scope:
    """The scope with the definition of its window in place of a name.

    UNDEFINED_OBJECT; UNDEFINED_COLUMN and other errors in its ORDER BY.
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


def join_window(node: exp.Window | None, env: Environment) -> JoinWindow:
    """The window that a clause defines. SYNTAX_ERROR, INVALID_VALUE, FEATURE_NOT_SUPPORTED."""
    if node is None:
        return CURRENT
    ctx = Context(env.text, "OVER")
    spec = node.args.get("spec")
    for part in node.args.get("partition_by") or []:
        raise ctx.not_supported("PARTITION BY in a window of a join", part)
    kind = "" if spec is None or spec.args.get("exclude") else spec.args.get("kind", "").upper()
    if kind not in ("RANGE", "ROWS"):
        raise ctx.error(
            "SYNTAX_ERROR",
            "a window of a join must be RANGE or ROWS",
            node,
            hint="RANGE INTERVAL '1' MINUTE PRECEDING.",
        )
    unit = unit_of(node, ctx, bind_value)
    if unit is not None:
        return UnitWindow(unit)
    order = node.args.get("order")
    if order is not None and not all(_is_rowtime(o) for o in order.expressions):
        raise ctx.not_supported(
            "this window of a join",
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
    """How many rows before the current one."""
    if value == "CURRENT ROW":
        return 0
    if not isinstance(value, exp.Expression):
        raise ctx.not_supported(
            f"{value} in a window of a join", node, hint="Write a number of rows, so that the rows to keep are limited."
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
        raise ctx.error("SYNTAX_ERROR", "PRECEDING was expected in a window of a join", value)
    if side.upper() != "PRECEDING":
        raise ctx.not_supported(f"{side.upper()} in a window of a join", value, detail="A window has no future rows.")


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
    """How long before the current row, and the interval if it has months."""
    if value == "CURRENT ROW":
        return 0, None
    if not isinstance(value, exp.Expression):
        raise ctx.not_supported(
            f"{value} in a window of a join", node, hint="Write an interval, so that the rows to keep are limited."
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

    relation: its rows, with the columns that the window needs.
    time: their rowtime.
    window: as written.
    enters: when a row enters; infinity: not yet.
    leaves: the first moment after it has left; None: `window` is a RANGE that says how long it stays.
    """

    relation: Node
    time: Scalar
    window: JoinWindow
    enters: Scalar
    leaves: Scalar | None = None


def framed(stream: Node, time: Scalar, window: JoinWindow, binding: Binding) -> Framed:
    """The stream `stream` with the rowtime `time` in `window`."""
    if isinstance(window, RangeWindow):
        return Framed(stream, time, window, Scalar(moved(time, window.end_us), TIMESTAMP, nullable=False))
    if time.column is None:
        rowtime = _column("_rowtime", binding)
        stream, time = Project(stream, (*stream.columns, rowtime), (*map(read, stream.columns), time)), read(rowtime)
    if isinstance(window, RowsWindow):
        return _by_rows(stream, time, window, binding)
    gone = _column("_leaves", binding)
    over = after(floor(time.expression, window.unit), window.unit)
    with_end = Project(
        stream, (*stream.columns, gone), (*map(read, stream.columns), Scalar(over, TIMESTAMP, nullable=False))
    )
    return Framed(with_end, time, window, time, read(gone))


def _by_rows(stream: Node, time: Scalar, window: RowsWindow, binding: Binding) -> Framed:
    """By order of arrival. Rows of a join have none, so those with equal rowtimes are ordered by their values."""
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
    """A rowtime is a timestamp without time zone, in UTC."""
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
