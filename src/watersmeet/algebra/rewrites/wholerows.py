"""Whole rows, for operators that decide once for each row and remember it.

Such a row is identified by the rows of tables and the groups that it consists of, not by the columns that a query reads
of it. So two rows are different if they consist of different rows, and a row changes when one of these changes in any
column.
"""

from __future__ import annotations

from dataclasses import replace

from watersmeet.algebra.nodes import (
    Aggregate,
    Binary,
    Changes,
    Column,
    Node,
    Project,
    Records,
    TemporalJoin,
    Union,
)
from watersmeet.algebra.scalars import Scalar, null_of
from watersmeet.algebra.trees import read

_Ids = frozenset[str]


def whole_rows(node: Node) -> tuple[Node, _Ids]:
    """The node with further columns, and the ids of those of its columns that tell its rows apart.

    Project(x, Filter(p, Scan(k, x, y)))   ->   Project(x, k, y, Filter(p, Scan(k, x, y))): k, x, y
    """
    if isinstance(node, Project):
        return _projected(node)
    if isinstance(node, Union):
        return _united(node)
    if isinstance(node, Aggregate):
        return node, _ids(node.outputs[: len(node.keys)])
    if isinstance(node, TemporalJoin) or (isinstance(node, Binary) and not node.gives_right):
        left, ids = whole_rows(node.left)
        return replace(node, left=left), ids  # the right side of a look-up changes no row that came out
    if not node.inputs or isinstance(node, (Changes, Records)):
        return node, node.ids
    below = [whole_rows(i) for i in node.inputs]
    made = node.over([tree for tree, _ in below])
    return made, made.ids & _Ids().union(*[ids for _, ids in below])


def _ids(columns: tuple[Column, ...]) -> _Ids:
    return frozenset(c.id for c in columns)


def _projected(node: Project) -> tuple[Node, _Ids]:
    below, ids = whole_rows(node.input)
    passed = {e.column: c.id for c, e in zip(node.outputs, node.exprs, strict=True) if e.column in ids}
    hidden = tuple(c for c in below.columns if c.id in ids - passed.keys())
    made = Project(below, (*node.outputs, *hidden), (*node.exprs, *map(read, hidden)))
    return made, frozenset(passed.values()) | _ids(hidden)


def _united(node: Union) -> tuple[Node, _Ids]:
    """Each part has the further columns of all parts, those of others as NULL."""
    parts = [whole_rows(p)[0] for p in node.parts]
    further = [
        tuple(c for c in made.columns if c.id not in part.ids) for made, part in zip(parts, node.parts, strict=True)
    ]
    hidden = tuple(replace(c, nullable=True) for columns in further for c in columns)

    def padded(part: Node, made: Node, own: tuple[Column, ...]) -> Node:
        values: list[Scalar] = [read(c) if c.id in _ids(own) else null_of(c.type) for c in hidden]
        return Project(made, (*part.columns, *hidden), (*map(read, part.columns), *values))

    united = tuple(padded(*each) for each in zip(node.parts, parts, further, strict=True))
    made = Union(united, (*node.outputs, *hidden))
    return made, made.ids
