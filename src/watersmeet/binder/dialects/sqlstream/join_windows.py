"""Windows of the streams that a join reads: `OVER (RANGE INTERVAL '1' MINUTE PRECEDING)`.

SQLstream, "JOIN clause", "Syntax", "Working With Streaming Joins" (SS-07 to SS-12, SS-24 to SS-29); rulings D-001-09,
D-001-13. A row is in its window from the moment at which the end of the window reaches it until the start of the window
passes it; both moments are included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlglot import exp

from watersmeet.algebra.durations import has_months, lengths_us
from watersmeet.binder.context.binding import Environment
from watersmeet.binder.context.scope import Scope, ScopeContext
from watersmeet.catalog import ROWTIME
from watersmeet.dialects.tree.queries import name_of, place_of
from watersmeet.errors import error
from watersmeet.expressions.context import Context
from watersmeet.expressions.rounding import Unit, unit_of
from watersmeet.expressions.scalars import bind_value


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
            raise error("SYNTAX_ERROR", f'window "{name}" is already defined', sql=env.text, span=place_of(node.this))
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
            raise error(
                "UNDEFINED_OBJECT",
                f'window "{name}" does not exist',
                sql=env.text,
                span=place_of(alias),
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
