"""GROUP BY over a stream: a group is output once, when the clock says that it is complete.

SQLstream, "JOIN clause", "Working With Streaming Joins" (SS-28: hourly summaries that match in one millisecond),
"Output Rowtimes" (SS-30: the point at which the row could be computed). One of the keys has to rise with ROWTIME:
FLOOR(ROWTIME TO unit), STEP, date_trunc, or an edge of the windows of TUMBLE and HOP. Such groups close at the end of
the unit or window, which is their rowtime. The key may also be ROWTIME itself, or ROWTIME rounded up.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from watersmeet.algebra.nodes import Node, TimeFilter
from watersmeet.algebra.scalars import Comparison
from watersmeet.algebra.timewindows import floor_of, interval_of, months_floor_of
from watersmeet.algebra.trees import exactly
from watersmeet.algebra.watermarks import of_scalar, watermarks
from watersmeet.binder.clauses.aggregates import spelled_out
from watersmeet.binder.clauses.sources import star_of
from watersmeet.binder.context.binding import Bound, Environment
from watersmeet.binder.context.rules import Binding
from watersmeet.binder.context.scope import Scope, ScopeContext
from watersmeet.catalog import ROWTIME
from watersmeet.expressions.context import Value
from watersmeet.expressions.scalars import bind_value
from watersmeet.values.watermarks import Watermark, both, by_months, floored, shifted


@dataclass(frozen=True)
class Closing:
    """When groups close. node: the SELECT with the closing time in its list.

    comparison, clock: a group closes when its closing time compares so with the clock.
    first: the closing time is added in front of the select list.
    promoted: an item of the list is named ROWTIME and is another time.
    """

    node: exp.Select
    comparison: Comparison
    clock: Watermark
    first: bool
    promoted: bool


class DistinctItems(exp.Group):  # type: ignore[misc]
    """What SELECT DISTINCT groups by."""


def grouped_distinct(node: exp.Select) -> exp.Select | None:
    """SELECT DISTINCT as a GROUP BY of all items; None if one of them is a star or a window function, or with DISTINCT
    ON.
    """
    distinct = node.args["distinct"]
    items = [e.this if isinstance(e, exp.Alias) else e for e in node.expressions]
    if distinct.args.get("on") is not None or any(star_of(e) is not None or e.find(exp.Window) for e in items):
        return None
    made: exp.Select = node.copy()
    made.set("distinct", None)
    made.set("group", DistinctItems(expressions=[e.copy() for e in items]))
    return made


def closing(
    node: exp.Select, relation: Node, scope: Scope, env: Environment, binding: Binding, *, fronted: bool
) -> Closing:
    """How the groups of a SELECT over a stream close.

    relation, scope: of its FROM and WHERE.
    fronted: its rowtime is added in front even if the list has it.

    EMIT_NOT_POSSIBLE.
    """
    assert scope.stream is not None
    marks = watermarks(relation)
    ctx = ScopeContext(env.text, scope, "GROUP BY")
    group = node.args.get("group")
    what = "SELECT STREAM DISTINCT" if isinstance(group, DistinctItems) else "GROUP BY"
    if group is not None:
        node = node.copy()
        group = spelled_out(group, node.expressions, scope)
        node.set("group", group)
    clock = of_scalar(scope.stream.rowtime.value.finish(), marks)
    for key in [] if group is None else group.expressions:
        value = (
            bind_value(key, ctx)
            if isinstance(key, (exp.Column, exp.Floor, exp.Ceil, exp.Anonymous)) and not key.find(exp.Query)
            else None
        )
        mark = () if value is None else of_scalar(value.finish(), marks)
        found = None if value is None or not mark else _moment(key, value, mark, clock, binding)
        if found is not None:
            made, first, promoted = _with_moment(node, found[0], fronted=fronted)
            return Closing(made, found[1], found[2], first, promoted)
    raise env.error(
        "EMIT_NOT_POSSIBLE",
        f"{what} of a stream needs an expression that rises with ROWTIME",
        group or node,
        detail="Otherwise no group is ever complete.",
        hint=f"Write {what} FLOOR(s.ROWTIME TO HOUR), ….",
    )


def _moment(
    key: exp.Expression, value: Value, mark: Watermark, clock: Watermark, binding: Binding
) -> tuple[exp.Expression, Comparison, Watermark] | None:
    """When a group with this key is complete, how that time compares with a clock then, and with which; None if
    unknown.

    mark: the watermark of the key. clock: that of ROWTIME, which decides if the key is ROWTIME; otherwise the key's own
    watermark decides too.
    """
    rounded = value.expression.this if isinstance(value.expression, exp.Cast) else value.expression
    length, months = floor_of(rounded), months_floor_of(rounded)
    if length is not None:
        return (
            exp.Add(this=key.copy(), expression=interval_of(length[1])),
            "<=",
            _slower(clock, mark, floored(clock, *length[1:])),
        )
    if months is not None:
        ends = exp.Add(
            this=key.copy(),
            expression=exp.Interval(this=exp.Literal.string(str(months[1])), unit=exp.Var(this="MONTH")),
        )
        return ends, "<=", _slower(clock, mark, by_months(clock, "floor_months", months[1]))
    window = binding.collected.windowed.get(value.expression.sql())
    if window is not None:
        is_end = value.expression.sql() in binding.collected.window_ends
        # a window that is not complete ends at least one slide after all complete ones
        own = shifted(mark, (0 if is_end else window.size_us) - window.slide_us)
        ends = key.copy() if is_end else exp.Add(this=key.copy(), expression=interval_of(window.size_us))
        return ends, "<=", _slower(clock, own, floored(clock, window.slide_us, window.offset_us))
    # the latest row of such a group may have the key itself as its rowtime
    is_last = key.name.upper() == ROWTIME if isinstance(key, exp.Column) else isinstance(key, exp.Ceil)
    return (key.copy(), "<", both(clock, mark)) if is_last else None


def _slower(clock: Watermark, own: Watermark, expected: Watermark) -> Watermark:
    """The clock alone, if the key's watermark follows from it (`expected`); else both."""
    return clock if own == expected else both(clock, own)


def _with_moment(node: exp.Select, moment: exp.Expression, *, fronted: bool) -> tuple[exp.Select, bool, bool]:
    """The SELECT with the closing time in place of the plain ROWTIME, or in front; see `Closing`."""
    made: exp.Select = node.copy()
    shown, promoted = False, False
    items = []
    for item in made.expressions:
        inner = item.this if isinstance(item, exp.Alias) else item
        named = item.alias.upper() == ROWTIME if isinstance(item, exp.Alias) else _is_rowtime(inner)
        if _is_rowtime(inner):
            shown = shown or named
            items.append(
                exp.alias_(moment.copy(), item.args["alias"] if isinstance(item, exp.Alias) else _rowtime(), copy=False)
            )
            continue
        promoted = promoted or named
        items.append(item)
    first = promoted or not shown or fronted
    if first:
        items.insert(
            0, exp.alias_(moment, exp.to_identifier("RELEASED", quoted=True) if promoted else _rowtime(), copy=False)
        )
    made.set("expressions", items)
    return made, first, promoted


def closed(bound: Bound, how: Closing) -> Bound:
    """The groups that are closed; `bound`: all groups, with the select list of `how`."""
    outputs = bound.outputs
    place = 0 if how.first else next(i for i, o in enumerate(outputs) if o.column.name.upper() == ROWTIME)
    same = tuple(o.column.id for o in outputs[1:] if o.column.name.upper() == ROWTIME) if how.promoted else ()
    tree: Node = TimeFilter(bound.relation, outputs[place].column.id, how.comparison, how.clock, final=True, same=same)
    if how.promoted:
        return Bound(exactly(tree, tree.columns[1:]), outputs[1:])
    return Bound(tree, outputs)


def _is_rowtime(node: exp.Expression) -> bool:
    return isinstance(node, exp.Column) and node.name.upper() == ROWTIME and node.args.get("table") is None


def _rowtime() -> exp.Identifier:
    return exp.to_identifier(ROWTIME, quoted=True)
