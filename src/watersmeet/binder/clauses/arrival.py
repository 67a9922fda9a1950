"""Rows by their arrival: the newest of each key, their order, and rows that arrive too late.

The newest rows of each key by arrival: for LATEST, the versions of an ASOF join, and `changelog(stream, key)`.

Timeplus, "Multi-JOINs and ASOF JOINs", "ASOF JOIN", "LATEST JOIN", "Changelog Streams"; rulings D-003-04, D-003-06.
Every written row counts, even if it replaces one with the same primary key, as in Proton.

The order of rows for functions that depend on it: first_value, last_value, lag and others.

A dialect defines it (`Semantics.row_order`): by arrival, or by ROWTIME with ties by arrival if that is known (rows of
a join have none).

Late-row filters of range joins, whose state would otherwise grow for ever (TP-31).

Timeplus, "Multi-JOINs and ASOF JOINs", "Range Bidirectional JOIN"; Proton. Proton drops what is behind the lesser of
both sides' greatest times by more than a bucket, which is as long as the range. Here a row is late if its time is
behind the lesser of both sides' greatest times, as of the epochs before, by more than the range: no row within a range
of the present is ever left out. A row that only late rows could meet is not kept.

Windows close in the same way (EMIT AFTER WINDOW CLOSE) if a stream has no watermark of its own: a row is late for a
window that had ended by the greatest time of the epochs before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from watersmeet.algebra.nodes import (
    Apply,
    Arrivals,
    Column,
    Cut,
    Filter,
    Join,
    LateRowFilter,
    Node,
    Project,
    Scan,
    SortKey,
    TemporalJoin,
    TopN,
    Unnest,
)
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.timebounds import time_bounds
from watersmeet.algebra.timewindows import TimeWindow
from watersmeet.algebra.trees import read
from watersmeet.algebra.watermarks import watermarks
from watersmeet.binder.context.emissions import change_kind
from watersmeet.binder.context.rules import Binding
from watersmeet.binder.context.scope import Scope
from watersmeet.catalog import Input
from watersmeet.expressions.context import RowOrder
from watersmeet.values.types import BIGINT
from watersmeet.values.watermarks import Term, Watermark, both, floored, shifted


def newest(
    node: Node, keys: Sequence[Scalar], binding: Binding, *, limit: int = 1, value: Scalar | None = None
) -> tuple[Node, tuple[Column, Column]] | None:
    """For each of `keys`, the `limit` rows of `node` that arrived last, or have the greatest `value` (ties: the
    newest).

    They have the two columns that order rows by arrival, the newest first. None if the order of arrival is unknown:
    only tables and sources know it, also under filters and projections.
    """
    found = arrivals(node, binding)
    if found is None:
        return None
    rows, age = found
    order = [SortKey(read(c)) for c in age]
    if value is not None:
        order.insert(0, SortKey(value, descending=True))
    return TopN(rows, tuple(keys), tuple(order), limit), age


def new_age(binding: Binding) -> tuple[Column, Column]:
    """The two columns of `Arrivals`."""
    return (binding.new_column("_epoch", BIGINT, nullable=False), binding.new_column("_seq", BIGINT, nullable=False))


def arrivals(
    node: Node, binding: Binding, *, unnested: bool = False, joined: bool = False
) -> tuple[Node, tuple[Column, Column]] | None:
    """The rows of `node` as they were written, with the two columns that order them, the newest first; None if the
    order is unknown.

    unnested: also if several rows come from one (HOP); these arrive together. joined: also of joins that are decided
    when a left row arrives; what comes of one row arrives together.
    """
    if isinstance(node, Scan):
        relation = binding.catalog.relations[node.relation_id]
        if not isinstance(relation, Input) or (relation.connector and relation.primary_key):
            return None
        if relation.mode == "changelog":  # what was taken back was never the newest row
            return None
        age = new_age(binding)
        return Arrivals(node, age, 0 if node.append_only else binding.moment), age
    if joined and (
        (isinstance(node, TemporalJoin) and not node.waits)
        or (isinstance(node, Apply) and node.arrival and node.kind in ("inner", "left"))
    ):
        found = arrivals(node.left, binding, unnested=unnested, joined=True)
        return None if found is None else (replace(node, left=found[0]), found[1])
    if not isinstance(node, (Cut, Filter, Project, Unnest)) or (isinstance(node, Cut) and node.keeps == "before"):
        return None
    if isinstance(node, Unnest) and not unnested:
        return None
    found = arrivals(node.input, binding, unnested=unnested, joined=joined)
    if found is None:
        return None
    below, age = found
    if isinstance(node, Project):
        return replace(node, input=below, outputs=(*node.outputs, *age), exprs=(*node.exprs, *map(read, age))), age
    return replace(node, input=below), age


class StreamOrder(RowOrder):
    """The row order of `relation`. The columns that order it are read only if a function needs them."""

    def __init__(self, relation: Node, scope: Scope, binding: Binding) -> None:
        self.relation = relation
        self._scope = scope
        self._binding = binding
        self._keys: tuple[SortKey, ...] | None = None
        self._asked = False

    @property
    def known(self) -> tuple[SortKey, ...] | None:
        if not self._asked:
            self._keys, self._asked = self._found(), True
        return self._keys

    def _found(self) -> tuple[SortKey, ...] | None:
        time: tuple[SortKey, ...] = ()
        if self._binding.rules.semantics.row_order == "rowtime":
            rowtime = self._rowtime()
            if rowtime is None:
                return None
            time = (SortKey(rowtime),)
        found = (
            arrivals(self.relation, self._binding, unnested=True) if change_kind(self.relation) == "append" else None
        )
        if found is None:
            return time or None
        self.relation, age = found
        return (*time, *(SortKey(read(c), descending=True) for c in age))

    def _rowtime(self) -> Scalar | None:
        """The time of each row of a stream; in a query that ends, of its stored rows."""
        stream = self._scope.stream
        if stream is not None or not self._binding.rules.bounded:
            return None if stream is None else stream.rowtime.value.finish()
        node = self.relation
        while isinstance(node, (Filter, Project, Unnest)):
            node = node.input
        times = {i for i, _ in node.watermarks} if isinstance(node, Scan) else set()
        return next((read(c) for c in self.relation.columns if c.id in times), None)


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
