"""A stream: an operator, and what is still to be done to its rows.

Filters and projections stay pending until an operator needs real columns. Then they become one Map with exactly these
columns. So Maps are never stacked, run below exchanges, and drop columns that nobody reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from watersmeet.algebra.coercion import cast
from watersmeet.algebra.nodes import Column
from watersmeet.algebra.scalars import Scalar, conjunction
from watersmeet.circuit.operators import Map, Operator
from watersmeet.planner.builder import Builder, positional
from watersmeet.planner.texts import index_of, position, sql
from watersmeet.types import BOOLEAN

Wanted = tuple[str, str]
"""An expression of a stream by text and type, the identity of a column that is asked for."""


@dataclass(frozen=True)
class Stream:
    """values: for each column id of the tree, its scalar over c0, c1, … of `operator`. pending: filters over them."""

    operator: Operator
    values: Mapping[str, Scalar]
    pending: tuple[Scalar, ...] = ()

    def resolve(self, scalar: Scalar) -> Scalar:
        """A scalar over column ids as one over the operator's columns."""
        return scalar.substitute({i: v.expression for i, v in self.values.items()})

    def filtered(self, parts: Iterable[Scalar]) -> Stream:
        """The stream of the rows for which all `parts` (over column ids) are true."""
        return replace(self, pending=self.pending + tuple(self.resolve(p) for p in parts))


def of_operator(op: Operator, columns: Sequence[tuple[Column, int]]) -> Stream:
    """The stream of an operator; each column of the tree comes with its position."""
    return Stream(op, {c.id: at(op, i) for c, i in columns})


def at(op: Operator, index: int) -> Scalar:
    """The scalar that reads column `index` of `op`."""
    return Scalar(position(index), op.schema[index].type, op.schema[index].nullable)


def identity(scalar: Scalar) -> Wanted:
    """The key by which two scalars are the same column."""
    return sql(scalar.expression), repr(scalar.type)


def emit(builder: Builder, stream: Stream, wanted: Sequence[Scalar]) -> tuple[Operator, dict[Wanted, int]]:
    """An operator with exactly the `wanted` scalars (over the operator's columns) in any order, and their positions.

    There is always a column, because rows must be counted: TRUE if nothing is wanted.
    """
    distinct = {identity(w): w for w in wanted} or {identity(_TRUE): _TRUE}
    if not stream.pending:
        positions = {key: plain(stream.operator, w) for key, w in distinct.items()}
        found = {key: p for key, p in positions.items() if p is not None}
        if len(found) == len(distinct) and set(found.values()) == set(range(len(stream.operator.schema))):
            return stream.operator, found
    ordered = sorted(distinct.values(), key=lambda w: _order(stream.operator, w))
    return _map(builder, stream, ordered), {identity(w): i for i, w in enumerate(ordered)}


def emit_exactly(builder: Builder, stream: Stream, wanted: Sequence[Scalar]) -> Operator:
    """An operator whose columns are the `wanted` scalars in this order."""
    same = [plain(stream.operator, w) for w in wanted] == list(range(len(stream.operator.schema)))
    if same and not stream.pending:
        return stream.operator
    return _map(builder, stream, wanted)


def settled(builder: Builder, stream: Stream) -> Stream:
    """The same stream with nothing pending, so that no expression is computed twice above."""
    op, positions = emit(builder, stream, list(stream.values.values()))
    return Stream(op, {i: at(op, positions[identity(v)]) for i, v in stream.values.items()})


_TRUE = Scalar(exp.true(), BOOLEAN, nullable=False)


def plain(op: Operator, scalar: Scalar) -> int | None:
    """The position of a scalar that is just a column, of its own type."""
    if scalar.column is None:
        return None
    index = index_of(scalar.column)
    return index if op.schema[index].type == scalar.type else None


def _order(op: Operator, scalar: Scalar) -> tuple[int, Wanted]:
    """Columns before expressions, in a fixed order, so that views that read the same share the Map."""
    index = plain(op, scalar)
    return (len(op.schema) if index is None else index), identity(scalar)


def _map(builder: Builder, stream: Stream, wanted: Sequence[Scalar]) -> Operator:
    op = stream.operator
    exprs, fields = [], []
    for scalar in wanted:
        if scalar.column is None:
            exprs.append(sql(scalar.expression))
            fields.append((scalar.type, scalar.nullable))
        else:
            column = at(op, index_of(scalar.column))
            exprs.append(sql(cast(column, scalar.type).expression))
            fields.append((scalar.type, column.nullable))
    predicate = conjunction(list(dict.fromkeys(stream.pending)))
    text = None if predicate is None else sql(predicate.expression)
    return builder.add(Map((op.id,), positional(fields), op.append_only, tuple(exprs), text))
