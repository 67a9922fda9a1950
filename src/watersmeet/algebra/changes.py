"""Nodes of the algebra about the changes of their input, not its content: see `relations`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from watersmeet.algebra.base import Column, Unary
from watersmeet.watermarks import Watermark


@dataclass(frozen=True)
class Cut(Unary):
    """What the input gave before a query started, or what it gives from then on, as `circuit.operators.Cut`.

    keeps before: the content as it was, which stands still. after: only the changes that come later.
    """

    keeps: Literal["before", "after"]
    moment: int


@dataclass(frozen=True)
class Punctual(Unary):
    """The rows of the input that are not late by the column `column`, as `circuit.operators.Punctual`: from then on it has the watermark `bound`.

    late: those that are instead.
    """

    column: str
    bound: Watermark
    relation_id: str = ""
    name: str = ""
    clock: str = ""
    late: bool = False


@dataclass(frozen=True)
class Records(Unary):
    """The changes of the input as records in the order of a log, as `circuit.operators.Records`: none is ever taken back.

    key: ids of the columns that identify a row of a table; None: of an input whose rows only come. kept: ids of the columns that a
    record without value has. made: whether the record is without value (boolean), and its place in the log (bigint).
    """

    key: tuple[str, ...] | None
    kept: tuple[str, ...]
    made: tuple[Column, Column]

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        may_lack = self.key is not None
        own = tuple(replace(c, nullable=c.nullable or (may_lack and c.id not in self.kept)) for c in self.input.columns)
        return (*own, *self.made)


@dataclass(frozen=True)
class Repartition(Unary):
    """The input's rows as they are, with as many partitions as the relation that they are joined with has."""

    partitions: int
