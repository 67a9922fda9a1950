"""Moves filters toward the leaves, and merges constant conditions, empty relations, neighboring filters and projects.

A walk from the root carries the conjuncts that are not placed yet, and the `rejected` columns: rows with NULL in one of
these are removed later. If this removes all rows without a partner from an outer join, the join becomes an inner join.
Equalities in conditions become keys of joins.

    Filter(b.y > 1, a LEFT JOIN b ON a.k = b.k)   ->  a INNER JOIN Filter(b.y > 1, b) ON a.k = b.k
    Filter(a.x > 1, a LEFT JOIN b ON a.k = b.k)   ->  Filter(a.x > 1, a) LEFT JOIN b ON a.k = b.k
    a LEFT JOIN b ON a.k = b.k AND b.y > 1        ->  a LEFT JOIN Filter(b.y > 1, b) ON a.k = b.k
    a LEFT JOIN b ON a.k = b.k AND a.x > 1 -> the same: `a.x > 1` only determines matches
    Filter(a.k = b.k, a CROSS JOIN b)             ->  a INNER JOIN b ON a.k = b.k
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import singledispatch
from typing import Final

from sqlglot import exp

from watersmeet.algebra.nodes import (
    Aggregate,
    AsofJoin,
    Changes,
    Cut,
    Filter,
    Join,
    JoinKind,
    KeyPair,
    Node,
    Project,
    TemporalJoin,
    TopN,
    Unary,
    Union,
    Unnest,
)
from watersmeet.algebra.rewrites.conditions import implied, key_pair
from watersmeet.algebra.scalars import (
    Scalar,
    column_ref,
    conjunction,
    conjuncts,
    null_of,
    rejected_columns,
    strict_columns,
)
from watersmeet.algebra.timewindows import mentions_time
from watersmeet.algebra.trees import empty, filtered, is_empty, read, transform_up, with_inputs

_Ids = frozenset[str]
_NONE: Final = frozenset[str]()
_VOLATILE: Final = frozenset({"RANDOM", "GEN_RANDOM_UUID", "UUID", "NEXTVAL"})


def push_filters(tree: Node) -> Node:
    """The tree with every conjunct of its filters and join conditions as close to the leaves as is valid."""
    return _push(tree, [], _NONE)


def is_volatile(scalar: Scalar) -> bool:
    """True if two evaluations of the expression may differ, so that it must not be copied or moved."""
    for node in scalar.expression.find_all(exp.Rand, exp.Uuid, exp.Anonymous):
        if not isinstance(node, exp.Anonymous) or str(node.this).upper() in _VOLATILE:
            return True
    return False


def _rejections(parts: list[Scalar]) -> _Ids:
    return _NONE.union(*[rejected_columns(p) for p in parts])


@singledispatch
def _push(node: Node, parts: list[Scalar], rejected: _Ids) -> Node:
    """By default, conditions on `filterable` columns move to the first input; other conditions stay downstream of the
    node.
    """
    pushed = [p for p in parts if p.columns and p.columns <= node.filterable and not is_volatile(p)]
    below = node.rejected | ((rejected | _rejections(parts)) & node.filterable)
    inputs = [_push(i, [] if n else pushed, _NONE if n else below) for n, i in enumerate(node.inputs)]
    return filtered(with_inputs(node, inputs), [p for p in parts if p not in pushed])


@_push.register
def _(node: Filter, parts: list[Scalar], rejected: _Ids) -> Node:
    return _push(node.input, conjuncts(node.predicate) + parts, rejected)


@_push.register
def _(node: Project, parts: list[Scalar], rejected: _Ids) -> Node:
    exprs = {c.id: e for c, e in zip(node.outputs, node.exprs, strict=True)}
    volatile = {i for i, e in exprs.items() if is_volatile(e)}
    kept = [p for p in parts if is_volatile(p) or p.columns & volatile]
    mapping = {i: e.expression for i, e in exprs.items()}
    pushed = [p.substitute(mapping) for p in parts if p not in kept]
    # In an input of a dependent join, parts may also read columns of the enclosing query.
    below = [strict_columns(mapping[i]) for i in (rejected | _rejections(parts)) & mapping.keys()]
    return filtered(replace(node, input=_push(node.input, _split(pushed), _NONE.union(*below))), kept)


@_push.register
def _(node: Union, parts: list[Scalar], rejected: _Ids) -> Node:
    inputs = []
    for part in node.parts:
        ids = {out.id: own.id for out, own in zip(node.outputs, part.columns, strict=True)}
        mapping = {i: column_ref(own) for i, own in ids.items()}
        inputs.append(
            _push(part, [p.substitute(mapping) for p in parts], frozenset(ids[i] for i in rejected & ids.keys()))
        )
    return replace(node, parts=tuple(inputs))


@_push.register
def _(node: AsofJoin, parts: list[Scalar], rejected: _Ids) -> Node:
    """Conditions on left rows move to the left input. Conditions on right rows stay, because other right rows would
    become the nearest.
    """
    dropped = rejected | _rejections(parts)
    kind = "inner" if dropped & node.right.ids else node.kind
    pushed = [p for p in parts if p.columns and p.columns <= node.left.ids and not is_volatile(p)]
    below = dropped & node.left.ids
    if kind == "inner":
        below = below.union(strict_columns(node.left_value.expression))
    joined = replace(node, kind=kind, left=_push(node.left, pushed, below), right=_push(node.right, [], _NONE))
    return filtered(joined, [p for p in parts if p not in pushed])


@_push.register
def _(node: TemporalJoin, parts: list[Scalar], rejected: _Ids) -> Node:
    """Conditions on left rows move to the left input. In an inner join the other conditions become part of the look-up.

    Comparisons with the clock stay downstream: in the input they would delete rows, and the join would have to keep
    these. If rows wait for their first match, the condition that defines a match must not change. Its parts that read
    only left rows become part of the key, so that rows that can never match do not wait. Reused answers must depend
    only on the key.
    """
    dropped = rejected | _rejections(parts)
    kind = "inner" if dropped & node.right.ids else node.kind
    keys, residual = list(node.keys), conjuncts(node.residual)
    apart = node.waits or node.ttl_us is not None
    if kind == "inner" and not apart:
        parts = [*parts, *(p for p in residual if mentions_time(p) and p not in parts)]
        residual = [p for p in residual if not mentions_time(p)]
    timed = [p for p in parts if mentions_time(p)]
    pushed = [p for p in parts if p.columns and p.columns <= node.left.ids and not is_volatile(p) and p not in timed]
    inside = [p for p in parts if p not in pushed and p not in timed] if kind == "inner" and not apart else []
    for part in inside:
        pair = key_pair(part, node.left, node.right)
        if pair is None:
            residual.append(part)
        else:
            keys.append(pair)
    below: dict[str, list[Scalar]] = {"left": list(pushed), "right": []}
    for part in list(residual):
        pair = None if apart else key_pair(part, node.left, node.right)
        if pair is not None:
            keys.append(pair)
            residual.remove(part)
        elif part.columns and not is_volatile(part) and not mentions_time(part):
            if kind == "inner" and part.columns <= node.left.ids:
                below["left"].append(part)
            elif node.looked_up is None and node.ttl_us is None and part.columns <= node.right.ids:
                below["right"].append(part)
            elif node.waits and part.columns <= node.left.ids and not all(k.null_safe for k in keys):
                keys = _gated(keys, part)
            else:
                continue
            residual.remove(part)
    left = _push(node.left, below["left"], dropped & node.left.ids)
    right = _push(node.right, below["right"], _NONE) if below["right"] else node.right
    joined = replace(
        node,
        kind=kind,
        left=left,
        right=right,
        keys=tuple(dict.fromkeys(keys)),
        residual=conjunction(list(dict.fromkeys(residual))),
    )
    return filtered(joined, [p for p in parts if p not in pushed and p not in inside])


def _gated(keys: list[KeyPair], part: Scalar) -> list[KeyPair]:
    """The keys, changed so that one of them is NULL, and nothing matches, if `part` is not true."""
    number = next(i for i, k in enumerate(keys) if not k.null_safe)
    key = keys[number].left
    gate = exp.Case(ifs=[exp.If(this=part.expression.copy(), true=key.expression.copy())])
    return [replace(k, left=Scalar(gate, key.type)) if i == number else k for i, k in enumerate(keys)]


@_push.register
def _(node: Changes, parts: list[Scalar], rejected: _Ids) -> Node:
    """Conditions on changes move to the changed rows, unless the removed rows would affect the times of others."""
    may = frozenset(node.matched) if node.alone else node.input.ids
    pushed = [p for p in parts if p.columns and p.columns <= may and not is_volatile(p)]
    below = _NONE if node.alone else (rejected | _rejections(parts)) & node.input.ids
    inputs = [_push(node.input, pushed, below), *(_push(i, [], _NONE) for i in node.inputs[1:])]
    return filtered(node.over(inputs), [p for p in parts if p not in pushed])


@_push.register
def _(node: Cut, parts: list[Scalar], rejected: _Ids) -> Node:
    """Comparisons with the clock stay downstream, because they keep rows of the past, which a cut removes."""
    timed = [p for p in parts if mentions_time(p)]
    return filtered(replace(node, input=_push(node.input, [p for p in parts if p not in timed], rejected)), timed)


@_push.register
def _(node: Unnest, parts: list[Scalar], rejected: _Ids) -> Node:
    """Conditions on input columns move to the input. A condition that rejects NULL elements turns LEFT JOIN LATERAL
    into an inner join.
    """
    dropped = rejected | _rejections(parts)
    made = frozenset(c.id for c in node.made)
    if node.outer and dropped & made:
        parts = conjuncts(node.condition) + parts
        node = replace(node, outer=False, condition=None)
        dropped |= _rejections(parts)
    pushed = [p for p in parts if p.columns and p.columns <= node.input.ids and not is_volatile(p)]
    below = dropped & node.input.ids
    if not node.outer and len(node.arrays) == 1:  # a NULL array has no elements
        below |= strict_columns(node.arrays[0].expression)
    return filtered(replace(node, input=_push(node.input, pushed, below)), [p for p in parts if p not in pushed])


@_push.register
def _(node: Aggregate, parts: list[Scalar], rejected: _Ids) -> Node:
    keys = {c.id: k.expression for c, k in zip(node.outputs, node.keys, strict=False)}
    pushed = [p for p in parts if p.columns and p.columns <= keys.keys() and not is_volatile(p)]
    below = [strict_columns(keys[i]) for i in (rejected | _rejections(parts)) & keys.keys()]
    inner = _push(node.input, _split([p.substitute(keys) for p in pushed]), _NONE.union(*below))
    return filtered(replace(node, input=inner), [p for p in parts if p not in pushed])


def _split(parts: list[Scalar]) -> list[Scalar]:
    return [c for p in parts for c in conjuncts(p)]


@dataclass(slots=True)
class _Places:
    """The places of the conjuncts around a join: the left or right input, the join itself, or downstream of it."""

    left: list[Scalar] = field(default_factory=list)
    right: list[Scalar] = field(default_factory=list)
    inside: list[Scalar] = field(default_factory=list)
    above: list[Scalar] = field(default_factory=list)


@_push.register
def _(node: Join, parts: list[Scalar], rejected: _Ids) -> Node:
    dropped = rejected | _rejections(parts)
    kind = _reduced(node.kind, left=bool(dropped & node.left.ids), right=bool(dropped & node.right.ids))
    partners = None if kind == "inner" else node.partners
    places = _places(replace(node, kind=kind, partners=partners), parts)
    keys, residual = list(node.keys), []
    for part in places.inside:
        pair = key_pair(part, node.left, node.right)
        if pair is None:
            residual.append(part)
        else:
            keys.append(pair)
    _copy_implied(kind, residual, node, places)
    _copy_across(kind, keys, places)
    left_dropped, right_dropped = _below(kind, dropped, keys, residual)
    joined = Join(
        _push(node.left, places.left, left_dropped & node.left.ids),
        _push(node.right, places.right, right_dropped & node.right.ids),
        kind, tuple(dict.fromkeys(keys)), conjunction(list(dict.fromkeys(residual))),
        node.broadcast and not keys, span=node.span, arrival=node.arrival and kind != "inner",
        partners=partners,
    )  # fmt: skip
    return filtered(joined, places.above)


def _reduced(kind: JoinKind, *, left: bool, right: bool) -> JoinKind:
    """The kind of the join, given that rows with NULL in all left (right) columns are removed downstream."""
    if kind == "full":
        return "inner" if left and right else "left" if left else "right" if right else "full"
    if (kind == "left" and right) or (kind == "right" and left):
        return "inner"
    return kind


def _places(join: Join, above: list[Scalar]) -> _Places:
    places = _Places()
    for part in above:
        if is_volatile(part) or join.kind == "full":
            places.above.append(part)
        elif part.columns <= join.left.ids and join.keeps_left:
            places.left.append(part)
        elif part.columns <= join.right.ids and join.keeps_right:
            places.right.append(part)
        elif join.kind == "inner" and not mentions_time(part):
            places.inside.append(part)
        else:
            places.above.append(part)
    for part in conjuncts(join.residual):
        if (
            join.kind == "inner"
            and mentions_time(part)
            and not (part.columns <= join.left.ids or part.columns <= join.right.ids)
        ):
            places.above.append(part)
        elif is_volatile(part) or join.kind == "full":
            places.inside.append(part)
        elif part.columns <= join.right.ids and join.kind != "right":
            places.right.append(part)
        elif part.columns <= join.left.ids and join.kind in ("inner", "semi", "right"):
            places.left.append(part)
        else:
            places.inside.append(part)
    return places


def _copy_implied(kind: JoinKind, residual: list[Scalar], node: Join, places: _Places) -> None:
    """Adds to each side the condition that an OR over both sides implies for this side."""
    parts = [p for p in residual if not is_volatile(p) and not mentions_time(p)]
    if kind in ("inner", "right", "semi"):
        places.left += [p for p in (implied(part, node.left.ids) for part in parts) if p is not None]
    if kind in ("inner", "left", "semi", "anti"):
        places.right += [p for p in (implied(part, node.right.ids) for part in parts) if p is not None]


def _copy_across(kind: JoinKind, keys: list[KeyPair], places: _Places) -> None:
    """`a.k = b.k AND a.k > 5` implies `b.k > 5`, so rows of b that fail it can't match.

    This holds only for types whose equal values are the same value.
    """
    same = [k for k in keys if k.left.column and k.right.column and k.left.type.is_identity]
    to_right = {k.left.column: k.right.expression for k in same if k.left.column}
    to_left = {k.right.column: k.left.expression for k in same if k.right.column}
    here, there = list(places.left), list(places.right)
    if kind in ("inner", "left", "semi", "anti"):
        places.right += _copies(here, to_right)
    if kind in ("inner", "right", "semi"):
        places.left += _copies(there, to_left)


def _copies(parts: list[Scalar], mapping: Mapping[str, exp.Expression]) -> list[Scalar]:
    return [p.substitute(mapping) for p in parts if p.columns and p.columns <= mapping.keys()]


def _below(kind: JoinKind, dropped: _Ids, keys: list[KeyPair], residual: list[Scalar]) -> tuple[_Ids, _Ids]:
    """The rejected columns of the left and the right input."""
    matched = _rejections(residual).union(
        *[strict_columns(s.expression) for k in keys if not k.null_safe for s in (k.left, k.right)]
    )
    left = dropped if kind in ("inner", "left", "semi", "anti") else _NONE
    right = dropped if kind in ("inner", "right") else _NONE
    if kind in ("inner", "right", "semi"):
        left |= matched
    if kind in ("inner", "left", "semi", "anti"):
        right |= matched
    return left, right


def fold_constants(tree: Node) -> Node:
    """Removes conditions that are always true. A condition that is never true leaves a relation without rows.

    Filter(TRUE AND x > 1, t)  ->  Filter(x > 1, t)
    Filter(x > 1 AND NULL, t)  ->  Values()
    t LEFT JOIN Values()       ->  Project(t.*, NULL …)
    """
    return transform_up(tree, _without_constants)


def fold_filters(tree: Node) -> Node:
    """Merges neighboring filters: Filter(p, Filter(q, t)) -> Filter(q AND p, t)."""
    return transform_up(tree, _one_filter)


def fold_projects(tree: Node) -> Node:
    """Merges neighboring projects, unless an expression would be computed more often than before.

    Project(y + 1, Project(x * 2 AS y, t))  ->  Project((x * 2) + 1, t)
    """
    return transform_up(tree, _one_project)


def truth(part: Scalar) -> bool | None:
    """The value of a constant condition (False also for NULL); None if it is not constant."""
    node = part.expression
    if isinstance(node, exp.Boolean):
        return bool(node.this)
    if isinstance(node, exp.Null):
        return False
    if isinstance(node, exp.Not) and isinstance(node.this, exp.Boolean):
        return not node.this.this
    if isinstance(node, exp.EQ) and isinstance(node.this, exp.Literal) and isinstance(node.expression, exp.Literal):
        same_kind = node.this.is_string == node.expression.is_string
        if same_kind and (node.this.is_string or (node.this.is_int and node.expression.is_int)):
            return bool(node.this.this == node.expression.this)
    return None


def _without_constants(node: Node) -> Node:
    if isinstance(node, Filter):
        parts = conjuncts(node.predicate)
        if is_empty(node.input) or any(truth(p) is False for p in parts):
            return empty(node.columns)
        return filtered(node.input, [p for p in parts if truth(p) is None])
    one_row = isinstance(node, Aggregate) and not node.keys
    if (isinstance(node, Unary) and is_empty(node.input) and not one_row) or any(map(is_empty, node.preserved)):
        return empty(node.columns)
    if isinstance(node, TopN) and node.limit == 0:
        return empty(node.columns)
    if isinstance(node, Union) and any(is_empty(p) for p in node.parts):
        return _shorter(node)
    if isinstance(node, Join):
        return _join(node)
    return node


def _shorter(node: Union) -> Node:
    parts = [p for p in node.parts if not is_empty(p)]
    if not parts:
        return empty(node.columns)
    if len(parts) == 1:
        return Project(parts[0], node.outputs, tuple(read(c) for c in parts[0].columns))
    return Union(tuple(parts), node.outputs)


def _join(node: Join) -> Node:
    parts = conjuncts(node.residual)
    never = any(truth(p) is False for p in parts)
    is_left_empty, is_right_empty = (
        is_empty(node.left) or (never and node.kind == "right"),
        is_empty(node.right) or never,
    )
    if is_right_empty and node.kind in ("inner", "semi"):
        return empty(node.columns)
    if is_right_empty and node.kind == "anti":
        return node.left
    if is_right_empty and node.kind == "left":
        return _extended(node, node.left)
    if is_left_empty and node.kind == "right":
        return _extended(node, node.right)
    open_parts = [p for p in parts if truth(p) is not True]
    return node if len(open_parts) == len(parts) else replace(node, residual=conjunction(open_parts))


def _extended(node: Join, kept: Node) -> Node:
    exprs = [read(c) if c.id in kept.ids else null_of(c.type) for c in node.columns]
    return Project(kept, node.columns, tuple(exprs))


def _one_filter(node: Node) -> Node:
    if isinstance(node, Filter) and isinstance(node.input, Filter):
        return filtered(node.input.input, conjuncts(node.input.predicate) + conjuncts(node.predicate))
    return node


def _one_project(node: Node) -> Node:
    if not isinstance(node, Project):
        return node
    if [e.column for e in node.exprs] == [c.id for c in node.input.columns] == [c.id for c in node.outputs]:
        return node.input
    inner = node.input
    if isinstance(inner, Project) and can_merge(inner.exprs, [c.id for c in inner.outputs], node.exprs):
        mapping = {c.id: e.expression for c, e in zip(inner.outputs, inner.exprs, strict=True)}
        merged = Project(inner.input, node.outputs, tuple(e.substitute(mapping) for e in node.exprs))
        return _one_project(merged)
    return node


def can_merge(inner: tuple[Scalar, ...], ids: list[str], outer: tuple[Scalar, ...]) -> bool:
    """True if replacing `ids` by the `inner` expressions computes no expression twice."""
    uses = Counter(c.name for e in outer for c in e.expression.find_all(exp.Column))
    for scalar, column_id in zip(inner, ids, strict=True):
        costs = not isinstance(scalar.expression, (exp.Column, exp.Literal, exp.Null, exp.Boolean))
        if costs and (uses[column_id] > 1 or (uses[column_id] and is_volatile(scalar))):
            return False
    return True
