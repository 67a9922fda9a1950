"""What columns and expressions are called when a row is explained: as in the view's own SQL, as far as that goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sqlglot import exp

from watersmeet.algebra.bounded import PastScan, Recursion
from watersmeet.algebra.nodes import Aggregate, Expand, Node, Project, Scan, SortKey, Union, Unnest, Window
from watersmeet.algebra.scalars import AggregateCall, Scalar, conjuncts
from watersmeet.algebra.trees import walk
from watersmeet.expressions.casts import as_written

Names = Mapping[str, str]
#: The function that makes NULL of an error.
TRY: Final = "TRY"

#: Columns of what came to a relation, beside its own.
_ADDED: Final = {
    "#epoch": "newest commit",
    "#sequence": "newest row",
    "#commit": "its commit",
    "#from": "the first commit with it",
    "#until": "the first commit without it",
}
_UNNAMED: Final = "?column?"


def names_of(tree: Node, past: Mapping[str, str]) -> dict[str, str]:
    """The names of all columns in a tree, by their ids. past: by id, the relations of its scans of the past."""
    found: dict[str, str] = {}
    for node in reversed(list(walk(tree))):
        found.update(_own(node, found, past))
    return found


def _own(node: Node, names: Names, past: Mapping[str, str]) -> dict[str, str]:
    if isinstance(node, Scan):
        return {c.id: f"{node.relation_name}.{c.name}" for c in node.outputs}
    if isinstance(node, PastScan):
        name = past.get(node.relation_id, node.relation_id)
        return {c.id: _ADDED.get(c.name, f"{name}.{c.name.replace('#', '_')}") for c in node.outputs}
    if isinstance(node, Project):
        pairs = zip(node.outputs, node.exprs, strict=True)
        return {c.id: expression_text(e, names) for c, e in pairs if c.id not in names}
    if isinstance(node, Aggregate):
        texts = [*(expression_text(k, names) for k in node.keys), *(_call(c, names) for c in node.calls)]
        return {c.id: t for c, t in zip(node.outputs, texts, strict=True) if c.id not in names}
    if isinstance(node, Window):
        return {c.id: call.function + "()" for c, call in zip(node.outputs, node.calls, strict=True)}
    if isinstance(node, Expand):
        keys = (expression_text(k, names) for k in node.keys)
        return {c.id: t for c, t in zip(node.made, (*keys, "the number of the grouping set"), strict=True)}
    if isinstance(node, Unnest):
        texts = [f"unnest({expression_text(a, names)})" for a in node.arrays]
        return {c.id: t for c, t in zip(node.made, (*texts, "ordinality"), strict=False)}
    if isinstance(node, (Recursion, Union)):
        return {c.id: c.name for c in node.outputs if c.id not in names}
    return {c.id: c.name for c in node.columns if c.id not in names} if not node.inputs else {}


def _call(call: AggregateCall, names: Names) -> str:
    inner = "*" if call.argument is None else expression_text(call.argument, names)
    condition = "" if call.filter is None else f" FILTER (WHERE {expression_text(call.filter, names)})"
    return f"{call.function}({'DISTINCT ' if call.distinct else ''}{inner}){condition}"


def expression_text(scalar: Scalar, names: Names) -> str:
    """An expression for people: without the casts that the binder has added around columns and constants."""
    node = scalar.expression.copy()
    root = exp.Paren(this=node)
    for tried in list(root.find_all(exp.Anonymous)):
        if tried.this == TRY:
            tried.replace(tried.expressions[0])
    for made in list(root.find_all(exp.Case, exp.Cast)):
        if (written := as_written(made)) is not None:
            made.replace(written)
    for cast in list(root.find_all(exp.Cast))[::-1]:
        inner = cast.this.unnest()
        if isinstance(inner, exp.Literal) and cast.is_type("interval"):
            cast.replace(exp.Var(this=f"INTERVAL {inner.sql()}"))
        elif isinstance(inner, exp.Literal) and inner.is_string and cast.is_type(*exp.DataType.NUMERIC_TYPES):
            cast.replace(exp.Literal.number(inner.name))
        elif isinstance(inner, (exp.Column, exp.Literal, exp.Null, exp.Binary, exp.Neg, exp.Boolean)):
            cast.replace(cast.this)
    for column in list(root.find_all(exp.Column)):
        column.replace(exp.Var(this=names.get(column.name, column.name)))
    for paren in list(root.find_all(exp.Paren)):
        is_call = isinstance(paren.this, exp.Func) and not isinstance(paren.this, exp.Binary)
        if (is_call or isinstance(paren.this, (exp.Var, exp.Literal, exp.Paren))) and paren is not root:
            paren.replace(paren.this)
    return str(root.this.unnest().sql(dialect="duckdb"))


def conditions_text(parts: Sequence[Scalar], names: Names) -> str:
    """Conditions that hold together."""
    flat = [c for p in parts for c in conjuncts(p)]
    return " AND ".join(_in_parentheses(c, expression_text(c, names)) for c in flat)


def _in_parentheses(part: Scalar, text: str) -> str:
    return f"({text})" if isinstance(part.expression, exp.Or) else text


def order_text(keys: Sequence[SortKey], names: Names) -> str:
    """The keys of an order."""
    return ", ".join(f"{expression_text(k.value, names)}{' DESC' if k.descending else ''}" for k in keys)


def named(name: str) -> str | None:
    """A column's own name; None if its query gives it none."""
    return None if name == _UNNAMED else name
