"""GROUPING SETS, ROLLUP and CUBE (PostgreSQL 17, 7.2.4): which sets of keys a GROUP BY has, and the tree for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Final, TypeVar

from sqlglot import exp

from watersmeet.algebra.nodes import Aggregate, AggregateCall, Column, Expand, Node, Project, Union, Values
from watersmeet.algebra.scalars import Scalar, conjunction
from watersmeet.binder.context.binding import read
from watersmeet.binder.context.rules import Binding
from watersmeet.expressions.context import Context
from watersmeet.expressions.values import Value, duckdb_cast, number
from watersmeet.types import BOOLEAN, INTEGER

Item = TypeVar("Item")
_MOST: Final = 256


def sets_of(group: exp.Group, items: Callable[[exp.Expression], list[Item]], ctx: Context) -> list[list[Item]]:
    """The grouping sets. `items` returns the keys of an expression, or of a list in parentheses.

    FEATURE_NOT_SUPPORTED for more than 256 sets.
    """

    def of(node: exp.Expression) -> list[list[Item]]:
        if isinstance(node, exp.Rollup):
            parts = [items(e) for e in node.expressions]
            return [_joined(parts[:n]) for n in range(len(parts), -1, -1)]
        if isinstance(node, exp.Cube):
            parts = [items(e) for e in node.expressions]
            if 2 ** len(parts) > _MOST:
                raise _too_many(node, ctx)
            return [_joined(c) for n in range(len(parts), -1, -1) for c in combinations(parts, n)]
        if isinstance(node, exp.GroupingSets):
            return [s for e in node.expressions for s in of(e)]
        return [items(node)]

    found: list[list[Item]] = [[]]
    for node in group.expressions:
        found = [[*a, *b] for a, b in product(found, of(node))]
        if len(found) > _MOST:
            raise _too_many(node, ctx)
    return found


def _joined(parts: Sequence[list[Item]]) -> list[Item]:
    return [item for part in parts for item in part]


def _too_many(node: exp.Expression, ctx: Context) -> Exception:
    return ctx.not_supported(f"GROUP BY with more than {_MOST} grouping sets", node)


def expanded(
    relation: Node,
    keys: Sequence[Scalar],
    sets: Sequence[tuple[int, ...]],
    calls: Sequence[AggregateCall],
    outputs: tuple[Column, ...],
    binding: Binding,
) -> Aggregate:
    """The groups of all sets in one aggregate, with the number of the set as last key.

    The empty set has a row even without input: a row that no call counts stands in for it.
    """
    new = binding.new_column
    made = (*(new("key", k.type, nullable=True) for k in keys), new("flag", INTEGER, nullable=False))
    tree: Node = Expand(relation, tuple(keys), tuple(sets), made)
    empty = [i for i, chosen in enumerate(sets) if not chosen]
    if not empty:
        return Aggregate(tree, tuple(map(read, made)), tuple(calls), outputs)
    used = [c for c in relation.columns if any(c.id in s.columns for call in calls for s in call.scalars)]
    passed = (*used, *made)
    given = (*(new(c.name, c.type, nullable=True) for c in passed[:-1]), new("flag", INTEGER, nullable=False))
    counts = new("counts", BOOLEAN, nullable=False)
    true, false = (Scalar(exp.Boolean(this=b), BOOLEAN, nullable=False) for b in (True, False))
    rows = Project(tree, (*passed, new("counts", BOOLEAN, nullable=False)), (*map(read, passed), true))
    nulls = [Scalar(duckdb_cast(exp.null(), c.type), c.type) for c in given[:-1]]
    flags = [Scalar(number(i), INTEGER, nullable=False) for i in empty]
    stand_ins = Values(
        tuple((*nulls, flag, false) for flag in flags),
        (*(replace(c, id=new(c.name, c.type, c.nullable).id) for c in (*given, counts)),),
    )
    whole = Union((rows, stand_ins), (*given, counts))
    mapping = {c.id: read(g).expression for c, g in zip(used, given, strict=False)}
    counted = [
        _counted(call.changed(lambda s: replace(s.substitute(mapping), nullable=True)), counts) for call in calls
    ]
    return Aggregate(whole, tuple(map(read, given[len(used) :])), tuple(counted), outputs)


def _counted(call: AggregateCall, counts: Column) -> AggregateCall:
    parts = [read(counts), *([] if call.filter is None else [call.filter])]
    return replace(call, filter=conjunction(parts))


def grouping(places: Sequence[int], sets: Sequence[tuple[int, ...]], flags: Sequence[Value]) -> Value:
    """GROUPING(keys at `places`): a bit for each key, the first one highest, which is 1 if the row's set lacks the key.

    flags: the number of the set, if there are several.
    """
    values = [sum((place not in chosen) << (len(places) - 1 - i) for i, place in enumerate(places)) for chosen in sets]
    if not flags or len(set(values)) == 1:
        return Value(number(values[0]), INTEGER, nullable=False)
    ifs = [exp.If(this=number(i), true=number(v)) for i, v in enumerate(values)]
    case = exp.Case(this=flags[0].expression.copy(), ifs=ifs, default=number(0))
    return Value(duckdb_cast(exp.Paren(this=case), INTEGER), INTEGER, nullable=False)
