"""Binds the clauses and functions that divide a stream: PARTITION BY, SHUFFLE BY, LIMIT … BY, `session`, `dedup`.

Timeplus, "Partition data", "Shuffle data", "Session window aggregation", "Streaming processing".

**Sessions** are those of each substream: of the rows that are equal in PARTITION BY and in the keys of GROUP BY other
than the window. They are decided in the order of arrival, as in Proton, and output when a later row of the substream
has closed them. Their end is that of their idle time or of their greatest length, whichever comes first.

**dedup** keeps the first row of each key; with a time, also a row whose `_tp_time` is that much after the last row of
the key that was kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from watersmeet.algebra.nodes import Node
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.timewindows import duration_us
from watersmeet.binder.clauses.substreams import by_arrival, expiring, first_by_arrival, first_rows, sessions
from watersmeet.binder.clauses.timewindows import NAMES
from watersmeet.binder.context.binding import Environment, value_of
from watersmeet.binder.context.rules import Binding, Sourced
from watersmeet.binder.context.scope import Scope, ScopeColumn, ScopeContext
from watersmeet.catalog import TIME_COLUMN
from watersmeet.dialects.timeplus.nodes import Divided, EmitClause, StreamSelect
from watersmeet.dialects.tree.queries import node_span
from watersmeet.expressions.aggregatecalls import aggregate_name, has_aggregate
from watersmeet.expressions.context import Context
from watersmeet.expressions.scalars import bind_condition, bind_value
from watersmeet.values.spans import set_span
from watersmeet.values.types import BOOLEAN

#: The default of the greatest length of a session, in gaps.
_GAPS: Final = 5

_FORM: Final = "session(stream[, time], gap[, length][, [start condition, end condition]])"


def substream(node: exp.Table, scope: Scope, env: Environment) -> tuple[Scalar, ...] | None:
    """The values of PARTITION BY of the SELECT that reads the item; None without the clause."""
    select = node.find_ancestor(exp.Select)
    if not isinstance(select, StreamSelect) or not select.listed("partition_by"):
        return None
    ctx = ScopeContext(env.text, scope, "PARTITION BY")
    return tuple(bind_value(p, ctx).finish() for p in select.listed("partition_by"))


def with_divided(
    sourced: Sourced, node: exp.Expression, select: exp.Select | None, env: Environment, binding: Binding
) -> Sourced:
    """The rows of `session(stream, …)` or `dedup(stream, …)`; other items are unchanged. select: the query that reads
    the item; None for one that ends.
    """
    divided = node.args.get("divides")
    if not isinstance(divided, Divided):
        return sourced
    if divided.name == "dedup":
        return _deduplicated(sourced, divided, env, binding)
    if select is None:
        raise env.not_supported(
            f"{divided.name} in a query that ends",
            divided,
            hint="Make a materialized view of the query, and read that.",
        )
    return _in_sessions(sourced, divided, select, env, binding)


def _deduplicated(sourced: Sourced, call: Divided, env: Environment, binding: Binding) -> Sourced:
    relation, scope = sourced
    keys, lengths = list(call.expressions), list[exp.Expression]()
    while keys and (isinstance(keys[-1], exp.Literal) or duration_us(keys[-1]) is not None):
        lengths.insert(0, keys.pop())
    if not keys or len(lengths) > 2:
        raise env.error("SYNTAX_ERROR", "dedup takes a stream, columns, and maybe a time", call, detail=_DEDUP)
    ctx = ScopeContext(env.text, scope, "dedup")
    partition = tuple(bind_value(k, ctx).finish() for k in keys)
    if lengths and duration_us(lengths[-1]) is None:
        binding.notice(_ANY_NUMBER)
        lengths.pop()
    if not lengths:
        return first_by_arrival(relation, partition, 1, call, env, binding), scope
    time = bind_value(exp.column(exp.to_identifier(TIME_COLUMN, quoted=True)), ctx).finish()
    length_us = duration_us(lengths[0]) or 0
    return first_rows(relation, partition, time, length_us, call, env, binding), scope


_ANY_NUMBER: Final = "the number of keys of dedup has no effect: the keys are on disk, so any number is kept"
_DEDUP: Final = "dedup(stream, column, …[, 120s])"


def _in_sessions(sourced: Sourced, call: Divided, select: exp.Select, env: Environment, binding: Binding) -> Sourced:
    relation, scope = sourced
    ctx = ScopeContext(env.text, scope, "session")
    arguments = list(call.expressions)
    named = exp.column(exp.to_identifier(TIME_COLUMN, quoted=True))
    if arguments and duration_us(arguments[0]) is None:
        named = arguments.pop(0)
    time = bind_value(named, ctx)
    lengths: list[int] = []
    while arguments and len(lengths) < 2 and (found := duration_us(arguments[0])) is not None:
        lengths.append(found)
        arguments.pop(0)
    if not lengths or min(lengths) <= 0 or len(arguments) not in (0, 2, 4):
        raise env.error("INVALID_PARAMETER", "session takes a stream and its gap", call, detail=_FORM)
    if time.type.name not in ("timestamp", "timestamptz"):
        raise env.error("DATATYPE_MISMATCH", f"session takes a time, not {time.type.sql}", named)
    if binding.closing is not None and binding.closing.delay_us:
        raise env.not_supported("WITH DELAY for sessions", call, hint="Write a longer gap.")
    kept = 3
    if len(arguments) == 4:
        kept = int(arguments[2].name) + 2 * int(arguments[3].name)
    opens, closes = (bind_condition(a, ctx, "session").finish() for a in arguments[:2]) if arguments else _ALWAYS
    partition = _partition(select, scope, env)
    most_us = lengths[1] if len(lengths) == 2 else _GAPS * lengths[0]
    rows, bounds = sessions(
        relation, partition, (time.finish(), opens, closes), (lengths[0], most_us), kept, call, env, binding
    )
    added = tuple(ScopeColumn(c.name, value_of(c)) for c in bounds)
    first, *rest = scope.tables
    tables = (replace(first, columns=(*first.columns, *added)), *rest)
    return rows, replace(scope, tables=tables, visible=(*scope.visible, *added))


#: The conditions of sessions without conditions: each row opens one if none is open, and none closes one.
_ALWAYS: Final = (Scalar(exp.true(), BOOLEAN, nullable=False), Scalar(exp.false(), BOOLEAN, nullable=False))


def _partition(select: exp.Select, scope: Scope, env: Environment) -> tuple[Scalar, ...]:
    """The values of PARTITION BY, and those of the keys of GROUP BY other than the window."""
    keys = select.listed("partition_by") if isinstance(select, StreamSelect) else []
    group = select.args.get("group")
    if group is not None and not select.args.get("joins"):
        places = {str(i): e.unalias() for i, e in enumerate(select.expressions, 1)}
        named = [places.get(k.name, k) if isinstance(k, exp.Literal) else k for k in group.expressions]
        keys = [*keys, *(k for k in named if not (isinstance(k, exp.Column) and k.name in NAMES))]
    ctx = ScopeContext(env.text, scope, "PARTITION BY")
    return tuple(dict.fromkeys(bind_value(k, ctx).finish() for k in keys))


def with_clauses(
    node: exp.Select, relation: Node, scope: Scope, env: Environment, binding: Binding
) -> tuple[exp.Select, Node, Scope]:
    """The SELECT without the clauses of streams, and its rows."""
    if not isinstance(node, StreamSelect):
        return node, relation, scope
    made: exp.Select = node.copy()
    emit = node.args.get("emit")
    if isinstance(emit, EmitClause) and emit.mode == "key expire":
        relation = _expiring(node, emit, relation, scope, env, binding)
    elif isinstance(emit, EmitClause) and emit.mode == "per event":
        relation, scope = _per_event(made, emit, relation, scope, env, binding)
    elif isinstance(emit, EmitClause):
        _check_inner(emit, env, binding)
    ctx = ScopeContext(env.text, scope, "SHUFFLE BY")
    for key in node.listed("shuffle_by"):
        bind_value(key, ctx)
        binding.notice("SHUFFLE BY: accepted without effect: no result depends on how rows are distributed.")
    partition = node.listed("partition_by")
    if partition:
        _partitioned(made, partition, ScopeContext(env.text, scope, "PARTITION BY"))
    limit = node.args.get("limit_by")
    if limit is not None:
        relation = _limited(limit, relation, ScopeContext(env.text, scope, "LIMIT … BY"), binding)
    for part in node.own_parts:
        made.set(part, None)
    return made, relation, scope


def _expiring(
    node: StreamSelect, emit: EmitClause, relation: Node, scope: Scope, env: Environment, binding: Binding
) -> Node:
    """The rows of the keys of GROUP BY that have expired. Raises FEATURE_NOT_SUPPORTED, DATATYPE_MISMATCH."""
    keys = _partition(node, scope, env)
    if not keys:
        raise env.not_supported("EMIT AFTER KEY EXPIRE without GROUP BY", emit, hint="Group by the key of the rows.")
    named = emit.args.get("key") or exp.column(exp.to_identifier(TIME_COLUMN, quoted=True))
    time = bind_value(named, ScopeContext(env.text, scope, "IDENTIFIED BY"))
    if time.type.name not in ("timestamp", "timestamptz"):
        raise env.error("DATATYPE_MISMATCH", f"IDENTIFIED BY takes a time, not {time.type.sql}", emit)
    lengths_us = (emit.length("span_us") or 0, emit.length("timeout_us") or 0)
    return expiring(relation, keys, time.finish(), lengths_us, emit, env, binding, only=bool(emit.args.get("only")))


def _per_event(
    node: exp.Select, emit: EmitClause, relation: Node, scope: Scope, env: Environment, binding: Binding
) -> tuple[Node, Scope]:
    """The rows with their arrival, by which the aggregates of the SELECT, which loses its groups, become running ones:
    the value of each after each row. Raises FEATURE_NOT_SUPPORTED.
    """
    for part, words in (("having", "HAVING"), ("partition_by", "PARTITION BY"), ("distinct", "DISTINCT")):
        if node.args.get(part):
            hint = "Write the condition in a query around this one."
            raise env.not_supported(f"EMIT PER EVENT with {words}", emit, hint=hint if part == "having" else None)
    rows, order = by_arrival(relation, emit, env, binding)
    ids = [key.value.column for key in order]
    arrived = [ScopeColumn(f"$arrived{ids.index(c.id)}", value_of(c)) for c in rows.columns if c.id in ids]
    first, *others = scope.tables
    scope = replace(scope, tables=(replace(first, columns=(*first.columns, *arrived)), *others))
    ctx = ScopeContext(env.text, scope, "EMIT PER EVENT")
    group = node.args.get("group")
    places = {str(i): e.unalias() for i, e in enumerate(node.expressions, 1)}
    keys = (
        [] if group is None else [places.get(k.name, k) if isinstance(k, exp.Literal) else k for k in group.expressions]
    )
    node.set("group", None)
    sorting = [
        exp.Ordered(this=exp.column(exp.to_identifier(f"$arrived{i}", quoted=True), table=first.alias), desc=True)
        for i in range(len(ids))
    ]
    for item in node.expressions:
        calls = item.find_all(exp.Expression, bfs=False) if has_aggregate(item, ctx) else ()
        for call in [n for n in calls if aggregate_name(n, ctx) is not None]:
            spec = exp.WindowSpec(kind="ROWS", start="UNBOUNDED", start_side="PRECEDING", end="CURRENT ROW")
            window = exp.Window(
                this=call.copy(),
                partition_by=[k.copy() for k in keys],
                order=exp.Order(expressions=[s.copy() for s in sorting]),
                spec=spec,
                over="OVER",
            )
            set_span(window, node_span(call))
            call.replace(window)
    return rows, scope


def _limited(limit: exp.Limit, relation: Node, ctx: ScopeContext, binding: Binding) -> Node:
    """The first rows of each key in the order of arrival."""
    env = Environment(ctx.text)
    keys = tuple(bind_value(k, ctx).finish() for k in limit.expressions)
    return first_by_arrival(relation, keys, _number(limit.expression, env), limit, env, binding)


def _number(node: exp.Expression, env: Environment) -> int:
    """The number of LIMIT or OFFSET … BY. Raises SYNTAX_ERROR."""
    if not node.name.isdecimal():
        raise env.error("SYNTAX_ERROR", "LIMIT … BY takes a whole number", node)
    return int(node.name)


def with_numbered_rows(node: exp.Select, env: Environment, *, ends: bool) -> exp.Select:
    """A SELECT with LIMIT … BY over groups, or in the order of ORDER BY, as a condition on the number of each row.

        SELECT k, count() AS c FROM s GROUP BY k, i ORDER BY c DESC LIMIT 2 BY k
        SELECT * EXCEPT (n) FROM (SELECT k, …, row_number() OVER (PARTITION BY k ORDER BY c DESC) AS n FROM …)
        WHERE n <= 2

    A further LIMIT applies to the whole. Other queries are unchanged. ends: whether the query ends, so that its rows
    have an order. Raises FEATURE_NOT_SUPPORTED for DISTINCT, SYNTAX_ERROR.
    """
    limit = node.args.get("limit_by")
    if limit is None:
        return node
    order, offset, ctx = node.args.get("order"), limit.args.get("offset"), Context(env.text, "LIMIT … BY")
    grouped = node.args.get("group") or node.args.get("having") or any(has_aggregate(e, ctx) for e in node.expressions)
    if not (grouped or order or offset or node.args.get("distinct")):
        return node
    if node.args.get("distinct"):
        raise env.not_supported("LIMIT … BY with DISTINCT", limit, hint="Write a query around this one.")
    above = {part: node.args[part] for part in ("limit", "offset") if node.args.get(part)}
    chosen = {e.alias: e.this for e in node.expressions if isinstance(e, exp.Alias)}

    def meant(key: exp.Expression) -> exp.Expression:
        plain = isinstance(key, exp.Column) and not key.args.get("table")
        return (chosen.get(key.name, key) if plain else key).copy()

    sorting = [] if order is None else [o.copy() for o in order.expressions]
    for item in sorting:
        item.set("this", meant(item.this))
    window = exp.Window(
        this=exp.Anonymous(this="row_number"),
        partition_by=[meant(k) for k in limit.expressions],
        order=exp.Order(expressions=sorting) if sorting else None,
        over="OVER",
    )
    set_span(window, node_span(limit))
    hidden = [exp.alias_(window, _ROW_NUMBER, quoted=True)]
    hidden += [exp.alias_(o.this.copy(), f"{_ROW_NUMBER}{i}", quoted=True) for i, o in enumerate(sorting)]
    inner: exp.Select = node.copy()
    for part in ("limit_by", "order", "with_", *above):
        inner.set(part, None)
    inner.set("expressions", [*inner.expressions, *hidden])
    number, first = _column(_ROW_NUMBER), 0 if offset is None else _number(offset, env)
    last = exp.LTE(this=number, expression=exp.Literal.number(first + _number(limit.expression, env)))
    kept = exp.and_(last, exp.GT(this=number.copy(), expression=exp.Literal.number(first))) if first else last
    star = exp.Star(except_=[exp.to_identifier(h.alias, quoted=True) for h in hidden])
    rows = exp.Subquery(this=inner, alias=exp.TableAlias(this=exp.to_identifier(_ROW_NUMBER, quoted=True)))
    made = exp.Select(expressions=[star], with_=node.args.get("with_"), where=exp.Where(this=kept))
    made.set("from_", exp.From(this=rows))
    for i, item in enumerate(sorting):
        item.set("this", _column(f"{_ROW_NUMBER}{i}"))
    if sorting and (ends or above):
        made.set("order", exp.Order(expressions=sorting))
    for part, clause in above.items():
        made.set(part, clause.copy())
    set_span(made, node_span(node))
    return made


#: The name of the number of a row, and the beginning of the names of the values by which rows are ordered.
_ROW_NUMBER: Final = "$row"


def _column(name: str) -> exp.Column:
    return exp.column(exp.to_identifier(name, quoted=True))


def _check_inner(emit: EmitClause, env: Environment, binding: Binding) -> None:
    """Adds a notice about a clause in a query inside of another that does not change the rows that the outer one
    reads. Raises FEATURE_NOT_SUPPORTED for windows of a query that ends.
    """
    if emit.mode == "window close" and binding.rules.batch:
        raise env.not_supported(
            "EMIT AFTER WINDOW CLOSE in a query that ends", emit, hint="Make it a materialized view, and read that."
        )
    if emit.mode not in ("stream", "window close") and not emit.args.get("whole"):
        binding.notice("EMIT in an inner query: accepted without effect: the outer query follows every change.")


def _partitioned(node: exp.Select, partition: Sequence[exp.Expression], ctx: ScopeContext) -> None:
    """Groups by the columns of PARTITION BY too, if the SELECT has groups: each substream has its own."""
    for key in partition:
        bind_value(key, ctx)
    group = node.args.get("group")
    if group is None and not any(has_aggregate(e, ctx) for e in node.expressions):
        return
    keys = [] if group is None else group.expressions
    added = [p.copy() for p in partition if p not in keys]
    node.set("group", exp.Group(expressions=[*(k.copy() for k in keys), *added]))
