"""Rewrites conditions into keys of joins, anti joins, top-N and time filters, and factors OR.

**OR.** Conjuncts that all branches share move out. If all branches have conditions on one side, their OR is implied for
that side.

    (k = j AND x) OR (k = j AND y)                    ->  k = j AND (x OR y)
    (a.n = 1 AND b.n = 2) OR (a.n = 3 AND b.n = 4)    implies  a.n = 1 OR a.n = 3
    k = j OR (k IS NULL AND j IS NULL)                ->  k IS NOT DISTINCT FROM j

The first and the last rule provide keys for joins (TPC-H Q19); the second filters rows before a join (Q7). All are
valid in SQL's three-valued logic, also if a failing expression counts as NULL. If one side is NULL, the last rule gives
false instead of NULL, which makes no difference to a condition.

**now().** Comparisons become nodes that output or delete each row when the clock passes it. Nodes that output rows
later come first, so that no node after them keeps waiting rows. This rule follows all rules that move conditions.

    Filter(ts > now() - '1 h' AND x > 1, t)   ->  TimeFilter(ts > now - 1 h, Filter(x > 1, t))
    Filter(ts + '1 h' > now(), t)             ->  Project(t.*, TimeFilter(e > now, Project(t.*, ts + '1 h' AS e, t)))
    Filter(ts > now() OR p, t)                ->  Union(TimeFilter(ts > now, Filter(p IS NOT TRUE, t)), Filter(p, t))

**row_number, rank.** Bounds on the number become a TopN, which replaces the window if nothing else reads the number.

    Project(x, Filter(rn <= 3, Window(row_number() AS rn, t)))          ->  Project(x, TopN(t, limit 3))
    Project(x, Filter(rn > 2 AND rn <= 5, Window(row_number() …, t)))   ->  Project(x, TopN(t, limit 3, offset 2))
    Filter(rn <= 3, Window(rank() AS rn, t))              ->  Window(rank() AS rn, TopN(t, limit 3, with ties))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from sqlglot import exp

from watersmeet.algebra.nodes import (
    Aggregate,
    Column,
    Filter,
    Join,
    KeyPair,
    Node,
    Project,
    TimeFilter,
    TopN,
    Union,
    Window,
    WindowCall,
)
from watersmeet.algebra.scalars import (
    MIRRORED,
    NEGATED,
    SIGNS,
    Scalar,
    conjunction,
    conjuncts,
    disjuncts,
    null_of,
    strict_columns,
)
from watersmeet.algebra.timewindows import clock_span, left_in_join, mentions_time, not_a_filter, term_of
from watersmeet.algebra.trees import (
    cast,
    common_type,
    empty,
    exactly,
    filtered,
    is_exact,
    part_of,
    read,
    transform_up,
    walk,
    with_inputs,
)
from watersmeet.values.types import BOOLEAN


def key_pair(predicate: Scalar, left: Node, right: Node) -> KeyPair | None:
    """The predicate as a key of a join of `left` and `right` with a common type; None if it can't be one."""
    node = predicate.expression
    if not isinstance(node, (exp.EQ, exp.NullSafeEQ)):
        return None
    one, other = Scalar(node.this, BOOLEAN).columns, Scalar(node.expression, BOOLEAN).columns
    if not one or not other:
        return None
    if one <= left.ids and other <= right.ids:
        sides = part_of(node.this, left.columns), part_of(node.expression, right.columns)
    elif one <= right.ids and other <= left.ids:
        sides = part_of(node.expression, left.columns), part_of(node.this, right.columns)
    else:
        return None
    if sides[0] is None or sides[1] is None:
        return None
    return paired(sides[0], sides[1], null_safe=isinstance(node, exp.NullSafeEQ))


def paired(left: Scalar, right: Scalar, *, null_safe: bool) -> KeyPair | None:
    """The key `left = right` in the common type, or None."""
    target = common_type(left.type, right.type)
    if target is None:
        return None
    if null_safe and not (is_exact(left.type, target) and is_exact(right.type, target)):
        return None  # a value that the cast can't represent would become NULL and match NULL
    return KeyPair(cast(left, target), cast(right, target), null_safe)


def as_predicate(pair: KeyPair) -> Scalar:
    """The key as a predicate."""
    kind = exp.NullSafeEQ if pair.null_safe else exp.EQ
    sides = [s.expression.copy() if s.column else exp.paren(s.expression) for s in (pair.left, pair.right)]
    return Scalar(kind(this=sides[0], expression=sides[1]), BOOLEAN)


def remove_duplicate_keys(tree: Node) -> Node:
    """Keeps each key of a join or aggregate once: `GROUP BY a, a` groups by `a` and outputs it twice."""
    return transform_up(tree, _without_duplicates)


def _without_duplicates(node: Node) -> Node:
    if isinstance(node, Join) and len(set(node.keys)) < len(node.keys):
        return replace(node, keys=tuple(dict.fromkeys(node.keys)))
    if isinstance(node, Aggregate) and len(set(node.keys)) < len(node.keys):
        keys = tuple(dict.fromkeys(node.keys))
        firsts = [node.outputs[node.keys.index(k)] for k in keys]
        calls = node.outputs[len(node.keys) :]
        slim = Aggregate(node.input, keys, node.calls, (*firsts, *calls))
        exprs = [read(firsts[keys.index(k)]) for k in node.keys] + [read(c) for c in calls]
        return Project(slim, node.outputs, tuple(exprs))
    return node


def make_anti_joins(tree: Node) -> Node:
    """Turns an outer join with a NULL test of a column that is never NULL in a match into an anti join, which needs
    less state and traffic.

    Filter(b.k IS NULL, a LEFT JOIN b ON a.k = b.k)   ->   Project(a.*, NULL …, a ANTI JOIN b ON a.k = b.k)
    """
    return transform_up(tree, _anti)


def _anti(node: Node) -> Node:
    if not (
        isinstance(node, Filter)
        and isinstance(node.input, Join)
        and node.input.kind == "left"
        and node.input.keys
        and node.input.partners is None
    ):
        return node
    join = node.input
    never_null = _not_null_in_matches(join)
    parts = conjuncts(node.predicate)
    kept = [p for p in parts if _tested(p) not in never_null]
    if len(kept) == len(parts):
        return node
    anti = Join(join.left, join.right, "anti", join.keys, join.residual, span=join.span, arrival=join.arrival)
    exprs = tuple(read(c) if c.id in join.left.ids else null_of(c.type) for c in join.columns)
    return filtered(Project(anti, join.columns, exprs), kept)


def _not_null_in_matches(join: Join) -> frozenset[str]:
    """The columns of the right input that are never NULL in a matching row."""
    found = {c for k in join.keys if not k.null_safe for c in strict_columns(k.right.expression)}
    found.update(*[strict_columns(p.expression) for p in conjuncts(join.residual)])
    return frozenset(found & join.right.ids)


def _tested(part: Scalar) -> str | None:
    """The column in `column IS NULL`; None for other conditions."""
    node = part.expression
    if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null) and isinstance(node.this, exp.Column):
        return str(node.this.name)
    return None


def factor_disjunctions(tree: Node) -> Node:
    """The tree with the common conjuncts of every OR moved out of it."""
    return transform_up(tree, _factored)


def implied(part: Scalar, ids: frozenset[str]) -> Scalar | None:
    """The condition that the OR `part` implies for the columns `ids`; None if it isn't an OR, or a branch has no
    condition on these.
    """
    branches = _branches(part)
    if len(branches) < 2 or part.columns <= ids:
        return None
    local = [[c for c in branch if c.columns and c.columns <= ids] for branch in branches]
    return _either(local) if all(local) else None


def _factored(node: Node) -> Node:
    if isinstance(node, Filter):
        parts = conjuncts(node.predicate)
        found = [null_safe(f, node.columns) for p in parts for f in factors(p)]
        return node if found == parts else filtered(node.input, found)
    if isinstance(node, Join) and node.residual is not None:
        parts = conjuncts(node.residual)
        columns = (*node.left.columns, *node.right.columns)
        found = [null_safe(f, columns) for p in parts for f in factors(p)]
        return node if found == parts else replace(node, residual=conjunction(list(dict.fromkeys(found))))
    return node


def factors(part: Scalar) -> list[Scalar]:
    """Conjuncts whose AND is equivalent to `part`."""
    branches = _branches(part)
    common = [c for c in dict.fromkeys(branches[0]) if all(c in b for b in branches[1:])]
    if len(branches) < 2 or not common:
        return [part]
    rests = [[c for c in branch if c not in common] for branch in branches]
    return [*common, _either(rests)] if all(rests) else common


def null_safe(part: Scalar, columns: Sequence[Column]) -> Scalar:
    """`a IS NOT DISTINCT FROM b` if the condition is that two columns are equal or both NULL; else the condition
    itself.

    This is only valid for columns: other expressions may fail, and a failure is not NULL.
    """
    branches = sorted(_branches(part), key=len)
    if [len(b) for b in branches] != [1, 2]:
        return part
    equal, tests = branches[0][0].expression, [c.expression for c in branches[1]]
    if not isinstance(equal, exp.EQ) or not all(_is_null_test(t) for t in tests):
        return part
    sides = {_plain(s, columns) for s in (equal.this, equal.expression)}
    if not all(isinstance(s, exp.Column) for s in sides) or sides != {_plain(t.this, columns) for t in tests}:
        return part
    return Scalar(exp.NullSafeEQ(this=equal.this.copy(), expression=equal.expression.copy()), BOOLEAN, nullable=False)


def _is_null_test(node: exp.Expression) -> bool:
    return isinstance(node, exp.Is) and isinstance(node.expression, exp.Null)


def _plain(node: exp.Expression, columns: Sequence[Column]) -> exp.Expression:
    """The value inside parentheses and casts that can't fail."""
    node = node.unnest()
    while isinstance(node, exp.Cast):
        inner, whole = part_of(node.this, columns), part_of(node, columns)
        if inner is None or whole is None or not is_exact(inner.type, whole.type):
            break
        node = node.this.unnest()
    return node


def _either(branches: list[list[Scalar]]) -> Scalar:
    """The OR over `branches`, each of which is the AND of its parts."""
    ands = [conjunction(branch) for branch in branches]
    return Scalar(exp.or_(*[a.expression for a in ands if a is not None], copy=True), BOOLEAN)


def _branches(part: Scalar) -> list[list[Scalar]]:
    """The conjuncts of each branch; without OR there is one branch."""
    return [conjuncts(branch) for branch in disjuncts(part)]


#: The window functions whose value depends only on earlier rows of the partition, so that a TopN may drop later rows.
_FROM_ABOVE: Final = ("row_number", "rank", "dense_rank")


def recognise_topn(tree: Node) -> Node:
    """The tree with a TopN for every condition that sets an upper bound of the row_number or rank of a window."""
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
    """Bounds of the number: above `low` and at most `high` (None: unbounded). rest: the other conditions."""

    low: int
    high: int | None
    rest: tuple[Scalar, ...]


def _bounds(parts: Sequence[Scalar], column: str) -> _Bounds:
    """The bounds from the conditions on the integer `column`, which is at least 1."""
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
    """The comparison of `column` with an integer, and the integer; None for other conditions."""
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
    """The expression inside parentheses and casts to integers."""
    while isinstance(node, exp.Paren) or (isinstance(node, exp.Cast) and node.to.this in exp.DataType.INTEGER_TYPES):
        node = node.this
    return node


def _integer(node: exp.Expression) -> int | None:
    if isinstance(node, exp.Neg):
        inner = _integer(_bare(node.this))
        return None if inner is None else -inner
    return int(node.name) if isinstance(node, exp.Literal) and node.is_int else None


def _number_of(window: Window) -> int | None:
    """The call that can become a TopN: the first row_number or rank, if no call needs later rows."""
    if len({c.order for c in window.calls}) > 1 or any(c.function not in _FROM_ABOVE for c in window.calls):
        return None
    return next((i for i, c in enumerate(window.calls) if c.function != "dense_rank"), None)


def _topn(window: Window, call: WindowCall, limit: int | None, offset: int = 0) -> TopN:
    return TopN(window.input, window.partition, call.order, limit, offset, call.function == "rank")


def _without_number(node: Project, condition: Filter) -> Node | None:
    """The TopN without the window if nothing else reads the number; None for other patterns."""
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

    Raises TIME_FILTER if a comparison is not in a filter of this form.
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
        below = _one_branch(below, part, ids)
    for part in sorted([p for p in timed if p not in choices], key=_takes_back):
        below = _one(below, part, ids)
    return exactly(below, node.columns)


def _positive(part: Scalar) -> Scalar:
    """The condition without parentheses, and with negated comparisons reversed."""
    node = part.expression.unnest()
    if isinstance(node, exp.Not):
        inner = node.this.unnest()
        if type(inner) in NEGATED:
            node = NEGATED[type(inner)](this=inner.this.copy(), expression=inner.expression.copy())
    return Scalar(node, part.type, part.nullable)


def _takes_back(part: Scalar) -> bool:
    return isinstance(part.expression, (exp.GT, exp.GTE))


def _one(below: Node, part: Scalar, ids: Iterator[str]) -> Node:
    """The rows of `below` for which the comparison with the clock is true, possibly with an additional column."""
    node = part.expression
    comparison = SIGNS.get(type(node))
    found = term_of(node.expression) if comparison is not None else None
    if comparison is None or found is None:
        raise not_a_filter(clock_span(part))
    term, kind = found
    value = node.this.unnest()
    column = next((c for c in below.columns if isinstance(value, exp.Column) and c.id == value.name), None)
    if column is None:
        column = Column(next(ids), "time", kind)
        passed = [(c, read(c)) for c in below.columns]
        below = Project(below, (*(c for c, _ in passed), column), (*(s for _, s in passed), Scalar(value, kind)))
    return TimeFilter(below, column.id, comparison, (term,))


def _one_branch(below: Node, part: Scalar, ids: Iterator[str]) -> Node:
    """The rows for which a branch of an OR is true.

    Only one branch may compare with the clock; it outputs the rows that no other branch outputs.
    """
    branches = disjuncts(part)
    timed = [b for b in branches if mentions_time(b)]
    if len(timed) != 1:
        raise not_a_filter(clock_span(part), "Only one branch of OR may compare with now(); write UNION ALL.")
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
