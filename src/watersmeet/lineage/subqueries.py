"""What only queries that end have, as parts of a plain tree: queries with a name, and subqueries in the place of a
value, whose rows are explained like those of any other join.
"""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import count
from typing import Any, Final

from sqlglot import exp

from watersmeet.algebra.bounded import Named
from watersmeet.algebra.nodes import (
    Aggregate,
    AggregateCall,
    Apply,
    Column,
    KeyPair,
    Node,
    Project,
    SortKey,
    TopN,
    WindowCall,
)
from watersmeet.algebra.scalars import Scalar, column_ref
from watersmeet.algebra.trees import read, transform_up, walk

#: Fields of nodes in which no text is the id of a column.
_NO_IDS: Final = frozenset({"clock", "name", "relation_id", "relation_name", "source_names"})


def inlined(tree: Node) -> Node:
    """The tree with the queries that have a name wherever these are read, each time with ids of its own."""
    copies = count(1)

    def in_place(node: Node) -> Node:
        if not isinstance(node, Named) or node.definition is None:
            return node
        copy = _with_ids(node.definition, f".{next(copies)}")
        return Project(copy, node.outputs, tuple(read(c) for c in copy.columns))

    return transform_up(tree, in_place)


def _with_ids(tree: Node, end: str) -> Node:
    """The tree with this at the end of the ids of all columns that it makes."""
    ids = {c.id: c.id + end for node in walk(tree) for c in node.columns}
    references = {old: column_ref(new) for old, new in ids.items()}

    def renamed(value: Any) -> Any:
        if isinstance(value, Scalar):
            return value.substitute(references)
        if isinstance(value, Column):
            return replace(value, id=ids.get(value.id, value.id))
        if isinstance(value, str):
            return ids.get(value, value)
        if isinstance(value, tuple):
            return tuple(map(renamed, value))
        if isinstance(value, (Node, AggregateCall, KeyPair, SortKey, WindowCall)):
            names = [f.name for f in fields(value) if f.name not in _NO_IDS]  # type: ignore[arg-type]
            return replace(value, **{name: renamed(getattr(value, name)) for name in names})  # type: ignore[type-var]
        return value

    made: Node = renamed(tree)
    return made


def has_single_values(tree: Node) -> bool:
    """Whether the query fails if one of its subqueries has several rows. As a join it does not."""
    return any(isinstance(n, Apply) and n.kind == "scalar" for n in walk(tree))


def with_joined_values(tree: Node) -> Node:
    """The same rows as long as each subquery that is a value has one row at most.

    Apply(scalar, a, b)  ->  Project(a.*, b.x, Apply(left, a, b))
    Apply(array, a, b)   ->  Project(a.*, coalesce(l, []), Apply(left, a, Aggregate([], array_agg(b.x) AS l, b)))
    """
    numbers = count(1)

    def joined(node: Node) -> Node:
        if not isinstance(node, Apply) or node.kind not in ("scalar", "array"):
            return node
        right = node.right if node.kind == "scalar" else _collected(node, f"#a{next(numbers)}")
        (column,) = right.columns
        value = read(column)
        if node.kind == "array":
            nothing = exp.cast(exp.Array(expressions=[]), column.type.duckdb, dialect="duckdb")
            value = Scalar(exp.Coalesce(this=value.expression, expressions=[nothing]), column.type, False)
        return Project(Apply(node.left, right, "left"), node.columns, (*map(read, node.left.columns), value))

    return transform_up(tree, joined)


def _collected(node: Apply, name: str) -> Node:
    """One row: the array of the values that the right side gives, in its order."""
    assert node.mark is not None
    right, (column,) = node.right, node.right.columns
    value, order = read(column), tuple[SortKey, ...]()
    if isinstance(right, Project) and isinstance(right.input, TopN):
        (value,), right = right.exprs, right.input
    if isinstance(right, TopN):
        order = right.order
    call = AggregateCall("array_agg", value, None, False, node.mark.type, order=order)
    return Aggregate(right, (), (call,), (Column(name, column.name, node.mark.type),))
