"""Conditions with now() become nodes that let each row in, or out, when the clock passes it.

    Filter(ts > now() - '1 h' AND x > 1, t)   ->  TimeFilter(ts > now - 1 h, Filter(x > 1, t))
    Filter(ts + '1 h' > now(), t)             ->  Project(t.*, TimeFilter(e > now, Project(t.*, ts + '1 h' AS e, t)))
    Filter(ts > now() OR p, t)                ->  Union(TimeFilter(ts > now, Filter(p IS NOT TRUE, t)), Filter(p, t))

Conditions that let rows in later are applied first, so that nothing above keeps waiting rows. This rule comes after all
rules that move conditions.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from sqlglot import exp

from watersmeet.algebra.comparisons import NEGATED, SIGNS
from watersmeet.algebra.nodes import Column, Filter, Node, Project, TimeFilter, Union
from watersmeet.algebra.scalars import Scalar, conjuncts, disjuncts
from watersmeet.algebra.times import left_in_join, mentions_time, not_a_filter, place, term_of
from watersmeet.algebra.trees import exactly, filtered, read, transform_up, walk
from watersmeet.types import BOOLEAN


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
