"""Nodes of the algebra about the changes of their input, not its content: see `relations`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, Self

from watersmeet.algebra.base import Column, PassThrough, Relation, Unary
from watersmeet.watermarks import Watermark


@dataclass(frozen=True)
class Cut(PassThrough):
    """What the input gave before a query started, or what it gives from then on, as `circuit.operators.Cut`.

    keeps before: the content as it was, which stands still. after: only the changes that come later.
    """

    grows: ClassVar[bool] = True
    keeps_times: ClassVar[bool] = True
    keeps: Literal["before", "after"]
    moment: int


@dataclass(frozen=True)
class LateRowFilter(PassThrough):
    """The rows of the input that are not late by the column `column`, which has the watermark `bound` from then on.

    As `circuit.operators.LateRowFilter`.

    late: those that are instead. age: ids of columns that order the rows of an epoch, the newest first: one is also
    late behind an older row with a greater time, and without a time.
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
        """Those of other columns; that of its own column is another one."""
        return self.input.ids - {self.column}

    @property
    def filterable(self) -> frozenset[str]:
        """None if the order of rows counts: rows that a condition drops decide about others."""
        return frozenset() if self.age else self.input.ids

    @property
    def reads(self) -> frozenset[str]:
        return frozenset([self.column, *self.age])


@dataclass(frozen=True)
class Records(Unary):
    """The changes of a relation as records in the order of a log, as `circuit.operators.Records`: none is ever taken
    back.

    key: ids of the columns that identify a row of a table, of which the input has the `Changes`, with what these add as
    its last two columns; None: the input is a relation whose rows only come. kept: ids of the columns that a record
    without value has. made: whether the record is without value (boolean), and its place in the log (bigint). time: the
    id of the column that has the time of the change (None: none has). clock: how far these times have come.
    """

    key: tuple[str, ...] | None
    kept: tuple[str, ...]
    made: tuple[Column, Column]
    time: str | None = None
    clock: Watermark = ()

    @property
    def preserved(self) -> tuple[Relation, ...]:
        return ()

    @property
    def grows_with(self) -> tuple[Relation, ...]:
        return ()

    @property
    def held(self) -> frozenset[str]:
        return self.input.ids if self.key is None else frozenset()

    @property
    def filterable(self) -> frozenset[str]:
        """None of a table's: every change of it is a record, told from others by the row's key."""
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
    """What gives the changes of rows their time: changes of one side of a join, or of what is grouped.

    changes: its columns are what `match` names, in that order, then the time of the change. None: the rows that come in
    the same epoch. match, time: ids of columns of the rows: what is equal, and the time that they have of this side by
    themselves (None: they say nothing of it). partners: a row that lacks this side has the changes that agree with it
    in the first so many of `match`, none of them NULL.
    """

    changes: Relation | None
    match: tuple[str, ...]
    time: str | None
    partners: int = 0


@dataclass(frozen=True)
class Changes(Relation):
    """The rows of the input that come and go, as `circuit.operators.Changes`: none is ever taken back.

    made: whether the row went (boolean), and the time of what caused that (timestamp), by `causes`. All of them match
    by the same columns first, as many as `matched` has. whole: all columns of the input are kept, because another
    reader of it has just these.
    """

    input: Relation
    causes: tuple[Cause, ...]
    made: tuple[Column, Column]
    whole: bool = False

    @property
    def inputs(self) -> tuple[Relation, ...]:
        return (self.input, *(c.changes for c in self.causes if c.changes is not None))

    def over(self, inputs: Sequence[Relation]) -> Self:
        rest = iter(inputs[1:])
        causes = tuple(c if c.changes is None else replace(c, changes=next(rest)) for c in self.causes)
        return replace(self, input=inputs[0], causes=causes)

    @property
    def grows_with(self) -> tuple[Relation, ...]:
        return ()

    @property
    def matched(self) -> tuple[str, ...]:
        """The ids of the columns by which rows and their causes have to be in one place."""
        first = self.causes[0]
        return first.match[: first.partners or len(first.match)]

    @property
    def alone(self) -> bool:
        """Whether what comes gives what goes its time, and nothing else does."""
        return any(c.changes is None for c in self.causes)

    @property
    def reads(self) -> frozenset[str]:
        """The ids of the columns of the input that decide about times."""
        return frozenset(i for c in self.causes for i in (*c.match, c.time) if i is not None)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        return (*self.input.columns, *self.made)


@dataclass(frozen=True)
class Repartition(PassThrough):
    """The input's rows as they are, with as many partitions as the relation that they are joined with has."""

    grows: ClassVar[bool] = True
    keeps_times: ClassVar[bool] = True
    partitions: int

    @property
    def filterable(self) -> frozenset[str]:
        return self.input.ids
