"""Nodes of the logical algebra: frozen, self-checking, each with its output columns.

`columns` of a node are what it gives; ids are unique within one view's tree. Expressions may
only read columns of the node's inputs. Multiplicities count: every node is a multiset.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from watersmeet.algebra.scalars import Scalar
from watersmeet.errors import Span
from watersmeet.types import SqlType

JoinKind = Literal["inner", "left", "right", "full", "semi", "anti"]


@dataclass(frozen=True, slots=True)
class Column:
    """An output column: its id in the tree, the name a user knows it by, type, nullability."""

    id: str
    name: str
    type: SqlType
    nullable: bool = True


class Relation:
    """Base of all nodes."""

    @property
    def inputs(self) -> tuple[Relation, ...]:
        """The nodes that this one reads."""
        raise NotImplementedError

    @property
    def columns(self) -> tuple[Column, ...]:
        """The output columns, in order."""
        raise NotImplementedError

    @property
    def ids(self) -> frozenset[str]:
        """The ids of the output columns."""
        return frozenset(c.id for c in self.columns)


def _check(scalar: Scalar, *inputs: Relation) -> None:
    known = frozenset[str]().union(*[i.ids for i in inputs])
    unknown = scalar.columns - known
    assert not unknown, f"{scalar.sql()} reads {sorted(unknown)}, inputs give {sorted(known)}"


@dataclass(frozen=True)
class Scan(Relation):
    """The changes of a catalog relation.

    relation_id, relation_name: of the catalog (for EXPLAIN the name). outputs: the columns read.
    source_names: the relation's own name of each output. append_only: no change ever has diff -1.
    key: ids among `outputs` that identify a row (the declared primary key), if all are read.
    """

    relation_id: str
    relation_name: str
    outputs: tuple[Column, ...]
    source_names: tuple[str, ...]
    append_only: bool
    key: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[Relation, ...]:
        return ()

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.outputs


@dataclass(frozen=True)
class Values(Relation):
    """Constant rows. Every scalar is free of columns."""

    rows: tuple[tuple[Scalar, ...], ...]
    outputs: tuple[Column, ...]

    @property
    def inputs(self) -> tuple[Relation, ...]:
        return ()

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.outputs


@dataclass(frozen=True)
class Filter(Relation):
    """The rows for which `predicate` is true (not false, not NULL)."""

    input: Relation
    predicate: Scalar

    def __post_init__(self) -> None:
        _check(self.predicate, self.input)

    @property
    def inputs(self) -> tuple[Relation, ...]:
        return (self.input,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.input.columns


@dataclass(frozen=True)
class Project(Relation):
    """One row for each input row: `exprs[i]` gives `outputs[i]`. A pass-through column keeps its id or gets a new one."""

    input: Relation
    outputs: tuple[Column, ...]
    exprs: tuple[Scalar, ...]

    def __post_init__(self) -> None:
        assert len(self.outputs) == len(self.exprs)
        for e in self.exprs:
            _check(e, self.input)

    @property
    def inputs(self) -> tuple[Relation, ...]:
        return (self.input,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.outputs


@dataclass(frozen=True, slots=True)
class KeyPair:
    """An equality of a join: `left` over the left input, `right` over the right one, of one type.

    null_safe: IS NOT DISTINCT FROM.
    """

    left: Scalar
    right: Scalar
    null_safe: bool = False


@dataclass(frozen=True)
class Join(Relation):
    """A join: pairs with equal `keys` for which `residual` (over both inputs) is true.

    `kind` semi and anti give the left columns only. Outer kinds null-extend and make the
    other side's columns nullable. Without keys the right input must be `single_row` or small:
    it is then copied to every bucket (`broadcast`); the planner refuses all else, at `span`
    of the statement's text if that is known. spread: which keys say where rows that have to move go; none: all.
    """

    left: Relation
    right: Relation
    kind: JoinKind
    keys: tuple[KeyPair, ...]
    residual: Scalar | None = None
    broadcast: bool = False
    span: Span | None = field(default=None, compare=False)
    spread: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for k in self.keys:
            _check(k.left, self.left)
            _check(k.right, self.right)
        if self.residual is not None:
            _check(self.residual, self.left, self.right)

    @property
    def inputs(self) -> tuple[Relation, ...]:
        return (self.left, self.right)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        if self.kind in ("semi", "anti"):
            return self.left.columns

        def extended(columns: tuple[Column, ...], nullable: bool) -> tuple[Column, ...]:
            return tuple(Column(c.id, c.name, c.type, c.nullable or nullable) for c in columns)

        return extended(self.left.columns, self.kind in ("right", "full")) + extended(
            self.right.columns, self.kind in ("left", "full")
        )


AggregateFunction = Literal["count", "sum", "avg", "min", "max", "bool_and", "bool_or"]


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """`function(argument) FILTER (WHERE filter)`; `argument` None is count(*)."""

    function: AggregateFunction
    argument: Scalar | None
    filter: Scalar | None
    distinct: bool
    type: SqlType


@dataclass(frozen=True)
class Aggregate(Relation):
    """Groups by `keys` (NULLs are one group) and one value for each call.

    Outputs: first the keys, then the calls. No calls: DISTINCT. `keys` empty and calls
    present: exactly one row, also for no input.
    """

    input: Relation
    keys: tuple[Scalar, ...]
    calls: tuple[AggregateCall, ...]
    outputs: tuple[Column, ...]
    spread: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.outputs) == len(self.keys) + len(self.calls)
        for key in self.keys:
            _check(key, self.input)
        for call in self.calls:
            for part in (call.argument, call.filter):
                if part is not None:
                    _check(part, self.input)

    @property
    def inputs(self) -> tuple[Relation, ...]:
        return (self.input,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.outputs


@dataclass(frozen=True)
class Unnest(Relation):
    """Each input row once for every element of its `arrays`: a set-returning function whose values are arrays.

    Outputs: the input's columns, then `elements[i]` of `arrays[i]`, then `ordinality` (bigint, from 1) if it is
    asked for. A row has as many results as its longest array has elements; shorter ones are filled up with NULL,
    and NULL counts as empty (PostgreSQL 17, 7.2.1.4 Table Functions; 9.26 Set Returning Functions).
    condition: over all columns; results for which it is not true do not count. outer: a row without results
    comes out once with NULLs (LEFT JOIN LATERAL … ON condition); without it there is no condition.
    """

    input: Relation
    arrays: tuple[Scalar, ...]
    elements: tuple[Column, ...]
    ordinality: Column | None = None
    outer: bool = False
    condition: Scalar | None = None

    def __post_init__(self) -> None:
        assert len(self.arrays) == len(self.elements) > 0
        assert self.outer or self.condition is None
        for array in self.arrays:
            assert array.type.name == "array"
            _check(array, self.input)
        if self.condition is not None:
            unknown = self.condition.columns - self.ids
            assert not unknown, f"{self.condition.sql()} reads {sorted(unknown)}"

    @property
    def inputs(self) -> tuple[Relation, ...]:
        return (self.input,)

    @property
    def made(self) -> tuple[Column, ...]:
        """The columns that the input does not have."""
        return self.elements if self.ordinality is None else (*self.elements, self.ordinality)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        return (*self.input.columns, *self.made)


@dataclass(frozen=True)
class Union(Relation):
    """UNION ALL: column i of the output is column i of every input. UNION is an Aggregate above it."""

    parts: tuple[Relation, ...]
    outputs: tuple[Column, ...]

    def __post_init__(self) -> None:
        assert all(len(p.columns) == len(self.outputs) for p in self.parts)

    @property
    def inputs(self) -> tuple[Relation, ...]:
        return self.parts

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.outputs


@dataclass(frozen=True)
class Repeat(Relation):
    """Each row of the input `times` times more often: not at all where `times`, a bigint, is NULL or below 1."""

    input: Relation
    times: Scalar

    def __post_init__(self) -> None:
        _check(self.times, self.input)

    @property
    def inputs(self) -> tuple[Relation, ...]:
        return (self.input,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.input.columns
