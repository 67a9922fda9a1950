"""Facts about the rows of a tree: their number, their keys, their order of arrival, and the reasons for deletions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sqlglot import exp

from watersmeet.algebra.nodes import (
    Aggregate,
    Apply,
    Arrivals,
    AsofJoin,
    Clock,
    Column,
    Cut,
    Filter,
    Join,
    KeyPair,
    Node,
    Project,
    Scan,
    TemporalJoin,
    TimeFilter,
    TopN,
    Unnest,
    Values,
    Window,
)
from watersmeet.algebra.scalars import Scalar, SortKey, conjuncts
from watersmeet.values.types import BOOLEAN


def arrivals_below(node: Node, *, unnested: bool = False) -> Arrivals | None:
    """The `Arrivals` that `node` reads only through cuts, filters and projects; else None.

    unnested: whether nodes are also allowed that output rows in the order of their arrival: `Unnest`, whose rows of one
    row arrive together, and windows that look back.
    """
    while isinstance(node, (Cut, Filter, Project)) or (unnested and (isinstance(node, Unnest) or keeps_order(node))):
        node = node.inputs[0]
    return node if isinstance(node, Arrivals) else None


def keeps_order(node: Node) -> bool:
    """Whether a node outputs each row when it arrives, with values of earlier rows."""
    return isinstance(node, Window) and not (node.in_order or node.delays) and is_by_arrival(node)


def is_by_arrival(node: Window) -> bool:
    """Whether all calls order rows as they arrive and read only earlier rows, so that no later row changes a value."""
    if node.in_order or node.delays:
        return True
    if node.calls and all(_is_by_time(c.order, node.input) and c.looks_back for c in node.calls):
        return True
    arrivals = arrivals_below(node.input, unnested=True)
    if arrivals is None:
        return False
    age = [(c.id, True) for c in arrivals.age]
    return all([(k.value.column, k.descending) for k in c.order] == age and c.looks_back for c in node.calls)


def _is_by_time(order: Sequence[SortKey], node: Node) -> bool:
    """Whether the first key is the time by which a `TimeFilter` below outputs the rows of `node` once: rows with a
    later time are output later, those with the same time together.
    """
    column = order[0].value.column if order and not order[0].descending else None
    while isinstance(node, (Filter, Project)) or (isinstance(node, Window) and is_by_arrival(node)):
        if isinstance(node, Project):
            column = next((e.column for c, e in zip(node.outputs, node.exprs, strict=True) if c.id == column), None)
        node = node.input
    return isinstance(node, TimeFilter) and node.final and node.comparison == "<" and column == node.column


def lagging(node: Window) -> int | None:
    """The number of earlier rows that a new row of a partition reads if all calls are lag by arrival; else None."""
    found = [c.number for c in node.calls if c.function == "lag" and not c.skips_nulls]
    if node.in_order or len(found) < len(node.calls) or not is_by_arrival(node):
        return None
    return max(1, *found)


_Ids = frozenset[str]
_NONE: Final = _Ids()


def is_single_row(node: Node, fixed: _Ids = frozenset()) -> bool:
    """True if the node has at most one row for any content of its inputs.

    fixed: columns of the node that have a single value in the considered rows. A column of an enclosing query has one
    value at a time.
    """
    if isinstance(node, Values):
        return len(node.rows) <= 1
    if isinstance(node, Clock):
        return True
    if isinstance(node, Scan):
        return bool(node.key) and fixed.issuperset(node.key)
    if isinstance(node, Filter):
        return is_single_row(node.input, _closure(conjuncts(node.predicate), fixed, node.input.ids))
    if isinstance(node, Project):
        below = {e.column for c, e in zip(node.outputs, node.exprs, strict=True) if c.id in fixed and e.column}
        return is_single_row(node.input, frozenset(below))
    if isinstance(node, Aggregate):
        return fixed | constants(node) >= {c.id for c in node.outputs[: len(node.keys)]}
    if (
        isinstance(node, TopN)
        and node.limit is not None
        and node.limit <= 1
        and not node.with_ties
        and all(k.column in fixed or not k.columns & node.input.ids for k in node.partition)
    ):
        return True
    if node.at_most_one:
        first = node.inputs[0]
        return is_single_row(first, fixed & first.ids)
    if isinstance(node, Apply):
        return all(is_single_row(i, fixed & i.ids) for i in node.inputs)
    if isinstance(node, Join):
        return _join(node, fixed)
    return False


def identity(node: Node) -> _Ids | None:
    """Columns that identify a row, or a group of rows that are always inserted and deleted together; None if
    unknown.
    """
    if isinstance(node, Scan):
        return frozenset(node.key) or None
    if isinstance(node, Aggregate):
        return frozenset(c.id for c in node.outputs[: len(node.keys)])
    if isinstance(node, Project):
        passed = {e.column: c.id for c, e in zip(node.outputs, node.exprs, strict=True)}
        below = identity(node.input)
        return None if below is None or not below <= passed.keys() else frozenset(passed[i] for i in below)
    if isinstance(node, (Filter, TopN, Unnest, Window)):
        return identity(node.input)
    if isinstance(node, TimeFilter):
        return None if node.final or node.stays else identity(node.input)
    if isinstance(node, TemporalJoin) or (isinstance(node, (AsofJoin, Join)) and node.at_most_one):
        return identity(node.left)
    if isinstance(node, Join):
        left, right = map(identity, node.inputs)
        return None if left is None or right is None else left | right
    return None


def constants(node: Node) -> _Ids:
    """The columns with a single value in all rows, because they equal a constant or a column of an enclosing query."""
    if isinstance(node, Filter):
        return _closure(conjuncts(node.predicate), constants(node.input), node.input.ids)
    if isinstance(node, Project):
        return _passed(node.outputs, node.exprs, node.input)
    if isinstance(node, Aggregate):
        return _passed(node.outputs, node.keys, node.input)
    known = _NONE.union(*map(constants, node.preserved))
    if isinstance(node, Join) and node.kind == "inner":
        parts = [*conjuncts(node.residual), *[_equality(k) for k in node.keys]]
        return _closure(parts, known, node.left.ids | node.right.ids)
    return known


def _passed(outputs: Sequence[Column], exprs: Sequence[Scalar], below: Node) -> _Ids:
    known = constants(below)
    return frozenset(c.id for c, e in zip(outputs, exprs, strict=False) if e.columns & below.ids <= known)


def _join(node: Join, fixed: _Ids) -> bool:
    if node.kind == "full" or node.partners is not None:
        return False
    parts = [*conjuncts(node.residual), *[_equality(k) for k in node.keys]]
    if node.kind == "inner":
        fixed = _closure(parts, fixed, node.left.ids | node.right.ids)
    sides = [(node.left, node.right), (node.right, node.left)]
    # An outer join has one row if its preserved side has one row, and that row has at most one partner.
    orders = {"inner": sides, "left": sides[:1], "right": sides[1:]}[node.kind]
    return any(
        is_single_row(first, fixed & first.ids)
        and is_single_row(second, _closure(parts, fixed | first.ids, node.left.ids | node.right.ids) & second.ids)
        for first, second in orders
    )


def _equality(pair: KeyPair) -> Scalar:
    return Scalar(exp.EQ(this=pair.left.expression.copy(), expression=pair.right.expression.copy()), BOOLEAN)


def _closure(parts: Iterable[Scalar], fixed: _Ids, own: _Ids) -> _Ids:
    """`fixed` and the columns that equalities in `parts` also fix. Columns that are not in `own` count as fixed."""
    sides = []
    for part in parts:
        node = part.expression
        if isinstance(node, (exp.EQ, exp.NullSafeEQ)):
            one, other = Scalar(node.this.unnest(), part.type), Scalar(node.expression.unnest(), part.type)
            sides += [(one, other), (other, one)]
    found = fixed
    while True:
        more = {a.column for a, b in sides if a.column in own and not (b.columns & own) - found} - found
        if not more:
            return found
        found |= {c for c in more if c}


def revision(node: Node) -> str | None:
    """The reason why `node` may delete rows, as the beginning of a sentence; None if it never does."""
    if isinstance(node, Scan):
        return None if node.append_only else f'"{node.relation_name}" is not append-only'
    if isinstance(node, Apply) and asked_on_arrival(node):
        return None
    if isinstance(node, Arrivals):
        return revision(node.scan)
    decisive = node.inputs if isinstance(node, Window) and is_by_arrival(node) else node.grows_with
    if decisive is None:
        return node.revises
    return next((found for found in map(revision, decisive) if found is not None), None)


def stands_still(node: Node) -> bool:
    """True if the content never changes after the start of the query."""
    if isinstance(node, Cut) and node.keeps == "before":
        return True
    if isinstance(node, TimeFilter):
        return False
    return isinstance(node, Values) if not node.inputs else all(map(stands_still, node.inputs))


def comes_later(node: Node) -> bool:
    """True if `node` is empty at the start of the query and gets its first row later."""
    if isinstance(node, Cut):
        return node.keeps == "after"
    if node.preserved:
        return any(map(comes_later, node.preserved))
    return (node.grows or isinstance(node, Join)) and all(map(comes_later, node.inputs))


def asked_on_arrival(node: Apply) -> bool:
    """True if the right side is evaluated once for each left row, on its arrival, because the query requires it or
    because a later evaluation would have the same result.
    """
    return (node.arrival or (stands_still(node.right) and comes_later(node.left))) and revision(node.left) is None
