"""What a NULL does to an expression: the ground on which outer joins become inner ones."""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from watersmeet.algebra.scalars import Scalar

_NONE: Final = frozenset[str]()

#: Nodes that are NULL if any of their operands is.
_STRICT: Final = (
    exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.Paren,
    exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Like, exp.ILike,
    exp.Lower, exp.Upper, exp.Length, exp.Abs, exp.Floor, exp.Ceil, exp.Not,
)  # fmt: skip


def strict_columns(node: exp.Expression) -> frozenset[str]:
    """Columns of which each alone makes the expression NULL when it is NULL. Unknown functions: none.

    >>> from sqlglot import parse_one
    >>> sorted(strict_columns(parse_one("CAST(a + 1 AS INT) * COALESCE(b, c)")))
    ['a']
    """
    if isinstance(node, exp.Column):
        return frozenset([node.name])
    if isinstance(node, exp.Cast):
        return strict_columns(node.this)
    if isinstance(node, exp.Coalesce):
        operands = [node.this, *node.expressions]
        return frozenset.intersection(*[strict_columns(o) for o in operands])
    if isinstance(node, (exp.JSONExtract, exp.JSONExtractScalar, exp.Dot, exp.Bracket, exp.In)):
        return strict_columns(node.this)
    if isinstance(node, exp.Between):
        return strict_columns(node.this)
    if isinstance(node, _STRICT):
        return _NONE.union(*[strict_columns(o) for o in _operands(node)])
    return _NONE


def rejected_columns(predicate: Scalar) -> frozenset[str]:
    """Columns of which each alone keeps the predicate from being true when it is NULL.

    >>> from sqlglot import parse_one
    >>> from watersmeet.types import BOOLEAN
    >>> sorted(rejected_columns(Scalar(parse_one("a > 1 AND (b = 2 OR b = c) AND NOT d IS NULL"), BOOLEAN)))
    ['a', 'b', 'd']
    """
    return _never(predicate.expression, outcome=True)


def _never(node: exp.Expression, *, outcome: bool) -> frozenset[str]:
    """Columns whose NULL keeps `node` from having the value `outcome`."""
    if isinstance(node, exp.Paren):
        return _never(node.this, outcome=outcome)
    if isinstance(node, exp.Not):
        return _never(node.this, outcome=not outcome)
    if isinstance(node, (exp.And, exp.Or)):
        left, right = _never(node.left, outcome=outcome), _never(node.right, outcome=outcome)
        return left | right if isinstance(node, exp.And) == outcome else left & right
    if isinstance(node, exp.Is):
        if isinstance(node.expression, exp.Null):
            return _NONE if outcome else strict_columns(node.this)
        if isinstance(node.expression, exp.Boolean):  # IS TRUE and IS FALSE are never true of NULL
            return strict_columns(node.this) if outcome else _NONE
        return _NONE
    return strict_columns(node)


def _operands(node: exp.Expression) -> list[exp.Expression]:
    found = []
    for value in node.args.values():
        found += [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, exp.Expression)]
    return found
