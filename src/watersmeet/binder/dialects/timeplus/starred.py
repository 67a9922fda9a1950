"""Items of a select list that stand for several columns: `* REPLACE (…)`, `columns('regexp')`, `* APPLY(max)` and
`untuple(t)`. They become one item for each column before the select list is bound.

ClickHouse, "SELECT", "Dynamic column selection", "Select modifiers"; "Tuple functions", "untuple".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from watersmeet.binder.clauses.sources import expanded, star_of
from watersmeet.binder.context.binding import Environment
from watersmeet.binder.context.rules import DialectRules
from watersmeet.binder.context.scope import Scope, ScopeColumn, ScopeContext
from watersmeet.dialects.timeplus.functions import with_functions
from watersmeet.dialects.tree.nodes import ImpliedAlias
from watersmeet.dialects.tree.queries import name_of, node_error, node_span
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.errors import did_you_mean
from watersmeet.expressions.scalars import bind_value
from watersmeet.values.spans import own_span, set_span

_UNTUPLE: Final = "untuple"
_COLUMNS: Final = "columns"
#: A column as an item: its name, and its value.
Item = tuple[str, exp.Expression]


def with_items(node: exp.Select, scope: Scope, env: Environment, rules: DialectRules) -> exp.Select:
    """The SELECT with an item for each column; the node itself without such items."""
    if not any(map(_is_several, node.expressions)):
        return node
    made = node.copy()
    found: list[exp.Expression] = []
    for item in made.expressions:
        if not _is_several(item):
            found.append(item)
            continue
        for name, value in _items(_plain(item), scope, env, rules):
            alias = exp.alias_(value, name, quoted=True)
            set_span(alias, node_span(item))
            found.append(alias)
    made.set("expressions", found)
    return made


def _plain(item: exp.Expression) -> exp.Expression:
    """The item without the name that its text gives it."""
    return item.this if isinstance(item, ImpliedAlias) else item


def _is_several(node: exp.Expression) -> bool:
    item = _plain(node)
    if isinstance(item, exp.Apply) or _called(item) in (_UNTUPLE, _COLUMNS):
        return True
    if isinstance(item, exp.Dot) and _called(item.expression) == _COLUMNS:
        return True
    star = star_of(item)
    return star is not None and bool(star.args.get("replace"))


def _called(item: exp.Expression) -> str:
    return str(item.this).lower() if isinstance(item, exp.Anonymous) else ""


def _items(item: exp.Expression, scope: Scope, env: Environment, rules: DialectRules) -> list[Item]:
    if isinstance(item, exp.Apply):
        return [_applied(i, item, env) for i in _items(item.this, scope, env, rules)]
    if _called(item) == _UNTUPLE:
        return _untupled(item, scope, env)
    if _called(item) == _COLUMNS:
        return _matching(item, expanded(exp.Star(), exp.Star(), scope, env.text, rules), scope, env)
    if isinstance(item, exp.Dot):
        star = exp.Column(this=exp.Star(), table=item.this.copy())
        set_span(star, node_span(item))
        return _matching(item.expression, expanded(star.this, star, scope, env.text, rules), scope, env)
    star = star_of(item)
    if star is None:
        raise not_supported("APPLY of this expression", env.text, node_span(item), hint="Write * APPLY(f).")
    replaced = {name_of(r.args["alias"]): r.this for r in star.args.get("replace") or [] if isinstance(r, exp.Alias)}
    plain = star.copy()
    plain.set("replace", None)
    columns = expanded(plain, item if isinstance(item, exp.Column) else plain, scope, env.text, rules)
    names = [c.name for c in columns]
    for name, value in replaced.items():
        if name not in names:
            hint = did_you_mean(name, names)
            raise node_error(env.text, value, "UNDEFINED_COLUMN", f'column "{name}" does not exist', hint=hint)
    return [(c.name, replaced[c.name].copy() if c.name in replaced else _column(c, scope)) for c in columns]


def _matching(item: exp.Expression, columns: Sequence[ScopeColumn], scope: Scope, env: Environment) -> list[Item]:
    """The columns whose names contain a match of the pattern."""
    pattern = item.expressions[0] if len(item.expressions) == 1 else item
    if not pattern.is_string:
        raise not_supported("columns(…) of this form", env.text, node_span(item), hint="Write columns('regexp').")
    try:
        regex = re.compile(pattern.name)
    except re.error as err:
        raise node_error(env.text, item, "INVALID_VALUE", f"invalid regular expression: {err}") from None
    found = [(c.name, _column(c, scope)) for c in columns if regex.search(c.name)]
    if not found:
        raise node_error(env.text, item, "UNDEFINED_COLUMN", f"no column matches '{pattern.name}'")
    return found


def _column(column: ScopeColumn, scope: Scope) -> exp.Expression:
    """A reference to a column, with its relation if another one has the same name."""
    same = [c for c in scope.visible if c.name == column.name]
    table = next((t for t in scope.tables if any(c is column for c in t.columns)), None)
    qualifier = table.alias if table is not None and len(same) > 1 else None
    found: exp.Expression = exp.column(
        exp.to_identifier(column.name, quoted=True), exp.to_identifier(qualifier, quoted=True) if qualifier else None
    )
    return found


def _applied(item: Item, node: exp.Apply, env: Environment) -> Item:
    """`max(column)`, or the body of a lambda for the column."""
    name, value = item
    function = node.expression
    if isinstance(function, exp.Lambda) and len(function.expressions) == 1:
        variable = name_of(function.expressions[0])
        body = exp.Paren(this=function.this.copy())
        for inner in [n for n in body.walk() if isinstance(n, (exp.Column, exp.Identifier)) and n.name == variable]:
            if not isinstance(inner.parent, exp.Column):
                inner.replace(value.copy())
        return name, with_functions(body)
    if not isinstance(function, (exp.Var, exp.Column, exp.Identifier, exp.Anonymous)):
        raise not_supported("APPLY of this form", env.text, node_span(node), hint="Write APPLY(f) or APPLY(x -> …).")
    called = str(function.this if isinstance(function, (exp.Var, exp.Anonymous)) else function.name).lower()
    more = [e.copy() for e in function.expressions] if isinstance(function, exp.Anonymous) else []
    call = exp.Anonymous(this=called, expressions=[value])
    if more:
        call.set("parameters", more)
    set_span(call, node_span(node))
    return f"{called}({name})", with_functions(call)


def _untupled(item: exp.Expression, scope: Scope, env: Environment) -> list[Item]:
    """The elements of a tuple, under their names; elements without a name are called 1, 2 and so on."""
    if len(item.expressions) != 1:
        raise node_error(env.text, item, "SYNTAX_ERROR", "untuple takes one tuple")
    kind = bind_value(item.expressions[0].copy(), ScopeContext(env.text, scope, "SELECT")).type
    if kind.name != "struct":
        raise node_error(env.text, item, "DATATYPE_MISMATCH", f"untuple takes a tuple, not {kind.sql}")
    found = []
    for name, _ in kind.fields:
        call = exp.Anonymous(this="$tuple_element", expressions=[item.expressions[0].copy(), exp.Literal.string(name)])
        set_span(call, own_span(item))
        found.append((name, call))
    return found
