"""`table(stream)` and `changelog(stream, key, …)` in FROM (TP-16)."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from watersmeet.algebra.nodes import Node, Scan
from watersmeet.algebra.trees import exactly
from watersmeet.binder.clauses.newest import newest
from watersmeet.binder.clauses.sources import not_supported
from watersmeet.binder.context.binding import Environment, read
from watersmeet.binder.context.rules import Binding
from watersmeet.dialects.timeplus.nodes import StreamTable
from watersmeet.dialects.tree.queries import name_of, place_of
from watersmeet.errors import did_you_mean, error


def check_functions(node: exp.Expression, env: Environment) -> None:
    """JOIN_KIND for both functions on one stream, FEATURE_NOT_SUPPORTED for one on a name of WITH."""
    if not isinstance(node, StreamTable) or not isinstance(node.this, exp.Identifier):
        return
    if node.is_stored and node.keys is not None:
        raise error(
            "JOIN_KIND",
            "The filled join data doesn't support changelog processing",
            sql=env.text,
            span=place_of(node),
            hint="table(stream) of a keyed stream has the last row of each key.",
        )
    named = node.args.get("db") is None and name_of(node.this) in env.ctes
    if named and (node.is_stored or node.keys is not None):
        raise not_supported(
            "table() or changelog() of a query of WITH", node, env, hint="Write it inside the query of WITH."
        )


def changelog(
    tree: Node, node: exp.Expression, places: Sequence[exp.Expression], env: Environment, binding: Binding
) -> Node:
    """The last row of each key, whose columns are named at `places`; a stream that deletes rows itself stays as
    it is.
    """
    if isinstance(tree, Scan) and not tree.append_only and not places:
        return tree
    by_name = {c.name: c for c in tree.columns}
    for place in places:
        if name_of(place) not in by_name:
            raise error(
                "UNDEFINED_COLUMN",
                f'column "{name_of(place)}" does not exist',
                sql=env.text,
                span=place_of(place),
                hint=did_you_mean(name_of(place), by_name),
            )
    found = newest(tree, [read(by_name[name_of(p)]) for p in places], binding)
    if not places or found is None:
        raise not_supported(
            "changelog() of this relation", node, env, hint="Write changelog(stream, key) with an append stream."
        )
    return exactly(found[0], tree.columns)
