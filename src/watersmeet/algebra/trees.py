"""Walking and rebuilding trees of relations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from watersmeet.algebra.nodes import Column, Filter, Node, Project, Scan, Values
from watersmeet.algebra.scalars import Scalar, column_ref, conjunction

Rule = Callable[[Node], Node]


def with_inputs(node: Node, inputs: Sequence[Node]) -> Node:
    """`node` over other inputs; the node itself if they are the same objects."""
    if all(new is old for new, old in zip(inputs, node.inputs, strict=True)):
        return node
    return node.over(inputs)


def transform_up(node: Node, rule: Rule) -> Node:
    """The tree with `rule` applied to every node, inputs first."""
    return rule(with_inputs(node, [transform_up(i, rule) for i in node.inputs]))


def walk(node: Node) -> Iterator[Node]:
    """All nodes, a node before its inputs."""
    yield node
    for i in node.inputs:
        yield from walk(i)


def walk_once(node: Node) -> Iterator[Node]:
    """All nodes, each once: a query of WITH that is read twice is in a tree twice, with all that it reads."""
    pending, seen = [node], {id(node)}
    while pending:
        found = pending.pop()
        yield found
        for i in found.inputs:
            if id(i) not in seen:
                seen.add(id(i))
                pending.append(i)


def read(column: Column) -> Scalar:
    """The scalar that is nothing but `column`."""
    return Scalar(column_ref(column.id), column.type, column.nullable)


def exactly(node: Node, columns: Sequence[Column]) -> Node:
    """`node` cut down to `columns` in this order: a Project unless they are its columns already."""
    if [c.id for c in node.columns] == [c.id for c in columns]:
        return node
    return Project(node, tuple(columns), tuple(read(c) for c in columns))


def filtered(node: Node, parts: Sequence[Scalar]) -> Node:
    """`node` under a Filter of all `parts`, each once; no Filter for none."""
    predicate = conjunction(list(dict.fromkeys(parts)))
    return node if predicate is None else Filter(node, predicate)


def empty(columns: Sequence[Column]) -> Values:
    """The relation without rows."""
    return Values((), tuple(columns))


def is_empty(node: Node) -> bool:
    """True if the node is known to have no rows whatever the inputs are."""
    return isinstance(node, Values) and not node.rows


def is_constant(node: Node) -> bool:
    """True if the node's rows do not depend on any relation of the catalog."""
    return not any(isinstance(n, Scan) for n in walk(node))
