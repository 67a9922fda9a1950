"""Conditions on row_number and rank make the best rows of each key out of a window.

Project(x, Filter(rn <= 3, Window(row_number() AS rn, t)))          ->  Project(x, TopN(t, limit 3))
Project(x, Filter(rn > 2 AND rn <= 5, Window(row_number() …, t)))   ->  Project(x, TopN(t, limit 3, offset 2))
Filter(rn <= 3 AND x > 1, Window(row_number() AS rn, t))            ->  Filter(x > 1, Window(row_number() AS rn,
TopN(t)))
Filter(rn <= 3, Window(rank() AS rn, t))                            ->  Window(rank() AS rn, TopN(t, limit 3, with
ties))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlglot import exp

from watersmeet.algebra.comparisons import MIRRORED
from watersmeet.algebra.nodes import Filter, Node, Project, TopN, Window, WindowCall
from watersmeet.algebra.scalars import Scalar, conjuncts
from watersmeet.algebra.trees import empty, filtered, with_inputs

#: Functions whose value depends only on earlier rows in the order, so that later rows can be dropped.
_FROM_ABOVE: Final = ("row_number", "rank", "dense_rank")


def recognise_topn(tree: Node) -> Node:
    """The tree with a TopN wherever a condition bounds the row_number or rank of a window from above."""
    node = _recognised(tree)
    return with_inputs(node, [recognise_topn(i) for i in node.inputs])


def _recognised(node: Node) -> Node:
    if isinstance(node, Project) and isinstance(node.input, Filter):
        made = _without_number(node, node.input)
        return node if made is None else made
    if isinstance(node, Filter):
        return _with_number(node)
    return node


@dataclass(frozen=True)
class _Bounds:
    """The rows whose number is above `low` and at most `high` (None: any). rest: the other conditions."""

    low: int
    high: int | None
    rest: tuple[Scalar, ...]


def _bounds(parts: Sequence[Scalar], column: str) -> _Bounds:
    """What the conditions say of the integer `column`, which is at least 1."""
    low, high = 0, None
    rest = []
    for part in parts:
        found = _compared(part.expression, column)
        if found is None:
            rest.append(part)
            continue
        operator, number = found
        if operator in (exp.GT, exp.GTE, exp.EQ):
            low = max(low, number if operator is exp.GT else number - 1)
        if operator in (exp.LT, exp.LTE, exp.EQ):
            top = number - 1 if operator is exp.LT else number
            high = top if high is None else min(high, top)
    return _Bounds(low, high, tuple(rest))


def _compared(node: exp.Expression, column: str) -> tuple[type[exp.Expression], int] | None:
    """The comparison of `column` with an integer, and the integer; None if the condition is no such comparison."""
    if type(node) not in MIRRORED:
        return None
    left, right = _bare(node.this), _bare(node.expression)
    if isinstance(right, exp.Column) and right.name == column:
        left, right, kind = right, left, MIRRORED[type(node)]
    else:
        kind = type(node)
    if not (isinstance(left, exp.Column) and left.name == column):
        return None
    number = _integer(right)
    return None if number is None else (kind, number)


def _bare(node: exp.Expression) -> exp.Expression:
    """The expression without parentheses and casts to integers."""
    while isinstance(node, exp.Paren) or (isinstance(node, exp.Cast) and node.to.this in exp.DataType.INTEGER_TYPES):
        node = node.this
    return node


def _integer(node: exp.Expression) -> int | None:
    if isinstance(node, exp.Neg):
        inner = _integer(_bare(node.this))
        return None if inner is None else -inner
    return int(node.name) if isinstance(node, exp.Literal) and node.is_int else None


def _number_of(window: Window) -> int | None:
    """The call that can become a TopN: the first row_number or rank, if no call needs the rows after it."""
    if len({c.order for c in window.calls}) > 1 or any(c.function not in _FROM_ABOVE for c in window.calls):
        return None
    return next((i for i, c in enumerate(window.calls) if c.function != "dense_rank"), None)


def _topn(window: Window, call: WindowCall, limit: int | None, offset: int = 0) -> TopN:
    return TopN(window.input, window.partition, call.order, limit, offset, call.function == "rank")


def _without_number(node: Project, condition: Filter) -> Node | None:
    """The TopN alone, if nothing else reads the number; None if the pattern is another one."""
    window = condition.input
    if not isinstance(window, Window) or len(window.calls) != 1 or _number_of(window) is None:
        return None
    call, column = window.calls[0], window.outputs[0].id
    found = _bounds(conjuncts(condition.predicate), column)
    if column in frozenset[str]().union(*[s.columns for s in (*found.rest, *node.exprs)]):
        return None
    if (found.high is None and not found.low) or (call.function == "rank" and (found.low or found.high is None)):
        return None
    if found.high is not None and found.high <= found.low:
        return empty(node.columns)
    limit = None if found.high is None else found.high - found.low
    return replace(node, input=filtered(_topn(window, call, limit, found.low), found.rest))


def _with_number(node: Filter) -> Node:
    window = node.input
    at = _number_of(window) if isinstance(window, Window) else None
    if not isinstance(window, Window) or at is None:
        return node
    column = window.outputs[at].id
    found = _bounds(conjuncts(node.predicate), column)
    if found.high is None:
        return node
    if found.high <= found.low:
        return empty(node.columns)
    parts = [p for p in conjuncts(node.predicate) if p in found.rest or found.low]
    return filtered(replace(window, input=_topn(window, window.calls[at], found.high)), parts)
