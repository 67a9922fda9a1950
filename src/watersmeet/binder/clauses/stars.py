"""`*`, `t.*` and `* EXCEPT (…)` in a select list, and the columns that they stand for."""

from __future__ import annotations

from sqlglot import exp

from watersmeet.binder.clauses.sources import check_arguments
from watersmeet.binder.context.rules import DialectRules
from watersmeet.binder.context.scope import Scope, ScopeColumn, unknown_source
from watersmeet.dialects.tree.queries import name_of, place_of
from watersmeet.errors import did_you_mean, error


def star_of(node: exp.Expression) -> exp.Star | None:
    """The star of `*` or `t.*`."""
    if isinstance(node, exp.Star):
        return node
    if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
        return node.this
    return None


def expanded(star: exp.Star, node: exp.Expression, scope: Scope, text: str, rules: DialectRules) -> list[ScopeColumn]:
    """The columns of the item `node`, which is `star`, or a relation with `star`.

    UNDEFINED_RELATION, SYNTAX_ERROR, errors of `DialectRules.starred`.
    """
    check_arguments(star, frozenset({"except_", "except"}), text, "*")
    if isinstance(node, exp.Column):
        qualifier = scope.qualifier(node)
        table = scope.table(*qualifier)
        if table is None:
            raise error(
                "UNDEFINED_RELATION",
                unknown_source(".".join(qualifier), node),
                sql=text,
                span=place_of(node),
                hint=did_you_mean(".".join(qualifier), scope.aliases(len(qualifier))),
            )
        columns = list(table.columns)
    elif not scope.tables:
        raise error("SYNTAX_ERROR", "SELECT * with no tables specified is not valid", sql=text, span=place_of(node))
    else:
        columns = list(scope.visible)
    dropped = [
        name_of(i.this if isinstance(i, exp.Column) else i)
        for i in star.args.get("except_") or star.args.get("except") or []
    ]
    return [c for c in rules.starred(columns, node, text) if c.name not in dropped and not c.unlisted]
