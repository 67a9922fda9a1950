"""A dependent relation while it is being freed of the columns of the enclosing query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from sqlglot import exp

from watersmeet.algebra.nodes import Aggregate, Binary, Column, Filter, Node, Project, Values
from watersmeet.algebra.scalars import Scalar, column_ref
from watersmeet.algebra.trees import cast, part_of, read, walk
from watersmeet.values.types import BOOLEAN, INTEGER, SqlType

Ids = frozenset[str]


@dataclass(frozen=True)
class Lifted:
    """A relation that no longer reads columns of the domain, and how to get the dependent relation back.

    For each row of the domain, the dependent relation has the rows of `relation` for which all `conditions` (over both)
    are true.
    deferred: its columns that `relation` does not have, as expressions over both.
    total: if no row meets the conditions, there is still one row, with NULL for each column of `relation`. More than
    one row never meets them.
    """

    relation: Node
    conditions: tuple[Scalar, ...] = ()
    deferred: Mapping[str, tuple[Column, Scalar]] = field(default_factory=dict)
    total: bool = False

    def resolve(self, scalar: Scalar) -> Scalar:
        """A scalar over the dependent relation's columns as one over `relation` and the domain."""
        return scalar.substitute({i: s.expression for i, (_, s) in self.deferred.items()})

    def value(self, column: Column) -> Scalar:
        """A column of the dependent relation."""
        if column.id in self.deferred:
            return cast(self.deferred[column.id][1], column.type)
        return read(column)


class Names:
    """Makes columns with ids that the tree does not use."""

    def __init__(self, tree: Node) -> None:
        used = [c.id for node in walk(tree) for c in node.columns]
        self._next = count(max((int(i[1:]) for i in used if i[0] == "#" and i[1:].isdecimal()), default=0) + 1)

    def new(self, name: str, kind: SqlType, nullable: bool) -> Column:
        """A column with a new id."""
        return Column(f"#{next(self._next)}", name, kind, nullable)


def distinct(node: Node, columns: Iterable[Column], names: Names) -> Aggregate:
    """The distinct values of some columns, under new ids."""
    wanted = tuple(columns)
    outputs = tuple(names.new(c.name, c.type, c.nullable) for c in wanted)
    return Aggregate(node, tuple(read(c) for c in wanted), (), outputs)


def one_row(node: Node, names: Names) -> Node:
    """One row if `node` has any, else none."""
    mark = names.new("exists", INTEGER, nullable=False)
    return distinct(Project(node, (mark,), (Scalar(exp.Literal.number(1), INTEGER, nullable=False),)), [mark], names)


def equals(left: Scalar, right: Scalar, *, null_safe: bool = False) -> Scalar:
    """`left = right`, or IS NOT DISTINCT FROM."""
    sides = [_operand(s) for s in (left, right)]
    kind = exp.NullSafeEQ if null_safe else exp.EQ
    nullable = not null_safe and (left.nullable or right.nullable)
    return Scalar(kind(this=sides[0], expression=sides[1]), BOOLEAN, nullable)


def _operand(scalar: Scalar) -> exp.Expression:
    """The expression as one side of an operator."""
    plain = isinstance(scalar.expression, (exp.Column, exp.Cast, exp.Paren, exp.Literal, exp.Anonymous))
    return scalar.expression.copy() if plain else exp.paren(scalar.expression)


def is_null(scalar: Scalar) -> Scalar:
    """`scalar IS NULL`."""
    return Scalar(exp.Is(this=_operand(scalar), expression=exp.null()), BOOLEAN, nullable=False)


def is_not_null(scalar: Scalar) -> Scalar:
    """`scalar IS NOT NULL`."""
    return Scalar(exp.Not(this=is_null(scalar).expression), BOOLEAN, nullable=False)


def case(branches: Iterable[tuple[Scalar, exp.Expression]], default: exp.Expression | None, kind: SqlType) -> Scalar:
    """CASE WHEN … THEN … ELSE `default` END."""
    ifs = [exp.If(this=test.expression.copy(), true=result.copy()) for test, result in branches]
    return Scalar(exp.Case(ifs=ifs, default=None if default is None else default.copy()), kind)


@dataclass(frozen=True)
class Equality:
    """A condition as `inner = outer`: inner reads the relation only, outer none of it."""

    inner: Scalar
    outer: exp.Expression
    null_safe: bool


def equality(condition: Scalar, relation: Node) -> Equality | None:
    """The condition as an equality of a value of `relation` with one of the domain; None if it isn't one."""
    node = condition.expression
    if not isinstance(node, (exp.EQ, exp.NullSafeEQ)):
        return None
    own = relation.ids
    for inner, outer in ((node.this, node.expression), (node.expression, node.this)):
        reads = Scalar(inner, BOOLEAN).columns
        if reads and reads <= own and not Scalar(outer, BOOLEAN).columns & own:
            part = part_of(inner.unnest(), relation.columns)
            return None if part is None else Equality(part, outer.unnest(), isinstance(node, exp.NullSafeEQ))
    return None


def inequality(condition: Scalar, relation: Node) -> tuple[Literal["min", "max"], Scalar] | None:
    """The value of `relation` that a condition compares with one of the domain, and whether the least or greatest value
    decides.
    """
    node = condition.expression
    if not isinstance(node, (exp.LT, exp.LTE, exp.GT, exp.GTE)):
        return None
    own = relation.ids
    inner, outer = node.this, node.expression
    if not Scalar(inner, BOOLEAN).columns & own:
        inner, outer = outer, inner
    if not Scalar(inner, BOOLEAN).columns <= own or Scalar(outer, BOOLEAN).columns & own:
        return None
    part = part_of(inner.unnest(), relation.columns)
    if part is None or part.type.is_nested or part.type.name in ("boolean", "jsonb", "interval"):
        return None
    rises = isinstance(node, (exp.LT, exp.LTE)) == (inner is node.expression)
    return "max" if rises else "min", part


def outer_column(found: Equality) -> str | None:
    """The id of the column if the outer side is just a column."""
    return found.outer.name if isinstance(found.outer, exp.Column) else None


def is_one_constant_row(node: Node) -> bool:
    """True for SELECT without FROM."""
    return isinstance(node, Values) and len(node.rows) == 1


def source_of(left: Node, ids: Ids) -> Node:
    """The smallest part of `left` with at least all combinations of values that `left` has in the columns `ids`."""
    if isinstance(left, Project):
        passed = {c.id for c, e in zip(left.outputs, left.exprs, strict=True) if e.column == c.id}
        return source_of(left.input, ids) if ids <= passed else left
    if isinstance(left, Filter):
        below = source_of(left.input, ids)
        return left if below is left.input else below
    if isinstance(left, Binary):
        return next((source_of(side, ids) for side in left.preserved if ids <= side.ids), left)
    return left


def reference(column: Column) -> exp.Expression:
    """The expression that reads a column."""
    return column_ref(column.id)
