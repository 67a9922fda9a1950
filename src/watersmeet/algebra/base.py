"""What every node of the algebra has: inputs, output columns, expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

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
    """Base of all nodes. What a class says of itself here is what rewrites and analyses ask for, by no list of classes.

    grows: its rows only come where those of its inputs only come.
    keeps_times: a row changes only when one of the input with the same times does, so that the input's watermarks hold.
    """

    grows: ClassVar[bool] = False
    keeps_times: ClassVar[bool] = False

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

    @property
    def reads(self) -> frozenset[str]:
        """The ids of the columns that the node itself reads, of its inputs or of the query around it."""
        return frozenset[str]().union(*[s.columns for s in self.scalars])

    def over(self, inputs: Sequence[Relation]) -> Self:
        """The node over other inputs."""
        assert not inputs
        return self

    def changed(self, change: Callable[[Scalar], Scalar]) -> Self:  # noqa: ARG002 - for those that have expressions
        """The node with another expression for each of its own."""
        assert not self.scalars
        return self

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

    def over(self, inputs: Sequence[Relation]) -> Self:
        (below,) = inputs
        return replace(self, input=below)


@dataclass(frozen=True)
class PassThrough(Unary):
    """A node that hands rows of its input on, each as it is and at most once.

    So its columns are the input's, and what holds for any choice of the input's rows holds for it.
    """


@dataclass(frozen=True)
class Binary(Relation):
    """A node with a left and a right input."""

    left: Relation
    right: Relation

    @property
    def inputs(self) -> tuple[Relation, ...]:
        return (self.left, self.right)

    def over(self, inputs: Sequence[Relation]) -> Self:
        left, right = inputs
        return replace(self, left=left, right=right)


def extended(columns: tuple[Column, ...], outer: bool) -> tuple[Column, ...]:
    """The columns as they are where rows may be extended by NULLs, if `outer`."""
    return tuple(Column(c.id, c.name, c.type, c.nullable or outer) for c in columns)
