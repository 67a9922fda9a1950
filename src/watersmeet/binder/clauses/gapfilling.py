"""Binds GAP_FILL in FROM: the rows of a relation, and rows at the missing steps between consecutive rows.

RisingWave, "Gap filling". `GAP_FILL(relation, time, step, LOCF(a), INTERPOLATE(b), KEEPNULL(c), PARTITION_BY(k))`: the
time of a new row is that of the row before the gap plus a multiple of the step, in UTC. LOCF, the default, repeats the
value of the row before the gap. INTERPOLATE approaches the value of the row after it in equal parts, and repeats the
value if there is none. KEEPNULL is NULL.

Each row has the time of its successor (`lead`), so a change of a row revises only the gaps next to it. With EMIT ON
WINDOW CLOSE only rows below the watermark are read (`closing`): they are final, and so are the gaps between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import duckdb
from sqlglot import exp

from watersmeet.algebra.nodes import Column, Node, Project, Scan, SortKey, Unnest, Window, WindowCall, WindowFrame
from watersmeet.algebra.scalars import Scalar, column_ref
from watersmeet.algebra.timewindows import parts_of
from watersmeet.algebra.trees import read
from watersmeet.binder.clauses.ordering import NO_PARTITION
from watersmeet.binder.clauses.sources import alias_of, bind_table, check_arguments
from watersmeet.binder.clauses.timewindows import relation_argument
from watersmeet.binder.context.binding import Environment
from watersmeet.binder.context.rules import Binding, BindQuery, NamedItem, Sourced
from watersmeet.binder.context.scope import Scope, ScopeContext
from watersmeet.dialects.tree.nodes import own_parts
from watersmeet.dialects.tree.queries import name_of
from watersmeet.expressions.aggregatecalls import UNORDERED
from watersmeet.expressions.context import Context, Value, duckdb_cast, fill
from watersmeet.expressions.scalars import bind_value
from watersmeet.expressions.setfunctions import array_of, steps_between
from watersmeet.values.types import BIGINT, INTERVAL

_NAME: Final = "gap_fill"
_FORM: Final = "GAP_FILL(relation, time column, step, LOCF(column), …)"
_STRATEGIES: Final = ("interpolate", "keepnull", "locf")
_PARTITION: Final = "partition_by"
_FROM_START: Final = WindowFrame("rows", None, 0)

#: The value of row a3 (from 1) of the a2 steps from the value a0 to a1. Steps of integers are rounded toward zero.
_OF_INTEGERS: Final = "CAST(a0 + (CAST(a1 AS HUGEINT) - a0) // a2 * (a3 - 1) AS {})"
_OF_FLOATS: Final = "CAST(a0 + (a1 - a0) / a2 * (a3 - 1) AS {})"
_OF_DECIMALS: Final = "CAST(a0 + CAST(CAST(a1 - a0 AS DOUBLE) / a2 AS DECIMAL(38, 10)) * (a3 - 1) AS {})"


def gap_fill_call(node: exp.Expression) -> exp.Table | None:
    """The item of FROM if it is a call of GAP_FILL, or None."""
    called = isinstance(node, exp.Table) and isinstance(node.this, exp.Anonymous)
    return node if called and str(node.this.name).lower() == _NAME else None


@dataclass(frozen=True)
class _Filling:
    """The bound arguments. strategies: those that are not LOCF, by the ids of their columns."""

    time: Value
    step: exp.Expression
    strategies: dict[str, str]
    partition: tuple[Scalar, ...]


def bind_gap_fill(node: exp.Table, env: Environment, binding: Binding, bind: BindQuery) -> Sourced:
    """The relation of the call and its scope."""
    ctx = Context(env.text, "GAP_FILL")
    check_arguments(node, frozenset({"this", "alias", "joins"}) | own_parts(node), env.text, "GAP_FILL")
    if len(node.this.expressions) < 3:
        raise ctx.error(
            "INVALID_PARAMETER",
            "GAP_FILL requires at least 3 arguments: input, time_col, interval",
            node.this,
            hint=f"Write {_FORM}.",
        )
    named = relation_argument(node)
    if named is None:
        raise ctx.error(
            "FEATURE_NOT_SUPPORTED",
            "the 1st arg of GAP_FILL should be a table name",
            node.this.expressions[0],
            hint="Name a table, source, view or CTE.",
        )
    relation, scope = bind_table(named, env, binding, bind)
    filling = _read(node.this.expressions[1:], scope, ctx)
    if not filling.partition:
        binding.notice(NO_PARTITION)
    made = _filled(relation, filling, binding)
    alias, names = alias_of(node)
    title = alias or name_of(node.this.expressions[0].this)
    called = (*names, *[c.name for c in scope.visible][len(names) :])
    return made, binding.rules.item_scope(made, NamedItem(title, called, f'table "{title}"', node), env)


def _read(arguments: list[exp.Expression], scope: Scope, ctx: Context) -> _Filling:
    inner = ScopeContext(ctx.text, scope, "GAP_FILL")
    time = _column(arguments[0], inner, "the 2nd arg of GAP_FILL should be a column name")
    if time.type.name not in ("timestamp", "timestamptz"):
        raise ctx.error(
            "DATATYPE_MISMATCH",
            "the 2nd arg of GAP_FILL should be a column of type timestamp or timestamptz",
            arguments[0],
            detail=f'Column "{arguments[0].name}" is of type {time.type.sql}.',
        )
    strategies: dict[str, str] = {}
    partition: dict[Scalar, None] = {}
    for argument in arguments[2:]:
        name = str(argument.name).lower() if isinstance(argument, exp.Anonymous) else ""
        if name == _PARTITION:
            columns = (_column(a, inner, "PARTITION_BY takes columns") for a in argument.expressions)
            partition.update(dict.fromkeys(c.finish() for c in columns))
            continue
        column, strategy = _strategy(name, argument, inner)
        strategies.setdefault(column, strategy)
    return _Filling(time, _step(arguments[1], ctx), strategies, tuple(partition))


def _column(node: exp.Expression, ctx: Context, message: str) -> Value:
    value = bind_value(node, ctx) if isinstance(node, exp.Column) else None
    if value is None or value.finish().column is None:
        raise ctx.error("INVALID_PARAMETER", message, node)
    return value


def _strategy(name: str, node: exp.Expression, ctx: Context) -> tuple[str, str]:
    """The id of a column, and the way in which it is filled."""
    if name not in _STRATEGIES:
        message = (
            f"Unsupported fill strategy: {name}" if name else "Fill strategy must be a function call like LOCF(col)"
        )
        raise ctx.error("INVALID_PARAMETER", message, node, hint="There are LOCF, INTERPOLATE, KEEPNULL, PARTITION_BY.")
    if len(node.expressions) != 1:
        raise ctx.error("INVALID_PARAMETER", f"Fill strategy function {name} expects exactly one argument", node)
    value = _column(node.expressions[0], ctx, "Fill strategy argument must be a column reference")
    if name == "interpolate" and not value.type.is_numeric:
        raise ctx.error(
            "DATATYPE_MISMATCH", f"INTERPOLATE only supports numeric types, got {value.type.sql}", node.expressions[0]
        )
    column = value.finish().column
    assert column is not None
    return column, name


def _step(node: exp.Expression, ctx: Context) -> exp.Expression:
    """A constant positive interval. Raises DATATYPE_MISMATCH, INVALID_PARAMETER."""
    if node.find(exp.Column, exp.Query) is not None:
        raise ctx.not_supported("a step of GAP_FILL that is not a constant", node)
    value = bind_value(node, ctx)
    if value.type != INTERVAL and not value.unknown:
        raise ctx.error("DATATYPE_MISMATCH", "the 3rd arg of GAP_FILL should be an interval", node)
    step = duckdb_cast(value.expression, INTERVAL) if value.unknown else value.expression
    try:
        parts = parts_of(step)
    except duckdb.Error:
        parts = None
    if parts is None or not any(parts) or min(parts) < 0:
        raise ctx.error("INVALID_PARAMETER", "the gap fill interval must be positive", node)
    return step


def _filled(relation: Node, filling: _Filling, binding: Binding) -> Node:
    """The rows of the relation and those between them, with new ids in the order of its columns."""
    new, time = binding.new_column, filling.time.finish()
    straight = [c for c in relation.columns if filling.strategies.get(c.id) == "interpolate"]
    order = _order(relation, filling)
    asked = [time, *map(read, straight)]
    after = tuple(new("next", s.type, nullable=True) for s in asked)
    calls = tuple(WindowCall("lead", (s,), 1, None, order, _FROM_START, s.type) for s in asked)
    rows: Node = Window(relation, filling.partition, calls, after, gaps=True)
    times = Scalar(
        steps_between(time.expression, read(after[0]).expression, filling.step, time.type), array_of(time.type)
    )
    steps = new("steps", BIGINT, nullable=True)
    counted = Scalar(fill("len(a0)", times.expression), BIGINT)
    if straight:
        rows = Project(rows, (*rows.columns, steps), (*map(read, rows.columns), counted))
    at, place = new("at", time.type, nullable=True), new("place", BIGINT, nullable=True)
    # a row whose gap has too many steps fails and keeps its place
    rows = Unnest(rows, (times,), (at,), place, outer=True)
    follow = dict(zip((c.id for c in straight), after[1:], strict=True))
    made = []
    for column in relation.columns:
        own = read(column)
        if column.id == time.column:
            made.append(Scalar(fill("coalesce(a0, a1)", column_ref(at.id), own.expression), own.type, own.nullable))
        elif filling.strategies.get(column.id) == "keepnull":
            kept = fill("CASE WHEN a0 > 1 THEN NULL ELSE a1 END", column_ref(place.id), own.expression)
            made.append(Scalar(kept, own.type))
        elif column.id in follow:
            made.append(_between(column, follow[column.id], steps, place))
        else:
            made.append(own)
    outputs = tuple(new(c.name, s.type, s.nullable) for c, s in zip(relation.columns, made, strict=True))
    return Project(rows, outputs, tuple(made))


def _order(relation: Node, filling: _Filling) -> tuple[SortKey, ...]:
    """The time and, for rows of equal times, the key of a table or all columns, so that views and queries agree."""
    time, key = filling.time.finish(), relation.key if isinstance(relation, Scan) else ()
    known = {time, *filling.partition}
    further = [read(c) for c in relation.columns if not key or c.id in key]
    return (
        SortKey(time),
        *(SortKey(s) for s in further if s not in known and s.type.name not in UNORDERED and not s.type.has_map),
    )


def _between(column: Column, follow: Column, steps: Column, place: Column) -> Scalar:
    """The value of a row between a row and the next one."""
    kind = column.type
    own, last, count, at = (column_ref(c.id) for c in (column, follow, steps, place))
    form = _OF_INTEGERS if kind.is_integer else _OF_FLOATS if kind.is_float else _OF_DECIMALS
    value = fill(form.format(kind.duckdb), own, last, count, at)
    whole = fill("CASE WHEN a0 > 1 AND a1 IS NOT NULL THEN a2 ELSE a3 END", at, last, value, own)
    return Scalar(whole, kind, column.nullable)
