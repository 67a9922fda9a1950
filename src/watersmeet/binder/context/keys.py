"""Equalities as keys of joins."""

from __future__ import annotations

from sqlglot import exp

from watersmeet.algebra.nodes import KeyPair, Node
from watersmeet.expressions.casts import coerce
from watersmeet.expressions.context import Context
from watersmeet.expressions.values import Value, columns_of, common_type


def condition_parts(condition: exp.Expression) -> list[exp.Expression]:
    """The conjuncts of a parsed condition. Row equalities and BETWEEN are split as well."""
    parts: list[exp.Expression] = []
    stack = [condition]
    while stack:
        node = stack.pop()
        if isinstance(node, exp.Paren):
            stack.append(node.this)
        elif isinstance(node, exp.And):
            stack += [node.right, node.left]
        elif (
            isinstance(node, exp.EQ)
            and isinstance(node.this, exp.Tuple)
            and isinstance(node.expression, exp.Tuple)
            and len(node.this.expressions) == len(node.expression.expressions)
        ):
            pairs = list(zip(node.this.expressions, node.expression.expressions, strict=True))
            stack += [exp.EQ(this=a.copy(), expression=b.copy()) for a, b in reversed(pairs)]
        else:
            parts.append(node)
    return parts


def equality_key(node: exp.Expression, a: Value, b: Value, left: Node, right: Node, ctx: Context) -> KeyPair | None:
    """The key of an equality, if one side reads only `left` and the other only `right`."""
    reads_a, reads_b = columns_of(a), columns_of(b)
    if not reads_a or not reads_b:
        return None
    null_safe = isinstance(node, exp.NullSafeEQ)
    if reads_a <= left.ids and reads_b <= right.ids:
        return key_of(node, a, b, ctx, null_safe=null_safe)
    if reads_b <= left.ids and reads_a <= right.ids:
        return key_of(node, b, a, ctx, null_safe=null_safe)
    return None


def key_of(node: exp.Expression, a: Value, b: Value, ctx: Context, *, null_safe: bool = False) -> KeyPair:
    """The key `a = b` of two comparable values, both in one type."""
    kind = common_type([a.type, b.type])
    assert kind is not None, "compare() has checked it"
    return KeyPair(coerce(a, kind, ctx, node).finish(), coerce(b, kind, ctx, node).finish(), null_safe)
