"""Nodes of the algebra that are about the changes of their input rather than its content. See `relations`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, Self

from watersmeet.algebra.base import Column, Node, PassThrough, Unary
from watersmeet.values.watermarks import Watermark


@dataclass(frozen=True)
class Cut(PassThrough):
    """What the input gave before a query started, or what it gives from then on. See `circuit.operators.Cut`.

    keeps: `before` keeps the content at the start, which never changes; `after` keeps only later changes.
    """

    grows: ClassVar[bool] = True
    keeps_times: ClassVar[bool] = True
    keeps: Literal["before", "after"]
    moment: int


@dataclass(frozen=True)
class Reopened(Cut):
    """A scan of a source that the query reads by itself, from a place of its own on.

    Only trees that were just bound have it. start: where reading begins: `earliest`, `latest`, a time in ISO 8601, or
    offsets such as `5,3,11`; empty: where the source says. shards: the partitions that are read, as `0,2`; empty: all.
    strict: a message that can't be decoded holds up what it reads.
    """

    start: str = ""
    shards: str = ""
    strict: bool = False


@dataclass(frozen=True)
class LateRowFilter(PassThrough):
    """The input rows that are not late. Above it, the column `column` has the watermark `bound`.

    See `circuit.operators.LateRowFilter`.
    late: keep the late rows instead.
    age: ids of columns that order the rows of an epoch, the newest first. A row is then also late if its time is NULL
    or below that of an older row.
    """

    grows: ClassVar[bool] = True
    column: str
    bound: Watermark
    relation_id: str = ""
    name: str = ""
    clock: str = ""
    late: bool = False
    age: tuple[str, ...] = ()

    @property
    def held(self) -> frozenset[str]:
        """All but that of its own column, which gets another one."""
        return self.input.ids - {self.column}

    @property
    def filterable(self) -> frozenset[str]:
        """None if `age` orders the rows: a row that a condition removes may make others late."""
        return frozenset() if self.age else self.input.ids

    @property
    def reads(self) -> frozenset[str]:
        return frozenset([self.column, *self.age])


@dataclass(frozen=True)
class Records(Unary):
    """The changes of a relation as log records in order. No record is ever deleted. See `circuit.operators.Records`.

    key: ids of the columns that identify a row of a table. The input is then a `Changes`, which adds the last two
    columns. None: the input is a relation without deletions.
    kept: ids of the columns that a tombstone has.
    made: whether the record is a tombstone (boolean), and its place in the log (bigint).
    time: the id of the column with the time of the change; None: there is none.
    clock: how far these times have come.
    """

    key: tuple[str, ...] | None
    kept: tuple[str, ...]
    made: tuple[Column, Column]
    time: str | None = None
    clock: Watermark = ()

    @property
    def preserved(self) -> tuple[Node, ...]:
        return ()

    @property
    def grows_with(self) -> tuple[Node, ...]:
        return ()

    @property
    def held(self) -> frozenset[str]:
        return self.input.ids if self.key is None else frozenset()

    @property
    def filterable(self) -> frozenset[str]:
        """None for a table, each of whose changes is a record: its key says whether it replaces an earlier one."""
        return self.input.ids if self.key is None else frozenset()

    @property
    def own(self) -> tuple[Column, ...]:
        """The columns of the relation."""
        return self.input.columns if self.key is None else self.input.columns[:-2]

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        may_lack = self.key is not None
        own = tuple(replace(c, nullable=c.nullable or (may_lack and c.id not in self.kept)) for c in self.own)
        return (*own, *self.made)


@dataclass(frozen=True)
class Cause:
    """Where changed rows get their times from: the changes of one side of a join, or of the rows that are grouped.

    changes: its columns are those that `match` names, in that order, then the time of the change. None: the rows
    inserted in the same epoch.
    match: ids of the columns by which rows and causes match.
    time: the id of the rows' own time on this side; None: they have none.
    partners: how many of `match`, none of them NULL, have to match for a row that lacks this side.
    """

    changes: Node | None
    match: tuple[str, ...]
    time: str | None
    partners: int = 0


@dataclass(frozen=True)
class Changes(Node):
    """The rows that are inserted into and deleted from the input. None is ever deleted. See
    `circuit.operators.Changes`.

    causes: where a change gets its time from. All of them match by the same first columns (`matched`).
    made: whether the row was deleted (boolean), and the time of the change (timestamp).
    whole: keep all columns of the input, because another reader of it has exactly these.
    """

    input: Node
    causes: tuple[Cause, ...]
    made: tuple[Column, Column]
    whole: bool = False

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input, *(c.changes for c in self.causes if c.changes is not None))

    def over(self, inputs: Sequence[Node]) -> Self:
        rest = iter(inputs[1:])
        causes = tuple(c if c.changes is None else replace(c, changes=next(rest)) for c in self.causes)
        return replace(self, input=inputs[0], causes=causes)

    @property
    def grows_with(self) -> tuple[Node, ...]:
        return ()

    @property
    def matched(self) -> tuple[str, ...]:
        """The ids of the columns by which rows and their causes are brought to one place."""
        first = self.causes[0]
        return first.match[: first.partners or len(first.match)]

    @property
    def alone(self) -> bool:
        """Whether deleted rows get their times from inserted rows, and from nothing else."""
        return any(c.changes is None for c in self.causes)

    @property
    def reads(self) -> frozenset[str]:
        """The ids of the input columns that decide about times."""
        return frozenset(i for c in self.causes for i in (*c.match, c.time) if i is not None)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        return (*self.input.columns, *self.made)


@dataclass(frozen=True)
class Repartition(PassThrough):
    """The input's rows, unchanged, with as many partitions as the relation that they are joined with."""

    grows: ClassVar[bool] = True
    keeps_times: ClassVar[bool] = True
    partitions: int

    @property
    def filterable(self) -> frozenset[str]:
        return self.input.ids
