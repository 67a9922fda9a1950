"""The translation of a bounded query: dispatch, WITH, set operations, the names at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sqlglot import exp

from watersmeet.batch.constants import values
from watersmeet.batch.scalars import ordered
from watersmeet.batch.selects import Selecting, limits, output_position
from watersmeet.batch.sources import Sources
from watersmeet.batch.state import (
    Batch,
    Cte,
    Environment,
    Output,
    Translated,
    aliased,
    column,
    not_supported,
    table_alias,
)
from watersmeet.binder.ctes import named_queries, names_itself
from watersmeet.binder.dialects.registry import rules_of
from watersmeet.binder.scope import Scope
from watersmeet.binder.sources import QUERY_PARTS, check_arguments
from watersmeet.binder.sqlfunctions import inlined
from watersmeet.catalog import Catalog, Relation
from watersmeet.dialectnames import DEFAULT_DIALECT
from watersmeet.dialects.depth import depth_checked
from watersmeet.dialects.nodes import kind_of
from watersmeet.dialects.queries import place_of
from watersmeet.dialects.schemas import with_current_names
from watersmeet.dialects.statements import QuerySql
from watersmeet.errors import error
from watersmeet.expressions.context import Context
from watersmeet.expressions.values import common_type, duckdb_cast
from watersmeet.types import Field, SqlType


def to_duckdb(
    query: exp.Expression,
    catalog: Catalog,
    text: str,
    dialect: str = DEFAULT_DIALECT,
    *,
    relation_name: Callable[[Relation], str] = lambda r: r.shown,
    files: bool = True,
) -> QuerySql:
    """DuckDB SQL of a bounded query.

    text: the text that the places in `query` are in. relation_name: the DuckDB relation that holds the content of
    a table or materialized view; its columns are called as the relation's are. files: whether it may read files. The
    result's columns have the names (maybe repeated) and types of `columns`. Raises the errors of `bind_query`.
    """
    rules = rules_of(dialect)
    batch = Batch(catalog, relation_name, rules, files)
    with depth_checked(text):
        query, functions = inlined(query, catalog, dialect, text)
        query = with_current_names(query, catalog, rules.semantics)
        found = translate(query, Environment(text), batch)
        sql = _renamed(found).sql(dialect="duckdb", copy=False)
    columns = tuple(Field(o.name, o.type, o.nullable) for o in found.outputs)
    return QuerySql(sql, columns, tuple(batch.depends_on), tuple(batch.named), functions)


def _renamed(found: Translated) -> exp.Expression:
    """The query under the user's names: in place, so that the order of its rows stays."""
    query = found.query
    if isinstance(query, exp.Select):
        for item, output in zip(query.expressions, found.outputs, strict=True):
            item.set("alias", exp.to_identifier(output.name, quoted=True))
        return query
    picked = [exp.alias_(column("q", o.alias), o.name, quoted=True) for o in found.outputs]
    return exp.Select(expressions=picked, from_=exp.From(this=aliased(query, "q")))


def translate(node: exp.Expression, env: Environment, batch: Batch) -> Translated:
    """A query of any form, with its settings, which are of the queries inside of it, too."""
    node, own = batch.rules.settings(node, env.text)
    return _translated(node, env, replace(batch, settings={**batch.settings, **own}) if own else batch)


def _translated(node: exp.Expression, env: Environment, batch: Batch) -> Translated:
    env, ctes, recursive = _with(node, env, batch)
    made = _body(node, env, batch)
    if ctes:
        inner = made.query.args.get("with_")
        if inner is not None:
            ctes += inner.expressions
            recursive = recursive or bool(inner.args.get("recursive"))
        made.query.set("with_", exp.With(expressions=ctes, recursive=recursive or None))
    return made


def _body(node: exp.Expression, env: Environment, batch: Batch) -> Translated:
    if not isinstance(node, exp.Select):
        check_arguments(node, QUERY_PARTS, env.text, "a query")
    if isinstance(node, (exp.Subquery, exp.Paren)):
        inner = translate(node.this, env, batch)
        if isinstance(node, exp.Subquery) and any(node.args.get(k) for k in ("order", "limit", "offset")):
            return _ended(node, inner, env, batch)
        return inner
    if isinstance(node, exp.Select):
        return Selecting(node, env, batch, translate).translated()
    if isinstance(node, exp.SetOperation):
        return _ended(node, _set_operation(node, env, batch), env, batch)
    if isinstance(node, exp.Values):
        return _ended(node, values(node, env), env, batch)
    raise not_supported(f"{kind_of(node).__name__.upper()} as a query", node, env)


def _ended(node: exp.Expression, found: Translated, env: Environment, batch: Batch) -> Translated:
    """ORDER BY, LIMIT and OFFSET behind a set operation or parentheses: over its output columns."""
    ctx = Sources(env, batch, translate).context(Scope(outer=env.outer), "ORDER BY")
    made = limits(node, ctx, env)
    order = node.args.get("order")
    if order is None and not made:
        return found
    if order is not None:
        keys = []
        for item in order.expressions:
            position = output_position(item.this, found.outputs, ctx)
            if position is None:
                raise ctx.error(
                    "FEATURE_NOT_SUPPORTED",
                    "ORDER BY of a set operation takes names and positions of its columns",
                    item.this,
                )
            keys.append(ordered(item, column("q", found.outputs[position].alias)))
        made["order"] = exp.Order(expressions=keys)
    picked = [exp.alias_(column("q", o.alias), o.alias, quoted=True) for o in found.outputs]
    query = exp.Select(expressions=picked, from_=exp.From(this=aliased(found.query, "q")), **made)
    return Translated(query, found.outputs)


def _with(node: exp.Expression, env: Environment, batch: Batch) -> tuple[Environment, list[exp.CTE], bool]:
    clause = node.args.get("with_")
    if clause is None:
        return env, [], False
    recursive = bool(clause.args.get("recursive"))
    ctes = dict(env.ctes)
    made = []
    for name, names, query in named_queries(clause, env.text):
        here = Environment(env.text, dict(ctes), env.outer)
        internal = batch.alias()
        if recursive and isinstance(query, exp.Union) and names_itself(query, name):
            found = _recursive(query, name, internal, names, here, batch)
        else:
            found = translate(query, here, batch)
        outputs = _renamed_outputs(found.outputs, names)
        alias = table_alias(internal, [o.alias for o in outputs])
        made.append(exp.CTE(this=found.query, alias=alias))
        ctes[name] = Cte(internal, outputs)
    return Environment(env.text, ctes, env.outer), made, recursive


def _renamed_outputs(outputs: Sequence[Output], names: Sequence[str]) -> tuple[Output, ...]:
    shown = [*names, *[o.name for o in outputs[len(names) :]]]
    return tuple(Output(o.alias, n, o.type, o.nullable, span=o.span) for o, n in zip(outputs, shown, strict=True))


def _recursive(
    node: exp.Union, name: str, internal: str, names: Sequence[str], env: Environment, batch: Batch
) -> Translated:
    """`anchor UNION [ALL] step`: the step sees the columns of the anchor."""
    anchor = translate(node.this, env, batch)
    outputs = tuple(Output(o.alias, o.name, o.type, True) for o in anchor.outputs)
    inside = Environment(env.text, {**env.ctes, name: Cte(internal, _renamed_outputs(outputs, names))}, env.outer)
    step = translate(node.expression, inside, batch)
    kinds = [o.type for o in outputs]
    _check_width(anchor, step, node, env)
    query = exp.Union(this=anchor.query, expression=_converted(step, kinds), distinct=bool(node.args.get("distinct")))
    return Translated(query, outputs)


def _check_width(left: Translated, right: Translated, node: exp.SetOperation, env: Environment) -> None:
    if len(left.outputs) != len(right.outputs):
        word = kind_of(node).__name__.upper()
        raise error(
            "SYNTAX_ERROR",
            f"each {word} query must have the same number of columns",
            sql=env.text,
            span=place_of(node.expression),
            detail=f"They have {len(left.outputs)} and {len(right.outputs)}.",
        )


def _set_operation(node: exp.SetOperation, env: Environment, batch: Batch) -> Translated:
    left, right = translate(node.this, env, batch), translate(node.expression, env, batch)
    _check_width(left, right, node, env)
    word = kind_of(node).__name__.upper()
    outputs, kinds = [], []
    for i, (a, b) in enumerate(zip(left.outputs, right.outputs, strict=True)):
        known = [o.type for o in (a, b) if not o.unknown]
        kind = common_type(known) if known else a.type
        if kind is None:
            raise Context(env.text).error(
                "DATATYPE_MISMATCH", f"{word} types {a.type.sql} and {b.type.sql} cannot be matched", node.expression
            )
        kinds.append(kind)
        outputs.append(Output(f"c{i}", a.name, kind, a.nullable or b.nullable, a.unknown and b.unknown, a.span))
    query = kind_of(node)(
        this=_converted(left, kinds), expression=_converted(right, kinds), distinct=bool(node.args.get("distinct"))
    )
    return Translated(query, tuple(outputs))


def _converted(part: Translated, kinds: Sequence[SqlType]) -> exp.Expression:
    """A side of a set operation with the types of the whole, in parentheses if it has an order or a limit."""
    query = part.query
    if any(o.type != k or o.alias != f"c{i}" for i, (o, k) in enumerate(zip(part.outputs, kinds, strict=True))):
        table = "q"
        picked = [
            exp.alias_(duckdb_cast(column(table, o.alias), k), f"c{i}", quoted=True)
            for i, (o, k) in enumerate(zip(part.outputs, kinds, strict=True))
        ]
        return exp.Select(expressions=picked, from_=exp.From(this=aliased(query, table)))
    return exp.Subquery(this=query)
