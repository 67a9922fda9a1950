"""VALUES of bounded queries."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from watersmeet.batch.scalars import BatchContext
from watersmeet.batch.state import Environment, Output, Translated, column, not_supported, table_alias
from watersmeet.binder.scope import Scope
from watersmeet.dialects.queries import place_of
from watersmeet.expressions.casts import unify
from watersmeet.expressions.scalars import bind_value
from watersmeet.expressions.values import Value, common_type, duckdb_cast
from watersmeet.types import VARCHAR, SqlType


def values(node: exp.Values, env: Environment) -> Translated:
    """`VALUES …` as a query: columns column1, column2 …."""
    ctx = BatchContext(env.text, Scope(outer=env.outer), "VALUES", _no_subquery(env))
    rows = [list(t.expressions) if isinstance(t, exp.Tuple) else [t] for t in node.expressions]
    width = len(rows[0])
    for row in rows:
        if len(row) != width:
            raise ctx.error("SYNTAX_ERROR", "VALUES lists must all be the same length", row[0])
    columns, outputs = [], []
    for i in range(width):
        places = [row[i] for row in rows]
        bound = [bind_value(p, ctx) for p in places]
        settled, kind = _settled(bound, places, ctx)
        columns.append([v.expression for v in settled])
        outputs.append(
            Output(
                f"c{i}",
                f"column{i + 1}",
                kind,
                any(v.nullable for v in settled),
                all(v.unknown for v in bound),
                place_of(places[0]),
            )
        )
    tuples = [exp.Tuple(expressions=list(row)) for row in zip(*columns, strict=True)]
    alias = table_alias("v", [o.alias for o in outputs])
    source = exp.Values(expressions=tuples, alias=alias)
    picked = [exp.alias_(duckdb_cast(column("v", o.alias), o.type), o.alias, quoted=True) for o in outputs]
    return Translated(exp.Select(expressions=picked, from_=exp.From(this=source)), tuple(outputs))


def _settled(cells: list[Value], places: list[exp.Expression], ctx: BatchContext) -> tuple[list[Value], SqlType]:
    """The cells of a column of VALUES with their common type. Bare cells stay so: the whole column is cast once."""
    kinds = {c.type for c in cells if not c.unknown}
    plain = all(c.is_null or c.is_number_literal or (c.unknown and not kinds) for c in cells)
    if not plain:
        values, kind = unify(cells, places, ctx, "VALUES")
        return [_finished(v) for v in values], kind
    found = common_type(list(kinds)) if kinds else VARCHAR
    assert found is not None, "numbers have a common type"
    return cells, found


def _finished(value: Value) -> Value:
    return value if value.exact else Value(value.finish().expression, value.type, value.nullable)


def _no_subquery(env: Environment) -> Callable[[exp.Expression, Scope], Translated]:
    def refuse(node: exp.Expression, _scope: Scope) -> Translated:
        raise not_supported("a subquery in VALUES", node, env)

    return refuse
