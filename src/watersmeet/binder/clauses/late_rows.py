"""Late-row filters of range joins, whose state would otherwise grow for ever (TP-31).

Timeplus, "Multi-JOINs and ASOF JOINs", "Range Bidirectional JOIN"; Proton. Proton drops what is behind the lesser of
both sides' greatest times by more than a bucket, which is as long as the range. Here a row is late if its time is
behind the lesser of both sides' greatest times, as of the epochs before, by more than the range: no row within a range
of the present is ever left out. A row that only late rows could meet is not kept.

Windows close in the same way (EMIT AFTER WINDOW CLOSE) if a stream has no watermark of its own: a row is late for a
window that had ended by the greatest time of the epochs before.
"""

from __future__ import annotations

from dataclasses import replace

from watersmeet.algebra.nodes import Column, Cut, Filter, Join, LateRowFilter, Node, Project, Scan
from watersmeet.algebra.timebounds import time_bounds
from watersmeet.algebra.timewindows import TimeWindow
from watersmeet.algebra.watermarks import watermarks
from watersmeet.binder.context.rules import Binding
from watersmeet.watermarks import Term, Watermark, both, floored, shifted


def without_late_rows(joined: Join, binding: Binding) -> Join:
    """The join with late-row filters on both sides; unchanged if the times of a side can't be followed."""
    for bound in time_bounds(joined):
        left, right = bound.left.column, bound.right.column
        if left is None or right is None or bound.lo_us is None or bound.hi_us is None:
            continue
        one, other = clock_of(joined.left, left, binding), clock_of(joined.right, right, binding)
        marks = [
            _mark(side, column, clock)
            for side, column, clock in ((joined.left, left, one), (joined.right, right, other))
        ]
        if all(marks):
            late = shifted(both(*marks), -max(-bound.lo_us, bound.hi_us))
            return replace(
                joined,
                left=_late_row_filter(joined.left, left, one, late),
                right=_late_row_filter(joined.right, right, other, late),
            )
    return joined


def without_closed(rows: Node, start: Column, relation: Node, time: str, window: TimeWindow, binding: Binding) -> Node:
    """The rows of a stream with the starts of their windows, without rows whose window had closed before they arrived.

    relation: the stream.
    time: its column for the windows. A window closes when the clock has passed its end by the delay of EMIT. The rows
    stay as they are if the column has a watermark or can't be followed.
    """
    clock = clock_of(relation, time, binding)
    if clock is None or binding.closing_us is None:
        return rows
    binding.collected.delayed = True
    late = shifted(
        floored(shifted((Term(clock[2]),), -binding.closing_us), window.slide_us, window.offset_us),
        window.slide_us - window.size_us,
    )
    return LateRowFilter(rows, start.id, late, *clock)


def _mark(side: Node, column: str, clock: tuple[str, str, str] | None) -> Watermark:
    """The greatest time of a side so far, or the watermark that it already has."""
    return watermarks(side).get(column, ()) if clock is None else (Term(clock[2]),)


def clock_of(side: Node, column: str, binding: Binding) -> tuple[str, str, str] | None:
    """The relation, the column and the name of the number by which the times of a side are followed; None if they can't
    be followed or have a watermark.
    """
    if column in watermarks(side):
        return None
    node = side
    while isinstance(node, (Cut, Filter, Project)):
        if isinstance(node, Project):
            exprs = {c.id: e.column for c, e in zip(node.outputs, node.exprs, strict=True)}
            found = exprs.get(column)
            if found is None:
                return None
            column = found
        node = node.input
    if not isinstance(node, Scan):
        return None
    relation = binding.catalog.relations[node.relation_id]
    if not relation.append_only or relation.is_fed_by_circuit:
        return None
    name = next(n for c, n in zip(node.outputs, node.source_names, strict=True) if c.id == column)
    return relation.id, name, f"{relation.id}.{name}@{binding.moment}"


def _late_row_filter(side: Node, column: str, clock: tuple[str, str, str] | None, late: Watermark) -> Node:
    return side if clock is None else LateRowFilter(side, column, late, *clock)
