"""The base classes of nodes of the algebra: inputs, output columns, expressions, traits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Final, Self

from watersmeet.algebra.scalars import Scalar
from watersmeet.errors import Span
from watersmeet.values.types import SqlType


@dataclass(frozen=True, slots=True)
class Column:
    """An output column: its id in the tree, its name for users, type, nullability."""

    id: str
    name: str
    type: SqlType
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class KeyPair:
    """An equality of a join between `left`, over the left input, and `right`, over the right input. Both have one type.

    null_safe: whether it is IS NOT DISTINCT FROM.
    """

    left: Scalar
    right: Scalar
    null_safe: bool = False


_NONE: Final = frozenset[str]()


class Node:
    """The base class of all nodes. Rewrites and analyses use its traits instead of listing classes.

    The defaults are safe, that is true of every node. grows: whether no row is ever deleted if none is deleted from the
    inputs. keeps_times: whether a row changes only when a row of the first input with the same times changes, so that
    all watermarks of this input also hold for the node.
    """

    grows: ClassVar[bool] = False
    keeps_times: ClassVar[bool] = False

    @property
    def revises(self) -> str:
        """The reason why rows may be deleted even if no input row is deleted, as a clause of an error text."""
        return "rows may be taken back"

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The nodes that this one reads."""
        raise NotImplementedError

    @property
    def columns(self) -> tuple[Column, ...]:
        """The output columns in order."""
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
        """The ids of the columns that the node itself reads, from its inputs or from the enclosing query."""
        return _NONE.union(*[s.columns for s in self.scalars])

    @property
    def preserved(self) -> tuple[Node, ...]:
        """The inputs from which every row of the node contains exactly one row with unchanged columns."""
        return ()

    @property
    def at_most_one(self) -> bool:
        """Whether each row of the first input produces at most one row, and no other row is output."""
        return False

    @property
    def grows_with(self) -> tuple[Node, ...] | None:
        """The inputs that must not delete rows so that the node deletes none; None: it may delete rows in any case."""
        return self.inputs if self.grows else None

    @property
    def held(self) -> frozenset[str]:
        """The ids of input columns whose watermarks also hold for the node."""
        return self.inputs[0].ids if self.keeps_times else _NONE

    @property
    def filterable(self) -> frozenset[str]:
        """The ids of columns of the first input. A condition that reads only these may be evaluated before the node."""
        return _NONE

    @property
    def rejected(self) -> frozenset[str]:
        """The ids of columns of the first input. A row with NULL in one of them produces no row."""
        return _NONE

    @property
    def together(self) -> tuple[tuple[Scalar, ...], ...]:
        """For each input, the values by which its rows must be distributed; empty: any distribution."""
        return ()

    def over(self, inputs: Sequence[Node]) -> Self:
        """The node over other inputs."""
        assert not inputs
        return self

    def changed(self, change: Callable[[Scalar], Scalar]) -> Self:  # noqa: ARG002 - for those that have expressions
        """The node with each of its expressions replaced by the result of `change`."""
        assert not self.scalars
        return self

    @cached_property
    def free(self) -> frozenset[str]:
        """The ids of columns that the tree reads but does not produce; they belong to the enclosing query."""
        own = _NONE.union(*[s.columns for s in self.scalars]) - _NONE.union(*[i.ids for i in self.inputs])
        return own.union(*[i.free for i in self.inputs])


class Leaf(Node):
    """A node without inputs, which produces `outputs`."""

    outputs: tuple[Column, ...]

    @property
    def inputs(self) -> tuple[Node, ...]:
        return ()

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.outputs


@dataclass(frozen=True)
class Unary(Node):
    """A node with one input. By default its rows have the columns of the input's rows."""

    input: Node

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.input.columns

    @property
    def preserved(self) -> tuple[Node, ...]:
        return (self.input,)

    def over(self, inputs: Sequence[Node]) -> Self:
        (below,) = inputs
        return replace(self, input=below)


@dataclass(frozen=True)
class PassThrough(Unary):
    """A node that outputs rows of its input, unchanged and at most once.

    So it has the columns of the input, and facts that hold for all subsets of the input's rows also hold for its rows.
    """

    @property
    def at_most_one(self) -> bool:
        return True


@dataclass(frozen=True)
class Partitioned(Unary):
    """A node that computes its rows separately for each partition (the input rows that are equal in `partition`).

    Its rows contain the values of `partition`, so a condition on these removes whole partitions.
    """

    revises: ClassVar[str] = "a window function or LIMIT revises rows"
    partition: tuple[Scalar, ...]

    @property
    def held(self) -> frozenset[str]:
        """Any row of a partition may change the others, so only watermarks of the partition's columns hold."""
        return frozenset(k.column for k in self.partition if k.column is not None)

    @property
    def filterable(self) -> frozenset[str]:
        return frozenset(k.column for k in self.partition if k.column is not None and k.type.is_identity)

    @property
    def together(self) -> tuple[tuple[Scalar, ...], ...]:
        return (self.partition,)


@dataclass(frozen=True)
class Binary(Node):
    """A node that pairs rows of a left and a right input.

    kind: the output. `inner`: the pairs. `left`, `right`, `full`: also the rows of this side (or of both sides) without
    a partner, with NULLs in the columns of the other side. All other kinds (semi, anti, mark) have only the left
    columns.
    span: the span of the JOIN.
    called: the name in error texts.
    """

    called: ClassVar[str] = "a join"
    left: Node
    right: Node
    kind: str
    span: Span | None = field(default=None, compare=False, kw_only=True)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.left, self.right)

    @property
    def gives_right(self) -> bool:
        """Whether it outputs the right input's columns."""
        return self.kind in ("inner", "left", "right", "full")

    @property
    def keeps_left(self) -> bool:
        """Whether every output row contains a row of the left input, never NULLs instead."""
        return self.kind not in ("right", "full")

    @property
    def keeps_right(self) -> bool:
        """Whether every output row contains a row of the right input, never NULLs instead."""
        return self.kind in ("inner", "right")

    @property
    def preserved(self) -> tuple[Node, ...]:
        return (self.left,) * self.keeps_left + (self.right,) * self.keeps_right

    @property
    def at_most_one(self) -> bool:
        return not self.gives_right

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        left = _padded(self.left.columns, not self.keeps_left)
        return left + _padded(self.right.columns, not self.keeps_right) if self.gives_right else left

    def over(self, inputs: Sequence[Node]) -> Self:
        left, right = inputs
        return replace(self, left=left, right=right)


@dataclass(frozen=True)
class KeyedJoin(Binary):
    """A join of rows with equal `keys`."""

    keys: tuple[KeyPair, ...]

    @property
    def key_scalars(self) -> tuple[Scalar, ...]:
        """Both sides of all keys."""
        return tuple(s for k in self.keys for s in (k.left, k.right))

    @property
    def together(self) -> tuple[tuple[Scalar, ...], ...]:
        return tuple(k.left for k in self.keys), tuple(k.right for k in self.keys)


def _padded(columns: tuple[Column, ...], lacking: bool) -> tuple[Column, ...]:
    """The columns of a side. lacking: whether rows may have NULLs instead."""
    return tuple(replace(c, nullable=True) for c in columns) if lacking else columns
