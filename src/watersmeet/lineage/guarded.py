"""Expressions that fail for some rows, in a view: the innermost part that fails is NULL (docs/SEMANTICS.md).

A query that ends fails. So each part of the expressions of a view's query that can fail is put inside of TRY, as
`kernel.evaluation.tolerant` does.
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
#: They don't fail by themselves, or are no values.
_OPEN: Final = (exp.Paren, exp.Connector, exp.Not, exp.If, exp.PropertyEQ, exp.Query)
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
    """The expression with each part that can fail inside of TRY."""
    root = exp.Paren(this=node.copy())
    for part in list(root.this.walk())[::-1]:  # operands before what is computed from them
        if _can_fail(part):
            made = exp.Anonymous(this=TRY)
            part.replace(made)
            made.append("expressions", part)
    return root.this.copy()


def _can_fail(node: exp.Expression) -> bool:
    if not isinstance(node, exp.Condition) or isinstance(node, _OPEN) or isinstance(node.parent, exp.Escape):
        return False
    is_test = isinstance(node, exp.Is) and isinstance(node.expression, (exp.Null, exp.Boolean))
    return not is_test and not _is_safe(node)


def _is_safe(node: exp.Expression) -> bool:
    if isinstance(node, _COMPARES):
        return _is_safe(node.left) and _is_safe(node.right)
    if isinstance(node, exp.Paren):
        return _is_safe(node.this)
    return isinstance(node, _NEVER_FAILS)
