"""Queries: dispatches to SELECT, set operations and VALUES, and binds what may follow them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sqlglot import exp

from watersmeet.algebra.nodes import Node, Project
from watersmeet.algebra.trees import read
from watersmeet.binder.clauses.arrival import arrivals
from watersmeet.binder.clauses.order_limit import ended
from watersmeet.binder.clauses.relations import named_rows
from watersmeet.binder.clauses.sources import (
    QUERY_PARTS,
    alias_of,
    bind_values,
    check_arguments,
)
from watersmeet.binder.context.binding import Bound, BoundQuery, Cte, Environment, OutputColumn, check_alias_list
from watersmeet.binder.context.rules import Binding, BindQuery
from watersmeet.binder.dialects.registry import rules_of
from watersmeet.binder.queries.selects import Selecting
from watersmeet.binder.queries.setops import bind_set_operation
from watersmeet.binder.sqlfunctions import inlined
from watersmeet.catalog import Catalog
from watersmeet.dialects.tree.nodes import kind_of
from watersmeet.dialects.tree.queries import depth_checked, name_of, place_of
from watersmeet.errors import error
from watersmeet.values.dialectnames import DEFAULT_DIALECT
from watersmeet.values.types import Field


def named_queries(clause: exp.Expression, text: str) -> Iterator[tuple[str, tuple[str, ...], exp.Expression]]:
    """The queries of a WITH in order: name, column list, tree.

    DUPLICATE_OBJECT; FEATURE_NOT_SUPPORTED for anything but a query.
    """
    own: set[str] = set()
    for node in clause.expressions:
        name, names = alias_of(node)
        assert name is not None
        if name in own:
            raise error(
                "DUPLICATE_OBJECT",
                f'WITH query name "{name}" specified more than once',
                sql=text,
                span=place_of(node.args["alias"]),
            )
        own.add(name)
        if not isinstance(node.this, (exp.Query, exp.Values)):
            raise Environment(text).not_supported("a data-modifying statement in WITH", node)
        yield name, names, node.this


def names_itself(query: exp.Expression, name: str) -> bool:
    """True if a query of WITH reads its own name."""
    return any(isinstance(t.this, exp.Identifier) and name_of(t.this) == name for t in query.find_all(exp.Table))


def with_ctes(query: exp.Expression, env: Environment, *, bounded: bool) -> Environment:
    """The environment inside a query, with the CTEs of its own WITH. bounded: whether the query ends, so that they may
    be recursive.
    """
    clause = query.args.get("with_")
    if clause is None:
        return env
    ctes = dict(env.ctes)
    for name, names, node in named_queries(clause, env.text):
        recursive = bool(clause.args.get("recursive")) and names_itself(node, name)
        if recursive and not bounded:
            raise env.not_supported(
                "WITH RECURSIVE in a view",
                clause,
                hint="A query can be recursive, also over a view: SELECT it there. In a view write the steps "
                "as joins, with UNION ALL between them.",
            )
        recursive = recursive and isinstance(node, exp.Union)
        ctes[name] = Cte(node, names, Environment(env.text, dict(ctes), env.outer), recursive)
    return Environment(env.text, ctes, env.outer)


def check_unnamed(query: exp.Expression, env: Environment, binding: Binding, bind: BindQuery) -> None:
    """Raises the errors in CTEs that the query, bound in `env`, does not name. It depends on what they read, too.

    The last ones come first: they may name others.
    """
    clause = query.args.get("with_")
    for node in [] if clause is None else reversed(clause.expressions):
        name, names = alias_of(node)
        cte = env.ctes[name or ""]
        if cte not in binding.collected.named:
            bound = named_rows(str(name), cte, replace(binding, fills=[]), bind)
            check_alias_list(names, bound.width, f'table "{name}"', env.text, place_of(node))


def bind_query(
    query: exp.Expression,
    catalog: Catalog,
    text: str,
    dialect: str = DEFAULT_DIALECT,
    *,
    column_names: Sequence[str] = (),
    needs_names: bool = True,
    moment: int = 0,
    closing_us: int | None = None,
    arriving: bool = False,
) -> BoundQuery:
    """The meaning of a view's query.

    text: the text that places in `query` refer to.
    column_names: those of CREATE VIEW v (…).
    moment, closing_us: see `Binding`.
    arriving: with the columns that order its rows by arrival, if the order is known.
    needs_names: False if unnamed output columns may stay `?column?` and names may repeat.

    Raises UNDEFINED_*, AMBIGUOUS_COLUMN, DATATYPE_MISMATCH, COLUMN_NOT_GROUPED, EXPRESSION_WITHOUT_NAME,
    DUPLICATE_COLUMN, FEATURE_NOT_SUPPORTED and SYNTAX_ERROR, all with a place.
    """
    rules = rules_of(dialect)
    reading = rules.reading(query)
    binding = Binding(catalog, rules, rules_of, moment, part=reading.part, still=reading.still, closing_us=closing_us)
    found = binding.collected
    with depth_checked(text):
        query, functions = inlined(query, catalog, dialect, text)
        bound = bind(query, Environment(text), binding)
    rules.check_query(query, bound.relation, text)
    own = [o for o in bound.outputs if not o.hidden]
    names = [o.column.name for o in bound.outputs if o.hidden] + _names(
        own, column_names, text, needs_names=needs_names
    )
    tree = _named(bound.relation, names)
    columns = tuple(Field(c.name, c.type, c.nullable) for c in tree.columns)
    aged = arrivals(tree, binding, joined=True) if arriving else None
    limit = min(found.limits, default=rules.semantics.join_max_buffered_bytes)
    return BoundQuery(
        tree if aged is None else aged[0],
        columns,
        tuple(found.notices),
        tuple(binding.depends_on),
        limit,
        found.most_join_rows,
        bound.extension,
        rules.rowtime(tree),
        hidden=len(own) < len(bound.outputs),
        fills=tuple(binding.fills),
        delayed=found.delayed,
        functions=functions,
        age=() if aged is None else aged[1],
    )


def bind(node: exp.Expression, env: Environment, binding: Binding) -> Bound:
    """A query of any form, with its settings, which also hold in nested queries."""
    node, own = binding.rules.settings(node, env.text)
    if own:
        binding = binding.rules.within(own, binding)
    return _among_names(node, env, binding)


def _among_names(node: exp.Expression, env: Environment, binding: Binding) -> Bound:
    env = with_ctes(node, env, bounded=binding.rules.bounded)
    found = _of_kind(node, env, binding)
    check_unnamed(node, env, binding, bind)
    return found


def _of_kind(node: exp.Expression, env: Environment, binding: Binding) -> Bound:
    if not isinstance(node, exp.Select):
        check_arguments(node, QUERY_PARTS, env.text, "a query")
    if isinstance(node, exp.Select):
        return Selecting(node, env, binding, bind).bound()
    if isinstance(node, (exp.Subquery, exp.Paren)):
        return ended(bind(node.this, env, binding), node, env, binding)
    if isinstance(node, exp.SetOperation):
        found = binding.rules.set_operation(node, env, binding, bind, bind_set_operation)
        return ended(found, node, env, binding)
    if isinstance(node, exp.Values):
        return ended(bind_values(node, env, binding), node, env, binding)
    whose = "" if binding.rules.bounded else " of a view"
    raise env.not_supported(f"{kind_of(node).__name__.upper()} as a query{whose}", node)


def _names(outputs: Sequence[OutputColumn], column_names: Sequence[str], text: str, *, needs_names: bool) -> list[str]:
    if len(column_names) > len(outputs):
        raise error(
            "SYNTAX_ERROR",
            "the view has more column names than columns",
            sql=text,
            detail=f"It has {len(column_names)} names and {len(outputs)} columns.",
        )
    names = [*column_names, *[o.column.name for o in outputs[len(column_names) :]]]
    if not needs_names:
        return names
    for i, output in enumerate(outputs):
        if not output.named and i >= len(column_names):
            raise error(
                "EXPRESSION_WITHOUT_NAME",
                f"An alias must be specified for the {_ordinal(i + 1)} expression (counting from 1) in result relation",
                sql=text,
                span=output.span,
                hint="Write expression AS name.",
            )
        if names[i] in names[:i]:
            raise error(
                "DUPLICATE_COLUMN",
                f'column "{names[i]}" specified more than once',
                sql=text,
                span=output.span,
                hint="Give one of them an alias with AS.",
            )
    return names


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}" + {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


def _named(tree: Node, names: Sequence[str]) -> Node:
    columns = tree.columns
    if [c.name for c in columns] == list(names):
        return tree
    outputs = tuple(replace(c, name=n) for c, n in zip(columns, names, strict=True))
    if isinstance(tree, Project):
        return replace(tree, outputs=tuple(replace(o, name=n) for o, n in zip(tree.outputs, names, strict=True)))
    return Project(tree, outputs, tuple(read(c) for c in columns))
