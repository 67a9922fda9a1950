"""Joins of a stream and a table: each row of the stream matches the table as it was when the query started.

SQLstream, "JOIN clause", "Stream-Table Joins"; SS-47 to SS-61, SS-65, SS-66; rulings D-001-14, D-001-15. The stream
looks the table up, so no rows of the stream are kept, and later changes of the table have no effect. The table may be
the preserved side of an outer join if the stream has a window that empties: at the end of the hour, rows of the table
that matched none of its rows are output.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from sqlglot import exp

from watersmeet.algebra.cardinality import is_single_row
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
from watersmeet.algebra.rewrites import rewrite
from watersmeet.algebra.scalars import Scalar, null_of
from watersmeet.algebra.trees import transform_up, walk
from watersmeet.algebra.watermarks import watermarks
from watersmeet.binder.clauses.lookups import is_looked_up, looking_up, wants_versions
from watersmeet.binder.context.binding import Environment, read, value_of
from watersmeet.binder.context.rules import Binding
from watersmeet.binder.context.scope import Scope, ScopeColumn, StreamInput
from watersmeet.binder.dialects.sqlstream.join_windows import UnitWindow, join_window
from watersmeet.binder.dialects.sqlstream.row_lifetimes import timestamp
from watersmeet.dialects.tree.queries import place_of
from watersmeet.errors import Error, Span, error
from watersmeet.expressions.rounding import Unit, after, floor
from watersmeet.types import TIMESTAMP

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
        raise error(
            "FEATURE_NOT_SUPPORTED",
            "FOR SYSTEM_TIME AS OF a time of the stream is not supported",
            sql=env.text,
            span=place_of(node.this),
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
