"""WITH and the queries that it names, for views and for queries that end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sqlglot import exp

from watersmeet.binder.clauses.named import named_rows
from watersmeet.binder.clauses.sources import alias_of, not_supported
from watersmeet.binder.context.binding import Cte, Environment, check_alias_list
from watersmeet.binder.context.rules import Binding, BindQuery
from watersmeet.dialects.tree.queries import name_of, place_of
from watersmeet.errors import error


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
            raise not_supported("a data-modifying statement in WITH", node, Environment(text))
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
            raise not_supported(
                "WITH RECURSIVE in a view",
                clause,
                env,
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
