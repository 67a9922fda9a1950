"""Watermarks of all operators, as static functions of the watermarks of sources.

A watermark is a lower bound of a column: later inserted and deleted rows always have values at or above it. The
watermark of a source with WATERMARK FOR is its greatest event time minus its delay. The plan derives the watermark of
each operator, which is the least of some terms; each term is a source's watermark after some steps. So tasks only
exchange the sources' watermarks, and all buckets have all watermarks in the same epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Final, Literal

import numpy as np

from watersmeet.values.times import DAY_US
from watersmeet.values.types import Schema

#: The source whose watermark is the time of the epoch, the result of now().
NOW: Final = "now()"

#: The bounds of times, which are 64-bit integers. No step moves infinities beyond them.
_LEAST_US: Final = -(1 << 63)
_GREATEST_US: Final = (1 << 63) - 1


def within(time_us: int) -> int:
    """The time, limited to 64 bits."""
    return max(_LEAST_US, min(_GREATEST_US, time_us))


@dataclass(frozen=True, slots=True)
class Step:
    """A step on a time. `add`: adds `amount_us`. `floor`: rounds down to a multiple of `amount_us` (> 0), counted from
    `origin_us`.
    """

    kind: Literal["add", "floor"]
    amount_us: int
    origin_us: int = 0

    def apply(self, time_us: int) -> int:
        """The time after the step."""
        if self.kind == "add":
            return within(time_us + self.amount_us)
        return within(time_us - (time_us - self.origin_us) % self.amount_us)


@dataclass(frozen=True, slots=True)
class MonthStep:
    """A step of months on a time. `add_months`: adds months. `floor_months`: rounds down to a multiple of months,
    counted from 1970. `clock_months`: adds months to the clock.

    Added months are the same as in PostgreSQL, except where it goes back because the target month has fewer days:
    `add_months` is never later than the sum of a later time, `clock_months` never earlier than that of an earlier time.
    """

    kind: Literal["add_months", "floor_months", "clock_months"]
    months: int

    def apply(self, time_us: int) -> int:
        """The time after the step. Steps always keep the order of times."""
        month = (
            int(np.datetime64(time_us, "us").astype("datetime64[M]").astype(np.int64)) if _is_finite(time_us) else None
        )
        if month is None:
            return time_us
        if self.kind == "floor_months":
            return _start_of(month - month % self.months)
        start_us, target_us = _start_of(month), _start_of(month + self.months)
        if self.kind == "clock_months":  # days that the target month lacks are the end of its last day
            return within(min(target_us + time_us - start_us, _start_of(month + self.months + 1) - 1))
        days, most = _start_of(month + 1) - start_us, _start_of(month + self.months + 1) - target_us
        passed_us = time_us - start_us
        # Times on days that the target month lacks become the midnight of its last day.
        return within(target_us + (most - DAY_US if days > most and passed_us >= most - DAY_US else passed_us))


def _is_finite(time_us: int) -> bool:
    return abs(time_us) < _GREATEST_US


def _start_of(month: int) -> int:
    """The start of a month, counted from January 1970, in microseconds; it may exceed 64 bits."""
    return int(np.datetime64(month, "M").astype("datetime64[D]").astype(np.int64)) * DAY_US


@dataclass(frozen=True, slots=True)
class Term:
    """The watermark of `source` (a relation's id, or `NOW`) after `steps`."""

    source: str
    steps: tuple[Step | MonthStep, ...] = ()

    def value(self, sources: Mapping[str, int]) -> int | None:
        """The watermark in microseconds; None if the source has none yet."""
        time_us = sources.get(self.source)
        if time_us is None:
            return None
        for step in self.steps:
            time_us = step.apply(time_us)
        return time_us

    def after(self, step: Step | MonthStep) -> Term:
        """The term with one more step; two additions become one."""
        before, last = self.steps, self.steps[-1] if self.steps else None
        if isinstance(step, Step) and isinstance(last, Step) and step.kind == last.kind == "add":
            step, before = Step("add", last.amount_us + step.amount_us), before[:-1]
        return Term(self.source, before if step == Step("add", 0) else (*before, step))


@dataclass(frozen=True, slots=True)
class Idle:
    """The rise of the clock of an idle relation: by `rises_us`, once no row has arrived for `after_us`."""

    after_us: int
    rises_us: int


@dataclass(frozen=True, slots=True)
class LateSide:
    """The rows that one operator of a view drops as late: `columns`, at `positions` of the operator's input.

    nodes: for each node of the query that is this operator, the id of the column that decides which rows are late, and
    those of the columns. reads: the ids of the relations from which the rows come.
    """

    operator: str
    positions: tuple[int, ...]
    columns: Schema
    nodes: tuple[tuple[str, ...], ...]
    reads: tuple[str, ...]

    @property
    def time(self) -> str:
        """The name of the column that decides which rows are late; empty if it is not kept."""
        first, *ids = self.nodes[0]
        return next((c.name for c, i in zip(self.columns, ids, strict=True) if i == first), "")


Watermark = tuple[Term, ...]
"""The least of its terms; empty for no watermark."""


def value(watermark: Watermark, sources: Mapping[str, int]) -> int | None:
    """The watermark in microseconds, computed from the sources' watermarks; None while one of them is unknown, or
    without terms.
    """
    values = [t.value(sources) for t in watermark]
    known = [v for v in values if v is not None]
    return min(known) if known and len(known) == len(values) else None


def shifted(watermark: Watermark, amount_us: int) -> Watermark:
    """The watermark of a column to which `amount_us` is added."""
    return least(t.after(Step("add", amount_us)) for t in watermark)


def delayed(watermark: Watermark, delay_us: int) -> Watermark:
    """The watermark for sources' watermarks reduced by `delay_us`, so that windows close that much later."""
    return least(reduce(Term.after, t.steps, Term(t.source).after(Step("add", -delay_us))) for t in watermark)


def floored(watermark: Watermark, size_us: int, origin_us: int = 0) -> Watermark:
    """The watermark of the start of a time's window of `size_us`; windows are aligned at `origin_us`."""
    return least(t.after(Step("floor", size_us, origin_us % size_us)) for t in watermark)


def by_months(watermark: Watermark, kind: Literal["add_months", "floor_months"], months: int) -> Watermark:
    """The watermark of a column to which months are added, or that is rounded down to months."""
    return least(t.after(MonthStep(kind, months)) for t in watermark)


def least(terms: Iterable[Term]) -> Watermark:
    """The watermark of all terms, in an order independent of theirs."""
    return tuple(sorted(set(terms), key=lambda t: (t.source, [(s.kind, *asdict(s).values()) for s in t.steps])))


def both(*watermarks: Watermark) -> Watermark:
    """The least of several watermarks; empty if one is empty."""
    return least(t for w in watermarks for t in w) if all(watermarks) else ()
