"""Functions that walk and rebuild trees of relations, type expressions, and cast them to a common type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from watersmeet.algebra.nodes import Column, Filter, Node, Project, Scan, Values
from watersmeet.algebra.scalars import ORACLE, Scalar, column_ref, conjunction
from watersmeet.values.types import DEFAULT_PRECISION, DEFAULT_SCALE, DOUBLE, SqlType

_MAX_DIGITS: Final = 38
_INTEGER_DIGITS: Final = {"smallint": 5, "integer": 10, "bigint": 19}
_TIMES: Final = ("date", "timestamp", "timestamptz")


def common_type(left: SqlType, right: SqlType) -> SqlType | None:
    """The type in which values of two types are compared; None if they can't be compared.

    >>> from watersmeet.values.types import SqlType
    >>> common_type(SqlType("integer"), SqlType("bigint")).sql
    'bigint'
    >>> common_type(SqlType("bigint"), SqlType("numeric", 10, 2)).sql
    'numeric(21,2)'
    >>> common_type(SqlType("varchar"), SqlType("integer")) is None
    True
    """
    if left == right:
        return left
    if left.is_integer and right.is_integer:
        return max(left, right, key=lambda t: _INTEGER_DIGITS[t.name])
    if left.is_numeric and right.is_numeric:
        if left.is_float or right.is_float:
            return DOUBLE
        return _decimal(left, right)
    if left.name in _TIMES and right.name in _TIMES:
        return max(left, right, key=lambda t: _TIMES.index(t.name))
    if left.name == right.name and left.element is not None and right.element is not None:
        element = common_type(left.element, right.element)
        return None if element is None else replace(left, element=element)
    return None


def is_exact(source: SqlType, target: SqlType) -> bool:
    """True if every value of `source` keeps its identity in `target` (no rounding, no overflow)."""
    if source == target or (source.is_integer and target.is_integer):
        return True
    if target.name == "numeric" and not source.is_float:
        whole, scale = _digits(source)
        wide, fine = _digits(target)
        return whole <= wide and scale <= fine
    if target.name == "double precision":
        return source.name in ("real", "smallint", "integer")
    return source.name in _TIMES


def cast(scalar: Scalar, target: SqlType) -> Scalar:
    """`scalar` cast to the type `target`."""
    if scalar.type == target:
        return scalar
    return Scalar(exp.cast(scalar.expression, target.duckdb, dialect="duckdb"), target, scalar.nullable)


def part_of(expression: exp.Expression, columns: Iterable[Column]) -> Scalar | None:
    """A part of a larger expression as a typed scalar; None if SQL lacks the type."""
    by_id = {c.id: c for c in columns}
    kind = _type_of(expression, by_id)
    if kind is None:
        return None
    nullable = by_id[expression.name].nullable if isinstance(expression, exp.Column) else True
    return Scalar(expression, kind, nullable)


def _type_of(node: exp.Expression, by_id: Mapping[str, Column]) -> SqlType | None:
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Column):
        return by_id[node.name].type
    names = sorted({c.name for c in node.find_all(exp.Column)})
    source = ", ".join(f'CAST(NULL AS {by_id[n].type.duckdb}) AS "{n}"' for n in names) or "1"
    return ORACLE.exact_type_of(f"{node.sql(dialect='duckdb')} FROM (SELECT {source})")


def _digits(kind: SqlType) -> tuple[int, int]:
    """The numbers of digits before and after the decimal point."""
    if kind.is_integer:
        return _INTEGER_DIGITS[kind.name], 0
    if kind.precision is None:
        return DEFAULT_PRECISION - DEFAULT_SCALE, DEFAULT_SCALE
    return kind.precision - (kind.scale or 0), kind.scale or 0


def _decimal(left: SqlType, right: SqlType) -> SqlType:
    (a, b), (c, d) = _digits(left), _digits(right)
    scale = max(b, d)
    whole = min(max(a, c), _MAX_DIGITS - scale)
    for side in (left, right):  # `numeric` stays `numeric`
        if side.name == "numeric" and _digits(side) == (whole, scale):
            return side
    return SqlType("numeric", whole + scale, scale)


Rule = Callable[[Node], Node]


def with_inputs(node: Node, inputs: Sequence[Node]) -> Node:
    """`node` over other inputs; the node itself if the inputs are the same objects."""
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
    """The distinct nodes. A query of WITH that is read twice occurs twice in a tree, with all its inputs."""
    pending, seen = [node], {id(node)}
    while pending:
        found = pending.pop()
        yield found
        for i in found.inputs:
            if id(i) not in seen:
                seen.add(id(i))
                pending.append(i)


def read(column: Column) -> Scalar:
    """The scalar that reads `column`."""
    return Scalar(column_ref(column.id), column.type, column.nullable)


def exactly(node: Node, columns: Sequence[Column]) -> Node:
    """`node` with only `columns`, in this order: a Project, unless it already has exactly these."""
    if [c.id for c in node.columns] == [c.id for c in columns]:
        return node
    return Project(node, tuple(columns), tuple(read(c) for c in columns))


def filtered(node: Node, parts: Sequence[Scalar]) -> Node:
    """`node` under a Filter of all distinct `parts`; the node itself if there are no parts."""
    predicate = conjunction(list(dict.fromkeys(parts)))
    return node if predicate is None else Filter(node, predicate)


def empty(columns: Sequence[Column]) -> Values:
    """The relation without rows."""
    return Values((), tuple(columns))


def is_empty(node: Node) -> bool:
    """True if the node is known to have no rows for any inputs."""
    return isinstance(node, Values) and not node.rows


def is_constant(node: Node) -> bool:
    """True if the node's rows do not depend on any relation of the catalog."""
    return not any(isinstance(n, Scan) for n in walk(node))
