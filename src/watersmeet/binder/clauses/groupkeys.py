"""Keys of GROUP BY that refer to items of the select list, by alias or by number.

PostgreSQL, "SELECT", GROUP BY clause.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from watersmeet.binder.clauses.stars import star_of
from watersmeet.binder.context.scope import Scope
from watersmeet.dialects.tree.queries import name_of


def aliased(node: exp.Expression, items: Sequence[exp.Expression], scope: Scope) -> exp.Expression | None:
    """The expression of the item whose alias the key is; None if there is none, or if FROM has such a column, which
    comes first.
    """
    if not isinstance(node, exp.Column) or node.args.get("table") is not None:
        return None
    name = name_of(node.this)
    if any(c.name == name for c in scope.visible) or (scope.stream is not None and scope.stream.rowtime.name == name):
        return None
    return next((e.this for e in items if isinstance(e, exp.Alias) and name_of(e.args["alias"]) == name), None)


def spelled_out(group: exp.Group, items: Sequence[exp.Expression], scope: Scope) -> exp.Group:
    """GROUP BY with expressions in place of aliases, and of numbers without a star before their items."""
    made = group.copy()
    made.set("expressions", [_spelled(key, items, scope).copy() for key in group.expressions])
    return made


def _spelled(key: exp.Expression, items: Sequence[exp.Expression], scope: Scope) -> exp.Expression:
    while isinstance(key, exp.Paren):
        key = key.this
    if isinstance(key, exp.Literal) and key.is_int and 1 <= int(key.name) <= len(items):
        found = items[: int(key.name)]
        if all(star_of(e) is None for e in found):
            return found[-1].this if isinstance(found[-1], exp.Alias) else found[-1]
    return aliased(key, items, scope) or key
