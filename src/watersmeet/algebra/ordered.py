"""Nodes of the algebra for window functions and for the first rows of an order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal, Self

from watersmeet.algebra.base import Column, Partitioned, PassThrough
from watersmeet.algebra.scalars import AggregateCall, Scalar, SortKey
from watersmeet.values.types import SqlType

#: Window functions that read only earlier rows and peers, and those that read later rows whatever their frame is.
_BACK: Final = ("row_number", "rank", "dense_rank")
_AHEAD: Final = ("ntile", "percent_rank", "cume_dist")


@dataclass(frozen=True, slots=True)
class WindowFrame:
    """The rows around a row, as in `circuit.operators.WindowFrame`, but with expressions for value, low and high.

    before, after: in queries that end, how far the frame reaches where that is a value, or no constant.
    """

    mode: Literal["rows", "range", "groups"]
    start: int | None
    end: int | None
    exclude: str = "none"
    value: Scalar | None = None
    low: Scalar | None = None
    high: Scalar | None = None
    before: Scalar | None = None
    after: Scalar | None = None

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        """The expressions of its bounds."""
        return tuple(s for s in (self.value, self.low, self.high, self.before, self.after) if s is not None)

    def changed(self, change: Callable[[Scalar], Scalar]) -> WindowFrame:
        """The frame with another expression for each of its own."""

        def other(scalar: Scalar | None) -> Scalar | None:
            return None if scalar is None else change(scalar)

        return replace(
            self,
            value=other(self.value),
            low=other(self.low),
            high=other(self.high),
            before=other(self.before),
            after=other(self.after),
        )


@dataclass(frozen=True, slots=True)
class WindowCall:
    """`function(arguments) FILTER (WHERE filter) OVER (ORDER BY order frame)`, as in `circuit.operators.WindowSpec`.

    In queries that end alone: varying, what stands in the place of `number` where it is no constant; aggregate, the
    call of an aggregate function as a whole.
    """

    function: str
    arguments: tuple[Scalar, ...]
    number: int
    filter: Scalar | None
    order: tuple[SortKey, ...]
    frame: WindowFrame
    type: SqlType
    varying: Scalar | None = None
    aggregate: AggregateCall | None = None

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        """All expressions in it."""
        own = tuple(s for s in (self.filter, self.varying) if s is not None)
        inner = () if self.aggregate is None else self.aggregate.scalars
        return (*self.arguments, *own, *inner, *(k.value for k in self.order), *self.frame.scalars)

    def changed(self, change: Callable[[Scalar], Scalar]) -> WindowCall:
        """The call with another expression for each of its own."""
        return replace(
            self,
            arguments=tuple(map(change, self.arguments)),
            filter=None if self.filter is None else change(self.filter),
            order=tuple(k.changed(change) for k in self.order),
            frame=self.frame.changed(change),
            varying=None if self.varying is None else change(self.varying),
            aggregate=None if self.aggregate is None else self.aggregate.changed(change),
        )

    @property
    def looks_back(self) -> bool:
        """Whether its value depends only on rows up to a row's last peer."""
        if self.function in ("lag", "lead"):  # their distance may be negative
            return (self.number if self.function == "lag" else -self.number) >= 0
        ends = self.frame.end is not None and self.frame.end <= 0 and self.frame.high is None
        return self.function in _BACK or (self.function not in _AHEAD and ends)


@dataclass(frozen=True)
class Window(Partitioned):
    """Each input row with the value of each call over the rows of its partition.

    If an order leaves rows equal, the columns of their rows that are read here or above break the tie, in column order.
    keeps_time: the time that orders the rows keeps its watermark, although rows below it may change. They change only
    in the calls' values, from one that is not below the watermark to another. A reader must not distinguish these, for
    example a join that compares them with times below the watermark.
    """

    calls: tuple[WindowCall, ...]
    outputs: tuple[Column, ...]
    keeps_time: bool = False

    def __post_init__(self) -> None:
        assert len(self.outputs) == len(self.calls)

    @property
    def at_most_one(self) -> bool:
        return True

    @property
    def held(self) -> frozenset[str]:
        """Those of the partition; also that of the time that orders the rows, if no row changes with a later one."""
        further = {c.order[0].value.column for c in self.calls} if self.keeps_time else {self._looking_back()}
        return super().held | {i for i in further if i is not None}

    def _looking_back(self) -> str | None:
        """The column by which all calls order their rows first, ascending, if all calls look back."""
        first = {
            c.order[0].value.column if c.order and not (c.order[0].descending or c.order[0].nulls_first) else None
            for c in self.calls
        }
        return first.pop() if len(first) == 1 and all(c.looks_back for c in self.calls) else None

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        return (*self.partition, *(s for c in self.calls for s in c.scalars))

    def changed(self, change: Callable[[Scalar], Scalar]) -> Self:
        partition = tuple(map(change, self.partition))
        return replace(self, partition=partition, calls=tuple(c.changed(change) for c in self.calls))

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        return (*self.input.columns, *self.outputs)


@dataclass(frozen=True)
class TopN(Partitioned, PassThrough):
    """Of each partition, in `order`: the rows after `offset`, at most `limit` of them (None: all).

    with_ties: also rows equal in `order` to the last one. Ties are broken as in `Window`.
    """

    order: tuple[SortKey, ...]
    limit: int | None
    offset: int = 0
    with_ties: bool = False

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        return (*self.partition, *(k.value for k in self.order))

    def changed(self, change: Callable[[Scalar], Scalar]) -> Self:
        partition = tuple(map(change, self.partition))
        return replace(self, partition=partition, order=tuple(k.changed(change) for k in self.order))
