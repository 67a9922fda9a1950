"""An event time becomes the ROWTIME: `SELECT STREAM ts AS ROWTIME, …`, or a pump that inserts into ROWTIME.

s-Server's "Using ROWTIME to promote an event time": the rowtimes of a stream never decrease, so a row whose time is
before that of an earlier row is rejected and counted. All rows of the stream below move the clock, including those that
WHERE drops (D-001-18).
"""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from watersmeet.algebra.nodes import Filter, LateRowFilter, Node, Project
from watersmeet.algebra.watermarks import of_scalar, watermarks
from watersmeet.binder.clauses.late_rows import clock_of
from watersmeet.binder.clauses.newest import arrivals
from watersmeet.binder.context.rules import Binding
from watersmeet.binder.context.scope import ScopeContext
from watersmeet.catalog import ROWTIME
from watersmeet.expressions.scalars import bind_value
from watersmeet.types import TIMESTAMP
from watersmeet.watermarks import Term


def with_promoted(node: exp.Select, relation: Node, ctx: ScopeContext, binding: Binding) -> Node:
    """The relation below a SELECT over a stream, without late rows, so that the column that an item names ROWTIME
    rises.

    Unchanged if no such item is a column, if the column rises anyway, or if its times can't be followed.
    """
    for item in node.expressions:
        if isinstance(item, exp.Alias) and item.alias.upper() == ROWTIME and isinstance(item.this, exp.Column):
            time = bind_value(item.this, ctx).finish()
            if time.column is None or time.type != TIMESTAMP or of_scalar(time, watermarks(relation)):
                return relation
            return _promoted(relation, time.column, binding) or relation
    return relation


def _promoted(node: Node, column: str, binding: Binding) -> Node | None:
    if isinstance(node, (Filter, Project)):
        if isinstance(node, Project):
            passed = next((e for c, e in zip(node.outputs, node.exprs, strict=True) if c.id == column), None)
            if passed is None or passed.column is None:
                return None
            column = passed.column
        below = _promoted(node.input, column, binding)
        return None if below is None else replace(node, input=below)
    clock, found = clock_of(node, column, binding), arrivals(node, binding)
    if clock is None or found is None:
        return None
    rows, age = found
    return LateRowFilter(rows, column, (Term(clock[2]),), *clock, age=tuple(c.id for c in age))
