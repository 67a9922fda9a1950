"""Binds the clauses of a SELECT that divide a stream: PARTITION BY, SHUFFLE BY, LIMIT … BY; EMIT of inner queries.

Timeplus, "Partition data", "Shuffle data", "Substream".
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from watersmeet.algebra.nodes import Node
from watersmeet.binder.context.binding import Environment
from watersmeet.binder.context.rules import Binding
from watersmeet.binder.context.scope import Scope, ScopeContext
from watersmeet.binder.dialects.timeplus.emissions import check_key_expire
from watersmeet.dialects.timeplus.nodes import EmitClause, StreamSelect
from watersmeet.expressions.aggregatecalls import has_aggregate
from watersmeet.expressions.scalars import bind_value


def with_clauses(
    node: exp.Select, relation: Node, scope: Scope, env: Environment, binding: Binding
) -> tuple[exp.Select, Node, Scope]:
    """The SELECT without the clauses of streams, and its rows."""
    if not isinstance(node, StreamSelect):
        return node, relation, scope
    made: exp.Select = node.copy()
    emit = node.args.get("emit")
    if isinstance(emit, EmitClause):
        _check_inner(emit, env, binding)
    ctx = ScopeContext(env.text, scope, "SHUFFLE BY")
    for key in node.listed("shuffle_by"):
        bind_value(key, ctx)
        binding.notice("SHUFFLE BY: accepted without effect: no result depends on how rows are distributed.")
    partition = node.listed("partition_by")
    if partition:
        _partitioned(made, partition, ScopeContext(env.text, scope, "PARTITION BY"))
    for part in node.own_parts:
        made.set(part, None)
    return made, relation, scope


def _check_inner(emit: EmitClause, env: Environment, binding: Binding) -> None:
    """Raises FEATURE_NOT_SUPPORTED for an EMIT clause in a query inside of another that would change its rows."""
    check_key_expire(emit, env.text)
    if emit.mode == "window close":
        raise env.not_supported(
            "EMIT AFTER WINDOW CLOSE in a query that is not the only one that the outer query reads",
            emit,
            hint="Make it a materialized view, and read that.",
        )
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
