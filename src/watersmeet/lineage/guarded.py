"""Expressions that fail for some rows: in a view they are NULL there, as in docs/SEMANTICS.md, "Errors in data".

A query that ends fails. So the query of a view is asked with its expressions inside of TRY: the whole, and in AND, OR
and the conditions of CASE each part.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Final

from sqlglot import exp

from watersmeet.algebra.nodes import AggregateCall, KeyPair, Node, SortKey, WindowCall, WindowFrame
from watersmeet.algebra.scalars import Scalar
from watersmeet.lineage.names import TRY
from watersmeet.lineage.trees import Explained

_PARTS: Final = (AggregateCall, KeyPair, Node, SortKey, WindowCall, WindowFrame)
_NEVER_FAILS: Final = (exp.Column, exp.Literal, exp.Null, exp.Boolean)
_COMPARES: Final = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Is)


def guarded(explained: Explained) -> Explained:
    """The same query with NULL where an expression fails."""
    return replace(
        explained,
        tree=_guarded(explained.tree),
        then=_guarded(explained.then),
        once=_guarded(explained.once),
        ties={_guarded(order): ids for order, ids in explained.ties.items()},
    )


def _guarded(value: Any) -> Any:
    """A node or a part of one with all its expressions inside of TRY."""
    if isinstance(value, Scalar):
        return _guard(value)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(map(_guarded, value))
    if isinstance(value, _PARTS):
        changed = {f.name: _guarded(getattr(value, f.name)) for f in fields(value)}  # type: ignore[arg-type]
        return replace(value, **changed)  # type: ignore[type-var]
    return value


def _guard(scalar: Scalar) -> Scalar:
    return Scalar(_tried(scalar.expression), scalar.type)


def _tried(node: exp.Expression) -> exp.Expression:
    """The expression, NULL where it fails."""
    if isinstance(node, exp.Paren):
        return exp.paren(_tried(node.this), copy=False)
    if isinstance(node, exp.Connector):
        return type(node)(this=_operand(node.this), expression=_operand(node.expression))
    if _is_safe(node):
        return node.copy()
    return exp.Anonymous(this=TRY, expressions=[_by_parts(node)])


def _operand(node: exp.Expression) -> exp.Expression:
    made = _tried(node)
    return exp.paren(made, copy=False) if isinstance(made, exp.Connector) and not isinstance(node, exp.Paren) else made


def _by_parts(node: exp.Expression) -> exp.Expression:
    """The expression with the parts of its AND, OR and CASE conditions tried by themselves."""
    made = node.copy()
    for branch in list(made.find_all(exp.If)):
        branch.set("this", _tried(branch.this))
    for connector in list(made.find_all(exp.Connector)):
        if connector.find_ancestor(exp.Connector) is None:
            connector.replace(exp.paren(_tried(connector), copy=False))
    return made


def _is_safe(node: exp.Expression) -> bool:
    if isinstance(node, _COMPARES):
        return _is_safe(node.left) and _is_safe(node.right)
    if isinstance(node, exp.Paren):
        return _is_safe(node.this)
    return isinstance(node, _NEVER_FAILS)
