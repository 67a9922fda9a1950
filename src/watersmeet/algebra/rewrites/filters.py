"""Filters that become operators: conditions with now(), and conditions on row_number and rank.

Conditions with now() become nodes that let each row in, or out, when the clock passes it.

    Filter(ts > now() - '1 h' AND x > 1, t)   ->  TimeFilter(ts > now - 1 h, Filter(x > 1, t))
    Filter(ts + '1 h' > now(), t)             ->  Project(t.*, TimeFilter(e > now, Project(t.*, ts + '1 h' AS e, t)))
    Filter(ts > now() OR p, t)                ->  Union(TimeFilter(ts > now, Filter(p IS NOT TRUE, t)), Filter(p, t))

Conditions that let rows in later are applied first, so that nothing above keeps waiting rows. This rule comes after
all rules that move conditions.

Conditions on row_number and rank make the best rows of each key out of a window.

Project(x, Filter(rn <= 3, Window(row_number() AS rn, t)))          ->  Project(x, TopN(t, limit 3))
Project(x, Filter(rn > 2 AND rn <= 5, Window(row_number() …, t)))   ->  Project(x, TopN(t, limit 3, offset 2))
Filter(rn <= 3 AND x > 1, Window(row_number() AS rn, t))            ->  Filter(x > 1, Window(row_number() AS rn,
TopN(t)))
Filter(rn <= 3, Window(rank() AS rn, t))                            ->  Window(rank() AS rn, TopN(t, limit 3, with
ties))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from sqlglot import exp

from watersmeet.algebra.nodes import Column, Filter, Node, Project, TimeFilter, TopN, Union, Window, WindowCall
from watersmeet.algebra.scalars import MIRRORED, NEGATED, SIGNS, Scalar, conjuncts, disjuncts
from watersmeet.algebra.timewindows import left_in_join, mentions_time, not_a_filter, place, term_of
from watersmeet.algebra.trees import empty, exactly, filtered, read, transform_up, walk, with_inputs
from watersmeet.values.types import BOOLEAN

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


def time_filters(tree: Node) -> Node:
    """The tree with a TimeFilter for each comparison with now().

    TIME_FILTER if a comparison is not in a filter of this form.
    """
    if not any(mentions_time(s) for node in walk(tree) for s in node.scalars):
        return tree
    ids = (
        f"#{i}"
        for i in count(1 + max(int(c.id[1:]) for node in walk(tree) for c in node.columns if c.id[1:].isdecimal()))
    )
    made = transform_up(tree, lambda node: _timed(node, ids))
    for node in walk(made):
        for scalar in node.scalars:
            if mentions_time(scalar):
                raise left_in_join(scalar)
    return made


def _timed(node: Node, ids: Iterator[str]) -> Node:
    if not isinstance(node, Filter):
        return node
    parts = [_positive(p) for p in conjuncts(node.predicate)]
    below = filtered(node.input, [p for p in parts if not mentions_time(p)])
    timed = [p for p in parts if mentions_time(p)]
    choices = [p for p in timed if isinstance(p.expression, exp.Or)]
    for part in choices:
        below = _either(below, part, ids)
    for part in sorted([p for p in timed if p not in choices], key=_takes_back):
        below = _one(below, part, ids)
    return exactly(below, node.columns)


def _positive(part: Scalar) -> Scalar:
    """The condition without parentheses, and with a comparison in place of a negated one."""
    node = part.expression.unnest()
    if isinstance(node, exp.Not):
        inner = node.this.unnest()
        if type(inner) in NEGATED:
            node = NEGATED[type(inner)](this=inner.this.copy(), expression=inner.expression.copy())
    return Scalar(node, part.type, part.nullable)


def _takes_back(part: Scalar) -> bool:
    return isinstance(part.expression, (exp.GT, exp.GTE))


def _one(below: Node, part: Scalar, ids: Iterator[str]) -> Node:
    """The rows of `below` whose comparison with the clock holds. It may add a column."""
    node = part.expression
    comparison = SIGNS.get(type(node))
    found = term_of(node.expression) if comparison is not None else None
    if comparison is None or found is None:
        raise not_a_filter(place(part))
    term, kind = found
    value = node.this.unnest()
    column = next((c for c in below.columns if isinstance(value, exp.Column) and c.id == value.name), None)
    if column is None:
        column = Column(next(ids), "time", kind)
        passed = [(c, read(c)) for c in below.columns]
        below = Project(below, (*(c for c, _ in passed), column), (*(s for _, s in passed), Scalar(value, kind)))
    return TimeFilter(below, column.id, comparison, (term,))


def _either(below: Node, part: Scalar, ids: Iterator[str]) -> Node:
    """The rows for which one of the branches holds.

    Only one branch may compare with the clock; its rows are those that no other branch lets through.
    """
    branches = disjuncts(part)
    timed = [b for b in branches if mentions_time(b)]
    if len(timed) != 1:
        raise not_a_filter(place(part), "Under OR one branch alone may compare with now(); write UNION ALL.")
    others = [b for b in branches if b not in timed]
    either = Scalar(exp.or_(*[b.expression for b in others], copy=True), BOOLEAN)
    neither = [
        Scalar(
            exp.Not(this=exp.Paren(this=exp.Is(this=exp.Paren(this=b.expression.copy()), expression=exp.true()))),
            BOOLEAN,
            nullable=False,
        )
        for b in others
    ]
    waiting = exactly(_timed(filtered(filtered(below, neither), conjuncts(timed[0])), ids), below.columns)
    outputs = tuple(Column(next(ids), c.name, c.type, c.nullable) for c in below.columns)
    both = Union((waiting, filtered(below, [either])), outputs)
    return Project(both, below.columns, tuple(read(c) for c in outputs))
