"""ROWTIME, in dialects that have it: it makes an item of FROM a stream, and is a column of every query over streams.

SQLstream, "JOIN clause", "Output Rowtimes" (SS-30, SS-37, SS-64); rulings D-001-18, D-001-21. A relation with a
watermark is a stream, whatever dialect created it. Its rowtime is the column ROWTIME, or else the first column with a
watermark. The clock is that of the underlying stream, so rows that a filter drops move it too.

An event time becomes the ROWTIME: `SELECT STREAM ts AS ROWTIME, …`, or a pump that inserts into ROWTIME.

s-Server's "Using ROWTIME to promote an event time": the rowtimes of a stream never decrease, so a row whose time is
before that of an earlier row is rejected and counted. All rows of the stream below move the clock, including those
that WHERE drops (D-001-18).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sqlglot import exp

from watersmeet.algebra.nodes import Column, Filter, LateRowFilter, Node, Project, TimeFilter
from watersmeet.algebra.watermarks import of_scalar, watermarks
from watersmeet.binder.clauses.arrival import arrivals, clock_of
from watersmeet.binder.clauses.order_limit import ordered_items
from watersmeet.binder.context.binding import Bound, Environment, Item, check_alias_list, scope_columns, value_of
from watersmeet.binder.context.rules import Binding, BindQuery, NamedItem
from watersmeet.binder.context.scope import Scope, ScopeColumn, ScopeContext, StreamInput, single
from watersmeet.catalog import ROWTIME
from watersmeet.dialects.sqlstream.nodes import window_of
from watersmeet.dialects.tree.queries import is_marked, place_of
from watersmeet.errors import error
from watersmeet.expressions.scalars import bind_value
from watersmeet.values.types import TIMESTAMP
from watersmeet.values.watermarks import Term

BindUnion = Callable[[exp.SetOperation, Environment, Binding, BindQuery], Bound]


def item_scope(tree: Node, item: NamedItem, env: Environment) -> Scope:
    """The scope of an item of FROM. A stream has its rowtime, which `*` leaves out."""
    rowtime = rowtime_of(tree)
    columns = [c for c in tree.columns if rowtime is None or c.id != rowtime.id or c.name.upper() != ROWTIME]
    check_alias_list(item.names, len(columns), item.shown, env.text, place_of(item.node))
    stream = None if rowtime is None else StreamInput(ScopeColumn(ROWTIME, value_of(rowtime)))
    return single(item.alias, scope_columns(columns, item.names), item.schema, stream)


def check_stream(node: exp.Select, scope: Scope, env: Environment) -> None:
    """FEATURE_NOT_SUPPORTED for clauses that a query over streams can't have."""
    if env.outer is not None:
        raise env.not_supported("a stream in a subquery of an expression", node, hint="Join it in FROM.")
    if node.args.get("distinct"):
        raise env.not_supported("DISTINCT of a stream", node.args["distinct"])
    if scope.stream is not None and scope.stream.window is not None:
        raise env.not_supported("a window over a stream without a join", scope.stream.window)
    for called in [w for e in node.expressions for w in e.find_all(exp.Window)]:
        raise env.not_supported(
            "a window function over a stream", called, hint="GROUP BY FLOOR(s.ROWTIME TO HOUR) sums up by time."
        )
    for item in ordered_items(node):
        if not (isinstance(item.this, exp.Column) and item.this.name.upper() == ROWTIME and not item.args.get("desc")):
            raise env.not_supported(
                "ORDER BY of a stream by anything but ROWTIME", item, hint="Rows come in the order of ROWTIME."
            )


def over(scope: Scope, node: exp.Expression, env: Environment) -> Scope:
    """The scope of an item of FROM with the window written after it."""
    window = window_of(node)
    if window is None:
        return scope
    if scope.stream is None:
        raise env.not_supported(
            "a window over a table",
            window,
            detail="It is not a stream: none of its columns has a watermark.",
            hint="Leave OVER out.",
        )
    return replace(scope, stream=replace(scope.stream, window=window))


def rowtime_of(tree: Node) -> Column | None:
    """The rowtime of the rows of `tree`; None if it is no stream."""
    marks = watermarks(tree)
    timed = [c for c in tree.columns if c.id in marks]
    return next((c for c in timed if c.name.upper() == ROWTIME), timed[0] if timed else None)


def check_marked(query: exp.Expression, tree: Node, text: str) -> None:
    """FEATURE_NOT_SUPPORTED for a view of streams without STREAM.

    Without STREAM a query reads stored rows, and joins of stored rows have no windows: the view would differ from the
    result of its query.
    """
    if rowtime_of(tree) is not None and not is_marked(query):
        raise error(
            "FEATURE_NOT_SUPPORTED",
            "a view of streams without STREAM is not supported",
            sql=text,
            span=place_of(query),
            detail="Without STREAM a query reads the stored rows once.",
            hint="Write SELECT STREAM.",
        )


def with_rowtime(
    items: Sequence[Item], relation: Node, scope: Scope, text: str, *, fronted: bool
) -> tuple[list[Item], bool]:
    """The select list of a query over streams with its rowtime, and whether the rowtime was added in front.

    fronted: always add it.

    An item named ROWTIME is the rowtime if it rises with the stream's (`FLOOR(s.ROWTIME TO HOUR) AS ROWTIME`).
    """
    assert scope.stream is not None
    marks = watermarks(relation)
    for value, name, node in items:
        if name is None or name.upper() != ROWTIME:
            continue
        if of_scalar(value.finish(), marks):
            if not fronted:
                return list(items), False
            break
        if isinstance(node, exp.Alias):
            raise error(
                "DATATYPE_MISMATCH",
                "a ROWTIME must rise",
                sql=text,
                span=place_of(node),
                detail="Later rows may have lower values in this column.",
                hint="Use a TIMESTAMP column of a stream unchanged, or the rowtime of the query, also "
                "rounded down by FLOOR(… TO HOUR).",
            )
    rowtime = scope.stream.rowtime
    return [(rowtime.value, ROWTIME, exp.Column(this=exp.to_identifier(ROWTIME, quoted=True))), *items], True


def bind_union(
    node: exp.SetOperation, env: Environment, binding: Binding, fronting: Binding, bind: BindQuery, operation: BindUnion
) -> Bound:
    """A set operation. UNION ALL merges streams by their rowtimes: rows are output when the clocks of all streams have
    reached them.

    fronting: binds queries with their rowtime in front. operation: binds the set operation as one of tables.
    FEATURE_NOT_SUPPORTED for anything but UNION ALL of streams.
    """
    sides = [bind(side, env, binding) for side in (node.left, node.right)]
    streams = [rowtime_of(s.relation) is not None for s in sides]
    if any(streams) and (not all(streams) or not isinstance(node, exp.Union) or node.args.get("distinct")):
        raise env.not_supported("a set operation with streams other than UNION ALL of streams", node)
    hidden = any(s.outputs[0].hidden for s in sides)
    found = operation(node, env, fronting if hidden else binding, bind)
    rowtime = rowtime_of(found.relation)
    if not any(streams):
        return found
    if rowtime is None:
        raise env.not_supported(
            "UNION ALL of streams that select ROWTIME at different places",
            node,
            hint="Select it at the same place in all of them, or in none.",
        )
    tree = TimeFilter(found.relation, rowtime.id, "<=", watermarks(found.relation)[rowtime.id], final=True)
    outputs = tuple(replace(o, hidden=hidden and not i) for i, o in enumerate(found.outputs))
    return Bound(tree, outputs)


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
