"""What every node of the algebra has: inputs, output columns, expressions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from watersmeet.algebra.scalars import Scalar
from watersmeet.types import SqlType


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

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        """The node's own expressions."""
        return ()

    @cached_property
    def free(self) -> frozenset[str]:
        """The ids of columns that the tree reads and that none of its nodes gives: those of the query around it."""
        none = frozenset[str]()
        own = none.union(*[s.columns for s in self.scalars]) - none.union(*[i.ids for i in self.inputs])
        return own.union(*[i.free for i in self.inputs])


@dataclass(frozen=True)
class Unary(Relation):
    """A node with one input. Its columns are the input's where it does not say otherwise."""

    input: Relation

    @property
    def inputs(self) -> tuple[Relation, ...]:
        return (self.input,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.input.columns


def extended(columns: tuple[Column, ...], outer: bool) -> tuple[Column, ...]:
    """The columns as they are where rows may be extended by NULLs, if `outer`."""
    return tuple(Column(c.id, c.name, c.type, c.nullable or outer) for c in columns)
